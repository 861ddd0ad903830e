//! `holdfast server`: runs a server, or works on its data directory.

#[cfg_attr(not(feature = "convert"), path = "without/convert.rs")]
mod convert;
mod metrics;
mod operate;

use crate::args::{CreateBy, Server, ServerAllow, ServerCommand};
use crate::blocks;
use crate::listening::{announced, front_end, resolve};
use crate::output::Format;
use holdfast_crypto::keyfile;
use holdfast_daemon::keys;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::{limits, logging};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_server::{CreatePolicy, ServerConfig, StateAddress};
use operate::as_owner;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Name of the file in the data directory that lists the keys that may create file systems.
const ALLOWED: &str = "allowed-superusers";

/// `holdfast server`
pub fn run(arguments: &Server, directories: &Directories, format: Format) -> Outcome {
    match (&arguments.command, &arguments.data) {
        (Some(ServerCommand::Blocks(arguments)), _) => blocks::run(arguments, format),
        (Some(ServerCommand::Allow(allow)), _) => self::allow(allow, format),
        (Some(ServerCommand::Key(data)), _) => key(&data.data, format),
        (Some(ServerCommand::Backup(backup)), _) => operate::backup(backup, format),
        (Some(ServerCommand::Convert(wish)), _) => convert::run(wish, format),
        (Some(ServerCommand::Gc(data)), _) => operate::collect(&data.data, format),
        (Some(ServerCommand::Scrub(data)), _) => operate::scrub(&data.data, format),
        (Some(ServerCommand::Holds(data)), _) => operate::holds(&data.data, format),
        (Some(ServerCommand::Move(moved)), _) => operate::hand_over(moved, format),
        (Some(ServerCommand::Unhold(unhold)), _) => operate::unhold(unhold, format),
        (Some(ServerCommand::Stats(data)), _) => operate::statistics(&data.data, format),
        (Some(ServerCommand::Metrics(arguments)), _) => metrics::run(arguments),
        (Some(ServerCommand::Witnesses(data)), _) => operate::witnesses(&data.data, format),
        (None, Some(data)) => serve(arguments, data, order_at(arguments, directories)?),
        (None, None) => Err(Failure::new(Exit::Usage, "a data directory is needed: --data DIR")),
    }
}

/// The address of the store of the order: from `--order`, or from `--state`, which has no other meaning for a
/// server.
fn order_at(arguments: &Server, directories: &Directories) -> Outcome<Option<StateAddress>> {
    let state = directories.state.as_deref().and_then(Path::to_str).filter(|state| state.contains("://"));
    match (&arguments.order, state) {
        (None, Some(state)) => match state.parse() {
            Ok(address) => Ok(Some(address)),
            Err(error) => Err(Failure::new(Exit::Usage, format!("{error}"))),
        },
        (order, _) => Ok(order.clone()),
    }
}

fn serve(arguments: &Server, data: &Path, order: Option<StateAddress>) -> Outcome {
    logging::to_stderr();
    limits::raise_open_files();
    let mut config = ServerConfig::new(data, resolve(&arguments.listen)?);
    config.quic = !arguments.no_quic;
    config.create = match arguments.create {
        CreateBy::Local => CreatePolicy::Local,
        CreateBy::Listed => CreatePolicy::Listed,
        CreateBy::Anyone => CreatePolicy::Anyone,
        CreateBy::Nobody => CreatePolicy::Nobody,
    };
    config.abort_after = Duration::from_secs(arguments.abort_after);
    config.lease_term = Duration::from_secs(arguments.lease);
    config.gc_interval =
        (arguments.collect_every > 0).then(|| Duration::from_secs(arguments.collect_every * 60));
    config.keep_deleted = Duration::from_secs(arguments.keep_deleted * 24 * 3600);
    config.keep_deleted_bytes = arguments.keep_deleted_mib.map(|mib| mib << 20);
    config.history = arguments.history.clone();
    config.user_quota = arguments.user_quota;
    config.is_restored = arguments.restored;
    config.parcels.level_max = arguments.parcel_level;
    config.witnesses = arguments.witness.clone();
    config.witness_every = Duration::from_secs(arguments.witness_every);
    config.blocks = arguments.blocks.clone();
    config.blocks_anew = arguments.blocks_anew;
    config.state = order;
    config.state_login = arguments.order_login.clone();
    config.advertise = arguments.advertise.as_ref().map(ToString::to_string);
    let server = holdfast_server::Server::open(config)?;
    let serves = format!("holdfast serves {} on {}", data.display(), server.local_address());
    match front_end(arguments.one_process)? {
        None => Ok(server.run(announced(serves))?),
        Some(program) => {
            let plan = server.front_end()?;
            Ok(server.run_privsep(program, plan, |_| (), announced(serves))?)
        }
    }
}

/// Prints the server's public key; the server need not be running.
fn key(data: &Path, format: Format) -> Outcome {
    let key = holdfast_server::server_key_in(data)?;
    let public = keyfile::format_public(&key, "holdfast server");
    format.print(&serde_json::json!({ "public": public, "key": key.to_string() }), |_| public.clone())
}

/// Adds a key to the list, or prints the list. The running server reads it each time it is needed.
fn allow(arguments: &ServerAllow, format: Format) -> Outcome {
    let list = arguments.data.join(ALLOWED);
    let failed = |error: std::io::Error| Failure::new(Exit::Io, format!("{}: {error}", list.display()));
    let text = match std::fs::read_to_string(&list) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        other => other.map_err(failed)?,
    };
    let mut keys: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    if let Some(argument) = &arguments.key {
        let key = keys::read_public(argument)?;
        // Otherwise the server, which runs as another user, could not read the file.
        if let Ok(metadata) = arguments.data.metadata()
            && metadata.uid() != rustix::process::geteuid().as_raw()
        {
            let owner = metadata.uid();
            let message = format!("{} belongs to the user with number {owner}", arguments.data.display());
            return Err(Failure::new(Exit::NotAllowed, message).hint(as_owner(owner)));
        }
        let known = keys.iter().any(|line| keyfile::parse_public(line).is_ok_and(|listed| listed == key));
        if !known {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&arguments.data).map_err(failed)?;
            let mut file = std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(&list)
                .map_err(failed)?;
            let ends_well = text.is_empty() || text.ends_with('\n');
            let new = keyfile::format_public(&key, comment(argument));
            let written = format!("{}{new}\n", if ends_well { "" } else { "\n" });
            file.write_all(written.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
            keys.push(new);
        }
    }
    format.print(&keys, |keys| match keys.is_empty() {
        true => "No key is listed.".to_owned(),
        false => keys.join("\n"),
    })
}

/// The comment of a key that was given as a public key line.
fn comment(argument: &str) -> &str {
    match argument.trim_start().starts_with("ssh-") {
        true => argument.trim().splitn(3, ' ').nth(2).unwrap_or("").trim(),
        false => argument,
    }
}
