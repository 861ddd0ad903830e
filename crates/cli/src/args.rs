//! The command line, as clap sees it. Everything that `--help`, the manual and completions say is here.

mod blocks;
#[cfg_attr(not(feature = "convert"), path = "without/convert_arguments.rs")]
mod convert;
mod former;
mod fs;
mod gateway;
mod help;
mod merge;
mod quota;
mod stats;

pub use blocks::{Blocks, BlocksCommand};
pub use convert::ServerConvert;
pub use former::AnyCommand;
pub use fs::*;
pub use gateway::Gateway;
pub use merge::Merge;
pub use quota::{Quota, QuotaCommand};
pub use stats::Stats;

use crate::reading::args::ReleaseMount;
use crate::unrepeated::Unrepeated;
use clap::builder::{FalseyValueParser, OsStringValueParser, TypedValueParser};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use holdfast_client::store::TransferMode;
use holdfast_daemon::background::REQUIRE_SANDBOX;
use holdfast_daemon::paths::Directories;
use std::path::PathBuf;

/// A shared, writable file system on a server that nobody has to trust.
///
/// `Cli<Command>` is the command line as help, manual and completions show it; `Cli<AnyCommand>` is what is parsed: it has
/// the former spellings too.
#[derive(Debug, Parser)]
#[command(
    name = "holdfast",
    version,
    about = "A shared, writable file system on a server that nobody has to trust",
    long_about = None,
    disable_help_subcommand = true,
    propagate_version = true,
    max_term_width = 100,
    help_template = help::template(),
    after_help = "`holdfast COMMAND --help` has examples, to begin with of `keygen`, `fs create` and `mount`.\n\
                  `holdfast help --all` lists every command, `holdfast help exit-codes` explains exit codes.\n\
                  HOLDFAST_LOG=debug (or a filter such as holdfast_client=trace) makes servers and mounts say more."
)]
pub struct Cli<C: Subcommand> {
    /// What to do.
    #[command(subcommand)]
    pub command: C,
    /// Where state and cache are kept.
    #[command(flatten)]
    pub directories: DirectoryArguments,
    /// Print data (and errors) as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Start nothing in a sandbox that lacks a wall which newer kernels have.
    #[arg(long, global = true, env = REQUIRE_SANDBOX, hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub require_sandbox: bool,
}

/// The command line with what this program was built with.
pub fn command<C: Subcommand>() -> clap::Command {
    crate::features::fit(Cli::<C>::command())
}

/// What this process was called with.
///
/// # Errors
/// It makes no sense, or help is asked for.
pub fn parse() -> Result<Cli<AnyCommand>, clap::Error> {
    let mut command = command::<AnyCommand>();
    let mut matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Directories that the user may choose.
#[derive(Clone, Debug, Args)]
pub struct DirectoryArguments {
    /// Where the signer's state, its log and evidence are kept [default: $XDG_STATE_HOME/holdfast, for root
    /// /var/lib/holdfast/client]
    #[arg(
        long,
        value_name = "DIR",
        env = "HOLDFAST_STATE_DIR",
        hide_env_values = true,
        global = true,
        value_parser = OsStringValueParser::new().map(PathBuf::from),
        help_heading = "Directories"
    )]
    state: Option<PathBuf>,
    /// Where verified blocks are cached [default: $XDG_CACHE_HOME/holdfast, for root /var/cache/holdfast]
    #[arg(
        long,
        value_name = "DIR",
        env = "HOLDFAST_CACHE_DIR",
        hide_env_values = true,
        global = true,
        value_parser = OsStringValueParser::new().map(PathBuf::from),
        help_heading = "Directories"
    )]
    cache: Option<PathBuf>,
}

impl DirectoryArguments {
    /// The directories; a variable of the environment that is empty counts as none.
    pub fn chosen(&self) -> Directories {
        let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        Directories { state: given(&self.state), cache: given(&self.cache) }
    }
}

impl<C: Subcommand> Cli<C> {
    /// Has this process heed what was said for all commands. Before it starts anything.
    pub fn heed(&self) {
        if self.require_sandbox {
            holdfast_components::require_all_walls();
        }
    }
}

/// The commands. `manual::READERS` groups most of them by who uses them.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a key and print its public line.
    Keygen(Keygen),
    /// Mount a file system or a release.
    Mount(Mount),
    /// Unmount a file system, after publishing everything unsaved.
    Umount(Umount),
    /// Say how the mounts of this user are doing; alarms in words.
    Status(Status),
    /// Show the versions of a file that past states have.
    History(crate::history::args::History),
    /// Bring back a file or directory as it was in a past state.
    Restore(crate::history::args::Restore),
    /// Name the present state of a file system, so that it is kept.
    Snapshot(crate::history::args::Snapshot),
    /// List and fetch versions of files that somebody overwrote unseen.
    Conflicts(Conflicts),
    /// Find and copy out what could not be saved to the server.
    Salvage(Salvage),
    /// Create and administer file systems, import into them, rebuild them.
    Fs(Fs),
    /// Run a server, or a block server for others; look after its data.
    Server(Server),
    /// Publish signed releases; mirror, read and verify them.
    Release(crate::release::args::Release),
    /// Protect disks and images: every block that is read is verified.
    Volume(Volume),
    /// Say which programs may open a file, and why; start one clean.
    Program(crate::programs::args::Program),
    /// Show what is cached on this machine; pin, clear and check it.
    Cache(crate::cache::Cache),
    /// Show, verify and compare evidence of a server's misbehaviour.
    Evidence(Evidence),
    /// Run a witness, which keeps servers from showing people different histories for long.
    Witness(crate::witness::args::Witness),
    /// Mount file systems and releases by names that contain their IDs, when they are used.
    Automount(crate::automount::args::Automount),
    /// Show the sandboxed processes of this user: what each may do, and behind which walls.
    Components(crate::components::Components),
    /// Print a completion script for a shell.
    Completions(Completions),
    /// Write manual pages, or print the manual as Markdown.
    Man(Man),
    /// Explain a command, or `exit-codes`; list all commands.
    Help(Help),
    /// `holdfast server blocks` by its former spelling, which has no options of `holdfast server` beside it.
    #[command(skip)]
    Blocks(Box<Blocks>),
}

/// `holdfast keygen`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast keygen --out ~/.config/holdfast/key
  holdfast keygen --out superuser.key --passphrase --comment 'team superuser'

The private key goes to the file (mode 0600), its public line to FILE.pub and to standard output. An Ed25519
key made by `ssh-keygen -t ed25519` serves as well. Existing files are never overwritten.")]
pub struct Keygen {
    /// File for the private key.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Protect the key with a passphrase (asked for, or from the file named by HOLDFAST_PASSPHRASE_FILE).
    #[arg(long)]
    pub passphrase: bool,
    /// Comment in the public line [default: USER@HOST].
    #[arg(long)]
    pub comment: Option<String>,
}

/// `holdfast server`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  holdfast server --data /srv/holdfast
  holdfast server --data /srv/holdfast --listen '[::]:7440'
  holdfast server allow --data /srv/holdfast 'ssh-ed25519 AAAA... anna'
  holdfast server --data /srv/holdfast --history all:2d,1d:60d
  holdfast server scrub --data /srv/holdfast
  holdfast server backup --data /srv/holdfast --to /mnt/backup/holdfast
  holdfast server witnesses --data /srv/holdfast
  holdfast server --data /srv/holdfast --witness https://witness.example.org=witness.example.org/w1+1a2b3c4d+BA...
  holdfast server key --data /srv/holdfast
  holdfast server --data /srv/holdfast --blocks hf+blocks://blocks.example.org:7441/KEY
  holdfast server --data /srv/holdfast --blocks 's3://my-bucket/holdfast?endpoint=https://s3.example.org&region=eu-1'

SIGTERM or SIGINT ends it; nothing acknowledged is lost even by a power failure."
)]
pub struct Server {
    /// Work on a data directory instead of serving it.
    #[command(subcommand)]
    pub command: Option<ServerCommand>,
    /// Data directory; made when it does not exist.
    #[arg(long, value_name = "DIR", required = true)]
    pub data: Option<PathBuf>,
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:7440")]
    pub listen: String,
    /// Keep the blocks at a block server (`holdfast server blocks`) or in a bucket of an S3-compatible object store, instead
    /// of in the data directory, which must be new; from then on it is remembered. Credentials for a bucket are those of the
    /// environment (AWS_ACCESS_KEY_ID, ...), of ~/.aws/credentials, of a web identity, or of this container's or machine's role.
    #[arg(long, value_name = "HF+BLOCKS://HOST:PORT/KEY|S3://BUCKET/PREFIX?endpoint=URL", value_parser = Unrepeated(|text| text.parse::<holdfast_server::BlocksLocation>()))]
    pub blocks: Option<holdfast_server::BlocksLocation>,
    /// Keep the order in etcd instead of in the data directory, which must be new, so that another server goes on when this
    /// one fails (docs/growing.md); etcds:// for TLS. From then on it is remembered. `--state etcd://...` means the same.
    #[arg(long, value_name = "ETCD://HOST:PORT,.../PREFIX")]
    pub order: Option<holdfast_server::StateAddress>,
    /// File with what etcd lets this server in for: lines user=, password=, ca=, certificate=, key=.
    #[arg(long, value_name = "FILE")]
    pub order_login: Option<PathBuf>,
    /// Where clients and the other servers reach this one [default: where it listens].
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Option<holdfast_rpc::ServerAddress>,
    /// Accept what is at the block server or in the bucket now, whatever was there before: what it lacks is lost. With a new
    /// data directory, take over the store that is in the bucket.
    #[arg(long)]
    pub blocks_anew: bool,
    /// Seconds after which an operation whose client died is declared dead.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub abort_after: u64,
    /// Seconds for which clients may read again what they have read without asking (leases); 0 means never. A change
    /// waits as long for a client that has died while it held a lease of what is changed.
    #[arg(long, value_name = "SECONDS", default_value_t = holdfast_protocol::leases::TERM_MS / 1000, value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub lease: u64,
    /// Minutes between garbage collections; 0 means never.
    #[arg(long, value_name = "MINUTES", default_value_t = 60)]
    pub collect_every: u64,
    /// Days for which deleted and overwritten content is kept as a source for what is written next; 0 keeps none.
    #[arg(long, value_name = "DAYS", default_value_t = 7, value_parser = clap::value_parser!(u64).range(0..=36_500))]
    pub keep_deleted: u64,
    /// Most of it that is kept [default: a tenth of all data, at least 1024].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(0..=1 << 32))]
    pub keep_deleted_mib: Option<u64>,
    /// Which past states are kept without a name: EVERY:FOR[,EVERY:FOR...]. The newest of each EVERY (all, or a time
    /// such as 1h) is kept for FOR; 0 keeps none.
    #[arg(long, value_name = "RULES", default_value = "all:1d,1h:7d,1d:30d,7d:1y")]
    pub history: holdfast_protocol::history::Retention,
    /// Highest level, 1 to 19, at which data is compressed for one client; higher ones cost more of this machine.
    #[arg(long, value_name = "LEVEL", default_value_t = 9, value_parser = clap::value_parser!(u8).range(1..=19))]
    pub parcel_level: u8,
    /// Who may create file systems here.
    #[arg(long, value_name = "WHO", default_value = "local")]
    pub create: CreateBy,
    /// Don't listen on the UDP port of the same number, for QUIC; clients then use TCP on bad links too.
    #[arg(long)]
    pub no_quic: bool,
    /// A witness to co-sign the newest heads, and where it is asked, as URL=KEY (`holdfast witness init` prints its key).
    /// Several: give it several times.
    #[arg(long, value_name = "URL=KEY", value_parser = witness_address)]
    pub witness: Vec<holdfast_server::witnessing::WitnessAddress>,
    /// Most that each user of each file system may store, whatever its superuser allows, such as 20G.
    #[arg(long, value_name = "SIZE", value_parser = crate::cache::bytes_of)]
    pub user_quota: Option<u64>,
    /// Seconds between heads.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub witness_every: u64,
    /// The data directory was put back from a backup: serve nothing until each superuser has declared that (`holdfast fs
    /// restored`). Needed once; it is remembered in the directory.
    #[arg(long)]
    pub restored: bool,
    /// Face the network in the process that holds the key and the data, where sandboxes cannot be made (some
    /// containers). A hole in TLS, QUIC or framing is then a hole in all of it.
    #[arg(long)]
    pub one_process: bool,
}

/// What carries a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Carrier {
    /// TCP, and QUIC where the link is far and loses packets.
    Auto,
    /// TCP only.
    Tcp,
    /// QUIC only.
    Quic,
}

impl From<Carrier> for holdfast_rpc::Transport {
    fn from(carrier: Carrier) -> Self {
        match carrier {
            Carrier::Auto => holdfast_rpc::Transport::Auto,
            Carrier::Tcp => holdfast_rpc::Transport::Tcp,
            Carrier::Quic => holdfast_rpc::Transport::Quic,
        }
    }
}

/// What `chown` to somebody who is not mapped does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum UnmappedChown {
    /// It fails (EPERM).
    Refuse,
    /// It succeeds and changes nothing, as for programs that restore owners of another machine.
    Ignore,
}

/// A name and a number, as in `alice=1000`.
fn mapping(text: &str) -> Result<(String, u32), String> {
    let (name, id) = text.rsplit_once('=').ok_or("not of the form NAME=NUMBER")?;
    let id = id.parse().map_err(|_| format!("{id} is not the number of a local user or group"))?;
    Ok((name.to_owned(), id))
}

/// Where a witness is asked, and its key, as in `https://witness.example.org/=NAME+HASH+KEY`.
fn witness_address(text: &str) -> Result<holdfast_server::witnessing::WitnessAddress, String> {
    let (url, key) = text.split_once('=').ok_or("not of the form URL=KEY")?;
    let key = key.parse().map_err(|error| format!("{error}"))?;
    Ok(holdfast_server::witnessing::WitnessAddress { url: url.to_owned(), key })
}

/// Who may create file systems on a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum CreateBy {
    /// Whoever connects from the same machine, and the keys of `holdfast server allow`.
    Local,
    /// Only the keys of `holdfast server allow`.
    Listed,
    /// Anybody who can connect.
    Anyone,
    /// Nobody.
    Nobody,
}

/// What can be done with a server's data directory.
#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Run a block server, which has the blocks of servers on other machines.
    Blocks(Box<Blocks>),
    /// Collect garbage now. The server may be running or not.
    Gc(ServerData),
    /// Read everything and report damage. The server may be running or not.
    #[command(alias = "check")]
    Scrub(ServerData),
    /// Show figures. The server may be running or not.
    Stats(ServerData),
    /// Show what members hold: blocks of signed releases, kept whatever becomes of the files they were made of.
    Holds(ServerData),
    /// End a hold, whoever made it. What only that release used goes with the next collection.
    Unhold(ServerUnhold),
    /// Hand a file system over to another server that has the order in the same place (--state).
    Move(ServerMove),
    /// Print the server's public key, for `holdfast server blocks --allow`; both are made if they are not there.
    Key(ServerData),
    /// Allow a key to create file systems here from other machines.
    Allow(ServerAllow),
    /// Make a whole copy of a data directory. The server may be running or not.
    Backup(ServerBackup),
    /// Move blocks and order from where they are to a block server, a bucket, etcd or a new data directory. No server may run.
    Convert(Box<ServerConvert>),
    /// Show the key of each file system's log, for witnesses, and what witnesses have co-signed.
    Witnesses(ServerData),
    /// Give the running server's figures to Prometheus, and tell a supervisor whether it is well.
    Metrics(ServerMetrics),
}

/// `holdfast server metrics`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast server metrics --data /srv/holdfast
  holdfast server metrics --data /srv/holdfast --listen 127.0.0.1:7444
  curl -f http://127.0.0.1:7444/readyz

Over HTTP there are /metrics (Prometheus' text format), /healthz (the server answers) and /readyz (all of its file
systems are served, and their blocks can be reached; else 503 and why). Run it as the server's user. It needs no key and
asks nobody for one, so let it listen where only your own machines connect. docs/server.md lists the figures with
their units, and what to be woken by.")]
pub struct ServerMetrics {
    /// Data directory.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Serve them over HTTP on this address and port, in place of printing them once.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
}

/// `holdfast server backup`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast server backup --data /srv/holdfast --to /mnt/backup/holdfast

Each run makes a directory in DIR, named after the time, that is whole or not there. It is a data directory of
its own: `holdfast server --data DIR/NAME` serves it. Log files that an earlier backup there has are shared with
it (hard links), so only what is new is copied, and any backup can be deleted by itself. It holds the server's
key, so keep it as closed as the server.

A restored backup is OLDER than what some devices have seen, and they refuse it until the superuser has declared that
it was put back: start it with `holdfast server --restored`, then run `holdfast fs restored`. What was made since the
backup is lost but for what devices still have. docs/server.md says it step by step.")]
pub struct ServerBackup {
    /// Data directory.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Directory for backups; made when it does not exist.
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
}

/// A server's data directory.
#[derive(Debug, Args)]
pub struct ServerData {
    /// Data directory.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
}

/// `holdfast server unhold`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast server holds --data /srv/holdfast
  holdfast server unhold --data /srv/holdfast 90c1... release/4f1c.../3/7d0a...")]
pub struct ServerUnhold {
    /// Data directory.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// The file system, as `holdfast server holds` shows it.
    #[arg(value_name = "FSID")]
    pub file_system: String,
    /// The hold's name.
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// `holdfast server move`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast server move --data /srv/holdfast 90c1... --to b.example.org:7440")]
pub struct ServerMove {
    /// Data directory of the server that has it now.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// The file system.
    #[arg(value_name = "FSID")]
    pub file_system: String,
    /// The server that is to have it, as it advertises itself; `holdfast server stats` lists those that run.
    #[arg(long, value_name = "HOST:PORT")]
    pub to: holdfast_rpc::ServerAddress,
}

/// `holdfast server allow`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast server allow --data /srv/holdfast 'ssh-ed25519 AAAA... anna'")]
pub struct ServerAllow {
    /// Data directory.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Public key line, or a file that holds it. Without one, the allowed keys are listed.
    #[arg(value_name = "PUBLIC-KEY")]
    pub key: Option<String>,
}

/// `holdfast mount`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast mount hf://files.example.org/FSID ~/shared --key ~/.ssh/id_ed25519
  holdfast mount hf://127.0.0.1:7440/FSID /mnt --key laptop.key --foreground
  holdfast mount hf://files.example.org/FSID ~/shared --key agent:anna@laptop
  holdfast mount hf://files.example.org/FSID ~/shared --key laptop.key --witness witness.example.org/w1+1a2b3c4d+BA... \
    --stale-after 60 --when-stale read-only
  holdfast mount hf://files.example.org/FSID ~/shared --key laptop.key --peers --when-peer-lost pause
  holdfast mount https://mirror.example.org/release/ /mnt --id ID

Returns when the mount works; a process in the background then serves it until `holdfast umount DIR`, with its
log in the state directory. A second mount with the same key is served by the same process.

A key in an SSH agent (SSH_AUTH_SOCK; Ed25519 only) never leaves it: the agent is asked for each signature. A
private key file with a passphrase is not opened if the agent holds the key. While the agent is away, programs wait
as for a server that is away; `holdfast status` says so, and all goes on when one with the key is at the same socket.

For a mount at every start, with `mount.holdfast` (the same program by another name) in /sbin, in /etc/fstab:
  hf://HOST:PORT/FSID /mnt holdfast key=/etc/holdfast/laptop.key,allow_other,_netdev,nofail 0 0
Options there: key=FILE, state=DIR, cache=DIR, cache_mib=MIB, timeout=SECONDS, transport=WHAT, transfer=HOW,
map_user=NAME=UID, map_group=NAME=GID, unmapped_chown=WHAT, revocations=DIR, hard, no_leases, no_gather, no_send_again,
local_locks,
write_back, write_back_mib=MIB, witness=KEY (several times), witness_quorum=COUNT, stale_after=SECONDS, when_stale=WHAT,
peers, peers_listen=ADDRESS:PORT, no_beacon, peer_timeout=SECONDS, when_peer_lost=WHAT, allow_other, ro, noexec. The key must have no passphrase and be in a file, as nobody is
there to be asked and no agent runs. A release:
  hf+release:ID@https://HOST/PATH/ /mnt holdfast mirror=URL,allow_other,_netdev,nofail 0 0
Options there: id=ID, mirror=URL, revocations=DIR, refresh=SECONDS, allow_stale, state=DIR, cache=DIR,
cache_mib=MIB, allow_other, noexec.")]
pub struct Mount {
    /// Address: hf://HOST:PORT/FSID; or of a release hf+release:ID@MIRROR, or a mirror (https://HOST/PATH/) and --id;
    /// or the directory of an image (`holdfast release export`)
    #[arg(value_name = "URL")]
    pub url: String,
    /// Empty directory to mount on.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// This device's key: a private key file, or one in your SSH agent (KEY.pub, agent:SHA256:..., agent:COMMENT).
    /// Releases need none.
    #[arg(long, value_name = "KEY")]
    pub key: Option<PathBuf>,
    /// What concerns releases only.
    #[command(flatten)]
    pub release: ReleaseMount,
    /// What concerns images of releases only.
    #[command(flatten)]
    pub image: crate::image::args::ImageMount,
    /// Let other users of this machine (root too) use the mount; they act with this key's rights.
    #[arg(long)]
    pub allow_other: bool,
    /// Mount read-only.
    #[arg(long)]
    pub read_only: bool,
    /// Let no program be run from the mount.
    #[arg(long)]
    pub no_exec: bool,
    /// Where the helper listens that identifies programs for files with rules (`holdfast program acl`), if not in
    /// /run/holdfast. It must run as root.
    #[arg(long, value_name = "PATH")]
    pub callers: Option<PathBuf>,
    /// Keep locks of files (flock, fcntl) among the programs of this machine, without asking the server. Faster,
    /// and wrong if programs on other machines lock the same files.
    #[arg(long)]
    pub local_locks: bool,
    /// Keep changes in a journal on this machine and send them in the background: closing and fsync wait for the local
    /// disk only, and work goes on for hours without the server, also if the machine starts again meanwhile. If others have changed the same meanwhile, both
    /// versions stay and you are told (`holdfast status`). For all mounts of this key.
    #[arg(long)]
    pub write_back: bool,
    /// Most MiB of changes kept to be sent.
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(16..=1 << 32))]
    pub write_back_mib: u64,
    /// Local user to show for a user of the file system, by number: alice=1000. Several: alice=1000:bob=1001.
    #[arg(long, value_name = "NAME=UID", value_delimiter = ':', value_parser = mapping)]
    pub map_user: Vec<(String, u32)>,
    /// Local group to show for a group of the file system, likewise. chown and chgrp to a mapped user or group give
    /// a file that owner.
    #[arg(long, value_name = "NAME=GID", value_delimiter = ':', value_parser = mapping)]
    pub map_group: Vec<(String, u32)>,
    /// What chown and chgrp to users and groups do that stand for nobody in the file system. Unless said: refuse if
    /// owners are mapped (--map-user, --map-group), otherwise ignore, so that `tar`, `cp -a` and `rsync -a` work.
    #[arg(long, value_name = "WHAT")]
    pub unmapped_chown: Option<UnmappedChown>,
    /// Who vouches for how new what the server shows is.
    #[command(flatten)]
    pub witnesses: crate::witness::args::MountWitnesses,
    /// How other clients are met.
    #[command(flatten)]
    pub peers: crate::peers::args::MountPeers,
    /// Stay in the foreground and log to standard error.
    #[arg(long)]
    pub foreground: bool,
    /// Try the server again after an alarm about its order that you have looked into. All that this device has
    /// seen stays remembered, so a server that still lies is caught again.
    #[arg(long)]
    pub acknowledge_alarm: bool,
    /// Seconds to wait for a server that does not answer before a call fails (ETIMEDOUT).
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Let calls wait for the server for as long as it takes. They can be interrupted.
    #[arg(long)]
    pub hard: bool,
    /// Ask the server each time, instead of reading again under a lease what was read before.
    #[arg(long)]
    pub no_leases: bool,
    /// After a declared restore of the server, do not send again by itself what this device had written and the restore
    /// lost. It is kept as ever: `holdfast evidence merge`.
    #[arg(long)]
    pub no_send_again: bool,
    /// Send each change at once, and let close wait until the server has it on disk. Otherwise changes
    /// that come in a row are gathered here for a third of a second, where several change the same in turn; whoever looks
    /// elsewhere sees them all the same, and fsync always waits for the server. For all mounts of this key.
    #[arg(long)]
    pub no_gather: bool,
    /// What carries the conversation with the server.
    #[arg(long, value_name = "WHAT", default_value = "auto")]
    pub transport: Carrier,
    /// Most MiB of verified blocks kept in the cache directory, unless `holdfast cache size` says otherwise.
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(0..=1 << 32))]
    pub cache_mib: u64,
    /// What is done to send and fetch less over slow links. The others are there to compare with: plain compresses
    /// block by block and no more; lbfs does what LBFS did.
    #[arg(long, value_name = "full|plain|lbfs", default_value = "full")]
    pub transfer: TransferMode,
    /// (This is the background process.)
    #[arg(long, hide = true)]
    pub background_process: bool,
}

/// `holdfast umount`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast umount ~/shared
  holdfast umount --lazy ~/shared

Waits until the process behind the last mount has ended, so that its cache and state may be moved or removed, but for ten
seconds at most.")]
pub struct Umount {
    /// Mount point.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Do it although programs use it: they lose it when they let go.
    #[arg(long)]
    pub lazy: bool,
}

/// `holdfast status`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast status
  holdfast status ~/shared --json

A mount, or a process behind one, that does not answer within seconds is shown as STUCK, with the way out. Files of which
changes were lost before they were at the server are named until the folder that `holdfast salvage` tells of is removed.

Exit code 80 if any of them has raised an alarm, 67 if this device was removed or its key replaced, 69 if a server, mount or process does not answer or witnesses do not
vouch for what a server shows.")]
pub struct Status {
    /// Only this mount point.
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

/// `holdfast evidence`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast evidence list
  holdfast evidence list hf://HOST/FSID --key anna.key
  holdfast evidence show 3f2a
  holdfast evidence export 3f2a --to for-the-others.evidence
  holdfast evidence verify for-the-others.evidence

Two people who suspect that they were shown different histories:
  each:    holdfast evidence statement ~/shared --to anna.evidence
  anybody: holdfast evidence verify anna.evidence ben.evidence
  to carry on, where the most is cached:
           holdfast evidence merge ~/shared ben.evidence --to side-by-side

`verify` needs no server, no key and no state. It ends with 0 if nothing contradicts anything, 80 if
signatures prove that somebody lied, 1 if it rests on the word of who kept it, and 65 if a file is
forged, damaged or cut off.")]
pub struct Evidence {
    /// What to do.
    #[command(subcommand)]
    pub command: EvidenceCommand,
}

/// Which file system and key: all of this user's unless given.
#[derive(Debug, Args)]
pub struct StateSelector {
    /// Address: hf://HOST:PORT/FSID
    #[arg(value_name = "URL", requires = "key")]
    pub url: Option<String>,
    /// The device's key: a private or public key file, or agent:SHA256:... or agent:COMMENT.
    #[arg(long, value_name = "KEY", requires = "url")]
    pub key: Option<PathBuf>,
}

/// Evidence.
#[derive(Debug, Subcommand)]
pub enum EvidenceCommand {
    /// List what was kept.
    List(StateSelector),
    /// Show one piece in words.
    Show {
        /// Its name, or the beginning of it, as `list` prints it; or a file.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Write one piece to a file for others to check, with all that is needed for it.
    Export {
        /// Its name, or the beginning of it, as `list` prints it.
        #[arg(value_name = "NAME")]
        name: String,
        /// File to write; never overwritten.
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
    /// Write down what this device was shown, for comparison with what others were shown.
    Statement {
        /// A mount, or an address: hf://HOST:PORT/FSID
        #[arg(value_name = "DIR-or-URL")]
        which: String,
        /// The device's key, if it is not mounted: a private or public key file, or agent:SHA256:... or agent:COMMENT.
        #[arg(long, value_name = "KEY")]
        key: Option<PathBuf>,
        /// File to write; never overwritten.
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
    /// Say what files of evidence prove, alone or together, and about whom.
    Verify {
        /// Files that `export` or `statement` wrote.
        #[arg(value_name = "FILE", required = true, num_args = 1..=64)]
        files: Vec<PathBuf>,
    },
    /// Lay two histories side by side in a directory.
    Merge(Merge),
    /// Show the devices that a mount meets directly, and what was agreed on; go on without one that is lost.
    Peers(crate::peers::args::Peers),
}

/// `holdfast salvage`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast salvage
  holdfast salvage --to ~/rescued")]
pub struct Salvage {
    /// Which file system and key.
    #[command(flatten)]
    pub which: StateSelector,
    /// Directory to copy the files to; made if needed, nothing in it is overwritten.
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
}

/// `holdfast conflicts`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  holdfast conflicts
  holdfast conflicts ~/shared
  holdfast conflicts get g1-1f00a --out report-of-ben.odt
  holdfast conflicts drop g1-1f00a g1-1f00b

If two machines change one file at the same time, the version closed last stands. The other is
kept in the file system, where all members find it, until somebody who may write the file drops
it. At most 1,000 versions are kept for each user and group; the oldest goes first. What both only
appended is not a conflict: it is all in the file.

The file system must be mounted."
)]
pub struct Conflicts {
    /// What to do instead of listing them.
    #[command(subcommand)]
    pub command: Option<ConflictsCommand>,
    /// Only this file system (hf://HOST:PORT/FSID), or the one mounted at this directory.
    #[arg(value_name = "URL-or-DIR")]
    pub which: Option<String>,
}

/// `holdfast fs reclaim`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast fs reclaim --dry-run
  holdfast fs reclaim ~/shared

Whoever may write a directory may remove names of other people's files in it; the files stay their
owners', without a name, and take up space. This goes through the whole file system and removes those
that belong to this user or its groups and that no directory of anybody names. A mount does this by
itself once a day, with what it has found twice, in file systems of up to 200,000 files.

The file system must be mounted.")]
pub struct Reclaim {
    /// Only this file system (hf://HOST:PORT/FSID), or the one mounted at this directory.
    #[arg(value_name = "URL-or-DIR")]
    pub which: Option<String>,
    /// Only say what would be removed.
    #[arg(long)]
    pub dry_run: bool,
}

/// Kept versions.
#[derive(Debug, Subcommand)]
pub enum ConflictsCommand {
    /// Copy a version out, verified.
    Get {
        /// The version, as listed.
        #[arg(value_name = "ID")]
        id: String,
        /// File to write; never overwritten.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// The file system it is in, or a directory where that is mounted.
        #[arg(long, value_name = "URL-or-DIR")]
        of: Option<String>,
    },
    /// Remove versions that nobody needs any more.
    Drop {
        /// The versions, as listed.
        #[arg(value_name = "ID", required = true)]
        ids: Vec<String>,
        /// The file system they are in, or a directory where that is mounted.
        #[arg(long, value_name = "URL-or-DIR")]
        of: Option<String>,
    },
}

/// `holdfast release serve`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release serve /srv/release
  holdfast release serve /srv/release --listen '[::]:80' --threads 2
  holdfast release serve ./release --origin hf://HOST/FSID --key reader.key

RELEASEDIR is what `holdfast release publish` makes and any mirror is a copy of. The server holds no key
and understands nothing of it: whoever reads the release checks every byte, so it does not matter
who serves it. What changes in the directory is served within a second or so. Plain HTTP will do;
where HTTPS is wanted, put any web server before it, or let that serve the directory itself: the
files are all there is to it.

With --origin it also gives the data of a release that was published from a live file system, which is in no pack:
blocks of this release only, checked before they are passed on. The key's owner must be a member there.

SIGTERM or SIGINT ends it, after the answers under way. HOLDFAST_LOG=debug shows each request.")]
pub struct Serve {
    /// Directory of the release.
    #[arg(value_name = "RELEASEDIR")]
    pub directory: PathBuf,
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8080")]
    pub listen: String,
    /// Threads that answer. One is enough for most links.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    /// Connections at once; others wait. One costs up to 150 KiB of memory.
    #[arg(long, value_name = "NUMBER", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections_max: u32,
    /// Seconds after which a connection is closed that asks for nothing or takes nothing.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub idle: u64,
    /// The live file system that the release was made of, hf://HOST:PORT/FSID: data that is in no pack comes from there.
    #[arg(long, value_name = "URL", requires = "key")]
    pub origin: Option<String>,
    /// A key of any member of it, best of a user who may write nothing.
    #[arg(long, value_name = "KEY", requires = "origin")]
    pub key: Option<PathBuf>,
    /// MiB of memory for small files, and as much again for data of an origin.
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub memory: u64,
}

/// `holdfast volume`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast volume protect disk.img --log disk.log --key disk.key
  holdfast volume attach disk.img --loop
  mount /dev/loop0 /mnt
  holdfast volume status
  umount /mnt && holdfast volume detach disk.img

docs/volumes.md says what is promised, and walks through all of it.")]
pub struct Volume {
    /// What to do.
    #[command(subcommand)]
    pub command: VolumeCommand,
}

/// What can be done with volumes, and with the files on them.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Commands on a volume as a whole.
    #[command(flatten)]
    Whole(crate::volume::args::VolumeCommand),
    /// Give files on volumes away, and accept them.
    Owner(crate::programs::args::Owner),
    /// Let others act in your name on a volume, and take that back.
    Credential(crate::programs::args::Credential),
}

/// `holdfast completions`
#[derive(Debug, Args)]
#[command(after_help = "Example:
  holdfast completions bash > ~/.local/share/bash-completion/completions/holdfast")]
pub struct Completions {
    /// Which shell.
    pub shell: clap_complete::Shell,
}

/// `holdfast man`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast man --to ~/.local/share/man/man1
  holdfast man --markdown > manual.md")]
pub struct Man {
    /// Directory for the pages.
    #[arg(long, value_name = "DIR", required_unless_present = "markdown")]
    pub to: Option<PathBuf>,
    /// Print all of it as Markdown instead.
    #[arg(long, conflicts_with = "to")]
    pub markdown: bool,
}

/// `holdfast help`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast help release publish
  holdfast help exit-codes
  holdfast help --all")]
pub struct Help {
    /// List every command, one a line.
    #[arg(long, conflicts_with = "topic")]
    pub all: bool,
    /// Command (and subcommand), or `exit-codes`.
    #[arg(value_name = "TOPIC")]
    pub topic: Vec<String>,
}
