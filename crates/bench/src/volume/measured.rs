//! File systems measured in turns, and what is written of it.
//!
//! With `--json FILE`, one object a line and measured phase is appended:
//!
//! ```text
//! figure       volume-files, volume-postmark, volume-build
//! workload     create, write, read, delete; postmark; unpack, configure, build
//! size         of the files, in bytes; 0 where they have many
//! side         bare, unhashed, protected, btrfs, or the name of a given device
//! round        counted from 0
//! amount, unit what was done: MB, files, transactions, or 1 build
//! seconds      that passed, until all of it was durable
//! cpu          processor seconds of the whole machine, kernel and all
//! logged, written   bytes of log blocks, and bytes written, where it is a protected volume; else 0
//! ```

use super::stack::{Given, ImageLocation, Kind, Stack};
use crate::report::{Report, median};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Who is measured, and how often.
#[derive(clap::Args, Clone)]
pub struct Turns {
    /// Who is measured; may be given several times. All, unless named.
    #[arg(long = "side")]
    sides: Vec<Kind>,
    /// A block device to be measured as well, with an ext4 of its own: what is on it is lost.
    #[arg(long = "given", value_name = "NAME=DEVICE")]
    given: Vec<Given>,
    #[command(flatten)]
    place: ImageLocation,
    /// Times that each is measured, in turns.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Append the measurements to this file, a JSON object a line.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One measured phase of one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub figure: String,
    pub workload: String,
    pub size: u64,
    pub side: String,
    pub round: usize,
    pub amount: f64,
    pub unit: String,
    pub seconds: f64,
    pub cpu: f64,
    pub logged: u64,
    pub written: u64,
}

/// One file system's turn.
pub struct Turn<'a> {
    pub stack: &'a mut Stack,
    figure: &'static str,
    round: usize,
    measured: Vec<Measured>,
}

impl Turn<'_> {
    /// Measures a phase, until what it wrote is durable.
    pub fn phase(
        &mut self,
        workload: &str,
        size: u64,
        (amount, unit): (f64, &str),
        work: impl FnOnce(&Stack) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let before = self.stack.counts()?.unwrap_or_default();
        let cpu = machine_seconds()?;
        let start = Instant::now();
        work(self.stack).with_context(|| format!("{workload} on {}", self.stack.name))?;
        rustix::fs::syncfs(std::fs::File::open(&self.stack.directory)?)?;
        let seconds = start.elapsed().as_secs_f64();
        let cpu = machine_seconds()? - cpu;
        let after = self.stack.counts()?.unwrap_or_default();
        self.measured.push(Measured {
            figure: self.figure.to_owned(),
            workload: workload.to_owned(),
            size,
            side: self.stack.name.clone(),
            round: self.round,
            amount,
            unit: unit.to_owned(),
            seconds,
            cpu,
            logged: after.logged - before.logged,
            written: after.written - before.written,
        });
        Ok(())
    }
}

impl Turns {
    /// Has everybody do the work in every round, the order of them turned, and prints what was found.
    pub fn compare(
        &self,
        figure: &'static str,
        work: impl Fn(&mut Turn<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let all = [Kind::Bare, Kind::Unhashed, Kind::Protected, Kind::Btrfs];
        let kinds = if self.sides.is_empty() { &all[..] } else { &self.sides };
        let mut stacks = Vec::new();
        for kind in kinds {
            stacks.push(Stack::new(*kind, &self.place).with_context(|| kind.name())?);
        }
        for given in &self.given {
            stacks.push(Stack::given(given, &self.place)?);
        }
        let names: Vec<String> = stacks.iter().map(|stack| stack.name.clone()).collect();
        let mut found = Vec::new();
        for round in 0..self.rounds {
            for turn in 0..stacks.len() {
                let at = (turn + round) % names.len();
                let mut turn = Turn { stack: &mut stacks[at], figure, round, measured: Vec::new() };
                work(&mut turn)?;
                found.extend(turn.measured);
            }
            eprintln!("round {} of {} done", round + 1, self.rounds);
        }
        for stack in &mut stacks {
            if let Some(counts) = stack.counts()? {
                println!("{}: at most {:.0} MiB of memory", stack.name, counts.memory_kib as f64 / 1024.0);
            }
        }
        append(self.json.as_deref(), &found)?;
        report(&names, &found)
    }
}

/// Appends measurements to a file, if there is to be one.
pub fn append(path: Option<&Path>, found: &[Measured]) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let file = std::fs::File::options().create(true).append(true).open(path);
    let mut file = file.with_context(|| path.display().to_string())?;
    for measured in found {
        writeln!(file, "{}", serde_json::to_string(measured)?)?;
    }
    Ok(())
}

fn report(names: &[String], found: &[Measured]) -> anyhow::Result<()> {
    let mut phases: Vec<(&str, u64)> = Vec::new();
    for measured in found {
        let phase = (&*measured.workload, measured.size);
        if !phases.contains(&phase) {
            phases.push(phase);
        }
    }
    let mut report = Report::default();
    let of = |phase: (&str, u64), side: &str, value: &dyn Fn(&Measured) -> f64| -> Vec<f64> {
        let of = found.iter().filter(|it| (&*it.workload, it.size) == phase && it.side == side);
        of.map(value).collect()
    };
    let title = |(workload, size): (&str, u64)| match size {
        0 => workload.to_owned(),
        size => format!("{workload} {} KB", size / 1024),
    };
    println!("\n{:<28} {:>12} {:>10} {:>10} {:>8}", "", "seconds", "CPU s", "a second", "log");
    for phase in &phases {
        for name in names {
            let seconds = median(&of(*phase, name, &|it| it.seconds));
            let rate = median(&of(*phase, name, &|it| it.amount / it.seconds));
            let cpu = median(&of(*phase, name, &|it| it.cpu));
            let logged = median(&of(*phase, name, &|it| it.logged as f64 / it.written.max(1) as f64));
            let log = if logged > 0.0 { format!("{logged:.2} B/B") } else { String::new() };
            let title = title(*phase);
            println!("{title:<17} {name:<10} {seconds:>12.3} {cpu:>10.2} {rate:>10.1} {log:>8}");
        }
    }
    let known = |name: &str| names.iter().any(|other| other == name);
    for (mine, other) in [("protected", "unhashed"), ("protected", "bare"), ("protected", "btrfs")] {
        for phase in phases.iter().filter(|_| known(mine) && known(other)) {
            let name = format!("{}, time: {mine} / {other}", title(*phase));
            report.ratio(&name, &of(*phase, mine, &|it| it.seconds), &of(*phase, other, &|it| it.seconds));
        }
    }
    for ratio in &report.ratios {
        println!(
            "{:<52} {:>6.3} x        [{:.3}, {:.3}] over {} pairs",
            ratio.name, ratio.ratio, ratio.low, ratio.high, ratio.pairs
        );
    }
    Ok(())
}

/// Processor seconds that the whole machine spent on anything but waiting: those of loop devices and of the kernel's
/// writers belong to nobody else.
fn machine_seconds() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let fields: Vec<u64> = line.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    // proc_stat(5): user, nice, system, idle, iowait, irq, softirq.
    let spent = [0, 1, 2, 5, 6].iter().filter_map(|at| fields.get(*at)).sum::<u64>();
    Ok(spent as f64 / 100.0)
}
