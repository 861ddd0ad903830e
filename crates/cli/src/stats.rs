//! `holdfast fs stats`: the traffic of each mount, what caches saved, and the files that caused it.

use crate::args::Stats;
use crate::output::{Format, clean, line, table};
use crate::status::{self, Report};
use holdfast_daemon::mounts::status::{FileTraffic, MountDaemonStatus};
use holdfast_daemon::paths::Directories;
use holdfast_failure::Outcome;
use holdfast_fuse::mountpoint;
use indicatif::HumanBytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Files listed for each mount, unless the terminal has less room.
const FILES_SHOWN: usize = 10;
/// Escape codes that move the cursor to the top left and clear the screen.
const HOME: &str = "\x1b[H\x1b[2J";

/// `holdfast fs stats`
pub fn run(arguments: &Stats, directories: &Directories, format: Format) -> Outcome {
    if !arguments.watch {
        let report = status::gather(arguments.directory.as_deref(), directories)?;
        show(&report, None, arguments.all, FILES_SHOWN, format)?;
        return report.all_answer();
    }
    let terminal = Terminal::take();
    let pause = Duration::from_secs(arguments.interval.into());
    let mut before: Option<(Instant, Report)> = None;
    loop {
        let report = status::gather(arguments.directory.as_deref(), directories)?;
        if terminal.is_smart && format == Format::Text {
            let _ = write!(std::io::stdout(), "{HOME}");
        } else if before.is_some() && format == Format::Text {
            line("")?;
        }
        let now = Instant::now();
        let past = before.as_ref().map(|(at, report)| (report, now.duration_since(*at)));
        show(&report, past, arguments.all, terminal.files(), format)?;
        before = Some((now, report));
        if terminal.is_told_to_end(pause) {
            return Ok(());
        }
    }
}

fn show(
    report: &Report,
    past: Option<(&Report, Duration)>,
    all: bool,
    files: usize,
    format: Format,
) -> Outcome {
    let releases = report.releases.iter().filter_map(|release| {
        let figures: Value =
            serde_json::from_slice(&mountpoint::attribute(&release.directory, "user.holdfast.stats")?)
                .ok()?;
        Some((format!("{} on {}", release.address, release.directory.display()), figures))
    });
    let releases: Vec<(String, Value)> = releases.collect();
    if format == Format::Json {
        let of_process = |status: &MountDaemonStatus| {
            let mounts: Vec<&PathBuf> = status.mounts.iter().map(|mount| &mount.directory).collect();
            let mut figures = status.engine.clone();
            if let Value::Object(fields) = &mut figures {
                fields.insert("mounts".to_owned(), serde_json::json!(mounts));
                fields.insert("files".to_owned(), serde_json::json!(status.files));
            }
            (status.address.clone(), figures)
        };
        let mut figures: Vec<(String, Value)> =
            report.processes.iter().map(|process| of_process(&process.status)).collect();
        figures.extend(releases);
        return format.print(&figures, |_| String::new());
    }
    let mut sections = Vec::new();
    for process in &report.processes {
        let status = &process.status;
        let earlier = past.and_then(|(report, ago)| {
            let same = report.processes.iter().find(|one| one.status.process == status.process)?;
            Some((&same.status, ago))
        });
        sections.push(describe(status, earlier, files));
        if all {
            let mut rows = Vec::new();
            numbers("", &status.engine, &mut rows);
            sections.push(table(&rows));
        }
    }
    for (address, figures) in &releases {
        let mut rows = Vec::new();
        numbers("", figures, &mut rows);
        mirrors(figures, &mut rows);
        sections.push(format!("{address}\n{}", table(&rows)));
    }
    if sections.is_empty() {
        sections.push("Nothing is mounted.".to_owned());
    }
    line(&sections.join("\n\n"))
}

fn describe(
    status: &MountDaemonStatus,
    earlier: Option<(&MountDaemonStatus, Duration)>,
    files: usize,
) -> String {
    let number = |path: &[&str]| figure(&status.engine, path);
    let bytes = |path: &[&str]| HumanBytes(number(path)).to_string();
    let rate = |path: &[&str]| match earlier {
        Some((earlier, ago)) => {
            let more = number(path).saturating_sub(figure(&earlier.engine, path));
            format!(" ({}/s)", HumanBytes((more as f64 / ago.as_secs_f64().max(0.001)) as u64))
        }
        None => String::new(),
    };
    let asked = status
        .files
        .iter()
        .fold((0, 0), |(read, written), file| (read + file.traffic.read, written + file.traffic.written));
    let trips = number(&["rounds"]) + number(&["store", "retrieves"]) + number(&["store", "stores"]);
    let found = [&["store", "memory_hits"][..], &["store", "disk_hits"], &["store", "blocks_fetched"]];
    let found = found.map(number);
    let all: u64 = found.iter().sum();
    let share = |part: u64| if all == 0 { 0.0 } else { part as f64 / all as f64 * 100.0 };
    let mounts: Vec<String> =
        status.mounts.iter().map(|mount| mount.directory.display().to_string()).collect();
    let rows = [
        ("Programs read", HumanBytes(asked.0).to_string()),
        ("Programs wrote", HumanBytes(asked.1).to_string()),
        ("Received", bytes(&["bytes_received"]) + &rate(&["bytes_received"])),
        ("Sent", bytes(&["bytes_sent"]) + &rate(&["bytes_sent"])),
        (
            "Not transferred",
            format!(
                "{} found in memory, {} in the cache on disk, {} known to the server",
                bytes(&["store", "saved", "memory"]),
                bytes(&["store", "saved", "disk"]),
                bytes(&["store", "saved", "known"]),
            ),
        ),
        (
            "Compressed away",
            format!(
                "{} of what was received, {} of what was sent",
                bytes(&["store", "saved", "compression_received"]),
                bytes(&["store", "saved", "compression_sent"]),
            ),
        ),
        (
            "Blocks",
            format!(
                "{:.0}% found in memory, {:.0}% on disk, {:.0}% fetched",
                share(found[0]),
                share(found[1]),
                share(found[2])
            ),
        ),
        (
            "Memory",
            format!(
                "{} of cached blocks, {} at most",
                bytes(&["store", "memory_bytes"]),
                bytes(&["store", "memory_bytes_max"]),
            ),
        ),
        (
            "Round trips",
            format!(
                "{trips}, of which {} for {} signed operations, which {} requests share",
                number(&["rounds"]),
                number(&["operations"]),
                number(&["gathered"])
            ),
        ),
    ];
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|(name, says)| vec![format!("  {name}"), says]).collect();
    let title = format!("{} on {}", status.address, mounts.join(", "));
    format!("{}\n{}\n{}", clean(&title), table(&rows), top(&status.files, files))
}

fn top(files: &[FileTraffic], count: usize) -> String {
    let head = ["  Received", "Sent", "Read", "Written", "File"].map(str::to_owned).to_vec();
    let row = |file: &FileTraffic| {
        let [received, sent, read, written] =
            [file.traffic.received, file.traffic.sent, file.traffic.read, file.traffic.written]
                .map(|bytes| HumanBytes(bytes).to_string());
        vec![format!("  {received}"), sent, read, written, clean(&file.path)]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(files.iter().take(count).map(row)).collect();
    table(&rows)
}

fn figure(engine: &Value, path: &[&str]) -> u64 {
    path.iter().try_fold(engine, |value, name| value.get(name)).and_then(Value::as_u64).unwrap_or(0)
}

/// The terminal. If standard input is one, its keys are read at once and not echoed, until this is dropped.
struct Terminal {
    /// Whether standard output is a terminal that can be cleared.
    is_smart: bool,
    before: Option<Termios>,
}

impl Terminal {
    fn take() -> Terminal {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_smart = std::io::stdout().is_terminal() && !is_dumb;
        let before = tcgetattr(rustix::stdio::stdin()).ok();
        if let Some(before) = &before {
            let mut quiet = before.clone();
            quiet.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &quiet);
        }
        Terminal { is_smart, before }
    }

    /// The number of files for which there is room.
    fn files(&self) -> usize {
        let rows = if self.is_smart { tcgetwinsize(rustix::stdio::stdout()).ok() } else { None };
        rows.map_or(FILES_SHOWN, |size| usize::from(size.ws_row).saturating_sub(14).clamp(3, 64))
    }

    /// Waits. Returns whether the user pressed a key to end meanwhile.
    fn is_told_to_end(&self, pause: Duration) -> bool {
        if self.before.is_none() {
            std::thread::sleep(pause);
            return false;
        }
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(left) = rustix::time::Timespec::try_from(left) else { return true };
            let stdin = std::io::stdin();
            let mut heard = [PollFd::new(&stdin, PollFlags::IN)];
            match poll(&mut heard, Some(&left)) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return true,
            }
            let mut key = [0u8; 1];
            match rustix::io::read(&stdin, &mut key) {
                // Only q, Ctrl-C and Ctrl-D end it.
                Ok(1) if !matches!(key[0], b'q' | b'Q' | 3 | 4) => {}
                _ => return true,
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, before);
        }
    }
}

/// The status of each mirror of a release.
fn mirrors(figures: &Value, rows: &mut Vec<Vec<String>>) {
    for mirror in figures.get("mirrors").and_then(Value::as_array).into_iter().flatten() {
        let text = |name: &str| mirror.get(name).and_then(Value::as_str).map(clean);
        let number = |name: &str| mirror.get(name).and_then(Value::as_f64);
        let mut says = text("state").unwrap_or_default();
        if let (Some(latency), Some(speed)) = (number("latency_ms"), number("bytes_per_s")) {
            says += &format!(", answers in {latency:.1} ms, sends {:.1} MB/s", speed / 1e6);
        }
        let count = |name: &str| number(name).unwrap_or(0.0);
        says += &format!(", {} good answers, {} failures", count("answers"), count("failures"));
        if let Some(why) = text("why") {
            says += &format!(" ({why})");
        }
        rows.push(vec![format!("  mirror {}", text("mirror").unwrap_or_default()), says]);
    }
}

/// Every number in `value`, with its name.
fn numbers(name: &str, value: &Value, rows: &mut Vec<Vec<String>>) {
    match value {
        Value::Number(number) => rows.push(vec![format!("  {}", name.replace('_', " ")), number.to_string()]),
        Value::Object(fields) => {
            for (field, value) in fields {
                numbers(
                    &if name.is_empty() { field.clone() } else { format!("{name}: {field}") },
                    value,
                    rows,
                );
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) => {}
    }
}
