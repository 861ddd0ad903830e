//! Verified blocks in memory, bounded by bytes; the least recently used are dropped first.

use holdfast_content::{Block, BlockKind};
use holdfast_crypto::Digest;
use lru::LruCache;
use std::sync::Arc;

/// Bytes that one cached block costs besides its body: the map entry, the header, the allocations.
const OVERHEAD: usize = 200;

/// A cache bounded by bytes.
pub struct MemoryCache {
    /// Each block with a flag: whether it was requested since it was added.
    blocks: LruCache<Digest, (Arc<Block>, bool)>,
    bytes: usize,
    bytes_max: usize,
}

impl MemoryCache {
    /// An empty cache of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        MemoryCache { blocks: LruCache::unbounded(), bytes: 0, bytes_max }
    }

    /// The block at `address`, which becomes the most recently used.
    pub fn get(&mut self, address: &Digest) -> Option<Arc<Block>> {
        self.get_with_use(address).map(|(block, _)| block)
    }

    /// The block at `address`, which becomes the most recently used; and whether this is the first request
    /// for it since it was added.
    pub fn get_with_use(&mut self, address: &Digest) -> Option<(Arc<Block>, bool)> {
        let (block, asked) = self.blocks.get_mut(address)?;
        Some((block.clone(), !std::mem::replace(asked, true)))
    }

    /// Whether a block is in the cache; this does not count as use.
    pub fn contains(&self, address: &Digest) -> bool {
        self.blocks.contains(address)
    }

    /// Adds a block, and drops the least recently used ones beyond the bound.
    pub fn insert(&mut self, block: Arc<Block>) {
        let cost = cost(&block);
        if cost > self.bytes_max {
            return;
        }
        if let Some((old, _)) = self.blocks.put(block.reference().address, (block, false)) {
            self.bytes -= self::cost(&old);
        }
        self.bytes += cost;
        while self.bytes > self.bytes_max
            && let Some((_, (old, _))) = self.blocks.pop_lru()
        {
            self.bytes -= self::cost(&old);
        }
    }

    /// The bound on the cache's size, in bytes.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Bytes of all blocks, including overhead.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

fn cost(block: &Block) -> usize {
    // The nodes of maps are kept decoded as well.
    let copies = if matches!(block.kind(), BlockKind::MapLeaf | BlockKind::MapInner) { 3 } else { 1 };
    copies * block.body().len() + 32 * block.references().len() + OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_content::BlockKind;
    use holdfast_crypto::DigestKey;

    fn block(byte: u8, length: usize) -> Arc<Block> {
        Arc::new(Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, Vec::new(), vec![byte; length]))
    }

    /// Proves: the bound holds whatever is inserted, and the most recently used block stays longest.
    #[test]
    fn bounded_and_least_recently_used() {
        let mut cache = MemoryCache::new(3 * (1000 + OVERHEAD));
        let blocks: Vec<_> = (0..4).map(|n| block(n, 1000)).collect();
        for block in &blocks[..3] {
            cache.insert(block.clone());
        }
        assert!(cache.get(&blocks[0].reference().address).is_some());
        cache.insert(blocks[3].clone());
        assert!(cache.get(&blocks[0].reference().address).is_some());
        assert!(cache.get(&blocks[1].reference().address).is_none());
        cache.insert(blocks[3].clone());
        assert_eq!(cache.bytes(), 3 * (1000 + OVERHEAD));
        cache.insert(block(9, 100_000));
        assert_eq!(cache.bytes(), 3 * (1000 + OVERHEAD));
    }
}
