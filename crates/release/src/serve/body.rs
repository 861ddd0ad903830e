//! The body of a reply: bytes in memory, or pieces of a file, one at a time.

use super::files::{Content, PIECE_BYTES, ReadError, ServedFile, Wait};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::task::JoinHandle;

/// A body of an answer.
pub enum ReplyBody {
    /// Bytes in memory; `None` when they are sent, or for an answer without a body.
    Memory(Option<Bytes>),
    /// A part of an open file.
    FilePieces(FilePieces),
}

/// A part of an open file.
pub struct FilePieces {
    found: Arc<ServedFile>,
    left: Range<u64>,
    /// A piece that has to be waited for.
    reading: Option<JoinHandle<Result<Bytes, ReadError>>>,
}

impl ReplyBody {
    /// An empty body.
    pub fn nothing() -> ReplyBody {
        ReplyBody::Memory(None)
    }

    /// A body of these bytes.
    pub fn bytes(bytes: Bytes) -> ReplyBody {
        ReplyBody::Memory((!bytes.is_empty()).then_some(bytes))
    }

    /// A part of a file, which must lie within it.
    pub fn part(found: &Arc<ServedFile>, range: Range<u64>) -> ReplyBody {
        match &found.content {
            Content::Memory(bytes) => ReplyBody::bytes(bytes.slice(range.start as usize..range.end as usize)),
            Content::Open(_) => {
                ReplyBody::FilePieces(FilePieces { found: found.clone(), left: range, reading: None })
            }
        }
    }

    /// Bytes that are still to be sent.
    pub fn length(&self) -> u64 {
        match self {
            ReplyBody::Memory(bytes) => bytes.as_ref().map_or(0, |bytes| bytes.len() as u64),
            ReplyBody::FilePieces(pieces) => pieces.left.end - pieces.left.start,
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
            ReplyBody::FilePieces(pieces) => {
                let piece = ready!(pieces.poll_next(cx));
                Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
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

impl FilePieces {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let piece = self.left.start..self.left.end.min(self.left.start + PIECE_BYTES);
        let read = match &mut self.reading {
            Some(reading) => {
                let read = ready!(Pin::new(reading).poll(cx));
                self.reading = None;
                read.unwrap_or_else(|error| Err(ReadError::Failed(io::Error::other(error))))
            }
            None => self.found.read(piece.clone(), Wait::No),
        };
        let read = match read {
            Ok(bytes) => Ok(bytes),
            Err(ReadError::Failed(error)) => Err(error),
            Err(ReadError::WouldWait) => {
                let found = self.found.clone();
                self.reading = Some(tokio::task::spawn_blocking(move || found.read(piece, Wait::Yes)));
                return self.poll_next(cx);
            }
        };
        Poll::Ready(Some(read.inspect(|bytes| {
            self.left.start += bytes.len() as u64;
        })))
    }
}

impl Drop for FilePieces {
    /// Nobody needs the piece any more.
    fn drop(&mut self) {
        if let Some(reading) = &self.reading {
            reading.abort();
        }
    }
}
