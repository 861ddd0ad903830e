//! Edges: limits, full disks, marks that others set in the table, failures of the medium, and callers out of turn.

use crate::support;

use holdfast_fat::{
    BlockId, Checked, Fat, FatError, FileId, Kind, Layout, LimboId, Metadata, Mirroring, Moment, Options,
    ROOT, Replace,
};
use std::cell::Cell;
use support::memory::{
    CLUSTER, FAT_AT, FAT_SECTORS, Memory, cluster_at, empty, findings, set_link, settle, sound,
};
use support::{NOW, fsck, image_file, run};

fn mount(bytes: Vec<u8>) -> Fat<Memory> {
    let memory = Memory::new(bytes).expect("sound");
    let mut fat = Fat::mount(memory.layout.clone(), memory, Options::default()).expect("sound");
    fat.vouch(&Checked::as_we_left_it());
    fat
}

fn create(fat: &mut Fat<Memory>, name: &str) -> FileId {
    let change = fat.create(ROOT, name, Kind::File, NOW).expect("created");
    settle(fat, change)
}

fn raw(fat: &Fat<Memory>, copy: usize, cluster: usize) -> u32 {
    let at = FAT_AT + copy * FAT_SECTORS as usize * 512 + cluster * 4;
    u32::from_le_bytes(fat.metadata().bytes.borrow()[at..at + 4].try_into().expect("four"))
}

fn drain(fat: &mut Fat<Memory>) {
    while let Some(item) = fat.limbo(None, 1).expect("listed").first() {
        let returning = fat.returning(item.id).expect("it waits");
        let change = fat.free(item.id, returning.clusters).expect("it came back");
        settle(fat, change);
    }
}

/// Proves that only the copy of the table that the boot sector names is read and written.
#[test]
fn one_active_copy_of_the_table() {
    let mut bytes = empty();
    for boot in [0, 6 * 512] {
        bytes[boot + 40] = 0x81;
    }
    // The other copy is stale: according to it everything is used.
    bytes[FAT_AT + 12..FAT_AT + 5 * 512].fill(0x11);
    let mut fat = mount(bytes);
    assert_eq!(fat.layout().mirroring, Mirroring::Only(1));
    let id = create(&mut fat, "A");
    let change = fat.resize(id, 3000, NOW).expect("there is room");
    settle(&mut fat, change);
    assert_eq!(raw(&fat, 0, 3), 0x1111_1111);
    assert_eq!(raw(&fat, 1, 3) & 0x0fff_ffff, 4);
    assert_eq!(fat.map(id, 0, 3000).expect("mapped").len(), 1);
}

/// Proves that the four unused bits of an entry are preserved, and that bad clusters are never used.
#[test]
fn bits_that_do_not_count_and_bad_clusters() {
    let mut bytes = empty();
    for cluster in 3..584 {
        set_link(&mut bytes, cluster, if cluster % 3 == 0 { 0x0fff_fff7 } else { 0xa000_0000 });
    }
    let mut fat = mount(bytes);
    let id = create(&mut fat, "A");
    let change = fat.resize(id, 100 * CLUSTER as u64, NOW).expect("there is room");
    settle(&mut fat, change);
    let mut used = 0;
    for cluster in 3..584 {
        if cluster % 3 == 0 {
            assert_eq!(raw(&fat, 0, cluster), 0x0fff_fff7);
        } else {
            assert_eq!(raw(&fat, 0, cluster) >> 28, 0xa);
            used += usize::from(raw(&fat, 0, cluster) != 0xa000_0000);
        }
    }
    assert_eq!(used, 100);
    let change = fat.unlink(ROOT, "A", NOW).expect("removed");
    settle(&mut fat, change);
    fat.forget(id, 1);
    drain(&mut fat);
    let used = (3..584).filter(|cluster| cluster % 3 != 0 && raw(&fat, 0, *cluster) != 0xa000_0000).count();
    assert_eq!(used, 1, "the limbo's");
}

/// Proves that a full disk is a clear error that changes nothing, that files can be deleted on it, and that
/// their clusters are free once returned and not before.
#[test]
fn a_full_disk() {
    let mut fat = mount(empty());
    let change = fat.prepare(NOW).expect("there is room").expect("there is no limbo yet");
    settle(&mut fat, change);
    let id = create(&mut fat, "A");
    let free = fat.sizes().expect("counted").free;
    let before = fat.metadata().bytes.borrow().clone();
    let more = (free + 1) * CLUSTER as u64;
    assert_eq!(fat.resize(id, more, NOW).unwrap_err(), FatError::Full { needed: free + 1, free });
    assert!(before == *fat.metadata().bytes.borrow());
    let change = fat.resize(id, free * CLUSTER as u64, NOW).expect("there is just enough");
    assert_eq!(settle(&mut fat, change).size, free * CLUSTER as u64);
    assert_eq!(fat.sizes().expect("counted").free, 0);
    let error = fat.create(ROOT, "DIR", Kind::Directory, NOW).unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    let change = fat.unlink(ROOT, "A", NOW).expect("deleting needs no room");
    let limbo = settle(&mut fat, change).expect("it holds blocks");
    assert_eq!(fat.sizes().expect("counted").free, 0, "nothing came back yet");
    assert_eq!(fat.returning(limbo).unwrap_err(), FatError::NothingToFree("the file is still in use"));
    assert!(fat.free(limbo, 1).is_err());
    assert_eq!(fat.forget(id, 1), Some(limbo));
    drain(&mut fat);
    assert_eq!(fat.sizes().expect("counted").free, free);
    assert_eq!(findings(fat.metadata()).0, []);
    assert!(fat.free(LimboId(99), 1).is_err() && fat.returning(LimboId(0)).is_err());
}

/// Proves that when the limbo is full and cannot grow, deleting says so, changes nothing, and works again later.
#[test]
fn a_full_limbo() {
    let mut fat = mount(empty());
    let change = fat.prepare(NOW).expect("there is room").expect("there is no limbo yet");
    settle(&mut fat, change);
    for number in 0..20 {
        let id = create(&mut fat, &format!("F{number}"));
        let change = fat.resize(id, 10, NOW).expect("there is room");
        settle(&mut fat, change);
        fat.forget(id, 1);
    }
    let id = create(&mut fat, "REST");
    let free = fat.sizes().expect("counted").free;
    let change = fat.resize(id, free * CLUSTER as u64, NOW).expect("there is just enough");
    settle(&mut fat, change);
    let mut deleted = 0;
    let error = loop {
        match fat.unlink(ROOT, &format!("F{deleted}"), NOW) {
            Ok(change) => settle(&mut fat, change),
            Err(error) => break error,
        };
        deleted += 1;
    };
    assert_eq!((deleted, error), (14, FatError::LimboFull(14)));
    drain(&mut fat);
    let change = fat.unlink(ROOT, "F14", NOW).expect("there is room again");
    settle(&mut fat, change);
}

/// Proves that a directory holds 65536 entries and no more.
#[test]
fn a_full_directory() {
    let folder = tempfile::Builder::new().prefix("holdfast-fat-").tempdir().expect("a folder");
    let image = image_file(folder.path(), 40 << 20);
    run("mkfs.fat", &["-F32", "-s", "1", image.to_str().expect("text")]);
    let image = support::Image::open(&image, 0).expect("FAT32");
    let path = image.path.clone();
    let mut fat = support::mount(image);
    let change = fat.create(ROOT, "DIR", Kind::Directory, NOW).expect("created");
    let (id, _) = support::apply(&mut fat, change);
    // 255 units take 21 entries; two are `.` and `..`. Only a few are really created: the others' slots are
    // filled by hand.
    let layout = fat.layout().clone();
    let room = 65_536 - 2;
    let by_hand = room - 21 * 3 - 5;
    let start = fill_by_hand(fat.metadata(), &layout, by_hand);
    drop(fat);
    let mut fat = support::mount(support::Image::open(&path, 0).expect("FAT32"));
    let (dir, stat) = fat.lookup(ROOT, "DIR").expect("there");
    assert!(stat.size < 2 << 20 && start > 2 && id != ROOT);
    for (name, fits) in [
        ("a", true),
        ("b", true),
        ("c", true),
        ("d", false),
        ("E1", true),
        ("E2", true),
        ("E3", true),
        ("E4", true),
        ("E5", true),
        ("E6", false),
    ] {
        let name = if name.len() == 1 { name.repeat(255) } else { name.to_string() };
        match fat.create(dir, &name, Kind::File, NOW) {
            Ok(change) => {
                assert!(fits, "{name}");
                support::apply(&mut fat, change);
            }
            Err(error) => assert!(!fits && error == FatError::DirectoryFull, "{name}: {error}"),
        }
    }
    assert_eq!(fat.stat(dir).expect("there").size, 2 << 20);
    // `fsck.fat` takes time with the square of the number of files, so other checkers are used.
    drop(support::mount(support::Image::open(&path, 0).expect("FAT32")));
    let seen = support::mdir(path.to_str().expect("text")).len();
    assert_eq!(seen as u32, by_hand + 3 + 5 + 1);
}

/// Gives the directory that starts at cluster 3 clusters in a row and so many empty files; returns its first cluster.
fn fill_by_hand(image: &support::Image, layout: &Layout, files: u32) -> u32 {
    use std::os::unix::fs::FileExt;
    let clusters = ((files + 2) * 32).div_ceil(layout.cluster_bytes);
    for copy in 0..2 {
        let fat = u64::from(layout.reserved_sectors + copy * layout.fat_sectors) * 512;
        let links: Vec<u8> = (0..clusters)
            .flat_map(|at| if at + 1 == clusters { 0x0fff_ffffu32 } else { 3 + at + 1 }.to_le_bytes())
            .collect();
        image.file.write_all_at(&links, fat + 12).expect("written");
    }
    let free = layout.clusters - clusters - 1;
    image.file.write_all_at(&free.to_le_bytes(), 512 + 488).expect("written");
    let mut entries = Vec::new();
    for number in 0..files {
        let mut entry = [0; 32];
        entry[..11].copy_from_slice(format!("{number:08X}   ").as_bytes());
        entry[11] = 0x20;
        entry[24] = 0x21;
        entries.extend(entry);
    }
    let data = layout.area_start(holdfast_fat::Area::Data);
    image.file.write_all_at(&entries, data + u64::from(layout.cluster_bytes) + 64).expect("written");
    3
}

/// Proves that the largest file can be made, in bounded steps, and no larger, and that it is freed in bounded steps.
#[test]
fn the_largest_file() {
    let folder = tempfile::Builder::new().prefix("holdfast-fat-").tempdir().expect("a folder");
    let path = image_file(folder.path(), 5 << 30);
    run("mkfs.fat", &["-F32", "-s", "64", path.to_str().expect("text")]);
    let mut fat = support::mount(support::Image::open(&path, 0).expect("FAT32"));
    let change = fat.create(ROOT, "LARGE", Kind::File, NOW).expect("created");
    let (id, _) = support::apply(&mut fat, change);
    let largest = u64::from(u32::MAX);
    assert_eq!(fat.resize(id, largest + 1, NOW).unwrap_err(), FatError::FileTooLarge(largest + 1));
    let mut steps = 0;
    loop {
        let change = fat.resize(id, largest, NOW).expect("there is room");
        assert!(change.transaction.blocks.len() < 1000, "a transaction is bounded");
        let (resized, _) = support::apply(&mut fat, change);
        steps += 1;
        if resized.size == largest {
            break; // `fsck.fat` 4.2 counts the clusters of this size in 32 bits, and gets zero.
        }
        fsck(&path);
    }
    assert_eq!(steps, 2);
    let extents = fat.map(id, 0, u64::MAX).expect("mapped");
    assert_eq!(extents.iter().map(|extent| extent.blocks.count).sum::<u64>(), 1 << 20);
    let change = fat.resize(id, 5000, NOW).expect("cut");
    let (resized, _) = support::apply(&mut fat, change);
    fsck(&path);
    let limbo = resized.limbo.expect("it held blocks");
    loop {
        let returning = fat.returning(limbo).expect("it waits");
        let change = fat.free(limbo, returning.clusters).expect("it came back");
        assert!(change.transaction.blocks.len() < 1000, "a transaction is bounded");
        if support::apply(&mut fat, change).0 {
            assert!(returning.last);
            break;
        }
    }
    fsck(&path);
}

/// Proves that one transaction is settled before the next begins, and that an abandoned one has no effect.
#[test]
fn one_transaction_at_a_time() {
    let mut fat = mount(empty());
    let change = fat.create(ROOT, "A", Kind::File, NOW).expect("created");
    assert_eq!(fat.create(ROOT, "B", Kind::File, NOW).unwrap_err(), FatError::Outstanding);
    assert_eq!(fat.lookup(ROOT, "A").unwrap_err(), FatError::Outstanding);
    fat.abandoned(change.transaction).expect("outstanding");
    assert!(matches!(fat.lookup(ROOT, "A"), Err(FatError::NotFound(_))));
    assert_eq!(fat.stat(change.value).unwrap_err(), FatError::Gone);
    let other = mount(sound()).create(ROOT, "C", Kind::File, NOW).expect("created");
    assert_eq!(fat.applied(other.transaction).unwrap_err(), FatError::WrongTransaction);
    let id = create(&mut fat, "A");
    assert_eq!(fat.stat(id).expect("there").size, 0);
}

/// Proves that the limbo's name is reserved, and that another directory of that name is not taken for the
/// limbo.
#[test]
fn the_limbo_is_nobodys() {
    let mut fat = mount(sound());
    for name in ["HOLDFAST.LBO", "holdfast.lbo", "Holdfast.Lbo."] {
        assert!(matches!(fat.create(ROOT, name, Kind::File, NOW), Err(FatError::BadName { .. })));
        assert!(matches!(
            fat.rename((ROOT, "A"), (ROOT, name), Replace::Yes, NOW),
            Err(FatError::BadName { .. })
        ));
    }
    let change = fat.prepare(NOW).expect("there is room").expect("there is none");
    settle(&mut fat, change);
    assert!(matches!(fat.lookup(ROOT, "HOLDFAST.LBO"), Err(FatError::NotFound(_))));
    assert!(matches!(fat.rmdir(ROOT, "HOLDFAST.LBO", NOW), Err(FatError::NotFound(_))));
    assert!(fat.list(ROOT, 0, 100).expect("listed").iter().all(|entry| entry.name != "HOLDFAST.LBO"));
    // A directory that a user of another system made.
    let mut bytes = fat.metadata().bytes.borrow().clone();
    let at =
        (cluster_at(2)..).step_by(32).find(|at| bytes[*at..].starts_with(b"HOLDFASTLBO")).expect("there");
    bytes[at + 11] = 0x10;
    let mut fat = mount(bytes);
    assert!(matches!(fat.unlink(ROOT, "A", NOW), Err(FatError::Exists(_))));
    assert!(fat.lookup(ROOT, "HOLDFAST.LBO").is_ok());
}

/// A medium that fails after so many reads.
struct Failing {
    memory: Memory,
    left: Cell<u32>,
}

impl Metadata for Failing {
    fn read(&self, block: BlockId, into: &mut [u8]) -> Result<(), String> {
        if self.left.get() == 0 {
            return Err("the medium failed".into());
        }
        self.left.set(self.left.get() - 1);
        self.memory.read(block, into)
    }
}

/// Proves that a read that fails is an error of the medium wherever it falls, and that nothing is changed by it.
#[test]
fn every_read_may_fail() {
    let memory = Memory::new(sound()).expect("sound");
    let layout = memory.layout.clone();
    let mut failures = 0;
    for reads in 0..40 {
        let failing = Failing { memory: memory.clone(), left: Cell::new(u32::MAX) };
        let mut fat = Fat::mount(layout.clone(), failing, Options::default()).expect("sound");
        fat.vouch(&Checked::as_we_left_it());
        let (dir, _) = fat.lookup(ROOT, "DIR").expect("there");
        fat.metadata().left.set(reads);
        match fat.rename((ROOT, "A"), (dir, "C"), Replace::Yes, NOW) {
            Ok(change) => {
                fat.abandoned(change.transaction).expect("outstanding");
                assert!(failures > 3, "{failures}");
                return;
            }
            Err(FatError::Medium { reason, .. }) => {
                assert_eq!(reason, "the medium failed");
                assert_eq!(fat.read_only(), None, "the medium is not the file system");
                failures += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("it never succeeded");
}

/// Proves that files may be as old and as far in the future as FAT can say, and no further.
#[test]
fn times_beyond_what_fat_can_say() {
    let mut fat = mount(sound());
    let (id, _) = fat.lookup(ROOT, "A").expect("there");
    for (seconds, kept) in [(0, 315_532_800), (i64::MIN, 315_532_800), (i64::MAX, 4_354_819_198)] {
        let modified = Some(Moment { seconds, nanoseconds: 0 });
        let change = fat.set(id, holdfast_fat::Facts { modified, ..Default::default() }).expect("set");
        settle(&mut fat, change);
        assert_eq!(fat.stat(id).expect("there").modified.seconds, kept);
    }
}

/// Proves that one operation can allocate two clusters: for a new directory, and for its name.
#[test]
fn two_clusters_in_one_operation() {
    let mut fat = mount(empty());
    let change = fat.create(ROOT, "DIR", Kind::Directory, NOW).expect("created");
    let dir = settle(&mut fat, change);
    // Sixteen entries fill its cluster; the next one is free for both.
    for number in 0..14 {
        let change = fat.create(dir, &format!("F{number}"), Kind::File, NOW).expect("created");
        settle(&mut fat, change);
    }
    let change = fat.create(dir, "SUB", Kind::Directory, NOW).expect("created");
    assert_eq!(change.transaction.directories.len(), 2);
    settle(&mut fat, change);
    assert_eq!(fat.stat(dir).expect("there").size, 1024);
    assert_eq!(findings(fat.metadata()).0, []);
}

/// Proves that files that grow alternately stay in few pieces, and one that is written at once in one.
#[test]
fn files_are_in_few_pieces() {
    let folder = tempfile::Builder::new().prefix("holdfast-fat-").tempdir().expect("a folder");
    let path = image_file(folder.path(), 40 << 20);
    run("mkfs.fat", &["-F32", "-s", "1", path.to_str().expect("text")]);
    let mut fat = support::mount(support::Image::open(&path, 0).expect("FAT32"));
    let files: Vec<FileId> = ["A", "B", "C"]
        .iter()
        .map(|name| {
            let change = fat.create(ROOT, name, Kind::File, NOW).expect("created");
            support::apply(&mut fat, change).0
        })
        .collect();
    for clusters in 1..=640 {
        for id in &files {
            let change = fat.resize(*id, clusters * 512, NOW).expect("there is room");
            support::apply(&mut fat, change);
        }
    }
    let change = fat.create(ROOT, "D", Kind::File, NOW).expect("created");
    let (id, _) = support::apply(&mut fat, change);
    let change = fat.resize(id, 20 << 20, NOW).expect("there is room");
    support::apply(&mut fat, change);
    assert_eq!(fat.map(id, 0, 20 << 20).expect("mapped").len(), 1);
    for id in files {
        let pieces = fat.map(id, 0, 640 * 512).expect("mapped").len();
        assert!(pieces <= 12, "{pieces} pieces of 640 clusters");
    }
    fsck(&path);
}

/// Proves that every free cluster is found, wherever it is and wherever the search begins.
#[test]
fn the_last_free_clusters() {
    let clusters = Memory::new(empty()).expect("sound").layout.clusters;
    for high in (20..clusters + 2).step_by(7).chain(clusters - 70..clusters + 2) {
        let mut bytes = empty();
        for cluster in 3..clusters + 2 {
            set_link(&mut bytes, cluster, if [5, 10, high].contains(&cluster) { 0 } else { 0x0fff_fff7 });
        }
        let mut fat = mount(bytes);
        let change = fat.prepare(NOW).expect("there is room").expect("there is no limbo yet");
        settle(&mut fat, change);
        for name in ["A", "B"] {
            let id = create(&mut fat, name);
            let change = fat.resize(id, 1, NOW).unwrap_or_else(|error| panic!("{high}: {error}"));
            settle(&mut fat, change);
            fat.forget(id, 1);
        }
        // The search continues after the high one, and must find the low one that is free again.
        let change = fat.unlink(ROOT, "A", NOW).expect("deleted");
        settle(&mut fat, change);
        drain(&mut fat);
        let id = create(&mut fat, "C");
        let change = fat.resize(id, 1, NOW).unwrap_or_else(|error| panic!("{high}: {error}"));
        settle(&mut fat, change);
        assert_eq!(fat.sizes().expect("counted").free, 0);
    }
}

/// Proves that a check follows directories as deep as its memory is bounded by, and then says so.
#[test]
fn deep_directories() {
    let folder = tempfile::Builder::new().prefix("holdfast-fat-").tempdir().expect("a folder");
    let path = image_file(folder.path(), 40 << 20);
    run("mkfs.fat", &["-F32", "-s", "1", path.to_str().expect("text")]);
    let mut fat = support::mount(support::Image::open(&path, 0).expect("FAT32"));
    let mut last = ROOT;
    for _ in 0..65_535 {
        let change = fat.create(last, "D", Kind::Directory, NOW).expect("created");
        let (made, _) = support::apply(&mut fat, change);
        fat.forget(last, 1);
        last = made;
    }
    drop(support::mount(support::Image::open(&path, 0).expect("FAT32")));
    let change = fat.create(last, "D", Kind::Directory, NOW).expect("created");
    support::apply(&mut fat, change);
    let mut found = Vec::new();
    let checked =
        holdfast_fat::check(fat.layout(), fat.metadata(), &mut |finding| found.push(finding.problem));
    assert!(found.contains(&holdfast_fat::Problem::TooDeep), "{found:?}");
    assert!(checked.expect("the root is sound").refusal.expect("it forbids changes").contains("65536"));
}

/// Proves: listing a directory with its files gives for each the same as looking it up, in pieces and at
/// once. Each file has one reference, which is given up like any other. For unsound entries it gives only the
/// name, and lists the rest.
#[test]
fn listed_with_files() {
    let mut fat = mount(sound());
    let names = fat.list(ROOT, 0, 100).expect("listed");
    assert_eq!(names.len(), 4);
    let mut listed = fat.list_files(ROOT, 0, 3).expect("listed");
    let cookie = listed.last().expect("three").name.cookie;
    listed.extend(fat.list_files(ROOT, cookie, 3).expect("listed"));
    assert_eq!(listed.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>(), names);
    for entry in &listed {
        let (id, stat) = entry.file.clone().expect("it is sound");
        assert_eq!(fat.lookup(ROOT, &entry.name.name).expect("there"), (id, stat));
        assert_eq!(entry.first.is_some(), entry.name.kind == Kind::Directory, "{}", entry.name.name);
        fat.forget(id, 1);
        assert!(fat.stat(id).is_ok(), "there is one reference more");
        fat.forget(id, 1);
        assert!(matches!(fat.stat(id), Err(FatError::Gone)));
    }
    let mut bytes = sound();
    support::memory::set_first(&mut bytes, b"DIR", 60_000_000);
    let mut fat = mount(bytes);
    let listed = fat.list_files(ROOT, 0, 100).expect("listed");
    let unsound: Vec<&str> =
        listed.iter().filter(|entry| entry.file.is_none()).map(|entry| &*entry.name.name).collect();
    assert_eq!((listed.len(), unsound), (4, vec!["DIR"]));
}
