//! Errors of the client, of its mounts, and of exports and bundles.

use crate::{Exit, Failure};
use holdfast_client::admin::DeclareError;
use holdfast_client::processes::ProcessesError;
use holdfast_client::rebuild::bundle::BundleError;
use holdfast_client::state::StateError;
use holdfast_client::state::export::ExportError;
use holdfast_client::statement::UnusableStatement;
use holdfast_client::{FsError, StartError};

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
            | FsError::LookAgain
            | FsError::Deadlock
            | FsError::TooManyLocks
            | FsError::LockLost
            | FsError::Interrupted => Exit::Failed,
        };
        Failure::new(code, error)
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

impl From<ProcessesError> for Failure {
    fn from(error: ProcessesError) -> Failure {
        let code = match &error {
            ProcessesError::Component(_) => Exit::System,
            ProcessesError::InUse => Exit::InUse,
            ProcessesError::File { .. } => Exit::Io,
            ProcessesError::Key(_) => Exit::Unavailable,
        };
        let failure = Failure::new(code, &error);
        match error {
            ProcessesError::Component(_) => failure.hint(
                "`holdfast components --check` shows what is lacking: user namespaces (sysctl \
                 user.max_user_namespaces), the descriptor for system calls that containers take for themselves, and, \
                 if --require-sandbox asks for it, Landlock (Linux 6.12, and landlock in the kernel's lsm= list)",
            ),
            _ => failure,
        }
    }
}

impl From<ExportError> for Failure {
    fn from(error: ExportError) -> Failure {
        let (code, hint) = match &error {
            ExportError::State(StateError::InUse) => {
                (Exit::InUse, "unmount first: `holdfast status` shows what is mounted with this key")
            }
            ExportError::State(StateError::Full | StateError::Failed(_)) => (Exit::Io, ""),
            ExportError::State(_) => (Exit::Data, ""),
            ExportError::Nothing(_) => {
                (Exit::NoInput, "is it the right address, the right key, and the right user of this machine?")
            }
            ExportError::Unsent(_) => (Exit::Failed, ""),
            ExportError::Older { .. } => {
                (Exit::NotAllowed, "use the newest file; if it is lost, enrol a new key for this machine")
            }
            ExportError::NoState(_) => (Exit::Data, ""),
            ExportError::OtherKey { .. } => (Exit::NoInput, ""),
            ExportError::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::AlreadyExists => (Exit::CannotCreate, "files are never overwritten"),
                std::io::ErrorKind::NotFound => (Exit::NoInput, ""),
                _ => (Exit::Io, ""),
            },
        };
        let failure = Failure::new(code, &error);
        if hint.is_empty() { failure } else { failure.hint(hint) }
    }
}

impl From<DeclareError> for Failure {
    fn from(error: DeclareError) -> Failure {
        match &error {
            DeclareError::InUse => {
                Failure::new(Exit::InUse, error).hint("unmount what is mounted with it: `holdfast status`")
            }
            DeclareError::State(..) => Failure::new(Exit::Data, error)
                .hint("declare it on the machine where the superuser's key was used last"),
            DeclareError::Key(_) | DeclareError::Unreachable(_) => Failure::new(Exit::Unavailable, error),
            DeclareError::Refused(_) => Failure::new(Exit::Failed, error)
                .hint("start the server with --restored, once, after its data directory was put back"),
            DeclareError::NoRestore(_) => Failure::new(Exit::Alarm, error),
        }
    }
}

impl From<BundleError> for Failure {
    fn from(error: BundleError) -> Failure {
        let code = match &error {
            BundleError::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::AlreadyExists => Exit::CannotCreate,
                std::io::ErrorKind::NotFound => Exit::NoInput,
                _ => Exit::Io,
            },
            BundleError::Damaged { .. } => Exit::Data,
        };
        let hint = match &error {
            BundleError::Damaged { .. } => "have it made again (`holdfast fs bundle`), and copied as a whole",
            _ => return Failure::new(code, error),
        };
        Failure::new(code, error).hint(hint)
    }
}

impl From<UnusableStatement> for Failure {
    fn from(error: UnusableStatement) -> Failure {
        let failure = Failure::new(Exit::Data, &error);
        match error {
            UnusableStatement::NoMembership { .. } => failure.hint(
                "have it made again where it was kept, with `holdfast evidence export`: that takes along what is needed",
            ),
            _ => failure,
        }
    }
}
