//! Random programs on a volume: writes of all sizes, parts of blocks, discards, flushes, the background's work.

use super::oracle::Oracle;
use super::{BLOCK_BYTES, Block, content, open, protected, read};
use crate::random::Random;
use holdfast_log::simulated_device::Devices;
use holdfast_volume::{Options, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A volume, what happens below it, and what is known of what it must have.
pub struct Subject {
    /// Its recorded devices.
    pub devices: Devices,
    /// The volume.
    pub volume: Arc<Volume>,
    /// What was asked of it.
    pub oracle: Oracle,
    /// How it behaves.
    pub options: Options,
    /// Its size.
    pub blocks: u64,
    numbers: AtomicU64,
}

/// Options that make much happen in little time; which, the seed decides.
pub fn options(random: &mut Random) -> Options {
    Options {
        dirty_max: *random.pick(&[16, 64, 200]),
        inline_max: *random.pick(&[0, 2, 16]),
        candidates_max: *random.pick(&[1, 2, 8]),
        nodes_max: 16,
        ..Options::default()
    }
}

impl Subject {
    /// A disk that was taken over, opened.
    ///
    /// # Panics
    /// If that fails.
    pub fn new(blocks: u64, options: Options, salt: u64) -> Subject {
        let devices = protected(blocks);
        let (volume, _) = open(&devices, &options, None, salt).expect("opens");
        let (volume, oracle) = (Arc::new(volume), Oracle::default());
        Subject { devices, volume, oracle, options, blocks, numbers: AtomicU64::new(1) }
    }

    fn contents(&self, count: u64) -> Vec<Block> {
        let first = self.numbers.fetch_add(count, Relaxed);
        (first..first + count).map(content).collect()
    }

    /// Writes whole blocks.
    ///
    /// # Panics
    /// If that fails; so do all below.
    pub fn write(&self, block: u64, count: u64) {
        let contents = self.contents(count);
        let bytes = contents.concat();
        self.oracle.begin(block, contents, self.devices.mark());
        self.volume.write(block * BLOCK_BYTES as u64, &bytes).expect("written");
        self.oracle.end(block..block + count, self.devices.mark());
    }

    /// Writes sectors, which may lie in two blocks.
    pub fn write_sectors(&self, sector: u64, count: u64) {
        let blocks = sector / 8..(sector + count).div_ceil(8);
        let mut whole: Vec<u8> = blocks.clone().flat_map(|block| self.oracle.now(block)).collect();
        let bytes = self.contents(2).concat();
        let bytes = &bytes[..count as usize * 512];
        whole[(sector % 8 * 512) as usize..][..bytes.len()].copy_from_slice(bytes);
        let contents = whole.as_chunks::<BLOCK_BYTES>().0.to_vec();
        self.oracle.begin(blocks.start, contents, self.devices.mark());
        self.volume.write(sector * 512, bytes).expect("written");
        self.oracle.end(blocks, self.devices.mark());
    }

    /// Writes runs of sectors, given as first sector and count, all or none of them; as many as the log takes at once.
    pub fn write_together(&self, runs: &[(u64, u64)]) {
        let mut blocks: BTreeMap<u64, Block> = BTreeMap::new();
        let mut writes = Vec::new();
        for (first, count) in runs {
            let new = (first / 8..(first + count).div_ceil(8)).filter(|block| !blocks.contains_key(block));
            if blocks.len() + new.count() > self.volume.together_max() {
                continue;
            }
            let bytes = self.contents(count.div_ceil(8)).concat();
            let bytes = bytes[..*count as usize * 512].to_vec();
            for (sector, bytes) in (*first..).zip(bytes.chunks(512)) {
                let whole = blocks.entry(sector / 8).or_insert_with(|| self.oracle.now(sector / 8));
                whole[(sector % 8 * 512) as usize..][..512].copy_from_slice(bytes);
            }
            writes.push((first * 512, bytes));
        }
        let Some(one) = blocks.keys().next().copied() else { return };
        self.oracle.begin_together(&blocks, self.devices.mark());
        let writes: Vec<(u64, &[u8])> = writes.iter().map(|(offset, bytes)| (*offset, &bytes[..])).collect();
        self.volume.write_together(&writes).expect("written");
        self.oracle.end_together(one, self.devices.mark());
    }

    /// Discards blocks.
    pub fn discard(&self, block: u64, count: u64) {
        let contents = vec![[0; BLOCK_BYTES]; count as usize];
        self.oracle.begin(block, contents, self.devices.mark());
        self.volume.discard(block * BLOCK_BYTES as u64, count * BLOCK_BYTES as u64).expect("discarded");
        self.oracle.end(block..block + count, self.devices.mark());
    }

    /// Flushes.
    pub fn flush(&self) {
        let began = self.devices.mark();
        self.volume.flush().expect("flushed");
        let anchor = self.volume.anchor();
        self.oracle.flushed(began, self.devices.mark(), anchor);
    }

    /// One random step on blocks from `first` on, `count` of them.
    pub fn step(&self, random: &mut Random, first: u64, count: u64) {
        let block = first + random.below(count);
        let room = first + count - block;
        match random.below(28) {
            24..28 => {
                let sectors = (first + count) * 8;
                let mut run = || {
                    let at = first * 8 + random.below(count * 8);
                    (at, (1 + random.below(12)).min(sectors - at))
                };
                let runs = [run(), run(), run(), run()];
                self.write_together(&runs[..1 + (runs[0].0 % 4) as usize]);
            }
            0..6 => self.write(block, (1 + random.below(3)).min(room)),
            6..9 => self.write(block, (1 + random.below(40)).min(room)),
            // The same blocks again and again, as journals and superblocks are written.
            9..11 => self.write(first, 1.min(room)),
            11..14 => {
                let sector = block * 8 + random.below(8);
                self.write_sectors(sector, (1 + random.below(8)).min((first + count) * 8 - sector));
            }
            14 => self.discard(block, (1 + random.below(40)).min(room)),
            15..19 => self.flush(),
            19..22 => self.volume.work().expect("worked"),
            22 => self.volume.checkpoint().expect("made"),
            _ => assert!(
                read(&self.volume, block).expect("read") == self.oracle.now(block),
                "block {block} is not what was written last"
            ),
        }
    }

    /// Many steps by one program.
    pub fn run(&self, random: &mut Random, steps: u64) {
        for _ in 0..steps {
            self.step(random, 0, self.blocks);
        }
    }

    /// Many steps by several programs at once, each on its own blocks, with the background at work.
    pub fn run_threads(&self, random: &mut Random, threads: u64, steps: u64) {
        let share = self.blocks / threads;
        let seeds: Vec<u64> = (0..threads).map(|_| random.number()).collect();
        self.volume.start().expect("started");
        std::thread::scope(|scope| {
            for (thread, seed) in (0..).zip(seeds) {
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for _ in 0..steps {
                        self.step(&mut random, thread * share, share);
                    }
                });
            }
        });
    }
}
