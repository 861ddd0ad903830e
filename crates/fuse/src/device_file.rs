//! A directory with one file, which is a disk: for `losetup`, and for programs that need an image.
//!
//! The kernel caches none of its bytes ([`FopenFlags::FOPEN_DIRECT_IO`]). A loop device, or a file system on
//! it, may cache them; they were verified when they were read.

use crate::answering::span_of;
use crate::convert;
use fuser::{
    Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request, WriteFlags,
};
use holdfast_client::files::{Attributes, Ino};
use holdfast_content::InodeKind;
pub use holdfast_volume::Disk;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long the kernel may cache attributes; the size may grow.
const LIVES: Duration = Duration::from_secs(1);
/// The inode number of the file.
const FILE: INodeNo = INodeNo(2);
/// Largest request, in bytes.
const REQUEST_BYTES: u32 = 1 << 20;

thread_local! {
    /// The bytes of a read. Each thread keeps one buffer: fresh memory costs as much as hashing its contents.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Serves the kernel's requests for the file.
pub(crate) struct DeviceHandler {
    disk: Arc<dyn Disk>,
    name: String,
}

impl DeviceHandler {
    pub(crate) fn new(disk: Arc<dyn Disk>, name: &str) -> DeviceHandler {
        DeviceHandler { disk, name: name.to_owned() }
    }

    fn attributes(&self, ino: INodeNo) -> Option<fuser::FileAttr> {
        let (kind, mode, links, size) = match ino {
            INodeNo::ROOT => (InodeKind::Directory, 0o500, 2, 0),
            FILE => (InodeKind::File, 0o600, 1, self.disk.size_bytes()),
            _ => return None,
        };
        Some(convert::attributes(&Attributes {
            ino: Ino(ino.0),
            kind,
            mode,
            links,
            size,
            blocks: size / 512,
            modified_ns: 0,
            changed_ns: 0,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            device_number: 0,
            generation: 0,
        }))
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

fn end(reply: ReplyEmpty, result: io::Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno_of(&error)),
    }
}

impl Filesystem for DeviceHandler {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_MAX_PAGES);
        let _ = config.set_max_write(REQUEST_BYTES);
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE).filter(|_| parent == INodeNo::ROOT && name == OsStr::new(&self.name)) {
            Some(found) => reply.entry(&LIVES, &found, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(found) => reply.attr(&LIVES, &found),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match ino == FILE {
            true => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            false => reply.error(Errno::EISDIR),
        }
    }

    fn read(
        &self,
        request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _span = span_of(request).entered();
        // Programs may read any bytes, but disks have sectors.
        let length = self.disk.size_bytes();
        let wanted = offset.min(length)..offset.saturating_add(u64::from(size)).min(length);
        let (start, end) = (wanted.start / 512 * 512, wanted.end.next_multiple_of(512).min(length));
        let count = (end - start) as usize;
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < count {
                buffer.resize(count, 0);
            }
            let buffer = &mut buffer[..count];
            match self.disk.read(start, buffer) {
                Ok(()) => {
                    reply.data(&buffer[(wanted.start - start) as usize..(wanted.end - start) as usize]);
                }
                Err(error) => reply.error(errno_of(&error)),
            }
        });
    }

    fn write(
        &self,
        request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _span = span_of(request).entered();
        let length = self.disk.size_bytes();
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > length) {
            return reply.error(Errno::ENOSPC);
        }
        match self.disk.write(offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno_of(&error)),
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
        reply.ok();
    }

    fn fsync(
        &self,
        request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        let _span = span_of(request).entered();
        end(reply, self.disk.flush());
    }

    fn fallocate(
        &self,
        request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _span = span_of(request).entered();
        let zeroing = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        let within = offset.checked_add(length).is_some_and(|end| end <= self.disk.size_bytes());
        match (mode & zeroing != 0, within) {
            (_, false) => reply.error(Errno::ENOSPC),
            (true, true) => end(reply, self.disk.write_zeroes(offset, length)),
            // A disk always has all its blocks.
            (false, true) => reply.ok(),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let all = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (FILE, FileType::RegularFile, &self.name),
        ];
        for (at, (ino, kind, name)) in all.iter().enumerate().skip(offset.min(3) as usize) {
            if reply.add(*ino, at as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        reply.statfs(self.disk.size_bytes() / 4096, 0, 0, 1, 0, 4096, 255, 4096);
    }
}
