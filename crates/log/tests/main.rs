//! All integration tests of this crate, linked once: `scripts/test only log::MODULE::`.

mod behaviour;
mod power_loss;
mod ring_model;
