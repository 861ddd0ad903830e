//! `holdfast fs`, as clap sees it.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `holdfast fs`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast fs create files.example.org --superuser superuser.key
  holdfast fs user add hf://HOST/FSID anna anna.pub --superuser superuser.key
  holdfast fs import ~/photos hf://HOST/FSID/team/photos --key anna.key
  holdfast fs stats --watch")]
pub struct Fs {
    /// What to do.
    #[command(subcommand)]
    pub command: FsCommand,
}

/// Administration of file systems.
#[derive(Debug, Subcommand)]
pub enum FsCommand {
    /// Create a file system on a server and print its address.
    Create(FsCreate),
    /// Show users, groups and devices.
    Show(Read),
    /// Users: add, list, remove.
    User(UserArgs),
    /// Groups: add, list, remove; and their members.
    Group(GroupArgs),
    /// Devices (machines with a key of their own): add, list, remove.
    Device(DeviceArgs),
    /// What users have stored, and may store.
    Quota(super::Quota),
    /// Bring a tree that exists into a file system.
    Import(crate::import::args::Import),
    /// Show what crossed the link for the mounts of this user, and what did not have to.
    Stats(super::Stats),
    /// Remove files of this user and its groups that no directory names any more.
    Reclaim(super::Reclaim),
    /// Carry a device's state to another machine.
    State(crate::state::StateArguments),
    /// Sign a prepared change with a superuser's key that is kept off line.
    Sign(FsSign),
    /// Bring a signed change into force.
    Submit(FsSubmit),
    /// Make a certificate that ends a file system for good, once it is found.
    Revoke(FsRevoke),
    /// Write all that this machine knows of a file system to a file, for the rebuilding of a lost server.
    Bundle(crate::recovery::args::Bundle),
    /// Declare that the server was put back from a backup: it goes on from there, and nobody raises an alarm.
    Restored(crate::recovery::args::Restored),
    /// Make the data directory of a lost server anew, from the bundles of those who used it.
    Rebuild(crate::recovery::args::Rebuild),
}

/// `holdfast fs create`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast fs create files.example.org --superuser superuser.key

Of servers that stand in for each other name all: it is created on one that runs, and its address names them.
  holdfast fs create a.example.org:7440,b.example.org:7440 --superuser superuser.key

The superuser's key is the root of all trust in this file system: keep it off the server, with a passphrase.
Its digest is part of the address, so whoever has the address can tell the true file system from a false one.

For the same reason it can never be rotated or replaced, so keep a copy of it in another safe place. If it is lost, the
members go on, but nobody can change who they are. If it is stolen, end the file system (`holdfast fs revoke`) and
import its files into a new one (`holdfast fs import`). Make the certificate for that now, while you have the key.")]
pub struct FsCreate {
    /// HOST or HOST:PORT of the server; of several that stand in for each other, with commas between them.
    #[arg(value_name = "SERVER[,SERVER...]")]
    pub servers: String,
    /// The superuser's key: a private key file, or one in your SSH agent (KEY.pub, agent:SHA256:..., agent:COMMENT).
    #[arg(long, value_name = "KEY")]
    pub superuser: PathBuf,
    /// What to call the file system.
    #[arg(long, value_name = "NAME", default_value = "holdfast")]
    pub name: String,
}

/// Reads administrative data with any member's key.
#[derive(Debug, Args)]
pub struct Read {
    /// Address: hf://HOST:PORT/FSID
    #[arg(value_name = "URL")]
    pub url: String,
    /// Any member's key: a private key file, or one in your SSH agent (KEY.pub, agent:SHA256:..., agent:COMMENT).
    #[arg(long, value_name = "KEY", alias = "superuser")]
    pub key: PathBuf,
}

/// Changes administrative data with the superuser's key: now, or prepared for where that key is.
#[derive(Debug, Args)]
pub struct Administer {
    /// Address: hf://HOST:PORT/FSID
    #[arg(value_name = "URL")]
    pub url: String,
    /// The superuser's key: a private key file, or one in your SSH agent (KEY.pub, agent:SHA256:..., agent:COMMENT).
    #[arg(long, value_name = "KEY", required_unless_present = "prepare", conflicts_with = "prepare")]
    pub superuser: Option<PathBuf>,
    /// Change nothing yet: write what is to be changed into this file, to be signed with `holdfast fs sign` where the
    /// superuser's key is, and submitted with `holdfast fs submit`. Never overwritten.
    #[arg(long, value_name = "FILE", requires = "member")]
    pub prepare: Option<PathBuf>,
    /// With --prepare: any member's key.
    #[arg(long = "key", value_name = "KEY", requires = "prepare")]
    pub member: Option<PathBuf>,
}

/// `holdfast fs user`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast fs user add hf://HOST/FSID anna 'ssh-ed25519 AAAA... anna@laptop' --superuser superuser.key
  holdfast fs user add hf://HOST/FSID ben ben.pub --superuser superuser.key
  holdfast fs user remove hf://HOST/FSID ben --superuser superuser.key")]
pub struct UserArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: UserCommand,
}

/// Users.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Add a user with a first device, and a directory /NAME that belongs to the user.
    Add {
        /// Where, and by whose leave.
        #[command(flatten)]
        administer: Administer,
        /// Name of the user.
        #[arg(value_name = "NAME")]
        name: String,
        /// Public key line, or a file that holds it.
        #[arg(value_name = "PUBLIC-KEY")]
        key: String,
        /// Name of the device that holds the key.
        #[arg(long, value_name = "NAME", default_value = "first")]
        device: String,
        /// Make no directory /NAME.
        #[arg(long)]
        no_directory: bool,
    },
    /// List users.
    List(Read),
    /// Remove a user and all devices of theirs. What they wrote stays.
    Remove {
        /// Where, and by whose leave.
        #[command(flatten)]
        administer: Administer,
        /// Name of the user.
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// `holdfast fs group`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast fs group add hf://HOST/FSID team anna ben --superuser superuser.key
  holdfast fs group join hf://HOST/FSID everybody @team @design --superuser superuser.key
  holdfast fs group leave hf://HOST/FSID team ben --superuser superuser.key

A member is a user, or a group named with an @: who belongs to that one then belongs to the outer one. At most 8 deep.")]
pub struct GroupArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: GroupCommand,
}

/// Groups.
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// Add a group with members, and a directory /NAME in which they all may write.
    Add {
        /// Where, and by whose leave.
        #[command(flatten)]
        administer: Administer,
        /// Name of the group.
        #[arg(value_name = "NAME")]
        name: String,
        /// Its members: users, or groups named with an @.
        #[arg(value_name = "MEMBER")]
        users: Vec<String>,
        /// Make no directory /NAME.
        #[arg(long)]
        no_directory: bool,
    },
    /// List groups, their members, and who belongs to them by groups within them.
    List(Read),
    /// Remove a group. What it wrote stays.
    Remove {
        /// Where, and by whose leave.
        #[command(flatten)]
        administer: Administer,
        /// Name of the group.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Make users, or all of another group, members of a group.
    Join(Membership),
    /// End the membership of users, or of another group, in a group.
    Leave(Membership),
}

/// A change of a group's members.
#[derive(Debug, Args)]
pub struct Membership {
    /// Where, and by whose leave.
    #[command(flatten)]
    pub administer: Administer,
    /// Name of the group.
    #[arg(value_name = "GROUP")]
    pub group: String,
    /// Who: users, or groups named with an @.
    #[arg(value_name = "MEMBER", required = true)]
    pub users: Vec<String>,
}

/// `holdfast fs device`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast fs device add hf://HOST/FSID anna desktop 'ssh-ed25519 AAAA...' --superuser superuser.key
  holdfast fs device list hf://HOST/FSID --key anna.key
  holdfast fs device remove hf://HOST/FSID anna laptop --superuser superuser.key

Every machine has a key of its own: a key must never sign on two machines.

`rotate` gives a device a new key. The superuser's own key cannot be rotated: see `holdfast fs create --help`.")]
pub struct DeviceArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: DeviceCommand,
}

/// Devices.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Enrol another device of a user.
    Add {
        /// Where, and by whose leave.
        #[command(flatten)]
        administer: Administer,
        /// Whose device.
        #[arg(value_name = "USER")]
        user: String,
        /// Name of the device.
        #[arg(value_name = "DEVICE-NAME")]
        name: String,
        /// Public key line, or a file that holds it.
        #[arg(value_name = "PUBLIC-KEY")]
        key: String,
    },
    /// List devices.
    List(Read),
    /// Put a new key in the place of a device's key, at one place in the order: nothing the old one signs from then on
    /// counts. The superuser's own key cannot be rotated.
    Rotate {
        /// Where, and by whose leave.
        #[command(flatten)]
        administer: Administer,
        /// Whose device.
        #[arg(value_name = "USER")]
        user: String,
        /// Name of the device; it stays.
        #[arg(value_name = "DEVICE-NAME")]
        name: String,
        /// New public key line, or a file that holds it.
        #[arg(value_name = "NEW-PUBLIC-KEY")]
        key: String,
    },
    /// Remove a device (lost or retired): nothing it signs from now on counts.
    Remove {
        /// Where, and by whose leave.
        #[command(flatten)]
        administer: Administer,
        /// Whose device.
        #[arg(value_name = "USER")]
        user: String,
        /// Name of the device.
        #[arg(value_name = "DEVICE-NAME")]
        name: String,
    },
}

/// `holdfast fs sign`
#[derive(Debug, Args)]
#[command(after_help = "Example, for a superuser's key that never is on a machine with a network:
  holdfast fs device remove hf://HOST/FSID ben laptop --prepare ben.change --key anna.key
  holdfast fs sign ben.change --superuser superuser.key --out ben.signed
  holdfast fs submit ben.signed --key anna.key

The first and the last are for any member's device, the second for the machine that has the key: it needs nothing but
the file, shows in words all that the change does, and asks before it signs. What it has signed is remembered in the state
directory: a second change to follow the same membership is refused, since whoever carries both could choose. A
change is good for one use, and only while nothing else changes the membership.")]
pub struct FsSign {
    /// The prepared change.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The superuser's key: a private key file, or one in your SSH agent (KEY.pub, agent:SHA256:..., agent:COMMENT).
    #[arg(long, value_name = "KEY")]
    pub superuser: PathBuf,
    /// File for the signed change; never overwritten.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
}

/// `holdfast fs submit`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast fs submit ben.signed --key anna.key

Any device that stays a member may submit it. To take over files of those who leave a group it must be one of a member
of that group, or of the superuser's; to make a directory under the root, one of the superuser's.")]
pub struct FsSubmit {
    /// The signed change.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Any member's key: a private key file, or one in your SSH agent (KEY.pub, agent:SHA256:..., agent:COMMENT).
    #[arg(long, value_name = "KEY")]
    pub key: PathBuf,
}

/// `holdfast fs revoke`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast fs revoke hf://HOST/FSID --superuser superuser.key --out end-of-files --reason 'the key was stolen'

Nothing happens until the certificate is found: put it into directories of revocations (--revocations of `holdfast
mount` and `holdfast automount`) as a file named after the id. It cannot be taken back. It is wise to make one before
it is needed, and to keep it where the key is not. A superuser's key that was stolen cannot be rotated; this is what
there is instead.")]
pub struct FsRevoke {
    /// Address: hf://HOST:PORT/FSID
    #[arg(value_name = "URL")]
    pub url: String,
    /// The superuser's key: a private key file, or one in your SSH agent (KEY.pub, agent:SHA256:..., agent:COMMENT).
    #[arg(long, value_name = "KEY")]
    pub superuser: PathBuf,
    /// File for the certificate; never overwritten.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Why, for people.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
}
