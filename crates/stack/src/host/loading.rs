//! Examines a disk with sandboxed processes: FSLoader finds its partitions, and FSChecker the files that its
//! blocks belong to.
//!
//! The host parses nothing of the disk. It gives each process the parts that it may see, and checks the
//! reports: the order of messages, how many there are, and that every named block is in the data area of its
//! partition and named once. A process that dies is restarted and begins again; one that is silent for too
//! long ends the examination.

use crate::card_protocol::{CardReply, CardRequest, ENTRIES_MAX, FileBlocks, READ_MAX, TableEntry};
use crate::disk_layout::{FoundPartition, Geometry, PARTITIONS_MAX, Partition};
use crate::{StackError, fs_loader};
use holdfast_components::{
    ChannelPlan, ComponentPlan, End, Event, Plan, Profile, Program, Refusal, Reply, Request, Supervisor,
};
use parking_lot::{Condvar, Mutex};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Reads a part of a disk; the error is in words.
pub type Source = Arc<dyn Fn(u64, &mut [u8]) -> Result<(), String> + Send + Sync>;

/// Returns the owner of a file, as a number that the caller defines, from the partition's number and the
/// file's path.
pub type OwnerOf = Arc<dyn Fn(u32, &str) -> u16 + Send + Sync>;

/// How long a process may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(120);
/// How often the caller is asked whether to continue.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes that FSLoader may read at the beginning and at the end of a disk, where partition tables are.
const TABLE_BYTES: u64 = 1 << 20;
/// Bytes of a boot sector.
const BOOT_BYTES: u64 = 512;
/// Most problems whose text is stored.
const PROBLEMS_MAX: usize = 100;
/// Most runs of blocks of all files of a partition.
const RUNS_TOTAL_MAX: usize = 4 << 20;
/// A process may read so many times the size of what it examines, in all.
const READ_TIMES: u64 = 16;
const READ_BYTES_MIN: u64 = 256 << 20;

/// The result of FSChecker for a partition.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// The first problems, in words, each with its path.
    pub problems: Vec<String>,
    /// Number of all problems, including those not in the list.
    pub problems_all: u64,
    /// Whether a problem forbids using the file system.
    pub is_unsound: bool,
    /// Runs of blocks of files, in order and in the partition's numbering, each with the number of its owner.
    pub files: Vec<(u64, u64, u16)>,
}

/// The plan for formatting a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskFormat {
    /// The first sector.
    pub mbr: Vec<u8>,
    /// The file systems, in the order of the partitions.
    pub geometries: Vec<Geometry>,
}

/// The task of a process.
#[derive(Clone, Copy)]
enum LoaderTask {
    Disk(u64),
    Laying(usize),
    Partition(Partition),
}

/// The process's report so far.
#[derive(Default)]
struct LoaderReport {
    readable: Vec<Range<u64>>,
    read_bytes: u64,
    table: Vec<TableEntry>,
    found: Vec<FoundPartition>,
    laid: Option<DiskFormat>,
    survey: Survey,
    end: Option<Result<(), String>>,
}

struct LoaderProcess {
    task: LoaderTask,
    report: LoaderReport,
    last: Instant,
    /// Why its process ended and is not restarted.
    down: Option<String>,
}

struct Shared {
    processes: Mutex<Vec<(String, LoaderProcess)>>,
    changed: Condvar,
    source: Source,
    owner_of: OwnerOf,
}

impl LoaderProcess {
    fn new(task: LoaderTask) -> LoaderProcess {
        let mut process =
            LoaderProcess { task, report: LoaderReport::default(), last: Instant::now(), down: None };
        process.begin();
        process
    }

    /// Resets the report when a process of the component starts.
    fn begin(&mut self) {
        let readable = match self.task {
            LoaderTask::Disk(bytes) => {
                vec![0..TABLE_BYTES.min(bytes), bytes.saturating_sub(TABLE_BYTES)..bytes]
            }
            LoaderTask::Laying(_) => Vec::new(),
            LoaderTask::Partition(partition) => {
                std::iter::once(partition.start..partition.start + partition.bytes).collect()
            }
        };
        self.report = LoaderReport { readable, ..LoaderReport::default() };
        self.last = Instant::now();
    }

    /// Whether the process may read this range.
    fn may_read(&mut self, offset: u64, length: u32) -> bool {
        let end = offset.checked_add(length.into());
        let bytes = match self.task {
            LoaderTask::Disk(_) | LoaderTask::Laying(_) => 0,
            LoaderTask::Partition(partition) => partition.bytes,
        };
        let most = bytes.saturating_mul(READ_TIMES).max(READ_BYTES_MIN);
        self.report.read_bytes += u64::from(length);
        length > 0
            && length <= READ_MAX
            && self.report.read_bytes <= most
            && end.is_some_and(|end| {
                self.report.readable.iter().any(|part| part.start <= offset && end <= part.end)
            })
    }

    /// Handles a message of the process; refuses one that it may not send now.
    fn take(&mut self, message: CardRequest, owner_of: &OwnerOf) -> Result<(), Refusal> {
        let report = &mut self.report;
        if report.end.is_some() {
            return Err(Refusal::NotPermitted);
        }
        match (self.task, message) {
            (LoaderTask::Disk(bytes), CardRequest::Table(table)) if report.table.is_empty() => {
                let is_there = |entry: &TableEntry| {
                    entry.start.checked_add(entry.bytes).is_some_and(|end| end <= bytes) && entry.bytes > 0
                };
                if table.len() > ENTRIES_MAX || !table.iter().all(is_there) {
                    return Err(Refusal::Malformed);
                }
                let boots = table.iter().map(|entry| entry.start..entry.start + entry.bytes.min(BOOT_BYTES));
                report.readable.extend(boots);
                report.table = table;
            }
            (LoaderTask::Disk(_), CardRequest::Partition { number, holds }) => {
                let entry = report.table.iter().find(|entry| entry.number == number);
                let entry = entry.ok_or(Refusal::Malformed)?;
                if report.found.iter().any(|found| found.number == number) {
                    return Err(Refusal::Malformed);
                }
                let holds = holds.map_err(|words| printable(&words));
                report.found.push(FoundPartition { number, start: entry.start, bytes: entry.bytes, holds });
            }
            (LoaderTask::Laying(partitions), CardRequest::DiskFormat { mbr, geometries }) => {
                if mbr.len() != BOOT_BYTES as usize || geometries.len() != partitions {
                    return Err(Refusal::Malformed);
                }
                report.laid = Some(DiskFormat { mbr, geometries });
            }
            (LoaderTask::Partition(_), CardRequest::Problem { place, problem, forbids }) => {
                report.survey.is_unsound |= forbids;
                report.survey.problems_all += 1;
                if report.survey.problems.len() < PROBLEMS_MAX {
                    report.survey.problems.push(printable(&format!("{place}: {problem}")));
                }
            }
            (LoaderTask::Partition(partition), CardRequest::Files(files)) => {
                for FileBlocks { path, runs } in files {
                    let owner = owner_of(partition.number, &path);
                    let data = partition.geometry.metadata_blocks()..partition.geometry.blocks();
                    for (first, count) in runs {
                        let end = first.checked_add(count).filter(|end| *end <= data.end && count > 0);
                        if end.is_none() || first < data.start {
                            return Err(Refusal::Malformed);
                        }
                        if report.survey.files.len() >= RUNS_TOTAL_MAX {
                            let words = "its files are in more pieces than can be kept in mind";
                            return Err(Refusal::Failed(words.to_owned()));
                        }
                        report.survey.files.push((first, count, owner));
                    }
                }
            }
            (_, CardRequest::End(end)) => {
                let sorted = disjoint(&mut report.survey.files);
                report.end = Some(match sorted {
                    Ok(()) => end.map_err(|words| printable(&words)),
                    Err(block) => Err(format!("block {block} was named as two files'")),
                });
            }
            _ => return Err(Refusal::NotPermitted),
        }
        Ok(())
    }
}

/// Sorts runs. The error is a block that is in two of them.
fn disjoint(runs: &mut [(u64, u64, u16)]) -> Result<(), u64> {
    runs.sort_unstable();
    match runs.windows(2).find(|pair| pair[1].0 < pair[0].0 + pair[0].1) {
        Some(pair) => Err(pair[1].0),
        None => Ok(()),
    }
}

/// Text of a process that read a disk, made fit for a terminal: short, without control characters.
fn printable(words: &str) -> String {
    words.chars().take(500).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

impl Shared {
    fn answer(&self, request: &Request) -> Reply {
        let message =
            request.question::<CardRequest>().and_then(|message| self.handle(request.port, message));
        self.changed.notify_all();
        message.into()
    }

    fn handle(&self, port: &str, message: CardRequest) -> Result<CardReply, Refusal> {
        let mut processes = self.processes.lock();
        let process =
            processes.iter_mut().find(|(name, _)| port.strip_prefix("card-") == Some(name.as_str()));
        let process = &mut process.ok_or(Refusal::NotPermitted)?.1;
        process.last = Instant::now();
        if let CardRequest::Read { offset, length } = message {
            if !process.may_read(offset, length) {
                return Err(Refusal::NotPermitted);
            }
            drop(processes);
            let mut bytes = vec![0; length as usize];
            (self.source)(offset, &mut bytes).map_err(Refusal::Failed)?;
            return Ok(CardReply::Bytes(bytes));
        }
        process.take(message, &self.owner_of).map(|()| CardReply::Go)
    }
}

/// Runs components that examine a disk, until all have finished their reports.
fn run(
    components: Vec<(ComponentPlan, LoaderTask)>,
    source: Source,
    owner_of: OwnerOf,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<LoaderReport>, StackError> {
    let processes: Vec<(String, LoaderProcess)> =
        components.iter().map(|(plan, task)| (plan.name.clone(), LoaderProcess::new(*task))).collect();
    let channels = components.iter().map(|(plan, _)| {
        ChannelPlan::new(End::of(&plan.name, "card"), End::host(&format!("card-{}", plan.name)))
    });
    let channels = channels.collect();
    let components = components.into_iter().map(|(plan, _)| plan).collect();
    let plan = Plan { name: format!("looking at a disk, {}", std::process::id()), components, channels };
    let shared =
        Arc::new(Shared { processes: Mutex::new(processes), changed: Condvar::new(), source, owner_of });
    let listening = Arc::clone(&shared);
    let supervisor = Supervisor::start(Program::current()?, plan, move |event| {
        let mut processes = listening.processes.lock();
        let process = |processes: &[(String, LoaderProcess)], name: &str| {
            processes.iter().position(|(known, _)| known == name)
        };
        match event {
            Event::Starting { component, .. } => {
                if let Some(at) = process(&processes, component) {
                    processes[at].1.begin();
                }
            }
            Event::Ended { component, reason, restarts: false, .. } => {
                if let Some(at) = process(&processes, component) {
                    processes[at].1.down = Some(reason.to_owned());
                }
            }
            Event::Ended { .. } => {}
        }
        listening.changed.notify_all();
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
    Ok(std::mem::take(&mut *shared.processes.lock()).into_iter().map(|(_, process)| process.report).collect())
}

fn wait(shared: &Shared, go_on: &dyn Fn() -> bool) -> Result<(), StackError> {
    let failed = |name: &str, words: &str| Err(StackError::Component(format!("{name}: {words}")));
    let mut processes = shared.processes.lock();
    loop {
        let mut waits = false;
        for (name, process) in processes.iter() {
            match (&process.report.end, &process.down) {
                (Some(Ok(())), _) => {}
                (Some(Err(words)), _) => {
                    let place = match process.task {
                        LoaderTask::Partition(partition) => format!("partition {}: ", partition.number),
                        LoaderTask::Disk(_) | LoaderTask::Laying(_) => String::new(),
                    };
                    return Err(StackError::Component(format!("{place}{words}")));
                }
                (None, Some(reason)) => return failed(name, reason),
                (None, None) if process.last.elapsed() > SILENCE_MAX => {
                    return failed(name, "it says nothing");
                }
                (None, None) => waits = true,
            }
        }
        if !waits {
            return Ok(());
        }
        shared.changed.wait_for(&mut processes, PAUSE);
        if !parking_lot::MutexGuard::unlocked(&mut processes, go_on) {
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

/// Finds the partitions of a disk with FSLoader.
///
/// # Errors
/// [`StackError::Component`]: there is no usable partition table, in words; [`StackError::Interrupted`].
pub fn find_partitions(
    source: Source,
    disk_bytes: u64,
    go_on: &dyn Fn() -> bool,
) -> Result<Vec<FoundPartition>, StackError> {
    let plan = component("fs-loader", "fs-loader", &fs_loader::Configuration::Find { disk_bytes });
    let report = run(vec![(plan, LoaderTask::Disk(disk_bytes))], source, nobody(), go_on)?;
    let report = report.into_iter().next().expect("there is one");
    if report.found.len() < report.table.len() {
        return Err(StackError::Component("FSLoader said nothing of some partitions".to_owned()));
    }
    Ok(report.found)
}

/// Plans the partition table and the file systems of a disk that is to be formatted, with FSLoader.
///
/// # Errors
/// [`StackError::Component`]: it is impossible, in words.
pub fn lay_out(wanted: fs_loader::FormatRequest) -> Result<DiskFormat, StackError> {
    let partitions = wanted.partitions.len();
    let plan = component("fs-loader", "fs-loader", &fs_loader::Configuration::Lay(wanted));
    let nothing: Source = Arc::new(|_, _| Err("there is nothing to be read".to_owned()));
    let report = run(vec![(plan, LoaderTask::Laying(partitions))], nothing, nobody(), &|| true)?;
    let laid = report.into_iter().next().and_then(|report| report.laid);
    laid.ok_or_else(|| StackError::Component("FSLoader drew nothing up".to_owned()))
}

/// Checks the file system of each partition with an FSChecker for each, and finds the files of its blocks.
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
        (component(&name, "fs-checker", partition), LoaderTask::Partition(*partition))
    });
    let report = run(plans.collect(), source, owner_of, go_on)?;
    Ok(report.into_iter().map(|report| report.survey).collect())
}

#[cfg(test)]
#[path = "loading_tests.rs"]
mod tests;
