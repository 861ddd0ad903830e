//! The arguments of `holdfast fs import`.

use clap::Args;
use std::path::PathBuf;

/// `holdfast fs import`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast fs import ~/photos hf://files.example.org/FSID/team/photos --key laptop.key
  holdfast fs import ~/photos ~/shared/team/photos
  holdfast fs import --dry-run --delete --replace ~/photos ~/shared/team/photos

What is in DIR comes into DESTINATION, which is made if needed. Modes, times, symbolic and hard links, holes, named pipes,
sockets and attributes (user.*) are kept; whose the files are is decided by the directory they come into. Each file
appears whole, with its attributes, or not at all.

It can be ended at any time and run again: what is there with the same size and time (or, with --checksum, the same
bytes) is not sent again. What is there and differs stays as it is and is told, unless --replace is given; with it,
running again sends what has changed. A file that is changed while it is read is told and left for the next run.

By address, nothing needs to be mounted; if the key serves a mount on this machine, the import goes through that.

Exit code 73 if something that differs was left as it is, 1 if something could not be read or written.")]
pub struct Import {
    /// Directory to bring in.
    #[arg(value_name = "DIR")]
    pub from: PathBuf,
    /// Where to: hf://HOST:PORT/FSID/PATH, or a directory, such as one of a mount.
    #[arg(value_name = "DESTINATION")]
    pub to: PathBuf,
    /// This device's key, for an address: a private key file, or one in your SSH agent (KEY.pub, agent:SHA256:...,
    /// agent:COMMENT).
    #[arg(long, value_name = "KEY")]
    pub key: Option<PathBuf>,
    /// Replace what is there and differs.
    #[arg(long)]
    pub replace: bool,
    /// Remove what is there and not in DIR.
    #[arg(long)]
    pub delete: bool,
    /// Compare bytes, not sizes and times.
    #[arg(long)]
    pub checksum: bool,
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// Files brought in at once; they share round trips.
    #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub parallel: u16,
}
