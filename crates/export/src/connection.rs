//! Serves one client: one thread reads the requests and carries out the writes, workers do the rest.

use crate::negotiation::{Agreed, REQUEST_BYTES_MAX, negotiate};
use crate::request::{self, PIECE_BYTES, check};
use crate::server::{Export, Limits};
use crate::socket::Socket;
use crate::wire::{Kind, REQUEST_BYTES, Request};
use parking_lot::Mutex;
use std::io::{self, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{Span, trace_span};

/// Serves a client until it disconnects.
///
/// # Errors
/// The connection failed, or the client does not speak the protocol.
pub fn serve(socket: &Socket, export: &Export, limits: &Limits) -> io::Result<()> {
    let mut hurried = SocketWithDeadline { socket, until: Instant::now() + limits.handshake };
    let Some(agreed) = negotiate(&mut hurried, export)? else { return Ok(()) };
    socket.set_patience(limits.patience)?;
    let replies = Mutex::new(socket);
    let (requests, queue) = sync_channel(limits.requests_max);
    let queue = Mutex::new(queue);
    thread::scope(|scope| {
        for _ in 0..limits.workers {
            let (queue, replies) = (&queue, &replies);
            let worker = move || {
                if work(queue, export, &agreed, replies).is_err() {
                    socket.shut_down();
                    // Otherwise the thread that reads requests would wait for room in the queue.
                    while queue.lock().recv().is_ok() {}
                }
            };
            thread::Builder::new().name("holdfast-nbd".into()).spawn_scoped(scope, worker)?;
        }
        let mut stream = BufReader::with_capacity(64 << 10, socket);
        let mut buffer = Vec::new();
        let ended = loop {
            match next(&mut stream) {
                Ok(Some(request)) if request.has_data => {
                    let _span = span_of(&request).entered();
                    if let Err(error) = write(&request, &mut stream, export, &agreed, &replies, &mut buffer) {
                        break Err(error);
                    }
                }
                Ok(Some(Request { kind: Kind::Disconnect, .. }) | None) => break Ok(()),
                Ok(Some(request)) => {
                    if requests.send(request).is_err() {
                        break Ok(());
                    }
                }
                Err(error) => break Err(error),
            }
        };
        // Workers finish the requests that they have.
        drop(requests);
        ended
    })
}

fn work(
    queue: &Mutex<Receiver<Request>>,
    export: &Export,
    agreed: &Agreed,
    replies: &Mutex<&Socket>,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let next = queue.lock().recv();
        let Ok(request) = next else { return Ok(()) };
        let _span = span_of(&request).entered();
        request::answer(&request, export, agreed, replies, &mut buffer)?;
    }
}

/// The span of a request in a trace.
fn span_of(request: &Request) -> Span {
    let Request { cookie, kind, offset, length, .. } = *request;
    trace_span!(target: "operation", "nbd request", cookie, what = ?kind, offset, length)
}

/// The next request, however long it takes to arrive; `None` if the client has disconnected.
fn next(stream: &mut impl Read) -> io::Result<Option<Request>> {
    let mut bytes = [0; REQUEST_BYTES];
    let mut got = 0;
    while got < REQUEST_BYTES {
        match stream.read(&mut bytes[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => got += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // No request has begun, and a client may be idle.
            Err(error) if got == 0 && error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, "the client sent no request");
    Request::decode(&bytes).ok_or_else(unknown).map(Some)
}

/// Reads the data of a write from the stream and writes it to the disk, piece by piece.
fn write<W: Write>(
    request: &Request,
    stream: &mut impl Read,
    export: &Export,
    agreed: &Agreed,
    replies: &Mutex<W>,
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    if request.length > REQUEST_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the client writes more than 32 MiB at once"));
    }
    let mut result = check(request, export, agreed);
    let (mut at, mut left) = (request.offset, request.length as usize);
    while left > 0 {
        let count = left.min(PIECE_BYTES);
        buffer.resize(buffer.len().max(count), 0);
        let bytes = &mut buffer[..count];
        stream.read_exact(bytes)?;
        if result.is_ok() {
            result = export.disk.write(at, bytes).map_err(Into::into);
            at += count as u64;
        }
        left -= count;
    }
    if result.is_ok() && request.is_durable {
        result = export.disk.flush().map_err(Into::into);
    }
    request::finish(request, agreed, result, replies)
}

/// A socket that times out at a certain moment, even if bytes still arrive one by one.
struct SocketWithDeadline<'a> {
    socket: &'a Socket,
    until: Instant,
}

impl SocketWithDeadline<'_> {
    fn hurry(&self) -> io::Result<()> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left < Duration::from_millis(1) {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client took too long to say what it wants",
            ));
        }
        self.socket.set_patience(left)
    }
}

impl Read for SocketWithDeadline<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.hurry()?;
        self.socket.read(buffer)
    }
}

impl Write for SocketWithDeadline<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hurry()?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
