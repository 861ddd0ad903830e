//! The listing of running components, their permissions and their walls, sent as JSON over a socket to
//! processes of the same user.

use crate::error::{ComponentError, During, Result};
use crate::ports::Role;
use crate::region::Access;
use crate::sandbox::{Profile, Wall, permitted_calls};
use crate::supervisor::SupervisorState;
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

/// Most bytes of a listing.
const BYTES_MAX: u64 = 4 << 20;
/// How long either end waits for the other.
const WAIT: Duration = Duration::from_secs(3);
/// Lines of code by set of sources, made by `scripts/trusted-lines`.
const TRUSTED_LINES: &str = include_str!("../trusted-lines.json");

/// The components of one supervisor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Listing {
    /// The name of its plan.
    pub name: String,
    /// The process that supervises.
    pub pid: u32,
    /// Its components, in the order of the plan.
    pub components: Vec<ComponentListing>,
}

/// One component.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ComponentListing {
    /// Its name.
    pub name: String,
    /// `running`, `waiting` (to be started anew), `done`, or `down`.
    pub state: String,
    /// Why it is down, or how it ended last.
    pub last_end: Option<String>,
    /// How often the component was restarted.
    pub restarts: u32,
    /// The name of its process, never used again.
    pub process: Option<String>,
    /// The process's number on this system.
    pub pid: Option<i32>,
    /// The user on this system that it runs as.
    pub uid: Option<u32>,
    /// The permissions and limits.
    pub profile: Profile,
    /// The permitted system calls, by name.
    pub calls: Vec<String>,
    /// Walls that it was started without.
    pub lacking: Vec<Wall>,
    /// Its channels.
    pub channels: Vec<ChannelListing>,
    /// Its regions.
    pub regions: Vec<RegionListing>,
    /// Open files it was handed.
    pub files: Vec<String>,
    /// What the component checks, for people.
    pub guards: Vec<String>,
    /// Lines of code, if its sources are among the counted sets.
    pub lines: Option<u64>,
}

/// One end of a channel.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChannelListing {
    /// The name of the port.
    pub port: String,
    /// Whether its holder asks or serves.
    pub role: Role,
    /// The component at the other end; `None`: the supervising process.
    pub peer: Option<String>,
}

/// A region as one component holds it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionListing {
    /// The name that its holder has for it.
    pub name: String,
    /// The access that its holder has.
    pub access: Access,
    /// The size in bytes.
    pub bytes: u64,
}

impl Listing {
    /// Walls that a component of it was started without; each once.
    pub fn lacking(&self) -> Vec<Wall> {
        let walls: BTreeSet<Wall> =
            self.components.iter().flat_map(|component| component.lacking.iter().copied()).collect();
        walls.into_iter().collect()
    }

    pub(crate) fn of(state: &SupervisorState) -> Listing {
        let lines = trusted_lines();
        let components = state.slots.iter().map(|slot| {
            let plan = &slot.plan;
            let running = slot.running.as_ref();
            let named = |name: &str| if slot.down.is_some() { "down" } else { name }.to_owned();
            let channels = state.channels.iter().flat_map(|channel| {
                let [asks, serves] = channel.ends();
                [(asks, serves.0), (serves, asks.0)]
            });
            ComponentListing {
                name: plan.name.clone(),
                state: match (running, slot.done) {
                    (Some(_), _) => "running".to_owned(),
                    (None, true) => "done".to_owned(),
                    (None, false) => named("waiting"),
                },
                last_end: slot.down.clone().or(slot.last_end.clone()),
                restarts: slot.restarts,
                process: running.map(|running| running.process.to_string()),
                pid: running.map(|running| running.child.pid),
                uid: running.map(|running| running.child.uid),
                profile: plan.profile.clone(),
                calls: permitted_calls(&plan.profile).into_iter().map(str::to_owned).collect(),
                lacking: slot.lacking.clone(),
                channels: channels
                    .filter(|((own, _), _)| own.component.as_deref() == Some(&plan.name))
                    .map(|((own, role), other)| ChannelListing {
                        port: own.port.clone(),
                        role,
                        peer: other.component.clone(),
                    })
                    .collect(),
                regions: plan
                    .regions
                    .iter()
                    .map(|grant| RegionListing {
                        name: grant.name.clone(),
                        access: grant.access,
                        bytes: grant.region.bytes(),
                    })
                    .collect(),
                files: plan.files.iter().map(|(name, _)| name.clone()).collect(),
                guards: plan.guards.clone(),
                lines: plan.source.as_ref().and_then(|source| lines.get(source).copied()),
            }
        });
        Listing { name: state.name.clone(), pid: std::process::id(), components: components.collect() }
    }
}

/// Lines of code without blank lines, comments and tests, by set of sources.
pub fn trusted_lines() -> BTreeMap<String, u64> {
    serde_json::from_str(TRUSTED_LINES).expect("scripts/trusted-lines writes a map")
}

/// The directory with the sockets of this user's supervisors.
pub fn runtime_directory() -> PathBuf {
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    match named {
        _ if geteuid().is_root() => PathBuf::from("/run/holdfast-components"),
        Some(path) => path.join("holdfast/components"),
        None => PathBuf::from(format!("/tmp/holdfast-{}/components", geteuid().as_raw())),
    }
}

/// The socket of one supervisor. Removed when dropped.
pub(crate) struct Socket {
    path: PathBuf,
    _closing: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Socket {
    /// Opens a socket that answers everybody of this user, and root.
    pub(crate) fn open(listing: impl Fn() -> Listing + Send + 'static) -> Result<Socket> {
        let what = "opening the socket for listings";
        let directory = runtime_directory();
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).during(what)?;
        let owner = geteuid().as_raw();
        let about = std::fs::symlink_metadata(&directory).during(what)?;
        // In /tmp another user may have made the directory first.
        let above = directory.parent().unwrap_or(&directory);
        let is_safe = std::fs::symlink_metadata(above)
            .is_ok_and(|above| above.is_dir() && [owner, 0].contains(&above.uid()));
        if !is_safe || !about.is_dir() || about.uid() != owner || about.mode() & 0o077 != 0 {
            let reason = format!("{} is not a directory of this user alone", directory.display());
            return Err(ComponentError::System { what, source: std::io::Error::other(reason) });
        }
        let mut unique = [0; 8];
        getrandom::fill(&mut unique).map_err(|error| ComponentError::System {
            what,
            source: std::io::Error::other(error.to_string()),
        })?;
        let path = directory.join(format!("{}-{:016x}", std::process::id(), u64::from_le_bytes(unique)));
        let listener = UnixListener::bind(&path).during(what)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).during(what)?;
        let (closed, closing) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).during(what)?;
        let thread = std::thread::Builder::new().name("listings".to_owned()).spawn(move || {
            loop {
                let mut events = [PollFd::new(&listener, PollFlags::IN), PollFd::new(&closed, PollFlags::IN)];
                let polled = crate::channel::packet::wait(&mut events, None);
                if polled.is_err() || !events[1].revents().is_empty() {
                    return;
                }
                let Ok((mut stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(50));
                    continue;
                };
                let trusted =
                    socket_peercred(&stream).is_ok_and(|peer| peer.uid == geteuid() || peer.uid.is_root());
                let in_time = stream.set_write_timeout(Some(WAIT)).is_ok();
                if let (true, true, Ok(bytes)) = (trusted, in_time, serde_json::to_vec(&listing())) {
                    // The reader may have gone away.
                    let _ = stream.write_all(&bytes);
                }
            }
        });
        Ok(Socket { path, _closing: closing, thread: Some(thread.during(what)?) })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        // The thread sees the other end of its pipe close with the last field; it holds nothing that needs
        // waiting for.
        drop(self.thread.take());
    }
}

/// The listings of all supervisors of this user. Sockets that nobody answers at are left by dead ones, and
/// are removed.
///
/// # Errors
/// The directory cannot be read.
pub fn listings() -> Result<Vec<Listing>> {
    let what = "looking for supervisors";
    let entries = match std::fs::read_dir(runtime_directory()) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.during(what)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.during(what)?.path();
        let stream = match UnixStream::connect(&path) {
            Ok(stream) => stream,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                let _ = std::fs::remove_file(&path);
                continue;
            }
            Err(_) => continue,
        };
        let trusted = socket_peercred(&stream).is_ok_and(|peer| peer.uid == geteuid() || peer.uid.is_root());
        let mut bytes = Vec::new();
        let read =
            stream.set_read_timeout(Some(WAIT)).and_then(|()| stream.take(BYTES_MAX).read_to_end(&mut bytes));
        if let (true, Ok(_), Ok(listing)) = (trusted, read, serde_json::from_slice(&bytes)) {
            found.push(listing);
        }
    }
    found.sort_by(|a: &Listing, b| (&a.name, a.pid).cmp(&(&b.name, b.pid)));
    Ok(found)
}
