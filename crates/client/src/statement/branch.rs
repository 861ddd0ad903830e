//! Compares two views of one file system, path by path.
//!
//! To find out who changed a file, no common ancestor is needed. Only a device's own operations change its
//! table. If a branch has no more operations of a device than the other branch has, its table is as it was
//! where the branches part. If the device that has a file went on after that, its table on the other side
//! still shows the earlier file. So a file is *unchanged* on a side if the device that has it made no
//! operation there that the other side lacks, or if that device's table on the other side has the same inode
//! under the same number.
//!
//! Bounds: paths are visited up to a limit, and directories that contain themselves are entered once.

use super::blocks::ReadOnly;
use crate::tree::{Base, InodeLocation, ReadError, TableCache};
use holdfast_content::{BlockSource, DeviceId, Entry, Handle, InodeKind, Membership};
use holdfast_crypto::Digest;
use holdfast_protocol::structure::View;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Number of names read at a time.
const PAGE: usize = 1024;
/// Longest path compared, in bytes; longer ones are reported as left out.
const PATH_BYTES_MAX: usize = 64 << 10;

/// A view to read files from.
pub struct Branch {
    base: Base,
}

/// Bounds of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most paths that are visited.
    pub paths: u64,
    /// Most differences listed.
    pub differences: usize,
}

/// How a path differs between two branches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathDifference {
    /// Both sides changed it, differently.
    Conflict,
    /// Our side changed it; their side has it unchanged.
    ChangedInOurs,
    /// Their side changed it; our side has it unchanged.
    ChangedInTheirs,
    /// Only our side has it: it was made there, or changed there and removed on their side.
    OnlyInOurs,
    /// Only their side has it: it was made there, or changed there and removed on our side.
    OnlyInTheirs,
    /// Our side removed it; their side has it unchanged.
    RemovedInOurs,
    /// Their side removed it; our side has it unchanged.
    RemovedInTheirs,
}

/// A file on one side.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Version {
    /// The file itself.
    #[serde(skip)]
    pub file: Handle,
    /// File, directory, symbolic link and so on.
    #[serde(skip)]
    pub kind: InodeKind,
    /// Size in bytes, if its inode can be read.
    pub bytes: Option<u64>,
    /// Time of the last change by its writer's clock, in nanoseconds since 1970.
    pub modified_ns: Option<i64>,
    /// The device that last wrote it.
    pub writer: Option<u32>,
}

/// A path that differs between the sides.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    /// Path from the root, as text; invalid bytes are replaced.
    pub path: String,
    /// The path's components, as bytes.
    #[serde(skip)]
    pub parts: Vec<Vec<u8>>,
    /// How the two sides differ.
    pub what: PathDifference,
    /// The file on our side, if it is there.
    pub ours: Option<Version>,
    /// The file on their side, if it is there.
    pub theirs: Option<Version>,
}

/// The result of comparing two branches.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Comparison {
    /// Number of paths that are the same on both sides, without directories.
    pub identical: u64,
    /// Paths that differ.
    pub differences: Vec<Difference>,
    /// Paths that could not be compared, and why.
    pub unread: Vec<(String, String)>,
    /// Whether nothing was left out because of the limits.
    pub complete: bool,
}

impl Branch {
    /// A branch of `view` under `membership`, with blocks of `source`.
    pub fn reading(
        view: View,
        membership: Membership,
        device: DeviceId,
        source: Arc<dyn BlockSource + Send + Sync>,
    ) -> Branch {
        let (view, membership) = (Arc::new(view), Arc::new(membership));
        let blocks = Arc::new(ReadOnly(source));
        Branch { base: Base::new(view, membership, device, blocks, Arc::new(TableCache::default())) }
    }

    /// The tree to read files from.
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// How many operations of a device the branch has.
    fn number(&self, device: DeviceId) -> u64 {
        self.base.view.slots.get(&device).map_or(0, |slot| slot.value.number())
    }

    /// All names of a directory.
    pub fn names(&self, directory: Handle, most: u64) -> Result<BTreeMap<Vec<u8>, Entry>, ReadError> {
        let mut names: BTreeMap<Vec<u8>, Entry> = BTreeMap::new();
        loop {
            let after = names.last_key_value().map(|(name, _)| name.clone());
            let (entries, complete) = self.base.entries(directory, after.as_deref(), PAGE)?;
            let none = entries.is_empty();
            names.extend(entries);
            if complete || none || names.len() as u64 > most {
                return Ok(names);
            }
        }
    }

    pub(super) fn version(&self, entry: &Entry) -> Version {
        let inode = self.base.inode(entry.handle).ok();
        Version {
            file: entry.handle,
            kind: inode.as_ref().map_or(entry.kind, |inode| inode.kind),
            bytes: inode.as_ref().map(|inode| inode.size),
            modified_ns: inode.as_ref().map(|inode| inode.modified_ns),
            writer: inode.as_ref().map(|inode| inode.writer.0),
        }
    }

    /// Whether a file is unchanged on this side since the branches parted.
    fn is_unchanged(&self, file: Handle, ihash: Digest, other: &Branch) -> bool {
        let Ok(Some(InodeLocation { device, number })) = self.base.place(file) else { return false };
        if self.number(device) <= other.number(device) {
            return true;
        }
        other.base.ihash_at(InodeLocation { device, number }).is_ok_and(|there| there == Some(ihash))
    }
}

/// Compares two branches.
pub fn compare(ours: &Branch, theirs: &Branch, limits: Limits) -> Comparison {
    let mut walk = Walk {
        ours,
        theirs,
        limits,
        left: limits.paths,
        result: Comparison { complete: true, ..Comparison::default() },
    };
    let root = Entry { handle: Handle::ROOT, kind: InodeKind::Directory };
    let mut entered = BTreeSet::new();
    let mut stack = vec![(Vec::new(), Some(root), Some(root))];
    while let Some((path, our, their)) = stack.pop() {
        let pair = (our.map(|entry| entry.handle), their.map(|entry| entry.handle));
        let bytes: usize = path.iter().map(|part: &Vec<u8>| part.len() + 1).sum();
        if !entered.insert(pair) || bytes > PATH_BYTES_MAX {
            walk.unread(&path, "this directory was compared under another name, or is too deep".to_owned());
            continue;
        }
        walk.directory(&path, our, their, &mut stack);
    }
    walk.result.differences.sort_by(|a, b| (a.what, &a.parts).cmp(&(b.what, &b.parts)));
    walk.result
}

/// Directories to be compared: their path, and their entries on both sides.
type Stack = Vec<(Vec<Vec<u8>>, Option<Entry>, Option<Entry>)>;

struct Walk<'a> {
    ours: &'a Branch,
    theirs: &'a Branch,
    limits: Limits,
    left: u64,
    result: Comparison,
}

impl Walk<'_> {
    fn unread(&mut self, path: &[Vec<u8>], why: String) {
        if self.result.unread.len() < self.limits.differences {
            self.result.unread.push((text(path), why));
        } else {
            self.result.complete = false;
        }
    }

    fn directory(&mut self, path: &[Vec<u8>], our: Option<Entry>, their: Option<Entry>, stack: &mut Stack) {
        let mut names: BTreeMap<Vec<u8>, (Option<Entry>, Option<Entry>)> = BTreeMap::new();
        let sides = [(self.ours, our, "ours"), (self.theirs, their, "theirs")];
        for (index, (branch, entry, side)) in sides.into_iter().enumerate() {
            let Some(entry) = entry else { continue };
            match branch.names(entry.handle, self.left) {
                Ok(found) => {
                    for (name, entry) in found {
                        let pair = names.entry(name).or_default();
                        *(if index == 0 { &mut pair.0 } else { &mut pair.1 }) = Some(entry);
                    }
                }
                // Half a directory would make everything in it look missing on one side.
                Err(error) => return self.unread(path, format!("in {side}: {error}")),
            }
        }
        for (name, (our, their)) in names {
            if self.left == 0 {
                self.result.complete = false;
                return;
            }
            self.left -= 1;
            let path: Vec<Vec<u8>> = path.iter().cloned().chain([name]).collect();
            self.name(&path, our, their);
            let is_directory = |entry: &Entry| entry.kind == InodeKind::Directory;
            let (our, their) = (our.filter(is_directory), their.filter(is_directory));
            if our.is_some() || their.is_some() {
                stack.push((path, our, their));
            }
        }
    }

    fn name(&mut self, path: &[Vec<u8>], our: Option<Entry>, their: Option<Entry>) {
        let both_directories = matches!((&our, &their), (Some(a), Some(b))
            if a.kind == InodeKind::Directory && b.kind == InodeKind::Directory);
        if both_directories {
            return;
        }
        let digest = |branch: &Branch, entry: &Option<Entry>| match entry {
            Some(entry) => branch.base.ihash(entry.handle).map(Some),
            None => Ok(None),
        };
        let (mine, other) = match (digest(self.ours, &our), digest(self.theirs, &their)) {
            (Ok(mine), Ok(other)) => (mine, other),
            (Err(error), _) => return self.unread(path, format!("in ours: {error}")),
            (_, Err(error)) => return self.unread(path, format!("in theirs: {error}")),
        };
        if mine == other {
            self.result.identical += 1;
            return;
        }
        if self.result.differences.len() >= self.limits.differences {
            self.result.complete = false;
            return;
        }
        let here =
            our.zip(mine).map(|(entry, ihash)| self.ours.is_unchanged(entry.handle, ihash, self.theirs));
        let there =
            their.zip(other).map(|(entry, ihash)| self.theirs.is_unchanged(entry.handle, ihash, self.ours));
        let what = match (here, there) {
            (Some(true), None) => PathDifference::RemovedInTheirs,
            (Some(false), None) => PathDifference::OnlyInOurs,
            (None, Some(true)) => PathDifference::RemovedInOurs,
            (None, Some(false)) => PathDifference::OnlyInTheirs,
            (Some(true), Some(false)) => PathDifference::ChangedInTheirs,
            (Some(false), Some(true)) => PathDifference::ChangedInOurs,
            _ => PathDifference::Conflict,
        };
        self.result.differences.push(Difference {
            path: text(path),
            parts: path.to_vec(),
            what,
            ours: our.map(|entry| self.ours.version(&entry)),
            theirs: their.map(|entry| self.theirs.version(&entry)),
        });
    }
}

/// Reads the attributes of everything that has a name, at most `paths_max` of them; returns whether that was
/// all.
pub(super) fn walk(branch: &Branch, paths_max: u64) -> bool {
    let (mut left, mut whole) = (paths_max, true);
    let mut entered = BTreeSet::new();
    let mut directories = vec![Handle::ROOT];
    while let Some(directory) = directories.pop() {
        if !entered.insert(directory) {
            continue;
        }
        let Ok(names) = branch.names(directory, left) else {
            whole = false;
            continue;
        };
        for entry in names.into_values() {
            if left == 0 {
                return false;
            }
            left -= 1;
            whole &= branch.base.inode(entry.handle).is_ok();
            if entry.kind == InodeKind::Directory {
                directories.push(entry.handle);
            }
        }
    }
    whole
}

fn text(path: &[Vec<u8>]) -> String {
    let parts: Vec<String> = path.iter().map(|part| String::from_utf8_lossy(part).into_owned()).collect();
    parts.join("/")
}
