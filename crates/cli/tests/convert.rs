//! From one box to several servers and back: order and blocks go from a data directory into etcd, to a block server, into a
//! bucket, and from each of them elsewhere, by real processes that are killed.

use crate::common;

use common::block_server::BlockServer;
use common::cluster::{Etcd, Pair, Second};
use common::object_store::{CREDENTIALS, Engine};
use common::process::Process;
use common::{World, ended, eventually, free_port, noise, run, setting, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What people see: files, a named past state, what everybody is charged for.
struct Sight {
    files: PathBuf,
    past: PathBuf,
    charged: String,
}

fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg(from).arg(to));
}

/// What `fs quota list` says, after the mounts of `people` have told the server which tables they have replaced: until then
/// those are charged to their owners too.
fn charged(world: &World, people: &[&str]) -> String {
    for who in people {
        eventually("replaced tables are given up", || {
            // (It fails while the server is away.)
            world.process_status(who)["engine"]["replaced_tables"] == 0
        });
    }
    let mut list = world.holdfast("superuser");
    run(list.args(["fs", "quota", "list", &world.url, "--json", "--key"]).arg(world.key("superuser")))
}

/// Two members, of whom one has a limit, fill a file system, name a state, and go on.
fn lived_in(world: &mut World) -> Sight {
    let url = world.url.clone();
    world.administer(&["fs", "quota", "set", &url, "anna", "200M"]);
    let (anna, bert) = (world.mount("anna"), world.mount("bert"));
    for (name, seed) in [("one", 1), ("two", 2), ("three", 3)] {
        fs::write(anna.join("anna").join(name), noise(seed, 2 << 20)).expect("written");
    }
    fs::write(bert.join("team/shared"), "bert's\n").expect("written");
    run(Command::new("sync").arg("-f").arg(bert.join("team/shared")));
    run(Command::new("sync").arg("-f").arg(anna.join("anna/one")));
    run(world.holdfast("anna").args(["snapshot", "create"]).arg(&anna).arg("before"));
    fs::write(anna.join("anna/two"), noise(4, 2 << 20)).expect("written");
    fs::remove_file(anna.join("anna/three")).expect("removed");
    run(Command::new("sync").arg("-f").arg(anna.join("anna/two")));
    let (files, past) = (world.path("files"), world.path("past"));
    copy(&anna.join("anna"), &files);
    copy(&anna.join(".snapshots/before/anna"), &past);
    world.umount("anna");
    world.umount("bert");
    Sight { files, past, charged: charged(world, &[]) }
}

impl Sight {
    /// The same people, with the state they had, see the same.
    fn check(&self, world: &mut World) {
        let same = |one: &Path, other: &Path| run(Command::new("diff").arg("-r").arg(one).arg(other));
        for who in ["anna", "bert"] {
            let mount = world.mount(who);
            same(&self.files, &mount.join("anna"));
            same(&self.past, &mount.join(".snapshots/before/anna"));
            assert_eq!(fs::read_to_string(mount.join("team/shared")).expect("read"), "bert's\n");
            let status = world.status(who);
            assert!(!status.contains("frozen") && !status.to_lowercase().contains("alarm"), "{status}");
            world.umount(who);
        }
        assert_eq!(charged(world, &[]), self.charged);
    }
}

fn convert(world: &World, to: &Path, targets: &[&str]) -> Command {
    convert_from(world, &world.data(), to, targets)
}

fn convert_from(world: &World, from: &Path, to: &Path, targets: &[&str]) -> Command {
    let mut command = world.holdfast("operator");
    command.envs(CREDENTIALS).args(["server", "convert", "--data"]).arg(from).arg("--to").arg(to);
    command.args(targets).stdin(Stdio::null());
    command
}

/// A server that is expected not to start.
fn started(data: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.args(["server", "--listen", "127.0.0.1:0", "--data"]).arg(data);
    ended(command.envs(CREDENTIALS).stdin(Stdio::null()))
}

fn refused(output: Output, why: &str) {
    assert!(!output.status.success() && text(&output).contains(why), "{}", text(&output));
}

/// Converts, killed ever later until it is through, and never served on the way; what it says then.
fn killed_again_and_again(
    world: &World,
    from: &Path,
    new: &Path,
    targets: &[&str],
    mut meanwhile: impl FnMut(),
) -> serde_json::Value {
    let (report, mark) = (world.path("told"), new.join("converting"));
    let kills = setting("HOLDFAST_KILLS", 3);
    // The first is killed as soon as it has begun.
    let (mut killed, mut pause) = (0, Duration::ZERO);
    loop {
        let mut command = convert_from(world, from, new, targets);
        let stdout = fs::File::create(&report).expect("a file");
        let mut child = command.arg("--json").stdout(stdout).spawn().expect("it runs");
        let start = Instant::now();
        let status = loop {
            let is_time = killed < kills && start.elapsed() >= pause && mark.exists();
            match child.try_wait().expect("it is a child") {
                None if is_time => break None,
                None => std::thread::sleep(Duration::from_millis(1)),
                status => break status,
            }
        };
        if let Some(status) = status {
            assert!(status.success());
            break;
        }
        child.kill().expect("a child can be killed");
        child.wait().expect("it ends");
        if mark.exists() && !from.join("converted").exists() {
            killed += 1;
            refused(started(new), "not all there yet");
            meanwhile();
        }
        pause += Duration::from_millis(700);
    }
    assert!(killed > 0);
    serde_json::from_str(&fs::read_to_string(&report).expect("read")).expect("JSON")
}

/// Puts the new directory where the world's server has its own.
fn take_over(world: &World, new: &Path) {
    fs::rename(world.data(), world.path("old")).expect("renamed");
    fs::rename(new, world.data()).expect("renamed");
}

/// Proves: a server with everything in its own directory becomes two with the order in etcd and the blocks at a block server,
/// by a command that is killed again and again; until it is through no server starts on the new directory, and from then on
/// none on the old one; clients mount with the states they had and see the same files, past states and charges; the other
/// server takes over.
#[test]
fn one_box_becomes_two_servers() {
    let mut world = World::new(&["anna", "bert"]);
    let sight = lived_in(&mut world);
    let (etcd, blocks) =
        (Etcd::new(world.folder.path(), 0), BlockServer::new(world.folder.path(), &world.data()));
    let (address, order) = (blocks.address(), format!("etcd://{}/test", etcd.members()));
    let targets = ["--blocks", address.as_str(), "--order", order.as_str()];
    let new = world.path("new");
    let running = convert(&world, &new, &targets).output().expect("it runs");
    refused(running, "in use");
    world.stop_server();
    refused(convert(&world, &new, &targets[2..]).output().expect("it runs"), "--blocks");
    let report = killed_again_and_again(&world, &world.data(), &new, &targets, || {
        let other = convert(&world, &new, &["--blocks", &address]).output().expect("it runs");
        refused(other, "something else");
    });
    // Unless it was killed when all was done.
    if report["was_done"] == false {
        let moved = &report["file_systems"][0];
        assert_eq!(moved["file_system"], world.fsid());
        assert!(moved["blocks"].as_u64() > Some(10) && moved["damaged"] == serde_json::json!([]), "{report}");
        assert_eq!(moved["devices_charged_otherwise"], 0, "{report}");
    }
    refused(started(&world.data()), "was moved");
    let again = run(convert(&world, &new, &targets).arg("--json"));
    assert!(again.contains("\"was_done\": true") || again.contains("\"was_done\":true"), "{again}");
    let elsewhere = convert(&world, &world.path("other"), &targets).output().expect("it runs");
    refused(elsewhere, "was moved");
    take_over(&world, &new);
    world.start_server();
    sight.check(&mut world);

    let (data, log) = (world.path("data2"), world.path("server2.log"));
    run(Command::new("mkdir").args(["-m", "700"]).arg(&data));
    run(Command::new("cp").arg("-p").arg(world.data().join("server-key")).arg(&data));
    let mut second = Second { data, log, port: free_port(), process: Process::default() };
    second.start(&targets);
    world.url = format!("hf://127.0.0.1:{},127.0.0.1:{}/{}", world.port, second.port, world.fsid());
    let mut pair = Pair { world, second, etcd, blocks };
    let data = pair.second.data.clone();
    // On a busy machine the second may have taken over by itself.
    eventually("one is active", || [pair.own_address(), pair.second_address()].contains(&pair.active(&data)));
    pair.world.kill_server();
    eventually("the second is active", || pair.active(&data) == pair.second_address());
    sight.check(&mut pair.world);
    let anna = pair.world.mount("anna").join("anna");
    fs::write(anna.join("after"), "work goes on\n").expect("written");
    run(Command::new("sync").arg("-f").arg(anna.join("after")));
    pair.world.umount("anna");
    let log = pair.logs();
    assert!(!log.contains("damaged") && !log.contains("panicked"), "{log}");
}

/// Proves: two servers with the order in etcd and the blocks at a block server become one with everything in its own
/// directory, by a command that is killed again and again, while neither of them runs; from then on none of them starts on
/// what it had, nor one that was there all the while and wakes; a mount that was there goes on, and all see the same.
#[test]
fn two_servers_become_one_box() {
    let mut pair = Pair::new(&["anna", "bert"], 0);
    let mut sight = lived_in(&mut pair.world);
    let team = pair.world.mount("bert").join("team");
    run(Command::new("sh").args(["-c", "echo before > meanwhile && sync meanwhile"]).current_dir(&team));
    sight.charged = charged(&pair.world, &["bert"]);
    let (new, targets) = (pair.world.path("new"), ["--blocks", "here", "--order", "here"]);
    let (first, second) = (pair.world.data(), pair.second.data.clone());
    pair.second.process.kill();
    let running = convert_from(&pair.world, &second, &new, &targets).output().expect("it runs");
    refused(running, "stop them first");
    // One that hangs, and is taken for dead.
    let hangs = pair.world.server_process().to_string();
    run(Command::new("kill").args(["-STOP", &hangs]));
    let alone = convert_from(&pair.world, &second, &new, &["--blocks", "here"]).output().expect("it runs");
    refused(alone, "--order here");
    let report = killed_again_and_again(&pair.world, &second, &new, &targets, || {});
    if report["was_done"] == false {
        assert_eq!(report["file_systems"][0]["devices_charged_otherwise"], 0, "{report}");
    }
    refused(started(&second), "was moved");
    run(Command::new("kill").args(["-CONT", &hangs]));
    let log = pair.world.path("server.log");
    eventually("it notices", || fs::read_to_string(&log).expect("a log").contains("not active any more"));
    let first_alone = format!("hf://{}/{}", pair.own_address(), pair.world.fsid());
    let both = std::mem::replace(&mut pair.world.url, first_alone);
    fs::create_dir_all(pair.world.path("anna-mnt")).expect("a mount point");
    // It asks as long as it may.
    eventually("it is refused", || {
        let tried = pair.world.try_mount("anna", &["--timeout", "2"]);
        assert!(!tried.status.success(), "{}", text(&tried));
        text(&tried).contains("another server has the file system now")
    });
    pair.world.url = both;
    pair.world.kill_server();
    refused(started(&first), "were moved");
    let again = convert(&pair.world, &pair.world.path("other"), &targets).output().expect("it runs");
    refused(again, "were moved");
    take_over(&pair.world, &new);
    pair.world.start_server();
    let figures = pair.figures(&first);
    assert!(figures["order"] == "in the data directory" && figures["block_store"].is_null(), "{figures}");
    assert_eq!(charged(&pair.world, &["bert"]), sight.charged);
    run(Command::new("sh").args(["-c", "echo after >> meanwhile && sync meanwhile"]).current_dir(&team));
    assert_eq!(fs::read_to_string(team.join("meanwhile")).expect("read"), "before\nafter\n");
    pair.world.umount("bert");
    sight.charged = charged(&pair.world, &[]);
    sight.check(&mut pair.world);
    let log = pair.logs();
    assert!(!log.contains("damaged") && !log.contains("panicked"), "{log}");
}

/// Proves: blocks move from a block server to several shards in a bucket, with the order staying in a directory.
#[test]
fn blocks_are_divided_into_shards() {
    let (engine, mut blocks) = (Engine::start(), None);
    let mut world = World::with_server(&["anna", "bert"], |world| {
        let started = blocks.insert(BlockServer::new(world.folder.path(), &world.data()));
        vec!["--blocks".to_owned(), started.address()]
    });
    let sight = lived_in(&mut world);
    let etcd = Etcd::new(world.folder.path(), 0);
    let bucket = engine.address("&durability=object&cache=512M");
    let mut shared = blocks.as_ref().expect("it was started").spare("shared");
    let group = format!("etcd://{}/test", etcd.members());
    shared.start_with(&["--blocks", &bucket, "--stand-by", &group, "--shards", "3"]);
    world.stop_server();
    let new = world.path("new");
    let old_address = blocks.as_ref().expect("it was started").address();
    let same = convert(&world, &new, &["--blocks", &old_address]).output().expect("it runs");
    refused(same, "leave --blocks out");
    let printed = run(&mut convert(&world, &new, &["--blocks", &shared.address()]));
    assert!(!printed.contains("LEFT OUT"), "{printed}");
    drop(blocks);
    take_over(&world, &new);
    world.start_server();
    run(&mut world.operator("gc"));
    sight.check(&mut world);
}

/// Proves: blocks move into a bucket, and the order into a new directory; garbage is collected there, and everything is read
/// as before. A prefix that has something is refused before anything is put there. From there they move to another bucket,
/// and back into a directory.
#[test]
fn blocks_move_into_a_bucket() {
    let engine = Engine::start();
    let bucket = engine.address("&durability=object&cache=256M");
    let mut world = World::with_server_in(&["anna", "bert"], &CREDENTIALS, |_| Vec::new());
    let sight = lived_in(&mut world);
    world.stop_server();
    let new = world.path("new");
    let printed = run(&mut convert(&world, &new, &["--blocks", &bucket]));
    assert!(printed.contains("All is at the new place") && !printed.contains("LEFT OUT"), "{printed}");
    refused(started(&world.data()), "was moved");
    fs::remove_file(world.data().join("converted")).expect("removed");
    let other = convert(&world, &world.path("other"), &["--blocks", &bucket]).output().expect("it runs");
    assert!(!other.status.success(), "{}", text(&other));
    take_over(&world, &new);
    world.start_server();
    run(&mut world.operator("gc"));
    let scrubbed = run(&mut world.operator("scrub"));
    assert!(scrubbed.contains(" 0 bad"), "{scrubbed}");
    sight.check(&mut world);

    let other_engine = Engine::start();
    let other = other_engine.address("&cache=256M").replace('?', "-other?");
    for (number, place) in [other, "here".to_owned()].into_iter().enumerate() {
        world.stop_server();
        let new = world.path(&format!("new{number}"));
        let printed = run(&mut convert(&world, &new, &["--blocks", &place]));
        assert!(printed.contains("All is at the new place") && !printed.contains("LEFT OUT"), "{printed}");
        refused(started(&world.data()), "was moved");
        fs::rename(world.data(), world.path(&format!("old{number}"))).expect("renamed");
        fs::rename(&new, world.data()).expect("renamed");
        world.start_server();
        if number == 0 {
            sight.check(&mut world);
        }
    }
    // All of it is here now.
    drop((engine, other_engine));
    sight.check(&mut world);
}

/// Proves: a server whose blocks are at a block server already moves its order alone into etcd; a mount that was there all the
/// while goes on.
#[test]
fn an_order_moves_alone() {
    let mut blocks = None;
    let mut world = World::with_server(&["anna", "bert"], |world| {
        let started = blocks.insert(BlockServer::new(world.folder.path(), &world.data()));
        vec!["--blocks".to_owned(), started.address()]
    });
    let mut sight = lived_in(&mut world);
    let team = world.mount("bert").join("team");
    run(Command::new("sh").args(["-c", "echo before > meanwhile && sync meanwhile"]).current_dir(&team));
    sight.charged = charged(&world, &["bert"]);
    world.stop_server();
    let etcd = Etcd::new(world.folder.path(), 0);
    let order = format!("etcd://{}/test", etcd.members());
    let new = world.path("new");
    run(&mut convert(&world, &new, &["--order", &order]));
    refused(started(&world.data()), "was moved");
    take_over(&world, &new);
    world.start_server();
    assert_eq!(charged(&world, &["bert"]), sight.charged);
    run(Command::new("sh").args(["-c", "echo after >> meanwhile && sync meanwhile"]).current_dir(&team));
    assert_eq!(fs::read_to_string(team.join("meanwhile")).expect("read"), "before\nafter\n");
    let status = world.status("bert");
    assert!(!status.to_lowercase().contains("alarm"), "{status}");
    world.umount("bert");
    sight.charged = charged(&world, &[]);
    sight.check(&mut world);
}
