//! In how many shards the blocks of a server are, by what the bucket says: `PREFIX/KEY/shards`, text. It is not there if they
//! are in one piece.

use holdfast_objects::{Bucket, BucketError};

const SHARDS: &str = "shards";
/// Says who writes a store.
const OWNER: &str = "owner";

/// Whether the bucket says that there are so many; `false`: it says nothing yet, and has no blocks. What it has is known only
/// while it is reached, and without it no store is opened anyway.
///
/// # Errors
/// In words, with the way out: there are more or fewer.
pub(super) fn agrees(bucket: &dyn Bucket, shards: u16) -> Result<bool, String> {
    let there = match heeded(bucket.get(SHARDS, None))? {
        Found::It(text) => String::from_utf8_lossy(&text).trim().to_owned(),
        Found::Nothing if shards == 1 => return Ok(true),
        Found::Nothing => {
            return match heeded(bucket.length(OWNER))? {
                Found::It(_) => Err(format!(
                    "{} has them in one piece, which cannot be divided: shards are for a bucket, or a prefix, that is new",
                    bucket.describe()
                )),
                Found::Nothing => Ok(false),
                Found::Unknown => Ok(true),
            };
        }
        Found::Unknown => return Ok(true),
    };
    match there == shards.to_string() {
        true => Ok(true),
        false => Err(format!(
            "{} has them in {there} shards: start with --stand-by, and --shards {there}",
            bucket.describe()
        )),
    }
}

/// Says it in the bucket.
///
/// # Errors
/// The bucket's.
pub(super) fn say(bucket: &dyn Bucket, shards: u16) -> Result<(), String> {
    heeded(bucket.put(SHARDS, format!("{shards}\n").as_bytes())).map(drop)
}

enum Found<T> {
    It(T),
    Nothing,
    /// The bucket is away.
    Unknown,
}

fn heeded<T>(answer: Result<T, BucketError>) -> Result<Found<T>, String> {
    match answer {
        Ok(it) => Ok(Found::It(it)),
        Err(error) if error.is_absent() => Ok(Found::Nothing),
        Err(error @ BucketError::Away { .. }) => {
            tracing::warn!("{error}");
            Ok(Found::Unknown)
        }
        Err(error) => Err(error.to_string()),
    }
}
