//! A bucket behind the S3 protocol: signed calls over HTTP, with deadlines, which are repeated where that can
//! help. Large objects are written in parts. A range of an object is copied as the only part of an upload,
//! because such a part may have any length.
//!
//! Every call may be repeated. Object names are used only once, so a request that arrives twice, or late,
//! does only what was done already.

use crate::address::{BucketAddress, Location};
use crate::bucket::{Bucket, BucketError, ListedObject, RequestCounts, RequestKind};
use crate::credentials::{Credentials, CredentialsError};
use crate::sign::{UnsignedRequest, encoded, sha256, signature_headers};
use crate::xml::{self, Document};
use backon::{BlockingRetryable, ExponentialBuilder};
use holdfast_http_client::{Authorities, client};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use ureq::Agent;

/// Pauses between attempts: 0.1, 0.4 and 1.5 s.
const PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(100))
    .with_factor(4.0)
    .with_max_delay(Duration::from_millis(1500))
    .with_max_times(3);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a request without a body may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Slowest transfer, in bytes a second, for which the deadline of a request allows.
const PACE_BYTES: u64 = 256 << 10;
/// Longest reply that is not an object, in bytes.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Objects of at least so many bytes are written in parts.
const PARTS_FROM: usize = 32 << 20;
/// Size of a part in bytes; the last one may be shorter.
const PART_BYTES: usize = 16 << 20;
/// How many parts of an object are sent at the same time.
const PARTS_AT_ONCE: usize = 4;
/// Longest object that is read as a whole, in bytes.
const OBJECT_BYTES_MAX: u64 = 2 << 30;

/// A bucket of an S3-compatible store.
pub struct S3 {
    agent: Agent,
    address: BucketAddress,
    /// Scheme and host, and the bucket if that is in the path.
    base: String,
    host: String,
    path: String,
    region: String,
    counts: [AtomicU64; 5],
    /// Whether the last request got no reply. The next request is then attempted only once.
    is_away: AtomicBool,
    /// Whether the store has replied that it does not support uploads in parts.
    knows_no_parts: AtomicBool,
}

struct HttpReply {
    status: u16,
    length: Option<u64>,
    /// The ETag by which the store identifies what was written.
    tag: String,
    body: Vec<u8>,
}

#[derive(Clone)]
struct S3Request<'a> {
    kind: RequestKind,
    /// The HTTP method, if it is not the usual one of the kind.
    method: Option<&'static str>,
    /// Whether it is tried again even if the last request, perhaps of another thread, got no reply.
    insists: bool,
    /// The object's name without the prefix; empty for the bucket itself.
    object: &'a str,
    query: Vec<(String, String)>,
    range: Option<Range<u64>>,
    /// Headers to send with the object.
    headers: &'a [(&'static str, &'a str)],
    body: &'a [u8],
}

impl<'a> S3Request<'a> {
    /// A request with this kind and object, and nothing else.
    fn about(kind: RequestKind, object: &'a str) -> S3Request<'a> {
        S3Request {
            kind,
            method: None,
            insists: false,
            object,
            query: Vec::new(),
            range: None,
            headers: &[],
            body: &[],
        }
    }

    fn with(mut self, name: &str, value: &str) -> S3Request<'a> {
        self.query.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl S3 {
    /// A client for an address. It sends no request yet.
    pub fn new(address: &BucketAddress) -> S3 {
        let region = address.signing_region();
        let Location { base, host, path } = address.location();
        let config = client(Authorities::of_url(&base), None)
            .timeout_connect(Some(CONNECT_WITHIN))
            .max_idle_connections_per_host(16)
            .build();
        S3 {
            agent: config.into(),
            address: address.clone(),
            base,
            host,
            path,
            region,
            counts: Default::default(),
            is_away: AtomicBool::new(false),
            knows_no_parts: AtomicBool::new(false),
        }
    }

    /// Like [`Bucket::put`], but with headers that the store returns to readers of the object, such as
    /// `content-type`. Their names are in small letters.
    ///
    /// # Errors
    /// [`BucketError`]; the object may exist all the same, now or later.
    pub fn put_with(
        &self,
        name: &str,
        headers: &[(&'static str, &str)],
        bytes: &[u8],
    ) -> Result<(), BucketError> {
        let call = S3Request { headers, body: bytes, ..S3Request::about(RequestKind::Put, name) };
        if bytes.len() >= PARTS_FROM
            && !self.knows_no_parts.load(Ordering::Relaxed)
            && self.put_in_parts(&call)?
        {
            return Ok(());
        }
        self.send(&call).map(drop)
    }

    /// Writes a large object in parts, several at the same time. Each part is retried by itself. Returns
    /// `false` if the store does not support that.
    fn put_in_parts(&self, whole: &S3Request<'_>) -> Result<bool, BucketError> {
        let length = whole.body.len() as u64;
        self.upload(whole, length, |of_upload| self.put_each_part(whole.body, of_upload).map(Some))
    }

    /// Makes an object of `length` bytes from parts. `put` writes the parts and returns their tags, or `None`
    /// if the store cannot write them. Returns `false` if the store does not support uploads in parts.
    fn upload(
        &self,
        whole: &S3Request<'_>,
        length: u64,
        put: impl FnOnce(&S3Request<'_>) -> Result<Option<Vec<String>>, BucketError>,
    ) -> Result<bool, BucketError> {
        let began = S3Request { method: Some("POST"), body: &[], ..whole.clone() }.with("uploads", "");
        let begun = match self.send(&began) {
            Err(error) if is_unknown(&error) => {
                self.knows_no_parts.store(true, Ordering::Relaxed);
                return Ok(false);
            }
            answer => answer?,
        };
        let Ok(Document::InitiateMultipartUploadResult(upload)) = xml::parse(&begun.body) else {
            return Err(self.failed(&began, "it did not say which upload it began".to_owned()));
        };
        let upload = upload.upload_id;
        let of_upload =
            S3Request { headers: &[], body: &[], insists: true, ..whole.clone() }.with("uploadId", &upload);
        let done = put(&of_upload).and_then(|tags| match tags {
            Some(tags) => self.complete(&of_upload, length, &tags).map(|()| true),
            None => Ok(false),
        });
        if !matches!(done, Ok(true)) {
            // If the upload cannot be removed now, it is when the store is opened the next time.
            let _ = self.send(&S3Request { kind: RequestKind::Delete, insists: false, ..of_upload });
        }
        done
    }

    /// Completes an upload: makes one object of its parts.
    fn complete(&self, of_upload: &S3Request<'_>, length: u64, tags: &[String]) -> Result<(), BucketError> {
        let mut list = "<CompleteMultipartUpload>".to_owned();
        for (at, tag) in tags.iter().enumerate() {
            let (number, tag) = (at + 1, tag.replace('&', "&amp;").replace('<', "&lt;"));
            list.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"));
        }
        list.push_str("</CompleteMultipartUpload>");
        let call = S3Request { method: Some("POST"), body: list.as_bytes(), ..of_upload.clone() };
        let answer = match self.send(&call) {
            // An earlier request may have completed the upload, and its reply was lost.
            Err(BucketError::Absent { .. })
                if self.length(of_upload.object).is_ok_and(|found| found == length) =>
            {
                return Ok(());
            }
            answer => answer?,
        };
        // A failure may come with a status of success.
        match xml::parse(&answer.body) {
            Ok(Document::CompleteMultipartUploadResult(_)) => Ok(()),
            _ => Err(self.failed(&call, xml::refusal_of(&answer.body).1)),
        }
    }

    /// Writes all parts of an upload. Returns their tags.
    fn put_each_part(&self, bytes: &[u8], of_upload: &S3Request<'_>) -> Result<Vec<String>, BucketError> {
        let parts: Vec<&[u8]> = bytes.chunks(PART_BYTES).collect();
        let (next, tags) = (AtomicUsize::new(0), Mutex::new(vec![String::new(); parts.len()]));
        let failure: Mutex<Option<BucketError>> = Mutex::default();
        std::thread::scope(|scope| {
            for _ in 0..PARTS_AT_ONCE.min(parts.len()) {
                scope.spawn(|| {
                    while failure.lock().is_none() {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(part) = parts.get(at) else { return };
                        let number = (at + 1).to_string();
                        let call = S3Request { body: part, ..of_upload.clone() }.with("partNumber", &number);
                        match self.send(&call) {
                            Ok(answer) => tags.lock()[at] = answer.tag,
                            Err(error) => drop(failure.lock().get_or_insert(error)),
                        }
                    }
                });
            }
        });
        match failure.into_inner() {
            Some(error) => Err(error),
            None => Ok(tags.into_inner()),
        }
    }

    /// Has the store copy a range of an object as the only part of an upload. Returns its tag, or `None` if
    /// the store cannot do that.
    fn copy_part(
        &self,
        from: &str,
        range: &Range<u64>,
        of_upload: &S3Request<'_>,
    ) -> Result<Option<Vec<String>>, BucketError> {
        let key = encoded(&format!("{}{from}", self.address.prefix), true);
        let source = format!("/{}/{key}", self.address.bucket);
        let said = format!("bytes={}-{}", range.start, range.end - 1);
        let headers = [("x-amz-copy-source", source.as_str()), ("x-amz-copy-source-range", said.as_str())];
        let call = S3Request { headers: &headers, ..of_upload.clone() }.with("partNumber", "1");
        let answer = match self.send(&call) {
            Err(error) if is_unknown(&error) => return Ok(None),
            // The object to be copied may be the absent one.
            Err(BucketError::Absent { .. }) => {
                return Err(BucketError::Absent { object: self.display_name(from) });
            }
            answer => answer?,
        };
        match xml::parse(&answer.body) {
            Ok(Document::CopyPartResult(part)) => Ok(Some(vec![part.tag])),
            // A store that ignores the copy headers takes the request for an empty part.
            _ if answer.body.trim_ascii().is_empty() => Ok(None),
            // A failure may come with a status of success.
            _ => Err(self.failed(&call, xml::refusal_of(&answer.body).1)),
        }
    }

    /// The bucket and prefix.
    pub fn address(&self) -> &BucketAddress {
        &self.address
    }

    fn display_name(&self, object: &str) -> String {
        format!("s3://{}/{}{object}", self.address.bucket, self.address.prefix)
    }

    /// Sends a request, and repeats it until there is a reply or another attempt is not worth it.
    fn send(&self, call: &S3Request<'_>) -> Result<HttpReply, BucketError> {
        let mut is_first = true;
        let is_worth_another = |error: &BucketError| {
            let is_away = matches!(error, BucketError::Away { .. });
            let was_away = self.is_away.swap(is_away, Ordering::Relaxed);
            let is_first = std::mem::take(&mut is_first);
            is_away && (call.insists || !(was_away && is_first))
        };
        let reply = (|| self.attempt(call)).retry(PAUSES).when(is_worth_another).call()?;
        self.is_away.store(false, Ordering::Relaxed);
        Ok(reply)
    }

    fn attempt(&self, call: &S3Request<'_>) -> Result<HttpReply, BucketError> {
        let bucket = || self.address.place();
        let credentials = Credentials::find().map_err(|why| match why {
            CredentialsError::Unavailable { .. } => {
                BucketError::Away { bucket: bucket(), why: why.to_string() }
            }
            why => BucketError::NoCredentials { bucket: bucket(), why },
        })?;
        let key = match call.object {
            "" => String::new(),
            object => encoded(&format!("{}{object}", self.address.prefix), true),
        };
        let path = format!("{}/{key}", self.path);
        let mut query: Vec<_> =
            call.query.iter().map(|(name, value)| (encoded(name, false), encoded(value, false))).collect();
        query.sort_unstable();
        let range = call.range.as_ref().map(|range| format!("bytes={}-{}", range.start, range.end - 1));
        let mut headers: Vec<_> = range.iter().map(|range| ("range", range.as_str())).collect();
        headers.extend(call.headers);
        let payload = sha256(call.body);
        let method = call.method.unwrap_or(match call.kind {
            RequestKind::Put => "PUT",
            RequestKind::Get | RequestKind::List => "GET",
            RequestKind::Head => "HEAD",
            RequestKind::Delete => "DELETE",
        });
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let signing = UnsignedRequest {
            method,
            host: &self.host,
            path: &path,
            query: &query,
            headers: &headers,
            payload: &payload,
            region: &self.region,
            now_s,
        };
        let signed = signature_headers(&signing, &credentials);
        let pairs: Vec<_> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let question = if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) };
        let url = format!("{}{path}{question}", self.base);
        let expected = match (&call.range, call.kind) {
            (Some(range), _) => range.end - range.start,
            (None, RequestKind::Get) => 64 << 20,
            _ => 0,
        };
        let patience = PATIENCE + Duration::from_secs((expected + call.body.len() as u64) / PACE_BYTES);
        let away = |error: ureq::Error| BucketError::Away { bucket: bucket(), why: explained(&error) };
        self.counts[call.kind as usize].fetch_add(1, Ordering::Relaxed);
        let sent = match call.kind {
            RequestKind::Put => {
                let mut request = match method {
                    "POST" => self.agent.post(&url),
                    _ => self.agent.put(&url),
                };
                for (name, value) in
                    signed.iter().map(|(name, value)| (*name, value.as_str())).chain(headers.iter().copied())
                {
                    request = request.header(name, value);
                }
                request.config().timeout_global(Some(patience)).build().send(call.body)
            }
            kind => {
                let mut request = match kind {
                    RequestKind::Head => self.agent.head(&url),
                    RequestKind::Delete => self.agent.delete(&url),
                    _ => self.agent.get(&url),
                };
                for (name, value) in
                    signed.iter().map(|(name, value)| (*name, value.as_str())).chain(headers.iter().copied())
                {
                    request = request.header(name, value);
                }
                request.config().timeout_global(Some(patience)).build().call()
            }
        };
        let mut response = sent.map_err(away)?;
        let status = response.status().as_u16();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let length = header("content-length").and_then(|value| value.parse().ok());
        let tag = header("etag").unwrap_or_default().to_owned();
        let limit = match (call.kind, status) {
            (RequestKind::Get, 200..=299) => {
                call.range.as_ref().map_or(OBJECT_BYTES_MAX, |range| range.end - range.start + 1)
            }
            _ => ANSWER_BYTES_MAX,
        };
        let body = match call.kind {
            RequestKind::Head => Vec::new(),
            _ => match response.body_mut().with_config().limit(limit).read_to_vec() {
                Err(ureq::Error::BodyExceedsLimit(_)) => {
                    let why = "the answer is longer than what was asked for; does it know ranges?".to_owned();
                    return Err(self.failed(call, why));
                }
                read => read.map_err(away)?,
            },
        };
        match status {
            200..=299 => Ok(HttpReply { status, length, tag, body }),
            _ => Err(self.refusal(call, status, &body, credentials)),
        }
    }

    fn failed(&self, call: &S3Request<'_>, why: String) -> BucketError {
        let action = match call.kind {
            RequestKind::Put => "writing",
            RequestKind::Get => "reading",
            RequestKind::Head => "measuring",
            RequestKind::List => "listing",
            RequestKind::Delete => "removing",
        };
        let action = format!("{action} {}", self.display_name(call.object));
        BucketError::Failed { bucket: self.address.place(), action, why }
    }

    /// The error for a reply with a status of failure.
    fn refusal(
        &self,
        call: &S3Request<'_>,
        status: u16,
        body: &[u8],
        credentials: Credentials,
    ) -> BucketError {
        let (code, said) = xml::refusal_of(body);
        let clean: String = format!("{code} {said}").chars().take(200).collect();
        let why = format!("{} (status {status})", clean.trim()).trim().to_owned();
        let bucket = self.address.place();
        match (status, code.as_str()) {
            (_, "NoSuchBucket") => BucketError::NoBucket { bucket, why },
            (404, _) if call.kind == RequestKind::List => BucketError::NoBucket { bucket, why },
            (404, _) => BucketError::Absent { object: self.display_name(call.object) },
            (_, "RequestTimeTooSkewed" | "RequestExpired") => BucketError::Skew { bucket, why },
            (_, "QuotaExceeded") => self.failed(call, why),
            (401 | 403, _) => BucketError::Denied { bucket, why, from: credentials.from },
            (405 | 501, _) => self.failed(call, why),
            (408 | 429 | 500.., _)
            | (_, "RequestTimeout" | "SlowDown" | "BadDigest" | "XAmzContentSHA256Mismatch") => {
                BucketError::Away { bucket, why }
            }
            (301 | 307 | 400, _) => {
                let hint = format!(
                    "; requests are signed for the region {}: is it the bucket's (region=...)?",
                    self.region
                );
                self.failed(call, why + &hint)
            }
            _ => self.failed(call, why),
        }
    }
}

/// Whether a store has replied that it does not support the request.
fn is_unknown(error: &BucketError) -> bool {
    let BucketError::Failed { why, .. } = error else { return false };
    why.contains("NotImplemented") || why.contains("MethodNotAllowed")
}

/// Why there is no reply, with advice where there is some.
fn explained(error: &ureq::Error) -> String {
    let why = error.to_string();
    match why.contains("invalid peer certificate") {
        true => format!(
            "{why}. Its certificate must be of an authority that this machine trusts, or of one in the file that \
             SSL_CERT_FILE names"
        ),
        false => why,
    }
}

impl Bucket for S3 {
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), BucketError> {
        self.put_with(name, &[], bytes)
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Result<Vec<u8>, BucketError> {
        let call = S3Request { range: range.clone(), ..S3Request::about(RequestKind::Get, name) };
        let answer = self.send(&call)?;
        match range {
            Some(range) if answer.status != 206 || answer.body.len() as u64 != range.end - range.start => {
                let why = format!(
                    "{} bytes came (status {}) where {range:?} was asked for",
                    answer.body.len(),
                    answer.status
                );
                Err(self.failed(&call, why))
            }
            _ => Ok(answer.body),
        }
    }

    fn length(&self, name: &str) -> Result<u64, BucketError> {
        let call = S3Request::about(RequestKind::Head, name);
        self.send(&call)?.length.ok_or_else(|| self.failed(&call, "it did not say how long it is".to_owned()))
    }

    fn list(&self, beginning: &str) -> Result<Vec<ListedObject>, BucketError> {
        let (mut found, mut next): (Vec<ListedObject>, Option<String>) = (Vec::new(), None);
        loop {
            let mut query = vec![
                ("list-type".to_owned(), "2".to_owned()),
                ("prefix".to_owned(), format!("{}{beginning}", self.address.prefix)),
            ];
            query.extend(next.take().map(|token| ("continuation-token".to_owned(), token)));
            let call = S3Request { query, ..S3Request::about(RequestKind::List, "") };
            let body = self.send(&call)?.body;
            // A truncated listing cannot be parsed, so it never looks like a short one.
            let page = match xml::parse(&body) {
                Ok(Document::ListBucketResult(page)) => page,
                Ok(_) => return Err(self.failed(&call, "it answered with something else".to_owned())),
                Err(why) => return Err(self.failed(&call, why.to_string())),
            };
            for one in page.contents {
                if let Some(name) = one.key.strip_prefix(&self.address.prefix) {
                    found.push(ListedObject { name: name.to_owned(), length: one.size });
                }
            }
            if !page.is_truncated {
                break;
            }
            next = page.next_continuation_token;
            if next.is_none() {
                return Err(self.failed(&call, "the listing does not say how it goes on".to_owned()));
            }
        }
        found.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        found.dedup();
        Ok(found)
    }

    fn delete(&self, name: &str) -> Result<(), BucketError> {
        match self.send(&S3Request::about(RequestKind::Delete, name)) {
            Err(BucketError::Absent { .. }) => Ok(()),
            other => other.map(drop),
        }
    }

    fn abandon_uploads(&self, beginning: &str) -> Result<usize, BucketError> {
        let prefix = format!("{}{beginning}", self.address.prefix);
        let call = S3Request::about(RequestKind::List, "").with("uploads", "").with("prefix", &prefix);
        let body = self.send(&call)?.body;
        let found = match xml::parse(&body) {
            Ok(Document::ListMultipartUploadsResult(found)) => found.upload,
            _ => Vec::new(),
        };
        let mut count = 0;
        // Uploads on further pages are removed at a later start.
        for one in found {
            let name = one.key.strip_prefix(&self.address.prefix);
            if let Some(name) = name.filter(|name| name.starts_with(beginning)) {
                let remove = S3Request::about(RequestKind::Delete, name).with("uploadId", &one.upload_id);
                match self.send(&remove) {
                    Ok(_) | Err(BucketError::Absent { .. }) => count += 1,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(count)
    }

    fn copy(&self, from: &str, range: Range<u64>, to: &str) -> Result<bool, BucketError> {
        if self.knows_no_parts.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let length = range.end - range.start;
        self.upload(&S3Request::about(RequestKind::Put, to), length, |of_upload| {
            self.copy_part(from, &range, of_upload)
        })
    }

    fn describe(&self) -> String {
        self.address.place()
    }

    fn counts(&self) -> RequestCounts {
        let of = |kind: RequestKind| self.counts[kind as usize].load(Ordering::Relaxed);
        RequestCounts {
            put: of(RequestKind::Put),
            get: of(RequestKind::Get),
            head: of(RequestKind::Head),
            list: of(RequestKind::List),
            delete: of(RequestKind::Delete),
        }
    }
}

/// Tries everything that a bucket must support, on an object `probe-...`, before anything relies on it.
///
/// # Errors
/// [`BucketError`], which says what does not work, and what to do.
pub fn probe(bucket: &dyn Bucket, mark: &[u8; 16]) -> Result<(), BucketError> {
    let name = format!("probe-{}", crate::sign::hex(mark));
    let failed = |action: &str, why: &str| BucketError::Failed {
        bucket: bucket.describe(),
        action: format!("{action} the object {name}, which tries the bucket"),
        why: why.to_owned(),
    };
    bucket.list(&name)?;
    bucket.put(&name, mark)?;
    if bucket.get(&name, None)? != mark {
        return Err(failed("reading", "other bytes came back than were written"));
    }
    if bucket.get(&name, Some(4..9))? != mark[4..9] {
        return Err(failed("reading a range of", "other bytes came back than were written"));
    }
    if bucket.length(&name)? != mark.len() as u64 {
        return Err(failed("measuring", "it has another length than was written"));
    }
    if bucket.list(&name)?.len() != 1 {
        tracing::warn!(
            bucket = bucket.describe(),
            "listings lag behind what was written; they are not relied on"
        );
    }
    bucket.delete(&name)
}
