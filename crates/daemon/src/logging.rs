//! Logs: to standard error in the foreground, or to a rotated file for daemons.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Bytes at which a log is rotated.
const LOG_BYTES_MAX: u64 = 8 << 20;
/// How many rotated logs stay, as `log.1` (newest) and so on.
const LOGS_KEPT: u32 = 3;

fn filter() -> EnvFilter {
    EnvFilter::try_from_env("HOLDFAST_LOG").unwrap_or_else(|_| EnvFilter::new("info"))
}

/// Logs to standard error. `HOLDFAST_LOG` sets the level, as in `debug` or `warn,holdfast_client=trace`.
/// `info,operation=trace` logs for each signed operation how long its parts take, as spans with durations.
pub fn to_stderr() {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter())
        .with_span_events(FmtSpan::CLOSE)
        .with_target(false)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .with_writer(io::stderr)
        .try_init();
}

/// Logs to `path`.
///
/// # Errors
/// The file cannot be opened.
pub fn to_file(path: &Path) -> io::Result<()> {
    let log = RotatingLog::open(path)?;
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter())
        .with_span_events(FmtSpan::CLOSE)
        .with_target(false)
        .with_ansi(false)
        .with_writer(log)
        .try_init();
    Ok(())
}

/// A log file that is renamed when it has grown too large.
#[derive(Clone)]
struct RotatingLog(Arc<Mutex<Inner>>);

struct Inner {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl RotatingLog {
    fn open(path: &Path) -> io::Result<RotatingLog> {
        let (file, bytes) = open(path)?;
        Ok(RotatingLog(Arc::new(Mutex::new(Inner { path: path.to_owned(), file, bytes }))))
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

impl Inner {
    fn turn_over(&mut self) -> io::Result<()> {
        let numbered = |number: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        for number in (1..LOGS_KEPT).rev() {
            match std::fs::rename(numbered(number), numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(&self.path, numbered(1))?;
        (self.file, self.bytes) = open(&self.path)?;
        Ok(())
    }
}

impl Write for RotatingLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if inner.bytes > LOG_BYTES_MAX {
            // If the log cannot be rotated it keeps growing, which is better than losing its lines.
            let _ = inner.turn_over();
        }
        inner.file.write_all(bytes)?;
        inner.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).file.flush()
    }
}

impl MakeWriter<'_> for RotatingLog {
    type Writer = RotatingLog;

    fn make_writer(&self) -> RotatingLog {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a log that has grown is renamed, older ones move up, and no more than the limit stay.
    #[test]
    fn logs_turn_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        let mut log = RotatingLog::open(&path).expect("a log");
        for round in 0..6u8 {
            log.write_all(&[b'0' + round]).expect("written");
            log.0.lock().expect("not poisoned").bytes = LOG_BYTES_MAX + 1;
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).ok();
        assert_eq!(read("log").as_deref(), Some("5"));
        assert_eq!(read("log.1").as_deref(), Some("4"));
        assert_eq!(read("log.3").as_deref(), Some("2"));
        assert_eq!(read("log.4"), None);
    }
}
