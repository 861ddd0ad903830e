//! Requests and replies of short text, for a witness and for metrics.

use crate::body::{BodyError, ReplyBody, read_body};
use crate::server::HttpServer;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long the body of a request may take.
const BODY_PATIENCE: Duration = Duration::from_secs(10);

/// The content type of plain text.
pub const PLAIN: &str = "text/plain; charset=utf-8";

/// A request.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// The method.
    pub method: Method,
    /// The path, without a query.
    pub path: String,
    /// The body of a POST. It is not read for other methods.
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

impl From<HttpReply> for Response<ReplyBody> {
    fn from(reply: HttpReply) -> Response<ReplyBody> {
        let mut response = Response::new(ReplyBody::bytes(reply.text));
        *response.status_mut() = reply.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(reply.content_type));
        response
    }
}

impl HttpServer {
    /// Serves short replies until `until` completes. No request's body may be longer than `body_bytes_max`.
    /// If `answer` blocks, it holds up no other connection.
    ///
    /// # Errors
    /// The system refuses threads or sockets.
    pub fn run_plain(
        self,
        body_bytes_max: usize,
        answer: impl Fn(HttpRequest) -> HttpReply + Send + Sync + 'static,
        until: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let answer = Arc::new(answer);
        let handler = move |_peer| {
            let answer = answer.clone();
            service_fn(move |request| {
                let answer = answer.clone();
                Box::pin(
                    async move { Ok::<_, Infallible>(respond(answer, body_bytes_max, request).await.into()) },
                )
            })
        };
        self.run(handler, until)
    }
}

async fn respond<A: Fn(HttpRequest) -> HttpReply + Send + Sync + 'static>(
    answer: Arc<A>,
    body_bytes_max: usize,
    request: Request<Incoming>,
) -> HttpReply {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut body = String::new();
    if method == Method::POST {
        let mut incoming = request.into_body();
        match tokio::time::timeout(BODY_PATIENCE, read_body(&mut incoming, body_bytes_max)).await {
            Ok(Ok(bytes)) => match String::from_utf8(bytes.into()) {
                Ok(text) => body = text,
                Err(_) => return HttpReply::plain(StatusCode::BAD_REQUEST, ""),
            },
            Ok(Err(BodyError::TooLong)) => return HttpReply::plain(StatusCode::PAYLOAD_TOO_LARGE, ""),
            Ok(Err(BodyError::Broken)) => return HttpReply::plain(StatusCode::BAD_REQUEST, ""),
            Err(_) => return HttpReply::plain(StatusCode::REQUEST_TIMEOUT, ""),
        }
    }
    let answered = tokio::task::spawn_blocking(move || answer(HttpRequest { method, path, body })).await;
    answered.unwrap_or_else(|_| HttpReply::plain(StatusCode::INTERNAL_SERVER_ERROR, ""))
}
