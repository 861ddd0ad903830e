//! Tests of what locks mean for content.

use super::memory::caller;
use super::model::peek;
use super::tools::*;
use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

fn fcntl(owner: u64, start: u64, last: u64) -> Lock {
    Lock { space: LockSpace::Fcntl, owner, process: 9, range: LockRange { start, last } }
}

fn open(client: &Client, ino: Ino) -> FileHandleId {
    client.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle
}

fn try_lock(client: &Client, handle: FileHandleId, lock: &Lock) -> bool {
    client.lock(&WHO, handle, lock, LockMode::Exclusive, false).unwrap().is_none()
}

/// Proves: data written under a lock is seen by its next holder, through descriptors that were open all the
/// time; the kernel's pages are dropped before the lock is granted.
#[test]
fn locks_hand_over_content() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let dropped = Arc::new(AtomicU32::new(0));
    let counted = dropped.clone();
    theirs.on_invalidate(Box::new(move |_, done| {
        counted.fetch_add(1, Ordering::SeqCst);
        done.expect("it is waited for").send(()).unwrap();
    }));
    let ino = write_file(&ours, b"f", b"0");
    let (mine, other) = (open(&ours, ino), open(&theirs, ino));
    assert_eq!(theirs.read(other, 0, 9).unwrap(), b"0");
    let lock = fcntl(1, 0, 0);
    for round in 1..5_u32 {
        let text = round.to_string();
        assert!(try_lock(&ours, mine, &lock));
        assert!(!try_lock(&theirs, other, &lock));
        put(&ours, mine, 0, text.as_bytes());
        ours.unlock(mine, &lock).unwrap();
        assert!(try_lock(&theirs, other, &lock));
        assert_eq!(dropped.load(Ordering::SeqCst), round);
        assert_eq!(theirs.read(other, 0, 9).unwrap(), text.as_bytes());
        put(&theirs, other, 0, b"x");
        theirs.unlock(other, &lock).unwrap();
        assert!(try_lock(&ours, mine, &lock));
        assert_eq!(ours.read(mine, 0, 9).unwrap(), b"x");
        ours.unlock(mine, &lock).unwrap();
        dropped.store(round, Ordering::SeqCst);
    }
}

/// Proves: a caller that waits for a lock gets it, with the content, when it is given up; a holder on the
/// same machine prevents a lock like any other; closing gives up the locks of that owner, and no others.
#[test]
fn waiting_and_closing() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&ours, b"f", b"0");
    let (mine, other) = (open(&ours, ino), open(&theirs, ino));
    assert!(try_lock(&ours, mine, &fcntl(1, 0, 9)));
    assert!(!try_lock(&ours, mine, &fcntl(2, 5, 20)), "another process of this machine");
    assert!(try_lock(&ours, mine, &fcntl(2, 10, 20)));
    let holder = theirs.test_lock(other, &fcntl(1, 15, 15), LockMode::Shared).unwrap().expect("it is held");
    assert_eq!((holder.range, holder.process), (LockRange { start: 10, last: 20 }, 9));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            theirs.lock(&caller(5), other, &fcntl(1, 0, 0), LockMode::Exclusive, true).unwrap();
            theirs.read(other, 0, 99).unwrap()
        });
        put(&ours, mine, 0, b"last words");
        ours.flush(mine).unwrap();
        ours.closed_by(mine, 1);
        assert_eq!(waiter.join().unwrap(), b"last words");
    });
    assert!(!try_lock(&theirs, other, &fcntl(1, 10, 10)), "the second process still has its own");
    let flock = Lock { space: LockSpace::Flock, owner: 7, process: 9, range: LockRange::ALL };
    let second = open(&ours, ino);
    assert!(try_lock(&ours, second, &flock), "flock and fcntl do not see each other");
    assert!(!try_lock(&theirs, other, &flock));
    ours.release(second);
    assert!(try_lock(&theirs, other, &flock));

    // The end of a lock that belongs to a descriptor (F_OFD_SETLK) is reported only by its release.
    let third = open(&ours, ino);
    let of_descriptor = fcntl(99, 50, 60);
    assert!(try_lock(&ours, third, &of_descriptor) && !try_lock(&theirs, other, &fcntl(1, 55, 55)));
    ours.release(third);
    assert!(try_lock(&theirs, other, &fcntl(1, 55, 55)));
}

/// Proves: a process that is killed while data it wrote under a lock is being sent to the server has the lock
/// until the data is there, and the next holder sees the data. The same holds for a process that closes
/// another descriptor of the file.
#[test]
fn a_killed_holder_loses_no_update() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&ours, b"f", b"0");
    let other = open(&theirs, ino);
    let lock = fcntl(1, 0, 0);
    let mine = open(&ours, ino);
    assert!(try_lock(&ours, mine, &lock));
    put(&ours, mine, 0, b"1");
    *ours.memory.fault.lock() = Some(FsError::Interrupted);
    assert!(matches!(ours.flush(mine), Err(FsError::Interrupted)));
    ours.closed_by(mine, 1);
    assert!(!try_lock(&theirs, other, &lock), "what was written is not there yet");
    *ours.memory.fault.lock() = None;
    ours.release(mine);
    assert!(try_lock(&theirs, other, &lock));
    assert_eq!(theirs.read(other, 0, 9).unwrap(), b"1");
    theirs.unlock(other, &lock).unwrap();

    let (mine, reading) = (open(&ours, ino), ours.open(&WHO, ino, OpenFlags::READ).unwrap().handle);
    assert!(try_lock(&ours, mine, &lock));
    put(&ours, mine, 0, b"2");
    ours.flush(reading).unwrap();
    ours.closed_by(reading, 1);
    assert!(try_lock(&theirs, other, &lock), "closing any descriptor frees them");
    assert_eq!(theirs.read(other, 0, 9).unwrap(), b"2");
}

/// Proves: the shared memory of a database in WAL mode belongs to one mount for as long as it is open there;
/// another mount is refused, and the status says why; other files and other locks are not affected.
#[test]
fn shared_memory_is_one_mounts() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let shared = |client: &Client, handle: FileHandleId, owner: u64| {
        let lock = fcntl(owner, 128, 128);
        client.lock(&WHO, handle, &lock, LockMode::Shared, false).unwrap().is_none()
    };
    let ino = write_file(&ours, b"db-shm", b"");
    theirs.lookup(&WHO, Ino::ROOT, b"db-shm").unwrap();
    let (mine, also, other) = (open(&ours, ino), open(&ours, ino), open(&theirs, ino));
    assert!(shared(&ours, mine, 1) && shared(&ours, also, 2));
    assert!(!shared(&theirs, other, 1));
    assert!(theirs.status_text().contains("db-shm") && theirs.status_text().contains("journal_mode"));
    assert!(try_lock(&theirs, other, &fcntl(1, 500, 500)), "a lock that is not SQLite's");
    for (handle, owner) in [(mine, 1), (also, 2)] {
        assert!(!shared(&theirs, other, 1));
        ours.closed_by(handle, owner);
        ours.release(handle);
    }
    assert!(shared(&theirs, other, 1) && theirs.status_text().starts_with("working"));
    let again = open(&ours, ino);
    assert!(!shared(&ours, again, 1));

    let ino = write_file(&ours, b"other", b"");
    let (mine, other) = (open(&ours, ino), open(&theirs, ino));
    assert!(shared(&ours, mine, 1) && shared(&theirs, other, 1));
}

/// Proves: if the kernel reports the end of a descriptor after the program has opened and locked the file
/// again as the same owner, the new locks stay.
#[test]
fn a_late_end_frees_nothing_newer() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&ours, b"f", b"0");
    let other = open(&theirs, ino);
    let flock = Lock { space: LockSpace::Flock, owner: 7, process: 9, range: LockRange::ALL };
    for lock in [fcntl(7, 0, 9), flock] {
        let former = open(&ours, ino);
        assert!(try_lock(&ours, former, &lock));
        match lock.space {
            LockSpace::Fcntl => ours.closed_by(former, lock.owner),
            // Only its end frees it; until then no other owner gets it, whatever number the next descriptor
            // has.
            LockSpace::Flock => ours.unlock(former, &lock).unwrap(),
        }
        let next = open(&ours, ino);
        assert!(try_lock(&ours, next, &lock));
        ours.release(former);
        assert!(!try_lock(&theirs, other, &lock), "{:?}", lock.space);
        ours.closed_by(next, lock.owner);
        ours.release(next);
        assert!(try_lock(&theirs, other, &lock));
        theirs.unlock(other, &lock).unwrap();
    }
    // The number of an ended descriptor (F_OFD_SETLK), given to the next one.
    let (former, next) = (open(&ours, ino), open(&ours, ino));
    assert!(try_lock(&ours, former, &fcntl(8, 0, 9)) && try_lock(&ours, next, &fcntl(8, 0, 9)));
    ours.release(former);
    assert!(!try_lock(&theirs, other, &fcntl(1, 0, 9)));
    ours.release(next);
    assert!(try_lock(&theirs, other, &fcntl(1, 0, 9)));
}

/// Proves: giving up a lock first makes the written data durable; if that cannot be published, the lock and
/// the data stay; a lock is not granted if its file cannot be read.
#[test]
fn giving_up_publishes_first() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&ours, b"f", b"0");
    let (mine, other) = (open(&ours, ino), open(&theirs, ino));
    let lock = fcntl(1, 0, 0);
    assert!(try_lock(&ours, mine, &lock));
    put(&ours, mine, 0, b"new");
    *ours.memory.fault.lock() = Some(FsError::Unreachable("test".into()));
    assert!(ours.unlock(mine, &lock).is_err());
    assert!(!try_lock(&theirs, other, &lock));
    *ours.memory.fault.lock() = None;
    let commits = ours.memory.commits.load(Ordering::SeqCst);
    ours.unlock(mine, &lock).unwrap();
    assert!(ours.memory.commits.load(Ordering::SeqCst) > commits);
    assert_eq!(peek(&world.client(3, &[]), &[b"f"]).unwrap(), b"new");
    *theirs.memory.fault.lock() = Some(FsError::Unreachable("test".into()));
    assert!(theirs.lock(&WHO, other, &lock, LockMode::Exclusive, false).is_err());
    assert!(try_lock(&ours, mine, &lock), "what failed holds nothing");
}

/// Proves: after a lock was lost, data written under it is not published, and writing fails until the file is
/// closed; the data goes to salvage. A lock taken again, with nothing unpublished, makes the file usable
/// again.
#[test]
fn a_lost_lock_stops_writing() {
    let world = World::new();
    let (ours, theirs) = (world.client(1, &[]), world.client(2, &[]));
    let ino = write_file(&ours, b"f", b"0");
    let (mine, other) = (open(&ours, ino), open(&theirs, ino));
    let lock = fcntl(1, 0, 0);
    assert!(try_lock(&ours, mine, &lock));
    put(&ours, mine, 0, b"mine");
    // Another client has the lock now, and publishes.
    let _ = ours.memory.unlock(&crate::LockTarget {
        file: handle_of(ino).unwrap(),
        space: LockSpace::Fcntl,
        owner: 1,
        process: 9,
        range: LockRange::ALL,
    });
    ours.lock_lost(handle_of(ino).unwrap());
    assert!(try_lock(&theirs, other, &lock));
    put(&theirs, other, 0, b"theirs");
    theirs.unlock(other, &lock).unwrap();
    assert!(matches!(ours.write(mine, 0, b"x", WriteSource::Call), Err(FsError::LockLost)));
    assert!(matches!(ours.flush(mine), Err(FsError::LockLost)));
    ours.release(mine);
    assert_eq!(peek(&world.client(3, &[]), &[b"f"]).unwrap(), b"theirs");
    let saved = ours.save_unsaved("test").unwrap().expect("what was written is kept");
    assert_eq!(saved.files.len(), 1);

    let mine = open(&ours, ino);
    assert!(try_lock(&ours, mine, &lock), "closing has healed it");
    ours.lock_lost(handle_of(ino).unwrap());
    assert!(matches!(ours.write(mine, 0, b"x", WriteSource::Call), Err(FsError::LockLost)));
    assert!(try_lock(&ours, mine, &lock));
    put(&ours, mine, 0, b"again");
    ours.unlock(mine, &lock).unwrap();
    assert_eq!(peek(&world.client(3, &[]), &[b"f"]).unwrap(), b"agains");
}
