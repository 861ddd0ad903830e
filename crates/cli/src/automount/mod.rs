//! `holdfast automount`: serves a directory in which self-certifying names are mounted when they are used.

pub mod args;

use crate::output::{Format, progress};
use crate::reading::source::span_of;
use args::Automount;
use holdfast_daemon::automount::{AutomountSettings, Plan, run_in_background, run_in_foreground};
use holdfast_daemon::background;
use holdfast_daemon::paths::{Directories, DirectoryList};
use holdfast_failure::Outcome;
use holdfast_fuse::mountpoint;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// `holdfast automount`
pub fn run(arguments: &Automount, directories: &Directories, format: Format) -> Outcome {
    if arguments.background_process {
        return run_in_background(|| plan(arguments, directories));
    }
    // Errors in the settings are reported before anything is started.
    let plan = plan(arguments, directories)?;
    if arguments.foreground {
        return run_in_foreground(plan);
    }
    let bar = progress("mounting");
    let started = start_background(&plan.log);
    bar.finish_and_clear();
    started?;
    let directory = mountpoint::absolute(&arguments.directory)?;
    let done = serde_json::json!({ "directory": directory });
    format.print(&done, |_| format!("names are mounted below {} when they are used", directory.display()))
}

fn plan(arguments: &Automount, directories: &Directories) -> Outcome<Plan> {
    let settings = AutomountSettings {
        directory: mountpoint::prepare(&arguments.directory)?,
        key: arguments.key.clone(),
        certpath: DirectoryList::all(&arguments.certpath),
        revocations: DirectoryList::all(&arguments.revocations),
        beside: arguments.beside.clone(),
        idle: Duration::from_secs(span_of("--idle", &arguments.idle)?),
        mounts_max: usize::from(arguments.mounts_max),
        refresh: arguments.refresh,
        timeout: Duration::from_secs(arguments.timeout),
        cache_mib: arguments.cache_mib,
        allow_other: arguments.allow_other,
        no_exec: arguments.no_exec,
    };
    Plan::of(&settings, directories)
}

/// Starts this command again in the background, and waits until it has mounted.
fn start_background(log: &Path) -> Outcome {
    let own: Vec<OsString> = std::env::args_os().skip(1).collect();
    background::spawn(&own, log, &[]).and_then(|child| background::await_report(child, log, &|_| {}))
}
