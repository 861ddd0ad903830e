//! `holdfast server backup`: copies made under load and at rest are whole, the second copy is small, and a copy can be
//! served. What a restored copy means for the devices.

use crate::common;

use common::cluster::Second;
use common::{World, eventually, noise, run, run_json, text};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

fn backup(world: &World) -> serde_json::Value {
    let mut command = world.holdfast("operator");
    command
        .args(["server", "backup", "--json", "--data"])
        .arg(world.data())
        .arg("--to")
        .arg(world.path("to"));
    run_json(&mut command)
}

fn path(report: &serde_json::Value) -> PathBuf {
    PathBuf::from(report["backup"].as_str().expect("a path"))
}

/// Content of the file with this number: incompressible, and different for each number.
fn content(number: usize) -> Vec<u8> {
    [format!("file {number}\n").into_bytes(), noise(number as u64, 64_000)].concat()
}

/// All files of a directory, sorted by name.
fn files(directory: &Path) -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        files.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
    }
    files.sort();
    Ok(files)
}

/// The number of files that were written whole. No file may be missing before another; the last may exist without
/// content.
#[track_caller]
fn whole(files: std::io::Result<Vec<(String, Vec<u8>)>>) -> usize {
    let mut files = files.expect("everything can be read");
    files.pop_if(|(_, bytes)| bytes.is_empty());
    for (number, (name, bytes)) in files.iter().enumerate() {
        assert_eq!(*name, format!("{number:05}"), "none is missing");
        assert!(*bytes == content(number), "file {number} is not what was written");
    }
    files.len()
}

/// Backups made while a client writes and garbage is collected have everything that was acknowledged before they began.
/// The second copies only what is new, and the first is not changed. Devices that have seen more refuse an older copy;
/// a new key of theirs is accepted.
#[test]
fn under_load() {
    let mut world = World::new(&["anna", "ben"]);
    let team = world.mount("anna").join("team/files");
    fs::create_dir(&team).expect("a directory");
    let acknowledged = AtomicUsize::new(0);
    let count = || acknowledged.load(Ordering::SeqCst);
    let wait_for = |wanted: usize| eventually("writing gets on", || count() >= wanted);
    let before_first = 160;
    let (before, reports) = std::thread::scope(|scope| {
        let (allow, allowed) = std::sync::mpsc::channel::<()>();
        let allow_more = |more: usize| (0..more).for_each(|_| allow.send(()).expect("it listens"));
        scope.spawn(|| {
            // Written one after the other, so that a file that is missing before another would show.
            for (number, ()) in allowed.into_iter().enumerate() {
                let mut file = fs::File::create(team.join(format!("{number:05}"))).expect("created");
                file.write_all(&content(number)).and_then(|()| file.sync_all()).expect("written");
                drop(file);
                acknowledged.store(number + 1, Ordering::SeqCst);
            }
        });
        let mut before = Vec::new();
        let mut reports = Vec::new();
        allow_more(before_first);
        wait_for(before_first);
        for round in 1..=2 {
            // So much is written between the backups. It is limited, as the second backup is to share much with the
            // first.
            allow_more(20);
            before.push(count());
            reports.push(backup(&world));
            // None of these files may be in this backup.
            let so_far = before_first + 20 + (round - 1) * 25;
            allow_more(5);
            wait_for(so_far + 5);
            if round == 1 {
                let mut collect = world.holdfast("operator");
                run(collect.args(["server", "gc", "--data"]).arg(world.data()));
            }
        }
        (before, reports)
    });
    let written = count();
    assert_eq!(whole(files(&team)), written);
    world.umount("anna");

    let number = |report: &serde_json::Value, name: &str| report[name].as_u64().expect("a number");
    assert_eq!(number(&reports[0], "bytes_shared"), 0);
    assert!(number(&reports[1], "bytes_shared") > before_first as u64 * 60_000, "{reports:?}");
    assert!(number(&reports[1], "bytes_copied") * 2 < number(&reports[1], "bytes_shared"), "{reports:?}");

    // Ben's device has seen nothing yet, so it accepts any state.
    let mut counts = Vec::new();
    for (round, report) in reports.iter().enumerate() {
        let restored = Second::started(&world, &path(report), &[]);
        let url = restored.url(&world);
        let who = format!("ben-{round}");
        let point = world.path(&format!("{who}-mnt"));
        fs::create_dir(&point).expect("a directory");
        let mut mount = world.holdfast(&who);
        run(mount.args(["mount", "--read-only", &url]).arg(&point).arg("--key").arg(world.key("ben")));
        let found = files(&point.join("team/files"));
        run(world.holdfast(&who).arg("umount").arg(&point));
        counts.push(whole(found));
        if round == 0 {
            refused_and_enrolled_anew(&world, &url, counts[0]);
        }
    }
    for (count, before) in counts.iter().zip(&before) {
        assert!(count >= before && *count <= written, "{count} of {written}, {before} when it began");
    }
    assert!(
        counts[0] < counts[1] && counts[1] < written,
        "{counts:?} of {written}: they were made under load"
    );
}

/// Anna's device has seen more than the copy, and raises an alarm. A new key of hers is accepted.
fn refused_and_enrolled_anew(world: &World, url: &str, count: usize) {
    let point = world.path("anna-again");
    fs::create_dir(&point).expect("a directory");
    let mount = |who: &str, key: &str| {
        let mut command = world.holdfast(who);
        command.args(["mount", url]).arg(&point).arg("--key").arg(world.key(key));
        command.stdin(Stdio::null()).output().expect("it runs")
    };
    let output = mount("anna", "anna");
    assert_eq!(output.status.code(), Some(80), "{}", text(&output));
    world.keygen("again");
    let public = fs::read_to_string(world.path("again.key.pub")).expect("a key");
    world.administer(&["fs", "device", "add", url, "anna", "again", public.trim()]);
    let output = mount("again", "again");
    assert!(output.status.success(), "{}", text(&output));
    let found = files(&point.join("team/files"));
    let written = fs::write(point.join("team/after"), "life goes on");
    run(world.holdfast("again").arg("umount").arg(&point));
    assert_eq!(whole(found), count);
    written.expect("it can be written to");
}

/// The directory of a stopped server can be copied too. If nothing was written since the last copy, no data is copied
/// again. Impossible targets are refused.
#[test]
fn at_rest() {
    let mut world = World::new(&["anna"]);
    let team = world.mount("anna").join("team/files");
    fs::create_dir(&team).expect("a directory");
    for number in 0..20 {
        fs::write(team.join(format!("{number:05}")), content(number)).expect("written");
    }
    world.umount("anna");
    world.stop_server();
    let first = backup(&world);
    let second = backup(&world);
    let copied = |report: &serde_json::Value| report["bytes_copied"].as_u64().expect("a number");
    assert!(copied(&first) > 20 * 60_000 && copied(&second) < 60_000, "{first} {second}");
    fs::remove_dir_all(path(&first)).expect("any backup can be deleted");
    // The second copy is served in place of the original, with the same server key.
    fs::rename(world.data(), world.path("lost")).expect("lost");
    fs::rename(path(&second), world.data()).expect("restored");
    world.start_server();
    let team = world.mount("anna").join("team/files");
    assert_eq!(whole(files(&team)), 20);
    let refused = |data: &Path, to: &Path, code: i32, word: &str| {
        let mut command = world.holdfast("operator");
        command.args(["server", "backup", "--data"]).arg(data).arg("--to").arg(to);
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        assert!(text(&output).contains(word), "{}", text(&output));
    };
    refused(&world.data(), &world.data().join("backups"), 64, "another disk");
    refused(&world.path("nothing"), &world.path("to"), 66, "not a server's data directory");
}
