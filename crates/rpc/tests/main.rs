//! All integration tests of this crate, linked once: `cargo test -p holdfast-rpc --test rpc MODULE::`.

mod link;
mod loopback;
