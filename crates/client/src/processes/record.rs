//! Reads and replaces the signer's record, for the export and import of a state. It must not be open in a signer.

use super::key::{FILE, open_record};
use super::two_slot_file::TwoSlotFile;
use std::io;
use std::path::Path;

/// What the signer remembers in a state directory; `None` if there is nothing.
///
/// # Errors
/// It is in use, damaged, or cannot be read.
pub fn read(state_dir: &Path) -> io::Result<Option<Vec<u8>>> {
    let path = state_dir.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let file = open_record(&path).map_err(io::Error::other)?;
    TwoSlotFile::open(file).map(|(_, record)| record)
}

/// Puts this in its place, durably; with `None` there is nothing, and the signer begins from the state.
///
/// # Errors
/// It is in use, or cannot be written.
pub fn replace(state_dir: &Path, record: Option<&[u8]>) -> io::Result<()> {
    let path = state_dir.join(FILE);
    if path.exists() {
        // Held for as long as this takes, so that no signer begins with it.
        let _held = open_record(&path).map_err(io::Error::other)?;
        std::fs::remove_file(&path)?;
    }
    if let Some(record) = record {
        let file = open_record(&path).map_err(io::Error::other)?;
        TwoSlotFile::open(file)?.0.write(record)?;
    }
    std::fs::File::open(state_dir)?.sync_all()
}
