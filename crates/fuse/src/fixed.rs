//! Read-only trees that the kernel may cache: what it has requested once, it requests again only after it was
//! told to forget it.
//!
//! So repeated reads, `stat` and listings are answered by the kernel itself, as with a local file system.
//! After the first, opens need no request either, because there is nothing to decide.

use crate::answering::Answering;
use crate::convert;
use crate::errno::errno;
use crate::handler::{data, is_acl, sought, xattr};
use fuser::{
    Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    Notifier, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr, Request, RequestId,
};
use holdfast_client::FsError;
use holdfast_client::files::{Attributes, DirectoryItem, FileHandleId, Ino, SeekTo, Statistics};
use holdfast_content::InodeKind;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// How far the kernel reads ahead, in bytes.
const READAHEAD_BYTES: u32 = 1 << 20;
/// Most requests that no program waits for (read-ahead) at the same time.
const BACKGROUND_MAX: u16 = 64;

/// A reply with inode number 0 means that there is no such name.
const NOTHING: Attributes = Attributes {
    ino: Ino(0),
    kind: InodeKind::File,
    mode: 0,
    links: 0,
    size: 0,
    blocks: 0,
    modified_ns: 0,
    changed_ns: 0,
    uid: 0,
    gid: 0,
    device_number: 0,
    generation: 0,
};

/// A cache entry that the kernel has to forget.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Forget {
    /// Forget the target of a name in a directory. Files that are open stay usable.
    Name(Ino, Vec<u8>),
    /// Forget the attributes and pages of an inode.
    Inode(Ino),
}

/// Receives what the kernel has to forget. Returns at once.
pub type ForgetSink = Box<dyn Fn(Forget) + Send + Sync>;

/// An entry of a listing, perhaps with its attributes.
pub struct ListingEntry<'a> {
    /// The name.
    pub item: DirectoryItem<'a>,
    /// The attributes, if they were requested and are available without waiting.
    pub attributes: Option<Attributes>,
}

/// A tree that the kernel may cache.
pub trait FixedTree: Send + Sync + 'static {
    /// Finds a name. Counts one look-up, which [`FixedTree::forget`] takes back.
    ///
    /// # Errors
    /// [`FsError`]. The kernel also caches that a name does not exist.
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attributes, FsError>;

    /// Takes back `count` look-ups that the kernel has dropped.
    fn forget(&self, ino: Ino, count: u64);

    /// Attributes.
    ///
    /// # Errors
    /// [`FsError`].
    fn attributes(&self, ino: Ino) -> Result<Attributes, FsError>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError`].
    fn target(&self, ino: Ino) -> Result<Vec<u8>, FsError>;

    /// Reads bytes of a file.
    ///
    /// # Errors
    /// [`FsError`].
    fn read(&self, ino: Ino, offset: u64, length: usize) -> Result<Vec<u8>, FsError>;

    /// Finds data or a hole at or after `offset`; the end of the file counts as a hole.
    ///
    /// # Errors
    /// [`FsError::NoData`]: at or beyond the end of the file, or only hole up to it.
    fn seek(&self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64, FsError>;

    /// Opens a directory. Also returns whether the kernel may cache its listing.
    ///
    /// # Errors
    /// [`FsError`].
    fn open_directory(&self, ino: Ino) -> Result<(FileHandleId, bool), FsError>;

    /// Gives the entries from `offset` on to `sink` until it returns `false` because it has no room for one.
    /// Entries with attributes that it took count as one look-up each, except `.` and `..`.
    ///
    /// # Errors
    /// [`FsError`].
    fn list(
        &self,
        handle: FileHandleId,
        offset: u64,
        with_attributes: bool,
        sink: &mut dyn FnMut(ListingEntry<'_>) -> bool,
    ) -> Result<(), FsError>;

    /// Closes a directory.
    fn close_directory(&self, handle: FileHandleId);

    /// An extended attribute.
    ///
    /// # Errors
    /// [`FsError`].
    fn attribute(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError>;

    /// The names of all extended attributes.
    ///
    /// # Errors
    /// [`FsError`].
    fn attribute_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>, FsError>;

    /// Space and number of files of the file system.
    fn statistics(&self) -> Statistics;

    /// How long the kernel may cache names and attributes.
    fn lives(&self) -> Duration;

    /// Sets the function that is called with what the kernel has to forget.
    fn on_forget(&self, sink: ForgetSink);
}

/// Has the kernel forget entries, on a thread of its own, because the kernel may wait for an answer of ours
/// meanwhile. The thread ends when this is dropped.
pub(crate) struct Forgetter(Sender<Option<Forget>>);

impl Forgetter {
    pub(crate) fn start(tree: &dyn FixedTree, notifier: Notifier) -> io::Result<Forgetter> {
        let (sender, waiting) = channel::<Option<Forget>>();
        std::thread::Builder::new().name("forget".to_owned()).spawn(move || {
            while let Ok(Some(forget)) = waiting.recv() {
                let result = match &forget {
                    Forget::Name(parent, name) => {
                        notifier.expire_entry(INodeNo(parent.0), OsStr::from_bytes(name))
                    }
                    Forget::Inode(ino) => notifier.inval_inode(INodeNo(ino.0), 0, 0),
                };
                // ENOENT means that the kernel did not have the entry any more.
                if let Err(error) = result {
                    tracing::trace!(%error, ?forget, "the kernel did not forget");
                }
            }
        })?;
        let result = sender.clone();
        tree.on_forget(Box::new(move |forget| {
            let _ = result.send(Some(forget));
        }));
        Ok(Forgetter(sender))
    }
}

impl Drop for Forgetter {
    fn drop(&mut self) {
        let _ = self.0.send(None);
    }
}

/// Serves one mount of a tree.
pub(crate) struct FixedHandler {
    tree: Arc<dyn FixedTree>,
    answering: Answering,
}

impl FixedHandler {
    pub(crate) fn new(tree: Arc<dyn FixedTree>, readers: usize) -> FixedHandler {
        FixedHandler { tree, answering: Answering::new(readers) }
    }

    fn answer(&self, request: &Request, job: impl FnOnce(&dyn FixedTree) + Send + 'static) {
        let tree = Arc::clone(&self.tree);
        self.answering.answer(request, move || job(&*tree));
    }
}

impl Filesystem for FixedHandler {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_NO_OPEN_SUPPORT,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
        ] {
            if config.add_capabilities(wanted).is_err() {
                tracing::debug!(?wanted, "the kernel does not have it");
            }
        }
        if let Err(nearest) = config.set_max_readahead(READAHEAD_BYTES) {
            let _ = config.set_max_readahead(nearest);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn interrupt(&self, _request: &Request, unique: RequestId) -> Result<(), Errno> {
        if self.answering.outstanding.interrupt(unique.0) { Ok(()) } else { Err(Errno::EAGAIN) }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.answer(request, move |tree| match tree.lookup(Ino(parent.0), name.as_bytes()) {
            Ok(attributes) => {
                let lives = tree.lives();
                reply.entry_with_ttls(
                    &lives,
                    &lives,
                    &convert::attributes(&attributes),
                    Generation(attributes.generation),
                );
            }
            // The kernel caches this too. Compilers look up many names that do not exist.
            Err(FsError::NotFound) => {
                let nothing = convert::attributes(&NOTHING);
                reply.entry_with_ttls(&tree.lives(), &tree.lives(), &nothing, Generation(0));
            }
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        self.tree.forget(Ino(ino.0), lookups);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(request, move |tree| match tree.attributes(Ino(ino.0)) {
            Ok(attributes) => reply.attr(&tree.lives(), &convert::attributes(&attributes)),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        self.answer(request, move |tree| data(reply, tree.target(Ino(ino.0))));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // The kernel takes this to mean that opens need no request, sends no more, and keeps cached pages.
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.answer(request, move |tree| data(reply, tree.read(Ino(ino.0), offset, size as usize)));
    }

    fn lseek(
        &self,
        request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Some(to) = convert::seek_to(whence) else { return reply.error(Errno::EINVAL) };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        self.answer(request, move |tree| sought(reply, tree.seek(Ino(ino.0), offset, to)));
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.answer(request, move |tree| match tree.open_directory(Ino(ino.0)) {
            Ok((handle, keep)) => {
                let kept = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
                reply.opened(FileHandle(handle.0), if keep { kept } else { FopenFlags::empty() });
            }
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn readdir(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.answer(request, move |tree| {
            let mut take = |listed: ListingEntry<'_>| {
                let item = listed.item;
                let kind = convert::file_type(item.kind);
                !reply.add(INodeNo(item.ino.0), item.next_offset, kind, OsStr::from_bytes(item.name))
            };
            match tree.list(FileHandleId(handle.0), offset, false, &mut take) {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.answer(request, move |tree| {
            let lives = tree.lives();
            let mut take = |listed: ListingEntry<'_>| {
                let Some(attributes) = listed.attributes else { return false };
                !reply.add(
                    INodeNo(listed.item.ino.0),
                    listed.item.next_offset,
                    OsStr::from_bytes(listed.item.name),
                    &lives,
                    &convert::attributes(&attributes),
                    Generation(attributes.generation),
                )
            };
            match tree.list(FileHandleId(handle.0), offset, true, &mut take) {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn releasedir(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.answer(request, move |tree| {
            tree.close_directory(FileHandleId(handle.0));
            reply.ok();
        });
    }

    fn statfs(&self, request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.answer(request, move |tree| convert::statfs(reply, &tree.statistics()));
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if is_acl(name.as_bytes()) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let name = name.to_owned();
        self.answer(request, move |tree| xattr(reply, size, tree.attribute(Ino(ino.0), name.as_bytes())));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.answer(request, move |tree| {
            let names = tree
                .attribute_names(Ino(ino.0))
                .map(|names| names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect());
            xattr(reply, size, names);
        });
    }
}
