//! `holdfast volume rekey` and `resize`: a second log for the same disk is made from what the first one
//! verifies, and replaces it when it is complete. The disk is not touched, so the volume is unchanged until
//! then.
//!
//! An interrupted move can be continued only if nobody has written to the volume meanwhile: the end of the
//! old log is stored, and must still be the same.

use super::args::{Opening, Rekey, Resize};
use super::interrupt::Interrupt;
use super::log::{is_blank, make_log};
use crate::output::{Format, bytes_bar};
use holdfast_daemon::keys;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::volumes::anchor;
use holdfast_daemon::volumes::folders::{
    self, VolumeFolder, VolumeFolders, VolumeRecord, absolute, sync_parent,
};
use holdfast_daemon::volumes::media::{Medium, Part};
use holdfast_daemon::volumes::opening::{self, Meant, Opened};
use holdfast_daemon::volumes::secret::Secret;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_log::device::Device;
use holdfast_volume::{BLOCK_BYTES, Volume};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE: &str = folders::MOVING;

/// The record of a move in progress.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Moving {
    /// The new volume.
    volume: [u8; 16],
    /// Its log.
    log: PathBuf,
    /// The size of the new volume.
    size_bytes: u64,
    /// The size of its log's circular part, in MiB.
    ring_mib: Option<u64>,
    /// The end of the old log when the move began.
    old_end: String,
}

/// The options of the new volume.
struct MoveTarget<'a> {
    secret: &'a Secret,
    key: PathBuf,
    log: Option<&'a Path>,
    size_bytes: Option<u64>,
    ring_mib: Option<u64>,
}

#[derive(Serialize)]
struct Moved {
    volume: String,
    device: PathBuf,
    log: PathBuf,
    key: PathBuf,
    size_bytes: u64,
}

/// `holdfast volume rekey`
pub fn rekey(arguments: &Rekey, directories: &Directories, format: Format) -> Outcome {
    let meant = opening::meant(&arguments.opening.opening(), directories)?;
    if absolute(&arguments.new_key) == meant.record.key {
        return Err(Failure::new(
            Exit::Usage,
            "the volume is under this key already; to move it to another, name a file that is not there yet",
        ));
    }
    let (secret, new_key) = Secret::read_or_make(&arguments.new_key)?;
    let wanted = MoveTarget {
        secret: &secret,
        key: absolute(&arguments.new_key),
        log: arguments.new_log.as_deref(),
        size_bytes: None,
        ring_mib: arguments.ring_mib,
    };
    let ready = look_and_open(&meant, &arguments.opening, &wanted)?;
    if let Some(key) = new_key {
        key.keep();
    }
    let done = relocate(&meant, directories, &wanted, ready)?;
    format.print(&done, |done| {
        format!(
            "{} is under the key {} now, its log is {}; the old key is of no use any more",
            done.device.display(),
            done.key.display(),
            done.log.display()
        )
    })
}

/// `holdfast volume resize`
pub fn resize(arguments: &Resize, directories: &Directories, format: Format) -> Outcome {
    let meant = opening::meant(&arguments.opening.opening(), directories)?;
    let wanted = MoveTarget {
        secret: &meant.secret,
        key: meant.record.key.clone(),
        log: arguments.new_log.as_deref(),
        size_bytes: arguments.size,
        ring_mib: arguments.ring_mib,
    };
    let ready = look_and_open(&meant, &arguments.opening, &wanted)?;
    let done = relocate(&meant, directories, &wanted, ready)?;
    format.print(&done, |done| {
        format!(
            "{} has {} bytes now, its log is {}",
            done.device.display(),
            done.size_bytes,
            done.log.display()
        )
    })
}

/// Fills the new log and replaces the old one by it.
fn relocate(
    meant: &Meant,
    directories: &Directories,
    wanted: &MoveTarget<'_>,
    ready: Ready,
) -> Outcome<Moved> {
    let Ready { opened, moving, log } = ready;
    let place = VolumeFolders::new(directories)?.of(&moving.volume);
    let disk: Arc<dyn Device> =
        Arc::new(Part { whole: opened.disk.device.clone(), size_bytes: moving.size_bytes });
    let key = wanted.secret.of(&moving.volume);
    let interrupt = Interrupt::listen()?;
    let bar = bytes_bar("verifying and hashing");
    let failed = std::cell::RefCell::new(None);
    let step = |done: u64, of: u64| {
        // At the first step the old log has just got its last record.
        let note = Moving { old_end: anchor::format(&opened.volume.anchor()), ..moving.clone() };
        let is_noted = meant.folder.read::<Moving>(FILE).as_ref() == Some(&note);
        if !is_noted && let Err(failure) = meant.folder.write(FILE, &note) {
            *failed.borrow_mut() = Some(failure);
            return false;
        }
        interrupt.step(&bar, done, of)
    };
    let whole = Volume::adopt(disk, log.device.clone(), &key, opening::salt()?, Some(&opened.volume), &step);
    bar.finish_and_clear();
    meant.anchor.write(&opened.volume.anchor())?;
    if let Some(failure) = failed.take() {
        return Err(failure);
    }
    if !whole? {
        return Err(interrupt.stopped("the volume is what it was, under the old log"));
    }
    let end = Volume::look(log.device.clone(), &key, None)?.end;
    let takes_place = log.path == beside(&opened.log.path);
    let final_log = if takes_place { opened.log.path.clone() } else { log.path.clone() };
    let about = VolumeRecord {
        disk: opened.disk.path.clone(),
        log: final_log.clone(),
        key: wanted.key.clone(),
        size_bytes: moving.size_bytes,
        protected: true,
        anchor: meant.record.anchor.clone(),
        // The new volume has a different ID, and has no counter yet.
        tpm: false,
    };
    // Steps are in this order so that after any interruption, one of the two logs is in place, with its
    // anchor.
    finish(meant, &place, &about, &end, takes_place.then_some((&log.path, &opened.log.path)))?;
    let Moving { size_bytes, .. } = moving;
    Ok(Moved { volume: place.name(), device: about.disk, log: final_log, key: about.key, size_bytes })
}

fn finish(
    meant: &Meant,
    place: &VolumeFolder,
    about: &VolumeRecord,
    end: &holdfast_log::ring::Anchor,
    rename: Option<(&PathBuf, &PathBuf)>,
) -> Outcome {
    anchor::write(&place.anchor, end)?;
    place.remember(about)?;
    if let Some((from, to)) = rename {
        std::fs::rename(from, to)
            .map_err(|error| Failure::new(Exit::CannotCreate, format!("{}: {error}", to.display())))?;
        sync_parent(to)?;
    }
    if let Some(file) = &about.anchor {
        anchor::write(file, end)?;
        opening::keep_one_anchor(place, file);
    }
    meant.anchor.release();
    meant.folder.forget()
}

/// The default path of a new log.
fn beside(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

struct Ready {
    opened: Opened,
    moving: Moving,
    log: Medium,
}

/// Opens the volume and finds or makes a new log: the one begun before if it still fits, otherwise an empty
/// one.
fn look_and_open(meant: &Meant, arguments: &Opening, wanted: &MoveTarget<'_>) -> Outcome<Ready> {
    // The end of the old log before this process writes to it.
    let old_end = {
        let _lock = meant.folder.lock()?;
        let log = Medium::open(&meant.record.log)?;
        let known = opening::known_anchor(&meant.folder, &meant.anchor, arguments.freshness_unknown)?;
        let key = meant.secret.of(&meant.folder.volume);
        anchor::format(&Volume::look(log.device.clone(), &key, known.as_ref())?.end)
    };
    let opened = meant.open(arguments.freshness_unknown)?;
    let size_bytes = wanted.size_bytes.unwrap_or(opened.disk.device.size_bytes());
    if size_bytes == 0
        || !size_bytes.is_multiple_of(BLOCK_BYTES as u64)
        || size_bytes > opened.disk.device.size_bytes()
    {
        let message = format!(
            "{size_bytes} bytes are no multiple of 4096, or more than {} has",
            opened.disk.path.display()
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let log_path = match wanted.log {
        Some(path) => absolute(path),
        None if opened.log.is_block_device => {
            let message =
                format!("{}: is a device, so the new log needs another place", opened.log.path.display());
            return Err(Failure::new(Exit::Usage, message).hint("name it with --new-log"));
        }
        None => beside(&opened.log.path),
    };
    let begun: Option<Moving> = meant.folder.read(FILE);
    let fits = |begun: &Moving| {
        begun.log == log_path
            && begun.size_bytes == size_bytes
            && begun.ring_mib == wanted.ring_mib
            && begun.old_end == old_end
    };
    if let Some(begun) = begun.filter(fits)
        && log_path.exists()
    {
        let log = Medium::open(&log_path)?;
        if Volume::look(log.device.clone(), &wanted.secret.of(&begun.volume), None).is_ok() {
            return Ok(Ready { opened, moving: begun, log });
        }
    }
    begin(meant, opened, wanted, log_path, size_bytes)
}

/// Starts a move with a new log.
fn begin(
    meant: &Meant,
    opened: Opened,
    wanted: &MoveTarget<'_>,
    log_path: PathBuf,
    size_bytes: u64,
) -> Outcome<Ready> {
    let earlier: Option<Moving> = meant.folder.read(FILE);
    let is_ours = earlier.is_some_and(|earlier| earlier.log == log_path);
    let mut volume = [0; 16];
    keys::random(&mut volume)?;
    let moving = Moving {
        volume,
        log: log_path.clone(),
        size_bytes,
        ring_mib: wanted.ring_mib,
        old_end: String::new(),
    };
    let disk = Part { whole: opened.disk.device.clone(), size_bytes };
    let ring_bytes = wanted.ring_mib.map(|mib| mib << 20);
    // Written before the log is made, so that the log is recognised as ours if this is interrupted.
    meant.folder.write(FILE, &moving)?;
    let is_device = log_path.exists() && !log_path.is_file();
    if !is_device {
        if log_path.exists() && !is_ours {
            meant.folder.remove(FILE);
            let message = format!("{}: exists already and is not overwritten", log_path.display());
            return Err(Failure::new(Exit::CannotCreate, message).hint("name another place with --new-log"));
        }
        make_log(&log_path, &disk, wanted.secret, &volume, ring_bytes)?;
    }
    let log = Medium::open(&log_path)?;
    if log.is_same(&opened.disk) || log.is_same(&opened.log) {
        meant.folder.remove(FILE);
        return Err(Failure::new(Exit::Usage, format!("{}: is the disk or its log", log_path.display())));
    }
    if is_device {
        if !is_ours && !is_blank(&*log.device)? {
            meant.folder.remove(FILE);
            let message = format!("{}: holds something, which would be lost", log_path.display());
            return Err(
                Failure::new(Exit::CannotCreate, message).hint("clear its first MiB if nobody needs it")
            );
        }
        let key = wanted.secret.of(&volume);
        Volume::format(&disk, &*log.device, &key, ring_bytes)?;
    }
    Ok(Ready { opened, moving, log })
}
