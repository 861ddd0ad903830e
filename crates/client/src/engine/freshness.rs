//! The freshness monitor: checks the age of the newest head that witnesses co-signed, and acts when it is too
//! old.
//!
//! Attack answered: a server that separates members for ever, showing each a history that is true but
//! incomplete. It can have only one of these histories co-signed ([`holdfast_checkpoint::head`]). So on all
//! the others the newest head grows old, and the mount does what its user has chosen: it warns, refuses
//! changes, or stops.
//!
//! Invariants:
//! - A head counts only if it is within the log that this client has accepted.
//! - The age is computed when it is needed, so a server that does not answer cannot make a head look younger.
//! - A co-signed head that is *not* within the accepted log freezes everything, with evidence.
//! - While the head is too old, edits that wait to be sent go on waiting: nothing is lost.

use super::leases::now_ms;
use super::queue::{QueuedEvent, SignerEvent};
use super::shared::Shared;
use super::stop::Stop;
use crate::error::{FrozenReport, FsError};
use crate::evidence::now_ns;
use holdfast_checkpoint::freshness::{Freshness, FreshnessStatus, default_quorum};
use holdfast_checkpoint::head::{self, HeadError};
use holdfast_checkpoint::note::VerifierKey;
use holdfast_crypto::encode;
use holdfast_protocol::message::{HEADS_MAX, Request, Response, WitnessedHead};
use holdfast_protocol::structure::LogHead;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long one request to the server may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time for which a start waits for a first head.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Longest and shortest pause between requests.
const PAUSE_MAX: Duration = Duration::from_secs(5);
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// Most notes remembered. They prove that a server signed two different histories, if it does.
const NOTES_MAX: usize = 64;

/// What a mount does while the newest head is too old.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenStale {
    /// Warns, and goes on.
    Warn,
    /// Refuses changes; what was read before can still be read.
    ReadOnly,
    /// Refuses reads and changes.
    Stop,
}

/// The witnesses to trust, and what to do when a head is too old.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WitnessPolicy {
    /// Keys of the trusted witnesses.
    pub witnesses: Vec<VerifierKey>,
    /// How many witnesses must co-sign a head. `None`: so many that any two quorums share more witnesses than
    /// may be dishonest.
    pub quorum: Option<usize>,
    /// Age at which a head counts as stale.
    pub stale_after: Duration,
    /// What a mount does when the head is stale.
    pub when_stale: WhenStale,
}

impl WitnessPolicy {
    /// How many witnesses must have co-signed a head.
    pub fn quorum(&self) -> usize {
        self.quorum.unwrap_or_else(|| default_quorum(self.witnesses.len()))
    }
}

/// Status of the newest head that witnesses co-signed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct HeadStatus {
    /// Its age in seconds; `None` before the first head.
    pub age_s: Option<u64>,
    /// Whether it is older than `stale_after_s`.
    pub is_stale: bool,
    /// Age at which a head counts as stale, in seconds.
    pub stale_after_s: u64,
    /// What this mount does when the head is stale.
    pub when_stale: WhenStale,
    /// Number of operations that the head covers.
    pub operations: u64,
    /// Number of witnesses that are trusted.
    pub witnesses: usize,
    /// Number of them that have co-signed a head lately.
    pub vouching: usize,
    /// How many of them must have co-signed a head.
    pub quorum: usize,
    /// The problem with the server's last answer, if there was one.
    pub trouble: Option<String>,
}

/// Called when the head becomes stale or fresh again: whether it is stale now, and a text for the user.
pub type StaleHook = Box<dyn Fn(bool, &str) + Send + Sync>;

/// Monitors the age of the newest head.
pub(super) struct FreshnessMonitor {
    policy: WitnessPolicy,
    state: Mutex<State>,
    hooks: Mutex<Vec<StaleHook>>,
    stop: Stop,
}

struct State {
    freshness: Freshness,
    newest: Option<LogHead>,
    notes: BTreeMap<u64, String>,
    trouble: Option<String>,
    was_stale: Option<bool>,
}

impl FreshnessMonitor {
    pub fn new(policy: WitnessPolicy) -> FreshnessMonitor {
        let wall_ms = (now_ns().max(0) / 1_000_000) as u64;
        let freshness =
            Freshness::new(policy.witnesses.len(), policy.quorum(), policy.stale_after, wall_ms, now_ms());
        let state = State { freshness, newest: None, notes: BTreeMap::new(), trouble: None, was_stale: None };
        FreshnessMonitor { policy, state: Mutex::new(state), hooks: Mutex::default(), stop: Stop::default() }
    }

    fn standing(&self) -> FreshnessStatus {
        self.state.lock().freshness.status(now_ms())
    }

    /// The restriction now in force; `None` if nothing is refused.
    fn refuses(&self) -> Option<WhenStale> {
        (self.policy.when_stale != WhenStale::Warn && self.standing().is_stale)
            .then_some(self.policy.when_stale)
    }

    /// Whether programs may read, as far as the age of the head decides.
    pub fn may_read(&self) -> Result<(), FsError> {
        match self.refuses() {
            Some(WhenStale::Stop) => Err(FsError::Outdated(self.words())),
            _ => Ok(()),
        }
    }

    /// Whether programs may change anything, as far as the age of the head decides.
    pub fn may_change(&self) -> Result<(), FsError> {
        match self.refuses() {
            Some(WhenStale::Stop) => Err(FsError::Outdated(self.words())),
            Some(_) => Err(FsError::ReadOnly),
            None => Ok(()),
        }
    }

    /// Whether an operation may be made. Edits that wait to be sent go on waiting, as for a server that is
    /// away.
    pub fn may_operate(&self, changes: bool) -> Result<(), FsError> {
        match self.refuses() {
            Some(WhenStale::Stop) => Err(FsError::Unreachable(self.words())),
            Some(_) if changes => Err(FsError::Unreachable(self.words())),
            _ => Ok(()),
        }
    }

    /// A text that says how old the head is and what to do about it.
    fn words(&self) -> String {
        let status = self.status();
        let age = match status.age_s {
            Some(age_s) => format!("{age_s} s old, and {} s are allowed", status.stale_after_s),
            None => "not there: no witness has vouched for what this server shows".to_owned(),
        };
        let why = match &status.trouble {
            Some(trouble) => trouble.clone(),
            None => {
                "either witnesses are away, or the server shows this device a history that they do not know"
                    .to_owned()
            }
        };
        format!(
            "the newest head that {} of {} witnesses vouch for is {age} ({why}). Ask other members what they see, and the \
             operator what `holdfast server witnesses` says; a clock of this machine that is ahead has the same effect",
            status.quorum, status.witnesses
        )
    }

    pub fn status(&self) -> HeadStatus {
        let state = self.state.lock();
        let now_ms = now_ms();
        let FreshnessStatus { age_s, is_stale } = state.freshness.status(now_ms);
        HeadStatus {
            age_s,
            is_stale,
            stale_after_s: self.policy.stale_after.as_secs(),
            when_stale: self.policy.when_stale,
            operations: state.newest.map_or(0, |head| head.size),
            witnesses: self.policy.witnesses.len(),
            vouching: state.freshness.vouching(now_ms),
            quorum: self.policy.quorum(),
            trouble: state.trouble.clone(),
        }
    }

    /// Registers a hook, and calls it at once if the head is already too old.
    pub fn on_change(&self, hook: StaleHook) {
        if self.state.lock().was_stale == Some(true) {
            hook(true, &self.words());
        }
        self.hooks.lock().push(hook);
    }

    /// Asks the server until there is a fresh head, for a limited time.
    pub fn begin(&self, shared: &Shared) {
        let end = Instant::now() + self.policy.stale_after.min(START_PATIENCE);
        while self.look(shared) && self.standing().is_stale && Instant::now() < end {
            if self.stop.pause(PAUSE_MIN) {
                return;
            }
        }
        self.tell();
    }

    /// Body of the monitor's thread: asks the server for heads until it is stopped.
    pub fn run(&self, shared: &Shared) {
        let pause = (self.policy.stale_after / 4).clamp(PAUSE_MIN, PAUSE_MAX);
        loop {
            self.tell();
            let pause = if self.standing().is_stale { PAUSE_MIN.max(pause / 4) } else { pause };
            if self.stop.pause(pause) || !self.look(shared) {
                return;
            }
        }
    }

    pub fn stop(&self) {
        self.stop.ask();
    }

    /// Asks the server once; if the answer is old, fetches a newer view and asks again, because witnesses may
    /// have signed a head beyond the accepted log. `false`: everything is frozen.
    fn look(&self, shared: &Shared) -> bool {
        if !self.ask(shared) {
            return false;
        }
        let half_s = self.policy.stale_after.as_secs() / 2;
        if self.standing().age_s.is_none_or(|age_s| age_s > half_s) {
            shared.look(PATIENCE);
            return self.ask(shared);
        }
        true
    }

    fn ask(&self, shared: &Shared) -> bool {
        let floor = shared.latest.read().floor.clone();
        let accepted = floor.log();
        let request = Request::Witnessed { log_size: accepted.size };
        let heads = match shared.remote.call(request, PATIENCE) {
            Ok(Response::Witnessed(heads)) => heads,
            Ok(Response::Error(error)) => {
                return self.note(Some(format!("the server does not say: {error}")));
            }
            Ok(_) => return self.note(Some("the server knows of no witnesses".to_owned())),
            Err(error) => return self.note(Some(format!("the server does not say: {error}"))),
        };
        if heads.is_empty() {
            return self.note(Some("the server has no head within what this device has seen".to_owned()));
        }
        let servers = floor.server_keys.as_ref().map_or(&[][..], |list| &list.value.keys);
        let mut trouble = None;
        for shown in heads.iter().take(HEADS_MAX) {
            match head::verify(&floor.epoch, servers, &self.policy.witnesses, accepted, shown) {
                Ok(vouched) => {
                    let mut state = self.state.lock();
                    state.freshness.handle_vouched(&vouched.by, now_ms());
                    state.newest = state.newest.max(Some(vouched.head));
                    state.notes.insert(vouched.head.size, shown.note.clone());
                    if state.notes.len() > NOTES_MAX {
                        state.notes.pop_first();
                    }
                }
                Err(error @ HeadError::OtherHistory { witnessed, .. }) => {
                    self.freeze(shared, &error, witnessed, encode(&*floor), shown);
                    return false;
                }
                Err(error) => trouble = Some(error.to_string()),
            }
        }
        self.note(trouble)
    }

    fn note(&self, trouble: Option<String>) -> bool {
        self.state.lock().trouble = trouble;
        true
    }

    fn freeze(
        &self,
        shared: &Shared,
        error: &HeadError,
        witnessed: u64,
        floor: Vec<u8>,
        shown: &WitnessedHead,
    ) {
        let earlier = self.state.lock().notes.get(&witnessed).cloned();
        let mut what = error.to_string();
        if earlier.is_some() {
            what.push_str(
                "; it has signed two different histories of the same length, which convicts it by its own hand",
            );
        }
        let evidence = shared.evidence.keep_head(what.clone(), floor, encode(shown), earlier);
        let last_good_operation = shared.last_operation.load(Relaxed);
        let report = FrozenReport::of_server(what, last_good_operation, evidence);
        shared.freeze_for_good(report);
    }

    /// Calls the hooks if the head has become stale or fresh.
    fn tell(&self) {
        let is_stale = self.standing().is_stale;
        let changed = {
            let mut state = self.state.lock();
            let changed = state.was_stale != Some(is_stale) && (is_stale || state.was_stale.is_some());
            state.was_stale = Some(is_stale);
            changed
        };
        if !changed {
            return;
        }
        let words = if is_stale { self.words() } else { "witnesses vouch for it again".to_owned() };
        match is_stale {
            true => tracing::warn!(why = words, "the newest head is too old"),
            false => tracing::info!("the newest head is fresh again"),
        }
        self.hooks.lock().iter().for_each(|hook| hook(is_stale, &words));
    }
}

impl Shared {
    /// Makes the signer fetch the present view, without an operation.
    pub fn look(&self, patience: Duration) {
        // Otherwise the signer would wait for an absent server, and everybody else for the signer.
        if !self.remote.is_connected() {
            return;
        }
        let (done, told) = std::sync::mpsc::channel();
        if self.queue.push_event(QueuedEvent { event: SignerEvent::Look, done }) {
            let _ = told.recv_timeout(patience);
        }
    }

    /// Freezes the engine, and saves that it is frozen, so that restarts find it.
    pub fn freeze_for_good(&self, report: FrozenReport) {
        let (done, told) = std::sync::mpsc::channel();
        if self.queue.push_event(QueuedEvent { event: SignerEvent::Froze(Box::new(report.clone())), done }) {
            let _ = told.recv_timeout(PATIENCE);
        }
        self.freeze(report);
    }
}
