//! Errors of programs that use the file system, separated by what is at fault.
//!
//! Four families never mix: the request makes no sense (`NotFound`, `Exists`, ...), the server or the network
//! does not answer (`Unreachable`), the server answered with wrong *data* (`Integrity`: that file only), or
//! the server answered with a wrong *order* (`Frozen`: nothing it sends is believed any more). An honest
//! crash or a lost connection is never reported as an integrity failure, and altered bytes are never reported
//! as absence.

use holdfast_content::{Handle, PrincipalId};
use holdfast_crypto::Digest;
use holdfast_protocol::message::ServerError;
use holdfast_rpc::RpcError;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a file system call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FsError {
    /// No such file or directory, in a view that was verified.
    #[error("no such file or directory")]
    NotFound,
    /// A file of that name exists already.
    #[error("the name exists already")]
    Exists,
    /// A component of the path is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The file is a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The file system allows this to no user.
    #[error("not permitted: {0}")]
    NotPermitted(String),
    /// This user may not do that; the text says why.
    #[error("access denied: {0}")]
    Access(String),
    /// The mount or the device may only read, not write.
    #[error("read-only")]
    ReadOnly,
    /// A name longer than 255 bytes.
    #[error("name too long")]
    NameTooLong,
    /// An argument is invalid; the text says how.
    #[error("invalid argument: {0}")]
    Invalid(String),
    /// No such extended attribute, or no data beyond an offset.
    #[error("no data")]
    NoData,
    /// The server's or the local disk is full.
    #[error("no space left")]
    NoSpace,
    /// The user stores as much at the server as the limit allows.
    #[error(
        "the quota at the server is used up ({used} of {limit} bytes): delete what is not needed, which counts once the \
         server has collected it, or ask the superuser for more; see `holdfast fs quota list`"
    )]
    Quota {
        /// Bytes that are charged to the user.
        used: u64,
        /// Bytes that the user may have.
        limit: u64,
    },
    /// A file or a value exceeds a limit.
    #[error("too large")]
    TooLarge,
    /// Holdfast does not offer this.
    #[error("not supported")]
    Unsupported,
    /// Too many symbolic links, or a directory moved into itself.
    #[error("loop")]
    Loop,
    /// A hard link or rename between owners that cannot be one operation.
    #[error("the two places belong to different owners")]
    CrossPrincipal,
    /// The file has the largest permitted number of names.
    #[error("too many links")]
    TooManyLinks,
    /// It is in use.
    #[error("busy")]
    Busy,
    /// The period of validity of a signature has passed.
    #[error("{0}")]
    Expired(String),
    /// A signature was revoked.
    #[error("{0}")]
    Revoked(String),
    /// The lock would deadlock: the holders that prevent it wait for this one.
    #[error("waiting for this lock would never end")]
    Deadlock,
    /// No more locks can be held.
    #[error("too many locks")]
    TooManyLocks,
    /// A lock was lost while the server was away, and another device may have changed the file since.
    #[error("the lock of this file was lost while the server was away; close the file and open it again")]
    LockLost,
    /// The file was deleted while it was open; proven by the present view.
    #[error("the file was deleted meanwhile")]
    Stale,
    /// The path may lead to another inode by now: the caller should look it up and try once more. The kernel
    /// does so by itself, once.
    #[error("what the path leads to has changed; look it up once more")]
    LookAgain,
    /// The server gave wrong data for this file.
    #[error("{0}")]
    Integrity(Arc<IntegrityReport>),
    /// The server showed a wrong order: nothing it sends is believed any more.
    #[error("{0}")]
    Frozen(Arc<FrozenReport>),
    /// The program was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// The server did not answer before the deadline.
    #[error("the server could not be reached: {0}")]
    Unreachable(String),
    /// Witnesses vouch for no head that is new enough, and the mount is configured to stop then.
    #[error("{0}")]
    Outdated(String),
    /// The holder of this device's key does not sign.
    #[error("this device's key cannot be used: {0}")]
    Key(String),
    /// The server refused the request.
    #[error("the server refused: {0}")]
    Refused(String),
    /// A failure of this machine's own disk or memory.
    #[error("{text}")]
    Local {
        /// Kind of the I/O error.
        kind: std::io::ErrorKind,
        /// What failed, in words.
        text: String,
    },
}

impl From<&RpcError> for FsError {
    fn from(error: &RpcError) -> FsError {
        match error {
            RpcError::Server(ServerError::NoSpace) => FsError::NoSpace,
            RpcError::Server(ServerError::OverQuota { used, limit }) => {
                FsError::Quota { used: *used, limit: *limit }
            }
            RpcError::Server(ServerError::NotAllowed(why)) => FsError::Access(why.clone()),
            // The server's disk, the machine that stores its blocks, or too many requests at once: this may
            // be repaired, and nothing was refused for good.
            RpcError::Server(error @ (ServerError::Storage(_) | ServerError::Busy)) => {
                FsError::Unreachable(error.to_string())
            }
            RpcError::Server(other) => FsError::Refused(other.to_string()),
            RpcError::TooLarge { .. } => FsError::TooLarge,
            RpcError::Key(why) => FsError::Key(why.to_string()),
            other => FsError::Unreachable(other.to_string()),
        }
    }
}

impl FsError {
    /// The error for a write of this device to another owner's file.
    pub(crate) fn not_writable(owner: PrincipalId) -> FsError {
        FsError::Access(format!("this device may not write what belongs to {owner}"))
    }

    /// A local I/O failure while doing `what`.
    pub fn local(what: impl std::fmt::Display, error: &std::io::Error) -> FsError {
        if error.kind() == std::io::ErrorKind::StorageFull {
            return FsError::NoSpace;
        }
        FsError::Local { kind: error.kind(), text: format!("{what}: {error}") }
    }
}

/// Altered or missing data of one file: the data, the place, the time, and what to do.
#[derive(Clone, Debug, Serialize)]
pub struct IntegrityReport {
    /// The file it concerns, when known (`user 3, 17` form).
    #[serde(serialize_with = "display_option")]
    pub file: Option<Handle>,
    /// Its path in the mount, when known.
    pub path: Option<String>,
    /// What was found wrong, in words.
    pub what: String,
    /// When it was noticed, in nanoseconds since 1970.
    pub noticed_ns: i64,
    /// The last operation of this device whose view was valid.
    pub last_good_operation: u64,
    /// The evidence file, if it could be written.
    pub evidence: Option<PathBuf>,
    /// The block that the server says it does not have, if that is the offence.
    #[serde(serialize_with = "display_option")]
    pub missing: Option<Digest>,
}

impl std::fmt::Display for IntegrityReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "integrity failure")?;
        match (&self.path, &self.file) {
            (Some(path), _) => write!(f, " in {path}")?,
            (None, Some(file)) => write!(f, " in file {file}")?,
            (None, None) => {}
        }
        match (&self.path, &self.file) {
            (None, None) => {
                // A table belongs to many files, so the message must not say that one file is affected.
                write!(f, " in a table or directory: {}. What is found through it is affected;", self.what)?;
                write!(f, " the rest stays usable. Ask the operator to restore the data.")?;
            }
            _ => {
                write!(f, ": {}. Only this file is affected; the rest stays usable.", self.what)?;
                write!(f, " Ask the operator to restore the data, or write the file anew.")?;
            }
        }
        if let Some(path) = &self.evidence {
            write!(f, " Evidence: {}.", path.display())?;
        }
        Ok(())
    }
}

/// A wrong order: why everything stopped, and what to do.
#[derive(Clone, Debug, Serialize)]
pub struct FrozenReport {
    /// What the server did, in words, naming devices.
    pub what: String,
    /// When it was noticed, in nanoseconds since 1970.
    pub noticed_ns: i64,
    /// The last operation of this device whose view was valid.
    pub last_good_operation: u64,
    /// The evidence file, if it could be written.
    pub evidence: Option<PathBuf>,
    /// Whether the cause is the state of this machine (a clone, or an earlier state restored), and not the
    /// server.
    pub is_local: bool,
    /// Whether there was no fault: a restore of the server was declared, and takes effect at the next start.
    pub is_restored: bool,
}

impl FrozenReport {
    /// The report of an offence of the server that has just been found.
    pub fn of_server(what: String, last_good_operation: u64, evidence: Option<PathBuf>) -> FrozenReport {
        let noticed_ns = crate::evidence::now_ns();
        FrozenReport { what, noticed_ns, last_good_operation, evidence, is_local: false, is_restored: false }
    }
}

impl std::fmt::Display for FrozenReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_restored {
            return write!(f, "{}", self.what);
        }
        let (why, then) = match self.is_local {
            true => (
                "this device's state and what its key has signed do not fit together, so it signs no more",
                "",
            ),
            false => (
                "the server's history is not consistent, so nothing it shows is believed",
                ", and compare notes with the other members before trusting this server again",
            ),
        };
        write!(f, "{why}: {}.", self.what.trim_end_matches('.'))?;
        write!(
            f,
            " Your last good operation was number {}. Unsaved data is kept; run `holdfast evidence` for details \
             and `holdfast salvage` to get it out{then}.",
            self.last_good_operation
        )?;
        if let Some(path) = &self.evidence {
            write!(f, " Evidence: {}.", path.display())?;
        }
        Ok(())
    }
}

fn display_option<S: serde::Serializer, T: std::fmt::Display>(
    value: &Option<T>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => to.collect_str(value),
        None => to.serialize_none(),
    }
}

/// Why an engine could not start. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The key does not belong to a member.
    #[error(
        "the key {key} is not a device of this file system; ask the superuser to run `holdfast fs device add`"
    )]
    UnknownDevice {
        /// The public key that is not a member's.
        key: String,
    },
    /// The device was removed.
    #[error("device {device} was removed from this file system by its superuser")]
    Removed {
        /// Number of the device.
        device: u32,
    },
    /// The device has signed operations, but their record is not on this machine. If it signed more, it could
    /// reuse a number, which others must take for an attack.
    #[error(
        "device {device} has already made {operations} operations, but its state is not in {state_dir}. If you \
         moved, move that folder too; if it is lost, make a new key (`holdfast keygen`) and have the superuser \
         enrol it as another device (`holdfast fs device add`)"
    )]
    StateMissing {
        /// Number of the device.
        device: u32,
        /// Number of the device's operations that the server knows.
        operations: u64,
        /// The directory where the state was looked for.
        state_dir: PathBuf,
    },
    /// The state belongs to another key or file system.
    #[error("the state in {state_dir} belongs to {found}, not to {expected}")]
    StateForeign {
        /// The state directory.
        state_dir: PathBuf,
        /// The key or file system that the state belongs to.
        found: String,
        /// The key or file system that was expected.
        expected: String,
    },
    /// The state cannot be read.
    #[error("the state in {state_dir} cannot be used: {why}")]
    StateCorrupt {
        /// The state directory.
        state_dir: PathBuf,
        /// Why it cannot be used, in words.
        why: String,
    },
    /// The state was exported to another machine.
    #[error("the state of this key in {state_dir} is not in use any more: {why}")]
    StateMoved {
        /// The directory where the state was.
        state_dir: PathBuf,
        /// Where the state was moved to, in words.
        why: String,
    },
    /// Another process uses the state.
    #[error("{state_dir} is in use by another process; only one may sign with a key at a time")]
    InUse {
        /// The state directory.
        state_dir: PathBuf,
    },
    /// The server cannot be reached.
    #[error("the server could not be reached: {0}")]
    Unreachable(String),
    /// The holder of the key, such as an SSH agent, does not sign.
    #[error("this device's key cannot be used: {0}")]
    Key(String),
    /// The server is not in the superuser's signed list, or does not serve this file system.
    #[error("this is not a server of the file system in the address: {0}")]
    WrongServer(String),
    /// The server does not have the file system.
    #[error("the server does not have this file system; check the address")]
    UnknownFileSystem,
    /// Client and server have no version of the protocol in common.
    #[error("{0}")]
    Version(String),
    /// The server showed a wrong order; or it did so earlier and the state is frozen.
    #[error(
        "{0} When you have looked into it and want to try this server again, mount with --acknowledge-alarm: what this device has seen so far is remembered, so the same trick is caught again."
    )]
    Frozen(Arc<FrozenReport>),
    /// This machine failed, as with a full disk.
    #[error("{what}: {source}")]
    Local {
        /// What was being done.
        what: String,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The first operation failed.
    #[error("{0}")]
    First(FsError),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a fault in a file is reported for that file, and a fault in a table, through which many files
    /// are found, is not reported as affecting one file.
    #[test]
    fn a_report_says_what_is_affected() {
        let mut report = IntegrityReport {
            file: None,
            path: None,
            what: "altered".to_owned(),
            noticed_ns: 0,
            last_good_operation: 0,
            evidence: None,
            missing: None,
        };
        let text = report.to_string();
        assert!(text.contains("in a table or directory") && !text.contains("this file"), "{text}");
        report.path = Some("team/a".to_owned());
        let text = report.to_string();
        assert!(text.contains("in team/a: altered. Only this file is affected"), "{text}");
    }
}
