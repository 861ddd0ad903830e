//! Mounts and unmounts a place by running this command, as a person would. Each mount is served by a process
//! of its own, so what happens to one does not affect others.

use super::probe::ProbeResult;
use super::refusal::Refusal;
use crate::background::inherited_environment;
use crate::paths::Directories;
use holdfast_failure::Exit;
use holdfast_fuse::automount::Trouble;
use serde::Deserialize;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How often it checks whether a command has ended.
const GLANCE: Duration = Duration::from_millis(10);
/// How long unmounting may take. If publishing takes longer, the process that serves the mount goes on with
/// it.
const UNMOUNT_WAIT: Duration = Duration::from_secs(60);
/// Most bytes that are read of a command's messages.
const WORDS_MAX: u64 = 64 << 10;

/// How places are mounted.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This device's key.
    pub key: Option<PathBuf>,
    /// The directories of state and caches.
    pub directories: Directories,
    /// See `holdfast mount`.
    pub allow_other: bool,
    /// See `holdfast mount`.
    pub no_exec: bool,
    /// See `holdfast mount`.
    pub cache_mib: u64,
    /// See `holdfast mount`.
    pub refresh: u64,
    /// How long mounting may take.
    pub timeout: Duration,
}

impl Settings {
    fn holdfast(&self) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("holdfast").current_dir("/").env_remove("HOLDFAST_REVOCATIONS").arg("--json");
        command.envs(inherited_environment());
        for (option, path) in [("--state", &self.directories.state), ("--cache", &self.directories.cache)] {
            if let Some(path) = path {
                command.arg(option).arg(path);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Starts to mount what was found; [`finish`] waits for the result.
    ///
    /// # Errors
    /// There is no key, or the process cannot be started.
    pub fn begin(
        &self,
        found: &ProbeResult,
        place: &Path,
        revocations: &[PathBuf],
        id: &str,
    ) -> Result<Child, Refusal> {
        let mut command = self.holdfast();
        command.arg("mount");
        let url = match found {
            ProbeResult::FileSystem(address) => {
                let Some(key) = &self.key else {
                    return Err(Refusal::new(
                        Trouble::NoKey,
                        "it is a writable file system, and those are mounted with a key: give --key to `holdfast automount`",
                    ));
                };
                command.arg("--key").arg(key).arg("--timeout").arg(self.timeout.as_secs().to_string());
                address.to_string()
            }
            ProbeResult::Release(url) => {
                command.args(["--id", id]).arg("--refresh").arg(self.refresh.to_string());
                url.clone()
            }
        };
        for directory in revocations {
            command.arg("--revocations").arg(directory);
        }
        command.arg("--cache-mib").arg(self.cache_mib.to_string());
        for (wanted, option) in [(self.allow_other, "--allow-other"), (self.no_exec, "--no-exec")] {
            if wanted {
                command.arg(option);
            }
        }
        // Neither argument begins with a dash.
        command.args([OsString::from(url), place.into()]);
        command
            .spawn()
            .map_err(|error| Refusal::new(Trouble::Failed, format!("no process can be started: {error}")))
    }

    /// Unmounts a place; if not `lazy`, only if it is not in use.
    ///
    /// # Errors
    /// Why it stays mounted.
    pub fn unmount(&self, place: &Path, lazy: bool) -> Result<(), Refusal> {
        let mut command = self.holdfast();
        command.arg("umount");
        if lazy {
            command.arg("--lazy");
        }
        let child = command.arg(place).spawn();
        let child = child.map_err(|error| Refusal::new(Trouble::Failed, error))?;
        finish(child, UNMOUNT_WAIT)
    }
}

#[derive(Deserialize)]
struct Said {
    error: SaidError,
}

#[derive(Deserialize)]
struct SaidError {
    code: Exit,
    message: String,
    hint: Option<String>,
}

/// Waits for a command.
///
/// # Errors
/// The failure that the command reports, or that it takes too long.
pub fn finish(mut child: Child, patience: Duration) -> Result<(), Refusal> {
    let words = child.stderr.take();
    // Read on a thread of its own: a command with long messages ends only after they are read.
    let words = std::thread::spawn(move || {
        let mut said = Vec::new();
        if let Some(words) = words {
            // A message that is cut off or unreadable is only not reported.
            let _ = words.take(WORDS_MAX).read_to_end(&mut said);
        }
        said
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < patience => std::thread::sleep(GLANCE),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                let text = format!("it was not done within {} seconds", patience.as_secs());
                return Err(Refusal::new(Trouble::Unreachable, text));
            }
            Err(error) => return Err(Refusal::new(Trouble::Failed, error)),
        }
    };
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&words.join().unwrap_or_default()).into_owned();
    Err(understand(&said)
        .unwrap_or_else(|| Refusal::new(Trouble::Failed, format!("{status}: {}", said.trim()))))
}

/// Interprets the messages of a failed command: the last line is JSON, warnings come before it.
fn understand(said: &str) -> Option<Refusal> {
    let Said { error } = said.lines().rev().find_map(|line| serde_json::from_str(line).ok())?;
    let trouble = match error.code {
        Exit::Unavailable | Exit::NoHost => Trouble::Unreachable,
        Exit::Protocol => Trouble::Wrong,
        Exit::NotAllowed | Exit::NoUser => Trouble::NotAllowed,
        _ => Trouble::Failed,
    };
    let hint = error.hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
    Some(Refusal::new(trouble, error.message + &hint))
}

/// Whether a thread belongs to one of these processes, or to a running descendant of one.
pub fn descends(thread: u32, from: &[u32]) -> bool {
    let mut of = thread;
    for _ in 0..GENERATIONS_MAX {
        if of <= 1 {
            return false;
        }
        let Ok(status) = std::fs::read_to_string(format!("/proc/{of}/status")) else { return false };
        let number = |name: &str| -> Option<u32> {
            status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        if number("Tgid:").is_some_and(|process| from.contains(&process)) {
            return true;
        }
        let Some(parent) = number("PPid:") else { return false };
        of = parent;
    }
    false
}

/// Most generations of processes: a command, the background process that it starts, fusermount3, and some in
/// between.
const GENERATIONS_MAX: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_testing::{PATIENCE, eventually_some};

    /// Proves: the last line of the output decides, whatever came before; output in another form is reported
    /// as it is.
    #[test]
    fn failures_are_understood() {
        let line = r#"{"error":{"exit_code":69,"code":"Unavailable","message":"nobody","hint":"look"}}"#;
        let understood = understand(&format!("holdfast: warning: half\n{line}\n")).expect("understood");
        assert_eq!((understood.trouble, &*understood.why), (Trouble::Unreachable, "nobody (look)"));
        assert!(understand("Killed").is_none());
        let sh = |script: &str| {
            Command::new("sh").args(["-c", script]).stderr(Stdio::piped()).spawn().expect("sh runs")
        };
        assert!(finish(sh("echo fine >&2"), PATIENCE).is_ok());
        assert!(finish(sh("echo odd >&2; exit 3"), PATIENCE).expect_err("failed").why.contains("odd"));
        let late = finish(sh("exec sleep 100"), Duration::from_millis(50)).expect_err("too long");
        assert_eq!(late.trouble, Trouble::Unreachable);
    }

    /// Proves: children and their descendants are recognised, and other processes are not.
    #[test]
    fn descent() {
        let mut child = Command::new("sh").args(["-c", "sleep 100 & wait"]).spawn().expect("sh runs");
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let grandchild: u32 = eventually_some("it has a child", || {
            std::fs::read_to_string(&children).expect("read").trim().parse().ok()
        });
        let us = std::process::id();
        assert!(descends(grandchild, &[us]) && descends(grandchild, &[child.id()]) && descends(us, &[us]));
        assert!(!descends(us, &[child.id()]) && !descends(grandchild, &[]) && !descends(0, &[us]));
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_raw(grandchild as i32).expect("a number"),
            rustix::process::Signal::KILL,
        );
        let _ = child.kill();
        child.wait().expect("it ends");
        assert!(!descends(grandchild, &[us]));
    }
}
