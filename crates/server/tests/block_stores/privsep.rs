//! Faults between two machines: a wrong key, and a store that is away, altered, older or another one.

use super::fixture::{FS, SERVER, StoreFixture, StoreKind, copy, start};
use super::{ANNA, chunk, collect, found};
use crate::common::key;
use holdfast_rpc::BlocksAddress;
use holdfast_server::{BlockServer, BlockServerConfig, BlockServerError, RemoteBlocks};
use holdfast_server::{BlockStore, BlockStoreError, RemoteBlocksSettings};
use holdfast_testing::eventually;
use std::path::Path;
use std::time::Duration;

fn put(store: &dyn BlockStore, seeds: std::ops::Range<u32>) {
    store.store(FS, ANNA, seeds.map(|seed| chunk(seed, 500)).collect(), None, 0).unwrap();
}

fn is_doubtful(result: Result<u64, BlockStoreError>, word: &str) -> bool {
    match result {
        Err(error @ BlockStoreError::Doubtful { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains(word) && text.contains("--blocks-anew") && text.contains("hf+blocks://"),
                "{text}"
            );
            true
        }
        _ => false,
    }
}

/// Proves: a server that is not allowed is told so, with its own key and what to do with it. One that is allowed finds
/// no blocks of another's.
#[test]
fn each_server_has_its_own_blocks() {
    let mut fixture = StoreFixture::new(StoreKind::Remote);
    put(&*fixture.store(), 0..3);
    let refused = fixture.remote(7, false).err().unwrap();
    assert!(refused.contains("--allow 'ssh-ed25519 ") && refused.contains("hf+blocks://"), "{refused}");
    let listen = fixture.running.take().unwrap().socket();
    fixture.running = Some(start(&fixture.blocks(), listen, &[key(SERVER).public(), key(7).public()]));
    let data = fixture.folder.path().join("another");
    std::fs::create_dir(&data).unwrap();
    let settings =
        RemoteBlocksSettings { address: Some(fixture.address()), data: &data, key: key(7), anew: false };
    let other = RemoteBlocks::open(settings).unwrap().unwrap();
    assert_eq!(found(&other, FS, chunk(1, 500).0), None);
    assert!(found(&*fixture.store(), FS, chunk(1, 500).0).is_some());
}

/// Proves: a block server with another key than its address says is sent nothing.
#[test]
fn a_block_server_with_another_key_is_refused() {
    let fixture = StoreFixture::new(StoreKind::Remote);
    let address = BlocksAddress { key: key(9).public(), ..fixture.address() };
    let data = fixture.data();
    let settings =
        RemoteBlocksSettings { address: Some(address), data: &data, key: key(SERVER), anew: false };
    let error = RemoteBlocks::open(settings).err().unwrap().to_string();
    assert!(error.contains(&fixture.address().key.to_string()), "{error}");
    assert!(error.contains(&key(9).public().to_string()), "{error}");
}

/// Proves: when a block server is restarted, or away for a moment, no call is lost, and what was acknowledged is there.
/// The data directory remembers its address.
#[test]
fn a_restart_goes_unnoticed() {
    let mut fixture = StoreFixture::new(StoreKind::Remote);
    let store = fixture.store();
    put(&*store, 0..3);
    std::thread::scope(|scope| {
        let stopped = fixture.running.take().unwrap();
        let listen = stopped.socket();
        drop(stopped);
        let later = scope.spawn(|| put(&*store, 3..6));
        std::thread::sleep(Duration::from_millis(700));
        fixture.running = Some(start(&fixture.blocks(), listen, &[key(SERVER).public()]));
        later.join().unwrap();
    });
    assert!((0..6).all(|seed| found(&*store, FS, chunk(seed, 500).0).is_some()));
    assert_eq!(collect(&*store, &[chunk(0, 500).0], 10).unwrap(), 5, "nothing is doubted");
    let data = fixture.data();
    let remembered = RemoteBlocksSettings { address: None, data: &data, key: key(SERVER), anew: false };
    let remembered = RemoteBlocks::open(remembered).unwrap().unwrap();
    assert!(found(&remembered, FS, chunk(0, 500).0).is_some());
    let empty = fixture.folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let settings = RemoteBlocksSettings { address: None, data: &empty, key: key(SERVER), anew: false };
    assert!(RemoteBlocks::open(settings).unwrap().is_none());
}

/// Proves: if a block server stays away, calls end with a clear error within a bound, and at once from then on, until
/// it is back.
#[test]
fn a_block_server_that_is_away_is_an_error() {
    let mut fixture = StoreFixture::new(StoreKind::Remote);
    let store = fixture.remote(SERVER, false).unwrap();
    put(&store, 0..1);
    let store = store.with_patience(Duration::from_secs(2));
    let listen = fixture.running.take().unwrap().socket();
    for _ in 0..2 {
        let error = store.load(FS, &[chunk(0, 500).0], 1).unwrap_err();
        assert!(matches!(error, BlockStoreError::Away { .. }), "{error}");
        assert!(error.to_string().contains("hf+blocks://127.0.0.1"), "{error}");
    }
    assert_eq!(store.status().map(|status| status.reached), Some(false));
    fixture.running = Some(start(&fixture.blocks(), listen, &[key(SERVER).public()]));
    eventually("it is back", || store.load(FS, &[chunk(0, 500).0], 1).is_ok());
}

/// Proves: an older copy is noticed by whoever stored something since, however much is stored after it was put back,
/// and whether or not the consistency server was restarted. Then nothing is collected until the operator accepts it.
/// Reading and storing go on, and say truly what is there.
#[test]
fn an_older_copy_is_noticed() {
    for restarted in [false, true] {
        let mut fixture = StoreFixture::new(StoreKind::Remote);
        let mut store = fixture.store();
        put(&*store, 0..5);
        let copied = fixture.folder.path().join("copy");
        fixture.restart_after(|blocks| copy(blocks, &copied));
        put(&*store, 5..6);
        if restarted {
            drop(store);
        }
        let put_back = |blocks: &Path| {
            std::fs::remove_dir_all(blocks).unwrap();
            copy(&copied, blocks);
        };
        fixture.restart_after(put_back);
        if restarted {
            drop(fixture.remote(SERVER, false).unwrap());
        }
        store = fixture.store();
        put(&*store, 10..30);
        let now = |seed| found(&*store, FS, chunk(seed, 500).0).is_some();
        assert!(now(0) && now(4) && !now(5) && now(10));
        assert_eq!(store.renew(FS, &[chunk(5, 500).0], 1).unwrap(), [false], "so that it is sent again");
        assert!(is_doubtful(collect(&*store, &[chunk(0, 500).0], 10), "older copy"));
        assert!(store.status().unwrap().doubt.unwrap().contains("older copy"));
        drop(store);
        assert!(
            is_doubtful(collect(&*fixture.store(), &[chunk(0, 500).0], 10), "older copy"),
            "it is remembered"
        );
        let accepted = fixture.remote(SERVER, true).unwrap();
        assert_eq!(collect(&accepted, &[chunk(0, 500).0], 20).unwrap(), 24);
    }
}

/// Proves: a store that was replaced by an empty one is noticed, too.
#[test]
fn another_store_is_noticed() {
    let mut fixture = StoreFixture::new(StoreKind::Remote);
    let store = fixture.store();
    put(&*store, 0..5);
    let servers = |blocks: &Path| blocks.join("servers");
    fixture.restart_after(|blocks| std::fs::remove_dir_all(servers(blocks)).unwrap());
    put(&*store, 0..1);
    assert_eq!(store.contains(FS, &[chunk(0, 500).0, chunk(1, 500).0]).unwrap(), [true, false]);
    assert!(is_doubtful(collect(&*store, &[chunk(0, 500).0], 10), "not the one that was there before"));
}

/// Proves: many restarts, and collections of everything but one block, raise no doubt.
#[test]
fn an_honest_store_is_not_doubted() {
    let mut fixture = StoreFixture::new(StoreKind::Remote);
    let store = fixture.store();
    for round in 0..6 {
        put(&*store, 10 * round..10 * round + 10);
        fixture.restart();
        collect(&*store, &[chunk(10 * round, 500).0], i64::from(round) + 10).unwrap();
        collect(&*store, &[chunk(10 * round, 500).0], i64::from(round) + 10).unwrap();
        fixture.restart();
        fixture.restart();
        assert!(found(&*store, FS, chunk(10 * round, 500).0).is_some());
    }
    assert_eq!(store.status().unwrap().doubt, None);
}

/// Proves: only one block server at a time can use a data directory.
#[test]
fn a_data_directory_is_served_once() {
    let fixture = StoreFixture::new(StoreKind::Remote);
    let config = BlockServerConfig::new(fixture.blocks(), "127.0.0.1:0".parse().unwrap(), [].into());
    assert!(matches!(BlockServer::open(config), Err(BlockServerError::InUse(_))));
}
