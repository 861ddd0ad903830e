//! The superuser's work: creating a file system, and changing its membership.
//!
//! A change of membership is an operation of device 0 like any other, so it has a place in the order: what a
//! removed device signed before it stays valid, and nothing after it.
//!
//! Attack answered: a user who is removed from a group keeps the group's files that his devices have in their
//! tables, and goes on changing them there. So device 0 takes those files over (*adopts* them) in the
//! operation that removes him. And readers refuse a file that is in the table of a device that may not write
//! it, so an overlooked file fails closed.

mod adopt;
pub mod changes;
mod create;
pub mod off_line;
mod placement;
mod restored;

pub use create::{CreateConfig, CreateError, create_with};
pub use placement::{NewFileSystem, create, create_by};
pub use restored::{DeclarationPreview, DeclareConfig, DeclareError, declare_restore};

use crate::engine::Engine;
use crate::error::FsError;
use crate::tree::Changes;
use holdfast_content::{DeviceId, Entry, GroupId, Handle, Inode, InodeKind, Membership, PrincipalId, UserId};
use holdfast_crypto::PublicKey;
use parking_lot::Mutex;
use std::sync::Arc;

/// Whether a new user or group gets a directory of that name under the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// `/NAME`, owned by the new user or group.
    Make,
    /// No directory is made.
    None,
}

/// The result of a change that may have removed users from groups.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupDepartures {
    /// Number of groups' files that were taken over from users who left.
    pub adopted: usize,
    /// Groups, each with the users who left it, directly or through a group within it; by name.
    pub left: Vec<(String, Vec<String>)>,
}

/// Changes memberships through an engine that signs for device 0.
pub struct Admin<'a> {
    engine: &'a Engine,
}

impl<'a> Admin<'a> {
    /// # Errors
    /// [`FsError::Access`] unless the engine signs for device 0.
    pub fn new(engine: &'a Engine) -> Result<Admin<'a>, FsError> {
        if engine.me().0 == DeviceId::SUPERUSER {
            Ok(Admin { engine })
        } else {
            Err(FsError::Access("only the superuser's key changes the membership".to_owned()))
        }
    }

    /// The membership in force, in a view ordered after this call began.
    ///
    /// # Errors
    /// As [`Engine::fetch`].
    pub fn membership(&self) -> Result<Arc<Membership>, FsError> {
        Ok(self.engine.fetch()?.membership())
    }

    /// Adds a user, with a first device if a key is given.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::Invalid`]; as [`Engine::modify`].
    pub fn add_user(
        &self,
        name: &str,
        device: Option<(&str, PublicKey)>,
        home: Home,
        now_ns: i64,
    ) -> Result<UserId, FsError> {
        let name = name.to_owned();
        let device = device.map(|(device, key)| (device.to_owned(), key));
        let id = self.change({
            let name = name.clone();
            move |members| {
                let device = device.as_ref().map(|(device, key)| (device.as_str(), *key));
                changes::add_user(members, &name, device)
            }
        })?;
        self.make_home(home, PrincipalId::User(id), &name, now_ns)?;
        Ok(id)
    }

    /// Removes a user and all their devices. What they own stays readable and can no longer be changed.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotPermitted`] for the superuser; as [`Engine::modify`].
    pub fn remove_user(&self, name: &str) -> Result<(), FsError> {
        let name = name.to_owned();
        self.change(move |members| changes::remove_user(members, &name))
    }

    /// Adds a device of a user.
    ///
    /// # Errors
    /// [`FsError::NotFound`] for the user, [`FsError::Exists`] for the key or name; as [`Engine::modify`].
    pub fn add_device(&self, user: &str, name: &str, key: PublicKey) -> Result<DeviceId, FsError> {
        let (user, name) = (user.to_owned(), name.to_owned());
        self.change(move |members| changes::add_device(members, &user, &name, key))
    }

    /// Removes a device; nothing it signs from then on counts. What it wrote stays.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotPermitted`] for device 0; as [`Engine::modify`].
    pub fn remove_device(&self, user: &str, name: &str) -> Result<(), FsError> {
        let (user, name) = (user.to_owned(), name.to_owned());
        self.change(move |members| changes::remove_device(members, &user, &name))
    }

    /// Replaces a device's key in one operation: at that place in the order, the old key ends and the new one
    /// begins, under the same name. For the protocol this is another device with its own numbers. So what the
    /// old one wrote stays in the old one's table, and is taken over file by file when it is next written.
    ///
    /// # Errors
    /// [`FsError::NotFound`] for user or device, [`FsError::Exists`] for a key that was ever used,
    /// [`FsError::NotPermitted`] for device 0; as [`Engine::modify`].
    pub fn rotate_device(&self, user: &str, name: &str, key: PublicKey) -> Result<DeviceId, FsError> {
        let (user, name) = (user.to_owned(), name.to_owned());
        self.change(move |members| changes::rotate_device(members, &user, &name, key))
    }

    /// Adds a group. Members are named as for [`Membership::member_by_name`]: groups with an `@`.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NotFound`] for a member, [`FsError::Invalid`]; as [`Engine::modify`].
    pub fn add_group(
        &self,
        name: &str,
        members: &[&str],
        home: Home,
        now_ns: i64,
    ) -> Result<GroupId, FsError> {
        let owned_name = name.to_owned();
        let names: Vec<String> = members.iter().map(|member| (*member).to_owned()).collect();
        let id = self.change(move |members| changes::add_group(members, &owned_name, &names))?;
        self.make_home(home, PrincipalId::Group(id), name, now_ns)?;
        Ok(id)
    }

    /// Removes a group. Its files stay readable and can no longer be changed. Users who belonged to other
    /// groups only through it leave those groups, and lose the files of those groups that their devices have.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; as [`Engine::modify`].
    pub fn remove_group(&self, name: &str) -> Result<GroupDepartures, FsError> {
        let name = name.to_owned();
        adopt::change(self.engine, move |members| changes::remove_group(members, &name))
    }

    /// Makes a user, or an `@` group, a member of a group.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::Exists`], [`FsError::Invalid`] if groups would contain each other in
    /// a circle or too deeply; as [`Engine::modify`].
    pub fn add_member(&self, group: &str, member: &str) -> Result<(), FsError> {
        let (group, member) = (group.to_owned(), member.to_owned());
        self.change(move |members| changes::add_member(members, &group, &member))
    }

    /// Removes a user, or an `@` group, from a group. Files of it, or of groups around it, that are in tables
    /// of devices of users who no longer belong to it are taken over.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; as [`Engine::modify`].
    pub fn remove_member(&self, group: &str, member: &str) -> Result<GroupDepartures, FsError> {
        let (group, member) = (group.to_owned(), member.to_owned());
        adopt::change(self.engine, move |members| changes::remove_member(members, &group, &member))
    }

    /// Limits how much a user may store at the server, in bytes; `None` removes the limit.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; as [`Engine::modify`].
    pub fn set_quota(&self, user: &str, bytes: Option<u64>) -> Result<(), FsError> {
        let user = user.to_owned();
        self.change(move |members| changes::set_quota(members, &user, bytes))
    }

    /// Changes the membership; `change` gets it with the version it will have.
    fn change<T: Clone + Send + 'static>(
        &self,
        mut change: impl FnMut(&mut Membership) -> Result<T, FsError> + Send + 'static,
    ) -> Result<T, FsError> {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        let edit = move |changes: &mut dyn Changes| {
            let mut membership = changes.membership()?;
            let mut next = membership.next();
            *slot.lock() = Some(change(&mut next)?);
            membership.set(next)
        };
        self.engine.modify(Arc::new(Mutex::new(edit)))?;
        self.engine.flush_commits()?;
        let result = result.lock().take();
        Ok(result.expect("the edit that succeeded left a result"))
    }

    fn make_home(&self, home: Home, owner: PrincipalId, name: &str, now_ns: i64) -> Result<(), FsError> {
        match home {
            Home::Make => make_home(self.engine, owner, name, now_ns),
            Home::None => Ok(()),
        }
    }
}

/// Makes `/NAME`, owned by an existing principal. Does nothing if the principal has it already.
fn make_home(engine: &Engine, owner: PrincipalId, name: &str, now_ns: i64) -> Result<(), FsError> {
    let name = name.as_bytes().to_vec();
    let edit = move |changes: &mut dyn Changes| {
        if let Some(entry) = changes.entry(Handle::ROOT, &name)? {
            return if entry.handle.principal == owner { Ok(()) } else { Err(FsError::Exists) };
        }
        let handle = changes.allocate(owner)?;
        let inode = Inode::new(InodeKind::Directory, 0o755, changes.me(), now_ns);
        changes.set_inode(handle, inode)?;
        let entry = Entry { handle, kind: InodeKind::Directory };
        changes.set_entry(Handle::ROOT, &name, Some(entry), now_ns)
    };
    engine.modify(Arc::new(Mutex::new(edit)))?;
    engine.flush_commits()
}
