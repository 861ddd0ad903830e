//! Mounts of releases. Each has a process of its own, which needs no key.

use crate::background;
use crate::watch::Watcher;
use crate::{limits, logging, signals};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint::UnmountMode;
use holdfast_fuse::{Options, Session, mount_fixed};
use holdfast_release::mount::first_touch::FirstTouches;
use holdfast_release::mount::{MountedRelease, Owner};
use holdfast_release::open::Release;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

/// While mirrors are asked for a new release, how often it checks whether the mount has ended.
const ENDED_LOOK: Duration = Duration::from_millis(200);

/// The settings of a release's mount.
pub struct ReleaseMountSettings {
    /// The mount point, prepared.
    pub directory: PathBuf,
    /// The source of the mount in the kernel's table.
    pub title: String,
    /// Whether other users of the machine may use it.
    pub allow_other: bool,
    /// Whether programs in it must not be run.
    pub no_exec: bool,
    /// How often mirrors are asked for a new release.
    pub refresh: Duration,
    /// File that remembers the first reads; `None`: they are not remembered.
    pub first_touch: Option<PathBuf>,
}

/// The background process: opens a release and serves it until it is unmounted. `open` gets a function with
/// which it can report a delay to the waiting command.
///
/// # Errors
/// None: a failure is reported to the command that waits.
pub fn run_in_background(
    log: &Path,
    open: impl FnOnce(&dyn Fn(&str)) -> Outcome<(Release, ReleaseMountSettings)>,
) -> Outcome {
    background::leave_terminal();
    let start = || {
        logging::to_file(log)
            .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", log.display())))?;
        let _waiting = background::ends_with_command();
        let (release, settings) = open(&background::notice)?;
        ReleaseMount::start(release, settings)
    };
    let started = start();
    let heard = background::report(&started.as_ref().map(|_| ()).map_err(Clone::clone));
    let Ok(mount) = started else { return Ok(()) };
    // A working directory elsewhere would keep that file system from being unmounted.
    let _ = std::env::set_current_dir("/");
    if !heard {
        mount.stop();
    }
    mount.serve();
    Ok(())
}

/// Serves a release in the foreground until it is unmounted.
///
/// # Errors
/// It cannot be mounted.
pub fn run_in_foreground(release: Release, settings: ReleaseMountSettings) -> Outcome {
    ReleaseMount::start(release, settings)?.serve();
    Ok(())
}

/// A release's mount that is being served.
struct ReleaseMount {
    session: Arc<Session>,
    mounted: Arc<MountedRelease>,
    watcher: Watcher,
    refresh: Duration,
    /// File that remembers the first reads.
    first_touch: Option<PathBuf>,
    /// Receives when the mount has ended.
    ended: std::sync::mpsc::Receiver<()>,
}

impl ReleaseMount {
    fn start(release: Release, settings: ReleaseMountSettings) -> Outcome<ReleaseMount> {
        limits::raise_open_files();
        let owner =
            Owner { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
        let mounted = MountedRelease::new(Arc::new(release), owner);
        let options = Options {
            source: settings.title,
            allow_other: settings.allow_other,
            read_only: true,
            no_exec: settings.no_exec,
            local_locks: true,
        };
        let watcher = Watcher::start();
        watcher.mounted(&settings.directory);
        let (over, ended) = channel();
        let session = mount_fixed(mounted.clone(), &settings.directory, &options, move || {
            let _ = over.send(());
        })
        .inspect_err(|_| watcher.unmounted(&settings.directory))?;
        let session = Arc::new(session);
        let weak = Arc::downgrade(&session);
        signals::on_end(move || {
            if let Some(session) = weak.upgrade() {
                let _ = session.unmount(UnmountMode::Lazily);
            }
        })?;
        let first_touch = settings.first_touch;
        if let Some(path) = &first_touch {
            fetch_ahead(&mounted, FirstTouches::read(path));
        }
        Ok(ReleaseMount { session, mounted, watcher, refresh: settings.refresh, first_touch, ended })
    }

    /// Stores the list of first reads, followed by those of earlier mounts.
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
        let _ = self.session.unmount(UnmountMode::Lazily);
    }

    /// Looks for a new release, and returns notices. `None` if the mount ended meanwhile: an unmount does not
    /// wait for slow mirrors.
    fn refreshed(&self) -> Option<BTreeSet<String>> {
        let mounted = self.mounted.clone();
        let (done, refreshed) = channel();
        let look = move || drop(done.send(mounted.refresh().into_iter().collect()));
        if std::thread::Builder::new().name("refresh".into()).spawn(look).is_err() {
            // No thread can be started now; the next attempt may succeed.
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

    /// Serves until it is unmounted; looks for new releases periodically.
    fn serve(self) {
        let mut before = BTreeSet::new();
        // It wakes when the release expires; after that, at the usual interval.
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

/// Fetches what was first read in earlier mounts, in the background.
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
    // If there is no thread, everything is fetched when it is read.
    let _ = std::thread::Builder::new().name("first-touch".into()).spawn(work);
}
