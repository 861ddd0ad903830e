//! `holdfast fs state`: moves the state of a device (what it has signed and seen) to another machine, so that
//! only one of the two continues.

use crate::output::Format;
use backon::{BlockingRetryable, ConstantBuilder};
use clap::{Args, Subcommand};
use holdfast_client::state::StateError;
use holdfast_client::state::export::{self, ExportError, ExportSummary};
use holdfast_crypto::PublicKey;
use holdfast_daemon::control::Client;
use holdfast_daemon::keys;
use holdfast_daemon::mounts::requests::Status;
use holdfast_daemon::paths::{Directories, make_private};
use holdfast_daemon::time::now_ns;
use holdfast_failure::{Failure, Outcome};
use holdfast_rpc::Address;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pauses between attempts while a process that used the state ends.
const PAUSES: ConstantBuilder =
    ConstantBuilder::new().with_delay(Duration::from_millis(100)).with_max_times(50);

/// `holdfast fs state`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  on the old machine:
    holdfast umount ~/shared
    holdfast fs state export hf://HOST/FSID --key ~/.config/holdfast/key --to anna.state
  carry anna.state and the key to the new machine, then there:
    holdfast fs state import anna.state --key ~/.config/holdfast/key
    holdfast mount hf://HOST/FSID ~/shared --key ~/.config/holdfast/key

A device goes on in one place only. After the export, the old machine refuses to use the key for this
file system. The file says what was signed and seen; it holds no key and no files, and only its owner
may read it. Remove it when it was imported: an older one is refused where a newer state is, and
reported as a clone where none is. To use two machines at once, give each a key of its own
(`holdfast keygen`, `holdfast fs device add`).")]
pub struct StateArguments {
    /// What to do.
    #[command(subcommand)]
    pub command: StateCommand,
}

/// States.
#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// Write a device's state to a file, and stop using it here.
    Export {
        /// Address: hf://HOST:PORT/FSID
        #[arg(value_name = "URL")]
        url: String,
        /// The device's key: a private or public key file, or agent:SHA256:... or agent:COMMENT.
        #[arg(long, value_name = "KEY")]
        key: PathBuf,
        /// File to write; never overwritten.
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
    /// Go on with a state that was exported elsewhere.
    Import {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The device's key: a private or public key file, or agent:SHA256:... or agent:COMMENT.
        #[arg(long, value_name = "KEY")]
        key: PathBuf,
    },
}

/// The result as it is printed.
#[derive(Serialize)]
struct StateOutput {
    file_system: String,
    device: u32,
    last_number: u64,
    file: PathBuf,
}

impl StateOutput {
    fn of(carriage: &ExportSummary, file: &Path) -> StateOutput {
        StateOutput {
            file_system: carriage.file_system.to_string(),
            device: carriage.device,
            last_number: carriage.used,
            file: file.to_owned(),
        }
    }
}

/// `holdfast fs state`
pub fn run(arguments: &StateArguments, directories: &Directories, format: Format) -> Outcome {
    match &arguments.command {
        StateCommand::Export { url, key, to } => {
            let address: Address = url.parse()?;
            let key = public(key)?;
            let state_dir = directories.state_of(&address.file_system, &key)?;
            let carriage =
                patiently(&state_dir, || export::export(&state_dir, address.file_system, key, to, now_ns()))?;
            format.print(&StateOutput::of(&carriage, to), |done| {
                format!(
                    "The state of device {} (up to operation {}) is in {}, and is not used here any more. Import it \
                     where the device goes on: holdfast fs state import {} --key KEY",
                    done.device,
                    done.last_number,
                    to.display(),
                    to.display()
                )
            })
        }
        StateCommand::Import { file, key } => {
            let key = public(key)?;
            let carriage = export::look_into(file)?;
            let state_dir = directories.state_of(&carriage.file_system, &key)?;
            if carriage.key == key {
                make_private(&state_dir)?;
            }
            let carriage = patiently(&state_dir, || export::import(file, &state_dir, key))?;
            format.print(&StateOutput::of(&carriage, file), |done| {
                format!(
                    "Device {} goes on here, after operation {}. Remove {} now, and do not import it elsewhere.",
                    done.device,
                    done.last_number,
                    file.display()
                )
            })
        }
    }
}

/// Retries while a process that has just unmounted is ending; a process that still serves mounts is not
/// waited for.
fn patiently(
    state_dir: &Path,
    carry: impl FnMut() -> Result<ExportSummary, ExportError>,
) -> Result<ExportSummary, Failure> {
    let is_ending = |error: &ExportError| {
        matches!(error, ExportError::State(StateError::InUse)) && matches!(is_mounted(state_dir), Ok(false))
    };
    Ok(carry.retry(PAUSES).when(is_ending).call()?)
}

/// Whether a process serves mounts with this state, and will continue to.
fn is_mounted(state_dir: &Path) -> Outcome<bool> {
    let Some(process) = Client::connect(state_dir)? else { return Ok(false) };
    let status = process.call(&Status);
    Ok(status.is_ok_and(|status| !status.mounts.is_empty()))
}

/// The public half of a key, which is all that is needed, and needs no passphrase.
fn public(key: &Path) -> Outcome<PublicKey> {
    match keys::read_public(&key.to_string_lossy()) {
        Ok(public) => Ok(public),
        Err(_) => Ok(keys::read(key)?.public()),
    }
}
