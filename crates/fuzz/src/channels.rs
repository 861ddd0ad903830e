//! Messages between Holdfast's processes, beyond those of the stack: the runtime's own packets and orders, FSLoader and
//! FSChecker, commands to a session, client, signer and network process, a server's front end, the walker of a
//! publisher, block servers, and an operator's requests to a server.

use crate::{Grammar, Target, encode, kind, message};
use holdfast_access::{Access, Acl, Name, Principal};
use holdfast_client::processes::messages::*;
use holdfast_components::{
    Bounds, ComponentMessage, HEADER_BYTES, Header, Kind, Role, SupervisorMessage, Wall,
};
use holdfast_content::{Block, BlockKind, DeviceId, MemoryBlocks, Value};
use holdfast_crypto::{Digest, DigestKey, SignError, Signature, SigningKey};
use holdfast_program_identity::exchange;
use holdfast_program_identity::message::{FromGuard, FromHelper};
use holdfast_protocol::block_server::{
    BlockCall, BlockFault, BlockReply, BlockRequest, BlockResult, ListedBlock, PinEntry, StoreAllowance,
};
use holdfast_protocol::epoch::Declaration;
use holdfast_protocol::history::{Snapshot, SnapshotEnd};
use holdfast_protocol::message::Request;
use holdfast_protocol::structure::LogHead;
use holdfast_protocol::warrant::Change;
use holdfast_release::publish::apart::grammar as walker;
use holdfast_rpc::privsep::Note;
use holdfast_rpc::privsep::handshake::Handshakes;
use holdfast_server::control;
use holdfast_server::privsep::messages as front;
use holdfast_sim::order::{found, server_keys};
use holdfast_stack::Geometry;
use holdfast_stack::card_protocol::{CardReply, CardRequest, FileBlocks, TableEntry};
use holdfast_stack::protocol::{self as stack, VfsReply, VfsRequest};
use holdfast_stack::session_requests::{self, SessionFacts};
use std::time::Instant;

pub(crate) const TARGETS: &[Target] = &[
    Target { name: "channel-header", samples: headers, run: header },
    Target { name: "component-order", samples: supervisor_messages, run: message::<SupervisorMessage> },
    Target { name: "component-word", samples: component_words, run: message::<ComponentMessage> },
    Target { name: "ask-session", samples: || vec![encode(&VfsRequest::Forget)], run: message::<VfsRequest> },
    Target { name: "session-says", samples: || vec![encode(&VfsReply)], run: message::<VfsReply> },
    Target { name: "ask-card", samples: ask_card, run: message::<CardRequest> },
    Target { name: "card-says", samples: card_says, run: message::<CardReply> },
    Target {
        name: "session-order",
        samples: session_request_samples,
        run: message::<session_requests::SessionRequest>,
    },
    Target { name: "session-said", samples: session_replies, run: message::<session_requests::SessionReply> },
    Target { name: "exchange", samples: exchanges, run: exchanged },
    Target { name: "to-signer", samples: to_signer, run: message::<SignerRequest> },
    Target { name: "things-to-sign", samples: things, run: message::<Vec<SigningPayload>> },
    Target { name: "from-signer", samples: from_signer, run: message::<SignerReply> },
    Target { name: "to-network", samples: to_network, run: message::<NetworkRequest> },
    Target { name: "wanted-socket", samples: wanted_sockets, run: message::<SocketRequest> },
    Target { name: "given-socket", samples: given_sockets, run: message::<SocketReply> },
    Target { name: "network-standing", samples: standings, run: message::<ConnectionStatus> },
    Target { name: "peer-introduced", samples: introduced, run: message::<PeerIntroduction> },
    Target { name: "heard-beacon", samples: heard, run: message::<HeardBeacon> },
    Target { name: "ask-desk", samples: ask_desk, run: message::<front::BackEndRequest> },
    Target { name: "desk-says", samples: desk_says, run: message::<front::BackEndReply> },
    Target { name: "front-note", samples: notes, run: message::<Note> },
    Target { name: "transcript", samples: transcripts, run: transcript },
    Target { name: "walker-packet", samples: walker_packets, run: message::<walker::RequestPacket> },
    Target { name: "walker-told", samples: walker_replies, run: message::<walker::ReplyPacket> },
    Target { name: "walker-question", samples: walker_requests, run: message::<walker::Request> },
    Target { name: "block-request", samples: block_requests, run: message::<BlockRequest> },
    Target { name: "block-reply", samples: block_replies, run: message::<BlockReply> },
    Target { name: "server-task", samples: server_tasks, run: message::<control::Task> },
    Target { name: "server-outcome", samples: server_outcomes, run: message::<control::Outcome> },
];

/// Enumerations that are grammars: whether a first byte begins one of their kinds.
pub(crate) const GRAMMARS: &[Grammar] = &[
    Grammar { target: "component-order", has: kind::<SupervisorMessage> },
    Grammar { target: "component-word", has: kind::<ComponentMessage> },
    Grammar { target: "ask-session", has: kind::<VfsRequest> },
    Grammar { target: "ask-card", has: kind::<CardRequest> },
    Grammar { target: "card-says", has: kind::<CardReply> },
    Grammar { target: "session-order", has: kind::<session_requests::SessionRequest> },
    Grammar { target: "session-said", has: kind::<session_requests::SessionReply> },
    Grammar { target: "to-signer", has: kind::<SignerRequest> },
    Grammar { target: "from-signer", has: kind::<SignerReply> },
    Grammar { target: "to-network", has: kind::<NetworkRequest> },
    Grammar { target: "wanted-socket", has: kind::<SocketRequest> },
    Grammar { target: "given-socket", has: kind::<SocketReply> },
    Grammar { target: "ask-desk", has: kind::<front::BackEndRequest> },
    Grammar { target: "desk-says", has: kind::<front::BackEndReply> },
    Grammar { target: "front-note", has: kind::<Note> },
    Grammar { target: "walker-packet", has: kind::<walker::RequestPacket> },
    Grammar { target: "walker-told", has: kind::<walker::ReplyPacket> },
    Grammar { target: "walker-question", has: kind::<walker::Request> },
    Grammar { target: "server-task", has: kind::<control::Task> },
    Grammar { target: "server-outcome", has: kind::<control::Outcome> },
    Grammar { target: "from-door", has: kind::<FromGuard> },
    Grammar { target: "from-helper", has: kind::<FromHelper> },
    Grammar { target: "ask-monitor", has: kind::<stack::MonitorRequest> },
    Grammar { target: "monitor-says", has: kind::<stack::MonitorReply> },
    Grammar { target: "ask-policy", has: kind::<stack::PolicyRequest> },
    Grammar { target: "policy-says", has: kind::<stack::PolicyReply> },
    Grammar { target: "ask-cache", has: kind::<stack::CacheRequest> },
    Grammar { target: "cache-says", has: kind::<stack::CacheReply> },
    Grammar { target: "ask-driver", has: kind::<stack::DriverRequest> },
    Grammar { target: "ask-files", has: kind::<stack::FilesRequest> },
    Grammar { target: "files-say", has: kind::<stack::FilesReply> },
    Grammar { target: "refusal", has: kind::<holdfast_components::Refusal> },
];

fn key() -> SigningKey {
    SigningKey::from_seed(&[9; 32])
}

fn user(name: &str) -> Principal {
    Principal::User(Name::new(name).expect("a name"))
}

fn all<T: borsh::BorshSerialize>(values: &[T]) -> Vec<Vec<u8>> {
    values.iter().map(encode).collect()
}

fn headers() -> Vec<Vec<u8>> {
    [Kind::Request, Kind::Reply, Kind::Refusal]
        .map(|kind| Header { kind, alias: 3, number: 1 << 40 }.encode().to_vec())
        .to_vec()
}

fn header(bytes: &[u8]) -> bool {
    let Ok(bytes) = <&[u8; HEADER_BYTES]>::try_from(bytes) else { return false };
    let Ok(header) = Header::decode(bytes) else { return false };
    assert!(header.encode() == *bytes, "two encodings of one header");
    true
}

fn supervisor_messages() -> Vec<Vec<u8>> {
    let port = || "policy".to_owned();
    all(&[
        SupervisorMessage::Port { port: port(), role: Role::Asks },
        SupervisorMessage::Attach {
            port: port(),
            role: Role::Serves,
            generation: 2,
            bounds: Bounds::default(),
        },
        SupervisorMessage::Gone { port: port() },
        SupervisorMessage::Region {
            name: "stage".to_owned(),
            access: holdfast_components::Access::ReadWrite,
            bytes: 4096,
        },
        SupervisorMessage::Withdraw { name: "stage".to_owned() },
        SupervisorMessage::File { name: "fuse".to_owned() },
        SupervisorMessage::Begin { configuration: vec![1, 2, 3], run: 7 },
        SupervisorMessage::Stop,
    ])
}

fn component_words() -> Vec<Vec<u8>> {
    all(&[
        ComponentMessage::Guarded { lacking: vec![Wall::LandlockPorts] },
        ComponentMessage::Failed("no namespaces".to_owned()),
    ])
}

fn ask_card() -> Vec<Vec<u8>> {
    let geometry = Geometry { metadata_bytes: 8192, block_bytes: 512, data_blocks: 9 };
    all(&[
        CardRequest::Read { offset: 512, length: 512 },
        CardRequest::Table(vec![TableEntry { number: 1, start: 1 << 20, bytes: 40 << 20 }]),
        CardRequest::Partition { number: 1, holds: Ok(geometry) },
        CardRequest::Partition { number: 2, holds: Err("exFAT".to_owned()) },
        CardRequest::DiskFormat { mbr: vec![0; 512], geometries: vec![geometry] },
        CardRequest::Problem { place: "/a".to_owned(), problem: "crossed".to_owned(), forbids: true },
        CardRequest::Files(vec![FileBlocks { path: "/a/b".to_owned(), runs: vec![(9, 3), (20, 1)] }]),
        CardRequest::End(Ok(())),
        CardRequest::End(Err("it cannot be read".to_owned())),
    ])
}

fn card_says() -> Vec<Vec<u8>> {
    all(&[CardReply::Bytes(vec![7; 512]), CardReply::Go])
}

fn session_request_samples() -> Vec<Vec<u8>> {
    all(&[
        session_requests::SessionRequest::Session,
        session_requests::SessionRequest::Label(5),
        session_requests::SessionRequest::Change {
            file: 5,
            changes: vec![(user("bob"), Some(Access::Read)), (user("eve"), None)],
        },
        session_requests::SessionRequest::Give { file: 5, to: user("bob") },
        session_requests::SessionRequest::Take(5),
        session_requests::SessionRequest::Blocks(5),
        session_requests::SessionRequest::Present(vec![vec![1; 40], vec![]]),
    ])
}

fn session_replies() -> Vec<Vec<u8>> {
    let facts = SessionFacts {
        user: user("alice"),
        volume: [7; 16],
        others: vec![user("bob")],
        is_program: true,
        helper_missing: Some("nobody listens".to_owned()),
        refused: vec![(5, 6, "/bin/cat".to_owned(), "no rule".to_owned())],
    };
    let acl = Acl::of(user("bob"), Access::ReadWrite).expect("storable");
    all(&[
        session_requests::SessionReply::Done,
        session_requests::SessionReply::Session(facts),
        session_requests::SessionReply::Label { owner: user("alice"), acl, is_mixed: false },
        session_requests::SessionReply::Blocks(vec![(9, 3)]),
        session_requests::SessionReply::Speaks(vec![(user("alice"), "read".to_owned())]),
        session_requests::SessionReply::Refused("it is not yours".to_owned()),
    ])
}

fn exchanges() -> Vec<Vec<u8>> {
    session_request_samples().iter().filter_map(|order| exchange::pack(order)).collect()
}

fn exchanged(bytes: &[u8]) -> bool {
    let Some(order) = exchange::unpack(bytes) else { return false };
    assert!(order.len() + 4 <= bytes.len(), "more than is there");
    message::<session_requests::SessionRequest>(order)
}

fn to_signer() -> Vec<Vec<u8>> {
    let agent = KeyLocation::Agent { name: "an agent".to_owned(), public: key().public() };
    all(&[
        SignerRequest::Part(vec![5; 70]),
        SignerRequest::Begin { key: KeyLocation::Pipe, file_system: Some(Digest([1; 32])) },
        SignerRequest::Begin { key: agent, file_system: None },
        SignerRequest::Sign,
        SignerRequest::GoOver { superuser: key().public(), restores: vec![] },
        SignerRequest::MeetPeers,
    ])
}

/// One of each kind, in lists.
fn things() -> Vec<Vec<u8>> {
    let blocks = MemoryBlocks::new(DigestKey::WELL_KNOWN);
    let (_, membership, request) = found(&blocks, 3);
    let (Request::CreateFileSystem { certificate, structure, .. }
    | Request::Fast { certificate, structure, .. }) = request
    else {
        unreachable!("a founding has a structure")
    };
    let (file_system, device, log) =
        (Digest([1; 32]), DeviceId(3), LogHead { size: 7, root: Digest([6; 32]) });
    let snapshot = Snapshot { file_system, device, name: "before".to_owned(), log, time_ns: 5 };
    let change = Change { file_system, version: 2, follows: Digest([3; 32]), next: membership };
    let declaration = Declaration {
        file_system,
        epoch: file_system,
        size: 7,
        root: Digest([6; 32]),
        base: file_system,
        declared_ns: 8,
        nonce: [9; 16],
    };
    [
        SigningPayload::Certificate(certificate.value),
        SigningPayload::Structure(structure.value),
        SigningPayload::ServerKeys(server_keys().value),
        SigningPayload::Snapshot(snapshot),
        SigningPayload::SnapshotEnd(SnapshotEnd { device, snapshot: Digest([2; 32]), file_system }),
        SigningPayload::Warrant(change),
        SigningPayload::Restore(declaration),
    ]
    .into_iter()
    .map(|thing| encode(&vec![thing]))
    .collect()
}

fn from_signer() -> Vec<Vec<u8>> {
    all(&[
        SignerReply::Accepted,
        SignerReply::Ready { public: key().public(), number: 9 },
        SignerReply::Signed(vec![Signature([4; 64]); 2]),
        SignerReply::NotSigned(SignError::Refused("not after what was signed".to_owned())),
    ])
}

fn to_network() -> Vec<Vec<u8>> {
    let (public, file_system) = (key().public(), Digest([1; 32]));
    let servers = vec![(0, "box.example.org".to_owned()), (1, "192.0.2.1".to_owned())];
    all(&[
        NetworkRequest::Open(OpenRequest { public, servers, proof: Some((file_system, 4)), transport: 2 }),
        NetworkRequest::Meet(MeetRequest { public, file_system, expected: Some(public) }),
        NetworkRequest::HearBeacons { file_system },
    ])
}

fn wanted_sockets() -> Vec<Vec<u8>> {
    all(&[SocketRequest::Tcp(1), SocketRequest::Udp, SocketRequest::Addresses(0)])
}

fn given_sockets() -> Vec<Vec<u8>> {
    all(&[
        SocketReply::Socket { bbr: true },
        SocketReply::Addresses(vec![(vec![127, 0, 0, 1], 7440), (vec![0; 16], 80)]),
        SocketReply::None("nothing listens there".to_owned()),
    ])
}

fn standings() -> Vec<Vec<u8>> {
    let troubled = ConnectionStatus {
        server_key: Some(key().public()),
        trouble: Some(holdfast_rpc::RpcError::Lost { maybe_sent: true }),
        connects: 3,
        is_over_quic: Some(false),
        estimate: Some((1000, Some(1 << 20), None, 17)),
        ..ConnectionStatus::default()
    };
    all(&[ConnectionStatus::default(), troubled])
}

fn introduced() -> Vec<Vec<u8>> {
    let results: [PeerIntroduction; 2] = [Ok(key().public()), Err("it did not answer".to_owned())];
    all(&results)
}

fn heard() -> Vec<Vec<u8>> {
    vec![encode(&HeardBeacon { address: vec![192, 0, 2, 1], device: 3, port: 7443 })]
}

fn ask_desk() -> Vec<Vec<u8>> {
    let (transcript, signature) = (vec![1; 200], vec![2; 64]);
    all(&[
        front::BackEndRequest::Nonce,
        front::BackEndRequest::Sign { transcript: transcript.clone() },
        front::BackEndRequest::Introduce {
            transcript,
            signature,
            address: front::Address::Six([3; 16], 7440),
        },
        front::BackEndRequest::Log { warning: true, text: "a stranger".to_owned() },
    ])
}

fn desk_says() -> Vec<Vec<u8>> {
    all(&[
        front::BackEndReply::Nonce([1; 32]),
        front::BackEndReply::Signature([2; 64]),
        front::BackEndReply::Introduced,
        front::BackEndReply::Logged,
    ])
}

fn notes() -> Vec<Vec<u8>> {
    let link = Note::Link { rtt_us: 900, sent: Some(1 << 20), received: None, loss_ppm: 20 };
    all(&[Note::Admitted, link, Note::Trace, Note::Arrived(77)])
}

const NONCE: [u8; 32] = [6; 32];

/// A handshake up to the server's Certificate, as the back end reads it.
fn transcripts() -> Vec<Vec<u8>> {
    let message = |kind: u8, body: &[u8]| [&[kind, 0, 0, body.len() as u8], body].concat();
    let hello = [&[3, 3], &NONCE[..], &[0, 0x13, 1, 0]].concat();
    let head =
        [0, 0, 0, 49, 0, 0, 44, 0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
    let certificate = [&head[..], &key().public().0, &[0, 0]].concat();
    let usual = |hello: &[u8]| {
        [
            message(1, &[3, 3]),
            message(2, hello),
            message(8, &[]),
            message(13, &[0, 0]),
            message(11, &certificate),
        ]
        .concat()
    };
    let anew = [message(254, &[1; 32]), message(2, &hello), usual(&hello)].concat();
    vec![usual(&hello), anew]
}

/// Whether the back end signs it: it signs nothing but a handshake of this server, with the random bytes that it drew.
fn transcript(bytes: &[u8]) -> bool {
    let (mut handshakes, now) = (Handshakes::default(), Instant::now());
    handshakes.begin(now, NONCE);
    let signed = handshakes.sign(now, bytes, &key()).is_ok();
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    assert!(!signed || (has(&NONCE) && has(&key().public().0)), "something else was signed");
    // A front end may also say that it continues as it began.
    assert!(handshakes.introduce(now, bytes, &[0; 64]).is_err(), "nobody has signed it");
    signed
}

fn walker_packets() -> Vec<Vec<u8>> {
    all(&[
        walker::RequestPacket::Part(vec![1; 30]),
        walker::RequestPacket::Last(vec![2; 9]),
        walker::RequestPacket::More,
    ])
}

fn walker_replies() -> Vec<Vec<u8>> {
    all(&[
        walker::ReplyPacket::Received,
        walker::ReplyPacket::Part(vec![1; 30]),
        walker::ReplyPacket::Last(vec![2; 9]),
    ])
}

fn walker_requests() -> Vec<Vec<u8>> {
    let name = || b"a name".to_vec();
    let status = walker::FileStatus {
        device: 1,
        number: 2,
        mode: 0o100_644,
        has_more_names: false,
        size: 3,
        blocks: 8,
        device_number: 0,
        modified_ns: 4,
        changed_ns: 5,
    };
    let signs = || walker::FileSigns::of(&status, 1, 0);
    let root = Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, vec![], vec![7; 9]).reference();
    let value = Value { bytes: vec![7; 9], references: vec![root] };
    let walked =
        walker::WalkResult { root, names: 1, bytes: 2, read: 1, notes: vec!["a socket".into()], hints: None };
    all(&[
        walker::Request::Options,
        walker::Request::Enter(0, None),
        walker::Request::Enter(1, Some(name())),
        walker::Request::Leave(1),
        walker::Request::Entries(0),
        walker::Request::Open(vec![name()]),
        walker::Request::Link(name()),
        walker::Request::KnownBlocks(9),
        walker::Request::Put(vec![(true, vec![1; 50])]),
        walker::Request::Fetch(Digest([1; 32])),
        walker::Request::Known(vec![(name(), signs())]),
        walker::Request::Remember(vec![(name(), signs(), value)]),
        walker::Request::Progress(walker::Progress { names: (1, 2), bytes: (3, 4) }),
        walker::Request::Hints(vec![1, 2]),
        walker::Request::Done(walked),
        walker::Request::Failed(walker::Fault::Changing(name())),
    ])
}

fn block_requests() -> Vec<Vec<u8>> {
    let (addresses, now_ns) = (vec![Digest([1; 32]); 2], 5);
    let allowance = StoreAllowance { devices: vec![DeviceId(3)], bytes: 9, reserve: 1 };
    let (owner, holder) = (DeviceId(3), 4);
    [
        BlockCall::Greet,
        BlockCall::Store { owner, blocks: vec![], allowance: Some(allowance), now_ns },
        BlockCall::Load { addresses: addresses.clone(), bytes_max: 1 << 20 },
        BlockCall::References(addresses.clone()),
        BlockCall::Contains(addresses.clone()),
        BlockCall::Renew { addresses: addresses.clone(), now_ns },
        BlockCall::Dereference { owner, addresses: addresses.clone(), now_ns },
        BlockCall::Snapshot { now_ns },
        BlockCall::Pin { holder, addresses: addresses.clone(), until_ns: 9, now_ns },
        BlockCall::Unhold("release".to_owned()),
        BlockCall::Holds,
        BlockCall::Charged(vec![owner]),
        BlockCall::Charges,
        BlockCall::Collect { roots: addresses, short: vec![owner], now_ns },
        BlockCall::Scrub,
        BlockCall::Figures,
        BlockCall::List { after: 6 },
        BlockCall::Pinned { after: Some(4) },
    ]
    .into_iter()
    .map(|call| encode(&BlockRequest { store: Some([8; 16]), known: 3, file_system: Digest([2; 32]), call }))
    .collect()
}

fn block_replies() -> Vec<Vec<u8>> {
    let reply = |outcome: Result<BlockResult, BlockFault>| {
        encode(&BlockReply { store: [8; 16], position: 7, outcome })
    };
    let references = BlockResult::References(vec![None, Some(vec![Digest([1; 32])])]);
    let (address, owner) = (Digest([1; 32]), DeviceId(3));
    let listed = BlockResult::Listed(vec![ListedBlock { address, owner, age_ns: 5, bytes: 9, place: 6 }]);
    let pinned = BlockResult::Pinned(Some(PinEntry { holder: 4, until_ns: 9, addresses: vec![address] }));
    [BlockResult::Done, references, listed, pinned].map(|answer| reply(Ok(answer))).into()
}

fn server_tasks() -> Vec<Vec<u8>> {
    let file_system = Digest([2; 32]);
    all(&[
        control::Task::Collect,
        control::Task::Scrub,
        control::Task::Statistics,
        control::Task::Seal,
        control::Task::Holds,
        control::Task::Unhold { file_system, name: "release".to_owned() },
        control::Task::Witnesses,
        control::Task::Move { file_system, to: "two.example.org".to_owned() },
    ])
}

fn server_outcomes() -> Vec<Vec<u8>> {
    let of = Digest([2; 32]);
    all(&[
        control::Outcome::Collected(vec![
            (of, Ok(control::CollectSummary::default())),
            (of, Err("why".to_owned())),
        ]),
        control::Outcome::Scrubbed(control::ScrubSummary::default()),
        control::Outcome::Statistics(control::Statistics::default()),
        control::Outcome::Failed("why".to_owned()),
        control::Outcome::Sealed(vec![(1, 2)]),
        control::Outcome::Holds(vec![(of, vec![])]),
        control::Outcome::Unheld(true),
        control::Outcome::Witnesses(vec![]),
        control::Outcome::Moved,
    ])
}
