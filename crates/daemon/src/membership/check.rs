//! Checks a change of the membership before it is made, so that a refusal can say what is wrong. The engine
//! checks again where the change is ordered.

use super::Change;
use holdfast_client::{Engine, View};
use holdfast_content::{self as content, GROUP_DEPTH_MAX, GroupId, Handle, Member, UserId};
use holdfast_crypto::PublicKey;
use holdfast_failure::{Exit, Failure, Outcome};

/// Refuses a change that is not possible, naming the reason.
pub(super) fn check(engine: &Engine, members: &content::Membership, change: &Change) -> Outcome {
    let names = Names(members);
    let known_device = |user: &str, name: &str| match names.device(names.user(user)?, name) {
        Some(_) => Ok(()),
        None => Err(unknown(format!("user {user} has no device named '{name}'"))),
    };
    match change {
        Change::SetQuota { user, .. } => names.user(user).map(drop),
        Change::AddUser { name, device, key, directory } => {
            usable(name)?;
            usable(device)?;
            names.free_user(name)?;
            names.free_key(&PublicKey(*key))?;
            names.free_directory(engine, name, *directory)
        }
        Change::RemoveUser { name } => names.user(name).map(drop),
        Change::AddGroup { name, users, directory } => {
            usable(name)?;
            names.free_group(name)?;
            users.iter().try_for_each(|user| names.member(user).map(drop))?;
            names.free_directory(engine, name, *directory)
        }
        Change::RemoveGroup { name } => names.group(name).map(drop),
        Change::Join { group, users } => {
            let id = names.group(group)?;
            let joining = users.iter().map(|user| names.member(user)).collect::<Outcome<Vec<_>>>()?;
            names.fits(id, joining.into_iter())
        }
        Change::Leave { group, users } => {
            names.group(group)?;
            users.iter().try_for_each(|user| names.member(user).map(drop))
        }
        Change::AddDevice { user, name, key } => {
            usable(name)?;
            let id = names.user(user)?;
            names.free_key(&PublicKey(*key))?;
            match names.device(id, name) {
                None => Ok(()),
                Some(_) => Err(taken(format!("user {user} has a device named '{name}' already"))),
            }
        }
        Change::RotateDevice { user, name, .. } | Change::RemoveDevice { user, name } => {
            known_device(user, name)
        }
    }
}

/// Those of `users` who are direct members of the group if `inside`, or those who are not.
pub(super) fn belonging<'a>(
    members: &content::Membership,
    group: &str,
    users: &'a [String],
    inside: bool,
) -> Vec<&'a str> {
    let names = Names(members);
    let group = members.group_by_name(group);
    let is_inside = |user: &str| {
        group.zip(members.member_by_name(user)).is_some_and(|(group, member)| names.has(group, member))
    };
    users.iter().map(String::as_str).filter(|user| is_inside(user) == inside).collect()
}

/// Checks that a name can be used: names become directories, and are typed in commands.
fn usable(name: &str) -> Outcome {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '@' | '+');
    let fine =
        !name.is_empty() && name.len() <= 64 && !name.starts_with(['-', '.', '@']) && name.chars().all(plain);
    if fine {
        return Ok(());
    }
    Err(Failure::new(Exit::Usage, format!("'{}' cannot be a name", name.escape_default()))
        .hint("a name has 1 to 64 letters, digits or any of - _ . @ + and begins with none of - . @"))
}

fn taken(message: String) -> Failure {
    Failure::new(Exit::Failed, message)
}

fn unknown(message: String) -> Failure {
    Failure::new(Exit::NoUser, message)
}

/// Looks names up; a refusal says which name is wrong.
struct Names<'a>(&'a content::Membership);

impl Names<'_> {
    fn user(&self, name: &str) -> Outcome<UserId> {
        self.0.user_by_name(name).ok_or_else(|| unknown(format!("there is no user named '{name}'")))
    }

    fn group(&self, name: &str) -> Outcome<GroupId> {
        self.0.group_by_name(name).ok_or_else(|| unknown(format!("there is no group named '{name}'")))
    }

    /// A user, or a group written with `@`.
    fn member(&self, name: &str) -> Outcome<Member> {
        self.0.member_by_name(name).ok_or_else(|| match name.strip_prefix('@') {
            Some(group) => unknown(format!("there is no group named '{group}'")),
            None if self.0.group_by_name(name).is_some() => {
                unknown(format!("there is no user named '{name}'"))
                    .hint(format!("name the group of that name with an @: @{name}"))
            }
            None => unknown(format!("there is no user named '{name}'")),
        })
    }

    fn has(&self, group: GroupId, member: Member) -> bool {
        let group = &self.0.groups[&group];
        match member {
            Member::User(user) => group.members.contains(&user),
            Member::Group(inner) => group.groups.contains(&inner),
        }
    }

    /// Checks that all of these may become members of a group.
    fn fits(&self, group: GroupId, joining: impl Iterator<Item = Member>) -> Outcome {
        let name = |group: GroupId| self.0.groups[&group].name.clone();
        let mut next = self.0.clone();
        for member in joining {
            if let Member::Group(inner) = member
                && next.groups_within(inner).contains(&group)
            {
                let why = match inner == group {
                    true => format!("group {} cannot be a member of itself", name(group)),
                    false => format!(
                        "group {} is within {}, so it cannot be around it too",
                        name(group),
                        name(inner)
                    ),
                };
                return Err(
                    Failure::new(Exit::Usage, why).hint("`holdfast fs group list` shows who is in which")
                );
            }
            next.admit(group, member);
        }
        next.validate().map_err(|why| {
            Failure::new(Exit::Usage, format!("group {} cannot have these members: {why}", name(group))).hint(
                format!("groups may be {GROUP_DEPTH_MAX} deep; put people into the outer ones directly"),
            )
        })
    }

    fn device(&self, user: UserId, name: &str) -> Option<&content::Device> {
        let mut devices = self.0.devices.values();
        devices.find(|device| device.user == user && device.name == name && device.removed_at.is_none())
    }

    fn free_user(&self, name: &str) -> Outcome {
        match self.0.user_by_name(name) {
            Some(_) => Err(taken(format!("there is a user named '{name}' already"))
                .hint("`holdfast fs device add` enrols another device of theirs")),
            None => Ok(()),
        }
    }

    fn free_group(&self, name: &str) -> Outcome {
        match self.0.group_by_name(name) {
            Some(_) => Err(taken(format!("there is a group named '{name}' already"))
                .hint("`holdfast fs group join` adds members to it")),
            None => Ok(()),
        }
    }

    fn free_key(&self, key: &PublicKey) -> Outcome {
        let Some(device) = self.0.devices.values().find(|device| device.key == *key) else { return Ok(()) };
        let user = self.0.users.get(&device.user).map_or("?", |user| user.name.as_str());
        let state = if device.removed_at.is_some() { ", which was removed" } else { "" };
        Err(taken(format!("this key is that of device {} of user {user} already{state}", device.name)).hint(
            "every device has a key of its own, and none is ever used again: make one with `holdfast keygen`",
        ))
    }

    /// Refuses a name if a directory is wanted and the name exists already.
    fn free_directory(&self, engine: &Engine, name: &str, wanted: bool) -> Outcome {
        if wanted && engine.latest().entry(Handle::ROOT, name.as_bytes())?.is_some() {
            return Err(taken(format!("/{name} exists already")).hint("rename it, or use --no-directory"));
        }
        Ok(())
    }
}
