//! The front end as a component: it holds listening sockets and a channel to the desk, and nothing else.

use super::grammar::{Ask, DESK, Orders, Told};
use super::words::Words;
use holdfast_components::{Asker, ComponentError, Context, Ended, Patience, ReceivedReply};
use holdfast_crypto::{PublicKey, Signature};
use holdfast_rpc::Listeners;
use holdfast_rpc::apart::{self, Desk, Refused};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// How long the desk may take. It signs and verifies; the disk is not its business.
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
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let orders: Orders = borsh::from_slice(&context.configuration).map_err(|error| words(&error))?;
    let tcp = context.ports.take_file(TCP).ok_or("it was handed no listener")?;
    let udp = context.ports.take_file(UDP).map(std::net::UdpSocket::from);
    apart::ask_counters_over(context.ports.take_file(COUNTERS));
    let desk = Arc::new(AtDesk(context.ports.asker(DESK).map_err(|error| words(&error))?));
    let _ = tracing::subscriber::set_global_default(Words(desk.clone()));
    let told = context.ports.orders().ok_or("it has no supervisor")?;
    let told = told.try_clone_to_owned().map_err(|error| words(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| words(&error))?;
    runtime
        .block_on(async {
            let tcp = tokio::net::TcpListener::from_std(std::net::TcpListener::from(tcp))?;
            let key = PublicKey(orders.key);
            let stopped = stopped(context, told);
            apart::run(Listeners { tcp, udp }, key, desk, orders.limits(), stopped).await
        })
        .map_err(|error| words(&error))
}

/// Completes when the supervisor asks for the end, or is gone.
#[expect(
    deprecated,
    reason = "what took its place is unsafe; an owned descriptor stays open, which is all it needs"
)]
async fn stopped(context: &Context, told: OwnedFd) {
    let Ok(told) = AsyncFd::new(told) else { return };
    while let Ok(mut ready) = told.readable().await {
        match context.ports.attend(Patience::Never) {
            Ok(None) => ready.clear_ready(),
            Ok(Some(Ended::Stopped | Ended::Orphaned)) | Err(_) => return,
        }
    }
}

/// Asks the back end.
pub(super) struct AtDesk(Asker<Ask, Told>);

impl AtDesk {
    fn ask(&self, question: &Ask, files: &[OwnedFd]) -> Result<ReceivedReply<Told>, Refused> {
        let patience = Patience::of(PATIENCE);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let ticket = self.0.start(0, question, &files, patience).map_err(refused)?;
        self.0.finish(ticket, patience).map_err(|error| {
            self.0.forget(ticket);
            refused(error)
        })
    }

    pub(super) fn say(&self, warning: bool, text: String) {
        // A log that is not heard changes nothing.
        let _ = self.ask(&Ask::Words { warning, text }, &[]);
    }
}

fn refused(error: ComponentError) -> Refused {
    match error {
        ComponentError::Refused { refusal, .. } => Refused(refusal.to_string()),
        error => Refused(error.to_string()),
    }
}

fn strange<T>() -> Result<T, Refused> {
    Err(Refused("the desk answered something else".to_owned()))
}

impl Desk for AtDesk {
    fn nonce(&self) -> Result<[u8; 32], Refused> {
        match self.ask(&Ask::Nonce, &[])?.body {
            Told::Nonce(nonce) => Ok(nonce),
            _ => strange(),
        }
    }

    fn sign(&self, transcript: Vec<u8>) -> Result<Signature, Refused> {
        match self.ask(&Ask::Sign { transcript }, &[])?.body {
            Told::Signature(signature) => Ok(Signature(signature)),
            _ => strange(),
        }
    }

    fn introduce(
        &self,
        transcript: Vec<u8>,
        signature: Vec<u8>,
        address: SocketAddr,
        tcp: Option<OwnedFd>,
    ) -> Result<UnixStream, Refused> {
        let files: Vec<OwnedFd> = tcp.into_iter().collect();
        let question = Ask::Introduce { transcript, signature, address: address.into() };
        let ReceivedReply { body, files, .. } = self.ask(&question, &files)?;
        match (body, <[OwnedFd; 1]>::try_from(files)) {
            (Told::Introduced, Ok([stream])) => Ok(stream.into()),
            _ => strange(),
        }
    }
}
