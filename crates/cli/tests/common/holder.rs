//! A program that keeps a file open and writes to it as a test says.
//!
//! A test must not hold a file with something unpublished in it by itself: a command that a test beside it starts
//! gets copies of all descriptors of the process, closes them, and every close publishes.

use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Opens the file that its argument names. Then, for each line, it writes the bytes that the line has in hexadecimal,
/// or synchronizes if the line is empty, and prints the number of the error, or 0.
const PROGRAM: &str = "
import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
print(0, flush=True)
for line in sys.stdin:
    data = bytes.fromhex(line)
    try:
        if not data: os.fsync(file)
        while data: data = data[os.write(file, data):]
        print(0, flush=True)
    except OSError as error:
        print(error.errno, flush=True)
";

/// The running program. It closes the file and ends when this is dropped.
pub struct Holder {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Holder {
    /// Opens a file to read and write, and makes it if it is not there.
    #[track_caller]
    pub fn open(path: &Path) -> Holder {
        Holder::try_open(path).expect("the file opens")
    }

    /// Opens a file as [`Holder::open`] does, and returns why it could not be opened.
    pub fn try_open(path: &Path) -> Result<Holder> {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 runs");
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("its output"));
        let mut holder = Holder { child, requests, answers };
        holder.answer().map(|()| holder)
    }

    /// Writes where the last write ended.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        let hexadecimal: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
        self.request(&hexadecimal)
    }

    /// Calls fsync.
    pub fn sync(&mut self) -> Result<()> {
        self.request("")
    }

    fn request(&mut self, line: &str) -> Result<()> {
        writeln!(self.requests.as_mut().expect("it runs"), "{line}").expect("it listens");
        self.answer()
    }

    fn answer(&mut self) -> Result<()> {
        let mut line = String::new();
        if self.answers.read_line(&mut line).expect("it answers") == 0 {
            // The program could not open the file, and has ended.
            return Err(ErrorKind::UnexpectedEof.into());
        }
        match line.trim().parse().expect("the number of an error") {
            0 => Ok(()),
            number => Err(Error::from_raw_os_error(number)),
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}
