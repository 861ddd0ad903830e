//! Lookup, forget, getattr, readlink, access and statfs.

use super::leases::LeaseBasis;
use super::nodes::NodeState;
use super::past::is_folder;
use super::state::NameStatus;
use super::views::{FetchedView, LookupBasis, LookupView, PathStep};
use super::{
    Attributes, Caller, FileHandleId, FileSystem, Ino, Rights, Statistics, check_name, ino_of, known_handle,
    own_attributes,
};
use crate::error::FsError;
use crate::tree::View;
use holdfast_content::{Content, DeviceId, Entry, Handle, Inode, InodeKind, NAME_BYTES_MAX};
use std::sync::Arc;

impl FileSystem {
    /// Finds a name. Counts one lookup of the inode, which [`FileSystem::forget`] undoes.
    ///
    /// # Errors
    /// [`FsError::NotFound`] in a fresh, verified view; [`FsError::NotDirectory`], [`FsError::NameTooLong`].
    pub fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attributes, FsError> {
        self.lookup_with_basis(caller, parent, name).0
    }

    /// Like [`FileSystem::lookup`], but also returns the lease that the answer rests on, if any; for
    /// [`FileSystem::name_life`].
    pub fn lookup_with_basis(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> (Result<Attributes, FsError>, Option<LeaseBasis>) {
        let mut basis = None;
        if parent.is_past() || is_folder(parent, name) {
            return (self.run(|| self.past_lookup(caller, parent, name)), None);
        }
        let found = self.run(|| {
            check_name(name)?;
            let directory = self.handle(parent)?;
            let is_open = self.nodes.is_open(parent);
            let walk = self.tokens.take_for_walk(caller.thread, parent, is_open);
            // A name found through a listing is checked later, by the path that led to it; so that path must
            // be recorded.
            if !matches!(walk, LookupView::Listing(_))
                && let Some((found, rests_on)) = self.look_up_leased(caller, parent, directory, name)
            {
                basis = Some(rests_on);
                return found;
            }
            self.look_up_fresh(caller, parent, directory, name, walk)
        });
        (found, basis)
    }

    fn look_up_fresh(
        &self,
        caller: &Caller,
        parent: Ino,
        directory: Handle,
        name: &[u8],
        walk: LookupView,
    ) -> Result<Attributes, FsError> {
        let (fetched, basis) = match walk {
            LookupView::Fresh(fetched, within) => (fetched, LookupBasis::Fresh(Some(within))),
            LookupView::Listing(found_by) => {
                if let Some(found) = self.look_up_listed(caller, parent, directory, name, found_by.clone())? {
                    return Ok(found);
                }
                self.look_ahead(parent, directory, name);
                let fetched = self.fetch(&[directory])?;
                self.check_places(caller, &*fetched.view, &found_by)?;
                self.tokens.renew_listed(caller.thread, parent, fetched.at);
                (fetched, LookupBasis::Fresh(None))
            }
            LookupView::Unknown => {
                if let Some(found) = self.look_up_listed(caller, parent, directory, name, Vec::new())? {
                    return Ok(found);
                }
                self.look_ahead(parent, directory, name);
                let fetched = self.fetch(&[directory])?;
                self.tokens.renew_listed(caller.thread, parent, fetched.at);
                (fetched, LookupBasis::Fresh(None))
            }
        };
        loop {
            let entry = fetched.view.entry(directory, name)?.ok_or(FsError::NotFound)?;
            if let Some(found) = self.found(caller, &fetched, parent, name, entry, basis.clone())? {
                return Ok(found);
            }
        }
    }

    /// Answers a LOOKUP from a listing that the thread has just read, if that has the name; and one on the
    /// way to such a directory.
    fn look_up_listed(
        &self,
        caller: &Caller,
        parent: Ino,
        directory: Handle,
        name: &[u8],
        mut found_by: Vec<PathStep>,
    ) -> Result<Option<Attributes>, FsError> {
        let Some(at) = self.tokens.listed_at(caller.thread, parent, name) else { return Ok(None) };
        if self.frozen.get().is_some() {
            return Ok(None);
        }
        let fetched = FetchedView { view: self.backend.latest(), at };
        match fetched.view.entry(directory, name) {
            Ok(Some(entry)) => {
                let ino = ino_of(known_handle(entry.handle)?);
                found_by.push(PathStep { directory: parent, name: name.to_vec(), ino });
                self.found(caller, &fetched, parent, name, entry, LookupBasis::Listing(found_by))
            }
            // The name may exist by now, or the view may have lost the directory.
            Ok(None) | Err(FsError::NotFound | FsError::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Turns an entry into a reply to the kernel, and remembers it for the thread's next request. `None` as
    /// for [`FileSystem::show`].
    fn found(
        &self,
        caller: &Caller,
        fetched: &FetchedView,
        parent: Ino,
        name: &[u8],
        entry: Entry,
        basis: LookupBasis,
    ) -> Result<Option<Attributes>, FsError> {
        let Some(attributes) = self.show(&*fetched.view, parent, name, entry)? else { return Ok(None) };
        self.tokens.offer(caller.thread, attributes.ino, name, fetched, basis);
        Ok(Some(attributes))
    }

    /// The attributes of an entry for the kernel; counts one lookup. `None`: the view has moved on, and the
    /// name leads elsewhere or nowhere now.
    ///
    /// # Errors
    /// Those of the view.
    pub(super) fn show(
        &self,
        view: &dyn View,
        parent: Ino,
        name: &[u8],
        entry: Entry,
    ) -> Result<Option<Attributes>, FsError> {
        let handle = known_handle(entry.handle)?;
        let inode = match view.inode(handle) {
            // Reading may have waited for other devices' operations, and the view may be a later one after
            // that. Then the name may have gone together with its file.
            Err(FsError::NotFound | FsError::Stale)
                if view.entry(self.handle(parent)?, name)? != Some(entry) =>
            {
                return Ok(None);
            }
            Err(FsError::NotFound) => Arc::new(dangling(entry.kind)),
            other => other?,
        };
        let attributes = self.attributes(view, handle, &inode);
        self.nodes.looked_up(attributes.ino, handle, parent, name).shows(&attributes);
        Ok(Some(attributes))
    }

    /// Checks in a fresh view that names found through a listing still lead to the same inodes.
    ///
    /// # Errors
    /// [`FsError::LookAgain`]: one of them does not.
    pub(super) fn check_places(
        &self,
        caller: &Caller,
        view: &dyn View,
        names: &[PathStep],
    ) -> Result<(), FsError> {
        for PathStep { directory, name, ino } in names {
            let entry = match self.handle(*directory) {
                Ok(directory) => view.entry(directory, name),
                Err(error) => Err(error),
            };
            match entry {
                Ok(Some(entry)) if ino_of(entry.handle) == *ino => {}
                Ok(_) | Err(FsError::NotFound | FsError::NotDirectory | FsError::Stale) => {
                    self.tokens.forget_listed(caller.thread);
                    return Err(FsError::LookAgain);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Called before a change of `about`: checks that the names by which the thread has just found it still
    /// lead there, if they were found through a listing.
    ///
    /// # Errors
    /// As [`FileSystem::check_places`].
    pub(super) fn settle(&self, caller: &Caller, about: Ino) -> Result<(), FsError> {
        self.settle_names(caller, &[about], &[])
    }

    /// Like [`FileSystem::settle`], before a change of names. The change itself checks those names, so only
    /// the path to their directories is checked here.
    ///
    /// # Errors
    /// As [`FileSystem::check_places`].
    pub(super) fn settle_in(&self, caller: &Caller, judged: &[(Ino, &[u8])]) -> Result<(), FsError> {
        let directories: Vec<Ino> = judged.iter().map(|(directory, _)| *directory).collect();
        self.settle_names(caller, &directories, judged)
    }

    fn settle_names(&self, caller: &Caller, about: &[Ino], judged: &[(Ino, &[u8])]) -> Result<(), FsError> {
        let mut names = self.tokens.unchecked(caller.thread, about);
        names.retain(|found| !judged.contains(&(found.directory, &found.name[..])));
        if names.is_empty() { Ok(()) } else { self.check_places(caller, &*self.fetch(&[])?.view, &names) }
    }

    /// The kernel drops `count` lookups of an inode.
    pub fn forget(&self, ino: Ino, count: u64) {
        if ino.is_past() {
            self.past_forget(ino, count);
        }
        self.nodes.forget(ino, count);
    }

    /// The attributes of an inode. Of a file that is open here for writing, or has unpublished changes, they
    /// are those of this client; else they come from a fresh view. After an alarm about the order, the root
    /// keeps its last attributes, so that its status attribute can be read and it can be unmounted.
    ///
    /// # Errors
    /// [`FsError::Stale`]: the inode is gone.
    pub fn getattr(
        &self,
        caller: &Caller,
        ino: Ino,
        _handle: Option<FileHandleId>,
    ) -> Result<Attributes, FsError> {
        let result = self.fresh_attributes(caller, ino);
        if ino != Ino::ROOT {
            return result;
        }
        let mut last = self.root_shown.lock();
        match result {
            Ok(shown) => {
                *last = Some(shown);
                Ok(shown)
            }
            Err(error @ FsError::Frozen(_)) => last.ok_or(error),
            Err(error) => Err(error),
        }
    }

    fn fresh_attributes(&self, caller: &Caller, ino: Ino) -> Result<Attributes, FsError> {
        self.run(|| {
            if ino.is_past() {
                return self.past_getattr(ino);
            }
            let handle = self.handle(ino)?;
            if let Some(shown) = self.attributes_here(handle, ino) {
                self.tokens.forget_token(caller.thread);
                return Ok(shown);
            }
            let fetched = self.view_to_look_at(caller, ino)?;
            let view = &*fetched.view;
            match view.inode(handle) {
                Ok(inode) => {
                    let attributes = self.attributes(view, handle, &inode);
                    if let Some(node) = self.nodes.find(ino) {
                        node.shows(&attributes);
                    }
                    Ok(attributes)
                }
                Err(FsError::NotFound) => self.gone(handle, ino).ok_or(FsError::Stale),
                Err(error) => Err(error),
            }
        })
    }

    /// The attributes of a file that only this client has: with local changes, or without a name.
    fn attributes_here(&self, handle: Handle, ino: Ino) -> Option<Attributes> {
        let node = self.nodes.find(ino)?;
        let state = node.state();
        let file = state.file.as_ref()?;
        if !(state.writers > 0 || file.is_dirty() || file.named != NameStatus::Named) {
            return None;
        }
        let mut shown = self.published_attributes(&*self.backend.latest(), handle, &file.latest);
        own_attributes(file, &mut shown);
        Some(shown)
    }

    /// The attributes of an inode that a fresh view no longer has. If it is open here, was removed here, or
    /// is not a regular file, programs that have it open may go on with it without a name.
    pub(super) fn gone(&self, handle: Handle, ino: Ino) -> Option<Attributes> {
        let node = self.nodes.find(ino)?;
        let mut state = node.state();
        let NodeState { file, removed, shown, .. } = &mut *state;
        let Some(file) = file else {
            if removed.is_none() {
                *removed = Some(Box::new(inode_shown(shown.as_deref()?)));
            }
            let inode = removed.as_deref()?;
            let shown = self.published_attributes(&*self.backend.latest(), handle, inode);
            return Some(Attributes { links: 0, ..shown });
        };
        if file.named == NameStatus::Named {
            file.named = NameStatus::RemovedElsewhere;
        }
        let mut shown = self.published_attributes(&*self.backend.latest(), handle, &file.latest);
        own_attributes(file, &mut shown);
        Some(shown)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if the inode is not a symbolic link; [`FsError::Stale`].
    pub fn readlink(&self, caller: &Caller, ino: Ino) -> Result<Vec<u8>, FsError> {
        self.run(|| {
            if ino.is_past() {
                return self.past_readlink(ino);
            }
            // The file that the link leads to may be opened next.
            let view = self.view_of(caller, ino)?.view;
            match &view.inode(self.handle(ino)?).map_err(stale)?.content {
                Content::Target(target) => Ok(target.clone()),
                _ => Err(FsError::Invalid("not a symbolic link".into())),
            }
        })
    }

    /// Checks whether the caller has the rights: by the Unix permission bits for the owner that programs see,
    /// and for writing also by whether this device may write files of that principal.
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::ReadOnly`], [`FsError::Stale`].
    pub fn access(&self, caller: &Caller, ino: Ino, rights: Rights) -> Result<(), FsError> {
        self.run(|| {
            if ino.is_past() {
                return self.past_access(caller, ino, rights);
            }
            let handle = self.handle(ino)?;
            let fetched = self.view_of(caller, ino)?;
            let inode = fetched.view.inode(handle).map_err(stale)?;
            let mine = fetched.view.may_write(handle.principal);
            if rights.write {
                self.may_change()?;
                if !mine {
                    return Err(FsError::Access(format!("the file belongs to {}", handle.principal)));
                }
            }
            let (uid, gid) = self.owner_shown(handle.principal, mine);
            let shift = match () {
                () if caller.uid == uid => 6,
                () if caller.gid == gid => 3,
                () => 0,
            };
            let granted = inode.mode >> shift & 7;
            let wanted =
                u32::from(rights.read) << 2 | u32::from(rights.write) << 1 | u32::from(rights.execute);
            let executable = inode.kind == InodeKind::Directory || inode.mode & 0o111 != 0;
            let allowed = match caller.uid {
                0 => !rights.execute || executable,
                _ => granted & wanted == wanted,
            };
            if allowed { Ok(()) } else { Err(FsError::Access("the permission bits say no".into())) }
        })
    }

    /// Free space: the most restrictive of the user's quota at the server, the free space of the local
    /// spool's disk (everything written must pass it), and, while the server is away, the room left for local
    /// edits. The server does not disclose the space of its own disk.
    ///
    /// # Errors
    /// [`FsError::Local`].
    pub fn statfs(&self) -> Result<Statistics, FsError> {
        let space = rustix::fs::statvfs(self.spool.path())
            .map_err(|error| FsError::local("space of the spool", &error.into()))?;
        let unit = space.f_frsize.max(1);
        let in_blocks = |count: u64| (u128::from(count) * u128::from(unit) / 4096) as u64;
        let (mut blocks, mut blocks_free) = (in_blocks(space.f_blocks), in_blocks(space.f_bavail));
        if let Some(usage) = self.engine.quota()
            && let Some(limit) = usage.limit
        {
            blocks = limit / 4096;
            blocks_free = blocks_free.min(limit.saturating_sub(usage.bytes) / 4096);
        }
        if let Some(left) = self.backend.room_left() {
            blocks_free = blocks_free.min(left / 4096);
        }
        Ok(Statistics {
            block_bytes: 4096,
            blocks,
            blocks_free,
            files: 1 << 40,
            files_free: (1 << 40) - 1,
            name_bytes_max: NAME_BYTES_MAX as u32,
        })
    }

    /// An inode in a view that may answer a request about it.
    pub(super) fn fresh_inode(&self, caller: &Caller, ino: Ino) -> Result<Arc<Inode>, FsError> {
        if let Some(inode) = self.open_orphan(ino) {
            return Ok(inode);
        }
        let handle = self.handle(ino)?;
        let fetched = self.view_to_look_at(caller, ino)?;
        fetched.view.inode(handle).map_err(stale)
    }
}

/// Turns "not found" into "stale": the kernel asks by number for an inode that it looked up earlier, so the
/// inode is gone.
pub(super) fn stale(error: FsError) -> FsError {
    match error {
        FsError::NotFound => FsError::Stale,
        other => other,
    }
}

/// An inode that another client has removed, made from the attributes last returned for it.
fn inode_shown(shown: &Attributes) -> Inode {
    let mut inode = Inode::new(shown.kind, shown.mode, DeviceId(0), shown.changed_ns);
    (inode.links, inode.size, inode.modified_ns) = (0, shown.size, shown.modified_ns);
    inode.device_number = shown.device_number;
    inode
}

/// Stands for an inode that its owner has removed although a name of it, in a directory the owner may not
/// write, remains: an empty file without permissions and links, so that it can be seen and removed.
fn dangling(kind: InodeKind) -> Inode {
    let kind = match kind {
        InodeKind::Directory | InodeKind::Symlink => InodeKind::File,
        other => other,
    };
    let mut inode = Inode::new(kind, 0, DeviceId(0), 0);
    inode.links = 0;
    inode
}
