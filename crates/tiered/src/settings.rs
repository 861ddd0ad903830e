//! The settings of tiered storage, and why it cannot be opened.

use crate::address::Durability;
use crate::bucket::BucketError;
use std::io;
use std::time::Duration;

/// The settings of tiered storage.
#[derive(Clone, Debug)]
pub struct Settings {
    /// When stored data is acknowledged.
    pub durability: Durability,
    /// Most bytes of the local disk for unsent segments, copies of sent ones, and ranges that were read.
    pub cache_bytes: u64,
    /// How long an object stays after nothing lists it any more.
    pub condemned: Duration,
    /// Parts of a segment with fewer bytes are joined when it is sealed. While other parts are being sent, no
    /// smaller part is begun.
    pub part_bytes_min: u64,
    /// Ranges of objects with fewer bytes are not copied by the store: Amazon's does not copy from objects of
    /// 5 MiB or less.
    pub copied_bytes_min: u64,
    /// How long an acknowledgement waits for the bucket.
    pub patience: Duration,
    /// How often failed work is tried again, and the owner's note is checked.
    pub every: Duration,
    /// Whether the operator accepts what is in the bucket as it is.
    pub anew: bool,
    /// Whether this is one of several servers of which one is elected. It then takes the store over from
    /// another server that has had it since, and gives up its older local state. Not for
    /// [`Durability::Local`].
    pub takes_over: bool,
    /// This machine's name in the owner's note.
    pub host: String,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            durability: Durability::Local,
            cache_bytes: 10 << 30,
            condemned: Duration::from_secs(600),
            part_bytes_min: 1 << 20,
            copied_bytes_min: (5 << 20) + 1,
            patience: Duration::from_secs(15),
            every: Duration::from_secs(3),
            anew: false,
            takes_over: false,
            host: "unnamed".to_owned(),
        }
    }
}

/// Why tiered storage cannot be opened, or a later request failed.
#[derive(Debug, thiserror::Error)]
pub enum TieredError {
    /// The bucket failed or refused.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The local disk failed.
    #[error("{action} {file}: {error}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        file: String,
        /// The system's error.
        error: io::Error,
    },
    /// Another process has the directory open.
    #[error("{directory} is in use by another server: {why}")]
    InUse {
        /// The data directory.
        directory: String,
        /// Which process has it, if the system says so.
        why: String,
    },
    /// The bucket has a store, but the directory is new.
    #[error(
        "{bucket} has the store of {owner}. If that server's data directory is lost, --blocks-anew takes the store over; else \
         start it on that directory, or give this one another prefix"
    )]
    Occupied {
        /// The bucket.
        bucket: String,
        /// Which server has the store, and since when.
        owner: String,
    },
    /// The bucket is not the one that was there before.
    #[error(
        "{why}. Nothing is written there and no garbage is collected; what is there can be read. {way_out}"
    )]
    Doubtful {
        /// The reason for the doubt.
        why: String,
        /// What can be done.
        way_out: String,
    },
    /// A local file, or an object that was read, is damaged.
    #[error("{what} is damaged: {why}")]
    Damaged {
        /// The file or object.
        what: String,
        /// What is wrong, and what to do.
        why: String,
    },
}

impl TieredError {
    pub(crate) fn io(action: &'static str, file: &str) -> impl FnOnce(io::Error) -> TieredError {
        let file = file.to_owned();
        move |error| TieredError::Io { action, file, error }
    }

    /// The error that a file of the log fails with.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            TieredError::Bucket(error) => error.into(),
            TieredError::Io { ref error, .. } => io::Error::new(error.kind(), self.to_string()),
            other => io::Error::other(other.to_string()),
        }
    }

    /// Whether the error is only that the bucket cannot be reached.
    pub fn is_away(&self) -> bool {
        matches!(self, TieredError::Bucket(BucketError::Away { .. }))
    }
}
