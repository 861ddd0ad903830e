//! The table and the holder by themselves. Both under virtual time, with everything that may go wrong between them, are
//! in `holdfast-sim`.

use super::table::{LOOK_MS, SLICE_MS};
use super::*;
use crate::locks::SessionId;
use holdfast_content::{DeviceId, UserId};
use std::collections::BTreeMap;

const TERM: u64 = 1_000;

fn file(user: u32, number: u64) -> Handle {
    Handle { principal: PrincipalId::User(UserId(user)), number }
}

fn session(device: u32) -> SessionId {
    SessionId { device: DeviceId(device), run: u128::from(device) * 100 }
}

fn wish(device: u32, scopes: &[Scope]) -> LeaseWish {
    LeaseWish { run: session(device).run, scopes: scopes.to_vec(), delegation: false }
}

fn nothing() -> Touched {
    Touched::default()
}

fn granted(table: &mut LeaseTable, device: u32, scopes: &[Scope], now_ms: u64) -> LeaseGrant {
    table.grant(session(device), &wish(device, scopes), true, &nothing(), now_ms).expect("leases are granted")
}

/// Proves: a change waits for every other device that holds the file, its owner's files, or everything; not for its own;
/// for at most what is left of the term; until they acknowledge; and meanwhile nobody is granted what it claims.
#[test]
fn changes_wait_for_holders() {
    let mut table = LeaseTable::new(TERM, 1);
    let (changed, other) = (file(1, 1), file(2, 1));
    let coarse = Scope::Principal(changed.principal);
    let one = granted(&mut table, 1, &[Scope::File(changed)], 10);
    let two = granted(&mut table, 2, &[coarse], 20);
    granted(&mut table, 3, &[Scope::File(file(1, 2)), Scope::Principal(other.principal)], 20);
    assert_eq!(one.scopes, [Scope::File(changed)]);
    assert_eq!(table.recall(session(1), one.epoch, 0, 30), None);

    let touched = Touched::file(changed);
    let claim = table.claim(DeviceId(3), &touched);
    assert_eq!(table.in_the_way(DeviceId(3), &touched, false, 30), Some(1_020));
    assert!(table.take_recalled());
    let recall = table.recall(session(1), one.epoch, 0, 40).expect("it is recalled");
    assert_eq!(
        (recall.number, &recall.scopes[..], recall.everything),
        (1, &[Scope::File(changed)][..], false)
    );
    assert_eq!(granted(&mut table, 4, &[coarse, Scope::File(changed)], 40).scopes, []);
    assert_eq!(granted(&mut table, 1, &[], 50).term_ms, 0, "nothing is made longer before it acknowledges");
    assert_eq!(table.recall(session(1), one.epoch, 1, 60), None);
    assert!(table.take_freed());
    assert_eq!(
        table.in_the_way(DeviceId(3), &touched, false, 60),
        Some(1_020),
        "the other one is still there"
    );
    assert_eq!(table.in_the_way(DeviceId(2), &touched, false, 60), None, "nobody waits for himself");
    assert_eq!(table.in_the_way(DeviceId(3), &touched, false, 1_020), None, "its time is over");
    assert_eq!(
        table.recall(session(2), two.epoch, 0, 1_020).expect("an answer").epoch,
        0,
        "it is not known any more"
    );
    table.end_claim(claim);
    assert_eq!(granted(&mut table, 4, &[Scope::File(changed)], 1_030).scopes, [Scope::File(changed)]);

    let everything = Touched { everything: true, ..Touched::default() };
    granted(&mut table, 3, &[Scope::Principal(other.principal)], 1_030);
    assert_eq!(table.in_the_way(DeviceId(9), &everything, false, 1_040), Some(2_030));
    table.end(session(3));
    table.end(session(4));
    assert_eq!(table.in_the_way(DeviceId(9), &everything, false, 1_040), None);
    assert!(table.is_empty(1_040));
}

/// Proves: what others have pending is granted to nobody; a repeated request is told what is held and gets nothing new.
#[test]
fn grants_are_of_the_present() {
    let mut table = LeaseTable::new(TERM, 1);
    let (one, two) = (Scope::File(file(1, 1)), Scope::File(file(1, 2)));
    let pending = Touched::file(file(1, 2));
    let coarse = Scope::Principal(file(1, 1).principal);
    let grant = table.grant(session(1), &wish(1, &[one, two, coarse]), true, &pending, 10);
    assert_eq!(grant.expect("a grant").scopes, [one]);
    let again = table.grant(session(1), &wish(1, &[one, two]), false, &nothing(), 20);
    assert_eq!(again.expect("a grant").scopes, [one]);
    assert_eq!(LeaseTable::new(0, 1).grant(session(1), &wish(1, &[one]), true, &nothing(), 10), None);
}

/// Proves: after a restart changes wait for those who may have held something, whatever it was, until they have been heard
/// to know of the restart or the time is over; and they are granted nothing before.
#[test]
fn restarts() {
    let mut table = LeaseTable::new(TERM, 50);
    table.inherit(session(1), false, 500);
    let touched = Touched::file(file(1, 1));
    assert_eq!(table.in_the_way(DeviceId(2), &nothing(), false, 10), None, "who only looks waits for nobody");
    assert_eq!(table.in_the_way(DeviceId(2), &touched, false, 10), Some(500));
    assert_eq!(table.in_the_way(DeviceId(1), &touched, false, 10), None);
    assert!(!table.is_empty(10));
    assert_eq!(granted(&mut table, 1, &[Scope::File(file(1, 1))], 20).scopes, []);
    let recall = table.recall(session(1), 7, 3, 30).expect("it has to give up all");
    assert!(recall.everything && recall.epoch == 50);
    assert_eq!(table.in_the_way(DeviceId(2), &touched, false, 30), Some(500), "it has not said so yet");
    assert_eq!(table.recall(session(1), 50, recall.number, 40), None);
    assert_eq!(table.in_the_way(DeviceId(2), &touched, false, 40), None);

    table.inherit(session(3), true, 5_000);
    assert_eq!(
        table.in_the_way(DeviceId(2), &nothing(), false, 50),
        Some(5_000),
        "it may have had all for itself"
    );
    assert_eq!(table.in_the_way(DeviceId(2), &touched, false, 5_000), None);
}

/// Proves: what a run held that was killed is free with the first operation that is ordered of its device's next run, also
/// over a restart of the server; a message of the killed one that is only answered again frees nothing.
#[test]
fn the_next_run_frees_what_a_killed_one_held() {
    let mut table = LeaseTable::new(TERM, 1);
    let touched = Touched::file(file(1, 1));
    let next = |run| SessionId { device: DeviceId(1), run };
    let wish = |run| LeaseWish { run, ..wish(1, &[Scope::File(file(1, 1))]) };
    granted(&mut table, 1, &[Scope::File(file(1, 1))], 10);
    table.grant(next(7), &wish(7), false, &nothing(), 20);
    assert_eq!(table.in_the_way(DeviceId(2), &touched, false, 20), Some(1_010), "nothing was ordered");
    table.take_freed();
    let of_next = table.grant(next(7), &wish(7), true, &nothing(), 30).expect("granted");
    assert_eq!(of_next.scopes.len(), 1);
    assert!(table.take_freed());
    assert_eq!(table.in_the_way(DeviceId(2), &touched, false, 30), Some(1_030), "that of the next run");
    // An answer for the killed one that is given again.
    table.grant(session(1), &wish(session(1).run), false, &nothing(), 40);
    assert_eq!(table.in_the_way(DeviceId(2), &touched, false, 40), Some(1_030));

    table.inherit(session(3), false, 5_000);
    assert_eq!(table.in_the_way(DeviceId(2), &Touched::file(file(9, 9)), false, 50), Some(5_000));
    table.grant(
        SessionId { device: DeviceId(3), run: 1 },
        &LeaseWish { run: 1, ..wish(1) },
        true,
        &nothing(),
        60,
    );
    assert_eq!(table.in_the_way(DeviceId(2), &Touched::file(file(9, 9)), false, 60), None);
}

/// Proves: who is alone has the delegation from the first wish on; anybody else's operation, even a look that is signed,
/// takes it back once a slice is over, and waits for that; and then it is there for the next who wishes.
#[test]
fn delegations() {
    let mut table = LeaseTable::new(TERM, 1);
    let scope = Scope::File(file(1, 1));
    let ask = |table: &mut LeaseTable, device: u32, now_ms: u64| {
        let wish = LeaseWish { delegation: true, ..wish(device, &[scope]) };
        table.grant(session(device), &wish, true, &nothing(), now_ms).expect("an answer")
    };
    assert!(ask(&mut table, 1, 10).delegation_ms > 0);
    let epoch = ask(&mut table, 1, 20).epoch;
    assert_eq!(table.in_the_way(DeviceId(1), &nothing(), true, 30), None);
    assert_eq!(table.in_the_way(DeviceId(2), &nothing(), false, 30), Some(10 + LOOK_MS));
    assert_eq!(table.recall(session(1), epoch, 0, 30), None, "its slice is left to it");
    assert_eq!(table.in_the_way(DeviceId(2), &nothing(), false, 10 + LOOK_MS), Some(1_020));
    let recall = table.recall(session(1), epoch, 0, 50).expect("it is recalled");
    assert!(recall.delegation && !recall.everything && recall.scopes.is_empty());
    assert_eq!(table.recall(session(1), epoch, recall.number, 60), None);
    assert_eq!(table.in_the_way(DeviceId(2), &nothing(), false, 60), None);
    assert!(ask(&mut table, 1, 70).delegation_ms > 0, "who looked is gone again");

    assert_eq!(table.in_the_way(DeviceId(2), &nothing(), true, 200), Some(1_070));
    let recall = table.recall(session(1), epoch, recall.number, 200).expect("it is recalled");
    assert!(recall.delegation && recall.scopes == [scope], "the next one is to have all");
    table.recall(session(1), epoch, recall.number, 210);
    assert_eq!(ask(&mut table, 1, 220).delegation_ms, 0, "it is the other one's turn");
    assert!(ask(&mut table, 2, 230).delegation_ms > 0);
    assert_eq!(table.in_the_way(DeviceId(1), &nothing(), true, 240), Some(230 + SLICE_MS));
    let mut restarted = LeaseTable::new(TERM, 1);
    restarted.inherit(session(1), true, 500);
    restarted.inherit(session(2), true, 600);
    assert_eq!(restarted.in_the_way(DeviceId(3), &nothing(), false, 10), Some(600), "each may have had it");
}

/// Proves: who wants the delegation at once with others has it in turn, equally long, and most of the time somebody has it;
/// nothing of others has its place meanwhile; an operation waits for the end of one slice at most; and who only looks can
/// then read under leases for a while.
#[test]
fn slices() {
    const END: u64 = 20_000;
    /// How long an operation takes, and to send what was gathered, in milliseconds.
    const TAKES: u64 = 5;
    #[derive(Default)]
    struct Device {
        holder: LeaseHolder,
        claim: Option<(ClaimId, u64)>,
        next: u64,
        acknowledges: Option<u64>,
        had: u64,
        read: u64,
        waited_max: u64,
    }
    let mut table = LeaseTable::new(45_000, 1);
    // 1 to 3 change things all the time, each its own; 4 reads what nobody changes.
    let mut devices: BTreeMap<u32, Device> = (1..=4).map(|number| (number, Device::default())).collect();
    for now in 1..END {
        for number in 1..=4 {
            let has_it =
                |(other, device): (&u32, &Device)| *other != number && device.holder.has_delegation(now);
            let is_anothers = devices.iter().any(has_it);
            let device = devices.get_mut(&number).expect("it is there");
            let (epoch, handled) = (device.holder.epoch(), device.holder.handled());
            match device.acknowledges {
                Some(at) if at > now => continue,
                Some(_) => {
                    device.acknowledges = None;
                    assert_eq!(table.recall(session(number), epoch, handled, now), None);
                }
                None if epoch > 0 => {
                    if let Some(recall) = table.recall(session(number), epoch, handled, now) {
                        device.holder.recalled(epoch, &recall).expect("it is about this session");
                        device.acknowledges = Some(now + TAKES);
                        continue;
                    }
                }
                None => {}
            }
            let (works, own) = (number < 4, file(number, 1));
            device.had += u64::from(device.holder.has_delegation(now));
            device.read += u64::from(device.holder.holds(own, now));
            if device.next > now || (!works && device.holder.holds(own, now)) {
                continue;
            }
            let touched = if works { Touched::file(own) } else { nothing() };
            if table.in_the_way(DeviceId(number), &touched, works, now).is_some() {
                device.claim.get_or_insert_with(|| (table.claim(DeviceId(number), &touched), now));
                continue;
            }
            assert!(!is_anothers, "{number} at {now}");
            if let Some((claim, since)) = device.claim.take() {
                table.end_claim(claim);
                device.waited_max = device.waited_max.max(now - since);
            }
            let wish = LeaseWish { delegation: works, ..wish(number, &[Scope::Principal(own.principal)]) };
            let grant = table.grant(session(number), &wish, true, &nothing(), now).expect("an answer");
            device.holder.granted(&grant, now, now);
            device.next = now + TAKES;
        }
    }
    let had: Vec<u64> = devices.values().map(|device| device.had).collect();
    let waited: Vec<u64> = devices.values().map(|device| device.waited_max).collect();
    println!("had {had:?}, waited {waited:?}, read {}", devices[&4].read);
    assert!(had[..3].iter().sum::<u64>() > END / 3, "{had:?}");
    assert!(had[..3].iter().all(|one| one * 10 > had[0] * 9 && one * 10 < had[0] * 11), "{had:?}");
    assert!(waited[3] <= LOOK_MS + 3 * TAKES, "{waited:?}");
    assert!(waited[..3].iter().all(|one| *one <= SLICE_MS + 4 * TAKES), "{waited:?}");
    assert!(devices[&4].read > END / 5, "{}", devices[&4].read);
}

/// Proves: who dies with a delegation holds up others' looks for its short term, whatever leases last, and is slow from
/// then on; each operation makes it longer, but not once it is recalled; and the holder's ends before the table's.
#[test]
fn delegations_are_short() {
    let mut table = LeaseTable::new(TERM_MS, 1);
    let mut holder = LeaseHolder::default();
    let alone = |scopes: &[Scope]| LeaseWish { delegation: true, ..wish(1, scopes) };
    let scope = Scope::File(file(1, 1));
    let grant = table.grant(session(1), &alone(&[scope]), true, &nothing(), 10).expect("granted");
    assert_eq!(u64::from(grant.delegation_ms), DELEGATION_MS);
    assert!(holder.granted(&grant, 5, 15));
    let end = 5 + DELEGATION_MS - DELEGATION_MS / 32;
    assert!(holder.has_delegation(end - 1) && !holder.has_delegation(end));
    assert_eq!(holder.delegated_ms(end - 7), 7);
    assert!(holder.holds(file(1, 1), end), "what may be read is held for longer");
    let grant = table.grant(session(1), &alone(&[]), true, &nothing(), 2_000).expect("granted");
    holder.granted(&grant, 2_000, 2_000);
    assert!(holder.has_delegation(end));
    let over = 2_000 + DELEGATION_MS;
    assert_eq!(table.in_the_way(DeviceId(2), &nothing(), false, 3_000), Some(over));
    let late = table.grant(session(1), &alone(&[]), true, &nothing(), 4_000).expect("an answer");
    assert_eq!((late.delegation_ms, late.term_ms), (0, 0), "not while it is recalled");
    assert_eq!(table.in_the_way(DeviceId(2), &nothing(), false, over - 1), Some(over));
    assert_eq!(table.in_the_way(DeviceId(2), &nothing(), false, over), None);
    assert!(table.grant(session(1), &alone(&[scope]), true, &nothing(), over + 1).is_none(), "it is slow");
    assert!(
        table.in_the_way(DeviceId(2), &Touched::file(file(1, 1)), false, over).is_some(),
        "its leases are still held"
    );
}

/// Proves: one that wishes for ever more loses its oldest leases, the table stays within its bounds, and other devices are
/// granted theirs all the same.
#[test]
fn floods_are_bounded() {
    let mut table = LeaseTable::new(TERM, 1);
    let epoch = granted(&mut table, 1, &[Scope::File(file(1, 0))], 10).epoch;
    let mut acknowledged = 0;
    for batch in 0..40u64 {
        let scopes: Vec<Scope> =
            (0..WISHES_MAX as u64).map(|number| Scope::File(file(1, 1 + batch * 10_000 + number))).collect();
        assert_eq!(granted(&mut table, 1, &scopes, 10).scopes.len(), WISHES_MAX);
        if let Some(recall) = table.recall(session(1), epoch, acknowledged, 10) {
            acknowledged = recall.number;
            assert_eq!(table.recall(session(1), epoch, acknowledged, 10), None);
        }
    }
    assert_eq!(
        table.in_the_way(DeviceId(2), &Touched::file(file(1, 0)), false, 20),
        None,
        "the oldest is gone"
    );
    assert!(table.in_the_way(DeviceId(2), &Touched::file(file(1, 1 + 39 * 10_000)), false, 20).is_some());
    for run in 0..100 {
        let wish = LeaseWish { run, ..wish(3, &[Scope::File(file(2, 1))]) };
        // What is sent again is ordered no more, and so ends no earlier run.
        table.grant(SessionId { device: DeviceId(3), run }, &wish, run == 0, &nothing(), 20);
    }
    assert!(table.sessions().filter(|(id, _)| id.device == DeviceId(3)).count() <= 16);
    assert_eq!(granted(&mut table, 4, &[Scope::File(file(2, 1))], 20).scopes.len(), 1);
}

/// Proves: one that lets others wait for its acknowledgement, or for the end of its term, is granted nothing for a while, and
/// for longer each time; others are not affected.
#[test]
fn who_makes_others_wait_goes_without() {
    let mut table = LeaseTable::new(20_000, 1);
    let scope = Scope::File(file(1, 1));
    let mut now_ms = 10;
    let mut pauses = Vec::new();
    for round in 0..4 {
        let start_ms = now_ms;
        let grant = loop {
            match table.grant(session(1), &wish(1, &[scope]), true, &nothing(), now_ms) {
                Some(grant) => break grant,
                None => now_ms += 1_000,
            }
        };
        pauses.push(now_ms - start_ms);
        assert_eq!(grant.scopes, [scope]);
        assert!(table.in_the_way(DeviceId(2), &Touched::file(file(1, 1)), false, now_ms).is_some());
        if round % 2 == 0 {
            now_ms += 11_000;
            assert_eq!(table.recall(session(1), grant.epoch, 1, now_ms), None);
            assert_eq!(granted(&mut table, 3, &[scope], now_ms).scopes, [scope]);
            table.end(session(3));
            table.end(session(1));
        } else {
            now_ms += 20_000;
        }
    }
    assert!(pauses[0] == 0 && pauses[1] >= 59_000 && pauses[3] >= 3 * pauses[1], "{pauses:?}");
}

/// Proves: a holder takes the term from the sending; new scopes not when a recall has overtaken the grant; nothing from a
/// grant that knows of recalls it has not heard of; nothing of another epoch while it holds something; and loses all when
/// the time is over.
#[test]
fn holders() {
    let mut holder = LeaseHolder::default();
    let (one, two) = (file(1, 1), file(1, 2));
    let grant = |epoch, recalls, scopes: &[Scope]| LeaseGrant {
        epoch,
        recalls,
        term_ms: 960,
        scopes: scopes.to_vec(),
        delegation_ms: 0,
    };
    assert!(!holder.must_ask(0));
    assert!(holder.granted(&grant(5, 0, &[Scope::File(one)]), 100, 150));
    assert!(holder.holds(one, 1_029) && !holder.holds(two, 150) && !holder.holds(one, 1_030));
    assert!(holder.must_ask(150));
    assert!(!holder.granted(&grant(6, 0, &[Scope::File(two)]), 160, 170), "it holds something of before");
    assert!(!holder.granted(&grant(5, 1, &[Scope::File(two)]), 160, 170), "a recall is on its way");
    assert!(!holder.holds(one, 1_040));
    let recall =
        Recall { epoch: 5, number: 2, scopes: vec![Scope::File(two)], everything: false, delegation: false };
    assert_eq!(holder.recalled(4, &recall), None);
    assert_eq!(holder.recalled(5, &recall), Some(Dropped::default()));
    assert!(!holder.granted(&grant(5, 1, &[Scope::File(two)]), 200, 210), "it was recalled since");
    assert!(holder.holds(one, 1_120) && !holder.holds(two, 210), "what is held is held for longer");
    assert!(holder.granted(&grant(5, 2, &[Scope::Principal(two.principal)]), 220, 230));
    assert!(holder.holds(two, 230));
    let losses = holder.losses();
    let everything = Recall { epoch: 9, number: 4, scopes: vec![], everything: true, delegation: true };
    let dropped = holder.recalled(5, &everything).expect("it concerns this");
    assert!(dropped.everything && dropped.scopes.len() == 2);
    assert!(holder.losses() > losses && !holder.holds(one, 231));
    assert!(holder.must_ask(231), "the server is to hear of it");
    holder.told(holder.epoch(), holder.handled());
    assert!(!holder.must_ask(231));
    assert!(holder.granted(&grant(9, 4, &[Scope::File(one)]), 300, 310));
    holder.expire(2_000);
    assert_eq!((holder.count(), holder.holds(one, 310)), (0, false));
}
