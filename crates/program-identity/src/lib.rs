//! Rules for programs: which program of this machine may open a file, and who it is that opens it.
//!
//! Three parts, with one trust between them:
//! - *rules* ([`rules`], [`manifest`]; pure) say which programs may read or write a file. They are stored with it.
//! - the *helper* ([`helper`], as root) identifies whoever opens a ruled file while the kernel keeps that open
//!   waiting (fanotify permission events with a pidfd), and tells the mount's process by a *ticket*.
//! - the *guard* ([`guard`], in the mount's process) lets an open of a ruled file through only for a ticket of the very
//!   process that opens, unused, of a helper that runs as root, and only if the rules name its program.
//!
//! Everything fails closed: without helper, ticket or readable rules a ruled file is refused. The helper decides
//! nothing about files, and the guard believes no word of the opener's own.
//!
//! Not answered: another machine, other software, or whoever has the key of the device or the cache of the mount;
//! `docs/programs.md` says what this means.
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

/// Where the helper listens by default.
pub const SOCKET: &str = "/run/holdfast/callers";
