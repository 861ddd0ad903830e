//! Login and logout records: small files of each user, in which devices publish their addresses.
//!
//! `/USER/.holdfast/logins/DEVICE`, at most 256 bytes of text:
//!
//! ```text
//! holdfast login 1
//! run 9f86d081884c7d65                      tells this mount from earlier and later ones
//! at 1790000000                             seconds since 1970, by that machine's clock; for people
//! in 192.0.2.7:41234 [2001:db8::7]:41234    or: out
//! ```
//!
//! A record is signed as every file is. It is believed only if the device whose number it has wrote it last.
//! It leads to connections and to lines in the status, and ends the waiting for a run that it reports as
//! over.

use super::{ADDRESSES_MAX, Peers};
use crate::engine::leases::now_ms;
use crate::engine::shared::Shared;
use crate::engine::snapshot::Snapshot;
use crate::error::FsError;
use crate::evidence::now_ns;
use crate::tree::{Changes, Edit, View};
use holdfast_content::{Content, DeviceId, Entry, Handle, Inode, InodeKind, PrincipalId};
use holdfast_protocol::peers::Change;
use parking_lot::Mutex;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// The folder in a user's directory, and the folder in that one.
const FOLDERS: [&[u8]; 2] = [b".holdfast", b"logins"];
/// How often records are read, if anything has changed, and how often a failed write is tried again.
const READ_EVERY: Duration = Duration::from_secs(3);
/// How long a proper end waits for its record to be written.
const LOGOUT_PATIENCE: Duration = Duration::from_secs(5);
/// Most users whose records are read. In a larger file system, some devices are found by beacons only.
const USERS_MAX: usize = 512;
/// Most records of one user that are read.
const RECORDS_MAX: usize = 32;
/// How much longer the device with the lower number waits before it calls, so that only one of the two calls.
const YIELD_MS: u64 = 2_000;

/// A login or logout record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    /// Number that distinguishes this mount from other runs of the device.
    pub run: u64,
    /// When it was written, in seconds since 1970.
    pub at_s: i64,
    /// Addresses at which the device listens; `None` once it has logged out.
    pub is_in: Option<Vec<SocketAddr>>,
}

impl Record {
    pub(super) fn to_text(&self) -> String {
        let mut text = format!("holdfast login 1\nrun {:016x}\nat {}\n", self.run, self.at_s);
        match &self.is_in {
            Some(addresses) => {
                text.push_str("in");
                for address in addresses.iter().take(ADDRESSES_MAX) {
                    let _ = write!(text, " {address}");
                }
            }
            None => text.push_str("out"),
        }
        text.push('\n');
        text
    }

    /// Parses the text of a record; `None` if it is not a record.
    pub(super) fn parse(text: &[u8]) -> Option<Record> {
        let mut lines = std::str::from_utf8(text).ok()?.strip_suffix('\n')?.split('\n');
        if lines.next()? != "holdfast login 1" {
            return None;
        }
        let run = u64::from_str_radix(lines.next()?.strip_prefix("run ")?, 16).ok()?;
        let at_s = lines.next()?.strip_prefix("at ")?.parse().ok()?;
        let mut words = lines.next()?.split(' ');
        let is_in = match words.next()? {
            "in" => Some(words.map(str::parse).collect::<Result<Vec<SocketAddr>, _>>().ok()?),
            "out" if words.next().is_none() => None,
            _ => return None,
        };
        let fits = is_in.as_ref().is_none_or(|addresses| addresses.len() <= ADDRESSES_MAX);
        (fits && lines.next().is_none()).then_some(Record { run, at_s, is_in })
    }
}

/// Body of the thread that writes this device's record and reads the others', until it is stopped.
pub(super) fn run(peers: &Arc<Peers>, shared: &Arc<Shared>) {
    let mut is_written = false;
    let mut read: Option<u64> = None;
    loop {
        if !is_written && shared.check().is_ok() && shared.remote.is_connected() {
            match write(shared, peers.record(true)) {
                Ok(()) => {
                    is_written = true;
                    peers.state.lock().trouble = None;
                }
                Err(error) => {
                    tracing::warn!(%error, "the login record could not be written");
                    peers.state.lock().trouble =
                        Some(format!("the login record could not be written: {error}"));
                }
            }
        }
        let place = shared.latest.read().clone();
        if read != Some(place.sequence) && shared.check().is_ok() {
            read = Some(place.sequence);
            let snapshot = Snapshot::new(shared.clone(), place, None);
            peers.read_records(shared, &snapshot);
        }
        if peers.stop.pause(READ_EVERY) {
            return;
        }
    }
}

/// Writes that this run is over, unless that takes too long. The peers were told directly too.
pub(super) fn log_out(peers: &Peers, shared: &Arc<Shared>) {
    if shared.check().is_err() || !shared.remote.is_connected() {
        return;
    }
    let (done, told) = channel();
    let (record, keeper) = (peers.record(false), shared.clone());
    let writing = std::thread::Builder::new().name("holdfast-logout".to_owned()).spawn(move || {
        if let Err(error) = write(&keeper, record) {
            tracing::info!(%error, "the logout record could not be written");
        }
        let _ = done.send(());
    });
    if writing.is_ok() {
        let _ = told.recv_timeout(LOGOUT_PATIENCE);
    }
}

fn write(shared: &Shared, record: Record) -> Result<(), FsError> {
    shared.submit_freely(Some(edit(shared, record))).map(drop)
}

/// The edit that writes this device's record, with its folders.
fn edit(shared: &Shared, record: Record) -> Arc<Mutex<dyn Edit>> {
    let base = shared.latest.read().base.clone();
    let user = base.membership.users.get(&base.user).map_or_else(String::new, |user| user.name.clone());
    let (text, at_ns) = (record.to_text().into_bytes(), now_ns());
    Arc::new(Mutex::new(move |changes: &mut dyn Changes| {
        let home = changes.entry(Handle::ROOT, user.as_bytes())?.ok_or(FsError::NotFound)?;
        let mut folder = home.handle;
        for name in FOLDERS {
            folder = match changes.entry(folder, name)? {
                Some(Entry { handle, kind: InodeKind::Directory }) => handle,
                Some(_) => return Err(FsError::NotDirectory),
                None => {
                    let inode = Inode::new(InodeKind::Directory, 0o755, changes.me(), at_ns);
                    make(changes, folder, name, inode, at_ns)?
                }
            };
        }
        let name = changes.me().0.to_string();
        let mut inode = Inode::new(InodeKind::File, 0o644, changes.me(), at_ns);
        inode.size = text.len() as u64;
        inode.content = Content::Inline(text.clone());
        match changes.entry(folder, name.as_bytes())? {
            Some(Entry { handle, kind: InodeKind::File }) => changes.set_inode(handle, inode),
            Some(_) => Err(FsError::Exists),
            None => make(changes, folder, name.as_bytes(), inode, at_ns).map(drop),
        }
    }))
}

fn make(
    changes: &mut dyn Changes,
    folder: Handle,
    name: &[u8],
    inode: Inode,
    at_ns: i64,
) -> Result<Handle, FsError> {
    let handle = changes.allocate(PrincipalId::User(changes.user()))?;
    let kind = inode.kind;
    changes.set_inode(handle, inode)?;
    changes.set_entry(folder, name, Some(Entry { handle, kind }), at_ns)?;
    Ok(handle)
}

impl Peers {
    fn record(&self, is_in: bool) -> Record {
        let at_s = now_ns() / 1_000_000_000;
        Record { run: self.run, at_s, is_in: is_in.then(|| self.announced.clone()) }
    }

    /// Takes over the content of all records in a view.
    fn read_records(&self, shared: &Shared, snapshot: &Snapshot) {
        let membership = snapshot.membership();
        let mut changes: Vec<Change> = Vec::new();
        for (id, user) in membership.users.iter().filter(|(_, user)| !user.removed).take(USERS_MAX) {
            if self.stop.is_asked() {
                return;
            }
            let Ok(found) = records_of(snapshot, user.name.as_bytes()) else { continue };
            for (device, record) in found {
                let member = membership.devices.get(&device);
                let is_theirs =
                    member.is_some_and(|member| member.user == *id && member.removed_at.is_none());
                if is_theirs && device != shared.me {
                    changes.extend(self.noticed(shared, device, record));
                }
            }
        }
        self.changed(&changes);
    }

    fn noticed(&self, shared: &Shared, device: DeviceId, record: Record) -> Option<Change> {
        let mut state = self.state.lock();
        let Some(mut addresses) = record.is_in else {
            return state.roster.handle_logout(device, record.run);
        };
        addresses.truncate(ADDRESSES_MAX);
        state.roster.handle_login(device, record.run);
        let known = state.known.entry(device).or_default();
        if known.recorded != addresses {
            known.recorded = addresses;
            known.call_pause_ms = 0;
            known.call_at_ms = now_ms() + if shared.me < device { YIELD_MS } else { 0 };
        }
        None
    }
}

/// The records in a user's directory, with the devices that wrote them.
fn records_of(snapshot: &Snapshot, user: &[u8]) -> Result<Vec<(DeviceId, Record)>, FsError> {
    let mut folder = Handle::ROOT;
    for name in std::iter::once(user).chain(FOLDERS) {
        folder = match snapshot.entry(folder, name)? {
            Some(Entry { handle, kind: InodeKind::Directory }) => handle,
            _ => return Ok(Vec::new()),
        };
    }
    let mut found = Vec::new();
    for (name, entry) in snapshot.entries(folder, None, RECORDS_MAX)? {
        let device = std::str::from_utf8(&name).ok().and_then(|name| name.parse().ok()).map(DeviceId);
        let (Some(device), InodeKind::File) = (device, entry.kind) else { continue };
        let inode = snapshot.inode(entry.handle)?;
        let Content::Inline(text) = &inode.content else { continue };
        if let Some(record) = Record::parse(text).filter(|_| inode.writer == device) {
            found.push((device, record));
        }
    }
    Ok(found)
}
