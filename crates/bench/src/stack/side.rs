//! Sides of a comparison: a stack in a process of its own, a file system of the kernel's on a loop device, or a FAT
//! driver over FUSE. All have the same files.

use super::client::{Measurement, Order};
use super::host::{Arrangement, BYTES};
use crate::volume::command;
use anyhow::{Context, ensure};
use rustix::fs::{Advice, fadvise};
use rustix::mount::{MountFlags, mount_remount};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// A stack that runs.
pub struct Host {
    child: Child,
    said: BufReader<ChildStdout>,
    at: PathBuf,
    is_stopped: bool,
}

impl Host {
    pub fn start(
        arrangement: Arrangement,
        disk: &Path,
        log: &Path,
        at: &Path,
        is_new: bool,
    ) -> anyhow::Result<Host> {
        fs::create_dir_all(at)?;
        use clap::ValueEnum;
        let name = arrangement.to_possible_value().context("it has a name")?;
        let mut host = Command::new(std::env::current_exe()?);
        host.args(["stack", "host", "--arrangement", name.get_name(), "--disk"]).arg(disk);
        host.arg("--log").arg(log).arg("--at").arg(at);
        if is_new {
            host.arg("--format");
        }
        let mut child = host.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let said = BufReader::new(child.stdout.take().context("no output")?);
        let mut host = Host { child, said, at: at.to_owned(), is_stopped: false };
        host.answer().with_context(|| format!("starting {}", name.get_name()))?;
        Ok(host)
    }

    fn answer(&mut self) -> anyhow::Result<Measurement> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        serde_json::from_str(&line).context("the process with the stack ended")
    }

    fn tell(&mut self, what: &str) -> anyhow::Result<Measurement> {
        let input = self.child.stdin.as_mut().context("no input")?;
        writeln!(input, "{what}")?;
        self.answer()
    }

    pub fn stop(mut self) -> anyhow::Result<()> {
        self.tell("stop")?;
        self.is_stopped = true;
        ensure!(self.child.wait()?.success(), "the process with the stack failed");
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !self.is_stopped {
            let _ = self.tell("stop");
            let _ = self.child.kill();
            let _ = self.child.wait();
            let _ = Command::new("umount").arg("-l").arg(&self.at).stderr(Stdio::null()).status();
        }
    }
}

/// How the side's file system is made.
enum Below {
    Host(Host),
    Kernel { file_system: &'static str, device: PathBuf },
    FuseFat,
}

/// A stack, or a file system of the kernel, that is measured.
pub struct Side {
    pub name: String,
    image: PathBuf,
    at: PathBuf,
    below: Below,
    is_client: bool,
    is_mounted: bool,
    held: Option<File>,
}

impl Side {
    pub fn stack(
        name: &str,
        arrangement: Arrangement,
        disk: &Path,
        log: &Path,
        at: &Path,
    ) -> anyhow::Result<Side> {
        let host = Host::start(arrangement, disk, log, at, false)?;
        Ok(Side {
            name: name.to_owned(),
            image: disk.to_owned(),
            at: at.to_owned(),
            below: Below::Host(host),
            is_client: arrangement.is_client(),
            is_mounted: true,
            held: None,
        })
    }

    /// A file system of the kernel's, on a loop device.
    pub fn kernel(file_system: &'static str, image: &Path, at: &Path) -> anyhow::Result<Side> {
        fs::create_dir_all(at)?;
        let options = ["--show", "--direct-io=on", "-f"];
        let device = command(Command::new("losetup").args(options).arg(image))?;
        let below = Below::Kernel { file_system, device: device.trim().into() };
        let name = file_system.to_owned();
        let (image, at) = (image.to_owned(), at.to_owned());
        let mut side = Side { name, image, at, below, is_client: false, is_mounted: false, held: None };
        side.mount()?;
        Ok(side)
    }

    /// Debian's `fusefat`, reading only.
    pub fn fuse_fat(image: &Path, at: &Path) -> anyhow::Result<Side> {
        fs::create_dir_all(at)?;
        let (image, at) = (image.to_owned(), at.to_owned());
        let name = "fusefat".to_owned();
        let mut side =
            Side { name, image, at, below: Below::FuseFat, is_client: false, is_mounted: false, held: None };
        side.mount()?;
        Ok(side)
    }

    pub fn directory(&self) -> &Path {
        &self.at
    }

    fn mount(&mut self) -> anyhow::Result<()> {
        match &self.below {
            Below::Host(_) => return Ok(()),
            Below::Kernel { file_system, device } => {
                command(Command::new("mount").args(["-t", file_system]).arg(device).arg(&self.at))?;
            }
            Below::FuseFat => {
                command(Command::new("fusefat").args(["-o", "ro"]).arg(&self.image).arg(&self.at))?;
            }
        }
        self.is_mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        self.held = None;
        if self.is_mounted && !matches!(self.below, Below::Host(_)) {
            command(Command::new("umount").arg(&self.at))?;
            self.is_mounted = false;
        }
        Ok(())
    }

    fn cool_image(&self) -> anyhow::Result<()> {
        let image = File::open(&self.image)?;
        image.sync_all()?;
        Ok(fadvise(&image, 0, None, Advice::DontNeed)?)
    }

    /// Empties all caches except for metadata of the file that is held: it stays open, without its content.
    pub fn cool_content(&mut self) -> anyhow::Result<()> {
        if let Some(held) = &self.held {
            fadvise(held, 0, None, Advice::DontNeed)?;
        }
        if let Below::Host(host) = &mut self.below {
            host.tell("cool")?;
        }
        self.cool_image()
    }

    /// Empties all caches.
    pub fn cool(&mut self) -> anyhow::Result<()> {
        self.unmount()?;
        if let Below::Host(host) = &mut self.below {
            if !self.is_client {
                // The kernel drops all names and files that nobody uses.
                mount_remount(&self.at, MountFlags::NOSUID | MountFlags::NODEV, c"")?;
            }
            host.tell("cool")?;
        }
        self.cool_image()?;
        self.mount()
    }

    /// Does the measured work.
    pub fn run(&mut self, order: &Order) -> anyhow::Result<Measurement> {
        match &mut self.below {
            Below::Host(host) if self.is_client => host.tell(&serde_json::to_string(order)?),
            _ => self.run_here(order),
        }
    }

    fn run_here(&mut self, order: &Order) -> anyhow::Result<Measurement> {
        let at = |path: &str| self.at.join(path.trim_start_matches('/'));
        let held = || self.held.as_ref().context("no file is open");
        let (path, began) = match order {
            Order::Open { path, .. } | Order::Enumerate { path } | Order::Hold { path } => {
                (at(path), Instant::now())
            }
            _ => (PathBuf::new(), Instant::now()),
        };
        let taken = |times: usize, amount| Measurement {
            seconds: began.elapsed().as_secs_f64() / times.max(1) as f64,
            amount,
        };
        match order {
            Order::Open { times, .. } => {
                for _ in 0..*times {
                    drop(File::open(&path)?);
                }
                Ok(taken(*times as usize, 0))
            }
            Order::Enumerate { .. } => {
                let found = enumerate(&path)?;
                Ok(taken(1, found))
            }
            Order::Hold { .. } => {
                self.held = Some(File::open(&path)?);
                Ok(Measurement::default())
            }
            Order::ReadOne { places } => {
                let (file, mut byte, mut sum) = (held()?, [0], 0);
                for place in places {
                    sum += file.read_at(&mut byte, *place)? as u64;
                }
                Ok(taken(places.len(), sum))
            }
            Order::ReadAll { step } => {
                let (mut file, mut buffer, mut sum) = (held()?, vec![0; *step as usize], 0);
                file.rewind()?;
                loop {
                    match file.read(&mut buffer)? {
                        0 => break,
                        read => sum += read as u64,
                    }
                }
                Ok(taken(1, sum))
            }
        }
    }
}

/// Files and directories, this one included.
fn enumerate(path: &Path) -> anyhow::Result<u64> {
    let mut found = 1;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => found += enumerate(&entry.path())?,
            false => found += 1,
        }
    }
    Ok(found)
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("{}: {error:#}", self.name);
        }
        if let Below::Kernel { device, .. } = &self.below {
            let _ = command(Command::new("losetup").arg("-d").arg(device));
        }
    }
}

/// Copies an image, holes as holes; of a volume the file system only.
pub fn copy(from: &Path, to: &Path, is_file_system: bool) -> anyhow::Result<()> {
    command(Command::new("cp").args(["--sparse=always", "--reflink=auto"]).arg(from).arg(to))?;
    if is_file_system {
        File::options().write(true).open(to)?.set_len(BYTES)?;
    }
    Ok(())
}
