//! The simplest path: what was committed is there after a kill, with its first header and in order.

use holdfast_content::{Block, BlockKind, DeviceId, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_log::LocalStorage;
use holdfast_store::{LogStore, StoreConfig, StoreError};
use std::sync::Arc;

fn block(number: u64) -> (Digest, StoredBlock) {
    let body = number.to_le_bytes().repeat(100);
    let block = Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, vec![], body);
    (block.reference().address, block.to_stored())
}

/// Proves that blocks and ordering records survive reopening, that the first header is kept, and that another
/// file system sees nothing.
#[test]
fn reopening_brings_back_blocks_and_order() {
    let dir = tempfile::tempdir().unwrap();
    let open = || LogStore::open(Arc::new(LocalStorage::open(dir.path()).unwrap()), StoreConfig::default());
    let (one, other) = (Digest([1; 32]), Digest([2; 32]));
    let store = open().unwrap();
    assert!(matches!(open(), Err(StoreError::InUse { .. })));
    store.store(one, DeviceId(1), (0..100).map(block).collect(), 1000).unwrap();
    store.store(one, DeviceId(2), vec![block(5)], 2000).unwrap();
    store.append_ordering(one, b"first").unwrap();
    store.ordering_checkpoint(one, b"state").unwrap();
    store.append_ordering(one, b"second").unwrap();
    store.commit().unwrap();
    for round in 0..3 {
        let store = if round == 0 { store.clone() } else { open().unwrap() };
        for number in 0..100 {
            let (address, stored) = block(number);
            let (header, found) = store.retrieve(one, address).unwrap().unwrap();
            assert_eq!((header.owner, header.stored_ns, &found), (DeviceId(1), 1000, &stored));
            assert_eq!(store.retrieve(other, address).unwrap(), None);
        }
        let (checkpoint, records) = store.recover_ordering(one).unwrap();
        assert_eq!((checkpoint.as_deref(), records), (Some(&b"state"[..]), vec![b"second".to_vec()]));
        assert_eq!(store.file_systems(), vec![one]);
        if round == 0 {
            drop(store);
            break;
        }
    }
    drop(store);
    for _ in 0..2 {
        let store = open().unwrap();
        let (address, stored) = block(7);
        assert_eq!(store.retrieve(one, address).unwrap().unwrap().1, stored);
        assert_eq!(store.recover_ordering(one).unwrap().1, vec![b"second".to_vec()]);
    }
}
