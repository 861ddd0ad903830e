//! Mounted file systems measured side by side.
//!
//! A side is a name and one directory for each of its clients, usually the same directory of different mounts or
//! different directories of one. All clients of a side work at once; sides take turns, and in each round the order
//! of the sides is turned, so that whatever else the machine does falls on all of them. With the processes that
//! serve a side, what they cost is measured as well: processor time and memory.

use crate::report::{Report, median};
use anyhow::{Context, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Instant;

/// What is measured and how often.
#[derive(clap::Args)]
pub struct Sides {
    /// Name and directories (one for each client) of what is measured; the first is compared to the others.
    #[arg(long = "side", value_name = "NAME=DIR[,DIR...]", required = true)]
    sides: Vec<Side>,
    /// The processes that serve a side, clients and server: their processor time and memory are shown as well.
    #[arg(long = "process", value_name = "NAME=PID[,PID...]")]
    processes: Vec<Processes>,
    /// A shell command that prints counters of a side as JSON; what each gained in a round is shown.
    #[arg(long = "counters", value_name = "NAME=COMMAND")]
    counters: Vec<Counters>,
    /// Rounds; every side is measured once in each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Also write the figures to this file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One file system, by its clients' directories.
#[derive(Clone)]
pub struct Side {
    pub name: String,
    /// A directory for each client.
    pub clients: Vec<PathBuf>,
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

#[derive(Clone)]
struct Processes {
    side: String,
    ids: Vec<u32>,
}

impl FromStr for Processes {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Processes> {
        let Some((side, ids)) = text.split_once('=') else { bail!("expected NAME=PID[,PID...]") };
        let ids = ids.split(',').map(|id| id.parse().with_context(|| format!("{id}: not a process id")));
        Ok(Processes { side: side.to_owned(), ids: ids.collect::<anyhow::Result<_>>()? })
    }
}

#[derive(Clone)]
struct Counters {
    side: String,
    command: String,
}

impl FromStr for Counters {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Counters> {
        let Some((side, command)) = text.split_once('=') else { bail!("expected NAME=COMMAND") };
        Ok(Counters { side: side.to_owned(), command: command.to_owned() })
    }
}

/// One measured stretch of a round.
struct Phase {
    name: &'static str,
    operations: usize,
    wall: f64,
    cpu: f64,
}

/// One round of one side: measures its phases.
pub struct Round<'a> {
    processes: &'a [u32],
    phases: Vec<Phase>,
}

impl Round<'_> {
    /// Measures a phase of so many operations.
    pub fn phase<T>(
        &mut self,
        name: &'static str,
        operations: usize,
        work: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let cpu = cpu_seconds(self.processes)?;
        let start = Instant::now();
        let result = work().context(name)?;
        let wall = start.elapsed().as_secs_f64();
        let cpu = cpu_seconds(self.processes)? - cpu;
        self.phases.push(Phase { name, operations, wall, cpu });
        Ok(result)
    }

    /// Measures a phase in which all clients work at once, each at so many operations, until the last is done.
    pub fn all(
        &mut self,
        name: &'static str,
        operations: usize,
        folders: &[PathBuf],
        work: impl Fn(usize, &Path) -> anyhow::Result<()> + Sync,
    ) -> anyhow::Result<()> {
        self.phase(name, operations * folders.len(), || {
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
            })
        })
    }
}

impl Sides {
    /// Measures every side in every round, and prints what was found.
    pub fn compare(
        &self,
        measure: impl Fn(&Side, usize, &mut Round<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for named in self.processes.iter().map(|of| &of.side).chain(self.counters.iter().map(|of| &of.side)) {
            ensure!(self.sides.iter().any(|side| side.name == *named), "there is no side '{named}'");
        }
        let mut rounds: Vec<Vec<Vec<Phase>>> = self.sides.iter().map(|_| Vec::new()).collect();
        let mut gains: Vec<Vec<Vec<(String, f64)>>> = self.sides.iter().map(|_| Vec::new()).collect();
        for round in 0..self.rounds {
            for turn in 0..self.sides.len() {
                let at = (turn + round) % self.sides.len();
                let side = &self.sides[at];
                let mut measured = Round { processes: self.processes_of(side), phases: Vec::new() };
                let before = self.count(side)?;
                measure(side, round, &mut measured).with_context(|| side.name.clone())?;
                let gained = self.count(side)?.into_iter().filter_map(|(name, after)| {
                    let before = before.iter().find(|(known, _)| *known == name)?.1;
                    Some((name, after - before))
                });
                gains[at].push(gained.collect());
                rounds[at].push(measured.phases);
            }
            eprintln!("round {} of {} done", round + 1, self.rounds);
        }
        self.report(&rounds)?;
        self.report_memory()?;
        self.report_gains(&gains);
        Ok(())
    }

    fn processes_of(&self, side: &Side) -> &[u32] {
        self.processes.iter().find(|of| of.side == side.name).map_or(&[], |of| &of.ids)
    }

    fn report(&self, rounds: &[Vec<Vec<Phase>>]) -> anyhow::Result<()> {
        let mut report = Report::default();
        let of = |at: usize, phase: usize, value: &dyn Fn(&Phase) -> f64| -> Vec<f64> {
            rounds[at].iter().map(|phases| value(&phases[phase])).collect()
        };
        let names: Vec<&'static str> = rounds[0][0].iter().map(|phase| phase.name).collect();
        for (phase, name) in names.iter().enumerate() {
            for (at, side) in self.sides.iter().enumerate() {
                let milliseconds = of(at, phase, &|phase| phase.wall * 1e3);
                let cpu = match self.processes_of(side) {
                    [] => Vec::new(),
                    _ => of(at, phase, &|phase| phase.cpu * 1e6 / phase.operations as f64),
                };
                report.figure(&format!("{name}: {}", side.name), "ms", &milliseconds, &cpu);
            }
        }
        for (phase, name) in names.iter().enumerate() {
            for at in 1..self.sides.len() {
                let title = format!("{name}, time: {} / {}", self.sides[0].name, self.sides[at].name);
                let seconds = |at: usize| of(at, phase, &|phase| phase.wall);
                report.ratio(&title, &seconds(0), &seconds(at));
            }
        }
        report.finish(self.json.as_deref())
    }

    fn report_memory(&self) -> anyhow::Result<()> {
        for Processes { side, ids } in &self.processes {
            for id in ids {
                let (name, now, peak) = memory(*id)?;
                println!("memory: {side:<24} {name:<28.28} {now:>8.1} MiB now, {peak:>8.1} MiB at most");
            }
        }
        Ok(())
    }

    fn report_gains(&self, gains: &[Vec<Vec<(String, f64)>>]) {
        for (side, rounds) in self.sides.iter().zip(gains) {
            for (name, _) in rounds.iter().flatten().take(rounds.first().map_or(0, Vec::len)) {
                let values: Vec<f64> = rounds
                    .iter()
                    .flatten()
                    .filter(|(other, _)| other == name)
                    .map(|(_, gain)| *gain)
                    .collect();
                if median(&values) != 0.0 {
                    println!("{}, a round: {name:<40} {:>14.0}", side.name, median(&values));
                }
            }
        }
    }

    /// A side's counters, if there is a command for them.
    fn count(&self, side: &Side) -> anyhow::Result<Vec<(String, f64)>> {
        let Some(Counters { command, .. }) = self.counters.iter().find(|of| of.side == side.name) else {
            return Ok(Vec::new());
        };
        let output = Command::new("sh").args(["-c", command]).output().context("sh")?;
        ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        let mut found = Vec::new();
        numbers("", &serde_json::from_slice(&output.stdout).context("no JSON")?, &mut found);
        Ok(found)
    }
}

/// Every number in `value`, with its name.
fn numbers(name: &str, value: &serde_json::Value, found: &mut Vec<(String, f64)>) {
    match value {
        serde_json::Value::Number(number) => {
            found.push((name.to_owned(), number.as_f64().unwrap_or(f64::NAN)));
        }
        serde_json::Value::Object(fields) => {
            fields.iter().for_each(|(field, value)| numbers(&format!("{name} {field}"), value, found));
        }
        serde_json::Value::Array(values) => {
            values.iter().for_each(|value| numbers(name, value, found));
        }
        _ => {}
    }
}

/// User and system time of processes. Counted in hundredths of a second by the kernel, so phases must be longer.
fn cpu_seconds(processes: &[u32]) -> anyhow::Result<f64> {
    let mut ticks = 0;
    for id in processes {
        let path = format!("/proc/{id}/stat");
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        // The name may contain anything; what follows its last parenthesis is numbers.
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok());
        // proc_pid_stat(5): (14) utime, (15) stime.
        ticks +=
            field(14).zip(field(15)).map(|(user, system)| user + system).with_context(|| path.clone())?;
    }
    Ok(ticks as f64 / 100.0)
}

/// How a process was called, and its memory now and at most, in MiB.
fn memory(process: u32) -> anyhow::Result<(String, f64, f64)> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mib = |name: &str| -> anyhow::Result<f64> {
        let kib = line(name).and_then(|value| value.strip_suffix(" kB")?.trim().parse::<f64>().ok());
        Ok(kib.with_context(|| format!("{path}: no {name}"))? / 1024.0)
    };
    let arguments = fs::read(format!("/proc/{process}/cmdline"))?;
    let mut words = arguments.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = words.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let name = format!("{program} {}", words.next().unwrap_or_default());
    Ok((name, mib("VmRSS:")?, mib("VmHWM:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: the time and memory of this very process are found, and time goes up with work.
    #[test]
    fn processes_are_read() {
        let me = [std::process::id()];
        let before = cpu_seconds(&me).expect("it is there");
        let start = Instant::now();
        while start.elapsed().as_millis() < 200 {
            std::hint::black_box(start.elapsed());
        }
        assert!(cpu_seconds(&me).expect("it is there") > before);
        let (_, now, peak) = memory(me[0]).expect("it is there");
        assert!(now > 0.0 && peak >= now);
        assert!(cpu_seconds(&[u32::MAX]).is_err());
    }
}
