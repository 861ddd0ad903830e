//! Checks a whole file system, and walks over it.
//!
//! `check` follows every chain once and marks its clusters in a bitmap, one bit a cluster. A cluster that is
//! marked already is claimed twice: it is recorded as suspect, and from then on *every* file whose chain has
//! a suspect cluster is refused, whichever came first, so that no user gets a block that may be another's.
//! `walk` then lists the blocks of every sound file, so that they can get their owners.
//!
//! Neither can loop: a directory is entered only if its clusters were not marked, and no chain is followed
//! beyond what its entry allows.

use crate::directory::{Directory, FileEntry, Scan};
use crate::draft::{Draft, Metadata};
use crate::entry::{DELETED, DOT, DOT_DOT};
use crate::fs::{Fat, Kind};
use crate::layout::{BlockRange, FIRST_CLUSTER, Layout, Mirroring, Run};
use crate::problem::Problem;
use crate::state::DriverState;
use crate::summary;
use crate::table::{ChainError, Length, Link};
use crate::{FatError, Result};
use std::collections::BTreeSet;

/// Deepest nesting of directories that is followed, here and when one is moved.
pub(crate) const DEPTH_MAX: usize = 65_536;
/// Longest path in bytes; deeper parts are replaced by an ellipsis.
const PATH_BYTES_MAX: usize = 16_384;
/// Most suspect clusters that are recorded.
const SUSPECTS_MAX: usize = 65_536;
/// Clusters whose entries are compared at once.
const GROUP: u32 = 4096;

/// Something wrong, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The path of the file or directory, or which part of the file system.
    pub place: String,
    /// What is wrong.
    pub problem: Problem,
}

/// Proof that a whole file system is sound: made by a check of it, or by a caller who knows that it is as it was left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checked {
    pub(crate) suspects: BTreeSet<u32>,
    /// Why nothing may be changed, in words; `None` if changes are allowed.
    pub refusal: Option<String>,
}

impl Checked {
    /// For a file system that was checked before and has since been changed only by this driver, which the
    /// caller knows from hashes of every block. Otherwise check it.
    pub fn as_we_left_it() -> Checked {
        Checked { suspects: BTreeSet::new(), refusal: None }
    }
}

/// A file or directory that a walk reaches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WalkedFile {
    /// A sound file or directory.
    Sound {
        /// The path; orphans in the limbo are below `/HOLDFAST.LBO`.
        path: String,
        /// File or directory.
        kind: Kind,
        /// Bytes of a file, 0 of a directory.
        bytes: u64,
        /// The blocks: those of a file belong to its owner, those of a directory to the driver.
        blocks: Vec<BlockRange>,
    },
    /// A file or directory that is refused.
    Refused(Finding),
}

/// An event of a traversal.
enum TraversalEvent<'a> {
    /// An entry. The returned directory is entered.
    Entry { path: &'a str, parent: &'a Directory, found: &'a FileEntry },
    /// The end of a directory, and whether stray pieces of long names were skipped.
    End { path: &'a str, broken: bool },
    /// A directory too deep to be entered.
    TooDeep { path: &'a str },
}

struct Frame {
    directory: Directory,
    slot: u32,
    broken: bool,
    path_bytes: usize,
}

/// Visits everything below a directory, depth first. Its memory is bounded by the depth.
fn traverse(
    draft: &Draft,
    root: Directory,
    visit: &mut dyn FnMut(TraversalEvent) -> Result<Option<Directory>>,
) -> Result<()> {
    let mut path = String::new();
    let mut frames = vec![Frame { directory: root, slot: 0, broken: false, path_bytes: 0 }];
    while let Some(frame) = frames.last_mut() {
        let mut scan = Scan::new(&frame.directory, frame.slot);
        let found = scan.next(draft)?;
        let (slot, broken) = (scan.slot(), scan.broken);
        frame.slot = slot;
        frame.broken |= broken;
        path.truncate(frame.path_bytes);
        let Some(found) = found else {
            visit(TraversalEvent::End { path: &path, broken: frame.broken })?;
            frames.pop();
            continue;
        };
        if found.entry.is_label() {
            continue;
        }
        if path.len() < PATH_BYTES_MAX {
            path.push('/');
            path.push_str(&found.name);
        } else if !path.ends_with('…') {
            path.push_str("/…");
        }
        let entered = visit(TraversalEvent::Entry { path: &path, parent: &frame.directory, found: &found })?;
        match entered {
            Some(_) if frames.len() >= DEPTH_MAX => {
                visit(TraversalEvent::TooDeep { path: &path })?;
            }
            Some(directory) => {
                frames.push(Frame { directory, slot: 0, broken: false, path_bytes: path.len() });
            }
            None => {}
        }
    }
    Ok(())
}

/// A check under way.
struct Check<'a> {
    /// A bit for each cluster that some file has.
    claimed: Vec<u64>,
    checked: Checked,
    report: &'a mut dyn FnMut(Finding),
}

impl Check<'_> {
    fn find(&mut self, place: &str, problem: Problem) {
        let place = if place.is_empty() { "/" } else { place };
        if problem.forbids_changes() && self.checked.refusal.is_none() {
            self.checked.refusal = Some(format!("the check found something unsound: {place}: {problem}"));
        }
        (self.report)(Finding { place: place.into(), problem });
    }

    /// Follows a chain and marks its clusters, up to the first that was marked before.
    fn claim(
        &mut self,
        draft: &Draft,
        first: u32,
        length: Length,
    ) -> std::result::Result<Vec<Run>, ChainError> {
        let Check { claimed, checked, .. } = self;
        draft.chain(first, length, |cluster| {
            let index = cluster - FIRST_CLUSTER;
            let (word, bit) = (&mut claimed[(index / 64) as usize], 1u64 << (index % 64));
            if *word & bit == 0 {
                *word |= bit;
                return Ok(());
            }
            if checked.suspects.len() >= SUSPECTS_MAX {
                let place = "the file allocation table".into();
                return Err(FatError::Unsound { place, problem: Problem::TooMuch }.into());
            }
            checked.suspects.insert(cluster);
            Err(Problem::CrossLinked(cluster).into())
        })
    }

    fn is_claimed(&self, cluster: u32) -> bool {
        let index = cluster - FIRST_CLUSTER;
        self.claimed[(index / 64) as usize] >> (index % 64) & 1 == 1
    }

    fn entry(
        &mut self,
        draft: &Draft,
        path: &str,
        parent: &Directory,
        found: &FileEntry,
    ) -> Result<Option<Directory>> {
        let entry = &found.entry;
        if !crate::names::short_is_sound(&entry.short) {
            self.find(path, Problem::BadName);
        }
        let length = match entry.is_directory() {
            true => Length::Directory,
            false => Length::Exactly(draft.layout.clusters_for(u64::from(entry.size))),
        };
        let runs = match self.claim(draft, entry.first, length) {
            Ok(runs) => runs,
            Err(ChainError::Problem(problem)) => {
                self.find(path, problem);
                return Ok(None);
            }
            Err(broken) => return Err(broken.at(|| path.into())),
        };
        if !entry.is_directory() {
            return Ok(None);
        }
        if entry.size != 0 {
            self.find(path, Problem::DirectoryWithSize);
        }
        let directory = Directory { first: entry.first, runs: runs.into() };
        let up = if parent.first == draft.layout.root_cluster { 0 } else { parent.first };
        for (slot, short, first, name) in [(0, DOT, entry.first, "."), (1, DOT_DOT, up, "..")] {
            let dots = directory.entry(draft, slot)?;
            if dots.short != short || dots.first != first || !dots.is_directory() {
                self.find(path, Problem::BadDots(name));
            }
        }
        self.names(draft, path, &directory)?;
        Ok(Some(directory))
    }

    /// Finds faults of a directory by itself: double names, entries after the end.
    fn names(&mut self, draft: &Draft, path: &str, directory: &Directory) -> Result<()> {
        let mut seen = BTreeSet::new();
        let mut scan = Scan::new(directory, 0);
        while let Some(found) = scan.next(draft)? {
            if !found.entry.is_label() && !seen.insert(found.entry.short) {
                self.find(&format!("{path}/{}", found.name), Problem::DuplicateName);
            }
        }
        for slot in scan.slot()..directory.slots(draft.layout) {
            if !matches!(directory.read(draft, slot)?[0], 0 | DELETED) {
                self.find(path, Problem::AfterEnd);
                break;
            }
        }
        Ok(())
    }

    /// Compares the table with the claimed clusters, with its copy, and with the summary.
    fn table(&mut self, draft: &Draft) -> Result<()> {
        let layout = draft.layout;
        let place = "the file allocation table";
        let (mut free, mut lost, mut first_lost, mut differs) = (0u32, 0u64, 0, false);
        let end = layout.clusters + FIRST_CLUSTER;
        let mut start = FIRST_CLUSTER;
        while start < end {
            let group = start..end.min(start + GROUP);
            let raw = |copy| {
                group.clone().map(|cluster| draft.raw_link(copy, cluster)).collect::<Result<Vec<u32>>>()
            };
            let read = raw(layout.read_copy())?;
            if layout.mirroring == Mirroring::All && layout.fats == 2 && !differs {
                let other = raw(1)?;
                let different = read.iter().zip(&other).position(|(a, b)| (a ^ b) & 0x0fff_ffff != 0);
                if let Some(at) = different {
                    differs = true;
                    self.find(place, Problem::CopiesDiffer(start + at as u32));
                }
            }
            for (cluster, raw) in group.clone().zip(read) {
                match Link::of(raw, layout) {
                    Link::Free => free += 1,
                    Link::Bad => {}
                    _ if self.is_claimed(cluster) => {}
                    _ => {
                        lost += 1;
                        first_lost = if lost == 1 { cluster } else { first_lost };
                    }
                }
            }
            start = group.end;
        }
        if lost > 0 {
            self.find(place, Problem::Lost { clusters: lost, first: first_lost });
        }
        match summary::read(draft)? {
            Some((stated, _)) if stated != free && stated != summary::UNKNOWN => {
                self.find("FSInfo", Problem::Summary { stated, found: free });
            }
            None if layout.info_sector.is_some() => self.find("FSInfo", Problem::BadFsInfo),
            _ => {}
        }
        Ok(())
    }

    fn boot(&mut self, draft: &Draft) -> Result<()> {
        if let Some(backup) = draft.layout.backup_sector {
            let sector = |sector| {
                let (block, at) = summary::sector_place(draft, sector);
                draft.look(block, |bytes| bytes[at..at + 512].to_vec())
            };
            if sector(0)? != sector(backup)? {
                self.find("the boot sector", Problem::BackupDiffers);
            }
        }
        if !summary::is_clean(draft)? {
            self.find("the boot sector", Problem::NotUnmounted);
        }
        Ok(())
    }
}

/// Checks a whole file system and reports problems in the order in which they are found. Ends at what cannot
/// be read, and at an unsound root directory.
pub fn check(layout: &Layout, metadata: &dyn Metadata, report: &mut dyn FnMut(Finding)) -> Result<Checked> {
    let draft = Draft::new(layout, metadata);
    let words = (layout.clusters as usize).div_ceil(64);
    let mut check = Check { claimed: vec![0; words], checked: Checked::as_we_left_it(), report };
    check.boot(&draft)?;
    let runs = check
        .claim(&draft, layout.root_cluster, Length::Directory)
        .map_err(|broken| broken.at(|| "the root directory".into()))?;
    let root = Directory { first: layout.root_cluster, runs: runs.into() };
    check.names(&draft, "", &root)?;
    traverse(&draft, root, &mut |step| match step {
        TraversalEvent::Entry { path, parent, found } => check.entry(&draft, path, parent, found),
        TraversalEvent::End { path, broken } => {
            if broken {
                check.find(path, Problem::BrokenLongName);
            }
            Ok(None)
        }
        TraversalEvent::TooDeep { path } => {
            check.find(path, Problem::TooDeep);
            Ok(None)
        }
    })?;
    check.table(&draft)?;
    Ok(check.checked)
}

impl<M: Metadata> Fat<M> {
    /// Lists the blocks of every file and directory, one after another. Files that share clusters or cannot
    /// be followed are reported as refused. The result of the check then counts as vouched for.
    pub fn walk(&mut self, checked: &Checked, visit: &mut dyn FnMut(WalkedFile)) -> Result<()> {
        self.vouch(checked);
        self.read(|state, draft| {
            let root = state.directory_at(draft, draft.layout.root_cluster)?;
            let blocks = root.runs.iter().map(|run| draft.layout.blocks(*run)).collect();
            visit(WalkedFile::Sound { path: "/".into(), kind: Kind::Directory, bytes: 0, blocks });
            traverse(draft, root, &mut |step| {
                let (path, found) = match step {
                    TraversalEvent::Entry { path, found, .. } => (path, found),
                    TraversalEvent::End { .. } => return Ok(None),
                    TraversalEvent::TooDeep { path } => {
                        visit(WalkedFile::Refused(Finding { place: path.into(), problem: Problem::TooDeep }));
                        return Ok(None);
                    }
                };
                walk_entry(state, draft, path, found, visit)
            })
        })
    }
}

fn walk_entry(
    state: &mut DriverState,
    draft: &Draft,
    path: &str,
    found: &FileEntry,
    visit: &mut dyn FnMut(WalkedFile),
) -> Result<Option<Directory>> {
    let entry = &found.entry;
    let (length, kind, bytes) = match entry.is_directory() {
        true => (Length::Directory, Kind::Directory, 0),
        false => {
            let bytes = u64::from(entry.size);
            (Length::Exactly(draft.layout.clusters_for(bytes)), Kind::File, bytes)
        }
    };
    match state.runs(draft, entry.first, length) {
        Ok(runs) => {
            let blocks = runs.iter().map(|run| draft.layout.blocks(*run)).collect();
            visit(WalkedFile::Sound { path: path.into(), kind, bytes, blocks });
            Ok(entry.is_directory().then_some(Directory { first: entry.first, runs }))
        }
        Err(ChainError::Problem(problem)) => {
            visit(WalkedFile::Refused(Finding { place: path.into(), problem }));
            Ok(None)
        }
        Err(broken) => Err(broken.at(|| path.into())),
    }
}
