//! The blocks of a server at a block server: real processes, which are killed, kept away, put back to an older copy, or
//! have damaged blocks.

use crate::common;

use common::block_server::BlockServer;
use common::load::Load;
use common::{
    World, clone_small_repository, eventually, exits, exits_saying, free_port, git, run, run_json, text,
};
use holdfast_testing::noise;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A world whose server has its blocks at a block server.
struct Split {
    world: World,
    blocks: BlockServer,
}

impl Split {
    fn new(people: &[&str]) -> Split {
        let mut blocks = None;
        let world = World::with_server(people, |world| {
            let started = blocks.insert(BlockServer::new(world.folder.path(), &world.data()));
            vec!["--blocks".to_owned(), started.address()]
        });
        Split { world, blocks: blocks.expect("it was made") }
    }
}

/// Whether a program can read a file.
fn reads(path: &Path) -> bool {
    Command::new("cat")
        .arg(path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("cat runs")
        .success()
}

/// Copies a directory with `cp -a`.
fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg(from).arg(to));
}

/// Proves: programs, git among them, work while both servers are killed in turn, and nothing whose writing was
/// acknowledged is lost or different. The operator's commands show both machines.
#[test]
fn nothing_acknowledged_is_lost() {
    let mut split = Split::new(&["anna", "bert"]);
    let anna = split.world.mount("anna").join("anna");
    clone_small_repository(&split.world.path("source"), &anna.join("clone"));
    fs::write(anna.join("clone/new"), "new\n").expect("written");
    git(&anna.join("clone"), &["add", "new"]);
    git(&anna.join("clone"), &["commit", "-qm", "two"]);

    let mut load = Load::start(&split.world, &anna, 30_000);
    for round in 0..3 {
        load.goes_on("files are written");
        split.blocks.process.kill();
        std::thread::sleep(Duration::from_millis(300));
        split.blocks.start();
        load.goes_on("files are written once the blocks are back");
        split.world.kill_server();
        if round == 1 {
            split.blocks.process.kill();
            split.blocks.start();
        }
        split.world.start_server();
    }
    load.goes_on("files are written once the server is back");
    load.end();

    let theirs = split.world.mount("bert").join("anna");
    load.compare(&theirs);
    git(&theirs.join("clone"), &["-c", "safe.directory=*", "fsck", "--strict"]);
    let log = split.world.server_log();
    assert!(!log.contains("is damaged") && !log.contains("older copy"), "{log}");
    let figures = run_json(split.world.operator("stats").arg("--json"));
    assert_eq!(figures["block_store"]["address"], split.blocks.address().as_str());
    assert_eq!(figures["block_store"]["garbage_collected"], true);
    assert!(figures["blocks"].as_u64().expect("a number") > 100);
    assert!(run(&mut split.world.operator("gc")).contains(" blocks in use"));
    assert!(run(&mut split.world.operator("scrub")).contains("0 bad"));
    split.world.umount("anna");
    split.world.umount("bert");
}

/// Proves: while the block server is away, what needs it fails, with a reason in the server's journal, and does not
/// hang for ever; what was read before can be read. When it is back, work goes on, and what was acknowledged is there.
#[test]
fn a_block_server_that_is_away_for_a_while() {
    let mut split = Split::new(&["anna", "bert"]);
    let anna = split.world.mount("anna").join("anna");
    fs::write(anna.join("before"), noise(1, 300_000)).expect("written");
    run(Command::new("sync").arg(anna.join("before")));
    let bert = split.world.mount("bert").join("anna");
    split.blocks.process.stop();
    assert!(reads(&anna.join("before")), "what is cached is read");
    let mut reading =
        Command::new("cat").arg(bert.join("before")).stdout(Stdio::null()).spawn().expect("cat");
    let mut writing = Command::new("sh");
    let script = "head -c 50000 /dev/zero > \"$1\"; sync \"$1\"";
    let mut writing =
        writing.args(["-c", script, "sh"]).arg(anna.join("meanwhile")).spawn().expect("a shell");
    eventually("the server says what is wrong", || {
        let log = split.world.server_log();
        log.contains("the block store hf+blocks://127.0.0.1") && log.contains("cannot be reached")
    });
    assert!(!reading.wait().expect("it ends").success(), "what is not cached is an error");
    let away = split.world.operator("stats").output().expect("it runs");
    assert!(text(&away).contains("unknown") || text(&away).contains("false"), "{}", text(&away));
    split.blocks.start();
    eventually("what was not cached is read", || reads(&bert.join("before")));
    run(Command::new("cmp").arg(anna.join("before")).arg(bert.join("before")));
    writing.wait().expect("it ends");
    let after = |script: &str| Command::new("sh").args(["-c", script, "sh"]).arg(anna.join("after")).status();
    eventually("work goes on", || after("echo after > \"$1\" && sync \"$1\"").expect("a shell").success());
    eventually("what is written is seen", || reads(&bert.join("after")));
    let log = split.world.server_log();
    assert!(!log.contains("is damaged") && !log.contains("older copy"), "{log}");
    split.world.umount("anna");
    split.world.umount("bert");
}

/// Proves: an older copy of the blocks is noticed. Nothing is collected, reading what is lost is an error and never
/// returns other data, the rest is served, and the operator can accept the copy.
#[test]
fn an_older_copy_is_noticed() {
    let mut split = Split::new(&["anna", "bert"]);
    let anna = split.world.mount("anna").join("anna");
    fs::write(anna.join("old"), noise(1, 200_000)).expect("written");
    run(Command::new("sync").arg(anna.join("old")));
    split.blocks.process.stop();
    let copied = split.world.path("copy");
    copy(&split.blocks.data, &copied);
    split.blocks.start();
    fs::write(anna.join("new"), noise(2, 210_000)).expect("written");
    run(Command::new("sync").arg(anna.join("new")));
    split.blocks.process.stop();
    fs::remove_dir_all(&split.blocks.data).expect("removed");
    copy(&copied, &split.blocks.data);
    split.blocks.start();

    exits_saying(&mut split.world.operator("gc"), 65, &["is an older copy", "--blocks-anew"]);
    assert!(split.world.server_log().contains("is an older copy"));
    split.world.umount("anna");
    // The device that wrote the file may still have it in its cache; another device has not.
    let bert = split.world.try_mount("bert", &[]);
    let point = split.world.path("bert-mnt");
    if bert.status.success() {
        assert!(!reads(&point.join("anna/new")), "what is lost is no file");
        run(split.world.holdfast("bert").arg("umount").arg(&point));
    }
    split.world.stop_server();
    split.world.start_server_with(&["--blocks-anew"]);
    let collected = split.world.operator("gc").output().expect("it runs");
    assert!(!text(&collected).contains("older copy"), "{}", text(&collected));
    let stats = run(&mut split.world.operator("stats"));
    assert!(stats.contains("block store: doubt") && stats.contains("none"), "{stats}");
}

/// Proves: reading a block that the block server's disk altered fails with EIO, with a reason in the journal that names
/// the block server. Other files can be read, and a scrub finds the block.
#[test]
fn an_altered_block_is_an_error() {
    let mut split = Split::new(&["anna", "bert"]);
    let anna = split.world.mount("anna").join("anna");
    fs::write(anna.join("small"), "sound\n").expect("written");
    fs::write(anna.join("large"), noise(3, 6 << 20)).expect("written");
    run(Command::new("sync").arg(anna.join("large")));
    split.world.umount("anna");
    split.blocks.process.stop();
    let servers = split.blocks.data.join("servers");
    let store = fs::read_dir(&servers).expect("a folder").next().expect("a server").expect("an entry").path();
    let largest = fs::read_dir(store.join("store"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .max_by_key(|path| fs::read(path).expect("read").iter().filter(|byte| **byte != 0).count())
        .expect("a segment");
    let mut bytes = fs::read(&largest).expect("read");
    let used = bytes.iter().rposition(|byte| *byte != 0).expect("it is used");
    bytes[used / 2] ^= 1;
    fs::write(&largest, bytes).expect("written");
    split.blocks.start();
    let bert = split.world.mount("bert").join("anna");
    let printed =
        Command::new("cat").arg(bert.join("large")).stdout(Stdio::null()).output().expect("cat runs");
    assert!(text(&printed).contains("Input/output error"), "{}", text(&printed));
    assert_eq!(fs::read_to_string(bert.join("small")).expect("read"), "sound\n");
    let log = split.world.server_log();
    assert!(
        log.contains("at the block store hf+blocks://") && log.contains("holdfast server scrub"),
        "{log}"
    );
    exits_saying(&mut split.world.operator("scrub"), 65, &["at hf+blocks://"]);
    split.world.umount("bert");
}

/// Proves: a block server with another key, one that does not allow this server, and a data directory that has its
/// blocks itself are refused, with the way out. A backup says where the blocks are, and can be served with them.
#[test]
fn wrong_pairs_are_refused() {
    let mut split = Split::new(&["anna"]);
    let anna = split.world.mount("anna").join("anna");
    fs::write(anna.join("file"), "kept\n").expect("written");
    split.world.umount("anna");
    let backups = split.world.path("backups");
    let printed = run(split.world.operator("backup").arg("--to").arg(&backups));
    assert!(printed.contains(&split.blocks.address()), "{printed}");
    let backup = fs::read_dir(&backups).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut backup = backup;
    let backup = backup.find(|path| path.is_dir()).expect("a backup");
    split.world.stop_server();

    let start = |data: &Path, blocks: &str| {
        let listen = format!("127.0.0.1:{}", free_port());
        let mut command = split.world.holdfast("operator");
        command.args(["server", "--listen", &listen, "--blocks", blocks, "--data"]).arg(data);
        command
    };
    let address = split.blocks.address();
    let (rest, key) = address.rsplit_once('/').expect("an address");
    let other = format!("{rest}/{}", "ab".repeat(32));
    exits_saying(&mut start(&split.world.data(), &other), 69, &[key, &"ab".repeat(32)]);
    let stranger = split.world.path("stranger");
    exits_saying(&mut start(&stranger, &address), 69, &["--allow 'ssh-ed25519 "]);
    exits(&mut start(&stranger, "hf://there"), 64);
    exits(&mut start(&World::new(&[]).data(), &address), 64);

    let data = split.world.data();
    fs::rename(&data, split.world.path("lost")).expect("renamed");
    fs::rename(&backup, &data).expect("renamed");
    split.world.start_server();
    let anna = split.world.mount("anna").join("anna");
    assert_eq!(fs::read_to_string(anna.join("file")).expect("read"), "kept\n");
    split.world.umount("anna");
}
