//! Real file systems on protected volumes: made, taken over in place, used by real programs, killed and cut off,
//! recovered, checked by their own tools, and given back.
//!
//! The long ones are ignored here and run by `scripts/soak volumes`.

mod postgres;
mod programs;
pub mod site;

use holdfast_log::simulated_device::{Devices, Unflushed};
use holdfast_volume::{Plan, Volume};
use programs::{Database, Files, Repository};
use site::{Attached, Exporter, Kind, Mounted, Workspace};
use std::fs;

/// What [`Exporter`] runs in a process of its own.
#[test]
#[ignore = "others run it"]
fn exporting_process() {
    site::export_here();
}

/// Proves: an image with a file system and files is taken over without a byte of it changed, is the same to programs,
/// is used by them and checked, and comes back as a plain image with all that they wrote.
fn taken_over_and_given_back(kind: Kind) {
    if !kind.is_possible() {
        return;
    }
    let site = Workspace::new();
    kind.make(&site.image());
    let plain = Mounted::new(kind, &site.image(), &site.disk());
    let before = Files::write(&site.disk().join("before"), 40);
    plain.unmount();
    let bytes = fs::read(site.image()).expect("read");

    site::protect(&site.image(), &site.log());
    let exporter = Exporter::start(&site.image(), &site.log(), &site.at());
    assert!(fs::read(site.exported()).expect("read") == bytes, "it reads as it was");
    exporter.detach();
    assert!(fs::read(site.image()).expect("read") == bytes, "no byte of it was changed");

    let exporter = Exporter::start(&site.image(), &site.log(), &site.at());
    let used = Mounted::new(kind, &site.exported(), &site.disk());
    before.verify();
    let repository = Repository::new(&site.disk().join("repository"));
    repository.commit(1);
    let mut database = Database::start(&site.disk().join("database"));
    assert!((0..20).all(|number| database.insert(number)));
    database.end();
    let after = Files::write(&site.disk().join("after"), 40);
    fs::remove_dir_all(site.disk().join("before")).expect("removed");
    site::run("fstrim", &[&site.disk()]);
    used.unmount();
    kind.check(&site.exported());
    exporter.detach();

    kind.check(&site.image());
    let plain = Mounted::new(kind, &site.image(), &site.disk());
    after.verify();
    repository.verify(1);
    Database::verify(&site.disk().join("database"), 20);
    assert!(!site.disk().join("before").exists());
    plain.unmount();
}

#[test]
fn ext4_taken_over_and_given_back() {
    taken_over_and_given_back(Kind::Ext4);
}

#[test]
fn xfs_taken_over_and_given_back() {
    taken_over_and_given_back(Kind::Xfs);
}

#[test]
fn btrfs_taken_over_and_given_back() {
    taken_over_and_given_back(Kind::Btrfs);
}

#[test]
fn ext4_on_small_sectors() {
    taken_over_and_given_back(Kind::SmallExt4);
}

#[test]
fn xfs_on_small_sectors() {
    taken_over_and_given_back(Kind::SmallXfs);
}

/// Proves: when the exporting process is killed while programs write, everything that they were told is durable is
/// there after recovery, and the file system and the programs' data are whole. `times` in a row.
fn killed(kind: Kind, times: u64) {
    if !kind.is_possible() {
        return;
    }
    let site = Workspace::new();
    kind.make(&site.image());
    site::protect(&site.image(), &site.log());
    for time in 0..times {
        let exporter = Exporter::start(&site.image(), &site.log(), &site.at());
        let used = Mounted::new(kind, &site.exported(), &site.disk());
        let path = |name: &str| site.disk().join(format!("{name}-{time}"));
        let repository = Repository::new(&path("repository"));
        repository.commit(1);
        let files = Files::write_on(&path("files"));
        let database = Database::write_on(&path("database"));
        files.wait_for(60);
        database.wait_for(60);
        repository.commit(2);
        exporter.kill();
        // What they were told until then counts.
        let (files, rows) = (files.stop(), database.stop());
        drop(used);

        let exporter = Exporter::start(&site.image(), &site.log(), &site.at());
        let used = Mounted::new(kind, &site.exported(), &site.disk());
        files.verify();
        Database::verify(&path("database"), rows);
        repository.verify(2);
        for directory in ["files", "database", "repository"] {
            fs::remove_dir_all(path(directory)).expect("removed");
        }
        used.unmount();
        kind.check(&site.exported());
        exporter.detach();
    }
    kind.check(&site.image());
}

#[test]
fn ext4_whose_exporter_is_killed() {
    killed(Kind::Ext4, 2);
}

#[test]
fn xfs_whose_exporter_is_killed() {
    killed(Kind::Xfs, 1);
}

#[test]
fn btrfs_whose_exporter_is_killed() {
    killed(Kind::Btrfs, 1);
}

#[test]
#[ignore = "long: scripts/soak volumes"]
fn soak_killed() {
    for kind in Kind::ALL {
        killed(kind, 10);
    }
}

/// Proves: after power is cut at any write while programs write, with what was not flushed kept, lost, or kept here
/// and there, everything that they were told is durable is there, and the file system is whole.
fn cut_off(kind: Kind, states: u64) {
    if !kind.is_possible() {
        return;
    }
    let site = Workspace::new();
    kind.make(&site.image());
    let devices = Devices::new();
    devices.record(false);
    devices.add_with("disk", fs::read(site.image()).expect("read"));
    devices.add("log", Plan::new(kind.image_bytes(), None).bytes as usize);
    let both = |devices: &Devices| (devices.device(0), devices.device(1));
    let (disk, log) = both(&devices);
    Volume::format(&*disk, &*log, &site::key(), None).expect("formatted");
    assert!(Volume::adopt(disk, log, &site::key(), [1; 16], None, &|_, _| true).expect("adopted"));
    devices.forget();
    devices.record(true);
    let (disk, log) = both(&devices);
    let attached = Attached::new(disk, log, &site.at(), false);
    let used = Mounted::new(kind, &site.exported(), &site.disk());
    let directory = site.disk().join("files");
    let repository = Repository::new(&site.disk().join("repository"));
    // What was durable after which event.
    let mut durable = Vec::new();
    for number in 0..30 {
        Files::write_one(&directory, number);
        durable.push(devices.events());
    }
    repository.commit(1);
    let committed = devices.events();
    used.unmount();
    let events = devices.events();
    attached.detach();
    for state in 0..states {
        // Spread over all of them, the last included.
        let at = durable[0] + (events - durable[0]) * state as usize / (states as usize - 1).max(1);
        let unflushed = match state % 3 {
            0 => Unflushed::Torn(state + 1),
            1 => Unflushed::Lost,
            _ => Unflushed::Kept,
        };
        let crashed = devices.crashed(at, unflushed);
        crashed.record(false);
        let (disk, log) = both(&crashed);
        let attached = Attached::new(disk, log, &site.at(), true);
        let used = Mounted::new(kind, &site.exported(), &site.disk());
        let count = durable.iter().filter(|event| **event <= at).count() as u64;
        Files::of(&directory, count).verify();
        if committed <= at {
            repository.verify(1);
        }
        used.unmount();
        kind.check(&site.exported());
        attached.detach();
    }
}

#[test]
fn ext4_cut_off() {
    cut_off(Kind::Ext4, 7);
}

/// A part of a block is written: a crash must not cost the acknowledged rest of it.
#[test]
fn small_ext4_cut_off() {
    cut_off(Kind::SmallExt4, 7);
}

#[test]
#[ignore = "long: scripts/soak volumes"]
fn soak_cut_off() {
    for kind in Kind::ALL {
        cut_off(kind, 60);
    }
}
