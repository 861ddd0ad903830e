//! The requests that a front end sends to its back end.

use super::messages::{BackEndReply, BackEndRequest};
use holdfast_components::{Asker, ComponentError, Patience, ReceivedReply};
use holdfast_crypto::Signature;
use holdfast_rpc::privsep::{BackEnd, BackEndError};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a request to the back end may take. The back end signs and verifies, and does not access the
/// disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends requests to the back end.
pub(super) struct BackEndClient(pub(super) Asker<BackEndRequest, BackEndReply>);

impl BackEndClient {
    fn ask(
        &self,
        request_body: &BackEndRequest,
        files: &[OwnedFd],
    ) -> Result<ReceivedReply<BackEndReply>, BackEndError> {
        let patience = Patience::of(PATIENCE);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let ticket = self.0.start(0, request_body, &files, patience).map_err(refused)?;
        self.0.finish(ticket, patience).map_err(|error| {
            self.0.forget(ticket);
            refused(error)
        })
    }

    pub(super) fn say(&self, warning: bool, text: String) {
        // A log line that is lost does no harm.
        let _ = self.ask(&BackEndRequest::Log { warning, text }, &[]);
    }
}

fn refused(error: ComponentError) -> BackEndError {
    match error {
        ComponentError::Refused { refusal, .. } => BackEndError(refusal.to_string()),
        error => BackEndError(error.to_string()),
    }
}

fn strange<T>() -> Result<T, BackEndError> {
    Err(BackEndError("the back end sent another reply than the request needs".to_owned()))
}

impl BackEnd for BackEndClient {
    fn nonce(&self) -> Result<[u8; 32], BackEndError> {
        match self.ask(&BackEndRequest::Nonce, &[])?.body {
            BackEndReply::Nonce(nonce) => Ok(nonce),
            _ => strange(),
        }
    }

    fn sign(&self, transcript: Vec<u8>) -> Result<Signature, BackEndError> {
        match self.ask(&BackEndRequest::Sign { transcript }, &[])?.body {
            BackEndReply::Signature(signature) => Ok(Signature(signature)),
            _ => strange(),
        }
    }

    fn introduce(
        &self,
        transcript: Vec<u8>,
        signature: Vec<u8>,
        address: SocketAddr,
        tcp: Option<OwnedFd>,
    ) -> Result<UnixStream, BackEndError> {
        let files: Vec<OwnedFd> = tcp.into_iter().collect();
        let request_body = BackEndRequest::Introduce { transcript, signature, address: address.into() };
        let ReceivedReply { body, files, .. } = self.ask(&request_body, &files)?;
        match (body, <[OwnedFd; 1]>::try_from(files)) {
            (BackEndReply::Introduced, Ok([stream])) => Ok(stream.into()),
            _ => strange(),
        }
    }
}
