//! `holdfast witness` and the options of mounts that concern witnesses, as clap sees them.

use clap::{Args, Subcommand};
use holdfast_checkpoint::note::VerifierKey;
use holdfast_client::WhenStale;
use std::path::PathBuf;

/// `holdfast witness`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  holdfast witness init --state /var/lib/holdfast-witness --name witness.example.org/w1
  holdfast witness --state /var/lib/holdfast-witness --listen 0.0.0.0:7441 --log 'holdfast.example/fs/...+...+...'
  holdfast witness status --state /var/lib/holdfast-witness
  holdfast witness compare --log 'holdfast.example/fs/...+...+...' ours.note theirs.note

A witness keeps, for each log, the newest head it has signed, and signs only what extends it. So a server can show
one history to all who want its signature, and no second one. Run it on a machine that the server's operator does not
control. Its clock should be right. `holdfast server witnesses` prints the --log of each file system; `init` prints
the key that servers (`holdfast server --witness URL=KEY`) and mounts (`holdfast mount --witness KEY`) are given.

It speaks add-checkpoint of c2sp.org/tlog-witness over HTTP; for HTTPS put a web server in front of it. Never start
it with an older copy of its state: what it signed since could then be signed differently. If its state is lost,
make a new witness."
)]
pub struct Witness {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<WitnessCommand>,
    /// State directory, made by `holdfast witness init`.
    #[arg(long, value_name = "DIR", required = true)]
    pub state: Option<PathBuf>,
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7441")]
    pub listen: String,
    /// Key of a log to serve, as `holdfast server witnesses` prints it. Several: give it several times.
    #[arg(long, value_name = "KEY")]
    pub log: Vec<VerifierKey>,
}

/// What can be done with a witness.
#[derive(Debug, Subcommand)]
pub enum WitnessCommand {
    /// Make a witness, and print its key.
    Init(Init),
    /// Show what it has signed. It may be running or not.
    Status(State),
    /// Say whether two heads of one log contradict each other, which convicts its server.
    Compare(Compare),
}

/// `holdfast witness init`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast witness init --state /var/lib/holdfast-witness --name witness.example.org/w1")]
pub struct Init {
    /// State directory; made when it does not exist.
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
    /// Name of the witness: a URL without its scheme, that nobody else uses. It need not lead anywhere.
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Use this private key (without a passphrase), which must never have been a witness's, instead of a new one.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// A witness's state.
#[derive(Debug, Args)]
pub struct State {
    /// State directory.
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
}

/// `holdfast witness compare`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast witness compare --log 'holdfast.example/fs/...+...+...' ours.note theirs.note

Notes are in a witness's state directory, under logs/ and refused/. Exit code 80 if the log's server has signed two
histories.")]
pub struct Compare {
    /// Key of the log.
    #[arg(long, value_name = "KEY")]
    pub log: VerifierKey,
    /// A note.
    #[arg(value_name = "NOTE")]
    pub first: PathBuf,
    /// Another one.
    #[arg(value_name = "NOTE")]
    pub second: PathBuf,
}

/// What a mount does while the newest head is too old.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Stale {
    /// Say so, and go on.
    Warn,
    /// Refuse changes (EROFS).
    ReadOnly,
    /// Refuse everything (ETIMEDOUT).
    Stop,
}

impl From<Stale> for WhenStale {
    fn from(stale: Stale) -> WhenStale {
        match stale {
            Stale::Warn => WhenStale::Warn,
            Stale::ReadOnly => WhenStale::ReadOnly,
            Stale::Stop => WhenStale::Stop,
        }
    }
}

/// Options of a mount.
#[derive(Debug, Args)]
pub struct MountWitnesses {
    /// Key of a witness that vouches for how new what the server shows is. Several: give it several times; all members
    /// should name the same.
    #[arg(long, value_name = "KEY")]
    pub witness: Vec<VerifierKey>,
    /// How many of them must vouch for a head [default: all but fewer than a third; 1 of 1, 2 of 2, 3 of 3, 3 of 4].
    #[arg(long, value_name = "COUNT", requires = "witness")]
    pub witness_quorum: Option<usize>,
    /// Seconds that the newest head they vouch for may be old.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "witness", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub stale_after: u64,
    /// What the mount does while it is older.
    #[arg(long, value_name = "WHAT", default_value = "warn", requires = "witness")]
    pub when_stale: Stale,
}
