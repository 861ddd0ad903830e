//! Has witnesses co-sign the heads of every file system's log, every few seconds (`docs/internals/forks.md`).
//!
//! One thread a witness, so that none waits for a slow one. What a witness answers is believed as far as its signature
//! reaches; what it does not answer holds nothing up: clients decide how old a head may be.

use crate::error::RunError;
use crate::file_system::FileSystem;
use crate::host::Host;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_checkpoint::checkpoint::log_key;
use holdfast_checkpoint::note::{KeyKind, VerifierKey};
use holdfast_checkpoint::submission::Submission;
use holdfast_crypto::Digest;
use holdfast_protocol::message::HEADS_MAX;
use holdfast_witness::{AskError, Asked, Asker};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Attempts in one round: the first may only tell where the witness is.
const ATTEMPTS: u32 = 3;

/// A witness, and where it is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WitnessAt {
    /// Its submission prefix.
    pub url: String,
    /// How its cosignatures are verified.
    pub key: VerifierKey,
}

/// How a witness stands with one file system.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct WitnessStanding {
    /// Its key.
    pub key: String,
    /// Where it is asked.
    pub url: String,
    /// Size of the head it co-signed last, and when, in seconds since 1970 by its clock; since the server started.
    pub newest: Option<(u64, u64)>,
    /// Why it did not when it was last asked.
    pub trouble: Option<String>,
}

/// A file system's log, as its witnesses know it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct LogStanding {
    /// The file system.
    pub file_system: Digest,
    /// The key by which witnesses verify its checkpoints; its name is the log's origin.
    pub key: String,
    /// Size of the log of updates.
    pub size: u64,
    /// The witnesses asked.
    pub witnesses: Vec<WitnessStanding>,
}

/// The threads that ask.
pub(crate) struct Witnessing(Arc<Shared>);

/// What they share.
#[derive(Default)]
pub(crate) struct Shared {
    witnesses: Vec<WitnessAt>,
    troubles: Mutex<Vec<std::collections::BTreeMap<Digest, String>>>,
    stopped: Mutex<bool>,
    stop: Condvar,
}

impl Witnessing {
    /// Starts them; none if there are no witnesses.
    pub(crate) fn start(
        host: &Arc<Host>,
        witnesses: &[WitnessAt],
        every: Duration,
    ) -> Result<Witnessing, RunError> {
        if witnesses.len() > HEADS_MAX {
            return Err(RunError::Witness(format!("at most {HEADS_MAX} witnesses can be asked")));
        }
        let shared = Arc::new(Shared {
            witnesses: witnesses.to_vec(),
            troubles: Mutex::new(vec![Default::default(); witnesses.len()]),
            ..Shared::default()
        });
        let begin = Instant::now();
        for (place, WitnessAt { url, key }) in witnesses.iter().enumerate() {
            if key.kind() != KeyKind::Cosignature {
                return Err(RunError::Witness(format!("{key} is the key of a log, not of a witness")));
            }
            let asker = Asker::new(url, key.clone()).map_err(|error| RunError::Witness(error.to_string()))?;
            let (shared, host) = (shared.clone(), Arc::downgrade(host));
            std::thread::Builder::new()
                .name(format!("witness-{place}"))
                .spawn(move || shared.keep_asking(&host, place, &asker, begin, every))?;
        }
        Ok(Witnessing(shared))
    }

    pub(crate) fn shown(&self) -> Arc<Shared> {
        self.0.clone()
    }

    /// They end with what they are doing; nobody waits for them.
    pub(crate) fn stop(&self) {
        *self.0.stopped.lock() = true;
        self.0.stop.notify_all();
    }
}

impl Shared {
    fn keep_asking(&self, host: &Weak<Host>, place: usize, asker: &Asker, begin: Instant, every: Duration) {
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
            // Rounds that a slow witness has missed are not made up for.
            if Instant::now() > due + every {
                continue;
            }
            let Some(host) = host.upgrade() else { return };
            for file_system in host.file_systems() {
                if *self.stopped.lock() {
                    return;
                }
                let asked = host.have_signed(&file_system, place, every / 2, &mut |sent| asker.ask(sent));
                self.note(place, &file_system, asker, asked.err());
            }
        }
    }

    /// Remembers a trouble, and logs when it begins, changes or ends.
    fn note(&self, place: usize, file_system: &FileSystem, asker: &Asker, trouble: Option<String>) {
        let mut troubles = self.troubles.lock();
        let Some(known) = troubles.get_mut(place) else { return };
        let id = file_system.id();
        let before = known.get(&id);
        if before == trouble.as_ref() {
            return;
        }
        let witness = asker.witness().name();
        match &trouble {
            Some(why) => tracing::warn!(witness, file_system = %id, why, "a head was not co-signed"),
            None => tracing::info!(witness, file_system = %id, "heads are co-signed again"),
        }
        match trouble {
            Some(why) => known.insert(id, why),
            None => known.remove(&id),
        };
    }

    /// How everything stands.
    pub(crate) fn standing(&self, host: &Host) -> Vec<LogStanding> {
        let troubles = self.troubles.lock();
        let of = |file_system: &FileSystem| LogStanding {
            file_system: file_system.id(),
            key: log_key(&file_system.epoch(), host.server_key()).to_string(),
            size: file_system.log_size(),
            witnesses: self
                .witnesses
                .iter()
                .enumerate()
                .map(|(place, witness)| WitnessStanding {
                    key: witness.key.to_string(),
                    url: witness.url.clone(),
                    newest: file_system.head_of_witness(place),
                    trouble: troubles.get(place).and_then(|known| known.get(&file_system.id()).cloned()),
                })
                .collect(),
        };
        host.file_systems().iter().map(|file_system| of(file_system)).collect()
    }
}

impl Host {
    /// Has a witness, known by its place among all, sign the newest head of a file system: `ask` asks it. A head is made
    /// anew if operations came since and the last one is older than `gap`.
    ///
    /// # Errors
    /// Why it did not sign, in words.
    pub fn have_signed(
        &self,
        file_system: &FileSystem,
        place: usize,
        gap: Duration,
        ask: &mut dyn FnMut(&Submission) -> Result<Asked, AskError>,
    ) -> Result<(), String> {
        let gap_ms = gap.as_millis() as u64;
        for _ in 0..ATTEMPTS {
            let submission = file_system
                .submission(self, place, gap_ms)
                .map_err(|refused| format!("no head could be made: {}", refused.into_error()))?;
            match ask(&submission) {
                Ok(Asked::Cosigned(line, time_s)) => {
                    file_system.cosigned(place, &submission.note, line, time_s);
                    return Ok(());
                }
                Ok(Asked::OldSize(size)) => {
                    if !file_system.witness_is_at(place, size) {
                        return Err(format!(
                            "it has co-signed {size} operations, and this server has only {}: operations are lost, or \
                             the data is that of an older backup. It will not sign another history",
                            file_system.log_size()
                        ));
                    }
                }
                Err(AskError::Refused { status: status @ (409 | 422), text }) => {
                    return Err(format!(
                        "it does not take the head for one that follows what it signed last (status {status}: {text}): \
                         the data is another history than the one it knows"
                    ));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("it says again and again that it signed another size last".to_owned())
    }
}
