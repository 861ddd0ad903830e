//! The files of a sidecar, and the record of the layout of a card and its policy table.

use super::failing::bad;
use crate::volume::log::is_blank;
use holdfast_daemon::paths::make_private;
use holdfast_daemon::volumes::folders::sync_parent;
use holdfast_daemon::volumes::media::Medium;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_stack::{DiskLayout, Geometry};
use holdfast_volume::{BLOCK_BYTES, Volume, VolumeError};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes of the log's circular part. A change of metadata must fit into it.
pub(super) const RING_BYTES: u64 = 64 << 20;
/// The policy table gets a page for so many blocks, so that it cannot become full however files are laid out.
const BLOCKS_PER_PAGE: u64 = 168;
/// Most blocks of a policy table, because all of it is in memory.
pub(super) const TABLE_BLOCKS_MAX: u64 = 4096;
const TABLE_BLOCKS_MIN: u64 = 64;
/// The beginning of the last block of `policy`. Version 1 had one partition, and was never released.
const MAGIC: &[u8; 16] = b"holdfast card 2\n";

/// The files of a sidecar.
pub(super) struct Sidecar {
    pub(super) directory: PathBuf,
    pub(super) key: PathBuf,
    pub(super) log: PathBuf,
    pub(super) policy: PathBuf,
}

impl Sidecar {
    pub(super) fn new(directory: &Path) -> Sidecar {
        let at = |name: &str| directory.join(name);
        Sidecar { directory: directory.to_owned(), key: at("key"), log: at("log"), policy: at("policy") }
    }

    /// Creates the file for a policy table of so many blocks and the record, and reserves its disk space. An
    /// existing file is used only if it is empty: a failed attempt left it.
    ///
    /// # Errors
    /// The file is not empty, or there is no room.
    pub(super) fn make_policy(&self, table_blocks: u64) -> Outcome<Medium> {
        make_private(&self.directory)?;
        let cannot = |error: std::io::Error| {
            Failure::new(Exit::CannotCreate, format!("{}: {error}", self.policy.display()))
        };
        if self.policy.exists() && !is_blank(&*Medium::open(&self.policy)?.device)? {
            let message =
                format!("{}: is the policy table of a card, whose log is missing", self.policy.display());
            return Err(Failure::new(Exit::CannotCreate, message).hint("name another directory"));
        }
        let bytes = (table_blocks + 1) * BLOCK_BYTES as u64;
        let made = File::options().write(true).create(true).truncate(true).mode(0o600).open(&self.policy);
        let made = made.and_then(|file| {
            fallocate(&file, FallocateFlags::empty(), 0, bytes).map_err(std::io::Error::from).or_else(
                |error| match error.kind() {
                    std::io::ErrorKind::Unsupported => file.set_len(bytes),
                    _ => Err(error),
                },
            )?;
            file.sync_all()
        });
        made.map_err(|error| {
            let _ = std::fs::remove_file(&self.policy);
            cannot(error)
        })?;
        sync_parent(&self.policy)?;
        Medium::open(&self.policy)
    }
}

/// Number of blocks of the policy table for these file systems.
pub(super) fn table_blocks<'a>(geometries: impl Iterator<Item = &'a Geometry>) -> u64 {
    let blocks: u64 = geometries.map(Geometry::blocks).sum();
    (blocks / BLOCKS_PER_PAGE).clamp(TABLE_BLOCKS_MIN, TABLE_BLOCKS_MAX)
}

/// Bytes of a disk that can be used: whole blocks.
pub(super) fn usable(disk: &Medium) -> u64 {
    disk.device.size_bytes() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
}

fn record_at(volume: &Volume) -> u64 {
    volume.size_bytes() - BLOCK_BYTES as u64
}

/// Writes the record of the layout, which completes the card.
pub(super) fn write_record(volume: &Volume, place: &DiskLayout) -> Result<(), VolumeError> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(holdfast_crypto::encode(place));
    assert!(bytes.len() <= BLOCK_BYTES, "so many partitions fit into a block");
    bytes.resize(BLOCK_BYTES, 0);
    volume.write(record_at(volume), &bytes)
}

/// Reads the record of the layout; `None` if it was not written.
pub(super) fn read_record(volume: &Volume, policy: &Path) -> Outcome<Option<DiskLayout>> {
    let mut bytes = vec![0; BLOCK_BYTES];
    volume.read(record_at(volume), &mut bytes)?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let rest = bytes.strip_prefix(MAGIC);
    let place: Option<DiskLayout> =
        rest.and_then(|mut rest| borsh::BorshDeserialize::deserialize(&mut rest).ok());
    let place = place.ok_or_else(|| bad(policy, "its record of where everything is has another format"))?;
    Ok(Some(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_access::{KeyName, Name};
    use holdfast_crypto::PublicKey;
    use holdfast_stack::{PARTITIONS_MAX, Partition};

    /// Proves: the record has the expected bytes (a golden vector), and one with the most partitions fits
    /// into a block.
    #[test]
    fn record() {
        let geometry = Geometry { metadata_bytes: 0x1000, block_bytes: 512, data_blocks: 9 };
        let partition = Partition { number: 1, start: 0x0010_0000, bytes: 0x20_0000, geometry };
        let place = DiskLayout {
            identity: [7; 16],
            partitions: vec![partition],
            table: (0x40_0000, 64),
            signed_by: None,
        };
        let hex: String = holdfast_crypto::encode(&place).iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = [
            "07070707070707070707070707070707",
            "01000000",
            "01000000",
            "0000100000000000",
            "0000200000000000",
            "0010000000000000",
            "00020000",
            "0900000000000000",
            "0000400000000000",
            "4000000000000000",
            // No package signs for the drivers. In records from before that field was added, these bytes are
            // zero.
            "00",
        ];
        assert_eq!(hex, expected.concat());
        let name = "x".repeat(64);
        let package = KeyName { key: PublicKey([1; 32]), name: Name::new(&name).expect("a name") };
        let partitions = vec![partition; PARTITIONS_MAX];
        let most = DiskLayout { partitions, signed_by: Some(package), ..place };
        assert!(MAGIC.len() + holdfast_crypto::encode(&most).len() <= BLOCK_BYTES);
    }
}
