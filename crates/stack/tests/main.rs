//! All integration tests of this crate, linked once: `cargo test -p holdfast-stack --test stack MODULE::`.

mod bad_input;
mod common;
mod killed;
mod loading;
mod red_team;
mod stack;
