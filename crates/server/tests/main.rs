//! All integration tests of this crate, linked once: `scripts/test only server::MODULE::`.

mod block_stores;
mod common;
mod history;
mod parcels;
mod privsep;
mod process;
mod quotas;
mod server_core;
mod witnesses;
