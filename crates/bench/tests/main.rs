//! All integration tests of this crate, linked once: `scripts/test only bench::MODULE::`.

mod plot;
mod stack;
