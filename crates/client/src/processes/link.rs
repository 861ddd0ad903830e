//! The main process's end of a connection to a server that the network process carries: requests go out as
//! bytes; answers come back as bytes and are decoded here.
//!
//! The network process is trusted no more than a server. If it dies, running requests have an unknown
//! outcome, as after a lost connection, and the process is restarted. If it sends something that no honest
//! one sends, it is ended first.

use super::frames::{self, HEADER_BYTES, Header};
use super::key::Processes;
use super::messages::{ConnectionStatus, NetworkRequest, OpenRequest};
use crate::interrupt;
use crate::remote::Remote;
use borsh::BorshSerialize;
use holdfast_crypto::{PublicKey, decode};
use holdfast_protocol::message::{MESSAGE_BYTES_MAX, Request, Response, Welcome};
use holdfast_rpc::{
    Lane, LinkEstimate, RpcError, ServerAddress, ServerProof, Transport, collect_blocks, is_idempotent,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// How much longer than the deadline to wait for the network process, which watches deadlines itself.
const GRACE: Duration = Duration::from_millis(500);
/// Time added for the first attempt to connect, however short a deadline is.
const FIRST_ATTEMPT: Duration = Duration::from_secs(25);
/// A network process counts as stuck if it does not take a request for this long.
const STUCK: Duration = Duration::from_secs(30);
/// Longest wait for traffic figures.
const FIGURES: Duration = Duration::from_millis(500);
/// Most spare buffers, and the most bytes of one: those of a batch of blocks.
const SPARE_MAX: usize = 8;
const SPARE_BYTES_MAX: usize = 2 << 20;
/// Pause before a crashed network process is restarted.
const PAUSE: Duration = Duration::from_millis(50);

/// The result of a request to the network process.
enum CallResult {
    /// The answer, with data about the exchange for traces.
    Answer(Vec<u8>, Exchange),
    Failed(RpcError),
}

/// How the network process got an answer.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    /// Time from the request's arrival in the network process to the answer.
    took: Duration,
    /// Number of the request on the link to the server, as in the server's log.
    id: u64,
}

impl Exchange {
    const BYTES: usize = 12;

    fn decode(bytes: &[u8; Exchange::BYTES]) -> Exchange {
        let (took, id) = bytes.split_first_chunk().expect("four of twelve");
        let took = Duration::from_micros(u32::from_le_bytes(*took).into());
        Exchange { took, id: u64::from_le_bytes(id.try_into().expect("the other eight")) }
    }
}

/// Callers that wait for answers, by request number.
type Waiting = HashMap<u64, SyncSender<CallResult>>;

/// A stream to a network process, which ends with that process.
struct NetworkStream {
    writer: Mutex<UnixStream>,
    /// `None` once the stream has ended.
    waiting: Arc<Mutex<Option<Waiting>>>,
    /// Whether only part of a frame was written.
    broken: AtomicBool,
}

/// Spare buffers of requests and answers.
#[derive(Default)]
struct SpareBuffers(Mutex<Vec<Vec<u8>>>);

impl SpareBuffers {
    fn take(&self) -> Vec<u8> {
        self.0.lock().pop().unwrap_or_default()
    }

    fn give(&self, mut buffer: Vec<u8>) {
        let mut kept = self.0.lock();
        if buffer.capacity() <= SPARE_BYTES_MAX && kept.len() < SPARE_MAX {
            buffer.clear();
            kept.push(buffer);
        }
    }
}

/// A connection to a server, by way of a network process.
pub(super) struct Link {
    processes: Arc<Processes>,
    order: Box<dyn Fn(u64) -> OpenRequest + Send + Sync>,
    /// The highest sequence number of a list of server keys seen.
    sequence: AtomicU64,
    line: Mutex<Option<Arc<NetworkStream>>>,
    standing: Arc<Mutex<ConnectionStatus>>,
    /// Bytes sent and received by earlier network processes.
    past: Arc<Mutex<(u64, u64)>>,
    next: AtomicU64,
    spare: Arc<SpareBuffers>,
}

impl Link {
    pub(super) fn new(
        processes: Arc<Processes>,
        addresses: Vec<ServerAddress>,
        proof: Option<ServerProof>,
        transport: Transport,
    ) -> Link {
        let servers = processes.register(&addresses, transport);
        let public = processes.public_key();
        let sequence = AtomicU64::new(proof.as_ref().map_or(0, |proof| proof.minimum_sequence));
        let file_system = proof.map(|proof| proof.file_system);
        let order = move |sequence| OpenRequest {
            public,
            servers: servers.clone(),
            proof: file_system.map(|file_system| (file_system, sequence)),
            transport: match transport {
                Transport::Tcp => 0,
                Transport::Quic => 1,
                Transport::Auto => 2,
            },
        };
        Link {
            processes,
            order: Box::new(order),
            sequence,
            line: Mutex::default(),
            standing: Arc::default(),
            past: Arc::default(),
            next: AtomicU64::new(1),
            spare: Arc::default(),
        }
    }

    /// The present stream, or a new one to a new process.
    fn line(&self) -> Result<Arc<NetworkStream>, RpcError> {
        let mut line = self.line.lock();
        if let Some(line) = line.as_ref().filter(|line| line.is_open()) {
            return Ok(Arc::clone(line));
        }
        let unreachable =
            |why: String| RpcError::Unreachable { address: "the network process".to_owned(), why };
        let (ours, theirs) = UnixStream::pair().map_err(|error| unreachable(error.to_string()))?;
        theirs.set_nonblocking(true).map_err(|error| unreachable(error.to_string()))?;
        ours.set_write_timeout(Some(STUCK)).map_err(|error| unreachable(error.to_string()))?;
        let reader = ours.try_clone().map_err(|error| unreachable(error.to_string()))?;
        let order = NetworkRequest::Open((self.order)(self.sequence.load(Ordering::Relaxed)));
        self.processes.open(&order, OwnedFd::from(theirs)).map_err(|error| unreachable(error.to_string()))?;
        let opened = Arc::new(NetworkStream {
            writer: Mutex::new(ours),
            waiting: Arc::new(Mutex::new(Some(HashMap::new()))),
            broken: AtomicBool::new(false),
        });
        let (waiting, standing) = (Arc::clone(&opened.waiting), Arc::clone(&self.standing));
        let (past, spare) = (Arc::clone(&self.past), Arc::clone(&self.spare));
        let processes = Arc::downgrade(&self.processes);
        std::thread::Builder::new()
            .name("holdfast-answers".to_owned())
            .spawn(move || {
                let offence = read_frames(reader, &waiting, &standing, &spare);
                {
                    // This comes before the stream counts as closed, so that it does not affect the status of
                    // the next one.
                    let (mut standing, mut past) = (standing.lock(), past.lock());
                    standing.is_connected = false;
                    standing.is_over_quic = None;
                    past.0 = past.0.saturating_add(std::mem::take(&mut standing.sent));
                    past.1 = past.1.saturating_add(std::mem::take(&mut standing.received));
                }
                waiting.lock().take();
                if let (Some(offence), Some(processes)) = (offence, processes.upgrade()) {
                    tracing::warn!(offence, "the network process is ended");
                    processes.end_network();
                }
            })
            .map_err(|error| unreachable(error.to_string()))?;
        *line = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Sends a frame over the present stream, or a new one, and waits for the answer.
    fn exchange(&self, kind: u8, head: &[u8], body: &[u8], end: Instant) -> Result<Vec<u8>, RpcError> {
        let came = self.ask(&*self.line()?, kind, head, body, end);
        if let Some((_, list)) =
            self.standing.lock().welcome.as_ref().and_then(|welcome| welcome.file_system.as_ref())
        {
            self.sequence.fetch_max(list.value.sequence, Ordering::Relaxed);
        }
        came
    }

    /// Sends a frame over a stream, and waits for the answer.
    fn ask(
        &self,
        line: &NetworkStream,
        kind: u8,
        head: &[u8],
        body: &[u8],
        end: Instant,
    ) -> Result<Vec<u8>, RpcError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = sync_channel(1);
        match line.waiting.lock().as_mut() {
            Some(waiting) => waiting.insert(id, answer),
            None => return Err(RpcError::Lost { maybe_sent: false }),
        };
        if let Err(error) = line.send(kind, id, head, body) {
            tracing::debug!(%error, "the network process takes no request");
            line.forget(id);
            return Err(RpcError::Lost { maybe_sent: true });
        }
        let came = wait_for(&answered, end);
        if let Err(RpcError::Deadline { .. }) = &came {
            line.forget(id);
            let _ = line.send(frames::NEVER_MIND, id, &[], &[]);
        }
        came
    }

    fn call_once(&self, request: &Request, end: Instant) -> Result<Response, RpcError> {
        let mut payload = self.spare.take();
        request.serialize(&mut payload).expect("encoding into memory cannot fail");
        let answer = self.call_encoded(request, &payload, end);
        self.spare.give(payload);
        answer
    }

    fn call_encoded(&self, request: &Request, payload: &[u8], end: Instant) -> Result<Response, RpcError> {
        if payload.len() > MESSAGE_BYTES_MAX {
            return Err(RpcError::TooLarge { bytes: payload.len(), limit: MESSAGE_BYTES_MAX });
        }
        let twice = is_idempotent(request);
        let mut head = [0; 10];
        head[0] = (Lane::of(request) == Lane::Bulk).into();
        head[1] = twice.into();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            head[2..].copy_from_slice(&milliseconds(left).to_le_bytes());
            match self.exchange(frames::CALL, &head, payload, end + GRACE) {
                Ok(answer) => {
                    let response = decode(&answer).map_err(|error| RpcError::Malformed(error.to_string()));
                    self.spare.give(answer);
                    return response;
                }
                Err(RpcError::Lost { maybe_sent }) if (twice || !maybe_sent) && Instant::now() < end => {
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Waits until an answer comes, the stream ends, the time is up, or the caller is interrupted.
fn wait_for(answered: &Receiver<CallResult>, end: Instant) -> Result<Vec<u8>, RpcError> {
    let can_be_raised = interrupt::can_be_raised();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let slice = if can_be_raised { left.min(interrupt::GLANCE) } else { left };
        match answered.recv_timeout(slice) {
            Ok(CallResult::Answer(answer, Exchange { took, id })) => {
                tracing::trace!(target: "operation", id, ?took, "in the network process and beyond");
                return Ok(answer);
            }
            Ok(CallResult::Failed(error)) => return Err(error),
            Err(RecvTimeoutError::Disconnected) => return Err(RpcError::Lost { maybe_sent: true }),
            Err(RecvTimeoutError::Timeout) => {
                if Instant::now() >= end || (can_be_raised && interrupt::is_raised()) {
                    return Err(RpcError::Deadline { maybe_sent: true });
                }
            }
        }
    }
}

impl NetworkStream {
    fn is_open(&self) -> bool {
        !self.broken.load(Ordering::Relaxed) && self.waiting.lock().is_some()
    }

    fn forget(&self, id: u64) {
        if let Some(waiting) = self.waiting.lock().as_mut() {
            waiting.remove(&id);
        }
    }

    fn send(&self, kind: u8, id: u64, head: &[u8], body: &[u8]) -> io::Result<()> {
        let mut writer = self.writer.lock();
        if self.broken.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let small: Vec<u8> = [&Header::encode(kind, id, head.len() + body.len()), head].concat();
        let written = writer.write_all(&small).and_then(|()| writer.write_all(body));
        if written.is_err() {
            // The network process would take the next frame for the rest of this incomplete one.
            self.broken.store(true, Ordering::Relaxed);
            let _ = writer.shutdown(std::net::Shutdown::Both);
        }
        written
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The reader's thread has its own copy of the stream.
        if let Some(line) = self.line.lock().take() {
            let _ = line.writer.lock().shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Reads frames until the stream ends; returns the offence of the other end, if that was the reason.
fn read_frames(
    mut reader: UnixStream,
    waiting: &Mutex<Option<HashMap<u64, SyncSender<CallResult>>>>,
    standing: &Mutex<ConnectionStatus>,
    spare: &SpareBuffers,
) -> Option<&'static str> {
    loop {
        let mut header = [0; HEADER_BYTES];
        reader.read_exact(&mut header).ok()?;
        let Some(Header { kind, id, body_bytes }) = Header::decode(&header) else {
            return Some("a frame that is none");
        };
        let mut body = spare.take();
        body.resize(body_bytes, 0);
        reader.read_exact(&mut body).ok()?;
        let came = match kind {
            frames::ANSWER => match body.split_last_chunk() {
                Some((answer, exchange)) => {
                    let (bytes, exchange) = (answer.len(), Exchange::decode(exchange));
                    body.truncate(bytes);
                    CallResult::Answer(body, exchange)
                }
                None => return Some("an answer that does not say how it was come by"),
            },
            frames::FAILED => match decode(&body) {
                Ok(error) => CallResult::Failed(error),
                Err(_) => return Some("a failure that does not decode"),
            },
            _ => match decode(&body) {
                Ok(now) => {
                    *standing.lock() = now;
                    continue;
                }
                Err(_) => return Some("words about the connection that do not decode"),
            },
        };
        let wanted = waiting.lock().as_mut().and_then(|waiting| waiting.remove(&id));
        // An answer without a waiting caller has no effect.
        if let Some(wanted) = wanted {
            let _ = wanted.try_send(came);
        }
    }
}

impl Remote for Link {
    fn call(&self, request: Request, deadline: Duration) -> Result<Response, RpcError> {
        self.call_lent(&request, deadline)
    }

    fn call_lent(&self, request: &Request, deadline: Duration) -> Result<Response, RpcError> {
        let end = end_of(deadline);
        let response = self.call_once(request, end)?;
        let more = async |rest: Request| self.call_once(&rest, end);
        let mut all = pin!(collect_blocks(request, response, more));
        match all.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome,
            // The future awaits only `more`, which blocks.
            Poll::Pending => Err(RpcError::Closed),
        }
    }

    fn welcome(&self) -> Option<Welcome> {
        self.standing.lock().welcome.clone()
    }

    fn is_connected(&self) -> bool {
        self.standing.lock().is_connected
    }

    fn traffic(&self) -> (u64, u64) {
        // Figures that the network process sends on its own may be out of date.
        let line = self.line.lock().clone();
        if let Some(line) = line.filter(|line| line.is_open()) {
            let _ = self.ask(&line, frames::ASK, &[], &[], Instant::now() + FIGURES);
        }
        let standing = self.standing.lock();
        let past = self.past.lock();
        (past.0.saturating_add(standing.sent), past.1.saturating_add(standing.received))
    }

    fn connects(&self) -> u64 {
        self.standing.lock().connects
    }

    fn trouble(&self) -> Option<RpcError> {
        self.standing.lock().trouble.clone()
    }

    fn estimate(&self) -> Option<LinkEstimate> {
        let (rtt, sent, received, loss) = self.standing.lock().estimate?;
        Some(LinkEstimate {
            rtt: Duration::from_micros(rtt.min(1 << 40)),
            sent_bytes_per_second: sent,
            received_bytes_per_second: received,
            loss: f64::from(loss.min(1_000_000)) / 1e6,
        })
    }

    fn is_over_quic(&self) -> Option<bool> {
        self.standing.lock().is_over_quic
    }

    fn wait_until_connected(&self, deadline: Duration) -> Result<(), RpcError> {
        let wanted = milliseconds(deadline).to_le_bytes();
        let end = end_of(deadline) + FIRST_ATTEMPT;
        loop {
            match self.exchange(frames::WAIT, &wanted, &[], end) {
                Err(RpcError::Lost { .. }) if Instant::now() < end => std::thread::sleep(PAUSE),
                outcome => return outcome.map(drop),
            }
        }
    }

    fn server_key(&self) -> Option<PublicKey> {
        self.standing.lock().server_key
    }
}

/// The time of a deadline, or one in the far future if the clock cannot represent it.
fn end_of(deadline: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(deadline).unwrap_or(now + Duration::from_secs(1 << 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Waiting = Mutex<Option<HashMap<u64, SyncSender<CallResult>>>>;

    /// Reads frames written by a hostile network process; returns the offence that was found.
    fn read(bytes: &[u8], waiting: &Waiting) -> Option<&'static str> {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let bytes = bytes.to_vec();
        let writing = std::thread::spawn(move || {
            let _ = theirs.write_all(&bytes);
        });
        let outcome = read_frames(ours, waiting, &Mutex::default(), &SpareBuffers::default());
        writing.join().expect("no panic");
        outcome
    }

    fn frame(kind: u8, id: u64, body: &[u8]) -> Vec<u8> {
        [&Header::encode(kind, id, body.len())[..], body].concat()
    }

    /// Proves: garbage is an offence, the end of the stream is not, and neither is an answer to any caller.
    #[test]
    fn a_hostile_network_process() {
        let (sender, answered) = sync_channel(1);
        let waiting: Waiting = Mutex::new(Some(HashMap::from([(5, sender)])));
        assert_eq!(read(&[], &waiting), None);
        assert_eq!(read(&frame(frames::ANSWER, 5, b"cut off")[..15], &waiting), None);
        assert!(read(&[0xff; 100], &waiting).is_some());
        assert!(read(&Header::encode(frames::ANSWER, 5, MESSAGE_BYTES_MAX + 100), &waiting).is_some());
        assert!(read(&frame(9, 5, b""), &waiting).is_some());
        assert!(read(&frame(frames::FAILED, 5, b"no error"), &waiting).is_some());
        assert!(read(&frame(frames::ANSWER, 5, b"x"), &waiting).is_some());
        assert!(read(&frame(frames::STANDING, 0, &[0xff; 40]), &waiting).is_some());
        assert!(answered.try_recv().is_err(), "nobody was answered");
        // Answers without a caller, and a second answer to a caller, have no effect.
        let some = [
            frame(frames::ANSWER, 6, b"nobody asked\x07\0\0\0\x09\0\0\0\0\0\0\0"),
            frame(frames::ANSWER, 5, b"first\x07\0\0\0\x09\0\0\0\0\0\0\0"),
            frame(frames::ANSWER, 5, b"second\x07\0\0\0\x09\0\0\0\0\0\0\0"),
        ];
        assert_eq!(read(&some.concat(), &waiting), None);
        assert!(matches!(answered.try_recv(), Ok(CallResult::Answer(answer, _)) if answer == b"first"));
        assert!(answered.try_recv().is_err());
    }

    /// Proves: random bytes end the reading, with or without an offence, and never cause a panic.
    #[test]
    fn random_bytes() {
        let mut seed = 1u64;
        for _ in 0..500 {
            let mut bytes = Vec::new();
            for _ in 0..40 {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                bytes.push((seed >> 60) as u8);
            }
            bytes[2..4].fill(0);
            read(&bytes, &Mutex::new(Some(HashMap::new())));
        }
    }
}
