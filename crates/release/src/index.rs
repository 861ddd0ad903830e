//! The index of a release: which block is in which pack, and where.
//!
//! ```text
//! index   "HFINDEX1" | entries u64 | packs u32 | packs x { digest | bytes u64 }
//!         | first key of each page, 8 bytes | entries in order of key, pages of 128
//! entry   key: first 16 bytes of the address | number of the pack u32 | offset u32 | bytes of the frame u32
//! ```
//!
//! A pack of no bytes is not a file: its blocks are at the release's origin, and are requested by address.
//!
//! An index is a hint and is not signed. A wrong one can keep a client from finding a block, as a mirror that
//! does not answer can; blocks that are found are checked. Small indexes are fetched whole; of large ones,
//! the head and the pages that are needed.

use crate::pack::FRAME_BYTES_MAX;
use holdfast_crypto::Digest;

/// The magic bytes of an index.
pub const MAGIC: &[u8; 8] = b"HFINDEX1";
/// Entries of a page.
pub const PAGE_ENTRIES: usize = 128;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 16 + 4 + 4 + 4;
/// Bytes before the list of packs.
pub const FIXED_BYTES: usize = 8 + 8 + 4;
/// Most blocks of a release.
pub const ENTRIES_MAX: u64 = 1 << 32;
/// Most packs of a release.
pub const PACKS_MAX: u32 = 1 << 20;
/// Most bytes of a pack, so that offsets fit.
pub const PACK_BYTES_MAX: u64 = 1 << 31;

/// The part of an address that an index stores.
pub type Key = [u8; 16];

/// The key of an address.
pub fn key_of(address: &Digest) -> Key {
    *address.0.first_chunk().expect("32 bytes")
}

/// Where a block is: its pack, and its position there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockLocation {
    /// The number of the pack in the index.
    pub pack: u32,
    /// The offset of its frame in the pack.
    pub offset: u32,
    /// The length of its frame in bytes.
    pub bytes: u32,
}

/// A pack, as an index has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PackName {
    /// Digest of the file.
    pub digest: Digest,
    /// The size in bytes.
    pub bytes: u64,
}

impl PackName {
    /// Stands for no file: blocks "in" it are at the release's origin, the server of the live file system
    /// that the release was made of. Their locations are empty.
    pub const ORIGIN: PackName = PackName { digest: Digest::ZERO, bytes: 0 };

    /// Whether it is [`PackName::ORIGIN`].
    pub fn is_origin(&self) -> bool {
        self.bytes == 0
    }
}

impl BlockLocation {
    /// The location of a block at the origin; `pack` is the number of [`PackName::ORIGIN`] in the index.
    pub fn at_origin(pack: u32) -> BlockLocation {
        BlockLocation { pack, offset: 0, bytes: 0 }
    }

    /// Whether the block is at the origin and in no pack. (A frame is never empty.)
    pub fn is_at_origin(&self) -> bool {
        self.bytes == 0
    }
}

/// Why bytes are not a valid index.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it is no index of a release: {0}")]
pub struct BadIndex(pub &'static str);

/// The numbers of entries and packs of an index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// The number of blocks.
    pub entries: u64,
    /// The number of packs.
    pub packs: u32,
}

impl Sizes {
    /// Reads the first [`FIXED_BYTES`].
    ///
    /// # Errors
    /// [`BadIndex`].
    pub fn read(bytes: &[u8]) -> Result<Sizes, BadIndex> {
        let fixed = bytes.first_chunk::<FIXED_BYTES>().ok_or(BadIndex("it is cut short"))?;
        if fixed[..8] != MAGIC[..] {
            return Err(BadIndex("it begins otherwise"));
        }
        let entries = u64::from_le_bytes(fixed[8..16].try_into().expect("8 bytes"));
        let packs = u32::from_le_bytes(fixed[16..20].try_into().expect("4 bytes"));
        match entries <= ENTRIES_MAX && packs <= PACKS_MAX {
            true => Ok(Sizes { entries, packs }),
            false => Err(BadIndex("it is too large")),
        }
    }

    /// The number of pages.
    pub fn pages(&self) -> u64 {
        self.entries.div_ceil(PAGE_ENTRIES as u64)
    }

    /// Bytes before the entries.
    pub fn head_bytes(&self) -> u64 {
        FIXED_BYTES as u64 + u64::from(self.packs) * 40 + self.pages() * 8
    }

    /// Bytes of the whole file.
    pub fn bytes(&self) -> u64 {
        self.head_bytes() + self.entries * ENTRY_BYTES as u64
    }
}

/// The head of an index: everything but the entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// The numbers of entries and packs.
    pub sizes: Sizes,
    /// The packs, by number.
    pub packs: Vec<PackName>,
    /// The first 8 bytes of the first key of each page.
    fences: Vec<u64>,
}

impl Head {
    /// Reads the head from the beginning of an index.
    ///
    /// # Errors
    /// [`BadIndex`].
    pub fn read(bytes: &[u8]) -> Result<Head, BadIndex> {
        let sizes = Sizes::read(bytes)?;
        let head = bytes.get(FIXED_BYTES..sizes.head_bytes() as usize).ok_or(BadIndex("it is cut short"))?;
        let (packs, fences) = head.split_at(sizes.packs as usize * 40);
        let packs = packs.chunks_exact(40).map(|pack| PackName {
            digest: Digest(*pack.first_chunk().expect("32 bytes")),
            bytes: u64::from_le_bytes(pack[32..].try_into().expect("8 bytes")),
        });
        let fences =
            fences.chunks_exact(8).map(|fence| u64::from_be_bytes(fence.try_into().expect("8 bytes")));
        Ok(Head { sizes, packs: packs.collect(), fences: fences.collect() })
    }

    /// The byte range of the file that holds the entry of `key`, if it exists: one page, or two if the key is
    /// at a boundary.
    pub fn range_of(&self, key: &Key) -> std::ops::Range<u64> {
        let fence = fence_of(key);
        // Several pages may begin with the same fence, and the key may be in the page before the first of
        // them.
        let first = self.fences.partition_point(|known| *known < fence).saturating_sub(1) as u64;
        let end = self.fences.partition_point(|known| *known <= fence) as u64;
        // An honest index of digests never needs more than two pages.
        let end = end.clamp(first, first + 4);
        let page = (PAGE_ENTRIES * ENTRY_BYTES) as u64;
        let head = self.sizes.head_bytes();
        head + first * page..(head + end * page).min(self.sizes.bytes())
    }

    /// The location of `key` among `entries`, a part of the file's entries. Impossible locations count as
    /// missing.
    pub fn find(&self, entries: &[u8], key: &Key) -> Option<BlockLocation> {
        let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
        let at = entries.partition_point(|entry| entry[..16] < key[..]);
        let entry = entries.get(at).filter(|entry| entry[..16] == key[..])?;
        self.check(location_of(entry))
    }

    /// The location, if it is possible: within its pack, and not longer than a frame.
    fn check(&self, location: BlockLocation) -> Option<BlockLocation> {
        let pack = self.packs.get(location.pack as usize)?;
        let end = u64::from(location.offset) + u64::from(location.bytes);
        (end <= pack.bytes && location.bytes as usize <= FRAME_BYTES_MAX).then_some(location)
    }
}

/// The first 8 bytes of a key.
fn fence_of(key: &Key) -> u64 {
    u64::from_be_bytes(*key.first_chunk().expect("16 bytes"))
}

fn location_of(entry: &[u8; ENTRY_BYTES]) -> BlockLocation {
    let number = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("4 bytes"));
    BlockLocation { pack: number(16), offset: number(20), bytes: number(24) }
}

/// A whole index, for programs that make one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Index {
    /// The packs, by number.
    pub packs: Vec<PackName>,
    /// The blocks, in order of key.
    pub entries: Vec<(Key, BlockLocation)>,
}

impl Index {
    /// Adds blocks that are at the origin. None of them may be in a pack.
    pub fn refer(&mut self, keys: impl IntoIterator<Item = Key>) {
        let mut keys = keys.into_iter().peekable();
        if keys.peek().is_none() {
            return;
        }
        let number = self.packs.iter().position(PackName::is_origin).unwrap_or_else(|| {
            self.packs.push(PackName::ORIGIN);
            self.packs.len() - 1
        });
        self.entries.extend(keys.map(|key| (key, BlockLocation::at_origin(number as u32))));
    }

    /// Encodes the index. `entries` may be in any order; if several have the same key, the one with the
    /// lowest location stays.
    pub fn encode(mut self) -> Vec<u8> {
        self.entries.sort_unstable();
        self.entries.dedup_by_key(|(key, _)| *key);
        let sizes = Sizes { entries: self.entries.len() as u64, packs: self.packs.len() as u32 };
        let mut bytes = Vec::with_capacity(sizes.bytes() as usize);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&sizes.entries.to_le_bytes());
        bytes.extend_from_slice(&sizes.packs.to_le_bytes());
        for pack in &self.packs {
            bytes.extend_from_slice(&pack.digest.0);
            bytes.extend_from_slice(&pack.bytes.to_le_bytes());
        }
        for page in self.entries.chunks(PAGE_ENTRIES) {
            bytes.extend_from_slice(&page[0].0[..8]);
        }
        for (key, location) in &self.entries {
            bytes.extend_from_slice(key);
            for number in [location.pack, location.offset, location.bytes] {
                bytes.extend_from_slice(&number.to_le_bytes());
            }
        }
        bytes
    }

    /// Decodes a whole index.
    ///
    /// # Errors
    /// [`BadIndex`].
    pub fn decode(bytes: &[u8]) -> Result<Index, BadIndex> {
        let head = Head::read(bytes)?;
        if bytes.len() as u64 != head.sizes.bytes() {
            return Err(BadIndex("it has another length than it says"));
        }
        let (entries, _) = bytes[head.sizes.head_bytes() as usize..].as_chunks::<ENTRY_BYTES>();
        let entries = entries
            .iter()
            .map(|entry| {
                let location =
                    head.check(location_of(entry)).ok_or(BadIndex("a block lies outside of its pack"))?;
                Ok((*entry.first_chunk().expect("16 bytes"), location))
            })
            .collect::<Result<Vec<_>, _>>()?;
        if !entries.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(BadIndex("its blocks are out of order"));
        }
        let fences = entries.chunks(PAGE_ENTRIES).map(|page| fence_of(&page[0].0));
        match fences.eq(head.fences) {
            true => Ok(Index { packs: head.packs, entries }),
            false => Err(BadIndex("its pages begin otherwise than it says")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn index(keys: &[u64]) -> Index {
        let entry = |key: &u64| {
            let mut bytes = [7; 16];
            bytes[..8].copy_from_slice(&key.to_be_bytes());
            (bytes, BlockLocation { pack: (key % 3) as u32, offset: (key % 1000) as u32, bytes: 40 })
        };
        let pack = |byte| PackName { digest: Digest([byte; 32]), bytes: 5000 };
        Index { packs: vec![pack(1), pack(2), pack(3)], entries: keys.iter().map(entry).collect() }
    }

    proptest! {
        /// Proves: blocks in an index are found, in the whole file and by head and page alone, and no others
        /// are.
        #[test]
        fn finds_what_is_there(mut keys in proptest::collection::vec(any::<u64>(), 0..1000), spread in 0..3u32) {
            // The keys are close together, so that fences are equal.
            keys.iter_mut().for_each(|key| *key >>= spread * 24);
            let made = index(&keys);
            let bytes = made.clone().encode();
            let whole = Index::decode(&bytes).unwrap();
            let head = Head::read(&bytes).unwrap();
            for (key, _) in &made.entries {
                let range = head.range_of(key);
                let found = head.find(&bytes[range.start as usize..range.end as usize], key);
                let expected = whole.entries.iter().find(|(known, _)| known == key).map(|(_, location)| *location);
                prop_assert_eq!(found, expected);
                prop_assert!(found.is_some());
                let mut other = *key;
                other[15] = 1;
                prop_assert_eq!(head.find(&bytes[range.start as usize..range.end as usize], &other), None);
            }
        }

        /// Proves: no bytes make the parser panic, and a head never exceeds its bound.
        #[test]
        fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), magic: bool) {
            if magic && bytes.len() >= 20 {
                bytes[..8].copy_from_slice(MAGIC);
                bytes[9..20].fill(0);
            }
            let _ = Index::decode(&bytes);
            if let Ok(head) = Head::read(&bytes) {
                head.find(&bytes, &[3; 16]);
                head.range_of(&[3; 16]);
            }
        }
    }

    /// Proves: a block outside of its pack is refused.
    #[test]
    fn locations_are_checked() {
        let mut made = index(&[1, 2, 3]);
        made.entries[1].1.offset = 4990;
        let bytes = made.encode();
        assert!(Index::decode(&bytes).is_err());
        let head = Head::read(&bytes).unwrap();
        let entries = &bytes[head.sizes.head_bytes() as usize..];
        let key = |key: u64| index(&[key]).entries[0].0;
        assert_eq!(head.find(entries, &key(2)), None);
        assert!(head.find(entries, &key(3)).is_some());
    }
}
