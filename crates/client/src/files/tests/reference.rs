//! The reference: operations, and a textbook file system made of maps and arrays only.

use super::super::*;
use std::collections::BTreeMap;

/// A path: up to two directories and a name, from a small alphabet.
pub type Path = Vec<u8>;

/// One operation. `usize` fields called `slot` select an open file.
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

/// The result of an operation, in a form that both sides share.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    Done,
    Bytes(Vec<u8>),
    Count(u64),
    Names(BTreeMap<Vec<u8>, InodeKind>),
    Keys(Vec<Vec<u8>>),
    Stat { kind: InodeKind, mode: u32, links: u32, size: u64, modified_ns: Option<i64> },
}

pub type Outcome = Result<Reply, &'static str>;

pub fn word(error: &FsError) -> &'static str {
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
pub struct ReferenceNode {
    pub kind: InodeKind,
    pub mode: u32,
    pub links: u32,
    pub bytes: Vec<u8>,
    /// What other clients see of `bytes`.
    published: Vec<u8>,
    published_mode: u32,
    dirty: bool,
    pub modified_ns: Option<i64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub names: BTreeMap<u8, usize>,
    target: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub struct Slot {
    thing: usize,
    write: bool,
    append: bool,
}

/// The reference: a textbook file system.
pub struct Reference {
    pub things: Vec<ReferenceNode>,
    slots: Vec<Slot>,
}

pub fn data(length: usize, byte: u8) -> Vec<u8> {
    (0..length).map(|at| byte.wrapping_add((at / 7) as u8).wrapping_mul(31)).collect()
}

impl ReferenceNode {
    fn new(kind: InodeKind, mode: u32) -> ReferenceNode {
        ReferenceNode {
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

    fn stat(&self) -> Reply {
        let directory = self.kind == InodeKind::Directory;
        Reply::Stat {
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
    pub fn new() -> Reference {
        Reference { things: vec![ReferenceNode::new(InodeKind::Directory, 0o755)], slots: Vec::new() }
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

    fn make(&mut self, path: &[u8], mut thing: ReferenceNode) -> Result<usize, &'static str> {
        let (parent, name) = self.parent(path)?;
        if self.things[parent].names.contains_key(&name) {
            return Err("exists");
        }
        if thing.kind == InodeKind::Directory {
            // Set-group-ID is inherited.
            thing.mode |= self.things[parent].mode & 0o2000;
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
        Ok(Reply::Done)
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
            (Some(target), _) if target == source => return Ok(Reply::Done),
            (Some(target), RenameFlags::Exchange) => {
                if is_directory(self, target) && self.is_below(target, from_parent) {
                    return Err("invalid");
                }
                self.things[from_parent].names.insert(from_name, target);
                self.things[to_parent].names.insert(to_name, source);
                self.things[from_parent].modified_ns = None;
                self.things[to_parent].modified_ns = None;
                return Ok(Reply::Done);
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
        Ok(Reply::Done)
    }

    /// Performs one operation.
    pub fn run(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Mkdir(path) => {
                self.make(path, ReferenceNode::new(InodeKind::Directory, 0o755)).map(|_| Reply::Done)
            }
            Op::Mkfifo(path) => {
                self.make(path, ReferenceNode::new(InodeKind::Fifo, 0o644)).map(|_| Reply::Done)
            }
            Op::Symlink(path, target) => {
                let mut thing = ReferenceNode::new(InodeKind::Symlink, 0o777);
                thing.target = vec![*target; 5];
                self.make(path, thing).map(|_| Reply::Done)
            }
            Op::Create { path, exclusive, truncate, append } => {
                match self.make(path, ReferenceNode::new(InodeKind::File, 0o644)) {
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
                Ok(Reply::Done)
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
                Ok(Reply::Done)
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
                Ok(Reply::Done)
            }
            Op::Truncate { path, size } => {
                let at = self.file(path)?;
                self.things[at].bytes.resize(*size as usize, 0);
                self.things[at].touch();
                self.things[at].publish();
                Ok(Reply::Done)
            }
            Op::Readlink(path) => {
                let at = self.find(path)?;
                match self.things[at].kind {
                    InodeKind::Symlink => Ok(Reply::Bytes(self.things[at].target.clone())),
                    _ => Err("invalid"),
                }
            }
            Op::Chmod(path, mode) => {
                let at = self.find(path)?;
                self.things[at].mode = *mode;
                if !self.things[at].dirty {
                    self.things[at].published_mode = *mode;
                }
                Ok(Reply::Done)
            }
            Op::Utimens(path, time) => {
                let at = self.find(path)?;
                self.things[at].modified_ns = Some(*time);
                Ok(Reply::Done)
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
                Ok(Reply::Done)
            }
            Op::GetXattr(path, name) => {
                let at = self.find(path)?;
                self.things[at].xattrs.get(&xattr(*name)).cloned().map(Reply::Bytes).ok_or("no data")
            }
            Op::RemoveXattr(path, name) => {
                let at = self.find(path)?;
                self.things[at].xattrs.remove(&xattr(*name)).map(|_| Reply::Done).ok_or("no data")
            }
            Op::ListXattr(path) => {
                let at = self.find(path)?;
                Ok(Reply::Keys(self.things[at].xattrs.keys().cloned().collect()))
            }
            Op::List(path) => {
                let at = self.find(path)?;
                if self.things[at].kind != InodeKind::Directory {
                    return Err("not a directory");
                }
                let names = self.things[at].names.iter();
                Ok(Reply::Names(names.map(|(name, at)| (vec![*name], self.things[*at].kind)).collect()))
            }
            Op::Peek(path) => {
                let at = self.file(path)?;
                Ok(Reply::Bytes(self.things[at].published.clone()))
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
                Ok(Reply::Bytes(bytes[at..(at + length).min(bytes.len())].to_vec()))
            }
            Op::Write { slot: number, at, length, byte } => {
                let slot = slot(*number)?;
                if !slot.write {
                    return Err("invalid");
                }
                let thing = &mut self.things[slot.thing];
                let at = if slot.append { thing.bytes.len() } else { *at as usize };
                thing.put(at, &data(*length, *byte));
                Ok(Reply::Count(*length as u64))
            }
            Op::Resize { slot: number, size } => {
                let slot = slot(*number)?;
                if !slot.write {
                    return Err("invalid");
                }
                self.things[slot.thing].bytes.resize(*size as usize, 0);
                self.things[slot.thing].touch();
                Ok(Reply::Done)
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
                Ok(Reply::Done)
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
                    return Ok(Reply::Count(0));
                }
                let to_at = *to_at as usize;
                if from.thing == to.thing && at < to_at + bytes.len() && to_at < at + bytes.len() {
                    return Err("invalid");
                }
                self.things[to.thing].put(to_at, &bytes);
                Ok(Reply::Count(bytes.len() as u64))
            }
            Op::Futimens(number, time) => {
                let slot = slot(*number)?;
                let thing = &mut self.things[slot.thing];
                if thing.links == 0 && !thing.dirty {
                    thing.dirty = true;
                }
                thing.modified_ns = Some(*time);
                Ok(Reply::Done)
            }
            Op::Fstat(number) => Ok(self.things[slot(*number)?.thing].stat()),
            Op::Flush(number) | Op::Fsync(number) => {
                let slot = slot(*number)?;
                if self.things[slot.thing].links > 0 && (slot.write || matches!(op, Op::Fsync(_))) {
                    self.things[slot.thing].publish();
                }
                Ok(Reply::Done)
            }
            Op::Release(number) => {
                let released = slot(*number)?;
                let count = self.slots.len();
                self.slots.remove(number % count);
                if released.write && self.things[released.thing].links > 0 {
                    self.things[released.thing].publish();
                }
                Ok(Reply::Done)
            }
            Op::Seek { slot: number, at, to } => {
                // The file system decides where holes are; only what must be true is checked.
                let bytes = &self.things[slot(*number)?.thing].bytes;
                let data = bytes[(*at as usize).min(bytes.len())..].iter().any(|byte| *byte != 0);
                match to {
                    _ if *at >= bytes.len() as u64 => Err("no data"),
                    SeekTo::Data if !data => Ok(Reply::Done),
                    _ => Ok(Reply::Done),
                }
            }
            _ => unreachable!("handled by path"),
        }
    }
}

pub fn xattr(name: u8) -> Vec<u8> {
    vec![b'u', b's', b'e', b'r', b'.', name]
}
