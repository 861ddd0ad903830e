//! Engines against a server in the same process.

use crate::common;

use common::*;
use holdfast_client::{FsError, StartError};
use holdfast_content::Handle;
use std::time::Duration;

/// No operation is given up because the machine is slow: it would be made again after those that came later.
const ABORT_AFTER: Duration = Duration::from_secs(3600);

/// Proves: in a new file system with two users and a group, what one user writes the other reads.
#[test]
fn what_one_writes_the_other_reads() {
    let world = World::new(2, ABORT_AFTER);
    let (a, b) = (world.start(0), world.start(1));
    assert_eq!(names(&a.fetch().unwrap(), Handle::ROOT), ["team", "user0", "user1"]);
    modify(&a, create(world.group_dir, "hello", b"from a")).unwrap();
    assert_eq!(read(&b.fetch().unwrap(), world.group_dir, "hello").unwrap(), b"from a");
    modify(&b, write(world.group_dir, "hello", b"from b")).unwrap();
    assert_eq!(read(&a.fetch().unwrap(), world.group_dir, "hello").unwrap(), b"from b");
    assert!(matches!(modify(&a, create(world.group_dir, "hello", b"")), Err(FsError::Exists)));
    assert!(matches!(modify(&a, create(Handle::ROOT, "mine", b"")), Err(FsError::Access(_))));
    modify(&a, unlink(world.group_dir, "hello")).unwrap();
    assert!(names(&b.fetch().unwrap(), world.group_dir).is_empty());
    a.flush_commits().unwrap();
    let status = a.status();
    assert_eq!((status.user_name.as_str(), status.frozen.is_none()), ("user0", true));
    assert!(status.fast > 0, "{status:?}");
}

/// Proves: when many threads of two devices create files in one group directory at once, both devices find every file,
/// with its content, once.
#[test]
fn concurrent_creates_in_one_directory() {
    let world = World::new(2, ABORT_AFTER);
    let engines = [world.start(0), world.start(1)];
    let directory = world.group_dir;
    std::thread::scope(|scope| {
        for (device, engine) in engines.iter().enumerate() {
            for thread in 0..4 {
                scope.spawn(move || {
                    for number in 0..25 {
                        let name = format!("{device}-{thread}-{number}");
                        let snapshot = modify(engine, create(directory, &name, name.as_bytes())).unwrap();
                        assert_eq!(read(&snapshot, directory, &name).unwrap(), name.as_bytes());
                    }
                });
            }
        }
    });
    let mut expected: Vec<String> = (0..2)
        .flat_map(|device| {
            (0..4).flat_map(move |thread| (0..25).map(move |n| format!("{device}-{thread}-{n}")))
        })
        .collect();
    expected.sort();
    for engine in &engines {
        let snapshot = engine.fetch().unwrap();
        assert_eq!(names(&snapshot, directory), expected);
        for name in &expected {
            assert_eq!(read(&snapshot, directory, name).unwrap(), name.as_bytes());
        }
        assert!(engine.status().frozen.is_none());
    }
}

/// Proves: when two devices create the same name at once, exactly one of them succeeds, each time.
#[test]
fn one_winner_for_one_name() {
    let world = World::new(2, ABORT_AFTER);
    let engines = [world.start(0), world.start(1)];
    let directory = world.group_dir;
    for round in 0..20 {
        let name = format!("prize-{round}");
        let results: Vec<_> = std::thread::scope(|scope| {
            let attempts: Vec<_> = engines
                .iter()
                .enumerate()
                .map(|(device, engine)| {
                    let name = name.clone();
                    scope.spawn(move || modify(engine, create(directory, &name, &[device as u8])).map(drop))
                })
                .collect();
            attempts.into_iter().map(|attempt| attempt.join().unwrap()).collect()
        });
        let winners: Vec<usize> = (0..2).filter(|device| results[*device].is_ok()).collect();
        assert_eq!(winners.len(), 1, "{results:?}");
        assert!(results.iter().any(|result| matches!(result, Err(FsError::Exists))));
        for engine in &engines {
            let bytes = read(&engine.fetch().unwrap(), directory, &name).unwrap();
            assert_eq!(bytes, [winners[0] as u8]);
        }
    }
}

/// Proves: clients and server can be restarted, and what was committed is still there.
#[test]
fn restarts_of_both_sides() {
    let world = World::new(2, ABORT_AFTER);
    let directory = world.group_dir;
    for round in 0..6 {
        let (a, b) = (world.start(0), world.start(1));
        modify(&a, create(directory, &format!("a{round}"), b"x")).unwrap();
        modify(&b, create(directory, &format!("b{round}"), b"y")).unwrap();
        world.server.restart();
        commit(&a, write(directory, &format!("b{round}"), b"z"));
        let snapshot = b.fetch().unwrap();
        assert_eq!(names(&snapshot, directory).len(), 2 * (round + 1));
        assert_eq!(read(&snapshot, directory, &format!("b{round}")).unwrap(), b"z");
        a.stop();
        b.stop();
    }
}

/// Proves: a device whose state is missing is refused with words that say what to do, and so is an unknown device.
#[test]
fn absent_state_is_refused() {
    let world = World::new(1, ABORT_AFTER);
    let a = world.start(0);
    modify(&a, create(world.group_dir, "file", b"x")).unwrap();
    stop(a);
    let mut moved = Machine::new(&world.server, 10);
    moved.disk = holdfast_log::simulated::PowerLoss::new(9);
    match moved.start(&world.superuser, DEADLINE) {
        Err(error @ StartError::StateMissing { .. }) => {
            assert!(error.to_string().contains("device add"), "{error}");
        }
        other => panic!("{:?}", other.err()),
    }
    world.start(0).fetch().unwrap();
    let stranger = Machine::new(&world.server, 99);
    assert!(matches!(stranger.start(&world.superuser, DEADLINE), Err(StartError::UnknownDevice { .. })));
}

/// Proves: when the server has forgotten this machine's locks, the engine claims them again. A lock that somebody else
/// has taken meanwhile is lost, and its holder is told; the others stay.
#[test]
fn forgotten_locks_are_reclaimed_or_lost() {
    use holdfast_client::LockTarget;
    use holdfast_protocol::locks::{Holder, LockAttempt, LockOutcome, LockRange, LockTable, SessionId};
    use holdfast_protocol::message::{LockMode, LockReply, LockSpace, Request, Response};
    use parking_lot::Mutex;
    use std::sync::Arc;

    let world = World::new(1, ABORT_AFTER);
    let engine = world.start(0);
    let table = Arc::new(Mutex::new(LockTable::new(1, 0)));
    let served = table.clone();
    world.users[0].link.forge(move |request| {
        let mut table = served.lock();
        let session = |run| SessionId { device: holdfast_content::DeviceId(1), run };
        let (epoch, answer) = match request {
            Request::KeepLocks { run } => (table.renew_session(session(*run), 0)?, LockReply::Granted),
            Request::Lock(asked) => {
                let holder = Holder { session: session(asked.run), owner: asked.owner };
                let attempt = LockAttempt {
                    file: asked.file,
                    space: asked.space,
                    range: asked.range,
                    mode: asked.mode,
                    process: asked.process,
                    reclaim: asked.reclaim,
                    wait: asked.wait,
                };
                let epoch = table.renew_session(session(asked.run), 0)?;
                let answer = match table.request(holder, &attempt, 0) {
                    LockOutcome::Granted => LockReply::Granted,
                    LockOutcome::Grace(_) => LockReply::Grace { left_ms: 1 },
                    _ => LockReply::TooMany,
                };
                (epoch, answer)
            }
            _ => return None,
        };
        Some(Response::Locks { epoch, answer })
    });
    let lost = Arc::new(Mutex::new(Vec::new()));
    let report = lost.clone();
    engine.on_lock_lost(Box::new(move |file| report.lock().push(file)));
    let file = |number| Handle { principal: world.principal(), number };
    let place = |number| LockTarget {
        file: file(number),
        space: LockSpace::Fcntl,
        owner: 7,
        process: 1,
        range: LockRange { start: 3, last: 4 },
    };
    for number in [5, 6] {
        assert!(engine.lock(&place(number), LockMode::Exclusive, false).unwrap().is_none());
    }
    // The server starts again, and somebody else locks one of the files first.
    let other = SessionId { device: holdfast_content::DeviceId(9), run: 9 };
    let taken = |number| LockAttempt {
        file: file(number),
        space: LockSpace::Fcntl,
        range: LockRange::ALL,
        mode: Some(LockMode::Shared),
        process: 2,
        reclaim: false,
        wait: false,
    };
    {
        let mut table = table.lock();
        *table = LockTable::new(1000, 0);
        table.renew_session(other, 0).unwrap();
        assert_eq!(table.request(Holder { session: other, owner: 1 }, &taken(6), 0), LockOutcome::Granted);
    }
    // Any answer of the server carries its new epoch.
    assert!(engine.lock(&place(8), LockMode::Shared, false).unwrap().is_none());
    holdfast_testing::eventually("the loss is reported", || !lost.lock().is_empty());
    assert_eq!(*lost.lock(), [file(6)]);
    let held = |number| engine.holds_locks(file(number), LockSpace::Fcntl, 7);
    assert_eq!([5, 6, 8].map(held), [true, false, true]);
    let refused = table.lock().request(Holder { session: other, owner: 1 }, &taken(5), 0);
    assert!(matches!(refused, LockOutcome::Conflict(_)), "the server has it again");
    engine.unlock(&place(5));
    assert_eq!(table.lock().request(Holder { session: other, owner: 1 }, &taken(5), 0), LockOutcome::Granted);
    engine.stop();
}

/// An edit that removes a name and leaves the inode.
fn forget(directory: Handle, name: &str) -> impl EditClosure + use<> {
    let name = name.as_bytes().to_vec();
    move |changes| changes.set_entry(directory, &name, None, NOW)
}

/// Proves: files that no directory names are found and removed by those who may write them, and by nobody else. A file
/// stays if it is in use, has a name anywhere (also in a directory that itself has none), or was changed since it was
/// found. Directories without a name are reported, and they and their files stay.
#[test]
fn unnamed_files_are_reclaimed_after_proof() {
    use holdfast_client::View;
    let world = World::new(2, ABORT_AFTER);
    let (a, b) = (world.start(0), world.start(1));
    let (home, shared) =
        (a.fetch().unwrap().entry(Handle::ROOT, b"user0").unwrap().unwrap().handle, world.group_dir);
    for name in ["named", "lost", "opened", "changed"] {
        modify(&a, create(home, name, name.as_bytes())).unwrap();
    }
    for number in 0..300 {
        modify(&a, create(shared, &format!("g{number}"), b"")).unwrap();
    }
    let handle = |name: &str| a.fetch().unwrap().entry(home, name.as_bytes()).unwrap().unwrap().handle;
    let (opened, changed, lost) = (handle("opened"), handle("changed"), handle("lost"));
    // A directory with a file in it, whose name is removed below.
    let directory = std::sync::Arc::new(std::sync::Mutex::new(None));
    let made = directory.clone();
    modify(&a, move |changes| {
        let new = changes.allocate(home.principal)?;
        let inode =
            holdfast_content::Inode::new(holdfast_content::InodeKind::Directory, 0o755, changes.me(), NOW);
        changes.set_inode(new, inode)?;
        let entry = holdfast_content::Entry { handle: new, kind: holdfast_content::InodeKind::Directory };
        changes.set_entry(home, b"d", Some(entry), NOW)?;
        *made.lock().unwrap() = Some(new);
        Ok(())
    })
    .unwrap();
    let directory = directory.lock().unwrap().expect("it was made");
    modify(&a, create(directory, "inside", b"x")).unwrap();
    let nothing = a.reclaim(false, u64::MAX, &|_| false).unwrap().expect("nothing is pending");
    assert_eq!((nothing.files.len(), nothing.detached.len()), (0, 0), "{nothing:?}");
    assert!(nothing.inodes > 300);
    for name in ["lost", "opened", "changed", "d"] {
        modify(&a, forget(home, name)).unwrap();
    }
    for number in 0..250 {
        modify(&b, forget(shared, &format!("g{number}"))).unwrap();
    }
    assert!(a.reclaim(true, 100, &|_| false).unwrap().is_none(), "more than it may go through");

    let of_others = b.reclaim(true, u64::MAX, &|_| false).unwrap().unwrap();
    assert_eq!((of_others.files.len(), of_others.detached.len()), (250, 0), "only the group's");
    let all = a.reclaim(true, u64::MAX, &|_| false).unwrap().unwrap();
    assert_eq!(all.files.len(), 253);
    let touched = std::cell::Cell::new(false);
    let found = a
        .reclaim(false, u64::MAX, &|file| {
            // Changes one of the files after it was found and before it is removed.
            if !touched.replace(true) {
                modify(&a, move |changes| {
                    let mut inode = holdfast_content::Inode::clone(&*changes.inode(changed)?);
                    inode.mode = 0o600;
                    changes.set_inode(changed, inode)
                })
                .unwrap();
            }
            file == opened
        })
        .unwrap()
        .unwrap();
    assert_eq!(
        (found.files.len(), found.detached.as_slice()),
        (251, &[directory.inode_number().unwrap()][..])
    );
    let view = a.fetch().unwrap();
    for there in [opened, changed, directory, handle("named")] {
        view.inode(there).unwrap();
    }
    assert!(matches!(view.inode(lost), Err(FsError::NotFound)));
    assert_eq!(read(&view, directory, "inside").unwrap(), b"x");
    assert_eq!(names(&view, shared).len(), 50);
    let again = a.reclaim(false, u64::MAX, &|_| false).unwrap().unwrap();
    assert_eq!(again.files.len(), 2);
}
