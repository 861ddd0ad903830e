//! The end of a process that serves mounts. Nothing that a program wrote may be lost by it.

use super::service::Service;
use crate::signals;
use holdfast_client::FileSystem;
use holdfast_failure::Outcome;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

/// How long a process that is to end goes on trying to publish.
pub const PUBLISH_WAIT: Duration = Duration::from_secs(20);

/// Makes SIGTERM, SIGINT and SIGHUP end the process in an orderly way.
pub fn on_signals(service: Weak<Service>) -> Outcome {
    signals::on_end(move || {
        if let Some(service) = service.upgrade() {
            service.hurry();
        }
    })
}

/// Publishes everything, or gives up after a while: with a server that does not answer, every file would take
/// a deadline.
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
