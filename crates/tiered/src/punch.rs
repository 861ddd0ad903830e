//! Removes dead records from a segment without moving the live ones: the store copies what lies between the
//! holes into new objects, and the old objects are removed like those of a removed segment. No bytes travel
//! to or from this machine, except from objects that are too small for the store to copy ranges of. Every
//! record keeps its position, which its tags require.
//!
//! The steps: the owner's note is checked; the copies are made; their lengths are checked; the catalogue
//! lists the segment in its new form, and as condemned in its former one. From then on it is like
//! [removing](crate::sending) a segment: no manifest lists the segment with its holes before everything that
//! makes their contents dispensable is in the bucket.
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

/// How many copies are made at the same time.
const COPIES_AT_ONCE: usize = 4;

/// A segment's entry, if the whole segment is in the bucket.
fn entry_of(state: &State, number: u32) -> Option<&Entry> {
    let entry = state.catalogue.segments.get(&number)?;
    let is_lost = || {
        let objects = entry.objects(&state.catalogue.store);
        objects.iter().any(|(name, _)| state.lost_objects.contains(name))
    };
    (!state.growing.contains_key(&number) && !is_lost()).then_some(entry)
}

/// Whether an attempt to punch holes can succeed.
pub(crate) fn is_possible(inner: &Inner, number: u32) -> bool {
    let state = inner.state.lock();
    state.claim == Claim::Held && !state.copies_nothing && entry_of(&state, number).is_some()
}

/// Makes all copies, several at the same time. Returns `false` if the store does not make them.
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

/// Makes one copy. If the store can be reached but refuses, it is not asked to copy again: live records are
/// moved instead.
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

/// Punches holes into a segment. Returns `false` if the store copies nothing, or the segment is not in the
/// bucket.
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
            // The segment was removed, or is sent again, meanwhile. The next start removes the copies.
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
