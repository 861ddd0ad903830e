//! Refusals, in words that say what to do.

use holdfast_access::Principal;

/// Why a request was refused. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The requester does not speak for the owner on this.
    #[error("these blocks are not yours: ask their owner, or use an alias that speaks for the owner on this")]
    NotOwner,
    /// The range has blocks of several owners.
    #[error("from block {0} on the blocks have another owner: ask for each part by itself")]
    MixedOwners(u64),
    /// Blocks of a region would have different owners or ACLs.
    #[error("from block {0} on the owner or the ACL differs: such blocks cannot share a region")]
    MixedAcls(u64),
    /// The disk has no such blocks.
    #[error("the disk has only {0} blocks")]
    BeyondDisk(u64),
    /// The blocks are the table's own.
    #[error("these blocks hold the policy table")]
    Reserved,
    /// A principal that must not be stored.
    #[error("{0} cannot own blocks: name the user, key or program behind it")]
    NotStorable(Principal),
    /// The ACL after the change would have too many entries, or not fit into a block with the owner.
    #[error("the ACL would be too long: put the principals into a group and list that")]
    AclTooLong,
    /// Nobody nominated the requester for exactly this range.
    #[error("you are not nominated for exactly these blocks: have their owner nominate you")]
    NotNominated,
    /// The table is full.
    #[error(
        "the policy table is full: use fewer different ACLs and larger ranges, or format the disk with a larger table"
    )]
    Full,
    /// The range has too many extents for one change.
    #[error("the range is scattered over more than 64 pages of the policy table: ask for smaller ranges")]
    TooScattered,
    /// A disk whose table range is too small.
    #[error("a policy table takes 3 blocks or more")]
    TableTooSmall,
    /// An earlier change was not carried out.
    #[error("an earlier change is not yet carried out: wait for it, or open the table anew")]
    Unfinished,
    /// The caller is not the administrator.
    #[error("only the administrator may do this")]
    NotAdministrator,
}

/// Why a stored table was refused. Nothing on the disk may be used then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Damage {
    /// A block could not be read.
    #[error("block {block} of the policy table cannot be read: {why}")]
    Unreadable {
        /// The block, counted from the table's first.
        block: u64,
        /// The reader's message.
        why: String,
    },
    /// A block has changed since it was written.
    #[error("block {block} of the policy table is damaged: {why}; recover the volume, or format the disk")]
    Malformed {
        /// The block, counted from the table's first.
        block: u64,
        /// What is wrong with the block.
        why: &'static str,
    },
    /// A table of a later format.
    #[error("the policy table has format {0}, this Holdfast knows 1 and 2: use the one that wrote it")]
    Newer(u16),
    /// A table of another disk, or of this one before it was resized.
    #[error("the policy table is of another disk, or of one with another size or place of the table")]
    OtherDisk,
}
