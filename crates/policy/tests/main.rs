//! All integration tests of this crate, linked once: `cargo test -p holdfast-policy --test policy MODULE::`.

mod common;
mod guard;
mod kept;
mod papers_story;
mod table;
