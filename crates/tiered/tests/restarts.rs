//! What a server goes by that starts or takes over: what a power loss has left torn is not sent, and all before it is; what was
//! written behind removed segments is found; notes that arrive late and manifests that fail set nothing back.

use crate::common;

use common::{
    bodies, config, fresh, open, record, settings, wait_for_a_round, wait_for_a_round_without,
    wait_until_sent,
};
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_log::{Log, SEGMENT_HEADER_BYTES, segment_name};
use holdfast_testing::eventually;
use holdfast_tiered::simulated::{Delivery, Simulated};
use holdfast_tiered::{Durability, RequestKind, Settings, Tiered};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

fn lose(bucket: &Simulated, is_lost: impl Fn(RequestKind, &str) -> bool + Send + 'static) {
    bucket
        .with_deliveries(move |kind, name| if is_lost(kind, name) { Delivery::Lost } else { Delivery::Good });
}

/// Sealed segments do not get into the bucket.
fn hold_segments(bucket: &Simulated) {
    lose(bucket, |kind, name| kind == RequestKind::Put && name.contains("/segment-"));
}

/// Of segments, the objects that are in the bucket.
fn objects_of_segments(bucket: &Simulated) -> Vec<String> {
    let is_one =
        |name: &String| ["/segment-", "/tail-", "/part-", "/outline-"].iter().any(|kind| name.contains(kind));
    bucket.names().into_iter().filter(is_one).collect()
}

/// Proves: nothing of a segment that a power loss has left torn is sent before the log has cut off its tail, though it is not
/// the last: the log had begun the next one, and had not sealed this one yet. Then the log opens, and the bucket gets the
/// records that are whole.
#[test]
fn a_torn_segment_is_not_sent() {
    let (disk, bucket) = (PowerLoss::new(1), Simulated::new());
    hold_segments(&bucket);
    let (tier, log) = open(&disk.storage(), &bucket, settings(Durability::Local, false)).unwrap();
    for number in 0..5 {
        log.append(1, &record(number)).unwrap();
    }
    log.sync().unwrap();
    let torn = log.append(1, &record(5)).unwrap();
    log.seal().unwrap();
    drop((log, tier));
    disk.restart(Crash::Kill);
    let mut bytes = vec![0; torn.offset as usize + 60];
    let count = disk.storage().open(&segment_name(1)).unwrap().read_at(0, &mut bytes).unwrap();
    assert_eq!(count, bytes.len());
    disk.overwrite(&segment_name(1), &bytes);
    assert_eq!(disk.length(&segment_name(2)), Some(SEGMENT_HEADER_BYTES));
    bucket.without_fates();

    let (again, local) = (Arc::new(bucket.clone()), settings(Durability::Local, false));
    let tier = Tiered::open(disk.storage(), again, local).unwrap();
    wait_for_a_round(&bucket);
    assert_eq!(objects_of_segments(&bucket), [""; 0]);
    let (log, recovery) = Log::open(Arc::new(tier.clone()), config()).unwrap();
    assert_eq!(recovery.truncated, Some((torn, 60)));
    let whole: Vec<_> = (0..5).map(record).collect();
    assert_eq!(bodies(&log), whole);
    wait_until_sent(&log);
    let (_other, log) = open(&fresh(), &bucket.snapshot(), settings(Durability::Local, true)).unwrap();
    assert_eq!(bodies(&log), whole);
}

/// Proves: a segment that was sealed before a restart is sent after it, also if no segment with records follows it on the disk:
/// because the log has removed it, or because the one that follows is in the bucket only.
#[test]
fn sealed_segments_are_sent() {
    for is_removed in [true, false] {
        let (disk, bucket) = (PowerLoss::new(1), Simulated::new());
        let with = |anew| settings(Durability::Local, anew);
        if is_removed {
            hold_segments(&bucket);
        }
        let (mut tier, mut log) = open(&disk.storage(), &bucket, with(false)).unwrap();
        for number in 0..2 {
            log.append(1, &record(number)).unwrap();
            log.seal().unwrap();
        }
        if is_removed {
            log.remove_segments(&[1, 2]).unwrap();
        } else {
            wait_until_sent(&log);
            drop((log, tier));
            disk.restart(Crash::Kill);
            // The first one is gone from the bucket, and is to be sent again.
            let lost =
                objects_of_segments(&bucket).into_iter().find(|name| name.contains("/segment-0000000001"));
            bucket.alter(&lost.unwrap(), None);
            hold_segments(&bucket);
            (tier, log) = open(&disk.storage(), &bucket, with(true)).unwrap();
            log.drop_cache();
            assert!(disk.length(&segment_name(1)).is_some() && disk.length(&segment_name(2)).is_none());
        }
        drop((log, tier));
        disk.restart(Crash::Kill);
        bucket.without_fates();
        let (tier, log) = open(&disk.storage(), &bucket, with(false)).unwrap();
        let is_sent = || tier.status().waiting_bytes <= 2 * SEGMENT_HEADER_BYTES;
        eventually("all that has records is in the bucket", is_sent);
        assert_eq!(bodies(&log).len(), if is_removed { 0 } else { 2 });
    }
}

/// Proves: whoever takes a store over finds what was acknowledged after all segments before it were removed, whatever manifest
/// of those it goes by; and once what was acknowledged is in a segment of the bucket, the removed ones leave it.
#[test]
fn what_follows_removed_segments_is_found() {
    let (disk, bucket) = (PowerLoss::new(1), Simulated::new());
    let with = |anew| settings(Durability::Object, anew);
    let (tier, log) = open(&disk.storage(), &bucket, with(false)).unwrap();
    log.append(1, &record(0)).unwrap();
    log.seal().unwrap();
    wait_until_sent(&log);
    // Until the next start the manifest stays as it is.
    wait_for_a_round_without(&bucket, |_, name| name.ends_with("owner"));
    log.remove_segments(&[1]).unwrap();
    drop((log, tier));
    disk.restart(Crash::Kill);
    // That one writes one manifest, and no second.
    let manifests = Arc::new(AtomicUsize::new(0));
    let is_lost = move |kind: RequestKind, name: &str| {
        kind == RequestKind::Put && name.contains("/manifest-") && manifests.fetch_add(1, SeqCst) > 0
    };
    lose(&bucket, is_lost.clone());
    let (tier, log) = open(&disk.storage(), &bucket, with(false)).unwrap();
    wait_for_a_round_without(&bucket, is_lost);
    log.append(1, &record(1)).unwrap();
    log.sync().unwrap();
    tier.confirm().unwrap();
    let acknowledged = bucket.snapshot();
    wait_for_a_round(&bucket);
    for bucket in [acknowledged, bucket.snapshot()] {
        let (_other, log) = open(&fresh(), &bucket, with(true)).unwrap();
        assert_eq!(bodies(&log).last(), Some(&record(1)));
    }
    log.seal().unwrap();
    wait_until_sent(&log);
    eventually("the removed segment leaves the bucket", || {
        objects_of_segments(&bucket).iter().all(|name| !name.contains("-0000000001-"))
    });
}

/// Proves: a place is never given to a second record, also if all segments were removed and the disk is lost then.
#[test]
fn no_place_is_used_twice() {
    let bucket = Simulated::new();
    let (_tier, log) = open(&fresh(), &bucket, settings(Durability::Local, false)).unwrap();
    let place = log.append(1, &record(0)).unwrap();
    log.seal().unwrap();
    wait_until_sent(&log);
    log.remove_segments(&[1]).unwrap();
    wait_for_a_round(&bucket);
    let (_other, log) = open(&fresh(), &bucket, settings(Durability::Local, true)).unwrap();
    assert!(log.append(1, &record(1)).unwrap() > place);
}

/// Proves: an owner's note of an earlier start that arrives late, when no server runs that would put it right, lets nobody write
/// under the names of a later start, and lets no server go on that was replaced; also while listings lag.
#[test]
fn a_late_note_sets_nothing_back() {
    for lags in [false, true] {
        let (first, second) = (PowerLoss::new(1), PowerLoss::new(2));
        let bucket = Simulated::new();
        let elected = || Settings { takes_over: true, ..settings(Durability::Object, false) };
        let (tier, log) = open(&first.storage(), &bucket, settings(Durability::Object, false)).unwrap();
        wait_for_a_round(&bucket);
        drop((log, tier));
        let late = bucket.object("owner");
        if lags {
            bucket.begin_lagging();
        }
        let (tier, log) = open(&second.storage(), &bucket, settings(Durability::Object, true)).unwrap();
        for number in 0..2 {
            log.append(1, &record(number)).unwrap();
            log.sync().unwrap();
            tier.confirm().unwrap();
        }
        drop((log, tier));
        let heads = || bucket.names().into_iter().filter(|name| name.contains("/head-")).max();
        let before = heads();

        // The first one was replaced. It does not start, unless it is elected anew.
        bucket.alter("owner", late.clone());
        first.restart(Crash::Kill);
        let error = open(&first.storage(), &bucket, settings(Durability::Object, false)).err().unwrap();
        assert!(error.contains("was taken over"), "{error}");
        first.restart(Crash::Kill);
        let (_tier, log) = open(&first.storage(), &bucket.snapshot(), elected()).unwrap();
        assert_eq!(bodies(&log), [record(0), record(1)]);

        // A new one is later than all.
        let (_tier, log) = open(&fresh(), &bucket, settings(Durability::Object, true)).unwrap();
        wait_for_a_round(&bucket);
        assert_eq!(bodies(&log), [record(0), record(1)]);
        assert!(heads() > before, "{:?} {before:?}", heads());
    }
}

/// Proves: while a new manifest cannot be written, because the bucket or the disk fails, the one before it stays.
#[test]
fn a_manifest_stays_until_the_next_is_there() {
    let (disk, bucket) = (PowerLoss::new(1), Simulated::new());
    let (tier, log) = open(&disk.storage(), &bucket, settings(Durability::Local, false)).unwrap();
    log.append(1, &record(0)).unwrap();
    log.seal().unwrap();
    wait_until_sent(&log);
    wait_for_a_round(&bucket);
    drop((log, tier));
    disk.restart(Crash::Kill);
    let manifests = || {
        let names = bucket.names().into_iter();
        names.filter(|name| name.contains("/manifest-")).collect::<Vec<_>>()
    };
    let before = manifests();
    assert_eq!(before.len(), 1);
    let is_lost = |kind: RequestKind, name: &str| kind == RequestKind::Put && name.contains("/manifest-");
    lose(&bucket, is_lost);
    let (_tier, _log) = open(&disk.storage(), &bucket, settings(Durability::Local, false)).unwrap();
    disk.fail_syncs(1);
    wait_for_a_round_without(&bucket, is_lost);
    assert_eq!(manifests(), before);
}
