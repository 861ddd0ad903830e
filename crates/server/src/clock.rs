//! The clocks that a server goes by.

/// The wall clock and a monotonic clock.
pub trait Clock: Send + Sync {
    /// Nanoseconds since 1970.
    fn wall_ns(&self) -> i64;
    /// Milliseconds since some moment; never goes back.
    fn monotonic_ms(&self) -> u64;
}
