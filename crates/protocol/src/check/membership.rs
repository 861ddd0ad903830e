//! Whose word the membership in force is: device 0's, by its signature on the structure that holds it, or the superuser's
//! by a warrant in its block ([`crate::warrant`]).
//!
//! A warrant is the superuser's word for *what follows what*; that nothing came between is for the order to say. So in a
//! view nothing may lie between the membership that it follows and the one that it brings, and to whoever has accepted a
//! membership it must follow that one, or a later one.

use super::Context;
use super::policy::Rule;
use crate::alarm::{Alarm, Operation};
use crate::members::Members;
use crate::structure::View;
use holdfast_content::{DeviceId, PrincipalId, Warrant};
use holdfast_crypto::PublicKey;

/// The membership of a view that is judged by itself.
///
/// # Errors
/// [`Alarm::Unwarranted`].
pub(super) fn holds(superuser: &PublicKey, members: &dyn Members, view: &View) -> Result<(), Alarm> {
    warranted(superuser, members, view).map(drop)
}

/// The membership of a view that follows what was accepted before.
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

/// The warrant by which the membership in force is, and the operation that brought it; none if device 0 holds it.
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
