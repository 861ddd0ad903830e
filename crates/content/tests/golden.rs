//! Pins every stored format: objects made today have the bytes and addresses in `tests/golden`, those bytes
//! decode to those objects, and the examples of `docs/internals/format.md` are among them. After a deliberate
//! change of format (which needs a new format number), `GOLDEN=write scripts/test only content::golden::`
//! writes the files anew.

use crate::with_changes;
use holdfast_content::file::ChunkerConfig;
use holdfast_content::*;
use holdfast_crypto::{Digest, DigestKey, Domain, SigningKey};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

const KEY: DigestKey = DigestKey::WELL_KNOWN;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"))
}

fn golden(name: &str, text: &str) {
    if std::env::var_os("GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(path(name), text).unwrap();
    }
    let expected = std::fs::read_to_string(path(name)).unwrap_or_default();
    assert!(expected == text, "{name} has changed; now it is\n{text}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        text.bytes().filter(u8::is_ascii_hexdigit).map(|d| (d as char).to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect()
}

fn describe(block: &Block) -> String {
    let mut text = format!("kind    {:?}\naddress {}\n", block.kind(), block.reference().address);
    for reference in block.references() {
        writeln!(text, "refers  {reference}").unwrap();
    }
    for line in block.body().chunks(32) {
        writeln!(text, "body    {}", hex(line)).unwrap();
    }
    text
}

/// The body and addresses in a golden file.
fn parse(name: &str) -> (Vec<u8>, Vec<holdfast_crypto::Digest>) {
    let text = std::fs::read_to_string(path(name)).unwrap();
    let field =
        |field: &'static str| text.lines().filter_map(move |line| line.strip_prefix(field)).map(str::trim);
    let body = field("body ").flat_map(unhex).collect();
    let references = field("refers ").map(|hex| holdfast_crypto::Digest::from_hex(hex).unwrap()).collect();
    (body, references)
}

fn golden_block(name: &str, block: &Block) {
    golden(name, &describe(block));
    let (body, references) = parse(name);
    let again = Block::new(&KEY, block.kind(), references, body);
    assert_eq!(&again, block);
    // The stored form opens to the same block.
    let stored: StoredBlock = holdfast_crypto::decode(&holdfast_crypto::encode(&block.to_stored())).unwrap();
    assert_eq!(&stored.open(&KEY, &block.reference(), block.kind()).unwrap(), block);
}

fn chunk(text: &str) -> Block {
    Block::new(&KEY, BlockKind::Chunk, vec![], text.as_bytes().to_vec())
}

fn extent(text: &str) -> Extent {
    Extent::whole(chunk(text).reference())
}

fn tag() -> Option<Tag> {
    Some(Tag { device: DeviceId(2), number: 41 })
}

fn numbered(count: u64) -> BTreeMap<Vec<u8>, Option<Value>> {
    (0..count).map(|n| (n.to_be_bytes().to_vec(), Some(Value::plain(vec![n as u8])))).collect()
}

fn file_inode() -> Inode {
    Inode {
        kind: InodeKind::File,
        mode: 0o644,
        links: 1,
        size: 22,
        modified_ns: 1_700_000_000_000_000_000,
        changed_ns: 1_700_000_000_000_000_001,
        device_number: 0,
        xattrs: [(b"user.note".to_vec(), b"hi".to_vec())].into(),
        writer: DeviceId(2),
        content: Content::Extents(ExtentMap {
            chunker: Chunker::FastCdc64,
            extents: Extents::Inline(vec![
                (0, extent("hello")),
                (16, Extent { skip: 1, length: 5, ..extent("a world") }),
            ]),
        }),
    }
}

fn inode(kind: InodeKind, content: Content) -> Inode {
    let mut inode = Inode::new(kind, 0o755, DeviceId(2), 1_700_000_000_000_000_000);
    inode.content = content;
    inode
}

#[test]
fn chunks() {
    golden_block("chunk", &chunk("hello"));
    let travels = holdfast_crypto::encode(&chunk("hello").to_stored());
    let reference = holdfast_crypto::encode(&chunk("hello").reference());
    golden("chunk-stored", &format!("stored    {}\nreference {}\n", hex(&travels), hex(&reference)));
}

#[test]
fn map_nodes() {
    let map = MerkleMap::new(KEY);
    let blocks = MemoryBlocks::new(KEY);
    let mut batch = BlockBatch::new(KEY);
    let edits = [
        (b"apple".to_vec(), Some(Value::plain(b"red".to_vec()))),
        (
            b"pear".to_vec(),
            Some(Value { bytes: b"green".to_vec(), references: vec![chunk("hello").reference()] }),
        ),
    ];
    let root = map.apply(&blocks, &mut batch, &MapRoot::EMPTY, edits.into()).unwrap();
    assert_eq!((batch.blocks.len(), root.0.unwrap().level), (1, 0));
    golden_block("map-leaf", &batch.blocks[0]);

    let mut batch = BlockBatch::new(KEY);
    let root = map.apply(&blocks, &mut batch, &MapRoot::EMPTY, numbered(130)).unwrap();
    assert_eq!(root.0.unwrap().level, 1);
    golden_block("map-inner", batch.blocks.last().unwrap());

    let mut text = String::new();
    for count in [0, 1, 15, 16, 100, 1_000, 10_000, 100_000] {
        let root = map.apply(&blocks, &mut BlockBatch::new(KEY), &MapRoot::EMPTY, numbered(count)).unwrap();
        let top = root.0.map(|top| format!("level {} {}", top.level, top.reference.address));
        writeln!(text, "{count} entries {}", top.unwrap_or_else(|| "empty".into())).unwrap();
    }
    golden("map-roots", &text);
}

#[test]
fn inodes() {
    let entry = Entry {
        handle: Handle { principal: PrincipalId::Group(GroupId(3)), number: 9 },
        kind: InodeKind::File,
    };
    let directory = with_changes([
        directory::change(b"kept", Some(&entry), None).unwrap(),
        directory::change(b"maybe", Some(&entry), tag()).unwrap(),
        directory::change(b"gone", None, None).unwrap(),
    ]);
    let mut small = inode(InodeKind::File, Content::Inline(b"few bytes".to_vec()));
    small.size = 9;
    for (name, inode) in [
        ("inode-file", file_inode()),
        ("inode-small-file", small),
        ("inode-directory", inode(InodeKind::Directory, Content::Directory(directory))),
        ("inode-symlink", inode(InodeKind::Symlink, Content::Target(b"../there".to_vec()))),
    ] {
        golden_block(name, &inode.to_block(&KEY).unwrap());
        let (body, references) = parse(name);
        assert_eq!(Inode::decode(&body, &references).unwrap(), inode);
    }
    // A file with so many extents that they are a map.
    let blocks = MemoryBlocks::new(KEY);
    let text = "x".repeat(100);
    let writes: Vec<(u64, &[u8])> = (0..20).map(|n| (n * 1000, text.as_bytes())).collect();
    let map = file::splice(&blocks, &mut &blocks, &ExtentMap::empty(), &writes, None).unwrap();
    golden_block("inode-large-file", &inode(InodeKind::File, Content::Extents(map)).to_block(&KEY).unwrap());
}

#[test]
fn tables() {
    let blocks = MemoryBlocks::new(KEY);
    let mut device = Table::new(PrincipalId::Device(DeviceId(2)));
    device.map.push(inode_change(&mut &blocks, 1, Some(&file_inode()), None).unwrap());
    let mut large = file_inode();
    large.xattrs.insert(b"user.long".to_vec(), vec![b'x'; 500]);
    device.map.push(inode_change(&mut &blocks, 2, Some(&large), None).unwrap());
    device.map.push(inode_change(&mut &blocks, 3, None, None).unwrap());
    let mut group = Table::new(PrincipalId::Group(GroupId(3)));
    let range = Target { device: DeviceId(2), first: 100, count: 64 };
    group.map.push(target_change(9, Some(&Target::one(DeviceId(2), 1)), None).unwrap());
    group.map.push(target_change(64, Some(&range), tag()).unwrap());
    group.map.push(target_change(65, None, None).unwrap());
    for (name, table) in [("table-device", &device), ("table-group", &group)] {
        let block = table.to_block(&KEY).unwrap();
        golden_block(name, &block);
        assert_eq!(&Table::from_block(&block).unwrap(), table);
    }
    device.map = device.map.settle_and_compact(&blocks, &mut &blocks, &AllPending, 0).unwrap();
    golden_block("table-device-compacted", &device.to_block(&KEY).unwrap());
}

#[test]
fn memberships() {
    let key = |seed| SigningKey::from_seed(&[seed; 32]).public();
    let mut membership = Membership::founding("team", "root", key(0));
    membership.version = 3;
    membership.users.insert(UserId(1), User { name: "ann".into(), removed: false });
    let device = Device { user: UserId(1), name: "laptop".into(), key: key(1), removed_at: Some(3) };
    membership.devices.insert(DeviceId(1), device);
    let group = Group {
        name: "staff".into(),
        members: [UserId(0), UserId(1)].into(),
        former: [(UserId(1), 2)].into(),
        removed: false,
        groups: Default::default(),
    };
    membership.groups.insert(GroupId(3), group);
    let block = membership.to_block(&KEY).unwrap();
    golden_block("membership", &block);
    assert_eq!(Membership::from_block(&block).unwrap(), membership);
    let group = Group {
        name: "everybody".into(),
        members: [UserId(1)].into(),
        former: [].into(),
        removed: false,
        groups: [GroupId(3)].into(),
    };
    membership.groups.insert(GroupId(4), group);
    let block = membership.to_block(&KEY).unwrap();
    golden_block("membership-nested", &block);
    assert_eq!(Membership::from_block(&block).unwrap(), membership);
    membership.quotas.insert(UserId(1), 10 << 30);
    let block = membership.to_block(&KEY).unwrap();
    golden_block("membership-quotas", &block);
    assert_eq!(Membership::from_block(&block).unwrap(), membership);

    // With a warrant the block has another form, whose signed content has no version.
    let signature = SigningKey::from_seed(&[0; 32]).sign(Domain::Warrant, b"whatever");
    membership.warrant = Some(Warrant { version: 2, follows: Digest([7; 32]), signature });
    let block = membership.to_block(&KEY).unwrap();
    golden_block("membership-warranted", &block);
    assert_eq!(Membership::from_block(&block).unwrap(), membership);
    let undated = membership.undated();
    assert_eq!((undated.version, undated.devices[&DeviceId(1)].removed_at), (0, Some(0)));
    assert_eq!(undated.groups[&GroupId(3)].former[&UserId(1)], 2, "an earlier date stays");
    assert_eq!(undated.dated(3), Membership { warrant: None, ..membership.clone() });

    membership.warrant = None;
    let signature = SigningKey::from_seed(&[0; 32]).sign(Domain::Restore, b"whatever");
    let (root, base) = (Digest([8; 32]), Digest([9; 32]));
    membership.restores = vec![Restore { size: 7, root, base, declared_ns: 1, nonce: [6; 16], signature }];
    let block = membership.to_block(&KEY).unwrap();
    golden_block("membership-restored", &block);
    assert_eq!(Membership::from_block(&block).unwrap(), membership);
    let erased = Membership { version: 4, restores: Vec::new(), ..membership.clone() };
    assert!(membership.validate_successor(&erased).is_err(), "a restore stays declared");
}

#[test]
fn set_roots() {
    let mut text = String::new();
    for count in [0u64, 1, 15, 100, 10_000] {
        let entries = (0..count).map(|n| (n.to_be_bytes().to_vec(), n.to_le_bytes().to_vec()));
        writeln!(text, "{count} entries {}", set_root(&KEY, entries)).unwrap();
    }
    golden("set-roots", &text);
}

/// Bytes that any implementation can make: digests of counters.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length.div_ceil(32) as u64)
        .flat_map(|n| KEY.digest(Domain::Evidence, &n.to_le_bytes()).0)
        .collect();
    bytes.truncate(length);
    bytes
}

#[test]
fn chunk_cuts() {
    let bytes = noise(4 << 20);
    let blocks = MemoryBlocks::new(KEY);
    let (map, size) = file::from_reader(&mut &blocks, &ChunkerConfig::DEFAULT, &bytes[..]).unwrap();
    assert_eq!(size, 4 << 20);
    let mut text = String::new();
    for (offset, extent) in map.extents_in(&blocks, 0..u64::MAX).unwrap() {
        writeln!(text, "{offset} {} {}", extent.length, extent.reference.address).unwrap();
    }
    golden("chunk-cuts", &text);
    for (name, config) in [
        ("chunk-cuts-small", ChunkerConfig::SMALL),
        ("chunk-cuts-large", ChunkerConfig::LARGE),
        ("chunk-cuts-lbfs", ChunkerConfig::LBFS),
    ] {
        let map = file::from_reader(&mut &blocks, &config, &bytes[..]).unwrap().0;
        let mut ends = String::new();
        map.visit(&blocks, 0..u64::MAX, &mut |offset, extent| {
            writeln!(ends, "{}", offset + u64::from(extent.length)).unwrap();
            Ok(true)
        })
        .unwrap();
        golden(name, &ends);
    }
    // Zeroes have no cut of their own: every chunk is as long as may be.
    let zeroes = vec![0u8; 1_000_000];
    let map = file::from_reader(&mut &blocks, &ChunkerConfig::DEFAULT, &zeroes[..]).unwrap().0;
    let lengths: Vec<u32> =
        map.extents_in(&blocks, 0..u64::MAX).unwrap().iter().map(|(_, extent)| extent.length).collect();
    golden("chunk-cuts-zeroes", &format!("{lengths:?}\n"));
}

#[test]
fn the_examples_of_the_format_document_are_the_golden_ones() {
    let document = std::fs::read_to_string(
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/format.md"),
    )
    .unwrap();
    let mut examples = 0;
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("```golden ") else { continue };
        let example: String = lines
            .by_ref()
            .take_while(|line| *line != "```")
            .fold(String::new(), |text, line| text + line + "\n");
        let expected = std::fs::read_to_string(path(name)).unwrap();
        assert_eq!(example, expected, "the example {name} in docs/internals/format.md");
        examples += 1;
    }
    assert!(examples >= 8, "{examples} examples");
}

/// A parcel made once opens to the same blocks for ever. Packing may improve, so only opening is pinned.
#[test]
fn parcel() {
    let text: Vec<u8> = (0..40u32).flat_map(|n| format!("line {n} of an old file\n").into_bytes()).collect();
    let old = Block::new(&KEY, BlockKind::Chunk, vec![], text.clone());
    let old_leaf = Block::new(&KEY, BlockKind::MapLeaf, vec![old.reference().address], b"leaf".to_vec());
    let mut edited = text;
    edited.splice(500..520, *b"something new");
    let new = Block::new(&KEY, BlockKind::Chunk, vec![], edited);
    let foreign = holdfast_crypto::Digest([7; 32]);
    let addresses = vec![foreign, new.reference().address, old.reference().address];
    let new_leaf = Block::new(&KEY, BlockKind::MapLeaf, addresses, b"leaf".to_vec());
    let (bases, blocks) = ([old, old_leaf], [new, new_leaf]);
    let mut prefix = Prefix::default();
    assert!(bases.iter().all(|base| prefix.push(base)));
    if std::env::var_os("GOLDEN").is_some_and(|value| value == "write") {
        let parcel = Parcel::pack(&prefix, &blocks, 3).unwrap();
        let mut text = String::new();
        for base in prefix.bases() {
            writeln!(text, "base    {base}").unwrap();
        }
        writeln!(text, "plain   {}", parcel.plain_bytes).unwrap();
        for line in parcel.frame.chunks(32) {
            writeln!(text, "frame   {}", hex(line)).unwrap();
        }
        for block in &blocks {
            writeln!(text, "holds   {}", block.reference().address).unwrap();
        }
        std::fs::write(path("parcel"), text).unwrap();
    }
    let text = std::fs::read_to_string(path("parcel")).unwrap();
    let field =
        |field: &'static str| text.lines().filter_map(move |line| line.strip_prefix(field)).map(str::trim);
    let digests = |name| field(name).map(|hex| holdfast_crypto::Digest::from_hex(hex).unwrap());
    let parcel = Parcel {
        bases: digests("base ").map(Base::Block).collect(),
        plain_bytes: field("plain ").next().unwrap().parse().unwrap(),
        frame: field("frame ").flat_map(unhex).collect(),
    };
    let opened = parcel.open(&KEY, &prefix).unwrap();
    assert_eq!(opened, blocks);
    assert!(opened.iter().map(|block| block.reference().address).eq(digests("holds ")));
    let again = Parcel::pack(&prefix, &blocks, 3).unwrap();
    assert_eq!(again.open(&KEY, &prefix).unwrap(), blocks);
    assert!(again.frame.len() <= parcel.frame.len(), "packing has become worse");
}
