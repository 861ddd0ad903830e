//! Finds a file system on a disk, and makes a partition table: the MBR with its four partitions, a GPT for
//! reading, and disks without a table.
//!
//! Attack answered: a table may have partitions outside of the disk, overlapping ones, or thousands. Each is
//! checked against the disk and the others before it is returned; a GPT must have correct checksums.

use crate::{FatError, Result};

/// Sectors of a disk.
pub trait Sectors {
    /// Bytes of a sector.
    fn sector_bytes(&self) -> u32;
    /// The number of sectors.
    fn sectors(&self) -> u64;
    /// Fills `into` (whole sectors) from a sector on, or says in words why not.
    fn read(&self, sector: u64, into: &mut [u8]) -> std::result::Result<(), String>;
}

/// The content of a partition according to the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartitionContent {
    /// FAT32, by its type in an MBR; or a basic data partition of a GPT, which may be another file system
    /// too.
    PerhapsFat32,
    /// Something else; the type of an MBR, or 0 of a GPT.
    Other(u8),
}

/// A partition of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Its place in the table, from 1; 0 if there is no table and it is the whole disk.
    pub number: u32,
    /// The first sector.
    pub start: u64,
    /// Number of sectors.
    pub sectors: u64,
    /// The content according to the table.
    pub holds: PartitionContent,
}

/// Types of the MBR: FAT32, by cylinders and by sectors.
const FAT32: u8 = 0x0b;
const FAT32_BY_SECTOR: u8 = 0x0c;
const GPT_PROTECTED: u8 = 0xee;
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
const TABLE: usize = 446;
/// The type of a GPT's basic data partition, as stored.
const BASIC_DATA: [u8; 16] =
    [0xa2, 0xa0, 0xd0, 0xeb, 0xe5, 0xb9, 0x33, 0x44, 0x87, 0xc0, 0x68, 0xb6, 0xb7, 0x26, 0x99, 0xc7];
/// Most partitions of a GPT that are read, and bytes of one entry.
const GPT_ENTRIES_MAX: u32 = 1024;
const GPT_ENTRY_BYTES: std::ops::RangeInclusive<u32> = 128..=512;

/// Signatures of other file systems: the offset, the bytes, and the name.
const OTHERS: [(u64, &[u8], &str); 11] = [
    (3, b"NTFS    ", "NTFS"),
    (3, b"-FVE-FS-", "a disk encrypted by BitLocker"),
    (1024 + 56, &[0x53, 0xef], "ext4 (or ext3, or ext2)"),
    (0, b"XFSB", "XFS"),
    (0x1_0040, b"_BHRfS_M", "btrfs"),
    (1024, &[0x10, 0x20, 0xf5, 0xf2], "F2FS"),
    (0, b"LUKS\xba\xbe", "a disk encrypted by LUKS"),
    (512, b"LABELONE", "a part of LVM"),
    (1024, b"H+", "HFS+"),
    (32, b"NXSB", "APFS"),
    (0x8001, b"CD001", "ISO 9660"),
];

/// Names the file system of a disk without a table, if it is a usual one that is not FAT.
fn other_file_system(disk: &dyn Sectors) -> Option<&'static str> {
    let sector_bytes = u64::from(disk.sector_bytes());
    let begins_with = |at: u64, mark: &[u8]| {
        let within = (at % sector_bytes) as usize;
        let mut sector = vec![0; sector_bytes as usize];
        let is_there = at / sector_bytes < disk.sectors();
        is_there
            && disk.read(at / sector_bytes, &mut sector).is_ok()
            && sector[within..within + mark.len()] == *mark
    };
    OTHERS.iter().find(|(at, mark, _)| begins_with(*at, mark)).map(|(_, _, name)| *name)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Whether a sector is a partition table and no boot sector of a file system.
pub(crate) fn looks_like_table(sector: &[u8]) -> bool {
    let entries = sector[TABLE..510].chunks(16);
    sector[510..512] == [0x55, 0xaa]
        && entries.clone().all(|entry| entry[0] & 0x7f == 0)
        && entries.clone().any(|entry| entry[4] != 0 && u32_at(entry, 12) != 0)
}

/// Whether a sector is the boot sector of a FAT file system: then there is no table.
fn looks_like_boot_sector(sector: &[u8]) -> bool {
    let sector_bytes = u16::from_le_bytes([sector[11], sector[12]]);
    matches!(sector[0], 0xeb | 0xe9)
        && matches!(sector_bytes, 512 | 1024 | 2048 | 4096)
        && sector[13].is_power_of_two()
        && matches!(sector[16], 1 | 2)
}

/// Reads the table of a disk. A disk that is one file system without a table has one partition, number 0.
pub fn read(disk: &dyn Sectors) -> Result<Vec<Partition>> {
    let bad = |what: String| Err(FatError::BadPartitionTable(what));
    let sector_bytes = disk.sector_bytes();
    if !matches!(sector_bytes, 512 | 1024 | 2048 | 4096) || disk.sectors() == 0 {
        return bad(format!("the disk has {} sectors of {sector_bytes} bytes", disk.sectors()));
    }
    let mut sector = vec![0; sector_bytes as usize];
    fetch(disk, 0, &mut sector)?;
    if looks_like_boot_sector(&sector) || &sector[3..11] == b"EXFAT   " {
        let whole =
            Partition { number: 0, start: 0, sectors: disk.sectors(), holds: PartitionContent::PerhapsFat32 };
        return Ok(vec![whole]);
    }
    if !looks_like_table(&sector) {
        if let Some(name) = other_file_system(disk) {
            return Err(FatError::NotFat32(format!("the whole disk is {name}, without a partition table")));
        }
        return bad("there is none, and no file system without one that is known".into());
    }
    let entries: Vec<&[u8]> = sector[TABLE..510].chunks(16).collect();
    if entries.iter().any(|entry| entry[4] == GPT_PROTECTED) {
        return read_gpt(disk);
    }
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(entries) {
        let (kind, start, sectors) = (entry[4], u64::from(u32_at(entry, 8)), u64::from(u32_at(entry, 12)));
        if kind == 0 || sectors == 0 {
            continue;
        }
        if EXTENDED.contains(&kind) {
            return bad(format!(
                "partition {number} is an extended one; only the four of the table itself are read"
            ));
        }
        let holds = match kind {
            FAT32 | FAT32_BY_SECTOR => PartitionContent::PerhapsFat32,
            other => PartitionContent::Other(other),
        };
        partitions.push(Partition { number, start, sectors, holds });
    }
    sound(disk, &partitions)?;
    Ok(partitions)
}

fn fetch(disk: &dyn Sectors, sector: u64, into: &mut [u8]) -> Result<()> {
    disk.read(sector, into)
        .map_err(|reason| FatError::BadPartitionTable(format!("reading sector {sector}: {reason}")))
}

/// Checks that every partition is on the disk, behind its table, and that none overlaps another.
fn sound(disk: &dyn Sectors, partitions: &[Partition]) -> Result<()> {
    let bad = |what: String| Err(FatError::BadPartitionTable(what));
    let mut ends: Vec<(u64, u64, u32)> = Vec::new();
    for partition in partitions {
        let number = partition.number;
        let end = partition.start.checked_add(partition.sectors).filter(|end| *end <= disk.sectors());
        match end {
            Some(end) if partition.start > 0 => ends.push((partition.start, end, number)),
            Some(_) => return bad(format!("partition {number} starts upon the table")),
            None => return bad(format!("partition {number} does not end on the disk")),
        }
    }
    ends.sort_unstable();
    for pair in ends.windows(2) {
        if pair[1].0 < pair[0].1 {
            return bad(format!("partitions {} and {} overlap", pair[0].2, pair[1].2));
        }
    }
    Ok(())
}

/// Reads a GPT from its first header or, if that is damaged, from its last.
fn read_gpt(disk: &dyn Sectors) -> Result<Vec<Partition>> {
    read_gpt_at(disk, 1).or_else(|first| read_gpt_at(disk, disk.sectors() - 1).map_err(|_| first))
}

fn read_gpt_at(disk: &dyn Sectors, at: u64) -> Result<Vec<Partition>> {
    let bad = |what: &str| Err(FatError::BadPartitionTable(format!("the GPT of sector {at}: {what}")));
    let mut header = vec![0; disk.sector_bytes() as usize];
    if at == 0 || at >= disk.sectors() {
        return bad("the disk has no such sector");
    }
    fetch(disk, at, &mut header)?;
    let length = u32_at(&header, 12) as usize;
    if &header[..8] != b"EFI PART" || !(92..=header.len()).contains(&length) {
        return bad("it is none");
    }
    let sum = u32_at(&header, 16);
    header[16..20].fill(0);
    if crc32fast::hash(&header[..length]) != sum || u64_at(&header, 24) != at {
        return bad("its sum or its place is wrong");
    }
    let (entries_at, count, each) = (u64_at(&header, 72), u32_at(&header, 80), u32_at(&header, 84));
    if count > GPT_ENTRIES_MAX || !GPT_ENTRY_BYTES.contains(&each) || each % 8 != 0 {
        return bad("it has too many entries, or of an odd size");
    }
    let bytes = count as usize * each as usize;
    let sectors = bytes.div_ceil(header.len()) as u64;
    if entries_at.checked_add(sectors).is_none_or(|end| end > disk.sectors()) {
        return bad("its entries are outside the disk");
    }
    let mut entries = vec![0; sectors as usize * header.len()];
    fetch(disk, entries_at, &mut entries)?;
    entries.truncate(bytes);
    if crc32fast::hash(&entries) != u32_at(&header, 88) {
        return bad("the sum of its entries is wrong");
    }
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(entries.chunks(each as usize)) {
        if entry[..16] == [0; 16] {
            continue;
        }
        let (start, last) = (u64_at(entry, 32), u64_at(entry, 40));
        let Some(sectors) = last.checked_sub(start).and_then(|sectors| sectors.checked_add(1)) else {
            return bad("a partition ends before it starts");
        };
        let holds = if entry[..16] == BASIC_DATA {
            PartitionContent::PerhapsFat32
        } else {
            PartitionContent::Other(0)
        };
        partitions.push(Partition { number, start, sectors, holds });
    }
    sound(disk, &partitions)?;
    Ok(partitions)
}

/// The first sector (512 bytes of it) of a disk with an MBR and these partitions, each ⟨start, sectors⟩ of FAT32.
pub fn mbr(disk_id: u32, partitions: &[(u32, u32)], disk_sectors: u64) -> Result<Vec<u8>> {
    let bad = |what: &str| Err(FatError::BadOption(what.into()));
    if partitions.is_empty() || partitions.len() > 4 {
        return bad("an MBR has one to four partitions");
    }
    let mut sector = vec![0; 512];
    sector[440..444].copy_from_slice(&disk_id.to_le_bytes());
    let mut end = 1u64;
    for (entry, (start, sectors)) in sector[TABLE..510].chunks_mut(16).zip(partitions) {
        if u64::from(*start) < end || *sectors == 0 || u64::from(*start) + u64::from(*sectors) > disk_sectors
        {
            return bad("partitions of an MBR follow one another on the disk");
        }
        end = u64::from(*start) + u64::from(*sectors);
        // Cylinders, heads and sectors are beyond what they can count; these values say so.
        entry[1..4].copy_from_slice(&[0xfe, 0xff, 0xff]);
        entry[4] = FAT32_BY_SECTOR;
        entry[5..8].copy_from_slice(&[0xfe, 0xff, 0xff]);
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..16].copy_from_slice(&sectors.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    Ok(sector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Disk(Vec<u8>);

    impl Sectors for Disk {
        fn sector_bytes(&self) -> u32 {
            512
        }
        fn sectors(&self) -> u64 {
            self.0.len() as u64 / 512
        }
        fn read(&self, sector: u64, into: &mut [u8]) -> std::result::Result<(), String> {
            let at = sector as usize * 512;
            into.copy_from_slice(self.0.get(at..at + into.len()).ok_or("outside the disk")?);
            Ok(())
        }
    }

    /// A GPT as the specification lays it out, at both ends of a disk of 256 sectors.
    fn gpt() -> Disk {
        let mut disk = Disk(vec![0; 256 * 512]);
        disk.0[450] = GPT_PROTECTED;
        disk.0[454..458].copy_from_slice(&1u32.to_le_bytes());
        disk.0[458..462].copy_from_slice(&255u32.to_le_bytes());
        disk.0[510..512].copy_from_slice(&[0x55, 0xaa]);
        let mut entries = vec![0; 128 * 128];
        entries[..16].copy_from_slice(&BASIC_DATA);
        entries[32..40].copy_from_slice(&40u64.to_le_bytes());
        entries[40..48].copy_from_slice(&199u64.to_le_bytes());
        for (at, entries_at) in [(1usize, 2u64), (255, 223)] {
            let start = entries_at as usize * 512;
            disk.0[start..start + entries.len()].copy_from_slice(&entries);
            let header = &mut disk.0[at * 512..(at + 1) * 512];
            header[..8].copy_from_slice(b"EFI PART");
            header[12..16].copy_from_slice(&92u32.to_le_bytes());
            header[24..32].copy_from_slice(&(at as u64).to_le_bytes());
            header[72..80].copy_from_slice(&entries_at.to_le_bytes());
            header[80..84].copy_from_slice(&128u32.to_le_bytes());
            header[84..88].copy_from_slice(&128u32.to_le_bytes());
            header[88..92].copy_from_slice(&crc32fast::hash(&entries).to_le_bytes());
            let sum = crc32fast::hash(&header[..92]);
            header[16..20].copy_from_slice(&sum.to_le_bytes());
        }
        disk
    }

    #[test]
    fn a_gpt_is_read_by_either_header() {
        let expected =
            vec![Partition { number: 1, start: 40, sectors: 160, holds: PartitionContent::PerhapsFat32 }];
        assert_eq!(read(&gpt()).unwrap(), expected);
        let mut disk = gpt();
        disk.0[512 + 40] ^= 1;
        assert_eq!(read(&disk).unwrap(), expected);
        disk.0[255 * 512 + 40] ^= 1;
        assert!(read(&disk).unwrap_err().to_string().contains("sum"));
    }

    #[test]
    fn what_is_written_is_read() {
        let sector = mbr(7, &[(2048, 1000), (4096, 2000)], 8192).unwrap();
        let mut disk = Disk(vec![0; 8192 * 512]);
        disk.0[..512].copy_from_slice(&sector);
        let holds = PartitionContent::PerhapsFat32;
        assert_eq!(
            read(&disk).unwrap(),
            [
                Partition { number: 1, start: 2048, sectors: 1000, holds },
                Partition { number: 2, start: 4096, sectors: 2000, holds }
            ]
        );
        disk.0.truncate(6000 * 512);
        assert!(read(&disk).unwrap_err().to_string().contains("does not end on the disk"));
        assert!(mbr(7, &[(2048, 1000), (3000, 2000)], 8192).is_err());
        assert!(mbr(7, &[(0, 1000)], 8192).is_err());
        disk.0[454 + 16..458 + 16].copy_from_slice(&3000u32.to_le_bytes());
        disk.0[458 + 16..462 + 16].copy_from_slice(&10u32.to_le_bytes());
        assert!(read(&disk).unwrap_err().to_string().contains("overlap"));
        disk.0[450] = 5;
        assert!(read(&disk).unwrap_err().to_string().contains("extended"));
    }

    #[test]
    fn a_disk_without_a_table_is_one_partition() {
        let mut disk = Disk(vec![0; 64 << 20]);
        disk.0[..512].copy_from_slice(&crate::format::boot_sector_for_tests());
        assert_eq!(read(&disk).unwrap()[0].number, 0);
        assert!(read(&Disk(vec![0; 4096])).is_err());
    }

    /// Proves: another file system on a whole disk is named, however small the disk is.
    #[test]
    fn other_file_systems_are_named() {
        for (at, mark, name) in OTHERS {
            let mut disk = Disk(vec![0; 80 << 10]);
            disk.0[at as usize..at as usize + mark.len()].copy_from_slice(mark);
            let said = read(&disk).unwrap_err().to_string();
            assert!(said.contains(&format!("the whole disk is {name}, without")), "{said}");
            disk.0.truncate(at as usize / 512 * 512);
            assert!(read(&disk).unwrap_err().to_string().contains("the partition table cannot be used"));
        }
    }

    proptest! {
        /// Proves that no table makes the reader panic or return a partition outside of the disk.
        #[test]
        fn any_change_of_a_table_is_survived(changes in proptest::collection::vec((0usize..40 * 512, any::<u8>()), 0..24)) {
            let mut disk = gpt();
            for (at, byte) in changes {
                disk.0[at] = byte;
            }
            if let Ok(partitions) = read(&disk) {
                for partition in partitions {
                    prop_assert!(partition.start + partition.sectors <= 256);
                }
            }
        }
    }
}
