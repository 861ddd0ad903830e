//! Estimates of a link: round trip, rates and losses, smoothed and computed from its normal traffic.
//!
//! Arithmetic only: the clock and the counters of the kernel and of QUIC are arguments. An estimate decides
//! how much is sent at once and how hard it is compressed, never what is trusted. So a peer that distorts it
//! (by slow or early acknowledgements) only slows its own connection.

use std::time::Duration;

/// The estimate of the link to a peer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkEstimate {
    /// Round trip, smoothed; queues on the way included.
    pub rtt: Duration,
    /// Bytes a second to the peer, once enough was sent to tell.
    pub sent_bytes_per_second: Option<u64>,
    /// Bytes a second from the peer, once enough came to tell.
    pub received_bytes_per_second: Option<u64>,
    /// Share of sent packets that were lost, 0 to 1.
    pub loss: f64,
}

/// A frame on a link of unknown or high rate.
const FRAME_BYTES_FAST: u64 = 4 << 20;
/// The smallest frame: smaller ones save nothing, because their overhead and the server's work for them begin
/// to count.
const FRAME_BYTES_MIN: u64 = 16 << 10;

impl LinkEstimate {
    /// Recommended largest frame to the peer: about a second and a half of the link, so that a broken link
    /// costs no more than that, but large enough that round trips do not dominate.
    pub fn frame_bytes_advised(&self) -> usize {
        advised(self.rtt, self.sent_bytes_per_second)
    }

    /// This estimate, completed with the rates of an older one.
    pub(crate) fn or(self, older: Option<LinkEstimate>) -> LinkEstimate {
        let Some(older) = older else { return self };
        LinkEstimate {
            rtt: self.rtt,
            sent_bytes_per_second: self.sent_bytes_per_second.or(older.sent_bytes_per_second),
            received_bytes_per_second: self.received_bytes_per_second.or(older.received_bytes_per_second),
            loss: self.loss.max(older.loss),
        }
    }
}

fn advised(rtt: Duration, rate: Option<u64>) -> usize {
    let Some(rate) = rate else { return FRAME_BYTES_FAST as usize };
    let seconds = 1.5 + rtt.as_secs_f64().min(1.0);
    ((rate as f64 * seconds) as u64).clamp(FRAME_BYTES_MIN, FRAME_BYTES_FAST) as usize
}

/// One reading of the counters of a transport.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct CounterReading {
    /// Bytes the peer's end has acknowledged so far.
    pub(crate) delivered: u64,
    /// Bytes that were sent and are not acknowledged; `None` if the transport does not say.
    pub(crate) unsettled: Option<u64>,
    /// Whether more waits to be sent than the link takes now.
    pub(crate) backlog: bool,
    /// Round trip, smoothed.
    pub(crate) rtt: Duration,
    /// Shortest round trip seen.
    pub(crate) rtt_min: Duration,
    /// Packets with data sent so far, repetitions included.
    pub(crate) packets: u64,
    /// Packets lost so far.
    pub(crate) lost: u64,
}

/// Share of a new observation in a smoothed rate.
const NEW_SHARE: f64 = 0.3;
/// A measurement of fewer bytes says nothing about a rate.
const BYTES_MIN: u64 = 8 << 10;
/// A measurement of a shorter time says nothing about a rate.
const TIME_MIN: Duration = Duration::from_millis(4);
/// A measurement of sending takes at least this long: what is sent at its start is queued, not transferred.
const SENDING_MIN: Duration = Duration::from_millis(200);
/// A window of receiving is closed after this time.
const WINDOW: Duration = Duration::from_millis(100);
/// Packets after which a share of losses means something.
const PACKETS_MIN: u64 = 100;

/// Gathers observations of one link.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    rtt: Option<Duration>,
    rtt_min: Option<Duration>,
    sent: Rate,
    received: Rate,
    /// The last look at the counters.
    last: Option<CounterReading>,
    /// Start of the measurement of sending, and what had been delivered then.
    sending: Option<(Duration, u64)>,
    /// Start and bytes of the window of receiving.
    window: Option<(Duration, u64)>,
    packets: u64,
    lost: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Rate(Option<f64>);

impl Rate {
    fn observe(&mut self, bytes: u64, time: Duration) {
        if bytes < BYTES_MIN || time < TIME_MIN {
            return;
        }
        let new = bytes as f64 / time.as_secs_f64();
        self.0 = Some(self.0.map_or(new, |old| old + NEW_SHARE * (new - old)));
    }

    fn get(self) -> Option<u64> {
        self.0.map(|rate| (rate as u64).max(1))
    }
}

impl Meter {
    /// Notes a measured round trip; it is used until the transport reports one.
    pub(crate) fn round_trip(&mut self, rtt: Duration) {
        self.rtt.get_or_insert(rtt);
        self.rtt_min = Some(self.rtt_min.map_or(rtt, |least| least.min(rtt)));
    }

    /// Processes a reading of the transport's counters at `now`. `sending`: whether a large message is being
    /// sent.
    pub(crate) fn look(&mut self, now: Duration, reading: CounterReading, sending: bool) {
        if !reading.rtt.is_zero() {
            self.rtt = Some(reading.rtt);
        }
        if !reading.rtt_min.is_zero() {
            self.rtt_min = Some(reading.rtt_min);
        }
        // A time in which more was waiting than the link took; on a slow link it spans several readings.
        self.sending = match self.sending {
            _ if !(reading.backlog || sending) => None,
            Some((start, delivered)) => {
                let (bytes, time) = (reading.delivered.saturating_sub(delivered), now.saturating_sub(start));
                if bytes >= BYTES_MIN && time >= SENDING_MIN {
                    self.sent.observe(bytes, time);
                    Some((now, reading.delivered))
                } else {
                    Some((start, delivered))
                }
            }
            None => Some((now, reading.delivered)),
        };
        if let Some(last) = self.last {
            self.packets += reading.packets.saturating_sub(last.packets);
            self.lost += reading.lost.saturating_sub(last.lost);
            // Old losses fade.
            if self.packets > 20 * PACKETS_MIN {
                self.packets /= 2;
                self.lost /= 2;
            }
        }
        self.last = Some(reading);
    }

    /// Notes at `now` that the start of a large message arrived: the rest arrives as fast as the link allows.
    pub(crate) fn expect(&mut self, now: Duration) {
        self.window = Some((now, 0));
    }

    /// Notes that `bytes` came at `now`.
    pub(crate) fn arrived(&mut self, now: Duration, bytes: u64) {
        let Some((start, sum)) = &mut self.window else { return };
        *sum += bytes;
        let time = now.saturating_sub(*start);
        if time >= WINDOW && *sum >= BYTES_MIN {
            self.received.observe(*sum, time);
            self.window = Some((now, 0));
        }
    }

    /// Notes that the message is complete.
    pub(crate) fn complete(&mut self, now: Duration) {
        if let Some((start, sum)) = self.window.take() {
            // Less than a fraction of a window is mostly what the kernel had gathered before we looked.
            let time = now.saturating_sub(start);
            if time >= WINDOW / 5 {
                self.received.observe(sum, time);
            }
        }
    }

    /// Most bytes that should be unacknowledged, so that a small message after them waits no longer than
    /// about `queue`; `None` while too little was measured.
    pub(crate) fn unsettled_max(&self, queue: Duration) -> Option<u64> {
        let (rate, rtt) = (self.sent.0?, self.rtt_min?);
        Some((rate * (rtt + queue).as_secs_f64()) as u64)
    }

    /// The present estimate; `None` before the first round trip.
    pub(crate) fn estimate(&self) -> Option<LinkEstimate> {
        Some(LinkEstimate {
            rtt: self.rtt?,
            sent_bytes_per_second: self.sent.get(),
            received_bytes_per_second: self.received.get(),
            loss: if self.packets >= PACKETS_MIN { self.lost as f64 / self.packets as f64 } else { 0.0 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 48_000;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn reading(delivered: u64, backlog: bool) -> CounterReading {
        CounterReading {
            delivered,
            unsettled: Some(0),
            backlog,
            rtt: ms(80),
            rtt_min: ms(30),
            packets: delivered / 1000,
            lost: delivered / 1000 / 25,
        }
    }

    /// Proves: a link that takes 384 kbit/s while more is waiting is measured so, and its losses too; times
    /// in which nothing waited do not count.
    #[test]
    fn sending_is_measured_only_while_more_waits() {
        let mut meter = Meter::default();
        assert_eq!(meter.estimate(), None);
        for step in 0..100 {
            meter.look(ms(step * 100), reading(step * RATE / 10, true), false);
        }
        let busy = meter.estimate().unwrap();
        assert_eq!(
            (busy.rtt, busy.sent_bytes_per_second),
            (ms(80), Some(RATE)),
            "every look brings less than counts"
        );
        assert!((0.03..0.05).contains(&busy.loss), "{}", busy.loss);
        // An hour of a byte now and then.
        for step in 0..3600 {
            meter.look(ms(20_000 + step * 1000), reading(10 * RATE + step, false), false);
        }
        assert_eq!(meter.estimate().unwrap().sent_bytes_per_second, Some(RATE));
        assert_eq!(meter.unsettled_max(ms(200)), Some(RATE * 230 / 1000));
    }

    /// Proves: receiving is measured within large messages only, windows and last pieces alike.
    #[test]
    fn receiving_is_measured_within_messages() {
        let mut meter = Meter::default();
        meter.round_trip(ms(30));
        meter.arrived(ms(0), 1 << 20);
        assert_eq!(meter.estimate().unwrap().received_bytes_per_second, None);
        meter.expect(ms(1000));
        for step in 1..=65 {
            meter.arrived(ms(1000 + step * 10), 1875);
        }
        meter.complete(ms(1650));
        let rate = meter.estimate().unwrap().received_bytes_per_second.unwrap();
        assert!((187_000..188_000).contains(&rate), "{rate}");
        // A message that came all at once says nothing about the rate.
        meter.expect(ms(5000));
        meter.arrived(ms(5000), 1 << 20);
        meter.complete(ms(5000));
        assert_eq!(meter.estimate().unwrap().received_bytes_per_second, Some(rate));
    }

    /// Proves: a slower link is noticed within seconds, and advice follows it within its bounds.
    #[test]
    fn advice_follows_the_rate() {
        let at = |rate| {
            LinkEstimate {
                rtt: ms(30),
                sent_bytes_per_second: rate,
                received_bytes_per_second: None,
                loss: 0.0,
            }
            .frame_bytes_advised()
        };
        assert_eq!(at(None), FRAME_BYTES_FAST as usize);
        assert_eq!(at(Some(1)), FRAME_BYTES_MIN as usize);
        assert_eq!(at(Some(u64::MAX)), FRAME_BYTES_FAST as usize);
        assert!((48_000..96_000).contains(&at(Some(RATE))));

        let mut meter = Meter::default();
        let mut delivered = 0;
        for step in 0..40 {
            delivered += if step < 20 { 1_000_000 } else { 10_000 };
            meter.look(ms(step * 200), reading(delivered, true), false);
        }
        assert!(meter.estimate().unwrap().frame_bytes_advised() < 200_000);
    }

    /// Proves: counters that go backwards, stand still or leap (another connection's, a hostile peer's
    /// acknowledgements) neither panic nor yield a rate of nothing.
    #[test]
    fn nonsense_is_survived() {
        let mut meter = Meter::default();
        for (now, delivered) in [(5, 100), (4, 50), (4, u64::MAX), (9, 0), (9, u64::MAX), (u64::MAX / 2, 1)] {
            meter.look(ms(now), reading(delivered, true), true);
            meter.expect(ms(now));
            meter.arrived(ms(now / 2), delivered / 2);
            meter.complete(ms(now));
        }
        let estimate = meter.estimate().unwrap();
        assert!(estimate.sent_bytes_per_second.is_none_or(|rate| rate > 0));
        assert!(estimate.frame_bytes_advised() >= FRAME_BYTES_MIN as usize);
    }
}
