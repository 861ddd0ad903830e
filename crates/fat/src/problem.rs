//! The kinds of faults in a stored file system, with their messages.

use std::fmt;

/// Something stored that contradicts itself.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Problem {
    /// A chain continues at a number that is no cluster.
    OutOfRange {
        /// The cluster whose entry says so; 0 if the directory entry does.
        after: u32,
        /// The number in the table.
        next: u32,
    },
    /// A chain runs through a cluster that is marked free.
    FreeInChain(u32),
    /// A chain runs through a cluster that is marked bad.
    BadInChain(u32),
    /// A chain ends before the file does.
    ChainTooShort {
        /// The number of clusters of the chain.
        clusters: u64,
        /// Clusters that the size needs.
        needed: u64,
    },
    /// A chain continues after the file's end: it is too long, or a loop.
    ChainTooLong {
        /// Clusters that the size needs.
        needed: u64,
    },
    /// A directory's chain is longer than a directory may be: too long, or a loop.
    DirectoryTooLong,
    /// Two files, or one file twice, claim a cluster.
    CrossLinked(u32),
    /// A directory says that it has no cluster.
    DirectoryWithoutCluster,
    /// The first two entries of a directory are not `.` and `..`, or point elsewhere.
    BadDots(&'static str),
    /// Directories are nested deeper than is followed.
    TooDeep,
    /// The copies of the FAT do not agree about a cluster.
    CopiesDiffer(u32),
    /// Pieces of a long name without, or not fitting, their entry.
    BrokenLongName,
    /// Two entries of one directory with one short name.
    DuplicateName,
    /// A directory entry with a size.
    DirectoryWithSize,
    /// A name holds what no name may.
    BadName,
    /// Entries after the end mark; they are not read.
    AfterEnd,
    /// Clusters in use that belong to no file.
    Lost {
        /// The number of clusters.
        clusters: u64,
        /// The first cluster.
        first: u32,
    },
    /// The summary in FSInfo is wrong.
    Summary {
        /// The number of free clusters that the summary states.
        stated: u32,
        /// The number of free clusters that were found.
        found: u32,
    },
    /// FSInfo is not what it should be.
    BadFsInfo,
    /// The boot sector's copy differs.
    BackupDiffers,
    /// The mark that says so was left by the last to use it.
    NotUnmounted,
    /// There are more problems than are stored.
    TooMuch,
}

impl Problem {
    /// Whether writing to a file system with this problem could do harm. The other problems are only untidy.
    pub fn forbids_changes(&self) -> bool {
        !matches!(
            self,
            Problem::BrokenLongName
                | Problem::DuplicateName
                | Problem::DirectoryWithSize
                | Problem::BadName
                | Problem::AfterEnd
                | Problem::Lost { .. }
                | Problem::Summary { .. }
                | Problem::BadFsInfo
                | Problem::BackupDiffers
                | Problem::NotUnmounted
        )
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::OutOfRange { after: 0, next } => write!(f, "it starts at {next}, which is no cluster"),
            Problem::OutOfRange { after, next } => {
                write!(f, "after cluster {after} it goes on at {next}, which is no cluster")
            }
            Problem::FreeInChain(cluster) => write!(f, "its cluster {cluster} is marked free"),
            Problem::BadInChain(cluster) => write!(f, "its cluster {cluster} is marked bad"),
            Problem::ChainTooShort { clusters, needed } => {
                write!(f, "it has {clusters} clusters and its size needs {needed}")
            }
            Problem::ChainTooLong { needed } => {
                write!(f, "its size needs {needed} clusters, but its chain goes on (too long, or a loop)")
            }
            Problem::DirectoryTooLong => {
                f.write_str("the directory is longer than the 2 MiB a directory may have, or a loop")
            }
            Problem::CrossLinked(cluster) => write!(f, "cluster {cluster} is claimed twice"),
            Problem::DirectoryWithoutCluster => f.write_str("a directory without a cluster"),
            Problem::BadDots(what) => {
                write!(f, "the directory's {what} entry is missing or points elsewhere")
            }
            Problem::TooDeep => f.write_str("nested deeper than 65536 directories"),
            Problem::CopiesDiffer(cluster) => {
                write!(f, "the copies of the FAT say different things of cluster {cluster}")
            }
            Problem::BrokenLongName => {
                f.write_str("pieces of a long name are out of order or do not belong here")
            }
            Problem::DuplicateName => f.write_str("the name is there twice; only the first is reached"),
            Problem::DirectoryWithSize => f.write_str("a directory with a size"),
            Problem::BadName => f.write_str("the short name holds characters that no name may hold"),
            Problem::AfterEnd => f.write_str("entries after the end mark, which are not read"),
            Problem::Lost { clusters, first } => {
                write!(f, "{clusters} clusters in use belong to no file, the first is {first}")
            }
            Problem::Summary { stated, found } => {
                write!(f, "the summary says {stated} free clusters and there are {found}")
            }
            Problem::BadFsInfo => f.write_str("the sector with the summary is not one"),
            Problem::BackupDiffers => f.write_str("the copy of the boot sector differs from it"),
            Problem::NotUnmounted => f.write_str("whoever used it last did not unmount it"),
            Problem::TooMuch => f.write_str("more is wrong than can be kept in mind"),
        }
    }
}
