//! Which requests are signed: each rule by name, and random hostile requests against an observer who knows
//! every signature ever made.

use super::*;
use crate::certificate::{Delta, Path};
use crate::signed::Signed;
use crate::structure::{Forecast, HandleVersion, Record};
use crate::testing::random::Random;
use crate::testing::{A, B, GROUP, key, table};
use crate::vector::VoidSet;
use crate::warrant;
use holdfast_content::{Handle, UserId};
use holdfast_crypto::{DigestKey, KeyHolder, encode};
use std::collections::{BTreeMap, BTreeSet};

const USER: PrincipalId = PrincipalId::User(UserId(1));
const OTHERS: PrincipalId = PrincipalId::User(UserId(2));

fn file_system() -> Digest {
    key(DeviceId::SUPERUSER).public().file_system_id()
}

fn digest(text: &str) -> Digest {
    DigestKey::WELL_KNOWN.digest(Domain::Inode, text.as_bytes())
}

/// The state of the world outside of the key, from which an honest client makes its requests.
#[derive(Clone)]
struct World {
    device: DeviceId,
    number: u64,
    own: Option<Structure>,
    voids: VoidSet,
    ineffective: VoidSet,
    /// Versions that other devices have reached.
    vector: VersionVector,
    log: u64,
    time: i64,
}

impl World {
    fn new(device: DeviceId) -> World {
        let vector =
            VersionVector::from(BTreeMap::from([(PrincipalId::Members, 1), (OTHERS, 3), (GROUP, 2)]));
        World {
            device,
            number: 0,
            own: None,
            voids: VoidSet::default(),
            ineffective: VoidSet::default(),
            vector,
            log: 5,
            time: 0,
        }
    }

    fn certificate(&mut self, deltas: Vec<Delta>) -> Certificate {
        self.number += 1;
        self.time += 1;
        Certificate {
            file_system: file_system(),
            device: self.device,
            number: self.number,
            previous: self.own.as_ref().map_or(Digest::ZERO, |own| own.forecast.digest()),
            path: Path::Fast,
            voids: self.voids.clone(),
            ineffective: self.ineffective.clone(),
            time_ns: self.time,
            deltas,
        }
    }

    fn structure(&self, certificate: &Certificate) -> Structure {
        let mut vector = self.vector.clone();
        let own = PrincipalId::Device(self.device);
        vector.set(own, certificate.number);
        let mut handles = self.own.as_ref().map(|own| own.handles.clone()).unwrap_or_default();
        let made = |version| HandleVersion {
            version,
            reference: table(&format!("{version} {}", certificate.time_ns)),
        };
        handles.retain(|principal, handle| vector.get(*principal) <= handle.version || *principal == own);
        for principal in certificate.principals() {
            vector.set(principal, vector.get(principal) + 1);
            handles.insert(principal, made(vector.get(principal)));
        }
        handles.insert(own, made(certificate.number));
        let forecast = Forecast {
            file_system: certificate.file_system,
            device: self.device,
            vector,
            pending: Vec::new(),
            aborted: Vec::new(),
            voids: certificate.voids.clone(),
            ineffective: certificate.ineffective.clone(),
            certificate: certificate.digest(),
            log: LogHead { size: self.log, root: digest(&format!("log {}", self.log)) },
        };
        Structure { forecast, outcome: Outcome::Done, handles }
    }

    fn commit(&mut self, structure: &Structure) {
        self.vector = structure.forecast.vector.clone();
        self.log = structure.forecast.log.size + 1;
        if structure.outcome == Outcome::Nothing {
            self.ineffective.insert(structure.number());
        }
        self.own = Some(structure.clone());
    }

    fn give_up(&mut self) {
        self.voids.insert(self.number);
    }
}

fn group_delta() -> Delta {
    Delta::SetTable { file: Handle { principal: GROUP, number: 1 }, number: Some(1) }
}

fn fresh(device: DeviceId) -> Mandate {
    Mandate::new(file_system(), key(device).public())
}

/// A mandate in the middle of its life: number 1 is committed with the group's table, number 2 is given up,
/// number 3 has a signed certificate and no structure yet.
fn midst() -> (Mandate, World, Certificate) {
    let mut world = World::new(A);
    let mut mandate = fresh(A);
    let first = world.certificate(vec![group_delta()]);
    let structure = world.structure(&first);
    mandate = mandate.judge(&[first.ask(), structure.ask()]).expect("honest");
    world.commit(&structure);
    let second = world.certificate(Vec::new());
    let structure = world.structure(&second);
    mandate = mandate.judge(&[second.ask(), structure.ask()]).expect("honest");
    world.give_up();
    world.log += 3;
    world.vector.set(OTHERS, 6);
    let third = world.certificate(vec![group_delta()]);
    mandate = mandate.judge(&[third.ask()]).expect("honest");
    (mandate, world, third)
}

type Change<T> = fn(&mut T);

/// Request by verdict: certificates.
#[test]
fn certificates_by_verdict() {
    let (mandate, mut world, third) = midst();
    let structure = world.structure(&third);
    let mandate = mandate.judge(&[structure.ask()]).expect("honest");
    world.commit(&structure);
    let honest = world.certificate(Vec::new());
    assert!(mandate.judge(&[honest.ask()]).is_ok());
    let cases: &[(&str, Change<Certificate>, Contradiction)] = &[
        ("another file system", |c| c.file_system = digest("x"), Contradiction::OtherFileSystem),
        ("another device", |c| c.device = B, Contradiction::OtherDevice { known: 1, found: 2 }),
        ("number zero", |c| c.number = 0, Contradiction::Offence("its number is out of range")),
        ("the number before, otherwise", |c| c.number = 3, Contradiction::NumberTaken(3)),
        ("an old number", |c| c.number = 1, Contradiction::WrongNumber { expected: 4, found: 1 }),
        ("a number left out", |c| c.number = 5, Contradiction::WrongNumber { expected: 4, found: 5 }),
        ("nothing before it", |c| c.previous = Digest::ZERO, Contradiction::WrongPrevious),
        ("something made up before it", |c| c.previous = digest("x"), Contradiction::WrongPrevious),
        ("a void forgotten", |c| c.voids = VoidSet::default(), Contradiction::WrongVoids),
        ("a committed one given up", |c| c.voids.insert(3), Contradiction::WrongVoids),
        ("itself given up", |c| c.voids.insert(4), Contradiction::WrongVoids),
        ("a committed one without effect", |c| c.ineffective.insert(1), Contradiction::WrongVoids),
        ("an ill-formed set", |c| c.voids.0 = BTreeMap::from([(2, 2), (3, 2)]), Contradiction::NotShown),
        (
            "a change of membership with something else",
            |c| c.deltas = vec![Delta::SetMembers { reference: table("members") }, group_delta()],
            Contradiction::Offence(
                "it replaces the membership, and only the superuser's may do more in the same operation",
            ),
        ),
        (
            "a name of no bytes",
            |c| {
                let directory = Handle { principal: USER, number: 1 };
                c.deltas = vec![Delta::SetEntry { directory, name: Vec::new(), entry: None, time_ns: 0 }];
            },
            Contradiction::Offence("a name is empty or too long"),
        ),
    ];
    for (name, change, expected) in cases {
        let mut changed = honest.clone();
        change(&mut changed);
        assert_eq!(mandate.judge(&[changed.ask()]).err(), Some(expected.clone()), "{name}");
    }
    // The structure before may be given up instead, but that is final.
    let mut other = honest.clone();
    other.previous = mandate.settled.forecast;
    other.voids.insert(3);
    let after = mandate.judge(&[other.ask()]).expect("given up");
    let mut later = honest.clone();
    later.number = 5;
    later.voids.insert(4);
    assert_eq!(after.judge(&[later.ask()]).err(), Some(Contradiction::WrongPrevious));
    assert_eq!(mandate.judge(&[third.ask()]).expect("again"), mandate);
}

/// Request by verdict: structures.
#[test]
fn structures_by_verdict() {
    let (mandate, world, third) = midst();
    let honest = world.structure(&third);
    let signed = mandate.judge(&[honest.ask()]).expect("honest");
    assert_eq!(signed.judge(&[honest.ask()]).expect("again"), signed);
    let back = |principal, known, found| Contradiction::VectorBack { principal, known, found };
    let own = PrincipalId::Device(A);
    let cases: &[(&str, Change<Structure>, Contradiction)] = &[
        ("another file system", |s| s.forecast.file_system = digest("x"), Contradiction::OtherFileSystem),
        ("another device", |s| s.forecast.device = B, Contradiction::OtherDevice { known: 1, found: 2 }),
        (
            "another number",
            |s| s.forecast.vector.set(PrincipalId::Device(A), 4),
            Contradiction::WrongNumber { expected: 3, found: 4 },
        ),
        ("another certificate", |s| s.forecast.certificate = digest("x"), Contradiction::OtherCertificate),
        ("other voids", |s| s.forecast.voids = VoidSet::default(), Contradiction::WrongVoids),
        ("others without effect", |s| s.forecast.ineffective.insert(1), Contradiction::WrongVoids),
        ("a smaller version", |s| s.forecast.vector.set(OTHERS, 2), back(OTHERS, 3, 2)),
        (
            "a version forgotten",
            |s| s.forecast.vector.set(PrincipalId::Members, 0),
            back(PrincipalId::Members, 1, 0),
        ),
        ("a table not counted up", |s| s.forecast.vector.set(GROUP, 3), back(GROUP, 4, 3)),
        ("a shorter log", |s| s.forecast.log.size = 5, Contradiction::LogBack { known: 6, found: 5 }),
        (
            "the log of the one before, otherwise",
            |s| s.forecast.log = LogHead { size: 6, root: digest("x") },
            Contradiction::LogBack { known: 6, found: 6 },
        ),
        (
            "an own operation pending",
            |s| s.forecast.pending.push(Record { device: A, number: 2, forecast: digest("x") }),
            Contradiction::WrongRecord,
        ),
        (
            "an own committed operation dead",
            |s| s.forecast.aborted.push(Record { device: A, number: 1, forecast: digest("x") }),
            Contradiction::WrongRecord,
        ),
        (
            "its own table at another version",
            |s| s.handles.get_mut(&PrincipalId::Device(A)).expect("there").version = 2,
            Contradiction::WrongTable(own),
        ),
        (
            "its own table left out",
            |s| {
                s.handles.remove(&PrincipalId::Device(A));
            },
            Contradiction::WrongTable(own),
        ),
        (
            "a table it advances left out",
            |s| {
                s.handles.remove(&GROUP);
            },
            Contradiction::WrongTable(GROUP),
        ),
        (
            "a table it advances at the version before",
            |s| s.handles.get_mut(&GROUP).expect("there").version = 3,
            Contradiction::WrongTable(GROUP),
        ),
        (
            "a table it does not advance",
            |s| {
                s.handles.insert(OTHERS, HandleVersion { version: 6, reference: table("x") });
            },
            Contradiction::WrongTable(OTHERS),
        ),
    ];
    for (name, change, expected) in cases {
        let mut changed = honest.clone();
        change(&mut changed);
        assert_eq!(mandate.judge(&[changed.ask()]).err(), Some(expected.clone()), "{name}");
        // Once one is signed, nothing else is, whatever it is.
        let again = signed.judge(&[changed.ask()]);
        assert!(again.is_err(), "{name}, after the honest one");
    }
    let mut nothing = honest.clone();
    nothing.outcome = Outcome::Nothing;
    assert!(mandate.judge(&[nothing.ask()]).is_ok(), "without effect");
    assert_eq!(signed.judge(&[nothing.ask()]).err(), Some(Contradiction::NumberTaken(3)));
    // What the given-up structure had seen stays known; what only it counted up does not.
    let mut first = World::new(A);
    let mut fresh = fresh(A);
    let certificate = first.certificate(vec![group_delta()]);
    let structure = first.structure(&certificate);
    fresh = fresh.judge(&[certificate.ask(), structure.ask()]).expect("honest");
    first.give_up();
    let certificate = first.certificate(vec![group_delta()]);
    let structure = first.structure(&certificate);
    assert!(fresh.judge(&[certificate.ask(), structure.ask()]).is_ok(), "the same version again");
}

/// A repeated table may be dropped only once another device has advanced it.
#[test]
fn carried_tables() {
    let (mandate, mut world, third) = midst();
    let structure = world.structure(&third);
    let mandate = mandate.judge(&[structure.ask()]).expect("honest");
    world.commit(&structure);
    let certificate = world.certificate(Vec::new());
    let mandate = mandate.judge(&[certificate.ask()]).expect("honest");
    let honest = world.structure(&certificate);
    assert!(honest.handles.contains_key(&GROUP));
    assert!(mandate.judge(&[honest.ask()]).is_ok());
    let mut dropped = honest.clone();
    dropped.handles.remove(&GROUP);
    assert_eq!(mandate.judge(&[dropped.ask()]).err(), Some(Contradiction::WrongTable(GROUP)));
    dropped.forecast.vector.set(GROUP, 9);
    assert!(mandate.judge(&[dropped.ask()]).is_ok(), "others have a newer one");
    let mut altered = honest;
    altered.handles.get_mut(&GROUP).expect("carried").reference = table("x");
    assert_eq!(mandate.judge(&[altered.ask()]).err(), Some(Contradiction::WrongTable(GROUP)));
}

/// Requests with their verdicts: what only the superuser's key signs, and what no device's key signs.
#[test]
fn the_superuser_and_others() {
    let list = |sequence, seed| ServerKeys {
        file_system: file_system(),
        sequence,
        keys: vec![holdfast_crypto::SigningKey::from_seed(&[seed; 32]).public()],
    };
    let root = fresh(DeviceId::SUPERUSER);
    assert_eq!(fresh(A).judge(&[list(1, 1).ask()]).err(), Some(Contradiction::NotSuperuser));
    let after = root.judge(&[list(5, 1).ask()]).expect("the first");
    assert!(after.judge(&[list(5, 1).ask()]).is_ok(), "again");
    assert!(after.judge(&[list(6, 2).ask()]).is_ok(), "the next");
    for sequence in [4, 5] {
        let verdict = after.judge(&[list(sequence, 2).ask()]).err();
        assert_eq!(verdict, Some(Contradiction::ListBack { known: 5, found: sequence }));
    }
    let elsewhere = ServerKeys { file_system: digest("x"), ..list(6, 1) };
    assert_eq!(after.judge(&[elsewhere.ask()]).err(), Some(Contradiction::OtherFileSystem));

    let mut world = World::new(DeviceId::SUPERUSER);
    let members = world.certificate(vec![Delta::SetMembers { reference: table("members") }]);
    assert!(root.judge(&[members.ask(), world.structure(&members).ask()]).is_ok());
    // Neither does another key sign for device 0, nor the superuser's for another.
    assert_eq!(fresh(A).judge(&[members.ask()]).err(), Some(Contradiction::NotSuperuser));
    let others = World::new(A).certificate(Vec::new());
    assert_eq!(root.judge(&[others.ask()]).err(), Some(Contradiction::NotSuperuser));

    for domain in [
        Domain::Receipt,
        Domain::SignedBlock,
        Domain::Forecast,
        Domain::Inode,
        Domain::ReleaseRecord,
        Domain::ReleaseKeys,
        Domain::FileSystemRevocation,
        Domain::Credential,
        Domain::PackageManifest,
    ] {
        let ask = SignRequest { domain, bytes: vec![1], whole: vec![1] };
        assert!(matches!(root.judge(&[ask]), Err(Contradiction::NotSignable(_))), "{domain:?}");
    }
}

/// A signature covers exactly what was judged.
#[test]
fn what_is_shown_is_what_is_signed() {
    let mandate = fresh(A);
    let mut world = World::new(A);
    let (one, other) = (world.certificate(Vec::new()), World::new(A).certificate(vec![group_delta()]));
    assert!(mandate.judge(&[one.ask()]).is_ok());
    for ask in [
        SignRequest { bytes: other.signed_bytes(), ..one.ask() },
        SignRequest { whole: other.whole_bytes(), ..one.ask() },
        SignRequest { whole: Vec::new(), ..one.ask() },
        SignRequest { whole: [one.whole_bytes(), vec![0]].concat(), ..one.ask() },
        SignRequest { bytes: encode(&one), ..one.ask() },
        SignRequest { domain: Domain::Structure, ..one.ask() },
    ] {
        assert_eq!(mandate.judge(&[ask]).err(), Some(Contradiction::NotShown));
    }
}

/// Of several signatures requested together, either all are made or none.
#[test]
fn all_or_none() {
    let mandate = fresh(A);
    let mut world = World::new(A);
    let certificate = world.certificate(Vec::new());
    let mut structure = world.structure(&certificate);
    structure.forecast.certificate = digest("x");
    assert_eq!(
        mandate.judge(&[certificate.ask(), structure.ask()]).err(),
        Some(Contradiction::OtherCertificate)
    );
}

/// Only a client's handshake of TLS 1.3 is signed in plain form.
#[test]
fn tls_handshakes() {
    let message = |context: &[u8], digest: usize| [&[b' '; 64], context, &vec![7; digest][..]].concat();
    let client = b"TLS 1.3, client CertificateVerify\0";
    assert!(is_tls_handshake(&message(client, 32)));
    assert!(is_tls_handshake(&message(client, 48)));
    for bytes in [0, 31, 33, 47, 49, 64] {
        assert!(!is_tls_handshake(&message(client, bytes)), "{bytes}");
    }
    let server = b"TLS 1.3, server CertificateVerify\0";
    assert!(!is_tls_handshake(&message(server, 32)));
    assert!(is_tls_server_handshake(&message(server, 32)) && is_tls_server_handshake(&message(server, 48)));
    assert!(!is_tls_server_handshake(&message(client, 32)) && !is_tls_server_handshake(&message(server, 33)));
    assert!(!is_tls_server_handshake(&digest("x").0));
    assert!(!is_tls_handshake(&message(b"TLS 1.3, client CertificateVerify ", 32)));
    assert!(!is_tls_handshake(&message(client, 32)[1..]));
    let mut tabs = message(client, 32);
    tabs[63] = b'\t';
    assert!(!is_tls_handshake(&tabs));
    assert!(!is_tls_handshake(&digest("x").0), "what everything else is signed as");
    assert!(!is_tls_handshake(&[]));
}

/// The stored form is what it was: a program that reads it otherwise would sign twice.
#[test]
fn stored_form() {
    let (mandate, world, third) = midst();
    let mandate = mandate.judge(&[world.structure(&third).ask()]).expect("honest");
    let bytes = mandate.to_bytes();
    assert_eq!(Mandate::from_bytes(&bytes).expect("own bytes"), mandate);
    let stored = DigestKey::WELL_KNOWN.digest(Domain::Inode, &bytes);
    assert_eq!(stored.to_string(), "ad5bbc6c08a30b0b16f5473aa0f3bbde230633c527985ea97330f96a990da630");
    for end in 0..bytes.len() {
        assert!(Mandate::from_bytes(&bytes[..end]).is_err(), "{end}");
    }
    let newer = [&[3][..], &bytes[1..]].concat();
    assert!(Mandate::from_bytes(&newer).is_err());
    // With a warrant the stored form is another, and is the only valid one.
    let root = fresh(DeviceId::SUPERUSER).judge(&[warrant(4, "x").ask()]).expect("the first");
    let bytes = root.to_bytes();
    assert_eq!(bytes[0], 2);
    assert_eq!(Mandate::from_bytes(&bytes).expect("own bytes"), root);
    for end in 0..bytes.len() {
        assert!(Mandate::from_bytes(&bytes[..end]).is_err(), "{end}");
    }
    assert!(Mandate::from_bytes(&[&[1][..], &bytes[1..]].concat()).is_err());
}

fn warrant(version: u64, text: &str) -> warrant::Change {
    let mut next = crate::testing::membership();
    next.name = text.to_owned();
    let follows = HandleVersion { version, reference: table("members") };
    warrant::Change::new(file_system(), &follows, &next)
}

/// Of two warrants that follow one membership their bearer could choose one, so only one is signed.
#[test]
fn warrants() {
    let root = fresh(DeviceId::SUPERUSER);
    let after = root.judge(&[warrant(4, "x").ask()]).expect("the first");
    assert!(after.judge(&[warrant(4, "x").ask()]).is_ok(), "again");
    assert!(after.judge(&[warrant(5, "y").ask()]).is_ok(), "the next");
    for version in [3, 4] {
        let verdict = after.judge(&[warrant(version, "y").ask()]).err();
        assert_eq!(verdict, Some(Contradiction::WarrantBack { known: 4, found: version }));
    }
    assert_eq!(fresh(A).judge(&[warrant(4, "x").ask()]).err(), Some(Contradiction::NotSuperuser));
    let elsewhere = warrant::Change { file_system: digest("x"), ..warrant(4, "x") };
    assert_eq!(root.judge(&[elsewhere.ask()]).err(), Some(Contradiction::OtherFileSystem));
    let mut dated = warrant(4, "x");
    dated.next.version = 5;
    assert!(matches!(root.judge(&[dated.ask()]).err(), Some(Contradiction::Offence(_))));
    // A device's state says nothing of warrants; the key's own record does.
    assert_eq!(root.clone().with_warrants_of(&after), after);
    assert_eq!(after.clone().with_warrants_of(&root), after);

    // Any key may bring a membership, but not commit that without effect.
    let mut world = World::new(A);
    let certificate = world.certificate(vec![Delta::SetMembers { reference: table("members") }]);
    let mut structure = world.structure(&certificate);
    assert!(fresh(A).judge(&[certificate.ask(), structure.ask()]).is_ok());
    structure.outcome = Outcome::Nothing;
    assert_eq!(
        fresh(A).judge(&[certificate.ask(), structure.ask()]).err(),
        Some(Contradiction::WrongTable(PrincipalId::Members))
    );
}

/// A mandate made from a client's state continues where that state was, with an operation in flight or
/// without.
#[test]
fn adopting_what_there_is() {
    let root = key(DeviceId::SUPERUSER).public();
    let holder = key(A);
    let mut signer = Signer::new(crate::floor::Floor::new(root, A));
    let begin = |signer: &mut Signer| {
        let event = crate::signer::Event::Begin { deltas: vec![group_delta()], time_ns: 1, fast: None };
        signer.step(&holder, event).expect("idle");
        signer.in_flight().0.expect("in flight").clone()
    };
    let first = begin(&mut signer);
    let mandate = Mandate::adopt(&signer, holder.public());
    assert_eq!(mandate.number(), 1);
    assert!(mandate.judge(&[first.ask()]).is_ok(), "again");
    let mut other = first.clone();
    other.time_ns = 2;
    assert_eq!(mandate.judge(&[other.ask()]).err(), Some(Contradiction::NumberTaken(1)));
    // Given up after a restart.
    signer.step(&holder, crate::signer::Event::Restarted).expect("up");
    let mandate = Mandate::adopt(&signer, holder.public());
    assert_eq!(mandate.judge(&[first.ask()]).err(), Some(Contradiction::NumberTaken(1)));
    let second = begin(&mut signer);
    let after = mandate.judge(&[second.ask()]).expect("the next");
    assert!(!after.contradicts(&Mandate::adopt(&signer, holder.public())));
    let mut elsewhere = signer.clone();
    elsewhere.step(&holder, crate::signer::Event::Restarted).expect("up");
    assert!(!after.contradicts(&Mandate::adopt(&elsewhere, holder.public())), "one says less");
    // A number that the key has signed for and the client has forgotten is given up, and signing continues.
    let mut forgot = Signer::restore(&{
        let mut signer = signer.clone();
        signer.step(&holder, crate::signer::Event::Restarted).expect("up");
        signer.to_bytes()
    })
    .expect("own bytes");
    let third = begin(&mut signer_after(&forgot));
    let ahead = after.judge(&[third.ask()]).expect("the third");
    assert_eq!((ahead.number(), forgot.floor().used), (3, 2));
    forgot.skip().expect("idle");
    let fourth = begin(&mut forgot);
    assert!(ahead.judge(&[fourth.ask()]).is_ok());
}

fn signer_after(signer: &Signer) -> Signer {
    signer.clone()
}

/// Knows every signature made, and objects to two that contradict each other.
#[derive(Default)]
struct Observer {
    certificates: BTreeMap<u64, Certificate>,
    structures: BTreeMap<u64, Structure>,
}

impl Observer {
    fn certificate(&mut self, certificate: Certificate) {
        assert_eq!((certificate.file_system, certificate.device), (file_system(), A));
        let number = certificate.number;
        if let Some(known) = self.certificates.get(&number) {
            assert_eq!(known.digest(), certificate.digest(), "number {number} has two certificates");
            return;
        }
        self.certificates.insert(number, certificate);
        // Which structures the certificates up to this one name as committed, and so which are not.
        let named = |certificate: &Certificate| {
            self.structures
                .values()
                .find(|structure| structure.forecast.digest() == certificate.previous)
                .map(Structure::number)
        };
        let mut committed = BTreeSet::new();
        for (at, certificate) in &self.certificates {
            match named(certificate) {
                Some(previous) => {
                    assert!(previous < *at, "number {at} follows a later one");
                    assert!(committed.last().is_none_or(|last| *last <= previous), "number {at} goes back");
                    committed.insert(previous);
                }
                None => {
                    assert_eq!(certificate.previous, Digest::ZERO, "number {at} follows nothing signed");
                    assert!(committed.is_empty(), "number {at} forgets what was committed");
                }
            }
            for number in 1..*at {
                let is_void = certificate.voids.contains(number);
                assert_ne!(is_void, committed.contains(&number), "number {number}, as number {at} has it");
                let nothing =
                    self.structures.get(&number).is_some_and(|made| made.outcome == Outcome::Nothing);
                assert_eq!(certificate.ineffective.contains(number), nothing && committed.contains(&number));
            }
            assert!(!certificate.voids.contains(*at));
        }
        // The committed structures form an order.
        let chain: Vec<&Structure> = committed.iter().map(|number| &self.structures[number]).collect();
        for pair in chain.windows(2) {
            assert!(pair[0].forecast.vector.at_most(&pair[1].forecast.vector), "a smaller vector");
            assert!(pair[0].forecast.log.size < pair[1].forecast.log.size, "a log without the one before");
        }
    }

    fn structure(&mut self, structure: Structure) {
        let number = structure.number();
        if let Some(known) = self.structures.get(&number) {
            assert_eq!(known.digest(), structure.digest(), "number {number} has two structures");
            return;
        }
        let certificate = self.certificates.get(&number).map(Certificate::digest);
        assert_eq!(certificate, Some(structure.forecast.certificate), "another certificate's structure");
        for (_, before) in self.structures.range(..number) {
            let (known, found) = (before.forecast.log, structure.forecast.log);
            assert!(known.size <= found.size, "a shorter log");
            assert!(known.size < found.size || known.root == found.root, "two logs of one size");
        }
        self.structures.insert(number, structure);
    }
}

/// A client taken over by an attacker, who knows the formats and sends lies.
struct Hostile {
    world: World,
    /// Everything it ever thought of.
    certificates: Vec<Certificate>,
    structures: Vec<Structure>,
}

impl Hostile {
    fn spoil_certificate(&self, certificate: &mut Certificate, random: &mut Random) {
        match random.below(8) {
            0 => certificate.number = random.below(self.world.number + 3),
            1 => certificate.previous = self.any_previous(random),
            2 => certificate.voids.insert(1 + random.below(self.world.number + 2)),
            3 => certificate.voids = VoidSet::default(),
            4 => certificate.ineffective.insert(1 + random.below(self.world.number + 1)),
            5 => certificate.time_ns += 1000,
            6 => certificate.deltas.push(group_delta()),
            // The first signature of all says whose name it is.
            _ if self.world.number > 1 => certificate.device = B,
            _ => certificate.time_ns += 2000,
        }
    }

    fn any_previous(&self, random: &mut Random) -> Digest {
        match self.structures.len() as u64 {
            0 => Digest::ZERO,
            count => self.structures[random.below(count) as usize].forecast.digest(),
        }
    }

    fn spoil_structure(&self, structure: &mut Structure, random: &mut Random) {
        let own = PrincipalId::Device(A);
        match random.below(10) {
            0 => structure.forecast.vector.set(own, random.below(self.world.number + 3)),
            1 => structure.forecast.vector.set(*random.pick(&[GROUP, OTHERS, USER]), random.below(8)),
            2 => structure.forecast.log.size = random.below(self.world.log + 2),
            3 => structure.forecast.log.root = digest("another"),
            4 => structure.outcome = Outcome::Nothing,
            5 => structure.forecast.voids.insert(1 + random.below(self.world.number + 1)),
            6 => {
                structure.handles.remove(random.pick(&[GROUP, own]));
            }
            7 => {
                let handle = HandleVersion { version: random.below(5), reference: table("x") };
                structure.handles.insert(*random.pick(&[GROUP, own, USER]), handle);
            }
            8 if !self.certificates.is_empty() => {
                let at = random.below(self.certificates.len() as u64) as usize;
                structure.forecast.certificate = self.certificates[at].digest();
            }
            _ => structure.forecast.aborted.push(Record {
                device: A,
                number: random.below(self.world.number + 1),
                forecast: digest("x"),
            }),
        }
    }
}

/// Proves: whatever is requested, in whatever sequence, no two signatures contradict each other, and honest
/// requests are signed.
#[test]
fn no_two_signatures_contradict() {
    let seeds = holdfast_testing::setting("HOLDFAST_SEEDS", 60);
    let (mut signed, mut refused) = (0, 0);
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let mut mandate = fresh(A);
        let mut observer = Observer::default();
        let mut client = Hostile { world: World::new(A), certificates: Vec::new(), structures: Vec::new() };
        for _ in 0..40 {
            // The honest next operation, from what the world is at; then variations of it and of old ones.
            let before = client.world.clone();
            let deltas = if random.chance(50) { vec![group_delta()] } else { Vec::new() };
            let honest = client.world.certificate(deltas);
            let mut asks: Vec<(Option<Certificate>, Option<Structure>)> = Vec::new();
            for _ in 0..random.below(4) {
                let mut certificate = match client.certificates.len() as u64 {
                    0 => honest.clone(),
                    count if random.chance(30) => client.certificates[random.below(count) as usize].clone(),
                    _ => honest.clone(),
                };
                client.spoil_certificate(&mut certificate, &mut random);
                let mut structure = client.world.structure(&certificate);
                if random.chance(50) {
                    client.spoil_structure(&mut structure, &mut random);
                }
                asks.push((random.chance(80).then_some(certificate), random.chance(80).then_some(structure)));
            }
            let mut taken_over = false;
            for (certificate, structure) in asks {
                let shown: Vec<SignRequest> = certificate
                    .iter()
                    .map(Signable::ask)
                    .chain(structure.iter().map(Signable::ask))
                    .collect();
                match mandate.judge(&shown) {
                    Ok(after) => {
                        signed += shown.len();
                        mandate = after;
                        if let Some(certificate) = certificate {
                            taken_over |= certificate.number > before.number;
                            observer.certificate(certificate.clone());
                            client.certificates.push(certificate);
                        }
                        if let Some(structure) = structure {
                            taken_over |= structure.number() > before.number;
                            observer.structure(structure.clone());
                            client.structures.push(structure);
                        }
                    }
                    Err(_) => {
                        refused += 1;
                        client.certificates.extend(certificate);
                        client.structures.extend(structure);
                    }
                }
            }
            if taken_over {
                // The client's state no longer fits, so it continues from what was signed.
                client.world = World { number: mandate.number(), ..before };
                client.world.voids = mandate.voids.clone();
                client.world.ineffective = mandate.ineffective.clone();
                client.world.vector = mandate.vector.clone();
                client.world.log = mandate.log.size + 1;
                client.world.own =
                    client.structures.iter().find(|made| made.digest() == mandate.settled.structure).cloned();
                if mandate.number > mandate.settled.number {
                    client.world.voids.insert(mandate.number);
                }
                continue;
            }
            let mut structure = client.world.structure(&honest);
            if random.chance(20) {
                structure.outcome = Outcome::Nothing;
            }
            let after = mandate.judge(&[honest.ask(), structure.ask()]);
            mandate = after.unwrap_or_else(|error| panic!("seed {seed}: honest, and refused: {error}"));
            signed += 2;
            observer.certificate(honest.clone());
            observer.structure(structure.clone());
            client.certificates.push(honest);
            client.structures.push(structure.clone());
            match random.chance(70) {
                true => client.world.commit(&structure),
                false => client.world.give_up(),
            }
            if random.chance(50) {
                client.world.log += 1;
                client.world.vector.set(OTHERS, client.world.vector.get(OTHERS) + 1);
            }
        }
    }
    assert!(
        signed > 100 * seeds as usize / 10 && refused > 10 * seeds as usize,
        "{signed} signed, {refused} refused"
    );
}

/// Bytes of any kind are judged without panic.
#[test]
fn any_bytes_are_judged() {
    let (mandate, world, third) = midst();
    let structure = world.structure(&third);
    let mut random = Random::new(9);
    for _ in 0..3000 {
        let mut ask = if random.chance(50) { third.ask() } else { structure.ask() };
        for _ in 0..1 + random.below(4) {
            let at = random.below(ask.whole.len() as u64) as usize;
            ask.whole[at] = random.below(256) as u8;
        }
        // Presented as what it decodes to, if it does, so that the rules are reached.
        if let Ok(certificate) = decode::<Certificate>(&ask.whole) {
            ask.bytes = certificate.signed_bytes();
        } else if let Ok(structure) = decode::<Structure>(&ask.whole) {
            ask.bytes = structure.signed_bytes();
        }
        let _ = mandate.judge(&[ask]);
    }
    let holder = key(A);
    assert!(Signed::by(third, &holder as &dyn KeyHolder).is_ok());
}

/// Proves: names of past states and their ends are signed in this device's name, also in the middle of an
/// operation, and change nothing of what may be signed next. In another device's name they are not signed.
#[test]
fn names_of_past_states_are_signed_in_ones_own_name() {
    let log = LogHead { size: 3, root: digest("log") };
    let honest =
        Snapshot { file_system: file_system(), device: A, name: "before".to_owned(), log, time_ns: 1 };
    let end = SnapshotEnd { file_system: file_system(), device: A, snapshot: honest.digest() };
    let (mandate, world, third) = midst();
    let after = mandate.judge(&[honest.ask(), end.ask(), honest.ask()]).expect("its own");
    assert_eq!(after.to_bytes(), mandate.to_bytes());
    assert!(after.judge(&[world.structure(&third).ask()]).is_ok());
    assert!(fresh(A).judge(&[honest.ask()]).is_ok());

    let other = Contradiction::OtherDevice { known: 1, found: 2 };
    assert_eq!(
        mandate.judge(&[Snapshot { device: B, ..honest.clone() }.ask()]).expect_err("another's"),
        other
    );
    assert_eq!(
        mandate.judge(&[SnapshotEnd { device: B, ..end.clone() }.ask()]).expect_err("another's"),
        other
    );
    let elsewhere = Snapshot { file_system: digest("x"), ..honest.clone() };
    assert_eq!(mandate.judge(&[elsewhere.ask()]).expect_err("elsewhere"), Contradiction::OtherFileSystem);
    let elsewhere = SnapshotEnd { file_system: digest("x"), ..end };
    assert_eq!(mandate.judge(&[elsewhere.ask()]).expect_err("elsewhere"), Contradiction::OtherFileSystem);
    let nameless = Snapshot { name: String::new(), ..honest };
    assert!(matches!(mandate.judge(&[nameless.ask()]), Err(Contradiction::Offence(_))));
}
