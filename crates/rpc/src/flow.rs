//! One live stream to a peer, over any transport, and what is learned from its traffic.

use crate::estimate::{CounterReading, LinkEstimate, Meter};
use crate::gauge::TcpGauge;
use crate::quic;
use crate::socket::Activity;
use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

/// A stream of bytes both ways.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// An authenticated stream with its [`Flow`].
pub(crate) struct Pipe {
    pub(crate) stream: Box<dyn Duplex>,
    pub(crate) flow: Arc<Flow>,
}

/// The counters of a stream's transport.
#[derive(Debug)]
pub(crate) enum Gauge {
    Tcp(TcpGauge),
    Quic(quinn::Connection),
}

impl Gauge {
    fn read(&self) -> Option<CounterReading> {
        match self {
            Gauge::Tcp(gauge) => gauge.read(),
            Gauge::Quic(connection) => {
                let stats = connection.stats();
                Some(CounterReading {
                    // Bytes under way count at both ends of a measurement, and so cancel out.
                    delivered: stats.udp_tx.bytes.saturating_sub(stats.path.lost_bytes),
                    unsettled: None,
                    backlog: false,
                    rtt: stats.path.rtt,
                    rtt_min: connection.min_rtt(),
                    packets: stats.path.sent_packets,
                    lost: stats.path.lost_packets,
                })
            }
        }
    }
}

/// Messages from this size are worth measuring and pacing.
const LARGE_BYTES: usize = 32 << 10;
/// How often the counters of a busy link are read.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looks without movement after which a link is idle.
const IDLE_LOOKS: u32 = 20;
/// How long bulk data may delay a small message on the way.
const QUEUE_MAX: Duration = Duration::from_millis(200);
/// Bytes that may always be under way: fewer would leave a link idle between two readings.
const UNSETTLED_MIN: u64 = 8 << 10;
/// A link on which more may be under way than this is too fast to be worth the looks.
const UNSETTLED_PACED_MAX: u64 = 1 << 20;
/// Bytes written between two readings.
const PIECE_BYTES: usize = 4 << 10;
/// Bytes written at once while the link is fast, or not known to be slow.
const UNPACED_BYTES: usize = 256 << 10;

/// What is learned from a stream's traffic.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) activity: Arc<Activity>,
    gauge: Option<Gauge>,
    /// The estimate of another process that carries this stream over the link; `None`: this stream is the
    /// link.
    relayed: Option<Mutex<Option<LinkEstimate>>>,
    start: Instant,
    meter: Mutex<Meter>,
    busy: Notify,
    /// Whether a large message is being written.
    sending: AtomicBool,
}

impl Flow {
    pub(crate) fn new(activity: Arc<Activity>, gauge: Option<Gauge>) -> Arc<Flow> {
        Flow::with(activity, gauge, None)
    }

    /// The flow of a stream that another process carries on, which knows the link and controls the pace.
    pub(crate) fn relayed(activity: Arc<Activity>) -> Arc<Flow> {
        Flow::with(activity, None, Some(Mutex::default()))
    }

    fn with(
        activity: Arc<Activity>,
        gauge: Option<Gauge>,
        relayed: Option<Mutex<Option<LinkEstimate>>>,
    ) -> Arc<Flow> {
        Arc::new(Flow {
            activity,
            gauge,
            relayed,
            start: Instant::now(),
            meter: Mutex::default(),
            busy: Notify::new(),
            sending: AtomicBool::new(false),
        })
    }

    /// The current estimate.
    pub(crate) fn estimate(&self) -> Option<LinkEstimate> {
        match &self.relayed {
            Some(relayed) => *relayed.lock(),
            None => self.meter.lock().estimate(),
        }
    }

    /// Whether another process carries the stream on.
    pub(crate) fn is_relayed(&self) -> bool {
        self.relayed.is_some()
    }

    /// Stores the other process's estimate.
    pub(crate) fn set_estimate(&self, estimate: LinkEstimate) {
        if let Some(relayed) = &self.relayed {
            *relayed.lock() = Some(estimate);
        }
    }

    /// Notes that a small request was answered after `rtt`.
    pub(crate) fn round_trip(&self, rtt: Duration) {
        self.meter.lock().round_trip(rtt);
    }

    /// Notes that the header of a message of `bytes` came.
    pub(crate) fn expect(&self, bytes: usize) {
        if bytes >= LARGE_BYTES {
            self.meter.lock().expect(self.start.elapsed());
        }
    }

    /// Notes that the message is complete.
    pub(crate) fn complete(&self, bytes: usize) {
        if bytes >= LARGE_BYTES {
            self.meter.lock().complete(self.start.elapsed());
        }
    }

    /// Notes that the peer is admitted: it may send more than a stranger before its data is read.
    pub(crate) fn widen(&self) {
        if let Some(Gauge::Quic(connection)) = &self.gauge {
            quic::widen(connection);
        }
    }

    /// Reads the counters while a large message is sent. Runs as long as the stream; never completes.
    pub(crate) async fn watch(&self) -> std::convert::Infallible {
        let Some(gauge) = &self.gauge else { return std::future::pending().await };
        self.look(gauge);
        loop {
            self.busy.notified().await;
            let (mut last, mut idle) = (None, 0);
            while idle < IDLE_LOOKS {
                let reading = self.look(gauge);
                let moved = reading.map(|reading| (reading.delivered, reading.packets));
                idle = if moved == last { idle + 1 } else { 0 };
                last = moved;
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }

    fn look(&self, gauge: &Gauge) -> Option<CounterReading> {
        let reading = gauge.read()?;
        let mut meter = self.meter.lock();
        meter.look(self.start.elapsed(), reading, self.sending.load(Ordering::Relaxed));
        // QUIC itself holds back what would exceed this.
        if let Gauge::Quic(connection) = gauge
            && let Some(most) = meter.unsettled_max(QUEUE_MAX)
        {
            connection.set_send_window(most.clamp(UNSETTLED_MIN, quic::SEND_BYTES_MAX));
        }
        Some(reading)
    }

    /// Writes a payload. A large one is written in pieces, each once the bytes under way are no more than the
    /// link carries in its round trip and a fifth of a second. So the queue before the bottleneck, which all
    /// connections share, stays short whatever the congestion control.
    pub(crate) async fn write<W: AsyncWrite + Unpin>(
        &self,
        writer: &mut W,
        payload: &[u8],
    ) -> io::Result<()> {
        self.begin(payload.len());
        self.write_part(writer, payload, payload.len()).await?;
        self.end(payload.len());
        Ok(())
    }

    /// Notes that a payload of `bytes` is about to be written.
    pub(crate) fn begin(&self, bytes: usize) {
        if bytes >= LARGE_BYTES {
            self.sending.store(true, Ordering::Relaxed);
            self.busy.notify_one();
        }
    }

    /// Notes that the message is written.
    pub(crate) fn end(&self, bytes: usize) {
        if bytes >= LARGE_BYTES {
            self.sending.store(false, Ordering::Relaxed);
        }
    }

    /// Writes a part of a payload of `bytes` bytes in all.
    pub(crate) async fn write_part<W: AsyncWrite + Unpin>(
        &self,
        writer: &mut W,
        part: &[u8],
        bytes: usize,
    ) -> io::Result<()> {
        if bytes < LARGE_BYTES {
            return writer.write_all(part).await;
        }
        let mut rest = part;
        while !rest.is_empty() {
            let bytes = match self.unsettled_max() {
                Some(most) => {
                    writer.flush().await?;
                    self.settle(most).await;
                    PIECE_BYTES
                }
                None => UNPACED_BYTES,
            };
            let (piece, after) = rest.split_at(bytes.min(rest.len()));
            writer.write_all(piece).await?;
            rest = after;
        }
        Ok(())
    }

    fn unsettled_max(&self) -> Option<u64> {
        let most = self.meter.lock().unsettled_max(QUEUE_MAX)?.max(UNSETTLED_MIN);
        (most <= UNSETTLED_PACED_MAX).then_some(most)
    }

    /// Waits until at most `most` bytes are unacknowledged. A stalled link is ended by its keepalive.
    async fn settle(&self, most: u64) {
        let Some(gauge) = &self.gauge else { return };
        while let Some(CounterReading { unsettled: Some(unsettled), .. }) = gauge.read() {
            if unsettled <= most {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A reader that counts what it reads in its flow.
pub(crate) struct MeteredReader<R> {
    pub(crate) reader: R,
    pub(crate) flow: Arc<Flow>,
}

impl<R: AsyncRead + Unpin> AsyncRead for MeteredReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.reader).poll_read(cx, buf);
        let read = buf.filled().len() - before;
        if read > 0 {
            self.flow.meter.lock().arrived(self.flow.start.elapsed(), read as u64);
        }
        result
    }
}
