//! All integration tests of this crate, linked once: `scripts/test only rpc::MODULE::`.

mod link;
mod loopback;
