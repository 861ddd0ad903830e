//! The storage against a model: a log on it, with a bucket that loses, delays and repeats requests, a local disk that loses
//! power or is lost, and listings that lag.

use crate::common;

use common::{bodies, fresh, impatient, open, record, settings, settle};
use holdfast_log::Log;
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_testing::eventually;
use holdfast_tiered::simulated::{Delivery, Simulated};
use holdfast_tiered::{Durability, Settings, Tiered};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

/// The settings of one of several servers that are standbys for each other.
fn elected() -> Settings {
    Settings { takes_over: true, ..settings(Durability::Object, false) }
}

/// Proves: a log that is ten times as long as the local disk is read whole, and the local disk stays within its bound.
#[test]
fn a_log_is_longer_than_the_disk() {
    let (local, bucket) = (fresh(), Simulated::new());
    let (tier, log) = open(&local, &bucket, settings(Durability::Local, false)).unwrap();
    for number in 0..900 {
        // As long as there is no room, nothing is written, and nothing is lost.
        eventually("there is room", || log.append(1, &record(number)).is_ok());
    }
    log.sync().unwrap();
    settle(&tier);
    let used = || tier.status().cached_bytes + tier.status().waiting_bytes;
    eventually("what is above the bound goes", || used() <= 40_000);
    let all: Vec<_> = (0..900).map(record).collect();
    assert_eq!(bodies(&log), all);
    assert_eq!(bodies(&log), all, "also from what was kept");
    let status = tier.status();
    assert!(status.bytes > 400_000 - 10_000, "{status:?}");
    // One range that was just read may be beyond it.
    assert!(status.cached_bytes + status.waiting_bytes <= 40_000 + 8192, "{status:?}");
}

/// Proves: removed segments leave the bucket once nothing lists them, tails and replaced manifests too, and a directory that
/// was lost comes back without them.
#[test]
fn what_is_removed_leaves_the_bucket() {
    let (local, bucket) = (fresh(), Simulated::new());
    let (tier, log) = open(&local, &bucket, settings(Durability::Object, false)).unwrap();
    for number in 0..100 {
        log.append(1, &record(number)).unwrap();
        log.sync().unwrap();
        tier.confirm().unwrap();
    }
    settle(&tier);
    let sealed: Vec<u32> = log.sealed_segments().into_iter().map(|(number, _)| number).collect();
    log.remove_segments(&sealed[..3]).unwrap();
    log.append(1, &record(100)).unwrap();
    log.seal().unwrap();
    let count = |part: &str| bucket.names().iter().filter(|name| name.contains(part)).count();
    // Segments whose objects are there; and those that have an outline.
    let numbers = |part: &str| {
        let names = bucket.names();
        let of = |name: &String| Some(name.split_once(part)?.1.split('-').next()?.parse::<u32>().unwrap());
        names.iter().filter_map(of).collect::<BTreeSet<u32>>()
    };
    let sealed: BTreeSet<u32> = log.sealed_segments().into_iter().map(|(number, _)| number).collect();
    let consist = || [numbers("/segment-"), numbers("/tail-"), numbers("/part-")].into_iter().flatten();
    eventually("only what is listed is in the bucket", || {
        consist().collect::<BTreeSet<_>>() == sealed
            && numbers("/outline-") == sealed
            && count("/manifest-") <= 1
    });
    let kept = bodies(&log);
    drop((log, tier));
    let (_tier, log) = open(&fresh(), &bucket, settings(Durability::Object, true)).unwrap();
    assert_eq!(bodies(&log), kept);
}

/// Proves: a tail that is missing is noticed, wherever it is, if anything later is there.
#[test]
fn a_missing_tail_is_noticed() {
    let (local, bucket) = (fresh(), Simulated::new());
    let (tier, log) = open(&local, &bucket, settings(Durability::Object, false)).unwrap();
    // Sealed segments stay where they are.
    bucket
        .with_deliveries(|_, name| if name.contains("/outline-") { Delivery::Lost } else { Delivery::Good });
    for number in 0..30 {
        log.append(1, &record(number)).unwrap();
        log.sync().unwrap();
        tier.confirm().unwrap();
    }
    drop((log, tier));
    let bucket = bucket.snapshot();
    let tails: Vec<String> = bucket.names().into_iter().filter(|name| name.contains("/tail-")).collect();
    assert!(tails.len() >= 25, "{tails:?}");
    for missing in &tails[..tails.len() - 1] {
        let bucket = bucket.snapshot();
        bucket.alter(missing, None);
        let error = open(&fresh(), &bucket, settings(Durability::Object, true)).err().expect("it is noticed");
        assert!(error.contains("is damaged") && error.contains("back"), "{missing}: {error}");
    }
    let (_tier, log) = open(&fresh(), &bucket, settings(Durability::Object, true)).unwrap();
    assert_eq!(bodies(&log).len(), 30);
}

/// Proves: what was sent is acknowledged only once the prefix was seen to be this server's still, *after* that, also to who
/// has nothing left to send.
#[test]
fn sent_is_not_acknowledged() {
    let (local, bucket) = (fresh(), Simulated::new());
    let rarely = Settings { every: Duration::from_secs(3600), ..impatient(Durability::Object, false) };
    let (tier, log) = open(&local, &bucket, rarely).unwrap();
    log.append(1, &record(0)).unwrap();
    log.sync().unwrap();
    tier.confirm().unwrap();
    log.append(1, &record(1)).unwrap();
    log.sync().unwrap();
    bucket.with_deliveries(|_, name| if name.ends_with("owner") { Delivery::Lost } else { Delivery::Good });
    let tails = || bucket.names().iter().filter(|name| name.contains("/tail-")).count();
    let before = tails();
    tier.confirm().expect_err("nobody knows whose it is");
    assert_eq!(tails(), before + 1, "it was sent");
    bucket.without_fates();
    let elsewhere = PowerLoss::new(2).storage();
    let (_other, _) = open(&elsewhere, &bucket, settings(Durability::Object, true)).unwrap();
    let error = tier.confirm().expect_err("it is another's");
    assert!(error.to_string().contains("was taken over by"), "{error}");
}

/// Proves: however old the listing is that a take-over is shown, it finds all that was acknowledged, again and again; and a
/// manifest that truly is missing is noticed even then.
#[test]
fn a_take_over_needs_no_listing() {
    for listed in [0, 1, 30, 60] {
        let bucket = Simulated::new();
        let (mut next, mut written) = (0, Vec::new());
        for round in 0..4 {
            let (tier, log) = open(&fresh(), &bucket, settings(Durability::Object, round > 0)).unwrap();
            assert_eq!(bodies(&log), written, "round {round}, {listed} listed");
            for _ in 0..40 {
                if next == listed {
                    bucket.begin_lagging();
                }
                log.append(1, &record(next)).unwrap();
                log.sync().unwrap();
                tier.confirm().unwrap();
                written.push(record(next));
                next += 1;
            }
            if round % 2 == 0 {
                settle(&tier);
            }
        }
        let names = bucket.names();
        let newest = names.iter().filter(|name| name.contains("/manifest-")).max().unwrap();
        bucket.alter(newest, None);
        let error = open(&fresh(), &bucket, settings(Durability::Object, true)).err().expect("it is noticed");
        assert!(error.contains("is not there") || error.contains("is damaged"), "{error}");
    }
}

/// Proves: servers that are elected in turn have all that was acknowledged, whichever has had the store before, also if the
/// one before still runs, which acknowledges nothing more; what was only on its disk is not there again when it is elected
/// the next time, nor if its power fails at any moment of that.
#[test]
fn the_elected_take_over_from_each_other() {
    let bucket = Simulated::new();
    let disks = [PowerLoss::new(1), PowerLoss::new(2), PowerLoss::new(3)];
    let mut before = None;
    let (mut next, mut written) = (0, Vec::new());
    for round in 0..12 {
        let disk = &disks[[0, 1, 0, 2, 1][round % 5]];
        if round >= 5 {
            disk.crash_after(round as u64 * 3);
            drop(open(&disk.storage(), &bucket, elected()));
            disk.restart(Crash::PowerLoss);
        }
        let (tier, log) = open(&disk.storage(), &bucket, elected()).unwrap();
        assert_eq!(bodies(&log), written, "round {round}");
        if let Some((tier, log)) = before.take() {
            let (tier, log): (Tiered, Log) = (tier, log);
            drop(log.append(1, b"of one that was replaced"));
            drop(log.sync());
            let error = tier.confirm().expect_err("it was replaced");
            assert!(error.to_string().contains("was taken over by"), "{error}");
        }
        for _ in 0..10 {
            log.append(1, &record(next)).unwrap();
            log.sync().unwrap();
            tier.confirm().unwrap();
            written.push(record(next));
            next += 1;
        }
        // It was not acknowledged.
        log.append(1, b"not acknowledged").unwrap();
        before = (round % 5 != 1).then_some((tier, log));
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Appends so many records and acknowledges them.
    Write(u8),
    /// Power is lost after so many changes of the disk.
    Power(u8),
    /// The disk is lost.
    LoseDisk,
    /// What was late arrives.
    Settle,
    /// From now on requests meet these fates in turn.
    Deliveries(Vec<u8>),
    Lag(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..12u8).prop_map(Op::Write),
        2 => (0..40u8).prop_map(Op::Power),
        1 => Just(Op::LoseDisk),
        1 => Just(Op::Settle),
        2 => proptest::collection::vec(0..8u8, 1..9).prop_map(Op::Deliveries),
        1 => any::<bool>().prop_map(Op::Lag),
    ]
}

fn deliveries(bucket: &Simulated, pattern: Vec<u8>) {
    let mut at = 0;
    bucket.with_deliveries(move |_, _| {
        at += 1;
        match pattern[at % pattern.len()] {
            0 => Delivery::Lost,
            1 => Delivery::Unanswered,
            2 => Delivery::Late,
            _ => Delivery::Good,
        }
    });
}

/// Opens; where the bucket fails on the way, once more when it does not.
fn reopen(disk: &PowerLoss, bucket: &Simulated, durability: Durability, anew: bool) -> (Tiered, Log) {
    let local = disk.storage();
    if let Ok(opened) = open(&local, bucket, impatient(durability, anew)) {
        return opened;
    }
    bucket.without_fates();
    match open(&local, bucket, impatient(durability, anew)) {
        Ok(opened) => opened,
        // A take-over may have to wait for a listing, but then it says so.
        Err(error) if anew && error.contains("where listings lag, wait") => {
            bucket.set_lagging(false);
            open(&local, bucket, impatient(durability, anew)).unwrap_or_else(|error| panic!("{error}"))
        }
        Err(error) => panic!("{error}"),
    }
}

fn run(durability: Durability, ops: &[Op]) {
    let (mut disk, bucket) = (PowerLoss::new(7), Simulated::new());
    let (mut tier, mut log) = reopen(&disk, &bucket, durability, false);
    // What was appended, and how much of it was acknowledged.
    let (mut appended, mut acknowledged) = (Vec::<Vec<u8>>::new(), 0);
    let mut next = 0;
    for op in ops {
        match op {
            Op::Write(count) => {
                for _ in 0..*count {
                    if log.append(1, &record(next)).is_ok() {
                        appended.push(record(next));
                        next += 1;
                    }
                }
                if log.sync().is_ok() && tier.confirm().is_ok() {
                    acknowledged = appended.len();
                }
            }
            Op::Power(_) | Op::LoseDisk => {
                let loses = matches!(op, Op::LoseDisk);
                if loses && durability == Durability::Local {
                    continue;
                }
                if let Op::Power(after) = op {
                    disk.crash_after((*after).into());
                    for _ in 0..8 {
                        if log.append(1, &record(next)).is_ok() {
                            appended.push(record(next));
                            next += 1;
                        }
                        if log.sync().is_ok() && tier.confirm().is_ok() {
                            acknowledged = appended.len();
                        }
                    }
                }
                drop((log, tier));
                match loses {
                    true => disk = PowerLoss::new(next.into()),
                    false => disk.restart(Crash::PowerLoss),
                }
                (tier, log) = reopen(&disk, &bucket, durability, loses);
                // What is read now is read from a bucket that answers.
                bucket.without_fates();
                let found = bodies(&log);
                assert!(found.len() >= acknowledged, "{} of {acknowledged}", found.len());
                assert_eq!(found, appended[..found.len()]);
                appended.truncate(found.len());
                // What only the disk has may be lost with it, if the bucket was to acknowledge it.
                if loses {
                    acknowledged = found.len();
                }
                next =
                    appended.last().map_or(0, |last| u32::from_le_bytes(last[..4].try_into().unwrap()) + 1);
            }
            Op::Settle => bucket.settle(),
            Op::Deliveries(pattern) => deliveries(&bucket, pattern.clone()),
            Op::Lag(lags) => bucket.set_lagging(*lags),
        }
    }
    bucket.without_fates();
    bucket.settle();
    assert_eq!(bodies(&log), appended);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Proves: whatever requests become of and in whatever order the process dies, the disk is lost and late requests arrive,
    /// and though listings lag, all that was acknowledged is there, in order, and nothing that was never written.
    #[test]
    fn storages_do_as_the_model(ops in proptest::collection::vec(op(), 1..20)) {
        run(Durability::Local, &ops);
        run(Durability::Object, &ops);
    }
}
