//! Whether the membership in force is the superuser's. Either device 0 holds it and its signature on the
//! structure says so, or its block has a warrant signed by the superuser ([`crate::warrant`]).
//!
//! A warrant says which membership follows which; that none came between must be seen in the order. So within
//! one view, no membership may lie between the one that the warrant names and the one it brings. A client
//! that has accepted a membership demands that the new one follows that one or a later one.

use super::Context;
use super::policy::Rule;
use crate::alarm::{Alarm, Operation};
use crate::members::Members;
use crate::structure::View;
use holdfast_content::{DeviceId, PrincipalId, Warrant};
use holdfast_crypto::PublicKey;

/// Checks the membership of a view by itself, without an earlier view to compare it with.
///
/// # Errors
/// [`Alarm::Unwarranted`].
pub(super) fn holds(superuser: &PublicKey, members: &dyn Members, view: &View) -> Result<(), Alarm> {
    warranted(superuser, members, view).map(drop)
}

/// Checks the membership of a view that follows an accepted one.
pub(super) fn check(context: &Context<'_>) -> Result<(), Alarm> {
    let known = context.floor.view.handle(PrincipalId::Members);
    if !context.policy.on(Rule::Warrants) || known == context.view.handle(PrincipalId::Members) {
        return Ok(());
    }
    let Some((operation, warrant)) = warranted(&context.floor.superuser, context.members, context.view)?
    else {
        return Ok(());
    };
    let Some((_, known)) = known else { return Ok(()) };
    let follows = (warrant.version, warrant.follows);
    if warrant.version > known.version || follows == (known.version, known.reference.address) {
        return Ok(());
    }
    let what = format!(
        "it was signed to follow version {}, and version {} was in force after that, or is another",
        warrant.version, known.version
    );
    Err(Alarm::Unwarranted { operation, what })
}

/// The warrant of the membership in force and the operation that brought it; `None` if device 0 holds the
/// membership.
fn warranted<'a>(
    superuser: &PublicKey,
    members: &'a dyn Members,
    view: &View,
) -> Result<Option<(Operation, &'a Warrant)>, Alarm> {
    let Some((holder, handle)) = view.handle(PrincipalId::Members) else { return Ok(None) };
    if holder == DeviceId::SUPERUSER {
        return Ok(None);
    }
    let operation = Operation { device: holder, number: view.slots[&holder].value.number() };
    let wrong = |what: &str| Err(Alarm::Unwarranted { operation, what: what.to_owned() });
    let file_system = superuser.file_system_id();
    let Some(warrant) = members.warrant(file_system, superuser) else {
        return wrong(
            "no device but the superuser's changes it by itself, and the superuser has not signed it",
        );
    };
    if members.version() != handle.version {
        return wrong("it is dated otherwise than the order has it");
    }
    let between = view.slots.iter().filter(|(device, _)| **device != holder).any(|(_, slot)| {
        slot.value.handles.get(&PrincipalId::Members).is_some_and(|other| other.version > warrant.version)
    });
    if between {
        return wrong("another change came between the one that it follows and it");
    }
    Ok(Some((operation, warrant)))
}
