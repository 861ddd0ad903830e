//! Requests of commands to the VFS of a session, through its mount (`holdfast_program_identity::exchange`),
//! and their replies.
//!
//! The VFS carries out requests only in the name of its user, so a request can do what the session may: the
//! administrator, in a session of their own, sees only their own owners and ACLs. It accepts requests only
//! from its session's user id.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_access::{Access, Acl, Principal};

/// Most changes in one request.
pub const CHANGES_MAX: usize = 64;
/// Most credentials in one request.
pub const CREDENTIALS_MAX: usize = 16;

/// A request. Files are identified by inode number, as `stat` reports it.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum SessionRequest {
    /// Returns facts about the session.
    Session,
    /// Returns the owner and the ACL of a file, to its owner.
    Label(u64),
    /// Sets or removes entries of a file's ACL.
    Change {
        /// The number of the file.
        file: u64,
        /// Principals and their new access, applied in this order; `None` removes the entry.
        changes: Vec<(Principal, Option<Access>)>,
    },
    /// Proposes a new owner of a file, who gets its content too.
    Give {
        /// The number of the file.
        file: u64,
        /// The proposed owner.
        to: Principal,
    },
    /// Accepts a file that was proposed to this session's user.
    Take(u64),
    /// Returns the blocks of a file, for credentials about it, as runs of first block and number.
    Blocks(u64),
    /// Presents signed credentials, which this session will use, or which revoke others.
    Present(Vec<Vec<u8>>),
}

/// A reply of the VFS.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum SessionReply {
    /// The request was carried out.
    Done,
    /// The facts about the session.
    Session(SessionFacts),
    /// Owner and ACL.
    Label {
        /// The owner, who may change the ACL.
        owner: Principal,
        /// The ACL.
        acl: Acl,
        /// Whether other blocks of the file have another owner or ACL.
        is_mixed: bool,
    },
    /// Runs of blocks: the first block, and their number.
    Blocks(Vec<(u64, u64)>),
    /// The credentials are in use. Lists the principals for which the session now speaks, with the
    /// restrictions in words.
    Speaks(Vec<(Principal, String)>),
    /// The request is refused, for this reason.
    Refused(String),
}

/// Facts about a session.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SessionFacts {
    /// The user or program whose session it is.
    pub user: Principal,
    /// The identity of the volume, after which names under keys are called.
    pub volume: [u8; 16],
    /// Other principals in whose name the session may speak.
    pub others: Vec<Principal>,
    /// Whether only one program is admitted, which the helper identifies at each open.
    pub is_program: bool,
    /// Why programs cannot be identified now.
    pub helper_missing: Option<String>,
    /// Opens that were refused lately: file, process, program, reason.
    pub refused: Vec<(u64, u32, String, String)>,
}

/// The name of a volume's users under their keys, as in `key:K/NAME`.
pub fn volume_name(identity: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*identity))
}
