//! The command line of `holdfast automount`.

use clap::{Args, value_parser};
use holdfast_daemon::paths::DirectoryList;
use std::path::PathBuf;

/// `holdfast automount`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast automount /hf
  holdfast automount /hf --key ~/.ssh/id_ed25519 --certpath /hf/@ca.example.org,9a3f.../names
  cat /hf/@mirror.example.org!project,4f1c.../README
  cd /hf/@files.example.org:7440,6d0c.../team
  holdfast umount /hf

Names say what they lead to: @HOST[:PORT],ID with the ID of a release or of a writable file system, 64 digits; for a \
mirror in a directory of a web server @HOST[:PORT]!DIR!DIR,ID. What is mounted is what the ID stands for, whoever \
answers. Symbolic links to such names work everywhere, so a directory of links, itself a release, tells people which \
IDs to use. Other names exist only if --certpath is given.

A name is mounted when somebody goes into it, and unmounted when nobody has used it for a while. `holdfast status` says \
what is mounted, and why what was tried is not. docs/releases.md tells more.")]
pub struct Automount {
    /// Empty directory in which names are mounted
    #[arg(value_name = "DIR", default_value = "/hf")]
    pub directory: PathBuf,
    /// This device's key, for writable file systems. Releases need none
    #[arg(long, value_name = "KEY")]
    pub key: Option<PathBuf>,
    /// Directories of links in which other names are looked for, in turn; they may be below DIR
    #[arg(long, value_name = "DIR")]
    pub certpath: Vec<DirectoryList>,
    /// Directories of revocation certificates to be honoured; they may be below DIR
    #[arg(long, value_name = "DIR", env = "HOLDFAST_REVOCATIONS")]
    pub revocations: Vec<DirectoryList>,
    /// Make the mounts in this directory, and show names as symbolic links to there. Users who are not root cannot mount on
    /// the names themselves [default for them: $XDG_RUNTIME_DIR/holdfast, or the state directory]
    #[arg(long, value_name = "DIR")]
    pub beside: Option<PathBuf>,
    /// Unmount what nobody has used for so long, such as 10m or 2h
    #[arg(long, value_name = "SPAN", default_value = "10m")]
    pub idle: String,
    /// Most names mounted at once; what was not used for longest makes room
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u16).range(1..=1000))]
    pub mounts_max: u16,
    /// Seconds between looks for new releases and revocations
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = value_parser!(u64).range(1..=86_400))]
    pub refresh: u64,
    /// Seconds after which a name that is not mounted yet is given up
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = value_parser!(u64).range(1..=600))]
    pub timeout: u64,
    /// Most MiB of verified blocks kept in the cache directory, for each name, unless `holdfast cache size` says
    /// otherwise
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = value_parser!(u64).range(0..=1 << 32))]
    pub cache_mib: u64,
    /// Let other users of this machine (root too) use all of it; they act with this key's rights
    #[arg(long)]
    pub allow_other: bool,
    /// Let no program be run from what is mounted
    #[arg(long)]
    pub no_exec: bool,
    /// Stay in the foreground and log to standard error
    #[arg(long)]
    pub foreground: bool,
    /// (This is the background process.)
    #[arg(long, hide = true)]
    pub background_process: bool,
}
