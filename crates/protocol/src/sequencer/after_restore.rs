//! A server that was restored to an older state, and the operation by which its superuser declares that
//! ([`crate::epoch`]).

use super::record::State;
use super::{OrderingRecord, Refusal, Sequencer, Step, client_checks, receipt, unchanged};
use crate::certificate::{Certificate, Path};
use crate::epoch::{Epochs, are_declared};
use crate::message::Receipt;
use crate::order::forecast;
use crate::signed::{Signable, Verified};
use crate::structure::{LogHead, Outcome, Structure, View};
use holdfast_content::{DeviceId, Membership, PrincipalId};

/// The view in which a restore is declared: what was pending in the restored state is dead.
pub fn settled(view: &View) -> View {
    let mut view = view.clone();
    view.pending.iter_mut().for_each(|entry| entry.dead = true);
    view
}

impl Sequencer {
    /// Accepts the superuser's declaration that this state was restored, as one operation of device 0, and
    /// begins the epoch that it names.
    ///
    /// # Errors
    /// [`Refusal`]: nothing has changed.
    pub fn restored(
        &mut self,
        session: DeviceId,
        certificate: &Verified<Certificate>,
        structure: &Verified<Structure>,
        membership: Membership,
    ) -> Result<Step<Receipt>, Refusal> {
        let (declared, value) = (certificate.value(), structure.value());
        if self.state.slots.get(&declared.device).is_some_and(|slot| slot.value == *value) {
            return Ok(unchanged(receipt(value)));
        }
        let state = &self.state;
        if session != DeviceId::SUPERUSER || declared.device != session || value.device() != session {
            return Err(Refusal::NotMember);
        }
        if certificate.key() != state.superuser || structure.key() != state.superuser {
            return Err(Refusal::BadSignature);
        }
        declares(state, declared, &membership)?;
        // In the restored state nothing is pending, and refused numbers no longer count.
        let mut left = state.clone();
        left.kill_all();
        left.burnt.clear();
        client_checks::numbers(&left, declared)?;
        let expected = forecast(&left.view(), declared);
        if value.outcome != Outcome::Done || value.forecast.certificate != declared.digest() {
            return Err(Refusal::Structure("it belongs to another certificate".to_owned()));
        }
        client_checks::structure(&left, value, declared, &expected, Some(&membership))?;
        let record = OrderingRecord::Restore {
            certificate: certificate.signed().clone(),
            structure: structure.signed().clone(),
            membership,
        };
        let step = self.apply_all(vec![record], 0);
        Ok(Step { answer: receipt(value), records: step.records, nodes: step.nodes })
    }
}

/// The operation declares a restore to the present state, and does nothing else.
fn declares(state: &State, declared: &Certificate, next: &Membership) -> Result<(), Refusal> {
    if let Some(offence) = declared.offence() {
        return Err(Refusal::Malformed(offence.to_owned()));
    }
    if declared.path != Path::Fast || declared.principals() != [PrincipalId::Members] {
        return Err(Refusal::Malformed("a restore is declared by an operation of its own".to_owned()));
    }
    let invalid = |what: &str| Err(Refusal::Membership(what.to_owned()));
    let present = &state.membership;
    present.validate_successor(next).map_err(|error| Refusal::Membership(error.to_string()))?;
    let (version, restores) = (present.version, present.restores.clone());
    if (Membership { version, restores, ..next.clone() }) != *present {
        return invalid("a restore changes nothing else");
    }
    let Some(last) = next.restores.last().filter(|_| next.restores.len() > present.restores.len()) else {
        return invalid("it declares no restore");
    };
    if !are_declared(&state.superuser, &next.restores) {
        return invalid("a restore is not signed by the superuser");
    }
    if (LogHead { size: last.size, root: last.root }) != state.frontier.head() || last.base != state.epoch {
        return invalid("the restore declared is not the state of this server");
    }
    let epochs = Epochs::of(state.superuser.file_system_id(), &next.restores);
    if epochs.latest() != declared.file_system {
        return Err(Refusal::OtherEpoch);
    }
    Ok(())
}
