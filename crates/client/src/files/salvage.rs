//! Saves unpublished data that cannot be published: after the order of operations was found wrong, after a
//! publication failed for good, or after a crash.

use super::compose::{ComposeError, read_places};
use super::overlay::Overlay;
use super::spool::{LeftoverSpool, SavedInode};
use super::state::{Changes, DataLocation, Snapshot};
use super::{FileSystem, now_ns};
use crate::backend::Guard;
use crate::error::FsError;
use holdfast_content::{ContentError, DeviceId, Inode, InodeKind, SourceError};
use jiff::Timestamp;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the list in a salvage folder.
pub const INDEX: &str = "INDEX.json";
/// Number of bytes that are copied at once.
pub(super) const STEP_BYTES: u64 = 1 << 20;
/// Number of bytes that a damaged disk reads, or fails to read, at once.
pub(super) const SECTOR_BYTES: u64 = 4096;

/// What was saved, and where. Also the format of the list in the folder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SalvageReport {
    /// The folder that was made.
    #[serde(serialize_with = "as_text")]
    pub folder: PathBuf,
    /// Why the files could not be published.
    pub reason: String,
    /// The files that were saved.
    pub files: Vec<SalvagedFile>,
    /// Paths whose last changes are lost or were held back, since their journal is damaged. The version saved
    /// here or stored at the server is older, or there is none. `holdfast status` names these paths until the
    /// folder is removed.
    pub in_doubt: Vec<String>,
}

/// One file that was saved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SalvagedFile {
    /// Its path in the mount, as last known.
    pub path: String,
    /// Path of the copy within the folder.
    #[serde(serialize_with = "as_text")]
    pub saved_as: PathBuf,
    /// Its inode number.
    pub ino: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Ranges (first offset, and the one after the last) that could not be read, since they were published
    /// earlier and the server does not send them. They are holes in the copy.
    pub missing: Vec<(u64, u64)>,
    /// Whether an earlier run left it.
    pub from_earlier_run: bool,
}

impl FileSystem {
    /// Saves everything unpublished (from open files, from files whose publication failed, and from earlier
    /// runs) into a new folder, with a list of the files and the reason. `None` if there is nothing to save.
    /// Files that were saved completely and are no longer open are removed from the spool; open files
    /// continue as they are.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`]; nothing is removed from the spool then.
    pub fn save_unsaved(&self, reason: &str) -> Result<Option<SalvageReport>, FsError> {
        let _one_at_a_time = self.salvaging.lock();
        let mut open = Vec::new();
        for node in self.nodes.all() {
            let state = node.state();
            let unpublished = state.file.as_ref().filter(|file| {
                file.is_dirty() && !file.named.is_orphan() && file.snapshot().changes_content()
            });
            if let Some(file) = unpublished {
                let snapshot = file.snapshot();
                drop(state);
                open.push((self.nodes.path(node.ino), node.ino.0, snapshot));
            }
        }
        let leftovers = self.spool.leftovers();
        if open.is_empty() && leftovers.is_empty() {
            return Ok(None);
        }
        let failed = |error: io::Error| FsError::local("saving unpublished data", &error);
        let folder = new_folder(&self.options.salvage_dir, now_ns()).map_err(failed)?;
        let mut files = Vec::new();
        for (path, ino, snapshot) in open {
            files.push(self.save(&folder, &path, ino, &snapshot, Vec::new(), false)?);
        }
        let torn = leftovers.iter().filter(|leftover| leftover.is_torn);
        let in_doubt = torn.map(|leftover| String::from_utf8_lossy(&leftover.header.path).into_owned());
        let in_doubt = in_doubt.collect();
        let mut saved_whole = Vec::new();
        for leftover in leftovers {
            let (snapshot, lost) = snapshot_of(&leftover);
            let header = &leftover.header;
            let file = self.save(&folder, &header.path, header.ino, &snapshot, lost, true)?;
            if file.missing.is_empty() {
                saved_whole.push(leftover);
            }
            files.push(file);
        }
        let salvaged = SalvageReport { folder: folder.clone(), reason: reason.to_owned(), files, in_doubt };
        let list = serde_json::to_vec_pretty(&salvaged).expect("a list of plain values");
        write_list(&folder, &list).map_err(failed)?;
        saved_whole.into_iter().for_each(LeftoverSpool::remove);
        tracing::warn!(
            folder = %folder.display(), files = salvaged.files.len(), reason,
            "unpublished data was saved"
        );
        Ok(Some(salvaged))
    }

    fn save(
        &self,
        folder: &Path,
        path: &[u8],
        ino: u64,
        snapshot: &Snapshot,
        lost: Vec<Range<u64>>,
        from_earlier_run: bool,
    ) -> Result<SalvagedFile, FsError> {
        let failed = |error: io::Error| FsError::local("saving unpublished data", &error);
        let (saved_as, out) = new_file(folder, path, ino).map_err(failed)?;
        let source = self.backend.source();
        // Published content that this reads stays pinned while it is copied.
        let _pin: Guard = self.backend.pin(super::state::content_roots(&snapshot.base));
        out.set_len(snapshot.size).map_err(failed)?;
        let mut missing: Overlay<()> = Overlay::default();
        lost.into_iter().for_each(|range| missing.insert(range, super::overlay::Piece::Hole));
        let mut server_answers = true;
        for (range, place) in snapshot.places(0..snapshot.size) {
            if matches!(place, DataLocation::Zero) {
                continue;
            }
            let mut at = range.start;
            while at < range.end {
                let part = at..range.end.min(at + STEP_BYTES);
                at = part.end;
                let place = match &place {
                    DataLocation::Published(inode, offset) => {
                        DataLocation::Published(inode.clone(), offset + (part.start - range.start))
                    }
                    other => other.clone(),
                };
                let is_published = matches!(place, DataLocation::Published(..));
                let mut bytes = vec![0; (part.end - part.start) as usize];
                let step = [(part.clone(), place)];
                let read = (!is_published || server_answers)
                    .then(|| read_places(&*source, snapshot.data.as_deref(), &step, &mut bytes));
                match read {
                    Some(Ok(())) => out.write_all_at(&bytes, part.start).map_err(failed)?,
                    Some(Err(ComposeError::Local(error))) => return Err(error),
                    unread => {
                        // One attempt is enough: each further one at a server that does not answer would last
                        // a whole time limit.
                        server_answers &= !matches!(
                            unread,
                            Some(Err(ComposeError::Content(
                                _,
                                ContentError::Source(SourceError::Unreachable(..))
                            )))
                        );
                        missing.insert(part, super::overlay::Piece::Hole);
                    }
                }
            }
        }
        out.sync_all().map_err(failed)?;
        Ok(SalvagedFile {
            path: String::from_utf8_lossy(path).into_owned(),
            saved_as,
            ino,
            bytes: snapshot.size,
            missing: missing.iter().map(|(range, _)| (range.start, range.end)).collect(),
            from_earlier_run,
        })
    }
}

/// Reads some of a file; `None` if it cannot be read.
pub(super) type ReadInode<'a> = &'a dyn Fn(&Inode, u64, usize) -> Option<Vec<u8>>;

/// What to save into a new folder.
pub(super) struct SalvageRequest<'a> {
    pub reason: &'a str,
    /// Files, each with its path.
    pub inodes: Vec<(Vec<u8>, Arc<Inode>)>,
    pub read: ReadInode<'a>,
    /// Number of bytes read at once; ranges that cannot be read are left out in pieces of this size.
    pub step: u64,
    /// Files on this machine that are copied as far as they can be read.
    pub copies: Vec<PathBuf>,
    pub in_doubt: Vec<String>,
}

/// Saves whole files into a new folder, with a list of the files and the reason.
///
/// # Errors
/// [`FsError::NoSpace`] or [`FsError::Local`].
pub(super) fn save_inodes(salvage_dir: &Path, rescue: SalvageRequest<'_>) -> Result<SalvageReport, FsError> {
    let failed = |error: io::Error| FsError::local("saving unpublished data", &error);
    let folder = new_folder(salvage_dir, now_ns()).map_err(failed)?;
    let mut files = Vec::new();
    for (number, (path, inode)) in rescue.inodes.into_iter().enumerate() {
        let (saved_as, out) = new_file(&folder, &path, number as u64).map_err(failed)?;
        out.set_len(inode.size).map_err(failed)?;
        let mut missing: Overlay<()> = Overlay::default();
        let mut at = 0;
        while at < inode.size {
            let end = inode.size.min(at + rescue.step);
            match (rescue.read)(&inode, at, (end - at) as usize) {
                Some(bytes) => out.write_all_at(&bytes, at).map_err(failed)?,
                None => missing.insert(at..end, super::overlay::Piece::Hole),
            }
            at = end;
        }
        out.sync_all().map_err(failed)?;
        files.push(SalvagedFile {
            path: String::from_utf8_lossy(&path).into_owned(),
            saved_as,
            ino: 0,
            bytes: inode.size,
            missing: missing.iter().map(|(range, _)| (range.start, range.end)).collect(),
            from_earlier_run: false,
        });
    }
    for (number, from) in rescue.copies.iter().enumerate() {
        let path = from.file_name().unwrap_or_default().as_bytes();
        let (saved_as, out) = new_file(&folder, path, number as u64).map_err(failed)?;
        let from_file = File::open(from).map_err(failed)?;
        let bytes = from_file.metadata().map_err(failed)?.len();
        for at in (0..bytes).step_by(STEP_BYTES as usize) {
            let part = read_around_damage(&from_file, at, bytes.min(at + STEP_BYTES));
            out.write_all_at(&part, at).map_err(failed)?;
        }
        out.sync_all().map_err(failed)?;
        files.push(SalvagedFile {
            path: format!("(damaged) {}", from.display()),
            saved_as,
            ino: 0,
            bytes,
            missing: Vec::new(),
            from_earlier_run: true,
        });
    }
    let salvaged = SalvageReport {
        folder: folder.clone(),
        reason: rescue.reason.to_owned(),
        files,
        in_doubt: rescue.in_doubt,
    };
    let list = serde_json::to_vec_pretty(&salvaged).expect("a list of plain values");
    write_list(&folder, &list).map_err(failed)?;
    tracing::warn!(
        folder = %folder.display(), files = salvaged.files.len(), reason = salvaged.reason,
        "unpublished data was saved"
    );
    Ok(salvaged)
}

/// Reads bytes of a file, with zeroes where the disk cannot be read.
pub(super) fn read_around_damage(file: &File, offset: u64, end: u64) -> Vec<u8> {
    let mut bytes = vec![0; end.saturating_sub(offset) as usize];
    if file.read_exact_at(&mut bytes, offset).is_err() {
        for (part, at) in
            bytes.chunks_mut(SECTOR_BYTES as usize).zip((offset..).step_by(SECTOR_BYTES as usize))
        {
            if file.read_exact_at(part, at).is_err() {
                part.fill(0);
            }
        }
    }
    bytes
}

fn decode(saved: &SavedInode) -> Option<Arc<Inode>> {
    let inode = Inode::decode(&saved.bytes, &saved.references).ok()?;
    (inode.kind == InodeKind::File).then(|| Arc::new(inode))
}

fn snapshot_of(leftover: &LeftoverSpool) -> (Snapshot, Vec<Range<u64>>) {
    let (changes, visible, size, mut lost): (Changes, _, _, _) = leftover.replay(&decode);
    let base = decode(&leftover.header.base);
    if base.is_none() && visible > 0 {
        let unchanged = changes.slices(0..visible).into_iter().filter(|(_, piece)| piece.is_none());
        lost.extend(unchanged.map(|(range, _)| range));
    }
    let empty = || Arc::new(Inode::new(InodeKind::File, 0, DeviceId(0), 0));
    let snapshot = Snapshot {
        visible: if base.is_some() { visible } else { 0 },
        base: base.unwrap_or_else(empty),
        size,
        changes: Arc::new(changes),
        data: Some(leftover.data.clone()),
        modified_ns: 0,
        changed_ns: 0,
        mode: None,
        appended: false,
        ours: None,
        fragments: Vec::new(),
    };
    (snapshot, lost)
}

/// Makes `DIR/YYYY-MM-DDTHH-MM-SSZ`, with a number appended if that exists.
fn new_folder(dir: &Path, now_ns: i64) -> io::Result<PathBuf> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let name = timestamp(now_ns.div_euclid(1_000_000_000));
    for attempt in 1.. {
        let path = match attempt {
            1 => dir.join(&name),
            _ => dir.join(format!("{name}-{attempt}")),
        };
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other.map(|()| path),
        }
    }
    unreachable!("a free number is found, or an error")
}

/// Makes a file for `path` in the folder: at the same path if possible, else named by its number.
fn new_file(folder: &Path, path: &[u8], ino: u64) -> io::Result<(PathBuf, File)> {
    let safe = |part: &&str| !part.is_empty() && *part != "." && *part != ".." && !part.contains('\0');
    // Names in the list are text, so the names of the copies are too.
    let relative: PathBuf = String::from_utf8_lossy(path).split('/').filter(safe).collect();
    if !relative.as_os_str().is_empty()
        && !relative.to_string_lossy().starts_with(INDEX)
        && fs::create_dir_all(folder.join(&relative).parent().unwrap_or(folder)).is_ok()
        && let Ok(made) = new_file_at(folder, &relative)
    {
        return Ok(made);
    }
    new_file_at(folder, Path::new(&format!("inode-{ino}")))
}

/// Makes a file, with a number appended to its name if that exists.
fn new_file_at(folder: &Path, relative: &Path) -> io::Result<(PathBuf, File)> {
    let mut attempt = 1;
    let mut candidate = relative.to_owned();
    loop {
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(folder.join(&candidate)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                attempt += 1;
                let mut name = relative.as_os_str().to_owned();
                name.push(format!(".{attempt}"));
                candidate = name.into();
            }
            other => return other.map(|file| (candidate, file)),
        }
    }
}

/// A path as text; parts that are not valid text are replaced.
fn as_text<S: serde::Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}

/// Writes the list, as the last step and atomically: a folder with a list is complete.
fn write_list(folder: &Path, list: &[u8]) -> io::Result<()> {
    holdfast_durable::replace(&folder.join(INDEX), list, holdfast_durable::PRIVATE)
}

/// A date and time in UTC, from seconds since 1970.
pub(super) fn timestamp(seconds: i64) -> String {
    let nearest = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    let time = Timestamp::from_second(seconds).unwrap_or(nearest);
    time.strftime("%Y-%m-%dT%H-%M-%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::timestamp;

    /// Proves: folder names have the right date, leap days included.
    #[test]
    fn timestamps_are_dates() {
        assert_eq!(timestamp(0), "1970-01-01T00-00-00Z");
        assert_eq!(timestamp(951_782_400), "2000-02-29T00-00-00Z");
        assert_eq!(timestamp(1_709_251_199), "2024-02-29T23-59-59Z");
        assert_eq!(timestamp(1_735_689_600), "2025-01-01T00-00-00Z");
    }
}
