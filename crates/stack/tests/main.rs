//! All integration tests of this crate, linked once: `scripts/test only stack::MODULE::`.

mod bad_input;
mod common;
mod killed;
mod loading;
mod red_team;
mod stack;
