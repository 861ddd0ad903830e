//! The setting of one measurement: a link, a directory, and processes at either end of the link.

use crate::link::Running;
use anyhow::{Context, bail, ensure};
use holdfast_link::{Conditions, Link, Side};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything that is not measured may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Dropping it removes the link and ends what runs at its ends.
pub(super) struct LinkedHosts {
    pub(super) link: Link,
    directory: PathBuf,
    keep: bool,
}

impl LinkedHosts {
    pub(super) fn make(keep: bool) -> anyhow::Result<LinkedHosts> {
        let link = Link::make(Conditions::default(), Conditions::default()).context("making the link")?;
        let directory = tempfile::Builder::new().prefix("holdfast-far.").tempdir()?.keep();
        let place = LinkedHosts { link, directory, keep };
        std::fs::create_dir(place.local())?;
        Ok(place)
    }

    /// A path in the measurement's directory.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A directory on the local disk, for the work.
    pub(super) fn local(&self) -> PathBuf {
        self.path("local")
    }

    /// Starts a process at one end, with its output in the file `NAME.log`.
    ///
    /// Only its network is that end's: what it mounts is seen everywhere.
    pub(super) fn start(&self, side: Side, name: &str, command: &mut Command) -> anyhow::Result<Running> {
        let path = self.path(&format!("{name}.log"));
        let log = File::options().create(true).append(true).open(&path)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = std::thread::scope(|scope| {
            let spawned = scope.spawn(|| {
                self.link.enter(side)?;
                command.spawn()
            });
            spawned.join().expect("no panic")
        });
        Ok(Running(child.with_context(|| format!("starting {name}"))?))
    }

    /// Runs a command at one end to its end, and returns what it printed.
    pub(super) fn run(&self, side: Side, command: &mut Command) -> anyhow::Result<String> {
        let output = std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                self.link.enter(side)?;
                command.stdin(Stdio::null()).output()
            });
            run.join().expect("no panic")
        });
        let output = output.with_context(|| format!("starting {:?}", command.get_program()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}: {}: {}", output.status, said.trim());
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Whether somebody at the server's end listens on a port.
    pub(super) fn listens(&self, port: u16) -> anyhow::Result<bool> {
        let port = port.to_string();
        Ok(!self.run(Side::Server, Command::new("ss").args(["-Hltn", "sport", "=", &port]))?.is_empty())
    }

    /// Waits until `process` has mounted something on `directory`.
    pub(super) fn wait_mounted(&self, process: &mut Running, directory: &Path) -> anyhow::Result<()> {
        let below = std::fs::metadata(directory.parent().context("no parent")?)?.dev();
        self.wait_until(process, &format!("mounting {}", directory.display()), || {
            Ok(std::fs::metadata(directory).is_ok_and(|found| found.dev() != below))
        })
    }

    /// Waits until something holds; fails when `process` has ended, or after a while.
    pub(super) fn wait_until(
        &self,
        process: &mut Running,
        what: &str,
        mut holds: impl FnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        while !holds()? {
            if let Some(status) = process.0.try_wait()? {
                bail!("{what}: the process ended: {status}; see --keep for its log");
            }
            ensure!(start.elapsed() < PATIENCE, "{what}: not done after {} s", PATIENCE.as_secs());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits until a process ends by itself.
    pub(super) fn wait_ended(&self, mut process: Running, what: &str) -> anyhow::Result<()> {
        let start = Instant::now();
        while process.0.try_wait()?.is_none() {
            ensure!(start.elapsed() < PATIENCE, "{what} does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for LinkedHosts {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("kept: {}", self.directory.display());
        } else if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            eprintln!("removing {}: {error}", self.directory.display());
        }
    }
}

/// A command that ends after `limit` at the latest.
pub(super) fn limited(limit: Duration, program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &limit.as_secs().max(1).to_string(), program]);
    command
}

/// A command with the time-out of everything that is not measured.
pub(super) fn patiently(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &PATIENCE.as_secs().to_string()]).arg(program);
    command
}

/// Unmounts a directory, whatever state its mount is in.
pub(super) fn unmount_forced(directory: &Path) {
    let _ = Command::new("fusermount3").arg("-uzq").arg(directory).stderr(Stdio::null()).status();
}
