//! The control socket for operators: a Unix socket in the data directory, for work on a server that is running, and the
//! same work on the directory itself when no server runs.
//!
//! A process that can open the socket can already read and write the data directory, so no key is needed. Each message
//! is a length (u32, little-endian) and borsh bytes.

use crate::block_store::BlockStoreStatus;
use crate::config::ServerConfig;
use crate::data::{DataDirectory, control_socket};
use crate::error::OpenError;
use crate::file_system::FileSystem;
use crate::refusal::RequestError;
use crate::server_core::ServerCore;
use crate::witnessing::{self, LogStatus};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, decode, encode};
use holdfast_protocol::message::HoldEntry;
use holdfast_store::StoreError;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Largest message on the socket.
const MESSAGE_BYTES_MAX: u32 = 16 << 20;
/// Largest task on the socket.
const TASK_BYTES_MAX: u32 = 1024;
/// How long the running server may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// How long a server may hold the directory before it listens here.
const BEGINNING_MAX: Duration = Duration::from_secs(10);

/// Work an operator can ask for.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum Task {
    /// Collect garbage now.
    Collect = 1,
    /// Read everything and report damage.
    Scrub = 2,
    /// The figures of the server.
    Statistics = 3,
    /// Seal the log, so that it can be copied up to here.
    Seal = 4,
    /// List the holds of members.
    Holds = 5,
    /// End a hold, whichever member made it.
    Unhold {
        /// Its file system.
        file_system: Digest,
        /// Its name.
        name: String,
    } = 6,
    /// The status of logs with their witnesses.
    Witnesses = 7,
    /// Hand a file system over to another server.
    Move {
        /// The file system.
        file_system: Digest,
        /// Address of the server.
        to: String,
    } = 8,
}

/// The outcome of a [`Task`].
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Outcome {
    /// The outcome of [`Task::Collect`], by file system.
    Collected(Vec<(Digest, Result<CollectSummary, String>)>),
    /// The outcome of [`Task::Scrub`].
    Scrubbed(ScrubSummary),
    /// The outcome of [`Task::Statistics`].
    Statistics(Statistics),
    /// The work could not be done.
    Failed(String),
    /// The outcome of [`Task::Seal`]: numbers and lengths in bytes of all sealed segments, oldest first.
    Sealed(Vec<(u32, u64)>),
    /// The outcome of [`Task::Holds`], by file system.
    Holds(Vec<(Digest, Vec<HoldEntry>)>),
    /// The outcome of [`Task::Unhold`]: whether there was such a hold.
    Unheld(bool),
    /// The outcome of [`Task::Witnesses`].
    Witnesses(Vec<LogStatus>),
    /// The outcome of [`Task::Move`].
    Moved,
}

/// What a garbage collection did.
#[derive(Clone, Default, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct CollectSummary {
    /// Blocks found in use.
    pub marked: u64,
    /// Blocks dropped.
    pub dropped: u64,
    /// Bytes of the dropped blocks.
    pub dropped_bytes: u64,
    /// Blocks that nothing refers to, kept for a while.
    pub kept: u64,
    /// Bytes of the retained blocks.
    pub kept_bytes: u64,
    /// Bytes given back: of log files removed, and of holes.
    pub removed_bytes: u64,
    /// Log files kept because something in them cannot be read, and why.
    pub damaged: Vec<String>,
    /// Blocks that others refer to but that are not here.
    pub missing: Vec<Digest>,
}

/// What a scrub found.
#[derive(Clone, Default, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ScrubSummary {
    /// Good records.
    pub records: u64,
    /// Bytes read.
    pub bytes: u64,
    /// A description of each damaged record; at most 10,000.
    pub bad: Vec<String>,
    /// Number of damaged records and of blocks whose index entry is wrong.
    pub bad_count: u64,
}

/// Figures of a server.
#[derive(Clone, Default, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Statistics {
    /// File systems, with the number of operations each has ordered.
    pub file_systems: Vec<(Digest, u64)>,
    /// File systems that are not served because their order is damaged, and how.
    pub unserved: Vec<(Digest, String)>,
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes in the log.
    pub block_bytes: u64,
    /// Bytes among them of deleted content, as the last collection found it.
    pub deleted_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Free bytes on the disk; `None` if the system does not say.
    pub free_bytes: Option<u64>,
    /// Blocks known to be damaged.
    pub damaged_blocks: u64,
    /// Group commits since the server started.
    pub syncs: u64,
    /// Requests since the server started.
    pub requests: u64,
    /// Requests refused since then.
    pub refused: u64,
    /// Operations committed since then.
    pub operations: u64,
    /// Blocks stored since then.
    pub blocks_stored: u64,
    /// Blocks served since then.
    pub blocks_served: u64,
    /// Bytes of blocks served since then.
    pub bytes_served: u64,
    /// Whether a server is running on the directory.
    pub running: bool,
    /// The status of the block server that has the blocks. In that case the bytes of the log and the free bytes are
    /// those of this machine, and the figures of blocks are 0 while the block server is unreachable.
    pub block_store: Option<Box<BlockStoreStatus>>,
    /// Where the order is, if not in the data directory; and which server has what of it.
    pub order: Option<Box<OrderStatus>>,
}

/// The status of an order in etcd, which several servers share.
#[derive(Clone, Default, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct OrderStatus {
    /// The address in etcd.
    pub place: String,
    /// This server's own address.
    pub address: String,
    /// Whether the last request to etcd was answered.
    pub reached: bool,
    /// Addresses of the servers that run.
    pub servers: Vec<String>,
    /// File systems, and the address of the server that each is served by; empty while none is.
    pub active: Vec<(Digest, String)>,
}

/// Why an operator's task was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The directory holds no server's data.
    #[error("{path} is not a server's data directory", path = .0.display())]
    NoServer(PathBuf),
    /// No server runs, and the directory is another user's: what we wrote there its server could not read.
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
    /// It was tried and failed.
    #[error("{0}")]
    Failed(String),
}

#[derive(BorshSerialize, BorshDeserialize)]
enum Message {
    Progress(u64, u64),
    Finished(Outcome),
}

/// Carries out a task on the data directory in `config`: by the server that is running on it, or else here.
/// `progress` is given bytes done and bytes in all, where that is known.
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
            // A server that begins does not listen to its operator yet, and one that ends does not any more.
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

/// Has the running server do something that takes no longer than `patience`; `None` when there is none.
///
/// # Errors
/// See [`ControlError`].
pub fn ask(data: &Path, task: &Task, patience: Duration) -> Result<Option<Outcome>, ControlError> {
    ask_running(data, task, patience, &mut |_, _| {})
}

/// Asks the running server, which may be silent for a while; `None` when there is none.
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

/// A path to the same socket that is short enough for the system's limit, and the descriptor that must stay open while
/// it is used.
fn short_path(socket: &Path) -> std::io::Result<(PathBuf, std::fs::File)> {
    let directory = std::fs::File::open(socket.parent().unwrap_or(Path::new(".")))?;
    let name = socket.file_name().unwrap_or_default();
    Ok((Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name), directory))
}

fn carry_out(
    core: &ServerCore,
    task: Task,
    gc_window: Duration,
    witnesses: &witnessing::Shared,
    progress: &mut dyn FnMut(u64, u64),
) -> Outcome {
    match task {
        Task::Collect => {
            let collected = core.collect(gc_window).into_iter().map(|(id, result)| {
                let report = result.map(|report| CollectSummary {
                    marked: report.marked,
                    dropped: report.dropped,
                    dropped_bytes: report.dropped_bytes,
                    kept: report.kept,
                    kept_bytes: report.kept_bytes,
                    removed_bytes: report.freed_bytes(),
                    damaged: report
                        .damaged
                        .iter()
                        .map(|(segment, why)| format!("segment {segment}: {why}"))
                        .collect(),
                    missing: report.missing,
                });
                (id, report)
            });
            Outcome::Collected(collected.collect())
        }
        Task::Scrub => match core.scrub(progress) {
            Ok(report) => Outcome::Scrubbed(report),
            Err(why) => Outcome::Failed(why),
        },
        Task::Seal if core.cluster.is_some() => Outcome::Failed(
            "the order is in etcd: back that up instead, with etcdctl snapshot save (docs/growing.md)"
                .to_owned(),
        ),
        Task::Seal => match core.resources.store.seal() {
            Ok(segments) => Outcome::Sealed(segments),
            Err(error) => Outcome::Failed(error.to_string()),
        },
        Task::Holds => {
            let held = |one: &Arc<FileSystem>| one.holds().map(|held| (one.id, held));
            let held: Result<_, RequestError> = core.file_systems().iter().map(held).collect();
            match held {
                Ok(held) => Outcome::Holds(held),
                Err(refused) => Outcome::Failed(refused.into_error().to_string()),
            }
        }
        Task::Unhold { file_system, name } => {
            let ended = core.resources.blocks.unhold(file_system, &name).map_err(|error| error.to_string());
            match ended.and_then(|was| {
                core.resources.sync_stores().map_err(|error| error.into_error().to_string()).map(|()| was)
            }) {
                Ok(was) => Outcome::Unheld(was),
                Err(why) => Outcome::Failed(why),
            }
        }
        Task::Move { file_system, to } => match core.hand_over(file_system, &to) {
            Ok(()) => Outcome::Moved,
            Err(why) => Outcome::Failed(why),
        },
        Task::Witnesses => Outcome::Witnesses(witnesses.status(core)),
        Task::Statistics => match statistics(core) {
            Ok(statistics) => Outcome::Statistics(statistics),
            Err(why) => Outcome::Failed(why),
        },
    }
}

fn statistics(core: &ServerCore) -> Result<Statistics, String> {
    let failed = |error: StoreError| error.to_string();
    let status = core.resources.blocks.status();
    let order = match &status {
        None => None,
        Some(_) => Some(core.resources.store.statistics().map_err(failed)?),
    };
    let store = match &status {
        None => core.resources.blocks.figures().map_err(|error| error.to_string())?,
        Some(status) => status.figures.clone().unwrap_or_default(),
    };
    let counters = &core.resources.counters;
    Ok(Statistics {
        file_systems: core.file_systems().iter().map(|one| (one.id, one.log_size())).collect(),
        unserved: core.damaged().iter().map(|(id, why)| (*id, why.clone())).collect(),
        blocks: store.blocks,
        block_bytes: store.block_bytes,
        deleted_bytes: store.deleted_bytes,
        log_bytes: order.as_ref().map_or(store.log_bytes, |order| order.log_bytes),
        free_bytes: order.as_ref().map_or(store.free_bytes, |order| order.free_bytes),
        damaged_blocks: store.damaged_blocks,
        syncs: core.resources.store.sync_count(),
        requests: counters.requests.get(),
        refused: counters.refused.get(),
        operations: counters.operations.get(),
        blocks_stored: counters.blocks_stored.get(),
        blocks_served: counters.blocks_retrieved.get(),
        bytes_served: counters.bytes_retrieved.get(),
        running: true,
        block_store: status.map(Box::new),
        order: core.cluster.as_ref().map(|cluster| Box::new(cluster.status())),
    })
}

/// Serves the control socket until it is dropped. If the socket cannot be made, the server still serves its clients.
pub(crate) async fn serve(
    core: Arc<ServerCore>,
    data: DataDirectory,
    gc_window: Duration,
    witnesses: Arc<witnessing::Shared>,
) {
    let listener = match listen(&data.control()) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%error, "no control socket: gc and scrub only work while the server is stopped");
            return;
        }
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // One at a time: the tasks are heavy and do not get faster side by side.
                if let Err(error) = answer(stream, &core, gc_window, &witnesses).await {
                    tracing::info!(%error, "an operator's connection failed");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the control socket failed");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

fn listen(socket: &Path) -> std::io::Result<tokio::net::UnixListener> {
    // The store's lock is ours, so a socket that is there already belongs to a server that is gone.
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let (path, _held) = short_path(socket)?;
    let listener = tokio::net::UnixListener::bind(path)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn answer(
    mut stream: tokio::net::UnixStream,
    core: &Arc<ServerCore>,
    gc_window: Duration,
    witnesses: &Arc<witnessing::Shared>,
) -> std::io::Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let request = async {
        let length = stream.read_u32_le().await?;
        let mut bytes = vec![0; length.min(TASK_BYTES_MAX) as usize];
        stream.read_exact(&mut bytes).await?;
        decode::<Task>(&bytes).map_err(std::io::Error::other)
    };
    let task = tokio::time::timeout(Duration::from_secs(5), request).await??;
    let (messages, mut queue) = mpsc::channel::<Message>(16);
    let (core, witnesses) = (core.clone(), witnesses.clone());
    let work = tokio::task::spawn_blocking(move || {
        let mut progress = |done, all| {
            // If the operator's command reads too slowly, it misses a progress number and nothing else.
            let _ = messages.try_send(Message::Progress(done, all));
        };
        progress(0, 0);
        let outcome = carry_out(&core, task, gc_window, &witnesses, &mut progress);
        let _ = messages.blocking_send(Message::Finished(outcome));
    });
    let mut alive = tokio::time::interval(SILENCE_MAX / 4);
    loop {
        let message = tokio::select! {
            message = queue.recv() => message,
            _ = alive.tick() => Some(Message::Progress(0, 0)),
        };
        let Some(message) = message else { break };
        let bytes = encode(&message);
        stream.write_u32_le(bytes.len() as u32).await?;
        stream.write_all(&bytes).await?;
        if matches!(message, Message::Finished(_)) {
            break;
        }
    }
    work.await.map_err(std::io::Error::other)
}
