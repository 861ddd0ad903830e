//! Errors of publishing, serving and reading releases.

use crate::{Exit, Failure, without_sandbox};
use holdfast_release::admit::AdmitError;
use holdfast_release::draft::DraftError;
use holdfast_release::mirror::MirrorError;
use holdfast_release::open::OpenError;
use holdfast_release::publish::PublishError;
use holdfast_release::publish::publication::PublicationError;
use holdfast_release::pull::PullError;
use holdfast_release::release_dir::ReleaseDirError;
use holdfast_release::send::SendError;

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

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Failure {
        let code = match &error {
            PublishError::Local { .. } => Exit::Io,
            PublishError::Damaged { .. } => Exit::Data,
            PublishError::Changing { .. } => Exit::InUse,
            PublishError::Live { .. } | PublishError::NotHeld(_) => Exit::Unavailable,
            PublishError::Misbehaved(_) => Exit::Data,
            PublishError::Sandbox(_) => {
                return Failure::new(Exit::System, error.to_string()).hint(without_sandbox(
                    "`holdfast release publish --one-process` parses the tree in the process that has the keys",
                ));
            }
            PublishError::Unfit { .. } | PublishError::Ended(_) | PublishError::Stopped => Exit::Failed,
        };
        Failure::new(code, error.to_string())
    }
}

impl From<ReleaseDirError> for Failure {
    fn from(error: ReleaseDirError) -> Failure {
        let code = match &error {
            ReleaseDirError::Missing(_) => Exit::NoInput,
            ReleaseDirError::Malformed { .. }
            | ReleaseDirError::Keys { .. }
            | ReleaseDirError::Record { .. }
            | ReleaseDirError::Revocation { .. } => Exit::Data,
            ReleaseDirError::Newer { .. } => Exit::CannotCreate,
            ReleaseDirError::Io { .. } => Exit::Io,
        };
        Failure::new(code, error)
    }
}

impl From<DraftError> for Failure {
    fn from(error: DraftError) -> Failure {
        let code = match &error {
            DraftError::NotASigner(_) => Exit::NotAllowed,
            DraftError::NotSigned(_) => Exit::Unavailable,
            DraftError::Unfinished(_) | DraftError::Different => Exit::Failed,
            DraftError::Keys(_)
            | DraftError::Record(_)
            | DraftError::Revocation(_)
            | DraftError::Signature(_)
            | DraftError::Unfit(_) => Exit::Data,
        };
        Failure::new(code, error)
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Failure {
        let text = error.to_string();
        match error {
            SendError::Disk(error) => error.into(),
            SendError::Directory(error) => error.into(),
            SendError::Bucket(_) => Failure::new(Exit::Unavailable, text),
            SendError::Away { .. } => Failure::new(Exit::Unavailable, text)
                .hint("what was sent is not sent again: run the same once more when it is back"),
            SendError::Nothing(_) => {
                Failure::new(Exit::NoInput, text).hint("`holdfast release publish` puts one there")
            }
            SendError::Foreign { .. } => Failure::new(Exit::CannotCreate, text),
            SendError::Behind { .. } => Failure::new(Exit::Protocol, text)
                .hint("`holdfast release pull` brings the directory up to date; then publish or send again"),
            SendError::Stopped => Failure::new(Exit::Failed, text),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let text = error.to_string();
        match error {
            OpenError::Final(AdmitError::Revoked { .. }) => Failure::new(Exit::NotAllowed, text)
                .hint("ask the publisher where its successor is; nothing of this release is to be trusted"),
            OpenError::Final(_) | OpenError::Trust(_) => Failure::new(Exit::Data, text),
            OpenError::NoMirror { why, .. } => {
                let unreachable = why
                    .iter()
                    .all(|error| matches!(error, AdmitError::Mirror(MirrorError::Unreachable { .. })));
                let failure =
                    Failure::new(if unreachable { Exit::Unavailable } else { Exit::Protocol }, text);
                failure.hint(match unreachable {
                    true => "check the address, or name another mirror with --mirror",
                    false => "try another mirror with --mirror; if all are behind, ask the publisher",
                })
            }
            OpenError::Blocks(_) => {
                Failure::new(Exit::Unavailable, text).hint("name another mirror with --mirror")
            }
        }
    }
}

impl From<PullError> for Failure {
    fn from(error: PullError) -> Failure {
        let text = error.to_string();
        match error {
            PullError::Open(error) => error.into(),
            PullError::Disk(error) => error.into(),
            PullError::Unavailable(..) => {
                Failure::new(Exit::Unavailable, text).hint("try again, or name another mirror with --mirror")
            }
            PullError::Torn { .. } | PullError::Behind { .. } => Failure::new(Exit::Protocol, text),
            PullError::Foreign { .. } => Failure::new(Exit::CannotCreate, text),
            PullError::NoRoom { .. } => Failure::new(Exit::Io, text),
            PullError::Stopped => Failure::new(Exit::Failed, text),
        }
    }
}

impl From<PublicationError> for Failure {
    fn from(error: PublicationError) -> Failure {
        let text = error.to_string();
        match error {
            PublicationError::Publish(error) => error.into(),
            PublicationError::Directory(error) => error.into(),
            PublicationError::Draft(error) => error.into(),
            PublicationError::Fetch(error) => error.into(),
            PublicationError::Send(error) => error.into(),
            PublicationError::Copy { copy, error } => Failure::from(*error)
                .hint(format!("remove {}: it is made again from the bucket", copy.display())),
            PublicationError::NotEmpty(_) => {
                Failure::new(Exit::CannotCreate, text).hint("name an empty directory, or one of a release")
            }
            PublicationError::NotYours { .. } => {
                Failure::new(Exit::CannotCreate, text).hint("name another prefix, or one of its keys")
            }
            PublicationError::NotAdmitted(_) => Failure::new(Exit::Protocol, text)
                .hint("put back what is there now, or publish to another prefix"),
            PublicationError::NotMade { .. } => Failure::new(Exit::CannotCreate, text),
            PublicationError::Address(_) => Failure::new(Exit::Usage, text),
            PublicationError::Trust(_) => Failure::new(Exit::Data, text),
            PublicationError::Stopped(_) => Failure::new(Exit::Failed, text),
        }
    }
}
