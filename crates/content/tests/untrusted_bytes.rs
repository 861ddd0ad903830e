//! Proves that no bytes make a decoder panic, loop or allocate without limit: random ones, and valid ones
//! with bytes changed, cut or moved. Accepted bytes are exactly those that encoding gives.

use crate::reading;

use holdfast_content::*;
use holdfast_crypto::Digest;
use proptest::prelude::*;
use reading::{KEY, KINDS, read_everything, samples};

/// One change of a body.
#[derive(Clone, Debug)]
enum Mutation {
    Set(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Insert(prop::sample::Index, u8),
    Copy(prop::sample::Index, prop::sample::Index, usize),
    DropReference(prop::sample::Index),
    AddReference,
}

fn mutation() -> impl Strategy<Value = Mutation> {
    use prop::sample::Index;
    prop_oneof![
        6 => (any::<Index>(), prop_oneof![any::<u8>(), Just(0), Just(1), Just(255)]).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        1 => any::<Index>().prop_map(Mutation::Cut),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        1 => (any::<Index>(), any::<Index>(), 1usize..40).prop_map(|(from, to, length)| Mutation::Copy(from, to, length)),
        1 => any::<Index>().prop_map(Mutation::DropReference),
        1 => Just(Mutation::AddReference),
    ]
}

fn mutate(body: &mut Vec<u8>, references: &mut Vec<Digest>, mutation: Mutation) {
    match mutation {
        Mutation::AddReference => references.push(Digest([5; 32])),
        Mutation::DropReference(at) if !references.is_empty() => {
            references.remove(at.index(references.len()));
        }
        _ if body.is_empty() => {}
        Mutation::Set(at, byte) => {
            let at = at.index(body.len());
            body[at] = byte;
        }
        Mutation::Cut(at) => body.truncate(at.index(body.len())),
        Mutation::Insert(at, byte) => body.insert(at.index(body.len()), byte),
        Mutation::Copy(from, to, length) => {
            let from = from.index(body.len());
            let piece = body[from..body.len().min(from + length)].to_vec();
            let to = to.index(body.len());
            body.splice(to..to, piece);
        }
        Mutation::DropReference(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn random_bodies(body in proptest::collection::vec(any::<u8>(), 0..300), references in 0usize..4) {
        for kind in KINDS {
            // With and without the format byte that all begin with.
            read_everything(kind, &body, &vec![Digest([3; 32]); references]);
            read_everything(kind, &[&[1], &body[..]].concat(), &vec![Digest([3; 32]); references]);
        }
    }

    #[test]
    fn random_stored_blocks(bytes in proptest::collection::vec(any::<u8>(), 0..300), length in 0u32..2_000_000) {
        let _ = holdfast_crypto::decode::<StoredBlock>(&bytes);
        let _ = holdfast_crypto::decode::<Proof>(&bytes);
        let _ = holdfast_crypto::decode::<Reference>(&bytes);
        let _ = holdfast_crypto::decode::<LiveMap>(&bytes);
        let _ = holdfast_crypto::decode::<ExtentMap>(&bytes);
        for codec in [Codec::Plain, Codec::Zstd] {
            let stored = StoredBlock { kind: BlockKind::Chunk, codec, references: vec![], body: bytes.clone() };
            let reference = Reference { algorithm: Algorithm::Blake3, address: Digest::ZERO, length, key: None };
            prop_assert!(stored.open(&KEY, &reference, BlockKind::Chunk).is_err());
        }
    }
}

#[test]
fn mutated_sound_bodies() {
    let samples = samples();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(3000));
    let strategy = (any::<prop::sample::Index>(), proptest::collection::vec(mutation(), 1..6));
    runner
        .run(&strategy, |(sample, mutations)| {
            let block = &samples[sample.index(samples.len())];
            let (mut body, mut references) = (block.body().to_vec(), block.references().to_vec());
            for mutation in mutations {
                mutate(&mut body, &mut references, mutation);
            }
            read_everything(block.kind(), &body, &references);
            Ok(())
        })
        .unwrap();
}

#[test]
fn every_single_byte_of_small_sound_bodies() {
    for block in samples().iter().filter(|block| block.body().len() < 400) {
        for at in 0..block.body().len() {
            let old = block.body()[at];
            for byte in [0, 1, 2, 3, 5, 8, 16, 127, 128, 255, old ^ 1, old ^ 128] {
                let mut body = block.body().to_vec();
                body[at] = byte;
                read_everything(block.kind(), &body, block.references());
            }
        }
    }
}
