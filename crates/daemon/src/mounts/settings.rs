//! The settings of a mount: the options of `holdfast mount`, as they are sent to the daemon that serves it.

use holdfast_checkpoint::note::{KeyKind, VerifierKey};
use holdfast_client::{PeersPolicy, WhenPeerLost, WhenStale, WitnessPolicy};
use holdfast_failure::{Exit, Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The settings of a mount.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountSettings {
    /// Absolute path of the mount point.
    pub directory: PathBuf,
    /// Whether other users of the machine may use it.
    pub allow_other: bool,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Whether programs in it must not be run.
    #[serde(default)]
    pub no_exec: bool,
    /// The socket of the identification helper, if not the usual one.
    #[serde(default)]
    pub callers: Option<PathBuf>,
    /// Whether file locks are local to this machine.
    #[serde(default)]
    pub local_locks: bool,
    /// Most bytes of changes that are stored here and sent in the background; `None`: changes wait for the
    /// server.
    #[serde(default)]
    pub write_back_bytes: Option<u64>,
    /// Whether changes are gathered for a moment while no other device changes anything.
    #[serde(default)]
    pub gather: bool,
    /// Mapping of users to local user ids.
    #[serde(default)]
    pub map_user: Vec<(String, u32)>,
    /// Mapping of groups to local group ids.
    #[serde(default)]
    pub map_group: Vec<(String, u32)>,
    /// Whether a change of owner to a user who is not mapped is ignored.
    #[serde(default)]
    pub ignore_unmapped: bool,
    /// The witnesses that vouch for the freshness of the server's state; the same for all mounts of a key.
    #[serde(default)]
    pub witnesses: Option<WitnessSettings>,
    /// How other clients are met, if at all; the same for all mounts of a key.
    #[serde(default)]
    pub peers: Option<PeerSettings>,
}

/// How mounts of a key meet other clients.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerSettings {
    /// The address to listen on; `None`: a free port of all addresses.
    pub listen: Option<SocketAddr>,
    /// Whether to announce itself on the local network, and to listen for announcements.
    pub beacon: bool,
    /// Seconds of silence after which a peer is lost.
    pub timeout: u64,
    /// What happens when a peer is lost.
    pub when_lost: WhenPeerLost,
}

impl PeerSettings {
    /// The settings in the engine's form.
    pub fn policy(&self) -> PeersPolicy {
        PeersPolicy {
            listen: self.listen,
            beacon: self.beacon,
            timeout: Duration::from_secs(self.timeout),
            when_lost: self.when_lost,
        }
    }
}

/// The witnesses that vouch for the freshness of the head, and what happens if the head is too old.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WitnessSettings {
    /// The keys of the witnesses.
    pub keys: Vec<String>,
    /// How many of them must vouch; `None`: the usual number.
    pub quorum: Option<usize>,
    /// The highest age of a head, in seconds.
    pub stale_after: u64,
    /// What happens when the head is older.
    pub when_stale: WhenStale,
}

impl WitnessSettings {
    /// The settings in the engine's form.
    ///
    /// # Errors
    /// [`Exit::Usage`]: a key is not a witness's, or more must vouch than there are.
    pub fn policy(&self) -> Outcome<WitnessPolicy> {
        let wrong = |why: String| Failure::new(Exit::Usage, why);
        let mut witnesses: Vec<VerifierKey> = Vec::new();
        for key in &self.keys {
            let key: VerifierKey = key.parse().map_err(|error| wrong(format!("{error}")))?;
            if key.kind() != KeyKind::Cosignature {
                return Err(wrong(format!("{key} is the key of a log, not of a witness")));
            }
            if witnesses.iter().any(|known| known.key() == key.key()) {
                return Err(wrong(format!("{key} is named twice")));
            }
            witnesses.push(key);
        }
        match self.quorum {
            Some(quorum) if quorum == 0 || quorum > witnesses.len() => {
                Err(wrong(format!("{quorum} of {} witnesses cannot vouch", witnesses.len())))
            }
            quorum => Ok(WitnessPolicy {
                witnesses,
                quorum,
                stale_after: Duration::from_secs(self.stale_after),
                when_stale: self.when_stale,
            }),
        }
    }
}
