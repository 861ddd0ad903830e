//! The order in etcd, the blocks in a bucket: three real members of etcd, two real servers, a block server on an object
//! store, and real mounts. Each of them is killed, and the block server's machine is lost.

use crate::common;

use common::cluster::Pair;
use common::load::Load;
use common::object_store::{CREDENTIALS, Engine};
use common::{eventually, run, text};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The consistency server's opinion of its block store.
fn block_store(pair: &Pair, data: &Path) -> serde_json::Value {
    pair.figures(data)["block_store"].clone()
}

/// Proves: while somebody writes, the active server, the block server and the object store are killed in turn, and work goes
/// on. Then the block server's machine is lost, and one with its key and an empty directory takes the store over at its
/// address; and then another does at another address, while the one before still runs, which ends. The servers go on, one
/// without a restart and both with the new address; all that was acknowledged is there, nobody alarms, and no server has a
/// doubt about its blocks.
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

    // The machine is lost, and another gets its address.
    let mut other = pair.blocks.spare("blocks2");
    pair.blocks.process.kill();
    fs::rename(&pair.blocks.data, pair.world.path("lost")).expect("renamed");
    other.port = pair.blocks.port;
    let refused = Command::new("timeout")
        .arg("60")
        .arg(env!("CARGO_BIN_EXE_holdfast"))
        .envs(CREDENTIALS)
        .args(["blocks", "--listen", "127.0.0.1:0", "--blocks", &bucket, "--allow"])
        .arg(
            run(pair.world.holdfast("operator").args(["server", "key", "--data"]).arg(pair.world.data()))
                .trim(),
        )
        .arg("--data")
        .arg(&other.data)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = text(&refused);
    assert!(refused.status.code() == Some(69) && said.contains("--blocks-anew"), "{said}");
    other.start_with(&["--blocks", &bucket, "--blocks-anew"]);
    load.goes_on("files are written at the other machine");

    // Another takes over from one that lives, at another address.
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

    for data in [pair.world.data(), pair.second.data.clone()] {
        eventually("the server finds its blocks", || block_store(&pair, &data)["reached"] == true);
        let standing = block_store(&pair, &data);
        assert_eq!(standing["garbage_collected"], true, "{standing}");
        assert_eq!(standing["address"], address.as_str());
        assert_eq!(standing["bucket"]["trouble"], "none", "{standing}");
        assert!(standing["bucket"]["requests_since_start"]["put"].as_u64() > Some(0), "{standing}");
    }
    let log = pair.logs();
    assert!(!log.contains("older copy") && !log.contains("not the one that was there"), "{log}");
    pair.check(&load, "anna", "bert");
    pair.world.umount("anna");
}
