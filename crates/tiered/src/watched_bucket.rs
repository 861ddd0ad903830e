//! A bucket whose requests are watched, so that a request without a reply is reported before it has failed.

use crate::bucket::{Bucket, BucketError, ListedObject, RequestCounts};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A request is late after this time...
const LATE: Duration = Duration::from_secs(10);
/// ... and the time that its bytes take at this pace, in bytes a second.
const PACE_BYTES: u64 = 256 << 10;

/// Passes every request on to a bucket, and records which have had no reply yet.
pub(crate) struct WatchedBucket {
    bucket: Arc<dyn Bucket>,
    requests: Mutex<Requests>,
}

#[derive(Default)]
struct Requests {
    next: u64,
    under_way: BTreeMap<u64, Request>,
}

struct Request {
    what: String,
    begun: Instant,
    late_after: Duration,
}

impl WatchedBucket {
    pub(crate) fn new(bucket: Arc<dyn Bucket>) -> WatchedBucket {
        WatchedBucket { bucket, requests: Mutex::default() }
    }

    /// A description of the requests that have had no reply for too long.
    pub(crate) fn late(&self) -> Option<String> {
        let requests = self.requests.lock();
        let oldest =
            requests.under_way.values().filter(|request| request.begun.elapsed() > request.late_after);
        let oldest = oldest.min_by_key(|request| request.begun)?;
        let (bucket, what, waited) = (self.bucket.describe(), &oldest.what, oldest.begun.elapsed().as_secs());
        Some(format!("{bucket} does not answer: {what} has waited for {waited} s"))
    }

    fn watch<T>(&self, what: String, bytes: u64, ask: impl FnOnce(&dyn Bucket) -> T) -> T {
        let late_after = LATE + Duration::from_secs(bytes / PACE_BYTES);
        let number = {
            let mut requests = self.requests.lock();
            requests.next += 1;
            let number = requests.next;
            requests.under_way.insert(number, Request { what, begun: Instant::now(), late_after });
            number
        };
        let outcome = ask(&*self.bucket);
        self.requests.lock().under_way.remove(&number);
        outcome
    }
}

impl Bucket for WatchedBucket {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), BucketError> {
        self.watch(format!("writing {name}"), bytes.len() as u64, |bucket| bucket.put(name, bytes))
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>, BucketError> {
        // The length of a whole object is not known in advance; but segments are the longest, and are read in
        // ranges.
        let bytes = range.as_ref().map_or(0, |range| range.end.saturating_sub(range.start));
        self.watch(format!("reading {name}"), bytes, |bucket| bucket.get(name, range))
    }

    fn length(&self, name: &str) -> Result<u64, BucketError> {
        self.watch(format!("asking for the length of {name}"), 0, |bucket| bucket.length(name))
    }

    fn list(&self, beginning: &str) -> Result<Vec<ListedObject>, BucketError> {
        self.watch(format!("listing {beginning}"), 0, |bucket| bucket.list(beginning))
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.watch(format!("removing {name}"), 0, |bucket| bucket.delete(name))
    }

    fn copy(&self, from: &str, range: Range<u64>, to: &str) -> Result<bool, BucketError> {
        let bytes = range.end.saturating_sub(range.start);
        self.watch(format!("copying {from}"), bytes, |bucket| bucket.copy(from, range, to))
    }

    fn abandon_uploads(&self, beginning: &str) -> Result<usize, BucketError> {
        self.watch("looking for uploads that were cut off".to_owned(), 0, |bucket| {
            bucket.abandon_uploads(beginning)
        })
    }

    fn describe(&self) -> String {
        self.bucket.describe()
    }

    fn counts(&self) -> RequestCounts {
        self.bucket.counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::{Delivery, Simulated};
    use std::sync::mpsc::channel;

    /// Proves: a request that has had no reply for too long is reported with its object, while it waits and
    /// no longer.
    #[test]
    fn a_bucket_that_hangs_is_reported() {
        let bucket = Simulated::new();
        let (answer, answered) = channel::<()>();
        bucket.with_deliveries(move |_, _| {
            let _ = answered.recv();
            Delivery::Good
        });
        let watched = WatchedBucket::new(Arc::new(bucket));
        std::thread::scope(|scope| {
            let request = scope.spawn(|| watched.put("ID/owner", b"me"));
            holdfast_testing::eventually("it is under way", || !watched.requests.lock().under_way.is_empty());
            assert_eq!(watched.late(), None);
            for request in watched.requests.lock().under_way.values_mut() {
                request.late_after = Duration::ZERO;
            }
            let said = watched.late().expect("it is late");
            assert!(said.contains("writing ID/owner") && said.contains("simulated"), "{said}");
            drop(answer);
            request.join().expect("no panic").expect("it is written");
        });
        assert_eq!(watched.late(), None);
    }
}
