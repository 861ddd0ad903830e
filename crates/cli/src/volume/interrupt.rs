//! Interruption of long work by a person.

use holdfast_daemon::signals;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_volume::BLOCK_BYTES;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Work on blocks that can be interrupted.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Makes the first Ctrl-C (or SIGTERM) stop the work instead of the process.
    ///
    /// # Errors
    /// Signal handling cannot be set up.
    pub fn listen() -> Outcome<Interrupt> {
        let asked = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&asked);
        signals::on_end(move || told.store(true, SeqCst))?;
        Ok(Interrupt(asked))
    }

    /// Whether the work is to be stopped.
    pub fn is_asked(&self) -> bool {
        self.0.load(SeqCst)
    }

    /// Displays the progress; returns whether to continue.
    pub fn step(&self, bar: &indicatif::ProgressBar, done: u64, of: u64) -> bool {
        bar.set_length(of * BLOCK_BYTES as u64);
        bar.set_position(done * BLOCK_BYTES as u64);
        !self.is_asked()
    }

    /// The failure that the work was stopped.
    pub fn stopped(&self, note: &str) -> Failure {
        Failure::new(Exit::Failed, format!("stopped; {note}")).hint("the same command goes on from here")
    }
}
