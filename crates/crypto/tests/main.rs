//! All integration tests of this crate, linked once: `cargo test -p holdfast-crypto --test crypto MODULE::`.

mod digest_and_encoding;
mod keyfile;
