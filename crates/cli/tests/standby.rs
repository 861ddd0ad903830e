//! Several servers with their order in etcd: three real members of etcd, two real servers, a block server and real
//! mounts. The active server is killed, stopped, cut off and moved away from; etcd loses its leader, its quorum and its
//! space.

use crate::common;

use common::cluster::Pair;
use common::load::Load;
use common::players::{self, Player};
use common::{ended, eventually, git, run, setting, text};
use holdfast_exercise::registers;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn signal(process: u32, signal: &str) {
    run(Command::new("kill").args([&format!("-{signal}"), &process.to_string()]));
}

/// Proves: while somebody writes and commits, the active server is killed again and again, and then etcd's leader. Each
/// time another server goes on, all that was acknowledged is there, and no client raises an alarm. An operator moves
/// the file system to the other server, and nobody notices. `HOLDFAST_KILLS=10` kills more often; the length of each
/// wait is printed.
#[test]
fn a_standby_goes_on() {
    let mut pair = Pair::new(&["anna", "bert"], 0);
    let anna = pair.world.mount("anna").join("anna");
    let mut load = Load::start(&pair.world, &anna, 3000);
    let repository = anna.join("repository");
    fs::create_dir(&repository).expect("a folder");
    git(&repository, &["init", "-q"]);
    let (rounds, mut waits) = (setting("HOLDFAST_KILLS", 2), Vec::new());
    for round in 0..rounds {
        load.goes_on("files are written");
        let killed = match round % 2 {
            0 => {
                pair.world.kill_server();
                "the second goes on"
            }
            _ => {
                pair.second.process.kill();
                "the first goes on"
            }
        };
        waits.push(load.goes_on(killed));
        fs::write(repository.join("file"), format!("{round}\n")).expect("written");
        git(&repository, &["add", "."]);
        git(&repository, &["commit", "-qm", "one more"]);
        match round % 2 {
            0 => pair.world.start_server(),
            _ => pair.second.start(&[]),
        }
    }
    let told: Vec<String> = waits.iter().map(|wait| format!("{} ms", wait.as_millis())).collect();
    eprintln!("files were acknowledged again {} after each kill", told.join(", "));
    let leader = pair.etcd.leader();
    pair.etcd.kill(leader);
    load.goes_on("files are written without etcd's leader");
    pair.etcd.start(leader);

    let active = pair.active(&pair.second.data);
    let (data, to) = match active == pair.own_address() {
        true => (pair.world.data(), pair.second_address()),
        false => (pair.second.data.clone(), pair.own_address()),
    };
    let mut command = pair.world.holdfast("operator");
    let id = pair.world.fsid().to_owned();
    run(command.args(["server", "move", "--data"]).arg(&data).args([&id, "--to", &to]));
    load.goes_on("files are written after the move");
    eventually("it has moved", || pair.active(&data) == to);
    load.end();
    pair.check(&load, "anna", "bert");
    assert_eq!(git(&repository, &["log", "--oneline"]).lines().count() as u64, rounds);
    git(&repository, &["fsck", "--strict"]);
    pair.world.umount("anna");
}

/// Proves: while three mounts write and read the same small files, and servers and members of etcd are killed and
/// stopped at random, what all calls returned is linearizable: one memory could have returned it, one call after the
/// other, each while it ran. `HOLDFAST_KILLS=200 HOLDFAST_SEED=3` does it for longer.
#[test]
fn what_all_have_seen_is_one_order() {
    let mut random = holdfast_sim::random::Random::new(setting("HOLDFAST_SEED", 1));
    let people = ["anna", "bert", "carla"];
    let mut pair = Pair::new(&people, 0);
    let teams: Vec<PathBuf> = people.iter().map(|who| pair.world.mount(who).join("team")).collect();
    registers::make(&teams[0], players::REGISTERS).expect("made");
    let stop = pair.world.path("stop");
    let played =
        teams.iter().zip(1..).map(|(place, writer)| Player::start(&pair.world, place, writer, &stop));
    let mut played: Vec<Player> = played.collect();
    for _ in 0..setting("HOLDFAST_KILLS", 4) {
        std::thread::sleep(Duration::from_millis(500 + random.below(2500)));
        match random.below(6) {
            0 | 1 => {
                pair.world.kill_server();
                std::thread::sleep(Duration::from_millis(random.below(6000)));
                pair.world.start_server();
            }
            2 | 3 => {
                pair.second.process.kill();
                std::thread::sleep(Duration::from_millis(random.below(6000)));
                pair.second.start(&[]);
            }
            4 => {
                let stopped = pair.world.server_process();
                signal(stopped, "STOP");
                std::thread::sleep(Duration::from_millis(random.below(8000)));
                signal(stopped, "CONT");
            }
            _ => {
                let member = random.below(3) as usize;
                pair.etcd.kill(member);
                std::thread::sleep(Duration::from_millis(random.below(4000)));
                pair.etcd.start(member);
            }
        }
    }
    players::check(&mut played, &stop).unwrap_or_else(|why| panic!("{why}\n{}", pair.logs()));
    for who in people {
        let status = pair.world.status(who);
        assert!(!status.contains("frozen") && !status.to_lowercase().contains("alarm"), "{status}");
        pair.world.umount(who);
    }
}

/// Proves: a server that is stopped until its lease is over acknowledges nothing when it wakes, and tells clients where
/// the file system is. While etcd has no quorum nothing is acknowledged either, and work goes on by itself when it is
/// back.
#[test]
fn who_is_cut_off_acknowledges_nothing() {
    let mut pair = Pair::new(&["anna", "bert"], 0);
    let anna = pair.world.mount("anna").join("anna");
    let mut load = Load::start(&pair.world, &anna, 3000);
    load.goes_on("files are written");
    let back_end = pair.world.server_process();
    let stopped = Instant::now();
    signal(back_end, "STOP");
    load.goes_on("the second goes on");
    println!(
        "three more files were acknowledged {:.1} s after the active server hung",
        stopped.elapsed().as_secs_f64()
    );
    signal(back_end, "CONT");
    let log = pair.world.path("server.log");
    eventually("the first notices", || {
        fs::read_to_string(&log).expect("a log").contains("not active any more")
    });
    load.goes_on("the second still goes on");
    let first_alone = format!("hf://{}/{}", pair.own_address(), pair.world.fsid());
    let both = std::mem::replace(&mut pair.world.url, first_alone);
    fs::create_dir(pair.world.path("bert-mnt")).expect("a mount point");
    eventually("who asks the first is told", || {
        let refused = pair.world.try_mount("bert", &["--timeout", "3"]);
        text(&refused).contains("another server has the file system now")
    });
    pair.world.url = both;

    let noticed = || {
        let log = fs::read_to_string(&pair.second.log).expect("a log");
        log.matches("file systems wait until it is back").count()
    };
    let noticed_before = noticed();
    pair.etcd.kill(0);
    pair.etcd.kill(1);
    let before = load.acked().len();
    eventually("the second notices", || noticed() > noticed_before);
    // One call may have been answered before etcd was stopped.
    assert!(load.acked().len() <= before + 1, "acknowledged without a quorum");
    pair.etcd.start(0);
    load.goes_on("files are written once etcd has a quorum");
    pair.etcd.start(1);
    load.end();
    pair.check(&load, "anna", "bert");
    pair.world.umount("anna");
}

/// Proves: when etcd's space is used up, writing fails with a reason in the journal, and what a mount has can be read.
/// Once there is space, everything goes on without a restart.
#[test]
fn a_full_etcd_is_told_and_recovers() {
    let mut pair = Pair::new(&["anna", "bert"], 24 << 20);
    let anna = pair.world.mount("anna").join("anna");
    fs::write(anna.join("before"), "sound\n").expect("written");
    run(Command::new("sync").arg(anna.join("before")));
    let bert = pair.world.mount("bert").join("anna");
    let rubbish = "x".repeat(1 << 20);
    let file = pair.world.path("rubbish");
    fs::write(&file, rubbish).expect("written");
    let endpoints = pair.etcd.members();
    let fill = || {
        Command::new("sh")
            .args(["-c", "ETCDCTL_API=3 etcdctl --endpoints \"$1\" put rubbish < \"$2\"", "sh", &endpoints])
            .arg(&file)
            .output()
            .expect("it runs")
    };
    eventually("etcd is full", || !fill().status.success());
    let write = |name: &str| {
        let script = "echo new > \"$1\" && sync \"$1\"";
        let mut shell = Command::new("timeout");
        shell.args(["20", "sh", "-c", script, "sh"]).arg(anna.join(name)).stderr(Stdio::null());
        shell.status().expect("a shell").success()
    };
    let mut number = 0;
    eventually("writing fails, and it is said why", || {
        number += 1;
        !write(&format!("meanwhile{number}")) && pair.logs().contains("etcd's space is used up")
    });
    assert_eq!(fs::read_to_string(anna.join("before")).expect("read"), "sound\n");

    let revision = pair.etcd.control(&["get", "rubbish", "--keys-only", "-w", "json"]).expect("it answers");
    let revision: serde_json::Value = serde_json::from_str(&revision).expect("JSON");
    let revision = revision["header"]["revision"].as_u64().expect("a revision").to_string();
    pair.etcd.control(&["compact", &revision]).expect("compacted");
    eventually("it is defragmented", || pair.etcd.control(&["defrag"]).is_some());
    eventually("the alarm is off", || pair.etcd.control(&["alarm", "disarm"]).is_some());
    eventually("writing goes on", || write("after"));
    eventually("it is seen", || fs::read_to_string(bert.join("after")).is_ok_and(|text| text == "new\n"));
    assert_eq!(fs::read_to_string(anna.join("before")).expect("read"), "sound\n");
    pair.world.umount("bert");
    pair.world.umount("anna");
}

/// Proves: a server whose configuration cannot work is refused, with the way out: with blocks that no other server can
/// reach, an address that nobody can use, no etcd.
#[test]
fn wrong_beginnings_are_explained() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.args(["server", "--data"]).arg(folder.path().join(name)).args(arguments);
        let output = ended(command.stdin(Stdio::null()));
        assert!(!output.status.success());
        text(&output)
    };
    let told = start("a", &["--state", "etcd://127.0.0.1:1/p", "--listen", "127.0.0.1:0"]);
    assert!(told.contains("--blocks is needed"), "{told}");
    let told = start("b", &["--state", "http://127.0.0.1:1/p"]);
    assert!(told.contains("etcd://HOST:PORT,HOST:PORT/PREFIX"), "{told}");
}
