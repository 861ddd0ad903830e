//! The front end as a component: it holds listening sockets and a channel to the back end, and nothing else.

use super::log::LogForwarder;
use super::messages::{BACK_END_PORT, BackEndReply, BackEndRequest, FrontEndSettings};
use holdfast_components::{Asker, ComponentError, Context, Ended, Patience, ReceivedReply};
use holdfast_crypto::{PublicKey, Signature};
use holdfast_rpc::Listeners;
use holdfast_rpc::privsep::{self, BackEnd, BackEndError};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// How long a request to the back end may take. It signs and verifies, and does not touch the disk.
const PATIENCE: Duration = Duration::from_secs(5);

/// The files that a front end holds.
pub(crate) const TCP: &str = "tcp";
pub(crate) const UDP: &str = "udp";
pub(crate) const COUNTERS: &str = "counters";

/// The entry of the table of components.
pub fn main(context: Context) -> ExitCode {
    match run(&context) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(context: &Context) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let orders: FrontEndSettings = borsh::from_slice(&context.configuration).map_err(|error| text(&error))?;
    let tcp = context.ports.take_file(TCP).ok_or("it was handed no listener")?;
    let udp = context.ports.take_file(UDP).map(std::net::UdpSocket::from);
    privsep::use_diagnosis_socket(context.ports.take_file(COUNTERS));
    let back_end = Arc::new(BackEndClient(context.ports.asker(BACK_END_PORT).map_err(|error| text(&error))?));
    let _ = tracing::subscriber::set_global_default(LogForwarder(back_end.clone()));
    let stop_signal = context.ports.orders().ok_or("it has no supervisor")?;
    let stop_signal = stop_signal.try_clone_to_owned().map_err(|error| text(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| text(&error))?;
    runtime
        .block_on(async {
            let tcp = tokio::net::TcpListener::from_std(std::net::TcpListener::from(tcp))?;
            let key = PublicKey(orders.key);
            let stopped = stopped(context, stop_signal);
            privsep::run(Listeners { tcp, udp }, key, back_end, orders.limits(), stopped).await
        })
        .map_err(|error| text(&error))
}

/// Completes when the supervisor asks for the end, or is gone.
#[expect(
    deprecated,
    reason = "what took its place is unsafe; an owned descriptor stays open, which is all it needs"
)]
async fn stopped(context: &Context, stop_signal: OwnedFd) {
    let Ok(stop_signal) = AsyncFd::new(stop_signal) else { return };
    while let Ok(mut ready) = stop_signal.readable().await {
        match context.ports.attend(Patience::Never) {
            Ok(None) => ready.clear_ready(),
            Ok(Some(Ended::Stopped | Ended::Orphaned)) | Err(_) => return,
        }
    }
}

/// Sends requests to the back end.
pub(super) struct BackEndClient(Asker<BackEndRequest, BackEndReply>);

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
        // A line that cannot be logged changes nothing.
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
