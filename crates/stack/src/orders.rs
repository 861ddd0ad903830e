//! What a command says to the VFS of a session, through its mount (`holdfast_callers::exchange`), and what it hears.
//!
//! The VFS carries orders out in the name of its user and of nobody else, so an order can do what its session may: the
//! administrator, in a session of their own, sees no owner and no ACL but their own. It obeys its session's user id only.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_access::{Access, Acl, Principal};

/// Most changes in one order.
pub const CHANGES_MAX: usize = 64;
/// Most credentials in one order.
pub const CREDENTIALS_MAX: usize = 16;

/// An order. Files are numbered as `stat` numbers them.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Order {
    /// Whose session it is.
    Session,
    /// The owner and the ACL of a file, for its owner.
    Label(u64),
    /// Entries of a file's ACL set, or, without access, taken off.
    Change {
        /// Which.
        file: u64,
        /// In this order.
        changes: Vec<(Principal, Option<Access>)>,
    },
    /// A file proposed to a new owner, with what is in it.
    Give {
        /// Which.
        file: u64,
        /// To whom.
        to: Principal,
    },
    /// A file taken that was proposed to this session's user.
    Take(u64),
    /// Where a file is, for credentials about it: first blocks and how many.
    Blocks(u64),
    /// Signed credentials, to be used by this session, or that end others.
    Present(Vec<Vec<u8>>),
}

/// What is answered.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Said {
    /// It is done.
    Done,
    /// Whose session it is.
    Session(SessionFacts),
    /// Owner and ACL. `is_mixed`: not all blocks of the file have the same, these are those of its first.
    Label {
        /// Who changes the ACL.
        owner: Principal,
        /// Who may use it.
        acl: Acl,
        /// Whether other blocks have others.
        is_mixed: bool,
    },
    /// Blocks.
    Blocks(Vec<(u64, u64)>),
    /// Credentials are in use: for whom the session speaks by them, and with which restrictions in words.
    Speaks(Vec<(Principal, String)>),
    /// It was refused, in words.
    Refused(String),
}

/// Whose session it is.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SessionFacts {
    /// The user, or the program.
    pub user: Principal,
    /// The volume: names under keys for it are called after this.
    pub volume: [u8; 16],
    /// Whom it speaks for beside.
    pub others: Vec<Principal>,
    /// Whether only a program is let in, which the helper identifies at each open.
    pub is_program: bool,
    /// Why programs cannot be identified now.
    pub helper_missing: Option<String>,
    /// Opens refused lately: file, process, program, reason.
    pub refused: Vec<(u64, u32, String, String)>,
}

/// What a volume's users are called under their keys: `key:K/` and this.
pub fn volume_name(identity: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*identity))
}
