//! Requests about the membership of a file system.

use crate::key_user::KeyUser;
use crate::output::progress;
use holdfast_daemon::keys::{self, Key};
use holdfast_daemon::membership::MembershipRequest;
use holdfast_daemon::paths::{Directories, make_private};
use holdfast_failure::Outcome;
use holdfast_rpc::Address;
use std::path::Path;
use std::time::Duration;

/// How often a command retries while another one uses the key.
const ATTEMPTS: usize = 100;
/// How long an administrative command waits for the server: longer than a server that has crashed waits for
/// leases of mounts that do not come back (their term, 45 s).
pub const DEADLINE: Duration = Duration::from_secs(75);

/// Sends a request about the membership to the daemon that serves the key's mounts, or to a signer that is
/// started here.
pub fn ask<R: MembershipRequest>(
    url: &str,
    key: &Path,
    request: &R,
    directories: &Directories,
) -> Outcome<R::Reply> {
    let address: Address = url.parse()?;
    let key = keys::read(key)?;
    let state_dir = directories.state_of(&address.file_system, &key.public())?;
    make_private(&state_dir)?;
    let bar = progress("asking the server");
    let result = attempt(&address, key, &state_dir, request, directories);
    bar.finish_and_clear();
    result
}

fn attempt<R: MembershipRequest>(
    address: &Address,
    key: Key,
    state_dir: &Path,
    request: &R,
    directories: &Directories,
) -> Outcome<R::Reply> {
    let user = KeyUser::find(address, key, state_dir, ATTEMPTS, |mut config| {
        let cache = directories.cache_of(&address.file_system)?;
        make_private(&cache)?;
        config.cache_dir = Some(cache);
        config.deadline = DEADLINE;
        Ok(config)
    })?;
    match user {
        KeyUser::Process(process) => process.call(request),
        KeyUser::Engine(engine) => {
            let reply = request.answer(&engine);
            engine.stop();
            reply
        }
    }
}
