//! Backups: complete copies of a data directory, made whether its server runs or not.
//!
//! ```text
//! TO/lock            held while a backup is made
//! TO/unfinished/     the backup being made; the next attempt uses what an interrupted one has copied
//! TO/NAME/           a complete backup: a data directory of its own, without what can be made again
//! ```
//!
//! Invariants:
//! - A backup copies one moment of the log: all segments that were sealed then (see `BlockStore::seal`),
//!   which never change. If a collection removes a segment before it is copied, the copy moves on to a later
//!   moment.
//! - Log-tree files are copied after the segments. Their nodes are written before the records that rely on
//!   them and never change, so a later copy fits an earlier log. The same holds for files of past states: a
//!   server that opens them drops what they say of operations beyond its log.
//! - A segment gets its name only when its bytes are durable. `FORMAT`, without which no server starts, is
//!   the last file, and the directory gets its name only when everything in it is durable.
//! - A segment is a hard link to that of an earlier backup if length and header (number and random salt) are
//!   the same.

use crate::block_store;
use crate::config::ServerConfig;
use crate::control::{self, ControlError, Outcome, Task};
use crate::history_file;
use holdfast_log::FileLock;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const UNFINISHED: &str = "unfinished";
const LOCK: &str = "lock";
const FORMAT: &str = "FORMAT";
const TREE: &str = "tree-";
const HISTORY: &str = "history-";
/// Files of the data directory itself that a backup contains, where they exist.
const KEPT: [&str; 4] =
    ["server-key", "allowed-superusers", crate::block_store::FILES[0], crate::block_store::FILES[1]];
/// How often a copy may move on to a later moment. Each time, only new segments have to be copied.
const MOMENTS: u32 = 20;
/// How many bytes are copied at a time.
const PIECE_BYTES: usize = 1 << 20;

/// What a backup did.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct BackupReport {
    /// The directory of the new backup.
    pub path: PathBuf,
    /// Segments copied.
    pub copied_segments: u64,
    /// Bytes copied, of segments and all else.
    pub copied_bytes: u64,
    /// Segments shared with earlier backups.
    pub shared_segments: u64,
    /// Bytes of the shared segments.
    pub shared_bytes: u64,
}

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The segments could not be listed, neither by the running server nor from the directory itself.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A file operation failed.
    #[error("{action} {path}: {error}", path = .path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A segment is not as long as the server says.
    #[error("{path} has {found} bytes, but the server knows of {expected}; `holdfast server scrub` says what is damaged", path = .path.display())]
    Length {
        /// The segment.
        path: PathBuf,
        /// Its actual length in bytes.
        found: u64,
        /// Its expected length in bytes.
        expected: u64,
    },
    /// Another backup to the same place is being made.
    #[error("another backup to {path} is being made", path = .0.display())]
    InUse(PathBuf),
    /// The destination is inside the data directory.
    #[error("{path} is in the data directory itself; a backup belongs on another disk", path = .0.display())]
    Inside(PathBuf),
    /// A backup of this name exists.
    #[error("{path} exists already", path = .0.display())]
    Exists(PathBuf),
    /// Collections kept removing segments while they were copied.
    #[error("garbage collections removed segments {MOMENTS} times while they were copied; try again")]
    Restless,
}

/// Copies the data directory in `config` to `to`/`name`. The running server names the segments of one moment;
/// if none runs, they are read from the directory. `progress` is given the bytes done and the bytes in all.
///
/// # Errors
/// See [`BackupError`]. The next attempt uses the segments that were copied.
pub fn backup(
    config: &ServerConfig,
    to: &Path,
    name: &str,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<BackupReport, BackupError> {
    let seal = || match control::perform(config, Task::Seal, &mut |_, _| {})? {
        Outcome::Sealed(segments) => Ok(segments),
        _ => Err(ControlError::Silent("it is of another version".to_owned())),
    };
    // Asked before anything is created, because there may be no server's data at all.
    let first = seal()?;
    make_directory(to)?;
    let inside = |path: &Path| path.canonicalize().map_err(failed("looking for", path));
    if inside(to)?.starts_with(inside(&config.data)?) {
        return Err(BackupError::Inside(to.to_owned()));
    }
    let path = to.join(name);
    if path.exists() {
        return Err(BackupError::Exists(path));
    }
    let _lock = lock(to)?;
    let unfinished = to.join(UNFINISHED);
    make_directory(&unfinished.join("store"))?;
    // An earlier attempt may have been interrupted just before its directory got its name.
    remove(&unfinished.join("store").join(FORMAT))?;
    let mut copy = BackupCopier {
        from: config.data.clone(),
        to: unfinished.clone(),
        earlier: latest(to)?,
        report: BackupReport { path: path.clone(), ..BackupReport::default() },
        progress,
    };
    let mut segments = first;
    let mut moments = 1;
    while !copy.segments(&segments)? {
        if moments == MOMENTS {
            return Err(BackupError::Restless);
        }
        moments += 1;
        segments = seal()?;
    }
    copy.rest()?;
    holdfast_durable::rename(&unfinished, &path).map_err(failed("naming", &path))?;
    Ok(copy.report)
}

struct BackupCopier<'a> {
    /// The data directory.
    from: PathBuf,
    /// The unfinished copy.
    to: PathBuf,
    /// The latest complete backup.
    earlier: Option<PathBuf>,
    report: BackupReport,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl BackupCopier<'_> {
    /// Makes the unfinished copy contain exactly these segments. Returns `false` if the server has removed
    /// some.
    fn segments(&mut self, segments: &[(u32, u64)]) -> Result<bool, BackupError> {
        let (from, to) = (self.from.join("store"), self.to.join("store"));
        let wanted: BTreeSet<String> =
            segments.iter().map(|(number, _)| holdfast_log::segment_name(*number)).collect();
        for name in names(&to)? {
            if !wanted.contains(&name) {
                remove(&to.join(name))?;
            }
        }
        let all: u64 = segments.iter().map(|(_, length)| length).sum();
        let (mut done, mut whole) = (0, true);
        for (name, &(_, length)) in wanted.iter().zip(segments) {
            whole &= self.segment(&from.join(name), &to.join(name), length)?;
            done += length;
            (self.progress)(done, all);
        }
        Ok(whole)
    }

    /// Copies one segment unless it is there already. Returns `false` if the server has removed it.
    fn segment(&mut self, from: &Path, to: &Path, length: u64) -> Result<bool, BackupError> {
        let source = match File::open(from) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            other => other.map_err(failed("opening", from))?,
        };
        let found = source.metadata().map_err(failed("measuring", from))?.len();
        if found != length {
            return Err(BackupError::Length { path: from.to_owned(), found, expected: length });
        }
        let header = header(&source).map_err(failed("reading", from))?;
        if is_same(to, length, &header)? {
            return Ok(true);
        }
        remove(to)?;
        let earlier = self.earlier.as_ref().zip(from.file_name());
        if let Some(earlier) = earlier.map(|(earlier, name)| earlier.join("store").join(name))
            && is_same(&earlier, length, &header)?
            // On file systems without hard links, linking fails and the segment is copied.
            && fs::hard_link(&earlier, to).is_ok()
        {
            self.report.shared_segments += 1;
            self.report.shared_bytes += length;
            return Ok(true);
        }
        let copied = write_file(source, from, to)?;
        if copied != length {
            return Err(BackupError::Length { path: from.to_owned(), found: copied, expected: length });
        }
        self.report.copied_segments += 1;
        self.report.copied_bytes += copied;
        Ok(true)
    }

    /// Copies everything except segments, `FORMAT` last, and makes it durable.
    fn rest(&mut self) -> Result<(), BackupError> {
        let (from, to) = (self.from.join("store"), self.to.join("store"));
        let wanted = |name: &&String| {
            name.starts_with(TREE) || (name.starts_with(HISTORY) && !name.ends_with(history_file::PARTIAL))
        };
        for name in names(&from)?.iter().filter(wanted) {
            self.file(&from.join(name), &to.join(name))?;
        }
        for name in KEPT {
            remove(&self.to.join(name))?;
            if self.from.join(name).exists() {
                self.file(&self.from.join(name), &self.to.join(name))?;
            }
        }
        for path in block_store::files_of_shards(&self.from) {
            if !self.from.join(&path).exists() {
                continue;
            }
            let folder = self.to.join(&path).parent().expect("it is in one").to_owned();
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .map_err(failed("making", &folder))?;
            self.file(&self.from.join(&path), &self.to.join(&path))?;
            sync_directory(&folder)?;
        }
        sync_directory(&to)?;
        self.file(&from.join(FORMAT), &to.join(FORMAT))?;
        sync_directory(&to)?;
        sync_directory(&self.to)
    }

    fn file(&mut self, from: &Path, to: &Path) -> Result<(), BackupError> {
        let source = File::open(from).map_err(failed("opening", from))?;
        self.report.copied_bytes += write_file(source, from, to)?;
        Ok(())
    }
}

/// Copies a file. It gets its name only when its bytes are durable.
fn write_file(mut source: File, from: &Path, to: &Path) -> Result<u64, BackupError> {
    let partial = to.with_extension("partial");
    remove(&partial)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial)
        .map_err(failed("creating", &partial))?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut copied = 0;
    loop {
        let count = match source.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other.map_err(failed("reading", from))?,
        };
        if count == 0 {
            break;
        }
        file.write_all(&piece[..count]).map_err(failed("writing", &partial))?;
        copied += count as u64;
    }
    file.sync_all().map_err(failed("syncing", &partial))?;
    holdfast_durable::rename(&partial, to).map_err(failed("naming", to))?;
    Ok(copied)
}

fn header(file: &File) -> io::Result<Vec<u8>> {
    let mut header = Vec::new();
    file.take(holdfast_log::SEGMENT_HEADER_BYTES).read_to_end(&mut header)?;
    // The caller reads the file from its beginning.
    io::Seek::rewind(&mut &*file)?;
    Ok(header)
}

/// Whether the file at `path` is a copy of the segment: same length, number and salt.
fn is_same(path: &Path, length: u64, wanted: &[u8]) -> Result<bool, BackupError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        other => other.map_err(failed("opening", path))?,
    };
    let found = file.metadata().map_err(failed("measuring", path))?.len();
    Ok(found == length && header(&file).map_err(failed("reading", path))? == wanted)
}

/// The latest complete backup in a directory, by name.
fn latest(to: &Path) -> Result<Option<PathBuf>, BackupError> {
    let mut whole: Vec<PathBuf> = names(to)?
        .into_iter()
        .filter(|name| name != UNFINISHED)
        .map(|name| to.join(name))
        .filter(|path| path.join("store").join(FORMAT).is_file())
        .collect();
    whole.sort();
    Ok(whole.pop())
}

fn names(directory: &Path) -> Result<Vec<String>, BackupError> {
    let listed = fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = listed.map_err(failed("listing", directory))?;
    Ok(entries.into_iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

fn make_directory(path: &Path) -> Result<(), BackupError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("creating", path))
}

fn sync_directory(path: &Path) -> Result<(), BackupError> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(failed("syncing", path))
}

fn remove(path: &Path) -> Result<(), BackupError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("removing", path)(error)),
        _ => Ok(()),
    }
}

fn lock(to: &Path) -> Result<FileLock, BackupError> {
    let path = to.join(LOCK);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed("opening", &path))?;
    FileLock::take(file).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => BackupError::InUse(to.to_owned()),
        _ => failed("locking", &path)(error),
    })
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError + use<> {
    let path = path.to_owned();
    move |error| BackupError::Io { action, path, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Disk {
        folder: tempfile::TempDir,
    }

    impl Disk {
        fn new() -> Disk {
            let disk = Disk { folder: tempfile::tempdir().unwrap() };
            make_directory(&disk.path("data/store")).unwrap();
            make_directory(&disk.path("to/unfinished/store")).unwrap();
            fs::write(disk.path("data/store/FORMAT"), "a format").unwrap();
            fs::write(disk.path("data/store/tree-1"), "nodes").unwrap();
            fs::write(disk.path("data/store/index.redb"), "an index").unwrap();
            fs::write(disk.path("data/server-key"), "a key").unwrap();
            disk
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// Adds a segment of 100 bytes with a salt of its own.
        fn segment(&self, number: u32, salt: u8) -> (u32, u64) {
            let bytes = [&[salt; 64][..], &[salt; 36]].concat();
            fs::write(self.path("data/store").join(holdfast_log::segment_name(number)), bytes).unwrap();
            (number, 100)
        }

        fn collect(&self, number: u32) {
            fs::remove_file(self.path("data/store").join(holdfast_log::segment_name(number))).unwrap();
        }

        /// Copies by these moments. If the last one is complete, names the copy.
        fn copy(&self, moments: &[&[(u32, u64)]], name: &str) -> (bool, BackupReport) {
            let to = self.path("to/unfinished");
            make_directory(&to.join("store")).unwrap();
            let (from, earlier) = (self.path("data"), latest(&self.path("to")).unwrap());
            let report = BackupReport::default();
            let mut copy = BackupCopier { from, to: to.clone(), earlier, report, progress: &mut |_, _| {} };
            let whole = moments.iter().map(|moment| copy.segments(moment).unwrap()).last().unwrap();
            if whole {
                copy.rest().unwrap();
                fs::rename(&to, self.path("to").join(name)).unwrap();
            }
            (whole, copy.report)
        }

        fn names(&self, name: &str) -> Vec<String> {
            let mut names = names(&self.path(name)).unwrap();
            names.sort();
            names
        }
    }

    /// Proves: when a collection removes a segment before it was copied, the copy moves on to a later moment,
    /// contains exactly that, and copies nothing twice.
    #[test]
    fn a_vanished_segment_means_a_later_moment() {
        let disk = Disk::new();
        let (one, two, three) = (disk.segment(1, 1), disk.segment(2, 2), disk.segment(3, 3));
        disk.collect(2);
        let (whole, report) = disk.copy(&[&[one, two, three]], "unused");
        assert!(!whole);
        assert_eq!(report.copied_segments, 2);
        assert_eq!(latest(&disk.path("to")).unwrap(), None);
        disk.collect(1);
        let four = disk.segment(4, 4);
        let (whole, report) = disk.copy(&[&[three, four]], "a");
        assert!(whole);
        assert_eq!((report.copied_segments, report.shared_segments), (1, 0));
        assert_eq!(
            disk.names("to/a/store"),
            ["FORMAT", "segment-0000000003.log", "segment-0000000004.log", "tree-1"]
        );
        assert_eq!(disk.names("to/a"), ["server-key", "store"]);
        assert_eq!(latest(&disk.path("to")).unwrap(), Some(disk.path("to/a")));
    }

    /// Proves: a segment is shared with an earlier backup only if it is the same one; a number used again
    /// (with another salt) is another segment.
    #[test]
    fn only_the_same_segments_are_shared() {
        let disk = Disk::new();
        let (one, two) = (disk.segment(1, 1), disk.segment(2, 2));
        disk.copy(&[&[one, two]], "a");
        disk.segment(2, 9);
        let three = disk.segment(3, 3);
        let (_, report) = disk.copy(&[&[one, two, three]], "b");
        assert_eq!((report.copied_segments, report.shared_segments), (2, 1));
        assert_eq!(fs::read(disk.path("to/a/store/segment-0000000002.log")).unwrap()[0], 2);
        assert_eq!(fs::read(disk.path("to/b/store/segment-0000000002.log")).unwrap()[0], 9);
    }

    /// Proves: a backup that was interrupted in the middle of a file is no backup, cannot be served because
    /// it has no `FORMAT`, and the next backup does not take the incomplete file for a complete one.
    #[test]
    fn an_unfinished_backup_does_not_count_as_whole() {
        let disk = Disk::new();
        let one = disk.segment(1, 1);
        fs::write(disk.path("to/unfinished/store/segment-0000000001.partial"), [1; 70]).unwrap();
        fs::write(disk.path("to/unfinished/store/segment-0000000001.log"), [1; 99]).unwrap();
        assert_eq!(latest(&disk.path("to")).unwrap(), None);
        assert!(!disk.path("to/unfinished/store/FORMAT").exists());
        let (whole, report) = disk.copy(&[&[one]], "a");
        assert!(whole);
        assert_eq!(report.copied_segments, 1);
        assert_eq!(disk.names("to/a/store"), ["FORMAT", "segment-0000000001.log", "tree-1"]);
        assert_eq!(fs::read(disk.path("to/a/store/segment-0000000001.log")).unwrap(), [1; 100]);
    }

    /// Proves: a segment that is shorter than the server says is an error.
    #[test]
    fn a_short_segment_is_an_error() {
        let disk = Disk::new();
        let (number, _) = disk.segment(1, 1);
        let mut copy = BackupCopier {
            from: disk.path("data"),
            to: disk.path("to/unfinished"),
            earlier: None,
            report: BackupReport::default(),
            progress: &mut |_, _| {},
        };
        let result = copy.segments(&[(number, 101)]);
        assert!(matches!(result, Err(BackupError::Length { found: 100, expected: 101, .. })), "{result:?}");
    }
}
