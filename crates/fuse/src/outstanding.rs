//! Requests that are being answered, so that the kernel can call one off.
//!
//! The kernel asks for that whenever a program gets a signal. Programs do not expect calls on files to be
//! interrupted by signals that they catch (timers, say): a database takes a sync that fails for a failed disk. So,
//! as with NFS, only a signal that ends the program calls its request off, but for waits for locks, which any signal
//! ends. The kernel tells only of the first signal; from then on whoever waits looks whether the program is dying.

use holdfast_client::interrupt::Interrupt;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tracing::Span;

type Calls = Arc<Mutex<HashMap<u64, (Interrupt, Cancellation)>>>;

/// What cancels a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cancellation {
    /// A signal that ends the program, of which this is a thread.
    ToDeath(u32),
    /// Any signal.
    ToAnySignal,
}

/// The requests not answered yet, by the kernel's number.
#[derive(Default)]
pub(crate) struct Outstanding {
    calls: Calls,
}

impl Outstanding {
    /// Notes a request until the result is dropped. `span` is what the request is called in a trace.
    pub(crate) fn begin(&self, unique: u64, yields: Cancellation, span: Span) -> Call {
        let interrupt = Interrupt::default();
        self.calls.lock().insert(unique, (interrupt.clone(), yields));
        Call { calls: Arc::clone(&self.calls), unique, interrupt, span }
    }

    /// Cancels a request whose caller has got a signal; `false` if there is no request of this number.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let Some((call, yields)) = self.calls.lock().get(&unique).cloned() else { return false };
        match yields {
            // A program whose threads have no numbers here cannot be looked at.
            Cancellation::ToAnySignal | Cancellation::ToDeath(0) => call.raise(),
            Cancellation::ToDeath(thread) => call.watch(move || is_dying(thread)),
        }
        true
    }
}

/// Whether a signal is pending that will end a thread, or it is gone. Reads /proc, which asks no file system.
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

    /// Proves: a request can be called off before and while it is answered, not after; others are not concerned.
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

    /// Proves: a request that yields to death only goes on until its program is gone.
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
