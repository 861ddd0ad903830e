//! One direction of a link as a queue: decides when each packet leaves and which are lost. Has no input,
//! output or clock of its own.

use std::collections::VecDeque;
use std::time::Duration;

/// The conditions of one direction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Conditions {
    /// Bytes a second; `None`: no limit.
    pub bytes_per_second: Option<u64>,
    /// How long a packet travels after it has been sent.
    pub delay: Duration,
    /// Up to this much more, at random; packets keep their order.
    pub jitter: Duration,
    /// Share of packets that are lost at random, 0 to 1.
    pub loss: f64,
    /// Bytes that may wait to be sent; further packets are dropped, as a router does.
    pub buffer_bytes: u64,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for Conditions {
    /// A link that only passes packets on.
    fn default() -> Self {
        Conditions {
            bytes_per_second: None,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            buffer_bytes: 64 << 10,
            seed: 1,
        }
    }
}

/// Counts of one direction.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Packets that came to the link.
    pub packets: u64,
    /// Bytes of these packets, including IP headers: the sender's use of the link.
    pub bytes: u64,
    /// Packets lost at random or while the link was cut.
    pub lost: u64,
    /// Packets dropped because the buffer was full.
    pub dropped: u64,
}

/// Packets under way on a link without a rate are bounded by this instead of the buffer.
const UNDER_WAY_BYTES_MAX: u64 = 64 << 20;

/// One direction.
#[derive(Debug)]
pub(crate) struct Queue {
    conditions: Conditions,
    random: u64,
    is_cut: bool,
    /// When the last accepted packet will have been sent.
    free_at: Duration,
    waiting: VecDeque<(Duration, Vec<u8>)>,
    waiting_bytes: u64,
    pub(crate) counts: Counts,
}

impl Queue {
    pub(crate) fn new(conditions: Conditions) -> Queue {
        Queue {
            conditions,
            random: conditions.seed,
            is_cut: false,
            free_at: Duration::ZERO,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            counts: Counts::default(),
        }
    }

    /// Sets the conditions of later packets. The random numbers begin anew, so that earlier packets do not
    /// decide which of these are lost.
    pub(crate) fn change(&mut self, conditions: Conditions) {
        self.conditions = conditions;
        self.random = conditions.seed;
    }

    pub(crate) fn cut(&mut self, is_cut: bool) {
        self.is_cut = is_cut;
        if is_cut {
            self.counts.lost += self.waiting.len() as u64;
            self.waiting.clear();
            self.waiting_bytes = 0;
        }
    }

    /// Accepts or drops a packet that comes at `now`.
    pub(crate) fn offer(&mut self, now: Duration, packet: &[u8]) {
        let bytes = packet.len() as u64;
        self.counts.packets += 1;
        self.counts.bytes += bytes;
        if self.is_cut {
            self.counts.lost += 1;
            return;
        }
        let start = self.free_at.max(now);
        if let Some(rate) = self.conditions.bytes_per_second {
            let rate = rate.max(1);
            let unsent = (start - now).as_secs_f64() * rate as f64;
            if unsent + bytes as f64 > self.conditions.buffer_bytes as f64 {
                self.counts.dropped += 1;
                return;
            }
            self.free_at = start + Duration::from_secs_f64(bytes as f64 / rate as f64);
        } else {
            self.free_at = now;
        }
        // A lost packet has used the link like any other.
        if self.chance() < self.conditions.loss {
            self.counts.lost += 1;
            return;
        }
        if self.waiting_bytes + bytes > UNDER_WAY_BYTES_MAX {
            self.counts.dropped += 1;
            return;
        }
        let jitter = self.conditions.jitter.mul_f64(self.chance());
        let arrival = self.free_at + self.conditions.delay + jitter;
        let arrival = self.waiting.back().map_or(arrival, |(last, _)| arrival.max(*last));
        self.waiting_bytes += bytes;
        self.waiting.push_back((arrival, packet.to_vec()));
    }

    /// The next packet that has arrived by `now`.
    pub(crate) fn due(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.waiting.front()?.0 > now {
            return None;
        }
        let (_, packet) = self.waiting.pop_front()?;
        self.waiting_bytes -= packet.len() as u64;
        Some(packet)
    }

    /// When the next packet arrives.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.waiting.front().map(|(arrival, _)| *arrival)
    }

    /// A random number from 0 to 1, by splitmix64.
    fn chance(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn arrivals(queue: &mut Queue) -> Vec<u64> {
        let mut out = Vec::new();
        while let Some(at) = queue.next_due() {
            assert_eq!(queue.due(at - Duration::from_nanos(1)), None, "not before its time");
            assert!(queue.due(at).is_some());
            out.push(at.as_millis() as u64);
        }
        out
    }

    /// Proves: packets leave one after another at the rate, and arrive a delay later; a pause does not allow
    /// a burst.
    #[test]
    fn rate_and_delay_hold() {
        let conditions =
            Conditions { bytes_per_second: Some(10_000), delay: ms(50), ..Conditions::default() };
        let mut queue = Queue::new(conditions);
        for _ in 0..3 {
            queue.offer(ms(1000), &[0; 1000]);
        }
        queue.offer(ms(9000), &[0; 500]);
        assert_eq!(arrivals(&mut queue), [1150, 1250, 1350, 9100]);
        assert_eq!(queue.counts, Counts { packets: 4, bytes: 3500, lost: 0, dropped: 0 });
    }

    /// Proves: packets that exceed the buffer are dropped, and take none of the link's time.
    #[test]
    fn a_full_buffer_drops() {
        let conditions =
            Conditions { bytes_per_second: Some(1000), buffer_bytes: 3000, ..Conditions::default() };
        let mut queue = Queue::new(conditions);
        for _ in 0..5 {
            queue.offer(ms(0), &[0; 1000]);
        }
        assert_eq!(queue.counts.dropped, 2);
        queue.offer(ms(1000), &[0; 1000]);
        assert_eq!(arrivals(&mut queue), [1000, 2000, 3000, 4000]);
    }

    /// Proves: losses are as frequent as requested and the same for the same seed, and jitter keeps the
    /// order.
    #[test]
    fn losses_and_jitter_are_seeded() {
        let conditions = Conditions { loss: 0.04, jitter: ms(20), delay: ms(10), ..Conditions::default() };
        let run = |seed| {
            let mut queue = Queue::new(Conditions { seed, ..conditions });
            for packet in 0..10_000u64 {
                queue.offer(ms(packet), &packet.to_le_bytes());
            }
            let mut order = Vec::new();
            let mut last = 0;
            while let Some(at) = queue.next_due() {
                let packet = u64::from_le_bytes(queue.due(at).unwrap().try_into().unwrap());
                assert!(at >= ms(packet + 10) && at.as_millis() as u64 >= last);
                last = at.as_millis() as u64;
                order.push(packet);
            }
            assert!(order.is_sorted());
            assert_eq!(order.len() as u64 + queue.counts.lost, 10_000);
            order
        };
        let survivors = run(7);
        assert!((9500..9700).contains(&survivors.len()), "{}", survivors.len());
        assert_eq!(run(7), survivors);
        assert_ne!(run(8), survivors);
    }

    /// Proves: a cut link loses everything, including packets under way, and passes packets again once
    /// restored.
    #[test]
    fn a_cut_link_loses_all() {
        let mut queue = Queue::new(Conditions { delay: ms(100), ..Conditions::default() });
        queue.offer(ms(0), &[0; 10]);
        queue.cut(true);
        queue.offer(ms(1), &[0; 10]);
        assert_eq!((queue.next_due(), queue.counts.lost), (None, 2));
        queue.cut(false);
        queue.offer(ms(2), &[0; 10]);
        assert_eq!(queue.next_due(), Some(ms(102)));
    }

    /// Proves: new conditions apply to later packets, packets under way keep their time and order, and the
    /// counts continue.
    #[test]
    fn conditions_change() {
        let slow = Conditions { bytes_per_second: Some(1000), delay: ms(100), ..Conditions::default() };
        let mut queue = Queue::new(slow);
        queue.offer(ms(0), &[0; 1000]);
        queue.change(Conditions { delay: ms(10), ..Conditions::default() });
        queue.offer(ms(0), &[0; 1000]);
        queue.change(Conditions { loss: 1.0, ..Conditions::default() });
        queue.offer(ms(2000), &[0; 1000]);
        assert_eq!(arrivals(&mut queue), [1100, 1100]);
        assert_eq!(queue.counts, Counts { packets: 3, bytes: 3000, lost: 1, dropped: 0 });
    }
}
