//! `holdfast fs`: users, groups and devices.
//!
//! Changes are signed with the superuser's key. When a process serves mounts of that key, it makes them, because
//! it holds the signer; otherwise a signer is started here for the one change.

use crate::args::{DeviceCommand, FsCommand, FsCreate, GroupCommand, UserCommand};
use crate::control::{Client, Order};
use crate::exit::{Exit, Failure, Outcome};
use crate::keys::{self, Key, started};
use crate::output::{Format, clean, progress, table};
use crate::paths::{Directories, make_private};
use crate::time::now_ns;
use holdfast_client::admin::{self, Admin, CreateConfig, CreateError, Home};
use holdfast_client::{Engine, EngineConfig, Tree};
use holdfast_content::{self as content, GroupId, Handle, UserId};
use holdfast_crypto::PublicKey;
use holdfast_rpc::{Address, ServerAddress};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often a command tries again while another one uses the key.
const ATTEMPTS: u32 = 100;
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an administrative command waits for the server.
const DEADLINE: Duration = Duration::from_secs(30);

/// What the superuser is called.
const SUPERUSER_NAME: &str = "superuser";
/// What everybody must know about a new file system.
const NOTICE: &str = "\
Give this address to its members; it is all they need to tell the true file system from a false one.
Note: every member can read everything in it, and so can whoever runs the server (until sealing exists).
Nobody can change what another has written without being found out.";

/// A change of the membership, or a look at it, as it travels to the process that serves the key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// Show everything.
    Show,
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
    /// Remove a user and all devices of theirs.
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
        /// Who.
        users: Vec<String>,
    },
    /// Take members out of a group.
    Leave {
        /// Name of the group.
        group: String,
        /// Who.
        users: Vec<String>,
    },
    /// Enrol a device of a user.
    AddDevice {
        /// Whose.
        user: String,
        /// Name of the device.
        name: String,
        /// Its public key.
        key: [u8; 32],
    },
    /// Put a new key in the place of a device's.
    RotateDevice {
        /// Whose.
        user: String,
        /// Name of the device.
        name: String,
        /// Its new public key.
        key: [u8; 32],
    },
    /// Remove a device.
    RemoveDevice {
        /// Whose.
        user: String,
        /// Name of the device.
        name: String,
    },
}

/// The membership, as it is printed.
#[derive(Serialize, Deserialize)]
struct Membership {
    name: String,
    version: u64,
    users: Vec<User>,
    groups: Vec<Group>,
    devices: Vec<Device>,
}

#[derive(Serialize, Deserialize)]
struct User {
    id: u32,
    name: String,
    removed: bool,
}

#[derive(Serialize, Deserialize)]
struct Group {
    id: u32,
    name: String,
    members: Vec<String>,
    removed: bool,
}

#[derive(Serialize, Deserialize)]
struct Device {
    id: u32,
    name: String,
    user: String,
    public_key: String,
    removed: bool,
}

/// `holdfast fs`
pub fn run(command: &FsCommand, directories: &Directories, format: Format) -> Outcome {
    match command {
        FsCommand::Create(arguments) => create(arguments, directories, format),
        FsCommand::Revoke(arguments) => crate::revoked::revoke(arguments, format),
        FsCommand::Bundle(arguments) => crate::recovery::bundle::run(arguments, directories, format),
        FsCommand::Rebuild(arguments) => crate::recovery::rebuild::run(arguments, format),
        FsCommand::Show(read) => show(&read.url, &read.key, directories, format, Membership::describe),
        FsCommand::User(arguments) => match &arguments.command {
            UserCommand::List(read) => {
                show(&read.url, &read.key, directories, format, Membership::list_users)
            }
            UserCommand::Add { administer, name, key, device, no_directory } => {
                let change = Change::AddUser {
                    name: name.clone(),
                    device: device.clone(),
                    key: keys::read_public(key)?.0,
                    directory: !no_directory,
                };
                apply(&administer.url, &administer.superuser, change, directories, format)
            }
            UserCommand::Remove { administer, name } => {
                let change = Change::RemoveUser { name: name.clone() };
                apply(&administer.url, &administer.superuser, change, directories, format)
            }
        },
        FsCommand::Group(arguments) => match &arguments.command {
            GroupCommand::List(read) => {
                show(&read.url, &read.key, directories, format, Membership::list_groups)
            }
            GroupCommand::Add { administer, name, users, no_directory } => {
                let change =
                    Change::AddGroup { name: name.clone(), users: users.clone(), directory: !no_directory };
                apply(&administer.url, &administer.superuser, change, directories, format)
            }
            GroupCommand::Remove { administer, name } => {
                let change = Change::RemoveGroup { name: name.clone() };
                apply(&administer.url, &administer.superuser, change, directories, format)
            }
            GroupCommand::Join(to) => {
                let change = Change::Join { group: to.group.clone(), users: to.users.clone() };
                apply(&to.administer.url, &to.administer.superuser, change, directories, format)
            }
            GroupCommand::Leave(from) => {
                let change = Change::Leave { group: from.group.clone(), users: from.users.clone() };
                apply(&from.administer.url, &from.administer.superuser, change, directories, format)
            }
        },
        FsCommand::Device(arguments) => match &arguments.command {
            DeviceCommand::List(read) => {
                show(&read.url, &read.key, directories, format, Membership::list_devices)
            }
            DeviceCommand::Add { administer, user, name, key } => {
                let key = keys::read_public(key)?.0;
                let change = Change::AddDevice { user: user.clone(), name: name.clone(), key };
                apply(&administer.url, &administer.superuser, change, directories, format)
            }
            DeviceCommand::Rotate { administer, user, name, key } => {
                let key = keys::read_public(key)?.0;
                let change = Change::RotateDevice { user: user.clone(), name: name.clone(), key };
                apply(&administer.url, &administer.superuser, change, directories, format)
            }
            DeviceCommand::Remove { administer, user, name } => {
                let change = Change::RemoveDevice { user: user.clone(), name: name.clone() };
                apply(&administer.url, &administer.superuser, change, directories, format)
            }
        },
    }
}

#[derive(Serialize)]
struct Done {
    done: String,
}

fn apply(url: &str, key: &Path, change: Change, directories: &Directories, format: Format) -> Outcome {
    let done: String = ask(url, key, change, directories)?;
    format.print(&Done { done }, |done| clean(&done.done))
}

fn show(
    url: &str,
    key: &Path,
    directories: &Directories,
    format: Format,
    text: impl FnOnce(&Membership) -> String,
) -> Outcome {
    let membership: Membership = ask(url, key, Change::Show, directories)?;
    format.print(&membership, |membership| clean(&text(membership)))
}

/// Has a change made: by the process that serves the key's mounts, or here.
fn ask<T: serde::de::DeserializeOwned>(
    url: &str,
    key: &Path,
    change: Change,
    directories: &Directories,
) -> Outcome<T> {
    let address: Address = url.parse()?;
    let key = keys::read(key)?;
    let state_dir = directories.state_of(&address.file_system, &key.public())?;
    make_private(&state_dir)?;
    let bar = progress("asking the server");
    let result = attempt(&address, key, &state_dir, &change, directories);
    bar.finish_and_clear();
    serde_json::from_value(result?).map_err(|error| {
        Failure::new(
            Exit::Protocol,
            format!("the process that serves the mounts is of another version: {error}"),
        )
    })
}

fn attempt(
    address: &Address,
    key: Key,
    state_dir: &Path,
    change: &Change,
    directories: &Directories,
) -> Outcome<serde_json::Value> {
    let mut attempt = 0;
    let mut key = Some(key);
    let mut processes = None;
    loop {
        if let Some(process) = Client::connect(state_dir)? {
            return process.call(&Order::Administer(change.clone()));
        }
        let processes = started(&mut key, &mut processes)?;
        let mut config = EngineConfig::with_processes(address.clone(), processes, state_dir.to_owned());
        let cache = directories.cache_of(&address.file_system)?;
        make_private(&cache)?;
        config.cache_dir = Some(cache);
        config.deadline = DEADLINE;
        match Engine::start(config).map_err(Failure::from) {
            // Another command uses the key just now, or a mount is about to.
            Err(failure) if failure.code == Exit::InUse && attempt < ATTEMPTS => {
                attempt += 1;
                std::thread::sleep(PAUSE);
            }
            Err(failure) => return Err(failure),
            Ok(engine) => {
                let result = carry_out(&engine, change);
                engine.stop();
                return result;
            }
        }
    }
}

impl Membership {
    fn describe(&self) -> String {
        format!(
            "{}: membership, version {}\n\nUsers\n{}\n\nGroups\n{}\n\nDevices\n{}",
            self.name,
            self.version,
            self.list_users(),
            self.list_groups(),
            self.list_devices()
        )
    }

    fn list_users(&self) -> String {
        let mut devices: BTreeMap<&str, u32> = BTreeMap::new();
        for device in self.devices.iter().filter(|device| !device.removed) {
            *devices.entry(&device.user).or_default() += 1;
        }
        let rows: Vec<Vec<String>> = self
            .users
            .iter()
            .map(|user| {
                let count = devices.get(user.name.as_str()).copied().unwrap_or(0);
                let state = match count {
                    _ if user.removed => "removed".to_owned(),
                    1 => "1 device".to_owned(),
                    count => format!("{count} devices"),
                };
                vec![format!("  {}", user.name), state]
            })
            .collect();
        or_none(table(&rows))
    }

    fn list_groups(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .groups
            .iter()
            .map(|group| {
                let state = if group.removed { "removed".to_owned() } else { group.members.join(", ") };
                vec![format!("  {}", group.name), state]
            })
            .collect();
        or_none(table(&rows))
    }

    fn list_devices(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .devices
            .iter()
            .map(|device| {
                let state = if device.removed { "removed" } else { "" };
                let name = format!("{} {}", device.user, device.name);
                vec![format!("  {:>3}", device.id), name, device.public_key.clone(), state.to_owned()]
            })
            .collect();
        or_none(table(&rows))
    }
}

fn or_none(text: String) -> String {
    if text.is_empty() { "  (none)".to_owned() } else { text }
}

/// `holdfast fs create`
fn create(arguments: &FsCreate, directories: &Directories, format: Format) -> Outcome {
    let server: ServerAddress = arguments.server.parse()?;
    let superuser = keys::read(&arguments.superuser)?;
    let key = superuser.public();
    let state_dir = directories.state_of(&key.file_system_id(), &key)?;
    make_private(&state_dir)?;
    let bar = progress("creating the file system");
    let processes = superuser.into_processes()?;
    processes.begin(&state_dir, &key.file_system_id(), None)?;
    let config = CreateConfig {
        server,
        superuser: processes.clone(),
        name: arguments.name.clone(),
        superuser_name: SUPERUSER_NAME.to_owned(),
        state_dir,
        now_ns: now_ns(),
        deadline: DEADLINE,
    };
    let created = admin::create_by(&config, &processes);
    bar.finish_and_clear();
    let address = created.map_err(|error| match &error {
        CreateError::Exists => Failure::new(Exit::Failed, error),
        CreateError::NotAllowed(_) => Failure::new(Exit::NotAllowed, &error).hint(format!(
            "its operator can allow it: holdfast server allow --data DIR '{}'",
            holdfast_crypto::keyfile::format_public(&key, "")
        )),
        CreateError::BadName(_) => Failure::new(Exit::Usage, error),
        CreateError::Unreachable(_) | CreateError::Key(_) => Failure::new(Exit::Unavailable, error),
        CreateError::Refused(_) => Failure::new(Exit::Protocol, error),
        CreateError::State(..) => Failure::new(Exit::Io, error),
    })?;
    let address = address.to_string();
    format.print(&serde_json::json!({ "address": address, "notice": NOTICE }), |_| {
        format!("{address}\n\n{NOTICE}")
    })
}

/// Makes a change with a signer that runs; the answer is what [`ask`] returns.
pub fn carry_out(engine: &Arc<Engine>, change: &Change) -> Outcome<serde_json::Value> {
    if *change == Change::Show {
        let membership = Membership::of(&engine.fetch()?.membership());
        return serde_json::to_value(membership).map_err(|error| Failure::new(Exit::Internal, error));
    }
    let admin = Admin::new(engine)?;
    let members = admin.membership()?;
    let names = Names(&members);
    let done = match change {
        Change::Show => String::new(),
        Change::AddUser { name, device, key, directory } => {
            usable(name)?;
            usable(device)?;
            names.free_user(name)?;
            names.free_key(&PublicKey(*key))?;
            names.free_directory(engine, name, *directory)?;
            admin.add_user(name, Some((device, PublicKey(*key))), home(*directory), now_ns())?;
            format!("user {name} was added, with device {device}{}", directory_note(name, *directory))
        }
        Change::RemoveUser { name } => {
            names.user(name)?;
            admin.remove_user(name)?;
            format!("user {name} and all devices of theirs were removed; what they wrote stays")
        }
        Change::AddGroup { name, users, directory } => {
            usable(name)?;
            names.free_group(name)?;
            users.iter().try_for_each(|user| names.user(user).map(drop))?;
            names.free_directory(engine, name, *directory)?;
            let users: Vec<&str> = users.iter().map(String::as_str).collect();
            admin.add_group(name, &users, home(*directory), now_ns())?;
            format!(
                "group {name} was added, with {}{}",
                members_note(&users),
                directory_note(name, *directory)
            )
        }
        Change::RemoveGroup { name } => {
            names.group(name)?;
            admin.remove_group(name)?;
            format!("group {name} was removed; what it wrote stays")
        }
        Change::Join { group, users } => {
            let id = names.group(group)?;
            for user in users {
                let user_id = names.user(user)?;
                if !members.groups[&id].members.contains(&user_id) {
                    admin.add_member(group, user)?;
                }
            }
            format!("{} joined group {group}", users.join(", "))
        }
        Change::Leave { group, users } => {
            let id = names.group(group)?;
            let mut adopted = 0;
            for user in users {
                let user_id = names.user(user)?;
                if members.groups[&id].members.contains(&user_id) {
                    adopted += admin.remove_member(group, user)?;
                }
            }
            format!("{} left group {group}; {adopted} files of the group were taken over", users.join(", "))
        }
        Change::AddDevice { user, name, key } => {
            usable(name)?;
            let id = names.user(user)?;
            names.free_key(&PublicKey(*key))?;
            if names.device(id, name).is_some() {
                return Err(taken(format!("user {user} has a device named '{name}' already")));
            }
            let number = admin.add_device(user, name, PublicKey(*key))?;
            format!("device {name} of user {user} was added (device {})", number.0)
        }
        Change::RotateDevice { user, name, key } => {
            let id = names.user(user)?;
            if names.device(id, name).is_none() {
                return Err(unknown(format!("user {user} has no device named '{name}'")));
            }
            let number = admin.rotate_device(user, name, PublicKey(*key))?;
            format!(
                "device {name} of user {user} has a new key (device {}); nothing the old key signs from now on counts",
                number.0
            )
        }
        Change::RemoveDevice { user, name } => {
            let id = names.user(user)?;
            if names.device(id, name).is_none() {
                return Err(unknown(format!("user {user} has no device named '{name}'")));
            }
            admin.remove_device(user, name)?;
            format!("device {name} of user {user} was removed; nothing it signs from now on counts")
        }
    };
    Ok(serde_json::Value::String(done))
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

/// Names become directories and are typed in commands.
fn usable(name: &str) -> Outcome {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '@' | '+');
    let fine =
        !name.is_empty() && name.len() <= 64 && !name.starts_with(['-', '.']) && name.chars().all(plain);
    if fine {
        return Ok(());
    }
    Err(Failure::new(Exit::Usage, format!("'{}' cannot be a name", clean(name)))
        .hint("a name has 1 to 64 letters, digits or any of - _ . @ + and begins with neither - nor ."))
}

fn taken(message: String) -> Failure {
    Failure::new(Exit::Failed, message)
}

fn unknown(message: String) -> Failure {
    Failure::new(Exit::NoUser, message)
}

/// Looks names up, so that a refusal can say which. The engine checks again where the change is ordered.
struct Names<'a>(&'a content::Membership);

impl Names<'_> {
    fn user(&self, name: &str) -> Outcome<UserId> {
        self.0.user_by_name(name).ok_or_else(|| unknown(format!("there is no user named '{name}'")))
    }

    fn group(&self, name: &str) -> Outcome<GroupId> {
        self.0.group_by_name(name).ok_or_else(|| unknown(format!("there is no group named '{name}'")))
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

    /// A directory of the name that somebody else has made would be in the way.
    fn free_directory(&self, engine: &Engine, name: &str, wanted: bool) -> Outcome {
        if wanted && engine.latest().entry(Handle::ROOT, name.as_bytes())?.is_some() {
            return Err(taken(format!("/{name} exists already")).hint("rename it, or use --no-directory"));
        }
        Ok(())
    }
}

impl Membership {
    fn of(members: &content::Membership) -> Membership {
        let name_of =
            |user: &UserId| members.users.get(user).map_or("?", |user| user.name.as_str()).to_owned();
        let users = members.users.iter().map(|(id, user)| User {
            id: id.0,
            name: user.name.clone(),
            removed: user.removed,
        });
        let groups = members.groups.iter().map(|(id, group)| Group {
            id: id.0,
            name: group.name.clone(),
            members: group.members.iter().map(name_of).collect(),
            removed: group.removed,
        });
        let devices = members.devices.iter().map(|(id, device)| Device {
            id: id.0,
            name: device.name.clone(),
            user: name_of(&device.user),
            public_key: holdfast_crypto::keyfile::format_public(&device.key, ""),
            removed: device.removed_at.is_some(),
        });
        Membership {
            name: members.name.clone(),
            version: members.version,
            users: users.collect(),
            groups: groups.collect(),
            devices: devices.collect(),
        }
    }
}
