//! Alias tables and revocation: an alias answers while all that it rests on stands, and not a look-up longer.

use crate::common;

use common::*;
use holdfast_access::prove::Prover;
use holdfast_access::*;
use holdfast_crypto::PublicKey;
use std::collections::BTreeSet;

/// Process 1 for user alice, by the machine's credential of this serial.
fn as_alice(serial: u64, expires_s: Option<u64>, revocations: &Revocations) -> Proven {
    let credential =
        Credential { expires_s, ..speaks_for(Principal::Machine, serial, process(1), user("alice")) };
    let (credentials, ids) = keep([credential]);
    let mut prover = Prover::new();
    prover.namers_word(ids[0], user("alice"));
    check(&prover.proof(), &credentials, revocations, 0).expect("a proof")
}

/// Process 1 for key 1, by process 2: key 1 says (process 2 ⇒ key 1), process 2 says (process 1 ⇒ process 2).
fn by_way_of_process_2(revocations: &Revocations) -> Proven {
    let (credentials, ids) =
        keep([speaks_for(key(1), 7, process(2), key(1)), speaks_for(process(2), 9, process(1), process(2))]);
    let mut prover = Prover::new();
    let whole = prover.own_word(ids[0], key(1));
    let part = prover.own_word(ids[1], process(2));
    prover.chain(part, whole);
    check(&prover.proof(), &credentials, revocations, 0).expect("a proof")
}

#[test]
fn entry_0_is_the_process_itself_and_stays() {
    let mut revocations = revocations();
    let mut table = AliasTable::new(process_name(1), &revocations).expect("it lives");
    assert_eq!(table.look_up(0, &revocations, 0).map(Alias::principal), Ok(&process(1)));
    assert_eq!(table.remove(0), Err(AccessError::NoSuchAlias(0)));
    revocations.stopped(process_name(1));
    assert_eq!(table.look_up(0, &revocations, 0), Err(AccessError::Ended));
    assert_eq!(AliasTable::new(process_name(1), &revocations).err(), Some(AccessError::Ended));
    assert_eq!(AliasTable::new(process_name(99), &revocations).err(), Some(AccessError::Ended));
}

#[test]
fn a_table_takes_only_proofs_about_its_process() {
    let revocations = revocations();
    let mut table = AliasTable::new(process_name(2), &revocations).expect("it lives");
    assert_eq!(table.add(as_alice(1, None, &revocations)), Err(AccessError::NotAboutYou(process(1))));
    assert_eq!(table.look_up(1, &revocations, 0), Err(AccessError::NoSuchAlias(1)));
}

/// Each way to end a credential ends the aliases that rest on it, and no others.
#[test]
fn revocation_takes_effect_at_the_next_look_up() {
    type Change = fn(&mut Revocations);
    let acts: [(&str, Change, bool, bool); 10] = [
        ("nothing", |_| {}, true, true),
        ("another serial", |s| s.end(&Principal::Machine, Ending::Serial(2)).expect("room"), true, true),
        ("another issuer", |s| s.end(&key(2), Ending::Everything).expect("room"), true, true),
        ("serials before it", |s| s.end(&Principal::Machine, Ending::Before(3)).expect("room"), true, true),
        ("its serial", |s| s.end(&Principal::Machine, Ending::Serial(3)).expect("room"), false, true),
        ("serials up to it", |s| s.end(&Principal::Machine, Ending::Before(4)).expect("room"), false, true),
        ("all of its issuer", |s| s.end(&Principal::Machine, Ending::Everything).expect("room"), false, true),
        ("first link", |s| s.end(&key(1), Ending::Serial(7)).expect("room"), true, false),
        ("second link", |s| s.end(&process(2), Ending::Serial(9)).expect("room"), true, false),
        ("the process between", |s| s.stopped(process_name(2)), true, false),
    ];
    for (what, act, alice_stands, key_stands) in acts {
        let mut revocations = revocations();
        let mut table = AliasTable::new(process_name(1), &revocations).expect("it lives");
        let alice = table.add(as_alice(3, None, &revocations)).expect("room");
        let by_key = table.add(by_way_of_process_2(&revocations)).expect("room");
        for index in [0, alice, by_key] {
            table.look_up(index, &revocations, 0).expect("all stand");
        }
        act(&mut revocations);
        let copy = table.clone();
        assert_eq!(table.look_up(alice, &revocations, 0).is_ok(), alice_stands, "{what}");
        assert_eq!(table.look_up(by_key, &revocations, 0).is_ok(), key_stands, "{what}");
        table.look_up(0, &revocations, 0).expect("the process lives");
        let mut swept = copy;
        let gone: Vec<u16> = [(alice, alice_stands), (by_key, key_stands)]
            .into_iter()
            .filter_map(|(index, stands)| (!stands).then_some(index))
            .collect();
        assert_eq!(swept.sweep(&revocations, 0), gone, "{what}");
        assert_eq!(swept.sweep(&revocations, 0), Vec::<u16>::new(), "{what}: swept once");
    }
}

/// What was proved before a revocation and added after it is refused as well.
#[test]
fn a_proof_checked_before_a_revocation_is_no_use_after_it() {
    let mut revocations = revocations();
    let proven = as_alice(3, None, &revocations);
    revocations.end(&Principal::Machine, Ending::Serial(3)).expect("room");
    let mut table = AliasTable::new(process_name(1), &revocations).expect("it lives");
    let index = table.add(proven).expect("room");
    let revoked = AccessError::Revoked { issuer: Principal::Machine, serial: 3 };
    assert_eq!(table.look_up(index, &revocations, 0), Err(revoked));
    assert_eq!(table.look_up(index, &revocations, 0), Err(AccessError::NoSuchAlias(index)), "it was removed");
}

#[test]
fn an_alias_expires_with_its_first_premise() {
    let revocations = revocations();
    let mut table = AliasTable::new(process_name(1), &revocations).expect("it lives");
    let index = table.add(as_alice(3, Some(50), &revocations)).expect("room");
    table.look_up(index, &revocations, 50).expect("its last second counts");
    let expired = AccessError::Expired { issuer: Principal::Machine, serial: 3 };
    assert_eq!(table.look_up(index, &revocations, 51), Err(expired));
}

#[test]
fn a_table_is_bounded_and_its_places_are_used_again() {
    let revocations = revocations();
    let mut table = AliasTable::new(process_name(1), &revocations).expect("it lives");
    for index in 1..ALIASES_MAX as u16 {
        assert_eq!(table.add(as_alice(3, None, &revocations)), Ok(index));
    }
    assert_eq!(table.add(as_alice(3, None, &revocations)), Err(AccessError::TooManyAliases));
    table.remove(5).expect("it is there");
    assert_eq!(table.look_up(5, &revocations, 0), Err(AccessError::NoSuchAlias(5)));
    assert_eq!(table.remove(5), Err(AccessError::NoSuchAlias(5)));
    assert_eq!(table.remove(64), Err(AccessError::NoSuchAlias(64)));
    assert_eq!(table.add(as_alice(3, None, &revocations)), Ok(5));
    assert_eq!(table.entries().count(), ALIASES_MAX);
}

/// A restricted alias never has the digest of the whole principal, so a guard that compares digests is not fooled.
#[test]
fn a_restriction_changes_the_stamp() {
    let whole = Alias::attested(user("alice"), Scope::EVERYTHING);
    let part = Alias::attested(user("alice"), scope(&[Operation::Read], &[blocks(0, 1)]));
    let other_part = Alias::attested(user("alice"), scope(&[Operation::Read], &[blocks(0, 2)]));
    assert_eq!(whole.digest(), user("alice").digest());
    assert_ne!(part.digest(), whole.digest());
    assert_ne!(part.digest(), other_part.digest());
}

/// Endings against a plain set of (issuer, serial), over a restart too.
#[test]
fn what_has_ended_never_stands_again() {
    for seed in 0..20 {
        let mut numbers = Numbers(seed);
        let issuers = [key(1), key(2), Principal::Machine, process(1), process(2)];
        let mut revocations = revocations();
        let mut ended: BTreeSet<(Principal, u64)> = BTreeSet::new();
        for _ in 0..60 {
            let (issuer, serial) = (numbers.pick(&issuers).clone(), numbers.next() % 12);
            let (ending, hit): (Ending, Box<dyn Fn(u64) -> bool>) = match numbers.below(12) {
                0 => (Ending::Everything, Box::new(|_| true)),
                1..4 => (Ending::Before(serial), Box::new(move |one| one < serial)),
                _ => (Ending::Serial(serial), Box::new(move |one| one == serial)),
            };
            let generation = revocations.generation();
            revocations.end(&issuer, ending).expect("room");
            ended.extend((0..12).filter(|one| hit(*one)).map(|one| (issuer.clone(), one)));
            assert!(revocations.generation() > generation, "every ending is noticed");
            for issuer in &issuers {
                for one in 0..12 {
                    let stands = !ended.contains(&(issuer.clone(), one));
                    assert_eq!(revocations.is_valid(issuer, one), stands, "seed {seed}: {issuer} {one}");
                }
            }
        }
        let reopened = Revocations::decode(&revocations.encode()).expect("what was stored");
        for issuer in &issuers {
            for one in 0..12 {
                // Processes of an earlier run say nothing any more; the machine speaks anew.
                let stands = match issuer {
                    Principal::Process(_) => false,
                    Principal::Machine => true,
                    _ => revocations.is_valid(issuer, one),
                };
                assert_eq!(reopened.is_valid(issuer, one), stands, "seed {seed}: {issuer} {one}");
            }
        }
    }
}

/// An ending is a credential itself: only the issuer can end its credentials.
#[test]
fn endings_are_heard_like_any_word() {
    let mut revocations = revocations();
    let ends = |issuer: Principal| Credential {
        issuer,
        serial: 100,
        expires_s: None,
        statement: Statement::Ends(Ending::Before(50)),
    };
    revocations.end_by(&verified(ends(key(1)))).expect("room");
    assert!(
        !revocations.is_valid(&key(1), 49)
            && revocations.is_valid(&key(1), 50)
            && revocations.is_valid(&key(2), 49)
    );
    let other = verified(speaks_for(key(1), 60, process(1), key(1)));
    assert!(matches!(revocations.end_by(&other), Err(AccessError::Malformed { .. })));
    assert_eq!(
        VerifiedCredential::spoken(&process(1), ends(key(1))),
        Err(AccessError::NotTheirs { issuer: key(1) }),
        "a process does not end what a key said"
    );
}

#[test]
fn standing_is_bounded_and_refuses_loudly() {
    let mut revocations = Revocations::new();
    for serial in 0..SERIALS_MAX as u64 {
        revocations.end(&key(1), Ending::Serial(serial * 2)).expect("room");
    }
    assert_eq!(revocations.end(&key(1), Ending::Serial(1)), Err(AccessError::TooManyIssuers));
    revocations.end(&key(1), Ending::Before(10_000)).expect("this always has room");
    revocations.end(&key(1), Ending::Serial(20_000)).expect("and made room");
    assert!(!revocations.is_valid(&key(1), 1) && !revocations.is_valid(&key(1), 20_000));
    let key_of = |number: u64| {
        let mut bytes = [0xEE; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Principal::Key(PublicKey(bytes))
    };
    for number in 1..ISSUERS_MAX as u64 {
        revocations.end(&key_of(number), Ending::Everything).expect("room");
    }
    assert_eq!(revocations.end(&key_of(0), Ending::Everything), Err(AccessError::TooManyIssuers));
    revocations.end(&key(1), Ending::Everything).expect("a known issuer always has room");
    Revocations::decode(&revocations.encode()).expect("a full store reads back");
    let mut revocations = Revocations::new();
    for serial in 0..3 * SERIALS_MAX as u64 {
        revocations
            .end(&Principal::Machine, Ending::Serial(serial))
            .expect("the machine's own are not bounded");
    }
    assert_eq!(
        revocations.encode(),
        Revocations::new().encode(),
        "what it spoke is not heard in a later run"
    );
}

/// Ended processes take no space, however many there were.
#[test]
fn ended_processes_take_no_room() {
    let mut revocations = Revocations::new();
    for number in 0..3 * ISSUERS_MAX as u64 {
        revocations.started(process_name(number)).expect("room");
        revocations.end(&process(number), Ending::Serial(1)).expect("room");
        assert!(revocations.is_valid(&process(number), 2) && !revocations.is_valid(&process(number), 1));
        revocations.stopped(process_name(number));
        assert!(!revocations.is_valid(&process(number), 2));
    }
    assert_eq!(revocations.encode(), Revocations::new().encode());
}
