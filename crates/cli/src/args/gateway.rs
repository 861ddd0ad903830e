//! Arguments of `holdfast release gateway`.

use crate::reading::args::ReleaseSource;
use clap::{Args, value_parser};

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
    /// The release or directory to show
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
