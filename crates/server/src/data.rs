//! The data directory: the server's key, the list of allowed superusers, and the store beside them.
//!
//! ```text
//! DATA/server-key          OpenSSH private key, mode 0600
//! DATA/allowed-superusers  OpenSSH public keys, one a line; optional
//! DATA/control             Unix socket of the running server, mode 0600
//! DATA/ballast             reserved space, so that a server can start on a full disk
//! DATA/locks-held          exists while clients may hold locks of files
//! DATA/leases              which sessions may hold leases
//! DATA/restored            file systems whose superuser has not yet declared that they were restored
//! DATA/block-store         the block server that has the blocks, if they are not in the store here
//! DATA/block-store-position  the highest position that the block server has acknowledged
//! DATA/converted           exists if the file systems were moved elsewhere: the directory is not served
//! DATA/converting          exists while a conversion into this directory is incomplete
//! DATA/order               where the order is, if not in the store here
//! DATA/store/              block store and ordering records
//! ```

use crate::error::OpenError;
use holdfast_crypto::{PublicKey, SigningKey, keyfile};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

const KEY: &str = "server-key";
/// Names that may be in a data directory before its first start: what an administrator wrote, what a
/// conversion, a rebuild or an earlier attempt left, and what a file system has at its root.
const NAMES: [&str; 10] = [
    "evidence",
    "allowed-superusers",
    "control",
    "block-store",
    "block-store-position",
    "converting",
    "order",
    "objects",
    "blocks",
    "lost+found",
];
/// Size of the ballast, in bytes: enough to start, serve reads, and move live records out of a few segments
/// of garbage.
const BALLAST_BYTES: u64 = 16 << 20;
/// The ballast is set aside if more than so many bytes are free.
const BALLAST_FREE_MIN: u64 = 8 * BALLAST_BYTES;

/// A data directory that exists.
#[derive(Clone, Debug)]
pub(crate) struct DataDirectory {
    path: PathBuf,
}

impl DataDirectory {
    pub(crate) fn open(path: &Path) -> Result<DataDirectory, OpenError> {
        refuse_foreign(path)?;
        let store = path.join("store");
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&store)
            .map_err(|error| OpenError::io("creating", &store, error))?;
        Ok(DataDirectory { path: path.to_owned() })
    }

    /// Opens the data directory of a process that has its files elsewhere than in `store`.
    pub(crate) fn bare(path: &Path) -> Result<DataDirectory, OpenError> {
        refuse_foreign(path)?;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| OpenError::io("creating", path, error))?;
        Ok(DataDirectory { path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the blocks are at a block server or in a bucket.
    pub(crate) fn has_blocks_elsewhere(&self) -> bool {
        self.path.join(crate::block_store::FILES[0]).exists()
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path.join("store")
    }

    pub(crate) fn locks_note(&self) -> PathBuf {
        self.path.join("locks-held")
    }

    pub(crate) fn leases_note(&self) -> PathBuf {
        self.path.join("leases")
    }

    pub(crate) fn restored_note(&self) -> PathBuf {
        self.path.join("restored")
    }

    /// The address of etcd at the last start, if the order was there, and the file with the credentials.
    pub(crate) fn order_elsewhere(&self) -> Result<Option<(String, Option<PathBuf>)>, OpenError> {
        let path = self.path.join("order");
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let mut lines = text.lines().map(str::to_owned);
                Ok(lines.next().map(|place| (place, lines.next().map(PathBuf::from))))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(OpenError::io("reading", &path, error)),
        }
    }

    /// Notes where the order is stored.
    pub(crate) fn note_order(&self, place: &str, login: Option<&Path>) -> Result<(), OpenError> {
        let path = self.path.join("order");
        let login = login.map_or_else(String::new, |login| format!("{}\n", login.display()));
        holdfast_durable::replace(&path, format!("{place}\n{login}").as_bytes(), holdfast_durable::PRIVATE)
            .map_err(|error| OpenError::io("writing", &path, error))
    }

    pub(crate) fn control(&self) -> PathBuf {
        control_socket(&self.path)
    }

    /// Reserves the ballast if there is enough free space. A failure is harmless: the next start tries again.
    pub(crate) fn hold_ballast(&self, free_bytes: Option<u64>) {
        let path = self.path.join("ballast");
        if free_bytes.is_none_or(|free| free < BALLAST_FREE_MIN) || path.exists() {
            return;
        }
        let reserved = std::fs::File::create(&path).and_then(|file| {
            let mode = rustix::fs::FallocateFlags::empty();
            Ok(rustix::fs::fallocate(&file, mode, 0, BALLAST_BYTES)?)
        });
        if let Err(error) = reserved {
            tracing::debug!(%error, "no ballast");
            let _ = std::fs::remove_file(&path);
        }
    }

    /// Gives the ballast back to the disk. Returns whether there was any.
    pub(crate) fn drop_ballast(&self) -> bool {
        std::fs::remove_file(self.path.join("ballast")).is_ok()
    }

    /// The server's key, which is made at the first start.
    pub(crate) fn server_key(&self) -> Result<SigningKey, OpenError> {
        let path = self.path.join(KEY);
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let text = zeroize::Zeroizing::new(text);
                let mode =
                    std::fs::metadata(&path).map_err(|error| OpenError::io("reading", &path, error))?;
                if mode.permissions().mode() & 0o077 != 0 {
                    return Err(OpenError::KeyReadable { path });
                }
                keyfile::parse_private(&text, None).map_err(|error| OpenError::Key { path, error })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => self.make_key(&path),
            Err(error) => Err(OpenError::io("reading", &path, error)),
        }
    }

    fn make_key(&self, path: &Path) -> Result<SigningKey, OpenError> {
        let failed = |error| OpenError::io("writing", path, error);
        let mut seed = zeroize::Zeroizing::new([0; 32]);
        getrandom::fill(&mut *seed).map_err(|error| failed(std::io::Error::other(error.to_string())))?;
        let key = SigningKey::from_seed(&seed);
        let text = keyfile::format_private(&key, "holdfast server", None)
            .map_err(|error| OpenError::Key { path: path.to_owned(), error })?;
        // The key is written completely or not at all: with half a key, no client could connect any more.
        holdfast_durable::replace(path, text.as_bytes(), holdfast_durable::PRIVATE).map_err(failed)?;
        tracing::info!(key = %key.public(), path = %path.display(), "made the server's key");
        Ok(key)
    }

    /// Whether the operator's list contains `key` as one that may create file systems. The file is read at
    /// each call.
    pub(crate) fn allows_superuser(&self, key: &PublicKey) -> bool {
        let path = self.path.join("allowed-superusers");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return false,
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "cannot read the list of allowed superusers");
                return false;
            }
        };
        let lines = text.lines().map(str::trim).enumerate();
        let mut keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        keys.any(|(number, line)| match keyfile::parse_public(line) {
            Ok(listed) => listed == *key,
            Err(error) => {
                let line = number + 1;
                tracing::warn!(path = %path.display(), line, %error, "a line is not a public key");
                false
            }
        })
    }
}

/// The path of the control socket of a server with this data directory.
pub(crate) fn control_socket(data: &Path) -> PathBuf {
    data.join("control")
}

/// Refuses a folder with other files in it, so that a mistyped path does not become a data directory.
fn refuse_foreign(path: &Path) -> Result<(), OpenError> {
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        // The caller creates the directory, or reports the error.
        Err(_) => return Ok(()),
    };
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    let is_ours = |name: &std::ffi::OsString| NAMES.iter().any(|ours| name == ours);
    if names.iter().any(|name| name == KEY || name == "store") {
        return Ok(());
    }
    match names.into_iter().find(|name| !is_ours(name)) {
        Some(name) => Err(OpenError::Foreign { path: path.to_owned(), name: name.into() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: the key is made once, stays private, is found again, and is refused when others can read it.
    #[test]
    fn the_key_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDirectory::open(&folder.path().join("data")).unwrap();
        let key = data.server_key().unwrap();
        assert_eq!(data.server_key().unwrap().public(), key.public());
        let path = folder.path().join("data/server-key");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(data.server_key(), Err(OpenError::KeyReadable { .. })));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "nonsense").unwrap();
        assert!(matches!(data.server_key(), Err(OpenError::Key { .. })));
    }

    /// Proves: a folder with foreign files is refused and not changed; one with an administrator's files is
    /// accepted.
    #[test]
    fn folders_of_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("allowed-superusers"), "").unwrap();
        std::fs::write(folder.path().join("thesis.tex"), "").unwrap();
        for open in [DataDirectory::open, DataDirectory::bare] {
            let refused = open(folder.path()).unwrap_err().to_string();
            assert!(refused.contains("thesis.tex"), "{refused}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        std::fs::remove_file(folder.path().join("thesis.tex")).unwrap();
        let data = DataDirectory::open(folder.path()).unwrap();
        data.server_key().unwrap();
        std::fs::write(folder.path().join("notes"), "").unwrap();
        DataDirectory::open(folder.path()).unwrap();
    }

    /// Proves: the list may have comments, bad lines are skipped, and no other key is allowed.
    #[test]
    fn allowed_superusers_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDirectory::open(folder.path()).unwrap();
        let key = SigningKey::from_seed(&[1; 32]).public();
        let other = SigningKey::from_seed(&[2; 32]).public();
        assert!(!data.allows_superuser(&key));
        let text = format!("# ours\n\nnonsense\n{}\n", keyfile::format_public(&key, "alice"));
        std::fs::write(folder.path().join("allowed-superusers"), text).unwrap();
        assert!(data.allows_superuser(&key));
        assert!(!data.allows_superuser(&other));
    }
}
