//! The sources of blocks for a file system that is rebuilt, and what can be read of it so far.

use holdfast_client::rebuild::bundle::Bundle;
use holdfast_content::{BODY_BYTES_MAX, Block, BlockKind, BlockSource, Reference, SourceError, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_failure::Outcome;
use holdfast_server::rebuild::RebuildTarget;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Blocks stored at once; [`BATCH_BYTES`] bounds their bytes.
const BATCH_BLOCKS: usize = 1024;
const BATCH_BYTES: usize = 8 << 20;

/// The result of collecting blocks.
#[derive(Default)]
pub struct Collected {
    /// Blocks that were there already.
    pub kept: u64,
    /// Blocks that were added.
    pub brought: u64,
    /// Their bytes as stored.
    pub bytes: u64,
    /// Blocks that no bundle has.
    pub missing: HashSet<Digest>,
    /// For each bundle, the number of its blocks that do not have their digests.
    pub false_blocks: HashMap<usize, u64>,
}

/// Stores all blocks that `roots` reach in the data directory.
pub fn collect(site: &RebuildTarget, bundles: &[Bundle], roots: Vec<Digest>) -> Outcome<Collected> {
    let mut result = Collected::default();
    let mut seen: HashSet<Digest> = HashSet::new();
    let mut open = roots;
    let mut batch: Vec<(Digest, StoredBlock)> = Vec::new();
    let mut batch_bytes = 0;
    while let Some(address) = open.pop() {
        if !seen.insert(address) {
            continue;
        }
        if let Some(block) = site.block(address) {
            result.kept += 1;
            open.extend(&block.references);
            continue;
        }
        let Some(block) = brought(bundles, &address, &mut result.false_blocks) else {
            result.missing.insert(address);
            continue;
        };
        open.extend(&block.references);
        result.brought += 1;
        result.bytes += block.body.len() as u64;
        batch_bytes += block.body.len();
        batch.push((address, block));
        if batch.len() >= BATCH_BLOCKS || batch_bytes >= BATCH_BYTES {
            site.store(std::mem::take(&mut batch))?;
            batch_bytes = 0;
        }
    }
    if !batch.is_empty() {
        site.store(batch)?;
    }
    // The blocks must be durable before anything refers to them.
    site.flush()?;
    Ok(result)
}

/// A block from the first bundle that has the right content for it.
fn brought(
    bundles: &[Bundle],
    address: &Digest,
    false_blocks: &mut HashMap<usize, u64>,
) -> Option<StoredBlock> {
    for (place, bundle) in bundles.iter().enumerate() {
        let Some(block) = bundle.block(address) else { continue };
        match block.clone().open_any(&DigestKey::WELL_KNOWN, *address, BODY_BYTES_MAX) {
            Ok(_) => return Some(block),
            Err(_) => *false_blocks.entry(place).or_default() += 1,
        }
    }
    None
}

/// The blocks for a rebuild: from the data directory, then from bundles.
pub struct RebuildSource {
    /// The data directory.
    pub site: Arc<RebuildTarget>,
    /// The bundles, which are searched after it.
    pub bundles: Arc<Vec<Bundle>>,
}

impl BlockSource for RebuildSource {
    fn digest_key(&self) -> DigestKey {
        DigestKey::WELL_KNOWN
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let address = reference.address;
        let stored =
            self.site.block(address).or_else(|| brought(&self.bundles, &address, &mut HashMap::new()));
        let stored = stored.ok_or(SourceError::Missing(address))?;
        let block = stored.open(&DigestKey::WELL_KNOWN, reference, kind);
        block.map(Arc::new).map_err(|error| SourceError::Altered(address, error))
    }
}
