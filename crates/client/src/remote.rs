//! The server as the client sees it: each call returns one answer, or the reason why there is none. A trait,
//! so that tests can replace it: by a server in the same process, one that lies, one that dies at the worst
//! moment.

use crate::interrupt;
use crate::pauses::Pauses;
use holdfast_crypto::{Digest, PublicKey};
use holdfast_protocol::message::{Request, Response, Welcome};
use holdfast_rpc::{Connection, LinkEstimate, RpcError};
use std::time::{Duration, Instant};

/// A server that answers requests. Blocking; thread-safe; multiplexed.
pub trait Remote: Send + Sync + 'static {
    /// Sends `request` and waits for its answer for at most `deadline`.
    ///
    /// # Errors
    /// See [`RpcError`]; [`RpcError::maybe_sent`] says whether the server may have acted on it.
    fn call(&self, request: Request, deadline: Duration) -> Result<Response, RpcError>;

    /// Like [`Remote::call`], for a request that its owner may have to send again: an implementation that can
    /// send it as it is need not copy the data in it.
    ///
    /// # Errors
    /// See [`RpcError`]
    fn call_lent(&self, request: &Request, deadline: Duration) -> Result<Response, RpcError> {
        self.call(request.clone(), deadline)
    }

    /// The server's answer to the last greeting; `None` before the first.
    fn welcome(&self) -> Option<Welcome>;

    /// Whether there is a connection, as far as is known.
    fn is_connected(&self) -> bool;

    /// Bytes sent and received so far.
    fn traffic(&self) -> (u64, u64);

    /// Number of connections made, as far as is known. If it has changed, the client was disconnected for
    /// some time.
    fn connects(&self) -> u64 {
        0
    }

    /// Why there is no connection, if the reason is known.
    fn trouble(&self) -> Option<RpcError> {
        None
    }

    /// The properties of the link, estimated from its own traffic; `None` if nothing is known.
    fn estimate(&self) -> Option<LinkEstimate> {
        None
    }

    /// Whether the link runs over QUIC, rather than TCP; `None` if that is not known.
    fn is_over_quic(&self) -> Option<bool> {
        None
    }

    /// Waits for a first greeting, for at most `deadline`; at least one attempt is made. Returns at once if
    /// there is nothing to wait for.
    ///
    /// # Errors
    /// See [`RpcError`].
    fn wait_until_connected(&self, _deadline: Duration) -> Result<(), RpcError> {
        Ok(())
    }

    /// The key of the server that was last connected, if known.
    fn server_key(&self) -> Option<PublicKey> {
        None
    }

    /// Reports that the server sent another block than the one requested. Returns whether to request it once
    /// more, since another server will answer.
    fn altered(&self, _address: &Digest) -> bool {
        false
    }
}

impl Remote for Connection {
    fn call(&self, request: Request, deadline: Duration) -> Result<Response, RpcError> {
        if interrupt::can_be_raised() {
            self.call_blocking_unless(request, deadline, interrupt::GLANCE, &interrupt::is_raised)
        } else {
            self.call_blocking(request, deadline)
        }
    }

    fn welcome(&self) -> Option<Welcome> {
        Connection::welcome(self)
    }

    fn is_connected(&self) -> bool {
        Connection::is_connected(self)
    }

    fn traffic(&self) -> (u64, u64) {
        let traffic = Connection::traffic(self);
        (traffic.sent, traffic.received)
    }

    fn connects(&self) -> u64 {
        Connection::traffic(self).connects
    }

    fn trouble(&self) -> Option<RpcError> {
        self.last_error()
    }

    fn estimate(&self) -> Option<LinkEstimate> {
        Connection::estimate(self)
    }

    fn is_over_quic(&self) -> Option<bool> {
        Connection::is_over_quic(self)
    }

    fn wait_until_connected(&self, deadline: Duration) -> Result<(), RpcError> {
        Connection::wait_until_connected(self, deadline)
    }

    fn server_key(&self) -> Option<PublicKey> {
        Connection::server_key(self)
    }
}

/// Calls until there is an answer or `deadline` has passed. Only for requests that may be sent twice.
///
/// # Errors
/// The last error, once it is not transient or the time has passed.
pub fn call_patiently(
    remote: &dyn Remote,
    request: &Request,
    deadline: Duration,
) -> Result<Response, RpcError> {
    let end = Instant::now() + deadline;
    let mut pauses = Pauses::new(Duration::from_millis(20), Duration::from_secs(1));
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let result = match remote.call_lent(request, left) {
            Ok(Response::Error(error)) => Err(RpcError::Server(error)),
            other => other,
        };
        match result {
            Err(error)
                if error.is_transient()
                    && Instant::now() + pauses.peek() < end
                    && !interrupt::is_raised() =>
            {
                std::thread::sleep(pauses.after_failure());
            }
            other => return other,
        }
    }
}
