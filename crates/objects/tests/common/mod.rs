//! A log on a bucket, for tests.
#![allow(dead_code)]

use holdfast_log::simulated::PowerLoss;
use holdfast_log::{Log, LogConfig, Storage};
use holdfast_objects::simulated::Simulated;
use holdfast_objects::{Durability, Settings, Tiered};
use holdfast_testing::{PATIENCE, eventually};
use std::sync::Arc;
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
            holdfast_log::Scanned::Record(head) => {
                found.push(log.read(head.position, 0).expect("it is read").body)
            }
            holdfast_log::Scanned::Damaged(damage) => panic!("{damage:?}"),
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
    eventually("sealed segments are in the bucket", || tier.standing().waiting_bytes <= 4500);
}
