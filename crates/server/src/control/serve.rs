//! The server's side of the control socket.

use super::messages::{CollectSummary, Message, Outcome, SILENCE_MAX, Statistics, TASK_BYTES_MAX, Task};
use crate::block_store::BlockStoreError;
use crate::data::DataDirectory;
use crate::refusal::RequestError;
use crate::server_core::ServerCore;
use crate::standby::MoveError;
use crate::witnessing;
use holdfast_crypto::{decode, encode};
use holdfast_protocol::message::ServerError;
use holdfast_store::{CollectReport, StoreError};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// A path to the same socket that is short enough for the system's limit, and a descriptor that must stay
/// open while the path is used.
pub(super) fn short_path(socket: &Path) -> std::io::Result<(PathBuf, std::fs::File)> {
    let directory = std::fs::File::open(socket.parent().unwrap_or(Path::new(".")))?;
    let name = socket.file_name().unwrap_or_default();
    Ok((Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name), directory))
}

/// Why a task was not carried out.
#[derive(Debug, thiserror::Error)]
enum TaskError {
    /// The block store, or the log in the data directory, failed.
    #[error(transparent)]
    Store(#[from] BlockStoreError),
    /// A file system, or what all of them share, failed or refused.
    #[error("{}", .0)]
    Request(ServerError),
    /// A hand-over failed.
    #[error(transparent)]
    Move(#[from] MoveError),
    /// The log to be sealed is not in the data directory.
    #[error("the order is in etcd: back that up instead, with etcdctl snapshot save (docs/growing.md)")]
    OrderInEtcd,
}

impl From<StoreError> for TaskError {
    fn from(error: StoreError) -> TaskError {
        TaskError::Store(error.into())
    }
}

impl From<RequestError> for TaskError {
    fn from(refused: RequestError) -> TaskError {
        TaskError::Request(refused.into_error())
    }
}

/// Carries out a task. If it fails, the outcome says so.
pub(super) fn carry_out(
    core: &ServerCore,
    task: Task,
    gc_window: Duration,
    witnesses: &witnessing::Shared,
    progress: &mut dyn FnMut(u64, u64),
) -> Outcome {
    let outcome = try_task(core, task, gc_window, witnesses, progress);
    outcome.unwrap_or_else(|error| Outcome::Failed(error.to_string()))
}

fn try_task(
    core: &ServerCore,
    task: Task,
    gc_window: Duration,
    witnesses: &witnessing::Shared,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Outcome, TaskError> {
    let resources = &core.resources;
    Ok(match task {
        Task::Collect => {
            let summary = |(id, result): (_, Result<_, ServerError>)| {
                (id, result.map(collect_summary).map_err(|error| error.to_string()))
            };
            Outcome::Collected(core.collect(gc_window).into_iter().map(summary).collect())
        }
        Task::Scrub => Outcome::Scrubbed(core.scrub(progress)?),
        Task::Seal if core.cluster.is_some() => return Err(TaskError::OrderInEtcd),
        Task::Seal => Outcome::Sealed(resources.store.seal()?),
        Task::Holds => {
            let all = core.file_systems();
            let held = all.iter().map(|one| one.holds().map(|held| (one.id, held)));
            Outcome::Holds(held.collect::<Result<_, RequestError>>()?)
        }
        Task::Unhold { file_system, name } => {
            let was = resources.blocks.unhold(file_system, &name)?;
            resources.sync_stores()?;
            Outcome::Unheld(was)
        }
        Task::Move { file_system, to } => {
            core.hand_over(file_system, &to)?;
            Outcome::Moved
        }
        Task::Witnesses => Outcome::Witnesses(witnesses.status(core)),
        Task::Statistics => Outcome::Statistics(statistics(core)?),
    })
}

fn collect_summary(report: CollectReport) -> CollectSummary {
    let damaged = report.damaged.iter().map(|(segment, why)| format!("segment {segment}: {why}"));
    CollectSummary {
        marked: report.marked,
        dropped: report.dropped,
        dropped_bytes: report.dropped_bytes,
        kept: report.kept,
        kept_bytes: report.kept_bytes,
        removed_bytes: report.freed_bytes(),
        damaged: damaged.collect(),
        missing: report.missing,
    }
}

fn statistics(core: &ServerCore) -> Result<Statistics, TaskError> {
    let status = core.resources.blocks.status();
    let order = match &status {
        None => None,
        Some(_) => Some(core.resources.store.statistics()?),
    };
    let store = match &status {
        None => core.resources.blocks.figures()?,
        Some(status) => status.figures.clone().unwrap_or_default(),
    };
    let counters = &core.resources.counters;
    Ok(Statistics {
        file_systems: core.file_systems().iter().map(|one| (one.id, one.log_size())).collect(),
        unserved: core.damaged().iter().map(|(id, why)| (*id, why.to_string())).collect(),
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

/// Serves the control socket until this future is dropped. If the socket cannot be made, the server still
/// serves its clients.
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
                // Tasks run one at a time: they are heavy, and would not be faster at the same time.
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
    // This process holds the store's lock, so a socket that exists was left by a server that has ended.
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
            // If the operator's command reads too slowly, it misses progress messages and nothing else.
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
