//! Requests that are being answered, so that the kernel can cancel them.
//!
//! The kernel asks for that whenever a program gets a signal. Programs do not expect calls on files to be
//! interrupted by signals that they catch (timers, for example): a database takes a failed sync for a failed
//! disk. So, as with NFS, a request is cancelled only by a signal that ends the program; a wait for a lock is
//! cancelled by any signal. The kernel reports only the first signal. From then on, the waiting thread checks
//! whether the program is dying.

use holdfast_client::interrupt::Interrupt;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tracing::Span;

type Calls = Arc<Mutex<HashMap<u64, (Interrupt, Cancellation)>>>;

/// Which signals cancel a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cancellation {
    /// A signal that ends the program with this thread.
    ToDeath(u32),
    /// Any signal.
    ToAnySignal,
}

/// The requests that have not been answered yet, by the kernel's number.
#[derive(Default)]
pub(crate) struct Outstanding {
    calls: Calls,
}

impl Outstanding {
    /// Notes a request until the result is dropped. `span` is the request's span in a trace.
    pub(crate) fn begin(&self, unique: u64, yields: Cancellation, span: Span) -> Call {
        let interrupt = Interrupt::default();
        self.calls.lock().insert(unique, (interrupt.clone(), yields));
        Call { calls: Arc::clone(&self.calls), unique, interrupt, span }
    }

    /// Cancels a request whose program has received a signal. Returns `false` if there is no request with
    /// this number.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let Some((call, yields)) = self.calls.lock().get(&unique).cloned() else { return false };
        match yields {
            // A program whose threads have no numbers in this PID namespace cannot be examined.
            Cancellation::ToAnySignal | Cancellation::ToDeath(0) => call.raise(),
            Cancellation::ToDeath(thread) => call.watch(move || is_dying(thread)),
        }
        true
    }
}

/// Whether a thread has ended, or a signal is pending that will end it. Reads /proc, which needs no other
/// file system.
fn is_dying(thread: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{thread}/status")) else { return true };
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
    };
    let bit = |signal: i32| 1_u64 << (signal - 1);
    let harmless = [
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGURG,
        libc::SIGWINCH,
    ];
    let harmless = harmless.into_iter().map(bit).fold(0, |all, one| all | one);
    let held_off = set("SigBlk") | set("SigIgn") | set("SigCgt");
    let deadly = !(held_off | harmless) | bit(libc::SIGKILL);
    (set("SigPnd") | set("ShdPnd")) & deadly != 0
}

/// A request that has not been answered.
pub(crate) struct Call {
    calls: Calls,
    unique: u64,
    interrupt: Interrupt,
    span: Span,
}

impl Call {
    /// Runs the answer to the request.
    pub(crate) fn run(self, answer: impl FnOnce()) {
        self.span.in_scope(|| self.interrupt.during(answer));
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

    /// Proves: a request can be cancelled before and while it is answered, not after; other requests are not
    /// affected.
    #[test]
    fn requests_are_called_off() {
        let outstanding = Outstanding::default();
        let begin = |unique| outstanding.begin(unique, Cancellation::ToAnySignal, Span::none());
        let (early, other) = (begin(1), begin(2));
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

    /// Proves: a request that only death cancels goes on until its program is gone.
    #[test]
    fn only_death_calls_off() {
        let mut program = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep runs");
        let outstanding = Outstanding::default();
        let call = outstanding.begin(1, Cancellation::ToDeath(program.id()), Span::none());
        assert!(outstanding.interrupt(1));
        call.run(|| {
            assert!(!is_raised());
            program.kill().expect("a child");
            program.wait().expect("a child");
            assert!(is_raised());
        });
        assert!(!is_dying(std::process::id()));
    }
}
