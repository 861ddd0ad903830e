//! One connection: bytes in and out, and when to give it up.

use hyper::rt::{Read, ReadBufCursor, Write};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// How many bytes are read at a time. Requests are short.
const READ_BYTES: usize = 4 << 10;
/// Slowest rate, in bytes a second, at which a client may read a reply.
const BYTES_PER_S_MIN: u64 = 1 << 10;

/// The progress of a connection. Reading does not count, so that sending a request byte by byte is no
/// progress.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    requests: AtomicU64,
    written: AtomicU64,
}

impl Activity {
    /// Counts a request that has arrived completely.
    pub(crate) fn request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    fn wrote(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Relaxed);
    }
}

/// Checks from time to time whether a connection is worth keeping.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    requests: u64,
    written: u64,
}

impl Watch {
    /// Whether, since the last call `seconds` ago, there was a request, or the client read a reply fast
    /// enough.
    pub(crate) fn still_active(&mut self, activity: &Activity, seconds: u64) -> bool {
        let (requests, written) = (activity.requests.load(Relaxed), activity.written.load(Relaxed));
        let active = requests > self.requests || written - self.written >= seconds * BYTES_PER_S_MIN;
        (self.requests, self.written) = (requests, written);
        active
    }
}

/// A TCP connection with the interface that hyper needs.
pub(crate) struct Stream {
    inner: TcpStream,
    activity: Arc<Activity>,
}

impl Stream {
    /// A stream that counts its written bytes in `activity`.
    pub(crate) fn new(inner: TcpStream, activity: Arc<Activity>) -> Stream {
        Stream { inner, activity }
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut bytes = [0; READ_BYTES];
        let wanted = READ_BYTES.min(buffer.remaining());
        let mut read = ReadBuf::new(&mut bytes[..wanted]);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read))?;
        buffer.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, bytes))?;
        self.activity.wrote(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, pieces))?;
        self.activity.wrote(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that are idle, send byte by byte or do not read are closed; those that send requests or
    /// read stay.
    #[test]
    fn what_counts() {
        let (activity, mut watch) = (Activity::default(), Watch::default());
        assert!(!watch.still_active(&activity, 20), "nothing ever came");
        activity.request();
        assert!(watch.still_active(&activity, 20));
        activity.wrote(20 * 1024);
        assert!(watch.still_active(&activity, 20), "a long answer is being taken");
        activity.wrote(100);
        assert!(!watch.still_active(&activity, 20), "it is hardly taken");
    }
}
