//! All integration tests of this crate, linked once: `scripts/test only server::MODULE::`.

mod apart;
mod block_stores;
mod common;
mod history;
mod host;
mod parcels;
mod process;
mod quotas;
mod witnesses;
