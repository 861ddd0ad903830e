//! The local state of the file system (the overlay over the newest verified view), and edits while they run
//! on it.

use super::journal::WriteGuard;
use super::overlay::{Overlay, ReadKey};
use super::record::{EntryChange, InodeChange, JournalInode, Record};
use super::{Shared, now_ns};
use crate::error::FsError;
use crate::tree::{Changes, MakeContent, Names, View, laid_over};
use holdfast_content::{
    BlockSink, Content, DeviceId, Entry, Handle, Inode, InodeKind, PrincipalId, UserId, directory,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// An inode in the local state; `None` if it was removed.
type LocalInode = Option<Arc<Inode>>;

/// A view of the local state. It always reads the newest, so a later read never sees less than an earlier
/// one.
pub struct LiveView {
    pub(super) shared: Arc<Shared>,
    pub(super) position: u64,
}

impl LiveView {
    /// The inode in the overlay, if it has one; the base view to read it from otherwise; and the time of the
    /// latest local change of a name in it that is newer than the inode.
    fn layered(&self, handle: Handle) -> (Option<LocalInode>, Arc<dyn View>, Option<i64>) {
        let local = self.shared.local.lock();
        let here = local.overlay.inodes.get(&handle).map(|changed| changed.value.clone());
        // If the directory's time was set after the last change of a name, the set time stays.
        let set_by = local.overlay.inodes.get(&handle).map_or(0, |changed| changed.record);
        let names = local.overlay.names.get(&handle);
        let latest = names.and_then(|names| names.latest.as_ref()).filter(|latest| latest.record > set_by);
        (here, local.base.clone(), latest.map(|latest| latest.value))
    }

    /// The overlay's changes of names in a directory that sort after `after`; and the base view to read the
    /// other names from, if it has the directory.
    fn directory(&self, directory: Handle, after: Option<&[u8]>) -> Result<Layers, FsError> {
        let (here, changed, base) = {
            let local = self.shared.local.lock();
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            let names = local.overlay.names.get(&directory).map(|names| {
                let range = names.entries.range::<[u8], _>((from, Bound::Unbounded));
                range.map(|(name, changed)| (name.clone(), changed.value)).collect()
            });
            let here = local.overlay.inodes.get(&directory).map(|changed| changed.value.clone());
            (here, names.unwrap_or_default(), local.base.clone())
        };
        let below = match here {
            Some(None) => return Err(FsError::NotFound),
            Some(Some(inode)) if inode.kind != InodeKind::Directory => return Err(FsError::NotDirectory),
            Some(Some(_)) => match base.inode(directory) {
                Ok(_) => Some(base),
                Err(FsError::NotFound) => None,
                Err(error) => return Err(error),
            },
            None => Some(base),
        };
        Ok(Layers { changed, below })
    }
}

/// The layers that make up a directory's listing.
struct Layers {
    changed: BTreeMap<Vec<u8>, Option<Entry>>,
    below: Option<Arc<dyn View>>,
}

fn with_time(inode: Arc<Inode>, latest: Option<i64>) -> Arc<Inode> {
    match latest {
        Some(time)
            if inode.kind == InodeKind::Directory && time > inode.modified_ns.min(inode.changed_ns) =>
        {
            let mut changed = Inode::clone(&inode);
            changed.modified_ns = changed.modified_ns.max(time);
            changed.changed_ns = changed.changed_ns.max(time);
            Arc::new(changed)
        }
        _ => inode,
    }
}

impl View for LiveView {
    fn position(&self) -> u64 {
        self.position
    }

    fn inode(&self, handle: Handle) -> Result<Arc<Inode>, FsError> {
        let (here, base, latest) = self.layered(handle);
        let inode = match here {
            Some(inode) => inode.ok_or(FsError::NotFound)?,
            None => base.inode(handle)?,
        };
        Ok(with_time(inode, latest))
    }

    fn entry(&self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
        let (here, base) = {
            let local = self.shared.local.lock();
            let names = local.overlay.names.get(&directory);
            if let Some(changed) = names.and_then(|names| names.entries.get(name)) {
                return Ok(changed.value);
            }
            (local.overlay.inodes.get(&directory).map(|changed| changed.value.clone()), local.base.clone())
        };
        match (here, base.entry(directory, name)) {
            (Some(None), _) => Err(FsError::NotFound),
            (Some(Some(inode)), _) if inode.kind != InodeKind::Directory => Err(FsError::NotDirectory),
            // The directory was made here, and the base view does not have it yet.
            (Some(Some(_)), Err(FsError::NotFound)) => Ok(None),
            (_, found) => found,
        }
    }

    fn entries(&self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError> {
        let Layers { changed, below } = self.directory(directory, after)?;
        // Each local change can hide one name of the base view.
        let wanted = limit.saturating_add(changed.len());
        let stored = match below {
            Some(base) => base.entries(directory, after, wanted)?,
            None => Vec::new(),
        };
        let complete = stored.len() < wanted;
        Ok(laid_over(stored, complete, changed, limit))
    }

    fn may_write(&self, principal: PrincipalId) -> bool {
        self.shared.local.lock().base.clone().may_write(principal)
    }

    fn principals(&self) -> Vec<PrincipalId> {
        self.shared.local.lock().base.clone().principals()
    }

    fn name_of(&self, principal: PrincipalId) -> String {
        self.shared.local.lock().base.clone().name_of(principal)
    }
}

type NewNames = BTreeMap<Vec<u8>, (Option<Entry>, i64)>;

/// One edit while it is being planned on the local state.
pub struct LocalTransaction {
    shared: Arc<Shared>,
    view: LiveView,
    inodes: BTreeMap<Handle, Option<Arc<Inode>>>,
    names: BTreeMap<Handle, NewNames>,
    seen_inodes: BTreeMap<Handle, Option<Arc<Inode>>>,
    seen_entries: BTreeMap<(Handle, Vec<u8>), Option<Entry>>,
    reads: BTreeSet<ReadKey>,
    taken: Vec<Handle>,
    /// Keeps what the edit reads and makes in the journal until the edit is there too.
    _writing: WriteGuard,
}

impl LocalTransaction {
    pub fn new(shared: Arc<Shared>) -> LocalTransaction {
        let view = LiveView { shared: shared.clone(), position: 0 };
        LocalTransaction {
            _writing: shared.journal.writing(),
            shared,
            view,
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            seen_inodes: BTreeMap::new(),
            seen_entries: BTreeMap::new(),
            reads: BTreeSet::new(),
            taken: Vec::new(),
        }
    }

    /// Whether something that the plan read was changed here after edit `record`.
    pub fn is_outdated(&self, overlay: &Overlay, record: u64) -> bool {
        self.reads.iter().any(|read| overlay.changed_since(read, record))
    }

    /// Whether the plan changes nothing.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.names.is_empty()
    }

    /// Turns the plan into a record for the journal; the caller sets its number.
    pub fn into_record(self, path: &dyn Fn(Handle) -> Vec<u8>) -> Record {
        let keep = |inode: &Option<Arc<Inode>>| inode.clone().map(JournalInode);
        let mut record = Record { at_ns: now_ns(), taken: self.taken, ..Record::default() };
        // A new inode has no path yet except that of the name it is given here.
        let mut paths: BTreeMap<Handle, Vec<u8>> = BTreeMap::new();
        for (directory, names) in self.names {
            let within = path(directory);
            for (name, (new, time_ns)) in names {
                let seen = self.seen_entries.get(&(directory, name.clone())).copied().flatten();
                if let Some(entry) = new.or(seen) {
                    let whole = [within.as_slice(), &name].join(&b'/');
                    let whole = whole.strip_prefix(b"/").map(<[u8]>::to_vec).unwrap_or(whole);
                    paths.insert(entry.handle, whole);
                }
                record.entries.push(EntryChange {
                    directory,
                    path: within.clone(),
                    name,
                    seen,
                    new,
                    time_ns,
                });
            }
        }
        for (handle, new) in self.inodes {
            let seen = self.seen_inodes.get(&handle).and_then(keep);
            // Includes the number that a file without a name got earlier.
            if seen.is_none() && !record.taken.contains(&handle) {
                record.taken.push(handle);
            }
            let path = paths.remove(&handle).unwrap_or_else(|| path(handle));
            record.inodes.push(InodeChange { handle, path, seen, new: keep(&new) });
        }
        record
    }

    /// All files that the plan reads or changes, except those it makes.
    pub fn files(&self) -> BTreeSet<Handle> {
        let read = self.reads.iter().map(|read| match read {
            ReadKey::Inode(file) | ReadKey::Entry(file, _) | ReadKey::Names(file) => file,
        });
        let all = read.chain(self.inodes.keys()).chain(self.names.keys());
        all.filter(|file| !self.taken.contains(file)).copied().collect()
    }

    /// File numbers that the plan has used; the caller returns them if the edit is not made.
    pub fn taken(&self) -> &[Handle] {
        &self.taken
    }

    fn staged_time(&self, handle: Handle) -> Option<i64> {
        self.names.get(&handle)?.values().map(|(_, time)| *time).max()
    }

    /// The inode before this edit.
    fn before(&mut self, handle: Handle) -> Result<Option<Arc<Inode>>, FsError> {
        self.reads.insert(ReadKey::Inode(handle));
        match self.view.inode(handle) {
            Ok(inode) => Ok(Some(inode)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn allowed(&self, principal: PrincipalId) -> Result<(), FsError> {
        match self.view.may_write(principal) {
            true => Ok(()),
            false => Err(FsError::not_writable(principal)),
        }
    }

    fn stage(&mut self, handle: Handle, inode: Option<Arc<Inode>>) -> Result<(), FsError> {
        if !self.seen_inodes.contains_key(&handle) {
            let seen = if self.taken.contains(&handle) { None } else { self.before(handle)? };
            self.seen_inodes.insert(handle, seen);
        }
        self.inodes.insert(handle, inode);
        Ok(())
    }
}

impl Changes for LocalTransaction {
    fn me(&self) -> DeviceId {
        self.shared.inner.me().0
    }

    fn user(&self) -> UserId {
        self.shared.inner.me().1
    }

    fn inode(&mut self, handle: Handle) -> Result<Arc<Inode>, FsError> {
        let inode = match self.inodes.get(&handle) {
            Some(staged) => staged.clone(),
            None => self.before(handle)?,
        };
        Ok(with_time(inode.ok_or(FsError::NotFound)?, self.staged_time(handle)))
    }

    fn entry(&mut self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
        if let Some((entry, _)) = self.names.get(&directory).and_then(|names| names.get(name)) {
            return Ok(*entry);
        }
        match self.inodes.get(&directory) {
            Some(None) => return Err(FsError::NotFound),
            Some(Some(inode)) if inode.kind != InodeKind::Directory => return Err(FsError::NotDirectory),
            // A new directory has no names in the base view.
            Some(Some(_)) if self.taken.contains(&directory) => return Ok(None),
            _ => {}
        }
        self.reads.insert(ReadKey::Inode(directory));
        self.reads.insert(ReadKey::Entry(directory, name.to_vec()));
        self.view.entry(directory, name)
    }

    fn entries(&mut self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let changed: BTreeMap<Vec<u8>, Option<Entry>> = match self.names.get(&directory) {
            Some(names) => names
                .range::<[u8], _>((from, Bound::Unbounded))
                .map(|(name, (entry, _))| (name.clone(), *entry))
                .collect(),
            None => BTreeMap::new(),
        };
        let wanted = limit.saturating_add(changed.len());
        let stored = match self.inodes.get(&directory) {
            Some(None) => return Err(FsError::NotFound),
            Some(Some(inode)) if inode.kind != InodeKind::Directory => return Err(FsError::NotDirectory),
            Some(Some(_)) if self.taken.contains(&directory) => Vec::new(),
            _ => {
                self.reads.insert(ReadKey::Inode(directory));
                self.reads.insert(ReadKey::Names(directory));
                self.view.entries(directory, after, wanted)?
            }
        };
        let complete = stored.len() < wanted;
        Ok(laid_over(stored, complete, changed, limit))
    }

    fn may_write(&self, principal: PrincipalId) -> bool {
        self.view.may_write(principal)
    }

    fn allocate(&mut self, principal: PrincipalId) -> Result<Handle, FsError> {
        self.allowed(principal)?;
        let handle = self.shared.take_number(principal)?;
        self.taken.push(handle);
        Ok(handle)
    }

    fn set_inode(&mut self, handle: Handle, mut inode: Inode) -> Result<(), FsError> {
        self.allowed(handle.principal)?;
        inode.writer = self.me();
        inode.check().map_err(|why| FsError::Invalid(why.to_string()))?;
        self.stage(handle, Some(Arc::new(inode)))
    }

    fn remove_inode(&mut self, handle: Handle) -> Result<(), FsError> {
        self.allowed(handle.principal)?;
        self.stage(handle, None)
    }

    fn set_entry(
        &mut self,
        directory: Handle,
        name: &[u8],
        entry: Option<Entry>,
        time_ns: i64,
    ) -> Result<(), FsError> {
        self.allowed(directory.principal)?;
        directory::check_name(name).map_err(|error| FsError::Invalid(error.to_string()))?;
        let key = (directory, name.to_vec());
        if !self.seen_entries.contains_key(&key) {
            let seen = match self.taken.contains(&directory) {
                true => None,
                false => {
                    self.reads.insert(ReadKey::Inode(directory));
                    self.reads.insert(ReadKey::Entry(directory, name.to_vec()));
                    self.view.entry(directory, name)?
                }
            };
            self.seen_entries.insert(key, seen);
        }
        self.names.entry(directory).or_default().insert(name.to_vec(), (entry, time_ns));
        Ok(())
    }

    fn make_content(&mut self, handle: Handle, make: MakeContent<'_>) -> Result<Content, FsError> {
        let source = self.shared.source();
        let mut sink = self.shared.sink();
        let made = make(&*source, &mut sink as &mut dyn BlockSink);
        sink.finish()?;
        made.map_err(|error| match self.view.inode(handle) {
            Ok(inode) => {
                self.shared.inner.content_error(handle, self.shared.path_text(handle), &inode, error)
            }
            Err(gone) => gone,
        })
    }
}
