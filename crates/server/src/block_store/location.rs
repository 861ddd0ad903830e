//! Where the blocks of a server are, if not in its data directory.

use holdfast_rpc::BlocksAddress;
use holdfast_tiered::{AddressError, BucketAddress};

/// The host name of this machine.
pub(crate) fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "unnamed".to_owned() } else { name.trim().to_owned() }
}

/// A block server, or a bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BlocksLocation {
    /// At a block server.
    Server(BlocksAddress),
    /// In a bucket.
    Bucket(BucketAddress),
}

impl std::fmt::Display for BlocksLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BlocksLocation::Server(address) => address.fmt(f),
            BlocksLocation::Bucket(address) => address.fmt(f),
        }
    }
}

/// An error for text that does not name a place for blocks. It does not repeat the text, which may contain a
/// secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    /// The text is not the address of a bucket.
    #[error("{}", .0.reason())]
    Bucket(AddressError),
    /// The text is not the address of a block server.
    #[error("it is no block server's address, which reads hf+blocks://HOST:PORT/KEY")]
    Server,
}

impl std::str::FromStr for BlocksLocation {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<BlocksLocation, LocationError> {
        match text.starts_with("s3:") {
            true => bucket_address(text).map(BlocksLocation::Bucket),
            false => text.parse().map(BlocksLocation::Server).map_err(|_| LocationError::Server),
        }
    }
}

/// The address of a bucket.
///
/// # Errors
/// [`LocationError::Bucket`]
pub fn bucket_address(text: &str) -> Result<BucketAddress, LocationError> {
    text.parse().map_err(LocationError::Bucket)
}
