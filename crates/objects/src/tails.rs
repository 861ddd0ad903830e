//! Parts of a segment that is not sealed, for who promises that what was acknowledged is in the bucket: each has what was
//! written since the last, so that one request makes everybody's writes durable who waits at that moment.
//!
//! ```text
//! 0 magic "HFTAIL01" | 8 segment u32 | 12 previous segment u32 | 16 offset u64 | 24 previous segment's length u64
//! 32 SHA-256 of the bytes [32] | 64 the bytes
//! ```
//!
//! Numbers are little-endian. The first part of a segment begins at offset 0, each other where the last one ended, so a
//! part that is missing is noticed, and the next one can be asked for by name. A part names the segment before its own and
//! that one's length: where its last part is missing, that is noticed too. When the sealed segment is in the bucket, its
//! parts go.

use crate::bucket::BucketError;
use crate::claim;
use crate::names;
use crate::settings::OpenObjectsError;
use crate::tiered::{Claim, Inner, State};
use holdfast_log::{SEGMENT_HEADER_BYTES, segment_name};
use sha2::{Digest as _, Sha256};
use std::time::{Duration, Instant};

const MAGIC: &[u8; 8] = b"HFTAIL01";
const HEADER_BYTES: usize = 64;
/// Longest part.
const PART_BYTES: u64 = 8 << 20;
/// How long an acknowledgement waits once the bucket has been away.
const PATIENCE_AWAY: Duration = Duration::from_secs(1);

/// A part, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tail {
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    /// The segment before this one, and its length; 0: there is none.
    pub(crate) previous: (u32, u64),
    pub(crate) bytes: Vec<u8>,
}

impl Tail {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.bytes.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.segment.to_le_bytes());
        out.extend_from_slice(&self.previous.0.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.previous.1.to_le_bytes());
        out.extend_from_slice(&Sha256::digest(&self.bytes));
        out.extend_from_slice(&self.bytes);
        out
    }

    pub(crate) fn of_bytes(bytes: &[u8]) -> Option<Tail> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        if &header[..8] != MAGIC || Sha256::digest(rest).as_slice() != &header[32..] {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        Some(Tail {
            segment: word(8),
            offset: long(16),
            previous: (word(12), long(24)),
            bytes: rest.to_vec(),
        })
    }
}

/// Sends what is on the local disk for good and not in the bucket, and makes sure that it counts. Callers share requests; and
/// while one looks at the owner's note, another sends what came next.
pub(crate) fn confirm(inner: &Inner) -> Result<(), OpenObjectsError> {
    let (targets, trouble) = {
        let state = inner.state.lock();
        claim::lost(&state.claim)?;
        (state.not_vouched(), state.trouble.clone())
    };
    if targets.is_empty() {
        return Ok(());
    }
    let patience = match trouble {
        None => inner.settings.patience,
        Some(_) => inner.settings.patience.min(PATIENCE_AWAY),
    };
    let deadline = Instant::now() + patience;
    let late = || {
        let others =
            || BucketError::Away { bucket: inner.bucket.describe(), why: "others wait for it".to_owned() };
        inner.state.lock().trouble.clone().unwrap_or_else(others)
    };
    {
        let _turn = inner.tails.try_lock_until(deadline).ok_or_else(late)?;
        for (number, until) in &targets {
            while let Some(range) = next_part(inner, *number, *until) {
                patiently(deadline, || send_part(inner, *number, range))?;
            }
        }
    }
    let _turn = inner.vouching.try_lock_until(deadline).ok_or_else(late)?;
    let sent: Vec<(u32, u64)> = {
        let state = inner.state.lock();
        claim::lost(&state.claim)?;
        if targets.iter().all(|(number, until)| state.is_vouched(*number, *until)) {
            return Ok(());
        }
        state.growing.iter().map(|(number, growing)| (*number, growing.tail)).collect()
    };
    // Whoever takes the store over writes the note first and looks at what is there after that. So if the note is still
    // ours, they will find what was sent before.
    patiently(deadline, || claim::look(inner))?;
    let mut state = inner.state.lock();
    for (number, tail) in sent {
        if let Some(growing) = state.growing.get_mut(&number) {
            growing.vouched = tail;
        }
    }
    Ok(())
}

/// Tries again while the bucket is away, until it is too late.
fn patiently(
    deadline: Instant,
    mut attempt: impl FnMut() -> Result<(), OpenObjectsError>,
) -> Result<(), OpenObjectsError> {
    while let Err(error) = attempt() {
        if !error.is_away() || Instant::now() >= deadline {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The next part of a segment that is not in the bucket: from, to.
fn next_part(inner: &Inner, number: u32, until: u64) -> Option<(u64, u64)> {
    let mut state = inner.state.lock();
    let growing = state.growing.get_mut(&number)?;
    if growing.tail >= until {
        return None;
    }
    // All that is synced by now, also for those who came later.
    let end = growing.synced.min(growing.tail + PART_BYTES);
    let end = *growing.tail_begun.get_or_insert(end);
    Some((growing.tail, end))
}

fn send_part(inner: &Inner, number: u32, (from, to): (u64, u64)) -> Result<(), OpenObjectsError> {
    if inner.state.lock().claim == Claim::Pending {
        claim::take(inner)?;
    }
    // Without one nobody would find the tail.
    crate::sending::ensure_manifest(inner)?;
    let (file, name, previous) = {
        let state = inner.state.lock();
        claim::lost(&state.claim)?;
        let Some(file) = state.files.get(&number).cloned() else { return Ok(()) };
        let catalogue = &state.catalogue;
        (file, names::tail(&catalogue.store, number, catalogue.epoch, from), state.before(number))
    };
    let mut bytes = vec![0; (to - from) as usize];
    let local = segment_name(number);
    let count = file.read_at(from, &mut bytes).map_err(OpenObjectsError::io("reading", &local))?;
    if count != bytes.len() {
        let error = std::io::Error::other("it is shorter than what was written to it");
        return Err(OpenObjectsError::io("reading", &local)(error));
    }
    let tail = Tail { segment: number, offset: from, previous, bytes };
    inner.note(inner.bucket.put(&name, &tail.to_bytes()))?;
    let mut state = inner.state.lock();
    match state.growing.get_mut(&number) {
        Some(growing) => {
            (growing.tail, growing.tail_begun) = (to, None);
            growing.tails.push(name);
        }
        // Meanwhile the whole segment went.
        None => state.old_objects.push(name),
    }
    Ok(())
}

impl State {
    /// What is on the local disk for good and may not be in the bucket, or not count there: segments, up to where.
    fn not_vouched(&self) -> Vec<(u32, u64)> {
        let growing = self.growing.iter().map(|(number, growing)| (*number, growing.synced));
        let has_records = growing.filter(|(_, synced)| *synced > SEGMENT_HEADER_BYTES);
        has_records.filter(|(number, synced)| !self.is_vouched(*number, *synced)).collect()
    }

    /// Whether whoever takes the store over finds a segment up to there. One that does not grow any more is in the bucket as
    /// a whole.
    fn is_vouched(&self, number: u32, until: u64) -> bool {
        self.growing.get(&number).is_none_or(|growing| growing.vouched >= until)
    }

    /// The segment before another, and its length.
    fn before(&self, number: u32) -> (u32, u64) {
        let growing =
            self.growing.range(..number).next_back().map(|(number, growing)| (*number, growing.written));
        let listed = self.catalogue.segments.range(..number).next_back();
        let listed = listed.map(|(number, entry)| (*number, entry.length));
        let condemned = self.catalogue.condemned.iter().filter(|one| one.unlisted_s.is_none());
        let condemned =
            condemned.map(|one| (one.entry.number, one.entry.length)).filter(|one| one.0 < number).max();
        growing.max(listed).max(condemned).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a part comes back as it was sent, and no altered or shortened one does.
    #[test]
    fn altered_parts_are_refused() {
        let tail = Tail { segment: 3, offset: 64, previous: (2, 900), bytes: vec![5; 20] };
        let bytes = tail.to_bytes();
        assert_eq!(Tail::of_bytes(&bytes), Some(tail));
        for at in (0..8).chain(32..bytes.len()) {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert_eq!(Tail::of_bytes(&altered), None);
        }
        assert_eq!(Tail::of_bytes(&bytes[..70]), None);
        assert_eq!(Tail::of_bytes(&[]), None);
    }
}
