//! The note about the block server that has a server's blocks, in the server's data directory:
//!
//! ```text
//! DATA/block-store            its address, the name of the store there, and what was noticed about it; text
//! DATA/block-store-position   the highest position it has acknowledged, twice; u64, little-endian
//! DATA/block-shards/N/        the same files for shard N, if the blocks are in several shards
//! ```
//!
//! Invariant: a position is written before the request that advanced it returns to its caller, and is on the
//! disk a second later. So the noted position may be behind what was acknowledged, but never ahead of it.

use holdfast_protocol::block_server::StoreId;
use holdfast_rpc::BlocksAddress;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Files in the data directory, which backups copy too.
pub(crate) const FILES: [&str; 2] = ["block-store", "block-store-position"];
const FIRST_LINE: &str = "holdfast block store 1";
/// The first line of the first of these files if the blocks are in a bucket.
pub(super) const BUCKET_FIRST_LINE: &str = "holdfast block store in a bucket 1";
/// How long a position may be written but not synced.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The note about one store.
pub(crate) struct Note {
    data: PathBuf,
    /// The address of the block server.
    pub(crate) address: BlocksAddress,
    /// The id of the store; `None` if it has not been reached yet.
    pub(crate) store: Option<StoreId>,
    /// Why the store's garbage must not be collected; `None` if it may.
    pub(crate) doubt: Option<String>,
    /// In how many shards the block servers have the blocks; each shard has a note of its own. `None` if they
    /// are in one piece, or the block server has not been reached yet.
    pub(crate) shards: Option<u16>,
    /// The highest position that was acknowledged.
    pub(crate) position: u64,
    file: File,
    synced: Instant,
}

impl Note {
    /// Reads the note in a data directory; `None` if its blocks are not at a block server.
    ///
    /// # Errors
    /// The system's error, or the file makes no sense.
    pub(crate) fn read(data: &Path) -> std::io::Result<Option<Note>> {
        let text = match std::fs::read_to_string(data.join(FILES[0])) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let damaged = || std::io::Error::other("it is damaged, or of a newer version");
        if text.starts_with(BUCKET_FIRST_LINE) {
            return Ok(None);
        }
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(damaged());
        }
        let (mut address, mut store, mut doubt, mut shards) = (None, None, None, None);
        for line in lines {
            match line.split_once(' ').ok_or_else(damaged)? {
                ("address", text) => address = Some(text.parse().map_err(std::io::Error::other)?),
                ("store", text) => store = Some(id_of(text).ok_or_else(damaged)?),
                ("doubt", text) => doubt = Some(text.to_owned()),
                ("shards", text) => shards = Some(text.parse().map_err(|_| damaged())?),
                _ => return Err(damaged()),
            }
        }
        let mut note = Note::new(data, address.ok_or_else(damaged)?)?;
        let mut bytes = [0; 16];
        let position = match note.file.read_exact_at(&mut bytes, 0) {
            Ok(()) => {
                let copy = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
                copy(0).min(copy(8))
            }
            Err(_) => 0,
        };
        (note.store, note.doubt, note.shards, note.position) = (store, doubt, shards, position);
        Ok(Some(note))
    }

    /// A note about a block server that has not been reached yet. Does not write it.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn new(data: &Path, address: BlocksAddress) -> std::io::Result<Note> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(data.join(FILES[1]))?;
        let (data, synced) = (data.to_owned(), Instant::now());
        Ok(Note { data, address, store: None, doubt: None, shards: None, position: 0, file, synced })
    }

    /// Writes everything except the position, durably.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn write(&self) -> std::io::Result<()> {
        let mut text = format!("{FIRST_LINE}\naddress {}\n", self.address);
        if let Some(store) = &self.store {
            text.push_str(&format!("store {}\n", digits(store)));
        }
        if let Some(shards) = &self.shards {
            text.push_str(&format!("shards {shards}\n"));
        }
        if let Some(doubt) = &self.doubt {
            text.push_str(&format!("doubt {}\n", doubt.replace('\n', " ")));
        }
        holdfast_durable::replace(&self.data.join(FILES[0]), text.as_bytes(), holdfast_durable::PRIVATE)
    }

    /// Writes a position. It is synced once a second.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn put_position(&mut self, position: u64) -> std::io::Result<()> {
        self.position = position;
        let half = position.to_le_bytes();
        self.file.write_all_at(&[half, half].concat(), 0)?;
        if self.synced.elapsed() >= SYNC_EVERY {
            self.file.sync_data()?;
            self.synced = Instant::now();
        }
        Ok(())
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let _ = self.file.sync_data();
    }
}

/// A store's name in hexadecimal digits.
pub(crate) fn digits(store: &StoreId) -> String {
    store.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses what [`digits`] returns.
pub(crate) fn id_of(text: &str) -> Option<StoreId> {
    let mut id = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in id.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a note is read as it was written; an incomplete position counts as the lower of the two; and a
    /// damaged file is not taken for an empty one.
    #[test]
    fn what_is_remembered_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Note::read(folder.path()).unwrap().is_none());
        let address: BlocksAddress =
            format!("hf+blocks://b.example.org:9/{}", "ab".repeat(32)).parse().unwrap();
        let mut note = Note::new(folder.path(), address.clone()).unwrap();
        (note.store, note.doubt, note.shards) = (Some([7; 16]), Some("it is\nolder".to_owned()), Some(8));
        note.write().unwrap();
        note.put_position(12).unwrap();
        let back = Note::read(folder.path()).unwrap().unwrap();
        assert_eq!((&back.address, back.store, back.position), (&address, Some([7; 16]), 12));
        assert_eq!((back.doubt.as_deref(), back.shards), (Some("it is older"), Some(8)));
        note.file.write_all_at(&9u64.to_le_bytes(), 8).unwrap();
        assert_eq!(Note::read(folder.path()).unwrap().unwrap().position, 9);
        std::fs::write(folder.path().join(FILES[0]), "nonsense").unwrap();
        assert!(Note::read(folder.path()).is_err());
    }
}
