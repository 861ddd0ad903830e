//! What is in blocks: against a model, through crashes, and between owners.

use crate::common;

use common::{LARGE, SMALL, acl, alias, devices, monitor};
use holdfast_access::Access;
use holdfast_log::simulated_device::{Devices, Unflushed};
use holdfast_monitor::{BlockId, Direction, Extent, Layout, PAGE_BYTES, Reference, Write};
use std::collections::BTreeMap;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) % limit
    }
}

fn block(number: u64) -> BlockId {
    BlockId { disk: 0, number }
}

fn bytes_of(number: u64) -> usize {
    if number < LARGE { 4096 } else { 512 }
}

/// Reads a block as `name`, through a region made for the purpose and given up after.
fn read(devices: &Devices, number: u64) -> Vec<u8> {
    let (monitor, _) = monitor(devices, 8);
    let policy = alias("policy");
    let region = monitor.create_region(&policy, acl("eve", Access::Read), 1).expect("made");
    let at = monitor.assign(&policy, region, 0, &[block(number)]).expect("assigned")[0];
    monitor.transfer(&alias("driver"), Direction::Fill, block(number), &[at.page]).expect("filled");
    let mut found = [0; PAGE_BYTES];
    monitor.read(&alias("eve"), at, &mut found).expect("permitted");
    assert!(found[bytes_of(number)..].iter().all(|byte| *byte == 0), "beyond the block there is nothing");
    found[..bytes_of(number)].to_vec()
}

/// Proves: with transfers, changes through views, changes together, erasures, freed pages, in any order, every block reads
/// as what was last put there; in blocks of 512 bytes, which share blocks of the volume, too.
#[test]
fn as_a_map() {
    for seed in 1..=6_u64 {
        let devices = devices();
        devices.record(false);
        let (monitor, _) = monitor(&devices, 32);
        let (policy, driver, owner) = (alias("policy"), alias("driver"), alias("alice"));
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        // What is cached: the page, and whether memory has it.
        let region = monitor.create_region(&policy, acl("alice", Access::ReadWrite), 32).expect("made");
        let view = monitor.view(&owner, region).expect("hers");
        let mut cached: BTreeMap<u64, (Reference, bool)> = BTreeMap::new();
        for number in 1..=1500_u64 {
            let at = if random.below(2) == 0 { random.below(12) } else { LARGE + random.below(24) };
            let bytes = vec![(number % 251) as u8; bytes_of(at)];
            match (random.below(10), cached.get(&at).copied()) {
                (0..5, None) => {
                    let free =
                        (0..32).find(|index| !cached.values().any(|(taken, _)| taken.page.index == *index));
                    let Some(index) = free else { continue };
                    let place = monitor.assign(&policy, region, index, &[block(at)]).expect("assigned")[0];
                    monitor.transfer(&driver, Direction::Fill, block(at), &[place.page]).expect("filled");
                    cached.insert(at, (place, false));
                }
                (0..3, Some((place, _))) => {
                    let mut found = [0; PAGE_BYTES];
                    monitor.read(&owner, place, &mut found).expect("hers");
                    let expected = model.get(&at).cloned().unwrap_or(vec![0; bytes_of(at)]);
                    assert!(found[..bytes_of(at)] == expected, "seed {seed}, step {number}, block {at}");
                    assert_eq!(view.block(place), Some(found));
                }
                (3..5, Some((place, _))) => {
                    let skipped =
                        random.below(bytes.len() as u64) as usize * usize::from(random.below(2) == 0);
                    let part = &bytes[skipped..];
                    monitor.write(&owner, place, skipped, part).expect("hers");
                    cached.insert(at, (place, true));
                    model.entry(at).or_insert_with(|| vec![0; bytes_of(at)])[skipped..].copy_from_slice(part);
                }
                (5, Some((place, true))) => {
                    monitor.transfer(&driver, Direction::Drain, block(at), &[place.page]).expect("drained");
                    cached.insert(at, (place, false));
                }
                (6, Some((place, false))) => {
                    let index = place.page.index;
                    monitor.free(&policy, region, index..index + 1).expect("clean");
                    cached.remove(&at);
                }
                (7, Some(_)) => {
                    let mut writes = Vec::new();
                    for (other, place) in cached.iter_mut().take(5) {
                        let bytes = vec![(number % 251) as u8 ^ 0x55; bytes_of(*other)];
                        writes.push(Write { at: place.0, bytes: bytes.clone() });
                        place.1 = false;
                        model.insert(*other, bytes);
                    }
                    monitor.write_together(&owner, 0, &writes).expect("hers");
                }
                (8, _) => {
                    let count = (1 + random.below(9)).min(LARGE + SMALL - at);
                    monitor.erase(&policy, block(at), count).expect("erased");
                    for gone in at..at + count {
                        cached.remove(&gone);
                        model.remove(&gone);
                    }
                }
                (9, _) => monitor.flush(0).expect("flushed"),
                _ => {}
            }
        }
        for (at, (place, is_dirty)) in &cached {
            if *is_dirty {
                monitor.transfer(&driver, Direction::Drain, block(*at), &[place.page]).expect("drained");
            }
        }
        monitor.flush(0).expect("flushed");
        drop(monitor);
        for at in (0..12).chain(LARGE..LARGE + 30) {
            let expected = model.get(&at).cloned().unwrap_or(vec![0; bytes_of(at)]);
            assert!(read(&devices, at) == expected, "seed {seed}, block {at} in the end");
        }
    }
}

/// Proves: what was erased does not come back to whoever owns the block next, whatever a crash loses: once something that
/// was written after the erasure is there, nothing of what was before is. In blocks of 4096 bytes and of 512.
#[test]
fn erased_before_the_next_owner() {
    for number in [7, LARGE + 5, LARGE + 6] {
        let devices = devices();
        let (monitor, _) = monitor(&devices, 32);
        let policy = alias("policy");
        let mine = monitor.create_region(&policy, acl("alice", Access::ReadWrite), 1).expect("made");
        let at = monitor.assign(&policy, mine, 0, &[block(number)]).expect("assigned")[0];
        let secret = vec![0xaa; bytes_of(number)];
        monitor.write_together(&alias("alice"), 0, &[Write { at, bytes: secret.clone() }]).expect("hers");
        monitor.flush(0).expect("flushed");
        let before = devices.events();
        monitor.erase(&policy, block(number), 1).expect("erased");
        // The policy table says that it is another's.
        let table = monitor.create_region(&policy, acl("policy", Access::ReadWrite), 1).expect("made");
        let at = monitor.assign(&policy, table, 0, &[block(0)]).expect("assigned")[0];
        let entry = Write { at, bytes: vec![1; 4096] };
        monitor.write_together(&policy, 0, &[entry]).expect("its own");
        monitor.flush(0).expect("flushed");
        drop(monitor);
        let mut seen = [0; 2];
        for events in before..=devices.events() {
            for unflushed in [Unflushed::Lost, Unflushed::Kept, Unflushed::Torn(events as u64)] {
                let crashed = devices.crashed(events, unflushed);
                let is_anothers = read(&crashed, 0)[0] == 1;
                seen[usize::from(is_anothers)] += 1;
                let found = read(&crashed, number);
                let is_erased = found.iter().all(|byte| *byte == 0);
                assert!(is_erased || !is_anothers && found == secret, "block {number}, {events} events");
            }
        }
        assert!(seen[0] > 0 && seen[1] > 0, "crashes before and after it: {seen:?}");
    }
}

/// Proves: stretches that overlap, go beyond the volume, or have odd blocks are refused; numbers and bytes go one to one.
#[test]
fn layouts() {
    let extent = |offset, block_bytes, blocks| Extent { offset, block_bytes, blocks };
    for (extents, is_sound) in [
        (vec![extent(0, 4096, 10)], true),
        (vec![extent(0, 4096, 11)], false),
        (vec![extent(0, 4096, u64::MAX)], false),
        (vec![extent(u64::MAX - 511, 512, 1)], false),
        (vec![extent(100, 512, 1)], false),
        (vec![extent(0, 600, 1)], false),
        (vec![extent(0, 8192, 1)], false),
        (vec![extent(0, 0, 1)], false),
        (vec![extent(512, 4096, 2), extent(0, 512, 1)], true),
        (vec![extent(512, 4096, 2), extent(0, 512, 2)], false),
        (vec![extent(0, 4096, 2), extent(4096, 512, 1)], false),
    ] {
        assert_eq!(Layout::new(extents.clone(), 40_960).is_ok(), is_sound, "{extents:?}");
    }
    let layout = Layout::new(vec![extent(512, 4096, 2), extent(0, 512, 1)], 40_960).expect("sound");
    assert_eq!(layout.blocks(), 3);
    assert_eq!(layout.find(0), Some((512, 4096, 2)));
    assert_eq!(layout.find(1), Some((4608, 4096, 1)));
    assert_eq!(layout.find(2), Some((0, 512, 1)));
    assert_eq!(layout.find(3), None);
}
