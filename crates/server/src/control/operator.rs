//! The operator's side of the control socket: has the running server carry out a task, or carries it out
//! itself if none runs.

use super::messages::{MESSAGE_BYTES_MAX, Message, Outcome, SILENCE_MAX, Statistics, Task};
use super::serve::{carry_out, short_path};
use crate::config::ServerConfig;
use crate::data::control_socket;
use crate::error::OpenError;
use crate::witnessing;
use holdfast_crypto::{decode, encode};
use holdfast_store::StoreError;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a server that starts may hold the data directory before it listens on the control socket.
const BEGINNING_MAX: Duration = Duration::from_secs(10);

/// Why an operator's task was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The directory holds no server's data.
    #[error("{path} is not a server's data directory", path = .0.display())]
    NoServer(PathBuf),
    /// No server runs, and the directory belongs to another user. Its server could not read files that this
    /// user writes.
    #[error("no server runs on {path}, and it belongs to the user with number {owner}: do it as that user", path = .path.display())]
    NotOwner {
        /// The directory.
        path: PathBuf,
        /// Number of the user it belongs to.
        owner: u32,
    },
    /// The directory could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The running server did not answer.
    #[error("the running server did not answer: {0}")]
    Silent(String),
    /// The task was tried and failed.
    #[error("{0}")]
    Failed(String),
}

/// Carries out a task on the data directory in `config`: the server that runs on it does, or else this
/// process. `progress` is given the bytes done and the bytes in all, where that is known.
///
/// # Errors
/// See [`ControlError`].
pub fn perform(
    config: &ServerConfig,
    task: Task,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Outcome, ControlError> {
    if !config.data.join("store").is_dir() {
        return Err(ControlError::NoServer(config.data.clone()));
    }
    let begun = Instant::now();
    let outcome = loop {
        if let Some(outcome) = ask_running(&config.data, &task, SILENCE_MAX, progress)? {
            break outcome;
        }
        if let Ok(metadata) = config.data.metadata()
            && metadata.uid() != rustix::process::geteuid().as_raw()
        {
            return Err(ControlError::NotOwner { path: config.data.clone(), owner: metadata.uid() });
        }
        let core = match crate::server::open_host(config) {
            Ok((core, _, _)) => core,
            // A server that starts does not listen on the control socket yet, and one that ends does not any
            // more.
            Err(OpenError::Store(StoreError::InUse { .. })) if begun.elapsed() < BEGINNING_MAX => {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let outcome = carry_out(&core, task, config.gc_window, &witnessing::Shared::default(), progress);
        core.final_checkpoints();
        break match outcome {
            Outcome::Statistics(figures) => Outcome::Statistics(Statistics { running: false, ..figures }),
            outcome => outcome,
        };
    };
    match outcome {
        Outcome::Failed(why) => Err(ControlError::Failed(why)),
        outcome => Ok(outcome),
    }
}

/// Has the running server carry out a task that takes no longer than `patience`. Returns `None` if no server
/// runs.
///
/// # Errors
/// See [`ControlError`].
pub fn ask(data: &Path, task: &Task, patience: Duration) -> Result<Option<Outcome>, ControlError> {
    ask_running(data, task, patience, &mut |_, _| {})
}

/// Has the running server carry out a task; it may send nothing for `patience`. Returns `None` if no server
/// runs.
fn ask_running(
    data: &Path,
    task: &Task,
    patience: Duration,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<Outcome>, ControlError> {
    let silent = |error: std::io::Error| ControlError::Silent(error.to_string());
    let mut stream =
        match short_path(&control_socket(data)).and_then(|(path, _held)| UnixStream::connect(path)) {
            Ok(stream) => stream,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            Err(error) => return Err(silent(error)),
        };
    stream.set_read_timeout(Some(patience)).map_err(silent)?;
    let request = encode(task);
    stream.write_all(&(request.len() as u32).to_le_bytes()).map_err(silent)?;
    stream.write_all(&request).map_err(silent)?;
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length).map_err(silent)?;
        let length = u32::from_le_bytes(length);
        if length > MESSAGE_BYTES_MAX {
            return Err(ControlError::Silent("its answer is too long".to_owned()));
        }
        let mut bytes = vec![0; length as usize];
        stream.read_exact(&mut bytes).map_err(silent)?;
        match decode(&bytes).map_err(|error| ControlError::Silent(error.to_string()))? {
            Message::Progress(done, all) => progress(done, all),
            Message::Finished(outcome) => return Ok(Some(outcome)),
        }
    }
}
