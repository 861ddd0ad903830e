//! Work in the background: checkpoints of the order, garbage collection, scrubbing.

use crate::block_store::in_words;
use crate::control::Scrubbed;
use crate::host::Host;
use crate::order::Standing;
use crate::refusal::Refused;
use holdfast_crypto::Digest;
use holdfast_protocol::message::ServerError;
use holdfast_store::CollectReport;
use std::sync::Arc;
use std::time::Duration;

/// Runs until it is aborted.
pub(crate) async fn run(host: Arc<Host>, gc_window: Duration, gc_interval: Option<Duration>) {
    let checkpoints = async {
        loop {
            host.counters.checkpoints_due.notified().await;
            let host = host.clone();
            let _ = tokio::task::spawn_blocking(move || due_checkpoints(&host)).await;
        }
    };
    let collections = async {
        let Some(interval) = gc_interval else { return std::future::pending::<()>().await };
        loop {
            tokio::time::sleep(interval).await;
            let host = host.clone();
            let _ = tokio::task::spawn_blocking(move || {
                for (file_system, result) in collect(&host, gc_window) {
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
pub(crate) fn due_checkpoints(host: &Host) {
    for file_system in host.file_systems() {
        if file_system.checkpoint_due(host.checkpoint_records()) {
            checkpoint(host, &file_system);
        }
    }
}

pub(crate) fn checkpoint(host: &Host, file_system: &crate::file_system::FileSystem) {
    let result = file_system.checkpoint().and_then(|()| host.commit(file_system));
    match result {
        Ok(()) => tracing::debug!(file_system = %file_system.id, "checkpoint of the order"),
        Err(refused) => {
            let error = refused.into_error();
            tracing::warn!(file_system = %file_system.id, %error, "no checkpoint; the log keeps everything");
        }
    }
}

/// Checkpoints at an orderly end.
pub(crate) fn final_checkpoints(host: &Host) {
    for file_system in host.file_systems() {
        if file_system.checkpoint_due(1) {
            checkpoint(host, &file_system);
        }
    }
}

/// Collects the garbage of every file system.
pub(crate) fn collect(host: &Host, gc_window: Duration) -> Vec<(Digest, Result<CollectReport, String>)> {
    let window_ns = i64::try_from(gc_window.as_nanos()).unwrap_or(i64::MAX);
    let collect_one = |file_system: &crate::file_system::FileSystem| -> Result<CollectReport, Refused> {
        // What is saved of past states must not be ahead of the log.
        host.commit(file_system)?;
        // Only who knows all that is in use may say what is not.
        if file_system.order_standing() != Standing::Active {
            return Err(ServerError::Elsewhere(None).into());
        }
        let now_ns = host.clock.wall_ns();
        let roots = file_system.roots(now_ns, window_ns)?;
        // The heads noted must be durable before what they replace can go.
        host.commit(file_system)?;
        let short = file_system.near_limits(host)?;
        Ok(host.blocks.collect(file_system.id, &roots, &short, now_ns)?)
    };
    let collected = host
        .file_systems()
        .iter()
        .map(|file_system| {
            let result = collect_one(file_system);
            (file_system.id, result.map_err(|refused| refused.into_error().to_string()))
        })
        .collect();
    // With the blocks elsewhere, nobody else gives back the space of records of the order that checkpoints have replaced.
    if host.has_blocks_apart()
        && let Err(error) = host.store.compact(host.clock.wall_ns())
    {
        tracing::error!(%error, "the log of the order was not compacted; nothing is lost");
    }
    collected
}

/// Reads everything and reports what is damaged.
pub(crate) fn scrub(host: &Host, progress: &mut dyn FnMut(u64, u64)) -> Result<Scrubbed, String> {
    let blocks = host.blocks.scrub(progress).map_err(|error| error.to_string())?;
    if !host.has_blocks_apart() {
        return Ok(blocks);
    }
    let order = host.store.scrub(progress).map_err(|error| error.to_string())?;
    let order = in_words(&order);
    Ok(Scrubbed {
        records: order.records + blocks.records,
        bytes: order.bytes + blocks.bytes,
        bad: order.bad.into_iter().chain(blocks.bad).collect(),
        bad_count: order.bad_count + blocks.bad_count,
    })
}
