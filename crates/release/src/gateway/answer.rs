//! Answers the requests of browsers.

use super::address::{display_name, encoded, encoded_path, field, is_name, names};
use super::page::{self, Preview};
use super::search::search;
use super::view::{BannerStyle, OpenFile, PIECE_BYTES, PathTarget, TreeSummary, View, ViewError};
use crate::serve::answer::matches_any;
use crate::serve::range::{Range, wanted};
use holdfast_http_server::ReplyBody;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_RANGES, ALLOW, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HOST, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH,
    IF_RANGE, LOCATION, RANGE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use std::net::IpAddr;
use std::sync::Arc;

/// Most names on a page.
const PAGE_NAMES: usize = 200;
/// Most changes on a page.
const CHANGES_MAX: usize = 1000;
/// Most bytes of a text that a page displays.
const TEXT_BYTES_MAX: usize = 256 << 10;
/// Bytes of a file from which its kind is recognised.
const HEAD_BYTES: usize = 512;

/// What pages are allowed to do: load styles, images and other pages of the gateway, and nothing else.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; \
                           frame-ancestors 'none'";
/// What files are allowed to do, whatever they contain: nothing. Opened as a page of its own, a file has no
/// origin, so it cannot read others.
const FILE_POLICY: &str = "sandbox; default-src 'none'; frame-ancestors 'none'";

const STYLE: &str = include_str!("../../../../web/verify/page/style.css");
const VERIFIER: &str = include_str!("../../../../web/verify/dist/index.html");

/// What all requests to a gateway share.
pub struct GatewayState {
    /// The tree.
    pub view: Arc<dyn View>,
    /// Names by which browsers may address the gateway, besides IP addresses and `localhost`. Otherwise a
    /// foreign site could point a name of its own here, and its pages could then read what the gateway
    /// serves.
    pub hosts: Vec<String>,
}

/// A request without its body, which is ignored.
pub struct PageRequest {
    method: Method,
    headers: HeaderMap,
    path: String,
    query: String,
}

impl PageRequest {
    /// The parts of a request that answers depend on.
    pub fn new(request: &Request<Incoming>) -> PageRequest {
        PageRequest {
            method: request.method().clone(),
            headers: request.headers().clone(),
            path: request.uri().path().to_owned(),
            query: request.uri().query().unwrap_or_default().to_owned(),
        }
    }

    fn header(&self, name: HeaderName) -> Option<&[u8]> {
        self.headers.get(name).map(HeaderValue::as_bytes)
    }
}

impl GatewayState {
    /// Answers a request. Blocks while files are read.
    pub fn answer(&self, request: &PageRequest) -> Response<ReplyBody> {
        let mut answer = self.answer_with_body(request);
        if request.method == Method::HEAD {
            let length = answer.body().length();
            answer.headers_mut().entry(CONTENT_LENGTH).or_insert(length.into());
            *answer.body_mut() = ReplyBody::nothing();
        }
        answer
    }

    fn answer_with_body(&self, request: &PageRequest) -> Response<ReplyBody> {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            let mut answer = self.message_page(
                StatusCode::METHOD_NOT_ALLOWED,
                BannerStyle::Plain,
                "This can only be read.",
            );
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        if !self.is_ours(request.header(HOST)) {
            let why = "This gateway is not known by that name; --host tells it names that it has.\n";
            return text(StatusCode::MISDIRECTED_REQUEST, "text/plain; charset=utf-8", why);
        }
        let path = request.path.as_str();
        match path {
            "/" => return redirect("/at/"),
            "/verify" => return redirect("/verify/"),
            "/style.css" => return text(StatusCode::OK, "text/css; charset=utf-8", STYLE),
            "/verify/" => {
                let mut answer = text(StatusCode::OK, "text/html; charset=utf-8", VERIFIER);
                insert(answer.headers_mut(), CONTENT_SECURITY_POLICY, "frame-ancestors 'none'");
                return answer;
            }
            "/changes" => return self.changes(),
            _ => {}
        }
        let inside =
            |prefix: &str| path.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        match (inside("/at").map(names), inside("/raw").map(names)) {
            (Some(Some(path)), _) => self.at(request, &path),
            (_, Some(Some(path))) => self.raw(request, &path),
            _ => self.message_page(StatusCode::NOT_FOUND, BannerStyle::Plain, "There is no such page."),
        }
    }

    fn is_ours(&self, host: Option<&[u8]>) -> bool {
        let Some(host) = host.and_then(|host| std::str::from_utf8(host).ok()) else { return false };
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        bare.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    /// A page with a message in place of content.
    fn message_page(&self, status: StatusCode, mood: BannerStyle, head: &str) -> Response<ReplyBody> {
        html(status, page::page(&self.view.about(), &[], &page::message(mood, head, &[])))
    }

    fn troubled(&self, about: &TreeSummary, path: &[Vec<u8>], view_error: &ViewError) -> Response<ReplyBody> {
        let name = path.iter().map(|name| display_name(name)).collect::<Vec<_>>().join("/");
        let name = if name.is_empty() { "the top directory".to_owned() } else { name };
        let (status, mood, head) = match view_error.is_false {
            true => (
                StatusCode::BAD_GATEWAY,
                BannerStyle::Bad,
                format!(
                    "{name}: what the mirrors sent is not what the publisher signed, so it is not shown."
                ),
            ),
            false => (StatusCode::SERVICE_UNAVAILABLE, BannerStyle::Warn, format!("{name} cannot be shown.")),
        };
        tracing::warn!(name, why = view_error.why, "something cannot be shown");
        // A page with a warning in red must not have a green banner above it.
        let mut about = about.clone();
        about.banners.retain(|banner| banner.mood != BannerStyle::Good || !view_error.is_false);
        html(
            status,
            page::page(&about, path, &page::message(mood, &head, std::slice::from_ref(&view_error.why))),
        )
    }

    fn changes(&self) -> Response<ReplyBody> {
        let about = self.view.about();
        if !about.is_release {
            return self.message_page(StatusCode::NOT_FOUND, BannerStyle::Plain, "There is no such page.");
        }
        match self.view.changes(CHANGES_MAX) {
            Ok(changes) => {
                html(StatusCode::OK, page::page(&about, &[], &page::changes(&changes, CHANGES_MAX)))
            }
            Err(view_error) if view_error.is_false => self.troubled(&about, &[], &view_error),
            Err(view_error) => {
                let head = "The releases cannot be compared.";
                let content = page::message(BannerStyle::Plain, head, std::slice::from_ref(&view_error.why));
                html(StatusCode::OK, page::page(&about, &[], &content))
            }
        }
    }

    /// A page of a directory or file.
    fn at(&self, request: &PageRequest, path: &[Vec<u8>]) -> Response<ReplyBody> {
        let about = self.view.about();
        if !about.usable {
            return html(StatusCode::SERVICE_UNAVAILABLE, page::page(&about, &[], ""));
        }
        let content = match self.view.look(path) {
            Ok(PathTarget::Directory) => self.directory(request, path),
            Ok(PathTarget::File(opened)) => {
                preview(&opened).map(|preview| page::file(path, &opened, &preview))
            }
            Ok(PathTarget::Other(what)) => {
                Ok(page::message(BannerStyle::Plain, &format!("This is a {what}."), &[]))
            }
            Ok(nothing) => return self.nothing(&about, path, &nothing),
            Err(view_error) => Err(view_error),
        };
        match content {
            Ok(content) if content.is_empty() => redirect(&exact(request, path)),
            Ok(content) => html(StatusCode::OK, page::page(&about, path, &content)),
            Err(view_error) => self.troubled(&about, path, &view_error),
        }
    }

    /// A listing or a search. Empty if the request is to be redirected to another page.
    fn directory(&self, request: &PageRequest, path: &[Vec<u8>]) -> Result<String, ViewError> {
        if let Some(text) = field(&request.query, "find").filter(|text| !text.is_empty()) {
            if field(&request.query, "how").as_deref() == Some(b"exact") {
                return Ok(String::new());
            }
            let text = String::from_utf8_lossy(&text).into_owned();
            let hits = search(&*self.view, path, &text)?;
            return Ok(page::found(path, &text, &hits));
        }
        let after = field(&request.query, "after").filter(|name| is_name(name));
        let listing = self.view.list(path, after.as_deref(), PAGE_NAMES)?;
        Ok(page::directory(path, &listing, after.as_deref()))
    }

    fn nothing(&self, about: &TreeSummary, path: &[Vec<u8>], nothing: &PathTarget) -> Response<ReplyBody> {
        let name = path.iter().map(|name| display_name(name)).collect::<Vec<_>>().join("/");
        let head = match nothing {
            PathTarget::Nothing { proven: true } => format!("{name} is provably not in this release."),
            PathTarget::Outside => format!("{name} leads out of what is shown here."),
            _ => format!("{name} is not here."),
        };
        html(StatusCode::NOT_FOUND, page::page(about, path, &page::message(BannerStyle::Plain, &head, &[])))
    }

    /// The bytes of a file, or a range of them.
    fn raw(&self, request: &PageRequest, path: &[Vec<u8>]) -> Response<ReplyBody> {
        let about = self.view.about();
        let opened = match self.view.look(path) {
            Ok(PathTarget::File(opened)) => Arc::new(opened),
            Ok(PathTarget::Directory) => return redirect(&format!("/at{}", encoded_path(path))),
            Ok(PathTarget::Other(what)) => {
                return self.message_page(
                    StatusCode::NOT_FOUND,
                    BannerStyle::Plain,
                    &format!("This is a {what}."),
                );
            }
            Ok(nothing) => return self.nothing(&about, path, &nothing),
            Err(view_error) => return self.troubled(&about, path, &view_error),
        };
        let kind = match opened.content.read(0, HEAD_BYTES.min(opened.size as usize)) {
            Ok(head) => kind_of(&head, opened.size),
            Err(view_error) => return self.troubled(&about, path, &view_error),
        };
        let etag = format!("\"{}\"", opened.tag);
        let mut answer = Response::new(ReplyBody::nothing());
        let headers = answer.headers_mut();
        insert(headers, ETAG, &etag);
        insert(headers, CONTENT_TYPE, kind.unwrap_or("application/octet-stream"));
        let inline = kind.is_some() && field(&request.query, "download").is_none();
        let name = path.last().map_or(&b"file"[..], |name| name);
        insert(
            headers,
            CONTENT_DISPOSITION,
            &disposition(if inline { "inline" } else { "attachment" }, name),
        );
        insert(headers, CONTENT_SECURITY_POLICY, FILE_POLICY);
        insert(headers, CACHE_CONTROL, "private, no-cache");
        insert(headers, ACCEPT_RANGES, "bytes");
        guard(headers);
        if request.header(IF_NONE_MATCH).is_some_and(|tags| matches_any(tags, etag.as_bytes())) {
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
            return answer;
        }
        let range = match request.header(RANGE) {
            Some(range) if request.header(IF_RANGE).is_none_or(|tag| tag == etag.as_bytes()) => {
                wanted(range, opened.size)
            }
            _ => Range::Whole,
        };
        let part = match range {
            Range::Whole => 0..opened.size,
            Range::Part(part) => {
                *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
                let content_range = format!("bytes {}-{}/{}", part.start, part.end - 1, opened.size);
                insert(answer.headers_mut(), CONTENT_RANGE, &content_range);
                part
            }
            Range::Beyond => {
                *answer.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
                insert(answer.headers_mut(), CONTENT_RANGE, &format!("bytes */{}", opened.size));
                return answer;
            }
        };
        answer.headers_mut().insert(CONTENT_LENGTH, (part.end - part.start).into());
        *answer.body_mut() = ReplyBody::pieces(opened, part, PIECE_BYTES);
        answer
    }
}

/// The address of the exact name that was asked for, below a directory.
fn exact(request: &PageRequest, path: &[Vec<u8>]) -> String {
    let name = field(&request.query, "find").unwrap_or_default();
    let below: String = name.split(|byte| *byte == b'/').map(|name| format!("/{}", encoded(name))).collect();
    format!("/at{}{below}", encoded_path(path))
}

fn preview(opened: &OpenFile) -> Result<Preview, ViewError> {
    let bytes =
        opened.content.read(0, TEXT_BYTES_MAX.min(usize::try_from(opened.size).unwrap_or(usize::MAX)))?;
    let kind = kind_of(&bytes[..bytes.len().min(HEAD_BYTES)], opened.size);
    if kind.is_some_and(|kind| kind.starts_with("image/")) {
        return Ok(Preview::Image);
    }
    let is_cut = opened.size > bytes.len() as u64;
    Ok(match text_of(&bytes, is_cut) {
        Some(text) => Preview::Text(text.to_owned(), is_cut),
        None => Preview::None,
    })
}

/// The bytes as text if they are UTF-8; if `is_cut`, the last character may be incomplete.
fn text_of(bytes: &[u8], is_cut: bool) -> Option<&str> {
    if bytes.contains(&0) {
        return None;
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) if is_cut && error.error_len().is_none() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    }
}

/// The media type of content that browsers may display: formats that hold only an image, and text as plain
/// text. SVG is not among them, because it can hold programs. `None` for everything else, which can only be
/// downloaded.
fn kind_of(head: &[u8], size: u64) -> Option<&'static str> {
    let at = |from: usize, text: &[u8]| head.get(from..from + text.len()) == Some(text);
    match () {
        () if at(0, b"\x89PNG\r\n\x1a\n") => Some("image/png"),
        () if at(0, b"\xff\xd8\xff") => Some("image/jpeg"),
        () if at(0, b"GIF87a") || at(0, b"GIF89a") => Some("image/gif"),
        () if at(0, b"RIFF") && at(8, b"WEBP") => Some("image/webp"),
        () if at(4, b"ftypavif") => Some("image/avif"),
        () if text_of(head, size > head.len() as u64).is_some() => Some("text/plain; charset=utf-8"),
        () => None,
    }
}

/// The `Content-Disposition` header, with the name under which a browser saves a file.
fn disposition(how: &str, name: &[u8]) -> String {
    let plain: String = name
        .iter()
        .map(|byte| match byte {
            b'"' | b'\\' | b'%' => '_',
            0x20..=0x7e => *byte as char,
            _ => '_',
        })
        .collect();
    format!("{how}; filename=\"{plain}\"; filename*=UTF-8''{}", encoded(display_name(name).as_bytes()))
}

fn redirect(to: &str) -> Response<ReplyBody> {
    let mut answer = Response::new(ReplyBody::nothing());
    *answer.status_mut() = StatusCode::SEE_OTHER;
    insert(answer.headers_mut(), LOCATION, to);
    guard(answer.headers_mut());
    answer
}

fn html(status: StatusCode, page: String) -> Response<ReplyBody> {
    let mut answer = Response::new(ReplyBody::bytes(page));
    *answer.status_mut() = status;
    insert(answer.headers_mut(), CONTENT_TYPE, "text/html; charset=utf-8");
    insert(answer.headers_mut(), CONTENT_SECURITY_POLICY, PAGE_POLICY);
    insert(answer.headers_mut(), CACHE_CONTROL, "no-store");
    guard(answer.headers_mut());
    answer
}

fn text(status: StatusCode, kind: &'static str, text: &'static str) -> Response<ReplyBody> {
    let mut answer = Response::new(ReplyBody::bytes(text));
    *answer.status_mut() = status;
    insert(answer.headers_mut(), CONTENT_TYPE, kind);
    insert(answer.headers_mut(), CACHE_CONTROL, "no-cache");
    guard(answer.headers_mut());
    answer
}

/// Headers of every reply: it has the type that it states, and is for pages of this gateway only.
fn guard(headers: &mut HeaderMap) {
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
}

/// Inserts a header whose text is printable.
fn insert(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::try_from(text) {
        headers.insert(name, value);
    }
}
