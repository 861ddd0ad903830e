//! Looking at a mount whose process may never answer.
//!
//! If the process behind a FUSE mount has read a request, a program that waits for the answer cannot be
//! ended, not even by SIGKILL. Nor can a process with such a waiting thread end, and every process that waits
//! for it waits too. So the look is left to a process of its own, which has nothing open that another process
//! waits for.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The first argument of a process that was started to look.
const COMMAND: &str = "__look";
/// Most bytes of an attribute, as the kernel limits them.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;
/// The first byte of that process's output.
const DEAD: u8 = b'D';
const ANSWERS: u8 = b'A';
/// Whether looks can be processes of their own: this program can be started again for them
/// ([`run_if_looking`]).
static IS_AVAILABLE: AtomicBool = AtomicBool::new(false);

/// Makes looks threads of this process from now on. For a process that looks at mounts every few seconds as
/// long as it lives: a process for each look would cost too much, and nobody waits for this process to end.
pub fn look_by_thread() {
    IS_AVAILABLE.store(false, Ordering::Relaxed);
}

/// The result of a look at a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// The process that served it has ended.
    Dead,
    /// It answers, or refuses to answer this user. Has the requested attribute, if the mount has that.
    Answers(Option<Vec<u8>>),
}

/// Must be called first in `main`. In a process that was started to look, it does so and returns the exit
/// code.
pub fn run_if_looking() -> Option<ExitCode> {
    IS_AVAILABLE.store(true, Ordering::Relaxed);
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != COMMAND {
        return None;
    }
    let path = PathBuf::from(arguments.next()?);
    let attribute = arguments.next();
    let answer = match here(&path, attribute.as_deref()) {
        Look::Dead => vec![DEAD],
        Look::Answers(None) => vec![ANSWERS],
        Look::Answers(Some(value)) => [&[ANSWERS, b'='], &*value].concat(),
    };
    let written = std::io::stdout().write_all(&answer);
    Some(if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sends the mount at `path` a request, and one for an attribute of its root, for at most `limit`. Returns
/// `None` if there is no answer in time, because its process is stopped, or waits for something itself.
pub(crate) fn at(path: &Path, attribute: Option<&str>, limit: Duration) -> Option<Look> {
    if IS_AVAILABLE.load(Ordering::Relaxed) {
        return by_process(path, attribute, limit);
    }
    let (path, attribute) = (path.to_owned(), attribute.map(str::to_owned));
    crate::mountpoint::within(limit, move || here(&path, attribute.as_deref().map(OsStr::new)))
}

fn here(path: &Path, attribute: Option<&OsStr>) -> Look {
    if matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED)) {
        return Look::Dead;
    }
    let value = attribute.and_then(|name| {
        let mut buffer = vec![0; ATTRIBUTE_BYTES_MAX];
        let length = rustix::fs::getxattr(path, name, &mut buffer).ok()?;
        buffer.truncate(length);
        Some(buffer)
    });
    Look::Answers(value)
}

fn by_process(path: &Path, attribute: Option<&str>, limit: Duration) -> Option<Look> {
    let end = Instant::now() + limit;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("holdfast").arg(COMMAND).arg(path).args(attribute).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // Without a process, the state is unknown; assuming that the mount answers does no harm.
    let Ok(mut child) = command.spawn() else { return Some(Look::Answers(None)) };
    let mut pipe = child.stdout.take()?;
    let mut said = Vec::new();
    let is_whole = loop {
        let left = end.saturating_duration_since(Instant::now());
        let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&wait)) {
            Err(Errno::INTR) => continue,
            Ok(0) | Err(_) => break false,
            Ok(_) => {}
        }
        let mut piece = [0; 4096];
        match pipe.read(&mut piece) {
            Ok(0) => break true,
            Ok(count) => said.extend_from_slice(&piece[..count]),
            Err(_) => break false,
        }
    };
    if !is_whole {
        // The process ends when the mount answers after all, if not before. Nothing waits for it.
        let _ = child.kill();
        return None;
    }
    let _ = child.wait();
    match said.as_slice() {
        [DEAD, ..] => Some(Look::Dead),
        [ANSWERS, b'=', value @ ..] => Some(Look::Answers(Some(value.to_vec()))),
        _ => Some(Look::Answers(None)),
    }
}
