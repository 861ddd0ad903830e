//! The signer's own rules, one by one; its life as a whole is simulated in crate `sim`.

use super::*;
use crate::alarm::Blame;
use crate::message::ServerKeys;
use crate::testing::{A, B, C, Client, Stage, key, membership, receipt, server, table};
use holdfast_content::DeviceId;
use holdfast_crypto::{PublicKey, Signature, SigningKey};
use std::sync::atomic::{AtomicU32, Ordering};

fn signer(device: DeviceId) -> Signer {
    let root = key(DeviceId(0));
    let keys = ServerKeys {
        file_system: root.public().file_system_id(),
        sequence: 1,
        keys: vec![server().public()],
    };
    let mut signer = Signer::new(Floor::new(root.public(), device));
    signer.step(&key(device), Event::ServerKeys(Signed::new(keys, &root))).expect("idle");
    signer
}

fn fetch(fast: Option<Tables>) -> Event<'static> {
    Event::Begin { deltas: Vec::new(), time_ns: 0, fast }
}

fn sent(effects: &[Effect]) -> Option<Request> {
    effects.iter().find_map(|effect| match effect {
        Effect::Send(request) => Some((**request).clone()),
        _ => None,
    })
}

/// Runs one slow fetch to its end on `stage`.
fn operate(signer: &mut Signer, stage: &mut Stage) {
    let device = signer.floor().device;
    let effects = signer.step(&key(device), fetch(None)).expect("idle");
    let Some(Request::Update { certificate, .. }) = sent(&effects) else { panic!("{effects:?}") };
    let members = membership();
    let effects =
        signer.step(&key(device), Event::Reply { reply: &stage.proven(signer.floor()), members: &members });
    assert!(matches!(effects.as_deref(), Ok([Effect::Fold(_)])), "{effects:?}");
    stage.order(&certificate);
    let tables = Tables::from([(PrincipalId::Device(device), table("own"))]);
    let effects =
        signer.step(&key(device), Event::Folded { outcome: Outcome::Done, tables }).expect("folding");
    let Some(Request::Commit { structure, .. }) = sent(&effects) else { panic!("{effects:?}") };
    stage.commit(&structure);
    let effects = signer.step(&key(device), Event::Committed(receipt(&structure.value))).expect("in flight");
    assert!(matches!(&effects[..], [Effect::Note(_), Effect::Finished(OperationEnd::Committed(_))]));
}

/// Everything signed is durable before it is sent (trace T1): in every list of effects a Persist whose bytes
/// restore to the sending state precedes each Send.
#[test]
fn persisted_before_sent() {
    let mut signer = signer(A);
    let mut stage = Stage::new();
    operate(&mut signer, &mut stage);
    let tables = Tables::from([(PrincipalId::Device(A), table("own"))]);
    for fast in [None, Some(tables)] {
        let mut signer = signer.clone();
        let effects = signer.step(&key(A), fetch(fast)).expect("idle");
        let [Effect::Persist(state), Effect::Send(request)] = &effects[..] else { panic!("{effects:?}") };
        let mut restored = Signer::restore(&state.to_bytes()).expect("own bytes");
        assert_eq!(restored, signer);
        let again = restored.step(&key(A), Event::Restarted).expect("restored");
        match **request {
            // The structure may have been committed: only the server can say.
            Request::Fast { .. } => assert_eq!(again, [Effect::Send(request.clone())]),
            // No structure was signed: the number is given up, never used again.
            _ => {
                assert_eq!(again[1], Effect::Finished(OperationEnd::GivenUp));
                assert!(restored.floor().voids.contains(2) && restored.floor().used == 2);
            }
        }
    }
}

/// Whatever is asked again is answered with the same bytes.
#[test]
fn resent_bytes_are_the_same() {
    let mut signer = signer(A);
    let first = sent(&signer.step(&key(A), fetch(None)).expect("idle"));
    let again = sent(&signer.step(&key(A), Event::ConnectionLost).expect("in flight"));
    assert!(first.is_some() && first == again);
    assert_eq!(signer.step(&key(A), fetch(None)), Err(Misuse::Busy));
}

/// T11: while a fast operation is in flight no view may overtake it, and what is accepted must still follow
/// the floor.
#[test]
fn t11_no_view_overtakes_a_fast_operation() {
    let mut b = signer(B);
    let mut stage = Stage::new();
    operate(&mut b, &mut stage);
    let tables = Tables::from([(PrincipalId::Device(B), table("own"))]);
    let effects = b.step(&key(B), fetch(Some(tables))).expect("idle");
    let Some(Request::Fast { structure, .. }) = sent(&effects) else { panic!("{effects:?}") };

    // A1 is committed meanwhile, and the server pushes it.
    let mut a = Client::new(A);
    let mut pushed = stage.clone();
    let certificate = a.declare(Path::Slow, Vec::new());
    let forecast = forecast(&pushed.view, &certificate.value);
    let a1 = a.structure(&certificate.value, forecast);
    pushed.order(&certificate);
    pushed.commit(&a1);
    let members = membership();
    let reply = pushed.proven(b.floor());
    let before = b.clone();
    assert_eq!(b.step(&key(B), Event::Look { reply: &reply, members: &members }), Ok(Vec::new()));
    assert_eq!(b, before, "the push is ignored");

    // If the view had been accepted nonetheless, the structure signed before it would no longer follow the
    // floor.
    let taken = crate::check::check_look(&b.floor, &members, &reply).expect("an honest view");
    b.floor = taken;
    let effects = b.step(&key(B), Event::Committed(receipt(&structure.value))).expect("in flight");
    assert!(
        matches!(&effects[..], [Effect::Note(_), Effect::Finished(OperationEnd::NotOrdered)]),
        "{effects:?}"
    );
    assert!(b.floor().never_offered.contains(2), "the number is given up");

    // Without the look, it is.
    let mut b = before;
    let effects = b.step(&key(B), Event::Committed(receipt(&structure.value))).expect("in flight");
    assert!(
        matches!(&effects[..], [Effect::Note(_), Effect::Finished(OperationEnd::Committed(_))]),
        "{effects:?}"
    );
}

/// T12: B learns A1 while its UPDATE is under way, and the answer still has A1 as pending. An honest server
/// may send that, but nothing is signed on it: a lying one could have A1 declared dead to A, who would accept
/// B's structure.
#[test]
fn t12_nothing_is_signed_on_a_view_behind_what_was_read() {
    let mut b = signer(B);
    let mut a = Client::new(A);
    let mut stage = Stage::new();
    let certificate = a.declare(Path::Slow, Vec::new());
    let forecast = forecast(&stage.view, &certificate.value);
    let a1 = a.structure(&certificate.value, forecast);
    stage.order(&certificate);
    operate(&mut b, &mut stage);
    let members = membership();
    let effects = b.step(&key(B), fetch(None)).expect("idle");
    let Some(Request::Update { certificate: given_up, .. }) = sent(&effects) else { panic!("{effects:?}") };
    let effects = b.step(&key(B), Event::Learned { structure: a1.clone(), members: &members });
    assert!(matches!(effects.as_deref(), Ok([Effect::Note(_), Effect::Advanced])), "{effects:?}");
    let reply = stage.proven(b.floor());
    let effects = b.step(&key(B), Event::Reply { reply: &reply, members: &members });
    let not_taken = [Effect::Note(Box::new(b.clone())), Effect::Finished(OperationEnd::NotOrdered)];
    assert_eq!(effects.as_deref(), Ok(&not_taken[..]));
    assert!(b.is_idle() && b.floor().voids.contains(2));
    assert_eq!(b.floor().view.slots.get(&A), Some(&a1), "what was read stays");

    // Asked for later, a view that still shows A1 as pending is a lie.
    stage.order(&given_up);
    stage.kill(B);
    b.step(&key(B), fetch(None)).expect("idle");
    let effects = b.step(&key(B), Event::Reply { reply: &stage.proven(b.floor()), members: &members });
    assert!(
        matches!(effects.as_deref(), Ok([_, Effect::Alarm(Alarm::SlotWentBack { .. }), _])),
        "{effects:?}"
    );
}

/// T13: A gave operation 1 up. A look shows it as pending, and a wait for it is answered with the structure
/// that A had signed.
#[test]
fn t13_an_own_void_operation_is_not_learned() {
    let mut a = signer(A);
    let mut stage = Stage::new();
    let effects = a.step(&key(A), fetch(None)).expect("idle");
    let Some(Request::Update { certificate, .. }) = sent(&effects) else { panic!("{effects:?}") };
    let members = membership();
    let reply = stage.proven(a.floor());
    a.step(&key(A), Event::Reply { reply: &reply, members: &members }).expect("in flight");
    let tables = Tables::from([(PrincipalId::Device(A), table("own"))]);
    let effects = a.step(&key(A), Event::Folded { outcome: Outcome::Done, tables }).expect("folding");
    let Some(Request::Commit { structure, .. }) = sent(&effects) else { panic!("{effects:?}") };
    a.step(&key(A), Event::Aborted).expect("in flight");
    stage.order(&certificate);
    let reply = stage.proven(a.floor());
    let effects = a.step(&key(A), Event::Look { reply: &reply, members: &members });
    assert!(matches!(effects.as_deref(), Ok([Effect::Persist(_), Effect::Advanced])), "{effects:?}");
    let effects = a.step(&key(A), Event::Learned { structure, members: &members });
    let Ok([_, Effect::Alarm(Alarm::FateChanged { device: A, number: 1, .. }), _]) = effects.as_deref()
    else {
        panic!("{effects:?}")
    };
}

/// A receipt must be a listed server's, and exactly for the operation that was sent.
#[test]
fn false_receipts_freeze() {
    let mut honest = signer(A);
    let mut stage = Stage::new();
    operate(&mut honest, &mut stage);
    let tables = Tables::from([(PrincipalId::Device(A), table("own"))]);
    let effects = honest.step(&key(A), fetch(Some(tables))).expect("idle");
    let Some(Request::Fast { structure, .. }) = sent(&effects) else { panic!("{effects:?}") };
    let right = receipt(&structure.value);
    let by_another = Signed::new(right.value.clone(), &key(B));
    let of_another = Signed::new(Receipt { number: 1, ..right.value.clone() }, &server());
    for false_receipt in [by_another, of_another] {
        let mut signer = honest.clone();
        let effects = signer.step(&key(A), Event::Committed(false_receipt)).expect("in flight");
        let [Effect::Persist(state), Effect::Alarm(alarm), Effect::FreezeAll] = &effects[..] else {
            panic!("{effects:?}")
        };
        assert_eq!(alarm, &Alarm::BadReceipt { number: 2 });
        assert_eq!(alarm.blame(), Blame::Server);
        // Frozen for good, also after a restart.
        assert!(matches!(signer.step(&key(A), Event::ConnectionLost), Err(Misuse::Frozen(_))));
        let restored = Signer::restore(&state.to_bytes()).expect("own bytes");
        assert!(!restored.is_idle() && restored.frozen() == Some(alarm));
    }
    assert!(honest.step(&key(A), Event::Committed(right)).is_ok());
}

/// A key whose slot exists but whose state is elsewhere is refused with an error of its own, and so is a
/// state from an older copy; neither blames the server.
#[test]
fn missing_and_older_state_are_told_from_attacks() {
    let mut first = signer(A);
    let mut stage = Stage::new();
    operate(&mut first, &mut stage);
    let backup = first.clone();
    operate(&mut first, &mut stage);

    let members = membership();
    let mut elsewhere = signer(A);
    let reply = stage.proven(elsewhere.floor());
    let effects = elsewhere.step(&key(A), Event::Look { reply: &reply, members: &members }).expect("idle");
    assert_eq!(effects[1], Effect::Alarm(Alarm::StateMissing { number: 2 }));

    let mut restored = backup;
    let reply = stage.proven(restored.floor());
    let effects = restored.step(&key(A), Event::Look { reply: &reply, members: &members }).expect("idle");
    assert_eq!(effects[1], Effect::Alarm(Alarm::StateBehind { known: 1, found: 2 }));
    for effect in &effects {
        if let Effect::Alarm(alarm) = effect {
            assert_eq!(alarm.blame(), Blame::LocalState);
            assert!(alarm.explain().contains("enrol") || alarm.explain().contains("Enrol"));
        }
    }
}

/// An own slot that this key signed elsewhere is reported as a clone, even if its number was used here for
/// something else. If this machine made it, and the server denied it, the server lied.
#[test]
fn clones_are_told_from_lies() {
    let tables = || Some(Tables::from([(PrincipalId::Device(A), table("own"))]));
    let mut first = signer(A);
    let mut stage = Stage::new();
    operate(&mut first, &mut stage);
    let (mut clone, mut victim) = (first.clone(), first.clone());
    let mut lied = stage.clone();
    operate(&mut first, &mut stage);
    clone.step(&key(A), fetch(tables())).expect("idle");
    clone.step(&key(A), Event::Refused).expect("in flight");
    let found = alarm_of(&mut clone, &stage);
    assert_eq!(found, Alarm::Cloned { number: 2 });
    assert_eq!(found.blame(), Blame::LocalState);
    assert!(found.explain().contains("clone") && !found.explain().contains("No honest server"));

    let effects = victim.step(&key(A), fetch(tables())).expect("idle");
    let Some(Request::Fast { certificate, structure, .. }) = sent(&effects) else { panic!("{effects:?}") };
    victim.step(&key(A), Event::Refused).expect("in flight");
    lied.fast(&certificate, &structure);
    let found = alarm_of(&mut victim, &lied);
    assert_eq!(found, Alarm::OwnSlot { expected: Some(1), found: Some(2) });
    assert_eq!(found.blame(), Blame::Server);

    // Two structures under one number, in another's slot: its key was used twice.
    let mut other = signer(B);
    let mut twice = lied.clone();
    operate(&mut other, &mut twice);
    twice.view.slots.insert(A, stage.view.slots[&A].clone());
    let found = alarm_of(&mut other, &twice);
    assert_eq!(found.blame(), Blame::Device(A), "{found}");
    assert!(found.explain().contains("in use twice"), "{}", found.explain());
}

/// The alarm that a look raises.
fn alarm_of(signer: &mut Signer, stage: &Stage) -> Alarm {
    let (members, device) = (membership(), signer.floor().device);
    let reply = stage.proven(signer.floor());
    let effects = signer.step(&key(device), Event::Look { reply: &reply, members: &members }).expect("idle");
    let found = effects.into_iter().find_map(|effect| match effect {
        Effect::Alarm(alarm) => Some(alarm),
        _ => None,
    });
    found.expect("an alarm")
}

/// After refusals, fast operations are tried less and less often; quiet times bring them back.
#[test]
fn fast_operations_give_way_to_contention() {
    let mut signer = signer(A);
    let mut stage = Stage::new();
    operate(&mut signer, &mut stage);
    let tables = || Some(Tables::from([(PrincipalId::Device(A), table("own"))]));
    let mut quiet_before = 0;
    for _ in 0..4 {
        assert!(signer.wants_fast());
        signer.step(&key(A), fetch(tables())).expect("idle");
        signer.step(&key(A), Event::Refused).expect("in flight");
        let mut quiet = 0;
        while !signer.wants_fast() {
            operate(&mut signer, &mut stage);
            quiet += 1;
        }
        assert!(quiet > quiet_before, "{quiet} after {quiet_before}");
        quiet_before = quiet;
    }
}

/// Tables that do not belong to the operation are the driver's mistake, found before anything is signed.
#[test]
fn misuse_changes_nothing() {
    let mut signer = signer(A);
    let mut stage = Stage::new();
    operate(&mut signer, &mut stage);
    let before = signer.clone();
    let stray = Tables::from([(crate::testing::GROUP, table("group"))]);
    assert_eq!(signer.step(&key(A), fetch(Some(stray))), Err(Misuse::Tables(crate::testing::GROUP)));
    let many = vec![Delta::SetMembers { reference: table("x") }; DELTAS_MAX + 1];
    let event = Event::Begin { deltas: many, time_ns: 0, fast: None };
    assert_eq!(signer.step(&key(A), event), Err(Misuse::TooManyDeltas(DELTAS_MAX + 1)));
    let folded = Event::Folded { outcome: Outcome::Done, tables: Tables::new() };
    assert!(matches!(signer.step(&key(A), folded), Err(Misuse::Unexpected(_))));
    assert!(matches!(signer.found(&key(A), Vec::new(), 0, &Tables::new()), Err(Misuse::Unexpected(_))));
    assert_eq!(signer, before);
}

/// A holder of a key that signs a given number of times, then no more.
#[derive(Debug)]
struct Tired {
    key: SigningKey,
    left: AtomicU32,
}

impl KeyHolder for Tired {
    fn public(&self) -> PublicKey {
        self.key.public()
    }

    fn sign_message(&self, message: &[u8]) -> Result<Signature, SignError> {
        let less = |left: u32| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => KeyHolder::sign_message(&self.key, message),
            Err(_) => Err(SignError::Away("gone".to_owned())),
        }
    }
}

/// Proves: whenever the holder of the key goes away, nothing has changed and no number is used, and the same
/// event works once it is back.
#[test]
fn a_key_that_does_not_sign_changes_nothing() {
    let mut signer = signer(A);
    let mut stage = Stage::new();
    operate(&mut signer, &mut stage);
    let tired = |left| Tired { key: key(A), left: AtomicU32::new(left) };
    let away = || Err(Misuse::NotSigned(SignError::Away("gone".to_owned())));
    let tables = || Tables::from([(PrincipalId::Device(A), table("own"))]);

    // Begin: the fast path takes two signatures, the slow one takes one.
    for (left, fast) in [(0, Some(tables())), (1, Some(tables())), (0, None)] {
        let before = signer.clone();
        assert_eq!(signer.step(&tired(left), fetch(fast.clone())), away());
        assert_eq!(signer, before);
    }
    let number = signer.floor().last() + 1;
    let effects = signer.step(&tired(1), fetch(None)).expect("signed");
    let Some(Request::Update { certificate, .. }) = sent(&effects) else { panic!("{effects:?}") };
    assert_eq!(certificate.value.number, number);

    // Folded.
    let (reply, members) = (stage.proven(signer.floor()), membership());
    signer.step(&key(A), Event::Reply { reply: &reply, members: &members }).expect("in flight");
    let before = signer.clone();
    let folded = Event::Folded { outcome: Outcome::Done, tables: tables() };
    assert_eq!(signer.step(&tired(0), folded.clone()), away());
    assert_eq!(signer, before);
    assert!(sent(&signer.step(&tired(1), folded).expect("signed")).is_some());
}

/// A change of the membership that may not take effect is given up, so that it does not count the version up:
/// neither over another that is pending, nor without effect by a device that has no warrant for the
/// membership that stays.
#[test]
fn a_change_of_membership_takes_effect_or_is_given_up() {
    let change = || vec![crate::certificate::Delta::SetMembers { reference: table("next") }];
    let folded = |stage: &Stage, outcome| {
        let mut a = signer(A);
        let begin = Event::Begin { deltas: change(), time_ns: 0, fast: None };
        a.step(&key(A), begin).expect("idle");
        let members = membership();
        let reply = stage.proven(a.floor());
        let effects = a.step(&key(A), Event::Reply { reply: &reply, members: &members }).expect("in flight");
        assert!(matches!(effects[..], [Effect::Fold(_)]), "{effects:?}");
        let tables = Tables::from([(PrincipalId::Members, table("next"))]);
        let effects = a.step(&key(A), Event::Folded { outcome, tables }).expect("folding");
        (a, effects)
    };
    let (_, effects) = folded(&Stage::new(), Outcome::Done);
    assert!(matches!(effects[..], [Effect::Persist(_), Effect::Send(_)]), "{effects:?}");
    let mut pending = Stage::new();
    pending.order(&Client::new(B).declare(Path::Slow, change()));
    for (stage, outcome) in [(&Stage::new(), Outcome::Nothing), (&pending, Outcome::Done)] {
        let (a, effects) = folded(stage, outcome);
        assert!(
            matches!(effects[..], [Effect::Persist(_), Effect::Finished(OperationEnd::GivenUp)]),
            "{effects:?}"
        );
        assert!(a.is_idle() && a.floor().voids.contains(1));
    }
}

/// Proves: a change leads from the state it was made from to the later one, over one step or many, with an
/// operation in flight or not. A truncated change is refused; an altered one, or one of another state, is
/// refused or leads elsewhere; none panics.
#[test]
fn changes_lead_to_the_later_state() {
    let mut stage = Stage::new();
    let mut signers = [signer(A), signer(B)];
    let mut states = signers.clone().map(|signer| vec![signer]);
    for round in 0..5 {
        if round == 3 {
            // Another device orders an operation and then falls silent.
            let mut other = signer(C);
            let effects = other.step(&key(C), fetch(None)).expect("idle");
            let Some(Request::Update { certificate, .. }) = sent(&effects) else { panic!("{effects:?}") };
            stage.order(&certificate);
        }
        for (signer, states) in signers.iter_mut().zip(&mut states) {
            operate(signer, &mut stage);
            states.push(signer.clone());
            if round % 2 == 0 {
                // Begun, and not ordered.
                let mut begun = signer.clone();
                let device = begun.floor().device;
                let tables = Tables::from([(PrincipalId::Device(device), table("own"))]);
                begun.step(&key(device), fetch(Some(tables))).expect("idle");
                states.push(begun);
            }
        }
    }
    for states in &states {
        for (before, after) in states.iter().flat_map(|one| states.iter().map(move |other| (one, other))) {
            let change = after.change_since(before);
            let reached = before.changed(&change).expect("its own change");
            assert_eq!(reached, *after);
            assert_eq!(reached.to_bytes(), after.to_bytes());
        }
    }
    let (before, after, other) = (&states[0][3], &states[0][6], &states[0][0]);
    let change = after.change_since(before);
    assert!(other.changed(&change).is_ok_and(|reached| reached != *after), "it is of another state");
    for end in 0..change.len() {
        assert!(before.changed(&change[..end]).is_err(), "cut off at {end}");
        let mut altered = change.clone();
        altered[end] ^= 1 + (end % 255) as u8;
        let _ = before.changed(&altered);
    }
    assert!(before.changed(&[&change[..], &[0]].concat()).is_err(), "too long");
    assert!(before.changed(&[&[2], &change[1..]].concat()).is_err(), "newer");
}

/// Proves: a change contains what changed and not what exists: with more devices in the view it is not
/// longer.
#[test]
fn changes_do_not_grow_with_the_view() {
    let change_among = |devices: u32| {
        let mut before = signer(A);
        operate(&mut before, &mut Stage::new());
        let own = before.floor.view.slots[&A].clone();
        for device in 10..10 + devices {
            let element = before.floor.element.as_mut().expect("accepted");
            element.vector.set(PrincipalId::Device(DeviceId(device)), 7);
            let mut slot = own.clone();
            slot.value.forecast.device = DeviceId(device);
            slot.value.forecast.vector = element.vector.clone();
            before.floor.view.slots.insert(DeviceId(device), slot);
        }
        let mut after = before.clone();
        let mut slot = own.clone();
        slot.value.forecast.vector = before.floor.element.as_ref().expect("accepted").vector.clone();
        slot.value.forecast.vector.set(PrincipalId::Device(A), 2);
        after.floor.view.slots.insert(A, slot);
        after.change_since(&before).len()
    };
    assert_eq!(change_among(2), change_among(500));
}
