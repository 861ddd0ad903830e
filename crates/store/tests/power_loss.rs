//! Durability of the store: whatever was acknowledged survives a power loss at any change of the disk,
//! through commits, drops, checkpoints, collections and rebuilds; and every single sync in the program is
//! needed.

use crate::common;

use common::*;
use holdfast_content::DeviceId;
use holdfast_crypto::{Digest, Domain, SigningKey};
use holdfast_log::SyncSite;
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_store::{DecrefOutcome, LogStore, RecoveredOrdering, StoreConfig, signed_block_bytes};
use std::collections::{BTreeMap, BTreeSet};

/// All the places that sync. A new one must be added here, and so must prove that it is needed.
const SITES: [SyncSite; 11] = [
    SyncSite::COMMIT,
    SyncSite::SEAL,
    SyncSite::SEGMENT_HEADER,
    SyncSite::SEGMENT_CREATED,
    SyncSite::RECOVERED_TAIL,
    SyncSite::SEGMENT_REMOVED,
    SyncSite("store: format file"),
    SyncSite("store: index"),
    SyncSite("store: rebuilt index in its place"),
    SyncSite("store: log before index checkpoint"),
    SyncSite("store: moved records before their segment is removed"),
];

const NUMBERS: u64 = 40;
/// Records that a checkpoint itself may append: drops of duplicates it met.
const DUPLICATES: u64 = 2;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

/// A value and what it was since it was last acknowledged: a crash may bring back any of those.
#[derive(Clone, Debug)]
struct Volatile<T> {
    since: Vec<T>,
}

impl<T: Clone + PartialEq + std::fmt::Debug> Volatile<T> {
    fn new(value: T) -> Self {
        Volatile { since: vec![value] }
    }
    fn now(&self) -> &T {
        self.since.last().unwrap()
    }
    fn set(&mut self, value: T) {
        self.since.push(value);
    }
    fn acknowledge(&mut self) {
        self.since.drain(..self.since.len() - 1);
    }
    /// Updates the model with the result of a recovery.
    fn recovered(&mut self, what: &str, found: T) -> Result<(), String> {
        if !self.since.contains(&found) {
            return Err(format!("{what}: found {found:?}, was {:?}", self.since));
        }
        self.since = vec![found];
        Ok(())
    }
}

struct Model {
    present: Vec<Volatile<bool>>,
    ordering: Volatile<RecoveredOrdering>,
    signed: Volatile<u64>,
    removed: BTreeSet<u32>,
    /// Most records that may have been appended since the last checkpoint that was acknowledged.
    since_checkpoint: u64,
    now_ns: i64,
    serial: u64,
}

impl Model {
    fn new() -> Model {
        Model {
            present: (0..NUMBERS).map(|_| Volatile::new(false)).collect(),
            ordering: Volatile::new((None, Vec::new())),
            signed: Volatile::new(0),
            removed: BTreeSet::new(),
            since_checkpoint: u64::MAX / 2,
            now_ns: 0,
            serial: 0,
        }
    }

    fn acknowledge(&mut self) {
        self.present.iter_mut().for_each(Volatile::acknowledge);
        self.ordering.acknowledge();
        self.signed.acknowledge();
    }
}

fn key() -> SigningKey {
    SigningKey::from_seed(&[5; 32])
}

fn config() -> StoreConfig {
    StoreConfig { segment_bytes: 4096, ..common::config() }
}

fn presence(store: &LogStore) -> Result<Vec<bool>, String> {
    (0..NUMBERS)
        .map(|number| {
            let (address, block) = chunk_of(number, 200);
            match store.retrieve(FS, address).map_err(|error| error.to_string())? {
                None => Ok(false),
                Some((header, found)) if found == block && header.owner == DeviceId(number as u32) => {
                    Ok(true)
                }
                Some(_) => Err(format!("block {number} was altered")),
            }
        })
        .collect()
}

/// Opens the store and compares its content with the model. Everything read counts as acknowledged from then
/// on.
fn recover(disk: &PowerLoss, model: &mut Model, rebuild: bool) -> Result<LogStore, String> {
    let open = if rebuild { LogStore::open_rebuilding } else { LogStore::open };
    let store = open(disk.storage(), config()).map_err(|error| format!("opening: {error}"))?;
    let recovery = store.recovery();
    if recovery.replayed_records > model.since_checkpoint && !rebuild {
        return Err(format!("a checkpoint of the index was lost: {recovery:?}"));
    }
    for (number, found) in presence(&store)?.into_iter().enumerate() {
        model.present[number].recovered(&format!("block {number}"), found)?;
    }
    let ordering = store.recover_ordering(FS).map_err(|error| error.to_string())?;
    model.ordering.recovered("ordering", ordering)?;
    let signed = store.vretrieve(FS, &key().public(), 0, None).map_err(|error| error.to_string())?;
    let version = signed.map_or(0, |found| u64::from_le_bytes(found.block.try_into().unwrap()));
    model.signed.recovered("signed block", version)?;
    for name in disk.names() {
        let number = name.strip_prefix("segment-").and_then(|rest| rest.strip_suffix(".log"));
        if number.is_some_and(|number| model.removed.contains(&number.parse().unwrap())) {
            return Err(format!("{name} came back"));
        }
    }
    let scrub = store.scrub(&mut |_, _| {}).map_err(|error| error.to_string())?;
    if !scrub.is_clean() {
        return Err(format!("{scrub:?}"));
    }
    model.since_checkpoint = DUPLICATES;
    Ok(store)
}

fn step(store: &LogStore, model: &mut Model, random: &mut Random) -> Result<(), String> {
    let fail = |error: holdfast_store::StoreError| error.to_string();
    let number = random.below(NUMBERS);
    let owner = DeviceId(number as u32);
    let (address, block) = chunk_of(number, 200);
    model.now_ns += SECOND;
    model.serial += 1;
    model.since_checkpoint += 2;
    match random.below(20) {
        0..=5 => {
            model.present[number as usize].set(true);
            store.store(FS, owner, vec![(address, block)], model.now_ns).map_err(fail)?;
        }
        6..=8 => {
            let mut next = model.ordering.now().clone();
            next.1.push(model.serial.to_le_bytes().to_vec());
            model.ordering.set(next);
            store.append_ordering(FS, &model.serial.to_le_bytes()).map_err(fail)?;
        }
        9 => {
            let payload = model.serial.to_le_bytes().to_vec();
            model.ordering.set((Some(payload.clone()), Vec::new()));
            store.ordering_checkpoint(FS, &payload).map_err(fail)?;
        }
        10 | 11 => {
            let present = &mut model.present[number as usize];
            let before = *present.now();
            present.set(false);
            if store.decref(FS, owner, address, model.now_ns).map_err(fail)? != DecrefOutcome::Dropped {
                present.set(before);
            }
        }
        12 => {
            let version = model.serial;
            model.signed.set(version);
            let block = version.to_le_bytes();
            let signature = key().sign(Domain::SignedBlock, &signed_block_bytes(&FS, 0, &block));
            store.vstore(FS, &key().public(), 0, &block, signature, model.now_ns).map_err(fail)?;
        }
        13 => {
            let here = store.contains_renew(FS, address, model.now_ns).map_err(fail)?;
            if here != *model.present[number as usize].now() {
                return Err(format!("\"I have it\" of {number} is {here}"));
            }
            if here {
                model.acknowledge();
            }
        }
        14 => {
            store.checkpoint().map_err(fail)?;
            model.acknowledge();
            model.since_checkpoint = DUPLICATES;
        }
        15 => collect(store, model, random)?,
        _ => {
            store.commit().map_err(fail)?;
            model.acknowledge();
        }
    }
    Ok(())
}

/// Keeps a third of the blocks through a root and two by "I have it"; the rest must go.
fn collect(store: &LogStore, model: &mut Model, random: &mut Random) -> Result<(), String> {
    let fail = |error: holdfast_store::StoreError| error.to_string();
    model.now_ns += 3 * 3600 * SECOND;
    // It appends as many records as it moves.
    model.since_checkpoint += 1000;
    let mut kept = BTreeSet::new();
    for number in 0..NUMBERS {
        if random.below(3) == 0 && *model.present[number as usize].now() {
            kept.insert(number);
        }
    }
    let addresses: Vec<Digest> = kept.iter().map(|number| chunk_of(*number, 200).0).collect();
    let root = node(model.serial, addresses);
    store.store(FS, DeviceId(99), vec![root.clone()], model.now_ns).map_err(fail)?;
    for _ in 0..2 {
        let number = random.below(NUMBERS);
        if store.contains_renew(FS, chunk_of(number, 200).0, model.now_ns).map_err(fail)? {
            kept.insert(number);
            model.acknowledge();
        }
    }
    for number in (0..NUMBERS).filter(|number| !kept.contains(number)) {
        model.present[number as usize].set(false);
    }
    let report = store.collect(FS, &[root.0], model.now_ns, &mut |_| {}).map_err(fail)?;
    if !report.missing.is_empty() || !report.damaged.is_empty() {
        return Err(format!("{report:?}"));
    }
    model.acknowledge();
    model.since_checkpoint = DUPLICATES;
    model.removed.extend(report.removed);
    Ok(())
}

/// One history: a run that a power loss at change `crash_at` ends, three short runs, and a comparison with a
/// rebuilt index, which must agree.
fn story(seed: u64, crash_at: u64, disabled: Option<SyncSite>) -> Result<BTreeMap<SyncSite, u64>, String> {
    let disk = PowerLoss::new(seed ^ crash_at << 20);
    disk.disable(disabled);
    let mut random = Random(seed);
    let mut model = Model::new();
    let mut crash = crash_at;
    for life in 0..4 {
        disk.crash_after(if life == 3 { u64::MAX / 2 } else { crash });
        let mut store = None;
        let rebuild = life == 2 && seed % 2 == 1;
        let lived = recover(&disk, &mut model, rebuild).and_then(|recovered| {
            let store = store.insert(recovered);
            (0..if life == 0 { 60 } else { 12 }).try_for_each(|_| step(store, &mut model, &mut random))
        });
        match lived {
            Err(error) if !disk.is_down() => return Err(format!("life {life}: {error}")),
            _ => {}
        }
        disk.restart(if (seed + crash_at + life).is_multiple_of(3) { Crash::Kill } else { Crash::PowerLoss });
        drop(store);
        crash = random.below(120);
    }
    let store = recover(&disk, &mut model, false)?;
    let found = presence(&store)?;
    drop(store);
    let rebuilt = LogStore::open_rebuilding(disk.storage(), config()).map_err(|error| error.to_string())?;
    if presence(&rebuilt)? != found {
        return Err("the rebuilt index differs".into());
    }
    recover_equal(&rebuilt, &model)?;
    Ok(disk.sites())
}

fn recover_equal(store: &LogStore, model: &Model) -> Result<(), String> {
    let ordering = store.recover_ordering(FS).map_err(|error| error.to_string())?;
    if ordering != *model.ordering.now() {
        return Err("the rebuilt ordering differs".into());
    }
    Ok(())
}

/// Number of changes that the first run makes without a crash.
fn changes(seed: u64) -> u64 {
    let disk = PowerLoss::new(seed);
    let mut model = Model::new();
    let mut random = Random(seed);
    let store = recover(&disk, &mut model, false).unwrap();
    for _ in 0..60 {
        step(&store, &mut model, &mut random).unwrap();
    }
    disk.changes()
}

/// Proves that no crash at any change of the disk loses, alters, reorders or brings back what it may not.
#[test]
fn nothing_acknowledged_is_lost_at_any_change() {
    let mut sites = BTreeSet::new();
    for seed in 0..holdfast_testing::setting("HOLDFAST_SEEDS", 6) {
        // The first stories crash at every change, the others at every eleventh.
        let stride = if seed < 1 { 1 } else { 11 };
        for crash_at in (seed % stride..changes(seed)).step_by(stride as usize) {
            match story(seed, crash_at, None) {
                Ok(seen) => sites.extend(seen.into_keys()),
                Err(error) => panic!("seed {seed}, crash at {crash_at}: {error}"),
            }
        }
    }
    assert_eq!(sites, SITES.into_iter().collect(), "the list of sites is complete");
}

/// Proves that every sync is needed: switching off any one of them loses something that was acknowledged.
#[test]
fn every_sync_is_needed() {
    for site in SITES {
        let caught = (0..60)
            .any(|seed| (seed..changes(seed)).step_by(17).any(|at| story(seed, at, Some(site)).is_err()));
        assert!(caught, "nothing depends on {site:?}");
    }
}
