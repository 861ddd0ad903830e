//! The whole API against a plain in-memory file system: every answer and every error must be the same, after
//! every operation; what is published must be what a second client finds; and a third, mounting at the end,
//! must find the same tree.

use super::super::*;
use super::memory::{Client, World, caller};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A path: up to two directories and a name, out of a small alphabet.
type Path = Vec<u8>;

/// One operation. `usize` fields called `slot` choose an open file.
#[derive(Clone, Debug)]
pub enum Op {
    Mkdir(Path),
    Create {
        path: Path,
        exclusive: bool,
        truncate: bool,
        append: bool,
    },
    Open {
        path: Path,
        write: bool,
        truncate: bool,
        append: bool,
    },
    Read {
        slot: usize,
        at: u64,
        length: usize,
    },
    Write {
        slot: usize,
        at: u64,
        length: usize,
        byte: u8,
    },
    Truncate {
        path: Path,
        size: u64,
    },
    Resize {
        slot: usize,
        size: u64,
    },
    Allocate {
        slot: usize,
        at: u64,
        length: u64,
        how: Allocate,
    },
    Copy {
        from: usize,
        at: u64,
        to: usize,
        to_at: u64,
        length: u64,
    },
    Seek {
        slot: usize,
        at: u64,
        to: SeekTo,
    },
    Flush(usize),
    Fsync(usize),
    Release(usize),
    Unlink(Path),
    Rmdir(Path),
    Rename {
        from: Path,
        to: Path,
        flags: RenameFlags,
    },
    Link(Path, Path),
    Symlink(Path, u8),
    Mkfifo(Path),
    Readlink(Path),
    Chmod(Path, u32),
    Utimens(Path, i64),
    Futimens(usize, i64),
    Stat(Path),
    Fstat(usize),
    SetXattr(Path, u8, u8, SetXattr),
    GetXattr(Path, u8),
    RemoveXattr(Path, u8),
    ListXattr(Path),
    List(Path),
    /// What the second client reads.
    Peek(Path),
}

/// What an operation answered, in a form that both sides share.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    Done,
    Bytes(Vec<u8>),
    Count(u64),
    Names(BTreeMap<Vec<u8>, InodeKind>),
    Keys(Vec<Vec<u8>>),
    Stat { kind: InodeKind, mode: u32, links: u32, size: u64, modified_ns: Option<i64> },
}

type Outcome = Result<Answer, &'static str>;

fn word(error: &FsError) -> &'static str {
    match error {
        FsError::NotFound => "not found",
        FsError::Exists => "exists",
        FsError::NotDirectory => "not a directory",
        FsError::IsDirectory => "is a directory",
        FsError::NotEmpty => "not empty",
        FsError::Invalid(_) => "invalid",
        FsError::NoData => "no data",
        FsError::NotPermitted(_) => "not permitted",
        FsError::Stale => "stale",
        _ => "other",
    }
}

#[derive(Clone, Debug)]
struct Thing {
    kind: InodeKind,
    mode: u32,
    links: u32,
    bytes: Vec<u8>,
    /// What other clients see of `bytes`.
    published: Vec<u8>,
    published_mode: u32,
    dirty: bool,
    modified_ns: Option<i64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    names: BTreeMap<u8, usize>,
    target: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    thing: usize,
    write: bool,
    append: bool,
}

/// The reference: a file system as a textbook has it.
struct Reference {
    things: Vec<Thing>,
    slots: Vec<Slot>,
}

fn data(length: usize, byte: u8) -> Vec<u8> {
    (0..length).map(|at| byte.wrapping_add((at / 7) as u8).wrapping_mul(31)).collect()
}

impl Thing {
    fn new(kind: InodeKind, mode: u32) -> Thing {
        Thing {
            kind,
            mode,
            links: 1,
            bytes: Vec::new(),
            published: Vec::new(),
            published_mode: mode,
            dirty: false,
            modified_ns: None,
            xattrs: BTreeMap::new(),
            names: BTreeMap::new(),
            target: Vec::new(),
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if self.bytes.len() < at + bytes.len() {
            self.bytes.resize(at + bytes.len(), 0);
        }
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.touch();
    }

    fn touch(&mut self) {
        self.dirty = true;
        self.modified_ns = None;
    }

    fn publish(&mut self) {
        if self.dirty {
            self.published = self.bytes.clone();
            self.published_mode = self.mode;
            self.dirty = false;
        }
    }

    fn stat(&self) -> Answer {
        let directory = self.kind == InodeKind::Directory;
        Answer::Stat {
            kind: self.kind,
            mode: self.mode,
            links: if directory { 1 } else { self.links },
            size: match self.kind {
                InodeKind::Symlink => self.target.len() as u64,
                InodeKind::Directory => 0,
                _ => self.bytes.len() as u64,
            },
            modified_ns: self.modified_ns,
        }
    }
}

impl Reference {
    fn new() -> Reference {
        Reference { things: vec![Thing::new(InodeKind::Directory, 0o755)], slots: Vec::new() }
    }

    fn find(&self, path: &[u8]) -> Result<usize, &'static str> {
        let mut at = 0;
        for name in path {
            if self.things[at].kind != InodeKind::Directory {
                return Err("not a directory");
            }
            at = *self.things[at].names.get(name).ok_or("not found")?;
        }
        Ok(at)
    }

    fn parent(&self, path: &[u8]) -> Result<(usize, u8), &'static str> {
        let (name, directory) = path.split_last().expect("paths have a name");
        let parent = self.find(directory)?;
        if self.things[parent].kind != InodeKind::Directory {
            return Err("not a directory");
        }
        Ok((parent, *name))
    }

    fn make(&mut self, path: &[u8], thing: Thing) -> Result<usize, &'static str> {
        let (parent, name) = self.parent(path)?;
        if self.things[parent].names.contains_key(&name) {
            return Err("exists");
        }
        self.things.push(thing);
        let made = self.things.len() - 1;
        self.things[parent].names.insert(name, made);
        self.things[parent].modified_ns = None;
        Ok(made)
    }

    fn file(&self, path: &[u8]) -> Result<usize, &'static str> {
        let at = self.find(path)?;
        match self.things[at].kind {
            InodeKind::File => Ok(at),
            InodeKind::Directory => Err("is a directory"),
            _ => Err("invalid"),
        }
    }

    fn open(&mut self, thing: usize, write: bool, truncate: bool, append: bool) -> Outcome {
        self.slots.push(Slot { thing, write, append });
        if truncate && write {
            self.things[thing].bytes.clear();
            self.things[thing].touch();
        }
        Ok(Answer::Done)
    }

    fn slot(&self, slot: usize) -> Option<Slot> {
        (!self.slots.is_empty()).then(|| self.slots[slot % self.slots.len()])
    }

    fn is_below(&self, directory: usize, wanted: usize) -> bool {
        directory == wanted
            || self.things[directory]
                .names
                .values()
                .any(|&child| self.things[child].kind == InodeKind::Directory && self.is_below(child, wanted))
    }

    fn rename(&mut self, from: &[u8], to: &[u8], flags: RenameFlags) -> Outcome {
        let (from_parent, from_name) = self.parent(from)?;
        let (to_parent, to_name) = self.parent(to)?;
        let source = *self.things[from_parent].names.get(&from_name).ok_or("not found")?;
        let target = self.things[to_parent].names.get(&to_name).copied();
        if target.is_some() && flags == RenameFlags::NoReplace {
            return Err("exists");
        }
        let is_directory = |this: &Self, at: usize| this.things[at].kind == InodeKind::Directory;
        if is_directory(self, source) && self.is_below(source, to_parent) {
            return Err("invalid");
        }
        match (target, flags) {
            (None, RenameFlags::Exchange) => return Err("not found"),
            (None, _) => {}
            (Some(target), _) if target == source => return Ok(Answer::Done),
            (Some(target), RenameFlags::Exchange) => {
                if is_directory(self, target) && self.is_below(target, from_parent) {
                    return Err("invalid");
                }
                self.things[from_parent].names.insert(from_name, target);
                self.things[to_parent].names.insert(to_name, source);
                self.things[from_parent].modified_ns = None;
                self.things[to_parent].modified_ns = None;
                return Ok(Answer::Done);
            }
            (Some(target), _) => {
                match (is_directory(self, source), is_directory(self, target)) {
                    (true, true) if !self.things[target].names.is_empty() => return Err("not empty"),
                    (true, false) => return Err("not a directory"),
                    (false, true) => return Err("is a directory"),
                    _ => {}
                }
                self.things[target].links -= 1;
            }
        }
        self.things[from_parent].names.remove(&from_name);
        self.things[to_parent].names.insert(to_name, source);
        self.things[from_parent].modified_ns = None;
        self.things[to_parent].modified_ns = None;
        Ok(Answer::Done)
    }

    fn run(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Mkdir(path) => self.make(path, Thing::new(InodeKind::Directory, 0o755)).map(|_| Answer::Done),
            Op::Mkfifo(path) => self.make(path, Thing::new(InodeKind::Fifo, 0o644)).map(|_| Answer::Done),
            Op::Symlink(path, target) => {
                let mut thing = Thing::new(InodeKind::Symlink, 0o777);
                thing.target = vec![*target; 5];
                self.make(path, thing).map(|_| Answer::Done)
            }
            Op::Create { path, exclusive, truncate, append } => {
                match self.make(path, Thing::new(InodeKind::File, 0o644)) {
                    Ok(made) => self.open(made, true, false, *append),
                    Err("exists") if !exclusive => {
                        let at = self.file(path)?;
                        self.open(at, true, *truncate, *append)
                    }
                    Err(error) => Err(error),
                }
            }
            Op::Open { path, write, truncate, append } => {
                let at = self.file(path)?;
                self.open(at, *write, *truncate, *append)
            }
            Op::Unlink(path) => {
                let (parent, name) = self.parent(path)?;
                let at = *self.things[parent].names.get(&name).ok_or("not found")?;
                if self.things[at].kind == InodeKind::Directory {
                    return Err("is a directory");
                }
                self.things[parent].names.remove(&name);
                self.things[parent].modified_ns = None;
                self.things[at].links -= 1;
                Ok(Answer::Done)
            }
            Op::Rmdir(path) => {
                let (parent, name) = self.parent(path)?;
                let at = *self.things[parent].names.get(&name).ok_or("not found")?;
                match &self.things[at] {
                    thing if thing.kind != InodeKind::Directory => return Err("not a directory"),
                    thing if !thing.names.is_empty() => return Err("not empty"),
                    _ => {}
                }
                self.things[parent].names.remove(&name);
                self.things[parent].modified_ns = None;
                Ok(Answer::Done)
            }
            Op::Rename { from, to, flags } => self.rename(from, to, *flags),
            Op::Link(from, to) => {
                let at = self.find(from)?;
                let (parent, name) = self.parent(to)?;
                if self.things[at].kind == InodeKind::Directory {
                    return Err("not permitted");
                }
                if self.things[parent].names.contains_key(&name) {
                    return Err("exists");
                }
                self.things[parent].names.insert(name, at);
                self.things[parent].modified_ns = None;
                self.things[at].links += 1;
                Ok(Answer::Done)
            }
            Op::Truncate { path, size } => {
                let at = self.file(path)?;
                self.things[at].bytes.resize(*size as usize, 0);
                self.things[at].touch();
                self.things[at].publish();
                Ok(Answer::Done)
            }
            Op::Readlink(path) => {
                let at = self.find(path)?;
                match self.things[at].kind {
                    InodeKind::Symlink => Ok(Answer::Bytes(self.things[at].target.clone())),
                    _ => Err("invalid"),
                }
            }
            Op::Chmod(path, mode) => {
                let at = self.find(path)?;
                self.things[at].mode = *mode;
                if !self.things[at].dirty {
                    self.things[at].published_mode = *mode;
                }
                Ok(Answer::Done)
            }
            Op::Utimens(path, time) => {
                let at = self.find(path)?;
                self.things[at].modified_ns = Some(*time);
                Ok(Answer::Done)
            }
            Op::Stat(path) => Ok(self.things[self.find(path)?].stat()),
            Op::SetXattr(path, name, value, how) => {
                let at = self.find(path)?;
                let name = xattr(*name);
                match (how, self.things[at].xattrs.contains_key(&name)) {
                    (SetXattr::Create, true) => return Err("exists"),
                    (SetXattr::Replace, false) => return Err("no data"),
                    _ => {}
                }
                self.things[at].xattrs.insert(name, vec![*value; 9]);
                Ok(Answer::Done)
            }
            Op::GetXattr(path, name) => {
                let at = self.find(path)?;
                self.things[at].xattrs.get(&xattr(*name)).cloned().map(Answer::Bytes).ok_or("no data")
            }
            Op::RemoveXattr(path, name) => {
                let at = self.find(path)?;
                self.things[at].xattrs.remove(&xattr(*name)).map(|_| Answer::Done).ok_or("no data")
            }
            Op::ListXattr(path) => {
                let at = self.find(path)?;
                Ok(Answer::Keys(self.things[at].xattrs.keys().cloned().collect()))
            }
            Op::List(path) => {
                let at = self.find(path)?;
                if self.things[at].kind != InodeKind::Directory {
                    return Err("not a directory");
                }
                let names = self.things[at].names.iter();
                Ok(Answer::Names(names.map(|(name, at)| (vec![*name], self.things[*at].kind)).collect()))
            }
            Op::Peek(path) => {
                let at = self.file(path)?;
                Ok(Answer::Bytes(self.things[at].published.clone()))
            }
            _ => self.run_on_slot(op),
        }
    }

    fn run_on_slot(&mut self, op: &Op) -> Outcome {
        let slot = |number: usize| self.slot(number).ok_or("no slot");
        match op {
            Op::Read { slot: number, at, length } => {
                let bytes = &self.things[slot(*number)?.thing].bytes;
                let at = (*at as usize).min(bytes.len());
                Ok(Answer::Bytes(bytes[at..(at + length).min(bytes.len())].to_vec()))
            }
            Op::Write { slot: number, at, length, byte } => {
                let slot = slot(*number)?;
                if !slot.write {
                    return Err("invalid");
                }
                let thing = &mut self.things[slot.thing];
                let at = if slot.append { thing.bytes.len() } else { *at as usize };
                thing.put(at, &data(*length, *byte));
                Ok(Answer::Count(*length as u64))
            }
            Op::Resize { slot: number, size } => {
                let slot = slot(*number)?;
                if !slot.write {
                    return Err("invalid");
                }
                self.things[slot.thing].bytes.resize(*size as usize, 0);
                self.things[slot.thing].touch();
                Ok(Answer::Done)
            }
            Op::Allocate { slot: number, at, length, how } => {
                let slot = slot(*number)?;
                if !slot.write {
                    return Err("invalid");
                }
                let thing = &mut self.things[slot.thing];
                let (at, end, size) = (*at as usize, (at + length) as usize, thing.bytes.len());
                match how {
                    Allocate::KeepSize => {}
                    Allocate::Extend if end <= size => {}
                    Allocate::Extend => thing.put(size, &vec![0; end - size]),
                    Allocate::PunchHole | Allocate::ZeroRangeKeepSize => {
                        let end = end.min(size);
                        thing.put(at.min(end), &vec![0; end - at.min(end)]);
                    }
                    Allocate::ZeroRange => thing.put(at, &vec![0; end - at]),
                }
                Ok(Answer::Done)
            }
            Op::Copy { from, at, to, to_at, length } => {
                let (from, to) = (slot(*from)?, slot(*to)?);
                if !to.write {
                    return Err("invalid");
                }
                let source = &self.things[from.thing].bytes;
                let at = (*at as usize).min(source.len());
                let bytes = source[at..(at + *length as usize).min(source.len())].to_vec();
                if bytes.is_empty() {
                    return Ok(Answer::Count(0));
                }
                let to_at = *to_at as usize;
                if from.thing == to.thing && at < to_at + bytes.len() && to_at < at + bytes.len() {
                    return Err("invalid");
                }
                self.things[to.thing].put(to_at, &bytes);
                Ok(Answer::Count(bytes.len() as u64))
            }
            Op::Futimens(number, time) => {
                let slot = slot(*number)?;
                let thing = &mut self.things[slot.thing];
                if thing.links == 0 && !thing.dirty {
                    thing.dirty = true;
                }
                thing.modified_ns = Some(*time);
                Ok(Answer::Done)
            }
            Op::Fstat(number) => Ok(self.things[slot(*number)?.thing].stat()),
            Op::Flush(number) | Op::Fsync(number) => {
                let slot = slot(*number)?;
                if self.things[slot.thing].links > 0 && (slot.write || matches!(op, Op::Fsync(_))) {
                    self.things[slot.thing].publish();
                }
                Ok(Answer::Done)
            }
            Op::Release(number) => {
                let released = slot(*number)?;
                let count = self.slots.len();
                self.slots.remove(number % count);
                if released.write && self.things[released.thing].links > 0 {
                    self.things[released.thing].publish();
                }
                Ok(Answer::Done)
            }
            Op::Seek { slot: number, at, to } => {
                // Where holes are is the file system's affair; only what must be true is checked.
                let bytes = &self.things[slot(*number)?.thing].bytes;
                let data = bytes[(*at as usize).min(bytes.len())..].iter().any(|byte| *byte != 0);
                match to {
                    _ if *at >= bytes.len() as u64 => Err("no data"),
                    SeekTo::Data if !data => Ok(Answer::Done),
                    _ => Ok(Answer::Done),
                }
            }
            _ => unreachable!("handled by path"),
        }
    }
}

fn xattr(name: u8) -> Vec<u8> {
    vec![b'u', b's', b'e', b'r', b'.', name]
}

/// The file system under test: one client that does all, and a second that peeks.
struct Tested {
    world: Arc<World>,
    client: Client,
    second: Client,
    slots: Vec<(FileHandleId, Ino)>,
}

const WHO: Caller = Caller { uid: 1000, gid: 1000, thread: 77 };

impl Tested {
    fn new() -> Tested {
        let world = World::new();
        let (client, second) = (world.client(1, &[]), world.client(2, &[]));
        Tested { world, client, second, slots: Vec::new() }
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

    fn stat(&self, attributes: Attributes) -> Answer {
        Answer::Stat {
            kind: attributes.kind,
            mode: attributes.mode,
            links: attributes.links,
            size: attributes.size,
            modified_ns: Some(attributes.modified_ns),
        }
    }

    fn try_run(&mut self, op: &Op, lookups: &mut Vec<Ino>) -> Result<Answer, FsError> {
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
                return Ok(Answer::Bytes(files.readlink(&WHO, ino)?));
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
                return Ok(Answer::Bytes(files.getxattr(&WHO, ino, &xattr(*name))?));
            }
            Op::RemoveXattr(path, name) => {
                let ino = self.find(path, lookups)?;
                files.removexattr(&WHO, ino, &xattr(*name))?;
            }
            Op::ListXattr(path) => {
                let ino = self.find(path, lookups)?;
                return Ok(Answer::Keys(files.listxattr(&WHO, ino)?));
            }
            Op::List(path) => {
                let ino = self.find(path, lookups)?;
                return Ok(Answer::Names(list(&files, ino)?));
            }
            Op::Peek(path) => return peek(&self.second, &parts(path)).map(Answer::Bytes),
            _ => return self.try_on_slot(op),
        }
        Ok(Answer::Done)
    }

    fn try_on_slot(&mut self, op: &Op) -> Result<Answer, FsError> {
        let files = self.client.files.clone();
        match op {
            Op::Read { slot, at, length } => {
                return Ok(Answer::Bytes(files.read(self.slot(*slot)?.0, *at, *length)?));
            }
            Op::Write { slot, at, length, byte } => {
                let bytes = data(*length, *byte);
                let count = files.write(self.slot(*slot)?.0, *at, &bytes, WriteSource::Call)?;
                return Ok(Answer::Count(count as u64));
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
                return Ok(Answer::Count(files.copy_file_range(from, *at, to, *to_at, *length)?));
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
                    // No data up to the end: then there are only zeroes.
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
        Ok(Answer::Done)
    }
}

/// What is skipped to reach data is zero; a hole found is zero, or the end.
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
        files.readdir(handle, offset, &mut |item| {
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

/// What another client reads of a file that it opens now.
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
            Ok(Answer::Stat { kind, mode, links, size, modified_ns }),
            Ok(Answer::Stat { kind: k, mode: m, links: l, size: s, modified_ns: t }),
        ) => {
            let size = *kind == InodeKind::Directory || size == s;
            (kind, mode, links) == (k, m, l) && size && modified_ns.is_none_or(|time| *t == Some(time))
        }
        (Err("no slot"), Err("other")) => true,
        _ => expected == found,
    }
}

/// Runs operations on both and compares every answer, then the whole tree through a fresh mount.
pub fn check(ops: &[Op]) -> Result<(), TestCaseError> {
    let mut reference = Reference::new();
    let mut tested = Tested::new();
    for (number, op) in ops.iter().enumerate() {
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
    let fresh = tested.world.client(3, &[]);
    compare_trees(&reference, 0, &fresh, Ino::ROOT, &mut Vec::new())?;
    prop_assert!(tested.client.files.save_unsaved("test").unwrap().is_none(), "all is published");
    prop_assert_eq!(tested.world.pinned(), 0, "nothing open, nothing pinned");
    prop_assert!(tested.client.files.nodes.all().is_empty(), "all is forgotten");
    Ok(())
}

fn brief(outcome: &Outcome) -> String {
    match outcome {
        Ok(Answer::Bytes(bytes)) => {
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
}
