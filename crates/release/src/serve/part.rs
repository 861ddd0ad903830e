//! What can be sent: a file, or a block in one.

use super::body::Sent;
use super::files::Found;
use super::names::Lifetime;
use hyper::header::HeaderValue;
use std::ops::Range;
use std::sync::Arc;

/// A part of a file that has a name of its own.
pub struct Part {
    /// Changes when it does.
    pub etag: HeaderValue,
    /// How long it stays as it is.
    pub lifetime: Lifetime,
    found: Arc<Found>,
    range: Range<u64>,
}

impl Part {
    /// All of a file.
    pub fn whole(found: Arc<Found>) -> Part {
        Part { etag: found.etag.clone(), lifetime: found.lifetime, range: 0..found.bytes, found }
    }

    /// What lies at `range` of a file, which must be long enough, and never changes.
    pub fn of(found: Arc<Found>, range: Range<u64>, etag: HeaderValue) -> Part {
        Part { etag, lifetime: Lifetime::Immutable, found, range }
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The bytes at `range`, which must lie within it.
    pub fn sent(&self, range: Range<u64>) -> Sent {
        Sent::part(&self.found, self.range.start + range.start..self.range.start + range.end)
    }
}
