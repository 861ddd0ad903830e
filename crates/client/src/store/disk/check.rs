//! Checks the whole cache, and drops damaged blocks.

use super::record::{self, Record};
use super::{DiskCache, SegmentName, TEMPORARY, open_plainly, summary};
use borsh::BorshDeserialize;
use holdfast_content::{BODY_BYTES_MAX, StoredBlock};
use holdfast_crypto::DigestKey;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// The result of a check of the cache.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CheckReport {
    /// Number of blocks that match their address.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Number of blocks that do not, and were dropped.
    pub bad: u64,
    /// Bytes that were not a valid record, and were dropped.
    pub bytes_torn: u64,
}

impl DiskCache {
    /// Verifies every block with the file system's digest key, and drops those that fail. `progress` gets
    /// numbers of bytes read.
    ///
    /// # Errors
    /// I/O errors; [`io::ErrorKind::ResourceBusy`] if another process makes room at the moment.
    pub fn check(&mut self, key: &DigestKey, progress: &mut dyn FnMut(u64)) -> io::Result<CheckReport> {
        let busy = || io::Error::new(io::ErrorKind::ResourceBusy, "another process makes room in the cache");
        let _lock = self.lock()?.ok_or_else(busy)?;
        self.list()?;
        let mut checked = CheckReport::default();
        let names: Vec<(SegmentName, u32)> = self.by_name.iter().map(|(name, slot)| (*name, *slot)).collect();
        for (name, slot) in names {
            // The segment is gone: its pin may be removed at any time.
            let Ok(file) = open_plainly(&self.path(name)) else { continue };
            let length = file.metadata()?.len();
            let (mut at, mut good, mut bad) = (0, Vec::new(), 0);
            while let Some((record, end)) = record::read(&file, at, length)? {
                match record {
                    Record::Block(address, offset, bytes) => {
                        let mut body = vec![0; bytes as usize];
                        file.read_exact_at(&mut body, offset.into())?;
                        let stored = StoredBlock::try_from_slice(&body).ok();
                        let is_good = stored
                            .is_some_and(|stored| stored.open_any(key, address, BODY_BYTES_MAX).is_ok());
                        if is_good {
                            checked.blocks += 1;
                            checked.bytes += end - at;
                            good.push(at..end);
                        } else {
                            bad += 1;
                        }
                    }
                    Record::Note(_) => good.push(at..end),
                }
                progress(end - at);
                at = end;
            }
            progress(length - at.min(length));
            // A record that is still being written will be whole a moment later.
            let torn = if self.is_free(slot) { length - at.min(length) } else { 0 };
            checked.bad += bad;
            checked.bytes_torn += torn;
            if bad > 0 || torn > 0 {
                self.replace(name, &file, &good)?;
            }
        }
        self.list()?;
        Ok(checked)
    }

    /// Replaces a segment by a file with only these records.
    fn replace(&self, name: SegmentName, old: &File, good: &[std::ops::Range<u64>]) -> io::Result<()> {
        let temporary = self.directory.join(format!("{TEMPORARY}{}-{name}", std::process::id()));
        let mut options = OpenOptions::new();
        let mut new = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        for range in good {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            old.read_exact_at(&mut bytes, range.start)?;
            new.write_all(&bytes).inspect_err(|_| drop(fs::remove_file(&temporary)))?;
        }
        fs::rename(&temporary, self.path(name))?;
        summary::remove(&self.directory, name)
    }
}
