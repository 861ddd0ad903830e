//! The LFS small-file and large-file benchmarks (SUNDR 7.3.1) and creation in one directory from several clients
//! (7.3.2), on mounted file systems side by side.
//!
//! A side is a name and one directory for each of its clients, usually the same directory of different mounts or
//! different directories of one. All clients of a side work at once; sides take turns, and in each round the order
//! of the sides is turned, so that whatever else the machine does falls on all of them.

use crate::report::Report;
use anyhow::{Context, bail, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

/// A small file's size, as in the paper.
const SMALL_BYTES: usize = 1024;
/// One read or write of the large file, as in the paper.
const RECORD_BYTES: usize = 8192;

/// Options of the LFS benchmark.
#[derive(clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Example: holdfast-bench lfs --side holdfast=/mnt/a/team --side sshfs=/mnt/sshfs\n\
    Two clients in one directory: --side holdfast=/mnt/alice/team,/mnt/bob/team --shared\n\
    `scripts/bench-mounts` sets up mounts to compare and runs it."
)]
pub struct Options {
    /// Name and directories (one for each client) of what is measured; the first is compared to the others.
    #[arg(long = "side", value_name = "NAME=DIR[,DIR...]", required = true)]
    sides: Vec<Side>,
    /// Small files of each client.
    #[arg(long, default_value_t = 1000)]
    files: usize,
    /// MiB of the large file; 0 to leave it out.
    #[arg(long, default_value_t = 40)]
    large_mib: usize,
    /// Rounds; every side is measured once in each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// All clients of a side work in one directory (group contention) instead of one each.
    #[arg(long)]
    shared: bool,
    /// Also write the figures to this file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One file system, by its clients' directories.
#[derive(Clone)]
struct Side {
    name: String,
    clients: Vec<PathBuf>,
}

impl FromStr for Side {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Side> {
        let Some((name, directories)) = text.split_once('=') else { bail!("expected NAME=DIR[,DIR...]") };
        let clients: Vec<PathBuf> = directories.split(',').map(PathBuf::from).collect();
        for client in &clients {
            ensure!(client.is_dir(), "{}: not a directory", client.display());
        }
        Ok(Side { name: name.to_owned(), clients })
    }
}

/// Seconds of each phase, in order.
type Phases = Vec<(&'static str, f64)>;

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut rounds: Vec<Vec<Phases>> = vec![Vec::new(); options.sides.len()];
    for round in 0..options.rounds {
        for turn in 0..options.sides.len() {
            let at = (turn + round) % options.sides.len();
            let side = &options.sides[at];
            rounds[at].push(side.measure(options, round).with_context(|| side.name.clone())?);
        }
        eprintln!("round {} of {} done", round + 1, options.rounds);
    }
    let mut report = Report::default();
    let names: Vec<&'static str> = rounds[0][0].iter().map(|(name, _)| *name).collect();
    let seconds =
        |at: usize, phase: usize| -> Vec<f64> { rounds[at].iter().map(|phases| phases[phase].1).collect() };
    for (phase, name) in names.iter().enumerate() {
        for (at, side) in options.sides.iter().enumerate() {
            let milliseconds: Vec<f64> = seconds(at, phase).iter().map(|taken| taken * 1e3).collect();
            report.figure(&format!("{name}: {}", side.name), "ms", &milliseconds, &[]);
        }
    }
    for (phase, name) in names.iter().enumerate() {
        for at in 1..options.sides.len() {
            let title = format!("{name}, time: {} / {}", options.sides[0].name, options.sides[at].name);
            report.ratio(&title, &seconds(0, phase), &seconds(at, phase));
        }
    }
    report.finish(options.json.as_deref())
}

impl Side {
    fn measure(&self, options: &Options, round: usize) -> anyhow::Result<Phases> {
        let folders: Vec<PathBuf> = self
            .clients
            .iter()
            .enumerate()
            .map(|(client, directory)| {
                let own = if options.shared { 0 } else { client };
                directory.join(format!("lfs-{}-{round}-{own}", std::process::id()))
            })
            .collect();
        let made: &[PathBuf] = if options.shared { &folders[..1] } else { &folders };
        for folder in made {
            fs::create_dir(folder)?;
        }
        let mut phases = Phases::new();
        phases.push((
            "create",
            self.all(&folders, |client, folder| create(folder, client, round, options.files))?,
        ));
        phases.push(("read", self.all(&folders, |client, folder| read(folder, client, options.files))?));
        phases.push(("unlink", self.all(&folders, |client, folder| unlink(folder, client, options.files))?));
        if options.large_mib > 0 {
            let large = |client: usize, folder: &Path| folder.join(format!("large-{client}"));
            let records = options.large_mib * (1 << 20) / RECORD_BYTES;
            let in_order: Vec<usize> = (0..records).collect();
            let shuffled = shuffled(records, round as u64);
            let writing = |order: &[usize]| {
                self.all(&folders, |client, folder| write_records(&large(client, folder), order))
            };
            let reading = |order: &[usize]| {
                self.all(&folders, |client, folder| read_records(&large(client, folder), order))
            };
            phases.push(("large: write in order", writing(&in_order)?));
            phases.push(("large: read in order, warm", reading(&in_order)?));
            phases.push(("large: write at random", writing(&shuffled)?));
            phases.push(("large: read at random, warm", reading(&shuffled)?));
        }
        for folder in made {
            fs::remove_dir_all(folder)?;
        }
        Ok(phases)
    }

    /// Runs one phase on all clients at once; seconds until the last is done.
    fn all(
        &self,
        folders: &[PathBuf],
        work: impl Fn(usize, &Path) -> anyhow::Result<()> + Sync,
    ) -> anyhow::Result<f64> {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let workers: Vec<_> = folders
                .iter()
                .enumerate()
                .map(|(client, folder)| {
                    let work = &work;
                    scope.spawn(move || work(client, folder))
                })
                .collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
        })?;
        Ok(start.elapsed().as_secs_f64())
    }
}

fn small(folder: &Path, client: usize, file: usize) -> PathBuf {
    folder.join(format!("{client}-{file:05}"))
}

/// Bytes that no store has seen before.
fn noise(seed: u64, bytes: &mut [u8]) {
    let mut reader = blake3::Hasher::new().update(&seed.to_le_bytes()).update(&now()).finalize_xof();
    reader.fill(bytes);
}

fn now() -> [u8; 16] {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |age| age.as_nanos())
        .to_le_bytes()
}

fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut random = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    for at in (1..count).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (random >> 33) as usize % (at + 1));
    }
    order
}

fn create(folder: &Path, client: usize, round: usize, files: usize) -> anyhow::Result<()> {
    let mut bytes = [0; SMALL_BYTES];
    for file in 0..files {
        noise((round * 1000 + client) as u64 ^ (file as u64) << 32, &mut bytes);
        File::create_new(small(folder, client, file))?.write_all(&bytes)?;
    }
    Ok(())
}

fn read(folder: &Path, client: usize, files: usize) -> anyhow::Result<()> {
    let mut bytes = Vec::with_capacity(SMALL_BYTES);
    for file in 0..files {
        bytes.clear();
        File::open(small(folder, client, file))?.read_to_end(&mut bytes)?;
        ensure!(bytes.len() == SMALL_BYTES, "a file of {} bytes came back", bytes.len());
    }
    Ok(())
}

fn unlink(folder: &Path, client: usize, files: usize) -> anyhow::Result<()> {
    (0..files).try_for_each(|file| Ok(fs::remove_file(small(folder, client, file))?))
}

/// Until it is on the server's disk, on every side.
fn write_records(path: &Path, order: &[usize]) -> anyhow::Result<()> {
    let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    let mut bytes = vec![0; RECORD_BYTES];
    for record in order {
        noise(*record as u64, &mut bytes);
        file.seek(SeekFrom::Start((record * RECORD_BYTES) as u64))?;
        file.write_all(&bytes)?;
    }
    file.sync_all()?;
    Ok(())
}

fn read_records(path: &Path, order: &[usize]) -> anyhow::Result<()> {
    let mut file = File::open(path)?;
    let mut bytes = vec![0; RECORD_BYTES];
    for record in order {
        file.seek(SeekFrom::Start((record * RECORD_BYTES) as u64))?;
        file.read_exact(&mut bytes)?;
    }
    Ok(())
}
