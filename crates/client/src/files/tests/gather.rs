//! Tests of gathering: what is answered here under a delegation, what others see of it, and when it reaches
//! the server.

use super::memory::{Barrier, Memory, journal_options, options};
use super::tools::WHO;
use super::write_back::{find, get, mkdir, names, noise, put, read, rename, unlink};
use super::*;
use crate::backend::Backend;
use crate::tree::{Changes, Edit};
use holdfast_content::{DeviceId, Entry};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A client that gathers changes, and sends them only when it must.
struct Gatherer {
    files: Arc<FileSystem>,
    memory: Arc<Memory>,
    back: Arc<WriteBack>,
}

const NEVER: Duration = Duration::from_secs(3600);

fn gather_options(device: u32, dir: &Path) -> WriteBackOptions {
    WriteBackOptions { gathers: true, gather: NEVER, ..journal_options(device, dir) }
}

impl Gatherer {
    fn new(world: &Arc<World>, device: u32, dir: &Path) -> Gatherer {
        Gatherer::with(world, device, dir, gather_options(device, dir))
    }

    fn with(world: &Arc<World>, device: u32, dir: &Path, options: WriteBackOptions) -> Gatherer {
        let (files, memory, back) = world.behind(device, dir, options);
        Gatherer { files, memory, back }
    }

    /// Holds the whole file system exclusively, and has numbers for new files.
    fn alone(world: &Arc<World>, dir: &Path) -> Gatherer {
        let mine = Gatherer::new(world, 1, dir);
        mine.take(world);
        put(&mine.files, "warm", b"").unwrap();
        assert!(mine.back.settle(NEVER).unwrap());
        mine
    }

    /// Holds its directory `held` exclusively; there is also a file `other` that it does not hold.
    fn holding(world: &Arc<World>, dir: &Path) -> (Gatherer, Handle) {
        let mine = Gatherer::alone(world, dir);
        mkdir(&mine.files, "held").unwrap();
        put(&mine.files, "other", b"of others").unwrap();
        assert!(mine.back.settle(NEVER).unwrap());
        let held = mine.files.nodes.find(find(&mine.files, "held").unwrap()).unwrap().handle();
        world.delegate_files(&mine.memory, &mine.back, &[held]);
        (mine, held)
    }

    fn take(&self, world: &World) {
        world.delegate(&self.memory, &self.back);
    }

    fn waiting(&self) -> u64 {
        self.back.status().edits
    }

    fn edits(&self) -> u64 {
        self.memory.edits.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn go_away(&self) {
        *self.memory.fault.lock() = Some(FsError::Unreachable("the cable is cut".into()));
    }

    fn come_back(&self) {
        *self.memory.fault.lock() = None;
    }

    fn quiet(&self) {
        assert_eq!(self.back.status().conflicts, vec![]);
    }
}

/// Proves: under a delegation, making, writing, renaming and removing files need no request to the server and
/// are seen here at once, and a client that looks from elsewhere finds all changes; files made and removed
/// meanwhile are never sent.
#[test]
fn others_see_what_was_closed() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let other = world.client(2, &[]);
    put(&other, "old", b"as it was").unwrap();
    let mine = Gatherer::alone(&world, dir.path());
    let (edits, fetches) = (mine.edits(), mine.memory.fetch_count());
    mkdir(&mine.files, "made").unwrap();
    for number in 0..50 {
        put(&mine.files, &format!("made/{number}"), &noise(number, 2000)).unwrap();
        put(&mine.files, "made/temporary", &noise(number + 100, 5000)).unwrap();
        unlink(&mine.files, "made/temporary").unwrap();
    }
    put(&mine.files, "old", b"as it is").unwrap();
    rename(&mine.files, "made/7", "seven").unwrap();
    assert_eq!(read(&mine.files, "seven").unwrap(), noise(7, 2000));
    assert_eq!(names(&mine.files, "made").len(), 49);
    assert_eq!((mine.edits(), mine.memory.fetch_count()), (edits, fetches), "nothing was asked");
    assert!(mine.waiting() > 100 && mine.back.status().gathering);

    assert_eq!(get(&other, "old").unwrap(), b"as it is");
    assert_eq!((mine.waiting(), mine.edits()), (0, edits + 1), "it went as one");
    assert!(!mine.back.status().gathering);
    assert_eq!(names(&other, "made").len(), 49);
    assert_eq!(get(&other, "seven").unwrap(), noise(7, 2000));
    mine.quiet();
}

/// Proves: changes of files that are held exclusively are gathered, together with files made in such a
/// directory, until another client looks. All other changes go to the server directly, among them a rename or
/// a link that touches both kinds, after all changes gathered before.
#[test]
fn what_is_not_held_goes_straight() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let mine = Gatherer::alone(&world, dir.path());
    mkdir(&mine.files, "held").unwrap();
    mkdir(&mine.files, "other").unwrap();
    put(&mine.files, "held/old", b"old").unwrap();
    put(&mine.files, "held/not", b"not").unwrap();
    assert!(mine.back.settle(NEVER).unwrap());
    let handle = |path: &str| mine.files.nodes.find(find(&mine.files, path).unwrap()).unwrap().handle();
    world.delegate_files(&mine.memory, &mine.back, &[handle("held"), handle("held/old")]);
    *mine.memory.leases.lock() = Some([Handle::ROOT].into());
    let edits = mine.edits();
    for number in 0..10 {
        put(&mine.files, &format!("held/{number}"), &noise(number, 2000)).unwrap();
        put(&mine.files, &format!("held/{number}"), &noise(number + 50, 2000)).unwrap();
    }
    rename(&mine.files, "held/9", "held/nine").unwrap();
    unlink(&mine.files, "held/8").unwrap();
    put(&mine.files, "held/old", b"new").unwrap();
    assert_eq!(mine.edits(), edits, "nothing was asked");
    assert!(mine.waiting() > 20 && mine.back.status().gathering);

    let straight = |what: &str, act: &dyn Fn()| {
        put(&mine.files, &format!("held/before {what}"), b"before").unwrap();
        assert!(mine.waiting() > 0);
        let edits = mine.edits();
        act();
        assert_eq!(mine.waiting(), 0, "{what}");
        assert!(mine.edits() >= edits + 2, "{what}: what was gathered, and this");
    };
    straight("another directory", &|| put(&mine.files, "other/one", b"1").unwrap());
    straight("a file that is not held", &|| put(&mine.files, "held/not", b"yes").unwrap());
    straight("into another directory", &|| rename(&mine.files, "held/nine", "other/nine").unwrap());
    straight("out of another directory", &|| rename(&mine.files, "other/one", "held/one").unwrap());
    straight("what was made here and sent", &|| put(&mine.files, "held/7", b"seven").unwrap());
    let other = world.client(2, &[]);
    assert_eq!(get(&other, "held/old").unwrap(), b"new");
    assert_eq!(get(&other, "other/nine").unwrap(), noise(59, 2000));
    assert_eq!(names(&other, "held").len(), 16);
    mine.quiet();
}

/// Proves: without a delegation no change waits here or is journaled; close returns when the server has it.
#[test]
fn without_a_delegation() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let mine = Gatherer::new(&world, 1, dir.path());
    let before = mine.back.status().journal_bytes;
    for number in 0..5 {
        let edits = mine.edits();
        put(&mine.files, &format!("{number}"), &noise(number, 20_000)).unwrap();
        assert_eq!((mine.waiting(), mine.edits()), (0, edits + 2), "made, and written");
        assert!(mine.memory.commits.load(std::sync::atomic::Ordering::SeqCst) > number);
    }
    assert_eq!(mine.back.status().journal_bytes, before);
    *mine.memory.commit_fault.lock() = Some(FsError::Unreachable("no answer".into()));
    assert!(matches!(put(&mine.files, "lost", b"?"), Err(FsError::Unreachable(_))));
}

/// Proves: data for which fsync has returned is at the server, whatever happens to this machine; for a file
/// and for a directory.
#[test]
fn fsync_means_at_the_server() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let other = world.client(2, &[]);
    let mine = Gatherer::alone(&world, dir.path());
    let flags = OpenFlags { write: true, ..OpenFlags::READ_WRITE };
    let (_, opened) = mine.files.create(&WHO, Ino::ROOT, b"synced", 0o644, flags).unwrap();
    mine.files.write(opened.handle, 0, b"for good", WriteSource::Call).unwrap();
    assert_eq!(mine.waiting(), 1);
    mine.files.fsync(opened.handle).unwrap();
    assert_eq!(mine.waiting(), 0);
    put(&mine.files, "before", b"1").unwrap();
    let directory = mine.files.opendir(&WHO, Ino::ROOT).unwrap();
    mine.files.fsyncdir(directory).unwrap();
    put(&mine.files, "after", b"2").unwrap();
    // The machine fails: all its data is lost.
    world.lapse();
    assert_eq!(get(&other, "synced").unwrap(), b"for good");
    assert_eq!(get(&other, "before").unwrap(), b"1");
    assert!(matches!(get(&other, "after"), Err(FsError::NotFound)));
    // If the changes cannot be sent, callers that wait for them get an error.
    mine.take(&world);
    mine.files.write(opened.handle, 0, b"not yet ", WriteSource::Call).unwrap();
    *mine.memory.fault.lock() = Some(FsError::NoSpace);
    assert!(matches!(mine.files.fsync(opened.handle), Err(FsError::NoSpace)));
    mine.come_back();
    mine.files.fsync(opened.handle).unwrap();
    assert_eq!(get(&other, "synced").unwrap(), b"not yet ");
    mine.quiet();
}

/// Proves: a change that a caller waits for at the server does not go through the journal, unless more must
/// go with it, such as the creation of the same file: then both are one operation.
#[test]
fn what_is_synced_goes_straight() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let other = world.client(2, &[]);
    let mine = Gatherer::alone(&world, dir.path());
    let flags = OpenFlags { write: true, ..OpenFlags::READ_WRITE };
    let (_, opened) = mine.files.create(&WHO, Ino::ROOT, b"synced", 0o644, flags).unwrap();
    let journal = || mine.back.status().journal_bytes;
    let write = |seed| mine.files.write(opened.handle, 0, &noise(seed, 100_000), WriteSource::Call).unwrap();
    let (before, edits) = (journal(), mine.edits());
    write(1);
    mine.files.fsync(opened.handle).unwrap();
    assert!(journal() >= before + 100_000, "made and written together");
    assert_eq!((mine.waiting(), mine.edits()), (0, edits + 1));
    let (before, edits) = (journal(), mine.edits());
    for seed in 2..6 {
        write(seed);
        mine.files.fsync(opened.handle).unwrap();
    }
    assert_eq!((journal(), mine.edits()), (before, edits + 4));
    put(&mine.files, "gathered", b"again").unwrap();
    assert_eq!(mine.waiting(), 2);
    world.lapse();
    assert_eq!(get(&other, "synced").unwrap(), noise(5, 100_000));
    mine.quiet();
}

/// Proves: an operation that only reads is sent after all changes made here, also one that is made while a
/// view is read. While it is in transit, edits go directly to the server, and a device that recalls what is
/// held here does not have to wait.
#[test]
fn looks_come_after_what_was_made_here() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let (mine, held) = Gatherer::holding(&world, dir.path());
    let gate = Arc::new(Barrier::default());
    gate.close();
    for round in 0..3 {
        let edits = mine.edits();
        let plan = |number: u64| {
            let name = format!("{round}-{number}");
            Arc::new(Mutex::new(Name { directory: held, name: name.into(), made: None }))
        };
        (0..10).for_each(|number| mine.back.modify(plan(number)).map(drop).unwrap());
        assert_eq!((mine.waiting(), mine.edits()), (10, edits));
        *mine.memory.look_gate.lock() = Some(gate.clone());
        gate.close();
        std::thread::scope(|scope| {
            let look = scope.spawn(|| read(&mine.files, "other"));
            gate.somebody_waits();
            assert_eq!((mine.waiting(), mine.edits()), (0, edits + 1), "sent before, as one");
            mine.back.modify(plan(10)).map(drop).unwrap();
            assert_eq!((mine.waiting(), mine.edits()), (0, edits + 2), "straight");
            mine.back.recalled();
            gate.open();
            assert_eq!(look.join().unwrap().unwrap(), b"of others");
        });
    }
    assert_eq!(names(&mine.files, "held").len(), 33);
    mine.quiet();
}

/// Proves: while changes made here cannot be sent, a caller that looks soon gets the server's error.
#[test]
fn what_cannot_be_sent_prevents_no_look() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let (mine, held) = Gatherer::holding(&world, dir.path());
    *mine.memory.late.lock() = Some(FsError::NoSpace);
    mine.back.modify(Arc::new(Mutex::new(Name { directory: held, name: "new".into(), made: None }))).unwrap();
    assert_eq!(read(&mine.files, "other").unwrap(), b"of others");
    assert_eq!(mine.waiting(), 1);
    *mine.memory.late.lock() = None;
    assert!(mine.back.settle(NEVER).unwrap());
    mine.quiet();
}

/// Makes a name for a new file.
struct Name {
    directory: Handle,
    name: Vec<u8>,
    made: Option<Handle>,
}

impl Edit for Name {
    fn plan(&mut self, changes: &mut dyn Changes) -> Result<(), FsError> {
        let handle = changes.allocate(self.directory.principal)?;
        changes.set_inode(handle, Inode::new(InodeKind::File, 0o644, DeviceId(1), 0))?;
        let entry = Entry { handle, kind: InodeKind::File };
        changes.set_entry(self.directory, &self.name, Some(entry), 0)?;
        self.made = Some(handle);
        Ok(())
    }

    fn ordered(&mut self) {
        assert!(self.made.is_some());
    }
}

/// Proves: an edit in transit directly to the server is not mixed with edits made here: they wait for it, and
/// find its result; also if its answer was lost.
#[test]
fn straight_edits_come_first() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let other = world.client(2, &[]);
    let mine = Gatherer::alone(&world, dir.path());
    world.recall();
    mine.memory.gate.close();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| mkdir(&mine.files, "directory"));
        mine.memory.gate.somebody_waits();
        mine.take(&world);
        let second = scope.spawn(|| mkdir(&mine.files, "directory"));
        while !second.is_finished() && mine.edits() == 0 {
            std::thread::yield_now();
        }
        mine.memory.gate.open();
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        first.unwrap();
        assert!(matches!(second, Err(FsError::Exists)), "{second:?}");
    });
    world.recall();
    *mine.memory.late.lock() = Some(FsError::Unreachable("the answer was lost".into()));
    assert!(matches!(mkdir(&mine.files, "late"), Err(FsError::Unreachable(_))));
    *mine.memory.late.lock() = None;
    mine.take(&world);
    assert!(matches!(mkdir(&mine.files, "late"), Err(FsError::Exists)));
    put(&mine.files, "late/file", b"in it").unwrap();
    assert_eq!(mine.waiting(), 2);
    assert_eq!(get(&other, "late/file").unwrap(), b"in it");
    mine.quiet();
}

/// Proves: much data is sent to the server while it is written, and is durable there at close; little data is
/// in the journal, and still reaches the server if the delegation is lost before its edit is made.
#[test]
fn large_files_go_straight() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let other = world.client(2, &[]);
    let mine = Gatherer::alone(&world, dir.path());
    put(&mine.files, "small", &noise(1, 300_000)).unwrap();
    assert!(mine.waiting() > 0);
    put(&mine.files, "large", &noise(2, 3 << 20)).unwrap();
    assert_eq!(mine.waiting(), 0);
    world.lapse();
    assert_eq!(get(&other, "large").unwrap(), noise(2, 3 << 20));
    assert_eq!(get(&other, "small").unwrap(), noise(1, 300_000));
    // Written under a delegation that is gone when the edit should be made.
    mine.take(&world);
    let flags = OpenFlags { write: true, ..OpenFlags::READ_WRITE };
    let opened = mine.files.open(&WHO, find(&mine.files, "small").unwrap(), flags).unwrap();
    mine.files.write(opened.handle, 0, &noise(3, 300_000), WriteSource::Call).unwrap();
    let about = crate::store::WriteTarget {
        handle: holdfast_content::Handle::ROOT,
        path: Vec::new(),
        before: holdfast_content::Content::None,
    };
    let block = |seed| {
        let key = holdfast_crypto::DigestKey::WELL_KNOWN;
        holdfast_content::Block::new(&key, holdfast_content::BlockKind::Chunk, Vec::new(), noise(seed, 9000))
    };
    let mut upload = mine.back.upload(about, crate::backend::UploadKind::Usual);
    let reference = upload.put(block(9));
    let guard = upload.finish(None).unwrap();
    assert!(!world.blocks.addresses().contains(&reference.address));
    world.lapse();
    mine.files.fsync(opened.handle).unwrap();
    assert!(world.blocks.addresses().contains(&reference.address), "any edit may be the one that names it");
    drop(guard);
    assert_eq!(get(&other, "small").unwrap(), noise(3, 300_000));
    mine.quiet();
}

/// Proves: the content of a file written at scattered offsets is read back while it is composed, and is
/// never taken for lost.
#[test]
fn scattered_writes_are_read_back() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let other = world.client(2, &[]);
    let mine = Gatherer::alone(&world, dir.path());
    let mut content = noise(1, 3 << 20);
    put(&mine.files, "scattered", &content).unwrap();
    let flags = OpenFlags { write: true, ..OpenFlags::READ_WRITE };
    // First little data, so that it is journaled; then so much that it is sent to the server while it is
    // composed.
    for (seed, length) in [(2, 2000), (3, 40_000)] {
        let opened = mine.files.open(&WHO, find(&mine.files, "scattered").unwrap(), flags).unwrap();
        for piece in 0..40 {
            let (at, bytes) = (piece * 70_000, noise(seed + piece as u64, length));
            content[at..at + length].copy_from_slice(&bytes);
            mine.files.write(opened.handle, at as u64, &bytes, WriteSource::Call).unwrap();
        }
        mine.files.flush(opened.handle).unwrap();
        mine.files.release(opened.handle);
        assert_eq!(read(&mine.files, "scattered").unwrap(), content);
    }
    assert_eq!(get(&other, "scattered").unwrap(), content);
    mine.quiet();
}

/// Proves: while the server is away, acknowledged changes stay, new changes fail as they would without
/// gathering, and all acknowledged changes are there when the server is back; also if the process ended
/// meanwhile.
#[test]
fn the_server_goes_away() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let other = world.client(2, &[]);
    let patient = WriteBackOptions { patience: Duration::from_millis(50), ..gather_options(1, dir.path()) };
    let mine = Gatherer::with(&world, 1, dir.path(), patient.clone());
    mine.take(&world);
    put(&mine.files, "acknowledged", &noise(1, 5000)).unwrap();
    mine.go_away();
    world.lapse();
    assert!(matches!(put(&mine.files, "new", b"?"), Err(FsError::Unreachable(_))));
    assert!(mine.waiting() > 0 && mine.back.status().away);
    assert!(!mine.back.settle(Duration::from_millis(1)).unwrap());
    drop((mine.files, mine.back));
    let next = tempfile::tempdir().unwrap();
    let memory = world.memory(1, &[]);
    let back = WriteBack::start(memory.clone(), patient).unwrap();
    let files = FileSystem::with_write_back(back.clone(), options(next.path())).unwrap();
    assert!(back.settle(NEVER).unwrap(), "{:?}", back.status());
    assert_eq!(read(&files, "acknowledged").unwrap(), noise(1, 5000));
    assert_eq!(get(&other, "acknowledged").unwrap(), noise(1, 5000));
    assert!(matches!(get(&other, "new"), Err(FsError::NotFound)));
    assert_eq!(back.status().conflicts, vec![]);
}

/// Proves: if the delegation expired before all changes were sent and another client changed the same file,
/// both versions stay.
#[test]
fn both_stay_after_a_lapse() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let other = world.client(2, &[]);
    put(&other, "file", b"before").unwrap();
    let mine = Gatherer::alone(&world, dir.path());
    put(&mine.files, "file", b"made here").unwrap();
    world.lapse();
    put(&other, "file", b"made there").unwrap();
    assert!(mine.back.settle(NEVER).unwrap());
    assert_eq!(get(&other, "file").unwrap(), b"made here");
    assert_eq!(mine.back.status().conflicts.len(), 1);
    let kept = other.conflict_copies().unwrap();
    assert_eq!(kept.len(), 1, "{kept:?}");
}

/// Proves: if the journal is full, edits go directly to the server, and no change is lost or refused.
#[test]
fn a_full_journal_stops_gathering() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let full = WriteBackOptions { bytes_max: 1, ..gather_options(1, dir.path()) };
    let mine = Gatherer::with(&world, 1, dir.path(), full);
    mine.take(&world);
    for number in 0..5 {
        put(&mine.files, &format!("{number}"), &noise(number, 20_000)).unwrap();
        assert_eq!(mine.waiting(), 0);
    }
    world.lapse();
    let other = world.client(2, &[]);
    assert_eq!(names(&other, "").len(), 5);
    assert_eq!(get(&other, "3").unwrap(), noise(3, 20_000));
}

/// Proves: the delegation is requested when several edits follow each other, and not for one edit, nor for
/// reading.
#[test]
fn lease_requests_come_with_edits() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let mine = Gatherer::new(&world, 1, dir.path());
    put(&mine.files, "one", b"1").unwrap();
    for _ in 0..20 {
        read(&mine.files, "one").unwrap();
    }
    assert!(!mine.memory.wants_exclusive());
    for number in 0..5 {
        put(&mine.files, &format!("{number}"), b"1").unwrap();
    }
    assert!(mine.memory.wants_exclusive());
    mine.take(&world);
    world.recall();
    assert!(!mine.memory.wants_exclusive(), "whoever lost it does not ask for it at once");
}

/// Proves: many programs that run at once, while the delegation comes and goes, lose no data and do not block
/// each other.
#[test]
fn many_at_once() {
    let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
    let other = world.client(2, &[]);
    let mine = Gatherer::alone(&world, dir.path());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u64)
            .map(|worker| {
                let mine = &mine;
                scope.spawn(move || {
                    mkdir(&mine.files, &format!("d{worker}")).unwrap();
                    for number in 0..60 {
                        let name = format!("d{worker}/{number}");
                        put(&mine.files, &name, &noise(worker * 1000 + number, 3000)).unwrap();
                        assert_eq!(read(&mine.files, &name).unwrap(), noise(worker * 1000 + number, 3000));
                        if number % 3 == 0 {
                            unlink(&mine.files, &name).unwrap();
                        }
                    }
                })
            })
            .collect();
        while !workers.iter().all(|worker| worker.is_finished()) {
            mine.take(&world);
            std::thread::sleep(Duration::from_millis(2));
            world.recall();
        }
    });
    for worker in 0..4u64 {
        assert_eq!(names(&other, &format!("d{worker}")).len(), 40);
        assert_eq!(get(&other, &format!("d{worker}/50")).unwrap(), noise(worker * 1000 + 50, 3000));
    }
    mine.quiet();
}

mod random {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Put(usize, usize, u64),
        Unlink(usize, usize),
        Rename(usize, usize, usize),
        Delegate(usize),
        Read(usize, usize),
    }

    const PATHS: [&str; 6] = ["a", "b", "c", "d/a", "d/b", "d/c"];

    fn step() -> impl Strategy<Value = Step> {
        let (who, path) = (|| 0..2usize, || 0..PATHS.len());
        prop_oneof![
            4 => (who(), path(), 1..1000u64).prop_map(|(who, path, seed)| Step::Put(who, path, seed)),
            1 => (who(), path()).prop_map(|(who, path)| Step::Unlink(who, path)),
            2 => (who(), path(), path()).prop_map(|(who, from, to)| Step::Rename(who, from, to)),
            2 => who().prop_map(Step::Delegate),
            3 => (who(), path()).prop_map(|(who, path)| Step::Read(who, path)),
        ]
    }

    proptest! {
        /// Proves: two clients that gather by turns always see what the other one closed, as on one disk; and
        /// there is never a conflict.
        #[test]
        fn two_by_turns(steps in prop::collection::vec(step(), 1..60)) {
            let world = World::new();
            let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let both = [0, 1].map(|who| Gatherer::new(&world, who as u32 + 1, dirs[who].path()));
            mkdir(&both[0].files, "d").unwrap();
            let mut expected: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Put(who, path, seed) => {
                        put(&both[who].files, PATHS[path], &noise(seed, 700)).unwrap();
                        expected.insert(PATHS[path], noise(seed, 700));
                    }
                    Step::Unlink(who, path) => {
                        let done = unlink(&both[who].files, PATHS[path]);
                        prop_assert_eq!(done.is_ok(), expected.remove(PATHS[path]).is_some());
                    }
                    Step::Rename(who, from, to) => {
                        let done = rename(&both[who].files, PATHS[from], PATHS[to]);
                        let moved = expected.get(PATHS[from]).cloned();
                        prop_assert_eq!(done.is_ok(), moved.is_some());
                        if let Some(bytes) = moved.filter(|_| from != to) {
                            expected.remove(PATHS[from]);
                            expected.insert(PATHS[to], bytes);
                        }
                    }
                    Step::Delegate(who) => both[who].take(&world),
                    Step::Read(who, path) => {
                        let found = read(&both[who].files, PATHS[path]).ok();
                        prop_assert_eq!(found.as_ref(), expected.get(PATHS[path]));
                    }
                }
            }
            world.recall();
            let fresh = world.client(3, &[]);
            for path in PATHS {
                let found = get(&fresh, path).ok();
                prop_assert_eq!(found.as_ref(), expected.get(path));
            }
            both.iter().for_each(Gatherer::quiet);
        }
    }
}
