//! What a server demands of its clients, so that honest clients never raise an alarm because of other
//! clients.

use super::record::State;
use super::{Certificate, Membership, PrincipalId, Refusal, Signed, Structure, Verified, forecast, handles};
use crate::certificate::Path;
use crate::check::given_up_consistently;
use crate::handles::Offence;
use crate::structure::{Forecast, Outcome, View};
use crate::warrant;
use holdfast_content::DeviceId;
use holdfast_crypto::{Digest, PublicKey};

/// A membership as the server stores it once it is accepted: without its warrant, which stays in its block.
pub(super) fn judged(membership: Membership) -> Membership {
    Membership { warrant: None, ..membership }
}

/// The key is that of an active device.
pub(super) fn key(state: &State, device: DeviceId, key: PublicKey) -> Result<(), Refusal> {
    if !state.memberships(device).all(|membership| membership.is_active(device)) {
        return Err(Refusal::NotMember);
    }
    match state.membership.devices.get(&device) {
        Some(member) if member.key == key => Ok(()),
        _ => Err(Refusal::BadSignature),
    }
}

/// Checks a new certificate, fast or slow.
pub(super) fn certificate(
    state: &State,
    session: DeviceId,
    certificate: &Verified<Certificate>,
    membership: Option<&Membership>,
) -> Result<(), Refusal> {
    let declared = certificate.value();
    if declared.device != session {
        return Err(Refusal::NotMember);
    }
    key(state, session, certificate.key())?;
    if declared.file_system != state.epoch {
        return Err(Refusal::OtherEpoch);
    }
    if let Some(offence) = declared.offence() {
        return Err(Refusal::Malformed(offence.to_owned()));
    }
    numbers(state, declared)?;
    // Any device with a warrant may bring the membership that it is for (`new_membership`).
    for principal in declared.principals() {
        if principal == PrincipalId::Members && session != DeviceId::SUPERUSER {
            continue;
        }
        if !state.memberships(session).all(|membership| membership.may_write(session, principal)) {
            return Err(Refusal::NotAllowed(principal));
        }
    }
    new_membership(state, declared, membership)
}

pub(super) fn numbers(state: &State, declared: &Certificate) -> Result<(), Refusal> {
    let device = declared.device;
    let last = state.highest(device);
    if declared.number <= last {
        return Err(Refusal::WrongNumber { found: declared.number, last });
    }
    if !declared.voids.is_well_formed() || !declared.ineffective.is_well_formed() {
        return Err(Refusal::Malformed("a set of numbers is not in canonical form".to_owned()));
    }
    let below =
        |set: &crate::vector::VoidSet| set.0.last_key_value().is_none_or(|(_, &last)| last < declared.number);
    if !below(&declared.voids) || !below(&declared.ineffective) {
        return Err(Refusal::Malformed("it gives up numbers that are not below its own".to_owned()));
    }
    let slot = state.slots.get(&device).map(|slot| &slot.value);
    if declared.previous != slot.map_or(Digest::ZERO, |slot| slot.forecast.digest()) {
        return Err(Refusal::WrongPrevious);
    }
    let committed = slot.map_or(0, Structure::number);
    if !declared.voids.covers(committed + 1, declared.number - 1) {
        let pending = state.pending.iter().map(|entry| &entry.certificate.value);
        let outstanding = pending
            .filter(|pending| pending.device == device && !declared.voids.contains(pending.number))
            .map(|pending| pending.number)
            .next();
        return Err(match outstanding {
            Some(number) => Refusal::Outstanding(number),
            None => Refusal::WrongNumber { found: declared.number, last },
        });
    }
    if let Some(slot) = slot {
        given_up_consistently(slot, &declared.voids, &declared.ineffective)
            .map_err(|alarm| Refusal::Malformed(alarm.to_string()))?;
    } else if !declared.ineffective.0.is_empty() {
        return Err(Refusal::Malformed("its device has committed nothing yet".to_owned()));
    }
    Ok(())
}

/// Checks that a new membership follows the one in force. Whether it has the version that the order gives it,
/// its author knows only once it is ordered; if not, it must end without effect (see [`structure`]).
fn new_membership(
    state: &State,
    declared: &Certificate,
    membership: Option<&Membership>,
) -> Result<(), Refusal> {
    let invalid = |what: &str| Err(Refusal::Membership(what.to_owned()));
    match (declared.new_members(), membership) {
        (None, None) => Ok(()),
        (None, Some(_)) | (Some(_), None) => invalid("its block is not the one declared"),
        (Some(_), Some(next)) => {
            if declared.device != DeviceId::SUPERUSER {
                warranted(state, declared.device, next)?;
            }
            if next.restores != state.membership.restores {
                return invalid("a restore is declared by an operation of its own");
            }
            state.membership.validate_successor(next).map_err(|error| Refusal::Membership(error.to_string()))
        }
    }
}

/// Checks that the superuser has signed this membership as the successor of the one in force, and that the
/// device that brings it stays a member: a signature at the version of the device's own removal does not
/// count.
fn warranted(state: &State, device: DeviceId, next: &Membership) -> Result<(), Refusal> {
    let Some(warrant) = warrant::verified(state.superuser.file_system_id(), &state.superuser, next) else {
        return Err(Refusal::NotAllowed(PrincipalId::Members));
    };
    let invalid = |what: String| Err(Refusal::Membership(what));
    let view = View { slots: state.slots.clone(), ..View::default() };
    let present = view.handle(PrincipalId::Members).map(|(_, handle)| handle);
    if present.is_none_or(|present| {
        (present.version, present.reference.address) != (warrant.version, warrant.follows)
    }) {
        let now = present.map_or(0, |present| present.version);
        return invalid(format!(
            "the warrant is for what follows version {}, and version {now} is in force by now",
            warrant.version
        ));
    }
    if !next.is_active(device) {
        return invalid(
            "the device that submits it is itself removed by it; submit it from another".to_owned(),
        );
    }
    Ok(())
}

/// Checks that a structure has the forecast contents and the right tables.
pub(super) fn structure(
    state: &State,
    structure: &Structure,
    declared: &Certificate,
    expected: &Forecast,
    membership: Option<&Membership>,
) -> Result<(), Refusal> {
    if structure.forecast != *expected {
        return Err(Refusal::Structure("it is not what the order foretells".to_owned()));
    }
    let former = state.slots.get(&structure.device()).map(|slot| &slot.value);
    let view = View { slots: state.slots.clone(), ..View::default() };
    // Rights were judged when the operation was ordered; here only declared tables may be advanced.
    let may_write = |principal| {
        principal == PrincipalId::Device(structure.device()) || declared.principals().contains(&principal)
    };
    handles::check(structure, former, Some(declared), &view, &may_write).map_err(
        |offence| match offence {
            Offence::Unauthorised(principal) => Refusal::NotAllowed(principal),
            Offence::Wrong(principal, what) => Refusal::Structure(format!("table of {principal}: {what}")),
        },
    )?;
    let version = structure.forecast.vector.get(PrincipalId::Members);
    if structure.outcome == Outcome::Done && membership.is_some_and(|next| next.version != version) {
        return Err(Refusal::Membership("its version is not the one that the order gives it".to_owned()));
    }
    let declares_members = declared.new_members();
    if declares_members.is_some()
        && structure.outcome != Outcome::Done
        && structure.device() != DeviceId::SUPERUSER
    {
        return Err(Refusal::Structure("a change under a warrant takes effect, or is given up".to_owned()));
    }
    let members = structure.handles.get(&PrincipalId::Members).map(|handle| handle.reference);
    let wrong = match (declares_members, structure.outcome) {
        (Some(reference), Outcome::Done) => members != Some(reference),
        (Some(_), Outcome::Nothing) => {
            members
                != former.and_then(|former| former.handles.get(&PrincipalId::Members)).map(|h| h.reference)
        }
        (None, _) => false,
    };
    if wrong {
        return Err(Refusal::Structure("its membership is not the one declared".to_owned()));
    }
    Ok(())
}

/// The operation that creates a file system.
pub(super) fn founding(
    superuser: &PublicKey,
    certificate: &Signed<Certificate>,
    structure: &Signed<Structure>,
    membership: &Membership,
) -> Result<(), Refusal> {
    let declared = &certificate.value;
    let value = &structure.value;
    let malformed = |what: &str| Err(Refusal::Malformed(what.to_owned()));
    if !certificate.verify(superuser) || !structure.verify(superuser) {
        return Err(Refusal::BadSignature);
    }
    if declared.file_system != superuser.file_system_id()
        || declared.device != DeviceId::SUPERUSER
        || declared.number != 1
        || declared.previous != Digest::ZERO
        || declared.path != Path::Fast
        || !declared.voids.0.is_empty()
        || !declared.ineffective.0.is_empty()
    {
        return malformed("it is not a founding operation");
    }
    if let Some(offence) = declared.offence() {
        return malformed(offence);
    }
    membership.validate().map_err(|error| Refusal::Membership(error.to_string()))?;
    let key = membership.devices.get(&DeviceId::SUPERUSER).map(|device| device.key);
    if key != Some(*superuser) || membership.version != 1 {
        return Err(Refusal::Membership("it is not the superuser's first".to_owned()));
    }
    if let Some(principal) = declared
        .principals()
        .into_iter()
        .find(|principal| !membership.may_write(DeviceId::SUPERUSER, *principal))
    {
        return Err(Refusal::NotAllowed(principal));
    }
    if declared.new_members().is_none() || value.outcome != Outcome::Done {
        return malformed("it brings no membership");
    }
    if value.forecast != forecast(&View::default(), declared) {
        return Err(Refusal::Structure("it is not what the order foretells".to_owned()));
    }
    let may_write = |principal| {
        principal == PrincipalId::Device(DeviceId::SUPERUSER) || declared.principals().contains(&principal)
    };
    handles::check(value, None, Some(declared), &View::default(), &may_write)
        .map_err(|offence| Refusal::Structure(format!("{offence:?}")))?;
    let members = value.handles.get(&PrincipalId::Members).map(|handle| handle.reference);
    if members != declared.new_members() {
        return Err(Refusal::Structure("its membership is not the one declared".to_owned()));
    }
    Ok(())
}
