//! `holdfast volume recover`, `unprotect` and `forget`.

use super::args::{Forget, Recover, Unprotect};
use super::attached::attached_at;
use super::interrupt::Interrupt;
use crate::output::{Format, bytes_bar};
use holdfast_daemon::paths::Directories;
use holdfast_daemon::volumes::folders::{VolumeFolders, sync_parent};
use holdfast_daemon::volumes::media::Medium;
use holdfast_daemon::volumes::opening;
use holdfast_daemon::volumes::status::Recovery;
use holdfast_daemon::volumes::tpm::Counter;
use holdfast_failure::{Exit, Failure, Outcome};
use serde::Serialize;
use std::path::PathBuf;

/// Bytes at the beginning of a log by which it is recognised.
const HEADER_BYTES: usize = 16 << 10;

#[derive(Serialize)]
struct Recovered {
    volume: String,
    device: PathBuf,
    #[serde(flatten)]
    recovery: Recovery,
    torn_blocks: Vec<u64>,
}

/// `holdfast volume recover`
pub fn recover(arguments: &Recover, directories: &Directories, format: Format) -> Outcome {
    let meant = opening::meant(&arguments.opening.opening(), directories)?;
    let opened = meant.open(arguments.opening.freshness_unknown)?;
    opened.volume.close()?;
    meant.anchor.write(&opened.volume.anchor())?;
    let done = Recovered {
        volume: meant.folder.name(),
        device: opened.disk.path,
        recovery: (&opened.report).into(),
        torn_blocks: opened.report.refused.iter().map(|bad| bad.number).collect(),
    };
    format.print(&done, |done| {
        let Recovery { records, examined, replayed, torn } = &done.recovery;
        format!(
            "{}: {records} records read, {examined} blocks examined, {replayed} written again, {torn} torn (of writes \
             that were never acknowledged; they are refused until they are written)",
            done.device.display()
        )
    })
}

#[derive(Serialize)]
struct Released {
    device: PathBuf,
    log: PathBuf,
    log_removed: bool,
}

/// `holdfast volume unprotect`
pub fn unprotect(arguments: &Unprotect, directories: &Directories, format: Format) -> Outcome {
    let meant = opening::meant(&arguments.opening.opening(), directories)?;
    let opened = meant.open(arguments.opening.freshness_unknown)?;
    let interrupt = Interrupt::listen()?;
    let bar = bytes_bar("giving back");
    let whole = opened.volume.release(&|done, of| interrupt.step(&bar, done, of));
    bar.finish_and_clear();
    let whole = whole?;
    meant.anchor.write(&opened.volume.anchor())?;
    if !whole {
        return Err(interrupt.stopped("the volume is protected as before"));
    }
    let log = opened.log.path.clone();
    if arguments.remove_log {
        remove_log(&opened.log)?;
    }
    meant.anchor.release();
    meant.folder.forget()?;
    if meant.anchor.path != meant.folder.anchor {
        let _ = std::fs::remove_file(&meant.anchor.path);
    }
    let done = Released { device: opened.disk.path.clone(), log, log_removed: arguments.remove_log };
    format.print(&done, |done| {
        let log = match done.log_removed {
            true => String::new(),
            false => format!("; its log {} is of no use any more", done.log.display()),
        };
        format!("{} is a plain disk again{log}", done.device.display())
    })
}

fn remove_log(log: &Medium) -> Outcome {
    let failed = |error: std::io::Error| Failure::new(Exit::Io, format!("{}: {error}", log.path.display()));
    if log.is_block_device {
        log.device.write_at(0, &[0; HEADER_BYTES]).and_then(|()| log.device.flush()).map_err(failed)
    } else {
        std::fs::remove_file(&log.path).map_err(failed)?;
        sync_parent(&log.path)
    }
}

#[derive(Serialize)]
struct Forgotten {
    volume: String,
    device: PathBuf,
}

/// `holdfast volume forget`
pub fn forget(arguments: &Forget, directories: &Directories, format: Format) -> Outcome {
    let places = VolumeFolders::new(directories)?;
    let (place, about) = places.find(&arguments.which.volume, attached_at)?;
    {
        let _lock = place.lock()?;
        if about.tpm
            && let Err(failure) = Counter::of(&place.volume).remove()
        {
            tracing::warn!(error = failure.message, "its counter stays in the TPM");
        }
        place.forget()?;
    }
    let done = Forgotten { volume: place.name(), device: about.disk };
    format.print(&done, |done| format!("volume {} on {} is forgotten", done.volume, done.device.display()))
}
