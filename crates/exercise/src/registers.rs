//! Small files as registers: several processes, each on a mount of its own, write and read them, and note
//! when each call began and how it ended. Whatever happens to servers meanwhile, these notes must be possible
//! answers of one register, one call after the other, each at some moment between its beginning and its end
//! (linearizability; Herlihy and Wing, 1990).
//!
//! A write that failed may have happened, then or any time later; a read that failed means nothing.

use holdfast_sim::random::Random;
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of a register: a number in decimal.
const BYTES: usize = 12;

/// After a call that could not be made: where it plays may be gone for a while.
const PAUSE: Duration = Duration::from_millis(10);

/// A call and its result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// Number of the register.
    pub register: u32,
    /// The access that it made.
    pub what: Access,
    /// When the call began, in nanoseconds of the machine's monotonic clock.
    pub begun_ns: u64,
    /// When the call ended; `None`: it failed.
    pub ended_ns: Option<u64>,
}

/// An access to a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Wrote this, and synced it.
    Write(u64),
    /// Opened it and found this.
    Read(u64),
}

/// Creates registers with the value 0 in `directory`.
///
/// # Errors
/// Of the file system.
pub fn make(directory: &Path, registers: u32) -> io::Result<()> {
    (0..registers).try_for_each(|register| {
        let mut file = File::create(path(directory, register))?;
        write!(file, "{:0BYTES$}", 0)?;
        file.sync_all()
    })
}

/// Writes and reads registers in `directory` until there is a file `stop`, and notes each call in `history`.
/// It writes `writer` and a count, so nothing is written twice.
///
/// # Errors
/// Of the history file; or a register has a value that nobody writes.
pub fn play(directory: &Path, registers: u32, writer: u64, stop: &Path, history: &Path) -> io::Result<u64> {
    let mut random = Random::new(writer);
    let mut history = io::BufWriter::new(File::create(history)?);
    let mut calls = 0;
    while !stop.exists() {
        calls += 1;
        let register = random.below(u64::from(registers)) as u32;
        let begun_ns = now_ns();
        let (what, outcome) = if random.below(2) == 0 {
            let value = writer * 1_000_000_000 + calls;
            match OpenOptions::new().write(true).open(path(directory, register)) {
                Ok(file) => (Access::Write(value), write(&file, value)),
                // Nothing was written.
                Err(_) => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
            }
        } else {
            match read(&path(directory, register)) {
                Ok(value) => (Access::Read(value), Ok(())),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return Err(error),
                // A failed read means nothing.
                Err(_) => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
            }
        };
        let ended_ns = outcome.is_ok().then(now_ns);
        let (kind, value) = match what {
            Access::Write(value) => ("w", value),
            Access::Read(value) => ("r", value),
        };
        let ended = ended_ns.map_or_else(|| "-".to_owned(), |at| at.to_string());
        writeln!(history, "{register} {kind} {value} {begun_ns} {ended}")?;
    }
    history.flush()?;
    Ok(calls)
}

/// Reads the history that [`play`] has written.
///
/// # Errors
/// Of the file; `InvalidData` if it is no history.
pub fn load(history: &Path) -> io::Result<Vec<Call>> {
    let lines = BufReader::new(File::open(history)?).lines();
    lines.map(|line| parse(&line?).ok_or_else(|| invalid(history, "is no history"))).collect()
}

fn parse(line: &str) -> Option<Call> {
    let mut words = line.split(' ');
    let register = words.next()?.parse().ok()?;
    let kind = words.next()?;
    let value = words.next()?.parse().ok()?;
    let what = match kind {
        "w" => Access::Write(value),
        "r" => Access::Read(value),
        _ => return None,
    };
    let begun_ns = words.next()?.parse().ok()?;
    let ended_ns = match words.next()? {
        "-" => None,
        at => Some(at.parse().ok()?),
    };
    Some(Call { register, what, begun_ns, ended_ns })
}

/// What no register can have answered: after the longest order that fits, every call that could come next is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotLinearizable {
    /// Which register.
    pub register: u32,
    /// What it holds after that order.
    pub value: u64,
    /// What each process did next, two calls of each.
    pub next: Vec<Call>,
}

impl std::fmt::Display for NotLinearizable {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NotLinearizable { register, value, next } = self;
        write!(
            out,
            "register {register} cannot have answered this; when it holds {value}, what comes next is"
        )?;
        next.iter().try_for_each(|call| write!(out, "\n  {call:?}"))
    }
}

impl std::error::Error for NotLinearizable {}

/// Checks that histories of processes, each of which did one thing at a time, are possible answers of
/// registers that began with 0.
///
/// # Errors
/// The calls of a register around the point after which no order fits.
pub fn check(histories: &[Vec<Call>]) -> Result<(), NotLinearizable> {
    let mut registers: BTreeMap<u32, Vec<Vec<Call>>> = BTreeMap::new();
    for (lane, history) in histories.iter().enumerate() {
        for call in history {
            let lanes = registers.entry(call.register).or_insert_with(|| vec![Vec::new(); histories.len()]);
            if call.ended_ns.is_some() {
                lanes[lane].push(call.clone());
            } else if matches!(call.what, Access::Write(_)) {
                // It may happen at any time during the later calls of its process.
                lanes.push(vec![call.clone()]);
            }
        }
    }
    registers.iter().try_for_each(|(register, lanes)| check_one(*register, lanes))
}

/// Searches an order of the calls of one register (Wing and Gong, 1993, with states seen before left out).
fn check_one(register: u32, lanes: &[Vec<Call>]) -> Result<(), NotLinearizable> {
    let must: Vec<usize> = lanes
        .iter()
        .map(|lane| if lane.iter().all(|call| call.ended_ns.is_some()) { lane.len() } else { 0 })
        .collect();
    let mut seen = HashSet::new();
    let mut open = vec![(vec![0; lanes.len()], 0)];
    let mut furthest = (0, vec![0; lanes.len()], 0);
    while let Some((done, value)) = open.pop() {
        if done.iter().zip(&must).all(|(done, must)| done >= must) {
            return Ok(());
        }
        if !seen.insert((done.clone(), value)) {
            continue;
        }
        let count: usize = done.iter().sum();
        if count >= furthest.0 {
            furthest = (count, done.clone(), value);
        }
        let next = || {
            lanes.iter().zip(&done).enumerate().filter_map(|(at, (lane, done))| Some((at, lane.get(*done)?)))
        };
        // No call that began after another had ended comes before that.
        let first_end = next().filter_map(|(_, call)| call.ended_ns).min().unwrap_or(u64::MAX);
        for (at, call) in next().filter(|(_, call)| call.begun_ns <= first_end) {
            let after = match call.what {
                Access::Write(written) => written,
                Access::Read(found) if found == value => value,
                Access::Read(_) => continue,
            };
            let mut done = done.clone();
            done[at] += 1;
            open.push((done, after));
        }
    }
    let (_, done, value) = furthest;
    let next = lanes.iter().zip(&done).flat_map(|(lane, done)| lane.iter().skip(*done).take(2).cloned());
    Err(NotLinearizable { register, value, next: next.collect() })
}

fn path(directory: &Path, register: u32) -> PathBuf {
    directory.join(format!("register-{register}"))
}

fn write(file: &File, value: u64) -> io::Result<()> {
    file.write_all_at(format!("{value:0BYTES$}").as_bytes(), 0)?;
    file.sync_all()
}

fn read(path: &Path) -> io::Result<u64> {
    let mut text = String::new();
    File::open(path)?.read_to_string(&mut text)?;
    let is_whole = text.len() == BYTES;
    text.parse().ok().filter(|_| is_whole).ok_or_else(|| invalid(path, &format!("holds {text:?}")))
}

fn invalid(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} {what}", path.display()))
}

/// The clock is the same for all processes of a machine.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_testing::eventually;

    fn history(text: &str) -> Vec<Call> {
        text.split(", ").map(|line| parse(line).expect("a call")).collect()
    }

    /// Proves: possible answers are accepted, also with overlapping calls and failed writes; and each kind of
    /// wrong answer is found: an old value, a lost write, two orders of the same writes, a value from the
    /// future.
    #[test]
    fn wrong_answers_are_found() {
        let good = [
            vec!["0 w 1 0 10, 0 r 1 11 12", "0 r 0 1 5, 0 r 1 6 7"],
            // The writes overlap: either may be the last.
            vec!["0 w 1 0 10, 0 r 2 20 21", "0 w 2 5 9, 0 r 2 22 23"],
            // A write that failed happens late, or never.
            vec!["0 w 1 0 -, 0 r 0 20 21", "0 r 0 22 23, 0 r 1 30 31"],
            vec!["0 w 1 0 -, 0 r 0 20 21", "0 r 0 22 23"],
            // Registers know nothing of each other.
            vec!["0 w 1 0 10, 1 r 0 11 12", "1 w 2 11 14, 0 r 1 15 16"],
        ];
        let wrong = [
            vec!["0 w 1 0 10", "0 r 0 11 12"],
            vec!["0 w 1 0 10, 0 w 2 11 20", "0 r 2 15 16, 0 r 1 17 18"],
            vec!["0 w 1 0 10", "0 w 2 0 10", "0 r 1 11 12, 0 r 2 13 14", "0 r 2 11 12, 0 r 1 13 14"],
            vec!["0 r 1 0 5", "0 w 1 6 10"],
            vec!["0 w 1 0 -, 0 r 1 20 21", "0 r 0 22 23"],
        ];
        for lanes in good {
            let histories: Vec<_> = lanes.iter().map(|lane| history(lane)).collect();
            check(&histories).unwrap_or_else(|why| panic!("{lanes:?}: {why}"));
        }
        for lanes in wrong {
            let histories: Vec<_> = lanes.iter().map(|lane| history(lane)).collect();
            assert!(check(&histories).is_err(), "{lanes:?}");
        }
    }

    /// Proves: threads on a local file system make a history that is accepted after reading it back; with a
    /// changed value it is not.
    #[test]
    fn a_local_disk_is_linearizable() {
        let folder = tempfile::tempdir().expect("a folder");
        let stop = folder.path().join("stop");
        make(folder.path(), 2).expect("made");
        let noted = |writer: u64| folder.path().join(format!("history-{writer}"));
        std::thread::scope(|scope| {
            for writer in 1..4 {
                let (place, stop, history) = (folder.path(), &stop, noted(writer));
                scope.spawn(move || play(place, 2, writer, stop, &history).expect("played"));
            }
            // Each has made so many calls when a register holds its number.
            let mut calls = [0; 4];
            eventually("all are at work", || {
                for value in (0..2).filter_map(|register| read(&path(folder.path(), register)).ok()) {
                    let last = &mut calls[(value / 1_000_000_000) as usize];
                    *last = value % 1_000_000_000;
                }
                calls[1..].iter().all(|calls| *calls > 20)
            });
            File::create(&stop).expect("made");
        });
        let mut histories: Vec<_> = (1..4).map(|writer| load(&noted(writer)).expect("loaded")).collect();
        assert!(histories.iter().all(|history| history.len() > 10), "{histories:?}");
        check(&histories).expect("it holds");
        let read =
            histories[0].iter_mut().rev().find(|call| matches!(call.what, Access::Read(_))).expect("a read");
        read.what = Access::Read(0);
        assert!(check(&histories).is_err());
    }
}
