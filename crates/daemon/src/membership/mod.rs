//! Membership: users, groups, devices and quotas, read and changed through a running signer. That is the
//! signer of the daemon that serves the key's mounts, or one that a command starts for a single change.

mod check;

use crate::control::{Bytes, Request};
use crate::mounts::requests::MountRequest;
use crate::time::now_ns;
use check::{belonging, check};
use holdfast_client::admin::off_line::{self, ChangeFileError, SigningRequest};
use holdfast_client::admin::{Admin, GroupDepartures, Home, changes};
use holdfast_client::{Engine, FsError};
use holdfast_content::{GroupId, Membership, PrincipalId, UserId};
use holdfast_crypto::PublicKey;
use holdfast_failure::{Exit, Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A change of the membership.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// Limit what a user may store.
    SetQuota {
        /// Name of the user.
        user: String,
        /// Bytes; `None`: any amount.
        bytes: Option<u64>,
    },
    /// Add a user with a first device.
    AddUser {
        /// Name of the user.
        name: String,
        /// Name of the device.
        device: String,
        /// The device's public key.
        key: [u8; 32],
        /// Whether to make /NAME.
        directory: bool,
    },
    /// Remove a user and all their devices.
    RemoveUser {
        /// Name of the user.
        name: String,
    },
    /// Add a group.
    AddGroup {
        /// Name of the group.
        name: String,
        /// Its members.
        users: Vec<String>,
        /// Whether to make /NAME.
        directory: bool,
    },
    /// Remove a group.
    RemoveGroup {
        /// Name of the group.
        name: String,
    },
    /// Add members to a group.
    Join {
        /// Name of the group.
        group: String,
        /// Names of users, and of groups with an `@` before them.
        users: Vec<String>,
    },
    /// Take members out of a group.
    Leave {
        /// Name of the group.
        group: String,
        /// Names of users, and of groups with an `@` before them.
        users: Vec<String>,
    },
    /// Enrol a device of a user.
    AddDevice {
        /// Name of the user.
        user: String,
        /// Name of the device.
        name: String,
        /// Its public key.
        key: [u8; 32],
    },
    /// Replace a device's key by a new one.
    RotateDevice {
        /// Name of the user.
        user: String,
        /// Name of the device.
        name: String,
        /// Its new public key.
        key: [u8; 32],
    },
    /// Remove a device.
    RemoveDevice {
        /// Name of the user.
        user: String,
        /// Name of the device.
        name: String,
    },
}

/// Request: show the membership.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShowMembership;

/// Request: show how much each user has stored at the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShowUsage;

/// Request: change the membership with the superuser's key. The reply says what was done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Administer(pub Change);

/// Request: prepare a change, but do not make it. The reply is a signing request for the superuser, as a
/// file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PrepareChange {
    /// The file system's address.
    pub url: String,
    /// The change.
    pub change: Change,
}

/// Request: submit a change that the superuser has signed. The reply says what was done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubmitChange {
    /// The request's file.
    pub signed: Bytes,
}

/// A request about the membership. Any process that runs a signer of the key can answer it.
pub trait MembershipRequest: Request<Any = MountRequest> {
    /// Answers the request with a running engine.
    ///
    /// # Errors
    /// The request is not possible or not allowed, or the server does not answer.
    fn answer(&self, engine: &Arc<Engine>) -> Outcome<Self::Reply>;
}

impl MembershipRequest for ShowMembership {
    fn answer(&self, engine: &Arc<Engine>) -> Outcome<MembershipReport> {
        Ok(MembershipReport::of(&engine.fetch()?.membership()))
    }
}

impl MembershipRequest for ShowUsage {
    fn answer(&self, engine: &Arc<Engine>) -> Outcome<Vec<QuotaUsage>> {
        usage(engine)
    }
}

impl MembershipRequest for Administer {
    fn answer(&self, engine: &Arc<Engine>) -> Outcome<String> {
        make(engine, &self.0)
    }
}

impl MembershipRequest for PrepareChange {
    fn answer(&self, engine: &Arc<Engine>) -> Outcome<Bytes> {
        prepare(engine, &self.url, &self.change)
    }
}

impl MembershipRequest for SubmitChange {
    fn answer(&self, engine: &Arc<Engine>) -> Outcome<String> {
        submit(engine, &self.signed.0)
    }
}

/// The membership as it is printed.
#[derive(Debug, Serialize, Deserialize)]
pub struct MembershipReport {
    /// Name of the file system.
    pub name: String,
    /// How often the membership has changed.
    pub version: u64,
    /// All users, removed ones too.
    pub users: Vec<User>,
    /// All groups, removed ones too.
    pub groups: Vec<Group>,
    /// All devices, removed ones too.
    pub devices: Vec<Device>,
}

/// A user.
#[derive(Debug, Serialize, Deserialize)]
pub struct User {
    /// Number of the user.
    pub id: u32,
    /// Name of the user.
    pub name: String,
    /// Whether the user was removed.
    pub removed: bool,
    /// Most bytes that they may store at the server; `null`: no limit.
    pub quota: Option<u64>,
}

/// A group.
#[derive(Debug, Serialize, Deserialize)]
pub struct Group {
    /// Number of the group.
    pub id: u32,
    /// Name of the group.
    pub name: String,
    /// Users who are members directly.
    pub members: Vec<String>,
    /// Groups that are members.
    pub groups: Vec<String>,
    /// All users who belong to it, directly or through a group.
    pub all: Vec<String>,
    /// Whether the group was removed.
    pub removed: bool,
}

/// A device.
#[derive(Debug, Serialize, Deserialize)]
pub struct Device {
    /// Number of the device.
    pub id: u32,
    /// Name of the device.
    pub name: String,
    /// Name of its user.
    pub user: String,
    /// Its public key, as in an OpenSSH file.
    pub public_key: String,
    /// Whether the device was removed.
    pub removed: bool,
}

impl MembershipReport {
    /// The membership in the form in which it is printed.
    pub fn of(members: &Membership) -> MembershipReport {
        let name_of =
            |user: &UserId| members.users.get(user).map_or("?", |user| user.name.as_str()).to_owned();
        let group_name =
            |group: &GroupId| members.groups.get(group).map_or("?", |group| group.name.as_str()).to_owned();
        let users = members.users.iter().map(|(id, user)| User {
            id: id.0,
            name: user.name.clone(),
            removed: user.removed,
            quota: members.quotas.get(id).copied(),
        });
        let groups = members.groups.iter().map(|(id, group)| Group {
            id: id.0,
            name: group.name.clone(),
            members: group.members.iter().map(name_of).collect(),
            groups: group.groups.iter().map(group_name).collect(),
            all: members.effective_members(*id).iter().map(name_of).collect(),
            removed: group.removed,
        });
        let devices = members.devices.iter().map(|(id, device)| Device {
            id: id.0,
            name: device.name.clone(),
            user: name_of(&device.user),
            public_key: holdfast_crypto::keyfile::format_public(&device.key, ""),
            removed: device.removed_at.is_some(),
        });
        MembershipReport {
            name: members.name.clone(),
            version: members.version,
            users: users.collect(),
            groups: groups.collect(),
            devices: devices.collect(),
        }
    }
}

/// Makes a change with a running engine; returns what was done, in words.
fn make(engine: &Arc<Engine>, change: &Change) -> Outcome<String> {
    let admin = Admin::new(engine)?;
    let members = admin.membership()?;
    check(engine, &members, change)?;
    Ok(match change {
        Change::SetQuota { user, bytes } => {
            admin.set_quota(user, *bytes)?;
            match bytes {
                Some(bytes) => {
                    format!("user {user} may store {bytes} bytes at the server; what is there already stays")
                }
                None => format!("user {user} may store any amount"),
            }
        }
        Change::AddUser { name, device, key, directory } => {
            admin.add_user(name, Some((device, PublicKey(*key))), home(*directory), now_ns())?;
            format!("user {name} was added, with device {device}{}", directory_note(name, *directory))
        }
        Change::RemoveUser { name } => {
            admin.remove_user(name)?;
            format!("user {name} and all devices of theirs were removed; what they wrote stays")
        }
        Change::AddGroup { name, users, directory } => {
            let users: Vec<&str> = users.iter().map(String::as_str).collect();
            admin.add_group(name, &users, home(*directory), now_ns())?;
            format!(
                "group {name} was added, with {}{}",
                members_note(&users),
                directory_note(name, *directory)
            )
        }
        Change::RemoveGroup { name } => {
            let departure = admin.remove_group(name)?;
            format!("group {name} was removed; what it wrote stays{}", departure_note(&departure))
        }
        Change::Join { group, users } => {
            for user in belonging(&members, group, users, false) {
                admin.add_member(group, user)?;
            }
            format!("{} joined group {group}", users.join(", "))
        }
        Change::Leave { group, users } => {
            let mut departure = GroupDepartures::default();
            for user in belonging(&members, group, users, true) {
                let one = admin.remove_member(group, user)?;
                departure.adopted += one.adopted;
                departure.left.extend(one.left);
            }
            format!("{} left group {group}{}", users.join(", "), departure_note(&departure))
        }
        Change::AddDevice { user, name, key } => {
            let number = admin.add_device(user, name, PublicKey(*key))?;
            format!("device {name} of user {user} was added (device {})", number.0)
        }
        Change::RotateDevice { user, name, key } => {
            let number = admin.rotate_device(user, name, PublicKey(*key))?;
            format!(
                "device {name} of user {user} has a new key (device {}); nothing the old key signs from now on counts",
                number.0
            )
        }
        Change::RemoveDevice { user, name } => {
            admin.remove_device(user, name)?;
            format!("device {name} of user {user} was removed; nothing it signs from now on counts")
        }
    })
}

fn home(directory: bool) -> Home {
    if directory { Home::Make } else { Home::None }
}

fn directory_note(name: &str, directory: bool) -> String {
    if directory { format!("; /{name} is theirs") } else { String::new() }
}

fn members_note(users: &[&str]) -> String {
    if users.is_empty() { "no members yet".to_owned() } else { format!("members {}", users.join(", ")) }
}

/// A note that lists the users who are no longer in a group.
fn departure_note(departure: &GroupDepartures) -> String {
    let mut note = String::new();
    for (group, users) in departure.left.iter().filter(|(_, users)| !users.is_empty()) {
        note += &format!("; no longer in {group}: {}", users.join(", "));
    }
    if !departure.left.is_empty() {
        note += &format!("; {} files of theirs in it were taken over", departure.adopted);
    }
    note
}

/// Prepares a signing request for a change, to be carried in a file to the superuser's off-line key.
fn prepare(engine: &Arc<Engine>, url: &str, change: &Change) -> Outcome<Bytes> {
    let members = engine.fetch()?.membership();
    check(engine, &members, change)?;
    if let Change::Leave { group, users } = change
        && belonging(&members, group, users, true).is_empty()
    {
        return Err(Failure::new(Exit::Failed, format!("{} not in group {group}", users.join(", "))));
    }
    let change = change.clone();
    let request = off_line::prepare(engine, url.to_owned(), move |members| apply(&change, members))?;
    let request = request.to_bytes().map_err(|why| Failure::new(Exit::Internal, why))?;
    Ok(Bytes(request))
}

/// Submits a change that the superuser has signed; returns what was done, in words.
fn submit(engine: &Arc<Engine>, signed: &[u8]) -> Outcome<String> {
    let request = SigningRequest::from_bytes(signed).map_err(unusable_request)?;
    let submitted = off_line::submit(engine, &request, now_ns())?;
    let mut done = format!("in force: {}", request.words().join("; "));
    if submitted.adopted > 0 {
        done += &format!("; {} files of groups were taken over", submitted.adopted);
    }
    match (&request.home, submitted.no_home) {
        (Some((_, name)), None) => done += &format!("; /{name} is theirs"),
        (Some((_, name)), Some(why)) => {
            done += &format!(
                "; /{name} was not made ({why}): the superuser makes directories under the root, or one of the \
                 superuser's devices submits the same file"
            );
        }
        (None, _) => {}
    }
    Ok(done)
}

/// Applies a change to a membership. Returns the user or group that is to get a directory, and its name.
fn apply(change: &Change, members: &mut Membership) -> Result<Option<(PrincipalId, String)>, FsError> {
    match change {
        Change::AddUser { name, device, key, directory } => {
            let id = changes::add_user(members, name, Some((device, PublicKey(*key))))?;
            return Ok(directory.then(|| (PrincipalId::User(id), name.clone())));
        }
        Change::AddGroup { name, users, directory } => {
            let id = changes::add_group(members, name, users)?;
            return Ok(directory.then(|| (PrincipalId::Group(id), name.clone())));
        }
        Change::RemoveUser { name } => changes::remove_user(members, name)?,
        Change::RemoveGroup { name } => changes::remove_group(members, name)?,
        Change::Join { group, users } => {
            let new = belonging(members, group, users, false);
            new.into_iter().try_for_each(|user| changes::add_member(members, group, user))?;
        }
        Change::Leave { group, users } => {
            let gone = belonging(members, group, users, true);
            gone.into_iter().try_for_each(|user| changes::remove_member(members, group, user))?;
        }
        Change::AddDevice { user, name, key } => {
            changes::add_device(members, user, name, PublicKey(*key))?;
        }
        Change::RotateDevice { user, name, key } => {
            changes::rotate_device(members, user, name, PublicKey(*key))?;
        }
        Change::RemoveDevice { user, name } => changes::remove_device(members, user, name)?,
        Change::SetQuota { user, bytes } => changes::set_quota(members, user, *bytes)?,
    }
    Ok(None)
}

/// The failure for a signing request that cannot be used.
pub fn unusable_request(why: ChangeFileError) -> Failure {
    let code = match why {
        ChangeFileError::Newer(_) => Exit::Newer,
        ChangeFileError::NotSigned => Exit::NotAllowed,
        ChangeFileError::Malformed(_) => Exit::Data,
    };
    Failure::new(code, why)
}

/// What a user has stored at the server.
#[derive(Debug, Serialize, Deserialize)]
pub struct QuotaUsage {
    /// Name of the user.
    pub user: String,
    /// Blocks that the user's devices stored first.
    pub blocks: u64,
    /// Their bytes as stored.
    pub bytes: u64,
    /// Most bytes that the user may store; `null`: no limit.
    pub limit: Option<u64>,
}

/// Asks the server how much each user has stored.
fn usage(engine: &Engine) -> Outcome<Vec<QuotaUsage>> {
    let members = engine.fetch()?.membership();
    let name = |user| members.users.get(user).map_or("?", |user| user.name.as_str()).to_owned();
    let usage = engine.usage()?;
    let stored = usage.iter().map(|usage| QuotaUsage {
        user: name(&usage.user),
        blocks: usage.blocks,
        bytes: usage.bytes,
        limit: usage.limit,
    });
    Ok(stored.collect())
}
