//! All integration tests of this crate, linked once: `scripts/test only monitor::MODULE::`.

mod common;
mod contents;
mod guards;
