//! Sends parts of a segment while it is being written, if acknowledged data must be in the bucket. Each part
//! has everything written since the last one, so that one request makes the writes of all waiting threads
//! durable. If many bytes wait, several parts are sent at the same time. When the segment is sealed, it
//! [consists](crate::entry) of them.

use crate::bucket::BucketError;
use crate::claim;
use crate::entry::Part;
use crate::names;
use crate::settings::{Settings, TieredError};
use crate::tail::{TAIL_HEADER_BYTES, TailHead};
use crate::tiered::{Claim, Inner, LocalSegment, PartState, State, UnfinishedPart};
use backon::{BlockingRetryable, ConstantBuilder};
use holdfast_log::{Position, SEGMENT_HEADER_BYTES, segment_name};
use std::time::{Duration, Instant};

/// Longest part, in bytes.
const PART_BYTES: u64 = 8 << 20;
/// Most parts of a segment that are sent at the same time.
const UNDER_WAY_MAX: usize = 4;
/// How long an acknowledgement waits if the last request to the bucket failed.
const PATIENCE_AWAY: Duration = Duration::from_secs(1);
/// Longest pause before a failed request is repeated.
const PAUSE: Duration = Duration::from_millis(100);

/// Sends everything that is durable on the local disk and not in the bucket, and makes sure that it is valid
/// there. Callers share requests; while one checks the owner's note, another sends what was written next.
pub(crate) fn confirm(inner: &Inner) -> Result<(), TieredError> {
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
    // In order, because the first part of a segment is begun when the whole segment before it is in the
    // bucket.
    for (number, until) in &targets {
        send_until(inner, *number, *until, deadline)?;
    }
    let _turn = inner.vouching.try_lock_until(deadline).ok_or_else(|| late(inner))?;
    let sent: Vec<(u32, u64)> = {
        let state = inner.state.lock();
        claim::lost(&state.claim)?;
        if targets.iter().all(|(number, until)| state.is_vouched(*number, *until)) {
            return Ok(());
        }
        state.growing.iter().map(|(number, growing)| (*number, growing.tail)).collect()
    };
    // A server that takes over writes the note first and reads the bucket after that. So if the note is still
    // this server's, a later server will find what was sent before.
    patiently(inner, deadline, || claim::look(inner))?;
    let mut state = inner.state.lock();
    for (number, tail) in sent {
        if let Some(growing) = state.growing.get_mut(&number) {
            growing.vouched = tail;
        }
    }
    Ok(())
}

/// Sends parts of a segment, or waits for those that other threads send, until everything before `until` is
/// in the bucket.
///
/// # Errors
/// The error of the bucket, also if the deadline has passed.
pub(crate) fn send_until(
    inner: &Inner,
    number: u32,
    until: u64,
    deadline: Instant,
) -> Result<(), TieredError> {
    loop {
        let range = {
            let mut state = inner.state.lock();
            claim::lost(&state.claim)?;
            match next_part(&mut state, &inner.settings, number, until) {
                Next::Done => return Ok(()),
                Next::Send(from, to) => (from, to),
                Next::Wait => {
                    if inner.arrived.wait_until(&mut state, deadline).timed_out() {
                        drop(state);
                        return Err(late(inner).into());
                    }
                    continue;
                }
            }
        };
        let sent = patiently(inner, deadline, || send_part(inner, number, range));
        {
            let mut state = inner.state.lock();
            match state.growing.get_mut(&number) {
                Some(growing) => growing.end_part(range.0, sent.is_ok()),
                // Meanwhile the whole segment was sent in another way.
                None if sent.is_ok() => {
                    let catalogue = &state.catalogue;
                    let name = names::tail(&catalogue.store, number, catalogue.epoch, range.0);
                    state.old_objects.push(name);
                }
                None => {}
            }
        }
        inner.arrived.notify_all();
        sent?;
    }
}

fn late(inner: &Inner) -> BucketError {
    let others =
        || BucketError::Away { bucket: inner.bucket.describe(), why: "others wait for it".to_owned() };
    inner.state.lock().trouble.clone().unwrap_or_else(others)
}

/// Repeats an attempt while the bucket cannot be reached, until the deadline.
fn patiently(
    inner: &Inner,
    deadline: Instant,
    attempt: impl FnMut() -> Result<(), TieredError>,
) -> Result<(), TieredError> {
    let pauses = ConstantBuilder::new().with_delay(PAUSE.min(inner.settings.every)).without_max_times();
    attempt.retry(pauses).when(|error| error.is_away() && Instant::now() < deadline).call()
}

/// The next step of sending a segment up to an offset.
enum Next {
    Done,
    /// Send the part from the first offset to the second.
    Send(u64, u64),
    /// Other threads are sending what is needed.
    Wait,
}

fn next_part(state: &mut State, settings: &Settings, number: u32, until: u64) -> Next {
    let Some(growing) = state.growing.get_mut(&number) else { return Next::Done };
    if growing.tail >= until {
        return Next::Done;
    }
    if let Some(failed) = growing.begun.iter_mut().find(|part| part.state == PartState::Failed) {
        failed.state = PartState::UnderWay;
        return Next::Send(failed.from, failed.to);
    }
    let from = growing.begun.back().map_or(growing.tail, |part| part.to);
    let under_way = growing.begun.iter().filter(|part| part.state == PartState::UnderWay).count();
    // The part has everything that is synced by now, including writes of threads that came later.
    let waiting = growing.synced.saturating_sub(from);
    let may_begin = match under_way {
        0 => waiting > 0,
        UNDER_WAY_MAX.. => false,
        // While parts are being sent, small writes are gathered; the more parts are being sent, the more is
        // gathered.
        under_way => waiting >= (settings.part_bytes_min << under_way).min(PART_BYTES),
    };
    if !may_begin || from >= until {
        return Next::Wait;
    }
    let to = from + waiting.min(PART_BYTES);
    growing.begun.push_back(UnfinishedPart { from, to, state: PartState::UnderWay });
    Next::Send(from, to)
}

fn send_part(inner: &Inner, number: u32, (from, to): (u64, u64)) -> Result<(), TieredError> {
    if inner.state.lock().claim == Claim::Pending {
        claim::take(inner)?;
    }
    // Without a manifest, a server that takes over would not find the part.
    crate::sending::ensure_manifest(inner)?;
    let (file, name, head) = {
        let state = inner.state.lock();
        claim::lost(&state.claim)?;
        let Some(file) = state.files.get(&number).cloned() else { return Ok(()) };
        let catalogue = &state.catalogue;
        let name = names::tail(&catalogue.store, number, catalogue.epoch, from);
        let (previous, acknowledged) = (state.before(number), state.acknowledged(number));
        (file, name, TailHead { segment: number, offset: from, previous, acknowledged })
    };
    // A repeated part may name a later acknowledged position. An earlier copy that arrives late names an
    // earlier one, which is also true.
    let object = object_of(&*file, &head, to - from)?;
    Ok(inner.note(inner.bucket.put(&name, &object))?)
}

/// The object of a part of `length` bytes.
pub(crate) fn object_of(
    file: &dyn holdfast_log::StorageFile,
    head: &TailHead,
    length: u64,
) -> Result<Vec<u8>, TieredError> {
    let mut object = vec![0; TAIL_HEADER_BYTES + length as usize];
    let local = segment_name(head.segment);
    let count = file.read_at(head.offset, &mut object[TAIL_HEADER_BYTES..]);
    if count.map_err(TieredError::io("reading", &local))? as u64 != length {
        let error = std::io::Error::other("it is shorter than what was written to it");
        return Err(TieredError::io("reading", &local)(error));
    }
    head.write(&mut object);
    Ok(object)
}

impl LocalSegment {
    /// Notes that a part has arrived or failed.
    fn end_part(&mut self, from: u64, is_there: bool) {
        if let Some(part) = self.begun.iter_mut().find(|part| part.from == from) {
            part.state = if is_there { PartState::Arrived } else { PartState::Failed };
        }
        while let Some(part) = self.begun.front().filter(|part| part.state == PartState::Arrived) {
            self.parts.push(Part { length: (part.to - part.from) as u32, is_joined: false });
            self.tail = part.to;
            self.begun.pop_front();
        }
    }
}

impl State {
    /// Segments with bytes that are durable on the local disk but may not be validly in the bucket, each with
    /// the offset up to which they are durable.
    fn not_vouched(&self) -> Vec<(u32, u64)> {
        let growing = self.growing.iter().map(|(number, growing)| (*number, growing.synced));
        let has_records = growing.filter(|(_, synced)| *synced > SEGMENT_HEADER_BYTES);
        has_records.filter(|(number, synced)| !self.is_vouched(*number, *synced)).collect()
    }

    /// Whether a server that takes over finds a segment up to this offset. A segment without a local record
    /// is in the bucket as a whole.
    fn is_vouched(&self, number: u32, until: u64) -> bool {
        self.growing.get(&number).is_none_or(|growing| growing.vouched >= until)
    }

    /// The position up to which the log was acknowledged, for a part of this segment. It may be too early,
    /// but never too late.
    fn acknowledged(&self, number: u32) -> Position {
        let growing = self.growing.range(..=number).rev().find(|(_, growing)| growing.vouched > 0);
        let growing = growing.map(|(number, growing)| (*number, growing.vouched));
        // A listed segment that is still in `growing` may not be valid yet.
        let listed = self.catalogue.segments.range(..number).rev();
        let mut listed = listed.filter(|(number, _)| !self.growing.contains_key(number));
        let listed = listed.next().map(|(number, entry)| (*number, entry.length));
        let (segment, offset) = growing.max(listed).unwrap_or_default();
        Position { segment, offset: u32::try_from(offset).unwrap_or(u32::MAX) }
    }

    /// The last segment before `number` that has records, and its length. (A segment without records, which
    /// was begun when power failed, is never in the bucket.)
    fn before(&self, number: u32) -> (u32, u64) {
        let mut growing = self.growing.range(..number).rev();
        let growing = growing.find(|(_, growing)| growing.written > SEGMENT_HEADER_BYTES);
        let growing = growing.map(|(number, growing)| (*number, growing.written));
        let listed = self.catalogue.segments.range(..number).next_back();
        let listed = listed.map(|(number, entry)| (*number, entry.length));
        let condemned = self.catalogue.condemned.iter().filter(|one| one.unlisted_s.is_none());
        let condemned =
            condemned.map(|one| (one.entry.number, one.entry.length)).filter(|one| one.0 < number).max();
        growing.max(listed).max(condemned).unwrap_or_default()
    }
}
