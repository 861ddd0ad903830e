use super::*;
use holdfast_testing::noise;

const KEY: DigestKey = DigestKey::WELL_KNOWN;

fn chunk(body: Vec<u8>) -> Block {
    Block::new(&KEY, BlockKind::Chunk, Vec::new(), body)
}

fn address(block: &Block) -> Digest {
    block.reference().address
}

/// Proves: unpacked blocks are those that were packed, in any order; references to one another are computed,
/// others are transferred.
#[test]
fn what_goes_in_comes_out() {
    let (a, b) = (chunk(noise(1, 3000)), chunk(noise(2, 10)));
    let foreign = |n: u8| Digest([n; 32]);
    let references = vec![foreign(1), address(&b), foreign(2), address(&a), address(&a), foreign(3)];
    let node = Block::new(&KEY, BlockKind::MapLeaf, references, b"node".to_vec());
    let empty = chunk(Vec::new());
    // The last block is referred to before it comes, so that its address is sent.
    let early = Block::new(&KEY, BlockKind::MapInner, vec![address(&empty)], vec![]);
    let blocks = [a, b, node, early, empty];
    let parcel = Parcel::pack(&Prefix::default(), &blocks, 3).unwrap();
    assert_eq!(parcel.open(&KEY, &Prefix::default()).unwrap(), blocks);
    assert!(parcel.frame.len() < 3000 + 10 + 4 * 32 + 100, "two digests of six are derived");
}

fn prefix_of(bases: &[Block]) -> Prefix {
    let mut prefix = Prefix::default();
    bases.iter().for_each(|base| assert!(prefix.push(base)));
    prefix
}

/// Proves: a changed block costs about what is new in it, also if it is one of many references that changed.
#[test]
fn what_resembles_a_base_costs_what_is_new() {
    let body = noise(1, 200_000);
    let mut edited = body.clone();
    edited.splice(70_000..70_010, *b"inserted here");
    let old_chunks: Vec<Block> = (0..300).map(|n| chunk(noise(1000 + n, 10))).collect();
    let mut references: Vec<Digest> = old_chunks.iter().map(address).collect();
    let leaf = |references: &[Digest]| {
        let lengths: Vec<u8> = (0..references.len() as u32).flat_map(|n| (n * 7).to_le_bytes()).collect();
        Block::new(&KEY, BlockKind::MapLeaf, references.to_vec(), lengths)
    };
    let (old, new) = (chunk(body), chunk(edited));
    let old_leaf = leaf(&references);
    references[150] = address(&new);
    let blocks = [new, leaf(&references)];
    let bases = prefix_of(&[old, old_leaf]);
    let packed = |level| Parcel::pack(&bases, &blocks, level).unwrap();
    for level in [1, 3, 9, 19] {
        let parcel = packed(level);
        assert!(parcel.frame.len() < 160, "{} bytes at level {level}", parcel.frame.len());
        assert_eq!(parcel.open(&KEY, &bases).unwrap(), blocks);
    }
    assert_eq!(packed(99), packed(19), "levels out of range are taken for the nearest");
}

/// Proves: a reference to a block of the same parcel costs no digest, the same digest elsewhere costs all of it.
#[test]
fn references_within_a_parcel_are_derived() {
    let chunks: Vec<Block> = (0..1000).map(|n| chunk(vec![n as u8; n / 256 + 1])).collect();
    let leaf = Block::new(&KEY, BlockKind::MapLeaf, chunks.iter().map(address).collect(), Vec::new());
    let alone = Parcel::pack(&Prefix::default(), std::slice::from_ref(&leaf), 3).unwrap();
    let chunks_only = Parcel::pack(&Prefix::default(), &chunks, 3).unwrap();
    let all: Vec<Block> = chunks.into_iter().chain([leaf]).collect();
    let together = Parcel::pack(&Prefix::default(), &all, 3).unwrap();
    assert!(alone.frame.len() > 32_000);
    let more = together.frame.len() - chunks_only.frame.len();
    assert!(more < 3_000, "{more} bytes for a thousand references");
    assert_eq!(together.open(&KEY, &Prefix::default()).unwrap(), all);
}

/// Proves: nothing over the limits is packed, and a prefix has no more than the limit.
#[test]
fn makers_keep_within_the_limits() {
    let none: [Block; 0] = [];
    assert_eq!(Parcel::pack(&Prefix::default(), &none, 3), Err(ParcelError::Empty));
    let small = vec![chunk(vec![1]); PARCEL_BLOCKS_MAX + 1];
    assert!(matches!(Parcel::pack(&Prefix::default(), &small, 1), Err(ParcelError::TooLarge { .. })));
    assert!(Parcel::pack(&Prefix::default(), &small[1..], 1).is_ok());
    let large = chunk(vec![0; BODY_BYTES_MAX as usize]);
    let many = vec![large.clone(); 16];
    assert!(matches!(Parcel::pack(&Prefix::default(), &many, 1), Err(ParcelError::TooLarge { .. })));
    assert!(Parcel::pack(&Prefix::default(), &many[1..], 1).is_ok());
    let mut prefix = Prefix::default();
    assert_eq!((0..40).filter(|_| prefix.push(&large)).count(), 31);
    assert!(prefix.len() <= PARCEL_PREFIX_BYTES_MAX && prefix.bases().len() == 31);
    let mut prefix = Prefix::default();
    assert_eq!(small.iter().filter(|base| prefix.push(base)).count(), PARCEL_BASES_MAX);
}

/// The largest parcel there can be, with the largest prefix: packs and opens.
#[test]
fn the_largest_parcel_opens() {
    let bases: Vec<Block> = (0..31).map(|n| chunk(noise(n, BODY_BYTES_MAX as usize))).collect();
    let bases_prefix = prefix_of(&bases);
    let blocks: Vec<Block> = (0..15)
        .map(|n| {
            let mut body = bases[2 * n].body().to_vec();
            body[5000] ^= 1;
            chunk(body)
        })
        .collect();
    let parcel = Parcel::pack(&bases_prefix, &blocks, 1).unwrap();
    assert!(parcel.frame.len() < 100_000, "{}", parcel.frame.len());
    assert_eq!(parcel.open(&KEY, &bases_prefix).unwrap(), blocks);
}

/// A parcel of a payload that no maker would write.
fn forged(payload: &[u8]) -> Parcel {
    let frame = compress(&[], payload, 3).unwrap();
    Parcel { bases: Vec::new(), plain_bytes: payload.len() as u32, frame }
}

fn refused(parcel: &Parcel) -> ParcelError {
    parcel.open(&KEY, &Prefix::default()).expect_err("it is hostile")
}

/// Proves: each way in which a payload can violate the format is refused, and none makes a block refer to
/// itself or to a later one.
#[test]
fn hostile_payloads_are_refused() {
    // An empty chunk, which the others may refer to.
    let first = [1, 0, 0, 0];
    let with = |rest: &[u8]| forged(&[&first[..], rest].concat());
    assert_eq!(with(&[2, 1, 1, 0, 0, 1]).open(&KEY, &Prefix::default()).unwrap().len(), 2, "sound");
    let long_number = [0x80, 0x80, 0x80, 0x80, 0x10];
    let cases: [(&str, &[u8]); 14] = [
        ("no such kind", &[7, 0, 0, 0]),
        ("kind 0", &[0, 0, 0, 0]),
        ("itself", &[2, 1, 1, 0, 0, 0]),
        ("before the first", &[2, 1, 1, 0, 0, 2]),
        ("far before the first", &[2, 1, 1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        ("a place outside", &[2, 1, 1, 0, 1, 1]),
        ("a place far outside", &[2, 1, 1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f, 1]),
        ("places overlap", &[2, 1, 2, 0, 0, 1, 0, 1]),
        ("a body longer than the payload", &[1, 0, 0, 9]),
        ("references longer than the payload", &[2, 1, 0, 0]),
        ("a header cut off", &[1, 0]),
        (
            "a number too long",
            &[1, long_number[0], long_number[1], long_number[2], long_number[3], long_number[4]],
        ),
        ("references over the limit", &[2, 0x81, 0x40, 0, 0]),
        ("a body over the limit", &[1, 0, 0, 0x81, 0x80, 0x40]),
    ];
    for (what, rest) in cases {
        let error = refused(&with(rest));
        assert!(matches!(error, ParcelError::Malformed(_) | ParcelError::TooLarge { .. }), "{what}: {error}");
    }
    let many = forged(&first.repeat(PARCEL_BLOCKS_MAX + 1));
    assert!(matches!(refused(&many), ParcelError::TooLarge { what: "blocks", .. }));
    // Two bytes of payload give 32 of references: without a limit of its own a small parcel would become a
    // gigabyte.
    let mut payload = first.to_vec();
    for place in 1..200 {
        payload.extend([2, 0x80, 0x40, 0x80, 0x40, 0]);
        for _ in 0..REFERENCES_MAX {
            payload.push(0);
            put(&mut payload, place);
        }
    }
    let bomb = forged(&payload);
    assert!(bomb.frame.len() < 20_000);
    assert!(matches!(refused(&bomb), ParcelError::TooLarge { what: "bytes of blocks", .. }));
}

/// Proves: anything but exactly one frame, of exactly the announced length, is refused before or after it is
/// opened, and never yields more than announced.
#[test]
fn hostile_frames_are_refused() {
    let sound = forged(&[1, 0, 0, 3, b'a', b'b', b'c']);
    assert_eq!(sound.open(&KEY, &Prefix::default()).unwrap(), [chunk(b"abc".to_vec())]);
    let altered = |change: &dyn Fn(&mut Parcel)| {
        let mut parcel = sound.clone();
        change(&mut parcel);
        refused(&parcel)
    };
    assert!(matches!(altered(&|parcel| parcel.plain_bytes = u32::MAX), ParcelError::TooLarge { .. }));
    assert!(matches!(altered(&|parcel| parcel.plain_bytes += 1), ParcelError::Frame(_)));
    assert!(matches!(altered(&|parcel| parcel.plain_bytes -= 1), ParcelError::Frame(_)));
    assert_eq!(altered(&|parcel| parcel.plain_bytes = 0), ParcelError::Empty);
    assert!(matches!(altered(&|parcel| parcel.frame.push(0)), ParcelError::Frame(_)));
    assert!(matches!(altered(&|parcel| parcel.frame.clear()), ParcelError::Frame(_)));
    assert!(matches!(altered(&|parcel| parcel.frame.extend(sound.frame.clone())), ParcelError::Frame(_)));
    // The length in the frame's own header, and the parcel's with it: a bomb that lies about itself.
    let lying = altered(&|parcel| {
        assert_eq!(parcel.frame[5], 7, "one byte of content size behind magic number and descriptor");
        (parcel.frame[5], parcel.plain_bytes) = (6, 6);
    });
    assert!(matches!(lying, ParcelError::Frame(_)));
    // A frame to be skipped is no frame.
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3].to_vec();
    assert!(matches!(altered(&|parcel| parcel.frame.clone_from(&skippable)), ParcelError::Frame(_)));
    // A frame that does not contain its length.
    let streamed = {
        let mut encoder = zstd::stream::raw::Encoder::new(3).unwrap();
        let mut out = vec![0; 100];
        let mut buffer = zstd::stream::raw::OutBuffer::around(&mut out);
        let mut input = zstd::stream::raw::InBuffer::around(&[1, 0, 0, 3, b'a', b'b', b'c']);
        use zstd::stream::raw::Operation;
        encoder.run(&mut input, &mut buffer).unwrap();
        encoder.flush(&mut buffer).unwrap();
        encoder.finish(&mut buffer, true).unwrap();
        buffer.as_slice().to_vec()
    };
    assert!(matches!(altered(&|parcel| parcel.frame.clone_from(&streamed)), ParcelError::Frame(_)));
    // Zeroes without end behind a small length.
    let zeroes = compress(&[], &vec![0; 64 << 20], 3).unwrap();
    assert!(zeroes.len() < 10_000);
    assert!(matches!(altered(&|parcel| parcel.frame.clone_from(&zeroes)), ParcelError::Frame(_)));
    // A window of two terabytes costs nothing: output is its own window.
    let window = altered(&|parcel| {
        // magic | descriptor: content size of two bytes, no single segment | window | size - 256 | raw block
        parcel.frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x40, 0xf8, 0, 0, 0x01, 0x08, 0x00];
        parcel.frame.extend([0; 256]);
        parcel.plain_bytes = 256;
    });
    assert!(matches!(window, ParcelError::Frame(_) | ParcelError::Malformed(_)), "{window}");
}

/// Proves: a parcel opens with exactly the bases that it names, in their order. Other bytes in their place
/// yield other blocks, or none, but never the right addresses.
#[test]
fn the_bases_are_those_named() {
    let bases = [chunk(noise(1, 5000)), chunk(noise(2, 5000))];
    let new = chunk([bases[0].body(), bases[1].body()].concat());
    let parcel = Parcel::pack(&prefix_of(&bases), std::slice::from_ref(&new), 3).unwrap();
    assert_eq!(parcel.open(&KEY, &prefix_of(&bases)).unwrap(), std::slice::from_ref(&new));
    let swapped = prefix_of(&[bases[1].clone(), bases[0].clone()]);
    assert_eq!(parcel.open(&KEY, &swapped), Err(ParcelError::OtherBases));
    assert_eq!(parcel.open(&KEY, &Prefix::default()), Err(ParcelError::OtherBases));
    let renamed = Parcel { bases: swapped.names(), ..parcel.clone() };
    if let Ok(blocks) = renamed.open(&KEY, &swapped) {
        assert!(blocks.iter().all(|block| address(block) != address(&new)));
    }
    let less = Parcel { bases: Vec::new(), ..parcel };
    assert!(less.open(&KEY, &Prefix::default()).is_err(), "it copies from what is not there");
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    /// Kind, references (to an earlier block, or to nobody's), body.
    type Parts = (u8, Vec<(bool, usize)>, Vec<u8>);

    fn any_block() -> impl Strategy<Value = Parts> {
        let references = proptest::collection::vec((any::<bool>(), 0usize..40), 0..20);
        let body = (0usize..4, 0usize..3000).prop_map(|(seed, length)| noise(u64::from(seed as u32), length));
        (1u8..=6, references, body)
    }

    fn build(parts: Vec<Parts>) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        for (kind, references, body) in parts {
            let kind = match kind {
                1 => BlockKind::Chunk,
                2 => BlockKind::MapLeaf,
                3 => BlockKind::MapInner,
                4 => BlockKind::Inode,
                5 => BlockKind::Table,
                _ => BlockKind::Membership,
            };
            let references = references
                .into_iter()
                .map(|(own, n)| match blocks.get(n) {
                    Some(block) if own => address(block),
                    _ => Digest([n as u8; 32]),
                })
                .collect();
            blocks.push(Block::new(&KEY, kind, references, body));
        }
        blocks
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Proves: unpacked blocks are those that were packed, whatever they refer to, with any bases and at
        /// any level.
        #[test]
        fn any_blocks_come_out(
            bases in proptest::collection::vec(any_block(), 0..10),
            blocks in proptest::collection::vec(any_block(), 1..20),
            level in -5i32..25,
            reverse in any::<bool>(),
        ) {
            let prefix = prefix_of(&build(bases));
            let mut blocks = build(blocks);
            if reverse {
                blocks.reverse();
            }
            let parcel = Parcel::pack(&prefix, &blocks, level).unwrap();
            let again: Parcel = holdfast_crypto::decode(&holdfast_crypto::encode(&parcel)).unwrap();
            prop_assert_eq!(again.open(&KEY, &prefix).unwrap(), blocks);
        }

        /// Proves: no change of bytes makes opening panic or yield more than the limits; the blocks'
        /// addresses always match their bytes.
        #[test]
        fn altered_parcels_are_survived(
            blocks in proptest::collection::vec(any_block(), 1..10),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            in_payload in any::<bool>(),
        ) {
            let blocks = build(blocks);
            let parcel = Parcel::pack(&Prefix::default(), &blocks, 3).unwrap();
            let alter = |mut bytes: Vec<u8>| {
                for (at, byte) in &changes {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
                bytes
            };
            let parcel = match in_payload {
                true => forged(&alter(expand(&[], &parcel.frame, parcel.plain_bytes as usize).unwrap())),
                false => Parcel { frame: alter(parcel.frame), ..parcel },
            };
            if let Ok(opened) = parcel.open(&KEY, &Prefix::default()) {
                prop_assert!(opened.iter().map(parcel_bytes).sum::<usize>() <= 2 * PARCEL_PLAIN_BYTES_MAX as usize);
                for block in opened {
                    let again = Block::new(&KEY, block.kind(), block.references().to_vec(), block.body().to_vec());
                    prop_assert_eq!(again.reference(), block.reference());
                }
            }
        }
    }
}
