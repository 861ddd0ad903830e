//! The end of the log of a store that is taken over: parts of segments that no manifest lists.
//!
//! The server that wrote them sent the first part of a segment when the whole segment before it was in the
//! bucket, and may have sent several parts of one segment at the same time. So the log ends where the next
//! part is missing, and parts after that were never acknowledged. If one was, some part says so, and the
//! take-over is refused. Suppose that another server took over the store in between and was replaced in turn.
//! It may have found fewer parts of a segment than have arrived since; then the parts that it wrote itself
//! say how many, and those are valid.

use crate::adopt::{ADOPTED, AHEAD, EPOCHS_TRIED};
use crate::bucket::Bucket;
use crate::catalogue::Catalogue;
use crate::names::{self, StoreId};
use crate::settings::TieredError;
use crate::tail::Tail;
use holdfast_log::{Position, SEGMENT_HEADER_BYTES, Storage, segment_name};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many parts are requested at the same time.
const FETCHED_AT_ONCE: usize = 16;

/// The parts of a segment that one server wrote, from its beginning on, without a gap.
struct Chain {
    epoch: u64,
    tails: Vec<Tail>,
}

impl Chain {
    fn length(&self) -> u64 {
        self.tails.iter().map(|tail| tail.bytes.len() as u64).sum()
    }

    /// The segment's header, which is unique to the segment.
    fn header(&self) -> &[u8] {
        let first = self.tails.first().map_or(&[][..], |tail| &tail.bytes);
        &first[..first.len().min(SEGMENT_HEADER_BYTES as usize)]
    }

    fn previous(&self) -> Position {
        let (segment, length) = self.tails.first().map_or((0, 0), |tail| tail.head.previous);
        Position { segment, offset: u32::try_from(length).unwrap_or(u32::MAX) }
    }
}

/// The end of the log, as far as it has been found.
struct End {
    at: Position,
    /// Whether the segment that ends there was put together here from parts.
    is_of_parts: bool,
}

impl End {
    /// Whether a chain continues where the log ends, or at an earlier position that its writer took for the
    /// log's end.
    fn leads_to(&self, chain: &Chain) -> bool {
        chain.previous() == self.at || self.is_cut_by(chain) || self.is_empty_until(chain)
    }

    fn is_cut_by(&self, chain: &Chain) -> bool {
        let previous = chain.previous();
        self.is_of_parts
            && previous.segment == self.at.segment
            && (SEGMENT_HEADER_BYTES..u64::from(self.at.offset)).contains(&previous.offset.into())
    }

    /// Whether the segment before a chain had no records and so was never in the bucket, because it was begun
    /// when power failed. Earlier versions named such segments as predecessors. (Parts are sent in the order
    /// of segments, and each says what was acknowledged, so nothing valid is missing in between.)
    fn is_empty_until(&self, chain: &Chain) -> bool {
        let previous = chain.previous();
        previous.segment > self.at.segment && u64::from(previous.offset) == SEGMENT_HEADER_BYTES
    }
}

/// Restores segments that were not sealed as local files.
pub(crate) fn adopt(
    local: &dyn Storage,
    bucket: &dyn Bucket,
    catalogue: &Catalogue,
    names: &BTreeSet<&str>,
) -> Result<(), TieredError> {
    let store = &catalogue.store;
    let last = catalogue.segments.values().next_back();
    let at = last.map(|entry| Position {
        segment: entry.number,
        offset: u32::try_from(entry.length).unwrap_or(u32::MAX),
    });
    let mut end = End { at: at.unwrap_or_default(), is_of_parts: false };
    let mut listed: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for (segment, epoch, offset) in names.iter().filter_map(|name| names::tail_of(store, name)) {
        listed.entry(segment).or_default().push((epoch, offset));
    }
    let unlisted = tail_epochs(store, catalogue.epoch, names);
    let (mut segment, mut misses) = (end.at.segment, 0);
    while let Some(next) = segment.checked_add(1) {
        segment = match listed.range(next..).next() {
            _ if misses < AHEAD => next,
            // No part was found under the next few numbers; parts in the listing are read whatever their
            // number.
            Some((listed, _)) => *listed,
            None => break,
        };
        let here = listed.get(&segment).map_or(&[][..], Vec::as_slice);
        let mut epochs = unlisted.clone();
        epochs.extend(here.iter().map(|(epoch, _)| *epoch));
        let fetched = fetch(bucket, store, segment, here);
        let mut chains = Vec::new();
        for epoch in epochs.into_iter().rev() {
            let tails = chain(bucket, store, (segment, epoch), &fetched)?;
            chains.extend((!tails.is_empty()).then_some(Chain { epoch, tails }));
        }
        let mut best: Option<&Chain> = None;
        for chain in chains.iter().filter(|chain| end.leads_to(chain)) {
            // Of several copies of one segment, the longest is valid. Of two segments with the same number,
            // that of the later server is.
            let is_better = |best: &Chain| {
                best.header() == chain.header()
                    && best.previous() == chain.previous()
                    && chain.length() > best.length()
            };
            if best.is_none_or(is_better) {
                best = Some(chain);
            }
        }
        match best {
            Some(best) => {
                if end.is_cut_by(best) {
                    cut(local, best.previous())?;
                }
                bring_back(local, segment, best)?;
                let offset = u32::try_from(best.length()).unwrap_or(u32::MAX);
                end = End { at: Position { segment, offset }, is_of_parts: true };
                misses = 0;
            }
            None => misses += 1,
        }
        let length = best.map_or(0, Chain::length);
        check(bucket, store, &end, (segment, length), &chains, here)?;
    }
    local.sync_dir(ADOPTED).map_err(TieredError::io("syncing", &local.describe()))
}

fn cut(local: &dyn Storage, at: Position) -> Result<(), TieredError> {
    let name = segment_name(at.segment);
    let cut = |file: std::sync::Arc<dyn holdfast_log::StorageFile>| {
        file.truncate(at.offset.into())?;
        file.sync(ADOPTED)
    };
    local.open(&name).and_then(cut).map_err(TieredError::io("truncating", &name))
}

fn bring_back(local: &dyn Storage, segment: u32, chain: &Chain) -> Result<(), TieredError> {
    let name = segment_name(segment);
    let file = local.create(&name).map_err(TieredError::io("creating", &name))?;
    for tail in &chain.tails {
        file.write_at(tail.head.offset, &tail.bytes).map_err(TieredError::io("writing", &name))?;
    }
    file.sync(ADOPTED).map_err(TieredError::io("syncing", &name))
}

/// Checks that everything that was acknowledged exists, by the acknowledged positions in the parts of a
/// segment. `length`: how many bytes of the segment are valid.
fn check(
    bucket: &dyn Bucket,
    store: &StoreId,
    end: &End,
    (segment, length): (u32, u64),
    chains: &[Chain],
    listed: &[(u64, u64)],
) -> Result<(), TieredError> {
    let missing = |from: Position| Err(gap(bucket, store, from));
    for tail in chains.iter().flat_map(|chain| &chain.tails) {
        if tail.head.acknowledged > end.at {
            return missing(end.at);
        }
    }
    for &(epoch, offset) in listed {
        let chain = chains.iter().find(|chain| chain.epoch == epoch).map_or(0, Chain::length);
        if offset < chain.max(length) {
            continue;
        }
        let Some(tail) = part(bucket, store, (segment, epoch, offset), &Fetched::new())? else { continue };
        let acknowledged = tail.head.acknowledged;
        if acknowledged > end.at {
            return missing(end.at);
        }
        if acknowledged.segment == segment && u64::from(acknowledged.offset) > chain {
            let offset = u32::try_from(chain.max(length)).unwrap_or(u32::MAX);
            return missing(Position { segment, offset });
        }
    }
    Ok(())
}

/// Epochs whose tails may be valid although no listing shows them. A tail is removed when its segment is in
/// the bucket, which is soon after the next start.
fn tail_epochs(store: &StoreId, epoch: u64, names: &BTreeSet<&str>) -> BTreeSet<u64> {
    let tails = names.iter().filter_map(|name| names::tail_of(store, name)).map(|(_, epoch, _)| epoch);
    let manifests = names.iter().filter_map(|name| names::manifest_of(store, name)).map(|(epoch, _)| epoch);
    let newest = tails.chain(manifests).max().unwrap_or(epoch).min(epoch);
    (newest.saturating_sub(EPOCHS_TRIED)..epoch).collect()
}

fn gap(bucket: &dyn Bucket, store: &StoreId, at: Position) -> TieredError {
    let Position { segment, offset } = at;
    TieredError::Damaged {
        what: format!("the end of the store in {}", bucket.describe()),
        why: format!(
            "what follows offset {offset} of segment {segment} is not there, and later parts are that were written when it was \
             acknowledged. Put the missing objects {}... back; or remove all later ones, which gives up what they have",
            names::tail(store, segment.max(1), 0, offset.into())
                .trim_end_matches(|c: char| c.is_ascii_digit() || c == '-')
        ),
    }
}

/// Objects with their names.
type Fetched = BTreeMap<String, Vec<u8>>;

/// Requests the listed parts of a segment, several at the same time, because there may be thousands of small
/// ones. A part that does not arrive is requested again when it is needed.
fn fetch(bucket: &dyn Bucket, store: &StoreId, segment: u32, listed: &[(u64, u64)]) -> Fetched {
    let next = AtomicUsize::new(0);
    let fetched = Mutex::new(BTreeMap::new());
    let work = || {
        while let Some((epoch, offset)) = listed.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = names::tail(store, segment, *epoch, *offset);
            let Ok(bytes) = bucket.get(&name, None) else { return };
            fetched.lock().insert(name, bytes);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..listed.len().min(FETCHED_AT_ONCE) {
            scope.spawn(work);
        }
    });
    fetched.into_inner()
}

/// One part; `None` if it does not exist.
fn part(
    bucket: &dyn Bucket,
    store: &StoreId,
    (segment, epoch, offset): (u32, u64, u64),
    fetched: &Fetched,
) -> Result<Option<Tail>, TieredError> {
    let name = names::tail(store, segment, epoch, offset);
    let bytes = match fetched.get(&name) {
        Some(bytes) => bytes.clone(),
        None => match bucket.get(&name, None) {
            Ok(bytes) => bytes,
            Err(error) if error.is_absent() => return Ok(None),
            Err(error) => return Err(error.into()),
        },
    };
    let is_its = |tail: &Tail| (tail.head.segment, tail.head.offset) == (segment, offset);
    let tail = Tail::of_bytes(bytes).filter(is_its).ok_or_else(|| TieredError::Damaged {
        what: format!("the object {}/{name}", bucket.describe()),
        why: "it is not what was written. Put an earlier version of it back; or remove it and all later ones, which gives \
              up what they have"
            .to_owned(),
    })?;
    Ok(Some(tail))
}

/// All parts of a segment that one server wrote. Each is requested by the offset at which the one before it
/// ended.
fn chain(
    bucket: &dyn Bucket,
    store: &StoreId,
    (segment, epoch): (u32, u64),
    fetched: &Fetched,
) -> Result<Vec<Tail>, TieredError> {
    let (mut chain, mut offset) = (Vec::new(), 0);
    while let Some(tail) = part(bucket, store, (segment, epoch, offset), fetched)? {
        offset += tail.bytes.len() as u64;
        chain.push(tail);
    }
    Ok(chain)
}
