//! What is under a file system that is measured: an image on a loop device, by itself or exported by a process.

use super::export::{self, Counts};
use anyhow::{Context, bail, ensure};
use rustix::fs::{Advice, fadvise};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;
use tempfile::TempDir;

/// What may be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Kind {
    /// ext4 on a loop device on an image.
    Bare,
    /// The same on an image exported by a process that passes bytes through.
    Unhashed,
    /// The same on a protected volume.
    Protected,
    /// btrfs on a loop device on an image.
    Btrfs,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Bare => "bare",
            Kind::Unhashed => "unhashed",
            Kind::Protected => "protected",
            Kind::Btrfs => "btrfs",
        }
    }
}

/// A block device that somebody else has set up.
#[derive(Clone, Debug)]
pub struct Given {
    name: String,
    device: PathBuf,
}

impl FromStr for Given {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Given> {
        let Some((name, device)) = text.split_once('=') else { bail!("expected NAME=DEVICE") };
        Ok(Given { name: name.to_owned(), device: device.into() })
    }
}

/// Where images are, and how large.
#[derive(clap::Args, Clone)]
pub struct ImageLocation {
    /// The directory for images and logs.
    #[arg(long, default_value = "/var/tmp")]
    place: PathBuf,
    /// Size of each image.
    #[arg(long, default_value_t = 2048)]
    image_mib: u64,
}

/// A process that exports.
struct Exporter {
    child: Child,
    said: BufReader<ChildStdout>,
    at: PathBuf,
}

impl Exporter {
    fn start(image: &Path, log: Option<&Path>, at: &Path) -> anyhow::Result<Exporter> {
        fs::create_dir(at)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["volume", "export", "--image"]).arg(image).arg("--at").arg(at);
        if let Some(log) = log {
            command.arg("--log").arg(log);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let said = BufReader::new(child.stdout.take().context("no output")?);
        let mut exporter = Exporter { child, said, at: at.to_owned() };
        exporter.answer().with_context(|| format!("exporting {}", image.display()))?;
        Ok(exporter)
    }

    fn answer(&mut self) -> anyhow::Result<Counts> {
        let mut line = String::new();
        self.said.read_line(&mut line)?;
        serde_json::from_str(&line).context("the exporting process ended")
    }

    fn counts(&mut self) -> anyhow::Result<Counts> {
        self.child.stdin.as_mut().context("no input")?.write_all(b"\n")?;
        self.answer()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if !self.child.wait().is_ok_and(|status| status.success()) {
            eprintln!("the process that exported {} failed", self.at.display());
        }
    }
}

/// A file system that is measured, and what it is on.
pub struct Stack {
    /// What tables call it.
    pub name: String,
    /// Where it is mounted.
    pub directory: PathBuf,
    device: PathBuf,
    file_system: &'static str,
    is_mounted: bool,
    is_loop: bool,
    /// Files whose cached bytes are dropped to make it cold.
    files: Vec<PathBuf>,
    exporter: Option<Exporter>,
    _home: TempDir,
}

impl Stack {
    /// Makes one of a kind, with an empty file system, mounted.
    pub fn new(kind: Kind, place: &ImageLocation) -> anyhow::Result<Stack> {
        let home = tempfile::Builder::new().prefix("holdfast-volume-").tempdir_in(&place.place)?;
        let path = |name: &str| home.path().join(name);
        let (image, log, at) = (path("image"), path("log"), path("at"));
        fill(&image, place.image_mib)?;
        let file_system = if kind == Kind::Btrfs { "btrfs" } else { "ext4" };
        make(file_system, &image)?;
        let exporter = match kind {
            Kind::Bare | Kind::Btrfs => None,
            Kind::Unhashed => Some(Exporter::start(&image, None, &at)?),
            Kind::Protected => {
                export::protect(&image, &log, None)?;
                Some(Exporter::start(&image, Some(&log), &at)?)
            }
        };
        let shown = if exporter.is_some() { at.join(export::NAME) } else { image.clone() };
        let options = ["--show", "--direct-io=on", "--sector-size", "4096", "-f"];
        let device = run(Command::new("losetup").args(options).arg(shown))?;
        let mut files = vec![image];
        files.extend(log.exists().then_some(log));
        let mut stack = Stack {
            name: kind.name().to_owned(),
            directory: path("mounted"),
            device: device.trim().into(),
            file_system,
            is_mounted: false,
            is_loop: true,
            files,
            exporter,
            _home: home,
        };
        fs::create_dir(&stack.directory)?;
        stack.mount()?;
        Ok(stack)
    }

    /// Makes an empty ext4 on a device that somebody else has set up.
    pub fn given(given: &Given, place: &ImageLocation) -> anyhow::Result<Stack> {
        let home = tempfile::Builder::new().prefix("holdfast-volume-").tempdir_in(&place.place)?;
        make("ext4", &given.device)?;
        let mut stack = Stack {
            name: given.name.clone(),
            directory: home.path().join("mounted"),
            device: given.device.clone(),
            file_system: "ext4",
            is_mounted: false,
            is_loop: false,
            files: Vec::new(),
            exporter: None,
            _home: home,
        };
        fs::create_dir(&stack.directory)?;
        stack.mount()?;
        Ok(stack)
    }

    fn mount(&mut self) -> anyhow::Result<()> {
        let mut command = Command::new("mount");
        command.args(["-t", self.file_system]).arg(&self.device).arg(&self.directory);
        run(&mut command)?;
        self.is_mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        if self.is_mounted {
            run(Command::new("umount").arg(&self.directory))?;
            self.is_mounted = false;
        }
        Ok(())
    }

    /// Everything is durable, and nothing is cached.
    pub fn cool(&mut self) -> anyhow::Result<()> {
        self.unmount()?;
        if self.exporter.is_some() {
            // What is in buffers of the process is to be on the disk.
            std::thread::sleep(Duration::from_millis(300));
        }
        for path in &self.files {
            let file = File::open(path)?;
            file.sync_all()?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        self.mount()
    }

    /// What a protected one did so far.
    pub fn counts(&mut self) -> anyhow::Result<Option<Counts>> {
        self.exporter.as_mut().map(Exporter::counts).transpose()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("{error:#}");
        }
        if self.is_loop
            && let Err(error) = run(Command::new("losetup").arg("-d").arg(&self.device))
        {
            eprintln!("{error:#}");
        }
    }
}

/// An image whose every block has its place on the disk already.
fn fill(image: &Path, mib: u64) -> anyhow::Result<()> {
    let mut file = File::create(image).with_context(|| image.display().to_string())?;
    let zeroes = vec![0; 1 << 20];
    for _ in 0..mib {
        file.write_all(&zeroes).with_context(|| image.display().to_string())?;
    }
    Ok(file.sync_all()?)
}

fn make(file_system: &str, device: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(format!("mkfs.{file_system}"));
    match file_system {
        // Nothing is left for the background.
        "ext4" => {
            command.args(["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"])
        }
        _ => command.args(["-q", "-f", "-K"]),
    };
    run(command.arg(device)).map(drop)
}

/// Runs a command, and returns what it printed.
pub fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("{command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
