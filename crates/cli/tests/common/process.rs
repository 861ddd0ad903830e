//! A process that a test starts, kills and starts again, with all its output in one log.

use super::{eventually, run};
use std::fs::OpenOptions;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A process that listens on a port of this machine; dropping it ends the process.
#[derive(Default)]
pub struct Process(Option<Child>);

impl Process {
    /// Starts the process, and waits until it listens.
    #[track_caller]
    pub fn start(&mut self, command: &mut Command, log: &Path, port: u16) {
        self.begin(command, log);
        eventually("it listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    /// Starts the process without waiting.
    #[track_caller]
    pub fn begin(&mut self, command: &mut Command, log: &Path) {
        assert!(self.0.is_none(), "it runs already");
        let log = OpenOptions::new().create(true).append(true).open(log).expect("a log file");
        let command =
            command.stdin(Stdio::null()).stdout(log.try_clone().expect("a second handle")).stderr(log);
        self.0 = Some(command.spawn().expect("it starts"));
    }

    fn take(&mut self) -> Child {
        self.0.take().expect("it runs")
    }

    /// Ends the process as a power failure would.
    pub fn kill(&mut self) {
        let mut child = self.take();
        child.kill().expect("a child can be killed");
        child.wait().expect("it ends");
    }

    /// Sends the process a signal.
    pub fn signal(&self, signal: &str) {
        let child = self.0.as_ref().expect("it runs");
        run(Command::new("kill").arg(signal).arg(child.id().to_string()));
    }

    /// Ends the process as its operator would (SIGTERM).
    pub fn stop(&mut self) {
        let mut child = self.take();
        run(Command::new("kill").arg(child.id().to_string()));
        let ended = child.wait().expect("it ends");
        // A process that listens already may not handle signals yet: then SIGTERM ends it.
        assert!(ended.success() || ended.signal() == Some(15), "{ended}");
    }

    /// Waits until the process ends by itself, with a failure.
    pub fn ends(&mut self) {
        let mut child = self.take();
        eventually("it ends", || child.try_wait().expect("it is a child").is_some());
        assert!(!child.wait().expect("it has ended").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
