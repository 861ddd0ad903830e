//! Principals, manifests and credentials that the tests share.
#![allow(dead_code)]

use holdfast_access::*;
use holdfast_crypto::{Digest, SigningKey};
use std::collections::{BTreeMap, BTreeSet};

/// A small generator of numbers that look random, the same ones for the same seed.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub fn user(text: &str) -> Principal {
    Principal::User(name(text))
}

pub fn group(text: &str) -> Principal {
    Principal::Group(name(text))
}

pub fn process_name(number: u64) -> ProcessName {
    ProcessName { boot: [7; 16], number }
}

pub fn process(number: u64) -> Principal {
    Principal::Process(process_name(number))
}

pub fn signing_key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

pub fn key(seed: u8) -> Principal {
    Principal::Key(signing_key(seed).public())
}

pub fn named(seed: u8, text: &str) -> Principal {
    Principal::Named(KeyName { key: signing_key(seed).public(), name: name(text) })
}

pub fn package(seed: u8, text: &str) -> KeyName {
    KeyName { key: signing_key(seed).public(), name: name(text) }
}

/// The manifest of a component with a setting, in a package.
pub fn manifest() -> Manifest {
    Manifest {
        executable: Digest([1; 32]),
        code: BTreeSet::from([Digest([2; 32])]),
        component: Some(name("fat")),
        settings: BTreeMap::from([(name("partition"), Text::new("2048-4096").expect("a text"))]),
        packages: BTreeSet::from([package(9, "holdfast")]),
        uid: 1000,
        conditions: Conditions::CLEAN,
    }
}

pub fn speaks_for(issuer: Principal, serial: u64, delegate: Principal, principal: Principal) -> Credential {
    within(issuer, serial, delegate, principal, Scope::EVERYTHING)
}

pub fn within(
    issuer: Principal,
    serial: u64,
    delegate: Principal,
    principal: Principal,
    scope: Scope,
) -> Credential {
    let statement = Statement::SpeaksFor { delegate, principal, scope };
    Credential { issuer, serial, expires_s: None, statement }
}

pub fn runs(serial: u64, number: u64, manifest: Manifest) -> Credential {
    let statement = Statement::Runs { process: process_name(number), manifest };
    Credential { issuer: Principal::Machine, serial, expires_s: None, statement }
}

/// Has the credential heard, by the way that its issuer speaks.
pub fn verified(credential: Credential) -> VerifiedCredential {
    for seed in 0..16 {
        if credential.issuer == key(seed) {
            return VerifiedCredential::signed(&credential.sign(&signing_key(seed)))
                .expect("a good signature");
        }
    }
    let issuer = credential.issuer.clone();
    VerifiedCredential::spoken(&issuer, credential).expect("processes and the machine speak for themselves")
}

/// Keeps the credentials; with their names, in the same order.
pub fn keep(all: impl IntoIterator<Item = Credential>) -> (Credentials, Vec<CredentialId>) {
    let mut credentials = Credentials::default();
    let ids = all.into_iter().map(|one| credentials.keep(verified(one)).expect("room")).collect();
    (credentials, ids)
}

/// A run in which processes 1 to 9 live.
pub fn revocations() -> Revocations {
    let mut revocations = Revocations::new();
    for number in 1..10 {
        revocations.started(process_name(number)).expect("room");
    }
    revocations
}

pub fn operations(list: &[Operation]) -> Limit<BTreeSet<Operation>> {
    Limit::Only(list.iter().copied().collect())
}

pub fn blocks(first: u64, count: u64) -> Objects {
    Objects::blocks(0, first, count).expect("a range")
}

pub fn scope(list: &[Operation], ranges: &[Objects]) -> Scope {
    Scope::new(operations(list), Limit::Only(ranges.to_vec())).expect("a scope")
}
