//! Which system calls a component may make, and with which arguments: a list of what is allowed, compiled to
//! the kernel's filter.
//!
//! A call that is not listed is not carried out. The kernel stops the calling thread and reports the call to
//! the supervisor (`SECCOMP_RET_USER_NOTIF`), which kills the process and logs the reason; it never permits
//! the call. If the supervisor dies at that moment, the call fails, and the component dies with it. So a
//! violation is never silent, as it would be if the kernel just killed the process. Calls of another
//! architecture kill at once.
//!
//! Never allowed, with any permission: executable memory, programs, processes, files by name, new descriptors
//! of the kernel's other machinery, mounts, namespaces, tracing, keys, BPF, io_uring.

use super::{Permission, Profile};
use crate::error::{ComponentError, Result};
use libc::*;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Is, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};
use std::collections::BTreeMap;

/// The action that replaces `SECCOMP_RET_TRAP`: the compiler does not know of listeners.
const NOTIFY: u32 = libc::SECCOMP_RET_USER_NOTIF;
const TRAP: u32 = libc::SECCOMP_RET_TRAP;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;

/// glibc 2.42 and newer use it to separate the stacks of threads, with pages that cannot be accessed.
const MADV_GUARD_INSTALL: c_int = 102;
const MADV_GUARD_REMOVE: c_int = 103;

/// The flags of a thread that glibc makes, and no others: not a process, not a namespace.
const THREAD_FLAGS: u64 = (CLONE_VM
    | CLONE_FS
    | CLONE_FILES
    | CLONE_SIGHAND
    | CLONE_THREAD
    | CLONE_SYSVSEM
    | CLONE_SETTLS
    | CLONE_PARENT_SETTID
    | CLONE_CHILD_CLEARTID) as u64;

/// One allowed way to make a call: conditions that must all hold. The mask picks the bits of the argument.
struct ArgumentCondition {
    argument: u8,
    mask: u64,
    equals: u64,
}

const fn condition(argument: u8, mask: u64, equals: u64) -> ArgumentCondition {
    ArgumentCondition { argument, mask, equals }
}

/// An option of a socket.
fn option(level: c_int, name: c_int) -> Vec<ArgumentCondition> {
    vec![condition(1, LOW, level as u64), condition(2, LOW, name as u64)]
}

const ALL: u64 = u64::MAX;
const LOW: u64 = u32::MAX as u64;

struct Call {
    name: &'static str,
    number: c_long,
    /// Alternative conditions on the arguments; empty: any arguments.
    ways: Vec<Vec<ArgumentCondition>>,
}

/// Calls that every component may make, with any arguments.
const BASE: &[(&str, c_long)] = &[
    ("read", SYS_read),
    ("write", SYS_write),
    ("readv", SYS_readv),
    ("writev", SYS_writev),
    ("pread64", SYS_pread64),
    ("pwrite64", SYS_pwrite64),
    ("preadv", SYS_preadv),
    ("pwritev", SYS_pwritev),
    ("close", SYS_close),
    ("fstat", SYS_fstat),
    ("lseek", SYS_lseek),
    ("ppoll", SYS_ppoll),
    ("sendto", SYS_sendto),
    ("recvfrom", SYS_recvfrom),
    ("sendmsg", SYS_sendmsg),
    ("recvmsg", SYS_recvmsg),
    ("shutdown", SYS_shutdown),
    ("futex", SYS_futex),
    ("munmap", SYS_munmap),
    ("brk", SYS_brk),
    ("clock_gettime", SYS_clock_gettime),
    ("clock_getres", SYS_clock_getres),
    ("clock_nanosleep", SYS_clock_nanosleep),
    ("nanosleep", SYS_nanosleep),
    ("gettimeofday", SYS_gettimeofday),
    ("getrandom", SYS_getrandom),
    ("exit", SYS_exit),
    ("exit_group", SYS_exit_group),
    ("rt_sigreturn", SYS_rt_sigreturn),
    ("rt_sigprocmask", SYS_rt_sigprocmask),
    ("rt_sigaction", SYS_rt_sigaction),
    ("sigaltstack", SYS_sigaltstack),
    ("restart_syscall", SYS_restart_syscall),
    ("sched_yield", SYS_sched_yield),
    ("getpid", SYS_getpid),
    ("gettid", SYS_gettid),
    ("getuid", SYS_getuid),
    ("geteuid", SYS_geteuid),
    ("sched_getaffinity", SYS_sched_getaffinity),
];

const THREADS: &[(&str, c_long)] = &[("set_robust_list", SYS_set_robust_list), ("rseq", SYS_rseq)];
const DEVICE: &[(&str, c_long)] = &[("fsync", SYS_fsync), ("fdatasync", SYS_fdatasync)];
const NETWORK: &[(&str, c_long)] = &[
    ("accept4", SYS_accept4),
    ("getsockopt", SYS_getsockopt),
    ("getpeername", SYS_getpeername),
    ("getsockname", SYS_getsockname),
];
const CONNECT: &[(&str, c_long)] = &[
    ("connect", SYS_connect),
    ("getsockopt", SYS_getsockopt),
    ("getpeername", SYS_getpeername),
    ("getsockname", SYS_getsockname),
];
const SYNC: &[(&str, c_long)] = &[("fdatasync", SYS_fdatasync)];
const REACTOR: &[(&str, c_long)] = &[
    ("epoll_create1", SYS_epoll_create1),
    ("epoll_ctl", SYS_epoll_ctl),
    ("epoll_pwait", SYS_epoll_pwait),
    ("eventfd2", SYS_eventfd2),
];
const DATAGRAMS: &[(&str, c_long)] = &[
    ("recvmmsg", SYS_recvmmsg),
    ("getsockopt", SYS_getsockopt),
    ("getsockname", SYS_getsockname),
    // By these QUIC finds out what the kernel supports: its release, and options of a socket of its own.
    ("uname", SYS_uname),
    ("bind", SYS_bind),
];

fn list(profile: &Profile, pid: u32) -> Vec<Call> {
    let mut calls = Vec::new();
    let mut plain = |list: &[(&'static str, c_long)]| {
        calls.extend(list.iter().map(|&(name, number)| Call { name, number, ways: Vec::new() }));
    };
    plain(BASE);
    for (permission, list) in [
        (Permission::Threads, THREADS),
        (Permission::Device, DEVICE),
        (Permission::Network, NETWORK),
        (Permission::Connect, CONNECT),
        (Permission::Reactor, REACTOR),
        (Permission::Sync, SYNC),
        (Permission::Datagrams, DATAGRAMS),
    ] {
        if profile.has(permission) {
            plain(list);
        }
    }
    let mut some = |name, number, ways: Vec<Vec<ArgumentCondition>>| calls.push(Call { name, number, ways });
    let no_exec = || condition(2, PROT_EXEC as u64, 0);
    // Private memory, or a shared view of a file; shared memory without a file would escape the limit on
    // memory. Droppable memory is private: glibc 2.41 and newer keep the state of getrandom there.
    some(
        "mmap (not executable; shared only of a file)",
        SYS_mmap,
        vec![
            vec![no_exec(), condition(3, MAP_TYPE as u64, MAP_PRIVATE as u64)],
            vec![
                no_exec(),
                condition(3, (MAP_TYPE | MAP_ANONYMOUS) as u64, (MAP_DROPPABLE | MAP_ANONYMOUS) as u64),
            ],
            vec![no_exec(), condition(3, (MAP_TYPE | MAP_ANONYMOUS) as u64, MAP_SHARED as u64)],
        ],
    );
    some("mprotect (not executable)", SYS_mprotect, vec![vec![no_exec()]]);
    some("mremap (no fixed place)", SYS_mremap, vec![vec![condition(3, ALL ^ MREMAP_MAYMOVE as u64, 0)]]);
    some(
        "madvise (need, do not need, free, guard)",
        SYS_madvise,
        [MADV_DONTNEED, MADV_FREE, MADV_WILLNEED, MADV_GUARD_INSTALL, MADV_GUARD_REMOVE]
            .map(|advice| vec![condition(2, LOW, advice as u64)])
            .into(),
    );
    some(
        "fcntl (look at flags and seals, duplicate)",
        SYS_fcntl,
        [F_GETFD, F_GETFL, F_GET_SEALS, F_DUPFD_CLOEXEC]
            .map(|command| vec![condition(1, LOW, command as u64)])
            .into(),
    );
    some("prctl (names a thread)", SYS_prctl, vec![vec![condition(0, LOW, PR_SET_NAME as u64)]]);
    some("tgkill (itself)", SYS_tgkill, vec![vec![condition(0, LOW, u64::from(pid))]]);
    #[cfg(target_arch = "x86_64")]
    some("poll", SYS_poll, Vec::new());
    if profile.has(Permission::Threads) {
        some("clone (a thread)", SYS_clone, vec![vec![condition(0, ALL, THREAD_FLAGS)]]);
    }
    if profile.has(Permission::Device) {
        const BLKDISCARD: u64 = 0x1277;
        const BLKGETSIZE64: u64 = 0x8008_1272;
        const BLKSSZGET: u64 = 0x1268;
        const BLKZEROOUT: u64 = 0x127f;
        some(
            "ioctl (sizes of a device, discard, zero)",
            SYS_ioctl,
            [BLKGETSIZE64, BLKSSZGET, BLKDISCARD, BLKZEROOUT]
                .map(|command| vec![condition(1, LOW, command)])
                .into(),
        );
        some(
            "fallocate (punch, zero; keeps the size)",
            SYS_fallocate,
            [FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE]
                .map(|mode| vec![condition(1, LOW, (mode | FALLOC_FL_KEEP_SIZE) as u64)])
                .into(),
        );
    }
    if profile.has(Permission::Network) || profile.has(Permission::Connect) {
        some(
            "setsockopt (TCP_NODELAY, SO_KEEPALIVE, TCP_USER_TIMEOUT, TCP_CONGESTION)",
            SYS_setsockopt,
            vec![
                option(IPPROTO_TCP, TCP_NODELAY),
                option(SOL_SOCKET, SO_KEEPALIVE),
                option(IPPROTO_TCP, TCP_USER_TIMEOUT),
                option(IPPROTO_TCP, TCP_CONGESTION),
            ],
        );
    }
    if profile.has(Permission::Reactor) {
        some("ioctl (does not block)", SYS_ioctl, vec![vec![condition(1, LOW, FIONBIO)]]);
        #[cfg(target_arch = "x86_64")]
        some("epoll_wait", SYS_epoll_wait, Vec::new());
        let kind = SOCK_STREAM as u64;
        some(
            "socketpair (of itself)",
            SYS_socketpair,
            vec![vec![condition(0, LOW, AF_UNIX as u64), condition(1, 0xf, kind)]],
        );
    }
    if profile.has(Permission::Datagrams) && !profile.has(Permission::Connect) {
        let kind = SOCK_DGRAM as u64;
        let ways =
            [AF_INET, AF_INET6].map(|family| vec![condition(0, LOW, family as u64), condition(1, 0xf, kind)]);
        some("socket (UDP, in an empty network)", SYS_socket, ways.into());
    }
    if profile.has(Permission::Datagrams) {
        let options = [
            (IPPROTO_IP, IP_RECVTOS),
            (IPPROTO_IP, IP_MTU_DISCOVER),
            (IPPROTO_IP, IP_PKTINFO),
            (IPPROTO_IPV6, IPV6_MTU_DISCOVER),
            (IPPROTO_IPV6, IPV6_RECVPKTINFO),
            (IPPROTO_IPV6, IPV6_RECVTCLASS),
            (IPPROTO_IPV6, IPV6_DONTFRAG),
            (SOL_UDP, UDP_GRO),
            (SOL_UDP, UDP_SEGMENT),
        ];
        some(
            "setsockopt (what QUIC needs of UDP)",
            SYS_setsockopt,
            options.map(|(level, name)| option(level, name)).into(),
        );
    }
    if profile.has(Permission::Connect) {
        let kind = SOCK_STREAM as u64;
        let ways =
            [AF_INET, AF_INET6].map(|family| vec![condition(0, LOW, family as u64), condition(1, 0xf, kind)]);
        some("socket (TCP over IPv4 and IPv6)", SYS_socket, ways.into());
    }
    calls
}

/// The system calls that the profile permits, in words, for listings.
pub fn permitted_calls(profile: &Profile) -> Vec<&'static str> {
    let mut names: Vec<_> = list(profile, 1).iter().map(|call| call.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn compiled(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram> {
    let wrong = |error: seccompiler::BackendError| ComponentError::Plan(format!("filter: {error}"));
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(wrong)?;
    let filter = SeccompFilter::new(rules, otherwise, matched, architecture).map_err(wrong)?;
    filter.try_into().map_err(wrong)
}

/// The filter of a profile, for the process with this number (in its own namespace).
pub(crate) fn filter(profile: &Profile, pid: u32) -> Result<BpfProgram> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in list(profile, pid) {
        let ways = rules.entry(call.number).or_default();
        for way in call.ways {
            let conditions: std::result::Result<Vec<_>, _> = way
                .iter()
                .map(|when| {
                    SeccompCondition::new(when.argument, Width::Qword, Is::MaskedEq(when.mask), when.equals)
                })
                .collect();
            let rule = conditions.and_then(SeccompRule::new);
            ways.push(rule.map_err(|error| ComponentError::Plan(format!("filter: {error}")))?);
        }
    }
    let mut program = compiled(rules, SeccompAction::Trap, SeccompAction::Allow)?;
    for instruction in &mut program {
        if instruction.code == RETURN && instruction.k == TRAP {
            instruction.k = NOTIFY;
        }
    }
    Ok(program)
}

/// A filter that runs before the other one and says that `clone3` does not exist. So glibc makes threads with
/// `clone`, whose flags a filter can check. Without the permission for threads, `clone3` is a violation like
/// any other.
pub(crate) fn threads_filter(profile: &Profile) -> Result<Option<BpfProgram>> {
    if !profile.has(Permission::Threads) {
        return Ok(None);
    }
    let rules = BTreeMap::from([(SYS_clone3, Vec::new())]);
    compiled(rules, SeccompAction::Allow, SeccompAction::Errno(ENOSYS as u32)).map(Some)
}

/// The name of a system call, for reports: those that an attack or a mistake is likely to make.
pub fn call_name(number: i64) -> String {
    const NAMES: &[(c_long, &str)] = &[
        (SYS_openat, "openat"),
        (SYS_openat2, "openat2"),
        (SYS_newfstatat, "newfstatat"),
        (SYS_statx, "statx"),
        (SYS_readlinkat, "readlinkat"),
        (SYS_socket, "socket"),
        (SYS_socketpair, "socketpair"),
        (SYS_connect, "connect"),
        (SYS_bind, "bind"),
        (SYS_listen, "listen"),
        (SYS_clone, "clone"),
        (SYS_clone3, "clone3"),
        (SYS_execve, "execve"),
        (SYS_execveat, "execveat"),
        (SYS_kill, "kill"),
        (SYS_tgkill, "tgkill"),
        (SYS_ptrace, "ptrace"),
        (SYS_process_vm_readv, "process_vm_readv"),
        (SYS_process_vm_writev, "process_vm_writev"),
        (SYS_pidfd_open, "pidfd_open"),
        (SYS_pidfd_getfd, "pidfd_getfd"),
        (SYS_mmap, "mmap"),
        (SYS_mprotect, "mprotect"),
        (SYS_pkey_mprotect, "pkey_mprotect"),
        (SYS_mremap, "mremap"),
        (SYS_madvise, "madvise"),
        (SYS_memfd_create, "memfd_create"),
        (SYS_fsync, "fsync"),
        (SYS_ftruncate, "ftruncate"),
        (SYS_fallocate, "fallocate"),
        (SYS_ioctl, "ioctl"),
        (SYS_fcntl, "fcntl"),
        (SYS_prctl, "prctl"),
        (SYS_io_uring_setup, "io_uring_setup"),
        (SYS_bpf, "bpf"),
        (SYS_userfaultfd, "userfaultfd"),
        (SYS_perf_event_open, "perf_event_open"),
        (SYS_keyctl, "keyctl"),
        (SYS_add_key, "add_key"),
        (SYS_request_key, "request_key"),
        (SYS_mount, "mount"),
        (SYS_open_tree, "open_tree"),
        (SYS_move_mount, "move_mount"),
        (SYS_fsopen, "fsopen"),
        (SYS_mount_setattr, "mount_setattr"),
        (SYS_pivot_root, "pivot_root"),
        (SYS_chroot, "chroot"),
        (SYS_setns, "setns"),
        (SYS_unshare, "unshare"),
        (SYS_seccomp, "seccomp"),
        (SYS_setresuid, "setresuid"),
        (SYS_capset, "capset"),
        (SYS_prlimit64, "prlimit64"),
        (SYS_init_module, "init_module"),
        (SYS_name_to_handle_at, "name_to_handle_at"),
        (SYS_open_by_handle_at, "open_by_handle_at"),
        (SYS_shmget, "shmget"),
        (SYS_mq_open, "mq_open"),
        (SYS_inotify_init1, "inotify_init1"),
        (SYS_fanotify_init, "fanotify_init"),
        (SYS_eventfd2, "eventfd2"),
        (SYS_pipe2, "pipe2"),
        (SYS_personality, "personality"),
        (SYS_process_madvise, "process_madvise"),
        (SYS_remap_file_pages, "remap_file_pages"),
        (SYS_setrlimit, "setrlimit"),
        (SYS_dup3, "dup3"),
    ];
    match NAMES.iter().find(|(known, _)| *known == number) {
        Some((_, name)) => format!("{name} ({number})"),
        None => format!("number {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every profile compiles; no filter returns a trap, which a component could handle; the kernel accepts
    /// programs of at most 4096 instructions.
    #[test]
    fn profiles_compile() {
        let permissions = Permission::ALL
            .map(|permission| vec![permission])
            .into_iter()
            .chain([vec![], Permission::ALL.to_vec()]);
        for permissions in permissions {
            let profile = Profile::with_permissions(&permissions);
            let program = filter(&profile, 1).expect("it compiles");
            assert!(program.len() < 4096);
            assert!(program.iter().any(|instruction| instruction.k == NOTIFY));
            assert!(!program.iter().any(|instruction| instruction.code == RETURN && instruction.k == TRAP));
            assert_eq!(
                threads_filter(&profile).expect("it compiles").is_some(),
                profile.has(Permission::Threads)
            );
        }
    }

    /// Calls that no permission allows are in no list.
    #[test]
    fn never_allowed() {
        let numbers: Vec<_> =
            list(&Profile::with_permissions(&Permission::ALL), 1).iter().map(|call| call.number).collect();
        for never in [
            SYS_openat,
            SYS_execve,
            SYS_execveat,
            SYS_clone3,
            SYS_ptrace,
            SYS_kill,
            SYS_mount,
            SYS_unshare,
            SYS_setns,
            SYS_bpf,
            SYS_io_uring_setup,
            SYS_userfaultfd,
            SYS_perf_event_open,
            SYS_keyctl,
            SYS_seccomp,
            SYS_ftruncate,
            SYS_memfd_create,
            SYS_process_vm_readv,
            SYS_pidfd_getfd,
            SYS_prlimit64,
            SYS_capset,
            SYS_setresuid,
            SYS_pkey_mprotect,
            SYS_remap_file_pages,
        ] {
            assert!(!numbers.contains(&never), "{}", call_name(never));
        }
    }

    /// A permission adds to the base and takes nothing away.
    #[test]
    fn permissions_add() {
        let base = permitted_calls(&Profile::default());
        for permission in Permission::ALL {
            let with = permitted_calls(&Profile::with_permissions(&[permission]));
            assert!(base.iter().all(|call| with.contains(call)), "{permission:?}");
        }
        assert!(!base.iter().any(|call| call.starts_with("clone ") || call.starts_with("ioctl")));
    }
}
