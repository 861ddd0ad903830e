//! The automounter: serves a directory in which self-certifying names are mounted when they are used.

mod authority;
mod mounting;
mod name;
mod places;
mod probe;
mod refusal;
pub mod requests;

use crate::control::{self, Client, Reply};
use crate::paths::{Directories, make_private};
use crate::signals;
use crate::watch::Watcher;
use crate::{background, keys, limits, logging};
use authority::Authorities;
use holdfast_crypto::{DigestKey, Domain};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint::{self, UnmountMode};
use holdfast_fuse::{Options, Session, mount_automount};
use mounting::Settings;
use places::Places;
pub use places::PlacesStatus;
use requests::{AutomountRequest, Status, Unmount};
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The source of an automounted directory in the kernel's table of mounts.
pub const SOURCE: &str = "hf+automount:";
/// The longest interval between two rounds of periodic work on the mounts.
const TEND_EVERY: Duration = Duration::from_secs(5);

/// The status of an automounter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AutomountStatus {
    /// The directory.
    pub directory: PathBuf,
    /// Process id.
    pub process: u32,
    /// Its log.
    pub log: PathBuf,
    /// What is mounted, and what could not be.
    #[serde(flatten)]
    pub places: PlacesStatus,
}

/// The directory with the control socket and log of a directory's automounter.
fn state_of(directory: &Path, directories: &Directories) -> Outcome<PathBuf> {
    let name = DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, directory.as_os_str().as_bytes());
    Ok(directories.state_base()?.join("automount").join(name.short()))
}

/// The status of a directory's automounter; `None` if it is another user's, or is just ending.
///
/// # Errors
/// The automounter does not answer.
pub fn status(directory: &Path, directories: &Directories) -> Outcome<Option<AutomountStatus>> {
    match Client::connect(&state_of(directory, directories)?)? {
        Some(client) => match client.call(&Status) {
            // It is just ending.
            Err(failure) if failure.code == Exit::Unavailable => Ok(None),
            other => other.map(Some),
        },
        None => Ok(None),
    }
}

/// Asks the automounter of a directory to unmount everything; `false` if there is none.
///
/// # Errors
/// A mount is in use.
pub fn end(directory: &Path, lazy: bool, directories: &Directories) -> Outcome<bool> {
    let Some(client) = Client::connect(&state_of(directory, directories)?)? else { return Ok(false) };
    match client.call(&Unmount { lazy }) {
        // It ended with its mount before it could reply.
        Err(failure) if failure.code == Exit::Unavailable => Ok(true),
        other => other.map(|()| true),
    }
}

/// The settings of an automounter, as its user gives them.
#[derive(Clone, Debug)]
pub struct AutomountSettings {
    /// The automounted directory, prepared.
    pub directory: PathBuf,
    /// This device's key, for writable file systems.
    pub key: Option<PathBuf>,
    /// Directories of links, in which all other names are looked up.
    pub certpath: Vec<PathBuf>,
    /// Directories of revocation certificates.
    pub revocations: Vec<PathBuf>,
    /// Where mounts are made, if not on the names. `None`: on the names for root, else in a private
    /// directory.
    pub beside: Option<PathBuf>,
    /// How long an unused name stays mounted.
    pub idle: Duration,
    /// Most names mounted at once.
    pub mounts_max: usize,
    /// Seconds between two checks for new releases and revocations.
    pub refresh: u64,
    /// How long mounting a name may take.
    pub timeout: Duration,
    /// Bound of each cache in MiB.
    pub cache_mib: u64,
    /// Whether other users of this machine may use it.
    pub allow_other: bool,
    /// Whether programs in the mounts must not be run.
    pub no_exec: bool,
}

/// The checked settings of an automounter.
pub struct Plan {
    directory: PathBuf,
    beside: Option<PathBuf>,
    state_dir: PathBuf,
    /// The log of the process.
    pub log: PathBuf,
    settings: Settings,
    authorities: Authorities,
    mounts_max: usize,
    idle: Duration,
    refresh: Duration,
    options: Options,
}

impl Plan {
    /// Checks the settings and makes the state directory.
    ///
    /// # Errors
    /// The key cannot be read, a path is wrong, or the settings contradict each other.
    pub fn of(wanted: &AutomountSettings, directories: &Directories) -> Outcome<Plan> {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path)
                .map_err(|error| Failure::new(Exit::NoInput, format!("{}: {error}", path.display())))
        };
        let all = |paths: &[PathBuf]| paths.iter().map(absolute).collect::<Outcome<Vec<_>>>();
        let key = match &wanted.key {
            Some(key) if keys::in_agent(key).is_none() => Some(absolute(key)?),
            other => other.clone(),
        };
        if let Some(key) = &key
            && keys::public_of(&key.to_string_lossy()).is_err()
        {
            // Reading the key reports what is wrong with it.
            keys::read(key)?;
        }
        let chosen = Directories {
            state: directories.state.as_ref().map(absolute).transpose()?,
            cache: directories.cache.as_ref().map(absolute).transpose()?,
        };
        let state_dir = state_of(&wanted.directory, &chosen)?;
        make_private(&state_dir)?;
        let settings = Settings {
            key,
            directories: chosen.clone(),
            allow_other: wanted.allow_other,
            no_exec: wanted.no_exec,
            cache_mib: wanted.cache_mib,
            refresh: wanted.refresh,
            timeout: wanted.timeout,
        };
        let authorities = Authorities {
            certpath: all(&wanted.certpath)?,
            revocations: all(&wanted.revocations)?,
            directories: chosen,
        };
        let beside = beside(wanted.beside.as_ref().map(absolute).transpose()?, &state_dir)?;
        if beside.is_some() && wanted.allow_other {
            return Err(Failure::new(
                Exit::Usage,
                "--allow-other is for root, who mounts on the names themselves",
            )
            .hint("otherwise names are links into a directory that only its owner may enter"));
        }
        Ok(Plan {
            beside,
            log: state_dir.join("log"),
            state_dir,
            settings,
            authorities,
            mounts_max: wanted.mounts_max,
            idle: wanted.idle,
            refresh: Duration::from_secs(wanted.refresh),
            options: Options {
                source: SOURCE.to_owned(),
                allow_other: wanted.allow_other,
                read_only: false,
                no_exec: wanted.no_exec,
                local_locks: true,
            },
            directory: wanted.directory.clone(),
        })
    }
}

/// Where mounts are made, if not on the names. Mounts that an earlier run left there are removed.
fn beside(chosen: Option<PathBuf>, state_dir: &Path) -> Outcome<Option<PathBuf>> {
    let base = match chosen {
        Some(chosen) => chosen,
        None if rustix::process::geteuid().is_root() => return Ok(None),
        None => match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
            Some(runtime) if runtime.is_absolute() => runtime.join("holdfast"),
            _ => state_dir.join("mounts"),
        },
    };
    // Each automounter has a folder of its own.
    let folder = base.join(state_dir.file_name().unwrap_or_default());
    make_private(&folder)?;
    let folder = folder
        .canonicalize()
        .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", folder.display())))?;
    for left in mountpoint::mounted()? {
        if left.is_holdfast() && left.directory.parent() == Some(&folder) {
            mountpoint::unmount(&left.directory, UnmountMode::Lazily)?;
        }
    }
    Ok(Some(folder))
}

/// The background process: serves what `plan` decides until it is unmounted.
///
/// # Errors
/// None: a failure is reported to the command that waits.
pub fn run_in_background(plan: impl FnOnce() -> Outcome<Plan>) -> Outcome {
    background::leave_terminal();
    let start = || {
        let plan = plan()?;
        let log = plan.log.clone();
        logging::to_file(&log)
            .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", log.display())))?;
        Automounter::start(plan)
    };
    let started = start();
    let heard = background::report(&started.as_ref().map(|_| ()).map_err(Clone::clone));
    let Ok(automounter) = started else { return Ok(()) };
    // A working directory elsewhere would keep that file system from being unmounted.
    let _ = std::env::set_current_dir("/");
    if !heard {
        let _ = automounter.session.unmount(UnmountMode::Lazily);
    }
    automounter.serve();
    Ok(())
}

/// Serves in the foreground until it is unmounted, logging to standard error.
///
/// # Errors
/// It cannot be mounted.
pub fn run_in_foreground(plan: Plan) -> Outcome {
    logging::to_stderr();
    Automounter::start(plan)?.serve();
    Ok(())
}

/// An automounted directory that is served.
struct Automounter {
    session: Arc<Session>,
    places: Arc<Places>,
    watcher: Watcher,
    state_dir: PathBuf,
    idle: Duration,
    refresh: Duration,
    /// Receives when the mount has ended.
    ended: Receiver<()>,
}

impl Automounter {
    fn start(plan: Plan) -> Outcome<Automounter> {
        limits::raise_open_files();
        holdfast_fuse::look_by_thread();
        let Plan {
            directory,
            beside,
            state_dir,
            log,
            settings,
            authorities,
            mounts_max,
            idle,
            refresh,
            options,
        } = plan;
        let places = Places::new(directory.clone(), beside, settings, authorities, mounts_max, idle, refresh);
        let watcher = Watcher::start();
        watcher.mounted(&directory);
        let (over, ended) = channel();
        let session = mount_automount(places.clone(), &directory, &options, move || {
            let _ = over.send(());
        })
        .inspect_err(|_| watcher.unmounted(&directory))?;
        let session = Arc::new(session);
        tracing::info!(directory = %directory.display(), "automounting");
        let listening = {
            let (places, session, directory) =
                (Arc::clone(&places), Arc::downgrade(&session), directory.clone());
            control::listen(&state_dir, move |request| match request {
                AutomountRequest::Status(request) => {
                    let status = AutomountStatus {
                        directory: directory.clone(),
                        process: std::process::id(),
                        log: log.clone(),
                        places: places.status(),
                    };
                    Reply::to(&request, Ok(status))
                }
                AutomountRequest::Unmount(request) => {
                    let unmount = || {
                        places.end(request.lazy).map_err(|refusal| {
                            let why = format!("{}: stays: {}", directory.display(), refusal.why);
                            Failure::new(Exit::InUse, why)
                        })?;
                        if let Some(session) = session.upgrade() {
                            session.unmount(if request.lazy {
                                UnmountMode::Lazily
                            } else {
                                UnmountMode::Gently
                            })?;
                        }
                        Ok(())
                    };
                    Reply::to(&request, unmount())
                }
            })
        };
        if let Err(error) = listening {
            let _ = session.unmount(UnmountMode::Lazily);
            return Err(Failure::new(Exit::System, format!("the control socket cannot be made: {error}")));
        }
        let (signalled, of) = (Arc::downgrade(&session), Arc::clone(&places));
        signals::on_end(move || {
            // Unsaved changes are published first, as far as that is possible soon.
            if of.end(false).is_err() {
                let _ = of.end(true);
            }
            if let Some(session) = signalled.upgrade() {
                let _ = session.unmount(UnmountMode::Lazily);
            }
        })?;
        Ok(Automounter { session, places, watcher, state_dir, idle, refresh, ended })
    }

    /// Serves until it is unmounted.
    fn serve(self) {
        let every = TEND_EVERY.min(self.idle / 4).min(self.refresh).max(Duration::from_millis(250));
        let mut looked = Instant::now();
        while let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(every) {
            let due = looked.elapsed() >= self.refresh;
            if due {
                looked = Instant::now();
            }
            self.places.tend(due);
        }
        self.session.wait();
        if let Err(refusal) = self.places.end(true) {
            tracing::warn!(why = refusal.why, "a mount stays");
        }
        control::close(&self.state_dir);
        self.watcher.unmounted(self.session.directory());
        tracing::info!("ended");
    }
}
