//! Mirrors that count the requests to them.

use crate::mirror::{Mirror, MirrorError};
use holdfast_crypto::Digest;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts requests and received bytes.
#[derive(Default)]
pub struct Requests {
    count: AtomicU64,
    bytes: AtomicU64,
}

impl Requests {
    /// The number of requests.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// The number of received bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// A mirror whose requests are counted.
pub struct CountedMirror {
    mirror: Arc<dyn Mirror>,
    requests: Arc<Requests>,
}

impl CountedMirror {
    /// Wraps all of these mirrors, with one common count.
    pub fn all(mirrors: Vec<Arc<dyn Mirror>>) -> (Vec<Arc<dyn Mirror>>, Arc<Requests>) {
        let requests = Arc::new(Requests::default());
        let counted =
            |mirror| Arc::new(CountedMirror { mirror, requests: requests.clone() }) as Arc<dyn Mirror>;
        (mirrors.into_iter().map(counted).collect(), requests.clone())
    }
}

impl Mirror for CountedMirror {
    fn name(&self) -> &str {
        self.mirror.name()
    }

    fn get(&self, file: &str, range: Option<Range<u64>>, bytes_max: u64) -> Result<Vec<u8>, MirrorError> {
        self.requests.count.fetch_add(1, Relaxed);
        let bytes = self.mirror.get(file, range, bytes_max)?;
        self.requests.bytes.fetch_add(bytes.len() as u64, Relaxed);
        Ok(bytes)
    }

    fn objects(&self, addresses: &[Digest]) -> Result<Vec<u8>, MirrorError> {
        self.requests.count.fetch_add(1, Relaxed);
        let bytes = self.mirror.objects(addresses)?;
        self.requests.bytes.fetch_add(bytes.len() as u64, Relaxed);
        Ok(bytes)
    }
}
