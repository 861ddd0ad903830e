//! Where the blocks of a server are, if not in its data directory.

use holdfast_rpc::BlocksAddress;
use holdfast_tiered::BucketAddress;

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

impl std::str::FromStr for BlocksLocation {
    type Err = String;

    fn from_str(text: &str) -> Result<BlocksLocation, String> {
        match text.starts_with("s3:") {
            true => bucket_address(text).map(BlocksLocation::Bucket),
            false => text.parse().map(BlocksLocation::Server).map_err(|_: holdfast_rpc::AddressError| {
                "it is no block server's address, which reads hf+blocks://HOST:PORT/KEY".to_owned()
            }),
        }
    }
}

/// The address of a bucket. The text is in no message: a secret may have been put into it.
///
/// # Errors
/// A text that says why.
pub fn bucket_address(text: &str) -> Result<BucketAddress, String> {
    text.parse().map_err(|error: holdfast_tiered::AddressError| error.reason())
}
