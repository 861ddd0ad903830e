//! Reads and replaces the signer's record, for the export and import of a state. No signer may have it open.

use super::key::{FILE, open_record};
use super::two_slot_file::TwoSlotFile;
use std::io;
use std::path::Path;

/// The signer's record in a state directory; `None` if there is none.
///
/// # Errors
/// The record is in use, damaged, or cannot be read.
pub fn read(state_dir: &Path) -> io::Result<Option<Vec<u8>>> {
    let path = state_dir.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let file = open_record(&path).map_err(io::Error::other)?;
    TwoSlotFile::open(file).map(|(_, record)| record)
}

/// Replaces the record durably. With `None` it is removed, and the next signer starts from the state.
///
/// # Errors
/// The record is in use, or cannot be written.
pub fn replace(state_dir: &Path, record: Option<&[u8]>) -> io::Result<()> {
    let path = state_dir.join(FILE);
    if path.exists() {
        // The lock is held until the end, so that no signer starts with the record meanwhile.
        let _held = open_record(&path).map_err(io::Error::other)?;
        std::fs::remove_file(&path)?;
    }
    if let Some(record) = record {
        let file = open_record(&path).map_err(io::Error::other)?;
        TwoSlotFile::open(file)?.0.write(record)?;
    }
    std::fs::File::open(state_dir)?.sync_all()
}
