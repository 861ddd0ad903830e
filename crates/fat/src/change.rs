//! Changing names: create, remove, rename, and the attributes of an entry.
//!
//! Each operation is one transaction. What a file loses is not free at once: its entry moves into the limbo
//! (`limbo`). Only a directory's own clusters, which the driver itself owns, are freed here.

use crate::check::DEPTH_MAX;
use crate::directory::{Directory, FileEntry};
use crate::draft::{Draft, Effect, Metadata};
use crate::entry::{self, Attributes, DOT, DOT_DOT, Entry};
use crate::fs::{Change, Fat, Kind};
use crate::layout::{ENTRIES_MAX, Run};
use crate::names::{Name, short_sum};
use crate::nodes::{EntryLocation, FileId, NodeChange, ROOT};
use crate::problem::Problem;
use crate::space::Placement;
use crate::state::DriverState;
use crate::table::{Link, append, last, link_run};
use crate::time::{Moment, Stored};
use crate::{FatError, LimboId, Result};

/// Whether a rename may replace an existing file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replace {
    /// An existing file is replaced; a directory only if it is empty.
    Yes,
    /// The rename fails if the name exists.
    No,
}

/// Changes of an entry; `None` leaves a value as it is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Facts {
    /// The attributes.
    pub attributes: Option<Attributes>,
    /// When the file was created.
    pub created: Option<Moment>,
    /// When the file was last written.
    pub modified: Option<Moment>,
    /// When the file was last read; only the day is stored.
    pub accessed: Option<Moment>,
}

impl<M: Metadata> Fat<M> {
    /// Makes a file or a directory. Its number has one reference.
    pub fn create(&mut self, parent: FileId, name: &str, kind: Kind, now: Moment) -> Result<Change<FileId>> {
        self.change(|state, draft| {
            let name = Name::new(name)?;
            let mut directory = state.directory(draft, parent)?;
            crate::limbo::not_reserved(draft, &directory, &name)?;
            if directory.find(draft, &name)?.is_some() {
                return Err(FatError::Exists(name.text().into()));
            }
            let id = state.nodes.new_id()?;
            let first = match kind {
                Kind::File => 0,
                Kind::Directory => new_directory(state, draft, directory.first, now)?,
            };
            let entry = new_entry(state, kind, first, now);
            let slot = add(state, draft, &mut directory, &name, entry)?;
            touch(state, draft, parent, now)?;
            let location = EntryLocation { directory: directory.first, slot };
            let start = (kind == Kind::Directory).then_some(first);
            draft.effects.push(Effect::Node(id, NodeChange::Made(location, start)));
            Ok(id)
        })
    }

    /// Removes a file's name. If the file has blocks or is in use, its entry waits in the limbo, and its item
    /// there is returned.
    pub fn unlink(&mut self, parent: FileId, name: &str, now: Moment) -> Result<Change<Option<LimboId>>> {
        self.change(|state, draft| {
            let (directory, found) = existing(state, draft, parent, name)?;
            if found.entry.is_directory() {
                return Err(FatError::IsADirectory(found.name));
            }
            let limbo = drop_file(state, draft, &directory, &found, now)?;
            directory.remove(draft, found.first_slot, found.slot)?;
            touch(state, draft, parent, now)?;
            Ok(limbo)
        })
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, parent: FileId, name: &str, now: Moment) -> Result<Change<()>> {
        self.change(|state, draft| {
            let (directory, found) = existing(state, draft, parent, name)?;
            drop_directory(state, draft, &directory, &found)?;
            directory.remove(draft, found.first_slot, found.slot)?;
            touch(state, draft, parent, now)
        })
    }

    /// Renames a file or directory, in its directory or into another. A file with the new name is removed; if
    /// it has blocks or is in use, its item in the limbo is returned.
    pub fn rename(
        &mut self,
        (from, name): (FileId, &str),
        (to, new_name): (FileId, &str),
        replace: Replace,
        now: Moment,
    ) -> Result<Change<Option<LimboId>>> {
        self.change(|state, draft| {
            let (source, found) = existing(state, draft, from, name)?;
            let new_name = Name::new(new_name)?;
            let mut target = state.directory(draft, to)?;
            crate::limbo::not_reserved(draft, &target, &new_name)?;
            let there = target.find(draft, &new_name)?;
            let same = source.first == target.first;
            if found.entry.is_directory() && !same {
                not_below(state, draft, found.entry.first, target.first)?;
            }
            let mut limbo = None;
            match there {
                Some(there) if same && there.slot == found.slot => {}
                Some(there) => {
                    if replace == Replace::No {
                        return Err(FatError::Exists(there.name));
                    }
                    match (found.entry.is_directory(), there.entry.is_directory()) {
                        (false, false) => limbo = drop_file(state, draft, &target, &there, now)?,
                        (true, true) => drop_directory(state, draft, &target, &there)?,
                        (true, false) => return Err(FatError::NotADirectory(there.name)),
                        (false, true) => return Err(FatError::IsADirectory(there.name)),
                    }
                    // The limbo may have made room for itself in this directory.
                    target = state.directory(draft, to)?;
                    target.remove(draft, there.first_slot, there.slot)?;
                }
                None => {}
            }
            source.remove(draft, found.first_slot, found.slot)?;
            let slot = add(state, draft, &mut target, &new_name, found.entry)?;
            if found.entry.is_directory() && !same {
                set_dot_dot(state, draft, found.entry.first, target.first)?;
            }
            touch(state, draft, from, now)?;
            if !same {
                touch(state, draft, to, now)?;
            }
            if let Some(id) = state.nodes.at(EntryLocation { directory: source.first, slot: found.slot }) {
                let location = EntryLocation { directory: target.first, slot };
                draft.effects.push(Effect::Node(id, NodeChange::Moved(location)));
            }
            Ok(limbo)
        })
    }

    /// Changes times and attributes. The root directory has none.
    pub fn set(&mut self, id: FileId, facts: Facts) -> Result<Change<()>> {
        self.change(|state, draft| {
            if id == ROOT {
                return Ok(());
            }
            let (directory, location, mut entry) = state.entry(draft, id)?;
            if let Some(attributes) = facts.attributes {
                entry.attributes = attributes.in_bits(entry.attributes);
            }
            if let Some(created) = facts.created {
                entry.created = state.stored(created);
            }
            if let Some(modified) = facts.modified {
                entry.modified = Stored { hundredths: 0, ..state.stored(modified) };
            }
            if let Some(accessed) = facts.accessed {
                entry.accessed = state.stored(accessed).date;
            }
            directory.write(draft, location.slot, &entry.to_bytes())
        })
    }
}

fn existing(
    state: &mut DriverState,
    draft: &Draft,
    parent: FileId,
    name: &str,
) -> Result<(Directory, FileEntry)> {
    let directory = state.directory(draft, parent)?;
    let not_found = || FatError::NotFound(name.into());
    let wanted = Name::new(name).map_err(|_| not_found())?;
    let found = directory.find(draft, &wanted)?.ok_or_else(not_found)?;
    match state.is_limbo(&found.entry) {
        true => Err(not_found()),
        false => Ok((directory, found)),
    }
}

pub(crate) fn new_entry(state: &DriverState, kind: Kind, first: u32, now: Moment) -> Entry {
    let attributes = if kind == Kind::Directory { Entry::DIRECTORY } else { Entry::ARCHIVE };
    Entry::new([b' '; 11], attributes, first, state.stored(now))
}

/// Makes an empty directory below the one that starts at `parent`, and gives its cluster.
pub(crate) fn new_directory(
    state: &mut DriverState,
    draft: &mut Draft,
    parent: u32,
    now: Moment,
) -> Result<u32> {
    state.space.require(draft, 1)?;
    let run = one(state, draft, Placement::Cluster(parent))?;
    link_run(draft, None, run)?;
    draft.zero(run);
    draft.directories.push(draft.layout.blocks(run));
    let made = Directory { first: run.start, runs: vec![run].into() };
    let up = if parent == draft.layout.root_cluster { 0 } else { parent };
    for (slot, short, first) in [(0, DOT, run.start), (1, DOT_DOT, up)] {
        let entry = Entry { short, ..new_entry(state, Kind::Directory, first, now) };
        made.write(draft, slot, &entry.to_bytes())?;
    }
    Ok(run.start)
}

/// A free cluster, near another where possible.
fn one(state: &mut DriverState, draft: &Draft, near: Placement) -> Result<Run> {
    let chosen = state.space.choose(draft, near, 1)?;
    chosen.first().copied().ok_or(FatError::Full { needed: 1, free: 0 })
}

/// Adds an entry under a name, with a short name that is free there, and returns its slot.
fn add(
    state: &mut DriverState,
    draft: &mut Draft,
    directory: &mut Directory,
    name: &Name,
    entry: Entry,
) -> Result<u32> {
    let short = directory.short_for(draft, name)?.ok_or(FatError::DirectoryFull)?;
    let entry = Entry { short: short.bytes, case_bits: short.case_bits, ..entry };
    let mut slots = if short.alone { Vec::new() } else { entry::pieces(name, short_sum(&short.bytes)) };
    slots.push(entry.to_bytes());
    let first = add_slots(state, draft, directory, &slots)?;
    Ok(first + slots.len() as u32 - 1)
}

/// Adds slots in a row, with clusters where the directory is too short, and gives the first.
pub(crate) fn add_slots(
    state: &mut DriverState,
    draft: &mut Draft,
    directory: &mut Directory,
    slots: &[[u8; entry::SIZE]],
) -> Result<u32> {
    let count = slots.len() as u32;
    loop {
        match directory.room(draft, count)? {
            Ok(room) => {
                directory.fill(draft, &room, slots)?;
                return Ok(room.slot);
            }
            Err(missing) => {
                if directory.slots(draft.layout) + missing > ENTRIES_MAX {
                    return Err(FatError::DirectoryFull);
                }
                grow(state, draft, directory)?;
            }
        }
    }
}

/// Adds a cluster to a directory.
fn grow(state: &mut DriverState, draft: &mut Draft, directory: &mut Directory) -> Result<()> {
    state.space.require(draft, 1)?;
    let end = last(&directory.runs);
    let run = one(state, draft, end.map_or(Placement::Anywhere, Placement::Cluster))?;
    link_run(draft, end, run)?;
    draft.zero(run);
    draft.directories.push(draft.layout.blocks(run));
    let mut runs = directory.runs.to_vec();
    append(&mut runs, run);
    directory.runs = runs.into();
    draft.effects.push(Effect::Chain(directory.first, Some(directory.runs.clone())));
    Ok(())
}

/// Moves a file's entry into the limbo if the file has blocks or is in use. The caller removes the name.
fn drop_file(
    state: &mut DriverState,
    draft: &mut Draft,
    directory: &Directory,
    found: &FileEntry,
    now: Moment,
) -> Result<Option<LimboId>> {
    let location = EntryLocation { directory: directory.first, slot: found.slot };
    // Nothing of an unsound file is touched.
    state.file_runs(draft, &found.entry, location)?;
    let id = state.nodes.at(location);
    if found.entry.size == 0 && id.is_none() {
        return Ok(None);
    }
    let waits = crate::limbo::add(state, draft, found.entry, now)?;
    if let Some(id) = id {
        draft.effects.push(Effect::Node(id, NodeChange::Unlinked(waits)));
    }
    Ok(Some(LimboId(waits.slot)))
}

/// Frees the clusters of an empty directory. Its name is removed by the caller.
fn drop_directory(
    state: &mut DriverState,
    draft: &mut Draft,
    parent: &Directory,
    found: &FileEntry,
) -> Result<()> {
    if !found.entry.is_directory() {
        return Err(FatError::NotADirectory(found.name.clone()));
    }
    let first = found.entry.first;
    let removed = state.directory_at(draft, first)?;
    if first == draft.layout.root_cluster || !removed.is_empty(draft)? {
        return Err(FatError::NotEmpty(found.name.clone()));
    }
    free_runs(draft, first, &removed.runs)?;
    for run in removed.runs.iter() {
        draft.freed.push(draft.layout.blocks(*run));
    }
    if let Some(id) = state.nodes.at(EntryLocation { directory: parent.first, slot: found.slot }) {
        draft.effects.push(Effect::Node(id, NodeChange::Gone));
    }
    Ok(())
}

/// Marks the clusters of a chain, or of its front, as free.
pub(crate) fn free_runs(draft: &mut Draft, first: u32, runs: &[Run]) -> Result<()> {
    draft.effects.push(Effect::Chain(first, None));
    for run in runs {
        for cluster in run.start..run.start + run.count {
            let link = draft.link(cluster)?;
            draft.set_link(cluster, link, Link::Free)?;
        }
        draft.effects.push(Effect::Freed(*run));
    }
    Ok(())
}

/// Checks that a directory is not the one that starts at `moved`, nor below it.
fn not_below(state: &mut DriverState, draft: &Draft, moved: u32, mut directory: u32) -> Result<()> {
    for _ in 0..DEPTH_MAX {
        if directory == moved {
            return Err(FatError::IntoItself);
        }
        if directory == draft.layout.root_cluster {
            return Ok(());
        }
        let entry = state.directory_at(draft, directory)?.entry(draft, 1)?;
        if entry.short != DOT_DOT || !entry.is_directory() {
            return Err(FatError::Unsound {
                place: format!("the directory at cluster {directory}"),
                problem: Problem::BadDots(".."),
            });
        }
        directory = if entry.first == 0 { draft.layout.root_cluster } else { entry.first };
    }
    Err(FatError::Unsound { place: format!("the directory at cluster {moved}"), problem: Problem::TooDeep })
}

/// Says in a directory that another is above it now.
fn set_dot_dot(state: &mut DriverState, draft: &mut Draft, directory: u32, parent: u32) -> Result<()> {
    let directory = state.directory_at(draft, directory)?;
    let mut entry = directory.entry(draft, 1)?;
    if entry.short != DOT_DOT {
        return Err(FatError::Unsound {
            place: format!("the directory at cluster {}", directory.first),
            problem: Problem::BadDots(".."),
        });
    }
    entry.first = if parent == draft.layout.root_cluster { 0 } else { parent };
    directory.write(draft, 1, &entry.to_bytes())
}

/// A directory was changed now.
fn touch(state: &mut DriverState, draft: &mut Draft, id: FileId, now: Moment) -> Result<()> {
    if id == ROOT {
        return Ok(());
    }
    let (directory, location, mut entry) = state.entry(draft, id)?;
    entry.modified = Stored { hundredths: 0, ..state.stored(now) };
    directory.write(draft, location.slot, &entry.to_bytes())
}
