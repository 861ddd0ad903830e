//! What one operation costs: rounds, syncs, bytes and time, and where the time goes.
//!
//! A server and a mount run in this process and talk over the loopback network, as two machines would. Programs
//! are played by calls of the inode API, which are those that the kernel makes: the kernel's own part is not
//! measured. Two sites take turns, batch by batch, so that both meet the same noise: on one a sync is a sync, on
//! the other it is free (the paper's server with NVRAM, and a client that has it too).

pub mod meters;
pub mod site;

use crate::report::{median, micros};
use anyhow::Context;
use holdfast_client::files::{Caller, FileHandleId, OpenFlags, WriteSource};
use holdfast_crypto::{DigestKey, Domain, Signature, SigningKey};
use holdfast_log::{LocalStorage, Log, LogConfig};
use holdfast_protocol::message::{Request, Response};
use holdfast_rpc::{Connection, Connector, ServerAddress};
use meters::Syncs;
use serde::Serialize;
use site::{Count, Counts, Site};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files made, and held open, in one go.
const BATCH: usize = 64;
const FILE_BYTES: usize = 1024;
/// How often each part is timed between two batches.
const PARTS_A_ROUND: usize = 50;
/// About as long as what is signed.
const MESSAGE: [u8; 300] = [3; 300];

/// Options of the operations benchmark.
#[derive(clap::Args)]
pub struct Options {
    /// Files made, read and removed for each line of the table; rounded up to batches of 64.
    #[arg(long, default_value_t = 512)]
    files: usize,
    /// Numbers of threads to try.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 8])]
    threads: Vec<usize>,
    /// Where to work; by default a new directory under the temporary one. Everything in it is removed.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Also write the figures to this file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    anyhow::ensure!(options.threads.iter().all(|threads| (1..=BATCH).contains(threads)), "1 to 64 threads");
    let dir = match &options.dir {
        Some(dir) => tempfile::tempdir_in(dir)?,
        None => tempfile::tempdir()?,
    };
    let sites = [Syncs::Real, Syncs::Free]
        .map(|syncs| Ok((syncs, Site::new(&dir.path().join(format!("{syncs:?}")), syncs)?)));
    let sites: Vec<(Syncs, Site)> = sites.into_iter().collect::<anyhow::Result<_>>()?;
    let mut cells: Vec<Cell> = Vec::new();
    for (syncs, _) in &sites {
        cells.extend(options.threads.iter().map(|threads| Cell::new(*syncs, *threads)));
    }
    let batches = options.files.div_ceil(BATCH);
    // The first batch warms caches and allocates numbers, and does not count.
    let mut warming = Cell::new(Syncs::Real, 1);
    for (syncs, site) in &sites {
        for threads in &options.threads {
            let mut cell = Cell::new(*syncs, *threads);
            play(site, &mut cell, &format!("warming-{threads}"))?;
            if *syncs == Syncs::Real {
                warming = cell;
            }
        }
    }
    // Records of the sizes that were just written, on the same disk.
    let mut parts = Parts::new(dir.path(), &sites[0].1.server, warming.record_bytes())?;
    for batch in 0..batches {
        for cell in &mut cells {
            let (_, site) = sites.iter().find(|(syncs, _)| *syncs == cell.syncs).context("no such site")?;
            let names = format!("{batch}-{}", cell.threads);
            play(site, cell, &names)?;
        }
        parts.round()?;
        eprintln!("batch {} of {batches} done", batch + 1);
    }
    let rows: Vec<Row> = cells.iter().flat_map(Cell::rows).collect();
    let report = Report { parts: parts.finish(), rows };
    report.print();
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_vec_pretty(&report)?)?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    Create,
    Write,
    Close,
    Stat,
    Open,
    Read,
    Unlink,
}

impl Operation {
    const ALL: [Operation; 7] = [
        Operation::Create,
        Operation::Write,
        Operation::Close,
        Operation::Stat,
        Operation::Open,
        Operation::Read,
        Operation::Unlink,
    ];

    fn name(self) -> &'static str {
        match self {
            Operation::Create => "create",
            Operation::Write => "write 1 KB",
            Operation::Close => "close after writing",
            Operation::Stat => "stat",
            Operation::Open => "open to read",
            Operation::Read => "read 1 KB, close",
            Operation::Unlink => "unlink",
        }
    }
}

/// What was measured of one operation at one number of threads.
#[derive(Clone, Default)]
struct Sample {
    micros: Vec<f64>,
    /// From the first start to the last end.
    elapsed: Duration,
    counts: Counts,
}

struct Cell {
    syncs: Syncs,
    threads: usize,
    samples: [Sample; Operation::ALL.len()],
}

impl Cell {
    fn new(syncs: Syncs, threads: usize) -> Cell {
        Cell { syncs, threads, samples: Default::default() }
    }

    fn rows(&self) -> Vec<Row> {
        Operation::ALL
            .iter()
            .zip(&self.samples)
            .map(|(operation, sample)| self.row(*operation, sample))
            .collect()
    }

    fn row(&self, operation: Operation, sample: &Sample) -> Row {
        let count = sample.micros.len().max(1) as f64;
        let each = |which: Count| sample.counts.of(which) / count;
        Row {
            operation: operation.name(),
            syncs: if self.syncs == Syncs::Real { "real" } else { "free" },
            threads: self.threads,
            count: sample.micros.len(),
            per_second: count / sample.elapsed.as_secs_f64(),
            p50_us: percentile(&sample.micros, 0.5),
            p90_us: percentile(&sample.micros, 0.9),
            mean_us: sample.micros.iter().sum::<f64>() / count,
            busy_us: micros(sample.elapsed) / count,
            signed: each(Count::Operations),
            rounds: each(Count::Rounds),
            requests: each(Count::Calls),
            client_syncs: each(Count::ClientSyncs),
            server_syncs: each(Count::ServerSyncs),
            bytes_sent: each(Count::Sent),
            bytes_received: each(Count::Received),
            client_bytes_written: each(Count::ClientWritten),
            server_bytes_written: each(Count::ServerWritten),
            client_sync_us: each(Count::ClientSyncTime) / 1e3,
            client_write_us: each(Count::ClientWriteTime) / 1e3,
            server_sync_us: each(Count::ServerSyncTime) / 1e3,
            server_write_us: each(Count::ServerWriteTime) / 1e3,
            waiting_us: each(Count::CallTime) / 1e3,
        }
    }

    /// Bytes that the client and the server wrote for each sync, all operations together.
    fn record_bytes(&self) -> (f64, f64) {
        let sum = |which| self.samples.iter().map(|sample| sample.counts.of(which)).sum::<f64>();
        let mean = |bytes, syncs| sum(bytes) / sum(syncs).max(1.0);
        (mean(Count::ClientWritten, Count::ClientSyncs), mean(Count::ServerWritten, Count::ServerSyncs))
    }
}

/// Makes, looks at, reads and removes one batch of files.
fn play(site: &Site, cell: &mut Cell, names: &str) -> anyhow::Result<()> {
    let files = &site.files;
    let content: Vec<u8> = (0..FILE_BYTES).map(|at| (at * 31 % 251) as u8).collect();
    let name = |file: usize| format!("{names}-{file}").into_bytes();
    let exclusive = OpenFlags { exclusive: true, ..OpenFlags::READ_WRITE };
    let close = |handle: FileHandleId| {
        files.flush(handle)?;
        files.release(handle);
        Ok(())
    };

    let handles = measure(site, cell, Operation::Create, |caller, file| {
        Ok(files.create(caller, site.home, &name(file), 0o644, exclusive)?.1.handle)
    })?;
    measure(site, cell, Operation::Write, |_, file| {
        Ok(files.write(handles[file], 0, &content, WriteSource::Call).map(drop)?)
    })?;
    measure(site, cell, Operation::Close, |_, file| close(handles[file]))?;
    measure(site, cell, Operation::Stat, |caller, file| {
        Ok(files.lookup(caller, site.home, &name(file)).map(drop)?)
    })?;
    let handles = measure(site, cell, Operation::Open, |caller, file| {
        let found = files.lookup(caller, site.home, &name(file))?;
        Ok(files.open(caller, found.ino, OpenFlags::READ)?.handle)
    })?;
    measure(site, cell, Operation::Read, |_, file| {
        anyhow::ensure!(files.read(handles[file], 0, 4096)? == content, "other bytes came back");
        close(handles[file])
    })?;
    measure(site, cell, Operation::Unlink, |caller, file| {
        Ok(files.unlink(caller, site.home, &name(file))?)
    })?;
    Ok(())
}

/// Does something to each file of a batch, shared among the cell's threads. What goes on in the background is
/// waited for, outside of the latencies, so that it is counted where it belongs.
fn measure<T: Send>(
    site: &Site,
    cell: &mut Cell,
    operation: Operation,
    work: impl Fn(&Caller, usize) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let (threads, work) = (cell.threads, &work);
    let before = site.counts();
    let start = Instant::now();
    let results: Vec<anyhow::Result<Vec<(usize, f64, T)>>> = std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let caller = Caller { uid: 1000, gid: 1000, thread: thread as u32 + 1 };
                    let files = (thread..BATCH).step_by(threads);
                    files
                        .map(|file| {
                            let start = Instant::now();
                            let result = work(&caller, file)?;
                            Ok((file, micros(start.elapsed()), result))
                        })
                        .collect()
                })
            })
            .collect();
        spawned.into_iter().map(|thread| thread.join().expect("no panics")).collect()
    });
    let sample = &mut cell.samples[operation as usize];
    sample.elapsed += start.elapsed();
    let mut results: Vec<(usize, f64, T)> =
        results.into_iter().collect::<anyhow::Result<Vec<_>>>()?.into_iter().flatten().collect();
    results.sort_by_key(|(file, ..)| *file);
    site.engine.flush_commits()?;
    sample.counts.gain(&before, &site.counts());
    sample.micros.extend(results.iter().map(|(_, micros, _)| *micros));
    Ok(results.into_iter().map(|(.., result)| result).collect())
}

/// What an operation is made of, timed one by one between the batches, so that it meets the same noise.
struct Parts {
    key: SigningKey,
    signature: Signature,
    logs: [(String, Log, Vec<u8>); 2],
    connection: Connection,
    taken: BTreeMap<String, Vec<f64>>,
}

impl Parts {
    fn new(dir: &Path, server: &ServerAddress, record_bytes: (f64, f64)) -> anyhow::Result<Parts> {
        let key = SigningKey::from_seed(&[7; 32]);
        let log = |whose: &str, bytes: f64| -> anyhow::Result<(String, Log, Vec<u8>)> {
            let storage = LocalStorage::open(dir.join(format!("parts of the {whose}")))?;
            let (log, _) = Log::open(Arc::new(storage), LogConfig::default())?;
            let bytes = bytes as usize;
            Ok((format!("append {bytes} bytes and fdatasync ({whose})"), log, vec![9; bytes]))
        };
        Ok(Parts {
            signature: key.sign(Domain::Structure, &MESSAGE),
            logs: [log("client's state", record_bytes.0)?, log("server's log", record_bytes.1)?],
            connection: Connector::new(key.clone(), vec![server.clone()], None)
                .connect(Duration::from_secs(10))?,
            key,
            taken: BTreeMap::new(),
        })
    }

    fn round(&mut self) -> anyhow::Result<()> {
        let Parts { key, signature, logs, connection, taken } = self;
        let mut part = |name: &str, work: &dyn Fn() -> anyhow::Result<()>| -> anyhow::Result<()> {
            for _ in 0..PARTS_A_ROUND {
                let start = Instant::now();
                work()?;
                taken.entry(name.to_owned()).or_default().push(micros(start.elapsed()));
            }
            Ok(())
        };
        part("sign 300 bytes", &|| {
            black_box(key.sign(Domain::Structure, black_box(&MESSAGE)));
            Ok(())
        })?;
        let public = key.public();
        part("verify 300 bytes", &|| {
            anyhow::ensure!(public.verify(Domain::Structure, black_box(&MESSAGE), signature), "not signed");
            Ok(())
        })?;
        let chunk = [5; 8192];
        part("digest 8 KiB", &|| {
            black_box(DigestKey::WELL_KNOWN.digest(Domain::Chunk, black_box(&chunk)));
            Ok(())
        })?;
        for (name, log, body) in logs {
            part(name, &|| {
                log.append(1, body)?;
                Ok(log.sync()?)
            })?;
        }
        part("ping over TLS on loopback", &|| {
            let answer = connection.call_blocking(Request::Ping, Duration::from_secs(10))?;
            anyhow::ensure!(matches!(answer, Response::Done), "a ping was answered with {answer:?}");
            Ok(())
        })
    }

    fn finish(self) -> Vec<Part> {
        let part = |(name, taken): (String, Vec<f64>)| Part {
            name,
            p50_us: percentile(&taken, 0.5),
            p90_us: percentile(&taken, 0.9),
            mean_us: taken.iter().sum::<f64>() / taken.len() as f64,
        };
        self.taken.into_iter().map(part).collect()
    }
}

#[derive(Serialize)]
struct Part {
    name: String,
    p50_us: f64,
    p90_us: f64,
    mean_us: f64,
}

/// One line: everything but the latencies is a mean for one operation.
#[derive(Serialize)]
struct Row {
    operation: &'static str,
    /// Whether syncs at both ends reached the disk.
    syncs: &'static str,
    threads: usize,
    count: usize,
    per_second: f64,
    p50_us: f64,
    p90_us: f64,
    mean_us: f64,
    /// Elapsed time by the number of operations, over all threads.
    busy_us: f64,
    signed: f64,
    rounds: f64,
    requests: f64,
    client_syncs: f64,
    server_syncs: f64,
    bytes_sent: f64,
    bytes_received: f64,
    client_bytes_written: f64,
    server_bytes_written: f64,
    client_sync_us: f64,
    client_write_us: f64,
    server_sync_us: f64,
    server_write_us: f64,
    /// From sending requests until their answers were there, the server's syncs included.
    waiting_us: f64,
}

#[derive(Serialize)]
struct Report {
    parts: Vec<Part>,
    rows: Vec<Row>,
}

impl Report {
    fn print(&self) {
        println!("\n{:<52} {:>8} {:>8} {:>8}", "part (us)", "p50", "p90", "mean");
        for Part { name, p50_us, p90_us, mean_us } in &self.parts {
            println!("{name:<52} {p50_us:>8.1} {p90_us:>8.1} {mean_us:>8.1}");
        }
        println!(
            "\n{:<20} {:<5} {:>3} {:>8} {:>8} {:>8} {:>6} {:>6} {:>5} {:>5} {:>7} {:>7}",
            "operation",
            "syncs",
            "thr",
            "p50 us",
            "p90 us",
            "ops/s",
            "signed",
            "rounds",
            "fs cl",
            "fs sv",
            "sent B",
            "recv B"
        );
        for row in &self.rows {
            println!(
                "{:<20} {:<5} {:>3} {:>8.0} {:>8.0} {:>8.0} {:>6.2} {:>6.2} {:>5.2} {:>5.2} {:>7.0} {:>7.0}",
                row.operation,
                row.syncs,
                row.threads,
                row.p50_us,
                row.p90_us,
                row.per_second,
                row.signed,
                row.rounds,
                row.client_syncs,
                row.server_syncs,
                row.bytes_sent,
                row.bytes_received
            );
        }
        println!(
            "\n{:<20} {:<5} {:>7} {:>11} {:>12} {:>11} {:>12} {:>11} {:>10}",
            "us, one thread",
            "syncs",
            "mean",
            "client sync",
            "client write",
            "server sync",
            "server write",
            "rest server",
            "rest here"
        );
        for row in self.rows.iter().filter(|row| row.threads == 1) {
            let server = row.waiting_us - row.server_sync_us - row.server_write_us;
            let here = row.mean_us - row.waiting_us - row.client_sync_us - row.client_write_us;
            println!(
                "{:<20} {:<5} {:>7.0} {:>11.0} {:>12.0} {:>11.0} {:>12.0} {:>11.0} {:>10.0}",
                row.operation,
                row.syncs,
                row.mean_us,
                row.client_sync_us,
                row.client_write_us,
                row.server_sync_us,
                row.server_write_us,
                server,
                here
            );
        }
    }
}

/// The value that `share` of all values do not exceed.
fn percentile(values: &[f64], share: f64) -> f64 {
    if share == 0.5 {
        return median(values);
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: percentiles are values that occurred (the median aside), and a small run on both sites counts a
    /// signed operation, a round and a sync at both ends for each file created.
    #[test]
    fn a_small_run_counts() -> anyhow::Result<()> {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!((percentile(&values, 0.9), percentile(&values, 1.0)), (9.0, 10.0));
        for syncs in [Syncs::Real, Syncs::Free] {
            let dir = tempfile::tempdir()?;
            let site = Site::new(dir.path(), syncs)?;
            let mut cell = Cell::new(syncs, 1);
            play(&site, &mut cell, "file")?;
            let create = &cell.rows()[Operation::Create as usize];
            assert_eq!(create.count, BATCH);
            for each in [create.signed, create.rounds, create.client_syncs, create.server_syncs] {
                assert!(each >= 1.0, "{each}");
            }
        }
        Ok(())
    }
}
