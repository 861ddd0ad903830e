//! Packs: blocks, one after the other, as they travel.
//!
//! ```text
//! pack   "HFPACK1\n" | frame...
//! frame  length of the rest u32 | address | stored block (see docs/internals/format.md)
//! ```
//!
//! A frame contains the address of its block, so a piece of a pack that was fetched for one block can be used
//! for its neighbours too. The address is not trusted: a block is checked against the reference for which it
//! is needed.

use borsh::BorshDeserialize;
use holdfast_content::{BODY_BYTES_MAX, REFERENCES_MAX, StoredBlock};
use holdfast_crypto::Digest;

/// The magic bytes of a pack.
pub const MAGIC: &[u8; 8] = b"HFPACK1\n";
/// Bytes of a frame before the stored block.
pub const HEADER_BYTES: usize = 4 + 32;
/// Most bytes of a frame: a block's body and references, and their counts.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + BODY_BYTES_MAX as usize + REFERENCES_MAX * 32 + 64;

/// Encodes a block as a frame.
pub fn frame(address: &Digest, block: &StoredBlock) -> Vec<u8> {
    let block = holdfast_crypto::encode(block);
    let mut bytes = Vec::with_capacity(HEADER_BYTES + block.len());
    bytes.extend_from_slice(&((block.len() + 32) as u32).to_le_bytes());
    bytes.extend_from_slice(&address.0);
    bytes.extend_from_slice(&block);
    bytes
}

/// A frame of untrusted bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The address in the frame, unchecked.
    pub address: Digest,
    /// The stored block, encoded.
    pub block: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The frame at the beginning of `bytes`, and the bytes after it. `None` if it is not complete.
    pub fn first(bytes: &'a [u8]) -> Option<(Frame<'a>, &'a [u8])> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        if !(32..=FRAME_BYTES_MAX - 4).contains(&length) {
            return None;
        }
        let (frame, rest) = rest.split_at_checked(length)?;
        let (address, block) = frame.split_first_chunk::<32>()?;
        Some((Frame { address: Digest(*address), block }, rest))
    }

    /// All complete frames from the beginning of `bytes`.
    pub fn all(mut bytes: &'a [u8]) -> impl Iterator<Item = Frame<'a>> {
        std::iter::from_fn(move || {
            let (frame, rest) = Frame::first(bytes)?;
            bytes = rest;
            Some(frame)
        })
    }

    /// The stored block, unverified. `None` if it is malformed.
    pub fn stored(&self) -> Option<StoredBlock> {
        StoredBlock::try_from_slice(self.block).ok()
    }

    /// Bytes of the whole frame.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.block.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_content::{Block, BlockKind};
    use holdfast_crypto::DigestKey;
    use proptest::prelude::*;

    /// Proves: frames can be read back one after the other, and an incomplete one ends the list.
    #[test]
    fn frames_read_back() {
        let blocks: Vec<Block> = (0..3u8)
            .map(|n| {
                Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, vec![], vec![n; 1000 * usize::from(n)])
            })
            .collect();
        let mut bytes = Vec::new();
        for block in &blocks {
            bytes.extend(frame(&block.reference().address, &block.to_stored()));
        }
        let found: Vec<_> = Frame::all(&bytes).collect();
        assert_eq!(found.len(), 3);
        for (frame, block) in found.iter().zip(&blocks) {
            assert_eq!(frame.address, block.reference().address);
            assert_eq!(frame.stored().unwrap(), block.to_stored());
        }
        assert_eq!(found.iter().map(Frame::bytes).sum::<usize>(), bytes.len());
        assert_eq!(Frame::all(&bytes[..bytes.len() - 1]).count(), 2);
    }

    proptest! {
        /// Proves: no bytes make parsing frames panic or loop.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for frame in Frame::all(&bytes) {
                frame.stored();
            }
        }
    }
}
