//! The file that says that a directory is a store, and of which format.

use crate::StoreError;
use holdfast_log::{SEGMENT_HEADER_BYTES, Storage, SyncSite};
use std::io;

const NAME: &str = "FORMAT";
const PREFIX: &str = "holdfast store format ";
/// The format this program writes.
pub(crate) const STORE_FORMAT: u32 = 1;
const SYNC: SyncSite = SyncSite("store: format file");

/// Checks the format file, or writes it into a directory without segments. Its directory entry becomes
/// durable with that of the first segment, before anything is acknowledged.
pub(crate) fn check_or_write(storage: &dyn Storage) -> Result<(), StoreError> {
    let directory = storage.describe();
    let begun = has_records(storage)?;
    let refuse = |why: &str| StoreError::NotAStore { directory: directory.clone(), why: why.to_owned() };
    match storage.open(NAME) {
        Ok(file) => {
            let mut bytes = [0; 64];
            let count =
                file.read_at(0, &mut bytes).map_err(|error| StoreError::io("reading", NAME, &error))?;
            let text = std::str::from_utf8(&bytes[..count]).unwrap_or("");
            let number = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix('\n'));
            match number.and_then(|number| number.parse::<u32>().ok()) {
                Some(STORE_FORMAT) => return Ok(()),
                Some(found) if found > STORE_FORMAT => {
                    return Err(StoreError::NewerFormat { directory, found, supported: STORE_FORMAT });
                }
                _ if begun => return Err(refuse("its FORMAT file is damaged")),
                // A crash while the store was being made.
                _ => storage.remove(NAME).map_err(|error| StoreError::io("removing", NAME, &error))?,
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && !begun => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(refuse("it has segments but no FORMAT file"));
        }
        Err(error) => return Err(StoreError::io("opening", NAME, &error)),
    }
    let text = format!("{PREFIX}{STORE_FORMAT}\n");
    storage
        .create(NAME)
        .and_then(|file| {
            file.write_at(0, text.as_bytes())?;
            file.sync(SYNC)
        })
        .map_err(|error| StoreError::io("writing", NAME, &error))
}

/// Whether any segment is longer than a header. Shorter ones may be older than the format file's directory entry.
fn has_records(storage: &dyn Storage) -> Result<bool, StoreError> {
    let names = storage.list().map_err(|error| StoreError::io("listing", &storage.describe(), &error))?;
    for name in names.iter().filter(|name| name.starts_with("segment-")) {
        let length = storage.open(name).and_then(|file| file.len());
        if length.map_err(|error| StoreError::io("measuring", name, &error))? > SEGMENT_HEADER_BYTES {
            return Ok(true);
        }
    }
    Ok(false)
}
