//! Parcels at a server without sockets: storing, retrieving, and hostile clients.

use crate::common;

use common::core::{TestClock, settings};
use common::*;
use holdfast_content::{Base, Block, BlockKind, DeviceId, Parcel, Prefix, PrincipalId, Run};
use holdfast_crypto::{Digest, DigestKey, PublicKey, SigningKey};
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_protocol::message::{
    AddressedBlock, Attached, MESSAGE_BYTES_MAX, Request, Response, ServerError, TreeData,
};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::HandleVersion;
use holdfast_server::{Caller, CoreSettings, CreatePolicy, ServerCore};
use holdfast_store::StoreConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const KEY: DigestKey = DigestKey::WELL_KNOWN;

/// A server with two file systems that have no member in common.
struct World {
    disk: PowerLoss,
    clock: Arc<TestClock>,
    core: ServerCore,
}

fn others() -> SigningKey {
    key(5)
}

fn open(disk: &PowerLoss, clock: &Arc<TestClock>) -> ServerCore {
    let store = StoreConfig { segment_bytes: 8 << 20, ..StoreConfig::default() };
    let settings = CoreSettings { create: CreatePolicy::Anyone, store, ..settings() };
    ServerCore::open(disk.storage(), key(2), settings, Box::new(|_: &PublicKey| true), clock.clone()).unwrap()
}

impl World {
    fn new() -> World {
        let disk = PowerLoss::new(3);
        let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
        let core = open(&disk, &clock);
        let world = World { disk, clock, core };
        for founder in [superuser(), others()] {
            let request = creation_by(founder.clone(), key(2).public(), 0);
            let caller = Caller {
                peer: founder.public(),
                local: true,
                file_system: None,
                answer_bytes: MESSAGE_BYTES_MAX,
            };
            committed(world.core.handle(&caller, request), &key(2).public());
        }
        world
    }

    fn ask_by(&self, member: &SigningKey, request: Request) -> Response {
        let id = member.public().file_system_id();
        let file_system = self
            .core
            .greet(member.public(), true, holdfast_protocol::message::PROTOCOL_VERSIONS, Some(id))
            .file_system;
        self.core.handle(
            &Caller { peer: member.public(), local: true, file_system, answer_bytes: MESSAGE_BYTES_MAX },
            request,
        )
    }

    /// Makes a request as a member of the first file system.
    fn ask(&self, request: Request) -> Response {
        self.ask_by(&superuser(), request)
    }

    fn store(&self, blocks: &[Block]) {
        assert_eq!(self.ask(Request::Store(blocks.iter().map(addressed).collect())), Response::Done);
    }

    fn restart(mut self, crash: Crash) -> World {
        drop(self.core);
        self.disk.restart(crash);
        self.core = open(&self.disk, &self.clock);
        self
    }
}

fn addressed(block: &Block) -> AddressedBlock {
    AddressedBlock { address: address(block), block: block.to_stored() }
}

fn address(block: &Block) -> Digest {
    block.reference().address
}

fn addresses(blocks: &[Block]) -> Vec<Digest> {
    blocks.iter().map(address).collect()
}

fn names(blocks: &[Block]) -> Vec<Base> {
    addresses(blocks).into_iter().map(Base::Block).collect()
}

/// So many references of a node, after so many others.
fn under(node: &Block, skipped: u16, count: u16) -> Base {
    Base::Under { node: address(node), runs: vec![Run { skipped, count }] }
}

fn chunk(body: Vec<u8>) -> Block {
    Block::new(&KEY, BlockKind::Chunk, Vec::new(), body)
}

fn node(children: &[Block]) -> Block {
    Block::new(&KEY, BlockKind::MapLeaf, addresses(children), b"node".to_vec())
}

fn prefix(bases: &[Block]) -> Prefix {
    let mut prefix = Prefix::default();
    bases.iter().for_each(|base| assert!(prefix.push(base)));
    prefix
}

/// A chunk of noise, and the same with a few bytes changed.
fn versions(seed: u32, length: usize) -> (Block, Block) {
    let old = noise(u64::from(seed), length);
    let mut new = old.clone();
    new[length / 2] ^= 0xff;
    (chunk(old), chunk(new))
}

/// Proves: what is stored by parcel is there, durably and whole, as ordinary blocks. A parcel of something similar to
/// an old block is small in both directions.
#[test]
fn parcels_go_in_and_come_out() {
    let world = World::new();
    let (old, new) = versions(1, 100_000);
    world.store(std::slice::from_ref(&old));
    let root = node(std::slice::from_ref(&new));
    let blocks = [new.clone(), root.clone()];
    let parcel = Parcel::pack(&prefix(std::slice::from_ref(&old)), &blocks, 3).unwrap();
    assert!(parcel.message_bytes() < 300, "{}", parcel.message_bytes());
    assert_eq!(world.ask(Request::StoreParcels(vec![parcel])), Response::Done);
    let world = world.restart(Crash::PowerLoss);
    let Response::Blocks(found) = world.ask(Request::Retrieve(addresses(&blocks))) else { panic!() };
    for (found, block) in found.into_iter().zip(&blocks) {
        let found = found.unwrap().1.block.open_any(&KEY, address(block), 1 << 20).unwrap();
        assert_eq!(found, *block);
    }
    let unknown = Digest([9; 32]);
    let wanted = vec![address(&new), unknown, address(&root)];
    let request =
        Request::RetrieveParcel { wanted, bases: vec![unknown.into(), address(&old).into()], level: 3 };
    let Response::Parcel { parcel, covered, missing } = world.ask(request) else { panic!() };
    assert_eq!((covered, missing), (3, vec![unknown]));
    let parcel = parcel.unwrap();
    assert!(parcel.message_bytes() < 300, "{}", parcel.message_bytes());
    assert_eq!(parcel.bases, [address(&old)]);
    assert_eq!(parcel.open(&KEY, &prefix(&[old])).unwrap(), blocks);
}

/// Proves: a client that names the version it has gets exactly what is new of a tree, in one answer.
#[test]
fn a_tree_against_an_older_one() {
    let world = World::new();
    let same: Vec<Block> = (0..20).map(|n| chunk(noise(100 + n, 20_000))).collect();
    let (old, new) = versions(1, 50_000);
    let unchanged = node(&same);
    let (old_leaf, new_leaf) = (node(std::slice::from_ref(&old)), node(std::slice::from_ref(&new)));
    let old_root = node(&[unchanged.clone(), old_leaf.clone()]);
    let new_root = node(&[unchanged.clone(), new_leaf.clone()]);
    world.store(&same);
    world.store(&[old.clone(), new.clone(), unchanged, old_leaf.clone(), new_leaf.clone()]);
    world.store(&[old_root.clone(), new_root.clone()]);
    let ask = |have: Vec<Digest>, bytes_max| {
        world.ask(Request::RetrieveTree {
            root: address(&new_root),
            have,
            data: TreeData::Always,
            bytes_max,
            level: 3,
        })
    };
    let Response::Tree { parcel: Some(parcel), complete: true } = ask(vec![address(&old_root)], 1 << 20)
    else {
        panic!()
    };
    assert!(parcel.message_bytes() < 500, "{}", parcel.message_bytes());
    let bases = [old, old_leaf, old_root];
    assert_eq!(parcel.bases, addresses(&bases));
    assert_eq!(parcel.open(&KEY, &prefix(&bases)).unwrap(), [new, new_leaf, new_root.clone()]);
    // Without an older version the tree comes from the top, as far as was requested.
    let Response::Tree { parcel: Some(parcel), complete: false } = ask(vec![], 30_000) else { panic!() };
    let blocks = parcel.open(&KEY, &Prefix::default()).unwrap();
    assert_eq!(blocks.last(), Some(&new_root));
    assert!(ask(vec![address(&new_root)], 1 << 20) == Response::Tree { parcel: None, complete: true });
    let nothing = Request::RetrieveTree {
        root: Digest([9; 32]),
        have: vec![],
        data: TreeData::Always,
        bytes_max: 9,
        level: 3,
    };
    assert_eq!(world.ask(nothing), Response::Tree { parcel: None, complete: false });
}

fn invalid(response: &Response) -> bool {
    matches!(response, Response::Error(ServerError::Invalid(_)))
}

fn present(world: &World, asked: &[Digest]) -> Vec<bool> {
    let Response::Present(bits) = world.ask(Request::Present(asked.to_vec())) else { panic!() };
    (0..asked.len()).map(|n| bits.get(n)).collect()
}

/// Proves: "which of these are here" is answered for each block. If a base of any parcel is missing, nothing of any of
/// the parcels is stored.
#[test]
fn missing_bases_are_reported_and_nothing_is_stored() {
    let world = World::new();
    let (old, new) = versions(1, 3000);
    let (absent, other) = versions(2, 3000);
    world.store(std::slice::from_ref(&old));
    let asked: Vec<Digest> =
        (0..20).map(|n| if n % 3 == 0 { address(&old) } else { Digest([n; 32]) }).collect();
    assert!(present(&world, &asked).into_iter().enumerate().all(|(n, here)| here == (n % 3 == 0)));
    let good = Parcel::pack(&prefix(std::slice::from_ref(&old)), std::slice::from_ref(&new), 3).unwrap();
    let bases = [old.clone(), absent.clone()];
    let bad = Parcel::pack(&prefix(&bases), std::slice::from_ref(&other), 3).unwrap();
    let both = vec![good, bad];
    assert_eq!(
        world.ask(Request::StoreParcels(both.clone())),
        Response::BasesMissing(vec![address(&absent)])
    );
    assert_eq!(present(&world, &[address(&new), address(&other)]), [false, false]);
    world.store(&[absent]);
    assert_eq!(world.ask(Request::StoreParcels(both)), Response::Done);
    assert_eq!(present(&world, &[address(&new), address(&other)]), [true, true]);
}

/// An operation of the superuser's device that changes its table, with the blocks it names.
fn operation(world: &World) -> (Request, Block) {
    let view = view(world.ask(Request::Look { log_size: 0 })).view;
    let mut author = Author { key: superuser(), last: 1, ..Author::new(0) };
    let mut certificate = author.certificate(&view, holdfast_protocol::certificate::Path::Fast);
    certificate.deltas.clear();
    let table = Block::new(&KEY, BlockKind::Table, Vec::new(), noise(5, 4000));
    let version = HandleVersion { version: 2, reference: table.reference() };
    let mut handles = view.slots[&DeviceId::SUPERUSER].value.handles.clone();
    handles.insert(PrincipalId::Device(DeviceId::SUPERUSER), version);
    let structure = sign_structure(&view, &certificate, &superuser(), handles);
    let certificate = Signed::new(certificate, &superuser());
    (
        Request::Fast {
            certificate,
            structure,
            attached: Attached::default(),
            log_size: 0,
            by_difference: false,
            lease: None,
        },
        table,
    )
}

fn with(operation: &Request, riding: Attached) -> Request {
    let mut request = operation.clone();
    let Request::Fast { attached, .. } = &mut request else { panic!() };
    *attached = riding;
    request
}

/// Proves: an operation can carry blocks in parcels. If a base is missing nothing is done, and the same signed
/// operation is accepted with plain blocks. The unpacked size of what it carries is bounded, too.
#[test]
fn operations_bring_parcels() {
    let world = World::new();
    let (request, table) = operation(&world);
    let near = Block::new(&KEY, BlockKind::Table, Vec::new(), noise(5, 3990));
    let parcel = Parcel::pack(&prefix(std::slice::from_ref(&near)), std::slice::from_ref(&table), 3).unwrap();
    assert!(parcel.message_bytes() < 120);
    let packed = with(&request, Attached { blocks: Vec::new(), parcels: vec![parcel] });
    assert_eq!(world.ask(packed.clone()), Response::BasesMissing(vec![address(&near)]));
    assert_eq!(world.ask(packed.clone()), Response::BasesMissing(vec![address(&near)]));
    let plain = with(&request, vec![addressed(&table)].into());
    committed(world.ask(plain), &key(2).public());

    let world = World::new();
    world.store(std::slice::from_ref(&near));
    let many: Vec<Block> = (0..5).map(|n| chunk(vec![n; 1 << 20])).collect();
    let heavy = Parcel::pack(&Prefix::default(), &many, 1).unwrap();
    let heavy = with(&request, Attached { blocks: vec![addressed(&table)], parcels: vec![heavy] });
    assert!(invalid(&world.ask(heavy)), "five megabytes unpacked");
    committed(world.ask(packed), &key(2).public());
    assert_eq!(present(&world, &[address(&table)]), [true]);
}

/// Proves: whether or not another file system of the server has a block, the server gives the same answers, asks for
/// the same bytes and accepts the same uploads: no way of naming blocks tells a member the difference.
#[test]
fn other_file_systems_blocks_are_not_revealed() {
    let (secret, mine) = versions(7, 20_000);
    let (root, my_root) = (node(std::slice::from_ref(&secret)), node(std::slice::from_ref(&mine)));
    let told = |others_have_it: bool| -> Vec<Response> {
        let world = World::new();
        if others_have_it {
            let blocks = [&secret, &root].map(addressed).to_vec();
            assert_eq!(world.ask_by(&others(), Request::Store(blocks)), Response::Done);
        }
        world.store(&[mine.clone(), my_root.clone()]);
        let named = vec![address(&secret), address(&root)];
        let based =
            Parcel::pack(&prefix(std::slice::from_ref(&secret)), std::slice::from_ref(&mine), 3).unwrap();
        let alone = Parcel::pack(&Prefix::default(), std::slice::from_ref(&secret), 3).unwrap();
        let tree = |root: &Block, have: Vec<Digest>| Request::RetrieveTree {
            root: address(root),
            have,
            data: TreeData::Always,
            bytes_max: 1 << 20,
            level: 3,
        };
        let (operation, table) = operation(&world);
        let riding = Attached { blocks: vec![addressed(&table)], parcels: vec![based.clone()] };
        let requests = vec![
            Request::Present(named.clone()),
            Request::Retrieve(named.clone()),
            Request::StoreParcels(vec![based.clone()]),
            with(&operation, riding),
            Request::RetrieveParcel { wanted: named.clone(), bases: vec![], level: 3 },
            Request::RetrieveParcel {
                wanted: vec![address(&mine)],
                bases: named.iter().copied().map(Base::Block).collect(),
                level: 3,
            },
            tree(&root, vec![address(&my_root)]),
            tree(&my_root, vec![address(&root)]),
            Request::Pin { addresses: named.clone(), seconds: 60 },
            // An upload is accepted, and from then on the block is here for those who sent it.
            Request::StoreParcels(vec![alone]),
            Request::Present(named.clone()),
            Request::StoreParcels(vec![based.clone()]),
            // By a node that only the other file system has.
            Request::StoreParcels(vec![Parcel { bases: vec![under(&root, 0, 1)], ..based }]),
            Request::RetrieveParcel {
                wanted: vec![address(&mine)],
                bases: vec![under(&root, 0, 1)],
                level: 3,
            },
        ];
        requests.into_iter().map(|request| world.ask(request)).collect()
    };
    let without = told(false);
    assert_eq!(without, told(true));
    let missing = Response::BasesMissing(vec![address(&secret)]);
    assert_eq!((&without[2], &without[3]), (&missing, &missing));
    assert_eq!(without[10], Response::Present([true, false].into_iter().collect()));
    assert_eq!(without[11], Response::Done);
}

/// Proves: whatever a member sends in or about parcels is refused in words or answered within the limits, and the
/// server goes on.
#[test]
fn hostile_parcels_are_refused() {
    let world = World::new();
    let large: Vec<Block> = (0..33).map(|n| chunk(vec![n; 1 << 20])).collect();
    large.chunks(8).for_each(|some| world.store(some));
    let small = chunk(b"small".to_vec());
    let sound = Parcel::pack(&Prefix::default(), std::slice::from_ref(&small), 3).unwrap();
    let changed = |change: &dyn Fn(&mut Parcel)| {
        let mut parcel = sound.clone();
        change(&mut parcel);
        Request::StoreParcels(vec![parcel])
    };
    let bases = prefix(&large[..11]);
    let based = Parcel::pack(&bases, std::slice::from_ref(&small), 1).unwrap();
    let heavy: Vec<Block> = (0..15).map(|n| chunk(vec![n; 1 << 20])).collect();
    let heavy = Parcel::pack(&Prefix::default(), &heavy, 1).unwrap();
    let cases: Vec<(&str, Request)> = vec![
        (
            "one base, a megabyte, 4,096 times",
            changed(&|parcel| parcel.bases = vec![address(&large[0]).into(); 4096]),
        ),
        ("33 bases of a megabyte", changed(&|parcel| parcel.bases = names(&large))),
        ("too many bases", changed(&|parcel| parcel.bases = vec![address(&large[0]).into(); 4097])),
        ("no bytes", changed(&|parcel| parcel.plain_bytes = 0)),
        ("4 GiB announced", changed(&|parcel| parcel.plain_bytes = u32::MAX)),
        ("more announced than there is", changed(&|parcel| parcel.plain_bytes += 1)),
        ("no frame", changed(&|parcel| parcel.frame.clear())),
        ("something behind the frame", changed(&|parcel| parcel.frame.push(0))),
        ("bits flipped", changed(&|parcel| parcel.frame.iter_mut().skip(6).for_each(|byte| *byte ^= 0x55))),
        ("three times eleven bases of a megabyte", Request::StoreParcels(vec![based.clone(); 3])),
        ("too many parcels", Request::StoreParcels(vec![sound.clone(); 65])),
        ("too much in all of them", Request::StoreParcels(vec![heavy.clone(), heavy])),
        ("too many addresses", Request::Present(vec![Digest::ZERO; 4097])),
        ("nothing", Request::RetrieveParcel { wanted: vec![], bases: vec![], level: 3 }),
        (
            "too much",
            Request::RetrieveParcel { wanted: vec![address(&small); 4097], bases: vec![], level: 3 },
        ),
        (
            "too many bases asked for",
            Request::RetrieveParcel {
                wanted: vec![address(&small)],
                bases: vec![Digest::ZERO.into(); 4097],
                level: 3,
            },
        ),
        (
            "too many trees",
            Request::RetrieveTree {
                root: address(&small),
                have: vec![Digest::ZERO; 17],
                data: TreeData::Always,
                bytes_max: 1,
                level: 3,
            },
        ),
    ];
    for (what, request) in cases {
        let answer = world.ask(request);
        assert!(invalid(&answer), "{what}: {answer:?}");
    }
    assert_eq!(world.ask(Request::StoreParcels(vec![sound; 64])), Response::Done, "the same again and again");
    assert_eq!(world.ask(Request::StoreParcels(vec![based; 2])), Response::Done);
    for level in [i8::MIN, -1, 0, 19, i8::MAX] {
        let request = Request::RetrieveParcel { wanted: vec![address(&small)], bases: vec![], level };
        assert!(matches!(world.ask(request), Response::Parcel { parcel: Some(_), .. }), "level {level}");
    }
    // One block, as often as can be asked for, and more bases than make sense: the answer has what fits.
    let request = Request::RetrieveParcel {
        wanted: vec![address(&large[0]); 4096],
        bases: vec![names(&large); 100].concat(),
        level: 1,
    };
    let Response::Parcel { parcel: Some(parcel), covered, .. } = world.ask(request) else { panic!() };
    assert_eq!((covered, parcel.bases.len()), (15, 15));
}

/// Proves: an answer ends where a message is full, and asking again brings the rest.
#[test]
fn answers_end_where_a_message_is_full() {
    let world = World::new();
    let blocks: Vec<Block> = (0..12).map(|n| chunk(noise(n, 1 << 20))).collect();
    blocks.chunks(6).for_each(|some| world.store(some));
    let wanted = addresses(&blocks);
    let mut got = Vec::new();
    while got.len() < blocks.len() {
        let request =
            Request::RetrieveParcel { wanted: wanted[got.len()..].to_vec(), bases: vec![], level: 1 };
        let answer = world.ask(request);
        assert!(holdfast_crypto::encode(&answer).len() <= MESSAGE_BYTES_MAX);
        let Response::Parcel { parcel: Some(parcel), covered, missing } = answer else { panic!() };
        let opened = parcel.open(&KEY, &Prefix::default()).unwrap();
        assert_eq!((opened.len(), missing.len()), (covered as usize, 0));
        got.extend(opened);
    }
    assert_eq!(got, blocks);
    let root = node(&blocks);
    world.store(std::slice::from_ref(&root));
    let request = Request::RetrieveTree {
        root: address(&root),
        have: vec![],
        data: TreeData::Always,
        bytes_max: u32::MAX,
        level: 1,
    };
    let answer = world.ask(request);
    assert!(holdfast_crypto::encode(&answer).len() <= MESSAGE_BYTES_MAX);
    let Response::Tree { parcel: Some(parcel), complete: false } = answer else { panic!() };
    assert_eq!(parcel.open(&KEY, &Prefix::default()).unwrap().last(), Some(&root));
}

/// Proves: bases that hang from one node can be named by it in both directions. The server says if the node is not
/// here, refuses a base that the node does not have, and leaves it out of its answers.
#[test]
fn bases_by_their_node() {
    let world = World::new();
    let olds: Vec<Block> = (0..40).map(|n| chunk(noise(n, 3000))).collect();
    let root = node(&olds);
    world.store(&olds);
    world.store(std::slice::from_ref(&root));
    let new = chunk(olds[5..35].iter().flat_map(|old| old.body().to_vec()).collect());
    let based = |name: Base| {
        let prefix = prefix(&olds[5..35]).named(vec![name]);
        Parcel::pack(&prefix, std::slice::from_ref(&new), 3).unwrap()
    };
    let parcel = based(under(&root, 5, 30));
    assert!(parcel.message_bytes() < 400, "{}", parcel.message_bytes());
    assert_eq!(world.ask(Request::StoreParcels(vec![parcel])), Response::Done);
    assert_eq!(present(&world, &[address(&new)]), [true]);
    let unknown = node(std::slice::from_ref(&new));
    let told = world.ask(Request::StoreParcels(vec![based(under(&unknown, 5, 30))]));
    assert_eq!(told, Response::BasesMissing(vec![address(&unknown)]));
    let beyond = world.ask(Request::StoreParcels(vec![based(under(&root, 11, 30))]));
    assert!(matches!(beyond, Response::Error(ServerError::Invalid(_))), "{beyond:?}");
    // Other blocks of that node: the result has another digest, and is not stored under the claimed one.
    let other = chunk([new.body(), b"more"].concat());
    let lying =
        Parcel::pack(&prefix(&olds[5..35]).named(vec![under(&root, 4, 30)]), std::slice::from_ref(&other), 3);
    let _ = world.ask(Request::StoreParcels(vec![lying.unwrap()]));
    assert_eq!(present(&world, &[address(&other)]), [false]);
    let fetch = |bases: Vec<Base>| {
        let request = Request::RetrieveParcel { wanted: vec![address(&new)], bases, level: 3 };
        let Response::Parcel { parcel: Some(parcel), .. } = world.ask(request) else { panic!() };
        parcel
    };
    let parcel = fetch(vec![under(&root, 5, 30)]);
    assert_eq!(parcel.bases, [under(&root, 5, 30)]);
    assert!(parcel.message_bytes() < 400, "{}", parcel.message_bytes());
    let opened = parcel.open(&KEY, &prefix(&olds[5..35]).named(parcel.bases.clone())).unwrap();
    assert_eq!(opened, std::slice::from_ref(&new));
    let parcel = fetch(vec![under(&unknown, 0, 1), address(&olds[5]).into()]);
    assert_eq!(parcel.bases, [address(&olds[5])]);
    let request = |bases| Request::RetrieveParcel { wanted: vec![address(&new)], bases, level: 3 };
    for bases in [vec![under(&root, 0, 41)], vec![under(&root, 0, 40); 103], vec![under(&root, 0, 1); 257]] {
        let refused = world.ask(request(bases));
        assert!(matches!(refused, Response::Error(ServerError::Invalid(_))), "{refused:?}");
    }
    let nodes = vec![under(&root, 0, 1); 200];
    let parcels = [0, 1].map(|_| Parcel { bases: nodes.clone(), ..based(under(&root, 5, 30)) });
    let refused = world.ask(Request::StoreParcels(parcels.to_vec()));
    assert!(matches!(refused, Response::Error(ServerError::Invalid(_))), "{refused:?}");
}

/// Proves: the map of a file comes whole in one answer without its data; the data comes too only if it is little, or
/// has something in common with what the client has.
#[test]
fn a_tree_without_its_data() {
    let world = World::new();
    let tree = |seed: u32| {
        let chunks: Vec<Block> = (0..20).map(|n| chunk(noise(u64::from(seed + n), 5000))).collect();
        let leaves = [node(&chunks[..10]), node(&chunks[10..])];
        let root = node(&leaves);
        world.store(&chunks);
        world.store(&leaves);
        world.store(std::slice::from_ref(&root));
        (leaves, root)
    };
    let (leaves, root) = tree(100);
    let (_, stranger) = tree(200);
    let (few, relative) = (node(&[chunk(noise(1, 500))]), node(&leaves[..1]));
    world.store(&[chunk(noise(1, 500)), few.clone(), relative.clone()]);
    let count = |root: &Block, data| {
        let request =
            Request::RetrieveTree { root: address(root), have: vec![], data, bytes_max: 1 << 20, level: 3 };
        let Response::Tree { parcel: Some(parcel), complete } = world.ask(request) else { panic!() };
        (parcel.open(&KEY, &Prefix::default()).unwrap().len(), complete)
    };
    assert_eq!(count(&root, TreeData::Never), (3, false));
    assert_eq!(count(&root, TreeData::IfRelated), (3, false));
    assert_eq!(count(&root, TreeData::Always), (23, true));
    assert_eq!(count(&few, TreeData::IfRelated), (2, true));
    let complete = |have: &Block| {
        let have = vec![address(have)];
        let data = TreeData::IfRelated;
        let request =
            Request::RetrieveTree { root: address(&root), have, data, bytes_max: 1 << 20, level: 3 };
        let Response::Tree { parcel: Some(parcel), complete } = world.ask(request) else { panic!() };
        (parcel.plain_bytes > 50_000, complete)
    };
    assert_eq!(complete(&stranger), (false, false));
    assert_eq!(complete(&relative), (true, true));
}

/// Proves: subtrees that stay the same are not sent again when the tree above them grows or shrinks by a level.
#[test]
fn trees_that_change_their_height() {
    let world = World::new();
    let leaves: Vec<Block> = (0..3)
        .map(|n| {
            let chunks: Vec<Block> = (0..5).map(|m| chunk(noise(10 * n + m, 5000))).collect();
            world.store(&chunks);
            node(&chunks)
        })
        .collect();
    let low = node(&leaves[..2]);
    let inner = [node(&leaves[..1]), node(&leaves[1..])];
    let high = node(&inner);
    world.store(&leaves);
    world.store(&inner);
    world.store(&[low.clone(), high.clone()]);
    let sent = |root: &Block, have: &Block| {
        let have = vec![address(have)];
        let request = Request::RetrieveTree {
            root: address(root),
            have,
            data: TreeData::Always,
            bytes_max: 1 << 20,
            level: 3,
        };
        let Response::Tree { parcel: Some(parcel), complete: true } = world.ask(request) else { panic!() };
        parcel.message_bytes()
    };
    assert!(sent(&low, &high) < 400, "{} bytes", sent(&low, &high));
    let grown = sent(&high, &low);
    assert!((25_000..26_000).contains(&grown), "one leaf is new: {grown}");
}

/// Proves: a walk ends, whatever the tree: with more paths than anybody could follow, with more blocks than it may look
/// at, with blocks that were never stored.
#[test]
fn walks_end() {
    let world = World::new();
    let ask = |root: &Block, have: &[Block]| {
        let have_roots = have.last().map(address).into_iter().collect();
        let request = Request::RetrieveTree {
            root: address(root),
            have: have_roots,
            data: TreeData::Always,
            bytes_max: 1 << 20,
            level: 1,
        };
        let Response::Tree { parcel: Some(parcel), complete } = world.ask(request) else { panic!() };
        let here = |wanted: &Digest| have.iter().find(|block| address(block) == *wanted);
        let references = |node: &Digest| -> Result<_, std::convert::Infallible> {
            Ok(here(node).map(|node| node.references().to_vec()))
        };
        let bases = Base::addresses(&parcel.bases, references).unwrap();
        let bases: Vec<Block> = bases.iter().map(|base| here(base).unwrap().clone()).collect();
        let prefix = prefix(&bases).named(parcel.bases.clone());
        (parcel.open(&KEY, &prefix).unwrap().len(), complete)
    };
    // A tree of 2^100 paths.
    let mut chain = vec![chunk(b"end".to_vec())];
    for _ in 0..100 {
        let last = chain.last().unwrap().clone();
        chain.push(node(&[last.clone(), last]));
    }
    world.store(&chain);
    assert_eq!(ask(&chain[100], &[]), (101, true));
    // A tree of 24,000 blocks, none of which is here.
    let wide: Vec<Block> = (0..3)
        .map(|n| {
            let references = (0..8000u32).map(|place| {
                let mut digest = [n; 32];
                digest[..4].copy_from_slice(&place.to_le_bytes());
                Digest(digest)
            });
            Block::new(&KEY, BlockKind::MapInner, references.collect(), Vec::new())
        })
        .collect();
    let top = node(&wide);
    world.store(&wide);
    world.store(std::slice::from_ref(&top));
    let (count, complete) = ask(&top, &[]);
    assert!(count >= 1 && !complete);
    // The wide tree is the one to be left out: the requested blocks come all the same.
    assert_eq!(ask(&chain[3], &[wide, vec![top]].concat()), (4, true));
}

/// Proves: a deleted block is a base for as long as it is retained. One that is gone is missing, and so is one that the
/// disk has damaged.
#[test]
fn bases_that_go() {
    let world = World::new();
    let (old, new) = versions(1, 50_000);
    world.store(std::slice::from_ref(&old));
    let parcel = Parcel::pack(&prefix(std::slice::from_ref(&old)), std::slice::from_ref(&new), 3).unwrap();
    let collect_after = |days: u64| {
        world.clock.0.fetch_add(days * 24 * 3600 * 1000, Ordering::SeqCst);
        world
            .core
            .collect(Duration::from_secs(3600))
            .into_iter()
            .for_each(|(_, report)| drop(report.unwrap()));
    };
    let request = Request::StoreParcels(vec![parcel]);
    collect_after(2);
    assert_eq!(world.ask(request.clone()), Response::Done);
    collect_after(8);
    assert_eq!(world.ask(request.clone()), Response::BasesMissing(vec![address(&old)]));
    world.store(std::slice::from_ref(&old));
    assert_eq!(world.ask(request.clone()), Response::Done);
    world.disk.restart(Crash::Kill);
    let world = World { core: open(&world.disk, &world.clock), ..world };
    let needle = &old.body()[20_000..20_032];
    let storage = world.disk.storage();
    for name in world.disk.names().into_iter().filter(|name| name.starts_with("segment-")) {
        let mut bytes = vec![0; world.disk.length(&name).unwrap() as usize];
        storage.open(&name).unwrap().read_at(0, &mut bytes).unwrap();
        let found = bytes.windows(needle.len()).enumerate().filter(|(_, window)| *window == needle);
        found.for_each(|(at, _)| world.disk.corrupt(&name, at as u64));
    }
    assert_eq!(world.ask(request), Response::BasesMissing(vec![address(&old)]));
    let asked = Request::RetrieveParcel { wanted: vec![address(&old)], bases: vec![], level: 3 };
    let nothing = Response::Parcel { parcel: None, covered: 1, missing: vec![address(&old)] };
    assert_eq!(world.ask(asked), nothing);
}

/// Proves: a full disk is reported, nothing of the parcel is stored, and the parcel is accepted when there is room.
#[test]
fn a_full_disk_is_reported() {
    let world = World::new();
    let blocks: Vec<Block> = (0..9).map(|n| chunk(noise(n, 1 << 20))).collect();
    let parcels: Vec<Parcel> =
        blocks.chunks(4).map(|some| Parcel::pack(&Prefix::default(), some, 1).unwrap()).collect();
    world.disk.set_capacity(Some(world.disk.used_bytes() + (1 << 20)));
    assert_eq!(world.ask(Request::StoreParcels(parcels.clone())), Response::Error(ServerError::NoSpace));
    world.disk.set_capacity(None);
    assert_eq!(world.ask(Request::StoreParcels(parcels)), Response::Done);
    let world = world.restart(Crash::PowerLoss);
    assert_eq!(present(&world, &addresses(&blocks)), [true; 9]);
}
