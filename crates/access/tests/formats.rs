//! The stored and signed formats, held by golden vectors, and hostile bytes.

use crate::common;

use common::*;
use holdfast_access::*;
use holdfast_crypto::{Digest, decode, encode};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest_of(bytes: &[u8]) -> String {
    holdfast_crypto::DigestKey::WELL_KNOWN.digest(holdfast_crypto::Domain::LocalRecord, bytes).short()
}

/// One principal of each kind, as bytes.
#[test]
fn principals_are_stored_so() {
    let such = Predicate::new(
        vec![Term::All(2), Term::Component(name("fat")), Term::Not, Term::Uid(0)],
        Conditions::CLEAN.with(Condition::Interpreter),
    );
    let public = hex(&signing_key(1).public().0);
    let table = [
        (Principal::Machine, "00".to_owned()),
        (user("alice"), "0105000000616c696365".to_owned()),
        (group("staff"), "02050000007374616666".to_owned()),
        (key(1), format!("03{public}")),
        (named(1, "bob"), format!("04{public}03000000626f62")),
        (process(258), format!("05{}0201000000000000", "07".repeat(16))),
        (Principal::Program(ProgramHash(Digest([5; 32]))), format!("06{}", "05".repeat(32))),
        (Principal::Package(package(1, "p")), format!("07{public}0100000070")),
        (
            Principal::Such(such.expect("a tree")),
            "0804000000".to_owned() + "0002" + "0603000000666174" + "02" + "0800000000" + "02",
        ),
    ];
    for (principal, bytes) in table {
        assert_eq!(hex(&encode(&principal)), bytes, "{principal}");
        assert_eq!(decode(&encode(&principal)), Ok(principal));
    }
}

#[test]
fn lists_scopes_and_endings_are_stored_so() {
    let mut acl = Acl::of(group("g"), Access::Read).expect("room");
    acl.set(user("u"), Access::ReadWrite).expect("room");
    assert_eq!(hex(&encode(&acl)), "020000000101000000750102010000006700");
    assert_eq!(hex(&encode(&Scope::EVERYTHING)), "0000");
    let restricted = scope(&[Operation::Format, Operation::Read], &[blocks(1, 2)]);
    let range = "01000000000000000000000000000001".to_owned() + "02000000000000000000000000000001";
    assert_eq!(hex(&encode(&restricted)), "01020000000005".to_owned() + "0101000000" + &range);
    for (ending, bytes) in [
        (Ending::Serial(1), "000100000000000000"),
        (Ending::Before(2), "010200000000000000"),
        (Ending::Everything, "02"),
    ] {
        assert_eq!(hex(&encode(&ending)), bytes);
    }
}

/// Digests that are stored or signed: a change of any of them is a change of format.
#[test]
fn digests_stay() {
    let mut revocations = Revocations::new();
    revocations.end(&key(1), Ending::Before(7)).expect("room");
    revocations.end(&key(1), Ending::Serial(9)).expect("room");
    revocations.end(&key(2), Ending::Everything).expect("room");
    let credential = Credential {
        expires_s: Some(1_000),
        ..within(key(1), 3, process(1), key(1), scope(&[Operation::Read], &[blocks(5, 6)]))
    };
    let proof = Proof(vec![
        Step::Itself(key(1)),
        Step::Handoff(credential.id(), 0),
        Step::Narrow(1, Scope::EVERYTHING),
        Step::Chain(2, 1),
        Step::Namer(user("a")),
        Step::Constituent(credential.id(), group("g")),
    ]);
    let alias = Alias::attested(user("alice"), scope(&[Operation::Read], &[blocks(5, 6)]));
    let found = [
        ("principal", user("alice").digest().short()),
        ("alias", alias.digest().short()),
        ("program", manifest().program().0.short()),
        ("executable", ProgramHash::of_executable(Digest([1; 32])).0.short()),
        ("credential", credential.id().to_string()),
        ("manifest", runs(1, 1, manifest()).id().to_string()),
        ("signed", digest_of(&credential.clone().sign(&signing_key(1)))),
        ("proof", digest_of(&encode(&proof))),
        ("revocations", digest_of(&revocations.encode())),
    ];
    let golden = [
        ("principal", "02923ec9a03c"),
        ("alias", "9e814587bc59"),
        ("program", "ecfcc9fbd9bb"),
        ("executable", "8d3a9008cc39"),
        ("credential", "5f6febf78798"),
        ("manifest", "3b71e39cf24f"),
        ("signed", "8945b40c1844"),
        ("proof", "0e5c9726da4e"),
        ("revocations", "8ffab00dc8d6"),
    ];
    let golden: Vec<(&str, String)> = golden.map(|(what, digest)| (what, digest.to_owned())).to_vec();
    assert_eq!(found.to_vec(), golden);
}

/// A signed credential with any bit changed, cut or lengthened anywhere is not heard.
#[test]
fn a_signature_covers_every_bit() {
    let credential = within(key(1), 3, process(1), key(1), scope(&[Operation::Read], &[blocks(5, 6)]));
    let bytes = credential.clone().sign(&signing_key(1));
    assert_eq!(
        VerifiedCredential::signed(&bytes).map(|verified| verified.credential().clone()),
        Ok(credential.clone())
    );
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(VerifiedCredential::signed(&changed).is_err(), "bit {bit}");
    }
    for length in 0..bytes.len() {
        assert!(VerifiedCredential::signed(&bytes[..length]).is_err(), "cut to {length}");
    }
    assert!(VerifiedCredential::signed(&[&bytes[..], &[0]].concat()).is_err());
    assert!(VerifiedCredential::signed(&vec![0; CREDENTIAL_BYTES_MAX + 1]).is_err());
}

/// A key signs for itself only; others speak for themselves only.
#[test]
fn words_are_put_into_nobodys_mouth() {
    for issuer in [key(2), user("alice"), Principal::Machine, process(1), named(1, "bob")] {
        let credential = speaks_for(issuer.clone(), 1, process(2), issuer);
        assert!(VerifiedCredential::signed(&credential.sign(&signing_key(1))).is_err());
    }
    let of = |issuer: &Principal| speaks_for(issuer.clone(), 1, process(2), issuer.clone());
    for speaker in [process(1), Principal::Machine, user("alice"), key(1)] {
        for issuer in [process(1), process(2), Principal::Machine, user("alice"), key(1)] {
            let speaks = matches!(speaker, Principal::Process(_) | Principal::Machine);
            let verified = VerifiedCredential::spoken(&speaker, of(&issuer));
            assert_eq!(verified.is_ok(), speaks && speaker == issuer, "{speaker} {issuer}");
        }
    }
}

#[test]
fn credentials_and_proofs_are_bounded() {
    let mut credentials = Credentials::default();
    let word = |serial| verified(speaks_for(process(1), serial, process(2), process(1)));
    let mut ids = Vec::new();
    for serial in 0..CREDENTIALS_MAX as u64 {
        ids.push(credentials.keep(word(serial)).expect("room"));
    }
    assert_eq!(credentials.keep(word(999)), Err(AccessError::TooManyCredentials));
    assert_eq!(credentials.keep(word(3)), Ok(ids[3]), "one that is there is no more");
    assert!(credentials.forget(ids[0]) && !credentials.forget(ids[0]));
    credentials.keep(word(999)).expect("room again");
    let judge = |count| {
        let steps = vec![Step::Itself(process(1)); count];
        check(&Proof(steps), &credentials, &revocations(), 0).map(|_| ())
    };
    assert_eq!(judge(0), Err(AccessError::BadLength));
    assert_eq!(judge(1), Ok(()));
    assert_eq!(judge(STEPS_MAX), Ok(()));
    assert_eq!(judge(STEPS_MAX + 1), Err(AccessError::BadLength));
}

/// The costliest proof there can be (64 steps, each a chain of the widest scopes) is judged.
#[test]
fn the_largest_proof_is_judged() {
    let wide: Vec<Objects> = (0..RANGES_MAX as u64).map(|number| blocks(number * 2, 1)).collect();
    let wide = Scope::new(Limit::Every, Limit::Only(wide)).expect("a scope");
    let (credentials, ids) = keep([within(process(1), 1, process(1), process(1), wide.clone())]);
    let mut steps = vec![Step::Itself(process(1)), Step::Handoff(ids[0], 0)];
    steps.extend((2..STEPS_MAX).map(|step| Step::Chain(step as u8 - 1, 1)));
    let proven = check(&Proof(steps), &credentials, &revocations(), 0).expect("a proof");
    assert_eq!((proven.scope(), proven.premises().len()), (&wide, 1));
}

/// Bytes changed at random: every format is refused or reads as a value that writes the same bytes.
#[test]
fn hostile_bytes_never_panic() {
    let mut revocations = Revocations::new();
    revocations.end(&key(1), Ending::Serial(9)).expect("room");
    let such = Predicate::new(vec![Term::Not, Term::Component(name("fat"))], Conditions::CLEAN);
    let such = Principal::Such(such.expect("a tree"));
    let proof =
        Proof(vec![Step::Itself(such.clone()), Step::Narrow(0, scope(&[Operation::Read], &[blocks(1, 2)]))]);
    let originals = [
        encode(&Acl::of(such, Access::Read).expect("room")),
        encode(&proof),
        encode(&runs(1, 1, manifest())),
        runs(1, 1, manifest()).sign(&signing_key(1)),
        revocations.encode(),
    ];
    let mut numbers = Numbers(3);
    let mut read = 0;
    for _ in 0..20_000 {
        let mut bytes = numbers.pick(&originals).clone();
        for _ in 0..1 + numbers.below(3) {
            let place = numbers.below(bytes.len());
            match numbers.below(4) {
                0 => bytes[place] = numbers.next() as u8,
                1 => bytes[place] ^= 1 << numbers.below(8),
                2 => bytes.truncate(place.max(1)),
                _ => bytes[place] = [0, 1, 255][numbers.below(3)],
            }
        }
        if let Ok(acl) = decode::<Acl>(&bytes) {
            assert_eq!(encode(&acl), bytes);
            read += 1;
        }
        if let Ok(proof) = decode::<Proof>(&bytes) {
            assert_eq!(encode(&proof), bytes);
            let _ = check(&proof, &Credentials::default(), &revocations, 0);
            read += 1;
        }
        if let Ok(credential) = decode::<Credential>(&bytes) {
            assert_eq!(encode(&credential), bytes);
            read += 1;
        }
        if let Ok(revocations) = Revocations::decode(&bytes) {
            assert_eq!(revocations.encode(), bytes);
            read += 1;
        }
        let _ = VerifiedCredential::signed(&bytes);
    }
    assert!(read > 1_000, "some changes still read: {read}");
}

/// Lengths that promise gigabytes are refused for want of them, without taking memory for them.
#[test]
fn huge_lengths_are_refused() {
    let huge = [0xFF; 4];
    assert!(decode::<Acl>(&huge).is_err());
    assert!(decode::<Proof>(&huge).is_err());
    assert!(decode::<Name>(&huge).is_err());
    assert!(decode::<Predicate>(&huge).is_err());
    assert!(Revocations::decode(&[0, 0xFF, 0xFF, 0xFF, 0xFF]).is_err());
}
