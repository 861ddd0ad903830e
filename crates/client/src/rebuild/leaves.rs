//! Stores the leaves of the log of updates beside a device's state, 32 bytes for each operation. A server
//! that lost them could not prove to any device that the present log extends the one it last saw.
//!
//! ```text
//! DIR/leaves   magic (8) | count u64 | count of peaks u64 | peaks (32 each) | digest (32), in the first 4,096 bytes;
//!              then leaf n at 4,096 + 32 n, zero where it is not known
//! ```
//!
//! Leaves up to `count` were verified against an accepted head. Later ones were taken one by one from views
//! and this device's own operations, and may have gaps. A rebuild trusts nothing in the file, so it needs no
//! sync, and a damaged file is started anew.

use holdfast_crypto::{Digest, DigestKey, Domain};
use holdfast_protocol::log_tree::{Frontier, leaf};
use holdfast_protocol::structure::{Forecast, LogHead};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Name of the file in a state directory.
pub const FILE: &str = "leaves";
const MAGIC: [u8; 8] = *b"hfleaves";
/// Offset of the first leaf, in bytes.
const HEADER_BYTES: u64 = 4096;
const LEAF_BYTES: u64 = 32;
/// Number of leaves read at a time.
const STEP: u64 = 16_384;

/// An open file of leaves.
pub struct LeafFile {
    file: File,
    /// Right edge of the tree of verified leaves.
    verified: Frontier,
}

impl LeafFile {
    /// Opens the file in a state directory, and creates it if there is none.
    ///
    /// # Errors
    /// I/O errors.
    pub fn open(state_dir: &Path) -> io::Result<LeafFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(state_dir.join(FILE))?;
        let verified = header(&file)?.unwrap_or_default();
        Ok(LeafFile { file, verified })
    }

    /// Number of verified leaves, from the first.
    pub fn verified(&self) -> u64 {
        self.verified.head().size
    }

    /// Notes the leaf of an operation in an accepted view.
    ///
    /// # Errors
    /// I/O errors.
    pub fn note(&self, forecast: &Forecast) -> io::Result<()> {
        self.write(forecast.log.size, &[leaf(forecast.certificate, forecast.digest())])
    }

    /// Writes leaves from number `first` on.
    ///
    /// # Errors
    /// I/O errors.
    pub fn write(&self, first: u64, leaves: &[Digest]) -> io::Result<()> {
        let bytes: Vec<u8> = leaves.iter().flat_map(|leaf| leaf.0).collect();
        self.file.write_all_at(&bytes, HEADER_BYTES + first * LEAF_BYTES)
    }

    /// Up to `count` leaves from `first` on; unknown ones are zero.
    ///
    /// # Errors
    /// I/O errors.
    pub fn read(&self, first: u64, count: u64) -> io::Result<Vec<Digest>> {
        let length = self.file.metadata()?.len().saturating_sub(HEADER_BYTES) / LEAF_BYTES;
        let count = length.saturating_sub(first).min(count);
        let mut bytes = vec![0; (count * LEAF_BYTES) as usize];
        self.file.read_exact_at(&mut bytes, HEADER_BYTES + first * LEAF_BYTES)?;
        let leaves = bytes.chunks_exact(LEAF_BYTES as usize);
        Ok(leaves.map(|leaf| Digest(leaf.try_into().expect("32 bytes"))).collect())
    }

    /// The first run of unknown leaves before `end`: its first number, and the number after its last.
    ///
    /// # Errors
    /// I/O errors.
    pub fn first_gap(&self, end: u64) -> io::Result<Option<(u64, u64)>> {
        let mut gap: Option<(u64, u64)> = None;
        let mut at = self.verified();
        while at < end {
            let step = STEP.min(end - at);
            let found = self.read(at, step)?;
            for index in at..at + step {
                let is_known = found.get((index - at) as usize).is_some_and(|leaf| *leaf != Digest::ZERO);
                match &mut gap {
                    None if !is_known => gap = Some((index, index + 1)),
                    Some((_, end)) if !is_known => *end = index + 1,
                    Some(_) => return Ok(gap),
                    None => {}
                }
            }
            at += step;
        }
        Ok(gap)
    }

    /// Marks all leaves up to `head` as verified if they produce its root. If not, the unverified ones are
    /// dropped.
    ///
    /// # Errors
    /// I/O errors.
    pub fn verify(&mut self, head: LogHead) -> io::Result<bool> {
        let mut frontier = self.verified.clone();
        while frontier.head().size < head.size {
            let at = frontier.head().size;
            let found = self.read(at, STEP.min(head.size - at))?;
            if found.is_empty() {
                break;
            }
            for leaf in found {
                frontier.append(leaf);
            }
        }
        if frontier.head() != head {
            self.file.set_len(HEADER_BYTES + self.verified() * LEAF_BYTES)?;
            return Ok(false);
        }
        self.verified = frontier;
        self.write_header()?;
        Ok(true)
    }

    /// Whether a head is in the past of the stored leaves; `None` if not all leaves up to it are stored.
    ///
    /// # Errors
    /// I/O errors.
    pub fn is_past(&self, head: LogHead) -> io::Result<Option<bool>> {
        Ok(self.frontier_at(head.size)?.map(|frontier| frontier.head() == head))
    }

    /// Drops all leaves after a head, following a restore of the server.
    ///
    /// # Errors
    /// I/O errors.
    pub fn truncate(&mut self, head: LogHead) -> io::Result<()> {
        if self.verified() > head.size {
            self.verified = match self.frontier_at(head.size)? {
                Some(frontier) if frontier.head() == head => frontier,
                _ => Frontier::default(),
            };
            self.write_header()?;
        }
        let end = self.verified().max(head.size);
        let length = self.file.metadata()?.len().min(HEADER_BYTES + end * LEAF_BYTES);
        self.file.set_len(length)
    }

    fn frontier_at(&self, size: u64) -> io::Result<Option<Frontier>> {
        let mut frontier = Frontier::default();
        while frontier.head().size < size {
            let at = frontier.head().size;
            let found = self.read(at, STEP.min(size - at))?;
            if found.is_empty() || found.contains(&Digest::ZERO) {
                return Ok(None);
            }
            found.into_iter().for_each(|leaf| drop(frontier.append(leaf)));
        }
        Ok(Some(frontier))
    }

    fn write_header(&self) -> io::Result<()> {
        let peaks = self.verified.peaks();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.verified().to_le_bytes());
        bytes.extend((peaks.len() as u64).to_le_bytes());
        bytes.extend(peaks.iter().flat_map(|peak| peak.0));
        bytes.extend(sum(&bytes).0);
        self.file.write_all_at(&bytes, 0)
    }
}

fn sum(bytes: &[u8]) -> Digest {
    DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, bytes)
}

/// The header's content; `None` if there is none or it is damaged.
fn header(file: &File) -> io::Result<Option<Frontier>> {
    let mut bytes = vec![0; HEADER_BYTES as usize];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(parse(&bytes))
}

fn parse(bytes: &[u8]) -> Option<Frontier> {
    let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (count, peaks) = (number(8)?, number(16)?);
    let end = 24 + usize::try_from(peaks).ok().filter(|peaks| *peaks <= 64)? * 32;
    let (said, rest) = bytes.split_at_checked(end)?;
    if said[..8] != MAGIC || rest.get(..32)? != sum(said).0 {
        return None;
    }
    let peaks = said[24..].chunks_exact(32).map(|peak| Digest(peak.try_into().expect("32 bytes")));
    Frontier::of(count, peaks.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: u64) -> Digest {
        DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, &number.to_le_bytes())
    }

    /// Proves: leaves that come in any order, with gaps filled later, are verified once they produce an
    /// accepted head, and not before; wrong ones are dropped; and a damaged header makes the file start anew.
    #[test]
    fn gaps_are_filled_and_wrong_leaves_forgotten() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut log = Frontier::default();
        (0..100).for_each(|number| drop(log.append(digest(number))));
        let head = log.head();
        let mut file = LeafFile::open(folder.path()).expect("opened");
        for number in (40..100).filter(|number| *number != 60) {
            file.write(number, &[digest(number)]).expect("written");
        }
        assert_eq!(file.first_gap(100).expect("read"), Some((0, 40)));
        let first: Vec<Digest> = (0..40).map(digest).collect();
        file.write(0, &first).expect("written");
        assert_eq!(file.first_gap(100).expect("read"), Some((60, 61)));
        file.write(60, &[digest(7)]).expect("written");
        assert_eq!(file.first_gap(100).expect("read"), None);
        assert!(!file.verify(head).expect("read"), "one leaf is wrong");
        assert_eq!(file.first_gap(100).expect("read"), Some((0, 100)), "nothing of it is believed");
        let all: Vec<Digest> = (0..100).map(digest).collect();
        file.write(0, &all).expect("written");
        assert!(file.verify(head).expect("read"));
        drop(file);

        let mut file = LeafFile::open(folder.path()).expect("opened");
        assert_eq!(file.verified(), 100);
        assert_eq!(file.read(98, 10).expect("read"), [digest(98), digest(99)]);
        log.append(digest(100));
        file.write(100, &[digest(100)]).expect("written");
        assert!(file.verify(log.head()).expect("read"), "it goes on where it was");
        file.file.write_all_at(&[0xee], 30).expect("written");
        assert_eq!(LeafFile::open(folder.path()).expect("opened").verified(), 0);
    }
}
