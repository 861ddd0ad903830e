//! Blocks that a hostile author may make, put through everything that reads them. For the tests here and for fuzzing.

use holdfast_content::*;
use holdfast_crypto::{Digest, DigestKey};
use std::ops::Bound;

pub const KEY: DigestKey = DigestKey::WELL_KNOWN;

/// A hostile author's block, authentic by construction, put through everything that reads such a block.
pub fn read_everything(kind: BlockKind, body: &[u8], references: &[Digest]) {
    let blocks = MemoryBlocks::new(KEY);
    let mut sink = &blocks;
    let reference = sink.put(Block::new(&KEY, kind, references.to_vec(), body.to_vec()));
    let block = blocks.fetch(&reference, kind).unwrap();
    match kind {
        BlockKind::Inode => {
            if let Ok(inode) = Inode::load(&blocks, &reference) {
                let (again, again_references) = inode.encode().unwrap();
                assert_eq!((&again[..], &again_references[..]), (body, references));
                let _ = file::read(&blocks, &inode, 0, 4096);
                if let Content::Directory(map) = &inode.content {
                    let _ = directory::list(&blocks, &AllPending, map, None, 100);
                    let _ = map.settle_and_compact(&blocks, &mut &blocks, &AllPending, 0);
                }
                if let Content::Extents(map) = &inode.content {
                    let _ = file::splice(&blocks, &mut &blocks, map, &[(100, b"x")], Some(7));
                }
                let _ = InodeSlot::value_of(&mut &blocks, &inode);
            }
        }
        BlockKind::Table => {
            if let Ok(table) = Table::from_block(&block) {
                let again = table.to_block(&KEY).unwrap();
                assert_eq!((again.body(), again.references()), (body, references));
                for number in [1, 2, 1000] {
                    let _ = table.inode(&blocks, &AllPending, number);
                    let _ = table.target(&blocks, &AllPending, number);
                    let _ = table.remove(&blocks, &AllPending, number, None);
                }
                let _ = table.slots(&blocks, &AllPending, 0, 100);
            }
        }
        BlockKind::Membership => {
            if let Ok(membership) = Membership::from_block(&block) {
                assert_eq!(membership.to_block(&KEY).unwrap().body(), body);
            }
        }
        BlockKind::MapLeaf | BlockKind::MapInner => {
            let map = MerkleMap::new(KEY);
            for (level, entries) in [(0, 1), (0, 3), (1, 60), (2, 60), (255, u64::MAX)] {
                let root = MapRoot(Some(MapTop { reference, level, entries }));
                if (level == 0) != (kind == BlockKind::MapLeaf) {
                    continue;
                }
                let _ = map.get(&blocks, &root, b"key");
                let _ = map.range(&blocks, &root, Bound::Unbounded, 100);
                let _ = map.floor(&blocks, &root, Bound::Unbounded);
                let _ = map.apply(&blocks, &mut &blocks, &root, [(b"key".to_vec(), None)].into());
                let _ = map.diff(&blocks, &root, &MapRoot::EMPTY, &mut |_, _, _| Ok(()));
            }
        }
        BlockKind::Chunk => {}
    }
    // As a value of a map.
    let value = Value {
        bytes: body[..body.len().min(VALUE_BYTES_MAX)].to_vec(),
        references: references.iter().take(REFERENCES_PER_VALUE_MAX).map(|_| reference).collect(),
    };
    let _ = Entry::from_value(&value);
    if let Ok(slot) = InodeSlot::from_value(&value) {
        let _ = slot.into_inode(&blocks);
    }
}

pub const KINDS: [BlockKind; 6] = [
    BlockKind::Chunk,
    BlockKind::MapLeaf,
    BlockKind::MapInner,
    BlockKind::Inode,
    BlockKind::Table,
    BlockKind::Membership,
];

/// Sound blocks of every kind.
pub fn samples() -> Vec<Block> {
    let blocks = MemoryBlocks::new(KEY);
    let mut batch = BlockBatch::new(KEY);
    let bytes: Vec<u8> = (0..200_000u32).flat_map(|n| n.wrapping_mul(n).to_le_bytes()).collect();
    let (map, size) = file::from_reader(&mut batch, &Default::default(), &bytes[..]).unwrap();
    let mut inode = Inode::new(InodeKind::File, 0o644, DeviceId(1), 12345);
    (inode.size, inode.content) = (size, Content::Extents(map));
    inode.xattrs.insert(b"user.name".to_vec(), b"value".to_vec());
    inode.store(&mut batch).unwrap();
    let mut table = Table::new(PrincipalId::Device(DeviceId(1)));
    let tag = Some(Tag { device: DeviceId(2), number: 9 });
    for number in 1..200 {
        table.map.push(inode_change(&mut batch, number, Some(&inode), None).unwrap());
    }
    table.map = table.map.settle_and_compact(&blocks, &mut batch, &AllPending, 10).unwrap();
    table.map.push(inode_change(&mut batch, 3, None, tag).unwrap());
    table.map.push(inode_change(&mut batch, 4, Some(&inode), tag).unwrap());
    table.store(&mut batch).unwrap();
    let mut group = Table::new(PrincipalId::Group(GroupId(1)));
    let range = Target { device: DeviceId(1), first: 5, count: 100 };
    group.map.push(target_change(1000, Some(&range), None).unwrap());
    group.map.push(target_change(7, Some(&Target::one(DeviceId(1), 3)), tag).unwrap());
    group.store(&mut batch).unwrap();
    let mut directory = Inode::new(InodeKind::Directory, 0o755, DeviceId(1), 1);
    let mut map = LiveMap::EMPTY;
    let entry = Entry { handle: Handle::ROOT, kind: InodeKind::Directory };
    map.push(directory::change(b"name", Some(&entry), tag).unwrap());
    map.push(directory::change(b"other", None, None).unwrap());
    directory.content = Content::Directory(map);
    directory.store(&mut batch).unwrap();
    let key = holdfast_crypto::SigningKey::from_seed(&[1; 32]).public();
    Membership::founding("team", "root", key).store(&mut batch).unwrap();
    let kinds: Vec<_> = batch.blocks.iter().map(Block::kind).collect();
    assert!(KINDS.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    batch.blocks.retain(|block| block.kind() != BlockKind::Chunk);
    batch.blocks
}
