//! The table and the holder, each by itself. `holdfast-sim` tests both together under virtual time, with
//! every fault that can come between them.

use super::table::{LOOK_MS, SLICE_MS};
use super::*;
use crate::locks::SessionId;
use holdfast_content::{DeviceId, UserId};
use std::collections::{BTreeMap, BTreeSet};

const TERM: u64 = 1_000;

fn file(user: u32, number: u64) -> Handle {
    Handle { principal: PrincipalId::User(UserId(user)), number }
}

fn session(device: u32) -> SessionId {
    SessionId { device: DeviceId(device), run: u128::from(device) * 100 }
}

fn lease_request(device: u32, scopes: &[Scope]) -> LeaseRequest {
    LeaseRequest { scopes: scopes.to_vec(), ..LeaseRequest::none(session(device).run) }
}

fn nothing() -> Footprint {
    Footprint::default()
}

fn granted(table: &mut LeaseTable, device: u32, scopes: &[Scope], now_ms: u64) -> LeaseGrant {
    let request = lease_request(device, scopes);
    let grant = table.grant(
        session(device),
        &request,
        &nothing().reading(Some(&request), |_| true),
        true,
        &nothing(),
        now_ms,
    );
    assert!(grant.epoch > 0, "leases are granted");
    grant
}

/// Proves: a change waits for every other device that holds the file, all files of its owner, or everything,
/// but not for its own device. It waits until they acknowledge, at most for the rest of the term. Meanwhile
/// nobody else is granted what it claims.
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

    let touched = Footprint::file(changed);
    let claim = table.claim(DeviceId(3), &touched, false);
    assert_eq!(table.recall_conflicts(DeviceId(3), &touched, false, 30), Some(1_020));
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
        table.recall_conflicts(DeviceId(3), &touched, false, 60),
        Some(1_020),
        "the other one is still there"
    );
    assert_eq!(table.recall_conflicts(DeviceId(2), &touched, false, 60), None, "nobody waits for himself");
    assert_eq!(table.recall_conflicts(DeviceId(3), &touched, false, 1_020), None, "its time is over");
    assert_eq!(
        table.recall(session(2), two.epoch, 0, 1_020).expect("an answer").epoch,
        0,
        "it is not known any more"
    );
    table.end_claim(claim);
    assert_eq!(granted(&mut table, 4, &[Scope::File(changed)], 1_030).scopes, [Scope::File(changed)]);

    let everything = Footprint { everything: true, ..Footprint::default() };
    granted(&mut table, 3, &[Scope::Principal(other.principal)], 1_030);
    assert_eq!(table.recall_conflicts(DeviceId(9), &everything, false, 1_040), Some(2_030));
    table.end(session(3));
    table.end(session(4));
    assert_eq!(table.recall_conflicts(DeviceId(9), &everything, false, 1_040), None);
    assert!(table.is_empty(1_040));
}

/// Proves: what others have pending is granted to nobody. A repeated request is told what it holds, gets
/// nothing new, and is told that any file may be withheld.
#[test]
fn grants_are_of_the_present() {
    let mut table = LeaseTable::new(TERM, 1);
    let (one, two) = (Scope::File(file(1, 1)), Scope::File(file(1, 2)));
    let pending = Footprint::file(file(1, 2));
    let coarse = Scope::Principal(file(1, 1).principal);
    let grant =
        table.grant(session(1), &lease_request(1, &[one, two, coarse]), &nothing(), true, &pending, 10);
    assert_eq!((grant.scopes, grant.withheld), (vec![one], Withheld::default()));
    let again = table.grant(session(1), &lease_request(1, &[one, two]), &nothing(), false, &nothing(), 20);
    assert_eq!((again.scopes, again.withheld), (vec![one], Withheld::everything()));
    let none =
        LeaseTable::new(0, 1).grant(session(1), &lease_request(1, &[one]), &nothing(), true, &nothing(), 10);
    assert_eq!((none.term_ms, none.epoch, none.scopes), (0, 0, vec![]));
    let all = granted(&mut table, 2, &[coarse, one, two], 30);
    assert_eq!(all.scopes, [coarse], "a file of somebody whose files are all held is not held by itself");
}

/// Proves: after a restart, changes wait for all who may have held anything, until these are known to have
/// heard of the restart or their time is over; until then they are granted nothing.
#[test]
fn restarts() {
    let mut table = LeaseTable::new(TERM, 50);
    table.inherit(session(1), false, 500);
    let touched = Footprint::file(file(1, 1));
    assert_eq!(
        table.recall_conflicts(DeviceId(2), &nothing(), false, 10),
        None,
        "who only looks waits for nobody"
    );
    assert_eq!(table.recall_conflicts(DeviceId(2), &touched, false, 10), Some(500));
    assert_eq!(table.recall_conflicts(DeviceId(1), &touched, false, 10), None);
    assert!(!table.is_empty(10));
    assert_eq!(granted(&mut table, 1, &[Scope::File(file(1, 1))], 20).scopes, []);
    let recall = table.recall(session(1), 7, 3, 30).expect("it has to give up all");
    assert!(recall.everything && recall.epoch == 50);
    assert_eq!(table.recall_conflicts(DeviceId(2), &touched, false, 30), Some(500), "it has not said so yet");
    assert_eq!(table.recall(session(1), 50, recall.number, 40), None);
    assert_eq!(table.recall_conflicts(DeviceId(2), &touched, false, 40), None);

    table.inherit(session(3), true, 5_000);
    assert_eq!(
        table.recall_conflicts(DeviceId(2), &nothing(), false, 50),
        Some(5_000),
        "it may have had all for itself"
    );
    assert_eq!(table.recall_conflicts(DeviceId(2), &touched, false, 5_000), None);
}

/// Proves: the leases of a killed run end with the first operation ordered for the next run of its device,
/// also over a restart of the server. A repeated answer to the killed run's message frees nothing.
#[test]
fn the_next_run_frees_what_a_killed_one_held() {
    let mut table = LeaseTable::new(TERM, 1);
    let touched = Footprint::file(file(1, 1));
    let next = |run| SessionId { device: DeviceId(1), run };
    let request = |run| LeaseRequest { run, ..lease_request(1, &[Scope::File(file(1, 1))]) };
    granted(&mut table, 1, &[Scope::File(file(1, 1))], 10);
    table.grant(next(7), &request(7), &nothing(), false, &nothing(), 20);
    assert_eq!(table.recall_conflicts(DeviceId(2), &touched, false, 20), Some(1_010), "nothing was ordered");
    table.take_freed();
    let of_next = table.grant(next(7), &request(7), &nothing(), true, &nothing(), 30);
    assert_eq!(of_next.scopes.len(), 1);
    assert!(table.take_freed());
    assert_eq!(table.recall_conflicts(DeviceId(2), &touched, false, 30), Some(1_030), "that of the next run");
    // A repeated answer to the killed run.
    table.grant(session(1), &request(session(1).run), &nothing(), false, &nothing(), 40);
    assert_eq!(table.recall_conflicts(DeviceId(2), &touched, false, 40), Some(1_030));

    table.inherit(session(3), false, 5_000);
    assert_eq!(table.recall_conflicts(DeviceId(2), &Footprint::file(file(9, 9)), false, 50), Some(5_000));
    table.grant(
        SessionId { device: DeviceId(3), run: 1 },
        &LeaseRequest { run: 1, ..request(1) },
        &nothing(),
        true,
        &nothing(),
        60,
    );
    assert_eq!(table.recall_conflicts(DeviceId(2), &Footprint::file(file(9, 9)), false, 60), None);
}

/// A request to hold exclusively what an operation changes.
fn exclusively(device: u32) -> LeaseRequest {
    LeaseRequest { exclusive: true, ..lease_request(device, &[]) }
}

/// An operation that is ordered, changes a file and asks for exclusive access to it.
fn changes(table: &mut LeaseTable, device: u32, file: Handle, now_ms: u64) -> LeaseGrant {
    let touched = Footprint::file(file);
    assert_eq!(
        table.recall_conflicts(DeviceId(device), &touched, true, now_ms),
        None,
        "{device} at {now_ms}"
    );
    table.grant(session(device), &exclusively(device), &touched, true, &nothing(), now_ms)
}

fn reads(file: Handle) -> Footprint {
    Footprint { reads: [file].into(), ..Footprint::default() }
}

/// Proves: a device that is alone gets the delegation with its first request. Any other device's operation,
/// even a signed look, has it recalled once a slice is over, and waits for that. Exclusive access to a
/// narrower scope stays unless the operation is about that scope. The delegation is granted again after a
/// while.
#[test]
fn delegations() {
    let mut table = LeaseTable::new(TERM, 1);
    let mine = Scope::Principal(file(1, 1).principal);
    let grant = changes(&mut table, 1, file(1, 1), 10);
    assert!(grant.delegation && grant.exclusive_ms > 0 && grant.exclusive == [mine], "{grant:?}");
    let epoch = grant.epoch;
    assert_eq!(table.recall_conflicts(DeviceId(1), &nothing(), true, 30), None);
    assert_eq!(table.recall_conflicts(DeviceId(2), &nothing(), false, 30), Some(10 + LOOK_MS));
    assert_eq!(table.recall(session(1), epoch, 0, 30), None, "its slice is left to it");
    assert_eq!(table.recall_conflicts(DeviceId(2), &nothing(), false, 10 + LOOK_MS), Some(1_010));
    let recall = table.recall(session(1), epoch, 0, 50).expect("it is recalled");
    assert!(
        recall.delegation && !recall.everything && recall.scopes.is_empty() && recall.exclusive.is_empty()
    );
    assert_eq!(table.recall(session(1), epoch, recall.number, 60), None);
    assert_eq!(table.recall_conflicts(DeviceId(2), &nothing(), false, 60), None);
    assert_eq!(
        table.recall_conflicts(DeviceId(2), &reads(file(2, 1)), false, 60),
        None,
        "it has only its own"
    );
    assert!(table.recall_conflicts(DeviceId(2), &reads(file(1, 9)), false, 60).is_some());
    let recall = table.recall(session(1), epoch, recall.number, 65).expect("it is recalled");
    assert_eq!((&recall.exclusive[..], recall.delegation), (&[mine][..], false));
    assert_eq!(table.recall(session(1), epoch, recall.number, 66), None);
    assert!(!changes(&mut table, 1, file(1, 1), 70).delegation, "others are about");
    assert!(changes(&mut table, 1, file(1, 1), 1_500).delegation, "and are gone");

    let mut restarted = LeaseTable::new(TERM, 1);
    restarted.inherit(session(1), true, 500);
    restarted.inherit(session(2), true, 600);
    assert_eq!(
        restarted.recall_conflicts(DeviceId(3), &nothing(), false, 10),
        Some(600),
        "each may have had it"
    );
}

/// Proves: two devices that work in files of their own, or in different files of one group, hold them
/// exclusively side by side. The answer to a look names what is withheld. An operation that reads or changes
/// that waits until the holder has given it up; after a read the holder may still read it. A device that
/// touches several files gets all at once. The holder gets back what nobody else changed. Files that nobody
/// else uses are held as a whole, and one by one once others use them.
#[test]
fn scopes_side_by_side() {
    let mut table = LeaseTable::new(TERM, 1);
    let (own, team) = (file(1, 5), 9);
    let whole = |user| Scope::Principal(file(user, 1).principal);
    // Device 3 has read something, so nobody is alone.
    granted(&mut table, 3, &[Scope::File(file(team, 1))], 5);
    let one = changes(&mut table, 1, own, 10);
    assert_eq!((&one.exclusive[..], one.delegation), (&[whole(1)][..], false));
    assert_eq!(changes(&mut table, 2, file(2, 7), 10).exclusive, [whole(2)]);
    assert_eq!(changes(&mut table, 1, file(team, 11), 20).exclusive, [Scope::File(file(team, 11))]);
    assert_eq!(changes(&mut table, 1, file(team, 12), 20).exclusive, [Scope::File(file(team, 12))]);
    assert_eq!(changes(&mut table, 2, file(team, 13), 20).exclusive, [Scope::File(file(team, 13))]);
    assert_eq!(
        changes(&mut table, 1, file(1, 99), 20).exclusive,
        [whole(1)],
        "it has that, and is told so again"
    );
    assert_eq!(changes(&mut table, 1, file(team, 12), 20).exclusive, [Scope::File(file(team, 12))]);

    let looks = granted(&mut table, 3, &[whole(1), whole(team), Scope::File(file(team, 2))], 30);
    assert_eq!(looks.scopes, [Scope::File(file(team, 2))], "the others hold some of those");
    for (file, is_withheld) in
        [(own, true), (file(team, 11), true), (file(team, 13), true), (file(team, 2), false)]
    {
        assert_eq!(looks.withheld.has(&file), is_withheld, "{file}");
    }
    let for_one = granted(&mut table, 1, &[], 30).withheld;
    assert!(!for_one.has(&own) && !for_one.has(&file(team, 12)) && for_one.has(&file(team, 13)));

    assert_eq!(table.recall_conflicts(DeviceId(3), &reads(file(team, 2)), false, 40), None);
    assert_eq!(table.recall_conflicts(DeviceId(3), &reads(file(team, 11)), false, 40), Some(20 + LOOK_MS));
    let of_team = |numbers: &[u64]| -> BTreeSet<Scope> {
        numbers.iter().map(|number| Scope::File(file(team, *number))).collect()
    };
    changes(&mut table, 1, file(team, 14), 40);
    for again_ms in [60, 65] {
        assert_eq!(table.recall_conflicts(DeviceId(3), &reads(file(team, 11)), false, again_ms), Some(1_040));
    }
    let recall = table.recall(session(1), one.epoch, 0, 65).expect("it is recalled");
    assert_eq!(recall.exclusive, [Scope::File(file(team, 11))], "that file only");
    assert!(recall.scopes.is_empty() && !recall.delegation, "it may be read: {recall:?}");
    assert_eq!(changes_nothing(&mut table, 1, 70).term_ms, 0, "nothing before that is given up");
    assert_eq!(changes(&mut table, 1, file(team, 15), 70).exclusive, []);
    assert_eq!(table.recall(session(1), one.epoch, recall.number, 80), None);
    assert_eq!(table.recall_conflicts(DeviceId(3), &reads(file(team, 11)), false, 80), None);

    // A device that touches the next file shortly after is taken to go through all of them.
    assert!(table.recall_conflicts(DeviceId(3), &reads(file(team, 12)), false, 80).is_some());
    let recall = table.recall(session(1), one.epoch, recall.number, 80).expect("it is recalled");
    assert_eq!(recall.exclusive.iter().copied().collect::<BTreeSet<_>>(), of_team(&[12, 14]));
    assert_eq!(table.recall(session(1), one.epoch, recall.number, 90), None);
    assert_eq!(table.recall_conflicts(DeviceId(3), &reads(file(team, 12)), false, 90), None);

    // What the holder gave up this way, and what it sent meanwhile, is its own again with its next change
    // there; nobody else gets it before.
    let also = LeaseRequest { also: vec![file(team, 12), file(team, 16)], ..exclusively(2) };
    let grant = table.grant(session(2), &also, &Footprint::file(file(team, 13)), true, &nothing(), 90);
    assert_eq!(grant.exclusive.iter().copied().collect::<BTreeSet<_>>(), of_team(&[13, 16]));
    let again = changes(&mut table, 1, file(team, 17), 90).exclusive;
    assert_eq!(again.into_iter().collect::<BTreeSet<_>>(), of_team(&[11, 12, 14, 15, 17]));
    assert!(table.recall_conflicts(DeviceId(3), &reads(own), false, 90).is_some());

    // A change also takes away the right to read, for that file only.
    let two = granted(&mut table, 2, &[], 90);
    assert!(table.recall_conflicts(DeviceId(3), &Footprint::file(file(team, 13)), false, 130).is_some());
    let recall = table.recall(session(2), two.epoch, 0, 130).expect("it is recalled");
    assert_eq!(
        (&recall.scopes[..], &recall.exclusive[..]),
        (&[Scope::File(file(team, 13))][..], &recall.scopes[..])
    );
    table.recall(session(2), two.epoch, recall.number, 140);
    assert_eq!(table.recall_conflicts(DeviceId(3), &Footprint::file(file(team, 13)), false, 140), None);

    // An operation that changes the members, or reads everything, waits for everybody.
    let everything = Footprint { reads_everything: true, ..Footprint::default() };
    assert!(table.recall_conflicts(DeviceId(3), &everything, false, 140).is_some());
    assert!(nothing().reading(None, |_| true).reads_everything);
    // A device that may write none of a user's files gets no exclusive access to them by naming them as read.
    let named = LeaseRequest { reads: vec![file(5, 1)], ..exclusively(3) };
    let touched = Footprint::file(file(6, 1)).reading(Some(&named), |of| of == file(6, 1).principal);
    let grant = table.grant(session(3), &named, &touched, true, &nothing(), 150);
    assert_eq!(grant.exclusive, [whole(6)]);

    // Files that are about to be changed are held exclusively from the look on, if the device may write them.
    let about = LeaseRequest { edits: vec![file(7, 1), file(8, 1)], ..exclusively(3) };
    let touched = nothing().reading(Some(&about), |of| of == file(7, 1).principal);
    let grant = table.grant(session(3), &about, &touched, true, &nothing(), 160);
    assert_eq!(grant.exclusive, [whole(7)]);

    // Beside what is changed, further files are granted that nobody else has; nobody gives anything up for
    // them.
    granted(&mut table, 4, &[Scope::File(file(team, 21))], 170);
    let also = LeaseRequest { also: vec![file(team, 20), file(team, 21), file(2, 1)], ..exclusively(3) };
    let touched = Footprint::file(file(team, 19)).reading(Some(&also), |_| true);
    assert_eq!(table.recall_conflicts(DeviceId(3), &touched, true, 180), None);
    let grant = table.grant(session(3), &also, &touched, true, &nothing(), 180);
    assert_eq!(grant.exclusive, [19, 20].map(|number| Scope::File(file(team, number))));
}

/// Proves: all files of a group that were recalled are granted again, long before the time for that is over,
/// to a device that works there alone, but not while another does. A device that goes through a holder's
/// files and changes them takes all of them; with the holder's next change it gets back those that the other
/// has not changed.
#[test]
fn who_works_alone_has_all_again() {
    let mut table = LeaseTable::new(TERM * 100, 1);
    let team = |number| file(9, number);
    let whole = Scope::Principal(team(1).principal);
    let gives_up = |table: &mut LeaseTable, device: u32, epoch, now_ms| {
        let recall = table.recall(session(device), epoch, 0, now_ms).expect("it is recalled");
        assert_eq!(table.recall(session(device), epoch, recall.number, now_ms), None);
        recall.scopes.into_iter().collect::<BTreeSet<_>>()
    };
    granted(&mut table, 3, &[Scope::File(file(8, 1))], 5);
    let one = changes(&mut table, 1, team(1), 10);
    assert_eq!(one.exclusive, [whole]);
    assert!(table.recall_conflicts(DeviceId(2), &Footprint::file(team(2)), true, 10 + SLICE_MS).is_some());
    gives_up(&mut table, 1, one.epoch, 120);
    let two = changes(&mut table, 2, team(20), 120);
    assert_eq!(two.exclusive, [Scope::File(team(20))]);
    for number in 21..26 {
        assert_eq!(changes(&mut table, 2, team(number), 130).exclusive, [Scope::File(team(number))]);
    }
    assert_eq!(changes(&mut table, 1, team(40), 130).exclusive, [Scope::File(team(40))], "it is back");
    for number in 26..34 {
        let exclusive = changes(&mut table, 2, team(number), 130).exclusive;
        assert_eq!(exclusive, [Scope::File(team(number))], "the other holds one");
    }

    // The first device touches one of them, and shortly after the next.
    let now_ms = 130 + SLICE_MS;
    assert!(table.recall_conflicts(DeviceId(1), &Footprint::file(team(20)), true, now_ms).is_some());
    assert_eq!(gives_up(&mut table, 2, two.epoch, now_ms), [Scope::File(team(20))].into());
    changes(&mut table, 1, team(20), now_ms);
    assert!(table.recall_conflicts(DeviceId(1), &Footprint::file(team(21)), true, now_ms).is_some());
    let rest = (21..34).map(|number| Scope::File(team(number))).collect::<BTreeSet<_>>();
    assert_eq!(gives_up(&mut table, 2, two.epoch, now_ms), rest);
    changes(&mut table, 1, team(21), now_ms);
    changes(&mut table, 1, team(22), now_ms);
    let again = changes(&mut table, 2, team(34), now_ms).exclusive.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(again, (23..35).map(|number| Scope::File(team(number))).collect());

    // Once the first has been idle for a second, the second needs a few changes.
    let now_ms = now_ms + 1_000;
    let mut recalled = BTreeSet::new();
    let wide = (50..70).position(|number| {
        let exclusive = changes(&mut table, 2, team(number), now_ms).exclusive;
        if let Some(recall) = table.recall(session(1), one.epoch, 1, now_ms) {
            recalled.extend(recall.scopes);
            table.recall(session(1), one.epoch, recall.number, now_ms);
        }
        exclusive == [whole]
    });
    assert_eq!(wide, Some(7));
    assert_eq!(recalled, [20, 21, 22, 40].map(|number| Scope::File(team(number))).into());

    // The same while others still have leases there that they do not need: those are recalled.
    let mut table = LeaseTable::new(TERM * 100, 1);
    let reader = granted(&mut table, 3, &[Scope::File(team(1))], 5);
    let wide = (2..20).position(|number| {
        let exclusive = changes(&mut table, 1, team(number), 10).exclusive;
        if let Some(recall) = table.recall(session(3), reader.epoch, 0, 10) {
            assert_eq!(recall.scopes, [Scope::File(team(1))]);
            table.recall(session(3), reader.epoch, recall.number, 10);
        }
        exclusive == [whole]
    });
    assert_eq!(wide, Some(8));
    assert_eq!(granted(&mut table, 3, &[Scope::File(file(8, 1))], 10).scopes, [Scope::File(file(8, 1))]);
}

/// Proves: a device that changes all files of which another has leases waits for that one once or twice, not
/// at each file. The reader's next look asks for everything that it lost, and gets what the other does not
/// hold exclusively by then.
#[test]
fn readers_do_not_hold_up_who_changes_all() {
    let mut table = LeaseTable::new(TERM * 100, 1);
    let team = |number| file(9, number);
    let leases: Vec<Scope> = (1..=20).map(|number| Scope::File(team(number))).collect();
    let reader = granted(&mut table, 4, &leases, 10);
    assert_eq!(reader.scopes, leases);
    granted(&mut table, 4, &[Scope::File(file(8, 1))], 10);
    granted(&mut table, 3, &[Scope::File(team(99))], 10);
    let mut recalls = 0;
    for number in 1..=10 {
        if table.recall_conflicts(DeviceId(1), &Footprint::file(team(number)), true, 100).is_some() {
            recalls += 1;
            let recall = table.recall(session(4), reader.epoch, recalls - 1, 100).expect("it is recalled");
            assert_eq!(recall.scopes.len(), if recalls == 1 { 1 } else { 19 });
            assert_eq!(table.recall(session(4), reader.epoch, recalls, 100), None);
        }
        assert_eq!(table.recall_conflicts(DeviceId(1), &Footprint::file(team(number)), true, 100), None);
        assert_eq!(changes(&mut table, 1, team(number), 100).exclusive, [Scope::File(team(number))]);
    }
    assert_eq!(recalls, 2);
    assert_eq!(table.recall_conflicts(DeviceId(1), &reads(file(8, 1)), false, 100), None);
    let again = granted(&mut table, 4, &[Scope::File(team(20))], 110);
    assert_eq!(again.scopes, (11..=20).map(|number| Scope::File(team(number))).collect::<Vec<_>>());

    // A reader that loses them again at once has to ask for each file that it reads.
    assert!(table.recall_conflicts(DeviceId(1), &Footprint::file(team(11)), true, 150).is_some());
    let recall = table.recall(session(4), reader.epoch, recalls, 150).expect("it is recalled");
    assert_eq!(recall.scopes.len(), 10);
    assert_eq!(table.recall(session(4), reader.epoch, recall.number, 150), None);
    assert_eq!(granted(&mut table, 4, &[Scope::File(team(20))], 160).scopes, [Scope::File(team(20))]);
}

fn changes_nothing(table: &mut LeaseTable, device: u32, now_ms: u64) -> LeaseGrant {
    table.grant(session(device), &lease_request(device, &[]), &nothing(), true, &nothing(), now_ms)
}

/// Proves: devices that change things in one directory at the same time hold it exclusively in turn, equally
/// long, and most of the time one of them does. Other devices' operations are not ordered meanwhile. An
/// operation waits for at most the end of one slice. A device that works elsewhere in the same group's files
/// waits for nobody.
#[test]
fn slices() {
    const END: u64 = 20_000;
    /// How long an operation takes, and how long sending the gathered changes takes, in milliseconds.
    const TAKES: u64 = 5;
    #[derive(Default)]
    struct Device {
        holder: LeaseHolder,
        claim: Option<(ClaimId, u64)>,
        next: u64,
        acknowledges: Option<u64>,
        had: u64,
        waited_max: u64,
    }
    let mut table = LeaseTable::new(45_000, 1);
    // 1 to 3 change one directory all the time, 4 another one, 5 reads the first now and then.
    let mut devices: BTreeMap<u32, Device> = (1..=5).map(|number| (number, Device::default())).collect();
    for now in 1..END {
        for number in 1..=5 {
            let about = file(1, if number == 4 { 2 } else { 1 });
            let has_it = |(other, device): (&u32, &Device)| {
                *other != number && device.holder.holds_exclusively(about, now)
            };
            let is_anothers = devices.iter().any(has_it);
            let device = devices.get_mut(&number).expect("it is there");
            let (epoch, handled) = (device.holder.epoch(), device.holder.last_recall());
            match device.acknowledges {
                Some(at) if at > now => continue,
                _ if epoch > 0 => {
                    device.acknowledges = None;
                    if let Some(recall) = table.recall(session(number), epoch, handled, now) {
                        device.holder.recalled(epoch, &recall).expect("it is about this session");
                        device.acknowledges = Some(now + TAKES);
                        continue;
                    }
                }
                _ => {}
            }
            let works = number < 5;
            device.had += u64::from(device.holder.holds_exclusively(about, now));
            if device.next > now {
                continue;
            }
            let touched = if works { Footprint::file(about) } else { reads(about) };
            if table.recall_conflicts(DeviceId(number), &touched, works, now).is_some() {
                device.claim.get_or_insert_with(|| (table.claim(DeviceId(number), &touched, works), now));
                continue;
            }
            assert!(!is_anothers, "{number} at {now}");
            if let Some((claim, since)) = device.claim.take() {
                table.end_claim(claim);
                device.waited_max = device.waited_max.max(now - since);
            }
            let request = LeaseRequest { exclusive: works, ..lease_request(number, &[]) };
            let grant = table.grant(session(number), &request, &touched, true, &nothing(), now);
            device.holder.granted(&grant, now, now);
            device.next = now + if works { TAKES } else { 317 };
        }
    }
    let had: Vec<u64> = devices.values().map(|device| device.had).collect();
    let waited: Vec<u64> = devices.values().map(|device| device.waited_max).collect();
    println!("had {had:?}, waited {waited:?}");
    assert!(had[..3].iter().sum::<u64>() > END / 2, "{had:?}");
    assert!(had[..3].iter().all(|one| one * 10 > had[0] * 9 && one * 10 < had[0] * 11), "{had:?}");
    assert!(had[3] > END * 9 / 10 && waited[3] <= SLICE_MS + 2 * TAKES, "{had:?} {waited:?}");
    // The first waits for the delegation, and the last for the device that has it.
    assert!(waited[..3].iter().all(|one| *one <= 3 * (SLICE_MS + TAKES)), "{waited:?}");
    assert!(waited[4] <= SLICE_MS, "{waited:?}");
}

/// Proves: a device that dies with exclusive access delays other devices' looks only for the short exclusive
/// term, however long leases last, and counts as slow from then on. Each operation extends the term, unless
/// it is recalled. The holder's term ends before the table's.
#[test]
fn exclusive_terms_are_short() {
    let mut table = LeaseTable::new(TERM_MS, 1);
    let mut holder = LeaseHolder::default();
    let grant = changes(&mut table, 1, file(1, 1), 10);
    assert_eq!(u64::from(grant.exclusive_ms), EXCLUSIVE_MS);
    assert!(holder.granted(&grant, 5, 15));
    let end = 5 + EXCLUSIVE_MS - EXCLUSIVE_MS / 32;
    assert!(holder.has_delegation(end - 1) && !holder.has_delegation(end));
    assert!(holder.holds_exclusively(file(1, 7), end - 1) && !holder.holds_exclusively(file(1, 7), end));
    assert_eq!(holder.exclusive_ms(end - 7), 7);
    assert!(holder.holds(file(1, 1), end), "what may be read is held for longer");
    holder.granted(&changes(&mut table, 1, file(1, 1), 2_000), 2_000, 2_000);
    assert!(holder.has_delegation(end));
    let over = 2_000 + EXCLUSIVE_MS;
    assert_eq!(table.recall_conflicts(DeviceId(2), &nothing(), false, 3_000), Some(over));
    let late = table.grant(session(1), &exclusively(1), &nothing(), true, &nothing(), 4_000);
    assert_eq!((late.exclusive_ms, late.term_ms), (0, 0), "not while it is recalled");
    assert_eq!(table.recall_conflicts(DeviceId(2), &nothing(), false, over - 1), Some(over));
    assert_eq!(table.recall_conflicts(DeviceId(2), &nothing(), false, over), None);
    let slow =
        table.grant(session(1), &exclusively(1), &Footprint::file(file(1, 1)), true, &nothing(), over + 1);
    assert_eq!((slow.term_ms, slow.exclusive), (0, vec![]));
    assert!(
        table.recall_conflicts(DeviceId(2), &Footprint::file(file(1, 1)), false, over).is_some(),
        "its leases are still held"
    );
}

/// Proves: a device that asks for more and more loses its oldest leases, the table stays within its bounds,
/// and other devices are still granted theirs.
#[test]
fn floods_are_bounded() {
    let mut table = LeaseTable::new(TERM, 1);
    let epoch = granted(&mut table, 1, &[Scope::File(file(1, 0))], 10).epoch;
    let mut acknowledged = 0;
    for batch in 0..40u64 {
        let scopes: Vec<Scope> = (0..LEASE_REQUESTS_MAX as u64)
            .map(|number| Scope::File(file(1, 1 + batch * 10_000 + number)))
            .collect();
        assert_eq!(granted(&mut table, 1, &scopes, 10).scopes.len(), LEASE_REQUESTS_MAX);
        if let Some(recall) = table.recall(session(1), epoch, acknowledged, 10) {
            acknowledged = recall.number;
            assert_eq!(table.recall(session(1), epoch, acknowledged, 10), None);
        }
    }
    assert_eq!(
        table.recall_conflicts(DeviceId(2), &Footprint::file(file(1, 0)), false, 20),
        None,
        "the oldest is gone"
    );
    assert!(
        table.recall_conflicts(DeviceId(2), &Footprint::file(file(1, 1 + 39 * 10_000)), false, 20).is_some()
    );
    for run in 0..100 {
        let request = LeaseRequest { run, ..lease_request(3, &[Scope::File(file(2, 1))]) };
        // A repeated request is not ordered again, so it ends no earlier run.
        table.grant(SessionId { device: DeviceId(3), run }, &request, &nothing(), run == 0, &nothing(), 20);
    }
    assert!(table.sessions().filter(|(id, _)| id.device == DeviceId(3)).count() <= 16);
    // Whatever is named as read, whether it belongs to anybody or not, leaves nothing behind.
    let named =
        LeaseRequest { reads: (0..4096).map(|user| file(10_000 + user, 1)).collect(), ..exclusively(3) };
    let touched = Footprint::file(file(3, 1)).reading(Some(&named), |of| of == file(3, 1).principal);
    table.grant(session(3), &named, &touched, true, &nothing(), 20);
    assert_eq!(table.owners_used(), 1);
    assert_eq!(granted(&mut table, 4, &[Scope::File(file(2, 1))], 20).scopes.len(), 1);
}

/// Proves: a device that lets others wait for its acknowledgement, or for the end of its term, is granted
/// nothing for a while, longer each time; other devices are not affected.
#[test]
fn who_makes_others_wait_goes_without() {
    let mut table = LeaseTable::new(20_000, 1);
    let scope = Scope::File(file(1, 1));
    let mut now_ms = 10;
    let mut pauses = Vec::new();
    for round in 0..4 {
        let start_ms = now_ms;
        let grant = loop {
            let grant =
                table.grant(session(1), &lease_request(1, &[scope]), &nothing(), true, &nothing(), now_ms);
            if grant.term_ms > 0 {
                break grant;
            }
            now_ms += 1_000;
        };
        pauses.push(now_ms - start_ms);
        assert_eq!(grant.scopes, [scope]);
        assert!(table.recall_conflicts(DeviceId(2), &Footprint::file(file(1, 1)), false, now_ms).is_some());
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

/// Proves: a holder counts the term from the sending. It takes no new scopes from a grant that a recall has
/// overtaken, nothing from a grant that counts recalls it has not heard of, and nothing of another epoch
/// while it holds something. It loses everything when the time is over.
#[test]
fn holders() {
    let mut holder = LeaseHolder::default();
    let (one, two) = (file(1, 1), file(1, 2));
    let grant = |epoch, recalls, scopes: &[Scope]| LeaseGrant {
        epoch,
        recalls,
        term_ms: 960,
        scopes: scopes.to_vec(),
        exclusive_ms: 0,
        delegation: false,
        exclusive: Vec::new(),
        withheld: Withheld::default(),
    };
    assert!(!holder.must_ask(0));
    assert!(holder.granted(&grant(5, 0, &[Scope::File(one)]), 100, 150));
    assert!(holder.holds(one, 1_029) && !holder.holds(two, 150) && !holder.holds(one, 1_030));
    assert!(holder.must_ask(150));
    assert!(!holder.granted(&grant(6, 0, &[Scope::File(two)]), 160, 170), "it holds something of before");
    assert!(!holder.granted(&grant(5, 1, &[Scope::File(two)]), 160, 170), "a recall is on its way");
    assert!(!holder.holds(one, 1_040));
    let recall = Recall {
        epoch: 5,
        number: 2,
        scopes: vec![Scope::File(two)],
        exclusive: vec![],
        everything: false,
        delegation: false,
    };
    assert_eq!(holder.recalled(4, &recall), None);
    assert_eq!(holder.recalled(5, &recall), Some(RecalledLeases::default()));
    assert!(!holder.granted(&grant(5, 1, &[Scope::File(two)]), 200, 210), "it was recalled since");
    assert!(holder.holds(one, 1_120) && !holder.holds(two, 210), "what is held is held for longer");
    assert!(holder.granted(&grant(5, 2, &[Scope::Principal(two.principal)]), 220, 230));
    assert!(holder.holds(two, 230));
    let losses = holder.losses();
    let everything =
        Recall { epoch: 9, number: 4, everything: true, delegation: true, scopes: vec![], ..recall };
    let dropped = holder.recalled(5, &everything).expect("it concerns this");
    assert!(dropped.everything && dropped.scopes.len() == 2);
    assert!(holder.losses() > losses && !holder.holds(one, 231));
    assert!(holder.must_ask(231), "the server is to hear of it");
    holder.note_answer(holder.epoch(), holder.last_recall());
    assert!(!holder.must_ask(231));
    assert!(holder.granted(&grant(9, 4, &[Scope::File(one)]), 300, 310));
    holder.expire(2_000);
    assert_eq!((holder.count(), holder.holds(one, 310)), (0, false));
}

/// Proves: a device that only looks is granted leases of what it would read next, except for what others hold
/// exclusively, for which it does not wait.
#[test]
fn what_comes_next_is_waited_for_by_nobody() {
    let mut table = LeaseTable::new(TERM, 1);
    granted(&mut table, 3, &[Scope::File(file(9, 1))], 5);
    changes(&mut table, 1, file(9, 2), 10);
    let ahead =
        LeaseRequest { also: vec![file(9, 2), file(9, 3)], ..lease_request(2, &[Scope::File(file(9, 1))]) };
    let touched = Footprint::default().reading(Some(&ahead), |_| true);
    assert_eq!(table.recall_conflicts(DeviceId(2), &touched, false, 20), None);
    let grant = table.grant(session(2), &ahead, &touched, true, &nothing(), 20);
    assert_eq!(grant.scopes, [Scope::File(file(9, 1)), Scope::File(file(9, 3))]);
}
