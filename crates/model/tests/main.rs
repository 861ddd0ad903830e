//! All integration tests of this crate, linked once: `scripts/test only model::MODULE::`.

mod honest;
mod lying;
mod shortcuts;
