//! Gathering: edits of files that this client holds exclusively are made here and sent together; all other
//! edits go to the server at once.
//!
//! While this client holds files exclusively
//! ([`Upstream::holds_exclusively`](crate::backend::Upstream::holds_exclusively)), the server lets no other
//! device read or change them without a recall first. So a plan made on the local state is a plan made on the
//! server's state: the edit may be acknowledged at once, and many edits may be sent as one operation. When
//! another device wants one of the files, the server recalls the lease, this client sends everything, and
//! only then is the other device's operation ordered.
//!
//! Invariants:
//! - An edit is made here only if all files that it reads or changes are held exclusively at the moment it
//!   joins the queue, with enough time left to send it; so a recall finds it in the queue
//!   ([`Shared::recalled`]). Files that were made here and are not at the server yet are out of other
//!   devices' reach: the way to them leads through a directory held exclusively, or is made by an edit that
//!   goes to the server after all those made here before.
//! - An edit that goes straight to the server never overlaps with one that is made here, since each would
//!   miss the other's effect.
//! - Nor does an operation that only reads. It may have to wait for another device that itself waits for
//!   edits made here, and a device's operations are ordered one after the other ([`Shared::begin_look`]).
//! - Data that went to the server ahead of its edit is named only by an edit that goes straight to the
//!   server.
//! - What was acknowledged from here is in the journal, which outlives this process; `fsync` waits for the
//!   server.

use super::journal::WriteGuard;
use super::local::LocalTransaction;
use super::record::SMALL_MAX;
use super::views::{FixedView, StagedBlocks};
use super::{LocalOutcome, Shared};
use crate::backend::{Guard, ReadSet, Upload, UploadKind};
use crate::error::FsError;
use crate::interrupt::{self, Woken};
use crate::store::WriteTarget;
use crate::tree::{Edit, View};
use holdfast_content::{Block, BlockSink, Content, Handle, Reference};
use holdfast_crypto::DigestKey;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// An edit is made here only if its files stay held exclusively for at least this long, so that there is time
/// to send it.
const MARGIN: Duration = Duration::from_secs(2);
/// Most changes made here that wait to be sent. Beyond it, a call that changes more waits for the server.
const CHANGES_WAITING_MAX: usize = 4000;
/// After so many edits in a row, this client asks to hold files exclusively. Each recall before exclusive
/// access has saved an operation doubles the number, up to [`STREAK_MAX`]; a recall after it has saved one
/// resets it. Where another device holds files exclusively, the first edit already asks: a client that does
/// not take turns makes no progress there.
const STREAK: u32 = 4;
const STREAK_MAX: u32 = 16;
/// Edits count as consecutive if at most this much time is between the end of one and the beginning of the
/// next. (How long an edit takes is not counted, since it may wait for other devices.)
const STREAK_GAP: Duration = Duration::from_millis(300);
/// When no edit has come for so long, exclusive leases are no longer asked for.
const STREAK_ENDS: Duration = Duration::from_secs(3);
/// Longest time for which a recall waits for edits to be sent; by then the lease ends by itself.
const RECALL_PATIENCE: Duration = Duration::from_secs(10);
/// How long a call waits for the server after an earlier call has waited its full time in vain.
const SILENT_PATIENCE: Duration = Duration::from_secs(5);
/// How long an operation that only reads waits until the edits made here before are sent.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// How long edits go straight to the server after a write to the journal failed.
const JOURNAL_PAUSE: Duration = Duration::from_secs(60);

/// State of gathering, under the same lock as the queue.
#[derive(Default)]
pub(super) struct Gathering {
    /// Number of edits now on their way straight to the server.
    direct: usize,
    /// Number of edits that ever began to go straight.
    begun: u64,
    /// `ended`: number of such edits that ever ended. `flushed`: the first so many of them have been waited
    /// for until the server has their commits.
    ended: u64,
    flushed: u64,
    /// `unsure`: number of such edits that failed but may still take effect. `decided`: for the first so many
    /// of those, the effect has been found out.
    unsure: u64,
    decided: u64,
    /// Operations that only read: `looks` are running, `looks_waiting` wait until the edits made here are
    /// sent.
    looks: usize,
    looks_waiting: usize,
    /// Number of edits in a row, and when the last one began or ended.
    streak: u32,
    last_edit: Option<Instant>,
    asks_exclusive: bool,
    /// Number of edits in a row after which exclusive leases are asked for; 0 at the start, which means
    /// [`STREAK`].
    worth: u32,
    /// Edits made here since the last recall, and operations sent for them.
    pub(super) made_here: u64,
    pub(super) sent: u64,
    /// Files made here since the last recall that are not at the server yet.
    fresh: HashSet<Handle>,
    /// The journal is not used until this time, because a write to it failed.
    no_journal_until: Option<Instant>,
}

impl Gathering {
    /// Notes files that were made here.
    pub(super) fn note_made(&mut self, files: &[Handle]) {
        self.fresh.extend(files);
    }

    /// Notes that files made here are at the server now.
    pub(super) fn note_sent(&mut self, files: &[Handle]) {
        for file in files {
            self.fresh.remove(file);
        }
    }
}

/// Data whose edit is still to come.
#[derive(Default)]
pub(super) struct PendingData {
    /// Number of uploads to the server that a later edit will name.
    ahead: Arc<AtomicUsize>,
    /// Data in the journal that a later edit will name.
    small: Mutex<Vec<Weak<JournaledData>>>,
    /// Blocks that are neither at the server nor in the journal yet.
    pub(super) held: Arc<StagedBlocks>,
    /// Whether a call has waited for the server in vain; later calls then wait for a shorter time.
    silent: AtomicBool,
}

/// Counts an operation that only reads as running, while this guard lives.
pub(super) struct LookGuard(Arc<Shared>);

impl Drop for LookGuard {
    fn drop(&mut self) {
        self.0.local.lock().gathering.looks -= 1;
        self.0.changed.notify_all();
    }
}

/// Where an edit is made first.
enum EditRoute {
    Local,
    Server,
}

impl Shared {
    /// Whether edits are gathered now.
    pub(super) fn is_gathering(&self) -> bool {
        self.options.gathers && self.inner.exclusive().is_some_and(|left| left >= MARGIN)
    }

    /// Makes an edit, here or at the server.
    pub(super) fn gather(self: &Arc<Self>, edit: Arc<Mutex<dyn Edit>>) -> Result<(), FsError> {
        self.note_edit();
        let mut may_stay = true;
        loop {
            match self.choose_route(may_stay)? {
                EditRoute::Server => {
                    let result = self.modify_at_server(edit);
                    self.local.lock().gathering.last_edit = Some(Instant::now());
                    return result;
                }
                EditRoute::Local => match self.modify_here(&edit) {
                    Ok(LocalOutcome::Made) => return Ok(()),
                    Ok(LocalOutcome::NotNow) => {}
                    Ok(LocalOutcome::NotHere) => may_stay = false,
                    // The edit may go to the server, where no journal is needed.
                    Err(error @ (FsError::Local { .. } | FsError::NoSpace)) => self.journal_failed(&error),
                    Err(error) => return Err(error),
                },
            }
        }
    }

    /// Whether a planned edit may be made here. `begun`: the value of [`Shared::begun`] when planning
    /// started.
    pub(super) fn stays_here(
        &self,
        local: &super::LocalState,
        begun: u64,
        planning: &LocalTransaction,
    ) -> LocalOutcome {
        if !self.options.gathers {
            return LocalOutcome::Made;
        }
        let gathering = &local.gathering;
        if !self.is_gathering() || gathering.begun != begun || gathering.looks + gathering.looks_waiting > 0 {
            return LocalOutcome::NotNow;
        }
        let files = planning.files();
        let others: Vec<Handle> =
            files.into_iter().filter(|file| !local.gathering.fresh.contains(file)).collect();
        if self.inner.holds_exclusively(&others) { LocalOutcome::Made } else { LocalOutcome::NotHere }
    }

    /// Once exclusive access has run out, other devices can reach files made here as soon as they are sent:
    /// so these count as made here no longer.
    pub(super) fn check_fresh(&self, local: &mut super::LocalState) {
        if !self.is_gathering() {
            local.gathering.fresh.clear();
        }
    }

    /// The given files without those made here that are not at the server yet. Leases matter only for the
    /// former.
    pub(super) fn not_fresh(&self, files: &[Handle]) -> Vec<Handle> {
        let local = self.local.lock();
        files.iter().filter(|file| !local.gathering.fresh.contains(file)).copied().collect()
    }

    /// Number of edits that ever went straight to the server.
    pub(super) fn begun(local: &super::LocalState) -> u64 {
        local.gathering.begun
    }

    fn choose_route(&self, may_stay: bool) -> Result<EditRoute, FsError> {
        let mut local = self.local.lock();
        loop {
            if let Some(ended) = &local.ended {
                return Err(ended.clone());
            }
            let is_writable = local.gathering.no_journal_until.is_none_or(|until| Instant::now() >= until)
                && self.journal.bytes() <= self.options.bytes_max;
            let is_possible = is_writable && local.gathering.looks == 0;
            let may = may_stay && is_possible && self.pending.ahead.load(SeqCst) == 0 && self.is_gathering();
            self.check_fresh(&mut local);
            if !may {
                if local.queue.is_empty() {
                    local.gathering.direct += 1;
                    local.gathering.begun += 1;
                    return Ok(EditRoute::Server);
                }
                drop(local);
                self.drain()?;
                local = self.local.lock();
                continue;
            }
            if local.gathering.direct > 0 {
                if interrupt::wait(&self.changed, &mut local, None) == Woken::Interrupted {
                    return Err(FsError::Interrupted);
                }
                continue;
            }
            if local.gathering.looks_waiting > 0 {
                if interrupt::wait(&self.changed, &mut local, None) == Woken::Interrupted {
                    return Err(FsError::Interrupted);
                }
                continue;
            }
            if local.gathering.unsure > local.gathering.decided {
                drop(local);
                self.await_direct_edits(ReadSet::default())?;
                local = self.local.lock();
                continue;
            }
            if local.changes > CHANGES_WAITING_MAX || local.bytes > self.bytes_waiting_max() {
                drop(local);
                self.drain()?;
                local = self.local.lock();
                continue;
            }
            drop(local);
            self.accept(self.inner.latest());
            return Ok(EditRoute::Local);
        }
    }

    /// Called before an operation that only reads: sends the edits made here, and makes edits go straight to
    /// the server while the operation runs.
    ///
    /// If the edits cannot be sent now, the read goes on all the same. Then this device and another may wait
    /// for each other until their exclusive access runs out.
    pub(super) fn begin_look(self: &Arc<Self>) -> Result<LookGuard, FsError> {
        let mut local = self.local.lock();
        local.gathering.looks_waiting += 1;
        let result = self.send_before_look(&mut local);
        local.gathering.looks_waiting -= 1;
        if result.is_ok() {
            local.gathering.looks += 1;
        }
        drop(local);
        self.changed.notify_all();
        result.map(|()| LookGuard(self.clone()))
    }

    fn send_before_look(&self, local: &mut MutexGuard<'_, super::LocalState>) -> Result<(), FsError> {
        let end = Instant::now() + LOOK_PATIENCE;
        local.wanted = local.wanted.max(local.last);
        self.changed.notify_all();
        while !local.queue.is_empty() && local.trouble.is_none() && local.ended.is_none() && !local.stopping {
            match interrupt::wait(&self.changed, local, Some(end)) {
                Woken::Notified => {}
                Woken::Late => break,
                Woken::Interrupted => return Err(FsError::Interrupted),
            }
        }
        Ok(())
    }

    /// Most bytes that wait to be sent: as many as the link carries in a small part of a delegation's term.
    pub(super) fn bytes_waiting_max(&self) -> u64 {
        self.inner.account().pace().ahead_bytes()
    }

    fn modify_at_server(&self, edit: Arc<Mutex<dyn Edit>>) -> Result<(), FsError> {
        let result = self.send_small().and_then(|()| self.inner.modify(edit));
        let is_unsure = match &result {
            Ok(view) => {
                self.accept(view.clone());
                false
            }
            Err(error) => matches!(
                error,
                FsError::Unreachable(_) | FsError::Interrupted | FsError::Key(_) | FsError::Busy
            ),
        };
        let mut local = self.local.lock();
        local.gathering.direct -= 1;
        local.gathering.ended += 1;
        local.gathering.unsure += u64::from(is_unsure);
        drop(local);
        self.changed.notify_all();
        result.map(drop)
    }

    /// Finds out of all edits that went straight whether they took effect, by fetching a view. `reads`: the
    /// files to be read in that view.
    fn await_direct_edits(&self, mut reads: ReadSet) -> Result<(), FsError> {
        let asked = {
            let local = self.local.lock();
            reads.files.retain(|file| !local.gathering.fresh.contains(file));
            local.gathering.unsure
        };
        let view = self.inner.fetch(reads)?;
        self.accept(view);
        let mut local = self.local.lock();
        local.gathering.decided = local.gathering.decided.max(asked);
        Ok(())
    }

    /// A view that is at least as new as this call.
    pub(super) fn fetch_gathering(self: &Arc<Self>, reads: ReadSet) -> Result<Arc<dyn View>, FsError> {
        let is_decided = {
            let mut local = self.local.lock();
            if let Some(ended) = &local.ended {
                return Err(ended.clone());
            }
            let gathering = &mut local.gathering;
            if gathering.asks_exclusive && gathering.last_edit.is_none_or(|at| at.elapsed() > STREAK_ENDS) {
                gathering.asks_exclusive = false;
                self.inner.want_exclusive(false);
            }
            gathering.unsure == gathering.decided
        };
        if is_decided && self.inner.has_delegation() {
            self.accept(self.inner.latest());
        } else {
            self.await_direct_edits(reads)?;
        }
        Ok(self.view())
    }

    /// Handles a recall of exclusive access: sends everything made here before the recall is acknowledged.
    pub(super) fn recalled(&self) {
        if !self.options.gathers {
            return;
        }
        self.local.lock().gathering.fresh.clear();
        match self.settle(RECALL_PATIENCE) {
            Ok(true) => {}
            _ => tracing::warn!("others go on before everything that was changed here is at the server"),
        }
        let mut local = self.local.lock();
        let gathering = &mut local.gathering;
        let (made, sent) = (std::mem::take(&mut gathering.made_here), std::mem::take(&mut gathering.sent));
        if made > sent {
            gathering.worth = STREAK;
        } else {
            gathering.worth = gathering.worth.max(STREAK).saturating_mul(2).min(STREAK_MAX);
            (gathering.streak, gathering.asks_exclusive) = (0, false);
            self.inner.want_exclusive(false);
        }
    }

    /// Notes an edit, and asks for exclusive access when edits come in a row.
    fn note_edit(&self) {
        let now = Instant::now();
        let mut local = self.local.lock();
        let gathering = &mut local.gathering;
        let last = gathering.last_edit.replace(now);
        let goes_on = last.is_some_and(|last| now.duration_since(last) < STREAK_GAP);
        gathering.streak = if goes_on { gathering.streak.saturating_add(1) } else { 1 };
        let is_contended = gathering.worth <= STREAK && self.inner.is_contended();
        if (gathering.streak >= gathering.worth.max(STREAK) || is_contended) && !gathering.asks_exclusive {
            gathering.asks_exclusive = true;
            self.inner.want_exclusive(true);
        }
    }

    pub(super) fn journal_failed(&self, error: &FsError) {
        let mut local = self.local.lock();
        let first = local.gathering.no_journal_until.is_none();
        local.gathering.no_journal_until = Some(Instant::now() + JOURNAL_PAUSE);
        if first {
            tracing::warn!(%error, "changes cannot be gathered on this machine; each goes to the server at once");
        }
    }

    /// Waits until everything made so far is at the server.
    pub(super) fn drain(&self) -> Result<(), FsError> {
        let silent = self.pending.silent.load(SeqCst);
        let patience =
            if silent { self.options.patience.min(SILENT_PATIENCE) } else { self.options.patience };
        let end = Instant::now() + patience;
        let mut local = self.local.lock();
        let (target, troubles) = (local.last, local.troubles);
        local.wanted = local.wanted.max(target);
        self.changed.notify_all();
        while local.done < target {
            if let Some(ended) = &local.ended {
                return Err(ended.clone());
            }
            if local.stopping {
                return Err(FsError::Unreachable("the file system is being unmounted".to_owned()));
            }
            // The sender has waited as long as a call may, so this call fails too.
            if local.troubles > troubles
                && let Some(trouble) =
                    local.trouble.clone().filter(|why| !matches!(why, FsError::Integrity(_)))
            {
                return Err(trouble);
            }
            match interrupt::wait(&self.changed, &mut local, Some(end)) {
                Woken::Notified => {}
                Woken::Interrupted => return Err(FsError::Interrupted),
                Woken::Late => {
                    self.pending.silent.store(true, SeqCst);
                    let why = "what was changed here before could not be sent in time".to_owned();
                    return Err(FsError::Unreachable(why));
                }
            }
        }
        self.pending.silent.store(false, SeqCst);
        Ok(())
    }

    /// Does what `fsync` needs: waits until everything is durable at the server and its receipts are here.
    pub(super) fn flush_gathered(&self) -> Result<(), FsError> {
        self.drain()?;
        if let Some(error) = self.local.lock().given_up.take() {
            return Err(error);
        }
        self.flush_inner()?;
        self.inner.flush_commits()
    }

    /// Does what `close` needs: waits until edits that went straight are durable at the server. Edits made
    /// here may wait.
    pub(super) fn flush_inner(&self) -> Result<(), FsError> {
        let target = {
            let gathering = &self.local.lock().gathering;
            if gathering.flushed >= gathering.ended {
                return Ok(());
            }
            gathering.ended
        };
        self.inner.keep_commits()?;
        let mut local = self.local.lock();
        local.gathering.flushed = local.gathering.flushed.max(target);
        Ok(())
    }

    /// Returns a sink for new data. If the caller will wait until the edit is durable at the server, and no
    /// gathered edits could go along, a journal gains nothing: the data goes straight to the server.
    pub(super) fn gathering_sink(&self, about: WriteTarget, kind: UploadKind) -> GatheringSink<'_> {
        let goes_alone = || kind == UploadKind::Awaited && self.local.lock().queue.is_empty();
        let (onward, about) = match self.is_gathering() && !goes_alone() {
            true => (None, Some(about)),
            false => (Some(self.inner.upload(about, UploadKind::Usual)), None),
        };
        GatheringSink { shared: self, about, held: SinkBlocks::new(&self.pending.held), bytes: 0, onward }
    }

    /// Sends journaled data whose edit goes straight to the server after all.
    fn send_small(&self) -> Result<(), FsError> {
        let mut small: Vec<Arc<JournaledData>> = Vec::new();
        self.pending.small.lock().retain(|one| one.upgrade().map(|one| small.push(one)).is_some());
        for one in small {
            let mut sent = one.sent.lock();
            if sent.is_none() {
                let mut upload = self.inner.upload(one.about.clone(), UploadKind::Usual);
                for block in &one.blocks {
                    upload.put(Block::clone(block));
                }
                *sent = Some(upload.finish(one.content.as_ref())?);
            }
        }
        Ok(())
    }

    /// The newest view, for when no local edits are laid over it.
    pub(super) fn fixed(local: &super::LocalState) -> FixedView {
        FixedView { view: local.base.clone(), position: local.position }
    }
}

/// Data in the journal whose edit is still to come.
struct JournaledData {
    about: WriteTarget,
    content: Option<Content>,
    blocks: Vec<Arc<Block>>,
    /// A guard for the blocks at the server, if they were sent there too.
    sent: Mutex<Option<Guard>>,
    _writing: WriteGuard,
}

/// Data at the server whose edit is still to come.
struct PendingUpload {
    count: Arc<AtomicUsize>,
    _guard: Guard,
}

impl Drop for PendingUpload {
    fn drop(&mut self) {
        self.count.fetch_sub(1, SeqCst);
    }
}

/// Blocks that one sink holds.
struct SinkBlocks {
    all: Arc<StagedBlocks>,
    blocks: Vec<Arc<Block>>,
}

impl SinkBlocks {
    fn new(all: &Arc<StagedBlocks>) -> SinkBlocks {
        SinkBlocks { all: all.clone(), blocks: Vec::new() }
    }

    fn push(&mut self, block: Block) {
        let block = Arc::new(block);
        self.all.hold(&block);
        self.blocks.push(block);
    }
}

impl Drop for SinkBlocks {
    fn drop(&mut self) {
        self.blocks.iter().for_each(|block| self.all.release(&block.reference().address));
    }
}

/// Sink for new data. Up to [`SMALL_MAX`] bytes are journaled at the end; once there is more, all of it goes
/// to the server while it is written.
pub(super) struct GatheringSink<'a> {
    shared: &'a Shared,
    /// Where the data belongs; `None` once it goes to the server.
    about: Option<WriteTarget>,
    held: SinkBlocks,
    bytes: usize,
    onward: Option<Box<dyn Upload + 'a>>,
}

impl<'a> GatheringSink<'a> {
    fn switch_to_server(&mut self) -> &mut Box<dyn Upload + 'a> {
        let (shared, about, held) = (self.shared, &mut self.about, &mut self.held);
        self.onward.get_or_insert_with(|| {
            let about = about.take().expect("it has gone nowhere yet");
            let mut onward = shared.inner.upload(about, UploadKind::Usual);
            for block in &held.blocks {
                onward.put(Block::clone(block));
            }
            // From now on, the blocks are no longer read back from memory.
            *held = SinkBlocks::new(&shared.pending.held);
            onward
        })
    }
}

impl BlockSink for GatheringSink<'_> {
    fn digest_key(&self) -> DigestKey {
        self.shared.source().digest_key()
    }

    fn put(&mut self, block: Block) -> Reference {
        let reference = block.reference();
        self.bytes += reference.length as usize;
        if self.onward.is_none() && self.bytes <= SMALL_MAX {
            self.held.push(block);
            return reference;
        }
        self.switch_to_server().put(block)
    }
}

impl Upload for GatheringSink<'_> {
    fn finish(mut self: Box<Self>, content: Option<&Content>) -> Result<Guard, FsError> {
        let shared = self.shared;
        if self.onward.is_none() {
            let writing = shared.journal.writing();
            match self.held.blocks.iter().try_for_each(|block| shared.journal.put(block)) {
                Ok(()) => {
                    let small = Arc::new(JournaledData {
                        about: self.about.take().expect("it has gone nowhere yet"),
                        content: content.cloned(),
                        blocks: self.held.blocks.clone(),
                        sent: Mutex::new(None),
                        _writing: writing,
                    });
                    let mut all = shared.pending.small.lock();
                    all.retain(|one| one.strong_count() > 0);
                    all.push(Arc::downgrade(&small));
                    return Ok(Box::new(small));
                }
                Err(error) => shared.journal_failed(&error),
            }
        }
        self.switch_to_server();
        let guard = self.onward.take().expect("it was just begun").finish(content)?;
        let count = shared.pending.ahead.clone();
        count.fetch_add(1, SeqCst);
        Ok(Box::new(PendingUpload { count, _guard: guard }))
    }
}
