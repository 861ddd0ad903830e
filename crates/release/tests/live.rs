//! Views of a live file system that no honest member signs, and the releases that are made of them.

use crate::origin::FakeOrigin;
use holdfast_client::store::Blocks;
use holdfast_client::tree::{Base, TableCache};
use holdfast_content::{Block, BlockKind};
use holdfast_content::{
    Content, DeviceId, Entry, Extent, ExtentMap, Extents, Handle, Inode, InodeKind, InodeSlot, LiveMap,
    MapRoot, Membership, MemoryBlocks, MerkleMap, PrincipalId, Reference, Table, Target, UserId, Value,
    target_change,
};
use holdfast_crypto::{Digest, DigestKey, SigningKey};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::{Forecast, HandleVersion, LogHead, Outcome, Structure, View};
use holdfast_release::index::{Index, key_of};
use holdfast_release::publish::folder::FolderBlocks;
use holdfast_release::publish::live::{LiveSource, find_directory, publish};
use holdfast_release::publish::rules::Rules;
use holdfast_release::publish::{Options, PublishError, PublishedTree};
use holdfast_release::tree::{PathLookup, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

const KEY: DigestKey = DigestKey::WELL_KNOWN;
const ROOT: u64 = 1;

fn file(number: u64) -> Handle {
    Handle { principal: PrincipalId::User(UserId(0)), number }
}

/// A directory with these names.
fn directory(blocks: &MemoryBlocks, names: &[(&str, u64, InodeKind)]) -> Inode {
    let map = MerkleMap::new(KEY);
    let entry = |(name, number, kind): &(&str, u64, InodeKind)| {
        (name.as_bytes().to_vec(), Some(Entry { handle: file(*number), kind: *kind }.to_value()))
    };
    let edits = names.iter().map(entry).collect();
    let root = map.apply(blocks, &mut { blocks }, &MapRoot(None), edits).unwrap();
    let mut inode = Inode::new(InodeKind::Directory, 0o755, DeviceId(0), 7);
    inode.content = Content::Directory(LiveMap::of(root));
    inode
}

/// A view in which the superuser has these files.
fn base(blocks: Arc<MemoryBlocks>, inodes: &BTreeMap<u64, Inode>) -> Base {
    let map = MerkleMap::new(KEY);
    let table = |owner, edits: BTreeMap<Vec<u8>, Option<Value>>| -> HandleVersion {
        let mut table = Table::new(owner);
        table.map = LiveMap::of(map.apply(&*blocks, &mut { &*blocks }, &MapRoot(None), edits).unwrap());
        HandleVersion { version: 1, reference: table.store(&mut { &*blocks }).unwrap() }
    };
    let slots = inodes.iter().map(|(number, inode)| {
        (number.to_be_bytes().to_vec(), Some(InodeSlot::value_of(&mut { &*blocks }, inode).unwrap()))
    });
    let device = table(PrincipalId::Device(DeviceId(0)), slots.collect());
    let targets = inodes.keys().map(|number| {
        let change = target_change(*number, Some(&Target::one(DeviceId(0), *number)), None).unwrap();
        (change.key, change.value)
    });
    let user = table(PrincipalId::User(UserId(0)), targets.collect());
    let forecast = Forecast {
        file_system: Digest::ZERO,
        device: DeviceId(0),
        vector: Default::default(),
        pending: Vec::new(),
        aborted: Vec::new(),
        voids: Default::default(),
        ineffective: Default::default(),
        certificate: Digest::ZERO,
        log: LogHead::default(),
    };
    let handles =
        BTreeMap::from([(PrincipalId::Device(DeviceId(0)), device), (PrincipalId::User(UserId(0)), user)]);
    let key = SigningKey::from_seed(&[1; 32]);
    let structure = Signed::new(Structure { forecast, outcome: Outcome::Done, handles }, &key);
    let view = View { slots: BTreeMap::from([(DeviceId(0), structure)]), ..View::default() };
    let membership = Arc::new(Membership::founding("test", "root", key.public()));
    let blocks = blocks as Arc<dyn Blocks>;
    Base::new(Arc::new(view), membership, DeviceId(0), blocks, Arc::new(TableCache::default()))
}

fn published(base: &Base, target: &Path, newest: Option<i64>) -> Result<PublishedTree, PublishError> {
    let rules = Rules::new(&["*.o".into()], &[]).unwrap();
    let options = Options {
        source: Path::new("hf://x"),
        target,
        digest_key: KEY,
        rules: &rules,
        newest,
        level: 1,
        threads: 1,
        memory: None,
    };
    // Publishing asks the server for nothing: what is read comes through the view.
    let server = FakeOrigin(Box::new(|request| panic!("{request:?}")));
    let live = LiveSource { base, directory: find_directory(base, b"")?, server: &server };
    publish(&options, &live, &Index::default(), &mut |_| true)
}

fn refusal(inodes: &BTreeMap<u64, Inode>, blocks: &Arc<MemoryBlocks>) -> String {
    let target = tempfile::tempdir().unwrap();
    match published(&base(blocks.clone(), inodes), target.path(), None) {
        Err(error @ (PublishError::Unfit { .. } | PublishError::Live { .. })) => error.to_string(),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("published"),
    }
}

/// Proves: directories that form no tree are refused, in bounded time and depth, and the error names the directory.
#[test]
fn what_is_no_tree() {
    // The stack of a program's first thread. In an unoptimized build the depth needs more than a test's thread has.
    let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(no_trees).unwrap();
    thread.join().unwrap();
}

fn no_trees() {
    use InodeKind::Directory;
    let blocks = Arc::new(MemoryBlocks::new(KEY));
    let circle = BTreeMap::from([
        (ROOT, directory(&blocks, &[("a", 2, Directory)])),
        (2, directory(&blocks, &[("b", 3, Directory)])),
        (3, directory(&blocks, &[("c", 2, Directory)])),
    ]);
    let why = refusal(&circle, &blocks);
    assert!(why.contains("a/b/c") && why.contains("lies in itself"), "{why}");
    // Each directory has two names for the next: 2 to the 40th paths.
    let doubling: BTreeMap<u64, Inode> = (1..40)
        .map(|number| {
            (number, directory(&blocks, &[("a", number + 1, Directory), ("b", number + 1, Directory)]))
        })
        .chain([(40, directory(&blocks, &[]))])
        .collect();
    assert!(refusal(&doubling, &blocks).contains("another name"));
    let deep: BTreeMap<u64, Inode> = (1..410)
        .map(|number| (number, directory(&blocks, &[("a", number + 1, Directory)])))
        .chain([(410, directory(&blocks, &[]))])
        .collect();
    assert!(refusal(&deep, &blocks).contains("deep"));
    let fine: BTreeMap<u64, Inode> = deep
        .into_iter()
        .filter(|(number, _)| *number < 401)
        .chain([(401, directory(&blocks, &[]))])
        .collect();
    let target = tempfile::tempdir().unwrap();
    assert_eq!(published(&base(blocks, &fine), target.path(), None).unwrap().names, 400);
}

/// Proves: what a release keeps of a live inode: small content as every publisher stores it, chunks by reference and in
/// no pack, no writer, no foreign attributes. Names that lead to nothing are left out, with a note.
#[test]
fn what_is_kept() {
    use InodeKind::{Directory, File, Symlink};
    let blocks = Arc::new(MemoryBlocks::new(KEY));
    let new =
        |kind, size, content| Inode { size, content, ..Inode::new(kind, 0o4755, DeviceId(3), 9_000_000_000) };
    let mut marked = new(File, 5, Content::Inline(b"hello".to_vec()));
    marked.changed_ns = 77;
    marked.xattrs.insert(b"user.note".to_vec(), b"kept".to_vec());
    marked.xattrs.insert(b"holdfast.opaque".to_vec(), b"".to_vec());
    marked.xattrs.insert(b"security.x".to_vec(), b"not kept".to_vec());
    marked.links = 2;
    // Chunks that nobody has: publishing does not read them.
    let chunk = |number: u64| -> Reference {
        Block::new(&KEY, BlockKind::Chunk, vec![], number.to_le_bytes().repeat(1000)).reference()
    };
    let few: Vec<(u64, Extent)> = (0..3).map(|n| (n * 100_000, Extent::whole(chunk(n)))).collect();
    let many: Vec<(u64, Extent)> = (0..40_000).map(|n| (n * 8000, Extent::whole(chunk(n % 50)))).collect();
    let few = ExtentMap::empty().graft(&*blocks, &mut { &*blocks }, &[], &few).unwrap();
    let many = ExtentMap::empty().graft(&*blocks, &mut { &*blocks }, &[], &many).unwrap();
    assert!(matches!((&few.extents, &many.extents), (Extents::Inline(_), Extents::Map(_))));
    let inodes = BTreeMap::from([
        (
            ROOT,
            directory(
                &blocks,
                &[
                    ("again", 2, File),
                    ("all-hole", 6, File),
                    ("few", 4, File),
                    ("gone", 99, File),
                    ("left.o", 2, File),
                    ("link", 8, Symlink),
                    ("many", 5, File),
                    ("marked", 2, Directory),
                    ("padded", 3, File),
                    ("zeroes", 7, File),
                ],
            ),
        ),
        (2, marked),
        (3, new(File, 10, Content::Inline(b"ab".to_vec()))),
        (4, new(File, 208_000, Content::Extents(few.clone()))),
        (5, new(File, 320_000_000, Content::Extents(many.clone()))),
        (6, new(File, 1_000_000, Content::None)),
        (7, new(File, 100, Content::None)),
        (8, new(Symlink, 3, Content::Target(b"few".to_vec()))),
    ]);
    let target = tempfile::tempdir().unwrap();
    let made = published(&base(blocks, &inodes), target.path(), Some(5)).unwrap();
    assert_eq!((made.names, made.notes.len()), (8, 1));
    assert!(made.notes[0].contains("gone"), "{:?}", made.notes);
    let at_origin: BTreeSet<_> =
        made.index.entries.iter().filter(|(_, place)| place.is_at_origin()).map(|(key, _)| *key).collect();
    assert_eq!(at_origin, (0..50).map(|n| key_of(&chunk(n).address)).collect());
    assert_eq!(made.added.at_origin, 50);

    let source = Arc::new(FolderBlocks::new(target.path(), KEY, made.index));
    let tree = Tree::new(source, made.root);
    let node = |path: &str| match tree.resolve(path.as_bytes(), false).unwrap() {
        PathLookup::Node(node) => node,
        other => panic!("{path}: {other:?}"),
    };
    let marked = node("marked");
    assert_eq!((marked.link, node("again").link), (node("marked").link, marked.link));
    assert!(marked.link.is_some() && marked.inode.links == 2);
    assert_eq!(marked.inode.xattrs, BTreeMap::from([(b"user.note".to_vec(), b"kept".to_vec())]));
    let times = (marked.inode.modified_ns, marked.inode.changed_ns, marked.inode.mode, marked.inode.writer);
    assert_eq!(times, (5_000_000_000, 5_000_000_000, 0o4755, DeviceId(0)));
    assert_eq!(node("padded").inode.content, Content::Inline(b"ab\0\0\0\0\0\0\0\0".to_vec()));
    assert_eq!(node("zeroes").inode.content, Content::Inline(vec![0; 100]));
    assert_eq!(tree.read(&node("all-hole"), 999_990, 100).unwrap(), [0; 10]);
    assert_eq!(node("few").inode.content, Content::Extents(few));
    assert_eq!(node("many").inode.content, Content::Extents(many));
    assert_eq!(node("link").inode.content, Content::Target(b"few".to_vec()));
    assert_eq!(tree.resolve(b"left.o", false).unwrap(), PathLookup::Nothing);
    assert!(tree.read(&node("few"), 0, 10).is_err(), "it lies elsewhere");
}
