//! The only place that knows errno.
//!
//! The match is exhaustive on purpose: whoever adds an error must say here what programs will see. Altered
//! data and a wrong order are EIO, never ENOENT and never zeroes; a file that others deleted while it was open
//! is ESTALE; a server that does not answer is ETIMEDOUT, so that no program takes silence for loss, and so are witnesses
//! that have not vouched for it lately; a key whose agent
//! does not sign is ENOKEY; a release that counts no more is EKEYEXPIRED or EKEYREVOKED.

use fuser::Errno;
use holdfast_client::FsError;
use std::io::ErrorKind;

/// What has the kernel walk the path once more, without what it remembers of it, and ask again. It does so once for a call; a
/// second answer like this one is the program's. Whoever relies on that answers with this: names that were found through a
/// listing and have changed, opens whose program has yet to be identified ([`FsError::LookAgain`]), and directories that are
/// about to be mounted on ([`crate::automount`]).
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

/// Failures of this machine's disk keep their meaning where it has one that cannot be mistaken.
fn local(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::StorageFull => Errno::ENOSPC,
        ErrorKind::QuotaExceeded => Errno::EDQUOT,
        ErrorKind::OutOfMemory => Errno::ENOMEM,
        ErrorKind::FileTooLarge => Errno::EFBIG,
        _ => Errno::EIO,
    }
}
