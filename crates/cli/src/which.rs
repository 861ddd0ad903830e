//! The state directories that a command is about.

use crate::args::StateSelector;
use holdfast_daemon::keys;
use holdfast_daemon::paths::Directories;
use holdfast_failure::Outcome;
use holdfast_rpc::Address;
use std::path::PathBuf;

/// The state directory of an address and a key; all of them if neither is given.
///
/// # Errors
/// The address is malformed, or the key is unreadable.
pub fn states(which: &StateSelector, directories: &Directories) -> Outcome<Vec<PathBuf>> {
    match (&which.url, &which.key) {
        (Some(url), Some(key)) => {
            let address: Address = url.parse()?;
            // Only the public half is needed, which needs no passphrase.
            let public = match keys::read_public(&key.to_string_lossy()) {
                Ok(public) => public,
                Err(_) => keys::read(key)?.public(),
            };
            Ok(vec![directories.state_of(&address.file_system, &public)?])
        }
        _ => directories.all_states(),
    }
}
