//! The front end as a component. It has only listening sockets and a channel to the back end.

use super::back_end_client::BackEndClient;
use super::log::LogForwarder;
use super::messages::{BACK_END_PORT, FrontEndSettings};
use holdfast_components::{Context, Ended, Patience};
use holdfast_crypto::PublicKey;
use holdfast_rpc::Listeners;
use holdfast_rpc::privsep;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::io::unix::AsyncFd;

/// Names of the files that a front end is given.
pub(crate) const TCP: &str = "tcp";
pub(crate) const UDP: &str = "udp";
pub(crate) const COUNTERS: &str = "counters";

/// The entry point of the component.
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

/// Completes when the supervisor asks this process to stop, or has ended.
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
