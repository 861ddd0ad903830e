//! `holdfast release gateway`: serves a release or a directory as web pages.

use crate::args::Gateway;
use crate::listening;
use crate::reading::args::ReleaseSource;
use crate::reading::source::SCHEME;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::{limits, logging};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_http_server::Limits;
use holdfast_release::gateway::{Gateway as Server, GatewayConfig, GatewaySource};
use holdfast_release::layout;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `holdfast release gateway`
pub fn run(arguments: &Gateway, directories: &Directories) -> Outcome {
    logging::to_stderr();
    limits::raise_open_files();
    let config = GatewayConfig {
        listen: listening::resolve(&arguments.listen)?,
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
    Ok(server.run(listening::announced(says))?)
}

/// The directory that the arguments name, if it is not a release.
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
