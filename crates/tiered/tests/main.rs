//! All integration tests of this crate, linked once: `scripts/test only objects::MODULE::`.

mod common;
mod compaction;
mod credentials;
mod outlines;
mod parts;
mod punch;
mod restarts;
mod s3;
mod tiered;
