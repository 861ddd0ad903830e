//! Proves that files read back like a plain vector of bytes, whatever is written, truncated, punched and cut
//! anew; that equal content gets equal chunks; and that an edit costs only what it changes.

use holdfast_content::file::ChunkerConfig;
use holdfast_content::*;
use holdfast_crypto::DigestKey;
use holdfast_testing::noise;
use proptest::prelude::*;
use std::ops::Range;

const KEY: DigestKey = DigestKey::WELL_KNOWN;
const SIZE_MAX: u64 = 60_000;
const SMALL: ChunkerConfig = ChunkerConfig { bytes_min: 256, bytes_average: 1024, bytes_max: 4096 };

#[derive(Clone, Debug)]
enum Op {
    Splice { truncate: Option<u64>, writes: Vec<(u64, usize, u8)> },
    Punch(Range<u64>),
    Rechunk(Option<Range<u64>>),
    Graft(Range<u64>),
}

fn range() -> impl Strategy<Value = Range<u64>> {
    (0..SIZE_MAX, 0..20_000u64).prop_map(|(start, length)| start..start + length)
}

fn op() -> impl Strategy<Value = Op> {
    let write = (0..SIZE_MAX - 6000, prop_oneof![0usize..40, 0usize..6000], any::<u8>());
    prop_oneof![
        6 => (proptest::option::weighted(0.2, 0..SIZE_MAX), proptest::collection::vec(write, 0..6))
            .prop_map(|(truncate, writes)| Op::Splice { truncate, writes }),
        2 => range().prop_map(Op::Punch),
        2 => proptest::option::of(range()).prop_map(Op::Rechunk),
        1 => range().prop_map(Op::Graft),
    ]
}

fn file(content: Content, size: u64) -> Inode {
    let mut inode = Inode::new(InodeKind::File, 0o644, DeviceId(1), 0);
    inode.size = size;
    inode.content = content;
    inode
}

/// The map must be well-formed: encodable, and its extents in order without overlap.
fn check(blocks: &MemoryBlocks, map: &ExtentMap, bytes: &[u8], data: &[bool]) {
    let inode = file(Content::Extents(map.clone()), SIZE_MAX);
    assert!(file::read(blocks, &inode, 0, usize::MAX).unwrap() == bytes, "bytes differ");
    let (body, references) = inode.encode().unwrap();
    assert_eq!(Inode::decode(&body, &references).unwrap(), inode);
    let extents = map.extents_in(blocks, 0..u64::MAX).unwrap();
    assert_eq!(map.len(), extents.len() as u64);
    let mut covered = vec![false; SIZE_MAX as usize];
    for (offset, extent) in &extents {
        let range = *offset as usize..*offset as usize + extent.length as usize;
        assert!(covered[range.clone()].iter().all(|covered| !covered));
        covered[range].fill(true);
    }
    assert!(covered == data, "holes differ");
    // Few extents are in the inode.
    assert_eq!(matches!(map.extents, Extents::Inline(_)), extents.len() <= INLINE_EXTENTS_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn extent_maps_agree_with_a_vector(ops in proptest::collection::vec(op(), 1..25), probes in proptest::collection::vec(range(), 5)) {
        let blocks = MemoryBlocks::new(KEY);
        let mut map = ExtentMap::empty();
        let mut bytes = vec![0u8; SIZE_MAX as usize];
        let mut data = vec![false; SIZE_MAX as usize];
        for (number, op) in ops.into_iter().enumerate() {
            match op {
                Op::Splice { truncate, writes } => {
                    if let Some(end) = truncate {
                        bytes[end as usize..].fill(0);
                        data[end as usize..].fill(false);
                    }
                    let writes: Vec<(u64, Vec<u8>)> = writes.into_iter()
                        .map(|(offset, length, seed)| (offset, noise(u64::from(seed) + number as u64 * 256, length))).collect();
                    for (offset, written) in &writes {
                        let range = *offset as usize..*offset as usize + written.len();
                        bytes[range.clone()].copy_from_slice(written);
                        data[range].fill(true);
                    }
                    let writes: Vec<(u64, &[u8])> = writes.iter().map(|(offset, written)| (*offset, &written[..])).collect();
                    map = file::splice(&blocks, &mut &blocks, &map, &writes, truncate).unwrap();
                }
                Op::Punch(range) => {
                    let end = range.end.min(SIZE_MAX) as usize;
                    bytes[range.start as usize..end].fill(0);
                    data[range.start as usize..end].fill(false);
                    map = file::punch(&blocks, &mut &blocks, &map, range).unwrap();
                }
                Op::Graft(range) => {
                    // A run that was cut separately fills the first half of the range; the rest becomes a
                    // hole.
                    let range = range.start as usize..range.end.min(SIZE_MAX) as usize;
                    let middle = range.start + range.len() / 2;
                    let run = noise(number as u64, middle - range.start);
                    let mut added = Vec::new();
                    let end = file::cut_run_at(&mut &blocks, &SMALL, range.start as u64, &run[..], &mut added).unwrap();
                    prop_assert_eq!(end, middle as u64);
                    let cleared = range.start as u64..range.end as u64;
                    map = map.graft(&blocks, &mut &blocks, std::slice::from_ref(&cleared), &added).unwrap();
                    bytes[range.clone()].fill(0);
                    data[range.clone()].fill(false);
                    bytes[range.start..middle].copy_from_slice(&run);
                    data[range.start..middle].fill(true);
                }
                Op::Rechunk(range) => {
                    let dirty = [range.clone().unwrap_or(0..u64::MAX)];
                    map = file::rechunk(&blocks, &mut &blocks, &SMALL, &map, &dirty).unwrap();
                    if range.is_none() {
                        let extents = map.extents_in(&blocks, 0..u64::MAX).unwrap();
                        prop_assert!(extents.iter().all(|(_, extent)| extent.is_whole()));
                    }
                }
            }
            check(&blocks, &map, &bytes, &data);
        }
        let inode = file(Content::Extents(map.clone()), SIZE_MAX);
        for range in probes {
            let read = file::read(&blocks, &inode, range.start, (range.end - range.start) as usize).unwrap();
            prop_assert!(read == bytes[range.start as usize..range.end.min(SIZE_MAX) as usize]);
        }
    }

    #[test]
    fn whole_files_agree_with_a_vector(ops in proptest::collection::vec(
        (proptest::option::weighted(0.3, 0u64..600), proptest::collection::vec((0u64..500, 0usize..200, any::<u8>()), 0..4), 0u64..800), 1..15)) {
        let blocks = MemoryBlocks::new(KEY);
        let mut inode = file(Content::None, 0);
        let mut bytes: Vec<u8> = Vec::new();
        for (truncate, writes, size) in ops {
            if let Some(end) = truncate {
                let length = bytes.len();
                bytes.truncate(end as usize);
                bytes.resize(length, 0);
            }
            let writes: Vec<(u64, Vec<u8>)> = writes.into_iter().map(|(offset, length, seed)| (offset, noise(seed.into(), length))).collect();
            for (offset, written) in &writes {
                let end = *offset as usize + written.len();
                if bytes.len() < end { bytes.resize(end, 0); }
                bytes[*offset as usize..end].copy_from_slice(written);
            }
            bytes.resize(size as usize, 0);
            let writes: Vec<(u64, &[u8])> = writes.iter().map(|(offset, written)| (*offset, &written[..])).collect();
            inode.content = file::write(&blocks, &mut &blocks, &inode, &writes, truncate, size).unwrap();
            inode.size = size;
            prop_assert_eq!(&file::read(&blocks, &inode, 0, usize::MAX).unwrap(), &bytes);
            inode.encode().unwrap();
            prop_assert!(size > INLINE_BYTES_MAX as u64 || !matches!(inode.content, Content::Extents(_)));
        }
    }
}

#[test]
fn a_whole_file_is_cut_and_read_back() {
    let blocks = MemoryBlocks::new(KEY);
    for length in [0, 1, 255, 20_000, 70_000, 3_000_000] {
        let bytes = noise(1, length);
        let (map, size) = file::from_reader(&mut &blocks, &ChunkerConfig::DEFAULT, &bytes[..]).unwrap();
        assert_eq!(size, length as u64);
        assert_eq!(map.chunker, Chunker::FastCdc64);
        let inode = file(Content::Extents(map.clone()), size);
        assert!(file::read(&blocks, &inode, 0, usize::MAX).unwrap() == bytes);
        let config = ChunkerConfig::DEFAULT;
        let extents = map.extents_in(&blocks, 0..u64::MAX).unwrap();
        for (index, (_, extent)) in extents.iter().enumerate() {
            let length = extent.length as usize;
            assert!(length <= config.bytes_max);
            assert!(length >= config.bytes_min || index + 1 == extents.len());
        }
    }
}

#[test]
fn cutting_after_an_edit_meets_the_cuts_of_the_whole() {
    // A canonical file, edited in place, cut anew around the edit only: the same chunks as cutting it whole.
    let blocks = MemoryBlocks::new(KEY);
    let mut bytes = noise(2, 4_000_000);
    let config = ChunkerConfig::DEFAULT;
    let (map, size) = file::from_reader(&mut &blocks, &config, &bytes[..]).unwrap();
    let edits: [(u64, Vec<u8>); 4] = [
        (0, noise(3, 10)),
        (1_000_000, noise(4, 100_000)),
        (1_900_000, noise(5, 1)),
        (4_000_000, noise(6, 50_000)),
    ];
    let writes: Vec<(u64, &[u8])> = edits.iter().map(|(offset, bytes)| (*offset, &bytes[..])).collect();
    let spliced = file::splice(&blocks, &mut &blocks, &map, &writes, None).unwrap();
    bytes.resize(4_050_000, 0);
    for (offset, written) in &edits {
        bytes[*offset as usize..*offset as usize + written.len()].copy_from_slice(written);
    }
    let dirty: Vec<Range<u64>> =
        edits.iter().map(|(offset, bytes)| *offset..*offset + bytes.len() as u64).collect();
    let mut batch = BlockBatch::new(KEY);
    let again = file::rechunk(&blocks, &mut batch, &config, &spliced, &dirty).unwrap();
    let whole = file::from_reader(&mut &blocks, &config, &bytes[..]).unwrap().0;
    assert_eq!(again, whole);
    assert!(size == 4_000_000);
    // And it cost only what is near the edits, not the file.
    let cut: usize =
        batch.blocks.iter().filter(|block| block.kind() == BlockKind::Chunk).map(|b| b.body().len()).sum();
    assert!(cut < 1_600_000, "{cut} bytes cut anew");
}

#[test]
fn files_of_more_chunks_than_one_batch_are_cut_alike_both_ways() {
    let config = ChunkerConfig { bytes_min: 64, bytes_average: 256, bytes_max: 1024 };
    let blocks = MemoryBlocks::new(KEY);
    let bytes = noise(3, 11_000_000);
    let whole = file::from_reader(&mut &blocks, &config, &bytes[..]).unwrap().0;
    assert!(whole.len() > 2 * 16 * 1024, "{} chunks", whole.len());
    let written = file::splice(&blocks, &mut &blocks, &ExtentMap::empty(), &[(0, &bytes)], None).unwrap();
    let all = std::slice::from_ref(&(0..u64::MAX));
    let again = file::rechunk(&blocks, &mut &blocks, &config, &written, all).unwrap();
    assert_eq!(again, whole);
}

#[test]
fn equal_runs_of_two_files_share_chunks() {
    let blocks = MemoryBlocks::new(KEY);
    let common = noise(7, 2_000_000);
    let mut chunks = Vec::new();
    for prefix in [0, 12_345] {
        let bytes = [noise(8, prefix), common.clone()].concat();
        let map = file::from_reader(&mut &blocks, &ChunkerConfig::DEFAULT, &bytes[..]).unwrap().0;
        let extents = map.extents_in(&blocks, 0..u64::MAX).unwrap();
        chunks.push(extents.iter().map(|(_, e)| e.reference).collect::<std::collections::BTreeSet<_>>());
    }
    let shared = chunks[0].intersection(&chunks[1]).count();
    assert!(shared + 4 >= chunks[0].len(), "{shared} of {}", chunks[0].len());
}

/// Proves: a file has few chunks whatever its size, and keeps its way of cutting while it grows and shrinks within
/// a factor of sixteen around a border.
#[test]
fn chunks_grow_with_the_file_but_not_back_and_forth() {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    let fresh = |size| ChunkerConfig::for_file(size, Chunker::InPlace);
    assert_eq!(fresh(16 * KIB), ChunkerConfig::DEFAULT);
    assert_eq!(fresh(17 * KIB), ChunkerConfig::SMALL);
    assert_eq!(fresh(MIB), ChunkerConfig::SMALL);
    assert_eq!(fresh(MIB + 1), ChunkerConfig::DEFAULT);
    assert_eq!(fresh(4 * GIB + 1), ChunkerConfig::LARGE);
    for (present, sizes, config) in [
        (Chunker::FastCdc8, [KIB, 4 * MIB], ChunkerConfig::SMALL),
        (Chunker::FastCdc64, [256 * KIB, 16 * GIB], ChunkerConfig::DEFAULT),
        (Chunker::FastCdc256, [GIB, 100 * GIB], ChunkerConfig::LARGE),
    ] {
        assert_eq!(sizes.map(|size| ChunkerConfig::for_file(size, present)), [config; 2], "{present:?}");
    }
    assert_eq!(ChunkerConfig::for_file(4 * MIB + 1, Chunker::FastCdc8), ChunkerConfig::DEFAULT);
    assert_eq!(ChunkerConfig::for_file(256 * KIB - 1, Chunker::FastCdc64), ChunkerConfig::SMALL);
    assert_eq!(ChunkerConfig::for_file(GIB - 1, Chunker::FastCdc256), ChunkerConfig::DEFAULT);
}

/// Proves (LBFS, 3.1.2): neither a run of zeroes, which has no breakpoint, nor a file that repeats the same
/// bytes gets chunks outside the limits, so the size bounds the number of chunks.
#[test]
fn pathological_files_have_a_bounded_number_of_chunks() {
    let zeroes = vec![0u8; 1 << 20];
    let period = noise(10, 64);
    let repeated: Vec<u8> = period.iter().copied().cycle().take(1 << 20).collect();
    for config in [ChunkerConfig::SMALL, ChunkerConfig::DEFAULT, ChunkerConfig::LARGE, ChunkerConfig::LBFS] {
        for bytes in [&zeroes, &repeated] {
            let blocks = MemoryBlocks::new(KEY);
            let map = file::from_reader(&mut &blocks, &config, &bytes[..]).unwrap().0;
            let extents = map.extents_in(&blocks, 0..u64::MAX).unwrap();
            assert!(extents.len() <= bytes.len().div_ceil(config.bytes_min), "{} chunks", extents.len());
            for (index, (_, extent)) in extents.iter().enumerate() {
                let length = extent.length as usize;
                assert!(length <= config.bytes_max);
                assert!(length >= config.bytes_min || index + 1 == extents.len());
            }
        }
    }
}

#[test]
fn a_private_key_cuts_elsewhere() {
    let bytes = noise(9, 2_000_000);
    let cuts = |key: DigestKey| {
        let blocks = MemoryBlocks::new(key);
        let map = file::from_reader(&mut &blocks, &ChunkerConfig::DEFAULT, &bytes[..]).unwrap().0;
        map.extents_in(&blocks, 0..u64::MAX).unwrap().iter().map(|(at, _)| *at).collect::<Vec<_>>()
    };
    assert_ne!(cuts(DigestKey::WELL_KNOWN), cuts(DigestKey([1; 32])));
}

#[test]
fn a_sparse_file_of_4_gib_takes_writes_in_place_cheaply() {
    // 20,000 sectors, each far from the next, written in batches; then one sector more.
    let blocks = MemoryBlocks::new(KEY);
    let mut map = ExtentMap::empty();
    let sector = noise(1, 512);
    for batch in 0..20u64 {
        let writes: Vec<(u64, &[u8])> =
            (0..1000).map(|n| ((n * 20 + batch) * 214_748, &sector[..])).collect();
        map = file::splice(&blocks, &mut &blocks, &map, &writes, None).unwrap();
    }
    assert_eq!(map.len(), 20_000);
    let (made, fetched) = (blocks.len(), blocks.fetches());
    let at = 3_000_000_000;
    let map = file::splice(&blocks, &mut &blocks, &map, &[(at, &noise(2, 4096))], None).unwrap();
    assert!(blocks.len() - made < 12, "{} blocks", blocks.len() - made);
    assert!(blocks.fetches() - fetched < 40, "{} fetches", blocks.fetches() - fetched);
    let inode = file(Content::Extents(map), 1 << 32);
    let read = file::read(&blocks, &inode, at - 10, 4116).unwrap();
    assert_eq!(read[10..4106], noise(2, 4096));
    let fetched = blocks.fetches();
    assert_eq!(file::read(&blocks, &inode, (1 << 32) - 5, 100).unwrap(), [0; 5]);
    assert!(blocks.fetches() - fetched < 12);
}

#[test]
fn a_failing_reader_and_missing_blocks_are_distinguished() {
    struct Failing;
    impl std::io::Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the disk is on fire"))
        }
    }
    let blocks = MemoryBlocks::new(KEY);
    let error = file::from_reader(&mut &blocks, &ChunkerConfig::DEFAULT, Failing).unwrap_err();
    assert!(matches!(&error, ContentError::Input(why) if why.contains("fire")), "{error}");

    let bytes = noise(1, 1_000_000);
    let (map, size) = file::from_reader(&mut &blocks, &ChunkerConfig::DEFAULT, &bytes[..]).unwrap();
    let (_, extent) = map.extents_in(&blocks, 500_000..500_001).unwrap()[0];
    blocks.remove(&extent.reference.address);
    let missing = ContentError::Source(SourceError::Missing(extent.reference.address));
    let inode = file(Content::Extents(map.clone()), size);
    assert_eq!(file::read(&blocks, &inode, 0, usize::MAX).unwrap_err(), missing);
    let all = file::rechunk(&blocks, &mut &blocks, &SMALL, &map, std::slice::from_ref(&(0..u64::MAX)));
    assert_eq!(all.unwrap_err(), missing);
    // The other parts can still be read.
    assert!(file::read(&blocks, &inode, 0, 10).is_ok());
}

#[test]
fn writes_beyond_the_largest_file_are_refused() {
    let blocks = MemoryBlocks::new(KEY);
    let map = ExtentMap::empty();
    for offset in [FILE_BYTES_MAX, u64::MAX] {
        let error = file::splice(&blocks, &mut &blocks, &map, &[(offset, b"x")], None).unwrap_err();
        assert!(matches!(error, ContentError::Misuse(_)));
    }
    let map = file::splice(&blocks, &mut &blocks, &map, &[(FILE_BYTES_MAX - 1, b"x")], None).unwrap();
    let inode = file(Content::Extents(map), FILE_BYTES_MAX);
    assert_eq!(file::read(&blocks, &inode, FILE_BYTES_MAX - 3, 10).unwrap(), b"\0\0x");
    inode.encode().unwrap();
}

#[test]
fn hostile_extents_are_refused() {
    let blocks = MemoryBlocks::new(KEY);
    let chunk = (&blocks).put(Block::new(&KEY, BlockKind::Chunk, vec![], vec![1; 100]));
    let extent = |skip, length| Extent { reference: chunk, skip, length };
    let refused: [Vec<(u64, Extent)>; 7] = [
        vec![(0, extent(0, 0))],                                                     // empty
        vec![(0, extent(0, 101))],                                                   // longer than its chunk
        vec![(0, extent(u32::MAX, 2))], // beyond it, and it would overflow
        vec![(0, extent(0, 50)), (49, extent(0, 50))], // overlapping
        vec![(60, extent(0, 50)), (0, extent(0, 50))], // out of order
        vec![(FILE_BYTES_MAX - 10, extent(0, 50))], // beyond the largest file
        (0..=INLINE_EXTENTS_MAX as u64).map(|n| (n * 100, extent(0, 50))).collect(), // too many
    ];
    for extents in refused {
        let map = ExtentMap { chunker: Chunker::InPlace, extents: Extents::Inline(extents.clone()) };
        let inode = file(Content::Extents(map), 1000);
        assert!(matches!(inode.encode(), Err(ContentError::Misuse(_))));
        // The same extents as entries of a map.
        let edits = extents
            .iter()
            .map(|(offset, extent)| {
                let bytes = [extent.skip.to_le_bytes(), extent.length.to_le_bytes()].concat();
                (offset.to_be_bytes().to_vec(), Some(Value { bytes, references: vec![extent.reference] }))
            })
            .collect();
        let root = MerkleMap::new(KEY).apply(&blocks, &mut &blocks, &MapRoot::EMPTY, edits).unwrap();
        let map = ExtentMap { chunker: Chunker::InPlace, extents: Extents::Map(root) };
        if extents.len() == 1 || extents[1].0 == 49 {
            let error = map.extents_in(&blocks, 0..u64::MAX).unwrap_err();
            assert!(matches!(error, ContentError::Malformed { .. }), "{error}");
        }
        if root.len() <= INLINE_EXTENTS_MAX as u64 {
            // A map where the inode would do.
            assert!(file(Content::Extents(map), 1000).encode().is_err());
        }
    }
}
