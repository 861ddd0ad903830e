//! What is sent: bytes in memory, or pieces of a file, one at a time.

use super::files::{Content, Found, PIECE_BYTES, Trouble, Wait};
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
pub enum Sent {
    /// Bytes in memory; `None` when they are sent, or for an answer without a body.
    Memory(Option<Bytes>),
    /// Part of an open file.
    Pieces(Pieces),
}

/// Part of an open file.
pub struct Pieces {
    found: Arc<Found>,
    left: Range<u64>,
    /// A piece that has to be waited for.
    reading: Option<JoinHandle<Result<Bytes, Trouble>>>,
}

impl Sent {
    /// No body.
    pub fn nothing() -> Sent {
        Sent::Memory(None)
    }

    /// These bytes.
    pub fn bytes(bytes: Bytes) -> Sent {
        Sent::Memory((!bytes.is_empty()).then_some(bytes))
    }

    /// A part of a file, which must lie within it.
    pub fn part(found: &Arc<Found>, range: Range<u64>) -> Sent {
        match &found.content {
            Content::Memory(bytes) => Sent::bytes(bytes.slice(range.start as usize..range.end as usize)),
            Content::Open(_) => Sent::Pieces(Pieces { found: found.clone(), left: range, reading: None }),
        }
    }

    /// How much is still to be sent.
    pub fn length(&self) -> u64 {
        match self {
            Sent::Memory(bytes) => bytes.as_ref().map_or(0, |bytes| bytes.len() as u64),
            Sent::Pieces(pieces) => pieces.left.end - pieces.left.start,
        }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Sent::Memory(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Sent::Pieces(pieces) => {
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

impl Pieces {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let piece = self.left.start..self.left.end.min(self.left.start + PIECE_BYTES);
        let read = match &mut self.reading {
            Some(reading) => {
                let read = ready!(Pin::new(reading).poll(cx));
                self.reading = None;
                read.unwrap_or_else(|error| Err(Trouble::Failed(io::Error::other(error))))
            }
            None => self.found.read(piece.clone(), Wait::No),
        };
        let read = match read {
            Ok(bytes) => Ok(bytes),
            Err(Trouble::Failed(error)) => Err(error),
            Err(Trouble::WouldWait) => {
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

impl Drop for Pieces {
    /// Nobody waits for it any more.
    fn drop(&mut self) {
        if let Some(reading) = &self.reading {
            reading.abort();
        }
    }
}
