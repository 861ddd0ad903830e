//! The end of a process that serves mounts: nothing that a program wrote may be lost by it.

use super::host::Host;
use crate::exit::{Exit, Failure, Outcome};
use holdfast_client::FileSystem;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

/// How long a process that was told to end goes on trying to publish.
pub const PUBLISH_WAIT: Duration = Duration::from_secs(20);

/// SIGTERM, SIGINT and SIGHUP end the process in order.
pub fn on_signals(host: Weak<Host>) -> Outcome {
    on_signal(move || {
        if let Some(host) = host.upgrade() {
            host.hurry();
        }
    })
}

/// Does something at the first of SIGTERM, SIGINT and SIGHUP, which end nothing by themselves from now on.
pub fn on_signal(end: impl FnOnce() + Send + 'static) -> Outcome {
    let failed = |error: std::io::Error| Failure::new(Exit::System, format!("signals: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (mut terminate, mut interrupt, mut hangup) = {
        use tokio::signal::unix::{SignalKind, signal};
        let _inside = runtime.enter();
        let signal = |kind| signal(kind).map_err(failed);
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?)
    };
    let wait = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        end();
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(failed)?;
    Ok(())
}

/// Publishes everything, or gives up after a while: a server that does not answer would take a deadline a file.
pub fn publish_for_a_while(files: &Arc<FileSystem>) {
    let (done, wait) = mpsc::channel();
    let publishing = Arc::clone(files);
    let spawned = std::thread::Builder::new().name("publish".to_owned()).spawn(move || {
        let _ = done.send(publishing.publish_all().len());
    });
    match spawned.map(|_| wait.recv_timeout(PUBLISH_WAIT)) {
        Ok(Ok(0)) => {}
        Ok(Ok(failed)) => tracing::error!(files = failed, "some files could not be published"),
        Ok(Err(_)) | Err(_) => tracing::error!("publishing takes too long"),
    }
}

/// Copies what is unpublished to the salvage folder.
pub fn keep(files: &FileSystem) {
    match files.save_unsaved("the mount ended before they could be published") {
        Ok(None) => {}
        Ok(Some(saved)) => {
            tracing::error!(folder = %saved.folder.display(), files = saved.files.len(),
                "what could not be published is kept; see `holdfast salvage`");
        }
        Err(error) => tracing::error!(%error, "what could not be published stays in the spool"),
    }
}
