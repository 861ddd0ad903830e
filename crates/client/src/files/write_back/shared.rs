//! Plans and journals edits, gets fresh views and numbers from the server, and notes whether it is away.

use super::journal::NumberRange;
use super::local::{LiveView, LocalTransaction};
use super::sender::NumberReservation;
use super::views::{JournalSink, LayeredSource};
use super::{
    AHEAD_MAX, CHANGES_MAX, CHANGES_RESERVED, ConflictReport, FRESH_PATIENCE, LocalOutcome, NUMBERS_FETCHED,
    NUMBERS_LOW, PROBE_PAUSE, RESERVE_MAX, RESERVE_MIN, ROOM_LOOK, Shared, TOLD_MAX,
};
use crate::backend::ReadSet;
use crate::error::FsError;
use crate::interrupt::{self, Woken};
use crate::tree::{Edit, View};
use holdfast_content::{BlockSource, Handle, PrincipalId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use tracing::trace;

impl Shared {
    pub(super) fn view(self: &Arc<Self>) -> Arc<dyn View> {
        let local = self.local.lock();
        match self.options.gathers && local.overlay.is_empty() {
            // Other devices may change something at any time, so all of an answer must come from one view.
            true => Arc::new(Self::fixed(&local)),
            false => Arc::new(LiveView { shared: self.clone(), position: local.position }),
        }
    }

    /// Under `--write-back`, the server may be away, so a view is read leniently: as it was when it was
    /// fetched. At that time it had everything acknowledged anywhere, and it is not checked with the server
    /// again.
    pub(super) fn as_known(&self, view: Arc<dyn View>) -> Arc<dyn View> {
        if self.options.gathers { view } else { super::lenient(view) }
    }

    /// What a view is fetched for: write-back may read anything in it later.
    fn reads(&self) -> ReadSet {
        if self.options.gathers { ReadSet::default() } else { ReadSet::everything() }
    }

    /// Takes over a verified view if it is newer than the present one.
    pub(super) fn accept(&self, view: Arc<dyn View>) {
        let mut local = self.local.lock();
        if view.position() > local.base.position() {
            local.base = self.as_known(view);
            local.position += 1;
        }
    }

    /// Path of a file for messages and conflict reports; empty if no mount has it.
    pub(super) fn path(&self, handle: Handle) -> Vec<u8> {
        let known = self.paths.read().iter().map(|path| path(handle)).find(|path| !path.is_empty());
        known.unwrap_or_default()
    }

    pub(super) fn path_text(&self, handle: Handle) -> String {
        String::from_utf8_lossy(&self.path(handle)).into_owned()
    }

    /// A source of blocks that reads held blocks, the journal and the server.
    pub(super) fn source(&self) -> Arc<dyn BlockSource + Send + Sync> {
        Arc::new(LayeredSource {
            held: self.pending.held.clone(),
            journal: self.journal.clone(),
            inner: self.inner.source(),
        })
    }

    /// The sink that puts new blocks into the journal.
    pub(super) fn sink(&self) -> JournalSink {
        let writing = self.journal.writing();
        // Half of the reserve stays for edits that bring no blocks.
        let bytes_max = self.room_left().map(|_| self.options.bytes_max + self.reserve() / 2);
        let key = self.source().digest_key();
        JournalSink { journal: self.journal.clone(), key, bytes_max, failed: None, writing }
    }

    /// Makes an edit on the local state, whether or not the server answers.
    pub(super) fn modify(self: &Arc<Self>, edit: &Mutex<dyn Edit>) -> Result<(), FsError> {
        self.wait_for_room()?;
        self.modify_here(edit).map(drop)
    }

    /// Makes an edit on the local state, unless it must go to the server.
    pub(super) fn modify_here(self: &Arc<Self>, edit: &Mutex<dyn Edit>) -> Result<LocalOutcome, FsError> {
        loop {
            let (started, done, begun) = {
                let local = self.local.lock();
                if let Some(ended) = &local.ended {
                    return Err(ended.clone());
                }
                (local.last, local.done, Self::begun(&local))
            };
            let mut planning = LocalTransaction::new(self.clone());
            let planned = edit.lock().plan(&mut planning);
            if let Err(error) = planned {
                self.return_numbers(planning.taken());
                return Err(error);
            }
            if planning.is_empty() {
                // The edit may still have taken a number: for a file without a name.
                self.local.lock().gathering.note_made(planning.taken());
                edit.lock().ordered();
                return Ok(LocalOutcome::Made);
            }
            let mut record = None;
            {
                let mut local = self.local.lock();
                let made = self.stays_here(&local, begun, &planning);
                if !matches!(made, LocalOutcome::Made) {
                    drop(local);
                    self.return_numbers(planning.taken());
                    return Ok(made);
                }
                // If edits were sent meanwhile, the plan may rest on a state that cannot be compared any
                // more, so it is made again.
                if local.done == done && !planning.is_outdated(&local.overlay, started) {
                    let mut made = planning.into_record(&|handle| self.path(handle));
                    made.number = local.last + 1;
                    if let Err(error) = self.journal.note(&made) {
                        drop(local);
                        self.return_numbers(&made.taken);
                        return Err(error);
                    }
                    trace!(target: "operation", edit = made.number, "is gathered");
                    local.last = made.number;
                    local.gathering.made_here += 1;
                    local.gathering.note_made(&made.taken);
                    local.overlay.lay(&made);
                    local.position += 1;
                    local.changes += made.changes();
                    local.bytes += made.bytes();
                    if self.options.gathers && local.bytes > self.bytes_waiting_max() / 2 {
                        local.wanted = local.last;
                    }
                    let made = Arc::new(made);
                    local.queue.push_back(made.clone());
                    record = Some(made);
                } else {
                    drop(local);
                    self.return_numbers(planning.taken());
                }
            }
            if record.is_some() {
                edit.lock().ordered();
                self.changed.notify_all();
                return Ok(LocalOutcome::Made);
            }
        }
    }

    /// Delays callers that write faster than edits can be sent, once the journal is full. While the server is
    /// away, edits that write or make something are refused earlier ([`Shared::room_left`]); the room that is
    /// left then serves edits that remove or shorten files, and data written before.
    pub(super) fn wait_for_room(self: &Arc<Self>) -> Result<(), FsError> {
        let mut local = self.local.lock();
        let bytes_max = self.options.bytes_max + self.reserve();
        while local.changes > CHANGES_MAX + CHANGES_RESERVED || self.journal.bytes() > bytes_max {
            if let Some(ended) = &local.ended {
                return Err(ended.clone());
            }
            if self.is_server_away() {
                return Err(FsError::NoSpace);
            }
            // Everything is sent. The journal's remaining data belongs to open files or to this very edit,
            // which is sent after it.
            if local.queue.is_empty() {
                return Ok(());
            }
            local.wanted = local.last;
            self.changed.notify_all();
            let soon = Instant::now() + ROOM_LOOK;
            match interrupt::wait(&self.changed, &mut local, Some(soon)) {
                Woken::Interrupted => return Err(FsError::Interrupted),
                // The server may be slow or away. The running request tells only at its timeout; a fetch
                // tells sooner.
                Woken::Late if !self.options.gathers => {
                    drop(local);
                    self.fetch()?;
                    local = self.local.lock();
                }
                Woken::Late | Woken::Notified => {}
            }
        }
        Ok(())
    }

    /// Bytes of the journal reserved for edits that make nothing.
    fn reserve(&self) -> u64 {
        (self.options.bytes_max / 16).clamp(RESERVE_MIN, RESERVE_MAX)
    }

    /// Number of bytes that may still be written while the server is away; `None`: no limit, since edits can
    /// be sent.
    pub(super) fn room_left(&self) -> Option<u64> {
        if self.options.gathers || !self.is_server_away() {
            return None;
        }
        let is_full = self.local.lock().changes > CHANGES_MAX;
        Some(if is_full { 0 } else { self.options.bytes_max.saturating_sub(self.journal.bytes()) })
    }

    pub(super) fn is_server_away(&self) -> bool {
        self.away.load(SeqCst) || !self.inner.is_reachable()
    }

    /// Takes the number of a new file, from those reserved at the server.
    pub(super) fn take_number(self: &Arc<Self>, principal: PrincipalId) -> Result<Handle, FsError> {
        for attempt in 0.. {
            let left = {
                let mut local = self.local.lock();
                let mine = |numbers: &&mut NumberRange| numbers.principal == principal && numbers.count > 0;
                let taken = local.numbers.iter_mut().find(mine).map(|numbers| {
                    numbers.first += 1;
                    numbers.count -= 1;
                    Handle { principal, number: numbers.first - 1 }
                });
                local.numbers.retain(|numbers| numbers.count > 0);
                let left = local.numbers.iter().filter(|numbers| numbers.principal == principal);
                (taken, left.map(|numbers| numbers.count).sum::<u64>())
            };
            match left {
                (Some(handle), left) => {
                    if left < NUMBERS_LOW && !self.is_server_away() && !self.numbering.swap(true, SeqCst) {
                        let shared = self.clone();
                        std::thread::spawn(move || {
                            let _ = shared.fetch_numbers(principal);
                            shared.numbering.store(false, SeqCst);
                        });
                    }
                    return Ok(handle);
                }
                // A mount that only gathers waits for the server, as for any other operation.
                (None, _) if attempt == 0 && self.is_server_away() && !self.options.gathers => {
                    let why = "new files need numbers from the server, and it is away".to_owned();
                    return Err(FsError::Unreachable(why));
                }
                (None, _) if attempt == 0 => self.fetch_numbers(principal)?,
                (None, _) => break,
            }
        }
        Err(FsError::NoSpace)
    }

    /// Fetches numbers for the users and groups whose files this device may write (at most `AHEAD_MAX`), so
    /// that files of any of them can be made while the server is away.
    pub(super) fn fetch_numbers_ahead(self: &Arc<Self>) {
        let view = self.inner.latest();
        let mine = view.principals().into_iter().filter(|principal| view.may_write(*principal));
        for principal in mine.take(AHEAD_MAX) {
            let (left, stopping) = {
                let local = self.local.lock();
                let numbers = local.numbers.iter().filter(|numbers| numbers.principal == principal);
                (numbers.map(|numbers| numbers.count).sum::<u64>(), local.stopping)
            };
            if stopping || left >= NUMBERS_LOW {
                continue;
            }
            if let Err(error) = self.fetch_numbers(principal) {
                tracing::debug!(%error, %principal, "no numbers for new files yet");
                return;
            }
        }
    }

    /// Reserves numbers for new files at the server.
    pub(super) fn fetch_numbers(&self, principal: PrincipalId) -> Result<(), FsError> {
        let reservation = NumberReservation { principal, count: NUMBERS_FETCHED, got: Vec::new() };
        let reservation = Arc::new(Mutex::new(reservation));
        self.inner.modify(reservation.clone())?;
        self.inner.flush_commits()?;
        for numbers in std::mem::take(&mut reservation.lock().got) {
            self.journal.add_numbers(numbers)?;
            self.local.lock().numbers.push(numbers);
        }
        Ok(())
    }

    pub(super) fn return_numbers(&self, taken: &[Handle]) {
        let mut local = self.local.lock();
        for handle in taken {
            local.numbers.push(NumberRange { principal: handle.principal, first: handle.number, count: 1 });
        }
    }

    /// A fresh view if the server answers soon; otherwise the newest local one.
    pub(super) fn fetch(self: &Arc<Self>) -> Result<Arc<dyn View>, FsError> {
        if let Some(ended) = &self.local.lock().ended {
            return Err(ended.clone());
        }
        if !self.is_server_away() {
            let end = Instant::now() + FRESH_PATIENCE;
            let mut fetching = self.fetching.lock();
            // A fetch that already runs began before this call, so its view may be too old.
            let mine = fetching.started + 1;
            fetching.asked = fetching.asked.max(mine);
            self.fetched.notify_all();
            while fetching.done < mine {
                match interrupt::wait(&self.fetched, &mut fetching, Some(end)) {
                    Woken::Notified => {}
                    Woken::Interrupted => return Err(FsError::Interrupted),
                    Woken::Late => {
                        self.set_server_away(true);
                        break;
                    }
                }
            }
            if let Some(error @ FsError::Frozen(_)) = &fetching.last {
                return Err(error.clone());
            }
        }
        Ok(self.view())
    }

    pub(super) fn set_server_away(&self, away: bool) {
        if self.away.swap(away, SeqCst) != away {
            match away {
                true if self.options.gathers => tracing::warn!("the server is away"),
                true => tracing::warn!("the server is away; what is known here is shown, and edits are kept"),
                false => tracing::info!("the server is back"),
            }
            self.changed.notify_all();
        }
    }

    /// Body of the fetching thread: fetches views for callers, and probes an absent server to notice when it
    /// is back.
    pub(super) fn fetch_for_callers(self: &Arc<Self>) {
        loop {
            {
                let mut fetching = self.fetching.lock();
                while fetching.asked <= fetching.started {
                    if self.local.lock().stopping {
                        return;
                    }
                    let pause = if self.away.load(SeqCst) { PROBE_PAUSE } else { Duration::from_secs(1) };
                    let late = self.fetched.wait_until(&mut fetching, Instant::now() + pause).timed_out();
                    if late && self.away.load(SeqCst) && self.inner.is_reachable() {
                        fetching.asked = fetching.started + 1;
                    }
                }
                fetching.started += 1;
            }
            let result = self.inner.fetch(self.reads());
            let error = match result {
                Ok(view) => {
                    self.accept(view);
                    self.set_server_away(false);
                    None
                }
                Err(error) => {
                    self.set_server_away(matches!(error, FsError::Unreachable(_)));
                    Some(error)
                }
            };
            let mut fetching = self.fetching.lock();
            fetching.done = fetching.started;
            fetching.last = error;
            self.fetched.notify_all();
        }
    }

    pub(super) fn settle(&self, patience: Duration) -> Result<bool, FsError> {
        let end = Instant::now() + patience;
        let mut local = self.local.lock();
        let target = local.last;
        local.wanted = local.wanted.max(target);
        self.changed.notify_all();
        while local.done < target {
            if let Some(ended) = &local.ended {
                return Err(ended.clone());
            }
            match interrupt::wait(&self.changed, &mut local, Some(end)) {
                Woken::Notified => {}
                Woken::Late => return Ok(false),
                Woken::Interrupted => return Err(FsError::Interrupted),
            }
        }
        Ok(true)
    }

    pub(super) fn note_trouble(&self, trouble: FsError) {
        let mut local = self.local.lock();
        local.troubles += 1;
        local.trouble = Some(trouble);
        drop(local);
        self.changed.notify_all();
    }

    pub(super) fn report_conflicts(&self, told: Vec<ConflictReport>) {
        let mut local = self.local.lock();
        for told in told {
            tracing::warn!(path = told.path, "{}", told.what);
            if let Some(hook) = self.hook.get() {
                hook(&told);
            }
            if local.told.len() == TOLD_MAX {
                local.told.pop_front();
            }
            local.told.push_back(told);
        }
    }
}
