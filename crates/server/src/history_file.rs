//! The file with the past states of a file system.
//!
//! ```text
//! history-FSID        header (32 bytes), then records: length u32, 16 bytes of digest, body (borsh)
//! history-FSID.new    a file that is being rewritten, until it gets its name
//! ```
//!
//! Records are appended before a checkpoint replaces the ordering records that they follow from, before a
//! collection removes blocks of states that they give up, and when a state is named.
//!
//! Invariants:
//! - A record counts if it and all records before it are complete: an incomplete record that a power loss
//!   left is cut off, with all after it.
//! - The file is rewritten, under another name first, when most of it is about states that are gone, and
//!   after a part of it was cut off. So its length is proportional to the states that remain.

use crate::clock::Clock;
use crate::error::OpenError;
use crate::order::OrderError;
use holdfast_crypto::{Digest, DigestKey, Domain, decode, encode};
use holdfast_log::{Storage, StorageFile, SyncSite};
use holdfast_protocol::history::{Archive, HistoryRecord, Retention};
use std::io;
use std::sync::Arc;

const RECORDS_SYNCED: SyncSite = SyncSite("server: past states");
const FILE_NAMED: SyncSite = SyncSite("server: file of past states named");
const HEADER: [u8; 32] = *b"holdfast past states, form 1   \n";
const FRAME_BYTES: usize = 20;
/// Largest record, in bytes.
const RECORD_BYTES_MAX: usize = 64 << 20;
/// A shorter file is not worth rewriting.
const SMALL_BYTES: u64 = 1 << 20;
/// The end of an unfinished file's name.
pub(crate) const PARTIAL: &str = ".new";

/// The policy and the clock that decide which past states stay readable.
#[derive(Clone)]
pub(crate) struct HistoryRetention {
    pub(crate) retention: Retention,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Why past states cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HistoryError {
    /// The medium failed, or cannot be reached now.
    #[error("its file of past states cannot be used: {0}")]
    Io(#[from] io::Error),
    /// A newer program has written the file.
    #[error("{0} is of a newer form: use the newer program")]
    NewerForm(String),
}

impl HistoryError {
    /// The reason why a file system cannot be opened: the medium cannot be reached now, or the file is
    /// damaged.
    pub(crate) fn open_error(self, file_system: Digest) -> OpenError {
        let why = self.to_string();
        match self {
            HistoryError::Io(error) if error.kind() == io::ErrorKind::NotConnected => {
                OpenError::Order { file_system, error: OrderError::Away(why) }
            }
            _ => OpenError::Ordering { file_system, why },
        }
    }
}

/// The file of one file system.
pub(crate) struct HistoryFile {
    storage: Arc<dyn Storage>,
    name: String,
    /// The file; `None` if it does not exist yet, or has to be rewritten.
    file: Option<Arc<dyn StorageFile>>,
    length: u64,
    /// The length of the file after it was last rewritten, in bytes.
    rewritten_length: u64,
}

impl HistoryFile {
    /// The file of a new file system. It is made when there is something to write.
    pub(crate) fn new(storage: &Arc<dyn Storage>, file_system: &Digest) -> HistoryFile {
        let name = format!("history-{file_system}");
        HistoryFile { storage: storage.clone(), name, file: None, length: 0, rewritten_length: 0 }
    }

    /// Opens the file and gives its records to `take`, one after the other: all of them together would take
    /// several times the file's length in memory.
    ///
    /// # Errors
    /// [`HistoryError`]
    pub(crate) fn open(
        storage: &Arc<dyn Storage>,
        file_system: &Digest,
        take: &mut dyn FnMut(HistoryRecord),
    ) -> Result<HistoryFile, HistoryError> {
        let mut this = HistoryFile::new(storage, file_system);
        let file = match storage.open(&this.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(this),
            other => other?,
        };
        let mut header = [0; 32];
        file.read_at(0, &mut header)?;
        if header != HEADER {
            return Err(HistoryError::NewerForm(this.name));
        }
        let length = file.len()?;
        this.length = HEADER.len() as u64;
        while let Some((record, bytes)) = read_record(&*file, this.length, length)? {
            take(record);
            this.length += bytes;
        }
        this.rewritten_length = this.length;
        if this.length < length {
            tracing::warn!(
                file = this.name,
                at = this.length,
                "past states: what follows here was not written to its end, or is damaged, and is cut off"
            );
        } else {
            this.file = Some(file);
        }
        Ok(this)
    }

    /// Has the next save write the whole file instead of only new records.
    pub(crate) fn rewrite_next(&mut self) {
        self.file = None;
    }

    /// Makes an archive durable. The log has `log_size` operations.
    ///
    /// # Errors
    /// The medium failed. The next save writes the whole file.
    pub(crate) fn save(&mut self, archive: &mut Archive, log_size: u64) -> io::Result<()> {
        let fresh = archive.take_unsaved(log_size);
        let is_long = self.length > SMALL_BYTES && self.length > 2 * self.rewritten_length;
        let was_rewritten = is_long || (self.file.is_none() && self.length > 0);
        if fresh.is_empty() && !was_rewritten {
            return Ok(());
        }
        let file = if was_rewritten { None } else { self.file.take() };
        let Some(file) = file else { return self.rewrite(archive) };
        let bytes: Vec<u8> = fresh.iter().flat_map(frame).collect();
        file.write_at(self.length, &bytes)?;
        file.sync(RECORDS_SYNCED)?;
        self.length += bytes.len() as u64;
        self.file = Some(file);
        Ok(())
    }

    fn rewrite(&mut self, archive: &Archive) -> io::Result<()> {
        let partial = format!("{}{PARTIAL}", self.name);
        match self.storage.remove(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.storage.create(&partial)?;
        file.write_at(0, &HEADER)?;
        let mut length = HEADER.len() as u64;
        for record in archive.all() {
            let bytes = frame(&record);
            file.write_at(length, &bytes)?;
            length += bytes.len() as u64;
        }
        file.sync(RECORDS_SYNCED)?;
        self.storage.rename(&partial, &self.name)?;
        self.storage.sync_dir(FILE_NAMED)?;
        (self.length, self.rewritten_length, self.file) = (length, length, Some(file));
        Ok(())
    }
}

fn frame(record: &HistoryRecord) -> Vec<u8> {
    let body = encode(record);
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, &body).0[..16]);
    bytes.extend_from_slice(&body);
    bytes
}

/// The record at `at`, and its length with the frame; `None` at the end, or if the record is incomplete or
/// damaged.
fn read_record(file: &dyn StorageFile, at: u64, length: u64) -> io::Result<Option<(HistoryRecord, u64)>> {
    let mut head = [0; FRAME_BYTES];
    if file.read_at(at, &mut head)? < FRAME_BYTES {
        return Ok(None);
    }
    let bytes = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let end = at + (FRAME_BYTES + bytes) as u64;
    if bytes > RECORD_BYTES_MAX || end > length {
        return Ok(None);
    }
    let mut body = vec![0; bytes];
    if file.read_at(at + FRAME_BYTES as u64, &mut body)? < bytes
        || DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, &body).0[..16] != head[4..]
    {
        return Ok(None);
    }
    Ok(decode(&body).ok().map(|record| (record, end - at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: if the files are in an order that does not answer at the moment, unreadable past states do not
    /// count as damage, after which the file system would not be served until the next start. An error of a
    /// medium does.
    #[test]
    fn an_order_that_is_away_is_no_damage() {
        let error = |error: io::Error| HistoryError::from(error).open_error(Digest::ZERO);
        for away in [OrderError::Away("etcd is restarted".to_owned()), OrderError::Lost] {
            let error = error(away.into());
            assert!(!error.is_of_one_file_system(), "{error}");
        }
        let damaged = OrderError::Damaged("a chunk is missing".to_owned());
        assert!(error(damaged.into()).is_of_one_file_system());
        assert!(error(io::ErrorKind::InvalidData.into()).is_of_one_file_system());
    }
}
