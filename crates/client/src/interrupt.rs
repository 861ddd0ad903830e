//! Interrupts calls that wait.
//!
//! A program that is interrupted or killed while it waits for a server must not wait any longer. The thread
//! that serves its call gives the call an [`Interrupt`] and runs it [`Interrupt::during`]; every wait on that
//! thread then ends soon after any thread raises the interrupt. What the call has requested may still happen:
//! an operation that is signed cannot be taken back.
//!
//! Waits check the flag every [`GLANCE`], so they need not know of each other. Threads that serve no call,
//! such as the engine's, have no flag and cannot be interrupted.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Longest time until an interrupt is noticed.
pub const GLANCE: Duration = Duration::from_millis(50);

thread_local! {
    static CURRENT: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
}

/// A handle by which one call can be interrupted.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<Flag>);

#[derive(Default)]
struct Flag {
    raised: AtomicBool,
    /// The call counts as interrupted as soon as this returns true.
    watch: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl Interrupt {
    /// Interrupts the call.
    pub fn raise(&self) {
        self.0.raised.store(true, Ordering::SeqCst);
    }

    /// Interrupts the call as soon as `is_due` returns true. It is called at every check from now on. Only
    /// the first call counts.
    pub fn watch(&self, is_due: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.0.watch.set(Box::new(is_due));
    }

    fn is_raised(&self) -> bool {
        if !self.0.raised.load(Ordering::SeqCst) && self.0.watch.get().is_some_and(|is_due| is_due()) {
            self.raise();
        }
        self.0.raised.load(Ordering::SeqCst)
    }

    /// Runs a call that this handle can interrupt.
    pub fn during<T>(&self, call: impl FnOnce() -> T) -> T {
        struct Restore(Option<Interrupt>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _restore = Restore(CURRENT.replace(Some(self.clone())));
        call()
    }
}

/// Whether the call that this thread serves was interrupted.
pub fn is_raised() -> bool {
    CURRENT.with_borrow(|current| current.as_ref().is_some_and(Interrupt::is_raised))
}

/// Whether this thread serves a call that can be interrupted.
pub(crate) fn can_be_raised() -> bool {
    CURRENT.with_borrow(Option::is_some)
}

/// Why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Woken {
    /// Something may have changed.
    Notified,
    /// The deadline has passed.
    Late,
    /// The call was interrupted.
    Interrupted,
}

/// Waits on `condition` until it is notified, `deadline` has passed or the call is interrupted.
pub(crate) fn wait<T>(
    condition: &Condvar,
    guard: &mut MutexGuard<'_, T>,
    deadline: Option<Instant>,
) -> Woken {
    loop {
        if is_raised() {
            return Woken::Interrupted;
        }
        let glance = can_be_raised().then(|| Instant::now() + GLANCE);
        let Some(until) = glance.into_iter().chain(deadline).min() else {
            condition.wait(guard);
            return Woken::Notified;
        };
        if !condition.wait_until(guard, until).timed_out() {
            return Woken::Notified;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Woken::Late;
        }
    }
}

/// Locks the mutex; `None` if the call is interrupted first.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    if !can_be_raised() {
        return Some(mutex.lock());
    }
    loop {
        if let Some(guard) = mutex.try_lock_for(GLANCE) {
            return Some(guard);
        }
        if is_raised() {
            return None;
        }
    }
}

/// Receives a message; `None` if the call is interrupted or there is no sender left.
pub(crate) fn receive<T>(receiver: &Receiver<T>) -> Option<T> {
    if !can_be_raised() {
        return receiver.recv().ok();
    }
    loop {
        match receiver.recv_timeout(GLANCE) {
            Ok(value) => return Some(value),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) if is_raised() => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: every kind of wait ends when its call is interrupted, and only then; a call inside another has
    /// its own flag; threads that serve no call are not affected.
    #[test]
    fn waits_end_when_called_off() {
        let interrupt = Interrupt::default();
        let raising = interrupt.clone();
        let started = Instant::now();
        let raiser = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(120));
            raising.raise();
        });
        let (mutex, condition) = (Mutex::new(()), Condvar::new());
        interrupt.during(|| {
            assert_eq!(wait(&condition, &mut mutex.lock(), None), Woken::Interrupted);
            assert!(started.elapsed() >= Duration::from_millis(120));
            let (_sender, receiver) = std::sync::mpsc::channel::<()>();
            assert_eq!(receive(&receiver), None);
            let held = mutex.lock();
            assert!(lock(&mutex).is_none());
            drop(held);
            assert!(lock(&mutex).is_some(), "what need not wait goes on");
            Interrupt::default().during(|| {
                assert!(!is_raised());
                let soon = Instant::now() + Duration::from_millis(10);
                assert_eq!(wait(&condition, &mut mutex.lock(), Some(soon)), Woken::Late);
            });
            assert!(is_raised());
        });
        assert!(!is_raised());
        raiser.join().expect("no panic");
    }

    /// Proves: a watched call is interrupted when its condition becomes true, and stays so.
    #[test]
    fn a_watched_call() {
        let (interrupt, due) = (Interrupt::default(), Arc::new(AtomicBool::new(false)));
        let asked = due.clone();
        interrupt.watch(move || asked.load(Ordering::SeqCst));
        interrupt.during(|| {
            assert!(!is_raised());
            due.store(true, Ordering::SeqCst);
            assert!(is_raised());
            due.store(false, Ordering::SeqCst);
            assert!(is_raised());
        });
    }
}
