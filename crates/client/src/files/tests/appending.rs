//! Tests of two clients that append to one file at the same time.

use super::model::peek;
use super::tools::*;
use super::*;
use proptest::prelude::*;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

const APPEND: OpenFlags = OpenFlags { append: true, ..OpenFlags::READ_WRITE };

fn open(client: &Client, ino: Ino, flags: OpenFlags) -> FileHandleId {
    client.open(&WHO, ino, flags).unwrap().handle
}

fn close(client: &Client, handle: FileHandleId) {
    client.flush(handle).unwrap();
    client.release(handle);
}

fn published(world: &std::sync::Arc<World>) -> Vec<u8> {
    peek(&world.client(9, &[]), &[b"log"]).unwrap()
}

/// Runs `meanwhile` while a publication through `handle` has reached the server and is not yet planned there.
fn while_flushing(client: &Client, handle: FileHandleId, meanwhile: impl FnOnce()) -> Result<(), FsError> {
    client.memory.gate.close();
    let files = client.files.clone();
    let flushing = thread::spawn(move || files.flush(handle));
    client.memory.gate.somebody_waits();
    meanwhile();
    client.memory.gate.open();
    flushing.join().unwrap()
}

/// Proves: the bytes that two clients append all survive, in the order of publication, for files in the
/// inode, files cut as a whole and files in extents; the size shown becomes the real one, and the kernel is
/// told to drop its pages.
#[test]
fn appends_of_two_clients_survive() {
    for (start, ours_length, theirs_length) in [
        (0, 5, 7),
        (100, 5, 7),
        (200, 50, 60),
        (5_000, 100, 90_000),
        (3 << 20, 100, 300_000),
        (3 << 20, 1, 1),
    ] {
        let world = World::new();
        let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
        let told = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let tell = told.clone();
        ours.on_invalidate(Box::new(move |ino, _| tell.lock().push(ino)));
        let ino = write_file(&ours, b"log", &vec![b'0'; start]);
        let our = open(&ours, ino, APPEND);
        let their = open(&theirs, ino, APPEND);
        put(&ours, our, start as u64, &vec![b'a'; ours_length]);
        put(&theirs, their, start as u64, &vec![b'b'; theirs_length]);
        close(&theirs, their);
        assert!(told.lock().is_empty());
        ours.flush(our).unwrap();
        assert_eq!(*told.lock(), [ino]);
        let expected = [vec![b'0'; start], vec![b'b'; theirs_length], vec![b'a'; ours_length]].concat();
        assert!(published(&world) == expected, "from {start}");
        let shown = ours.getattr(&WHO, ino, Some(our)).unwrap();
        assert_eq!(shown.size, expected.len() as u64);
        assert!(ours.read(our, 0, expected.len()).unwrap() == expected);
        let reading = ours.open(&WHO, ino, OpenFlags::READ).unwrap();
        assert!(!reading.keep_cache, "the kernel may not have dropped them yet");
        ours.release(reading.handle);
        // The descriptor continues after all these bytes.
        put(&ours, our, 0, b"more");
        close(&ours, our);
        assert!(published(&world) == [expected, b"more".to_vec()].concat());
        assert!(ours.save_unsaved("test").unwrap().is_none());
        assert_eq!(world.pinned(), 0);
    }
}

/// Proves: bytes that are appended while an earlier publication is moved behind those of others are published
/// by the next close; if the client ends before, salvage finds the bytes in order.
#[test]
fn what_is_appended_meanwhile_moves_along() {
    for (length, published_after) in [(10, true), (3_000_000, true), (10, false)] {
        let world = World::new();
        let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
        let ino = write_file(&ours, b"log", b"0");
        let our = open(&ours, ino, APPEND);
        put(&ours, our, 0, &vec![b'a'; length]);
        while_flushing(&ours, our, || {
            let their = open(&theirs, ino, APPEND);
            put(&theirs, their, 0, b"bbb");
            close(&theirs, their);
            put(&ours, our, 0, &vec![b'c'; length]);
        })
        .unwrap();
        let first = [b"0bbb".to_vec(), vec![b'a'; length]].concat();
        assert!(published(&world) == first);
        let whole = [first, vec![b'c'; length]].concat();
        assert!(ours.read(our, 0, whole.len()).unwrap() == whole);
        if published_after {
            close(&ours, our);
            assert!(published(&world) == whole);
        } else {
            // The state that a killed process leaves to the next one.
            let folder = ours.dir.path().join("spool");
            let killed = tempfile::tempdir().unwrap();
            std::fs::create_dir(killed.path().join("spool")).unwrap();
            for file in std::fs::read_dir(folder).unwrap() {
                let file = file.unwrap();
                std::fs::copy(file.path(), killed.path().join("spool").join(file.file_name())).unwrap();
            }
            let next = FileSystem::with_engine(world.memory(1, &[]), memory::options(killed.path())).unwrap();
            let saved = next.save_unsaved("killed").unwrap().unwrap();
            let bytes = std::fs::read(saved.folder.join(&saved.files[0].saved_as)).unwrap();
            assert!(saved.files.len() == 1 && bytes == whole);
        }
    }
}

/// Proves: changes other than appending are published as a whole: a write at an offset, a hole, a size, a
/// page; also through another descriptor of the same file, and before or after the append or while it is
/// published. No byte is published twice.
#[test]
fn what_has_its_place_is_published_whole() {
    type Change = fn(&Client, Ino, FileHandleId);
    let changes: [(Change, &[u8]); 5] = [
        (
            |client, ino, _| {
                drop(client.write(open(client, ino, OpenFlags::READ_WRITE), 1, b"X", WriteSource::Call))
            },
            b"0X2aa",
        ),
        (|client, _, handle| client.fallocate(handle, 0, 2, Allocate::PunchHole).unwrap(), b"\0\x002aa"),
        (
            |client, _, handle| assert_eq!(client.write(handle, 0, b"M", WriteSource::PageCache).unwrap(), 1),
            b"M12aa",
        ),
        (|client, ino, handle| resize(client, ino, handle, 4), b"012a"),
        (|client, ino, handle| resize(client, ino, handle, 6), b"012aa\0"),
    ];
    for (change, expected) in changes {
        for moment in ["before", "during"] {
            let world = World::new();
            let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
            let ino = write_file(&ours, b"log", b"012");
            let our = open(&ours, ino, APPEND);
            let append_there = || {
                let their = open(&theirs, ino, APPEND);
                put(&theirs, their, 0, b"bb");
                close(&theirs, their);
            };
            put(&ours, our, 0, b"aa");
            if moment == "before" {
                append_there();
                change(&ours, ino, our);
            } else {
                while_flushing(&ours, our, || {
                    append_there();
                    change(&ours, ino, our);
                })
                .unwrap();
                assert_eq!(published(&world), b"012bbaa");
            }
            ours.flush(our).unwrap();
            assert_eq!(published(&world), expected, "{moment}");
            assert_eq!(ours.read(our, 0, 10).unwrap(), expected);
        }
    }
}

fn resize(client: &Client, ino: Ino, handle: FileHandleId, size: u64) {
    let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
    client.setattr(&WHO, ino, set, Some(handle)).unwrap();
}

/// Proves: after another client cut or rewrote a file, appended bytes go to its new end.
#[test]
fn appends_follow_a_file_that_was_cut() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&ours, b"log", &[b'0'; 500]);
    let our = open(&ours, ino, APPEND);
    put(&ours, our, 0, b"aa");
    while_flushing(&ours, our, || {
        let set = SetAttributes { size: Some(0), ..SetAttributes::default() };
        theirs.setattr(&WHO, ino, set, None).unwrap();
        put(&ours, our, 0, b"cc");
    })
    .unwrap();
    assert_eq!(published(&world), b"aa");
    close(&ours, our);
    assert_eq!(published(&world), b"aacc");
}

/// Proves: a publication whose answer came late, but which is in the order, is not made twice, whatever any
/// client appended before or after it; one that is not in the order is made again.
#[test]
fn a_late_answer_doubles_nothing() {
    for (made, others, newer) in [
        (true, false, false),
        (true, true, false),
        (true, false, true),
        (true, true, true),
        (false, true, true),
    ] {
        let world = World::new();
        let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
        let ino = write_file(&ours, b"log", b"0");
        let our = open(&ours, ino, APPEND);
        put(&ours, our, 0, b"aa");
        let append_there = |bytes| {
            let their = open(&theirs, ino, APPEND);
            put(&theirs, their, 0, bytes);
            close(&theirs, their);
        };
        if others {
            append_there(b"bb");
        }
        let fault = Some(FsError::Unreachable("late".into()));
        *(if made { &ours.memory.late } else { &ours.memory.fault }).lock() = fault;
        assert!(ours.flush(our).is_err());
        if newer {
            put(&ours, our, 0, b"cc");
        }
        (*ours.memory.late.lock(), *ours.memory.fault.lock()) = (None, None);
        append_there(b"dd");
        ours.flush(our).unwrap();
        let (before, after) = if made { ("aa", "dd") } else { ("dd", "aa") };
        let parts = ["0", if others { "bb" } else { "" }, before, after, if newer { "cc" } else { "" }];
        assert_eq!(String::from_utf8(published(&world)).unwrap(), parts.concat());
        close(&ours, our);
        assert_eq!(String::from_utf8(published(&world)).unwrap(), parts.concat());
    }
}

/// Proves: appending to a file that was removed by another client and made again under its name fails, and
/// the bytes are kept.
#[test]
fn a_file_made_anew_is_another() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&ours, b"log", b"0");
    let our = open(&ours, ino, APPEND);
    put(&ours, our, 0, b"aa");
    theirs.unlink(&WHO, Ino::ROOT, b"log").unwrap();
    write_file(&theirs, b"log", b"new");
    assert!(matches!(ours.flush(our), Err(FsError::Stale)));
    ours.release(our);
    assert_eq!(published(&world), b"new");
    let saved = ours.save_unsaved("test").unwrap().unwrap();
    assert_eq!(std::fs::read(saved.folder.join(&saved.files[0].saved_as)).unwrap(), b"0aa");
}

#[derive(Clone, Debug)]
enum Step {
    Open(usize),
    Append(usize, usize, usize),
    Fsync(usize, usize),
    Close(usize, usize),
    /// During one publication, the other client publishes so many records, and the first appends so many
    /// more.
    Overlap(usize, usize, usize, usize),
    /// A publication whose answer comes late.
    Late(usize, usize),
    Chmod(usize, u32),
}

fn step() -> impl Strategy<Value = Step> {
    let who = 0usize..2;
    let slot = 0usize..3;
    let length =
        prop_oneof![6 => 12usize..60, 2 => 60usize..3_000, 1 => 3_000usize..200_000, 1 => Just(1 << 20)];
    prop_oneof![
        3 => who.clone().prop_map(Step::Open),
        8 => (who.clone(), slot.clone(), length).prop_map(|(who, slot, length)| Step::Append(who, slot, length)),
        3 => (who.clone(), slot.clone()).prop_map(|(who, slot)| Step::Fsync(who, slot)),
        4 => (who.clone(), slot.clone()).prop_map(|(who, slot)| Step::Close(who, slot)),
        2 => (who.clone(), slot.clone(), 0usize..3, 0usize..3)
            .prop_map(|(who, slot, theirs, ours)| Step::Overlap(who, slot, theirs, ours)),
        1 => (who.clone(), slot).prop_map(|(who, slot)| Step::Late(who, slot)),
        1 => (who, 0u32..0o777).prop_map(|(who, mode)| Step::Chmod(who, mode)),
    ]
}

struct Writers {
    clients: [Client; 2],
    slots: [Vec<FileHandleId>; 2],
    written: [u32; 2],
    ino: Ino,
}

impl Writers {
    fn slot(&self, who: usize, slot: usize) -> Option<FileHandleId> {
        let slots = &self.slots[who];
        (!slots.is_empty()).then(|| slots[slot % slots.len()])
    }

    /// A record contains its writer, its number and its length.
    fn append(&mut self, who: usize, handle: FileHandleId, length: usize) {
        let number = self.written[who];
        self.written[who] += 1;
        let mut record = format!("{who} {number} {length} ").into_bytes();
        record.resize(length.max(record.len() + 1) - 1, b'.');
        record.push(b'\n');
        put(&self.clients[who], handle, 0, &record);
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Open(who) => {
                let handle = open(&self.clients[who], self.ino, APPEND);
                self.slots[who].push(handle);
            }
            Step::Append(who, slot, length) => {
                if let Some(handle) = self.slot(who, slot) {
                    self.append(who, handle, length);
                }
            }
            Step::Fsync(who, slot) => {
                if let Some(handle) = self.slot(who, slot) {
                    self.clients[who].fsync(handle).unwrap();
                }
            }
            Step::Close(who, slot) => {
                if let Some(handle) = self.slot(who, slot) {
                    self.slots[who].retain(|other| *other != handle);
                    close(&self.clients[who], handle);
                }
            }
            Step::Overlap(who, slot, theirs, ours) => {
                let Some(handle) = self.slot(who, slot) else { return };
                self.append(who, handle, 20);
                self.clients[who].memory.gate.close();
                let files = self.clients[who].files.clone();
                let flushing = thread::spawn(move || files.flush(handle));
                self.clients[who].memory.gate.somebody_waits();
                let other = 1 - who;
                for _ in 0..theirs {
                    let their = open(&self.clients[other], self.ino, APPEND);
                    self.append(other, their, 30);
                    close(&self.clients[other], their);
                }
                for _ in 0..ours {
                    self.append(who, handle, 25);
                }
                self.clients[who].memory.gate.open();
                flushing.join().unwrap().unwrap();
            }
            Step::Late(who, slot) => {
                let Some(handle) = self.slot(who, slot) else { return };
                *self.clients[who].memory.late.lock() = Some(FsError::Interrupted);
                let before = self.clients[who].memory.edits.load(SeqCst);
                let late = self.clients[who].fsync(handle);
                let edits = self.clients[who].memory.edits.load(SeqCst) - before;
                assert_eq!(late.is_err(), edits > 0);
                *self.clients[who].memory.late.lock() = None;
            }
            Step::Chmod(who, mode) => {
                let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
                let shown = self.clients[who].setattr(&WHO, self.ino, set, None).unwrap();
                assert_eq!(shown.mode, mode);
            }
        }
    }
}

/// The records in a file: each is complete, those of each writer are in order, none is missing, and none is
/// there twice.
fn check_records(bytes: &[u8], written: [u32; 2]) -> Result<(), TestCaseError> {
    let mut found = [0, 0];
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let text = String::from_utf8_lossy(line);
        let words: Vec<&str> = text.split(' ').collect();
        let who: usize = words[0].parse().expect("a writer");
        prop_assert_eq!(words[1].parse::<u32>().expect("a number"), found[who]);
        prop_assert_eq!(line.len(), words[2].parse::<usize>().expect("a length"));
        found[who] += 1;
    }
    prop_assert_eq!(found, written);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Proves: whatever two clients append through any descriptors, while either publishes, gets late answers
    /// or changes attributes: every record is complete, each client's are in order, and none is lost or
    /// doubled.
    #[test]
    fn all_records_are_there(steps in prop::collection::vec(step(), 1..60)) {
        let world = World::new();
        let clients = [world.client(1, &[]), world.client(2, &[])];
        let ino = write_file(&clients[0], b"log", b"");
        let mut writers = Writers { clients, slots: [Vec::new(), Vec::new()], written: [0, 0], ino };
        for step in &steps {
            writers.run(step);
            // The content that a client sees contains all that it has written, in order.
            for who in 0..2 {
                if let Some(handle) = writers.slot(who, 0) {
                    let client = &writers.clients[who];
                    let size = client.getattr(&WHO, ino, Some(handle)).unwrap().size;
                    let bytes = client.read(handle, 0, size as usize + 1).unwrap();
                    prop_assert_eq!(bytes.len() as u64, size);
                    let text = String::from_utf8(bytes).unwrap();
                    let mine = text.lines().filter(|line| line.starts_with(&format!("{who} "))).count();
                    prop_assert_eq!(mine as u32, writers.written[who]);
                }
            }
        }
        for who in 0..2 {
            for handle in std::mem::take(&mut writers.slots[who]) {
                close(&writers.clients[who], handle);
            }
            prop_assert!(writers.clients[who].save_unsaved("test").unwrap().is_none(), "all is published");
        }
        check_records(&published(&world), writers.written)?;
        prop_assert_eq!(world.pinned(), 0);
    }
}
