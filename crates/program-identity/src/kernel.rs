//! System calls that need `unsafe`: fanotify, file handles, a thread's own user, tracing, and starting a
//! program by descriptor.
//!
//! The standard library and rustix have none of them. Each function checks its arguments and returns owned
//! descriptors, so that nothing unsafe leaves this module.
#![allow(unsafe_code)]

use rustix::fs::OFlags;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Length of fanotify's metadata. A pidfd record follows it.
const METADATA_BYTES: usize = 24;
/// `FAN_EVENT_INFO_TYPE_PIDFD`.
const PIDFD_RECORD: u8 = 4;
/// How often to check whether a process has become a program.
const TRACE_LOOK: Duration = Duration::from_millis(1);
/// Type of FUSE's file handles: number (high, low) and generation.
const FUSE_HANDLE: i32 = 0x81;

/// A group of marks whose events wait for an answer.
pub struct Group(OwnedFd);

/// An open that the kernel delays until it is answered.
pub struct Event {
    /// The file, opened for this process; its number names the event.
    pub file: OwnedFd,
    /// The process, if the kernel gave a pidfd.
    pub pidfd: Option<OwnedFd>,
    /// The number of the process that opens.
    pub process: u32,
}

impl Group {
    /// A new group. Needs CAP_SYS_ADMIN.
    pub fn new() -> io::Result<Group> {
        let flags = libc::FAN_CLASS_CONTENT | libc::FAN_REPORT_PIDFD | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        let files = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_LARGEFILE) as u32;
        // SAFETY: fanotify_init takes two numbers and returns a new descriptor or -1.
        let group = unsafe { libc::fanotify_init(flags, files) };
        // SAFETY: `owned` takes only descriptors that nobody else has; this one is new.
        unsafe { owned(group) }.map(Group)
    }

    /// Delays opens of a file, or of files in a directory. The mark keeps the inode in memory: if the inode
    /// could be dropped with the mark, an open could pass without an event.
    pub fn mark(&self, file: &OwnedFd, children: bool) -> io::Result<()> {
        let mask = libc::FAN_OPEN_PERM | if children { libc::FAN_EVENT_ON_CHILD } else { 0 };
        // A path, since the call takes no O_PATH descriptor.
        let path = CString::new(format!("/proc/thread-self/fd/{}", file.as_raw_fd()))?;
        // SAFETY: the group is open, and the path is a string that outlives the call.
        let done = unsafe {
            libc::fanotify_mark(self.0.as_raw_fd(), libc::FAN_MARK_ADD, mask, libc::AT_FDCWD, path.as_ptr())
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits for events until `wait_ms` have passed.
    pub fn wait(&self, wait_ms: i32) -> io::Result<()> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let wait =
            Timespec { tv_sec: i64::from(wait_ms / 1000), tv_nsec: i64::from(wait_ms % 1000) * 1_000_000 };
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The events that are available; an overflow of the kernel's queue is ignored (the guard refuses opens
    /// without a ticket).
    pub fn read(&self) -> io::Result<Vec<Event>> {
        let mut bytes = vec![0u8; 4096];
        let length = match rustix::io::read(&self.0, bytes.as_mut_slice()) {
            Ok(length) => length,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let mut events = Vec::new();
        let mut rest = &bytes[..length];
        while let Some(record) = Record::first(rest) {
            rest = &rest[record.length..];
            // SAFETY: the kernel made these descriptors for whoever reads the event, once; nobody else has them.
            let (file, pidfd) = unsafe { (owned(record.file), record.pidfd.map(|fd| owned(fd))) };
            if let Ok(file) = file {
                events.push(Event { file, pidfd: pidfd.and_then(Result::ok), process: record.process });
            }
        }
        Ok(events)
    }

    /// Answers the event of this file. [`io::ErrorKind::NotFound`]: the opener is gone.
    pub fn answer(&self, file: &OwnedFd, goes_on: bool) -> io::Result<()> {
        let response = if goes_on { libc::FAN_ALLOW } else { libc::FAN_DENY };
        let mut bytes = [0u8; 8];
        bytes[..4].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
        bytes[4..].copy_from_slice(&response.to_ne_bytes());
        rustix::io::write(&self.0, &bytes)?;
        Ok(())
    }
}

/// Wraps a new descriptor, or returns the error that -1 stands for.
///
/// # Safety
/// Nobody else may own it.
unsafe fn owned(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, by the kernel's word, and ours alone, by the caller's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The header of one event in the bytes that were read.
struct Record {
    length: usize,
    file: RawFd,
    process: u32,
    pidfd: Option<RawFd>,
}

impl Record {
    /// The first record, if it is complete.
    fn first(bytes: &[u8]) -> Option<Record> {
        let number = |at: usize| Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let length = usize::try_from(number(0)?).ok()?;
        if length < METADATA_BYTES || length > bytes.len() {
            return None;
        }
        let process = u32::try_from(number(20)?).unwrap_or(0);
        // Behind the metadata, whose length it states: type, padding, length (2), descriptor.
        let own = usize::from(u16::from_ne_bytes(bytes.get(6..8)?.try_into().ok()?));
        let has_pidfd = own + 8 <= length && bytes.get(own) == Some(&PIDFD_RECORD);
        let pidfd = if has_pidfd { number(own + 4).filter(|fd| *fd >= 0) } else { None };
        Some(Record { length, file: number(16)?, process, pidfd })
    }
}

/// An inode of a FUSE mount by its number, if the kernel has it in memory. Sends no request to the mount.
/// Needs CAP_DAC_READ_SEARCH.
pub fn inode_of(mount: &OwnedFd, inode: u64) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        words: [u32; 3],
    }
    let mut handle = Handle { bytes: 12, kind: FUSE_HANDLE, words: [(inode >> 32) as u32, inode as u32, 0] };
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: `Handle` has the layout of `struct file_handle` with 12 bytes behind it, as its first field says, and
    // outlives the call; the result is a new descriptor or -1.
    unsafe {
        let made = libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), flags);
        owned(made)
    }
}

/// Makes this thread, and no other, act as a user, with only the rights that marking needs: a FUSE mount
/// admits only its user, not even root.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    const DAC_OVERRIDE_AND_SEARCH: u32 = 1 << 1 | 1 << 2;
    let header = [VERSION_3, 0];
    let sets = [DAC_OVERRIDE_AND_SEARCH, DAC_OVERRIDE_AND_SEARCH, 0, 0, 0, 0];
    let none = std::ptr::null::<u32>();
    let checked = |result: i64| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: numbers only; the raw calls, unlike the C library's, change the calling thread alone.
    unsafe {
        checked(libc::syscall(libc::SYS_prctl, libc::PR_SET_KEEPCAPS, 1, 0, 0, 0))?;
        checked(libc::syscall(libc::SYS_setgroups, 0, none))?;
        checked(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        checked(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    // SAFETY: header and sets have the layout of version 3 of capset: two numbers, and two sets of three.
    checked(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) })
}

/// The number of the calling thread.
pub fn thread() -> u32 {
    u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0)
}

/// A file in memory, without a name.
pub fn memory_file(name: &str) -> io::Result<OwnedFd> {
    const EXEC: u32 = 0x10;
    let name = CString::new(name)?;
    // SAFETY: the name is a string that outlives the call; the result is a new descriptor or -1.
    let make = |flags| unsafe { owned(libc::memfd_create(name.as_ptr(), flags)) };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Kernels before 6.3 do not have the flag that marks a file as executable.
    make(flags | EXEC).or_else(|_| make(flags))
}

/// Traces a process, by this thread, until [`end_trace`] or until this thread ends. Needs CAP_SYS_PTRACE.
pub fn trace(process: u32) -> io::Result<()> {
    // SAFETY: PTRACE_SEIZE takes a number, nothing, and options; it reads and writes no memory of ours.
    let done = unsafe {
        libc::ptrace(libc::PTRACE_SEIZE, process as libc::pid_t, 0usize, libc::PTRACE_O_TRACEEXEC as usize)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits until a process that this thread traces has become another program, and is stopped at its beginning.
pub fn wait_for_program(process: u32, deadline: Instant) -> io::Result<()> {
    let pid = process as libc::pid_t;
    // SAFETY: all these requests take numbers only.
    let go_on = |request, signal: i32| unsafe {
        if libc::ptrace(request, pid, 0usize, signal as usize) == 0 {
            return Ok(());
        }
        Err(io::Error::last_os_error())
    };
    loop {
        let mut status = 0;
        // SAFETY: the status outlives the call; only what this thread traces is waited for.
        let waited =
            unsafe { libc::waitpid(pid, &mut status, libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG) };
        match waited {
            0 if Instant::now() > deadline => return Err(io::ErrorKind::TimedOut.into()),
            0 => std::thread::sleep(TRACE_LOOK),
            -1 => return Err(io::Error::last_os_error()),
            _ if !libc::WIFSTOPPED(status) => return Err(io::Error::other("it ended before it began")),
            _ => match (status >> 16, libc::WSTOPSIG(status)) {
                (libc::PTRACE_EVENT_EXEC, _) => return Ok(()),
                (libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => go_on(libc::PTRACE_CONT, 0)?,
                // The process was stopped as by Ctrl-Z, and stays stopped.
                (libc::PTRACE_EVENT_STOP, _) => go_on(libc::PTRACE_LISTEN, 0)?,
                (_, signal) => go_on(libc::PTRACE_CONT, signal)?,
            },
        }
    }
}

/// Lets a process continue that this thread traces and that is stopped.
pub fn end_trace(process: u32) -> io::Result<()> {
    // SAFETY: numbers only.
    match unsafe { libc::ptrace(libc::PTRACE_DETACH, process as libc::pid_t, 0usize, 0usize) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Replaces this process by the program of a descriptor; returns only on failure.
pub fn execute(program: &OwnedFd, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both are arrays of strings that end with a null pointer and outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}

/// Closes all descriptors from `first` on when this process becomes another program.
pub fn close_on_execute(first: u32) -> io::Result<()> {
    const CLOEXEC: u32 = 4;
    // SAFETY: three numbers; no descriptor is closed now, so none that somebody owns here.
    match unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOEXEC) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens the root of a mount for looking up inodes by number.
pub fn mount_root(path: &std::path::Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records are split by their lengths, and a truncated one is refused.
    #[test]
    fn records() {
        let mut bytes = Vec::new();
        bytes.extend(32u32.to_ne_bytes());
        bytes.extend([3, 0]);
        bytes.extend(24u16.to_ne_bytes());
        bytes.extend(0x10000u64.to_ne_bytes());
        bytes.extend(9i32.to_ne_bytes());
        bytes.extend(1234i32.to_ne_bytes());
        bytes.extend([PIDFD_RECORD, 0, 8, 0]);
        bytes.extend(10i32.to_ne_bytes());
        let record = Record::first(&bytes).expect("whole");
        assert_eq!((record.length, record.file, record.process, record.pidfd), (32, 9, 1234, Some(10)));
        for end in 0..bytes.len() {
            assert!(Record::first(&bytes[..end]).is_none(), "{end}");
        }
        bytes[0] = 0;
        assert!(Record::first(&bytes).is_none(), "a length of nothing would never end");
    }
}
