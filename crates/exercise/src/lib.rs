//! Exercises one file of a mounted file system, like fsx: random reads, writes, mapped reads and writes,
//! truncations, extensions, holes, zeroes, copies, syncs, appends, closes and opens, each compared with an
//! array in memory.
//!
//! Given several directories with the same files (mounts on several machines), it closes the file in one and
//! continues in another. Files are close-to-open consistent, which determines two contents exactly: that of
//! the open file, where it is open, and that of the last close or fsync, everywhere else. Both are checked.
//!
//! [`registers`] does something else: it checks whether the answers of several mounts could come from one
//! memory.
//!
//! All randomness comes from a seed. A [`Failure`] names the seed, the step, and the last operations.
//!
//! This is a crate of its own because mapping a file needs unsafe code, all of which is in [`mapping`].

pub mod mapping;
mod operation;
pub mod registers;

use holdfast_sim::random::Random;
use mapping::Mapping;
use operation::{Operation, choose};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Operations that a failure shows.
const REMEMBERED: usize = 30;
/// Largest files of a run, one of them chosen by the seed. Small files are stored in the inode, those up to 1
/// MiB are cut as a whole, larger ones are changed in place.
const SIZES: [u64; 4] = [6 << 10, 200 << 10, 3 << 20, 12 << 20];

/// A difference that was found.
#[derive(Debug)]
pub struct Failure {
    /// Seed of the run.
    pub seed: u64,
    /// Number of the operation, from 0.
    pub step: u64,
    /// A description of the difference.
    pub what: String,
    /// The last operations, oldest first.
    pub log: Vec<String>,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(out, "seed {}, step {}: {}", self.seed, self.step, self.what)?;
        self.log.iter().try_for_each(|line| writeln!(out, "  {line}"))
    }
}

impl std::error::Error for Failure {}

/// Exercises the file `exercised.SEED` of `directories`, all of which have the same files, with `steps`
/// operations, and removes it.
///
/// # Errors
/// The first operation whose result differs from the array's.
///
/// # Panics
/// If there is no directory.
pub fn run(directories: &[PathBuf], seed: u64, steps: u64) -> Result<(), Box<Failure>> {
    let mut log = VecDeque::new();
    let mut step = 0;
    exercise(directories, seed, steps, &mut step, &mut log).map_err(|what| {
        let log = log.into_iter().collect();
        Box::new(Failure { seed, step, what, log })
    })
}

fn exercise(
    directories: &[PathBuf],
    seed: u64,
    steps: u64,
    step: &mut u64,
    log: &mut VecDeque<String>,
) -> Result<(), String> {
    let mut random = Random::new(seed);
    let bytes_max = SIZES[(seed % SIZES.len() as u64) as usize];
    let paths: Vec<PathBuf> =
        directories.iter().map(|directory| directory.join(format!("exercised.{seed}"))).collect();
    let mut run = Run::new(paths, bytes_max)?;
    while *step < steps {
        let operation = choose(&mut random, bytes_max, run.array.len() as u64, run.paths.len());
        log.push_back(format!("{step}: {operation:x?} of {:#x} bytes", run.array.len()));
        if log.len() > REMEMBERED {
            log.pop_front();
        }
        run.carry_out(&operation, &mut random)?;
        *step += 1;
    }
    run.end()
}

struct Run {
    paths: Vec<PathBuf>,
    /// Index of the directory in which the file is open.
    at: usize,
    file: Option<File>,
    /// Whether it is open with O_SYNC.
    synchronous: bool,
    /// The content of the open file.
    array: Vec<u8>,
    /// The file's content at the last close or fsync.
    published: Vec<u8>,
    bytes_max: u64,
}

fn told<T>(what: &str, result: io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

fn opened(path: &Path, synchronous: bool) -> Result<File, String> {
    let flags = if synchronous { OFlags::SYNC.bits() as i32 } else { 0 };
    told("open", OpenOptions::new().read(true).write(true).custom_flags(flags).open(path))
}

impl Run {
    fn new(paths: Vec<PathBuf>, bytes_max: u64) -> Result<Run, String> {
        let new = OpenOptions::new().read(true).write(true).create_new(true).open(&paths[0]);
        let file = Some(told("create", new)?);
        let (array, published) = (Vec::new(), Vec::new());
        Ok(Run { paths, at: 0, file, synchronous: false, array, published, bytes_max })
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("it is open between operations")
    }

    /// A range that ends within the file, or nothing.
    fn within(&self, range: &Range<u64>) -> Range<usize> {
        let end = (self.array.len() as u64).min(range.end) as usize;
        (range.start as usize).min(end)..end
    }

    fn extend_to(&mut self, end: u64) {
        if (self.array.len() as u64) < end {
            self.array.resize(end as usize, 0);
        }
    }

    fn synced_if_synchronous(&mut self) {
        if self.synchronous {
            self.published.clone_from(&self.array);
        }
    }

    fn carry_out(&mut self, operation: &Operation, random: &mut Random) -> Result<(), String> {
        match operation {
            Operation::Read(range) => {
                let mut bytes = vec![0xa5; (range.end - range.start) as usize];
                let got = read_fully(self.file(), &mut bytes, range.start)?;
                same(&self.array[self.within(range)], &bytes[..got], range.start)?;
            }
            Operation::Write(range) => {
                let bytes = noise(random, range);
                told("write", self.file().write_all_at(&bytes, range.start))?;
                self.extend_to(range.end);
                self.array[range.start as usize..range.end as usize].copy_from_slice(&bytes);
                self.synced_if_synchronous();
            }
            Operation::MapRead(range) => {
                let range = self.within(range);
                if !range.is_empty() {
                    let mapping = told("mmap", Mapping::new(self.file(), range.end as u64))?;
                    same(&self.array[range.clone()], &mapping.read(range.clone()), range.start as u64)?;
                }
            }
            Operation::MapWrite(range, sync) => {
                if range.end > self.array.len() as u64 {
                    told("ftruncate before mmap", self.file().set_len(range.end))?;
                    self.extend_to(range.end);
                }
                let bytes = noise(random, range);
                let mapping = told("mmap", Mapping::new(self.file(), range.end))?;
                mapping.write(range.start as usize, &bytes);
                self.array[range.start as usize..range.end as usize].copy_from_slice(&bytes);
                // With O_SYNC the kernel writes mapped pages back as synced writes, at some moment.
                if *sync || self.synchronous {
                    told("msync", mapping.sync())?;
                    self.published.clone_from(&self.array);
                }
            }
            Operation::SetSize(size) => {
                told("ftruncate", self.file().set_len(*size))?;
                self.array.resize(*size as usize, 0);
            }
            Operation::Punch(range) => {
                self.fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, range)?;
                let range = self.within(range);
                self.array[range].fill(0);
            }
            Operation::Zero(range, keep_size) => {
                let keep = if *keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                self.fallocate(FallocateFlags::ZERO_RANGE | keep, range)?;
                if !keep_size {
                    self.extend_to(range.end);
                }
                let range = self.within(range);
                self.array[range].fill(0);
            }
            Operation::Allocate(range) => {
                self.fallocate(FallocateFlags::empty(), range)?;
                self.extend_to(range.end);
            }
            Operation::Copy(from, to) => self.copy(from, *to)?,
            Operation::Sync => {
                told("fsync", self.file().sync_all())?;
                self.published.clone_from(&self.array);
            }
            Operation::Seek(offset) => self.seek(*offset)?,
            Operation::Reopen(at, synchronous) => {
                self.file = None;
                self.published.clone_from(&self.array);
                (self.at, self.synchronous) = (*at, *synchronous);
                self.file = Some(opened(&self.paths[self.at], self.synchronous)?);
            }
            Operation::Aside(offset, length) => {
                let at = offset.unwrap_or(self.array.len() as u64);
                let range = at..at + length;
                let bytes = noise(random, &range);
                let mut how = OpenOptions::new();
                let how = if offset.is_some() { how.write(true) } else { how.append(true) };
                let mut aside = told("open aside", how.open(&self.paths[self.at]))?;
                let written = match offset {
                    Some(offset) => aside.write_all_at(&bytes, *offset),
                    None => aside.write_all(&bytes),
                };
                told("write aside", written)?;
                drop(aside);
                self.extend_to(range.end);
                self.array[range.start as usize..range.end as usize].copy_from_slice(&bytes);
                self.published.clone_from(&self.array);
            }
            Operation::Look(at) => {
                let expected = if *at == self.at { &self.array } else { &self.published };
                let seen = told("read as a whole", std::fs::read(&self.paths[*at]))?;
                same(expected, &seen, 0)?;
            }
        }
        let size = told("fstat", self.file().metadata())?.len();
        if size != self.array.len() as u64 {
            return Err(format!("the size is {size:#x}, not {:#x}", self.array.len()));
        }
        Ok(())
    }

    fn fallocate(&self, flags: FallocateFlags, range: &Range<u64>) -> Result<(), String> {
        let done = rustix::fs::fallocate(self.file(), flags, range.start, range.end - range.start);
        told(&format!("fallocate {flags:?}"), done.map_err(io::Error::from))
    }

    fn copy(&mut self, from: &Range<u64>, to: u64) -> Result<(), String> {
        let source = self.within(from);
        let target = to..to + source.len() as u64;
        let overlaps = (source.start as u64) < target.end && target.start < source.end as u64;
        if source.is_empty() || overlaps || target.end > self.bytes_max {
            return Ok(());
        }
        let (mut at, mut into) = (source.start as u64, to);
        while at < source.end as u64 {
            let left = source.end - at as usize;
            let file = self.file();
            let copied = rustix::fs::copy_file_range(file, Some(&mut at), file, Some(&mut into), left);
            if told("copy_file_range", copied.map_err(io::Error::from))? == 0 {
                return Err(format!("copy_file_range ended at {at:#x}, not {:#x}", source.end));
            }
        }
        self.extend_to(target.end);
        self.array.copy_within(source, to as usize);
        self.synced_if_synchronous();
        Ok(())
    }

    /// A reported hole must be zeroes; after its end is data, which may be anything.
    fn seek(&self, offset: u64) -> Result<(), String> {
        let size = self.array.len() as u64;
        let data = match rustix::fs::seek(self.file(), SeekFrom::Data(offset)) {
            Ok(found) => found,
            Err(rustix::io::Errno::NXIO) => size.max(offset),
            Err(error) => return Err(format!("SEEK_DATA: {error}")),
        };
        if data < offset {
            return Err(format!("SEEK_DATA went back to {data:#x}"));
        }
        if self.array[self.within(&(offset..data))].iter().any(|byte| *byte != 0) {
            return Err(format!("SEEK_DATA passed over data before {data:#x}"));
        }
        match rustix::fs::seek(self.file(), SeekFrom::Hole(offset)) {
            Ok(found) if offset < size && (offset..=size).contains(&found) => {
                // A byte that is not zero may be just before the hole, never the first of it.
                match self.array.get(found as usize) {
                    Some(byte) if *byte != 0 => Err(format!("SEEK_HOLE found data at {found:#x}")),
                    _ => Ok(()),
                }
            }
            Err(rustix::io::Errno::NXIO) if offset >= size => Ok(()),
            other => Err(format!("SEEK_HOLE: {other:?}")),
        }
    }

    fn end(mut self) -> Result<(), String> {
        self.file = None;
        for path in &self.paths {
            same(&self.array, &told("read at the end", std::fs::read(path))?, 0)?;
        }
        told("unlink", std::fs::remove_file(&self.paths[self.at]))
    }
}

/// Reads until the end of the range or of the file.
fn read_fully(file: &File, bytes: &mut [u8], offset: u64) -> Result<usize, String> {
    let mut done = 0;
    while done < bytes.len() {
        match told("read", file.read_at(&mut bytes[done..], offset + done as u64))? {
            0 => break,
            got => done += got,
        }
    }
    Ok(done)
}

/// Bytes that differ for each write and each offset.
fn noise(random: &mut Random, range: &Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((range.end - range.start) as usize + 8);
    while (bytes.len() as u64) < range.end - range.start {
        bytes.extend(random.number().to_le_bytes());
    }
    bytes.truncate((range.end - range.start) as usize);
    bytes
}

fn same(expected: &[u8], seen: &[u8], from: u64) -> Result<(), String> {
    if expected == seen {
        return Ok(());
    }
    if expected.len() != seen.len() {
        return Err(format!("{:#x} bytes were read, not {:#x}", seen.len(), expected.len()));
    }
    let differs = |at: &usize| expected[*at] != seen[*at];
    let (first, count) =
        ((0..seen.len()).find(differs).unwrap_or(0), (0..seen.len()).filter(differs).count());
    let last = (0..seen.len()).rfind(differs).unwrap_or(0);
    Err(format!(
        "{count:#x} bytes are wrong, from {:#x} to {:#x}; the first is {:#x}, not {:#x}",
        from + first as u64,
        from + last as u64,
        seen[first],
        expected[first]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ordinary directory is what it is compared with: no seed finds a fault in it.
    #[test]
    fn an_ordinary_file_system_passes() {
        let directory = tempfile::tempdir().expect("a directory");
        for seed in 0..6 {
            run(&[directory.path().to_owned()], seed, 300).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }

    /// A file system whose second mount shows something else is found out, whatever it shows instead: nothing,
    /// or a file of the same name.
    #[test]
    fn a_wrong_file_is_found_out() {
        let directory = tempfile::tempdir().expect("a directory");
        for (seed, other) in [(1, None), (2, Some("not it"))] {
            let pair = ["a", "b"].map(|name| directory.path().join(format!("{seed}{name}")));
            pair.iter().for_each(|path| std::fs::create_dir(path).expect("made"));
            if let Some(text) = other {
                std::fs::write(pair[1].join(format!("exercised.{seed}")), text).expect("written");
            }
            let failure = run(&pair, seed, 300).expect_err("the directories are not the same");
            assert_eq!(failure.seed, seed);
            let last = failure.log.last().expect("a log");
            assert!(last.contains("Reopen(1, ") || last.contains("Look(1)"), "{failure}");
        }
    }
}
