//! Two machines with leases: reading again costs no message, and what one machine changes the other sees at once.

use crate::common;

use common::{World, run, run_json, setting};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A figure that `holdfast stats` reports of a person's mount.
fn counted(world: &World, who: &str, what: &str) -> u64 {
    let stats =
        run_json(world.holdfast(who).args(["--json", "stats"]).arg(world.path(&format!("{who}-mnt"))));
    stats[0][1][what].as_u64().unwrap_or_else(|| panic!("{what} in {stats}"))
}

/// The names in a directory, listed on a thread of its own: for a second after a thread has listed a directory without
/// a lease, its look-ups there use the listing's view, with or without a lease.
fn names(directory: &Path) -> Vec<String> {
    let directory = directory.to_owned();
    let list = move || {
        let entries = fs::read_dir(directory).expect("listed");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> = entries.map(|entry| name(entry).into_string().expect("UTF-8")).collect();
        names.sort();
        names
    };
    std::thread::spawn(list).join().expect("listed")
}

fn is_missing(path: &Path) -> bool {
    matches!(fs::metadata(path), Err(error) if error.kind() == ErrorKind::NotFound)
}

/// Looks at everything in a small tree, repeatedly, until the mount has leases of it.
fn warm(tree: &Path) {
    for _ in 0..3 {
        for name in names(tree) {
            let path = tree.join(name);
            if fs::metadata(&path).expect("stat").is_file() {
                fs::read(&path).expect("read");
            }
        }
        assert!(is_missing(&tree.join("missing")));
    }
}

/// Proves: looking at, opening, reading and listing what was read before costs no operation and no message of the
/// protocol, nor does looking up a name that does not exist. What is looked up again at once does not even reach the
/// file system's process. Without leases each of these costs something, so it is leases that save it.
#[test]
fn warm_files_cost_no_messages() {
    const TIMES: u64 = 60;
    // A term so long that no lease is renewed meanwhile, which would be a message.
    let mut world = World::with_server(&["anna", "ben"], |_| ["--lease", "3600"].map(str::to_owned).to_vec());
    world.mount("anna");
    let tree = world.path("anna-mnt").join("team/tree");
    fs::create_dir(&tree).expect("made");
    for number in 0..10 {
        fs::write(tree.join(number.to_string()), format!("content {number}")).expect("written");
    }
    let work = |tree: &Path| {
        for number in 0..TIMES {
            let file = tree.join((number % 10).to_string());
            assert!(fs::metadata(&file).expect("stat").is_file());
            assert_eq!(fs::read_to_string(&file).expect("read"), format!("content {}", number % 10));
            assert!(is_missing(&tree.join(format!("missing {number}"))));
            assert_eq!(names(tree).len(), 10);
        }
    };
    for (flags, is_leased) in [(&[][..], true), (&["--no-leases"][..], false)] {
        let tree = world.mount_with("ben", flags).join("team/tree");
        warm(&tree);
        let before = ["operations", "rounds", "leased_reads"].map(|what| counted(&world, "ben", what));
        work(&tree);
        let after = ["operations", "rounds", "leased_reads"].map(|what| counted(&world, "ben", what));
        if is_leased {
            assert_eq!(after[..2], before[..2], "operations and messages");
            assert!(after[2] > before[2], "read under leases");
            let before = counted(&world, "ben", "leased_reads");
            for _ in 0..TIMES * 10 {
                assert!(tree.join("0").exists() && is_missing(&tree.join("missing")));
            }
            let asked = counted(&world, "ben", "leased_reads") - before;
            assert!(asked < TIMES * 10, "the kernel asked {asked} times");
        } else {
            assert!(after[0] >= before[0] + TIMES, "{before:?} {after:?}");
            assert_eq!(after[2], before[2]);
        }
        world.umount("ben");
    }
}

/// Proves: whatever one machine does, the next call on the other machine sees it, although that machine has leases of
/// all of it and its kernel caches the names: content, attributes, new names that were missing, removed and replaced
/// names, listings, and directories that change places.
#[test]
fn changes_are_seen_at_once() {
    let mut world = World::new(&["anna", "ben"]);
    let trees = ["anna", "ben"].map(|who| world.mount(who).join("team/tree"));
    fs::create_dir(&trees[0]).expect("made");
    fs::write(trees[0].join("file"), "0").expect("written");
    for round in 1..=setting("HOLDFAST_ROUNDS", 4) as usize {
        let (here, there) = (&trees[round % 2], &trees[1 - round % 2]);
        let text = "x".repeat(round);
        warm(there);
        fs::write(here.join("file"), &text).expect("written");
        assert_eq!(fs::metadata(there.join("file")).expect("stat").len(), round as u64);
        assert_eq!(fs::read_to_string(there.join("file")).expect("read"), text);

        warm(there);
        fs::write(here.join("missing"), "it is there now").expect("written");
        assert_eq!(fs::read_to_string(there.join("missing")).expect("read"), "it is there now");
        assert_eq!(names(there), ["file", "missing"]);
        fs::metadata(there.join("missing")).expect("stat");
        fs::remove_file(here.join("missing")).expect("removed");
        assert!(is_missing(&there.join("missing")));
        assert_eq!(names(there), ["file"]);

        warm(there);
        let before = fs::metadata(there.join("file")).expect("stat").ino();
        fs::write(here.join("new"), &text).expect("written");
        fs::rename(here.join("new"), here.join("file")).expect("renamed");
        assert_ne!(fs::metadata(there.join("file")).expect("stat").ino(), before);
        assert!(is_missing(&there.join("new")));

        fs::create_dir(here.join("directory")).expect("made");
        fs::write(here.join("directory/inner"), &text).expect("written");
        assert_eq!(fs::read_to_string(there.join("directory/inner")).expect("read"), text);
        fs::rename(here.join("directory"), here.join("elsewhere")).expect("renamed");
        assert!(is_missing(&there.join("directory/inner")));
        assert_eq!(fs::read_to_string(there.join("elsewhere/inner")).expect("read"), text);
        fs::remove_dir_all(there.join("elsewhere")).expect("removed");
        assert!(is_missing(&here.join("elsewhere")) && is_missing(&here.join("elsewhere/inner")));
    }
    assert!(counted(&world, "anna", "recalls") > 0 && counted(&world, "ben", "recalls") > 0);
}

/// Proves: a name that the kernel caches, and that was then moved on this machine, is looked up again once the other
/// machine has removed or replaced its file. The kernel keeps a moved name for as long as the old one.
#[test]
fn moved_names_are_looked_up_again() {
    let mut world = World::new(&["anna", "ben"]);
    let [here, there] = ["anna", "ben"].map(|who| world.mount(who).join("team/tree"));
    fs::create_dir(&here).expect("made");
    for round in 1..=setting("HOLDFAST_ROUNDS", 5) {
        fs::create_dir(here.join("directory")).expect("made");
        fs::write(here.join("file"), "first").expect("written");
        warm(&here);
        let file = fs::metadata(here.join("file")).expect("stat").ino();
        fs::rename(here.join("directory"), here.join("moved directory")).expect("renamed");
        fs::remove_dir(there.join("moved directory")).expect("removed");
        assert!(is_missing(&here.join("moved directory")), "round {round}");
        warm(&here);
        fs::rename(here.join("file"), here.join("moved file")).expect("renamed");
        fs::rename(there.join("moved file"), there.join("its new place")).expect("renamed");
        fs::write(there.join("moved file"), "another").expect("written");
        assert_ne!(fs::metadata(here.join("moved file")).expect("stat").ino(), file, "round {round}");
        assert_eq!(fs::read_to_string(here.join("moved file")).expect("read"), "another");
        for name in ["moved file", "its new place"] {
            fs::remove_file(there.join(name)).expect("removed");
        }
    }
}

/// Proves: a descriptor that stays open on one machine shows by `fstat` what the other has published; and programs on
/// both that make names in one directory at once, each with leases of it, finish.
#[test]
fn two_that_change_one_directory() {
    const FILES: usize = 40;
    let mut world = World::new(&["anna", "ben"]);
    let trees = ["anna", "ben"].map(|who| world.mount(who).join("team/tree"));
    fs::create_dir(&trees[0]).expect("made");
    let workers: Vec<_> = trees
        .iter()
        .enumerate()
        .map(|(who, tree)| {
            let tree = tree.clone();
            std::thread::spawn(move || {
                for number in 0..FILES {
                    let mut file = File::create(tree.join(format!("{who} {number}"))).expect("made");
                    file.write_all(b"content").expect("written");
                    drop(file);
                    assert!(names(&tree).len() > number);
                    assert!(is_missing(&tree.join("missing")));
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("it ends well");
    }
    for tree in &trees {
        assert_eq!(names(tree).len(), 2 * FILES);
    }
}

/// Proves: a machine that dies with leases holds others up for no longer than their term. After the server was killed
/// and started again, those that held leases still see at once what others change.
#[test]
fn deaths_with_leases() {
    let mut world = World::new(&["anna", "ben"]);
    world.stop_server();
    world.start_server_with(&["--lease", "3"]);
    let trees = ["anna", "ben"].map(|who| world.mount(who).join("team/tree"));
    fs::create_dir(&trees[0]).expect("made");
    fs::write(trees[0].join("file"), "first").expect("written");
    warm(&trees[1]);
    world.kill_server();
    world.start_server_with(&["--lease", "3"]);
    fs::write(trees[0].join("file"), "second").expect("written");
    assert_eq!(fs::read_to_string(trees[1].join("file")).expect("read"), "second");
    warm(&trees[1]);
    let process = world.mount_process("ben").expect("it is mounted");
    run(std::process::Command::new("kill").args(["-9", &process.to_string()]));
    fs::write(trees[0].join("file"), "third").expect("written");
    assert_eq!(fs::read_to_string(trees[0].join("file")).expect("read"), "third");
}
