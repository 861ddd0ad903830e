//! The layout of the log device.
//!
//! ```text
//! 0        header, 4096    its copy
//! 8192     the ring: superblocks and log blocks
//! then     the block map: for each level, leaves first, two places for each node
//! ```
//!
//! header  0 magic [8] | 8 format u32 | 12 zero [4] | 16 volume [16] | 32 blocks u64 | 40 ring bytes u64
//!        48 tag [16] | 64 zero to 4096

use crate::key::VolumeKey;
use crate::map::Geometry;
use crate::{VolumeError, map};
use holdfast_log::device::Device;
use std::ops::Range;

/// Size of a block, in bytes.
pub const BLOCK_BYTES: usize = 4096;
const FORMAT: u32 = 1;
const MAGIC: &[u8; 8] = b"HFVOLUME";
const HEADERS: u64 = 2;
/// Smallest and usual size of the ring.
const RING_BYTES_MIN: u64 = 1 << 20;
const RING_BYTES: u64 = 256 << 20;

/// The content of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The name of the volume.
    pub volume: [u8; 16],
    /// Blocks of the volume.
    pub blocks: u64,
    /// Bytes of the ring.
    pub ring_bytes: u64,
}

/// How the space of a log device is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// Bytes of everything.
    pub bytes: u64,
}

impl Plan {
    /// The plan for a volume of `volume_bytes`, with a ring of `ring_bytes`, or by default of a sixteenth of
    /// the volume, at least a MiB and at most 256 MiB.
    pub fn new(volume_bytes: u64, ring_bytes: Option<u64>) -> Plan {
        let usual = (volume_bytes / 16).clamp(RING_BYTES_MIN, RING_BYTES);
        let ring_bytes = ring_bytes.unwrap_or(usual).next_multiple_of(BLOCK_BYTES as u64);
        let map = Geometry::new(volume_bytes / BLOCK_BYTES as u64).bytes();
        Plan { ring_bytes, bytes: HEADERS * BLOCK_BYTES as u64 + ring_bytes + map }
    }
}

impl Header {
    /// The byte range of the ring on the log device.
    pub fn ring(&self) -> Range<u64> {
        let start = HEADERS * BLOCK_BYTES as u64;
        start..start + self.ring_bytes
    }

    /// The byte at which the block map begins.
    pub fn map(&self) -> u64 {
        self.ring().end
    }

    fn encode(&self, key: &VolumeKey) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.volume);
        bytes[32..40].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.ring_bytes.to_le_bytes());
        let tag = key.header(&bytes);
        bytes[48..64].copy_from_slice(&tag);
        bytes
    }

    fn decode(bytes: &[u8; BLOCK_BYTES], key: &VolumeKey) -> Option<Header> {
        let mut blank = *bytes;
        blank[48..64].fill(0);
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let ours = bytes[..8] == *MAGIC
            && bytes[8..12] == FORMAT.to_le_bytes()
            && map::same_tag(&key.header(&blank), &bytes[48..64].try_into().expect("16 bytes"));
        let volume = bytes[16..32].try_into().expect("16 bytes");
        ours.then(|| Header { volume, blocks: number(32), ring_bytes: number(40) })
    }

    /// Erases a device's header, so that its former content is not taken for a volume's log while a new one
    /// is made.
    pub(crate) fn erase(device: &dyn Device) -> Result<(), VolumeError> {
        let zeroes = [0; HEADERS as usize * BLOCK_BYTES];
        io(device, "writing the header on", device.write_at(0, &zeroes))?;
        io(device, "flushing", device.flush())
    }

    /// Writes both copies of the header.
    pub(crate) fn write(&self, device: &dyn Device, key: &VolumeKey) -> Result<(), VolumeError> {
        let bytes = self.encode(key);
        for copy in 0..HEADERS {
            io(device, "writing the header on", device.write_at(copy * BLOCK_BYTES as u64, &bytes))?;
            io(device, "flushing", device.flush())?;
        }
        Ok(())
    }

    /// Reads and verifies the header.
    ///
    /// # Errors
    /// [`VolumeError::NotOurs`], [`VolumeError::Size`], [`VolumeError::Io`].
    pub fn read(device: &dyn Device, key: &VolumeKey) -> Result<Header, VolumeError> {
        let mut bytes = [0; BLOCK_BYTES];
        for copy in 0..HEADERS {
            io(device, "reading the header on", device.read_at(copy * BLOCK_BYTES as u64, &mut bytes))?;
            let Some(header) = Header::decode(&bytes, key) else { continue };
            let needed = header.map() + Geometry::new(header.blocks).bytes();
            if device.size_bytes() < needed {
                return Err(VolumeError::Size(format!(
                    "{} has {} bytes, but this volume's log needs {needed}",
                    device.describe(),
                    device.size_bytes()
                )));
            }
            return Ok(header);
        }
        Err(VolumeError::NotOurs { device: device.describe() })
    }

    /// The name that the header claims; not verified.
    pub fn claimed_volume(device: &dyn Device) -> Option<[u8; 16]> {
        let mut bytes = [0; BLOCK_BYTES];
        (0..HEADERS).find_map(|copy| {
            device.read_at(copy * BLOCK_BYTES as u64, &mut bytes).ok()?;
            (bytes[..8] == *MAGIC).then(|| bytes[16..32].try_into().expect("16 bytes"))
        })
    }
}

pub(crate) fn io<T>(
    device: &dyn Device,
    action: &'static str,
    result: std::io::Result<T>,
) -> Result<T, VolumeError> {
    result.map_err(|error| VolumeError::Io { action, device: device.describe(), error: error.to_string() })
}
