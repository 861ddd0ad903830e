//! What a command or a daemon reports when it fails: an exit code (after sysexits.h) for scripts, a message
//! that says what happened and to what, and a hint what to do. The errors of all crates are mapped to these
//! here.
#![forbid(unsafe_code)]

mod client;
mod release;
mod server;
mod volume;

use serde::{Deserialize, Serialize};
use std::fmt;

/// The exit code of the process. The numbers are part of the interface: never renumber them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Exit {
    /// The command was carried out.
    Done = 0,
    /// It was not carried out, for a reason without a code of its own.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 64,
    /// Stored data (state, cache, evidence, a server's data directory) is damaged.
    Data = 65,
    /// A named file, such as a key file, is missing or unreadable.
    NoInput = 66,
    /// The file system does not have the key, user, group or device.
    NoUser = 67,
    /// The address is wrong: no such host, or the server has no such file system.
    NoHost = 68,
    /// The server does not answer, the agent with the key does not sign, or a feature was left out of the
    /// program.
    Unavailable = 69,
    /// A mistake in holdfast itself.
    Internal = 70,
    /// The operating system refused something that is needed.
    System = 71,
    /// A file that should be created exists already or cannot be created.
    CannotCreate = 73,
    /// Reading or writing a local disk failed, or it is full.
    Io = 74,
    /// Another process is using it now: state, data directory, busy mount.
    InUse = 75,
    /// The server is not the one of this address, or there is no common protocol version.
    Protocol = 76,
    /// It is not allowed, or others can read a key file.
    NotAllowed = 77,
    /// It was written by a newer version of holdfast.
    Newer = 78,
    /// The mount point cannot be used.
    MountPoint = 79,
    /// ALARM: a server or a disk has shown something that no honest one shows.
    Alarm = 80,
}

impl Exit {
    /// Every code, in order.
    pub const ALL: [Exit; 18] = [
        Exit::Done,
        Exit::Failed,
        Exit::Usage,
        Exit::Data,
        Exit::NoInput,
        Exit::NoUser,
        Exit::NoHost,
        Exit::Unavailable,
        Exit::Internal,
        Exit::System,
        Exit::CannotCreate,
        Exit::Io,
        Exit::InUse,
        Exit::Protocol,
        Exit::NotAllowed,
        Exit::Newer,
        Exit::MountPoint,
        Exit::Alarm,
    ];

    /// What the code means, for the manual.
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::Done => "Done.",
            Exit::Failed => "Not done, for a reason without a code of its own.",
            Exit::Usage => "The command line makes no sense.",
            Exit::Data => "Stored data (client state, evidence, a server's data directory) is damaged.",
            Exit::NoInput => "A file that was named, such as a key file, is missing or unreadable.",
            Exit::NoUser => "The key, user, group or device is not known to the file system.",
            Exit::NoHost => "Wrong address: malformed, no such host, or no such file system on that server.",
            Exit::Unavailable => {
                "The server, a mount or the process behind it does not answer, the agent that keeps the key does not sign, or this program was built without what is asked for."
            }
            Exit::Internal => "A mistake in holdfast itself; please report it.",
            Exit::System => "The operating system refused something that is needed.",
            Exit::CannotCreate => "A file that should be made exists already or cannot be made.",
            Exit::Io => "Reading or writing a local disk failed, or it is full.",
            Exit::InUse => "In use by somebody else: client state, data directory, busy mount.",
            Exit::Protocol => "The server is not one of this file system's, or speaks no common protocol.",
            Exit::NotAllowed => "Not allowed, or a key file that others can read.",
            Exit::Newer => "Written by a newer version of holdfast.",
            Exit::MountPoint => "The mount point cannot be used: missing, not empty, in use, not mounted.",
            Exit::Alarm => "ALARM: a server or a disk showed something that no honest one shows.",
        }
    }
}

/// Why a command was not carried out, for people and for scripts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The exit code, for scripts.
    pub code: Exit,
    /// What happened, and to what.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// The result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with a message.
    pub fn new(code: Exit, message: impl fmt::Display) -> Failure {
        Failure { code, message: message.to_string(), hint: None }
    }

    /// Adds a hint what to do.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

/// The failure for a feature that was left out of this program when it was built.
pub fn built_without(feature: &str) -> Failure {
    Failure::new(Exit::Unavailable, format!("this holdfast was built without {feature}")).hint(format!(
        "build it with `cargo build --release -p holdfast-cli --features {feature}`, or install a package that has it; \
         `holdfast --version` says what it was built with"
    ))
}

/// The hint where sandboxes cannot be made: how to examine that, and how to do without them.
pub fn without_sandbox(way: &str) -> String {
    let weaker = match holdfast_components::all_walls_are_required() {
        true => "; if it is only Landlock, leave out --require-sandbox",
        false => "",
    };
    format!("`holdfast components --check` says what this system lacks; {way}{weaker}")
}
