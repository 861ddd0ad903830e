//! FSChecker: checks the file system of a partition that is to be adopted, and lists the blocks of its files.
//! Each partition has its own FSChecker, which can read only that partition.
//!
//! Attack answered: everything it reads may have been made to take it over. The host checks its report:
//! blocks outside of the partition's data area, and blocks that belong to two files, are refused. It cannot
//! check which file has which blocks. So an attacker in FSChecker can have a block given to the wrong one of
//! the users whom the operator named.

use crate::StackError;
use crate::card_protocol::{CardReply, CardRequest, FileBlocks, PATH_BYTES_MAX, RUNS_MAX};
use crate::disk_layout::{Geometry, Partition};
use crate::fs_loader::{read, send_report};
use holdfast_components::{Asker, Context};
use holdfast_fat::{Area, BlockId, Fat, Finding, Kind, Layout, Metadata, Options, WalkedFile, check};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Metadata is read in pieces of this size, and this many pieces are cached.
const PIECE_BYTES: u64 = 32 << 10;
const PIECES_MAX: usize = 256;
/// Most reported problems. One more is reported if it forbids changes and none before did.
const FINDINGS_MAX: u64 = 1 << 16;
/// Bytes of one message with files, of the 64 KiB that a channel carries.
const MESSAGE_BYTES: usize = 48 << 10;

/// Runs the component.
pub fn main(context: Context) -> ExitCode {
    crate::component(&context, |partition: Partition| {
        let card: Asker<CardRequest, CardReply> = context.ports.asker("card")?;
        let end = look(&card, &partition).map_err(|error| error.to_string());
        send_report(&card, &CardRequest::End(end))
    })
}

/// Blocks of the partition, read through the host. The metadata area is read in larger pieces.
struct PartitionBlocks<'a> {
    card: &'a Asker<CardRequest, CardReply>,
    partition: Partition,
    layout: Layout,
    pieces: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl Metadata for PartitionBlocks<'_> {
    fn read(&self, block: BlockId, into: &mut [u8]) -> Result<(), String> {
        let (offset, _) = self.layout.place(block);
        if block.area == Area::Data {
            return read(self.card, self.partition.start + offset, into);
        }
        let mut pieces = self.pieces.borrow_mut();
        let number = offset / PIECE_BYTES;
        if !pieces.contains_key(&number) {
            if pieces.len() >= PIECES_MAX {
                pieces.clear();
            }
            let start = number * PIECE_BYTES;
            let end = (start + PIECE_BYTES).min(self.layout.area_start(Area::Data));
            let mut piece = vec![0; (end - start) as usize];
            read(self.card, self.partition.start + start, &mut piece)?;
            pieces.insert(number, piece);
        }
        // Blocks are no larger than pieces, and pieces are multiples of blocks.
        let at = (offset % PIECE_BYTES) as usize;
        let bytes = pieces[&number].get(at..at + into.len()).ok_or("beyond the metadata area")?;
        into.copy_from_slice(bytes);
        Ok(())
    }
}

/// Reports problems as they are found; ends when one cannot be reported.
struct ProblemReporter<'a> {
    card: &'a Asker<CardRequest, CardReply>,
    reported: u64,
    has_forbidden: bool,
    failed: Result<(), StackError>,
}

impl ProblemReporter<'_> {
    fn problem(&mut self, finding: &Finding) {
        let forbids = finding.problem.forbids_changes();
        self.reported += 1;
        // A finding that forbids changes is reported in any case, because the host needs it.
        let is_new = forbids && !self.has_forbidden;
        self.has_forbidden |= forbids;
        if self.failed.is_ok() && (self.reported <= FINDINGS_MAX || is_new) {
            let place = finding.place.chars().take(200).collect();
            let problem = CardRequest::Problem { place, problem: finding.problem.to_string(), forbids };
            self.failed = send_report(self.card, &problem);
        }
    }
}

fn look(card: &Asker<CardRequest, CardReply>, partition: &Partition) -> Result<(), StackError> {
    let mut boot = [0; 512];
    read(card, partition.start, &mut boot).map_err(StackError::Component)?;
    let layout = Layout::from_boot_sector(&boot, partition.bytes)?;
    if Geometry::of(&layout) != partition.geometry {
        return Err(StackError::Component("the boot sector has changed since it was read first".to_owned()));
    }
    let blocked =
        PartitionBlocks { card, partition: *partition, layout: layout.clone(), pieces: RefCell::default() };
    let mut teller = ProblemReporter { card, reported: 0, has_forbidden: false, failed: Ok(()) };
    let checked = check(&layout, &blocked, &mut |finding| teller.problem(&finding))?;
    teller.failed?;
    if checked.refusal.is_some() {
        // The problems were reported; this file's blocks need no owner of their own.
        return Ok(());
    }
    let mut fat = Fat::mount(layout, blocked, Options::default())?;
    let first = partition.geometry.metadata_blocks();
    let mut reported = Ok(());
    let mut batch = Batch { card, files: Vec::new(), bytes: 0 };
    fat.walk(&checked, &mut |walked| {
        if reported.is_err() {
            return;
        }
        reported = match walked {
            WalkedFile::Sound { kind: Kind::File, path, blocks, .. } => {
                let runs: Vec<(u64, u64)> =
                    blocks.iter().map(|range| (first + range.start, range.count)).collect();
                runs.chunks(RUNS_MAX).try_for_each(|runs| batch.add(&path, runs))
            }
            WalkedFile::Sound { .. } => Ok(()),
            WalkedFile::Refused(finding) => {
                let problem = finding.problem.to_string();
                send_report(card, &CardRequest::Problem { place: finding.place, problem, forbids: true })
            }
        };
    })?;
    reported?;
    batch.send()
}

/// Files that are reported to the host together.
struct Batch<'a> {
    card: &'a Asker<CardRequest, CardReply>,
    files: Vec<FileBlocks>,
    bytes: usize,
}

impl Batch<'_> {
    fn add(&mut self, path: &str, runs: &[(u64, u64)]) -> Result<(), StackError> {
        let mut cut = path.len().min(PATH_BYTES_MAX);
        while !path.is_char_boundary(cut) {
            cut -= 1;
        }
        self.bytes += cut + runs.len() * 16 + 16;
        self.files.push(FileBlocks { path: path[..cut].to_owned(), runs: runs.to_vec() });
        if self.bytes > MESSAGE_BYTES - PATH_BYTES_MAX - RUNS_MAX * 16 { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> Result<(), StackError> {
        self.bytes = 0;
        match self.files.is_empty() {
            true => Ok(()),
            false => send_report(self.card, &CardRequest::Files(std::mem::take(&mut self.files))),
        }
    }
}
