//! The settings of tiered storage, and why it cannot be opened.

use crate::address::Durability;
use crate::bucket::BucketError;
use std::io;
use std::time::Duration;

/// The settings of tiered storage.
#[derive(Clone, Debug)]
pub struct Settings {
    /// When what was stored is acknowledged.
    pub durability: Durability,
    /// Most bytes of the local disk for segments that wait, copies of those that do not, and ranges that were read.
    pub cache_bytes: u64,
    /// How long an object stays after nothing lists it any more.
    pub condemned: Duration,
    /// Parts of a segment with fewer bytes are joined when it is sealed, and are not sent at the same time.
    pub part_bytes_min: u64,
    /// Ranges of objects with fewer bytes are not copied by the store: Amazon's copies none of 5 MiB or less.
    pub copied_bytes_min: u64,
    /// How long an acknowledgement waits for the bucket.
    pub patience: Duration,
    /// How often what could not be done is tried again, and the owner's note is looked at.
    pub every: Duration,
    /// The operator accepts what is in the bucket as it is.
    pub anew: bool,
    /// This is one of several servers of which one is elected: what another one has taken over since the last time is taken
    /// over from it, and what is local from then is given up. Not for [`Durability::Local`].
    pub takes_over: bool,
    /// How this machine is called in the owner's note.
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

/// Why tiered storage cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TieredError {
    /// The bucket.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The local disk.
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
        /// Which process has it, as far as that is known.
        why: String,
    },
    /// The bucket has a store, and the directory is new.
    #[error(
        "{bucket} has the store of {owner}. If that server's data directory is lost, --blocks-anew takes the store over; else \
         start it on that directory, or give this one another prefix"
    )]
    Occupied {
        /// The bucket.
        bucket: String,
        /// Whose store it is, and since when.
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
    /// What is local, or was read from the bucket, is damaged.
    #[error("{what} is damaged: {why}")]
    Damaged {
        /// The file or object.
        what: String,
        /// What is wrong, and the way out.
        why: String,
    },
}

impl TieredError {
    pub(crate) fn io(action: &'static str, file: &str) -> impl FnOnce(io::Error) -> TieredError {
        let file = file.to_owned();
        move |error| TieredError::Io { action, file, error }
    }

    /// As what a file of the log fails with.
    pub(crate) fn into_io(self) -> io::Error {
        match self {
            TieredError::Bucket(error) => error.into(),
            TieredError::Io { ref error, .. } => io::Error::new(error.kind(), self.to_string()),
            other => io::Error::other(other.to_string()),
        }
    }

    /// Whether the bucket is only not reached.
    pub fn is_away(&self) -> bool {
        matches!(self, TieredError::Bucket(BucketError::Away { .. }))
    }
}
