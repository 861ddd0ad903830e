//! Consistency (SUNDR section 3.4): update certificates, version structures, and the pure machines of both
//! sides. Decisions only: no clock, no randomness, no files, no sockets; time and numbers are arguments.
//!
//! What is signed, and what the signatures mean, is in [`certificate`] and [`structure`]; what a client checks
//! before it believes a server is in `check`; the server's side is in `sequencer`; the client's life of one
//! operation is in `signer`; what a device's key may be used for is in [`mandate`]; what the superuser signs off-line is in
//! [`warrant`]; what signatures prove to a third party is in [`judge`]; what is kept of earlier states, and what a client
//! checks before it believes one, is in [`history`]; what a lost server's order was, from what its clients know, is in
//! [`rebuild`]; what clients that meet without a server tell each other is in [`peers`]; what a block server on another
//! machine is told is in [`block_server`]. Advisory locks and leases, which are not signed, are in [`locks`] and [`leases`].
#![forbid(unsafe_code)]

pub mod alarm;
pub mod block_server;
pub mod certificate;
pub mod check;
pub mod epoch;
pub mod fates;
pub mod floor;
mod handles;
pub mod history;
pub mod judge;
pub mod leases;
pub mod locks;
pub mod log_tree;
pub mod mandate;
pub mod members;
pub mod message;
pub mod order;
pub mod packed;
pub mod peers;
pub mod rebuild;
pub mod restore;
pub mod sequencer;
pub mod signed;
pub mod signer;
pub mod structure;
pub mod vector;
pub mod warrant;

#[cfg(test)]
extern crate self as holdfast_protocol;
#[cfg(test)]
mod testing;
