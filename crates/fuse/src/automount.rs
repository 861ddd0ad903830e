//! A directory in which names are mounted when they are first used.
//!
//! A new name is an empty directory, called a *place*, and needs no further work. When a process enters a
//! place (lists it, looks up a name in it, makes it the working directory), mounting begins, and the process
//! gets ESTALE. The kernel then walks the path once more, and asks for each name whether it is still what it
//! was. The answer to *that* request waits until the mount is there, and the walk leads into it; programs do
//! not notice. It is the only point at which waiting is possible: a process that looks up a name in a
//! directory prevents others from mounting on it meanwhile, and a process that looks up a name for the first
//! time prevents others from looking it up.
//!
//! Looking at a place from outside (stat, as `ls` does with the targets of links) mounts nothing, as with
//! autofs.
//!
//! The thread that mounts has to touch the place as well, and must not wait for itself. So [`Automounter`] is
//! given the number of the calling thread, and answers [`EnterOutcome::Empty`] to the threads that mount.
//!
//! All this needs a process that may mount on such a directory. fusermount3 may not, because it is root's,
//! and what users mount is closed to others, even to root. If fusermount3 has to be used, names are symbolic
//! links to directories elsewhere, and reading a link waits.
//!
//! Permissions are not left to the kernel here: it would decide by the mode alone, and send no request when a
//! process enters a directory.

use crate::answering::Answering;
use crate::convert;
use crate::errno::LOOK_AGAIN;
use fuser::{
    AccessFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyXattr, Request, RequestId,
};
use holdfast_client::files::{Attributes, Ino};
use holdfast_content::InodeKind;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long the kernel may use a name without a request. It is short, because requests show which names are
/// in use.
const NAME_LIVES: Duration = Duration::from_secs(1);
/// How long the kernel may cache that a name does not exist.
const NO_NAME_LIVES: Duration = Duration::from_secs(5);
/// How long the kernel may cache attributes, which do not change.
const ATTRIBUTES_LIVE: Duration = Duration::from_secs(3600);

/// The target of a name. Numbers are from 2 on, and a name keeps its number while the kernel has it cached:
/// the kernel would remove a mount from a name whose number changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameTarget {
    /// A directory to be mounted on.
    Directory(u64),
    /// A symbolic link.
    Link(u64),
}

/// The reply to a process that enters a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EnterOutcome {
    /// The process has to walk the path again: something is mounted there, or will be by then.
    Again,
    /// The thread is one that mounts there, and finds an empty directory.
    Empty,
}

/// Why nothing can be mounted, as programs see it. The log has the reason as text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// There is no such name: ENOENT.
    NoName,
    /// No server can be reached: EHOSTUNREACH.
    Unreachable,
    /// The server that answers is not the one the name stands for: EKEYREJECTED.
    Wrong,
    /// The file system was revoked: EKEYREVOKED.
    Revoked,
    /// The release has expired: EKEYEXPIRED.
    Expired,
    /// A key is needed, and there is none: ENOKEY.
    NoKey,
    /// The key has no access: EACCES.
    NotAllowed,
    /// The limit of mounts is reached, and all are in use: EMFILE.
    TooMany,
    /// The caller received a signal to end: EINTR.
    Interrupted,
    /// Another error: EIO.
    Failed,
}

fn errno(trouble: Trouble) -> Errno {
    Errno::from_i32(match trouble {
        Trouble::NoName => libc::ENOENT,
        Trouble::Unreachable => libc::EHOSTUNREACH,
        Trouble::Wrong => libc::EKEYREJECTED,
        Trouble::Revoked => libc::EKEYREVOKED,
        Trouble::Expired => libc::EKEYEXPIRED,
        Trouble::NoKey => libc::ENOKEY,
        Trouble::NotAllowed => libc::EACCES,
        Trouble::TooMany => libc::EMFILE,
        Trouble::Interrupted => libc::EINTR,
        Trouble::Failed => libc::EIO,
    })
}

/// Decides what names mean, and mounts.
pub trait Automounter: Send + Sync + 'static {
    /// The target of a name, for a thread (its number as the kernel shows it, 0 if it has none here). Counts
    /// one look-up, which [`Automounter::forget`] takes back. Returns `None` if that has to wait, because
    /// something is being mounted there. A new name of a directory to be mounted on is returned without
    /// waiting.
    fn find(&self, name: &[u8], thread: u32) -> Option<Result<NameTarget, Trouble>>;

    /// Like [`Automounter::find`], but waits. An error for a name that is mounted would remove the mount.
    ///
    /// # Errors
    /// [`Trouble::NoName`], or the reason why nothing is mounted there.
    fn await_name(&self, name: &[u8], thread: u32) -> Result<NameTarget, Trouble>;

    /// Takes back `count` look-ups that the kernel has dropped.
    fn forget(&self, number: u64, count: u64);

    /// Whether a number belongs to a link.
    fn is_link(&self, number: u64) -> bool;

    /// Called when a thread enters a place. Begins to mount, and returns at once.
    ///
    /// # Errors
    /// The reason why nothing can be mounted there.
    fn enter(&self, number: u64, thread: u32) -> Result<EnterOutcome, Trouble>;

    /// The target of a link. If it is a place, this waits until something is mounted there.
    ///
    /// # Errors
    /// [`Trouble`].
    fn target(&self, number: u64) -> Result<Vec<u8>, Trouble>;

    /// The names that a listing shows.
    fn names(&self) -> Vec<(Vec<u8>, NameTarget)>;
}

/// Serves the directory.
pub(crate) struct AutomountHandler {
    automounter: Arc<dyn Automounter>,
    answering: Answering,
}

impl AutomountHandler {
    pub(crate) fn new(automounter: Arc<dyn Automounter>, readers: usize) -> AutomountHandler {
        AutomountHandler { automounter, answering: Answering::new(readers) }
    }

    /// The result for a process that enters a directory: success if the directory is empty, otherwise an
    /// error.
    fn enter(&self, request: &Request, place: INodeNo) -> Result<(), Errno> {
        if place == INodeNo::ROOT {
            return Ok(());
        }
        match self.automounter.enter(place.0, request.pid()) {
            Ok(EnterOutcome::Empty) => Ok(()),
            Ok(EnterOutcome::Again) => Err(LOOK_AGAIN),
            Err(trouble) => Err(errno(trouble)),
        }
    }
}

/// How long the kernel may use a name that this thread has looked up without another request. When the
/// automounter itself looks up a name, to see whether a mount is alive, the kernel must not cache that: it
/// would hide that a program uses the name next.
fn name_lives(thread: u32) -> Duration {
    match Path::new(&format!("/proc/self/task/{thread}")).exists() {
        true => Duration::ZERO,
        false => NAME_LIVES,
    }
}

fn reply_entry(reply: ReplyEntry, found: Result<NameTarget, Trouble>, lives: Duration) {
    match found {
        Ok(found) => {
            let (ino, kind) = named(found);
            let found = convert::attributes(&attributes(ino, kind));
            reply.entry_with_ttls(&ATTRIBUTES_LIVE, &lives, &found, Generation(0));
        }
        Err(Trouble::NoName) => {
            let nothing = convert::attributes(&attributes(0, InodeKind::File));
            reply.entry_with_ttls(&NO_NAME_LIVES, &NO_NAME_LIVES, &nothing, Generation(0));
        }
        Err(trouble) => reply.error(errno(trouble)),
    }
}

fn attributes(ino: u64, kind: InodeKind) -> Attributes {
    let directory = kind == InodeKind::Directory;
    Attributes {
        ino: Ino(ino),
        kind,
        mode: if directory { 0o755 } else { 0o777 },
        links: if directory { 2 } else { 1 },
        size: 0,
        blocks: 0,
        modified_ns: 0,
        changed_ns: 0,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        device_number: 0,
        generation: 0,
    }
}

fn named(named: NameTarget) -> (u64, InodeKind) {
    match named {
        NameTarget::Directory(number) => (number, InodeKind::Directory),
        NameTarget::Link(number) => (number, InodeKind::Symlink),
    }
}

impl Filesystem for AutomountHandler {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without this, a look-up that waits would keep all others in the directory from being made.
        config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS).map_err(|_| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel looks up one name at a time in a directory (before Linux 4.7)",
            )
        })
    }

    fn interrupt(&self, _request: &Request, unique: RequestId) -> Result<(), Errno> {
        if self.answering.outstanding.interrupt(unique.0) { Ok(()) } else { Err(Errno::EAGAIN) }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent != INodeNo::ROOT {
            // The kernel must not cache this: something will be mounted there soon.
            return reply.error(self.enter(request, parent).err().unwrap_or(Errno::ENOENT));
        }
        let thread = request.pid();
        if let Some(found) = self.automounter.find(name.as_bytes(), thread) {
            return reply_entry(reply, found, name_lives(thread));
        }
        let (automounter, name) = (Arc::clone(&self.automounter), name.to_owned());
        self.answering.wait(request, move || {
            reply_entry(reply, automounter.await_name(name.as_bytes(), thread), name_lives(thread));
        });
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        self.automounter.forget(ino.0, lookups);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let is_link = ino != INodeNo::ROOT && self.automounter.is_link(ino.0);
        let kind = if is_link { InodeKind::Symlink } else { InodeKind::Directory };
        reply.attr(&ATTRIBUTES_LIVE, &convert::attributes(&attributes(ino.0, kind)));
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        if ino == INodeNo::ROOT && mask.contains(AccessFlags::W_OK) {
            return reply.error(Errno::EROFS);
        }
        match self.enter(request, ino) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let automounter = Arc::clone(&self.automounter);
        self.answering.wait(request, move || match automounter.target(ino.0) {
            Ok(target) => reply.data(&target),
            Err(trouble) => reply.error(errno(trouble)),
        });
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.enter(request, ino) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let dots = [(&b"."[..], ino), (b"..", INodeNo::ROOT)];
        let mut all: Vec<(Vec<u8>, INodeNo, FileType)> =
            dots.map(|(name, ino)| (name.to_vec(), ino, FileType::Directory)).into();
        if ino == INodeNo::ROOT {
            let names = self.automounter.names().into_iter().map(|(name, found)| {
                let (number, kind) = named(found);
                (name, INodeNo(number), convert::file_type(kind))
            });
            all.extend(names);
        }
        for (at, (name, ino, kind)) in all.iter().enumerate().skip(offset.min(1 << 32) as usize) {
            if reply.add(*ino, at as u64 + 1, *kind, OsStr::from_bytes(name)) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, 4096, 255, 4096);
    }

    fn getxattr(&self, _request: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::EOPNOTSUPP);
    }

    fn listxattr(&self, _request: &Request, _ino: INodeNo, size: u32, reply: ReplyXattr) {
        if size == 0 { reply.size(0) } else { reply.data(&[]) }
    }

    // Users can create or remove nothing here. (Without a `create`, files are created by mknod.)

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }
}
