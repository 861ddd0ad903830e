//! Disks for other programs and machines: a server of Network Block Devices (NBD), as `nbd-client`, qemu and
//! libnbd speak it. The protocol is the fixed newstyle one of
//! <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.
//!
//! ```text
//! listener ─ a thread for each client ─ negotiation ─ requests: writes at once, all else to a few workers ─ replies
//! ```
//!
//! What it guarantees:
//! - A client can cost memory and threads up to [`Limits`], and its own connection. No bytes from it cause a
//!   panic.
//! - A client that stops in the middle of a request or reply is disconnected; one that is merely idle is not.
//! - If a block is refused, the request that reads it fails with the block's position; it never returns
//!   zeroes.
//! - A flush covers all writes that were answered, on whatever connection: it is one disk, so several
//!   connections are safe.
#![forbid(unsafe_code)]

mod address;
mod connection;
mod negotiation;
mod request;
mod server;
mod socket;
mod wire;

pub use address::{Address, BadAddress};
pub use server::{Export, Limits, Server, StartError};
pub use wire::{Kind, REQUEST, REQUEST_BYTES, Request};
