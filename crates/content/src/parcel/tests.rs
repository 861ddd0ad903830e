use super::*;

const KEY: DigestKey = DigestKey::WELL_KNOWN;

fn noise(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as u8
    })
    .take(length)
    .collect()
}

fn chunk(body: Vec<u8>) -> Block {
    Block::new(&KEY, BlockKind::Chunk, Vec::new(), body)
}

fn address(block: &Block) -> Digest {
    block.reference().address
}

/// Proves: blocks come out as they went in, references to one another derived, those to others kept, in any order.
#[test]
fn what_goes_in_comes_out() {
    let (a, b) = (chunk(noise(1, 3000)), chunk(noise(2, 10)));
    let foreign = |n: u8| Digest([n; 32]);
    let references = vec![foreign(1), address(&b), foreign(2), address(&a), address(&a), foreign(3)];
    let node = Block::new(&KEY, BlockKind::MapLeaf, references, b"node".to_vec());
    let empty = chunk(Vec::new());
    // The last is referred to before it comes, so that reference travels whole.
    let early = Block::new(&KEY, BlockKind::MapInner, vec![address(&empty)], vec![]);
    let blocks = [a, b, node, early, empty];
    let parcel = Parcel::pack(&Prefix::default(), &blocks, 3).unwrap();
    assert_eq!(parcel.open(&KEY, &Prefix::default()).unwrap(), blocks);
    assert!(parcel.frame.len() < 3000 + 10 + 4 * 32 + 100, "two digests of six are derived");
}
