//! Bodies. Of a reply: bytes in memory, or pieces of something long, one at a time. Of a request: bytes up to
//! a limit.
//!
//! If a piece cannot be read, the connection ends before the announced length was sent, so no client takes a
//! truncated body for the whole.

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::task::JoinHandle;

/// A long source, which is read in pieces instead of as a whole.
pub trait Pieces: Send + Sync + 'static {
    /// All bytes of a range, if they can be read without waiting.
    fn read_now(&self, _range: Range<u64>) -> Option<io::Result<Bytes>> {
        None
    }

    /// All bytes of a range. Called where it may block.
    ///
    /// # Errors
    /// The bytes cannot be read, or there are fewer.
    fn read(&self, range: Range<u64>) -> io::Result<Bytes>;
}

/// The body of a reply.
pub enum ReplyBody {
    /// Bytes in memory; `None` after they were sent, or for a reply without a body.
    Memory(Option<Bytes>),
    /// A range of something long.
    Pieces(UnsentPieces),
}

/// The rest of a range that has not been sent yet.
pub struct UnsentPieces {
    source: Arc<dyn Pieces>,
    left: Range<u64>,
    piece_bytes: u64,
    /// A piece that is being read on another thread.
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

impl ReplyBody {
    /// An empty body.
    pub fn nothing() -> ReplyBody {
        ReplyBody::Memory(None)
    }

    /// A body of these bytes.
    pub fn bytes(bytes: impl Into<Bytes>) -> ReplyBody {
        let bytes = bytes.into();
        ReplyBody::Memory((!bytes.is_empty()).then_some(bytes))
    }

    /// A range, which must lie within the source, read in pieces of `piece_bytes` bytes.
    pub fn pieces(source: Arc<dyn Pieces>, range: Range<u64>, piece_bytes: u64) -> ReplyBody {
        ReplyBody::Pieces(UnsentPieces { source, left: range, piece_bytes, reading: None })
    }

    /// Number of bytes that have not been sent yet.
    pub fn length(&self) -> u64 {
        match self {
            ReplyBody::Memory(bytes) => bytes.as_ref().map_or(0, |bytes| bytes.len() as u64),
            ReplyBody::Pieces(pieces) => pieces.left.end - pieces.left.start,
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            ReplyBody::Memory(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            ReplyBody::Pieces(pieces) => {
                pieces.poll_next(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.length() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length())
    }
}

impl UnsentPieces {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let piece = self.left.start..self.left.end.min(self.left.start + self.piece_bytes);
        let at_once = match self.reading {
            Some(_) => None,
            None => self.source.read_now(piece.clone()),
        };
        let read = match at_once {
            Some(read) => read,
            None => {
                let reading = self.reading.get_or_insert_with(|| {
                    let (source, piece) = (self.source.clone(), piece.clone());
                    tokio::task::spawn_blocking(move || source.read(piece))
                });
                let read = ready!(Pin::new(reading).poll(cx));
                self.reading = None;
                read.unwrap_or_else(|error| Err(io::Error::other(error)))
            }
        };
        Poll::Ready(Some(read.inspect(|_| self.left.start = piece.end)))
    }
}

impl Drop for UnsentPieces {
    /// Nothing needs the piece any more.
    fn drop(&mut self) {
        if let Some(reading) = &self.reading {
            reading.abort();
        }
    }
}

/// Why a request has no body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyError {
    /// It is longer than the limit.
    TooLong,
    /// It did not arrive completely.
    Broken,
}

/// Reads the body of a request, of at most `bytes_max` bytes. The connection's idle limit cuts off a client
/// that sends it slowly.
///
/// # Errors
/// [`BodyError`]
pub async fn read_body(body: &mut Incoming, bytes_max: usize) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(BodyError::TooLong);
    }
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        let Ok(piece) = frame.map_err(|_| BodyError::Broken)?.into_data() else { continue };
        if bytes.len() + piece.len() > bytes_max {
            return Err(BodyError::TooLong);
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.into())
}
