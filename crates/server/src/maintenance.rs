//! Work in the background: checkpoints of the order, garbage collection, scrubbing.

use crate::block_store::summary_of;
use crate::control::ScrubSummary;
use crate::order::ActiveStatus;
use crate::refusal::RequestError;
use crate::server_core::ServerCore;
use holdfast_crypto::Digest;
use holdfast_protocol::message::ServerError;
use holdfast_store::CollectReport;
use std::sync::Arc;
use std::time::Duration;

/// Runs until it is aborted.
pub(crate) async fn run(core: Arc<ServerCore>, gc_window: Duration, gc_interval: Option<Duration>) {
    let checkpoints = async {
        loop {
            core.counters.checkpoints_due.notified().await;
            let core = core.clone();
            let _ = tokio::task::spawn_blocking(move || due_checkpoints(&core)).await;
        }
    };
    let collections = async {
        let Some(interval) = gc_interval else { return std::future::pending::<()>().await };
        loop {
            tokio::time::sleep(interval).await;
            let core = core.clone();
            let _ = tokio::task::spawn_blocking(move || {
                for (file_system, result) in collect(&core, gc_window) {
                    match result {
                        Ok(report) => tracing::info!(
                            %file_system,
                            marked = report.marked,
                            dropped = report.dropped,
                            dropped_bytes = report.dropped_bytes,
                            kept_bytes = report.kept_bytes,
                            freed_bytes = report.freed_bytes(),
                            "collected garbage"
                        ),
                        Err(why) => {
                            tracing::error!(%file_system, why, "garbage collection failed; nothing live was dropped");
                        }
                    }
                }
            })
            .await;
        }
    };
    tokio::join!(checkpoints, collections);
}

/// Writes the checkpoints that are due.
pub(crate) fn due_checkpoints(core: &ServerCore) {
    for file_system in core.file_systems() {
        if file_system.checkpoint_due(core.checkpoint_records()) {
            checkpoint(core, &file_system);
        }
    }
}

pub(crate) fn checkpoint(core: &ServerCore, file_system: &crate::file_system::FileSystem) {
    let result = file_system.checkpoint().and_then(|()| core.commit(file_system));
    match result {
        Ok(()) => tracing::debug!(file_system = %file_system.id, "checkpoint of the order"),
        Err(refused) => {
            let error = refused.into_error();
            tracing::warn!(file_system = %file_system.id, %error, "no checkpoint; the log keeps everything");
        }
    }
}

/// Checkpoints at an orderly end.
pub(crate) fn final_checkpoints(core: &ServerCore) {
    for file_system in core.file_systems() {
        if file_system.checkpoint_due(1) {
            checkpoint(core, &file_system);
        }
    }
}

/// Collects the garbage of every file system.
pub(crate) fn collect(
    core: &ServerCore,
    gc_window: Duration,
) -> Vec<(Digest, Result<CollectReport, String>)> {
    let window_ns = i64::try_from(gc_window.as_nanos()).unwrap_or(i64::MAX);
    let collect_one = |file_system: &crate::file_system::FileSystem| -> Result<CollectReport, RequestError> {
        // What is saved of past states must not be ahead of the log.
        core.commit(file_system)?;
        // Only the active server knows everything that is in use, so only it may collect.
        if file_system.active_status() != ActiveStatus::Active {
            return Err(ServerError::Elsewhere(None).into());
        }
        let now_ns = core.clock.wall_ns();
        let roots = file_system.roots(now_ns, window_ns)?;
        // The heads noted must be durable before what they replace can go.
        core.commit(file_system)?;
        let short = file_system.near_limits(core)?;
        Ok(core.blocks.collect(file_system.id, &roots, &short, now_ns)?)
    };
    let collected = core
        .file_systems()
        .iter()
        .map(|file_system| {
            let result = collect_one(file_system);
            (file_system.id, result.map_err(|refused| refused.into_error().to_string()))
        })
        .collect();
    // With the blocks elsewhere, the collection of blocks does not free the records of the order that checkpoints have
    // replaced.
    if core.has_separate_blocks()
        && let Err(error) = core.store.compact(core.clock.wall_ns())
    {
        tracing::error!(%error, "the log of the order was not compacted; nothing is lost");
    }
    collected
}

/// Reads everything and reports what is damaged.
pub(crate) fn scrub(core: &ServerCore, progress: &mut dyn FnMut(u64, u64)) -> Result<ScrubSummary, String> {
    let blocks = core.blocks.scrub(progress).map_err(|error| error.to_string())?;
    if !core.has_separate_blocks() {
        return Ok(blocks);
    }
    let order = core.store.scrub(progress).map_err(|error| error.to_string())?;
    let order = summary_of(&order);
    Ok(ScrubSummary {
        records: order.records + blocks.records,
        bytes: order.bytes + blocks.bytes,
        bad: order.bad.into_iter().chain(blocks.bad).collect(),
        bad_count: order.bad_count + blocks.bad_count,
    })
}
