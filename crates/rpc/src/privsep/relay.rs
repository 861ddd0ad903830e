//! Relays a connection between its peer and the back end: frames, whose lengths are checked here first, at
//! the pace of the link. Nothing is buffered: what does not fit into the next hop stays in the one before.

use super::{NOTE_ID, Note, clock_us};
use crate::flow::{Duplex, Flow, MeteredReader, Pipe};
use crate::frame::{self, FRAME_HEADER_BYTES, FrameError, FrameHeader};
use crate::serve::Limits;
use crate::serve::limiter::ConnectionSlot;
use holdfast_crypto::{decode, encode};
use holdfast_protocol::message::MESSAGE_BYTES_MAX;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::Instant;

/// Most bytes copied at once.
const PIECE_BYTES: usize = 64 << 10;
/// The shortest interval between link estimates sent to the back end.
const LINK_NOTE_EVERY: Duration = Duration::from_millis(50);

/// Carries until one side ends. Returns why, for the log.
pub(super) async fn relay(
    outer: Pipe,
    inner: UnixStream,
    limits: &Limits,
    slot: &mut ConnectionSlot,
) -> String {
    let Pipe { stream, flow } = outer;
    let (reader, writer) = tokio::io::split(stream);
    let (inner_reader, inner_writer) = inner.into_split();
    let state = ConnectionState::default();
    let reader = MeteredReader { reader, flow: flow.clone() };
    let upwards = ClientToServer { reader, inner: inner_writer, flow: &flow, limits, state: &state };
    let mut upwards = std::pin::pin!(upwards.run());
    let mut downwards = std::pin::pin!(downwards(inner_reader, writer, &flow, limits, &state, slot));
    let why = tokio::select! {
        why = &mut upwards => why,
        why = &mut downwards => return why,
        why = silence(&flow, limits) => return why,
        never = flow.watch() => match never {},
    };
    // The back end knows that nothing more comes; its last replies should still reach the peer.
    let patience = limits.shutdown_patience + Duration::from_secs(1);
    let _ = tokio::time::timeout(patience, downwards).await;
    why
}

async fn silence(flow: &Flow, limits: &Limits) -> String {
    loop {
        tokio::time::sleep((limits.idle_max / 8).max(Duration::from_millis(10))).await;
        if flow.activity.silent_for() > limits.idle_max {
            return "it was idle for too long".to_owned();
        }
    }
}

/// The back end's notes about a connection.
#[derive(Default)]
struct ConnectionState {
    /// The peer is a member's device.
    is_admitted: AtomicBool,
    /// Whether it wants to know when each request came.
    is_traced: AtomicBool,
}

struct ClientToServer<'a> {
    reader: MeteredReader<ReadHalf<Box<dyn Duplex>>>,
    inner: OwnedWriteHalf,
    flow: &'a Flow,
    limits: &'a Limits,
    state: &'a ConnectionState,
}

impl ClientToServer<'_> {
    /// Requests, from the peer to the back end.
    async fn run(mut self) -> String {
        let why = match self.carry().await {
            Ok(why) => why.to_owned(),
            Err(error) => {
                if !matches!(error, FrameError::Io(_)) {
                    tracing::warn!(%error, "peer misbehaved");
                }
                error.to_string()
            }
        };
        let _ = self.inner.shutdown().await;
        why
    }

    async fn carry(&mut self) -> Result<&'static str, FrameError> {
        let mut buffer = Vec::with_capacity(PIECE_BYTES);
        let mut sent: (Option<Note>, Option<Instant>) = (None, None);
        loop {
            let Some(header) = frame::read_header(&mut self.reader, MESSAGE_BYTES_MAX).await? else {
                return Ok("the peer closed it");
            };
            let bytes = header.payload_bytes as usize;
            // Read now: the peer may have been admitted since the wait for this header began.
            let limit = self.limits.stranger_frame_bytes_max;
            if bytes > limit && !self.state.is_admitted.load(Ordering::Acquire) {
                return Err(FrameError::TooLong { found: bytes as u64, limit });
            }
            buffer.clear();
            let note = self.flow.estimate().map(Note::from);
            if note != sent.0 && sent.1.is_none_or(|last| last.elapsed() >= LINK_NOTE_EVERY) {
                sent = (note, Some(Instant::now()));
                note.iter().for_each(|note| add(&mut buffer, note));
            }
            if self.state.is_traced.load(Ordering::Relaxed) {
                add(&mut buffer, &Note::Arrived(clock_us()));
            }
            buffer.extend_from_slice(&FrameHeader::encode(header.id, bytes));
            self.flow.expect(bytes);
            // Only waiting for the peer counts: while the back end is busy, the peer may be unable to send.
            let mut patience = self.limits.patience_for(bytes);
            let mut left = bytes;
            while left > 0 {
                let room = left.min(PIECE_BYTES.saturating_sub(buffer.len()).max(1 << 10));
                let start = Instant::now();
                let mut limited = (&mut self.reader).take(room as u64);
                match tokio::time::timeout(patience, limited.read_buf(&mut buffer)).await {
                    Err(_) => return Ok("a request took too long to arrive"),
                    Ok(Ok(0)) => return Err(FrameError::Io(std::io::ErrorKind::UnexpectedEof.into())),
                    Ok(Ok(read)) => left -= read,
                    Ok(Err(error)) => return Err(error.into()),
                }
                patience = patience.saturating_sub(start.elapsed());
                if left > 0 && buffer.len() + (1 << 10) >= PIECE_BYTES {
                    self.inner.write_all(&buffer).await?;
                    buffer.clear();
                }
            }
            self.flow.complete(bytes);
            self.inner.write_all(&buffer).await?;
        }
    }
}

fn add(buffer: &mut Vec<u8>, note: &Note) {
    let note = encode(note);
    buffer.extend_from_slice(&FrameHeader::encode(NOTE_ID, note.len()));
    buffer.extend_from_slice(&note);
}

/// Answers, from the back end to the peer.
async fn downwards(
    inner: OwnedReadHalf,
    mut writer: WriteHalf<Box<dyn Duplex>>,
    flow: &Flow,
    limits: &Limits,
    state: &ConnectionState,
    slot: &mut ConnectionSlot,
) -> String {
    let mut reader = BufReader::with_capacity(PIECE_BYTES, inner);
    let why = loop {
        if reader.buffer().len() < FRAME_HEADER_BYTES {
            // No more data is available, so what was written should be sent.
            match tokio::time::timeout(limits.frame_patience, writer.flush()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return error.to_string(),
                Err(_) => return "the peer does not take its answers".to_owned(),
            }
        }
        let header = match frame::read_header_or_note(&mut reader, MESSAGE_BYTES_MAX).await {
            Ok(Some(header)) => header,
            Ok(None) => break "the back end closed it".to_owned(),
            Err(error) => return error.to_string(),
        };
        if header.id == NOTE_ID {
            let note = frame::read_payload(&mut reader, header).await;
            match note.map(|payload| decode::<Note>(&payload)) {
                Ok(Ok(Note::Admitted)) => {
                    state.is_admitted.store(true, Ordering::Release);
                    slot.leave_strangers();
                    flow.widen();
                }
                Ok(Ok(Note::Trace)) => state.is_traced.store(true, Ordering::Relaxed),
                _ => {}
            }
            continue;
        }
        let bytes = header.payload_bytes as usize;
        let carrying = carry_answer(&mut reader, &mut writer, flow, header);
        match tokio::time::timeout(limits.patience_for(bytes), carrying).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return "the peer does not take its answers".to_owned(),
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), writer.shutdown()).await;
    why
}

async fn carry_answer<R: AsyncRead + Unpin>(
    reader: &mut BufReader<R>,
    writer: &mut WriteHalf<Box<dyn Duplex>>,
    flow: &Flow,
    header: FrameHeader,
) -> std::io::Result<()> {
    use tokio::io::AsyncBufReadExt;
    let bytes = header.payload_bytes as usize;
    writer.write_all(&FrameHeader::encode(header.id, bytes)).await?;
    flow.begin(bytes);
    let mut left = bytes;
    while left > 0 {
        let part = reader.fill_buf().await?;
        if part.is_empty() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let part = &part[..part.len().min(left)];
        flow.write_part(writer, part, bytes).await?;
        let carried = part.len();
        left -= carried;
        reader.consume(carried);
    }
    flow.end(bytes);
    Ok(())
}
