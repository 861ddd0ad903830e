//! Servers that stand in for each other, for those who create and administer a file system.

use crate::common;

use common::World;
use common::cluster::Pair;
use common::{eventually, run, text};
use std::fs;
use std::path::Path;

fn address_in(printed: &str) -> String {
    printed.split_whitespace().find(|word| word.starts_with("hf://")).expect("an address").to_owned()
}

/// Creates a file system of `who`'s key on these servers.
fn create(world: &World, servers: &str, who: &str) -> String {
    if !world.key(who).exists() {
        world.keygen(who);
    }
    run(world.holdfast(who).args(["fs", "create", servers, "--superuser"]).arg(world.key(who)))
}

/// Proves: of several named servers, one that runs takes a new file system, wherever it is in the list. The file
/// system's address names all, and every command accepts it, whichever server is active. A server that was named alone
/// says which others stand in for it.
#[test]
fn created_on_whichever_runs() {
    let mut pair = Pair::new(&["anna"], 0);
    let (own, second) = (pair.own_address(), pair.second_address());
    let both = format!("{own},{second}");
    pair.world.kill_server();
    let printed = create(&pair.world, &both, "first");
    assert!(address_in(&printed).starts_with(&format!("hf://{both}/")), "{printed}");
    assert!(printed.contains(&format!("{own} did not answer")), "{printed}");

    pair.world.start_server();
    let data = pair.world.data();
    eventually("each knows of the other", || {
        [&data, &pair.second.data].iter().all(|data| {
            pair.figures(data)["order"]["servers"].as_array().is_some_and(|servers| servers.len() == 2)
        })
    });
    let alone = create(&pair.world, &second, "second");
    assert!(address_in(&alone).starts_with(&format!("hf://{second},{own}/")), "{alone}");
    assert!(alone.contains(&format!("The server says that {own} stands in for it")), "{alone}");

    // The second server is active, and last in the address; then it is killed.
    pair.world.url = address_in(&printed);
    let url = pair.world.url.clone();
    let superuser = pair.world.key("first");
    let administer = |pair: &Pair, arguments: &[&str]| {
        run(pair.world.holdfast("first").args(arguments).arg("--superuser").arg(&superuser))
    };
    let public = |who: &str| fs::read_to_string(pair.world.path(&format!("{who}.key.pub"))).expect("a key");
    administer(&pair, &["fs", "user", "add", &url, "anna", public("anna").trim()]);
    pair.second.process.kill();
    administer(&pair, &["fs", "group", "add", &url, "team", "anna"]);
    administer(&pair, &["fs", "quota", "set", &url, "anna", "10M"]);
    administer(&pair, &["fs", "device", "list", &url]);

    let anna = pair.world.key("anna");
    let as_anna = |pair: &Pair, arguments: &[&str]| {
        run(pair.world.holdfast("anna").args(arguments).arg("--key").arg(&anna))
    };
    assert!(as_anna(&pair, &["fs", "show", &url]).contains("anna"));
    let tree = pair.world.path("tree");
    fs::create_dir(&tree).expect("a folder");
    fs::write(tree.join("file"), "brought in").expect("written");
    as_anna(&pair, &["import", tree.to_str().expect("plain"), &format!("{url}/team/tree")]);
    let mount = pair.world.mount("anna");
    assert_eq!(fs::read_to_string(mount.join("team/tree/file")).expect("read"), "brought in");
    assert!(pair.world.status("anna").contains(&both), "{}", pair.world.status("anna"));
    pair.world.umount("anna");
    as_anna(&pair, &["evidence", "list", &url]);
    let release = pair.world.path("release");
    let key = pair.world.path("release.key");
    run(pair.world.holdfast("anna").args(["keygen", "--out"]).arg(&key));
    let live = format!("{url}/team/tree");
    run(pair
        .world
        .holdfast("anna")
        .args(["publish", &live, "--to"])
        .arg(&release)
        .arg("--key")
        .arg(&key)
        .arg("--as")
        .arg(&anna));
    let to = |name: &str| pair.world.path(name).to_str().expect("plain").to_owned();
    as_anna(&pair, &["fs", "bundle", &url, "--to", &to("bundle")]);
    let prepared = to("prepared");
    as_anna(&pair, &["fs", "group", "remove", &url, "team", "--prepare", &prepared]);
    let signed = to("signed");
    administer(&pair, &["fs", "sign", &prepared, "--out", &signed, "--yes"]);
    as_anna(&pair, &["fs", "submit", &signed]);
    as_anna(&pair, &["state", "export", &url, "--to", &to("anna.state")]);
    assert!(Path::new(&to("anna.state")).exists());
}

/// Proves: servers with different keys are refused in one address, and nothing is created. A server that is down, named
/// beside one without stand-ins, does not prevent creating a file system on that one, and the command says so.
#[test]
fn strangers_are_no_group() {
    let world = World::new(&[]);
    let stranger = World::new(&[]);
    let address = |world: &World| format!("127.0.0.1:{}", world.port);
    world.keygen("other");
    let servers = format!("{},{}", address(&world), address(&stranger));
    let mut command = world.holdfast("other");
    let output = command.args(["fs", "create", &servers, "--superuser"]).arg(world.key("other")).output();
    let output = output.expect("it runs");
    assert!(!output.status.success());
    assert!(text(&output).contains("show different keys"), "{}", text(&output));

    let dead = format!("127.0.0.1:{}", common::free_port());
    let printed = create(&world, &format!("{dead},{}", address(&world)), "other");
    assert!(printed.contains(&format!("{dead} did not answer")), "{printed}");
    assert!(!printed.contains("stands in"), "{printed}");
}
