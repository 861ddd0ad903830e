//! All integration tests of this crate, linked once: `cargo test -p holdfast-log --test log MODULE::`.

mod behaviour;
mod power_loss;
mod ring_model;
