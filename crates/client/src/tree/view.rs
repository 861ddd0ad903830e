//! The file system at one position in the order.

use crate::error::FsError;
use holdfast_content::{Entry, Handle, Inode, Membership, PrincipalId};
use std::sync::Arc;

/// Names and their entries, in byte order of name.
pub type Names = Vec<(Vec<u8>, Entry)>;

/// The file system at one position in the order: verified, immutable.
pub trait View: Send + Sync {
    /// Position in the order; a later view has a greater one.
    fn position(&self) -> u64;

    /// The inode of a file.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is none; integrity and reachability failures.
    fn inode(&self, file: Handle) -> Result<Arc<Inode>, FsError>;

    /// The entry of a name in a directory.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::NotFound`] if the directory is not there; and as above.
    fn entry(&self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError>;

    /// At most `limit` entries after a name, in byte order; fewer only at the end.
    ///
    /// # Errors
    /// As [`View::entry`].
    fn entries(&self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError>;

    /// Whether this device may write what `principal` owns.
    fn may_write(&self, principal: PrincipalId) -> bool;

    /// All users and groups that can own files.
    fn principals(&self) -> Vec<PrincipalId>;

    /// The name of a user, a group or the user of a device, for messages.
    fn name_of(&self, principal: PrincipalId) -> String;

    /// This view in a form that never asks other devices, if there is a different one: see
    /// [`crate::Snapshot::lenient`].
    fn lenient(&self) -> Option<Arc<dyn View>> {
        None
    }
}

/// The users and groups of a membership.
pub(crate) fn principals_of(members: &Membership) -> Vec<PrincipalId> {
    let users = members.users.keys().map(|user| PrincipalId::User(*user));
    users.chain(members.groups.keys().map(|group| PrincipalId::Group(*group))).collect()
}

/// The name of a user, a group or the user of a device in a membership; else the principal's number.
pub(crate) fn name_of(members: &Membership, principal: PrincipalId) -> String {
    let user = |user| members.users.get(&user).map(|user| user.name.clone());
    let name = match principal {
        PrincipalId::User(id) => user(id),
        PrincipalId::Group(id) => members.groups.get(&id).map(|group| group.name.clone()),
        PrincipalId::Device(id) => members.devices.get(&id).and_then(|device| user(device.user)),
        PrincipalId::Members => None,
    };
    name.unwrap_or_else(|| principal.to_string())
}
