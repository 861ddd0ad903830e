//! Write-back: makes edits and data durable in a local journal, and sends them to the server in the
//! background.
//!
//! [`WriteBack`] stands between the files and the engine. An edit is planned on the *local* state of the file
//! system: the newest verified view, with everything that is not at the server yet laid over it
//! ([`overlay`]). The edit is journaled with what it read and what it changed ([`journal`]), and then
//! acknowledged. `close` and `fsync` wait for the journal's disk, not for the server. A thread takes edits
//! from the front of the queue, many at once, and sends their *net* effect as one signed operation
//! ([`sender`]). Only when that operation has its place in the order are conflicts with other devices'
//! changes found, by comparing what the edit read with the state at that place ([`replay`]).
//!
//! Invariants:
//! - what was acknowledged to a program as saved is at the server or in the journal, through any crash of
//!   either side;
//! - edits reach the server in the order in which they were made, each once;
//! - no change is destroyed unseen, neither another device's nor one made here: of every conflict both
//!   versions stay, and the user is notified;
//! - an edit that the server will never accept is saved to a folder and reported, so it never holds up those
//!   behind it;
//! - while the server is away, calls are answered at once from the local state.
//!
//! This describes `--write-back`. Other mounts *gather* ([`gather`]): they do the same while an exclusive
//! lease or a delegation guarantees that no other device changes the files, and otherwise send each edit
//! straight to the server.

mod backend;
mod damage;
mod gather;
mod journal;
mod local;
mod overlay;
mod record;
mod replay;
mod sender;
mod shared;
mod views;

use crate::backend::Upstream;
use crate::error::FsError;
use crate::tree::View;
use holdfast_content::Handle;
use journal::{Journal, NameMapping, NumberRange};
use overlay::Overlay;
use parking_lot::{Condvar, Mutex, RwLock};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) use super::now_ns;
pub(crate) use record::{EntryChange, InodeChange, JournalInode, NetChange, Record};
pub(crate) use replay::{Outcome, Replay, ReplayKind, Sender};

/// Most changes that wait to be sent. Beyond it, a call that changes more waits.
const CHANGES_MAX: usize = 400_000;
/// How many more changes are accepted from edits that make no files.
const CHANGES_RESERVED: usize = 20_000;
/// Bounds, in bytes, of the part of the journal reserved for such edits, which is otherwise a sixteenth of
/// it.
const RESERVE_MIN: u64 = 256 << 10;
const RESERVE_MAX: u64 = 64 << 20;
/// How often a call that waits for room checks whether the server is back.
const ROOM_LOOK: Duration = Duration::from_millis(500);
/// How many numbers for new files are fetched at once; and below how many left the next ones are fetched.
const NUMBERS_FETCHED: u64 = 8192;
const NUMBERS_LOW: u64 = 4096;
/// Most users and groups for which numbers are fetched before they are needed.
const AHEAD_MAX: usize = 16;
/// How long a call waits for a fresh view before it is answered from the local state.
const FRESH_PATIENCE: Duration = Duration::from_secs(2);
/// How often a server that is connected but did not answer is tried again.
const PROBE_PAUSE: Duration = Duration::from_millis(200);
/// How long an unlock waits until the data written under the lock is at the server.
const UNLOCK_PATIENCE: Duration = Duration::from_secs(60);
/// Most conflict reports remembered.
const TOLD_MAX: usize = 1000;
/// Most paths listed as not yet sent.
const PATHS_MAX: usize = 100;

/// Options of write-back.
#[derive(Clone, Debug)]
pub struct WriteBackOptions {
    /// Directory of the journal, which one process at a time may use.
    pub directory: PathBuf,
    /// Most bytes that the journal may take.
    pub bytes_max: u64,
    /// Directory into which edits are saved that the server will never accept.
    pub salvage_dir: PathBuf,
    /// Name of this device in the file names of conflict copies.
    pub name: String,
    /// How long an edit waits for others that can be sent with it.
    pub gather: Duration,
    /// Whether this mount only gathers: edits are made here only while files are held exclusively, and
    /// otherwise go straight to the server; `fsync` always waits for the server.
    pub gathers: bool,
    /// How long a call waits for the server.
    pub patience: Duration,
}

/// Default time for which edits wait. Programs make, write and rename files in a row, and much of that
/// cancels out.
pub const GATHER: Duration = Duration::from_millis(300);

/// Reports an edit that could not be made as intended, because another device had changed the same file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConflictReport {
    /// Path of the file.
    pub path: String,
    /// What happened, in words, and where both versions are.
    pub what: String,
    /// Time of the conflict, in nanoseconds since the epoch.
    pub at_ns: i64,
}

/// Status of write-back.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WriteBackStatus {
    /// Whether changes are only gathered for a moment, under a delegation.
    pub gathers: bool,
    /// Whether changes are gathered now.
    pub gathering: bool,
    /// Number of edits that are not at the server yet.
    pub edits: u64,
    /// When the oldest of them was made, nanoseconds since the epoch.
    pub oldest_ns: Option<i64>,
    /// Files that these edits concern, a hundred at most.
    pub paths: Vec<String>,
    /// Size of the journal, in bytes.
    pub journal_bytes: u64,
    /// While the server is away: how many bytes may still be written.
    pub room_left: Option<u64>,
    /// Whether the server is away, so that calls are answered from the local state.
    pub away: bool,
    /// Why the last attempt to send failed.
    pub trouble: Option<String>,
    /// Conflicts since the start, newest last.
    pub conflicts: Vec<ConflictReport>,
}

struct LocalState {
    /// The newest verified view.
    base: Arc<dyn View>,
    /// Grows by one with every change of what programs see.
    position: u64,
    overlay: Overlay,
    /// Edits that are not at the server, oldest first.
    queue: VecDeque<Arc<Record>>,
    /// Number of changes in the queued edits.
    changes: usize,
    /// About how many bytes of data the queued edits bring.
    bytes: u64,
    /// Number of the last edit that was made here.
    last: u64,
    /// Number of the last edit that is at the server.
    done: u64,
    /// Edits up to this number should be sent now.
    wanted: u64,
    /// Edits up to this number may be at the server without a confirmation so far.
    maybe_sent: u64,
    numbers: Vec<NumberRange>,
    placed: Vec<NameMapping>,
    told: VecDeque<ConflictReport>,
    trouble: Option<FsError>,
    /// Number of attempts to send that failed.
    troubles: u64,
    /// Why an edit was given up, until an fsync has reported it.
    given_up: Option<FsError>,
    gathering: gather::Gathering,
    /// Why nothing more will be sent: the server broke the order, or this machine failed.
    ended: Option<FsError>,
    stopping: bool,
}

#[derive(Default)]
struct Fetching {
    asked: u64,
    started: u64,
    done: u64,
    last: Option<FsError>,
}

/// What callers, the sender and the fetcher share.
pub struct Shared {
    inner: Arc<dyn Upstream>,
    journal: Arc<Journal>,
    options: WriteBackOptions,
    local: Mutex<LocalState>,
    /// Notified when there is something to send, when something was sent, and at the end.
    changed: Condvar,
    fetching: Mutex<Fetching>,
    fetched: Condvar,
    /// Whether the server is considered away because it did not answer.
    away: AtomicBool,
    /// Whether numbers for new files are being fetched.
    numbering: AtomicBool,
    paths: RwLock<Vec<PathOf>>,
    hook: OnceLock<ConflictHook>,
    pending: gather::PendingData,
    /// Random number of this run, used where there is no journal.
    stand_in: u128,
}

/// Returns the path of a file as a mount has it; empty if the mount does not have it.
type PathOf = Box<dyn Fn(Handle) -> Vec<u8> + Send + Sync>;

fn lenient(view: Arc<dyn View>) -> Arc<dyn View> {
    view.lenient().unwrap_or(view)
}

/// Whether an edit was made on the local state.
enum LocalOutcome {
    Made,
    /// The lease that the edit needs was recalled meanwhile; the caller tries again.
    NotNow,
    /// The edit concerns files that are not held exclusively, so it must go straight to the server.
    NotHere,
}

/// Called with every conflict. It must not call back into write-back.
pub type ConflictHook = Box<dyn Fn(&ConflictReport) + Send + Sync>;

/// A backend that answers from the local state and sends edits in the background.
pub struct WriteBack {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl WriteBack {
    /// Opens the journal and goes on where an earlier process left off.
    ///
    /// # Errors
    /// [`FsError::Local`]: the journal cannot be used.
    pub(super) fn start(
        inner: Arc<dyn Upstream>,
        options: WriteBackOptions,
    ) -> Result<Arc<WriteBack>, FsError> {
        let key = inner.source().digest_key();
        let (mut journal, mut recovered) = Journal::open(&options.directory, key, options.bytes_max)?;
        let mut told = VecDeque::new();
        if !recovered.damaged.is_empty() {
            told = damage::save(&journal, &recovered, &options.salvage_dir, key)?.into();
            journal.remove_damage(&recovered)?;
            (journal, recovered) = Journal::open(&options.directory, key, options.bytes_max)?;
        }
        let cache = inner.clone();
        journal.on_full(Box::new(move |bytes| cache.make_room(bytes)));
        let standing = recovered.standing;
        let mut overlay = Overlay::default();
        recovered.records.iter().for_each(|record| overlay.lay(record));
        let local = LocalState {
            base: match options.gathers {
                true => inner.latest(),
                false => lenient(inner.latest()),
            },
            position: 1,
            overlay,
            changes: recovered.records.iter().map(Record::changes).sum(),
            bytes: recovered.records.iter().map(Record::bytes).sum(),
            last: recovered.records.last().map_or(standing.done, |record| record.number),
            done: standing.done,
            wanted: 0,
            maybe_sent: standing.sending,
            numbers: standing.numbers,
            placed: standing.placed,
            told,
            trouble: None,
            troubles: 0,
            given_up: None,
            gathering: gather::Gathering::default(),
            ended: None,
            stopping: false,
            queue: recovered.records.into_iter().map(Arc::new).collect(),
        };
        if !local.queue.is_empty() {
            tracing::info!(edits = local.queue.len(), "an earlier run left edits to be sent");
        }
        let shared = Arc::new(Shared {
            inner,
            journal: Arc::new(journal),
            options,
            local: Mutex::new(local),
            changed: Condvar::new(),
            fetching: Mutex::default(),
            fetched: Condvar::new(),
            away: AtomicBool::new(false),
            numbering: AtomicBool::new(false),
            paths: RwLock::default(),
            hook: OnceLock::new(),
            pending: gather::PendingData::default(),
            stand_in: journal::random()?,
        });
        if shared.options.gathers {
            let looking = Arc::downgrade(&shared);
            shared.inner.before_look(Box::new(move || match looking.upgrade() {
                Some(shared) => Ok(Box::new(shared.begin_look()?)),
                None => Ok(Box::new(())),
            }));
        }
        let run = |name: &str, body: fn(&Arc<Shared>)| {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name(format!("holdfast-{name}"))
                .spawn(move || body(&shared))
                .map_err(|error| FsError::local("starting a thread", &error))
        };
        let mut threads = vec![run("send", sender::run)?, run("fetch", Shared::fetch_for_callers)?];
        if !shared.options.gathers {
            threads.push(run("numbers", Shared::fetch_numbers_ahead)?);
        }
        Ok(Arc::new(WriteBack { shared, threads: Mutex::new(threads) }))
    }

    /// The engine behind this write-back.
    pub(super) fn engine(&self) -> Arc<dyn Upstream> {
        self.shared.inner.clone()
    }

    /// Registers a function that finds the path under which a mount has a file, for conflict reports.
    pub(super) fn tell_paths(&self, paths: PathOf) {
        self.shared.paths.write().push(paths);
    }

    /// The status of write-back.
    pub fn status(&self) -> WriteBackStatus {
        let journal_bytes = self.shared.journal.bytes();
        let (gathering, room_left) = (self.shared.is_gathering(), self.shared.room_left());
        let local = self.shared.local.lock();
        let mut paths: Vec<String> = Vec::new();
        for change in local.queue.iter().flat_map(|record| &record.inodes) {
            let path = String::from_utf8_lossy(&change.path).into_owned();
            if !path.is_empty() && !paths.contains(&path) {
                paths.push(path);
            }
            if paths.len() == PATHS_MAX {
                break;
            }
        }
        WriteBackStatus {
            gathers: self.shared.options.gathers,
            gathering,
            edits: local.queue.len() as u64,
            oldest_ns: local.queue.front().map(|record| record.at_ns),
            paths,
            journal_bytes,
            room_left,
            away: self.shared.away.load(SeqCst) || !self.shared.inner.is_reachable(),
            trouble: local.ended.as_ref().or(local.trouble.as_ref()).map(ToString::to_string),
            conflicts: local.told.iter().cloned().collect(),
        }
    }

    /// Registers, once, the hook that is called with conflicts.
    pub fn on_conflict(&self, hook: ConflictHook) {
        let _ = self.shared.hook.set(hook);
    }

    /// Waits, for at most `patience`, until everything made so far is at the server. Returns whether it is.
    ///
    /// # Errors
    /// [`FsError::Frozen`] or [`FsError::Local`]: the edits can never be sent; [`FsError::Interrupted`].
    pub fn settle(&self, patience: Duration) -> Result<bool, FsError> {
        self.shared.settle(patience)
    }

    /// Called when a lease or the delegation is recalled: sends the edits that rest on it. When this returns,
    /// the recall may be acknowledged.
    pub(super) fn recalled(&self) {
        self.shared.recalled();
    }

    /// Stops sending; what is left stays in the journal for the next start.
    pub fn stop(&self) {
        self.shared.local.lock().stopping = true;
        self.shared.changed.notify_all();
        self.shared.fetched.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A thread that waits for an absent server ends when its request does. What it sends is in the
            // journal.
            let end = Instant::now() + Duration::from_secs(5);
            while !thread.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(2));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }

    /// Saves every file that is not at the server yet to a folder, for when nothing can be sent any more.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`].
    pub fn save(&self, reason: &str) -> Result<Option<super::SalvageReport>, FsError> {
        let records: Vec<Arc<Record>> = self.shared.local.lock().queue.iter().cloned().collect();
        sender::save(&self.shared, &records, reason)
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        self.stop();
    }
}
