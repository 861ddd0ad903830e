//! Extended attributes: `user.*` only. They are stored in the inode, so they are small.

use super::{Caller, FileSystem, Ino, SetXattr, now_ns};
use crate::error::FsError;
use holdfast_content::{ATTRIBUTE_BYTES_MAX, ATTRIBUTE_NAME_BYTES_MAX};

/// The only namespace offered: the others are for the kernel or the machine's administrator.
const PREFIX: &[u8] = b"user.";

/// An attribute of the root directory: the status of the mount, also after an alarm. It is not listed, so
/// that copying a tree with its attributes does not copy it.
const STATUS: &[u8] = b"user.holdfast.status";

fn offered(name: &[u8]) -> Result<(), FsError> {
    match name.strip_prefix(PREFIX) {
        _ if name.len() > ATTRIBUTE_NAME_BYTES_MAX => Err(FsError::Invalid("attribute name too long".into())),
        Some([]) => Err(FsError::Invalid("attribute without a name".into())),
        Some(_) => Ok(()),
        None => Err(FsError::Unsupported),
    }
}

/// Refuses the attribute of rules: a program that rules exclude must not be able to remove them.
fn not_rules(name: &[u8]) -> Result<(), FsError> {
    match name == super::RULES {
        true => Err(FsError::NotPermitted("rules for programs are changed by `holdfast program acl`".into())),
        false => Ok(()),
    }
}

impl FileSystem {
    /// The value of an attribute.
    ///
    /// # Errors
    /// [`FsError::NoData`] if it is not there, [`FsError::Unsupported`] for other namespaces.
    pub fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        if ino == Ino::ROOT && name == STATUS {
            return Ok(self.status_text().into_bytes());
        }
        self.run(|| {
            offered(name)?;
            if ino.is_past() {
                return self.past_xattrs(ino)?.remove(name).ok_or(FsError::NoData);
            }
            self.fresh_inode(caller, ino)?.xattrs.get(name).cloned().ok_or(FsError::NoData)
        })
    }

    /// The names of all attributes, in byte order.
    ///
    /// # Errors
    /// [`FsError::Stale`].
    pub fn listxattr(&self, caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>, FsError> {
        self.run(|| match ino.is_past() {
            true => Ok(self.past_xattrs(ino)?.into_keys().collect()),
            false => Ok(self.fresh_inode(caller, ino)?.xattrs.keys().cloned().collect()),
        })
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// [`FsError::Exists`] or [`FsError::NoData`] by `how`; [`FsError::NoSpace`] if the file's attributes
    /// would be over [`ATTRIBUTE_BYTES_MAX`]; [`FsError::Unsupported`], [`FsError::NotPermitted`].
    pub fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<(), FsError> {
        let (wanted, value) = (name.to_vec(), value.to_vec());
        if name == STATUS {
            return Err(FsError::NotPermitted("this attribute is the mount's own".into()));
        }
        not_rules(name)?;
        self.edit_xattrs(caller, ino, name, move |xattrs| {
            match (how, xattrs.contains_key(&wanted)) {
                (SetXattr::Create, true) => return Err(FsError::Exists),
                (SetXattr::Replace, false) => return Err(FsError::NoData),
                _ => {}
            }
            xattrs.insert(wanted.clone(), value.clone());
            let bytes: usize = xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
            if bytes > ATTRIBUTE_BYTES_MAX { Err(FsError::NoSpace) } else { Ok(()) }
        })
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// [`FsError::NoData`] if it is not there; [`FsError::Unsupported`], [`FsError::NotPermitted`].
    pub fn removexattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Result<(), FsError> {
        let wanted = name.to_vec();
        not_rules(name)?;
        self.edit_xattrs(caller, ino, name, move |xattrs| {
            xattrs.remove(&wanted).map(drop).ok_or(FsError::NoData)
        })
    }

    fn edit_xattrs(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        change: impl Fn(&mut std::collections::BTreeMap<Vec<u8>, Vec<u8>>) -> Result<(), FsError> + Send + 'static,
    ) -> Result<(), FsError> {
        self.run(|| {
            self.settle(caller, ino)?;
            self.may_change()?;
            offered(name)?;
            self.edit_inode(ino, move |inode| change(&mut inode.xattrs))
        })
    }

    /// Changes a published inode's attributes, but not its content.
    pub(super) fn edit_inode(
        &self,
        ino: Ino,
        change: impl Fn(&mut holdfast_content::Inode) -> Result<(), FsError> + Send + 'static,
    ) -> Result<(), FsError> {
        if self.edit_orphan(ino, &change)? {
            return Ok(());
        }
        let (handle, now) = (self.handle(ino)?, now_ns());
        let (_, view) = self.edit(move |changes| {
            let mut inode = (*changes.inode(handle).map_err(super::lookup::stale)?).clone();
            if !changes.may_write(handle.principal) {
                return Err(FsError::NotPermitted(format!("the file belongs to {}", handle.principal)));
            }
            inode.changed_ns = now;
            change(&mut inode)?;
            changes.set_inode(handle, inode)
        })?;
        let inode = view.inode(handle).map_err(super::lookup::stale)?;
        self.attributes(&*view, handle, &inode);
        if let Some(node) = self.nodes.find(ino)
            && let Some(file) = &mut node.state().file
            && !file.is_dirty()
        {
            // Set on purpose, so they apply to this client's open file too.
            (file.modified_ns, file.changed_ns) = (inode.modified_ns, inode.changed_ns);
        }
        Ok(())
    }
}
