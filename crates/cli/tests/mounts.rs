//! The life of mounts: sharing one signer, ending in every way, ordinary users, and what `status` says.

use crate::common;

use common::holder::Holder;
use common::{World, eventually, exits, is_mounted, run, run_json, text};
use holdfast_testing::eventually_some;
use rustix::process::{Pid, Signal};
use std::fs;
use std::io::Read;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

fn is_root() -> bool {
    run(Command::new("id").arg("-u")).trim() == "0"
}

/// Signals a process without starting a program: a program's start would close copies of every open file, which
/// publishes them.
fn signal(signal: Signal, process: u32) {
    let process = Pid::from_raw(i32::try_from(process).expect("a process id")).expect("not 0");
    rustix::process::kill_process(process, signal).expect("it runs");
}

fn is_alive(process: u32) -> bool {
    // A process that ended and was not waited for yet is a zombie.
    fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// A second mount with the same key is served by the same process and shares its signer. Each can be unmounted by
/// itself, and the process ends with the last.
#[test]
fn mounts_of_one_key_share_a_process() {
    let mut world = World::new(&["anna"]);
    let first = world.mount("anna");
    let process = world.mount_process("anna").expect("a process serves it");
    let second = world.path("second");
    fs::create_dir(&second).expect("a directory");
    run(world.holdfast("anna").args(["mount", &world.url]).arg(&second).arg("--key").arg(world.key("anna")));
    let status: serde_json::Value = serde_json::from_slice(
        &world.holdfast("anna").args(["status", "--json"]).output().expect("it runs").stdout,
    )
    .expect("JSON, whatever dead mounts others have left");
    assert_eq!(status["processes"].as_array().expect("a list").len(), 1);
    assert_eq!(status["processes"][0]["process"], process);
    assert_eq!(status["processes"][0]["mounts"].as_array().expect("a list").len(), 2);
    for round in 0..20 {
        fs::write(first.join("team/a"), format!("first {round}")).expect("written");
        assert_eq!(fs::read_to_string(second.join("team/a")).expect("read"), format!("first {round}"));
        fs::write(second.join("team/a"), format!("second {round}")).expect("written");
        assert_eq!(fs::read_to_string(first.join("team/a")).expect("read"), format!("second {round}"));
    }
    run(world.holdfast("anna").arg("umount").arg(&second));
    assert!(!is_mounted(&second) && is_alive(process));
    fs::write(first.join("team/b"), "still here").expect("written");
    world.umount("anna");
    eventually("the process ends with its last mount", || !is_alive(process));
}

/// Administration with a key that a mount uses goes through the mount's process.
#[test]
fn administration_through_a_running_mount() {
    let mut world = World::new(&["anna"]);
    let superuser = world.mount("superuser");
    world.keygen("carla");
    let public = fs::read_to_string(world.path("carla.key.pub")).expect("a key");
    let url = world.url.clone();
    assert!(world.administer(&["fs", "user", "add", &url, "carla", public.trim()]).contains("carla"));
    assert!(superuser.join("carla").is_dir());
    world.administer(&["fs", "group", "join", &url, "team", "carla"]);
    let carla = world.mount("carla");
    fs::write(carla.join("team/from carla"), "x").expect("she may write there now");
    world.administer(&["fs", "group", "leave", &url, "team", "carla"]);
    eventually("she may no longer", || fs::write(carla.join("team/again"), "x").is_err());
    assert_eq!(fs::read_to_string(superuser.join("team/from carla")).expect("it stays"), "x");
    let mut show = world.holdfast("anna");
    show.args(["fs", "show", &url, "--json", "--key"]).arg(world.key("anna"));
    let report = run_json(&mut show);
    assert_eq!(report["users"].as_array().expect("users").len(), 3);
    assert_eq!(report["groups"][0]["members"], serde_json::json!(["anna"]));
}

/// A member of an inner group writes in the outer group's directory, as long as the inner group is in it. Circles are
/// refused in words, and a removal names everybody it affects.
#[test]
fn groups_within_groups() {
    let mut world = World::new(&["anna", "ben"]);
    let url = world.url.clone();
    let fs_group = |world: &World, arguments: &[&str]| {
        world.administer(&[&["fs", "group", arguments[0], &url], &arguments[1..]].concat())
    };
    fs_group(&world, &["add", "design", "ben", "--no-directory"]);
    fs_group(&world, &["add", "all", "anna", "@design"]);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    fs::write(ben.join("all/plan"), "by ben").expect("he belongs to it by the inner group");
    fs::write(anna.join("all/plan"), "by anna").expect("and so does she by herself");
    fs::write(ben.join("all/plan"), "by ben again").expect("written");
    let mut circle = world.holdfast("superuser");
    circle.args(["fs", "group", "join", &url, "design", "@all", "--superuser"]).arg(world.key("superuser"));
    let printed = exits(&mut circle, 64);
    assert!(printed.contains("group design is within all"), "{printed}");
    let mut show = world.holdfast("anna");
    show.args(["fs", "group", "list", &url, "--key"]).arg(world.key("anna"));
    let listed = run(&mut show);
    assert!(listed.contains("anna, @design (that is: anna, ben)"), "{listed}");
    let report = run_json(show.arg("--json"));
    let all = report["groups"].as_array().expect("groups").iter().find(|group| group["name"] == "all");
    let all = all.expect("it is listed");
    assert_eq!(all["members"], serde_json::json!(["anna"]));
    assert_eq!(all["groups"], serde_json::json!(["design"]));
    assert_eq!(all["all"], serde_json::json!(["anna", "ben"]));
    let printed = fs_group(&world, &["remove", "design"]);
    assert!(printed.contains("no longer in all: ben") && printed.contains("taken over"), "{printed}");
    eventually("he may no longer", || fs::write(ben.join("all/again"), "x").is_err());
    assert_eq!(fs::read_to_string(anna.join("all/plan")).expect("it stays"), "by ben again");
    fs::write(anna.join("all/plan"), "by anna at last").expect("written");
    assert_eq!(fs::read_to_string(ben.join("all/plan")).expect("read"), "by anna at last");
}

/// A second device of the same person works in the same directories; once it is removed, it is refused.
#[test]
fn a_person_with_two_devices() {
    let mut world = World::new(&["anna"]);
    world.keygen("desktop");
    let public = fs::read_to_string(world.path("desktop.key.pub")).expect("a key");
    let url = world.url.clone();
    world.administer(&["fs", "device", "add", &url, "anna", "desktop", public.trim()]);
    let (laptop, desktop) = (world.mount("anna").join("anna"), world.mount("desktop").join("anna"));
    fs::write(laptop.join("notes"), "from the laptop").expect("written");
    assert_eq!(fs::read_to_string(desktop.join("notes")).expect("read"), "from the laptop");
    fs::write(desktop.join("notes"), "from the desktop").expect("written");
    assert_eq!(fs::read_to_string(laptop.join("notes")).expect("read"), "from the desktop");
    world.umount("desktop");
    world.administer(&["fs", "device", "remove", &url, "anna", "desktop"]);
    let mut again = world.holdfast("desktop");
    again.args(["mount", &url]).arg(world.path("desktop-mnt")).arg("--key").arg(world.key("desktop"));
    exits(&mut again, 67);
    assert_eq!(fs::read_to_string(laptop.join("notes")).expect("it stays"), "from the desktop");
}

/// Proves: `umount` of the last mount returns when its process has ended, so that its cache can be removed and its
/// state copied at once. A process that serves another mount goes on, and is not waited for.
#[test]
fn umount_waits_for_its_process() {
    let mut world = World::new(&["anna"]);
    for _ in 0..5 {
        let first = world.mount("anna");
        let second = world.mount_at("anna", "second", &[]);
        let process = world.mount_process("anna").expect("it is there");
        fs::write(first.join("team/file"), "content").expect("written");
        run(world.holdfast("anna").arg("umount").arg(&second));
        assert!(is_alive(process) && is_mounted(&first));
        fs::write(first.join("team/file"), "more").expect("written");
        run(world.holdfast("anna").arg("umount").arg(&first));
        assert!(!is_alive(process));
        fs::remove_dir_all(world.path("anna-cache")).expect("nobody makes anything in it");
    }
}

/// Proves: what was unmounted can be mounted again at once, whether its process goes on for another mount or is just
/// ending; the end of the old mount takes nothing from the new one.
#[test]
fn a_freed_place_is_free() {
    let mut world = World::new(&["anna"]);
    let second = world.path("second");
    fs::create_dir(&second).expect("a directory");
    let mount = |world: &World, at: &Path| {
        run(world.holdfast("anna").args(["mount", &world.url]).arg(at).arg("--key").arg(world.key("anna")))
    };
    let anna = world.mount("anna");
    for round in 0..20 {
        if round == 10 {
            mount(&world, &second);
        }
        fs::write(anna.join("team/file"), format!("round {round}")).expect("written");
        run(world.holdfast("anna").arg("umount").arg(&anna));
        mount(&world, &anna);
        let read = fs::read_to_string(anna.join("team/file")).expect("read");
        assert_eq!(read, format!("round {round}"));
        let printed = world.status("anna");
        assert!(printed.contains("working"), "round {round}: {printed}");
    }
    run(world.holdfast("anna").arg("umount").arg(&second));
    fs::write(anna.join("team/file"), "still here").expect("written");
}

/// Proves: programs that only look at a mount, as `status` and `df` do for all mounts, do not prevent unmounting.
#[test]
fn looks_keep_no_mount() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let look = || {
            while !is_over.load(SeqCst) {
                let _ = rustix::fs::statfs(&anna);
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        (0..2).for_each(|_| drop(scope.spawn(look)));
        for round in 0..10 {
            let output = world.holdfast("anna").arg("umount").arg(&anna).output().expect("it runs");
            let mounted = output.status.success().then(|| {
                world
                    .holdfast("anna")
                    .args(["mount", &world.url])
                    .arg(&anna)
                    .arg("--key")
                    .arg(world.key("anna"))
                    .output()
            });
            let is_mounted = mounted.is_some_and(|done| done.expect("it runs").status.success());
            is_over.store(round == 9 || !is_mounted, SeqCst);
            assert!(is_mounted, "round {round}: {}", text(&output));
        }
    });
}

/// Proves: while the process behind one mount is stopped, `status`, `stats` and `umount` end, with what is wrong and
/// the way out, and report on all other mounts. Once the process goes on, nothing was lost.
#[test]
fn a_stopped_process_holds_up_nobody() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    fs::write(anna.join("team/file"), "before").expect("written");
    let process = world.mount_process("anna").expect("a process serves it");
    signal(Signal::STOP, process);
    for command in [["status"].as_slice(), &["stats"], &["umount"]] {
        let printed = exits(world.holdfast("anna").args(command).arg(&anna), 69);
        assert!(printed.contains(&format!("kill -CONT {process}")), "{command:?}: {printed}");
    }
    let printed = exits(world.holdfast("anna").arg("status"), 69);
    assert!(printed.contains("STUCK"), "{printed}");
    run(world.holdfast("anna").args(["umount", "--lazy"]).arg(&anna));
    assert!(!is_mounted(&anna));
    signal(Signal::CONT, process);
    eventually("the process ends", || !is_alive(process));
    let anna = world.mount("anna");
    assert_eq!(fs::read_to_string(anna.join("team/file")).expect("read"), "before");
}

/// Proves: `status` ends even if a mount's process stops at the moment at which it has read the question and will not
/// answer. The kernel lets no program end while it waits for that answer.
#[test]
fn a_process_that_stops_when_it_is_asked() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    let process = world.mount_process("anna").expect("a process serves it");
    let ask = |_| {
        std::thread::sleep(std::time::Duration::from_millis(4));
        let asked = world.holdfast("anna").arg("status").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        asked.expect("it runs")
    };
    let asked: Vec<std::process::Child> = (0..12).map(ask).collect();
    signal(Signal::STOP, process);
    for mut asked in asked {
        // It was quick enough, or it says that this mount does not answer.
        let code = eventually_some("status ends", || asked.try_wait().expect("a child"));
        assert!(matches!(code.code(), Some(0 | 69)), "{code}");
    }
    signal(Signal::CONT, process);
    assert!(anna.join("team").is_dir());
}

/// Proves: a mount that cannot reach its server says so at once, on a pipe too. When the user gives up, nothing is left
/// running.
#[test]
fn a_mount_that_is_given_up() {
    let mut world = World::new(&["anna"]);
    world.kill_server();
    let directory = world.path("anna-mnt");
    fs::create_dir(&directory).expect("a directory");
    let mut mount = world.holdfast("anna");
    mount.args(["mount", &world.url]).arg(&directory).arg("--key").arg(world.key("anna"));
    let mut mount = mount.stderr(Stdio::piped()).spawn().expect("it runs");
    let mut printed = String::new();
    let errors = mount.stderr.take().expect("a pipe");
    BufReader::new(errors).read_line(&mut printed).expect("it says something");
    assert!(printed.contains("cannot be reached") && printed.contains("refused"), "{printed}");
    signal(Signal::INT, mount.id());
    let _ = mount.wait();
    eventually("the process in the background ends", || world.mount_process("anna").is_none());
    world.start_server();
    world.mount("anna");
}

/// kill -9 of a mount's process leaves no dead mount behind, and what programs had written but not closed is found by
/// `salvage` after the next mount.
#[test]
fn a_killed_process_leaves_no_dead_mount_and_no_lost_bytes() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    fs::write(anna.join("team/closed"), "closed").expect("written");
    let process = world.mount_process("anna").expect("a process serves it");
    let mut open = Holder::open(&anna.join("team/open"));
    open.write(b"not yet closed").expect("written");
    signal(Signal::KILL, process);
    eventually("the dead mount goes away", || !is_mounted(&anna));
    drop(open);
    let anna = world.mount("anna");
    assert_eq!(fs::read_to_string(anna.join("team/closed")).expect("read"), "closed");
    let to = world.path("rescued");
    let printed = run(world.holdfast("anna").args(["salvage", "--to"]).arg(&to));
    assert!(printed.contains("team/open"), "{printed}");
    let found = run(Command::new("grep").args(["-rlx", "not yet closed"]).arg(&to));
    assert_eq!(found.lines().count(), 1, "{found}");
    assert!(!world.status("anna").contains("ALARM"));
}

/// When even the process that cleans up was killed, the mount is dead: `status` says so, and `umount` or the next mount
/// removes it.
#[test]
fn a_dead_mount_is_in_nobodys_way() {
    let mut world = World::new(&["anna"]);
    for by_umount in [true, false] {
        let anna = world.mount("anna");
        let process = world.mount_process("anna").expect("a process serves it");
        let watching = eventually_some("a process watches", || {
            let mut found = Command::new("pgrep");
            let found = found.args(["-P", &process.to_string(), "-f", "^holdfast watch"]).output();
            String::from_utf8_lossy(&found.expect("pgrep runs").stdout).trim().parse().ok()
        });
        signal(Signal::KILL, watching);
        signal(Signal::KILL, process);
        eventually("the mount is dead", || fs::read_dir(&anna).is_err());
        assert!(is_mounted(&anna));
        let printed = exits(world.holdfast("anna").arg("status"), 69);
        assert!(printed.contains("DEAD"), "{printed}");
        if by_umount {
            run(world.holdfast("anna").arg("umount").arg(&anna));
            assert!(!is_mounted(&anna));
        } else {
            let mut mount = world.holdfast("anna");
            run(mount.args(["mount", &world.url]).arg(&anna).arg("--key").arg(world.key("anna")));
            fs::write(anna.join("team/a"), "a").expect("it works again");
        }
    }
}

/// When a mount's connection to the kernel is aborted, the mount and its process end and leave no dead mount; what was
/// unsaved is published or saved.
#[test]
fn an_aborted_connection() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    let process = world.mount_process("anna").expect("a process serves it");
    let connection = rustix::fs::minor(rustix::fs::stat(&anna).expect("stat").st_dev);
    let abort = PathBuf::from(format!("/sys/fs/fuse/connections/{connection}/abort"));
    if !abort.exists() {
        // The control file system of FUSE is not mounted here.
        return;
    }
    let mut open = Holder::open(&anna.join("team/open"));
    open.write(b"written before the abort").expect("written");
    fs::write(abort, "1").expect("aborted");
    eventually("it unmounts", || !is_mounted(&anna));
    eventually("the process ends", || !is_alive(process));
    assert_eq!(fs::read_to_string(ben.join("team/open")).expect("read"), "written before the abort");
}

/// SIGTERM publishes what is unsaved, unmounts although a program uses the mount, and ends the process.
#[test]
fn a_terminated_process_publishes_first() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    let process = world.mount_process("anna").expect("a process serves it");
    let mut open = Holder::open(&anna.join("team/open"));
    open.write(b"published by SIGTERM").expect("written");
    signal(Signal::TERM, process);
    eventually("it unmounts", || !is_mounted(&anna));
    eventually("it ends", || !is_alive(process));
    assert_eq!(fs::read_to_string(ben.join("team/open")).expect("read"), "published by SIGTERM");
}

/// `umount` refuses a mount that a program uses, and names the program; with --lazy it unmounts.
#[test]
fn a_busy_mount_stays() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    let open = fs::File::create(anna.join("team/open")).expect("created");
    let printed = exits(world.holdfast("anna").arg("umount").arg(&anna), 75);
    assert!(printed.contains(&format!("process {}", std::process::id())), "{printed}");
    assert!(is_mounted(&anna));
    run(world.holdfast("anna").args(["umount", "--lazy"]).arg(&anna));
    assert!(!is_mounted(&anna));
    drop(open);
}

/// With --foreground the command itself serves, and SIGINT (Ctrl-C) ends it in order.
#[test]
fn in_the_foreground() {
    let world = World::new(&["anna"]);
    let directory = world.path("front");
    fs::create_dir(&directory).expect("a directory");
    let mut command = world.holdfast("anna");
    command.args(["mount", "--foreground", &world.url]).arg(&directory).arg("--key").arg(world.key("anna"));
    let mut child = command.stderr(Stdio::null()).spawn().expect("it starts");
    eventually("it mounts", || is_mounted(&directory));
    fs::write(directory.join("team/a"), "a").expect("written");
    signal(Signal::INT, child.id());
    assert!(child.wait().expect("it ends").success());
    assert!(!is_mounted(&directory));
}

/// A read-only mount can be read, and refuses every change.
#[test]
fn read_only() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna");
    fs::write(anna.join("team/a"), "a").expect("written");
    let ben = world.mount_with("ben", &["--read-only"]);
    assert_eq!(fs::read_to_string(ben.join("team/a")).expect("read"), "a");
    for refused in [fs::write(ben.join("team/b"), "b"), fs::remove_file(ben.join("team/a"))] {
        assert_eq!(refused.expect_err("refused").kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
}

/// While the server does not answer, calls fail with a time-out, and `status` says so with an exit code of its own.
/// When the server is back, everything works.
#[test]
fn a_silent_server() {
    let mut world = World::new(&["anna"]);
    let anna = mounted_with_timeout(&mut world, "2");
    eventually("it is written", || fs::write(anna.join("team/a"), "a").is_ok());
    world.stop_server();
    let error = eventually_some("nobody answers", || fs::read_to_string(anna.join("team/a")).err());
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
    let printed = exits(world.holdfast("anna").arg("status").arg(&anna), 69);
    assert!(printed.contains("does not answer") && !printed.contains("ALARM"), "{printed}");
    world.start_server();
    eventually("it works again", || fs::read_to_string(anna.join("team/a")).is_ok_and(|text| text == "a"));
    eventually("status says so", || {
        let mut status = world.holdfast("anna");
        status.arg("status").arg(&anna).output().expect("it runs").status.success()
    });
}

/// Mounts with a time-out of so many seconds. If the machine stands still, mounting may run out of time, and is
/// repeated.
fn mounted_with_timeout(world: &mut World, seconds: &str) -> PathBuf {
    eventually_some("it is mounted", || world.mount_or_output("anna", &["--timeout", seconds]).ok())
}

/// With `--hard`, calls wait for a server that is away, and are answered when it is back: nothing times out.
#[test]
fn a_hard_mount_waits() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount_with("anna", &["--hard", "--timeout", "1"]);
    let content: Vec<u8> =
        (0..200_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(anna.join("team/a"), &content).expect("written");
    world.umount("anna");
    fs::remove_dir_all(world.path("anna-cache")).expect("a cold cache");
    let anna = world.mount_with("anna", &["--hard", "--timeout", "1"]);
    let mut open = fs::File::open(anna.join("team/a")).expect("opened");
    world.stop_server();
    let writing = anna.join("team/b");
    let waiting = [
        std::thread::spawn(move || {
            let mut read = Vec::new();
            open.read_to_end(&mut read).map(|_| read)
        }),
        std::thread::spawn(move || fs::write(writing, "b").map(|()| Vec::new())),
    ];
    // This mount has a time-out of the same length, and was asked later.
    let printed = exits(world.holdfast("anna").arg("status").arg(&anna), 69);
    assert!(printed.contains("does not answer"), "{printed}");
    assert!(waiting.iter().all(|thread| !thread.is_finished()), "they wait");
    world.start_server();
    let [read, written] = waiting.map(|thread| thread.join().expect("no panic"));
    assert_eq!(read.expect("read"), content);
    written.expect("written");
    assert_eq!(fs::read_to_string(anna.join("team/b")).expect("read"), "b");
}

/// Sixteen programs that wait for a silent server do not prevent looking at the mount or unmounting it.
#[test]
fn waiting_programs_block_nobody() {
    let mut world = World::new(&["anna"]);
    let anna = mounted_with_timeout(&mut world, "2");
    let open = eventually_some("it is written", || {
        fs::write(anna.join("team/a"), "a").and_then(|()| fs::File::open(anna.join("team/a"))).ok()
    });
    let mut byte = [0];
    eventually("it can be read", || open.read_exact_at(&mut byte, 0).is_ok());
    world.stop_server();
    let mut round = 0;
    // If the machine stands still meanwhile, their waiting is over when it is read: then once more.
    eventually("what is cached is read while they wait", || {
        round += 1;
        let waiting: Vec<_> = (0..16)
            .map(|number| {
                // Different names, as the kernel lets only one program look up a name at a time.
                let path = anna.join(format!("none {round}.{number}"));
                std::thread::spawn(move || fs::metadata(path).expect_err("nobody answers").kind())
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(300));
        open.read_exact_at(&mut byte, 0).expect("what is cached can be read");
        let they_wait = waiting.iter().any(|thread| !thread.is_finished());
        for thread in waiting {
            assert_eq!(thread.join().expect("no panic"), std::io::ErrorKind::TimedOut);
        }
        they_wait
    });
}

/// The command, run as an ordinary user of this machine with the user's own state.
struct Ordinary {
    user: &'static str,
    folder: tempfile::TempDir,
    binary: PathBuf,
}

impl Ordinary {
    /// Needs root, to run commands as another user, and a `/dev/fuse` that users may open, as udev makes it.
    fn new() -> Option<Ordinary> {
        if !is_root() {
            return None;
        }
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).ok()?;
        let folder = tempfile::Builder::new().prefix("holdfast-user.").tempdir().expect("a folder");
        let binary = folder.path().join("holdfast");
        fs::copy(env!("CARGO_BIN_EXE_holdfast"), &binary).expect("a copy that the user may run");
        let ordinary = Ordinary { user: "daemon", folder, binary };
        run(Command::new("chown").arg("-R").arg(ordinary.user).arg(ordinary.folder.path()));
        Some(ordinary)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn runs(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", self.user, "--regid", self.user, "--clear-groups"]).arg(program);
        command.current_dir(self.folder.path()).env("HOME", self.folder.path());
        command.env("HOLDFAST_STATE_DIR", self.path("state")).env("HOLDFAST_CACHE_DIR", self.path("cache"));
        command
    }

    fn holdfast(&self) -> Command {
        self.runs(&self.binary)
    }

    fn shell(&self, script: &str) -> Command {
        let mut command = self.runs(Path::new("sh"));
        command.args(["-ec", script]);
        command
    }
}

/// An ordinary user mounts through fusermount3, works, cannot be looked at by others (not even root), and unmounts;
/// kill -9 leaves no dead mount there either.
#[test]
fn an_ordinary_user() {
    let Some(user) = Ordinary::new() else { return };
    let world = World::new(&["anna"]);
    let directory = user.path("mnt");
    run(&mut user.shell("mkdir mnt"));
    run(user.holdfast().args(["keygen", "--out"]).arg(user.path("key")));
    let public = fs::read_to_string(user.path("key.pub")).expect("a key");
    world.administer(&["fs", "user", "add", &world.url, "ordinary", public.trim()]);
    let mount = || {
        let mut mount = user.holdfast();
        mount.args(["mount", &world.url]).arg(&directory).arg("--key").arg(user.path("key"));
        run(&mut mount);
    };
    mount();
    run(&mut user.shell(
        "cd mnt/ordinary; echo hello > a; mkdir d; mv a d/b; test \"$(cat d/b)\" = hello; test -O d/b",
    ));
    assert_eq!(fs::read_dir(&directory).expect_err("root is not the user").raw_os_error(), Some(13));
    run(user.holdfast().arg("status").arg(&directory));
    run(user.holdfast().arg("umount").arg(&directory));
    assert!(!is_mounted(&directory));

    mount();
    let status = run_json(user.holdfast().args(["status", "--json"]).arg(&directory));
    signal(Signal::KILL, status["processes"][0]["process"].as_u64().expect("a number") as u32);
    eventually("the dead mount goes away", || !is_mounted(&directory));
    mount();
    run(&mut user.shell("test \"$(cat mnt/ordinary/d/b)\" = hello"));
    run(user.holdfast().arg("umount").arg(&directory));
}

/// Other users see a mount only with --allow-other, and then act with the rights of its key.
#[test]
fn allow_other() {
    let Some(user) = Ordinary::new() else { return };
    let mut world = World::new(&["anna", "ben"]);
    fs::set_permissions(world.folder.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let closed = world.mount("anna");
    let open = world.mount_with("ben", &["--allow-other"]);
    fs::write(closed.join("team/a"), "a").expect("written");
    let cat = |path: &Path| user.shell(&format!("cat '{}'", path.display())).output().expect("it runs");
    let refused = cat(&closed.join("team/a"));
    assert!(!refused.status.success() && text(&refused).contains("denied"), "{}", text(&refused));
    assert_eq!(text(&cat(&open.join("team/a"))), "a");
}

/// A request of the kernel can be followed by its inode into the operation that carries it, and from there by device,
/// operation number and request number through the processes of the mount and the server, each part with its duration.
#[test]
fn a_request_is_traced() {
    const TRACED: (&str, &str) = ("HOLDFAST_LOG", "info,operation=trace");
    let world = World::with_server_in(&["anna"], &[TRACED], |_| Vec::new());
    let directory = world.path("traced");
    fs::create_dir(&directory).expect("made");
    let mut mount = world.holdfast("anna");
    mount.env(TRACED.0, TRACED.1).args(["mount", &world.url]).arg(&directory);
    run(mount.arg("--key").arg(world.key("anna")));
    let file = directory.join("anna/file");
    fs::write(&file, "content").expect("written");
    let inode = fs::metadata(&file).expect("it is there").ino();
    run(world.holdfast("anna").arg("umount").arg(&directory));
    let (client, server) = (world.mount_log("anna"), world.server_log());
    let after = |line: &str, name: &str| -> Option<u64> {
        let digits = line.rsplit_once(&format!("{name}="))?.1;
        digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    let find = |log: &str, parts: &[&str]| -> String {
        let found = log.lines().find(|line| parts.iter().all(|part| line.contains(part)));
        found.unwrap_or_else(|| panic!("{parts:?} in {log}")).to_owned()
    };

    // The content is published when the file is closed: sent at once, or gathered and sent with other edits.
    let flush = format!("what=Some(FUSE_FLUSH) inode={inode}}}");
    let first = client.lines().find(|line| {
        line.contains(&flush) && (line.contains("is carried by an operation") || line.contains("is gathered"))
    });
    let first = first.unwrap_or_else(|| panic!("{flush} in {client}"));
    let carried = match after(first, " edit") {
        None => first.to_owned(),
        Some(edit) => {
            let sent = |line: &&str| {
                let spans = line.split_once("send edits{").is_some_and(|(_, span)| {
                    let first = after(&span[..span.find(' ').unwrap_or(0)], "first");
                    let last = after(&span[..span.find('}').unwrap_or(0)], "last");
                    first <= Some(edit) && last >= Some(edit)
                });
                spans && line.contains("is carried by an operation")
            };
            client.lines().find(sent).unwrap_or_else(|| panic!("edit {edit} in {client}")).to_owned()
        }
    };
    let number = after(&carried, "operation").expect("a number");
    let named = format!("device=1 number={number}");
    for part in [":plan{", ":sign:", ":sync state:", ":round trip{request="] {
        find(&client, &["operation{", &named, part, "time.busy"]);
    }
    let exchange = find(&client, &["operation{", &named, ":round trip{", "took="]);
    let id = after(&exchange, " id").expect("the request's number");
    for part in ["store blocks{", ":order:", ":sync:"] {
        let request = format!(" id={id} from_front_end=Some(");
        find(&server, &["request{", &request, "member request{device=1 kind=", &named, part, "time.busy"]);
    }
}
