//! Making a FAT32 file system: the blocks that a formatter writes.
//!
//! There are as many reserved sectors as needed for the data area to begin at a multiple of the cluster size,
//! so that clusters and blocks are aligned to the partition. The limbo is made too, so that a full disk has
//! one.

use crate::layout::{Area, BlockId, CLUSTERS_MAX, FIRST_CLUSTER, Layout};
use crate::limbo::LIMBO;
use crate::time::Stored;
use crate::{FatError, Moment, Result, entry, names, summary};

/// With fewer clusters Windows takes the file system for FAT16.
const CLUSTERS_MIN: u64 = 65_525;
const RESERVED_MIN: u64 = 32;
const INFO_SECTOR: u32 = 1;
const BACKUP_SECTOR: u32 = 6;
const MEDIA: u8 = 0xf8;

/// Options of a new file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormatOptions {
    /// Bytes of a sector: 512, or 4096 on disks that have no smaller.
    pub sector_bytes: u32,
    /// Bytes of a cluster, or as suits the size.
    pub cluster_bytes: Option<u32>,
    /// The label; may be empty.
    pub label: String,
    /// The serial number of the volume.
    pub volume_id: u32,
    /// Sectors before the partition, for the boot sector.
    pub hidden_sectors: u32,
    /// The time that the root directory gets.
    pub now: Moment,
    /// How far local time is ahead of UTC.
    pub utc_offset_minutes: i16,
}

/// A file system to be written.
#[derive(Clone, Debug)]
pub struct FormattedFileSystem {
    /// The layout of the file system.
    pub layout: Layout,
    boot: Vec<u8>,
    root: Vec<u8>,
    limbo: Vec<u8>,
}

/// Plans a file system on a partition of so many bytes.
pub fn format(partition_bytes: u64, options: &FormatOptions) -> Result<FormattedFileSystem> {
    let sector_bytes = options.sector_bytes;
    if !matches!(sector_bytes, 512 | 1024 | 2048 | 4096) {
        return Err(FatError::BadOption(format!("sectors of {sector_bytes} bytes cannot be")));
    }
    let sectors = partition_bytes / u64::from(sector_bytes);
    if sectors > u64::from(u32::MAX) {
        return Err(FatError::BadOption(format!(
            "FAT32 counts at most {} sectors; make a smaller partition",
            u32::MAX
        )));
    }
    let usual = match partition_bytes >> 20 {
        0..256 => 512,
        256..8192 => 4096,
        8192..16_384 => 8192,
        16_384..32_768 => 16_384,
        _ => 32_768,
    };
    let cluster_bytes = options.cluster_bytes.unwrap_or(usual.max(sector_bytes));
    if !cluster_bytes.is_power_of_two() || cluster_bytes < sector_bytes || cluster_bytes / sector_bytes > 128
    {
        return Err(FatError::BadOption(format!(
            "clusters of {cluster_bytes} bytes cannot be with sectors of {sector_bytes}"
        )));
    }
    let each = u64::from(cluster_bytes / sector_bytes);
    // The FAT is sized for the clusters there would be if it took no room; the rest of it stays unused.
    let fat_sectors = ((sectors / each + u64::from(FIRST_CLUSTER)) * 4).div_ceil(u64::from(sector_bytes));
    let data_sector =
        (RESERVED_MIN + 2 * fat_sectors).next_multiple_of(each.max(4096 / u64::from(sector_bytes)));
    let reserved = data_sector - 2 * fat_sectors;
    let clusters = sectors.saturating_sub(data_sector) / each;
    if clusters < CLUSTERS_MIN {
        return Err(FatError::BadOption(format!(
            "{partition_bytes} bytes make {clusters} clusters of {cluster_bytes} bytes, and FAT32 has at least {CLUSTERS_MIN}; \
             take smaller clusters or a larger partition"
        )));
    }
    if clusters > CLUSTERS_MAX {
        return Err(FatError::BadOption(format!(
            "{clusters} clusters of {cluster_bytes} bytes are more than the {CLUSTERS_MAX} of FAT32; take larger clusters"
        )));
    }
    let label = names::label_bytes(&options.label)?;
    let mut boot = vec![0u8; sector_bytes as usize];
    boot[..3].copy_from_slice(&[0xeb, 0x58, 0x90]);
    boot[3..11].copy_from_slice(b"HOLDFAST");
    boot[11..13].copy_from_slice(&(sector_bytes as u16).to_le_bytes());
    boot[13] = each as u8;
    boot[14..16].copy_from_slice(&(reserved as u16).to_le_bytes());
    boot[16] = 2;
    boot[21] = MEDIA;
    boot[24..26].copy_from_slice(&63u16.to_le_bytes());
    boot[26..28].copy_from_slice(&255u16.to_le_bytes());
    boot[28..32].copy_from_slice(&options.hidden_sectors.to_le_bytes());
    boot[32..36].copy_from_slice(&(sectors as u32).to_le_bytes());
    boot[36..40].copy_from_slice(&(fat_sectors as u32).to_le_bytes());
    boot[44..48].copy_from_slice(&FIRST_CLUSTER.to_le_bytes());
    boot[48..50].copy_from_slice(&(INFO_SECTOR as u16).to_le_bytes());
    boot[50..52].copy_from_slice(&(BACKUP_SECTOR as u16).to_le_bytes());
    boot[64] = 0x80;
    boot[66] = 0x29;
    boot[67..71].copy_from_slice(&options.volume_id.to_le_bytes());
    boot[summary::LABEL].copy_from_slice(&label.unwrap_or(*b"NO NAME    "));
    boot[82..90].copy_from_slice(b"FAT32   ");
    // The code that runs if a machine boots from it: an interrupt that says there is nothing to boot, then a loop.
    boot[90..94].copy_from_slice(&[0xcd, 0x18, 0xeb, 0xfe]);
    boot[510..512].copy_from_slice(&[0x55, 0xaa]);
    let layout = Layout::from_boot_sector(&boot, partition_bytes)?;

    let stored = Stored::from_moment(options.now, options.utc_offset_minutes);
    let entry = |short: [u8; 11], attributes: u8, first: u32| {
        entry::Entry::new(short, attributes, first, stored).to_bytes()
    };
    let limbo_cluster = FIRST_CLUSTER + 1;
    let limbo_bits = entry::Entry::DIRECTORY | entry::Entry::HIDDEN_SYSTEM;
    let mut root: Vec<u8> =
        label.map(|label| entry(label, entry::Entry::LABEL, 0)).into_iter().flatten().collect();
    root.extend(entry(LIMBO, limbo_bits, limbo_cluster));
    let mut limbo = entry(entry::DOT, entry::Entry::DIRECTORY, limbo_cluster).to_vec();
    limbo.extend(entry(entry::DOT_DOT, entry::Entry::DIRECTORY, 0));
    Ok(FormattedFileSystem { layout, boot, root, limbo })
}

impl FormattedFileSystem {
    /// The blocks, in order: the whole metadata area and the directories. Every other block of the data area may hold
    /// anything.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockId, Vec<u8>)> + '_ {
        let metadata =
            (0..self.layout.area_blocks(Area::Metadata)).map(|index| BlockId { area: Area::Metadata, index });
        let directories = 2 * u64::from(self.layout.blocks_each());
        let data = (0..directories).map(|index| BlockId { area: Area::Data, index });
        metadata.chain(data).map(|block| (block, self.block(block)))
    }

    fn block(&self, block: BlockId) -> Vec<u8> {
        let (start, length) = self.layout.place(block);
        let mut bytes = vec![0; length];
        let mut put = |at: u64, what: &[u8]| {
            // The part of what belongs at `at` that this block holds.
            let from = at.max(start);
            let to = (at + what.len() as u64).min(start + length as u64);
            if from < to {
                let source = &what[(from - at) as usize..(to - at) as usize];
                bytes[(from - start) as usize..(to - start) as usize].copy_from_slice(source);
            }
        };
        let sector = u64::from(self.layout.sector_bytes);
        let info = |free| summary::info_sector(sector as usize, free, FIRST_CLUSTER + 1);
        for boot in [0, BACKUP_SECTOR] {
            let at = u64::from(boot) * sector;
            put(at, &self.boot);
            put(at + sector * u64::from(INFO_SECTOR), &info(self.layout.clusters - 2));
            // The third sector of the boot record, of which nothing but its end is used.
            put(at + 2 * sector + 510, &[0x55, 0xaa]);
        }
        let ends: Vec<u8> = [0x0fff_ff00 | u32::from(MEDIA), 0x0fff_ffff, 0x0fff_ffff, 0x0fff_ffff]
            .into_iter()
            .flat_map(u32::to_le_bytes)
            .collect();
        for copy in 0..u64::from(self.layout.fats) {
            let fat = u64::from(self.layout.reserved_sectors) + copy * u64::from(self.layout.fat_sectors);
            put(fat * sector, &ends);
        }
        let data = self.layout.area_start(Area::Data);
        put(data, &self.root);
        put(data + u64::from(self.layout.cluster_bytes), &self.limbo);
        bytes
    }
}

#[cfg(test)]
pub(crate) fn boot_sector_for_tests() -> Vec<u8> {
    let options = FormatOptions {
        sector_bytes: 512,
        cluster_bytes: None,
        label: "TEST".into(),
        volume_id: 0x1234_5678,
        hidden_sectors: 0,
        now: Moment { seconds: 1_795_357_683, nanoseconds: 0 },
        utc_offset_minutes: 0,
    };
    format(64 << 20, &options).expect("a sound plan").boot
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The golden vector: these blocks were accepted by `fsck.fat`, `mdir` and the kernel (`tests/tools.rs` asks the
    /// first two each time).
    #[test]
    fn the_same_options_give_the_same_bytes() {
        let options = FormatOptions {
            sector_bytes: 512,
            cluster_bytes: Some(512),
            label: "HOLDFAST".into(),
            volume_id: 0x1234_5678,
            hidden_sectors: 2048,
            now: Moment { seconds: 1_795_357_683, nanoseconds: 0 },
            utc_offset_minutes: 60,
        };
        let formatted = format(64 << 20, &options).unwrap();
        let mut hasher = blake3::Hasher::new();
        for (_, bytes) in formatted.blocks() {
            hasher.update(&bytes);
        }
        assert_eq!(hasher.finalize().to_hex().as_str(), GOLDEN);
    }

    const GOLDEN: &str = "b582056e833cff35298fd9966b477212d7ec5ee17b0f649efbb42377a9365d9d";

    proptest! {
        /// Proves that whatever size and clusters are asked for, the plan is sound or refused in words.
        #[test]
        fn any_plan_is_sound(bytes in 0u64..1 << 43, sector in 9u32..13, cluster in proptest::option::of(9u32..17)) {
            let options = FormatOptions {
                sector_bytes: 1 << sector,
                cluster_bytes: cluster.map(|bits| 1 << bits),
                label: String::new(),
                volume_id: 1,
                hidden_sectors: 0,
                now: Moment { seconds: 0, nanoseconds: 0 },
                utc_offset_minutes: 0,
            };
            match format(bytes, &options) {
                Ok(formatted) => {
                    let layout = formatted.layout;
                    let data = layout.area_start(Area::Data);
                    prop_assert_eq!(data % u64::from(layout.cluster_bytes), 0);
                    let end = data + u64::from(layout.clusters) * u64::from(layout.cluster_bytes);
                    prop_assert!(end <= bytes && bytes - end < u64::from(layout.cluster_bytes + layout.sector_bytes));
                }
                Err(FatError::BadOption(words)) => prop_assert!(!words.is_empty()),
                Err(error) => prop_assert!(false, "{error}"),
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut options = FormatOptions {
            sector_bytes: 512,
            cluster_bytes: None,
            label: String::new(),
            volume_id: 0,
            hidden_sectors: 0,
            now: Moment { seconds: 0, nanoseconds: 0 },
            utc_offset_minutes: 0,
        };
        assert!(format(32 << 20, &options).unwrap_err().to_string().contains("65525"));
        options.cluster_bytes = Some(3000);
        assert!(format(64 << 20, &options).is_err());
        options.cluster_bytes = Some(128 << 10);
        assert!(format(64 << 30, &options).is_err());
        options.cluster_bytes = None;
        options.label = "a much too long label".into();
        assert!(format(64 << 20, &options).is_err());
        options.label = "a/b".into();
        assert!(format(64 << 20, &options).is_err());
    }
}
