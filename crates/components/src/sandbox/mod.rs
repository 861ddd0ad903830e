//! The walls around a component, and which of its own permissions it has.
//!
//! Everything not listed is refused: the profile of a component is the whole of what it may ask of the kernel, and its
//! channels and regions are the whole of what it may ask of others. The walls overlap on purpose: a hole in one (a
//! system call that slipped into a list, a bug in namespaces) leaves the others.

mod check;
mod enter;
mod filter;

pub(crate) use enter::enter;
pub use filter::{call_name, permitted_calls};

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};

/// A permission of the kernel that a component has beyond the base, which is: memory that is never executable, messages
/// over what was handed to it, waiting, clocks, random bytes, and ending.
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
    /// A session with the kernel's FUSE over a descriptor that was handed to it.
    Fuse,
    /// Reads, writes, flushes and discards of a device that was handed to it.
    Device,
    /// Accepting connections from a socket that was handed to it. No new sockets.
    Network,
    /// New connections over IPv4 and IPv6, from the network of whoever started it.
    Connect,
    /// An event loop of its own: waits for many descriptors at once, and wakes itself.
    Reactor,
    /// Making what it wrote to a file that was handed to it durable.
    Sync,
    /// Datagrams over a UDP socket that was handed to it. New ones belong to its own network, in which there is nobody.
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

/// A wall that may be lacking on a system, and that one may choose to do without. The filter of system calls is not among them.
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
    /// A view of its own of users, mounts, processes, the network, queues, names and groups.
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
    /// The walls that not all kernels have completely. They stand behind other walls, so a component may do without.
    pub const LANDLOCK: [Wall; 4] =
        [Wall::Landlock, Wall::LandlockTruncation, Wall::LandlockPorts, Wall::LandlockSignals];

    /// What is missing where this wall is lacking, and which kernels have it.
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

/// A warning about walls that are lacking; `None` if there is none.
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

/// From now on this process starts no component that would lack a wall, whatever its profile accepts. For whoever would
/// rather have nothing run than something weaker; to be called before anything is started.
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
    /// Most bytes of memory of its own.
    pub memory_bytes_max: u64,
    /// Most bytes of regions that it maps at a time.
    pub mapped_bytes_max: u64,
    /// Most bytes that it may make a region of, which it may write: it cannot fill the memory of the others.
    pub region_bytes_max: u64,
    /// Most open file descriptors.
    pub files_max: u32,
    /// Most threads, counting the first; more than one needs [`Permission::Threads`].
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

/// What a child learns from its arguments, before it is in its sandbox. It has no secrets.
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
