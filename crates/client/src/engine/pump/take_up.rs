//! A declared restore, met by an engine that nobody has read from yet: it is taken up on the spot. One that has shown
//! something else to programs stops instead, and takes it up when it is started again.

use super::{End, Pump};
use crate::engine::restored::{self, RestoreReport};
use crate::error::FsError;
use crate::processes::Processes;
use crate::rebuild::leaves::LeafFile;
use crate::statement::Statement;
use holdfast_content::Membership;
use holdfast_protocol::alarm::Alarm;
use holdfast_protocol::check::membership_wanted;
use holdfast_protocol::mandate::Mandate;
use holdfast_protocol::message::{Request, Response};
use holdfast_protocol::restore::{Left, left, take_up};
use holdfast_protocol::signer::Signer;
use std::path::PathBuf;
use std::sync::Arc;

/// What it takes.
pub(in crate::engine) struct TakeUp {
    /// Where leaves of the log and the restores taken up are kept.
    pub state_dir: PathBuf,
    /// Who has the key, if this process does not.
    pub processes: Option<Arc<Processes>>,
}

impl Pump {
    /// Takes the restores of a membership up that were declared since; whether there were any.
    pub(super) fn takes_up(&mut self, members: &Membership) -> Result<bool, End> {
        // What is not the superuser's, or goes back, is for the checks to say.
        let Ok(Some(left)) = left(self.signer.floor(), &members.restores) else { return Ok(false) };
        let Some(how) = self.take_up.take() else { return Ok(false) };
        let log_size = left.head().size;
        let answer = self.shared.remote.call(Request::Look { log_size }, self.shared.deadline);
        let Ok(Response::View(mut reply)) = answer else { return self.later(how) };
        reply.blocks.clear();
        let reference = match membership_wanted(self.signer.floor(), &reply.view) {
            Ok(reference) => reference,
            Err(alarm) => return self.refuse_restore(&alarm),
        };
        let Ok(members) = Membership::load(&self.shared.store, &reference) else { return self.later(how) };
        let old = self.signer.floor().clone();
        let (floor, lost) = match take_up(&old, &members.restores, &members, &reply) {
            Ok(taken) => taken,
            Err(alarm) => {
                self.reply = Some(*reply);
                return self.refuse_restore(&alarm);
            }
        };
        let leaves = LeafFile::open(&how.state_dir).ok();
        if let (Left::Beginning(head), Some(leaves)) = (left, &leaves)
            && leaves.is_past(head).unwrap_or(None) == Some(false)
        {
            let known = old.log();
            return self.refuse_restore(&Alarm::LogNotExtended { known, found: head });
        }
        let report = self.report(&old, &members, lost);
        let signer = Signer::in_epoch(floor);
        if let Some(processes) = &how.processes {
            let next = Mandate::adopt(&signer, self.key.public());
            if let Err(error) = processes.go_over(&old.superuser, &members.restores, &next) {
                self.shared.break_down(FsError::Key(error.to_string()));
                return Err(End::Stopped);
            }
        }
        if let Err(error) = restored::save(&how.state_dir, &members.restores) {
            tracing::warn!(%error, "the restores taken up cannot be noted");
        }
        self.signed = signer.floor().used;
        self.signer = signer;
        self.allocator = self.allocator.after_restore();
        self.reserve = None;
        self.members = Some((reference.address, Arc::new(members)));
        self.persist(&self.signer.to_bytes(), &super::Operation { answered: true, ..Default::default() })?;
        if let Some(mut leaves) = leaves
            && let Err(error) = leaves.go_back(left.head())
        {
            tracing::warn!(%error, "leaves of the log cannot be kept");
        }
        tracing::warn!("{report}");
        let _ = self.shared.restored.set(report);
        self.take_up = Some(how);
        Ok(true)
    }

    /// Not now: the server does not answer. It is met again by the next operation.
    fn later(&mut self, how: TakeUp) -> Result<bool, End> {
        self.take_up = Some(how);
        Ok(true)
    }

    fn refuse_restore(&mut self, alarm: &Alarm) -> Result<bool, End> {
        self.freeze(alarm);
        Err(End::Stopped)
    }

    /// Keeps what is lost, and puts it into words.
    fn report(
        &self,
        old: &holdfast_protocol::floor::Floor,
        members: &Membership,
        lost: holdfast_protocol::restore::Lost,
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
