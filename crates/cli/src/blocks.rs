//! `holdfast server blocks`: runs a block server, which has the blocks of servers on other machines.

use crate::exit::{Exit, Failure, Outcome};
use crate::output::Format;
use crate::unrepeated::Unrepeated;
use crate::{keys, limits, logging, server};
use clap::{Args, Subcommand};
use holdfast_rpc::BLOCKS_PORT;
use holdfast_server::{
    BlockServer, BlockServerConfig, BucketAddress, Candidate, StateAddress, bucket_address,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// `holdfast server blocks`
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  holdfast server key --data /srv/holdfast                 (on the server's machine: prints its key)
  holdfast server blocks --data /srv/blocks --allow 'ssh-ed25519 AAAA... holdfast server'
  holdfast server blocks key --data /srv/blocks            (prints the key at the end of the address)
  holdfast server --data /srv/holdfast --blocks hf+blocks://blocks.example.org:7441/KEY
  holdfast server blocks --data /srv/blocks --allow server.pub \
    --blocks 's3://my-bucket/holdfast?endpoint=https://s3.example.org&durability=object'
  holdfast server blocks ... --stand-by etcd://a.example.org,b.example.org/holdfast             (on several machines)
  holdfast server blocks ... --stand-by etcd://a.example.org,b.example.org/holdfast --shards 8  (all of them serve)

Each server that is allowed has blocks of its own here, under its key. Neither this machine nor the server's is
trusted by clients: they check every block. The server checks them too, and notices if an older copy of the blocks,
or another one, is put here. Its garbage is collected when it says so. docs/growing.md walks through it.

SIGTERM or SIGINT ends it; nothing acknowledged is lost even by a power failure."
)]
pub struct Blocks {
    /// Work on a data directory instead of serving it.
    #[command(subcommand)]
    pub command: Option<BlocksCommand>,
    /// Data directory; made when it does not exist.
    #[arg(long, value_name = "DIR", required = true)]
    pub data: Option<PathBuf>,
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = format!("0.0.0.0:{BLOCKS_PORT}"))]
    pub listen: String,
    /// A server that may have its blocks here: its public key line, as `holdfast server key` prints it, or a file that holds
    /// it. Several: give it several times.
    #[arg(long, value_name = "PUBLIC-KEY", required = true)]
    pub allow: Vec<String>,
    /// Keep the blocks in a bucket of an S3-compatible object store instead of in the data directory, which must be new; from
    /// then on it is remembered. Each server's are below PREFIX/KEY, with its key. docs/growing.md has what may follow
    /// the `?`, and where credentials come from.
    #[arg(long, value_name = "S3://BUCKET/PREFIX?endpoint=URL", value_parser = Unrepeated(bucket_address))]
    pub blocks: Option<BucketAddress>,
    /// Accept what is in the bucket now, whatever was there before: what it lacks is lost. With a new data directory, take
    /// over the stores that are in the bucket; a block server that still has them then ends.
    #[arg(long)]
    pub blocks_anew: bool,
    /// Stand by for other block servers of the same bucket, which have the same key (a copy of the file server-key): each server's
    /// blocks, or each shard of them, are served by one that is elected in etcd; when it fails another one takes them over.
    /// Needs `durability=object`; etcds:// for TLS.
    #[arg(long, value_name = "ETCD://HOST:PORT,.../PREFIX", conflicts_with = "blocks_anew")]
    pub stand_by: Option<StateAddress>,
    /// File with what etcd lets this one in for: lines user=, password=, ca=, certificate=, key=.
    #[arg(long, value_name = "FILE", requires = "stand_by")]
    pub stand_by_login: Option<PathBuf>,
    /// Divide each server's blocks into so many shards, which the block servers that run share evenly; each file system is in
    /// one. Decided once, when the first block server starts on a new prefix of the bucket [default: as many as there are,
    /// or 1].
    #[arg(long, value_name = "NUMBER", requires = "stand_by", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub shards: Option<u16>,
    /// Days for which deleted and overwritten content is kept as a source for what is written next; 0 keeps none.
    #[arg(long, value_name = "DAYS", default_value_t = 7, value_parser = clap::value_parser!(u64).range(0..=36_500))]
    pub keep_deleted: u64,
    /// Most of it that is kept of each server [default: a tenth of all its data, at least 1024].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(0..=1 << 32))]
    pub keep_deleted_mib: Option<u64>,
    /// Face the network in the process that holds the key and the data, where sandboxes cannot be made (some
    /// containers).
    #[arg(long)]
    pub one_process: bool,
}

/// What can be done with a block server's data directory.
#[derive(Debug, Subcommand)]
pub enum BlocksCommand {
    /// Print the block server's key, as its address ends; both are made if they are not there.
    Key(BlocksData),
}

/// A block server's data directory.
#[derive(Debug, Args)]
pub struct BlocksData {
    /// Data directory.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
}

/// `holdfast server blocks`
pub fn run(arguments: &Blocks, format: Format) -> Outcome {
    match (&arguments.command, &arguments.data) {
        (Some(BlocksCommand::Key(data)), _) => {
            let key = BlockServer::key_in(&data.data)?.to_string();
            format.print(&serde_json::json!({ "key": key }), |_| key.clone())
        }
        (None, Some(data)) => serve(arguments, data),
        (None, None) => Err(Failure::new(Exit::Usage, "a data directory is needed: --data DIR")),
    }
}

fn serve(arguments: &Blocks, data: &Path) -> Outcome {
    logging::to_stderr();
    limits::raise_open_files();
    let allowed = arguments.allow.iter().map(|key| keys::read_public(key)).collect::<Outcome<_>>()?;
    let mut config = BlockServerConfig::new(data, server::resolve(&arguments.listen)?, allowed);
    config.keep_deleted = Duration::from_secs(arguments.keep_deleted * 24 * 3600);
    config.keep_deleted_bytes = arguments.keep_deleted_mib.map(|mib| mib << 20);
    config.blocks = arguments.blocks.clone();
    config.blocks_anew = arguments.blocks_anew;
    if let Some(etcd) = &arguments.stand_by {
        let login = arguments.stand_by_login.as_deref();
        config.candidate = Some(Arc::new(Candidate::new(
            &config.data,
            config.blocks.as_ref(),
            etcd,
            login,
            arguments.shards,
        )?));
    }
    let server = BlockServer::open(config)?;
    let serves = format!("holdfast serves blocks of {} on {}", data.display(), server.address());
    match server::front_end(arguments.one_process)? {
        None => Ok(server.run(server::announced(serves))?),
        Some(program) => {
            let plan = server.front_end()?;
            Ok(server.run_privsep(program, plan, |_| (), server::announced(serves))?)
        }
    }
}
