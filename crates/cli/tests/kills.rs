//! The server and mounts are killed again and again while people write, keys are rotated, states get names and garbage
//! is collected: what was acknowledged is there, and no alarm is raised.
//!
//! `HOLDFAST_KILLS=1000 HOLDFAST_SEED=7 scripts/test only cli::kills::` does it for longer.

use crate::common;

use common::players::{self, Player};
use common::*;
use holdfast_exercise::registers;
use holdfast_sim::random::Random;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Writes files below a directory, each durably, and notes a name once it is acknowledged. A write that fails is
/// repeated under another name; the failed file may be there or not.
const WRITER: &str = "import os, sys, time
where, noted, n = sys.argv[1], open(sys.argv[2], 'a'), int(sys.argv[3])
while True:
    n += 1
    name = 'f%d' % n
    try:
        f = os.open(os.path.join(where, name), os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(f, name.encode() * (1 + n % 7 * 900))
        os.fsync(f)
        os.close(f)
        noted.write(name + '\\n')
        noted.flush()
    except OSError:
        time.sleep(0.05)
";

struct Writer {
    who: &'static str,
    folder: String,
    begun: u64,
    child: Option<Child>,
}

impl Writer {
    fn notes(&self, world: &World) -> PathBuf {
        world.path(&format!("{}-notes", self.who))
    }

    fn folder(&self, world: &World) -> PathBuf {
        world.path(&format!("{}-mnt", self.who)).join(&self.folder)
    }

    fn start(&mut self, world: &World) {
        self.begun += 100_000;
        let mut python = Command::new("python3");
        python
            .args(["-c", WRITER])
            .arg(self.folder(world))
            .arg(self.notes(world))
            .arg(self.begun.to_string());
        python.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(python.spawn().expect("python3 runs"));
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child can be killed");
            // A thread that waits in a system call ends when that call does.
            eventually("the writer ends", || child.try_wait().expect("it is a child").is_some());
        }
    }

    /// Asserts that everything acknowledged is there, as seen from `folder`.
    fn check(&self, world: &World, folder: &Path) -> usize {
        let notes = fs::read_to_string(self.notes(world)).unwrap_or_default();
        for name in notes.lines() {
            let number: usize = name[1..].parse().expect("a number");
            let found = fs::read(folder.join(name))
                .unwrap_or_else(|error| panic!("{name} was acknowledged: {error}"));
            assert_eq!(found, name.repeat(1 + number % 7 * 900).into_bytes(), "{name}");
        }
        notes.lines().count()
    }
}

/// Kills the process of a mount, and waits until it is gone.
fn kill_mount(world: &World, who: &str) {
    let process = world.mount_process(who).expect("it is mounted");
    run(Command::new("kill").args(["-9", &process.to_string()]));
    eventually("the killed mount is gone", || !Path::new(&format!("/proc/{process}")).exists());
    let directory = world.path(&format!("{who}-mnt"));
    eventually("its mount point is free", || !is_mounted(&directory));
}

/// `holdfast mount` after a kill. It is repeated, as processes beside the killed one may still be ending.
fn mount_again(world: &World, who: &str) {
    eventually(&format!("{who} mounts again"), || world.try_mount(who, &[]).status.success());
}

/// Proves: whatever is killed while two people write, every file whose writing was acknowledged is there and whole for
/// both, and no alarm is raised.
#[test]
fn nothing_acknowledged_is_lost_by_kills() {
    let (kills, seed) = (setting("HOLDFAST_KILLS", 6), setting("HOLDFAST_SEED", 1));
    let mut random = Random::new(seed);
    let mut world = World::new(&["anna", "ben"]);
    // A killed mount's leases keep others waiting for this term.
    let start = |world: &mut World| world.start_server_with(&["--lease", "3"]);
    world.stop_server();
    start(&mut world);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    let folders = [("anna", "anna"), ("ben", "team")];
    let mut writers =
        folders.map(|(who, folder)| Writer { who, folder: folder.to_owned(), begun: 0, child: None });
    writers.iter_mut().for_each(|writer| writer.start(&world));
    let url = world.url.clone();
    for kill in 0..kills {
        std::thread::sleep(Duration::from_millis(100 + random.below(600)));
        match random.below(3) {
            0 => {
                world.kill_server();
                std::thread::sleep(Duration::from_millis(random.below(300)));
                start(&mut world);
            }
            which => {
                let writer = &mut writers[which as usize - 1];
                kill_mount(&world, writer.who);
                writer.stop();
                mount_again(&world, writer.who);
                writer.start(&world);
            }
        }
        match random.below(8) {
            0 => {
                let named = world
                    .holdfast("anna")
                    .args(["snapshot", "create"])
                    .arg(&anna)
                    .arg(format!("kill-{kill}"))
                    .output()
                    .expect("it runs");
                // Under constant change, the state to be named may be replaced before its name arrives.
                let printed = text(&named);
                let has_passed = printed.contains("is not kept") || printed.contains("no such file");
                assert!(named.status.success() || has_passed, "{printed}");
            }
            1 => {
                let collected = Command::new(env!("CARGO_BIN_EXE_holdfast"))
                    .args(["server", "gc", "--data"])
                    .arg(world.data())
                    .output()
                    .expect("it runs");
                assert!(collected.status.success(), "{}", text(&collected));
            }
            2 => {
                let name = format!("device{kill}");
                world.keygen(&name);
                let public = fs::read_to_string(world.path(&format!("{name}.key.pub"))).expect("a key");
                world.administer(&["fs", "device", "add", &url, "anna", &name, public.trim()]);
                world.keygen(&format!("{name}-next"));
                let next = fs::read_to_string(world.path(&format!("{name}-next.key.pub"))).expect("a key");
                world.administer(&["fs", "device", "rotate", &url, "anna", &name, next.trim()]);
            }
            _ => {}
        }
        for who in ["anna", "ben"] {
            let status = world.status(who);
            assert!(!status.contains("ALARM"), "after {} kills, seed {seed}: {status}", kill + 1);
        }
    }
    for writer in &mut writers {
        let notes = writer.notes(&world);
        eventually("something is acknowledged", || fs::metadata(&notes).is_ok_and(|notes| notes.len() > 0));
        writer.stop();
    }
    let [by_anna, by_ben] = &writers;
    for (writer, folder) in [(by_anna, "anna"), (by_ben, "team")] {
        for at in [&anna, &ben] {
            assert!(writer.check(&world, &at.join(folder)) > 0);
        }
    }
    for who in ["anna", "ben"] {
        assert!(!world.status(who).contains("ALARM"), "{}", world.status(who));
    }
}

/// Makes and removes files of its own in the directory of others' files, so that mounts hold leases of the directory in
/// turn.
const MAKER: &str = "import os, sys, time
where, who, n = sys.argv[1], sys.argv[2], 0
while True:
    n += 1
    name = os.path.join(where, '%s-%d' % (who, n % 40))
    try:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o644)) if n % 80 < 40 else os.unlink(name)
    except OSError:
        time.sleep(0.02)
";

/// Proves: while several mounts read and write the same small files, make and remove others beside them, and the server
/// and mounts are killed at random, what all calls returned is linearizable: one memory could have returned it, one
/// call after the other, each while it ran. No alarm is raised. `HOLDFAST_KILLS=200 HOLDFAST_MOUNTS=8` does it for
/// longer, with more mounts.
#[test]
fn what_several_have_seen_is_one_order() {
    let (kills, seed) = (setting("HOLDFAST_KILLS", 4), setting("HOLDFAST_SEED", 1));
    let mut random = Random::new(seed);
    let people: Vec<String> = (0..setting("HOLDFAST_MOUNTS", 3)).map(|one| format!("member{one}")).collect();
    let people: Vec<&str> = people.iter().map(String::as_str).collect();
    let mut world = World::new(&people);
    let start = |world: &mut World| world.start_server_with(&["--lease", "3"]);
    world.stop_server();
    start(&mut world);
    let teams: Vec<PathBuf> = people.iter().map(|who| world.mount(who).join("team")).collect();
    registers::make(&teams[0], players::REGISTERS).expect("made");
    let stop = world.path("stop");
    let played = teams.iter().zip(1..).map(|(place, writer)| Player::start(&world, place, writer, &stop));
    let mut played: Vec<Player> = played.collect();
    let maker = |(place, who): (&PathBuf, &&str)| {
        let mut python = Command::new("python3");
        python.args(["-c", MAKER]).arg(place).arg(who).stdin(Stdio::null()).spawn().expect("python3 runs")
    };
    let mut makers: Vec<Child> = teams.iter().zip(&people).map(maker).collect();
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(300 + random.below(2000)));
        if random.below(2) == 0 {
            world.kill_server();
            std::thread::sleep(Duration::from_millis(random.below(1000)));
            start(&mut world);
        } else {
            let who = random.pick(&people);
            kill_mount(&world, who);
            std::thread::sleep(Duration::from_millis(random.below(4000)));
            mount_again(&world, who);
        }
    }
    let checked = players::check(&mut played, &stop);
    for maker in &mut makers {
        maker.kill().expect("a child can be killed");
        eventually("the maker ends", || maker.try_wait().expect("it is a child").is_some());
    }
    checked.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    for who in &people {
        let status = world.status(who);
        assert!(!status.contains("ALARM"), "seed {seed}: {status}");
    }
}
