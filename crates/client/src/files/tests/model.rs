//! Tests of the whole API against a plain in-memory file system: every answer and every error must be the
//! same, after every operation; a second client must find what was published; and a third one, mounted at the
//! end, must find the same tree.

use super::super::*;
use super::memory::{Client, World, caller, journal_options};
use super::reference::{Op, Outcome, Path, Reference, Reply, data, word, xattr};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The file system under test: one client that does everything, and a second one that reads.
struct Tested {
    world: Arc<World>,
    client: Client,
    second: Client,
    slots: Vec<(FileHandleId, Ino)>,
    /// Sends the client's changes in the background.
    back: Option<Arc<WriteBack>>,
    way: Route,
}

/// How the client's changes reach the server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Straight,
    WriteBack,
    /// Under a delegation that comes and goes.
    Gather,
}

const WHO: Caller = Caller { uid: 1000, gid: 1000, thread: 77 };

impl Tested {
    fn new(way: Route) -> Tested {
        let world = World::new();
        let second = world.client(2, &[]);
        let (client, back) = match way {
            Route::Straight => (world.client(1, &[]), None),
            Route::WriteBack => {
                let dir = tempfile::tempdir().unwrap();
                let (files, memory, back) = world.write_back(1, dir.path());
                (Client { files, memory, dir }, Some(back))
            }
            Route::Gather => {
                let dir = tempfile::tempdir().unwrap();
                // Changes are sent only when another client needs them.
                let options = WriteBackOptions {
                    gathers: true,
                    gather: Duration::from_secs(600),
                    ..journal_options(1, dir.path())
                };
                let (files, memory, back) = world.behind(1, dir.path(), options);
                (Client { files, memory, dir }, Some(back))
            }
        };
        Tested { world, client, second, slots: Vec::new(), back, way }
    }

    /// Before each operation: the delegation comes and goes.
    fn change_the_world(&self, number: usize) {
        let Some(back) = self.back.as_ref().filter(|_| self.way == Route::Gather) else { return };
        match (number as u32 ^ 5).wrapping_mul(0x9e37_79b9) >> 29 {
            0..=2 => self.world.delegate(&self.client.memory, back),
            3 => self.world.recall(),
            _ => {}
        }
    }

    /// Waits until all changes are at the server.
    fn settle(&self) {
        if let Some(back) = &self.back {
            assert!(back.settle(holdfast_testing::PATIENCE).unwrap(), "{:?}", back.status());
            assert_eq!(back.status().conflicts, vec![], "nobody else has changed anything");
        }
    }

    fn run(&mut self, op: &Op) -> Outcome {
        let mut lookups = Vec::new();
        let answer = self.try_run(op, &mut lookups);
        for ino in lookups {
            self.client.forget(ino, 1);
        }
        answer.map_err(|error| word(&error))
    }

    fn find(&self, path: &[u8], lookups: &mut Vec<Ino>) -> Result<Ino, FsError> {
        let mut at = Ino::ROOT;
        for name in path {
            at = self.client.lookup(&WHO, at, &[*name])?.ino;
            lookups.push(at);
        }
        Ok(at)
    }

    fn parent<'p>(&self, path: &'p [u8], lookups: &mut Vec<Ino>) -> Result<(Ino, &'p [u8]), FsError> {
        let (name, directory) = path.split_last().expect("paths have a name");
        let mut at = Ino::ROOT;
        for name in directory {
            let found = self.client.lookup(&WHO, at, &[*name])?;
            lookups.push(found.ino);
            // The kernel walks into directories only.
            if found.kind != InodeKind::Directory {
                return Err(FsError::NotDirectory);
            }
            at = found.ino;
        }
        Ok((at, std::slice::from_ref(name)))
    }

    fn slot(&self, slot: usize) -> Result<(FileHandleId, Ino), FsError> {
        let none = || FsError::Busy;
        if self.slots.is_empty() { Err(none()) } else { Ok(self.slots[slot % self.slots.len()]) }
    }

    fn stat(&self, attributes: Attributes) -> Reply {
        Reply::Stat {
            kind: attributes.kind,
            mode: attributes.mode,
            links: attributes.links,
            size: attributes.size,
            modified_ns: Some(attributes.modified_ns),
        }
    }

    fn try_run(&mut self, op: &Op, lookups: &mut Vec<Ino>) -> Result<Reply, FsError> {
        let files = self.client.files.clone();
        let flags = |write, truncate, append, exclusive| OpenFlags {
            read: true,
            write,
            append,
            truncate,
            exclusive,
            synchronous: false,
        };
        match op {
            Op::Mkdir(path) => {
                let (parent, name) = self.parent(path, lookups)?;
                lookups.push(files.mkdir(&WHO, parent, name, 0o755)?.ino);
            }
            Op::Mkfifo(path) => {
                let (parent, name) = self.parent(path, lookups)?;
                lookups.push(files.mknod(&WHO, parent, name, InodeKind::Fifo, 0o644, 0)?.ino);
            }
            Op::Symlink(path, target) => {
                let (parent, name) = self.parent(path, lookups)?;
                lookups.push(files.symlink(&WHO, parent, name, &[*target; 5])?.ino);
            }
            Op::Create { path, exclusive, truncate, append } => {
                let (parent, name) = self.parent(path, lookups)?;
                let flags = flags(true, *truncate, *append, *exclusive);
                let (made, opened) = files.create(&WHO, parent, name, 0o644, flags)?;
                lookups.push(made.ino);
                self.slots.push((opened.handle, made.ino));
            }
            Op::Open { path, write, truncate, append } => {
                let ino = self.find(path, lookups)?;
                let opened = files.open(&WHO, ino, flags(*write, *truncate && *write, *append, false))?;
                self.slots.push((opened.handle, ino));
            }
            Op::Unlink(path) => {
                let (parent, name) = self.parent(path, lookups)?;
                files.unlink(&WHO, parent, name)?;
            }
            Op::Rmdir(path) => {
                let (parent, name) = self.parent(path, lookups)?;
                files.rmdir(&WHO, parent, name)?;
            }
            Op::Rename { from, to, flags } => {
                let (parent, name) = self.parent(from, lookups)?;
                let (new_parent, new_name) = self.parent(to, lookups)?;
                files.rename(&WHO, parent, name, new_parent, new_name, *flags)?;
            }
            Op::Link(from, to) => {
                let ino = self.find(from, lookups)?;
                let (parent, name) = self.parent(to, lookups)?;
                lookups.push(files.link(&WHO, ino, parent, name)?.ino);
            }
            Op::Truncate { path, size } => {
                let ino = self.find(path, lookups)?;
                let set = SetAttributes { size: Some(*size), ..SetAttributes::default() };
                assert_eq!(files.setattr(&WHO, ino, set, None)?.size, *size);
            }
            Op::Readlink(path) => {
                let ino = self.find(path, lookups)?;
                return Ok(Reply::Bytes(files.readlink(&WHO, ino)?));
            }
            Op::Chmod(path, mode) => {
                let ino = self.find(path, lookups)?;
                let set = SetAttributes { mode: Some(*mode), ..SetAttributes::default() };
                assert_eq!(files.setattr(&WHO, ino, set, None)?.mode, *mode);
            }
            Op::Utimens(path, time) => {
                let ino = self.find(path, lookups)?;
                let set = SetAttributes { modified: Some(TimeToSet::At(*time)), ..SetAttributes::default() };
                assert_eq!(files.setattr(&WHO, ino, set, None)?.modified_ns, *time);
            }
            Op::Stat(path) => {
                let mut at = Ino::ROOT;
                let mut found = None;
                for name in path {
                    let attributes = files.lookup(&WHO, at, &[*name])?;
                    at = attributes.ino;
                    lookups.push(at);
                    found = Some(attributes);
                }
                let found = found.expect("paths have a name");
                let again = files.getattr(&WHO, at, None)?;
                assert_eq!(found, again, "lookup and getattr agree");
                return Ok(self.stat(found));
            }
            Op::SetXattr(path, name, value, how) => {
                let ino = self.find(path, lookups)?;
                files.setxattr(&WHO, ino, &xattr(*name), &[*value; 9], *how)?;
            }
            Op::GetXattr(path, name) => {
                let ino = self.find(path, lookups)?;
                return Ok(Reply::Bytes(files.getxattr(&WHO, ino, &xattr(*name))?));
            }
            Op::RemoveXattr(path, name) => {
                let ino = self.find(path, lookups)?;
                files.removexattr(&WHO, ino, &xattr(*name))?;
            }
            Op::ListXattr(path) => {
                let ino = self.find(path, lookups)?;
                return Ok(Reply::Keys(files.listxattr(&WHO, ino)?));
            }
            Op::List(path) => {
                let ino = self.find(path, lookups)?;
                return Ok(Reply::Names(list(&files, ino)?));
            }
            Op::Peek(path) => {
                self.settle();
                return peek(&self.second, &parts(path)).map(Reply::Bytes);
            }
            _ => return self.try_on_slot(op),
        }
        Ok(Reply::Done)
    }

    fn try_on_slot(&mut self, op: &Op) -> Result<Reply, FsError> {
        let files = self.client.files.clone();
        match op {
            Op::Read { slot, at, length } => {
                return Ok(Reply::Bytes(files.read(self.slot(*slot)?.0, *at, *length)?));
            }
            Op::Write { slot, at, length, byte } => {
                let bytes = data(*length, *byte);
                let count = files.write(self.slot(*slot)?.0, *at, &bytes, WriteSource::Call)?;
                return Ok(Reply::Count(count as u64));
            }
            Op::Resize { slot, size } => {
                let (handle, ino) = self.slot(*slot)?;
                let set = SetAttributes { size: Some(*size), ..SetAttributes::default() };
                files.setattr(&WHO, ino, set, Some(handle))?;
            }
            Op::Allocate { slot, at, length, how } => {
                files.fallocate(self.slot(*slot)?.0, *at, *length, *how)?;
            }
            Op::Copy { from, at, to, to_at, length } => {
                let (from, to) = (self.slot(*from)?.0, self.slot(*to)?.0);
                return Ok(Reply::Count(files.copy_file_range(from, *at, to, *to_at, *length)?));
            }
            Op::Futimens(slot, time) => {
                let (handle, ino) = self.slot(*slot)?;
                let set = SetAttributes { modified: Some(TimeToSet::At(*time)), ..SetAttributes::default() };
                files.setattr(&WHO, ino, set, Some(handle))?;
            }
            Op::Fstat(slot) => {
                let (handle, ino) = self.slot(*slot)?;
                return Ok(self.stat(files.getattr(&WHO, ino, Some(handle))?));
            }
            Op::Flush(slot) => files.flush(self.slot(*slot)?.0)?,
            Op::Fsync(slot) => files.fsync(self.slot(*slot)?.0)?,
            Op::Release(slot) => {
                let (handle, _) = self.slot(*slot)?;
                let count = self.slots.len();
                self.slots.remove(slot % count);
                files.release(handle);
            }
            Op::Seek { slot, at, to } => {
                let (handle, ino) = self.slot(*slot)?;
                let size = files.getattr(&WHO, ino, Some(handle))?.size;
                match files.seek(handle, *at, *to) {
                    Ok(found) => check_seek(&files, handle, *at, found, *to, size)?,
                    // If there is no data up to the end, all bytes are zero.
                    Err(FsError::NoData) if *at < size => {
                        assert_eq!(*to, SeekTo::Data);
                        let rest = files.read(handle, *at, 2 << 20)?;
                        assert!(rest.iter().all(|byte| *byte == 0), "data in a hole");
                    }
                    Err(error) => return Err(error),
                }
            }
            _ => unreachable!("handled by path"),
        }
        Ok(Reply::Done)
    }
}

/// Bytes that are skipped to reach data are zero; a hole that was found is zero, or the end.
fn check_seek(
    files: &FileSystem,
    handle: FileHandleId,
    at: u64,
    found: u64,
    to: SeekTo,
    size: u64,
) -> Result<(), FsError> {
    assert!(found >= at && found <= size);
    if to == SeekTo::Data {
        let skipped = files.read(handle, at, (found - at) as usize)?;
        assert!(skipped.iter().all(|byte| *byte == 0), "data in a hole");
    } else if found < size {
        assert_eq!(files.read(handle, found, 1)?, vec![0], "a hole of data");
    }
    Ok(())
}

/// All entries of a directory, read a few at a time.
pub fn list(files: &FileSystem, ino: Ino) -> Result<BTreeMap<Vec<u8>, InodeKind>, FsError> {
    let handle = files.opendir(&WHO, ino)?;
    let mut names = BTreeMap::new();
    let mut offset = 0;
    loop {
        let mut count = 0;
        files.readdir(&WHO, handle, offset, &mut |item| {
            count += 1;
            if count > 3 {
                return false;
            }
            offset = item.next_offset;
            assert!(names.insert(item.name.to_vec(), item.kind).is_none(), "an entry twice");
            true
        })?;
        if count <= 3 {
            break;
        }
    }
    files.releasedir(handle);
    assert!(names.remove(&b"."[..]).is_some() && names.remove(&b".."[..]).is_some());
    Ok(names)
}

/// The content that another client reads from a file that it opens now.
pub fn peek(client: &Client, path: &[&[u8]]) -> Result<Vec<u8>, FsError> {
    let who = caller(5);
    let mut ino = Ino::ROOT;
    for name in path {
        let found = client.lookup(&who, ino, name)?;
        client.forget(found.ino, 1);
        ino = found.ino;
    }
    let opened = client.open(&who, ino, OpenFlags::READ)?;
    let size = client.getattr(&who, ino, Some(opened.handle))?.size;
    let bytes = client.read(opened.handle, 0, size as usize + 10);
    client.release(opened.handle);
    bytes
}

fn parts(path: &[u8]) -> Vec<&[u8]> {
    path.iter().map(std::slice::from_ref).collect()
}

fn same(expected: &Outcome, found: &Outcome) -> bool {
    match (expected, found) {
        (
            Ok(Reply::Stat { kind, mode, links, size, modified_ns }),
            Ok(Reply::Stat { kind: k, mode: m, links: l, size: s, modified_ns: t }),
        ) => {
            let size = *kind == InodeKind::Directory || size == s;
            (kind, mode, links) == (k, m, l) && size && modified_ns.is_none_or(|time| *t == Some(time))
        }
        (Err("no slot"), Err("other")) => true,
        _ => expected == found,
    }
}

/// Runs operations on both file systems and compares every answer, then the whole tree through a fresh mount.
pub fn check(ops: &[Op]) -> Result<(), TestCaseError> {
    check_by(ops, Route::Straight)
}

/// Like [`check`], with the way in which the client's changes reach the server.
pub fn check_by(ops: &[Op], way: Route) -> Result<(), TestCaseError> {
    let mut reference = Reference::new();
    let mut tested = Tested::new(way);
    for (number, op) in ops.iter().enumerate() {
        tested.change_the_world(number);
        let expected = reference.run(op);
        let found = tested.run(op);
        prop_assert!(
            same(&expected, &found),
            "operation {number}, {op:?}: expected {}, found {}",
            brief(&expected),
            brief(&found)
        );
    }
    while !tested.slots.is_empty() {
        let _ = (reference.run(&Op::Release(0)), tested.run(&Op::Release(0)));
    }
    tested.settle();
    tested.world.recall();
    let fresh = tested.world.client(3, &[]);
    compare_trees(&reference, 0, &fresh, Ino::ROOT, &mut Vec::new())?;
    prop_assert!(tested.client.files.save_unsaved("test").unwrap().is_none(), "all is published");
    prop_assert_eq!(tested.world.pinned(), 0, "nothing open, nothing pinned");
    prop_assert!(tested.client.files.nodes.all().is_empty(), "all is forgotten");
    Ok(())
}

fn brief(outcome: &Outcome) -> String {
    match outcome {
        Ok(Reply::Bytes(bytes)) => {
            let start = &bytes[..bytes.len().min(20)];
            let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
            format!("{} bytes {start:?}.., sum {sum}", bytes.len())
        }
        other => format!("{other:?}"),
    }
}

fn compare_trees(
    reference: &Reference,
    at: usize,
    fresh: &Client,
    ino: Ino,
    path: &mut Vec<u8>,
) -> Result<(), TestCaseError> {
    let thing = &reference.things[at];
    let names = list(fresh, ino).unwrap();
    let expected: BTreeSet<Vec<u8>> = thing.names.keys().map(|name| vec![*name]).collect();
    prop_assert_eq!(names.keys().cloned().collect::<BTreeSet<_>>(), expected);
    for (name, child) in &thing.names {
        path.push(*name);
        let thing = &reference.things[*child];
        let found = fresh.lookup(&WHO, ino, &[*name]).unwrap();
        prop_assert_eq!((found.kind, found.mode), (thing.kind, thing.mode));
        match thing.kind {
            InodeKind::Directory => compare_trees(reference, *child, fresh, found.ino, path)?,
            InodeKind::File => {
                prop_assert_eq!(found.links, thing.links);
                prop_assert!(peek(fresh, &parts(path)).unwrap() == thing.bytes, "content of {:?}", path);
                if let Some(time) = thing.modified_ns {
                    prop_assert_eq!(found.modified_ns, time);
                }
            }
            _ => {}
        }
        path.pop();
    }
    Ok(())
}

fn path() -> impl Strategy<Value = Path> {
    prop_oneof![
        3 => prop::collection::vec(b'a'..b'd', 1..2),
        2 => prop::collection::vec(b'a'..b'c', 2..4)
    ]
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..700, 2 => 0u64..20_000, 1 => 60_000u64..200_000, 1 => (1u64 << 20) - 400..(1 << 20) + 400]
}

fn op() -> impl Strategy<Value = Op> {
    let slot = 0usize..4;
    let length = prop_oneof![1usize..500, 1usize..40_000];
    let how = prop_oneof![
        Just(Allocate::Extend),
        Just(Allocate::KeepSize),
        Just(Allocate::PunchHole),
        Just(Allocate::ZeroRange),
        Just(Allocate::ZeroRangeKeepSize)
    ];
    let rename = prop_oneof![
        4 => Just(RenameFlags::Replace),
        1 => Just(RenameFlags::NoReplace),
        2 => Just(RenameFlags::Exchange)
    ];
    let xattr_how =
        prop_oneof![2 => Just(SetXattr::Any), 1 => Just(SetXattr::Create), 1 => Just(SetXattr::Replace)];
    let names = prop_oneof![
        6 => path().prop_map(Op::Mkdir),
        4 => path().prop_map(Op::Unlink),
        2 => path().prop_map(Op::Rmdir),
        8 => (path(), path(), rename).prop_map(|(from, to, flags)| Op::Rename { from, to, flags }),
        3 => (path(), path()).prop_map(|(from, to)| Op::Link(from, to)),
        1 => (path(), 1u8..255).prop_map(|(path, target)| Op::Symlink(path, target)),
        1 => path().prop_map(Op::Mkfifo),
        1 => path().prop_map(Op::Readlink),
        2 => path().prop_map(Op::List),
    ];
    let attributes = prop_oneof![
        2 => (path(), 0u32..0o7777).prop_map(|(path, mode)| Op::Chmod(path, mode)),
        1 => (path(), -5i64..1 << 60).prop_map(|(path, time)| Op::Utimens(path, time)),
        1 => (slot.clone(), -5i64..1 << 60).prop_map(|(slot, time)| Op::Futimens(slot, time)),
        3 => path().prop_map(Op::Stat),
        2 => slot.clone().prop_map(Op::Fstat),
        1 => (path(), b'x'..b'z', any::<u8>(), xattr_how).prop_map(|(p, n, v, h)| Op::SetXattr(p, n, v, h)),
        1 => (path(), b'x'..b'z').prop_map(|(path, name)| Op::GetXattr(path, name)),
        1 => (path(), b'x'..b'z').prop_map(|(path, name)| Op::RemoveXattr(path, name)),
        1 => path().prop_map(Op::ListXattr),
    ];
    let opening = prop_oneof![
        3 => (path(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(path, exclusive, truncate, append)| Op::Create { path, exclusive, truncate, append }
        ),
        3 => (path(), any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(path, write, truncate, append)| Op::Open { path, write, truncate, append }),
        3 => slot.clone().prop_map(Op::Release),
        2 => slot.clone().prop_map(Op::Flush),
        1 => slot.clone().prop_map(Op::Fsync),
    ];
    let contents = prop_oneof![
        4 => (slot.clone(), offset(), 1usize..70_000).prop_map(|(slot, at, length)| Op::Read { slot, at, length }),
        8 => (slot.clone(), offset(), length, any::<u8>())
            .prop_map(|(slot, at, length, byte)| Op::Write { slot, at, length, byte }),
        1 => (path(), offset()).prop_map(|(path, size)| Op::Truncate { path, size }),
        2 => (slot.clone(), offset()).prop_map(|(slot, size)| Op::Resize { slot, size }),
        2 => (slot.clone(), offset(), 1u64..70_000, how)
            .prop_map(|(slot, at, length, how)| Op::Allocate { slot, at, length, how }),
        2 => (slot.clone(), offset(), slot.clone(), offset(), 1u64..100_000)
            .prop_map(|(from, at, to, to_at, length)| Op::Copy { from, at, to, to_at, length }),
        1 => (slot, offset(), any::<bool>()).prop_map(|(slot, at, data)| Op::Seek {
            slot,
            at,
            to: if data { SeekTo::Data } else { SeekTo::Hole }
        }),
        3 => path().prop_map(Op::Peek),
    ];
    prop_oneof![2 => names, 1 => attributes, 3 => opening, 4 => contents]
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    /// Proves: names, attributes, data, link counts and errors are those of a textbook file system, whatever
    /// is open, unpublished, renamed over or unlinked meanwhile; and closed files are published as they were.
    #[test]
    fn behaves_like_a_textbook_file_system(ops in prop::collection::vec(op(), 1..80)) {
        check(&ops)?;
    }

    /// Proves the same for a client that sends in the background, while it sends.
    #[test]
    fn write_back_behaves_like_a_textbook_file_system(ops in prop::collection::vec(op(), 1..80)) {
        check_by(&ops, Route::WriteBack)?;
    }

    /// Proves the same for a client that gathers under a delegation that comes and goes; another client sees
    /// what it closed, at any time.
    #[test]
    fn gathering_behaves_like_a_textbook_file_system(ops in prop::collection::vec(op(), 1..80)) {
        check_by(&ops, Route::Gather)?;
    }
}
