//! Conversions between the kernel's types and ours.

use fuser::{FileAttr, FileHandle, FileType, INodeNo, RenameFlags, ReplyStatfs, Request, TimeOrNow};
use holdfast_client::files::{
    self, Allocate, Attributes, Caller, FileHandleId, LockMode, LockRange, SeekTo, Statistics, TimeToSet,
};
use holdfast_content::InodeKind;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Preferred size of reads and writes, as `stat` shows it: the average length of a chunk.
const PREFERRED_BYTES: u32 = 64 * 1024;

pub(crate) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), thread: request.pid() }
}

pub(crate) fn handle(handle: FileHandle) -> FileHandleId {
    FileHandleId(handle.0)
}

pub(crate) fn attributes(of: &Attributes) -> FileAttr {
    let modified = system_time(of.modified_ns);
    FileAttr {
        ino: INodeNo(of.ino.0),
        size: of.size,
        blocks: of.blocks,
        atime: modified,
        mtime: modified,
        ctime: system_time(of.changed_ns),
        crtime: UNIX_EPOCH,
        kind: file_type(of.kind),
        perm: (of.mode & 0o7777) as u16,
        nlink: of.links,
        uid: of.uid,
        gid: of.gid,
        rdev: of.device_number,
        blksize: PREFERRED_BYTES,
        flags: 0,
    }
}

/// Attributes for a name that does not exist: the number 0 tells the kernel so.
pub(crate) fn no_attributes() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

pub(crate) fn statfs(reply: ReplyStatfs, of: &Statistics) {
    reply.statfs(
        of.blocks,
        of.blocks_free,
        of.blocks_free,
        of.files,
        of.files_free,
        of.block_bytes,
        of.name_bytes_max,
        of.block_bytes,
    );
}

pub(crate) fn file_type(kind: InodeKind) -> FileType {
    match kind {
        InodeKind::File => FileType::RegularFile,
        InodeKind::Directory => FileType::Directory,
        InodeKind::Symlink => FileType::Symlink,
        InodeKind::Fifo => FileType::NamedPipe,
        InodeKind::Socket => FileType::Socket,
        InodeKind::CharDevice => FileType::CharDevice,
        InodeKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind of file that mknod(2) is to make; `None` if it cannot be made.
pub(crate) fn kind_of_mode(mode: u32) -> Option<InodeKind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(InodeKind::File),
        libc::S_IFIFO => Some(InodeKind::Fifo),
        libc::S_IFSOCK => Some(InodeKind::Socket),
        libc::S_IFCHR => Some(InodeKind::CharDevice),
        libc::S_IFBLK => Some(InodeKind::BlockDevice),
        _ => None,
    }
}

pub(crate) fn rename_flags(flags: RenameFlags) -> Option<files::RenameFlags> {
    if flags.is_empty() {
        Some(files::RenameFlags::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Some(files::RenameFlags::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Some(files::RenameFlags::Exchange)
    } else {
        None
    }
}

pub(crate) fn allocate(mode: i32) -> Option<Allocate> {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    match mode {
        0 => Some(Allocate::Extend),
        libc::FALLOC_FL_KEEP_SIZE => Some(Allocate::KeepSize),
        PUNCH => Some(Allocate::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Some(Allocate::ZeroRange),
        ZERO_KEEP => Some(Allocate::ZeroRangeKeepSize),
        _ => None,
    }
}

/// The target of lseek(2); `None` if a file system does not answer it.
pub(crate) fn seek_to(whence: i32) -> Option<SeekTo> {
    match whence {
        libc::SEEK_DATA => Some(SeekTo::Data),
        libc::SEEK_HOLE => Some(SeekTo::Hole),
        _ => None,
    }
}

/// The mode of a lock; `None` if the number is no mode.
pub(crate) fn lock_mode(kind: i32) -> Option<LockMode> {
    match kind {
        libc::F_RDLCK => Some(LockMode::Shared),
        libc::F_WRLCK => Some(LockMode::Exclusive),
        _ => None,
    }
}

pub(crate) fn lock_kind(mode: LockMode) -> i32 {
    match mode {
        LockMode::Shared => libc::F_RDLCK,
        LockMode::Exclusive => libc::F_WRLCK,
    }
}

/// A lock's range, bounded to the offsets that the kernel accepts.
pub(crate) fn lock_range(range: &LockRange) -> (u64, u64) {
    let most = i64::MAX as u64;
    (range.start.min(most), range.last.min(most))
}

pub(crate) fn time_to_set(time: TimeOrNow) -> TimeToSet {
    match time {
        TimeOrNow::Now => TimeToSet::Now,
        TimeOrNow::SpecificTime(time) => TimeToSet::At(nanoseconds(time)),
    }
}

/// Nanoseconds since the epoch. Times that do not fit (before 1677, after 2262) become the nearest one that
/// does.
fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |before| -before),
    }
}

fn system_time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times before and after the epoch are the same after conversion to the kernel's type and back.
    #[test]
    fn times_round_trip() {
        for ns in [0, 1, -1, 1_700_000_000_123_456_789, -1_000_000_001, i64::MAX, i64::MIN + 1] {
            assert_eq!(nanoseconds(system_time(ns)), ns);
        }
    }

    /// Every supported mode of allocation is recognised; others are refused.
    #[test]
    fn ways_to_allocate() {
        assert_eq!(allocate(0), Some(Allocate::Extend));
        assert_eq!(allocate(1), Some(Allocate::KeepSize));
        assert_eq!(allocate(3), Some(Allocate::PunchHole));
        assert_eq!(allocate(0x10), Some(Allocate::ZeroRange));
        assert_eq!(allocate(0x11), Some(Allocate::ZeroRangeKeepSize));
        for other in [2, 0x8, 0x20, 0x40, 0x12] {
            assert_eq!(allocate(other), None);
        }
    }
}
