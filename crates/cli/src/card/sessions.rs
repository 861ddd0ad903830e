//! The sessions of a volume's mount: their users, what they may prove, and which programs may use them.

use super::{credential, whom};
use crate::volume::args::Mount;
use holdfast_access::{Access, Acl, Name, Principal};
use holdfast_daemon::keys;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::{Options, open_session};
use holdfast_program_identity::guard::{Guard, Settings};
use holdfast_program_identity::manifest;
use holdfast_stack::{PEOPLE_MAX, People, ProgramGate, Session};
use std::path::{Path, PathBuf};

/// Most bytes of the credentials with which a session begins.
const CREDENTIAL_BYTES_MAX: usize = 16 << 10;

/// The users with keys, and the groups, from the command line.
///
/// # Errors
/// A name is not valid, a key cannot be read, or there are too many.
pub fn people(arguments: &Mount) -> Outcome<People> {
    let mut people = People::default();
    for (user, key) in &arguments.user_keys {
        people.keys.insert(name(user)?, keys::public_of(&key.to_string_lossy())?);
    }
    for (group, members) in &arguments.groups {
        for member in members {
            people.groups.entry(name(group)?).or_default().insert(name(member)?);
        }
    }
    let count = people.keys.len() + people.groups.values().map(|members| members.len()).sum::<usize>();
    match count <= PEOPLE_MAX {
        true => Ok(people),
        false => Err(Failure::new(
            Exit::Usage,
            format!("{count} keys and memberships; a mount takes {PEOPLE_MAX}"),
        )),
    }
}

fn name(text: &str) -> Outcome<Name> {
    Name::new(text).map_err(|error| Failure::new(Exit::Usage, error))
}

/// The user and group ids of a user of this machine, if there is one of that name.
fn ids(user: &str) -> Option<(u32, u32)> {
    let table = std::fs::read_to_string("/etc/passwd").ok()?;
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(user) {
            return None;
        }
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

/// The principal of a session: a user by name, or a program.
fn session_of(text: &str) -> Outcome<Principal> {
    if text.contains(':') {
        return whom::flagged(text);
    }
    Ok(Principal::User(name(text)?))
}

/// Mounts a session of a partition, given by its disk and number. `own` is the user of the first session;
/// sessions for programs are for programs of this user.
///
/// # Errors
/// The principal is not valid, or it cannot be mounted.
pub fn open(
    arguments: &Mount,
    source: &Path,
    own: &str,
    who: &str,
    directory: &Path,
    on: (u16, u32),
    volume: &[u8; 16],
) -> Outcome<(PathBuf, Session)> {
    let user = whom::on_volume(session_of(who)?, volume);
    let acl = Acl::of(user.clone(), Access::ReadWrite).map_err(|error| Failure::new(Exit::Usage, error))?;
    let mine = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let is_root = rustix::process::geteuid().is_root();
    let of = match &user {
        Principal::User(name) => name.as_str(),
        _ => own,
    };
    // If the name is no user of this machine, the mounting user's ids are used.
    let (uid, gid) = ids(of).filter(|_| is_root).unwrap_or(mine);
    let options = Options {
        source: source.display().to_string(),
        // Permissions admit only the user, and the session checks the caller.
        allow_other: arguments.allow_other || uid != mine.0,
        read_only: false,
        no_exec: false,
        local_locks: true,
    };
    let is_program =
        !matches!(user, Principal::User(_) | Principal::Group(_) | Principal::Key(_) | Principal::Named(_));
    let rules = if is_program { Some(whom::rules_for(&user)?) } else { None };
    let mut credentials = Vec::new();
    for (whose, file) in &arguments.credentials {
        if whose == who {
            credentials.extend(credential::read(file)?);
        }
    }
    if credentials.iter().map(Vec::len).sum::<usize>() > CREDENTIAL_BYTES_MAX {
        return Err(Failure::new(Exit::Usage, format!("too many credentials for {who}"))
            .hint("present them when it is mounted, with `holdfast volume credential present`"));
    }
    let (directory, fuse) = open_session(directory, &options)?;
    let gate = rules.map(|(rules, package)| {
        let guard = Guard::new(Settings {
            socket: arguments.callers.clone().unwrap_or_else(|| holdfast_program_identity::SOCKET.into()),
            helper_uid: 0,
            mountpoint: directory.clone(),
            manifests: manifest::directories(),
        });
        ProgramGate::new(guard, rules.encode(), package)
    });
    let (disk, partition) = on;
    Ok((directory.clone(), Session { disk, partition, user, acl, fuse, uid, gid, credentials, gate }))
}
