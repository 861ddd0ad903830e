//! Translates kernel requests into calls of the inode API, and their results into replies.
//!
//! The only decision taken here is which thread answers (see [`crate::pool`]). Two kinds of requests are
//! answered without a call, because the answer never changes: `security.capability` (the kernel asks for it
//! before every write; mounts are nosuid, so file capabilities have no effect) and POSIX ACLs (there are
//! none).

use crate::answering::{Answering, span_of};
use crate::convert;
use crate::errno::errno;
use crate::outstanding::Cancellation;
use crate::pool::contain;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, RequestId, TimeOrNow, WriteFlags,
};
use holdfast_client::FsError;
use holdfast_client::files::{self, FileHandleId, FileSystem, Ino};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

/// How long the kernel may cache attributes: `fstat` on an open descriptor may be this old.
const ATTRIBUTES_LIVE: Duration = Duration::from_secs(1);
/// How long the kernel may cache names that were not found under a lease: not at all, so that every
/// path-based call sees the present view.
const NAMES_LIVE: Duration = Duration::ZERO;
/// Largest write the kernel may send in one request.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// The handle of an open that has no file behind it, for programs that only watch opens.
const BLIND: u64 = u64::MAX;
/// Most requests that wait for locks at the same time.
const LOCK_WAITS_MAX: usize = 1024;
/// Most requests that no program waits for (read-ahead) at the same time.
const BACKGROUND_MAX: u16 = 64;

/// Serves one mount.
pub(crate) struct Handler {
    fs: Arc<FileSystem>,
    answering: Answering,
    /// Whether the kernel manages locks, among the programs of this machine only.
    local_locks: bool,
    /// Number of requests that wait for locks.
    lock_waits: Arc<AtomicUsize>,
}

impl Handler {
    /// A handler for a session with `readers` threads that read requests.
    pub(crate) fn new(fs: Arc<FileSystem>, readers: usize, local_locks: bool) -> Handler {
        Handler { fs, answering: Answering::new(readers), local_locks, lock_waits: Arc::default() }
    }

    fn answer(&self, request: &Request, job: impl FnOnce(&FileSystem) + Send + 'static) {
        let fs = Arc::clone(&self.fs);
        self.answering.answer(request, move || job(&fs));
    }

    /// Answers on a thread of its own: a request that waits for a lock may wait for requests that the other
    /// threads must answer.
    fn answer_apart(
        &self,
        request: &Request,
        waiting: LockWait,
        job: impl FnOnce(&FileSystem) + Send + 'static,
    ) {
        let call = self.answering.begin(request, Cancellation::ToAnySignal);
        let fs = Arc::clone(&self.fs);
        let answer = move || {
            let _waiting = waiting;
            contain(|| call.run(|| job(&fs)));
        };
        // If no thread can be started, the job is dropped, and its reply answers EIO.
        if let Err(error) = std::thread::Builder::new().name("lock".to_owned()).spawn(answer) {
            tracing::warn!(%error, "no thread to wait for a lock");
        }
    }
}

/// A request that waits for a lock. It is counted until this is dropped.
struct LockWait(Arc<AtomicUsize>);

impl LockWait {
    /// Starts counting a request that waits for a lock. Returns `None` if too many wait.
    fn begin(waiting: &Arc<AtomicUsize>) -> Option<LockWait> {
        let one = LockWait(Arc::clone(waiting));
        (waiting.fetch_add(1, Ordering::SeqCst) < LOCK_WAITS_MAX).then_some(one)
    }
}

impl Drop for LockWait {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers a request whose reply says only whether it succeeded.
fn empty(reply: ReplyEmpty, result: Result<(), FsError>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

fn entry(reply: ReplyEntry, result: Result<files::Attributes, FsError>) {
    match result {
        Ok(attributes) => {
            let generation = Generation(attributes.generation);
            reply.entry_with_ttls(
                &ATTRIBUTES_LIVE,
                &NAMES_LIVE,
                &convert::attributes(&attributes),
                generation,
            );
        }
        Err(error) => reply.error(errno(&error)),
    }
}

/// Answers a LOOKUP. The kernel may cache the answer for `life`, even that there is no such name.
fn looked_up(reply: ReplyEntry, result: Result<files::Attributes, FsError>, life: Duration) {
    match result {
        Ok(attributes) => {
            let generation = Generation(attributes.generation);
            reply.entry_with_ttls(&ATTRIBUTES_LIVE, &life, &convert::attributes(&attributes), generation);
        }
        Err(FsError::NotFound) if !life.is_zero() => {
            reply.entry_with_ttls(&Duration::ZERO, &life, &convert::no_attributes(), Generation(0));
        }
        Err(error) => reply.error(errno(&error)),
    }
}

fn attr(reply: ReplyAttr, result: Result<files::Attributes, FsError>) {
    match result {
        Ok(attributes) => reply.attr(&ATTRIBUTES_LIVE, &convert::attributes(&attributes)),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn data(reply: ReplyData, result: Result<Vec<u8>, FsError>) {
    match result {
        Ok(bytes) => reply.data(&bytes),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(crate) fn sought(reply: ReplyLseek, result: Result<u64, FsError>) {
    match result {
        Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
        // No data from here on.
        Err(FsError::NoData) => reply.error(Errno::ENXIO),
        Err(error) => reply.error(errno(&error)),
    }
}

fn written(reply: ReplyWrite, result: Result<usize, FsError>) {
    match result {
        // Bounded by the request, whose length is a u32.
        Ok(bytes) => reply.written(u32::try_from(bytes).unwrap_or(u32::MAX)),
        Err(error) => reply.error(errno(&error)),
    }
}

/// Answers a request for an extended attribute: with its size if `room` is 0, with its value if that fits.
pub(crate) fn xattr(reply: ReplyXattr, room: u32, result: Result<Vec<u8>, FsError>) {
    match result {
        Ok(value) => match u32::try_from(value.len()) {
            Ok(length) if room == 0 => reply.size(length),
            Ok(length) if length <= room => reply.data(&value),
            _ => reply.error(Errno::ERANGE),
        },
        Err(error) => reply.error(errno(&error)),
    }
}

/// One time applies to both name and attributes of this reply, so the kernel may not cache the attributes
/// either.
fn created(reply: ReplyCreate, attributes: &files::Attributes, opened: &files::OpenReply) {
    reply.created(
        &NAMES_LIVE,
        &convert::attributes(attributes),
        Generation(attributes.generation),
        FileHandle(opened.handle.0),
        keep_cache(opened),
    );
}

fn keep_cache(opened: &files::OpenReply) -> FopenFlags {
    if opened.keep_cache { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() }
}

pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == b"system.posix_acl_access" || name == b"system.posix_acl_default"
}

impl Filesystem for Handler {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Not requested: READDIRPLUS (its entries would be looked up again at once, because names may not be
        // cached), WRITEBACK_CACHE (the kernel would own size and times), AUTO_INVAL_DATA (a write on this
        // machine would drop the cache; files that changed elsewhere are dropped when they are opened or turn
        // out to have another size).
        let locks = match self.local_locks {
            true => InitFlags::empty(),
            false => InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS,
        };
        for wanted in [
            locks,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_CACHE_SYMLINKS,
        ] {
            if config.add_capabilities(wanted).is_err() {
                tracing::debug!(?wanted, "the kernel does not have it");
            }
        }
        // If the kernel allows less, its limit is used. Both calls fail only with a limit to try instead.
        if let Err(nearest) = config.set_max_write(WRITE_BYTES_MAX) {
            let _ = config.set_max_write(nearest);
        }
        if let Err(nearest) = config.set_max_readahead(WRITE_BYTES_MAX) {
            let _ = config.set_max_readahead(nearest);
        }
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn interrupt(&self, _request: &Request, unique: RequestId) -> Result<(), Errno> {
        // A request that is not found was answered already, or another thread has read it and is about to
        // begin it.
        if self.answering.outstanding.interrupt(unique.0) { Ok(()) } else { Err(Errno::EAGAIN) }
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, parent, name) = (convert::caller(request), Ino(parent.0), name.to_owned());
        self.answer(request, move |fs| {
            let (found, basis) = fs.lookup_with_basis(&caller, parent, name.as_bytes());
            let ino = found.as_ref().ok().map(|found| found.ino);
            let life = fs.name_life(parent, name.as_bytes(), ino, basis);
            looked_up(reply, found, life.get());
        });
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        self.fs.forget(Ino(ino.0), count);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let (caller, handle) = (convert::caller(request), handle.map(convert::handle));
        self.answer(request, move |fs| attr(reply, fs.getattr(&caller, Ino(ino.0), handle)));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (caller, handle) = (convert::caller(request), handle.map(convert::handle));
        let wanted = files::SetAttributes {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            modified: modified.map(convert::time_to_set),
        };
        self.answer(request, move |fs| attr(reply, fs.setattr(&caller, Ino(ino.0), wanted, handle)));
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let caller = convert::caller(request);
        self.answer(request, move |fs| data(reply, fs.readlink(&caller, Ino(ino.0))));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = convert::kind_of_mode(mode) else { return reply.error(Errno::EINVAL) };
        let (caller, name) = (convert::caller(request), name.to_owned());
        self.answer(request, move |fs| {
            let made = fs.mknod(&caller, Ino(parent.0), name.as_bytes(), kind, mode & 0o7777, device);
            entry(reply, made);
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let (caller, name) = (convert::caller(request), name.to_owned());
        self.answer(request, move |fs| {
            entry(reply, fs.mkdir(&caller, Ino(parent.0), name.as_bytes(), mode & 0o7777))
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (convert::caller(request), name.to_owned());
        self.answer(request, move |fs| empty(reply, fs.unlink(&caller, Ino(parent.0), name.as_bytes())));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (convert::caller(request), name.to_owned());
        self.answer(request, move |fs| empty(reply, fs.rmdir(&caller, Ino(parent.0), name.as_bytes())));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (caller, name) = (convert::caller(request), name.to_owned());
        let target = target.as_os_str().to_owned();
        self.answer(request, move |fs| {
            entry(reply, fs.symlink(&caller, Ino(parent.0), name.as_bytes(), target.as_bytes()));
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(flags) = convert::rename_flags(flags) else { return reply.error(Errno::EINVAL) };
        let (caller, name, new_name) = (convert::caller(request), name.to_owned(), new_name.to_owned());
        self.answer(request, move |fs| {
            let (from, to) = ((Ino(parent.0), name.as_bytes()), (Ino(new_parent.0), new_name.as_bytes()));
            empty(reply, fs.rename(&caller, from.0, from.1, to.0, to.1, flags));
        });
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, name) = (convert::caller(request), name.to_owned());
        self.answer(request, move |fs| {
            entry(reply, fs.link(&caller, Ino(ino.0), Ino(parent.0), name.as_bytes()))
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.fs.is_blind(request.pid()) {
            // There is no file behind this handle. The open must not cost other programs their cached pages.
            return reply.opened(FileHandle(BLIND), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH);
        }
        let (caller, flags) = (convert::caller(request), files::OpenFlags::from_bits(flags.0));
        self.answer(request, move |fs| match fs.open(&caller, Ino(ino.0), flags) {
            Ok(opened) => reply.opened(FileHandle(opened.handle.0), keep_cache(&opened)),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (caller, name) = (convert::caller(request), name.to_owned());
        let flags = files::OpenFlags::from_bits(flags);
        self.answer(request, move |fs| {
            match fs.create(&caller, Ino(parent.0), name.as_bytes(), mode & 0o7777, flags) {
                Ok((attributes, opened)) => created(reply, &attributes, &opened),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn tmpfile(
        &self,
        request: &Request,
        parent: INodeNo,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let caller = convert::caller(request);
        let flags = files::OpenFlags::from_bits(flags);
        self.answer(request, move |fs| match fs.tmpfile(&caller, Ino(parent.0), mode & 0o7777, flags) {
            Ok((attributes, opened)) => created(reply, &attributes, &opened),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn read(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.answer(request, move |fs| data(reply, fs.read(FileHandleId(handle.0), offset, size as usize)));
    }

    fn write(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let source = match write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            true => files::WriteSource::PageCache,
            false => files::WriteSource::Call,
        };
        let handle = FileHandleId(handle.0);
        // Does not use `answer`: on this thread the bytes need not be copied.
        let span = span_of(request);
        if let Some(_busy) = self.answering.reader() {
            let answer = || written(reply, self.fs.write(handle, offset, bytes, source));
            return contain(|| span.in_scope(answer));
        }
        let (fs, bytes) = (Arc::clone(&self.fs), bytes.to_vec());
        let answer = move || written(reply, fs.write(handle, offset, &bytes, source));
        self.answering.elsewhere(move || span.in_scope(answer));
    }

    fn flush(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.answer(request, move |fs| {
            let flushed = fs.flush(FileHandleId(handle.0));
            // When any descriptor of a file is closed, the process loses all its locks on the file.
            fs.closed_by(FileHandleId(handle.0), owner.0);
            empty(reply, flushed);
        });
    }

    fn release(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _flock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.answer(request, move |fs| {
            fs.release(FileHandleId(handle.0));
            reply.ok();
        });
    }

    fn fsync(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.answer(request, move |fs| empty(reply, fs.fsync(FileHandleId(handle.0))));
    }

    fn getlk(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        process: u32,
        reply: ReplyLock,
    ) {
        let Some(mode) = convert::lock_mode(kind) else { return reply.error(Errno::EINVAL) };
        let range = files::LockRange { start, last };
        let lock = files::Lock { space: files::LockSpace::Fcntl, owner: owner.0, process, range };
        self.answer(request, move |fs| match fs.test_lock(FileHandleId(handle.0), &lock, mode) {
            Ok(Some(holder)) => {
                let (start, last) = convert::lock_range(&holder.range);
                // (The process is 0 if the holder is on another machine, where it has no number of this
                // machine.)
                reply.locked(start, last, convert::lock_kind(holder.mode), holder.process);
            }
            Ok(None) => reply.locked(start, last, libc::F_UNLCK, 0),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn setlk(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        last: u64,
        kind: i32,
        process: u32,
        wait: bool,
        is_flock: bool,
        reply: ReplyEmpty,
    ) {
        let space = if is_flock { files::LockSpace::Flock } else { files::LockSpace::Fcntl };
        let range = files::LockRange { start, last };
        let lock = files::Lock { space, owner: owner.0, process, range };
        let handle = FileHandleId(handle.0);
        if kind == libc::F_UNLCK {
            return self.answer(request, move |fs| empty(reply, fs.unlock(handle, &lock)));
        }
        let Some(mode) = convert::lock_mode(kind) else { return reply.error(Errno::EINVAL) };
        let caller = convert::caller(request);
        let take = move |fs: &FileSystem, reply: ReplyEmpty| match fs.lock(&caller, handle, &lock, mode, wait)
        {
            Ok(None) => reply.ok(),
            Ok(Some(_)) => reply.error(Errno::EAGAIN),
            Err(error) => reply.error(errno(&error)),
        };
        if !wait {
            return self.answer(request, move |fs| take(fs, reply));
        }
        match LockWait::begin(&self.lock_waits) {
            Some(waiting) => self.answer_apart(request, waiting, move |fs| take(fs, reply)),
            None => reply.error(Errno::ENOLCK),
        }
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let caller = convert::caller(request);
        self.answer(request, move |fs| match fs.opendir(&caller, Ino(ino.0)) {
            Ok(handle) => reply.opened(FileHandle(handle.0), FopenFlags::empty()),
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
        let caller = convert::caller(request);
        self.answer(request, move |fs| {
            let mut take = |item: files::DirectoryItem<'_>| {
                let kind = convert::file_type(item.kind);
                !reply.add(INodeNo(item.ino.0), item.next_offset, kind, OsStr::from_bytes(item.name))
            };
            match fs.readdir(&caller, FileHandleId(handle.0), offset, &mut take) {
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
        self.answer(request, move |fs| {
            fs.releasedir(FileHandleId(handle.0));
            reply.ok();
        });
    }

    fn fsyncdir(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.answer(request, move |fs| empty(reply, fs.fsyncdir(FileHandleId(handle.0))));
    }

    fn statfs(&self, request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.answer(request, move |fs| match fs.statfs() {
            Ok(show) => convert::statfs(reply, &show),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let how = match flags {
            0 => files::SetXattr::Any,
            libc::XATTR_CREATE => files::SetXattr::Create,
            libc::XATTR_REPLACE => files::SetXattr::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        if is_acl(name.as_bytes()) || name.as_bytes() == b"security.capability" {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let (caller, name, value) = (convert::caller(request), name.to_owned(), value.to_vec());
        self.answer(request, move |fs| {
            empty(reply, fs.setxattr(&caller, Ino(ino.0), name.as_bytes(), &value, how));
        });
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if name.as_bytes() == b"security.capability" {
            return reply.error(Errno::NO_XATTR);
        }
        if is_acl(name.as_bytes()) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let (caller, name) = (convert::caller(request), name.to_owned());
        self.answer(request, move |fs| xattr(reply, size, fs.getxattr(&caller, Ino(ino.0), name.as_bytes())));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let caller = convert::caller(request);
        self.answer(request, move |fs| {
            let list = fs.listxattr(&caller, Ino(ino.0)).map(|names| {
                let mut list = Vec::new();
                for name in names {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
                list
            });
            xattr(reply, size, list);
        });
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (convert::caller(request), name.to_owned());
        self.answer(request, move |fs| empty(reply, fs.removexattr(&caller, Ino(ino.0), name.as_bytes())));
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let rights = files::Rights {
            read: mask.contains(AccessFlags::R_OK),
            write: mask.contains(AccessFlags::W_OK),
            execute: mask.contains(AccessFlags::X_OK),
        };
        let caller = convert::caller(request);
        self.answer(request, move |fs| empty(reply, fs.access(&caller, Ino(ino.0), rights)));
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _input: &[u8],
        _output_bytes: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(how) = convert::allocate(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        self.answer(request, move |fs| {
            empty(reply, fs.fallocate(FileHandleId(handle.0), offset, length, how))
        });
    }

    fn lseek(
        &self,
        request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Some(to) = convert::seek_to(whence) else { return reply.error(Errno::EINVAL) };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        self.answer(request, move |fs| sought(reply, fs.seek(FileHandleId(handle.0), offset, to)));
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _ino_from: INodeNo,
        from: FileHandle,
        offset_from: u64,
        _ino_to: INodeNo,
        to: FileHandle,
        offset_to: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // The reply has 32 bits. The caller continues where the copy ended.
        let length = length.min(1 << 30);
        self.answer(request, move |fs| {
            let (from, to) = (FileHandleId(from.0), FileHandleId(to.0));
            match fs.copy_file_range(from, offset_from, to, offset_to, length) {
                Ok(copied) => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }
}
