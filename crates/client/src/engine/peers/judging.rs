//! Judges what peers report, and asks the server for operations that this device was not shown.
//!
//! A peer's operation that is missing here is first looked for in the present view, which needs no operation.
//! If it is not there, this device makes an (empty) operation of its own: an honest server orders that after
//! the peer's, and a server that does not has then signed two receipts that contradict each other.

use super::Peers;
use crate::engine::leases::now_ms;
use crate::engine::shared::Shared;
use crate::error::FrozenReport;
use crate::evidence::now_ns;
use crate::statement::{Statement, device_name};
use holdfast_content::DeviceId;
use holdfast_protocol::judge::Contradiction;
use holdfast_protocol::peers::{DeviceProgress, Finding, Offence, UnseenState, judge};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long to wait for a connection to the server.
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);
/// How long to wait for the present view.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait for the receipt for an operation of this device.
const RECEIPT_PATIENCE: Duration = Duration::from_secs(10);
/// How often the view is checked meanwhile.
const GLANCE: Duration = Duration::from_millis(20);
/// After how long a report that could not be judged is judged again.
const AGAIN_MS: u64 = 3_000;
/// Shortest time between two operations that are made only because of a peer's unproven report.
const WORDS_MS_MIN: u64 = 20_000;
/// Longest sleep while there is nothing to judge.
const IDLE: Duration = Duration::from_secs(1);

/// Body of the thread that judges what peers report, until it is stopped.
pub(super) fn run(peers: &Arc<Peers>, shared: &Arc<Shared>) {
    let mut judge = Judge { peers, shared, operated_ms: None };
    while !peers.stop.is_asked() {
        let due = {
            let mut state = peers.state.lock();
            let now = now_ms();
            let due: Vec<(DeviceId, DeviceProgress)> = (state.known.iter_mut())
                .filter(|(_, known)| known.judge_at_ms <= now)
                .filter_map(|(device, known)| {
                    let said = known.said.as_ref()?;
                    // This delay applies only to the present report: a later one is judged at once.
                    known.judge_at_ms = now + AGAIN_MS;
                    Some((*device, DeviceProgress::clone(said)))
                })
                .collect();
            if due.is_empty() {
                peers.said.wait_for(&mut state, IDLE);
                continue;
            }
            due
        };
        for (device, latest) in due {
            // A frozen engine has nothing left to judge.
            if peers.stop.is_asked() || shared.check().is_err() {
                peers.stop.pause(IDLE);
                break;
            }
            judge.one(device, &latest);
        }
    }
}

struct Judge<'a> {
    peers: &'a Peers,
    shared: &'a Arc<Shared>,
    /// When an operation was last made because of a peer's unproven report.
    operated_ms: Option<u64>,
}

impl Judge<'_> {
    fn find(&self, device: DeviceId, latest: &DeviceProgress) -> Result<Finding, Offence> {
        let place = self.shared.latest.read().clone();
        judge(&place.floor, &*place.base.membership, device, latest)
    }

    /// Whether the server is connected. An idle mount whose last connection broke has none: one is made now.
    fn is_server_there(&self) -> bool {
        self.shared.remote.is_connected() || self.shared.remote.wait_until_connected(CONNECT_PATIENCE).is_ok()
    }

    fn one(&mut self, device: DeviceId, latest: &DeviceProgress) {
        let outcome = self.find(device, latest).and_then(|found| match found {
            Finding::Unseen(_) if self.is_server_there() => {
                self.shared.look(LOOK_PATIENCE);
                match self.find(device, latest)? {
                    Finding::Unseen(what) => {
                        self.operate(what);
                        self.find(device, latest)
                    }
                    found => Ok(found),
                }
            }
            found => Ok(found),
        });
        let mut state = self.peers.state.lock();
        let known = state.known.entry(device).or_default();
        match outcome {
            Ok(Finding::Agrees) => {
                known.agreed = Some((latest.log.size, now_ns()));
                known.trouble = None;
                // If the peer has reported more meanwhile, that is still to be judged.
                known.said.take_if(|said| **said == *latest);
            }
            Ok(Finding::Unseen(what)) => {
                known.trouble = Some(match (what, self.shared.remote.is_connected()) {
                    (_, false) => "it has seen more than this device, and the server is away".to_owned(),
                    (UnseenState::Operation(number), true) => {
                        format!("the server has not shown its operation {number} here")
                    }
                    (UnseenState::Log(size), true) => {
                        format!(
                            "it says that it has seen {size} operations that the server has not shown here"
                        )
                    }
                });
            }
            Ok(Finding::Convicted(contradiction)) => {
                drop(state);
                self.freeze(device, latest, &contradiction);
            }
            Err(offence) => {
                known.said.take_if(|said| **said == *latest);
                known.trouble = Some(offence.to_string());
                tracing::warn!(device = device.0, %offence, "a peer is not to be believed");
            }
        }
    }

    /// Makes an operation of this device, and waits for the server's receipt.
    fn operate(&mut self, why: UnseenState) {
        if matches!(why, UnseenState::Log(_)) {
            let now = now_ms();
            if self.operated_ms.is_some_and(|before| now.saturating_sub(before) < WORDS_MS_MIN) {
                return;
            }
            self.operated_ms = Some(now);
        }
        let before = self.shared.latest.read().floor.last();
        if let Err(error) = self.shared.submit_freely(None) {
            tracing::info!(%error, "the server could not be asked for what a peer has seen");
            return;
        }
        let end = Instant::now() + RECEIPT_PATIENCE;
        while Instant::now() < end && !self.peers.stop.pause(GLANCE) {
            let floor = self.shared.latest.read().floor.clone();
            if floor.last() > before && DeviceProgress::of(&floor).operation.is_some() {
                return;
            }
        }
    }

    fn freeze(&self, device: DeviceId, latest: &DeviceProgress, contradiction: &Contradiction) {
        let place = self.shared.latest.read().clone();
        let name = device_name(&place.base.membership, device);
        let what = format!(
            "{name} was met directly, and the server has shown it another history than this device: {}, and {}: {}. Both \
             operations have the server's receipts, which convict whoever has its key; the evidence file holds them, and \
             anybody can check it (`holdfast evidence verify`). Nothing the server shows can be trusted until you have \
             compared notes with the others; save unsaved work with `holdfast salvage`",
            contradiction.first.0, contradiction.second.0, contradiction.clash
        );
        let evidence = latest.operation.clone().and_then(|operation| {
            let statement = Statement::of((*place.floor).clone(), None, &self.shared.store.near());
            self.shared.evidence.keep_meeting(what.clone(), statement, operation)
        });
        self.peers.state.lock().note(device, Some("the server has shown it another history".to_owned()));
        let last_good_operation = self.shared.last_operation.load(Relaxed);
        let report = FrozenReport::of_server(what, last_good_operation, evidence);
        self.shared.freeze_for_good(report);
    }
}
