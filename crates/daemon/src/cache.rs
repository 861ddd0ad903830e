//! The cache folders of this user: what each of them caches, and how large they may grow.

use crate::paths::Directories;
use holdfast_client::store::BYTES_MAX_DEFAULT;
use holdfast_crypto::{Digest, DigestKey};
use holdfast_failure::Outcome;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The file that says what a folder caches.
pub const ABOUT_FILE: &str = "about.json";
/// The file with the size that was chosen for all caches, in their base directory.
pub const SIZE_FILE: &str = "size";

/// What a folder caches, for people and for checking the folder. Not trusted.
#[derive(Serialize, Deserialize)]
pub struct About {
    /// Address of the file system or release.
    pub address: String,
    /// The key of its digests, in hexadecimal.
    pub digest_key: String,
}

/// Notes in a folder which file system or release it caches.
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

/// The bound of each cache: the one that was chosen for all, or the default. In bytes.
///
/// # Errors
/// No home directory is known.
pub fn size_given(directories: &Directories) -> Outcome<u64> {
    Ok(size_chosen(directories)?.unwrap_or(BYTES_MAX_DEFAULT))
}

/// The bound that was chosen for all caches, in bytes, if any.
///
/// # Errors
/// No home directory is known.
pub fn size_chosen(directories: &Directories) -> Outcome<Option<u64>> {
    let text = std::fs::read_to_string(directories.cache_base()?.join(SIZE_FILE));
    Ok(text.ok().and_then(|text| text.trim().parse().ok()))
}
