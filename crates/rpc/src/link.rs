//! One live connection of a client: a reader, a writer and a watcher over one stream.
//!
//! A closed link never comes back: all requests that waited on it fail, with whether they may have reached
//! the server.

use crate::dial::Carrier;
use crate::flow::{Duplex, Flow, MeteredReader, Pipe};
use crate::frame::{self, FRAME_HEADER_BYTES, FrameHeader};
use crate::socket::Activity;
use bytes::Bytes;
use holdfast_crypto::encode;
use holdfast_protocol::message::{MESSAGE_BYTES_MAX, Request};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

/// A live connection.
pub(crate) struct Link {
    outgoing: mpsc::UnboundedSender<Outgoing>,
    waiting: Arc<PendingRequests>,
    next_id: AtomicU64,
    pub(crate) address: String,
    pub(crate) carrier: Carrier,
    retired: AtomicBool,
    given_up: Notify,
    pub(crate) activity: Arc<Activity>,
    pub(crate) flow: Arc<Flow>,
}

struct Outgoing {
    id: u64,
    payload: Bytes,
    sent: Arc<AtomicBool>,
}

/// Requests without an answer yet; `None` once the link is closed.
#[derive(Default)]
struct PendingRequests(Mutex<Option<HashMap<u64, oneshot::Sender<Bytes>>>>);

impl PendingRequests {
    fn is_empty(&self) -> bool {
        self.0.lock().as_ref().is_none_or(HashMap::is_empty)
    }
}

/// Why an exchange brought no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExchangeError {
    /// The link closed.
    Lost { maybe_sent: bool },
    /// Time ran out.
    Deadline { maybe_sent: bool },
}

/// When a link pings its peer, and when it assumes that the peer is dead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keepalive {
    pub(crate) ping_after: Duration,
    pub(crate) dead_after: Duration,
}

impl Link {
    /// Starts a link on a stream whose `Hello` was answered. `closed` runs once, when it ends.
    pub(crate) fn start(
        pipe: Pipe,
        address: String,
        carrier: Carrier,
        watch: Keepalive,
        closed: impl FnOnce(&Arc<Link>, String) + Send + 'static,
    ) -> Arc<Link> {
        let Pipe { stream, flow } = pipe;
        let activity = flow.activity.clone();
        let (reader, writer) = tokio::io::split(stream);
        let (outgoing, queue) = mpsc::unbounded_channel();
        let link = Arc::new(Link {
            outgoing,
            waiting: Arc::new(PendingRequests(Mutex::new(Some(HashMap::new())))),
            // 1 was the Hello.
            next_id: AtomicU64::new(2),
            address,
            carrier,
            retired: AtomicBool::new(false),
            given_up: Notify::new(),
            activity,
            flow: flow.clone(),
        });
        let supervised = link.clone();
        tokio::spawn(async move {
            let why = tokio::select! {
                why = read_frames(reader, flow.clone(), &supervised.waiting) => why,
                why = write_frames(writer, queue, &flow, &supervised.waiting) => why,
                why = supervised.watch(watch) => why,
                () = supervised.given_up.notified() => "another server has taken over".to_owned(),
                never = flow.watch() => match never {},
            };
            // Dropping the senders wakes all callers that wait.
            supervised.waiting.0.lock().take();
            closed(&supervised, why);
        });
        link
    }

    /// Sends one request and waits for its answer until `deadline`. With it comes the request's number on
    /// this link.
    pub(crate) async fn exchange(
        &self,
        payload: Bytes,
        deadline: Instant,
    ) -> Result<(Bytes, u64), ExchangeError> {
        let (answer, answered) = oneshot::channel();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let sent = Arc::new(AtomicBool::new(false));
        match self.waiting.0.lock().as_mut() {
            Some(waiting) => waiting.insert(id, answer),
            None => return Err(ExchangeError::Lost { maybe_sent: false }),
        };
        // However this call ends, cancellation included, its entry is removed.
        let _place = PendingRequest { waiting: &self.waiting, id };
        if self.outgoing.send(Outgoing { id, payload, sent: sent.clone() }).is_err() {
            return Err(ExchangeError::Lost { maybe_sent: false });
        }
        let outcome = tokio::time::timeout_at(deadline, answered).await;
        let maybe_sent = sent.load(Ordering::Acquire);
        match outcome {
            Ok(Ok(answer)) => Ok((answer, id)),
            Ok(Err(_)) => Err(ExchangeError::Lost { maybe_sent }),
            Err(_) => Err(ExchangeError::Deadline { maybe_sent }),
        }
    }

    /// Replaces this link with another: it ends once all its requests are answered.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    /// Ends this link now: all requests on it fail as lost.
    pub(crate) fn give_up(&self) {
        self.given_up.notify_one();
    }

    /// Whether a request or a ping waits for its reply, and nothing has been received for `patience`.
    pub(crate) fn leaves_waiting(&self, patience: Duration) -> bool {
        self.activity.silent_for() >= patience && !self.waiting.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.waiting.0.lock().is_none()
    }

    /// Pings when the server has been silent, and ends when nothing has moved either way for too long.
    async fn watch(&self, watch: Keepalive) -> String {
        let ping = Bytes::from(encode(&Request::Ping));
        let mut pinged = false;
        loop {
            tokio::time::sleep(watch.ping_after / 3).await;
            if self.retired.load(Ordering::Acquire) && self.waiting.is_empty() {
                return "another link took its place".to_owned();
            }
            let silent = self.activity.silent_for();
            if silent < watch.ping_after {
                pinged = false;
            } else if !pinged {
                pinged = true;
                let id = self.next_id.fetch_add(1, Ordering::Relaxed);
                let (answer, _) = oneshot::channel();
                if let Some(waiting) = self.waiting.0.lock().as_mut() {
                    waiting.insert(id, answer);
                }
                let _ = self.outgoing.send(Outgoing { id, payload: ping.clone(), sent: Arc::default() });
            }
            if silent >= watch.dead_after && self.activity.unsent_for() >= watch.dead_after {
                return format!("the server was silent for {} seconds", silent.as_secs());
            }
        }
    }
}

struct PendingRequest<'a> {
    waiting: &'a PendingRequests,
    id: u64,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.waiting.0.lock().as_mut() {
            waiting.remove(&self.id);
        }
    }
}

async fn read_frames(
    reader: ReadHalf<Box<dyn Duplex>>,
    flow: Arc<Flow>,
    waiting: &PendingRequests,
) -> String {
    let mut reader = MeteredReader { reader, flow };
    loop {
        let header = match frame::read_header(&mut reader, MESSAGE_BYTES_MAX).await {
            Ok(Some(header)) => header,
            Ok(None) => return "the server closed the connection".to_owned(),
            Err(error) => return error.to_string(),
        };
        reader.flow.expect(header.payload_bytes as usize);
        let payload = match frame::read_payload(&mut reader, header).await {
            Ok(payload) => payload,
            Err(error) => return error.to_string(),
        };
        reader.flow.complete(payload.len());
        let answer = waiting.0.lock().as_mut().and_then(|waiting| waiting.remove(&header.id));
        // A reply without a waiting caller is dropped: the caller's deadline has passed.
        if let Some(answer) = answer {
            let _ = answer.send(payload);
        }
    }
}

async fn write_frames(
    writer: WriteHalf<Box<dyn Duplex>>,
    mut queue: mpsc::UnboundedReceiver<Outgoing>,
    flow: &Flow,
    waiting: &PendingRequests,
) -> String {
    let mut writer = BufWriter::with_capacity(32 << 10, writer);
    while let Some(first) = queue.recv().await {
        let mut next = Some(first);
        while let Some(Outgoing { id, payload, sent }) = next {
            let wanted = waiting.0.lock().as_ref().is_some_and(|waiting| waiting.contains_key(&id));
            if wanted {
                sent.store(true, Ordering::Release);
                if let Err(error) = send_frame(&mut writer, flow, id, &payload).await {
                    return error.to_string();
                }
            }
            next = queue.try_recv().ok();
        }
        if let Err(error) = writer.flush().await {
            return error.to_string();
        }
    }
    "it was closed on this side".to_owned()
}

/// Writes a frame at the pace that its link bears.
pub(crate) async fn send_frame<W: AsyncWrite + Unpin>(
    writer: &mut W,
    flow: &Flow,
    id: u64,
    payload: &[u8],
) -> std::io::Result<()> {
    writer.write_all(&FrameHeader::encode(id, payload.len())).await?;
    flow.write(writer, payload).await
}

pub(crate) async fn write_frame<W: AsyncWrite + Unpin>(
    writer: &mut W,
    id: u64,
    payload: &[u8],
) -> std::io::Result<()> {
    let header: [u8; FRAME_HEADER_BYTES] = FrameHeader::encode(id, payload.len());
    writer.write_all(&header).await?;
    writer.write_all(payload).await
}
