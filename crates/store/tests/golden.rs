//! Golden vectors: the segment of `tests/golden/segment.hex` was written by the first version of this format. It
//! must be readable for ever, and this version must write the same bytes. `docs/internals/storage.md` explains it.

use crate::common;

use common::*;
use holdfast_content::{Block, BlockKind};
use holdfast_crypto::{DigestKey, Domain, SigningKey};
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_store::{DecrefOutcome, Hold, HoldOutcome, LogStore, signed_block_bytes};

const GOLDEN: &str = include_str!("golden/segment.hex");
const HOLDS: &str = include_str!("golden/holds.hex");
const NAME: &str = "segment-0000000001.log";

fn bytes() -> Vec<u8> {
    from_hex(GOLDEN)
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

fn blocks() -> [(holdfast_crypto::Digest, holdfast_content::StoredBlock); 3] {
    let chunk = Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, vec![], b"golden".to_vec());
    let address = chunk.reference().address;
    let leaf = Block::new(&DigestKey::WELL_KNOWN, BlockKind::MapLeaf, vec![address], b"leaf".to_vec());
    let gone = Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, vec![], b"gone".to_vec());
    [chunk, leaf, gone].map(|block| (block.reference().address, block.to_stored()))
}

fn key() -> SigningKey {
    SigningKey::from_seed(&[9; 32])
}

/// One record of each kind.
fn write(store: &LogStore) {
    store.store(FS, ALICE, blocks().to_vec(), 1000).unwrap();
    assert!(store.contains_renew(FS, blocks()[0].0, 2000).unwrap());
    assert_eq!(store.decref(FS, ALICE, blocks()[2].0, 2000).unwrap(), DecrefOutcome::Dropped);
    store.append_ordering(FS, b"replaced").unwrap();
    store.ordering_checkpoint(FS, b"checkpoint").unwrap();
    store.append_ordering(FS, b"order").unwrap();
    let signature = key().sign(Domain::SignedBlock, &signed_block_bytes(&FS, 3, b"signed"));
    store.vstore(FS, &key().public(), 3, b"signed", signature, 3000).unwrap();
    store.pin(FS, 5, &[blocks()[1].0], 4000, 3000).unwrap();
    store.commit().unwrap();
}

/// Proves that this version writes the bytes of the golden segment.
#[test]
fn the_golden_segment_is_written() {
    let disk = PowerLoss::new(1);
    write(&open(&disk).unwrap());
    is_written(&disk, &bytes());
}

fn is_written(disk: &PowerLoss, expected: &[u8]) {
    let mut written = vec![0; disk.length(NAME).unwrap() as usize];
    disk.storage().open(NAME).unwrap().read_at(0, &mut written).unwrap();
    let hex: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
    let lines: Vec<&str> = hex.as_bytes().chunks(96).map(|line| std::str::from_utf8(line).unwrap()).collect();
    assert!(written == expected, "written now:\n{}", lines.join("\n"));
}

/// Proves that this version writes the bytes of the golden segment with holds, and reads them from it alone.
#[test]
fn the_golden_holds() {
    let disk = PowerLoss::new(3);
    let store = open(&disk).unwrap();
    let [chunk, leaf, _] = blocks();
    let hold = |name: &str, root| Hold { name: name.into(), device: ALICE, made_ns: 5000, roots: vec![root] };
    store.store(FS, ALICE, vec![chunk.clone(), leaf.clone()], 1000).unwrap();
    for (name, root) in [("release/2", leaf.0), ("release/1", chunk.0), ("other", chunk.0)] {
        assert_eq!(store.hold(FS, hold(name, root)).unwrap(), HoldOutcome::Held);
    }
    assert!(store.unhold(FS, "other").unwrap());
    store.commit().unwrap();
    is_written(&disk, &from_hex(HOLDS));
    let disk = PowerLoss::new(4);
    disk.overwrite("FORMAT", b"holdfast store format 1\n");
    disk.overwrite(NAME, &from_hex(HOLDS));
    disk.restart(Crash::Kill);
    let read = open(&disk).unwrap().holds(&FS);
    assert_eq!(read, [hold("release/1", chunk.0), hold("release/2", leaf.0)]);
}

/// Proves that this version reads the golden segment, from the segment alone.
#[test]
fn the_golden_segment_is_read() {
    let disk = PowerLoss::new(2);
    disk.overwrite("FORMAT", b"holdfast store format 1\n");
    disk.overwrite(NAME, &bytes());
    disk.restart(Crash::Kill);
    let store = open(&disk).unwrap();
    let [chunk, leaf, gone] = blocks();
    for (address, block) in [chunk, leaf] {
        let (header, found) = store.retrieve(FS, address).unwrap().unwrap();
        assert_eq!((header.owner, header.stored_ns, found), (ALICE, 1000, block));
    }
    assert_eq!(store.retrieve(FS, gone.0).unwrap(), None);
    let order = (Some(b"checkpoint".to_vec()), vec![b"order".to_vec()]);
    assert_eq!(store.recover_ordering(FS).unwrap(), order);
    let signed = store.vretrieve(FS, &key().public(), 3, None).unwrap().unwrap();
    assert_eq!((signed.block.as_slice(), signed.stored_ns), (b"signed".as_slice(), 3000));
    assert!(store.scrub(&mut |_, _| {}).unwrap().is_clean());
}
