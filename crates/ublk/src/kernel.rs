//! The unsafe code: rings with commands for the driver, and the memory in which the kernel describes
//! requests.

#![allow(unsafe_code, reason = "rings take raw entries; the requests are memory that the kernel writes")]

use io_uring::squeue::{Entry, Entry128};
use io_uring::{IoUring, opcode, types};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

/// Bytes of a request's description by the kernel.
const REQUEST_BYTES: usize = 24;

fn is_interrupted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

/// Bytes of the buffer that a command may refer to.
pub const BESIDE_BYTES: usize = 64;

/// Sends commands to `/dev/ublk-control`, one at a time.
pub struct ControlRing {
    ring: IoUring<Entry128>,
    control: File,
    is_broken: bool,
}

impl ControlRing {
    pub fn new(control: File) -> io::Result<ControlRing> {
        Ok(ControlRing { ring: IoUring::builder().build(2)?, control, is_broken: false })
    }

    /// Sends a command, and waits until it is done. The kernel reads and writes the first `length` bytes of
    /// `beside`.
    pub fn send(
        &mut self,
        number: u32,
        device: u32,
        beside: &mut [u8; BESIDE_BYTES],
        length: u16,
        data: u64,
    ) -> io::Result<()> {
        assert!(usize::from(length) <= BESIDE_BYTES, "the kernel stays within it");
        if self.is_broken {
            return Err(io::Error::other("an earlier command did not end"));
        }
        let mut memory = Box::new(*beside);
        let mut command = [0; 80];
        command[..4].copy_from_slice(&device.to_ne_bytes());
        command[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
        command[6..8].copy_from_slice(&length.to_ne_bytes());
        if length > 0 {
            command[8..16].copy_from_slice(&(memory.as_mut_ptr() as u64).to_ne_bytes());
        }
        command[16..24].copy_from_slice(&data.to_ne_bytes());
        let entry = opcode::UringCmd80::new(types::Fd(self.control.as_raw_fd()), number).cmd(command).build();
        // SAFETY: the file is open for as long as the ring. The command has one address, of `memory`, which nobody
        // else uses, and which is freed only after the command has ended.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        let result = loop {
            if let Err(error) = self.ring.submit_and_wait(1)
                && !is_interrupted(&error)
            {
                // Nobody knows whether the command is under way, so its memory is never freed.
                std::mem::forget(memory);
                self.is_broken = true;
                return Err(error);
            }
            if let Some(done) = self.ring.completion().next() {
                break done.result();
            }
        };
        *beside = *memory;
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
    }
}

/// A completion of a [`QueueRing`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// A request has arrived; or, if `result` is not zero, the device is being removed.
    Fetch { tag: u16, result: i32 },
    /// The event was signalled.
    Event,
}

const EVENT: u64 = u64::MAX;

/// Fetches requests of a queue and commits them.
pub struct QueueRing {
    ring: IoUring,
    // Open for as long as the ring.
    character: Arc<File>,
    event: Arc<OwnedFd>,
}

impl QueueRing {
    pub fn new(character: Arc<File>, event: Arc<OwnedFd>, depth: u16) -> io::Result<QueueRing> {
        let ring = IoUring::builder().setup_cqsize(4 * u32::from(depth)).build(2 * u32::from(depth))?;
        Ok(QueueRing { ring, character, event })
    }

    fn push(&mut self, entry: &Entry) -> io::Result<()> {
        // SAFETY: entries have no addresses (data goes through the file), and their files are open for as long as the
        // ring.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.submit(0)?;
        }
        Ok(())
    }

    /// Queues a command for the driver about a request of queue 0.
    pub fn command(&mut self, number: u32, tag: u16, result: i32) -> io::Result<()> {
        let mut command = [0; 16];
        command[2..4].copy_from_slice(&tag.to_ne_bytes());
        command[4..8].copy_from_slice(&result.to_ne_bytes());
        let file = types::Fd(self.character.as_raw_fd());
        let entry = opcode::UringCmd16::new(file, number).cmd(command).build().user_data(tag.into());
        self.push(&entry)
    }

    /// Requests one completion when the event is signalled.
    pub fn await_event(&mut self) -> io::Result<()> {
        let readable = rustix::event::PollFlags::IN.bits().into();
        let entry =
            opcode::PollAdd::new(types::Fd(self.event.as_raw_fd()), readable).build().user_data(EVENT);
        self.push(&entry)
    }

    /// Submits the queued entries, and waits until at least `count` have completed.
    pub fn submit(&mut self, count: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(count) {
            Err(error) if !is_interrupted(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// All completions that have arrived.
    pub fn ended(&mut self) -> Vec<Completion> {
        let completion = |entry: io_uring::cqueue::Entry| match entry.user_data() {
            EVENT => Completion::Event,
            tag => Completion::Fetch { tag: tag as u16, result: entry.result() },
        };
        self.ring.completion().map(completion).collect()
    }
}

/// A request as the kernel describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoDescriptor {
    pub kind_and_flags: u32,
    pub sectors: u32,
    pub first_sector: u64,
}

/// The requests of queue 0, one for each tag, as the kernel describes them.
pub struct Requests {
    address: *mut std::ffi::c_void,
    bytes: usize,
    depth: u16,
}

// SAFETY: it is memory that stays mapped until it is dropped, and is only read.
unsafe impl Send for Requests {}

impl Requests {
    pub fn map(character: &File, depth: u16) -> io::Result<Requests> {
        let bytes = (usize::from(depth) * REQUEST_BYTES).next_multiple_of(rustix::param::page_size());
        // SAFETY: the kernel chooses a place that nothing else uses.
        let address =
            unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, character, 0) }?;
        Ok(Requests { address, bytes, depth })
    }

    /// The request of a tag. Call this only between its fetch and its commit: the kernel does not change it
    /// then.
    pub fn get(&self, tag: u16) -> IoDescriptor {
        assert!(tag < self.depth, "the kernel names only tags that were fetched");
        // SAFETY: within the mapping, which is a multiple of a page long and so aligned; any bytes are integers.
        // Volatile, since the kernel writes there while other tags are read.
        unsafe {
            let place = self.address.cast::<u8>().add(usize::from(tag) * REQUEST_BYTES);
            IoDescriptor {
                kind_and_flags: place.cast::<u32>().read_volatile(),
                sectors: place.add(4).cast::<u32>().read_volatile(),
                first_sector: place.add(8).cast::<u64>().read_volatile(),
            }
        }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        // SAFETY: it is our mapping, and no reference into it is ever given out.
        let _ = unsafe { munmap(self.address, self.bytes) };
    }
}
