//! Shared by the store's tests: blocks, a small store on a simulated disk, ways to break it.
#![allow(dead_code)]

use holdfast_content::{Block, BlockKind, DeviceId, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_store::{LogStore, StoreConfig, StoreError};
use std::time::Duration;

pub const SECOND: i64 = 1_000_000_000;
pub const FS: Digest = Digest([7; 32]);
pub const OTHER_FS: Digest = Digest([8; 32]);
pub const ALICE: DeviceId = DeviceId(1);
pub const BOB: DeviceId = DeviceId(2);

/// A chunk of `length` bytes that follow from `number`.
pub fn chunk_of(number: u64, length: usize) -> (Digest, StoredBlock) {
    let mut body = Vec::with_capacity(length);
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while body.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        body.extend_from_slice(&state.to_le_bytes());
    }
    body.truncate(length);
    let block = Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, vec![], body);
    (block.reference().address, block.to_stored())
}

/// A chunk.
pub fn chunk(number: u64) -> (Digest, StoredBlock) {
    chunk_of(number, 900)
}

/// A block that refers to others.
pub fn node(number: u64, references: Vec<Digest>) -> (Digest, StoredBlock) {
    let body = number.to_le_bytes().to_vec();
    let block = Block::new(&DigestKey::WELL_KNOWN, BlockKind::MapInner, references, body);
    (block.reference().address, block.to_stored())
}

/// A store with small segments.
pub fn config() -> StoreConfig {
    StoreConfig {
        window: Duration::from_secs(60),
        gc_window: Duration::from_secs(3600),
        keep_deleted: Duration::ZERO,
        segment_bytes: 16 << 10,
        index_cache_bytes: 1 << 20,
        recent_entries_max: 1 << 20,
        ..StoreConfig::default()
    }
}

pub fn open(disk: &PowerLoss) -> Result<LogStore, StoreError> {
    LogStore::open(disk.storage(), config())
}

/// Opens again after the process ended in this way.
pub fn reopen(disk: &PowerLoss, store: LogStore, crash: Crash) -> LogStore {
    // The disk refuses the old process first, so that closing it writes nothing.
    disk.restart(crash);
    drop(store);
    open(disk).unwrap()
}

/// The segment files and their lengths, oldest first.
pub fn segments(disk: &PowerLoss) -> Vec<(String, u64)> {
    let names = disk.names().into_iter().filter(|name| name.starts_with("segment-"));
    names.map(|name| (name.clone(), disk.length(&name).unwrap())).collect()
}

/// Where `bytes` are in the disk's segments, oldest first: file and offset of the first byte.
pub fn find_bytes(disk: &PowerLoss, bytes: &[u8]) -> Vec<(String, u64)> {
    let storage = disk.storage();
    let mut found = Vec::new();
    for (name, length) in segments(disk) {
        let mut content = vec![0; length as usize];
        storage.open(&name).unwrap().read_at(0, &mut content).unwrap();
        let offsets = content.windows(bytes.len()).enumerate().filter(|(_, window)| *window == bytes);
        found.extend(offsets.map(|(offset, _)| (name.clone(), offset as u64)));
    }
    found
}
