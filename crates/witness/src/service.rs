//! `add-checkpoint` over HTTP (c2sp.org/tlog-witness). A client needs no key: what counts is that the log has
//! signed the checkpoint.
//!
//! Bounds: those of `holdfast_http_server`, and a rate of signatures for each log. A request of a stranger
//! costs one verification of a signature, and nothing on disk.

use crate::state::{CosignError, StateError, WitnessState};
use holdfast_checkpoint::judge::{Refusal, authenticate};
use holdfast_checkpoint::note::VerifierKey;
use holdfast_checkpoint::submission::{BODY_BYTES_MAX, SIZE_TYPE};
use holdfast_http_server::{HttpReply, HttpRequest, HttpServer, Limits, Method, StatusCode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Signatures for each log: the long-term rate, and the largest burst.
const PER_SECOND: f64 = 20.0;
const AT_ONCE: f64 = 100.0;

/// Why a witness cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The server cannot listen on the address.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error.
        error: io::Error,
    },
    /// The state cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The system refuses a reactor.
    #[error("cannot serve: {0}")]
    System(#[from] io::Error),
}

/// A witness that is listening.
pub struct Service {
    witness: Witness,
    server: HttpServer,
}

struct Witness {
    state: WitnessState,
    logs: Vec<VerifierKey>,
    paces: Mutex<BTreeMap<String, SignatureAllowance>>,
}

/// How many signatures a log may still get; it grows with time.
struct SignatureAllowance {
    left: f64,
    at: Instant,
}

impl Service {
    /// Listens, to co-sign heads of these logs.
    ///
    /// # Errors
    /// [`ServiceError::Listen`].
    pub fn open(
        state: WitnessState,
        logs: Vec<VerifierKey>,
        address: SocketAddr,
    ) -> Result<Service, ServiceError> {
        let server = HttpServer::open(address, Limits::SMALL)
            .map_err(|error| ServiceError::Listen { address, error })?;
        Ok(Service { witness: Witness { state, logs, paces: Mutex::default() }, server })
    }

    /// The address where the witness listens.
    pub fn local_address(&self) -> SocketAddr {
        self.server.local_address()
    }

    /// Serves until `until` completes.
    ///
    /// # Errors
    /// [`ServiceError::System`].
    pub fn run(self, until: impl Future<Output = ()>) -> Result<(), ServiceError> {
        let Service { witness, server } = self;
        Ok(server.run_plain(BODY_BYTES_MAX, move |request| witness.answer(&request), until)?)
    }
}

impl Witness {
    fn answer(&self, request: &HttpRequest) -> HttpReply {
        match (&request.method, request.path.as_str()) {
            (&Method::GET, "/") => HttpReply::plain(StatusCode::OK, format!("{}\n", self.state.verifier())),
            (&Method::POST, "/add-checkpoint") => self.add_checkpoint(&request.body),
            (_, "/add-checkpoint" | "/") => HttpReply::plain(StatusCode::METHOD_NOT_ALLOWED, ""),
            _ => HttpReply::plain(StatusCode::NOT_FOUND, ""),
        }
    }

    fn add_checkpoint(&self, body: &str) -> HttpReply {
        let added = authenticate(body, &self.logs).map_err(CosignError::from).and_then(|authentic| {
            let origin = &authentic.checkpoint.origin;
            if !self.has_time_for(origin, Instant::now()) {
                return Ok(HttpReply::plain(StatusCode::TOO_MANY_REQUESTS, ""));
            }
            let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let line = self.state.cosign(&authentic, time_s)?;
            tracing::debug!(%origin, size = authentic.checkpoint.head.size, "co-signed");
            Ok(HttpReply::plain(StatusCode::OK, format!("{line}\n")))
        });
        match added {
            Ok(response) => response,
            Err(CosignError::Refused(refusal)) => {
                tracing::info!(%refusal, "not co-signed");
                let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::BAD_REQUEST);
                match refusal {
                    Refusal::OldSize(size) | Refusal::OtherRoot(size) => {
                        HttpReply { status, content_type: SIZE_TYPE, text: format!("{size}\n") }
                    }
                    refusal => HttpReply::plain(status, format!("{refusal}\n")),
                }
            }
            Err(CosignError::State(error)) => {
                tracing::error!(%error, "nothing is signed that cannot be kept");
                HttpReply::plain(StatusCode::INTERNAL_SERVER_ERROR, "")
            }
        }
    }

    fn has_time_for(&self, origin: &str, now: Instant) -> bool {
        let mut paces = self.paces.lock();
        let pace = paces.entry(origin.to_owned()).or_insert(SignatureAllowance { left: AT_ONCE, at: now });
        let gained = now.saturating_duration_since(pace.at).as_secs_f64() * PER_SECOND;
        *pace = SignatureAllowance { left: (pace.left + gained).min(AT_ONCE), at: now };
        let has_time = pace.left >= 1.0;
        if has_time {
            pace.left -= 1.0;
        }
        has_time
    }
}
