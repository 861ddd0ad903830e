//! Volumes on devices that fail, at every single operation, and on a slow one.

use holdfast_log::device::Device;
use holdfast_log::simulated_device::{Devices, Fault, Operation};
use holdfast_sim::random::Random;
use holdfast_sim::volume::check::{CheckResult, check};
use holdfast_sim::volume::crash::Moment;
use holdfast_sim::volume::oracle::Oracle;
use holdfast_sim::volume::{
    BLOCK_BYTES_U64, DISK, LOG, RING_BYTES, content, key, open, original, protected, read, unprotected,
};
use holdfast_volume::{Options, Volume, VolumeError};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

const BLOCKS: u64 = 300;

fn fresh(base: &Devices) -> Devices {
    let devices = Devices::new();
    devices.add_with("disk", base.bytes(DISK));
    devices.add_with("log", base.bytes(LOG));
    devices
}

fn options() -> Options {
    Options { dirty_max: 64, candidates_max: 2, nodes_max: 16, ..Options::default() }
}

/// Some work of every kind. Notes what was acknowledged; `Err` has the first failure. If that is final, nothing is
/// accepted afterwards.
fn program(devices: &Devices, oracle: &Oracle, is_final: bool) -> Result<(), VolumeError> {
    let mut failed = Ok(());
    let (volume, _) = open(devices, &options(), None, 5)?;
    let mut note = |done: Result<(), VolumeError>| {
        if failed.is_ok() {
            failed = done;
        }
    };
    let write = |block: u64, count: u64, number: u64| {
        let contents: Vec<_> = (number..number + count).map(content).collect();
        let bytes = contents.concat();
        oracle.begin(block, contents, devices.mark());
        let done = volume.write(block * BLOCK_BYTES_U64, &bytes);
        if done.is_ok() {
            oracle.end(block..block + count, devices.mark());
        }
        done
    };
    let flush = || {
        let began = devices.mark();
        let done = volume.flush();
        if done.is_ok() {
            oracle.flushed(began, devices.mark(), volume.anchor());
        }
        done
    };
    note(write(3, 1, 1));
    note(flush());
    note(write(10, 40, 10));
    note(volume.work());
    note(write(20, 30, 60));
    note(flush());
    for number in 0..3 {
        note(write(20, 1, 100 + number));
        note(volume.work());
    }
    note(read(&volume, 280).map(drop));
    note(write(100, 70, 200));
    oracle.begin(150, vec![[0; 4096]; 10], devices.mark());
    let discarded = volume.discard(150 * BLOCK_BYTES_U64, 10 * BLOCK_BYTES_U64);
    if discarded.is_ok() {
        oracle.end(150..160, devices.mark());
    }
    note(discarded);
    note(flush());
    note(volume.checkpoint());
    note(write(260, 5, 300));
    note(flush());
    note(volume.close());
    if failed.is_err() && is_final {
        assert!(matches!(volume.flush(), Err(VolumeError::Stopped(_))), "nothing is promised any more");
        assert!(volume.write(0, &content(1)).is_err());
    }
    failed
}

/// Proves: whichever operation of either device fails, once or from then on, having done nothing or a part: the failure
/// is reported, nothing is acknowledged that is not there, and once the medium is honest again everything acknowledged
/// is there. A failed write or flush is final. A failed flush loses what was not flushed, whatever the next one
/// reports.
#[test]
fn every_operation_fails() {
    let base = protected(BLOCKS);
    let counted = fresh(&base);
    program(&counted, &Oracle::default(), true).expect("nothing fails");
    let mut random = Random::new(1);
    let mut told = 0;
    for device in [DISK, LOG] {
        for operation in [Operation::Read, Operation::Write, Operation::Flush] {
            let count = counted.operations(device, operation);
            assert!(count > 0, "{device} {operation:?}");
            for after in 0..count {
                let written_bytes = *random.pick(&[0, 512, 4096, 10_000 / 512 * 512]);
                let errno = *random.pick(&[libc::EIO, libc::ENOSPC]);
                let fault =
                    Fault { device, operation, after, errno, written_bytes, is_lasting: random.chance(50) };
                let devices = fresh(&base);
                devices.inject(fault);
                let oracle = Oracle::default();
                let outcome = program(&devices, &oracle, operation != Operation::Read);
                let was_hit = devices.operations(device, operation) > after;
                if operation == Operation::Read {
                    // A read may be repeated, or read a copy.
                    assert!(outcome.is_ok() || was_hit, "{fault:?}");
                } else {
                    assert_eq!(outcome.is_err(), was_hit, "{fault:?}");
                }
                told += u64::from(outcome.is_err());
                devices.heal();
                let trace = devices.trace();
                let mut moment = Moment::first(&trace);
                trace.events.iter().for_each(|event| moment.step(event));
                let allowed = oracle.after(trace.events.len());
                for mut state in moment.states(&mut random, 3) {
                    // A partial write is recorded as a whole one that is shorter.
                    state.torn[DISK].extend(0..BLOCKS);
                    let done =
                        check(&state, &allowed, &options(), 0, &mut random, &mut CheckResult::default());
                    done.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
                }
            }
        }
    }
    assert!(told > 50);
}

/// Proves: a disk is never taken over by half without an error, whatever fails, and it can be taken over later.
#[test]
fn every_operation_fails_while_protecting() {
    let start = unprotected(BLOCKS);
    let protect = |devices: &Devices| {
        let (disk, log) = (devices.device(DISK), devices.device(LOG));
        Volume::format(&*disk, &*log, &key(), Some(RING_BYTES))?;
        Volume::adopt(disk, log, &key(), [4; 16], None, &|_, _| true)
    };
    let counted = fresh(&start);
    assert!(protect(&counted).expect("nothing fails"));
    for device in [DISK, LOG] {
        for operation in [Operation::Read, Operation::Write, Operation::Flush] {
            for after in 0..counted.operations(device, operation) {
                let devices = fresh(&start);
                let (errno, written_bytes, is_lasting) = (libc::EIO, 512, false);
                devices.inject(Fault { device, operation, after, errno, written_bytes, is_lasting });
                assert!(protect(&devices).is_err(), "{device} {operation:?} {after}");
                devices.heal();
                assert!(protect(&devices).expect("healed"));
                let (volume, _) = open(&devices, &options(), None, 6).expect("opens");
                assert!(read(&volume, after % BLOCKS).expect("read") == original(after % BLOCKS));
            }
        }
    }
}

/// A device whose writes wait until they are let through.
struct Gated {
    device: Arc<dyn Device>,
    state: Mutex<(bool, u64)>,
    changed: Condvar,
}

impl Gated {
    fn set(&self, is_open: bool) {
        self.state.lock().expect("unbroken").0 = is_open;
        self.changed.notify_all();
    }

    /// Waits until a write waits.
    fn wait_for_writer(&self) {
        let state = self.state.lock().expect("unbroken");
        drop(self.changed.wait_while(state, |(_, waiting)| *waiting == 0).expect("unbroken"));
    }
}

impl Device for Gated {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().expect("unbroken");
        state.1 += 1;
        self.changed.notify_all();
        let mut state = self.changed.wait_while(state, |(is_open, _)| !*is_open).expect("unbroken");
        state.1 -= 1;
        drop(state);
        self.device.write_at(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn describe(&self) -> String {
        self.device.describe()
    }
}

/// Proves: while the disk does not finish a write, writers wait once the buffers are full instead of filling memory,
/// and others can read. When the disk goes on, everything is there.
#[test]
fn a_slow_disk() {
    let devices = protected(BLOCKS);
    let gate = Arc::new(Gated {
        device: devices.device(DISK),
        state: Mutex::new((true, 0)),
        changed: Condvar::new(),
    });
    let options = Options { dirty_max: 20, ..Options::default() };
    let (volume, _) =
        Volume::open(gate.clone(), devices.device(LOG), &key(), options, None, [8; 16]).expect("opens");
    gate.set(false);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for block in 0..200 {
                volume.write(block * BLOCK_BYTES_U64, &content(block)).expect("written");
                written.store(block + 1, SeqCst);
            }
        });
        gate.wait_for_writer();
        // A writer who fills the buffers writes them out itself, so it waits now.
        assert_eq!(written.load(SeqCst), 20);
        assert!(read(&volume, 5).expect("read") == content(5));
        assert!(read(&volume, 250).expect("read") == original(250));
        gate.set(true);
    });
    volume.flush().expect("flushed");
    drop(volume);
    let (volume, _) = open(&devices, &Options::default(), None, 9).expect("opens");
    for block in 0..200 {
        assert!(read(&volume, block).expect("read") == content(block));
    }
}
