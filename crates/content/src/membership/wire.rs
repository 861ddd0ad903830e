//! The encoding of memberships. Parts that older programs did not have are at the end, and the highest bits
//! of the version say which are there (a warrant is not one of them, but in the block before the membership).
//! So a membership without such parts always has the same bytes, wherever it appears.

use super::{Group, Membership, Restore, VERSION_MAX};
use crate::{DeviceId, GroupId, UserId};
use borsh::io::{Error, ErrorKind, Read, Result, Write};
use borsh::{BorshDeserialize, BorshSerialize};
use std::collections::{BTreeMap, BTreeSet};

/// Bit of the version: groups as members follow.
const NESTED: u64 = 1 << 63;
/// Bit of the version: quotas follow after that.
const QUOTAS: u64 = 1 << 62;
/// Bit of the version: declared restores follow after that.
const RESTORES: u64 = 1 << 61;

/// Formats of a block: without new parts; with groups as members; with quotas (and perhaps groups as
/// members); with a warrant before the membership (and perhaps any of these); with declared restores (and
/// perhaps the others, but no warrant).
pub(super) const PLAIN: u8 = crate::codec::FORMAT;
pub(super) const WITH_GROUPS: u8 = 2;
pub(super) const WITH_QUOTAS: u8 = 3;
pub(super) const WARRANTED: u8 = 4;
pub(super) const WITH_RESTORES: u8 = 5;

impl Membership {
    /// The format of its block.
    pub(super) fn block_format(&self) -> u8 {
        match self.groups.values().any(|group| !group.groups.is_empty()) {
            _ if self.warrant.is_some() => WARRANTED,
            _ if !self.restores.is_empty() => WITH_RESTORES,
            _ if !self.quotas.is_empty() => WITH_QUOTAS,
            true => WITH_GROUPS,
            false => PLAIN,
        }
    }
}

impl BorshSerialize for Membership {
    fn serialize<W: Write>(&self, writer: &mut W) -> Result<()> {
        let nested: BTreeMap<&GroupId, &BTreeSet<GroupId>> = self
            .groups
            .iter()
            .filter(|(_, group)| !group.groups.is_empty())
            .map(|(id, group)| (id, &group.groups))
            .collect();
        if self.version > VERSION_MAX {
            return Err(Error::new(ErrorKind::InvalidInput, "the version of a membership is too high"));
        }
        let flag = |there: bool, flag: u64| if there { flag } else { 0 };
        let flags = flag(!nested.is_empty(), NESTED)
            | flag(!self.quotas.is_empty(), QUOTAS)
            | flag(!self.restores.is_empty(), RESTORES);
        (self.version | flags).serialize(writer)?;
        self.name.serialize(writer)?;
        self.users.serialize(writer)?;
        self.groups.serialize(writer)?;
        self.devices.serialize(writer)?;
        if flags & NESTED != 0 {
            nested.serialize(writer)?;
        }
        if flags & QUOTAS != 0 {
            self.quotas.serialize(writer)?;
        }
        if flags & RESTORES != 0 {
            self.restores.serialize(writer)?;
        }
        Ok(())
    }
}

impl BorshDeserialize for Membership {
    fn deserialize_reader<R: Read>(reader: &mut R) -> Result<Self> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::InvalidData, why));
        let flagged = u64::deserialize_reader(reader)?;
        let mut membership = Membership {
            version: flagged & !(NESTED | QUOTAS | RESTORES),
            name: String::deserialize_reader(reader)?,
            users: BTreeMap::<UserId, _>::deserialize_reader(reader)?,
            groups: BTreeMap::<GroupId, Group>::deserialize_reader(reader)?,
            devices: BTreeMap::<DeviceId, _>::deserialize_reader(reader)?,
            quotas: BTreeMap::new(),
            restores: Vec::new(),
            warrant: None,
        };
        if membership.version > VERSION_MAX {
            return refuse("a membership holds more than this program knows");
        }
        if flagged & NESTED != 0 {
            let nested = BTreeMap::<GroupId, BTreeSet<GroupId>>::deserialize_reader(reader)?;
            if nested.is_empty() || nested.values().any(BTreeSet::is_empty) {
                return refuse("groups as members are announced, and there are none");
            }
            for (id, groups) in nested {
                match membership.groups.get_mut(&id) {
                    Some(group) => group.groups = groups,
                    None => return refuse("a group that is not there has groups as members"),
                }
            }
        }
        if flagged & QUOTAS != 0 {
            membership.quotas = BTreeMap::deserialize_reader(reader)?;
            if membership.quotas.is_empty() {
                return refuse("limits are announced, and there are none");
            }
        }
        if flagged & RESTORES != 0 {
            membership.restores = Vec::<Restore>::deserialize_reader(reader)?;
            if membership.restores.is_empty() {
                return refuse("restores are announced, and there are none");
            }
        }
        Ok(membership)
    }
}
