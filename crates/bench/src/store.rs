//! STORE and RETRIEVE, after figure 8 of the SUNDR paper: 20,000 unique 8 KB blocks against an index that already
//! holds many others and does not fit its cache.
//!
//! *Venti's way* is made of the same parts (the same log, the same index library, cache and batches) and differs
//! in one thing: each write looks up the index first, and writes only what is not there.

use crate::report::{Measurement, Report, measure, median, micros};
use anyhow::Context;
use holdfast_content::{BlockKind, Codec, DeviceId, StoredBlock};
use holdfast_crypto::{Digest, DigestKey, Domain};
use holdfast_log::{BodyTag, LocalStorage, Log, LogConfig, Position, Storage};
use holdfast_store::{LogStore, StoreConfig};
use redb::{Database, ReadableDatabase, TableDefinition};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const FILE_SYSTEM: Digest = Digest([1; 32]);
const OWNER: DeviceId = DeviceId(1);
const BLOCK_BYTES: usize = 8192;
/// Requests outstanding at once, as in the paper: so many blocks share one sync.
const OUTSTANDING: usize = 40;

/// Options of the store benchmark.
#[derive(clap::Args)]
pub struct Options {
    /// Blocks stored and retrieved in each round.
    #[arg(long, default_value_t = 20_000)]
    blocks: u64,
    /// Interleaved pairs.
    #[arg(long, default_value_t = 10)]
    pairs: usize,
    /// Blocks that the index holds before.
    #[arg(long, default_value_t = 1_000_000)]
    index_entries: u64,
    /// Cache of the index in bytes (the paper's holds 100,000 entries).
    #[arg(long, default_value_t = 10 << 20)]
    index_cache: usize,
    /// Where to work; by default a new directory under the temporary one. Everything in it is removed.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Also write the figures to this file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let dir = match &options.dir {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let bench = Bench { options, ours: dir.path().join("holdfast"), venti: dir.path().join("venti") };
    eprintln!("filling both indexes with {} entries", options.index_entries);
    bench.fill()?;
    let mut rounds = Rounds::default();
    for pair in 0..options.pairs {
        // The second finds a busier disk, so they take turns.
        let order: [Side; 2] =
            if pair % 2 == 0 { [Side::Holdfast, Side::Venti] } else { [Side::Venti, Side::Holdfast] };
        for side in order {
            bench.round(side, pair as u64, &mut rounds)?;
        }
        eprintln!("pair {} of {} done", pair + 1, options.pairs);
    }
    bench.report(&rounds).finish(options.json.as_deref())
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Side {
    Holdfast,
    Venti,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Work {
    /// STORE until all is durable.
    Burst,
    /// The same, until the index is up to date too.
    Sustained,
    /// One STORE at a time, each durable before the next.
    Single,
    SequentialCold,
    SequentialWarm,
    RandomCold,
    RandomWarm,
}

#[derive(Default)]
struct Rounds {
    /// Seconds, and processor seconds, of each round.
    taken: HashMap<(Side, Work), Vec<Measurement>>,
    /// Median latencies of single operations, in microseconds.
    latency: HashMap<(Side, Work), Vec<f64>>,
}

struct Bench<'a> {
    options: &'a Options,
    ours: PathBuf,
    venti: PathBuf,
}

/// Either store, as the benchmark uses it.
trait Subject {
    /// Stores blocks and makes them durable.
    fn store(&self, blocks: Vec<(Digest, StoredBlock)>) -> anyhow::Result<()>;
    /// Brings the index up to date.
    fn settle(&self) -> anyhow::Result<()>;
    /// Retrieves a block.
    fn retrieve(&self, address: Digest) -> anyhow::Result<usize>;
}

impl Bench<'_> {
    fn open(&self, side: Side) -> anyhow::Result<Box<dyn Subject>> {
        Ok(match side {
            Side::Holdfast => {
                let storage = Arc::new(LocalStorage::open(&self.ours)?);
                let config =
                    StoreConfig { index_cache_bytes: self.options.index_cache, ..StoreConfig::default() };
                Box::new(LogStore::open(storage, config)?)
            }
            Side::Venti => Box::new(Venti::open(&self.venti, self.options.index_cache)?),
        })
    }

    fn fill(&self) -> anyhow::Result<()> {
        for side in [Side::Holdfast, Side::Venti] {
            let subject = self.open(side)?;
            let mut next = 0;
            while next < self.options.index_entries {
                let end = (next + 10_000).min(self.options.index_entries);
                subject.store((next..end).map(|number| block(number, 32)).collect())?;
                next = end;
                if next % 100_000 == 0 {
                    subject.settle()?;
                }
            }
            subject.settle()?;
        }
        Ok(())
    }

    fn round(&self, side: Side, pair: u64, rounds: &mut Rounds) -> anyhow::Result<()> {
        let count = self.options.blocks;
        let first = (1 << 40) + pair * count * 4;
        let blocks: Vec<_> = (first..first + count).map(|number| block(number, BLOCK_BYTES)).collect();
        let addresses: Vec<Digest> = blocks.iter().map(|(address, _)| *address).collect();
        let mut shuffled = addresses.clone();
        shuffle(&mut shuffled, first);
        let mut keep =
            |work: Work, taken: Measurement| rounds.taken.entry((side, work)).or_default().push(taken);
        {
            let subject = self.open(side)?;
            self.forget(side)?;
            let (burst, ()) = measure(|| {
                let mut blocks = blocks.into_iter();
                loop {
                    let batch: Vec<_> = blocks.by_ref().take(OUTSTANDING).collect();
                    if batch.is_empty() {
                        return Ok(());
                    }
                    subject.store(batch)?;
                }
            })?;
            let (rest, ()) = measure(|| subject.settle())?;
            keep(Work::Burst, burst);
            keep(Work::Sustained, Measurement { wall: burst.wall + rest.wall, cpu: burst.cpu + rest.cpu });
            let singles =
                (first + count..first + count + count / 20).map(|number| block(number, BLOCK_BYTES));
            let mut latencies = Vec::new();
            for block in singles {
                let start = Instant::now();
                subject.store(vec![block])?;
                latencies.push(micros(start.elapsed()));
            }
            rounds.latency.entry((side, Work::Single)).or_default().push(median(&latencies));
        }
        for (work, order, cold) in [
            (Work::RandomCold, &shuffled, true),
            (Work::SequentialCold, &addresses, true),
            (Work::SequentialWarm, &addresses, false),
            (Work::RandomWarm, &shuffled, false),
        ] {
            // Opening anew empties the index's own cache; the block cache is the system's and is emptied always.
            let subject = self.open(side)?;
            if cold {
                self.forget(side)?;
            } else {
                for address in order {
                    subject.retrieve(*address)?;
                }
                self.forget_segments(side)?;
            }
            let mut latencies = Vec::with_capacity(order.len());
            let (taken, ()) = measure(|| {
                for address in order {
                    let start = Instant::now();
                    anyhow::ensure!(subject.retrieve(*address)? == BLOCK_BYTES, "a short block");
                    latencies.push(micros(start.elapsed()));
                }
                Ok(())
            })?;
            rounds.taken.entry((side, work)).or_default().push(taken);
            rounds.latency.entry((side, work)).or_default().push(median(&latencies));
        }
        Ok(())
    }

    /// Has the system drop every cached page of a store.
    fn forget(&self, side: Side) -> anyhow::Result<()> {
        self.forget_files(side, |_| true)
    }

    fn forget_segments(&self, side: Side) -> anyhow::Result<()> {
        self.forget_files(side, |name| name.starts_with("segment-"))
    }

    fn forget_files(&self, side: Side, which: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        let path = if side == Side::Holdfast { &self.ours } else { &self.venti };
        let storage = LocalStorage::open(path)?;
        for name in storage.list()?.into_iter().filter(|name| which(name)) {
            let file = storage.open(&name)?;
            // Only clean pages can be dropped.
            file.sync(holdfast_log::SyncSite("benchmark"))?;
            file.drop_cache();
        }
        Ok(())
    }

    fn report(&self, rounds: &Rounds) -> Report {
        let mut report = Report::default();
        let megabytes = (self.options.blocks as usize * BLOCK_BYTES) as f64 / 1e6;
        let rate = |side: Side, work: Work| -> Vec<f64> {
            rounds.taken[&(side, work)].iter().map(|taken| megabytes / taken.wall).collect()
        };
        let cpu = |side: Side, work: Work| -> Vec<f64> {
            let operations = self.options.blocks as f64;
            rounds.taken[&(side, work)].iter().map(|taken| taken.cpu / operations * 1e6).collect()
        };
        let named = [
            (Work::Burst, "STORE (burst)"),
            (Work::Sustained, "STORE (sustained)"),
            (Work::RandomCold, "RETRIEVE (random + cold index)"),
            (Work::SequentialCold, "RETRIEVE (sequential + cold index)"),
            (Work::SequentialWarm, "RETRIEVE (sequential + warm index)"),
            (Work::RandomWarm, "RETRIEVE (random + warm index)"),
        ];
        for (side, label) in [(Side::Holdfast, "Holdfast"), (Side::Venti, "Venti's way")] {
            for (work, name) in named {
                let name = format!("{label}: {name}");
                report.figure(&name, "MB/s", &rate(side, work), &cpu(side, work));
            }
            for (work, name) in [
                (Work::Single, "one durable STORE"),
                (Work::RandomCold, "one RETRIEVE, random + cold"),
                (Work::SequentialWarm, "one RETRIEVE, sequential + warm"),
            ] {
                let name = format!("{label}: {name}");
                report.figure(&name, "us", &rounds.latency[&(side, work)], &[]);
            }
        }
        for (work, name) in named {
            let name = format!("{name}: Holdfast / Venti's way");
            report.ratio(&name, &rate(Side::Holdfast, work), &rate(Side::Venti, work));
        }
        for (work, name) in [(Work::Burst, "STORE (burst)"), (Work::Sustained, "STORE (sustained)")] {
            let name = format!("{name}: processor time, Venti's way / Holdfast");
            report.ratio(&name, &cpu(Side::Venti, work), &cpu(Side::Holdfast, work));
        }
        let single = |side| rounds.latency[&(side, Work::Single)].as_slice();
        report.ratio(
            "latency of one durable STORE: Venti's way / Holdfast",
            single(Side::Venti),
            single(Side::Holdfast),
        );
        report
    }
}

/// An incompressible block of `length` bytes. Its address is made outside any measurement.
fn block(number: u64, length: usize) -> (Digest, StoredBlock) {
    let mut body = vec![0; length];
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for part in body.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        part.copy_from_slice(&state.to_le_bytes()[..part.len()]);
    }
    let address = DigestKey::WELL_KNOWN.digest(Domain::Chunk, &body);
    (address, StoredBlock { kind: BlockKind::Chunk, codec: Codec::Plain, references: vec![], body })
}

fn shuffle(values: &mut [Digest], seed: u64) {
    let mut state = seed | 1;
    for place in (1..values.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        values.swap(place, (state >> 33) as usize % (place + 1));
    }
}

impl Subject for LogStore {
    fn store(&self, blocks: Vec<(Digest, StoredBlock)>) -> anyhow::Result<()> {
        LogStore::store(self, FILE_SYSTEM, OWNER, blocks, 0)?;
        Ok(self.commit()?)
    }

    fn settle(&self) -> anyhow::Result<()> {
        Ok(self.checkpoint()?)
    }

    fn retrieve(&self, address: Digest) -> anyhow::Result<usize> {
        let found = LogStore::retrieve(self, FILE_SYSTEM, address)?.context("a block is missing")?;
        Ok(found.1.body.len())
    }
}

const TABLE: TableDefinition<&[u8; 36], &[u8; 20]> = TableDefinition::new("blocks");

/// A store that looks up its index before each write.
struct Venti {
    log: Log,
    index: Database,
    /// Written to the index in batches, as ours is.
    recent: std::sync::Mutex<HashMap<[u8; 36], [u8; 20]>>,
}

impl Venti {
    fn open(path: &Path, cache: usize) -> anyhow::Result<Venti> {
        let storage = Arc::new(LocalStorage::open(path)?);
        let (log, _) = Log::open(storage, LogConfig::default())?;
        let index = Database::builder().set_cache_size(cache).create(path.join("index.redb"))?;
        Ok(Venti { log, index, recent: Default::default() })
    }

    fn key(address: &Digest) -> [u8; 36] {
        let mut key = [0; 36];
        key[..32].copy_from_slice(&address.0);
        key
    }

    fn look_up(&self, key: &[u8; 36]) -> anyhow::Result<Option<[u8; 20]>> {
        if let Some(found) = self.recent.lock().expect("no panics").get(key) {
            return Ok(Some(*found));
        }
        let transaction = self.index.begin_read()?;
        match transaction.open_table(TABLE) {
            Ok(table) => Ok(table.get(key)?.map(|found| *found.value())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Subject for Venti {
    fn store(&self, blocks: Vec<(Digest, StoredBlock)>) -> anyhow::Result<()> {
        for (address, block) in blocks {
            let key = Venti::key(&address);
            if self.look_up(&key)?.is_some() {
                continue;
            }
            let head = holdfast_crypto::encode(&(FILE_SYSTEM, address, OWNER, 0i64, 0i64));
            let at = self.log.append_parts(1, &head, &block.body, BodyTag::of(&block.body))?;
            let mut value = [0; 20];
            value[..8].copy_from_slice(&at.to_u64().to_le_bytes());
            let length = holdfast_log::stored_length(head.len(), block.body.len());
            value[8..12].copy_from_slice(&length.to_le_bytes());
            self.recent.lock().expect("no panics").insert(key, value);
        }
        Ok(self.log.sync()?)
    }

    fn settle(&self) -> anyhow::Result<()> {
        let recent = std::mem::take(&mut *self.recent.lock().expect("no panics"));
        let mut entries: Vec<_> = recent.into_iter().collect();
        entries.sort_unstable();
        let mut transaction = self.index.begin_write()?;
        transaction.set_quick_repair(true);
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in &entries {
                table.insert(key, value)?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn retrieve(&self, address: Digest) -> anyhow::Result<usize> {
        let value = self.look_up(&Venti::key(&address))?.context("a block is missing")?;
        let at = Position::from_u64(u64::from_le_bytes(value[..8].try_into()?));
        let length = u32::from_le_bytes(value[8..12].try_into()?);
        Ok(self.log.read(at, length)?.body.len())
    }
}

impl Drop for Venti {
    fn drop(&mut self) {
        let _ = self.settle();
    }
}
