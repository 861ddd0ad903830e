//! Replays at the server the edits that were made here. Conflicts with other devices' changes are found, and
//! neither side's work is lost.
//!
//! For everything that an edit changed, the journal has the state before the edit (*seen*) and the state
//! after it (*new*). At the edit's place in the order, the file system has a *present* state:
//!
//! - present = seen: it becomes new. present = new: there is nothing to do.
//! - Content changed on both sides: ours wins, and theirs is kept as a conflict copy (`holdfast conflicts`),
//!   as when two devices publish at the same time. Attributes that only one side changed are taken from that
//!   side.
//! - A name that another device has given to another file: theirs keeps it, and our file gets a similar name
//!   in the same directory.
//! - A file that was removed elsewhere and written here: it comes back, near where it was.
//! - A file that was written elsewhere and removed here: the version written elsewhere is kept as a conflict
//!   copy.
//! - A directory that was removed here, and that another device has moved or put something into: it stays.
//! - A directory moved on both sides: it is where the other device has moved it. A file moved on both sides
//!   has both names. A file removed here and moved elsewhere has the name from there.
//! - A file for which no directory is left: it is not made, and the caller saves it to a folder.
//!
//! These rules are for edits that were never sent ([`ReplayKind::Unsent`]). Edits that *were* sent, and lost
//! when the server was restored from a backup ([`crate::engine`]), are older than whatever other devices have
//! changed since. So for them the rules are reversed ([`ReplayKind::Lost`]): content written by others wins,
//! and ours is kept as a conflict copy; nothing that others have changed since is removed or loses its name.
//!
//! The same operation notes in a file without a name ([`Handle::sent_mark`]) how far the journal has been
//! sent. So edits whose confirmation was lost are recognised as sent, even after a restart and whatever
//! others did since.

use super::journal::NameMapping;
use super::record::{EntryChange, InodeChange, JournalInode, NetChange};
use super::{ConflictReport, now_ns};
use crate::error::FsError;
use crate::files::conflict_copies::{Overwrite, keep_conflict_copy};
use crate::files::names::below;
use crate::files::salvage::timestamp;
use crate::files::state::content_digest;
use crate::tree::{Changes, Edit};
use holdfast_content::{DeviceId, Entry, Handle, Inode, InodeKind, NAME_BYTES_MAX, UserId};
use holdfast_crypto::{decode, encode};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most similar names tried for a name that is taken.
const NAMES_TRIED: u32 = 1000;

/// Name of the attribute that notes how far a journal has been sent.
const SENT: &[u8] = b"holdfast.sent";
/// Name of the attribute that notes how far edits lost by a restore have been resent.
const SENT_AGAIN: &[u8] = b"holdfast.sent-again";

/// Which edits are replayed. This decides which side wins where both have changed the same thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayKind {
    /// Edits that were never at the server: our changes are the newer ones.
    Unsent,
    /// Edits that were at the server and were lost by a restore: other devices' changes are the newer ones.
    Lost,
}

/// The device that sends a journal.
#[derive(Clone, Debug)]
pub struct Sender {
    /// Number of the device.
    pub device: DeviceId,
    /// The user that the device belongs to.
    pub user: UserId,
    /// Random number of the journal.
    pub journal: u128,
    /// Name of the device in the names of conflicting files.
    pub name: String,
}

/// What became of the edits.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Conflicts to report to people.
    pub conflicts: Vec<ConflictReport>,
    /// All files whose names at the server differ from those here.
    pub placed: Vec<NameMapping>,
    /// Files for which no directory was found; the caller saves them.
    pub unplaced: Vec<Handle>,
    /// Whether an earlier attempt had already made the edits; its conflicts were reported then.
    pub was_made: bool,
}

/// The edit that makes the net effect of several local edits at the server.
pub struct Replay {
    manner: ReplayKind,
    net: Arc<NetChange>,
    sender: Sender,
    placed: Vec<NameMapping>,
    at_ns: i64,
    /// The outcome of the last run of the plan.
    pub outcome: Outcome,
    /// For each file, how many names this run has given it minus those it has taken away.
    names: BTreeMap<Handle, i64>,
    /// Files of which a name was removed here and is gone at the server, too.
    taken_twice: BTreeSet<Handle>,
    /// Files that others have changed since; lost edits give way to them.
    newer: BTreeSet<Handle>,
}

type PresentInode = Option<Arc<Inode>>;

/// A file that cannot have the name that it has here, and needs another one.
struct UnplacedFile {
    handle: Handle,
    kind: InodeKind,
    path: Vec<u8>,
    why: &'static str,
    /// Directory and name here, if it has one.
    wanted: Option<(Handle, Vec<u8>)>,
}

impl Replay {
    pub fn new(net: Arc<NetChange>, sender: Sender, placed: Vec<NameMapping>, manner: ReplayKind) -> Replay {
        let outcome = Outcome { placed: placed.clone(), ..Outcome::default() };
        let (names, taken_twice, newer) = Default::default();
        Replay { manner, net, sender, placed, at_ns: now_ns(), outcome, names, taken_twice, newer }
    }

    fn report_conflict(&mut self, path: &[u8], what: String) {
        let path = String::from_utf8_lossy(path).into_owned();
        self.outcome.conflicts.push(ConflictReport { path, what, at_ns: self.at_ns });
    }

    fn overwriting(&self, path: &[u8]) -> Overwrite {
        Overwrite { path: path.to_vec(), by: self.sender.device, at_ns: self.at_ns }
    }

    /// Whether an earlier attempt has made these edits. If not, notes in the same operation that they are
    /// made.
    fn is_made(&self, changes: &mut dyn Changes) -> Result<bool, FsError> {
        let mark = Handle::sent_mark(self.sender.user, self.sender.device);
        let inode = match changes.inode(mark) {
            Ok(inode) => Some(inode),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let attribute = match self.manner {
            ReplayKind::Unsent => SENT,
            ReplayKind::Lost => SENT_AGAIN,
        };
        let noted = inode.as_ref().and_then(|inode| decode::<(u128, u64)>(inode.xattrs.get(attribute)?).ok());
        if noted.is_some_and(|(journal, last)| journal == self.sender.journal && last >= self.net.last) {
            return Ok(true);
        }
        let xattrs = inode.map(|inode| inode.xattrs.clone()).unwrap_or_default();
        let mut inode = Inode { xattrs, ..Inode::new(InodeKind::File, 0, self.sender.device, self.at_ns) };
        inode.xattrs.insert(attribute.to_vec(), encode(&(self.sender.journal, self.net.last)));
        changes.set_inode(mark, inode)?;
        Ok(false)
    }

    fn inode(
        &mut self,
        changes: &mut dyn Changes,
        change: &InodeChange,
        present: &PresentInode,
        homeless: &mut Vec<UnplacedFile>,
    ) -> Result<(), FsError> {
        let handle = change.handle;
        let Some(new) = change.new.as_ref().map(|kept| &kept.0) else { return Ok(()) };
        let seen = change.seen.as_ref().map(|kept| &kept.0);
        if !changes.may_write(handle.principal) {
            let written = seen.is_none_or(|seen| content_digest(seen) != content_digest(new));
            if written && new.kind == InodeKind::File {
                self.outcome.unplaced.push(handle);
                let what = "the right to write it was lost; what was written here is saved";
                self.report_conflict(&change.path, what.into());
            }
            return Ok(());
        }
        if let (ReplayKind::Lost, Some(present)) = (self.manner, present)
            && self.newer.contains(&handle)
        {
            return self.give_way(changes, change, new, present);
        }
        match (seen, present) {
            (None, None) if new.kind == InodeKind::Directory => changes.set_inode(handle, Inode::clone(new)),
            (None, None) => changes.set_inode(handle, Inode { links: 0, ..Inode::clone(new) }),
            (None, Some(_)) => Ok(()),
            // If a file was only moved, nothing but its time of change is new.
            (Some(_), Some(present))
                if same(present, new)
                    && present.modified_ns == new.modified_ns
                    && present.changed_ns >= new.changed_ns =>
            {
                Ok(())
            }
            (Some(seen), Some(present)) if same(present, seen) => {
                // `give_name`, `take_name` and `count` account for the number of links.
                changes.set_inode(handle, Inode { links: present.links, ..Inode::clone(new) })
            }
            (Some(seen), Some(present)) => {
                let lost = content_digest(new) != content_digest(seen)
                    && content_digest(present) != content_digest(seen)
                    && content_digest(present) != content_digest(new)
                    && present.kind == InodeKind::File
                    && present.size > 0;
                if lost {
                    let kept = keep_conflict_copy(changes, handle, present, &self.overwriting(&change.path))?;
                    let whose = kept.map_or_else(String::new, |kept| {
                        format!("; theirs is kept: `holdfast conflicts get {kept} --out FILE` copies it out")
                    });
                    self.report_conflict(
                        &change.path,
                        format!(
                            "it was changed both here and elsewhere; it is now as it was made here{whose}"
                        ),
                    );
                }
                changes.set_inode(handle, merged(seen, new, present))
            }
            (Some(seen), None) => {
                let written = new.kind == InodeKind::File && content_digest(seen) != content_digest(new);
                if written {
                    let mut inode = Inode::clone(new);
                    inode.links = 0;
                    changes.set_inode(handle, inode)?;
                    // Programs often save by putting a new file in the old one's place.
                    let why = match is_file_at(changes, &change.path)? {
                        true => "it was replaced elsewhere by another file while it was changed here",
                        false => "it was removed elsewhere while it was changed here",
                    };
                    homeless.push(UnplacedFile {
                        handle,
                        kind: new.kind,
                        path: change.path.clone(),
                        why,
                        wanted: None,
                    });
                }
                Ok(())
            }
        }
    }

    /// Handles a lost edit of a file that others have changed since: their version stands, and the lost
    /// content becomes a conflict copy.
    fn give_way(
        &mut self,
        changes: &mut dyn Changes,
        change: &InodeChange,
        lost: &Inode,
        present: &Arc<Inode>,
    ) -> Result<(), FsError> {
        let handle = change.handle;
        if let Some(seen) = &change.seen {
            let (links, writer) = (present.links, present.writer);
            let inode = Inode { links, writer, ..merged(&seen.0, present, lost) };
            if !same(&inode, present) {
                changes.set_inode(handle, inode)?;
            }
        }
        let content = content_digest(lost);
        let is_newer = content != content_digest(present)
            && change.seen.as_ref().is_none_or(|seen| content != content_digest(&seen.0));
        if !is_newer || lost.kind != InodeKind::File || lost.size == 0 {
            return Ok(());
        }
        let how = Overwrite { by: present.writer, ..self.overwriting(&change.path) };
        let kept = keep_conflict_copy(changes, handle, lost, &how)?;
        let where_it_is = kept.map_or_else(String::new, |kept| {
            format!(": `holdfast conflicts get {kept} --out FILE` copies it out")
        });
        let what = format!(
            "others have changed it since the server was put back, and that stands; the version that was lost is kept{where_it_is}"
        );
        self.report_conflict(&change.path, what);
        Ok(())
    }

    /// Whether others have changed a file since the lost edit: it is neither as before that nor as after it.
    fn is_newer(&self, change: &InodeChange, present: &PresentInode) -> bool {
        let Some(present) = present else { return false };
        let is = |kept: &Option<JournalInode>| kept.as_ref().is_some_and(|kept| same(present, &kept.0));
        self.manner == ReplayKind::Lost && !is(&change.seen) && !is(&change.new)
    }

    /// Sets or removes a name, and counts it for the files concerned.
    fn set_name(
        &mut self,
        changes: &mut dyn Changes,
        place: (Handle, &[u8]),
        entry: Option<Entry>,
        time_ns: i64,
    ) -> Result<(), FsError> {
        let before = changes.entry(place.0, place.1)?;
        for (entry, by) in [(before, -1), (entry, 1)] {
            if let Some(entry) = entry {
                *self.names.entry(entry.handle).or_default() += by;
            }
        }
        changes.set_entry(place.0, place.1, entry, time_ns)
    }

    /// Directory and name at the server of a file that has the name `wanted` here.
    fn place_of(&self, handle: Handle, wanted: &(Handle, Vec<u8>)) -> (Handle, Vec<u8>) {
        let placed = self.placed.iter().find(|placed| placed.handle == handle && placed.local == *wanted);
        placed.map_or_else(|| wanted.clone(), |placed| placed.at_server.clone())
    }

    /// Directories that lost a name here, and no longer have that name at the server either: others have
    /// moved them.
    fn moved_elsewhere(&self, changes: &mut dyn Changes) -> Result<BTreeSet<Handle>, FsError> {
        let mut moved = BTreeSet::new();
        for change in self.net.entries.values() {
            let Some(seen) = change.seen.filter(|seen| seen.kind == InodeKind::Directory) else { continue };
            let (directory, name) = self.place_of(seen.handle, &(change.directory, change.name.clone()));
            let present = match changes.entry(directory, &name) {
                Err(FsError::NotFound | FsError::NotDirectory) => None,
                other => other?,
            };
            if present.is_none_or(|present| present.handle != seen.handle) {
                moved.insert(seen.handle);
            }
        }
        Ok(moved)
    }

    /// Gives a file the name that it has here.
    fn give_name(
        &mut self,
        changes: &mut dyn Changes,
        change: &EntryChange,
        created: &BTreeSet<Handle>,
        stay: &mut BTreeSet<Handle>,
        homeless: &mut Vec<UnplacedFile>,
    ) -> Result<(), FsError> {
        let Some(new) = change.new else { return Ok(()) };
        let directory = change.directory;
        let path = [change.path.as_slice(), &change.name].join(&b'/');
        // A file that could not be made, or was removed elsewhere, gets no names.
        match changes.inode(new.handle) {
            Err(FsError::NotFound) => {
                if !created.contains(&new.handle) && changes.may_write(new.handle.principal) {
                    let what = "it got this name here, but elsewhere it was removed or replaced; it is gone";
                    self.report_conflict(&path, what.into());
                }
                return Ok(());
            }
            other => other?,
        };
        if !is_open_to(changes, directory)? {
            homeless.push(UnplacedFile {
                handle: new.handle,
                kind: new.kind,
                path,
                why: "the directory it was put into here is gone",
                wanted: Some((directory, change.name.clone())),
            });
            return Ok(());
        }
        let present = changes.entry(directory, &change.name)?;
        if present == Some(new) {
            return Ok(());
        }
        if stay.contains(&new.handle) {
            let what = "it was moved both here and elsewhere; it is where it was moved to elsewhere";
            self.report_conflict(&path, what.into());
            return Ok(());
        }
        if new.kind == InodeKind::Directory
            && !created.contains(&new.handle)
            && (new.handle == directory || below(changes, new.handle, directory)?)
        {
            stay.insert(new.handle);
            self.report_conflict(
                &path,
                "it was moved here, but elsewhere its new place was moved into it; it stays".into(),
            );
            return Ok(());
        }
        let is_newer = present.is_some_and(|present| self.newer.contains(&present.handle));
        if (present == change.seen && !is_newer) || present.is_none() {
            return self.set_name(changes, (directory, &change.name), Some(new), change.time_ns);
        }
        let name = self.free_name(changes, directory, &change.name)?;
        self.set_name(changes, (directory, &name), Some(new), change.time_ns)?;
        self.outcome.placed.push(NameMapping {
            handle: new.handle,
            local: (directory, change.name.clone()),
            at_server: (directory, name.clone()),
        });
        let name = String::from_utf8_lossy(&name).into_owned();
        self.report_conflict(
            &path,
            format!("somebody else has taken the name meanwhile; what was made here is now {name:?}"),
        );
        Ok(())
    }

    /// Removes a name that was removed here.
    fn take_name(
        &mut self,
        changes: &mut dyn Changes,
        change: &EntryChange,
        stay: &BTreeSet<Handle>,
    ) -> Result<(), FsError> {
        let (Some(seen), None) = (change.seen, change.new) else { return Ok(()) };
        let wanted = (change.directory, change.name.clone());
        let (directory, name) = self.place_of(seen.handle, &wanted);
        if stay.contains(&seen.handle) || !is_open_to(changes, directory)? {
            return Ok(());
        }
        self.outcome.placed.retain(|placed| placed.handle != seen.handle || placed.local != wanted);
        let present = changes.entry(directory, &name)?;
        if present.is_some_and(|present| present.handle == seen.handle) {
            return self.set_name(changes, (directory, &name), None, change.time_ns);
        }
        self.taken_twice.insert(seen.handle);
        if present.is_some() {
            let path = [change.path.as_slice(), &change.name].join(&b'/');
            let what =
                "the name was removed here, but somebody else has given it to something new, which stays";
            self.report_conflict(&path, what.into());
        }
        Ok(())
    }

    /// Reports a file that others moved while it was moved or removed here. `links`: the number of names it
    /// has now.
    fn tell_of_move(&mut self, change: &InodeChange, present: &PresentInode, links: u32) {
        let (Some(seen), Some(present)) = (&change.seen, present) else { return };
        // Others have removed the name too. If the file still has as many names as before, they have moved
        // it.
        if !self.taken_twice.contains(&change.handle) || present.links < seen.0.links {
            return;
        }
        let what = match &change.new {
            None => "it was removed here, but moved elsewhere; it stays where it was moved to",
            Some(_) if links > present.links => "it was moved both here and elsewhere; it has both names",
            Some(_) => return,
        };
        self.report_conflict(&change.path, what.into());
    }

    /// Runs after all names are made: sets each file's number of links, and removes files without names.
    fn count(
        &mut self,
        changes: &mut dyn Changes,
        change: &InodeChange,
        present: &PresentInode,
        moved: &BTreeSet<Handle>,
    ) -> Result<(), FsError> {
        let handle = change.handle;
        let stays = change.new.is_none() && self.newer.contains(&handle);
        if stays || !changes.may_write(handle.principal) {
            return Ok(());
        }
        let staged = match changes.inode(handle) {
            Ok(inode) => inode,
            Err(FsError::NotFound) => return Ok(()),
            Err(error) => return Err(error),
        };
        if staged.kind == InodeKind::Directory {
            return match (&change.new, moved.contains(&handle)) {
                (None, false) => self.remove_directory(changes, change),
                (None, true) => {
                    self.report_conflict(
                        &change.path,
                        "it was removed here, but moved elsewhere; it stays".into(),
                    );
                    Ok(())
                }
                _ => Ok(()),
            };
        }
        let won = self.names.get(&handle).copied().unwrap_or(0);
        let links = (i64::from(staged.links) + won).clamp(0, i64::from(u32::MAX)) as u32;
        if links > 0 {
            self.tell_of_move(change, present, links);
            if links != staged.links {
                changes.set_inode(handle, Inode { links, ..Inode::clone(&staged) })?;
            }
            return Ok(());
        }
        let (Some(seen), Some(present)) = (&change.seen, present) else {
            return changes.remove_inode(handle);
        };
        if change.new.is_none()
            && present.kind == InodeKind::File
            && present.size > 0
            && content_digest(present) != content_digest(&seen.0)
        {
            let kept = keep_conflict_copy(changes, handle, present, &self.overwriting(&change.path))?;
            let whose = kept.map_or_else(String::new, |kept| {
                format!("; that version is kept: `holdfast conflicts get {kept} --out FILE` copies it out")
            });
            self.report_conflict(
                &change.path,
                format!("it was removed here while it was changed elsewhere{whose}"),
            );
        }
        changes.remove_inode(handle)
    }

    /// Removes a directory that was removed here.
    fn remove_directory(&mut self, changes: &mut dyn Changes, change: &InodeChange) -> Result<(), FsError> {
        let handle = change.handle;
        if changes.entries(handle, None, 1)?.is_empty() {
            return changes.remove_inode(handle);
        }
        self.report_conflict(
            &change.path,
            "it was removed here, but others have put something into it; it stays".into(),
        );
        let net = self.net.clone();
        let mut names = net.entries.values();
        let had = |entry: &&EntryChange| entry.seen.is_some_and(|seen| seen.handle == handle);
        if let Some(name) = names.find(had)
            && is_open_to(changes, name.directory)?
            && changes.entry(name.directory, &name.name)?.is_none()
        {
            self.set_name(changes, (name.directory, &name.name), name.seen, name.time_ns)?;
        }
        Ok(())
    }

    /// Gives a file without a name one in the nearest directory that is left on its old path.
    fn place_file(&mut self, changes: &mut dyn Changes, homeless: UnplacedFile) -> Result<(), FsError> {
        let UnplacedFile { handle, kind, path, why, wanted } = homeless;
        let parts: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect();
        let (name, above) = match parts.split_last() {
            Some((name, above)) => (name.to_vec(), above),
            None => (format!("file {}", handle.number).into_bytes(), &[][..]),
        };
        let mut at = Handle::ROOT;
        let mut best = is_open_to(changes, at)?.then_some(at);
        for part in above {
            let next = match changes.entry(at, part) {
                Ok(Some(entry)) if entry.kind == InodeKind::Directory => entry.handle,
                Ok(_) | Err(FsError::NotFound | FsError::NotDirectory) => break,
                Err(error) => return Err(error),
            };
            at = next;
            if is_open_to(changes, at)? {
                best = Some(at);
            }
        }
        let Some(directory) = best else {
            if kind != InodeKind::Directory {
                self.outcome.unplaced.push(handle);
            }
            self.report_conflict(&path, format!("{why}, and there is no place left for it; it is saved"));
            return Ok(());
        };
        let name = self.free_name(changes, directory, &name)?;
        self.set_name(changes, (directory, &name), Some(Entry { handle, kind }), self.at_ns)?;
        if let Some(wanted) = wanted {
            let found = (directory, name.clone());
            self.outcome.placed.push(NameMapping { handle, local: wanted, at_server: found });
        }
        let name = String::from_utf8_lossy(&name).into_owned();
        self.report_conflict(
            &path,
            format!("{why}; it is now {name:?} in the nearest directory that is left"),
        );
        Ok(())
    }

    /// A free name that resembles a taken one.
    fn free_name(
        &self,
        changes: &mut dyn Changes,
        directory: Handle,
        name: &[u8],
    ) -> Result<Vec<u8>, FsError> {
        for attempt in 1..=NAMES_TRIED {
            let name = conflict_name(name, &self.sender.name, self.at_ns, attempt);
            if changes.entry(directory, &name)?.is_none() {
                return Ok(name);
            }
        }
        Err(FsError::Exists)
    }
}

impl Edit for Replay {
    fn plan(&mut self, changes: &mut dyn Changes) -> Result<(), FsError> {
        self.outcome = Outcome { placed: self.placed.clone(), ..Outcome::default() };
        self.names.clear();
        self.taken_twice.clear();
        if self.is_made(changes)? {
            self.outcome.was_made = true;
            return Ok(());
        }
        let net = self.net.clone();
        let mut present = BTreeMap::new();
        for handle in net.inodes.keys() {
            let found = match changes.inode(*handle) {
                Ok(inode) => Some(inode),
                Err(FsError::NotFound) => None,
                Err(error) => return Err(error),
            };
            present.insert(*handle, found);
        }
        let created: BTreeSet<Handle> =
            net.inodes.values().filter(|change| change.seen.is_none()).map(|change| change.handle).collect();
        let newer = net.inodes.values().filter(|change| self.is_newer(change, &present[&change.handle]));
        self.newer = newer.map(|change| change.handle).collect();
        let moved = self.moved_elsewhere(changes)?;
        let (mut homeless, mut stay) = (Vec::new(), moved.clone());
        let gone = net.inodes.values().filter(|change| change.new.is_none()).map(|change| change.handle);
        stay.extend(gone.filter(|handle| self.newer.contains(handle)));
        for change in net.inodes.values() {
            self.inode(changes, change, &present[&change.handle], &mut homeless)?;
        }
        for change in net.entries.values() {
            self.give_name(changes, change, &created, &mut stay, &mut homeless)?;
        }
        for change in net.entries.values() {
            self.take_name(changes, change, &stay)?;
        }
        for one in homeless {
            self.place_file(changes, one)?;
        }
        for change in net.inodes.values() {
            self.count(changes, change, &present[&change.handle], &moved)?;
        }
        Ok(())
    }

    fn ordered(&mut self) {}
}

/// Whether there is a file at a path.
fn is_file_at(changes: &mut dyn Changes, path: &[u8]) -> Result<bool, FsError> {
    let mut at = Entry { handle: Handle::ROOT, kind: InodeKind::Directory };
    for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        at = match changes.entry(at.handle, part) {
            Ok(Some(entry)) => entry,
            Ok(None) | Err(FsError::NotFound | FsError::NotDirectory) => return Ok(false),
            Err(error) => return Err(error),
        };
    }
    Ok(at.kind == InodeKind::File)
}

/// Whether a directory exists and this device may change it.
fn is_open_to(changes: &mut dyn Changes, directory: Handle) -> Result<bool, FsError> {
    match changes.inode(directory) {
        Ok(inode) => Ok(inode.kind == InodeKind::Directory && changes.may_write(directory.principal)),
        Err(FsError::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether two inodes look the same to programs. A directory's times and names are not compared, since they
/// change with every name in it.
fn same(a: &Inode, b: &Inode) -> bool {
    let shared =
        a.kind == b.kind && a.mode == b.mode && a.xattrs == b.xattrs && a.device_number == b.device_number;
    match a.kind {
        InodeKind::Directory => shared,
        _ => shared && a.size == b.size && a.modified_ns == b.modified_ns && a.content == b.content,
    }
}

/// Merges both sides' changes of an inode: each field is taken from the side that changed it, and from ours
/// if both did.
fn merged(seen: &Inode, new: &Inode, present: &Inode) -> Inode {
    let mut inode = present.clone();
    if new.mode != seen.mode {
        inode.mode = new.mode;
    }
    for key in seen.xattrs.keys().chain(new.xattrs.keys()) {
        let (before, after) = (seen.xattrs.get(key), new.xattrs.get(key));
        if before != after {
            match after {
                Some(value) => drop(inode.xattrs.insert(key.clone(), value.clone())),
                None => drop(inode.xattrs.remove(key)),
            }
        }
    }
    let written = content_digest(new) != content_digest(seen) || new.size != seen.size;
    if inode.kind != InodeKind::Directory && written {
        inode.content = new.content.clone();
        inode.size = new.size;
    }
    if new.modified_ns != seen.modified_ns {
        inode.modified_ns = new.modified_ns;
    }
    inode.changed_ns = new.changed_ns.max(present.changed_ns);
    inode
}

/// `report.txt` becomes `report (NAME, DATE).txt`.
fn conflict_name(name: &[u8], whose: &str, at_ns: i64, attempt: u32) -> Vec<u8> {
    let date = timestamp(at_ns.div_euclid(1_000_000_000));
    let number = if attempt > 1 { format!(" {attempt}") } else { String::new() };
    let whose: String = whose.chars().filter(|one| *one != '/' && !one.is_control()).take(40).collect();
    let mark = format!(" (changed by {whose}, {date}{number})").into_bytes();
    let dot = name.iter().rposition(|&byte| byte == b'.').filter(|dot| *dot > 0 && name.len() - dot <= 16);
    let (stem, extension) = name.split_at(dot.unwrap_or(name.len()));
    let room = NAME_BYTES_MAX - mark.len() - extension.len();
    let mut end = stem.len().min(room);
    // Does not cut a name in the middle of a UTF-8 character.
    while end > 0 && end < stem.len() && stem[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    [&stem[..end], &mark, extension].concat()
}
