//! Bodies: of a reply, bytes in memory or pieces of something long, one at a time; of a request, within bounds.
//!
//! A piece that cannot be read ends the connection before all that was announced has come, so nobody takes what is cut
//! short for the whole.

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::task::JoinHandle;

/// Something that is too long for memory, and is read in pieces.
pub trait Pieces: Send + Sync + 'static {
    /// The bytes of a range, all of them, if they can be had without waiting.
    fn read_now(&self, _range: Range<u64>) -> Option<io::Result<Bytes>> {
        None
    }

    /// The bytes of a range, all of them. Called where it may block.
    ///
    /// # Errors
    /// They cannot be read, or there are fewer.
    fn read(&self, range: Range<u64>) -> io::Result<Bytes>;
}

/// The body of a reply.
pub enum ReplyBody {
    /// Bytes in memory; `None` when they are sent, or for a reply without a body.
    Memory(Option<Bytes>),
    /// A part of something long.
    Pieces(UnsentPieces),
}

/// What is still to be sent of something long.
pub struct UnsentPieces {
    source: Arc<dyn Pieces>,
    left: Range<u64>,
    piece_bytes: u64,
    /// A piece that has to be waited for.
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

    /// A range, which must lie within the source, read in pieces of so many bytes.
    pub fn pieces(source: Arc<dyn Pieces>, range: Range<u64>, piece_bytes: u64) -> ReplyBody {
        ReplyBody::Pieces(UnsentPieces { source, left: range, piece_bytes, reading: None })
    }

    /// Bytes that are still to be sent.
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
    /// Nobody needs the piece any more.
    fn drop(&mut self) {
        if let Some(reading) = &self.reading {
            reading.abort();
        }
    }
}

/// Why a request has no body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyError {
    /// It is longer than it may be.
    TooLong,
    /// It did not come whole.
    Broken,
}

/// The body of a request, of at most `bytes_max` bytes. Who sends it slowly is cut off by the connection's idle limit.
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
