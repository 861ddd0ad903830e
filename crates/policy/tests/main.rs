//! All integration tests of this crate, linked once: `scripts/test only policy::MODULE::`.

mod common;
mod extra;
mod guard;
mod papers_story;
mod table;
