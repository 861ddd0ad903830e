//! A server is lost with its disk, and rebuilt from what its clients have: bundles of their mounts and caches.

use crate::common;

use common::{World, eventually, run, run_json, text};
use holdfast_client::rebuild::leaves::{FILE, LeafFile};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

#[track_caller]
fn exits(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", text(output));
    text(output)
}

/// Incompressible content that does not fit into an inode.
fn long(seed: u32) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    (0..40_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

/// Everything below a directory: names, kinds, modes, times, links and contents.
fn sums(directory: &Path) -> String {
    let script = "find . -printf '%P %y %m %s %T@ %l\\n' | sort; \
                  find . -type f -print0 | sort -z | xargs -0 -r sha256sum";
    run(Command::new("sh").args(["-c", script]).current_dir(directory))
}

/// Writes what `who`'s machine has into a bundle.
#[track_caller]
fn bundle(world: &World, who: &str) -> PathBuf {
    bundle_as(world, who, who, &[])
}

#[track_caller]
fn bundle_as(world: &World, who: &str, name: &str, extra: &[&str]) -> PathBuf {
    let file = world.path(&format!("{name}.bundle"));
    let mut command = world.holdfast(who);
    command
        .args(["fs", "bundle", &world.url, "--key"])
        .arg(world.key(who))
        .args(extra)
        .arg("--to")
        .arg(&file);
    run(&mut command);
    file
}

/// The command that rebuilds.
fn rebuilding(world: &World, bundles: &[&Path]) -> Command {
    let mut command = world.holdfast("operator");
    command.args(["fs", "rebuild", "--lease", "0", "--data"]).arg(world.data()).args(bundles);
    command.arg("--superuser").arg(world.key("superuser")).stdin(Stdio::null());
    command
}

fn rebuild(world: &World, bundles: &[&Path]) -> Output {
    rebuilding(world, bundles).output().expect("it runs")
}

/// The number of operations in the server's log.
fn operations(world: &World) -> u64 {
    let report = run_json(world.operator("witnesses").arg("--json"));
    report[0]["operations"].as_u64().expect("a number")
}

/// The number of operations of which `who`'s device has leaves.
fn leaves(world: &World, who: &str) -> u64 {
    let mut command = Command::new("find");
    let found = run(command.arg(world.path(&format!("{who}-state"))).args(["-name", FILE]));
    LeafFile::open(Path::new(found.trim()).parent().expect("a state directory")).expect("opened").verified()
}

#[track_caller]
fn lose_server(world: &mut World) {
    world.kill_server();
    fs::remove_dir_all(world.data()).expect("the disk is lost");
}

/// Proves: with git and SQLite on it, and one mount that stays, the rebuilt server is what the lost one was: every
/// name, time and byte. The mount goes on; a user who had unmounted, one who brought no bundle, and the superuser go
/// on, all without an alarm. Past states and snapshots work from then on.
#[test]
fn a_lost_server_comes_back() {
    let mut world = World::new(&["anna", "ben", "carla"]);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    let carla = world.mount("carla");
    assert!(fs::read_dir(carla.join("team")).expect("listed").next().is_none());
    world.umount("carla");
    let repository = anna.join("team/project");
    let git = |arguments: &[&str], at: &Path| {
        let mut command = Command::new("git");
        command
            .args(["-c", "user.name=Anna", "-c", "user.email=anna@example.org"])
            .args(arguments)
            .current_dir(at);
        run(command.env("GIT_CONFIG_GLOBAL", "/dev/null"))
    };
    fs::create_dir(&repository).expect("made");
    git(&["init", "-q"], &repository);
    for number in 0..30 {
        fs::write(repository.join(format!("file-{number}")), long(number)).expect("written");
    }
    git(&["add", "."], &repository);
    git(&["commit", "-q", "-m", "first"], &repository);
    let database = ben.join("team/db");
    let sqlite = |script: &str| run(Command::new("sqlite3").arg("-bail").arg(&database).arg(script));
    sqlite("CREATE TABLE t (n INTEGER, text TEXT);");
    for round in 0..5 {
        sqlite(&format!("INSERT INTO t VALUES ({round}, hex(randomblob(20000)));"));
        fs::write(ben.join(format!("ben/note-{round}")), long(100 + round)).expect("written");
        fs::write(anna.join(format!("anna/note-{round}")), "short").expect("written");
    }
    fs::write(repository.join("file-3"), b"changed").expect("written");
    git(&["commit", "-q", "-a", "-m", "second"], &repository);
    sums(&ben);
    world.umount("ben");
    let mut before = String::new();
    for round in 0..2 {
        // Clients ask for leaves of others' operations now and then, up to where they have seen the log.
        let mut last = fs::File::create(anna.join("anna/last")).expect("made");
        last.write_all(b"seen").and_then(|()| last.sync_all()).expect("at the server");
        drop(last);
        let operations = operations(&world);
        eventually("Anna's device has all leaves", || leaves(&world, "anna") >= operations);
        if round == 0 {
            before = sums(&anna);
        }
        lose_server(&mut world);
        // Anna's mount stays, and is asked for its bundle; Ben's is read from his state.
        let (hers, his) = (
            bundle_as(&world, "anna", &format!("anna-{round}"), &[]),
            bundle_as(&world, "ben", &format!("ben-{round}"), &[]),
        );
        let printed = exits(&rebuild(&world, &[&hers, &his]), 0);
        assert!(printed.contains("Nothing is missing") && printed.contains("brought nothing"), "{printed}");
        assert!(!printed.contains("known to nobody"), "all of the log is known: {printed}");
        world.start_server();
        assert_eq!(fs::read(anna.join("team/project/file-3")).expect("read"), b"changed");
        let ben = world.mount("ben");
        let carla = world.mount("carla");
        for mount in [&anna, &ben, &carla] {
            let now = sums(mount);
            if round == 0 {
                assert_eq!(now, before, "{}", mount.display());
            }
        }
        // At first, locks are for those who held some before; one wait for that is enough.
        let options = if round == 0 { "immutable=1" } else { "mode=rw" };
        let database = format!("file:{}?{options}", ben.join("team/db").display());
        assert_eq!(run(Command::new("sqlite3").arg(database).arg("PRAGMA integrity_check;")), "ok\n");
        git(&["fsck", "--strict"], &ben.join("team/project"));
        fs::write(anna.join(format!("team/after-{round}")), long(7)).expect("written");
        assert_eq!(fs::read(carla.join(format!("team/after-{round}"))).expect("read"), long(7));
        fs::write(carla.join(format!("carla/after-{round}")), long(8)).expect("written");
        git(&["commit", "-q", "--allow-empty", "-m", "third"], &ben.join("team/project"));
        world.keygen(&format!("dora-{round}"));
        let public = fs::read_to_string(world.path(&format!("dora-{round}.key.pub"))).expect("a public key");
        let url = world.url.clone();
        world.administer(&["fs", "user", "add", &url, &format!("dora-{round}"), public.trim()]);
        run(world.holdfast("ben").args(["snapshot", "create"]).arg(&ben).arg(format!("mark-{round}")));
        assert!(ben.join(format!(".snapshots/mark-{round}/team/after-{round}")).exists());
        for who in ["anna", "ben", "carla"] {
            let status = world.status(who);
            assert!(!status.contains("ALARM"), "{status}");
        }
        run(&mut world.operator("gc"));
        run(&mut world.operator("scrub"));
        world.umount("ben");
        world.umount("carla");
        // A cache must have Carla's file the second time.
        assert_eq!(fs::read(anna.join(format!("carla/after-{round}"))).expect("read"), long(8));
    }
}

/// Proves: what no bundle has is listed, with its path and its writer, and everything else is there. Reading it is an
/// error, and no alarm about the order. A client that has it can bring it later, while the file system is in use, and
/// then everything is whole. The server's key can be taken from the lost data directory, and then the superuser's is
/// not needed.
#[test]
fn what_is_missing_is_listed_and_brought_later() {
    let mut world = World::new(&["anna", "ben", "carla"]);
    let (anna, ben, carla) = (world.mount("anna"), world.mount("ben"), world.mount("carla"));
    fs::write(ben.join("team/lost"), long(1)).expect("written");
    fs::write(ben.join("team/read-by-anna"), long(2)).expect("written");
    fs::write(anna.join("team/hers"), long(3)).expect("written");
    assert_eq!(fs::read(carla.join("team/lost")).expect("read"), long(1));
    assert_eq!(fs::read(anna.join("team/read-by-anna")).expect("read"), long(2));
    run(Command::new("ls").arg("-l").arg(anna.join("team")));
    for who in ["anna", "ben", "carla"] {
        world.umount(who);
    }
    // The last operation of Carla's machine is lost: it has blocks, and nothing else that matters.
    world.kill_server();
    let key = fs::read(world.data().join("server-key")).expect("the key is kept elsewhere too");
    fs::remove_dir_all(world.data()).expect("lost");
    fs::remove_dir_all(world.path("ben-cache")).expect("Ben's cache is lost, too");
    fs::create_dir(world.data()).expect("made");
    fs::write(world.data().join("server-key"), key).expect("written");
    run(Command::new("chmod").arg("600").arg(world.data().join("server-key")));

    let (hers, his) = (bundle(&world, "anna"), bundle(&world, "ben"));
    let list = world.path("lost.txt");
    let without_superuser = |bundles: &[&Path], extra: &[&str]| {
        let mut command = world.holdfast("operator");
        command
            .args(["--json", "fs", "rebuild", "--lease", "0", "--data"])
            .arg(world.data())
            .args(bundles)
            .args(extra);
        let output = command.stdin(Stdio::null()).output().expect("it runs");
        exits(&output, 0);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")
    };
    let report = without_superuser(&[&hers, &his], &["--lost", list.to_str().expect("text")]);
    let lost = report["lost"].as_array().expect("a list");
    assert_eq!(lost.len(), 1, "{report}");
    assert_eq!(lost[0]["path"], "team/lost");
    assert_eq!(lost[0]["lost"]["bytes"], 40_000);
    assert!(lost[0]["writer"].as_str().expect("a name").contains("ben"), "{report}");
    let missing = report["blocks_missing"].as_u64().expect("a number");
    assert!(missing > 0 && fs::read_to_string(&list).expect("a list").lines().count() as u64 == missing + 1);

    world.start_server();
    let ben = world.mount("ben");
    assert_eq!(fs::read(ben.join("team/read-by-anna")).expect("read"), long(2));
    assert_eq!(fs::read(ben.join("team/hers")).expect("read"), long(3));
    assert_eq!(fs::metadata(ben.join("team/lost")).expect("it is there").len(), 40_000);
    fs::read(ben.join("team/lost")).expect_err("nobody brought it");
    fs::write(ben.join("team/since"), long(4)).expect("others go on");
    let carlas = bundle_as(&world, "carla", "carla", &["--lost", list.to_str().expect("text")]);
    assert!(fs::metadata(&carlas).expect("made").len() < 200_000, "only what is missing is in it");
    world.stop_server();
    let mut again = world.holdfast("operator");
    again.args(["fs", "rebuild", "--blocks-only", "--data"]).arg(world.data()).arg(&carlas);
    let printed = run(&mut again);
    assert!(printed.contains("Nothing is missing"), "{printed}");
    world.start_server();
    assert_eq!(fs::read(ben.join("team/lost")).expect("it is whole again"), long(1));
    let anna = world.mount("anna");
    assert_eq!(fs::read(anna.join("team/since")).expect("read"), long(4));
    assert_eq!(sums(&anna), sums(&ben));
}

/// Proves: bundles that were cut off, altered, invented, or of another file system are refused by their file's name, or
/// change nothing but what is missing. Nothing wrong is ever served.
#[test]
fn forged_bundles_are_refused() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    fs::write(anna.join("team/data"), long(1)).expect("written");
    fs::create_dir(anna.join("team/folder")).expect("made");
    fs::write(anna.join("team/folder/inner"), "small").expect("written");
    let before = sums(&anna);
    world.umount("anna");
    lose_server(&mut world);
    let whole = fs::read(bundle(&world, "anna")).expect("read");
    let bad = world.path("bad.bundle");
    let attempt = |bytes: &[u8]| {
        fs::write(&bad, bytes).expect("written");
        let _ = fs::remove_dir_all(world.data());
        rebuild(&world, &[&bad])
    };
    for cut in [0, 7, 40, 41, 60, whole.len() / 2, whole.len() - 1] {
        let printed = exits(&attempt(&whole[..cut]), 65);
        assert!(printed.contains("bad.bundle"), "{printed}");
    }
    exits(&attempt(&[&whole[..], b"more"].concat()), 65);
    exits(&attempt(&[7; 4000]), 65);
    // One byte altered anywhere: the bundle is refused, or the byte was in a block, which is then reported missing.
    let step = whole.len() / 60;
    for at in (0..whole.len()).step_by(step.max(1)) {
        let mut altered = whole.clone();
        altered[at] ^= 0x20;
        let output = attempt(&altered);
        match output.status.code() {
            Some(65 | 80) => {}
            Some(0) => {
                let printed = text(&output);
                let is_told = printed.contains("are missing") || printed.contains("known to nobody");
                assert!(is_told || printed.contains("Nothing is missing"), "byte {at}: {printed}");
            }
            other => panic!("byte {at}: {other:?}\n{}", text(&output)),
        }
    }
    // A true and a false bundle together: only what is true counts.
    let mut altered = whole.clone();
    let needle = &long(1)[1000..1032];
    let found = altered.windows(needle.len()).position(|window| window == needle).expect("the data is in it");
    altered[found] ^= 1;
    fs::write(&bad, &altered).expect("written");
    let _ = fs::remove_dir_all(world.data());
    let printed = exits(&rebuild(&world, &[&bad, &world.path("anna.bundle")]), 0);
    assert!(
        printed.contains("not what their addresses say") && printed.contains("Nothing is missing"),
        "{printed}"
    );
    // A bundle of another file system.
    let other = World::new(&["anna"]);
    let mut list = other.holdfast("superuser");
    run(list.args(["fs", "show", &other.url, "--key"]).arg(other.key("superuser")));
    let foreign = bundle(&other, "superuser");
    let printed = exits(&rebuild(&world, &[&world.path("anna.bundle"), &foreign]), 64);
    assert!(printed.contains("one file system after the other"), "{printed}");
    // A wrong key can sign nothing.
    let mut wrong = world.holdfast("operator");
    wrong.args(["fs", "rebuild", "--data"]).arg(world.path("data-2")).arg(world.path("anna.bundle"));
    let printed = exits(&wrong.output().expect("it runs"), 77);
    assert!(printed.contains("--superuser"), "{printed}");
    wrong.arg("--superuser").arg(world.key("anna"));
    exits(&wrong.output().expect("it runs"), 77);
    world.start_server();
    assert_eq!(sums(&world.mount("anna")), before);
}

/// Proves: the two sides of a fork are not mixed. Nothing is rebuilt, and evidence is kept that convicts the server on
/// any machine. Either side can be chosen; clients of the other side then refuse it.
#[test]
fn a_fork_is_found() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    fs::write(anna.join("team/common"), long(1)).expect("written");
    assert_eq!(fs::read(ben.join("team/common")).expect("read"), long(1));
    world.umount("ben");
    world.stop_server();
    run(Command::new("cp").arg("-a").arg(world.data()).arg(world.path("fork")));
    world.start_server();
    fs::write(anna.join("team/annas"), long(2)).expect("written");
    world.umount("anna");
    world.stop_server();
    fs::rename(world.data(), world.path("true")).expect("moved");
    fs::rename(world.path("fork"), world.data()).expect("moved");
    world.start_server();
    let ben = world.mount("ben");
    fs::write(ben.join("team/bens"), long(3)).expect("written");
    world.umount("ben");
    lose_server(&mut world);

    let (hers, his) = (bundle(&world, "anna"), bundle(&world, "ben"));
    let printed = exits(&rebuild(&world, &[&hers, &his]), 80);
    assert!(
        printed.contains("anna.bundle")
            && printed.contains("ben.bundle")
            && printed.contains("Nothing was rebuilt"),
        "{printed}"
    );
    let evidence: Vec<PathBuf> = fs::read_dir(world.data().join("evidence"))
        .expect("kept")
        .map(|entry| entry.expect("listed").path())
        .collect();
    assert_eq!(evidence.len(), 2);
    let judged =
        world.holdfast("judge").args(["evidence", "verify"]).args(&evidence).output().expect("it runs");
    assert!(exits(&judged, 80).contains("whoever has the server's key has promised two things"));
    assert!(!world.data().join("store").exists(), "nothing was begun");

    let printed = exits(&rebuild(&world, &[&hers]), 0);
    assert!(printed.contains("Nothing is missing"), "{printed}");
    // Ben's side comes too late.
    let printed = exits(&rebuild(&world, &[&his]), 80);
    assert!(printed.contains("Nothing was changed"), "{printed}");
    world.start_server();
    let anna = world.mount("anna");
    assert_eq!(fs::read(anna.join("team/annas")).expect("read"), long(2));
    assert!(!anna.join("team/bens").exists());
    exits(&world.try_mount("ben", &["--read-only"]), 80);
}

/// Kills a rebuild after some time; returns whether it had ended by itself.
fn killed_after(command: &mut Command, milliseconds: u64) -> bool {
    let mut child: Child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    let ended = child.try_wait().expect("it can be asked").is_some();
    let _ = child.kill();
    let _ = child.wait();
    ended
}

/// Proves: after a rebuild was killed at any time, the next one succeeds; rebuilding again changes nothing. A device
/// that saw more can still bring its bundle as long as nothing else was done, and is refused afterwards.
#[test]
fn interrupted_repeated_and_late() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    for number in 0..60 {
        fs::write(anna.join(format!("team/{number}")), long(number)).expect("written");
    }
    assert_eq!(fs::read_dir(ben.join("team")).expect("listed").count(), 60);
    world.umount("anna");
    // Only Ben knows of this operation; Anna is the last to have seen the state before it.
    for number in 0..5 {
        fs::write(ben.join(format!("team/later-{number}")), long(200 + number)).expect("written");
    }
    let all = sums(&ben);
    world.umount("ben");
    lose_server(&mut world);
    let (hers, his) = (bundle(&world, "anna"), bundle(&world, "ben"));
    for milliseconds in [5, 20, 40, 80, 160, 320] {
        if killed_after(&mut rebuilding(&world, &[&hers]), milliseconds) {
            break;
        }
    }
    exits(&rebuild(&world, &[&hers]), 0);
    let again = exits(&rebuild(&world, &[&hers]), 0);
    assert!(again.contains("0 blocks brought"), "{again}");
    world.start_server();
    exits(&world.try_mount("ben", &["--read-only"]), 80);
    world.stop_server();
    // Nothing was done since, so Ben is not too late. His alarm ends with its cause.
    let printed = exits(&rebuild(&world, &[&his]), 0);
    assert!(printed.contains("Nothing is missing"), "{printed}");
    world.start_server();
    let ben = world.mount_with("ben", &["--acknowledge-alarm"]);
    assert_eq!(sums(&ben), all);
    let anna = world.mount("anna");
    assert_eq!(sums(&anna), all);
    // From here on an operation of Ben's is lost, and Anna goes on without it.
    world.umount("anna");
    let older = bundle_as(&world, "anna", "anna-2", &[]);
    fs::write(ben.join("team/last"), "gone").expect("written");
    world.umount("ben");
    lose_server(&mut world);
    let newer = bundle_as(&world, "ben", "ben-2", &[]);
    exits(&rebuild(&world, &[&older]), 0);
    world.start_server();
    let anna = world.mount("anna");
    fs::write(anna.join("team/since"), "here").expect("written");
    world.umount("anna");
    world.stop_server();
    let printed = exits(&rebuild(&world, &[&newer]), 80);
    assert!(printed.contains("too late"), "{printed}");
    world.start_server();
    assert!(world.mount("anna").join("team/since").exists(), "what was done since is untouched");
}
