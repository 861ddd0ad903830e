//! Servers that are restored in the middle of honest operation: everybody continues, nobody raises an alarm,
//! nothing lost comes back.

use super::*;
use crate::alarm::Blame;
use crate::certificate::{Certificate, Delta};
use crate::epoch::{Declaration, latest};
use crate::judge::{Exhibit, contradictions};
use crate::log_tree::consistency_proof;
use crate::mandate::Mandate;
use crate::message::{Receipt, Request, ServerKeys};
use crate::order::last_vector;
use crate::sequencer::{CommitOutcome, FastOutcome, Refusal, Sequencer, Step, UpdateOutcome, settled};
use crate::signed::{Signed, Verified};
use crate::signer::{Effect, Event, OperationEnd, Signer, Tables};
use crate::structure::Structure;
use crate::testing::random::Random;
use crate::testing::{A, B, GROUP, key, membership, table};
use holdfast_content::{Handle, Membership, PrincipalId, Reference};
use holdfast_crypto::Digest;
use holdfast_crypto::{Domain, KeyHolder, PublicKey, SignError, SignRequest, Signature, SigningKey};
use std::collections::BTreeMap;
use std::sync::Mutex;

const ROOT: DeviceId = DeviceId(0);
const ABORT_AFTER_MS: u64 = 100;

fn server_key() -> SigningKey {
    SigningKey::from_seed(&[0xee; 32])
}

/// A key with the policy of the process that keeps it: every signature in here is judged.
#[derive(Debug)]
struct Keeper {
    key: SigningKey,
    mandate: Mutex<Mandate>,
}

impl Keeper {
    fn of(device: DeviceId) -> Keeper {
        let mandate = Mandate::new(key(ROOT).public().file_system_id(), key(device).public());
        Keeper { key: key(device), mandate: Mutex::new(mandate) }
    }

    fn go_over(&self, restores: &[Restore], signer: &Signer) {
        let next = Mandate::adopt(signer, self.key.public());
        let mut mandate = self.mandate.lock().expect("whole");
        let after = mandate.enter_epoch(&key(ROOT).public(), restores, &next).expect("declared");
        *mandate = Mandate::from_bytes(&after.to_bytes()).expect("own bytes");
    }
}

impl KeyHolder for Keeper {
    fn public(&self) -> PublicKey {
        self.key.public()
    }

    fn sign_message(&self, _: &[u8]) -> Result<Signature, SignError> {
        Err(SignError::Refused("unseen".to_owned()))
    }

    fn try_sign_all(&self, asks: &[SignRequest]) -> Result<Vec<Signature>, SignError> {
        let mut mandate = self.mandate.lock().expect("whole");
        *mandate = mandate.judge(asks).map_err(|why| SignError::Refused(why.to_string()))?;
        Ok(asks.iter().map(|ask| self.key.sign(ask.domain, &ask.bytes)).collect())
    }
}

/// A server that can be copied and restored from the copy.
#[derive(Clone)]
struct Server {
    sequencer: Sequencer,
    nodes: BTreeMap<(u8, u64), Digest>,
}

impl Server {
    fn took<T>(&mut self, step: Step<T>) -> T {
        self.nodes.extend(step.nodes);
        step.answer
    }

    fn proven(&self, mut reply: ViewReply, from: u64) -> ViewReply {
        let mut node = |level, index| self.nodes.get(&(level, index)).copied();
        // A client with a longer log than the server's gets no proof.
        reply.consistency = consistency_proof(from, reply.view.log.size, &mut node).unwrap_or_default();
        reply
    }

    fn look(&self, from: u64) -> ViewReply {
        self.proven(self.sequencer.look(), from)
    }

    fn members(&self) -> &Membership {
        self.sequencer.membership()
    }
}

struct Device {
    signer: Signer,
    keeper: Keeper,
    /// All restores that the server has adopted.
    restores: Vec<Restore>,
    lost: Vec<RestoreLoss>,
}

struct World {
    server: Server,
    devices: BTreeMap<DeviceId, Device>,
    now_ms: u64,
    /// Every structure ever signed, and whether a receipt came for it.
    signed: Vec<(Signed<Structure>, bool)>,
}

fn verified<T: Signable + OfDevice>(signed: Signed<T>) -> Verified<T> {
    let public = key(signed.value.device()).public();
    signed.verified(public).expect("honestly signed")
}

trait OfDevice {
    fn device(&self) -> DeviceId;
}

impl OfDevice for Certificate {
    fn device(&self) -> DeviceId {
        self.device
    }
}

impl OfDevice for Structure {
    fn device(&self) -> DeviceId {
        Structure::device(self)
    }
}

fn receipt(receipt: Receipt) -> Signed<Receipt> {
    Signed::new(receipt, &server_key())
}

fn tables(device: DeviceId, text: &str, group: bool) -> Tables {
    let mut tables = Tables::from([(PrincipalId::Device(device), table(&format!("{device:?} {text}")))]);
    if group {
        tables.insert(GROUP, table(&format!("group {device:?} {text}")));
    }
    tables
}

impl World {
    fn new() -> World {
        let root = key(ROOT).public();
        let file_system = root.file_system_id();
        let list = ServerKeys { file_system, sequence: 1, keys: vec![server_key().public()] };
        let list = Signed::new(list, &key(ROOT));
        let mut devices: BTreeMap<DeviceId, Device> = (0..4)
            .map(|id| {
                let mut signer = Signer::new(Floor::new(root, DeviceId(id)));
                let keeper = Keeper::of(DeviceId(id));
                signer.step(&keeper, Event::ServerKeys(list.clone())).expect("idle");
                (DeviceId(id), Device { signer, keeper, restores: Vec::new(), lost: Vec::new() })
            })
            .collect();
        let founder = devices.get_mut(&ROOT).expect("there");
        let deltas = vec![Delta::SetMembers { reference: table("members") }];
        let mut first = tables(ROOT, "first", false);
        first.insert(PrincipalId::Members, table("members"));
        let effects = founder.signer.found(&founder.keeper, deltas, 0, &first).expect("fresh");
        let Some(Request::Fast { certificate, structure, .. }) = sent(&effects) else {
            panic!("{effects:?}")
        };
        let step = Sequencer::create(root, certificate, structure.clone(), membership(), ABORT_AFTER_MS);
        let step = step.expect("a founding");
        let ((sequencer, promise), nodes) = (step.answer, step.nodes.into_iter().collect());
        let done =
            founder.signer.step(&founder.keeper, Event::Committed(receipt(promise))).expect("in flight");
        assert!(done.iter().any(|effect| matches!(effect, Effect::Finished(OperationEnd::Committed(_)))));
        let server = Server { sequencer, nodes };
        World { server, devices, now_ms: 0, signed: vec![(structure, true)] }
    }

    fn device(&mut self, device: DeviceId) -> &mut Device {
        self.devices.get_mut(&device).expect("there")
    }

    fn step(&mut self, device: DeviceId, event: Event<'_>) -> Vec<Effect> {
        let device = self.device(device);
        let effects =
            device.signer.step(&device.keeper, event).expect("the key signs, and the order is kept");
        for effect in &effects {
            if let Effect::Alarm(alarm) = effect {
                panic!("device {:?} alarms at an honest server: {alarm}", device.signer.floor().device);
            }
        }
        effects
    }

    /// One operation, which may stop half-way as if the client died; the next one finishes it or gives it up.
    fn operate(&mut self, id: DeviceId, random: &mut Random) {
        if !self.device(id).signer.is_idle() {
            let effects = self.step(id, Event::Restarted);
            self.send(id, &effects, random);
        }
        if !self.device(id).signer.is_idle() {
            return;
        }
        let group = random.chance(30);
        let deltas = if group {
            vec![Delta::SetTable {
                file: Handle { principal: GROUP, number: 1 },
                number: Some(random.below(9) + 1),
            }]
        } else {
            Vec::new()
        };
        let text = random.number().to_string();
        let fast = random.chance(50).then(|| tables(id, &text, group));
        let effects = self.step(id, Event::Begin { deltas, time_ns: 0, fast });
        if random.chance(90) {
            self.send(id, &effects, random);
        }
    }

    fn send(&mut self, id: DeviceId, effects: &[Effect], random: &mut Random) {
        let (server, now_ms) = (&mut self.server, self.now_ms);
        match sent(effects) {
            None => {}
            Some(Request::Fast { certificate, structure, .. }) => {
                self.signed.push((structure.clone(), false));
                let place = self.signed.len() - 1;
                let (certificate, structure) = (verified(certificate), verified(structure));
                match server.sequencer.fast(now_ms, id, &certificate, &structure, None) {
                    Ok(step) => match server.took(step) {
                        FastOutcome::Accepted(promise) => {
                            self.signed[place].1 = true;
                            if random.chance(90) {
                                self.step(id, Event::Committed(receipt(promise)));
                            }
                        }
                        FastOutcome::Refused => drop(self.step(id, Event::Refused)),
                    },
                    Err(refusal) => self.refused(id, &refusal),
                }
            }
            Some(Request::Update { certificate, log_size, .. }) => {
                match server.sequencer.update(now_ms, id, &verified(certificate), None) {
                    Ok(step) => match server.took(step) {
                        UpdateOutcome::View(reply) => {
                            let reply = server.proven(*reply, log_size);
                            let members = server.members().clone();
                            let effects = self.step(id, Event::Reply { reply: &reply, members: &members });
                            if random.chance(90) && matches!(effects.as_slice(), [Effect::Fold(_)]) {
                                self.commit(id, random);
                            }
                        }
                        UpdateOutcome::Aborted => drop(self.step(id, Event::Aborted)),
                        UpdateOutcome::Refused => drop(self.step(id, Event::Refused)),
                    },
                    Err(refusal) => self.refused(id, &refusal),
                }
            }
            Some(Request::Commit { structure, .. }) => self.send_commit(id, structure, random),
            other => panic!("{other:?}"),
        }
    }

    fn commit(&mut self, id: DeviceId, random: &mut Random) {
        let certificate = self.device(id).signer.in_flight().0.expect("in flight").clone();
        let text = random.number().to_string();
        let tables = tables(id, &text, certificate.principals().contains(&GROUP));
        let effects = self.step(id, Event::Folded { outcome: Outcome::Done, tables });
        let Some(Request::Commit { structure, .. }) = sent(&effects) else { panic!("{effects:?}") };
        if random.chance(90) {
            self.send_commit(id, structure, random);
        }
    }

    fn send_commit(&mut self, id: DeviceId, structure: Signed<Structure>, random: &mut Random) {
        self.signed.push((structure.clone(), false));
        let place = self.signed.len() - 1;
        match self.server.sequencer.commit(id, &verified(structure)) {
            Ok(step) => match self.server.took(step) {
                CommitOutcome::Committed(promise) => {
                    self.signed[place].1 = true;
                    if random.chance(90) {
                        self.step(id, Event::Committed(receipt(promise)));
                    }
                }
                CommitOutcome::Aborted => drop(self.step(id, Event::Aborted)),
            },
            Err(refusal) => self.refused(id, &refusal),
        }
    }

    /// What a restored server refuses is forgotten with its epoch.
    fn refused(&mut self, id: DeviceId, refusal: &Refusal) {
        let members = self.server.members().clone();
        let left = remaining_log(self.device(id).signer.floor(), &members.restores).expect("declared");
        assert!(left.is_some(), "{refusal}: nothing else is refused by an honest server");
        self.take_up(id);
    }

    fn take_up(&mut self, id: DeviceId) {
        let members = self.server.members().clone();
        let floor = self.device(id).signer.floor().clone();
        let Some(left) = remaining_log(&floor, &members.restores).expect("declared") else { return };
        let reply = self.server.look(left.head().size);
        let (taken, lost) = take_up(&floor, &members.restores, &members, &reply).expect("an honest restore");
        let device = self.device(id);
        device.signer = Signer::restore(&Signer::in_epoch(taken).to_bytes()).expect("own bytes");
        device.keeper.go_over(&members.restores, &device.signer);
        device.restores = members.restores;
        device.lost.push(lost);
    }

    /// The superuser declares that `backup` was put back.
    fn put_back(&mut self, backup: Server, random: &mut Random) {
        self.server = backup;
        let members = self.server.members().clone();
        let root = self.devices.get_mut(&ROOT).expect("there");
        let mut known = root.restores.clone();
        if members.restores.starts_with(&known) {
            known.clone_from(&members.restores);
        }
        assert!(known.starts_with(&members.restores));
        let head = self.server.sequencer.log_head();
        let file_system = key(ROOT).public().file_system_id();
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&random.number().to_le_bytes());
        let declaration = Declaration {
            file_system,
            epoch: latest(file_system, &known),
            size: head.size,
            root: head.root,
            base: latest(file_system, &members.restores),
            declared_ns: 0,
            nonce,
        };
        let declared = Signed::by(declaration, &root.keeper).expect("of the present epoch");
        known.push(declared.value.with(declared.signature));
        let floor = root.signer.floor().clone();
        let left = remaining_log(&floor, &known).expect("declared").expect("new");
        let mut reply = self.server.look(left.head().size);
        reply.view = settled(&reply.view);
        let (taken, lost) = take_up(&floor, &known, &members, &reply).expect("an honest restore");
        root.signer = Signer::in_epoch(taken);
        root.keeper.go_over(&known, &root.signer);
        root.restores.clone_from(&known);
        root.lost.push(lost);
        let version = last_vector(&reply.view).get(PrincipalId::Members) + 1;
        let next = Membership { version, restores: known, ..members };
        let reference: Reference = table(&format!("members {version} {nonce:?}"));
        let tables = Tables::from([(PrincipalId::Members, reference)]);
        let effects = root.signer.declare(&root.keeper, reference, 0, &tables).expect("idle");
        let Some(Request::Fast { certificate, structure, .. }) = sent(&effects) else {
            panic!("{effects:?}")
        };
        self.signed.push((structure.clone(), true));
        let (certificate, structure) = (verified(certificate), verified(structure));
        let step =
            self.server.sequencer.restored(ROOT, &certificate, &structure, next.clone()).expect("declared");
        let promise = self.server.took(step);
        // Sent again, it is answered again.
        let again = self.server.sequencer.restored(ROOT, &certificate, &structure, next).expect("declared");
        assert!(again.records.is_empty() && again.answer == promise);
        self.step(ROOT, Event::Committed(receipt(promise)));
    }

    fn nobody_is_convicted(&self) {
        let exhibits: Vec<Exhibit<'_>> = self
            .signed
            .iter()
            .map(|(structure, acknowledged)| Exhibit { structure, acknowledged: *acknowledged })
            .collect();
        let found = contradictions(&exhibits);
        assert!(found.is_empty(), "{found:?}");
    }
}

fn sent(effects: &[Effect]) -> Option<Request> {
    effects.iter().find_map(|effect| match effect {
        Effect::Send(request) => Some((**request).clone()),
        _ => None,
    })
}

fn storm(seed: u64) {
    let mut random = Random::new(seed);
    let mut world = World::new();
    let mut backups = vec![world.server.clone()];
    for _ in 0..60 {
        world.now_ms += random.below(ABORT_AFTER_MS);
        match random.below(12) {
            0 => backups.push(world.server.clone()),
            1 if world.devices[&ROOT].signer.frozen().is_none() => {
                let backup = random.pick(&backups).clone();
                world.put_back(backup, &mut random);
                backups.push(world.server.clone());
            }
            _ => world.operate(DeviceId(random.below(4) as u32), &mut random),
        }
    }
    // In the end all of them are in one epoch.
    for id in (0..4).map(DeviceId) {
        world.take_up(id);
        world.now_ms += 2 * ABORT_AFTER_MS;
        for _ in 0..3 {
            world.operate(id, &mut random);
        }
    }
    world.nobody_is_convicted();
}

/// Proves: whatever state is restored, whenever, also from before an earlier restore, nobody raises an alarm,
/// every key signs what its device needs, and no two signatures contradict each other.
#[test]
fn honest_restores_raise_no_alarm() {
    let seeds = holdfast_testing::setting("HOLDFAST_SEEDS", 80);
    (0..seeds).for_each(storm);
}

fn quiet() -> Random {
    Random::new(1)
}

/// An operation of `id` from its begin to its receipt.
fn whole(world: &mut World, id: DeviceId) {
    let last = world.device(id).signer.floor().last();
    let mut random = quiet();
    while world.device(id).signer.floor().last() == last {
        world.now_ms += 2 * ABORT_AFTER_MS;
        world.operate(id, &mut random);
    }
}

/// Proves: lost operations are counted, and their structures are refused if a server presents them again. A
/// client that has adopted the restore refuses the old server, which has them, as rolled back.
#[test]
fn what_was_lost_stays_lost() {
    let mut world = World::new();
    for id in [A, B, A] {
        whole(&mut world, id);
    }
    let backup = world.server.clone();
    whole(&mut world, A);
    whole(&mut world, A);
    whole(&mut world, B);
    let old = world.server.clone();
    let seen = world.device(B).signer.floor().log().size;
    let lost = world.device(A).signer.floor().own().expect("committed").clone();
    let last = lost.value.number();
    world.put_back(backup.clone(), &mut quiet());
    world.take_up(A);
    world.take_up(B);
    let left = backup.sequencer.log_size();
    assert_eq!(world.device(B).lost[0].seen, seen - left);
    let own = world.device(A).lost[0].own.expect("of its own");
    assert!(own.0 <= own.1 && own.1 == last, "{own:?} {last}");

    // The lost structure in the slot of its device again.
    let mut shown = world.server.look(world.devices[&B].signer.floor().log().size);
    shown.view.slots.insert(A, lost);
    let members = world.server.members().clone();
    let refused = check_look(world.devices[&B].signer.floor(), &members, &shown).expect_err("it was lost");
    assert_eq!(refused.blame(), Blame::Server, "{refused}");
    // A newcomer refuses it as well.
    let newcomer = Floor::unseen(key(ROOT).public(), NOBODY, &members);
    let shown = ViewReply { consistency: Vec::new(), ..shown };
    assert!(check_look(&newcomer, &members, &shown).is_err());

    // The state that was lost completely.
    let floor = world.devices[&B].signer.floor();
    let refused = check_look(floor, old.members(), &old.look(0)).expect_err("it goes back");
    assert_eq!(refused, Alarm::EpochWentBack);
    // A client that has not adopted the restore is notified, and blames nobody.
    whole(&mut world, A);
    let stranger = Floor::new(key(ROOT).public(), NOBODY);
    let told = check_look(&stranger, world.server.members(), &world.server.look(0)).expect_err("later");
    assert_eq!((told.blame(), told), (Blame::Nobody, Alarm::Restored { size: left }));
}

/// Proves: a restore that the superuser has not signed, or signed for another epoch, is none. A device
/// refuses a restore to a state that is not in its past. A server accepts a declaration only of its own
/// state.
#[test]
fn false_restores_are_refused() {
    let mut world = World::new();
    for id in [A, B, A] {
        whole(&mut world, id);
    }
    let backup = world.server.clone();
    whole(&mut world, A);
    let before = world.device(A).signer.floor().clone();
    world.put_back(backup, &mut quiet());
    let members = world.server.members().clone();
    let good = members.restores[0];
    let with = |restore: Restore| vec![restore];
    let nonce = [9; 16];
    for forged in [
        Restore { size: good.size - 1, ..good },
        Restore { nonce, ..good },
        Restore { base: Digest([1; 32]), ..good },
        Restore { declared_ns: 1, ..good },
        Restore { signature: key(A).sign(Domain::Restore, b"x"), ..good },
    ] {
        assert!(remaining_log(&before, &with(forged)).is_err());
        let forged = Membership { restores: with(forged), ..members.clone() };
        let newcomer = Floor::unseen(key(ROOT).public(), NOBODY, &forged);
        assert!(check_look(&newcomer, &forged, &world.server.look(0)).is_err());
    }
    // Twice the same: the second does not end the epoch that the first began.
    assert!(remaining_log(&before, &[good, good]).is_err());
    // A proof from elsewhere.
    let mut reply = world.server.look(good.size);
    reply.consistency.push(Digest([7; 32]));
    assert!(matches!(
        take_up(&before, &members.restores, &members, &reply),
        Err(Alarm::LogNotExtended { .. })
    ));
    // The key has gone over, and declares nothing of the epoch before.
    let file_system = key(ROOT).public().file_system_id();
    let epoch = latest(file_system, &members.restores);
    let any =
        Declaration { file_system, epoch, size: 1, root: Digest::ZERO, base: epoch, declared_ns: 0, nonce };
    let root = &world.devices[&ROOT];
    let again = Declaration { epoch: file_system, ..any.clone() };
    assert!(Signed::by(again, &root.keeper).is_err());
    // Nor does a member's key.
    let by_a = any;
    world.take_up(A);
    assert!(Signed::by(by_a, &world.devices[&A].keeper).is_err());
    // The same for another state of the server, which has continued.
    whole(&mut world, A);
    let slot = world.server.sequencer.slot(ROOT).expect("declared").clone();
    let certificate = Certificate { number: slot.value.number() + 1, ..founding_like(&world) };
    let certificate = Signed::new(certificate, &key(ROOT));
    let refused = world.server.sequencer.restored(
        ROOT,
        &verified(certificate),
        &verified(Signed::new(Structure { outcome: Outcome::Nothing, ..slot.value }, &key(ROOT))),
        members,
    );
    assert!(refused.is_err());
}

fn founding_like(world: &World) -> Certificate {
    Certificate {
        file_system: world.server.sequencer.epoch(),
        device: ROOT,
        number: 1,
        previous: Digest::ZERO,
        path: crate::certificate::Path::Fast,
        voids: Default::default(),
        ineffective: Default::default(),
        time_ns: 0,
        deltas: vec![Delta::SetMembers { reference: table("more") }],
    }
}

/// Proves (trace T14, found by the model checker): a device that waits for a pending operation, while the
/// server is restored and the author makes another operation with the same number, does not take that for a
/// lie. The new operation says nothing about the awaited one.
#[test]
fn t14_another_epochs_operation_is_not_learned() {
    let mut world = World::new();
    for id in [A, B] {
        whole(&mut world, id);
    }
    let backup = world.server.clone();
    // A declares, and B sees that as pending.
    let last = world.device(A).signer.floor().last();
    let mut random = quiet();
    while world.server.sequencer.pending().all(|pending| pending.device != A) {
        let begun = world.step(A, Event::Begin { deltas: Vec::new(), time_ns: 0, fast: None });
        let Some(Request::Update { certificate, .. }) = sent(&begun) else { panic!("{begun:?}") };
        let step = world.server.sequencer.update(world.now_ms, A, &verified(certificate), None);
        world.server.took(step.expect("honest"));
    }
    let reply = world.server.look(world.devices[&B].signer.floor().log().size);
    let members = world.server.members().clone();
    world.step(B, Event::Look { reply: &reply, members: &members });
    let waits = |world: &World| world.devices[&B].signer.floor().view.pending.len();
    assert_eq!(waits(&world), 1);

    world.put_back(backup, &mut random);
    world.take_up(A);
    whole(&mut world, A);
    let structure = world.server.sequencer.slot(A).expect("committed").clone();
    assert_eq!(structure.value.number(), last + 1, "the number is used again");
    let effects = world.step(B, Event::Learned { structure, members: &members });
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Alarm(_))));
    assert_eq!(waits(&world), 1, "nothing was learned");
    world.take_up(B);
    whole(&mut world, B);
}

/// Proves (found by the model checker): an operation that is left is not reported as lost because a later
/// one, for which its device had no receipt, is left as well.
#[test]
fn what_is_left_is_not_told_as_lost() {
    let mut world = World::new();
    whole(&mut world, A);
    let behind = world.device(A).signer.floor().clone();
    whole(&mut world, A);
    let members = world.server.members().clone();
    let backup = world.server.clone();
    whole(&mut world, B);
    world.put_back(backup, &mut quiet());
    let restores = world.server.members().restores.clone();
    let from = remaining_log(&behind, &restores).expect("declared").expect("new");
    let reply = world.server.look(from.head().size);
    let mut behind = behind;
    // The operation was under way.
    behind.used += 1;
    let (taken, lost) =
        take_up(&behind, &restores, world.server.members(), &reply).expect("an honest restore");
    assert!(taken.last() > behind.last(), "it was taken");
    assert_eq!(lost.own, None);
    assert!(members.restores.is_empty());
}
