//! All integration tests of this crate, linked once: `scripts/test only policy::MODULE::`.

mod common;
mod guard;
mod kept;
mod papers_story;
mod table;
