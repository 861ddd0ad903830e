//! All integration tests of this crate, linked once: `scripts/test only fat::MODULE::`.

mod edges;
mod fuzz;
mod hostile;
mod model;
mod support;
mod tools;
