//! Handles the kernel's FUSE requests.

use super::files::{Code, Files, LIVES};
use crate::protocol::{Entering, Entry, File, Time};
use crate::session_requests::SessionReply;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use holdfast_program_identity::exchange;
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bytes of the largest request.
const REQUEST_BYTES: u32 = 1 << 20;

/// Serves the kernel's FUSE requests for a session.
pub(super) struct FuseHandler {
    pub files: Arc<Files>,
    pub uid: u32,
    pub gid: u32,
    /// Whether only a program may open the files.
    pub is_program: bool,
}

/// The handle of an open by a program that was identified.
const IDENTIFIED: FileHandle = FileHandle(1);
/// The handle that the helper's own open gets; it cannot be used for anything.
const BLIND: FileHandle = FileHandle(2);

fn system((seconds, nanoseconds): Time) -> SystemTime {
    // The sender is not trusted; an impossible time becomes 1970.
    let since = u64::try_from(seconds).map(|seconds| Duration::new(seconds, nanoseconds.min(999_999_999)));
    since.ok().and_then(|since| UNIX_EPOCH.checked_add(since)).unwrap_or(UNIX_EPOCH)
}

fn time(time: TimeOrNow) -> Time {
    let time = match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    };
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() as i64, since.subsec_nanos())
}

fn text(name: &OsStr) -> Result<String, Code> {
    name.to_str().map(str::to_owned).ok_or(libc::EINVAL)
}

fn errno(code: Code) -> Errno {
    Errno::from_i32(code)
}

/// Whether a file is opened for writing.
fn writes(flags: OpenFlags) -> bool {
    flags.0 & libc::O_ACCMODE != libc::O_RDONLY || flags.0 & libc::O_TRUNC != 0
}

fn end(reply: ReplyEmpty, done: Result<(), Code>) {
    match done {
        Ok(()) => reply.ok(),
        Err(code) => reply.error(errno(code)),
    }
}

impl FuseHandler {
    fn attributes(&self, file: &File) -> FileAttr {
        let [created, modified, accessed] = file.times.map(system);
        let mode = match (file.is_directory, file.is_read_only) {
            (true, _) => 0o700,
            (false, true) => 0o400,
            (false, false) => 0o600,
        };
        FileAttr {
            ino: INodeNo(file.id),
            size: file.size,
            blocks: file.size.div_ceil(512),
            atime: accessed,
            mtime: modified,
            ctime: modified,
            crtime: created,
            kind: if file.is_directory { FileType::Directory } else { FileType::RegularFile },
            perm: mode,
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn entry(&self, reply: ReplyEntry, file: Result<File, Code>) {
        match file {
            Ok(file) => reply.entry(&LIVES, &self.attributes(&file), Generation(0)),
            Err(code) => reply.error(errno(code)),
        }
    }
}

impl FuseHandler {
    /// In a session for a program, identifies the process that opens a file.
    fn identified(&self, request: &Request, ino: INodeNo, flags: OpenFlags) -> Result<FileHandle, Code> {
        let entering = Entering { inode: ino.0, thread: request.pid(), writes: writes(flags) };
        match self.files.enter(entering)? {
            Entry::GoesOn => Ok(IDENTIFIED),
            Entry::Blind => Ok(BLIND),
            Entry::Again => Err(libc::ESTALE),
            Entry::Refused => Err(libc::EACCES),
        }
    }

    /// Whether a handle may be used.
    fn usable(&self, handle: FileHandle) -> Result<(), Code> {
        if self.is_program && handle != IDENTIFIED { Err(libc::EACCES) } else { Ok(()) }
    }

    /// Whether names may be removed and changed here. In a session for a program they may not, because
    /// processes are not identified for that.
    fn changing_names(&self) -> Result<(), Code> {
        if self.is_program { Err(libc::EPERM) } else { Ok(()) }
    }
}

impl Filesystem for FuseHandler {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO;
        let _ = config.add_capabilities(wanted);
        let _ = config.set_max_write(REQUEST_BYTES);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(
            reply,
            text(name).map_err(|_| libc::ENOENT).and_then(|name| self.files.look_up(parent.0, &name)),
        );
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        self.files.forget(ino.0, count);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.files.stat(ino.0) {
            Ok(file) => reply.attr(&LIVES, &self.attributes(&file)),
            Err(code) => reply.error(errno(code)),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _changed_flags: Option<SystemTime>,
        _backup: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let run = || {
            // A caller who gives a name was not identified; one with an open handle was.
            if self.is_program && handle != Some(IDENTIFIED) {
                return Err(libc::EPERM);
            }
            if uid.is_some_and(|uid| uid != self.uid) || gid.is_some_and(|gid| gid != self.gid) {
                return Err(libc::EPERM);
            }
            if let Some(size) = size {
                self.files.resize(ino.0, size)?;
            }
            let before = self.files.stat(ino.0)?;
            let read_only = mode.filter(|_| !before.is_directory).map(|mode| mode & 0o200 == 0);
            let read_only = read_only.filter(|read_only| *read_only != before.is_read_only);
            if accessed.is_some() || modified.is_some() || read_only.is_some() {
                self.files.set_times(ino.0, [None, modified.map(time), accessed.map(time)], read_only)?;
            }
            self.files.stat(ino.0)
        };
        match run() {
            Ok(file) => reply.attr(&LIVES, &self.attributes(&file)),
            Err(code) => reply.error(errno(code)),
        }
    }

    fn mknod(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        if mode & libc::S_IFMT != libc::S_IFREG {
            return reply.error(Errno::EPERM);
        }
        self.entry(reply, text(name).and_then(|name| self.files.create(parent.0, &name, false)));
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.entry(reply, text(name).and_then(|name| self.files.create(parent.0, &name, true)));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = self.changing_names().and_then(|()| text(name));
        end(reply, name.and_then(|name| self.files.unlink(parent.0, &name)));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = self.changing_names().and_then(|()| text(name));
        end(reply, name.and_then(|name| self.files.remove_directory(parent.0, &name)));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let run = || {
            self.changing_names()?;
            let replace = match flags {
                flags if flags.is_empty() => true,
                flags if flags == RenameFlags::RENAME_NOREPLACE => false,
                _ => return Err(libc::EINVAL),
            };
            self.files.rename((parent.0, &text(name)?), (new_parent.0, &text(new_name)?), replace)
        };
        end(reply, run());
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let handle = if self.is_program { self.identified(request, ino, flags) } else { Ok(FileHandle(0)) };
        match handle {
            Ok(BLIND) => reply.opened(BLIND, FopenFlags::empty()),
            // The session belongs to one user, whatever else the system lets others do.
            Ok(_) if request.uid() != self.uid => reply.error(Errno::EACCES),
            // A file may be opened for reading only to ask for its owner or to accept it, so the right to
            // read is checked later.
            Ok(handle) => match if writes(flags) { self.files.may_write(ino.0) } else { Ok(()) } {
                Ok(()) => reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE),
                Err(code) => reply.error(errno(code)),
            },
            Err(code) => reply.error(errno(code)),
        }
    }

    fn ioctl(
        &self,
        request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        bytes: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        if command != exchange::NUMBER {
            return reply.error(Errno::ENOTTY);
        }
        let answer = match (request.uid() == self.uid, exchange::unpack(bytes).map(borsh::from_slice)) {
            (false, _) => SessionReply::Refused(format!(
                "this session is {}'s; whoever starts and mounts volumes sees how large things are, not whose they are",
                self.files.configuration.user
            )),
            (true, Some(Ok(request))) => self.files.handle(request),
            (true, _) => SessionReply::Refused("the order is of another version of holdfast".to_owned()),
        };
        let too_long = || SessionReply::Refused("the answer is too long for one message".to_owned());
        let packed = borsh::to_vec(&answer).ok().and_then(|bytes| exchange::pack(&bytes));
        let packed = packed.or_else(|| exchange::pack(&borsh::to_vec(&too_long()).ok()?));
        match packed {
            Some(bytes) => reply.ioctl(0, &bytes),
            None => reply.error(Errno::EIO),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        if self.is_program {
            // The kernel then creates the file first and opens it afterwards, when the process is identified.
            return reply.error(Errno::ENOSYS);
        }
        let name = if request.uid() == self.uid { text(name) } else { Err(libc::EACCES) };
        match name.and_then(|name| self.files.create(parent.0, &name, false)) {
            Ok(file) => {
                let attributes = self.attributes(&file);
                reply.created(
                    &LIVES,
                    &attributes,
                    Generation(0),
                    FileHandle(0),
                    FopenFlags::FOPEN_KEEP_CACHE,
                );
            }
            Err(code) => reply.error(errno(code)),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // The lock is held until the kernel has the data, so that the kernel can be made to drop it
        // afterwards.
        let _reading = self.files.reading.read();
        let run = || {
            self.usable(handle)?;
            let whole = self.files.size(ino.0)?;
            let read = self.files.read(ino.0, offset, size as usize, whole);
            if read.is_ok() {
                return read;
            }
            // Another session may have changed the size since it was cached.
            let whole = self.files.told_anew(ino.0)?;
            self.files.read(ino.0, offset, size as usize, whole)
        };
        match run() {
            Ok(bytes) => reply.data(&bytes),
            Err(code) => reply.error(errno(code)),
        }
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.usable(handle).and_then(|()| self.files.write(ino.0, offset, data)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(code) => reply.error(errno(code)),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Closing a file does nothing, so the kernel need not ask again: written data is in the monitor's
        // pages already.
        reply.error(Errno::ENOSYS);
    }

    fn fsync(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        end(reply, self.files.sync(Some(ino.0)));
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        end(reply, self.files.sync(None));
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        // Cookies: 1 and 2 are after `.` and `..`; those of the file system are increased by two.
        let run = |reply: &mut ReplyDirectory| {
            for (at, name) in [(0, "."), (1, "..")] {
                if offset <= at && reply.add(ino, at + 1, FileType::Directory, name) {
                    return Ok(());
                }
            }
            let mut cookie = offset.saturating_sub(2);
            loop {
                let names = self.files.list(ino.0, cookie)?;
                let Some(last) = names.last() else { return Ok(()) };
                cookie = last.cookie;
                for name in &names {
                    let kind = if name.is_directory { FileType::Directory } else { FileType::RegularFile };
                    if reply.add(INodeNo(name.number), name.cookie + 2, kind, &name.name) {
                        return Ok(());
                    }
                }
            }
        };
        match run(&mut reply) {
            Ok(()) => reply.ok(),
            Err(code) => reply.error(errno(code)),
        }
    }

    /// Lists a directory with the attributes of its files, so that the kernel need not look each up.
    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = match self.files.list_files(ino.0, offset.saturating_sub(2)) {
            Ok(listed) => listed,
            Err(code) => return reply.error(errno(code)),
        };
        // For `.` and `..` the kernel takes only the name.
        let number = |id, is_directory| File { id, is_directory, ..File::default() };
        let mut add = |ino: u64, at, name: &str, file: &File| {
            reply.add(INodeNo(ino), at, name, &LIVES, &self.attributes(file), Generation(0))
        };
        let mut is_full = [(0, "."), (1, "..")]
            .into_iter()
            .any(|(at, name)| offset <= at && add(0, at + 1, name, &number(ino.0, true)));
        for (name, file) in listed {
            let listed = number(name.number, name.is_directory);
            let at = name.cookie + 2;
            is_full = is_full
                || add(
                    file.as_ref().map_or(0, |file| file.id),
                    at,
                    &name.name,
                    file.as_ref().unwrap_or(&listed),
                );
            // The kernel will not forget a file that did not fit into the reply.
            if let Some(file) = file.filter(|_| is_full) {
                self.files.forget(file.id, 1);
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.files.sizes() {
            Ok((bytes, clusters, free)) => reply.statfs(clusters, free, free, 0, 0, bytes, 255, bytes),
            Err(code) => reply.error(errno(code)),
        }
    }
}
