//! A signed file with any change is refused, and so is every set of signers that does not suffice.

use crate::publisher;

use holdfast_release::accept::{ExpiredPolicy, accept};
use holdfast_release::draft::Draft;
use holdfast_release::form::{self, Kind};
use holdfast_release::keys::{KeyChain, SignedKeySet};
use holdfast_release::record::RootFile;
use holdfast_release::revocation::{self, Revocation};
use proptest::prelude::*;
use publisher::*;

/// The number of bytes at the end of a root file that nobody signs: the location of the index, and no path hints.
const HINT_BYTES: usize = 32 + 8 + 1;

fn is_accepted(bytes: &[u8]) -> bool {
    let Ok(file) = form::read::<RootFile>(bytes) else { return false };
    accept(&chain(), &file, None, START_S + DAY_S, ExpiredPolicy::Refuse).is_ok()
}

fn extends(bytes: &[u8]) -> bool {
    chain().extend_with_file(bytes).is_ok()
}

fn begins(bytes: &[u8]) -> bool {
    KeyChain::begin_with_file(chain().id(), bytes).is_ok()
}

fn revokes(bytes: &[u8]) -> bool {
    revocation::verify(chain().id(), bytes).is_ok()
}

/// Every file with every single bit changed is refused, except in the unsigned bytes, which decide nothing.
#[test]
fn every_changed_byte_is_refused() {
    /// Name, bytes, whether unsigned bytes are at the end, and whether a client accepts the file.
    type Case = (&'static str, Vec<u8>, bool, fn(&[u8]) -> bool);
    let plain = published(&chain(), 1);
    let files: [Case; 5] = [
        ("keys/1", form::write(&chain().sets()[0]), false, begins),
        ("keys/2", form::write(&second_set()), false, extends),
        ("root", form::write(&plain), true, is_accepted),
        ("root, renewed", form::write(&renewed(&plain, START_S + 100)), true, is_accepted),
        ("revoked", form::write(&revocation(&rotated(), &[3, 4])), false, revokes),
    ];
    for (name, bytes, has_hints, believed) in files {
        assert!(believed(&bytes), "{name} is good as it is");
        let signed_part = bytes.len() - if has_hints { HINT_BYTES } else { 0 };
        for at in 0..signed_part {
            for change in [0x01, 0x80, 0xff] {
                let mut altered = bytes.clone();
                altered[at] ^= change;
                assert!(!believed(&altered), "{name}: byte {at} changed by {change:02x} is believed");
            }
        }
        for length in 0..bytes.len() {
            assert!(!believed(&bytes[..length]), "{name}: the first {length} bytes are believed");
        }
        assert!(!believed(&[bytes.as_slice(), &[0]].concat()), "{name}: a byte more is believed");
    }
}

/// A change in the unsigned bytes never changes the record: the file has the same record, or is refused.
#[test]
fn hints_decide_nothing() {
    let file = published(&chain(), 1);
    let bytes = form::write(&file);
    for at in bytes.len() - HINT_BYTES..bytes.len() {
        let mut altered = bytes.clone();
        altered[at] ^= 0x01;
        if let Ok(altered) = form::read::<RootFile>(&altered) {
            let accepted =
                accept(&chain(), &altered, None, START_S, ExpiredPolicy::Refuse).expect("the record is good");
            assert_eq!(accepted.record, file.record.value);
        }
    }
}

/// The seeds of some keys, at least so many, each once and in order.
fn some_keys(least: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::btree_set(1u8..8, least..7).prop_map(|seeds| seeds.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// A record is accepted exactly if enough members of its role signed, and nobody else.
    #[test]
    fn signers_are_enough_or_refused(
        signers in some_keys(0),
        members in some_keys(1),
        threshold in 1u16..7,
    ) {
        let threshold = threshold.min(members.len() as u16);
        let mut first = first_set();
        first.role = role(&members, threshold);
        let id = holdfast_release::keys::ReleaseId(holdfast_release::signing::Signable::digest(&first));
        let chain = KeyChain::begin(id, signed(first, &members)).unwrap();
        let file = file(signed(record(&chain, 1), &signers));
        let enough = signers.len() >= usize::from(threshold) && signers.iter().all(|s| members.contains(s));
        prop_assert_eq!(accept(&chain, &file, None, START_S, ExpiredPolicy::Refuse).is_ok(), enough);
    }

    /// A rotation is accepted exactly if enough members of both sets signed, and nobody else.
    #[test]
    fn rotations_need_both_sets(
        signers in some_keys(0),
        members in some_keys(1),
        threshold in 1u16..7,
    ) {
        let threshold = threshold.min(members.len() as u16);
        let next = next_set(&first_set(), &members, threshold);
        let count = |of: &[u8]| signers.iter().filter(|signer| of.contains(signer)).count();
        let enough = count(&[1, 2, 3]) >= 2
            && count(&members) >= usize::from(threshold)
            && signers.iter().all(|signer| members.contains(signer) || [1, 2, 3].contains(signer));
        prop_assert_eq!(chain().extend(signed(next, &signers)).is_ok(), enough);
    }

    /// Any bytes after a good beginning are refused or read, without a panic; and what can be read has one encoding.
    #[test]
    fn any_bytes(kind in 0usize..4, body in proptest::collection::vec(any::<u8>(), 0..600)) {
        fn one_form<T: Kind>(body: &[u8]) {
            let bytes = [T::MAGIC.as_slice(), &[form::FORMAT], body].concat();
            if let Ok(value) = form::read::<T>(&bytes) {
                assert_eq!(form::write(&value), bytes);
            }
        }
        match kind {
            0 => one_form::<SignedKeySet>(&body),
            1 => one_form::<RootFile>(&body),
            2 => one_form::<Revocation>(&body),
            _ => one_form::<Draft>(&body),
        }
    }

    /// Bytes cut from one offset of a file and inserted at another: refused, or the same file.
    #[test]
    fn spliced(at in 0usize..1000, from in 0usize..1000, length in 1usize..100) {
        let bytes = form::write(&renewed(&published(&chain(), 1), START_S + 100));
        let length = length.min(bytes.len() - 1);
        let (at, from) = (at % (bytes.len() - length), from % (bytes.len() - length));
        let mut spliced = bytes.clone();
        let piece = bytes[from..from + length].to_vec();
        spliced[at..at + length].copy_from_slice(&piece);
        let signed_part = bytes.len() - HINT_BYTES;
        if spliced[..signed_part] != bytes[..signed_part] {
            prop_assert!(!is_accepted(&spliced));
        }
    }
}

/// A newer format, and a file too large for its kind, are refused in words that say so.
#[test]
fn newer_and_too_large() {
    let mut bytes = form::write(&published(&chain(), 1));
    bytes[7] = 2;
    assert!(form::read::<RootFile>(&bytes).unwrap_err().to_string().contains("newer holdfast"));
    let large = vec![0; RootFile::BYTES_MAX as usize + 1];
    assert!(form::read::<RootFile>(&large).unwrap_err().to_string().contains("larger than 8192 bytes"));
}

/// The rules of well-formed values, which hold whatever was signed.
#[test]
fn ill_formed_values_are_refused() {
    let root = |change: fn(&mut holdfast_release::record::Record)| {
        let mut record = record(&chain(), 1);
        change(&mut record);
        form::read::<RootFile>(&form::write(&file(signed(record, &[1, 2])))).map_err(|error| error.why)
    };
    assert!(root(|_| {}).is_ok());
    assert!(root(|r| r.sequence = 0).unwrap_err().contains("numbered from 1"));
    assert!(root(|r| r.previous = Some(holdfast_crypto::Digest::ZERO)).is_err());
    assert!(root(|r| r.note = "n".repeat(257)).unwrap_err().contains("257 bytes"));
    assert!(root(|r| r.note = "n".repeat(256)).is_ok());
    assert!(root(|r| r.note = "\x1b[2J".to_owned()).is_err());
    assert!(root(|r| r.expires_s = r.issued_s).is_err());
    assert!(root(|r| r.expires_s = u64::MAX).is_err());

    let keys = |change: fn(&mut holdfast_release::keys::KeySet)| {
        let mut set = first_set();
        change(&mut set);
        form::read::<SignedKeySet>(&form::write(&signed(set, &[1, 2]))).map_err(|error| error.why)
    };
    assert!(keys(|_| {}).is_ok());
    assert!(keys(|s| s.number = 0).is_err());
    assert!(keys(|s| s.number = 2).is_err());
    assert!(keys(|s| s.role.keys.clear()).is_err());
    assert!(keys(|s| s.role.keys = (0..17).map(public).collect()).is_err());
    assert!(keys(|s| s.role.threshold = 0).is_err());
    assert!(keys(|s| s.role.threshold = 4).is_err());
    assert!(keys(|s| s.freshness.as_mut().unwrap().role.threshold = 2).is_err());
    assert!(keys(|s| s.freshness.as_mut().unwrap().term_max_s = 0).is_err());
    assert!(keys(|s| s.freshness.as_mut().unwrap().term_max_s = 367 * DAY_S).is_err());
    assert!(keys(|s| s.freshness.as_mut().unwrap().until_s = u64::MAX).is_err());
}
