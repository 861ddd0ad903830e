//! The messages of FSLoader and FSChecker to the host. They request parts of the disk and report what they
//! found; the host sends back bytes only.

#![allow(missing_docs, reason = "what a field is, the sentence of its message says")]

use crate::disk_layout::Geometry;
use borsh::{BorshDeserialize, BorshSerialize};

/// Most bytes of the disk in one answer.
pub const READ_MAX: u32 = 32 << 10;
/// Most partitions of a table.
pub const ENTRIES_MAX: usize = 1024;
/// Most bytes of a path in a message; a longer path is cut.
pub const PATH_BYTES_MAX: usize = 4096;
/// Most runs of a file's blocks in one message; more come in further pieces.
pub const RUNS_MAX: usize = 1024;

/// An entry of a partition table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct TableEntry {
    /// The number in the table, from 1; 0 where there is no table.
    pub number: u32,
    /// The first byte.
    pub start: u64,
    /// The size in bytes.
    pub bytes: u64,
}

/// A file, or a piece of one.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct FileBlocks {
    /// The path of the file.
    pub path: String,
    /// Runs of the file's blocks, in the partition's numbering: the first block, and their number.
    pub runs: Vec<(u64, u64)>,
}

/// From FSLoader and FSChecker to the host.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum CardRequest {
    /// Read a part of the disk.
    Read { offset: u64, length: u32 },
    /// FSLoader: the entries of the partition table. From now on it may read their first sectors.
    Table(Vec<TableEntry>),
    /// FSLoader: the content of one partition.
    Partition { number: u32, holds: Result<Geometry, String> },
    /// FSLoader: the planned partition table and file systems of a disk that is to be formatted.
    DiskFormat { mbr: Vec<u8>, geometries: Vec<Geometry> },
    /// FSChecker: a problem, and whether it forbids changes.
    Problem { place: String, problem: String, forbids: bool },
    /// FSChecker: the blocks of some files.
    Files(Vec<FileBlocks>),
    /// The end of the report; or the error that ended it, in words.
    End(Result<(), String>),
}

/// From the host.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum CardReply {
    /// The bytes that were read.
    Bytes(Vec<u8>),
    /// The component may continue.
    Go,
}
