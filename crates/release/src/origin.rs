//! The origin of a release: the server of the live file system that it was made of, which has its files'
//! data.
//!
//! It serves members only. A server with a member's key (best that of a user who may not write) asks it on
//! behalf of readers. It is not trusted more than a mirror: every block is checked against its address before
//! it is passed on.

use crate::mirror::{self, Mirror, MirrorError, OBJECTS};
use crate::pack;
use bytes::Bytes;
use holdfast_client::remote::Remote;
use holdfast_content::{BODY_BYTES_MAX, BlockKind, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::message::{Request, Response};
use lru::LruCache;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How long a request waits for the origin.
const DEADLINE: Duration = Duration::from_secs(10);

/// A connection to the origin, and a cache of its blocks.
pub struct Origin {
    name: String,
    server: Arc<dyn Remote>,
    cache: Mutex<Cache>,
}

struct Cache {
    frames: LruCache<Digest, Bytes>,
    bytes: usize,
    bytes_max: usize,
}

/// Why the origin sent nothing usable.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OriginError {
    /// The origin cannot be reached, or does not answer in time.
    #[error("the live file system at {0} cannot be reached: {1}")]
    Unreachable(String, String),
    /// The origin sent something other than what was asked for.
    #[error("the live file system at {0} gave something false: {1}")]
    False(String, String),
}

impl Origin {
    /// The file system called `name`, through a member's connection; at most `cache_bytes_max` of its blocks
    /// are cached.
    pub fn new(name: String, server: Arc<dyn Remote>, cache_bytes_max: usize) -> Origin {
        let frames = LruCache::unbounded();
        Origin { name, server, cache: Mutex::new(Cache { frames, bytes: 0, bytes_max: cache_bytes_max }) }
    }

    /// The frames (see [`crate::pack`]) of data blocks. `None` for a block that the origin says it does not
    /// have, or that is no data. The list ends early when an answer is full, but has at least one entry.
    ///
    /// # Errors
    /// [`OriginError`]: nothing was learned about the blocks that are not cached.
    pub fn frames(&self, addresses: &[Digest]) -> Result<Vec<Option<Bytes>>, OriginError> {
        let mut found: Vec<Option<Bytes>> = {
            let mut cache = self.cache.lock();
            addresses.iter().map(|address| cache.frames.get(address).cloned()).collect()
        };
        let missing: Vec<usize> = (0..found.len()).filter(|at| found[*at].is_none()).collect();
        if missing.is_empty() {
            return Ok(found);
        }
        let wanted: Vec<Digest> = missing.iter().map(|at| addresses[*at]).collect();
        let unreachable = |why: String| OriginError::Unreachable(self.name.clone(), why);
        let answer = self.server.call(Request::Retrieve(wanted), DEADLINE);
        let blocks = match answer.map_err(|error| unreachable(error.to_string()))? {
            Response::Blocks(blocks) if !blocks.is_empty() && blocks.len() <= missing.len() => blocks,
            Response::Error(error) => return Err(unreachable(error.to_string())),
            _ => return Err(OriginError::False(self.name.clone(), "its answer makes no sense".into())),
        };
        // A block that was not in the answer need not be missing.
        let known = missing.get(blocks.len()).copied().unwrap_or(found.len());
        for (at, block) in missing.into_iter().zip(blocks) {
            let Some((_, block)) = block else { continue };
            found[at] = self.checked(addresses[at], block.block)?;
        }
        found.truncate(known);
        Ok(found)
    }

    /// The frame of a block, if its content has the address's digest.
    fn checked(&self, address: Digest, stored: StoredBlock) -> Result<Option<Bytes>, OriginError> {
        let is_data = stored.kind == BlockKind::Chunk;
        stored
            .clone()
            .open_any(&DigestKey::WELL_KNOWN, address, BODY_BYTES_MAX)
            .map_err(|error| OriginError::False(self.name.clone(), error.to_string()))?;
        if !is_data {
            return Ok(None);
        }
        let frame = Bytes::from(pack::frame(&address, &stored));
        let mut cache = self.cache.lock();
        cache.bytes += frame.len();
        if let Some(before) = cache.frames.put(address, frame.clone()) {
            cache.bytes -= before.len();
        }
        while cache.bytes > cache.bytes_max {
            let Some((_, oldest)) = cache.frames.pop_lru() else { break };
            cache.bytes -= oldest.len();
        }
        Ok(Some(frame))
    }
}

/// The origin as an additional mirror, for machines that have a key: it has data blocks only, and no files.
pub struct OriginMirror(pub Origin);

impl Mirror for OriginMirror {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn get(&self, file: &str, _range: Option<Range<u64>>, _bytes_max: u64) -> Result<Vec<u8>, MirrorError> {
        Err(mirror::missing(self.name(), file))
    }

    fn objects(&self, addresses: &[Digest]) -> Result<Vec<u8>, MirrorError> {
        match self.0.frames(addresses) {
            Ok(frames) => {
                let mut bytes = Vec::new();
                for frame in frames.into_iter().flatten() {
                    if !bytes.is_empty() && bytes.len() + frame.len() > mirror::OBJECTS_ANSWER_BYTES_MAX {
                        break;
                    }
                    bytes.extend_from_slice(&frame);
                }
                if bytes.is_empty() { Err(mirror::missing(self.name(), OBJECTS)) } else { Ok(bytes) }
            }
            Err(error) => Err(MirrorError::Unreachable {
                mirror: self.name().to_owned(),
                file: OBJECTS.to_owned(),
                why: error.to_string(),
                retry_after: None,
            }),
        }
    }
}
