//! Plays the malicious operator on a real data directory, for the demo. Not part of the product.

use clap::Parser;
use holdfast_server::ServerConfig;
use holdfast_sim::evil::{Attack, EvilServer};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Serves a Holdfast data directory and lies about what is in it.
#[derive(Parser)]
struct Arguments {
    /// Data directory of a stopped server.
    #[arg(long)]
    data: PathBuf,
    /// Address to listen on.
    #[arg(long)]
    listen: SocketAddr,
    /// What to do to the clients.
    #[arg(long, value_enum)]
    attack: Attack,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let server = EvilServer::start(ServerConfig::new(arguments.data, arguments.listen))?;
    server.begin(arguments.attack);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(holdfast_server::until_signalled());
    Ok(())
}
