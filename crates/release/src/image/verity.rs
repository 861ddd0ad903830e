//! The digest with which the kernel checks a file at every read (fs-verity): SHA-256 over a tree of blocks of
//! 4 KiB.
//!
//! Objects of an image are named by it, so that the kernel, where it can, goes on verifying them after the
//! export. Long holes cost little: the digests of subtrees that are all zeroes are computed once.

use sha2::{Digest as _, Sha256};

/// A digest as the kernel computes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VerityDigest(pub [u8; 32]);

impl std::fmt::Display for VerityDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Bytes of a block, of data and of the tree.
const BLOCK_BYTES: usize = 4096;
/// Digests in a block of the tree.
const FAN_OUT: u64 = (BLOCK_BYTES / 32) as u64;
/// Levels of the tree for 2^64 bytes.
const LEVELS_MAX: usize = 8;

/// Computes the digest of a file that is read from its beginning to its end.
#[derive(Default)]
pub struct VerityHasher {
    bytes: u64,
    /// Data that does not fill a block yet.
    data: Vec<u8>,
    /// Digests that do not fill a block of the tree yet, by level; level 0 has the digests of data blocks.
    levels: Vec<Vec<u8>>,
    /// The digest of a subtree of zeroes, by level.
    of_zeroes: Vec<[u8; 32]>,
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

impl VerityHasher {
    /// Adds bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if !self.data.is_empty() {
            let count = bytes.len().min(BLOCK_BYTES - self.data.len());
            self.data.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            if self.data.len() == BLOCK_BYTES {
                let digest = sha256(&self.data);
                self.data.clear();
                self.push(0, digest);
            }
        }
        let mut blocks = bytes.chunks_exact(BLOCK_BYTES);
        for block in &mut blocks {
            self.push(0, sha256(block));
        }
        self.data.extend_from_slice(blocks.remainder());
    }

    /// Adds this many zeroes.
    pub fn zeroes(&mut self, mut count: u64) {
        let to_boundary = (BLOCK_BYTES - self.data.len()) % BLOCK_BYTES;
        let first = count.min(to_boundary as u64);
        self.update(&vec![0; first as usize]);
        count -= first;
        while count >= BLOCK_BYTES as u64 {
            // Finds the largest subtree that begins here and is all zeroes.
            let at = self.bytes / BLOCK_BYTES as u64;
            let (mut level, mut blocks) = (0, 1);
            while level + 1 < LEVELS_MAX
                && at.is_multiple_of(blocks * FAN_OUT)
                && count / BLOCK_BYTES as u64 >= blocks * FAN_OUT
            {
                (level, blocks) = (level + 1, blocks * FAN_OUT);
            }
            let digest = self.zeroes_of(level);
            self.bytes += blocks * BLOCK_BYTES as u64;
            count -= blocks * BLOCK_BYTES as u64;
            self.push(level, digest);
        }
        self.update(&vec![0; count as usize]);
    }

    fn zeroes_of(&mut self, level: usize) -> [u8; 32] {
        while self.of_zeroes.len() <= level {
            let next = match self.of_zeroes.last() {
                None => sha256(&[0; BLOCK_BYTES]),
                Some(below) => sha256(&below.repeat(FAN_OUT as usize)),
            };
            self.of_zeroes.push(next);
        }
        self.of_zeroes[level]
    }

    fn push(&mut self, mut level: usize, mut digest: [u8; 32]) {
        loop {
            if self.levels.len() <= level {
                self.levels.resize(level + 1, Vec::new());
            }
            let block = &mut self.levels[level];
            block.extend_from_slice(&digest);
            if block.len() < BLOCK_BYTES {
                return;
            }
            digest = sha256(block);
            block.clear();
            level += 1;
        }
    }

    /// The digest of everything that was added.
    pub fn finish(mut self) -> VerityDigest {
        if !self.data.is_empty() {
            self.data.resize(BLOCK_BYTES, 0);
            let digest = sha256(&self.data);
            self.push(0, digest);
        }
        // Partial blocks of the tree are padded with zeroes; the one digest that is left is the root.
        let mut level = 0;
        let root = loop {
            let is_top = level + 1 == self.levels.len();
            match self.levels.get_mut(level) {
                None => break [0; 32],
                Some(block) if is_top && block.len() == 32 => {
                    break *block.first_chunk().expect("32 bytes");
                }
                Some(block) if block.is_empty() => {}
                Some(block) => {
                    block.resize(BLOCK_BYTES, 0);
                    let digest = sha256(block);
                    block.clear();
                    self.push(level + 1, digest);
                }
            }
            level += 1;
        };
        // struct fsverity_descriptor: version, algorithm (SHA-256), log2 of the block, no salt, no signature,
        // size.
        let mut descriptor = [0; 256];
        descriptor[..3].copy_from_slice(&[1, 1, 12]);
        descriptor[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        descriptor[16..48].copy_from_slice(&root);
        VerityDigest(sha256(&descriptor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        let mut measure = VerityHasher::default();
        measure.update(bytes);
        measure.finish().to_string()
    }

    /// Proves: the digest equals the kernel's. The first is that of every empty file, as fsverity-utils
    /// documents it; the others were made by `fsverity digest` from the same bytes.
    #[test]
    fn is_the_kernels() {
        assert_eq!(hex(b""), "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95");
        let bytes: Vec<u8> = (0..1_000_000u32).map(|at| (at % 251) as u8).collect();
        for (length, expected) in FSVERITY {
            assert_eq!(hex(&bytes[..length]), expected, "{length}");
        }
    }

    const FSVERITY: [(usize, &str); 8] = [
        (1, "b803429503d95915829b29fdbc8bbad142f3abfd11b1cadf5526582e685c0551"),
        (4095, "5f4953aad672b0188023d6cd6fbce9d09508eb7dad165b6298ce0086bc1e72db"),
        (4096, "13e9b8848ae484a36acb3f3cac0ceb2f7601e96633d15c92f9bd3dd44e492157"),
        (4097, "b0d074abef4d544404facfab6ba242f6a8ccbde90f1325cd286f3c8aa8d0f8aa"),
        (524_288, "d82861203d50ae9b60948504a704f35f5118bd229aeb1a22d6dae47b1767c4c4"),
        (524_289, "4dc6905041c9c4ee73e13b53f63f5d289c46da359b664a965ead7f8cc4d799d4"),
        (528_384, "dd56ffe5de24c1229fe22d25f91db9e735f6adc921510dcf480094624458c92a"),
        (1_000_000, "dbe1b6c44240d0b0642a25e6c1d5e399381c87474f3dcda2f3acb9495fa159d6"),
    ];

    /// Proves: counted zeroes give the same digest as zero bytes, wherever they begin and end; and bytes
    /// given in pieces give the same as all at once.
    #[test]
    fn zeroes_are_zeroes() {
        for (before, zeroes, after) in [
            (0, 1, 0),
            (1, 4095, 1),
            (4096, 4096 * 128, 0),
            (4096 * 128, 4096 * 128 * 3 + 7, 9000),
            (5, 4096 * 300, 4096 * 130),
            (4096 * 127, 4096 * 2, 4096 * 128),
        ] {
            let bytes = [vec![7; before], vec![0; zeroes], vec![9; after]].concat();
            let mut measure = VerityHasher::default();
            bytes[..before].chunks(777).for_each(|piece| measure.update(piece));
            measure.zeroes(zeroes as u64);
            measure.update(&bytes[before + zeroes..]);
            assert_eq!(measure.finish().to_string(), hex(&bytes), "{before} {zeroes} {after}");
        }
    }

    /// Proves: a hole of any length is processed at once.
    #[test]
    fn long_holes_cost_nothing() {
        let mut measure = VerityHasher::default();
        measure.update(b"begin");
        measure.zeroes(1 << 62);
        measure.update(b"end");
        assert_ne!(measure.finish().0, [0; 32]);
    }
}
