//! Memory of a process that serves a disk. While memory is short the kernel writes to disks to get some back, this one
//! too: if the process waits for memory then, both wait for ever. So what it has stays in memory, what it asks for never
//! waits for a disk, no limit of somebody else's memory applies to it, and it is not chosen to be killed.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Pid, Resource, getpid, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// What names of groups begin with.
const GROUP: &str = "holdfast-volume-";

/// What could be had; root may have all of it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// Its memory stays where it is.
    pub locked: bool,
    /// Its requests for memory do not wait for disks.
    pub apart_from_reclaim: bool,
    /// It is not killed when memory is short.
    pub spared: bool,
    /// A control group of its own.
    pub cgroup: Option<PathBuf>,
}

/// Prepares this process, before it has threads: they inherit it.
pub fn prepare(name: &str) -> Memory {
    let may = |what| capabilities(None).is_ok_and(|sets| sets.effective.contains(what));
    // Below a limit, memory asked for later would be refused.
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

/// Leaves whatever group this process was started in, whose limit would be its own.
fn own_cgroup(name: &str) -> Option<PathBuf> {
    // A service has one already.
    if std::env::var_os("INVOCATION_ID").is_some() && std::env::var_os("NOTIFY_SOCKET").is_some() {
        return None;
    }
    let root = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"]
        .into_iter()
        .map(Path::new)
        .find(|root| root.join("cgroup.procs").exists())?;
    // What processes that were killed left behind; a group in use stays.
    for left in fs::read_dir(root).ok()?.flatten() {
        if left.file_name().to_string_lossy().starts_with(GROUP) {
            let _ = fs::remove_dir(left.path());
        }
    }
    let group = root.join(format!("{GROUP}{name}"));
    // Again, should another process just be tidying up like that.
    (0..3).find_map(|_| {
        let _ = fs::create_dir(&group);
        join(&group, getpid()).then(|| group.clone())
    })
}

fn join(group: &Path, process: Pid) -> bool {
    fs::write(group.join("cgroup.procs"), process.as_raw_nonzero().to_string()).is_ok()
}

impl Memory {
    /// Takes the group away, as the process ends.
    pub fn end(&self) {
        if let Some(group) = &self.cgroup
            && let Some(parent) = group.parent()
            && join(parent, getpid())
        {
            let _ = fs::remove_dir(group);
        }
    }
}
