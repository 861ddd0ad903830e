//! The number of shards that the blocks of a server are divided into, as the bucket has it: in the object
//! `PREFIX/KEY/shards`, as text. If the blocks are in one piece, there is no such object.

use super::server_error::ServedStoreError;
use holdfast_tiered::{Bucket, BucketError};

const SHARDS: &str = "shards";
/// The name of the object that says which server writes to a store.
const OWNER: &str = "owner";

/// Whether the bucket has this number of shards. Returns `false` if it has no number and no blocks yet, and
/// `true` if it cannot be reached, because then no store can be opened anyway.
///
/// # Errors
/// The bucket has another number, or refuses the request.
pub(super) fn agrees(bucket: &dyn Bucket, shards: u16) -> Result<bool, ServedStoreError> {
    let there = match lookup(bucket.get(SHARDS, None))? {
        Lookup::It(text) => String::from_utf8_lossy(&text).trim().to_owned(),
        Lookup::Nothing if shards == 1 => return Ok(true),
        Lookup::Nothing => {
            return match lookup(bucket.length(OWNER))? {
                Lookup::It(_) => Err(ServedStoreError::Undivided { bucket: bucket.describe() }),
                Lookup::Nothing => Ok(false),
                Lookup::Unknown => Ok(true),
            };
        }
        Lookup::Unknown => return Ok(true),
    };
    match there == shards.to_string() {
        true => Ok(true),
        false => Err(ServedStoreError::OtherShards { bucket: bucket.describe(), there }),
    }
}

/// Writes the number of shards to the bucket.
///
/// # Errors
/// The bucket's error. That it cannot be reached is none: it is logged.
pub(super) fn say(bucket: &dyn Bucket, shards: u16) -> Result<(), BucketError> {
    lookup(bucket.put(SHARDS, format!("{shards}\n").as_bytes())).map(drop)
}

enum Lookup<T> {
    It(T),
    Nothing,
    /// The bucket cannot be reached.
    Unknown,
}

fn lookup<T>(answer: Result<T, BucketError>) -> Result<Lookup<T>, BucketError> {
    match answer {
        Ok(it) => Ok(Lookup::It(it)),
        Err(error) if error.is_absent() => Ok(Lookup::Nothing),
        Err(error @ BucketError::Away { .. }) => {
            tracing::warn!("{error}");
            Ok(Lookup::Unknown)
        }
        Err(error) => Err(error),
    }
}
