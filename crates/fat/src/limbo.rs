//! Freeing in two phases.
//!
//! The blocks of a file belong to its owner; the driver may use them again only after the owner has returned
//! them and they were erased. Until then they must be neither lost nor free. So the same transaction that
//! deletes or truncates a file moves its blocks into an entry of the *limbo*, a hidden directory of the root:
//!
//! ```text
//! 1. unlink, cut        the entry (or the cut-off end as a new one) is in the limbo          one transaction
//! 2. `returning`        names some of its blocks; owner and driver have them change hands, erased
//! 3. `free`             these clusters, the front of the chain, are free in the table        one transaction
//!                       ... 2 and 3 again until the entry is empty and removed
//! ```
//!
//! A crash or a refusal at any point leaves the rest in the limbo, where `limbo` lists it after the next
//! mount: no cluster is lost, and none is free before it was returned. To every other system the limbo is a
//! directory of files, so `fsck.fat` finds no fault, and deleting it there frees its blocks.
//!
//! A file that is deleted while in use waits in the same place, and can be read, written and truncated there.

use crate::change::{add_slots, free_runs, new_directory, new_entry};
use crate::directory::{Directory, Scan};
use crate::draft::{Draft, Effect, Metadata};
use crate::entry::Entry;
use crate::fs::{Change, Fat, Kind};
use crate::layout::{BlockRange, Layout, Run};
use crate::names::Name;
use crate::nodes::EntryLocation;
use crate::state::DriverState;
use crate::table::{cluster_at, runs_from, total};
use crate::time::Moment;
use crate::{FatError, Result};

/// The short name of the limbo.
pub(crate) const LIMBO: [u8; 11] = *b"HOLDFASTLBO";
/// Most clusters that are returned at once, and most blocks of the table that this may change.
const CLUSTERS_MAX: u32 = 16_384;
const BLOCKS_MAX: u32 = 256;

/// A place in the limbo.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LimboId(pub u32);

/// Something that waits in the limbo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimboItem {
    /// The slot of the entry in the limbo.
    pub id: LimboId,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// Whether the file is still in use, so that its blocks cannot be given back yet.
    pub in_use: bool,
}

/// Blocks to be given back now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Returning {
    /// The blocks. All of one owner, unless the file was assembled from several.
    pub blocks: Vec<BlockRange>,
    /// Number of these clusters, for `free`.
    pub clusters: u32,
    /// Whether this is the last part.
    pub last: bool,
}

/// Finds the limbo of a file system.
pub(crate) fn find(draft: &Draft, root: &Directory) -> Result<Option<u32>> {
    let mut scan = Scan::new(root, 0);
    while let Some(found) = scan.next(draft)? {
        let Entry { short, first, attributes, .. } = found.entry;
        let bits = Entry::DIRECTORY | Entry::HIDDEN_SYSTEM;
        if short == LIMBO && attributes & bits == bits && draft.layout.is_cluster(first) {
            return Ok(Some(first));
        }
    }
    Ok(None)
}

/// Checks that a name in a directory is not the limbo's, which is reserved.
pub(crate) fn not_reserved(draft: &Draft, directory: &Directory, name: &Name) -> Result<()> {
    match directory.first == draft.layout.root_cluster && name.is(&crate::names::shown_short(&LIMBO, 0)) {
        true => Err(FatError::BadName {
            name: name.text().into(),
            reason: "it is kept for what waits to be freed",
        }),
        false => Ok(()),
    }
}

/// The limbo, made if there is none.
fn directory(state: &mut DriverState, draft: &mut Draft, now: Moment) -> Result<Directory> {
    if let Some(first) = state.limbo {
        return state.directory_at(draft, first);
    }
    let mut root = state.directory_at(draft, draft.layout.root_cluster)?;
    let name = Name::new(&crate::names::shown_short(&LIMBO, 0)).expect("a sound name");
    if let Some(found) = root.find(draft, &name)? {
        return Err(FatError::Exists(found.name));
    }
    let first = new_directory(state, draft, root.first, now)?;
    let mut entry = Entry { short: LIMBO, ..new_entry(state, Kind::Directory, first, now) };
    entry.attributes |= Entry::HIDDEN_SYSTEM;
    add_slots(state, draft, &mut root, &[entry.to_bytes()])?;
    draft.effects.push(Effect::Limbo(first));
    state.directory_at(draft, first)
}

/// Puts an entry into the limbo, under a name made of its slot.
pub(crate) fn add(
    state: &mut DriverState,
    draft: &mut Draft,
    entry: Entry,
    now: Moment,
) -> Result<EntryLocation> {
    let mut limbo = directory(state, draft, now)?;
    let entry = Entry { case_bits: 0, ..entry };
    let slot = match add_slots(state, draft, &mut limbo, &[entry.to_bytes()]) {
        Err(FatError::Full { .. } | FatError::DirectoryFull) => {
            return Err(FatError::LimboFull(limbo.slots(draft.layout) - 2));
        }
        result => result?,
    };
    let mut short = LIMBO;
    short[..8].copy_from_slice(format!("{slot:08X}").as_bytes());
    limbo.write(draft, slot, &Entry { short, ..entry }.to_bytes())?;
    Ok(EntryLocation { directory: limbo.first, slot })
}

/// The front of a chain, which is returned at once.
fn front(layout: &Layout, runs: &[Run], wanted: u32) -> Vec<Run> {
    let (mut front, mut left, mut blocks, mut before) = (Vec::new(), wanted.min(CLUSTERS_MAX), 0, None);
    for run in runs {
        let mut taken = Run { start: run.start, count: 0 };
        while taken.count < run.count && left > 0 {
            let block = layout.entry_place(0, run.start + taken.count).0;
            if before != Some(block) {
                blocks += 1;
                before = Some(block);
            }
            if blocks > BLOCKS_MAX {
                left = 0;
                break;
            }
            left -= 1;
            taken.count += 1;
        }
        if taken.count > 0 {
            front.push(taken);
        }
        if left == 0 {
            break;
        }
    }
    front
}

impl<M: Metadata> Fat<M> {
    /// Makes the limbo, if there is none. To be called at the first mount, since a full disk has no space for
    /// it.
    pub fn prepare(&mut self, now: Moment) -> Result<Option<Change<()>>> {
        if self.limbo_exists() {
            return Ok(None);
        }
        self.change(|state, draft| directory(state, draft, now).map(|_| ())).map(Some)
    }

    fn limbo_exists(&mut self) -> bool {
        self.read(|state, _| Ok(state.limbo.is_some())).unwrap_or(false)
    }

    /// The items of the limbo after one of them (`None`: from the beginning), at most `count`.
    pub fn limbo(&mut self, after: Option<LimboId>, count: usize) -> Result<Vec<LimboItem>> {
        self.read(|state, draft| {
            let Some(first) = state.limbo else { return Ok(Vec::new()) };
            let limbo = state.directory_at(draft, first)?;
            let mut scan = Scan::new(&limbo, after.map_or(0, |id| id.0.saturating_add(1)));
            let mut items = Vec::new();
            while items.len() < count
                && let Some(found) = scan.next(draft)?
            {
                if found.entry.is_label() || found.entry.is_directory() {
                    continue;
                }
                let in_use = state.nodes.at(EntryLocation { directory: first, slot: found.slot }).is_some();
                items.push(LimboItem { id: LimboId(found.slot), bytes: u64::from(found.entry.size), in_use });
            }
            Ok(items)
        })
    }

    /// Blocks that can change their owner now: the front of an item. Ask again after `free`.
    pub fn returning(&mut self, id: LimboId) -> Result<Returning> {
        self.read(|state, draft| {
            let (limbo, entry) = waiting(state, draft, id)?;
            let location = EntryLocation { directory: limbo.first, slot: id.0 };
            let runs = state.file_runs(draft, &entry, location)?;
            let front = front(draft.layout, &runs, u32::MAX);
            let clusters = total(&front) as u32;
            Ok(Returning {
                blocks: front.iter().map(|run| draft.layout.blocks(*run)).collect(),
                clusters,
                last: u64::from(clusters) == total(&runs),
            })
        })
    }

    /// States that the first `clusters` clusters of an item were returned and erased: they become free. The
    /// result says whether the item is empty now.
    pub fn free(&mut self, id: LimboId, clusters: u32) -> Result<Change<bool>> {
        self.change(|state, draft| {
            let (limbo, mut entry) = waiting(state, draft, id)?;
            let runs =
                state.file_runs(draft, &entry, EntryLocation { directory: limbo.first, slot: id.0 })?;
            let front = front(draft.layout, &runs, clusters);
            if total(&front) < u64::from(clusters) {
                return Err(FatError::NothingToFree("so many clusters are not freed at once"));
            }
            free_runs(draft, entry.first, &front)?;
            match cluster_at(&runs, u64::from(clusters)) {
                Some(next) => {
                    entry.first = next.start;
                    let rest = runs_from(&runs, u64::from(clusters)).into();
                    draft.effects.push(Effect::Chain(entry.first, Some(rest)));
                    entry.size -= clusters * draft.layout.cluster_bytes;
                    limbo.write(draft, id.0, &entry.to_bytes())?;
                    Ok(false)
                }
                None => {
                    limbo.remove(draft, id.0, id.0)?;
                    Ok(true)
                }
            }
        })
    }
}

/// Finds an item of the limbo that is not in use.
fn waiting(state: &mut DriverState, draft: &Draft, id: LimboId) -> Result<(Directory, Entry)> {
    let nothing = || FatError::NothingToFree("nothing waits at that place");
    let limbo = state.directory_at(draft, state.limbo.ok_or_else(nothing)?)?;
    if id.0 < 2 || id.0 >= limbo.slots(draft.layout) {
        return Err(nothing());
    }
    let mut scan = Scan::new(&limbo, id.0);
    let entry = scan.next(draft)?.filter(|found| found.slot == id.0).ok_or_else(nothing)?.entry;
    if entry.is_directory() || entry.is_label() {
        return Err(nothing());
    }
    if state.nodes.at(EntryLocation { directory: limbo.first, slot: id.0 }).is_some() {
        return Err(FatError::NothingToFree("the file is still in use"));
    }
    Ok((limbo, entry))
}
