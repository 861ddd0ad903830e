//! Pins the format of all signed files: those made today have the bytes in `tests/golden`, and the examples of
//! `docs/internals/release-format.md` are the same. After a deliberate change of format (which needs a new format
//! number), `GOLDEN=write scripts/test only release::golden_records::` writes the files anew.

use crate::publisher;

use holdfast_crypto::DigestKey;
use holdfast_release::draft::Draft;
use holdfast_release::file_system;
use holdfast_release::form::{self, Kind};
use holdfast_release::keys::{KeyChain, ReleaseId, SignedKeySet};
use holdfast_release::record::{Freshness, Location, Record, RootFile};
use holdfast_release::revocation::{Revocation, Statement};
use holdfast_release::signing::{Signable, Signed};
use publisher::*;
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("memory");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().map(|digit| digit.to_digit(16).expect("hex") as u8).collect();
    digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect()
}

fn lines(name: &str, bytes: &[u8]) -> String {
    bytes.chunks(32).map(|line| format!("{name:<9} {}\n", hex(line))).collect()
}

/// Compares with the golden file, with the example in the documentation, and reads the file's bytes back.
fn golden<T: Kind + PartialEq + std::fmt::Debug>(name: &str, digests: &str, value: &T) {
    let text = format!("{digests}{}", lines("file", &form::write(value)));
    if std::env::var_os("GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(path(name), &text).expect("written");
        return;
    }
    let expected = std::fs::read_to_string(path(name)).unwrap_or_default();
    assert!(expected == text, "{name} has changed; now it is\n{text}");
    let bytes: Vec<u8> = expected
        .lines()
        .filter_map(|line| line.strip_prefix("file "))
        .flat_map(|line| unhex(line.trim()))
        .collect();
    assert_eq!(&form::read::<T>(&bytes).expect("it is read"), value);

    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/release-format.md");
    let document = std::fs::read_to_string(document).expect("the documentation");
    assert!(
        document.contains(&format!("```golden {name}\n{text}```")),
        "docs/internals/release-format.md: {name} differs"
    );
}

fn digest_of(value: &impl Signable) -> String {
    format!("digest    {}\n", value.digest())
}

#[test]
fn key_sets() {
    let first: SignedKeySet = chain().sets()[0].clone();
    golden("key-set-1", &digest_of(&first.value), &first);
    golden("key-set-2", &digest_of(&second_set().value), &second_set());
    assert_eq!(KeyChain::begin(ReleaseId(first.value.digest()), first).expect("signed"), chain());
}

#[test]
fn root_files() {
    let mut record = record(&rotated(), 2);
    record.digest_key = DigestKey([5; 32]);
    let mut root = renewed(&file(signed(record, &[3, 4])), START_S + 2 * DAY_S);
    root.hints = Some(Location { digest: holdfast_crypto::Digest([0xbb; 32]), bytes: 77 });
    let freshness: &Signed<Freshness> = root.freshness.as_ref().expect("renewed");
    let record: &Record = &root.record.value;
    golden::<RootFile>("root", &format!("{}{}", digest_of(record), digest_of(&freshness.value)), &root);
}

#[test]
fn revocations() {
    let mut statement: Statement = statement(&chain());
    statement.successor = Some(begin(first_set_of_certificates()).id());
    let certificate = Revocation { sets: chain().sets().to_vec(), statement: signed(statement, &[1, 3]) };
    golden("revoked", &digest_of(&certificate.statement.value), &certificate);
}

#[test]
fn revocations_of_file_systems() {
    let superuser = public(1);
    let reason = "the key was stolen".to_owned();
    let statement = file_system::Statement { file_system: superuser.file_system_id(), reason };
    let certificate = file_system::Revocation { superuser, statement: signed(statement, &[1]) };
    golden("revoked-file-system", &digest_of(&certificate.statement.value), &certificate);
}

#[test]
fn drafts() {
    let keys = Some(signed(second_set().value, &[4]));
    let draft = Draft { sets: chain().sets().to_vec(), keys, root: None, statement: None };
    golden("draft", "", &draft);
}

/// A signature is over the format and the value: a signature over anything else is refused.
#[test]
fn what_is_signed() {
    let record = record(&chain(), 1);
    assert_eq!(record.signed_bytes(), [&[1], holdfast_crypto::encode(&record).as_slice()].concat());
    let digest = DigestKey::WELL_KNOWN.digest(Record::DOMAIN, &record.signed_bytes());
    assert_eq!(record.digest(), digest);
}
