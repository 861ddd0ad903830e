//! A process that exports an image as a file for loop devices: as a protected volume, or as it is. It is a process of
//! its own, so that it does not share locks and caches with what measures it, like the real one.

use anyhow::{Context, ensure};
use holdfast_fuse::device_file::Disk;
use holdfast_fuse::{UnmountMode, mount_disk};
use holdfast_log::device::{Device, FileDevice};
use holdfast_volume::{Plan, Volume, VolumeKey};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file's name in the directory.
pub const NAME: &str = "disk";

#[derive(clap::Args)]
pub struct Options {
    /// The image.
    #[arg(long)]
    image: PathBuf,
    /// Protect it, with this log; without one, bytes pass through unseen.
    #[arg(long)]
    log: Option<PathBuf>,
    /// The directory for the file.
    #[arg(long)]
    at: PathBuf,
}

/// The figures of a volume so far.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Bytes that were written to it.
    pub written: u64,
    /// Bytes of log blocks.
    pub logged: u64,
    /// Blocks verified.
    pub verified: u64,
    /// Flushes asked for, of the log, and of the disk.
    pub flushes: [u64; 3],
    /// Checkpoints.
    pub checkpoints: u64,
    /// Most memory the process had, in KiB.
    pub memory_kib: u64,
}

/// The key of volumes that are measured, which need no secret.
pub fn key() -> VolumeKey {
    VolumeKey::new(&[7; 32], b"a measured one..")
}

/// Random bytes.
pub fn salt() -> anyhow::Result<[u8; 16]> {
    let mut salt = [0; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut salt)).context("/dev/urandom")?;
    Ok(salt)
}

/// Opens an image or a log.
pub fn device(path: &Path) -> anyhow::Result<Arc<dyn Device>> {
    Ok(Arc::new(FileDevice::open(path).with_context(|| path.display().to_string())?))
}

/// Makes the log of an image, and protects what is on it.
pub fn protect(image: &Path, log: &Path, ring_bytes: Option<u64>) -> anyhow::Result<()> {
    let disk = device(image)?;
    let file = File::create(log).with_context(|| log.display().to_string())?;
    file.set_len(Plan::new(disk.size_bytes(), ring_bytes).bytes)?;
    Volume::format(&*disk, &*device(log)?, &key(), ring_bytes)?;
    let done = Volume::adopt(disk, device(log)?, &key(), salt()?, None, &|_, _| true)?;
    ensure!(done, "{}: not taken over", image.display());
    Ok(())
}

/// A disk that passes bytes through: the cost of the export by itself.
struct Through(Arc<dyn Device>);

impl Disk for Through {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        let zeroes = vec![0; 1 << 20];
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let count = (end - at).min(zeroes.len() as u64);
            self.0.write_at(at, &zeroes[..count as usize])?;
            at += count;
        }
        Ok(())
    }
}

fn count(volume: Option<&Volume>) -> anyhow::Result<Counts> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    let memory_kib = peak.and_then(|peak| peak.trim().parse().ok()).unwrap_or(0);
    let Some(volume) = volume else { return Ok(Counts { memory_kib, ..Counts::default() }) };
    let (did, log) = (volume.statistics(), volume.log_statistics());
    Ok(Counts {
        written: did.written_bytes,
        logged: log.blocks * 4096,
        verified: did.verified,
        flushes: [did.flushes, log.flushes, did.disk_flushes],
        checkpoints: did.checkpoints,
        memory_kib,
    })
}

/// Serves until its input ends or it is unmounted. It answers each line with the figures so far.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let disk = device(&options.image)?;
    let volume = match &options.log {
        Some(log) => {
            let (volume, report) =
                Volume::open(disk.clone(), device(log)?, &key(), Default::default(), None, salt()?)?;
            ensure!(report.refused.is_empty(), "{:?}", report.refused);
            volume.start()?;
            Some(Arc::new(volume))
        }
        None => None,
    };
    let exported: Arc<dyn Disk> = match &volume {
        Some(volume) => volume.clone(),
        None => Arc::new(Through(disk)),
    };
    let mount = holdfast_fuse::Options {
        source: "a measured disk".into(),
        allow_other: false,
        read_only: false,
        no_exec: true,
        local_locks: false,
    };
    let session = Arc::new(mount_disk(exported, NAME, &options.at, &mount, || ())?);
    say(volume.as_deref())?;
    let (served, asked) = (Arc::clone(&session), volume.clone());
    std::thread::spawn(move || {
        for _ in io::stdin().lock().lines().map_while(Result::ok) {
            if say(asked.as_deref()).is_err() {
                break;
            }
        }
        let _ = served.unmount(UnmountMode::Lazily);
    });
    session.wait();
    if let Some(volume) = volume {
        volume.close()?;
    }
    Ok(())
}

fn say(volume: Option<&Volume>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(&count(volume)?)?)?;
    Ok(out.flush()?)
}
