//! What waits for the disk at each step, as databases do: one client, side by side.

use crate::lfs;
use crate::package::shell;
use crate::sides::{Round, Side, Sides};
use anyhow::{Context, ensure};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of the file that is written at random places.
const FILE_BYTES: usize = 16 << 20;
/// Bytes of each write.
const PAGE: usize = 4096;

/// Options of the benchmark of synced writes.
#[derive(clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Example: holdfast-bench synced --side holdfast=/mnt/a/team --side local=/tmp\n\
    `scripts/bench-mounts synced` sets up mounts to compare and runs it."
)]
pub struct Options {
    #[command(flatten)]
    sides: Sides,
    /// Writes, appends, files and transactions.
    #[arg(long, default_value_t = 200)]
    times: usize,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    options.sides.compare(|side, number, round| measure(options.times, side, number, round))
}

fn measure(times: usize, side: &Side, number: usize, round: &mut Round<'_>) -> anyhow::Result<()> {
    let [directory] = &side.clients[..] else {
        anyhow::bail!("this needs one client: --side NAME=DIR");
    };
    let directory = directory.join(format!("synced-{}-{number}", std::process::id()));
    fs::create_dir(&directory)?;
    let pages = OpenOptions::new().create_new(true).read(true).write(true).open(directory.join("pages"))?;
    pages.write_all_at(&noise(number as u64, FILE_BYTES), 0)?;
    pages.sync_all()?;
    round.phase("write 4 KiB, fsync", times, || {
        (0..times).try_for_each(|time| write_page(&pages, time as u64))
    })?;
    round.phase("append 4 bytes, O_SYNC", times, || append(&directory.join("log"), times))?;
    round.phase("create 1 KiB, fsync", times, || {
        (0..times).try_for_each(|time| create(&directory.join(format!("file-{time}")), time as u64))
    })?;
    let mut statements = "CREATE TABLE t (number INTEGER, text TEXT);\n".to_owned();
    for time in 0..times {
        writeln!(statements, "INSERT INTO t VALUES ({time}, 'a row of a table');")?;
    }
    fs::write(directory.join("statements"), statements)?;
    round.phase("sqlite, a transaction", times, || shell(&directory, "sqlite3 database < statements"))?;
    let count = fs::read_dir(&directory)?.count();
    ensure!(count == times + 4, "{count} files are there, not {}", times + 4);
    drop(pages);
    fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())
}

fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    lfs::noise(seed, &mut bytes);
    bytes
}

fn write_page(file: &File, seed: u64) -> anyhow::Result<()> {
    let page = noise(seed, PAGE + 8);
    let (page, place) = page.split_at(PAGE);
    let place = u64::from_le_bytes(place.try_into().expect("eight bytes")) % (FILE_BYTES / PAGE) as u64;
    file.write_all_at(page, place * PAGE as u64)?;
    Ok(file.sync_all()?)
}

fn append(path: &Path, times: usize) -> anyhow::Result<()> {
    let flags = rustix::fs::OFlags::SYNC.bits() as i32;
    let mut file = OpenOptions::new().create_new(true).append(true).custom_flags(flags).open(path)?;
    Ok((0..times).try_for_each(|_| file.write_all(b"four"))?)
}

fn create(path: &Path, seed: u64) -> anyhow::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(&noise(seed, 1024))?;
    Ok(file.sync_all()?)
}
