//! Warrants: changes of the membership that the superuser signed beforehand, and that any device submits.
//!
//! There is one warrant for each replacement, signed to follow the first membership. A device that has it may
//! submit it as often as it has numbers left, before and after it took effect, and beside the superuser's own
//! changes and others who submit the same one.
//!
//! Promise: a membership under a warrant comes into force right after the one that its warrant names. So it
//! does so only once, and never on top of another change.

use crate::world::World;
use holdfast_content::{DeviceId, Membership, PrincipalId, Warrant};
use holdfast_crypto::{Digest, PublicKey};
use holdfast_protocol::certificate::Delta;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::members::{Member, Members};
use holdfast_protocol::order::last_vector;
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::{Outcome, Structure, View};
use holdfast_protocol::warrant::Change;
use std::rc::Rc;

/// A membership that an operation brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Brought {
    /// Its version.
    pub version: u64,
    /// The address of its block.
    pub address: Digest,
    /// Version and address of the membership that the warrant names, if there is a warrant.
    pub follows: Option<(u64, Digest)>,
}

impl World {
    /// The submission of a warrant by the device at `floor`.
    pub(crate) fn enact(&self, floor: &Floor, old: DeviceId, new: DeviceId) -> Delta {
        let present = self.founding.value.handles[&PrincipalId::Members];
        let next = self.replaced(&self.membership, old, new, present.version + 1);
        let change = Change::new(floor.epoch, &present, &next);
        let signature = Signed::new(change.clone(), self.key(DeviceId::SUPERUSER)).signature;
        // A device with a warrant knows at least the membership that it follows.
        let version = last_vector(&floor.view).get(PrincipalId::Members).max(present.version) + 1;
        self.set_members(&change.enacted(version, signature))
    }

    /// The outcome of a change of the membership at its place in the order: it was planned for one version,
    /// and under a warrant it must follow the membership in force there.
    pub(crate) fn outcome_at(
        &mut self,
        device: DeviceId,
        view: &View,
        version: u64,
        deltas: &[Delta],
    ) -> Outcome {
        let present = view.handle(PrincipalId::Members).map(|(_, handle)| handle);
        let due = present.map(|present| (present.version, present.reference.address));
        for delta in deltas {
            let Delta::SetMembers { reference } = delta else { continue };
            let planned = self.membership_at(reference);
            let follows = planned.warrant.map(|warrant| (warrant.version, warrant.follows));
            let is_due = follows.is_none() || follows == due || self.careless.contains(&device);
            if planned.version != version || !is_due {
                return Outcome::Nothing;
            }
        }
        Outcome::Done
    }

    /// The membership that a structure brings.
    pub(crate) fn brought(&mut self, structure: &Structure, deltas: &[Delta]) -> Option<Brought> {
        let declares = deltas.iter().any(|delta| matches!(delta, Delta::SetMembers { .. }));
        let handle = structure.handles.get(&PrincipalId::Members)?;
        (declares && structure.outcome == Outcome::Done).then(|| {
            let warrant = self.membership_at(&handle.reference).warrant;
            let follows = warrant.map(|warrant| (warrant.version, warrant.follows));
            Brought { version: handle.version, address: handle.reference.address, follows }
        })
    }
}

/// Checks that each membership that `me` got from others came right after the one that its warrant names.
/// Earlier ones of the same device are excepted: its slot has only the last, and a device that colludes with
/// the server may have submitted the warrant earlier, for another client to see. [`is_new`] checks that
/// nobody sees both.
///
/// # Errors
/// In words: one did not.
pub(crate) fn follow_each_other(me: DeviceId, brought: &[(DeviceId, Brought)]) -> Result<(), String> {
    for (device, change) in brought.iter().filter(|(device, _)| *device != me) {
        let others =
            brought.iter().filter(|(other, brought)| other != device && brought.version < change.version);
        let before = others.max_by_key(|(_, brought)| brought.version);
        let before = before.map(|(_, before)| (before.version, before.address));
        if change.follows.is_some() && change.follows != before {
            let (device, version) = (crate::world::name(*device), change.version);
            return Err(format!("{device}'s membership {version} does not follow what its warrant names"));
        }
    }
    Ok(())
}

/// Checks that a client with a new membership in force had the one that the warrant names, or an older one.
///
/// # Errors
/// In words: the warrant took effect again, or on top of something else.
pub(crate) fn is_new(world: &mut World, was: &Floor, is: &Floor) -> Result<(), String> {
    let in_force = |floor: &Floor| floor.view.handle(PrincipalId::Members);
    let (Some((_, before)), Some((holder, after))) = (in_force(was), in_force(is)) else { return Ok(()) };
    let Some(warrant) = world.membership_at(&after.reference).warrant else { return Ok(()) };
    let follows = (warrant.version, warrant.follows);
    if before == after
        || holder == is.device
        || warrant.version > before.version
        || follows == (before.version, before.reference.address)
    {
        return Ok(());
    }
    let holder = crate::world::name(holder);
    Err(format!("{holder}'s membership {} does not follow what its warrant names", after.version))
}

/// A membership by which nobody asks what a warrant was signed to follow.
pub(crate) struct Lenient {
    members: Rc<Membership>,
    warrant: Option<Warrant>,
}

impl Lenient {
    pub(crate) fn new(members: Rc<Membership>) -> Lenient {
        let warrant = members.warrant.map(|warrant| Warrant { version: u64::MAX, ..warrant });
        Lenient { members, warrant }
    }
}

impl Members for Lenient {
    fn version(&self) -> u64 {
        self.members.version
    }

    fn member(&self, device: DeviceId) -> Option<Member> {
        self.members.member(device)
    }

    fn may_write(&self, device: DeviceId, principal: PrincipalId, since: u64) -> bool {
        Members::may_write(&*self.members, device, principal, since)
    }

    fn warrant(&self, file_system: Digest, superuser: &PublicKey) -> Option<&Warrant> {
        self.members.warrant(file_system, superuser).and(self.warrant.as_ref())
    }
}
