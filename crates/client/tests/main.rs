//! All integration tests of this crate, linked once: `cargo test -p holdfast-client --test client MODULE::`.

mod common;
mod engine;
mod faults;
mod files;
mod past;
mod server;
mod transfer;
mod tree_model;
mod witnesses;
