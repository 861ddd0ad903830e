//! All integration tests of this crate, linked once: `scripts/test only crypto::MODULE::`.

mod digest_and_encoding;
mod keyfile;
