//! One message, or more, of each kind of each channel's grammar, encoded: what fuzzing begins with.

use holdfast_access::{Access, Acl, CredentialId, Name, Principal, ProcessName, Proof, Scope, Step};
use holdfast_crypto::Digest;
use holdfast_monitor::{BlockId, Direction, PageId, Reference, RegionId, Status};
use holdfast_stack::protocol::*;

fn encode(value: &impl borsh::BorshSerialize) -> Vec<u8> {
    borsh::to_vec(value).expect("a vector takes everything")
}

fn user(name: &str) -> Principal {
    Principal::User(Name::new(name).expect("a name"))
}

fn acl() -> Acl {
    Acl::of(user("bob"), Access::ReadWrite).expect("storable")
}

fn reference(block: u64) -> Reference {
    let page = PageId { region: RegionId(3), index: 2 };
    Reference { page, generation: 1, block: BlockId { disk: 0, number: block } }
}

/// To the monitor, about a block.
pub fn ask_monitor(block: u64) -> Vec<Vec<u8>> {
    let id = BlockId { disk: 0, number: block };
    let (region, page) = (RegionId(3), PageId { region: RegionId(3), index: 2 });
    let proof = Proof(vec![
        Step::Itself(user("alice")),
        Step::Namer(user("alice")),
        Step::Constituent(CredentialId(Digest([1; 32])), user("alice")),
        Step::Handoff(CredentialId(Digest([1; 32])), 1),
        Step::Chain(0, 1),
        Step::Narrow(0, Scope::EVERYTHING),
    ]);
    [
        AskMonitor::CreateRegion { acl: acl(), pages: 8 },
        AskMonitor::Assign { region, first: 1, blocks: vec![id; 3] },
        AskMonitor::SetAcl { region, acl: acl() },
        AskMonitor::Free { page },
        AskMonitor::RemoveRegion(region),
        AskMonitor::Erase { first: id, count: 3 },
        AskMonitor::Places { first: id, count: 9 },
        AskMonitor::Transfer { direction: Direction::Fill, first: id, pages: vec![page; 2] },
        AskMonitor::Transfer { direction: Direction::Drain, first: id, pages: vec![page] },
        AskMonitor::Flush { disk: 0 },
        AskMonitor::View(region),
        AskMonitor::Write { at: reference(block), skipped: 3, bytes: vec![7; 30] },
        AskMonitor::WriteTogether { disk: 0, writes: vec![reference(block); 2] },
        AskMonitor::Look(vec![reference(block); 2]),
        AskMonitor::Present(vec![0; 70]),
        AskMonitor::Read(reference(block)),
        AskMonitor::Names,
        AskMonitor::Enter(Entering { inode: 2, thread: 1, writes: true }),
        AskMonitor::Refusals,
        AskMonitor::Ended(vec![0; 9]),
        AskMonitor::Withdrawn,
        AskMonitor::AddAlias(proof),
    ]
    .iter()
    .map(encode)
    .collect()
}

/// From the monitor.
#[allow(dead_code, reason = "the enemy never answers for the monitor")]
pub fn monitor_says(block: u64) -> Vec<Vec<u8>> {
    let id = BlockId { disk: 0, number: block };
    [
        MonitorSays::Done,
        MonitorSays::Region(RegionId(7)),
        MonitorSays::References(vec![reference(block); 3]),
        MonitorSays::Places(vec![(reference(block), id, Status::Dirty)]),
        MonitorSays::Look(vec![None, Some(Status::Clean)]),
        MonitorSays::Alias(3),
        MonitorSays::Page(vec![7; 4096]),
        MonitorSays::Names {
            process: ProcessName { boot: [1; 16], number: 4 },
            names: vec![Called { alias: 2, principal: user("bob"), scope: Scope::EVERYTHING }],
            said: vec![],
        },
        MonitorSays::Entry(Entry::Again),
        MonitorSays::Refusals(vec![(2, 3, "/bin/cat".to_owned(), "no rule".to_owned())], None),
    ]
    .iter()
    .map(encode)
    .collect()
}

/// To PolicyMgr.
pub fn ask_policy(block: u64) -> Vec<Vec<u8>> {
    let (disk, blocks) = (0, Blocks { first: block, count: 2 });
    [
        AskPolicy::Cache { disk, blocks: vec![block; 3] },
        AskPolicy::Evict { disk, blocks: vec![block; 3] },
        AskPolicy::Cached { disk, from: 0 },
        AskPolicy::ChangeAcls { disk, blocks, principal: user("bob"), access: Some(Access::Read) },
        AskPolicy::ChangeAcls { disk, blocks, principal: user("bob"), access: None },
        AskPolicy::Nominate { disk, blocks, to: user("bob") },
        AskPolicy::Accept { disk, blocks, acl: acl() },
        AskPolicy::Look { disk, block },
        AskPolicy::Owns { disk, blocks, owner: [1; 32] },
        AskPolicy::Sizes { disk },
        AskPolicy::Format { disk },
        AskPolicy::Give { disk, blocks, to: user("bob") },
        AskPolicy::Introduce { principal: user("bob"), scope: Scope::EVERYTHING },
        AskPolicy::End(vec![0; 70]),
    ]
    .iter()
    .map(encode)
    .collect()
}

/// From PolicyMgr.
#[allow(dead_code, reason = "the enemy never answers for PolicyMgr")]
pub fn policy_says(block: u64) -> Vec<Vec<u8>> {
    let blocks = Blocks { first: block, count: 2 };
    [
        PolicySays::Done,
        PolicySays::References(vec![reference(block); 3]),
        PolicySays::Cached(vec![(block, reference(block))]),
        PolicySays::Label { blocks, owner: user("alice"), acl: acl() },
        PolicySays::Owns(true),
        PolicySays::Sizes { blocks: 1, extents: 2, labels: 3, free: 4 },
    ]
    .iter()
    .map(encode)
    .collect()
}

/// To CacheMgr.
pub fn ask_cache(block: u64) -> Vec<Vec<u8>> {
    [
        AskCache::Want { disk: 0, blocks: vec![block; 3], fill: true, ahead: vec![block + 3] },
        AskCache::Want { disk: 0, blocks: vec![block], fill: false, ahead: vec![] },
        AskCache::Clean { disk: 0, blocks: vec![block; 3] },
        AskCache::Empty,
    ]
    .iter()
    .map(encode)
    .collect()
}

/// From CacheMgr.
pub fn cache_says(block: u64) -> Vec<Vec<u8>> {
    [CacheSays::Done, CacheSays::References(vec![reference(block); 2]), CacheSays::References(vec![])]
        .iter()
        .map(encode)
        .collect()
}

/// To a DiskDriver.
pub fn ask_driver(block: u64) -> Vec<Vec<u8>> {
    let page = PageId { region: RegionId(3), index: 2 };
    [Direction::Fill, Direction::Drain]
        .map(|direction| encode(&AskDriver::Transfer { direction, disk: 0, blocks: vec![(block, page); 3] }))
        .to_vec()
}

/// From a DiskDriver.
pub fn driver_says() -> Vec<Vec<u8>> {
    vec![encode(&DriverSays { moved: 1 })]
}

/// To an FSDriver.
pub fn ask_files() -> Vec<Vec<u8>> {
    let (now, name) = ((1, 2), "made by an enemy".to_owned());
    let other = "SECRET".to_owned();
    [
        AskFiles::LookUp { parent: 1, name: other.clone() },
        AskFiles::Forget { file: 2, count: 1 },
        AskFiles::Stat(1),
        AskFiles::List { directory: 1, cookie: 0, count: 9 },
        AskFiles::ListFiles { directory: 1, cookie: 0, count: 9 },
        AskFiles::Map { file: 2, offset: 0, length: 9000 },
        AskFiles::Create { parent: 1, name: name.clone(), is_directory: false, now },
        AskFiles::Unlink { parent: 1, name: other.clone(), now },
        AskFiles::RemoveDirectory { parent: 1, name: name.clone(), now },
        AskFiles::Rename { from: 1, name: other.clone(), to: 1, new_name: name.clone(), replace: true, now },
        AskFiles::Resize { file: 2, size: 1000, owner: user("bob"), now },
        AskFiles::Claim { file: 2, offset: 0, length: 1000, owner: user("bob") },
        AskFiles::SetTimes { file: 2, times: [Some(now), None, Some(now)], is_read_only: Some(true) },
        AskFiles::Returning,
        AskFiles::Returned { item: 2, blocks: vec![Blocks { first: 9, count: 2 }], clusters: 2, now },
        AskFiles::Sizes,
        AskFiles::Ended { session: "vfs-0".to_owned() },
    ]
    .iter()
    .map(encode)
    .collect()
}

/// From an FSDriver, about blocks of somebody.
pub fn files_say(block: u64) -> Vec<Vec<u8>> {
    let file = File { id: 2, is_directory: false, size: u64::MAX, times: [(1, 2); 3], is_read_only: false };
    let blocks = Blocks { first: block, count: 2 };
    let edge = Blocks { first: u64::MAX - 1, count: u64::MAX };
    let listed = |name: &str| Listed { name: name.to_owned(), is_directory: false, number: 3, cookie: 0 };
    let with_file = |name: &str, cookie, file: &File| {
        (Listed { cookie, is_directory: file.is_directory, ..listed(name) }, Some(file.clone()))
    };
    let sound = File { size: 5, ..file.clone() };
    let root = File { id: 1, is_directory: true, ..sound.clone() };
    [
        FilesSay::Files(vec![with_file("a", 1, &sound), with_file("b", 2, &file)]),
        FilesSay::Files(vec![with_file("a", 1, &sound), with_file("..", 2, &root)]),
        FilesSay::Files(vec![with_file("a", 1, &root), with_file("a", 2, &sound)]),
        FilesSay::Files(vec![with_file("a/b", 1, &sound); 3]),
        FilesSay::Done,
        FilesSay::File(File { is_directory: true, ..file.clone() }),
        FilesSay::File(file),
        FilesSay::Names(vec![listed("a"), listed("../.."), listed(""), listed("a/b\0")]),
        FilesSay::Map { runs: vec![(0, blocks), (0, edge)], block_bytes: 512 },
        FilesSay::Map { runs: vec![(u64::MAX - 511, blocks); 100], block_bytes: 4096 },
        FilesSay::Map { runs: vec![(0, blocks)], block_bytes: 0 },
        FilesSay::Resized { size: u64::MAX, nominated: vec![blocks, edge], fill: Some((u64::MAX, u64::MAX)) },
        FilesSay::Resized { size: 0, nominated: vec![], fill: None },
        FilesSay::Return { item: 2, blocks: vec![blocks], clusters: 2, to: Some(user("bob")) },
        FilesSay::Return { item: 0, blocks: vec![], clusters: 0, to: None },
        FilesSay::Sizes { cluster_bytes: 0, clusters: u64::MAX, free: u64::MAX },
    ]
    .iter()
    .map(encode)
    .collect()
}
