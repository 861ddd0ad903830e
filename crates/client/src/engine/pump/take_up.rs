//! Takes up a declared restore as soon as the engine encounters it, at the start or later. To programs, a
//! restore looks like a change made by others: files that it lost are gone, even open ones; and all leases
//! are lost, so that nothing is answered from the state before. Requests that were not ordered yet are made
//! on the restored state, after this device's operations that the restore lost have been resent
//! ([`crate::engine::resend`]).

use super::{Pump, PumpEnd};
use crate::engine::leases::Leases;
use crate::engine::queue::QueueHold;
use crate::engine::resend::LostWork;
use crate::engine::restored::{self, RestoreReport};
use crate::error::FsError;
use crate::processes::Processes;
use crate::rebuild::leaves::LeafFile;
use crate::statement::Statement;
use holdfast_content::{DeviceId, Membership};
use holdfast_protocol::alarm::Alarm;
use holdfast_protocol::check::membership_wanted;
use holdfast_protocol::mandate::Mandate;
use holdfast_protocol::message::{Request, Response};
use holdfast_protocol::restore::{RemainingLog, remaining_log, take_up};
use holdfast_protocol::signer::Signer;
use std::path::PathBuf;
use std::sync::Arc;

/// What taking up a restore needs besides the signer.
#[derive(Clone)]
pub(in crate::engine) struct TakeUp {
    /// Directory of the log's leaves and of the restores that were taken up.
    pub state_dir: PathBuf,
    /// The processes that have the key, if this process does not.
    pub processes: Option<Arc<Processes>>,
    /// Whether this device's lost operations are resent.
    pub sends_again: bool,
}

impl Pump {
    /// Whether a membership names restores that this client has not taken up.
    pub(super) fn is_put_back(&self, members: &Membership) -> bool {
        matches!(remaining_log(self.signer.floor(), &members.restores), Ok(Some(_)))
    }

    /// Takes up the restores that a membership names and that this client has not taken up; returns whether
    /// there were any. If the server does not answer now, the next operation tries again.
    pub(super) fn takes_up(&mut self, members: &Membership) -> Result<bool, PumpEnd> {
        // Restores that the superuser has not declared, or that go back, are found by the checks.
        let Ok(Some(left)) = remaining_log(self.signer.floor(), &members.restores) else { return Ok(false) };
        let how = self.take_up.clone();
        let log_size = left.head().size;
        let answer = self.shared.remote.call(Request::Look { log_size }, self.shared.deadline);
        let Ok(Response::View(mut reply)) = answer else { return Ok(true) };
        reply.blocks.clear();
        let reference = match membership_wanted(self.signer.floor(), &reply.view) {
            Ok(reference) => reference,
            Err(alarm) => return self.refuse_restore(&alarm),
        };
        let Ok(members) = Membership::load(&self.shared.store, &reference) else { return Ok(true) };
        let old = self.signer.floor().clone();
        let (floor, lost) = match take_up(&old, &members.restores, &members, &reply) {
            Ok(taken) => taken,
            Err(alarm) => {
                self.reply = Some(*reply);
                return self.refuse_restore(&alarm);
            }
        };
        let keeper = self.shared.leaf_keeper.get().cloned();
        let mut leaves = match &keeper {
            Some(_) => None,
            None => LeafFile::open(&how.state_dir).ok(),
        };
        let is_past = |head| match (&keeper, &leaves) {
            (Some(keeper), _) => keeper.is_past(head),
            (None, Some(leaves)) => leaves.is_past(head),
            (None, None) => Ok(None),
        };
        if let RemainingLog::Beginning(head) = left
            && is_past(head).unwrap_or(None) == Some(false)
        {
            let known = old.log();
            return self.refuse_restore(&Alarm::LogNotExtended { known, found: head });
        }
        let lost_own = lost.own.is_some();
        let report = self.report(&old, &members, lost);
        let signer = Signer::in_epoch(floor);
        if let Some(processes) = &how.processes {
            let next = Mandate::adopt(&signer, self.key.public());
            if let Err(error) = processes.enter_epoch(&old.superuser, &members.restores, &next) {
                self.shared.break_down(FsError::Key(error.to_string()));
                return Err(PumpEnd::Stopped);
            }
        }
        // The superuser's device writes the membership, which people change again themselves.
        let is_ours = how.sends_again && lost_own && self.shared.me != DeviceId::SUPERUSER;
        if is_ours {
            let epoch = signer.floor().epoch;
            let earlier = self.shared.resend.readable.take_views(&self.shared);
            let work = LostWork::new(epoch, old.clone(), earlier, report.kept.as_deref());
            if let Err(error) = self.shared.resend.note(work) {
                tracing::error!(%error, "what this device had written and is lost cannot be sent again by itself");
            }
        }
        if let Err(error) = restored::save(&how.state_dir, &members.restores) {
            tracing::warn!(%error, "the restores taken up cannot be noted");
        }
        self.signed = signer.floor().used;
        self.signer = signer;
        // The numbers of the operation in flight are never used again.
        self.allocator = self.reserve.take().as_ref().unwrap_or(&self.allocator).after_restore();
        // Among the replaced tables may be the one that is in force again.
        self.superseded.clear();
        self.members = Some((reference.address, Arc::new(members)));
        let signer = self.signer.clone();
        self.persist(&signer, &super::Operation { answered: true, ..Default::default() })?;
        let gone_back = match (&keeper, &mut leaves) {
            (Some(keeper), _) => keeper.truncate(left.head()),
            (None, Some(leaves)) => leaves.truncate(left.head()),
            (None, None) => Ok(()),
        };
        if let Err(error) = gone_back {
            tracing::warn!(%error, "leaves of the log cannot be kept");
        }
        tracing::warn!("{report}");
        self.shared.restores.taken_up(report);
        Leases::lose_all(&self.shared);
        self.shared.store.forget_acknowledged();
        if is_ours {
            self.shared.queue.hold(QueueHold::All);
            self.shared.resend.begin();
        }
        Ok(true)
    }

    fn refuse_restore(&mut self, alarm: &Alarm) -> Result<bool, PumpEnd> {
        self.freeze(alarm);
        Err(PumpEnd::Stopped)
    }

    /// Saves what is lost as evidence, and describes it in a report.
    fn report(
        &self,
        old: &holdfast_protocol::floor::Floor,
        members: &Membership,
        lost: holdfast_protocol::restore::RestoreLoss,
    ) -> RestoreReport {
        let last = members.restores.last();
        let size = last.map_or(0, |restore| restore.size);
        let mut report = RestoreReport {
            size,
            declared_ns: last.map_or(0, |restore| restore.declared_ns),
            lost: lost.seen,
            own: lost.own,
            kept: None,
        };
        if lost.seen > 0 {
            let near = self.shared.store.near();
            let mut statement = Statement::of(old.clone(), None, &near);
            statement.fill(Arc::new(self.shared.store.near()));
            report.kept = self.shared.evidence.keep_lost(report.to_string(), statement);
        }
        report
    }
}
