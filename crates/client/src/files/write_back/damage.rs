//! Damage in the journal: distinguishes it from a torn end, finds whole frames after it, and determines which
//! files may lack changes.
//!
//! A crash tears only the end of the last segment; nothing that is missing there was acknowledged as saved. A
//! bad frame that has whole frames after it, or that reaches exactly to the end of its file, was once written
//! in full and has been altered since. Its content is lost, and a file that needs it must not be sent with
//! some of its changes missing. So such files are *withheld*: what is left of them is saved to a folder,
//! together with the damaged segments, and the server keeps the version it has.

use super::journal::{BODY_MAX, Frame, HEADER_BYTES, Journal, RecoveredJournal, read_frame, tag};
use super::record::{NetChange, Record};
use super::{ConflictReport, PATHS_MAX, now_ns};
use crate::error::FsError;
use crate::files::salvage::{self, SECTOR_BYTES, SalvageRequest, read_around_damage};
use crate::files::state::content_roots;
use holdfast_content::{
    Block, BlockKind, BlockSource, Content, Handle, Inode, InodeKind, Reference, SourceError, file,
};
use holdfast_crypto::{Digest, DigestKey, decode};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most bytes hashed in one segment to find whole frames. Only bytes that look like a frame's header are
/// tried.
const SEARCH_BYTES_MAX: usize = 1 << 30;
/// Number of kinds of frames. The kind is the first byte of a body.
const KINDS: u8 = 6;

/// A segment file in which frames were altered after they had been written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DamagedSegment {
    pub path: PathBuf,
    /// Byte ranges of the file whose frames cannot be read.
    pub lost: Vec<Range<u64>>,
}

/// What was in damaged frames, as far as the rest of them shows. Used only to name and withhold files;
/// nothing of it is sent.
#[derive(Default)]
pub struct DamagedContents {
    /// Whether some damaged frame gives no clue to its content.
    unknown: bool,
    edits: Vec<Record>,
    blocks: HashSet<Digest>,
}

/// What damage means for the edits that were found.
#[derive(Default, Debug)]
pub struct DamageAssessment {
    /// How many of the edits that were not at the server are lost.
    pub edits_lost: u64,
    /// Files whose edits must not be sent, because some of their changes are lost.
    pub withheld: BTreeSet<Handle>,
    /// Paths of withheld files, and of others that lost an edit, where they could be determined.
    pub paths: BTreeSet<String>,
}

/// Where the next whole frame begins after the bad one at `offset`; `end` if the bad frame is the last;
/// `None` for a torn end.
pub fn behind(file: &File, offset: u64, end: u64) -> Option<u64> {
    if let Some(next) = next_by_length(file, offset, end)
        && (next == end || read_frame(file, next, end).is_some())
    {
        return Some(next);
    }
    let rest = read_around_damage(file, offset, end);
    let mut hashed = 0;
    (1..rest.len())
        .take_while(|at| rest.len() - at > HEADER_BYTES as usize)
        .find(|at| is_row(&rest[*at..], &mut hashed))
        .map(|at| offset + at as u64)
}

/// Where the frame at `offset` ends according to its length field, if that is plausible.
fn next_by_length(file: &File, offset: u64, end: u64) -> Option<u64> {
    let mut length = [0; 4];
    file.read_exact_at(&mut length, offset).ok()?;
    let length = u64::from(u32::from_le_bytes(length));
    let next = offset + HEADER_BYTES + length;
    (length > 0 && length <= BODY_MAX as u64 && next <= end).then_some(next)
}

/// Whether whole frames follow each other from the beginning of `bytes` to their end. A shorter sequence
/// might be data in a file that looks like frames.
fn is_row(bytes: &[u8], hashed: &mut usize) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        let Some((header, after)) = rest.split_at_checked(HEADER_BYTES as usize) else { return false };
        let length = u32::from_le_bytes(header[..4].try_into().expect("4 bytes")) as usize;
        let is_plausible = length > 0 && length <= BODY_MAX && length <= after.len() && after[0] < KINDS;
        if !is_plausible || *hashed + length > SEARCH_BYTES_MAX {
            return false;
        }
        *hashed += length;
        let (body, after) = after.split_at(length);
        if tag(body) != header[4..] {
            return false;
        }
        rest = after;
    }
    true
}

impl DamagedContents {
    /// Notes what can be found out about the damaged frame in `range`.
    pub fn add(&mut self, file: &File, range: &Range<u64>) {
        let is_one = next_by_length(file, range.start, range.end) == Some(range.end);
        let body = read_around_damage(file, range.end.min(range.start + HEADER_BYTES), range.end);
        match decode(&body) {
            Ok(Frame::Edit(record)) if is_one => self.edits.push(record),
            Ok(Frame::Block { address, .. }) if is_one => drop(self.blocks.insert(address)),
            Ok(_) if is_one => {}
            _ => self.unknown = true,
        }
    }

    /// Determines which files are in doubt. `references` returns the blocks that a block refers to, `None` if
    /// it is not in the journal.
    pub fn assess(
        mut self,
        records: &[Record],
        done: u64,
        references: &dyn Fn(&Digest) -> Option<Vec<Digest>>,
    ) -> DamageAssessment {
        let numbers: BTreeSet<u64> = records.iter().map(|record| record.number).collect();
        // Counts gaps only between edits that were found: the note of how far edits were sent may itself be
        // damaged.
        let gaps = match (numbers.first(), numbers.last()) {
            (Some(first), Some(last)) => last - first + 1 - numbers.len() as u64,
            _ => 0,
        };
        self.edits.retain(|edit| edit.number > done && !numbers.contains(&edit.number));
        let named = self.edits.len() as u64;
        let mut doubt = DamageAssessment { edits_lost: gaps.max(named), ..DamageAssessment::default() };
        let net = NetChange::of(records);
        for change in self.edits.iter().flat_map(|edit| &edit.inodes) {
            if change.new.as_ref().is_some_and(|new| new.0.kind == InodeKind::File) {
                doubt.withheld.insert(change.handle);
            }
            doubt.paths.insert(String::from_utf8_lossy(&change.path).into_owned());
        }
        for change in self.edits.iter().flat_map(|edit| &edit.entries) {
            doubt.paths.insert(full_name(&change.path, &change.name));
        }
        for change in net.inodes.values() {
            let Some(new) = change.new.as_ref().map(|new| &new.0).filter(|new| new.kind == InodeKind::File)
            else {
                continue;
            };
            let before = change.seen.as_ref().map(|seen| &seen.0);
            if before.is_some_and(|before| before.content == new.content) {
                continue;
            }
            // A new file's blocks are all in the journal; those of a changed file may be at the server.
            let is_new = before.is_none_or(|before| matches!(before.content, Content::None));
            let is_missing = |address: &Digest| is_new || self.blocks.contains(address);
            let may_lack_content =
                (self.unknown || !self.edits.is_empty()) && before.is_none() && new.size == 0;
            if may_lack_content || lacks(new, references, &is_missing) {
                doubt.withheld.insert(change.handle);
            }
        }
        // Lost changes of files that were removed afterwards do not matter.
        doubt.withheld.retain(|handle| net.inodes.get(handle).is_none_or(|change| change.new.is_some()));
        let names = names(records);
        let withheld = doubt.withheld.iter().filter_map(|handle| names.get(handle).cloned());
        doubt.paths.extend(withheld);
        doubt.paths.remove("");
        doubt
    }
}

/// Whether a file's content needs a block that is not in the journal and that `is_missing` says is not
/// elsewhere.
fn lacks(
    inode: &Inode,
    references: &dyn Fn(&Digest) -> Option<Vec<Digest>>,
    is_missing: &dyn Fn(&Digest) -> bool,
) -> bool {
    let (mut waiting, mut seen) = (content_roots(inode), HashSet::new());
    while let Some(address) = waiting.pop() {
        match references(&address) {
            Some(more) => waiting.extend(more.into_iter().filter(|address| seen.insert(*address))),
            None if is_missing(&address) => return true,
            None => {}
        }
    }
    false
}

/// For each file, the last name that edits give it, or else the path in the record.
fn names(records: &[Record]) -> BTreeMap<Handle, String> {
    let mut names = BTreeMap::new();
    for record in records {
        for change in record.inodes.iter().filter(|change| !change.path.is_empty()) {
            names.insert(change.handle, String::from_utf8_lossy(&change.path).into_owned());
        }
        for change in &record.entries {
            if let Some(new) = change.new {
                names.insert(new.handle, full_name(&change.path, &change.name));
            }
        }
    }
    names
}

fn full_name(directory: &[u8], name: &[u8]) -> String {
    let path = [directory, name].join(&b'/');
    String::from_utf8_lossy(&path).trim_start_matches('/').to_owned()
}

/// Removes the changes of withheld files from an edit, so that the rest is consistent: a new file that is
/// withheld gets no name, and the file that it would have replaced stays.
pub fn withhold(record: &mut Record, withheld: &BTreeSet<Handle>, created: &BTreeSet<Handle>) {
    let is_unmade = |handle: Handle| withheld.contains(&handle) && created.contains(&handle);
    let mut replaced = BTreeSet::new();
    record.entries.retain(|change| {
        let is_lost = change.new.is_some_and(|new| is_unmade(new.handle));
        if is_lost {
            replaced.extend(change.seen.map(|seen| seen.handle));
        }
        let was_lost = change.new.is_none() && change.seen.is_some_and(|seen| is_unmade(seen.handle));
        !is_lost && !was_lost
    });
    record.inodes.retain(|change| {
        let is_replaced = replaced.contains(&change.handle) && change.new.is_none();
        !withheld.contains(&change.handle) && !is_replaced
    });
}

/// Reads blocks from the journal only, without asking the server.
struct JournalSource<'a>(&'a Journal, DigestKey);

impl BlockSource for JournalSource<'_> {
    fn digest_key(&self) -> DigestKey {
        self.1
    }

    fn fetch(&self, reference: &Reference, _: BlockKind) -> Result<Arc<Block>, SourceError> {
        let block = self.0.get(&reference.address).ok_or(SourceError::Missing(reference.address))?;
        Ok(Arc::new(block))
    }
}

/// Saves what is left of withheld files, and the damaged segments, to a folder. Returns conflict reports for
/// the user.
///
/// # Errors
/// [`FsError::NoSpace`] or [`FsError::Local`]; the journal is unchanged then.
pub fn save(
    journal: &Journal,
    recovered: &RecoveredJournal,
    salvage_dir: &Path,
    key: DigestKey,
) -> Result<Vec<ConflictReport>, FsError> {
    let doubt = &recovered.doubt;
    let segments: Vec<String> =
        recovered.damaged.iter().map(|segment| segment.path.display().to_string()).collect();
    let edits = match doubt.edits_lost {
        0 => "what it lost of them is not known to be an edit".to_owned(),
        1 => "one edit is lost".to_owned(),
        more => format!("{more} edits are lost"),
    };
    let reason = format!(
        "the journal of changes that were not at the server is damaged ({}): {edits}. Changes of files that are in doubt \
         were not sent; the server has them as they were",
        segments.join(", ")
    );
    tracing::error!(in_doubt = ?doubt.paths, "{reason}");
    let net = NetChange::of(&recovered.records);
    let names = names(&recovered.records);
    let left = doubt.withheld.iter().filter_map(|handle| {
        let new = &net.inodes.get(handle)?.new.as_ref()?.0;
        let name = names.get(handle).cloned().unwrap_or_default().into_bytes();
        Some((name, new.clone()))
    });
    let source = JournalSource(journal, key);
    let read = |inode: &Inode, offset: u64, count: usize| file::read(&source, inode, offset, count).ok();
    let rescue = SalvageRequest {
        reason: &reason,
        inodes: left.collect(),
        read: &read,
        step: SECTOR_BYTES,
        copies: recovered.damaged.iter().map(|segment| segment.path.clone()).collect(),
        in_doubt: doubt.paths.iter().cloned().collect(),
    };
    let saved = salvage::save_inodes(salvage_dir, rescue)?;
    let what = format!(
        "its last changes are lost or were not sent, since the journal is damaged; what is left is in {}",
        saved.folder.display()
    );
    let told = doubt.paths.iter().take(PATHS_MAX);
    Ok(told.map(|path| ConflictReport { path: path.clone(), what: what.clone(), at_ns: now_ns() }).collect())
}
