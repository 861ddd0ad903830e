//! Protected volumes against crashes, faults and whoever has the disk.
//!
//! [`program`] runs a random program on a volume over recorded devices; [`oracle`] knows what each block may have after
//! a crash at any moment; [`crash`] makes the states that a crash may leave; [`check`] recovers each and asks the
//! oracle; [`order`] checks the write-ahead rule at every write. [`attack`] has what an attacker can do, and the verdicts.

pub mod attack;
pub mod check;
pub mod crash;
pub mod oracle;
pub mod order;
pub mod program;

use holdfast_log::device::Device;
use holdfast_log::ring::Anchor;
use holdfast_log::simulated_device::Devices;
use holdfast_volume::{BLOCK_BYTES, Options, Plan, Report, Volume, VolumeError, VolumeKey};
use std::sync::Arc;

/// The protected device among the simulated ones.
pub const DISK: usize = 0;
/// The device of its log.
pub const LOG: usize = 1;
/// Size of the log's ring: as small as it may be, so that it comes round often.
pub const RING_BYTES: u64 = 66 * BLOCK_BYTES as u64;

/// Size of a block, in bytes.
pub const BLOCK_BYTES_U64: u64 = BLOCK_BYTES as u64;
/// One block.
pub type Block = [u8; BLOCK_BYTES];

/// The key of the volumes here.
pub fn key() -> VolumeKey {
    VolumeKey::new(&[3; 32], b"a tested volume.")
}

/// What a block has before anything is written.
pub fn original(block: u64) -> Block {
    content(1 << 40 | block)
}

/// Bytes that no other number has, in any sector.
pub fn content(number: u64) -> Block {
    let mut bytes = [0; BLOCK_BYTES];
    for (sector, bytes) in bytes.chunks_exact_mut(512).enumerate() {
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..].fill((number as u8).wrapping_mul(31).wrapping_add(sector as u8));
    }
    bytes
}

/// A disk of `blocks` blocks with data, and an empty device for its log.
pub fn unprotected(blocks: u64) -> Devices {
    let devices = Devices::new();
    devices.add_with("disk", (0..blocks).flat_map(original).collect());
    let plan = Plan::new(blocks * BLOCK_BYTES as u64, Some(RING_BYTES));
    devices.add("log", plan.bytes as usize);
    devices
}

/// The two devices of a volume.
pub fn pair(devices: &Devices) -> (Arc<dyn Device>, Arc<dyn Device>) {
    (devices.device(DISK), devices.device(LOG))
}

/// The same, taken over; nothing is recorded of that.
///
/// # Panics
/// If that fails.
pub fn protected(blocks: u64) -> Devices {
    let devices = unprotected(blocks);
    devices.record(false);
    let (disk, log) = pair(&devices);
    Volume::format(&*disk, &*log, &key(), Some(RING_BYTES)).expect("formatted");
    assert!(Volume::adopt(disk, log, &key(), [1; 16], None, &|_, _| true).expect("adopted"));
    devices.forget();
    devices.record(true);
    devices
}

/// Opens it. The salt, which is to be random, is made of `salt`.
///
/// # Errors
/// As [`Volume::open`].
pub fn open(
    devices: &Devices,
    options: &Options,
    anchor: Option<&Anchor>,
    salt: u64,
) -> Result<(Volume, Report), VolumeError> {
    let (disk, log) = pair(devices);
    let salt = [salt.to_le_bytes(), (!salt).to_le_bytes()].concat().try_into().expect("16 bytes");
    Volume::open(disk, log, &key(), options.clone(), anchor, salt)
}

/// Reads a block.
///
/// # Errors
/// As [`Volume::read`].
pub fn read(volume: &Volume, block: u64) -> Result<Block, VolumeError> {
    let mut bytes = [0; BLOCK_BYTES];
    volume.read(block * BLOCK_BYTES as u64, &mut bytes)?;
    Ok(bytes)
}
