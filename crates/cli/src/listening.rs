//! The common start of all servers of this program: the listening address, the process that faces the
//! network, and the announcement.

use crate::output::line;
use holdfast_components::Program;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_server::{RunError, until_signalled};
use std::future::{Future, poll_fn};
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::pin;
use std::task::Poll;

/// The program of a server's front end; `None` if the server itself faces the network.
pub fn front_end(one_process: bool) -> Outcome<Option<Program>> {
    if one_process {
        tracing::warn!("--one-process: the process that holds the key and the data faces the network itself");
        return Ok(None);
    }
    Ok(Some(Program::current().map_err(RunError::Sandbox)?))
}

/// Resolves an address to listen on; the first of several.
pub fn resolve(listen: &str) -> Outcome<SocketAddr> {
    let wrong = |why: String| {
        Failure::new(Exit::Usage, format!("'{listen}' cannot be listened on: {why}"))
            .hint("an address reads 0.0.0.0:7440, '[::]:7440' or HOST:PORT")
    };
    listen
        .to_socket_addrs()
        .map_err(|error| wrong(error.to_string()))?
        .next()
        .ok_or_else(|| wrong("it has no address".to_owned()))
}

/// Announces that a server serves, once signals are handled; completes when a signal asks it to stop.
pub async fn announced(text: String) {
    let mut signalled = pin!(until_signalled());
    let is_over = poll_fn(|cx| Poll::Ready(signalled.as_mut().poll(cx).is_ready())).await;
    if !is_over {
        if let Err(failure) = line(&text) {
            tracing::warn!("nobody was told that it serves: {}", failure.message);
        }
        signalled.await;
    }
}
