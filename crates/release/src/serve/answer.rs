//! Answers the requests of a mirror's clients.

use super::files::{Files, ReadError, Wait};
use super::names::{Lifetime, is_digest, lifetime};
use super::objects::{ObjectLocation, Objects};
use super::part::FilePart;
use super::range::{Range, wanted};
use crate::mirror::{OBJECTS, OBJECTS_ANSWER_BYTES_MAX, OBJECTS_MAX, PATHS, PATHS_BYTES_MAX};
use crate::origin::{Origin, OriginError};
use bytes::Bytes;
use holdfast_crypto::Digest;
use holdfast_http_server::{ReplyBody, read_body};
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_RANGES, ACCESS_CONTROL_ALLOW_ORIGIN, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH, IF_RANGE, RANGE,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::service::Service;
use hyper::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Most paths of one request.
const PATHS_MAX: usize = 256;

/// Most bytes of paths that are looked up without handing the request to another thread.
const PATHS_HERE_BYTES_MAX: usize = 1 << 10;
/// How long a request waits for a permit to ask the origin.
const ORIGIN_WAIT: Duration = Duration::from_secs(10);
/// The shortest time between two log entries about damage, because damaged files may be requested often.
const DAMAGE_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Everything that is needed to answer requests. All connections share one.
pub struct ServeState {
    /// The files of the release.
    pub files: Files,
    /// The blocks of the release.
    pub objects: Objects,
    /// The origin, for blocks that are in no pack.
    pub origin: Option<Arc<Origin>>,
    /// Permits that bound how many requests to the origin are under way at once.
    pub origin_places: Semaphore,
}

/// Answers the requests of one connection.
pub struct RequestHandler {
    site: Arc<ServeState>,
    peer: SocketAddr,
}

impl RequestHandler {
    /// A handler for a connection from `peer`.
    pub fn new(site: Arc<ServeState>, peer: SocketAddr) -> RequestHandler {
        RequestHandler { site, peer }
    }
}

/// A response, either ready or waiting for the disk.
pub enum Answering {
    /// The response is ready.
    Now(Option<Response<ReplyBody>>),
    /// The response comes later.
    Later(Pin<Box<dyn Future<Output = Response<ReplyBody>> + Send>>),
}

impl Future for Answering {
    type Output = Result<Response<ReplyBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Answering::Now(answer) => match answer.take() {
                Some(answer) => Poll::Ready(Ok(answer)),
                None => Poll::Pending,
            },
            Answering::Later(answer) => answer.as_mut().poll(cx).map(Ok),
        }
    }
}

impl Service<Request<Incoming>> for RequestHandler {
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        let file_request = FileRequest::new(self.peer, &request);
        if file_request.name == PATHS && *file_request.method == Method::POST {
            let (site, peer) = (self.site.clone(), self.peer);
            return Answering::Later(Box::pin(site.paths(peer, request)));
        }
        if file_request.name == OBJECTS && *file_request.method == Method::POST {
            let (site, peer) = (self.site.clone(), self.peer);
            return Answering::Later(Box::pin(site.several(peer, request)));
        }
        if !matches!(*file_request.method, Method::GET | Method::HEAD) {
            return Answering::Now(Some(file_request.log(not_allowed("GET, HEAD"))));
        }
        let Some(wanted) = RequestTarget::of(file_request.name) else {
            let answer =
                if matches!(file_request.name, PATHS | OBJECTS) { not_allowed("POST") } else { not_found() };
            return Answering::Now(Some(file_request.log(answer)));
        };
        match self.site.find(&wanted, Wait::No) {
            Err(ReadError::WouldWait) | Ok(Some(ObjectLocation::AtOrigin)) => {}
            found => return Answering::Now(Some(file_request.log(file_request.answer(found)))),
        }
        let (site, peer) = (self.site.clone(), self.peer);
        Answering::Later(Box::pin(async move {
            let looking = site.clone();
            let (found, wanted) =
                match tokio::task::spawn_blocking(move || (looking.find(&wanted, Wait::Yes), wanted)).await {
                    Ok((found, wanted)) => (found, Some(wanted)),
                    Err(error) => (Err(ReadError::Failed(std::io::Error::other(error))), None),
                };
            let file_request = FileRequest::new(peer, &request);
            if let (Ok(Some(ObjectLocation::AtOrigin)), Some(RequestTarget::Object(address))) =
                (&found, wanted)
            {
                return file_request.log(match site.at_origin(vec![address]).await {
                    Ok(mut frames) => {
                        match frames.pop().flatten().map(|frame| FilePart::of_frame(&address, frame)) {
                            Some(Ok(part)) => file_request.part(&part),
                            _ => not_found(),
                        }
                    }
                    Err(answer) => answer,
                });
            }
            file_request.log(file_request.answer(found))
        }))
    }
}

/// What a request names.
enum RequestTarget {
    /// A file of the layout, by name.
    File(String),
    /// A block, by its address.
    Object(Digest),
}

impl RequestTarget {
    fn of(name: &str) -> Option<RequestTarget> {
        match name.strip_prefix("object/") {
            Some(digest) => {
                is_digest(digest).then(|| Digest::from_hex(digest)).flatten().map(RequestTarget::Object)
            }
            None => lifetime(name).map(|_| RequestTarget::File(name.to_owned())),
        }
    }
}

impl ServeState {
    fn find(&self, wanted: &RequestTarget, wait: Wait) -> Result<Option<ObjectLocation>, ReadError> {
        match wanted {
            RequestTarget::File(name) => {
                Ok(self.files.get(name, wait)?.map(|found| ObjectLocation::Here(FilePart::whole(found))))
            }
            RequestTarget::Object(digest) => self.objects.find(&self.files, digest, wait),
        }
    }

    /// Answers a request for several blocks with frames of as many of them as fit.
    async fn several(self: Arc<Self>, peer: SocketAddr, request: Request<Incoming>) -> Response<ReplyBody> {
        let (head, mut body) = request.into_parts();
        let log = |answer: Response<ReplyBody>| {
            FileRequest { peer, method: &head.method, headers: &head.headers, name: OBJECTS }.log(answer)
        };
        let Ok(body) = read_body(&mut body, OBJECTS_MAX * 32).await else {
            return log(plain(StatusCode::PAYLOAD_TOO_LARGE, "Too many blocks for one request.\n"));
        };
        let (addresses, rest) = body.as_chunks::<32>();
        if addresses.is_empty() || !rest.is_empty() {
            return log(plain(StatusCode::BAD_REQUEST, "Addresses have 32 bytes each.\n"));
        }
        let addresses: Vec<Digest> = addresses.iter().map(|address| Digest(*address)).collect();
        let looking = self.clone();
        let find = move || looking.objects.frames(&looking.files, &addresses);
        let found = tokio::task::spawn_blocking(find).await;
        let found = found.unwrap_or_else(|error| Err(ReadError::Failed(std::io::Error::other(error))));
        let (mut answer, elsewhere) = match found {
            Ok(found) => found,
            Err(trouble) => return log(failed(OBJECTS, trouble)),
        };
        if !elsewhere.is_empty() && answer.len() < OBJECTS_ANSWER_BYTES_MAX {
            match self.at_origin(elsewhere).await {
                Ok(frames) => {
                    for frame in frames.into_iter().flatten() {
                        if answer.is_empty() || answer.len() + frame.len() <= OBJECTS_ANSWER_BYTES_MAX {
                            answer.extend_from_slice(&frame);
                        }
                    }
                }
                // The blocks that this server has are a reply too.
                Err(refusal) if answer.is_empty() => return log(refusal),
                Err(_) => {}
            }
        }
        if answer.is_empty() {
            return log(not_found());
        }
        let mut answer = Response::new(ReplyBody::bytes(answer.freeze()));
        describe_bytes(answer.headers_mut());
        answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        log(answer)
    }

    /// Frames of blocks of this release that are at its origin, or the response to send instead. It must not
    /// be called for other blocks: strangers get only what was published of the live file system.
    async fn at_origin(&self, addresses: Vec<Digest>) -> Result<Vec<Option<Bytes>>, Response<ReplyBody>> {
        let Some(origin) = self.origin.clone() else { return Err(not_found()) };
        let busy = || plain(StatusCode::SERVICE_UNAVAILABLE, "The live file system is slow to answer.\n");
        // An origin that does not answer delays only requests that need it.
        let place = tokio::time::timeout(ORIGIN_WAIT, self.origin_places.acquire()).await;
        let Ok(Ok(_place)) = place else { return Err(busy()) };
        let file_request = tokio::task::spawn_blocking(move || origin.frames(&addresses)).await;
        match file_request {
            Ok(Ok(frames)) => Ok(frames),
            Ok(Err(error)) => {
                if should_log_damage() {
                    tracing::error!(%error, "data of the release cannot be had");
                }
                Err(match error {
                    OriginError::Unreachable(..) => busy(),
                    OriginError::False(..) => {
                        plain(StatusCode::BAD_GATEWAY, "The live file system gave something false.\n")
                    }
                })
            }
            Err(_) => Err(busy()),
        }
    }

    /// Answers a request for the blocks of paths.
    async fn paths(self: Arc<Self>, peer: SocketAddr, request: Request<Incoming>) -> Response<ReplyBody> {
        let (head, mut body) = request.into_parts();
        let log = |answer: Response<ReplyBody>| {
            FileRequest { peer, method: &head.method, headers: &head.headers, name: PATHS }.log(answer)
        };
        let Ok(paths) = read_body(&mut body, PATHS_BYTES_MAX).await else {
            return log(plain(StatusCode::PAYLOAD_TOO_LARGE, "Too many paths for one request.\n"));
        };
        let find = move |paths: &Bytes, wait| {
            let paths: Vec<&[u8]> = paths.split(|byte| *byte == 0).take(PATHS_MAX).collect();
            self.objects.paths(&self.files, &paths, wait)
        };
        // A few paths are looked up on this thread; many would delay other connections.
        let here = if paths.len() <= PATHS_HERE_BYTES_MAX {
            find(&paths, Wait::No)
        } else {
            Err(ReadError::WouldWait)
        };
        let found = match here {
            Err(ReadError::WouldWait) => {
                let found = tokio::task::spawn_blocking(move || find(&paths, Wait::Yes)).await;
                found.unwrap_or_else(|error| Err(ReadError::Failed(std::io::Error::other(error))))
            }
            found => found,
        };
        log(match found {
            Ok(Some(frames)) => {
                let mut answer = Response::new(ReplyBody::bytes(frames));
                describe_bytes(answer.headers_mut());
                answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                answer
            }
            Ok(None) => plain(StatusCode::NOT_FOUND, "This release has no hints for paths.\n"),
            Err(trouble) => failed(PATHS, trouble),
        })
    }
}

/// A request for a file or a block.
struct FileRequest<'a> {
    peer: SocketAddr,
    method: &'a Method,
    headers: &'a HeaderMap,
    name: &'a str,
}

impl<'a> FileRequest<'a> {
    fn new(peer: SocketAddr, request: &'a Request<Incoming>) -> FileRequest<'a> {
        let name = request.uri().path();
        let name = name.strip_prefix('/').unwrap_or(name);
        FileRequest { peer, method: request.method(), headers: request.headers(), name }
    }

    fn answer(&self, found: Result<Option<ObjectLocation>, ReadError>) -> Response<ReplyBody> {
        match found {
            Ok(Some(ObjectLocation::Here(part))) => self.part(&part),
            Ok(Some(ObjectLocation::AtOrigin) | None) => not_found(),
            Err(trouble) => failed(self.name, trouble),
        }
    }

    fn log(&self, answer: Response<ReplyBody>) -> Response<ReplyBody> {
        tracing::debug!(
            peer = %self.peer,
            method = %self.method,
            name = %self.name.escape_default(),
            status = answer.status().as_u16(),
            bytes = answer.body().length(),
            "answered"
        );
        answer
    }

    fn header(&self, name: HeaderName) -> Option<&[u8]> {
        self.headers.get(name).map(HeaderValue::as_bytes)
    }

    /// The whole file, or the range that was asked for.
    fn part(&self, found: &FilePart) -> Response<ReplyBody> {
        let etag = found.etag.as_bytes();
        if self.header(IF_NONE_MATCH).is_some_and(|tags| matches_any(tags, etag)) {
            return described(found, StatusCode::NOT_MODIFIED, ReplyBody::nothing());
        }
        let length = found.bytes();
        let range = match self.header(RANGE) {
            Some(range) if self.header(IF_RANGE).is_none_or(|tag| tag == etag) => wanted(range, length),
            _ => Range::Whole,
        };
        let (status, part) = match range {
            Range::Whole => (StatusCode::OK, 0..length),
            Range::Part(part) => (StatusCode::PARTIAL_CONTENT, part),
            Range::Beyond => {
                let mut answer = plain(StatusCode::RANGE_NOT_SATISFIABLE, "The file is shorter.\n");
                insert_text(answer.headers_mut(), CONTENT_RANGE, &format!("bytes */{length}"));
                return answer;
            }
        };
        let bytes = part.end - part.start;
        let content_range = (status == StatusCode::PARTIAL_CONTENT)
            .then(|| format!("bytes {}-{}/{length}", part.start, part.end - 1));
        let body = if *self.method == Method::HEAD { ReplyBody::nothing() } else { found.sent(part) };
        let mut answer = described(found, status, body);
        let headers = answer.headers_mut();
        headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes));
        if let Some(content_range) = content_range {
            insert_text(headers, CONTENT_RANGE, &content_range);
        }
        answer
    }
}

/// Whether an `If-None-Match` names this tag.
pub(crate) fn matches_any(tags: &[u8], etag: &[u8]) -> bool {
    tags.split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .any(|tag| tag == b"*" || tag.strip_prefix(b"W/").unwrap_or(tag) == etag)
}

/// A response with the headers that describe a file.
fn described(found: &FilePart, status: StatusCode, body: ReplyBody) -> Response<ReplyBody> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.reserve(9);
    headers.insert(ETAG, found.etag.clone());
    headers.insert(CACHE_CONTROL, cache_control(found.lifetime));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    describe_bytes(headers);
    answer
}

/// The header that states for how long caches may store a file.
fn cache_control(lifetime: Lifetime) -> HeaderValue {
    HeaderValue::from_static(match lifetime {
        Lifetime::Immutable => "public, max-age=31536000, immutable",
        Lifetime::Changing => "public, max-age=10",
    })
}

/// Headers of every reply. Its type is plain bytes, which no browser takes for a page of this server; but
/// pages of any site may read them, because they are public.
fn describe_bytes(headers: &mut HeaderMap) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
}

fn should_log_damage() -> bool {
    static LAST_LOGGED: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last_logged = LAST_LOGGED.lock();
    let now = last_logged.is_none_or(|when| when.elapsed() > DAMAGE_LOG_INTERVAL);
    if now {
        *last_logged = Some(Instant::now());
    }
    now
}

fn failed(name: &str, trouble: ReadError) -> Response<ReplyBody> {
    let error = match trouble {
        ReadError::Failed(error) => error,
        ReadError::WouldWait => std::io::ErrorKind::WouldBlock.into(),
    };
    if should_log_damage() {
        tracing::error!(name, %error, "something of the release cannot be read");
    }
    plain(StatusCode::INTERNAL_SERVER_ERROR, "This cannot be read at the moment.\n")
}

fn not_found() -> Response<ReplyBody> {
    plain(StatusCode::NOT_FOUND, "There is no such file in this release.\n")
}

fn not_allowed(methods: &'static str) -> Response<ReplyBody> {
    let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "This can only be read.\n");
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    answer
}

/// A short message, which must not be cached: what is missing now may be there later.
fn plain(status: StatusCode, text: &'static str) -> Response<ReplyBody> {
    let mut answer = Response::new(ReplyBody::bytes(Bytes::from_static(text.as_bytes())));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    answer
}

/// Inserts a header whose text is digits and the like.
fn insert_text(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(name, value);
    }
}
