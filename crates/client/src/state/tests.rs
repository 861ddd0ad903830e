//! Crash tests of the device's state, on a disk that loses, tears and reorders whatever was not synced.

use super::*;
use holdfast_crypto::SigningKey;
use holdfast_log::simulated::{Crash, PowerLoss};

const FILE_SYSTEM: Digest = Digest([7; 32]);

fn key() -> PublicKey {
    SigningKey::from_seed(&[3; 32]).public()
}

fn state(number: u64, size: usize) -> State {
    let mut signer = number.to_le_bytes().to_vec();
    signer.resize(size.max(8), number as u8);
    State {
        format: 1,
        file_system: FILE_SYSTEM,
        key: key(),
        signer,
        allocator: Allocator::default(),
        frozen: None,
    }
}

fn number_of(state: &Option<State>) -> u64 {
    state.as_ref().map_or(0, |state| u64::from_le_bytes(state.signer[..8].try_into().unwrap()))
}

/// What one run saw: the last number whose save returned, and the last that was tried.
struct Run {
    saved: u64,
    tried: u64,
}

/// Saves growing numbers until the disk goes down or `count` are saved.
fn run(disk: &PowerLoss, count: u64, size: usize) -> Run {
    let mut outcome = Run { saved: 0, tried: 0 };
    let Ok((log, found)) = StateLog::open(disk.storage(), FILE_SYSTEM, key()) else { return outcome };
    outcome.saved = number_of(&found);
    outcome.tried = outcome.saved;
    for number in outcome.saved + 1..=outcome.saved + count {
        outcome.tried = number;
        if log.save(&state(number, size)).is_err() {
            break;
        }
        outcome.saved = number;
    }
    outcome
}

/// Crashes after the k-th change for every k, twice in a row, and returns whether a saved state was ever lost.
fn loses_anything(site: Option<holdfast_log::SyncSite>) -> bool {
    // Large records, so that segments are sealed and removed too.
    for (count, size) in [(6, 200), (5, 2 << 20)] {
        for seed in 0..4 {
            for k in 1..60 {
                let disk = PowerLoss::new(seed);
                disk.disable(site);
                disk.crash_after(k);
                let first = run(&disk, count, size);
                disk.restart(Crash::PowerLoss);
                disk.crash_after(k / 2 + 1);
                let second = run(&disk, count, size);
                disk.restart(Crash::PowerLoss);
                disk.disable(None);
                match StateLog::open(disk.storage(), FILE_SYSTEM, key()) {
                    Ok((_, found)) => {
                        let found = number_of(&found);
                        let least = first.saved.max(second.saved);
                        if found < least || found > first.tried.max(second.tried) {
                            return true;
                        }
                    }
                    Err(_) => return true,
                }
            }
        }
    }
    false
}

/// Proves: whatever the moment of a power loss, a state whose save returned is found again.
#[test]
fn survives_power_loss_at_every_step() {
    assert!(!loses_anything(None));
}

/// Proves: each sync on the path of a save is needed; without it some crash loses a saved state.
#[test]
fn every_sync_is_needed() {
    use holdfast_log::SyncSite;
    for site in [SyncSite::COMMIT, SyncSite::SEGMENT_CREATED] {
        assert!(loses_anything(Some(site)), "{site:?} could be left out");
    }
}

/// Proves: a foreign state, a damaged one and one in use are told apart and never replaced.
#[test]
fn refuses_what_is_not_its_own() {
    let disk = PowerLoss::new(1);
    let (log, _) = StateLog::open(disk.storage(), FILE_SYSTEM, key()).unwrap();
    log.save(&state(1, 100)).unwrap();
    assert!(matches!(StateLog::open(disk.storage(), FILE_SYSTEM, key()), Err(StateError::InUse)));
    drop(log);
    let other = SigningKey::from_seed(&[4; 32]).public();
    assert!(matches!(StateLog::open(disk.storage(), FILE_SYSTEM, other), Err(StateError::Foreign(_))));
    let (log, found) = StateLog::open(disk.storage(), FILE_SYSTEM, key()).unwrap();
    assert_eq!(number_of(&found), 1);
    log.save(&state(2, 100)).unwrap();
    log.save(&state(3, 100)).unwrap();
    drop(log);
    let name = disk.names().into_iter().rfind(|name| name.ends_with(".log")).expect("a segment");
    let middle = disk.length(&name).unwrap() / 2;
    disk.corrupt(&name, middle);
    let reopened = StateLog::open(disk.storage(), FILE_SYSTEM, key());
    match reopened {
        Err(StateError::Corrupt(_)) => {}
        Ok((_, found)) => assert_eq!(number_of(&found), 3, "an older state must never be taken for the last"),
        Err(other) => panic!("{other}"),
    }
}

/// Proves: when the disk is full nothing is lost and saving works again once there is space.
#[test]
fn full_disk() {
    let disk = PowerLoss::new(1);
    let (log, _) = StateLog::open(disk.storage(), FILE_SYSTEM, key()).unwrap();
    log.save(&state(1, 1000)).unwrap();
    disk.set_capacity(Some(disk.used_bytes() + 100));
    assert!(matches!(log.save(&state(2, 8 << 20)), Err(StateError::Full)));
    disk.set_capacity(None);
    log.save(&state(3, 8 << 20)).unwrap();
    drop(log);
    let (_, found) = StateLog::open(disk.storage(), FILE_SYSTEM, key()).unwrap();
    assert_eq!(number_of(&found), 3);
}
