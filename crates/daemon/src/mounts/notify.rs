//! Sends alarms to people who are not looking: to the system's journal and, in a desktop session, as a
//! notification. `holdfast status` and the attribute `user.holdfast.status` of the mount's root contain the
//! same.
//!
//! Nothing here may fail or block: messages are best effort, and evidence is stored before.

use holdfast_client::{ConflictReport, Notice, ResendReport};
use rustix::process::geteuid;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The socket of systemd's journal.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// The socket of the traditional system log.
const SYSLOG: &str = "/dev/log";
/// Priorities of the system log; [`FACILITY_USER`] is its facility for user programs.
const CRITICAL: u8 = 2;
const ERROR: u8 = 3;
const WARNING: u8 = 4;
const NOTICE: u8 = 5;
const FACILITY_USER: u8 = 1 << 3;
/// Most bytes of a line that is sent there.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Sends a notice by all available ways.
pub fn tell(address: &str, notice: &Notice) {
    let (priority, title) = match notice {
        Notice::Order(_) => (CRITICAL, "Holdfast stopped: the server broke the order of operations"),
        Notice::Data(_) => (ERROR, "Holdfast: the server gave wrong data"),
    };
    say(priority, title, &format!("{address}: {notice}"));
}

/// Sends a notice of what a declared restore of the server cost this device.
pub fn tell_restored(address: &str, words: &str) {
    say(WARNING, "Holdfast: the server was put back to an older state", &format!("{address}: {words}"));
}

/// Sends a notice of what became of this device's operations that such a restore lost.
pub fn tell_sent_again(address: &str, report: &ResendReport) {
    let title = "Holdfast: what a restore of the server lost was sent again";
    let is_well = report.trouble.is_none() && report.not_made_count == 0 && report.conflicts.is_empty();
    let rest = if is_well { "" } else { " `holdfast status` says more." };
    say(if is_well { NOTICE } else { WARNING }, title, &format!("{address}: {report}{rest}"));
}

/// Sends a notice of a conflict between changes made here and elsewhere.
pub fn tell_conflict(address: &str, told: &ConflictReport) {
    let title = "Holdfast: a file was changed here and elsewhere";
    say(WARNING, title, &format!("{address}: {}: {}", told.path, told.what));
}

/// Sends a notice that the newest head is too old, or is fresh again.
pub fn tell_stale(address: &str, is_stale: bool, words: &str) {
    let title = match is_stale {
        true => "Holdfast: what the server shows may be out of date",
        false => "Holdfast: what the server shows is up to date again",
    };
    say(if is_stale { WARNING } else { NOTICE }, title, &format!("{address}: {words}"));
}

/// Sends a notice that a peer is lost, or is not waited for any more.
pub fn tell_peer(address: &str, is_lost: bool, words: &str) {
    let title = match is_lost {
        true => "Holdfast: a device that was met directly is silent",
        false => "Holdfast: a device that was silent is not waited for any more",
    };
    say(if is_lost { WARNING } else { NOTICE }, title, &format!("{address}: {words}"));
}

fn say(priority: u8, title: &'static str, text: &str) {
    let line = one_line(text);
    if !to_journal(Path::new(JOURNAL), priority, &line) {
        to_syslog(Path::new(SYSLOG), priority, &line);
    }
    notify(title, &line);
}

/// The text as one line of bounded length, without control characters.
fn one_line(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut end = line.len().min(LINE_BYTES_MAX);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line
}

/// Writes in the journal's own protocol: one datagram of fields.
fn to_journal(socket: &Path, priority: u8, line: &str) -> bool {
    let text = format!("MESSAGE={line}\nPRIORITY={priority}\nSYSLOG_IDENTIFIER=holdfast\n");
    send(socket, text.as_bytes())
}

/// Writes in the format of RFC 3164, which every local system log accepts.
fn to_syslog(socket: &Path, priority: u8, line: &str) -> bool {
    let text = format!("<{}>holdfast[{}]: {line}", FACILITY_USER | priority, std::process::id());
    send(socket, text.as_bytes())
}

fn send(socket: &Path, bytes: &[u8]) -> bool {
    let sent = || {
        let from = UnixDatagram::unbound()?;
        from.set_nonblocking(true)?;
        from.send_to(bytes, socket)
    };
    sent().is_ok()
}

/// Shows a notification, if there is a session's message bus and the usual program for it is installed.
fn notify(title: &'static str, line: &str) {
    let session = std::env::var_os("DBUS_SESSION_BUS_ADDRESS").is_some()
        || PathBuf::from(format!("/run/user/{}/bus", geteuid().as_raw())).exists();
    if !session {
        return;
    }
    let spawned = Command::new("notify-send")
        .args(["--urgency=critical", "--app-name=Holdfast", "--", title, line])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Ok(mut child) = spawned {
        // Reaps the program.
        let _ = std::thread::Builder::new().name("notification".to_owned()).spawn(move || child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(send: impl FnOnce(&Path) -> bool) -> String {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("socket");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        assert!(send(&path));
        let mut bytes = [0; 2 * LINE_BYTES_MAX];
        let length = socket.recv(&mut bytes).expect("a datagram");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Proves: both system logs get the message with its urgency, and a name in it cannot forge another
    /// field.
    #[test]
    fn system_logs() {
        let line = one_line("altered data in a\nPRIORITY=7");
        let journal = received(|path| to_journal(path, CRITICAL, &line));
        assert_eq!(journal, "MESSAGE=altered data in a PRIORITY=7\nPRIORITY=2\nSYSLOG_IDENTIFIER=holdfast\n");
        let syslog = received(|path| to_syslog(path, ERROR, &line));
        assert!(syslog.starts_with("<11>holdfast[") && syslog.ends_with(&line), "{syslog}");
        assert!(!to_journal(Path::new("/nonexistent/socket"), ERROR, &line));
        assert!(one_line(&"\u{e9}".repeat(LINE_BYTES_MAX)).len() <= LINE_BYTES_MAX);
    }
}
