//! The vectors in `web/verify/vectors`, which hold the verifier for browsers to this crate: both accept and refuse the
//! same. After a deliberate change, `HOLDFAST_BLESS=1 scripts/test only release::web_vectors::` writes them anew.

use crate::publisher;

use holdfast_content::catalog::CatalogEntry;
use holdfast_content::{
    Block, BlockKind, BlockSource, Chunker, Content, DeviceId, Extent, ExtentMap, Extents, Inode, InodeKind,
    LiveMap, MapRoot, MemoryBlocks, MerkleMap, Reference, StoredBlock, Value,
};
use holdfast_crypto::{Digest, DigestKey, Domain, PublicKey, Signature, decode, encode};
use holdfast_release::accept::{ExpiredPolicy, HighestRecord, Refusal, Warning, accept};
use holdfast_release::form;
use holdfast_release::index::Index;
use holdfast_release::keys::{KeyChain, KeySet, KeysError, ReleaseId, SignedKeySet};
use holdfast_release::publish::rules::Rules;
use holdfast_release::publish::{Options, publish};
use holdfast_release::record::{Location, NotAuthentic, Record, RootFile, Validity};
use holdfast_release::revocation::{self, RevocationError};
use holdfast_release::signing::{Signable, SignatureError};
use publisher::*;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> [u8; N] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex"))
}

/// Compares with the committed file, or writes it.
fn vectors(name: &str, value: &Json) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../web/verify/vectors/{name}.json"));
    let text = serde_json::to_string_pretty(value).expect("JSON") + "\n";
    if std::env::var_os("HOLDFAST_BLESS").is_some() {
        fs::write(path, text).expect("written");
        return;
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == text, "{} is not what this crate makes now", path.display());
}

/// For each byte of `bytes`, whether the result is accepted when its lowest bit, and then its highest, is flipped: `+`
/// or `-`.
fn flipped(bytes: &[u8], taken: impl Fn(&[u8]) -> bool) -> String {
    let mut bytes = bytes.to_vec();
    let mut verdicts = String::new();
    for at in 0..bytes.len() {
        for bit in [0x01, 0x80] {
            bytes[at] ^= bit;
            verdicts.push(if taken(&bytes) { '+' } else { '-' });
            bytes[at] ^= bit;
        }
    }
    verdicts
}

/// Signatures on which libraries disagree. They are over the digest of `what is signed`, in the domain of records, and
/// made with the secret scalar 123456789123456789 and a point of order 8.
const DISPUTED: [(&str, &str, &str); 9] = [
    (
        "a nonce with a part of small order",
        "6f6ca5462ae560235abfc4bf18f762edd72bc1a7de9e49eec0aeb5ecaa8d37ce",
        "6999d5cb5126005c325892f1c6eab824b310708befff12fbaf45dda050cb12f05b435664a4d8fc7126a912163071006e85ade6077fb1e79f29ab9b041ad3bf0a",
    ),
    (
        "a key with a part of small order, which does not",
        "e5a369e1f023bf3db449eaf229b077c8c283b7346a74980f56411efb8e0e3899",
        "0e40848715696e4a7483a9320ee48ec06c80ca946c1148b966e76337cd95bc1701630f3e56b95e45d553510a76ef6f210e9d5d974850a10e6657d95d6d819302",
    ),
    (
        "a key with a part of small order, which cancels out",
        "e5a369e1f023bf3db449eaf229b077c8c283b7346a74980f56411efb8e0e3899",
        "f10367b0afc6a352860626af9107651d7b392d5b07e571c437778caaedd3d970e3f9ca1573016bcf3acbd00fff49c5dcfa2c9fc04f4862ad2d71abfe7b5f2a0d",
    ),
    (
        "a key of small order",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "01000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    ),
    (
        "a key of small order, with a nonce of its own",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "aa6df914f7a0f04e7f852adf459873f17dba5b1671ea62e82cc10ed6aecc489c4d00000000000000000000000000000000000000000000000000000000000000",
    ),
    (
        "a nonce of small order",
        "6f6ca5462ae560235abfc4bf18f762edd72bc1a7de9e49eec0aeb5ecaa8d37ce",
        "0100000000000000000000000000000000000000000000000000000000000000ca31e102570ad28ddad22afe039998f319ad6f2296dfd600812ec602f54d2104",
    ),
    (
        "a nonce in another form",
        "6f6ca5462ae560235abfc4bf18f762edd72bc1a7de9e49eec0aeb5ecaa8d37ce",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7fe1a19bd0c33ffc7b8119140e9a07d8322c0998d4d5b00a1f7dbfc6cd3f831e0d",
    ),
    (
        "a key of small order in another form",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edc876d6831fd2105d0b4389ca2e283166469289146e2ce06faefe98b22548df0500000000000000000000000000000000000000000000000000000000000000",
    ),
    (
        "a key that is no point",
        "0200000000000000000000000000000000000000000000000000000000000000",
        "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    ),
];

#[test]
fn signatures() {
    let message = b"what is signed";
    let digest = DigestKey::WELL_KNOWN.digest(Domain::ReleaseRecord, message);
    let key = key(1);
    let good = key.sign(Domain::ReleaseRecord, message);
    let mut second_form = good;
    // The second half plus the order of the group is the same number again.
    let order: [u8; 32] = unhex("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010");
    let mut carry = 0;
    for (byte, more) in second_form.0[32..].iter_mut().zip(order) {
        let sum = u16::from(*byte) + u16::from(more) + carry;
        (*byte, carry) = (sum as u8, sum >> 8);
    }
    let mut cases = vec![
        ("good".to_owned(), key.public(), good),
        ("the same with its second half in another form".to_owned(), key.public(), second_form),
        ("by another key".to_owned(), public(2), good),
        ("of another domain".to_owned(), key.public(), key.sign(Domain::ReleaseKeys, message)),
    ];
    for (name, public, signature) in DISPUTED {
        cases.push((name.to_owned(), PublicKey(unhex(public)), Signature(unhex(signature))));
    }
    let cases: Vec<Json> = cases
        .into_iter()
        .map(|(name, public, signature)| {
            let good = public.verify(Domain::ReleaseRecord, message, &signature);
            json!({ "name": name, "key": hex(&public.0), "signature": hex(&signature.0), "good": good })
        })
        .collect();
    assert_eq!(cases.iter().filter(|case| case["good"] == true).count(), 2, "{cases:#?}");
    vectors("signatures", &json!({ "message": hex(&digest.0), "cases": cases }));
}

fn name_of_signatures(error: &SignatureError) -> &'static str {
    match error {
        SignatureError::Stranger { .. } => "Stranger",
        SignatureError::False { .. } => "False",
        SignatureError::TooFew { .. } => "TooFew",
    }
}

fn name_of_keys(error: &KeysError) -> &'static str {
    match error {
        KeysError::Malformed(_) => "Malformed",
        KeysError::WrongId { .. } => "WrongId",
        KeysError::Skipped { .. } => "Skipped",
        KeysError::Forked { .. } => "Forked",
        KeysError::Purpose { .. } => "Purpose",
        KeysError::Signatures { error, .. } => name_of_signatures(error),
    }
}

fn name_of_refusal(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NotAuthentic(NotAuthentic::WrongRelease { .. }) => "WrongRelease",
        Refusal::NotAuthentic(NotAuthentic::UnknownKeySet { .. }) => "UnknownKeySet",
        Refusal::NotAuthentic(NotAuthentic::Signatures(error)) => name_of_signatures(error),
        Refusal::NotAuthentic(NotAuthentic::NoRenewals(_)) => "NoRenewals",
        Refusal::NotAuthentic(NotAuthentic::OtherRecord { .. }) => "OtherRecord",
        Refusal::NotAuthentic(NotAuthentic::TermTooLong { .. }) => "TermTooLong",
        Refusal::OlderKeySet { .. } => "OlderKeySet",
        Refusal::Rollback { .. } => "Rollback",
        Refusal::Equivocation { .. } => "Equivocation",
        Refusal::Backwards { .. } => "Backwards",
        Refusal::Future { .. } => "Future",
        Refusal::Expired { .. } => "Expired",
    }
}

fn name_of_warning(warning: &Warning) -> &'static str {
    match warning {
        Warning::HalfLife { .. } => "HalfLife",
        Warning::Stale { .. } => "Stale",
        Warning::OlderRenewal { .. } => "OlderRenewal",
        Warning::OtherHistory { .. } => "OtherHistory",
        Warning::ClockBehind { .. } => "ClockBehind",
    }
}

/// Follows key sets one after the other, as a client does that begins with the id.
fn follow(id: ReleaseId, sets: &[SignedKeySet]) -> Result<KeyChain, KeysError> {
    let mut chain = KeyChain::begin(id, sets[0].clone())?;
    sets[1..].iter().try_for_each(|set| chain.extend(set.clone()))?;
    Ok(chain)
}

#[test]
fn key_sets() {
    let first = || chain().sets()[0].clone();
    let id = chain().id();
    let second = |change: fn(&mut KeySet), seeds: &[u8]| {
        let mut set = next_set(&first_set(), &[2, 3, 4], 2);
        change(&mut set);
        signed(set, seeds)
    };
    let all = &[1, 2, 3, 4];
    let third = signed(next_set(&second_set().value, &[4, 5], 2), &[2, 3, 4, 5]);
    let cases: Vec<(&str, Vec<SignedKeySet>)> = vec![
        ("one", vec![first()]),
        ("three", vec![first(), second_set(), third.clone()]),
        ("one of them twice", vec![first(), second_set(), second_set()]),
        ("another release's", vec![signed(KeySet { certificates: true, ..first_set() }, &[1, 2])]),
        ("not the first", vec![second_set()]),
        ("one left out", vec![first(), third]),
        ("signed by the new keys only", vec![first(), signed(next_set(&first_set(), &[4, 5], 2), &[4, 5])]),
        ("signed by the old keys only", vec![first(), signed(next_set(&first_set(), &[4, 5], 2), &[1, 2])]),
        ("signed by too few", vec![first(), second(|_| {}, &[2])]),
        ("signed by a stranger, too", vec![first(), second(|_| {}, &[1, 2, 3, 4, 5])]),
        ("changes its purpose", vec![first(), second(|set| set.certificates = true, all)]),
        ("asks for more than there are", vec![first(), second(|set| set.role.threshold = 4, all)]),
        ("renewals that last too long", {
            let forever = |set: &mut KeySet| set.freshness.as_mut().expect("some").term_max_s = u64::MAX;
            vec![first(), second(forever, all)]
        }),
        ("two successions", vec![first(), second_set(), second(|set| set.role.threshold = 1, all)]),
        ("an unsigned other one", vec![first(), second_set(), second(|set| set.role.threshold = 1, &[])]),
    ];
    let verdict = |sets: &[SignedKeySet]| match follow(id, sets) {
        Ok(_) => "ok",
        Err(error) => name_of_keys(&error),
    };
    let cases: Vec<Json> = cases
        .iter()
        .map(|(name, sets)| {
            let files: Vec<String> = sets.iter().map(|set| hex(&form::write(set))).collect();
            json!({ "name": name, "files": files, "verdict": verdict(sets) })
        })
        .collect();
    let bytes = form::write(&first());
    let taken = |bytes: &[u8]| form::read(bytes).is_ok_and(|set| KeyChain::begin(id, set).is_ok());
    vectors(
        "key-sets",
        &json!({ "id": id.to_string(), "cases": cases, "flipped": { "file": hex(&bytes), "taken": flipped(&bytes, taken) } }),
    );
}

struct Case {
    name: &'static str,
    chain: KeyChain,
    file: RootFile,
    seen: Option<HighestRecord>,
    now_s: u64,
    stale: ExpiredPolicy,
}

#[test]
fn records() {
    let at = |sequence: u64| START_S + (sequence - 1) * DAY_S;
    let seen = HighestRecord {
        sequence: 5,
        record: record(&chain(), 5).digest(),
        issued_s: at(5),
        validity: Validity { from_s: at(5), until_s: at(5) + LIFE_S },
        latest_s: at(5),
    };
    let case = |name, file| Case {
        name,
        chain: chain(),
        file,
        seen: Some(seen),
        now_s: at(5) + DAY_S,
        stale: ExpiredPolicy::Refuse,
    };
    let changed = |sequence, change: fn(&mut Record)| {
        let mut record = record(&chain(), sequence);
        change(&mut record);
        file(signed(record, &[1, 2]))
    };
    let five = || published(&chain(), 5);
    let with_renewal = |change: fn(&mut holdfast_release::record::Freshness), seed| {
        let mut renewal = renewal(&five().record.value, at(5) + DAY_S);
        change(&mut renewal);
        RootFile { freshness: Some(signed(renewal, &[seed])), ..five() }
    };
    let end_s = at(5) + LIFE_S;
    let certificates = begin(first_set_of_certificates());
    let no_renewals = begin(KeySet { freshness: None, ..first_set() });
    let cases = vec![
        Case { seen: None, ..case("the first that is seen", five()) },
        case("the same again", five()),
        case("the next", published(&chain(), 6)),
        case("the one before", published(&chain(), 4)),
        case("the one before, renewed", renewed(&published(&chain(), 4), at(5))),
        case("another of the same number", changed(5, |record| record.note = "another".into())),
        case("newer, and says it is older", changed(6, |record| record.issued_s = START_S)),
        case("follows another", changed(6, |record| record.previous = Some(Digest([1; 32])))),
        Case { now_s: end_s, ..case("in its last second", five()) },
        Case { now_s: end_s + 1, ..case("expired", five()) },
        Case { now_s: end_s + 1, stale: ExpiredPolicy::Allow, ..case("expired, and allowed", five()) },
        Case { now_s: end_s + 1, ..case("renewed in time", renewed(&five(), end_s - DAY_S)) },
        Case { now_s: end_s + 7 * DAY_S, ..case("the renewal expired", renewed(&five(), end_s - DAY_S)) },
        Case {
            chain: certificates.clone(),
            file: published(&certificates, 5),
            seen: None,
            now_s: end_s + 1,
            stale: ExpiredPolicy::Allow,
            ..case("certificates, expired, and allowed", five())
        },
        Case { now_s: at(5) + LIFE_S / 2, ..case("at half of its life", five()) },
        Case { seen: None, now_s: at(5) - 601, ..case("from the future", five()) },
        Case { seen: None, now_s: at(5) - 600, ..case("from as near a future as clocks differ", five()) },
        Case { now_s: 0, ..case("known, by a clock far behind", five()) },
        Case { now_s: 0, ..case("from the future of a clock far behind", published(&chain(), 6)) },
        Case {
            seen: Some(HighestRecord {
                validity: Validity { from_s: at(6), until_s: end_s + DAY_S },
                ..seen
            }),
            now_s: end_s + 1,
            ..case("an older renewal than was seen", five())
        },
        Case { seen: None, ..case("signed by too few", file(signed(record(&chain(), 5), &[1]))) },
        Case { seen: None, ..case("signed by nobody", file(signed(record(&chain(), 5), &[]))) },
        Case {
            seen: None,
            ..case("signed by a stranger, too", file(signed(record(&chain(), 5), &[1, 2, 4])))
        },
        Case {
            seen: None,
            ..case("a signature of another record", {
                let mut file = five();
                let other = published(&chain(), 4).record.signatures;
                file.record.signatures = other;
                file
            })
        },
        case("signed by keys that were replaced", five()).under(rotated()),
        Case { file: published(&rotated(), 5), seen: None, ..case("signed by keys not known yet", five()) },
        Case { file: published(&certificates, 5), seen: None, ..case("another release's", five()) },
        case("a renewal of another record", {
            RootFile { freshness: renewed(&published(&chain(), 4), at(5)).freshness, ..five() }
        }),
        case("a renewal by a signer of records", with_renewal(|_| {}, 1)),
        case("a renewal that lasts too long", with_renewal(|renewal| renewal.expires_s += 1, RENEWER)),
        case(
            "a renewal of another release",
            with_renewal(|renewal| renewal.release = ReleaseId(Digest([3; 32])), RENEWER),
        ),
        case(
            "a renewal from the future",
            with_renewal(
                |renewal| {
                    renewal.issued_s += 2 * DAY_S;
                    renewal.expires_s += 2 * DAY_S;
                },
                RENEWER,
            ),
        ),
        Case {
            chain: no_renewals.clone(),
            file: renewed(&published(&no_renewals, 5), at(5)),
            seen: None,
            ..case("a renewal where there are none", five())
        },
    ];
    let validity = |validity: &Validity| json!([validity.from_s, validity.until_s]);
    let remembered = |seen: &HighestRecord| {
        json!({
            "sequence": seen.sequence, "record": seen.record.to_string(), "issued": seen.issued_s,
            "validity": validity(&seen.validity), "latest": seen.latest_s,
        })
    };
    let cases: Vec<Json> = cases
        .iter()
        .map(|case| {
            let result = accept(&case.chain, &case.file, case.seen.as_ref(), case.now_s, case.stale);
            let files: Vec<String> = case.chain.sets().iter().map(|set| hex(&form::write(set))).collect();
            let (verdict, warnings, after) = match &result {
                Ok(accepted) => {
                    let names: Vec<_> = accepted.warnings.iter().map(name_of_warning).collect();
                    ("ok", names, remembered(&accepted.seen))
                }
                Err(refusal) => (name_of_refusal(refusal), Vec::new(), Json::Null),
            };
            json!({
                "name": case.name, "id": case.chain.id().to_string(), "keys": files, "file": hex(&form::write(&case.file)),
                "seen": case.seen.as_ref().map(remembered), "now": case.now_s, "stale": case.stale == ExpiredPolicy::Allow,
                "verdict": verdict, "warnings": warnings, "after": after,
            })
        })
        .collect();
    let mut whole = renewed(&five(), at(5));
    whole.hints = Some(Location { digest: Digest([0xbb; 32]), bytes: 77 });
    let bytes = form::write(&whole);
    let taken = |bytes: &[u8]| {
        form::read(bytes)
            .is_ok_and(|file| accept(&chain(), &file, None, at(5), ExpiredPolicy::Refuse).is_ok())
    };
    vectors(
        "records",
        &json!({
            "cases": cases,
            "flipped": {
                "id": chain().id().to_string(), "keys": [hex(&form::write(&chain().sets()[0]))], "now": at(5),
                "file": hex(&bytes), "taken": flipped(&bytes, taken),
            },
        }),
    );
}

impl Case {
    fn under(self, chain: KeyChain) -> Case {
        Case { chain, ..self }
    }
}

#[test]
fn revocations() {
    let with = |seeds: &[u8], change: fn(&mut revocation::Statement)| {
        let mut statement = statement(&rotated());
        change(&mut statement);
        revocation::Revocation { sets: rotated().sets().to_vec(), statement: signed(statement, seeds) }
    };
    let cases = [
        ("by the current keys", with(&[3, 4], |_| {})),
        ("by keys that were replaced", with(&[1, 2], |_| {})),
        ("by too few", with(&[4], |_| {})),
        ("by keys of two sets, too few of each", with(&[1, 4], |_| {})),
        ("by a stranger, too", with(&[3, 4, 5], |_| {})),
        ("of another release", with(&[3, 4], |statement| statement.release = ReleaseId(Digest([1; 32])))),
        ("its own successor", with(&[3, 4], |statement| statement.successor = Some(statement.release))),
        (
            "with a successor",
            with(&[3, 4], |statement| statement.successor = Some(ReleaseId(Digest([1; 32])))),
        ),
        ("with control characters", with(&[3, 4], |statement| statement.reason = "\u{1b}[2J".into())),
        ("without key sets", revocation::Revocation { sets: vec![], ..with(&[3, 4], |_| {}) }),
    ];
    let id = rotated().id();
    let verdict = |bytes: &[u8]| match revocation::verify(id, bytes) {
        Ok(_) => "ok",
        Err(RevocationError::Malformed(_)) => "Malformed",
        Err(RevocationError::Keys(error)) => name_of_keys(&error),
        Err(RevocationError::WrongRelease { .. }) => "WrongRelease",
        Err(RevocationError::Signatures(error)) => name_of_signatures(&error),
    };
    let cases: Vec<Json> = cases
        .iter()
        .map(|(name, certificate)| {
            let bytes = form::write(certificate);
            json!({ "name": name, "file": hex(&bytes), "verdict": verdict(&bytes) })
        })
        .collect();
    vectors("revocations", &json!({ "id": id.to_string(), "cases": cases }));
}

fn reference_of(reference: &Reference) -> Json {
    json!({ "address": reference.address.to_string(), "length": reference.length })
}

#[test]
fn blocks() {
    let key = DigestKey([5; 32]);
    let short = Block::new(&key, BlockKind::Chunk, vec![], b"hello".to_vec());
    let long = Block::new(&key, BlockKind::Chunk, vec![], b"a line\n".repeat(5000));
    let random: Vec<u8> = (0..4000u32).flat_map(|n| blake(n).0[..2].to_vec()).collect();
    let mixed = Block::new(&key, BlockKind::Chunk, vec![], [random, vec![0; 300_000]].concat());
    let parent =
        Block::new(&key, BlockKind::Inode, vec![Digest([1; 32]), Digest([2; 32])], b"a body".to_vec());
    let bomb = StoredBlock { body: zeroes_compressed(), ..long.to_stored() };
    let longer = Reference { length: 6, ..short.reference() };
    let cases = [
        ("plain", short.to_stored(), short.reference(), BlockKind::Chunk),
        ("compressed", long.to_stored(), long.reference(), BlockKind::Chunk),
        ("compressed as well as can be", mixed.to_stored_at(19), mixed.reference(), BlockKind::Chunk),
        ("with references", parent.to_stored(), parent.reference(), BlockKind::Inode),
        ("of another kind", short.to_stored(), short.reference(), BlockKind::Inode),
        ("another block", long.to_stored(), short.reference(), BlockKind::Chunk),
        ("shorter than it is said to be", short.to_stored(), longer, BlockKind::Chunk),
        ("a bomb", bomb, long.reference(), BlockKind::Chunk),
    ];
    let opens = |stored: &[u8], reference: &Reference, kind| {
        decode::<StoredBlock>(stored).is_ok_and(|stored| stored.open(&key, reference, kind).is_ok())
    };
    let cases: Vec<Json> = cases
        .into_iter()
        .map(|(name, stored, reference, kind)| {
            let stored = encode(&stored);
            let opens = opens(&stored, &reference, kind);
            json!({ "name": name, "stored": hex(&stored), "reference": reference_of(&reference), "kind": kind as u8, "opens": opens })
        })
        .collect();
    assert_eq!(cases.iter().filter(|case| case["opens"] == true).count(), 4);
    let stored = encode(&parent.to_stored());
    let taken = |bytes: &[u8]| opens(bytes, &parent.reference(), BlockKind::Inode);
    vectors(
        "blocks",
        &json!({
            "key": hex(&key.0), "cases": cases,
            "flipped": {
                "stored": hex(&stored), "reference": reference_of(&parent.reference()), "kind": BlockKind::Inode as u8,
                "taken": flipped(&stored, taken),
            },
        }),
    );
}

fn blake(number: u32) -> Digest {
    DigestKey::WELL_KNOWN.digest(Domain::ReleaseFile, &number.to_le_bytes())
}

/// A frame that claims to hold 35,000 bytes, and has run after run of 128 KiB.
fn zeroes_compressed() -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    frame.extend(35_000u32.to_le_bytes());
    let run = (128u32 << 10) << 3 | 2;
    for last in [0, 0, 0, 0, 1] {
        frame.extend(&(run | last).to_le_bytes()[..3]);
        frame.push(0);
    }
    frame
}

fn map_of(blocks: &MemoryBlocks, count: u64) -> MapRoot {
    let edits: BTreeMap<Vec<u8>, Option<Value>> = (0..count)
        .map(|n| (format!("name {n:05}").into_bytes(), Some(Value::plain(n.to_le_bytes().to_vec()))))
        .collect();
    MerkleMap::new(blocks.digest_key()).apply(blocks, &mut &*blocks, &MapRoot::EMPTY, edits).expect("a map")
}

fn top_of(root: &MapRoot) -> Json {
    root.0.map_or(Json::Null, |top| {
        json!({ "level": top.level, "entries": top.entries, "reference": reference_of(&top.reference) })
    })
}

#[test]
fn maps() {
    let key = DigestKey([6; 32]);
    let blocks = MemoryBlocks::new(key);
    let roots: Vec<Json> =
        [0, 1, 16, 200, 3000].iter().map(|count| top_of(&map_of(&blocks, *count))).collect();
    let map = MerkleMap::new(key);
    // Authentic nodes with false content: each byte of a leaf, and of an inner node, is altered, under a digest that
    // fits.
    let mut hostile = Vec::new();
    for (count, what) in [(20, "leaf"), (200, "inner")] {
        let root = map_of(&blocks, count);
        let top = root.0.expect("it is not empty");
        let kind = if top.level == 0 { BlockKind::MapLeaf } else { BlockKind::MapInner };
        let node = blocks.fetch(&top.reference, kind).expect("there");
        let taken = |body: &[u8]| {
            let block = Block::new(&key, kind, node.references().to_vec(), body.to_vec());
            blocks.replace(block.reference().address, block.to_stored());
            let root = MapRoot(Some(holdfast_content::MapTop { reference: block.reference(), ..top }));
            map.range(&blocks, &root, Bound::Unbounded, usize::MAX).is_ok()
        };
        hostile.push(json!({
            "what": what, "root": top_of(&root), "kind": kind as u8, "body": hex(node.body()),
            "references": node.references().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "taken": flipped(node.body(), taken),
        }));
    }
    let fresh = MemoryBlocks::new(key);
    for count in [0, 1, 16, 20, 200, 3000] {
        map_of(&fresh, count);
    }
    let mut stored: Vec<String> = fresh
        .addresses()
        .iter()
        .map(|address| hex(&[&address.0[..], &encode(&fresh.stored(address).expect("there"))].concat()))
        .collect();
    stored.sort();
    vectors("maps", &json!({ "key": hex(&key.0), "blocks": stored, "roots": roots, "hostile": hostile }));
}

/// Entries of a directory, as a publisher makes them.
fn inode_values(blocks: &MemoryBlocks) -> Vec<(&'static str, Value)> {
    let chunk = |byte: u8| Reference { length: 5000, ..reference(byte) };
    let inode = |kind, links, content, size| Inode {
        links,
        content,
        size,
        ..Inode::new(kind, 0o644, DeviceId(0), 1_000_000_000_000_000_000)
    };
    let extents = |extents: Vec<(u64, Extent)>| {
        Content::Extents(ExtentMap { chunker: Chunker::FastCdc64, extents: Extents::Inline(extents) })
    };
    let two =
        vec![(0, Extent::whole(chunk(1))), (9000, Extent { reference: chunk(2), skip: 7, length: 100 })];
    let mut opaque = inode(InodeKind::Directory, 1, Content::Directory(LiveMap::of(map_of(blocks, 20))), 0);
    opaque.xattrs.insert(b"holdfast.opaque".to_vec(), vec![]);
    opaque.xattrs.insert(b"user.note".to_vec(), b"hi".to_vec());
    let value = |inode: &Inode, link| CatalogEntry::value_of(&mut &*blocks, inode, link).expect("an entry");
    vec![
        ("an empty file", value(&inode(InodeKind::File, 1, Content::None, 0), None)),
        (
            "a short file",
            value(&inode(InodeKind::File, 1, Content::Inline(b"some bytes".to_vec()), 12), None),
        ),
        ("a long file", value(&inode(InodeKind::File, 1, extents(two.clone()), 9200), None)),
        ("a file with two names", value(&inode(InodeKind::File, 2, extents(two), 9200), Some(77))),
        ("a link", value(&inode(InodeKind::Symlink, 1, Content::Target(b"../there".to_vec()), 8), None)),
        ("an opaque directory", value(&opaque, None)),
        (
            "an empty directory",
            value(&inode(InodeKind::Directory, 1, Content::Directory(LiveMap::EMPTY), 0), None),
        ),
        ("an inode of its own", {
            let map = ExtentMap { chunker: Chunker::FastCdc64, extents: Extents::Map(map_of(blocks, 40)) };
            let mut large = inode(InodeKind::File, 1, Content::Extents(map), 1 << 20);
            large.xattrs.insert(b"user.long".to_vec(), vec![b'x'; 1000]);
            value(&large, None)
        }),
    ]
}

/// Writes vectors of directory entries: `web/verify/test` proves that the same entries are accepted and refused there.
#[test]
fn entries() {
    let blocks = MemoryBlocks::new(DigestKey::WELL_KNOWN);
    let entries: Vec<Json> = inode_values(&blocks)
        .into_iter()
        .map(|(name, value)| {
            let taken = |bytes: &[u8]| {
                let references = value.references.clone();
                CatalogEntry::from_value(&Value { bytes: bytes.to_vec(), references }).is_ok()
            };
            assert!(taken(&value.bytes), "{name}");
            json!({
                "name": name, "bytes": hex(&value.bytes),
                "references": value.references.iter().map(reference_of).collect::<Vec<_>>(),
                "taken": flipped(&value.bytes, taken),
            })
        })
        .collect();
    vectors("entries", &json!(entries));
}

/// Makes a tree with what matters to a reader: levels, holes, many extents, links inside and out, odd names, an opaque
/// directory.
fn make_tree(top: &Path, changed: bool) {
    let at = |name: &str| top.join(name);
    for name in ["many", "names", "files"] {
        fs::create_dir(at(name)).expect("made");
    }
    for n in 0..300 {
        fs::write(at(&format!("many/name {n:03}")), format!("number {n}\n")).expect("written");
    }
    fs::write(at("files/empty"), "").expect("written");
    fs::write(at("files/lines"), "a line\n".repeat(100_000)).expect("written");
    let sparse = File::create(at("files/sparse")).expect("made");
    for n in 0..20u64 {
        sparse.write_all_at(&[n as u8 + 1; 4096], n * 131_072).expect("written");
    }
    sparse.set_len(3 << 20).expect("set");
    fs::write(at("names/anna"), "her key").expect("written");
    symlink("files/lines", at("link")).expect("made");
    symlink("/etc/passwd", at("out")).expect("made");
    symlink("../../..", at("files/up")).expect("made");
    symlink("round", at("round")).expect("made");
    fs::hard_link(at("files/lines"), at("again")).expect("made");
    fs::write(at("<b>&\u{202e}"), "odd").expect("written");
    fs::write(top.join(std::ffi::OsStr::from_bytes(b"not \xff utf-8")), "odd").expect("written");
    if changed {
        fs::write(at("many/name 150"), "another number").expect("written");
        fs::write(at("many/new"), "").expect("written");
        fs::remove_file(at("files/empty")).expect("removed");
    }
    settle(top);
}

/// Sets times and modes that are the same everywhere.
fn settle(path: &Path) {
    let then = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let metadata = fs::symlink_metadata(path).expect("there");
    if metadata.is_dir() {
        for entry in fs::read_dir(path).expect("listed") {
            settle(&entry.expect("an entry").path());
        }
    }
    if !metadata.is_symlink() {
        let mode = if metadata.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    }
    let times = rustix::fs::Timestamps { last_access: then, last_modification: then };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).expect("set");
}

/// Two releases as a mirror has them, the second after some changes.
#[test]
fn releases() {
    let mirror = tempfile::tempdir().expect("a folder");
    let rules = Rules::new(&[], &["names".into()]).expect("rules");
    let mut index = Index::default();
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    files.insert("keys/1".into(), hex(&form::write(&chain().sets()[0])));
    for sequence in [1, 2] {
        let tree = tempfile::tempdir().expect("a folder");
        make_tree(tree.path(), sequence == 2);
        let options = Options {
            source: tree.path(),
            target: mirror.path(),
            digest_key: DigestKey::WELL_KNOWN,
            rules: &rules,
            newest: None,
            level: 3,
            threads: 1,
            memory: None,
        };
        let made = publish(&options, &index, &mut |_| true).expect("published");
        index = made.index.clone();
        let bytes = made.index.encode();
        let digest = DigestKey::WELL_KNOWN.digest(Domain::ReleaseFile, &bytes);
        files.insert(format!("index/{digest}"), hex(&bytes));
        let mut record = record(&chain(), sequence);
        record.root_dir = made.root;
        if sequence == 2 {
            let first = hex_decode(&files["records/1"]);
            let first: RootFile = form::read(&first).expect("made just now");
            record.previous = Some(first.record.value.digest());
        }
        let mut root = file(signed(record, &[1, 2]));
        root.index = Location { digest, bytes: bytes.len() as u64 };
        let root = hex(&form::write(&root));
        files.insert("root".into(), root.clone());
        files.insert(format!("records/{sequence}"), root);
    }
    for pack in fs::read_dir(mirror.path().join("packs")).expect("packs") {
        let pack = pack.expect("a pack");
        let name = format!("packs/{}", pack.file_name().to_string_lossy());
        files.insert(name, hex(&fs::read(pack.path()).expect("read")));
    }
    vectors(
        "release",
        &json!({ "id": chain().id().to_string(), "now": START_S + 2 * DAY_S, "files": files }),
    );
}

fn hex_decode(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex")).collect()
}
