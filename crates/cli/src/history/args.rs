//! What the commands about past states are told.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `holdfast snapshot`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast snapshot create ~/shared before-the-move
  ls ~/shared/.snapshots/before-the-move
  holdfast snapshot list ~/shared
  holdfast snapshot remove ~/shared before-the-move

A snapshot is a name for the whole file system as it was, signed with this device's key. The server keeps
that state, whatever its rules for the others are, until the name is removed by its user or the superuser.
Past states, with and without names, are in `.snapshots` at the root of each mount, for reading only.

The file system must be mounted.")]
pub struct Snapshot {
    /// What to do.
    #[command(subcommand)]
    pub command: SnapshotCommand,
}

/// Names for states.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Give the present state a name. What was changed through this mount is in it.
    Create {
        /// Where the file system is mounted.
        #[arg(value_name = "DIR")]
        mount: PathBuf,
        /// The name; it does not begin with a digit.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// List names, oldest state first.
    List {
        /// Where the file system is mounted.
        #[arg(value_name = "DIR")]
        mount: PathBuf,
        /// List the states that the server keeps without a name, too.
        #[arg(long)]
        all: bool,
    },
    /// Take a name away. Its state is then kept as long as the server's rules say.
    Remove {
        /// Where the file system is mounted.
        #[arg(value_name = "DIR")]
        mount: PathBuf,
        /// The name.
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// `holdfast history`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast history ~/shared/notes.txt
  holdfast history ~/shared/deleted-last-week --json

Goes through all states that the server keeps, oldest first, and tells each version once: since when, of
what size, and who wrote it. Every state is verified as the present is. The file need not exist any more.

The file system must be mounted.")]
pub struct History {
    /// The file or directory, by its path in a mount.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// `holdfast restore`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast restore ~/shared/notes.txt --at 2026-11-22T21:30
  holdfast restore ~/shared/project --at before-the-move --to ~/shared/project.old
  holdfast restore ~/shared/notes.txt --at 2h --force

Of a time (UTC, or so long ago) it takes the last kept state not after it; `holdfast history FILE` shows which
there are. Contents are not moved: the restored files refer to what the server has. Modes, times, links and
extended attributes are as they were; files belong to the owner of the directory they are restored to, and
several names of one file become several files. What is restored gets its name when it is complete.

The file system must be mounted.")]
pub struct Restore {
    /// The file or directory, by its path in a mount; it need not exist any more.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// A snapshot, a name from `.snapshots`, a time such as 2026-11-22T21:30, or a while ago such as 90m, 2h, 3d.
    #[arg(long, value_name = "TIME|SNAPSHOT")]
    pub at: String,
    /// Where to, in the same mount [default: where it was].
    #[arg(long, value_name = "PATH")]
    pub to: Option<PathBuf>,
    /// Replace what is there.
    #[arg(long)]
    pub force: bool,
}
