//! Ends a thread that pauses between what it does.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

#[derive(Default)]
pub(super) struct Stop {
    asked: Mutex<bool>,
    told: Condvar,
}

impl Stop {
    /// Asks the thread to end.
    pub fn ask(&self) {
        *self.asked.lock() = true;
        self.told.notify_all();
    }

    /// Whether the thread has been asked to end.
    pub fn is_asked(&self) -> bool {
        *self.asked.lock()
    }

    /// Waits so long, or until the thread is to end; whether it is.
    pub fn pause(&self, pause: Duration) -> bool {
        let mut asked = self.asked.lock();
        if !*asked {
            self.told.wait_for(&mut asked, pause);
        }
        *asked
    }
}
