//! The walker: the component that walks and parses a tree. It holds a channel to the publisher and, at times,
//! a file of the tree opened for reading; it has no key, no directory and no network.

use super::grammar::{
    EnterReply, KnownBlocks, NamedStatus, OpenReply, OrErrno, PART_BYTES_MAX, PORT, PUT_BYTES,
    REMEMBER_BYTES, ReplyPacket, Request, RequestPacket, WalkOptions, path_of,
};
use crate::index::{Key, key_of};
use crate::pack;
use crate::publish::memory::FileSigns;
use crate::publish::rules::Rules;
use crate::publish::store::{Compressors, Lane, QUEUE_BLOCKS};
use crate::publish::walk_io::{Attributes, Entry, FileStatus, OpenFile, WalkIo};
use crate::publish::{Options, Progress, PublishError};
use borsh::BorshDeserialize;
use holdfast_client::store::MemoryCache;
use holdfast_components::{Asker, Context, Patience};
use holdfast_content::{Block, BlockKind, BlockSource, Reference, SourceError, StoredBlock, Value};
use holdfast_crypto::{Digest, DigestKey, decode, encode};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

/// Bytes of tree nodes cached to be read again while a directory grows.
const NODE_BYTES: usize = 64 << 20;
/// Most bytes of hints in one request.
const HINTS_BYTES: usize = 1 << 20;

/// The entry point in the table of components.
pub fn main(context: Context) -> ExitCode {
    match run(&context) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(context: &Context) -> Result<(), String> {
    let publisher = Publisher(context.ports.asker(PORT).map_err(|error| error.to_string())?);
    let terms: WalkOptions = publisher.ask(&Request::Options);
    let rules = Rules::new(&[], &terms.opaque).map_err(|error| error.to_string())?;
    let source = path_of(terms.source);
    let threads = terms.threads as usize;
    let options = Options {
        source: &source,
        target: Path::new(""),
        digest_key: DigestKey(terms.digest_key),
        rules: &rules,
        newest: terms.newest,
        level: terms.level,
        threads,
        memory: None,
    };
    let mut known_blocks = HashSet::new();
    let mut from = Some(0);
    while let Some(place) = from {
        let (keys, next): KnownBlocks = publisher.ask(&Request::KnownBlocks(place));
        known_blocks.extend(keys);
        from = next;
    }
    let io = RemoteWalkIo {
        publisher,
        remembers: terms.remembers,
        key: options.digest_key,
        level: options.level,
        lane: Cell::new(Lane::Small),
        leaves: Cell::new(0),
        compressors: Compressors::start(threads),
        state: RefCell::new(WalkState {
            known_blocks,
            queue: VecDeque::new(),
            ready: Vec::new(),
            ready_bytes: 0,
            nodes: MemoryCache::new(NODE_BYTES),
            names: None,
            remembered: Vec::new(),
            remembered_bytes: 0,
        }),
    };
    let outcome = crate::publish::walk(&options, &io);
    io.send_blocks();
    io.send_remembered();
    io.publisher.ask::<()>(&match outcome {
        Ok(walked) => {
            for part in walked.hints.as_deref().unwrap_or_default().chunks(HINTS_BYTES) {
                io.publisher.ask::<()>(&Request::Hints(part.to_vec()));
            }
            Request::Done(walked)
        }
        Err(error) => Request::Failed(error.into()),
    });
    Ok(())
}

/// The channel to the publisher. The walker cannot go on without it, so a failure ends the process.
struct Publisher(Asker<RequestPacket, ReplyPacket>);

impl Publisher {
    fn ask<A: BorshDeserialize>(&self, request: &Request) -> A {
        self.ask_for_files(request).0
    }

    fn ask_for_files<A: BorshDeserialize>(&self, request: &Request) -> (A, Vec<OwnedFd>) {
        let bytes = encode(request);
        let mut parts = bytes.chunks(PART_BYTES_MAX).peekable();
        let mut answer = Vec::new();
        let mut files = Vec::new();
        let mut packet = parts.next().map_or(RequestPacket::More, |part| match parts.peek() {
            Some(_) => RequestPacket::Part(part.to_vec()),
            None => RequestPacket::Last(part.to_vec()),
        });
        loop {
            let started = self.0.start(0, &packet, &[], Patience::Forever);
            let reply = started.and_then(|ticket| self.0.finish(ticket, Patience::Forever));
            let reply = reply.unwrap_or_else(|error| end(&error.to_string()));
            files.extend(reply.files);
            packet = match reply.body {
                ReplyPacket::Received => match (parts.next(), parts.peek()) {
                    (Some(part), Some(_)) => RequestPacket::Part(part.to_vec()),
                    (Some(part), None) => RequestPacket::Last(part.to_vec()),
                    (None, _) => end("the publisher answered something else"),
                },
                ReplyPacket::Part(part) => {
                    answer.extend(part);
                    RequestPacket::More
                }
                ReplyPacket::Last(part) => {
                    answer.extend(part);
                    break;
                }
            };
        }
        let answer = decode(&answer).unwrap_or_else(|_| end("the publisher answered something else"));
        (answer, files)
    }
}

fn end(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(1)
}

fn or_errno<T>(answer: OrErrno<T>) -> Result<T, Errno> {
    answer.map_err(Errno::from_raw_os_error)
}

/// The input and output of a walk in the sandboxed process: everything is a request to the publisher.
struct RemoteWalkIo {
    publisher: Publisher,
    remembers: bool,
    key: DigestKey,
    level: i32,
    lane: Cell<Lane>,
    /// Directories that were left, of which the publisher has not heard.
    leaves: Cell<u32>,
    compressors: Compressors,
    state: RefCell<WalkState>,
}

struct WalkState {
    /// Blocks that the publisher has, or that are on their way to it.
    known_blocks: HashSet<Key>,
    queue: VecDeque<(Lane, Digest, Receiver<StoredBlock>)>,
    /// Compressed blocks that are to be sent together.
    ready: Vec<(bool, Vec<u8>)>,
    ready_bytes: usize,
    nodes: MemoryCache,
    /// The first names of the innermost directory, if it has just been entered.
    names: Option<OrErrno<Vec<NamedStatus>>>,
    remembered: Vec<(Vec<u8>, FileSigns, Value)>,
    remembered_bytes: usize,
}

impl RemoteWalkIo {
    /// Frames compressed blocks and sends them in batches, in the order in which they were added, until at
    /// most `left` are in the queue. A block is sent after the blocks that it refers to.
    fn send_queued(&self, left: usize) {
        loop {
            let next = {
                let mut state = self.state.borrow_mut();
                if state.queue.len() <= left {
                    return;
                }
                state.queue.pop_front()
            };
            let Some((lane, address, stored)) = next else { return };
            let stored = stored.recv().unwrap_or_else(|_| end("a thread that compresses ended"));
            let frame = pack::frame(&address, &stored);
            if self.state.borrow().ready_bytes + frame.len() > PUT_BYTES {
                self.send_ready();
            }
            let mut state = self.state.borrow_mut();
            state.ready_bytes += frame.len();
            state.ready.push((lane == Lane::Large, frame));
        }
    }

    /// The publisher, after telling it which directories the walk has left: then both ends have the same
    /// innermost directory.
    fn synced_publisher(&self) -> &Publisher {
        match self.leaves.take() {
            0 => {}
            count => self.publisher.ask(&Request::Leave(count)),
        }
        &self.publisher
    }

    fn send_ready(&self) {
        let mut state = self.state.borrow_mut();
        state.ready_bytes = 0;
        let ready = std::mem::take(&mut state.ready);
        drop(state);
        if !ready.is_empty() {
            self.publisher.ask::<()>(&Request::Put(ready));
        }
    }

    /// Sends all blocks that were added so far.
    fn send_blocks(&self) {
        self.send_queued(0);
        self.send_ready();
    }

    fn send_remembered(&self) {
        let mut state = self.state.borrow_mut();
        state.remembered_bytes = 0;
        let remembered = std::mem::take(&mut state.remembered);
        drop(state);
        if !remembered.is_empty() {
            self.publisher.ask::<()>(&Request::Remember(remembered));
        }
    }

    fn has(&self, address: &Digest) -> bool {
        self.state.borrow().known_blocks.contains(&key_of(address))
    }
}

impl WalkIo for RemoteWalkIo {
    fn enter(&self, name: Option<&CStr>) -> Result<(FileStatus, Attributes), Errno> {
        let name = name.map(|name| name.to_bytes().to_vec());
        let entered: EnterReply = self.publisher.ask(&Request::Enter(self.leaves.take(), name));
        let (here, names) = or_errno(entered)?;
        self.state.borrow_mut().names = Some(names);
        Ok(here)
    }

    /// Only counted here; the publisher hears of it before the next request that depends on it.
    fn leave(&self) {
        self.leaves.set(self.leaves.get() + 1);
    }

    fn entries(&self, from: u64) -> Result<Vec<Entry>, Errno> {
        let first = self.state.borrow_mut().names.take().filter(|_| from == 0);
        let entries = or_errno(match first {
            Some(names) => names,
            None => self.synced_publisher().ask::<OrErrno<Vec<NamedStatus>>>(&Request::Entries(from)),
        })?;
        let entry = |(name, status): NamedStatus| {
            let name = CString::new(name).unwrap_or_else(|_| end("a name has a zero in it"));
            Entry { name, status: or_errno(status) }
        };
        Ok(entries.into_iter().map(entry).collect())
    }

    fn open(&self, names: &[&CStr]) -> Vec<Result<OpenFile, Errno>> {
        let names = names.iter().map(|name| name.to_bytes().to_vec()).collect();
        let (replies, files) = self.synced_publisher().ask_for_files::<Vec<OpenReply>>(&Request::Open(names));
        let mut files = files.into_iter().map(File::from);
        let opened = |reply: OpenReply| {
            let (status, attributes) = or_errno(reply)?;
            let file = files.next().unwrap_or_else(|| end("a file did not come"));
            Ok(OpenFile { file, status, attributes })
        };
        replies.into_iter().map(opened).collect()
    }

    fn link(&self, name: &CStr) -> Result<Vec<u8>, Errno> {
        or_errno(self.synced_publisher().ask(&Request::Link(name.to_bytes().to_vec())))
    }

    fn set_lane(&self, lane: Lane) {
        self.lane.set(lane);
    }

    fn add(&self, block: Block) -> Reference {
        let reference = block.reference();
        let is_node = block.kind() != BlockKind::Chunk;
        let is_there = self.has(&reference.address);
        if is_there && !is_node {
            return reference;
        }
        let block = Arc::new(block);
        if is_node {
            self.state.borrow_mut().nodes.insert(block.clone());
        }
        if is_there {
            return reference;
        }
        let stored = self.compressors.compress(block, self.level);
        {
            let mut state = self.state.borrow_mut();
            state.known_blocks.insert(key_of(&reference.address));
            state.queue.push_back((self.lane.get(), reference.address, stored));
        }
        self.send_queued(QUEUE_BLOCKS);
        reference
    }

    /// The publisher itself notices what it could not write, and then ends this process.
    fn check(&self) -> Result<(), PublishError> {
        Ok(())
    }

    fn known(&self, wanted: &[(Vec<u8>, FileSigns)]) -> Vec<Option<Value>> {
        if !self.remembers {
            return vec![None; wanted.len()];
        }
        let known: Vec<Option<Value>> = self.publisher.ask(&Request::Known(wanted.to_vec()));
        if known.len() == wanted.len() { known } else { end("the publisher answered something else") }
    }

    fn remember(&self, path: &[u8], signs: &FileSigns, value: &Value) -> Result<(), PublishError> {
        let entry = (path.to_vec(), *signs, value.clone());
        let bytes = encode(&entry).len();
        if self.state.borrow().remembered_bytes + bytes > REMEMBER_BYTES {
            self.send_remembered();
        }
        let mut state = self.state.borrow_mut();
        state.remembered_bytes += bytes;
        state.remembered.push(entry);
        Ok(())
    }

    fn progress(&self, progress: Progress) -> bool {
        self.publisher.ask(&Request::Progress(progress))
    }
}

impl BlockSource for RemoteWalkIo {
    fn digest_key(&self) -> DigestKey {
        self.key
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let address = reference.address;
        if let Some(block) = self.state.borrow_mut().nodes.get(&address)
            && block.kind() == kind
            && block.reference() == *reference
        {
            return Ok(block);
        }
        self.send_blocks();
        let stored: Option<StoredBlock> = self.publisher.ask(&Request::Fetch(address));
        let stored = stored.ok_or(SourceError::Missing(address))?;
        let block =
            stored.open(&self.key, reference, kind).map_err(|error| SourceError::Altered(address, error))?;
        let block = Arc::new(block);
        if kind != BlockKind::Chunk {
            self.state.borrow_mut().nodes.insert(block.clone());
        }
        Ok(block)
    }
}
