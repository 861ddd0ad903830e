//! Collecting garbage in a bucket: one store in which runs of blocks die, measured twice, side by side. One time live
//! data is copied at the object store; the other time, as where a store cannot copy, it is read and written again. At
//! the end all live data is read and compared, by a new directory.

use crate::report::{Measurement, Report, measure};
use anyhow::{Context, ensure};
use holdfast_content::{Block, BlockKind, DeviceId, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_log::LocalStorage;
use holdfast_store::{LogStore, StoreConfig};
use holdfast_tiered::{
    Bucket, BucketAddress, BucketError, ListedObject, RequestCounts, S3, Settings, Tiered,
};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FILE_SYSTEM: Digest = Digest([1; 32]);
const OWNER: DeviceId = DeviceId(1);
const BLOCK_BYTES: u64 = 64 << 10;
const SECOND: i64 = 1_000_000_000;
const PATIENCE: Duration = Duration::from_secs(120);

/// Options of the compaction benchmark.
#[derive(clap::Args)]
#[command(
    after_help = "Example: eval \"$(scripts/object-store start /tmp/ceph)\"; cargo run --release -p holdfast-bench -- \
                  compaction \"s3://holdfast-test/compaction?endpoint=$HOLDFAST_S3_ENDPOINT\""
)]
pub struct Options {
    /// The bucket, and a prefix below which the benchmark makes its own.
    bucket: BucketAddress,
    /// Stored in each round, in MiB.
    #[arg(long, default_value_t = 256)]
    mib: u64,
    /// Length of files, in MiB: of four, three are removed.
    #[arg(long, default_value_t = 8)]
    file_mib: u64,
    /// Interleaved pairs.
    #[arg(long, default_value_t = 3)]
    pairs: usize,
    /// Also write the figures to this file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A bucket that counts bytes, and may refuse to copy.
struct Counting {
    inner: S3,
    copies: bool,
    written: AtomicU64,
    read: AtomicU64,
}

impl Bucket for Counting {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), BucketError> {
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.inner.put(name, bytes)
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>, BucketError> {
        let found = self.inner.get(name, range)?;
        self.read.fetch_add(found.len() as u64, Ordering::Relaxed);
        Ok(found)
    }

    fn length(&self, name: &str) -> Result<u64, BucketError> {
        self.inner.length(name)
    }

    fn list(&self, beginning: &str) -> Result<Vec<ListedObject>, BucketError> {
        self.inner.list(beginning)
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        self.inner.delete(name)
    }

    fn copy(&self, from: &str, range: Range<u64>, to: &str) -> Result<bool, BucketError> {
        match self.copies {
            true => self.inner.copy(from, range, to),
            false => Ok(false),
        }
    }

    fn abandon_uploads(&self, beginning: &str) -> Result<usize, BucketError> {
        self.inner.abandon_uploads(beginning)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn counts(&self) -> RequestCounts {
        self.inner.counts()
    }
}

/// The cost of a collection.
struct Cost {
    taken: Measurement,
    written: u64,
    read: u64,
    requests: u64,
    left: u64,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut costs: [Vec<Cost>; 2] = Default::default();
    for pair in 0..options.pairs {
        // The second finds a busier store, so they take turns.
        for side in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            let cost = round(options, pair, side == 0)?;
            eprintln!("pair {} of {}, {}: {:.2} s", pair + 1, options.pairs, SIDES[side], cost.taken.wall);
            costs[side].push(cost);
        }
    }
    let mut report = Report::default();
    let each = |side: usize, of: &dyn Fn(&Cost) -> f64| costs[side].iter().map(of).collect::<Vec<f64>>();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    for (side, name) in SIDES.into_iter().enumerate() {
        report.figure(&format!("{name}: time"), "s", &each(side, &|cost| cost.taken.wall), &[]);
        report.figure(&format!("{name}: processor"), "s", &each(side, &|cost| cost.taken.cpu), &[]);
        report.figure(
            &format!("{name}: written to the bucket"),
            "MiB",
            &each(side, &|cost| mib(cost.written)),
            &[],
        );
        report.figure(
            &format!("{name}: read from the bucket"),
            "MiB",
            &each(side, &|cost| mib(cost.read)),
            &[],
        );
        report.figure(&format!("{name}: requests"), "", &each(side, &|cost| cost.requests as f64), &[]);
        report.figure(
            &format!("{name}: left in the bucket"),
            "MiB",
            &each(side, &|cost| mib(cost.left)),
            &[],
        );
    }
    let times = |side| each(side, &|cost| cost.taken.wall);
    report.ratio("time, copied at the store / moved", &times(0), &times(1));
    report.finish(options.json.as_deref())
}

const SIDES: [&str; 2] = ["copied at the store", "moved"];

/// A chunk of [`BLOCK_BYTES`] incompressible bytes, determined by `number`, and its address.
fn block(number: u64) -> (Digest, StoredBlock) {
    let mut body = vec![0; BLOCK_BYTES as usize];
    blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut body);
    stored(BlockKind::Chunk, Vec::new(), body)
}

fn stored(kind: BlockKind, references: Vec<Digest>, body: Vec<u8>) -> (Digest, StoredBlock) {
    let block = Block::new(&DigestKey::WELL_KNOWN, kind, references, body);
    (block.reference().address, block.to_stored())
}

/// A store in a directory of its own, with a cache far smaller than its data in the bucket.
fn open(dir: &Path, bucket: Arc<Counting>, anew: bool) -> anyhow::Result<(Tiered, LogStore)> {
    let settings =
        Settings { cache_bytes: 128 << 20, condemned: Duration::ZERO, anew, ..Settings::default() };
    let tiered = Tiered::open(Arc::new(LocalStorage::open(dir)?), bucket, settings)?;
    let config = StoreConfig {
        gc_window: Duration::from_secs(10),
        keep_deleted: Duration::ZERO,
        ..StoreConfig::default()
    };
    let store = LogStore::open(Arc::new(tiered.clone()), config)?;
    Ok((tiered, store))
}

fn wait_until_sent(tiered: &Tiered, most: u64) -> anyhow::Result<()> {
    let start = Instant::now();
    while tiered.status().waiting_bytes > most {
        ensure!(start.elapsed() < PATIENCE, "the bucket does not take it: {:?}", tiered.status());
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn round(options: &Options, pair: usize, copies: bool) -> anyhow::Result<Cost> {
    let mut address = options.bucket.clone();
    address.prefix = format!("{}{}-{pair}-{copies}/", address.prefix, std::process::id());
    let counting = || {
        let (written, read) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Counting { inner: S3::new(&address), copies, written, read })
    };
    let (dir, bucket) = (tempfile::tempdir()?, counting());
    let (tiered, store) = open(dir.path(), bucket.clone(), false)?;
    let file_blocks = (options.file_mib << 20) / BLOCK_BYTES;
    let count = (options.mib << 20) / BLOCK_BYTES;
    let is_live = |number: u64| (number / file_blocks).is_multiple_of(4);
    for from in (0..count).step_by(64) {
        store.store(FILE_SYSTEM, OWNER, (from..count.min(from + 64)).map(block).collect(), 0)?;
        store.commit()?;
        wait_until_sent(&tiered, 96 << 20)?;
    }
    let live: Vec<u64> = (0..count).filter(|number| is_live(*number)).collect();
    let references = live.iter().map(|number| block(*number).0).collect();
    let root = stored(BlockKind::MapInner, references, Vec::new());
    store.store(FILE_SYSTEM, OWNER, vec![root.clone()], SECOND)?;
    store.commit()?;
    store.seal()?;
    wait_until_sent(&tiered, 4096)?;
    let (written, read) = (bucket.written.load(Ordering::Relaxed), bucket.read.load(Ordering::Relaxed));
    let requests = |bucket: &Counting| {
        let RequestCounts { put, get, head, list, delete } = bucket.counts();
        put + get + head + list + delete
    };
    let before = requests(&bucket);
    let (taken, report) = measure(|| {
        let report = store.collect(FILE_SYSTEM, &[root.0], 1000 * SECOND, &mut |_| {})?;
        store.seal()?;
        wait_until_sent(&tiered, 4096)?;
        Ok(report)
    })?;
    ensure!(report.damaged.is_empty(), "{report:?}");
    ensure!(report.dropped == count - live.len() as u64, "{report:?}");
    ensure!(report.punched.is_empty() != copies, "whether the store copies: {report:?}");
    // What nothing lists is removed then.
    std::thread::sleep(Duration::from_secs(7));
    let left: u64 =
        bucket.list("")?.iter().filter(|one| !one.name.contains("outline")).map(|one| one.length).sum();
    let cost = Cost {
        taken,
        written: bucket.written.load(Ordering::Relaxed) - written,
        read: bucket.read.load(Ordering::Relaxed) - read,
        requests: requests(&bucket) - before,
        left,
    };
    drop((store, tiered));
    // All live data can be read, also by a store that has nothing but the bucket.
    let (dir, bucket) = (tempfile::tempdir()?, counting());
    let (tiered, store) = open(dir.path(), bucket.clone(), true)?;
    for number in live {
        let (address, expected) = block(number);
        let found =
            store.retrieve(FILE_SYSTEM, address)?.with_context(|| format!("block {number} is gone"))?;
        ensure!(found.1 == expected, "block {number} is another");
    }
    drop((store, tiered));
    for one in bucket.list("")? {
        bucket.delete(&one.name)?;
    }
    Ok(cost)
}
