//! A witness against forks, rollbacks, restarts and crashes, and both ends of its protocol against each other and against
//! liars.

use holdfast_checkpoint::checkpoint::{Checkpoint, log_key};
use holdfast_checkpoint::cosignature;
use holdfast_checkpoint::judge::authenticate;
use holdfast_checkpoint::note::{KeyKind, VerifierKey};
use holdfast_checkpoint::submission::Submission;
use holdfast_checkpoint::tree::{CHECKPOINTS, Frontier, leaf};
use holdfast_crypto::{Digest, SigningKey};
use holdfast_witness::state::CosignError;
use holdfast_witness::{Service, StateError, WitnessClient, WitnessError, WitnessReply, WitnessState};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const ID: Digest = Digest([0xf5; 32]);

fn server() -> SigningKey {
    SigningKey::from_seed(&[1; 32])
}

fn log() -> VerifierKey {
    log_key(&ID, server().public())
}

/// A checkpoint of these leaves, with a proof from the first `old` of them.
fn submission(old: u64, leaves: &[u8]) -> Submission {
    let mut frontier = Frontier::default();
    let mut nodes = HashMap::new();
    for number in leaves {
        nodes.extend(frontier.append_to(CHECKPOINTS, leaf(Digest([*number; 32]))));
    }
    let head = frontier.head_of(CHECKPOINTS);
    let mut node = |level, at| nodes.get(&(level, at)).copied();
    let proof = CHECKPOINTS.consistency_proof(old, head.size, &mut node).unwrap_or_default();
    Submission { old_size: old, proof, note: Checkpoint::signed(&ID, head, &server()) }
}

fn state(folder: &Path) -> WitnessState {
    if !folder.exists() {
        WitnessState::init(folder, "witness.example/w1", None).expect("it is made");
    }
    WitnessState::open(folder).expect("it opens")
}

fn cosign(state: &WitnessState, submission: &Submission) -> Result<u64, CosignError> {
    let authentic = authenticate(&submission.to_string(), &[log()])?;
    let line = state.cosign(&authentic, 1000)?;
    Ok(cosignature::verify(state.verifier(), &submission.note.text, &line).expect("a cosignature"))
}

fn status(result: Result<u64, CosignError>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(CosignError::Refused(refusal)) => refusal.status(),
        Err(error) => panic!("{error}"),
    }
}

/// Proves: whatever a log tries, in whatever order and across restarts, no two heads are signed that contradict each
/// other; what it signed on the other side is kept.
#[test]
fn never_two_histories() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("state");
    let mut witness = state(&path);
    let ours = [0, 1, 2, 3, 4, 5, 6];
    let forked = [0, 1, 2, 9, 9, 9, 9, 9];
    assert_eq!(status(cosign(&witness, &submission(0, &ours[..3]))), 200);
    for round in 0..2 {
        assert_eq!(status(cosign(&witness, &submission(3, &ours[..3]))), 200, "again, in round {round}");
        assert_eq!(
            status(cosign(&witness, &submission(0, &ours[..3]))),
            409,
            "as if nothing had been signed"
        );
        assert_eq!(status(cosign(&witness, &submission(2, &ours[..2]))), 409, "rolled back");
        assert_eq!(status(cosign(&witness, &submission(3, &[0, 1, 9]))), 409, "another root");
        drop(witness);
        witness = state(&path);
    }
    assert_eq!(status(cosign(&witness, &submission(3, &ours[..5]))), 200);
    // The fork has the first three operations in common.
    for size in 4..=8 {
        let sent = submission(3, &forked[..size]);
        assert_eq!(status(cosign(&witness, &sent)), 409);
        let as_if_known = Submission { old_size: 5, ..sent };
        let judged = cosign(&witness, &as_if_known);
        assert!(judged.is_err(), "{size}");
    }
    assert_eq!(status(cosign(&witness, &submission(5, &ours))), 200, "the honest side goes on");
    assert!(witness.refused().len() >= 3, "{:?}", witness.refused());
    let shown = &witness.logs()[0];
    assert_eq!((&*shown.checkpoint.origin, shown.checkpoint.head.size), (log().name(), 7));
}

/// Proves: what was signed is on disk before the signature is there, so that a crash between the two, or a lost answer,
/// costs nothing: the log is told where the witness is, and goes on from there.
#[test]
fn a_crash_before_the_answer() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("state");
    let witness = state(&path);
    let _lost = cosign(&witness, &submission(0, &[0, 1, 2]));
    drop(witness);
    let witness = state(&path);
    let told = cosign(&witness, &submission(0, &[0, 1, 2, 3]));
    assert!(
        matches!(&told, Err(CosignError::Refused(refusal)) if refusal.to_string().contains("size 3")),
        "{told:?}"
    );
    assert_eq!(status(cosign(&witness, &submission(3, &[0, 1, 2, 3]))), 200);
    drop(witness);
    // One that was not finished was never signed, and does not count.
    let logs = path.join("logs");
    let file = std::fs::read_dir(&logs).expect("listed").next().expect("one").expect("read").path();
    std::fs::write(file.with_extension("partial"), "half").expect("written");
    assert_eq!(status(cosign(&state(&path), &submission(4, &[0, 1, 2, 3]))), 200);
}

/// Proves: a witness signs nothing if it does not know what it signed before, if another runs, or if its key is open to
/// others; and a directory has one witness only.
#[test]
fn no_doubt_is_signed_over() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("state");
    assert!(matches!(WitnessState::open(&path), Err(StateError::Missing(_))));
    let witness = state(&path);
    assert!(matches!(WitnessState::open(&path), Err(StateError::InUse(_))));
    assert_eq!(status(cosign(&witness, &submission(0, &[0, 1, 2]))), 200);
    assert_eq!(WitnessState::look(&path).expect("looking is allowed").logs().len(), 1);
    drop(witness);
    assert!(matches!(WitnessState::init(&path, "witness.example/w2", None), Err(StateError::Exists(_))));
    let logs = path.join("logs");
    let file = std::fs::read_dir(&logs).expect("listed").next().expect("one").expect("read").path();
    let good = std::fs::read(&file).expect("read");
    for damaged in [&b""[..], b"nonsense\n", &good[..good.len() / 2]] {
        std::fs::write(&file, damaged).expect("written");
        assert!(matches!(WitnessState::open(&path), Err(StateError::Damaged { .. })), "{damaged:?}");
    }
    let other_place = logs.join("0".repeat(64));
    std::fs::rename(&file, &other_place).expect("renamed");
    std::fs::write(&other_place, &good).expect("written");
    assert!(matches!(WitnessState::open(&path), Err(StateError::Damaged { .. })), "in another log's place");
    std::fs::rename(&other_place, &file).expect("renamed");
    WitnessState::open(&path).expect("whole again");
    std::fs::set_permissions(path.join("key"), std::fs::Permissions::from_mode(0o644)).expect("set");
    assert!(matches!(WitnessState::open(&path), Err(StateError::KeyReadable(_))));
    assert!(matches!(
        WitnessState::init(&folder.path().join("other"), "a name", None),
        Err(StateError::Name(_))
    ));
}

/// A witness over HTTP, until this is dropped.
struct Running {
    url: String,
    key: VerifierKey,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(folder: &Path) -> Running {
        let state = state(folder);
        let key = state.verifier().clone();
        let service = Service::open(state, vec![log()], ([127, 0, 0, 1], 0).into()).expect("it listens");
        let url = format!("http://{}", service.local_address());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            service.run(async { drop(stopped.await) }).expect("it serves");
        });
        Running { url, key, stop: Some(stop), thread: Some(thread) }
    }

    /// Head and body of the answer to these bytes.
    fn say(&self, bytes: &[u8]) -> (String, String) {
        let mut stream = TcpStream::connect(&self.url["http://".len()..]).expect("it listens");
        // It may answer, and end, before it has all.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            answer.extend_from_slice(&piece[..count]);
        }
        let answer = String::from_utf8(answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        (head.to_owned(), body.to_owned())
    }

    fn post(&self, path: &str, body: &str) -> (String, String) {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: w\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        self.say(format!("{head}{body}").as_bytes())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it ends");
        }
    }
}

/// Proves: both ends speak the protocol: what is asked is signed, where the witness is further it says so, and after a
/// restart it goes on.
#[test]
fn a_witness_over_http() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("state");
    let witness = Running::start(&path);
    let client = WitnessClient::new(&format!("{}/", witness.url), witness.key.clone()).expect("a URL");
    let Ok(WitnessReply::Cosigned(line, _)) = client.submit(&submission(0, &[0, 1])) else {
        panic!("not signed")
    };
    assert!(cosignature::verify(&witness.key, &submission(0, &[0, 1]).note.text, &line).is_some());
    assert_eq!(client.submit(&submission(0, &[0, 1, 2])), Ok(WitnessReply::OldSize(2)));
    assert!(matches!(client.submit(&submission(2, &[0, 1, 2])), Ok(WitnessReply::Cosigned(..))));
    let forked = client.submit(&submission(3, &[0, 1, 7]));
    assert!(matches!(forked, Err(WitnessError::Refused { status: 409, .. })), "{forked:?}");
    let forked = client.submit(&Submission { old_size: 3, ..submission(2, &[0, 1, 7, 8]) });
    assert!(matches!(forked, Err(WitnessError::Refused { status: 422, .. })), "{forked:?}");
    drop(witness);
    assert!(matches!(client.submit(&submission(3, &[0, 1, 2])), Err(WitnessError::Unreachable(_))));
    let witness = Running::start(&path);
    let client = WitnessClient::new(&witness.url, witness.key.clone()).expect("a URL");
    assert_eq!(client.submit(&submission(0, &[0, 1, 2])), Ok(WitnessReply::OldSize(3)));
    for wrong in ["ftp://host/", "http://", "http:///x", "http://host/?x", "host", "http://a@b/"] {
        assert!(
            matches!(WitnessClient::new(wrong, witness.key.clone()), Err(WitnessError::Url(_))),
            "{wrong}"
        );
    }
}

/// Proves: strangers get the status that the specification names, within bounds, and cost nothing on disk.
#[test]
fn strangers() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("state");
    let witness = Running::start(&path);
    let good = submission(0, &[0, 1]).to_string();
    let head = Frontier::default().head_of(CHECKPOINTS);
    let signed = |id: &Digest, key: &SigningKey| {
        Submission { note: Checkpoint::signed(id, head, key), ..submission(0, &[]) }.to_string()
    };
    for (path, body, status) in [
        ("/add-checkpoint", "nonsense".to_owned(), "400"),
        ("/add-checkpoint", "\u{fffd}".repeat(100), "400"),
        ("/add-checkpoint", good.replace("old 0", "old 7"), "400"),
        ("/add-checkpoint", signed(&ID, &SigningKey::from_seed(&[9; 32])), "403"),
        ("/add-checkpoint", signed(&Digest([3; 32]), &server()), "404"),
        ("/add-checkpoint", "x".repeat(100_000), "413"),
        ("/elsewhere", good.clone(), "404"),
        ("/", good.clone(), "405"),
    ] {
        let (head, _) = witness.post(path, &body);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {head}");
    }
    let no_text =
        b"POST /add-checkpoint HTTP/1.1\r\nhost: w\r\nconnection: close\r\ncontent-length: 2\r\n\r\n\xff\xff";
    assert!(witness.say(no_text).0.starts_with("HTTP/1.1 400"));
    let (head, body) = witness.say(b"GET / HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && body.trim() == witness.key.to_string(), "{head} {body}");
    assert_eq!(std::fs::read_dir(path.join("logs")).expect("listed").count(), 0);
    let (head, body) = witness.post("/add-checkpoint", &good);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(body.starts_with("\u{2014} witness.example/w1 ") && body.ends_with('\n'), "{body}");
    let (head, body) = witness.post("/add-checkpoint", &good);
    assert!(head.starts_with("HTTP/1.1 409") && head.contains("text/x.tlog.size"), "{head}");
    assert_eq!(body, "2\n");
}

/// Proves: a log that asks too often is told to wait.
#[test]
fn too_often() {
    let folder = tempfile::tempdir().expect("a directory");
    let witness = Running::start(&folder.path().join("state"));
    let client = WitnessClient::new(&witness.url, witness.key.clone()).expect("a URL");
    assert!(matches!(client.submit(&submission(0, &[0])), Ok(WitnessReply::Cosigned(..))));
    let again = submission(1, &[0]);
    let limited =
        (0..5000).any(|_| matches!(client.submit(&again), Err(WitnessError::Refused { status: 429, .. })));
    assert!(limited, "five thousand heads were signed without a pause");
}

/// Proves: a witness that lies gains nothing: only a cosignature by its own key, of what was sent, counts.
#[test]
fn lying_witnesses() {
    let sent = submission(0, &[0, 1]);
    let (key, other) = (SigningKey::from_seed(&[4; 32]), SigningKey::from_seed(&[5; 32]));
    let verifier = |key: &SigningKey| {
        VerifierKey::new("witness.example/w1", KeyKind::Cosignature, key.public()).expect("a name")
    };
    let by_other = cosignature::cosign(&verifier(&other), &other, &sent.note.text, 5).to_string();
    let of_other = cosignature::cosign(&verifier(&key), &key, &submission(0, &[0]).note.text, 5).to_string();
    let good = cosignature::cosign(&verifier(&key), &key, &sent.note.text, 5).to_string();
    type Expected = fn(&Result<WitnessReply, WitnessError>) -> bool;
    let nothing: Expected = |asked| matches!(asked, Err(WitnessError::NoCosignature(_)));
    let refused: Expected = |asked| matches!(asked, Err(WitnessError::Refused { .. }));
    let cases: [(&str, String, Expected); 9] = [
        ("200 OK", String::new(), nothing),
        ("200 OK", format!("{by_other}\n"), nothing),
        ("200 OK", format!("{of_other}\n"), nothing),
        ("200 OK", "nonsense\n".repeat(100), nothing),
        ("200 OK", format!("{by_other}\n{good}\n"), |asked| {
            matches!(asked, Ok(WitnessReply::Cosigned(_, 5)))
        }),
        ("200 OK", "x".repeat(1 << 20), |asked| matches!(asked, Err(WitnessError::Unreachable(_)))),
        ("409 Conflict", "0\n".to_owned(), refused),
        ("409 Conflict", "many\n".to_owned(), refused),
        ("302 Found", String::new(), refused),
    ];
    for (status, body, expected) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\nlocation: {url}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        let liar = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("asked");
            let mut request = vec![0; 64 << 10];
            let mut read = 0;
            // A note ends with a newline, and no line of a head does so alone.
            while read == 0 || request[read - 1] != b'\n' || request[..read].ends_with(b"\r\n") {
                read += stream.read(&mut request[read..]).expect("sent");
            }
            let _ = stream.write_all(answer.as_bytes());
        });
        let asked = WitnessClient::new(&url, verifier(&key)).expect("a URL").submit(&sent);
        assert!(expected(&asked), "{status} {:?}: {asked:?}", body.chars().take(60).collect::<String>());
        liar.join().expect("it ends");
    }
}
