//! The only module that decides error numbers.
//!
//! The match is exhaustive on purpose: a new error must be given a number here. Altered data and a wrong
//! order are EIO, never ENOENT and never zeroes. A file that others deleted while it was open is ESTALE. A
//! server that does not answer, and witnesses that have not co-signed lately, are ETIMEDOUT, so that no
//! program takes silence for loss. A key whose agent does not sign is ENOKEY. A release that is not valid any
//! more is EKEYEXPIRED or EKEYREVOKED.

use fuser::Errno;
use holdfast_client::FsError;
use std::io::ErrorKind;

/// Makes the kernel walk the path once more, without its cached names, and send the requests again. The
/// kernel does this once for each call; the program gets the second such error. It is used for names that
/// were found through a listing and have changed, for opens whose program has yet to be identified
/// ([`FsError::LookAgain`]), and for directories that are about to be mounted on ([`crate::automount`]).
pub(crate) const LOOK_AGAIN: Errno = Errno::ESTALE;

/// The error number that programs get.
pub(crate) fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::Exists => Errno::EEXIST,
        FsError::NotDirectory => Errno::ENOTDIR,
        FsError::IsDirectory => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::NotPermitted(_) => Errno::EPERM,
        FsError::Access(_) | FsError::Refused(_) => Errno::EACCES,
        FsError::ReadOnly => Errno::EROFS,
        FsError::NameTooLong => Errno::ENAMETOOLONG,
        FsError::Invalid(_) => Errno::EINVAL,
        FsError::NoData => Errno::NO_XATTR,
        FsError::NoSpace => Errno::ENOSPC,
        FsError::Quota { .. } => Errno::EDQUOT,
        FsError::TooLarge => Errno::EFBIG,
        FsError::Unsupported => Errno::EOPNOTSUPP,
        FsError::Loop => Errno::EINVAL,
        FsError::CrossPrincipal => Errno::EXDEV,
        FsError::TooManyLinks => Errno::EMLINK,
        FsError::Busy => Errno::EBUSY,
        FsError::Stale => Errno::ESTALE,
        FsError::LookAgain => LOOK_AGAIN,
        FsError::Deadlock => Errno::EDEADLK,
        FsError::TooManyLocks => Errno::ENOLCK,
        FsError::Integrity(_) | FsError::Frozen(_) | FsError::LockLost => Errno::EIO,
        FsError::Interrupted => Errno::EINTR,
        FsError::Unreachable(_) | FsError::Outdated(_) => Errno::ETIMEDOUT,
        FsError::Key(_) => Errno::from_i32(libc::ENOKEY),
        FsError::Expired(_) => Errno::from_i32(libc::EKEYEXPIRED),
        FsError::Revoked(_) => Errno::from_i32(libc::EKEYREVOKED),
        FsError::Local { kind, .. } => local(*kind),
    }
}

/// The error number for a failure of this machine's disk: its own number where that cannot be misunderstood.
fn local(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::StorageFull => Errno::ENOSPC,
        ErrorKind::QuotaExceeded => Errno::EDQUOT,
        ErrorKind::OutOfMemory => Errno::ENOMEM,
        ErrorKind::FileTooLarge => Errno::EFBIG,
        _ => Errno::EIO,
    }
}
