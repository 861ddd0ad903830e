//! Rules for programs, as far as files are concerned: an attribute of the inode, and a guard that is asked
//! before a file with that attribute is opened. Only the guard interprets the rules.
//!
//! Invariants: a file with the attribute is opened only if the guard admits the open; without a guard the
//! open fails. Programs cannot change the attribute through the mount, nor the size of a file with rules by
//! its name, since the kernel does not say which program makes such a call. Both are done by requests to the
//! mount's control socket. New files and directories get the rules of their directory.

use super::{Caller, FileSystem, Ino, OpenFlags, OpenReply};
use crate::error::FsError;
use crate::tree::View;
use holdfast_content::{ATTRIBUTE_BYTES_MAX, Inode, InodeKind};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The attribute that holds a file's rules.
pub const RULES: &[u8] = b"user.holdfast.acl";

/// An open of a file with rules.
pub struct OpenAttempt<'a> {
    /// The process that opens it, as the kernel reports it.
    pub caller: &'a Caller,
    /// The file that is opened.
    pub ino: Ino,
    /// How it is opened.
    pub flags: OpenFlags,
    /// The rules as stored.
    pub rules: &'a [u8],
    /// Path of the file, for messages.
    pub path: String,
}

/// The guard's decision about an open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenDecision {
    /// The program may open the file.
    Admitted,
    /// The open must be repeated, so that its program can be identified.
    Again,
    /// The program may not open the file; the text says why.
    Refused(String),
}

/// Asked before files with rules are opened.
pub trait ProgramGuard: Send + Sync {
    /// Whether an open is admitted.
    fn enter(&self, entering: &OpenAttempt<'_>) -> OpenDecision;

    /// Called before a file is made in this directory, whose rules it will have.
    ///
    /// # Errors
    /// [`FsError::Access`]: the program that makes it could not be identified.
    fn before_creating(&self, directory: Ino) -> Result<(), FsError>;

    /// Called when a file was made and is open. The result says whether that descriptor may be used yet.
    fn created(&self, entering: &OpenAttempt<'_>) -> Arc<dyn OpenAdmission>;

    /// Reports that another call was refused because of rules.
    fn refused(&self, entering: &OpenAttempt<'_>, reason: &str);

    /// Whether this thread opens the file only because the kernel opens files for programs that watch opens.
    /// It gets a descriptor that cannot be used.
    fn is_blind(&self, thread: u32) -> bool;
}

/// Whether the program that made a file may use the descriptor that it got.
pub trait OpenAdmission: Send + Sync {
    /// Whether the open is admitted by now.
    fn is_given(&self) -> bool;
}

/// The kind of call by which a file is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AccessKind {
    /// An open, whose caller can be identified.
    Open,
    /// A call on its name.
    Name,
}

impl FileSystem {
    /// Registers the guard that is asked before files with rules are opened; only the first call counts.
    pub fn set_guard(&self, guard: Arc<dyn ProgramGuard>) {
        let _ = self.guard.set(guard);
    }

    /// Whether an open by this thread is for the guard's own use, and gets no file.
    pub fn is_blind(&self, thread: u32) -> bool {
        self.guard.get().is_some_and(|guard| guard.is_blind(thread))
    }

    /// The present rules of a file or directory, as stored.
    ///
    /// # Errors
    /// [`FsError::Stale`]: it is gone.
    pub fn rules(&self, ino: Ino) -> Result<Option<Vec<u8>>, FsError> {
        self.run(|| {
            let handle = self.handle(ino)?;
            let inode = self.fetch(&[handle])?.view.inode(handle).map_err(super::lookup::stale)?;
            Ok(inode.xattrs.get(RULES).cloned())
        })
    }

    /// Sets or removes the rules of a file or directory. Open descriptors stay open.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`]: another principal's; [`FsError::Invalid`]: neither file nor directory;
    /// [`FsError::NoSpace`], [`FsError::ReadOnly`], [`FsError::Stale`].
    pub fn set_rules(&self, ino: Ino, rules: Option<Vec<u8>>) -> Result<(), FsError> {
        self.run(|| {
            self.may_change()?;
            self.edit_inode(ino, move |inode| {
                if !matches!(inode.kind, InodeKind::File | InodeKind::Directory) {
                    return Err(FsError::Invalid("only files and directories have rules".into()));
                }
                match &rules {
                    Some(rules) => drop(inode.xattrs.insert(RULES.to_vec(), rules.clone())),
                    None => drop(inode.xattrs.remove(RULES)),
                }
                let bytes: usize = inode.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
                if bytes > ATTRIBUTE_BYTES_MAX { Err(FsError::NoSpace) } else { Ok(()) }
            })
        })
    }

    /// Called before a file is used: asks the guard if the file has rules.
    ///
    /// # Errors
    /// [`FsError::Access`]; [`FsError::LookAgain`] makes the kernel repeat the open.
    pub(super) fn ask_guard(
        &self,
        caller: &Caller,
        ino: Ino,
        inode: &Inode,
        flags: OpenFlags,
        by: AccessKind,
    ) -> Result<(), FsError> {
        let Some(rules) = inode.xattrs.get(RULES) else { return Ok(()) };
        let refused = |why: &str| Err(FsError::Access(why.to_owned()));
        let Some(guard) = self.guard.get() else {
            return refused("the file has rules for programs, and nobody here identifies programs");
        };
        let entering = OpenAttempt { caller, ino, flags, rules, path: self.display_path(ino) };
        match by {
            AccessKind::Open => match guard.enter(&entering) {
                OpenDecision::Admitted => Ok(()),
                OpenDecision::Again => Err(FsError::LookAgain),
                OpenDecision::Refused(why) => Err(FsError::Access(why)),
            },
            AccessKind::Name => {
                let why = "a file with rules is not cut or extended by its name; open it for that";
                guard.refused(&entering, why);
                refused(why)
            }
        }
    }

    /// Called before a file or directory is made in a directory: calls the guard if the new one will have
    /// rules.
    pub(super) fn guard_for_new(&self, view: &dyn View, directory: Ino) -> Result<(), FsError> {
        let Ok(inode) = view.inode(self.handle(directory)?) else { return Ok(()) };
        if !inode.xattrs.contains_key(RULES) {
            return Ok(());
        }
        match self.guard.get() {
            Some(guard) => guard.before_creating(directory),
            None => Err(FsError::Access(
                "the directory has rules for programs, and nobody here identifies them".into(),
            )),
        }
    }

    /// Called when a new file is open: if it has rules, its descriptor can be used once its opener is
    /// admitted.
    pub(super) fn guard_new(
        &self,
        caller: &Caller,
        ino: Ino,
        inode: &Inode,
        flags: OpenFlags,
        opened: &OpenReply,
    ) {
        let Some(rules) = inode.xattrs.get(RULES) else { return };
        let entering = OpenAttempt { caller, ino, flags, rules, path: self.display_path(ino) };
        let admitted = match self.guard.get() {
            Some(guard) => guard.created(&entering),
            None => Arc::new(NoAdmission),
        };
        if let Some(open) = self.files.lock().get(&opened.handle) {
            let _ = open.admitted.set(admitted);
        }
    }
}

/// The admission in a mount without a guard: never given.
struct NoAdmission;

impl OpenAdmission for NoAdmission {
    fn is_given(&self) -> bool {
        false
    }
}

/// Gives a new inode the rules of its directory.
pub(super) fn inherit(from: &BTreeMap<Vec<u8>, Vec<u8>>, to: &mut Inode) {
    if let (InodeKind::File | InodeKind::Directory, Some(rules)) = (to.kind, from.get(RULES)) {
        to.xattrs.insert(RULES.to_vec(), rules.clone());
    }
}
