//! A client's memory of trust only grows, is durable before it counts, and is never silently begun anew; and what a
//! client does before it believes a mirror.

use crate::publisher;

use holdfast_crypto::Digest;
use holdfast_release::accept::{ExpiredPolicy, Refusal, Warning};
use holdfast_release::admit::{AdmitError, admit, not_revoked};
use holdfast_release::form;
use holdfast_release::keys::{KeyChain, KeysError};
use holdfast_release::layout;
use holdfast_release::mirror::{Mirror, MirrorError};
use holdfast_release::record::RootFile;
use holdfast_release::trust::{ARCHIVE_MAX, Trust, TrustError};
use publisher::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("holdfast-trust.").tempdir().expect("a folder")
}

fn trust(base: &Path) -> Trust {
    Trust::open(base, chain().id()).expect("a folder")
}

fn at(sequence: u64) -> u64 {
    START_S + (sequence - 1) * DAY_S
}

fn refusal(error: TrustError) -> (Refusal, Option<PathBuf>) {
    match error {
        TrustError::Refused { refusal, evidence } => (refusal, evidence),
        other => panic!("{other:?}"),
    }
}

/// What was accepted is remembered by the next process, which refuses an older record, an older time, and old keys.
#[test]
fn what_was_seen_stays_seen() {
    let base = folder();
    let accepted =
        trust(base.path()).accept(&chain(), &published(&chain(), 5), at(5), ExpiredPolicy::Refuse).unwrap();
    let again = trust(base.path());
    assert_eq!(again.seen().unwrap(), Some(accepted.seen));
    assert_eq!(again.chain().unwrap(), Some(chain()));
    let (older, evidence) =
        refusal(again.accept(&chain(), &published(&chain(), 4), at(5), ExpiredPolicy::Refuse).unwrap_err());
    assert_eq!((older, evidence), (Refusal::Rollback { shown: 4, seen: 5 }, None));

    let newer = published(&rotated(), 6);
    again.accept(&rotated(), &newer, at(6), ExpiredPolicy::Refuse).expect("rotated");
    // A chain that is behind does not bring the old keys back.
    let (old_keys, _) =
        refusal(again.accept(&chain(), &published(&chain(), 7), at(7), ExpiredPolicy::Refuse).unwrap_err());
    assert_eq!(old_keys, Refusal::OlderKeySet { found: 1, current: 2 });
    assert_eq!(again.chain().unwrap(), Some(rotated()));

    for entry in walk(base.path()) {
        let mode = std::fs::metadata(&entry).unwrap().permissions().mode() & 0o077;
        assert_eq!(mode, 0, "{} is for its owner only", entry.display());
    }
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(walk(&path));
        }
        found.push(path);
    }
    found
}

/// Every damaged byte of the memory is an error that names the file and the way out, and nothing is overwritten. If the
/// owner removes the memory, the next contact is the first.
#[test]
fn damaged_memory_is_never_begun_anew() {
    let base = folder();
    let trust = trust(base.path());
    trust.accept(&chain(), &published(&chain(), 5), at(5), ExpiredPolicy::Refuse).unwrap();
    let path = trust.directory().join("state");
    let good = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error =
            trust.accept(&chain(), &published(&chain(), 6), at(6), ExpiredPolicy::Refuse).unwrap_err();
        let words = error.to_string();
        assert!(matches!(error, TrustError::Damaged { .. }), "{words}");
        assert!(words.contains(path.to_str().unwrap()) && words.contains("or remove it"), "{words}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    };
    for at in (0..good.len()).step_by(7) {
        let mut damaged = good.clone();
        damaged[at] ^= 0x10;
        refused(&damaged);
    }
    for length in [0, 1, 31, 32, good.len() - 1] {
        refused(&good[..length]);
    }
    std::fs::write(&path, &good).unwrap();
    trust.accept(&chain(), &published(&chain(), 6), at(6), ExpiredPolicy::Refuse).expect("whole again");
    std::fs::remove_file(&path).unwrap();
    trust.accept(&chain(), &published(&chain(), 4), at(6), ExpiredPolicy::Refuse).expect("a first contact");
}

/// The memory of one release does not count for another.
#[test]
fn memory_of_another_release() {
    let base = folder();
    let ours = trust(base.path());
    ours.accept(&chain(), &published(&chain(), 5), at(5), ExpiredPolicy::Refuse).unwrap();
    let other = begin(first_set_of_certificates());
    let theirs = Trust::open(base.path(), other.id()).unwrap();
    assert_eq!(theirs.seen().unwrap(), None);
    std::fs::copy(ours.directory().join("state"), theirs.directory().join("state")).unwrap();
    assert!(matches!(theirs.seen(), Err(TrustError::Damaged { .. })));
}

/// Two signed records with one sequence number: the second is refused, and both are kept whole for others to check.
#[test]
fn equivocation_is_proven() {
    let base = folder();
    let trust = trust(base.path());
    let first = published(&chain(), 5);
    trust.accept(&chain(), &first, at(5), ExpiredPolicy::Refuse).unwrap();
    let mut other = record(&chain(), 5);
    other.root_dir = reference(0xee);
    let other = file(signed(other, &[1, 2]));
    let error = trust.accept(&chain(), &other, at(5), ExpiredPolicy::Refuse).unwrap_err();
    assert!(error.to_string().contains("evidence"), "{error}");
    let (refusal, evidence) = refusal(error);
    assert!(matches!(refusal, Refusal::Equivocation { sequence: 5, .. }));
    let mut kept: Vec<RootFile> = walk(&evidence.expect("a folder"))
        .iter()
        .map(|path| form::read(&std::fs::read(path).unwrap()).unwrap())
        .collect();
    kept.sort_by_key(|file| file.record.value.root_dir.address);
    assert_eq!(kept, [first, other]);
}

/// A record that follows another one than was seen is accepted, as the publisher may have lost one; the user is told,
/// and both are kept.
#[test]
fn another_history_is_told() {
    let base = folder();
    let trust = trust(base.path());
    trust.accept(&chain(), &published(&chain(), 5), at(5), ExpiredPolicy::Refuse).unwrap();
    let next = trust.accept(&chain(), &published(&chain(), 6), at(6), ExpiredPolicy::Refuse).unwrap();
    assert_eq!(next.warnings, []);
    let mut other = record(&chain(), 7);
    other.previous = Some(Digest([6; 32]));
    let other = file(signed(other, &[1, 2]));
    let accepted = trust.accept(&chain(), &other, at(7), ExpiredPolicy::Refuse).unwrap();
    let (sequence, seen, named) = (6, next.digest, Digest([6; 32]));
    assert_eq!(accepted.warnings, [Warning::OtherHistory { sequence, seen, named }]);
    let mut kept: Vec<RootFile> = walk(&trust.directory().join("evidence"))
        .iter()
        .map(|path| form::read(&std::fs::read(path).unwrap()).unwrap())
        .collect();
    kept.sort_by_key(|file| file.record.value.sequence);
    assert_eq!(kept, [published(&chain(), 6), other]);
}

/// The record in force at a time is the highest that was signed by then. A renewed record is kept with the renewal that
/// lasts longest. A damaged one is an error.
#[test]
fn the_record_of_a_day() {
    let base = folder();
    let trust = trust(base.path());
    assert_eq!(trust.as_of(at(1)).unwrap(), None);
    for sequence in [2, 3, 5] {
        trust.accept(&chain(), &published(&chain(), sequence), at(sequence), ExpiredPolicy::Refuse).unwrap();
    }
    let five = renewed(&published(&chain(), 5), at(5) + LIFE_S);
    trust.accept(&chain(), &five, at(5) + LIFE_S, ExpiredPolicy::Refuse).unwrap();
    trust.accept(&chain(), &published(&chain(), 5), at(5) + LIFE_S, ExpiredPolicy::Refuse).unwrap();
    trust.accept(&rotated(), &published(&rotated(), 60), at(60), ExpiredPolicy::Refuse).unwrap();

    let on = |time_s| trust.as_of(time_s).unwrap().map(|found| found.file.record.value.sequence);
    assert_eq!(on(at(2) - 1), None);
    assert_eq!([on(at(2)), on(at(3)), on(at(5) - 1), on(at(5))], [Some(2), Some(3), Some(3), Some(5)]);
    assert_eq!([on(at(60) - 1), on(at(60)), on(u64::MAX)], [Some(5), Some(60), Some(60)]);
    let found = trust.as_of(at(30)).unwrap().unwrap();
    assert_eq!((found.file, found.validity.until_s), (five, at(5) + LIFE_S + 7 * DAY_S));

    let archived = walk(&trust.directory().join("archive"));
    assert_eq!(archived.len(), 4, "one file a record: {archived:?}");
    let two = archived.iter().find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("2-"));
    std::fs::write(two.unwrap(), b"not a record").unwrap();
    assert_eq!(on(at(3)), Some(3));
    let error = trust.as_of(at(2)).unwrap_err();
    assert!(matches!(&error, TrustError::Damaged { path, .. } if Some(path) == two), "{error}");
}

/// The archive is bounded: the lowest sequence numbers are removed first.
#[test]
fn the_archive_is_bounded() {
    let base = folder();
    let trust = trust(base.path());
    let folder = trust.directory().join("archive");
    for sequence in 1..=ARCHIVE_MAX {
        std::fs::write(folder.join(format!("{sequence}-0123456789ab")), b"").unwrap();
    }
    std::fs::write(folder.join("999-0123456789ab.partial"), b"").unwrap();
    let mut record = record(&chain(), 200);
    record.sequence = 5000;
    trust.accept(&chain(), &file(signed(record, &[1, 2])), at(200), ExpiredPolicy::Refuse).unwrap();
    let names: Vec<String> =
        walk(&folder).iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(names.len(), ARCHIVE_MAX + 1);
    assert!(!names.contains(&"1-0123456789ab".to_owned()));
    assert!(
        names.contains(&"2-0123456789ab".to_owned()) && names.iter().any(|name| name.starts_with("5000-"))
    );
}

/// Several threads, each with its own memory of one folder, like several processes: the highest record stays.
#[test]
fn several_at_once() {
    let base = folder();
    let path = base.path();
    std::thread::scope(|scope| {
        for first in 1..=4u64 {
            scope.spawn(move || {
                let trust = trust(path);
                for sequence in (first..=40).step_by(4) {
                    let outcome =
                        trust.accept(&chain(), &published(&chain(), sequence), at(40), ExpiredPolicy::Allow);
                    match outcome {
                        Ok(_) | Err(TrustError::Refused { refusal: Refusal::Rollback { .. }, .. }) => {}
                        other => panic!("{sequence}: {other:?}"),
                    }
                }
            });
        }
    });
    assert_eq!(trust(path).seen().unwrap().unwrap().sequence, 40);
}

/// A mirror in memory.
#[derive(Default)]
struct MemoryMirror {
    files: BTreeMap<String, Vec<u8>>,
    asked: Mutex<Vec<String>>,
}

impl MemoryMirror {
    fn of(chain: &KeyChain, root: &RootFile) -> MemoryMirror {
        let mut shelf = MemoryMirror::default();
        for set in chain.sets() {
            shelf.files.insert(layout::keys(set.value.number), form::write(set));
        }
        shelf.files.insert(layout::ROOT.to_owned(), form::write(root));
        shelf
    }

    fn with(mut self, name: &str, bytes: Vec<u8>) -> MemoryMirror {
        self.files.insert(name.to_owned(), bytes);
        self
    }
}

impl Mirror for MemoryMirror {
    fn name(&self) -> &str {
        "shelf"
    }

    fn get(&self, file: &str, range: Option<Range<u64>>, bytes_max: u64) -> Result<Vec<u8>, MirrorError> {
        assert!(range.is_none() && bytes_max > 0);
        self.asked.lock().unwrap().push(file.to_owned());
        let missing = || MirrorError::Missing { mirror: "shelf".to_owned(), file: file.to_owned() };
        self.files.get(file).cloned().ok_or_else(missing)
    }
}

/// An honest mirror is believed; keys are followed to the last set, and the next time only from the last known set.
#[test]
fn an_honest_mirror_is_believed() {
    let base = folder();
    let trust = trust(base.path());
    let shelf = MemoryMirror::of(&rotated(), &published(&rotated(), 6));
    let admitted = admit(&trust, &shelf, &[], at(6), ExpiredPolicy::Refuse).unwrap();
    assert_eq!((admitted.accepted.record.sequence, admitted.chain), (6, rotated()));
    assert_eq!(admitted.notices, Vec::<String>::new());
    assert_eq!(*shelf.asked.lock().unwrap(), ["revoked", "keys/1", "keys/2", "keys/3", "root"]);
    shelf.asked.lock().unwrap().clear();
    admit(&trust, &shelf, &[], at(6), ExpiredPolicy::Refuse).unwrap();
    assert_eq!(*shelf.asked.lock().unwrap(), ["revoked", "keys/2", "keys/3", "root"]);
}

/// A mirror that lacks the new keys is refused for its record, and one that has them teaches them for good, even when
/// its record is refused.
#[test]
fn keys_are_learnt_whatever_becomes_of_the_record() {
    let base = folder();
    let trust = trust(base.path());
    let torn = MemoryMirror::of(&rotated(), &published(&chain(), 5));
    let error = admit(&trust, &torn, &[], at(5), ExpiredPolicy::Refuse).unwrap_err();
    assert!(error.to_string().contains("key set 2 has replaced"), "{error}");
    assert_eq!(trust.chain().unwrap(), Some(rotated()));
    let behind = MemoryMirror::of(&chain(), &published(&chain(), 5));
    let error = admit(&trust, &behind, &[], at(5), ExpiredPolicy::Refuse).unwrap_err();
    assert!(matches!(error, AdmitError::Refused { .. }), "{error}");
}

/// Exchanged and missing key files are refused by their name.
#[test]
fn keys_out_of_place() {
    let base = folder();
    let trust = trust(base.path());
    let good = MemoryMirror::of(&rotated(), &published(&rotated(), 6));
    let second = good.files["keys/2"].clone();
    let mixed = MemoryMirror::of(&chain(), &published(&chain(), 6)).with("keys/1", second.clone());
    let error = admit(&trust, &mixed, &[], at(6), ExpiredPolicy::Refuse).unwrap_err();
    assert!(error.to_string().starts_with("shelf: keys/1: "), "{error}");
    let skipped = MemoryMirror::of(&rotated(), &published(&rotated(), 6)).with("keys/3", second);
    let error = admit(&trust, &skipped, &[], at(6), ExpiredPolicy::Refuse).unwrap_err();
    assert!(error.to_string().contains("this is key set 2, and key set 3 comes next"), "{error}");
    let junk =
        MemoryMirror::of(&rotated(), &published(&rotated(), 6)).with("root", b"<html>404</html>".to_vec());
    let error = admit(&trust, &junk, &[], at(6), ExpiredPolicy::Refuse).unwrap_err();
    assert!(matches!(error, AdmitError::Malformed { .. }), "{error}");
    // A certificate that was damaged here is not taken for a missing one.
    std::fs::write(trust.directory().join("revoked"), b"damaged").unwrap();
    let error =
        trust.accept(&rotated(), &published(&rotated(), 6), at(6), ExpiredPolicy::Refuse).unwrap_err();
    assert!(error.to_string().contains("may be used until"), "{error}");
    std::fs::remove_file(trust.directory().join("revoked")).unwrap();
    let mut none = good;
    none.files.clear();
    assert!(matches!(admit(&trust, &none, &[], at(6), ExpiredPolicy::Refuse), Err(AdmitError::Mirror(_))));
}

/// A forked succession: the keys that were seen first stay, the others are refused, and both are kept as proof.
#[test]
fn forked_keys_are_kept_as_proof() {
    let base = folder();
    let trust = trust(base.path());
    admit(
        &trust,
        &MemoryMirror::of(&rotated(), &published(&rotated(), 6)),
        &[],
        at(6),
        ExpiredPolicy::Refuse,
    )
    .unwrap();
    let mut fork = chain();
    fork.extend(signed(next_set(&first_set(), &[2, 3, 5], 2), &[2, 3])).unwrap();
    let shelf = MemoryMirror::of(&fork, &published(&fork, 7));
    let error = admit(&trust, &shelf, &[], at(7), ExpiredPolicy::Refuse).unwrap_err();
    let AdmitError::Refused { error, .. } = error else { panic!("{error}") };
    let TrustError::Keys { error: KeysError::Forked { number: 2, .. }, evidence: Some(evidence) } = *error
    else {
        panic!("{error}")
    };
    assert_eq!(walk(&evidence).len(), 2);
    assert_eq!(trust.chain().unwrap(), Some(rotated()));
    // A process that has followed the other branch itself gets the same error.
    assert!(matches!(trust.learn(&fork), Err(TrustError::Keys { error: KeysError::Forked { .. }, .. })));
}

/// A revocation counts wherever it is found (a directory under either name, a mirror), before anything else is asked
/// for, and still counts when it is gone from there.
#[test]
fn revocations_are_honoured_for_good() {
    let certificate = form::write(&revocation(&chain(), &[1, 3]));
    let root = published(&chain(), 5);
    let id = chain().id();
    for name in [id.to_string(), format!("{id}.revoked")] {
        let base = folder();
        let trust = trust(base.path());
        let directory = folder();
        std::fs::write(directory.path().join(&name), &certificate).unwrap();
        let shelf = MemoryMirror::of(&chain(), &root);
        let directories = [folder().keep(), directory.path().to_owned()];
        let error = admit(&trust, &shelf, &directories, at(5), ExpiredPolicy::Refuse).unwrap_err();
        assert!(matches!(&error, AdmitError::Revoked { .. }), "{error}");
        assert!(
            error.to_string().contains("the keys were stolen") && error.to_string().contains(&name),
            "{error}"
        );
        assert!(shelf.asked.lock().unwrap().is_empty());
        std::fs::remove_dir(&directories[0]).unwrap();
        assert!(matches!(
            admit(&trust, &shelf, &[], at(5), ExpiredPolicy::Allow),
            Err(AdmitError::Revoked { .. })
        ));
        assert!(matches!(
            trust.accept(&chain(), &root, at(5), ExpiredPolicy::Allow),
            Err(TrustError::Revoked(revoked)) if revoked.release == id
        ));
    }
    let base = folder();
    let trust = trust(base.path());
    let shelf = MemoryMirror::of(&chain(), &root).with(layout::REVOKED, certificate);
    assert!(matches!(
        admit(&trust, &shelf, &[], at(5), ExpiredPolicy::Refuse),
        Err(AdmitError::Revoked { .. })
    ));
}

/// False revocations are ignored, with a notice that names them; so is what is no file at all. A directory that cannot
/// be read ends everything.
#[test]
fn false_revocations_are_told_and_ignored() {
    let base = folder();
    let trust = trust(base.path());
    let id = chain().id();
    let directory = folder();
    std::fs::write(directory.path().join(id.to_string()), b"revoked, believe me").unwrap();
    std::fs::create_dir(directory.path().join(format!("{id}.revoked"))).unwrap();
    let one_signature = form::write(&revocation(&chain(), &[1]));
    let shelf = MemoryMirror::of(&chain(), &published(&chain(), 5)).with(layout::REVOKED, one_signature);
    let directories = [directory.path().to_owned()];
    let admitted =
        admit(&trust, &shelf, &directories, at(5), ExpiredPolicy::Refuse).expect("nothing true is there");
    assert_eq!(admitted.notices.len(), 3, "{:?}", admitted.notices);
    assert!(admitted.notices.iter().all(|notice| notice.contains("a false revocation")));
    assert!(admitted.notices[2].starts_with("shelf: revoked"), "{}", admitted.notices[2]);
    let gone = [directory.path().join("gone")];
    assert!(matches!(not_revoked(&trust, &gone), Err(AdmitError::RevocationsUnreadable { .. })));
}
