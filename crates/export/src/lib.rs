//! Disks for other programs and machines: a server of Network Block Devices (NBD), as `nbd-client`, qemu and libnbd
//! speak it. The protocol is the fixed newstyle one of <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.
//!
//! ```text
//! listener ─ a thread for each client ─ negotiation ─ requests: writes at once, all else to a few workers ─ replies
//! ```
//!
//! What it answers for:
//! - whoever connects can cost memory and threads up to [`Limits`], and its own connection; nothing panics on its bytes;
//! - a client that stops in the middle of something is hung up on; one that is merely idle is not;
//! - a block that is refused is an error of the request that reads it, with its place, never zeroes;
//! - what a flush answers for was written by whichever connection: it is one disk, so several are safe.
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
