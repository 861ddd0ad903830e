//! Devices in memory that record every write and flush, over all of them in one order. From that, tests make
//! any state that a crash may leave, and add an attacker's changes.

use crate::device::Device;
use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// What a device writes atomically.
const SECTOR_BYTES: usize = 512;

/// Devices that fail together. Clones share them.
#[derive(Clone, Default)]
pub struct Devices(Arc<Mutex<History>>);

#[derive(Default)]
struct History {
    names: Vec<String>,
    /// The bytes as programs see them.
    live: Vec<Vec<u8>>,
    /// The devices' contents before the first event.
    before: Vec<Vec<u8>>,
    events: Vec<Event>,
    recording: bool,
    failing: Vec<Failure>,
    faults: Vec<(Fault, u64)>,
    /// Operations of each device so far, in the order of [`Operation`].
    counts: Vec<[u64; 3]>,
}

/// What happened, over all devices in one order.
#[derive(Clone, Debug)]
pub enum Event {
    /// Bytes were written.
    Write {
        /// Index of the device.
        device: usize,
        /// The offset in bytes.
        offset: u64,
        /// The bytes written.
        bytes: Arc<[u8]>,
    },
    /// A device was flushed: everything written to it before is durable.
    Flush {
        /// Index of the device.
        device: usize,
    },
    /// A flush of a device failed: what was written to it since the last one is lost, whatever later flushes
    /// report.
    FailedFlush {
        /// Index of the device.
        device: usize,
    },
    /// A mark that the program set ([`Devices::mark`]).
    Mark,
}

/// Devices as they were, and all that happened to them since.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The name of each device.
    pub names: Vec<String>,
    /// The devices' contents before the first event.
    pub before: Vec<Vec<u8>>,
    /// The events since.
    pub events: Vec<Event>,
}

/// An operation of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
}

/// One operation that fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Index of the device.
    pub device: usize,
    /// Kind of the operation.
    pub operation: Operation,
    /// Number of calls that succeed before the failure.
    pub after: u64,
    /// The system's error.
    pub errno: i32,
    /// Number of bytes of a failing write that are written nonetheless.
    pub written_bytes: usize,
    /// All later ones fail too.
    pub is_lasting: bool,
}

/// The calls that fail until [`Devices::heal`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Reads of a range of a device.
    Reads(usize, Range<u64>),
    /// All writes to a device.
    Writes(usize),
    /// All flushes of a device.
    Flushes(usize),
}

/// What becomes of writes that no flush followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unflushed {
    /// All of them are there: the process died, not the machine.
    Kept,
    /// None of them is there.
    Lost,
    /// Each of them is there, or not, or only some of its sectors; the seed decides.
    Torn(u64),
}

impl Devices {
    /// No device yet; events are recorded.
    pub fn new() -> Devices {
        let devices = Devices::default();
        devices.0.lock().recording = true;
        devices
    }

    /// Adds a device of zeroes, and returns its number.
    pub fn add(&self, name: &str, size_bytes: usize) -> usize {
        self.add_with(name, vec![0; size_bytes])
    }

    /// Adds a device with content.
    pub fn add_with(&self, name: &str, bytes: Vec<u8>) -> usize {
        let mut history = self.0.lock();
        history.names.push(name.to_owned());
        history.before.push(bytes.clone());
        history.counts.push([0; 3]);
        history.live.push(bytes);
        history.live.len() - 1
    }

    /// A device to be used.
    pub fn device(&self, number: usize) -> Arc<dyn Device> {
        Arc::new(Simulated { history: self.0.clone(), number })
    }

    /// Whether writes and flushes are recorded from now on.
    pub fn record(&self, recording: bool) {
        self.0.lock().recording = recording;
    }

    /// Forgets all events: the present contents become the initial ones.
    pub fn forget(&self) {
        let history = &mut *self.0.lock();
        history.before = history.live.clone();
        history.events.clear();
    }

    /// Writes and flushes so far.
    pub fn events(&self) -> usize {
        self.0.lock().events.len()
    }

    /// Puts a mark of the test among the events, and returns its index.
    pub fn mark(&self) -> usize {
        let history = &mut *self.0.lock();
        if history.recording {
            history.events.push(Event::Mark);
        }
        history.events.len().saturating_sub(1)
    }

    /// The trace so far.
    pub fn trace(&self) -> Trace {
        let history = self.0.lock();
        Trace { names: history.names.clone(), before: history.before.clone(), events: history.events.clone() }
    }

    /// The number of operations of a kind on a device so far.
    pub fn operations(&self, device: usize, operation: Operation) -> u64 {
        self.0.lock().counts[device][operation as usize]
    }

    /// Makes one operation fail, counted from now on.
    pub fn inject(&self, fault: Fault) {
        self.0.lock().faults.push((fault, 0));
    }

    /// Devices as a crash after `events` writes and flushes may leave them.
    pub fn crashed(&self, events: usize, unflushed: Unflushed) -> Devices {
        let history = self.0.lock();
        let mut live = history.before.clone();
        let happened = &history.events[..events.min(history.events.len())];
        let mut random = match unflushed {
            Unflushed::Torn(seed) => seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            _ => 1,
        };
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random >> 32
        };
        let is_flush = |event: &Event, of: usize| matches!(event, Event::Flush { device } if *device == of);
        let flushed: Vec<usize> = (0..live.len())
            .map(|device| happened.iter().rposition(|event| is_flush(event, device)).unwrap_or(0))
            .collect();
        for (at, event) in happened.iter().enumerate() {
            let Event::Write { device, offset, bytes } = event else { continue };
            let place = &mut live[*device][*offset as usize..][..bytes.len()];
            match unflushed {
                _ if at < flushed[*device] => place.copy_from_slice(bytes),
                Unflushed::Kept => place.copy_from_slice(bytes),
                Unflushed::Lost => {}
                Unflushed::Torn(_) => match next() % 4 {
                    0 => {}
                    1 | 2 => place.copy_from_slice(bytes),
                    _ => {
                        for (old, new) in place.chunks_mut(SECTOR_BYTES).zip(bytes.chunks(SECTOR_BYTES)) {
                            if next().is_multiple_of(2) {
                                old.copy_from_slice(new);
                            }
                        }
                    }
                },
            }
        }
        let crashed = Devices::new();
        for (name, bytes) in history.names.iter().zip(live) {
            crashed.add_with(name, bytes);
        }
        crashed
    }

    /// Bytes of a device as they are.
    pub fn bytes(&self, device: usize) -> Vec<u8> {
        self.0.lock().live[device].clone()
    }

    /// Changes bytes as an attacker, or a fault of the medium, does.
    pub fn tamper(&self, device: usize, change: impl FnOnce(&mut [u8])) {
        let history = &mut *self.0.lock();
        change(&mut history.live[device]);
        history.before = history.live.clone();
        history.events.clear();
    }

    /// Makes something fail.
    pub fn fail(&self, failure: Failure) {
        self.0.lock().failing.push(failure);
    }

    /// Ends all failures.
    pub fn heal(&self) {
        let history = &mut *self.0.lock();
        history.failing.clear();
        history.faults.clear();
    }
}

struct Simulated {
    history: Arc<Mutex<History>>,
    number: usize,
}

fn failed() -> io::Error {
    io::Error::other("the simulated medium failed")
}

impl Simulated {
    fn check(&self, history: &History, offset: u64, length: usize) -> io::Result<()> {
        let end = offset.checked_add(length as u64);
        match end.is_some_and(|end| end <= history.live[self.number].len() as u64) {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "the range lies beyond the end")),
        }
    }
}

impl History {
    /// Counts an operation, and says how it fails if it does: with what error, and after how many bytes.
    fn fault(&mut self, device: usize, operation: Operation) -> Option<(io::Error, usize)> {
        self.counts[device][operation as usize] += 1;
        let mut failed = None;
        for (fault, seen) in &mut self.faults {
            if fault.device != device || fault.operation != operation {
                continue;
            }
            let is_due = *seen == fault.after || (fault.is_lasting && *seen > fault.after);
            *seen += 1;
            if is_due {
                failed = Some((io::Error::from_raw_os_error(fault.errno), fault.written_bytes));
            }
        }
        failed
    }
}

impl Device for Simulated {
    fn size_bytes(&self) -> u64 {
        self.history.lock().live[self.number].len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let history = &mut *self.history.lock();
        self.check(history, offset, buffer.len())?;
        if let Some((error, _)) = history.fault(self.number, Operation::Read) {
            return Err(error);
        }
        let end = offset + buffer.len() as u64;
        let overlaps = |range: &Range<u64>| range.start < end && offset < range.end;
        let fails = |failure: &Failure| match failure {
            Failure::Reads(device, range) => *device == self.number && overlaps(range),
            Failure::Writes(_) | Failure::Flushes(_) => false,
        };
        if history.failing.iter().any(fails) {
            return Err(failed());
        }
        buffer.copy_from_slice(&history.live[self.number][offset as usize..end as usize]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let history = &mut *self.history.lock();
        self.check(history, offset, bytes.len())?;
        let fault = history.fault(self.number, Operation::Write);
        if history.failing.contains(&Failure::Writes(self.number)) {
            return Err(failed());
        }
        let count = fault.as_ref().map_or(bytes.len(), |(_, count)| *count.min(&bytes.len()));
        let bytes = &bytes[..count];
        history.live[self.number][offset as usize..][..count].copy_from_slice(bytes);
        if history.recording && count > 0 {
            history.events.push(Event::Write { device: self.number, offset, bytes: bytes.into() });
        }
        fault.map_or(Ok(()), |(error, _)| Err(error))
    }

    fn flush(&self) -> io::Result<()> {
        let history = &mut *self.history.lock();
        let device = self.number;
        let fault = history.fault(device, Operation::Flush).map(|(error, _)| error);
        let fault = fault.or_else(|| history.failing.contains(&Failure::Flushes(device)).then(failed));
        if history.recording {
            let is_lost = fault.is_some();
            history.events.push(if is_lost {
                Event::FailedFlush { device }
            } else {
                Event::Flush { device }
            });
        }
        fault.map_or(Ok(()), Err)
    }

    fn describe(&self) -> String {
        self.history.lock().names[self.number].clone()
    }
}
