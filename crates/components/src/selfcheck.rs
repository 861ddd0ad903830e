//! Checks that the sandbox holds, on the present system: forbidden things are tried from inside, each in a
//! process of its own. `holdfast components --check` runs this, and so do the tests.
//!
//! An attempt ends in one of three ways: the process is stopped at a system call that its profile does not
//! allow; the attempt is made and refused; or it succeeds, which is a breach.
#![allow(unsafe_code)]

use crate::component::Context;
use crate::error::{ComponentError, Result};
use crate::kernel::raw_call;
use crate::plan::{ComponentPlan, Plan, RegionGrant, Restart};
use crate::region::{Access, Regions};
use crate::sandbox::{Permission, Profile, Wall, call_name};
use crate::spawn::Program;
use crate::supervisor::{Event, Supervisor};
use libc::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The built-in component that makes an attempt.
pub(crate) const PROBE: &str = "__probe";
/// Exit codes of an attempt that was refused, and of one that succeeded.
const REFUSED: u8 = 77;
const SUCCEEDED: u8 = 66;
const MEMORY_BYTES_MAX: u64 = 64 << 20;
const WAIT: Duration = Duration::from_secs(120);

/// How an attempt must end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExpectedOutcome {
    /// The process is stopped at a system call.
    Stopped,
    /// The attempt is made, and refused.
    Refused,
    /// The process is ended by the kernel.
    Killed,
}

/// How one attempt ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The name of the attempt.
    pub attempt: String,
    /// How it must end.
    pub expected: ExpectedOutcome,
    /// How it ended, in words.
    pub outcome: String,
    /// Whether it ended as it must.
    pub holds: bool,
}

/// A forbidden action.
enum Action {
    /// A system call with plain numbers as arguments.
    Call(c_long, [usize; 6]),
    /// An action with code of its own. Returns whether it was refused.
    Code(fn(&Context) -> bool),
}

struct Attempt {
    name: &'static str,
    expected: ExpectedOutcome,
    permission: Option<Permission>,
    action: Action,
}

const NOWHERE: usize = AT_FDCWD as isize as usize;
const MINUS_ONE: usize = usize::MAX;
const PASSWD: &std::ffi::CStr = c"/etc/passwd";
const ANONYMOUS: usize = (MAP_PRIVATE | MAP_ANONYMOUS) as usize;

/// A call that must be stopped.
fn stopped(name: &'static str, call: c_long, arguments: &[usize]) -> Attempt {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    Attempt { name, expected: ExpectedOutcome::Stopped, permission: None, action: Action::Call(call, all) }
}

fn refused(name: &'static str, code: fn(&Context) -> bool) -> Attempt {
    Attempt { name, expected: ExpectedOutcome::Refused, permission: None, action: Action::Code(code) }
}

fn through(permission: Permission, attempt: Attempt) -> Attempt {
    Attempt { permission: Some(permission), ..attempt }
}

fn attempts() -> Vec<Attempt> {
    let path = PASSWD.as_ptr() as usize;
    let exec = (PROT_READ | PROT_EXEC) as usize;
    let mut list = vec![
        stopped("open a file", SYS_openat, &[NOWHERE, path, 0]),
        stopped("open a file, the newer way", SYS_openat2, &[NOWHERE, path]),
        stopped("look at a file", SYS_statx, &[NOWHERE, path]),
        stopped("open a file by its handle", SYS_open_by_handle_at, &[NOWHERE, 0, 0]),
        stopped("make a socket", SYS_socket, &[AF_INET as usize, SOCK_STREAM as usize]),
        stopped("make a local socket", SYS_socket, &[AF_UNIX as usize, SOCK_STREAM as usize]),
        stopped("make a packet socket", SYS_socket, &[AF_PACKET as usize, SOCK_RAW as usize]),
        stopped("make a netlink socket", SYS_socket, &[AF_NETLINK as usize, SOCK_RAW as usize]),
        stopped("make a pair of sockets", SYS_socketpair, &[AF_UNIX as usize, SOCK_STREAM as usize]),
        stopped("fork", SYS_clone, &[SIGCHLD as usize]),
        stopped("fork, the newer way", SYS_clone3, &[0, 0]),
        stopped("make a thread without the permission for it", SYS_clone, &[0x003d_0f00]),
        stopped("run a program", SYS_execve, &[path, 0, 0]),
        stopped("run an open program", SYS_execveat, &[0, path, 0, 0, AT_EMPTY_PATH as usize]),
        stopped("trace a process", SYS_ptrace, &[PTRACE_ATTACH as usize, 1]),
        stopped("be traced", SYS_ptrace, &[PTRACE_TRACEME as usize]),
        stopped("read a process's memory", SYS_process_vm_readv, &[1, 0, 0, 0, 0, 0]),
        stopped("write a process's memory", SYS_process_vm_writev, &[1, 0, 0, 0, 0, 0]),
        stopped("kill all processes", SYS_kill, &[MINUS_ONE, SIGKILL as usize]),
        stopped("signal another process", SYS_tgkill, &[2, 2, SIGKILL as usize]),
        stopped("hold another process", SYS_pidfd_open, &[1, 0]),
        stopped("take another process's file", SYS_pidfd_getfd, &[3, 0, 0]),
        stopped("make executable memory", SYS_mmap, &[0, 4096, exec, ANONYMOUS, MINUS_ONE, 0]),
        stopped("make memory executable", SYS_mprotect, &[0, 4096, exec]),
        stopped("make memory executable by a key", SYS_pkey_mprotect, &[0, 4096, exec, MINUS_ONE]),
        stopped(
            "make memory outside the bound",
            SYS_mmap,
            &[0, 4096, PROT_READ as usize, (MAP_SHARED | MAP_ANONYMOUS) as usize, MINUS_ONE, 0],
        ),
        stopped("make a file in memory", SYS_memfd_create, &[path, 0]),
        stopped("make a ring (io_uring)", SYS_io_uring_setup, &[8, 0]),
        stopped("load a program into the kernel (bpf)", SYS_bpf, &[0, 0, 0]),
        stopped("handle page faults (userfaultfd)", SYS_userfaultfd, &[0]),
        stopped("measure (perf)", SYS_perf_event_open, &[0, 0, MINUS_ONE, MINUS_ONE, 0]),
        stopped("use the kernel's keys", SYS_keyctl, &[0, 0]),
        stopped("add a key", SYS_add_key, &[path, path, 0, 0, 0]),
        stopped("mount", SYS_mount, &[path, path, 0, 0, 0]),
        stopped("mount, the newer way", SYS_fsopen, &[path, 0]),
        stopped("copy a mount", SYS_open_tree, &[NOWHERE, path, 1]),
        stopped("change a mount", SYS_mount_setattr, &[3, path, 0, 0, 0]),
        stopped("change the root", SYS_chroot, &[path]),
        stopped("enter a namespace", SYS_setns, &[3, 0]),
        stopped("make a namespace", SYS_unshare, &[CLONE_NEWUSER as usize]),
        stopped("become another user", SYS_setresuid, &[1, 1, 1]),
        stopped("take capabilities", SYS_capset, &[0, 0]),
        stopped("raise a limit", SYS_prlimit64, &[0, RLIMIT_AS as usize, 0, 0]),
        stopped("open its memory", SYS_prctl, &[PR_SET_DUMPABLE as usize, 1]),
        stopped("outlive its supervisor", SYS_prctl, &[PR_SET_PDEATHSIG as usize, 0]),
        stopped("change the filter", SYS_seccomp, &[1, 0, 0]),
        stopped("type into a terminal", SYS_ioctl, &[1, TIOCSTI as usize, path]),
        stopped("answer for its own violations", SYS_ioctl, &[4, 0xc018_2101, path]),
        stopped("change a shared file's flags", SYS_fcntl, &[1, F_SETFL as usize, O_NONBLOCK as usize]),
        stopped("resize a file", SYS_ftruncate, &[4, 0]),
        stopped("set a clock", SYS_clock_settime, &[0, 0]),
        stopped("change its personality", SYS_personality, &[0]),
        stopped("load a module", SYS_init_module, &[0, 0, path]),
        stopped("share memory by System V", SYS_shmget, &[0, 4096, 0o1600]),
        stopped("make a message queue", SYS_mq_open, &[path, 0, 0, 0]),
        stopped("watch files", SYS_inotify_init1, &[0]),
        stopped("a call that no kernel has", 100_000, &[]),
        through(
            Permission::Threads,
            stopped("fork, with the permission for threads", SYS_clone, &[SIGCHLD as usize]),
        ),
        through(
            Permission::Threads,
            stopped("a thread in a new namespace", SYS_clone, &[0x003d_0f00 | CLONE_NEWUSER as usize]),
        ),
        through(Permission::Threads, refused("threads without end", thread_bomb)),
        through(
            Permission::Fuse,
            stopped("open a file, with the permission for FUSE", SYS_openat, &[NOWHERE, path, 0]),
        ),
        through(
            Permission::Device,
            stopped("any ioctl, with the permission for devices", SYS_ioctl, &[0, TIOCSTI as usize, 0]),
        ),
        through(
            Permission::Network,
            stopped("make a socket, with the permission for handed ones", SYS_socket, &[2, 1, 0]),
        ),
        through(
            Permission::Connect,
            stopped("make a raw socket, with the permission for TCP", SYS_socket, &[2, 3, 1]),
        ),
        through(
            Permission::Connect,
            stopped("take a port, with the permission for TCP", SYS_bind, &[3, path, 16]),
        ),
        through(Permission::Connect, stopped("listen, with the permission for TCP", SYS_listen, &[3, 1])),
        refused("memory without end", memory_bomb),
        refused("droppable memory without end", droppable_memory_bomb),
        refused("descriptors without end", file_bomb),
        refused("find descriptors that were not handed to it", no_foreign_files),
        refused("speak over what was not handed to it", no_foreign_sockets),
        refused("find secrets in its environment", no_environment),
        refused("write a read-only region", write_region),
        refused("map a read-only region writable", map_region),
        refused("make a mapping of a read-only region writable", protect_region),
    ];
    #[cfg(target_arch = "x86_64")]
    {
        list.push(stopped("a call of the x32 interface", 0x4000_0000 | SYS_openat, &[NOWHERE, path, 0]));
        let code = |_: &Context| {
            // SAFETY: interrupt 0x80 with number 20 asks the 32-bit interface for the process's number; it
            // changes eax.
            unsafe {
                std::arch::asm!("int 0x80", inout("eax") 20 => _, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
            }
            false
        };
        list.push(Attempt {
            name: "a call of the 32-bit interface",
            expected: ExpectedOutcome::Killed,
            permission: None,
            action: Action::Code(code),
        });
    }
    list
}

/// Descriptions of all attempts.
pub fn attempt_names() -> Vec<&'static str> {
    attempts().iter().map(|attempt| attempt.name).collect()
}

/// The component that makes the attempt named by its configuration.
pub(crate) fn probe(context: Context) -> ExitCode {
    let index = borsh::from_slice::<u32>(&context.configuration).unwrap_or(u32::MAX);
    let Some(attempt) = attempts().into_iter().nth(index as usize) else { return ExitCode::FAILURE };
    let refused = match attempt.action {
        // SAFETY: pointers among the arguments are null or to a constant string, so what a call could read is
        // harmless, and none writes.
        Action::Call(call, arguments) => unsafe { raw_call(call, arguments) }.is_err(),
        Action::Code(code) => code(&context),
    };
    ExitCode::from(if refused { REFUSED } else { SUCCEEDED })
}

fn memory_bomb(_: &Context) -> bool {
    let mut taken: Vec<Vec<u8>> = Vec::new();
    loop {
        let mut some: Vec<u8> = Vec::new();
        if some.try_reserve_exact(1 << 20).is_err() {
            let bytes = (taken.len() as u64) << 20;
            drop(taken);
            return bytes > 0 && bytes <= MEMORY_BYTES_MAX;
        }
        some.resize(1 << 20, 1);
        if taken.len() as u64 > MEMORY_BYTES_MAX >> 19 || taken.try_reserve(1).is_err() {
            return false;
        }
        taken.push(some);
    }
}

/// The C library's getrandom may use such memory, within the bound on all memory. (Older kernels do not have
/// it.)
fn droppable_memory_bomb(_: &Context) -> bool {
    let (some, access) = (1 << 20, PROT_READ | PROT_WRITE);
    let mut bytes = 0;
    // SAFETY: a new mapping, which nothing else uses.
    while unsafe { mmap(std::ptr::null_mut(), some, access, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0) }
        != MAP_FAILED
    {
        bytes += some as u64;
        if bytes > MEMORY_BYTES_MAX {
            return false;
        }
    }
    true
}

fn thread_bomb(_: &Context) -> bool {
    let most = Profile::with_permissions(&[Permission::Threads]).threads_max as usize;
    let mut threads = 0;
    while threads <= 2 * most {
        let forever = || loop {
            std::thread::sleep(Duration::from_secs(3600));
        };
        if std::thread::Builder::new().stack_size(64 << 10).spawn(forever).is_err() {
            return threads > 0 && threads < most;
        }
        threads += 1;
    }
    false
}

/// Whether a number is a descriptor.
fn is_open(number: usize) -> bool {
    // SAFETY: asking for the flags of a descriptor changes nothing.
    unsafe { raw_call(SYS_fcntl, [number, F_GETFD as usize, 0, 0, 0, 0]) }.is_ok()
}

fn file_bomb(_: &Context) -> bool {
    (0..100_000).any(|_| {
        // SAFETY: this makes a descriptor, which nothing uses.
        unsafe { raw_call(SYS_fcntl, [1, F_DUPFD_CLOEXEC as usize, 0, 0, 0, 0]) }.is_err()
    })
}

fn no_foreign_files(_: &Context) -> bool {
    // Input, output, errors, control; and the region that it was handed.
    let open: Vec<_> = (0..70_000).filter(|number| is_open(*number)).collect();
    open.len() == 5 && open[..4] == [0, 1, 2, 3]
}

fn no_foreign_sockets(_: &Context) -> bool {
    let message = *b"hello";
    (4..70_000usize).all(|number| {
        // SAFETY: the message outlives the call, which only reads it.
        unsafe { raw_call(SYS_sendto, [number, message.as_ptr() as usize, message.len(), 0, 0, 0]) }.is_err()
    })
}

fn no_environment(_: &Context) -> bool {
    let names: Vec<_> = std::env::vars_os().map(|(name, _)| name).collect();
    names == ["GLIBC_TUNABLES"]
}

fn write_region(context: &Context) -> bool {
    let Ok(view) = context.ports.region("read-only") else { return false };
    view.read_at(0, &mut [0; 8]).is_ok() && view.write_at(0, b"breached").is_err()
}

fn region_number() -> Option<usize> {
    (4..256).find(|number| is_open(*number))
}

fn map_region(_: &Context) -> bool {
    let Some(number) = region_number() else { return false };
    let (read, both) = (PROT_READ as usize, (PROT_READ | PROT_WRITE) as usize);
    // SAFETY: the kernel chooses the places of mappings that nothing refers to.
    let map =
        |protection| unsafe { raw_call(SYS_mmap, [0, 4096, protection, MAP_SHARED as usize, number, 0]) };
    map(read).is_ok() && map(both).is_err()
}

fn protect_region(_: &Context) -> bool {
    let Some(number) = region_number() else { return false };
    let (read, both) = (PROT_READ as usize, (PROT_READ | PROT_WRITE) as usize);
    // SAFETY: as above; the second call changes the protection of that mapping only.
    unsafe {
        match raw_call(SYS_mmap, [0, 4096, read, MAP_SHARED as usize, number, 0]) {
            Ok(place) => raw_call(SYS_mprotect, [place, 4096, both, 0, 0, 0]).is_err(),
            Err(_) => false,
        }
    }
}

/// The result of a self-check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Checked {
    /// Walls that this system does not have.
    pub lacking: Vec<Wall>,
    /// The verdict on each attempt.
    pub attempts: Vec<Verdict>,
}

/// Makes every attempt.
///
/// # Errors
/// Sandboxes cannot be made here at all, or not with all walls if those are required.
pub fn selfcheck(program: impl Fn() -> Result<Program>) -> Result<Checked> {
    let regions = Regions::create(&program()?, 1 << 20)?;
    let region = Arc::new(regions.region(4096)?);
    region.write_at(0, b"as it was")?;
    let mut lacking = BTreeSet::new();
    let mut verdicts = Vec::new();
    for (index, attempt) in attempts().into_iter().enumerate() {
        let permissions: Vec<Permission> = attempt.permission.into_iter().collect();
        let profile =
            Profile { memory_bytes_max: MEMORY_BYTES_MAX, ..Profile::with_permissions(&permissions) };
        let mut component = ComponentPlan::new(PROBE, profile);
        component.configuration = (index as u32).to_le_bytes().to_vec();
        component.restart = Restart::NEVER;
        let grant = RegionGrant {
            name: "read-only".to_owned(),
            region: Arc::clone(&region),
            access: Access::ReadOnly,
        };
        component.regions.push(grant);
        let plan = Plan { name: "self-check".to_owned(), components: vec![component], channels: Vec::new() };
        let (ended, end) = mpsc::channel();
        let supervisor = Supervisor::start(program()?, plan, move |event| {
            if let Event::Ended { reason, .. } = event {
                let _ = ended.send(reason.to_owned());
            }
        })?;
        lacking.extend(supervisor.listing().lacking());
        let outcome = end.recv_timeout(WAIT).unwrap_or_else(|_| "it did not end".to_owned());
        drop(supervisor);
        let holds = match attempt.expected {
            ExpectedOutcome::Stopped => match attempt.action {
                Action::Call(call, _) => outcome.contains(&format!("{}; it was stopped", call_name(call))),
                Action::Code(_) => false,
            },
            ExpectedOutcome::Refused => outcome == format!("it ended with code {REFUSED}"),
            ExpectedOutcome::Killed => {
                outcome.contains("another architecture") || outcome.contains("SIGSEGV")
            }
        };
        verdicts.push(Verdict {
            attempt: attempt.name.to_owned(),
            expected: attempt.expected,
            outcome,
            holds,
        });
    }
    let mut now = [0; 9];
    region.read_at(0, &mut now)?;
    if &now != b"as it was" {
        return Err(ComponentError::SandboxLeaks("a read-only region was changed"));
    }
    Ok(Checked { lacking: lacking.into_iter().collect(), attempts: verdicts })
}
