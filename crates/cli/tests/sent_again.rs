//! Acknowledged changes of a device that a declared restore of the server lost are made again by themselves: for mounts
//! that run and for devices that were away, once, whatever is killed, and without undoing what others have done since.

use crate::common;
use crate::restored::{declare, keep, put_back};

use common::*;
use holdfast_crypto::{DigestKey, Domain};
use holdfast_sim::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn write(path: &Path, content: impl AsRef<[u8]>) {
    let mut file = File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file.write_all(content.as_ref()).expect("written");
    file.sync_all().expect("synced");
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| format!("({error})"))
}

/// Copies the data of the stopped server, and starts it again.
fn back_up(world: &mut World) -> PathBuf {
    world.stop_server();
    let backup = keep(world, "backup");
    world.start_server();
    backup
}

/// Puts the copy back, and has the restore declared.
fn restore(world: &mut World, backup: &Path) {
    world.stop_server();
    put_back(world, backup);
    world.start_server_with(&["--restored"]);
    declare(world);
}

fn status(world: &World, who: &str) -> serde_json::Value {
    world.process_status(who)["engine"].clone()
}

/// Waits until everything is made again, and returns the report.
fn sent_again(world: &World, who: &str) -> serde_json::Value {
    holdfast_testing::eventually_some(&format!("{who}: all is sent again"), || {
        let report = status(world, who)["sent_again"].clone();
        (report["is_over"] == true).then_some(report)
    })
}

fn names(directory: &Path) -> Vec<String> {
    let found = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> =
        found.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Proves: running mounts go on. What they wrote, made, removed and moved is so again, large files too, without an
/// alarm, an unmount or a duplicate name. Open files stay usable, and everybody sees the result.
#[test]
fn mounts_that_run_go_on() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    for name in ["edited", "gone", "old", "untouched", "open"] {
        write(&anna.join("anna").join(name), format!("{name} before"));
    }
    fs::create_dir_all(anna.join("anna/removed/deep")).expect("made");
    write(&anna.join("anna/removed/deep/file"), "x");
    write(&ben.join("team/shared"), "one");
    let backup = back_up(&mut world);
    let large = noise(1, 3 << 20);
    write(&anna.join("anna/edited"), "edited after");
    fs::remove_file(anna.join("anna/gone")).expect("removed");
    fs::rename(anna.join("anna/old"), anna.join("anna/new")).expect("moved");
    fs::remove_dir_all(anna.join("anna/removed")).expect("removed");
    fs::create_dir_all(anna.join("anna/made/deep")).expect("made");
    write(&anna.join("anna/made/deep/large"), &large);
    std::os::unix::fs::symlink("edited", anna.join("anna/link")).expect("made");
    write(&anna.join("team/anna's"), "anna");
    write(&ben.join("team/shared"), "two");
    let mut open = File::options().read(true).append(true).open(anna.join("anna/open")).expect("opened");
    open.write_all(b", and lost").expect("written");
    open.sync_all().expect("synced");
    restore(&mut world, &backup);

    for who in ["anna", "ben"] {
        let report = sent_again(&world, who);
        assert_eq!((&report["not_made_count"], &report["back_count"]), (&0.into(), &0.into()), "{report}");
        assert_eq!(report["conflicts"], serde_json::json!([]), "{report}");
    }
    open.write_all(b", and after").expect("it goes on");
    open.sync_all().expect("synced");
    let mut text = String::new();
    open.rewind().expect("sought");
    open.read_to_string(&mut text).expect("read");
    assert_eq!(text, "open before, and lost, and after");
    for mount in [&anna, &ben] {
        eventually("it is as it was", || read(&mount.join("team/shared")) == "two");
        assert_eq!(names(&mount.join("anna")), ["edited", "link", "made", "new", "open", "untouched"]);
        assert_eq!(names(&mount.join("team")), ["anna's", "shared"]);
        assert_eq!(read(&mount.join("anna/edited")), "edited after");
        assert_eq!(read(&mount.join("anna/new")), "old before");
        assert_eq!(read(&mount.join("anna/link")), "edited after");
        assert!(fs::read(mount.join("anna/made/deep/large")).is_ok_and(|found| found == large));
        assert_eq!(read(&mount.join("team/anna's")), "anna");
    }
    eventually("the open file's end is seen", || read(&ben.join("anna/open")).ends_with("and after"));
    for who in ["anna", "ben"] {
        let words = world.status(who);
        assert!(words.contains("Sent again") && !words.contains("ALARM"), "{words}");
    }
    drop(open);
    // Work goes on in the restored state, and nothing is made twice.
    write(&anna.join("anna/edited"), "once more");
    world.umount("anna");
    let anna = world.mount("anna");
    assert_eq!(read(&anna.join("anna/edited")), "once more");
    assert_eq!(status(&world, "anna")["sent_again"], serde_json::Value::Null);
}

/// Proves: a device that comes back later finds what others have done since as they left it, and its own lost versions
/// as conflict copies. What nobody else touched is as it had made it.
#[test]
fn what_others_did_since_stands() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna");
    for name in ["both", "mine", "removed by ben", "removed by anna"] {
        write(&anna.join("team").join(name), format!("{name} before"));
    }
    let backup = back_up(&mut world);
    write(&anna.join("team/both"), "anna's, and lost");
    write(&anna.join("team/mine"), "anna's, and lost");
    write(&anna.join("team/removed by ben"), "anna's, and lost");
    fs::remove_file(anna.join("team/removed by anna")).expect("removed");
    write(&anna.join("team/taken"), "anna's");
    world.umount("anna");
    restore(&mut world, &backup);

    let ben = world.mount("ben");
    write(&ben.join("team/both"), "ben's, and newer");
    write(&ben.join("team/removed by anna"), "ben's, and newer");
    write(&ben.join("team/taken"), "ben's");
    fs::remove_file(ben.join("team/removed by ben")).expect("removed");
    let anna = world.mount("anna");
    let report = sent_again(&world, "anna");
    for mount in [&anna, &ben] {
        eventually("it is sent again", || read(&mount.join("team/mine")) == "anna's, and lost");
        assert_eq!(read(&mount.join("team/both")), "ben's, and newer");
        assert_eq!(read(&mount.join("team/removed by anna")), "ben's, and newer");
        assert_eq!(read(&mount.join("team/taken")), "ben's");
    }
    let beside = |name: &str| -> Vec<String> {
        let all = names(&anna.join("team"));
        all.into_iter().filter(|found| found.starts_with(name) && found.contains("changed by anna")).collect()
    };
    assert_eq!(beside("taken").len(), 1, "{:?}", names(&anna.join("team")));
    assert_eq!(read(&anna.join("team").join(&beside("taken")[0])), "anna's");
    let back: Vec<String> = names(&anna.join("team"));
    let back: Vec<&String> = back.iter().filter(|name| name.starts_with("removed by ben")).collect();
    assert_eq!(back.len(), 1, "{report}");
    assert_eq!(read(&anna.join("team").join(back[0])), "anna's, and lost");
    let listed = run_json(world.holdfast("anna").args(["conflicts", "--json"]));
    let ids: Vec<&str> =
        listed.as_array().expect("a list").iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(ids.len(), 1, "{listed}");
    let out = world.path("out");
    run(world.holdfast("anna").args(["conflicts", "get", ids[0], "--out"]).arg(&out));
    assert_eq!(read(&out), "anna's, and lost");
    let words = world.status("anna");
    assert!(words.contains("team/both") && !words.contains("ALARM"), "{words}");
}

/// Proves: a mount that is killed again and again while it sends makes everything once.
#[test]
fn kills_double_nothing() {
    const FILES: usize = 900;
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna");
    fs::create_dir(anna.join("anna/early")).expect("made");
    let backup = back_up(&mut world);
    for number in 0..FILES {
        write_unsynced(&anna.join(format!("anna/early/{number:04}")), number);
    }
    File::open(anna.join("anna/early")).and_then(|directory| directory.sync_all()).expect("synced");
    world.umount("anna");
    restore(&mut world, &backup);

    let mut delay = Duration::ZERO;
    loop {
        // Processes beside the killed one may still be ending.
        eventually("it is mounted", || {
            let mounted = world.try_mount("anna", &[]);
            assert!(mounted.status.success() || text(&mounted).contains("in use"), "{}", text(&mounted));
            mounted.status.success()
        });
        std::thread::sleep(delay);
        delay += Duration::from_millis(20);
        let report = &status(&world, "anna")["sent_again"];
        if report.is_null() || report["is_over"] == true {
            break;
        }
        let process = world.mount_process("anna").expect("it runs");
        run(Command::new("kill").args(["-9", &process.to_string()]));
        let directory = world.path("anna-mnt");
        eventually("the process is gone", || !Path::new(&format!("/proc/{process}")).exists());
        let _ = Command::new("fusermount3").arg("-uz").arg(&directory).output();
        eventually("the mount point is free", || !is_mounted(&directory));
    }
    let ben = world.mount("ben");
    let expected: Vec<String> = (0..FILES).map(|number| format!("{number:04}")).collect();
    assert_eq!(names(&ben.join("anna/early")), expected);
    for number in 0..FILES {
        assert_eq!(read(&ben.join(format!("anna/early/{number:04}"))), format!("content {number}"));
    }
    let words = world.status("anna");
    assert!(!words.contains("ALARM") && !words.contains("Not sent again"), "{words}");
    run(world.holdfast("anna").arg("umount").arg(world.path("anna-mnt")));
}

fn write_unsynced(path: &Path, number: usize) {
    fs::write(path, format!("content {number}")).expect("written");
}

/// Proves: after a restore a git repository is whole, with the commits and branches that were lost, and can be used.
#[test]
fn a_repository_is_whole() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna").join("team");
    let work = anna.join("project");
    fs::create_dir(&work).expect("made");
    git(&work, &["init", "-q", "-b", "main"]);
    fs::write(work.join("file"), "one").expect("written");
    git(&work, &["add", "."]);
    git(&work, &["commit", "-qm", "early"]);
    let backup = back_up(&mut world);
    for number in 0..4 {
        fs::write(work.join("file"), format!("lost {number}")).expect("written");
        fs::write(work.join(format!("file-{number}")), noise(number, 40_000)).expect("written");
        git(&work, &["add", "."]);
        git(&work, &["commit", "-qm", &format!("lost {number}")]);
    }
    git(&work, &["branch", "side"]);
    git(&work, &["gc", "-q"]);
    let log = git(&work, &["log", "--format=%H"]);
    File::open(&work).and_then(|directory| directory.sync_all()).expect("synced");
    restore(&mut world, &backup);
    sent_again(&world, "anna");
    assert_eq!(git(&work, &["log", "--format=%H"]), log);
    assert_eq!(git(&work, &["log", "--format=%H", "side"]), log);
    git(&work, &["fsck", "--full", "--strict"]);
    assert_eq!(git(&work, &["status", "--porcelain"]), "");
    fs::write(work.join("file"), "after").expect("written");
    git(&work, &["commit", "-qam", "after"]);
    let clone = world.path("clone");
    let theirs = world.mount("ben").join("team/project");
    let mut command = Command::new("git");
    run(command.args(["-c", "safe.directory=*", "clone", "-q"]).arg(&theirs).arg(&clone));
    assert_eq!(git(&clone, &["log", "--format=%s", "-1"]).trim(), "after");
}

/// Proves: changes that write-back had not sent yet, and that build on what was lost, are sent after it, without a
/// conflict.
#[test]
fn unsent_changes_follow_the_lost_ones() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount_with("anna", &["--write-back"]);
    write(&anna.join("team/file"), "early");
    run(Command::new("sync").arg("-f").arg(&anna));
    eventually("it is sent", || world.status("anna").contains("everything is at the server"));
    let backup = back_up(&mut world);
    write(&anna.join("team/file"), "sent and lost");
    fs::create_dir(anna.join("team/made")).expect("made");
    write(&anna.join("team/made/first"), "sent and lost");
    eventually("it is sent", || world.status("anna").contains("everything is at the server"));
    world.stop_server();
    write(&anna.join("team/file"), "never sent");
    write(&anna.join("team/made/second"), "never sent");
    put_back(&world, &backup);
    world.start_server_with(&["--restored"]);
    declare(&world);
    sent_again(&world, "anna");
    let ben = world.mount("ben");
    eventually("all of it is there", || {
        read(&ben.join("team/file")) == "never sent"
            && read(&ben.join("team/made/first")) == "sent and lost"
            && read(&ben.join("team/made/second")) == "never sent"
    });
    assert_eq!(names(&ben.join("team")), ["file", "made"]);
    let listed = run(world.holdfast("anna").args(["conflicts", "--json"]));
    assert_eq!(listed.trim(), "[]");
    assert!(!world.status("anna").contains("ALARM"), "{}", world.status("anna"));
}

/// Proves: what no cache has any more is reported by its name, with the reason, and harms nothing else. With the option
/// for that, nothing is made again.
#[test]
fn what_is_not_kept_is_told() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna"), world.mount_with("ben", &["--no-send-again"]));
    write(&anna.join("anna/early"), "early");
    let backup = back_up(&mut world);
    write(&anna.join("anna/large"), noise(3, 2 << 20));
    write(&anna.join("anna/small"), "small");
    write(&ben.join("ben/lost"), "lost");
    world.umount("anna");
    // The content of the lost files is removed from the cache, which alone had it.
    let cache = world.holdfast("anna").args(["cache", "clear"]).output().expect("run");
    assert!(cache.status.success(), "{}", text(&cache));
    restore(&mut world, &backup);
    let anna = world.mount("anna");
    let report = sent_again(&world, "anna");
    assert!(report["not_made_count"].as_u64().is_some_and(|count| count > 0), "{report}");
    assert!(world.status("anna").contains("Not sent again"), "{}", world.status("anna"));
    assert_eq!(read(&anna.join("anna/early")), "early");
    write(&anna.join("anna/after"), "after");
    eventually("ben goes on", || fs::write(ben.join("ben/after"), "after").is_ok());
    assert_eq!(names(&ben.join("ben")), ["after"]);
    assert_eq!(status(&world, "ben")["sent_again"], serde_json::Value::Null);
}

/// Proves: when two wrote in turn into one directory, and elsewhere, everything is there again or reported as missing:
/// changes that one accepted from the other without reading them hide nothing.
#[test]
fn work_in_one_directory() {
    let mut world = World::new(&["anna", "ben"]);
    let mounts: Vec<PathBuf> = ["anna", "ben"].map(|who| world.mount(who)).to_vec();
    fs::create_dir(mounts[0].join("team/both")).expect("made");
    let backup = back_up(&mut world);
    let mut expected = Vec::new();
    for number in 0..30 {
        for (mount, who) in mounts.iter().zip(["anna", "ben"]) {
            let name = format!("{who}-{number}");
            write(&mount.join("team/both").join(&name), &name);
            write(&mount.join(who).join("elsewhere"), &name);
            expected.push(name);
        }
    }
    restore(&mut world, &backup);
    let reports = ["anna", "ben"].map(|who| sent_again(&world, who));
    let found = names(&mounts[0].join("team/both"));
    let missing: Vec<&String> = expected.iter().filter(|name| !found.contains(name)).collect();
    let reported: u64 =
        reports.iter().map(|report| report["not_made_count"].as_u64().expect("a number")).sum();
    assert!(missing.len() as u64 <= reported, "{missing:?}: {reports:?}");
    for who in ["anna", "ben"] {
        assert_eq!(read(&mounts[0].join(who).join("elsewhere")), format!("{who}-29"));
        assert!(!world.status(who).contains("ALARM"), "{}", world.status(who));
    }
}

/// The names in a directory, with kind, mode and content of each.
fn tree(at: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for name in names(at) {
        let path = at.join(&name);
        let metadata = fs::symlink_metadata(&path).expect("it is there");
        let mode = metadata.permissions().mode() & 0o7777;
        let what = match metadata.file_type() {
            kind if kind.is_dir() => {
                let below = tree(&path).into_iter().map(|(below, what)| (Path::new(&name).join(below), what));
                found.extend(below);
                format!("directory {mode:o}")
            }
            kind if kind.is_symlink() => {
                format!("link to {}", fs::read_link(&path).expect("a link").display())
            }
            _ => {
                let content = fs::read(&path).expect("readable");
                let digest = DigestKey::WELL_KNOWN.digest(Domain::Chunk, &content);
                format!("file {mode:o} {} {digest}", content.len())
            }
        };
        found.insert(PathBuf::from(name), what);
    }
    found
}

/// Makes a random change below a directory; one that is impossible is skipped.
fn does(at: &Path, random: &mut Random) {
    let path_below = |random: &mut Random| {
        let mut path = at.to_owned();
        for _ in 0..random.below(3) {
            path.push(format!("d{}", random.below(3)));
        }
        path
    };
    let name = |random: &mut Random| format!("f{}", random.below(6));
    let (one, other) = (path_below(random), path_below(random));
    let (file, target) = (one.join(name(random)), other.join(name(random)));
    let _ = match random.below(12) {
        0..=3 => fs::write(&file, noise(random.below(1_000), random.below(60_000) as usize)),
        4 => File::options().append(true).open(&file).and_then(|mut file| file.write_all(b"more")),
        5 => File::options().write(true).open(&file).and_then(|file| file.set_len(100)),
        6 => fs::rename(&file, &target),
        7 => fs::rename(&one, other.join(format!("d{}", random.below(3)))),
        8 => fs::remove_file(&file),
        9 => fs::create_dir_all(one.join(format!("d{}", random.below(3)))),
        10 => std::os::unix::fs::symlink(format!("to-{}", random.below(9)), &file),
        _ => fs::set_permissions(&file, fs::Permissions::from_mode(*random.pick(&[0o644, 0o664, 0o755]))),
    };
}

/// Proves: whatever two devices did before and after a backup, each in a directory of its own and both in a shared one,
/// is as it was once it is made again, for everybody, and no alarm is raised. `HOLDFAST_SEED=7 HOLDFAST_ROUNDS=50` does
/// it for longer.
#[test]
fn random_work_comes_back() {
    let (first, rounds) = (setting("HOLDFAST_SEED", 1), setting("HOLDFAST_ROUNDS", 3));
    for seed in first..first + rounds {
        let mut random = Random::new(seed);
        let mut world = World::new(&["anna", "ben"]);
        let roots: Vec<PathBuf> = ["anna", "ben"].map(|who| world.mount(who)).to_vec();
        let own = [roots[0].join("anna"), roots[1].join("ben")];
        let shared = [roots[0].join("team/of-anna"), roots[1].join("team/of-ben")];
        shared.iter().for_each(|path| fs::create_dir(path).expect("made"));
        let work = |random: &mut Random, steps: usize| {
            for _ in 0..steps {
                let who = random.below(2) as usize;
                let at = if random.below(4) == 0 { &shared[who] } else { &own[who] };
                does(at, random);
            }
            roots.iter().for_each(|root| drop(run(Command::new("sync").arg("-f").arg(root))));
        };
        work(&mut random, 40);
        let backup = back_up(&mut world);
        work(&mut random, 80);
        let was = own.each_ref().map(|path| tree(path));
        let was_shared = shared.each_ref().map(|path| tree(path));
        restore(&mut world, &backup);
        for (at, who) in ["anna", "ben"].into_iter().enumerate() {
            let report = sent_again(&world, who);
            assert_eq!(report["not_made_count"], 0, "seed {seed}, {who}: {report}");
            assert!(!world.status(who).contains("ALARM"), "seed {seed}: {}", world.status(who));
            assert_eq!(tree(&own[at]), was[at], "seed {seed}, {who}");
            // In the shared directory nobody can say who had removed what; names that are there again for that reason
            // are reported by their path.
            let prefix = format!("team/of-{who}/");
            let back = report["back"].as_array().expect("a list").iter();
            let back: BTreeSet<PathBuf> =
                back.filter_map(|path| Some(path.as_str()?.strip_prefix(&prefix)?.into())).collect();
            let mut among_others = tree(&shared[at]);
            among_others.retain(|path, _| was_shared[at].contains_key(path) || !back.contains(path));
            assert_eq!(among_others, was_shared[at], "seed {seed}, {who}, among others: {report}");
        }
        let of_others = [roots[1].join("anna"), roots[0].join("ben")];
        eventually("others see it", || of_others.each_ref().map(|path| tree(path)) == was);
    }
}
