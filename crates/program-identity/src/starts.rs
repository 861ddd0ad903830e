//! Programs that were started clean, so that only root can, or ever could, interfere with them.
//!
//! Another process of the same user can trace a program, read its memory and take its descriptors
//! (`pidfd_getfd`), before it opens a file or afterwards. Two things prevent that. The program's file cannot
//! be read by the user and belongs to root, so the kernel lets no process without rights over the whole
//! machine trace it, from its first instruction on. And the helper itself traces the process during the
//! start, so that no other process can, which might continue and change its registers.
//!
//! `holdfast program run` puts the program into a sealed file in memory and asks the helper to start it. When
//! the program has begun, the helper records process number, start time and file. A process that becomes
//! another program, and a child, do not count as started clean.

use crate::hashes::{Hashed, Hashes};
use crate::kernel;
use crate::message::{FromGuard, FromHelper, VERSION};
use crate::process;
use crate::seqpacket::{Conversation, Peer};
use parking_lot::Mutex;
use rustix::fs::{Gid, Mode, OFlags, SealFlags, Uid};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a process may take from its request to becoming the program.
const BEGIN_WAIT: Duration = Duration::from_secs(10);
/// How long a process waits for the helper, which hashes the program first.
const ASK_WAIT: Duration = Duration::from_secs(30);
/// Most programs that are recorded; those that have ended are dropped first.
const STARTS_MAX: usize = 4096;
/// `READ_IMPLIES_EXEC` of personality(2), which survives an exec: all mappings would be executable.
const READ_IMPLIES_EXEC: u32 = 0x0040_0000;

/// Programs that were started clean.
#[derive(Default)]
pub struct CleanStarts(Mutex<HashMap<u32, CleanStart>>);

struct CleanStart {
    /// When the process started, in the kernel's clock ticks.
    started: u64,
    /// Device and inode of its program.
    file: (u64, u64),
    hashed: Hashed,
}

impl CleanStarts {
    /// The program of a process that was started clean and still runs it.
    pub fn of(&self, process: u32, started: u64, file: (u64, u64)) -> Option<Hashed> {
        let starts = self.0.lock();
        let start = starts.get(&process)?;
        (start.started == started && start.file == file).then(|| start.hashed.clone())
    }

    /// Starts the program of the peer's `descriptor` clean; the peer becomes it next.
    ///
    /// # Errors
    /// The reason why that is not a clean start; the peer gets it too.
    pub fn begin(
        &self,
        conversation: &Conversation,
        peer: Peer,
        descriptor: u32,
        hashes: &Hashes,
    ) -> io::Result<()> {
        let pending = PendingStart::new(peer, descriptor, hashes);
        let pending =
            pending.inspect_err(|error| drop(conversation.send(&FromHelper::Refused(error.to_string()))))?;
        conversation.send(&FromHelper::Traced)?;
        kernel::wait_for_program(peer.process, Instant::now() + BEGIN_WAIT)?;
        let start = pending.check();
        kernel::end_trace(peer.process)?;
        self.remember(peer.process, start?);
        Ok(())
    }

    fn remember(&self, process: u32, start: CleanStart) {
        let mut starts = self.0.lock();
        if starts.len() >= STARTS_MAX {
            starts.retain(|process, start| began(*process).is_ok_and(|began| began == start.started));
        }
        // No user has so many processes; if one does, some no longer count as started clean.
        if starts.len() >= STARTS_MAX
            && let Some(any) = starts.keys().next().copied()
        {
            starts.remove(&any);
        }
        starts.insert(process, start);
    }
}

/// A process that is about to become a program, traced by this thread.
struct PendingStart {
    process: u32,
    user: u32,
    started: u64,
    program: File,
    hashed: Hashed,
}

impl PendingStart {
    fn new(peer: Peer, descriptor: u32, hashes: &Hashes) -> io::Result<PendingStart> {
        let process = peer.process;
        for namespace in ["user", "pid"] {
            if link(process, &format!("ns/{namespace}"))?
                != link(std::process::id(), &format!("ns/{namespace}"))?
            {
                return Err(io::Error::other(format!("it runs in a {namespace} namespace of its own")));
            }
        }
        let mut program = sealed(&PathBuf::from(format!("/proc/{process}/fd/{descriptor}")))?;
        // From here on its creator cannot make it readable again.
        rustix::fs::fchown(&program, Some(Uid::ROOT), Some(Gid::ROOT))?;
        rustix::fs::fchmod(&program, Mode::from_raw_mode(0o111))?;
        let hashed = hashes.of(&mut program, peer.uid, false).map_err(io::Error::other)?;
        let pending = PendingStart { process, user: peer.uid, started: began(process)?, program, hashed };
        kernel::trace(process).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => io::Error::other(
                "the helper may not trace it: somebody else does, or this system lets nobody trace \
                 (kernel.yama.ptrace_scope=3)",
            ),
            _ => error,
        })?;
        Ok(pending)
    }

    /// Called when the process has become a program: checks that it is the right one, and that nobody can
    /// interfere with it.
    fn check(&self) -> io::Result<CleanStart> {
        let place = PathBuf::from(format!("/proc/{}", self.process));
        let other = |why: &str| io::Error::other(format!("it did not start clean: {why}"));
        let status = process::status(&process::read(&place.join("status"))?)
            .ok_or_else(|| other("its state is not told"))?;
        let wanted = self.program.metadata()?;
        let found = std::fs::metadata(place.join("exe"))?;
        let file = (found.dev(), found.ino());
        if file != (wanted.dev(), wanted.ino()) {
            return Err(other("it became another program"));
        }
        if status.tracer != kernel::thread() {
            return Err(other("somebody else traces it"));
        }
        if status.filters != 0 {
            return Err(other("its system calls are filtered by others"));
        }
        if began(self.process)? != self.started {
            return Err(other("it is another process"));
        }
        if link(self.process, "ns/user")? != link(std::process::id(), "ns/user")? {
            return Err(other("it runs in a user namespace of its own"));
        }
        let personality = String::from_utf8_lossy(&process::read(&place.join("personality"))?).into_owned();
        let personality =
            u32::from_str_radix(personality.trim(), 16).map_err(|_| other("its personality is not told"))?;
        if personality & READ_IMPLIES_EXEC != 0 {
            return Err(other("all its memory could be run"));
        }
        if self.user != 0 && !is_shut(self.process)? {
            return Err(other("its user can reach into it"));
        }
        Ok(CleanStart { started: self.started, file, hashed: self.hashed.clone() })
    }
}

/// Whether a process's own user cannot interfere with it: then its files in /proc belong to root, except the
/// directory itself.
pub fn is_shut(process: u32) -> io::Result<bool> {
    Ok(std::fs::metadata(format!("/proc/{process}/maps"))?.uid() == 0)
}

/// Opens a file in memory that nobody can change any more.
fn sealed(path: &Path) -> io::Result<File> {
    const TMPFS: i64 = 0x0102_1994;
    let refused = || io::Error::other("the program is not in a sealed file in memory");
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // Opening a device, FIFO or socket has side effects, so only regular files are opened for reading.
    let is_regular = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode).is_file();
    if !is_regular || rustix::fs::fstatfs(&place)?.f_type as i64 != TMPFS {
        return Err(refused());
    }
    let opened = File::open(format!("/proc/thread-self/fd/{}", place.as_raw_fd()))?;
    let needed = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    match rustix::fs::fcntl_get_seals(&opened) {
        Ok(seals) if seals.contains(needed) => Ok(opened),
        _ => Err(refused()),
    }
}

fn link(process: u32, name: &str) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/{name}"))
}

fn began(process: u32) -> io::Result<u64> {
    let stat = process::read(Path::new(&format!("/proc/{process}/stat")))?;
    process::started(&stat).ok_or_else(|| io::Error::other("its beginning is not told"))
}

/// Asks the helper to start the program of a descriptor clean in this process, which must become it next.
///
/// # Errors
/// No helper listens there, or it refuses, with the reason. The process then does not count as started clean.
pub fn ask(socket: &Path, program: &OwnedFd) -> io::Result<()> {
    let conversation = Conversation::connect(socket)?;
    conversation.set_patience(ASK_WAIT, Some(ASK_WAIT))?;
    let descriptor = u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
    conversation.send(&FromGuard::Start { version: VERSION, descriptor })?;
    match conversation.receive()? {
        FromHelper::Traced => Ok(()),
        FromHelper::Refused(why) => Err(io::Error::other(why)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the helper answers something else")),
    }
}
