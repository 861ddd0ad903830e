//! The life of connections: slow clients are disconnected, others get a turn, and running replies arrive at
//! the end.

use holdfast_http_server::{HttpReply, HttpRequest, HttpServer, Limits, Pieces, ReplyBody, StatusCode};
use holdfast_testing::eventually;
use hyper::Response;
use hyper::body::Bytes;
use hyper::service::service_fn;
use std::convert::Infallible;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// The future until which a server runs.
type Until = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A server in a thread, until it is stopped.
struct Serving {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<io::Result<()>>,
}

impl Serving {
    fn start(
        limits: Limits,
        run: impl FnOnce(HttpServer, Until) -> io::Result<()> + Send + 'static,
    ) -> Serving {
        let server = HttpServer::open((Ipv4Addr::LOCALHOST, 0).into(), limits).expect("it listens");
        let address = server.local_address();
        let (stop, stopped) = oneshot::channel();
        let until: Until = Box::pin(async { drop(stopped.await) });
        let thread = std::thread::spawn(move || run(server, until));
        Serving { address, stop, thread }
    }

    fn plain(limits: Limits, answer: impl Fn(HttpRequest) -> HttpReply + Send + Sync + 'static) -> Serving {
        Serving::start(limits, |server, until| server.run_plain(10, answer, until))
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connected");
        stream.set_read_timeout(Some(holdfast_testing::PATIENCE)).expect("set");
        stream
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("sent");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("read");
        reply
    }

    fn end(self) {
        drop(self.stop);
        self.thread.join().expect("no panic").expect("it ended well");
    }
}

fn echo(request: HttpRequest) -> HttpReply {
    HttpReply::plain(StatusCode::OK, format!("{} {}", request.path, request.body))
}

/// Proves: bodies are bounded, and must be text.
#[test]
fn bodies_are_bounded() {
    let serving = Serving::plain(Limits::SMALL, echo);
    let post = |body: &str| {
        let length = body.len();
        serving.ask(&format!(
            "POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
    };
    assert!(post("hello").ends_with("\r\n\r\n/x hello"));
    assert!(post("hello world").starts_with("HTTP/1.1 413"));
    let chunked = "POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
                   6\r\nhello \r\n6\r\nworld!\r\n0\r\n\r\n";
    assert!(serving.ask(chunked).starts_with("HTTP/1.1 413"));
    let long = "x".repeat(9 << 10);
    assert!(serving.ask(&format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n")).starts_with("HTTP/1.1 4"));
    serving.end();
}

/// Proves: a client that sends a request byte by byte is disconnected.
#[test]
fn the_slow_are_shown_out() {
    let serving = Serving::plain(Limits { idle_s: 1, ..Limits::SMALL }, echo);
    let mut slow = serving.connect();
    slow.set_nonblocking(true).expect("set");
    eventually("it is shown out", || {
        let _ = slow.write_all(b"X");
        match slow.read(&mut [0]) {
            Ok(read) => read == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    });
    serving.end();
}

/// Proves: when connections are scarce they end after a reply, and not before.
#[test]
fn others_get_a_turn() {
    let serving = Serving::plain(Limits { connections_max: 4, ..Limits::SMALL }, echo);
    let ask = |stream: &mut TcpStream| {
        stream.write_all(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
        let mut reply = Vec::new();
        while !reply.ends_with(b"/a ") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("read");
            reply.push(byte[0]);
        }
        String::from_utf8(reply).expect("text").contains("connection: close")
    };
    let mut first = serving.connect();
    assert!(!ask(&mut first));
    // Connections are accepted in their order, so all are accepted once the last is.
    let mut others: Vec<TcpStream> = (0..3).map(|_| serving.connect()).collect();
    assert!(ask(&mut others[2]));
    assert!(ask(&mut first));
    serving.end();
}

/// Proves: a server that is stopped finishes the reply that it is sending, and listens no more.
#[test]
fn replies_under_way_arrive() {
    let (begun, has_begun) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let limits = Limits { stopping_max: holdfast_testing::PATIENCE, ..Limits::SMALL };
    let serving = Serving::plain(limits, move |request| {
        begun.send(()).expect("heard");
        may_go_on.lock().expect("no panic").recv().expect("told");
        echo(request)
    });
    let mut idle = serving.connect();
    let mut busy = serving.connect();
    busy.write_all(b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n").expect("sent");
    has_begun.recv().expect("it has begun");
    let address = serving.address;
    let ending = std::thread::spawn(move || serving.end());
    assert_eq!(idle.read(&mut [0]).expect("closed"), 0, "who asks for nothing is shown out at once");
    eventually("it listens no more", || TcpStream::connect(address).is_err());
    go_on.send(()).expect("heard");
    let mut reply = String::new();
    busy.read_to_string(&mut reply).expect("read");
    assert!(reply.ends_with("/late "), "{reply}");
    ending.join().expect("it ended well");
}

/// Nine bytes, of which those from the seventh on cannot be read.
struct Damaged;

impl Pieces for Damaged {
    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        match range.end <= 6 {
            true => Ok(Bytes::from_static(&b"abcdef"[range.start as usize..range.end as usize])),
            false => Err(io::Error::other("damaged")),
        }
    }
}

/// Proves: a source that cannot be read to its end is never taken for complete; one that can is sent piece by
/// piece.
#[test]
fn what_is_cut_short_is_not_whole() {
    let serving = Serving::start(Limits::LARGE, |server, until| {
        let handler = |_peer| {
            service_fn(|request: hyper::Request<hyper::body::Incoming>| {
                let end = if request.uri().path() == "/whole" { 6 } else { 9 };
                let body = ReplyBody::pieces(Arc::new(Damaged), 1..end, 2);
                std::future::ready(Ok::<_, Infallible>(Response::new(body)))
            })
        };
        server.run(handler, until)
    });
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let whole = serving.ask(&request("/whole"));
    assert!(whole.contains("content-length: 5") && whole.ends_with("\r\n\r\nbcdef"), "{whole}");
    let mut stream = serving.connect();
    stream.write_all(request("/part").as_bytes()).expect("sent");
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    let reply = String::from_utf8(reply).expect("text");
    // Whatever was sent before the damage was reached.
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    assert!(head.is_empty() || head.contains("content-length: 8"), "{reply}");
    assert!("bcdef".starts_with(body), "{reply}");
    serving.end();
}
