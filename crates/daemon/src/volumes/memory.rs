//! Protects the memory of a process that serves a disk. When memory is short, the kernel writes to disks in
//! order to free some, also to this one; if the process then waited for memory, both would wait for ever. So
//! its memory stays resident, its allocations never wait for a disk, no memory limit of another group applies
//! to it, and it is not chosen to be killed.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Pid, Resource, getpid, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// The prefix of the control groups' names.
const GROUP: &str = "holdfast-volume-";

/// Which protections could be set up; root may have all of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Whether its memory is locked.
    pub locked: bool,
    /// Whether its allocations do not wait for disks.
    pub apart_from_reclaim: bool,
    /// Whether it is not killed when memory is short.
    pub spared: bool,
    /// The control group of its own, if it has one.
    pub cgroup: Option<PathBuf>,
}

/// Prepares this process. To be called before it has threads, which inherit the settings.
pub fn prepare(name: &str) -> Memory {
    let may = |what| capabilities(None).is_ok_and(|sets| sets.effective.contains(what));
    // With a limit on locked memory, later allocations would fail.
    let unlimited = getrlimit(Resource::Memlock).current.is_none();
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    let memory = Memory {
        locked: (unlimited || may(CapabilitySet::IPC_LOCK)) && mlockall(flags).is_ok(),
        apart_from_reclaim: rustix::process::configure_io_flusher_behavior(true).is_ok(),
        spared: fs::write("/proc/self/oom_score_adj", "-1000").is_ok(),
        cgroup: own_cgroup(name),
    };
    if !(memory.locked && memory.apart_from_reclaim) {
        tracing::warn!(
            locked = memory.locked,
            apart_from_reclaim = memory.apart_from_reclaim,
            "this process may not guard itself against a shortage of memory: programs that fill the volume then may hang \
             until the watchdog ends their requests"
        );
    }
    memory
}

/// Moves this process out of the control group in which it was started, whose limit would apply to it.
fn own_cgroup(name: &str) -> Option<PathBuf> {
    // A service has a group of its own already.
    if std::env::var_os("INVOCATION_ID").is_some() && std::env::var_os("NOTIFY_SOCKET").is_some() {
        return None;
    }
    let root = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"]
        .into_iter()
        .map(Path::new)
        .find(|root| root.join("cgroup.procs").exists())?;
    // Removes groups that killed processes left behind; a group in use cannot be removed.
    for left in fs::read_dir(root).ok()?.flatten() {
        if left.file_name().to_string_lossy().starts_with(GROUP) {
            let _ = fs::remove_dir(left.path());
        }
    }
    let group = root.join(format!("{GROUP}{name}"));
    // Repeated in case another process removes the empty group at this moment.
    (0..3).find_map(|_| {
        let _ = fs::create_dir(&group);
        join(&group, getpid()).then(|| group.clone())
    })
}

fn join(group: &Path, process: Pid) -> bool {
    fs::write(group.join("cgroup.procs"), process.as_raw_nonzero().to_string()).is_ok()
}

impl Memory {
    /// Removes the group when the process ends.
    pub fn end(&self) {
        if let Some(group) = &self.cgroup
            && let Some(parent) = group.parent()
            && join(parent, getpid())
        {
            let _ = fs::remove_dir(group);
        }
    }
}
