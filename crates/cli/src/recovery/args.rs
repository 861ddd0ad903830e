//! The command line of `holdfast fs bundle` and `holdfast fs rebuild`.

use crate::unrepeated::Unrepeated;
use clap::Args;
use std::path::PathBuf;

/// `holdfast fs bundle`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast fs bundle ~/shared --to anna.bundle
  holdfast fs bundle hf://HOST/FSID --key ~/.config/holdfast/key --to anna.bundle
  holdfast fs bundle ~/shared --to more.bundle --lost lost.txt

For the day when the server is lost: the file holds what this device has seen and signed, the log of updates as far as
this machine kept it, and every block of the file system that is in this machine's cache. Whoever has the file can read
those files; there is no key in it. Bring it to whoever rebuilds the server (`holdfast fs rebuild`). The mount may stay:
it goes on with the rebuilt server as if nothing had happened, and sends what waits here by itself.")]
pub struct Bundle {
    /// A mount, or an address: hf://HOST:PORT/FSID
    #[arg(value_name = "MOUNT-OR-URL")]
    pub which: String,
    /// The device's key, if it is not mounted: a private or public key file, or agent:SHA256:... or agent:COMMENT.
    #[arg(long, value_name = "KEY")]
    pub key: Option<PathBuf>,
    /// File to write; never overwritten.
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
    /// Take only the blocks in this list, which `holdfast fs rebuild --lost` wrote.
    #[arg(long, value_name = "FILE")]
    pub lost: Option<PathBuf>,
}

/// `holdfast fs restored`
#[derive(Debug, Args)]
#[command(after_help = "Example, after a disk failed and its backup was put back:
  cp -a /backup/holdfast /srv/holdfast
  holdfast server --data /srv/holdfast --restored
  holdfast fs restored hf://HOST/FSID --superuser superuser.key

A server that shows an older state than before looks like one that lies, and everybody who has seen more refuses it. This
declares, signed with the superuser's key, that it was an honest restore: the file system goes on from what is left. It
cannot be taken back. What came after is lost; but each device sends again by itself what it had written, as far as its
cache has it and nobody has changed the same since, keeps what it had seen for `holdfast evidence merge`, and sends what it
had not sent yet. (`mount --no-send-again` leaves it lost.) If devices have everything that is lost, and you can collect it
from them, rebuild the server instead (`holdfast fs rebuild`), and nothing is.

Declare only what you know to be a restore: a server that lies could ask for nothing better.")]
pub struct Restored {
    /// Address: hf://HOST:PORT/FSID
    #[arg(value_name = "URL")]
    pub url: String,
    /// The superuser's key: a private key file, or one in your SSH agent (KEY.pub, agent:SHA256:..., agent:COMMENT).
    #[arg(long, value_name = "KEY")]
    pub superuser: PathBuf,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
}

/// `holdfast fs rebuild`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast fs rebuild --data /srv/holdfast anna.bundle ben.bundle --superuser superuser.key
  holdfast server --data /srv/holdfast
  holdfast fs rebuild --data /srv/holdfast carla.bundle
  holdfast fs rebuild --data /srv/holdfast more.bundle --blocks-only
  holdfast fs rebuild --data /srv/holdfast --blocks hf+blocks://blocks.example.org:7441/KEY anna.bundle

Makes the data directory of a server that was lost anew, from bundles (`holdfast fs bundle`) of those who used the file
system. Nothing in a bundle is believed: what comes out is signed by members, and every byte is what the signatures say.
The directory may hold a backup, an earlier rebuild, or other file systems; no server may run on it.

Collect from EVERYBODY whose device may have been the last to do anything: a device that has seen more than what is
rebuilt will refuse the server with an alarm, as it must. Until somebody has changed something on the rebuilt server,
such a device can still bring its bundle: stop the server and rebuild once more. What is missing is listed, and can be
brought later in the same way, at any time.

The new server has a key of its own, which the superuser must sign (--superuser), unless DIR/server-key is that of the
lost server.

If the blocks were at a block server or in a bucket, name that with --blocks: what is there need not be brought. If it was
lost too, name a new one. An order that was in etcd is rebuilt into a data directory, and moved to etcd with `holdfast
server convert --order` (docs/when-something-is-wrong.md).")]
pub struct Rebuild {
    /// Data directory; made when it does not exist.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Bundles.
    #[arg(value_name = "BUNDLE", required = true)]
    pub bundles: Vec<PathBuf>,
    /// The superuser's key: a private key file, or one in your SSH agent (KEY.pub, agent:SHA256:..., agent:COMMENT).
    #[arg(long, value_name = "KEY")]
    pub superuser: Option<PathBuf>,
    /// Take only blocks that are missing, and nothing of the order: from whoever came too late, or is of the other side of
    /// a fork.
    #[arg(long)]
    pub blocks_only: bool,
    /// Where the blocks are or are to be, if not in the data directory: a block server or a bucket, remembered for the server.
    /// Left out: where the data directory says that they were.
    #[arg(long, value_name = "HF+BLOCKS://HOST:PORT/KEY|S3://BUCKET/PREFIX?endpoint=URL", value_parser = Unrepeated(|text| text.parse::<holdfast_server::BlocksLocation>()))]
    pub blocks: Option<holdfast_server::BlocksLocation>,
    /// With --blocks: accept the store that is there, whatever was there before.
    #[arg(long)]
    pub blocks_anew: bool,
    /// Write the addresses of blocks that are missing to this file, for `holdfast fs bundle --lost`; never overwritten.
    #[arg(long, value_name = "FILE")]
    pub lost: Option<PathBuf>,
    /// Seconds that changes wait at first for clients that may still rely on leases of the lost server: as its `--lease`
    /// was, or 0 if it has been gone for longer than that.
    #[arg(long, value_name = "SECONDS", default_value_t = holdfast_protocol::leases::TERM_MS / 1000, value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub lease: u64,
}
