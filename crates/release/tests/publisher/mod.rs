//! A publisher for tests: three signers with a key each, of whom two must sign, and a machine that renews.

#![allow(missing_docs)]

use holdfast_content::{Algorithm, Reference};
use holdfast_crypto::{Digest, DigestKey, PublicKey, SigningKey};
use holdfast_release::draft::Draft;
use holdfast_release::keys::{FreshnessRole, KeyChain, KeySet, Origin, ReleaseId, SignedKeySet};
use holdfast_release::open::now_s;
use holdfast_release::publish::compose::{ReleaseOptions, compose, tidy};
use holdfast_release::publish::rules::Rules;
use holdfast_release::record::{Freshness, Location, Record, RootFile};
use holdfast_release::release_dir::ReleaseDir;
use holdfast_release::revocation::{Revocation, Statement};
use holdfast_release::signing::{Role, Signable, Signed};
use std::path::Path;

pub const DAY_S: u64 = 86_400;
/// The time at which the first record is signed: 2026-01-01 00:00:00 UTC.
pub const START_S: u64 = 1_767_225_600;
/// The term of a record.
pub const LIFE_S: u64 = 30 * DAY_S;
/// The seed of the key of the machine that renews.
pub const RENEWER: u8 = 9;

pub fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

pub fn public(seed: u8) -> PublicKey {
    key(seed).public()
}

pub fn role(seeds: &[u8], threshold: u16) -> Role {
    Role { keys: seeds.iter().map(|seed| public(*seed)).collect(), threshold }
}

pub fn signed<T: Signable>(value: T, seeds: &[u8]) -> Signed<T> {
    let mut signed = Signed::unsigned(value);
    for seed in seeds {
        signed.sign(&key(*seed)).expect("a key at hand signs");
    }
    signed
}

/// Key set 1: two of the keys 1, 2, 3; the renewer may renew for a week at a time, for two years.
pub fn first_set() -> KeySet {
    KeySet {
        number: 1,
        origin: Origin::First { salt: [7; 16] },
        role: role(&[1, 2, 3], 2),
        freshness: Some(FreshnessRole {
            role: role(&[RENEWER], 1),
            term_max_s: 7 * DAY_S,
            until_s: START_S + 730 * DAY_S,
        }),
        certificates: false,
    }
}

/// The first key set of a directory of certificates.
pub fn first_set_of_certificates() -> KeySet {
    KeySet { certificates: true, ..first_set() }
}

/// The set after `before`, with other signers.
pub fn next_set(before: &KeySet, seeds: &[u8], threshold: u16) -> KeySet {
    KeySet {
        number: before.number + 1,
        origin: Origin::After { previous: before.digest() },
        role: role(seeds, threshold),
        ..before.clone()
    }
}

pub fn begin(first: KeySet) -> KeyChain {
    let id = ReleaseId(first.digest());
    KeyChain::begin(id, signed(first, &[1, 2])).expect("it is signed by two")
}

/// The chain of key set 1.
pub fn chain() -> KeyChain {
    begin(first_set())
}

/// Key set 2: two of the keys 2, 3, 4.
pub fn second_set() -> SignedKeySet {
    signed(next_set(&first_set(), &[2, 3, 4], 2), &[1, 2, 3, 4])
}

/// The chain of key sets 1 and 2.
pub fn rotated() -> KeyChain {
    let mut chain = chain();
    chain.extend(second_set()).expect("it is signed by both");
    chain
}

pub fn reference(byte: u8) -> Reference {
    Reference { algorithm: Algorithm::Blake3, address: Digest([byte; 32]), length: 200, key: None }
}

/// A record under the last key set of `chain`, signed a day after the one before it.
pub fn record(chain: &KeyChain, sequence: u64) -> Record {
    let issued_s = START_S + (sequence - 1) * DAY_S;
    Record {
        release: chain.id(),
        key_set: chain.current().number,
        sequence,
        issued_s,
        expires_s: issued_s + LIFE_S,
        digest_key: DigestKey::WELL_KNOWN,
        root_dir: reference(sequence as u8),
        previous: (sequence > 1).then(|| record(chain, sequence - 1).digest()),
        note: format!("version {sequence}"),
    }
}

pub fn renewal(record: &Record, issued_s: u64) -> Freshness {
    Freshness { release: record.release, record: record.digest(), issued_s, expires_s: issued_s + 7 * DAY_S }
}

pub fn file(record: Signed<Record>) -> RootFile {
    let index = Location { digest: Digest([0xaa; 32]), bytes: 1000 };
    RootFile { record, freshness: None, index, hints: None }
}

/// Record `sequence`, signed by two signers.
pub fn published(chain: &KeyChain, sequence: u64) -> RootFile {
    file(signed(record(chain, sequence), &[2, 3]))
}

/// A record's file with a renewal, signed at this time.
pub fn renewed(file: &RootFile, issued_s: u64) -> RootFile {
    let freshness = signed(renewal(&file.record.value, issued_s), &[RENEWER]);
    RootFile { freshness: Some(freshness), ..file.clone() }
}

pub fn statement(chain: &KeyChain) -> Statement {
    Statement { release: chain.id(), reason: "the keys were stolen".to_owned(), successor: None }
}

pub fn revocation(chain: &KeyChain, seeds: &[u8]) -> Revocation {
    Revocation { sets: chain.sets().to_vec(), statement: signed(statement(chain), seeds) }
}

/// Has two signers sign a draft, and installs it.
pub fn install(directory: &ReleaseDir, mut draft: Draft) {
    for signer in [1, 2] {
        draft.sign(&key(signer)).expect("signed");
    }
    directory.install(&draft.finish().expect("enough signatures")).expect("installed");
}

/// Publishes a folder into a directory whose keys are installed.
pub fn publish(source: &Path, target: &Path) {
    let terms = ReleaseOptions {
        source,
        target,
        now_s: now_s(),
        life_s: 30 * DAY_S,
        note: "",
        keep: 1,
        first_key: DigestKey::WELL_KNOWN,
        rules: &Rules::default(),
        newest: None,
        level: 1,
        threads: 1,
        memory: None,
        live: None,
    };
    let composed = compose(&terms, &mut |_| true).expect("composed");
    install(&ReleaseDir::new(target), composed.draft.clone());
    composed.remember().expect("remembered");
    tidy(target, 1).expect("tidied");
}
