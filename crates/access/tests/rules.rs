//! Each inference rule, where it applies and where it must not.

use crate::common;

use common::*;
use holdfast_access::prove::Prover;
use holdfast_access::*;

const NOW: u64 = 1_000;

fn verdict(steps: Vec<Step>, credentials: &Credentials) -> Result<Proven, AccessError> {
    check(&Proof(steps), credentials, &revocations(), NOW)
}

fn refused_because(steps: Vec<Step>, credentials: &Credentials, why: &str) {
    match verdict(steps, credentials) {
        Err(error) => assert!(error.to_string().contains(why), "{error}"),
        Ok(proven) => panic!("{} ⇒ {}", proven.delegate(), proven.principal()),
    }
}

#[track_caller]
fn concludes(proven: &Proven, delegate: &Principal, principal: &Principal, scope: &Scope) {
    assert_eq!((proven.delegate(), proven.principal(), proven.scope()), (delegate, principal, scope));
}

/// *Itself*: everybody speaks for themselves, and it rests on nothing.
#[test]
fn itself() {
    for principal in [process(1), user("alice"), key(1), Principal::Machine] {
        let proven =
            verdict(vec![Step::Itself(principal.clone())], &Credentials::default()).expect("a proof");
        concludes(&proven, &principal, &principal, &Scope::EVERYTHING);
        assert!(proven.premises().is_empty());
    }
}

/// *Namer*: the machine speaks for its users and groups, a key for its names; nobody speaks for a process, a
/// program or a key this way.
#[test]
fn namer() {
    let none = Credentials::default();
    let namers = [
        (user("alice"), Principal::Machine),
        (group("staff"), Principal::Machine),
        (named(3, "bob"), key(3)),
    ];
    for (name, namer) in namers {
        concludes(
            &verdict(vec![Step::Namer(name.clone())], &none).expect("a proof"),
            &namer,
            &name,
            &Scope::EVERYTHING,
        );
    }
    let program = Principal::Program(manifest().program());
    let such = Principal::Such(Predicate::new(vec![Term::Uid(1)], Conditions::CLEAN).expect("a predicate"));
    for other in [process(1), key(1), program, such, Principal::Package(package(1, "p")), Principal::Machine]
    {
        refused_because(vec![Step::Namer(other)], &none, "nobody hands out");
    }
}

/// *Constituent*: by the machine's manifest, for each kind of group.
#[test]
fn constituent() {
    let (credentials, ids) =
        keep([runs(1, 1, manifest()), speaks_for(process(1), 1, process(2), process(1))]);
    let such = |term| Principal::Such(Predicate::new(vec![term], Conditions::CLEAN).expect("a predicate"));
    let groups = [
        Principal::Program(manifest().program()),
        Principal::Package(package(9, "holdfast")),
        such(Term::Component(name("fat"))),
    ];
    for group in groups {
        let proven = verdict(vec![Step::Constituent(ids[0], group.clone())], &credentials).expect("a proof");
        concludes(&proven, &process(1), &group, &Scope::EVERYTHING);
        assert_eq!(proven.premises().len(), 1);
        let manifest_wanted = vec![Step::Constituent(ids[1], group)];
        refused_because(manifest_wanted, &credentials, "not a manifest");
    }
    let outside = [
        Principal::Program(ProgramHash::of_executable(manifest().executable)),
        Principal::Package(package(8, "holdfast")),
        Principal::Package(package(9, "other")),
        such(Term::Component(name("vfs"))),
    ];
    for group in outside {
        refused_because(vec![Step::Constituent(ids[0], group)], &credentials, "does not satisfy");
    }
    for no_group in [user("alice"), group("staff"), key(9), process(1), Principal::Machine] {
        refused_because(vec![Step::Constituent(ids[0], no_group)], &credentials, "not one of processes");
    }
}

/// *Constituent* does not believe a process, or a key, about what a process runs.
#[test]
fn only_the_machine_issues_manifests() {
    for issuer in [process(1), key(1)] {
        let (credentials, ids) = keep([Credential { issuer, ..runs(1, 1, manifest()) }]);
        let group = Principal::Program(manifest().program());
        refused_because(vec![Step::Constituent(ids[0], group)], &credentials, "only the machine's word");
    }
}

/// Each condition excludes a process from every group that does not tolerate it by name.
#[test]
fn conditions_exclude() {
    for condition in Condition::ALL {
        let weak = Manifest { conditions: Conditions::CLEAN.with(condition), ..manifest() };
        let (credentials, ids) = keep([runs(1, 1, weak)]);
        let uid = vec![Term::Uid(1000)];
        let strict = Principal::Such(Predicate::new(uid.clone(), Conditions::CLEAN).expect("a predicate"));
        let others = Condition::ALL.into_iter().filter(|one| *one != condition);
        let other = others.fold(Conditions::CLEAN, Conditions::with);
        let lenient_elsewhere = Principal::Such(Predicate::new(uid.clone(), other).expect("a predicate"));
        let clean = Principal::Program(manifest().program());
        let package = Principal::Package(package(9, "holdfast"));
        for group in [strict, lenient_elsewhere, clean, package] {
            refused_because(vec![Step::Constituent(ids[0], group)], &credentials, "does not satisfy");
        }
        let tolerant = Predicate::new(uid, Conditions::CLEAN.with(condition)).expect("a predicate");
        verdict(vec![Step::Constituent(ids[0], Principal::Such(tolerant))], &credentials).expect("a proof");
    }
}

/// *Handoff*: A says (B ⇒ A); likewise the machine about users, and a key about its names.
#[test]
fn handoff() {
    let (credentials, ids) = keep([
        speaks_for(key(1), 1, process(1), key(1)),
        speaks_for(Principal::Machine, 1, key(1), user("alice")),
        speaks_for(Principal::Machine, 2, user("alice"), group("staff")),
        speaks_for(key(3), 1, key(4), named(3, "bob")),
    ]);
    let mut prover = Prover::new();
    let process_for_key = prover.own_word(ids[0], key(1));
    let key_for_alice = prover.namers_word(ids[1], user("alice"));
    let alice_for_staff = prover.namers_word(ids[2], group("staff"));
    let process_for_alice = prover.chain(process_for_key, key_for_alice);
    prover.chain(process_for_alice, alice_for_staff);
    let proven = check(&prover.proof(), &credentials, &revocations(), NOW).expect("a proof");
    concludes(&proven, &process(1), &group("staff"), &Scope::EVERYTHING);
    assert_eq!(proven.premises().len(), 3);

    let mut prover = Prover::new();
    prover.namers_word(ids[3], named(3, "bob"));
    let proven = check(&prover.proof(), &credentials, &revocations(), NOW).expect("a proof");
    concludes(&proven, &key(4), &named(3, "bob"), &Scope::EVERYTHING);
}

/// *Handoff* does not believe those who speak about others.
#[test]
fn nobody_gives_away_what_is_not_theirs() {
    let (credentials, ids) = keep([
        speaks_for(key(2), 1, process(2), user("alice")),
        speaks_for(key(2), 2, process(2), key(1)),
        speaks_for(process(2), 1, process(2), group("staff")),
        speaks_for(process(2), 2, process(2), process(1)),
        speaks_for(Principal::Machine, 1, process(2), key(1)),
        speaks_for(key(2), 3, process(2), named(3, "bob")),
        runs(2, 2, manifest()),
    ]);
    let targets = [user("alice"), key(1), group("staff"), process(1), key(1), named(3, "bob")];
    for (id, target) in ids.iter().zip(targets) {
        let because = "does not show that the issuer speaks";
        refused_because(vec![Step::Itself(target.clone()), Step::Handoff(*id, 0)], &credentials, because);
        if target.namer().is_some() {
            refused_because(vec![Step::Namer(target), Step::Handoff(*id, 0)], &credentials, because);
        }
    }
    let manifest_is_no_delegation = vec![Step::Itself(process(2)), Step::Handoff(ids[6], 0)];
    refused_because(manifest_is_no_delegation, &credentials, "delegates nothing");
}

/// *Handoff* demands an issuer without restriction: a delegate that may only read cannot pass on writing, nor
/// even reading in the principal's name. In its own name it can, and *chain* intersects.
#[test]
fn a_restricted_delegate_hands_on_no_more_than_it_has() {
    let read = scope(&[Operation::Read], &[blocks(10, 10)]);
    let (credentials, ids) = keep([
        within(key(1), 1, process(1), key(1), read.clone()),
        speaks_for(process(1), 1, process(2), key(1)),
        within(
            process(1),
            2,
            process(2),
            process(1),
            scope(&[Operation::Read, Operation::Write], &[blocks(15, 50)]),
        ),
    ]);
    let mut prover = Prover::new();
    let restricted = prover.own_word(ids[0], key(1));
    let mut forged = prover.clone();
    forged.step(Step::Handoff(ids[1], restricted));
    refused_because(forged.proof().0, &credentials, "only with restrictions");
    let in_its_own_name = prover.own_word(ids[2], process(1));
    prover.chain(in_its_own_name, restricted);
    let proven = check(&prover.proof(), &credentials, &revocations(), NOW).expect("a proof");
    concludes(&proven, &process(2), &key(1), &scope(&[Operation::Read], &[blocks(15, 5)]));
}

/// *Chain*: only where the ends meet, and only if something is left.
#[test]
fn chain() {
    let (credentials, ids) = keep([
        within(process(1), 1, process(2), process(1), scope(&[Operation::Read], &[blocks(0, 10)])),
        within(process(2), 1, process(3), process(2), scope(&[Operation::Write], &[blocks(0, 10)])),
    ]);
    let ends_apart = vec![Step::Itself(process(1)), Step::Itself(process(2)), Step::Chain(0, 1)];
    refused_because(ends_apart, &credentials, "not the second step's delegate");
    let mut prover = Prover::new();
    let first = prover.own_word(ids[1], process(2));
    let second = prover.own_word(ids[0], process(1));
    let mut backwards = prover.clone();
    backwards.chain(second, first);
    refused_because(backwards.proof().0, &credentials, "not the second step's delegate");
    prover.chain(first, second);
    assert_eq!(check(&prover.proof(), &credentials, &revocations(), NOW), Err(AccessError::EmptyScope));
}

/// *Narrow*: to less, never to more.
#[test]
fn narrow() {
    let wide = scope(&[Operation::Read, Operation::Write], &[blocks(0, 10), blocks(20, 10)]);
    let (credentials, ids) = keep([within(key(1), 1, process(1), key(1), wide.clone())]);
    let steps = |to: &Scope| {
        let mut prover = Prover::new();
        let from = prover.own_word(ids[0], key(1));
        prover.step(Step::Narrow(from, to.clone()));
        prover.proof().0
    };
    for less in [
        wide.clone(),
        scope(&[Operation::Read], &[blocks(22, 3)]),
        scope(&[Operation::Write], &[blocks(0, 1)]),
    ] {
        let proven = verdict(steps(&less), &credentials).expect("a proof");
        concludes(&proven, &process(1), &key(1), &less);
    }
    let objects = |ranges: &[Objects]| Limit::Only(ranges.to_vec());
    for more in [
        Scope::EVERYTHING,
        scope(&[Operation::Chown], &[blocks(0, 1)]),
        scope(&[Operation::Read], &[blocks(0, 11)]),
        scope(&[Operation::Read], &[blocks(9, 12)]),
        Scope::new(Limit::Every, objects(&[blocks(0, 1)])).expect("a scope"),
        Scope::new(operations(&[Operation::Read]), Limit::Every).expect("a scope"),
    ] {
        refused_because(steps(&more), &credentials, "not within the wider");
    }
}

/// A step uses only steps before it, so a proof cannot rest on itself.
#[test]
fn no_step_rests_on_itself_or_a_later_one() {
    let (credentials, ids) = keep([speaks_for(key(1), 1, process(1), key(1))]);
    let everything = Scope::EVERYTHING;
    for steps in [
        vec![Step::Chain(0, 0)],
        vec![Step::Narrow(0, everything.clone())],
        vec![Step::Handoff(ids[0], 0)],
        vec![Step::Handoff(ids[0], 1), Step::Itself(key(1))],
        vec![Step::Itself(key(1)), Step::Chain(0, 1)],
        vec![Step::Itself(key(1)), Step::Narrow(255, everything)],
    ] {
        refused_because(steps, &credentials, "not before it");
    }
}

/// Premises must have been heard, must stand, and count up to their last second.
#[test]
fn premises_must_stand() {
    let credential = Credential { expires_s: Some(NOW), ..speaks_for(key(1), 5, process(1), key(1)) };
    let (credentials, ids) = keep([credential]);
    let mut prover = Prover::new();
    prover.own_word(ids[0], key(1));
    let proof = prover.proof();
    let mut revocations = revocations();
    check(&proof, &credentials, &revocations, NOW).expect("a proof");
    let issuer = key(1);
    let expired = AccessError::Expired { issuer: issuer.clone(), serial: 5 };
    assert_eq!(check(&proof, &credentials, &revocations, NOW + 1), Err(expired));
    assert_eq!(
        check(&proof, &Credentials::default(), &revocations, NOW),
        Err(AccessError::UnknownCredential(ids[0]))
    );
    revocations.end(&issuer, Ending::Serial(5)).expect("room");
    assert_eq!(
        check(&proof, &credentials, &revocations, NOW),
        Err(AccessError::Revoked { issuer, serial: 5 })
    );
}

/// The example in the paper's 4.9: client P speaks for user A by A's delegation, VFS_P for P, so VFS_P for A;
/// and P is a driver because of its program's hash.
#[test]
fn the_papers_example() {
    let (credentials, ids) = keep([
        speaks_for(Principal::Machine, 1, process(1), user("alice")),
        speaks_for(process(1), 1, process(2), process(1)),
    ]);
    let mut prover = Prover::new();
    let client = prover.namers_word(ids[0], user("alice"));
    let file_system = prover.own_word(ids[1], process(1));
    prover.chain(file_system, client);
    let proven = check(&prover.proof(), &credentials, &revocations(), NOW).expect("a proof");
    concludes(&proven, &process(2), &user("alice"), &Scope::EVERYTHING);
}
