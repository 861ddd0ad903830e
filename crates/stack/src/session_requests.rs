//! Requests of commands to the VFS of a session, through its mount (`holdfast_program_identity::exchange`),
//! and their replies.
//!
//! The VFS carries requests out only in the name of its user, so a request can do what the session may: the
//! administrator, in an own session, sees only their own owners and ACLs. It serves only its session's user
//! id.

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
    /// Proposes a new owner of a file, who gets its content too.
    Give {
        /// The number of the file.
        file: u64,
        /// The proposed owner.
        to: Principal,
    },
    /// Accepts a file that was proposed to this session's user.
    Take(u64),
    /// The blocks of a file, for credentials about it: runs of first block and number.
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
    /// Credentials are in use: the principals for which the session speaks by them, and the restrictions in
    /// words.
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
    /// Whether only one program is admitted, which the helper identifies at each open.
    pub is_program: bool,
    /// Why programs cannot be identified now.
    pub helper_missing: Option<String>,
    /// Opens refused lately: file, process, program, reason.
    pub refused: Vec<(u64, u32, String, String)>,
}

/// The name of a volume's users under their keys: `key:K/` and this.
pub fn volume_name(identity: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*identity))
}
