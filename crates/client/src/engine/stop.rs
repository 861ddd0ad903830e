//! Lets a thread pause between its tasks, and asks it to end.

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

    /// Waits for `pause`, or until the thread is asked to end; returns whether it is.
    pub fn pause(&self, pause: Duration) -> bool {
        let mut asked = self.asked.lock();
        if !*asked {
            self.told.wait_for(&mut asked, pause);
        }
        *asked
    }
}
