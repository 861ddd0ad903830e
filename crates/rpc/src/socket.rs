//! The stream under TLS: sets its options and counts its bytes, so that a dead peer can be distinguished from
//! a slow one.

use crate::flow::{Flow, Gauge};
use crate::gauge::TcpGauge;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Bytes that passed, and when.
#[derive(Debug)]
pub(crate) struct Activity {
    start: Instant,
    /// Bytes received.
    pub(crate) received: AtomicU64,
    /// Bytes handed to the kernel.
    pub(crate) sent: AtomicU64,
    last_received_ms: AtomicU64,
    last_sent_ms: AtomicU64,
}

impl Activity {
    fn new() -> Arc<Self> {
        Arc::new(Activity {
            start: Instant::now(),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            last_received_ms: AtomicU64::new(0),
            last_sent_ms: AtomicU64::new(0),
        })
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// For how long nothing has been received.
    pub(crate) fn silent_for(&self) -> Duration {
        Duration::from_millis(self.now_ms().saturating_sub(self.last_received_ms.load(Ordering::Relaxed)))
    }

    /// For how long nothing could be sent.
    pub(crate) fn unsent_for(&self) -> Duration {
        Duration::from_millis(self.now_ms().saturating_sub(self.last_sent_ms.load(Ordering::Relaxed)))
    }
}

/// A stream that notes its [`Activity`].
#[derive(Debug)]
pub(crate) struct CountedStream<S = TcpStream> {
    stream: S,
    activity: Arc<Activity>,
}

impl CountedStream {
    /// Tunes and wraps a connected stream.
    pub(crate) fn new(stream: TcpStream) -> Self {
        tune(&stream);
        CountedStream::over(stream)
    }

    /// Collects what is learned from this connection's traffic.
    pub(crate) fn flow(&self) -> Arc<Flow> {
        let ends = self.stream.local_addr().and_then(|local| Ok((local, self.stream.peer_addr()?)));
        let gauge = ends.ok().map(|(local, peer)| Gauge::Tcp(TcpGauge::new(local, peer)));
        Flow::new(self.activity.clone(), gauge)
    }
}

impl<S> CountedStream<S> {
    /// Wraps a stream as it is.
    pub(crate) fn over(stream: S) -> Self {
        CountedStream { stream, activity: Activity::new() }
    }

    pub(crate) fn activity(&self) -> Arc<Activity> {
        self.activity.clone()
    }
}

/// Unacknowledged data breaks the connection after this long.
const UNACKNOWLEDGED_MS_MAX: u32 = 30_000;

static BBR_IS_MISSING: AtomicBool = AtomicBool::new(false);

/// Whether a TCP connection of this process could not have the congestion control that bears losses.
pub(crate) fn bbr_is_missing() -> bool {
    BBR_IS_MISSING.load(Ordering::Relaxed)
}

/// Sets the congestion control that accepted connections inherit. A process that may choose any sets it for a
/// process that accepts connections and may not.
pub(crate) fn tune_listener(listener: &std::net::TcpListener) {
    // Failures are noticed, and logged, for each connection.
    let _ = rustix::net::sockopt::set_tcp_congestion(listener, "bbr");
}

/// Acts as if a connection had been refused it.
pub(crate) fn note_bbr_is_missing() {
    BBR_IS_MISSING.store(true, Ordering::Relaxed);
}

pub(crate) fn tune(stream: &impl AsFd) {
    use rustix::net::sockopt;
    if let Err(error) = sockopt::set_tcp_nodelay(stream, true) {
        tracing::debug!(%error, "could not set TCP_NODELAY");
    }
    if let Err(error) = sockopt::set_socket_keepalive(stream, true) {
        tracing::debug!(%error, "could not set SO_KEEPALIVE");
    }
    if let Err(error) = sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS_MAX) {
        tracing::debug!(%error, "could not set TCP_USER_TIMEOUT");
    }
    // On links that lose packets bbr is an order of magnitude faster than cubic; where it is not allowed the
    // system's default serves.
    if let Err(error) = sockopt::set_tcp_congestion(stream, "bbr")
        && !BBR_IS_MISSING.swap(true, Ordering::Relaxed)
    {
        tracing::info!(%error, "congestion control bbr is not available to TCP; QUIC has its own");
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        let read = buf.filled().len() - before;
        if read > 0 {
            self.activity.received.fetch_add(read as u64, Ordering::Relaxed);
            self.activity.last_received_ms.store(self.activity.now_ms(), Ordering::Relaxed);
        }
        result
    }
}

impl<S> CountedStream<S> {
    fn note_sent(&self, result: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(written)) = result {
            self.activity.sent.fetch_add(*written as u64, Ordering::Relaxed);
            self.activity.last_sent_ms.store(self.activity.now_ms(), Ordering::Relaxed);
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.note_sent(&result);
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.note_sent(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
