//! A directory of a local file system.

use crate::FileLock;
use crate::storage::{Storage, StorageFile, StorageLock, SyncSite};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// [`Storage`] in a directory of the local file system, readable by its owner only.
pub struct LocalStorage {
    path: PathBuf,
    directory: File,
}

impl LocalStorage {
    /// Opens `path`, creating it (and syncing its parent) if it is not there.
    ///
    /// # Errors
    /// The directory cannot be created or opened.
    pub fn open(path: impl AsRef<Path>) -> io::Result<LocalStorage> {
        let path = path.as_ref().to_owned();
        if !path.is_dir() {
            use std::os::unix::fs::DirBuilderExt;
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
            if let Some(parent) = path.canonicalize()?.parent() {
                File::open(parent)?.sync_all()?;
            }
        }
        let directory = File::open(&path)?;
        Ok(LocalStorage { path, directory })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> io::Result<PathBuf> {
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("bad file name {name:?}")));
        }
        Ok(self.path.join(name))
    }
}

impl Storage for LocalStorage {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let path = self.file(name)?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Arc::new(LocalFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.file(name)?)?;
        Ok(Arc::new(LocalFile(file)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.file(name)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.file(from)?, self.file(to)?)
    }

    fn sync_dir(&self, _site: SyncSite) -> io::Result<()> {
        self.directory.sync_all()
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn StorageLock>> {
        let path = self.file(name)?;
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        Ok(Box::new(FileLock::take_after_ending(file)?))
    }

    fn entropy(&self) -> io::Result<[u8; 16]> {
        let mut bytes = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn free_bytes(&self) -> Option<u64> {
        let status = rustix::fs::fstatvfs(&self.directory).ok()?;
        Some(status.f_bavail.saturating_mul(status.f_frsize))
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }
}

/// Keeps the file, and with it the `flock`, open.
impl StorageLock for FileLock {}

struct LocalFile(File);

impl StorageFile for LocalFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.0.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        use rustix::io::Errno;
        match rustix::fs::fallocate(&self.0, rustix::fs::FallocateFlags::KEEP_SIZE, 0, length) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&self, _site: SyncSite) -> io::Result<()> {
        self.0.sync_data()
    }

    fn drop_cache(&self) {
        let _ = rustix::fs::fadvise(&self.0, 0, None, rustix::fs::Advice::DontNeed);
    }
}
