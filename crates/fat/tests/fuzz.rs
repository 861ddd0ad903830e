//! Thousands of malformed file systems: nothing panics, nothing hangs, no block is listed for two files,
//! nothing is written to unsound ones, and sound ones stay so.

use crate::support;

use holdfast_fat::{
    Area, BlockId, Change, Checked, Fat, FatError, Kind, Layout, Options, ROOT, Replace, WalkedFile,
};
use std::collections::BTreeSet;
use support::memory::{Memory, findings, harm, settle, sound};
use support::{NOW, Random};

fn settle_any<T>(fat: &mut Fat<Memory>, change: Result<Change<T>, FatError>) -> Option<T> {
    change.ok().map(|change| settle(fat, change))
}

/// Does everything there is to do, a few times. Anything may fail; nothing may panic.
fn exercise(fat: &mut Fat<Memory>, random: &mut Random) {
    let names =
        ["A", "B", "DIR", "C", "SUB", "A long name.txt", "NEW", "ALONGN~1.TXT", "Some other long name"];
    let mut known = vec![ROOT];
    for _ in 0..24 {
        let id = *random.of(&known);
        let other = *random.of(&known);
        let (name, new_name) = (*random.of(&names), *random.of(&names));
        match random.below(11) {
            0 | 1 => {
                if let Ok((found, _)) = fat.lookup(id, name) {
                    known.push(found);
                }
            }
            2 => {
                let _ = fat.list(id, random.below(20), 100);
            }
            3 => {
                let kind = if random.below(2) == 0 { Kind::File } else { Kind::Directory };
                let change = fat.create(id, name, kind, NOW);
                known.extend(settle_any(fat, change));
            }
            4 => {
                let change = fat.unlink(id, name, NOW);
                settle_any(fat, change);
            }
            5 => {
                let change = fat.rmdir(id, name, NOW);
                settle_any(fat, change);
            }
            6 => {
                let change = fat.rename((id, name), (other, new_name), Replace::Yes, NOW);
                settle_any(fat, change);
            }
            7 => {
                let change = fat.resize(id, random.below(6000), NOW);
                settle_any(fat, change);
            }
            8 => {
                let _ = (fat.map(id, random.below(3000), random.below(6000)), fat.stat(id), fat.sizes());
            }
            9 => {
                for item in fat.limbo(None, 10).unwrap_or_default() {
                    if let Ok(returning) = fat.returning(item.id) {
                        let change = fat.free(item.id, returning.clusters);
                        settle_any(fat, change);
                    }
                }
            }
            _ => {
                if id != ROOT {
                    fat.forget(id, 1);
                }
            }
        }
    }
}

fn fuzz(seeds: std::ops::Range<u64>) {
    let sound = sound();
    let (mut refused, mut clean) = (0, 0);
    for seed in seeds {
        let mut random = Random(seed);
        let mut bytes = sound.clone();
        for _ in 0..=random.below(6) {
            harm(&mut bytes, &mut random);
        }
        let Ok(memory) = Memory::new(bytes.clone()) else {
            refused += 1;
            continue;
        };
        let (found, checked) = findings(&memory);
        let Ok(mut fat) = Fat::mount(memory.layout.clone(), memory.clone(), Options::default()) else {
            assert!(checked.is_err(), "seed {seed}: what was checked can be mounted");
            refused += 1;
            continue;
        };
        if let Ok(checked) = checked {
            // Each block is listed for one file only.
            let mut blocks = BTreeSet::new();
            let _ = fat.walk(&checked, &mut |walked| {
                if let WalkedFile::Sound { blocks: ranges, path, .. } = walked {
                    for index in ranges.iter().flat_map(|range| range.start..range.start + range.count) {
                        assert!(blocks.insert(index), "seed {seed}: {path}: block {index} is named twice");
                    }
                }
            });
            let forbids = found.iter().any(|finding| finding.problem.forbids_changes());
            assert_eq!(forbids, fat.read_only().is_some(), "seed {seed}");
            if !forbids {
                clean += 1;
                exercise(&mut fat, &mut random);
                // A sound file system stays sound.
                let after = fat.metadata().clone();
                let (found, _) = findings(&after);
                let worse: Vec<_> =
                    found.iter().filter(|finding| finding.problem.forbids_changes()).collect();
                assert!(worse.is_empty(), "seed {seed}: {worse:?}");
            } else {
                let before = fat.metadata().bytes.borrow().clone();
                exercise(&mut fat, &mut random);
                assert!(
                    before == *fat.metadata().bytes.borrow(),
                    "seed {seed}: an unsound file system was changed"
                );
            }
        }
        // Even if the caller vouched for it wrongly, or it changes meanwhile, nothing panics.
        for unsteady in [None, Some(seed)] {
            *memory.unsteady.borrow_mut() = unsteady;
            if let Ok(mut fat) = Fat::mount(memory.layout.clone(), memory.clone(), Options::default()) {
                fat.vouch(&Checked::as_we_left_it());
                exercise(&mut fat, &mut random);
            }
        }
    }
    assert!(refused > 0 && clean > 0, "the seeds show something: {refused} refused, {clean} clean");
}

/// A sample of malformed file systems.
#[test]
fn malformed_file_systems() {
    fuzz(0..10_000);
}

/// Many: run with `--ignored`.
#[test]
#[ignore = "long: scripts/soak disks"]
fn a_million_malformed_file_systems() {
    fuzz(10_000..1_010_000);
}

/// Proves that random bytes in the place of a boot sector are refused or make a layout that fits the partition.
#[test]
fn random_boot_sectors() {
    let sound = sound();
    let mut random = Random(7);
    for _ in 0..20_000 {
        let mut boot = sound[..512].to_vec();
        for _ in 0..=random.below(8) {
            let at = random.below(92) as usize;
            boot[at] = random.next() as u8;
        }
        let bytes = random.below(1 << 40);
        if let Ok(layout) = Layout::from_boot_sector(&boot, bytes) {
            for area in [Area::Metadata, Area::Data] {
                let index = layout.area_blocks(area) - 1;
                let (start, length) = layout.place(BlockId { area, index });
                assert!(length > 0 && start + length as u64 <= bytes);
            }
        }
    }
}
