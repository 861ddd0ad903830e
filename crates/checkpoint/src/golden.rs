//! The specifications' own examples. A change that breaks these tests breaks interoperability with other witnesses.

use crate::checkpoint::Checkpoint;
use crate::cosignature;
use crate::judge::{Refusal, authenticate};
use crate::note::{KeyKind, Note, VerifierKey};
use crate::submission::Submission;
use crate::tree::{CHECKPOINTS, leaf};
use holdfast_crypto::{Digest, SigningKey};
use holdfast_protocol::log_tree::Frontier;
use holdfast_protocol::structure::LogHead;
use sha2::Digest as _;

/// c2sp.org/signed-note.
const NOTE: &str =
    "Ognuno sta solo sul cuor della terra\ntrafitto da un raggio di sole:\n\ned \u{e8} subito sera.\n\n";
/// c2sp.org/tlog-witness.
const SUBMISSION: &str = "old 20852014
PlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=
jrJZDmY8Y7SyJE0MWLpLozkIVMSMZcD5kvuKxPC3swk=
5+pKlUdi2LeF/BcMHBn+Ku6yhPGNCswZZD1X/6QgPd8=
/6WVhPs2CwSsb5rYBH5cjHV/wSmA79abXAwhXw3Kj/0=

example.com/behind-the-sofa
20852163
CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

\u{2014} example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=
\u{2014} example.com/behind-the-sofa opLqBQsREYCgu6xQkYQwJr9fo45a62DN9EdmHXnZdXNqlcVGlCum2Wks+49/V6267UEjw6QUXTS5Rovnzv++qbSzm9Q=
";
/// c2sp.org/tlog-cosignature.
const COSIGNED: &str = "example.com/behind-the-sofa
20852163
CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

\u{2014} example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=
\u{2014} witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==
";

/// The examples are read, mean what the specifications say, and are written byte for byte the same.
#[test]
fn examples_of_the_specifications() {
    let note = format!(
        "{NOTE}\u{2014} quasimodo.example/salvatore NnugSzTjtVAewIS+Z/iJhUPeFDkO/5QQ2i5ddnGITLlC+EhfLW9oJKONrMouFSQU0xMcXxj99ihAQwaqP3ZekRwNtIc=\n"
    );
    let read: Note = note.parse().expect("it is a note");
    assert!(
        read.text.ends_with("subito sera.\n") && read.text.contains("sole:\n\n"),
        "the last empty line divides"
    );
    assert_eq!(read.signatures[0].id, [0x36, 0x7b, 0xa0, 0x4b]);
    assert_eq!(read.to_string(), note);

    let submission: Submission = SUBMISSION.parse().expect("a submission");
    assert_eq!((submission.old_size, submission.proof.len()), (20_852_014, 4));
    assert_eq!(submission.to_string(), SUBMISSION);
    let checkpoint: Checkpoint = submission.note.text.parse().expect("a checkpoint");
    assert_eq!((&*checkpoint.origin, checkpoint.head.size), ("example.com/behind-the-sofa", 20_852_163));
    assert_eq!(checkpoint.to_string(), submission.note.text);

    let cosigned: Note = COSIGNED.parse().expect("a note");
    assert_eq!(cosigned.to_string(), COSIGNED);
    let line = &cosigned.signatures[1];
    assert_eq!((&*line.name, line.signature.len()), ("witness.example.com/w1", 72));
    assert_eq!(line.signature[..8], 1_679_315_147u64.to_be_bytes(), "the time of the example");
    assert_eq!(line.id, [0x8d, 0x66, 0xcf, 0x3f]);
}

/// A key and a note made by Go's implementation of notes (the example of golang.org/x/mod/sumdb/note),
/// written down before this program existed, verify.
#[test]
fn a_note_of_another_implementation() {
    let key: VerifierKey =
        "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW".parse().expect("a key");
    assert_eq!(key.kind(), KeyKind::Note);
    assert_eq!(key.to_string(), "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW");
    let text = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n";
    let note = format!(
        "{text}\n\u{2014} PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
    );
    let note: Note = note.parse().expect("a note");
    assert!(note.is_signed_by(&key));
    let altered = Note { text: note.text.replace("answer", "anzwer"), ..note };
    assert!(!altered.is_signed_by(&key));
}

fn witness() -> (SigningKey, VerifierKey) {
    let key = SigningKey::from_seed(&[4; 32]);
    let verifier =
        VerifierKey::new("witness.example/w1", KeyKind::Cosignature, key.public()).expect("a name");
    (key, verifier)
}

/// Notes of ours, made with known keys, stay the same, so that what is signed never changes.
#[test]
fn ours_are_held() {
    let server = SigningKey::from_seed(&[1; 32]);
    let (key, verifier) = witness();
    let mut frontier = Frontier::default();
    (0..5u8).for_each(|number| drop(frontier.append_to(CHECKPOINTS, leaf(Digest([number; 32])))));
    let note = Checkpoint::signed(&Digest([0xf5; 32]), frontier.head_of(CHECKPOINTS), &server);
    let line = cosignature::cosign(&verifier, &key, &note.text, 1_700_000_000);
    assert_eq!(cosignature::verify(&verifier, &note.text, &line), Some(1_700_000_000));
    let all = format!("{verifier}\n{note}{line}\n");
    assert_eq!(hex(&sha2::Sha256::digest(&all)), OURS, "{all}");
}

const OURS: &str = "717bbefc71ae1f75e4da1e9180d3e6de2fb33ee04ac0270bba14f72739d0de4a";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The tree is that of RFC 6962, section 2.1, written out once more by its definition.
#[test]
fn the_tree_is_that_of_rfc_6962() {
    let hash = |data: &[u8]| -> [u8; 32] { sha2::Sha256::digest(data).into() };
    let leaves: Vec<[u8; 32]> = (0..3u8).map(|n| [n; 32]).collect();
    let rfc_leaf = |data: &[u8; 32]| hash(&[&[0][..], data].concat());
    let rfc_node = |a: [u8; 32], b: [u8; 32]| hash(&[&[1][..], &a, &b].concat());
    let [a, b, c] = [rfc_leaf(&leaves[0]), rfc_leaf(&leaves[1]), rfc_leaf(&leaves[2])];
    let mut frontier = Frontier::default();
    for data in &leaves {
        frontier.append_to(CHECKPOINTS, leaf(Digest(*data)));
    }
    let head = frontier.head_of(CHECKPOINTS);
    assert_eq!(head, LogHead { size: 3, root: Digest(rfc_node(rfc_node(a, b), c)) });
}

/// A cosignature is good for its text, time, name and kind of key only.
#[test]
fn cosignatures_are_bound() {
    let (key, verifier) = witness();
    let text = Checkpoint::of(&Digest([1; 32]), LogHead { size: 7, root: Digest([2; 32]) }).to_string();
    let line = cosignature::cosign(&verifier, &key, &text, 1000);
    assert_eq!(cosignature::verify(&verifier, &text, &line), Some(1000));
    assert_eq!(cosignature::verify(&verifier, &text.replace("7", "8"), &line), None);
    let mut later = line.clone();
    later.signature[7] ^= 1;
    assert_eq!(cosignature::verify(&verifier, &text, &later), None);
    let renamed = VerifierKey::new("witness.example/w2", KeyKind::Cosignature, key.public()).expect("a name");
    assert_eq!(cosignature::verify(&renamed, &text, &line), None);
    let plain = VerifierKey::new("witness.example/w1", KeyKind::Note, key.public()).expect("a name");
    assert_eq!(cosignature::verify(&plain, &text, &line), None);
    let mut short = line;
    short.signature.pop();
    assert_eq!(cosignature::verify(&verifier, &text, &short), None);
}

/// The verdict of a witness on each submission, with its HTTP status.
#[test]
fn verdicts_of_a_witness() {
    let server = SigningKey::from_seed(&[1; 32]);
    let id = Digest([0xf5; 32]);
    let log = crate::checkpoint::log_key(&id, server.public());
    let head = |leaves: &[u8]| {
        let mut frontier = Frontier::default();
        leaves.iter().for_each(|n| drop(frontier.append_to(CHECKPOINTS, leaf(Digest([*n; 32])))));
        frontier.head_of(CHECKPOINTS)
    };
    let sent = |old_size: u64, leaves: &[u8], proof: Vec<Digest>, key: &SigningKey| {
        Submission { old_size, proof, note: Checkpoint::signed(&id, head(leaves), key) }.to_string()
    };
    let judge = |last: Option<LogHead>, body: &str| {
        authenticate(body, std::slice::from_ref(&log)).and_then(|authentic| authentic.extends(last))
    };
    let two = Some(head(&[0, 1]));
    let third = leaf(Digest([2; 32]));
    let stranger = SigningKey::from_seed(&[9; 32]);
    assert_eq!(judge(None, &sent(0, &[0, 1], vec![], &server)), Ok(()));
    assert_eq!(judge(two, &sent(2, &[0, 1], vec![], &server)), Ok(()), "again, for a new time");
    assert_eq!(judge(two, &sent(2, &[0, 1, 2], vec![third], &server)), Ok(()));
    let cases = [
        (two, sent(0, &[0, 1], vec![], &server), 409),
        (two, sent(1, &[0, 1, 2], vec![], &server), 409),
        (two, sent(2, &[0, 7], vec![], &server), 409),
        (two, sent(2, &[0, 7, 2], vec![third], &server), 422),
        (two, sent(2, &[0, 1, 2], vec![], &server), 422),
        (two, sent(2, &[0, 1], vec![third], &server), 422),
        (None, sent(0, &[0, 1], vec![third], &server), 422),
        (two, sent(3, &[0, 1], vec![], &server), 400),
        (two, sent(2, &[0, 1, 2], vec![third], &stranger), 403),
        (two, SUBMISSION.to_owned(), 404),
        (two, "old 2\n".to_owned(), 400),
    ];
    for (last, body, status) in cases {
        let refusal = judge(last, &body).expect_err("it is refused");
        assert_eq!(refusal.status(), status, "{refusal}: {body}");
    }
    let conflict = judge(two, &sent(2, &[0, 7], vec![], &server));
    assert_eq!(conflict, Err(Refusal::OtherRoot(2)), "two trees of one size convict the log");
}
