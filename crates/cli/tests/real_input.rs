//! Real programs on real input, through real mounts.

use crate::common;

use common::{World, eventually, run, setting, text};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

fn project() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the checkout")
}

/// Proves that a real C package unpacks, configures, builds and runs on the mount (GNU hello).
#[test]
fn c_package_unpacks_configures_and_builds() {
    let mut world = World::new(&["alice"]);
    let team = world.mount("alice").join("team");
    let archive = run(&mut Command::new(project().join("scripts/hello-source")));
    run(Command::new("tar").arg("xzf").arg(archive.trim()).arg("-C").arg(&team));
    let hello = team.join("hello-2.10");
    run(Command::new("./configure").arg("--quiet").current_dir(&hello));
    run(Command::new("make").arg("-s").current_dir(&hello));
    assert_eq!(run(Command::new(hello.join("hello")).env("LC_ALL", "C")), "Hello, world!\n");
}

/// Mounts that fill one directory at once.
const MOUNTS: usize = 4;
/// Programs that write at once.
const THREADS: usize = 32;
/// Small files in one folder.
const IN_A_FOLDER: usize = 100;

/// How many small files, or entries of one directory: enough for a tree of several levels.
fn entries() -> usize {
    setting("HOLDFAST_ENTRIES", 3000) as usize
}

/// Proves that thousands of small files can be written, listed and read back (every one) by another person.
/// `HOLDFAST_ENTRIES=100000` makes more.
#[test]
fn thousands_of_small_files() {
    let folders = entries().div_ceil(IN_A_FOLDER);
    let mut world = World::new(&["alice", "bob"]);
    let team = world.mount("alice").join("team");
    let content = |folder: usize, file: usize| format!("file {file} of folder {folder}\n");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let team = &team;
            scope.spawn(move || {
                for folder in (thread..folders).step_by(THREADS) {
                    let path = team.join(format!("folder-{folder:03}"));
                    std::fs::create_dir(&path).expect("a folder");
                    for file in 0..IN_A_FOLDER {
                        std::fs::write(path.join(format!("{file:04}.txt")), content(folder, file))
                            .expect("a file");
                    }
                }
            });
        }
    });
    let team = world.mount("bob").join("team");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let team = &team;
            scope.spawn(move || {
                for folder in (thread..folders).step_by(THREADS) {
                    let path = team.join(format!("folder-{folder:03}"));
                    assert_eq!(std::fs::read_dir(&path).expect("a folder").count(), IN_A_FOLDER);
                    for file in 0..IN_A_FOLDER {
                        let read =
                            std::fs::read_to_string(path.join(format!("{file:04}.txt"))).expect("a file");
                        assert_eq!(read, content(folder, file));
                    }
                }
            });
        }
    });
}

/// Proves that one directory of thousands of entries works: every name is listed exactly once, look-ups find what is
/// there and only that, and entries can be deleted. It is filled through several mounts of one person, because
/// the kernel changes a directory of one mount by one thread at a time. `HOLDFAST_ENTRIES=100000` makes more.
#[test]
fn a_directory_of_thousands_of_entries() {
    let count = entries();
    let mut world = World::new(&["alice", "bob"]);
    let mounts: Vec<_> =
        (0..MOUNTS).map(|at| world.mount_at("alice", &format!("alice-mnt-{at}"), &[])).collect();
    let big = mounts[0].join("team/big");
    std::fs::create_dir(&big).expect("a folder");
    std::thread::scope(|scope| {
        for (thread, mount) in mounts.iter().enumerate() {
            let big = mount.join("team/big");
            scope.spawn(move || {
                for number in (thread..count).step_by(MOUNTS) {
                    std::os::unix::fs::symlink("target", big.join(format!("entry-{number}")))
                        .expect("a link");
                }
            });
        }
    });
    let seen = world.mount("bob").join("team/big");
    let names: Vec<_> =
        std::fs::read_dir(&seen).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(names.len(), count);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), count, "no name twice");
    let removed = (0..count).step_by(97);
    for number in removed.clone() {
        assert!(seen.join(format!("entry-{number}")).is_symlink());
        std::fs::remove_file(seen.join(format!("entry-{number}"))).expect("it can be removed");
        assert!(!big.join(format!("entry-{number}")).is_symlink(), "gone for Alice too");
    }
    assert!(!seen.join(format!("entry-{count}")).is_symlink());
    assert_eq!(std::fs::read_dir(&big).expect("a folder").count(), count - removed.len());
}

/// Proves that two people creating in one group directory at once both succeed, whatever the interleaving, that
/// exactly one of them wins an exclusive create, and that a rename race leaves one whole file. `HOLDFAST_ROUNDS=150` has
/// more of them.
#[test]
fn two_people_in_one_group_directory_at_once() {
    let races = setting("HOLDFAST_ROUNDS", 40) as usize;
    let mut world = World::new(&["alice", "bob"]);
    let mounts = [world.mount("alice"), world.mount("bob")];
    let folder = |at: usize| mounts[at].join("team/together");
    std::fs::create_dir(folder(0)).expect("a folder");
    let won: Vec<usize> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|who| {
                let folder = folder(who);
                scope.spawn(move || {
                    let mut won = 0;
                    for number in 0..races {
                        std::fs::write(folder.join(format!("{who}-{number}")), format!("{who} {number}"))
                            .expect("own");
                        won += usize::from(
                            std::fs::File::create_new(folder.join(format!("race-{number}"))).is_ok(),
                        );
                        let temporary = folder.join(format!("temporary-{who}"));
                        std::fs::write(&temporary, format!("whole {who} {number}"))
                            .expect("a temporary file");
                        std::fs::rename(&temporary, folder.join("shared")).expect("a rename");
                    }
                    won
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
    });
    assert_eq!(won[0] + won[1], races, "each exclusive create has exactly one winner: {won:?}");
    for at in 0..2 {
        let names: BTreeSet<_> = std::fs::read_dir(folder(at))
            .expect("a folder")
            .map(|e| e.expect("an entry").file_name())
            .collect();
        assert_eq!(names.len(), races * 3 + 1);
        for who in 0..2 {
            for number in 0..races {
                let read =
                    std::fs::read_to_string(folder(at).join(format!("{who}-{number}"))).expect("it is there");
                assert_eq!(read, format!("{who} {number}"));
            }
        }
        assert!(std::fs::read_to_string(folder(at).join("shared")).expect("shared").starts_with("whole "));
    }
    for who in ["alice", "bob"] {
        let status = world.status(who);
        assert!(!status.to_lowercase().contains("alarm:"), "no false alarm: {status}");
    }
}

/// Proves that a client killed at any moment leaves others working and itself able to mount again, with all it
/// had published intact.
#[test]
fn a_killed_client_blocks_nobody_and_comes_back() {
    // Bob waits for what Alice's leases cover until they run out.
    let mut world = World::with_server(&["alice", "bob"], |_| ["--lease", "2"].map(str::to_owned).to_vec());
    let (alice, bob) = (world.mount("alice"), world.mount("bob"));
    for round in 0..3 {
        let published = alice.join(format!("team/published-{round}"));
        std::fs::write(&published, "safe").expect("written");
        let busy = alice.join("team");
        let written = std::sync::Arc::new(AtomicU32::new(0));
        let counted = written.clone();
        let writer = std::thread::spawn(move || {
            while std::fs::write(busy.join(format!("busy-{round}-{}", counted.load(Ordering::SeqCst))), "x")
                .is_ok()
            {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        eventually("she is at work", || written.load(Ordering::SeqCst) > 3);
        std::thread::sleep(std::time::Duration::from_millis(130 * round));
        let process = world.mount_process("alice").expect("the mount has a process");
        run(Command::new("kill").args(["-9", &process.to_string()]));
        writer.join().expect("no panic");
        std::fs::write(bob.join(format!("team/bob-{round}")), "not blocked").expect("Bob goes on");
        eventually("the dead mount can be taken away", || {
            let output = Command::new("fusermount3").arg("-u").arg(&alice).output();
            output.is_ok_and(|o| {
                o.status.success() || text(&o).contains("not found") || !common::is_mounted(&alice)
            })
        });
        let at = world.mount("alice");
        assert_eq!(
            std::fs::read_to_string(at.join(format!("team/published-{round}"))).expect("intact"),
            "safe"
        );
        assert!(at.join(format!("team/bob-{round}")).exists());
    }
    assert!(!world.status("bob").to_lowercase().contains("alarm:"), "{}", world.status("bob"));
}
