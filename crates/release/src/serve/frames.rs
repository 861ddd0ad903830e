//! Frames of small blocks, in memory. What a directory's look-ups need is asked for again and again, and lies all over
//! the packs.

use super::files::{Content, Found, PIECE_BYTES, Trouble, Wait};
use super::names::Lifetime;
use crate::index::Key;
use hyper::header::HeaderValue;
use lru::LruCache;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// What one costs besides its bytes.
const OVERHEAD_BYTES: u64 = 192;

/// Where a frame lies.
#[derive(Clone)]
pub struct Frame {
    /// A pack, or a piece of one in memory.
    pub found: Arc<Found>,
    /// Where in it.
    pub range: Range<u64>,
}

/// Frames that were asked for lately, by what they are of.
pub struct Frames {
    kept: Mutex<Kept>,
    bytes_max: u64,
}

struct Kept {
    frames: LruCache<Key, Arc<Found>>,
    bytes: u64,
}

impl Frames {
    /// Keeps at most so much.
    pub fn new(bytes_max: u64) -> Frames {
        Frames { kept: Mutex::new(Kept { frames: LruCache::unbounded(), bytes: 0 }), bytes_max }
    }

    /// A frame that is kept.
    pub fn get(&self, key: &Key) -> Option<Frame> {
        let found = self.kept.lock().frames.get(key)?.clone();
        Some(Frame { range: 0..found.bytes, found })
    }

    /// Reads and keeps a frame, if it is a small one.
    ///
    /// # Errors
    /// [`Trouble`]: it cannot be read, or not at once.
    pub fn keep(&self, key: Key, frame: Frame, wait: Wait) -> Result<Frame, Trouble> {
        let bytes = frame.range.end - frame.range.start;
        if bytes > PIECE_BYTES {
            return Ok(frame);
        }
        let content = Content::Memory(frame.found.read(frame.range, wait)?);
        let etag = HeaderValue::from_static("");
        let found = Arc::new(Found { bytes, etag, lifetime: Lifetime::Immutable, content });
        let mut kept = self.kept.lock();
        if let Some(before) = kept.frames.put(key, found.clone()) {
            kept.bytes -= before.bytes + OVERHEAD_BYTES;
        }
        kept.bytes += bytes + OVERHEAD_BYTES;
        while kept.bytes > self.bytes_max
            && let Some((_, oldest)) = kept.frames.pop_lru()
        {
            kept.bytes -= oldest.bytes + OVERHEAD_BYTES;
        }
        Ok(Frame { range: 0..bytes, found })
    }
}
