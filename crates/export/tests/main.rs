//! All integration tests of this crate, linked once: `cargo test -p holdfast-export --test export MODULE::`.

mod clients;
mod common;
mod hostile;
