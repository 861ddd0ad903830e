//! Principals (devices, users and groups, which may write), and the handles that name files.

use borsh::{BorshDeserialize, BorshSerialize};
use std::fmt;

/// A machine that holds a signing key: the signer in every version vector.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct DeviceId(pub u32);

/// A person or service: a set of devices.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct UserId(pub u32);

/// A set of users.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct GroupId(pub u32);

/// Everything that has a version number and an i-handle.
///
/// `Members` is the one pseudo-principal whose "i-handle" is the address of the membership block. Only device
/// 0 (the superuser's key) may advance it, so a change of membership has a place in the order like any other
/// operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum PrincipalId {
    /// Membership of the file system.
    Members,
    /// One device; its i-table holds inodes.
    Device(DeviceId),
    /// A user; its i-table maps to device i-numbers.
    User(UserId),
    /// A group; its i-table maps to device i-numbers.
    Group(GroupId),
}

impl DeviceId {
    /// The device that holds the superuser's key.
    pub const SUPERUSER: DeviceId = DeviceId(0);
}

impl UserId {
    /// The superuser.
    pub const SUPERUSER: UserId = UserId(0);
}

impl fmt::Display for PrincipalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrincipalId::Members => write!(f, "members"),
            PrincipalId::Device(DeviceId(id)) => write!(f, "device {id}"),
            PrincipalId::User(UserId(id)) => write!(f, "user {id}"),
            PrincipalId::Group(GroupId(id)) => write!(f, "group {id}"),
        }
    }
}

/// Names a file: ⟨principal, i-number⟩ (SUNDR 3.3.1). Directory entries hold handles of users and groups;
/// the tables of users and groups map them to handles of devices, whose tables hold the inodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Handle {
    /// The principal that may write the file.
    pub principal: PrincipalId,
    /// Its number in that principal's i-table, from 1 to 2^40 - 1.
    pub number: u64,
}

impl Handle {
    /// The root directory: the superuser's i-number 1.
    pub const ROOT: Handle = Handle { principal: PrincipalId::User(UserId::SUPERUSER), number: 1 };

    /// The directory of conflict copies of a user's or group's files: versions that were overwritten by a
    /// writer who had not seen them. It has no name. Its i-number is one that no writer allocates:
    /// pre-allocated ranges begin at 1,024 or beyond.
    pub const fn conflict_copies(principal: PrincipalId) -> Handle {
        Handle { principal, number: 2 }
    }

    /// A file without a name in which a device of this user notes how far its write-back journal was sent.
    /// Like [`Handle::conflict_copies`] it has an i-number that no writer allocates. With more than a thousand
    /// devices, several share a number, and then know less precisely what they sent before a crash.
    pub const fn sent_mark(user: UserId, device: DeviceId) -> Handle {
        Handle { principal: PrincipalId::User(user), number: 3 + (device.0 % 1000) as u64 }
    }

    /// Whether it is one of the files that have no name by design.
    pub const fn is_nameless_by_design(&self) -> bool {
        self.number >= 2 && self.number < 1024
    }

    /// The inode number that programs see, equal on all clients: kind in the top 2 bits, id in the next 22,
    /// i-number in the low 40. `None` if an id or i-number is out of range or the principal has no files.
    pub fn inode_number(&self) -> Option<u64> {
        let (kind, id) = match self.principal {
            PrincipalId::Members => return None,
            PrincipalId::User(UserId(id)) => (0u64, id),
            PrincipalId::Group(GroupId(id)) => (1, id),
            PrincipalId::Device(DeviceId(id)) => (2, id),
        };
        (id < 1 << 22 && self.number > 0 && self.number < 1 << 40)
            .then_some(kind << 62 | u64::from(id) << 40 | self.number)
    }

    /// The reverse of [`Handle::inode_number`].
    pub fn from_inode_number(number: u64) -> Option<Handle> {
        let id = (number >> 40) as u32 & 0x3f_ffff;
        let principal = match number >> 62 {
            0 => PrincipalId::User(UserId(id)),
            1 => PrincipalId::Group(GroupId(id)),
            2 => PrincipalId::Device(DeviceId(id)),
            _ => return None,
        };
        let number = number & ((1 << 40) - 1);
        (number > 0).then_some(Handle { principal, number })
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}, {}>", self.principal, self.number)
    }
}
