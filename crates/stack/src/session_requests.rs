//! Requests of commands to the VFS of a session, through its mount (`holdfast_program_identity::exchange`), and its
//! replies.
//!
//! The VFS carries requests out in the name of its user and of nobody else, so a request can do what its session may:
//! the administrator, in a session of their own, sees no owner and no ACL but their own. It serves its session's user
//! id only.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_access::{Access, Acl, Principal};

/// Most changes in one request.
pub const CHANGES_MAX: usize = 64;
/// Most credentials in one request.
pub const CREDENTIALS_MAX: usize = 16;

/// A request. Files are numbered as `stat` numbers them.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum SessionRequest {
    /// Returns whose session it is.
    Session,
    /// The owner and the ACL of a file, for its owner.
    Label(u64),
    /// Entries of a file's ACL set, or, without access, taken off.
    Change {
        /// The number of the file.
        file: u64,
        /// Principals and their new access, applied in this order; `None` removes the entry.
        changes: Vec<(Principal, Option<Access>)>,
    },
    /// A file proposed to a new owner, with what is in it.
    Give {
        /// The number of the file.
        file: u64,
        /// The proposed owner.
        to: Principal,
    },
    /// A file taken that was proposed to this session's user.
    Take(u64),
    /// Where a file is, for credentials about it: first blocks and how many.
    Blocks(u64),
    /// Signed credentials, to be used by this session, or that end others.
    Present(Vec<Vec<u8>>),
}

/// A reply of the VFS.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum SessionReply {
    /// The request was carried out.
    Done,
    /// The facts about the session.
    Session(SessionFacts),
    /// Owner and ACL. `is_mixed`: not all blocks of the file have the same, these are those of its first.
    Label {
        /// The owner, who may change the ACL.
        owner: Principal,
        /// The ACL.
        acl: Acl,
        /// Whether other blocks of the file have another owner or ACL.
        is_mixed: bool,
    },
    /// Runs of blocks: the first, and how many.
    Blocks(Vec<(u64, u64)>),
    /// Credentials are in use: for whom the session speaks by them, and with which restrictions in words.
    Speaks(Vec<(Principal, String)>),
    /// The request is refused, for this reason.
    Refused(String),
}

/// Facts about a session.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SessionFacts {
    /// The user or program whose session it is.
    pub user: Principal,
    /// The volume: names under keys for it are called after this.
    pub volume: [u8; 16],
    /// Other principals in whose name the session may speak.
    pub others: Vec<Principal>,
    /// Whether only a program is let in, which the helper identifies at each open.
    pub is_program: bool,
    /// Why programs cannot be identified now.
    pub helper_missing: Option<String>,
    /// Opens refused lately: file, process, program, reason.
    pub refused: Vec<(u64, u32, String, String)>,
}

/// The name that a volume's users have under their keys: `key:K/` and this.
pub fn volume_name(identity: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*identity))
}
