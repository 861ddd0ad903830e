//! What a client stores and provides so that a lost server can be rebuilt: the leaves of the log of updates
//! beside its state ([`leaves`]) and, on demand, everything that this machine has of a file system in one
//! file ([`bundle`]). [`losses`] finds the files that are incomplete when blocks are missing.
//!
//! Attack answered: none here. A rebuild trusts nothing in a bundle: views are checked as clients check them,
//! blocks and leaves by their digests (`holdfast_protocol::rebuild`, `docs/internals/forks.md`).

pub mod bundle;
pub mod leaves;
pub mod losses;
