//! Plans what this device lost, as changes of the state that is there now. This module does no input or output.
//!
//! A device's table changes by that device's operations only, so what differs between its own table as it was and as it is
//! left is what *it* wrote last. With the content of a file go the names that the file had, and the directories above it
//! that are not there any more. A name that is gone says nothing of who removed it; it is removed again where nobody else
//! made anything that was lost and could have been that, and with a file of ours that had another name by then.
//!
//! Each change says what was there when it was made, as [`Replay`](crate::files::Replay) wants it: what the restore left.
//! Where somebody has changed it since, that is not known, and nothing is said; the change gives way then.

use crate::files::{EntryChange, InodeChange, JournalInode, Record};
use holdfast_content::{Content, Entry, Handle, Inode, InodeKind, LiveMap, PrincipalId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Most directories that are asked of the server, as they are not readable on this machine.
const ASKED_MAX: usize = 4096;
/// Most things changed by one operation.
pub const BATCH_CHANGES: usize = 500;
/// Names that nobody removes again, of which the path is told.
const LEFT_TOLD: usize = 100;

/// Names of a directory.
pub type Names = BTreeMap<Vec<u8>, Entry>;

/// A file's inode or names cannot be read in one of the states. That is never taken for a file that is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreadable;

/// One state of the file system: as it was before the restore, or as it is now.
pub trait TreeState {
    /// The inode of a file, if there is one.
    fn inode(&self, file: Handle) -> Result<Option<Arc<Inode>>, Unreadable>;

    /// All names in a directory.
    fn names(&self, directory: Handle) -> Result<Names, Unreadable>;

    /// The inode of a file, if there is one and it can be read.
    fn at_hand(&self, file: Handle) -> Option<Arc<Inode>> {
        self.inode(file).ok().flatten()
    }

    /// Whether a file is certainly not there.
    fn lacks(&self, file: Handle) -> bool {
        self.inode(file) == Ok(None)
    }
}

/// What is known of the restore beside the two states.
pub trait RestoreFacts {
    /// Whether a file is now what the restore left, because nobody has changed it since.
    fn is_as_restored(&self, file: Handle) -> bool;

    /// Whether of all whose changes were lost, or who have changed anything since, only this device could have changed
    /// files of this owner.
    fn is_ours_alone(&self, owner: PrincipalId) -> bool;

    /// Whether this device may write this owner's files, and the owner is who it was.
    fn may_write(&self, owner: PrincipalId) -> bool;
}

/// The operations that make again what a restore lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ResendPlan {
    /// One operation each, in their order.
    pub batches: Vec<Record>,
    /// Paths of some names that are there again, since it is not known who had removed them.
    pub left: Vec<Vec<u8>>,
    /// Number of such names, also those not listed.
    pub left_count: u64,
    /// Files that this device wrote and may not write any more.
    pub foreign: Vec<Vec<u8>>,
    /// Files that this device wrote whose names cannot be told, since their directories cannot be read as they were.
    pub unnamed: Vec<Handle>,
    /// Files that this device wrote of which it cannot be told what they were.
    pub unread: Vec<Vec<u8>>,
}

/// A name that stands for something else than before the restore.
struct Difference {
    directory: Handle,
    /// Path of the directory.
    path: Vec<u8>,
    name: Vec<u8>,
    was: Option<Entry>,
    is: Option<Entry>,
    time_ns: i64,
}

impl Difference {
    fn full_path(&self) -> Vec<u8> {
        joined(&self.path, &self.name)
    }
}

/// Plans. `was` reads what is on this machine, `was_far` asks the server, too. `mine`: files that this device wrote last, and
/// what its own table says of them now.
pub fn plan(
    was: &dyn TreeState,
    was_far: &dyn TreeState,
    is: &dyn TreeState,
    mine: &BTreeMap<Handle, Option<Arc<Inode>>>,
    known: &dyn RestoreFacts,
    now_ns: i64,
) -> ResendPlan {
    let mut planner = Planner {
        was,
        was_far,
        is,
        mine,
        known,
        paths: HashMap::new(),
        differences: Vec::new(),
        inodes: BTreeMap::new(),
        entries: BTreeMap::new(),
        depths: HashMap::new(),
        planned: ResendPlan::default(),
    };
    planner.walk();
    planner.files();
    planner.names();
    planner.directories_above();
    let Planner { inodes, entries, depths, mut planned, .. } = planner;
    planned.batches = batches(inodes, entries, &depths, now_ns);
    planned
}

struct Planner<'a> {
    was: &'a dyn TreeState,
    was_far: &'a dyn TreeState,
    is: &'a dyn TreeState,
    mine: &'a BTreeMap<Handle, Option<Arc<Inode>>>,
    known: &'a dyn RestoreFacts,
    /// Names of directories and of files in `mine`, as they were.
    paths: HashMap<Handle, Vec<u8>>,
    differences: Vec<Difference>,
    inodes: BTreeMap<Handle, InodeChange>,
    entries: BTreeMap<(Handle, Vec<u8>), EntryChange>,
    /// Number of directories above each directory.
    depths: HashMap<Handle, usize>,
    planned: ResendPlan,
}

impl Planner<'_> {
    /// Goes through the directories as they were, and notes which names are others now. What is not readable on this machine,
    /// as another device had changed it last, is asked of the server only if some of `mine` has no name without it; where the
    /// server has lost it as well, the walk goes on through the directory as it is now.
    fn walk(&mut self) {
        let mut unnamed = self.wanting_names();
        let mut is_unread = false;
        let mut entered = HashSet::new();
        let mut unread = VecDeque::new();
        let mut stack = vec![(Handle::ROOT, Vec::new(), 0)];
        let mut asked = 0;
        loop {
            let near = stack.pop();
            let is_far = near.is_none();
            let Some((directory, path, depth)) = near.or_else(|| {
                asked += 1;
                let is_wanted = !unnamed.is_empty() && asked <= ASKED_MAX;
                unread.pop_front().filter(|_| is_wanted)
            }) else {
                break;
            };
            if !is_far && !entered.insert(directory) {
                continue;
            }
            let side = if is_far { self.was_far } else { self.was };
            let was = side.names(directory);
            let names = match (&was, is_far) {
                (Ok(names), _) => names.clone(),
                (Err(Unreadable), false) => {
                    match self.known.may_write(directory.principal) {
                        true => unread.push_front((directory, path, depth)),
                        false => unread.push_back((directory, path, depth)),
                    }
                    continue;
                }
                (Err(Unreadable), true) => {
                    is_unread = true;
                    self.is.names(directory).unwrap_or_default()
                }
            };
            self.depths.insert(directory, depth);
            for (name, entry) in &names {
                if entry.kind == InodeKind::Directory {
                    stack.push((entry.handle, joined(&path, name), depth + 1));
                }
                if entry.kind == InodeKind::Directory || self.mine.contains_key(&entry.handle) {
                    self.paths.entry(entry.handle).or_insert_with(|| joined(&path, name));
                    unnamed.remove(&entry.handle);
                }
            }
            if was.is_ok() {
                self.compare(directory, &path, names);
            }
        }
        // Else they had none: they were removed while they were open.
        if is_unread || !unread.is_empty() {
            self.planned.unnamed = unnamed.into_iter().collect();
        }
    }

    /// Files in `mine` that programs knew by a name.
    fn wanting_names(&self) -> BTreeSet<Handle> {
        let kept = |owner| self.was.names(Handle::conflict_copies(owner)).unwrap_or_default().into_values();
        let owners: HashSet<PrincipalId> = self.mine.keys().map(|handle| handle.principal).collect();
        let kept: HashSet<Handle> = owners.into_iter().flat_map(kept).map(|entry| entry.handle).collect();
        let is_named = |handle: &Handle| match self.as_written(*handle) {
            Ok(inode) => inode.is_some_and(|inode| inode.links > 0),
            Err(Unreadable) => true,
        };
        let known = self.mine.keys().filter(|handle| !handle.is_nameless_by_design());
        let others = known.filter(|handle| **handle != Handle::ROOT && !kept.contains(handle));
        others.filter(|handle| is_named(handle)).copied().collect()
    }

    /// A file that this device wrote, from this machine or else from the server.
    fn as_written(&self, file: Handle) -> Result<Option<Arc<Inode>>, Unreadable> {
        self.was.inode(file).or_else(|Unreadable| self.was_far.inode(file))
    }

    fn compare(&mut self, directory: Handle, path: &[u8], names: Names) {
        let Ok(is) = self.is.inode(directory) else { return };
        let was = self.was.at_hand(directory);
        if was.is_some() && was == is {
            return;
        }
        let present = match is {
            None => Names::new(),
            Some(_) => match self.is.names(directory) {
                Ok(present) => present,
                Err(Unreadable) => return,
            },
        };
        let time_ns = was.map_or(0, |inode| inode.modified_ns);
        let all: BTreeSet<&Vec<u8>> = names.keys().chain(present.keys()).collect();
        for name in all {
            let (was, is) = (names.get(name).copied(), present.get(name).copied());
            if was != is {
                let (path, name) = (path.to_vec(), name.clone());
                self.differences.push(Difference { directory, path, name, was, is, time_ns });
            }
        }
    }

    /// Plans what this device had written into files.
    fn files(&mut self) {
        for (&handle, left) in self.mine {
            // Files without a name, such as conflict copies and marks, are not for programs.
            let Some(path) = self.paths.get(&handle).cloned() else { continue };
            let new = match self.as_written(handle) {
                Ok(Some(new)) => new,
                Ok(None) => continue,
                Err(Unreadable) => {
                    self.planned.unread.push(path);
                    continue;
                }
            };
            if !self.known.may_write(handle.principal) {
                self.planned.foreign.push(path);
                continue;
            }
            let seen = match self.is.inode(handle) {
                Ok(Some(present)) if self.known.is_as_restored(handle) => Some(present),
                Ok(None) => left.clone(),
                _ => None,
            };
            self.set(handle, path, seen, Some(new));
        }
    }

    fn set(&mut self, handle: Handle, path: Vec<u8>, seen: Option<Arc<Inode>>, new: Option<Arc<Inode>>) {
        let (seen, new) = (seen.map(attributes_only), new.map(attributes_only));
        self.inodes.entry(handle).or_insert(InodeChange { handle, path, seen, new });
    }

    /// Plans that a file changes nothing but its names.
    fn touch(&mut self, handle: Handle, path: Vec<u8>) {
        if let Some(present) = self.is.at_hand(handle) {
            self.set(handle, path, Some(present.clone()), Some(present));
        }
    }

    /// The names of what was written, and all others that only this device can have changed.
    fn names(&mut self) {
        for difference in std::mem::take(&mut self.differences) {
            let Difference { directory, was, is, .. } = &difference;
            if self.known.may_write(directory.principal) {
                let alone = self.known.is_ours_alone(directory.principal);
                let written = was.is_some_and(|entry| self.inodes.contains_key(&entry.handle));
                match (was, is) {
                    (Some(_), _) if alone || written => self.give(&difference),
                    (None, Some(gone)) => self.take(&difference, *gone, alone),
                    _ => {}
                }
            }
            self.differences.push(difference);
        }
    }

    /// Plans that a file gets back a name that it had.
    fn give(&mut self, difference: &Difference) {
        let (Some(was), path) = (difference.was, difference.full_path()) else { return };
        let change = self.inodes.get(&was.handle);
        // Others have removed it since: it gets a name beside where it was, if it was written.
        let is_gone = self.is.lacks(was.handle);
        if is_gone && change.is_some_and(|change| change.seen.is_some()) {
            return;
        }
        if change.is_none() {
            self.touch(was.handle, path.clone());
        }
        // A file that others have put there since keeps its name.
        let seen = difference.is.filter(|there| self.known.is_as_restored(there.handle));
        if let Some(there) = seen {
            self.lose(there, path);
        }
        self.name(difference, seen);
    }

    /// Plans that a file loses a name.
    fn lose(&mut self, entry: Entry, path: Vec<u8>) {
        if self.inodes.contains_key(&entry.handle) {
            return;
        }
        match (self.was.inode(entry.handle), self.is.inode(entry.handle)) {
            (Ok(None), Ok(Some(present))) if self.known.may_write(entry.handle.principal) => {
                self.set(entry.handle, path.clone(), Some(present), None);
                if entry.kind == InodeKind::Directory {
                    self.empty(entry.handle, &path);
                }
            }
            _ => self.touch(entry.handle, path),
        }
    }

    /// Handles a name that this device had removed and that is there again.
    fn take(&mut self, difference: &Difference, gone: Entry, alone: bool) {
        let as_restored = self.known.is_as_restored(gone.handle);
        let written = self.inodes.get(&gone.handle).is_some_and(|change| change.new.is_some());
        if !as_restored || !(alone || written) {
            if as_restored && self.was.lacks(gone.handle) {
                self.leave(difference.full_path());
            }
            return;
        }
        self.lose(gone, difference.full_path());
        self.name(difference, Some(gone));
    }

    fn leave(&mut self, path: Vec<u8>) {
        self.planned.left_count += 1;
        if self.planned.left.len() < LEFT_TOLD {
            self.planned.left.push(path);
        }
    }

    /// A removed directory's files were removed too, or moved elsewhere, where they have names by now.
    fn empty(&mut self, directory: Handle, path: &[u8]) {
        let mut stack = vec![(directory, path.to_vec())];
        let mut entered = HashSet::new();
        while let Some((directory, path)) = stack.pop() {
            let ours = self.known.is_ours_alone(directory.principal);
            if !ours || !entered.insert(directory) {
                continue;
            }
            let depth = path.iter().filter(|&&byte| byte == b'/').count() + 1;
            self.depths.insert(directory, depth);
            for (name, entry) in self.is.names(directory).unwrap_or_default() {
                if !self.known.is_as_restored(entry.handle) {
                    continue;
                }
                let child = joined(&path, &name);
                let gone = self.was.lacks(entry.handle);
                if gone && !self.known.may_write(entry.handle.principal) {
                    continue;
                }
                if !self.inodes.contains_key(&entry.handle) {
                    match self.is.at_hand(entry.handle) {
                        Some(present) if gone => self.set(entry.handle, child.clone(), Some(present), None),
                        _ => self.touch(entry.handle, child.clone()),
                    }
                }
                if gone && entry.kind == InodeKind::Directory {
                    stack.push((entry.handle, child));
                }
                let key = (directory, name.clone());
                let (path, time_ns) = (path.clone(), 0);
                let change = EntryChange { directory, path, name, seen: Some(entry), new: None, time_ns };
                self.entries.insert(key, change);
            }
        }
    }

    fn name(&mut self, difference: &Difference, seen: Option<Entry>) {
        let Difference { directory, path, name, was, time_ns, .. } = difference;
        let change = EntryChange {
            directory: *directory,
            path: path.clone(),
            name: name.clone(),
            seen,
            new: *was,
            time_ns: *time_ns,
        };
        self.entries.insert((*directory, name.clone()), change);
    }

    /// The directories that names are put into, where they are not there: whoever made them.
    fn directories_above(&mut self) {
        let mut wanted: Vec<Handle> = self.entries.values().map(|change| change.directory).collect();
        let mut asked = HashSet::new();
        while let Some(directory) = wanted.pop() {
            if !asked.insert(directory) || !self.is.lacks(directory) {
                continue;
            }
            let Some(inode) = self.was.at_hand(directory) else { continue };
            if !self.known.may_write(directory.principal) {
                continue;
            }
            let path = self.paths.get(&directory).cloned().unwrap_or_default();
            self.set(directory, path, None, Some(inode));
            let differences = std::mem::take(&mut self.differences);
            let named = |difference: &&Difference| difference.was.is_some_and(|was| was.handle == directory);
            for difference in differences.iter().filter(named) {
                let key = (difference.directory, difference.name.clone());
                let writable = self.known.may_write(difference.directory.principal);
                if writable && !self.entries.contains_key(&key) {
                    self.give(difference);
                    wanted.push(difference.directory);
                }
            }
            self.differences = differences;
        }
    }
}

/// A directory's inode without its names, which are made one by one.
fn attributes_only(inode: Arc<Inode>) -> JournalInode {
    match &inode.content {
        Content::Directory(_) => JournalInode(Arc::new(Inode {
            content: Content::Directory(LiveMap::EMPTY),
            ..Inode::clone(&inode)
        })),
        _ => JournalInode(inode),
    }
}

/// Cuts the plan into operations that each fit a certificate.
fn batches(
    inodes: BTreeMap<Handle, InodeChange>,
    entries: BTreeMap<(Handle, Vec<u8>), EntryChange>,
    depths: &HashMap<Handle, usize>,
    now_ns: i64,
) -> Vec<Record> {
    let mut batches: Vec<Record> = Vec::new();
    for group in groups(inodes.into_values(), entries.into_values(), depths) {
        match batches.last_mut() {
            Some(batch) if batch.changes() + group.changes() <= BATCH_CHANGES => {
                batch.inodes.extend(group.inodes);
                batch.entries.extend(group.entries);
            }
            _ => batches.push(group),
        }
    }
    for (batch, number) in batches.iter_mut().zip(1..) {
        (batch.number, batch.at_ns) = (number, now_ns);
    }
    batches
}

/// The smallest pieces that an operation can be cut into, numbered from its own number on.
pub fn pieces(batch: Record) -> Vec<Record> {
    let (number, at_ns) = (batch.number, batch.at_ns);
    let mut pieces = groups(batch.inodes.into_iter(), batch.entries.into_iter(), &HashMap::new());
    for (piece, number) in pieces.iter_mut().zip(number..) {
        (piece.number, piece.at_ns) = (number, at_ns);
    }
    pieces
}

/// What shares a file by its names stays together. Directories are made before what is put into them, and emptied before
/// they are removed.
fn groups(
    inodes: impl Iterator<Item = InodeChange>,
    entries: impl Iterator<Item = EntryChange>,
    depths: &HashMap<Handle, usize>,
) -> Vec<Record> {
    let entries: Vec<EntryChange> = entries.collect();
    let mut sets = FileSets::default();
    for entry in &entries {
        if let (Some(seen), Some(new)) = (entry.seen, entry.new) {
            sets.join(seen.handle, new.handle);
        }
    }
    let both = entries.iter().flat_map(|entry| [entry.seen, entry.new]);
    let named: HashSet<Handle> = both.flatten().map(|entry| entry.handle).collect();
    let mut groups: BTreeMap<Handle, Record> = BTreeMap::new();
    for change in inodes {
        if change.seen != change.new || named.contains(&change.handle) {
            groups.entry(sets.find(change.handle)).or_default().inodes.push(change);
        }
    }
    for entry in entries {
        let Some(about) = entry.new.or(entry.seen) else { continue };
        groups.entry(sets.find(about.handle)).or_default().entries.push(entry);
    }
    let mut groups: Vec<Record> = groups.into_values().collect();
    groups.sort_by_cached_key(|group| turn(group, depths));
    groups
}

/// When a group's turn is: files that only go, directories that only go, deepest first, directories that come, deepest
/// last, files that come.
fn turn(group: &Record, depths: &HashMap<Handle, usize>) -> (u8, Reverse<usize>, usize) {
    let is_directory =
        |kept: &Option<JournalInode>| kept.as_ref().is_some_and(|kept| kept.0.kind == InodeKind::Directory);
    let only_goes = group.entries.iter().all(|entry| entry.new.is_none())
        && group.inodes.iter().all(|change| change.new.is_none());
    let depth = |change: &InodeChange| depths.get(&change.handle).copied().unwrap_or(usize::MAX);
    let deepest = group.inodes.iter().map(depth).max().unwrap_or(0);
    let has_directory =
        group.inodes.iter().any(|change| is_directory(&change.seen) || is_directory(&change.new));
    match (only_goes, has_directory) {
        (true, false) => (0, Reverse(0), 0),
        (true, true) => (1, Reverse(deepest), 0),
        (false, true) => (2, Reverse(0), deepest),
        (false, false) => (3, Reverse(0), 0),
    }
}

/// Disjoint sets of files that must go into the same operation.
#[derive(Default)]
struct FileSets(HashMap<Handle, Handle>);

impl FileSets {
    fn find(&self, mut handle: Handle) -> Handle {
        while let Some(above) = self.0.get(&handle) {
            handle = *above;
        }
        handle
    }

    fn join(&mut self, a: Handle, b: Handle) {
        let (a, b) = (self.find(a), self.find(b));
        if a != b {
            self.0.insert(a, b);
        }
    }
}

fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, name].join(&b'/') }
}

#[cfg(test)]
mod tests;
