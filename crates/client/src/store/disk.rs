//! The persistent block cache: append-only segment files, oldest dropped first.
//!
//! Nothing here is trusted: every block read from a segment is verified against the reference it is wanted for,
//! exactly like a block from the server, and what fails is forgotten and fetched again. So the files need no
//! fsync, no recovery and no order; damage to them costs time, never correctness.
//!
//! A segment is a row of records ⟨magic, length of the rest, address, encoded block⟩. Opening reads the
//! record headers only. Two processes never share a segment directory: each takes the first numbered
//! subdirectory that it can lock.

use borsh::BorshDeserialize;
use holdfast_content::StoredBlock;
use holdfast_crypto::Digest;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: u32 = 0x4842_4331;
/// Magic, length, address.
const RECORD_HEADER: usize = 4 + 4 + 32;
/// An encoded block is never longer: body, references and their counts.
const RECORD_MAX: usize = (1 << 20) + 8192 * 32 + 64;
/// Processes that can use one cache folder at the same time.
const SHARERS_MAX: u32 = 16;

#[derive(Clone, Copy)]
struct Place {
    segment: u32,
    offset: u32,
    length: u32,
}

struct Segment {
    file: Arc<File>,
    path: PathBuf,
    bytes: u64,
    addresses: Vec<Digest>,
}

/// A bounded cache of stored blocks on disk.
pub struct DiskCache {
    directory: PathBuf,
    /// Held for its lock.
    _lock: File,
    index: HashMap<Digest, Place>,
    segments: BTreeMap<u32, Segment>,
    bytes: u64,
    bytes_max: u64,
    segment_bytes: u64,
}

impl DiskCache {
    /// Opens (or makes) a cache of at most `bytes_max` bytes under `directory`.
    ///
    /// # Errors
    /// I/O errors of the folder itself; damaged segments are dropped silently.
    pub fn open(directory: &Path, bytes_max: u64) -> io::Result<DiskCache> {
        let (directory, lock) = take_directory(directory)?;
        let segment_bytes = (bytes_max / 16).clamp(1 << 20, 64 << 20);
        let mut cache = DiskCache {
            directory,
            _lock: lock,
            index: HashMap::new(),
            segments: BTreeMap::new(),
            bytes: 0,
            bytes_max,
            segment_bytes,
        };
        let mut numbers: Vec<u32> = fs::read_dir(&cache.directory)?
            .filter_map(|entry| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                u32::from_str_radix(name.strip_suffix(".segment")?, 16).ok()
            })
            .collect();
        numbers.sort_unstable();
        for number in numbers {
            if cache.load(number).is_err() {
                let _ = fs::remove_file(cache.path(number));
            }
        }
        cache.evict();
        Ok(cache)
    }

    /// Whether a block is (probably) here.
    pub fn contains(&self, address: &Digest) -> bool {
        self.index.contains_key(address)
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// What must be read to get the block, so that the reading can happen without holding any lock.
    pub fn locate(&self, address: &Digest) -> Option<Located> {
        let place = self.index.get(address)?;
        let segment = self.segments.get(&place.segment)?;
        Some(Located {
            file: segment.file.clone(),
            offset: place.offset.into(),
            length: place.length as usize,
        })
    }

    /// Forgets a block, because its bytes turned out to be bad.
    pub fn forget(&mut self, address: &Digest) {
        self.index.remove(address);
    }

    /// Appends a block unless it is here.
    ///
    /// # Errors
    /// I/O errors; the caller goes on without.
    pub fn insert(&mut self, address: Digest, block: &StoredBlock) -> io::Result<()> {
        if self.index.contains_key(&address) {
            return Ok(());
        }
        let body = holdfast_crypto::encode(block);
        if body.len() > RECORD_MAX {
            return Ok(());
        }
        let number = match self.segments.last_key_value() {
            Some((number, segment)) if segment.bytes < self.segment_bytes => *number,
            Some((number, _)) => self.create(number + 1)?,
            None => self.create(0)?,
        };
        let segment = self.segments.get_mut(&number).expect("it was just found or made");
        let mut record = Vec::with_capacity(RECORD_HEADER + body.len());
        record.extend_from_slice(&MAGIC.to_le_bytes());
        record.extend_from_slice(&((body.len() + 32) as u32).to_le_bytes());
        record.extend_from_slice(&address.0);
        record.extend_from_slice(&body);
        let offset = segment.bytes;
        segment.file.write_all_at(&record, offset)?;
        segment.bytes += record.len() as u64;
        segment.addresses.push(address);
        self.bytes += record.len() as u64;
        let place = Place {
            segment: number,
            offset: (offset as usize + RECORD_HEADER) as u32,
            length: body.len() as u32,
        };
        self.index.insert(address, place);
        self.evict();
        Ok(())
    }

    fn path(&self, number: u32) -> PathBuf {
        self.directory.join(format!("{number:08x}.segment"))
    }

    fn create(&mut self, number: u32) -> io::Result<u32> {
        let path = self.path(number);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        self.segments.insert(number, Segment { file: Arc::new(file), path, bytes: 0, addresses: Vec::new() });
        Ok(number)
    }

    /// Reads the record headers of one segment; a damaged tail is cut off.
    fn load(&mut self, number: u32) -> io::Result<()> {
        let path = self.path(number);
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let length = file.metadata()?.len();
        let mut addresses = Vec::new();
        let mut offset = 0u64;
        let mut header = [0u8; RECORD_HEADER];
        while offset + RECORD_HEADER as u64 <= length {
            file.read_exact_at(&mut header, offset)?;
            let magic = u32::from_le_bytes(header[..4].try_into().expect("4 bytes"));
            let rest = u32::from_le_bytes(header[4..8].try_into().expect("4 bytes")) as u64;
            let end = offset + 8 + rest;
            if magic != MAGIC || !(32..=RECORD_MAX as u64 + 32).contains(&rest) || end > length {
                break;
            }
            let address = Digest(header[8..].try_into().expect("32 bytes"));
            let place = Place {
                segment: number,
                offset: (offset as usize + RECORD_HEADER) as u32,
                length: (rest - 32) as u32,
            };
            self.index.insert(address, place);
            addresses.push(address);
            offset = end;
        }
        if offset < length {
            file.set_len(offset)?;
        }
        self.bytes += offset;
        self.segments.insert(number, Segment { file: Arc::new(file), path, bytes: offset, addresses });
        Ok(())
    }

    /// Drops whole segments, oldest first, until the bound holds. The newest always stays.
    fn evict(&mut self) {
        while self.bytes > self.bytes_max && self.segments.len() > 1 {
            let (number, segment) = self.segments.pop_first().expect("there is more than one");
            self.bytes -= segment.bytes;
            for address in &segment.addresses {
                if self.index.get(address).is_some_and(|place| place.segment == number) {
                    self.index.remove(address);
                }
            }
            let _ = fs::remove_file(&segment.path);
        }
    }
}

/// Where a block lies; stays readable even if its segment is dropped meanwhile.
pub struct Located {
    file: Arc<File>,
    offset: u64,
    length: usize,
}

impl Located {
    /// Reads the block. `None` if the bytes are no block at all; whether they are the *right* block is for
    /// the caller to verify.
    pub fn read(&self) -> Option<StoredBlock> {
        let mut bytes = vec![0u8; self.length];
        self.file.read_exact_at(&mut bytes, self.offset).ok()?;
        StoredBlock::try_from_slice(&bytes).ok()
    }
}

fn take_directory(directory: &Path) -> io::Result<(PathBuf, File)> {
    for number in 0..SHARERS_MAX {
        let path = directory.join(number.to_string());
        fs::create_dir_all(&path)?;
        let mut lock = OpenOptions::new().create(true).truncate(false).write(true).open(path.join("lock"))?;
        if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok() {
            lock.write_all(b"")?;
            return Ok((path, lock));
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "too many processes share this cache folder"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_content::{Block, BlockKind};
    use holdfast_crypto::DigestKey;

    fn block(number: u32, length: usize) -> Block {
        let body = number.to_le_bytes().iter().copied().cycle().take(length).collect();
        Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, Vec::new(), body)
    }

    fn get(cache: &DiskCache, block: &Block) -> Option<StoredBlock> {
        cache.locate(&block.reference().address)?.read()
    }

    /// Proves: blocks survive reopening, a torn tail costs only what was torn, two users never share files.
    #[test]
    fn survives_reopening_and_torn_tails() {
        let dir = tempfile::tempdir().unwrap();
        let blocks: Vec<_> = (0..50).map(|n| block(n, 5000)).collect();
        {
            let mut cache = DiskCache::open(dir.path(), 64 << 20).unwrap();
            for block in &blocks {
                cache.insert(block.reference().address, &block.to_stored()).unwrap();
            }
            let other = DiskCache::open(dir.path(), 64 << 20).unwrap();
            assert!(other.is_empty());
            assert_ne!(other.directory, cache.directory);
        }
        let segment = dir.path().join("0/00000000.segment");
        let length = fs::metadata(&segment).unwrap().len();
        OpenOptions::new().write(true).open(&segment).unwrap().set_len(length - 3).unwrap();
        let cache = DiskCache::open(dir.path(), 64 << 20).unwrap();
        for block in &blocks[..49] {
            assert_eq!(get(&cache, block).unwrap(), block.to_stored());
        }
        assert!(get(&cache, &blocks[49]).is_none());
    }

    /// Proves: the bound on bytes holds, and what goes is the oldest.
    #[test]
    fn bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = DiskCache::open(dir.path(), 4 << 20).unwrap();
        let mut random = 1u64;
        let blocks: Vec<_> = (0..200)
            .map(|_| {
                let body = (0..100_000)
                    .map(|_| {
                        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                        (random >> 56) as u8
                    })
                    .collect();
                Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, Vec::new(), body)
            })
            .collect();
        for block in &blocks {
            cache.insert(block.reference().address, &block.to_stored()).unwrap();
            assert!(cache.bytes() <= (4 << 20) + (2 << 20));
        }
        assert!(get(&cache, &blocks[0]).is_none());
        assert_eq!(get(&cache, &blocks[199]).unwrap(), blocks[199].to_stored());
    }
}
