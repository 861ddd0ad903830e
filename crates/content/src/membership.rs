//! Membership: the users, groups and devices of a file system, and who may write what.
//!
//! Invariants ([`Membership::validate`], [`Membership::validate_successor`]): ids are never reused, nothing
//! is ever erased, what is removed stays removed, a device keeps its user and key. So every signature can be
//! judged by whose key it was at its place in the order.
//!
//! Attack answered: a key or id that reappears as another user's.

mod nesting;
mod restore;
mod wire;

pub use nesting::{GROUP_DEPTH_MAX, Member};
pub use restore::{RESTORES_MAX, Restore};

use crate::error::{ContentError, Malformed, within};
use crate::live::misuse;
use crate::{Block, BlockKind, BlockSink, BlockSource, DeviceId, GroupId, PrincipalId, Reference, UserId};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, DigestKey, PublicKey, Signature};
use std::collections::{BTreeMap, BTreeSet};

/// Longest name of a user, group, device or file system, in bytes.
pub const MEMBER_NAME_BYTES_MAX: usize = 64;
/// Highest id of a user, group or device: what fits into inode numbers.
pub const ID_MAX: u32 = (1 << 22) - 1;
/// Highest version: the bits above it mark optional parts.
const VERSION_MAX: u64 = (1 << 61) - 1;

/// All users, groups and devices of a file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The version of [`PrincipalId::Members`]; the first is 1.
    pub version: u64,
    /// The file system's name.
    pub name: String,
    /// Users; 0 is the superuser.
    pub users: BTreeMap<UserId, User>,
    /// Groups.
    pub groups: BTreeMap<GroupId, Group>,
    /// Devices; 0 holds the superuser's key.
    pub devices: BTreeMap<DeviceId, Device>,
    /// Most bytes of blocks that a user may store at a server; users who are not listed have no limit.
    pub quotas: BTreeMap<UserId, u64>,
    /// The restores that the superuser has declared, first to last.
    pub restores: Vec<Restore>,
    /// The superuser's off-line signature, unless device 0 made the membership by an operation. It is in the
    /// block, but not part of the membership's content.
    pub warrant: Option<Warrant>,
}

/// The superuser's signature for a membership, made before its place in the order was known. It covers the
/// membership that this one follows and the changes, but not the version that the order gives it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Warrant {
    /// The version under which the membership that it follows is in force.
    pub version: u64,
    /// The address of that membership's block.
    pub follows: Digest,
    /// By the superuser's key, in `Domain::Warrant`; `holdfast_protocol::warrant` defines the signed content.
    pub signature: Signature,
}

/// A person or service.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct User {
    /// The user's name.
    pub name: String,
    /// Whether the user may no longer take part.
    pub removed: bool,
}

/// Users who share files. Its encoding does not contain `groups`, which are at the end of the membership's
/// encoding.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Group {
    /// The group's name.
    pub name: String,
    /// The users who belong to it directly.
    pub members: BTreeSet<UserId>,
    /// Users who no longer belong to the group or to a group within it, with the version of
    /// [`PrincipalId::Members`] since when. What they wrote before stays valid; what their devices sign at
    /// that version or later does not.
    pub former: BTreeMap<UserId, u64>,
    /// Whether it is no longer used.
    pub removed: bool,
    /// Groups whose members belong to it too.
    #[borsh(skip)]
    pub groups: BTreeSet<GroupId>,
}

/// A machine with a key.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Device {
    /// The user whose device it is.
    pub user: UserId,
    /// The device's name.
    pub name: String,
    /// The key that verifies the device's signatures.
    pub key: PublicKey,
    /// The version of [`PrincipalId::Members`] at which the device was removed.
    pub removed_at: Option<u64>,
}

impl Membership {
    /// The membership that a new file system starts with: the superuser and the device with the
    /// superuser's key.
    pub fn founding(name: &str, superuser: &str, key: PublicKey) -> Membership {
        let user = User { name: superuser.into(), removed: false };
        let device = Device { user: UserId::SUPERUSER, name: superuser.into(), key, removed_at: None };
        Membership {
            version: 1,
            name: name.into(),
            users: [(UserId::SUPERUSER, user)].into(),
            groups: BTreeMap::new(),
            devices: [(DeviceId::SUPERUSER, device)].into(),
            warrant: None,
            quotas: BTreeMap::new(),
            restores: Vec::new(),
        }
    }

    /// Whether `device` exists, is not removed, and its user is not removed.
    pub fn is_active(&self, device: DeviceId) -> bool {
        self.active_user(device).is_some()
    }

    /// The user of an active device.
    pub fn active_user(&self, device: DeviceId) -> Option<UserId> {
        let device = self.devices.get(&device).filter(|device| device.removed_at.is_none())?;
        self.users.get(&device.user).filter(|user| !user.removed)?;
        Some(device.user)
    }

    /// Whether `device` may advance `principal`. A device may advance itself, its user, and that user's
    /// groups. The superuser's devices may advance everything except [`PrincipalId::Members`], which only
    /// device 0 may. Removed devices may advance nothing, and no device a principal that is removed or does
    /// not exist.
    pub fn may_write(&self, device: DeviceId, principal: PrincipalId) -> bool {
        let Some(user) = self.active_user(device) else { return false };
        let superuser = user == UserId::SUPERUSER;
        match principal {
            PrincipalId::Members => device == DeviceId::SUPERUSER,
            PrincipalId::Device(owner) => owner == device || superuser && self.is_active(owner),
            PrincipalId::User(owner) => {
                (owner == user || superuser) && self.users.get(&owner).is_some_and(|user| !user.removed)
            }
            PrincipalId::Group(id) => self
                .groups
                .get(&id)
                .is_some_and(|group| !group.removed && (superuser || self.is_member(id, user))),
        }
    }

    /// Whether `device` may advance `principal` now, or might have at some version from `since` on. This
    /// decides whether a table is valid whose signer was last seen at membership version `since`.
    pub fn might_write(&self, device: DeviceId, principal: PrincipalId, since: u64) -> bool {
        if since >= self.version || self.may_write(device, principal) {
            return self.may_write(device, principal);
        }
        let still = |device: &&Device| device.removed_at.is_none_or(|removed_at| removed_at > since);
        let Some(user) = self.devices.get(&device).filter(still).map(|device| device.user) else {
            return false;
        };
        let superuser = user == UserId::SUPERUSER;
        match principal {
            PrincipalId::Members => device == DeviceId::SUPERUSER,
            PrincipalId::Device(owner) => owner == device,
            PrincipalId::User(owner) => self.users.contains_key(&owner) && (owner == user || superuser),
            PrincipalId::Group(id) => self.groups.get(&id).is_some_and(|group| {
                superuser
                    || self.is_member(id, user)
                    || group.former.get(&user).is_some_and(|left| *left > since)
            }),
        }
    }

    /// Makes an edited copy of this membership its successor at `version`: enters the version for newly
    /// removed devices and for users who no longer belong to a group. [`Membership::validate_successor`]
    /// checks the rest.
    #[must_use]
    pub fn succeeded_by(&self, mut next: Membership, version: u64) -> Membership {
        next.version = version;
        next.warrant = None;
        for (id, device) in &mut next.devices {
            let removed_before = self.devices.get(id).and_then(|device| device.removed_at);
            if device.removed_at.is_some() {
                device.removed_at = removed_before.or(Some(version));
            }
        }
        for (id, before) in &self.groups {
            let left = self.leaving_members(*id, &next);
            let Some(group) = next.groups.get_mut(id) else { continue };
            group.former = before.former.clone();
            group.former.extend(left.into_iter().map(|user| (user, version)));
        }
        next
    }

    /// The change without the version that the order gives it: the version, and the fields that record it for
    /// devices and users removed by this change, are 0, a value that no other field has. This is what a
    /// superuser signs off-line.
    #[must_use]
    pub fn undated(&self) -> Membership {
        self.redated(self.version, 0)
    }

    /// The membership that an undated one is at `version`.
    #[must_use]
    pub fn dated(&self, version: u64) -> Membership {
        self.redated(0, version)
    }

    fn redated(&self, from: u64, to: u64) -> Membership {
        let mut next = Membership { version: to, warrant: None, ..self.clone() };
        for device in next.devices.values_mut() {
            device.removed_at = device.removed_at.map(|at| if at == from { to } else { at });
        }
        for left in next.groups.values_mut().flat_map(|group| group.former.values_mut()) {
            if *left == from {
                *left = to;
            }
        }
        next
    }

    /// The device with `key`, removed or not.
    pub fn device_by_key(&self, key: &PublicKey) -> Option<DeviceId> {
        self.devices.iter().find(|(_, device)| device.key == *key).map(|(id, _)| *id)
    }

    /// The user named `name` who is not removed.
    pub fn user_by_name(&self, name: &str) -> Option<UserId> {
        self.users.iter().find(|(_, user)| !user.removed && user.name == name).map(|(id, _)| *id)
    }

    /// The group named `name` that is not removed.
    pub fn group_by_name(&self, name: &str) -> Option<GroupId> {
        self.groups.iter().find(|(_, group)| !group.removed && group.name == name).map(|(id, _)| *id)
    }

    /// An id that no user has ever had.
    pub fn next_user(&self) -> UserId {
        UserId(self.users.last_key_value().map_or(0, |(id, _)| id.0 + 1))
    }

    /// An id that no group has ever had; groups begin at 1.
    pub fn next_group(&self) -> GroupId {
        GroupId(self.groups.last_key_value().map_or(1, |(id, _)| id.0 + 1))
    }

    /// An id that no device has ever had.
    pub fn next_device(&self) -> DeviceId {
        DeviceId(self.devices.last_key_value().map_or(0, |(id, _)| id.0 + 1))
    }

    /// Checks the rules for every membership: the superuser and device 0 exist and are active; users, groups
    /// and devices refer to what exists; ids and names are within limits; names of what is not removed are
    /// unique in their class (devices: within their user); no two devices share a key.
    ///
    /// # Errors
    /// [`Malformed`]: the first rule broken.
    pub fn validate(&self) -> Result<(), Malformed> {
        let rule = |broken: bool, text: &str| if broken { Err(Malformed::Rule(text.into())) } else { Ok(()) };
        within("version of membership", self.version, 1, VERSION_MAX)?;
        check_member_name(&self.name)?;
        rule(
            self.active_user(DeviceId::SUPERUSER) != Some(UserId::SUPERUSER),
            "device 0 is not the superuser's",
        )?;
        let mut names = BTreeSet::new();
        for (id, user) in &self.users {
            within("id of a user", id.0.into(), 0, ID_MAX.into())?;
            check_member_name(&user.name)?;
            rule(!user.removed && !names.insert(&user.name), "two users have one name")?;
        }
        names.clear();
        for (id, group) in &self.groups {
            within("id of a group", id.0.into(), 0, ID_MAX.into())?;
            check_member_name(&group.name)?;
            rule(!group.removed && !names.insert(&group.name), "two groups have one name")?;
            let stranger = group.members.iter().any(|user| !self.users.contains_key(user));
            rule(stranger, "a member of a group is no user")?;
        }
        self.validate_nesting()?;
        let nobody = self.quotas.keys().any(|user| !self.users.contains_key(user));
        rule(nobody, "a limit is that of no user")?;
        within("restores", self.restores.len() as u64, 0, RESTORES_MAX as u64)?;
        let mut keys = BTreeSet::new();
        let mut device_names = BTreeSet::new();
        for (id, device) in &self.devices {
            within("id of a device", id.0.into(), 0, ID_MAX.into())?;
            check_member_name(&device.name)?;
            rule(!self.users.contains_key(&device.user), "a device belongs to no user")?;
            rule(!keys.insert(device.key), "two devices have one key")?;
            let active = device.removed_at.is_none();
            rule(
                active && !device_names.insert((device.user, &device.name)),
                "two devices of a user have one name",
            )?;
            rule(
                device.removed_at.is_some_and(|at| at > self.version),
                "a device was removed in the future",
            )?;
        }
        Ok(())
    }

    /// Checks that `next` may follow: the version is higher (by more than one if changes in between were
    /// ordered but took no effect), nothing is erased or restored, devices keep user and key, and a device
    /// removed now has this version.
    ///
    /// # Errors
    /// [`Malformed`]: the first rule broken.
    pub fn validate_successor(&self, next: &Membership) -> Result<(), Malformed> {
        next.validate()?;
        let rule = |broken: bool, text: &str| if broken { Err(Malformed::Rule(text.into())) } else { Ok(()) };
        let version = self.version.saturating_add(1);
        within("version of membership", next.version, version, VERSION_MAX)?;
        rule(!next.restores.starts_with(&self.restores), "a declared restore was erased")?;
        for (id, user) in &self.users {
            match next.users.get(id) {
                None => rule(true, "a user was erased")?,
                Some(now) => rule(user.removed && !now.removed, "a removed user is back")?,
            }
        }
        for (id, group) in &self.groups {
            match next.groups.get(id) {
                None => rule(true, "a group was erased")?,
                Some(now) => {
                    rule(group.removed && !now.removed, "a removed group is back")?;
                    let left = self.leaving_members(*id, next);
                    let mut former = group.former.clone();
                    former.extend(left.into_iter().map(|user| (user, next.version)));
                    rule(now.former != former, "a group's former members are not as they were")?;
                }
            }
        }
        for (id, device) in &self.devices {
            let Some(now) = next.devices.get(id) else { return rule(true, "a device was erased") };
            rule(now.user != device.user, "a device changed its user")?;
            rule(now.key != device.key, "a device changed its key")?;
            let removed_at = device.removed_at.or(now.removed_at.map(|_| next.version));
            rule(now.removed_at != removed_at, "a device was removed at another version, or is back")?;
        }
        let new_and_removed = next
            .devices
            .iter()
            .any(|(id, device)| !self.devices.contains_key(id) && device.removed_at.is_some());
        rule(new_and_removed, "a new device is removed")
    }

    /// Fetches a membership.
    ///
    /// # Errors
    /// [`ContentError`]: the block could not be fetched or is malformed.
    pub fn load(source: &dyn BlockSource, reference: &Reference) -> Result<Membership, ContentError> {
        let block = source.fetch(reference, BlockKind::Membership)?;
        Membership::from_block(&block)
    }

    /// Reads and validates a membership's block.
    ///
    /// # Errors
    /// [`ContentError::Malformed`].
    pub fn from_block(block: &Block) -> Result<Membership, ContentError> {
        let read = || {
            if !block.references().is_empty() {
                return Err(Malformed::ReferenceUnused(block.references().len()));
            }
            let (format, body) = block.body().split_first().ok_or(Malformed::Truncated)?;
            let (warrant, membership) = match *format {
                wire::PLAIN..=wire::WITH_QUOTAS | wire::WITH_RESTORES => {
                    (None, holdfast_crypto::decode(body))
                }
                wire::WARRANTED => holdfast_crypto::decode::<(Warrant, Membership)>(body)
                    .map_or_else(|error| (None, Err(error)), |(warrant, next)| (Some(warrant), Ok(next))),
                found => return Err(Malformed::UnknownFormat { found, known: wire::WITH_RESTORES }),
            };
            let membership = membership.map_err(|error| Malformed::Rule(error.why))?;
            let membership = Membership { warrant, ..membership };
            if membership.block_format() != *format {
                return Err(Malformed::Rule("its format is not the one that what it holds needs".into()));
            }
            membership.validate()?;
            Ok(membership)
        };
        read().map_err(|why| why.at("membership", Some(block.reference().address)))
    }

    /// The membership as a block.
    ///
    /// # Errors
    /// [`ContentError::Misuse`] if the membership is not valid or too large.
    pub fn to_block(&self, key: &DigestKey) -> Result<Block, ContentError> {
        misuse(self.validate())?;
        let mut body = vec![self.block_format()];
        if let Some(warrant) = &self.warrant {
            body.extend(holdfast_crypto::encode(warrant));
        }
        body.extend(holdfast_crypto::encode(self));
        misuse(within("bytes of a membership", body.len() as u64, 0, crate::BODY_BYTES_MAX.into()))?;
        Ok(Block::new(key, BlockKind::Membership, Vec::new(), body))
    }

    /// Stores the membership as a block.
    ///
    /// # Errors
    /// [`ContentError::Misuse`] if the membership is not valid or too large.
    pub fn store(&self, sink: &mut dyn BlockSink) -> Result<Reference, ContentError> {
        let block = self.to_block(&sink.digest_key())?;
        Ok(sink.put(block))
    }
}

/// 1 to 64 bytes, no control characters, no `/`, no spaces at either end.
fn check_member_name(name: &str) -> Result<(), Malformed> {
    within("length of a name", name.len() as u64, 1, MEMBER_NAME_BYTES_MAX as u64)?;
    if name.contains(|c: char| c.is_control() || c == '/') || name.trim() != name {
        return Err(Malformed::Rule(format!("{name:?} is not a valid name")));
    }
    Ok(())
}
