//! The stored form of a policy table: blocks of 4,096 bytes.
//!
//! ```text
//! block 0                header: format, disk, generation, how many label blocks and page slots are in use
//! 1 .. 1+L               label blocks: (number, owner, ACL) each; L = an eighth of the rest, at least 1
//! 1+L .. table_blocks    page slots: (first block, label number) each, sorted; an extent lasts until the next
//!                        or, in format 2, a piece of what is kept beside
//! ```
//!
//! A table without extra bytes has format 1, as before there were any; a table with them has format 2, which
//! readers that know no revocations refuse.
//!
//! Every block: magic (8 bytes), digest (32) over the disk's identity, the block's place and the body, then the body
//! in canonical encoding, then zeroes. So a block of another disk, place or kind is not taken for this one.

use crate::labels::Label;
use crate::{Damage, Disk};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, DigestKey, Domain};

/// Size of a block.
pub const BLOCK_BYTES: usize = 4096;
/// A block of the table, as stored.
pub type Block = [u8; BLOCK_BYTES];

const MAGIC: &[u8; 8] = b"hfpolicy";
const BODY_AT: usize = MAGIC.len() + 32;
/// Bytes that a list can take: the body less its kind and its length.
pub(crate) const LIST_BYTES: usize = BLOCK_BYTES - BODY_AT - 1 - 4;
/// The most extents in a page.
pub const EXTENTS_PER_PAGE_MAX: usize = LIST_BYTES / 12;
const _: () = assert!(BODY_AT == 40 && LIST_BYTES == 4051 && EXTENTS_PER_PAGE_MAX == 337);

/// The format of tables without extra bytes.
pub(crate) const FORMAT_PLAIN: u16 = 1;
/// The format of those that do, and the newest that this version reads.
pub(crate) const FORMAT: u16 = 2;
/// Bytes of a piece of the extra bytes: the rest of the block without its number and its length.
pub(crate) const PIECE_BYTES_MAX: usize = LIST_BYTES - 4;

/// A block to be written, and where, counted from the table's first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// The number of the block.
    pub block: u64,
    /// The bytes of the block.
    pub bytes: Box<Block>,
}

#[derive(BorshSerialize, BorshDeserialize)]
pub(crate) struct Header {
    pub format: u16,
    pub disk: Disk,
    pub generation: u64,
    pub label_blocks: u32,
    pub page_slots: u32,
}

/// The content of a block. The order of the variants is part of the stored format.
#[derive(BorshSerialize, BorshDeserialize)]
pub(crate) enum Body {
    Header(Header),
    Labels(Vec<(u32, Label)>),
    Page(Vec<(u64, u32)>),
    /// A piece of the extra bytes, with its number, from 0.
    Kept(u32, Vec<u8>),
}

/// Number of the table's blocks for labels.
pub(crate) fn label_blocks(disk: &Disk) -> u64 {
    ((disk.table_blocks - 1) / 8).max(1)
}

/// Number of the table's blocks for pages.
pub(crate) fn page_slots(disk: &Disk) -> u64 {
    disk.table_blocks - 1 - label_blocks(disk)
}

fn digest(identity: &[u8; 16], block: u64, body: &[u8]) -> Digest {
    let hasher = DigestKey::WELL_KNOWN.hasher(Domain::PolicyBlock);
    hasher.update(identity).update(&block.to_le_bytes()).update(body).finish()
}

/// A block as it is stored. The caller keeps lists within [`LIST_BYTES`].
pub(crate) fn image(disk: &Disk, block: u64, body: &Body) -> Image {
    let mut bytes = Box::new([0; BLOCK_BYTES]);
    body.serialize(&mut &mut bytes[BODY_AT..]).expect("lists are kept within a block");
    bytes[..8].copy_from_slice(MAGIC);
    let digest = digest(&disk.identity, block, &bytes[BODY_AT..]);
    bytes[8..BODY_AT].copy_from_slice(&digest.0);
    Image { block, bytes }
}

/// Reads a block, trusting nothing in it but that the driver read this place.
pub(crate) fn body(disk: &Disk, block: u64, bytes: &Block) -> Result<Body, Damage> {
    let malformed = |why| Damage::Malformed { block, why };
    if bytes[..8] != *MAGIC {
        return Err(malformed("it is not a block of a policy table"));
    }
    if bytes[8..BODY_AT] != digest(&disk.identity, block, &bytes[BODY_AT..]).0 {
        return Err(malformed("its digest does not match: it was changed, moved or is another disk's"));
    }
    let mut rest = &bytes[BODY_AT..];
    // A later format may have other fields, so the number is checked first.
    let format = u16::from_le_bytes([rest[1], rest[2]]);
    if rest[0] == 0 && !(FORMAT_PLAIN..=FORMAT).contains(&format) {
        return Err(Damage::Newer(format));
    }
    let body = Body::deserialize(&mut rest).map_err(|_| malformed("its contents are not canonical"))?;
    if rest.iter().any(|byte| *byte != 0) {
        return Err(malformed("bytes follow its contents"));
    }
    Ok(body)
}
