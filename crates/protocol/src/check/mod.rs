//! What a client checks before it believes a server: one pure function for every view it is shown.
//!
//! The checks run in the order of `docs/internals/protocol.md`: shape and signatures ([`shape`]), the order of everything
//! shown and the device's own numbers ([`order`]), what operations remember of each other ([`records`]), what
//! this device remembers ([`memory`]), and whose tables are in force ([`handles`]). Elements of the order are
//! the structures in the slots, the forecasts of pending and dead entries, the floor, and the own new forecast.
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
    /// The view to read from, with what was learned while it was on its way.
    pub view: View,
    /// The forecast of the own operation: what its structure must say.
    pub forecast: Forecast,
    /// The floor from now on: durable before the structure is sent and before anything read is handed out.
    pub floor: Floor,
}

/// Checks the answer to an UPDATE of `certificate`.
///
/// # Errors
/// [`Alarm`]: freeze, except that [`crate::alarm::Blame::LocalState`] means this key's state is elsewhere.
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

/// Checks a view that was not asked for by an operation of this device, and makes it the floor (trace T10).
/// Only while no operation of this device is in flight (trace T11).
///
/// # Errors
/// See [`check`].
pub fn check_look(floor: &Floor, members: &dyn Members, reply: &ViewReply) -> Result<Floor, Alarm> {
    check_with(floor, members, reply, None, &AllRules).map(|(floor, _)| floor)
}

/// The membership block a view names, so that the driver can fetch it before [`check`]: the one thing that
/// rests on the superuser's key alone. If device 0 does not hold it, that key's word for it is in the block; [`check`]
/// looks there, and who does not check a view asks [`membership_holds`].
///
/// # Errors
/// [`Alarm`] when there is none, or device 0 holds it and has not signed with the superuser's key.
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

/// Whether `members`, loaded from the block that `view` names ([`membership_wanted`]), is the superuser's.
///
/// # Errors
/// [`Alarm::Unwarranted`].
pub fn membership_holds(superuser: &PublicKey, members: &dyn Members, view: &View) -> Result<(), Alarm> {
    membership::holds(superuser, members, view)
}

/// Whether a structure was signed by its device's key while that device was a member: all that can be said of one by
/// itself.
///
/// # Errors
/// [`Alarm`]: why not.
pub fn authentic(members: &dyn Members, structure: &Signed<Structure>) -> Result<(), Alarm> {
    shape::signature(members, structure, &AllRules)
}

/// Does what [`Floor::learn`] does, by a chosen set of checks.
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
    // A restore was declared meanwhile, and the number was used again: it is another operation, and says nothing about the
    // one that is waited for. The next view tells of the restore (trace T14).
    if structure.value.forecast.file_system != floor.epoch {
        return Ok(());
    }
    // A membership under a warrant is taken from a view only, which is checked together with the block that it names.
    let members_of = |structure: &Structure| structure.handles.get(&PrincipalId::Members).copied();
    let before = floor.view.slots.get(&device).and_then(|slot| members_of(&slot.value));
    if device != DeviceId::SUPERUSER && members_of(&structure.value) != before {
        return Ok(());
    }
    // A look may show an own operation as pending that was given up since. Were it learned, it would be committed and
    // void at once, and everybody else would blame this device (trace T13).
    if policy.on(policy::Rule::Memory) && device == floor.device && floor.voids.contains(number) {
        let what = "this device gave it up, and now it is shown as committed".to_owned();
        return Err(Alarm::FateChanged { device, number, what });
    }
    // A view accepted meanwhile may be further than what was waited for; then the author has said what became
    // of it, and what was signed for the reader must agree.
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
    /// Whether it is a slot of the last accepted view too: what two of these say of each other was checked then.
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
    /// Devices of which this view shows something else than the last accepted one, or anything pending, and the own device: what
    /// known slots have seen of others was checked when that view was.
    changed: BTreeSet<DeviceId>,
    epochs: Epochs,
    pending: BTreeMap<(DeviceId, u64), PendingElement<'a>>,
    slots: BTreeMap<DeviceId, OnceCell<Digest>>,
    slot_summary: SlotSummary,
}

/// Of each slot its number, and whether it gives numbers up, by device: that is asked for every number that every operation
/// has seen, which is the square of the devices. Of devices with ids beyond, which no honest superuser gives out, the slot
/// itself is asked.
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

    /// `None` if the summary does not have the device.
    fn get(&self, device: DeviceId) -> Option<(u64, bool)> {
        match self.0.get(device.0 as usize) {
            Some(found) => Some(*found),
            None => (device.0 < SlotSummary::IDS_MAX).then_some((0, false)),
        }
    }
}

/// An entry of the pending list, and the digest of its forecast once that was wanted: every operation after it names it.
struct PendingElement<'a> {
    entry: &'a PendingEntry,
    digest: OnceCell<Digest>,
}

impl PendingElement<'_> {
    fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| self.entry.forecast.digest())
    }
}

/// The pending list by device and number. Of entries that claim to be the same operation the first counts.
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

    /// Whether `device` has given `number` up, by its slot or by what it declared since.
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

/// See [`Context::changed`].
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
