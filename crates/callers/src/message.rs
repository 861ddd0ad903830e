//! What helper and door say to each other: one borsh value a packet.
//!
//! The door begins with [`FromDoor::Hello`]; the helper answers [`FromHelper::Welcome`] or [`FromHelper::Refused`]. Who is to
//! become a program says [`FromDoor::Start`] instead, and waits for [`FromHelper::Traced`]. Both ends bound what they read by [`PACKET_BYTES_MAX`], and a packet that cannot be read ends the conversation.

use crate::identity::Identity;
use borsh::{BorshDeserialize, BorshSerialize};

/// Version of this conversation.
pub const VERSION: u16 = 2;
/// Longest packet.
pub const PACKET_BYTES_MAX: usize = 16 << 10;

/// From the process of a mount, or from one that is to become a program.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum FromDoor {
    /// This mount wants its callers identified.
    Hello {
        /// [`VERSION`].
        version: u16,
        /// Where it is mounted: an absolute path.
        mountpoint: Vec<u8>,
    },
    /// This process becomes a program next, and is to be known as started clean: the one and only message.
    Start {
        /// [`VERSION`].
        version: u16,
        /// Its descriptor of the program: a sealed file in memory.
        descriptor: u32,
    },
    /// Opens of this inode are to be held up from now on.
    Mark {
        /// The door's number for this request.
        id: u64,
        /// The inode.
        inode: u64,
        /// Not of the inode, a directory, but of what is in it.
        children: bool,
    },
    /// A ticket was taken in.
    Taken {
        /// Which.
        id: u64,
        /// Whether the open may go on. `true` promises nothing: the door judges the open itself.
        goes_on: bool,
    },
}

/// From the helper.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum FromHelper {
    /// It watches.
    Welcome {
        /// Its thread that reads events. The kernel opens each file for that thread too, which must not wait.
        thread: u32,
    },
    /// It does not.
    Refused(String),
    /// It traces the process that is to become a program.
    Traced,
    /// An inode is marked, or why not.
    Marked {
        /// The request.
        id: u64,
        /// What came of it.
        done: Result<(), String>,
    },
    /// A process waits in its open of an inode.
    Ticket {
        /// The helper's number.
        id: u64,
        /// The inode.
        inode: u64,
        /// The process.
        process: u32,
        /// Who it is, or why that cannot be told.
        found: Result<Identity, String>,
    },
    /// The open of a ticket is gone.
    Revoked {
        /// Which.
        id: u64,
    },
}
