//! The layout of a disk: its partitions, the blocks of their file systems, and the policy table.
//!
//! The layout is made once, when a disk is formatted or adopted, and stored in the volume after the table.
//! From then on it alone defines which bytes a block number stands for, because principals own numbers: if a
//! partition could be moved under its numbers, one user's bytes could go to another. What the disk itself
//! says is compared with the layout ([`DiskLayout::agrees`]) and never used instead.

use crate::StackError;
use crate::protocol::Blocks;
use holdfast_access::KeyName;
use holdfast_monitor::{Extent, PAGE_BYTES};

/// Most file systems of one disk.
pub const PARTITIONS_MAX: usize = 64;
/// Every offset on a disk is a multiple of this, in bytes.
const SECTOR_BYTES: u64 = 512;

/// The positions of a file system's blocks, which is all that the host needs of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Geometry {
    /// Bytes of the metadata area, with which it begins.
    pub metadata_bytes: u64,
    /// Bytes of a data block.
    pub block_bytes: u32,
    /// Blocks of the data area, which follows the metadata.
    pub data_blocks: u64,
}

impl Geometry {
    /// The geometry of a FAT32 file system.
    pub(crate) fn of(layout: &holdfast_fat::Layout) -> Geometry {
        use holdfast_fat::Area;
        Geometry {
            metadata_bytes: layout.area_start(Area::Data),
            block_bytes: layout.block_bytes,
            data_blocks: layout.area_blocks(Area::Data),
        }
    }

    /// Blocks of the metadata area; the last one may be shorter.
    pub fn metadata_blocks(&self) -> u64 {
        self.metadata_bytes.div_ceil(self.block_bytes.into())
    }

    /// The number of blocks, of metadata and data.
    pub fn blocks(&self) -> u64 {
        self.metadata_blocks() + self.data_blocks
    }

    /// The end of the file system, in bytes from its beginning; `None` if the geometry is impossible.
    fn end(&self) -> Option<u64> {
        let fits = (512..=PAGE_BYTES as u32).contains(&self.block_bytes)
            && self.block_bytes.is_power_of_two()
            && self.metadata_bytes.is_multiple_of(SECTOR_BYTES)
            && self.metadata_bytes > 0
            && self.data_blocks > 0;
        let data = self.data_blocks.checked_mul(self.block_bytes.into())?;
        fits.then_some(())?;
        self.metadata_bytes.checked_add(data)
    }
}

/// A partition with a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Partition {
    /// The number in the partition table, from 1; 0 where there is no table.
    pub number: u32,
    /// The first byte.
    pub start: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The geometry of its file system.
    pub geometry: Geometry,
}

impl Partition {
    /// Checks that all blocks are in the partition, and on a disk of `disk_bytes`.
    ///
    /// # Errors
    /// [`StackError`], in words.
    pub fn check(&self, disk_bytes: u64) -> Result<(), StackError> {
        let Partition { number, start, bytes, geometry } = self;
        let end = geometry.end().filter(|end| end <= bytes);
        let is_aligned = start.is_multiple_of(SECTOR_BYTES);
        match end.and_then(|end| start.checked_add(end)) {
            Some(end) if end <= disk_bytes && is_aligned => Ok(()),
            Some(end) if is_aligned => Err(StackError::Component(format!(
                "partition {number} ends at byte {end}, and of the disk {disk_bytes} bytes can be used (whole blocks of 4096)"
            ))),
            _ => Err(StackError::Component(format!(
                "partition {number}: {geometry:?} is not the geometry of a file system in {bytes} bytes"
            ))),
        }
    }
}

/// The layout of a disk, and of what follows it in its volume.
#[derive(Clone, PartialEq, Eq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct DiskLayout {
    /// A random identity, chosen when the disk was formatted or adopted.
    pub identity: [u8; 16],
    /// The partitions with file systems.
    pub partitions: Vec<Partition>,
    /// Byte offset of the policy table, and its number of blocks.
    pub table: (u64, u64),
    /// The package whose signer decides which programs are drivers of its file systems; `None`: this machine
    /// decides.
    pub signed_by: Option<KeyName>,
}

impl DiskLayout {
    /// The extents of blocks: for each file system its metadata area, the rest of that area, and its data
    /// area; then the policy table. Bytes outside of them have no number, and no principal can get them.
    pub fn extents(&self) -> Vec<Extent> {
        let mut extents = Vec::new();
        for Partition { start, geometry, .. } in &self.partitions {
            let bytes = u64::from(geometry.block_bytes);
            let (whole, rest) = (geometry.metadata_bytes / bytes, geometry.metadata_bytes % bytes);
            let block_bytes = geometry.block_bytes as u16;
            if whole > 0 {
                extents.push(Extent { offset: *start, block_bytes, blocks: whole });
            }
            if rest > 0 {
                extents.push(Extent { offset: start + whole * bytes, block_bytes: rest as u16, blocks: 1 });
            }
            let offset = start + geometry.metadata_bytes;
            extents.push(Extent { offset, block_bytes, blocks: geometry.data_blocks });
        }
        let (offset, blocks) = self.table;
        extents.push(Extent { offset, block_bytes: PAGE_BYTES as u16, blocks });
        extents
    }

    /// The numbers of a file system's blocks, by its position in the list.
    pub fn blocks(&self, partition: usize) -> Blocks {
        let before = self.partitions[..partition].iter().map(|one| one.geometry.blocks()).sum();
        Blocks { first: before, count: self.partitions[partition].geometry.blocks() }
    }

    /// The disk, for its policy table.
    pub fn disk(&self, number: u16) -> holdfast_policy::Disk {
        let blocks = self.partitions.iter().map(|one| one.geometry.blocks()).sum();
        let (identity, table_blocks) = (self.identity, self.table.1);
        holdfast_policy::Disk { number, identity, blocks, table_first: blocks, table_blocks }
    }

    /// Index of a file system in the list, by its number in the partition table.
    pub fn find(&self, number: u32) -> Option<usize> {
        self.partitions.iter().position(|one| one.number == number)
    }

    /// Checks for one file system that the disk still has the layout that was recorded.
    ///
    /// # Errors
    /// [`StackError`], in words.
    pub fn agrees(&self, partition: usize, found: &[FoundPartition]) -> Result<(), StackError> {
        let expected = &self.partitions[partition];
        let number = expected.number;
        let failed = |what: String| Err(StackError::Component(format!("partition {number}: {what}")));
        let Some(found) = found.iter().find(|one| one.number == number) else {
            return failed("the partition table has it no more".to_owned());
        };
        match &found.holds {
            Err(words) => failed(words.clone()),
            Ok(geometry) => {
                let now = Partition { number, start: found.start, bytes: found.bytes, geometry: *geometry };
                if now == *expected {
                    return Ok(());
                }
                failed(format!("the disk says {now:?}, and when owners were given it was {expected:?}"))
            }
        }
    }
}

/// A partition according to FSLoader. Not trusted: FSLoader read it from the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundPartition {
    /// The number of the partition in the table.
    pub number: u32,
    /// The first byte.
    pub start: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The geometry of its FAT32 file system; or what it contains instead, in words.
    pub holds: Result<Geometry, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(start: u64, metadata_bytes: u64, block_bytes: u32, data_blocks: u64) -> Partition {
        let geometry = Geometry { metadata_bytes, block_bytes, data_blocks };
        let bytes = metadata_bytes + data_blocks * u64::from(block_bytes) + 512;
        Partition { number: 1, start, bytes, geometry }
    }

    /// Proves: the numbers of a disk's blocks are dense and in order, and no two mean the same bytes.
    #[test]
    fn numbers() {
        let partitions = vec![partition(1 << 20, 5 * 512, 1024, 10), partition(2 << 20, 8192, 4096, 3)];
        let disk_layout = DiskLayout { identity: [1; 16], partitions, table: (4 << 20, 8), signed_by: None };
        let layout = holdfast_monitor::Layout::new(disk_layout.extents(), 8 << 20).expect("disjoint");
        assert_eq!(disk_layout.blocks(0), Blocks { first: 0, count: 13 });
        assert_eq!(disk_layout.blocks(1), Blocks { first: 13, count: 5 });
        assert_eq!(layout.blocks(), 13 + 5 + 8);
        assert_eq!(disk_layout.disk(3).table_first, 18);
        assert_eq!(layout.find(2), Some(((1 << 20) + 2048, 512, 1)), "what is left over of the metadata");
        assert_eq!(layout.find(3), Some(((1 << 20) + 2560, 1024, 10)));
        assert_eq!(layout.find(13), Some((2 << 20, 4096, 2)));
    }

    /// Proves: a geometry that cannot be, or leaves its partition or the disk, is refused.
    #[test]
    fn geometries() {
        let disk = 1 << 30;
        assert!(partition(1 << 20, 8192, 4096, 3).check(disk).is_ok());
        let cases = [
            partition(1 << 20, 8192, 0, 3),
            partition(1 << 20, 8192, 8192, 3),
            partition(1 << 20, 8192, 1536, 3),
            partition(1 << 20, 0, 4096, 3),
            partition(1 << 20, 100, 4096, 3),
            partition(1 << 20, 8192, 4096, 0),
            partition(disk, 8192, 4096, 3),
            partition(7, 8192, 4096, 3),
            Partition { bytes: 8192, ..partition(1 << 20, 8192, 4096, 3) },
            Partition {
                geometry: Geometry { metadata_bytes: 512, block_bytes: 4096, data_blocks: u64::MAX },
                ..partition(0, 512, 512, 1)
            },
        ];
        for case in cases {
            assert!(case.check(disk).is_err(), "{case:?}");
        }
    }
}
