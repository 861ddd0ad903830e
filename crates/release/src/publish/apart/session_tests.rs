//! A walker that was taken over, at the level of the real protocol: what it sends, and how that is handled.

use super::*;
use crate::index::Index;
use crate::publish::memory::PublishMemory;
use crate::publish::rules::Rules;
use crate::publish::store::PackStore;
use holdfast_content::{Block, BlockSink, DeviceId, Reference};
use holdfast_crypto::{Digest, DigestKey};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;

const KEY: DigestKey = DigestKey::WELL_KNOWN;

fn terms() -> WalkOptions {
    let (source, digest_key) = (Vec::new(), KEY.0);
    WalkOptions {
        source,
        digest_key,
        opaque: Vec::new(),
        newest: None,
        level: 1,
        remembers: false,
        threads: 1,
    }
}

/// Runs `act` with a session over `tree`.
fn with(tree: &Path, act: impl FnOnce(&mut Session, &PackStore)) {
    let target = tempfile::tempdir().unwrap();
    let store = PackStore::open(target.path(), KEY, &Index::default(), 1, 1).unwrap();
    let mut progress = |_: crate::publish::Progress| true;
    let rules = Rules::new(&["*.o".into()], &[]).unwrap();
    let local = Local::new(tree, &rules, &store, PublishMemory::open(None).unwrap(), &mut progress);
    act(&mut Session::new(terms(), &local, &Index::default()), &store);
}

fn ask(session: &mut Session, request: &Request) -> Result<(Vec<u8>, Vec<File>), PublishError> {
    let mut step = session.take(&encode(&RequestPacket::Last(encode(request))));
    let (mut bytes, mut files) = (Vec::new(), Vec::new());
    loop {
        match step {
            Step::Reply(packet, with) => {
                files.extend(with);
                match packet {
                    ReplyPacket::Part(part) => bytes.extend(part),
                    ReplyPacket::Last(part) => {
                        bytes.extend(part);
                        return Ok((bytes, files));
                    }
                    ReplyPacket::Received => panic!("the question was whole"),
                }
            }
            Step::End(outcome) => return outcome.map(|walked| (encode(&walked), Vec::new())),
        }
        step = session.take(&encode(&RequestPacket::More));
    }
}

/// The reply to a walker's request to open a file of the tree.
fn opened(session: &mut Session, name: &[u8]) -> Result<File, i32> {
    let (bytes, mut files) = ask(session, &Request::Open(vec![name.to_vec()])).expect("an answer");
    let replies: Vec<OpenReply> = decode(&bytes).expect("the answer to it");
    assert_eq!((replies.len(), replies[0].is_ok()), (1, files.len() == 1));
    replies.into_iter().next().expect("one").map(|_| files.pop().expect("one"))
}

fn entered(session: &mut Session, name: Option<&[u8]>) -> Result<(), i32> {
    let (bytes, _) = ask(session, &Request::Enter(0, name.map(<[u8]>::to_vec))).expect("an answer");
    decode::<EnterReply>(&bytes).expect("the answer to it").map(|_| ())
}

fn is_misbehaviour(outcome: Result<(Vec<u8>, Vec<File>), PublishError>) -> bool {
    matches!(outcome, Err(PublishError::Misbehaved(_)))
}

fn chunk(bytes: &[u8]) -> Block {
    Block::new(&KEY, BlockKind::Chunk, vec![], bytes.to_vec())
}

fn put(block: &Block) -> Request {
    Request::Put(vec![(false, pack::frame(&block.reference().address, &block.to_stored()))])
}

fn done(root: Reference) -> Request {
    Request::Done(WalkResult {
        root,
        names: 0,
        bytes: 0,
        read: 0,
        notes: vec!["a\x1b[2J".into(); 200],
        hints: None,
    })
}

/// Proves: no name leads out of the tree, and only regular files are opened, for reading.
#[test]
fn no_way_out_of_the_tree() {
    let around = tempfile::tempdir().unwrap();
    let tree = around.path().join("tree");
    std::fs::create_dir_all(tree.join("inside")).unwrap();
    std::fs::write(around.path().join("secret"), "key").unwrap();
    std::fs::write(tree.join("file"), "text").unwrap();
    std::fs::write(tree.join("left-out.o"), "not to be published").unwrap();
    symlink("../secret", tree.join("to-file")).unwrap();
    symlink("..", tree.join("to-directory")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.join("fifo"), rustix::fs::Mode::RUSR).unwrap();
    with(&tree, |session, _| {
        assert!(opened(session, b"file").is_err(), "nothing is entered yet");
        assert!(entered(session, Some(b"inside")).is_err(), "nothing is entered yet");
        entered(session, None).unwrap();
        assert!(entered(session, None).is_err(), "there is one tree");
        let secret = around.path().join("secret").into_os_string().into_encoded_bytes();
        let names: [&[u8]; 11] = [
            b"..",
            b".",
            b"",
            b"../secret",
            b"inside/../../secret",
            b"to-file",
            b"to-directory",
            b"fifo",
            b"inside",
            b"left-out.o",
            &secret,
        ];
        for name in names {
            let shown = String::from_utf8_lossy(name);
            assert!(opened(session, name).is_err(), "open {shown}");
            if name != b"inside" {
                assert!(entered(session, Some(name)).is_err(), "enter {shown}");
            }
        }
        let too_many = vec![b"file".to_vec(); OPENED_MAX + 1];
        for names in [vec![b"a\0b".to_vec()], too_many] {
            assert!(is_misbehaviour(ask(session, &Request::Open(names))));
        }
        let mut file = opened(session, b"file").expect("a file comes");
        assert!(file.write_all(b"altered").is_err(), "it is for reading");
        entered(session, Some(b"inside")).unwrap();
        ask(session, &Request::Leave(u32::MAX)).unwrap();
        let (bytes, _) = ask(session, &Request::Entries(0)).expect("an answer");
        let entries: OrErrno<Vec<NamedStatus>> = decode(&bytes).expect("the answer to it");
        assert!(entries.is_err(), "above the tree there is nothing");
        assert!(entered(session, Some(b"inside")).is_err(), "above the tree there is nothing");
        entered(session, None).unwrap();
        let (bytes, _) = ask(session, &Request::Enter(1, Some(b"inside".to_vec()))).expect("an answer");
        assert!(decode::<EnterReply>(&bytes).expect("the answer to it").is_err(), "it was left before");
    });
}

/// Proves: a block is accepted if it has its digest and all blocks that it refers to are there; a tree is
/// accepted if its root is there.
#[test]
fn verdicts_on_blocks() {
    let tree = tempfile::tempdir().unwrap();
    let (one, two) = (chunk(b"one"), chunk(b"two"));
    let called_other = pack::frame(&two.reference().address, &one.to_stored());
    let mut twice = pack::frame(&one.reference().address, &one.to_stored());
    twice.extend(twice.clone());
    let cut = called_other[..called_other.len() - 1].to_vec();
    let dangling = Block::new(&KEY, BlockKind::Inode, vec![Digest([7; 32])], vec![]);
    let table = Block::new(&KEY, BlockKind::Table, vec![], vec![]);
    let other_key = Block::new(&DigestKey([9; 32]), BlockKind::Chunk, vec![], b"one".to_vec());
    let cases: [(&str, Request); 9] = [
        ("called otherwise", Request::Put(vec![(false, called_other)])),
        ("two in one", Request::Put(vec![(false, twice)])),
        ("cut", Request::Put(vec![(false, cut)])),
        ("nothing", Request::Put(vec![(true, vec![])])),
        ("refers to what is not there", put(&dangling)),
        ("of no release", put(&table)),
        ("of another digest key", put(&other_key)),
        ("a root that is not there", done(one.reference())),
        (
            "a root that is not there, of no algorithm that fits",
            done(Reference { length: 0, ..two.reference() }),
        ),
    ];
    for (name, request) in cases {
        with(tree.path(), |session, store| {
            assert!(is_misbehaviour(ask(session, &request)), "{name}");
            assert!(!store.has(&one.reference().address) && !store.has(&two.reference().address), "{name}");
        });
    }
    with(tree.path(), |session, store| {
        ask(session, &put(&one)).unwrap();
        assert!(store.has(&one.reference().address));
        assert!(is_misbehaviour(ask(session, &done(one.reference()))), "a chunk is no root");
    });
    for (kind, is_root) in [(InodeKind::Directory, true), (InodeKind::Fifo, false)] {
        with(tree.path(), |session, _| {
            let mut blocks = BlockList(Vec::new());
            let root = Inode::new(kind, 0o755, DeviceId(0), 0).store(&mut blocks).unwrap();
            ask(session, &put(&blocks.0[0])).unwrap();
            match ask(session, &done(root)) {
                Ok((walked, _)) => {
                    let walked: WalkResult = decode(&walked).unwrap();
                    assert!(is_root && walked.root == root);
                    assert_eq!(walked.notes, vec!["a [2J"; NOTES_MAX], "words are bounded and plain");
                }
                outcome => assert!(!is_root && is_misbehaviour(outcome)),
            }
        });
    }
}

struct BlockList(Vec<Block>);

impl BlockSink for BlockList {
    fn digest_key(&self) -> DigestKey {
        KEY
    }

    fn put(&mut self, block: Block) -> Reference {
        self.0.push(block.clone());
        block.reference()
    }
}

/// Proves: an invalid or oversized request ends the session, and takes no memory.
#[test]
fn verdicts_on_packets() {
    let tree = tempfile::tempdir().unwrap();
    let is_end = |step: Step| matches!(step, Step::End(Err(PublishError::Misbehaved(_))));
    let mut follows = encode(&Request::Leave(1));
    follows.push(0);
    let packets = [
        vec![],
        vec![9],
        encode(&RequestPacket::More),
        encode(&RequestPacket::Last(vec![])),
        encode(&RequestPacket::Last(vec![200])),
        encode(&RequestPacket::Last(follows)),
        [encode(&RequestPacket::Last(encode(&Request::Leave(1)))), vec![0]].concat(),
    ];
    for packet in packets {
        with(tree.path(), |session, _| assert!(is_end(session.take(&packet)), "{packet:?}"));
    }
    with(tree.path(), |session, _| {
        let part = encode(&RequestPacket::Part(vec![0; PART_BYTES_MAX]));
        let taken = (0..REQUEST_BYTES_MAX).take_while(|_| !is_end(session.take(&part))).count();
        assert_eq!(taken, REQUEST_BYTES_MAX / PART_BYTES_MAX);
    });
    // Text for a terminal loses its control characters.
    with(tree.path(), |session, _| {
        let fault = Fault::Unfit(b"a\nb".to_vec(), "\x1b]0;x".repeat(10_000));
        let Err(PublishError::Unfit { path, why }) = ask(session, &Request::Failed(fault)) else {
            panic!("it says that it failed")
        };
        assert_eq!(path, Path::new("a b"));
        assert!(why.chars().count() <= TEXT_CHARS_MAX && !why.contains('\x1b'));
    });
}
