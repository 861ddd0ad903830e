//! The clocks that a server uses.

/// The wall clock and a monotonic clock.
pub trait Clock: Send + Sync {
    /// Nanoseconds since 1970.
    fn wall_ns(&self) -> i64;
    /// Milliseconds since an arbitrary moment; never goes back.
    fn monotonic_ms(&self) -> u64;
}
