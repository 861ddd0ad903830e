//! Faults of blocks in a bucket: the bucket is away, is changed behind the server's back, or has two servers.

use super::fixture::{FS, StoreFixture, StoreKind};
use super::{ANNA, SECOND, chunk, collect, found, node};
use holdfast_content::StoredBlock;
use holdfast_crypto::Digest;
use holdfast_protocol::block_server::LoadedBlock;
use holdfast_server::{BlockStore, BlockStoreError};
use holdfast_testing::eventually;
use holdfast_tiered::Durability;
use holdfast_tiered::simulated::Delivery;
use std::path::Path;

fn blocks(from: u32, count: u32) -> Vec<(Digest, StoredBlock)> {
    (from..from + count).map(|seed| chunk(seed, 40_000)).collect()
}

fn put(store: &dyn BlockStore, blocks: &[(Digest, StoredBlock)]) -> Result<(), BlockStoreError> {
    store.store(FS, ANNA, blocks.to_vec(), None, 0)
}

fn waiting(store: &dyn BlockStore) -> u64 {
    store.status().unwrap().bucket.unwrap().waiting_bytes
}

/// Waits until all segments but the active one are in the bucket.
fn wait_until_sent(store: &dyn BlockStore) {
    eventually("sealed segments are sent", || waiting(store) <= 256 << 10);
}

fn all_found(store: &dyn BlockStore, blocks: &[(Digest, StoredBlock)]) {
    for (address, block) in blocks {
        assert_eq!(found(store, FS, *address).as_ref(), Some(block), "{address}");
    }
}

fn lose(data: &Path) {
    std::fs::remove_dir_all(data).unwrap();
}

/// Proves: with `object`, a lost disk loses nothing that was acknowledged, however often. The operator has to allow
/// that the store is taken over.
#[test]
fn a_lost_disk_loses_nothing_that_the_bucket_acknowledged() {
    let fixture = StoreFixture::new(StoreKind::BucketAtOnce);
    let mut stored = Vec::new();
    for round in 0..4 {
        let store = fixture.objects(&fixture.data(), Durability::Object, round > 0).unwrap();
        all_found(&store, &stored);
        for batch in 0..3 {
            let new = blocks(round * 100 + batch * 10, 5);
            put(&store, &new).unwrap();
            stored.extend(new);
        }
        all_found(&store, &stored);
        drop(store);
        lose(&fixture.data());
        let refused = fixture.objects(&fixture.data(), Durability::Object, false).err().unwrap();
        assert!(refused.contains("--blocks-anew"), "{refused}");
        lose(&fixture.data());
    }
}

/// Proves: with `local`, a lost disk loses what had not been sent, and nothing else.
#[test]
fn what_was_sent_outlives_the_disk() {
    let fixture = StoreFixture::new(StoreKind::Bucket);
    let store = fixture.store();
    let all = blocks(0, 40);
    put(&*store, &all).unwrap();
    wait_until_sent(&*store);
    drop(store);
    lose(&fixture.data());
    let store = fixture.objects(&fixture.data(), Durability::Local, true).unwrap();
    let here = all.iter().filter(|(address, _)| found(&store, FS, *address).is_some()).count();
    assert!((30..=40).contains(&here), "{here} of 40");
}

/// Proves: while the bucket is away, local copies can be read, `local` stores go on, and `object` stores refuse in
/// words after a while. Both go on by themselves when the bucket is back, with nothing lost.
#[test]
fn a_bucket_that_is_away_is_waited_for() {
    for kind in [StoreKind::Bucket, StoreKind::BucketAtOnce] {
        let mut fixture = StoreFixture::new(kind);
        let store = fixture.store();
        let before = blocks(0, 20);
        put(&*store, &before).unwrap();
        wait_until_sent(&*store);
        fixture.bucket.with_deliveries(|_, _| Delivery::Lost);
        let during = blocks(100, 20);
        let outcome = put(&*store, &during);
        match kind {
            StoreKind::Bucket => outcome.unwrap(),
            _ => {
                let error = outcome.unwrap_err().to_string();
                assert!(error.contains("cannot be reached") && error.contains("Nothing is lost"), "{error}");
            }
        }
        all_found(&*store, &before);
        eventually("it is noticed", || !store.status().unwrap().reached);
        // A restart in between changes nothing.
        drop(store);
        fixture.restart();
        let store = fixture.store();
        all_found(&*store, &before);
        fixture.bucket.without_fates();
        eventually("it goes on", || put(&*store, &during).is_ok());
        wait_until_sent(&*store);
        assert!(store.status().unwrap().reached);
        all_found(&*store, &during);
    }
}

/// Proves: a block that cannot be read because the bucket is away is an error, neither absent nor damaged, and can be
/// read later.
#[test]
fn away_is_not_absent() {
    let fixture = StoreFixture::new(StoreKind::Bucket);
    let store = fixture.store();
    let all = blocks(0, 20);
    let top = node(900, all.iter().map(|(address, _)| *address).collect());
    put(&*store, &[all.clone(), vec![top.clone()], blocks(200, 10)].concat()).unwrap();
    wait_until_sent(&*store);
    // The local copies are removed, so that reads come from the bucket.
    store.scrub(&mut |_, _| {}).unwrap();
    drop(store);
    for entry in std::fs::read_dir(fixture.data().join("objects")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("segment-") && !name.ends_with(&format!("{:010}.log", last_segment(&fixture))) {
            std::fs::remove_file(path).unwrap();
        }
    }
    let store = fixture.store();
    fixture.bucket.with_deliveries(|_, _| Delivery::Lost);
    let error = store.load(FS, &[all[0].0], usize::MAX).unwrap_err();
    assert!(matches!(&error, BlockStoreError::Bucket(why) if why.contains("cannot be reached")), "{error}");
    assert!(store.references(FS, &[top.0]).is_err());
    assert!(collect(&*store, &[top.0], SECOND).is_err(), "nothing is collected that cannot be read");
    assert_eq!(store.contains(FS, &[all[0].0]).unwrap(), [true], "it is not damaged");
    fixture.bucket.without_fates();
    all_found(&*store, &all);
    assert_eq!(collect(&*store, &[top.0], 2 * SECOND).unwrap(), 10);
    all_found(&*store, &all);
}

fn last_segment(fixture: &StoreFixture) -> u32 {
    let names = std::fs::read_dir(fixture.data().join("objects")).unwrap();
    let number = |name: String| name.strip_prefix("segment-")?.strip_suffix(".log")?.parse().ok();
    names.filter_map(|entry| number(entry.unwrap().file_name().into_string().unwrap())).max().unwrap()
}

/// Removes the local copies of what is in the bucket.
fn forget_copies(fixture: &StoreFixture) {
    let last = last_segment(fixture);
    for number in 0..last {
        let _ = std::fs::remove_file(fixture.data().join(format!("objects/segment-{number:010}.log")));
    }
}

/// Proves: an object that was altered or removed behind the server's back makes reading its own blocks an error that
/// names it; they are never absent and never have other bytes, and the rest can be read. When the object is put back,
/// or the blocks are stored again, everything can be read.
#[test]
fn altered_and_removed_objects_are_named() {
    let fixture = StoreFixture::new(StoreKind::Bucket);
    let store = fixture.store();
    let all = blocks(0, 40);
    put(&*store, &all).unwrap();
    wait_until_sent(&*store);
    drop(store);
    forget_copies(&fixture);
    let store = fixture.store();
    let segments: Vec<String> =
        fixture.bucket.names().into_iter().filter(|name| name.contains("/segment-")).collect();
    assert!(segments.len() >= 4, "{segments:?}");
    let good: Vec<_> = segments.iter().map(|name| fixture.bucket.object(name).unwrap()).collect();
    let altered: Vec<u8> =
        good[0].iter().enumerate().map(|(at, byte)| byte ^ u8::from(at > 64 && at % 999 == 0)).collect();
    fixture.bucket.alter(&segments[0], Some(altered));
    fixture.bucket.alter(&segments[1], None);
    let (mut bad, mut fine) = (Vec::new(), 0);
    for (address, block) in &all {
        match &store.load(FS, &[*address], usize::MAX).unwrap()[0] {
            LoadedBlock::Present(_, found) => {
                assert_eq!(found, block);
                fine += 1;
            }
            LoadedBlock::Damaged(why) => {
                let is_named = segments[..2].iter().any(|name| why.contains(name));
                assert!(is_named && why.contains("scrub"), "{why}");
                bad.push((*address, block.clone()));
            }
            LoadedBlock::Absent => panic!("a lost block is not absent"),
        }
    }
    assert!(bad.len() >= 8 && fine >= 20, "{} bad, {fine} fine", bad.len());
    assert!(store.scrub(&mut |_, _| {}).unwrap().bad_count > 0);
    // Clients that have the blocks store them again.
    put(&*store, &bad).unwrap();
    all_found(&*store, &all);
    drop(store);
    let refused = fixture.objects(&fixture.data(), Durability::Local, false).err().unwrap();
    assert!(refused.contains(&segments[1]) && refused.contains("--blocks-anew"), "{refused}");
    fixture.bucket.alter(&segments[0], Some(good[0].clone()));
    fixture.bucket.alter(&segments[1], Some(good[1].clone()));
    all_found(&*fixture.store(), &all);
}

/// Proves: a bucket that was emptied is noticed, nothing is collected, and with `--blocks-anew` the blocks that are
/// still here are sent again.
#[test]
fn an_emptied_bucket_is_noticed() {
    let mut fixture = StoreFixture::new(StoreKind::Bucket);
    let store = fixture.store();
    let all = blocks(0, 30);
    put(&*store, &all).unwrap();
    wait_until_sent(&*store);
    fixture.bucket.names().iter().for_each(|name| fixture.bucket.alter(name, None));
    eventually("it is noticed", || store.status().unwrap().doubt.is_some());
    assert!(collect(&*store, &[all[0].0], SECOND).is_err());
    all_found(&*store, &all);
    drop(store);
    fixture.restart();
    let refused = fixture.objects(&fixture.data(), Durability::Local, false).err().unwrap();
    assert!(refused.contains("emptied") && refused.contains("--blocks-anew"), "{refused}");
    let store = fixture.objects(&fixture.data(), Durability::Local, true).unwrap();
    wait_until_sent(&store);
    drop(store);
    forget_copies(&fixture);
    all_found(&*fixture.store(), &all);
}

/// Proves: of two servers on one prefix the earlier one stops when the later one has taken over, and acknowledges
/// nothing from then on. What it acknowledged before, the later one has.
#[test]
fn the_later_of_two_servers_counts() {
    let fixture = StoreFixture::new(StoreKind::BucketAtOnce);
    let first = fixture.store();
    let before = blocks(0, 10);
    put(&*first, &before).unwrap();
    let elsewhere = fixture.folder.path().join("elsewhere");
    let refused = fixture.objects(&elsewhere, Durability::Object, false).err().unwrap();
    assert!(refused.contains("has the store of"), "{refused}");
    let second = fixture.objects(&elsewhere, Durability::Object, true).unwrap();
    all_found(&second, &before);
    let error = put(&*first, &blocks(50, 1)).unwrap_err().to_string();
    assert!(error.contains("taken over"), "{error}");
    assert!(collect(&*first, &[before[0].0], SECOND).is_err());
    put(&second, &blocks(60, 10)).unwrap();
    drop(first);
    let refused = fixture.objects(&fixture.data(), Durability::Object, false).err().unwrap();
    assert!(refused.contains("taken over"), "{refused}");
    all_found(&second, &blocks(60, 10));
}
