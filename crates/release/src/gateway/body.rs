//! The body of a reply: a page in memory, or a file piece by piece. A piece that cannot be read ends the connection
//! before all that was announced has come, so nobody takes what is cut short for the whole.

use super::view::{OpenFile, ViewError};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::task::JoinHandle;

/// Bytes of a file that are read at once.
const PIECE_BYTES: u64 = 256 << 10;

/// A body of an answer.
pub enum ReplyBody {
    /// Bytes in memory; `None` when they are sent.
    Memory(Option<Bytes>),
    /// Part of a file.
    FilePieces(FilePieces),
}

/// Part of a file.
pub struct FilePieces {
    file: Arc<OpenFile>,
    left: Range<u64>,
    reading: Option<JoinHandle<Result<Vec<u8>, ViewError>>>,
}

impl ReplyBody {
    /// A body of these bytes.
    pub fn bytes(bytes: impl Into<Bytes>) -> ReplyBody {
        let bytes = bytes.into();
        ReplyBody::Memory((!bytes.is_empty()).then_some(bytes))
    }

    /// A part of a file.
    pub fn part(file: Arc<OpenFile>, part: Range<u64>) -> ReplyBody {
        ReplyBody::FilePieces(FilePieces { file, left: part, reading: None })
    }

    fn length(&self) -> u64 {
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

impl FilePieces {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let (file, start) = (self.file.clone(), self.left.start);
        let length = PIECE_BYTES.min(self.left.end - start) as usize;
        let reading = self
            .reading
            .get_or_insert_with(|| tokio::task::spawn_blocking(move || file.content.read(start, length)));
        let read = ready!(Pin::new(reading).poll(cx));
        self.reading = None;
        let failed = |why: String| {
            tracing::warn!(why, "a file was cut short on its way");
            Poll::Ready(Some(Err(io::Error::other(why))))
        };
        match read {
            Ok(Ok(bytes)) if bytes.len() == length => {
                self.left.start += length as u64;
                Poll::Ready(Some(Ok(bytes.into())))
            }
            Ok(Ok(_)) => failed("the file has become shorter".to_owned()),
            Ok(Err(view_error)) => failed(view_error.why),
            Err(error) => failed(error.to_string()),
        }
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
