//! A small HTTP/1.1 server of short texts, for a witness and for metrics.
//!
//! Bounds: connections at once, bytes of a head and of a body, time for a body and between requests. A handler may
//! block; other connections go on.
//!
//! Attack answered: a stranger who connects often, sends slowly, or sends much.
#![forbid(unsafe_code)]

mod stream;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;
use stream::Stream;
use tokio::sync::Semaphore;

pub use hyper::{Method, StatusCode};

/// Most connections at once; others wait in the system's queue.
const CONNECTIONS_MAX: usize = 256;
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// How long a body may take.
const BODY_PATIENCE: Duration = Duration::from_secs(10);
/// A connection without a request for this long is closed.
const IDLE: Duration = Duration::from_secs(60);
/// How long no connection is accepted after the system has run out of files or memory for them.
const SHORTAGE: Duration = Duration::from_millis(100);

/// The content type of plain text.
pub const PLAIN: &str = "text/plain; charset=utf-8";

/// A request.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// The method.
    pub method: Method,
    /// The path, without a query.
    pub path: String,
    /// The body of a POST; of other methods none is read.
    pub body: String,
}

/// A reply.
#[derive(Clone, Debug)]
pub struct HttpReply {
    /// The HTTP status.
    pub status: StatusCode,
    /// The content type of `text`.
    pub content_type: &'static str,
    /// The body.
    pub text: String,
}

impl HttpReply {
    /// A reply of plain text.
    pub fn plain(status: StatusCode, text: impl Into<String>) -> HttpReply {
        HttpReply { status, content_type: PLAIN, text: text.into() }
    }
}

/// An HTTP server whose socket listens already.
pub struct HttpServer {
    listener: TcpListener,
    body_bytes_max: usize,
}

impl HttpServer {
    /// Listens. No body may be longer than `body_bytes_max`.
    ///
    /// # Errors
    /// The system's: the address is taken, or not ours.
    pub fn open(address: SocketAddr, body_bytes_max: usize) -> io::Result<HttpServer> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(HttpServer { listener, body_bytes_max })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system's.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `until` is done; what is being answered is answered to its end.
    ///
    /// # Errors
    /// The system refuses a reactor.
    pub fn run(
        self,
        answer: impl Fn(HttpRequest) -> HttpReply + Send + Sync + 'static,
        until: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(8).build()?;
        let (answerer, body_bytes_max) = (Arc::new(answer), self.body_bytes_max);
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
            let accept = async {
                loop {
                    let Ok(place) = places.clone().acquire_owned().await else { return };
                    match listener.accept().await {
                        Ok((stream, peer)) => {
                            let answerer = answerer.clone();
                            tokio::spawn(async move {
                                converse(answerer, body_bytes_max, stream, peer).await;
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
        runtime.shutdown_timeout(BODY_PATIENCE);
        Ok(())
    }
}

/// Serves one connection, for as long as requests come.
async fn converse<A: Fn(HttpRequest) -> HttpReply + Send + Sync + 'static>(
    answerer: Arc<A>,
    body_bytes_max: usize,
    stream: tokio::net::TcpStream,
    peer: SocketAddr,
) {
    let _ = stream.set_nodelay(true);
    let requests = Arc::new(AtomicU64::new(0));
    let counted = requests.clone();
    let service = service_fn(move |request| {
        counted.fetch_add(1, Relaxed);
        let answerer = answerer.clone();
        async move { Ok::<_, Infallible>(sent(respond(answerer, body_bytes_max, request).await)) }
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

async fn respond<A: Fn(HttpRequest) -> HttpReply + Send + Sync + 'static>(
    answerer: Arc<A>,
    body_bytes_max: usize,
    request: Request<Incoming>,
) -> HttpReply {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut body = String::new();
    if method == Method::POST {
        match tokio::time::timeout(BODY_PATIENCE, text_of(request.into_body(), body_bytes_max)).await {
            Ok(Ok(text)) => body = text,
            Ok(Err(status)) => return HttpReply::plain(status, ""),
            Err(_) => return HttpReply::plain(StatusCode::REQUEST_TIMEOUT, ""),
        }
    }
    // What blocks, for a disk, blocks no other connection.
    let answered = tokio::task::spawn_blocking(move || answerer(HttpRequest { method, path, body })).await;
    answered.unwrap_or_else(|_| HttpReply::plain(StatusCode::INTERNAL_SERVER_ERROR, ""))
}

/// A body as text, or the status that refuses it.
async fn text_of(body: Incoming, bytes_max: usize) -> Result<String, StatusCode> {
    let mut body = pin!(body);
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let frame = frame.map_err(|_| StatusCode::BAD_REQUEST)?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > bytes_max {
                return Err(StatusCode::PAYLOAD_TOO_LARGE);
            }
            bytes.extend_from_slice(&data);
        }
    }
    String::from_utf8(bytes).map_err(|_| StatusCode::BAD_REQUEST)
}

/// A body that is sent at once.
struct FullBody(Option<Bytes>);

impl Body for FullBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

fn sent(answer: HttpReply) -> Response<FullBody> {
    let mut response = Response::new(FullBody((!answer.text.is_empty()).then(|| Bytes::from(answer.text))));
    *response.status_mut() = answer.status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    response
}
