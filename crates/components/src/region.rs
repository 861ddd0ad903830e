//! Regions: memory that processes share, through read-only or writable views.
//!
//! A region is a file on a private tmpfs that is mounted nowhere: it exists as two detached mounts, a
//! writable and a read-only one, which only the runtime holds. A view is an open file from one of them. A
//! read-only view cannot become writable: its descriptor cannot write, a mapping of it cannot be made
//! writable, and opening it again (through `/proc`, if the process has one) uses the read-only mount. Each
//! view is opened separately, so holders share no file position and no flags. Nothing on these mounts can be
//! executed, so nothing of them can be mapped executable.
//!
//! To revoke a region, the runtime replaces the file with a copy and truncates the original. Reads of old
//! views then return nothing at once, and touching an old mapping ends the process that does. What a holder
//! writes between copy and truncation is lost, as if it had come too late.
//!
//! A process in a user namespace of its own makes the mounts and ends. So an ordinary user can have regions
//! too.

use crate::error::{ComponentError, During, Result};
use crate::memory::Mapping;
use crate::spawn::{self, Program};
use borsh::{BorshDeserialize, BorshSerialize};
use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, SeekFrom, fallocate, fstat, ftruncate, openat, seek, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page of a region.
pub const PAGE_BYTES: u64 = 4096;
/// Most revoked files that are checked for being filled again by processes that still hold them.
const REVOKED_MAX: usize = 1024;

/// The access that a view gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Reading only.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// Makes regions, and bounds the bytes that they take together.
pub struct Regions {
    writable: OwnedFd,
    readable: OwnedFd,
    bytes_max: u64,
    bytes_used: Mutex<u64>,
    next: AtomicU64,
    revoked: Mutex<VecDeque<OwnedFd>>,
}

impl Regions {
    /// Creates a tmpfs for regions of `bytes_max` bytes in all. Runs `program` for a moment.
    ///
    /// # Errors
    /// The system does not permit mounting a tmpfs in a user namespace.
    pub fn create(program: &Program, bytes_max: u64) -> Result<Arc<Regions>> {
        // During a revocation, the old and the new file exist at the same time.
        let [writable, readable] = spawn::make_mounts(program, bytes_max.saturating_mul(2).max(1 << 20))?;
        Ok(Arc::new(Regions {
            writable,
            readable,
            bytes_max,
            bytes_used: Mutex::new(0),
            next: AtomicU64::new(0),
            revoked: Mutex::default(),
        }))
    }

    /// Creates a region of zeros. Its size is rounded up to pages.
    ///
    /// # Errors
    /// The regions would exceed their bound.
    pub fn region(self: &Arc<Regions>, bytes: u64) -> Result<Region> {
        self.sweep();
        let full = |bytes_used| ComponentError::RegionsFull { bytes, bytes_used, bytes_max: self.bytes_max };
        let rounded = bytes.max(1).checked_next_multiple_of(PAGE_BYTES).ok_or_else(|| full(0))?;
        {
            let mut used = self.bytes_used.lock();
            match used.checked_add(rounded).filter(|sum| *sum <= self.bytes_max) {
                Some(sum) => *used = sum,
                None => return Err(full(*used)),
            }
        }
        match self.file(rounded) {
            Ok(current) => {
                Ok(Region { regions: Arc::clone(self), bytes: rounded, current: Mutex::new(current) })
            }
            Err(error) => {
                *self.bytes_used.lock() -= rounded;
                Err(error)
            }
        }
    }

    /// Bytes taken by all regions.
    pub fn bytes_used(&self) -> u64 {
        *self.bytes_used.lock()
    }

    fn file(&self, bytes: u64) -> Result<RegionFile> {
        let what = "making a region";
        let name = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.writable, &name, flags, Mode::RUSR | Mode::WUSR).during(what)?;
        let current = RegionFile { name, file, was_writable: false };
        if let Err(error) = ftruncate(&current.file, bytes) {
            self.remove(current);
            return Err(error).during(what);
        }
        Ok(current)
    }

    /// Empties and removes a file, so that every holder of a view loses its content.
    fn remove(&self, current: RegionFile) {
        // Neither call can fail for our own file and name; if one did, the bound on the tmpfs would still
        // hold.
        let _ = ftruncate(&current.file, 0);
        let _ = unlinkat(&self.writable, &current.name, AtFlags::empty());
        // A file that no process can fill again need not be watched.
        if !current.was_writable {
            return;
        }
        let mut revoked = self.revoked.lock();
        if revoked.len() == REVOKED_MAX {
            revoked.pop_front();
        }
        revoked.push_back(current.file);
    }

    /// Empties revoked files that a process with a writable view has filled again.
    fn sweep(&self) {
        for file in self.revoked.lock().iter() {
            if fstat(file).is_ok_and(|stat| stat.st_size > 0 || stat.st_blocks > 0) {
                let _ = ftruncate(file, 0);
            }
        }
    }
}

/// The file that holds a region at present.
struct RegionFile {
    name: String,
    file: OwnedFd,
    /// Whether a component was given a writable view.
    was_writable: bool,
}

/// A region, for its owner. Dropping it removes it for everybody.
pub struct Region {
    regions: Arc<Regions>,
    bytes: u64,
    current: Mutex<RegionFile>,
}

impl Region {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Opens a view for a component.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn view(&self, access: Access) -> Result<OwnedFd> {
        let mut current = self.current.lock();
        current.was_writable |= access == Access::ReadWrite;
        let (mount, flags) = match access {
            Access::ReadOnly => (&self.regions.readable, OFlags::RDONLY),
            Access::ReadWrite => (&self.regions.writable, OFlags::RDWR),
        };
        openat(mount, &current.name, flags | OFlags::CLOEXEC, Mode::empty())
            .during("opening a view of a region")
    }

    /// Reads a range.
    ///
    /// # Errors
    /// The range is outside of the region.
    pub fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        read_at(&self.current.lock().file, self.bytes, offset, target)
    }

    /// Writes a range.
    ///
    /// # Errors
    /// The range is outside of the region.
    pub fn write_at(&self, offset: u64, source: &[u8]) -> Result<()> {
        write_at(&self.current.lock().file, self.bytes, offset, source)
    }

    /// Frees the memory of a page, which then reads as zeros for everybody.
    ///
    /// # Errors
    /// The page is outside of the region.
    pub fn punch(&self, page: u64) -> Result<()> {
        let offset = page.checked_mul(PAGE_BYTES).filter(|offset| *offset < self.bytes);
        let outside =
            ComponentError::OutsideRegion { offset: u64::MAX, length: PAGE_BYTES, bytes: self.bytes };
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.current.lock().file, flags, offset.ok_or(outside)?, PAGE_BYTES)
            .during("emptying a page")
    }

    /// Revokes all views of the region. Its content stays, for new views.
    ///
    /// # Errors
    /// There is no memory for a copy. Nothing has changed then.
    pub fn revoke(&self) -> Result<()> {
        self.regions.sweep();
        let fresh = self.regions.file(self.bytes)?;
        let mut current = self.current.lock();
        if let Err(error) = copy(&current.file, &fresh.file, self.bytes) {
            self.regions.remove(fresh);
            return Err(error);
        }
        let old = std::mem::replace(&mut *current, fresh);
        self.regions.remove(old);
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let current = self.current.get_mut();
        let (name, was_writable) = (std::mem::take(&mut current.name), current.was_writable);
        if let Ok(file) = current.file.try_clone() {
            self.regions.remove(RegionFile { name, file, was_writable });
        } else {
            let _ = ftruncate(&self.current.get_mut().file, 0);
            let _ = unlinkat(&self.regions.writable, &name, AtFlags::empty());
        }
        *self.regions.bytes_used.lock() -= self.bytes;
    }
}

/// Copies the data and leaves holes. A holder may truncate the source meanwhile: then the rest is zeros.
fn copy(from: &OwnedFd, to: &OwnedFd, bytes: u64) -> Result<()> {
    let what = "copying a region";
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        at = match seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error).during(what),
        };
        if at >= bytes {
            return Ok(());
        }
        let most = buffer.len().min(usize::try_from(bytes - at).unwrap_or(usize::MAX));
        let read = rustix::io::pread(from, &mut buffer[..most], at).during(what)?;
        if read == 0 {
            return Ok(());
        }
        write_at(to, bytes, at, &buffer[..read])?;
        at += read as u64;
    }
    Ok(())
}

fn outside(bytes: u64, offset: u64, length: usize) -> ComponentError {
    ComponentError::OutsideRegion { offset, length: length as u64, bytes }
}

fn is_inside(bytes: u64, offset: u64, length: usize) -> bool {
    offset.checked_add(length as u64).is_some_and(|end| end <= bytes)
}

fn read_at(file: &OwnedFd, bytes: u64, offset: u64, target: &mut [u8]) -> Result<()> {
    if !is_inside(bytes, offset, target.len()) {
        return Err(outside(bytes, offset, target.len()));
    }
    let mut done = 0;
    while done < target.len() {
        match rustix::io::pread(file, &mut target[done..], offset + done as u64) {
            // The file was truncated: the region is revoked.
            Ok(0) => return Err(outside(bytes, offset, target.len())),
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).during("reading a region"),
        }
    }
    Ok(())
}

fn write_at(file: &OwnedFd, bytes: u64, offset: u64, source: &[u8]) -> Result<()> {
    if !is_inside(bytes, offset, source.len()) {
        return Err(outside(bytes, offset, source.len()));
    }
    let mut done = 0;
    while done < source.len() {
        match rustix::io::pwrite(file, &source[done..], offset + done as u64) {
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).during("writing a region"),
        }
    }
    Ok(())
}

/// A view of a region, for a component.
pub struct View {
    file: OwnedFd,
    access: Access,
    bytes: u64,
}

impl View {
    /// The view in a file that was passed to this process, with its access and size.
    pub fn new(file: OwnedFd, access: Access, bytes: u64) -> View {
        View { file, access, bytes }
    }

    /// The access that this view gives.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads a range.
    ///
    /// # Errors
    /// The range is outside of the region, or the region was revoked.
    pub fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        read_at(&self.file, self.bytes, offset, target)
    }

    /// Writes a range. In a revoked region this has no effect for anybody else.
    ///
    /// # Errors
    /// The range is outside of the region, or the view is read-only.
    pub fn write_at(&self, offset: u64, source: &[u8]) -> Result<()> {
        write_at(&self.file, self.bytes, offset, source)
    }

    /// Maps the region into this process's memory. Touching it after a revocation ends the process.
    ///
    /// # Errors
    /// There is no address space left.
    pub fn map(&self) -> Result<Mapped> {
        let bytes = usize::try_from(self.bytes).map_err(|_| outside(self.bytes, 0, usize::MAX))?;
        let writable = self.access == Access::ReadWrite;
        Ok(Mapped(Mapping::new(&self.file, bytes, writable).during("mapping a region")?))
    }
}

/// A region mapped into this process's memory. Accessed only by copying, since others may change it.
pub struct Mapped(Mapping);

impl Mapped {
    /// Copies a range out.
    ///
    /// # Errors
    /// The range is outside of the region.
    pub fn read_at(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        match self.0.copy_out(at, target) {
            true => Ok(()),
            false => Err(outside(self.0.len() as u64, offset, target.len())),
        }
    }

    /// Copies a range in.
    ///
    /// # Errors
    /// The range is outside of the region, or the view is read-only.
    pub fn write_at(&self, offset: u64, source: &[u8]) -> Result<()> {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        match self.0.copy_in(at, source) {
            true => Ok(()),
            false => Err(outside(self.0.len() as u64, offset, source.len())),
        }
    }
}
