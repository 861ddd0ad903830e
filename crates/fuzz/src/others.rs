//! What witnesses are asked and answer, keys, rules for programs and their messages, names of FAT, and requests to
//! exported volumes.

use crate::{Target, encode, message, text, texts};
use holdfast_checkpoint::checkpoint::Checkpoint;
use holdfast_checkpoint::note::{KeyKind, Note, NoteSignature, VerifierKey};
use holdfast_checkpoint::submission::Submission;
use holdfast_checkpoint::{checkpoint, cosignature, judge};
use holdfast_crypto::{Digest, SigningKey, keyfile};
use holdfast_export::{REQUEST, Request};
use holdfast_fat::Name;
use holdfast_program_identity::manifest::Manifest;
use holdfast_program_identity::message::{FromGuard, FromHelper};
use holdfast_program_identity::rules::{self, Rights, Rule, RuleSet, Subject};
use holdfast_protocol::structure::LogHead;

pub(crate) const TARGETS: &[Target] = &[
    Target { name: "note", samples: notes, run: text::<Note> },
    Target { name: "note-signature", samples: note_signatures, run: text::<NoteSignature> },
    Target { name: "verifier-key", samples: verifier_keys, run: text::<VerifierKey> },
    Target { name: "checkpoint", samples: checkpoints, run: text::<Checkpoint> },
    Target { name: "submission", samples: submissions, run: submission },
    Target { name: "private-key", samples: private_keys, run: private_key },
    Target { name: "public-key", samples: public_keys, run: public_key },
    Target { name: "from-door", samples: from_guard, run: message::<FromGuard> },
    Target { name: "from-helper", samples: from_helper, run: message::<FromHelper> },
    Target { name: "program-rules", samples: program_rules, run: rule_set },
    Target {
        name: "program-rule-text",
        samples: || texts(&["prog:/usr/bin/ssh=r", "any=rw+jit"]),
        run: rule_text,
    },
    Target { name: "program-manifest", samples: manifests, run: |bytes| Manifest::read(bytes).is_ok() },
    Target {
        name: "fat-name",
        samples: || texts(&["letter.txt", "A long name, with spaces"]),
        run: fat_name,
    },
    Target { name: "nbd-request", samples: nbd_requests, run: nbd_request },
];

fn key() -> SigningKey {
    SigningKey::from_seed(&[5; 32])
}

fn head() -> LogHead {
    LogHead { size: 7, root: Digest([6; 32]) }
}

fn log_key() -> VerifierKey {
    checkpoint::log_key(&Digest([8; 32]), key().public())
}

fn witness() -> VerifierKey {
    VerifierKey::new("example.org/w1", KeyKind::Cosignature, key().public()).expect("a name")
}

/// A checkpoint that its server and a witness have signed.
fn note() -> Note {
    let mut note = Checkpoint::signed(&Digest([8; 32]), head(), &key());
    let line = cosignature::cosign(&witness(), &key(), &note.text, 1_700_000_000);
    note.signatures.push(line);
    note
}

fn notes() -> Vec<Vec<u8>> {
    vec![note().to_string().into_bytes()]
}

fn note_signatures() -> Vec<Vec<u8>> {
    note().signatures.iter().map(|line| line.to_string().into_bytes()).collect()
}

fn verifier_keys() -> Vec<Vec<u8>> {
    [log_key(), witness()].iter().map(|key| key.to_string().into_bytes()).collect()
}

fn checkpoints() -> Vec<Vec<u8>> {
    vec![Checkpoint::of(&Digest([8; 32]), head()).to_string().into_bytes()]
}

fn submissions() -> Vec<Vec<u8>> {
    let submission = Submission { old_size: 3, proof: vec![Digest([1; 32]), Digest([2; 32])], note: note() };
    vec![submission.to_string().into_bytes()]
}

fn submission(bytes: &[u8]) -> bool {
    if let Ok(words) = std::str::from_utf8(bytes) {
        if let Ok(note) = words.parse() {
            let _ = cosignature::newest(&witness(), &note);
        }
        let _ = judge::authenticate(words, &[log_key()]);
    }
    text::<Submission>(bytes)
}

fn private_keys() -> Vec<Vec<u8>> {
    vec![keyfile::format_private(&key(), "a comment", None).expect("it is written").as_bytes().to_vec()]
}

fn private_key(bytes: &[u8]) -> bool {
    let Ok(words) = std::str::from_utf8(bytes) else { return false };
    let _ = keyfile::public_half(words);
    keyfile::parse_private(words, None).is_ok()
}

fn public_keys() -> Vec<Vec<u8>> {
    vec![keyfile::format_public(&key().public(), "a comment").into_bytes()]
}

fn public_key(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|words| keyfile::parse_public(words).is_ok())
}

fn from_guard() -> Vec<Vec<u8>> {
    [
        FromGuard::Hello { version: 1, mountpoint: b"/home/alice/team".to_vec() },
        FromGuard::Start { version: 2, descriptor: 3 },
        FromGuard::Mark { id: 1, inode: 2, children: true },
        FromGuard::TicketReceived { id: 3, goes_on: false },
    ]
    .iter()
    .map(encode)
    .collect()
}

fn from_helper() -> Vec<Vec<u8>> {
    [
        FromHelper::Welcome { thread: 1 },
        FromHelper::Refused("why".to_owned()),
        FromHelper::Traced,
        FromHelper::Marked { id: 1, done: Err("why".to_owned()) },
        FromHelper::Ticket { id: 1, inode: 2, process: 3, found: Err("why".to_owned()) },
        FromHelper::Revoked { id: 4 },
    ]
    .iter()
    .map(encode)
    .collect()
}

fn program_rules() -> Vec<Vec<u8>> {
    let rule = |who, rights| Rule {
        who,
        rights,
        interpreter: false,
        generated: true,
        plain: false,
        hint: "/usr/bin/ssh".to_owned(),
    };
    let rules = vec![
        rule(Subject::Program(Digest([1; 32])), Rights::Read),
        rule(Subject::Package { key: [2; 32], name: "ssh".to_owned() }, Rights::ReadWrite),
    ];
    let plain = rules.iter().map(|rule| Rule { plain: true, ..rule.clone() }).collect();
    [plain, rules].map(|rules| RuleSet::new(rules).expect("a set").encode()).to_vec()
}

fn rule_set(bytes: &[u8]) -> bool {
    let Ok(set) = RuleSet::decode(bytes) else { return false };
    assert!(set.encode() == bytes, "two encodings of one value");
    true
}

fn rule_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|words| rules::parse(words).is_ok())
}

fn manifests() -> Vec<Vec<u8>> {
    let programs = [(Digest([1; 32]), "/usr/bin/ssh".to_owned())].into();
    vec![Manifest { name: "ssh".to_owned(), programs }.sign(&key())]
}

fn fat_name(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|words| Name::new(words).is_ok_and(|name| name.text() == words))
}

fn nbd_requests() -> Vec<Vec<u8>> {
    let request = |number: u16| {
        let mut bytes = REQUEST.to_be_bytes().to_vec();
        bytes.extend_from_slice(&1_u16.to_be_bytes());
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&[7; 20]);
        bytes
    };
    [0, 1, 4].map(request).to_vec()
}

fn nbd_request(bytes: &[u8]) -> bool {
    bytes.try_into().is_ok_and(|bytes| Request::decode(bytes).is_some())
}
