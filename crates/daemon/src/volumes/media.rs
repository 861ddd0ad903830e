//! Opens disks and logs so that no other program can use them meanwhile.

use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_log::device::{Device, FileDevice};
use holdfast_volume::BLOCK_BYTES;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How often locking a device is tried.
const LOCK_ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);
/// Most blocks that recovery may write in memory: 256 MiB.
const UNTOUCHED_BLOCKS_MAX: usize = 65_536;

/// A file or block device that no other program uses.
pub struct Medium {
    /// For reading and writing.
    pub device: Arc<dyn Device>,
    /// The path without symbolic links.
    pub path: PathBuf,
    /// Whether it is a block device.
    pub is_block_device: bool,
    identity: Identity,
}

/// Identifies a file or device, whatever its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Identity {
    File(u64, u64),
    BlockDevice(u64),
}

fn identity(metadata: &Metadata) -> Identity {
    match metadata.file_type().is_block_device() {
        true => Identity::BlockDevice(metadata.rdev()),
        false => Identity::File(metadata.dev(), metadata.ino()),
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::NotFound => Exit::NoInput,
        io::ErrorKind::PermissionDenied => Exit::NotAllowed,
        _ => Exit::Io,
    };
    Failure::new(code, format!("{}: {error}", path.display()))
}

fn must_be_storage(path: &Path, metadata: &Metadata) -> Outcome {
    match metadata.is_file() || metadata.file_type().is_block_device() {
        true => Ok(()),
        false => Err(Failure::new(
            Exit::NoInput,
            format!("{}: is neither a file nor a block device", path.display()),
        )),
    }
}

impl Medium {
    /// Opens it exclusively. Refuses a block device that is mounted or otherwise in use, and a file that
    /// another Holdfast process has open or that is behind a loop device.
    ///
    /// # Errors
    /// [`Exit::NoInput`], [`Exit::NotAllowed`], [`Exit::InUse`].
    pub fn open(path: &Path) -> Outcome<Medium> {
        Medium::open_with(path, File::options().read(true).write(true))
    }

    /// Opens a file or device for reading only; it may be on a read-only file system.
    ///
    /// # Errors
    /// As [`Medium::open`].
    pub fn open_read_only(path: &Path) -> Outcome<Medium> {
        Medium::open_with(path, File::options().read(true))
    }

    fn open_with(path: &Path, options: &mut OpenOptions) -> Outcome<Medium> {
        let path = path.canonicalize().map_err(|error| failed(path, &error))?;
        let metadata = std::fs::metadata(&path).map_err(|error| failed(&path, &error))?;
        let is_block_device = metadata.file_type().is_block_device();
        must_be_storage(&path, &metadata)?;
        if is_block_device {
            options.custom_flags(rustix::fs::OFlags::EXCL.bits() as i32);
        }
        let in_use = |by: &str| {
            Failure::new(Exit::InUse, format!("{}: is in use{by}", path.display()))
                .hint("unmount it, end what uses it, and try again")
        };
        let file = options.open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => in_use(": it is mounted, or a program or another device has it"),
            _ => failed(&path, &error),
        })?;
        // Programs that probe new devices for the system lock them for a moment.
        let attempts = if is_block_device { LOCK_ATTEMPTS } else { 1 };
        for attempt in 1..=attempts {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if attempt < attempts => std::thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => return Err(in_use(" by another program")),
                Err(TryLockError::Error(error)) => return Err(failed(&path, &error)),
            }
        }
        let identity = identity(&metadata);
        if let Some(device) = behind_loop_device(&path, identity) {
            return Err(in_use(&format!(" by {} (losetup -d ends that)", device.display())));
        }
        let device = FileDevice::from_file(file, &path).map_err(|error| failed(&path, &error))?;
        Ok(Medium { device: Arc::new(device), path, is_block_device, identity })
    }

    /// Whether both are the same file or device.
    pub fn is_same(&self, other: &Medium) -> bool {
        self.identity == other.identity
    }
}

/// Opens a file or device for reading while other programs may use it.
///
/// # Errors
/// It cannot be read, or is neither a file nor a block device.
pub fn open_for_reading(path: &Path) -> Outcome<Arc<dyn Device>> {
    // The type is checked before opening, because opening a pipe waits.
    let metadata = std::fs::metadata(path).map_err(|error| failed(path, &error))?;
    must_be_storage(path, &metadata)?;
    let file = File::open(path).map_err(|error| failed(path, &error))?;
    let device = FileDevice::from_file(file, path).map_err(|error| failed(path, &error))?;
    Ok(Arc::new(device))
}

/// The loop devices of this machine and the files behind them.
pub fn loop_devices() -> Vec<(PathBuf, PathBuf)> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let backed = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let file = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let file = file.trim_end_matches('\n');
        Some((Path::new("/dev").join(name), PathBuf::from(file)))
    };
    entries.flatten().filter_map(backed).collect()
}

fn behind_loop_device(path: &Path, wanted: Identity) -> Option<PathBuf> {
    // Only files of the same name are examined: one on a file system that does not answer would block this
    // process.
    let is_it = |file: &Path| {
        file.file_name() == path.file_name()
            && std::fs::metadata(file).is_ok_and(|metadata| identity(&metadata) == wanted)
    };
    loop_devices().into_iter().find(|(_, file)| is_it(file)).map(|(device, _)| device)
}

/// A device that is never written: what recovery restores is stored in memory, and read from there. So a
/// volume can be opened even if its disk or log is full or must not change.
pub struct Untouched {
    device: Arc<dyn Device>,
    written: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl Untouched {
    /// Wraps `device`.
    pub fn over(device: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(Untouched { device, written: Mutex::default() })
    }
}

impl Device for Untouched {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buffer)?;
        let block = BLOCK_BYTES as u64;
        let written = self.written.lock();
        for (at, part) in buffer.chunks_mut(BLOCK_BYTES).enumerate() {
            if let Some(bytes) = written.get(&(offset / block + at as u64)) {
                part.copy_from_slice(&bytes[..part.len()]);
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let block = BLOCK_BYTES as u64;
        let mut written = self.written.lock();
        if !offset.is_multiple_of(block) || !bytes.len().is_multiple_of(BLOCK_BYTES) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "whole blocks only"));
        }
        if written.len() + bytes.len() / BLOCK_BYTES > UNTOUCHED_BLOCKS_MAX {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                "the log has more to put back than is kept in memory",
            ));
        }
        for (at, part) in bytes.chunks(BLOCK_BYTES).enumerate() {
            written.insert(offset / block + at as u64, part.to_vec());
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn drop_cache(&self, offset: u64, length: u64) {
        self.device.drop_cache(offset, length);
    }

    fn describe(&self) -> String {
        self.device.describe()
    }
}

/// The first bytes of another device, for a volume that is to shrink.
pub struct Part {
    /// The device.
    pub whole: Arc<dyn Device>,
    /// How many bytes from its beginning are used.
    pub size_bytes: u64,
}

impl Part {
    fn check(&self, offset: u64, length: u64) -> io::Result<()> {
        match offset.checked_add(length).is_some_and(|end| end <= self.size_bytes) {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "the range lies beyond the end")),
        }
    }
}

impl Device for Part {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.check(offset, buffer.len() as u64)?;
        self.whole.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(offset, bytes.len() as u64)?;
        self.whole.write_at(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.whole.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.check(offset, length)?;
        self.whole.discard(offset, length)
    }

    fn drop_cache(&self, offset: u64, length: u64) {
        self.whole.drop_cache(offset, length);
    }

    fn begin_write_out(&self, offset: u64, length: u64) {
        self.whole.begin_write_out(offset, length);
    }

    fn describe(&self) -> String {
        self.whole.describe()
    }
}
