//! `holdfast fs`: users, groups and devices.
//!
//! Changes are signed with the superuser's key. If a process serves mounts of that key, it makes them,
//! because it has the signer; otherwise a signer is started here for the one change.

pub mod asking;
pub mod changing;
mod off_line;

use crate::args::{DeviceCommand, FsCommand, FsCreate, GroupCommand, UserCommand};
use crate::output::{Format, clean, progress, table};
use asking::{DEADLINE, ask};
use changing::apply;
use holdfast_client::admin::{self, CreateConfig, CreateError};
use holdfast_daemon::keys::{self};
use holdfast_daemon::membership::{Change, MembershipReport, ShowMembership};
use holdfast_daemon::paths::{Directories, make_private};
use holdfast_daemon::time::now_ns;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_rpc::ServerAddress;
use indicatif::HumanBytes;
use std::collections::BTreeMap;
use std::path::Path;

/// The name of the superuser.
const SUPERUSER_NAME: &str = "superuser";
/// The notice about a new file system for its creator.
const NOTICE: &str = "\
Give this address to its members; it is all they need to tell the true file system from a false one.
Note: every member can read everything in it, and so can whoever runs the server (until sealing exists).
Nobody can change what another has written without being found out.";

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
        FsCommand::Show(read) => show(&read.url, &read.key, directories, format, describe),
        FsCommand::Quota(arguments) => crate::quota::run(arguments, directories, format),
        FsCommand::Import(arguments) => crate::import::run(arguments, directories, format),
        FsCommand::Stats(arguments) => crate::stats::run(arguments, directories, format),
        FsCommand::Reclaim(arguments) => crate::reclaim::run(arguments, directories, format),
        FsCommand::State(arguments) => crate::state::run(arguments, directories, format),
        FsCommand::User(arguments) => match &arguments.command {
            UserCommand::List(read) => show(&read.url, &read.key, directories, format, list_users),
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
            GroupCommand::List(read) => show(&read.url, &read.key, directories, format, list_groups),
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
            DeviceCommand::List(read) => show(&read.url, &read.key, directories, format, list_devices),
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

fn show(
    url: &str,
    key: &Path,
    directories: &Directories,
    format: Format,
    text: impl FnOnce(&MembershipReport) -> String,
) -> Outcome {
    let membership = ask(url, key, &ShowMembership, directories)?;
    format.print(&membership, |membership| clean(&text(membership)))
}

fn describe(membership: &MembershipReport) -> String {
    format!(
        "{}: membership, version {}\n\nUsers\n{}\n\nGroups\n{}\n\nDevices\n{}",
        membership.name,
        membership.version,
        list_users(membership),
        list_groups(membership),
        list_devices(membership)
    )
}

fn list_users(membership: &MembershipReport) -> String {
    let mut devices: BTreeMap<&str, u32> = BTreeMap::new();
    for device in membership.devices.iter().filter(|device| !device.removed) {
        *devices.entry(&device.user).or_default() += 1;
    }
    let rows: Vec<Vec<String>> = membership
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

fn list_groups(membership: &MembershipReport) -> String {
    let rows: Vec<Vec<String>> = membership
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

fn list_devices(membership: &MembershipReport) -> String {
    let rows: Vec<Vec<String>> = membership
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
    let (told, unreached) = (texts(&created.discovered), texts(&created.unreached));
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
