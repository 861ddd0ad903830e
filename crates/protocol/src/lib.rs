//! Consistency (SUNDR section 3.4): update certificates, version structures, and the pure state machines of
//! client and server. They only decide: no clock, no randomness, no files, no sockets; time and random
//! numbers are arguments.
//!
//! What is signed, and what the signatures mean: [`certificate`] and [`structure`]. What a client checks
//! before it believes a server: `check`. The server: `sequencer`. The client, one operation after the other:
//! `signer`. What a device's key may sign: [`mandate`]. What the superuser signs off-line: [`warrant`]. What
//! signatures prove to a third party: [`judge`]. Past states, and how a client verifies them: [`history`].
//! How a lost server's order is rebuilt from its clients: [`rebuild`]. What clients tell each other without a
//! server: [`peers`]. The protocol of block servers on other machines: [`block_server`]. Advisory locks and
//! leases, which are not signed: [`locks`] and [`leases`].
#![forbid(unsafe_code)]

pub mod alarm;
pub mod block_server;
pub mod certificate;
pub mod check;
pub mod epoch;
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
mod statuses;
pub mod structure;
pub mod vector;
pub mod warrant;

#[cfg(test)]
extern crate self as holdfast_protocol;
#[cfg(test)]
mod testing;
