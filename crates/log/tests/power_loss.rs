//! Durability of the log: whatever a sync acknowledged survives a power loss at any change of the disk, in
//! the order it was appended; and every single sync in the program is needed for that.

use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_log::{Log, LogConfig, Position, SyncSite};
use std::collections::BTreeSet;

/// All the places that sync. A new one must be added here, and so must prove that it is needed.
const SITES: [SyncSite; 6] = [
    SyncSite::COMMIT,
    SyncSite::SEAL,
    SyncSite::SEGMENT_HEADER,
    SyncSite::SEGMENT_CREATED,
    SyncSite::RECOVERED_TAIL,
    SyncSite::SEGMENT_REMOVED,
];

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

/// The expected content of the log: record number n contains n and follows record n - 1.
#[derive(Default)]
struct Model {
    next: u64,
    /// Records before this were passed to the log, which may have failed after accepting them.
    attempted: u64,
    /// Everything before this was acknowledged, or read after a recovery.
    promised: u64,
    /// Records before this were in segments that were removed on purpose.
    removed_before: u64,
    /// Segments whose removal was acknowledged.
    removed: BTreeSet<u32>,
    /// First record of each segment.
    firsts: Vec<(u32, u64)>,
}

fn config() -> LogConfig {
    LogConfig { segment_bytes: 2048, buffer_bytes: 256, known_durable: Position::START }
}

fn payload(number: u64) -> Vec<u8> {
    let length = 8 + (number * 37 % 300) as usize;
    number.to_le_bytes().into_iter().cycle().take(length).collect()
}

/// Opens the log and compares its content with the model. Everything read counts as promised from then on.
fn recover(disk: &PowerLoss, model: &mut Model) -> Result<Log, String> {
    let (log, recovery) = Log::open(disk.storage(), config()).map_err(|error| format!("opening: {error}"))?;
    let mut expected: Option<u64> = None;
    model.firsts.clear();
    for head in recovery {
        let head = head.map_err(|error| format!("reading: {error}"))?;
        if model.removed.contains(&head.position.segment) {
            return Err(format!("removed segment {} came back", head.position.segment));
        }
        let record = log.read(head.position, 0).map_err(|error| format!("reading: {error}"))?;
        let number = u64::from_le_bytes(record.body[..8].try_into().unwrap());
        if record.body != payload(number) || record.kind != number as u8 {
            return Err(format!("record {number} was altered"));
        }
        match expected {
            None if number > model.removed_before => return Err(format!("the log begins with {number}")),
            // A removal that a crash cut short took some segments and left others.
            Some(expected) if number != expected && number > model.removed_before => {
                return Err(format!("{number} in place of {expected}"));
            }
            _ => {}
        }
        expected = Some(number + 1);
        if model.firsts.last().is_none_or(|(segment, _)| *segment != head.position.segment) {
            model.firsts.push((head.position.segment, number));
        }
    }
    let end = expected.unwrap_or(0);
    if end < model.promised {
        return Err(format!("the log ends before {end}, but {} were promised", model.promised));
    }
    if end > model.attempted {
        return Err(format!("record {} was never appended", end - 1));
    }
    (model.next, model.attempted, model.promised) = (end, end, end);
    Ok(log)
}

/// Works until done or until the power fails.
fn work(
    disk: &PowerLoss,
    log: &Log,
    model: &mut Model,
    random: &mut Random,
    steps: u64,
) -> Result<(), String> {
    for _ in 0..steps {
        let act = random.below(10);
        if act <= 5 {
            model.attempted = model.next + 1;
        }
        let done = match act {
            0..=5 => log.append(model.next as u8, &payload(model.next)).map(|at| {
                if model.firsts.last().is_none_or(|(segment, _)| *segment != at.segment) {
                    model.firsts.push((at.segment, model.next));
                }
                model.next += 1;
            }),
            6 | 7 => log.sync().map(|()| model.promised = model.next),
            8 => log.seal(),
            _ => {
                let sealed = log.sealed_segments();
                let count = sealed.len().saturating_sub(3);
                let gone: Vec<u32> = sealed[..count].iter().map(|(number, _)| *number).collect();
                let kept = sealed.get(count).map(|(number, _)| *number);
                if let Some((_, first)) = kept.and_then(|kept| model.firsts.iter().find(|(n, _)| *n >= kept))
                {
                    model.removed_before = model.removed_before.max(*first);
                }
                log.remove_segments(&gone).map(|()| model.removed.extend(gone))
            }
        };
        match done {
            Ok(()) => {}
            Err(_) if disk.is_down() => return Ok(()),
            Err(error) => return Err(format!("working: {error}")),
        }
    }
    Ok(())
}

/// One story: a life that the power loss at change `crash_at` ends, a short one, and a last look.
fn story(seed: u64, crash_at: u64, disabled: Option<SyncSite>) -> Result<BTreeSet<SyncSite>, String> {
    let disk = PowerLoss::new(seed ^ crash_at << 20);
    disk.disable(disabled);
    let mut random = Random(seed);
    let mut model = Model::default();
    let mut crash = crash_at;
    for life in 0..4 {
        disk.crash_after(if life == 3 { u64::MAX / 2 } else { crash });
        let result = recover(&disk, &mut model);
        match result {
            Ok(log) => work(&disk, &log, &mut model, &mut random, if life == 0 { 60 } else { 6 })?,
            Err(_) if disk.is_down() => {}
            Err(error) => return Err(format!("life {life}: {error}")),
        }
        // A process that is killed leaves its writes to the kernel, and the machine may stop later.
        disk.restart(if (seed + crash_at + life).is_multiple_of(3) { Crash::Kill } else { Crash::PowerLoss });
        crash = random.below(30);
    }
    recover(&disk, &mut model)?;
    Ok(disk.sites().into_keys().collect())
}

/// Number of changes that a run without a crash makes.
fn changes(seed: u64) -> u64 {
    let disk = PowerLoss::new(seed);
    let mut model = Model::default();
    let log = recover(&disk, &mut model).unwrap();
    work(&disk, &log, &mut model, &mut Random(seed), 60).unwrap();
    disk.changes()
}

/// Proves that no crash at any change of the disk loses, alters or reorders what was promised.
#[test]
fn nothing_promised_is_lost_at_any_change() {
    let mut sites = BTreeSet::new();
    for seed in 0..100 {
        for crash_at in 0..changes(seed) {
            match story(seed, crash_at, None) {
                Ok(seen) => sites.extend(seen),
                Err(error) => panic!("seed {seed}, crash at {crash_at}: {error}"),
            }
        }
    }
    assert_eq!(sites, SITES.into_iter().collect(), "the list of sites is complete");
}

/// Proves that every sync is needed: switching off any one of them loses something that was promised.
#[test]
fn every_sync_is_needed() {
    for site in SITES {
        let caught = (0..200).any(|seed| {
            (0..changes(seed)).step_by(3).any(|crash_at| story(seed, crash_at, Some(site)).is_err())
        });
        assert!(caught, "nothing depends on {site:?}");
    }
}
