//! Growing pauses between attempts at what fails for now.

use std::time::Duration;

/// Pauses, each twice as long as the one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Pauses {
    /// Pauses that grow from the first to the longest.
    pub const fn new(first: Duration, longest: Duration) -> Pauses {
        Pauses { first, longest, next: first }
    }

    /// The pause after the next attempt that fails, without counting that attempt.
    pub fn peek(&self) -> Duration {
        self.next
    }

    /// The pause after an attempt that has failed.
    pub fn after_failure(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        pause
    }

    /// Begins with the first pause again, after an attempt that has not failed.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: pauses double up to the longest, and begin anew after a success.
    #[test]
    fn pauses_double() {
        let mut pauses = Pauses::new(Duration::from_millis(20), Duration::from_millis(70));
        let taken = [(); 4].map(|()| pauses.after_failure().as_millis());
        assert_eq!(taken, [20, 40, 70, 70]);
        pauses.reset();
        assert_eq!(pauses.peek(), Duration::from_millis(20));
    }
}
