//! `holdfast volume protect`: makes a volume of a disk with its present content.

use super::args::Protect;
use super::interrupt::Interrupt;
use super::log::{is_blank, make_log};
use crate::output::{Format, bytes_bar};
use holdfast_daemon::keys;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::volumes::folders::{VolumeFolder, VolumeFolders, VolumeRecord, absolute};
use holdfast_daemon::volumes::media::Medium;
use holdfast_daemon::volumes::secret::Secret;
use holdfast_daemon::volumes::{anchor, opening};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_volume::{BLOCK_BYTES, Header, Volume};
use serde::Serialize;
use std::cell::Cell;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Serialize)]
struct Protected {
    volume: String,
    device: PathBuf,
    log: PathBuf,
    key: PathBuf,
    size_bytes: u64,
}

/// `holdfast volume protect`
pub fn run(arguments: &Protect, directories: &Directories, format: Format) -> Outcome {
    let places = VolumeFolders::new(directories)?;
    let disk = Medium::open(&arguments.device)?;
    has_whole_blocks(&disk)?;
    for (_, about) in places.on_disk(&disk.path) {
        if about.protected {
            return Err(protected_already(&about));
        }
    }
    let log = make_or_open(arguments, &places, &disk)?;
    let (secret, new_key) = match (&log.volume, arguments.key.exists()) {
        (Some(_), false) => return Err(key_missing(&arguments.key, &arguments.log)),
        _ => Secret::read_or_make(&arguments.key)?,
    };
    let place = format_log(arguments, &places, &disk, &log, &secret)?;
    if let Some(key) = new_key {
        key.keep();
        say(&format!(
            "made the key {}; keep a copy where the disk and the log are not",
            arguments.key.display()
        ));
    }
    let _lock = place.lock()?;
    let log = match log.medium {
        Some(medium) => medium,
        None => Medium::open(&arguments.log)?,
    };
    let size_bytes = disk.device.size_bytes();
    let mut about = VolumeRecord {
        disk: disk.path.clone(),
        log: log.path.clone(),
        key: absolute(&arguments.key),
        size_bytes,
        protected: false,
        anchor: None,
        tpm: false,
    };
    place.remember(&about)?;
    let key = secret.of(&place.volume);
    let interrupt = Interrupt::listen()?;
    let bar = bytes_bar("taking over");
    let done_before = Volume::look(log.device.clone(), &key, None)?.adopted;
    let begins_anew = Cell::new(false);
    let step = |done: u64, of: u64| {
        begins_anew.set(begins_anew.get() || done < done_before);
        interrupt.step(&bar, done, of)
    };
    let whole = match arguments.empty {
        true => Volume::adopt_empty(disk.device.clone(), log.device.clone(), &key, opening::salt()?, &step),
        false => Volume::adopt(disk.device.clone(), log.device.clone(), &key, opening::salt()?, None, &step),
    };
    bar.finish_and_clear();
    let whole = whole?;
    if begins_anew.get() {
        say(&format!("{} was used since the work was interrupted, so it began anew", about.disk.display()));
    }
    if !whole {
        return Err(interrupt.stopped("nothing is protected before all of it is taken over"));
    }
    anchor::write(&place.anchor, &Volume::look(log.device.clone(), &key, None)?.end)?;
    about.protected = true;
    place.remember(&about)?;
    for (other, left) in places.on_disk(&about.disk) {
        if !left.protected {
            // It is an earlier attempt with another log.
            other.forget()?;
        }
    }
    let done =
        Protected { volume: place.name(), device: about.disk, log: about.log, key: about.key, size_bytes };
    format.print(&done, |done| {
        format!(
            "{} is protected, as volume {}; use it by attaching it only",
            done.device.display(),
            done.volume
        )
    })
}

fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "holdfast: {text}");
}

/// Refuses a disk that does not consist of whole blocks. The bytes after the last whole block could not be
/// used any more, and may be part of the file system, so the user has to decide.
fn has_whole_blocks(disk: &Medium) -> Outcome {
    let size = disk.device.size_bytes();
    if size > 0 && size.is_multiple_of(BLOCK_BYTES as u64) {
        return Ok(());
    }
    let message = format!("{}: has {size} bytes, which is no multiple of {BLOCK_BYTES}", disk.path.display());
    let hint = match disk.is_block_device {
        true => format!(
            "protect a partition of it whose size is one (a multiple of {} sectors), or a loop device over part of it",
            BLOCK_BYTES / 512
        ),
        false => format!(
            "`truncate --size {} {}` makes it longer",
            size.next_multiple_of(BLOCK_BYTES as u64).max(BLOCK_BYTES as u64),
            disk.path.display()
        ),
    };
    Err(Failure::new(Exit::NoInput, message).hint(hint))
}

fn protected_already(about: &VolumeRecord) -> Failure {
    Failure::new(
        Exit::CannotCreate,
        format!("{}: is protected already, with the log {}", about.disk.display(), about.log.display()),
    )
    .hint(
        "`holdfast volume attach` offers it, `unprotect` gives it back; if log or key are lost, `forget` it: then what is on \
         it can be taken as it is, with --overwrite-log if the log is there",
    )
}

fn key_missing(key: &Path, log: &Path) -> Failure {
    Failure::new(Exit::NoInput, format!("{}: there is no such file", key.display()))
        .hint(format!("{} is the log of a volume already: name the key it was made with", log.display()))
}

/// The log that was given, before it is used.
struct Log {
    /// The log; `None`: it does not exist yet.
    medium: Option<Medium>,
    /// The ID of the volume that it claims to belong to.
    volume: Option<[u8; 16]>,
}

fn make_or_open(arguments: &Protect, places: &VolumeFolders, disk: &Medium) -> Outcome<Log> {
    if !arguments.log.exists() {
        return Ok(Log { medium: None, volume: None });
    }
    let as_disk = std::fs::canonicalize(&arguments.log).is_ok_and(|path| path == disk.path);
    let same = || {
        Failure::new(
            Exit::Usage,
            format!("{}: is the disk itself; its log must be elsewhere", arguments.log.display()),
        )
    };
    if as_disk {
        return Err(same());
    }
    let medium = Medium::open(&arguments.log)?;
    if medium.is_same(disk) {
        return Err(same());
    }
    let in_use = places.all().into_iter().find(|(_, about)| about.log == medium.path && about.protected);
    if let Some((_, about)) = in_use {
        return Err(protected_already(&about));
    }
    let volume = Header::claimed_volume(&*medium.device).filter(|_| !arguments.overwrite_log);
    if volume.is_none() && !arguments.overwrite_log && !is_blank(&*medium.device)? {
        let message =
            format!("{}: holds something that is no log; it would be lost", arguments.log.display());
        return Err(Failure::new(Exit::CannotCreate, message)
            .hint("name another file, or use --overwrite-log if nobody needs it"));
    }
    Ok(Log { medium: Some(medium), volume })
}

/// Makes a log with which the command can continue. Returns the folder of its volume.
fn format_log(
    arguments: &Protect,
    places: &VolumeFolders,
    disk: &Medium,
    log: &Log,
    secret: &Secret,
) -> Outcome<VolumeFolder> {
    let mut volume = [0; 16];
    keys::random(&mut volume)?;
    let ring_bytes = arguments.ring_mib.map(|mib| mib << 20);
    match (&log.medium, &log.volume) {
        (None, _) => {
            make_log(&arguments.log, &*disk.device, secret, &volume, ring_bytes)?;
            Ok(places.of(&volume))
        }
        (Some(medium), Some(claimed)) if !arguments.from_start => {
            go_on(arguments, places.of(claimed), disk, medium, secret)
        }
        (Some(medium), _) => {
            if let Some(claimed) = &log.volume {
                must_be_unfinished(arguments, &places.of(claimed), medium, secret)?;
                places.of(claimed).forget()?;
            }
            Volume::format(&*disk.device, &*medium.device, &secret.of(&volume), ring_bytes)?;
            Ok(places.of(&volume))
        }
    }
}

/// Continues with an existing log.
fn go_on(
    arguments: &Protect,
    place: VolumeFolder,
    disk: &Medium,
    log: &Medium,
    secret: &Secret,
) -> Outcome<VolumeFolder> {
    let look = must_be_unfinished(arguments, &place, log, secret)?;
    let blocks = disk.device.size_bytes() / BLOCK_BYTES as u64;
    if look.header.blocks != blocks {
        let message = format!(
            "{}: is the log of a disk with {} blocks of 4096 bytes, but {} has {blocks}",
            log.path.display(),
            look.header.blocks,
            disk.path.display()
        );
        return Err(
            Failure::new(Exit::NoInput, message).hint("is it the right one? --from-start begins anew")
        );
    }
    Ok(place)
}

/// Refuses to take over a volume again that was completed: an attacker's blocks would then count as valid.
fn must_be_unfinished(
    arguments: &Protect,
    place: &VolumeFolder,
    log: &Medium,
    secret: &Secret,
) -> Outcome<holdfast_volume::LogSummary> {
    let known = anchor::read(&place.anchor)?;
    let look = Volume::look(log.device.clone(), &secret.of(&place.volume), known.as_ref())?;
    let is_registered = place.record().is_some_and(|about| !about.protected);
    if known.is_some() || (look.adopted == look.header.blocks && !is_registered) {
        return Err(protected_already(&VolumeRecord {
            disk: absolute(&arguments.device),
            log: log.path.clone(),
            key: absolute(&arguments.key),
            size_bytes: 0,
            protected: true,
            anchor: None,
            tpm: false,
        }));
    }
    Ok(look)
}
