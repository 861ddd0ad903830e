//! Section 5.1.3: opening and closing a file of 1 MB, enumerating 4,096 files in 1,365 directories, reading one byte and
//! all of a file of 16 MB, each cached and from cold caches.
//!
//! `--json FILE` appends lines as the others do: figure stack; workload as in the table; size is 0 where nothing is
//! cached and 1 where all is; amount and unit say of what `seconds` is.

use super::client::Order;
use super::host::{Arrangement, BYTES};
use super::side::{Host, Side, copy};
use crate::report::{Report, median};
use crate::volume::{Measured, append, command};
use anyhow::{Context, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Levels of directories below the first, with so many in each; the last have as many files.
const LEVELS: u32 = 5;
const FAN: u32 = 4;
/// All of it: 1 + 4 + ... + 1,024 directories, and 4,096 files.
const FOUND: u64 = 1365 + 4096;
const STEP: u32 = 4096;
const READ_BYTES: u64 = 16 << 20;

/// The sides that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Who {
    /// The stack as it is shipped.
    Decomposed,
    /// All components in one process (the paper's UFS).
    Merged,
    /// One ACL for everything (ConstPolicyMgr).
    ConstPolicy,
    /// FSDriver maps its metadata (PFS mmap).
    Mapped,
    /// A program with VFS as a library, without FUSE.
    Client,
    /// A program with VFS as a library, which maps what it reads.
    ClientMapped,
    /// The kernel's ext4.
    Ext4,
    /// The kernel's FAT driver, if it has one.
    Vfat,
    /// Debian's FAT driver over FUSE.
    Fusefat,
}

const ALL: [Who; 9] = [
    Who::Decomposed,
    Who::Merged,
    Who::ConstPolicy,
    Who::Mapped,
    Who::Client,
    Who::ClientMapped,
    Who::Ext4,
    Who::Vfat,
    Who::Fusefat,
];

#[derive(clap::Args)]
pub struct Options {
    /// Who is measured; may be given several times. All that there are, unless named.
    #[arg(long = "side")]
    sides: Vec<Who>,
    /// The directory for images.
    #[arg(long, default_value = "/var/tmp")]
    place: PathBuf,
    /// Times that each is measured, in turns.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Openings and readings in one round where all is cached.
    #[arg(long, default_value_t = 2000)]
    times: u32,
    /// Openings and readings in one round where nothing is, each from cold caches.
    #[arg(long, default_value_t = 3)]
    cold: u32,
    /// Append the measurements to this file, a JSON object a line.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Makes the files.
fn fill(root: &Path) -> anyhow::Result<()> {
    fn grow(directory: &Path, levels: u32) -> anyhow::Result<()> {
        fs::create_dir(directory)?;
        for number in 0..FAN {
            let path = directory.join(format!("entry-{number}"));
            match levels {
                0 => fs::write(path, [number as u8; 100])?,
                _ => grow(&path, levels - 1)?,
            }
        }
        Ok(())
    }
    let content = |bytes: u64| -> Vec<u8> { (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect() };
    fs::write(root.join("open"), content(1 << 20))?;
    fs::write(root.join("read"), content(READ_BYTES))?;
    grow(&root.join("tree"), LEVELS)?;
    Ok(File::open(root)?.sync_all()?)
}

/// Starts every side, with the same files.
fn sides(options: &Options, home: &Path) -> anyhow::Result<Vec<Side>> {
    let path = |name: &str| home.join(name);
    let who = if options.sides.is_empty() { &ALL[..] } else { &options.sides };
    let (disk, log) = (path("disk"), path("log"));
    let first = Host::start(Arrangement::Decomposed, &disk, &log, &path("first"), true)?;
    fill(&path("first")).context("making the files")?;
    first.stop()?;
    let mut sides = Vec::new();
    let has_vfat = fs::read_to_string("/proc/filesystems")?.lines().any(|line| line.ends_with("vfat"))
        || Command::new("modprobe").arg("vfat").output().is_ok_and(|output| output.status.success());
    let has_fusefat = Command::new("fusefat").arg("--help").output().is_ok();
    for who in who {
        use clap::ValueEnum;
        let name = who.to_possible_value().context("it has a name")?.get_name().to_owned();
        let (image, at) = (path(&format!("{name}.image")), path(&format!("{name}.at")));
        let stack = |arrangement| -> anyhow::Result<Side> {
            let its_log = path(&format!("{name}.log"));
            copy(&disk, &image, false)?;
            copy(&log, &its_log, false)?;
            Side::stack(&name, arrangement, &image, &its_log, &at).context(name.clone())
        };
        sides.push(match who {
            Who::Decomposed => stack(Arrangement::Decomposed)?,
            Who::Merged => stack(Arrangement::Merged)?,
            Who::ConstPolicy => stack(Arrangement::ConstPolicy)?,
            Who::Mapped => stack(Arrangement::Mapped)?,
            Who::Client => stack(Arrangement::Client)?,
            Who::ClientMapped => stack(Arrangement::ClientMapped)?,
            Who::Ext4 => {
                File::create(&image)?.set_len(BYTES)?;
                command(
                    Command::new("mkfs.ext4").args(["-q", "-F", "-E", "lazy_itable_init=0"]).arg(&image),
                )?;
                let side = Side::kernel("ext4", &image, &at)?;
                fill(side.directory())?;
                side
            }
            Who::Vfat if has_vfat => {
                copy(&disk, &image, true)?;
                Side::kernel("vfat", &image, &at)?
            }
            Who::Fusefat if has_fusefat => {
                copy(&disk, &image, true)?;
                Side::fuse_fat(&image, &at)?
            }
            Who::Vfat | Who::Fusefat => {
                println!("not measured: {name}, which is not on this machine");
                continue;
            }
        });
    }
    Ok(sides)
}

/// Workload, unit, and what a time is turned into for tables; whether more is better.
const WORKLOADS: [(&str, &str, f64); 8] = [
    ("open, cached", "us", 1e6),
    ("open, uncached", "us", 1e6),
    ("enumerate, cached", "ms", 1e3),
    ("enumerate, uncached", "ms", 1e3),
    ("read one, cached", "us", 1e6),
    ("read one, uncached", "us", 1e6),
    ("read all, cached", "ms", 1e3),
    ("read all, uncached", "ms", 1e3),
];

struct Round<'a> {
    side: &'a mut Side,
    number: usize,
    found: &'a mut Vec<Measured>,
}

impl Round<'_> {
    fn note(&mut self, workload: &str, seconds: f64, amount: f64, unit: &str) {
        self.found.push(Measured {
            figure: "stack".to_owned(),
            workload: workload.to_owned(),
            size: u64::from(!workload.ends_with("uncached")),
            side: self.side.name.clone(),
            round: self.number,
            amount,
            unit: unit.to_owned(),
            seconds,
            cpu: 0.0,
            logged: 0,
            written: 0,
        });
    }

    fn run(&mut self, options: &Options) -> anyhow::Result<()> {
        let open = |times| Order::Open { path: "/open".to_owned(), times };
        let enumerate = Order::Enumerate { path: "/tree".to_owned() };
        let hold = Order::Hold { path: "/read".to_owned() };
        let all = Order::ReadAll { step: STEP };
        let side = &mut *self.side;
        let mut cold = Vec::new();
        for _ in 0..options.cold {
            side.cool()?;
            cold.push(side.run(&open(1))?.seconds);
        }
        side.run(&open(options.times / 10))?;
        let warm = side.run(&open(options.times))?.seconds;
        self.note("open, uncached", median(&cold), 1.0, "file");
        self.note("open, cached", warm, 1.0, "file");

        let side = &mut *self.side;
        side.cool()?;
        let first = side.run(&enumerate)?;
        let second = side.run(&enumerate)?;
        ensure!(first.amount == FOUND && second.amount == FOUND, "{} found {}", side.name, first.amount);
        self.note("enumerate, uncached", first.seconds, FOUND as f64, "files");
        self.note("enumerate, cached", second.seconds, FOUND as f64, "files");

        let side = &mut *self.side;
        side.cool()?;
        side.run(&hold)?;
        let place = |number: u64| (number * 7919 + self.number as u64 * 104_729) * 4096 % READ_BYTES + 5;
        // The file's metadata was read, and its content was not.
        side.run(&Order::ReadOne { places: vec![0] })?;
        let mut cold = Vec::new();
        for number in 0..options.cold {
            side.cool_content()?;
            cold.push(side.run(&Order::ReadOne { places: vec![place(number.into())] })?.seconds);
        }
        side.cool_content()?;
        let uncached = side.run(&all)?;
        let cached = side.run(&all)?;
        ensure!(uncached.amount == READ_BYTES && cached.amount == READ_BYTES, "{} read less", side.name);
        let places: Vec<u64> = (0..u64::from(options.times)).map(place).collect();
        let mut one = 0.0;
        for places in places.chunks(500) {
            let order = Order::ReadOne { places: places.to_vec() };
            one += side.run(&order)?.seconds * places.len() as f64 / f64::from(options.times);
        }
        let megabytes = READ_BYTES as f64 / 1e6;
        self.note("read one, uncached", median(&cold), 1.0, "byte");
        self.note("read one, cached", one, 1.0, "byte");
        self.note("read all, uncached", uncached.seconds, megabytes, "MB");
        self.note("read all, cached", cached.seconds, megabytes, "MB");
        Ok(())
    }
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let home = tempfile::Builder::new().prefix("holdfast-stack-").tempdir_in(&options.place)?;
    let mut sides = sides(options, home.path())?;
    let mut found = Vec::new();
    for number in 0..options.rounds {
        for turn in 0..sides.len() {
            let at = (turn + number) % sides.len();
            let side = &mut sides[at];
            let name = side.name.clone();
            Round { side, number, found: &mut found }.run(options).context(name)?;
        }
        eprintln!("round {} of {} done", number + 1, options.rounds);
    }
    append(options.json.as_deref(), &found)?;
    let names: Vec<String> = sides.iter().map(|side| side.name.clone()).collect();
    report(&names, &found);
    Ok(())
}

fn report(names: &[String], found: &[Measured]) {
    let of = |workload: &str, side: &str| -> Vec<f64> {
        let alike = |it: &&Measured| it.workload == workload && it.side == side;
        found.iter().filter(alike).map(|it| it.seconds).collect()
    };
    print!("{:<22}", "");
    names.iter().for_each(|name| print!("{name:>14}"));
    println!();
    for (workload, unit, factor) in WORKLOADS {
        print!("{:<22}", format!("{workload}, {unit}"));
        for name in names {
            print!("{:>14.2}", median(&of(workload, name)) * factor);
        }
        println!();
        if workload.starts_with("read all") {
            print!("{:<22}", "  the same, MB/s");
            for name in names {
                print!("{:>14.0}", READ_BYTES as f64 / 1e6 / median(&of(workload, name)));
            }
            println!();
        }
    }
    let mut report = Report::default();
    for (workload, _, _) in WORKLOADS {
        for other in names.iter().filter(|name| *name != "decomposed") {
            let (mine, theirs) = (of(workload, "decomposed"), of(workload, other));
            if !mine.is_empty() {
                report.ratio(&format!("{workload}, time: decomposed / {other}"), &mine, &theirs);
            }
        }
    }
    println!();
    for ratio in &report.ratios {
        println!(
            "{:<52} {:>7.2} x        [{:.2}, {:.2}] over {} pairs",
            ratio.name, ratio.ratio, ratio.low, ratio.high, ratio.pairs
        );
    }
}
