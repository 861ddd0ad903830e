//! Computes the next membership for each kind of change. [`Membership::validate_successor`] checks the rules
//! that all changes follow; the version from which a change takes effect is set when it is ordered.

use crate::error::FsError;
use holdfast_content::{Device, DeviceId, Group, GroupId, Member, Membership, User, UserId};
use holdfast_crypto::PublicKey;

/// Adds a user, with a first device if a key is given.
///
/// # Errors
/// [`FsError::Exists`].
pub fn add_user(
    members: &mut Membership,
    name: &str,
    device: Option<(&str, PublicKey)>,
) -> Result<UserId, FsError> {
    if members.user_by_name(name).is_some() {
        return Err(FsError::Exists);
    }
    let id = members.next_user();
    members.users.insert(id, User { name: name.to_owned(), removed: false });
    if let Some((device, key)) = device {
        insert_device(members, id, device, key)?;
    }
    Ok(id)
}

/// Removes a user and all their devices.
///
/// # Errors
/// [`FsError::NotFound`], [`FsError::NotPermitted`] for the superuser.
pub fn remove_user(members: &mut Membership, name: &str) -> Result<(), FsError> {
    let id = members.user_by_name(name).ok_or(FsError::NotFound)?;
    if id == UserId::SUPERUSER {
        return Err(FsError::NotPermitted("the superuser cannot be removed".to_owned()));
    }
    let version = members.version;
    for device in members.devices.values_mut().filter(|device| device.user == id) {
        device.removed_at.get_or_insert(version);
    }
    members.users.get_mut(&id).expect("it was just found").removed = true;
    Ok(())
}

/// Adds a device of a user.
///
/// # Errors
/// [`FsError::NotFound`] for the user, [`FsError::Exists`] for the key or name.
pub fn add_device(
    members: &mut Membership,
    user: &str,
    name: &str,
    key: PublicKey,
) -> Result<DeviceId, FsError> {
    let user = members.user_by_name(user).ok_or(FsError::NotFound)?;
    insert_device(members, user, name, key)
}

/// Removes a device.
///
/// # Errors
/// [`FsError::NotFound`], [`FsError::NotPermitted`] for device 0.
pub fn remove_device(members: &mut Membership, user: &str, name: &str) -> Result<(), FsError> {
    let user = members.user_by_name(user).ok_or(FsError::NotFound)?;
    retire_device(members, user, name)
}

/// Replaces a device's key: the old device ends, and a new one begins under its name.
///
/// # Errors
/// [`FsError::NotFound`] for user or device, [`FsError::Exists`] for a key that was ever used,
/// [`FsError::NotPermitted`] for device 0.
pub fn rotate_device(
    members: &mut Membership,
    user: &str,
    name: &str,
    key: PublicKey,
) -> Result<DeviceId, FsError> {
    let user = members.user_by_name(user).ok_or(FsError::NotFound)?;
    retire_device(members, user, name)?;
    insert_device(members, user, name, key)
}

/// Adds a group. Members are named as for [`Membership::member_by_name`]: groups with an `@`.
///
/// # Errors
/// [`FsError::Exists`], [`FsError::NotFound`] for a member.
pub fn add_group(members: &mut Membership, name: &str, names: &[String]) -> Result<GroupId, FsError> {
    if members.group_by_name(name).is_some() {
        return Err(FsError::Exists);
    }
    let found = names.iter().map(|name| members.member_by_name(name).ok_or(FsError::NotFound));
    let found: Vec<Member> = found.collect::<Result<_, _>>()?;
    let id = members.next_group();
    let group = Group {
        name: name.to_owned(),
        members: Default::default(),
        former: Default::default(),
        removed: false,
        groups: Default::default(),
    };
    members.groups.insert(id, group);
    for member in found {
        members.admit(id, member);
    }
    Ok(id)
}

/// Removes a group.
///
/// # Errors
/// [`FsError::NotFound`].
pub fn remove_group(members: &mut Membership, name: &str) -> Result<(), FsError> {
    let id = members.group_by_name(name).ok_or(FsError::NotFound)?;
    members.remove_group(id);
    Ok(())
}

/// Makes a user, or an `@` group, a member of a group.
///
/// # Errors
/// [`FsError::NotFound`], [`FsError::Exists`].
pub fn add_member(members: &mut Membership, group: &str, member: &str) -> Result<(), FsError> {
    let group = members.group_by_name(group).ok_or(FsError::NotFound)?;
    let member = members.member_by_name(member).ok_or(FsError::NotFound)?;
    if members.admit(group, member) { Ok(()) } else { Err(FsError::Exists) }
}

/// Removes a user, or an `@` group, from a group. Files of it, or of groups around it, that are in tables of
/// devices of users who no longer belong to it must be taken over by then.
///
/// # Errors
/// [`FsError::NotFound`].
pub fn remove_member(members: &mut Membership, group: &str, member: &str) -> Result<(), FsError> {
    let group = members.group_by_name(group).ok_or(FsError::NotFound)?;
    let member = members.member_by_name(member).ok_or(FsError::NotFound)?;
    if members.expel(group, member) { Ok(()) } else { Err(FsError::NotFound) }
}

/// Limits how much a user may store at the server, in bytes; `None` removes the limit.
///
/// # Errors
/// [`FsError::NotFound`].
pub fn set_quota(members: &mut Membership, user: &str, bytes: Option<u64>) -> Result<(), FsError> {
    let user = members.user_by_name(user).ok_or(FsError::NotFound)?;
    match bytes {
        Some(bytes) => members.quotas.insert(user, bytes),
        None => members.quotas.remove(&user),
    };
    Ok(())
}

fn retire_device(members: &mut Membership, user: UserId, name: &str) -> Result<(), FsError> {
    let version = members.version;
    let (id, device) = members
        .devices
        .iter_mut()
        .find(|(_, device)| device.user == user && device.name == name && device.removed_at.is_none())
        .ok_or(FsError::NotFound)?;
    if *id == DeviceId::SUPERUSER {
        let why = "the superuser's key cannot be removed or replaced: the file system's id is its digest";
        return Err(FsError::NotPermitted(why.to_owned()));
    }
    device.removed_at = Some(version);
    Ok(())
}

fn insert_device(
    members: &mut Membership,
    user: UserId,
    name: &str,
    key: PublicKey,
) -> Result<DeviceId, FsError> {
    let taken = members.devices.values().any(|device| {
        device.key == key || (device.user == user && device.name == name && device.removed_at.is_none())
    });
    if taken {
        return Err(FsError::Exists);
    }
    let id = members.next_device();
    members.devices.insert(id, Device { user, name: name.to_owned(), key, removed_at: None });
    Ok(id)
}
