//! The parent's half of a sandbox: starts a child in namespaces of its own, with a user of its own. The child
//! inherits three descriptors that it may use (an empty input, a pipe for its output, its control channel)
//! and nothing else.
//!
//! Started by root, a component gets a user and group that nobody else has: a reserved number plus its
//! process id, so two components that live at the same time never share one. Started by an ordinary user it
//! stays that user, in a namespace without other users. The child waits until its identity has been written,
//! and dies if its parent dies before. The kernel ends a component together with the *thread* that started
//! it, so that thread must live as long as its components.

use crate::channel::packet::{self, PacketError, Patience};
use crate::error::{ComponentError, During, Result};
use crate::kernel::{self, Recipe, STEPS};
use crate::sandbox::{Permission, Profile, StartArguments, Wall};
use rustix::fs::{CWD, Mode, OFlags, fcntl_setfl, openat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitId, WaitIdOptions, getegid, geteuid, pidfd_send_signal, waitid};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// The argument that makes a program a component.
pub const ARGUMENT: &str = "__component";
/// The name under which a program makes the mounts of regions.
pub(crate) const REGIONS: &str = "__regions";
/// A component's user id is this plus its process id, which is below 2²²: in the range that distributions and
/// systemd leave unused (1879048192 to 2147352575).
pub const USER_BASE: u32 = 0x7840_0000;
/// How long making the mounts may take.
const MOUNTS_WAIT: Duration = Duration::from_secs(10);

/// The program that components run: one file, opened once, so that later starts run the same version.
pub struct Program(OwnedFd);

impl Program {
    /// The running program itself.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn current() -> Result<Program> {
        Program::open(Path::new("/proc/self/exe"))
    }

    /// A program by its path.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Program> {
        let file = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        Ok(Program(file.during("opening the program of components")?))
    }
}

/// A child that was started and is entering its sandbox.
pub(crate) struct Child {
    pub pid: i32,
    pub pidfd: OwnedFd,
    pub control: OwnedFd,
    /// Reads what the process writes to its output and errors; never blocks.
    pub words: OwnedFd,
    pub uid: u32,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
}

/// Starts a component. The child has its identity and its namespaces; it does the rest itself.
pub(crate) fn component(program: &Program, name: &str, profile: &Profile) -> Result<Child> {
    // Not a mount namespace yet: see `sandbox::enter`.
    let mut namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    if !profile.has(Permission::Connect) {
        namespaces |= libc::CLONE_NEWNET;
    }
    let start = |namespaces, lacking: Vec<Wall>| {
        let arguments = StartArguments { profile: profile.clone(), lacking };
        let own_user = namespaces == 0 || geteuid().is_root();
        start(program, name, &arguments.to_argument(), namespaces, own_user)
    };
    match start(namespaces, Vec::new()) {
        Err(ComponentError::SandboxLacks { .. }) if profile.accepts_without(Wall::Namespaces) => {
            start(0, vec![Wall::Namespaces])
        }
        outcome => outcome,
    }
}

/// Makes the two mounts of regions, writable and read-only, in a process of its own.
pub(crate) fn make_mounts(program: &Program, bytes_max: u64) -> Result<[OwnedFd; 2]> {
    let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
    let child = start(program, REGIONS, &bytes_max.to_string(), namespaces, false)?;
    let mut buffer = [0; 512];
    let received = packet::receive(child.control.as_fd(), &mut buffer, 2, Patience::of(MOUNTS_WAIT));
    if received.is_err() {
        kill(&child.pidfd);
    }
    let exit = wait(&child.pidfd).during("waiting for the maker of mounts")?;
    match received {
        Ok((_, files)) => match <[OwnedFd; 2]>::try_from(files) {
            Ok(mounts) => Ok(mounts),
            Err(_) => {
                let reason = "a tmpfs in a user namespace was refused".to_owned();
                Err(ComponentError::SandboxLacks { what: "regions", reason })
            }
        },
        // The process sends two files and no more: this one could not take them.
        Err(PacketError::Files) => {
            let source = Errno::MFILE.into();
            Err(ComponentError::System { what: "receiving the mounts of regions", source })
        }
        Err(_) => {
            let mut words = [0; 512];
            let length = rustix::io::read(&child.words, &mut words).unwrap_or(0);
            let reason = format!("{exit:?}: {}", printable(&words[..length]));
            Err(ComponentError::SandboxLacks { what: "regions", reason })
        }
    }
}

/// A child's output, which may be anything, made safe to print.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Duplicates a descriptor to a number above all that the child arranges its own at.
fn high(fd: impl AsFd) -> io::Result<OwnedFd> {
    Ok(fcntl_dupfd_cloexec(fd, 16)?)
}

fn start(program: &Program, name: &str, argument: &str, namespaces: i32, own_user: bool) -> Result<Child> {
    let what = "preparing a component";
    let string =
        |text: &str| CString::new(text).map_err(|_| ComponentError::NoSuchComponent(text.to_owned()));
    let arguments = [string("holdfast")?, string(ARGUMENT)?, string(name)?, string(argument)?];
    // One arena of memory: glibc would look into /proc and /sys for more.
    let environment = [string("GLIBC_TUNABLES=glibc.malloc.arena_max=1")?];
    let (control, its_control) = packet::pair().during(what)?;
    let (words, its_words) = pipe_with(PipeFlags::CLOEXEC).during(what)?;
    fcntl_setfl(&words, OFlags::NONBLOCK).during(what)?;
    let (its_go, go) = pipe_with(PipeFlags::CLOEXEC).during(what)?;
    let (report, its_report) = pipe_with(PipeFlags::CLOEXEC).during(what)?;
    let null = openat(CWD, "/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).during(what)?;
    let file = high(&program.0).during(what)?;
    // The originals close here: a pipe ends when its last writer is gone.
    let its_control = high(its_control).during(what)?;
    let its_words = high(its_words).during(what)?;
    let its_go = high(its_go).during(what)?;
    let its_report = high(its_report).during(what)?;
    let null = high(null).during(what)?;
    let is_root = geteuid().is_root();
    let contained = namespaces != 0;
    let recipe = Recipe {
        namespaces,
        program: file.as_fd(),
        arguments: &arguments,
        environment: &environment,
        null: null.as_fd(),
        errors: its_words.as_fd(),
        control: its_control.as_fd(),
        go: its_go.as_fd(),
        go_writer: go.as_fd(),
        report: its_report.as_fd(),
        // In its own namespace the child has user 0; outside, root's children have the reserved number.
        identity: match (contained, is_root) {
            (true, _) => 0,
            (false, true) => USER_BASE,
            (false, false) => geteuid().as_raw(),
        },
        add_pid: !contained && is_root,
        drop_groups: is_root,
    };
    let (pid, pidfd) = kernel::start(&recipe).map_err(|error| ComponentError::SandboxLacks {
        what: "namespaces",
        reason: format!("{error} (see user.max_user_namespaces and the like in sysctl)"),
    })?;
    drop((its_control, its_words, its_go, its_report));
    let child = Child { pid, pidfd, control, words, uid: 0 };
    let uid = match (is_root && own_user, contained) {
        (true, _) => USER_BASE + pid as u32,
        (false, _) => geteuid().as_raw(),
    };
    let gid = if is_root && own_user { uid } else { getegid().as_raw() };
    if contained && let Err(error) = write_identity(pid, uid, gid, is_root) {
        abandon(&child.pidfd);
        let reason = format!("its user could not be mapped: {error}");
        return Err(ComponentError::SandboxLacks { what: "namespaces", reason });
    }
    if let Err(error) = rustix::io::write(&go, b"!") {
        abandon(&child.pidfd);
        return Err(error).during("letting a component begin");
    }
    let mut failure = [0; 2];
    let report = loop {
        match rustix::io::read(&report, &mut failure) {
            Err(Errno::INTR) => {}
            read => break read,
        }
    };
    match report {
        Ok(0) => Ok(Child { uid, ..child }),
        _ => {
            abandon(&child.pidfd);
            let step = STEPS.get(usize::from(failure[0])).copied().unwrap_or("starting");
            let error = io::Error::from_raw_os_error(failure[1].into());
            Err(ComponentError::NotStarted { component: name.to_owned(), reason: format!("{step}: {error}") })
        }
    }
}

/// Maps user and group 0, the only ones in the child's namespace, to `uid` and `gid` outside.
fn write_identity(pid: i32, uid: u32, gid: u32, is_root: bool) -> io::Result<()> {
    let write = |file: &str, text: &str| {
        let file =
            openat(CWD, format!("/proc/{pid}/{file}"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::io::write(&file, text.as_bytes()).map(|_| ())
    };
    // The kernel lets an ordinary user map groups only where supplementary ones cannot be given up.
    if !is_root {
        write("setgroups", "deny")?;
    }
    write("uid_map", &format!("0 {uid} 1"))?;
    write("gid_map", &format!("0 {gid} 1"))?;
    Ok(())
}

fn abandon(pidfd: &OwnedFd) {
    kill(pidfd);
    let _ = wait(pidfd);
}

/// Ends a process for good.
pub(crate) fn kill(pidfd: &OwnedFd) {
    // This fails only for a process that has ended.
    let _ = pidfd_send_signal(pidfd, Signal::KILL);
}

/// Waits until a child has ended.
pub(crate) fn wait(pidfd: &OwnedFd) -> io::Result<Exit> {
    loop {
        match waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => {
                return Ok(match status.terminating_signal() {
                    Some(signal) => Exit::Signal(signal),
                    None => Exit::Code(status.exit_status().unwrap_or(-1)),
                });
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    /// Proves: a child whose parent ends before it has written the child's identity does not wait for ever.
    #[test]
    fn a_child_ends_with_who_starts_it() {
        let born = std::thread::spawn(|| {
            let null = high(openat(CWD, "/dev/null", OFlags::RDWR, Mode::empty()).unwrap()).unwrap();
            let (its_go, go) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            let recipe = Recipe {
                namespaces: 0,
                program: null.as_fd(),
                arguments: &[],
                environment: &[],
                null: null.as_fd(),
                errors: null.as_fd(),
                control: null.as_fd(),
                go: its_go.as_fd(),
                go_writer: go.as_fd(),
                report: null.as_fd(),
                identity: 0,
                add_pid: false,
                drop_groups: false,
            };
            kernel::start(&recipe).unwrap().1
        });
        let pidfd = born.join().unwrap();
        let patience = Timespec::try_from(holdfast_testing::PATIENCE).unwrap();
        let has_ended = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&patience)).unwrap() == 1;
        kill(&pidfd);
        assert_ne!(wait(&pidfd).unwrap(), Exit::Code(0));
        assert!(has_ended, "it waits for a parent that is gone");
    }
}
