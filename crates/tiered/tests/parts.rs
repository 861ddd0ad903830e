//! Segments that consist of the parts that were sent while they were written: bytes go to the bucket once, several parts are
//! under way at once, and whatever becomes of those, what was acknowledged is there.

use crate::common;

use common::{bodies, fresh, impatient, open, record, settings, settle};
use holdfast_tiered::simulated::{Delivery, Simulated};
use holdfast_tiered::{Durability, RequestKind, Settings};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Proves: where parts are large they are what the segment consists of, and nothing of it is sent again; small ones are sent
/// again as few; either way all is read from them once the disk is lost, and by whoever reads only a part of a segment.
#[test]
fn segments_consist_of_their_parts() {
    for part_bytes_min in [1, 700, 100_000] {
        let bucket = Simulated::new();
        let settings =
            |anew| Settings { part_bytes_min, cache_bytes: 1 << 20, ..settings(Durability::Object, anew) };
        let (tier, log) = open(&fresh(), &bucket, settings(false)).unwrap();
        let mut written = Vec::new();
        for number in 0..200 {
            log.append(1, &record(number)).unwrap();
            written.push(record(number));
            if number % 3 == 2 {
                log.sync().unwrap();
                tier.confirm().unwrap();
            }
        }
        // The last ones too.
        log.sync().unwrap();
        tier.confirm().unwrap();
        log.seal().unwrap();
        settle(&tier);
        drop((log, tier));
        let names = bucket.names();
        let count = |part: &str| names.iter().filter(|name| name.contains(part)).count();
        let (whole, joined, parts) = (count("/segment-"), count("/part-"), count("/tail-"));
        match part_bytes_min {
            1 => assert!(
                whole == 0 && joined == 0 && parts > 60,
                "{whole} whole, {parts} parts, {joined} joined"
            ),
            700 => assert!(joined > 0 && parts > 15, "{whole} whole, {parts} parts, {joined} joined"),
            _ => assert!(
                whole > 5 && joined == 0 && parts <= 2,
                "{whole} whole, {parts} parts, {joined} joined"
            ),
        }
        // The local cache is small.
        let settings = Settings { cache_bytes: 20_000, ..settings(true) };
        let (_tier, log) = open(&fresh(), &bucket, settings).unwrap();
        assert_eq!(bodies(&log), written, "parts of at least {part_bytes_min} bytes");
    }
}

/// Which part of how many a name is: the same whenever it is asked for.
fn lot(name: &str, round: u32, of: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (name, round).hash(&mut hasher);
    hasher.finish() % of
}

/// Proves: several threads that write have several parts under way; some of those never arrive, or arrive late, and the disk
/// is lost; and again and again all that was acknowledged to any of them is there, and a take-over is never refused for what
/// was acknowledged to nobody.
#[test]
fn parts_under_way_may_be_lost() {
    let mut bucket = Simulated::new();
    let acknowledged = Arc::new(Mutex::new(BTreeSet::<Vec<u8>>::new()));
    let mut number = 0;
    let mut failed = 0;
    // Which parts there are hangs on chance; so it goes on until enough were lost, and enough were not.
    for round in 0u32.. {
        if round >= 10 && failed > 5 && acknowledged.lock().len() > 50 {
            break;
        }
        let quickly = Settings { part_bytes_min: 50, ..impatient(Durability::Object, round > 0) };
        let (tier, log) =
            open(&fresh(), &bucket, quickly).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let found: BTreeSet<Vec<u8>> = bodies(&log).into_iter().collect();
        for one in acknowledged.lock().iter() {
            assert!(found.contains(one), "round {round}: a record of {} bytes is gone", one.len());
        }
        let under_way = Arc::new(Mutex::new((0u64, 0u64)));
        let counted = under_way.clone();
        bucket.with_deliveries(move |kind, name| {
            if kind != RequestKind::Put || !name.contains("/tail-") {
                return Delivery::Good;
            }
            let mut counted = counted.lock();
            counted.0 += 1;
            match lot(name, round, 40) {
                0 => Delivery::Lost,
                1 => Delivery::Late,
                2 => Delivery::Unanswered,
                _ => {
                    counted.1 += 1;
                    Delivery::Good
                }
            }
        });
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (log, tier, acknowledged) = (log.clone(), tier.clone(), acknowledged.clone());
                let first = number + thread * 8;
                scope.spawn(move || {
                    for number in first..first + 8 {
                        let mut bytes = record(number);
                        bytes.extend_from_slice(&round.to_le_bytes());
                        if log.append(1, &bytes).is_ok() && log.sync().is_ok() && tier.confirm().is_ok() {
                            acknowledged.lock().insert(bytes);
                        }
                    }
                });
            }
        });
        number += 48;
        let (begun, arrived) = *under_way.lock();
        failed += begun - arrived;
        // What is in the bucket at this moment is all that is left; or what was late arrives before that.
        if round % 2 == 1 {
            bucket.settle();
        }
        let left = bucket.snapshot();
        bucket.without_fates();
        drop((log, tier));
        bucket = left;
    }
}
