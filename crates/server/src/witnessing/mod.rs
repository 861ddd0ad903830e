//! Has witnesses co-sign the heads of every file system's log, every few seconds (`docs/internals/forks.md`).
//!
//! There is one thread for each witness, so that none waits for a slow one. A witness's reply counts only if
//! its signature is valid. A witness that does not reply delays nothing: clients decide how old a head may
//! be.

pub use crate::config::WitnessAddress;

use crate::error::{RunError, WitnessSettingsError};
use crate::file_system::FileSystem;
use crate::server_core::ServerCore;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_checkpoint::checkpoint::log_key;
use holdfast_checkpoint::note::KeyKind;
use holdfast_checkpoint::submission::Submission;
use holdfast_crypto::Digest;
use holdfast_protocol::message::{HEADS_MAX, ServerError};
use holdfast_witness::{WitnessClient, WitnessError, WitnessReply};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Number of attempts in one round. The first attempt may only learn which head the witness signed last.
const ATTEMPTS: u32 = 3;

/// The status of one witness for one file system.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct WitnessStatus {
    /// The witness's verifier key, as text.
    pub key: String,
    /// The submission prefix of the witness's URL.
    pub url: String,
    /// The size of the head that it co-signed last since this server started, and the time of that by its own
    /// clock, in seconds since 1970.
    pub newest: Option<(u64, u64)>,
    /// Why the last request to it failed; `None` if it succeeded.
    pub trouble: Option<String>,
}

/// The status of a file system's log with its witnesses.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct LogStatus {
    /// The file system.
    pub file_system: Digest,
    /// The key by which witnesses verify its checkpoints; its name is the log's origin.
    pub key: String,
    /// Size of the log of updates.
    pub size: u64,
    /// The configured witnesses.
    pub witnesses: Vec<WitnessStatus>,
}

/// The threads that ask witnesses to co-sign, one for each witness.
pub(crate) struct WitnessPoller(Arc<Shared>);

/// The state that these threads share.
#[derive(Default)]
pub(crate) struct Shared {
    witnesses: Vec<WitnessAddress>,
    troubles: Mutex<Vec<std::collections::BTreeMap<Digest, CosignatureError>>>,
    stopped: Mutex<bool>,
    stop: Condvar,
}

impl WitnessPoller {
    /// Starts the threads, one for each witness.
    pub(crate) fn start(
        core: &Arc<ServerCore>,
        witnesses: &[WitnessAddress],
        every: Duration,
    ) -> Result<WitnessPoller, RunError> {
        if witnesses.len() > HEADS_MAX {
            return Err(WitnessSettingsError::TooMany(HEADS_MAX).into());
        }
        let shared = Arc::new(Shared {
            witnesses: witnesses.to_vec(),
            troubles: Mutex::new(vec![Default::default(); witnesses.len()]),
            ..Shared::default()
        });
        let begin = Instant::now();
        for (index, WitnessAddress { url, key }) in witnesses.iter().enumerate() {
            if key.kind() != KeyKind::Cosignature {
                return Err(WitnessSettingsError::KeyOfLog(key.clone()).into());
            }
            let client = WitnessClient::new(url, key.clone()).map_err(WitnessSettingsError::Client)?;
            let (shared, core) = (shared.clone(), Arc::downgrade(core));
            std::thread::Builder::new()
                .name(format!("witness-{index}"))
                .spawn(move || shared.poll(&core, index, &client, begin, every))?;
        }
        Ok(WitnessPoller(shared))
    }

    pub(crate) fn shared_state(&self) -> Arc<Shared> {
        self.0.clone()
    }

    /// Has the threads end after the request they are carrying out. Does not wait for them.
    pub(crate) fn stop(&self) {
        *self.0.stopped.lock() = true;
        self.0.stop.notify_all();
    }
}

impl Shared {
    fn poll(
        &self,
        core: &Weak<ServerCore>,
        index: usize,
        client: &WitnessClient,
        begin: Instant,
        every: Duration,
    ) {
        for round in 0u32.. {
            let due = begin + every.saturating_mul(round);
            let mut stopped = self.stopped.lock();
            while !*stopped && Instant::now() < due {
                self.stop.wait_until(&mut stopped, due);
            }
            if *stopped {
                return;
            }
            drop(stopped);
            // Rounds that were missed because the witness was slow are not repeated.
            if Instant::now() > due + every {
                continue;
            }
            let Some(core) = core.upgrade() else { return };
            for file_system in core.file_systems() {
                if *self.stopped.lock() {
                    return;
                }
                let outcome =
                    file_system.request_cosignature(index, every / 2, &mut |sent| client.submit(sent));
                self.note(index, &file_system, client, outcome.err());
            }
        }
    }

    /// Notes why a request failed, or that it succeeded, and logs each change.
    fn note(
        &self,
        index: usize,
        file_system: &FileSystem,
        client: &WitnessClient,
        trouble: Option<CosignatureError>,
    ) {
        let mut troubles = self.troubles.lock();
        let Some(known) = troubles.get_mut(index) else { return };
        let id = file_system.id();
        let before = known.get(&id);
        if before == trouble.as_ref() {
            return;
        }
        let witness = client.witness().name();
        match &trouble {
            Some(why) => tracing::warn!(witness, file_system = %id, %why, "a head was not co-signed"),
            None => tracing::info!(witness, file_system = %id, "heads are co-signed again"),
        }
        match trouble {
            Some(why) => known.insert(id, why),
            None => known.remove(&id),
        };
    }

    /// The status of every file system's log with every witness.
    pub(crate) fn status(&self, core: &ServerCore) -> Vec<LogStatus> {
        let troubles = self.troubles.lock();
        let of = |file_system: &FileSystem| LogStatus {
            file_system: file_system.id(),
            key: log_key(&file_system.epoch(), core.server_key()).to_string(),
            size: file_system.log_size(),
            witnesses: self
                .witnesses
                .iter()
                .enumerate()
                .map(|(index, witness)| WitnessStatus {
                    key: witness.key.to_string(),
                    url: witness.url.clone(),
                    newest: file_system.head_of_witness(index),
                    trouble: troubles
                        .get(index)
                        .and_then(|known| known.get(&file_system.id()))
                        .map(ToString::to_string),
                })
                .collect(),
        };
        core.file_systems().iter().map(|file_system| of(file_system)).collect()
    }
}

/// Why a witness did not co-sign.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CosignatureError {
    /// This server could not make a head to be signed.
    #[error("no head could be made: {0}")]
    NoHead(ServerError),
    /// The witness has co-signed a head with more operations than this server has.
    #[error(
        "it has co-signed {signed} operations, and this server has only {here}: operations are lost, or the data is that of an \
         older backup. It will not sign another history"
    )]
    OperationsLost {
        /// Operations in the head it signed last.
        signed: u64,
        /// Operations in the log here.
        here: u64,
    },
    /// The witness has co-signed a head of another history.
    #[error(
        "it does not take the head for one that follows what it signed last (status {status}: {text}): the data is another \
         history than the one it knows"
    )]
    OtherHistory {
        /// The status of its reply.
        status: u16,
        /// The text of its reply.
        text: String,
    },
    /// The witness could not be reached, or refused, or its reply is not valid.
    #[error(transparent)]
    Witness(WitnessError),
    /// Each reply names a different size as the last one signed.
    #[error("it says again and again that it signed another size last")]
    Unsteady,
}

impl FileSystem {
    /// Asks a witness to co-sign the newest head. `index` is the position of the witness in the configured
    /// list, and `submit` sends the request. A new head is made if there were operations since the last one
    /// and it is older than `gap`.
    ///
    /// # Errors
    /// [`CosignatureError`]
    pub fn request_cosignature(
        &self,
        index: usize,
        gap: Duration,
        submit: &mut dyn FnMut(&Submission) -> Result<WitnessReply, WitnessError>,
    ) -> Result<(), CosignatureError> {
        let gap_ms = gap.as_millis() as u64;
        for _ in 0..ATTEMPTS {
            let submission = self
                .submission(index, gap_ms)
                .map_err(|refused| CosignatureError::NoHead(refused.into_error()))?;
            match submit(&submission) {
                Ok(WitnessReply::Cosigned(line, time_s)) => {
                    self.cosigned(index, &submission.note, line, time_s);
                    return Ok(());
                }
                Ok(WitnessReply::OldSize(signed)) => {
                    if !self.witness_is_at(index, signed) {
                        return Err(CosignatureError::OperationsLost { signed, here: self.log_size() });
                    }
                }
                Err(WitnessError::Refused { status: status @ (409 | 422), text }) => {
                    return Err(CosignatureError::OtherHistory { status, text });
                }
                Err(error) => return Err(CosignatureError::Witness(error)),
            }
        }
        Err(CosignatureError::Unsteady)
    }
}
