//! The layout of a file system, from the boot sector alone.
//!
//! The driver sees its partition as numbered *blocks* in two areas. The metadata area starts at sector 0 and
//! has the reserved sectors and the FATs. The data area starts at the first data sector, so that a cluster is
//! a whole number of blocks however the data area is aligned. The last block of the metadata area may be
//! shorter.
//!
//! Attack answered: a boot sector is sixty bytes of arithmetic by an unknown author. Every field is checked
//! by name before anything is computed from it, and everything is computed in 64 bits.

use crate::{FatError, Result};
use std::fmt;

/// Largest block, and the page of the regions it lives in, in bytes.
pub const BLOCK_BYTES_MAX: u32 = 4096;
/// The first cluster's number.
pub const FIRST_CLUSTER: u32 = 2;
/// Most clusters: with 28 bits, larger numbers are marks for bad clusters and ends of chains.
pub(crate) const CLUSTERS_MAX: u64 = 0x0fff_fff5;
/// Bytes of a directory entry.
pub(crate) const ENTRY_BYTES: u32 = 32;
/// Entries a directory may have.
pub(crate) const ENTRIES_MAX: u32 = 65_536;

/// One of the two areas.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Area {
    /// Reserved sectors and FATs.
    Metadata,
    /// Clusters: directories, and the contents of files, which the driver never sees.
    Data,
}

/// A block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId {
    /// The area of the block.
    pub area: Area,
    /// The index, counted from the area's start in `Layout::block_bytes`.
    pub index: u64,
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.area {
            Area::Metadata => write!(f, "metadata block {}", self.index),
            Area::Data => write!(f, "data block {}", self.index),
        }
    }
}

/// Blocks in a row of the data area.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockRange {
    /// The first block.
    pub start: u64,
    /// The number of blocks.
    pub count: u64,
}

/// Consecutive clusters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first cluster.
    pub start: u32,
    /// The number of clusters.
    pub count: u32,
}

/// The copies of the FAT that are current.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mirroring {
    /// All, the first is read.
    All,
    /// Only this copy; the others are intentionally stale.
    Only(u8),
}

/// The content of the boot sector, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Bytes of a sector: 512, 1024, 2048 or 4096.
    pub sector_bytes: u32,
    /// Bytes of a cluster.
    pub cluster_bytes: u32,
    /// Bytes of a block: the smaller of a cluster and 4096.
    pub block_bytes: u32,
    /// Sectors before the first FAT.
    pub reserved_sectors: u32,
    /// Copies of the FAT.
    pub fats: u8,
    /// Sectors of one copy of the FAT.
    pub fat_sectors: u32,
    /// The copies of the FAT that are current.
    pub mirroring: Mirroring,
    /// The first sector of the data area.
    pub data_sector: u64,
    /// Sectors of the whole file system.
    pub sectors: u64,
    /// Clusters, numbered from 2.
    pub clusters: u32,
    /// The first cluster of the root directory.
    pub root_cluster: u32,
    /// The sector of FSInfo, if there is one.
    pub info_sector: Option<u32>,
    /// The sector of the boot sector's copy, if there is one.
    pub backup_sector: Option<u32>,
    /// The media byte.
    pub media: u8,
    /// The volume's serial number.
    pub volume_id: u32,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl Layout {
    /// Reads the boot sector: the first 512 bytes (at least) of a partition of `partition_bytes`.
    pub fn from_boot_sector(boot: &[u8], partition_bytes: u64) -> Result<Layout> {
        if boot.len() < 512 {
            return Err(FatError::NotFat32("there are fewer than 512 bytes".into()));
        }
        other_system(boot)?;
        let absurd = |what: String| Err(FatError::BadBootSector(what));
        let sector_bytes = u32::from(u16_at(boot, 11));
        if !matches!(sector_bytes, 512 | 1024 | 2048 | 4096) {
            return absurd(format!("sectors of {sector_bytes} bytes (512, 1024, 2048 or 4096 can be)"));
        }
        let sectors_each = u32::from(boot[13]);
        if !sectors_each.is_power_of_two() {
            return absurd(format!("{sectors_each} sectors a cluster (a power of two can be)"));
        }
        let cluster_bytes = sector_bytes * sectors_each;
        let reserved_sectors = u32::from(u16_at(boot, 14));
        if reserved_sectors == 0 {
            return absurd("no reserved sector, though the boot sector is one".into());
        }
        let fats = boot[16];
        if !(1..=2).contains(&fats) {
            return absurd(format!("{fats} copies of the FAT (1 or 2 can be)"));
        }
        if u16_at(boot, 22) != 0 || u16_at(boot, 17) != 0 {
            return Err(FatError::NotFat32(
                "it is FAT12 or FAT16 (it has a root directory of fixed size); copy its files off and format it as FAT32"
                    .into(),
            ));
        }
        let media = boot[21];
        if media != 0xf0 && media < 0xf8 {
            return absurd(format!("media byte {media:#04x} (0xf0 or 0xf8 to 0xff can be)"));
        }
        let fat_sectors = u32_at(boot, 36);
        if fat_sectors == 0 {
            return absurd("a FAT of no sectors".into());
        }
        let flags = u16_at(boot, 40);
        let mirroring = match flags & 0x80 {
            0 => Mirroring::All,
            _ => Mirroring::Only((flags & 0x0f) as u8),
        };
        if let Mirroring::Only(active) = mirroring
            && active >= fats
        {
            return absurd(format!("copy {active} of the FAT is the active one, and there are {fats}"));
        }
        if u16_at(boot, 42) != 0 {
            return absurd(format!("version {:#06x} of FAT32 (0.0 is the only one)", u16_at(boot, 42)));
        }
        let sectors = match (u16_at(boot, 19), u32_at(boot, 32)) {
            (0, 0) => return absurd("no sectors at all".into()),
            (0, large) => u64::from(large),
            (small, _) => u64::from(small),
        };
        if sectors * u64::from(sector_bytes) > partition_bytes {
            return absurd(format!(
                "{sectors} sectors of {sector_bytes} bytes do not fit into {partition_bytes} bytes (a part is cut off)"
            ));
        }
        let data_sector = u64::from(reserved_sectors) + u64::from(fats) * u64::from(fat_sectors);
        if data_sector >= sectors {
            return absurd(format!("the FATs end at sector {data_sector} of {sectors}: no room for data"));
        }
        let clusters = (sectors - data_sector) / u64::from(sectors_each);
        if clusters == 0 || clusters > CLUSTERS_MAX {
            return absurd(format!("{clusters} clusters (1 to {CLUSTERS_MAX} can be)"));
        }
        let entries = u64::from(fat_sectors) * u64::from(sector_bytes) / 4;
        if entries < clusters + u64::from(FIRST_CLUSTER) {
            return absurd(format!("a FAT of {entries} entries for {clusters} clusters"));
        }
        let clusters = clusters as u32;
        let root_cluster = u32_at(boot, 44);
        if root_cluster < FIRST_CLUSTER || root_cluster - FIRST_CLUSTER >= clusters {
            return absurd(format!("the root directory starts at {root_cluster}, which is no cluster"));
        }
        let reserved = |field: &str, at: usize| match u32::from(u16_at(boot, at)) {
            0 | 0xffff => Ok(None),
            sector if sector < reserved_sectors => Ok(Some(sector)),
            sector => Err(FatError::BadBootSector(format!(
                "{field} is said to be in sector {sector}, outside the {reserved_sectors} reserved ones"
            ))),
        };
        let info_sector = reserved("FSInfo", 48)?;
        let backup_sector = reserved("the boot sector's copy", 50)?;
        if info_sector.is_some() && info_sector == backup_sector {
            return absurd("FSInfo and the boot sector's copy are in one sector".into());
        }
        Ok(Layout {
            sector_bytes,
            cluster_bytes,
            block_bytes: cluster_bytes.min(BLOCK_BYTES_MAX),
            reserved_sectors,
            fats,
            fat_sectors,
            mirroring,
            data_sector,
            sectors,
            clusters,
            root_cluster,
            info_sector,
            backup_sector,
            media,
            volume_id: u32_at(boot, 67),
        })
    }

    /// The first byte of an area, from the partition's start.
    pub fn area_start(&self, area: Area) -> u64 {
        match area {
            Area::Metadata => 0,
            Area::Data => self.data_sector * u64::from(self.sector_bytes),
        }
    }

    /// The number of blocks of an area.
    pub fn area_blocks(&self, area: Area) -> u64 {
        match area {
            Area::Metadata => self.area_start(Area::Data).div_ceil(u64::from(self.block_bytes)),
            Area::Data => u64::from(self.clusters) * u64::from(self.blocks_each()),
        }
    }

    /// Byte offset of a block from the partition's start, and its length: `block_bytes`, except for the last
    /// block of the metadata area, which ends where the data area starts.
    pub fn place(&self, block: BlockId) -> (u64, usize) {
        let start = self.area_start(block.area) + block.index * u64::from(self.block_bytes);
        let bytes = match block.area {
            Area::Metadata => (self.area_start(Area::Data) - start).min(u64::from(self.block_bytes)),
            Area::Data => u64::from(self.block_bytes),
        };
        (start, bytes as usize)
    }

    /// The number of blocks of a cluster.
    pub fn blocks_each(&self) -> u32 {
        self.cluster_bytes / self.block_bytes
    }

    /// Whether that number is a cluster's.
    pub fn is_cluster(&self, number: u32) -> bool {
        number >= FIRST_CLUSTER && number - FIRST_CLUSTER < self.clusters
    }

    /// The blocks of clusters in a row.
    pub fn blocks(&self, run: Run) -> BlockRange {
        let each = u64::from(self.blocks_each());
        BlockRange { start: u64::from(run.start - FIRST_CLUSTER) * each, count: u64::from(run.count) * each }
    }

    /// Clusters that so many bytes take.
    pub fn clusters_for(&self, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(self.cluster_bytes))
    }

    /// The block of the metadata area that holds a byte, and where in it.
    pub(crate) fn metadata_block(&self, byte: u64) -> (BlockId, usize) {
        let each = u64::from(self.block_bytes);
        (BlockId { area: Area::Metadata, index: byte / each }, (byte % each) as usize)
    }

    /// The position of a cluster's entry in a copy of the FAT. An entry never crosses a block's edge.
    pub(crate) fn entry_place(&self, copy: u8, cluster: u32) -> (BlockId, usize) {
        let fat = u64::from(self.reserved_sectors) + u64::from(copy) * u64::from(self.fat_sectors);
        self.metadata_block(fat * u64::from(self.sector_bytes) + u64::from(cluster) * 4)
    }

    /// The copy of the FAT that is read.
    pub(crate) fn read_copy(&self) -> u8 {
        match self.mirroring {
            Mirroring::All => 0,
            Mirroring::Only(active) => active,
        }
    }

    /// The copies of the FAT that are written.
    pub(crate) fn written_copies(&self) -> std::ops::Range<u8> {
        match self.mirroring {
            Mirroring::All => 0..self.fats,
            Mirroring::Only(active) => active..active + 1,
        }
    }

    /// Number of clusters of the longest directory.
    pub(crate) fn directory_clusters_max(&self) -> u32 {
        (ENTRIES_MAX * ENTRY_BYTES).div_ceil(self.cluster_bytes)
    }
}

/// Names the file system, if it is not FAT32.
fn other_system(boot: &[u8]) -> Result<()> {
    let not = |what: &str| Err(FatError::NotFat32(what.into()));
    match &boot[3..11] {
        b"EXFAT   " => return not("it is exFAT; copy its files off and format it as FAT32"),
        b"NTFS    " => return not("it is NTFS; copy its files off and format it as FAT32"),
        b"-FVE-FS-" => return not("it is encrypted by BitLocker"),
        _ => {}
    }
    if boot.iter().take(512).all(|byte| *byte == 0) {
        return not(
            "the boot sector is empty; the medium is not formatted, or what is there starts elsewhere",
        );
    }
    if boot[510..512] != [0x55, 0xaa] {
        return not("the boot sector does not end with 55 AA");
    }
    if u16_at(boot, 11) == 0 && boot[13] == 0 && crate::partitions::looks_like_table(boot) {
        return not("it is a partition table; choose one of its partitions");
    }
    if boot[0] != 0xeb && boot[0] != 0xe9 {
        return not("the boot sector does not begin with a jump");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sound() -> Vec<u8> {
        crate::format::boot_sector_for_tests()
    }

    /// Proves that each absurdity is refused by its name, and that the sound sector is not.
    #[test]
    fn every_absurd_field_is_refused_by_name() {
        let bytes = 64 << 20;
        Layout::from_boot_sector(&sound(), bytes).expect("sound");
        let cases: &[(usize, &[u8], &str)] = &[
            (11, &[0, 0], "sectors of 0 bytes"),
            (11, &[1, 2], "sectors of 513 bytes"),
            (11, &[0, 0x20], "sectors of 8192 bytes"),
            (13, &[0], "0 sectors a cluster"),
            (13, &[3], "3 sectors a cluster"),
            (14, &[0, 0], "no reserved sector"),
            (16, &[0], "0 copies"),
            (16, &[200], "200 copies"),
            (17, &[0, 2], "FAT12 or FAT16"),
            (22, &[9, 0], "FAT12 or FAT16"),
            (21, &[0x12], "media byte 0x12"),
            (32, &[0, 0, 0, 0], "no sectors at all"),
            (32, &[0xff, 0xff, 0xff, 0xff], "do not fit"),
            (36, &[0, 0, 0, 0], "a FAT of no sectors"),
            (36, &[1, 0, 0, 0], "a FAT of 128 entries"),
            (36, &[0xff, 0xff, 0xff, 0xff], "no room for data"),
            (40, &[0x85, 0], "copy 5 of the FAT is the active one"),
            (42, &[1, 0], "version"),
            (44, &[0, 0, 0, 0], "root directory starts at 0"),
            (44, &[0xff, 0xff, 0xff, 0x0f], "root directory starts at 268435455"),
            (48, &[0xfe, 0xff], "FSInfo is said to be in sector 65534"),
            (50, &[1, 0], "in one sector"),
            (50, &[0xfe, 0xff], "boot sector's copy is said to be in sector 65534"),
            (3, b"EXFAT   ", "exFAT"),
            (3, b"NTFS    ", "NTFS"),
            (3, b"-FVE-FS-", "BitLocker"),
            (510, &[0, 0], "55 AA"),
            (0, &[0], "jump"),
        ];
        for (at, field, words) in cases {
            let mut boot = sound();
            boot[*at..*at + field.len()].copy_from_slice(field);
            let error = Layout::from_boot_sector(&boot, bytes).expect_err(words).to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
        assert!(Layout::from_boot_sector(&sound()[..100], bytes).is_err());
        assert!(
            Layout::from_boot_sector(&[0; 512], bytes).unwrap_err().to_string().contains("not formatted")
        );
        assert!(Layout::from_boot_sector(&sound(), bytes - 1).unwrap_err().to_string().contains("cut off"));
    }

    /// Proves that the areas cover the partition without overlap, whatever the alignment of the data area is.
    #[test]
    fn the_last_metadata_block_ends_where_the_data_area_starts() {
        let mut boot = sound();
        let sound = Layout::from_boot_sector(&boot, 64 << 20).unwrap();
        boot[14..16].copy_from_slice(&33u16.to_le_bytes());
        boot[13] = 8;
        let layout = Layout::from_boot_sector(&boot, 64 << 20).unwrap();
        assert_eq!(layout.block_bytes, 4096);
        assert_eq!(layout.data_sector, sound.data_sector - u64::from(sound.reserved_sectors) + 33);
        let last = BlockId { area: Area::Metadata, index: layout.area_blocks(Area::Metadata) - 1 };
        let (start, bytes) = layout.place(last);
        assert_eq!(start + bytes as u64, layout.area_start(Area::Data));
        assert!(bytes < 4096);
    }
}
