//! All integration tests of this crate, linked once: `scripts/test only access::MODULE::`.

mod aliases;
mod common;
mod formats;
mod lists;
mod model;
mod reachable;
mod rules;
mod text;
