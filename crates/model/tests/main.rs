//! All integration tests of this crate, linked once: `cargo test -p holdfast-model --test model MODULE::`.

mod honest;
mod lying;
mod shortcuts;
