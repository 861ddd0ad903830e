//! Signals that end a process in an orderly way.

use holdfast_failure::{Exit, Failure, Outcome};

/// Calls `end` at the first SIGTERM, SIGINT or SIGHUP. From now on, these signals do not end the process by
/// themselves.
///
/// # Errors
/// The system cannot start a thread or set up signal handling.
pub fn on_end(end: impl FnOnce() + Send + 'static) -> Outcome {
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
