//! Requests about the membership of a file system.

use crate::output::progress;
use holdfast_client::{Engine, EngineConfig};
use holdfast_daemon::control::Client;
use holdfast_daemon::keys::{self, Key, started};
use holdfast_daemon::membership::MembershipRequest;
use holdfast_daemon::paths::{Directories, make_private};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_rpc::Address;
use std::path::Path;
use std::time::Duration;

/// How often a command tries again while another one uses the key.
const ATTEMPTS: u32 = 100;
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an administrative command waits for the server: longer than a server that has crashed waits for leases of
/// mounts that do not come back (their term, 45 s).
pub const DEADLINE: Duration = Duration::from_secs(75);

/// Asks about the membership: the daemon that serves the key's mounts, or a signer that is started here.
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
    let mut attempt = 0;
    let mut key = Some(key);
    let mut processes = None;
    loop {
        if let Some(process) = Client::connect(state_dir)? {
            return process.call(request);
        }
        let processes = started(&mut key, &mut processes)?;
        let mut config = EngineConfig::with_processes(address.clone(), processes, state_dir.to_owned());
        let cache = directories.cache_of(&address.file_system)?;
        make_private(&cache)?;
        config.cache_dir = Some(cache);
        config.deadline = DEADLINE;
        match Engine::start(config).map_err(Failure::from) {
            // Another command uses the key just now, or a mount is about to.
            Err(failure) if failure.code == Exit::InUse && attempt < ATTEMPTS => {
                attempt += 1;
                std::thread::sleep(PAUSE);
            }
            Err(failure) => return Err(failure),
            Ok(engine) => {
                let reply = request.answer(&engine);
                engine.stop();
                return reply;
            }
        }
    }
}
