//! A part of a file that can be sent: the whole file, or a block in it.

use super::files::{Content, PIECE_BYTES, ServedFile};
use super::names::Lifetime;
use crate::pack;
use bytes::Bytes;
use holdfast_crypto::Digest;
use holdfast_http_server::ReplyBody;
use hyper::header::HeaderValue;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A part of a file that has a name of its own.
pub struct FilePart {
    /// A tag that changes when the content does.
    pub etag: HeaderValue,
    /// Whether it can change.
    pub lifetime: Lifetime,
    found: Arc<ServedFile>,
    range: Range<u64>,
}

impl FilePart {
    /// The whole file.
    pub fn whole(found: Arc<ServedFile>) -> FilePart {
        FilePart { etag: found.etag.clone(), lifetime: found.lifetime, range: 0..found.bytes, found }
    }

    /// The bytes at `range` of a file that is long enough and never changes.
    pub fn of(found: Arc<ServedFile>, range: Range<u64>, etag: HeaderValue) -> FilePart {
        FilePart { etag, lifetime: Lifetime::Immutable, found, range }
    }

    /// The block in a frame; `address` is the block's.
    ///
    /// # Errors
    /// The frame contains no block.
    pub fn of_frame(address: &Digest, frame: Bytes) -> io::Result<FilePart> {
        let etag = HeaderValue::try_from(format!("\"{address}\"")).map_err(io::Error::other)?;
        let bytes = frame.len() as u64;
        let lifetime = Lifetime::Immutable;
        let content = Content::Memory(frame);
        let found = Arc::new(ServedFile { bytes, etag: etag.clone(), lifetime, content });
        Ok(FilePart::of(found, (pack::HEADER_BYTES as u64).min(bytes)..bytes, etag))
    }

    /// The length in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// A reply with the bytes at `range`, which must lie within the part.
    pub fn sent(&self, range: Range<u64>) -> ReplyBody {
        let range = self.range.start + range.start..self.range.start + range.end;
        match &self.found.content {
            Content::Memory(bytes) => ReplyBody::bytes(bytes.slice(range.start as usize..range.end as usize)),
            Content::Open(_) => ReplyBody::pieces(self.found.clone(), range, PIECE_BYTES),
        }
    }
}
