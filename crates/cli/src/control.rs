//! The control socket: how commands reach the process that serves a key's mounts, or a protected volume.
//!
//! Only one process may sign with a key, so everything else that wants to act with it (a second mount, an
//! administrative command) asks the one that does. The socket lies in the key's state directory, has mode 0600,
//! and both ends check that the other runs as the same user (or root). Messages are JSON with their length
//! before them; both lengths and waiting times are bounded.

use crate::admin::Change;
use crate::exit::{Exit, Failure, Outcome};
use holdfast_checkpoint::note::{KeyKind, VerifierKey};
use holdfast_client::{PeersPolicy, WhenPeerLost, WhenStale, WitnessPolicy};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Name of the socket in the state directory.
const SOCKET: &str = "control";
/// Largest message in bytes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Most connections served at once.
const CONNECTIONS_MAX: usize = 16;
/// How long the serving side waits for a request to arrive.
const REQUEST_WAIT: Duration = Duration::from_secs(10);
/// How long a command waits for its answer: publishing everything unsaved over a slow link takes its time.
const ANSWER_WAIT: Duration = Duration::from_secs(3600);
/// How long it waits for what takes no time.
const STATUS_WAIT: Duration = Duration::from_secs(15);

/// What a mount is asked to be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountOrder {
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
    pub witnesses: Option<WitnessOrder>,
    /// How other clients are met, if they are to be; for all mounts of a key.
    #[serde(default)]
    pub peers: Option<PeersOrder>,
}

/// How other clients are met.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeersOrder {
    /// Where to listen, if not at a free port of all addresses.
    pub listen: Option<SocketAddr>,
    /// Whether to tell and hear the local network.
    pub beacon: bool,
    /// Seconds of silence after which a peer is lost.
    pub timeout: u64,
    /// What happens then.
    pub when_lost: WhenPeerLost,
}

impl PeersOrder {
    /// The same for the engine.
    pub fn policy(&self) -> PeersPolicy {
        PeersPolicy {
            listen: self.listen,
            beacon: self.beacon,
            timeout: Duration::from_secs(self.timeout),
            when_lost: self.when_lost,
        }
    }
}

/// What is asked of witnesses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WitnessOrder {
    /// Their keys.
    pub keys: Vec<String>,
    /// How many must vouch, if not the usual number.
    pub quorum: Option<usize>,
    /// Seconds that a head may be old.
    pub stale_after: u64,
    /// What happens then.
    pub when_stale: WhenStale,
}

impl WitnessOrder {
    /// The same for the engine.
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

/// What a process that serves a key can be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Mount once more.
    Mount(MountOrder),
    /// Publish everything and unmount.
    Umount {
        /// Absolute path of the mount point.
        directory: PathBuf,
        /// Whether programs that use it are left behind.
        lazy: bool,
    },
    /// Say how things are.
    Status,
    /// Copy what is unpublished to the salvage folder.
    Salvage,
    /// List some versions that were overwritten unseen.
    Conflicts {
        /// Only those after this one: when it was overwritten, and its name.
        after: Option<(i64, String)>,
    },
    /// Read some of one.
    ReadConflict {
        /// Which.
        id: String,
        /// From where on.
        offset: u64,
    },
    /// Remove some.
    DropConflicts {
        /// Which.
        ids: Vec<String>,
    },
    /// List past states that are kept.
    Past {
        /// The mount.
        directory: PathBuf,
        /// Without so many of the first.
        from: usize,
    },
    /// Give the present state a name.
    Snapshot {
        /// The mount.
        directory: PathBuf,
        /// The name.
        name: String,
    },
    /// Take a name away.
    EndSnapshot {
        /// The mount.
        directory: PathBuf,
        /// The name.
        name: String,
    },
    /// Tell the versions of a path in past states.
    Versions {
        /// The mount.
        directory: PathBuf,
        /// From the mount's root; bytes, since names need not be text.
        path: Vec<u8>,
    },
    /// Remove files without a name.
    Reclaim {
        /// Only say which.
        dry_run: bool,
    },
    /// Keep a path, from the root, in the cache.
    Pin {
        /// The path.
        path: String,
    },
    /// Keep it no longer.
    Unpin {
        /// The path.
        path: String,
    },
    /// List what is pinned.
    Pins,
    /// Tell a file's rules for programs, and who was refused.
    Rules {
        /// The mount.
        directory: PathBuf,
        /// The file.
        inode: u64,
    },
    /// Set or end a file's rules for programs.
    SetRules {
        /// The mount.
        directory: PathBuf,
        /// The file.
        inode: u64,
        /// The rules as stored; `None`: none.
        rules: Option<Vec<u8>>,
    },
    /// Wait no more for peers that are lost; tells which devices these were.
    GoOn,
    /// Change or show the membership.
    Administer(Change),
    /// Show a view fetched now in which nothing is pending: a [`holdfast_client::reader::VerifiedView`], in hexadecimal.
    View,
    /// Tell what this device has accepted: a [`holdfast_protocol::floor::Floor`], in hexadecimal.
    Floor,
    /// The same as it stands at this moment, without waiting for what is under way.
    Accepted,
}

/// Orders of one kind of process.
pub trait Orders: Serialize + DeserializeOwned + Send + 'static {
    /// Whether an answer takes no time.
    fn is_quick(&self) -> bool;
}

impl Orders for Order {
    fn is_quick(&self) -> bool {
        matches!(self, Order::Status)
    }
}

/// The answer: data in a form that depends on the order, or a failure.
pub type Answer = Result<serde_json::Value, Failure>;

/// A connection to the process that serves a key.
pub struct Client(UnixStream);

impl Client {
    /// Connects to the process that uses `state_dir`; `None` when there is none.
    ///
    /// # Errors
    /// The socket belongs to somebody else, or cannot be used.
    pub fn connect(state_dir: &Path) -> Outcome<Option<Client>> {
        let failed = |error: io::Error| {
            Failure::new(Exit::System, format!("{}: {error}", state_dir.join(SOCKET).display()))
        };
        let stream = match at(state_dir, |path| UnixStream::connect(path)) {
            Ok(stream) => stream,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        };
        if !is_trusted(&stream) {
            return Err(failed(io::Error::other("the process behind it belongs to another user")));
        }
        Ok(Some(Client(stream)))
    }

    /// The process behind it.
    pub fn process(&self) -> Option<u32> {
        let peer = socket_peercred(&self.0).ok()?;
        u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
    }

    /// Sends an order and waits for the answer.
    ///
    /// # Errors
    /// What the process answers, or that it went away.
    pub fn call<T: DeserializeOwned>(mut self, order: &impl Orders) -> Outcome<T> {
        let gone = |error: io::Error| {
            Failure::new(Exit::Unavailable, format!("the process in the background does not answer: {error}"))
        };
        let wait = if order.is_quick() { STATUS_WAIT } else { ANSWER_WAIT };
        self.0.set_read_timeout(Some(wait)).and_then(|()| send(&mut self.0, order)).map_err(gone)?;
        let value = receive::<Answer>(&mut self.0).map_err(gone)??;
        serde_json::from_value(value).map_err(|error| {
            Failure::new(
                Exit::Protocol,
                format!("the process in the background is of another version: {error}"),
            )
        })
    }
}

/// Listens for orders in `state_dir` and has `obey` carry them out, each on a thread of its own, until the
/// process ends. The state must be locked: then a socket that lies there is a dead process's.
///
/// # Errors
/// The socket cannot be made.
pub fn listen<O: Orders>(
    state_dir: &Path,
    obey: impl Fn(O) -> Answer + Send + Sync + 'static,
) -> io::Result<()> {
    let listener = at(state_dir, |path| {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    })?;
    let obey = Arc::new(obey);
    let open = Arc::new(AtomicUsize::new(0));
    std::thread::Builder::new().name("control".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            if open.load(Ordering::SeqCst) >= CONNECTIONS_MAX || !is_trusted(&stream) {
                continue;
            }
            open.fetch_add(1, Ordering::SeqCst);
            let (obey, done) = (Arc::clone(&obey), Arc::clone(&open));
            let spawned = std::thread::Builder::new().name("order".to_owned()).spawn(move || {
                serve(stream, &*obey);
                done.fetch_sub(1, Ordering::SeqCst);
            });
            if spawned.is_err() {
                open.fetch_sub(1, Ordering::SeqCst);
            }
        }
    })?;
    Ok(())
}

/// Takes the socket away, so that nobody connects to a process that is ending.
pub fn close(state_dir: &Path) {
    let _ = std::fs::remove_file(state_dir.join(SOCKET));
}

fn serve<O: Orders>(mut stream: UnixStream, obey: &(impl Fn(O) -> Answer + ?Sized)) {
    if stream.set_read_timeout(Some(REQUEST_WAIT)).is_err() {
        return;
    }
    let answer = match receive::<O>(&mut stream) {
        Ok(order) => obey(order),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(Failure::new(Exit::Protocol, format!("the order is not understood: {error}")))
        }
        Err(_) => return,
    };
    let _ = send(&mut stream, &answer);
}

/// Uses the socket in `state_dir` under a short name: names of sockets have at most 107 bytes, and state
/// directories are longer.
fn at<T>(state_dir: &Path, using: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let directory = std::fs::File::open(state_dir)?;
    using(&PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())))
}

fn is_trusted(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid == geteuid() || peer.uid.is_root())
}

fn send<T: Serialize>(stream: &mut UnixStream, message: &T) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&length.to_le_bytes())?;
    stream.write_all(&bytes)
}

fn receive<T: DeserializeOwned>(stream: &mut UnixStream) -> io::Result<T> {
    let mut length = [0u8; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message too long"));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    serde_json::from_slice(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Orders reach the listener through a state directory with a long name, answers and failures come back,
    /// and a dead socket is taken over.
    #[test]
    fn orders_and_answers() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = dir.path().join("a".repeat(64)).join("b".repeat(64));
        std::fs::create_dir_all(&state).expect("a directory");
        assert!(Client::connect(&state).expect("no error").is_none());
        std::fs::write(state.join(SOCKET), b"left over").expect("written");
        listen(&state, |order: Order| match order {
            Order::Status => Ok(serde_json::json!(["fine"])),
            other => Err(Failure::new(Exit::NotAllowed, format!("no {other:?}"))),
        })
        .expect("it listens");
        let client = || Client::connect(&state).expect("no error").expect("somebody listens");
        assert_eq!(client().call::<Vec<String>>(&Order::Status), Ok(vec!["fine".to_owned()]));
        let refused = client().call::<()>(&Order::Umount { directory: "/x".into(), lazy: false });
        assert_eq!(refused.expect_err("refused").code, Exit::NotAllowed);
        close(&state);
        assert!(Client::connect(&state).expect("no error").is_none());
    }
}
