//! Proves that digests, signatures and encodings are what the formats say: golden values, domains and keys
//! kept apart, signatures strict, decoding strict.

use holdfast_crypto::{Digest, DigestKey, Domain, PublicKey, Signature, SigningKey, decode, encode};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const DOMAINS: [(Domain, u8); 24] = [
    (Domain::Chunk, 1),
    (Domain::MapLeaf, 2),
    (Domain::MapInner, 3),
    (Domain::Inode, 4),
    (Domain::Table, 5),
    (Domain::Membership, 6),
    (Domain::FileSystem, 16),
    (Domain::Certificate, 17),
    (Domain::Forecast, 18),
    (Domain::Structure, 19),
    (Domain::Snapshot, 50),
    (Domain::SnapshotEnd, 51),
    (Domain::ServerKeys, 20),
    (Domain::Receipt, 21),
    (Domain::LogLeaf, 22),
    (Domain::LogNode, 23),
    (Domain::SetLeaf, 24),
    (Domain::SetInner, 25),
    (Domain::Boundary, 26),
    (Domain::CreateFileSystem, 27),
    (Domain::SignedBlock, 28),
    (Domain::LocalRecord, 29),
    (Domain::Evidence, 30),
    (Domain::Meeting, 32),
];

#[test]
fn domain_numbers_never_change() {
    for (domain, number) in DOMAINS {
        assert_eq!(domain as u8, number, "{domain:?}");
    }
}

#[test]
fn digests_are_golden() {
    // Keyed BLAKE3 over the domain as a u64 and the bytes: computed here from the crate's own primitives, and
    // pinned, so that neither our framing nor the algorithm can change unnoticed.
    let key = DigestKey::WELL_KNOWN;
    assert_eq!(&key.0, b"holdfast well-known digest key 1");
    let by_hand = blake3::keyed_hash(&key.0, b"\x01\0\0\0\0\0\0\0hello");
    assert_eq!(key.digest(Domain::Chunk, b"hello").0, *by_hand.as_bytes());
    assert_eq!(key.digest(Domain::Chunk, b"hello").to_string(), GOLDEN_HELLO);
    assert_eq!(key.digest(Domain::Chunk, b"").to_string(), GOLDEN_EMPTY);
    assert_eq!(DigestKey([0; 32]).digest(Domain::Inode, b"hello").to_string(), GOLDEN_PRIVATE);
}
const GOLDEN_HELLO: &str = "1505c01208b34d1842a3dc3f27782dcdce5c9e09ebb220648f244143ef8e0cde";
const GOLDEN_EMPTY: &str = "b98425f50272ac455baaa38e9a46f09b755552ac28336d3594365afa7f27f508";
const GOLDEN_PRIVATE: &str = "ae969e2330199c6c8f343d9cb4460da74873eec65bf92f92c5ac170052fdc443";

#[test]
fn domains_and_keys_keep_digests_apart() {
    let mut seen = BTreeSet::new();
    for key in [DigestKey::WELL_KNOWN, DigestKey([1; 32])] {
        for (domain, _) in DOMAINS {
            assert!(seen.insert(key.digest(domain, b"same bytes")), "{domain:?}");
        }
    }
    let whole = DigestKey::WELL_KNOWN.digest(Domain::Chunk, b"in two parts");
    let parts = DigestKey::WELL_KNOWN.hasher(Domain::Chunk).update(b"in two").update(b" parts").finish();
    assert_eq!(whole, parts);
}

#[test]
fn signatures_are_golden_and_bound_to_their_domain() {
    let key = SigningKey::from_seed(&[1; 32]);
    let signature = key.sign(Domain::Structure, b"text");
    let hex: String = signature.0.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, GOLDEN_SIGNATURE);
    assert_eq!(key.public().to_string(), GOLDEN_PUBLIC);
    assert_eq!(key.public().file_system_id().to_string(), GOLDEN_FILE_SYSTEM);
    for (domain, _) in DOMAINS {
        assert_eq!(key.public().verify(domain, b"text", &signature), domain == Domain::Structure);
    }
    assert!(!key.public().verify(Domain::Structure, b"Text", &signature));
}
const GOLDEN_SIGNATURE: &str = "88da4475ca0af9b7faba3fe1611b7c071e30c1631667b2a9250532a4c5e32e6eef17153aab2d47a32c670eea586146f162bfcfe2d4af36a6a4186371aa9d9206";
const GOLDEN_PUBLIC: &str = "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c";
const GOLDEN_FILE_SYSTEM: &str = "21ac42bccd2b25ebcecc160e868f1309201edfa0828eabde3f2fd5159545c61e";

#[test]
fn weak_keys_and_malleable_signatures_are_refused() {
    // The neutral element as key, with which a signature of zeroes and the neutral element verifies anything.
    let mut neutral = [0; 32];
    neutral[0] = 1;
    let mut forged = [0; 64];
    forged[0] = 1;
    assert!(!PublicKey(neutral).verify(Domain::Structure, b"anything", &Signature(forged)));

    // s + group order is the same signature to a careless verifier.
    let key = SigningKey::from_seed(&[1; 32]);
    let mut signature = key.sign(Domain::Structure, b"text");
    let order: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let mut carry = 0u16;
    for (byte, add) in signature.0[32..].iter_mut().zip(order) {
        carry += u16::from(*byte) + u16::from(add);
        *byte = carry as u8;
        carry >>= 8;
    }
    assert!(!key.public().verify(Domain::Structure, b"text", &signature));
}

#[test]
fn secrets_do_not_print() {
    let key = SigningKey::from_seed(&[0xab; 32]);
    assert!(!format!("{key:?}").contains("abab"));
    assert_eq!(format!("{:?}", DigestKey([0xab; 32])), "DigestKey(private)");
}

#[test]
fn hexadecimal_digests_are_strict() {
    let digest = Digest([0x5a; 32]);
    assert_eq!(Digest::from_hex(&digest.to_string()), Some(digest));
    for text in ["", "5a", &"5a".repeat(33), &"5g".repeat(32), &"+5".repeat(32), &"é".repeat(32)] {
        assert_eq!(Digest::from_hex(text), None, "{text}");
    }
}

#[test]
fn decoding_accepts_one_encoding_of_a_value_only() {
    let map: BTreeMap<u8, u16> = [(1, 10), (2, 20)].into();
    let bytes = encode(&map);
    assert_eq!(bytes, [2, 0, 0, 0, 1, 10, 0, 2, 20, 0]);
    assert_eq!(decode::<BTreeMap<u8, u16>>(&bytes).unwrap(), map);
    let refused: [&[u8]; 5] = [
        &[2, 0, 0, 0, 2, 20, 0, 1, 10, 0],    // unsorted
        &[2, 0, 0, 0, 1, 10, 0, 1, 20, 0],    // twice the same
        &[2, 0, 0, 0, 1, 10, 0, 2, 20, 0, 0], // followed by more
        &[2, 0, 0, 0, 1, 10, 0],              // short
        &[0xff, 0xff, 0xff, 0xff, 1, 10, 0],  // a length that no memory holds
    ];
    for bytes in refused {
        assert!(decode::<BTreeMap<u8, u16>>(bytes).is_err(), "{bytes:?}");
    }
    assert!(decode::<BTreeSet<u8>>(&[2, 0, 0, 0, 2, 1]).is_err());
    assert!(decode::<bool>(&[2]).is_err());
    assert!(decode::<Option<u8>>(&[2, 0]).is_err());
    assert!(decode::<String>(&[1, 0, 0, 0, 0xff]).is_err());
}

proptest! {
    #[test]
    fn random_bytes_decode_to_what_encodes_to_them_or_not_at_all(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        type Nested = BTreeMap<u16, (Option<bool>, Vec<String>, BTreeSet<u8>, Digest)>;
        if let Ok(value) = decode::<Nested>(&bytes) {
            prop_assert_eq!(encode(&value), bytes.clone());
        }
        if let Ok(value) = decode::<Vec<Option<(u8, bool)>>>(&bytes) {
            prop_assert_eq!(encode(&value), bytes);
        }
    }
}
