//! Background work: checkpoints of the order and garbage collection; and scrubbing.

use crate::block_store::{BlockStoreError, ScrubSummary, summary_of};
use crate::file_system::FileSystem;
use crate::server_core::ServerCore;
use holdfast_crypto::Digest;
use holdfast_protocol::message::ServerError;
use holdfast_store::CollectReport;
use std::sync::Arc;
use std::time::Duration;

/// Runs until the task is aborted.
pub(crate) async fn run(core: Arc<ServerCore>, gc_window: Duration, gc_interval: Option<Duration>) {
    let checkpoints = async {
        loop {
            core.resources.counters.checkpoints_due.notified().await;
            let core = core.clone();
            let _ = tokio::task::spawn_blocking(move || core.checkpoint_if_due()).await;
        }
    };
    let collections = async {
        let Some(interval) = gc_interval else { return std::future::pending::<()>().await };
        loop {
            tokio::time::sleep(interval).await;
            let core = core.clone();
            let _ = tokio::task::spawn_blocking(move || {
                for (file_system, result) in core.collect(gc_window) {
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
                        Err(error) => {
                            tracing::error!(%file_system, %error, "garbage collection failed; nothing live was dropped");
                        }
                    }
                }
            })
            .await;
        }
    };
    tokio::join!(checkpoints, collections);
}

impl ServerCore {
    /// Writes checkpoints of those orders that have written enough records since the last. [`crate::Server`]
    /// calls it in the background.
    pub fn checkpoint_if_due(&self) {
        let all = self.file_systems();
        all.iter().filter(|file_system| file_system.is_checkpoint_due()).for_each(|one| one.checkpoint());
    }

    /// Writes checkpoints at a clean shutdown.
    pub(crate) fn final_checkpoints(&self) {
        let all = self.file_systems();
        all.iter().filter(|file_system| file_system.has_uncheckpointed()).for_each(|one| one.checkpoint());
    }

    /// Collects the garbage of every file system: blocks that nothing has referred to for `window`, and that
    /// were not stored within the store's own window. [`crate::Server`] calls it in the background.
    pub fn collect(&self, window: Duration) -> Vec<(Digest, Result<CollectReport, ServerError>)> {
        let window_ns = i64::try_from(window.as_nanos()).unwrap_or(i64::MAX);
        let collect_one = |file_system: Arc<FileSystem>| {
            let result = file_system.collect(window_ns);
            (file_system.id, result.map_err(|refused| refused.into_error()))
        };
        let collected = self.file_systems().into_iter().map(collect_one).collect();
        // If the blocks are elsewhere, their collection does not free the records of the order that
        // checkpoints have replaced.
        let resources = &self.resources;
        if resources.has_separate_blocks
            && let Err(error) = resources.store.compact(resources.clock.wall_ns())
        {
            tracing::error!(%error, "the log of the order was not compacted; nothing is lost");
        }
        collected
    }

    /// Reads everything and reports what is damaged.
    pub(crate) fn scrub(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<ScrubSummary, BlockStoreError> {
        let blocks = self.resources.blocks.scrub(progress)?;
        if !self.resources.has_separate_blocks {
            return Ok(blocks);
        }
        let order = self.resources.store.scrub(progress)?;
        let order = summary_of(&order);
        Ok(ScrubSummary {
            records: order.records + blocks.records,
            bytes: order.bytes + blocks.bytes,
            bad: order.bad.into_iter().chain(blocks.bad).collect(),
            bad_count: order.bad_count + blocks.bad_count,
        })
    }
}
