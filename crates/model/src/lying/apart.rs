//! Clients that take a shortcut: the real machine, with a wrapper that does one thing wrong.
//!
//! Nothing in the product can be switched off. So a wrapper does to the machine what a careless author would
//! do in it: it withholds or delays events, forgets parts of its state between two steps, signs something
//! else than the machine decided, or (for checks that are left out) gives the machine a view in which the
//! offence is hidden, and restores the original afterwards. State is taken out of and put into the machine by
//! its own encoding. An altered structure is put into the floor as well, where the machine takes it for known
//! and does not verify it again.
//!
//! A wrapper that takes no shortcut reaches exactly the states of the machine alone (a test compares them).

use super::body::{Body, Busy, answer};
use crate::warrants::Lenient;
use crate::world::{Kind, Operation, World};
use holdfast_content::DeviceId;
use holdfast_crypto::{Digest, encode};
use holdfast_protocol::floor::Floor;
use holdfast_protocol::members::Members;
use holdfast_protocol::message::{Receipt, ViewReply};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::signer::Signer;
use holdfast_protocol::structure::{Forecast, Outcome, Record, Structure, View};
use std::collections::BTreeSet;
use std::marker::PhantomData;

/// The shortcut. (T1, a number that is used twice, is [`super::Durability::SendsFirst`].)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortcut {
    /// Nothing.
    None,
    /// T2: what others know of given-up numbers is ignored.
    OwnNumbers,
    /// T3: aborts are not recorded.
    AbortUnrecorded,
    /// T4: aborts are recorded once.
    AbortOnce,
    /// T5: a pending operation is applied at once.
    RollForward,
    /// T6: a record of an abort is dropped when its author has passed it, as if the author's list of void
    /// numbers did not matter.
    PassedRecords,
    /// T7: the floor is dropped with the operation that brought it.
    FloorGoes,
    /// T8: nobody asks whether what saw a pending or dead operation has a record of it.
    Reflection,
    /// T9: what was learned by waiting is read, and forgotten.
    LearnedGoes,
    /// T10: what was seen in a look is read, and forgotten.
    LookGoes,
    /// T11: a view that comes while a fast operation is in flight is read.
    Pushed,
    /// T12: what is learned while an UPDATE is under way is read at once, and stored when the answer is
    /// signed.
    LearnedLate,
    /// Nobody asks what a warrant was signed to follow.
    Warrants,
    /// The paper's protocol: records of pending operations have no digests.
    NoDigests,
}

/// The shortcut of a wrapper: a type for each, since a model has clients of one type.
pub trait Rules: Clone {
    /// The shortcut.
    const SHORTCUT: Shortcut;
}

/// The real machine, with a shortcut around it.
#[derive(Clone)]
pub struct Apart<R> {
    signer: Signer,
    /// The floor before the operation in flight.
    before: Option<Box<Floor>>,
    /// Learned structures that the machine does not know yet.
    late: Vec<Signed<Structure>>,
    assumed: BTreeSet<(Operation, Digest)>,
    /// Digest of the forecast that the machine thinks it has signed.
    logged: Option<Digest>,
    rules: PhantomData<R>,
}

/// The machine with another floor.
fn with_floor(signer: &Signer, floor: &Floor) -> Signer {
    let bytes = signer.to_bytes();
    let rest = 1 + encode(signer.floor()).len();
    let spliced = [&bytes[..1], &encode(floor), &bytes[rest..]].concat();
    Signer::restore(&spliced).expect("a floor in place of a floor")
}

/// The machine with another structure in flight.
fn with_structure(signer: &Signer, from: &Signed<Structure>, to: &Signed<Structure>) -> Signer {
    let (bytes, from, to) = (signer.to_bytes(), encode(from), encode(to));
    let at = bytes.windows(from.len()).rposition(|part| part == from).expect("it is in flight");
    let spliced = [&bytes[..at], &to, &bytes[at + from.len()..]].concat();
    Signer::restore(&spliced).expect("a structure in place of a structure")
}

impl<R: Rules> Apart<R> {
    fn edit_floor(&mut self, edit: impl FnOnce(&mut Floor)) {
        let mut floor = self.signer.floor().clone();
        edit(&mut floor);
        self.signer = with_floor(&self.signer, &floor);
    }

    /// Hides what a check that is left out would refuse.
    fn paint(&mut self, view: &mut View) {
        let original = view.clone();
        let me = self.signer.floor().device;
        let last = self.signer.floor().last();
        let mut painted = Vec::new();
        for (device, slot) in &original.slots {
            let mut forecast = slot.value.forecast.clone();
            match R::SHORTCUT {
                Shortcut::OwnNumbers if *device != me && forecast.vector.device(me) > last => {
                    forecast.vector.set(holdfast_content::PrincipalId::Device(me), last);
                }
                Shortcut::Reflection => add_records(&mut forecast, &original),
                Shortcut::NoDigests => forget_digests(&mut forecast, &original),
                _ => {}
            }
            let known = self.signer.floor().view.slots.get(device);
            let follows =
                known.is_none_or(|known| known == slot || known.value.number() < slot.value.number());
            if forecast != slot.value.forecast && follows {
                let mut slot = slot.clone();
                slot.value.forecast = forecast;
                painted.push((*device, slot));
            }
        }
        view.slots.extend(painted.clone());
        let shown = view.clone();
        self.edit_floor(|floor| {
            floor.view.slots.extend(painted);
            if let Some(element) = &mut floor.element {
                match R::SHORTCUT {
                    Shortcut::NoDigests => forget_digests(element, &shown),
                    Shortcut::Reflection => add_records(element, &shown),
                    Shortcut::PassedRecords => element.aborted.retain(|record| {
                        shown
                            .slots
                            .get(&record.device)
                            .is_none_or(|slot| slot.value.number() <= record.number)
                    }),
                    _ => {}
                }
            }
        });
    }

    /// Restores what was hidden.
    fn restore(&mut self, original: &View, shown: &View) {
        self.edit_floor(|floor| {
            for (device, slot) in &original.slots {
                if floor.view.slots.get(device) == shown.slots.get(device) {
                    floor.view.slots.insert(*device, slot.clone());
                }
            }
        });
    }

    /// Signs something else than the machine decided.
    fn sign_otherwise(&mut self, world: &World, own: Option<&Structure>) {
        let Busy::Commit(signed) = self.signer.busy(world) else { return };
        let mut structure = signed.value.clone();
        let recorded: &[Record] = own.map_or(&[], |own| &own.forecast.aborted);
        match R::SHORTCUT {
            Shortcut::AbortUnrecorded => structure.forecast.aborted.clear(),
            Shortcut::AbortOnce => structure.forecast.aborted.retain(|record| !recorded.contains(record)),
            _ => return,
        }
        if structure == signed.value {
            return;
        }
        self.logged = Some(signed.value.forecast.digest());
        let (device, number) = (structure.device(), structure.number());
        let digest = structure.forecast.digest();
        let other = Signed::new(structure, world.key(device));
        self.signer = with_structure(&self.signer, &signed, &other);
        self.edit_floor(|floor| {
            if let Some(offered) = floor.offered.get_mut(&number) {
                offered.forecast = Some(digest);
            }
        });
    }
}

/// Gives an element the records that it lacks.
fn add_records(forecast: &mut Forecast, view: &View) {
    for entry in &view.pending {
        let record = entry.forecast.record();
        let knows =
            forecast.vector.device(record.device) >= record.number && record.device != forecast.device;
        let mut records = forecast.pending.iter().chain(&forecast.aborted);
        if knows && !records.any(|known| (known.device, known.number) == (record.device, record.number)) {
            let records = if entry.dead { &mut forecast.aborted } else { &mut forecast.pending };
            records.push(record);
        }
    }
}

/// Gives the records of an element the digests that match what came.
fn forget_digests(forecast: &mut Forecast, view: &View) {
    for record in &mut forecast.pending {
        let slot = view.slots.get(&record.device).map(|slot| &slot.value.forecast);
        let entries = view.pending.iter().map(|entry| &entry.forecast);
        let same = |other: &&Forecast| (other.device, other.number()) == (record.device, record.number);
        if let Some(shown) = slot.into_iter().chain(entries).find(same) {
            record.forecast = shown.digest();
        }
    }
}

impl<R: Rules> Body for Apart<R> {
    const PUSHED: bool = matches!(R::SHORTCUT, Shortcut::Pushed);
    const KEEPS_FLOOR: bool = matches!(R::SHORTCUT, Shortcut::None);

    fn start(world: &World, device: DeviceId) -> Self {
        Apart {
            signer: Body::start(world, device),
            before: None,
            late: Vec::new(),
            assumed: BTreeSet::new(),
            logged: None,
            rules: PhantomData,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let assumed: Vec<_> =
            self.assumed.iter().map(|((device, number), digest)| (*device, *number, *digest)).collect();
        let before = self.before.as_deref();
        encode(&(self.signer.to_bytes(), before, &self.late, assumed, self.logged))
    }

    fn floor(&self) -> &Floor {
        self.signer.floor()
    }

    fn busy(&self, world: &World) -> Busy {
        self.signer.busy(world)
    }

    fn begin(&mut self, world: &mut World, kind: Kind, fast: bool) -> bool {
        self.logged = None;
        if R::SHORTCUT == Shortcut::FloorGoes {
            self.before = Some(Box::new(self.signer.floor().clone()));
        }
        self.signer.begin(world, kind, fast)
    }

    fn answer(&mut self, world: &mut World, reply: &ViewReply, outcome: Outcome) -> Option<View> {
        let own = self.signer.floor().own().map(|own| own.value.clone());
        let mut painted = reply.clone();
        self.paint(&mut painted.view);
        let members = world.members(self.signer.floor(), &painted.view).ok()?;
        let members: Box<dyn Members> = match R::SHORTCUT {
            Shortcut::Warrants => Box::new(Lenient::new(members)),
            _ => Box::new((*members).clone()),
        };
        let mut seen = answer(&mut self.signer, world, &painted, outcome, &*members)?;
        self.restore(&reply.view, &painted.view);
        for (device, slot) in &reply.view.slots {
            if seen.slots.get(device) == painted.view.slots.get(device) {
                seen.slots.insert(*device, slot.clone());
            }
        }
        self.sign_otherwise(world, own.as_ref());
        if R::SHORTCUT == Shortcut::RollForward {
            for entry in reply.view.pending.iter().filter(|entry| !entry.dead) {
                let operation = (entry.forecast.device, entry.forecast.number());
                self.assumed.insert((operation, entry.forecast.digest()));
            }
        }
        for structure in std::mem::take(&mut self.late) {
            seen = self.signer.learn(world, &structure)?;
        }
        Some(seen)
    }

    fn look(&mut self, world: &mut World, reply: &ViewReply) -> Option<View> {
        match R::SHORTCUT {
            Shortcut::LookGoes => self.signer.clone().look(world, reply),
            // A pushed view is checked as if nothing were in flight.
            Shortcut::Pushed if !self.signer.is_idle() => {
                let idle = world.signer(self.signer.floor().device);
                with_floor(&idle, self.signer.floor()).look(world, reply)
            }
            _ => self.signer.look(world, reply),
        }
    }

    fn learn(&mut self, world: &mut World, structure: &Signed<Structure>) -> Option<View> {
        match R::SHORTCUT {
            Shortcut::LearnedGoes => self.signer.clone().learn(world, structure),
            Shortcut::LearnedLate if matches!(self.signer.busy(world), Busy::Update(_)) => {
                let seen = self.signer.clone().learn(world, structure)?;
                if self.late.contains(structure) {
                    return None;
                }
                self.late.push(structure.clone());
                Some(seen)
            }
            Shortcut::NoDigests => {
                let operation = (structure.value.device(), structure.value.number());
                self.edit_floor(|floor| {
                    let mut entries = floor.view.pending.iter_mut();
                    let entry =
                        entries.find(|entry| (entry.forecast.device, entry.forecast.number()) == operation);
                    if let Some(entry) = entry {
                        entry.forecast = structure.value.forecast.clone();
                    }
                });
                self.signer.learn(world, structure)
            }
            _ => self.signer.learn(world, structure),
        }
    }

    fn committed(&mut self, world: &World, receipt: Signed<Receipt>) -> bool {
        self.before = None;
        self.signer.committed(world, receipt)
    }

    fn denied(&mut self, world: &World) {
        self.signer.denied(world);
        self.late.clear();
        if let Some(before) = self.before.take() {
            self.edit_floor(|floor| {
                let Floor { voids, never_offered, offered, used, .. } = floor.clone();
                *floor = Floor { voids, never_offered, offered, used, ..*before };
            });
        }
    }

    fn restarted(&mut self, world: &World) {
        self.signer.restarted(world);
    }

    fn assumes(&self) -> Vec<(Operation, Digest)> {
        self.assumed.iter().copied().collect()
    }

    fn logged(&self, signed: &Forecast) -> Digest {
        self.logged.unwrap_or_else(|| signed.digest())
    }
}
