//! What a client keeps and gives so that a lost server can be rebuilt: the leaves of the log of updates beside its state
//! ([`leaves`]), and, on demand, all that this machine knows of a file system in one file ([`bundle`]). [`losses`] says
//! which files are not whole when blocks are missing.
//!
//! Attack answered: none by itself. Whoever rebuilds believes nothing in a bundle: views are checked as clients check
//! them, blocks and leaves by their digests (`holdfast_protocol::rebuild`, `docs/internals/forks.md`).

pub mod bundle;
pub mod leaves;
pub mod losses;
