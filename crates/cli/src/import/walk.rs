//! Walks the two trees side by side, with several threads, to find what to create, replace and remove.
//!
//! Tasks are taken from a stack, so that a directory that was begun is finished before others are begun, and
//! few tasks wait.

use super::source::{self, SourceFile, kind_of, modified_ns};
use super::target::{Put, Target, There, Trouble};
use holdfast_content::InodeKind;
use parking_lot::{Condvar, Mutex};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most names that are listed of each sort; further ones are only counted.
const TOLD_MAX: usize = 1000;

/// The options of an import.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Whether files that differ are replaced.
    pub replace: bool,
    /// Whether names that are not in the source are removed.
    pub delete: bool,
    /// Whether contents are compared byte by byte.
    pub checksum: bool,
    /// Whether nothing is changed.
    pub dry_run: bool,
    /// Number of threads.
    pub parallel: usize,
}

/// A name that could not be imported.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Failed {
    /// Its path below the directory.
    pub path: String,
    /// Why, in words.
    pub why: String,
}

/// What was done, or would be done in a dry run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Report {
    /// Files imported, including replaced ones.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Directories made.
    pub directories: u64,
    /// Symbolic links made.
    pub symlinks: u64,
    /// Further names of files made.
    pub links: u64,
    /// Named pipes, sockets and devices made.
    pub special: u64,
    /// How many of all these replaced something that differed.
    pub replaced: u64,
    /// Names that existed and were the same.
    pub unchanged: u64,
    /// Names that were removed.
    pub removed: u64,
    /// Names that existed, differ, and were left as they are.
    pub refused: u64,
    /// The paths of those, at most a thousand.
    pub refused_paths: Vec<String>,
    /// Files that changed while they were read, and were left out.
    pub changed: u64,
    /// The paths of those, at most a thousand.
    pub changed_paths: Vec<String>,
    /// Number of names that could not be imported.
    pub failed: u64,
    /// Those names with the reasons, at most a thousand.
    pub failures: Vec<Failed>,
}

/// A directory in both trees. In a dry run, the target may not exist.
struct Pair<D> {
    source: PathBuf,
    target: Option<D>,
    /// The path below the root of either tree.
    path: Vec<u8>,
    metadata: Metadata,
    /// What the target had there before.
    was_there: Option<There>,
}

enum Task<D> {
    /// Create a directory within another, then walk it.
    Directory { parent: Option<D>, name: Vec<u8>, pair: Pair<D> },
    /// Import a name that is not a directory.
    Entry {
        parent: Option<D>,
        source: PathBuf,
        path: Vec<u8>,
        name: Vec<u8>,
        metadata: Metadata,
        there: Option<There>,
    },
    /// Remove a name that is not in the source.
    Remove { parent: D, path: Vec<u8>, name: Vec<u8>, there: There },
}

struct Later<D> {
    target: D,
    source: PathBuf,
    metadata: Metadata,
    path: Vec<u8>,
    /// Whether its attributes differed.
    differs: bool,
}

/// Device and inode number of a file in the source.
type FileId = (u64, u64);

/// The directory and name of a file in the target.
type EntryPosition<D> = Option<(D, Vec<u8>)>;

struct Link<D> {
    parent: D,
    name: Vec<u8>,
    path: Vec<u8>,
    file: FileId,
    there: Option<There>,
}

struct Work<D> {
    stack: Vec<Task<D>>,
    busy: usize,
}

/// Imports a tree.
pub struct Walk<'a, T: Target> {
    target: &'a T,
    wishes: Wishes,
    progress: &'a (dyn Fn(&Report) + Sync),
    work: Mutex<Work<T::Directory>>,
    more: Condvar,
    report: Mutex<Report>,
    /// Directories whose times are set at the end, when nothing is added to them any more.
    directories: Mutex<Vec<Later<T::Directory>>>,
    /// For files with several names: where the first name is, or `None` until it is there.
    places: Mutex<HashMap<FileId, EntryPosition<T::Directory>>>,
    links: Mutex<Vec<Link<T::Directory>>>,
    /// Paths of directories in which something was created or removed.
    touched: Mutex<HashSet<Vec<u8>>>,
}

impl<'a, T: Target> Walk<'a, T> {
    /// Imports the content of `source` into the target's root.
    ///
    /// # Errors
    /// The error, in words, if a root cannot be used. All other errors are in the report.
    pub fn run(
        target: &'a T,
        source: &Path,
        wishes: Wishes,
        progress: &'a (dyn Fn(&Report) + Sync),
    ) -> Result<Report, Trouble> {
        let metadata = fs::metadata(source)?;
        let root = target.root(!wishes.dry_run)?;
        let walk = Walk {
            target,
            wishes,
            progress,
            work: Mutex::new(Work { stack: Vec::new(), busy: 0 }),
            more: Condvar::new(),
            report: Mutex::default(),
            directories: Mutex::default(),
            places: Mutex::default(),
            links: Mutex::default(),
            touched: Mutex::default(),
        };
        walk.descend(&Pair {
            source: source.to_owned(),
            target: root,
            path: Vec::new(),
            metadata,
            // The root belongs to the destination, and its attributes stay as they are.
            was_there: None,
        });
        walk.work_off();
        let links = std::mem::take(&mut *walk.links.lock());
        walk.in_parallel(&links, |link| walk.link(link));
        // The deepest come first, because each change in a directory changes its time.
        let mut directories = std::mem::take(&mut *walk.directories.lock());
        let touched = std::mem::take(&mut *walk.touched.lock());
        directories.retain(|later| later.differs || touched.contains(&later.path));
        directories
            .sort_by_key(|later| std::cmp::Reverse(later.path.iter().filter(|byte| **byte == b'/').count()));
        walk.in_parallel(&directories, |later| walk.finish(later));
        if !wishes.dry_run {
            target.settle()?;
        }
        Ok(walk.report.into_inner())
    }

    fn in_parallel<I: Sync>(&self, items: &[I], each: impl Fn(&I) + Sync) {
        let next = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.wishes.parallel.min(items.len()) {
                scope.spawn(|| {
                    while let Some(item) = items.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                    {
                        each(item);
                        (self.progress)(&self.report.lock());
                    }
                });
            }
        });
    }

    fn work_off(&self) {
        std::thread::scope(|scope| {
            for _ in 0..self.wishes.parallel {
                scope.spawn(|| {
                    while let Some(task) = self.take() {
                        self.carry_out(task);
                        (self.progress)(&self.report.lock());
                        let mut work = self.work.lock();
                        work.busy -= 1;
                        if work.busy == 0 && work.stack.is_empty() {
                            self.more.notify_all();
                        }
                    }
                });
            }
        });
    }

    fn take(&self) -> Option<Task<T::Directory>> {
        let mut work = self.work.lock();
        loop {
            if let Some(task) = work.stack.pop() {
                work.busy += 1;
                return Some(task);
            }
            if work.busy == 0 {
                return None;
            }
            self.more.wait(&mut work);
        }
    }

    fn add(&self, tasks: Vec<Task<T::Directory>>) {
        self.work.lock().stack.extend(tasks);
        self.more.notify_all();
    }

    /// Notes that something was created or removed in the directory that contains `path`.
    fn touch(&self, path: &[u8]) {
        let above = path.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |at| &path[..at]);
        let mut touched = self.touched.lock();
        if !touched.contains(above) {
            touched.insert(above.to_vec());
        }
    }

    fn fail(&self, path: &[u8], why: impl std::fmt::Display) {
        let mut report = self.report.lock();
        report.failed += 1;
        if report.failures.len() < TOLD_MAX {
            report.failures.push(Failed { path: shown(path), why: why.to_string() });
        }
    }

    fn refuse(&self, path: &[u8]) {
        let mut report = self.report.lock();
        report.refused += 1;
        if report.refused_paths.len() < TOLD_MAX {
            report.refused_paths.push(shown(path));
        }
    }

    fn carry_out(&self, task: Task<T::Directory>) {
        match task {
            Task::Directory { parent, name, mut pair } => {
                if let (Some(parent), None) = (&parent, &pair.was_there)
                    && !self.wishes.dry_run
                {
                    match self.target.make_directory(parent, &name) {
                        Ok(made) => {
                            pair.target = Some(made);
                            self.touch(&pair.path);
                        }
                        Err(error) => return self.fail(&pair.path, error),
                    }
                }
                if pair.was_there.is_none() {
                    self.report.lock().directories += 1;
                }
                self.descend(&pair);
                let differs = pair.was_there.as_ref().is_none_or(|there| {
                    there.mode != pair.metadata.mode() & 0o7777
                        || there.modified_ns != modified_ns(&pair.metadata)
                });
                if let Some(target) = pair.target
                    && !self.wishes.dry_run
                {
                    let Pair { source, metadata, path, .. } = pair;
                    self.directories.lock().push(Later { target, source, metadata, path, differs });
                }
            }
            Task::Entry { parent, source, path, name, metadata, there } => {
                if let Err(error) = self.enter(parent.as_ref(), &source, &path, &name, &metadata, there) {
                    self.fail(&path, error);
                }
            }
            Task::Remove { parent, path, name, there } => {
                if let Err(error) = self.remove(&parent, &path, &name, &there) {
                    self.fail(&path, error);
                }
            }
        }
    }

    /// Compares a directory with the source's, and queues tasks for its names.
    fn descend(&self, pair: &Pair<T::Directory>) {
        let listed = source::list(&pair.source).map_err(Trouble::Local);
        let here = match listed {
            Ok(here) => here,
            // Nothing is removed from it either, because the source may have it.
            Err(error) => return self.fail(&pair.path, error),
        };
        let is_new = pair.was_there.is_none() && !pair.path.is_empty();
        let there = match &pair.target {
            Some(target) if !is_new => self.target.list(target),
            _ => Ok(BTreeMap::new()),
        };
        let mut there = match there {
            Ok(there) => there,
            Err(error) => return self.fail(&pair.path, error),
        };
        let mut tasks = Vec::new();
        for (name, metadata) in here {
            let path = match &pair.path[..] {
                [] => name.clone(),
                above => [above, b"/", &name].concat(),
            };
            let source = pair.source.join(OsStr::from_bytes(&name));
            let mut there = there.remove(&name);
            let is_directory = metadata.is_dir();
            // One side has a directory, and the other has not.
            if let (Some(other), Some(target)) = (&there, &pair.target)
                && (other.kind == InodeKind::Directory) != is_directory
            {
                if !self.wishes.replace {
                    self.refuse(&path);
                    continue;
                }
                if let Err(error) = self.remove(target, &path, &name, other) {
                    self.fail(&path, error);
                    continue;
                }
                self.report.lock().replaced += 1;
                there = None;
            }
            let parent = pair.target.clone();
            tasks.push(match is_directory {
                true => {
                    let entered = match (&parent, &there) {
                        (Some(parent), Some(there)) => Some(self.target.enter(parent, &name, there)),
                        _ => None,
                    };
                    let pair = Pair { source, target: entered, path, metadata, was_there: there };
                    Task::Directory { parent, name, pair }
                }
                false => Task::Entry { parent, source, path, name, metadata, there },
            });
        }
        if let Some(target) = &pair.target
            && self.wishes.delete
        {
            tasks.extend(there.into_iter().map(|(name, there)| {
                let path = [&pair.path[..], b"/", &name].concat();
                Task::Remove { parent: target.clone(), path, name, there }
            }));
        }
        self.add(tasks);
    }

    /// Imports a name that is not a directory.
    fn enter(
        &self,
        parent: Option<&T::Directory>,
        source: &Path,
        path: &[u8],
        name: &[u8],
        metadata: &Metadata,
        there: Option<There>,
    ) -> Result<(), Trouble> {
        let kind = kind_of(metadata);
        let file = (metadata.dev(), metadata.ino());
        if kind == InodeKind::File && metadata.nlink() > 1 {
            let mut places = self.places.lock();
            if places.contains_key(&file) {
                // A further name of a file that is imported under another: it is created once that one is
                // there.
                if let Some(parent) = parent {
                    let link = Link {
                        parent: parent.clone(),
                        name: name.to_vec(),
                        path: path.to_vec(),
                        file,
                        there,
                    };
                    self.links.lock().push(link);
                } else {
                    self.report.lock().links += 1;
                }
                return Ok(());
            }
            places.insert(file, None);
        }
        let is_there = there.is_some();
        if let (Some(there), Some(parent)) = (&there, parent)
            && self.is_same(parent, source, name, metadata, kind, there)?
        {
            let mode = metadata.mode() & 0o7777;
            if kind != InodeKind::Symlink && there.mode != mode && !self.wishes.dry_run {
                self.target.set_mode(parent, name, mode)?;
            }
            self.report.lock().unchanged += 1;
            self.placed(file, parent, name);
            return Ok(());
        }
        if is_there && !self.wishes.replace {
            self.refuse(path);
            return Ok(());
        }
        if let (Some(parent), false) = (parent, self.wishes.dry_run) {
            self.touch(path);
            // A file replaces another file in one step.
            if let Some(there) = &there
                && !(kind == InodeKind::File && there.kind == InodeKind::File)
            {
                self.target.remove(parent, name, there.kind)?;
            }
            match kind {
                InodeKind::File => {
                    let source = SourceFile::open(source)?;
                    if self.target.put_file(parent, name, &source, is_there)? == Put::Changed {
                        let mut report = self.report.lock();
                        report.changed += 1;
                        if report.changed_paths.len() < TOLD_MAX {
                            report.changed_paths.push(shown(path));
                        }
                        return Ok(());
                    }
                    self.placed(file, parent, name);
                }
                InodeKind::Symlink => {
                    let target = link_target(source)?;
                    self.target.put_symlink(parent, name, &target, metadata)?;
                }
                kind => self.target.put_special(parent, name, kind, metadata)?,
            }
        }
        let mut report = self.report.lock();
        report.replaced += u64::from(is_there);
        match kind {
            InodeKind::File => {
                report.files += 1;
                report.bytes += metadata.len();
            }
            InodeKind::Symlink => report.symlinks += 1,
            _ => report.special += 1,
        }
        Ok(())
    }

    fn placed(&self, file: FileId, parent: &T::Directory, name: &[u8]) {
        if let Some(place) = self.places.lock().get_mut(&file) {
            *place = Some((parent.clone(), name.to_vec()));
        }
    }

    fn is_same(
        &self,
        parent: &T::Directory,
        source: &Path,
        name: &[u8],
        metadata: &Metadata,
        kind: InodeKind,
        there: &There,
    ) -> Result<bool, Trouble> {
        if there.kind != kind {
            return Ok(false);
        }
        match kind {
            InodeKind::File if self.wishes.checksum => {
                let source = SourceFile::open(source)?;
                self.target.has_bytes_of(parent, name, &source)
            }
            InodeKind::File => Ok(there.size == metadata.len() && there.modified_ns == modified_ns(metadata)),
            InodeKind::Symlink => Ok(self.target.link_target(parent, name)? == link_target(source)?),
            InodeKind::BlockDevice | InodeKind::CharDevice => {
                Ok(u64::from(there.device_number) == metadata.rdev())
            }
            _ => Ok(true),
        }
    }

    fn link(&self, link: &Link<T::Directory>) {
        let place = self.places.lock().get(&link.file).cloned().flatten();
        let Some((directory, name)) = place else {
            return match self.wishes.dry_run {
                true => self.report.lock().links += 1,
                // The failure of the file itself is in the report.
                false => self.fail(&link.path, "the file that this is another name of was not brought in"),
            };
        };
        let linked = || -> Result<(), Trouble> {
            if let Some(there) = &link.there {
                let other = self.target.list(&directory)?.get(&name).map(|other| other.ino);
                if there.kind == InodeKind::File && other == Some(there.ino) {
                    self.report.lock().unchanged += 1;
                    return Ok(());
                }
                if !self.wishes.replace {
                    self.refuse(&link.path);
                    return Ok(());
                }
                if !self.wishes.dry_run {
                    self.target.remove(&link.parent, &link.name, there.kind)?;
                }
                self.report.lock().replaced += 1;
            }
            if !self.wishes.dry_run {
                self.touch(&link.path);
                self.target.link((&directory, &name), (&link.parent, &link.name))?;
            }
            self.report.lock().links += 1;
            Ok(())
        };
        if let Err(error) = linked() {
            self.fail(&link.path, error);
        }
    }

    fn finish(&self, later: &Later<T::Directory>) {
        let finished = source::open(&later.source)
            .and_then(|open| source::xattrs(&open))
            .map_err(Trouble::Local)
            .and_then(|xattrs| self.target.finish_directory(&later.target, &later.metadata, &xattrs));
        if let Err(error) = finished {
            self.fail(&later.path, error);
        }
    }

    /// Removes a name and everything below it.
    fn remove(&self, parent: &T::Directory, path: &[u8], name: &[u8], there: &There) -> Result<(), Trouble> {
        if there.kind == InodeKind::Directory {
            let directory = self.target.enter(parent, name, there);
            for (name, there) in self.target.list(&directory)? {
                let path = [path, b"/", &name].concat();
                self.remove(&directory, &path, &name, &there)
                    .map_err(|trouble| trouble.named(shown(&name)))?;
            }
        }
        if !self.wishes.dry_run {
            self.touch(path);
            self.target.remove(parent, name, there.kind)?;
        }
        self.report.lock().removed += 1;
        Ok(())
    }
}

fn link_target(path: &Path) -> Result<Vec<u8>, Trouble> {
    fs::read_link(path).map(|target| target.into_os_string().into_vec()).map_err(Trouble::Local)
}

fn shown(path: &[u8]) -> String {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    if path.is_empty() { ".".to_owned() } else { String::from_utf8_lossy(path).into_owned() }
}
