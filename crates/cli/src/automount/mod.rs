//! `holdfast automount`: a directory in which names that say what they lead to are mounted when they are used.

pub mod args;
mod authority;
mod mounting;
mod name;
mod places;
mod probe;

use crate::control::{self, Client, Order};
use crate::exit::{Exit, Failure, Outcome};
use crate::mount::{daemon, ending::on_signal};
use crate::output::{Format, progress};
use crate::paths::{Directories, DirectoryList, make_private};
use crate::reading::span_of;
use crate::watch::Watcher;
use crate::{keys, limits, logging};
use args::Automount;
use authority::Authorities;
use holdfast_crypto::{DigestKey, Domain};
use holdfast_fuse::mountpoint::{self, Manner};
use holdfast_fuse::{Options, Session, mount_automount};
use mounting::Settings;
use places::Places;
pub use places::PlacesStatus;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What the table of mounts shows as the source of an automounted directory.
pub const SOURCE: &str = "hf+automount:";
/// How often mounts are looked after, at most.
const TEND_EVERY: Duration = Duration::from_secs(5);

/// What an automounter answers to [`Order::Status`].
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

/// `holdfast automount`
pub fn run(arguments: &Automount, directories: &Directories, format: Format) -> Outcome {
    if arguments.background_process {
        return run_in_background(arguments, directories);
    }
    // What is wrong is said before anything is begun.
    let directory = mountpoint::prepare(&arguments.directory)?;
    let plan = Plan::of(arguments, directories, directory.clone())?;
    if arguments.foreground {
        logging::to_stderr();
        let serving = Serving::start(plan)?;
        serving.serve();
        return Ok(());
    }
    let bar = progress("mounting");
    let started = start_background(&plan.log);
    bar.finish_and_clear();
    started?;
    let done = serde_json::json!({ "directory": directory });
    format.print(&done, |_| format!("names are mounted below {} when they are used", directory.display()))
}

/// Where an automounter of a directory keeps its control socket and its log.
fn state_of(directory: &Path, directories: &Directories) -> Outcome<PathBuf> {
    let name = DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, directory.as_os_str().as_bytes());
    Ok(directories.state_base()?.join("automount").join(name.short()))
}

/// What the automounter of a directory tells of itself; `None` if it is not this user's, or just ended.
///
/// # Errors
/// It does not answer.
pub fn status(directory: &Path, directories: &Directories) -> Outcome<Option<AutomountStatus>> {
    match Client::connect(&state_of(directory, directories)?)? {
        Some(client) => match client.call(&Order::Status) {
            // It ended just now.
            Err(failure) if failure.code == Exit::Unavailable => Ok(None),
            other => other.map(Some),
        },
        None => Ok(None),
    }
}

/// Asks the automounter of a directory to unmount all; `false` if there is none to ask.
///
/// # Errors
/// Something is in use.
pub fn end(directory: &Path, lazy: bool, directories: &Directories) -> Outcome<bool> {
    let Some(client) = Client::connect(&state_of(directory, directories)?)? else { return Ok(false) };
    match client.call::<()>(&Order::Umount { directory: directory.to_owned(), lazy }) {
        // It went away with its mount before it could answer.
        Err(failure) if failure.code == Exit::Unavailable => Ok(true),
        other => other.map(|()| true),
    }
}

/// All that is decided before it begins.
struct Plan {
    directory: PathBuf,
    beside: Option<PathBuf>,
    state_dir: PathBuf,
    log: PathBuf,
    settings: Settings,
    authorities: Authorities,
    mounts_max: usize,
    idle: Duration,
    refresh: Duration,
    options: Options,
}

impl Plan {
    fn of(arguments: &Automount, directories: &Directories, directory: PathBuf) -> Outcome<Plan> {
        let absolute = |path: &PathBuf| {
            std::path::absolute(path)
                .map_err(|error| Failure::new(Exit::NoInput, format!("{}: {error}", path.display())))
        };
        let all = |paths: &[PathBuf]| paths.iter().map(absolute).collect::<Outcome<Vec<_>>>();
        let key = match &arguments.key {
            Some(key) if keys::in_agent(key).is_none() => Some(absolute(key)?),
            other => other.clone(),
        };
        if let Some(key) = &key
            && keys::public_of(&key.to_string_lossy()).is_err()
        {
            // Says what is wrong with it.
            keys::read(key)?;
        }
        let chosen = Directories {
            state: directories.state.as_ref().map(absolute).transpose()?,
            cache: directories.cache.as_ref().map(absolute).transpose()?,
        };
        let state_dir = state_of(&directory, &chosen)?;
        make_private(&state_dir)?;
        let settings = Settings {
            key,
            directories: chosen.clone(),
            allow_other: arguments.allow_other,
            no_exec: arguments.no_exec,
            cache_mib: arguments.cache_mib,
            refresh: arguments.refresh,
            timeout: Duration::from_secs(arguments.timeout),
        };
        let authorities = Authorities {
            certpath: all(&DirectoryList::all(&arguments.certpath))?,
            revocations: all(&DirectoryList::all(&arguments.revocations))?,
            directories: chosen,
        };
        let beside = beside(arguments.beside.as_ref().map(absolute).transpose()?, &state_dir)?;
        if beside.is_some() && arguments.allow_other {
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
            mounts_max: usize::from(arguments.mounts_max),
            idle: Duration::from_secs(span_of("--idle", &arguments.idle)?),
            refresh: Duration::from_secs(arguments.refresh),
            options: Options {
                source: SOURCE.to_owned(),
                allow_other: arguments.allow_other,
                read_only: false,
                no_exec: arguments.no_exec,
                local_locks: true,
            },
            directory,
        })
    }
}

/// Where mounts are made, if not on the names. What an earlier run left there is taken away.
fn beside(chosen: Option<PathBuf>, state_dir: &Path) -> Outcome<Option<PathBuf>> {
    let base = match chosen {
        Some(chosen) => chosen,
        None if rustix::process::geteuid().is_root() => return Ok(None),
        None => match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
            Some(runtime) if runtime.is_absolute() => runtime.join("holdfast"),
            _ => state_dir.join("mounts"),
        },
    };
    // Several automounters do not get into each other's way.
    let folder = base.join(state_dir.file_name().unwrap_or_default());
    make_private(&folder)?;
    let folder = folder
        .canonicalize()
        .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", folder.display())))?;
    for left in mountpoint::mounted()? {
        if left.is_holdfast() && left.directory.parent() == Some(&folder) {
            mountpoint::unmount(&left.directory, Manner::Lazily)?;
        }
    }
    Ok(Some(folder))
}

/// The background process.
fn run_in_background(arguments: &Automount, directories: &Directories) -> Outcome {
    daemon::leave_terminal();
    let start = || {
        let directory = mountpoint::prepare(&arguments.directory)?;
        let plan = Plan::of(arguments, directories, directory)?;
        let log = plan.log.clone();
        logging::to_file(&log)
            .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", log.display())))?;
        Serving::start(plan)
    };
    let started = start();
    let heard = daemon::report(&started.as_ref().map(|_| ()).map_err(Clone::clone));
    let Ok(serving) = started else { return Ok(()) };
    // Not to keep another file system from being unmounted.
    let _ = std::env::set_current_dir("/");
    if !heard {
        let _ = serving.session.unmount(Manner::Lazily);
    }
    serving.serve();
    Ok(())
}

/// Starts this command once more, in the background, and waits until it has mounted.
fn start_background(log: &Path) -> Outcome {
    let own: Vec<OsString> = std::env::args_os().skip(1).collect();
    daemon::spawn(&own, log, &[]).and_then(|child| daemon::await_report(child, log, &|_| {}))
}

/// An automounted directory that is served.
struct Serving {
    session: Arc<Session>,
    places: Arc<Places>,
    watcher: Watcher,
    state_dir: PathBuf,
    idle: Duration,
    refresh: Duration,
    /// The mount is gone.
    ended: Receiver<()>,
}

impl Serving {
    fn start(plan: Plan) -> Outcome<Serving> {
        limits::raise_open_files();
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
            control::listen(&state_dir, move |order: Order| match order {
                Order::Status => {
                    let status = AutomountStatus {
                        directory: directory.clone(),
                        process: std::process::id(),
                        log: log.clone(),
                        places: places.status(),
                    };
                    serde_json::to_value(status).map_err(|error| Failure::new(Exit::Internal, error))
                }
                Order::Umount { directory: wanted, lazy } if wanted == directory => {
                    places.end(lazy).map_err(|refusal| {
                        Failure::new(Exit::InUse, format!("{}: stays: {}", directory.display(), refusal.why))
                    })?;
                    if let Some(session) = session.upgrade() {
                        session.unmount(if lazy { Manner::Lazily } else { Manner::Gently })?;
                    }
                    Ok(serde_json::Value::Null)
                }
                _ => Err(Failure::new(Exit::MountPoint, "an automounter does not do that")),
            })
        };
        if let Err(error) = listening {
            let _ = session.unmount(Manner::Lazily);
            return Err(Failure::new(Exit::System, format!("the control socket cannot be made: {error}")));
        }
        let (signalled, of) = (Arc::downgrade(&session), Arc::clone(&places));
        on_signal(move || {
            // What is unsaved is published first, as far as that can be done soon.
            if of.end(false).is_err() {
                let _ = of.end(true);
            }
            if let Some(session) = signalled.upgrade() {
                let _ = session.unmount(Manner::Lazily);
            }
        })?;
        Ok(Serving { session, places, watcher, state_dir, idle, refresh, ended })
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
