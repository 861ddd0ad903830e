//! Makes the signer's state durable, and tidies up when there is nothing else to do.

use super::{Operation, PAUSE_MAX, Pump, PumpEnd};
use crate::error::{FrozenReport, FsError};
use crate::evidence::now_ns;
use crate::state::{Frozen, StateError};
use crate::statement::{RefusedReply, Statement};
use holdfast_content::PrincipalId;
use holdfast_crypto::Digest;
use holdfast_protocol::alarm::{Alarm, Blame};
use holdfast_protocol::signer::Signer;
use std::sync::atomic::Ordering::Relaxed;

/// Replaced tables are dereferenced at the server when the pump is idle, and at the latest when there are
/// this many.
pub(super) const SUPERSEDED_MAX: usize = 256;

impl Pump {
    /// Makes the signer's state durable. Waits while the disk is full. Any other failure stops the pump,
    /// since it is then unknown what is durable.
    pub(super) fn persist(&mut self, signer: &Signer, operation: &Operation) -> Result<(), PumpEnd> {
        let _span = tracing::trace_span!(target: "operation", "sync state").entered();
        loop {
            match self.save(Some(signer)) {
                Ok(()) => return Ok(()),
                Err(StateError::Full) => {
                    self.fail_waiting(operation, &FsError::NoSpace);
                    if self.shared.queue.is_stopped() {
                        return Err(PumpEnd::Stopped);
                    }
                    std::thread::sleep(PAUSE_MAX);
                }
                Err(error) => {
                    self.shared.break_down(FsError::Local {
                        kind: std::io::ErrorKind::Other,
                        text: format!("the state of this device could not be saved: {error}"),
                    });
                    return Err(PumpEnd::Stopped);
                }
            }
        }
    }

    pub(super) fn save(&mut self, signer: Option<&Signer>) -> Result<(), StateError> {
        let noted = self.shared.notes.count();
        let allocator = self.reserve.as_ref().unwrap_or(&self.allocator).clone();
        let frozen = self.shared.frozen().map(|report| Frozen {
            what: report.what.clone(),
            noticed_ns: report.noticed_ns,
            last_good_operation: report.last_good_operation,
            evidence: report.evidence.as_ref().map(|path| path.display().to_string()),
        });
        self.state.save_signer(signer.unwrap_or(&self.signer), &allocator, frozen.as_ref())?;
        self.shared.notes.mark_durable(noted);
        self.shared.counters.fsyncs.store(self.state.syncs(), Relaxed);
        Ok(())
    }

    /// Writes evidence, and freezes the engine.
    pub(super) fn freeze(&mut self, alarm: &Alarm) {
        let what = alarm.explain();
        let is_restored = alarm.blame() == Blame::Nobody;
        let refused = RefusedReply { alarm: alarm.clone(), reply: self.reply.take() };
        // The server is not asked any more; the membership was read a moment ago, so it is in a cache.
        let near = self.shared.store.near();
        let statement = Statement::of(self.signer.floor().clone(), Some(refused), &near);
        let evidence = match is_restored {
            true => None,
            false => self.shared.evidence.keep_order(what.clone(), statement),
        };
        self.shared.freeze(FrozenReport {
            what,
            noticed_ns: now_ns(),
            last_good_operation: self.signer.floor().last(),
            evidence,
            is_local: alarm.blame() == Blame::LocalState,
            is_restored,
        });
        // Saves the report, so that a restart finds more than the alarm.
        let _ = self.save(None);
    }

    /// Dereferences replaced tables at the server. Called when no request waits.
    pub(super) fn give_up_superseded(&mut self) {
        if !self.superseded.is_empty() {
            let superseded = std::mem::take(&mut self.superseded);
            if let Err(error) = self.shared.store.dereference(superseded) {
                tracing::debug!(%error, "superseded tables are left to the collector");
            }
            self.shared.counters.replaced_tables.store(0, Relaxed);
        }
    }

    /// Makes pending notes durable.
    pub(super) fn keep_notes(&mut self) {
        if self.shared.notes.has_pending()
            && let Err(error) = self.save(None)
        {
            tracing::debug!(%error, "a note could not be saved; a restart will ask the server instead");
            self.shared.notes.fail(match error {
                StateError::Full => FsError::NoSpace,
                error => FsError::Local {
                    kind: std::io::ErrorKind::Other,
                    text: format!("the state of this device could not be saved: {error}"),
                },
            });
        }
    }

    pub(super) fn own_table(&self) -> Option<Digest> {
        let own = PrincipalId::Device(self.shared.me);
        self.signer.floor().own()?.value.handles.get(&own).map(|handle| handle.reference.address)
    }

    /// Remembers a table of this device that an operation has replaced; nothing refers to it any more.
    pub(super) fn remember_superseded(&mut self, former: Option<Digest>) {
        let present = self.own_table();
        self.superseded.extend(former);
        self.superseded.retain(|table| Some(*table) != present);
        self.shared.counters.replaced_tables.store(self.superseded.len() as u64, Relaxed);
    }
}
