//! The key of a volume, and what is derived from it.

use holdfast_log::ring::{RingKey, Tag};
use std::fmt;

/// The operator's secret for one volume. Whoever has it can make blocks that verify.
#[derive(Clone)]
pub struct VolumeKey {
    secret: [u8; 32],
    volume: [u8; 16],
    blocks: [u8; 32],
    nodes: [u8; 32],
    header: [u8; 32],
    anchor: [u8; 32],
}

impl fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VolumeKey(..)")
    }
}

impl VolumeKey {
    /// The key of the volume called `volume`.
    pub fn new(secret: &[u8; 32], volume: &[u8; 16]) -> VolumeKey {
        let derived = |context: &str| {
            let mut material = [0; 48];
            material[..32].copy_from_slice(secret);
            material[32..].copy_from_slice(volume);
            blake3::derive_key(context, &material)
        };
        VolumeKey {
            secret: *secret,
            volume: *volume,
            blocks: derived("holdfast 2026 volume block v1"),
            nodes: derived("holdfast 2026 volume map node v1"),
            header: derived("holdfast 2026 volume header v1"),
            anchor: derived("holdfast 2026 volume anchor v1"),
        }
    }

    /// The volume's name.
    pub fn volume(&self) -> [u8; 16] {
        self.volume
    }

    /// The tag that `bytes` have as block `number`.
    pub fn block_tag(&self, number: u64, bytes: &[u8; crate::BLOCK_BYTES]) -> Tag {
        self.block(number, bytes)
    }

    /// The tag of what an anchor says of a counter.
    pub fn anchor_tag(&self, bytes: &[u8]) -> Tag {
        tag(&self.anchor, &[bytes])
    }

    pub(crate) fn ring(&self) -> RingKey {
        RingKey::new(&self.secret, &self.volume)
    }

    /// The tag of a block at its place: the same bytes elsewhere have another.
    pub(crate) fn block(&self, number: u64, bytes: &[u8]) -> Tag {
        // The number comes last, so that whole chunks of the block are hashed side by side.
        tag(&self.blocks, &[bytes, &number.to_le_bytes()])
    }

    /// The tag of a node of the map at its place.
    pub(crate) fn node(&self, level: u8, index: u64, bytes: &[u8]) -> Tag {
        tag(&self.nodes, &[bytes, &[level], &index.to_le_bytes()])
    }

    pub(crate) fn header(&self, bytes: &[u8]) -> Tag {
        tag(&self.header, &[bytes])
    }
}

fn tag(key: &[u8; 32], parts: &[&[u8]]) -> Tag {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().as_bytes()[..16].try_into().expect("16 of 32 bytes")
}
