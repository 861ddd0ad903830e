//! The shared file system: messages of peers, what servers and the disks of others have, and files that people hand
//! each other.

use crate::{Target, encode, message, text, texts};
use holdfast_client::evidence::{self, EvidenceFile};
use holdfast_content::{
    Block, BlockKind, DeviceId, Handle, MemoryBlocks, Parcel, Prefix, Proof, StoredBlock,
};
use holdfast_crypto::{Digest, DigestKey, Signature, SigningKey};
use holdfast_protocol::history::Retention;
use holdfast_protocol::locks::LockRange;
use holdfast_protocol::message::{
    LockMode, LockRequest, LockSpace, Request, Response, ServerError, TreeData, Welcome,
};
use holdfast_protocol::peers::{self, AcknowledgedOperation, Beacon, DeviceProgress, PeerMessage};
use holdfast_protocol::structure::LogHead;
use holdfast_rpc::{FRAME_HEADER_BYTES, FrameHeader};
use holdfast_sim::order::{found, server::Server, server_keys};
use std::rc::Rc;

#[path = "../../content/tests/reading/mod.rs"]
mod reading;

pub(crate) const TARGETS: &[Target] = &[
    Target { name: "request", samples: requests, run: message::<Request> },
    Target { name: "response", samples: responses, run: message::<Response> },
    Target { name: "frame", samples: frames, run: frame },
    Target { name: "block", samples: blocks, run: block },
    Target { name: "stored-block", samples: stored_blocks, run: stored_block },
    Target { name: "parcel", samples: parcels, run: parcel },
    Target { name: "map-proof", samples: proofs, run: message::<Proof> },
    Target { name: "peer-word", samples: words, run: message::<PeerMessage> },
    Target { name: "peer-beacon", samples: beacons, run: beacon },
    Target { name: "evidence", samples: evidence_files, run: evidence_file },
    Target {
        name: "retention",
        samples: || texts(&["all:1d,1h:7d,1d:30d,7d:1y", "1h:7d"]),
        run: text::<Retention>,
    },
    Target { name: "address", samples: addresses, run: text::<holdfast_rpc::Address> },
];

/// A new file system: the request that creates it, and the server's answer.
fn founded() -> (Request, Vec<Response>) {
    let blocks = Rc::new(MemoryBlocks::new(DigestKey::WELL_KNOWN));
    let (_, _, request) = found(&blocks, 3);
    let (mut server, committed) = Server::create(blocks, 10_000, request.clone());
    let view = server.handle(0, DeviceId(1), Request::Look { log_size: 0 });
    (request, vec![committed, view])
}

fn requests() -> Vec<Vec<u8>> {
    let lock = LockRequest {
        run: 7,
        owner: 1,
        process: 2,
        file: Handle::ROOT,
        space: LockSpace::Fcntl,
        range: LockRange { start: 0, last: 9 },
        mode: Some(LockMode::Exclusive),
        reclaim: false,
        wait: true,
    };
    let (wanted, some) = (Digest([1; 32]), vec![Digest([2; 32]); 3]);
    let tree = Request::RetrieveTree {
        root: wanted,
        have: some.clone(),
        data: TreeData::IfRelated,
        bytes_max: 1 << 20,
        level: 3,
    };
    [
        founded().0,
        Request::Hello { versions: (1, 3), file_system: Some(wanted) },
        Request::SetServerKeys(server_keys()),
        Request::Retrieve(some.clone()),
        Request::Present(some.clone()),
        Request::RetrieveParcel { wanted: some.clone(), bases: vec![], level: -1 },
        tree,
        Request::VStore { index: 1, bytes: vec![3; 10], signature: Signature([4; 64]) },
        Request::Pin { addresses: some.clone(), seconds: 9 },
        Request::FetchPending { device: DeviceId(3), number: 4, wait_ms: 5 },
        Request::AwaitLock { lock, wait_ms: 1 },
        Request::Hold { name: "release".to_owned(), roots: some },
        Request::AwaitRecall { run: 1, epoch: 2, acknowledged: 3, log_size: Some(5), wait_ms: 4 },
        Request::History { after: 5, note: true },
        Request::Past { log_size: 5, known: 9 },
    ]
    .iter()
    .map(encode)
    .collect()
}

fn responses() -> Vec<Vec<u8>> {
    let welcome = Welcome {
        version: 1,
        file_system: Some((SigningKey::from_seed(&[1; 32]).public(), server_keys())),
        device: Some(DeviceId(1)),
        abort_after_ms: 10_000,
    };
    let others = [
        Response::Hello(welcome),
        Response::Present([true, false, true].into_iter().collect()),
        Response::Error(ServerError::Invalid("why".to_owned())),
        Response::BasesMissing(vec![Digest([1; 32])]),
        Response::Parcel { parcel: None, covered: 0, missing: vec![Digest([1; 32])] },
    ];
    founded().1.iter().chain(&others).map(encode).collect()
}

/// Messages between clients that meet.
fn words() -> Vec<Vec<u8>> {
    let (request, answers) = founded();
    let (Request::CreateFileSystem { structure, .. } | Request::Fast { structure, .. }) = request else {
        unreachable!("a founding has a structure")
    };
    let operation = answers.into_iter().find_map(|answer| match answer {
        Response::Committed(receipt) => Some(AcknowledgedOperation { structure: structure.clone(), receipt }),
        _ => None,
    });
    let log = LogHead { size: 1, root: Digest([1; 32]) };
    let said =
        [operation, None].map(|operation| PeerMessage::Progress(Box::new(DeviceProgress { operation, log })));
    let hello = PeerMessage::Hello { version: peers::VERSION, file_system: Digest([2; 32]), run: 3 };
    said.iter().chain(&[hello, PeerMessage::KeepAlive, PeerMessage::Bye]).map(encode).collect()
}

const BEACONED: Digest = Digest([2; 32]);

fn beacons() -> Vec<Vec<u8>> {
    let beacon = Beacon { device: DeviceId(3), port: 7443 };
    vec![beacon.to_bytes(&BEACONED, [5; peers::SALT_BYTES]).to_vec()]
}

fn beacon(bytes: &[u8]) -> bool {
    let Some(beacon) = Beacon::read(&BEACONED, bytes) else { return false };
    let salt = bytes[8..8 + peers::SALT_BYTES].try_into().expect("as long as that");
    assert!(beacon.to_bytes(&BEACONED, salt)[..] == *bytes, "two encodings of one value");
    true
}

const FRAME_MAX: usize = 1 << 20;

fn frames() -> Vec<Vec<u8>> {
    vec![FrameHeader::encode(7, 100).to_vec(), FrameHeader::encode(u64::MAX, FRAME_MAX).to_vec()]
}

fn frame(bytes: &[u8]) -> bool {
    let Ok(header) = <[u8; FRAME_HEADER_BYTES]>::try_from(bytes) else { return false };
    FrameHeader::decode(header, FRAME_MAX).is_ok()
}

/// A block's kind, the number of its references, these, and its body.
fn blocks() -> Vec<Vec<u8>> {
    let bytes = |block: &Block| {
        let kind = reading::KINDS.iter().position(|kind| *kind == block.kind()).expect("a kind");
        let references = block.references();
        let count = u8::try_from(references.len()).ok()?;
        let references = references.iter().flat_map(|reference| reference.0);
        Some([kind as u8, count].into_iter().chain(references).chain(block.body().iter().copied()).collect())
    };
    reading::samples().iter().filter_map(bytes).filter(|bytes: &Vec<u8>| bytes.len() < 8 << 10).collect()
}

/// The block is authentic: its author has signed for whatever it contains.
fn block(bytes: &[u8]) -> bool {
    let Some(([kind, count], rest)) = bytes.split_first_chunk() else { return false };
    let Some(kind) = reading::KINDS.get(usize::from(*kind)) else { return false };
    let (references, _) = rest.as_chunks::<32>();
    let Some(references) = references.get(..usize::from(*count)) else { return false };
    let body = &rest[references.len() * 32..];
    let references: Vec<Digest> = references.iter().map(|bytes| Digest(*bytes)).collect();
    reading::read_everything(*kind, body, &references);
    true
}

fn stored_blocks() -> Vec<Vec<u8>> {
    let words =
        Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, vec![], b"words, words, words".repeat(40));
    let plain = Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, vec![], vec![7; 3]);
    vec![encode(&words.to_stored()), encode(&plain.to_stored())]
}

fn stored_block(bytes: &[u8]) -> bool {
    if !message::<StoredBlock>(bytes) {
        return false;
    }
    let stored: StoredBlock = borsh::from_slice(bytes).expect("it was");
    let _ = stored.open_any(&DigestKey::WELL_KNOWN, Digest::ZERO, 1 << 20);
    true
}

fn parcels() -> Vec<Vec<u8>> {
    let block = |byte: u8| Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, vec![], vec![byte; 3000]);
    let parcel = |prefix| Parcel::pack(&prefix, &[block(1), block(2)], 3).expect("they fit");
    let mut prefix = Prefix::default();
    assert!(prefix.push(&block(3)), "it fits");
    vec![encode(&parcel(Prefix::default())), encode(&parcel(prefix))]
}

fn parcel(bytes: &[u8]) -> bool {
    if !message::<Parcel>(bytes) {
        return false;
    }
    let parcel: Parcel = borsh::from_slice(bytes).expect("it was");
    let _ = parcel.check();
    let _ = parcel.open(&DigestKey::WELL_KNOWN, &Prefix::default());
    true
}

fn proofs() -> Vec<Vec<u8>> {
    let blocks = reading::samples();
    let nodes: Vec<StoredBlock> = blocks.iter().take(2).map(Block::to_stored).collect();
    vec![encode(&Proof { nodes })]
}

fn evidence_files() -> Vec<Vec<u8>> {
    let proof = evidence::Proof::Missing { address: Digest([1; 32]), view: vec![1, 2, 3] };
    let file = EvidenceFile {
        format: 1,
        file_system: Digest([2; 32]),
        device: Some(DeviceId(3)),
        noticed_ns: 4,
        explanation: "it was missing".to_owned(),
        proof,
    };
    vec![encode(&file)]
}

fn evidence_file(bytes: &[u8]) -> bool {
    let Ok(file) = evidence::parse(bytes) else { return false };
    assert!(encode(&file) == bytes, "two encodings of one value");
    true
}

fn addresses() -> Vec<Vec<u8>> {
    texts(&[
        "hf://example.org/00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
        "hf://[::1]:7070/00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
    ])
}
