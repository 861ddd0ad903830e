//! Which of the user's state directories a command is about.

use crate::args::StateSelector;
use holdfast_daemon::keys;
use holdfast_daemon::paths::Directories;
use holdfast_failure::Outcome;
use holdfast_rpc::Address;
use std::path::PathBuf;

/// The one that an address and a key name, or all of them.
///
/// # Errors
/// A malformed address, an unreadable key.
pub fn states(which: &StateSelector, directories: &Directories) -> Outcome<Vec<PathBuf>> {
    match (&which.url, &which.key) {
        (Some(url), Some(key)) => {
            let address: Address = url.parse()?;
            // The public half says all that is needed here, and needs no passphrase.
            let public = match keys::read_public(&key.to_string_lossy()) {
                Ok(public) => public,
                Err(_) => keys::read(key)?.public(),
            };
            Ok(vec![directories.state_of(&address.file_system, &public)?])
        }
        _ => directories.all_states(),
    }
}
