//! The owners that this machine shows, and changes of owner.
//!
//! A file belongs to one user or group of the file system permanently: the owner is part of its number.
//! Programs see a local user and group, by the mount's map. `chown` and `chgrp` to another principal make a
//! copy of the file that belongs to the new owner, by reference, and the name then leads to the copy (SUNDR
//! 4).

use super::compose::PublishReason;
use super::edit::{NameRemoval, drop_link, existing, writable_directory};
use super::{Attributes, Caller, FileSystem, Ino, NOBODY, SetAttributes};
use crate::error::FsError;
use crate::tree::Changes;
use holdfast_content::{Entry, GroupId, Handle, Inode, InodeKind, PrincipalId, UserId};
use std::collections::BTreeMap;

/// Most entries of a directory that is given another owner: all of them are entered again in one operation.
const ENTRIES_MAX: usize = 4096;
/// Number of entries that are read at once.
const PAGE: usize = 512;

/// The local users and groups that represent users and groups of the file system.
#[derive(Clone, Debug, Default)]
pub struct OwnerMap {
    /// Local user that represents each user, where there is one.
    pub users: BTreeMap<UserId, u32>,
    /// Local group that represents each group, where there is one.
    pub groups: BTreeMap<GroupId, u32>,
    /// What `chown` does for a local user or group that represents none of the file system.
    pub unmapped: UnmappedOwner,
}

/// What `chown` does for a local user or group that represents none of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UnmappedOwner {
    /// `chown` fails.
    #[default]
    Refuse,
    /// `chown` succeeds and changes nothing.
    Ignore,
}

/// The owner that a call of `chown` requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OwnerChange {
    /// The owner that the file has already.
    Same,
    /// Another owner.
    Other(PrincipalId),
    /// A local user or group that represents none of the file system.
    Unmapped,
}

impl FileSystem {
    /// The local user and group shown for a principal's files. Files that this mount may write are shown as
    /// the mounting user's, unless the map says otherwise.
    pub(super) fn owner_shown(&self, principal: PrincipalId, mine: bool) -> (u32, u32) {
        let map = &self.options.owners;
        let (uid, gid) = if mine { (self.options.uid, self.options.gid) } else { (NOBODY, NOBODY) };
        match principal {
            PrincipalId::User(user) => (map.users.get(&user).copied().unwrap_or(uid), gid),
            PrincipalId::Group(group) => (uid, map.groups.get(&group).copied().unwrap_or(gid)),
            PrincipalId::Device(_) | PrincipalId::Members => (uid, gid),
        }
    }

    fn wanted_owner(&self, present: PrincipalId, uid: Option<u32>, gid: Option<u32>) -> OwnerChange {
        let map = &self.options.owners;
        let mine = self.backend.latest().may_write(present);
        let shown = self.owner_shown(present, mine);
        let (uid, gid) = (uid.filter(|uid| *uid != shown.0), gid.filter(|gid| *gid != shown.1));
        let user = uid.map(|uid| match map.users.iter().find(|(_, local)| **local == uid) {
            Some((user, _)) => Some(*user),
            None => (uid == self.options.uid).then(|| self.engine.me().1),
        });
        let group = gid.map(|gid| match map.groups.iter().find(|(_, local)| **local == gid) {
            Some((group, _)) => Some(Some(*group)),
            // The mounting user's own group represents no group of the file system.
            None => (gid == self.options.gid).then_some(None),
        });
        // A local user or group that represents none is ignored, and the other half of the request is carried
        // out.
        let (user, group) = match map.unmapped {
            UnmappedOwner::Ignore => (user.filter(Option::is_some), group.filter(Option::is_some)),
            UnmappedOwner::Refuse => (user, group),
        };
        match (user, group) {
            (Some(None), _) | (_, Some(None)) => OwnerChange::Unmapped,
            // A file that belongs to a group has no user.
            (_, Some(Some(Some(group)))) => OwnerChange::Other(PrincipalId::Group(group)),
            (Some(Some(user)), _) => OwnerChange::Other(PrincipalId::User(user)),
            (None, Some(Some(None))) => OwnerChange::Other(PrincipalId::User(self.engine.me().1)),
            (None, None) => OwnerChange::Same,
        }
    }

    /// Gives a file the requested owner, and its mode and time of modification with it. `None`: it has that
    /// owner already, and nothing was done.
    pub(super) fn change_owner(
        &self,
        caller: &Caller,
        ino: Ino,
        set: &SetAttributes,
        modified_ns: Option<i64>,
    ) -> Result<Option<Attributes>, FsError> {
        if set.uid.is_none() && set.gid.is_none() {
            return Ok(None);
        }
        let present = self.handle(ino)?.principal;
        let principal = match self.wanted_owner(present, set.uid, set.gid) {
            OwnerChange::Other(principal) if principal != present => principal,
            OwnerChange::Unmapped => {
                return Err(FsError::NotPermitted(
                    "this user or group stands for nobody in the file system; see --map-user, --map-group"
                        .into(),
                ));
            }
            _ => return Ok(None),
        };
        if set.size.is_some() {
            return Err(FsError::Invalid("owner and size cannot be changed at once".into()));
        }
        self.settle(caller, ino)?;
        self.copy_to(ino, principal, set.mode.map(|mode| mode & 0o7777), modified_ns).map(Some)
    }

    /// Makes a name lead to a copy that belongs to `principal`. Only this name: other names of the same file
    /// lead to the file as before.
    fn copy_to(
        &self,
        ino: Ino,
        principal: PrincipalId,
        mode: Option<u32>,
        modified_ns: Option<i64>,
    ) -> Result<Attributes, FsError> {
        let no_name = || FsError::NotPermitted("its owner cannot be changed without a name".into());
        let node = self.nodes.find(ino);
        if let Some(node) = &node {
            self.publish(node, PublishReason::Sync)?;
        }
        let old = self.handle(ino)?;
        let (parent, name) = self.nodes.place(ino).ok_or_else(no_name)?;
        let (directory, now) = (self.handle(parent)?, super::now_ns());
        let shown_name = name.clone();
        let ((new, dropped), view) = self.edit(move |changes| {
            writable_directory(changes, directory)?;
            if !changes.may_write(principal) {
                let why = format!("only who may write for {principal} can give it a file");
                return Err(FsError::NotPermitted(why));
            }
            if existing(changes, directory, &name)?.handle != old {
                return Err(FsError::Stale);
            }
            let mut inode = (*changes.inode(old).map_err(super::lookup::stale)?).clone();
            (inode.links, inode.changed_ns) = (1, now);
            inode.mode = mode.unwrap_or(inode.mode);
            inode.modified_ns = modified_ns.unwrap_or(inode.modified_ns);
            let new = changes.allocate(principal)?;
            let kind = inode.kind;
            match kind {
                InodeKind::Directory => copy_directory(changes, old, new, inode)?,
                _ => changes.set_inode(new, inode)?,
            }
            changes.set_entry(directory, &name, Some(Entry { handle: new, kind }), now)?;
            let dropped = drop_link(changes, old, now)?;
            Ok((new, dropped))
        })?;
        let inode = view.inode(new)?;
        self.changed_unseen(vec![(parent, shown_name)], ino);
        match (&node, &dropped) {
            // No other name leads to the old number: programs that have it open continue with the copy.
            (Some(node), NameRemoval::Removed(..)) => {
                self.nodes.set_handle(node, new);
                if let Some(file) = &mut node.state().file {
                    file.refresh(&inode, view.position(), true);
                    (file.modified_ns, file.changed_ns) = (inode.modified_ns, inode.changed_ns);
                }
            }
            _ => self.dropped(&*view, dropped),
        }
        Ok(self.published_attributes(&*view, new, &inode))
    }
}

/// Makes a directory with the entries of another.
fn copy_directory(
    changes: &mut dyn Changes,
    from: Handle,
    to: Handle,
    mut inode: Inode,
) -> Result<(), FsError> {
    let modified_ns = inode.modified_ns;
    inode.content = Inode::new(InodeKind::Directory, 0, inode.writer, 0).content;
    inode.size = 0;
    let mut entries = Vec::new();
    loop {
        let after = entries.last().map(|(name, _): &(Vec<u8>, Entry)| name.clone());
        let page = changes.entries(from, after.as_deref(), PAGE)?;
        if page.is_empty() {
            break;
        }
        entries.extend(page);
        if entries.len() > ENTRIES_MAX {
            return Err(FsError::NotPermitted(format!(
                "a directory of more than {ENTRIES_MAX} entries keeps its owner; make a new one and move them"
            )));
        }
    }
    changes.set_inode(to, inode)?;
    for (name, entry) in entries {
        changes.set_entry(to, &name, Some(entry), modified_ns)?;
    }
    Ok(())
}
