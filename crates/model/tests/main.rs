//! All integration tests of this crate, linked once: `scripts/test only model::MODULE::`.

mod honest;
mod leases;
mod lying;
mod shortcuts;
