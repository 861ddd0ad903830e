//! Why a request is not carried out, before it is told to the client.

use holdfast_log::LogError;
use holdfast_protocol::message::ServerError;
use holdfast_protocol::sequencer::Refusal;
use holdfast_store::StoreError;

/// A request that is not carried out.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The client hears this; the server goes on.
    Client(ServerError),
    /// The storage can promise nothing any more; the server must end.
    Fatal(String),
}

/// Refuses a request that breaks the rules.
pub(crate) fn refuse<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused::Client(ServerError::Invalid(why.into())))
}

impl Refused {
    pub(crate) fn into_error(self) -> ServerError {
        match self {
            Refused::Client(error) => error,
            Refused::Fatal(why) => ServerError::Storage(why),
        }
    }
}

impl From<ServerError> for Refused {
    fn from(error: ServerError) -> Self {
        Refused::Client(error)
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Refused::Client(refusal.into())
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        match error {
            error if error.is_full() => Refused::Client(ServerError::NoSpace),
            StoreError::OverQuota { used, limit, .. } => {
                Refused::Client(ServerError::OverQuota { used, limit })
            }
            StoreError::Busy => Refused::Client(ServerError::Busy),
            StoreError::Refused(why) => Refused::Client(ServerError::Invalid(why)),
            StoreError::Log(LogError::Poisoned(why)) => Refused::Fatal(why),
            other => {
                tracing::error!(error = %other, "the storage failed");
                Refused::Client(ServerError::Storage(other.to_string()))
            }
        }
    }
}

impl From<crate::tree::TreeError> for Refused {
    fn from(error: crate::tree::TreeError) -> Self {
        tracing::error!(%error, "the log of updates failed");
        Refused::Client(ServerError::Storage(error.to_string()))
    }
}
