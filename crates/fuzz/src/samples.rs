//! At least one encoded message of each kind of each channel's grammar, with which fuzzing begins.

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

/// Requests to the monitor, about a block.
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
        MonitorRequest::CreateRegion { acl: acl(), pages: 8 },
        MonitorRequest::Assign { region, first: 1, blocks: vec![id; 3] },
        MonitorRequest::SetAcl { region, acl: acl() },
        MonitorRequest::Free { page },
        MonitorRequest::RemoveRegion(region),
        MonitorRequest::Erase { first: id, count: 3 },
        MonitorRequest::Places { first: id, count: 9 },
        MonitorRequest::Transfer { direction: Direction::Fill, first: id, pages: vec![page; 2] },
        MonitorRequest::Transfer { direction: Direction::Drain, first: id, pages: vec![page] },
        MonitorRequest::Flush { disk: 0 },
        MonitorRequest::View(region),
        MonitorRequest::Write { at: reference(block), skipped: 3, bytes: vec![7; 30] },
        MonitorRequest::WriteTogether { disk: 0, writes: vec![reference(block); 2] },
        MonitorRequest::Look(vec![reference(block); 2]),
        MonitorRequest::Present(vec![0; 70]),
        MonitorRequest::Read(reference(block)),
        MonitorRequest::Names,
        MonitorRequest::Enter(Entering { inode: 2, thread: 1, writes: true }),
        MonitorRequest::Refusals,
        MonitorRequest::Ended(vec![0; 9]),
        MonitorRequest::Withdrawn,
        MonitorRequest::AddAlias(proof),
    ]
    .iter()
    .map(encode)
    .collect()
}

/// Replies of the monitor.
#[allow(dead_code, reason = "the enemy never answers for the monitor")]
pub fn monitor_says(block: u64) -> Vec<Vec<u8>> {
    let id = BlockId { disk: 0, number: block };
    [
        MonitorReply::Done,
        MonitorReply::Region(RegionId(7)),
        MonitorReply::References(vec![reference(block); 3]),
        MonitorReply::Places(vec![(reference(block), id, Status::Dirty)]),
        MonitorReply::Look(vec![None, Some(Status::Clean)]),
        MonitorReply::Alias(3),
        MonitorReply::Page(vec![7; 4096]),
        MonitorReply::Names {
            process: ProcessName { boot: [1; 16], number: 4 },
            names: vec![NamedAlias { alias: 2, principal: user("bob"), scope: Scope::EVERYTHING }],
            credentials: vec![],
        },
        MonitorReply::Entry(Entry::Again),
        MonitorReply::Refusals(vec![(2, 3, "/bin/cat".to_owned(), "no rule".to_owned())], None),
    ]
    .iter()
    .map(encode)
    .collect()
}

/// Requests to PolicyMgr.
pub fn ask_policy(block: u64) -> Vec<Vec<u8>> {
    let (disk, blocks) = (0, Blocks { first: block, count: 2 });
    [
        PolicyRequest::Cache { disk, blocks: vec![block; 3] },
        PolicyRequest::Evict { disk, blocks: vec![block; 3] },
        PolicyRequest::Cached { disk, from: 0 },
        PolicyRequest::ChangeAcls { disk, blocks, principal: user("bob"), access: Some(Access::Read) },
        PolicyRequest::ChangeAcls { disk, blocks, principal: user("bob"), access: None },
        PolicyRequest::Nominate { disk, blocks, to: user("bob") },
        PolicyRequest::Accept { disk, blocks, acl: acl() },
        PolicyRequest::Look { disk, block },
        PolicyRequest::Owns { disk, blocks, owner: [1; 32] },
        PolicyRequest::Sizes { disk },
        PolicyRequest::Format { disk },
        PolicyRequest::Give { disk, blocks, to: user("bob") },
        PolicyRequest::Introduce { principal: user("bob"), scope: Scope::EVERYTHING },
        PolicyRequest::End(vec![0; 70]),
    ]
    .iter()
    .map(encode)
    .collect()
}

/// Replies of PolicyMgr.
#[allow(dead_code, reason = "the enemy never answers for PolicyMgr")]
pub fn policy_says(block: u64) -> Vec<Vec<u8>> {
    let blocks = Blocks { first: block, count: 2 };
    [
        PolicyReply::Done,
        PolicyReply::References(vec![reference(block); 3]),
        PolicyReply::Cached(vec![(block, reference(block))]),
        PolicyReply::Label { blocks, owner: user("alice"), acl: acl() },
        PolicyReply::Owns(true),
        PolicyReply::Sizes { blocks: 1, extents: 2, labels: 3, free: 4 },
    ]
    .iter()
    .map(encode)
    .collect()
}

/// Requests to CacheMgr.
pub fn ask_cache(block: u64) -> Vec<Vec<u8>> {
    [
        CacheRequest::Want { disk: 0, blocks: vec![block; 3], fill: true, ahead: vec![block + 3] },
        CacheRequest::Want { disk: 0, blocks: vec![block], fill: false, ahead: vec![] },
        CacheRequest::Clean { disk: 0, blocks: vec![block; 3] },
        CacheRequest::Empty,
    ]
    .iter()
    .map(encode)
    .collect()
}

/// Replies of CacheMgr.
pub fn cache_says(block: u64) -> Vec<Vec<u8>> {
    [CacheReply::Done, CacheReply::References(vec![reference(block); 2]), CacheReply::References(vec![])]
        .iter()
        .map(encode)
        .collect()
}

/// Requests to a DiskDriver.
pub fn ask_driver(block: u64) -> Vec<Vec<u8>> {
    let page = PageId { region: RegionId(3), index: 2 };
    [Direction::Fill, Direction::Drain]
        .map(|direction| {
            encode(&DriverRequest::Transfer { direction, disk: 0, blocks: vec![(block, page); 3] })
        })
        .to_vec()
}

/// Replies of a DiskDriver.
pub fn driver_says() -> Vec<Vec<u8>> {
    vec![encode(&DriverReply { moved: 1 })]
}

/// Requests to an FSDriver.
pub fn ask_files() -> Vec<Vec<u8>> {
    let (now, name) = ((1, 2), "made by an enemy".to_owned());
    let other = "SECRET".to_owned();
    [
        FilesRequest::LookUp { parent: 1, name: other.clone() },
        FilesRequest::Forget { file: 2, count: 1 },
        FilesRequest::Stat(1),
        FilesRequest::List { directory: 1, cookie: 0, count: 9 },
        FilesRequest::ListFiles { directory: 1, cookie: 0, count: 9 },
        FilesRequest::Map { file: 2, offset: 0, length: 9000 },
        FilesRequest::Create { parent: 1, name: name.clone(), is_directory: false, now },
        FilesRequest::Unlink { parent: 1, name: other.clone(), now },
        FilesRequest::RemoveDirectory { parent: 1, name: name.clone(), now },
        FilesRequest::Rename {
            from: 1,
            name: other.clone(),
            to: 1,
            new_name: name.clone(),
            replace: true,
            now,
        },
        FilesRequest::Resize { file: 2, size: 1000, owner: user("bob"), now },
        FilesRequest::Claim { file: 2, offset: 0, length: 1000, owner: user("bob") },
        FilesRequest::SetTimes { file: 2, times: [Some(now), None, Some(now)], is_read_only: Some(true) },
        FilesRequest::Returning,
        FilesRequest::Returned { item: 2, blocks: vec![Blocks { first: 9, count: 2 }], clusters: 2, now },
        FilesRequest::Sizes,
        FilesRequest::Ended { session: "vfs-0".to_owned() },
    ]
    .iter()
    .map(encode)
    .collect()
}

/// Replies of an FSDriver, about somebody's blocks.
pub fn files_say(block: u64) -> Vec<Vec<u8>> {
    let file = File { id: 2, is_directory: false, size: u64::MAX, times: [(1, 2); 3], is_read_only: false };
    let blocks = Blocks { first: block, count: 2 };
    let edge = Blocks { first: u64::MAX - 1, count: u64::MAX };
    let listed =
        |name: &str| DirectoryEntry { name: name.to_owned(), is_directory: false, number: 3, cookie: 0 };
    let with_file = |name: &str, cookie, file: &File| {
        (DirectoryEntry { cookie, is_directory: file.is_directory, ..listed(name) }, Some(file.clone()))
    };
    let sound = File { size: 5, ..file.clone() };
    let root = File { id: 1, is_directory: true, ..sound.clone() };
    [
        FilesReply::Files(vec![with_file("a", 1, &sound), with_file("b", 2, &file)]),
        FilesReply::Files(vec![with_file("a", 1, &sound), with_file("..", 2, &root)]),
        FilesReply::Files(vec![with_file("a", 1, &root), with_file("a", 2, &sound)]),
        FilesReply::Files(vec![with_file("a/b", 1, &sound); 3]),
        FilesReply::Done,
        FilesReply::File(File { is_directory: true, ..file.clone() }),
        FilesReply::File(file),
        FilesReply::Names(vec![listed("a"), listed("../.."), listed(""), listed("a/b\0")]),
        FilesReply::Map { runs: vec![(0, blocks), (0, edge)], block_bytes: 512 },
        FilesReply::Map { runs: vec![(u64::MAX - 511, blocks); 100], block_bytes: 4096 },
        FilesReply::Map { runs: vec![(0, blocks)], block_bytes: 0 },
        FilesReply::Resized {
            size: u64::MAX,
            nominated: vec![blocks, edge],
            fill: Some((u64::MAX, u64::MAX)),
        },
        FilesReply::Resized { size: 0, nominated: vec![], fill: None },
        FilesReply::Return { item: 2, blocks: vec![blocks], clusters: 2, to: Some(user("bob")) },
        FilesReply::Return { item: 0, blocks: vec![], clusters: 0, to: None },
        FilesReply::Sizes { cluster_bytes: 0, clusters: u64::MAX, free: u64::MAX },
    ]
    .iter()
    .map(encode)
    .collect()
}
