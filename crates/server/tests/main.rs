//! All integration tests of this crate, linked once: `cargo test -p holdfast-server --test server MODULE::`.

mod apart;
mod block_stores;
mod common;
mod history;
mod host;
mod parcels;
mod process;
mod quotas;
mod witnesses;
