//! The resend: operations of this device that the server had acknowledged and a declared restore lost are made again on
//! the state that is left.
//!
//! 1. When a restore is taken up ([`super::pump`]), what the device had accepted is noted durably ([`lost_work`]) before its state
//!    goes over, and from then on programs' requests wait.
//! 2. What of that was this device's own is planned as changes of what is there now ([`planning`]; [`comparison`] tells whose
//!    things are), and the plan is noted.
//! 3. Its operations are made one by one ([`sending`]) by the code that sends what write-back has kept, which finds out at
//!    their place in the order what others have changed meanwhile, and lets that stand
//!    ([`ReplayKind::Lost`](crate::files::ReplayKind)). Data comes out of the cache. Then requests are taken again.
//!
//! Invariants:
//! - an operation is made once: it carries a mark that says which, by which it is known again after a kill;
//! - nothing that anybody has made since the restore is overwritten or removed;
//! - each device makes its own again, whatever others do;
//! - while nothing may be changed here (an old head, a lost peer) nothing is made again, and programs change nothing either;
//! - what cannot be made again is told of, with its path and the reason, and stays where it is kept ([`RestoreReport`]).
//!
//! Attack answered: a server that has a restore declared to have work thrown away. And none is opened: only a restore that
//! the superuser has signed begins this, each once, and all that is made is signed here, by this device, as its own.
//!
//! [`RestoreReport`]: super::RestoreReport

mod comparison;
mod lost_work;
mod planning;
mod readable_directories;
mod sending;
mod watching;

pub(super) use lost_work::LostWork;

use parking_lot::{Condvar, Mutex};
use readable_directories::ReadableDirectories;
use serde::Serialize;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Most paths told of one kind.
const TOLD_MAX: usize = 200;

/// What became of what a restore lost.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct ResendReport {
    /// Whether the resend has ended.
    pub is_over: bool,
    /// Why it does not go on, if it does not; it is tried again at the next start.
    pub trouble: Option<String>,
    /// It goes on by itself when what is in `trouble` is over.
    #[borsh(skip)]
    pub is_paused: bool,
    /// Files and directories that were made again as they were, or moved.
    pub made: u64,
    /// Files and directories that were removed again.
    pub removed: u64,
    /// Files that others had changed too: path, and what was done.
    pub conflicts: Vec<(String, String)>,
    /// What could not be made again: path, and why.
    pub not_made: Vec<(String, String)>,
    /// How many could not be made again, also those not listed.
    pub not_made_count: u64,
    /// Paths of some names that are there again, since it is not known who had removed them.
    pub back: Vec<String>,
    /// How many names are back, also those not listed.
    pub back_count: u64,
    /// The file with what this device had seen, for `holdfast evidence merge`.
    pub kept: Option<String>,
}

impl ResendReport {
    fn fails(&mut self, path: &[u8], why: impl fmt::Display) {
        self.not_made_count += 1;
        if self.not_made.len() < TOLD_MAX {
            self.not_made.push((String::from_utf8_lossy(path).into_owned(), why.to_string()));
        }
    }
}

impl fmt::Display for ResendReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_over && self.trouble.is_none() {
            write!(f, "what this device had written is being sent again: ")?;
        }
        write!(
            f,
            "of what this device had written and the restore lost, {} files and directories were sent again and {} removed again",
            self.made, self.removed
        )?;
        match self.conflicts.len() {
            0 => {}
            count => write!(f, "; {count} times others had changed the same, and both versions are there")?,
        }
        match self.not_made_count {
            0 => {}
            count => write!(f, "; {count} could not be sent again")?,
        }
        match self.back_count {
            0 => {}
            count => write!(
                f,
                "; {count} names that had been removed are there again, as nobody can say who had removed them"
            )?,
        }
        if let Some(trouble) = &self.trouble {
            let when = if self.is_paused { "when that is over" } else { "at the next mount" };
            write!(f, ". It does not go on now: {trouble}. It is tried again {when}")?;
        }
        write!(f, ".")
    }
}

/// The report, with a sentence for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ResendStatus {
    /// The report in a sentence.
    pub words: String,
    /// The report itself.
    #[serde(flatten)]
    pub report: ResendReport,
}

impl From<ResendReport> for ResendStatus {
    fn from(report: ResendReport) -> ResendStatus {
        ResendStatus { words: report.to_string(), report }
    }
}

/// The works that are to be made again, and the last report.
pub(super) struct Resend {
    state_dir: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
    /// A question was not answered, however soon the server is there again.
    is_disturbed: AtomicBool,
    /// Directories that this device works in, which it will have to be able to read.
    pub readable: ReadableDirectories,
}

#[derive(Default)]
struct State {
    is_due: bool,
    stop: bool,
    latest: Option<ResendReport>,
    hooks: Vec<ResendHook>,
}

/// Called with words when what a restore lost is sent again, or it does not go on. It must not call the engine.
pub type ResendHook = Box<dyn Fn(&ResendReport) + Send + Sync>;

impl Resend {
    /// With what an earlier run left in `state_dir`.
    pub fn new(state_dir: &Path) -> Resend {
        Resend {
            state_dir: state_dir.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
            is_disturbed: AtomicBool::new(false),
            readable: ReadableDirectories::default(),
        }
    }

    /// Whether an earlier run of the process has left work.
    pub fn has_work(&self) -> bool {
        lost_work::read(&self.state_dir).is_ok_and(|works| !works.is_empty())
    }

    /// Notes durably what is to be made again once a restore is taken up.
    pub fn note(&self, work: LostWork) -> io::Result<()> {
        let mut works = lost_work::read(&self.state_dir).unwrap_or_default();
        // A work that was noted before a crash, and whose restore was not taken up then, is replaced by the same one.
        works.retain(|noted| noted.floor.epoch != work.floor.epoch);
        // Operations that were made again and lost once more come before those that were still to be made.
        works.insert(0, work);
        lost_work::save(&self.state_dir, &works)
    }

    /// Tells the thread that there is work.
    pub fn begin(&self) {
        self.state.lock().is_due = true;
        self.changed.notify_all();
    }

    /// Notes that the server may have been away, and so may have been restored.
    pub fn disturbed(&self) {
        self.is_disturbed.store(true, Relaxed);
    }

    /// The last report, if there was work since the start.
    pub fn latest(&self) -> Option<ResendReport> {
        self.state.lock().latest.clone()
    }

    /// Registers a hook, and calls it with the last report if there is one.
    pub fn on_report(&self, hook: ResendHook) {
        let mut state = self.state.lock();
        if let Some(latest) =
            state.latest.as_ref().filter(|latest| latest.is_over || latest.trouble.is_some())
        {
            hook(latest);
        }
        state.hooks.push(hook);
    }

    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.state.lock().stop
    }

    fn show(&self, report: &ResendReport) {
        let mut state = self.state.lock();
        state.latest = Some(report.clone());
        if report.is_over || report.trouble.is_some() {
            tracing::warn!("{report}");
            state.hooks.iter().for_each(|hook| hook(report));
        }
    }
}
