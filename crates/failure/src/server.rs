//! Errors of servers, block servers, rebuilds and witnesses.

use crate::{Exit, Failure, without_sandbox};
use holdfast_log::LogError;
use holdfast_server::BlockServerError;
use holdfast_server::rebuild::RebuildError;
use holdfast_store::StoreError;
use holdfast_witness::{ServiceError, StateError};

impl From<holdfast_server::OpenError> for Failure {
    fn from(error: holdfast_server::OpenError) -> Failure {
        use holdfast_server::{OpenError, OrderLocationError};
        let code = match &error {
            OpenError::Io { .. } => Exit::Io,
            OpenError::Key { .. } | OpenError::Tree(_) | OpenError::Ordering { .. } => Exit::Data,
            OpenError::KeyReadable { .. } => Exit::NotAllowed,
            OpenError::Store(error) => store_code(error),
            OpenError::Listen { .. } => Exit::System,
            OpenError::State(OrderLocationError::Etcd(_) | OrderLocationError::Access(_)) => {
                Exit::Unavailable
            }
            OpenError::State(OrderLocationError::Thread(_)) => Exit::System,
            OpenError::BlockStore(_) | OpenError::Order { .. } => Exit::Unavailable,
            OpenError::BlocksHere { .. }
            | OpenError::State(_)
            | OpenError::Converted(_)
            | OpenError::Foreign { .. } => Exit::Usage,
        };
        Failure::new(code, error)
    }
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

impl From<BlockServerError> for Failure {
    fn from(error: BlockServerError) -> Failure {
        let code = match error {
            BlockServerError::Open(error) => return error.into(),
            BlockServerError::InUse(_) => Exit::InUse,
            BlockServerError::Election(_) => Exit::Unavailable,
            BlockServerError::Store { .. } => Exit::Data,
            BlockServerError::Bucket(_) | BlockServerError::InBucket { .. } => Exit::Unavailable,
        };
        Failure::new(code, error)
    }
}

impl From<RebuildError> for Failure {
    fn from(error: RebuildError) -> Failure {
        match error {
            RebuildError::Open(error) => error.into(),
            RebuildError::Damaged(_) => Failure::new(Exit::Data, error),
            RebuildError::OrderElsewhere { .. } => Failure::new(Exit::Usage, error),
            RebuildError::NoSpace | RebuildError::Storage(_) => Failure::new(Exit::Io, error),
        }
    }
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Failure {
        let code = match &error {
            StateError::Io { .. } => Exit::Io,
            StateError::Exists(_) => Exit::CannotCreate,
            StateError::Missing(_) => Exit::NoInput,
            StateError::InUse(_) => Exit::InUse,
            StateError::KeyReadable(_) => Exit::NotAllowed,
            StateError::Key { .. } | StateError::Damaged { .. } => Exit::Data,
            StateError::Name(_) => Exit::Usage,
        };
        Failure::new(code, error)
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Failure {
        match error {
            ServiceError::State(error) => error.into(),
            error => Failure::new(Exit::System, error),
        }
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
