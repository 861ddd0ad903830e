//! Arguments of `holdfast evidence merge`.

use clap::Args;
use std::path::PathBuf;

/// `holdfast evidence merge`
#[derive(Debug, Args)]
pub struct Merge {
    /// Our side: a mount, an address that is mounted, or a file of evidence.
    #[arg(value_name = "OURS")]
    pub ours: PathBuf,
    /// Their side, likewise. Without it: what was refused, by the evidence that is our side.
    #[arg(value_name = "THEIRS")]
    pub theirs: Option<PathBuf>,
    /// Directory to make: ours/ and theirs/ below it hold the files, REPORT.txt and report.json what differs.
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Copy files that are the same on both sides, too.
    #[arg(long)]
    pub all: bool,
    /// A server to fetch data from that is not cached: hf://HOST:PORT/FSID
    #[arg(long, value_name = "URL", requires = "key")]
    pub from: Option<String>,
    /// A member's key, for that server.
    #[arg(long, value_name = "KEY", requires = "from")]
    pub key: Option<PathBuf>,
}
