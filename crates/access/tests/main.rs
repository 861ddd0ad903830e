//! All integration tests of this crate, linked once: `cargo test -p holdfast-access --test access MODULE::`.

mod aliases;
mod common;
mod formats;
mod lists;
mod model;
mod reachable;
mod rules;
mod text;
