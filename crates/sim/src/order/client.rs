//! A client around the signer: it plans operations on tables, applies what others have pending, and crashes between any
//! two effects.

use super::ledger::{Ledger, OperationKnowledge, effective};
use super::{GROUP, device_key, new_signer, tables};
use crate::random::Random;
use holdfast_content::{
    BlockSink, DeviceId, Handle, Membership, MemoryBlocks, PrincipalId, Reference, UserId,
};
use holdfast_crypto::{
    Digest, DigestKey, Domain, KeyHolder, PublicKey, SignError, SignRequest, Signature, SigningKey,
};
use holdfast_protocol::alarm::Alarm;
use holdfast_protocol::certificate::Delta;
use holdfast_protocol::check::{AcceptedView, membership_wanted};
use holdfast_protocol::mandate::Mandate;
use holdfast_protocol::message::{Request, Response, ServerError, ViewReply};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::signer::{Effect, Event, OperationEnd, Signer};
use holdfast_protocol::structure::{Outcome, View};
use holdfast_protocol::warrant::Change;
use std::rc::Rc;
use std::sync::Mutex;

/// An operation that a client is to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientAction {
    /// Read only.
    Fetch,
    /// Write a file of its own.
    Own,
    /// Map a number of the group's table, whatever it held.
    Group,
    /// Map a number of the group's table if it is free.
    GroupIfFree,
    /// Change the membership: the superuser by itself, others under a warrant.
    Members,
}

/// An operation as it was planned.
#[derive(Clone, Debug)]
struct Plan {
    deltas: Vec<Delta>,
    /// A number of the group's table that must be free.
    wants_free: Option<u64>,
}

/// The end of an operation, for the world to note.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its number.
    pub number: u64,
    /// Acknowledged with effect, acknowledged without, or not committed.
    pub outcome: Option<Outcome>,
}

/// The device's key with its mandate, in a process that does not crash: an honest client is never refused.
#[derive(Debug)]
struct KeyRecord {
    key: SigningKey,
    mandate: Mutex<Mandate>,
}

impl KeyRecord {
    fn number(&self) -> u64 {
        self.mandate.lock().expect("not poisoned").number()
    }
}

impl KeyHolder for KeyRecord {
    fn public(&self) -> PublicKey {
        self.key.public()
    }

    fn sign_message(&self, _: &[u8]) -> Result<Signature, SignError> {
        panic!("nothing is signed without being shown")
    }

    fn try_sign_all(&self, asks: &[SignRequest]) -> Result<Vec<Signature>, SignError> {
        let mut mandate = self.mandate.lock().expect("not poisoned");
        match mandate.judge(asks) {
            Ok(after) => *mandate = Mandate::from_bytes(&after.to_bytes()).expect("our own bytes"),
            Err(contradiction) => panic!("an honest client was refused a signature: {contradiction}"),
        }
        self.key.try_sign_all(asks)
    }
}

/// A simulated client.
pub struct Client {
    /// Its device.
    pub device: DeviceId,
    /// Operations that it has yet to make.
    pub wishes: Vec<ClientAction>,
    /// Operations ended since the world last looked.
    pub ended: Vec<Ended>,
    /// Alarms raised.
    pub alarms: Vec<Alarm>,
    /// Answers that an honest server never gives to a request that was sent once.
    pub errors: Vec<ServerError>,
    /// Whether it never takes the fast path.
    pub slow_only: bool,
    key: KeyRecord,
    blocks: Rc<MemoryBlocks>,
    /// `None` while it is down.
    signer: Option<Signer>,
    durable: Option<Vec<u8>>,
    /// Written after `durable`, and possibly lost in a crash.
    noted: Option<Vec<u8>>,
    plan: Option<Plan>,
    /// An accepted view whose tables are being computed.
    folding: Option<Box<AcceptedView>>,
    counter: u64,
}

/// What a client asks of its world.
pub enum WorldRequest {
    /// Send this; the answer goes to [`Client::answer`].
    Send(Box<Request>),
    /// Call [`Client::fold`] after a while.
    Fold,
}

impl Client {
    /// A device that has done nothing yet.
    pub fn new(device: DeviceId, blocks: Rc<MemoryBlocks>) -> Client {
        Client::with_signer(new_signer(device), blocks)
    }

    /// A device with a signer that has begun.
    pub fn with_signer(signer: Signer, blocks: Rc<MemoryBlocks>) -> Client {
        let device = signer.floor().device;
        let key = device_key(device);
        let mandate = Mutex::new(Mandate::adopt(&signer, key.public()));
        Client {
            device,
            wishes: Vec::new(),
            ended: Vec::new(),
            alarms: Vec::new(),
            errors: Vec::new(),
            slow_only: false,
            key: KeyRecord { key, mandate },
            blocks,
            durable: Some(signer.to_bytes()),
            signer: Some(signer),
            noted: None,
            plan: None,
            folding: None,
            counter: 0,
        }
    }

    /// The machine inside, unless the client is down.
    pub fn signer(&self) -> Option<&Signer> {
        self.signer.as_ref()
    }

    /// Whether it could begin an operation.
    pub fn is_idle(&self) -> bool {
        self.signer.as_ref().is_some_and(Signer::is_idle)
    }

    /// Whether it is down.
    pub fn is_down(&self) -> bool {
        self.signer.is_none()
    }

    /// Begins the next operation.
    pub fn begin(
        &mut self,
        random: &mut Random,
        ledger: &mut Ledger,
        crash_percent: u64,
    ) -> Vec<WorldRequest> {
        let Some(action) = self.wishes.pop().filter(|_| self.is_idle()) else { return Vec::new() };
        self.catch_up();
        let plan = self.plan(action, random);
        let deltas = plan.deltas.clone();
        let signer = self.signer.as_ref().expect("idle");
        let wants_free = plan.wants_free;
        let fast = (signer.wants_fast() && !self.slow_only).then(|| {
            let view = &signer.floor().view;
            let free = wants_free.is_none_or(|number| self.is_free(view, number));
            free.then(|| self.planned_tables(view, &deltas))
        });
        let fast = fast.flatten();
        self.plan = Some(plan);
        let time_ns = self.counter as i64;
        self.step(Event::Begin { deltas, time_ns, fast }, random, ledger, crash_percent)
    }

    /// Gives up the number that the key has signed and of which this client, which crashed, knows nothing.
    fn catch_up(&mut self) {
        let signer = self.signer.as_mut().expect("idle");
        let missing = self.key.number() - signer.floor().used;
        assert!(missing <= 1, "{missing} numbers were forgotten");
        if missing == 1 {
            signer.skip().expect("idle");
            self.durable = Some(signer.to_bytes());
            self.noted = None;
        }
    }

    /// Begins the next operation on the slow path.
    pub fn begin_slow(&mut self, random: &mut Random, ledger: &mut Ledger) -> Vec<WorldRequest> {
        let slow_only = std::mem::replace(&mut self.slow_only, true);
        let wanted = self.begin(random, ledger, 0);
        self.slow_only = slow_only;
        wanted
    }

    fn planned_tables(&self, view: &View, deltas: &[Delta]) -> holdfast_protocol::signer::Tables {
        // Any certificate with these deltas and this device gives the same tables.
        let certificate = holdfast_protocol::certificate::Certificate {
            file_system: Digest::ZERO,
            device: self.device,
            number: 0,
            previous: Digest::ZERO,
            path: holdfast_protocol::certificate::Path::Fast,
            voids: Default::default(),
            ineffective: Default::default(),
            time_ns: 0,
            deltas: deltas.to_vec(),
        };
        tables::fold(&self.blocks, view, &certificate, Outcome::Done)
    }

    fn plan(&mut self, action: ClientAction, random: &mut Random) -> Plan {
        self.counter += 1;
        let fresh = self.counter;
        let number = 1 + random.below(6);
        let own = |number: u64, text: u64| Delta::SetInode {
            number,
            file: Handle { principal: PrincipalId::User(UserId(self.device.0)), number },
            inode: Some(DigestKey::WELL_KNOWN.digest(Domain::Inode, &text.to_le_bytes())),
        };
        let group = |target| Delta::SetTable { file: Handle { principal: GROUP, number }, number: target };
        let mut wants_free = None;
        let deltas = match action {
            ClientAction::Fetch => Vec::new(),
            ClientAction::Own => vec![own(number, fresh)],
            ClientAction::Group => vec![own(fresh, fresh), group((!random.chance(20)).then_some(fresh))],
            ClientAction::GroupIfFree => {
                wants_free = Some(number);
                vec![own(fresh, fresh), group(Some(fresh))]
            }
            // A client that knows no membership yet has nothing to change.
            ClientAction::Members if self.knows_nothing() => Vec::new(),
            ClientAction::Members => self.new_members(),
        };
        Plan { deltas, wants_free }
    }

    fn knows_nothing(&self) -> bool {
        self.signer.as_ref().is_none_or(|signer| signer.floor().view.slots.is_empty())
    }

    /// A membership in which the groups have other names. The superuser's own device needs no warrant; other devices
    /// have one for the membership that they know, which may no longer be in force.
    fn new_members(&self) -> Vec<Delta> {
        let floor = self.signer.as_ref().expect("idle").floor();
        let mut members: Membership = tables::members(&self.blocks, &floor.view);
        let version = holdfast_protocol::order::last_vector(&floor.view).get(PrincipalId::Members) + 1;
        members.version = version;
        for (id, group) in &mut members.groups {
            group.name = format!("group {} {version} {}", id.0, self.counter);
        }
        members.warrant = None;
        if self.device != DeviceId::SUPERUSER {
            let (_, present) = floor.view.handle(PrincipalId::Members).expect("a view has a membership");
            let change = Change::new(floor.epoch, &present, &members);
            let signature = Signed::new(change.clone(), &device_key(DeviceId::SUPERUSER)).signature;
            members = change.enacted(version, signature);
        }
        let mut sink = &*self.blocks;
        let reference = sink.put(members.to_block(&DigestKey::WELL_KNOWN).expect("valid"));
        vec![Delta::SetMembers { reference }]
    }

    /// Whether a membership fits its operation's position: it was planned for that version, and follows the one in
    /// force there if it has a warrant.
    fn fits(&self, accepted: &AcceptedView, reference: &Reference) -> bool {
        let version = accepted.forecast.vector.get(PrincipalId::Members);
        let present = accepted.view.handle(PrincipalId::Members).map(|(_, handle)| handle);
        Membership::load(&*self.blocks, reference).is_ok_and(|planned| {
            let follows = planned.warrant.map(|warrant| (warrant.version, warrant.follows));
            let due = present.map(|present| (present.version, present.reference.address));
            planned.version == version && (follows.is_none() || follows == due)
        })
    }

    fn is_free(&self, view: &View, number: u64) -> bool {
        let found = tables::look_up(&self.blocks, view, GROUP, number);
        found.value.is_none() && found.unsettled.is_none()
    }

    /// Computes the tables of the accepted view and commits.
    pub fn fold(
        &mut self,
        random: &mut Random,
        ledger: &mut Ledger,
        crash_percent: u64,
    ) -> Vec<WorldRequest> {
        let Some(accepted) = self.folding.take() else { return Vec::new() };
        let Some(plan) = &self.plan else { return Vec::new() };
        let free = plan.wants_free.is_none_or(|number| self.is_free(&accepted.view, number));
        // A change of membership is planned for one version; elsewhere in the order it has no effect.
        let fits = plan.deltas.iter().all(|delta| match delta {
            Delta::SetMembers { reference } => self.fits(&accepted, reference),
            _ => true,
        });
        let outcome = if free && fits { Outcome::Done } else { Outcome::Nothing };
        let certificate = accepted_certificate(&accepted, self.device, &plan.deltas);
        let tables = tables::fold(&self.blocks, &accepted.view, &certificate, outcome);
        self.step(Event::Folded { outcome, tables }, random, ledger, crash_percent)
    }

    /// An answer to the last request sent.
    pub fn answer(
        &mut self,
        response: Response,
        random: &mut Random,
        ledger: &mut Ledger,
        crash_percent: u64,
    ) -> Vec<WorldRequest> {
        let event = match response {
            Response::View(reply) => return self.view(&reply, random, ledger, crash_percent),
            Response::Committed(receipt) => Event::Committed(receipt),
            Response::Refused => Event::Refused,
            Response::Aborted => Event::Aborted,
            Response::Error(error) => {
                // A change of membership gives way to others that came first, or are under way.
                let changes_members = |delta: &Delta| matches!(delta, Delta::SetMembers { .. });
                if !self.plan.as_ref().is_some_and(|plan| plan.deltas.iter().any(changes_members)) {
                    self.errors.push(error);
                }
                Event::Refused
            }
            _ => return Vec::new(),
        };
        self.step(event, random, ledger, crash_percent)
    }

    fn view(
        &mut self,
        reply: &ViewReply,
        random: &mut Random,
        ledger: &mut Ledger,
        crash_percent: u64,
    ) -> Vec<WorldRequest> {
        let Some(signer) = &self.signer else { return Vec::new() };
        let members = match membership_wanted(signer.floor(), &reply.view) {
            Ok(reference) => Membership::load(&*self.blocks, &reference),
            Err(alarm) => {
                self.alarms.push(alarm);
                self.signer = None;
                return Vec::new();
            }
        };
        // A membership block that cannot be fetched is a missing block, not an offence of the order.
        let Ok(members) = members else { return Vec::new() };
        let event = if signer.is_idle() {
            Event::Look { reply, members: &members }
        } else {
            Event::Reply { reply, members: &members }
        };
        self.step(event, random, ledger, crash_percent)
    }

    /// A structure that was waited for.
    pub fn learn(&mut self, response: Response, random: &mut Random, ledger: &mut Ledger) {
        let Response::Structure(Some(structure)) = response else { return };
        let Some(signer) = &self.signer else { return };
        let members = tables::members(&self.blocks, &signer.floor().view);
        let event = Event::Learned { structure: *structure, members: &members };
        self.step(event, random, ledger, 0);
    }

    /// The answer did not come.
    pub fn connection_lost(&mut self, random: &mut Random, ledger: &mut Ledger) -> Vec<WorldRequest> {
        self.step(Event::ConnectionLost, random, ledger, 0)
    }

    /// Loses everything that is not durable.
    pub fn crash(&mut self) {
        self.signer = None;
        self.plan = None;
        self.folding = None;
    }

    /// Starts again from what was persisted.
    ///
    /// # Panics
    /// If that does not decode.
    pub fn restart(&mut self, random: &mut Random, ledger: &mut Ledger) -> Vec<WorldRequest> {
        if !self.is_down() || !self.alarms.is_empty() {
            return Vec::new();
        }
        let noted = self.noted.take().filter(|_| random.chance(50));
        if noted.is_some() {
            self.durable = noted;
        }
        let bytes = self.durable.as_ref().expect("saved at the beginning");
        self.signer = Some(Signer::restore(bytes).expect("our own bytes"));
        self.step(Event::Restarted, random, ledger, 0)
    }

    fn step(
        &mut self,
        event: Event<'_>,
        random: &mut Random,
        ledger: &mut Ledger,
        crash_percent: u64,
    ) -> Vec<WorldRequest> {
        let Some(signer) = &mut self.signer else { return Vec::new() };
        let number = signer.floor().used;
        let effects = match signer.step(&self.key, event) {
            Ok(effects) => effects,
            Err(misuse) => panic!("the simulated client misuses its signer: {misuse}"),
        };
        let mut wanted = Vec::new();
        for effect in effects {
            if random.chance(crash_percent) {
                self.crash();
                return wanted;
            }
            match effect {
                Effect::Persist(state) => {
                    // Drivers make the change since the last durable state durable.
                    if let Some(before) = &self.durable {
                        let before = Signer::restore(before).expect("own bytes");
                        let after = before.changed(&state.change_since(&before)).expect("its own change");
                        assert_eq!(after, *state, "a change leads to another state than it was made of");
                    }
                    self.durable = Some(state.to_bytes());
                    self.noted = None;
                }
                Effect::Note(state) => self.noted = Some(state.to_bytes()),
                Effect::Send(request) => {
                    if let Request::Commit { structure, .. } | Request::Fast { structure, .. } = &*request {
                        ledger.sign(self.device, &structure.value);
                    }
                    wanted.push(WorldRequest::Send(request));
                }
                Effect::Fold(accepted) => {
                    self.observe(&accepted.view, ledger);
                    self.folding = Some(accepted);
                    wanted.push(WorldRequest::Fold);
                }
                Effect::Finished(finished) => self.finished(number, finished, ledger),
                Effect::Advanced => {
                    let view = self.signer.as_ref().expect("up").floor().view.clone();
                    self.observe(&view, ledger);
                }
                Effect::Alarm(alarm) => self.alarms.push(alarm),
                Effect::FreezeAll => self.signer = None,
            }
        }
        wanted
    }

    fn observe(&mut self, view: &View, ledger: &mut Ledger) {
        if let Err(contradiction) = ledger.accept(self.device, view) {
            panic!("{contradiction}");
        }
    }

    fn finished(&mut self, number: u64, finished: OperationEnd, ledger: &mut Ledger) {
        let (known, outcome) = match &finished {
            OperationEnd::Committed(structure) => {
                let outcome = if effective(&structure.value) { Outcome::Done } else { Outcome::Nothing };
                (OperationKnowledge::Committed, Some(outcome))
            }
            OperationEnd::NotOrdered | OperationEnd::Aborted | OperationEnd::GivenUp => {
                (OperationKnowledge::Aborted, None)
            }
        };
        self.plan = None;
        self.folding = None;
        if let Err(contradiction) = ledger.settle((self.device, number), known) {
            panic!("{contradiction}");
        }
        self.ended.push(Ended { number, outcome });
    }
}

fn accepted_certificate(
    accepted: &AcceptedView,
    device: DeviceId,
    deltas: &[Delta],
) -> holdfast_protocol::certificate::Certificate {
    holdfast_protocol::certificate::Certificate {
        file_system: accepted.forecast.file_system,
        device,
        number: accepted.forecast.number(),
        previous: Digest::ZERO,
        path: holdfast_protocol::certificate::Path::Slow,
        voids: Default::default(),
        ineffective: Default::default(),
        time_ns: 0,
        deltas: deltas.to_vec(),
    }
}
