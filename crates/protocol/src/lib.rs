//! Consistency (SUNDR section 3.4): update certificates, version structures, and the pure machines of both
//! sides. Decisions only: no clock, no randomness, no files, no sockets; time and numbers are arguments.
//!
//! What is signed, and what the signatures mean, is in [`certificate`] and [`structure`]; what a client checks
//! before it believes a server is in `check`; the server's side is in `sequencer`; the client's life of one
//! operation is in `signer`.
#![forbid(unsafe_code)]

pub mod certificate;
pub mod message;
pub mod signed;
pub mod structure;
pub mod vector;
