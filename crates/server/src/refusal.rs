//! Why a request is not carried out, before it becomes the reply to the client.

use holdfast_log::LogError;
use holdfast_protocol::message::ServerError;
use holdfast_protocol::sequencer::Refusal;
use holdfast_store::StoreError;

/// Why a request is not carried out.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The client gets this error, and the server goes on.
    Client(ServerError),
    /// The storage cannot make anything durable any more, so the server must end.
    Fatal(String),
}

/// Refuses a request that breaks the rules.
pub(crate) fn refuse<T>(why: impl Into<String>) -> Result<T, RequestError> {
    Err(RequestError::Client(ServerError::Invalid(why.into())))
}

impl RequestError {
    pub(crate) fn into_error(self) -> ServerError {
        match self {
            RequestError::Client(error) => error,
            RequestError::Fatal(why) => ServerError::Storage(why),
        }
    }
}

impl From<ServerError> for RequestError {
    fn from(error: ServerError) -> Self {
        RequestError::Client(error)
    }
}

impl From<Refusal> for RequestError {
    fn from(refusal: Refusal) -> Self {
        RequestError::Client(refusal.into())
    }
}

impl From<StoreError> for RequestError {
    fn from(error: StoreError) -> Self {
        match error {
            error if error.is_full() => RequestError::Client(ServerError::NoSpace),
            StoreError::OverQuota { used, limit, .. } => {
                RequestError::Client(ServerError::OverQuota { used, limit })
            }
            StoreError::Busy => RequestError::Client(ServerError::Busy),
            StoreError::Refused(why) => RequestError::Client(ServerError::Invalid(why)),
            StoreError::Log(LogError::Poisoned(why)) => RequestError::Fatal(why),
            other => {
                tracing::error!(error = %other, "the storage failed");
                RequestError::Client(ServerError::Storage(other.to_string()))
            }
        }
    }
}

impl From<crate::tree::TreeError> for RequestError {
    fn from(error: crate::tree::TreeError) -> Self {
        tracing::error!(%error, "the log of updates failed");
        RequestError::Client(ServerError::Storage(error.to_string()))
    }
}
