//! The process that attaches a volume: it opens the volume, exports it, stores its anchor, answers the
//! control socket, and ends when the volume is detached.

use super::anchor::AnchorStatus;
use super::anchor::{AnchorStore, Keeper};
use super::export::{Export, Exported};
use super::folders::{VolumeFolder, VolumeRecord};
use super::media::{Medium, Untouched};
use super::memory::{self, Memory};
use super::requests::VolumeRequest;
use super::scrub::Scrubber;
use super::secret::Secret;
use super::served::Served;
use super::status::{Activity, Attached, BadBlock, VolumeStatus};
use super::{opening, repair, watchdog};
use crate::background;
use crate::control::{self, Reply};
use crate::signals;
use crate::watch::Watcher;
use crate::{limits, logging, time};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint::UnmountMode;
use holdfast_log::FileLock;
use holdfast_volume::{AnchorKeeper, Report, Volume};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroize;

/// After the process was asked to end, the volume stays attached for so long if programs still use it.
const LEAVE_WAIT: Duration = Duration::from_secs(10);
/// How often it checks whether a checkpoint was made.
const LOOK: Duration = Duration::from_secs(1);
/// How long it waits for the reply to the last request to be delivered.
const ANSWER_WAIT: Duration = Duration::from_millis(200);

/// Everything that the process needs. It is passed through a pipe, because it contains the secret.
#[derive(Serialize, Deserialize)]
pub struct Job {
    /// The paths of the volume's files on this machine.
    pub folder: VolumeFolder,
    /// What this machine remembers of the volume.
    pub record: VolumeRecord,
    /// The secret of the volume's key file.
    pub secret: [u8; 32],
    /// The file of the anchor.
    pub anchor: PathBuf,
    /// Whether the anchor is written at every flush.
    pub anchor_every_flush: bool,
    /// Whether a volume without an anchor may be attached.
    pub freshness_unknown: bool,
    /// Whether neither disk, log nor anchor may be changed.
    pub read_only: bool,
    /// How the volume is exported.
    pub export: Export,
    /// Whether the mount point was created for this volume, and is removed with it.
    pub is_default_directory: bool,
    /// Seconds after which the watchdog ends requests that make no progress; 0: never.
    pub watchdog_seconds: u64,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

#[derive(Default)]
struct State {
    /// Whether the export has ended, so that no program can use the volume any more.
    unused: bool,
    /// Whether a signal has asked the process to end.
    hurried: bool,
    /// The outcome of closing, once the volume is closed.
    closed: Option<Outcome>,
}

/// An attached volume.
struct Service {
    job: Job,
    volume: Arc<Volume>,
    report: Report,
    exported: Exported,
    keeper: Arc<Keeper>,
    scrubber: Arc<Scrubber>,
    memory: Memory,
    since_ns: i64,
    state: Arc<(Mutex<State>, Condvar)>,
    /// Held while the volume is being closed.
    ending: Mutex<()>,
    _lock: FileLock,
}

/// Serves until the end, logging to the volume's log file; reports to the waiting command whether it started.
pub fn run_in_background() -> Outcome {
    let job: Job = background::take_over()?;
    let log = background::log_path(&job.folder.directory);
    let started = logging::to_file(&log)
        .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", log.display())))
        .and_then(|()| Service::start(job));
    background::report(&started.as_ref().map(|_| ()).map_err(Clone::clone));
    match started {
        Ok(service) => service.serve(),
        // The failure was reported to the waiting command.
        Err(_) => Ok(()),
    }
}

/// Serves until the end, in the foreground.
pub fn run_in_foreground(job: Job) -> Outcome {
    logging::to_stderr();
    let service = Service::start(job)?;
    tell_service_manager();
    service.serve()
}

/// Reports to systemd that the volume is attached, for units that wait for it.
fn tell_service_manager() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let told = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address));
    if let Err(error) = told {
        tracing::warn!(%error, "the service manager cannot be told that the volume is attached");
    }
}

impl Service {
    fn start(job: Job) -> Outcome<Arc<Service>> {
        // The watcher is started before the settings that are only for this process.
        let watcher = Watcher::start();
        // Memory is prepared before threads start, because they inherit it.
        let memory = memory::prepare(&job.folder.name());
        let started = Service::begin(job, memory.clone(), watcher);
        if started.is_err() {
            memory.end();
        }
        started
    }

    fn begin(job: Job, memory: Memory, watcher: Watcher) -> Outcome<Arc<Service>> {
        limits::raise_open_files();
        let lock = job.folder.lock()?;
        let open = if job.read_only { Medium::open_read_only } else { Medium::open };
        let (disk, log) = (open(&job.record.disk)?, open(&job.record.log)?);
        let (disk, log) = match job.read_only {
            true => (Untouched::over(disk.device), Untouched::over(log.device)),
            false => (disk.device, log.device),
        };
        let key = Secret::new(job.secret).of(&job.folder.volume);
        let kept = AnchorStore::new(job.anchor.clone(), job.record.tpm, &key);
        let known = opening::known_anchor(&job.folder, &kept, job.freshness_unknown)?;
        let opened = Volume::open(disk, log, &key, Default::default(), known.as_ref(), opening::salt()?);
        let (volume, report) = opened?;
        opening::tell(&report);
        let volume = Arc::new(volume);
        let mut about = job.record.clone();
        (about.size_bytes, about.protected) = (volume.size_bytes(), true);
        let (keeper, served) = if job.read_only {
            // `detach` finds the volume by this record. If it cannot be written, an earlier one still serves.
            if let Err(failure) = job.folder.remember(&about) {
                tracing::warn!(error = failure.message, "what was known of the volume stays");
            }
            (Arc::new(Keeper::unchanging(kept, known)), Served::read_only(Arc::clone(&volume)))
        } else {
            let keeper = Arc::new(Keeper::new(kept));
            keeper.keep_of(&volume)?;
            opening::keep_one_anchor(&job.folder, &job.anchor);
            job.folder.remember(&about)?;
            volume.start()?;
            if job.anchor_every_flush {
                volume.keep_anchor_at_every_flush(Arc::clone(&keeper) as Arc<dyn AnchorKeeper>);
            }
            (keeper, Served::new(Arc::clone(&volume)))
        };
        let served = Arc::new(served);
        let state: Arc<(Mutex<State>, Condvar)> = Arc::default();
        let ended = {
            let state = Arc::clone(&state);
            move || {
                state.0.lock().unused = true;
                state.1.notify_all();
            }
        };
        let source = format!("volume {}", job.record.disk.display());
        let exported = job.export.begin(Arc::clone(&served), &source, watcher, ended)?;
        let wait = Duration::from_secs(job.watchdog_seconds);
        if !wait.is_zero()
            && let Some(directory) = exported.directory()
            && let Err(error) = watchdog::start(&served, &volume, directory, wait)
        {
            tracing::warn!(%error, "there is no watchdog");
        }
        let scrubber = Scrubber::new(Arc::clone(&volume), job.folder.clone());
        let service = Arc::new(Service {
            job,
            volume,
            report,
            exported,
            keeper,
            scrubber,
            memory,
            since_ns: time::now_ns(),
            state,
            ending: Mutex::new(()),
            _lock: lock,
        });
        let answering = Arc::downgrade(&service);
        let listening =
            control::listen(&service.job.folder.directory, move |request| match answering.upgrade() {
                Some(service) => service.handle(request),
                None => Reply::refusal(Failure::new(Exit::Unavailable, "the process is ending")),
            });
        if let Err(error) = listening {
            let _ = service.end(UnmountMode::Lazily);
            return Err(Failure::new(Exit::System, format!("the control socket cannot be made: {error}")));
        }
        Ok(service)
    }

    /// Serves until the volume is detached or a signal ends it.
    fn serve(self: Arc<Service>) -> Outcome {
        let hurry = {
            let state = Arc::clone(&self.state);
            move || {
                state.0.lock().hurried = true;
                state.1.notify_all();
            }
        };
        signals::on_end(hurry)?;
        let mut checkpoints = self.volume.statistics().checkpoints;
        let outcome = loop {
            {
                let mut state = self.state.0.lock();
                if state.closed.is_none() && !state.unused && !state.hurried {
                    self.state.1.wait_for(&mut state, LOOK);
                }
                if let Some(outcome) = &state.closed {
                    break outcome.clone();
                }
                if state.unused || state.hurried {
                    drop(state);
                    break self.leave();
                }
            }
            let now = self.volume.statistics().checkpoints;
            if now != checkpoints {
                checkpoints = now;
                if let Err(failure) = self.keeper.keep_of(&self.volume) {
                    tracing::error!(error = failure.message, "the anchor stays behind");
                }
            }
        };
        std::thread::sleep(ANSWER_WAIT);
        control::close(&self.job.folder.directory);
        self.memory.end();
        match &outcome {
            Ok(()) => tracing::info!("detached"),
            Err(failure) => tracing::error!(error = failure.message, "detached after a failure"),
        }
        outcome
    }

    /// Ends after a signal, or after the mount was ended from outside: gently for a while, then by force.
    fn leave(&self) -> Outcome {
        let start = std::time::Instant::now();
        while start.elapsed() < LEAVE_WAIT {
            match self.end(UnmountMode::Gently) {
                Err(failure) if failure.code == Exit::InUse => std::thread::sleep(LOOK),
                other => return other,
            }
        }
        tracing::warn!("programs still use the volume; they lose it now");
        self.end(UnmountMode::Lazily)
    }

    /// Ends the export and closes the volume. [`Exit::InUse`]: nothing was changed.
    fn end(&self, manner: UnmountMode) -> Outcome {
        let _one = self.ending.lock();
        if let Some(outcome) = &self.state.0.lock().closed {
            return outcome.clone();
        }
        self.exported.end(manner)?;
        self.scrubber.stop();
        let closed = match self.job.read_only {
            true => Ok(()),
            false => {
                self.volume.close().map_err(Failure::from).and_then(|()| self.keeper.keep_of(&self.volume))
            }
        };
        if let Some(directory) = self.exported.directory().filter(|_| self.job.is_default_directory) {
            let _ = std::fs::remove_dir(directory);
        }
        self.state.0.lock().closed = Some(closed.clone());
        self.state.1.notify_all();
        closed
    }

    fn handle(&self, request: VolumeRequest) -> Reply<VolumeRequest> {
        match request {
            VolumeRequest::Status(request) => Reply::to(&request, Ok(self.status())),
            VolumeRequest::Detach(request) => {
                let ended = self.end(UnmountMode::Gently);
                let is_closed = self.state.0.lock().closed.is_some();
                Reply::to(&request, if is_closed { Ok(ended.err()) } else { ended.map(|()| None) })
            }
            VolumeRequest::Scrub(request) => {
                Reply::to(&request, self.scrubber.start(request.rate_mib, request.from_start))
            }
            VolumeRequest::StopScrub(request) => {
                self.scrubber.stop();
                Reply::to(&request, Ok(()))
            }
            VolumeRequest::Repair(_) if self.job.read_only => Reply::refusal(
                Failure::new(Exit::NotAllowed, "the volume is attached read-only")
                    .hint("detach it, and attach it without --read-only"),
            ),
            VolumeRequest::Repair(request) => Reply::to(&request, repair::mend(&self.volume, &request.from)),
        }
    }

    fn status(&self) -> VolumeStatus {
        let about = &self.job.record;
        let (log_bytes, log_used_bytes) = self.volume.log_room();
        VolumeStatus {
            volume: self.job.folder.name(),
            disk: about.disk.clone(),
            log: about.log.clone(),
            key: about.key.clone(),
            size_bytes: self.volume.size_bytes(),
            protected: true,
            attached: Some(Attached {
                export: self.exported.report(),
                process: std::process::id(),
                since_ns: self.since_ns,
                stopped: self.volume.failure(),
                read_only: self.job.read_only,
                log_bytes,
                log_used_bytes,
                recovery: (&self.report).into(),
                activity: self.activity(),
                bad_blocks: self.volume.bad_blocks().iter().map(BadBlock::from).collect(),
                memory: self.memory.clone(),
            }),
            anchor: self.anchored(),
            scrub: self.scrubber.progress(),
        }
    }

    fn anchored(&self) -> AnchorStatus {
        self.keeper.status(&self.volume, self.job.anchor_every_flush)
    }

    fn activity(&self) -> Activity {
        let (volume, log) = (self.volume.statistics(), self.volume.log_statistics());
        Activity {
            read_bytes: volume.read_bytes,
            written_bytes: volume.written_bytes,
            verified: volume.verified,
            hashed: volume.hashed,
            refused: volume.refused,
            flushes: volume.flushes,
            disk_flushes: volume.disk_flushes,
            log_flushes: log.flushes,
            log_bytes: log.blocks * holdfast_log::ring::BLOCK_BYTES as u64,
            checkpoints: volume.checkpoints,
        }
    }
}
