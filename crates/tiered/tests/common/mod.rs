//! A log on a bucket, for tests.
#![allow(dead_code)]

use holdfast_log::simulated::PowerLoss;
use holdfast_log::{Log, LogConfig, Storage};
use holdfast_testing::{PATIENCE, eventually};
use holdfast_tiered::simulated::{Delivery, Simulated};
use holdfast_tiered::{Durability, RequestKind, Settings, Tiered};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

pub fn settings(durability: Durability, anew: bool) -> Settings {
    Settings {
        durability,
        cache_bytes: 40_000,
        condemned: Duration::ZERO,
        part_bytes_min: 400,
        copied_bytes_min: 0,
        patience: PATIENCE,
        every: Duration::from_millis(5),
        anew,
        takes_over: false,
        host: "test".to_owned(),
    }
}

/// Settings for a bucket that fails at times: an acknowledgement is refused after 30 ms.
pub fn impatient(durability: Durability, anew: bool) -> Settings {
    Settings { patience: Duration::from_millis(30), ..settings(durability, anew) }
}

pub fn config() -> LogConfig {
    LogConfig { segment_bytes: 4096, buffer_bytes: 512, ..LogConfig::default() }
}

pub fn open(
    local: &Arc<dyn Storage>,
    bucket: &Simulated,
    settings: Settings,
) -> Result<(Tiered, Log), String> {
    let tier =
        Tiered::open(local.clone(), Arc::new(bucket.clone()), settings).map_err(|error| error.to_string())?;
    let (log, _) = Log::open(Arc::new(tier.clone()), config()).map_err(|error| error.to_string())?;
    Ok((tier, log))
}

pub fn fresh() -> Arc<dyn Storage> {
    PowerLoss::new(1).storage()
}

/// Bodies of all records.
pub fn bodies(log: &Log) -> Vec<Vec<u8>> {
    let scan =
        log.scan(holdfast_log::Position::START, holdfast_log::ScanDepth::Bodies).expect("it is scanned");
    let mut found = Vec::new();
    for one in scan {
        match one.expect("it is read") {
            holdfast_log::ScanItem::Record(head) => {
                found.push(log.read(head.position, 0).expect("it is read").body)
            }
            holdfast_log::ScanItem::Damaged(damage) => panic!("{damage:?}"),
        }
    }
    found
}

pub fn record(number: u32) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(100 + number as usize % 700, number as u8);
    bytes
}

pub fn settle(tier: &Tiered) {
    eventually("sealed segments are in the bucket", || tier.status().waiting_bytes <= 4500);
}

/// Waits until the bucket has all sealed segments.
pub fn wait_until_sent(log: &Log) {
    eventually("the bucket has all sealed segments", || {
        log.sealed_segments().iter().all(|(number, _)| log.can_punch_holes(*number))
    });
}

/// Waits until the thread that sends has gone round at least once more.
pub fn wait_for_a_round(bucket: &Simulated) {
    wait_for_a_round_without(bucket, |_, _| false);
    bucket.without_fates();
}

/// Waits until the thread that sends has gone round at least once more, while the requests that `is_lost` names are lost, then
/// and from then on. The thread asks for the owner's note in each round, at most three times.
pub fn wait_for_a_round_without(
    bucket: &Simulated,
    is_lost: impl Fn(RequestKind, &str) -> bool + Send + 'static,
) {
    let asked = Arc::new(AtomicUsize::new(0));
    let noted = asked.clone();
    bucket.with_deliveries(move |kind, name| {
        noted.fetch_add(usize::from(name.ends_with("owner")), SeqCst);
        if is_lost(kind, name) { Delivery::Lost } else { Delivery::Good }
    });
    eventually("the thread that sends goes round", || asked.load(SeqCst) >= 7);
}
