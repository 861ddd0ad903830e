//! What `tests/walker.rs` starts in place of the process that walks a tree: walkers that were taken over, each in the real
//! sandbox with the real channel. Which one it is, the name of the tree says; what is called otherwise is walked honestly.

use borsh::BorshDeserialize;
use holdfast_components::{Channel, Context, Kind, Main, Patience, run_if_component};
use holdfast_content::{Block, BlockKind, BlockSink, DeviceId, Inode, InodeKind, Reference, Value};
use holdfast_crypto::{Digest, DigestKey, decode, encode};
use holdfast_release::pack;
use holdfast_release::publish::apart::grammar::{
    EnterReply, Fault, FileSigns, FileStatus, NamedStatus, OpenReply, OrErrno, PART_BYTES_MAX, PORT,
    ReplyPacket, Request, RequestPacket, WalkOptions, WalkResult,
};
use holdfast_release::publish::apart::{COMPONENTS, WALKER};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const TABLE: &[(&str, Main)] = &[(WALKER, walk)];
const PATIENCE: Duration = Duration::from_secs(60);
const KEY: DigestKey = DigestKey::WELL_KNOWN;

fn main() -> ExitCode {
    run_if_component(TABLE).unwrap_or_else(|| {
        eprintln!("this is started by tests/walker.rs");
        ExitCode::from(2)
    })
}

fn walk(context: Context) -> ExitCode {
    let connection = Connection {
        channel: context.ports.channel(PORT).expect("it was handed out"),
        number: Cell::new(0),
        buffer: RefCell::default(),
    };
    let terms: WalkOptions = connection.ask(&Request::Options);
    let source = String::from_utf8(terms.source).expect("the test names it");
    match source.rsplit('/').next().expect("a name") {
        "garbage" => garbage(&connection),
        "endless question" => endless_question(&connection),
        "file" => connection.packet(
            Kind::Request,
            &encode(&RequestPacket::More),
            &[context_file(&connection).as_fd()],
        ),
        "answers" => {
            connection.packet(Kind::Reply, &encode(&RequestPacket::Last(encode(&Request::Leave(1)))), &[])
        }
        "alias" => connection.under(7, &encode(&RequestPacket::Last(encode(&Request::Leave(1))))),
        "does not read" => does_not_read(&connection),
        "names" => names(&connection),
        "own calls: open" => drop(File::open("/etc/passwd")),
        "own calls: connect" => drop(std::net::TcpStream::connect("127.0.0.1:22")),
        "own calls: program" => drop(std::process::Command::new("/bin/sh").spawn()),
        "own calls: write" => writes(&connection),
        "dies" => dies(&connection),
        "false block" => false_block(&connection),
        "dangling" => dangling(&connection),
        "no root" => connection.send_request(&Request::Done(done(missing()))),
        "hints" => hints(&connection),
        "words" => connection
            .send_request(&Request::Failed(Fault::Unfit(b"a\x1b[2Jb".to_vec(), "\r\x07".repeat(9000)))),
        "memory" => memory(&connection),
        "another tree" => another_tree(&connection),
        _ => return honest(context),
    }
    // Whatever it was, it goes on as if nothing were.
    std::thread::sleep(PATIENCE);
    ExitCode::SUCCESS
}

/// The walker as it ships, from the beginning: that it was asked for its terms before is none of its business.
fn honest(context: Context) -> ExitCode {
    let (_, main) = COMPONENTS.iter().find(|(name, _)| *name == WALKER).expect("it is there");
    main(context)
}

struct Connection {
    channel: Arc<Channel>,
    number: Cell<u64>,
    buffer: RefCell<Vec<u8>>,
}

impl Connection {
    /// Sends any packet. If the publisher is gone there is nothing left to do.
    fn send(&self, kind: Kind, alias: u16, body: &[u8], files: &[BorrowedFd]) {
        self.number.set(self.number.get() + 1);
        let sent = self.channel.send(kind, self.number.get(), alias, body, files, Patience::of(PATIENCE));
        if sent.is_err() {
            std::process::exit(0);
        }
    }

    fn packet(&self, kind: Kind, body: &[u8], files: &[BorrowedFd]) {
        self.send(kind, 0, body, files);
    }

    fn under(&self, alias: u16, body: &[u8]) {
        self.send(Kind::Request, alias, body, &[]);
    }

    fn receive(&self) -> (ReplyPacket, Vec<OwnedFd>) {
        let mut buffer = self.buffer.borrow_mut();
        if buffer.is_empty() {
            *buffer = self.channel.buffer();
        }
        match self.channel.receive(&mut buffer, Patience::of(PATIENCE)) {
            Ok(packet) => (decode(packet.body).expect("an answer"), packet.files),
            Err(_) => std::process::exit(0),
        }
    }

    /// Says a request as it should be said, and does not wait for what comes of it.
    fn send_request(&self, request: &Request) {
        let bytes = encode(request);
        let count = bytes.len().div_ceil(PART_BYTES_MAX);
        for (at, part) in bytes.chunks(PART_BYTES_MAX).enumerate() {
            if at + 1 == count {
                self.packet(Kind::Request, &encode(&RequestPacket::Last(part.to_vec())), &[]);
            } else {
                self.packet(Kind::Request, &encode(&RequestPacket::Part(part.to_vec())), &[]);
                self.receive();
            }
        }
    }

    fn ask_for_files<A: BorshDeserialize>(&self, request: &Request) -> (A, Vec<OwnedFd>) {
        self.send_request(request);
        let (mut answer, mut files) = (Vec::new(), Vec::new());
        loop {
            let (told, with) = self.receive();
            files.extend(with);
            match told {
                ReplyPacket::Part(part) => answer.extend(part),
                ReplyPacket::Last(part) => {
                    answer.extend(part);
                    return (decode(&answer).expect("the answer to it"), files);
                }
                ReplyPacket::Received => panic!("the question was whole"),
            }
            self.packet(Kind::Request, &encode(&RequestPacket::More), &[]);
        }
    }

    fn ask<A: BorshDeserialize>(&self, request: &Request) -> A {
        self.ask_for_files(request).0
    }
}

fn garbage(connection: &Connection) {
    let mut state = 1u64;
    for length in 0..500 {
        let byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // No first byte of a packet of the grammar.
            (state >> 56) as u8 | 0x80
        };
        connection.packet(
            Kind::Request,
            &std::iter::repeat_with(byte).take(length).collect::<Vec<u8>>(),
            &[],
        );
    }
}

fn endless_question(connection: &Connection) {
    loop {
        connection.packet(Kind::Request, &encode(&RequestPacket::Part(vec![0; PART_BYTES_MAX])), &[]);
        connection.receive();
    }
}

/// Enters a directory that is there; without a name, the tree.
fn enter(connection: &Connection, name: Option<&[u8]>) -> FileStatus {
    let entered = connection.ask::<EnterReply>(&Request::Enter(0, name.map(<[u8]>::to_vec)));
    entered.expect("a directory of the tree").0.0
}

/// A file that it was handed.
fn context_file(connection: &Connection) -> OwnedFd {
    enter(connection, None);
    connection
        .ask_for_files::<Vec<OpenReply>>(&Request::Open(vec![b"file".to_vec()]))
        .1
        .pop()
        .expect("a file")
}

fn does_not_read(connection: &Connection) {
    loop {
        connection.packet(Kind::Request, &encode(&RequestPacket::Last(encode(&Request::Options))), &[]);
    }
}

/// Asks for everything that is not below the tree, and says what it got.
fn names(connection: &Connection) {
    let mut got = Vec::new();
    let names: [&[u8]; 12] = [
        b"..",
        b".",
        b"",
        b"/",
        b"../secret",
        b"inside/../../secret",
        b"inside/file",
        b"to-secret",
        b"to-parent",
        b"/etc/passwd",
        b"left-out.o",
        b"fifo",
    ];
    let try_all = |where_from: &str, got: &mut Vec<String>| {
        for name in names {
            let shown = String::from_utf8_lossy(name);
            let (met, files) =
                connection.ask_for_files::<Vec<OpenReply>>(&Request::Open(vec![name.to_vec()]));
            if met[0].is_ok() || !files.is_empty() {
                got.push(format!("{where_from}: opened {shown:?}"));
            }
            if connection.ask::<EnterReply>(&Request::Enter(0, Some(name.to_vec()))).is_ok() {
                got.push(format!("{where_from}: entered {shown:?}"));
                connection.ask::<()>(&Request::Leave(1));
            }
        }
    };
    try_all("before the tree", &mut got);
    enter(connection, None);
    try_all("in it", &mut got);
    let named = connection.ask::<OrErrno<Vec<NamedStatus>>>(&Request::Entries(0)).expect("names");
    got.extend(named.iter().filter(|(name, _)| name.ends_with(b".o")).map(|_| "what is left out".to_owned()));
    enter(connection, Some(b"inside"));
    for _ in 0..4 {
        connection.ask::<()>(&Request::Leave(1));
    }
    if connection.ask::<OrErrno<Vec<NamedStatus>>>(&Request::Entries(0)).is_ok() {
        got.push("above it: names".to_owned());
    }
    try_all("above it", &mut got);
    connection.send_request(&Request::Failed(Fault::Unfit(Vec::new(), format!("got: {got:?}"))));
}

/// Writes to a file that it was handed for reading, and says what came of it.
fn writes(connection: &Connection) {
    let mut file = File::from(context_file(connection));
    let written = file.write_all(b"altered").is_ok();
    let mut bytes = [0; 100];
    let count = file.read(&mut bytes);
    let (read, text) = (count.is_ok(), String::from_utf8_lossy(&bytes[..count.unwrap_or(0)]).into_owned());
    connection.send_request(&Request::Failed(Fault::Unfit(
        Vec::new(),
        format!("written: {written}, read: {read} {text}"),
    )));
}

fn put_of(frame: Vec<u8>) -> Request {
    Request::Put(vec![(false, frame)])
}

fn put(connection: &Connection, block: &Block) {
    connection.ask::<()>(&put_of(pack::frame(&block.reference().address, &block.to_stored())));
}

fn chunk(number: u32) -> Block {
    Block::new(&KEY, BlockKind::Chunk, vec![], number.to_le_bytes().repeat(1000))
}

fn missing() -> Reference {
    chunk(1).reference()
}

fn done(root: Reference) -> WalkResult {
    WalkResult { root, names: u64::MAX, bytes: u64::MAX, read: u64::MAX, notes: Vec::new(), hints: None }
}

/// Ends in the middle, with some of a tree there.
fn dies(connection: &Connection) {
    for number in 0..3000 {
        put(connection, &chunk(number));
    }
    std::process::exit(3);
}

fn false_block(connection: &Connection) {
    let frame = pack::frame(&chunk(1).reference().address, &chunk(2).to_stored());
    connection.send_request(&put_of(frame));
}

fn dangling(connection: &Connection) {
    let block = Block::new(&KEY, BlockKind::Inode, vec![Digest([7; 32])], vec![]);
    connection.send_request(&put_of(pack::frame(&block.reference().address, &block.to_stored())));
}

fn hints(connection: &Connection) {
    loop {
        connection.ask::<()>(&Request::Hints(vec![0; 1 << 20]));
    }
}

struct Sink<'a>(&'a Connection);

impl BlockSink for Sink<'_> {
    fn digest_key(&self) -> DigestKey {
        KEY
    }

    fn put(&mut self, block: Block) -> Reference {
        put(self.0, &block);
        block.reference()
    }
}

fn empty_directory(connection: &Connection) -> Reference {
    Inode::new(InodeKind::Directory, 0o755, DeviceId(0), 0).store(&mut Sink(connection)).expect("an inode")
}

/// Remembers what is not so, much of it, and then ends.
fn memory(connection: &Connection) {
    let root = empty_directory(connection);
    let looked = enter(connection, None);
    let value = Value { bytes: vec![7; 1 << 20], references: vec![root] };
    for number in 0..64u32 {
        let entry = (number.to_le_bytes().to_vec(), FileSigns::of(&looked, 1, 0), value.clone());
        connection.ask::<()>(&Request::Remember(vec![entry]));
    }
    std::process::exit(4);
}

/// What it can do: the tree that is signed is its own, with hints that are none.
fn another_tree(connection: &Connection) {
    let root = empty_directory(connection);
    connection.ask::<()>(&Request::Hints(b"not hints".to_vec()));
    connection.send_request(&Request::Done(done(root)));
}
