//! All integration tests of this crate, linked once: `cargo test -p holdfast-fat --test fat MODULE::`.

mod edges;
mod fuzz;
mod hostile;
mod model;
mod support;
mod tools;
