//! The interface of a bucket, and its errors.

use crate::credentials::CredentialsError;
use std::io;
use std::ops::Range;

/// A name and a length from a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedObject {
    /// The object, without the prefix.
    pub name: String,
    /// Its length in bytes.
    pub length: u64,
}

/// Kinds of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// An object is written.
    Put,
    /// An object or a range of it is read.
    Get,
    /// An object's length is requested.
    Head,
    /// Names are listed.
    List,
    /// An object is removed.
    Delete,
}

/// Number of requests so far, by kind. Failed attempts are counted too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestCounts {
    /// Objects written.
    pub put: u64,
    /// Objects or ranges read.
    pub get: u64,
    /// Requests for an object's length.
    pub head: u64,
    /// Pages of listings.
    pub list: u64,
    /// Objects removed.
    pub delete: u64,
}

/// The objects under a prefix of a bucket. Calls block, may come from any thread, and are retried a few
/// times.
pub trait Bucket: Send + Sync {
    /// Writes an object, completely or not at all. Replaces one of the same name.
    ///
    /// # Errors
    /// [`BucketError`]; the object may exist all the same, now or later.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), BucketError>;

    /// Reads an object, or a range that must be within it.
    ///
    /// # Errors
    /// [`BucketError`]
    fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>, BucketError>;

    /// An object's length in bytes.
    ///
    /// # Errors
    /// [`BucketError`]
    fn length(&self, name: &str) -> Result<u64, BucketError>;

    /// All objects whose names begin with `beginning`, sorted by name.
    ///
    /// # Errors
    /// [`BucketError`]
    fn list(&self, beginning: &str) -> Result<Vec<ListedObject>, BucketError>;

    /// Removes an object. If it does not exist, that is no error.
    ///
    /// # Errors
    /// [`BucketError`]
    fn delete(&self, name: &str) -> Result<(), BucketError>;

    /// Has the store copy a range of an object, which must be within it, into a new object. Returns `false`
    /// if the store does not support that; then nothing has changed.
    ///
    /// # Errors
    /// [`BucketError`]; the object may exist all the same, now or later.
    fn copy(&self, from: &str, range: Range<u64>, to: &str) -> Result<bool, BucketError>;

    /// Removes uploads in parts that were not completed, of objects whose names begin with `_beginning`.
    /// Returns how many.
    ///
    /// # Errors
    /// [`BucketError`]
    fn abandon_uploads(&self, _beginning: &str) -> Result<usize, BucketError> {
        Ok(0)
    }

    /// Bucket and prefix for messages.
    fn describe(&self) -> String;

    /// The number of requests so far.
    fn counts(&self) -> RequestCounts;
}

/// Why a request to a bucket failed. Each message names the bucket or object, and says what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BucketError {
    /// The store cannot be reached, or is overloaded.
    #[error("{bucket} cannot be reached: {why}. Nothing is lost; it is asked again")]
    Away {
        /// The bucket.
        bucket: String,
        /// The reason.
        why: String,
    },
    /// The object does not exist.
    #[error("the object {object} is not there")]
    Absent {
        /// The object's name, with bucket and prefix.
        object: String,
    },
    /// The bucket does not exist.
    #[error("there is no bucket {bucket}: make it, or correct its name, the endpoint or the region ({why})")]
    NoBucket {
        /// The bucket.
        bucket: String,
        /// The store's error.
        why: String,
    },
    /// There are no credentials for the request.
    #[error("{bucket} cannot be asked: {why}")]
    NoCredentials {
        /// The bucket.
        bucket: String,
        /// Why there are none, and what to do.
        why: CredentialsError,
    },
    /// The credentials do not allow the request.
    #[error(
        "{bucket} refuses: {why}. The credentials are from {from}; they need the rights to get, put, list and delete objects \
         there"
    )]
    Denied {
        /// The bucket.
        bucket: String,
        /// The store's error.
        why: String,
        /// Where the credentials come from.
        from: String,
    },
    /// The clocks of this machine and the store differ.
    #[error("{bucket} refuses because the clocks differ: set this machine's ({why})")]
    Skew {
        /// The bucket.
        bucket: String,
        /// The store's error.
        why: String,
    },
    /// The reply makes no sense, or the store refused for another reason.
    #[error("{bucket} failed ({action}): {why}")]
    Failed {
        /// The bucket.
        bucket: String,
        /// The action that failed.
        action: String,
        /// The store's error.
        why: String,
    },
}

impl BucketError {
    /// Whether the error says that an object does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, BucketError::Absent { .. })
    }

    /// Whether only an operator can remove the cause.
    pub fn needs_operator(&self) -> bool {
        matches!(
            self,
            BucketError::NoBucket { .. }
                | BucketError::NoCredentials { .. }
                | BucketError::Denied { .. }
                | BucketError::Skew { .. }
        )
    }
}

impl From<BucketError> for io::Error {
    /// Every error that says nothing about the object itself becomes `HostUnreachable`.
    fn from(error: BucketError) -> io::Error {
        let kind = match &error {
            BucketError::Absent { .. } => io::ErrorKind::NotFound,
            _ => io::ErrorKind::HostUnreachable,
        };
        io::Error::new(kind, error.to_string())
    }
}
