//! Commands for `/dev/ublk-control`: adding a device, starting it, and removing it.

use crate::kernel::{BESIDE_BYTES, ControlRing};
use std::fs::File;
use std::io;

/// The control device.
pub const CONTROL: &str = "/dev/ublk-control";
/// Most requests at the same time.
pub const DEPTH: u16 = 64;
/// Largest request, in bytes.
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Feature flags: commands are numbered as ioctls are, and data goes through reads and writes.
const IOCTL_NUMBERS: u64 = 1 << 6;
const USER_COPY: u64 = 1 << 7;

const fn number(direction: u32, command: u32) -> u32 {
    let bytes = 32;
    direction << 30 | bytes << 16 | (b'u' as u32) << 8 | command
}

const READ: u32 = 2;
const BOTH: u32 = 3;
const FEATURES: u32 = number(READ, 0x13);
const ADD: u32 = number(BOTH, 0x04);
const DELETE: u32 = number(BOTH, 0x05);
const START: u32 = number(BOTH, 0x06);
const STOP: u32 = number(BOTH, 0x07);
const SET_PARAMETERS: u32 = number(BOTH, 0x08);

/// Parameters of a new device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceParameters {
    /// The size in bytes.
    pub size_bytes: u64,
    /// Whether the device is read-only.
    pub is_read_only: bool,
}

/// A connection to the driver.
pub struct Control(ControlRing);

impl Control {
    pub fn open() -> io::Result<Control> {
        let file = File::options().read(true).write(true).open(CONTROL)?;
        Ok(Control(ControlRing::new(file)?))
    }

    /// Whether the kernel has the features that are needed here; kernels before 6.5 have not.
    pub fn can_serve(&mut self) -> bool {
        let mut features = [0; BESIDE_BYTES];
        let sent = self.0.send(FEATURES, u32::MAX, &mut features, 8, 0);
        let features = u64::from_ne_bytes(*features.first_chunk().expect("8 bytes"));
        let needed = IOCTL_NUMBERS | USER_COPY;
        sent.is_ok() && features & needed == needed
    }

    /// Adds a device that is not started yet. Returns its number.
    pub fn add(&mut self) -> io::Result<u32> {
        let mut parameters = [0; BESIDE_BYTES];
        parameters[..2].copy_from_slice(&1u16.to_ne_bytes());
        parameters[2..4].copy_from_slice(&DEPTH.to_ne_bytes());
        parameters[8..12].copy_from_slice(&REQUEST_BYTES_MAX.to_ne_bytes());
        parameters[12..16].copy_from_slice(&u32::MAX.to_ne_bytes());
        parameters[24..32].copy_from_slice(&(IOCTL_NUMBERS | USER_COPY).to_ne_bytes());
        self.0.send(ADD, u32::MAX, &mut parameters, BESIDE_BYTES as u16, 0)?;
        let number = parameters[12..16].try_into().expect("4 bytes");
        Ok(u32::from_ne_bytes(number))
    }

    /// Sets the parameters of a device.
    pub fn shape(&mut self, device: u32, shape: &DeviceParameters) -> io::Result<()> {
        let (read_only, volatile_cache, fua) = (1u32, 1 << 2, 1 << 3);
        let attributes = volatile_cache | fua | if shape.is_read_only { read_only } else { 0 };
        let mut parameters = [0; BESIDE_BYTES];
        let mut put = |at: usize, bytes: &[u8]| parameters[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &60u32.to_ne_bytes());
        // The types of parameters that follow: basic ones, and those for discarding blocks.
        put(4, &3u32.to_ne_bytes());
        put(8, &attributes.to_ne_bytes());
        // Sectors have 512 bytes. The logical block size is a sector; physical, smallest and best sizes are
        // 4096 bytes.
        put(12, &[9, 12, 12, 12]);
        put(16, &(REQUEST_BYTES_MAX / 512).to_ne_bytes());
        put(24, &(shape.size_bytes / 512).to_ne_bytes());
        let sectors_max = (1u32 << 30) / 512;
        put(44, &4096u32.to_ne_bytes());
        put(48, &sectors_max.to_ne_bytes());
        put(52, &sectors_max.to_ne_bytes());
        put(56, &1u16.to_ne_bytes());
        self.0.send(SET_PARAMETERS, device, &mut parameters, 60, 0)
    }

    /// Starts a device. The kernel reads the device's first blocks at once, so its queue must already be
    /// served. `process` is the process that serves it.
    pub fn start(&mut self, device: u32, process: u32) -> io::Result<()> {
        self.plain(START, device, process.into())
    }

    /// Stops a device: running requests are answered, and no more arrive.
    pub fn stop(&mut self, device: u32) -> io::Result<()> {
        self.plain(STOP, device, 0)
    }

    /// Removes the device.
    pub fn delete(&mut self, device: u32) -> io::Result<()> {
        self.plain(DELETE, device, 0)
    }

    fn plain(&mut self, command: u32, device: u32, data: u64) -> io::Result<()> {
        self.0.send(command, device, &mut [0; BESIDE_BYTES], 0, data)
    }
}
