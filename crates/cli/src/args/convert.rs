//! Arguments of `holdfast server convert`.

use crate::unrepeated::Unrepeated;
use clap::Args;
use std::path::PathBuf;

/// `holdfast server convert`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast server convert --data /srv/holdfast --to /srv/holdfast-new \
    --blocks hf+blocks://blocks.example.org:7441/KEY --order etcd://e1:2379,e2:2379,e3:2379/holdfast
  holdfast server convert --data /srv/holdfast --to /srv/holdfast-new \
    --blocks 's3://my-bucket/holdfast?endpoint=https://s3.example.org&region=eu-1'
  holdfast server --data /srv/holdfast-new

File systems keep their addresses, members, quotas, history and names; the server keeps its key, so clients notice nothing
but the pause. Killed at any moment, the same command goes on where it was. The old directory is only read until all is at
the new place and compared. Then no server starts on it any more: served twice, a file system would split in two. A block
server has to allow the old server's key (`holdfast server key`). Not moved: signed blocks (VSTORE), evidence of rebuilds.
docs/operate.md says it step by step.")]
pub struct ServerConvert {
    /// Data directory that has the order itself, on which no server runs.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// New data directory, made here: the server's key, what is to be remembered, and the order unless --order is given.
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Where the blocks go. Leave it out if they are at a block server already.
    #[arg(long, value_name = "HF+BLOCKS://HOST:PORT/KEY|S3://BUCKET/PREFIX?endpoint=URL", value_parser = Unrepeated(|text| text.parse::<holdfast_server::BlocksAt>()))]
    pub blocks: Option<holdfast_server::BlocksAt>,
    /// Where the order goes.
    #[arg(long, value_name = "ETCD://HOST:PORT,.../PREFIX")]
    pub order: Option<holdfast_server::StateAddress>,
    /// File with what etcd lets this server in for: lines user=, password=, ca=, certificate=, key=.
    #[arg(long, value_name = "FILE")]
    pub order_login: Option<PathBuf>,
}
