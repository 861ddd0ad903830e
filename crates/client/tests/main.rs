//! All integration tests of this crate, linked once: `scripts/test only client::MODULE::`.

mod common;
mod engine;
mod faults;
mod files;
mod past;
mod server;
mod transfer;
mod tree_model;
mod witnesses;
