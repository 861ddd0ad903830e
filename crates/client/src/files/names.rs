//! Makes, removes and moves names. Each is one edit. Every precondition (the name is free, the directory is
//! empty, the new place is not inside what moves) is checked where the order puts the edit, so it holds
//! against all other clients.

use super::edit::{LINKS_MAX, NameRemoval, drop_link, existing, writable_directory};
use super::nodes::{InodeName, Node};
use super::past::is_folder;
use super::program_rules::inherit;
use super::{Attributes, Caller, FileSystem, Ino, RenameFlags, check_name, ino_of, now_ns};
use crate::error::FsError;
use crate::tree::{Changes, View};
use holdfast_content::{Content, Entry, Handle, Inode, InodeKind, TARGET_BYTES_MAX};
use std::collections::HashSet;
use std::sync::Arc;

/// Most directories searched for the target of a rename when its path to the root is unknown.
const SEARCH_MAX: usize = 20_000;
/// Permission bit that new directories inherit from their parent.
const SET_GROUP_ID: u32 = 0o2000;
/// Number of entries read at once by that search.
const SEARCH_PAGE: usize = 512;

/// A newly made inode.
pub(super) struct NewInode {
    /// Its attributes.
    pub attributes: Attributes,
    /// The inode as it was made.
    pub inode: Arc<Inode>,
    /// Its node.
    pub node: Arc<Node>,
    /// The view of the operation that made it.
    pub view: Arc<dyn View>,
}

impl FileSystem {
    /// Makes a directory. Counts one lookup, like all calls here that return attributes.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::Access`], [`FsError::NotDirectory`], [`FsError::NotFound`].
    pub fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], mode: u32) -> Result<Attributes, FsError> {
        let inode = Inode::new(InodeKind::Directory, mode, self.engine.me().0, now_ns());
        self.make(caller, parent, name, inode)
    }

    /// Makes an empty file, a FIFO, the name of a socket, or a device file. Device files are only data here.
    ///
    /// # Errors
    /// As [`FileSystem::mkdir`]; [`FsError::Invalid`] for other kinds.
    pub fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        kind: InodeKind,
        mode: u32,
        device_number: u32,
    ) -> Result<Attributes, FsError> {
        let mut inode = Inode::new(kind, mode, self.engine.me().0, now_ns());
        match kind {
            InodeKind::CharDevice | InodeKind::BlockDevice => inode.device_number = device_number,
            InodeKind::File | InodeKind::Fifo | InodeKind::Socket => {}
            InodeKind::Directory | InodeKind::Symlink => {
                return Err(FsError::Invalid("mknod makes no directories or links".into()));
            }
        }
        self.make(caller, parent, name, inode)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`FileSystem::mkdir`]; [`FsError::NameTooLong`] for the target, [`FsError::NotFound`] for an empty
    /// one.
    pub fn symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attributes, FsError> {
        if target.len() > TARGET_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        let mut inode = Inode::new(InodeKind::Symlink, 0o777, self.engine.me().0, now_ns());
        inode.size = target.len() as u64;
        inode.content = Content::Target(target.to_vec());
        self.make(caller, parent, name, inode)
    }

    fn make(&self, caller: &Caller, parent: Ino, name: &[u8], inode: Inode) -> Result<Attributes, FsError> {
        self.run(|| Ok(self.make_inode(caller, parent, name, inode)?.attributes))
    }

    /// Makes an inode under a new name. It belongs to the directory's principal.
    pub(super) fn make_inode(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        inode: Inode,
    ) -> Result<NewInode, FsError> {
        self.settle_in(caller, &[(parent, name)])?;
        self.may_change()?;
        self.backend.room(0)?;
        check_name(name)?;
        if is_folder(parent, name) {
            return Err(FsError::Exists);
        }
        let directory = self.handle(parent)?;
        let wanted = name.to_vec();
        let ((handle, made), view) = self.edit(move |changes| {
            let within = writable_directory(changes, directory)?;
            if changes.entry(directory, &wanted)?.is_some() {
                return Err(FsError::Exists);
            }
            let mut inode = inode.clone();
            if inode.kind == InodeKind::Directory {
                // The kernel leaves it to network file systems to pass this bit on.
                inode.mode |= within.mode & SET_GROUP_ID;
            }
            inherit(&within.xattrs, &mut inode);
            let handle = changes.allocate(directory.principal)?;
            let (entry, now_ns) = (Entry { handle, kind: inode.kind }, inode.modified_ns);
            changes.set_inode(handle, inode.clone())?;
            changes.set_entry(directory, &wanted, Some(entry), now_ns)?;
            Ok((handle, inode))
        })?;
        let inode = match view.inode(handle) {
            // The server has declared the operation dead after all, so it is being made again; the inode is
            // not missing.
            Err(FsError::NotFound | FsError::Stale) => Arc::new(made),
            inode => inode?,
        };
        let attributes = self.attributes(&*view, handle, &inode);
        let node = self.nodes.looked_up(attributes.ino, handle, parent, name);
        node.shows(&attributes);
        Ok(NewInode { attributes, inode, node, view })
    }

    /// Removes a name that is not a directory's.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::IsDirectory`], [`FsError::Access`].
    pub fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        self.run(|| {
            self.settle_in(caller, &[(parent, name)])?;
            self.may_change()?;
            check_name(name)?;
            let directory = self.handle(parent)?;
            let (name, now) = (name.to_vec(), now_ns());
            let (dropped, view) = self.edit(move |changes| {
                writable_directory(changes, directory)?;
                let entry = existing(changes, directory, &name)?;
                if kind_of(changes, &entry)? == Some(InodeKind::Directory) {
                    return Err(FsError::IsDirectory);
                }
                changes.set_entry(directory, &name, None, now)?;
                drop_link(changes, entry.handle, now)
            })?;
            self.dropped(&*view, dropped);
            Ok(())
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsError::NotEmpty`], whoever owns the files in it; [`FsError::NotDirectory`], [`FsError::NotFound`],
    /// [`FsError::Access`].
    pub fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        self.run(|| {
            self.settle_in(caller, &[(parent, name)])?;
            self.may_change()?;
            check_name(name)?;
            let directory = self.handle(parent)?;
            let (name, now) = (name.to_vec(), now_ns());
            let (dropped, view) = self.edit(move |changes| {
                writable_directory(changes, directory)?;
                let entry = existing(changes, directory, &name)?;
                match kind_of(changes, &entry)? {
                    Some(InodeKind::Directory) => must_be_empty(changes, entry.handle)?,
                    Some(_) => return Err(FsError::NotDirectory),
                    None => {}
                }
                changes.set_entry(directory, &name, None, now)?;
                drop_link(changes, entry.handle, now)
            })?;
            self.dropped(&*view, dropped);
            Ok(())
        })
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// [`FsError::Exists`]; [`FsError::NotPermitted`] for directories, and for files that this device may not
    /// write, because it could not keep their link count right; [`FsError::TooManyLinks`];
    /// [`FsError::NotFound`] if the file has lost its last name.
    pub fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attributes, FsError> {
        self.run(|| {
            self.settle_in(caller, &[(parent, name)])?;
            self.may_change()?;
            check_name(name)?;
            if is_folder(parent, name) {
                return Err(FsError::Exists);
            }
            let (handle, directory) = (self.handle(ino)?, self.handle(parent)?);
            if let Some(attributes) = self.link_orphan(handle, parent, name)? {
                return Ok(attributes);
            }
            let (wanted, now) = (name.to_vec(), now_ns());
            let (_, view) = self.edit(move |changes| {
                writable_directory(changes, directory)?;
                let mut inode = (*changes.inode(handle)?).clone();
                if inode.kind == InodeKind::Directory {
                    return Err(FsError::NotPermitted("a directory has one name".into()));
                }
                if !changes.may_write(handle.principal) {
                    return Err(FsError::NotPermitted(format!("the file belongs to {}", handle.principal)));
                }
                if changes.entry(directory, &wanted)?.is_some() {
                    return Err(FsError::Exists);
                }
                if inode.links >= LINKS_MAX {
                    return Err(FsError::TooManyLinks);
                }
                inode.links += 1;
                inode.changed_ns = now;
                let entry = Entry { handle, kind: inode.kind };
                changes.set_inode(handle, inode)?;
                changes.set_entry(directory, &wanted, Some(entry), now)
            })?;
            let inode = view.inode(handle)?;
            let attributes = self.attributes(&*view, handle, &inode);
            self.nodes.looked_up(ino, handle, parent, name);
            Ok(attributes)
        })
    }

    /// Moves a name.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; [`FsError::Exists`] (no replacing wanted); [`FsError::NotEmpty`],
    /// [`FsError::IsDirectory`], [`FsError::NotDirectory`] (what would be replaced does not fit);
    /// [`FsError::Invalid`] (a directory into itself); [`FsError::Access`]; [`FsError::Busy`] (a tree too
    /// large to be sure).
    pub fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<(), FsError> {
        self.run(|| {
            self.settle_in(caller, &[(parent, name), (new_parent, new_name)])?;
            self.may_change()?;
            check_name(name)?;
            check_name(new_name)?;
            if is_folder(new_parent, new_name) {
                return Err(FsError::ReadOnly);
            }
            let rename = Rename {
                from: (self.handle(parent)?, name.to_vec()),
                to: (self.handle(new_parent)?, new_name.to_vec()),
                flags,
                from_chain: self.chain(parent),
                to_chain: self.chain(new_parent),
                now_ns: now_ns(),
            };
            self.name_moves((parent, name), (new_parent, new_name));
            let (moved, view) = self.edit(move |changes| rename.plan(changes))?;
            if let Some(moved) = moved {
                self.nodes.moved(ino_of(moved.source), new_parent, new_name);
                if let Some(exchanged) = moved.exchanged {
                    self.nodes.moved(ino_of(exchanged), parent, name);
                }
                if let Some(dropped) = moved.dropped {
                    self.dropped(&*view, dropped);
                }
            }
            Ok(())
        })
    }

    /// The directories above `ino`, as last seen; [`Rename::refuse_cycle`] verifies them.
    fn chain(&self, ino: Ino) -> Option<Vec<Link>> {
        let to_link = |InodeName { ino, parent, name }| {
            Some(Link { child: self.handle(ino).ok()?, parent: self.handle(parent).ok()?, name })
        };
        self.nodes.ancestors(ino)?.into_iter().map(to_link).collect()
    }

    /// Handles the removal of a name by this client. If the inode is gone too, open descriptors of it go on
    /// without publishing.
    pub(super) fn dropped(&self, view: &dyn View, dropped: NameRemoval) {
        let (NameRemoval::Removed(handle, _) | NameRemoval::Remains(handle)) = dropped;
        for node in self.nodes.of(ino_of(handle), handle) {
            Self::tell_dropped(&node, view, &dropped);
        }
    }

    fn tell_dropped(node: &Node, view: &dyn View, dropped: &NameRemoval) {
        match dropped {
            NameRemoval::Remains(handle) => {
                let Ok(inode) = view.inode(*handle) else { return };
                let mut state = node.state();
                let writers = state.writers > 0;
                if let Some(file) = &mut state.file {
                    file.refresh(&inode, view.position(), writers);
                }
            }
            NameRemoval::Removed(_, inode) => {
                let mut state = node.state();
                if let Some(file) = &mut state.file {
                    file.removed_here();
                }
                state.removed = inode.as_ref().map(|inode| Box::new(Inode::clone(inode)));
            }
        }
    }
}

/// The kind of the inode that an entry names; `None` if there is no inode. (The entry's own kind is not
/// relied on.)
fn kind_of(changes: &mut dyn Changes, entry: &Entry) -> Result<Option<InodeKind>, FsError> {
    match changes.inode(entry.handle) {
        Ok(inode) => Ok(Some(inode.kind)),
        Err(FsError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

fn must_be_empty(changes: &mut dyn Changes, directory: Handle) -> Result<(), FsError> {
    match changes.entries(directory, None, 1)?.is_empty() {
        true => Ok(()),
        false => Err(FsError::NotEmpty),
    }
}

/// A directory with its parent and name, as last seen.
struct Link {
    child: Handle,
    parent: Handle,
    name: Box<[u8]>,
}

struct Rename {
    from: (Handle, Vec<u8>),
    to: (Handle, Vec<u8>),
    flags: RenameFlags,
    from_chain: Option<Vec<Link>>,
    to_chain: Option<Vec<Link>>,
    now_ns: i64,
}

#[derive(Clone)]
struct RenameOutcome {
    source: Handle,
    exchanged: Option<Handle>,
    dropped: Option<NameRemoval>,
}

impl Rename {
    /// Plans the rename. `None` if both names lead to the same file already, which is no change (POSIX).
    fn plan(&self, changes: &mut dyn Changes) -> Result<Option<RenameOutcome>, FsError> {
        let (from, to) = (self.from.0, self.to.0);
        writable_directory(changes, from)?;
        writable_directory(changes, to)?;
        let source = existing(changes, from, &self.from.1)?;
        let source_kind = kind_of(changes, &source)?;
        let is_directory = source_kind == Some(InodeKind::Directory);
        let target = changes.entry(to, &self.to.1)?;
        if target.is_some() && self.flags == RenameFlags::NoReplace {
            return Err(FsError::Exists);
        }
        if from != to && is_directory {
            self.refuse_cycle(changes, source.handle, to, &self.to_chain)?;
        }
        let mut moved = RenameOutcome { source: source.handle, exchanged: None, dropped: None };
        match (target, self.flags) {
            (None, RenameFlags::Exchange) => return Err(FsError::NotFound),
            (None, _) => changes.set_entry(from, &self.from.1, None, self.now_ns)?,
            (Some(target), _) if target.handle == source.handle => return Ok(None),
            (Some(target), RenameFlags::Exchange) => {
                let kind = kind_of(changes, &target)?;
                if from != to && kind == Some(InodeKind::Directory) {
                    self.refuse_cycle(changes, target.handle, from, &self.from_chain)?;
                }
                changes.set_entry(from, &self.from.1, Some(target), self.now_ns)?;
                touch(changes, target.handle, self.now_ns)?;
                moved.exchanged = Some(target.handle);
            }
            (Some(target), _) => {
                match (is_directory, kind_of(changes, &target)?) {
                    (_, None) => {}
                    (true, Some(InodeKind::Directory)) => must_be_empty(changes, target.handle)?,
                    (true, Some(_)) => return Err(FsError::NotDirectory),
                    (false, Some(InodeKind::Directory)) => return Err(FsError::IsDirectory),
                    (false, Some(_)) => {}
                }
                changes.set_entry(from, &self.from.1, None, self.now_ns)?;
                moved.dropped = Some(drop_link(changes, target.handle, self.now_ns)?);
            }
        }
        changes.set_entry(to, &self.to.1, Some(source), self.now_ns)?;
        touch(changes, source.handle, self.now_ns)?;
        Ok(Some(moved))
    }

    /// Refuses to move `directory` to `place` if that is `directory` itself or below it. Inodes have no
    /// parent pointers: the chain of parents from earlier look-ups is verified link by link in the state that
    /// this edit runs on; if it no longer holds, everything below `directory` is searched.
    fn refuse_cycle(
        &self,
        changes: &mut dyn Changes,
        directory: Handle,
        place: Handle,
        chain: &Option<Vec<Link>>,
    ) -> Result<(), FsError> {
        let inside = || FsError::Invalid("a directory cannot be moved into itself".into());
        if directory == place {
            return Err(inside());
        }
        let mut at = place;
        for link in chain.iter().flatten() {
            let entry = match changes.entry(link.parent, &link.name) {
                Err(FsError::NotFound | FsError::NotDirectory) => None,
                other => other?,
            };
            if link.child != at || entry.is_none_or(|entry| entry.handle != at) {
                break;
            }
            at = link.parent;
            if at == directory {
                return Err(inside());
            }
        }
        if at == Handle::ROOT && chain.is_some() {
            return Ok(());
        }
        match below(changes, directory, place)? {
            true => Err(inside()),
            false => Ok(()),
        }
    }
}

/// Whether `wanted` is somewhere below `directory`.
pub(super) fn below(changes: &mut dyn Changes, directory: Handle, wanted: Handle) -> Result<bool, FsError> {
    let mut seen = HashSet::from([directory]);
    let mut waiting = vec![directory];
    while let Some(directory) = waiting.pop() {
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = match changes.entries(directory, after.as_deref(), SEARCH_PAGE) {
                Err(FsError::NotFound | FsError::NotDirectory) => break,
                other => other?,
            };
            for (_, entry) in page.iter().filter(|(_, entry)| entry.kind == InodeKind::Directory) {
                if entry.handle == wanted {
                    return Ok(true);
                }
                if seen.insert(entry.handle) {
                    waiting.push(entry.handle);
                }
            }
            if seen.len() > SEARCH_MAX {
                return Err(FsError::Busy);
            }
            match page.into_iter().next_back() {
                Some((name, _)) => after = Some(name),
                None => break,
            }
        }
    }
    Ok(false)
}

/// Sets the time of change of a moved inode, if this device may write it.
fn touch(changes: &mut dyn Changes, handle: Handle, now_ns: i64) -> Result<(), FsError> {
    if !changes.may_write(handle.principal) {
        return Ok(());
    }
    let mut inode = match changes.inode(handle) {
        Err(FsError::NotFound) => return Ok(()),
        other => (*other?).clone(),
    };
    inode.changed_ns = now_ns;
    changes.set_inode(handle, inode)
}
