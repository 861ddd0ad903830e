//! The queue of a device: a thread that exchanges requests with the kernel, and workers that access the disk.

use crate::control::{DEPTH, REQUEST_BYTES_MAX};
use crate::kernel::{Completion, IoDescriptor, QueueRing, Requests};
use holdfast_volume::Disk;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use tracing::trace_span;

const WORKERS: usize = 4;
const SECTOR_BYTES: u64 = 512;
/// The file offset of the data of queue 0; each tag has 2^[`TAG_BITS`] bytes from there on.
const DATA: u64 = 0x8000_0000;
const TAG_BITS: u32 = 25;

const fn number(command: u32) -> u32 {
    let (both, bytes) = (3, 16);
    both << 30 | bytes << 16 | (b'u' as u32) << 8 | command
}

const FETCH: u32 = number(0x20);
const COMMIT_AND_FETCH: u32 = number(0x21);

const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 2;
const DISCARD: u32 = 3;
const WRITE_ZEROES: u32 = 5;
/// The flag FUA; flags begin at bit 8.
const FUA: u32 = 1 << 13;

const EIO: i32 = 5;
const EOPNOTSUPP: i32 = 95;

/// The state that the queue's thread and the workers share.
struct Shared {
    disk: Arc<dyn Disk>,
    character: Arc<File>,
    done: Mutex<Vec<(u16, i32)>>,
    event: Arc<OwnedFd>,
}

/// Serves requests until the device is removed. Sends `ready` when it is safe to start the device, or the
/// reason why it is not.
pub fn serve(disk: Arc<dyn Disk>, character: File, ready: &Sender<io::Result<()>>) {
    let character = Arc::new(character);
    let set_up = || -> io::Result<(QueueRing, Requests, Arc<OwnedFd>)> {
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut ring = QueueRing::new(Arc::clone(&character), Arc::clone(&event), DEPTH)?;
        let requests = Requests::map(&character, DEPTH)?;
        for tag in 0..DEPTH {
            ring.command(FETCH, tag, -1)?;
        }
        ring.await_event()?;
        ring.submit(0)?;
        Ok((ring, requests, event))
    };
    let (ring, requests, event) = match set_up() {
        Ok(set_up) => set_up,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let shared = Shared { disk, character, done: Mutex::default(), event };
    let _ = ready.send(Ok(()));
    if let Err(error) = run(ring, &requests, &shared) {
        tracing::error!(%error, "the queue of a block device ended");
    }
}

fn run(mut ring: QueueRing, requests: &Requests, shared: &Shared) -> io::Result<()> {
    let (jobs, waiting) = channel();
    let waiting = Mutex::new(waiting);
    thread::scope(|scope| {
        // Moved into this closure, so that the workers end when it does, in whatever way.
        let jobs = jobs;
        for _ in 0..WORKERS {
            let waiting = &waiting;
            thread::Builder::new()
                .name("holdfast-ublk".into())
                .spawn_scoped(scope, || work(waiting, shared))?;
        }
        let mut buffer = Vec::new();
        // Number of tags that the kernel has.
        let mut fetching = DEPTH;
        let mut working = 0u16;
        while fetching > 0 || working > 0 {
            ring.submit(1)?;
            for ended in ring.ended() {
                match ended {
                    Completion::Event => {
                        let mut count = [0; 8];
                        // The event may have been read already.
                        let _ = rustix::io::read(&*shared.event, &mut count);
                        ring.await_event()?;
                    }
                    Completion::Fetch { tag, result: 0 } => {
                        let descriptor = requests.get(tag);
                        if descriptor.kind_and_flags & 0xff == WRITE {
                            let result = answer(shared, tag, descriptor, &mut buffer);
                            ring.command(COMMIT_AND_FETCH, tag, result)?;
                            continue;
                        }
                        fetching -= 1;
                        working += 1;
                        jobs.send((tag, descriptor)).map_err(io::Error::other)?;
                    }
                    // The device is being removed.
                    Completion::Fetch { .. } => fetching -= 1,
                }
            }
            for (tag, result) in std::mem::take(&mut *shared.done.lock()) {
                working -= 1;
                fetching += 1;
                ring.command(COMMIT_AND_FETCH, tag, result)?;
            }
        }
        Ok(())
    })
}

fn work(waiting: &Mutex<Receiver<(u16, IoDescriptor)>>, shared: &Shared) {
    let mut buffer = Vec::new();
    loop {
        let next = waiting.lock().recv();
        let Ok((tag, descriptor)) = next else { return };
        let result = answer(shared, tag, descriptor, &mut buffer);
        shared.done.lock().push((tag, result));
        // This fails only after 2^64 events that nobody has read.
        let _ = rustix::io::write(&*shared.event, &1u64.to_ne_bytes());
    }
}

/// Carries out a request. Returns the number of bytes, or a negative error number.
fn answer(shared: &Shared, tag: u16, descriptor: IoDescriptor, buffer: &mut Vec<u8>) -> i32 {
    let IoDescriptor { kind_and_flags, first_sector, sectors, .. } = descriptor;
    let what = kind_and_flags & 0xff;
    let _span = trace_span!(target: "operation", "ublk request", tag, what, first_sector, sectors).entered();
    match perform(shared, tag, descriptor, buffer) {
        Ok(count) => count,
        Err(error) => -error.raw_os_error().unwrap_or(EIO),
    }
}

fn perform(shared: &Shared, tag: u16, descriptor: IoDescriptor, buffer: &mut Vec<u8>) -> io::Result<i32> {
    let Shared { disk, character, .. } = shared;
    // A flush has no position: its sector is the largest possible number.
    let offset = descriptor.first_sector.saturating_mul(SECTOR_BYTES);
    let length = u64::from(descriptor.sectors) * SECTOR_BYTES;
    let data = DATA + (u64::from(tag) << TAG_BITS);
    let kind = descriptor.kind_and_flags & 0xff;
    if matches!(kind, READ | WRITE) {
        if length > REQUEST_BYTES_MAX.into() {
            return Err(io::Error::from_raw_os_error(EIO));
        }
        buffer.resize(buffer.len().max(length as usize), 0);
    }
    match kind {
        READ => {
            let bytes = &mut buffer[..length as usize];
            disk.read(offset, bytes)?;
            character.write_all_at(bytes, data)?;
            return Ok(length as i32);
        }
        WRITE => {
            let bytes = &mut buffer[..length as usize];
            character.read_exact_at(bytes, data)?;
            disk.write(offset, bytes)?;
        }
        FLUSH => disk.flush()?,
        DISCARD => disk.discard(offset, length)?,
        WRITE_ZEROES => disk.write_zeroes(offset, length)?,
        _ => return Err(io::Error::from_raw_os_error(EOPNOTSUPP)),
    }
    if descriptor.kind_and_flags & FUA != 0 {
        disk.flush()?;
    }
    Ok(if kind == FLUSH { 0 } else { length as i32 })
}
