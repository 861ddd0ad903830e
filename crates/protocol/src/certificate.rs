//! Update certificates: what a device declares before it knows what others are doing (SUNDR 3.4.1).

use crate::signed::Signable;
use crate::vector::VoidSet;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, Handle, InodeKind, NAME_BYTES_MAX, PrincipalId, Reference};
use holdfast_crypto::{Digest, Domain, encode};

/// The messages by which an operation is ordered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum Path {
    /// One message carries certificate and structure; taken only if nothing is pending.
    Fast = 1,
    /// By UPDATE, then COMMIT.
    Slow = 2,
}

/// Operation numbers stay below this, so that counting up never overflows.
pub const NUMBER_MAX: u64 = 1 << 62;
/// Most deltas in one certificate.
pub const DELTAS_MAX: usize = 4096;

/// One modification. Group and user files are named by their own handles; inodes by device i-numbers.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum Delta {
    /// Set (or remove) inode `number` of the signing device's own i-table to this i-hash.
    SetInode {
        /// Its number in the device's table.
        number: u64,
        /// The file that the inode belongs to, so that others can see which file this is about.
        file: Handle,
        /// The file's new i-hash; `None` removes the file.
        inode: Option<Digest>,
    },
    /// Map a user's or group's i-number to an i-number of the signing device (or remove it).
    SetTable {
        /// The file.
        file: Handle,
        /// The signing device's i-number that now holds it.
        number: Option<u64>,
    },
    /// Map `count` fresh i-numbers of a user or group to as many fresh i-numbers of the signing device.
    Preallocate {
        /// The user or group whose numbers these are.
        principal: PrincipalId,
        /// The first number.
        first: u64,
        /// How many numbers.
        count: u32,
        /// The first number in the device's table.
        device_first: u64,
    },
    /// Set or delete a directory entry. The directory's resulting inode is not declared: it depends on what
    /// others have pending.
    SetEntry {
        /// The directory.
        directory: Handle,
        /// The name.
        name: Vec<u8>,
        /// The new entry; `None` deletes it.
        entry: Option<(Handle, InodeKind)>,
        /// Directory modification time, nanoseconds since the epoch.
        time_ns: i64,
    },
    /// Replace the membership: device 0, or another device with a warrant in the block, and then nothing else with it.
    SetMembers {
        /// Reference to the membership's block.
        reference: Reference,
    },
}

impl Delta {
    /// The user, group or membership table this delta advances, besides the signer's own.
    pub fn principal(&self) -> Option<PrincipalId> {
        match self {
            Delta::SetInode { .. } | Delta::SetEntry { .. } => None,
            Delta::SetTable { file, .. } => Some(file.principal),
            Delta::Preallocate { principal, .. } => Some(*principal),
            Delta::SetMembers { .. } => Some(PrincipalId::Members),
        }
    }
}

/// A declared operation; a fetch has no deltas.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Certificate {
    /// The file system; after a declared restore, its epoch ([`crate::epoch`]).
    pub file_system: Digest,
    /// The device that signs.
    pub device: DeviceId,
    /// This operation's number: 1 for a device's first, then one more each, used or void.
    pub number: u64,
    /// Forecast digest of the device's last committed structure; [`Digest::ZERO`] before the first.
    pub previous: Digest,
    /// The messages by which the operation is ordered.
    pub path: Path,
    /// All numbers that this device has ever given up. They are listed for ever: see trace T6.
    pub voids: VoidSet,
    /// All numbers that this device committed with [`crate::structure::Outcome::Nothing`] (cumulative). A
    /// client that meets an older number of this device learns from this list that it changed nothing.
    pub ineffective: VoidSet,
    /// The client's clock, nanoseconds since the epoch. Informative.
    pub time_ns: i64,
    /// What the operation changes.
    pub deltas: Vec<Delta>,
}

impl Certificate {
    /// The user, group and membership tables this operation advances: sorted, without duplicates.
    pub fn principals(&self) -> Vec<PrincipalId> {
        let mut principals: Vec<_> = self.deltas.iter().filter_map(Delta::principal).collect();
        principals.sort();
        principals.dedup();
        principals
    }

    /// The membership block that it brings.
    pub fn new_members(&self) -> Option<Reference> {
        self.deltas.iter().find_map(|delta| match delta {
            Delta::SetMembers { reference } => Some(*reference),
            _ => None,
        })
    }

    /// Describes a content that no honest device would declare; `None` if there is none. Rights, numbers and
    /// preconditions are checked elsewhere.
    pub fn offence(&self) -> Option<&'static str> {
        if self.number == 0 || self.number >= NUMBER_MAX {
            return Some("its number is out of range");
        }
        if self.deltas.len() > DELTAS_MAX {
            return Some("it has too many deltas");
        }
        let mut membership = 0;
        for delta in &self.deltas {
            let owned = |principal| matches!(principal, PrincipalId::User(_) | PrincipalId::Group(_));
            match delta {
                Delta::SetInode { file, .. } if file.principal == PrincipalId::Members => {
                    return Some("membership has no inodes");
                }
                Delta::SetTable { file, .. } if !owned(file.principal) => {
                    return Some("only tables of users and groups map to devices");
                }
                Delta::Preallocate { principal, .. } if !owned(*principal) => {
                    return Some("only i-numbers of users and groups are pre-allocated");
                }
                Delta::SetEntry { directory, .. } if directory.principal == PrincipalId::Members => {
                    return Some("membership has no directories");
                }
                Delta::SetEntry { name, .. } if name.is_empty() || name.len() > NAME_BYTES_MAX => {
                    return Some("a name is empty or too long");
                }
                Delta::SetMembers { .. } => membership += 1,
                _ => {}
            }
        }
        match membership {
            0 => None,
            1 if self.device == DeviceId::SUPERUSER || self.deltas.len() == 1 => None,
            1 => {
                Some("it replaces the membership, and only the superuser's may do more in the same operation")
            }
            _ => Some("it replaces the membership twice"),
        }
    }
}

impl Signable for Certificate {
    const DOMAIN: Domain = Domain::Certificate;

    fn signed_bytes(&self) -> Vec<u8> {
        encode(&(
            (self.file_system, self.device, self.number, self.previous),
            (self.path, self.voids.root(), self.ineffective.root(), self.time_ns),
            &self.deltas,
        ))
    }

    fn whole_bytes(&self) -> Vec<u8> {
        encode(self)
    }
}
