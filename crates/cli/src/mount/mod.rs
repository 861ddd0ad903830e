//! `holdfast mount` and `holdfast umount`: determine which process serves a mount, and ask it.
//!
//! One process serves all mounts of one key in one file system, because only one may sign with it. `mount`
//! asks that process if it is running, and otherwise starts it or becomes it. `umount` asks it to publish
//! what is unsaved and to unmount.

pub mod helper;
mod release;

use crate::args::{Mount, Umount, UnmappedChown};
use crate::output::{Format, progress};
use crate::witness::args::MountWitnesses;
use holdfast_components::{Listing, Wall, all_walls_are_required, listings, weaker};
use holdfast_daemon::background::{self, Job};
use holdfast_daemon::control::Client;
use holdfast_daemon::mounts::asking::{self, DaemonState};
use holdfast_daemon::mounts::requests::{self, Status, Unmount};
use holdfast_daemon::mounts::service;
use holdfast_daemon::mounts::settings::{MountSettings, WitnessSettings};
use holdfast_daemon::paths::{Directories, DirectoryList, make_private};
use holdfast_daemon::{automount, cache, revoked};
use holdfast_daemon::{keys, logging};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint::{self, Condition, UnmountMode};
use holdfast_rpc::Address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a command retries while another process starts or stops using the key.
const ANOTHER_WAIT: Duration = Duration::from_secs(15);
/// How long `umount` waits for the process to end after its last mount.
const END_WAIT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// What `mount` and `umount` print as JSON.
#[derive(Serialize, Deserialize)]
pub struct Mounted {
    /// Absolute path of the mount point.
    pub directory: PathBuf,
    /// The address of the file system or release.
    pub address: String,
}

/// `holdfast mount`
pub fn mount(arguments: &Mount, directories: &Directories, format: Format) -> Outcome {
    if crate::image::is_meant(&arguments.url) {
        let (directory, address) = crate::image::mount(arguments)?;
        let done = Mounted { directory, address };
        return format
            .print(&done, |done| format!("{} is mounted on {}", done.address, done.directory.display()));
    }
    if release::is_meant(arguments) {
        if arguments.background_process {
            return release::run_in_background(arguments, directories);
        }
        return match release::establish(arguments, directories)? {
            Some((directory, address)) => {
                let done = Mounted { directory, address };
                format.print(&done, |done| {
                    format!("{} is mounted on {}", done.address, done.directory.display())
                })
            }
            None => Ok(()),
        };
    }
    if arguments.background_process {
        let job = background::receive()?;
        return service::run_in_background(job);
    }
    if let Some((done, state_dir)) = establish(arguments, directories)? {
        format.print(&done, |done| format!("{} is mounted on {}", done.address, done.directory.display()))?;
        note_walls(&state_dir);
        note_if_away(&state_dir);
    }
    Ok(())
}

/// Prints which sandbox restrictions a mount's processes lack.
fn note_walls(state_dir: &Path) {
    let lacking = lacking_walls(state_dir).ok().flatten();
    if let Some(words) = lacking.and_then(|walls| weaker(&walls)) {
        let _ = writeln!(std::io::stderr(), "holdfast: note: {words}");
    }
}

/// The sandbox restrictions that the processes of a key's mounts lack; `None` if the processes are not
/// listed.
fn lacking_walls(state_dir: &Path) -> Outcome<Option<Vec<Wall>>> {
    let Some(process) = Client::connect(state_dir)? else { return Ok(None) };
    let process = process.call(&Status)?.process;
    let listed = listings().map_err(|error| Failure::new(Exit::System, error))?;
    Ok(listed.iter().find(|listing| listing.pid == process).map(Listing::lacking))
}

/// Refuses to use a process that was started with fewer sandbox restrictions than are required now.
fn demand_walls(state_dir: &Path) -> Outcome {
    if !all_walls_are_required() || lacking_walls(state_dir)?.is_some_and(|lacking| lacking.is_empty()) {
        return Ok(());
    }
    let message = "another mount's process serves this key, and its sandboxes may lack walls";
    Err(Failure::new(Exit::System, message).hint(
        "`holdfast components` says which; unmount what it has mounted, or leave out --require-sandbox",
    ))
}

/// Prints a note if the server cannot be reached, so that the mount only has what is cached here.
fn note_if_away(state_dir: &Path) {
    let status = Client::connect(state_dir).ok().flatten().map(|process| process.call(&Status));
    let Some(Ok(status)) = status else { return };
    if status.engine.pointer("/head/is_stale") == Some(&serde_json::Value::Bool(true)) {
        let what = "no head that is new enough is vouched for by witnesses yet; `holdfast status` says more";
        let _ = writeln!(std::io::stderr(), "holdfast: note: {what}");
    }
    let Some(back) = status.write_back else { return };
    if back.away && !back.gathers {
        let what = "no server answers: the files are as they were known here last, and changes are kept";
        let _ = writeln!(std::io::stderr(), "holdfast: note: {what}");
    }
}

/// Mounts; returns the mount and the state directory. `None` if the mount was served in the foreground and
/// has ended.
fn establish(arguments: &Mount, directories: &Directories) -> Outcome<Option<(Mounted, PathBuf)>> {
    let address: Address = arguments.url.parse()?;
    // The mount point is checked before anything slow, so that an unusable one is reported at once.
    let directory = mountpoint::prepare(&arguments.directory)?;
    let Some(key_name) = &arguments.key else {
        return Err(Failure::new(Exit::Usage, "which key this device has is not said")
            .hint("give --key KEY; only releases are mounted without one"));
    };
    let warn = |notice: &str| {
        let _ = writeln!(std::io::stderr(), "holdfast: warning: {notice}");
    };
    let revocations = DirectoryList::all(&arguments.release.demands.revocations);
    revoked::check(&address.file_system, &revocations, directories, &warn)?;
    let key = keys::read(key_name)?;
    let job = Job {
        url: address.to_string(),
        settings: MountSettings {
            directory: directory.clone(),
            allow_other: arguments.allow_other,
            read_only: arguments.read_only,
            no_exec: arguments.no_exec,
            callers: arguments.callers.clone(),
            local_locks: arguments.local_locks,
            write_back_bytes: arguments.write_back.then_some(arguments.write_back_mib << 20),
            gather: !arguments.no_gather && !arguments.no_leases,
            map_user: arguments.map_user.clone(),
            map_group: arguments.map_group.clone(),
            ignore_unmapped: match arguments.unmapped_chown {
                Some(what) => what == UnmappedChown::Ignore,
                None => arguments.map_user.is_empty() && arguments.map_group.is_empty(),
            },
            witnesses: witnesses(&arguments.witnesses)?,
            peers: arguments.peers.settings(),
        },
        state_dir: directories.state_of(&address.file_system, &key.public())?,
        cache_dir: directories.cache_of(&address.file_system)?,
        cache_bytes: cache::size_chosen(directories)?.unwrap_or(arguments.cache_mib << 20),
        timeout: arguments.timeout,
        hard: arguments.hard,
        transport: arguments.transport.into(),
        leases: !arguments.no_leases,
        sends_again: !arguments.no_send_again,
        acknowledge_alarm: arguments.acknowledge_alarm,
        transfer: arguments.transfer,
        key,
    };
    make_private(&job.state_dir)?;
    make_private(&job.cache_dir)?;
    let done = Mounted { directory, address: job.url.clone() };

    let end = Instant::now() + ANOTHER_WAIT;
    loop {
        if let Some(process) = Client::connect(&job.state_dir)? {
            let asked = demand_walls(&job.state_dir);
            match asked.and_then(|()| process.call(&requests::Mount(job.settings.clone()))) {
                Ok(()) => return Ok(Some((done, job.state_dir))),
                // The process is ending with an earlier mount; the next one will serve this mount.
                Err(failure) if is_ending(&failure, &job.state_dir) && Instant::now() < end => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
                Err(failure) => return Err(failure),
            }
        }
        if arguments.foreground {
            logging::to_stderr();
            return service::run_in_foreground(job).map(|()| None);
        }
        let bar = progress("mounting");
        let tell = |why: &str| {
            let text = format!("holdfast: {why}; going on to try for {} s (Ctrl-C ends it)", job.timeout);
            bar.suspend(|| drop(writeln!(std::io::stderr(), "{text}")));
        };
        let started = background::start(&job, &process_arguments(key_name, &job), &tell);
        bar.finish_and_clear();
        match started {
            // Another process is starting or stopping to use this key; the loop tries again.
            Err(failure) if failure.code == Exit::InUse && Instant::now() < end => std::thread::sleep(PAUSE),
            Err(failure) if failure.code == Exit::Unavailable && !arguments.write_back => {
                let way =
                    "what was used here before can be worked with all the same: mount with --write-back";
                return Err(if failure.hint.is_none() { failure.hint(way) } else { failure });
            }
            other => return other.map(|()| Some((done, job.state_dir))),
        }
    }
}

/// Whether a process could not mount because it was ending.
fn is_ending(failure: &Failure, state_dir: &Path) -> bool {
    let is_gone = || Client::connect(state_dir).is_ok_and(|process| process.is_none());
    match failure.code {
        Exit::InUse => failure.message == service::ENDING,
        Exit::Unavailable => is_gone(),
        _ => false,
    }
}

/// The settings for witnesses, if any were given.
fn witnesses(asked: &MountWitnesses) -> Outcome<Option<WitnessSettings>> {
    if asked.witness.is_empty() {
        return Ok(None);
    }
    let settings = WitnessSettings {
        keys: asked.witness.iter().map(ToString::to_string).collect(),
        quorum: asked.witness_quorum,
        stale_after: asked.stale_after,
        when_stale: asked.when_stale.into(),
    };
    settings.policy()?;
    Ok(Some(settings))
}

/// The arguments under which `ps` lists the background process.
fn process_arguments(key: &Path, job: &Job) -> Vec<OsString> {
    let mut shown: Vec<OsString> = vec!["mount".into(), job.url.clone().into()];
    shown.push(job.settings.directory.clone().into());
    shown.push("--key".into());
    shown.push(match keys::in_agent(key) {
        Some(_) => key.into(),
        None => std::path::absolute(key).unwrap_or_else(|_| key.to_owned()).into(),
    });
    shown
}

/// `holdfast umount`
pub fn umount(arguments: &Umount, directories: &Directories, format: Format) -> Outcome {
    let directory = mountpoint::absolute(&arguments.directory)?;
    let mount = mountpoint::mounted_at(&directory)?.filter(mountpoint::Mounted::is_holdfast);
    let Some(mount) = mount else {
        return Err(mountpoint::MountError::NotMounted(directory).into());
    };
    let is_automount = mount.source == automount::SOURCE;
    let done = Mounted { directory: directory.clone(), address: mount.source.clone() };
    let bar = progress("publishing what is unsaved, and unmounting");
    let result = match is_automount {
        true => end_automount(&directory, mount.id, arguments.lazy, directories).map(|()| None),
        false => unmount(&mount, arguments.lazy, directories),
    };
    bar.finish_and_clear();
    let note = result?;
    format.print(&done, |done| format!("{} is unmounted", done.directory.display()))?;
    if let Some(note) = note {
        let _ = writeln!(std::io::stderr(), "holdfast: note: {note}");
    }
    Ok(())
}

/// Unmounts everything that is mounted by name in an automounted directory, and then the directory.
fn end_automount(directory: &Path, id: u64, lazy: bool, directories: &Directories) -> Outcome {
    let is_dead = match mountpoint::condition(directory) {
        Condition::Answers if automount::end(directory, lazy, directories)? => return Ok(()),
        Condition::Stuck if !lazy => return Err(stuck(directory, None)),
        condition => condition == Condition::Dead,
    };
    let manner = if lazy || is_dead { UnmountMode::Lazily } else { UnmountMode::Gently };
    Ok(mountpoint::unmount_only(directory, id, manner)?)
}

/// The failure that the process behind a mount does not answer, so that nothing of it can be saved now.
fn stuck(directory: &Path, process: Option<u32>) -> Failure {
    let (who, way) = match process {
        Some(process) if asking::is_stopped(process) => (
            format!("process {process}, which serves it, is stopped"),
            format!("`kill -CONT {process}` lets it go on; "),
        ),
        Some(process) => (format!("process {process}, which serves it, does not answer"), String::new()),
        None => ("the process that serves it does not answer".to_owned(), String::new()),
    };
    Failure::new(Exit::Unavailable, format!("{}: {who}", directory.display())).hint(format!(
        "{way}`holdfast umount --lazy` takes the mount out of sight at once, and what is unsaved is saved when the process \
         goes on"
    ))
}

fn open_process(process: u32) -> Option<OwnedFd> {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw)?;
    pidfd_open(process, PidfdFlags::empty()).ok()
}

/// Waits until a process has ended after its last mount, for at most [`END_WAIT`]: until then it uses its
/// state and cache, which the user may be about to remove or copy.
fn wait_for_end(process: Option<OwnedFd>, state_dir: &Path) {
    let Some(process) = process else { return };
    if matches!(asking::ask(state_dir), Ok(DaemonState::Says(says)) if !says.mounts.is_empty()) {
        return;
    }
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    let _ = poll(&mut ended, Some(&END_WAIT));
}

/// Unmounts; returns a note for the user.
fn unmount(mount: &mountpoint::Mounted, lazy: bool, directories: &Directories) -> Outcome<Option<String>> {
    let (directory, id) = (mount.directory.as_path(), mount.id);
    // State directories are FSID/KEY, and the source of a mount is an address that contains the file system's
    // id.
    let may_serve = |state_dir: &PathBuf| {
        let id = state_dir.parent().and_then(Path::file_name).and_then(OsStr::to_str);
        id.is_some_and(|id| mount.source.contains(id))
    };
    let condition = mountpoint::condition(directory);
    if condition != Condition::Dead {
        for state_dir in directories.all_states()?.iter().filter(|state_dir| may_serve(state_dir)) {
            match asking::ask(state_dir) {
                // The process may have unsaved changes.
                Ok(DaemonState::Silent(silent)) if condition == Condition::Stuck => {
                    if !lazy {
                        return Err(stuck(directory, Some(silent)));
                    }
                    break;
                }
                Ok(DaemonState::Silent(_) | DaemonState::Nobody) => continue,
                // A process of another version may not be understood, but can still be asked to unmount.
                Ok(DaemonState::Says(_)) | Err(_) => {}
            }
            let Ok(Some(process)) = Client::connect(state_dir) else { continue };
            let served_by = process.process().and_then(open_process);
            let request = Unmount { directory: directory.to_owned(), lazy };
            match process.call(&request) {
                Err(failure) if failure.code == Exit::MountPoint => {}
                // It ended with its last mount before it could reply.
                Err(failure) if failure.code == Exit::Unavailable => {
                    wait_for_end(served_by, state_dir);
                    break;
                }
                other => {
                    if other.is_ok() && !lazy {
                        wait_for_end(served_by, state_dir);
                    }
                    return other;
                }
            }
        }
        if mountpoint::mounted_at(directory)?.is_none_or(|mount| mount.id != id) {
            return Ok(None);
        }
    }
    // The mount's process is dead or belongs to another user. In the latter case it learns of the unmount
    // from the kernel, and publishes what is unsaved by itself.
    if condition == Condition::Stuck && !lazy {
        return Err(stuck(directory, None));
    }
    let manner = if lazy || condition == Condition::Dead { UnmountMode::Lazily } else { UnmountMode::Gently };
    match mountpoint::unmount_only(directory, id, manner) {
        // It has just been unmounted.
        Err(mountpoint::MountError::NotMounted(_)) => Ok(None),
        done => Ok(done.map(|()| None)?),
    }
}
