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
  holdfast server convert --data /srv/holdfast --to /srv/holdfast-new --blocks here --order here

File systems keep their addresses, members, quotas, history and names; the server keeps its key, so clients notice nothing
but the pause. Blocks and order go from wherever they are, so the last example takes several servers back to one. Killed at
any moment, the same command goes on where it was. The old places are only read until all is at the new one and compared.
Then no server starts on the old ones any more: served twice, a file system would split in two. A block server has to allow
the old server's key (`holdfast server key`). Not moved: signed blocks (VSTORE), evidence of rebuilds. docs/growing.md says
it step by step.")]
pub struct ServerConvert {
    /// Data directory of the server, on which none runs; where several have their orders in etcd, of any of them, and none of
    /// them runs.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// New data directory, made here: the server's key, what is to be remembered, and what goes nowhere else.
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// Where the blocks go; "here": into the new data directory. Left out, they stay where they are, at a block server or in
    /// a bucket.
    #[arg(long, value_name = "HF+BLOCKS://HOST:PORT/KEY|S3://BUCKET/PREFIX?endpoint=URL|here", value_parser = Unrepeated(|text| text.parse::<holdfast_server::BlockDestination>()))]
    pub blocks: Option<holdfast_server::BlockDestination>,
    /// Where the order goes; "here", or left out if it is in a data directory: into the new one.
    #[arg(long, value_name = "ETCD://HOST:PORT,.../PREFIX|here")]
    pub order: Option<holdfast_server::OrderDestination>,
    /// File with what the etcd that the order goes to lets this server in for: lines user=, password=, ca=, certificate=,
    /// key=.
    #[arg(long, value_name = "FILE")]
    pub order_login: Option<PathBuf>,
}
