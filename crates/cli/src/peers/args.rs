//! `holdfast evidence peers` and the options of mounts that concern peers, as clap sees them.

use clap::{Args, Subcommand};
use holdfast_client::WhenPeerLost;
use holdfast_daemon::mounts::settings::PeerSettings;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `holdfast evidence peers`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  holdfast evidence peers ~/shared
  holdfast evidence peers ~/shared --json
  holdfast evidence peers go-on ~/shared

A mount with --peers meets other mounts of the file system directly and tells them its latest operation, with the
server's receipt. Two that were shown different histories notice within seconds, and keep a file that convicts the
server (`holdfast evidence`)."
)]
pub struct Peers {
    /// What to do instead of showing them.
    #[command(subcommand)]
    pub command: Option<PeersCommand>,
    /// Mount point, or address.
    #[arg(value_name = "DIR", required = true)]
    pub which: Option<PathBuf>,
}

/// What can be done about peers.
#[derive(Debug, Subcommand)]
pub enum PeersCommand {
    /// Wait no more for peers that are lost, until they are met again.
    GoOn(MountSelector),
}

/// Which mount.
#[derive(Debug, Args)]
pub struct MountSelector {
    /// Mount point, or address.
    #[arg(value_name = "DIR")]
    pub which: PathBuf,
}

/// What a mount does while a peer is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Lost {
    /// Say so, and go on.
    Warn,
    /// Refuse everything (ETIMEDOUT) until it is back, has logged out, or `holdfast evidence peers go-on`.
    Pause,
}

/// Options of a mount.
#[derive(Debug, Args)]
pub struct MountPeers {
    /// Meet other mounts of the file system directly, and tell each other the latest operations: a server that shows them
    /// different histories is found out within seconds. Where this machine is found is written to .holdfast/logins in
    /// its user's directory, and told on the local network without naming the file system.
    #[arg(long)]
    pub peers: bool,
    /// Address and port to listen on for them [default: a free port of all addresses].
    #[arg(long, value_name = "ADDRESS:PORT", requires = "peers")]
    pub peers_listen: Option<SocketAddr>,
    /// Neither tell nor hear the local network: peers find each other by what is written in the file system.
    #[arg(long, requires = "peers")]
    pub no_beacon: bool,
    /// Seconds of silence after which a peer that was met, and has not logged out, is lost.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "peers", value_parser = clap::value_parser!(u64).range(6..=86_400))]
    pub peer_timeout: u64,
    /// What the mount does while one is lost.
    #[arg(long, value_name = "WHAT", default_value = "warn", requires = "peers")]
    pub when_peer_lost: Lost,
}

impl MountPeers {
    /// What is asked for, if anything.
    pub fn settings(&self) -> Option<PeerSettings> {
        let when_lost = match self.when_peer_lost {
            Lost::Warn => WhenPeerLost::Warn,
            Lost::Pause => WhenPeerLost::Pause,
        };
        let (listen, beacon, timeout) = (self.peers_listen, !self.no_beacon, self.peer_timeout);
        self.peers.then_some(PeerSettings { listen, beacon, timeout, when_lost })
    }
}
