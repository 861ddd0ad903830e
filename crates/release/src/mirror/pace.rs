//! Enforces a lowest speed for what a mirror sends.
//!
//! A deadline for each read does not help against a mirror that sends one byte now and then, and a deadline
//! for the whole answer must be long if the answer is. So the bytes are counted where they arrive, from each
//! request on. This is done below TLS, which would wait for the rest of a record, however slowly it arrives.

use super::Patience;
use std::time::{Duration, Instant};
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};
use ureq::{Error, Timeout};

/// Puts a [`PacedTransport`] around each connection.
#[derive(Debug)]
pub struct PaceConnector(pub Patience);

impl<In: Transport> Connector<In> for PaceConnector {
    type Out = PacedTransport<In>;

    fn connect(
        &self,
        _: &ConnectionDetails,
        chained: Option<In>,
    ) -> Result<Option<PacedTransport<In>>, Error> {
        Ok(chained.map(|inner| PacedTransport { inner, pace: Pace::new(self.0, Instant::now()) }))
    }
}

/// A connection that is abandoned when it is too slow.
#[derive(Debug)]
pub struct PacedTransport<In> {
    inner: In,
    pace: Pace,
}

impl<In: Transport> Transport for PacedTransport<In> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.pace = Pace::new(self.pace.patience, Instant::now());
        self.inner.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let before = self.inner.buffers().input().len();
        let progress = self.inner.await_input(timeout)?;
        let arrived = self.inner.buffers().input().len().saturating_sub(before);
        match self.pace.arrived(arrived as u64, Instant::now()) {
            true => Ok(progress),
            false => Err(Error::Timeout(Timeout::PerRead)),
        }
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

/// Counts the bytes that have arrived since a request.
#[derive(Clone, Copy, Debug)]
struct Pace {
    patience: Patience,
    since: Instant,
    bytes: u64,
}

impl Pace {
    fn new(patience: Patience, since: Instant) -> Pace {
        Pace { patience, since, bytes: 0 }
    }

    /// Counts bytes that arrived. Returns whether the connection is still fast enough.
    fn arrived(&mut self, bytes: u64, now: Instant) -> bool {
        self.bytes += bytes;
        let due = Duration::from_secs_f64(self.bytes as f64 / self.patience.bytes_per_s_min as f64);
        now.saturating_duration_since(self.since) <= self.patience.answer + due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a transfer that keeps the pace may take as long as needed; one that is too slow is abandoned
    /// soon after the grace period.
    #[test]
    fn pace() {
        let patience =
            Patience { answer: Duration::from_secs(10), bytes_per_s_min: 1000, ..Patience::default() };
        let start = Instant::now();
        let mut steady = Pace::new(patience, start);
        assert!((1..=3600).all(|second| steady.arrived(1000, start + Duration::from_secs(second))));
        let mut dripping = Pace::new(patience, start);
        let survived =
            (1..).take_while(|second| dripping.arrived(1, start + Duration::from_secs(*second))).count();
        assert_eq!(survived, 10);
    }
}
