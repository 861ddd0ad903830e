//! `add-checkpoint` over HTTP (c2sp.org/tlog-witness). Nobody needs a key to ask: what counts is that the log has signed.
//!
//! Bounds: connections at once, bytes of a head and of a body, time for a body and between requests, signatures a second
//! for each log. A stranger can cost one verification of a signature a request and nothing on disk.

use crate::book::{Book, BookError, CosignError};
use crate::stream::Stream;
use holdfast_checkpoint::judge::{Refusal, authenticate};
use holdfast_checkpoint::note::VerifierKey;
use holdfast_checkpoint::submission::{BODY_BYTES_MAX, SIZE_TYPE};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// Most connections at once; others wait in the system's queue.
const CONNECTIONS_MAX: usize = 256;
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// How long a body may take.
const BODY_PATIENCE: Duration = Duration::from_secs(10);
/// A connection without a request for this long is closed.
const IDLE: Duration = Duration::from_secs(60);
/// Signatures a second for each log, in the long run, and at once.
const PER_SECOND: f64 = 20.0;
const AT_ONCE: f64 = 100.0;
/// How long nobody is let in when the system has no more files or memory for connections.
const SHORTAGE: Duration = Duration::from_millis(100);

/// Why a witness does not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The state cannot be used.
    #[error(transparent)]
    Book(#[from] BookError),
    /// The system refuses a reactor.
    #[error("cannot serve: {0}")]
    System(#[from] io::Error),
}

/// A witness that listens already.
pub struct Service {
    witness: Arc<Witness>,
    listener: TcpListener,
}

struct Witness {
    book: Book,
    logs: Vec<VerifierKey>,
    paces: Mutex<BTreeMap<String, Pace>>,
}

/// What a log has left of its signatures.
struct Pace {
    left: f64,
    at: Instant,
}

impl Service {
    /// Listens, for these logs.
    ///
    /// # Errors
    /// [`ServiceError::Listen`].
    pub fn open(book: Book, logs: Vec<VerifierKey>, address: SocketAddr) -> Result<Service, ServiceError> {
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = listen().map_err(|error| ServiceError::Listen { address, error })?;
        Ok(Service { witness: Arc::new(Witness { book, logs, paces: Mutex::default() }), listener })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `until` is done.
    ///
    /// # Errors
    /// [`ServiceError::System`].
    pub fn run(self, until: impl Future<Output = ()>) -> Result<(), ServiceError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(8).build()?;
        let Service { witness, listener } = self;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
            let accept = async {
                loop {
                    let Ok(place) = places.clone().acquire_owned().await else { return };
                    match listener.accept().await {
                        Ok((stream, peer)) => {
                            let witness = witness.clone();
                            tokio::spawn(async move {
                                converse(witness, stream, peer).await;
                                drop(place);
                            });
                        }
                        Err(error) => {
                            tracing::warn!(%error, "a connection was not let in");
                            tokio::time::sleep(SHORTAGE).await;
                        }
                    }
                }
            };
            tokio::select! {
                () = accept => {}
                () = until => {}
            }
            Ok::<(), io::Error>(())
        })?;
        // What is being kept is kept to its end.
        runtime.shutdown_timeout(BODY_PATIENCE);
        Ok(())
    }
}

/// Serves one connection, for as long as requests come.
async fn converse(witness: Arc<Witness>, stream: tokio::net::TcpStream, peer: SocketAddr) {
    let _ = stream.set_nodelay(true);
    let requests = Arc::new(AtomicU64::new(0));
    let counted = requests.clone();
    let service = service_fn(move |request| {
        counted.fetch_add(1, Relaxed);
        let witness = witness.clone();
        async move { Ok::<_, Infallible>(answer(witness, request).await) }
    });
    let mut http = http1::Builder::new();
    http.max_buf_size(HEAD_BYTES_MAX);
    let mut connection = pin!(http.serve_connection(Stream(stream), service));
    let mut seen = 0;
    loop {
        match tokio::time::timeout(IDLE, connection.as_mut()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => return tracing::debug!(%peer, %error, "a connection ended"),
            Err(_) if requests.load(Relaxed) == seen => return,
            Err(_) => seen = requests.load(Relaxed),
        }
    }
}

async fn answer(witness: Arc<Witness>, request: Request<Incoming>) -> Response<Sent> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/") => plain(StatusCode::OK, format!("{}\n", witness.book.verifier())),
        (&Method::POST, "/add-checkpoint") => {
            let body = match tokio::time::timeout(BODY_PATIENCE, text_of(request.into_body())).await {
                Ok(Ok(body)) => body,
                Ok(Err(status)) => return plain(status, String::new()),
                Err(_) => return plain(StatusCode::REQUEST_TIMEOUT, String::new()),
            };
            // What blocks, for the disk, blocks no other connection.
            let added = tokio::task::spawn_blocking(move || witness.add_checkpoint(&body)).await;
            added.unwrap_or_else(|_| plain(StatusCode::INTERNAL_SERVER_ERROR, String::new()))
        }
        (_, "/add-checkpoint" | "/") => plain(StatusCode::METHOD_NOT_ALLOWED, String::new()),
        _ => plain(StatusCode::NOT_FOUND, String::new()),
    }
}

impl Witness {
    fn add_checkpoint(&self, body: &str) -> Response<Sent> {
        let added = authenticate(body, &self.logs).map_err(CosignError::from).and_then(|authentic| {
            let origin = &authentic.checkpoint.origin;
            if !self.has_time_for(origin, Instant::now()) {
                return Ok(plain(StatusCode::TOO_MANY_REQUESTS, String::new()));
            }
            let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let line = self.book.cosign(&authentic, time_s)?;
            tracing::debug!(%origin, size = authentic.checkpoint.head.size, "co-signed");
            Ok(plain(StatusCode::OK, format!("{line}\n")))
        });
        match added {
            Ok(response) => response,
            Err(CosignError::Refused(refusal)) => {
                tracing::info!(%refusal, "not co-signed");
                let status = StatusCode::from_u16(refusal.status()).unwrap_or(StatusCode::BAD_REQUEST);
                match refusal {
                    Refusal::OldSize(size) | Refusal::OtherRoot(size) => {
                        let mut response = plain(status, format!("{size}\n"));
                        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(SIZE_TYPE));
                        response
                    }
                    refusal => plain(status, format!("{refusal}\n")),
                }
            }
            Err(CosignError::Book(error)) => {
                tracing::error!(%error, "nothing is signed that cannot be kept");
                plain(StatusCode::INTERNAL_SERVER_ERROR, String::new())
            }
        }
    }

    fn has_time_for(&self, origin: &str, now: Instant) -> bool {
        let mut paces = self.paces.lock();
        let pace = paces.entry(origin.to_owned()).or_insert(Pace { left: AT_ONCE, at: now });
        let gained = now.saturating_duration_since(pace.at).as_secs_f64() * PER_SECOND;
        *pace = Pace { left: (pace.left + gained).min(AT_ONCE), at: now };
        let has_time = pace.left >= 1.0;
        if has_time {
            pace.left -= 1.0;
        }
        has_time
    }
}

/// A body as text, or the status that refuses it.
async fn text_of(body: Incoming) -> Result<String, StatusCode> {
    let mut body = pin!(body);
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let frame = frame.map_err(|_| StatusCode::BAD_REQUEST)?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > BODY_BYTES_MAX {
                return Err(StatusCode::PAYLOAD_TOO_LARGE);
            }
            bytes.extend_from_slice(&data);
        }
    }
    String::from_utf8(bytes).map_err(|_| StatusCode::BAD_REQUEST)
}

/// A short body.
struct Sent(Option<Bytes>);

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

fn plain(status: StatusCode, text: String) -> Response<Sent> {
    let mut response = Response::new(Sent((!text.is_empty()).then(|| Bytes::from(text))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
