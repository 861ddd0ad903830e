//! `holdfast volume attach` and `detach`.

use super::args::{Attach, Detach as DetachArguments};
use super::attached::attached_at;
use crate::output::{Format, progress};
use holdfast_daemon::background;
use holdfast_daemon::control::Client;
use holdfast_daemon::paths::{Directories, RUN_DIRECTORY, make_private, make_shared};
use holdfast_daemon::volumes::asking;
use holdfast_daemon::volumes::export::Export;
use holdfast_daemon::volumes::export_report::ExportReport;
use holdfast_daemon::volumes::folders::{VolumeFolder, VolumeFolders, VolumeRecord};
use holdfast_daemon::volumes::opening;
use holdfast_daemon::volumes::requests::{Detach, Status};
use holdfast_daemon::volumes::service::{self, Job};
use holdfast_daemon::volumes::status::VolumeStatus;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint;
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often to check whether a process has ended.
const ATTEMPTS: u32 = 300;
const PAUSE: Duration = Duration::from_millis(100);
/// The hint for a disk or log that cannot be written.
pub const READ_MEANWHILE: &str =
    "until then `holdfast volume attach --read-only` shows what is there, and changes nothing";

#[derive(Serialize)]
struct AttachOutput {
    volume: String,
    device: PathBuf,
    export: ExportReport,
}

/// `holdfast volume attach`
pub fn attach(arguments: &Attach, directories: &Directories, format: Format) -> Outcome {
    if arguments.background_process {
        return service::run_in_background();
    }
    let meant = opening::meant(&arguments.opening.opening(), directories)?;
    if meant.record.tpm && arguments.anchor_every_flush {
        let message = "a TPM is too slow to count every flush, and would wear out";
        return Err(Failure::new(Exit::Usage, message).hint("leave out --anchor-every-flush, or --tpm"));
    }
    // A missing anchor is reported here at once, rather than by the background process.
    opening::known_anchor(&meant.folder, &meant.anchor, arguments.opening.freshness_unknown)?;
    meant.folder.make()?;
    if let Some(status) = running(&meant.folder)? {
        let at = status.attached.map_or(PathBuf::new(), |attached| attached.export.path);
        let message = format!("{}: is attached already, at {}", meant.record.disk.display(), at.display());
        return Err(Failure::new(Exit::InUse, message).hint("`holdfast volume detach` ends that"));
    }
    let export = match (&arguments.nbd, arguments.ublk) {
        (Some(address), _) => Export::Nbd { address: address.to_string() },
        (None, true) => Export::Ublk,
        (None, false) => {
            let directory = match &arguments.directory {
                Some(directory) => mountpoint::prepare(directory)?,
                None => default_directory(&meant.folder)?,
            };
            Export::file(directory, arguments.loop_device, arguments.sector_size.bytes())
        }
    };
    let job = Job {
        secret: *meant.secret.bytes(),
        anchor: meant.anchor.path.clone(),
        anchor_every_flush: arguments.anchor_every_flush,
        freshness_unknown: arguments.opening.freshness_unknown,
        read_only: arguments.read_only,
        export,
        is_default_directory: arguments.directory.is_none(),
        watchdog_seconds: arguments.watchdog,
        folder: meant.folder.clone(),
        record: meant.record.clone(),
    };
    if arguments.foreground {
        return service::run_in_foreground(job);
    }
    let log = background::log_path(&meant.folder.directory);
    let bar = progress("attaching");
    let mut child = background::spawn(&process_arguments(&meant.record, arguments), &log, &background::KEEP)?;
    let started =
        background::hand_over(&mut child, &job).and_then(|()| background::await_report(child, &log, &|_| {}));
    bar.finish_and_clear();
    started.map_err(|failure| match failure.code {
        Exit::Io if failure.hint.is_none() && !arguments.read_only => {
            failure.hint(format!("mend that, and attach it again; {READ_MEANWHILE}"))
        }
        _ => failure,
    })?;
    let status = running(&meant.folder)?;
    let export = status.and_then(|status| status.attached).map(|attached| attached.export);
    let gone = || Failure::new(Exit::Unavailable, "it was detached again at once");
    let done = AttachOutput {
        volume: meant.folder.name(),
        device: meant.record.disk.clone(),
        export: export.ok_or_else(gone)?,
    };
    format.print(&done, |done| done.export.path.display().to_string())
}

/// The status from the process that has the volume attached, if there is one.
fn running(place: &VolumeFolder) -> Outcome<Option<VolumeStatus>> {
    match Client::connect(&place.directory) {
        Ok(Some(process)) => match process.call(&Status) {
            Err(failure) if failure.code == Exit::Unavailable => Ok(None),
            other => other.map(Some),
        },
        // The folder may not exist yet.
        Ok(None) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The default mount point of a volume.
fn default_directory(place: &VolumeFolder) -> Outcome<PathBuf> {
    let base = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(path) if !rustix::process::geteuid().is_root() && path.is_absolute() => path.join("holdfast"),
        _ => {
            // All users look there for the socket of the identification helper.
            let shared = PathBuf::from(RUN_DIRECTORY);
            make_shared(&shared)?;
            shared
        }
    };
    let directory = base.join("volumes").join(place.name());
    match mountpoint::mounted_at(&directory)? {
        // A dead mount is there, so the directory cannot be examined.
        Some(_) => {}
        None => make_private(&directory)?,
    }
    Ok(mountpoint::prepare(&directory)?)
}

/// The arguments under which `ps` lists the background process.
fn process_arguments(about: &VolumeRecord, arguments: &Attach) -> Vec<OsString> {
    let mut shown: Vec<OsString> = vec!["volume".into(), "attach".into(), about.disk.clone().into()];
    shown.extend(["--log".into(), about.log.clone().into()]);
    shown.extend(["--key".into(), about.key.clone().into()]);
    if arguments.loop_device {
        shown.push("--loop".into());
    }
    if let Some(address) = &arguments.nbd {
        shown.extend(["--nbd".into(), address.to_string().into()]);
    }
    if arguments.ublk {
        shown.push("--ublk".into());
    }
    if arguments.read_only {
        shown.push("--read-only".into());
    }
    shown
}

/// `holdfast volume detach`
pub fn detach(arguments: &DetachArguments, directories: &Directories, format: Format) -> Outcome {
    let places = VolumeFolders::new(directories)?;
    let (place, about) = places.find(&arguments.which.volume, attached_at)?;
    let Some(process) = Client::connect(&place.directory)? else {
        return Err(not_attached(&about.disk));
    };
    let bar = progress("writing everything, and detaching");
    let result = match process.call(&Detach) {
        // It ended before it could reply.
        Err(failure) if failure.code == Exit::Unavailable => Ok(None),
        other => other,
    };
    if result.is_ok() {
        // Waits until its files can be used by others.
        for _ in 0..ATTEMPTS {
            if place.lock().is_ok() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }
    bar.finish_and_clear();
    if let Some(failure) = result? {
        let message = format!(
            "{}: is detached, but not all could be written: {}. What was flushed before is kept",
            about.disk.display(),
            failure.message
        );
        return Err(Failure::new(failure.code, message).hint(format!(
            "attaching it again recovers what is durable, once that is mended; {READ_MEANWHILE}"
        )));
    }
    format.print(&asking::of(&place, &about)?, |_| format!("{} is detached", about.disk.display()))
}

/// The failure that a volume is not attached.
pub fn not_attached(disk: &Path) -> Failure {
    Failure::new(Exit::Failed, format!("{}: is not attached", disk.display()))
        .hint("`holdfast volume attach` does so")
}
