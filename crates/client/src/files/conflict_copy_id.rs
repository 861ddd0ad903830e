//! Ids of conflict copies, as shown to users.

use crate::error::FsError;
use holdfast_content::{GroupId, Handle, PrincipalId, UserId};
use std::fmt;
use std::str::FromStr;

/// Id of a conflict copy, for users: its owner and its number, as in `u3-1f00a`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ConflictCopyId(pub Handle);

impl fmt::Display for ConflictCopyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.principal {
            PrincipalId::User(UserId(id)) => write!(f, "u{id}-{:x}", self.0.number),
            PrincipalId::Group(GroupId(id)) => write!(f, "g{id}-{:x}", self.0.number),
            other => write!(f, "{other}-{:x}", self.0.number),
        }
    }
}

impl FromStr for ConflictCopyId {
    type Err = FsError;

    fn from_str(text: &str) -> Result<ConflictCopyId, FsError> {
        let parse = || {
            let (owner, number) = text.split_once('-')?;
            let number = u64::from_str_radix(number, 16).ok()?;
            let principal = match owner.split_at_checked(1)? {
                ("u", id) => PrincipalId::User(UserId(id.parse().ok()?)),
                ("g", id) => PrincipalId::Group(GroupId(id.parse().ok()?)),
                _ => return None,
            };
            Some(ConflictCopyId(Handle { principal, number }))
        };
        parse().ok_or_else(|| FsError::Invalid(format!("{text:?} names no kept version")))
    }
}
