//! What tests of all crates share: waiting for what must happen, incompressible bytes, ports that no other test uses,
//! and commands that are run to their end.
//!
//! A test's verdict must not depend on how fast the machine is. So there is one limit for everything that is waited for,
//! [`PATIENCE`], far above what even a busy machine needs; and "nothing happens" is shown by an event that can only come
//! after what must not happen, not by waiting for a while. `docs/internals/testing.md` has the rules.

#![forbid(unsafe_code)]

mod command;
mod port;

pub use command::{ended, run, text, unmount};
pub use port::free_port;

use std::time::{Duration, Instant};

/// How long a test waits for something that must happen before it fails. Less than the limit that `scripts/run-tests`
/// sets for a whole test, so that the failure says what did not happen.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `holds`, asking every 20 ms. Panics with `what` after [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    eventually_some(what, || holds().then_some(()))
}

/// Waits until `attempt` has a value and returns it. Panics with `what` after [`PATIENCE`].
#[track_caller]
pub fn eventually_some<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "did not happen within {} s: {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Bytes that neither compress nor repeat: the same for the same seed, unrelated for another (SplitMix64).
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0xd134_2543_de82_ef95);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(mixed ^ mixed >> 31).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A number that the environment may set, for longer runs of a test.
///
/// # Panics
/// If the variable is set to something that is no number.
pub fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}
