//! `holdfast mount` of a release: a process of its own serves it, which needs no key.

use crate::args::Mount;
use crate::output::progress;
use crate::reading::args::ReleaseSource;
use crate::reading::source::{Named, SCHEME};
use holdfast_daemon::background;
use holdfast_daemon::logging;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::releases::{self, ReleaseMountSettings};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint;
use holdfast_release::open::Release;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Whether the arguments name a release, rather than a writable file system.
pub fn is_meant(arguments: &Mount) -> bool {
    let url = &arguments.url;
    arguments.release.demands.id.is_some()
        || [SCHEME, "http://", "https://", "s3://", "file://"].iter().any(|scheme| url.starts_with(scheme))
        || Path::new(url).is_dir()
}

/// Mounts a release. Returns the mount point and its name; `None` if it was served in the foreground and has
/// ended.
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
    if arguments.foreground {
        logging::to_stderr();
        let tell = |text: &str| drop(writeln!(std::io::stderr(), "holdfast: {text}"));
        let (release, settings) = open(arguments, &source, directory, directories, &tell)?;
        releases::run_in_foreground(release, settings)?;
        return Ok(None);
    }
    let bar = progress("mounting");
    let log = log_path(directories, &named.id.to_string())?;
    let own: Vec<_> = std::env::args_os().skip(1).collect();
    let tell = |text: &str| bar.suspend(|| drop(writeln!(std::io::stderr(), "holdfast: {text}")));
    let started = background::spawn(&own, &log, &background::KEEP)
        .and_then(|child| background::await_report(child, &log, &tell));
    bar.finish_and_clear();
    started.map(|()| Some((directory, title(&named))))
}

/// The background process.
pub fn run_in_background(arguments: &Mount, directories: &Directories) -> Outcome {
    let source = source(arguments);
    // The source was checked before this process was started.
    let log = log_path(directories, &source.named()?.id.to_string())?;
    releases::run_in_background(&log, |tell| {
        let directory = mountpoint::prepare(&arguments.directory)?;
        open(arguments, &source, directory, directories, tell)
    })
}

/// Opens the release and prepares the settings of its mount. `tell` is called with reasons for delays, and
/// warnings.
fn open(
    arguments: &Mount,
    source: &ReleaseSource,
    directory: PathBuf,
    directories: &Directories,
    tell: &dyn Fn(&str),
) -> Outcome<(Release, ReleaseMountSettings)> {
    let named = source.named()?;
    let release = source.open_telling(directories, tell)?;
    let first_touch = match arguments.release.no_first_touch {
        true => None,
        false => {
            Some(directories.cache_base()?.join("releases").join(named.id.to_string()).join("first-touch"))
        }
    };
    let settings = ReleaseMountSettings {
        directory,
        title: title(&named),
        allow_other: arguments.allow_other,
        no_exec: arguments.no_exec,
        refresh: Duration::from_secs(arguments.release.refresh),
        first_touch,
    };
    Ok((release, settings))
}

fn title(named: &Named) -> String {
    format!("{SCHEME}{}@{}", named.id, named.mirrors[0])
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
    holdfast_daemon::paths::make_private(&folder)?;
    Ok(folder.join("log"))
}
