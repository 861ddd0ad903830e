//! A hostile web server with the files of a release.
//!
//! It answers plain HTTP/1.1 on loopback and misbehaves in one chosen way ([`Misdeed`]). What clients make of each is
//! the table in `crates/release/tests/hostile_mirror.rs`.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

/// A misdeed of the mirror.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misdeed {
    /// Nothing: it is an honest web server.
    Honest,
    /// It says that it has no file.
    Denies,
    /// It says so with "forbidden", as buckets do to strangers.
    Forbids,
    /// It answers with a server error.
    Breaks,
    /// It asks to be left alone for a second.
    TooMany,
    /// It closes each connection when asked.
    Drops,
    /// It resets each connection in the middle of what it announced.
    Resets,
    /// It never answers.
    Silent,
    /// The head of its answer comes a byte at a time.
    DripsHead,
    /// The body comes a byte at a time.
    DripsBody,
    /// It stops in the middle of what it announced.
    Truncates,
    /// It stops in the middle of what it did not announce.
    TruncatesQuietly,
    /// It announces and sends less than there is.
    SaysLess,
    /// It announces an impossible length, and begins to send it.
    SaysHuge,
    /// It never ends, and has announced no length.
    Endless,
    /// The head of its answer never ends.
    EndlessHead,
    /// It says "continue" without end.
    EndlessContinue,
    /// What it says is not HTTP.
    Garbage,
    /// It redirects to another host.
    RedirectsElsewhere,
    /// It redirects to a file of the client's machine.
    RedirectsToFile,
    /// It redirects to itself, again and again.
    RedirectsForEver,
    /// It redirects once, to another place of its own.
    RedirectsWithin,
    /// Its answer is a few compressed bytes that would expand to a gigabyte.
    Compresses,
    /// It knows no ranges and always sends the whole file.
    IgnoresRanges,
    /// It sends another range, and says so.
    OtherRange,
    /// It says that it sends the range, and sends another.
    LiesAboutRange,
    /// It sends a range and does not say which.
    NamelessRange,
    /// It says that it sends the range, and sends less.
    ShortRange,
    /// It sends a part when the whole was asked for.
    UnaskedRange,
    /// It sends one file for another.
    MixesUp,
    /// It changes one byte.
    FlipsByte,
    /// It sends zeroes.
    Zeroes,
}

impl Misdeed {
    /// All misdeeds, the honest one first.
    pub const ALL: [Misdeed; 32] = [
        Misdeed::Honest,
        Misdeed::Denies,
        Misdeed::Forbids,
        Misdeed::Breaks,
        Misdeed::TooMany,
        Misdeed::Drops,
        Misdeed::Resets,
        Misdeed::Silent,
        Misdeed::DripsHead,
        Misdeed::DripsBody,
        Misdeed::Truncates,
        Misdeed::TruncatesQuietly,
        Misdeed::SaysLess,
        Misdeed::SaysHuge,
        Misdeed::Endless,
        Misdeed::EndlessHead,
        Misdeed::EndlessContinue,
        Misdeed::Garbage,
        Misdeed::RedirectsElsewhere,
        Misdeed::RedirectsToFile,
        Misdeed::RedirectsForEver,
        Misdeed::RedirectsWithin,
        Misdeed::Compresses,
        Misdeed::IgnoresRanges,
        Misdeed::OtherRange,
        Misdeed::LiesAboutRange,
        Misdeed::NamelessRange,
        Misdeed::ShortRange,
        Misdeed::UnaskedRange,
        Misdeed::MixesUp,
        Misdeed::FlipsByte,
        Misdeed::Zeroes,
    ];
}

/// The longest pause between two bytes of a slow answer.
const DRIP: Duration = Duration::from_millis(20);

/// A running mirror. Dropping it ends it.
pub struct HostileMirror {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    files: BTreeMap<String, Vec<u8>>,
    misdeed: Misdeed,
    /// The prefix of the names of files for which it misbehaves.
    beginning: String,
    is_honest: AtomicBool,
    connections: AtomicU64,
    requests: AtomicU64,
    sent: AtomicU64,
    ended: AtomicBool,
}

impl HostileMirror {
    /// Serves `files`, by name, with one misdeed.
    ///
    /// # Panics
    /// There is no port on loopback.
    pub fn start(files: BTreeMap<String, Vec<u8>>, misdeed: Misdeed) -> HostileMirror {
        HostileMirror::start_in_part(files, misdeed, "")
    }

    /// Serves the files of a folder and is honest with all but those whose names begin so.
    ///
    /// # Panics
    /// The folder cannot be read, or there is no port on loopback.
    pub fn of_folder(folder: &Path, misdeed: Misdeed, beginning: &str) -> HostileMirror {
        let mut files = BTreeMap::new();
        collect(folder, "", &mut files);
        HostileMirror::start_in_part(files, misdeed, beginning)
    }

    fn start_in_part(files: BTreeMap<String, Vec<u8>>, misdeed: Misdeed, beginning: &str) -> HostileMirror {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            files,
            misdeed,
            beginning: beginning.to_owned(),
            is_honest: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let accepting = std::thread::spawn({
            let shared = shared.clone();
            move || {
                for stream in listener.incoming() {
                    if shared.ended.load(SeqCst) {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    shared.connections.fetch_add(1, SeqCst);
                    let shared = shared.clone();
                    // A client that is gone ends the connection; so does the end of the mirror.
                    std::thread::spawn(move || drop(shared.serve(stream)));
                }
            }
        });
        HostileMirror { address, shared, accepting: Some(accepting) }
    }

    /// The address of the mirror.
    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Makes the mirror honest, or has it go on with its misdeed.
    pub fn set_honest(&self, is_honest: bool) {
        self.shared.is_honest.store(is_honest, SeqCst);
    }

    /// The number of connections so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(SeqCst)
    }

    /// The number of requests for files for which it misbehaves.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(SeqCst)
    }

    /// The number of bytes of answers that clients have received.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(SeqCst)
    }
}

impl Drop for HostileMirror {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        // So that the thread looks.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn collect(folder: &Path, beginning: &str, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = format!("{beginning}{}", entry.file_name().to_str().expect("text"));
        match entry.file_type().expect("a type").is_dir() {
            true => collect(&entry.path(), &format!("{name}/"), files),
            false => drop(files.insert(name, std::fs::read(entry.path()).expect("read"))),
        }
    }
}

/// A parsed request.
struct ReceivedRequest {
    path: String,
    range: Option<Range<usize>>,
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        while let Some(asked) = read_request(&mut stream)? {
            if asked.path.starts_with(&self.beginning) {
                self.requests.fetch_add(1, SeqCst);
            }
            if !self.answer(&mut stream, &asked)? {
                break;
            }
        }
        stream.shutdown(Shutdown::Both)
    }

    fn send(&self, stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        if self.ended.load(SeqCst) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        stream.write_all(bytes)?;
        self.sent.fetch_add(bytes.len() as u64, SeqCst);
        Ok(())
    }

    fn drip(&self, stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        bytes.iter().try_for_each(|byte| {
            std::thread::sleep(DRIP);
            self.send(stream, &[*byte])
        })
    }

    fn for_ever(&self, stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        loop {
            self.send(stream, bytes)?;
        }
    }

    /// A status line, headers, and a length.
    fn head(&self, stream: &mut TcpStream, status: &str, headers: &str, length: u64) -> io::Result<()> {
        self.send(
            stream,
            format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n").as_bytes(),
        )
    }

    fn whole(&self, stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> io::Result<bool> {
        self.head(stream, status, headers, body.len() as u64)?;
        self.send(stream, body)?;
        Ok(true)
    }

    /// An honest answer.
    fn honest(&self, stream: &mut TcpStream, asked: &ReceivedRequest) -> io::Result<bool> {
        let Some(file) = self.files.get(&asked.path) else {
            return self.whole(stream, "404 Not Found", "", b"no such file");
        };
        match &asked.range {
            None => self.whole(stream, "200 OK", "", file),
            Some(range) if range.start >= file.len() => {
                let range = format!("Content-Range: bytes */{}\r\n", file.len());
                self.whole(stream, "416 Range Not Satisfiable", &range, b"")
            }
            Some(range) => {
                let range = range.start..range.end.min(file.len());
                let said = content_range(&range, file.len());
                self.whole(stream, "206 Partial Content", &said, &file[range])
            }
        }
    }

    /// Answers with the misdeed; returns whether the connection goes on.
    fn answer(&self, stream: &mut TcpStream, asked: &ReceivedRequest) -> io::Result<bool> {
        let file = self.files.get(&asked.path).map_or(&b""[..], Vec::as_slice);
        let part = match &asked.range {
            Some(range) => range.start.min(file.len())..range.end.min(file.len()),
            None => 0..file.len(),
        };
        let bytes = &file[part.clone()];
        let half = &bytes[..bytes.len() / 2];
        // The beginning of an answer to this request, without its length.
        let (status, said) = match asked.range {
            Some(_) => ("206 Partial Content", content_range(&part, file.len())),
            None => ("200 OK", String::new()),
        };
        let unannounced = format!("HTTP/1.1 {status}\r\n{said}Connection: close\r\n\r\n");
        let is_honest = self.is_honest.load(SeqCst) || !asked.path.starts_with(&self.beginning);
        match if is_honest { Misdeed::Honest } else { self.misdeed } {
            Misdeed::Honest => return self.honest(stream, asked),
            Misdeed::Denies => return self.whole(stream, "404 Not Found", "", b""),
            Misdeed::Forbids => return self.whole(stream, "403 Forbidden", "", b"<Code>AccessDenied</Code>"),
            Misdeed::Breaks => return self.whole(stream, "503 Service Unavailable", "", b"out of order"),
            Misdeed::TooMany => {
                return self.whole(stream, "429 Too Many Requests", "Retry-After: 1\r\n", b"later");
            }
            Misdeed::Drops => {}
            Misdeed::Resets => {
                self.head(stream, status, &said, bytes.len() as u64)?;
                self.send(stream, half)?;
                rustix::net::sockopt::set_socket_linger(&*stream, Some(Duration::ZERO))?;
                // `shutdown` would end the connection in order.
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            Misdeed::Silent => std::thread::sleep(Duration::from_secs(60)),
            Misdeed::DripsHead => self.drip(stream, unannounced.repeat(20).as_bytes())?,
            Misdeed::DripsBody => {
                self.head(stream, status, &said, bytes.len() as u64)?;
                self.drip(stream, bytes)?;
            }
            Misdeed::Truncates => {
                self.head(stream, status, &said, bytes.len() as u64)?;
                self.send(stream, half)?;
            }
            Misdeed::TruncatesQuietly => {
                self.send(stream, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
                self.send(stream, &file[..part.end - half.len()])?;
            }
            Misdeed::SaysLess => match &asked.range {
                None => return self.whole(stream, status, "", half),
                Some(_) => {
                    let said = content_range(&(part.start..part.start + half.len()), part.start + half.len());
                    return self.whole(stream, status, &said, half);
                }
            },
            Misdeed::SaysHuge => {
                self.head(stream, "200 OK", "", u64::MAX / 2)?;
                self.for_ever(stream, &[7; 65536])?;
            }
            Misdeed::Endless => {
                self.send(stream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
                let mut chunk = b"10000\r\n".to_vec();
                chunk.extend([7; 65536]);
                chunk.extend(b"\r\n");
                self.for_ever(stream, &chunk)?;
            }
            Misdeed::EndlessHead => {
                self.send(stream, b"HTTP/1.1 200 OK\r\n")?;
                self.for_ever(stream, b"X-More: and more and more and more and more\r\n")?;
            }
            Misdeed::EndlessContinue => self.for_ever(stream, b"HTTP/1.1 100 Continue\r\n\r\n")?,
            Misdeed::Garbage => {
                let garbage: Vec<u8> =
                    (0..4096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
                self.send(stream, &garbage)?;
            }
            Misdeed::RedirectsElsewhere => {
                let location = format!("Location: http://localhost:1/{}\r\n", asked.path);
                return self.whole(stream, "302 Found", &location, b"");
            }
            Misdeed::RedirectsToFile => {
                return self.whole(stream, "301 Moved Permanently", "Location: file:///etc/passwd\r\n", b"");
            }
            Misdeed::RedirectsForEver => {
                let location = format!("Location: /{}x\r\n", asked.path);
                return self.whole(stream, "307 Temporary Redirect", &location, b"");
            }
            Misdeed::RedirectsWithin => match asked.path.strip_prefix("moved/") {
                Some(path) => {
                    let asked = ReceivedRequest { path: path.to_owned(), range: asked.range.clone() };
                    return self.honest(stream, &asked);
                }
                None => {
                    let location = format!("Location: /moved/{}\r\n", asked.path);
                    return self.whole(stream, "308 Permanent Redirect", &location, b"");
                }
            },
            Misdeed::Compresses => {
                let headers = format!("{said}Content-Encoding: gzip\r\n");
                return self.whole(stream, status, &headers, &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xed]);
            }
            Misdeed::IgnoresRanges => {
                let whole = ReceivedRequest { path: asked.path.clone(), range: None };
                return self.honest(stream, &whole);
            }
            Misdeed::OtherRange => {
                let other = part.start.saturating_sub(1)..part.end.saturating_sub(1);
                let said = content_range(&other, file.len());
                return self.whole(stream, "206 Partial Content", &said, &file[other]);
            }
            Misdeed::LiesAboutRange => {
                let other = part.start.saturating_sub(1)..part.end.saturating_sub(1);
                return self.whole(stream, status, &said, &file[other]);
            }
            Misdeed::NamelessRange => return self.whole(stream, "206 Partial Content", "", bytes),
            Misdeed::ShortRange => return self.whole(stream, status, &said, half),
            Misdeed::UnaskedRange => {
                let said = content_range(&(0..half.len()), file.len());
                return self.whole(stream, "206 Partial Content", &said, &file[..half.len()]);
            }
            Misdeed::MixesUp => {
                let other = self.files.iter().find(|(name, _)| **name != asked.path);
                let other = other.map_or(&b""[..], |(_, other)| other);
                let same_length: Vec<u8> = other.iter().copied().cycle().take(bytes.len()).collect();
                return self.whole(stream, status, &said, &same_length);
            }
            Misdeed::FlipsByte => {
                let mut flipped = bytes.to_vec();
                let middle = flipped.len() / 2;
                if let Some(byte) = flipped.get_mut(middle) {
                    *byte ^= 1;
                }
                return self.whole(stream, status, &said, &flipped);
            }
            Misdeed::Zeroes => return self.whole(stream, status, &said, &vec![0; bytes.len()]),
        }
        Ok(false)
    }
}

fn content_range(range: &Range<usize>, total: usize) -> String {
    format!("Content-Range: bytes {}-{}/{total}\r\n", range.start, range.end.saturating_sub(1))
}

/// Reads the head of a request; requests of clients of a mirror have no body. `None` at the end.
fn read_request(stream: &mut TcpStream) -> io::Result<Option<ReceivedRequest>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > 65536 || stream.read(&mut byte)? == 0 {
            return Ok(None);
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split(' ').nth(1).unwrap_or("/").trim_start_matches('/').to_owned();
    let range = head.lines().find_map(|line| {
        let line = line.to_ascii_lowercase();
        let (first, last) = line.strip_prefix("range: bytes=")?.split_once('-')?;
        Some(first.parse().ok()?..last.trim().parse::<usize>().ok()?.checked_add(1)?)
    });
    Ok(Some(ReceivedRequest { path, range }))
}
