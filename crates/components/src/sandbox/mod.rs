//! The walls around a component, and the permissions that it has.
//!
//! Everything not listed is refused: the profile of a component is all that it may ask of the kernel, and its
//! channels and regions are all that it may ask of others. The walls overlap on purpose: a hole in one (a
//! system call that slipped into a list, a bug in namespaces) leaves the others.

mod check;
mod enter;
mod filter;

pub(crate) use enter::enter;
pub use filter::{call_name, permitted_calls};

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};

/// A kernel permission that a component has beyond the base. The base is: memory that is never executable,
/// messages over channels passed to it, waiting, clocks, random bytes, and ending.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Permission {
    /// Threads of its own process.
    Threads,
    /// A session with the kernel's FUSE over a descriptor passed to it.
    Fuse,
    /// Reads, writes, flushes and discards of a device passed to it.
    Device,
    /// Accepting connections from a socket passed to it. No new sockets.
    Network,
    /// New connections over IPv4 and IPv6, from the network of the process that started it.
    Connect,
    /// An event loop: waits for many descriptors at once, and can wake itself.
    Reactor,
    /// Making durable what it wrote to a file passed to it.
    Sync,
    /// Datagrams over a UDP socket passed to it. New sockets belong to its own network namespace, which is
    /// empty.
    Datagrams,
}

impl Permission {
    /// Every permission.
    pub const ALL: [Permission; 8] = [
        Permission::Threads,
        Permission::Fuse,
        Permission::Device,
        Permission::Network,
        Permission::Connect,
        Permission::Reactor,
        Permission::Sync,
        Permission::Datagrams,
    ];
}

/// A wall that may be lacking on a system, and that a profile may declare optional. The filter of system
/// calls is not one of these.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Wall {
    /// Namespaces of its own for users, mounts, processes, the network, queues, host names and cgroups.
    Namespaces,
    /// Landlock, any: no file.
    Landlock,
    /// Landlock 3 or newer: no file is emptied by its name.
    LandlockTruncation,
    /// Landlock 4 or newer: no TCP port.
    LandlockPorts,
    /// Landlock 6 or newer: no signal and no abstract socket.
    LandlockSignals,
}

impl Wall {
    /// The walls that not all kernels have completely. Other walls stand before them, so a component may do
    /// without.
    pub const LANDLOCK: [Wall; 4] =
        [Wall::Landlock, Wall::LandlockTruncation, Wall::LandlockPorts, Wall::LandlockSignals];

    /// What is unprotected if this wall is lacking, and which kernels have it.
    pub fn words(self) -> &'static str {
        match self {
            Wall::Namespaces => "no view of its own of users, processes, mounts and networks (namespaces)",
            Wall::Landlock => {
                "no Landlock, which forbids files, ports and signals a second time (Linux 5.13 and newer, with landlock \
                 in the list lsm= of its command line)"
            }
            Wall::LandlockTruncation => {
                "Landlock does not forbid to empty files by their names (it does from Linux 6.2)"
            }
            Wall::LandlockPorts => "Landlock does not forbid TCP ports (it does from Linux 6.7)",
            Wall::LandlockSignals => {
                "Landlock does not forbid signals and abstract sockets (it does from Linux 6.12)"
            }
        }
    }
}

/// A warning about lacking walls; `None` if there are none.
pub fn weaker(lacking: &[Wall]) -> Option<String> {
    let walls: Vec<_> = lacking.iter().map(|wall| wall.words()).collect();
    let rest = match lacking.contains(&Wall::Namespaces) {
        true => "the list of system calls holds",
        false => "namespaces and the list of system calls hold",
    };
    (!walls.is_empty()).then(|| {
        format!(
            "sandboxes are weaker on this system: {}; {rest}. --require-sandbox refuses instead",
            walls.join("; ")
        )
    })
}

/// Whether this process starts components with all walls only.
static ALL_REQUIRED: AtomicBool = AtomicBool::new(false);

/// From now on this process starts no component that lacks a wall, whatever its profile accepts. For users
/// who prefer nothing to run over a weaker sandbox; to be called before anything is started.
pub fn require_all_walls() {
    ALL_REQUIRED.store(true, Ordering::SeqCst);
}

/// Whether [`require_all_walls`] was called.
pub fn all_walls_are_required() -> bool {
    ALL_REQUIRED.load(Ordering::SeqCst)
}

/// The permissions of a component, and limits on what it may use.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
pub struct Profile {
    /// Permissions beyond the base.
    #[serde(rename = "doors")]
    pub permissions: Vec<Permission>,
    /// Most bytes of its own memory.
    pub memory_bytes_max: u64,
    /// Most bytes of regions that it maps at a time.
    pub mapped_bytes_max: u64,
    /// Most bytes of a region that it may write: so it cannot fill the memory of others.
    pub region_bytes_max: u64,
    /// Most open file descriptors.
    pub files_max: u32,
    /// Most threads, including the first; more than one needs [`Permission::Threads`].
    pub threads_max: u32,
    /// Walls it may be started without where the system does not have them, unless all are required
    /// ([`require_all_walls`]).
    pub accept_without: Vec<Wall>,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile {
            permissions: Vec::new(),
            memory_bytes_max: 256 << 20,
            mapped_bytes_max: 4 << 30,
            region_bytes_max: 64 << 20,
            files_max: 256,
            threads_max: 1,
            accept_without: Wall::LANDLOCK.to_vec(),
        }
    }
}

impl Profile {
    /// The base profile with these permissions.
    pub fn with_permissions(permissions: &[Permission]) -> Profile {
        let threads_max = if permissions.contains(&Permission::Threads) { 16 } else { 1 };
        Profile { permissions: permissions.to_vec(), threads_max, ..Profile::default() }
    }

    /// Whether the profile has this permission.
    pub fn has(&self, permission: Permission) -> bool {
        self.permissions.contains(&permission)
    }

    /// Whether the component may be started without this wall.
    pub fn accepts_without(&self, wall: Wall) -> bool {
        self.accept_without.contains(&wall)
    }
}

/// What a child learns from its arguments, before it is in its sandbox. Contains no secrets.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct StartArguments {
    /// The profile of the component.
    pub profile: Profile,
    /// Walls that its parent could not put up.
    pub lacking: Vec<Wall>,
}

impl StartArguments {
    /// Encodes it as a command-line argument.
    pub(crate) fn to_argument(&self) -> String {
        let bytes = borsh::to_vec(self).expect("a vector takes everything");
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Decodes it from a command-line argument.
    pub(crate) fn from_argument(text: &str) -> Option<StartArguments> {
        let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
        let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        borsh::from_slice(&bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Start arguments survive their encoding as an argument, and other text is not taken for them.
    #[test]
    fn orders_as_an_argument() {
        let profile =
            Profile { accept_without: vec![Wall::Landlock], ..Profile::with_permissions(&Permission::ALL) };
        let arguments = StartArguments { profile, lacking: vec![Wall::Landlock] };
        let text = arguments.to_argument();
        assert_eq!(StartArguments::from_argument(&text), Some(arguments));
        for wrong in ["", "0", "zz", &text[2..], &text[..text.len() - 2], "ää"] {
            assert_eq!(StartArguments::from_argument(wrong), None, "{wrong}");
        }
    }
}
