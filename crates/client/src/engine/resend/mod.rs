//! The resend: operations of this device that the server had acknowledged and a declared restore lost are
//! made again on the restored state.
//!
//! 1. When a restore is taken up ([`super::pump`]), the view that the device had accepted is saved durably
//!    ([`lost_work`]) before its state changes over. From then on, programs' requests wait.
//!
//! 2. This device's own part of the lost operations is planned as changes of the present state ([`planning`];
//!    [`comparison`] determines which device wrote what), and the plan is saved.
//!
//! 3. The planned operations are made one by one ([`sending`]), by the code that also sends write-back's
//!    edits. It finds conflicts with later changes of others at the operation's place in the order, and lets
//!    those changes stand ([`ReplayKind::Lost`](crate::files::ReplayKind)). Data comes from the cache. Then
//!    programs' requests are served again.
//!
//! Invariants:
//! - Each operation is made once: it carries a mark that identifies it, also after the process was killed.
//! - No change made since the restore, by any device, is overwritten or removed.
//! - Each device makes only its own operations again, independently of others.
//! - While changes are not allowed here (the newest head is too old, or a peer is lost), nothing is made
//!   again, and programs can change nothing either.
//! - What cannot be made again is reported with its path and the reason, and stays in the saved evidence
//!   ([`RestoreReport`]).
//!
//! Attack answered: a server that gets a restore declared in order to have work thrown away. No new attack is
//! opened: only a restore signed by the superuser starts a resend, each restore once, and everything made is
//! signed here, by this device, as its own.
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

/// Most paths listed in a report, of each kind.
const TOLD_MAX: usize = 200;

/// The result of making again what a restore lost.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct ResendReport {
    /// Whether the resend has ended.
    pub is_over: bool,
    /// Why the resend does not go on, if it does not; it is tried again at the next start.
    pub trouble: Option<String>,
    /// Whether it goes on by itself once the reason in `trouble` is over.
    #[borsh(skip)]
    pub is_paused: bool,
    /// Number of files and directories that were made again or moved.
    pub made: u64,
    /// Number of files and directories that were removed again.
    pub removed: u64,
    /// Files that others had changed too: the path, and what was done.
    pub conflicts: Vec<(String, String)>,
    /// Files that could not be made again: the path, and why.
    pub not_made: Vec<(String, String)>,
    /// Number of files that could not be made again, including those not listed.
    pub not_made_count: u64,
    /// Paths of some names that exist again, since it is not certain who had removed them.
    pub back: Vec<String>,
    /// Number of such names, including those not listed.
    pub back_count: u64,
    /// The file with the views that this device had accepted, for `holdfast evidence merge`.
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

/// A report together with its text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ResendStatus {
    /// The report as text.
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

/// The state of the resend: work to be done, and the last report.
pub(super) struct Resend {
    state_dir: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether a request to the server was not answered; a restore is then checked for, however soon the
    /// connection is back.
    is_disturbed: AtomicBool,
    /// The directories that this device works in and must be able to read after a restore.
    pub readable: ReadableDirectories,
}

#[derive(Default)]
struct State {
    is_due: bool,
    stop: bool,
    latest: Option<ResendReport>,
    hooks: Vec<ResendHook>,
}

/// Called with the report when the resend has ended or does not go on. It must not call the engine.
pub type ResendHook = Box<dyn Fn(&ResendReport) + Send + Sync>;

impl Resend {
    /// Starts with the work that an earlier run left in `state_dir`.
    pub fn new(state_dir: &Path) -> Resend {
        Resend {
            state_dir: state_dir.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
            is_disturbed: AtomicBool::new(false),
            readable: ReadableDirectories::default(),
        }
    }

    /// Whether an earlier run left work.
    pub fn has_work(&self) -> bool {
        lost_work::read(&self.state_dir).is_ok_and(|works| !works.is_empty())
    }

    /// Saves durably what is to be made again, before a restore is taken up.
    pub fn note(&self, work: LostWork) -> io::Result<()> {
        let mut works = lost_work::read(&self.state_dir).unwrap_or_default();
        // If the process crashed before the restore was taken up, this replaces the work saved then.
        works.retain(|noted| noted.floor.epoch != work.floor.epoch);
        // Operations that were made again and then lost once more come before those that were still to be
        // made.
        works.insert(0, work);
        lost_work::save(&self.state_dir, &works)
    }

    /// Wakes the thread because there is work.
    pub fn begin(&self) {
        self.state.lock().is_due = true;
        self.changed.notify_all();
    }

    /// Notes that the server was away for a time, and so may have been restored.
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
