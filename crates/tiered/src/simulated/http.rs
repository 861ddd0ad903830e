//! The S3 protocol in front of a bucket in memory, for tests over real sockets: the five calls, uploads in
//! parts, checked signatures, listings in pages, and reading by anybody where that is allowed. The server can
//! stop for a while and come back at the same address.

use super::Simulated;
use crate::bucket::{Bucket, BucketError};
use crate::credentials::Credentials;
use crate::sign::{UnsignedRequest, sha256, signature_headers, timestamp};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zeroize::Zeroizing;

/// The access key that the server accepts.
pub const KEY_ID: &str = "holdfast";
/// The secret of the access key.
pub const SECRET: &str = "holdfastsecret";
/// The region that requests must be signed for.
pub const REGION: &str = "us-east-1";
/// Headers that are stored with an object.
const KEPT: [&str; 2] = ["cache-control", "content-type"];
/// How many names one page of a listing has.
const PAGE: usize = 100;

/// A server of one bucket.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    /// Objects by key, which includes the prefix.
    objects: Simulated,
    bucket: String,
    is_ending: AtomicBool,
    /// How many seconds the server's clock is ahead.
    ahead_s: AtomicU64,
    /// Pause before each reply, in milliseconds.
    pause_ms: AtomicU64,
    /// Objects whose keys begin so can be read by anybody, but not listed.
    public: Mutex<Option<String>>,
    uploads: Mutex<Uploads>,
}

/// Uploads in parts that are not complete.
#[derive(Default)]
struct Uploads {
    begun: u64,
    open: BTreeMap<String, Upload>,
    /// How many parts will still fail.
    failing: u64,
    are_unknown: bool,
    copies_are_unknown: bool,
}

impl Uploads {
    fn begin(&mut self, key: &str) -> String {
        self.begun += 1;
        let id = format!("upload-{}", self.begun);
        self.open.insert(id.clone(), Upload { key: key.to_owned(), ..Upload::default() });
        id
    }
}

/// One upload: its key, and its parts.
#[derive(Default)]
struct Upload {
    key: String,
    parts: BTreeMap<u32, Vec<u8>>,
}

struct Request {
    method: String,
    path: String,
    query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

type HttpReply = (u16, Vec<(&'static str, String)>, Vec<u8>);

impl Server {
    /// Serves a bucket at an address; port 0 takes any.
    ///
    /// # Errors
    /// The system's error.
    pub fn start(objects: &Simulated, bucket: &str, address: SocketAddr) -> std::io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            objects: objects.clone(),
            bucket: bucket.to_owned(),
            is_ending: AtomicBool::new(false),
            ahead_s: AtomicU64::new(0),
            pause_ms: AtomicU64::new(0),
            public: Mutex::new(None),
            uploads: Mutex::default(),
        });
        let of_thread = shared.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if of_thread.is_ending.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let shared = of_thread.clone();
                std::thread::spawn(move || drop(shared.serve(&stream)));
            }
        });
        Ok(Server { shared, address, thread: Some(thread) })
    }

    /// The address where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the clock ahead.
    pub fn set_ahead(&self, seconds: u64) {
        self.shared.ahead_s.store(seconds, Ordering::Relaxed);
    }

    /// Lets anybody read objects whose keys begin so, as usual policies do: a request for an absent one is
    /// "forbidden".
    pub fn set_public(&self, prefix: &str) {
        *self.shared.public.lock() = Some(prefix.to_owned());
    }

    /// Lets this number of parts of uploads fail.
    pub fn fail_parts(&self, count: u64) {
        self.shared.uploads.lock().failing = count;
    }

    /// Begins an upload that is never completed.
    pub fn begin_upload(&self, key: &str) {
        self.shared.uploads.lock().begin(key);
    }

    /// From now on uploads in parts are not supported, as with some stores.
    pub fn forget_parts(&self) {
        self.shared.uploads.lock().are_unknown = true;
    }

    /// From now on copied parts are not supported, as with some stores.
    pub fn forget_copies(&self) {
        self.shared.uploads.lock().copies_are_unknown = true;
    }

    /// The number of uploads that were begun, and of those that were neither completed nor given up.
    pub fn uploads(&self) -> (u64, usize) {
        let uploads = self.shared.uploads.lock();
        (uploads.begun, uploads.open.len())
    }

    /// Sets a pause before each reply.
    pub fn set_pause(&self, pause: Duration) {
        self.shared.pause_ms.store(pause.as_millis() as u64, Ordering::Relaxed);
    }
}

impl Drop for Server {
    /// Stops listening, and ends each connection at its next request.
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self, stream: &TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = read(&mut reader)? {
            std::thread::sleep(Duration::from_millis(self.pause_ms.load(Ordering::Relaxed)));
            if self.is_ending.load(Ordering::Acquire) {
                return Ok(());
            }
            let (status, headers, body) = self.answer(&request).unwrap_or_else(|refusal| refusal);
            let mut head = format!("HTTP/1.1 {status} Status\r\n");
            for (name, value) in &headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            if request.method != "HEAD" {
                head.push_str(&format!("content-length: {}\r\n", body.len()));
            }
            head.push_str("\r\n");
            let mut stream = stream;
            stream.write_all(head.as_bytes())?;
            if request.method != "HEAD" {
                stream.write_all(&body)?;
            }
            stream.flush()?;
        }
        Ok(())
    }

    fn answer(&self, request: &Request) -> Result<HttpReply, HttpReply> {
        let rest = request.path.strip_prefix('/').unwrap_or("");
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        match request.header("authorization") {
            Some(_) => self.check(request)?,
            None => self.check_stranger(request, key)?,
        }
        if bucket != self.bucket {
            return Err(refusal(404, "NoSuchBucket"));
        }
        let of = |error: BucketError| match error {
            BucketError::Absent { .. } => refusal(404, "NoSuchKey"),
            BucketError::Away { .. } => refusal(503, "SlowDown"),
            _ => refusal(416, "InvalidRange"),
        };
        if request.has("uploads") || request.has("uploadId") {
            return self.upload(request, key).map_err(|error| error.unwrap_or_else(of));
        }
        match request.method.as_str() {
            "GET" if key.is_empty() => self.list(request).map_err(of),
            "PUT" => {
                self.objects.put(key, &request.body).map_err(of)?;
                let header = |name: &'static str| Some((name, request.header(name)?.to_owned()));
                self.objects.set_headers(key, KEPT.into_iter().filter_map(header).collect());
                Ok((200, Vec::new(), Vec::new()))
            }
            "DELETE" => self.objects.delete(key).map(|()| (204, Vec::new(), Vec::new())).map_err(of),
            "HEAD" => {
                let length = self.objects.length(key).map_err(of)?;
                Ok((200, vec![("content-length", length.to_string())], Vec::new()))
            }
            "GET" => {
                let bytes = self.objects.get(key, None).map_err(of)?;
                let mut headers = self.objects.headers(key);
                let Some(range) = request.header("range").and_then(range_of) else {
                    return Ok((200, headers, bytes));
                };
                let total = bytes.len() as u64;
                if range.start >= total {
                    return Err(refusal(416, "InvalidRange"));
                }
                let end = range.end.min(total);
                let said = format!("bytes {}-{}/{total}", range.start, end - 1);
                headers.push(("content-range", said));
                Ok((206, headers, bytes[range.start as usize..end as usize].to_vec()))
            }
            _ => Err(refusal(405, "MethodNotAllowed")),
        }
    }

    /// A request without a signature may read public objects, but does not learn which objects do not exist.
    fn check_stranger(&self, request: &Request, key: &str) -> Result<(), HttpReply> {
        let is_public =
            self.public.lock().as_ref().is_some_and(|prefix| !key.is_empty() && key.starts_with(prefix));
        let is_reading = matches!(request.method.as_str(), "GET" | "HEAD");
        match is_public && is_reading && self.objects.object(key).is_some() {
            true => Ok(()),
            false => Err(refusal(403, "AccessDenied")),
        }
    }

    /// Signature, time, and what was signed of the body.
    fn check(&self, request: &Request) -> Result<(), HttpReply> {
        let header = |name: &str| request.header(name).unwrap_or("");
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let now_s = now_s + self.ahead_s.load(Ordering::Relaxed);
        let date = header("x-amz-date");
        let Some(then_s) = (now_s - 900..=now_s + 900).find(|second| timestamp(*second) == date) else {
            return Err(refusal(403, "RequestTimeTooSkewed"));
        };
        if sha256(&request.body) != header("x-amz-content-sha256") {
            return Err(refusal(400, "XAmzContentSHA256Mismatch"));
        }
        let credentials = Credentials {
            key_id: KEY_ID.to_owned(),
            secret: Zeroizing::new(SECRET.to_owned()),
            token: None,
            from: String::new(),
        };
        let signed = header("authorization").split("SignedHeaders=").nth(1).unwrap_or("");
        let signed = signed.split(',').next().unwrap_or("").split(';');
        let is_extra = |name: &&str| !matches!(*name, "host" | "x-amz-content-sha256" | "x-amz-date");
        let headers: Vec<_> = signed.filter(is_extra).map(|name| (name, header(name))).collect();
        let signing = UnsignedRequest {
            method: &request.method,
            host: header("host"),
            path: &request.path,
            query: &request.query,
            headers: &headers,
            payload: header("x-amz-content-sha256"),
            region: REGION,
            now_s: then_s,
        };
        let (_, expected) = signature_headers(&signing, &credentials).remove(0);
        match header("authorization") {
            given if given == expected => Ok(()),
            given if !given.contains(&format!("Credential={KEY_ID}/")) => {
                Err(refusal(403, "InvalidAccessKeyId"))
            }
            _ => Err(refusal(403, "SignatureDoesNotMatch")),
        }
    }

    fn upload(&self, request: &Request, key: &str) -> Result<HttpReply, Trouble> {
        let mut uploads = self.uploads.lock();
        let told = |status, code| Trouble::Told(refusal(status, code));
        if uploads.are_unknown {
            return Err(told(501, "NotImplemented"));
        }
        let id = request.value("uploadId");
        match request.method.as_str() {
            "POST" if request.has("uploads") => {
                let id = uploads.begin(key);
                let text = format!(
                    "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                );
                Ok((200, Vec::new(), text.into_bytes()))
            }
            "GET" => {
                let mut text = "<ListMultipartUploadsResult>".to_owned();
                for (id, upload) in &uploads.open {
                    text.push_str(&format!(
                        "<Upload><Key>{}</Key><UploadId>{id}</UploadId></Upload>",
                        upload.key
                    ));
                }
                text.push_str("</ListMultipartUploadsResult>");
                Ok((200, Vec::new(), text.into_bytes()))
            }
            "PUT" => {
                if uploads.failing > 0 {
                    uploads.failing -= 1;
                    return Err(told(503, "SlowDown"));
                }
                let number = request.value("partNumber").parse().map_err(|_| told(400, "InvalidArgument"))?;
                let copied = request.header("x-amz-copy-source");
                if copied.is_some() && uploads.copies_are_unknown {
                    return Err(told(501, "NotImplemented"));
                }
                let upload = uploads.open.get_mut(&id).filter(|upload| upload.key == key);
                let upload = upload.ok_or(told(404, "NoSuchUpload"))?;
                let bytes = match copied {
                    None => request.body.clone(),
                    Some(source) => {
                        let source = source.strip_prefix(&format!("/{}/", self.bucket));
                        let source = source.ok_or(told(404, "NoSuchBucket"))?;
                        let whole = self.objects.get(source, None).map_err(Trouble::Bucket)?;
                        let range = request.header("x-amz-copy-source-range").and_then(range_of);
                        let range = range.ok_or(told(400, "InvalidArgument"))?;
                        let bytes = whole.get(range.start as usize..range.end as usize);
                        bytes.ok_or(told(416, "InvalidRange"))?.to_vec()
                    }
                };
                let tag = format!("\"{}\"", sha256(&bytes));
                upload.parts.insert(number, bytes);
                match copied {
                    None => Ok((200, vec![("etag", tag)], Vec::new())),
                    Some(_) => {
                        let text = format!("<CopyPartResult><ETag>{tag}</ETag></CopyPartResult>");
                        Ok((200, Vec::new(), text.into_bytes()))
                    }
                }
            }
            "POST" => {
                let upload = uploads.open.get(&id).filter(|upload| upload.key == key);
                let upload = upload.ok_or(told(404, "NoSuchUpload"))?;
                let mut list = "<CompleteMultipartUpload>".to_owned();
                for (number, part) in &upload.parts {
                    let tag = sha256(part);
                    list.push_str(&format!(
                        "<Part><PartNumber>{number}</PartNumber><ETag>\"{tag}\"</ETag></Part>"
                    ));
                }
                list.push_str("</CompleteMultipartUpload>");
                if request.body != list.as_bytes() {
                    // Stores do this when they have begun to reply before they were done.
                    let (_, headers, body) = refusal(200, "InvalidPart");
                    return Ok((200, headers, body));
                }
                let whole: Vec<u8> = upload.parts.values().flatten().copied().collect();
                self.objects.put(key, &whole).map_err(Trouble::Bucket)?;
                uploads.open.remove(&id);
                let text = "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>";
                Ok((200, Vec::new(), text.into()))
            }
            "DELETE" => match uploads.open.remove(&id) {
                Some(_) => Ok((204, Vec::new(), Vec::new())),
                None => Err(told(404, "NoSuchUpload")),
            },
            _ => Err(told(405, "MethodNotAllowed")),
        }
    }

    fn list(&self, request: &Request) -> Result<HttpReply, BucketError> {
        let of = |name: &str| {
            let found = request.query.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.replace("%2F", "/")).unwrap_or_default()
        };
        let after = of("continuation-token");
        let mut all = self.objects.list(&of("prefix"))?;
        all.retain(|one| after.is_empty() || one.name > after);
        let is_truncated = all.len() > PAGE;
        all.truncate(PAGE);
        let mut text =
            format!("<?xml version=\"1.0\"?>\n<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>");
        if let Some(last) = all.last().filter(|_| is_truncated) {
            text.push_str(&format!("<NextContinuationToken>{}</NextContinuationToken>", last.name));
        }
        for one in all {
            text.push_str(&format!(
                "<Contents><Key>{}</Key><Size>{}</Size></Contents>",
                one.name, one.length
            ));
        }
        text.push_str("</ListBucketResult>");
        Ok((200, Vec::new(), text.into_bytes()))
    }
}

/// Why a request fails.
enum Trouble {
    Told(HttpReply),
    Bucket(BucketError),
}

impl Trouble {
    fn unwrap_or_else(self, of: impl FnOnce(BucketError) -> HttpReply) -> HttpReply {
        match self {
            Trouble::Told(answer) => answer,
            Trouble::Bucket(error) => of(error),
        }
    }
}

impl Request {
    fn has(&self, name: &str) -> bool {
        self.query.iter().any(|(key, _)| key == name)
    }

    fn value(&self, name: &str) -> String {
        let found = self.query.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

fn refusal(status: u16, code: &str) -> HttpReply {
    let text =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>told by a test</Message></Error>");
    (status, Vec::new(), text.into_bytes())
}

fn range_of(text: &str) -> Option<std::ops::Range<u64>> {
    let (start, end) = text.strip_prefix("bytes=")?.split_once('-')?;
    Some(start.parse().ok()?..end.parse::<u64>().ok()? + 1)
}

fn read(reader: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut parts = line.split_whitespace();
    let (method, target) = (parts.next().unwrap_or("").to_owned(), parts.next().unwrap_or("").to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key.to_owned(), value.to_owned())
    };
    let query = query.split('&').filter(|one| !one.is_empty()).map(pair).collect();
    let path = path.to_owned();
    let mut request = Request { method, path, query, headers, body: Vec::new() };
    let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    request.body = vec![0; length];
    reader.read_exact(&mut request.body)?;
    Ok(Some(request))
}
