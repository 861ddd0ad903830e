//! A block server with its blocks in a bucket: it is lost and another takes its place, the bucket is away, or an object
//! is lost.

use super::fixture::{FS, SERVER, StoreFixture, StoreKind, free, start_on_bucket};
use super::{ANNA, SECOND, chunk, collect, found, node};
use crate::common::key;
use holdfast_content::StoredBlock;
use holdfast_crypto::Digest;
use holdfast_server::{BlockStore, BlockStoreError};
use holdfast_testing::eventually;
use holdfast_tiered::simulated::Delivery;
use std::path::PathBuf;

fn blocks(from: u32, count: u32) -> Vec<(Digest, StoredBlock)> {
    (from..from + count).map(|seed| chunk(seed, 40_000)).collect()
}

fn put(store: &dyn BlockStore, blocks: &[(Digest, StoredBlock)]) {
    store.store(FS, ANNA, blocks.to_vec(), None, 0).unwrap();
}

fn all_found(store: &dyn BlockStore, blocks: &[(Digest, StoredBlock)]) {
    for (address, block) in blocks {
        assert_eq!(found(store, FS, *address).as_ref(), Some(block), "{address}");
    }
}

/// A directory on another machine, with the block server's key and nothing else.
fn spare(fixture: &StoreFixture) -> PathBuf {
    let spare = fixture.folder.path().join("spare");
    std::fs::create_dir(&spare).unwrap();
    std::fs::copy(fixture.blocks().join("server-key"), spare.join("server-key")).unwrap();
    spare
}

/// Proves: a block server whose machine is lost is replaced by one with its key and an empty directory, which takes the
/// bucket over. The consistency server, without a restart, finds everything that was acknowledged, has no doubt about
/// it, and garbage is collected.
#[test]
fn another_machine_takes_its_place() {
    let mut fixture = StoreFixture::new(StoreKind::RemoteBucket);
    let store = fixture.store();
    let all = blocks(0, 20);
    put(&*store, &all);
    let top = node(0, all[..10].iter().map(|(address, _)| *address).collect());
    put(&*store, std::slice::from_ref(&top));
    let (spare, listen) = (spare(&fixture), fixture.running.take().unwrap().socket());
    let refused = start_on_bucket(&spare, listen, &fixture.bucket, false).err().unwrap();
    assert!(refused.contains("has the store of") && refused.contains("--blocks-anew"), "{refused}");
    fixture.running = Some(start_on_bucket(&spare, listen, &fixture.bucket, true).unwrap());
    all_found(&*store, &all);
    put(&*store, &blocks(50, 3));
    assert_eq!(store.status().unwrap().doubt, None);
    assert_eq!(collect(&*store, &[top.0], 2 * SECOND).unwrap(), 13);
    all_found(&*store, &all[..10]);
}

/// Proves: a block server that still runs while another takes its place ends by itself, and its clients find the other
/// one at the same address.
#[test]
fn who_was_replaced_ends() {
    let mut fixture = StoreFixture::new(StoreKind::RemoteBucket);
    let store = fixture.store();
    let all = blocks(0, 5);
    put(&*store, &all);
    let other = start_on_bucket(&spare(&fixture), free(), &fixture.bucket, true).unwrap();
    assert_eq!(other.address.key, fixture.address().key);
    eventually("it ends", || fixture.running.as_ref().unwrap().has_ended());
    drop(other);
    let listen = fixture.running.take().unwrap().socket();
    let spare = fixture.folder.path().join("spare");
    fixture.running = Some(start_on_bucket(&spare, listen, &fixture.bucket, false).unwrap());
    all_found(&*store, &all);
    assert_eq!(store.status().unwrap().doubt, None);
}

/// Proves: a start that accepts the loss of an object makes another store of it: the consistency server notices, and
/// collects no garbage until its operator has accepted the loss too.
#[test]
fn an_accepted_loss_is_reported() {
    let mut fixture = StoreFixture::new(StoreKind::RemoteBucket);
    let store = fixture.store();
    let all = blocks(0, 20);
    put(&*store, &all);
    let listen = fixture.running.take().unwrap().socket();
    // The restart seals the segment and sends it.
    fixture.running = Some(start_on_bucket(&fixture.blocks(), listen, &fixture.bucket, false).unwrap());
    // The index has all of it, so the next start does not read the segment again.
    put(&*store, &blocks(30, 1));
    store.figures().unwrap();
    // A segment's outline is put last. The segment itself is one object or several.
    let first = |kinds: &[&str]| {
        let is_of = |name: &String| kinds.iter().any(|kind| name.contains(&format!("/{kind}-0000000001-")));
        fixture.bucket.names().into_iter().filter(is_of).collect::<Vec<_>>()
    };
    eventually("it is sent", || !first(&["outline"]).is_empty());
    drop(fixture.running.take());
    first(&["segment", "tail", "part"]).iter().for_each(|object| fixture.bucket.alter(object, None));
    let objects = fixture.blocks().join("servers").join(key(SERVER).public().to_string()).join("objects");
    std::fs::remove_file(objects.join("segment-0000000001.log")).unwrap();
    let refused = start_on_bucket(&fixture.blocks(), listen, &fixture.bucket, false).err().unwrap();
    assert!(refused.contains("not there any more") && refused.contains("--blocks-anew"), "{refused}");
    fixture.running = Some(start_on_bucket(&fixture.blocks(), listen, &fixture.bucket, true).unwrap());
    let error = collect(&*store, &[all[0].0], SECOND).unwrap_err();
    assert!(matches!(error, BlockStoreError::Doubtful { .. }), "{error}");
    drop(store);
    let store = fixture.remote(SERVER, true).unwrap();
    assert_eq!(store.status().unwrap().doubt, None);
    // A loss that was accepted is not asked about again, and the store keeps its identity.
    drop(fixture.running.take());
    fixture.running = Some(start_on_bucket(&fixture.blocks(), listen, &fixture.bucket, false).unwrap());
    let now = blocks(40, 1);
    put(&store, &now);
    all_found(&store, &now);
    assert_eq!(store.status().unwrap().doubt, None);
}

/// Proves: while the bucket is away nothing is acknowledged, and the consistency server is told that the reason is the
/// bucket. What is cached can be read, and everything goes on by itself when the bucket is back.
#[test]
fn a_bucket_that_is_away_is_named() {
    let fixture = StoreFixture::new(StoreKind::RemoteBucket);
    let store = fixture.store();
    let all = blocks(0, 5);
    put(&*store, &all);
    fixture.bucket.with_deliveries(|_, _| Delivery::Lost);
    let error = store.store(FS, ANNA, blocks(10, 1), None, 0).unwrap_err().to_string();
    assert!(error.contains("hf+blocks://") && error.contains("simulated cannot be reached"), "{error}");
    all_found(&*store, &all);
    fixture.bucket.without_fates();
    eventually("it goes on", || store.store(FS, ANNA, blocks(10, 1), None, 0).is_ok());
    all_found(&*store, &blocks(10, 1));
}
