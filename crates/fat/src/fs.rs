//! A mounted file system: its state, and reading it.
//!
//! Invariants:
//! * Changes are made one transaction at a time. A transaction changes the state in memory when it is
//!   applied; until then the driver refuses everything else, which might see half of it.
//! * No block of a file is listed and nothing is changed unless the caller has vouched for the whole file
//!   system (`Checked`), and nothing is changed any more once something unsound was found.
//! * Before a block of a file is listed for anybody, the file's chain was followed to its end, and found as
//!   long as the file and free of clusters that another file claims.

use crate::check::Checked;
use crate::directory::{Directory, FileEntry, Scan};
use crate::draft::{Draft, Effect, Metadata, Transaction};
use crate::entry::{Attributes, Entry};
use crate::layout::{Area, BlockId, BlockRange, Layout, Run};
use crate::names::Name;
use crate::nodes::{EntryLocation, FileId, Node};
use crate::state::DriverState;
use crate::summary;
use crate::table::{Length, cluster_at, total};
use crate::time::{Moment, Stored};
use crate::{FatError, Result};

/// Runs of blocks that one question gets at most.
pub const EXTENTS_MAX: usize = 1024;

/// Options for using a file system.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Options {
    /// How far the local time that is stored is ahead of UTC.
    pub utc_offset_minutes: i16,
}

/// A file or a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
}

/// The attributes of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// File or directory.
    pub kind: Kind,
    /// Bytes of a file; of a directory, of its clusters.
    pub size: u64,
    /// When the file was created.
    pub created: Moment,
    /// When the file was last written.
    pub modified: Moment,
    /// The day it was read last.
    pub accessed: Moment,
    /// Its attributes.
    pub attributes: Attributes,
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// The name.
    pub name: String,
    /// File or directory.
    pub kind: Kind,
    /// The size of a file in bytes.
    pub size: u64,
    /// A number that no other file has now, derived from its position. It changes when the file is renamed.
    pub place_number: u64,
    /// The cookie at which a listing continues after this entry.
    pub cookie: u64,
}

/// A name in a directory, with its file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedFile {
    /// The entry of the directory.
    pub name: DirectoryEntry,
    /// The file, with one more reference, and its attributes; `None` for an unsound directory.
    pub file: Option<(FileId, Stat)>,
    /// The first block, of a directory.
    pub first: Option<BlockId>,
}

/// A part of a file and the blocks that hold it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The first byte, a multiple of the size of blocks.
    pub offset: u64,
    /// The blocks.
    pub blocks: BlockRange,
}

/// The size of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Bytes of a cluster.
    pub cluster_bytes: u32,
    /// The number of clusters.
    pub clusters: u64,
    /// The number of free clusters.
    pub free: u64,
}

/// A transaction with what else the operation says.
#[derive(Debug)]
#[must_use = "commit its transaction and give that to `applied`, or give it to `abandoned`"]
pub struct Change<T> {
    /// The blocks to write.
    pub transaction: Transaction,
    /// The result of the operation.
    pub value: T,
}

/// A mounted FAT32 file system.
pub struct Fat<M> {
    metadata: M,
    layout: Layout,
    state: DriverState,
}

impl<M: Metadata> Fat<M> {
    /// Mounts a file system for reading names; `vouch` allows more. The root directory must be sound.
    pub fn mount(layout: Layout, metadata: M, options: Options) -> Result<Fat<M>> {
        let state = DriverState::new(&layout, options);
        let mut fat = Fat { metadata, layout, state };
        let draft = Draft::new(&fat.layout, &fat.metadata);
        let root = fat.state.directory_at(&draft, fat.layout.root_cluster)?;
        fat.state.limbo = crate::limbo::find(&draft, &root)?;
        drop(draft);
        Ok(fat)
    }

    /// Accepts the result of a check. From now on blocks of files are listed, except of those that share
    /// clusters, and changes are made unless the check forbids it (see `read_only`).
    pub fn vouch(&mut self, checked: &Checked) {
        self.state.vouch(checked);
    }

    /// Why nothing may be changed; `None` if changes are allowed.
    pub fn read_only(&self) -> Option<&str> {
        match self.state.vouched {
            true => self.state.refusal.as_deref(),
            false => Some("it was not checked"),
        }
    }

    /// The layout of the file system.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The caller's reader of blocks.
    pub fn metadata(&self) -> &M {
        &self.metadata
    }

    /// Runs an operation that reads.
    pub(crate) fn read<T>(&mut self, run: impl FnOnce(&mut DriverState, &Draft) -> Result<T>) -> Result<T> {
        self.state.nothing_outstanding()?;
        let draft = Draft::new(&self.layout, &self.metadata);
        let result = run(&mut self.state, &draft);
        self.state.note(result)
    }

    /// Runs an operation that changes.
    pub(crate) fn change<T>(
        &mut self,
        run: impl FnOnce(&mut DriverState, &mut Draft) -> Result<T>,
    ) -> Result<Change<T>> {
        self.state.may_change()?;
        let mut draft = Draft::new(&self.layout, &self.metadata);
        let result = run(&mut self.state, &mut draft).and_then(|value| {
            summary::update(&mut draft, &self.state.space)?;
            Ok(value)
        });
        let value = self.state.note(result)?;
        let number = self.state.begin();
        Ok(Change { transaction: draft.into_transaction(number), value })
    }

    /// Applies a transaction. The caller states that `Metadata::read` returns its blocks from now on, that no
    /// crash can tear them, and that no later transaction becomes durable without this one.
    pub fn applied(&mut self, transaction: Transaction) -> Result<()> {
        self.state.settle(transaction.number)?;
        for effect in transaction.effects {
            match effect {
                Effect::Used(run) => self.state.space.mark(run, false),
                Effect::Freed(run) => self.state.space.mark(run, true),
                Effect::Chain(first, Some(runs)) => self.state.keep_chain(first, runs),
                Effect::Chain(first, None) => self.state.forget_chain(first),
                Effect::Node(id, change) => self.state.nodes.apply_change(id, change),
                Effect::Limbo(first) => self.state.limbo = Some(first),
            }
        }
        Ok(())
    }

    /// Abandons a transaction that was not and will not be committed, as if it had not been requested.
    pub fn abandoned(&mut self, transaction: Transaction) -> Result<()> {
        self.state.settle(transaction.number)
    }

    /// Finds a name in a directory. The returned number has one more reference; see `forget`.
    pub fn lookup(&mut self, parent: FileId, name: &str) -> Result<(FileId, Stat)> {
        self.read(|state, draft| {
            let directory = state.directory(draft, parent)?;
            let not_found = || FatError::NotFound(name.into());
            // A name that cannot be stored is not there.
            let wanted = Name::new(name).map_err(|_| not_found())?;
            let found = directory.find(draft, &wanted)?.ok_or_else(not_found)?;
            if state.is_limbo(&found.entry) {
                return Err(not_found());
            }
            let (size, first) = sizes(state, draft, &found)?;
            let location = EntryLocation { directory: directory.first, slot: found.slot };
            let id = state.nodes.refer(location, first)?;
            Ok((id, state.stat(&found.entry, size)))
        })
    }

    /// Gives up references from `lookup` and `create`. If that ends the use of a file without a name, its
    /// blocks can be returned now: its item in the limbo is returned.
    pub fn forget(&mut self, id: FileId, count: u64) -> Option<crate::LimboId> {
        let location = self.state.nodes.forget(id, count)?;
        (self.state.limbo == Some(location.directory)).then_some(crate::LimboId(location.slot))
    }

    /// The attributes of a file.
    pub fn stat(&mut self, id: FileId) -> Result<Stat> {
        self.read(|state, draft| {
            let Node { directory, .. } = *state.nodes.get(id)?;
            if id == crate::ROOT {
                let size = bytes(draft.layout, &state.directory(draft, id)?);
                let none = Entry::new([b' '; 11], Entry::DIRECTORY, 0, Stored::default());
                return Ok(state.stat(&none, size));
            }
            let (_, _, entry) = state.entry(draft, id)?;
            let size = match directory {
                Some(first) => bytes(draft.layout, &state.directory_at(draft, first)?),
                None => u64::from(entry.size),
            };
            Ok(state.stat(&entry, size))
        })
    }

    /// At most `count` names of a directory, from a cookie on (0 is the beginning). A cookie stays valid
    /// however the directory changes: what is there all the time is listed once.
    pub fn list(&mut self, parent: FileId, cookie: u64, count: usize) -> Result<Vec<DirectoryEntry>> {
        self.each(parent, cookie, count, |_, _, _, listed| Ok(listed))
    }

    /// As `list`, with what `lookup` returns for each.
    pub fn list_files(&mut self, parent: FileId, cookie: u64, count: usize) -> Result<Vec<ListedFile>> {
        self.each(parent, cookie, count, |state, draft, (directory, found), name| {
            let Ok((size, first)) = sizes(state, draft, found) else {
                return Ok(ListedFile { name, file: None, first: None });
            };
            let stat = state.stat(&found.entry, size);
            let id =
                state.nodes.refer(EntryLocation { directory: directory.first, slot: found.slot }, first)?;
            let block = |start| draft.layout.blocks(Run { start, count: 1 }).start;
            let first = first.map(|first| BlockId { area: Area::Data, index: block(first) });
            Ok(ListedFile { name, file: Some((id, stat)), first })
        })
    }

    fn each<T>(
        &mut self,
        parent: FileId,
        cookie: u64,
        count: usize,
        mut tell: impl FnMut(&mut DriverState, &Draft, (&Directory, &FileEntry), DirectoryEntry) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.read(|state, draft| {
            let directory = state.directory(draft, parent)?;
            let mut scan = Scan::new(&directory, u32::try_from(cookie).unwrap_or(u32::MAX));
            let mut listed = Vec::new();
            while listed.len() < count
                && let Some(found) = scan.next(draft)?
            {
                if found.entry.is_label() || state.is_limbo(&found.entry) {
                    continue;
                }
                let is_directory = found.entry.is_directory();
                let name = DirectoryEntry {
                    name: found.name.clone(),
                    kind: if is_directory { Kind::Directory } else { Kind::File },
                    size: if is_directory { 0 } else { u64::from(found.entry.size) },
                    place_number: u64::from(directory.first) << 16 | u64::from(found.slot),
                    cookie: u64::from(scan.slot()),
                };
                listed.push(tell(state, draft, (&directory, &found), name)?);
            }
            Ok(listed)
        })
    }

    /// The blocks of a part of a file, in order. At most `EXTENTS_MAX` are returned at once; continue where
    /// they end. Nothing beyond the size is mapped.
    pub fn map(&mut self, id: FileId, offset: u64, length: u64) -> Result<Vec<Extent>> {
        self.read(|state, draft| {
            if !state.vouched {
                return Err(FatError::NotChecked);
            }
            if state.nodes.get(id)?.directory.is_some() {
                return Err(FatError::IsADirectory(format!("file {}", id.0)));
            }
            let (_, location, entry) = state.entry(draft, id)?;
            let runs = state.file_runs(draft, &entry, location)?;
            let layout = draft.layout;
            let end = offset.saturating_add(length).min(u64::from(entry.size));
            let block = u64::from(layout.block_bytes);
            let each = u64::from(layout.cluster_bytes);
            let mut at = offset / block * block;
            let mut extents = Vec::new();
            while at < end && extents.len() < EXTENTS_MAX {
                let run = cluster_at(&runs, at / each).expect("the chain is as long as the file");
                let blocks = layout.blocks(run);
                let skip = at % each / block;
                let count = (blocks.count - skip).min((end - at).div_ceil(block));
                extents.push(Extent { offset: at, blocks: BlockRange { start: blocks.start + skip, count } });
                at += count * block;
            }
            Ok(extents)
        })
    }

    /// The size of the file system and its free space. Reads the whole table the first time.
    pub fn sizes(&mut self) -> Result<Sizes> {
        self.read(|state, draft| {
            let free = state.space.free(draft)?;
            let Layout { cluster_bytes, clusters, .. } = *draft.layout;
            Ok(Sizes { cluster_bytes, clusters: u64::from(clusters), free })
        })
    }
}

/// The size of a file, or of a directory together with its first cluster.
fn sizes(state: &mut DriverState, draft: &Draft, found: &FileEntry) -> Result<(u64, Option<u32>)> {
    if !found.entry.is_directory() {
        return Ok((u64::from(found.entry.size), None));
    }
    let runs = state
        .runs(draft, found.entry.first, Length::Directory)
        .map_err(|broken| broken.at(|| found.name.clone()))?;
    Ok((total(&runs) * u64::from(draft.layout.cluster_bytes), Some(found.entry.first)))
}

fn bytes(layout: &Layout, directory: &Directory) -> u64 {
    total(&directory.runs) * u64::from(layout.cluster_bytes)
}
