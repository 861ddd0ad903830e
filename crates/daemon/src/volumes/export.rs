//! Exports an attached volume to other programs. Each kind has a variant of [`Export`] and of [`Exported`].

use super::export_report::ExportReport;
use super::media::loop_devices;
use super::nbd::Nbd;
use super::served::Served;
use super::ublk::Ublk;
use crate::watch::Watcher;
use backon::{BlockingRetryable, ConstantBuilder};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::device_file::Disk;
use holdfast_fuse::mountpoint::{self, UnmountMode};
use holdfast_fuse::{MountError, Options, Session};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of the file that the volume appears as.
pub const FILE: &str = "disk";
/// How long a loop device may take to release its file, and the file to be released.
const PATIENCE: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(50);

/// The wanted kind of export.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Export {
    /// A file in a directory.
    File {
        /// The directory.
        directory: PathBuf,
    },
    /// A file in a directory, and a loop device of it.
    Loop {
        /// The directory.
        directory: PathBuf,
        /// Bytes of a sector; `None`: chosen by the content of the volume.
        sector_bytes: Option<u32>,
    },
    /// An NBD server.
    Nbd {
        /// The address to listen on.
        address: String,
    },
    /// A ublk device.
    Ublk,
}

/// A volume that is being exported.
pub enum Exported {
    /// A file, and perhaps a loop device of it.
    File(Box<ExportedFile>),
    /// An NBD server.
    Nbd(Nbd),
    /// A ublk device.
    Ublk(Ublk),
}

impl Exported {
    /// The mount point, if there is one.
    pub fn directory(&self) -> Option<&Path> {
        match self {
            Exported::File(file) => Some(file.session.directory()),
            Exported::Nbd(_) | Exported::Ublk(_) => None,
        }
    }

    /// A report for people.
    pub fn report(&self) -> ExportReport {
        match self {
            Exported::File(file) => file.report(),
            Exported::Nbd(nbd) => nbd.report(),
            Exported::Ublk(ublk) => ublk.report(),
        }
    }

    /// Ends the export and waits for the last request. With [`UnmountMode::Lazily`], even if programs use it.
    ///
    /// # Errors
    /// [`Exit::InUse`]: nothing was changed.
    pub fn end(&self, manner: UnmountMode) -> Outcome {
        match self {
            Exported::File(file) => file.end(manner),
            Exported::Nbd(nbd) => nbd.end(manner),
            Exported::Ublk(ublk) => ublk.end(manner),
        }
    }
}

/// A volume exported as a file.
pub struct ExportedFile {
    session: Session,
    loop_device: Option<PathBuf>,
    watcher: Watcher,
}

impl Export {
    /// An export as a file in `directory`; with a loop device of it if `loop_device`, whose sectors have
    /// `sector_bytes` (`None`: chosen by the content of the volume).
    pub fn file(directory: PathBuf, loop_device: bool, sector_bytes: Option<u32>) -> Export {
        match loop_device {
            true => Export::Loop { directory, sector_bytes },
            false => Export::File { directory },
        }
    }

    /// Starts to export a volume. `ended` is called when no program can use it any more, for whatever reason.
    ///
    /// # Errors
    /// The mount point or the address cannot be used, or the device does not exist.
    pub fn begin(
        &self,
        disk: Arc<Served>,
        source: &str,
        watcher: Watcher,
        ended: impl FnOnce() + Send + 'static,
    ) -> Outcome<Exported> {
        let (directory, loop_wanted) = match self {
            Export::File { directory } => (directory, None),
            Export::Loop { directory, sector_bytes } => (directory, Some(sector_bytes)),
            Export::Nbd { address } => {
                let address = address.parse().map_err(|error| Failure::new(Exit::Usage, error))?;
                return Nbd::begin(&address, disk, source).map(Exported::Nbd);
            }
            Export::Ublk => return Ublk::begin(disk).map(Exported::Ublk),
        };
        remove_left_over(directory);
        let options = Options {
            source: source.to_owned(),
            allow_other: false,
            read_only: disk.is_read_only(),
            no_exec: true,
            local_locks: false,
        };
        let sector_bytes = match loop_wanted {
            Some(Some(bytes)) => Some(*bytes),
            Some(None) => Some(if allows_large_sectors(&*disk) { 4096 } else { 512 }),
            None => None,
        };
        let is_read_only = disk.is_read_only();
        let session = holdfast_fuse::mount_disk(disk, FILE, directory, &options, ended)?;
        watcher.mounted(session.directory());
        let mut exported = ExportedFile { session, loop_device: None, watcher };
        if let Some(bytes) = sector_bytes {
            let more: &[&Path] = if is_read_only { &["--read-only".as_ref()] } else { &[] };
            match make_loop_device(&exported.file(), bytes, more) {
                Ok(device) => exported.loop_device = Some(device),
                Err(failure) => {
                    let _ = exported.end(UnmountMode::Lazily);
                    return Err(failure);
                }
            }
        }
        Ok(Exported::File(Box::new(exported)))
    }
}

impl ExportedFile {
    fn file(&self) -> PathBuf {
        self.session.directory().join(FILE)
    }

    fn report(&self) -> ExportReport {
        let (kind, path) = match &self.loop_device {
            Some(device) => ("loop", device.clone()),
            None => ("file", self.file()),
        };
        ExportReport { kind: kind.to_owned(), directory: self.session.directory().to_owned(), path }
    }

    fn end(&self, manner: UnmountMode) -> Outcome {
        if let Some(device) = &self.loop_device {
            end_loop_device(device, &self.file(), manner)?;
        }
        let start = Instant::now();
        // A loop device releases its file late, and so may programs that have just examined it.
        (|| self.session.unmount(manner))
            .retry(ConstantBuilder::new().with_delay(PAUSE).without_max_times())
            .when(|error| matches!(error, MountError::Busy { .. }) && start.elapsed() < PATIENCE)
            .call()?;
        self.watcher.unmounted(self.session.directory());
        if manner == UnmountMode::Gently {
            self.session.wait();
        }
        Ok(())
    }
}

/// Removes what a killed process left behind: a dead mount, and loop devices on it.
fn remove_left_over(directory: &Path) {
    let Ok(Some(mount)) = mountpoint::mounted_at(directory) else { return };
    if !mount.is_holdfast() || !mountpoint::is_dead(directory) {
        return;
    }
    let file = directory.join(FILE);
    for (device, behind) in loop_devices() {
        if behind == file {
            // If a file system is still mounted on the device, it disappears when that is unmounted.
            let _ = losetup(&["-d".as_ref(), device.as_path()]);
        }
    }
    if let Err(error) = mountpoint::remove_if_dead(&mount) {
        tracing::warn!(directory = %directory.display(), %error, "the dead mount stays");
    }
}

fn losetup(arguments: &[&Path]) -> Outcome<String> {
    let output = Command::new("losetup").args(arguments).stdin(Stdio::null()).output().map_err(|error| {
        Failure::new(Exit::System, format!("losetup (package mount) cannot be run: {error}"))
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Failure::new(Exit::System, format!("the loop device: {said}"))
                .hint("loop devices are for root; without --loop the file can be used by other programs"))
        }
    }
}

fn make_loop_device(file: &Path, sector_bytes: u32, more: &[&Path]) -> Outcome<PathBuf> {
    let sectors = sector_bytes.to_string();
    let words: [&Path; 6] = [
        "--show".as_ref(),
        "--find".as_ref(),
        "--partscan".as_ref(),
        "--direct-io=on".as_ref(),
        "--sector-size".as_ref(),
        sectors.as_ref(),
    ];
    losetup(&[&words, more, &["--".as_ref(), file]].concat()).map(PathBuf::from)
}

fn end_loop_device(device: &Path, file: &Path, manner: UnmountMode) -> Outcome {
    let is_there = || loop_devices().iter().any(|(known, behind)| known == device && behind == file);
    if !is_there() {
        return Ok(());
    }
    let start = Instant::now();
    while manner == UnmountMode::Gently && is_used_exclusively(device) {
        // A process that is just starting in a mount namespace of its own briefly has a copy of a mount that
        // was ended here.
        let place = mounted_on(device);
        if !place.is_empty() || start.elapsed() > PATIENCE {
            let message = format!("{}: is in use{place}", device.display());
            return Err(Failure::new(Exit::InUse, message).hint("unmount it first"));
        }
        std::thread::sleep(PAUSE);
    }
    losetup(&["-d".as_ref(), device])?;
    let start = Instant::now();
    while manner == UnmountMode::Gently && is_there() {
        if start.elapsed() > PATIENCE {
            let message = format!("{}: a program uses it; it goes when that lets go", device.display());
            return Err(Failure::new(Exit::InUse, message).hint("end that program, and detach again"));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Whether a device is mounted in any namespace, or opened exclusively by a program.
fn is_used_exclusively(device: &Path) -> bool {
    let exclusively = rustix::fs::OFlags::EXCL.bits() as i32;
    let opened = File::options().read(true).custom_flags(exclusively).open(device);
    opened.is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
}

/// Where a device, or a partition of it, is mounted, as text for a message.
fn mounted_on(device: &Path) -> String {
    let Ok(mounts) = mountpoint::mounted() else { return String::new() };
    let name = device.to_string_lossy().into_owned();
    let places: Vec<String> = mounts
        .iter()
        .filter(|mount| mount.source == name || mount.source.starts_with(&format!("{name}p")))
        .map(|mount| mount.directory.display().to_string())
        .collect();
    if places.is_empty() { String::new() } else { format!(": mounted on {}", places.join(", ")) }
}

/// Whether the content of a disk can be used with sectors of 4096 bytes: a file system with such blocks, or
/// nothing.
fn allows_large_sectors(disk: &dyn Disk) -> bool {
    const LOOKED_AT: usize = 72 << 10;
    let mut bytes = vec![0; LOOKED_AT.min(disk.size_bytes() as usize)];
    if disk.read(0, &mut bytes).is_err() || bytes.len() < LOOKED_AT {
        return false;
    }
    fits_large_sectors(&bytes)
}

fn fits_large_sectors(bytes: &[u8]) -> bool {
    let little = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if bytes[0x438..0x43a] == [0x53, 0xef] {
        // For ext2, ext3 and ext4: the logarithm of the size of a block, in KiB.
        return little(0x418) >= 2;
    }
    if bytes.starts_with(b"XFSB") {
        return u16::from_be_bytes([bytes[102], bytes[103]]) >= 4096;
    }
    if bytes[0x1_0040..0x1_0048] == *b"_BHRfS_M" {
        return little(0x1_0090) >= 4096;
    }
    bytes.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: large sectors are chosen for content with large blocks; unknown content gets small ones.
    #[test]
    fn sectors() {
        let blank = vec![0; 72 << 10];
        let with = |changes: &[(usize, &[u8])]| {
            let mut bytes = blank.clone();
            for (at, change) in changes {
                bytes[*at..*at + change.len()].copy_from_slice(change);
            }
            fits_large_sectors(&bytes)
        };
        assert!(with(&[]));
        assert!(!with(&[(510, b"\x55\xaa")]), "a partition table counts sectors of 512 bytes");
        assert!(with(&[(0x438, b"\x53\xef"), (0x418, &[2])]));
        assert!(!with(&[(0x438, b"\x53\xef"), (0x418, &[0])]));
        assert!(with(&[(0, b"XFSB"), (102, &[0x10, 0])]) && !with(&[(0, b"XFSB"), (102, &[2, 0])]));
        assert!(with(&[(0x1_0040, b"_BHRfS_M"), (0x1_0090, &[0, 0x10])]));
    }
}
