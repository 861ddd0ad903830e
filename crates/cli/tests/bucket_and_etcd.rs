//! The order in etcd and the blocks in a bucket: three real members of etcd, two real servers, a block server on an
//! object store, and real mounts. Each of them is killed, and the block server's machine is lost.

use crate::common;

use common::block_server::BlockServer;
use common::cluster::Pair;
use common::load::Load;
use common::object_store::{CREDENTIALS, Engine};
use common::{ended, eventually, run, text};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The status of the block store as a consistency server reports it.
fn block_store(pair: &Pair, data: &Path) -> serde_json::Value {
    pair.figures(data)["block_store"].clone()
}

/// Asserts of both servers that they reach their blocks, at this address if one is given, and doubt none, and that everything
/// acknowledged is there; then unmounts.
fn check(pair: &mut Pair, load: &Load, address: Option<&str>) {
    for data in [pair.world.data(), pair.second.data.clone()] {
        eventually("the server finds its blocks", || block_store(pair, &data)["reached"] == true);
        let status = block_store(pair, &data);
        assert_eq!(status["garbage_collected"], true, "{status}");
        assert!(address.is_none_or(|address| status["address"] == address), "{status}");
    }
    let log = pair.logs();
    assert!(!log.contains("older copy") && !log.contains("not the one that was there"), "{log}");
    pair.check(load, "anna", "bert");
    pair.world.umount("anna");
}

/// Proves: while somebody writes, the active server, the block server and the object store are killed in turn, and work
/// goes on. Then the block server's machine is lost, and a block server with its key and an empty directory takes the
/// store over at the same address. Then a third does so at another address, while the second still runs, which ends it.
/// Both servers go on with the new address, all that was acknowledged is there, no client raises an alarm, and no
/// server doubts its blocks.
#[test]
fn everything_may_be_lost_but_what_was_acknowledged() {
    let mut engine = Engine::start();
    let bucket = engine.address("&durability=object&cache=256M");
    let mut pair = Pair::with_blocks(&["anna", "bert"], 0, &["--blocks", &bucket]);
    let anna = pair.world.mount("anna").join("anna");
    let mut load = Load::start(&pair.world, &anna, 30_000);
    load.goes_on("files are written");
    pair.world.kill_server();
    load.goes_on("the second goes on");
    pair.world.start_server();
    pair.blocks.process.kill();
    pair.blocks.start();
    load.goes_on("files are written once the block server is back");
    engine.kill();
    let data = pair.second.data.clone();
    eventually("a server says that the bucket is away", || {
        let trouble = &block_store(&pair, &data)["bucket"]["trouble"];
        trouble.as_str().is_some_and(|trouble| trouble.contains("cannot be reached"))
    });
    engine.start_again();
    load.goes_on("files are written once the object store is back");

    // The block server's machine is lost, and another machine gets its address.
    let mut other = pair.blocks.spare("blocks2");
    pair.blocks.process.kill();
    fs::rename(&pair.blocks.data, pair.world.path("lost")).expect("renamed");
    other.port = pair.blocks.port;
    let mut refused = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    refused
        .envs(CREDENTIALS)
        .args(["blocks", "--listen", "127.0.0.1:0", "--blocks", &bucket, "--allow"])
        .arg(run(&mut pair.world.operator("key")).trim())
        .arg("--data")
        .arg(&other.data)
        .stdin(Stdio::null());
    let refused = ended(&mut refused);
    let printed = text(&refused);
    assert!(refused.status.code() == Some(69) && printed.contains("--blocks-anew"), "{printed}");
    other.start_with(&["--blocks", &bucket, "--blocks-anew"]);
    load.goes_on("files are written at the other machine");

    // A third block server takes the store over from one that runs, at another address.
    let mut third = other.spare("blocks3");
    third.start_with(&["--blocks", &bucket, "--blocks-anew"]);
    other.process.ends();
    assert!(fs::read_to_string(&other.log).expect("a log").contains("was taken over by"));
    let address = third.address();
    pair.world.kill_server();
    pair.world.start_server_with(&["--blocks", &address]);
    pair.second.process.kill();
    pair.second.start(&["--blocks", &address]);
    load.goes_on("files are written at the third machine");
    load.end();

    check(&mut pair, &load, Some(&address));
    for data in [pair.world.data(), pair.second.data.clone()] {
        let status = block_store(&pair, &data);
        assert_eq!(status["bucket"]["trouble"], "none", "{status}");
        assert!(status["bucket"]["requests_since_start"]["put"].as_u64() > Some(0), "{status}");
    }
}

/// Proves: of two block servers on one bucket one is elected and serves. When it is killed, stopped in order, or hangs,
/// the other takes over; one that hung and was replaced stands by when it wakes. The servers find the one that serves
/// by themselves, all that was acknowledged is there, no client raises an alarm, and no server doubts its blocks. A
/// block server with another key, or whose disk would have what the bucket does not, is refused.
#[test]
fn block_servers_stand_by_for_each_other() {
    let engine = Engine::start();
    let bucket = engine.address("&durability=object&cache=256M");
    let mut pair = Pair::with_blocks(&["anna", "bert"], 0, &["--blocks", &bucket]);
    let anna = pair.world.mount("anna").join("anna");
    let mut load = Load::start(&pair.world, &anna, 30_000);
    load.goes_on("files are written");

    // The block server that was alone starts again as one of two.
    let etcd = format!("etcd://{}/test", pair.etcd.members());
    let elected = ["--blocks", &bucket, "--stand-by", &etcd];
    let mut other = pair.blocks.spare("blocks2");
    let address = pair.blocks.address_with(&other);
    pair.blocks.process.stop();
    pair.blocks.start_with(&["--stand-by", &etcd]);
    other.stand_by(&elected);
    pair.world.kill_server();
    pair.world.start_server_with(&["--blocks", &address]);
    pair.second.process.kill();
    pair.second.start(&["--blocks", &address]);
    load.goes_on("files are written with two block servers");

    let refused = |command: &mut Command, why: &str| {
        let output = ended(command.stdin(Stdio::null()));
        let printed = text(&output);
        assert!(output.status.code() == Some(69) && printed.contains(why), "{printed}");
    };
    let mut stranger = other.spare("blocks3");
    fs::remove_file(stranger.data.join("server-key")).expect("removed");
    refused(&mut stranger.command(&elected), "copy the file server-key from there");
    stranger.data = pair.world.path("blocks4");
    let local = engine.address("");
    refused(&mut stranger.command(&["--blocks", &local, "--stand-by", &etcd]), "durability=object");

    let waited = |since: Instant, why: &str| println!("{why}: {:.1} s", since.elapsed().as_secs_f64());
    let killed = Instant::now();
    pair.blocks.process.kill();
    load.goes_on("the second serves");
    waited(killed, "three more files were acknowledged after the kill");
    pair.blocks.stand_by(&elected);
    other.process.stop();
    load.goes_on("the first serves again");
    other.stand_by(&elected);
    let hung = Instant::now();
    pair.blocks.process.signal("-STOP");
    load.goes_on("the second serves again");
    waited(hung, "after it hung");
    let log = pair.blocks.log.clone();
    let printed = |words: &str| fs::read_to_string(&log).expect("a log").matches(words).count();
    let stood_by = printed("this one stands by");
    pair.blocks.process.signal("-CONT");
    eventually("the first stands by", || printed("this one stands by") > stood_by);
    assert!(printed("gives up the blocks of") > 0, "{}", fs::read_to_string(&log).expect("a log"));
    load.goes_on("files are written while the first stands by");
    load.end();

    check(&mut pair, &load, Some(&address));
}

/// Proves: two block servers share the shards of one bucket, and both serve. While somebody writes, each is killed and
/// comes back, one is stopped in order, and work goes on. All that was acknowledged is there, no client raises an
/// alarm, no server doubts its blocks, and garbage is collected.
#[test]
fn block_servers_share_a_bucket() {
    let engine = Engine::start();
    let bucket = engine.address("&durability=object&cache=512M");
    let (mut other, mut arguments) = (None, Vec::new());
    let mut pair = Pair::with_blocks_by(&["anna", "bert"], 0, |world, etcd| {
        let etcd = format!("etcd://{}/test", etcd.members());
        arguments = ["--blocks", &bucket, "--stand-by", &etcd, "--shards", "4"].map(str::to_owned).to_vec();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let blocks = BlockServer::with(world.folder.path(), &world.data(), &arguments);
        let mut second = blocks.spare("blocks2");
        second.start_with(&arguments);
        let address = blocks.address_with(&second);
        other = Some(second);
        (blocks, address)
    });
    let mut other = other.expect("it was made");
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let serves = |blocks: &BlockServer| {
        let log = fs::read_to_string(&blocks.log).expect("a log");
        log.matches(" serves shard ").count() - log.matches(" gives up shard ").count()
    };
    eventually("each has half", || serves(&pair.blocks) == 2 && serves(&other) == 2);
    let anna = pair.world.mount("anna").join("anna");
    let mut load = Load::start(&pair.world, &anna, 30_000);
    load.goes_on("files are written");
    pair.blocks.process.kill();
    load.goes_on("the second goes on");
    fs::remove_file(&pair.blocks.log).expect("removed");
    pair.blocks.start_with(&arguments);
    eventually("the first has half again", || serves(&pair.blocks) == 2 && serves(&other) == 2);
    load.goes_on("files are written by both");
    other.process.kill();
    load.goes_on("the first goes on");
    fs::remove_file(&other.log).expect("removed");
    other.start_with(&arguments);
    eventually("the second has half again", || serves(&pair.blocks) == 2 && serves(&other) == 2);
    pair.blocks.process.stop();
    load.goes_on("the second goes on once more");
    load.end();

    let collected = run(&mut pair.world.operator("gc"));
    assert!(collected.contains("blocks"), "{collected}");
    check(&mut pair, &load, None);
}
