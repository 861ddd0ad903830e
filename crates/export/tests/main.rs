//! All integration tests of this crate, linked once: `scripts/test only export::MODULE::`.

mod clients;
mod common;
mod hostile;
