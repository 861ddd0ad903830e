//! Estimates how fast a mirror is, from its earlier replies.

use std::time::{Duration, Instant};

/// Replies shorter than this measure a mirror's latency; longer ones, its throughput.
const SHORT_BYTES: u64 = 32 << 10;
/// The weight of the latest reply in the estimate.
const WEIGHT: f64 = 0.25;
/// The throughput assumed for a mirror that has sent no long reply yet, in bytes a second.
const BYTES_PER_S_ASSUMED: f64 = 10e6;

/// A running estimate of a mirror's latency and throughput.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speed {
    /// Seconds before the first byte.
    pub latency_s: Option<f64>,
    /// Bytes a second after that.
    pub bytes_per_s: Option<f64>,
    /// When the mirror was last asked.
    pub asked: Option<Instant>,
}

impl Speed {
    /// Counts a reply.
    pub fn record(&mut self, now: Instant, took: Duration, bytes: u64) {
        self.asked = Some(now);
        let took = took.as_secs_f64();
        if bytes < SHORT_BYTES {
            self.latency_s = Some(mixed(self.latency_s, took));
            return;
        }
        // How much of the time was latency is unknown: half is assumed until a short reply measures it.
        let waiting = *self.latency_s.get_or_insert(took / 2.0);
        let sending = (took - waiting).max(took / 10.0).max(1e-6);
        self.bytes_per_s = Some(mixed(self.bytes_per_s, bytes as f64 / sending));
    }

    /// The expected time of an answer with so many bytes, in seconds; `None` for a mirror that was never
    /// measured.
    pub fn expected_s(&self, bytes: u64) -> Option<f64> {
        let latency = self.latency_s?;
        Some(latency + bytes as f64 / self.bytes_per_s.unwrap_or(BYTES_PER_S_ASSUMED))
    }
}

fn mixed(before: Option<f64>, latest: f64) -> f64 {
    before.map_or(latest, |before| before + WEIGHT * (latest - before))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(answers: &[(u64, u64)]) -> Speed {
        let mut speed = Speed::default();
        for (milliseconds, bytes) in answers {
            speed.record(Instant::now(), Duration::from_millis(*milliseconds), *bytes);
        }
        speed
    }

    /// Proves: a near mirror on a slow line is preferred for short answers, and a far one on a fast line for
    /// long ones.
    #[test]
    fn what_is_faster_depends_on_the_length() {
        let near = measured(&[(5, 1000), (1005, 1_000_000)]);
        let far = measured(&[(100, 1000), (200, 10_000_000)]);
        assert!(near.expected_s(1000) < far.expected_s(1000));
        assert!(far.expected_s(10_000_000) < near.expected_s(10_000_000));
        assert_eq!(Speed::default().expected_s(1), None);
    }

    /// Proves: the effect of a slow start fades.
    #[test]
    fn a_slow_start() {
        let mut answers = vec![(5000, 100)];
        answers.extend([(10, 100); 20]);
        assert!(measured(&answers).expected_s(0).expect("measured") < 0.1);
    }
}
