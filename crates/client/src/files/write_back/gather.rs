//! Gathering: edits of files that this client holds exclusively are made here and sent together; all others go to the
//! server at once.
//!
//! While the server promises that nobody else reads or changes some files unless this client is told first
//! ([`Upstream::holds_exclusively`](crate::backend::Upstream::holds_exclusively)), an edit of them that is planned
//! on the local state is planned on the state at the server. So it may be answered at once, and many edits be sent as
//! one operation. When another device wants one of the files, the lease is recalled, everything is sent, and only then
//! is the other device's operation ordered.
//!
//! Invariants:
//! - an edit is made here only if all files that it reads or changes are held exclusively, with time left to send it, at the
//!   moment it joins the queue: a recall finds it there ([`Shared::recalled`]). Files that were made here and are not
//!   at the server yet are nobody else's: the way to them leads through a directory that is held exclusively, or by an
//!   edit that goes to the server after all those that were made here before;
//! - an edit that went straight to the server is never under way together with one that is made here, since each would
//!   miss the other's effect;
//! - nor is an operation that only looks: it may have to wait for another device, which waits for what was made here, and a
//!   device's operations are ordered one after the other ([`Shared::begin_look`]);
//! - data that went to the server ahead of its edit is named by an edit that goes there straight;
//! - what was answered from here is in the journal, which outlives this process; `fsync` waits for the server.

use super::journal::WriteGuard;
use super::local::LocalTransaction;
use super::record::SMALL_MAX;
use super::views::{FixedView, HeldBlocks};
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

/// For how long files must still be held exclusively for an edit to be made here: it is to be sent before that ends.
const MARGIN: Duration = Duration::from_secs(2);
/// Most things changed here that wait to be sent; whoever changes more waits for the server.
const CHANGES_WAITING_MAX: usize = 4000;
/// How many edits in a row make this client ask to hold files exclusively. The number doubles, up to [`STREAK_MAX`], each
/// time they are recalled before that has saved an operation, and is this again once it has. Where another device holds files
/// exclusively, the first edit asks: only who takes turns with it gets on.
const STREAK: u32 = 4;
const STREAK_MAX: u32 = 16;
/// Edits come in a row if no more than this is between the end of one and the beginning of the next. (How long each takes,
/// since others have to be waited for, is not counted.)
const STREAK_GAP: Duration = Duration::from_millis(300);
/// So long after the last edit, exclusive leases are not asked for any more.
const STREAK_ENDS: Duration = Duration::from_secs(3);
/// Longest time for which a recall waits for edits to be sent; the lease ends by itself then.
const RECALL_PATIENCE: Duration = Duration::from_secs(10);
/// How long a call waits for a server that has kept one waiting for its full time already.
const SILENT_PATIENCE: Duration = Duration::from_secs(5);
/// How long an operation that only looks waits for what was made here before to be sent.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// How long edits go straight to the server after the journal could not be written.
const JOURNAL_PAUSE: Duration = Duration::from_secs(60);

/// State of gathering, under the same lock as the queue.
#[derive(Default)]
pub(super) struct Gathering {
    /// Number of edits on their way straight to the server.
    direct: usize,
    /// Number of such edits that ever began.
    begun: u64,
    /// How many ever ended; and up to which of these their commits were waited for.
    ended: u64,
    flushed: u64,
    /// How many of them may still take effect, though they failed; and up to which of those that has been decided.
    unsure: u64,
    decided: u64,
    /// Operations that only look: how many are under way, and how many wait until what was made here is sent.
    looks: usize,
    looks_waiting: usize,
    /// How many edits have come in a row, and when the last one began or ended.
    streak: u32,
    last_edit: Option<Instant>,
    asks_exclusive: bool,
    /// How many edits in a row it takes now to ask for exclusive leases; 0 at the start, which means [`STREAK`].
    worth: u32,
    /// Edits made here, and operations that they became, since the last recall.
    pub(super) made_here: u64,
    pub(super) sent: u64,
    /// Files made here that are not at the server yet, since the last recall.
    fresh: HashSet<Handle>,
    /// Until when the journal is not used, since it could not be written.
    no_journal_until: Option<Instant>,
}

impl Gathering {
    /// Notes files that were made here.
    pub(super) fn note_made(&mut self, files: &[Handle]) {
        self.fresh.extend(files);
    }

    /// Notes that files that were made here are at the server now.
    pub(super) fn note_sent(&mut self, files: &[Handle]) {
        for file in files {
            self.fresh.remove(file);
        }
    }
}

/// Data whose edit is still to come.
#[derive(Default)]
pub(super) struct PendingData {
    /// Number of uploads to the server that an edit to come will name.
    ahead: Arc<AtomicUsize>,
    /// Data in the journal that an edit to come will name.
    small: Mutex<Vec<Weak<JournaledData>>>,
    /// Blocks that are neither at the server nor in the journal yet.
    pub(super) held: Arc<HeldBlocks>,
    /// Whether a call has waited for the server in vain, so that the next ones wait less.
    silent: AtomicBool,
}

/// Counts an operation that only looks, while this lives.
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
                    // It may be planned at the server, where no journal is needed.
                    Err(error @ (FsError::Local { .. } | FsError::NoSpace)) => self.journal_failed(&error),
                    Err(error) => return Err(error),
                },
            }
        }
    }

    /// Whether an edit may still be made here, as one that was planned after `begun` others went straight.
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

    /// When what was held exclusively has run out, others can find what was made here as soon as it is sent.
    pub(super) fn check_fresh(&self, local: &mut super::LocalState) {
        if !self.is_gathering() {
            local.gathering.fresh.clear();
        }
    }

    /// Files that were not made here, or are at the server by now: those that leases are about.
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

    /// Before an operation that only looks: sends what was made here. While it is under way, edits go straight.
    ///
    /// What cannot be sent now does not prevent anybody from looking: then both may wait for another device until what it and
    /// this one hold exclusively runs out.
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

    /// Most bytes that wait to be sent: what the link takes in a small part of a delegation's term.
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

    /// Waits until it is known of all edits that went straight whether they have taken effect, and fetches a view in which
    /// these files are to be read.
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

    /// Something is not held exclusively any more: everything made here is sent before that is acknowledged.
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

    /// Asks to hold exclusively what is edited when edits come in a row.
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
            // The sender has waited as long as calls do, so this call fails too.
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

    /// What `fsync` waits for: everything is at the server, durably, and the server's receipts for it are here.
    pub(super) fn flush_gathered(&self) -> Result<(), FsError> {
        self.drain()?;
        if let Some(error) = self.local.lock().given_up.take() {
            return Err(error);
        }
        self.flush_inner()?;
        self.inner.flush_commits()
    }

    /// What `close` waits for: what went straight to the server is durable there; what is made here may wait.
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

    /// Where new data goes. If its edit is waited for until it is durable at the server, and nothing is gathered that would go
    /// with it, there is nothing to be gained by a journal: it goes straight.
    pub(super) fn gathering_sink(&self, about: WriteTarget, kind: UploadKind) -> GatheringSink<'_> {
        let goes_alone = || kind == UploadKind::Awaited && self.local.lock().queue.is_empty();
        let (onward, about) = match self.is_gathering() && !goes_alone() {
            true => (None, Some(about)),
            false => (Some(self.inner.upload(about, UploadKind::Usual)), None),
        };
        GatheringSink { shared: self, about, held: SinkBlocks::new(&self.pending.held), bytes: 0, onward }
    }

    /// An edit that was to be made here goes straight: so must its data.
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

    /// The newest view, when nothing is laid over it.
    pub(super) fn fixed(local: &super::LocalState) -> FixedView {
        FixedView { view: local.base.clone(), position: local.position }
    }
}

/// Data in the journal whose edit is still to come.
struct JournaledData {
    about: WriteTarget,
    content: Option<Content>,
    blocks: Vec<Arc<Block>>,
    /// Keeps the blocks at the server, if they were sent there too.
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
    all: Arc<HeldBlocks>,
    blocks: Vec<Arc<Block>>,
}

impl SinkBlocks {
    fn new(all: &Arc<HeldBlocks>) -> SinkBlocks {
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

/// New data: little of it is journaled once it is complete, and much goes to the server while it comes.
pub(super) struct GatheringSink<'a> {
    shared: &'a Shared,
    /// What is known of the file; `None` once the data goes to the server.
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
            // From now on the blocks are read back from the journal.
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
