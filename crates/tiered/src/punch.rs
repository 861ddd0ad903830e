//! Giving back what is dead in a segment where it is: the store copies what lies between the holes into objects of their own,
//! and the old objects go like those of a removed segment. Nothing of it comes here or is sent from here, but for
//! what lives in objects that are too small for the store to copy out of; and every record keeps its place, which its tags
//! hold it to.
//!
//! The order: whose the prefix is; the copies; their lengths; the catalogue, which has the segment as it is now, and condemned
//! as it was. From there it goes as with [removed](crate::sending) ones: no manifest lists it with its holes before all is in
//! the bucket that makes those dispensable.

use crate::bucket::BucketError;
use crate::catalogue::CondemnedSegment;
use crate::claim;
use crate::entry::{Entry, PieceCopy};
use crate::settings::TieredError;
use crate::tiered::{Claim, Inner, State};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Copies under way at once.
const COPIES_AT_ONCE: usize = 4;

/// A segment's entry, if it is in the bucket whole.
fn entry_of(state: &State, number: u32) -> Option<&Entry> {
    let entry = state.catalogue.segments.get(&number)?;
    let is_lost = || {
        let objects = entry.objects(&state.catalogue.store);
        objects.iter().any(|(name, _)| state.lost_objects.contains(name))
    };
    (!state.growing.contains_key(&number) && !is_lost()).then_some(entry)
}

/// Whether it is worth trying.
pub(crate) fn is_possible(inner: &Inner, number: u32) -> bool {
    let state = inner.state.lock();
    state.claim == Claim::Held && !state.copies_nothing && entry_of(&state, number).is_some()
}

/// Makes all copies, several at once. `false`: the store does not.
fn make_all(inner: &Inner, copies: &[PieceCopy]) -> Result<bool, TieredError> {
    let next = AtomicUsize::new(0);
    let outcome: Mutex<Result<bool, BucketError>> = Mutex::new(Ok(true));
    std::thread::scope(|scope| {
        for _ in 0..COPIES_AT_ONCE.min(copies.len()) {
            scope.spawn(|| {
                while matches!(*outcome.lock(), Ok(true)) {
                    let Some(copy) = copies.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    match make(inner, copy) {
                        Ok(true) => {}
                        other => *outcome.lock() = other,
                    }
                }
            });
        }
    });
    Ok(outcome.into_inner()?)
}

/// Makes one copy. If the store can be reached but refuses, it is not requested again: the live records are moved
/// instead.
fn make(inner: &Inner, copy: &PieceCopy) -> Result<bool, BucketError> {
    let bucket = &*inner.bucket;
    if copy.length < inner.settings.copied_bytes_min {
        let bytes = inner.note(bucket.get(&copy.from, Some(copy.range.clone())))?;
        inner.note(bucket.put(&copy.to, &bytes))?;
    } else {
        let refused = match bucket.copy(&copy.from, copy.range.clone(), &copy.to) {
            Ok(true) => None,
            Ok(false) => Some("it does not know how".to_owned()),
            Err(error @ BucketError::Failed { .. }) => Some(error.to_string()),
            Err(error) => return inner.note(Err(error)),
        };
        if let Some(why) = refused {
            tracing::warn!(bucket = bucket.describe(), why, "it copies nothing; what lives is moved");
            inner.state.lock().copies_nothing = true;
            return Ok(false);
        }
    }
    let (found, wanted) = (inner.note(bucket.length(&copy.to))?, copy.range.end - copy.range.start);
    match found == wanted {
        true => Ok(true),
        false => Err(BucketError::Failed {
            bucket: bucket.describe(),
            action: format!("copying a part of {} to {}", copy.from, copy.to),
            why: format!("the copy has {found} bytes, and {wanted} were to be copied"),
        }),
    }
}

/// Punches holes into a segment. `false`: the store copies nothing, or the segment is not in the bucket.
pub(crate) fn punch(inner: &Inner, number: u32, holes: &[Range<u64>]) -> Result<bool, TieredError> {
    claim::look(inner)?;
    let (store, epoch, entry) = {
        let state = inner.state.lock();
        match entry_of(&state, number) {
            Some(entry) if !state.copies_nothing => {
                (state.catalogue.store, state.catalogue.epoch, entry.clone())
            }
            _ => return Ok(false),
        }
    };
    let Some((punched, copies)) = entry.punched(&store, epoch, holes) else { return Ok(false) };
    if punched.holes() == entry.holes() {
        return Ok(true);
    }
    if !make_all(inner, &copies)? {
        return Ok(false);
    }
    let freed = entry.stored_bytes() - punched.stored_bytes();
    let description = punched.description(&store);
    {
        let mut guard = inner.state.lock();
        let state = &mut *guard;
        if entry_of(state, number) != Some(&entry) {
            // Removed, or sent again, meanwhile; the next start removes the copies.
            return Ok(false);
        }
        let after = state.greatest();
        state.catalogue.segments.insert(number, punched);
        state.catalogue.condemned.push(CondemnedSegment { entry, after, unlisted_s: None });
        state.is_dirty = true;
    }
    inner.save().map_err(TieredError::io("writing", "the catalogue of objects"))?;
    inner.wake.notify_all();
    tracing::debug!(object = description, freed, copies = copies.len(), "holes were punched into a segment");
    Ok(true)
}
