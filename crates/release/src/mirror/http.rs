//! A mirror at a web server or in a bucket.

use super::bucket::BucketMirror;
use super::names::CachingResolver;
use super::pace::PaceConnector;
use super::{
    AddressError, Fault, Mirror, MirrorError, OBJECTS, OBJECTS_ANSWER_BYTES_MAX, PATHS, PATHS_BYTES_MAX,
    is_name, printable,
};
use crate::pack::FRAME_BYTES_MAX;
use holdfast_crypto::Digest;
use holdfast_http_client::{Authorities, client};
use std::io::Read;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};
use ureq::http::header::{CONTENT_ENCODING, CONTENT_RANGE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use ureq::http::uri::{Authority, Scheme};
use ureq::http::{Response, StatusCode, Uri};
use ureq::unversioned::transport::{
    ConnectProxyConnector, Connector, RustlsConnector, SocksConnector, TcpConnector,
};
use ureq::{Agent, Body, Error};

/// Most redirections that are followed.
const REDIRECTS_MAX: usize = 3;
/// Most bytes of a file that are read to find a range in it, if the server does not support ranges.
const WHOLE_FILE_BYTES_MAX: u64 = 4 << 20;
/// Most bytes of the head of an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Most bytes that are read of a reply's body that is not the file.
const ASIDE_BYTES_MAX: u64 = 16 << 10;
/// How many bytes are read at a time. One byte of an answer can make this program reserve so much.
const PIECE_BYTES: usize = 64 << 10;
/// Most idle connections to a mirror that stay open.
const IDLE_CONNECTIONS_MAX: usize = 16;

/// How long a client waits for a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For resolving the address; connecting has the same time again.
    pub connect: Duration,
    /// For the head of a reply, and for each further part of it.
    pub answer: Duration,
    /// The lowest average speed, in bytes a second, not counting `answer`.
    pub bytes_per_s_min: u64,
    /// For a whole reply, however long it is.
    pub total: Duration,
}

impl Default for Patience {
    /// Tolerates slow links, but does not wait long for dead ones.
    fn default() -> Patience {
        Patience {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(10),
            bytes_per_s_min: 8 << 10,
            total: Duration::from_secs(3600),
        }
    }
}

/// A web server with the files of a release.
///
/// Redirections are followed within the mirror's origin only. There are no cookies, passwords or compression.
/// Proxies are taken from the environment, as usual (`ALL_PROXY`, `HTTPS_PROXY`, `NO_PROXY`; HTTP or SOCKS).
pub struct Http {
    /// The mirror's name for messages.
    name: String,
    /// The URL, with a slash at the end.
    url: String,
    origin: Origin,
    agent: Agent,
    /// The bucket at this URL, if it is recognised as one.
    bucket: Option<BucketMirror>,
    /// Whether the server has sent a whole file where a part was asked for.
    ignores_ranges: AtomicBool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: Scheme,
    host: String,
    port: u16,
}

impl Origin {
    fn of(uri: &Uri) -> Option<Origin> {
        let scheme = uri.scheme()?.clone();
        let host = uri.host()?;
        let port = match uri.authority()?.as_str().strip_prefix(host) {
            Some("") => {
                if scheme == Scheme::HTTPS {
                    443
                } else {
                    80
                }
            }
            // If this is no port, a user name stands before the host.
            _ => uri.port_u16()?,
        };
        Some(Origin { scheme, host: host.to_ascii_lowercase(), port })
    }
}

impl Http {
    /// `url` is the URL of the release's directory, such as `https://HOST/PATH/`.
    ///
    /// # Errors
    /// [`AddressError`]: what is wrong with the URL.
    pub fn new(url: &str) -> Result<Http, AddressError> {
        Http::with_patience(url, Patience::default())
    }

    /// Like [`Http::new`], with other deadlines.
    ///
    /// # Errors
    /// [`AddressError`]: what is wrong with the URL.
    pub fn with_patience(url: &str, patience: Patience) -> Result<Http, AddressError> {
        let wrong = |why: &str| AddressError { address: url.to_owned(), why: why.to_owned() };
        if url.contains(['?', '#']) {
            return Err(wrong("it must end with a path, without ? and #"));
        }
        let uri: Uri = url.parse().map_err(|error| wrong(&format!("it is not a URL: {error}")))?;
        let origin = Origin::of(&uri).ok_or_else(|| wrong("it has no host, or a port that is none"))?;
        if uri.authority().map(Authority::as_str).is_some_and(|authority| authority.contains('@')) {
            return Err(wrong("mirrors are public: a name or password cannot be given"));
        }
        let mut url = url.to_owned();
        if !url.ends_with('/') {
            url.push('/');
        }
        // Redirections are followed by this module, with stricter rules than those of HTTP clients.
        let config = client(Authorities::of_url(&url), None)
            .accept_encoding("identity")
            .timeout_resolve(Some(patience.connect))
            .timeout_connect(Some(patience.connect))
            .timeout_send_request(Some(patience.answer))
            .timeout_recv_response(Some(patience.answer))
            .timeout_per_read(Some(patience.answer))
            .timeout_recv_body(Some(patience.total))
            .max_response_header_size(HEAD_BYTES_MAX)
            .input_buffer_size(PIECE_BYTES)
            .output_buffer_size(HEAD_BYTES_MAX)
            .max_idle_connections(IDLE_CONNECTIONS_MAX)
            .max_idle_connections_per_host(IDLE_CONNECTIONS_MAX)
            .build();
        let connector =
            ().chain(SocksConnector::default())
                .chain(ConnectProxyConnector::default())
                .chain(TcpConnector::default())
                .chain(PaceConnector(patience))
                .chain(RustlsConnector::default());
        let agent = Agent::with_parts(config, connector, CachingResolver::default());
        let ignores_ranges = AtomicBool::new(false);
        Ok(Http { name: url.clone(), url, origin, agent, bucket: None, ignores_ranges })
    }

    /// A bucket, by its address `s3://BUCKET/PREFIX?endpoint=URL`.
    ///
    /// # Errors
    /// [`AddressError`]: what is wrong with the address.
    pub fn of_bucket(address: &str) -> Result<Http, AddressError> {
        let bucket = BucketMirror::new(address)?;
        let http = Http::new(&bucket.url())?;
        Ok(Http { name: bucket.name(), bucket: Some(bucket), ..http })
    }

    fn fetch(&self, file: &str, range: Option<&Range<u64>>, bytes_max: u64) -> Result<Vec<u8>, Fault> {
        if !is_name(file) {
            return Err(Fault::name());
        }
        if range.is_some_and(Range::is_empty) {
            return Ok(Vec::new());
        }
        let mut target = format!("{}{file}", self.url);
        let part = range.map(|range| format!("bytes={}-{}", range.start, range.end - 1));
        let signed = self.bucket.as_ref().map(|bucket| bucket.sign(file, part.as_deref())).transpose()?;
        for _ in 0..=REDIRECTS_MAX {
            let mut request = self.agent.get(&target);
            if let Some(part) = &part {
                request = request.header("range", part);
            }
            for (name, value) in signed.iter().flat_map(|signed| &signed.headers) {
                request = request.header(*name, value);
            }
            let answer = request.call().map_err(fault)?;
            let status = answer.status();
            if matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
                if range.is_some() {
                    self.ignores_ranges.store(status == StatusCode::OK, Relaxed);
                }
                return read(answer, range, bytes_max);
            }
            let pause = retry_after(answer.headers());
            let location = answer.headers().get(LOCATION).cloned();
            // The body is not used, but the connection can be used again only after it was read.
            let aside = take(answer, ASIDE_BYTES_MAX);
            if let (Some(bucket), Some(signed), Ok(said)) = (&self.bucket, &signed, &aside)
                && let Some(fault) = bucket.refusal(file, status, said, signed)
            {
                return Err(fault);
            }
            match status {
                // A bucket that does not permit listing returns 'forbidden' for objects that do not exist.
                StatusCode::NOT_FOUND | StatusCode::GONE | StatusCode::FORBIDDEN => {
                    return Err(Fault::Missing);
                }
                // The range begins after the end of the file.
                StatusCode::RANGE_NOT_SATISFIABLE if range.is_some() => return Ok(Vec::new()),
                StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT => target = self.follow(&target, location.as_ref())?,
                status => return Err(refused(status, pause)),
            }
        }
        Err(Fault::Wrong(format!("it redirects more than {REDIRECTS_MAX} times")))
    }

    fn look_up(&self, paths: &[&[u8]], bytes_max: u64) -> Result<Vec<u8>, Fault> {
        let body = paths.join(&0);
        if body.len() > PATHS_BYTES_MAX {
            return Err(Fault::Wrong(format!("paths of more than {PATHS_BYTES_MAX} bytes are asked for")));
        }
        self.post(PATHS, &body, bytes_max)
    }

    fn post(&self, what: &str, body: &[u8], bytes_max: u64) -> Result<Vec<u8>, Fault> {
        if self.bucket.is_some() {
            // The server only has the release's files.
            return Err(Fault::Missing);
        }
        let answer = self.agent.post(format!("{}{what}", self.url)).send(body).map_err(fault)?;
        let status = answer.status();
        if status == StatusCode::OK {
            return read(answer, None, bytes_max);
        }
        let pause = retry_after(answer.headers());
        let _ = take(answer, ASIDE_BYTES_MAX);
        Err(match status {
            // The reply of a server that only has files.
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED | StatusCode::BAD_REQUEST => {
                Fault::Missing
            }
            status if status.is_redirection() => Fault::Missing,
            status => refused(status, pause),
        })
    }

    /// The target of a redirection, if it is within the origin.
    fn follow(&self, from: &str, location: Option<&HeaderValue>) -> Result<String, Fault> {
        let location = location
            .and_then(|location| location.to_str().ok())
            .ok_or_else(|| Fault::Wrong("it redirects nowhere".to_owned()))?;
        let base: Uri = from.parse().map_err(|_| Fault::name())?;
        let authority = base.authority().map_or("", Authority::as_str);
        let scheme = &self.origin.scheme;
        let target = if location.contains("://") {
            location.to_owned()
        } else if location.starts_with("//") {
            format!("{scheme}:{location}")
        } else if location.starts_with('/') {
            format!("{scheme}://{authority}{location}")
        } else {
            let directory = base.path().rsplit_once('/').map_or("", |(directory, _)| directory);
            format!("{scheme}://{authority}{directory}/{location}")
        };
        let within = target.parse().ok().and_then(|uri: Uri| {
            let named = uri.authority()?.as_str().contains('@');
            (!named && Origin::of(&uri)? == self.origin).then_some(())
        });
        within.map(|()| target.clone()).ok_or_else(|| {
            let target = printable(&target);
            Fault::Wrong(format!("it redirects to {target}; if that is a mirror you mean, give its address"))
        })
    }
}

impl Mirror for Http {
    fn name(&self) -> &str {
        &self.name
    }

    fn get(&self, file: &str, range: Option<Range<u64>>, bytes_max: u64) -> Result<Vec<u8>, MirrorError> {
        self.fetch(file, range.as_ref(), bytes_max).map_err(|fault| fault.of(&self.name, file))
    }

    fn notice(&self) -> Option<String> {
        self.ignores_ranges.load(Relaxed).then(|| {
            format!(
                "{} sends whole files where parts are asked for, so reading a little costs much and packs of more than {} \
                 MiB cannot be read: use a web server that knows ranges (holdfast release serve, nginx, Apache, Caddy; python3 \
                 -m http.server does not)",
                self.name,
                WHOLE_FILE_BYTES_MAX >> 20
            )
        })
    }

    fn paths(&self, paths: &[&[u8]], bytes_max: u64) -> Result<Vec<u8>, MirrorError> {
        self.look_up(paths, bytes_max).map_err(|fault| fault.of(&self.name, PATHS))
    }

    fn objects(&self, addresses: &[Digest]) -> Result<Vec<u8>, MirrorError> {
        let body: Vec<u8> = addresses.iter().flat_map(|address| address.0).collect();
        let bytes_max = OBJECTS_ANSWER_BYTES_MAX + FRAME_BYTES_MAX;
        self.post(OBJECTS, &body, bytes_max as u64).map_err(|fault| fault.of(&self.name, OBJECTS))
    }
}

/// How long a server asks not to be asked again: in seconds, or until a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).ok(),
    }
}

/// The fault that a status other than success stands for.
fn refused(status: StatusCode, pause: Option<Duration>) -> Fault {
    match status {
        // A bucket that does not permit listing returns 'forbidden' for objects that do not exist.
        StatusCode::NOT_FOUND | StatusCode::GONE | StatusCode::FORBIDDEN => Fault::Missing,
        status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            let why = format!("it says '{status}'");
            match pause {
                Some(pause) => Fault::Busy(why, pause),
                None => Fault::Unreachable(why),
            }
        }
        status => Fault::Wrong(format!("it says '{status}'")),
    }
}

/// Reads the body of a successful reply, and checks that it is what was asked for.
fn read(answer: Response<Body>, range: Option<&Range<u64>>, bytes_max: u64) -> Result<Vec<u8>, Fault> {
    let wrong = |why: String| Err(Fault::Wrong(why));
    let encodings = answer.headers().get_all(CONTENT_ENCODING);
    if let Some(encoding) = encodings.iter().find(|encoding| *encoding != "identity") {
        let encoding = printable(&String::from_utf8_lossy(encoding.as_bytes()));
        return wrong(format!("it is encoded ({encoding}), which was not asked for"));
    }
    let length = answer.body().content_length();
    let partial = answer.status() == StatusCode::PARTIAL_CONTENT;
    match range {
        None if partial => wrong("it is a part, but the whole was asked for".to_owned()),
        None => {
            if length.is_some_and(|length| length > bytes_max) {
                return Err(Fault::too_long(bytes_max));
            }
            let bytes = take(answer, bytes_max.saturating_add(1))?;
            if bytes.len() as u64 > bytes_max { Err(Fault::too_long(bytes_max)) } else { Ok(bytes) }
        }
        Some(range) if partial => {
            let header = answer.headers().get(CONTENT_RANGE).and_then(|header| header.to_str().ok());
            let Some((given, total)) = header.and_then(content_range) else {
                return wrong("it does not say which part it is".to_owned());
            };
            // A range may end early only at the end of the file.
            let fits = given.start == range.start
                && (given.end == range.end || (given.end < range.end && total == Some(given.end)));
            if !fits {
                let Range { start, end } = given;
                return wrong(format!("it is bytes {start} to {end}, not {} to {}", range.start, range.end));
            }
            let wanted = given.end - given.start;
            if wanted > bytes_max {
                return Err(Fault::too_long(bytes_max));
            }
            let bytes = take(answer, wanted + 1)?;
            if bytes.len() as u64 == wanted {
                return Ok(bytes);
            }
            wrong(format!("it claims to have {wanted} bytes and has not"))
        }
        // The whole file, from a server that does not support ranges.
        Some(range) => {
            let needed = range.end.min(length.unwrap_or(u64::MAX));
            if needed.saturating_sub(range.start) > bytes_max && length.is_some() {
                return Err(Fault::too_long(bytes_max));
            }
            let needed = needed.min(range.start.saturating_add(bytes_max).saturating_add(1));
            if range.start > 0 && needed > WHOLE_FILE_BYTES_MAX {
                return wrong("it sends the whole file, which is long, instead of a part".to_owned());
            }
            let mut bytes = take(answer, needed)?;
            let before = range.start.min(bytes.len() as u64) as usize;
            bytes.drain(..before);
            if bytes.len() as u64 > bytes_max { Err(Fault::too_long(bytes_max)) } else { Ok(bytes) }
        }
    }
}

/// Reads at most `bytes_max` bytes; the connection is closed if there are more.
fn take(answer: Response<Body>, bytes_max: u64) -> Result<Vec<u8>, Fault> {
    let mut reader = answer.into_body().into_reader().take(bytes_max);
    let mut bytes = Vec::new();
    loop {
        let filled = bytes.len();
        // The buffer at most doubles, so that memory is used only for data that arrives.
        let piece = PIECE_BYTES.max(filled).min(1 << 20).min((reader.limit()) as usize);
        if piece == 0 {
            return Ok(bytes);
        }
        bytes.resize(filled + piece, 0);
        let read = reader.read(&mut bytes[filled..]).map_err(|error| match fault(Error::from(error)) {
            Fault::Unreachable(why) => Fault::Unreachable(format!("after {filled} bytes: {why}")),
            other => other,
        })?;
        bytes.truncate(filled + read);
        if read == 0 {
            return Ok(bytes);
        }
    }
}

/// Parses `bytes FIRST-LAST/TOTAL`. Returns the range, and the total if it is given.
fn content_range(text: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let end = last.checked_add(1)?;
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    (first < end && total.is_none_or(|total| end <= total)).then_some((first..end, total))
}

/// Converts an error of the HTTP client to a fault.
fn fault(error: Error) -> Fault {
    match error {
        Error::Timeout(ureq::Timeout::PerRead) => Fault::Unreachable("it is too slow".to_owned()),
        Error::Timeout(phase) => Fault::Unreachable(format!("it did not answer in time ({phase})")),
        Error::HostNotFound => Fault::Unreachable("there is no such host".to_owned()),
        Error::Io(error) => Fault::Unreachable(printable(&error.to_string())),
        Error::LargeResponseHeader(..) => Fault::Wrong("the head of its answer is too long".to_owned()),
        Error::Protocol(error) => Fault::Wrong(printable(&format!("not HTTP: {error}"))),
        other => Fault::Unreachable(printable(&other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: the header that describes a part is parsed strictly.
    #[test]
    fn content_ranges() {
        assert_eq!(content_range("bytes 0-9/100"), Some((0..10, Some(100))));
        assert_eq!(content_range("bytes 5-5/*"), Some((5..6, None)));
        for bad in [
            "",
            "bytes",
            "bytes */100",
            "bytes 9-0/100",
            "bytes 0-100/100",
            "bytes 0-18446744073709551615/*",
            "bytes -1-5/10",
            "lines 0-9/100",
            "bytes 0-9",
            "bytes 0-9/x",
        ] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }

    fn redirected(from: &str, to: &str) -> Result<String, Fault> {
        let mirror = Http::new("http://host:8080/dir/").expect("a URL");
        mirror.follow(from, Some(&HeaderValue::from_str(to).expect("a header")))
    }

    /// Redirections stay within scheme, host and port.
    #[test]
    fn redirections() {
        let from = "http://host:8080/dir/packs/a";
        for (to, leads) in [
            ("/other/a", "http://host:8080/other/a"),
            ("b", "http://host:8080/dir/packs/b"),
            ("http://HOST:8080/x", "http://HOST:8080/x"),
            ("//host:8080/y", "http://host:8080/y"),
        ] {
            assert_eq!(redirected(from, to).as_deref(), Ok(leads), "{to}");
        }
        for to in [
            "https://host:8080/x",
            "http://host/x",
            "http://host:8081/x",
            "http://other:8080/x",
            "//other/x",
            "http://user@host:8080/x",
            "file:///etc/passwd",
            "http://host:8080@other/x",
            "http://",
        ] {
            assert!(matches!(redirected(from, to), Err(Fault::Wrong(_))), "{to}");
        }
    }
}
