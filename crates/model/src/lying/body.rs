//! The interface of a client in the model, and the real client.

use crate::world::{Kind, Operation, World, sent};
use holdfast_content::{DeviceId, PrincipalId};
use holdfast_crypto::Digest;
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::members::Members;
use holdfast_protocol::message::{Receipt, Request, ViewReply};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::signer::{Effect, Event, OperationEnd, Signer};
use holdfast_protocol::structure::{Forecast, Outcome, Structure, View};

/// What a client waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Busy {
    /// Nothing.
    Idle,
    /// A view for its certificate.
    Update(Signed<Certificate>),
    /// The outcome of a fast operation.
    Fast(Signed<Certificate>, Box<Signed<Structure>>),
    /// The outcome of what it has signed.
    Commit(Signed<Structure>),
}

impl Busy {
    /// The structure whose outcome is open.
    pub fn structure(&self) -> Option<&Signed<Structure>> {
        match self {
            Busy::Fast(_, structure) => Some(structure),
            Busy::Commit(structure) => Some(structure),
            Busy::Idle | Busy::Update(_) => None,
        }
    }
}

/// A client: the real machine, or one of the wrapped ones ([`super::apart`]).
pub trait Body: Clone {
    /// Whether it accepts pushed views while a fast operation is in flight.
    const PUSHED: bool;
    /// Whether it keeps its floor, as it must.
    const KEEPS_FLOOR: bool;

    /// A device that has done nothing yet.
    fn start(world: &World, device: DeviceId) -> Self;
    /// All of its state.
    fn bytes(&self) -> Vec<u8>;
    /// What it has accepted.
    fn floor(&self) -> &Floor;
    /// What it waits for.
    fn busy(&self, world: &World) -> Busy;
    /// Begins an operation; says whether it does.
    fn begin(&mut self, world: &mut World, kind: Kind, fast: bool) -> bool;
    /// Accepts a view for its certificate and signs; returns the view that it reads from, if it accepted it.
    fn answer(&mut self, world: &mut World, reply: &ViewReply, outcome: Outcome) -> Option<View>;
    /// Looks; returns the view that it reads from, if it accepted it.
    fn look(&mut self, world: &mut World, reply: &ViewReply) -> Option<View>;
    /// Accepts an awaited structure; returns the view that it reads from, if it accepted it.
    fn learn(&mut self, world: &mut World, structure: &Signed<Structure>) -> Option<View>;
    /// Gets its receipt; says whether the operation is committed for it.
    fn committed(&mut self, world: &World, receipt: Signed<Receipt>) -> bool;
    /// Learns that its operation was not taken, or is dead.
    fn denied(&mut self, world: &World);
    /// Starts again.
    fn restarted(&mut self, world: &World);
    /// Operations that it takes for committed without having seen them signed.
    fn assumes(&self) -> Vec<(Operation, Digest)> {
        Vec::new()
    }
    /// The digest of the forecast of its own operation in its log.
    fn logged(&self, signed: &Forecast) -> Digest {
        signed.digest()
    }
}

impl Body for Signer {
    // Looks are ignored meanwhile.
    const PUSHED: bool = false;
    const KEEPS_FLOOR: bool = true;

    fn start(world: &World, device: DeviceId) -> Signer {
        world.signer(device)
    }

    fn bytes(&self) -> Vec<u8> {
        self.to_bytes()
    }

    fn floor(&self) -> &Floor {
        Signer::floor(self)
    }

    fn busy(&self, world: &World) -> Busy {
        // "No answer" changes nothing, and returns the request that is waited for.
        let key = world.key(self.floor().device);
        match sent(&self.clone().step(key, Event::ConnectionLost).unwrap_or_default()) {
            Some(Request::Update { certificate, .. }) => Busy::Update(certificate),
            Some(Request::Fast { certificate, structure, .. }) => {
                Busy::Fast(certificate, Box::new(structure))
            }
            Some(Request::Commit { structure, .. }) => Busy::Commit(structure),
            _ => Busy::Idle,
        }
    }

    fn begin(&mut self, world: &mut World, kind: Kind, fast: bool) -> bool {
        if !self.is_idle() || (fast && !self.wants_fast()) {
            return false;
        }
        let device = Signer::floor(self).device;
        if Signer::floor(self).view.slots.is_empty() && matches!(kind, Kind::Rotate { .. }) {
            return false;
        }
        let deltas = world.deltas(Signer::floor(self), kind);
        let view = Signer::floor(self).view.clone();
        let fast = fast.then(|| world.fold(&view, device, &deltas, Outcome::Done));
        let key = world.key(device).clone();
        let effects = self.step(&key, Event::Begin { deltas, time_ns: 0, fast }).expect("idle");
        assert!(matches!(effects[..], [Effect::Persist(_), Effect::Send(_)]), "persisted before it is sent");
        true
    }

    fn answer(&mut self, world: &mut World, reply: &ViewReply, outcome: Outcome) -> Option<View> {
        let members = world.members(Signer::floor(self), &reply.view).ok()?;
        answer(self, world, reply, outcome, &*members)
    }

    fn look(&mut self, world: &mut World, reply: &ViewReply) -> Option<View> {
        let members = world.members(Signer::floor(self), &reply.view).ok()?;
        let key = world.key(Signer::floor(self).device).clone();
        let effects = self.step(&key, Event::Look { reply, members: &*members }).ok()?;
        let taken = matches!(effects[..], [Effect::Persist(_), Effect::Advanced]);
        taken.then(|| Signer::floor(self).view.clone())
    }

    fn learn(&mut self, world: &mut World, structure: &Signed<Structure>) -> Option<View> {
        let (_, handle) = Signer::floor(self).view.handle(holdfast_content::PrincipalId::Members)?;
        let members = world.membership_at(&handle.reference);
        let key = world.key(Signer::floor(self).device).clone();
        let event = Event::Learned { structure: structure.clone(), members: &*members };
        let effects = self.step(&key, event).ok()?;
        let taken = matches!(effects[..], [Effect::Note(_), Effect::Advanced]);
        taken.then(|| Signer::floor(self).view.clone())
    }

    fn committed(&mut self, world: &World, receipt: Signed<Receipt>) -> bool {
        let key = world.key(Signer::floor(self).device);
        let effects = self.step(key, Event::Committed(receipt)).expect("in flight");
        matches!(effects[..], [Effect::Note(_), Effect::Finished(OperationEnd::Committed(_))])
    }

    fn denied(&mut self, world: &World) {
        let key = world.key(Signer::floor(self).device);
        self.step(key, Event::Refused).expect("in flight");
    }

    fn restarted(&mut self, world: &World) {
        let key = world.key(Signer::floor(self).device);
        *self = Signer::restore(&self.to_bytes()).expect("its own bytes");
        self.step(key, Event::Restarted).expect("it has just started");
    }
}

/// Gives a machine a view for its certificate, with the membership that it names.
pub(super) fn answer(
    signer: &mut Signer,
    world: &mut World,
    reply: &ViewReply,
    outcome: Outcome,
    members: &dyn Members,
) -> Option<View> {
    let device = signer.floor().device;
    let Busy::Update(certificate) = signer.busy(world) else { return None };
    let deltas = certificate.value.deltas;
    let key = world.key(device).clone();
    let effects = signer.step(&key, Event::Reply { reply, members }).ok()?;
    let [Effect::Fold(accepted)] = &effects[..] else { return None };
    let version = accepted.forecast.vector.get(PrincipalId::Members);
    // The operations of the superuser's own device are at the lying server's choice, as before there were
    // warrants.
    let fits = device == DeviceId::SUPERUSER
        || world.outcome_at(device, &accepted.view, version, &deltas) == Outcome::Done;
    let outcome = if fits { outcome } else { Outcome::Nothing };
    let tables = world.fold(&accepted.view, device, &deltas, outcome);
    let effects = signer.step(&key, Event::Folded { outcome, tables }).ok()?;
    let is_given_up = matches!(effects[..], [Effect::Persist(_), Effect::Finished(OperationEnd::GivenUp)]);
    let is_sent = matches!(effects[..], [Effect::Persist(_), Effect::Send(_)]);
    assert!(is_given_up || is_sent, "persisted before it is sent");
    Some(accepted.view.clone())
}
