//! The watchdog: when no request has made any progress for a long time, it aborts the connection to the
//! kernel, so that waiting programs get an error. It can abort this connection only, because the file for
//! that is opened once, right after mounting.

use super::served::Served;
use holdfast_volume::Volume;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_secs(1);

/// Counters that change when any request makes progress.
#[derive(PartialEq, Eq)]
struct Progress {
    ended: u64,
    volume: holdfast_volume::Statistics,
    log: holdfast_log::ring::RingStatistics,
}

/// Watches the volume mounted at `directory`, until `served` or `volume` is dropped.
///
/// # Errors
/// The kernel does not give access to the connection.
pub fn start(served: &Arc<Served>, volume: &Arc<Volume>, directory: &Path, wait: Duration) -> io::Result<()> {
    let abort = connection(directory)?;
    let (served, volume) = (Arc::downgrade(served), Arc::downgrade(volume));
    let watch = move || watch(&served, &volume, wait, abort);
    std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch)?;
    Ok(())
}

fn watch(served: &Weak<Served>, volume: &Weak<Volume>, wait: Duration, mut abort: File) {
    let mut last: Option<(Progress, Instant)> = None;
    loop {
        std::thread::sleep(PAUSE);
        let (Some(served), Some(volume)) = (served.upgrade(), volume.upgrade()) else { return };
        let (begun, ended) = served.requests();
        let now = Progress { ended, volume: volume.statistics(), log: volume.log_statistics() };
        match &last {
            Some((before, since)) if *before == now && begun > ended => {
                if since.elapsed() >= wait {
                    // Nothing before this may wait for memory or for a disk.
                    let aborted = abort.write_all(b"1");
                    tracing::error!(
                        requests = begun - ended,
                        ?aborted,
                        "nothing got on for too long; the watchdog ended the connection to the kernel"
                    );
                    return;
                }
            }
            _ => last = Some((now, Instant::now())),
        }
    }
}

/// The file that aborts the connection of the mount at `directory`.
fn connection(directory: &Path) -> io::Result<File> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, "it is not in the table of mounts");
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let wanted = directory.to_str().ok_or_else(missing)?;
    // The newest mount there counts; its device number is the connection's name.
    let number = table.lines().rev().find_map(|line| {
        let mut words = line.split(' ');
        let device = words.nth(2)?;
        (unescape(words.nth(1)?) == wanted).then(|| device.split_once(':'))?
    });
    let (major, minor) = number.ok_or_else(missing)?;
    let minor: u32 = minor.parse().map_err(io::Error::other)?;
    let major: u32 = major.parse().map_err(io::Error::other)?;
    let name = format!("{}/abort", kernel_number(major, minor));
    let path = Path::new("/sys/fs/fuse/connections").join(&name);
    match File::options().write(true).open(path) {
        Ok(file) => return Ok(file),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        // The control file system is not mounted here, so it is opened without mounting it.
        Err(_) => {}
    }
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(openat(&root, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// A device number in the kernel's internal form.
fn kernel_number(major: u32, minor: u32) -> u32 {
    major << 20 | minor
}

/// Decodes a path from the table of mounts.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}
