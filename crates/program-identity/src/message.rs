//! The messages between helper and guard: one borsh value in each packet.
//!
//! The guard begins with [`FromGuard::Hello`]; the helper answers [`FromHelper::Welcome`] or
//! [`FromHelper::Refused`]. A process that will become a program sends [`FromGuard::Start`] instead, and
//! waits for [`FromHelper::Traced`]. Both ends read at most [`PACKET_BYTES_MAX`], and a malformed packet ends
//! the conversation.

use crate::identity::Identity;
use borsh::{BorshDeserialize, BorshSerialize};

/// Version of this protocol.
pub const VERSION: u16 = 2;
/// Longest packet, in bytes.
pub const PACKET_BYTES_MAX: usize = 16 << 10;

/// Message from the process of a mount, or from a process that will become a program.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum FromGuard {
    /// This mount requests that the programs which open its files are identified.
    Hello {
        /// The protocol version, [`VERSION`].
        version: u16,
        /// The absolute path of the mount point.
        mountpoint: Vec<u8>,
    },
    /// This process becomes a program next, and asks to count as started clean. It sends no other message.
    Start {
        /// The protocol version, [`VERSION`].
        version: u16,
        /// The number of its descriptor of the program: a sealed file in memory.
        descriptor: u32,
    },
    /// Opens of this inode are to be delayed from now on.
    Mark {
        /// The guard's number for this request.
        id: u64,
        /// The inode.
        inode: u64,
        /// Whether to watch the files in the inode, a directory, instead of the inode.
        children: bool,
    },
    /// The guard has received a ticket.
    TicketReceived {
        /// The number of the ticket.
        id: u64,
        /// Whether the open may continue. `true` promises nothing: the guard judges the open itself.
        goes_on: bool,
    },
}

/// Message from the helper to the guard, or to the process that will become a program.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum FromHelper {
    /// The helper watches this mount.
    Welcome {
        /// The helper's thread that reads events. The kernel opens each file for that thread too, which must
        /// not wait.
        thread: u32,
    },
    /// The helper refuses, for this reason.
    Refused(String),
    /// The helper traces the process that will become a program.
    Traced,
    /// An inode is marked, or why not.
    Marked {
        /// The number of the guard's request.
        id: u64,
        /// Whether it was marked, or why not.
        done: Result<(), String>,
    },
    /// A process waits in its open of an inode.
    Ticket {
        /// The helper's number for this ticket.
        id: u64,
        /// The inode.
        inode: u64,
        /// The process that opens.
        process: u32,
        /// The process's identity, or why it could not be identified.
        found: Result<Identity, String>,
    },
    /// The process that waited in the open of a ticket has gone.
    Revoked {
        /// The number of the ticket.
        id: u64,
    },
}
