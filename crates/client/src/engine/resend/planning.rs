//! Plans how to make again what this device lost by a restore, as changes of the present state. This module
//! does no input or output.
//!
//! Only a device's own operations change its table. So the differences between its table before the restore
//! and its table now are the files that *it* wrote last. With a file's content, the plan restores the file's
//! names, and the directories above it that no longer exist. A missing name does not tell who removed it. The
//! plan removes a name again only if no other device made lost changes that could have done it, or if the
//! name belongs to a file of this device that had another name by then.
//!
//! Each change records the state before it as [`Replay`](crate::files::Replay) needs it: the state that the
//! restore left. If somebody has changed the file since, that state is unknown and nothing is recorded; the
//! change then gives way.

use crate::files::{EntryChange, InodeChange, JournalInode, Record};
use holdfast_content::{Content, Entry, Handle, Inode, InodeKind, LiveMap, PrincipalId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Most directories fetched from the server because they are not readable on this machine.
const ASKED_MAX: usize = 4096;
/// Most changes in one operation.
pub const BATCH_CHANGES: usize = 500;
/// Most paths listed of names that are not removed again.
const LEFT_TOLD: usize = 100;

/// The names in a directory.
pub type Names = BTreeMap<Vec<u8>, Entry>;

/// A file's inode or names could not be read in one of the states. This is never taken to mean that the file
/// does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreadable;

/// One state of the file system: as it was before the restore, or as it is now.
pub trait TreeState {
    /// The inode of a file; `None` if there is none.
    fn inode(&self, file: Handle) -> Result<Option<Arc<Inode>>, Unreadable>;

    /// All names in a directory.
    fn names(&self, directory: Handle) -> Result<Names, Unreadable>;

    /// The inode of a file, if it exists and can be read.
    fn at_hand(&self, file: Handle) -> Option<Arc<Inode>> {
        self.inode(file).ok().flatten()
    }

    /// Whether a file certainly does not exist.
    fn lacks(&self, file: Handle) -> bool {
        self.inode(file) == Ok(None)
    }
}

/// Facts about the restore besides the two states.
pub trait RestoreFacts {
    /// Whether a file is as the restore left it, because no device has changed it since.
    fn is_as_restored(&self, file: Handle) -> bool;

    /// Whether this device is the only one that could have changed files of this owner, of all devices whose
    /// operations were lost or that have operated since.
    fn is_ours_alone(&self, owner: PrincipalId) -> bool;

    /// Whether this device may write this owner's files, and the owner is the same as before.
    fn may_write(&self, owner: PrincipalId) -> bool;
}

/// The operations that make again what a restore lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ResendPlan {
    /// The operations, in their order.
    pub batches: Vec<Record>,
    /// Paths of some names that exist again, since it is not certain who had removed them.
    pub left: Vec<Vec<u8>>,
    /// Number of such names, including those not listed.
    pub left_count: u64,
    /// Paths of files that this device wrote and may no longer write.
    pub foreign: Vec<Vec<u8>>,
    /// Files that this device wrote whose names are unknown, because their directories cannot be read in
    /// their earlier state.
    pub unnamed: Vec<Handle>,
    /// Paths of files that this device wrote and whose earlier state cannot be read.
    pub unread: Vec<Vec<u8>>,
}

/// A name that leads to another file than before the restore.
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

/// Makes the plan. `was` reads the earlier state from this machine only; `was_far` also asks the server.
/// `mine`: files that this device wrote last, each with the inode in this device's own table now.
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
    /// Paths, before the restore, of directories and of files in `mine`.
    paths: HashMap<Handle, Vec<u8>>,
    differences: Vec<Difference>,
    inodes: BTreeMap<Handle, InodeChange>,
    entries: BTreeMap<(Handle, Vec<u8>), EntryChange>,
    /// Depth of each directory: the number of directories above it.
    depths: HashMap<Handle, usize>,
    planned: ResendPlan,
}

impl Planner<'_> {
    /// Goes through the directories of the earlier state and notes the names that differ now. A directory
    /// that is not readable on this machine, because another device changed it last, is fetched from the
    /// server only if some file in `mine` has no known name without it. If the server has lost it as well,
    /// the walk goes on through the directory's present state.
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
        // Otherwise the files had no names: they were removed while they were open.
        if is_unread || !unread.is_empty() {
            self.planned.unnamed = unnamed.into_iter().collect();
        }
    }

    /// The files in `mine` that had a name programs could use.
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

    /// The inode of a file as this device wrote it, from this machine or else from the server.
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

    /// Plans the content and attributes that this device had written.
    fn files(&mut self) {
        for (&handle, left) in self.mine {
            // Files without a name, such as conflict copies and marks, are not visible to programs.
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

    /// Plans that a file stays as it is, except for its names.
    fn touch(&mut self, handle: Handle, path: Vec<u8>) {
        if let Some(present) = self.is.at_hand(handle) {
            self.set(handle, path, Some(present.clone()), Some(present));
        }
    }

    /// Plans the names of written files, and all other names that only this device can have changed.
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
        // Others have removed the file since. If it was written here, the replay gives it a name near its old
        // place.
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

    /// Handles a name that is missing in the earlier state and exists again.
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

    /// Plans to remove the files in a directory that is removed again. They were removed too, or moved
    /// elsewhere, where they already have names.
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

    /// Plans missing directories into which names are put, whichever device made them.
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

/// Divides the plan into operations that each fit into a certificate.
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

/// Divides an operation into the smallest possible ones, numbered from its own number upwards.
pub fn pieces(batch: Record) -> Vec<Record> {
    let (number, at_ns) = (batch.number, batch.at_ns);
    let mut pieces = groups(batch.inodes.into_iter(), batch.entries.into_iter(), &HashMap::new());
    for (piece, number) in pieces.iter_mut().zip(number..) {
        (piece.number, piece.at_ns) = (number, at_ns);
    }
    pieces
}

/// Groups changes that share a file by its names, since they must stay in one operation. Orders the groups so
/// that directories are made before names are put into them, and emptied before they are removed.
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

/// The sort key of a group. The order is: files that are only removed; directories that are only removed,
/// deepest first; new directories, deepest last; new files.
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

/// Disjoint sets of files whose changes must go into the same operation.
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
