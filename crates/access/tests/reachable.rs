//! The search for proofs: what it finds is proved, and it finds everything that the credentials imply.

use crate::common;

use common::*;
use holdfast_access::prove::reachable;
use holdfast_access::*;
use std::collections::{BTreeMap, BTreeSet};

/// The reference for the search: for each principal, all principals it speaks for by these credentials. Computed
/// by adding consequences until nothing new follows; restrictions are ignored and no proofs are made.
fn fixpoint(said: &[Credential], groups: &[Principal]) -> BTreeMap<Principal, BTreeSet<Principal>> {
    let mut speaks: BTreeMap<Principal, BTreeSet<Principal>> = BTreeMap::new();
    let mut edges = Vec::new();
    for credential in said {
        match &credential.statement {
            Statement::SpeaksFor { delegate, principal, .. }
                if credential.issuer == *principal
                    || principal.namer().as_ref() == Some(&credential.issuer) =>
            {
                edges.push((delegate.clone(), principal.clone()));
            }
            Statement::Runs { process, manifest } if credential.issuer == Principal::Machine => {
                let admits = groups.iter().filter(|group| group.admits(manifest) == Some(true));
                edges.extend(admits.map(|group| (Principal::Process(*process), group.clone())));
            }
            _ => {}
        }
    }
    loop {
        let before: usize = speaks.values().map(BTreeSet::len).sum();
        for (from, to) in &edges {
            let beyond = speaks.get(to).cloned().unwrap_or_default();
            let entry = speaks.entry(from.clone()).or_default();
            entry.insert(to.clone());
            entry.extend(beyond);
        }
        if speaks.values().map(BTreeSet::len).sum::<usize>() == before {
            return speaks;
        }
    }
}

/// Proves: in many small worlds the checker accepts every proof that is found, for that principal; and every
/// principal that can be reached is found.
#[test]
fn found_is_proved_and_all_is_found() {
    let mut found_in_all = 0;
    for seed in 0..400 {
        let mut numbers = Numbers(seed);
        let me = process(1);
        let hash = |byte: u8| holdfast_crypto::Digest([byte; 32]);
        let program = Predicate::new(vec![Term::Executable(hash(1))], Conditions::CLEAN).expect("a tree");
        let groups = [Principal::Such(program), Principal::Program(ProgramHash::of_executable(hash(2)))];
        let people = [
            me.clone(),
            process(2),
            user("alice"),
            group("staff"),
            key(1),
            key(2),
            named(1, "a"),
            named(2, "b"),
            groups[0].clone(),
            groups[1].clone(),
        ];
        let mut revocations = Revocations::new();
        revocations.started(process_name(1)).expect("room");
        revocations.started(process_name(2)).expect("room");
        let (mut credentials, mut said) = (Credentials::default(), Vec::new());
        for serial in 0..12 {
            let principal = numbers.pick(&people).clone();
            let issuer = principal.namer().unwrap_or_else(|| principal.clone());
            let statement = match numbers.below(5) {
                0 => Statement::Runs {
                    process: process_name(1 + numbers.below(2) as u64),
                    manifest: Manifest::of_executable(hash(1 + numbers.below(2) as u8), 0),
                },
                _ => Statement::SpeaksFor {
                    delegate: numbers.pick(&people).clone(),
                    principal,
                    scope: Scope::EVERYTHING,
                },
            };
            let issuer =
                if matches!(statement, Statement::Runs { .. }) { Principal::Machine } else { issuer };
            let credential = Credential { issuer: issuer.clone(), serial, expires_s: None, statement };
            let verified = match &issuer {
                Principal::Machine | Principal::Process(_) => {
                    VerifiedCredential::spoken(&issuer, credential.clone())
                }
                Principal::Key(_) => {
                    let keys = [signing_key(1), signing_key(2)];
                    let signer = keys.iter().find(|one| Principal::Key(one.public()) == issuer);
                    VerifiedCredential::signed(&credential.clone().sign(signer.expect("one of them")))
                }
                // Groups say nothing.
                _ => continue,
            };
            credentials.keep(verified.expect("theirs")).expect("room");
            said.push(credential);
        }
        let delegates = said.iter().filter_map(|credential| match &credential.statement {
            Statement::SpeaksFor { delegate, .. } => Some(delegate.clone()),
            _ => None,
        });
        let known: Vec<Principal> = delegates.chain(groups.clone()).collect();
        let expected = fixpoint(&said, &known).remove(&me).unwrap_or_default();
        let found = reachable(&me, &said, &groups);
        for (principal, proof) in &found {
            let proven = check(proof, &credentials, &revocations, 0);
            let proven = proven.unwrap_or_else(|error| panic!("seed {seed}, {principal}: {error}"));
            assert_eq!((proven.delegate(), proven.principal()), (&me, principal), "seed {seed}");
        }
        let found: BTreeSet<Principal> = found.into_iter().map(|(principal, _)| principal).collect();
        let expected: BTreeSet<Principal> = expected.into_iter().filter(|one| *one != me).collect();
        assert_eq!(found, expected, "seed {seed}");
        found_in_all += found.len();
    }
    assert!(found_in_all > 300, "{found_in_all}");
}

/// Proves: taking over endings of another store ends the same, and brings nothing back.
#[test]
fn endings_are_taken_over() {
    let mut kept = Revocations::new();
    kept.end(&key(1), Ending::Before(5)).expect("room");
    kept.end(&key(1), Ending::Serial(9)).expect("room");
    kept.end(&key(2), Ending::Everything).expect("room");
    let mut revocations = Revocations::new();
    revocations.end(&key(1), Ending::Serial(7)).expect("room");
    let before = revocations.generation();
    revocations.merge(&Revocations::decode(&kept.encode()).expect("stored so")).expect("room");
    assert!(revocations.generation() > before);
    for (issuer, serial, stands) in [
        (1, 4, false),
        (1, 5, true),
        (1, 7, false),
        (1, 9, false),
        (1, 10, true),
        (2, 99, false),
        (3, 0, true),
    ] {
        assert_eq!(revocations.is_valid(&key(issuer), serial), stands, "{issuer} {serial}");
    }
}
