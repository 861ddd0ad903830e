//! The signer of a device's key: the process that serves its mounts, or an engine that is started here for
//! one command. Only one process may sign at a time, so one that is starting or ending is waited for.

use backon::{BlockingRetryable, ConstantBuilder};
use holdfast_client::{Engine, EngineConfig};
use holdfast_daemon::control::Client;
use holdfast_daemon::keys::{Key, started};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_rpc::Address;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Pauses between attempts.
const PAUSES: ConstantBuilder = ConstantBuilder::new().with_delay(Duration::from_millis(100));

/// The signer of a key.
pub enum KeyUser {
    /// A process that serves mounts.
    Process(Client),
    /// An engine in this process, which must be stopped in the end.
    Engine(Arc<Engine>),
}

impl KeyUser {
    /// The process that uses a key's state, or an engine that is `configured` and started for it.
    ///
    /// # Errors
    /// Another process still uses the key after so many attempts, or the engine does not start.
    pub fn find(
        address: &Address,
        key: Key,
        state_dir: &Path,
        attempts: usize,
        configured: impl Fn(EngineConfig) -> Outcome<EngineConfig>,
    ) -> Outcome<KeyUser> {
        let (mut key, mut processes) = (Some(key), None);
        until_free(attempts, || {
            if let Some(process) = Client::connect(state_dir)? {
                return Ok(KeyUser::Process(process));
            }
            let processes = started(&mut key, &mut processes)?;
            let config = EngineConfig::with_processes(address.clone(), processes, state_dir.to_owned());
            Ok(KeyUser::Engine(Engine::start(configured(config)?)?))
        })
    }
}

/// Calls `attempt` again, at most so often, while it fails because another process uses the key.
///
/// # Errors
/// The error of the last attempt.
pub fn until_free<T>(attempts: usize, attempt: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    let is_in_use = |failure: &Failure| failure.code == Exit::InUse;
    attempt.retry(PAUSES.with_max_times(attempts)).when(is_in_use).call()
}
