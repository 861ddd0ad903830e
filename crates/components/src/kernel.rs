//! System calls that no safe library offers: starting a child in new namespaces, a filter with a listener,
//! unsharing mounts. All unsafe code for processes is here; that for memory is in [`crate::memory`].
//!
//! The child of [`start`] is a copy of a process that may have threads. So between its birth and `execveat`
//! it only makes raw system calls on data prepared before: no allocation, no lock, no library with state.
#![allow(unsafe_code)]

use seccompiler::sock_filter;
use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The descriptor of a component's control channel.
pub(crate) const CONTROL: RawFd = 3;
/// The descriptor of the program's file while the child executes it.
const PROGRAM: RawFd = 4;

/// libc's constant of this name overflows its type.
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;

/// Everything the child needs, made ready before it is born. Descriptors must be above [`PROGRAM`].
pub(crate) struct Recipe<'a> {
    /// `CLONE_NEW*` flags.
    pub namespaces: i32,
    /// The file to execute.
    pub program: BorrowedFd<'a>,
    /// Its arguments.
    pub arguments: &'a [CString],
    /// Its whole environment.
    pub environment: &'a [CString],
    /// `/dev/null`, for input.
    pub null: BorrowedFd<'a>,
    /// The destination of standard output and standard error.
    pub errors: BorrowedFd<'a>,
    /// The control channel.
    pub control: BorrowedFd<'a>,
    /// A byte arrives here when the child may take on its identity.
    pub go: BorrowedFd<'a>,
    /// The writing end of the pipe, which the child inherits and closes.
    pub go_writer: BorrowedFd<'a>,
    /// A failure is written here: a [`Step`] and an error number.
    pub report: BorrowedFd<'a>,
    /// The user and group to become.
    pub identity: u32,
    /// Whether the process's number is added to it.
    pub add_pid: bool,
    /// Whether supplementary groups can be, and so must be, given up.
    pub drop_groups: bool,
}

/// The steps of the child, by the number that it reports when one fails.
pub(crate) const STEPS: [&str; 6] = [
    "waiting for its identity",
    "giving up supplementary groups",
    "taking on its group",
    "taking on its user",
    "arranging its descriptors",
    "executing the program (its file must be executable by everybody, mode 0755)",
];

/// Starts a child in new namespaces. It waits for a byte on `go` before it takes on its identity and executes
/// the program. Returns its process id and a pidfd.
pub(crate) fn start(recipe: &Recipe) -> io::Result<(i32, OwnedFd)> {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let arguments = pointers(recipe.arguments);
    let environment = pointers(recipe.environment);
    let mut pidfd: RawFd = -1;
    // SAFETY: all fields of clone_args are integers, for which zero is a value.
    let mut clone: libc::clone_args = unsafe { zeroed() };
    clone.flags = (libc::CLONE_PIDFD as u64) | CLONE_CLEAR_SIGHAND | recipe.namespaces as u64;
    clone.pidfd = (&raw mut pidfd) as u64;
    clone.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: `clone` is a valid clone_args of the size given, and `pidfd` outlives the call. Without
    // CLONE_VM the child has its own copy of memory, so it cannot disturb this process.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const clone, size_of::<libc::clone_args>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: this is the child; the vectors of pointers end with null and their strings live in its
        // copy.
        0 => unsafe { become_program(recipe, &arguments, &environment) },
        // SAFETY: the kernel has just made this descriptor for us.
        pid => Ok((pid as i32, unsafe { OwnedFd::from_raw_fd(pidfd) })),
    }
}

/// Runs in the child, which may only make raw system calls.
///
/// # Safety
/// Only for a fresh child process, with vectors that end with null.
unsafe fn become_program(
    recipe: &Recipe,
    arguments: &[*const libc::c_char],
    environment: &[*const libc::c_char],
) -> ! {
    let fail = |step: u8| -> ! {
        // SAFETY: `message` outlives the call, and `_exit` runs no handlers of the parent's.
        unsafe {
            let message = [step, *libc::__errno_location() as u8];
            libc::write(recipe.report.as_raw_fd(), message.as_ptr().cast(), message.len());
            libc::_exit(127)
        }
    };
    let nobody: *const libc::gid_t = ptr::null();
    let signals = [0u8; 8];
    let mut go = 0u8;
    // SAFETY: every pointer is to a local or to memory prepared before the birth, and every call is a raw
    // one: glibc's set*id would talk to threads that this copy does not have.
    unsafe {
        // Otherwise, if the parent is killed now, the child would wait for ever: its own copy of the writing
        // end keeps the pipe open.
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        libc::close(recipe.go_writer.as_raw_fd());
        if libc::read(recipe.go.as_raw_fd(), (&raw mut go).cast(), 1) != 1 {
            fail(0);
        }
        let added = if recipe.add_pid { libc::syscall(libc::SYS_getpid) as u32 } else { 0 };
        let id = recipe.identity + added;
        if recipe.drop_groups && libc::syscall(libc::SYS_setgroups, 0usize, nobody) != 0 {
            fail(1);
        }
        if libc::syscall(libc::SYS_setresgid, id, id, id) != 0 {
            fail(2);
        }
        if libc::syscall(libc::SYS_setresuid, id, id, id) != 0 {
            fail(3);
        }
        // The program's descriptor closes itself at the end of execveat, and so does the report's.
        let report = recipe.report.as_raw_fd();
        let arranged = libc::dup2(recipe.null.as_raw_fd(), 0) == 0
            && libc::dup2(recipe.errors.as_raw_fd(), 1) == 1
            && libc::dup2(recipe.errors.as_raw_fd(), 2) == 2
            && libc::dup2(recipe.control.as_raw_fd(), CONTROL) == CONTROL
            && libc::dup3(recipe.program.as_raw_fd(), PROGRAM, libc::O_CLOEXEC) == PROGRAM
            && libc::syscall(libc::SYS_close_range, PROGRAM as u32 + 1, report as u32 - 1, 0u32) == 0
            && libc::syscall(libc::SYS_close_range, report as u32 + 1, u32::MAX, 0u32) == 0
            && libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_SETMASK,
                signals.as_ptr(),
                ptr::null::<u8>(),
                signals.len(),
            ) == 0;
        if !arranged {
            fail(4);
        }
        libc::syscall(
            libc::SYS_execveat,
            PROGRAM,
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
        fail(5)
    }
}

/// Makes a mount read-only, together with every file opened through it.
pub(crate) fn make_mount_read_only(mount: BorrowedFd) -> io::Result<()> {
    // SAFETY: all fields of mount_attr are integers, for which zero is a value.
    let mut attributes: libc::mount_attr = unsafe { zeroed() };
    attributes.attr_set = libc::MOUNT_ATTR_RDONLY;
    // SAFETY: the path is a string that ends with nul, and the structure outlives the call and has the size
    // given.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Installs a filter of system calls in this thread, permanently. Calls that it decides by
/// `SECCOMP_RET_USER_NOTIF` are reported to the returned descriptor.
pub(crate) fn install_filter(program: &[sock_filter]) -> io::Result<OwnedFd> {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: `filter` describes `program`, whose elements have the kernel's layout; the kernel copies and
    // does not write them.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const filter,
        )
    };
    match listener {
        // SAFETY: the kernel has just made this descriptor for us.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(listener as RawFd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The number of the system call that a listener reports; `None` if its process died meanwhile.
pub(crate) fn next_violation(listener: BorrowedFd) -> io::Result<Option<i32>> {
    // SAFETY: all fields are integers, and the kernel demands that they be zero.
    let mut notice: libc::seccomp_notif = unsafe { zeroed() };
    // SAFETY: the command takes a pointer to this structure, which outlives the call.
    let got =
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, &raw mut notice) };
    if got == 0 {
        return Ok(Some(notice.data.nr));
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::NotFound => Ok(None),
        error => Err(error),
    }
}

/// Takes ownership of a descriptor that the parent process left at a fixed number.
///
/// # Errors
/// No descriptor has this number.
pub(crate) fn inherited(place: RawFd) -> io::Result<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // SAFETY: `fcntl` takes any number and says whether it is a descriptor.
    if unsafe { libc::fcntl(place, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and it is taken once, by the entrance of a component, which runs before anything
    // else is opened.
    Ok(unsafe { OwnedFd::from_raw_fd(place) })
}

/// A system call by its number, with plain numbers. What a component does in order to see itself stopped.
///
/// # Safety
/// Whatever the call does to memory must be harmless.
pub(crate) unsafe fn raw_call(number: i64, arguments: [usize; 6]) -> io::Result<usize> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's promise.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value as usize),
    }
}

/// Gives this process, which has one thread, a mount namespace of its own.
pub(crate) fn unshare_mounts() -> rustix::io::Result<()> {
    // SAFETY: it takes a number and touches no memory; no other thread shares what it changes.
    match unsafe { libc::unshare(libc::CLONE_NEWNS) } {
        0 => Ok(()),
        _ => Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
            .unwrap_or(rustix::io::Errno::PERM)),
    }
}
