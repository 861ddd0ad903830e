//! Mounting a release: a process of its own, which needs no key.

use super::daemon;
use super::ending::on_signal;
use crate::args::Mount;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::progress;
use crate::paths::Directories;
use crate::reading::{SCHEME, args::ReleaseSource};
use crate::watch::Watcher;
use crate::{limits, logging};
use holdfast_fuse::mountpoint::{self, Manner};
use holdfast_fuse::{Options, Session, mount_fixed};
use holdfast_release::mount::first_touch::FirstTouches;
use holdfast_release::mount::{MountedRelease, Owner};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

/// How often it is looked whether the mount has ended while mirrors are asked for a new release.
const ENDED_LOOK: Duration = Duration::from_millis(200);

/// Whether a release is meant, not a writable file system.
pub fn is_meant(arguments: &Mount) -> bool {
    let url = &arguments.url;
    arguments.release.demands.id.is_some()
        || [SCHEME, "http://", "https://", "s3://", "file://"].iter().any(|scheme| url.starts_with(scheme))
        || Path::new(url).is_dir()
}

/// Mounts. Returns what it is called; `None` when it was served in the foreground and is gone again.
pub fn establish(arguments: &Mount, directories: &Directories) -> Outcome<Option<(PathBuf, String)>> {
    if arguments.key.is_some() {
        let message =
            format!("{} is a mirror of a release, and a release is mounted without a key", arguments.url);
        return Err(Failure::new(Exit::Usage, message).hint(
            "the address of a writable file system is hf://HOST:PORT/FSID; a release needs --id instead",
        ));
    }
    let source = source(arguments);
    let named = source.named()?;
    let directory = mountpoint::prepare(&arguments.directory)?;
    let title = format!("{SCHEME}{}@{}", named.id, named.mirrors[0]);
    if arguments.foreground {
        logging::to_stderr();
        let tell = |text: &str| drop(writeln!(std::io::stderr(), "holdfast: {text}"));
        let serving = Serving::start(arguments, &source, &directory, &title, directories, &tell)?;
        serving.serve();
        return Ok(None);
    }
    let bar = progress("mounting");
    let log = log_path(directories, &named.id.to_string())?;
    let own: Vec<_> = std::env::args_os().skip(1).collect();
    let tell = |text: &str| bar.suspend(|| drop(writeln!(std::io::stderr(), "holdfast: {text}")));
    let started =
        daemon::spawn(&own, &log, &daemon::KEEP).and_then(|child| daemon::await_report(child, &log, &tell));
    bar.finish_and_clear();
    started.map(|()| Some((directory, title)))
}

/// The background process.
pub fn run_in_background(arguments: &Mount, directories: &Directories) -> Outcome {
    daemon::leave_terminal();
    let source = source(arguments);
    let serve = || {
        let named = source.named()?;
        let directory = mountpoint::prepare(&arguments.directory)?;
        let log = log_path(directories, &named.id.to_string())?;
        logging::to_file(&log)
            .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", log.display())))?;
        let title = format!("{SCHEME}{}@{}", named.id, named.mirrors[0]);
        let _waiting = daemon::ends_with_command();
        Serving::start(arguments, &source, &directory, &title, directories, &daemon::notice)
    };
    let started = serve();
    let heard = daemon::report(&started.as_ref().map(|_| ()).map_err(Clone::clone));
    let Ok(serving) = started else { return Ok(()) };
    // Not to keep another file system from being unmounted.
    let _ = std::env::set_current_dir("/");
    if !heard {
        serving.stop();
    }
    serving.serve();
    Ok(())
}

fn source(arguments: &Mount) -> ReleaseSource {
    ReleaseSource {
        release: arguments.url.clone(),
        demands: arguments.release.demands.clone(),
        cache_mib: arguments.cache_mib,
    }
}

fn log_path(directories: &Directories, id: &str) -> Outcome<PathBuf> {
    let folder = directories.releases_base()?.join(id);
    crate::paths::make_private(&folder)?;
    Ok(folder.join("log"))
}

/// A mount that is served.
struct Serving {
    session: Arc<Session>,
    mounted: Arc<MountedRelease>,
    watcher: Watcher,
    refresh: Duration,
    /// Where it is remembered what was read first.
    first_touch: Option<PathBuf>,
    /// Ends the looking for new releases.
    ended: std::sync::mpsc::Receiver<()>,
}

impl Serving {
    fn start(
        arguments: &Mount,
        source: &ReleaseSource,
        directory: &Path,
        title: &str,
        directories: &Directories,
        tell: &dyn Fn(&str),
    ) -> Outcome<Serving> {
        limits::raise_open_files();
        let release = source.open_telling(directories, tell)?;
        let owner =
            Owner { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
        let mounted = MountedRelease::new(Arc::new(release), owner);
        let options = Options {
            source: title.to_owned(),
            allow_other: arguments.allow_other,
            read_only: true,
            no_exec: arguments.no_exec,
            local_locks: true,
        };
        let watcher = Watcher::start();
        watcher.mounted(directory);
        let (over, ended) = channel();
        let session = mount_fixed(mounted.clone(), directory, &options, move || {
            let _ = over.send(());
        })
        .inspect_err(|_| watcher.unmounted(directory))?;
        let session = Arc::new(session);
        let weak = Arc::downgrade(&session);
        on_signal(move || {
            if let Some(session) = weak.upgrade() {
                let _ = session.unmount(Manner::Lazily);
            }
        })?;
        let refresh = Duration::from_secs(arguments.release.refresh);
        let first_touch = match arguments.release.no_first_touch {
            true => None,
            false => Some(directories.cache_base()?.join("releases").join(source.named()?.id.to_string())),
        };
        let first_touch = first_touch.map(|folder| folder.join("first-touch"));
        if let Some(path) = &first_touch {
            fetch_ahead(&mounted, FirstTouches::read(path));
        }
        Ok(Serving { session, mounted, watcher, refresh, first_touch, ended })
    }

    /// Keeps what was read first, before what was read first earlier.
    fn remember(&self) {
        let Some(path) = &self.first_touch else { return };
        let now = self.mounted.first_touches();
        if !now.0.is_empty()
            && let Err(error) = now.before(FirstTouches::read(path)).write(path)
        {
            tracing::warn!(file = %path.display(), %error, "what was read first is not remembered");
        }
    }

    fn stop(&self) {
        let _ = self.session.unmount(Manner::Lazily);
    }

    /// Looks for a new release. Mirrors may take long, and an unmount does not wait for them: then it is `None`.
    fn refreshed(&self) -> Option<BTreeSet<String>> {
        let mounted = self.mounted.clone();
        let (done, refreshed) = channel();
        let look = move || drop(done.send(mounted.refresh().into_iter().collect()));
        if std::thread::Builder::new().name("refresh".into()).spawn(look).is_err() {
            // The next one may have room.
            return Some(BTreeSet::new());
        }
        loop {
            match refreshed.recv_timeout(ENDED_LOOK) {
                Ok(now) => return Some(now),
                Err(RecvTimeoutError::Timeout) if self.ended.try_recv() == Err(TryRecvError::Empty) => {}
                Err(_) => return None,
            }
        }
    }

    /// Serves until it is unmounted; looks for new releases now and then.
    fn serve(self) {
        let mut before = BTreeSet::new();
        // What expires does so at its time; after that there is no hurry.
        let wait = |mounted: &MountedRelease| match mounted.expires_in() {
            Duration::ZERO => self.refresh,
            left => left.min(self.refresh),
        };
        while let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(wait(&self.mounted)) {
            let Some(now) = self.refreshed() else { break };
            for text in now.difference(&before) {
                tracing::warn!("{text}");
            }
            before = now;
            self.remember();
        }
        self.session.wait();
        self.remember();
        self.watcher.unmounted(self.session.directory());
    }
}

/// Fetches what was read first the last time, in the background.
fn fetch_ahead(mounted: &Arc<MountedRelease>, list: FirstTouches) {
    if list.0.is_empty() {
        return;
    }
    let mounted = mounted.clone();
    let work = move || {
        let fetched = mounted.fetch_ahead(&list);
        tracing::info!(
            touches = fetched.touches,
            bytes = fetched.bytes,
            "what was read first was fetched ahead"
        );
    };
    // Without it, everything is fetched when it is read.
    let _ = std::thread::Builder::new().name("first-touch".into()).spawn(work);
}
