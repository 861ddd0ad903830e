//! Ends of long work that a person asks for.

use holdfast_daemon::signals;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_volume::BLOCK_BYTES;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Work on blocks that a person may stop.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on the first Ctrl-C (or SIGTERM) stops the work, not the process.
    ///
    /// # Errors
    /// Signals cannot be had.
    pub fn listen() -> Outcome<Interrupt> {
        let asked = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&asked);
        signals::on_end(move || told.store(true, SeqCst))?;
        Ok(Interrupt(asked))
    }

    /// Whether it was asked to stop.
    pub fn is_asked(&self) -> bool {
        self.0.load(SeqCst)
    }

    /// Shows how far it is; whether to go on.
    pub fn step(&self, bar: &indicatif::ProgressBar, done: u64, of: u64) -> bool {
        bar.set_length(of * BLOCK_BYTES as u64);
        bar.set_position(done * BLOCK_BYTES as u64);
        !self.is_asked()
    }

    /// Says that it was stopped.
    pub fn stopped(&self, note: &str) -> Failure {
        Failure::new(Exit::Failed, format!("stopped; {note}")).hint("the same command goes on from here")
    }
}
