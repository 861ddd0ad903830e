//! `holdfast release serve`: serves a mirror of a signed release.

use crate::args::Serve;
use crate::{listening, live};
use holdfast_daemon::{limits, logging};
use holdfast_failure::Outcome;
use holdfast_release::serve::{ServeConfig, Server};
use std::sync::Arc;

/// `holdfast release serve`
pub fn run(arguments: &Serve) -> Outcome {
    logging::to_stderr();
    limits::raise_open_files();
    let mut config = ServeConfig::new(arguments.directory.clone(), listening::resolve(&arguments.listen)?);
    config.limits.threads = arguments.threads.into();
    config.limits.connections_max = arguments.connections_max as usize;
    config.limits.idle_s = arguments.idle;
    config.cache_bytes_max = arguments.memory << 20;
    if let (Some(origin), Some(key)) = (&arguments.origin, &arguments.key) {
        config.origin = Some(Arc::new(live::origin(origin, key, (arguments.memory as usize) << 20)?));
    }
    let server = Server::open(config)?;
    let says =
        format!("holdfast serves {} on http://{}/", arguments.directory.display(), server.local_address());
    Ok(server.run(listening::announced(says))?)
}
