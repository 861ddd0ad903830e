//! The LFS small-file and large-file benchmarks (SUNDR 7.3.1) and creation in one directory from several clients
//! (7.3.2), on mounted file systems side by side.
//!
//! How sides take turns is in [`crate::sides`].

use crate::sides::{Round, Side, Sides};
use anyhow::ensure;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

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
    #[command(flatten)]
    sides: Sides,
    /// Small files of each client.
    #[arg(long, default_value_t = 1000)]
    files: usize,
    /// MiB of the large file; 0 to leave it out.
    #[arg(long, default_value_t = 40)]
    large_mib: usize,
    /// Only create the files (the paper's figure 10).
    #[arg(long)]
    create_only: bool,
    /// All clients of a side work in one directory (group contention) instead of one each.
    #[arg(long)]
    shared: bool,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    options.sides.compare(|side, number, round| measure(options, side, number, round))
}

fn measure(options: &Options, side: &Side, number: usize, round: &mut Round<'_>) -> anyhow::Result<()> {
    let folders: Vec<PathBuf> = side
        .clients
        .iter()
        .enumerate()
        .map(|(client, directory)| {
            let own = if options.shared { 0 } else { client };
            directory.join(format!("lfs-{}-{number}-{own}", std::process::id()))
        })
        .collect();
    let made: &[PathBuf] = if options.shared { &folders[..1] } else { &folders };
    for folder in made {
        fs::create_dir(folder)?;
    }
    let files = options.files;
    round.all("create", files, &folders, |client, folder| create(folder, client, number, files))?;
    if !options.create_only {
        round.all("read", files, &folders, |client, folder| read(folder, client, files))?;
        round.all("unlink", files, &folders, |client, folder| unlink(folder, client, files))?;
    }
    if options.large_mib > 0 {
        let large = |client: usize, folder: &Path| folder.join(format!("large-{client}"));
        let records = options.large_mib * (1 << 20) / RECORD_BYTES;
        let in_order: Vec<usize> = (0..records).collect();
        let shuffled = shuffled(records, number as u64);
        let writing = |round: &mut Round<'_>, name, order: &[usize]| {
            round.all(name, records, &folders, |client, folder| write_records(&large(client, folder), order))
        };
        let reading = |round: &mut Round<'_>, name, order: &[usize]| {
            round.all(name, records, &folders, |client, folder| read_records(&large(client, folder), order))
        };
        writing(round, "large: write in order", &in_order)?;
        reading(round, "large: read in order, warm", &in_order)?;
        writing(round, "large: write at random", &shuffled)?;
        reading(round, "large: read at random, warm", &shuffled)?;
    }
    for folder in made {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}

fn small(folder: &Path, client: usize, file: usize) -> PathBuf {
    folder.join(format!("{client}-{file:05}"))
}

/// Bytes that no store has seen before.
pub fn noise(seed: u64, bytes: &mut [u8]) {
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
