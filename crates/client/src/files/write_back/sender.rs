//! Sends edits to the server: in their order, many in one operation, and each exactly once.

use super::journal::NumberRange;
use super::record::{NetChange, Record};
use super::replay::{Outcome, Replay, ReplayKind, Sender};
use super::{ConflictReport, Shared, now_ns};
use crate::backend::{Guard, UploadKind};
use crate::error::FsError;
use crate::files::SalvageReport;
use crate::files::salvage::{self, STEP_BYTES, SalvageRequest};
use crate::files::state::content_roots;
use crate::pauses::Pauses;
use crate::store::WriteTarget;
use crate::tree::{Changes, Edit, View};
use holdfast_content::{Block, Content, Handle, Inode, InodeKind, PrincipalId, file};
use holdfast_crypto::Digest;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::trace_span;

/// Most changes in one operation.
const BATCH_CHANGES: usize = 1000;
/// After so many attempts on data that does not verify, the edits that need it are given up.
const INTEGRITY_ATTEMPTS: u32 = 5;
/// How often the sender checks whether the server is back.
const AWAY_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause between attempts.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Reserves numbers for new files.
pub struct NumberReservation {
    pub principal: PrincipalId,
    pub count: u64,
    /// The numbers that the last run of the plan reserved.
    pub got: Vec<NumberRange>,
}

impl Edit for NumberReservation {
    fn plan(&mut self, changes: &mut dyn Changes) -> Result<(), FsError> {
        self.got.clear();
        for _ in 0..self.count {
            let Handle { principal, number } = changes.allocate(self.principal)?;
            match self.got.last_mut() {
                Some(last) if last.first + last.count == number => last.count += 1,
                _ => self.got.push(NumberRange { principal, first: number, count: 1 }),
            }
        }
        Ok(())
    }
}

/// What became of a batch.
enum SendOutcome {
    /// It is at the server.
    Sent,
    /// It may succeed later.
    Later(FsError),
    /// It can never be sent as it is.
    Never(FsError),
    /// Nothing can be sent any more.
    Ended(FsError),
}

/// Body of the sender's thread: sends batches until write-back stops.
pub fn run(shared: &Arc<Shared>) {
    let mut pauses = Pauses::new(Duration::from_millis(100), PAUSE_MAX);
    // After a batch is refused, its edits are sent one by one, to find the one that cannot be made.
    let mut one_by_one_until = 0;
    let mut integrity_failures = 0;
    let mut earlier = None;
    while let Some(batch) = next_batch(shared, one_by_one_until) {
        if shared.is_server_away() {
            // Edits made meanwhile are sent together with this batch, and many of them cancel out.
            shared.set_server_away(true);
            sleep(shared, AWAY_PAUSE);
            continue;
        }
        let last = batch.last().expect("a batch has edits").number;
        match send(shared, &batch, &mut earlier) {
            SendOutcome::Sent => {
                integrity_failures = 0;
                pauses.reset();
                shared.set_server_away(false);
            }
            // The server may yet deliver good data; if it does not, the other edits must not wait for ever.
            SendOutcome::Later(FsError::Integrity(_))
                if batch.len() > 1 && integrity_failures >= INTEGRITY_ATTEMPTS =>
            {
                shared.local.lock().maybe_sent = 0;
                one_by_one_until = last;
            }
            SendOutcome::Later(error @ FsError::Integrity(_)) if integrity_failures >= INTEGRITY_ATTEMPTS => {
                give_up(shared, &batch, &error);
            }
            SendOutcome::Later(error) => {
                integrity_failures += u32::from(matches!(error, FsError::Integrity(_)));
                if matches!(error, FsError::Unreachable(_)) {
                    shared.set_server_away(true);
                }
                shared.note_trouble(error);
                sleep(shared, pauses.after_failure());
            }
            SendOutcome::Never(_) if batch.len() > 1 => one_by_one_until = last,
            SendOutcome::Never(error) => give_up(shared, &batch, &error),
            SendOutcome::Ended(error) => {
                let records: Vec<_> = shared.local.lock().queue.iter().cloned().collect();
                if let Err(failed) = save(shared, &records, &error.to_string()) {
                    tracing::error!(%failed, "what is not at the server stays in the journal");
                }
                shared.local.lock().ended = Some(error);
                shared.changed.notify_all();
                return;
            }
        }
    }
}

fn sleep(shared: &Shared, pause: Duration) {
    let mut local = shared.local.lock();
    if !local.stopping {
        shared.changed.wait_until(&mut local, Instant::now() + pause);
    }
}

/// Waits for edits, and a while longer for more to go along. `None` when write-back stops.
fn next_batch(shared: &Shared, one_by_one_until: u64) -> Option<Vec<Arc<Record>>> {
    let mut local = shared.local.lock();
    let mut first_seen: Option<(u64, Instant)> = None;
    loop {
        if local.stopping {
            return None;
        }
        let Some(front) = local.queue.front() else {
            shared.changed.wait(&mut local);
            continue;
        };
        // A batch that may already be at the server is sent again unchanged.
        if local.maybe_sent >= front.number {
            let end = local.maybe_sent;
            return Some(local.queue.iter().take_while(|record| record.number <= end).cloned().collect());
        }
        if one_by_one_until >= front.number {
            return Some(vec![front.clone()]);
        }
        let since = match first_seen {
            Some((number, since)) if number == front.number => since,
            _ => first_seen.insert((front.number, Instant::now())).1,
        };
        let due = since + shared.options.gather;
        let is_wanted = local.wanted >= front.number || local.changes >= BATCH_CHANGES;
        if !is_wanted && Instant::now() < due {
            shared.changed.wait_until(&mut local, due);
            continue;
        }
        let mut changes = 0;
        let fits = |record: &&Arc<Record>| {
            changes += record.changes();
            changes <= BATCH_CHANGES
        };
        let mut batch: Vec<Arc<Record>> = local.queue.iter().take_while(fits).cloned().collect();
        if batch.is_empty() {
            batch.push(front.clone());
        }
        return Some(batch);
    }
}

/// Makes a batch at the server. `earlier`: the outcome of an earlier attempt for which no confirmation came.
fn send(shared: &Arc<Shared>, batch: &[Arc<Record>], earlier: &mut Option<(u64, Outcome)>) -> SendOutcome {
    let net = Arc::new(NetChange::of(batch.iter().map(Arc::as_ref)));
    let (first, last) = (batch[0].number, batch[batch.len() - 1].number);
    let _span = trace_span!(target: "operation", "send edits", first, last).entered();
    let _held = match upload(shared, &net) {
        Ok(held) => held,
        Err(error) => return judge(error),
    };
    let placed = shared.local.lock().placed.clone();
    let journal = match shared.journal.sending(last) {
        Ok(()) => shared.journal.id(),
        // A gathering mount can do without the journal. It sends under another number, so that after a
        // restart the journal's note at the server does not count for this batch.
        Err(error) if shared.options.gathers => {
            shared.journal_failed(&error);
            shared.stand_in
        }
        Err(error) => return judge(error),
    };
    {
        let mut local = shared.local.lock();
        local.maybe_sent = last;
        shared.check_fresh(&mut local);
    }
    let (device, user) = shared.inner.me();
    let sender = Sender { device, user, journal, name: shared.options.name.clone() };
    let replay = Arc::new(Mutex::new(Replay::new(net, sender, placed, ReplayKind::Unsent)));
    let view = match shared.inner.modify(replay.clone()) {
        Ok(view) => view,
        Err(error) => {
            let sent = judge(error);
            // The server definitely refused: the batch was not made, and may be split differently.
            if matches!(sent, SendOutcome::Never(_)) {
                shared.local.lock().maybe_sent = 0;
            }
            remember(earlier, last, &replay);
            return sent;
        }
    };
    if let Err(error) = shared.inner.flush_commits() {
        remember(earlier, last, &replay);
        return judge(error);
    }
    let mut outcome = std::mem::take(&mut replay.lock().outcome);
    if outcome.was_made
        && let Some((_, made)) = earlier.take().filter(|(made, _)| *made == last)
    {
        outcome = made;
    }
    if !outcome.unplaced.is_empty() {
        let only = |handle: Handle| outcome.unplaced.contains(&handle);
        if let Err(error) = salvage(shared, batch, "the server has no place for them any more", &only) {
            return SendOutcome::Later(error);
        }
    }
    {
        let mut local = shared.local.lock();
        local.placed = outcome.placed;
        finish(&mut local, batch, Some(shared.as_known(view)));
    }
    let placed = shared.local.lock().placed.clone();
    if let Err(error) = shared.journal.done(last, &placed) {
        tracing::warn!(%error, "the journal cannot note what was sent; after a restart it is compared again");
    }
    shared.report_conflicts(outcome.conflicts);
    shared.changed.notify_all();
    SendOutcome::Sent
}

/// Stores the outcome of a planned attempt, in case it turns out to have been ordered.
fn remember(earlier: &mut Option<(u64, Outcome)>, last: u64, replay: &Mutex<Replay>) {
    let outcome = std::mem::take(&mut replay.lock().outcome);
    if !outcome.was_made {
        *earlier = Some((last, outcome));
    }
}

/// Removes edits from the queue that are at the server or were given up.
fn finish(local: &mut super::LocalState, batch: &[Arc<Record>], view: Option<Arc<dyn View>>) {
    if let Some(view) = view
        && view.position() > local.base.position()
    {
        local.base = view;
    }
    local.gathering.sent += 1;
    for record in batch {
        local.gathering.note_sent(&record.taken);
        local.queue.pop_front();
        local.changes -= record.changes();
        local.bytes -= record.bytes();
        local.overlay.lift(record);
        local.done = record.number;
    }
    local.trouble = None;
    local.position += 1;
}

/// Decides from an error what happens to the edits that were to be sent.
fn judge(error: FsError) -> SendOutcome {
    match error {
        FsError::Frozen(_) | FsError::Local { .. } => SendOutcome::Ended(error),
        FsError::Unreachable(_)
        | FsError::Key(_)
        | FsError::NoSpace
        | FsError::Busy
        | FsError::Interrupted
        | FsError::Integrity(_) => SendOutcome::Later(error),
        _ => SendOutcome::Never(error),
    }
}

/// Gives up edits that the server will never accept: saves their files and removes them from the queue.
fn give_up(shared: &Arc<Shared>, batch: &[Arc<Record>], error: &FsError) {
    let reason = format!("the server does not take them: {error}");
    if let Err(failed) = salvage(shared, batch, &reason, &|_| true) {
        // The edits must stay until their files are saved.
        shared.note_trouble(failed);
        sleep(shared, PAUSE_MAX);
        return;
    }
    let told = batch.iter().flat_map(|record| &record.inodes).map(|change| ConflictReport {
        path: String::from_utf8_lossy(&change.path).into_owned(),
        what: format!(
            "the change made here could not be made at the server ({error}); see `holdfast salvage`"
        ),
        at_ns: now_ns(),
    });
    shared.report_conflicts(told.collect());
    let last = batch.last().expect("a batch has edits").number;
    let placed = {
        let mut local = shared.local.lock();
        finish(&mut local, batch, None);
        local.given_up = Some(error.clone());
        local.placed.clone()
    };
    if let Err(error) = shared.journal.done(last, &placed) {
        tracing::warn!(%error, "the journal cannot note what was given up");
    }
    shared.changed.notify_all();
}

/// Uploads the data that new inodes refer to and that is only here: file by file, and referred-to blocks
/// before referring ones. With each file goes its previous content, from which the upload finds out what need
/// not be sent. The caller holds the guards until the operation is made.
fn upload(shared: &Shared, net: &NetChange) -> Result<Vec<Guard>, FsError> {
    let mut seen: HashSet<Digest> = HashSet::new();
    let mut guards = Vec::new();
    for change in net.inodes.values() {
        let Some(new) = &change.new else { continue };
        let mut stack: Vec<(Digest, Option<Block>)> =
            content_roots(&new.0).into_iter().map(|address| (address, None)).collect();
        if stack.is_empty() {
            continue;
        }
        let before = change.seen.as_ref().map_or(Content::None, |seen| seen.0.content.clone());
        let about = WriteTarget { handle: change.handle, path: change.path.clone(), before };
        let mut upload = shared.inner.upload(about, UploadKind::Usual);
        while let Some((address, expanded)) = stack.pop() {
            if let Some(block) = expanded {
                upload.put(block);
                continue;
            }
            if !seen.insert(address) {
                continue;
            }
            let Some(block) = shared.journal.get(&address) else { continue };
            let children: Vec<Digest> = block.references().to_vec();
            stack.push((address, Some(block)));
            stack.extend(children.into_iter().map(|child| (child, None)));
        }
        guards.push(upload.finish(Some(&new.0.content))?);
        shared.inner.note_version(change.handle, change.path.clone(), &new.0);
    }
    Ok(guards)
}

/// Saves the files that edits wrote to a folder.
///
/// # Errors
/// [`FsError::NoSpace`] or [`FsError::Local`].
pub fn save(
    shared: &Shared,
    records: &[Arc<Record>],
    reason: &str,
) -> Result<Option<SalvageReport>, FsError> {
    salvage(shared, records, reason, &|_| true)
}

fn salvage(
    shared: &Shared,
    records: &[Arc<Record>],
    reason: &str,
    only: &dyn Fn(Handle) -> bool,
) -> Result<Option<SalvageReport>, FsError> {
    let net = NetChange::of(records.iter().map(Arc::as_ref));
    let files: BTreeMap<Handle, (Vec<u8>, Arc<Inode>)> = net
        .inodes
        .values()
        .filter(|change| only(change.handle))
        .filter_map(|change| {
            let new = &change.new.as_ref()?.0;
            let written = change.seen.as_ref().is_none_or(|seen| seen.0.content != new.content);
            let is_file = new.kind == InodeKind::File && !matches!(new.content, Content::Directory(_));
            (is_file && written).then(|| (change.handle, (change.path.clone(), new.clone())))
        })
        .collect();
    if files.is_empty() {
        return Ok(None);
    }
    let source = shared.source();
    let read = |inode: &Inode, offset: u64, count: usize| file::read(&*source, inode, offset, count).ok();
    let rescue = SalvageRequest {
        reason,
        inodes: files.into_values().collect(),
        read: &read,
        step: STEP_BYTES,
        copies: Vec::new(),
        in_doubt: Vec::new(),
    };
    salvage::save_inodes(&shared.options.salvage_dir, rescue).map(Some)
}
