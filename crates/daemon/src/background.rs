//! Starts background processes: the command starts itself once more, hands over what is needed, and waits
//! until the mount works or has failed, so that errors are reported where the user sees them.
//!
//! The key is passed through a pipe: never through arguments, the environment or a file. The background
//! process does not read it, but hands the pipe on to the process that signs. If an agent has the key, only
//! the agent's socket and the public half are passed.

use crate::keys::{Agent, AgentKey, Key};
use crate::mounts::settings::MountSettings;
use holdfast_client::processes::KeySource;
use holdfast_client::store::TransferMode;
use holdfast_crypto::{KeyHolder, PublicKey};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_rpc::Transport;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;
use zeroize::Zeroizing;

/// How often a background process checks whether the waiting command has ended.
const COMMAND_LOOK: Duration = Duration::from_millis(200);

/// Everything that a process which serves mounts needs.
pub struct Job {
    /// Address, as given.
    pub url: String,
    /// This device's key.
    pub key: Key,
    /// The first mount.
    pub settings: MountSettings,
    /// The key's state directory.
    pub state_dir: PathBuf,
    /// The file system's cache directory.
    pub cache_dir: PathBuf,
    /// Most bytes of the cache.
    pub cache_bytes: u64,
    /// Seconds to wait for the server.
    pub timeout: u64,
    /// Whether calls wait for the server without limit.
    pub hard: bool,
    /// The transport of the connection to the server.
    pub transport: Transport,
    /// Whether it asks for leases.
    pub leases: bool,
    /// Whether it resends what a declared restore lost.
    pub sends_again: bool,
    /// Whether it goes on after an alarm.
    pub acknowledge_alarm: bool,
    /// How data is sent and fetched.
    pub transfer: TransferMode,
}

/// Settings of the C library's memory allocator, as environment variables; other C libraries ignore them.
type Memory = [(&'static str, &'static str)];

/// Returns blocks of memory from this size on to the system as soon as they are free. Cached blocks are
/// allocated on many threads and freed in another order, which fragments the heaps: a process that caches 256
/// MiB would otherwise come to hold more than twice that.
pub const GIVE_BACK: [(&str, &str); 1] = [("MALLOC_MMAP_THRESHOLD_", "16384")];

/// Keeps freed memory for later allocations. By default the C library returns every few blocks to the system
/// and requests as much again. For a mount of a release, whose cache is small, that costs several times as
/// much as verifying the blocks.
pub const KEEP: [(&str, &str); 2] =
    [("MALLOC_TRIM_THRESHOLD_", "67108864"), ("MALLOC_MMAP_THRESHOLD_", "16777216")];

#[derive(Serialize, Deserialize)]
struct Letter {
    url: String,
    key: KeyLetter,
    settings: MountSettings,
    state_dir: PathBuf,
    cache_dir: PathBuf,
    cache_bytes: u64,
    timeout: u64,
    hard: bool,
    transport: Transport,
    leases: bool,
    sends_again: bool,
    acknowledge_alarm: bool,
    transfer: TransferMode,
}

#[derive(Serialize, Deserialize)]
enum KeyLetter {
    /// The seed follows the letter in the same pipe: the background process hands the pipe on without reading
    /// it.
    Follows {
        public: [u8; 32],
    },
    Agent {
        socket: PathBuf,
        public: [u8; 32],
    },
}

impl KeyLetter {
    fn write(key: &Key) -> KeyLetter {
        match key {
            Key::Kept(key) => KeyLetter::Agent { socket: key.socket().to_owned(), public: key.public().0 },
            key => KeyLetter::Follows { public: key.public().0 },
        }
    }

    fn read(self) -> Outcome<Key> {
        Ok(match self {
            KeyLetter::Follows { public } => {
                let pipe = io::stdin().as_fd().try_clone_to_owned().map_err(|error| malformed(&error))?;
                Key::Handed(KeySource::Pipe { pipe, public: PublicKey(public) })
            }
            KeyLetter::Agent { socket, public } => {
                Key::Kept(AgentKey::new(Agent::at(socket), PublicKey(public)))
            }
        })
    }
}

/// Starts the background process and waits until it has mounted. `arguments` are what `ps` lists; `tell` is
/// called with the reason for a delay.
///
/// # Errors
/// The failure that the background process reports, or that it died.
pub fn start(job: &Job, arguments: &[OsString], tell: &dyn Fn(&str)) -> Outcome {
    let log = log_path(&job.state_dir);
    let mut child = spawn(arguments, &log, &GIVE_BACK)?;
    let letter = Letter {
        url: job.url.clone(),
        key: KeyLetter::write(&job.key),
        settings: job.settings.clone(),
        state_dir: job.state_dir.clone(),
        cache_dir: job.cache_dir.clone(),
        cache_bytes: job.cache_bytes,
        timeout: job.timeout,
        hard: job.hard,
        transport: job.transport,
        leases: job.leases,
        sends_again: job.sends_again,
        acknowledge_alarm: job.acknowledge_alarm,
        transfer: job.transfer,
    };
    hand_over_with_key(&mut child, &letter, &job.key)?;
    await_report(child, &log, tell)
}

/// Passes a background process its instructions.
///
/// # Errors
/// The letter cannot be encoded, which is a bug.
pub fn hand_over(child: &mut Child, letter: &impl Serialize) -> Outcome {
    let text =
        Zeroizing::new(serde_json::to_vec(letter).map_err(|error| Failure::new(Exit::Internal, error))?);
    if let Some(mut pipe) = child.stdin.take() {
        // If the process died at once, its report says so.
        let _ = pipe.write_all(&text);
    }
    Ok(())
}

/// Passes a background process its instructions in one line, and the key after it.
fn hand_over_with_key(child: &mut Child, letter: &Letter, key: &Key) -> Outcome {
    let mut text = serde_json::to_vec(letter).map_err(|error| Failure::new(Exit::Internal, error))?;
    text.push(b'\n');
    if let Some(mut pipe) = child.stdin.take() {
        // If the process died at once, its report says so.
        let written = pipe.write_all(&text);
        if let (Ok(()), Key::Here(key)) = (written, key) {
            let _ = pipe.write_all(&*key.seed());
        }
    }
    Ok(())
}

/// Starts this program again with these arguments, in the background. It gets its instructions through
/// standard input and reports on standard output; its standard error goes to the log.
///
/// # Errors
/// The log cannot be written, or there are too many processes.
pub fn spawn(arguments: &[OsString], log: &Path, memory: &Memory) -> Outcome<Child> {
    let errors = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(log)
        .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", log.display())))?;
    Command::new("/proc/self/exe")
        .arg0("holdfast")
        .args(arguments)
        .arg("--background-process")
        .envs(memory.iter().filter(|(name, _)| std::env::var_os(name).is_none()).copied())
        .envs(inherited_environment())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .map_err(|error| {
            Failure::new(Exit::System, format!("the background process cannot be started: {error}"))
        })
}

/// Waits until a background process reports that it has mounted, or why not.
///
/// # Errors
/// The failure that it reports, or that it died.
pub fn await_report(mut child: Child, log: &Path, tell: &dyn Fn(&str)) -> Outcome {
    let failed = |what: &str, error: io::Error| {
        Failure::new(Exit::System, format!("the background process {what}: {error}"))
    };
    let mut result = None;
    if let Some(pipe) = child.stdout.take() {
        for line in BufReader::new(pipe.take(1 << 20)).lines() {
            let line = line.map_err(|error| failed("does not report", error))?;
            match serde_json::from_str(&line) {
                Ok(Report::Notice(text)) => tell(&text),
                Ok(Report::Done(done)) => result = Some(done),
                Err(_) => {}
            }
        }
    }
    match result {
        Some(result) => result,
        None => {
            let status = child.wait().map_err(|error| failed("cannot be waited for", error))?;
            Err(Failure::new(
                Exit::Internal,
                format!("the background process ended without a word ({status})"),
            )
            .hint(format!("its log: {}", log.display())))
        }
    }
}

/// In the background process: reads its instructions, and leaves the terminal.
///
/// # Errors
/// The process was not started by [`start`].
pub fn receive() -> Outcome<Job> {
    let letter = read_line()?;
    let letter: Letter = serde_json::from_slice(&letter).map_err(|error| malformed(&error))?;
    settle_in();
    Ok(Job {
        url: letter.url,
        key: letter.key.read()?,
        settings: letter.settings,
        state_dir: letter.state_dir,
        cache_dir: letter.cache_dir,
        cache_bytes: letter.cache_bytes,
        timeout: letter.timeout,
        hard: letter.hard,
        transport: letter.transport,
        leases: letter.leases,
        sends_again: letter.sends_again,
        acknowledge_alarm: letter.acknowledge_alarm,
        transfer: letter.transfer,
    })
}

fn malformed(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, format!("--background-process is not for people to use: {error}"))
}

/// Reads the letter, and no byte of the key after it.
fn read_line() -> Outcome<Vec<u8>> {
    let input = io::stdin();
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < 1 << 20 {
        match rustix::io::read(input.as_fd(), &mut byte) {
            Ok(1) if byte == *b"\n" => return Ok(line),
            Ok(1) => line.push(byte[0]),
            Ok(_) => return Err(malformed(&"nobody said what to do")),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(malformed(&error)),
        }
    }
    Err(malformed(&"what to do is too long"))
}

/// In the background process: reads what [`hand_over`] wrote, and leaves the terminal.
///
/// # Errors
/// The input is not a letter.
pub fn take_over<T: DeserializeOwned>() -> Outcome<T> {
    let mut text = Zeroizing::new(Vec::new());
    io::stdin().lock().take(1 << 20).read_to_end(&mut text).map_err(|error| malformed(&error))?;
    let letter = serde_json::from_slice(&text).map_err(|error| malformed(&error))?;
    settle_in();
    Ok(letter)
}

fn settle_in() {
    leave_terminal();
    // A working directory elsewhere would keep that file system from being unmounted.
    let _ = std::env::set_current_dir("/");
}

/// In the background process: leaves the terminal's session, whose signals then do not reach it.
pub fn leave_terminal() {
    // This fails only for a process that leads a session already; that has no terminal to leave.
    let _ = rustix::process::setsid();
}

/// A message of a background process to the waiting command; one on each line.
#[derive(Serialize, Deserialize)]
enum Report {
    /// A message for people: the reason for a delay, or a warning.
    Notice(String),
    /// The outcome; the last message.
    Done(Result<(), Failure>),
}

/// Writes a line to the waiting command. Returns whether the command is still there.
fn write_report(report: &Report) -> bool {
    serde_json::to_vec(report).is_ok_and(|mut text| {
        text.push(b'\n');
        let mut out = io::stdout().lock();
        out.write_all(&text).and_then(|()| out.flush()).is_ok()
    })
}

/// In the background process: makes the waiting command print a message.
pub fn notice(text: &str) {
    write_report(&Report::Notice(text.to_owned()));
}

/// In the background process: exits when the waiting command ends (Ctrl-C), until the result is dropped.
/// Nothing may be mounted yet.
pub fn ends_with_command() -> impl Sized {
    let (begun, is_over) = mpsc::channel::<()>();
    let watch = move || {
        let out = io::stdout();
        while is_over.recv_timeout(COMMAND_LOOK) == Err(RecvTimeoutError::Timeout) {
            // poll(2) reports POLLERR for the writing end of a pipe whose reading end is closed.
            let mut polled = [PollFd::new(&out, PollFlags::empty())];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::ERR) {
                tracing::info!("whoever asked for the mount has given up");
                std::process::exit(0);
            }
        }
    };
    let _ = std::thread::Builder::new().name("command".to_owned()).spawn(watch);
    begun
}

/// In the background process: reports the outcome to the waiting command, once, and closes its streams.
/// Returns `false` if the command has ended.
pub fn report(result: &Result<(), Failure>) -> bool {
    let heard = write_report(&Report::Done(result.clone()));
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stdin(&null);
    }
    heard
}

/// An environment variable that requires all sandbox restrictions, as `--require-sandbox` does.
pub const REQUIRE_SANDBOX: &str = "HOLDFAST_REQUIRE_SANDBOX";

/// The variable to add to the environment of a process that this one starts.
pub fn inherited_environment() -> Option<(&'static str, &'static str)> {
    holdfast_components::all_walls_are_required().then_some((REQUIRE_SANDBOX, "1"))
}

/// The log file of the process that serves a key, also with what it last wrote to standard error.
pub fn log_path(state_dir: &Path) -> PathBuf {
    state_dir.join("log")
}
