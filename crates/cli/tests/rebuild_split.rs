//! Servers that were lost while their blocks or their order were on other machines, rebuilt from what clients have.

use crate::common;

use common::block_server::BlockServer;
use common::cluster::Etcd;
use common::{World, eventually, noise, run, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

struct Split {
    world: World,
    blocks: BlockServer,
}

/// A file that Anna has written and read, and one of Ben's whose content no cache has.
fn lived_in() -> Split {
    let mut blocks = None;
    let mut world = World::with_server(&["anna", "ben"], |world| {
        let started = blocks.insert(BlockServer::new(world.folder.path(), &world.data()));
        vec!["--blocks".to_owned(), started.address()]
    });
    let ben = world.mount("ben").join("team");
    fs::write(ben.join("his"), noise(1, 300_000)).expect("written");
    let anna = world.mount("anna").join("team");
    fs::write(anna.join("hers"), noise(2, 300_000)).expect("written");
    run(Command::new("sync").arg("-f").arg(anna.join("hers")));
    run(Command::new("ls").arg("-l").arg(&anna));
    run(Command::new("ls").arg("-l").arg(&ben));
    world.umount("ben");
    world.umount("anna");
    fs::remove_dir_all(world.path("ben-cache")).expect("Ben's cache is lost");
    Split { world, blocks: blocks.expect("it was made") }
}

fn bundle(world: &World, who: &str) -> PathBuf {
    let file = world.path(&format!("{who}.bundle"));
    let mut command = world.holdfast(who);
    run(command.args(["fs", "bundle", &world.url, "--key"]).arg(world.key(who)).arg("--to").arg(&file));
    file
}

fn rebuild(world: &World, bundles: &[PathBuf], extra: &[&str]) -> Output {
    let mut command = world.holdfast("operator");
    command.args(["--json", "fs", "rebuild", "--lease", "0", "--data"]).arg(world.data()).args(bundles);
    command.arg("--superuser").arg(world.key("superuser")).args(extra).stdin(Stdio::null());
    command.output().expect("it runs")
}

#[track_caller]
fn report(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", text(output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Asserts that both can read what they should, and write, without an alarm about the order.
fn goes_on(world: &mut World, is_his_there: Found) {
    let team = world.mount("ben").join("team");
    assert_eq!(fs::read(team.join("hers")).expect("read"), noise(2, 300_000));
    match &is_his_there {
        Found::Whole => assert_eq!(fs::read(team.join("his")).expect("read"), noise(1, 300_000)),
        Found::Lost => assert!(fs::read(team.join("his")).is_err(), "nobody has it"),
    }
    fs::write(team.join("after"), "work goes on\n").expect("written");
    run(Command::new("sync").arg("-f").arg(team.join("after")));
    let anna = world.mount("anna").join("team");
    assert_eq!(fs::read_to_string(anna.join("after")).expect("read"), "work goes on\n");
    // A block that nobody has says nothing against the order.
    let (hers, his) = (world.status("anna"), world.status("ben"));
    assert!(!hers.to_lowercase().contains("alarm"), "{hers}");
    match is_his_there {
        Found::Whole => assert!(!his.to_lowercase().contains("alarm"), "{his}"),
        Found::Lost => assert!(his.contains("working, but some data is wrong"), "{his}"),
    }
    world.umount("anna");
    world.umount("ben");
}

enum Found {
    Whole,
    Lost,
}

fn move_key(world: &World, from: &Path) {
    run(Command::new("mkdir").args(["-m", "700"]).arg(world.data()));
    run(Command::new("cp").arg("-p").arg(from).arg(world.data()));
}

/// Proves: a consistency server that was lost with its disk is rebuilt beside its block server, which is asked for
/// everything it has, so that even what no client has is there. If the server's key is lost too, renaming a directory
/// at the block server gives its store to the new server; until then the block server says whom to allow.
#[test]
fn the_order_is_lost_and_the_blocks_are_not() {
    let mut split = lived_in();
    let key = split.world.path("server-key");
    run(Command::new("cp").arg("-p").arg(split.world.data().join("server-key")).arg(&key));
    split.world.kill_server();
    fs::remove_dir_all(split.world.data()).expect("lost");
    let bundles = [bundle(&split.world, "anna"), bundle(&split.world, "ben")];
    let at = split.blocks.address();

    // With another key the block server does not know this server.
    let refused = rebuild(&split.world, &bundles, &["--blocks", &at]);
    assert!(!refused.status.success());
    assert!(text(&refused).contains("--allow 'ssh-ed25519"), "{}", text(&refused));
    fs::remove_dir_all(split.world.data()).expect("begun anew");

    move_key(&split.world, &key);
    let done = report(&rebuild(&split.world, &bundles, &["--blocks", &at]));
    assert_eq!(done["lost"].as_array().map(Vec::len), Some(0), "{done}");
    // The server finds the block server by itself.
    split.world.start_server();
    goes_on(&mut split.world, Found::Whole);

    // The server is lost again, and its key with it.
    split.world.kill_server();
    fs::remove_dir_all(split.world.data()).expect("lost");
    let own = run(&mut split.world.operator("key"));
    split.blocks.process.kill();
    let stores = split.blocks.data.join("servers");
    let old = fs::read_dir(&stores).expect("listed").next().expect("one").expect("read").path();
    let new = own.split_whitespace().nth(1).expect("a key").to_owned();
    fs::rename(&old, stores.join(name_of(&split.world, &new))).expect("renamed");
    split.blocks.allow(own.trim());
    split.blocks.start();
    fs::remove_file(&bundles[0]).and_then(|()| fs::remove_file(&bundles[1])).expect("old ones");
    let bundles = [bundle(&split.world, "anna"), bundle(&split.world, "ben")];
    let done = report(&rebuild(&split.world, &bundles, &["--blocks", &at]));
    assert_eq!(done["lost"].as_array().map(Vec::len), Some(0), "{done}");
    split.world.start_server();
    goes_on(&mut split.world, Found::Whole);
}

/// The name of the directory that a block server has for a server's key: the key's digits.
fn name_of(world: &World, base64: &str) -> String {
    let line = format!("ssh-ed25519 {base64} x");
    let key = holdfast_crypto::keyfile::parse_public(&line).expect("a key");
    assert!(world.data().exists());
    key.to_string()
}

/// Proves: where consistency server and block server are lost together, a new block server is filled from caches, and
/// what no cache has is listed by its path.
#[test]
fn all_of_a_split_server_is_lost() {
    let mut split = lived_in();
    split.world.kill_server();
    split.blocks.process.kill();
    fs::remove_dir_all(split.world.data()).expect("lost");
    fs::remove_dir_all(&split.blocks.data).expect("lost");
    let bundles = [bundle(&split.world, "anna"), bundle(&split.world, "ben")];
    split.blocks = BlockServer::new(split.world.folder.path(), &split.world.data());
    let at = split.blocks.address();
    let done = report(&rebuild(&split.world, &bundles, &["--blocks", &at]));
    let lost = done["lost"].to_string();
    assert!(lost.contains("his") && !lost.contains("hers"), "{done}");
    split.world.start_server();
    goes_on(&mut split.world, Found::Lost);
}

/// Proves: where the order was in etcd and etcd is lost, the server's directory says what to do, and doing it works:
/// the order is rebuilt beside the block server and moved into a new etcd.
#[test]
fn etcd_is_lost() {
    let mut split = lived_in();
    split.world.stop_server();
    let etcd = Etcd::new(split.world.folder.path(), 0);
    let order = |etcd: &Etcd| format!("etcd://{}/test", etcd.members());
    let convert = |world: &World, to: &Path, order: &str| {
        let mut command = world.holdfast("operator");
        command.args(["server", "convert", "--data"]).arg(world.data()).arg("--to").arg(to);
        run(command.args(["--order", order]));
        fs::remove_dir_all(world.data()).expect("moved");
        fs::rename(to, world.data()).expect("renamed");
    };
    convert(&split.world, &split.world.path("clustered"), &order(&etcd));
    split.world.start_server();
    goes_on(&mut split.world, Found::Whole);
    split.world.stop_server();
    drop(etcd);
    fs::remove_dir_all(split.world.path("etcd")).expect("lost");

    let bundles = [bundle(&split.world, "anna"), bundle(&split.world, "ben")];
    let at = split.blocks.address();
    let refused = rebuild(&split.world, &bundles, &["--blocks", &at]);
    assert!(!refused.status.success());
    assert!(text(&refused).contains("rebuild into another directory"), "{}", text(&refused));
    let old = split.world.path("data-of-the-old");
    fs::rename(split.world.data(), &old).expect("renamed");
    move_key(&split.world, &old.join("server-key"));
    let done = report(&rebuild(&split.world, &bundles, &["--blocks", &at]));
    assert_eq!(done["lost"].as_array().map(Vec::len), Some(0), "{done}");
    let etcd = Etcd::new(split.world.folder.path(), 0);
    convert(&split.world, &split.world.path("again"), &order(&etcd));
    split.world.start_server();
    eventually("it is served", || split.world.mount_or_output("anna", &[]).is_ok());
    split.world.umount("anna");
    goes_on(&mut split.world, Found::Whole);
}
