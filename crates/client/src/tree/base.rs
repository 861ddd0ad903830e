//! One verified view, and how a file is found in it: handle, table of its user or group, table of a device,
//! inode (SUNDR 3.3.1, figure 2, with devices in place of users).
//!
//! Reads see committed operations only. [`Touches`] finds what is pending, and the caller decides what to do
//! about it: a reader waits; a writer includes the pending changes or gives way.

use super::touches::Touches;
use crate::store::Blocks;
use holdfast_content::{
    BlockSource, Content, ContentError, DeviceId, Entry, Handle, Inode, InodeKind, InodeSlot, LiveMap,
    Membership, OperationStatuses, PrincipalId, Reference, Table, Tag, UserId, directory,
};
use holdfast_crypto::Digest;
use holdfast_protocol::structure::{HandleVersion, View};
use lru::LruCache;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Most decoded tables in the cache.
const TABLES_MAX: usize = 128;
/// Most inodes that one view caches.
const INODES_MAX: usize = 8192;

/// Names of a directory and their entries, in byte order.
pub type Entries = Vec<(Vec<u8>, Entry)>;

/// Why something cannot be read from a view.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no such file in this view.
    #[error("no such file")]
    NotFound,
    /// The file is no directory.
    #[error("not a directory")]
    NotDirectory,
    /// A block is missing, altered or malformed, or the server does not answer.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// A table leads to a device that may not write the file, or a block is not the expected table.
    #[error("{0}")]
    Misplaced(String),
    /// More is pending than a table or directory can hold. The operation named is one of those to wait for.
    #[error("too much is pending")]
    Overflow(Tag),
}

/// The location of a file's inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeLocation {
    /// The device whose table has it.
    pub device: DeviceId,
    /// Its number in that device's table.
    pub number: u64,
}

/// Recently decoded tables, shared by the views of one engine.
pub struct TableCache(Mutex<LruCache<Digest, Arc<Table>>>);

impl Default for TableCache {
    fn default() -> Self {
        TableCache(Mutex::new(LruCache::new(NonZeroUsize::new(TABLES_MAX).expect("not zero"))))
    }
}

impl TableCache {
    /// The table at `reference`, which must be `owner`'s.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn load(
        &self,
        source: &dyn BlockSource,
        reference: &Reference,
        owner: PrincipalId,
    ) -> Result<Arc<Table>, ReadError> {
        if let Some(table) = self.0.lock().get(&reference.address)
            && table.owner == owner
        {
            return Ok(table.clone());
        }
        let table = Arc::new(Table::load(source, reference)?);
        if table.owner != owner {
            return Err(ReadError::Misplaced(format!(
                "the i-handle of {owner} names a table of {}",
                table.owner
            )));
        }
        self.0.lock().put(reference.address, table.clone());
        Ok(table)
    }
}

/// A verified view with everything needed to read from it.
pub struct Base {
    /// The view: everybody's latest structures, including this device's, and the pending operations.
    pub view: Arc<View>,
    /// The membership in force in the view.
    pub membership: Arc<Membership>,
    /// Number of this device.
    pub me: DeviceId,
    /// The user that this device belongs to.
    pub user: UserId,
    /// The store of blocks.
    pub blocks: Arc<dyn Blocks>,
    /// The pending operations, by the files they affect.
    pub touches: Touches,
    tables: Arc<TableCache>,
    inodes: Mutex<HashMap<Handle, Arc<Inode>>>,
}

impl Base {
    /// Prepares a verified view for reading.
    pub fn new(
        view: Arc<View>,
        membership: Arc<Membership>,
        me: DeviceId,
        blocks: Arc<dyn Blocks>,
        tables: Arc<TableCache>,
    ) -> Base {
        let user = membership.devices.get(&me).map_or(UserId(u32::MAX), |device| device.user);
        let touches = Touches::of(&view, &membership, me);
        Base { view, membership, me, user, blocks, touches, tables, inodes: Mutex::default() }
    }

    /// A base for another view under the same membership.
    pub fn with_view(&self, view: View) -> Base {
        let view = Arc::new(view);
        Base::new(view, self.membership.clone(), self.me, self.blocks.clone(), self.tables.clone())
    }

    /// The status of operations according to this view.
    pub fn fates(&self) -> &dyn OperationStatuses {
        &*self.view
    }

    /// The source of blocks.
    pub fn source(&self) -> &dyn BlockSource {
        self.blocks.as_source()
    }

    /// The i-handle of a principal and its table; an empty table if there is none yet.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn table(&self, owner: PrincipalId) -> Result<(Option<HandleVersion>, Arc<Table>), ReadError> {
        let handle = match owner {
            // A device's table is in its own slot only.
            PrincipalId::Device(device) => {
                self.view.slots.get(&device).and_then(|slot| slot.value.handles.get(&owner)).copied()
            }
            _ => self.view.handle(owner).map(|(_, handle)| handle),
        };
        let table = match &handle {
            Some(handle) => self.tables.load(self.source(), &handle.reference, owner)?,
            None => Arc::new(Table::new(owner)),
        };
        Ok((handle, table))
    }

    /// The location of a file's inode according to the table of the file's owner.
    ///
    /// # Errors
    /// [`ReadError`]; a device that may not write the file is [`ReadError::Misplaced`].
    pub fn place(&self, file: Handle) -> Result<Option<InodeLocation>, ReadError> {
        if matches!(file.principal, PrincipalId::Members | PrincipalId::Device(_)) {
            return Err(ReadError::Misplaced(format!("{file} is no file of a user or group")));
        }
        let (_, table) = self.table(file.principal)?;
        let target = table.target(self.source(), self.fates(), file.number)?.value;
        match target {
            None => Ok(None),
            Some(target) if may_hold(&self.membership, target.device, file.principal) => {
                Ok(Some(InodeLocation { device: target.device, number: target.first }))
            }
            Some(target) => Err(ReadError::Misplaced(format!(
                "{file} is held by device {}, which may not write it",
                target.device.0
            ))),
        }
    }

    fn slot(&self, place: InodeLocation) -> Result<Option<InodeSlot>, ReadError> {
        let (_, table) = self.table(PrincipalId::Device(place.device))?;
        Ok(table.slot(self.source(), self.fates(), place.number)?.value)
    }

    /// The inode at a location, if there is one.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn inode_at(&self, place: InodeLocation) -> Result<Option<Arc<Inode>>, ReadError> {
        match self.slot(place)? {
            None => Ok(None),
            Some(slot) => Ok(Some(Arc::new(slot.into_inode(self.source())?))),
        }
    }

    /// The i-hash of the inode at a location, if there is one, without fetching the inode.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn ihash_at(&self, place: InodeLocation) -> Result<Option<Digest>, ReadError> {
        let key = self.source().digest_key();
        Ok(self.slot(place)?.map(|slot| slot.ihash(&key)).transpose()?)
    }

    /// The file's inode.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn inode(&self, file: Handle) -> Result<Arc<Inode>, ReadError> {
        if let Some(inode) = self.inodes.lock().get(&file) {
            return Ok(inode.clone());
        }
        let place = self.place(file)?.ok_or(ReadError::NotFound)?;
        let inode = self.inode_at(place)?.ok_or(ReadError::NotFound)?;
        let mut inodes = self.inodes.lock();
        if inodes.len() >= INODES_MAX {
            inodes.clear();
        }
        inodes.insert(file, inode.clone());
        Ok(inode)
    }

    /// The file's i-hash, without fetching the inode.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn ihash(&self, file: Handle) -> Result<Digest, ReadError> {
        let place = self.place(file)?.ok_or(ReadError::NotFound)?;
        let slot = self.slot(place)?.ok_or(ReadError::NotFound)?;
        Ok(slot.ihash(&self.source().digest_key())?)
    }

    /// A pending operation that changes the file as a whole.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn pending_on(&self, file: Handle) -> Result<Option<Tag>, ReadError> {
        if self.touches.is_empty() {
            return Ok(None);
        }
        let place = self.place(file)?.map(|place| (place.device, place.number));
        Ok(self.touches.whole(file, place))
    }

    /// The entry of a name in a directory.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn entry(&self, file: Handle, name: &[u8]) -> Result<Option<Entry>, ReadError> {
        let inode = self.inode(file)?;
        let found = directory::lookup(self.source(), self.fates(), directory_of(&inode)?, name)?;
        Ok(found.value)
    }

    /// At most `limit` entries after a name, in byte order, and whether there are no more.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn entries(
        &self,
        file: Handle,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Entries, bool), ReadError> {
        let inode = self.inode(file)?;
        let listing = directory::list(self.source(), self.fates(), directory_of(&inode)?, after, limit)?;
        Ok((listing.entries, listing.complete))
    }
}

/// Stored names of a directory with changes on top, at most `limit`. `complete`: no more stored names follow.
/// If more follow, changes after the last stored name are left for the next page.
pub fn laid_over(
    stored: Entries,
    complete: bool,
    changed: BTreeMap<Vec<u8>, Option<Entry>>,
    limit: usize,
) -> Entries {
    let horizon = if complete { None } else { stored.last().map(|(name, _)| name.clone()) };
    let mut merged: BTreeMap<Vec<u8>, Entry> = stored.into_iter().collect();
    for (name, entry) in changed {
        if horizon.as_ref().is_some_and(|horizon| name > *horizon) {
            continue;
        }
        match entry {
            Some(entry) => drop(merged.insert(name, entry)),
            None => drop(merged.remove(&name)),
        }
    }
    merged.into_iter().take(limit).collect()
}

/// Whether `device`'s table may have files of `principal`. This is like the right to write, except that a
/// removed device still has what it had, since it cannot change it any more. Files of a group must not be in
/// tables of users who have left it.
fn may_hold(membership: &Membership, device: DeviceId, principal: PrincipalId) -> bool {
    let Some(user) = membership.devices.get(&device).map(|device| device.user) else { return false };
    match principal {
        PrincipalId::User(owner) => user == owner || user == UserId::SUPERUSER,
        PrincipalId::Group(group) => user == UserId::SUPERUSER || membership.is_member(group, user),
        PrincipalId::Members | PrincipalId::Device(_) => false,
    }
}

/// The names in a directory's inode.
///
/// # Errors
/// [`ReadError::NotDirectory`].
pub fn directory_of(inode: &Inode) -> Result<&LiveMap, ReadError> {
    match (&inode.content, inode.kind) {
        (Content::Directory(map), InodeKind::Directory) => Ok(map),
        _ => Err(ReadError::NotDirectory),
    }
}
