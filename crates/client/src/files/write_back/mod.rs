//! Write-back: edits and data are made durable in a local journal, and sent on in the background.
//!
//! [`WriteBack`] stands between files and the engine. An edit is planned on the file system as it is *here*: the newest
//! verified view with everything laid over it that is not at the server yet ([`overlay`]). It is journaled with what it
//! saw and what it made of it ([`journal`]), and answered. `close` and `fsync` wait for the journal's disk, not for the
//! server. A thread takes edits from the front of the queue, many at once, and makes their *net* effect as one signed
//! operation ([`sender`]); what others have changed meanwhile is found there, at its place in the order, by comparing
//! what the edit saw with what is there now ([`replay`]).
//!
//! Invariants:
//! - what a program was told to be saved is at the server or in the journal, through any crash of either side;
//! - edits reach the server in their order, each once;
//! - nothing that somebody else has made is destroyed unseen, and nothing made here is: of every conflict both sides
//!   stay, and the user is told;
//! - an edit that the server will never take is saved to a folder and told of, so it never holds up those behind it;
//! - while the server is away, calls are answered from what is known here, at once.
//!
//! That is `--write-back`. Other mounts *gather* ([`gather`]): the same while a delegation makes sure that nobody else
//! changes anything, and else straight to the server.

mod gather;
mod journal;
mod overlay;
mod record;
mod replay;
mod sender;

use super::backend::{Backend, Guard, Leased, Names, PathOf, Plan, Upload, View};
use super::state::content_roots;
use super::{Expected, Ino};
use crate::engine::{LockPlace, Notice, PastState};
use crate::error::FsError;
use crate::interrupt::{self, Woken};
use crate::store::{About, TransferMode};
use holdfast_content::{
    Block, BlockKind, BlockSink, BlockSource, Content, ContentError, DeviceId, Entry, Handle, Inode,
    Membership, PrincipalId, Reference, SourceError, UserId,
};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::message::{LockHolder, LockMode, LockSpace, Usage};
use journal::{Journal, Numbers, Placed, Writing};
use overlay::{LiveView, Overlay, Planning};
use parking_lot::{Condvar, Mutex, RwLock};
use record::Record;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) use super::now_ns;

/// Most things changed that wait to be sent; beyond it, whoever changes more waits.
const CHANGES_MAX: usize = 400_000;
/// Numbers for new files fetched at once, and how few left mean that it is time.
const NUMBERS_FETCHED: u64 = 8192;
const NUMBERS_LOW: u64 = 4096;
/// Most users and groups for which they are fetched before they are needed.
const AHEAD_MAX: usize = 16;
/// How long a call waits for a fresh view before it is answered from what is known.
const FRESH_PATIENCE: Duration = Duration::from_secs(2);
/// How often it is tried whether a server that is connected answers again.
const PROBE_PAUSE: Duration = Duration::from_millis(200);
/// How long an unlock waits for what was written under the lock to be at the server.
const UNLOCK_PATIENCE: Duration = Duration::from_secs(60);
/// Most conflicts remembered for people.
const TOLD_MAX: usize = 1000;
/// Most paths that are listed as not yet sent.
const PATHS_MAX: usize = 100;

/// How write-back is set up.
#[derive(Clone, Debug)]
pub struct WriteBackOptions {
    /// Where the journal is; one process at a time.
    pub directory: PathBuf,
    /// Most bytes it may take.
    pub bytes_max: u64,
    /// Where edits are saved that the server will never take.
    pub salvage_dir: PathBuf,
    /// What to call this device's versions in names of conflicts.
    pub name: String,
    /// How long an edit waits for others to be sent with it.
    pub gather: Duration,
    /// Only under a delegation edits are made here; else they go straight to the server, and `fsync` waits for it always.
    pub gathers: bool,
    /// How long a call waits for the server.
    pub patience: Duration,
}

/// How long edits wait by default: programs make files, write and rename them in a row, and much of it cancels out.
pub const GATHER: Duration = Duration::from_millis(300);

/// Something that could not be made as it was meant, because others had changed the same.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Told {
    /// The file.
    pub path: String,
    /// What happened, in words, and where both sides are.
    pub what: String,
    /// When, nanoseconds since the epoch.
    pub at_ns: i64,
}

/// How things stand.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WriteBackStatus {
    /// Only under a delegation changes are kept here for a moment.
    pub gathers: bool,
    /// There is one.
    pub gathering: bool,
    /// Edits that are not at the server yet.
    pub edits: u64,
    /// When the oldest of them was made, nanoseconds since the epoch.
    pub oldest_ns: Option<i64>,
    /// Files that they concern, a hundred at most.
    pub paths: Vec<String>,
    /// Bytes of the journal.
    pub journal_bytes: u64,
    /// Whether the server is away, so that calls are answered from what is known here.
    pub away: bool,
    /// Why the last attempt to send failed.
    pub trouble: Option<String>,
    /// Conflicts since the start, newest last.
    pub conflicts: Vec<Told>,
}

struct Local {
    /// The newest verified view.
    base: Arc<dyn View>,
    /// Grows with every change of what programs see.
    position: u64,
    overlay: Overlay,
    /// Edits that are not at the server, oldest first.
    queue: VecDeque<Arc<Record>>,
    /// Things that they change.
    changes: usize,
    /// About how many bytes of data they bring.
    bytes: u64,
    /// The last edit made.
    last: u64,
    /// The last edit that is at the server.
    done: u64,
    /// Edits up to this one are wanted at the server now.
    wanted: u64,
    /// Edits up to this one may be at the server without our knowing.
    maybe_sent: u64,
    numbers: Vec<Numbers>,
    placed: Vec<Placed>,
    told: VecDeque<Told>,
    trouble: Option<FsError>,
    /// How often there was any.
    troubles: u64,
    /// Why something was given up, until an fsync has said so.
    given_up: Option<FsError>,
    gathering: gather::Gathering,
    /// Nothing more will be sent: the order was found wrong, or this machine failed.
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
    inner: Arc<dyn Backend>,
    journal: Arc<Journal>,
    options: WriteBackOptions,
    local: Mutex<Local>,
    /// Something to send, something sent, or the end.
    changed: Condvar,
    fetching: Mutex<Fetching>,
    fetched: Condvar,
    /// The server does not answer.
    away: AtomicBool,
    /// Numbers are being fetched.
    numbering: AtomicBool,
    paths: RwLock<Vec<PathOf>>,
    hook: OnceLock<ToldHook>,
    on_its_way: gather::OnItsWay,
    /// Names this run where the journal cannot.
    stand_in: u128,
}

/// Whether an edit was made here.
enum Made {
    Yes,
    /// It must go straight to the server.
    NotHere,
}

/// A view as the backend calls it.
struct FixedView {
    view: Arc<dyn View>,
    position: u64,
}

/// Called with every conflict. It must not call back.
pub type ToldHook = Box<dyn Fn(&Told) + Send + Sync>;

/// A backend that answers from here and sends in the background.
pub struct WriteBack {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl WriteBack {
    /// Opens the journal and goes on where an earlier process left off.
    ///
    /// # Errors
    /// [`FsError::Local`]: the journal cannot be used.
    pub fn start(inner: Arc<dyn Backend>, options: WriteBackOptions) -> Result<Arc<WriteBack>, FsError> {
        let key = inner.source().digest_key();
        let (journal, recovered) = Journal::open(&options.directory, key)?;
        for damage in &recovered.damaged {
            tracing::error!(damage, "edits that were not at the server yet are lost from the journal");
        }
        let standing = recovered.standing;
        let mut overlay = Overlay::default();
        recovered.records.iter().for_each(|record| overlay.lay(record));
        let now = now_ns();
        let damage = recovered.damaged.into_iter().map(|what| Told { path: String::new(), what, at_ns: now });
        let local = Local {
            base: inner.latest(),
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
            told: damage.collect(),
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
            on_its_way: gather::OnItsWay::default(),
            stand_in: journal::random()?,
        });
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

    /// How things stand.
    pub fn status(&self) -> WriteBackStatus {
        let journal_bytes = self.shared.journal.bytes();
        let gathering = self.shared.is_gathering();
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
            away: self.shared.away.load(SeqCst) || !self.shared.inner.is_reachable(),
            trouble: local.ended.as_ref().or(local.trouble.as_ref()).map(ToString::to_string),
            conflicts: local.told.iter().cloned().collect(),
        }
    }

    /// Registers who is told of conflicts. Once.
    pub fn on_told(&self, hook: ToldHook) {
        let _ = self.shared.hook.set(hook);
    }

    /// Waits until everything made so far is at the server, for at most `patience`. Whether it is.
    ///
    /// # Errors
    /// [`FsError::Frozen`] or [`FsError::Local`]: it never will be; [`FsError::Interrupted`].
    pub fn settle(&self, patience: Duration) -> Result<bool, FsError> {
        self.shared.settle(patience)
    }

    /// A lease or the delegation is recalled: what rests on it is sent. The recall may be acknowledged when this returns.
    pub(super) fn recalled(&self) {
        self.shared.recalled();
    }

    /// Stops sending; what is left stays in the journal for the next start.
    pub fn stop(&self) {
        self.shared.local.lock().stopping = true;
        self.shared.changed.notify_all();
        self.shared.fetched.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // One that waits for a server that is away ends with its request; what it sends is in the journal.
            let end = Instant::now() + Duration::from_secs(5);
            while !thread.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(2));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }

    /// Saves every file that is not at the server yet to a folder: nothing can be sent any more.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`].
    pub fn save(&self, reason: &str) -> Result<Option<super::Salvaged>, FsError> {
        let records: Vec<Arc<Record>> = self.shared.local.lock().queue.iter().cloned().collect();
        sender::save(&self.shared, &records, reason)
    }
}

impl Drop for WriteBack {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn view(self: &Arc<Self>) -> Arc<dyn View> {
        let local = self.local.lock();
        match self.options.gathers && local.overlay.is_empty() {
            // What others do may come at any time, so all of an answer must be of one view.
            true => Arc::new(Self::fixed(&local)),
            false => Arc::new(LiveView { shared: self.clone(), position: local.position }),
        }
    }

    /// Takes a view that was verified; views never go back.
    fn accept(&self, view: Arc<dyn View>) {
        let mut local = self.local.lock();
        if view.position() > local.base.position() {
            local.base = view;
            local.position += 1;
        }
    }

    /// A path for people and for conflicts; empty if no mount knows it.
    fn path(&self, handle: Handle) -> Vec<u8> {
        let known = self.paths.read().iter().map(|path| path(handle)).find(|path| !path.is_empty());
        known.unwrap_or_default()
    }

    fn path_text(&self, handle: Handle) -> String {
        String::from_utf8_lossy(&self.path(handle)).into_owned()
    }

    /// Blocks, wherever they are.
    fn source(&self) -> Arc<dyn BlockSource + Send + Sync> {
        Arc::new(Layered {
            held: self.on_its_way.held.clone(),
            journal: self.journal.clone(),
            inner: self.inner.source(),
        })
    }

    /// Where new blocks go.
    fn sink(&self) -> JournalSink {
        let writing = self.journal.writing();
        JournalSink { journal: self.journal.clone(), key: self.source().digest_key(), failed: None, writing }
    }

    /// Makes an edit here, wherever the server is.
    fn modify(self: &Arc<Self>, plan: &Mutex<dyn Plan>) -> Result<(), FsError> {
        self.wait_for_room()?;
        self.modify_here(plan).map(drop)
    }

    /// Makes an edit here.
    fn modify_here(self: &Arc<Self>, plan: &Mutex<dyn Plan>) -> Result<Made, FsError> {
        loop {
            let (started, done, begun) = {
                let local = self.local.lock();
                if let Some(ended) = &local.ended {
                    return Err(ended.clone());
                }
                (local.last, local.done, Self::begun(&local))
            };
            let mut planning = Planning::new(self.clone());
            let planned = plan.lock().plan(&mut planning);
            if let Err(error) = planned {
                self.give_back(planning.taken());
                return Err(error);
            }
            if planning.is_empty() {
                // It may have taken a number all the same: for a file without a name.
                plan.lock().ordered();
                return Ok(Made::Yes);
            }
            let mut record = None;
            {
                let mut local = self.local.lock();
                if !self.stays_here(&local, begun) {
                    drop(local);
                    self.give_back(planning.taken());
                    return Ok(Made::NotHere);
                }
                // What was sent meanwhile may no longer be told apart from what was there before.
                if local.done == done && !planning.is_outdated(&local.overlay, started) {
                    let mut made = planning.into_record(&|handle| self.path(handle));
                    made.number = local.last + 1;
                    if let Err(error) = self.journal.note(&made) {
                        drop(local);
                        self.give_back(&made.taken);
                        return Err(error);
                    }
                    local.last = made.number;
                    local.overlay.lay(&made);
                    local.position += 1;
                    local.changes += made.changes();
                    local.bytes += made.bytes();
                    if self.options.gathers && local.bytes > self.bytes_waiting_max() / 2 {
                        local.wanted = local.last;
                    }
                    let made = Arc::new(made);
                    local.queue.push_back(made.clone());
                    record = Some(made);
                } else {
                    drop(local);
                    self.give_back(planning.taken());
                }
            }
            if record.is_some() {
                plan.lock().ordered();
                self.changed.notify_all();
                return Ok(Made::Yes);
            }
        }
    }

    /// Holds up whoever writes faster than can be sent, once the journal is full.
    fn wait_for_room(&self) -> Result<(), FsError> {
        let mut local = self.local.lock();
        while local.changes > CHANGES_MAX || self.journal.bytes() > self.options.bytes_max {
            if let Some(ended) = &local.ended {
                return Err(ended.clone());
            }
            if self.is_away() || local.queue.is_empty() {
                return Err(FsError::NoSpace);
            }
            local.wanted = local.last;
            self.changed.notify_all();
            let soon = Instant::now() + Duration::from_millis(500);
            if interrupt::wait(&self.changed, &mut local, Some(soon)) == Woken::Interrupted {
                return Err(FsError::Interrupted);
            }
        }
        Ok(())
    }

    fn is_away(&self) -> bool {
        self.away.load(SeqCst) || !self.inner.is_reachable()
    }

    /// A number for a new file.
    fn take_number(self: &Arc<Self>, principal: PrincipalId) -> Result<Handle, FsError> {
        for attempt in 0.. {
            let left = {
                let mut local = self.local.lock();
                let mine = |numbers: &&mut Numbers| numbers.principal == principal && numbers.count > 0;
                let taken = local.numbers.iter_mut().find(mine).map(|numbers| {
                    numbers.first += 1;
                    numbers.count -= 1;
                    Handle { principal, number: numbers.first - 1 }
                });
                local.numbers.retain(|numbers| numbers.count > 0);
                let left = local.numbers.iter().filter(|numbers| numbers.principal == principal);
                (taken, left.map(|numbers| numbers.count).sum::<u64>())
            };
            match left {
                (Some(handle), left) => {
                    if left < NUMBERS_LOW && !self.is_away() && !self.numbering.swap(true, SeqCst) {
                        let shared = self.clone();
                        std::thread::spawn(move || {
                            let _ = shared.fetch_numbers(principal);
                            shared.numbering.store(false, SeqCst);
                        });
                    }
                    return Ok(handle);
                }
                // Who gathers only for as long as the server is there waits for it, as for any other operation.
                (None, _) if attempt == 0 && self.is_away() && !self.options.gathers => {
                    let why = "new files need numbers from the server, and it is away".to_owned();
                    return Err(FsError::Unreachable(why));
                }
                (None, _) if attempt == 0 => self.fetch_numbers(principal)?,
                (None, _) => break,
            }
        }
        Err(FsError::NoSpace)
    }

    /// Fetches numbers for whatever this device may write, so that files can be made wherever it is when the server
    /// goes away.
    fn fetch_numbers_ahead(self: &Arc<Self>) {
        let view = self.inner.latest();
        let mine = view.principals().into_iter().filter(|principal| view.may_write(*principal));
        for principal in mine.take(AHEAD_MAX) {
            let (left, stopping) = {
                let local = self.local.lock();
                let numbers = local.numbers.iter().filter(|numbers| numbers.principal == principal);
                (numbers.map(|numbers| numbers.count).sum::<u64>(), local.stopping)
            };
            if stopping || left >= NUMBERS_LOW {
                continue;
            }
            if let Err(error) = self.fetch_numbers(principal) {
                tracing::debug!(%error, %principal, "no numbers for new files yet");
                return;
            }
        }
    }

    /// Reserves numbers for new files at the server.
    fn fetch_numbers(&self, principal: PrincipalId) -> Result<(), FsError> {
        let plan =
            Arc::new(Mutex::new(sender::Reserve { principal, count: NUMBERS_FETCHED, got: Vec::new() }));
        self.inner.modify(plan.clone())?;
        self.inner.flush_commits()?;
        for numbers in std::mem::take(&mut plan.lock().got) {
            self.journal.add_numbers(numbers)?;
            self.local.lock().numbers.push(numbers);
        }
        Ok(())
    }

    fn give_back(&self, taken: &[Handle]) {
        let mut local = self.local.lock();
        for handle in taken {
            local.numbers.push(Numbers { principal: handle.principal, first: handle.number, count: 1 });
        }
    }

    /// A fresh view, if one is to be had soon; otherwise what is known.
    fn fetch(self: &Arc<Self>) -> Result<Arc<dyn View>, FsError> {
        if let Some(ended) = &self.local.lock().ended {
            return Err(ended.clone());
        }
        if !self.is_away() {
            let end = Instant::now() + FRESH_PATIENCE;
            let mut fetching = self.fetching.lock();
            // One that is under way began before this call did.
            let mine = fetching.started + 1;
            fetching.asked = fetching.asked.max(mine);
            self.fetched.notify_all();
            while fetching.done < mine {
                match interrupt::wait(&self.fetched, &mut fetching, Some(end)) {
                    Woken::Notified => {}
                    Woken::Interrupted => return Err(FsError::Interrupted),
                    Woken::Late => {
                        self.note_away(true);
                        break;
                    }
                }
            }
            if let Some(error @ FsError::Frozen(_)) = &fetching.last {
                return Err(error.clone());
            }
        }
        Ok(self.view())
    }

    fn note_away(&self, away: bool) {
        if self.away.swap(away, SeqCst) != away {
            match away {
                true if self.options.gathers => tracing::warn!("the server is away"),
                true => tracing::warn!("the server is away; what is known here is shown, and edits are kept"),
                false => tracing::info!("the server is back"),
            }
            self.changed.notify_all();
        }
    }

    /// Fetches views for callers, and while the server is away to find out when it is back.
    fn fetch_for_callers(self: &Arc<Self>) {
        loop {
            {
                let mut fetching = self.fetching.lock();
                while fetching.asked <= fetching.started {
                    if self.local.lock().stopping {
                        return;
                    }
                    let pause = if self.away.load(SeqCst) { PROBE_PAUSE } else { Duration::from_secs(1) };
                    let late = self.fetched.wait_until(&mut fetching, Instant::now() + pause).timed_out();
                    if late && self.away.load(SeqCst) && self.inner.is_reachable() {
                        fetching.asked = fetching.started + 1;
                    }
                }
                fetching.started += 1;
            }
            let result = self.inner.fetch();
            let error = match result {
                Ok(view) => {
                    self.accept(view);
                    self.note_away(false);
                    None
                }
                Err(error) => {
                    self.note_away(matches!(error, FsError::Unreachable(_)));
                    Some(error)
                }
            };
            let mut fetching = self.fetching.lock();
            fetching.done = fetching.started;
            fetching.last = error;
            self.fetched.notify_all();
        }
    }

    fn settle(&self, patience: Duration) -> Result<bool, FsError> {
        let end = Instant::now() + patience;
        let mut local = self.local.lock();
        let target = local.last;
        local.wanted = local.wanted.max(target);
        self.changed.notify_all();
        while local.done < target {
            if let Some(ended) = &local.ended {
                return Err(ended.clone());
            }
            match interrupt::wait(&self.changed, &mut local, Some(end)) {
                Woken::Notified => {}
                Woken::Late => return Ok(false),
                Woken::Interrupted => return Err(FsError::Interrupted),
            }
        }
        Ok(true)
    }

    fn note_trouble(&self, trouble: FsError) {
        let mut local = self.local.lock();
        local.troubles += 1;
        local.trouble = Some(trouble);
        drop(local);
        self.changed.notify_all();
    }

    fn tell(&self, told: Vec<Told>) {
        let mut local = self.local.lock();
        for told in told {
            tracing::warn!(path = told.path, "{}", told.what);
            if let Some(hook) = self.hook.get() {
                hook(&told);
            }
            if local.told.len() == TOLD_MAX {
                local.told.pop_front();
            }
            local.told.push_back(told);
        }
    }
}

impl Backend for WriteBack {
    fn fetch(&self) -> Result<Arc<dyn View>, FsError> {
        match self.shared.options.gathers {
            true => self.shared.fetch_gathering(),
            false => self.shared.fetch(),
        }
    }

    fn modify(&self, plan: Arc<Mutex<dyn Plan>>) -> Result<Arc<dyn View>, FsError> {
        match self.shared.options.gathers {
            true => self.shared.gather(plan)?,
            false => self.shared.modify(&plan)?,
        }
        Ok(self.shared.view())
    }

    fn latest(&self) -> Arc<dyn View> {
        self.shared.accept(self.shared.inner.latest());
        self.shared.view()
    }

    fn source(&self) -> Arc<dyn BlockSource + Send + Sync> {
        self.shared.source()
    }

    fn leased(&self, files: &[Handle]) -> Option<Leased> {
        let Leased { view, stamp } = self.shared.inner.leased(files)?;
        self.shared.accept(view);
        Some(Leased { view: self.shared.view(), stamp })
    }

    fn leased_for(&self, stamp: u64, files: &[Handle]) -> Option<Duration> {
        self.shared.inner.leased_for(stamp, files)
    }

    fn want_lease(&self, file: Handle) {
        self.shared.inner.want_lease(file);
    }

    fn upload(&self, about: About) -> Box<dyn Upload + '_> {
        match self.shared.options.gathers {
            true => Box::new(self.shared.gathering_sink(about)),
            false => Box::new(self.shared.sink()),
        }
    }

    fn transfer_mode(&self) -> TransferMode {
        self.shared.inner.transfer_mode()
    }

    fn approach(&self, file: Handle, path: &[u8], inode: &Inode) {
        if !content_roots(inode).iter().any(|root| self.shared.journal.contains(root)) {
            self.shared.inner.approach(file, path, inode);
        }
    }

    fn approach_all(&self, files: &[Expected]) {
        self.shared.inner.approach_all(files);
    }

    fn saw(&self, file: Handle, path: Vec<u8>, inode: &Inode) {
        // What is only in the journal is seen when it is sent.
        if !content_roots(inode).iter().any(|root| self.shared.journal.contains(root)) {
            self.shared.inner.saw(file, path, inode);
        }
    }

    fn ahead_bytes(&self) -> u64 {
        self.shared.inner.ahead_bytes()
    }

    fn has_read(&self, ino: Ino, bytes: usize) {
        self.shared.inner.has_read(ino, bytes);
    }

    fn room(&self, bytes: u64) -> Result<(), FsError> {
        self.shared.inner.room(bytes)
    }

    fn quota(&self) -> Option<Usage> {
        self.shared.inner.quota()
    }

    fn has_written(&self, ino: Ino, bytes: usize) {
        self.shared.inner.has_written(ino, bytes);
    }

    fn membership(&self) -> Arc<Membership> {
        self.shared.inner.membership()
    }

    fn past_states(&self) -> Result<Arc<Vec<PastState>>, FsError> {
        self.shared.inner.past_states()
    }

    fn past(&self, state: &PastState) -> Result<Arc<dyn View>, FsError> {
        self.shared.inner.past(state)
    }

    fn device(&self) -> DeviceId {
        self.shared.inner.device()
    }

    fn user(&self) -> UserId {
        self.shared.inner.user()
    }

    /// Durable means: in the journal, or, where edits are only gathered, at the server.
    fn flush_commits(&self) -> Result<(), FsError> {
        match self.shared.options.gathers {
            true => self.shared.flush_gathered(),
            false => self.shared.journal.sync(),
        }
    }

    fn keep_commits(&self) -> Result<(), FsError> {
        match self.shared.options.gathers {
            true => self.shared.flush_straight(),
            false => self.shared.journal.sync(),
        }
    }

    fn content_error(&self, handle: Handle, path: String, inode: &Inode, error: ContentError) -> FsError {
        self.shared.inner.content_error(handle, path, inode, error)
    }

    fn pin(&self, roots: Vec<Digest>) -> Guard {
        let here = self.shared.journal.hold(&roots);
        // What the server does not have yet it cannot keep.
        let there: Vec<Digest> =
            roots.into_iter().filter(|root| !self.shared.journal.contains(root)).collect();
        let there = (!there.is_empty()).then(|| self.shared.inner.pin(there));
        Box::new((here, there))
    }

    /// Whoever takes a lock wants to see what others wrote under it, and others what was written here before.
    fn lock(&self, place: &LockPlace, mode: LockMode, wait: bool) -> Result<Option<LockHolder>, FsError> {
        if self.shared.options.gathers {
            self.shared.drain()?;
            return self.shared.inner.lock(place, mode, wait);
        }
        self.settled()?;
        let held = self.shared.inner.lock(place, mode, wait)?;
        if held.is_none() {
            self.shared.accept(self.shared.inner.fetch()?);
        }
        Ok(held)
    }

    fn test_lock(&self, place: &LockPlace, mode: LockMode) -> Result<Option<LockHolder>, FsError> {
        self.shared.inner.test_lock(place, mode)
    }

    fn unlock(&self, place: &LockPlace) {
        let patience = if self.shared.is_away() { Duration::ZERO } else { UNLOCK_PATIENCE };
        match self.shared.settle(patience) {
            Ok(true) => {}
            // The lock lapses at the server as this machine's others do while it is away; what was written under it
            // is compared with what is there before it counts.
            _ => tracing::warn!("a lock is given up before what was written under it is at the server"),
        }
        self.shared.inner.unlock(place);
    }

    fn holds_locks(&self, file: Handle, space: LockSpace, owner: u64) -> bool {
        self.shared.inner.holds_locks(file, space, owner)
    }

    fn notices(&self) -> Vec<Notice> {
        self.shared.inner.notices()
    }

    fn is_reachable(&self) -> bool {
        match self.shared.options.gathers {
            true => self.shared.inner.is_reachable(),
            false => !self.shared.is_away(),
        }
    }

    fn tell_paths(&self, paths: PathOf) {
        self.shared.paths.write().push(paths);
    }
}

impl WriteBack {
    /// Everything is at the server, or the call fails.
    fn settled(&self) -> Result<(), FsError> {
        if self.shared.is_away() {
            return Err(FsError::Unreachable("locks are the server's, and it is away".to_owned()));
        }
        match self.shared.settle(UNLOCK_PATIENCE)? {
            true => Ok(()),
            false => {
                let why = "what was changed here before could not be sent in time".to_owned();
                Err(FsError::Unreachable(why))
            }
        }
    }
}

impl View for FixedView {
    fn position(&self) -> u64 {
        self.position
    }

    fn inode(&self, handle: Handle) -> Result<Arc<Inode>, FsError> {
        self.view.inode(handle)
    }

    fn entry(&self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
        self.view.entry(directory, name)
    }

    fn entries(&self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError> {
        self.view.entries(directory, after, limit)
    }

    fn may_write(&self, principal: PrincipalId) -> bool {
        self.view.may_write(principal)
    }

    fn principals(&self) -> Vec<PrincipalId> {
        self.view.principals()
    }

    fn name_of(&self, principal: PrincipalId) -> String {
        self.view.name_of(principal)
    }
}

/// Blocks on their way, of the journal, and of the engine.
struct Layered {
    held: Arc<gather::HeldBlocks>,
    journal: Arc<Journal>,
    inner: Arc<dyn BlockSource + Send + Sync>,
}

impl BlockSource for Layered {
    fn digest_key(&self) -> DigestKey {
        self.inner.digest_key()
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let here = self.held.get(&reference.address);
        match here.or_else(|| self.journal.get(&reference.address).map(Arc::new)) {
            Some(block) if block.kind() == kind && block.reference() == *reference => Ok(block),
            _ => self.inner.fetch(reference, kind),
        }
    }

    fn prefetch(&self, references: &[(Reference, BlockKind)]) {
        let is_here = |address: &Digest| self.held.get(address).is_some() || self.journal.contains(address);
        let missing = references.iter().filter(|(reference, _)| !is_here(&reference.address));
        self.inner.prefetch(&missing.copied().collect::<Vec<_>>());
    }
}

/// New blocks on their way into the journal.
struct JournalSink {
    journal: Arc<Journal>,
    key: DigestKey,
    failed: Option<FsError>,
    writing: Writing,
}

impl JournalSink {
    fn finish(self) -> Result<Writing, FsError> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok(self.writing),
        }
    }
}

impl BlockSink for JournalSink {
    fn digest_key(&self) -> DigestKey {
        self.key
    }

    fn put(&mut self, block: Block) -> Reference {
        if self.failed.is_none() {
            self.failed = self.journal.put(&block).err();
        }
        block.reference()
    }
}

impl Upload for JournalSink {
    fn finish(self: Box<Self>, _: Option<&Content>) -> Result<Guard, FsError> {
        Ok(Box::new(JournalSink::finish(*self)?))
    }
}
