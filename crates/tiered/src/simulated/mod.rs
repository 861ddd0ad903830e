//! A bucket in memory, for tests. Its requests can fail, with or without being carried out, or be carried out
//! late; its listings can lag, and its objects can be altered. [`http`] serves it over the S3 protocol.

pub mod http;

use crate::bucket::{Bucket, BucketError, ListedObject, RequestCounts, RequestKind};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// How a request is delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// The request is carried out, and gets its reply.
    Good,
    /// The request never arrives.
    Lost,
    /// The request is carried out, and its reply is lost.
    Unanswered,
    /// The request fails at once, but is carried out at the next [`Simulated::settle`].
    Late,
}

/// Decides how each request is delivered.
pub type DeliveryPlan = Box<dyn FnMut(RequestKind, &str) -> Delivery + Send>;

/// Headers that were written with an object.
type Headers = Vec<(&'static str, String)>;
type Change = (String, Option<Arc<Vec<u8>>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Arc<Vec<u8>>>,
    headers: BTreeMap<String, Headers>,
    /// Objects that listings do not show yet.
    unlisted: BTreeSet<String>,
    lags: bool,
    late: Vec<Change>,
    deliveries: Option<DeliveryPlan>,
    copies_nothing: bool,
    counts: RequestCounts,
}

/// A bucket in memory. Clones share it.
#[derive(Clone, Default)]
pub struct Simulated(Arc<Mutex<State>>);

impl Simulated {
    /// An empty bucket.
    pub fn new() -> Simulated {
        Simulated::default()
    }

    /// From now on `deliveries` decides how each request is delivered.
    pub fn with_deliveries(&self, deliveries: impl FnMut(RequestKind, &str) -> Delivery + Send + 'static) {
        self.0.lock().deliveries = Some(Box::new(deliveries));
    }

    /// From now on every request is delivered well.
    pub fn without_fates(&self) {
        self.0.lock().deliveries = None;
    }

    /// From now on the bucket copies nothing, as some stores do.
    pub fn forget_copies(&self) {
        self.0.lock().copies_nothing = true;
    }

    /// Sets whether listings omit objects that are written from now on. All earlier objects become visible.
    pub fn set_lagging(&self, lags: bool) {
        let mut state = self.0.lock();
        state.lags = lags;
        state.unlisted.clear();
    }

    /// From now on listings omit objects that are written.
    pub fn begin_lagging(&self) {
        self.0.lock().lags = true;
    }

    /// Carries out the late requests, in the order in which they were sent.
    pub fn settle(&self) {
        let mut state = self.0.lock();
        for (name, bytes) in std::mem::take(&mut state.late) {
            state.apply(name, bytes);
        }
    }

    /// Names of all objects.
    pub fn names(&self) -> Vec<String> {
        self.0.lock().objects.keys().cloned().collect()
    }

    /// An object's bytes.
    pub fn object(&self, name: &str) -> Option<Vec<u8>> {
        self.0.lock().objects.get(name).map(|bytes| bytes.to_vec())
    }

    /// The headers that were written with an object.
    pub fn headers(&self, name: &str) -> Vec<(&'static str, String)> {
        self.0.lock().headers.get(name).cloned().unwrap_or_default()
    }

    pub(crate) fn set_headers(&self, name: &str, headers: Vec<(&'static str, String)>) {
        self.0.lock().headers.insert(name.to_owned(), headers);
    }

    /// Changes an object without a request; `None` removes it.
    pub fn alter(&self, name: &str, bytes: Option<Vec<u8>>) {
        self.0.lock().apply(name.to_owned(), bytes.map(Arc::new));
    }

    /// A copy of the bucket as it is, without the late requests.
    pub fn snapshot(&self) -> Simulated {
        let objects = self.0.lock().objects.clone();
        Simulated(Arc::new(Mutex::new(State { objects, ..State::default() })))
    }

    fn away(why: &str) -> BucketError {
        BucketError::Away { bucket: "simulated".to_owned(), why: why.to_owned() }
    }

    /// Carries out a request, as far as its delivery allows.
    fn carry_out<T>(
        &self,
        kind: RequestKind,
        name: &str,
        change: Option<Option<&[u8]>>,
        answer: impl FnOnce(&mut State) -> Result<T, BucketError>,
    ) -> Result<T, BucketError> {
        let mut state = self.0.lock();
        match kind {
            RequestKind::Put => state.counts.put += 1,
            RequestKind::Get => state.counts.get += 1,
            RequestKind::Head => state.counts.head += 1,
            RequestKind::List => state.counts.list += 1,
            RequestKind::Delete => state.counts.delete += 1,
        }
        let delivery = state.deliveries.as_mut().map_or(Delivery::Good, |deliveries| deliveries(kind, name));
        let change = change.map(|bytes| (name.to_owned(), bytes.map(|bytes| Arc::new(bytes.to_vec()))));
        match (delivery, change) {
            (Delivery::Lost, _) => return Err(Simulated::away("the request was lost")),
            (Delivery::Late, Some(change)) => {
                state.late.push(change);
                return Err(Simulated::away("it takes too long"));
            }
            (_, Some((name, bytes))) => state.apply(name, bytes),
            (_, None) => {}
        }
        match delivery {
            Delivery::Good => answer(&mut state),
            _ => Err(Simulated::away("the answer was lost")),
        }
    }
}

impl State {
    fn apply(&mut self, name: String, bytes: Option<Arc<Vec<u8>>>) {
        match bytes {
            Some(bytes) => {
                if self.lags && !self.objects.contains_key(&name) {
                    self.unlisted.insert(name.clone());
                }
                self.objects.insert(name, bytes);
            }
            None => drop(self.objects.remove(&name)),
        }
    }

    fn find(&self, name: &str) -> Result<Arc<Vec<u8>>, BucketError> {
        let absent = || BucketError::Absent { object: format!("simulated/{name}") };
        self.objects.get(name).cloned().ok_or_else(absent)
    }
}

impl Bucket for Simulated {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), BucketError> {
        self.carry_out(RequestKind::Put, name, Some(Some(bytes)), |_| Ok(()))
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>, BucketError> {
        self.carry_out(RequestKind::Get, name, None, |state| {
            let bytes = state.find(name)?;
            let range = range.map_or(0..bytes.len(), |range| range.start as usize..range.end as usize);
            let failed = || BucketError::Failed {
                bucket: "simulated".to_owned(),
                action: format!("reading {name}"),
                why: "it is shorter".to_owned(),
            };
            bytes.get(range).map(<[u8]>::to_vec).ok_or_else(failed)
        })
    }

    fn length(&self, name: &str) -> Result<u64, BucketError> {
        self.carry_out(RequestKind::Head, name, None, |state| Ok(state.find(name)?.len() as u64))
    }

    fn list(&self, beginning: &str) -> Result<Vec<ListedObject>, BucketError> {
        self.carry_out(RequestKind::List, beginning, None, |state| {
            let shown = state
                .objects
                .iter()
                .filter(|(name, _)| name.starts_with(beginning) && !state.unlisted.contains(*name));
            Ok(shown
                .map(|(name, bytes)| ListedObject { name: name.clone(), length: bytes.len() as u64 })
                .collect())
        })
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.carry_out(RequestKind::Delete, name, Some(None), |_| Ok(()))
    }

    fn copy(&self, from: &str, range: Range<u64>, to: &str) -> Result<bool, BucketError> {
        let bytes = {
            let state = self.0.lock();
            if state.copies_nothing {
                return Ok(false);
            }
            let bytes = state.find(from)?;
            let found = bytes.get(range.start as usize..range.end as usize).map(<[u8]>::to_vec);
            found.ok_or_else(|| BucketError::Failed {
                bucket: "simulated".to_owned(),
                action: format!("copying {from}"),
                why: "it is shorter".to_owned(),
            })?
        };
        self.carry_out(RequestKind::Put, to, Some(Some(&bytes)), |_| Ok(true))
    }

    fn describe(&self) -> String {
        "simulated".to_owned()
    }

    fn counts(&self) -> RequestCounts {
        self.0.lock().counts
    }
}
