//! The inode API on engines, against a server in the same process.

use crate::common;

use common::*;
use holdfast_client::files::*;
use holdfast_client::{Engine, FsError};
use holdfast_content::{BlockKind, InodeKind};
use holdfast_crypto::Digest;
use holdfast_protocol::message::{Request, Response};
use holdfast_testing::{eventually_some, noise, setting};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// No operation is given up because the machine is slow: it would be made again after those that came later.
const ABORT_AFTER: Duration = Duration::from_secs(3600);
/// For operations that are to be given up.
const ABORT_SOON: Duration = Duration::from_millis(400);
const WHO: Caller = Caller { uid: 1000, gid: 1000, thread: 0 };

struct Mount {
    files: Arc<FileSystem>,
    engine: Arc<Engine>,
    dir: tempfile::TempDir,
    team: Ino,
}

impl std::ops::Deref for Mount {
    type Target = FileSystem;
    fn deref(&self) -> &FileSystem {
        &self.files
    }
}

fn mount(world: &World, user: usize) -> Mount {
    let engine = world.start(user);
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions {
        uid: 1000,
        gid: 1000,
        owners: Default::default(),
        spool_dir: dir.path().join("spool"),
        salvage_dir: dir.path().join("salvage"),
        read_only: false,
    };
    let files = FileSystem::new(engine.clone(), options).unwrap();
    let team = files.lookup(&WHO, Ino::ROOT, b"team").unwrap().ino;
    Mount { files, engine, dir, team }
}

impl Mount {
    fn create(&self, parent: Ino, name: &[u8]) -> Result<(Ino, FileHandleId), FsError> {
        let exclusive = OpenFlags { exclusive: true, ..OpenFlags::READ_WRITE };
        let (made, opened) = self.files.create(&WHO, parent, name, 0o644, exclusive)?;
        Ok((made.ino, opened.handle))
    }

    fn put(&self, parent: Ino, name: &[u8], bytes: &[u8]) -> Ino {
        let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
        let (made, opened) = self.files.create(&WHO, parent, name, 0o644, flags).unwrap();
        for (number, part) in bytes.chunks(128 << 10).enumerate() {
            self.write(opened.handle, (number << 17) as u64, part, WriteSource::Call).unwrap();
        }
        self.flush(opened.handle).unwrap();
        self.release(opened.handle);
        made.ino
    }

    fn get(&self, parent: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let found = self.lookup(&WHO, parent, name)?;
        let opened = self.open(&WHO, found.ino, OpenFlags::READ)?;
        let mut bytes = Vec::new();
        let result = loop {
            match self.read(opened.handle, bytes.len() as u64, 128 << 10) {
                Ok(part) if part.is_empty() => break Ok(bytes),
                Ok(part) => bytes.extend_from_slice(&part),
                Err(error) => break Err(error),
            }
        };
        self.release(opened.handle);
        result
    }

    fn names(&self, directory: Ino) -> BTreeSet<Vec<u8>> {
        let handle = self.opendir(&WHO, directory).unwrap();
        let mut names = BTreeSet::new();
        let mut take = |item: DirectoryItem<'_>| names.insert(item.name.to_vec());
        self.readdir(&WHO, handle, 0, &mut take).unwrap();
        self.releasedir(handle);
        names.retain(|name| name != b"." && name != b"..");
        names
    }
}

/// Proves: two people who work in one group directory see what the other has closed: small and large files, edits in
/// place, renames, links, copies, attributes, directories.
#[test]
fn two_people_in_one_directory() {
    let world = World::new(2, ABORT_AFTER);
    let (a, b) = (mount(&world, 0), mount(&world, 1));
    let large = noise(1, 5_000_000);
    a.put(a.team, b"small", b"hello");
    let ino = a.put(a.team, b"large", &large);
    assert_eq!(b.get(b.team, b"small").unwrap(), b"hello");
    assert!(b.get(b.team, b"large").unwrap() == large);

    let handle = b.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle;
    b.write(handle, 3_000_000, b"edited by b", WriteSource::Call).unwrap();
    b.fallocate(handle, 1_000_000, 500_000, Allocate::PunchHole).unwrap();
    b.flush(handle).unwrap();
    b.release(handle);
    let mut expected = large.clone();
    expected[3_000_000..3_000_011].copy_from_slice(b"edited by b");
    expected[1_000_000..1_500_000].fill(0);
    assert!(a.get(a.team, b"large").unwrap() == expected);

    let directory = a.mkdir(&WHO, a.team, b"dir", 0o755).unwrap().ino;
    b.rename(&WHO, b.team, b"large", directory, b"moved", RenameFlags::Replace).unwrap();
    a.link(&WHO, ino, a.team, b"linked").unwrap();
    a.symlink(&WHO, directory, b"link", b"../small").unwrap();
    assert!(matches!(b.rmdir(&WHO, b.team, b"dir"), Err(FsError::NotEmpty)));
    assert_eq!(b.names(directory), BTreeSet::from([b"moved".to_vec(), b"link".to_vec()]));
    let link = b.lookup(&WHO, directory, b"link").unwrap();
    assert_eq!((link.kind, b.readlink(&WHO, link.ino).unwrap()), (InodeKind::Symlink, b"../small".to_vec()));
    assert_eq!(b.lookup(&WHO, b.team, b"linked").unwrap().links, 2);

    let source = b.open(&WHO, ino, OpenFlags::READ).unwrap().handle;
    let (_, copy) = b.create(b.team, b"copy").unwrap();
    assert_eq!(b.copy_file_range(source, 0, copy, 0, 10 << 20).unwrap(), 5_000_000);
    b.flush(copy).unwrap();
    assert!(a.get(a.team, b"copy").unwrap() == expected);

    let set = SetAttributes { mode: Some(0o600), modified: Some(TimeToSet::At(77)), ..Default::default() };
    a.setattr(&WHO, ino, set, None).unwrap();
    a.setxattr(&WHO, ino, b"user.x", b"value", SetXattr::Create).unwrap();
    let moved = b.lookup(&WHO, directory, b"moved").unwrap();
    assert_eq!((moved.mode, moved.modified_ns, moved.size), (0o600, 77, 5_000_000));
    assert_eq!(b.getxattr(&WHO, ino, b"user.x").unwrap(), b"value");
    b.unlink(&WHO, directory, b"moved").unwrap();
    assert!(a.get(a.team, b"linked").unwrap() == expected);
    let root = Ino::ROOT;
    assert!(matches!(a.mkdir(&WHO, root, b"mine", 0o755), Err(FsError::Access(_))));
    assert!(a.engine.status().frozen.is_none() && b.engine.status().frozen.is_none());
}

/// Proves: threads of two clients that create, rewrite, rename and remove files in one directory at once always see what
/// was done; in the end both clients see the same tree, and no alarm was raised.
#[test]
fn many_threads_of_two_clients() {
    let world = World::new(2, ABORT_AFTER);
    let mounts = [mount(&world, 0), mount(&world, 1)];
    std::thread::scope(|scope| {
        for (client, mount) in mounts.iter().enumerate() {
            for thread in 0..3 {
                scope.spawn(move || {
                    let team = mount.team;
                    for round in 0..12 {
                        let name = format!("{client}-{thread}-{round}").into_bytes();
                        let bytes = noise(round, 300 + 20_000 * (round as usize % 3));
                        mount.put(team, &name, b"first");
                        mount.put(team, &name, &bytes);
                        assert!(mount.get(team, &name).unwrap() == bytes);
                        let moved = [&name[..], b"-moved"].concat();
                        mount.rename(&WHO, team, &name, team, &moved, RenameFlags::NoReplace).unwrap();
                        if round % 3 == 0 {
                            mount.unlink(&WHO, team, &moved).unwrap();
                        }
                    }
                });
            }
        }
    });
    let seen: Vec<_> = mounts.iter().map(|mount| mount.names(mount.team)).collect();
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0].len(), 2 * 3 * 8);
    for name in &seen[0] {
        let round: u32 = std::str::from_utf8(name).unwrap().split('-').nth(2).unwrap().parse().unwrap();
        let bytes = noise(u64::from(round), 300 + 20_000 * (round as usize % 3));
        assert!(mounts.iter().all(|mount| mount.get(mount.team, name).unwrap() == bytes));
    }
    assert!(mounts.iter().all(|mount| mount.engine.status().frozen.is_none()));
}

/// Proves: two clients that append to one file, closing each time or with one descriptor and fsync, lose no line and
/// double none, although requests and answers get lost and operations are aborted on the way.
#[test]
fn appends_of_two_clients() {
    let rounds = setting("HOLDFAST_ROUNDS", 25);
    let world = World::new(2, ABORT_SOON);
    let (a, b) = (mount(&world, 0), mount(&world, 1));
    let ino = a.put(a.team, b"log", b"");
    // The second's operations stay pending until the first has begun one: so they collide, however threads are scheduled.
    let declared = Arc::new(AtomicU32::new(0));
    let (engines, heard) = ([&a, &b].map(|mount| mount.engine.clone()), declared.clone());
    world.users[1].link.set_faults(move |request| {
        let (before, until) = (heard.load(SeqCst), Instant::now() + ABORT_SOON / 2);
        let is_pending = matches!(request, Request::Commit { .. });
        while is_pending
            && engines.iter().all(|engine| engine.status().conflicts == 0)
            && heard.load(SeqCst) == before
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        Fault::None
    });
    world.users[0].link.tamper(move |response| {
        declared
            .fetch_add(u32::from(matches!(response, Response::View(_) | Response::LeasedView(..))), SeqCst);
    });
    // Answers and requests get lost; some COMMITs for so long that the server aborts their operations.
    let mut asked = 0;
    world.users[0].link.set_faults(move |request| {
        asked += 1;
        match request {
            Request::Commit { .. } if asked % 40 < 12 => {
                std::thread::sleep(ABORT_SOON / 8);
                Fault::LoseRequest
            }
            Request::Commit { .. } | Request::Fast { .. } | Request::Update { .. } if asked % 7 == 0 => {
                Fault::LoseAnswer
            }
            _ => Fault::None,
        }
    });
    let append = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
    std::thread::scope(|scope| {
        for (mount, name) in [(&a, 'a'), (&b, 'b')] {
            scope.spawn(move || {
                for number in 0..rounds {
                    let handle = mount.open(&WHO, ino, append).unwrap().handle;
                    let line = format!("{name} {number}\n");
                    mount.write(handle, 0, line.as_bytes(), WriteSource::Call).unwrap();
                    mount.flush(handle).unwrap();
                    mount.release(handle);
                }
            });
            scope.spawn(move || {
                let name = name.to_ascii_uppercase();
                let handle = mount.open(&WHO, ino, append).unwrap().handle;
                for number in 0..rounds {
                    let line = format!("{name} {number}\n");
                    mount.write(handle, 0, line.as_bytes(), WriteSource::Call).unwrap();
                    if number % 3 == 0 {
                        mount.fsync(handle).unwrap();
                    }
                }
                mount.flush(handle).unwrap();
                mount.release(handle);
            });
        }
    });
    for mount in [&a, &b] {
        let bytes = mount.get(mount.team, b"log").unwrap();
        let text = String::from_utf8(bytes).unwrap();
        for name in ["a", "b", "A", "B"] {
            let found: Vec<u64> =
                text.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok()).collect();
            assert_eq!(found, (0..rounds).collect::<Vec<_>>(), "{name}");
        }
        assert_eq!(text.lines().count() as u64, 4 * rounds);
        assert!(mount.save_unsaved("test").unwrap().is_none());
    }
    assert!([&a, &b].iter().any(|mount| mount.engine.status().conflicts > 0), "they met");
}

/// Proves: when two people overwrite each other's versions of a file again and again, every version that did not last is
/// a conflict copy. Both find the copies under the group's name, by their writer, also after a restart.
#[test]
fn overwritten_versions_are_kept() {
    const ROUNDS: u32 = 12;
    let world = World::new(2, ABORT_AFTER);
    let (a, b) = (mount(&world, 0), mount(&world, 1));
    let large = noise(3, 700_000);
    let ino = a.put(a.team, b"f", &noise(1, 400_000));
    b.lookup(&WHO, b.team, b"f").unwrap();
    for round in 0..ROUNDS {
        let handles =
            [&a, &b].map(|mount| (mount, mount.open(&WHO, ino, OpenFlags::READ_WRITE).unwrap().handle));
        std::thread::scope(|scope| {
            for (number, (mount, handle)) in handles.into_iter().enumerate() {
                let large = &large;
                scope.spawn(move || {
                    let bytes = [&[round as u8, number as u8], large.as_slice()].concat();
                    mount.write(handle, 0, &bytes, WriteSource::Call).unwrap();
                    mount.flush(handle).unwrap();
                    mount.release(handle);
                });
            }
        });
    }
    let check = |mount: &Mount| {
        let listed = mount.conflict_copies().unwrap();
        assert_eq!(listed.len(), ROUNDS as usize, "{listed:?}");
        for (round, version) in listed.iter().enumerate() {
            assert_eq!((version.path.as_str(), version.owner.as_str()), ("team/f", "team"));
            let part = mount.read_conflict_copy(&version.id, 0).unwrap();
            let writer = usize::from(part.bytes[1]);
            assert_eq!((part.bytes[0], &part.bytes[2..]), (round as u8, large.as_slice()));
            assert_eq!(version.written_by, format!("user{writer}"));
            assert_eq!(version.overwritten_by, format!("user{}", 1 - writer));
        }
    };
    check(&a);
    check(&b);
    let ids: Vec<String> = b.conflict_copies().unwrap().into_iter().map(|version| version.id).collect();
    drop((a, b));
    let a = mount(&world, 0);
    check(&a);
    a.drop_conflict_copies(&ids).unwrap();
    assert!(a.conflict_copies().unwrap().is_empty());
}

/// Proves: files that two clients make without a name at once, even when answers get lost, each have a number that no
/// other file gets, also after a restart. Those that are named later are whole for both; the others never appear.
#[test]
fn files_without_names() {
    const FILES: usize = 90;
    let world = World::new(2, ABORT_AFTER);
    let (a, b) = (mount(&world, 0), mount(&world, 1));
    let mut asked = 0;
    world.users[0].link.set_faults(move |_| {
        asked += 1;
        if asked % 11 == 0 { Fault::LoseAnswer } else { Fault::None }
    });
    let make = |mount: &Mount, number: usize| {
        let (made, opened) = mount.tmpfile(&WHO, mount.team, 0o644, OpenFlags::READ_WRITE).unwrap();
        mount
            .write(opened.handle, 0, &noise(u64::from(number as u32), 1000 + number), WriteSource::Call)
            .unwrap();
        if number.is_multiple_of(3) {
            let name = format!("f{number}").into_bytes();
            assert_eq!(mount.link(&WHO, made.ino, mount.team, &name).unwrap().ino, made.ino);
        }
        mount.flush(opened.handle).unwrap();
        mount.release(opened.handle);
        made.ino
    };
    let made: Vec<Ino> = std::thread::scope(|scope| {
        let threads = [(&a, 0), (&b, 1)].map(|(mount, side)| {
            scope.spawn(move || (0..FILES).map(|number| make(mount, number * 2 + side)).collect::<Vec<_>>())
        });
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    world.users[0].link.clear_faults();
    assert_eq!(made.iter().collect::<BTreeSet<_>>().len(), 2 * FILES);
    for mount in [&a, &b] {
        assert_eq!(mount.names(mount.team).len(), 2 * FILES / 3);
        for number in (0..2 * FILES).step_by(3) {
            let bytes = mount.get(mount.team, format!("f{number}").as_bytes()).unwrap();
            assert!(bytes == noise(u64::from(number as u32), 1000 + number), "{number}");
        }
    }
    drop((a, b));
    let a = mount(&world, 0);
    for number in 0..FILES {
        assert!(!made.contains(&a.put(a.team, format!("later{number}").as_bytes(), b"x")));
    }
}

/// Proves: when two clients create one name exclusively at once, exactly one of them succeeds, each time.
#[test]
fn one_winner_of_an_exclusive_creation() {
    let world = World::new(2, ABORT_AFTER);
    let mounts = [mount(&world, 0), mount(&world, 1)];
    for round in 0..15 {
        let name = format!("lock{round}").into_bytes();
        let winners: usize = std::thread::scope(|scope| {
            let name = &name;
            let threads: Vec<_> =
                mounts.iter().map(|mount| scope.spawn(move || mount.create(mount.team, name))).collect();
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(results.iter().all(|result| matches!(result, Ok(_) | Err(FsError::Exists))));
            results.iter().filter(|result| result.is_ok()).count()
        });
        assert_eq!(winners, 1);
    }
}

/// Proves: when two clients at once move two directories into each other, no loop results: both directories can still be
/// reached from the root.
#[test]
fn concurrent_moves_make_no_loop() {
    let world = World::new(2, ABORT_AFTER);
    let mounts = [mount(&world, 0), mount(&world, 1)];
    for round in 0..10 {
        let team = mounts[0].team;
        let [x, y] = ["x", "y"].map(|name| format!("{name}{round}").into_bytes());
        let inos = [&x, &y].map(|name| mounts[0].mkdir(&WHO, team, name, 0o755).unwrap().ino);
        for mount in &mounts {
            for name in [&x, &y] {
                mount.lookup(&WHO, team, name).unwrap();
            }
        }
        std::thread::scope(|scope| {
            let (x, y) = (&x, &y);
            let [a, b] = &mounts;
            let one = scope.spawn(move || a.rename(&WHO, team, x, inos[1], x, RenameFlags::Replace));
            let two = scope.spawn(move || b.rename(&WHO, team, y, inos[0], y, RenameFlags::Replace));
            let results = [one.join().unwrap(), two.join().unwrap()];
            assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
        });
        let reachable = |mount: &Mount| {
            let top = mount.names(team);
            let outer = if top.contains(&x) { (inos[0], &y) } else { (inos[1], &x) };
            mount.names(outer.0).contains(outer.1)
        };
        assert!(mounts.iter().all(reachable));
    }
}

/// What a call returns, which is repeated while it runs out of time.
fn answered<T>(mut call: impl FnMut() -> Result<T, FsError>) -> T {
    eventually_some("an answer in time", || match call() {
        Err(FsError::Unreachable(_)) => None,
        result => Some(result.unwrap()),
    })
}

/// Proves: while the server is away, `close` fails with a time-out and loses nothing: the next `close` of the same
/// descriptor publishes the content. Reads of what is cached go on.
#[test]
fn a_server_that_is_away() {
    let world = World::new(1, ABORT_AFTER);
    let machine = &world.users[0];
    let engine = machine.start(&world.superuser, Duration::from_millis(300)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions {
        uid: 1,
        owners: Default::default(),
        gid: 1,
        spool_dir: dir.path().join("spool"),
        salvage_dir: dir.path().join("salvage"),
        read_only: false,
    };
    let files = FileSystem::new(engine.clone(), options).unwrap();
    // On a busy machine a call may run out of time although the server is there.
    let team = answered(|| files.lookup(&WHO, Ino::ROOT, b"team")).ino;
    let a = Mount { files, engine, dir, team };
    let mut numbers = 0..;
    let (name, (_, handle)) = answered(|| {
        let name = format!("file{}", numbers.next().unwrap()).into_bytes();
        a.create(team, &name).map(|made| (name, made))
    });
    let bytes = noise(3, 1_000_000);
    a.write(handle, 0, &bytes, WriteSource::Call).unwrap();
    machine.link.set_down(true);
    assert!(matches!(a.flush(handle), Err(FsError::Unreachable(_))));
    assert!(a.read(handle, 0, 2_000_000).unwrap() == bytes);
    assert!(matches!(a.lookup(&WHO, team, &name), Err(FsError::Unreachable(_))));
    machine.link.set_down(false);
    answered(|| a.flush(handle));
    a.release(handle);
    assert!(answered(|| a.get(team, &name)) == bytes);
    assert!(a.dir.path().join("spool").read_dir().unwrap().next().is_none());
}

/// Proves: a block that the server lost or altered is told apart from one that is gone because the file was replaced; no
/// other file is concerned.
#[test]
fn missing_and_altered_blocks() {
    let world = World::new(2, ABORT_AFTER);
    let (a, b) = (mount(&world, 0), mount(&world, 1));
    let bytes = noise(5, 200_000);
    let all = || -> BTreeSet<Digest> { world.server.with_blocks(|blocks| blocks.keys().copied().collect()) };
    let before = all();
    let ino = a.put(a.team, b"bad", &bytes);
    a.engine.flush_commits().unwrap();
    let new: BTreeSet<Digest> = all().difference(&before).copied().collect();
    a.put(a.team, b"good", &noise(6, 200_000));
    let old = b.open(&WHO, ino, OpenFlags::READ).unwrap().handle;
    let lie = |missing: bool| {
        let new = new.clone();
        world.users[1].link.tamper(move |response| {
            let Response::Blocks(blocks) = response else { return };
            for slot in blocks {
                match slot {
                    Some((_, found)) if found.block.kind != BlockKind::Chunk => {}
                    Some((_, found)) if !new.contains(&found.address) => {}
                    Some(_) if missing => *slot = None,
                    Some((_, found)) => found.block.body[10] ^= 1,
                    None => {}
                }
            }
        });
    };
    lie(false);
    assert!(matches!(b.get(b.team, b"bad"), Err(FsError::Integrity(_))));
    assert!(b.get(b.team, b"good").unwrap() == noise(6, 200_000));
    lie(true);
    assert!(matches!(b.get(b.team, b"bad"), Err(FsError::Integrity(_))), "still referred to");
    a.put(a.team, b"bad", b"written anew");
    assert!(matches!(b.read(old, 0, 100), Err(FsError::Stale)), "proven replaced");
    assert_eq!(b.get(b.team, b"bad").unwrap(), b"written anew");
    assert!(b.engine.status().frozen.is_none());
}
/// Proves: when the server rolls back, every call fails, and unpublished writes are saved for `holdfast salvage`.
#[test]
fn a_rollback_freezes_and_saves() {
    let world = World::new(2, ABORT_AFTER);
    let (a, b) = (mount(&world, 0), mount(&world, 1));
    a.put(a.team, b"f", b"one");
    a.engine.flush_commits().unwrap();
    let past = world.server.copy_order();
    b.put(b.team, b"g", b"two");
    b.engine.flush_commits().unwrap();
    a.lookup(&WHO, a.team, b"g").unwrap();
    let (_, handle) = a.create(a.team, b"h").unwrap();
    a.write(handle, 0, b"unsaved", WriteSource::Call).unwrap();
    a.engine.flush_commits().unwrap();
    world.server.roll_back(past);
    let flushed = a.flush(handle);
    assert!(matches!(flushed, Err(FsError::Frozen(_))), "{flushed:?}");
    assert!(matches!(a.read(handle, 0, 1), Err(FsError::Frozen(_))));
    let saved = eventually_some("what is unsaved is saved", || {
        let folders = std::fs::read_dir(a.dir.path().join("salvage")).into_iter().flatten();
        folders.map(|folder| folder.unwrap().path()).find(|path| path.join("INDEX.json").exists())
    });
    assert_eq!(std::fs::read(saved.join("team/h")).unwrap(), b"unsaved");
}
