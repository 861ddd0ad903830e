//! `holdfast release gateway`: a release or a directory as pages.

use crate::exit::{Exit, Failure, Outcome};
use crate::paths::Directories;
use crate::reading::SCHEME;
use crate::reading::args::ReleaseSource;
use crate::{limits, logging, server};
use clap::{Args, value_parser};
use holdfast_http_server::Limits;
use holdfast_release::gateway::{Gateway as Server, GatewayConfig, GatewaySource};
use holdfast_release::layout;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `holdfast release gateway`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast release gateway hf+release:4f1c...@https://mirror.example/release/
  holdfast release gateway https://mirror.example/release/ --id 4f1c... --listen 0.0.0.0:8017 --host files.example.org
  holdfast release gateway ~/shared

Pages to browse, search, preview and download, which work without JavaScript. Of a release, every byte is verified here, \
before it is shown; whoever looks at it trusts this machine and the way to it, so use it on your own machine, or behind a \
web server that speaks HTTPS. The page at /verify/ checks a release in the browser itself, from any mirror.

A directory, such as a mounted file system, is shown as it is: nobody has signed it, and everybody who can reach the \
gateway reads what this user can read there. Links that lead out of it are not followed.

What is in a release or directory is never run: nothing but images and text is shown, the rest is only downloaded.

SIGTERM or SIGINT ends it, after the answers under way.")]
pub struct Gateway {
    /// Which release, or a directory
    #[command(flatten)]
    pub source: ReleaseSource,
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8017")]
    pub listen: String,
    /// A name by which browsers may ask for it, besides addresses and localhost
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,
    /// Seconds between looks for a new release
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = value_parser!(u64).range(1..=86_400))]
    pub refresh: u64,
    /// Connections at once; others wait
    #[arg(long, value_name = "NUMBER", default_value_t = 256, value_parser = value_parser!(u32).range(1..=65_536))]
    pub connections_max: u32,
    /// Seconds after which a connection is closed that asks for nothing or takes nothing
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = value_parser!(u64).range(1..=3600))]
    pub idle: u64,
}

/// `holdfast release gateway`
pub fn run(arguments: &Gateway, directories: &Directories) -> Outcome {
    logging::to_stderr();
    limits::raise_open_files();
    let config = GatewayConfig {
        listen: server::resolve(&arguments.listen)?,
        hosts: arguments.host.clone(),
        limits: Limits {
            connections_max: arguments.connections_max as usize,
            idle_s: arguments.idle,
            ..Limits::LARGE
        },
    };
    let source = &arguments.source;
    let shown = match directory(source)? {
        Some(directory) => GatewaySource::Directory(directory),
        None => GatewaySource::Release(
            Box::new(source.open(directories)?),
            Duration::from_secs(arguments.refresh),
        ),
    };
    let server = Server::open(shown, config)?;
    let says = format!("holdfast shows {} on http://{}/", source.release, server.local_address());
    Ok(server.run(server::announced(says))?)
}

/// The directory that is meant, if it is no release.
fn directory(source: &ReleaseSource) -> Outcome<Option<PathBuf>> {
    let path = Path::new(&source.release);
    if source.demands.id.is_some() || source.release.starts_with(SCHEME) || !path.is_dir() {
        return Ok(None);
    }
    if path.join(layout::ROOT).is_file() && path.join(layout::keys(1)).is_file() {
        let message = format!("{}: this is the directory of a release", source.release);
        return Err(Failure::new(Exit::Usage, message).hint("give --id ID, as the publisher tells it"));
    }
    Ok(Some(path.to_owned()))
}
