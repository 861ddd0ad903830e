//! FSLoader: reads a disk's partition table and boot sectors, and reports which blocks a driver for FAT32 can
//! use (paper, sections 4 and 4.3). It also plans the table and the file systems of a disk that is to be
//! formatted.
//!
//! Attack answered: anybody may have written the disk. An attacker who takes this process over can use what
//! its sandbox allows: the sectors that the host sends, and a report. The host compares the report with what
//! was stored when the disk's blocks got their owners. Only when a disk is adopted is there nothing to
//! compare with: then the report alone defines where file systems are, before any block has an owner.

use crate::StackError;
use crate::asking::{nonsense, words};
use crate::card_protocol::{CardReply, CardRequest, ENTRIES_MAX, READ_MAX, TableEntry};
use crate::disk_layout::{Geometry, PARTITIONS_MAX};
use holdfast_components::{Asker, Context, Patience};
use holdfast_fat::format::{FormatOptions, format};
use holdfast_fat::partitions::{self, PartitionContent, Sectors};
use holdfast_fat::{FatError, Layout, Moment};
use std::process::ExitCode;
use std::time::Duration;

/// How long the host may take to read.
const WAIT: Duration = Duration::from_secs(120);
/// Bytes of a sector of partition tables.
const SECTOR_BYTES: u64 = 512;

/// The task of the component.
#[derive(Clone, PartialEq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub enum Configuration {
    /// Report what is on a disk.
    Find {
        /// The size of the disk in bytes.
        disk_bytes: u64,
    },
    /// Plan a partition table and file systems.
    Lay(FormatRequest),
}

/// A request to format a disk.
#[derive(Clone, PartialEq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct FormatRequest {
    /// The size of the disk in bytes.
    pub disk_bytes: u64,
    /// The first byte and the size of each partition.
    pub partitions: Vec<(u64, u64)>,
    /// Bytes of a cluster; `None`: by the size of the file system.
    pub cluster_bytes: Option<u32>,
    /// The name of the file systems.
    pub label: String,
    /// The serial number of the disk.
    pub id: u32,
}

/// Runs the component.
pub fn main(context: Context) -> ExitCode {
    crate::component(&context, |configuration: Configuration| {
        let card: Asker<CardRequest, CardReply> = context.ports.asker("card")?;
        let said = match configuration {
            Configuration::Find { disk_bytes } => find(&card, disk_bytes),
            Configuration::Lay(wanted) => lay(&card, &wanted),
        };
        // The reason is for people, and is printed by the host; the component did not crash.
        let end = said.map_err(|error| match error {
            StackError::Component(words) => words,
            error => error.to_string(),
        });
        send_report(&card, &CardRequest::End(end))
    })
}

/// Sends a part of the report to the host.
pub(crate) fn send_report(
    card: &Asker<CardRequest, CardReply>,
    what: &CardRequest,
) -> Result<(), StackError> {
    match card.ask(0, what, Patience::of(WAIT))? {
        CardReply::Go => Ok(()),
        CardReply::Bytes(_) => Err(StackError::Component(nonsense("the host").to_string())),
    }
}

/// Reads a part of the disk.
pub(crate) fn read(card: &Asker<CardRequest, CardReply>, offset: u64, into: &mut [u8]) -> Result<(), String> {
    for (part, at) in into.chunks_mut(READ_MAX as usize).zip((offset..).step_by(READ_MAX as usize)) {
        let question = CardRequest::Read { offset: at, length: part.len() as u32 };
        let answer = card.ask(0, &question, Patience::of(WAIT));
        match answer.map_err(|error| words(crate::asking::refusal(error)))? {
            CardReply::Bytes(bytes) if bytes.len() == part.len() => part.copy_from_slice(&bytes),
            _ => return Err(nonsense("the host").to_string()),
        }
    }
    Ok(())
}

struct Disk<'a> {
    card: &'a Asker<CardRequest, CardReply>,
    bytes: u64,
}

impl Sectors for Disk<'_> {
    fn sector_bytes(&self) -> u32 {
        SECTOR_BYTES as u32
    }

    fn sectors(&self) -> u64 {
        self.bytes / SECTOR_BYTES
    }

    fn read(&self, sector: u64, into: &mut [u8]) -> Result<(), String> {
        let offset = sector.checked_mul(SECTOR_BYTES).ok_or("there is no such sector")?;
        read(self.card, offset, into)
    }
}

fn find(card: &Asker<CardRequest, CardReply>, disk_bytes: u64) -> Result<(), StackError> {
    let found = partitions::read(&Disk { card, bytes: disk_bytes })?;
    let entry = |partition: &partitions::Partition| TableEntry {
        number: partition.number,
        start: partition.start * SECTOR_BYTES,
        bytes: partition.sectors * SECTOR_BYTES,
    };
    if found.len() > ENTRIES_MAX {
        return Err(StackError::Component(format!("the table has {} partitions", found.len())));
    }
    send_report(card, &CardRequest::Table(found.iter().map(entry).collect()))?;
    for partition in &found {
        let entry = entry(partition);
        let holds = boot(card, &entry, partition.holds).map_err(|words| shortened(&words));
        send_report(card, &CardRequest::Partition { number: entry.number, holds })?;
    }
    Ok(())
}

fn shortened(words: &str) -> String {
    words.chars().take(300).collect()
}

/// The content of a partition according to its boot sector; if that and the table both say FAT32, its
/// geometry.
fn boot(
    card: &Asker<CardRequest, CardReply>,
    entry: &TableEntry,
    holds: PartitionContent,
) -> Result<Geometry, String> {
    let mut sector = vec![0; SECTOR_BYTES.min(entry.bytes) as usize];
    read(card, entry.start, &mut sector)?;
    let layout = Layout::from_boot_sector(&sector, entry.bytes);
    match (layout, holds) {
        (Ok(layout), PartitionContent::PerhapsFat32) => Ok(Geometry::of(&layout)),
        (Ok(_), PartitionContent::Other(kind)) => Err(format!(
            "its boot sector is one of FAT32, but the partition table gives it type {kind:#04x}; if it is FAT32, give it type \
             0x0c (in a GPT, basic data) first"
        )),
        (Err(FatError::NotFat32(words)), PartitionContent::PerhapsFat32) => Err(words),
        (Err(error), PartitionContent::PerhapsFat32) => Err(error.to_string()),
        // The type says more than that there is no FAT32.
        (Err(FatError::NotFat32(words)), PartitionContent::Other(kind)) => {
            let named = words.split(';').next().filter(|words| words.starts_with("it is "));
            let named = named.map_or(String::new(), |named| format!(" ({named})"));
            Err(format!("not FAT32: type {kind:#04x} in the partition table{named}"))
        }
        (Err(_), PartitionContent::Other(kind)) => {
            Err(format!("not FAT32: type {kind:#04x} in the partition table"))
        }
    }
}

fn lay(card: &Asker<CardRequest, CardReply>, wanted: &FormatRequest) -> Result<(), StackError> {
    let bad = |what: &str| StackError::Component(what.to_owned());
    if wanted.partitions.is_empty() || wanted.partitions.len() > PARTITIONS_MAX {
        return Err(bad("no partitions, or too many"));
    }
    let mut geometries = Vec::new();
    let mut table = Vec::new();
    for (start, bytes) in &wanted.partitions {
        let options = options(wanted.cluster_bytes, &wanted.label, wanted.id, *start)?;
        geometries.push(Geometry::of(&format(*bytes, &options)?.layout));
        let sectors = |bytes: u64| {
            u32::try_from(bytes / SECTOR_BYTES)
                .map_err(|_| bad("an MBR counts sectors up to 2 TiB; make a smaller partition"))
        };
        table.push((sectors(*start)?, sectors(*bytes)?));
    }
    let mbr = partitions::mbr(wanted.id, &table, wanted.disk_bytes / SECTOR_BYTES)?;
    send_report(card, &CardRequest::DiskFormat { mbr, geometries })
}

/// Options for formatting a partition of a new disk, the same for FSLoader, which plans it, and FSDriver,
/// which writes it.
pub(crate) fn options(
    cluster_bytes: Option<u32>,
    label: &str,
    id: u32,
    start: u64,
) -> Result<FormatOptions, StackError> {
    let hidden_sectors = u32::try_from(start / SECTOR_BYTES);
    Ok(FormatOptions {
        sector_bytes: SECTOR_BYTES as u32,
        cluster_bytes,
        label: label.to_owned(),
        volume_id: id,
        hidden_sectors: hidden_sectors
            .map_err(|_| StackError::Component("a partition beyond 2 TiB".into()))?,
        now: Moment { seconds: 0, nanoseconds: 0 },
        utc_offset_minutes: 0,
    })
}
