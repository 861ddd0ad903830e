//! The processes of this user that serve mounts, and how to find one to ask.

use holdfast_daemon::control::{Client, Request};
use holdfast_daemon::mounts::requests::{MountRequest, Status};
use holdfast_daemon::mounts::status::MountDaemonStatus;
use holdfast_daemon::paths::Directories;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint;
use holdfast_rpc::Address;
use std::path::{Path, PathBuf};

/// A process that serves mounts of one file system.
pub struct Process {
    /// The key's state directory.
    pub state_dir: PathBuf,
    /// The address of the file system.
    pub address: String,
}

impl Process {
    /// Sends a request and waits for the reply.
    ///
    /// # Errors
    /// The failure that the daemon reports, or that it has ended.
    pub fn call<R: Request<Any = MountRequest>>(&self, request: &R) -> Outcome<R::Reply> {
        match Client::connect(&self.state_dir)? {
            Some(client) => client.call(request),
            None => Err(Failure::new(Exit::Unavailable, format!("{}: it was just unmounted", self.address))),
        }
    }
}

/// The processes that serve one file system or mount, or all of them; each file system once.
///
/// # Errors
/// Nothing that matches is mounted.
pub fn processes(which: Option<&str>, directories: &Directories) -> Outcome<Vec<Process>> {
    let wanted = which.map(ProcessFilter::of).transpose()?;
    let mut found: Vec<Process> = Vec::new();
    for state_dir in directories.all_states()? {
        let Some(client) = Client::connect(&state_dir)? else { continue };
        let status = match client.call(&Status) {
            Ok(status) => status,
            // It has just ended.
            Err(failure) if failure.code == Exit::Unavailable => continue,
            Err(failure) => return Err(failure),
        };
        let known = found.iter().any(|process| process.address == status.address);
        if !known && wanted.as_ref().is_none_or(|wanted| wanted.is(&status)) {
            found.push(Process { state_dir, address: status.address });
        }
    }
    match which {
        Some(which) if found.is_empty() => {
            Err(Failure::new(Exit::MountPoint, format!("{which}: not mounted by this user"))
                .hint("mount it first; `holdfast status` shows what is mounted"))
        }
        _ => Ok(found),
    }
}

enum ProcessFilter {
    FileSystem(Address),
    Mount(PathBuf),
}

impl ProcessFilter {
    fn of(text: &str) -> Outcome<ProcessFilter> {
        match text.starts_with("hf://") {
            true => Ok(ProcessFilter::FileSystem(text.parse()?)),
            false => Ok(ProcessFilter::Mount(mountpoint::absolute(Path::new(text))?)),
        }
    }

    fn is(&self, status: &MountDaemonStatus) -> bool {
        match self {
            ProcessFilter::FileSystem(wanted) => {
                let served: Result<Address, _> = status.address.parse();
                served.is_ok_and(|served| served.file_system == wanted.file_system)
            }
            ProcessFilter::Mount(wanted) => status.mounts.iter().any(|mount| mount.directory == *wanted),
        }
    }
}
