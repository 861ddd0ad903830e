//! What the volume itself does, without a kernel between: reading, writing, protecting and scrubbing against the
//! device's own speed; recovery against the size of the log and of the volume; memory.
//!
//! `--json FILE` appends lines as the others do: figure volume-engine, with side device or protected and the size of
//! requests; figure volume-recovery, with workload recovery, size of the volume, amount MB of log; and memory, amount
//! MB at most.

use super::export::{device, key, protect, salt};
use super::measured::{Measured, append};
use crate::report::{Report, measure};
use anyhow::{Context, ensure};
use holdfast_log::device::Device;
use holdfast_volume::{Plan, Volume};
use parking_lot::RwLock;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const REQUEST: usize = 1 << 20;

#[derive(clap::Args, Clone)]
pub struct Engine {
    /// The directory for images and logs; without one they are in memory.
    #[arg(long)]
    place: Option<PathBuf>,
    /// Size of the volume.
    #[arg(long, default_value_t = 1024)]
    image_mib: u64,
    /// Random requests.
    #[arg(long, default_value_t = 5000)]
    requests: u64,
    /// Times that each is measured, in turns.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Append the measurements to this file, a JSON object a line.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(clap::Args, Clone)]
pub struct Recovery {
    /// The directory for sparse images and logs.
    #[arg(long, default_value = "/var/tmp")]
    place: PathBuf,
    /// Sizes of the volume; may be given several times. A TB takes minutes to be taken over.
    #[arg(long = "size-gib", default_values_t = [1, 4, 16])]
    sizes: Vec<u64>,
    /// MB of log that are there to be recovered from; may be given several times.
    #[arg(long = "log-mb", default_values_t = [4, 16, 48])]
    logs: Vec<u64>,
    /// Times that each is measured.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Append the measurements to this file, a JSON object a line.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A device that costs nothing but copying.
struct Memory(RwLock<Vec<u8>>);

impl Device for Memory {
    fn size_bytes(&self) -> u64 {
        self.0.read().len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        buffer.copy_from_slice(&self.0.read()[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % limit
    }
}

/// A file of zeroes, or a hole.
fn image(path: &Path, mib: u64, is_sparse: bool) -> anyhow::Result<()> {
    let file = File::create(path).with_context(|| path.display().to_string())?;
    file.set_len(mib << 20)?;
    if !is_sparse {
        let disk = device(path)?;
        let zeroes = vec![0; REQUEST];
        (0..mib).try_for_each(|at| disk.write_at(at << 20, &zeroes))?;
        disk.flush()?;
    }
    Ok(())
}

struct Runs {
    found: Vec<Measured>,
    round: usize,
}

impl Runs {
    fn run(
        &mut self,
        (workload, side, size): (&str, &str, u64),
        megabytes: f64,
        counted: impl Fn() -> (u64, u64),
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let before = counted();
        let (taken, ()) = measure(work).with_context(|| format!("{workload}, {side}"))?;
        let after = counted();
        self.found.push(Measured {
            figure: "volume-engine".to_owned(),
            workload: workload.to_owned(),
            size,
            side: side.to_owned(),
            round: self.round,
            amount: megabytes,
            unit: "MB".to_owned(),
            seconds: taken.wall,
            cpu: taken.cpu,
            logged: after.0 - before.0,
            written: after.1 - before.1,
        });
        Ok(())
    }
}

/// Reads and writes through a volume, and on the device itself.
pub fn engine(options: &Engine) -> anyhow::Result<()> {
    let home = match &options.place {
        Some(place) => Some(tempfile::Builder::new().prefix("holdfast-volume-").tempdir_in(place)?),
        None => None,
    };
    let bytes = options.image_mib << 20;
    let log_bytes = Plan::new(bytes, None).bytes;
    let make = |name: &str, mib: u64| -> anyhow::Result<Arc<dyn Device>> {
        match &home {
            Some(home) => {
                image(&home.path().join(name), mib, false)?;
                device(&home.path().join(name))
            }
            None => Ok(Arc::new(Memory(RwLock::new(vec![1; (mib << 20) as usize])))),
        }
    };
    let (raw, disk) = (make("raw", options.image_mib)?, make("disk", options.image_mib)?);
    let log = make("log", log_bytes.div_ceil(1 << 20))?;
    let mut runs = Runs { found: Vec::new(), round: 0 };
    let megabytes = bytes as f64 / 1e6;
    let small = (options.requests * 4096) as f64 / 1e6;
    let cold = |device: &Arc<dyn Device>| -> anyhow::Result<()> {
        device.flush()?;
        device.drop_cache(0, bytes);
        Ok(())
    };
    let nothing = || (0, 0);
    for round in 0..options.rounds {
        runs.round = round;
        let mut buffer = vec![round as u8; REQUEST];
        cold(&raw)?;
        runs.run(("read", "device", REQUEST as u64), megabytes, nothing, || {
            Ok((0..options.image_mib).try_for_each(|at| raw.read_at(at << 20, &mut buffer))?)
        })?;
        runs.run(("write", "device", REQUEST as u64), megabytes, nothing, || {
            (0..options.image_mib).try_for_each(|at| raw.write_at(at << 20, &buffer))?;
            Ok(raw.flush()?)
        })?;
        let mut random = Random(round as u64 + 1);
        let mut place = || random.below(bytes / 4096) * 4096;
        runs.run(("synced write", "device", 4096), small, nothing, || {
            (0..options.requests).try_for_each(|_| {
                raw.write_at(place(), &buffer[..4096])?;
                raw.flush()
            })?;
            Ok(())
        })?;
        cold(&raw)?;
        runs.run(("read", "device", 4096), small, nothing, || {
            Ok((0..options.requests).try_for_each(|_| raw.read_at(place(), &mut buffer[..4096]))?)
        })?;
        cold(&disk)?;
        runs.run(("protect", "protected", 0), megabytes, nothing, || {
            Volume::format(&*disk, &*log, &key(), None)?;
            let done = Volume::adopt(disk.clone(), log.clone(), &key(), salt()?, None, &|_, _| true)?;
            ensure!(done, "it was not taken over");
            Ok(())
        })?;
        let (volume, _) = Volume::open(disk.clone(), log.clone(), &key(), Default::default(), None, salt()?)?;
        volume.start()?;
        let counted = || (volume.log_statistics().blocks * 4096, volume.statistics().written_bytes);
        cold(&disk)?;
        runs.run(("read", "protected", REQUEST as u64), megabytes, counted, || {
            Ok((0..options.image_mib).try_for_each(|at| volume.read(at << 20, &mut buffer))?)
        })?;
        runs.run(("write", "protected", REQUEST as u64), megabytes, counted, || {
            (0..options.image_mib).try_for_each(|at| volume.write(at << 20, &buffer))?;
            Ok(volume.flush()?)
        })?;
        runs.run(("synced write", "protected", 4096), small, counted, || {
            (0..options.requests).try_for_each(|_| {
                volume.write(place(), &buffer[..4096])?;
                volume.flush()
            })?;
            Ok(())
        })?;
        volume.checkpoint()?;
        cold(&disk)?;
        runs.run(("read", "protected", 4096), small, counted, || {
            Ok((0..options.requests).try_for_each(|_| volume.read(place(), &mut buffer[..4096]))?)
        })?;
        cold(&disk)?;
        runs.run(("scrub", "protected", 0), megabytes, counted, || {
            let blocks = bytes / 4096;
            for at in (0..blocks).step_by(256) {
                ensure!(volume.scrub(at..(at + 256).min(blocks))?.is_empty(), "a bad block");
            }
            Ok(())
        })?;
        volume.close()?;
    }
    append(options.json.as_deref(), &runs.found)?;
    tell(&runs.found);
    Ok(())
}

fn tell(found: &[Measured]) {
    let mut report = Report::default();
    let mut known: Vec<(&str, &str, u64)> = Vec::new();
    println!("{:<32} {:>10} {:>14} {:>8}", "", "MB/s", "CPU us/4 KiB", "log B/B");
    for it in found {
        let one = (&*it.workload, &*it.side, it.size);
        if known.contains(&one) {
            continue;
        }
        known.push(one);
        let of = |value: &dyn Fn(&Measured) -> f64| -> Vec<f64> {
            let alike = |it: &&Measured| (&*it.workload, &*it.side, it.size) == one;
            found.iter().filter(alike).map(value).collect()
        };
        let middle = |value: &dyn Fn(&Measured) -> f64| crate::report::median(&of(value));
        println!(
            "{:<32} {:>10.0} {:>14.2} {:>8.2}",
            format!(
                "{} {}, {}",
                one.0,
                if one.2 == 0 { String::new() } else { format!("{} KB", one.2 >> 10) },
                one.1
            ),
            middle(&|it| it.amount / it.seconds),
            middle(&|it| it.cpu * 1e6 / (it.amount * 1e6 / 4096.0)),
            middle(&|it| it.logged as f64 / it.written.max(1) as f64),
        );
        // Protecting and scrubbing read all of it, in large requests.
        let other = if one.2 == 0 { ("read", REQUEST as u64) } else { (one.0, one.2) };
        let theirs: Vec<f64> = found
            .iter()
            .filter(|it| it.side == "device" && (&*it.workload, it.size) == other)
            .map(|it| it.seconds)
            .collect();
        if one.1 == "protected" {
            report.ratio(
                &format!("{} {} KB, time: protected / device", one.0, one.2 >> 10),
                &of(&|it| it.seconds),
                &theirs,
            );
        }
    }
    for ratio in &report.ratios {
        println!(
            "{:<52} {:>6.3} x        [{:.3}, {:.3}] over {} pairs",
            ratio.name, ratio.ratio, ratio.low, ratio.high, ratio.pairs
        );
    }
}

/// How long opening takes after a crash, and what memory a large volume needs.
pub fn recovery(options: &Recovery) -> anyhow::Result<()> {
    let home = tempfile::Builder::new().prefix("holdfast-volume-").tempdir_in(&options.place)?;
    let (disk, log) = (home.path().join("disk"), home.path().join("log"));
    let mut found = Vec::new();
    println!("{:>12} {:>10} {:>12} {:>12}", "volume GiB", "log MB", "opening ms", "memory MiB");
    for size in &options.sizes {
        image(&disk, size << 10, true)?;
        // As large as for a large volume, so that size alone differs.
        let most = options.logs.iter().max().copied().unwrap_or(1);
        protect(&disk, &log, Some((most * 4) << 20))?;
        for megabytes in &options.logs {
            for round in 0..options.rounds {
                let open = || -> anyhow::Result<Volume> {
                    let (disk, log) = (device(&disk)?, device(&log)?);
                    Ok(Volume::open(disk, log, &key(), Default::default(), None, salt()?)?.0)
                };
                let volume = open()?;
                let mut random = Random(round as u64 + 77);
                while volume.log_room().1 < megabytes << 20 {
                    let at = random.below((size << 30) / 4096) * 4096;
                    volume.write(at, &[round as u8; 4096])?;
                    if random.below(64) == 0 {
                        volume.flush()?;
                    }
                }
                volume.flush()?;
                let used = volume.log_room().1;
                drop(volume);
                let (taken, volume) = measure(open)?;
                let mut buffer = [0; 4096];
                for _ in 0..20_000 {
                    volume.read(random.below((size << 30) / 4096) * 4096, &mut buffer)?;
                }
                volume.close()?;
                let memory = memory_mib()?;
                println!("{size:>12} {:>10} {:>12.0} {memory:>12.0}", used >> 20, taken.wall * 1e3);
                found.push(Measured {
                    figure: "volume-recovery".to_owned(),
                    workload: "recovery".to_owned(),
                    size: size << 30,
                    side: "protected".to_owned(),
                    round,
                    amount: used as f64 / 1e6,
                    unit: "MB of log".to_owned(),
                    seconds: taken.wall,
                    cpu: taken.cpu,
                    logged: used,
                    written: 0,
                });
            }
        }
        fs::remove_file(&disk)?;
    }
    append(options.json.as_deref(), &found)
}

/// Most memory this process ever had.
fn memory_mib() -> anyhow::Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    Ok(peak.context("no VmHWM")?.trim().parse::<f64>()? / 1024.0)
}
