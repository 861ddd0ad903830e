//! All integration tests of this crate, linked once: `cargo test -p holdfast-monitor --test monitor MODULE::`.

mod common;
mod contents;
mod guards;
