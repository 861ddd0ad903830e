//! What a client checks before it believes a server: one pure function for every view that a server sends.
//!
//! The checks run in the order of `docs/internals/protocol.md`: shape and signatures ([`shape`]), the order
//! of all operations and the device's own numbers ([`order`]), what operations record of each other
//! ([`records`]), what this device remembers ([`memory`]), and which tables are in force ([`handles`]).
//! Elements of the order are the structures in the slots, the forecasts of pending and dead entries, the
//! floor, and the forecast of the device's new operation.
//!
//! Attack answered: a server that shows different histories to different devices (fork), an older history
//! (rollback), or takes back or changes an operation (abort, replay). What remains possible is in
//! `docs/proof.md`.

mod epochs;
mod handles;
#[cfg(test)]
mod hostile;
mod membership;
mod memory;
mod order;
mod policy;
mod records;
#[cfg(test)]
mod search;
mod shape;
#[cfg(test)]
mod traces;
#[cfg(test)]
mod warrants;

use crate::alarm::{Alarm, Operation};
use crate::certificate::Certificate;
use crate::epoch::Epochs;
use crate::floor::Floor;
use crate::log_tree::Frontier;
use crate::members::Members;
use crate::message::ViewReply;
use crate::order::forecast;
use crate::signed::{Signable, Signed};
use crate::structure::{Forecast, Outcome, PendingEntry, Structure, View};
use holdfast_content::{DeviceId, OperationStatus, PrincipalId, Reference};
use holdfast_crypto::{Digest, PublicKey};
use policy::{AllRules, Policy};
pub(crate) use shape::continues as given_up_consistently;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

/// Most devices in a view.
pub const DEVICES_MAX: usize = 4096;
/// Most pending and dead entries in a view.
pub const PENDING_MAX: usize = 4096;
/// Most entries in a version vector, and most i-handles in a structure.
pub const PRINCIPALS_MAX: usize = 16_384;

/// A view that passed all checks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcceptedView {
    /// The view to read from, together with what was learned while it was on its way.
    pub view: View,
    /// The forecast of this device's operation, which its structure must contain.
    pub forecast: Forecast,
    /// The new floor. It must be durable before the structure is sent and before a program reads anything of
    /// the view.
    pub floor: Floor,
}

/// Checks the answer to an UPDATE of `certificate`.
///
/// # Errors
/// [`Alarm`]: the client must freeze. Only [`crate::alarm::Blame::LocalState`] blames this machine: the key's
/// state is elsewhere.
pub fn check(
    floor: &Floor,
    members: &dyn Members,
    reply: &ViewReply,
    certificate: &Certificate,
) -> Result<AcceptedView, Alarm> {
    check_with(floor, members, reply, Some(certificate), &AllRules).map(|(floor, forecast)| AcceptedView {
        view: floor.view.clone(),
        forecast: forecast.expect("an operation has a forecast"),
        floor,
    })
}

/// Checks a view that this device did not ask for with an operation, and makes it the floor (trace T10). To
/// be called only while no operation of this device is in flight (trace T11).
///
/// # Errors
/// As of [`check`].
pub fn check_look(floor: &Floor, members: &dyn Members, reply: &ViewReply) -> Result<Floor, Alarm> {
    check_with(floor, members, reply, None, &AllRules).map(|(floor, _)| floor)
}

/// The membership block that a view names, which the driver fetches before it calls [`check`]. This alone
/// rests on the superuser's key only. If device 0 does not hold the membership, the superuser's warrant is in
/// the block; [`check`] verifies that, and callers that do not check a view call [`membership_holds`].
///
/// # Errors
/// [`Alarm`]: the view has no membership, or device 0 holds it without the superuser's signature.
pub fn membership_wanted(floor: &Floor, view: &View) -> Result<Reference, Alarm> {
    let none = || Alarm::Malformed { device: None, what: "it has no membership".to_owned() };
    let (holder, handle) = view.handle(PrincipalId::Members).ok_or_else(none)?;
    if holder != DeviceId::SUPERUSER {
        return Ok(handle.reference);
    }
    let slot = &view.slots[&holder];
    if floor.view.slots.get(&DeviceId::SUPERUSER) != Some(slot) && !slot.verify(&floor.superuser) {
        return Err(Alarm::BadSignature(Operation {
            device: slot.value.device(),
            number: slot.value.number(),
        }));
    }
    Ok(handle.reference)
}

/// Checks that `members`, loaded from the block that `view` names ([`membership_wanted`]), comes from the
/// superuser.
///
/// # Errors
/// [`Alarm::Unwarranted`].
pub fn membership_holds(superuser: &PublicKey, members: &dyn Members, view: &View) -> Result<(), Alarm> {
    membership::holds(superuser, members, view)
}

/// Checks that a structure is signed with its device's key, and that the device was a member then. No more
/// can be known of a structure by itself.
///
/// # Errors
/// [`Alarm`]: it is not.
pub fn authentic(members: &dyn Members, structure: &Signed<Structure>) -> Result<(), Alarm> {
    shape::signature(members, structure, &AllRules)
}

/// [`Floor::learn`], with the checks that ship.
pub(crate) fn learn(
    floor: &mut Floor,
    members: &dyn Members,
    structure: Signed<Structure>,
) -> Result<(), Alarm> {
    learn_with(floor, members, structure, &AllRules)
}

fn learn_with(
    floor: &mut Floor,
    members: &dyn Members,
    structure: Signed<Structure>,
    policy: &dyn Policy,
) -> Result<(), Alarm> {
    let (device, number) = (structure.value.device(), structure.value.number());
    if floor.view.slots.get(&device) == Some(&structure) {
        return Ok(());
    }
    // A restore was declared meanwhile and the number was used again. The structure is then another
    // operation, and says nothing about the awaited one. The next view announces the restore (trace T14).
    if structure.value.forecast.file_system != floor.epoch {
        return Ok(());
    }
    // A membership under a warrant is taken only from a view, since the check of a view needs the block that
    // it names.
    let members_of = |structure: &Structure| structure.handles.get(&PrincipalId::Members).copied();
    let before = floor.view.slots.get(&device).and_then(|slot| members_of(&slot.value));
    if device != DeviceId::SUPERUSER && members_of(&structure.value) != before {
        return Ok(());
    }
    // A look may show an own operation as pending that was given up since. If it were learned, it would be
    // committed and void at once, and all others would blame this device (trace T13).
    if policy.on(policy::Rule::Memory) && device == floor.device && floor.voids.contains(number) {
        let what = "this device gave it up, and now it is shown as committed".to_owned();
        return Err(Alarm::FateChanged { device, number, what });
    }
    // A view accepted meanwhile may show a later operation of that device. It then says whether the awaited
    // operation was given up, and the structure must agree with that.
    if floor.view.slots.get(&device).is_some_and(|slot| slot.value.number() > number) {
        shape::signature(members, &structure, policy)?;
        let given_up = floor.view.status_of(device, number) == OperationStatus::Aborted;
        if policy.on(policy::Rule::Memory) && given_up && structure.value.outcome == Outcome::Done {
            let what = "its author gave it up, and now it is shown as committed".to_owned();
            return Err(Alarm::FateChanged { device, number, what });
        }
        return Ok(());
    }
    let entry = floor.view.pending.iter().find(|entry| {
        let announced = &entry.certificate.value;
        (announced.device, announced.number) == (device, number) && !entry.dead
    });
    let wrong = Alarm::WrongStructure(Operation { device, number });
    let Some(entry) = entry else { return Err(wrong) };
    if policy.on(policy::Rule::PendingHash) && entry.forecast.digest() != structure.value.forecast.digest() {
        return Err(wrong);
    }
    shape::signature(members, &structure, policy)?;
    handles::check_slot(floor, members, &floor.view, &structure)?;
    floor.view.pending.retain(|entry| entry.certificate.value.device != device);
    floor.view.slots.insert(device, structure);
    floor.learned.insert(device, number);
    Ok(())
}

/// Where an element of the order comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin<'a> {
    Floor,
    Slot,
    Pending(&'a PendingEntry),
    Own,
}

#[derive(Clone, Copy)]
struct Element<'a> {
    forecast: &'a Forecast,
    origin: Origin<'a>,
    /// Whether the last accepted view has this slot too. What two such slots say of each other was checked
    /// then.
    is_known: bool,
}

impl Element<'_> {
    fn operation(&self) -> Operation {
        Operation { device: self.forecast.device, number: self.forecast.number() }
    }
}

/// Everything one check looks at.
struct Context<'a> {
    floor: &'a Floor,
    members: &'a dyn Members,
    view: &'a View,
    certificate: Option<&'a Certificate>,
    policy: &'a dyn Policy,
    elements: Vec<Element<'a>>,
    /// This device, the devices with pending operations, and the devices whose slot differs from the last
    /// accepted view. What unchanged slots have seen of other devices was checked with that view.
    changed: BTreeSet<DeviceId>,
    epochs: Epochs,
    pending: BTreeMap<(DeviceId, u64), PendingElement<'a>>,
    slots: BTreeMap<DeviceId, OnceCell<Digest>>,
    slot_summary: SlotSummary,
}

/// For each device its slot's number, and whether the slot gives numbers up. Both are needed for every number
/// that every operation has seen, which grows with the square of the devices; so they are in an array. For
/// devices with larger ids, which no honest superuser gives out, the slot itself is asked.
struct SlotSummary(Vec<(u64, bool)>);

impl SlotSummary {
    const IDS_MAX: u32 = 1 << 16;

    fn of(view: &View) -> SlotSummary {
        let mut brief = Vec::new();
        for (device, slot) in view.slots.range(..DeviceId(SlotSummary::IDS_MAX)) {
            brief.resize(device.0 as usize, (0, false));
            brief.push((slot.value.number(), !slot.value.forecast.voids.0.is_empty()));
        }
        SlotSummary(brief)
    }

    /// `None` if the device's id is too large for the array.
    fn get(&self, device: DeviceId) -> Option<(u64, bool)> {
        match self.0.get(device.0 as usize) {
            Some(found) => Some(*found),
            None => (device.0 < SlotSummary::IDS_MAX).then_some((0, false)),
        }
    }
}

/// An entry of the pending list, and the digest of its forecast, computed when first needed: every later
/// operation names it.
struct PendingElement<'a> {
    entry: &'a PendingEntry,
    digest: OnceCell<Digest>,
}

impl PendingElement<'_> {
    fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| self.entry.forecast.digest())
    }
}

/// The pending list by device and number. Of several entries for one operation the first counts.
fn pending_element(view: &View) -> BTreeMap<(DeviceId, u64), PendingElement<'_>> {
    let mut found = BTreeMap::new();
    for entry in &view.pending {
        let certificate = &entry.certificate.value;
        let announced = PendingElement { entry, digest: OnceCell::new() };
        found.entry((certificate.device, certificate.number)).or_insert(announced);
    }
    found
}

impl Context<'_> {
    /// The number in `device`'s slot; 0 if it has none.
    fn slot_number(&self, device: DeviceId) -> u64 {
        match self.slot_summary.get(device) {
            Some((number, _)) => number,
            None => self.view.slots.get(&device).map_or(0, |slot| slot.value.number()),
        }
    }

    /// The digest of the forecast in `device`'s slot.
    fn slot_digest(&self, device: DeviceId) -> Option<Digest> {
        let slot = self.view.slots.get(&device)?;
        Some(*self.slots.get(&device)?.get_or_init(|| slot.value.forecast.digest()))
    }

    fn entry(&self, device: DeviceId, number: u64) -> Option<&PendingElement<'_>> {
        self.pending.get(&(device, number))
    }

    /// Whether `device` has given `number` up: in its slot, or in a certificate declared since.
    fn is_void(&self, device: DeviceId, number: u64) -> bool {
        let may_be = self.slot_summary.get(device).is_none_or(|(_, gives_up)| gives_up);
        let has = |slot: &Signed<Structure>| slot.value.forecast.voids.contains(number);
        (may_be && self.view.slots.get(&device).is_some_and(has))
            || self.view.pending.iter().any(|entry| {
                let certificate = &entry.certificate.value;
                certificate.device == device && certificate.voids.contains(number)
            })
            || (device == self.floor.device && self.floor.voids.contains(number))
    }
}

fn check_with(
    floor: &Floor,
    members: &dyn Members,
    reply: &ViewReply,
    certificate: Option<&Certificate>,
    policy: &dyn Policy,
) -> Result<(Floor, Option<Forecast>), Alarm> {
    let view = &reply.view;
    shape::limits(view)?;
    let epochs = epochs::check(floor, members, view)?;
    let own = certificate.map(|certificate| forecast(view, certificate));

    let mut elements = Vec::with_capacity(view.slots.len() + view.pending.len() + 2);
    if let Some(element) = floor.element.as_ref().filter(|_| policy.on(policy::Rule::Floor)) {
        elements.push(Element { forecast: element, origin: Origin::Floor, is_known: false });
    }
    let changed = changed(floor, view);
    elements.extend(view.slots.iter().map(|(device, slot)| {
        let is_known = floor.view.slots.get(device) == Some(slot);
        Element { forecast: &slot.value.forecast, origin: Origin::Slot, is_known }
    }));
    elements.extend(view.pending.iter().map(|entry| Element {
        forecast: &entry.forecast,
        origin: Origin::Pending(entry),
        is_known: false,
    }));
    elements.extend(own.as_ref().map(|own| Element { forecast: own, origin: Origin::Own, is_known: false }));
    elements.sort_by_key(|element| {
        (element.forecast.log.size, element.origin != Origin::Floor, element.forecast.device)
    });
    let pending = pending_element(view);
    let slots = view.slots.keys().map(|device| (*device, OnceCell::new())).collect();
    let brief = SlotSummary::of(view);
    let context = Context {
        floor,
        members,
        view,
        certificate,
        policy,
        elements,
        changed,
        epochs,
        pending,
        slots,
        slot_summary: brief,
    };

    membership::check(&context)?;
    shape::check(&context)?;
    let frontier = order::log(&context, &reply.peaks, &reply.consistency)?;
    order::total(&context)?;
    order::own_numbers(&context)?;
    records::pending(&context)?;
    records::aborted(&context)?;
    records::reflection(&context)?;
    records::void(&context)?;
    records::hidden(&context)?;
    let merged = memory::check(&context)?;
    handles::check(&context, &merged)?;
    Ok(next_floor(floor, view, merged, frontier, certificate, own))
}

/// The value of [`Context::changed`].
fn changed(floor: &Floor, view: &View) -> BTreeSet<DeviceId> {
    let known = &floor.view;
    let differs = |device: &&DeviceId| known.slots.get(device) != view.slots.get(device);
    let slots = known.slots.keys().chain(view.slots.keys()).filter(differs).copied();
    let pending = known.pending.iter().chain(&view.pending).map(|entry| entry.certificate.value.device);
    slots.chain(pending).chain([floor.device]).collect()
}

fn next_floor(
    floor: &Floor,
    shown: &View,
    merged: View,
    frontier: Frontier,
    certificate: Option<&Certificate>,
    own: Option<Forecast>,
) -> (Floor, Option<Forecast>) {
    let mut next = floor.clone();
    next.learned
        .retain(|device, number| shown.slots.get(device).is_none_or(|slot| slot.value.number() < *number));
    next.accept(shown, merged, frontier);
    if let (Some(certificate), Some(own)) = (certificate, &own) {
        next.append_own(own);
        next.offered
            .entry(certificate.number)
            .or_insert_with(|| crate::floor::OwnOperation {
                certificate: certificate.digest(),
                forecast: None,
            })
            .forecast = Some(own.digest());
    }
    (next, own)
}
