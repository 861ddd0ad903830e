//! Tests of one open file against an array of bytes: writes, truncation, holes and copies around publications
//! that succeed or fail while changes continue.

use super::super::compose::{PublishReason, compose, read_places};
use super::super::overlay::Piece;
use super::super::spool::SpoolDirectory;
use super::super::state::{DataLocation, FileState, Publication, PublishEffect, Snapshot};
use crate::store::TransferMode;
use holdfast_content::{Content, DeviceId, Inode, InodeKind, MemoryBlocks, file};
use holdfast_crypto::DigestKey;
use holdfast_testing::noise;
use proptest::prelude::*;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize, u8),
    Resize(usize),
    Hole(usize, usize),
    Copy(usize, usize, usize),
    Begin,
    Succeed(bool),
    Fail,
}

/// Positions of interest: around the inline limit, pages, and the limit of files that are cut as a whole.
fn position() -> impl Strategy<Value = usize> {
    prop_oneof![
        0usize..600,
        (0usize..320).prop_map(|page| page * 4096),
        (1usize << 20) - 300..(1 << 20) + 300
    ]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..600, (1usize..40).prop_map(|pages| pages * 4096)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (position(), length(), any::<u8>()).prop_map(|(at, length, byte)| Step::Write(at, length, byte)),
        2 => position().prop_map(Step::Resize),
        2 => (position(), length()).prop_map(|(at, length)| Step::Hole(at, length)),
        1 => (position(), length(), 0usize..200_000).prop_map(|(at, length, from)| Step::Copy(at, length, from)),
        2 => Just(Step::Begin),
        2 => any::<bool>().prop_map(Step::Succeed),
        1 => Just(Step::Fail),
    ]
}

struct Fixture {
    blocks: MemoryBlocks,
    spool: SpoolDirectory,
    _dir: tempfile::TempDir,
    file: FileState,
    other: Arc<Inode>,
    other_bytes: Vec<u8>,
    bytes: Vec<u8>,
    snapshot: Option<Snapshot>,
    position: u64,
}

impl Fixture {
    fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let blocks = MemoryBlocks::new(DigestKey::WELL_KNOWN);
        let other_bytes = noise(3, 300_000);
        let (map, size) =
            file::from_reader(&mut &blocks, &file::ChunkerConfig::DEFAULT, other_bytes.as_slice()).unwrap();
        let mut other = Inode::new(InodeKind::File, 0, DeviceId(1), 0);
        (other.content, other.size) = (Content::Extents(map), size);
        let empty = Arc::new(Inode::new(InodeKind::File, 0, DeviceId(1), 0));
        Fixture {
            blocks,
            spool: SpoolDirectory::open(dir.path()).unwrap(),
            _dir: dir,
            file: FileState::new(empty, 0),
            other: Arc::new(other),
            other_bytes,
            bytes: Vec::new(),
            snapshot: None,
            position: 0,
        }
    }

    fn grow(&mut self, size: usize) {
        if self.bytes.len() < size {
            self.bytes.resize(size, 0);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write(at, length, byte) => {
                let data = noise(byte.into(), length);
                self.file.write(&self.spool, &|| (1, b"x".to_vec()), at as u64, &data, 1).unwrap();
                self.grow(at + length);
                self.bytes[at..at + length].copy_from_slice(&data);
            }
            Step::Resize(size) => {
                self.file.set_size(size as u64, 1).unwrap();
                self.bytes.resize(size, 0);
            }
            Step::Hole(at, length) => {
                self.file.lay(at as u64..(at + length) as u64, Piece::Hole, 1).unwrap();
                self.grow(at + length);
                self.bytes[at..at + length].fill(0);
            }
            Step::Copy(at, length, from) => {
                let length = length.min(self.other_bytes.len() - from);
                let piece = Piece::Copy(self.other.clone(), from as u64);
                self.file.lay(at as u64..(at + length) as u64, piece, 1).unwrap();
                self.grow(at + length);
                self.bytes[at..at + length].copy_from_slice(&self.other_bytes[from..from + length]);
            }
            Step::Begin => {
                if self.snapshot.is_none() {
                    self.snapshot = self.file.begin_publication();
                }
            }
            Step::Succeed(close) => {
                if let Some(snapshot) = self.snapshot.take() {
                    self.succeed(&snapshot, if close { PublishReason::Close } else { PublishReason::Sync });
                }
            }
            Step::Fail => {
                if self.snapshot.take().is_some() {
                    self.file.publication_failed(None);
                }
            }
        }
    }

    fn succeed(&mut self, snapshot: &Snapshot, occasion: PublishReason) {
        let mut inode = (*snapshot.base).clone();
        let mut whole = false;
        if snapshot.changes_content() {
            let composed =
                compose(&self.blocks, &mut &self.blocks, snapshot, occasion, TransferMode::Full).unwrap();
            (inode.content, inode.size, whole) = (composed.content, snapshot.size, composed.whole);
        }
        inode.check().unwrap();
        self.position += 1;
        let made = Publication {
            inode: Arc::new(inode),
            behind_others: false,
            attributes_only: false,
            conflict_copy: None,
        };
        let landed = self.file.published(&made, self.position, whole, &self.spool, &|| (1, b"x".to_vec()));
        assert_eq!(landed, PublishEffect::Here);
    }

    fn read(&self) -> Vec<u8> {
        let places = self.file.places(0..self.file.size);
        let mut out = vec![9; self.file.size as usize];
        read_places(&self.blocks, self.file.data().as_deref(), &places, &mut out).unwrap();
        out
    }

    /// The content that another client would read, and where it would find holes.
    fn published(&self) -> (Vec<u8>, usize) {
        let inode = &self.file.base;
        let bytes = file::read(&self.blocks, inode, 0, inode.size as usize).unwrap();
        let extents = match &inode.content {
            Content::Extents(map) => map.extents_in(&self.blocks, 0..u64::MAX).unwrap().len(),
            _ => 0,
        };
        (bytes, extents)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Proves: whatever is written, cut, punched or copied, before, during and after publications that
    /// succeed or fail, reads return exactly the bytes written last; and once everything is published, so do
    /// reads of all other clients.
    #[test]
    fn reads_see_what_was_written_last(steps in prop::collection::vec(step(), 1..40)) {
        let mut bench = Fixture::new();
        for step in steps {
            bench.step(step);
            prop_assert_eq!(bench.file.size as usize, bench.bytes.len());
            prop_assert!(bench.read() == bench.bytes, "reads differ from what was written");
        }
        bench.step(Step::Succeed(false));
        bench.step(Step::Begin);
        bench.step(Step::Succeed(true));
        prop_assert!(!bench.file.is_dirty());
        prop_assert!(bench.published().0 == bench.bytes, "what was published differs from what was written");
        prop_assert!(bench.spool.leftovers().is_empty());
    }
}

/// Proves: publishing a large file costs as much as its changes, whatever its size; and many small changes in
/// place are cut anew at close, so that extents do not accumulate.
#[test]
fn small_changes_cost_little_and_are_tidied_at_close() {
    let mut bench = Fixture::new();
    bench.step(Step::Write(0, 8 << 20, 1));
    bench.step(Step::Begin);
    bench.step(Step::Succeed(true));
    let stored = |bench: &Fixture| -> usize {
        let addresses = bench.blocks.addresses();
        addresses.iter().map(|address| bench.blocks.stored(address).unwrap().body.len()).sum()
    };
    let before = stored(&bench);
    bench.step(Step::Write(5_000_000, 1000, 2));
    bench.step(Step::Begin);
    bench.step(Step::Succeed(false));
    assert!(stored(&bench) - before < 40_000, "{} bytes for a change of 1000", stored(&bench) - before);

    let extents_before = bench.published().1;
    for at in 0..200 {
        bench.step(Step::Write(1_000_000 + at * 5000, 100, 7));
        bench.step(Step::Begin);
        bench.step(Step::Succeed(false));
    }
    assert!(bench.published().1 > extents_before + 300);
    bench.step(Step::Write(1_000_000, 1, 8));
    bench.step(Step::Begin);
    bench.step(Step::Succeed(true));
    assert!(bench.published().1 < extents_before + 40, "{} extents", bench.published().1);
    assert!(bench.published().0 == bench.bytes);
}

/// Proves: holes of a sparse file stay holes when it is published, and cost nothing.
#[test]
fn holes_stay_holes() {
    let mut bench = Fixture::new();
    bench.file.set_size(1 << 40, 1).unwrap();
    bench.file.write(&bench.spool, &|| (1, Vec::new()), 1 << 39, b"island", 1).unwrap();
    let snapshot = bench.file.begin_publication().unwrap();
    let composed =
        compose(&bench.blocks, &mut &bench.blocks, &snapshot, PublishReason::Close, TransferMode::Full)
            .unwrap();
    let Content::Extents(map) = &composed.content else { panic!("extents") };
    let extents = map.extents_in(&bench.blocks, 0..u64::MAX).unwrap();
    assert_eq!(extents.len(), 1);
    assert_eq!((extents[0].0, extents[0].1.length), (1 << 39, 6));
    assert!(matches!(bench.file.places(0..1)[0].1, DataLocation::Zero));
}
