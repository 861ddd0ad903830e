//! Plans a modification: records reads, applies edits, declares deltas.
//!
//! A plan is made on the last accepted view, declared in a certificate, and made again on the view the server
//! answers with. It takes effect only if both plans declare the same deltas and no pending operation affects
//! what the second one read or wrote; then [`super::Plan::build`] makes the tables. So the application's
//! checks (the name is free, the directory is empty) hold at the operation's place in the order, not only
//! when it was sent.
//!
//! Several edits share one operation. Each sees the effects of those before it. An edit that fails leaves no
//! changes and does not affect the others.

use super::allocate::{Allocator, Range};
use super::base::{Base, ReadError, directory_of, laid_over};
use super::edit::{Changes, Edit, MakeContent};
use super::layer::{Explain, Layer, PlanSink};
use super::membership::MembershipChanges;
use super::view::Names;
use crate::error::FsError;
use holdfast_content::{
    Content, DeviceId, Entry, Handle, Inode, InodeKind, PrincipalId, Tag, UserId, directory,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Edits while they run on one state of the tree.
pub struct Transaction<'a> {
    pub(super) base: &'a Base,
    explain: Explain<'a>,
    pub(super) allocator: Allocator,
    /// Device numbers of files that were allocated in this operation.
    pub(super) fresh: BTreeMap<Handle, u64>,
    pub(super) ranges: Vec<(PrincipalId, Range)>,
    pub(super) batch: Layer,
    edit: Layer,
    pub(super) conflicts: BTreeSet<Tag>,
    reads: BTreeSet<Handle>,
    pub(super) sink: PlanSink,
}

impl<'a> Transaction<'a> {
    /// Starts a plan on `base`.
    pub fn new(base: &'a Base, allocator: Allocator, explain: Explain<'a>) -> Transaction<'a> {
        Transaction {
            base,
            explain,
            allocator,
            fresh: BTreeMap::new(),
            ranges: Vec::new(),
            batch: Layer::default(),
            edit: Layer::default(),
            conflicts: BTreeSet::new(),
            reads: BTreeSet::new(),
            sink: PlanSink::new(base.blocks.clone()),
        }
    }

    /// Plans one edit. Its changes join the operation if it succeeds and are dropped if not. Also returns the
    /// pending operations that affect what it read: while there are any, neither its success nor its failure
    /// is certain.
    pub fn run(&mut self, edit: &mut dyn Edit) -> (Result<(), FsError>, BTreeSet<Tag>) {
        self.edit = Layer::default();
        let before = std::mem::take(&mut self.conflicts);
        let result = edit.plan(self);
        let conflicts = std::mem::replace(&mut self.conflicts, before);
        let layer = std::mem::take(&mut self.edit);
        if result.is_ok() && !layer.is_empty() {
            self.batch.inodes.extend(layer.inodes);
            for (directory, names) in layer.entries {
                self.batch.entries.entry(directory).or_default().extend(names);
            }
            self.batch.members = layer.members.or(self.batch.members.take());
            self.conflicts.extend(conflicts.iter().copied());
        }
        (result, conflicts)
    }

    /// Files of the base that edits have read so far, including edits that failed.
    pub fn reads(&self) -> BTreeSet<Handle> {
        self.reads.clone()
    }

    /// Number of changes so far: about the number of deltas.
    pub fn len(&self) -> usize {
        self.batch.inodes.len() * 2 + self.batch.entries.values().map(|names| names.len() + 1).sum::<usize>()
    }

    /// Whether nothing has been changed so far.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.batch.members.is_none()
    }

    fn must_write(&self, principal: PrincipalId) -> Result<(), FsError> {
        if self.may_write(principal) { Ok(()) } else { Err(FsError::not_writable(principal)) }
    }

    /// The inode as changed by this operation, if it was; `Some(None)` if it was removed.
    fn staged(&self, file: Handle) -> Option<Option<Arc<Inode>>> {
        self.edit.inodes.get(&file).or_else(|| self.batch.inodes.get(&file)).cloned()
    }

    fn read_whole(&mut self, file: Handle) -> Result<(), FsError> {
        if self.fresh.contains_key(&file) {
            return Ok(());
        }
        self.reads.insert(file);
        let pending = self.base.pending_on(file).map_err(|error| (self.explain)(Some(file), &error))?;
        self.conflicts.extend(pending);
        Ok(())
    }

    fn write_whole(&mut self, file: Handle) -> Result<(), FsError> {
        self.read_whole(file)?;
        self.conflicts.extend(self.base.touches.entries(file));
        Ok(())
    }

    /// A directory's inode, with times updated by the entries changed in this operation.
    fn with_times(&self, file: Handle, inode: Arc<Inode>) -> Arc<Inode> {
        let latest = [&self.edit, &self.batch]
            .into_iter()
            .filter_map(|layer| layer.entries.get(&file)?.values().map(|(_, time)| *time).max())
            .max();
        match latest {
            Some(time) if time > inode.modified_ns || time > inode.changed_ns => {
                let mut changed = Inode::clone(&inode);
                touch(&mut changed, time);
                Arc::new(changed)
            }
            _ => inode,
        }
    }
}

impl Changes for Transaction<'_> {
    fn me(&self) -> DeviceId {
        self.base.me
    }

    fn user(&self) -> UserId {
        self.base.user
    }

    fn may_write(&self, principal: PrincipalId) -> bool {
        self.base.membership.may_write(self.base.me, principal)
    }

    fn make_content(&mut self, file: Handle, make: MakeContent<'_>) -> Result<Content, FsError> {
        make(self.base.source(), &mut self.sink)
            .map_err(|error| (self.explain)(Some(file), &ReadError::Content(error)))
    }

    fn inode(&mut self, file: Handle) -> Result<Arc<Inode>, FsError> {
        for layer in [&self.edit, &self.batch] {
            if let Some(inode) = layer.inodes.get(&file) {
                let inode = inode.clone().ok_or(FsError::NotFound)?;
                return Ok(self.with_times(file, inode));
            }
        }
        self.read_whole(file)?;
        let inode = self.base.inode(file).map_err(|error| (self.explain)(Some(file), &error))?;
        Ok(self.with_times(file, inode))
    }

    fn entry(&mut self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
        for layer in [&self.edit, &self.batch] {
            if let Some((entry, _)) = layer.entries.get(&directory).and_then(|names| names.get(name)) {
                return Ok(*entry);
            }
        }
        if let Some(inode) = self.staged(directory) {
            let inode = inode.ok_or(FsError::NotFound)?;
            return (|| {
                let map = directory_of(&inode)?;
                Ok(directory::lookup(self.base.source(), self.base.fates(), map, name)?.value)
            })()
            .map_err(|error: ReadError| (self.explain)(Some(directory), &error));
        }
        self.read_whole(directory)?;
        self.conflicts.extend(self.base.touches.entry(directory, name));
        self.base.entry(directory, name).map_err(|error| (self.explain)(Some(directory), &error))
    }

    fn entries(&mut self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError> {
        let mut changed: BTreeMap<Vec<u8>, Option<Entry>> = BTreeMap::new();
        for layer in [&self.batch, &self.edit] {
            for (name, (entry, _)) in layer.entries.get(&directory).into_iter().flatten() {
                if after.is_none_or(|after| name.as_slice() > after) {
                    changed.insert(name.clone(), *entry);
                }
            }
        }
        // Each change can hide one stored entry.
        let wanted = limit.saturating_add(changed.len());
        let (stored, complete) = match self.staged(directory) {
            Some(inode) => {
                let inode = inode.ok_or(FsError::NotFound)?;
                (|| {
                    let map = directory_of(&inode)?;
                    let listing = directory::list(self.base.source(), self.base.fates(), map, after, wanted)?;
                    Ok((listing.entries, listing.complete))
                })()
                .map_err(|error: ReadError| (self.explain)(Some(directory), &error))?
            }
            None => {
                self.read_whole(directory)?;
                self.conflicts.extend(self.base.touches.entries(directory));
                self.base
                    .entries(directory, after, wanted)
                    .map_err(|error| (self.explain)(Some(directory), &error))?
            }
        };
        Ok(laid_over(stored, complete, changed, limit))
    }

    fn allocate(&mut self, principal: PrincipalId) -> Result<Handle, FsError> {
        self.must_write(principal)?;
        loop {
            if let Some((handle, number)) = self.allocator.take(principal) {
                self.fresh.insert(handle, number);
                return Ok(handle);
            }
            let base = self.base;
            let mut pending = BTreeSet::new();
            let mut is_free = |range: &Range| -> Result<bool, ReadError> {
                let last = range.first + u64::from(range.count) - 1;
                if let Some(tag) = base.touches.range(principal, range.first, last) {
                    pending.insert(tag);
                    return Ok(false);
                }
                let (_, table) = base.table(principal)?;
                for number in [range.first, last] {
                    let found = table.target(base.source(), base.fates(), number)?;
                    if found.value.is_some() {
                        return Ok(false);
                    }
                }
                Ok(true)
            };
            let range = self
                .allocator
                .reserve(base.me, principal, &mut is_free)
                .map_err(|error| (self.explain)(None, &error))?;
            let Some(range) = range else { return Err(FsError::NoSpace) };
            self.ranges.push((principal, range));
        }
    }

    fn set_inode(&mut self, file: Handle, mut inode: Inode) -> Result<(), FsError> {
        self.must_write(file.principal)?;
        inode.writer = self.base.me;
        inode.check().map_err(|why| FsError::Invalid(why.to_string()))?;
        self.write_whole(file)?;
        if inode.kind == InodeKind::Directory && !self.fresh.contains_key(&file) {
            let present = match self.staged(file) {
                Some(staged) => staged,
                None => match self.base.inode(file) {
                    Ok(inode) => Some(inode),
                    Err(ReadError::NotFound) => None,
                    Err(error) => return Err((self.explain)(Some(file), &error)),
                },
            };
            if let Some(present) = present {
                inode.content = present.content.clone();
            }
        }
        self.edit.inodes.insert(file, Some(Arc::new(inode)));
        Ok(())
    }

    fn remove_inode(&mut self, file: Handle) -> Result<(), FsError> {
        self.must_write(file.principal)?;
        self.write_whole(file)?;
        self.edit.inodes.insert(file, None);
        Ok(())
    }

    fn set_entry(
        &mut self,
        directory: Handle,
        name: &[u8],
        entry: Option<Entry>,
        time_ns: i64,
    ) -> Result<(), FsError> {
        self.must_write(directory.principal)?;
        directory::check_name(name).map_err(|error| FsError::Invalid(error.to_string()))?;
        if self.staged(directory).is_none() {
            self.read_whole(directory)?;
            self.conflicts.extend(self.base.touches.entry(directory, name));
        }
        self.edit.entries.entry(directory).or_default().insert(name.to_vec(), (entry, time_ns));
        Ok(())
    }

    fn membership(&mut self) -> Result<MembershipChanges<'_>, FsError> {
        let Transaction { base, explain, edit, conflicts, sink, .. } = self;
        Ok(MembershipChanges { base, explain: *explain, edit, conflicts, sink })
    }
}

/// Moves a directory's times forward.
pub(super) fn touch(inode: &mut Inode, time_ns: i64) {
    inode.modified_ns = inode.modified_ns.max(time_ns);
    inode.changed_ns = inode.changed_ns.max(time_ns);
}

/// The entries of a directory inode, for changing.
pub(super) fn directory_mut(inode: &mut Inode) -> Option<&mut holdfast_content::LiveMap> {
    match &mut inode.content {
        Content::Directory(map) => Some(map),
        _ => None,
    }
}
