//! Leases: operations that wait for holders to give them up, and grants at an operation's position in the
//! order.

use super::FileSystem;
use super::lease_state::Claim;
use super::ledger::Ledger;
use crate::notes::{NotedSession, note_of, with_noted};
use crate::order::{Notes, OrderError};
use holdfast_content::{DeviceId, Membership};
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::leases::{Footprint, LeaseGrant, LeaseRequest, Recall};
use holdfast_protocol::locks::SessionId;
use tokio::sync::futures::Notified;

/// What an operation changes and reads.
fn touched(
    membership: &Membership,
    device: DeviceId,
    certificate: &Certificate,
    lease_request: Option<&LeaseRequest>,
) -> Footprint {
    Footprint::by(certificate, membership)
        .reading(lease_request, |principal| membership.may_write(device, principal))
}

impl FileSystem {
    /// Whether leases of other devices conflict with an operation. If so, recalls them, claims what the
    /// operation changes (unless it `has_claim`), and returns for how many milliseconds they can last at
    /// most.
    pub(crate) fn obstacle(
        &self,
        device: DeviceId,
        certificate: &Certificate,
        lease_request: Option<&LeaseRequest>,
        has_claim: bool,
    ) -> Option<(u64, Option<Claim>)> {
        if certificate.device != device {
            return None;
        }
        let touched =
            touched(self.ledger.lock().sequencer().membership(), device, certificate, lease_request);
        let wishes = lease_request.is_some_and(|lease_request| lease_request.exclusive);
        let now_ms = self.now_ms();
        self.leases.with(|table| {
            let until_ms = table.recall_conflicts(device, &touched, wishes, now_ms)?;
            let claim = (!has_claim).then(|| Claim::of(&self.leases, table, device, &touched, wishes));
            Some((until_ms.saturating_sub(now_ms), claim))
        })
    }

    /// What an operation that is about to be ordered changes and reads; `None` if another session's lease
    /// conflicts with it. The caller holds the lock of the ledger.
    pub(super) fn if_free(
        &self,
        ledger: &Ledger,
        device: DeviceId,
        certificate: &Certificate,
        lease_request: Option<&LeaseRequest>,
    ) -> Option<Footprint> {
        let touched = touched(ledger.sequencer().membership(), device, certificate, lease_request);
        let now_ms = self.now_ms();
        self.leases
            .with(|table| table.recall_conflicts(device, &touched, false, now_ms))
            .is_none()
            .then_some(touched)
    }

    /// The leases granted to an operation that was just ordered (`fresh`) or had been ordered before. The
    /// caller holds the lock of the ledger.
    pub(super) fn grant(
        &self,
        ledger: &Ledger,
        device: DeviceId,
        lease_request: Option<&LeaseRequest>,
        touched: &Footprint,
        fresh: bool,
    ) -> Option<LeaseGrant> {
        let lease_request = lease_request?;
        let membership = ledger.sequencer().membership();
        let mut pending = Footprint::default();
        for certificate in ledger.sequencer().pending().filter(|pending| pending.device != device) {
            pending.add(certificate, membership);
        }
        let id = SessionId { device, run: lease_request.run };
        let now_ms = self.now_ms();
        Some(self.leases.with(|table| table.grant(id, lease_request, touched, fresh, &pending, now_ms)))
    }

    /// What a session has to give up; `None` if it has nothing to give up now.
    pub(crate) fn recall(
        &self,
        device: DeviceId,
        run: u128,
        epoch: u64,
        acknowledged: u64,
    ) -> Option<Recall> {
        let now_ms = self.now_ms();
        self.leases.with(|table| table.recall(SessionId { device, run }, epoch, acknowledged, now_ms))
    }

    /// Ends a session that has given up everything. If the session still waits for a recall, that request is
    /// answered.
    pub(crate) fn end_leases(&self, device: DeviceId, run: u128) {
        self.leases.with(|table| table.end(SessionId { device, run }));
        self.leases.recalled.notify_waiters();
    }

    /// Grants nothing any more and recalls everything.
    pub(crate) fn close_leases(&self) {
        let now_ms = self.now_ms();
        self.leases.with(|table| table.close(now_ms));
    }

    /// Whether no session holds a lease.
    pub(crate) fn is_unleased(&self) -> bool {
        let now_ms = self.now_ms();
        self.leases.with(|table| table.is_empty(now_ms))
    }

    /// Completes when something is recalled after this call.
    pub(crate) fn next_recall(&self) -> Notified<'_> {
        self.leases.recalled.notified()
    }

    /// Completes when something is given up after this call.
    pub(crate) fn next_freed(&self) -> Notified<'_> {
        self.leases.freed.notified()
    }

    /// Notes a session durably with the order, before the reply with its first lease leaves.
    pub(crate) fn note_session(
        &self,
        notes: &dyn Notes,
        device: DeviceId,
        run: u128,
        exclusively: bool,
    ) -> Result<(), OrderError> {
        let session = self.noted_session(SessionId { device, run }, exclusively);
        let mut noted = self.leases.noted.lock();
        if session.is_in(&noted) {
            return Ok(());
        }
        let sessions = with_noted(self.noted_sessions(), session, &noted);
        notes.put("leases", &note_of(self.leases.noted_term_ms, &sessions))?;
        *noted = sessions;
        Ok(())
    }

    /// The notes for all sessions that hold leases now.
    pub(crate) fn noted_sessions(&self) -> Vec<NotedSession> {
        let note = |(session, exclusively)| self.noted_session(session, exclusively);
        self.leases.with(|table| table.sessions().map(note).collect())
    }

    /// The note for a session.
    pub(crate) fn noted_session(&self, session: SessionId, exclusively: bool) -> NotedSession {
        NotedSession::of(self.id, session, exclusively)
    }
}
