//! Imports into a file system that is not mounted, through an engine in this process.

use super::source::{SourceFile, modified_ns};
use super::target::{Put, Target, There, Trouble};
use holdfast_client::files::{
    Attributes, Caller, Ino, OpenFlags, OpenReply, RenameFlags, SetAttributes, SetXattr, TimeToSet,
    WriteSource,
};
use holdfast_client::{FileSystem, FsError};
use holdfast_content::InodeKind;
use rustix::process::{getegid, geteuid};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes read and written at once.
const PIECE_BYTES: usize = 1 << 20;

static THREADS: AtomicU32 = AtomicU32::new(1);

thread_local! {
    /// A number for each thread, under which its calls are made; a thread makes one call after the other.
    static THREAD: Cell<u32> = Cell::new(THREADS.fetch_add(1, Relaxed));
}

/// A directory in the file system to import into.
pub struct EngineTarget {
    files: Arc<FileSystem>,
    path: Vec<Vec<u8>>,
    temporary: AtomicU64,
}

impl EngineTarget {
    /// The directory `path` of a file system.
    pub fn new(files: Arc<FileSystem>, path: &[u8]) -> EngineTarget {
        let path = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        EngineTarget { files, path: path.map(<[u8]>::to_vec).collect(), temporary: AtomicU64::new(0) }
    }

    fn write(&self, made: &Attributes, opened: OpenReply, source: &SourceFile) -> Result<Put, FsError> {
        let caller = caller();
        let mut piece = vec![0; PIECE_BYTES.min(source.metadata.len() as usize)];
        let read = |error: std::io::Error| unread(&error);
        for range in source.data().map_err(read)? {
            let mut at = range.start;
            while at < range.end {
                let count = piece.len().min((range.end - at) as usize);
                match source.file.read_at(&mut piece[..count], at).map_err(read)? {
                    0 => return Ok(Put::Changed),
                    count => {
                        self.files.write(opened.handle, at, &piece[..count], WriteSource::Call)?;
                        at += count as u64;
                    }
                }
            }
        }
        let size = SetAttributes { size: Some(source.metadata.len()), ..SetAttributes::default() };
        if source.metadata.len() > 0 {
            self.files.setattr(&caller, made.ino, size, Some(opened.handle))?;
        }
        for (name, value) in &source.xattrs {
            self.files.setxattr(&caller, made.ino, name, value, SetXattr::Any)?;
        }
        self.files.setattr(&caller, made.ino, attributes_of(&source.metadata), Some(opened.handle))?;
        Ok(if source.is_unchanged().map_err(read)? { Put::Done } else { Put::Changed })
    }

    fn put(&self, directory: Ino, name: &[u8], source: &SourceFile, replace: bool) -> Result<Put, FsError> {
        let caller = caller();
        let mode = source.metadata.mode() & 0o7777;
        let (made, opened) = self.files.tmpfile(&caller, directory, mode, OpenFlags::READ_WRITE)?;
        let put = self.write(&made, opened, source).and_then(|put| {
            if put == Put::Changed {
                return Ok(put);
            }
            match self.files.link(&caller, made.ino, directory, name) {
                Err(FsError::Exists) if replace => {
                    let number = self.temporary.fetch_add(1, Relaxed);
                    let temporary = format!(".holdfast-import-{}-{number}", std::process::id());
                    self.files.link(&caller, made.ino, directory, temporary.as_bytes())?;
                    let flags = RenameFlags::Replace;
                    self.files
                        .rename(&caller, directory, temporary.as_bytes(), directory, name, flags)
                        .inspect_err(|_| {
                            let _ = self.files.unlink(&caller, directory, temporary.as_bytes());
                        })?;
                    self.files.forget(made.ino, 1);
                }
                other => drop(other?),
            }
            self.files.forget(made.ino, 1);
            Ok(put)
        });
        self.files.release(opened.handle);
        self.files.forget(made.ino, 1);
        put
    }

    /// Looks a name up, calls `use_it`, and releases the inode afterwards.
    fn with<T>(
        &self,
        directory: Ino,
        name: &[u8],
        use_it: impl FnOnce(&Attributes) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let found = self.files.lookup(&caller(), directory, name)?;
        let used = use_it(&found);
        self.files.forget(found.ino, 1);
        used
    }

    fn names(&self, directory: Ino) -> Result<BTreeMap<Vec<u8>, There>, FsError> {
        let caller = caller();
        let handle = self.files.opendir(&caller, directory)?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        let listed = self.files.readdir(&caller, handle, 0, &mut |item| {
            if item.name != b"." && item.name != b".." {
                names.push(item.name.to_vec());
            }
            true
        });
        let mut found = BTreeMap::new();
        let looked = listed.and_then(|()| {
            names.into_iter().try_for_each(|name| match self.with(directory, &name, |found| Ok(*found)) {
                Ok(attributes) => {
                    found.insert(name, there(&attributes));
                    Ok(())
                }
                // It was removed meanwhile.
                Err(FsError::NotFound) => Ok(()),
                Err(error) => Err(error),
            })
        });
        self.files.releasedir(handle);
        looked.map(|()| found)
    }

    fn compare(&self, found: &Attributes, source: &SourceFile) -> Result<bool, FsError> {
        let caller = caller();
        if found.size != source.metadata.len() {
            return Ok(false);
        }
        let opened = self.files.open(&caller, found.ino, OpenFlags::READ)?;
        let mut ours = vec![0; PIECE_BYTES];
        let mut at = 0;
        let same = loop {
            let theirs = match self.files.read(opened.handle, at, PIECE_BYTES) {
                Ok(bytes) if bytes.is_empty() => break Ok(true),
                Ok(bytes) => bytes,
                Err(error) => break Err(error),
            };
            match source.file.read_exact_at(&mut ours[..theirs.len()], at) {
                Ok(()) if ours[..theirs.len()] == theirs[..] => at += theirs.len() as u64,
                Ok(()) => break Ok(false),
                Err(error) => break Err(unread(&error)),
            }
        };
        self.files.release(opened.handle);
        same
    }
}

impl Target for EngineTarget {
    type Directory = Ino;

    fn root(&self, make: bool) -> Result<Option<Ino>, Trouble> {
        let mut at = Ino::ROOT;
        for name in &self.path {
            let found = match self.files.lookup(&caller(), at, name) {
                Err(FsError::NotFound) if make => self.files.mkdir(&caller(), at, name, 0o755),
                Err(FsError::NotFound) => return Ok(None),
                other => other,
            };
            let shown = || String::from_utf8_lossy(name).into_owned();
            let found = found.map_err(|error| Trouble::Engine(error).named(shown()))?;
            if found.kind != InodeKind::Directory {
                return Err(Trouble::NotADirectory.named(shown()));
            }
            at = found.ino;
        }
        Ok(Some(at))
    }

    fn list(&self, directory: &Ino) -> Result<BTreeMap<Vec<u8>, There>, Trouble> {
        self.names(*directory).map_err(Trouble::Engine)
    }

    fn enter(&self, _: &Ino, _: &[u8], there: &There) -> Ino {
        Ino(there.ino)
    }

    fn make_directory(&self, directory: &Ino, name: &[u8]) -> Result<Ino, Trouble> {
        self.files.mkdir(&caller(), *directory, name, 0o700).map(|made| made.ino).map_err(Trouble::Engine)
    }

    fn finish_directory(
        &self,
        directory: &Ino,
        metadata: &Metadata,
        xattrs: &BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<(), Trouble> {
        for (name, value) in xattrs {
            self.files
                .setxattr(&caller(), *directory, name, value, SetXattr::Any)
                .map_err(Trouble::Engine)?;
        }
        let set = attributes_of(metadata);
        self.files.setattr(&caller(), *directory, set, None).map(drop).map_err(Trouble::Engine)
    }

    fn put_file(
        &self,
        directory: &Ino,
        name: &[u8],
        source: &SourceFile,
        replace: bool,
    ) -> Result<Put, Trouble> {
        self.put(*directory, name, source, replace).map_err(Trouble::Engine)
    }

    fn put_symlink(
        &self,
        directory: &Ino,
        name: &[u8],
        target: &[u8],
        metadata: &Metadata,
    ) -> Result<(), Trouble> {
        let made = self.files.symlink(&caller(), *directory, name, target).map_err(Trouble::Engine)?;
        let set = SetAttributes { mode: None, ..attributes_of(metadata) };
        let done = self.files.setattr(&caller(), made.ino, set, None).map(drop).map_err(Trouble::Engine);
        self.files.forget(made.ino, 1);
        done
    }

    fn put_special(
        &self,
        directory: &Ino,
        name: &[u8],
        kind: InodeKind,
        metadata: &Metadata,
    ) -> Result<(), Trouble> {
        let device = u32::try_from(metadata.rdev()).map_err(|_| Trouble::DeviceNumber)?;
        let mode = metadata.mode() & 0o7777;
        let made =
            self.files.mknod(&caller(), *directory, name, kind, mode, device).map_err(Trouble::Engine)?;
        let done = self.files.setattr(&caller(), made.ino, attributes_of(metadata), None);
        self.files.forget(made.ino, 1);
        done.map(drop).map_err(Trouble::Engine)
    }

    fn link(&self, from: (&Ino, &[u8]), to: (&Ino, &[u8])) -> Result<(), Trouble> {
        let linked = self.with(*from.0, from.1, |found| {
            self.files.link(&caller(), found.ino, *to.0, to.1)?;
            self.files.forget(found.ino, 1);
            Ok(())
        });
        linked.map_err(Trouble::Engine)
    }

    fn set_mode(&self, directory: &Ino, name: &[u8], mode: u32) -> Result<(), Trouble> {
        let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        let set = |found: &Attributes| self.files.setattr(&caller(), found.ino, set, None).map(drop);
        self.with(*directory, name, set).map_err(Trouble::Engine)
    }

    fn remove(&self, directory: &Ino, name: &[u8], kind: InodeKind) -> Result<(), Trouble> {
        let removed = match kind {
            InodeKind::Directory => self.files.rmdir(&caller(), *directory, name),
            _ => self.files.unlink(&caller(), *directory, name),
        };
        removed.map_err(Trouble::Engine)
    }

    fn link_target(&self, directory: &Ino, name: &[u8]) -> Result<Vec<u8>, Trouble> {
        self.with(*directory, name, |found| self.files.readlink(&caller(), found.ino))
            .map_err(Trouble::Engine)
    }

    fn has_bytes_of(&self, directory: &Ino, name: &[u8], source: &SourceFile) -> Result<bool, Trouble> {
        self.with(*directory, name, |found| self.compare(found, source)).map_err(Trouble::Engine)
    }

    fn settle(&self) -> Result<(), Trouble> {
        let handle = self.files.opendir(&caller(), Ino::ROOT).map_err(Trouble::Engine)?;
        let settled = self.files.fsyncdir(handle).map_err(Trouble::Engine);
        self.files.releasedir(handle);
        settled
    }
}

fn caller() -> Caller {
    Caller { uid: geteuid().as_raw(), gid: getegid().as_raw(), thread: THREAD.get() }
}

fn unread(error: &std::io::Error) -> FsError {
    FsError::Local { kind: error.kind(), text: format!("it cannot be read: {error}") }
}

fn there(attributes: &Attributes) -> There {
    There {
        kind: attributes.kind,
        mode: attributes.mode,
        size: attributes.size,
        modified_ns: attributes.modified_ns,
        device_number: attributes.device_number,
        ino: attributes.ino.0,
    }
}

fn attributes_of(metadata: &Metadata) -> SetAttributes {
    SetAttributes {
        mode: Some(metadata.mode() & 0o7777),
        modified: Some(TimeToSet::At(modified_ns(metadata))),
        ..SetAttributes::default()
    }
}
