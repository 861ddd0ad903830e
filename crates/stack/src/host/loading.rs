//! Having a disk looked at by processes that are shut in: FSLoader for what is on it, FSChecker for whose it is.
//!
//! The host parses nothing of the disk. It hands out the parts that each may see, and judges what it is told: the order
//! of messages, how many there are, and that every block named is in the data area of its partition and named once.
//! A process that dies is started anew and begins from the start; one that says nothing for long ends the work.

use crate::card_protocol::{AskCard, CardSays, ENTRIES_MAX, FileBlocks, READ_MAX, TableEntry};
use crate::place::{Found, Geometry, PARTITIONS_MAX, Partition};
use crate::{StackError, fs_loader};
use holdfast_components::{
    Answer, ChannelPlan, ComponentPlan, End, Event, Plan, Profile, Program, Refusal, Request, Supervisor,
};
use parking_lot::{Condvar, Mutex};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Reads a part of a disk, or says in words why not.
pub type Source = Arc<dyn Fn(u64, &mut [u8]) -> Result<(), String> + Send + Sync>;

/// Whose a file is, by the number of its partition and its path: a number of the caller's.
pub type OwnerOf = Arc<dyn Fn(u32, &str) -> u16 + Send + Sync>;

/// How long a process may say nothing.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// How often whoever waits is asked whether to go on.
const PAUSE: Duration = Duration::from_millis(100);
/// What FSLoader may read at the beginning and at the end of a disk, where partition tables are.
const TABLE_BYTES: u64 = 1 << 20;
/// Bytes of a boot sector.
const BOOT_BYTES: u64 = 512;
/// Problems that are kept in words.
const PROBLEMS_MAX: usize = 100;
/// Runs of blocks of all files of a partition.
const RUNS_TOTAL_MAX: usize = 4 << 20;
/// Bytes that a process may read: some times what it is about.
const READ_TIMES: u64 = 16;
const READ_BYTES_MIN: u64 = 256 << 20;

/// What FSChecker found in a partition.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// What is wrong, in words, each with its place; the first of them.
    pub problems: Vec<String>,
    /// How many there are.
    pub problems_all: u64,
    /// Whether one of them forbids to use the file system.
    pub is_unsound: bool,
    /// Runs of blocks of files, in order, as the partition numbers them, each with the number of its owner.
    pub files: Vec<(u64, u64, u16)>,
}

/// A disk to be formatted, drawn up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Laid {
    /// The first sector.
    pub mbr: Vec<u8>,
    /// The file systems, in the order of the partitions.
    pub geometries: Vec<Geometry>,
}

/// What a process is to say.
#[derive(Clone, Copy)]
enum About {
    Disk(u64),
    Laying(usize),
    Partition(Partition),
}

/// What it said.
#[derive(Default)]
struct Heard {
    readable: Vec<Range<u64>>,
    read_bytes: u64,
    table: Vec<TableEntry>,
    found: Vec<Found>,
    laid: Option<Laid>,
    survey: Survey,
    end: Option<Result<(), String>>,
}

struct Line {
    about: About,
    heard: Heard,
    last: Instant,
    /// Why its process ended and is not started anew.
    down: Option<String>,
}

struct Shared {
    lines: Mutex<Vec<(String, Line)>>,
    changed: Condvar,
    source: Source,
    owner_of: OwnerOf,
}

impl Line {
    fn new(about: About) -> Line {
        let mut line = Line { about, heard: Heard::default(), last: Instant::now(), down: None };
        line.begin();
        line
    }

    /// A process of it begins, from the start.
    fn begin(&mut self) {
        let readable = match self.about {
            About::Disk(bytes) => {
                vec![0..TABLE_BYTES.min(bytes), bytes.saturating_sub(TABLE_BYTES)..bytes]
            }
            About::Laying(_) => Vec::new(),
            About::Partition(partition) => {
                std::iter::once(partition.start..partition.start + partition.bytes).collect()
            }
        };
        self.heard = Heard { readable, ..Heard::default() };
        self.last = Instant::now();
    }

    /// Whether it may read this.
    fn may_read(&mut self, offset: u64, length: u32) -> bool {
        let end = offset.checked_add(length.into());
        let bytes = match self.about {
            About::Disk(_) | About::Laying(_) => 0,
            About::Partition(partition) => partition.bytes,
        };
        let most = bytes.saturating_mul(READ_TIMES).max(READ_BYTES_MIN);
        self.heard.read_bytes += u64::from(length);
        length > 0
            && length <= READ_MAX
            && self.heard.read_bytes <= most
            && end.is_some_and(|end| {
                self.heard.readable.iter().any(|part| part.start <= offset && end <= part.end)
            })
    }

    /// Takes what it says; refuses what it may not say now.
    fn take(&mut self, said: AskCard, owner_of: &OwnerOf) -> Result<(), Refusal> {
        let heard = &mut self.heard;
        if heard.end.is_some() {
            return Err(Refusal::NotPermitted);
        }
        match (self.about, said) {
            (About::Disk(bytes), AskCard::Table(table)) if heard.table.is_empty() => {
                let is_there = |entry: &TableEntry| {
                    entry.start.checked_add(entry.bytes).is_some_and(|end| end <= bytes) && entry.bytes > 0
                };
                if table.len() > ENTRIES_MAX || !table.iter().all(is_there) {
                    return Err(Refusal::Malformed);
                }
                let boots = table.iter().map(|entry| entry.start..entry.start + entry.bytes.min(BOOT_BYTES));
                heard.readable.extend(boots);
                heard.table = table;
            }
            (About::Disk(_), AskCard::Partition { number, holds }) => {
                let entry = heard.table.iter().find(|entry| entry.number == number);
                let entry = entry.ok_or(Refusal::Malformed)?;
                if heard.found.iter().any(|found| found.number == number) {
                    return Err(Refusal::Malformed);
                }
                let holds = holds.map_err(|words| printable(&words));
                heard.found.push(Found { number, start: entry.start, bytes: entry.bytes, holds });
            }
            (About::Laying(partitions), AskCard::Laid { mbr, geometries }) => {
                if mbr.len() != BOOT_BYTES as usize || geometries.len() != partitions {
                    return Err(Refusal::Malformed);
                }
                heard.laid = Some(Laid { mbr, geometries });
            }
            (About::Partition(_), AskCard::Problem { place, problem, forbids }) => {
                heard.survey.is_unsound |= forbids;
                heard.survey.problems_all += 1;
                if heard.survey.problems.len() < PROBLEMS_MAX {
                    heard.survey.problems.push(printable(&format!("{place}: {problem}")));
                }
            }
            (About::Partition(partition), AskCard::Files(files)) => {
                for FileBlocks { path, runs } in files {
                    let owner = owner_of(partition.number, &path);
                    let data = partition.geometry.metadata_blocks()..partition.geometry.blocks();
                    for (first, count) in runs {
                        let end = first.checked_add(count).filter(|end| *end <= data.end && count > 0);
                        if end.is_none() || first < data.start {
                            return Err(Refusal::Malformed);
                        }
                        if heard.survey.files.len() >= RUNS_TOTAL_MAX {
                            let words = "its files are in more pieces than can be kept in mind";
                            return Err(Refusal::Failed(words.to_owned()));
                        }
                        heard.survey.files.push((first, count, owner));
                    }
                }
            }
            (_, AskCard::End(end)) => {
                let sorted = disjoint(&mut heard.survey.files);
                heard.end = Some(match sorted {
                    Ok(()) => end.map_err(|words| printable(&words)),
                    Err(block) => Err(format!("block {block} was named as two files'")),
                });
            }
            _ => return Err(Refusal::NotPermitted),
        }
        Ok(())
    }
}

/// Puts runs in order; a block that is in two of them is an error.
fn disjoint(runs: &mut [(u64, u64, u16)]) -> Result<(), u64> {
    runs.sort_unstable();
    match runs.windows(2).find(|pair| pair[1].0 < pair[0].0 + pair[0].1) {
        Some(pair) => Err(pair[1].0),
        None => Ok(()),
    }
}

/// Words of a process that read a disk, for a terminal: nothing that steers it, and not too many.
fn printable(words: &str) -> String {
    words.chars().take(500).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

impl Shared {
    fn answer(&self, request: &Request) -> Answer {
        let said = request.question::<AskCard>().and_then(|said| self.hear(request.port, said));
        self.changed.notify_all();
        said.into()
    }

    fn hear(&self, port: &str, said: AskCard) -> Result<CardSays, Refusal> {
        let mut lines = self.lines.lock();
        let line = lines.iter_mut().find(|(name, _)| port.strip_prefix("card-") == Some(name.as_str()));
        let line = &mut line.ok_or(Refusal::NotPermitted)?.1;
        line.last = Instant::now();
        if let AskCard::Read { offset, length } = said {
            if !line.may_read(offset, length) {
                return Err(Refusal::NotPermitted);
            }
            drop(lines);
            let mut bytes = vec![0; length as usize];
            (self.source)(offset, &mut bytes).map_err(Refusal::Failed)?;
            return Ok(CardSays::Bytes(bytes));
        }
        line.take(said, &self.owner_of).map(|()| CardSays::Go)
    }
}

/// Runs components that look at a disk, until all have said everything.
fn run(
    components: Vec<(ComponentPlan, About)>,
    source: Source,
    owner_of: OwnerOf,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<Heard>, StackError> {
    let lines: Vec<(String, Line)> =
        components.iter().map(|(plan, about)| (plan.name.clone(), Line::new(*about))).collect();
    let channels = components.iter().map(|(plan, _)| {
        ChannelPlan::new(End::of(&plan.name, "card"), End::host(&format!("card-{}", plan.name)))
    });
    let channels = channels.collect();
    let components = components.into_iter().map(|(plan, _)| plan).collect();
    let plan = Plan { name: format!("looking at a disk, {}", std::process::id()), components, channels };
    let shared = Arc::new(Shared { lines: Mutex::new(lines), changed: Condvar::new(), source, owner_of });
    let told = Arc::clone(&shared);
    let supervisor = Supervisor::start(Program::current()?, plan, move |event| {
        let mut lines = told.lines.lock();
        let line = |lines: &[(String, Line)], name: &str| lines.iter().position(|(known, _)| known == name);
        match event {
            Event::Starting { component, .. } => {
                if let Some(at) = line(&lines, component) {
                    lines[at].1.begin();
                }
            }
            Event::Ended { component, reason, restarts: false, .. } => {
                if let Some(at) = line(&lines, component) {
                    lines[at].1.down = Some(reason.to_owned());
                }
            }
            Event::Ended { .. } => {}
        }
        told.changed.notify_all();
    })?;
    let ports = Arc::clone(supervisor.ports());
    let answering = Arc::clone(&shared);
    let serving = std::thread::Builder::new().name("card".to_owned()).spawn(move || {
        if let Err(error) = ports.serve(|request| answering.answer(&request)) {
            tracing::error!(%error, "nobody answers for the disk any more");
        }
    });
    let serving = serving.map_err(|error| StackError::Component(error.to_string()))?;
    let outcome = wait(&shared, go_on);
    supervisor.stop();
    let _ = serving.join();
    outcome?;
    Ok(std::mem::take(&mut *shared.lines.lock()).into_iter().map(|(_, line)| line.heard).collect())
}

fn wait(shared: &Shared, go_on: &dyn Fn() -> bool) -> Result<(), StackError> {
    let failed = |name: &str, words: &str| Err(StackError::Component(format!("{name}: {words}")));
    let mut lines = shared.lines.lock();
    loop {
        let mut waits = false;
        for (name, line) in lines.iter() {
            match (&line.heard.end, &line.down) {
                (Some(Ok(())), _) => {}
                (Some(Err(words)), _) => {
                    let place = match line.about {
                        About::Partition(partition) => format!("partition {}: ", partition.number),
                        About::Disk(_) | About::Laying(_) => String::new(),
                    };
                    return Err(StackError::Component(format!("{place}{words}")));
                }
                (None, Some(reason)) => return failed(name, reason),
                (None, None) if line.last.elapsed() > SILENCE_MAX => return failed(name, "it says nothing"),
                (None, None) => waits = true,
            }
        }
        if !waits {
            return Ok(());
        }
        shared.changed.wait_for(&mut lines, PAUSE);
        if !parking_lot::MutexGuard::unlocked(&mut lines, go_on) {
            return Err(StackError::Interrupted);
        }
    }
}

fn component(name: &str, program: &str, configuration: &impl borsh::BorshSerialize) -> ComponentPlan {
    ComponentPlan {
        program: program.to_owned(),
        configuration: super::encode(configuration),
        guards: vec!["asks only; the host gives it the parts of the disk that it is about".to_owned()],
        ..ComponentPlan::new(name, Profile::default())
    }
}

fn nobody() -> OwnerOf {
    Arc::new(|_, _| 0)
}

/// Has FSLoader say what is on a disk.
///
/// # Errors
/// [`StackError::Component`]: there is no partition table that can be used, in words; [`StackError::Interrupted`].
pub fn find_partitions(
    source: Source,
    disk_bytes: u64,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<Found>, StackError> {
    let plan = component("fs-loader", "fs-loader", &fs_loader::Configuration::Find { disk_bytes });
    let heard = run(vec![(plan, About::Disk(disk_bytes))], source, nobody(), go_on)?;
    let heard = heard.into_iter().next().expect("there is one");
    if heard.found.len() < heard.table.len() {
        return Err(StackError::Component("FSLoader said nothing of some partitions".to_owned()));
    }
    Ok(heard.found)
}

/// Has FSLoader draw up a disk that is to be formatted.
///
/// # Errors
/// [`StackError::Component`]: it cannot be, in words.
pub fn lay_out(wanted: fs_loader::Wanted) -> Result<Laid, StackError> {
    let partitions = wanted.partitions.len();
    let plan = component("fs-loader", "fs-loader", &fs_loader::Configuration::Lay(wanted));
    let nothing: Source = Arc::new(|_, _| Err("there is nothing to be read".to_owned()));
    let heard = run(vec![(plan, About::Laying(partitions))], nothing, nobody(), &|| true)?;
    let laid = heard.into_iter().next().and_then(|heard| heard.laid);
    laid.ok_or_else(|| StackError::Component("FSLoader drew nothing up".to_owned()))
}

/// Has an FSChecker for each partition say whether its file system is sound, and whose its blocks are.
///
/// # Errors
/// [`StackError::Component`]: one of them cannot be read, in words; [`StackError::Interrupted`].
pub fn check_partitions(
    source: Source,
    partitions: &[Partition],
    owner_of: OwnerOf,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<Survey>, StackError> {
    if partitions.len() > PARTITIONS_MAX {
        return Err(StackError::Component(format!("{} file systems on one disk", partitions.len())));
    }
    let plans = partitions.iter().map(|partition| {
        let name = format!("fs-checker-{}", partition.number);
        (component(&name, "fs-checker", partition), About::Partition(*partition))
    });
    let heard = run(plans.collect(), source, owner_of, go_on)?;
    Ok(heard.into_iter().map(|heard| heard.survey).collect())
}

#[cfg(test)]
#[path = "loading_tests.rs"]
mod tests;
