//! Requests that are being answered, so that the kernel can call one off.

use holdfast_client::interrupt::Interrupt;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

type Calls = Arc<Mutex<HashMap<u64, Interrupt>>>;

/// The requests not answered yet, by the kernel's number.
#[derive(Default)]
pub(crate) struct Outstanding {
    calls: Calls,
}

impl Outstanding {
    /// Notes a request until the result is dropped.
    pub(crate) fn begin(&self, unique: u64) -> Call {
        let interrupt = Interrupt::default();
        self.calls.lock().insert(unique, interrupt.clone());
        Call { calls: Arc::clone(&self.calls), unique, interrupt }
    }

    /// Calls a request off; `false` if there is none of this number.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let call = self.calls.lock().get(&unique).cloned();
        call.inspect(Interrupt::raise).is_some()
    }
}

/// One request on its way.
pub(crate) struct Call {
    calls: Calls,
    unique: u64,
    interrupt: Interrupt,
}

impl Call {
    /// Answers it.
    pub(crate) fn run(self, answer: impl FnOnce()) {
        self.interrupt.during(answer);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.lock().remove(&self.unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_client::interrupt::is_raised;

    /// Proves: a request can be called off before and while it is answered, not after; others are not concerned.
    #[test]
    fn requests_are_called_off() {
        let outstanding = Outstanding::default();
        let (early, other) = (outstanding.begin(1), outstanding.begin(2));
        assert!(outstanding.interrupt(1));
        early.run(|| assert!(is_raised()));
        assert!(!outstanding.interrupt(1));
        other.run(|| {
            assert!(!is_raised());
            assert!(outstanding.interrupt(2));
            assert!(is_raised());
        });
        assert!(outstanding.calls.lock().is_empty());
    }
}
