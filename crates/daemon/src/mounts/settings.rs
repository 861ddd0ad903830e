//! How a mount is to be: what `holdfast mount` was told, as it travels to the daemon that serves it.

use holdfast_checkpoint::note::{KeyKind, VerifierKey};
use holdfast_client::{PeersPolicy, WhenPeerLost, WhenStale, WitnessPolicy};
use holdfast_failure::{Exit, Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How something is mounted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountSettings {
    /// Absolute path of the mount point.
    pub directory: PathBuf,
    /// Whether other users of the machine may use it.
    pub allow_other: bool,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Whether it refuses to run programs.
    #[serde(default)]
    pub no_exec: bool,
    /// Where the helper listens that identifies programs, if not at its usual place.
    #[serde(default)]
    pub callers: Option<PathBuf>,
    /// Whether locks of files hold on this machine only.
    #[serde(default)]
    pub local_locks: bool,
    /// Most bytes of changes that are kept here to be sent in the background; `None`: changes wait for the server.
    #[serde(default)]
    pub write_back_bytes: Option<u64>,
    /// Whether changes are kept here for a moment while nobody else changes anything.
    #[serde(default)]
    pub gather: bool,
    /// Local users shown for users.
    #[serde(default)]
    pub map_user: Vec<(String, u32)>,
    /// Local groups shown for groups.
    #[serde(default)]
    pub map_group: Vec<(String, u32)>,
    /// Whether a change of owner to somebody who is not mapped is passed over.
    #[serde(default)]
    pub ignore_unmapped: bool,
    /// Who vouches for how new what the server shows is; for all mounts of a key.
    #[serde(default)]
    pub witnesses: Option<WitnessSettings>,
    /// How other clients are met, if they are to be; for all mounts of a key.
    #[serde(default)]
    pub peers: Option<PeerSettings>,
}

/// How mounts of a key meet other clients.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerSettings {
    /// Where to listen, if not at a free port of all addresses.
    pub listen: Option<SocketAddr>,
    /// Whether to tell and hear the local network.
    pub beacon: bool,
    /// Seconds of silence after which a peer is lost.
    pub timeout: u64,
    /// What happens when a peer is lost.
    pub when_lost: WhenPeerLost,
}

impl PeerSettings {
    /// As the engine takes it.
    pub fn policy(&self) -> PeersPolicy {
        PeersPolicy {
            listen: self.listen,
            beacon: self.beacon,
            timeout: Duration::from_secs(self.timeout),
            when_lost: self.when_lost,
        }
    }
}

/// Which witnesses vouch for how new the head is, and what follows when it is too old.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WitnessSettings {
    /// The keys of the witnesses.
    pub keys: Vec<String>,
    /// How many must vouch, if not the usual number.
    pub quorum: Option<usize>,
    /// Seconds that a head may be old.
    pub stale_after: u64,
    /// What happens when the head is older.
    pub when_stale: WhenStale,
}

impl WitnessSettings {
    /// As the engine takes it.
    ///
    /// # Errors
    /// [`Exit::Usage`]: something is no witness's key, or more must vouch than there are.
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
