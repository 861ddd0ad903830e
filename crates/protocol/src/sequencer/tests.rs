//! Malicious users against an honest server: whatever they send, nothing changes for other users, and a
//! repeated request is carried out once.

use super::*;
use crate::alarm::Alarm;
use crate::certificate::{DELTAS_MAX, Delta};
use crate::check::check;
use crate::structure::HandleVersion;
use crate::testing::{A, B, Client, GROUP, founding, key, membership, table};
use crate::vector::VoidSet;
use crate::warrant::Change;
use holdfast_content::{Handle, UserId};

const ABORT_AFTER_MS: u64 = 1000;

fn sequencer() -> Sequencer {
    let (certificate, structure) = founding();
    let superuser = key(DeviceId(0)).public();
    let step = Sequencer::create(superuser, certificate, structure, membership(), ABORT_AFTER_MS);
    step.expect("a valid founding operation").answer.0
}

fn verified<T: Signable>(signed: Signed<T>, device: DeviceId) -> Verified<T> {
    signed.verified(key(device).public()).expect("honestly signed")
}

fn group_file(number: u64) -> Handle {
    Handle { principal: GROUP, number }
}

fn set_group(number: u64) -> Delta {
    Delta::SetTable { file: group_file(number), number: Some(number) }
}

/// An honest UPDATE as far as the client: its certificate and the structure it would commit.
fn update(
    sequencer: &mut Sequencer,
    client: &mut Client,
    now_ms: u64,
    deltas: Vec<Delta>,
) -> (Signed<Certificate>, Signed<Structure>) {
    let device = client.floor.device;
    let certificate = client.declare(Path::Slow, deltas);
    let step = sequencer
        .update(now_ms, device, &verified(certificate.clone(), device), None)
        .expect("an honest request");
    let UpdateOutcome::View(mut reply) = step.answer else { panic!("ordered: {:?}", step.answer) };
    // Consistency proofs are the driver's; a client with an empty log needs none.
    reply.consistency = Vec::new();
    let mut floor = client.floor.clone();
    floor.frontier = Default::default();
    let accepted = check(&floor, &membership(), &reply, &certificate.value).expect("an honest server");
    client.floor = accepted.floor;
    let structure = client.structure(&certificate.value, accepted.forecast);
    (certificate, structure)
}

fn operate(sequencer: &mut Sequencer, client: &mut Client, now_ms: u64, deltas: Vec<Delta>) {
    let (_, structure) = update(sequencer, client, now_ms, deltas);
    let device = client.floor.device;
    let step = sequencer.commit(device, &verified(structure.clone(), device)).expect("an honest request");
    assert!(matches!(step.answer, CommitOutcome::Committed(_)));
    client.acknowledge(&structure);
}

/// Sends what `forge` makes of B's next honest certificate. The server must refuse it without any change, and
/// continue to serve A.
fn refused(expected: &str, forge: impl Fn(&mut Certificate)) {
    let mut sequencer = sequencer();
    let (mut a, mut b) = (Client::new(A), Client::new(B));
    operate(&mut sequencer, &mut a, 0, vec![set_group(1)]);
    operate(&mut sequencer, &mut b, 0, vec![set_group(2)]);
    for path in [Path::Slow, Path::Fast] {
        let mut b = b.clone();
        let mut certificate = b.declare(path, vec![set_group(3)]).value;
        forge(&mut certificate);
        let certificate = verified(Signed::new(certificate, &key(B)), B);
        let before = sequencer.checkpoint();
        let refusal = if path == Path::Slow {
            sequencer.update(0, B, &certificate, None).map(drop)
        } else {
            let view = sequencer.look().view;
            let structure = b.structure(certificate.value(), forecast(&view, certificate.value()));
            sequencer.fast(0, B, &certificate, &verified(structure, B), None).map(drop)
        };
        let text = refusal.expect_err(expected).to_string();
        assert!(text.contains(expected), "{path:?}: {text}, expected {expected}");
        assert_eq!(sequencer.checkpoint(), before, "{expected}: nothing has changed");
    }
    operate(&mut sequencer, &mut a, 0, vec![set_group(1)]);
}

#[test]
fn forged_certificates_harm_nobody() {
    refused("out of range", |certificate| certificate.number = 0);
    refused("out of range", |certificate| certificate.number = u64::MAX);
    refused("used up", |certificate| certificate.number = 1);
    refused("used up", |certificate| certificate.number = 7);
    refused("does not follow", |certificate| certificate.previous = Digest::ZERO);
    refused("another epoch", |certificate| certificate.file_system = Digest::ZERO);
    refused("too many deltas", |certificate| certificate.deltas = vec![set_group(1); DELTAS_MAX + 1]);
    refused("not below its own", |certificate| certificate.voids.insert(9));
    refused("committed, and is now given up", |certificate| certificate.voids.insert(1));
    refused("taken effect", |certificate| certificate.ineffective.insert(1));
    refused("canonical", |certificate| certificate.voids = VoidSet([(5, 2)].into()));
    refused("membership twice", |certificate| {
        certificate.deltas = vec![Delta::SetMembers { reference: table("x") }; 2];
    });
    refused("not the one declared", |certificate| {
        certificate.deltas = vec![Delta::SetMembers { reference: table("x") }];
    });
    refused("table of user 1", |certificate| {
        let file = Handle { principal: PrincipalId::User(UserId(1)), number: 1 };
        certificate.deltas = vec![Delta::SetTable { file, number: None }];
    });
    refused("users and groups", |certificate| {
        let file = Handle { principal: PrincipalId::Device(A), number: 1 };
        certificate.deltas = vec![Delta::SetTable { file, number: None }];
    });
    refused("name is empty or too long", |certificate| {
        let name = vec![b'x'; 300];
        let directory = group_file(1);
        certificate.deltas = vec![Delta::SetEntry { directory, name, entry: None, time_ns: 0 }];
    });
}

/// No device can act for another: neither in another's session nor with another's key.
#[test]
fn nobody_speaks_for_another() {
    let mut sequencer = sequencer();
    let mut a = Client::new(A);
    let stranger = key(DeviceId(77));
    let certificate = a.declare(Path::Slow, Vec::new());
    let before = sequencer.checkpoint();
    let honest = verified(certificate.clone(), A);
    assert_eq!(sequencer.update(0, B, &honest, None).unwrap_err(), Refusal::NotMember);
    assert!(certificate.clone().verified(key(B).public()).is_none());
    for forger in [key(B), stranger] {
        let forged =
            Signed::new(certificate.value.clone(), &forger).verified(forger.public()).expect("its own");
        assert_eq!(sequencer.update(0, A, &forged, None).unwrap_err(), Refusal::BadSignature);
    }
    assert_eq!(sequencer.checkpoint(), before);
    assert_eq!(sequencer.device(&key(DeviceId(77)).public()), None);
    operate(&mut sequencer, &mut Client::new(B), 0, Vec::new());
}

/// A structure that differs from its forecast, or tampers with tables, is not committed; the honest one still
/// is.
#[test]
fn forged_structures_harm_nobody() {
    type Forge = fn(&mut Structure);
    let forgeries: [(&str, Forge); 9] = [
        ("foretells", |structure| structure.forecast.vector.set(GROUP, 9)),
        ("foretells", |structure| structure.forecast.pending.clear()),
        ("foretells", |structure| structure.forecast.log.size += 1),
        ("advances it", |structure| assert!(structure.handles.remove(&GROUP).is_some())),
        ("carried before", |structure| {
            structure.handles.get_mut(&PrincipalId::Device(B)).expect("own").version = 1;
        }),
        ("within the version vector", |structure| {
            structure.handles.get_mut(&GROUP).expect("advanced").version = 99;
        }),
        ("may not write", |structure| {
            let handle = HandleVersion { version: 1, reference: table("x") };
            structure.handles.insert(PrincipalId::User(UserId(1)), handle);
        }),
        ("may not write", |structure| {
            let handle = HandleVersion { version: 1, reference: table("x") };
            structure.handles.insert(PrincipalId::Device(A), handle);
        }),
        ("missing", |structure| assert!(structure.handles.remove(&PrincipalId::User(UserId(2))).is_some())),
    ];
    for (expected, forge) in forgeries {
        let mut sequencer = sequencer();
        let (mut a, mut b) = (Client::new(A), Client::new(B));
        let own_file = Handle { principal: PrincipalId::User(UserId(2)), number: 1 };
        operate(&mut sequencer, &mut b, 0, vec![Delta::SetTable { file: own_file, number: Some(1) }]);
        update(&mut sequencer, &mut a, 0, Vec::new());
        let (_, structure) = update(&mut sequencer, &mut b, 0, vec![set_group(1)]);
        let mut forged = structure.value.clone();
        forge(&mut forged);
        let before = sequencer.checkpoint();
        let forged = verified(Signed::new(forged, &key(B)), B);
        let text = sequencer.commit(B, &forged).expect_err(expected).to_string();
        assert!(text.contains(expected), "{text}, expected {expected}");
        assert_eq!(sequencer.checkpoint(), before, "{expected}: nothing has changed");
        let honest = verified(structure, B);
        assert_eq!(sequencer.commit(A, &honest).unwrap_err(), Refusal::NotMember, "not in another's session");
        assert!(matches!(sequencer.commit(B, &honest).unwrap().answer, CommitOutcome::Committed(_)));
    }
}

/// A repeated request gets the same answer and is never applied twice, however late it comes.
#[test]
fn repeated_requests_are_done_once() {
    let mut sequencer = sequencer();
    let mut a = Client::new(A);
    let (certificate, structure) = update(&mut sequencer, &mut a, 0, vec![set_group(1)]);
    let certificate = verified(certificate, A);
    let structure = verified(structure, A);
    let before = sequencer.checkpoint();
    for _ in 0..2 {
        let step = sequencer.update(5, A, &certificate, None).unwrap();
        assert!(matches!(step.answer, UpdateOutcome::View(_)) && step.records.is_empty());
    }
    assert_eq!(sequencer.checkpoint(), before);
    let first = sequencer.commit(A, &structure).unwrap();
    let committed = sequencer.checkpoint();
    let again = sequencer.commit(A, &structure).unwrap();
    assert_eq!(first.answer, again.answer);
    assert!(!first.records.is_empty() && again.records.is_empty());
    assert!(matches!(sequencer.update(5, A, &certificate, None), Err(Refusal::WrongNumber { .. })));
    assert_eq!(sequencer.checkpoint(), committed);
}

/// A refused fast operation stays refused: a copy that comes when it would fit must not be accepted, since
/// its author has given it up. An accepted one stays accepted.
#[test]
fn fast_answers_do_not_change() {
    let mut sequencer = sequencer();
    let (mut a, mut b) = (Client::new(A), Client::new(B));
    operate(&mut sequencer, &mut b, 0, Vec::new());
    let certificate = b.declare(Path::Fast, Vec::new());
    let structure = b.structure(&certificate.value, forecast(&b.floor.view, &certificate.value));
    let (fast, fast_structure) = (verified(certificate, B), verified(structure, B));
    let (_, pending) = update(&mut sequencer, &mut a, 0, Vec::new());
    let step = sequencer.fast(0, B, &fast, &fast_structure, None).unwrap();
    assert_eq!(step.answer, FastOutcome::Refused);
    assert_eq!(step.records.len(), 1, "the refusal is durable");
    let _ = sequencer.commit(A, &verified(pending.clone(), A)).unwrap();
    a.acknowledge(&pending);
    let step = sequencer.fast(0, B, &fast, &fast_structure, None).unwrap();
    assert_eq!((step.answer, step.records.len()), (FastOutcome::Refused, 0));

    b.give_up(Path::Fast);
    operate(&mut sequencer, &mut b, 0, Vec::new());
    let certificate = b.declare(Path::Fast, Vec::new());
    let structure = b.structure(&certificate.value, forecast(&sequencer.look().view, &certificate.value));
    let (fast, fast_structure) = (verified(certificate, B), verified(structure, B));
    let first = sequencer.fast(0, B, &fast, &fast_structure, None).unwrap();
    assert!(matches!(first.answer, FastOutcome::Accepted(_)), "nothing is pending and the forecast is right");
    let again = sequencer.fast(0, B, &fast, &fast_structure, None).unwrap();
    assert_eq!(first.answer, again.answer);
    assert!(again.records.is_empty());
}

/// A client that dies between UPDATE and COMMIT delays others for at most the time-out. When it comes back,
/// its COMMIT is refused, and its next operation removes the dead one.
#[test]
fn the_dead_hold_nobody_up() {
    let mut sequencer = sequencer();
    let (mut a, mut b) = (Client::new(A), Client::new(B));
    let (_, late) = update(&mut sequencer, &mut a, 0, vec![set_group(1)]);
    operate(&mut sequencer, &mut b, ABORT_AFTER_MS - 1, Vec::new());
    assert_eq!(b.floor.view.pending.iter().filter(|entry| entry.dead).count(), 0);
    operate(&mut sequencer, &mut b, ABORT_AFTER_MS, Vec::new());
    assert_eq!(b.floor.view.pending.iter().filter(|entry| entry.dead).count(), 1);
    assert!(b.floor.view.is_settled(), "nothing to wait for any more");
    assert_eq!(sequencer.standing(A, 1), OrderingStatus::Gone);
    let step = sequencer.commit(A, &verified(late, A)).unwrap();
    assert_eq!((step.answer, step.records.len()), (CommitOutcome::Aborted, 0));
    a.give_up(Path::Slow);
    operate(&mut sequencer, &mut a, ABORT_AFTER_MS, Vec::new());
    assert!(sequencer.look().view.pending.is_empty(), "the dead operation is passed");
    operate(&mut sequencer, &mut b, ABORT_AFTER_MS, Vec::new());
}

/// A device continues after an unanswered UPDATE by giving it up; it cannot have two operations pending.
#[test]
fn one_operation_a_device() {
    let mut sequencer = sequencer();
    let mut a = Client::new(A);
    update(&mut sequencer, &mut a, 0, Vec::new());
    let impatient = a.clone().declare(Path::Slow, Vec::new());
    let refusal = sequencer.update(0, A, &verified(impatient, A), None).unwrap_err();
    assert_eq!(refusal, Refusal::Outstanding(1));
    a.give_up(Path::Slow);
    operate(&mut sequencer, &mut a, 0, Vec::new());
}

/// A driver that will not take an operation uses its number up durably, or declares it dead.
#[test]
fn giving_up_for_reasons_of_the_driver() {
    let mut sequencer = sequencer();
    let mut a = Client::new(A);
    let refused = a.declare(Path::Slow, Vec::new());
    assert_eq!(sequencer.give_up(A, 1).records, [OrderingRecord::Burn { device: A, number: 1 }]);
    assert!(sequencer.give_up(A, 1).records.is_empty());
    let step = sequencer.update(0, A, &verified(refused, A), None).unwrap();
    assert_eq!(step.answer, UpdateOutcome::Refused);
    a.give_up(Path::Slow);
    let (certificate, _) = update(&mut sequencer, &mut a, 0, Vec::new());
    assert_eq!(sequencer.give_up(A, 2).records, [OrderingRecord::Dead { device: A, number: 2 }]);
    let step = sequencer.update(0, A, &verified(certificate, A), None).unwrap();
    assert_eq!(step.answer, UpdateOutcome::Aborted);
    a.give_up(Path::Slow);
    operate(&mut sequencer, &mut a, 0, Vec::new());
}

/// A removed device can order nothing; what it signed before stays, and nobody alarms.
#[test]
fn removal_takes_effect_at_its_place_in_the_order() {
    let mut sequencer = sequencer();
    let (mut root, mut a, mut b) = (Client::new(DeviceId(0)), Client::new(A), Client::new(B));
    operate(&mut sequencer, &mut a, 0, vec![set_group(1)]);
    operate(&mut sequencer, &mut b, 0, vec![set_group(2)]);
    root.floor.used = 1;
    let (certificate, structure) = founding();
    root.floor.append_own(&structure.value.forecast);
    root.acknowledge(&structure);
    assert_eq!(certificate.value.number, 1);

    let mut without_b = membership();
    without_b.devices.get_mut(&B).expect("there").removed_at = Some(2);
    without_b.version = 2;
    let certificate = root.declare(Path::Slow, vec![Delta::SetMembers { reference: table("second") }]);
    let declared = verified(certificate.clone(), DeviceId(0));
    let step = sequencer.update(0, DeviceId(0), &declared, Some(without_b.clone())).unwrap();
    let UpdateOutcome::View(reply) = step.answer else { panic!("ordered") };
    let (floor, own) = (root.floor.clone(), forecast(&reply.view, &certificate.value));
    let mut structure = root.structure(&certificate.value, own).value;
    structure.handles.get_mut(&PrincipalId::Members).expect("declared").reference = table("second");
    assert_eq!(floor.last(), 1);

    // While the removal is pending, B can order nothing that would come after it.
    let pending = b.clone().declare(Path::Slow, Vec::new());
    assert_eq!(sequencer.update(0, B, &verified(pending, B), None).unwrap_err(), Refusal::NotMember);
    let structure = Signed::new(structure, &key(DeviceId(0)));
    let _ = sequencer.commit(DeviceId(0), &verified(structure, DeviceId(0))).unwrap();
    assert_eq!(sequencer.membership(), &without_b);
    assert_eq!(sequencer.device(&key(B).public()), None);
    let late = b.declare(Path::Slow, Vec::new());
    assert_eq!(sequencer.update(0, B, &verified(late, B), None).unwrap_err(), Refusal::NotMember);

    // A accepts the view that still holds B's earlier structure, and refuses a later one of B's.
    let certificate = a.declare(Path::Slow, Vec::new());
    let step = sequencer.update(0, A, &verified(certificate.clone(), A), None).unwrap();
    let UpdateOutcome::View(reply) = step.answer else { panic!("ordered") };
    a.floor.frontier = Default::default();
    check(&a.floor, &without_b, &reply, &certificate.value).expect("an honest server");
    let mut lie = reply.clone();
    let slot = lie.view.slots.get_mut(&B).expect("there");
    let mut later = slot.value.clone();
    later.forecast.vector.set(PrincipalId::Members, 2);
    *slot = Signed::new(later, &key(B));
    let alarm = check(&a.floor, &without_b, &lie, &certificate.value).expect_err("signed after the removal");
    assert!(matches!(alarm, Alarm::RemovedDevice { removed_at: 2, found: 2, .. }), "{alarm:?}");
}

/// A change of the membership under a warrant, as a malicious member may send it.
#[test]
fn warrants_bring_what_they_are_for() {
    let (mut sequencer, mut a) = (sequencer(), Client::new(A));
    operate(&mut sequencer, &mut a, 0, vec![set_group(1)]);
    let present = sequencer.look().view.handle(PrincipalId::Members).expect("there is one").1;
    let file_system = sequencer.file_system();
    let without = |device: DeviceId, version: u64| {
        let mut next = membership();
        next.devices.get_mut(&device).expect("there").removed_at = Some(version);
        membership().succeeded_by(next, version)
    };
    let good = Change::new(file_system, &present, &without(B, 2));
    let sign = |change: &Change, version| {
        change.enacted(version, Signed::new(change.clone(), &key(DeviceId(0))).signature)
    };
    let reference = table("next");
    let declare = |client: &Client| {
        let certificate = client.clone().declare(Path::Slow, vec![Delta::SetMembers { reference }]);
        verified(certificate, client.floor.device)
    };
    let before = sequencer.checkpoint();
    let mut refused = |next: Membership, words: &str| {
        let refusal = sequencer.update(0, A, &declare(&a), Some(next)).expect_err(words).to_string();
        assert!(refusal.contains(words), "{refusal}");
        assert_eq!(sequencer.checkpoint(), before, "{words}: nothing has changed");
    };
    refused(without(B, 2), "may not write the table of members");
    let forged = good.enacted(2, Signed::new(good.clone(), &key(A)).signature);
    refused(forged, "may not write the table of members");
    let elsewhere = Change { file_system: Digest::ZERO, ..good.clone() };
    refused(sign(&elsewhere, 2), "may not write the table of members");
    let mut altered = sign(&good, 2);
    altered.devices.get_mut(&B).expect("there").removed_at = None;
    refused(altered, "may not write the table of members");
    refused(sign(&Change { version: 0, ..good.clone() }, 2), "follows version 0");
    refused(sign(&Change { follows: Digest::ZERO, ..good.clone() }, 2), "version 1 is in force");
    refused(sign(&Change::new(file_system, &present, &without(A, 2)), 2), "submit it from another");

    // With another change in the same operation it is an offence.
    let both = a.clone().declare(Path::Slow, vec![Delta::SetMembers { reference }, set_group(1)]);
    let refusal = sequencer.update(0, A, &verified(both, A), Some(sign(&good, 2))).expect_err("not alone");
    assert!(refusal.to_string().contains("only the superuser's"), "{refusal}");

    // The honest one. Meanwhile B orders nothing any more, and nobody changes the membership.
    let certificate = a.declare(Path::Slow, vec![Delta::SetMembers { reference }]);
    let _ = sequencer.update(0, A, &verified(certificate.clone(), A), Some(sign(&good, 2))).expect("signed");
    let late = Client::new(B).declare(Path::Slow, Vec::new());
    assert_eq!(sequencer.update(0, B, &verified(late, B), None).unwrap_err(), Refusal::NotMember);
    let c = Client::new(DeviceId(3));
    let late = declare(&c);
    let step = sequencer.update(0, DeviceId(3), &late, Some(sign(&good, 3))).expect("not an offence");
    assert_eq!(step.answer, UpdateOutcome::Refused);
    // Without effect it is not committed.
    let entry = sequencer.look().view.pending.pop().expect("just ordered");
    let mut structure = a.structure(&certificate.value, entry.forecast).value;
    structure.handles.get_mut(&PrincipalId::Members).expect("declared").reference = present.reference;
    structure.outcome = Outcome::Nothing;
    let nothing = verified(Signed::new(structure.clone(), &key(A)), A);
    assert!(sequencer.commit(A, &nothing).expect_err("nothing").to_string().contains("given up"));
    structure.handles.get_mut(&PrincipalId::Members).expect("declared").reference = reference;
    structure.outcome = Outcome::Done;
    let structure = Signed::new(structure, &key(A));
    let _ = sequencer.commit(A, &verified(structure.clone(), A)).expect("as declared");
    assert_eq!(sequencer.membership(), &without(B, 2));
    assert_eq!(sequencer.device(&key(B).public()), None);
    a.acknowledge(&structure);
    // A late copy of a refused operation stays refused, whatever became of the other.
    let step = sequencer.update(0, DeviceId(3), &late, Some(sign(&good, 3))).expect("not an offence");
    assert_eq!(step.answer, UpdateOutcome::Refused);
    // A warrant is good for one use.
    let again = a.declare(Path::Slow, vec![Delta::SetMembers { reference }]);
    let refusal = sequencer.update(0, A, &verified(again, A), Some(sign(&good, 3))).expect_err("used");
    assert!(refusal.to_string().contains("version 2 is in force"), "{refusal}");
    let (restored, _) =
        Sequencer::restore(Some(&sequencer.checkpoint()), [[0u8; 0]; 0], ABORT_AFTER_MS, 0).expect("its own");
    assert_eq!(restored, sequencer);
}

/// One who dies in the middle of it burns a version, and neither the warrant nor anybody else's way.
#[test]
fn a_warrant_survives_who_submits_it() {
    let (mut sequencer, mut a) = (sequencer(), Client::new(A));
    let present = sequencer.look().view.handle(PrincipalId::Members).expect("there is one").1;
    let mut next = membership();
    next.devices.get_mut(&B).expect("there").removed_at = Some(2);
    let change = Change::new(sequencer.file_system(), &present, &membership().succeeded_by(next, 2));
    let signature = Signed::new(change.clone(), &key(DeviceId(0))).signature;
    let reference = table("next");
    let certificate = a.declare(Path::Slow, vec![Delta::SetMembers { reference }]);
    let first = change.enacted(2, signature);
    let _ = sequencer.update(0, A, &verified(certificate, A), Some(first)).expect("signed");
    // A is gone. After its time another brings it, and the order has gone on to the next version.
    let mut c = Client::new(DeviceId(3));
    let certificate = c.declare(Path::Slow, vec![Delta::SetMembers { reference }]);
    let declared = verified(certificate.clone(), DeviceId(3));
    let second = change.enacted(3, signature);
    let step =
        sequencer.update(2 * ABORT_AFTER_MS, DeviceId(3), &declared, Some(second.clone())).expect("due");
    let UpdateOutcome::View(reply) = step.answer else { panic!("ordered") };
    let mut structure = c.structure(&certificate.value, forecast(&reply.view, &certificate.value)).value;
    structure.handles.get_mut(&PrincipalId::Members).expect("declared").reference = reference;
    let structure = verified(Signed::new(structure, &key(DeviceId(3))), DeviceId(3));
    let _ = sequencer.commit(DeviceId(3), &structure).expect("as declared");
    assert_eq!(sequencer.membership(), &client_checks::judged(second));
    assert_eq!(sequencer.membership().devices[&B].removed_at, Some(3));
}

/// Replaying the records gives the same state, whether from the start or from a checkpoint, and the same nodes.
#[test]
fn records_replay_to_the_same_state() {
    let (certificate, structure) = founding();
    let superuser = key(DeviceId(0)).public();
    let step = Sequencer::create(superuser, certificate, structure, membership(), ABORT_AFTER_MS).unwrap();
    let (mut sequencer, _) = step.answer;
    let mut records = step.records;
    let mut nodes = step.nodes;
    let mut a = Client::new(A);
    let mut checkpoint = None;
    for round in 0..4 {
        let certificate = a.declare(Path::Slow, vec![set_group(round)]);
        let step = sequencer.update(0, A, &verified(certificate.clone(), A), None).unwrap();
        records.extend(step.records);
        nodes.extend(step.nodes);
        if round % 2 == 0 {
            a.give_up(Path::Slow);
            continue;
        }
        let entry = sequencer.look().view.pending.pop().expect("just ordered");
        let structure = a.structure(&certificate.value, entry.forecast);
        let step = sequencer.commit(A, &verified(structure.clone(), A)).unwrap();
        records.extend(step.records);
        a.acknowledge(&structure);
        checkpoint.get_or_insert((sequencer.checkpoint(), records.len()));
    }
    let bytes: Vec<_> = records.iter().map(OrderingRecord::to_bytes).collect();
    let (replayed, replayed_nodes) = Sequencer::restore(None, &bytes, ABORT_AFTER_MS, 0).unwrap();
    assert_eq!(replayed, sequencer);
    assert_eq!(replayed_nodes, nodes);
    let (checkpoint, count) = checkpoint.expect("taken");
    let (replayed, _) = Sequencer::restore(Some(&checkpoint), &bytes[count..], ABORT_AFTER_MS, 0).unwrap();
    assert_eq!(replayed, sequencer);

    // Bytes that this machine did not write are refused.
    let mut newer = checkpoint.clone();
    newer[0] = 9;
    let none: [&[u8]; 0] = [];
    assert_eq!(Sequencer::restore(Some(&newer), none, 0, 0).unwrap_err(), RestoreError::Format(9));
    assert_eq!(Sequencer::restore(None, none, 0, 0).unwrap_err(), RestoreError::Empty);
    assert!(Sequencer::restore(None, &bytes[1..], 0, 0).is_err());
    for cut in 0..checkpoint.len() {
        assert!(Sequencer::restore(Some(&checkpoint[..cut]), none, 0, 0).is_err());
    }
}

/// Proves: a checkpoint of the first format, with a plain reply in it, gives the same state; one whose reply
/// is damaged is refused.
#[test]
fn earlier_checkpoints_are_read() {
    let mut sequencer = sequencer();
    let (mut a, mut b) = (Client::new(A), Client::new(B));
    update(&mut sequencer, &mut a, 0, vec![set_group(1)]);
    let (certificate, _) = update(&mut sequencer, &mut b, 0, vec![set_group(2)]);
    let State { epoch, superuser, membership, slots, pending, frontier, burnt } = sequencer.state.clone();
    let plain = |entry: record::PendingOperation| record::PendingOperation {
        certificate: entry.certificate,
        forecast: entry.forecast,
        dead: entry.dead,
        arrived_ms: entry.arrived_ms,
        reply: entry.reply.map(|reply| *reply.reply().expect("it is one")),
        membership: entry.membership,
    };
    let pending: Vec<record::PendingOperation<ViewReply>> = pending.into_iter().map(plain).collect();
    let state = State { epoch, superuser, membership, slots, pending, frontier, burnt };
    let bytes = holdfast_crypto::encode(&(1_u8, state));
    let nothing = std::iter::empty::<Vec<u8>>();
    let (mut restored, _) = Sequencer::restore(Some(&bytes), nothing.clone(), 10_000, 0).expect("format 1");
    assert_eq!(restored.state, sequencer.state);
    let (first, again) = [&mut sequencer, &mut restored]
        .map(|one| one.update(0, B, &verified(certificate.clone(), B), None).expect("sent again").answer)
        .into();
    assert_eq!(first, again);

    let mut damaged = sequencer.checkpoint();
    let kept = holdfast_crypto::encode(&sequencer.state.pending[1].reply);
    let at = damaged.windows(kept.len()).position(|part| part == kept).expect("it is there");
    // The number of its slots.
    damaged[at + 5..at + 9].fill(0xff);
    assert!(Sequencer::restore(Some(&damaged), nothing, 10_000, 0).is_err());
}

/// Proves: once a view of the pending operations hardly fits into a message, nothing more is ordered for a
/// while, and no number is used up. The superuser and authors of pending operations are still admitted. Later
/// all are again.
#[test]
fn what_is_pending_fits_into_a_message() {
    let mut sequencer = sequencer();
    let (mut a, mut b) = (Client::new(A), Client::new(B));
    operate(&mut sequencer, &mut a, 0, vec![set_group(1)]);
    operate(&mut sequencer, &mut b, 0, vec![set_group(2)]);
    let (_, structure) = update(&mut sequencer, &mut a, 0, vec![set_group(3)]);
    let short = sequencer.state.pending.clone();
    for device in 100..150 {
        let mut other = short[0].clone();
        other.certificate.value.device = DeviceId(device);
        other.certificate.value.deltas = vec![set_group(1); DELTAS_MAX];
        other.forecast.device = DeviceId(device);
        sequencer.state.pending.push(other);
    }
    let declared = Client::declare(&mut b, Path::Slow, vec![set_group(4)]);
    let before = sequencer.state.clone();
    let declared = verified(declared, B);
    // (The compared values are too long to be printed.)
    assert!(sequencer.update(0, B, &declared, None).is_err_and(|refusal| refusal == Refusal::Full));
    assert!(sequencer.state == before);
    assert_eq!(ServerError::from(Refusal::Full), ServerError::Busy);
    assert_eq!(sequencer.has_room(A), Ok(()));
    assert_eq!(sequencer.has_room(DeviceId(0)), Ok(()));

    sequencer.state.pending = short;
    let step = sequencer.commit(A, &verified(structure, A)).expect("it is pending");
    assert!(matches!(step.answer, CommitOutcome::Committed(_)));
    let step = sequencer.update(0, B, &declared, None).expect("there is room");
    assert!(matches!(step.answer, UpdateOutcome::View(_)));
}

/// Proves: where so many devices have signed that nobody could read a view, none is answered with, though nothing is pending.
#[test]
fn more_slots_than_can_be_read() {
    let mut sequencer = sequencer();
    let (mut a, mut b) = (Client::new(A), Client::new(B));
    operate(&mut sequencer, &mut a, 0, vec![set_group(1)]);
    let slot = sequencer.state.slots[&A].clone();
    let declared = verified(b.declare(Path::Slow, vec![set_group(2)]), B);
    for device in 100..1200 {
        let mut other = slot.clone();
        for id in 0..4200 {
            other.value.forecast.vector.set(PrincipalId::User(UserId(id)), u64::from(id != device));
        }
        sequencer.state.slots.insert(DeviceId(device), other);
    }
    assert!(sequencer.update(0, B, &declared, None).is_err_and(|refusal| refusal == Refusal::Full));
}
