//! Writes that are done together, against crashes.

use crate::layout::BLOCK_BYTES;
use crate::tests::Random;
use crate::{Options, Volume, VolumeError, VolumeKey};
use holdfast_log::simulated_device::{Devices, Unflushed};

const BLOCKS: u64 = 120;
/// Groups write here, everything else beyond.
const SHARED: u64 = 24;
const SECTOR: usize = 512;

fn key() -> VolumeKey {
    VolumeKey::new(&[7; 32], b"done all at once")
}

fn made() -> Devices {
    let devices = Devices::new();
    devices.record(false);
    devices.add("disk", BLOCKS as usize * BLOCK_BYTES);
    devices.add("log", 2 << 20);
    Volume::format(&*devices.device(0), &*devices.device(1), &key(), Some(1 << 20)).expect("formatted");
    Volume::adopt(devices.device(0), devices.device(1), &key(), [1; 16], None, &|_, _| true)
        .expect("adopted");
    devices.forget();
    devices.record(true);
    devices
}

fn open(devices: &Devices) -> Volume {
    let options = Options { dirty_max: 32, nodes_max: 16, ..Options::default() };
    Volume::open(devices.device(0), devices.device(1), &key(), options, None, [9; 16]).expect("opens").0
}

fn shared(volume: &Volume) -> Vec<u8> {
    let mut bytes = vec![0; SHARED as usize * BLOCK_BYTES];
    volume.read(0, &mut bytes).expect("nothing that was written together is refused");
    bytes
}

/// Proves: through any crash, what was written together is there whole or not at all, in the order of the
/// calls, and what a flush acknowledged is there; with other writes, discards, checkpoints and write-back in
/// between.
#[test]
fn all_or_nothing() {
    for seed in 1..=10_u64 {
        let devices = made();
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let volume = open(&devices);
        let opened = devices.events();
        // Every state after a call, and the events until which a crash may still show the one before it.
        let mut states = vec![vec![0; SHARED as usize * BLOCK_BYTES]];
        // When each flush ended, and the state that it made durable.
        let mut flushed = vec![(opened, 0)];
        // When the call began that made each state.
        let mut begun = vec![opened];
        for number in 1..=90_u64 {
            match random.below(12) {
                0..7 => {
                    let mut state = states.last().expect("one").clone();
                    let mut writes = Vec::new();
                    for at in 0..1 + random.below(9) {
                        let longest = if random.below(3) == 0 { 20 } else { 8 };
                        let sectors = 1 + random.below(longest);
                        let first = random.below(SHARED * 8 - sectors);
                        let bytes = vec![(number * 16 + at) as u8 | 1; sectors as usize * SECTOR];
                        let from = first as usize * SECTOR;
                        state[from..from + bytes.len()].copy_from_slice(&bytes);
                        writes.push((from as u64, bytes));
                    }
                    begun.push(devices.events());
                    states.push(state);
                    let writes: Vec<(u64, &[u8])> =
                        writes.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
                    volume.write_together(&writes).expect("written");
                }
                7 => {
                    let block = SHARED + random.below(BLOCKS - SHARED - 20);
                    let bytes = vec![number as u8; (1 + random.below(20)) as usize * BLOCK_BYTES];
                    volume.write(block * BLOCK_BYTES as u64, &bytes).expect("written");
                }
                8 => volume.discard(60 * BLOCK_BYTES as u64, 4 * BLOCK_BYTES as u64).expect("discarded"),
                9 => volume.work().expect("worked"),
                10 => {
                    volume.flush().expect("flushed");
                    flushed.push((devices.events(), states.len() - 1));
                }
                _ => volume.checkpoint().expect("made"),
            }
            assert!(shared(&volume) == *states.last().expect("one"), "seed {seed}: what was written is read");
        }
        drop(volume);
        for state in 0..60 {
            let events = opened + random.below((devices.events() - opened + 1) as u64) as usize;
            let unflushed = match random.below(4) {
                0 => Unflushed::Kept,
                1 => Unflushed::Lost,
                _ => Unflushed::Torn(seed * 1000 + state),
            };
            let crashed = devices.crashed(events, unflushed);
            let found = shared(&open(&crashed));
            let least = flushed.iter().filter(|(at, _)| *at <= events).map(|(_, made)| *made).max();
            let least = least.expect("the first");
            let most = begun.iter().rposition(|at| *at <= events).expect("the first");
            let is_one = states[least..=most].contains(&found);
            assert!(is_one, "seed {seed}, {events} events, {unflushed:?}: none of states {least} to {most}");
        }
    }
}

/// Proves: more blocks than fit into a record are refused, and none is written; zero blocks are fine.
#[test]
fn too_many() {
    let devices = made();
    let volume = open(&devices);
    let block = [5; BLOCK_BYTES];
    let most = volume.together_max() as u64;
    assert!((8..BLOCKS).contains(&most), "{most}");
    let writes = |count: u64| -> Vec<(u64, &[u8])> {
        (0..count).map(|at| (at * BLOCK_BYTES as u64, &block[..])).collect()
    };
    let error = volume.write_together(&writes(most + 1)).expect_err("too many");
    assert!(matches!(&error, VolumeError::Size(words) if words.contains("together")), "{error}");
    assert!(shared(&volume).iter().all(|byte| *byte == 0));
    let beyond = [(0, &block[..]), (BLOCKS * BLOCK_BYTES as u64, &block[..])];
    assert!(matches!(volume.write_together(&beyond), Err(VolumeError::Range { .. })));
    assert!(shared(&volume).iter().all(|byte| *byte == 0));
    volume.write_together(&[]).expect("nothing");
    volume.write_together(&writes(most)).expect("as many as fit");
    let mut bytes = [0; BLOCK_BYTES];
    volume.read((most - 1) * BLOCK_BYTES as u64, &mut bytes).expect("read");
    assert!(bytes == block);
}

/// Proves: others who write other sectors of the same blocks at the same time lose nothing.
#[test]
fn others_at_the_same_time() {
    let devices = made();
    devices.record(false);
    let volume = open(&devices);
    std::thread::scope(|scope| {
        let volume = &volume;
        for thread in 0..4_u64 {
            scope.spawn(move || {
                for round in 1..=60_u8 {
                    let bytes = [round; SECTOR];
                    // Sectors of this thread in three blocks.
                    let places =
                        [0, 1, 2].map(|block| block * BLOCK_BYTES as u64 + thread * 2 * SECTOR as u64);
                    if thread % 2 == 0 {
                        volume.write_together(&places.map(|place| (place, &bytes[..]))).expect("written");
                    } else {
                        places.iter().for_each(|place| volume.write(*place, &bytes).expect("written"));
                    }
                    if round % 16 == 0 {
                        volume.flush().expect("flushed");
                    }
                }
            });
        }
    });
    let found = shared(&volume);
    for block in 0..3 {
        for thread in 0..4 {
            let from = block * BLOCK_BYTES + thread * 2 * SECTOR;
            assert_eq!(found[from..from + SECTOR], [60; SECTOR], "block {block}, thread {thread}");
        }
    }
}
