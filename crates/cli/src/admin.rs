//! `holdfast fs`: users, groups and devices.
//!
//! Changes are signed with the superuser's key. When a process serves mounts of that key, it makes them, because
//! it holds the signer; otherwise a signer is started here for the one change.

mod off_line;

use crate::args::{Administer, DeviceCommand, FsCommand, FsCreate, GroupCommand, UserCommand};
use crate::control::{Client, Order};
use crate::exit::{Exit, Failure, Outcome};
use crate::keys::{self, Key, started};
use crate::output::{Format, clean, progress, table};
use crate::paths::{Directories, make_private};
use crate::time::now_ns;
use holdfast_client::admin::{self, Admin, CreateConfig, CreateError, Departure, Home};
use holdfast_client::{Engine, EngineConfig, Tree};
use holdfast_content::{self as content, GROUP_DEPTH_MAX, GroupId, Handle, Member, UserId};
use holdfast_crypto::PublicKey;
use holdfast_rpc::{Address, ServerAddress};
use indicatif::HumanBytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often a command tries again while another one uses the key.
const ATTEMPTS: u32 = 100;
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an administrative command waits for the server: longer than a server that has crashed waits for leases of
/// mounts that do not come back (their term, 45 s).
pub const DEADLINE: Duration = Duration::from_secs(75);

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
    /// Show what is stored at the server, by whom.
    Usage,
    /// Limit what a user may store.
    SetQuota {
        /// Name of the user.
        user: String,
        /// How much; `None`: any amount.
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
    /// Make none of these, but a request for the superuser's signature under one.
    Prepare {
        /// The file system's address.
        url: String,
        /// The change.
        change: Box<Change>,
    },
    /// Bring one that is signed into the order.
    Submit {
        /// The file's bytes.
        signed: Vec<u8>,
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
    /// Most bytes that they may have stored at the server; `null`: any number.
    quota: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct Group {
    id: u32,
    name: String,
    /// Users who are members by themselves.
    members: Vec<String>,
    /// Groups that are members.
    groups: Vec<String>,
    /// All who belong to it.
    all: Vec<String>,
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
        FsCommand::Sign(arguments) => off_line::sign(arguments, directories, format),
        FsCommand::Submit(arguments) => off_line::submit(arguments, directories, format),
        FsCommand::Revoke(arguments) => crate::revoked::revoke(arguments, format),
        FsCommand::Bundle(arguments) => crate::recovery::bundle::run(arguments, directories, format),
        FsCommand::Restored(arguments) => crate::recovery::restored::run(arguments, directories, format),
        FsCommand::Rebuild(arguments) => crate::recovery::rebuild::run(arguments, format),
        FsCommand::Show(read) => show(&read.url, &read.key, directories, format, Membership::describe),
        FsCommand::Quota(arguments) => crate::quota::run(arguments, directories, format),
        FsCommand::Import(arguments) => crate::import::run(arguments, directories, format),
        FsCommand::Stats(arguments) => crate::stats::run(arguments, directories, format),
        FsCommand::Reclaim(arguments) => crate::reclaim::run(arguments, directories, format),
        FsCommand::State(arguments) => crate::state::run(arguments, directories, format),
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
                apply(administer, change, directories, format)
            }
            UserCommand::Remove { administer, name } => {
                let change = Change::RemoveUser { name: name.clone() };
                apply(administer, change, directories, format)
            }
        },
        FsCommand::Group(arguments) => match &arguments.command {
            GroupCommand::List(read) => {
                show(&read.url, &read.key, directories, format, Membership::list_groups)
            }
            GroupCommand::Add { administer, name, users, no_directory } => {
                let change =
                    Change::AddGroup { name: name.clone(), users: users.clone(), directory: !no_directory };
                apply(administer, change, directories, format)
            }
            GroupCommand::Remove { administer, name } => {
                let change = Change::RemoveGroup { name: name.clone() };
                apply(administer, change, directories, format)
            }
            GroupCommand::Join(to) => {
                let change = Change::Join { group: to.group.clone(), users: to.users.clone() };
                apply(&to.administer, change, directories, format)
            }
            GroupCommand::Leave(from) => {
                let change = Change::Leave { group: from.group.clone(), users: from.users.clone() };
                apply(&from.administer, change, directories, format)
            }
        },
        FsCommand::Device(arguments) => match &arguments.command {
            DeviceCommand::List(read) => {
                show(&read.url, &read.key, directories, format, Membership::list_devices)
            }
            DeviceCommand::Add { administer, user, name, key } => {
                let key = keys::read_public(key)?.0;
                let change = Change::AddDevice { user: user.clone(), name: name.clone(), key };
                apply(administer, change, directories, format)
            }
            DeviceCommand::Rotate { administer, user, name, key } => {
                let key = keys::read_public(key)?.0;
                let change = Change::RotateDevice { user: user.clone(), name: name.clone(), key };
                apply(administer, change, directories, format)
            }
            DeviceCommand::Remove { administer, user, name } => {
                let change = Change::RemoveDevice { user: user.clone(), name: name.clone() };
                apply(administer, change, directories, format)
            }
        },
    }
}

#[derive(Serialize)]
struct Done {
    done: String,
}

/// Has a change made, or prepared for the superuser's signature, and says what was done.
pub fn apply(administer: &Administer, change: Change, directories: &Directories, format: Format) -> Outcome {
    let Administer { url, superuser, prepare, member } = administer;
    let superuser = match (superuser, prepare, member) {
        (Some(superuser), ..) => superuser,
        (None, Some(out), Some(key)) => {
            return off_line::prepare(url, key, change, out, directories, format);
        }
        _ => return Err(Failure::new(Exit::Usage, "give --superuser, or --prepare with --key")),
    };
    let done: String = ask(url, superuser, change, directories)?;
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
pub fn ask<T: serde::de::DeserializeOwned>(
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
                let mut state = match count {
                    _ if user.removed => "removed".to_owned(),
                    1 => "1 device".to_owned(),
                    count => format!("{count} devices"),
                };
                if let Some(quota) = user.quota {
                    state += &format!(", may store {}", HumanBytes(quota));
                }
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
                let inner = group.groups.iter().map(|inner| format!("@{inner}"));
                let direct: Vec<String> = group.members.iter().cloned().chain(inner).collect();
                let state = match (group.removed, group.groups.is_empty()) {
                    (true, _) => "removed".to_owned(),
                    (false, true) => direct.join(", "),
                    (false, false) => format!("{} (that is: {})", direct.join(", "), or_nobody(&group.all)),
                };
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

fn or_nobody(names: &[String]) -> String {
    if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
}

fn or_none(text: String) -> String {
    if text.is_empty() { "  (none)".to_owned() } else { text }
}

/// `holdfast fs create`
fn create(arguments: &FsCreate, directories: &Directories, format: Format) -> Outcome {
    let (server, others) = ServerAddress::parse_several(&arguments.servers)?;
    let superuser = keys::read(&arguments.superuser)?;
    let key = superuser.public();
    let state_dir = directories.state_of(&key.file_system_id(), &key)?;
    make_private(&state_dir)?;
    let bar = progress("creating the file system");
    let processes = superuser.into_processes()?;
    processes.begin(&state_dir, &key.file_system_id(), None)?;
    let config = CreateConfig {
        server,
        others,
        superuser: processes.clone(),
        name: arguments.name.clone(),
        superuser_name: SUPERUSER_NAME.to_owned(),
        state_dir,
        now_ns: now_ns(),
        deadline: DEADLINE,
    };
    let created = admin::create_by(&config, &processes);
    bar.finish_and_clear();
    let created = created.map_err(|error| match &error {
        CreateError::Exists => Failure::new(Exit::Failed, error),
        CreateError::NotAllowed(_) => Failure::new(Exit::NotAllowed, &error).hint(format!(
            "its operator can allow it: holdfast server allow --data DIR '{}'",
            holdfast_crypto::keyfile::format_public(&key, "")
        )),
        CreateError::BadName(_) | CreateError::NotOneGroup(..) => Failure::new(Exit::Usage, error),
        CreateError::Unreachable(_) | CreateError::Key(_) => Failure::new(Exit::Unavailable, error),
        CreateError::Refused(_) => Failure::new(Exit::Protocol, error),
        CreateError::State(..) => Failure::new(Exit::Io, error),
    })?;
    let address = created.address.to_string();
    let texts = |servers: &[ServerAddress]| servers.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (told, unreached) = (texts(&created.told), texts(&created.unreached));
    let shown = serde_json::json!({
        "address": address, "notice": NOTICE, "told_by_server": told, "not_reached": unreached,
    });
    format.print(&shown, |_| {
        let mut text = format!("{address}\n\n{NOTICE}");
        if !told.is_empty() {
            text += &format!(
                "\nThe server says that {} {} in for it, so the address names {} too.",
                told.join(", "),
                if told.len() == 1 { "stands" } else { "stand" },
                if told.len() == 1 { "it" } else { "them" },
            );
        }
        if !unreached.is_empty() {
            text += &format!(
                "\n{} did not answer. Unless the key there is the same, clients will be refused by it.",
                unreached.join(", ")
            );
        }
        text
    })
}

/// Makes a change with a signer that runs; the answer is what [`ask`] returns.
pub fn carry_out(engine: &Arc<Engine>, change: &Change) -> Outcome<serde_json::Value> {
    match change {
        Change::Show => {
            let membership = Membership::of(&engine.fetch()?.membership());
            return serde_json::to_value(membership).map_err(|error| Failure::new(Exit::Internal, error));
        }
        Change::Usage => return crate::quota::usage(engine),
        Change::Prepare { url, change } => return off_line::prepared(engine, url, change),
        Change::Submit { signed } => return off_line::submitted(engine, signed),
        _ => {}
    }
    let admin = Admin::new(engine)?;
    let members = admin.membership()?;
    check(engine, &members, change)?;
    let done = match change {
        Change::Show | Change::Usage | Change::Prepare { .. } | Change::Submit { .. } => String::new(),
        Change::SetQuota { user, bytes } => {
            admin.set_quota(user, *bytes)?;
            crate::quota::was_set(user, *bytes)
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
            let mut departure = Departure::default();
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
    };
    Ok(serde_json::Value::String(done))
}

/// Refuses what cannot be done, by name. The engine checks again where the change is ordered.
fn check(engine: &Engine, members: &content::Membership, change: &Change) -> Outcome {
    let names = Names(members);
    let known_device = |user: &str, name: &str| match names.device(names.user(user)?, name) {
        Some(_) => Ok(()),
        None => Err(unknown(format!("user {user} has no device named '{name}'"))),
    };
    match change {
        Change::Show | Change::Usage | Change::Prepare { .. } | Change::Submit { .. } => Ok(()),
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

/// Those of `users` who are members of the group by themselves, or who are not.
fn belonging<'a>(
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

fn home(directory: bool) -> Home {
    if directory { Home::Make } else { Home::None }
}

fn directory_note(name: &str, directory: bool) -> String {
    if directory { format!("; /{name} is theirs") } else { String::new() }
}

fn members_note(users: &[&str]) -> String {
    if users.is_empty() { "no members yet".to_owned() } else { format!("members {}", users.join(", ")) }
}

/// Who is affected, and how.
fn departure_note(departure: &Departure) -> String {
    let mut note = String::new();
    for (group, users) in departure.left.iter().filter(|(_, users)| !users.is_empty()) {
        note += &format!("; no longer in {group}: {}", users.join(", "));
    }
    if !departure.left.is_empty() {
        note += &format!("; {} files of theirs in it were taken over", departure.adopted);
    }
    note
}

/// Names become directories and are typed in commands.
fn usable(name: &str) -> Outcome {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '@' | '+');
    let fine =
        !name.is_empty() && name.len() <= 64 && !name.starts_with(['-', '.', '@']) && name.chars().all(plain);
    if fine {
        return Ok(());
    }
    Err(Failure::new(Exit::Usage, format!("'{}' cannot be a name", clean(name)))
        .hint("a name has 1 to 64 letters, digits or any of - _ . @ + and begins with none of - . @"))
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

    /// A user, or an `@` group.
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

    /// Whether these may all belong to a group.
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
        Membership {
            name: members.name.clone(),
            version: members.version,
            users: users.collect(),
            groups: groups.collect(),
            devices: devices.collect(),
        }
    }
}
