//! Caches frames of small blocks. The blocks that look-ups in a directory need are requested again and again,
//! and are scattered all over the packs.

use super::files::{Content, PIECE_BYTES, ReadError, ServedFile, Wait};
use super::names::Lifetime;
use crate::index::Key;
use hyper::header::HeaderValue;
use lru::LruCache;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a cached frame costs in addition to its own.
const OVERHEAD_BYTES: u64 = 192;

/// A frame of a block, as bytes of a file.
#[derive(Clone)]
pub struct Frame {
    /// A pack, or a piece of one in memory.
    pub found: Arc<ServedFile>,
    /// The byte range in the file.
    pub range: Range<u64>,
}

/// The frames that were requested lately, by the keys of their blocks.
pub struct Frames {
    cached: Mutex<CachedFrames>,
    bytes_max: u64,
}

struct CachedFrames {
    frames: LruCache<Key, Arc<ServedFile>>,
    bytes: u64,
}

impl Frames {
    /// An empty cache of at most `bytes_max`.
    pub fn new(bytes_max: u64) -> Frames {
        Frames { cached: Mutex::new(CachedFrames { frames: LruCache::unbounded(), bytes: 0 }), bytes_max }
    }

    /// A cached frame.
    pub fn get(&self, key: &Key) -> Option<Frame> {
        let found = self.cached.lock().frames.get(key)?.clone();
        Some(Frame { range: 0..found.bytes, found })
    }

    /// Reads a frame, and caches it if it is small.
    ///
    /// # Errors
    /// [`ReadError`]: it cannot be read, or not without waiting.
    pub fn keep(&self, key: Key, frame: Frame, wait: Wait) -> Result<Frame, ReadError> {
        let bytes = frame.range.end - frame.range.start;
        if bytes > PIECE_BYTES {
            return Ok(frame);
        }
        let content = Content::Memory(frame.found.read(frame.range, wait)?);
        let etag = HeaderValue::from_static("");
        let found = Arc::new(ServedFile { bytes, etag, lifetime: Lifetime::Immutable, content });
        let mut cached = self.cached.lock();
        if let Some(before) = cached.frames.put(key, found.clone()) {
            cached.bytes -= before.bytes + OVERHEAD_BYTES;
        }
        cached.bytes += bytes + OVERHEAD_BYTES;
        while cached.bytes > self.bytes_max
            && let Some((_, oldest)) = cached.frames.pop_lru()
        {
            cached.bytes -= oldest.bytes + OVERHEAD_BYTES;
        }
        Ok(Frame { range: 0..bytes, found })
    }
}
