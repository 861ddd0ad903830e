//! Rules for programs: which program of this machine may open a file, and which process opens it.
//!
//! Three parts:
//! - *Rules* ([`rules`], [`manifest`]; pure) say which programs may read or write a file. They are stored
//!   with the file.
//! - The *helper* ([`helper`], as root) identifies the process that opens a file with rules while the
//!   kernel delays that open (fanotify permission events with a pidfd), and sends the mount's process a
//!   *ticket*.
//! - The *guard* ([`guard`], in the mount's process) admits an open of a file with rules only for an unused
//!   ticket for that very process, from a helper that runs as root, and only if the rules name the process's
//!   program.
//!
//! Everything fails closed: without helper, ticket or readable rules a file with rules is refused. The helper
//! decides nothing about files, and the guard trusts nothing that the opener itself says.
//!
//! Not answered: another machine, other software, or a holder of the device's key or of the mount's cache;
//! `docs/programs.md` explains this.
#![deny(unsafe_code)]

pub mod exchange;
pub mod guard;
pub mod hashes;
pub mod helper;
pub mod identify;
pub mod identity;
mod kernel;
pub mod launch;
pub mod manifest;
pub mod message;
pub mod process;
pub mod rules;
pub mod seqpacket;
pub mod starts;
pub mod tickets;

/// The helper's default socket.
pub const SOCKET: &str = "/run/holdfast/callers";
