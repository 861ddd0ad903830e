//! Volumes against crashes at every write of either device, against a reference model, and against an
//! attacker who has the disk.

use crate::buffers::Buffers;
use crate::layout::BLOCK_BYTES;
use crate::{Options, Report, Volume, VolumeError, VolumeKey};
use holdfast_log::ring::{Anchor, Lsn, RingError};
use holdfast_log::simulated_device::{Devices, Failure, Unflushed};
use std::collections::BTreeMap;

const NAME: [u8; 16] = *b"a tested volume.";
const BLOCKS: u64 = 700;
const DISK: usize = 0;
const LOG: usize = 1;

type Block = [u8; BLOCK_BYTES];

fn key() -> VolumeKey {
    VolumeKey::new(&[3; 32], &NAME)
}

/// A block's initial content.
fn original(block: u64) -> Block {
    let mut bytes = [0; BLOCK_BYTES];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes[4000] = 1;
    bytes
}

fn content(number: u64) -> Block {
    let mut bytes = [number as u8; BLOCK_BYTES];
    for (at, byte) in bytes.iter_mut().enumerate().step_by(7) {
        *byte = (number as usize).wrapping_mul(31).wrapping_add(at * 13) as u8;
    }
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) % limit
    }
}

/// A disk with data, taken over.
fn protected() -> Devices {
    let devices = Devices::new();
    devices.record(false);
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(original).collect();
    devices.add_with("disk", bytes);
    devices.add("log", 2 << 20);
    let (disk, log) = (devices.device(DISK), devices.device(LOG));
    Volume::format(&*disk, &*log, &key(), Some(1 << 20)).expect("formatted");
    assert!(Volume::adopt(disk, log, &key(), [1; 16], None, &|_, _| true).expect("adopted"));
    devices.forget();
    devices.record(true);
    devices
}

fn open(devices: &Devices, anchor: Option<&Anchor>) -> Result<(Volume, Report), VolumeError> {
    let options = Options { dirty_max: 128, nodes_max: 16, ..Options::default() };
    Volume::open(devices.device(DISK), devices.device(LOG), &key(), options, anchor, [9; 16])
}

fn read(volume: &Volume, block: u64) -> Result<Block, VolumeError> {
    let mut bytes = [0; BLOCK_BYTES];
    volume.read(block * BLOCK_BYTES as u64, &mut bytes)?;
    Ok(bytes)
}

/// The possible contents of blocks after a crash: for blocks written since the last flush, all contents since
/// then.
#[derive(Clone, Default)]
struct Model {
    flushed: BTreeMap<u64, Block>,
    since: BTreeMap<u64, Vec<Block>>,
}

impl Model {
    fn now(&self, block: u64) -> Block {
        let newest = self.since.get(&block).and_then(|list| list.last());
        *newest.or_else(|| self.flushed.get(&block)).unwrap_or(&original(block))
    }

    fn put(&mut self, block: u64, bytes: Block) {
        self.since.entry(block).or_default().push(bytes);
    }

    fn flush(&mut self) {
        for (block, mut list) in std::mem::take(&mut self.since) {
            self.flushed.insert(block, list.pop().expect("one at least"));
        }
    }

    fn allows(&self, block: u64, bytes: &Block) -> bool {
        let before = self.flushed.get(&block).copied().unwrap_or_else(|| original(block));
        before == *bytes || self.since.get(&block).is_some_and(|list| list.contains(bytes))
    }
}

/// One step of a program or of the background, done to both.
fn step(random: &mut Random, number: u64, volume: &Volume, model: &mut Model) {
    let block = random.below(BLOCKS);
    match random.below(20) {
        0..8 => {
            let count = 1 + random.below(4).min(BLOCKS - block - 1);
            let bytes: Vec<u8> = (0..count).flat_map(|at| content(number * 64 + at)).collect();
            for at in 0..count {
                model.put(block + at, content(number * 64 + at));
            }
            volume.write(block * BLOCK_BYTES as u64, &bytes).expect("written");
        }
        8..10 => {
            let count = 40.min(BLOCKS - block);
            let bytes: Vec<u8> = (0..count).flat_map(|at| content(number * 64 + at)).collect();
            for at in 0..count {
                model.put(block + at, content(number * 64 + at));
            }
            volume.write(block * BLOCK_BYTES as u64, &bytes).expect("written");
        }
        10..13 => {
            // A few sectors of two neighbours.
            let block = block.min(BLOCKS - 2);
            let skipped = 512 * random.below(8) as usize;
            let part = vec![number as u8; 512 * (1 + random.below(8)) as usize];
            let mut both = [model.now(block), model.now(block + 1)].concat();
            both[skipped..skipped + part.len()].copy_from_slice(&part);
            volume.write(block * BLOCK_BYTES as u64 + skipped as u64, &part).expect("written");
            for (at, bytes) in both.chunks_exact(BLOCK_BYTES).enumerate() {
                let bytes = bytes.try_into().expect("a block");
                if model.now(block + at as u64) != bytes {
                    model.put(block + at as u64, bytes);
                }
            }
        }
        13 => {
            let count = (1 + random.below(30)).min(BLOCKS - block);
            volume.discard(block * BLOCK_BYTES as u64, count * BLOCK_BYTES as u64).expect("discarded");
            for at in 0..count {
                model.put(block + at, [0; BLOCK_BYTES]);
            }
        }
        14..16 => volume.inner.work().expect("worked"),
        16 => volume.inner.checkpoint_all().expect("made"),
        17..19 => {
            volume.flush().expect("flushed");
            model.flush();
        }
        _ => assert!(read(volume, block).expect("read") == model.now(block), "block {block}"),
    }
}

/// Proves: through any crash, with writes of either device since its last flush kept, lost, reordered or
/// torn, every block has its content of the last flush or one written since; nothing else is refused, and the
/// volume continues.
fn crashes(seed: u64, steps: u64, states: u64) {
    let devices = protected();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut model = Model::default();
    let (volume, _) = open(&devices, None).expect("opens");
    // The model as each step found it and as it left it.
    let mut history = vec![(devices.events(), model.clone())];
    let opened = devices.events();
    for number in 1..=steps {
        let before = model.clone();
        step(&mut random, number, &volume, &mut model);
        // While a step runs, what it writes may be there, and what it flushes is not promised yet.
        let mut during = before;
        for (block, list) in &model.since {
            during.since.insert(*block, list.clone());
        }
        history.push((devices.events(), during));
        history.push((devices.events(), model.clone()));
    }
    drop(volume);
    for state in 0..states {
        let events = opened + random.below((devices.events() - opened + 1) as u64) as usize;
        let unflushed = match random.below(4) {
            0 => Unflushed::Kept,
            1 => Unflushed::Lost,
            _ => Unflushed::Torn(seed.wrapping_mul(1000) + state),
        };
        let at = history.iter().rposition(|(end, _)| *end <= events).expect("the first");
        // Of several steps without a write the last counts; the next step may be in progress.
        let mut allowed = history[at].1.clone();
        if let Some((_, next)) = history.get(at + 1) {
            for (block, list) in &next.since {
                allowed.since.entry(*block).or_default().extend(list);
            }
        }
        let crashed = devices.crashed(events, unflushed);
        let what = format!("seed {seed}, {events} events, {unflushed:?}");
        let (volume, report) = open(&crashed, None).unwrap_or_else(|error| panic!("{what}: {error}"));
        for block in 0..BLOCKS {
            match read(&volume, block) {
                Ok(bytes) => assert!(allowed.allows(block, &bytes), "{what}: block {block}"),
                Err(VolumeError::BadBlock { .. }) => {
                    let is_listed = report.refused.iter().any(|bad| bad.number == block);
                    assert!(
                        is_listed && allowed.since.contains_key(&block),
                        "{what}: block {block} is refused"
                    );
                    volume.write(block * BLOCK_BYTES as u64, &content(1)).expect("written");
                    assert!(read(&volume, block).expect("it is good again") == content(1));
                }
                Err(error) => panic!("{what}: {error}"),
            }
        }
        // And once more, from that state.
        let place = random.below(BLOCKS);
        volume.write(place * BLOCK_BYTES as u64, &content(99)).expect("written");
        volume.flush().expect("flushed");
        let again = crashed.crashed(crashed.events(), Unflushed::Lost);
        drop(volume);
        let (volume, report) = open(&again, None).unwrap_or_else(|error| panic!("{what}, again: {error}"));
        assert!(read(&volume, place).expect("read") == content(99), "{what}");
        assert!(report.refused.is_empty(), "{what}");
    }
}

#[test]
fn crash_states() {
    for seed in 1..=holdfast_testing::setting("HOLDFAST_SEEDS", 6) {
        crashes(seed, 120, 60);
    }
}

/// Proves: a disk is adopted as it is, in steps, and reads as before. What is written before closing is there
/// afterwards, and the disk alone is a plain disk with the same bytes.
#[test]
fn adopted_and_given_back() {
    let devices = Devices::new();
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(original).collect();
    devices.add_with("disk", bytes.clone());
    devices.add("log", 2 << 20);
    let (disk, log) = (devices.device(DISK), devices.device(LOG));
    Volume::format(&*disk, &*log, &key(), Some(1 << 20)).expect("formatted");
    let interrupted = Volume::adopt(disk.clone(), log.clone(), &key(), [1; 16], None, &|done, _| done < 300);
    assert!(!interrupted.expect("no error"));
    assert!(matches!(open(&devices, None), Err(VolumeError::NotAdopted { done: 512, blocks: BLOCKS })));
    assert!(Volume::adopt(disk, log, &key(), [2; 16], None, &|_, _| true).expect("adopted"));
    assert!(devices.bytes(DISK) == bytes);
    let (volume, _) = open(&devices, None).expect("opens");
    for block in 0..BLOCKS {
        assert!(read(&volume, block).expect("read") == original(block));
    }
    volume.write(5 * BLOCK_BYTES as u64, &content(7)).expect("written");
    volume.close().expect("closed");
    let mut expected = bytes;
    expected[5 * BLOCK_BYTES..6 * BLOCK_BYTES].copy_from_slice(&content(7));
    assert!(devices.bytes(DISK) == expected);
    let (_, report) = open(&devices, Some(&volume.anchor())).expect("opens");
    assert_eq!((report.examined, report.replayed, report.refused.len()), (0, 0, 0));
}

/// Proves: if power is cut while parts of blocks are written, even in one long write, the rest of those
/// blocks, which was acknowledged before, is there.
#[test]
fn parts_of_blocks_that_are_cut_off() {
    let devices = protected();
    let (volume, _) = open(&devices, None).expect("opens");
    let acknowledged = devices.events();
    let part = |block: u64| if block == 10 { 1024..BLOCK_BYTES } else { 0..1024 };
    volume.write(10 * BLOCK_BYTES as u64 + 1024, &[9; 40 * BLOCK_BYTES]).expect("written");
    volume.work().expect("on the disk");
    for events in acknowledged..=devices.events() {
        for seed in 1..40 {
            let (volume, _) = open(&devices.crashed(events, Unflushed::Torn(seed)), None).expect("opens");
            for block in [10, 50] {
                let found = read(&volume, block).expect("it is not refused");
                let mut new = original(block);
                new[part(block)].fill(9);
                assert!(found == original(block) || found == new, "block {block}, {events} events");
            }
        }
    }
}

/// Attacks on the devices, and the verdict on each.
#[test]
fn verdicts() {
    let devices = protected();
    let (volume, _) = open(&devices, None).expect("opens");
    volume.write(10 * BLOCK_BYTES as u64, &content(1)).expect("written");
    volume.flush().expect("flushed");
    volume.inner.checkpoint_all().expect("made");
    let older = (devices.bytes(DISK), devices.bytes(LOG));
    let large: Vec<u8> = (0..40).flat_map(|at| content(100 + at)).collect();
    volume.write(10 * BLOCK_BYTES as u64, &large).expect("written");
    volume.write(300 * BLOCK_BYTES as u64, &content(5)).expect("written");
    volume.flush().expect("flushed");
    let open_state = (devices.bytes(DISK), devices.bytes(LOG));
    let open_anchor = volume.anchor();
    volume.close().expect("closed");
    let anchor = volume.anchor();
    let closed_state = (devices.bytes(DISK), devices.bytes(LOG));
    let place = |block: usize| block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
    let other = {
        let devices = Devices::new();
        devices.add_with("disk", (0..BLOCKS).flat_map(|block| content(block + 5000)).collect());
        devices.add("log", 2 << 20);
        let (disk, log) = (devices.device(DISK), devices.device(LOG));
        let key = VolumeKey::new(&[3; 32], b"another volume..");
        Volume::format(&*disk, &*log, &key, Some(1 << 20)).expect("formatted");
        Volume::adopt(disk, log, &key, [1; 16], None, &|_, _| true).expect("adopted");
        (devices.bytes(DISK), devices.bytes(LOG))
    };
    // The blocks that a reader is refused, or why the volume cannot be opened.
    let verdict = |state: &(Vec<u8>, Vec<u8>),
                   anchor: Option<&Anchor>,
                   change: &dyn Fn(&mut [u8], &mut [u8])| {
        let (mut disk, mut log) = state.clone();
        change(&mut disk, &mut log);
        let attacked = Devices::new();
        attacked.add_with("disk", disk);
        attacked.add_with("log", log);
        match open(&attacked, anchor) {
            Ok((volume, _)) => {
                let expected = |block: u64| match block {
                    10..50 => content(100 + block - 10),
                    300 => content(5),
                    _ => original(block),
                };
                let mut refused = Vec::new();
                for block in 0..BLOCKS {
                    match read(&volume, block) {
                        Ok(bytes) => assert!(bytes == expected(block), "a wrong block {block} was served"),
                        Err(VolumeError::BadBlock { .. }) => refused.push(block),
                        Err(VolumeError::BadMap { .. }) => return "bad map".to_owned(),
                        Err(error) => panic!("{error}"),
                    }
                }
                format!("refused {refused:?}")
            }
            Err(VolumeError::Ring(RingError::Damaged { .. })) => "log damaged".to_owned(),
            Err(VolumeError::Ring(RingError::RolledBack { .. })) => "rolled back".to_owned(),
            Err(VolumeError::Ring(RingError::Forked { .. })) => "forked".to_owned(),
            Err(VolumeError::Ring(RingError::NotOurs { .. }) | VolumeError::NotOurs { .. }) => {
                "not ours".to_owned()
            }
            Err(VolumeError::BadMap { .. }) => "bad map".to_owned(),
            Err(error) => panic!("{error}"),
        }
    };
    let none: &dyn Fn(&mut [u8], &mut [u8]) = &|_, _| ();
    assert_eq!(verdict(&closed_state, Some(&anchor), none), "refused []");
    // A crash in the presence of an attacker: flushed content cannot be undone.
    assert_eq!(verdict(&open_state, Some(&open_anchor), none), "refused []");
    type Change<'a> = (&'a str, Box<dyn Fn(&mut [u8], &mut [u8]) + 'a>, &'a str);
    let table: Vec<Change<'_>> = vec![
        ("a byte of a block flipped", Box::new(|disk, _| disk[place(20).start + 7] ^= 1), "refused [20]"),
        (
            "two blocks swapped",
            Box::new(|disk, _| {
                let copy = disk[place(30)].to_vec();
                disk.copy_within(place(31), place(30).start);
                disk[place(31)].copy_from_slice(&copy);
            }),
            "refused [30, 31]",
        ),
        (
            "a write misdirected",
            Box::new(|disk, _| disk.copy_within(place(12), place(600).start)),
            "refused [600]",
        ),
        (
            "an older block put back",
            Box::new(|disk, _| disk[place(10)].copy_from_slice(&older.0[place(10)])),
            "refused [10]",
        ),
        (
            "a write dropped",
            Box::new(|disk, _| disk[place(11)].copy_from_slice(&original(11))),
            "refused [11]",
        ),
        (
            "a block torn",
            Box::new(|disk, _| {
                disk[place(12).start + 512..place(12).end].copy_from_slice(&original(12)[512..])
            }),
            "refused [12]",
        ),
        (
            "the disk put back",
            Box::new(|disk, _| disk.copy_from_slice(&older.0)),
            "refused all that was written since",
        ),
        ("the log put back", Box::new(|_, log| log.copy_from_slice(&older.1)), "rolled back"),
        (
            "disk and log put back",
            Box::new(|disk, log| {
                disk.copy_from_slice(&older.0);
                log.copy_from_slice(&older.1);
            }),
            "rolled back",
        ),
        (
            "the disk of another volume",
            Box::new(|disk, _| disk.copy_from_slice(&other.0)),
            "refused everything",
        ),
        ("the log of another volume", Box::new(|_, log| log.copy_from_slice(&other.1)), "not ours"),
        (
            "the header altered",
            Box::new(|_, log| {
                log[33] ^= 1;
                log[BLOCK_BYTES + 33] ^= 1;
            }),
            "not ours",
        ),
        (
            "the map altered",
            Box::new(|_, log| {
                let map = 2 * BLOCK_BYTES + (1 << 20);
                log[map..].iter_mut().step_by(BLOCK_BYTES).for_each(|byte| *byte ^= 1);
            }),
            "bad map",
        ),
        (
            "the map put back",
            Box::new(|_, log| {
                let map = 2 * BLOCK_BYTES + (1 << 20);
                log[map..].copy_from_slice(&older.1[map..]);
            }),
            "bad map",
        ),
    ];
    for (what, change, expected) in &table {
        let found = verdict(&closed_state, Some(&anchor), &**change);
        let expected = match *expected {
            "refused all that was written since" => {
                format!("refused {:?}", (10..50).chain([300]).collect::<Vec<u64>>())
            }
            "refused everything" => format!("refused {:?}", (0..BLOCKS).collect::<Vec<u64>>()),
            other => other.to_owned(),
        };
        assert_eq!(found, expected, "{what}");
        if what.contains("disk and log put back") {
            continue;
        }
        // Also during a crash nothing wrong is served, whatever the verdict.
        verdict(&open_state, Some(&open_anchor), &**change);
    }
}

/// Proves: scrubbing finds all bad blocks and nothing else. A replica repairs a block if it has what was
/// written, and not otherwise. Writing a bad block repairs it too. A volume can be adopted with another key,
/// verified.
#[test]
fn scrubbed_and_repaired() {
    let devices = protected();
    let (volume, _) = open(&devices, None).expect("opens");
    volume.write(10 * BLOCK_BYTES as u64, &content(1)).expect("written");
    volume.discard(20 * BLOCK_BYTES as u64, 5 * BLOCK_BYTES as u64).expect("discarded");
    volume.close().expect("closed");
    assert_eq!(volume.scrub(0..BLOCKS).expect("scrubbed"), []);
    let flip = |block: usize| devices.tamper(DISK, |disk| disk[block * BLOCK_BYTES + 99] ^= 4);
    [10, 22, 300, 301].into_iter().for_each(flip);
    devices.fail(Failure::Reads(DISK, 400 * BLOCK_BYTES as u64..401 * BLOCK_BYTES as u64));
    assert_eq!(volume.scrub(0..BLOCKS).expect("scrubbed"), [10, 300, 301, 400]);
    devices.heal();
    let bad: Vec<u64> = volume.bad_blocks().iter().map(|bad| bad.number).collect();
    assert_eq!(bad, [10, 300, 301]);
    assert!(!volume.repair(10, &original(10)).expect("no error"), "an older block is no replica");
    assert!(volume.repair(10, &content(1)).expect("repaired"));
    assert!(!volume.repair(300, &original(301)).expect("no error"));
    assert!(volume.repair(300, &original(300)).expect("repaired"));
    volume.write(301 * BLOCK_BYTES as u64, &content(8)).expect("written");
    assert_eq!(volume.scrub(0..BLOCKS).expect("scrubbed"), []);
    assert_eq!(volume.bad_blocks(), []);

    let another = VolumeKey::new(&[4; 32], b"another secret..");
    let second = devices.add("second log", 2 << 20);
    let (disk, log) = (devices.device(DISK), devices.device(second));
    Volume::format(&*disk, &*log, &another, Some(1 << 20)).expect("formatted");
    let adopt = || Volume::adopt(disk.clone(), log.clone(), &another, [1; 16], Some(&volume), &|_, _| true);
    flip(500);
    assert!(matches!(adopt(), Err(VolumeError::BadBlock { .. })), "what is bad is not taken over");
    flip(500);
    assert!(adopt().expect("adopted"));
    drop(volume);
    let options = Options::default();
    let (volume, _) =
        Volume::open(devices.device(DISK), devices.device(second), &another, options, None, [2; 16])
            .expect("opens");
    assert!(read(&volume, 10).expect("read") == content(1));
    assert!(read(&volume, 22).expect("read") == [0; BLOCK_BYTES]);
    assert_eq!(volume.scrub(0..BLOCKS).expect("scrubbed"), []);
}

/// Proves: after an error of either device nothing more is acknowledged, and what was acknowledged before is
/// there.
#[test]
fn devices_that_fail() {
    for failure in [
        Failure::Writes(DISK),
        Failure::Flushes(DISK),
        Failure::Writes(LOG),
        Failure::Flushes(LOG),
        Failure::Reads(LOG, 0..u64::MAX),
    ] {
        let devices = protected();
        let (volume, _) = open(&devices, None).expect("opens");
        volume.write(0, &content(1)).expect("written");
        volume.flush().expect("flushed");
        devices.fail(failure.clone());
        let large: Vec<u8> = (0..40).flat_map(|at| content(100 + at)).collect();
        let acknowledged = volume.write(20 * BLOCK_BYTES as u64, &large).and_then(|()| volume.flush());
        devices.heal();
        let reads_only = matches!(failure, Failure::Reads(..));
        assert!(reads_only || acknowledged.is_err(), "{failure:?}");
        assert!(reads_only || matches!(volume.flush(), Err(VolumeError::Stopped(_))), "{failure:?}");
        drop(volume);
        let (volume, _) = open(&devices, None).expect("opens");
        assert!(read(&volume, 0).expect("read") == content(1));
    }
}

/// Proves: content that was acknowledged and is only in the log is not replaced with what the disk had
/// before, although that has a hash in the log too.
#[test]
fn older_candidates() {
    let devices = protected();
    let (volume, _) = open(&devices, None).expect("opens");
    let large = |from: u64| (0..40).flat_map(|at| content(from + at)).collect::<Vec<u8>>();
    volume.write(0, &large(1000)).expect("written");
    volume.inner.hash_pass().expect("hashed");
    volume.inner.write_back(volume.inner.ring.end()).expect("written");
    for block in 0..40u64 {
        // Every other block, so that each one's content is in the log.
        let block = block * 2 % 40 + block / 20;
        volume.write(block * BLOCK_BYTES as u64, &content(2000 + block)).expect("written");
        volume.inner.hash_pass().expect("hashed");
    }
    let flushes = volume.statistics().disk_flushes;
    volume.flush().expect("flushed");
    assert_eq!(volume.statistics().disk_flushes, flushes, "the log suffices");
    volume.write(0, &large(3000)).expect("written");
    volume.inner.hash_pass().expect("hashed");
    volume.inner.ring.force(volume.inner.ring.end()).expect("forced");
    let crashed = devices.crashed(devices.events(), Unflushed::Kept);
    let (volume, report) = open(&crashed, None).expect("opens");
    assert_eq!((report.examined, report.replayed), (40, 40));
    for block in 0..40 {
        assert!(read(&volume, block).expect("read") == content(2000 + block));
    }
}

/// Proves: what a record describes reaches the disk as it was hashed, even if a program has overwritten it
/// since. So what a flush promises does not depend on other writers.
#[test]
fn overwritten_while_being_flushed() {
    let devices = protected();
    let (volume, _) = open(&devices, None).expect("opens");
    let large: Vec<u8> = (0..40).flat_map(|at| content(1000 + at)).collect();
    volume.write(0, &large).expect("written");
    volume.inner.hash_pass().expect("hashed");
    volume.write(0, &content(7)).expect("written");
    volume.inner.checkpoint(volume.inner.ring.end()).expect("made");
    assert!(devices.bytes(DISK)[..40 * BLOCK_BYTES] == large[..]);
    assert!(read(&volume, 0).expect("read") == content(7));
    let crashed = devices.crashed(devices.events(), Unflushed::Lost);
    let (volume, report) = open(&crashed, None).expect("opens");
    assert_eq!((report.examined, report.refused.len()), (0, 0));
    assert!(read(&volume, 0).expect("read") == content(1000));
}

/// Proves: a record that is being appended, whose blocks are not in the tables yet, counts as unstable, so
/// that nobody calls it stable or drops it.
#[test]
fn a_record_being_appended() {
    let mut buffers = Buffers::default();
    assert_eq!(buffers.oldest(), None);
    buffers.begin_append(Lsn(7));
    assert_eq!(buffers.oldest(), Some(Lsn(7)));
    buffers.discard(3..4, Lsn(9));
    buffers.end_append();
    assert_eq!(buffers.oldest(), Some(Lsn(9)));
}

/// Proves: programs that write the same blocks from many threads, whole and in part, with flushes and
/// background work, read what they wrote, also after the next opening; the log wraps around many times.
#[test]
fn threads() {
    let devices = protected();
    devices.record(false);
    let options = Options { dirty_max: 64, pause: std::time::Duration::from_millis(1), ..Options::default() };
    let (volume, _) = Volume::open(devices.device(DISK), devices.device(LOG), &key(), options, None, [9; 16])
        .expect("opens");
    volume.start().expect("started");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let volume = &volume;
            scope.spawn(move || {
                let mut random = Random(thread + 77);
                for number in 0..400u64 {
                    // Each has its own blocks, and its own sectors of one that they share.
                    let block = 100 + thread * 100 + random.below(90);
                    let made = content(thread * 1000 + number);
                    volume.write(block * BLOCK_BYTES as u64, &made).expect("written");
                    volume.write(thread * 1024, &[number as u8; 1024]).expect("written");
                    if number % 16 == 0 {
                        volume.flush().expect("flushed");
                    }
                    assert!(read(volume, block).expect("read") == made);
                    let mut part = [0; 1024];
                    volume.read(thread * 1024, &mut part).expect("read");
                    assert_eq!(part, [number as u8; 1024]);
                }
            });
        }
    });
    volume.close().expect("closed");
    assert!(volume.statistics().checkpoints > 3);
    let (again, report) = open(&devices, Some(&volume.anchor())).expect("opens");
    assert!(report.refused.is_empty());
    for thread in 0..4 {
        let mut part = [0; 1024];
        again.read(thread * 1024, &mut part).expect("read");
        assert_eq!(part, [143; 1024]);
    }
}

/// The anchors that a keeper was given, and whether it fails.
#[derive(Default)]
struct Kept {
    anchors: parking_lot::Mutex<Vec<Anchor>>,
    fails: std::sync::atomic::AtomicBool,
}

impl crate::AnchorKeeper for Kept {
    fn keep(&self, anchor: &Anchor) -> Result<(), String> {
        if self.fails.load(std::sync::atomic::Ordering::SeqCst) {
            return Err("no room".to_owned());
        }
        self.anchors.lock().push(*anchor);
        Ok(())
    }
}

/// Proves: with a keeper, a flush is acknowledged only once an anchor is durable with which no state of disk
/// and log without the flushed content can be opened. If the keeper fails, the flush fails, the volume
/// continues, the next flush may succeed, and closing succeeds.
#[test]
fn the_anchor_comes_before_the_acknowledgement() {
    let devices = protected();
    let (volume, _) = open(&devices, None).expect("opened");
    let kept = std::sync::Arc::new(Kept::default());
    volume.keep_anchor_at_every_flush(kept.clone());
    volume.write(0, &content(1)).expect("written");
    volume.flush().expect("flushed");
    let first = *kept.anchors.lock().last().expect("kept before the flush returned");
    let before = [devices.bytes(DISK), devices.bytes(LOG)];
    volume.write(0, &content(2)).expect("written");
    kept.fails.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(volume.flush(), Err(VolumeError::Anchor("no room".to_owned())));
    assert_eq!(volume.failure(), None);
    kept.fails.store(false, std::sync::atomic::Ordering::SeqCst);
    volume.flush().expect("flushed");
    let second = *kept.anchors.lock().last().expect("kept");
    assert!(second.number > first.number);
    // Closing acknowledges no flush, and so does not hang on the keeper.
    kept.fails.store(true, std::sync::atomic::Ordering::SeqCst);
    volume.close().expect("closed");
    drop(volume);
    let put_back = || {
        for (device, bytes) in before.iter().enumerate() {
            devices.tamper(device, |present| present.copy_from_slice(bytes));
        }
    };
    // The state of the first flush is accepted under the first anchor and refused under the second.
    put_back();
    assert!(open(&devices, Some(&first)).is_ok());
    put_back();
    let refused = open(&devices, Some(&second)).err().expect("an older state");
    assert!(matches!(refused, VolumeError::Ring(RingError::RolledBack { .. })), "{refused}");
}
