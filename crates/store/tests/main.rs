//! All integration tests of this crate, linked once: `scripts/test only store::MODULE::`.

mod charges;
mod collect;
mod common;
mod faults;
mod golden;
mod holds;
mod inventory;
mod power_loss;
mod retain;
mod thin;
mod window;
