//! A small file system in memory, and ways to harm it.

#![allow(dead_code)]

use super::{NOW, Random};
use holdfast_fat::{
    BlockId, Checked, Fat, FatError, FileId, Finding, Kind, Layout, Metadata, Options, ROOT, Transaction,
    check,
};
use std::cell::RefCell;

pub const SECTORS: u32 = 600;
pub const FAT_SECTORS: u32 = 5;
pub const RESERVED: u32 = 8;
pub const CLUSTER: usize = 512;
pub const FAT_AT: usize = RESERVED as usize * 512;
pub const DATA_AT: usize = (RESERVED + 2 * FAT_SECTORS) as usize * 512;

/// A file system in memory. If `unsteady` is set, somebody changes it between reads.
#[derive(Clone)]
pub struct Memory {
    pub bytes: RefCell<Vec<u8>>,
    pub layout: Layout,
    pub unsteady: RefCell<Option<u64>>,
}

impl Metadata for Memory {
    fn read(&self, block: BlockId, into: &mut [u8]) -> Result<(), String> {
        let (at, length) = self.layout.place(block);
        assert_eq!(into.len(), length);
        if let Some(seed) = self.unsteady.borrow_mut().as_mut() {
            let mut random = Random(*seed);
            if random.below(8) == 0 {
                harm(&mut self.bytes.borrow_mut(), &mut random);
            }
            *seed = random.0;
        }
        let bytes = self.bytes.borrow();
        into.copy_from_slice(bytes.get(at as usize..at as usize + length).ok_or("beyond the end")?);
        Ok(())
    }
}

impl Memory {
    pub fn commit(&self, transaction: &Transaction) {
        for (block, bytes) in &transaction.blocks {
            let (at, length) = self.layout.place(*block);
            assert_eq!(bytes.len(), length);
            assert!(block.index < self.layout.area_blocks(block.area));
            self.bytes.borrow_mut()[at as usize..at as usize + length].copy_from_slice(bytes);
        }
    }

    pub fn new(bytes: Vec<u8>) -> Result<Memory, FatError> {
        let layout = Layout::from_boot_sector(&bytes, bytes.len() as u64)?;
        Ok(Memory { bytes: RefCell::new(bytes), layout, unsteady: RefCell::default() })
    }
}

/// A small file system with the layout of `mkfs.fat`.
pub fn empty() -> Vec<u8> {
    let mut bytes = vec![0; SECTORS as usize * 512];
    let boot = &mut bytes[..512];
    boot[..3].copy_from_slice(&[0xeb, 0x58, 0x90]);
    boot[3..11].copy_from_slice(b"mkfs.fat");
    boot[11..13].copy_from_slice(&512u16.to_le_bytes());
    boot[13] = 1;
    boot[14..16].copy_from_slice(&(RESERVED as u16).to_le_bytes());
    boot[16] = 2;
    boot[21] = 0xf8;
    boot[32..36].copy_from_slice(&SECTORS.to_le_bytes());
    boot[36..40].copy_from_slice(&FAT_SECTORS.to_le_bytes());
    boot[44] = 2;
    boot[48] = 1;
    boot[50] = 6;
    boot[510..512].copy_from_slice(&[0x55, 0xaa]);
    bytes.copy_within(..512, 6 * 512);
    let free = SECTORS - RESERVED - 2 * FAT_SECTORS - 1;
    for (at, word) in [(0, 0x4161_5252u32), (484, 0x6141_7272), (488, free), (492, 2), (508, 0xaa55_0000)] {
        bytes[512 + at..516 + at].copy_from_slice(&word.to_le_bytes());
    }
    for copy in 0..2 {
        let fat = FAT_AT + copy * FAT_SECTORS as usize * 512;
        for (at, word) in [(0, 0x0fff_fff8u32), (4, 0x0fff_ffff), (8, 0x0fff_ffff)] {
            bytes[fat + at..fat + at + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

pub fn settle<T>(fat: &mut Fat<Memory>, change: holdfast_fat::Change<T>) -> T {
    fat.metadata().commit(&change.transaction);
    fat.applied(change.transaction).expect("outstanding");
    change.value
}

/// A tree: `/A` of 3 clusters, `/B` of 2, `/DIR/` with `C` of 2 and `SUB/`, and `/A long name.txt`.
pub fn sound() -> Vec<u8> {
    let memory = Memory::new(empty()).expect("sound");
    let mut fat = Fat::mount(memory.layout.clone(), memory, Options::default()).expect("sound");
    fat.vouch(&Checked::as_we_left_it());
    let mut make = |parent: FileId, name: &str, clusters: u64| {
        let kind = if clusters == 0 { Kind::Directory } else { Kind::File };
        let change = fat.create(parent, name, kind, NOW).expect("created");
        let id = settle(&mut fat, change);
        if clusters > 0 {
            let change = fat.resize(id, clusters * CLUSTER as u64 - 10, NOW).expect("resized");
            settle(&mut fat, change);
        }
        id
    };
    make(ROOT, "A", 3);
    make(ROOT, "B", 2);
    let directory = make(ROOT, "DIR", 0);
    make(directory, "C", 2);
    make(directory, "SUB", 0);
    make(ROOT, "A long name.txt", 1);
    fat.metadata().bytes.borrow().clone()
}

pub fn cluster_at(cluster: u32) -> usize {
    DATA_AT + (cluster as usize - 2) * CLUSTER
}

/// Offset of an entry, found by the first bytes of its short name.
pub fn entry(bytes: &[u8], name: &[u8]) -> usize {
    let mut padded = [b' '; 11];
    padded[..name.len()].copy_from_slice(name);
    (DATA_AT..bytes.len())
        .step_by(32)
        .find(|at| bytes[*at..*at + 11] == padded && bytes[*at + 11] & 0x3f != 0x0f)
        .expect("an entry")
}

pub fn first(bytes: &[u8], name: &[u8]) -> u32 {
    let at = entry(bytes, name);
    u32::from(bytes[at + 26]) | u32::from(bytes[at + 27]) << 8
}

pub fn set_first(bytes: &mut [u8], name: &[u8], cluster: u32) {
    let at = entry(bytes, name);
    bytes[at + 26..at + 28].copy_from_slice(&(cluster as u16).to_le_bytes());
    bytes[at + 20..at + 22].copy_from_slice(&((cluster >> 16) as u16).to_le_bytes());
}

pub fn set_link(bytes: &mut [u8], cluster: u32, link: u32) {
    for copy in 0..2 {
        let at = FAT_AT + copy * FAT_SECTORS as usize * 512 + cluster as usize * 4;
        bytes[at..at + 4].copy_from_slice(&link.to_le_bytes());
    }
}

pub fn findings(memory: &Memory) -> (Vec<Finding>, Result<Checked, FatError>) {
    let mut findings = Vec::new();
    let checked = check(&memory.layout, memory, &mut |finding| findings.push(finding));
    (findings, checked)
}

/// Changes some bytes where it hurts.
pub fn harm(bytes: &mut [u8], random: &mut Random) {
    let clusters = SECTORS - RESERVED - 2 * FAT_SECTORS + 2;
    let directories = bytes.len() - DATA_AT;
    match random.below(10) {
        0 => {
            let at = random.below(92) as usize;
            bytes[at] = random.next() as u8;
        }
        1..6 => {
            let link = match random.below(6) {
                0 => 0,
                1 => 0x0fff_ffff,
                2 => 0x0fff_fff7,
                3 => random.next() as u32,
                _ => random.below(40) as u32,
            };
            let cluster =
                if random.below(3) == 0 { random.below(u64::from(clusters)) } else { random.below(24) };
            match random.below(4) {
                0 => {
                    let at = FAT_AT + cluster as usize * 4;
                    bytes[at..at + 4].copy_from_slice(&link.to_le_bytes());
                }
                _ => set_link(bytes, cluster as u32, link),
            }
        }
        _ => {
            // An entry of one of the first clusters: a field of it, or all.
            let slot = random.below(16 * 16) as usize;
            let at = DATA_AT + (slot * 32) % directories;
            let fields = [(0, 1), (11, 1), (20, 2), (26, 2), (28, 4), (13, 1), (0, 32)];
            let (field, length) = *random.of(&fields);
            for byte in &mut bytes[at + field..at + field + length] {
                *byte = match random.below(3) {
                    0 => 0,
                    1 => random.below(24) as u8,
                    _ => random.next() as u8,
                };
            }
            if random.below(4) == 0 {
                let other = DATA_AT + random.below(16 * 16) as usize * 32;
                bytes.copy_within(other..other + 32, at);
            }
        }
    }
}
