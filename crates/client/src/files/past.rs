//! `.snapshots` in the root: past states as read-only trees.
//!
//! ```text
//! .snapshots/2026-11-22T21.30.05Z/...     a past state, by the time of its last operation (UTC, its author's clock)
//! .snapshots/before-the-move/...          one that was given a name
//! ```
//!
//! The directory is in no listing of the root, so that programs that walk a tree do not walk all past states;
//! a lookup by name finds it. All data read in it is verified like that of the present state
//! ([`crate::Engine::past`]), and files are read by the same code: an open file of a past state is an open
//! file with the content of that state.
//!
//! Invariants:
//! - inode numbers of past states differ from present ones in their top bits, and only the functions of this
//!   module accept them ([`FileSystem::handle`] refuses them), so that a change can never be meant for a past
//!   file and affect the present one;
//! - a number is made from the state's name and the file's handle: it is the same on every mount, and
//!   different in each state;
//! - read permission is decided as in the present state: by the modes in the past state, for the owners that
//!   this mount shows now. A file that has rules for programs, in the past state or now, cannot be opened
//!   here.

use super::directory::OpenDirectory;
use super::views::FetchedView;
use super::{
    Attributes, Caller, DirectoryItem, FileHandleId, FileSystem, Ino, OpenFlags, OpenReply, RULES, Rights,
    known_handle,
};
use crate::backend::ReadSet;
use crate::engine::PastState;
use crate::error::FsError;
use crate::tree::View;
use holdfast_content::{Content, Entry, Handle, Inode, InodeKind, Membership, PrincipalId};
use holdfast_crypto::{DigestKey, Domain, encode};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Name of the directory of past states, in the root.
pub const FOLDER: &[u8] = b".snapshots";
/// Its inode number, with the bits that all numbers of past inodes have in common.
const FOLDER_INO: Ino = Ino(PAST | 1);
const PAST: u64 = 3 << 62;

/// A past state, and its name in the directory.
#[derive(Clone, Debug)]
pub struct PastEntry {
    /// Its name in the folder of past states.
    pub name: String,
    /// The past state.
    pub state: PastState,
}

/// Files of past states that the kernel knows.
#[derive(Default)]
pub(super) struct PastNodes {
    known: Mutex<HashMap<Ino, PastNodeEntry>>,
    folders: Mutex<HashMap<FileHandleId, Arc<Vec<PastEntry>>>>,
    /// The names given to the states of the last list.
    named: Mutex<Option<Arc<StateNames>>>,
}

/// The names of the states of a list, and the index of each state by name.
struct StateNames {
    /// The list of states that have these names.
    of: Arc<Vec<PastState>>,
    entries: Arc<Vec<PastEntry>>,
    places: HashMap<String, usize>,
}

#[derive(Clone)]
struct PastNodeEntry {
    place: PastNode,
    parent: Ino,
    lookups: u64,
}

/// A file in a past state.
#[derive(Clone)]
struct PastNode {
    entry: Arc<PastEntry>,
    handle: Handle,
}

impl Ino {
    /// Whether the number is of a file in a past state.
    pub(super) fn is_past(self) -> bool {
        self.0 & PAST == PAST
    }
}

/// Whether a name in a directory is that of the folder of past states.
pub(super) fn is_folder(parent: Ino, name: &[u8]) -> bool {
    parent == Ino::ROOT && name == FOLDER
}

/// The inode number of a file in a past state.
fn ino_of_past(state: &str, handle: Handle) -> Ino {
    let digest = DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, &encode(&("past inode", state, handle)));
    let [a, b, c, d, e, f, g, h, ..] = digest.0;
    Ino(PAST | u64::from_le_bytes([a, b, c, d, e, f, g, h])).max(Ino(PAST | 2))
}

/// The name of a past state that was given none: its time, as in `2026-11-22T21.30.05Z`.
pub fn time_name(ns: i64) -> String {
    let time = Timestamp::from_nanosecond(ns.into()).expect("64 bits of nanoseconds are within its years");
    time.strftime("%Y-%m-%dT%H.%M.%SZ").to_string()
}

/// Names for past states. If several states have the same second, the last has the plain name, and to the
/// others their position in the order is added.
fn name_states(states: &[PastState]) -> Vec<PastEntry> {
    let mut last: HashMap<String, u64> = HashMap::new();
    for state in states.iter().filter(|state| state.name.is_none()) {
        let size = last.entry(time_name(state.point.time_ns)).or_default();
        *size = (*size).max(state.point.log_size);
    }
    let name = |state: &PastState| match &state.name {
        Some(name) => name.value.name.clone(),
        None => {
            let name = time_name(state.point.time_ns);
            match last.get(&name) {
                Some(size) if *size != state.point.log_size => format!("{name}-{}", state.point.log_size),
                _ => name,
            }
        }
    };
    states.iter().map(|state| PastEntry { name: name(state), state: state.clone() }).collect()
}

impl FileSystem {
    /// Past states with the names by which they are found, oldest first, followed by those that were named by
    /// a user.
    ///
    /// # Errors
    /// As [`crate::Engine::past_states`].
    pub fn past_entries(&self) -> Result<Vec<PastEntry>, FsError> {
        self.run(|| Ok(self.past_named()?.entries.to_vec()))
    }

    fn past_named(&self) -> Result<Arc<StateNames>, FsError> {
        let states = self.engine.past_states()?;
        let mut known = self.pasts.named.lock();
        if let Some(named) = &*known
            && Arc::ptr_eq(&named.of, &states)
        {
            return Ok(named.clone());
        }
        let entries = Arc::new(name_states(&states));
        let places = entries.iter().enumerate().map(|(place, entry)| (entry.name.clone(), place)).collect();
        let named = Arc::new(StateNames { of: states, entries, places });
        *known = Some(named.clone());
        Ok(named)
    }

    /// The membership in force now, which says who the authors in past states are.
    pub fn past_members(&self) -> Arc<Membership> {
        self.engine.membership()
    }

    /// The view of a past state.
    ///
    /// # Errors
    /// As [`crate::Engine::past`].
    pub fn past_view(&self, entry: &PastEntry) -> Result<Arc<dyn View>, FsError> {
        self.engine.past(&entry.state)
    }

    fn past_place(&self, ino: Ino) -> Result<PastNode, FsError> {
        let known = self.pasts.known.lock();
        known.get(&ino).map(|known| known.place.clone()).ok_or(FsError::Stale)
    }

    /// Looks up a name in a past state, or the folder of past states itself.
    pub(super) fn past_lookup(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> Result<Attributes, FsError> {
        self.tokens.forget_token(caller.thread);
        if is_folder(parent, name) {
            self.nodes.looked_up(FOLDER_INO, Handle::ROOT, parent, name);
            return self.folder_attributes();
        }
        if parent == FOLDER_INO {
            let named = self.past_named()?;
            let place = std::str::from_utf8(name).ok().and_then(|name| named.places.get(name));
            let entry = named.entries[*place.ok_or(FsError::NotFound)?].clone();
            let place = PastNode { entry: Arc::new(entry), handle: Handle::ROOT };
            return self.past_found(place, parent, name);
        }
        let PastNode { entry, handle } = self.past_place(parent)?;
        let found = self.past_view(&entry)?.entry(handle, name)?.ok_or(FsError::NotFound)?;
        self.past_found(PastNode { entry, handle: known_handle(found.handle)? }, parent, name)
    }

    fn past_found(&self, place: PastNode, parent: Ino, name: &[u8]) -> Result<Attributes, FsError> {
        let shown = self.past_attributes(&place)?;
        let mut known = self.pasts.known.lock();
        let entry =
            known.entry(shown.ino).or_insert(PastNodeEntry { place: place.clone(), parent, lookups: 0 });
        entry.lookups += 1;
        drop(known);
        self.nodes.looked_up(shown.ino, place.handle, parent, name);
        Ok(shown)
    }

    /// Called when the kernel drops `count` lookups of a past inode.
    pub(super) fn past_forget(&self, ino: Ino, count: u64) {
        let mut known = self.pasts.known.lock();
        if let Some(entry) = known.get_mut(&ino) {
            entry.lookups = entry.lookups.saturating_sub(count);
            if entry.lookups == 0 {
                known.remove(&ino);
            }
        }
    }

    fn past_inode(&self, place: &PastNode) -> Result<Arc<Inode>, FsError> {
        self.past_view(&place.entry)?.inode(place.handle)
    }

    fn past_attributes(&self, place: &PastNode) -> Result<Attributes, FsError> {
        let inode = self.past_inode(place)?;
        // The owner is shown as it would be in the present state.
        let shown = self.published_attributes(&*self.backend.latest(), place.handle, &inode);
        Ok(Attributes { ino: ino_of_past(&place.entry.name, place.handle), ..shown })
    }

    fn folder_attributes(&self) -> Result<Attributes, FsError> {
        let latest = self.backend.latest();
        let mut shown = self.published_attributes(&*latest, Handle::ROOT, &*latest.inode(Handle::ROOT)?);
        (shown.ino, shown.mode) = (FOLDER_INO, shown.mode & 0o555);
        Ok(shown)
    }

    /// Attributes of a file in a past state.
    pub(super) fn past_getattr(&self, ino: Ino) -> Result<Attributes, FsError> {
        match ino {
            FOLDER_INO => self.folder_attributes(),
            _ => self.past_attributes(&self.past_place(ino)?),
        }
    }

    /// Target of a symbolic link in a past state.
    pub(super) fn past_readlink(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        match &self.past_inode(&self.past_place(ino)?)?.content {
            Content::Target(target) => Ok(target.clone()),
            _ => Err(FsError::Invalid("not a symbolic link".into())),
        }
    }

    /// Whether the caller has these rights, by the modes in the past state.
    pub(super) fn past_access(&self, caller: &Caller, ino: Ino, rights: Rights) -> Result<(), FsError> {
        if rights.write {
            return Err(FsError::ReadOnly);
        }
        let shown = self.past_getattr(ino)?;
        let shift = match () {
            () if caller.uid == shown.uid => 6,
            () if caller.gid == shown.gid => 3,
            () => 0,
        };
        let wanted = u32::from(rights.read) << 2 | u32::from(rights.execute);
        let executable = shown.kind == InodeKind::Directory || shown.mode & 0o111 != 0;
        let allowed = match caller.uid {
            0 => !rights.execute || executable,
            _ => shown.mode >> shift & wanted == wanted,
        };
        if allowed { Ok(()) } else { Err(FsError::Access("the permission bits say no".into())) }
    }

    /// Extended attributes of a file in a past state.
    pub(super) fn past_xattrs(
        &self,
        ino: Ino,
    ) -> Result<std::collections::BTreeMap<Vec<u8>, Vec<u8>>, FsError> {
        match ino {
            FOLDER_INO => Ok(Default::default()),
            _ => Ok(self.past_inode(&self.past_place(ino)?)?.xattrs.clone()),
        }
    }

    /// Opens a file in a past state for reading.
    pub(super) fn past_open(&self, ino: Ino, flags: OpenFlags) -> Result<OpenReply, FsError> {
        if flags.write || flags.truncate {
            return Err(FsError::ReadOnly);
        }
        if ino == FOLDER_INO {
            return Err(FsError::IsDirectory);
        }
        let place = self.past_place(ino)?;
        let view = self.past_view(&place.entry)?;
        let inode = view.inode(place.handle)?;
        Self::must_be_file(inode.kind)?;
        let has_rules = |inode: &Inode| inode.xattrs.contains_key(RULES);
        if has_rules(&inode) || self.backend.latest().inode(place.handle).is_ok_and(|now| has_rules(&now)) {
            return Err(FsError::Access(
                "a file with rules for programs is not opened in a past state".into(),
            ));
        }
        let node = self.nodes.get(ino, place.handle);
        let keep_cache = self.enter(&node, &inode, &*view, flags);
        Ok(self.opened(node, flags, keep_cache))
    }

    /// Opens a directory in a past state.
    pub(super) fn past_opendir(&self, ino: Ino) -> Result<FileHandleId, FsError> {
        let id = self.new_handle();
        if ino == FOLDER_INO {
            self.pasts.folders.lock().insert(id, self.past_named()?.entries.clone());
            return Ok(id);
        }
        let place = self.past_place(ino)?;
        let view = self.past_view(&place.entry)?;
        if view.inode(place.handle)?.kind != InodeKind::Directory {
            return Err(FsError::NotDirectory);
        }
        let node = self.nodes.get(ino, place.handle);
        node.state().open += 1;
        let open = OpenDirectory::new(node, FetchedView { view, at: super::views::now() });
        self.directories.lock().insert(id, Arc::new(open));
        Ok(id)
    }

    /// Lists the past states, if their folder is what is open; else `None`.
    pub(super) fn past_folder(
        &self,
        handle: FileHandleId,
        offset: u64,
        sink: &mut dyn FnMut(DirectoryItem<'_>) -> bool,
    ) -> Option<()> {
        let entries = self.pasts.folders.lock().get(&handle).cloned()?;
        let dots = [(FOLDER_INO, &b"."[..]), (Ino::ROOT, &b".."[..])];
        let names =
            entries.iter().map(|entry| (ino_of_past(&entry.name, Handle::ROOT), entry.name.as_bytes()));
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (number, (ino, name)) in dots.into_iter().chain(names).enumerate().skip(from) {
            let next_offset = number as u64 + 1;
            if !sink(DirectoryItem { ino, kind: InodeKind::Directory, name, next_offset }) {
                break;
            }
        }
        Some(())
    }

    /// Closes a listing of the folder of past states. Returns whether it was one.
    pub(super) fn past_folder_closed(&self, handle: FileHandleId) -> bool {
        self.pasts.folders.lock().remove(&handle).is_some()
    }

    /// Inode number of an entry of a directory in a past state.
    pub(super) fn past_child(&self, directory: Ino, entry: &Entry) -> Result<Ino, FsError> {
        let state = self.past_place(directory)?.entry;
        Ok(ino_of_past(&state.name, known_handle(entry.handle)?))
    }

    /// Inode number of the directory above one in a past state.
    pub(super) fn past_parent(&self, ino: Ino) -> Ino {
        self.pasts.known.lock().get(&ino).map_or(Ino::ROOT, |known| known.parent)
    }
}

/// A version that a path had in consecutive past states.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PastVersion {
    /// The first past state with it.
    pub first: String,
    /// The last one; `None` if it is the present version too.
    pub last: Option<String>,
    /// The declared time of the last operation of the first such state, in nanoseconds since 1970.
    pub since_ns: i64,
    /// Snapshots that contain it.
    pub snapshots: Vec<String>,
    /// The file; `None` if nothing was at the path.
    pub file: Option<PastFile>,
}

/// What is shown of a file in a past state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PastFile {
    /// Kind of the file: `file`, `directory` and so on.
    pub kind: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// When its content was last modified, as its writer declared.
    pub modified_ns: i64,
    /// The user who wrote it last.
    pub written_by: String,
    /// The device that wrote it.
    pub device: u32,
    /// Digest of the inode, which differs between versions.
    pub ihash: String,
}

impl FileSystem {
    /// The versions that a path had in the past states, oldest first, and has now. A file that was deleted
    /// and made again counts as another version. Links are not followed.
    ///
    /// # Errors
    /// [`FsError::NotFound`]: it is in none of them; otherwise as [`FileSystem::past_entries`] and
    /// [`FileSystem::past_view`].
    pub fn past_versions(&self, path: &[u8]) -> Result<Vec<PastVersion>, FsError> {
        let now = self.run(|| self.backend.fetch(ReadSet::default()))?;
        let mut states: BTreeMap<u64, (PastEntry, Vec<String>)> = BTreeMap::new();
        for entry in self.past_entries()? {
            let is_named = entry.state.name.is_some();
            let at = states.entry(entry.state.point.log_size);
            let (_, names) = at.or_insert_with(|| (entry.clone(), Vec::new()));
            if is_named {
                names.push(entry.name);
            }
        }
        let mut versions: Vec<PastVersion> = Vec::new();
        for (entry, snapshots) in states.into_values() {
            let file = match self.past_view(&entry) {
                Ok(view) => past_file(&*view, path)?,
                // The past state was given up after the list was made.
                Err(FsError::NotFound) => continue,
                Err(error) => return Err(error),
            };
            match versions.last_mut().filter(|last| last.file == file) {
                Some(last) => {
                    last.last = Some(entry.name);
                    last.snapshots.extend(snapshots);
                }
                None => {
                    let (name, since_ns) = (entry.name, entry.state.point.time_ns);
                    versions.push(PastVersion {
                        first: name.clone(),
                        last: Some(name),
                        since_ns,
                        snapshots,
                        file,
                    });
                }
            }
        }
        let present = past_file(&*now, path)?;
        match versions.last_mut().filter(|last| last.file == present) {
            Some(last) => last.last = None,
            None => versions.push(PastVersion {
                first: "now".to_owned(),
                last: None,
                since_ns: super::now_ns(),
                snapshots: Vec::new(),
                file: present,
            }),
        }
        // States before the file existed for the first time are left out.
        let first = versions.iter().position(|version| version.file.is_some()).ok_or(FsError::NotFound)?;
        Ok(versions.split_off(first))
    }
}

/// The file that a path led to; `None` if there was none.
fn past_file(view: &dyn View, path: &[u8]) -> Result<Option<PastFile>, FsError> {
    let mut handle = Handle::ROOT;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        match view.entry(handle, name) {
            Ok(Some(entry)) => handle = known_handle(entry.handle)?,
            Ok(None) | Err(FsError::NotFound | FsError::NotDirectory) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    let inode = match view.inode(handle) {
        Ok(inode) => inode,
        Err(FsError::NotFound) => return Ok(None),
        Err(error) => return Err(error),
    };
    let ihash = inode.ihash(&DigestKey::WELL_KNOWN).map_err(|misuse| FsError::Invalid(misuse.to_string()))?;
    let kind = match inode.kind {
        InodeKind::File => "file",
        InodeKind::Directory => "directory",
        InodeKind::Symlink => "symbolic link",
        InodeKind::Fifo => "fifo",
        InodeKind::Socket => "socket",
        InodeKind::CharDevice | InodeKind::BlockDevice => "device",
    };
    Ok(Some(PastFile {
        kind: kind.to_owned(),
        bytes: inode.size,
        mode: inode.mode,
        modified_ns: inode.modified_ns,
        written_by: view.name_of(PrincipalId::Device(inode.writer)),
        device: inode.writer.0,
        ihash: ihash.to_string(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_protocol::history::Point;

    /// Proves: times are named correctly, before 1970 and on leap days too.
    #[test]
    fn times_have_names() {
        assert_eq!(time_name(0), "1970-01-01T00.00.00Z");
        assert_eq!(time_name(951_782_400_000_000_000), "2000-02-29T00.00.00Z");
        assert_eq!(time_name(1_700_000_000_999_999_999), "2023-11-14T22.13.20Z");
        assert_eq!(time_name(-1), "1969-12-31T23.59.59Z");
    }

    /// Proves: no two states have the same name, and the last state of a second has the plain one.
    #[test]
    fn names_are_different() {
        let state = |log_size, time_ns| PastState { point: Point { log_size, time_ns }, name: None };
        let names = name_states(&[state(3, 5), state(7, 900), state(9, 2_000_000_000)]);
        let names: Vec<&str> = names.iter().map(|entry| &entry.name[..]).collect();
        assert_eq!(names, ["1970-01-01T00.00.00Z-3", "1970-01-01T00.00.00Z", "1970-01-01T00.00.02Z"]);
    }

    /// Proves: numbers of past inodes are never numbers of present ones.
    #[test]
    fn numbers_are_apart() {
        for number in 1..2000 {
            let ino = ino_of_past("x", Handle { number, ..Handle::ROOT });
            assert!(ino.is_past() && Handle::from_inode_number(ino.0).is_none());
        }
        assert!(!Ino::ROOT.is_past());
    }
}
