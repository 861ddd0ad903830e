//! A device: a fixed number of bytes at fixed offsets, such as a disk, an image or a partition.

use crate::write_out;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Storage of fixed size without any guarantee of order: after a crash, what was written since the last flush
/// may be there in any order, torn within 4 KiB, or not at all. Thread-safe.
pub trait Device: Send + Sync {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// The medium failed, or the range lies beyond the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`. Durable after [`Device::flush`].
    ///
    /// # Errors
    /// The medium failed; any part may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all writes that have returned durable.
    ///
    /// # Errors
    /// The medium failed; what is durable is then unknown, and a later success proves nothing about it.
    fn flush(&self) -> io::Result<()>;

    /// Says that a range is no longer needed. A hint: its bytes may be anything afterwards.
    ///
    /// # Errors
    /// The medium failed.
    fn discard(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    /// The next offset with data at or after `offset`; everything before it is a hole that was never written.
    /// A device that cannot tell returns `offset`.
    fn next_data(&self, offset: u64) -> u64 {
        offset
    }

    /// Asks the system to forget cached bytes of a range, so that reads come from the medium. A hint.
    fn drop_cache(&self, _offset: u64, _length: u64) {}

    /// Asks the system to begin writing a range to the medium, without waiting, so that the next flush has
    /// less to do. A hint: it makes nothing durable.
    fn begin_write_out(&self, _offset: u64, _length: u64) {}

    /// The device's name for messages.
    fn describe(&self) -> String;
}

/// A file or a block device of this machine.
pub struct FileDevice {
    file: File,
    path: PathBuf,
    size_bytes: u64,
}

impl FileDevice {
    /// Opens it for reading and writing.
    ///
    /// # Errors
    /// It cannot be opened, or is neither a file nor a block device.
    pub fn open(path: &Path) -> io::Result<FileDevice> {
        let file = File::options().read(true).write(true).open(path)?;
        FileDevice::from_file(file, path)
    }

    /// Takes an open file; `path` is for messages.
    ///
    /// # Errors
    /// It is neither a file nor a block device.
    pub fn from_file(file: File, path: &Path) -> io::Result<FileDevice> {
        use std::io::{Seek, SeekFrom};
        use std::os::unix::fs::FileTypeExt;
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is neither a file nor a block device",
            ));
        }
        // The length in a block device's metadata is zero.
        let size_bytes = (&file).seek(SeekFrom::End(0))?;
        Ok(FileDevice { file, path: path.to_owned(), size_bytes })
    }
}

/// Says what to do about a medium without room.
fn with_remedy(error: io::Error) -> io::Error {
    match error.kind() {
        kind @ io::ErrorKind::StorageFull => io::Error::new(kind, "its file system is full; make room there"),
        kind @ io::ErrorKind::QuotaExceeded => {
            io::Error::new(kind, "the quota of its file system is used up; make room there")
        }
        _ => error,
    }
}

impl Device for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // A file must not grow by a wrong offset.
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.size_bytes) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the range lies beyond the end"));
        }
        self.file.write_all_at(bytes, offset).map_err(with_remedy)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data().map_err(with_remedy)
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.file, flags, offset, length) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn next_data(&self, offset: u64) -> u64 {
        use rustix::fs::{SeekFrom, seek};
        match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(found) => found.clamp(offset, self.size_bytes.max(offset)),
            // Nothing but a hole up to the end.
            Err(rustix::io::Errno::NXIO) => self.size_bytes.max(offset),
            Err(_) => offset,
        }
    }

    fn drop_cache(&self, offset: u64, length: u64) {
        use rustix::fs::{Advice, fadvise};
        let _ = fadvise(&self.file, offset, std::num::NonZeroU64::new(length), Advice::DontNeed);
    }

    fn begin_write_out(&self, offset: u64, length: u64) {
        write_out::begin(&self.file, offset, length);
    }

    fn describe(&self) -> String {
        self.path.display().to_string()
    }
}

/// Two devices joined one after the other. So data that belongs to a disk but must not be on it can follow
/// the disk. Fails if either device fails.
pub struct JoinedDevice {
    first: Arc<dyn Device>,
    second: Arc<dyn Device>,
    edge: u64,
}

impl JoinedDevice {
    /// The first `edge` bytes of `first`, then all of `second`.
    pub fn new(first: Arc<dyn Device>, edge: u64, second: Arc<dyn Device>) -> JoinedDevice {
        assert!(edge <= first.size_bytes(), "the edge is within the first");
        JoinedDevice { first, second, edge }
    }

    /// How many of `length` bytes from `offset` are on the first device.
    fn on_first(&self, offset: u64, length: u64) -> u64 {
        self.edge.saturating_sub(offset).min(length)
    }
}

impl Device for JoinedDevice {
    fn size_bytes(&self) -> u64 {
        self.edge + self.second.size_bytes()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (first, second) = buffer.split_at_mut(self.on_first(offset, buffer.len() as u64) as usize);
        if !first.is_empty() {
            self.first.read_at(offset, first)?;
        }
        match second.is_empty() {
            true => Ok(()),
            false => self.second.read_at((offset + first.len() as u64) - self.edge, second),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (first, second) = bytes.split_at(self.on_first(offset, bytes.len() as u64) as usize);
        if !first.is_empty() {
            self.first.write_at(offset, first)?;
        }
        match second.is_empty() {
            true => Ok(()),
            false => self.second.write_at((offset + first.len() as u64) - self.edge, second),
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.first.flush()?;
        self.second.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        let first = self.on_first(offset, length);
        if first > 0 {
            self.first.discard(offset, first)?;
        }
        match first < length {
            true => self.second.discard(offset + first - self.edge, length - first),
            false => Ok(()),
        }
    }

    fn next_data(&self, offset: u64) -> u64 {
        let found = match offset < self.edge {
            true => self.first.next_data(offset).min(self.edge),
            false => offset,
        };
        match found < self.edge {
            true => found,
            false => self.edge + self.second.next_data(found - self.edge),
        }
    }

    fn drop_cache(&self, offset: u64, length: u64) {
        let first = self.on_first(offset, length);
        if first > 0 {
            self.first.drop_cache(offset, first);
        }
        if first < length {
            self.second.drop_cache(offset + first - self.edge, length - first);
        }
    }

    fn begin_write_out(&self, offset: u64, length: u64) {
        let first = self.on_first(offset, length);
        if first > 0 {
            self.first.begin_write_out(offset, first);
        }
        if first < length {
            self.second.begin_write_out(offset + first - self.edge, length - first);
        }
    }

    fn describe(&self) -> String {
        format!("{} with {}", self.first.describe(), self.second.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated_device::Devices;

    /// Proves: two devices together read and write as one array, over the edge too, and neither is touched elsewhere.
    #[test]
    fn joined() {
        let devices = Devices::new();
        devices.record(false);
        devices.add_with("first", vec![1; 4096]);
        devices.add_with("second", vec![2; 1024]);
        let joined = JoinedDevice::new(devices.device(0), 3000, devices.device(1));
        assert_eq!(joined.size_bytes(), 4024);
        let mut expected = [vec![1; 3000], vec![2; 1024]].concat();
        for (offset, length) in
            [(0, 4024), (2990, 20), (3000, 1), (2999, 1), (0, 3000), (3000, 1024), (4024, 0)]
        {
            let mut found = vec![0; length];
            joined.read_at(offset as u64, &mut found).expect("within");
            assert_eq!(found, expected[offset..offset + length]);
            let bytes: Vec<u8> = (0..length).map(|at| (at + offset) as u8).collect();
            joined.write_at(offset as u64, &bytes).expect("within");
            expected[offset..offset + length].copy_from_slice(&bytes);
        }
        joined.flush().expect("flushed");
        assert!(joined.read_at(4000, &mut [0; 30]).is_err());
        assert_eq!(devices.bytes(0)[3000..], vec![1; 1096], "beyond the edge is not ours");
        assert_eq!([&devices.bytes(0)[..3000], &devices.bytes(1)].concat(), expected);
    }

    /// Proves: holes of files are distinguished from data, also across the edge of two joined files; a file
    /// that is only a hole ends with it.
    #[test]
    fn holes() {
        const KIB_64: u64 = 64 << 10;
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, data: &[u64]| -> Arc<dyn Device> {
            let path = folder.path().join(name);
            let file = File::create_new(&path).unwrap();
            file.set_len(10 * KIB_64).unwrap();
            data.iter().for_each(|at| file.write_all_at(&[1; KIB_64 as usize], at * KIB_64).unwrap());
            Arc::new(FileDevice::open(&path).unwrap())
        };
        let (data, hole) = (file("data", &[2, 5]), file("hole", &[]));
        let next = |device: &dyn Device, at: u64| device.next_data(at * KIB_64) / KIB_64;
        assert_eq!([0, 1, 2, 3, 5, 6, 10].map(|at| next(&*data, at)), [2, 2, 2, 5, 5, 10, 10]);
        assert_eq!([0, 9].map(|at| next(&*hole, at)), [10, 10]);
        let joined = JoinedDevice::new(hole.clone(), 7 * KIB_64, data.clone());
        assert_eq!([0, 7, 9, 10, 13].map(|at| next(&joined, at)), [9, 9, 9, 12, 17]);
        let joined = JoinedDevice::new(data, 4 * KIB_64, hole);
        assert_eq!([0, 2, 3, 5].map(|at| next(&joined, at)), [2, 2, 14, 14]);
    }
}
