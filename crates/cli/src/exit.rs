//! Exit codes (after sysexits.h) and the one error type that carries them to `main`.

use holdfast_client::{FsError, StartError};
use holdfast_log::LogError;
use holdfast_store::StoreError;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the process ends with. The numbers are part of the interface: never renumber.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Exit {
    /// It was done.
    Done = 0,
    /// It was not done, for a reason that has no code of its own.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 64,
    /// Stored data (state, cache, evidence, a server's data directory) is damaged.
    Data = 65,
    /// A file that was named, such as a key file, is missing or unreadable.
    NoInput = 66,
    /// The key, user, group or device is not known to the file system.
    NoUser = 67,
    /// The address is wrong: no such host, or the server has no such file system.
    NoHost = 68,
    /// The server does not answer, or the agent that keeps the key does not sign.
    Unavailable = 69,
    /// A mistake in holdfast itself.
    Internal = 70,
    /// The operating system refused something needed.
    System = 71,
    /// A file that should be made exists already or cannot be made.
    CannotCreate = 73,
    /// Reading or writing a local disk failed, or it is full.
    Io = 74,
    /// Somebody else is using it now: state, data directory, busy mount.
    InUse = 75,
    /// The server is not the one of this address, or speaks no common protocol.
    Protocol = 76,
    /// Not allowed, or a key file that others can read.
    NotAllowed = 77,
    /// Written by a newer version of holdfast.
    Newer = 78,
    /// The mount point cannot be used.
    MountPoint = 79,
    /// ALARM: a server or a disk showed something that no honest one shows.
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
                "The server, a mount or the process behind it does not answer, or the agent that keeps the key does not sign."
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

/// Why a command was not carried out: for people, and for scripts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// For scripts.
    pub code: Exit,
    /// What happened, and to what.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// What commands return.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with a message.
    pub fn new(code: Exit, message: impl fmt::Display) -> Failure {
        Failure { code, message: message.to_string(), hint: None }
    }

    /// Adds what to do about it.
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

impl From<StartError> for Failure {
    fn from(error: StartError) -> Failure {
        let code = match &error {
            StartError::UnknownDevice { .. } | StartError::Removed { .. } => Exit::NoUser,
            StartError::StateMissing { .. }
            | StartError::StateForeign { .. }
            | StartError::StateMoved { .. }
            | StartError::StateCorrupt { .. } => Exit::Data,
            StartError::InUse { .. } => Exit::InUse,
            StartError::Unreachable(_) | StartError::Key(_) => Exit::Unavailable,
            StartError::UnknownFileSystem => Exit::NoHost,
            StartError::WrongServer(_) | StartError::Version(_) => Exit::Protocol,
            StartError::Frozen(_) => Exit::Alarm,
            StartError::Local { .. } => Exit::Io,
            StartError::First(error) => return error.clone().into(),
        };
        Failure::new(code, error)
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        let code = match &error {
            FsError::Integrity(_) | FsError::Frozen(_) => Exit::Alarm,
            FsError::Unreachable(_) | FsError::Outdated(_) | FsError::Key(_) => Exit::Unavailable,
            FsError::Access(_)
            | FsError::NotPermitted(_)
            | FsError::ReadOnly
            | FsError::Refused(_)
            | FsError::Expired(_)
            | FsError::Revoked(_) => Exit::NotAllowed,
            FsError::NoSpace | FsError::Quota { .. } | FsError::Local { .. } => Exit::Io,
            FsError::Busy => Exit::InUse,
            FsError::NotFound
            | FsError::Exists
            | FsError::NotDirectory
            | FsError::IsDirectory
            | FsError::NotEmpty
            | FsError::NameTooLong
            | FsError::Invalid(_)
            | FsError::NoData
            | FsError::TooLarge
            | FsError::Unsupported
            | FsError::Loop
            | FsError::CrossPrincipal
            | FsError::TooManyLinks
            | FsError::Stale
            | FsError::Deadlock
            | FsError::TooManyLocks
            | FsError::LockLost
            | FsError::Interrupted => Exit::Failed,
        };
        Failure::new(code, error)
    }
}

impl From<holdfast_volume::VolumeError> for Failure {
    fn from(error: holdfast_volume::VolumeError) -> Failure {
        use holdfast_log::ring::RingError;
        use holdfast_volume::VolumeError;
        let (code, hint) = match &error {
            VolumeError::Ring(RingError::RolledBack { .. } | RingError::Forked { .. }) => (
                Exit::Alarm,
                "somebody put back an older state, or it is a copy of another time: find out which; the data is not \
                 what was written last",
            ),
            VolumeError::Ring(RingError::NewerFormat { .. }) => (Exit::Newer, ""),
            VolumeError::Io { .. }
            | VolumeError::Stopped(_)
            | VolumeError::Ring(RingError::Io { .. } | RingError::Poisoned(_)) => (Exit::Io, ""),
            VolumeError::Size(_) => (Exit::NoInput, ""),
            VolumeError::NotOurs { .. } => (Exit::Data, "is it the right log, and the right key?"),
            VolumeError::NotAdopted { .. } | VolumeError::Range { .. } => (Exit::Failed, ""),
            VolumeError::BadBlock { .. } | VolumeError::BadMap { .. } | VolumeError::Ring(_) => {
                (Exit::Data, "")
            }
        };
        let failure = Failure::new(code, error);
        if hint.is_empty() { failure } else { failure.hint(hint) }
    }
}

impl From<holdfast_rpc::AddressError> for Failure {
    fn from(error: holdfast_rpc::AddressError) -> Failure {
        Failure::new(Exit::NoHost, error)
    }
}

impl From<holdfast_fuse::MountError> for Failure {
    fn from(error: holdfast_fuse::MountError) -> Failure {
        use holdfast_fuse::MountError;
        let code = match &error {
            MountError::Missing(_)
            | MountError::NotDirectory(_)
            | MountError::NotEmpty(_)
            | MountError::AlreadyMounted { .. }
            | MountError::InUse { .. }
            | MountError::NotMounted(_) => Exit::MountPoint,
            MountError::Busy { .. } => Exit::InUse,
            MountError::Refused { .. } | MountError::Table(_) => Exit::System,
        };
        Failure::new(code, error)
    }
}

impl From<holdfast_server::OpenError> for Failure {
    fn from(error: holdfast_server::OpenError) -> Failure {
        use holdfast_server::OpenError;
        let code = match &error {
            OpenError::Io { .. } => Exit::Io,
            OpenError::Key { .. } | OpenError::Tree(_) | OpenError::Ordering { .. } => Exit::Data,
            OpenError::KeyReadable { .. } => Exit::NotAllowed,
            OpenError::Store(error) => store_code(error),
            OpenError::Listen { .. } => Exit::System,
            OpenError::BlockStore(_) | OpenError::State(_) | OpenError::Order { .. } => Exit::Unavailable,
            OpenError::BlocksHere { .. } | OpenError::Converted(_) | OpenError::Foreign { .. } => Exit::Usage,
        };
        Failure::new(code, error)
    }
}

/// What to do where sandboxes cannot be made: look, and do without in this way.
pub fn without_sandbox(way: &str) -> String {
    let weaker = match holdfast_components::all_walls_are_required() {
        true => "; if it is only Landlock, leave out --require-sandbox",
        false => "",
    };
    format!("`holdfast components --check` says what this system lacks; {way}{weaker}")
}

impl From<holdfast_server::RunError> for Failure {
    fn from(error: holdfast_server::RunError) -> Failure {
        use holdfast_server::RunError;
        let code = match &error {
            RunError::Storage(_) => Exit::Io,
            RunError::Witness(_) => Exit::Usage,
            RunError::System(_) => Exit::System,
            RunError::Sandbox(_) => {
                return Failure::new(Exit::System, error).hint(without_sandbox(
                    "`holdfast server --one-process` serves without a sandboxed front end",
                ));
            }
        };
        Failure::new(code, error)
    }
}

impl From<holdfast_release::gateway::GatewayError> for Failure {
    fn from(error: holdfast_release::gateway::GatewayError) -> Failure {
        use holdfast_release::gateway::GatewayError;
        let code = match &error {
            GatewayError::Directory { .. } => Exit::NoInput,
            GatewayError::Listen { .. } | GatewayError::System(_) => Exit::System,
        };
        Failure::new(code, error)
    }
}

impl From<holdfast_release::serve::ServeError> for Failure {
    fn from(error: holdfast_release::serve::ServeError) -> Failure {
        use holdfast_release::serve::ServeError;
        let code = match &error {
            ServeError::Directory { .. } | ServeError::NoRelease { .. } => Exit::NoInput,
            ServeError::Listen { .. } | ServeError::System(_) => Exit::System,
        };
        Failure::new(code, error)
    }
}

fn store_code(error: &StoreError) -> Exit {
    match error {
        StoreError::Busy | StoreError::InUse { .. } => Exit::InUse,
        StoreError::NewerFormat { .. } | StoreError::Log(LogError::NewerFormat { .. }) => Exit::Newer,
        StoreError::Damaged { .. }
        | StoreError::IndexDamaged(_)
        | StoreError::MayBeDamaged { .. }
        | StoreError::OrderingDamaged { .. }
        | StoreError::NotAStore { .. }
        | StoreError::Log(LogError::Damaged { .. } | LogError::Lost { .. } | LogError::SegmentGone(_)) => {
            Exit::Data
        }
        StoreError::Log(_) | StoreError::Io { .. } | StoreError::Index(_) => Exit::Io,
        StoreError::Refused(_) | StoreError::OverQuota { .. } => Exit::NotAllowed,
    }
}
