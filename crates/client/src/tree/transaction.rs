//! Planning a modification: reads recorded, edits applied, deltas declared.
//!
//! A plan is made on the last known view, declared in a certificate, and made again on the view the server
//! answers with. It stands only if both plans declare the same and nothing pending touches what the second
//! one read or wrote; then [`super::Plan::build`] makes the i-handles. So the application's checks (the name is
//! free, the directory is empty) hold at the operation's place in the order, not merely when it was sent.
//!
//! Several edits share one operation. Each sees the effects of those before it; one that fails leaves nothing
//! behind and spoils none of the others.

use super::allocate::{Allocator, Range};
use super::base::{Base, InodeLocation, ReadError, directory_of, laid_over};
use crate::error::FsError;
use crate::store::Blocks;
use holdfast_content::{
    Block, BlockSink, BlockSource, Content, ContentError, DeviceId, Entry, Handle, Inode, InodeKind,
    Membership, PrincipalId, Reference, Tag, UserId, directory,
};
use holdfast_crypto::{Digest, DigestKey, Signature};
use holdfast_protocol::order::last_vector;
use holdfast_protocol::structure::HandleVersion;
use holdfast_protocol::warrant::Change;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A modification that can be planned on any view, as often as needed.
///
/// A plan must depend on nothing but the transaction it is given and the edit's own fixed parameters: no
/// clock, no randomness. It may keep results in `self`; those of the last plan count.
pub trait Edit: Send {
    /// Reads through, and applies changes to, `transaction`.
    ///
    /// # Errors
    /// An error means that the edit changes nothing; if the view it was found in is the one the operation is
    /// ordered on, the caller of `modify` gets it.
    fn plan(&mut self, transaction: &mut Transaction<'_>) -> Result<(), FsError>;

    /// What was planned last has its place in the order: also when its caller no longer waits, which is how one
    /// who gave up can find out. By the time a later edit is planned, this was called or never will be.
    fn ordered(&mut self) {}
}

impl<F: FnMut(&mut Transaction<'_>) -> Result<(), FsError> + Send> Edit for F {
    fn plan(&mut self, transaction: &mut Transaction<'_>) -> Result<(), FsError> {
        self(transaction)
    }
}

/// Turns what went wrong with a file's data into what the caller sees; knows about evidence.
pub type Explain<'a> = &'a dyn Fn(Option<Handle>, &ReadError) -> FsError;

/// New entries by name, each with the directory's new time; `None` removes the name.
pub(super) type NewEntries = BTreeMap<Vec<u8>, (Option<Entry>, i64)>;

/// Changes not yet declared.
#[derive(Default)]
pub(super) struct Layer {
    /// New inodes; `None` for removed files.
    pub inodes: BTreeMap<Handle, Option<Arc<Inode>>>,
    /// New entries by directory.
    pub entries: BTreeMap<Handle, NewEntries>,
    /// A new membership.
    pub members: Option<(Reference, Arc<Membership>)>,
}

impl Layer {
    fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.entries.is_empty() && self.members.is_none()
    }
}

/// Edits while they run on one state of the tree.
pub struct Transaction<'a> {
    pub(super) base: &'a Base,
    explain: Explain<'a>,
    pub(super) allocator: Allocator,
    /// Device numbers of files from ranges reserved for, or taken in, this operation.
    pub(super) fresh: BTreeMap<Handle, u64>,
    pub(super) ranges: Vec<(PrincipalId, Range)>,
    pub(super) batch: Layer,
    edit: Layer,
    pub(super) conflicts: BTreeSet<Tag>,
    reads: BTreeSet<Handle>,
    pub(super) sink: PlanSink,
}

impl<'a> Transaction<'a> {
    /// Begins a plan on `base`.
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
            sink: PlanSink { blocks: base.blocks.clone(), held: Vec::new() },
        }
    }

    /// Plans one edit. Its changes join the operation if it succeeds and are forgotten if not. Tells also which
    /// pending operations it looked at: while there are any, neither its success nor its failure is certain.
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

    /// Files of the base that edits have looked at so far, those that failed included.
    pub fn reads(&self) -> BTreeSet<Handle> {
        self.reads.clone()
    }

    /// Number of changes so far: roughly the number of deltas.
    pub fn len(&self) -> usize {
        self.batch.inodes.len() * 2 + self.batch.entries.values().map(|names| names.len() + 1).sum::<usize>()
    }

    /// Whether nothing is changed so far.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.batch.members.is_none()
    }

    /// Number of this device.
    pub fn me(&self) -> DeviceId {
        self.base.me
    }

    /// The user that this device belongs to.
    pub fn user(&self) -> UserId {
        self.base.user
    }

    /// The membership in force.
    pub fn membership(&self) -> &Membership {
        &self.base.membership
    }

    /// The source that blocks are read from.
    pub fn source(&self) -> &dyn BlockSource {
        self.base.source()
    }

    /// The sink for new blocks. They can be read back at once, and are sent only if the operation refers to them.
    pub fn sink(&mut self) -> &mut dyn BlockSink {
        &mut self.sink
    }

    /// Source and sink together, for functions that need both.
    pub fn source_and_sink(&mut self) -> (&dyn BlockSource, &mut dyn BlockSink) {
        (self.base.source(), &mut self.sink)
    }

    /// Makes content for `file` with the blocks at hand, and new ones.
    ///
    /// # Errors
    /// Errors of the data itself.
    pub fn make_content(
        &mut self,
        file: Handle,
        make: impl FnOnce(&dyn BlockSource, &mut dyn BlockSink) -> Result<Content, ContentError>,
    ) -> Result<Content, FsError> {
        make(self.base.source(), &mut self.sink)
            .map_err(|error| (self.explain)(Some(file), &ReadError::Content(error)))
    }

    /// Whether this device may change what `principal` owns.
    ///
    /// # Errors
    /// [`FsError::Access`].
    pub fn may_write(&self, principal: PrincipalId) -> Result<(), FsError> {
        if self.base.membership.may_write(self.base.me, principal) {
            Ok(())
        } else {
            Err(FsError::Access(format!("this device may not write what belongs to {principal}")))
        }
    }

    /// The file's inode. Of a directory it says nothing about entries, nor about changes of entries that are
    /// pending.
    ///
    /// # Errors
    /// [`FsError::NotFound`] and errors of the data itself.
    pub fn inode(&mut self, file: Handle) -> Result<Arc<Inode>, FsError> {
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

    /// What a name in a directory stands for.
    ///
    /// # Errors
    /// [`FsError::NotFound`] or [`FsError::NotDirectory`] for the directory, errors of the data itself.
    pub fn entry(&mut self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
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

    /// At most `limit` entries after a name, in byte order; fewer only at the end.
    ///
    /// # Errors
    /// [`FsError::NotFound`] or [`FsError::NotDirectory`] for the directory, errors of the data itself.
    pub fn entries(
        &mut self,
        directory: Handle,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Entry)>, FsError> {
        let mut changed: BTreeMap<Vec<u8>, Option<Entry>> = BTreeMap::new();
        for layer in [&self.batch, &self.edit] {
            for (name, (entry, _)) in layer.entries.get(&directory).into_iter().flatten() {
                if after.is_none_or(|after| name.as_slice() > after) {
                    changed.insert(name.clone(), *entry);
                }
            }
        }
        // Every change can hide one stored entry.
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

    /// A number for a new file of `principal`.
    ///
    /// # Errors
    /// [`FsError::Access`]; errors of the principal's table.
    pub fn allocate(&mut self, principal: PrincipalId) -> Result<Handle, FsError> {
        self.may_write(principal)?;
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

    /// Writes a file's inode: a new file's, or all of an existing one's. The entries of an existing directory
    /// are kept whatever `inode` says of them; use [`Transaction::set_entry`].
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::Invalid`].
    pub fn set_inode(&mut self, file: Handle, mut inode: Inode) -> Result<(), FsError> {
        self.may_write(file.principal)?;
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

    /// Removes a file's inode. Names that still lead to it become stale.
    ///
    /// # Errors
    /// [`FsError::Access`].
    pub fn remove_inode(&mut self, file: Handle) -> Result<(), FsError> {
        self.may_write(file.principal)?;
        self.write_whole(file)?;
        self.edit.inodes.insert(file, None);
        Ok(())
    }

    /// Makes, replaces or (with `None`) removes a name; `time_ns` becomes the directory's time of change unless
    /// that is later.
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::Invalid`] for a bad name.
    pub fn set_entry(
        &mut self,
        directory: Handle,
        name: &[u8],
        entry: Option<Entry>,
        time_ns: i64,
    ) -> Result<(), FsError> {
        self.may_write(directory.principal)?;
        directory::check_name(name).map_err(|error| FsError::Invalid(error.to_string()))?;
        if self.staged(directory).is_none() {
            self.read_whole(directory)?;
            self.conflicts.extend(self.base.touches.entry(directory, name));
        }
        self.edit.entries.entry(directory).or_default().insert(name.to_vec(), (entry, time_ns));
        Ok(())
    }

    /// The membership in force with the version that a change of it must have: the order gives every
    /// operation that declares one a version, whether it takes effect or not.
    pub fn next_membership(&self) -> Membership {
        let mut next = Membership::clone(&self.base.membership);
        next.version = last_vector(&self.base.view).get(PrincipalId::Members) + 1;
        next
    }

    /// The membership in force, and under which version.
    ///
    /// # Errors
    /// [`FsError::NotFound`] before the founding operation.
    pub fn present_membership(&self) -> Result<(HandleVersion, Arc<Membership>), FsError> {
        let (_, handle) = self.base.view.handle(PrincipalId::Members).ok_or(FsError::NotFound)?;
        Ok((handle, self.base.membership.clone()))
    }

    /// Replaces the membership; device 0 only. To be made from [`Transaction::next_membership`].
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::Invalid`] if it may not follow the present one.
    pub fn set_members(&mut self, membership: Membership) -> Result<(), FsError> {
        self.may_write(PrincipalId::Members)?;
        let mut membership = membership;
        // The founding operation has no membership before it.
        if self.base.view.handle(PrincipalId::Members).is_some() {
            let version = membership.version;
            membership = self.base.membership.succeeded_by(membership, version);
            self.base
                .membership
                .validate_successor(&membership)
                .map_err(|why| FsError::Invalid(why.to_string()))?;
        }
        self.conflicts.extend(self.base.touches.members());
        let reference = membership.store(&mut self.sink).map_err(|why| FsError::Invalid(why.to_string()))?;
        self.edit.members = Some((reference, Arc::new(membership)));
        Ok(())
    }

    /// Replaces the membership by one that the superuser has signed off-line, in an operation that changes nothing else.
    ///
    /// # Errors
    /// [`FsError::Expired`] if another change came between, [`FsError::Invalid`] if it may not follow,
    /// [`FsError::NotPermitted`] if this device is removed by it.
    pub fn enact(&mut self, change: &Change, signature: Signature) -> Result<(), FsError> {
        let present = self.base.view.handle(PrincipalId::Members).map(|(_, handle)| handle);
        let follows = (change.version, change.follows);
        if present.is_none_or(|present| (present.version, present.reference.address) != follows) {
            return Err(FsError::Expired(format!(
                "the membership has changed: this change was signed to follow version {}, and version {} is in force",
                change.version,
                present.map_or(0, |present| present.version)
            )));
        }
        let version = last_vector(&self.base.view).get(PrincipalId::Members) + 1;
        let membership = change.enacted(version, signature);
        self.base
            .membership
            .validate_successor(&membership)
            .map_err(|why| FsError::Invalid(why.to_string()))?;
        if !membership.is_active(self.base.me) {
            let why = "this device is itself removed by the change; submit it from another";
            return Err(FsError::NotPermitted(why.to_owned()));
        }
        self.conflicts.extend(self.base.touches.members());
        let reference = membership.store(&mut self.sink).map_err(|why| FsError::Invalid(why.to_string()))?;
        self.edit.members = Some((reference, Arc::new(membership)));
        Ok(())
    }

    /// Reads from the view as it is before this operation. Nothing is recorded, so whatever the result is used
    /// for must be read again through the transaction.
    pub(crate) fn read_base<T>(
        &self,
        read: impl FnOnce(&Base) -> Result<T, ReadError>,
    ) -> Result<T, FsError> {
        read(self.base).map_err(|error| (self.explain)(None, &error))
    }

    /// Where an existing file's inode lies in the view; `None` for new files.
    ///
    /// # Errors
    /// Errors of the data itself.
    pub fn place(&self, file: Handle) -> Result<Option<InodeLocation>, FsError> {
        self.base.place(file).map_err(|error| (self.explain)(Some(file), &error))
    }

    /// The inode as changed by this operation, if it is: `Some(None)` when removed.
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

    /// A directory's inode with the times that entries changed in this operation give it.
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

/// Moves a directory's times forward.
pub(super) fn touch(inode: &mut Inode, time_ns: i64) {
    inode.modified_ns = inode.modified_ns.max(time_ns);
    inode.changed_ns = inode.changed_ns.max(time_ns);
}

/// Collects a plan's new blocks, which are dropped with the plan.
pub struct PlanSink {
    blocks: Arc<dyn Blocks>,
    held: Vec<Digest>,
}

impl BlockSink for PlanSink {
    fn digest_key(&self) -> DigestKey {
        self.blocks.digest_key()
    }

    fn put(&mut self, block: Block) -> Reference {
        let reference = block.reference();
        if self.blocks.hold(block) {
            self.held.push(reference.address);
        }
        reference
    }
}

impl Drop for PlanSink {
    fn drop(&mut self) {
        for address in &self.held {
            self.blocks.release(address);
        }
    }
}

/// The entries of a directory inode, for changing.
pub(super) fn directory_mut(inode: &mut Inode) -> Option<&mut holdfast_content::LiveMap> {
    match &mut inode.content {
        Content::Directory(map) => Some(map),
        _ => None,
    }
}
