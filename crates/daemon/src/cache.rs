//! Cache folders of this user: whose each is, and how large they may grow.

use crate::paths::Directories;
use holdfast_client::store::BYTES_MAX_DEFAULT;
use holdfast_crypto::{Digest, DigestKey};
use holdfast_failure::Outcome;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// File that says whose cache a folder is.
pub const ABOUT_FILE: &str = "about.json";
/// File with the size that was chosen for all caches, below the base of them.
pub const SIZE_FILE: &str = "size";

/// Whose cache a folder is: for people, and to check it by. Not trusted.
#[derive(Serialize, Deserialize)]
pub struct About {
    /// Address of the file system or release.
    pub address: String,
    /// The key of its digests, in hexadecimal.
    pub digest_key: String,
}

/// Takes note of whose cache a folder is.
pub fn remember(folder: &Path, address: &str, key: &DigestKey) {
    let about = About { address: address.to_owned(), digest_key: Digest(key.0).to_string() };
    let path = folder.join(ABOUT_FILE);
    let written = serde_json::to_vec(&about).map_err(std::io::Error::from).and_then(|bytes| {
        if std::fs::read(&path).is_ok_and(|there| there == bytes) {
            return Ok(());
        }
        let temporary = folder.join(format!("tmp-about-{}", std::process::id()));
        std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, &path))
    });
    if let Err(error) = written {
        tracing::debug!(%error, "whose cache it is was not noted");
    }
}

/// The bound on each cache that was chosen for all, or the usual one.
///
/// # Errors
/// No home directory is known.
pub fn size_given(directories: &Directories) -> Outcome<u64> {
    Ok(size_chosen(directories)?.unwrap_or(BYTES_MAX_DEFAULT))
}

/// The bound on each cache that was chosen for all.
///
/// # Errors
/// No home directory is known.
pub fn size_chosen(directories: &Directories) -> Outcome<Option<u64>> {
    let text = std::fs::read_to_string(directories.cache_base()?.join(SIZE_FILE));
    Ok(text.ok().and_then(|text| text.trim().parse().ok()))
}
