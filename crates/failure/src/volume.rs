//! Errors of protected volumes.

use crate::{Exit, Failure};

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
            | VolumeError::Anchor(_)
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
