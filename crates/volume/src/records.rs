//! The records that the volume writes to the log.

use crate::layout::BLOCK_BYTES;
use holdfast_log::ring::{ClientId, Lsn, Tag};

/// The volume's records among those of others.
pub const CLIENT: ClientId = ClientId(1);

pub const HASHES: u8 = 1;
pub const INLINE: u8 = 2;
pub const DISCARD: u8 = 3;
pub const STABLE: u8 = 4;
pub const CHECKPOINT: u8 = 5;
pub const OPENED: u8 = 6;
pub const TOGETHER: u8 = 7;

/// A block as records carry it.
pub type Block = Box<[u8; BLOCK_BYTES]>;

/// A record of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The blocks from `first` are about to have these tags.
    Hashes { first: u64, tags: Vec<Tag> },
    /// The blocks from `first` will get this content, which the log now has.
    Inline { first: u64, bytes: Vec<u8> },
    /// Blocks that were discarded.
    Discard { first: u64, count: u64 },
    /// The last record of each block before this position is true of the disk.
    Stable { before: Lsn },
    /// The block map with this root includes all records before `from`. Recovery ignores those from then on,
    /// not only once the log drops them: it may have decided on another value than their last one.
    Checkpoint { root: Tag, adopted: u64, from: Lsn },
    /// A process begins to use the volume.
    Opened,
    /// These blocks will get this content, which the log now has: all of them or, without the record, none.
    Together { blocks: Vec<(u64, Block)> },
}

fn number(body: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?))
}

/// Numbers of blocks, then the blocks.
fn together(body: &[u8]) -> Option<Vec<(u64, Block)>> {
    const ENTRY_BYTES: usize = 8 + BLOCK_BYTES;
    if !body.len().is_multiple_of(ENTRY_BYTES) {
        return None;
    }
    let (numbers, blocks) = body.split_at(body.len() / ENTRY_BYTES * 8);
    let numbers = numbers.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number));
    Some(numbers.zip(blocks.as_chunks::<BLOCK_BYTES>().0.iter().map(|block| Box::new(*block))).collect())
}

impl Record {
    /// Decodes a record; `None` if it is malformed, which the log's key makes impossible.
    pub fn decode(kind: u8, body: &[u8]) -> Option<Record> {
        let rest = || body.get(8..);
        Some(match kind {
            HASHES => {
                let (tags, []) = rest()?.as_chunks::<16>() else { return None };
                Record::Hashes { first: number(body, 0)?, tags: tags.to_vec() }
            }
            INLINE if rest()?.len().is_multiple_of(BLOCK_BYTES) => {
                Record::Inline { first: number(body, 0)?, bytes: rest()?.to_vec() }
            }
            DISCARD => Record::Discard { first: number(body, 0)?, count: number(body, 8)? },
            STABLE => Record::Stable { before: Lsn(number(body, 0)?) },
            CHECKPOINT => {
                let root = body.get(..16)?.try_into().ok()?;
                Record::Checkpoint { root, adopted: number(body, 16)?, from: Lsn(number(body, 24)?) }
            }
            OPENED => Record::Opened,
            TOGETHER => Record::Together { blocks: together(body)? },
            _ => return None,
        })
    }
}
