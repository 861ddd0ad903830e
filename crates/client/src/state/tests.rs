//! Crash tests of the device's state, on a disk that loses, tears and reorders writes that were not synced.

use super::*;
use holdfast_content::DeviceId;
use holdfast_crypto::SigningKey;
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_protocol::floor::Floor;
use holdfast_testing::setting;

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

/// The result of one run: the last number whose save returned, and the last one that was tried.
struct Run {
    saved: u64,
    tried: u64,
}

/// Saves growing numbers until the disk fails or `count` are saved.
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
fn loses_anything(site: Option<holdfast_log::SyncSite>, large_seeds: u64) -> bool {
    // Large records, so that segments are sealed and removed too.
    for (count, size, seeds) in [(6, 200, 4), (5, 2 << 20, large_seeds)] {
        for seed in 0..seeds {
            for k in 1.. {
                let disk = PowerLoss::new(seed);
                disk.disable(site);
                disk.crash_after(k);
                let first = run(&disk, count, size);
                let mut crashed = disk.is_down();
                disk.restart(Crash::PowerLoss);
                disk.crash_after(k / 2 + 1);
                let second = run(&disk, count, size);
                crashed |= disk.is_down();
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
                if !crashed {
                    break;
                }
            }
        }
    }
    false
}

/// Proves: whatever the moment of a power loss, a state whose save returned is found again.
#[test]
fn survives_power_loss_at_every_step() {
    assert!(!loses_anything(None, setting("HOLDFAST_SEEDS", 1)));
}

/// Proves: each sync on the path of a save is needed; without it some crash loses a saved state.
#[test]
fn every_sync_is_needed() {
    use holdfast_log::SyncSite;
    for site in [SyncSite::COMMIT, SyncSite::SEGMENT_CREATED] {
        assert!(loses_anything(Some(site), 4), "{site:?} could be left out");
    }
}

/// Proves: another device's state, a damaged one and one in use give different errors and are never replaced.
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

/// A signer that has used so many numbers.
fn signer(used: u64) -> Signer {
    let mut signer = Signer::new(Floor::new(key(), DeviceId(3)));
    while signer.floor().used < used {
        signer.skip().expect("idle");
    }
    signer
}

fn used(state: &Option<State>) -> u64 {
    state.as_ref().map_or(0, |state| Signer::restore(&state.signer).expect("a signer's").floor().used)
}

fn frozen(length: usize) -> Frozen {
    let what = "x".repeat(length);
    Frozen { what, noticed_ns: 1, last_good_operation: 2, evidence: None }
}

/// Saves changes until the disk fails or `count` are saved; the data saved with them makes them `length`
/// bytes longer.
fn change(disk: &PowerLoss, count: u64, length: usize) -> Run {
    let mut outcome = Run { saved: 0, tried: 0 };
    let Ok((log, found)) = StateLog::open(disk.storage(), FILE_SYSTEM, key()) else { return outcome };
    outcome.saved = used(&found);
    outcome.tried = outcome.saved;
    let allocator = Allocator::default();
    for number in outcome.saved + 1..=outcome.saved + count {
        outcome.tried = number;
        if log.save_signer(&signer(number), &allocator, Some(&frozen(length))).is_err() {
            break;
        }
        outcome.saved = number;
    }
    outcome
}

/// Proves: whatever the moment of a power loss, a change whose save returned is found again, with all changes
/// before it; also where segments are sealed between the changes, and where a whole state takes their place.
#[test]
fn changes_survive_power_loss_at_every_step() {
    for (count, length, seeds) in [(8, 10, 3), (9, 900 << 10, setting("HOLDFAST_SEEDS", 1))] {
        for seed in 0..seeds {
            for k in 1.. {
                let disk = PowerLoss::new(seed);
                disk.crash_after(k);
                let first = change(&disk, count, length);
                let mut crashed = disk.is_down();
                disk.restart(Crash::PowerLoss);
                disk.crash_after(k / 2 + 1);
                let second = change(&disk, count, length);
                crashed |= disk.is_down();
                disk.restart(Crash::PowerLoss);
                let (_, found) = StateLog::open(disk.storage(), FILE_SYSTEM, key()).expect("it is whole");
                let (least, most) = (first.saved.max(second.saved), first.tried.max(second.tried));
                assert!((least..=most).contains(&used(&found)), "{k}: {} of {least} to {most}", used(&found));
                if let Some(found) = found {
                    assert_eq!(found.signer, signer(used(&Some(found.clone()))).to_bytes());
                    assert_eq!(found.frozen, Some(frozen(length)));
                }
                if !crashed {
                    break;
                }
            }
        }
    }
}

/// Proves: an operation adds only what it changed, the stored bytes are bounded however many operations there
/// are, and a state of a version that wrote only whole states continues with changes.
#[test]
fn changes_are_short_and_folded() {
    let disk = PowerLoss::new(1);
    let allocator = Allocator::default();
    let old = State { signer: signer(1).to_bytes(), ..state(1, 0) };
    StateLog::open(disk.storage(), FILE_SYSTEM, key()).unwrap().0.save(&old).unwrap();
    let (log, found) = StateLog::open(disk.storage(), FILE_SYSTEM, key()).unwrap();
    assert_eq!(used(&found), 1);
    log.save_signer(&signer(2), &allocator, Some(&frozen(0))).unwrap();
    let before = disk.used_bytes();
    log.save_signer(&signer(3), &allocator, Some(&frozen(0))).unwrap();
    assert!(disk.used_bytes() - before < 1000, "{} bytes more", disk.used_bytes() - before);
    // A hundred times as much as may be stored.
    let large = frozen(512 << 10);
    for _ in 0..100 {
        log.save_signer(&signer(4), &allocator, Some(&large)).unwrap();
    }
    assert!(disk.used_bytes() < 3 * u64::from(SEGMENT_BYTES), "{} bytes", disk.used_bytes());
    drop(log);
    let (_, found) = StateLog::open(disk.storage(), FILE_SYSTEM, key()).unwrap();
    assert_eq!((used(&found), found.unwrap().frozen), (4, Some(large)));
}

/// Proves: wherever the changes are damaged, the state is refused or is the last one; never an older one, and
/// never a mixture. Damage of the very last record looks like a write cut off by a power loss, as with whole
/// states.
#[test]
fn damaged_changes_are_no_older_state() {
    let allocator = Allocator::default();
    let made = |count: u64| {
        let disk = PowerLoss::new(1);
        let (log, _) = StateLog::open(disk.storage(), FILE_SYSTEM, key()).unwrap();
        for number in 1..=count {
            log.save_signer(&signer(number), &allocator, None).unwrap();
        }
        drop(log);
        let name = disk.names().into_iter().find(|name| name.ends_with(".log")).expect("a segment");
        let length = disk.length(&name).unwrap();
        (disk, name, length)
    };
    let last = made(5).2;
    let mut refused = 0;
    for at in (0..made(6).2).step_by(5) {
        let (disk, name, _) = made(6);
        disk.corrupt(&name, at);
        match StateLog::open(disk.storage(), FILE_SYSTEM, key()) {
            Err(StateError::Corrupt(_)) => refused += 1,
            Ok((_, found)) => {
                let least = if at >= last { 5 } else { 6 };
                let used = used(&found);
                assert!((least..=6).contains(&used), "{used} at {at}");
                assert_eq!(found.map(|found| found.signer), Some(signer(used).to_bytes()), "at {at}");
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 10, "{refused}");
}

/// Proves: if the disk is full, later changes do not build on a change that was not saved.
#[test]
fn changes_on_a_full_disk() {
    let disk = PowerLoss::new(1);
    let allocator = Allocator::default();
    let (log, _) = StateLog::open(disk.storage(), FILE_SYSTEM, key()).unwrap();
    log.save_signer(&signer(1), &allocator, None).unwrap();
    log.save_signer(&signer(2), &allocator, None).unwrap();
    disk.set_capacity(Some(disk.used_bytes() + 100));
    let large = frozen(8 << 20);
    assert!(matches!(log.save_signer(&signer(3), &allocator, Some(&large)), Err(StateError::Full)));
    disk.set_capacity(None);
    log.save_signer(&signer(4), &allocator, None).unwrap();
    drop(log);
    let (_, found) = StateLog::open(disk.storage(), FILE_SYSTEM, key()).unwrap();
    assert_eq!((used(&found), found.unwrap().frozen), (4, None));
}
