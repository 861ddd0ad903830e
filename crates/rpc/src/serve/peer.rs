//! One accepted connection from handshake to end.

use super::limiter::ConnectionSlot;
use super::{Limits, Service, Session};
use crate::budget::{Budget, Share};
use crate::flow::{Duplex, Flow, MeteredReader, Pipe};
use crate::frame::{self, FrameError, FrameHeader};
use crate::link::{send_frame, write_frame};
use crate::privsep::{NOTE_ID, Note, clock_us};
use crate::socket::{Activity, CountedStream};
use crate::throttle::Throttle;
use crate::tls;
use bytes::Bytes;
use holdfast_content::BODY_BYTES_MAX;
use holdfast_crypto::{PublicKey, decode, encode};
use holdfast_protocol::message::{MESSAGE_BYTES_MAX, Request, Response, ServerError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWriteExt, BufWriter, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{Instrument, trace_span};

/// An encoded answer with what it holds until it is written.
struct OutgoingReply {
    id: u64,
    payload: Bytes,
    last: bool,
    _shares: Option<(Share, OwnedSemaphorePermit)>,
}

/// Why a connection ended, for the log.
type EndReason = String;

/// The transport of a new connection.
pub(super) enum Carrier {
    /// A TCP connection before its handshake.
    Tcp(TcpStream, tokio_rustls::TlsAcceptor),
    /// A stream of a QUIC connection, whose handshake is over.
    Quic(Pipe, PublicKey),
    /// A stream from a front end, which also sends notes.
    Introduced { stream: UnixStream, peer: PublicKey, address_is_sure: bool },
}

/// A newly accepted connection.
pub(super) struct Arrival {
    pub(super) carrier: Carrier,
    pub(super) address: SocketAddr,
    pub(super) id: u64,
    pub(super) slot: ConnectionSlot,
    /// Limits what is logged about connections that failed early.
    pub(super) drops: Arc<Throttle>,
}

pub(super) async fn run<S: Service>(
    arrival: Arrival,
    service: Arc<S>,
    limits: Arc<Limits>,
    mut closing: watch::Receiver<bool>,
) {
    let Arrival { carrier, address, id, mut slot, drops } = arrival;
    let greeting = greet(carrier, address, id, &*service, &limits);
    let greeted = tokio::select! {
        greeted = tokio::time::timeout(limits.greeting_patience, greeting) => greeted,
        _ = closing.wait_for(|closing| *closing) => return,
    };
    let greeted = greeted.unwrap_or_else(|_| Err("the greeting took too long".to_owned()));
    let (pipe, session) = match greeted {
        Ok(greeted) => greeted,
        Err(why) => {
            if let Some(suppressed) = drops.allow() {
                tracing::info!(connection = id, %address, why, suppressed, "dropped before it was greeted");
            }
            return;
        }
    };
    slot.note_proved_key();
    let mut displaced_notice = None;
    if session.is_admitted() {
        displaced_notice = Some(slot.admit(session.peer));
        session.flow.widen();
    }
    tracing::debug!(connection = id, %address, peer = ?session.peer, admitted = session.is_admitted(), "connected");
    let why = converse(pipe, &session, &service, &limits, &mut closing, &mut slot, displaced_notice).await;
    tracing::debug!(connection = id, %address, peer = ?session.peer, why, "connection ended");
    service.closed(&session);
}

/// Completes TLS where necessary, and answers the `Hello`.
async fn greet<S: Service>(
    carrier: Carrier,
    address: SocketAddr,
    id: u64,
    service: &S,
    limits: &Limits,
) -> Result<(Pipe, Arc<Session<S::State>>), EndReason> {
    let address_is_sure = !matches!(carrier, Carrier::Introduced { address_is_sure: false, .. });
    let (pipe, peer) = match carrier {
        Carrier::Tcp(tcp, acceptor) => {
            let stream = acceptor.accept(CountedStream::new(tcp)).await.map_err(|error| error.to_string())?;
            let peer = tls::peer_key(stream.get_ref().1).map_err(|error| error.to_string())?;
            let flow = stream.get_ref().0.flow();
            (Pipe { stream: Box::new(stream), flow }, peer)
        }
        Carrier::Quic(pipe, peer) => (pipe, peer),
        Carrier::Introduced { stream, peer, .. } => {
            let stream = CountedStream::over(stream);
            let flow = Flow::relayed(stream.activity());
            (Pipe { stream: Box::new(stream), flow }, peer)
        }
    };
    let origin = PeerOrigin { peer, address, address_is_sure };
    introduce(pipe, origin, id, service, limits).await
}

/// The peer's key and address.
struct PeerOrigin {
    peer: PublicKey,
    address: SocketAddr,
    address_is_sure: bool,
}

/// Handles the `Hello` and its answer, over any transport.
async fn introduce<S: Service>(
    pipe: Pipe,
    origin: PeerOrigin,
    id: u64,
    service: &S,
    limits: &Limits,
) -> Result<(Pipe, Arc<Session<S::State>>), EndReason> {
    let Pipe { mut stream, flow } = pipe;
    let (header, _) = read_header(&mut stream, &flow, limits.stranger_frame_bytes_max)
        .await
        .map_err(|error| error.to_string())?
        .ok_or("it said nothing")?;
    let payload = frame::read_payload(&mut stream, header).await.map_err(|error| error.to_string())?;
    let request: Request = decode(&payload).map_err(|error| error.to_string())?;
    if !matches!(request, Request::Hello { .. }) {
        return Err("it did not begin with a greeting".to_owned());
    }
    let session = Arc::new(Session {
        id,
        peer: origin.peer,
        address: origin.address,
        address_is_sure: origin.address_is_sure,
        state: S::State::default(),
        admitted: false.into(),
        ending: Notify::new(),
        flow: flow.clone(),
    });
    let answer = service.handle(&session, request).await;
    let refused = matches!(answer, Response::Error(_)).then(|| format!("refused: {answer:?}"));
    // The note comes first, so that the front end has the limit of the next frame before that can arrive.
    if session.is_admitted() && flow.is_relayed() {
        for note in [Note::Admitted, Note::Trace].iter().filter(|note| **note != Note::Trace || is_traced()) {
            write_frame(&mut stream, NOTE_ID, &encode(note)).await.map_err(|error| error.to_string())?;
        }
    }
    write_frame(&mut stream, header.id, &encode(&answer)).await.map_err(|error| error.to_string())?;
    stream.flush().await.map_err(|error| error.to_string())?;
    match refused {
        Some(why) => {
            let _ = stream.shutdown().await;
            Err(why)
        }
        None => Ok((Pipe { stream, flow }, session)),
    }
}

async fn converse<S: Service>(
    pipe: Pipe,
    session: &Arc<Session<S::State>>,
    service: &Arc<S>,
    limits: &Arc<Limits>,
    closing: &mut watch::Receiver<bool>,
    slot: &mut ConnectionSlot,
    displaced_notice: Option<Arc<Notify>>,
) -> EndReason {
    let Pipe { stream, flow } = pipe;
    let activity = flow.activity.clone();
    let (reader, writer) = tokio::io::split(stream);
    let reader = MeteredReader { reader, flow: flow.clone() };
    let (answers, queue) = mpsc::unbounded_channel();
    let under_way = Arc::new(Semaphore::new(limits.requests_max));
    let broken = Arc::new(Notify::new());
    let mut writing = std::pin::pin!(write_answers(writer, queue, &flow, limits.clone()));
    let notes = flow.is_relayed().then(|| answers.clone());
    let reading = RequestReader {
        session: session.clone(),
        service: service.clone(),
        limits: limits.clone(),
        answers,
        under_way: under_way.clone(),
        broken: broken.clone(),
    };
    let mut written = false;
    let why = {
        // Dropped with all its handlers at the end of this block, except when we shut down in order.
        let mut handlers = JoinSet::new();
        let why = {
            let mut reading = std::pin::pin!(reading.run(reader, &mut handlers));
            let mut watching =
                std::pin::pin!(watch_over(session, limits, &activity, slot, displaced_notice, notes));
            tokio::select! {
                why = &mut reading => why,
                why = &mut writing => return why,
                why = &mut watching => return why,
                never = flow.watch() => match never {},
                () = session.ending.notified() => return "the service ended it".to_owned(),
                () = broken.notified() => return "a request failed inside the server".to_owned(),
                _ = closing.wait_for(|closing| *closing) => "the server is shutting down".to_owned(),
            }
        };
        // No more requests are read. If we end the connection, outstanding requests may finish, and an error
        // that explains the end should still reach the peer.
        let all = u32::try_from(limits.requests_max).unwrap_or(u32::MAX);
        let finish = async {
            tokio::select! {
                _ = under_way.acquire_many(all) => {}
                _ = &mut writing => written = true,
            }
        };
        let patience = if *closing.borrow() { limits.shutdown_patience } else { Duration::from_secs(1) };
        let _ = tokio::time::timeout(patience, finish).await;
        why
    };
    // All senders are gone now: the writer empties its queue and says good-bye.
    if !written {
        let _ = tokio::time::timeout(Duration::from_secs(1), writing).await;
    }
    why
}

struct RequestReader<S: Service> {
    session: Arc<Session<S::State>>,
    service: Arc<S>,
    limits: Arc<Limits>,
    answers: mpsc::UnboundedSender<OutgoingReply>,
    under_way: Arc<Semaphore>,
    broken: Arc<Notify>,
}

impl<S: Service> RequestReader<S> {
    async fn run(
        self,
        mut reader: MeteredReader<ReadHalf<Box<dyn Duplex>>>,
        handlers: &mut JoinSet<()>,
    ) -> EndReason {
        let request_bytes = Budget::new(self.limits.request_bytes_max);
        let answer_bytes = Budget::new(self.limits.answer_bytes_max);
        loop {
            while handlers.try_join_next().is_some() {}
            let limit = match self.session.is_admitted() {
                true => MESSAGE_BYTES_MAX,
                false => self.limits.stranger_frame_bytes_max,
            };
            let flow = reader.flow.clone();
            let (header, arrived_us) = match read_header(&mut reader, &flow, limit).await {
                Ok(Some(read)) => read,
                Ok(None) => return "the peer closed it".to_owned(),
                Err(error) => return self.misbehaved(&error),
            };
            let size = header.payload_bytes as usize;
            // Room first, bytes after: a peer that floods waits in its own socket.
            let permit = self.under_way.clone().acquire_owned().await.expect("never closed");
            let room = request_bytes.take(size).await;
            reader.flow.expect(size);
            let reading = frame::read_payload(&mut reader, header);
            let payload = match tokio::time::timeout(self.limits.patience_for(size), reading).await {
                Ok(Ok(payload)) => payload,
                Ok(Err(error)) => return self.misbehaved(&error),
                Err(_) => return "a request took too long to arrive".to_owned(),
            };
            reader.flow.complete(size);
            let request: Request = match decode(&payload) {
                Ok(Request::Hello { .. }) => return self.refuse(header.id, "a second greeting".to_owned()),
                Ok(request) => request,
                Err(error) => return self.refuse(header.id, error.to_string()),
            };
            drop(payload);
            let from_front_end = arrived_us.map(|at| Duration::from_micros(clock_us().saturating_sub(at)));
            let span = trace_span!(target: "operation", "request", connection = self.session.id, id = header.id, ?from_front_end);
            let answer_bytes = answer_bytes.clone();
            let (session, service) = (self.session.clone(), self.service.clone());
            let (answers, alarm) = (self.answers.clone(), Alarm(self.broken.clone()));
            handlers.spawn(async move {
                let _alarm = alarm;
                let mut share = answer_bytes.take(answer_bytes_of(&request)).await;
                let answer = service.handle(&session, request).instrument(span).await;
                drop(room);
                let mut payload = encode(&answer);
                if payload.len() > MESSAGE_BYTES_MAX {
                    tracing::error!(connection = session.id, bytes = payload.len(), "an answer is too large");
                    payload =
                        encode(&Response::Error(ServerError::Storage("the answer is too large".to_owned())));
                }
                share.shrink_to(payload.len());
                let payload = Bytes::from(payload);
                let _ = answers.send(OutgoingReply {
                    id: header.id,
                    payload,
                    last: false,
                    _shares: Some((share, permit)),
                });
            });
        }
    }

    fn misbehaved(&self, error: &FrameError) -> EndReason {
        let misbehaved = !matches!(error, FrameError::Io(_));
        if misbehaved {
            tracing::warn!(connection = self.session.id, peer = ?self.session.peer, %error, "peer misbehaved");
        }
        error.to_string()
    }

    fn refuse(&self, id: u64, why: String) -> EndReason {
        tracing::warn!(connection = self.session.id, peer = ?self.session.peer, why, "peer misbehaved");
        let answer = Response::Error(ServerError::Invalid(why.clone()));
        let payload = Bytes::from(encode(&answer));
        let _ = self.answers.send(OutgoingReply { id, payload, last: true, _shares: None });
        why
    }
}

/// Ends the connection if a handler panics: its caller would wait in vain.
struct Alarm(Arc<Notify>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.notify_one();
        }
    }
}

/// Bytes to set aside for an answer before it is made.
fn answer_bytes_of(request: &Request) -> usize {
    match request {
        Request::Retrieve(addresses) => {
            addresses.len().saturating_mul(BODY_BYTES_MAX as usize).min(MESSAGE_BYTES_MAX)
        }
        Request::RetrieveParcel { wanted, .. } => {
            wanted.len().saturating_mul(BODY_BYTES_MAX as usize).min(MESSAGE_BYTES_MAX)
        }
        Request::RetrieveTree { bytes_max, .. } => (*bytes_max as usize + (256 << 10)).min(MESSAGE_BYTES_MAX),
        Request::StoreParcels(_) | Request::Commit { .. } => 192 << 10,
        Request::Look { .. } | Request::Update { .. } | Request::Fast { .. } => 2 << 20,
        Request::BlockServer(request) => request.call.answer_bytes_max(),
        _ => 64 << 10,
    }
}

async fn write_answers(
    writer: WriteHalf<Box<dyn Duplex>>,
    mut queue: mpsc::UnboundedReceiver<OutgoingReply>,
    flow: &Flow,
    limits: Arc<Limits>,
) -> EndReason {
    let mut writer = BufWriter::with_capacity(32 << 10, writer);
    while let Some(first) = queue.recv().await {
        let mut next = Some(first);
        let mut last = false;
        while let Some(answer) = next {
            let writing = send_frame(&mut writer, flow, answer.id, &answer.payload);
            match tokio::time::timeout(limits.patience_for(answer.payload.len()), writing).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error.to_string(),
                Err(_) => return "the peer does not take its answers".to_owned(),
            }
            last |= answer.last;
            next = if last { None } else { queue.try_recv().ok() };
        }
        match tokio::time::timeout(limits.frame_patience, writer.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "the peer does not take its answers".to_owned(),
        }
        if last {
            break;
        }
    }
    let _ = writer.shutdown().await;
    "all was answered".to_owned()
}

/// Whether the time of operations is logged.
fn is_traced() -> bool {
    tracing::enabled!(target: "operation", tracing::Level::TRACE)
}

/// The header of the next request, and the time of its arrival according to the front end. If a front end
/// relays the stream, its notes come in between and are handled here.
async fn read_header<R: AsyncRead + Unpin>(
    reader: &mut R,
    flow: &Flow,
    limit: usize,
) -> Result<Option<(FrameHeader, Option<u64>)>, FrameError> {
    if !flow.is_relayed() {
        return Ok(frame::read_header(reader, limit).await?.map(|header| (header, None)));
    }
    let mut arrived_us = None;
    loop {
        match frame::read_header_or_note(reader, limit).await? {
            Some(header) if header.id == NOTE_ID => {
                let payload = frame::read_payload(reader, header).await?;
                match decode(&payload).map_err(|_| FrameError::BadNote)? {
                    Note::Arrived(at) => arrived_us = Some(at),
                    note => flow.set_estimate(note.link().ok_or(FrameError::BadNote)?),
                }
            }
            other => return Ok(other.map(|header| (header, arrived_us))),
        }
    }
}

/// Ends when the peer has been silent for too long, a stranger stays too long, or a newer connection of the
/// same peer replaces this one.
async fn watch_over<T>(
    session: &Session<T>,
    limits: &Limits,
    activity: &Activity,
    slot: &mut ConnectionSlot,
    mut displaced_notice: Option<Arc<Notify>>,
    notes: Option<mpsc::UnboundedSender<OutgoingReply>>,
) -> EndReason {
    let start = tokio::time::Instant::now();
    let step = (limits.idle_max / 8).min(limits.stranger_patience / 4).max(Duration::from_millis(10));
    loop {
        match &displaced_notice {
            Some(notice) => {
                if tokio::time::timeout(step, notice.notified()).await.is_ok() {
                    return "a newer connection of the same key took its place".to_owned();
                }
            }
            None => {
                tokio::time::sleep(step).await;
                if session.is_admitted() {
                    displaced_notice = Some(slot.admit(session.peer));
                    session.flow.widen();
                    if let Some(notes) = &notes {
                        let payload = Bytes::from(encode(&Note::Admitted));
                        let _ =
                            notes.send(OutgoingReply { id: NOTE_ID, payload, last: false, _shares: None });
                    }
                } else if start.elapsed() > limits.stranger_patience {
                    return "a stranger overstayed".to_owned();
                }
            }
        }
        if activity.silent_for() > limits.idle_max {
            return "it was idle for too long".to_owned();
        }
    }
}
