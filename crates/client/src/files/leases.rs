//! Answers requests under leases without asking the server, and decides which names the kernel may cache.
//!
//! A request about files under lease is answered from the newest accepted view, because the lease guarantees
//! that this view is current ([`crate::engine::Engine::leased`]). The rules of [`super::views`] are not
//! needed for it.
//!
//! The kernel may cache *names* that were found, or proven missing, under a lease, for at most
//! [`NAMES_LIVE`]. When a lease is recalled, the client first stops serving anything under it, then makes the
//! kernel forget the names, and only then acknowledges the recall.
//!
//! To forget a name, the kernel takes the lock of its directory. A program may hold that lock while its
//! change waits for another client to acknowledge a recall, and that client may be waiting for this one in
//! the same way. To break such a circle, a recall never waits for the kernel longer than the cached names
//! live. That is why they live so briefly, why a name is given to the kernel only when it is looked up for
//! the second time (most files that are made or removed are looked up once), and why no names are given to it
//! in a directory in which other clients have just changed something.
//!
//! A recall could overtake an answer in two ways. The answer may be read but not sent yet: the gate and the
//! stamp prevent that. Or the kernel has the answer, but the program has not woken up to it yet: see
//! [`WAKING`].

use super::views::FetchedView;
use super::{Attributes, Caller, FileSystem, Ino};
use crate::backend::LeasedView;
use crate::error::FsError;
use holdfast_content::Handle;
use lru::LruCache;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Longest time for which the kernel caches a name. The cache mostly saves looking up the same parent
/// directories for one file after the other; a tenth of a second is long for that.
pub const NAMES_LIVE: Duration = Duration::from_millis(100);
/// A name is given to the kernel if it is looked up twice within this time.
const LOOKED_UP_AGAIN: Duration = Duration::from_secs(2);
/// Most look-ups remembered to find the ones that repeat.
const LOOKED_UP_MAX: NonZeroUsize = NonZeroUsize::new(8192).expect("not zero");
/// When a program goes through a directory, leases are requested for this many files that come next in it.
const LOOK_AHEAD: usize = 256;
/// Most directories for which the number of recent look-ups is remembered.
const LOOKED_INTO_MAX: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");
/// Most names that the kernel may cache at once; after that, it is given no more.
const NAMES_MAX: usize = 8192;
/// For so long after an answer was sent, the program that waited for it may not have received it yet.
const WAKING: Duration = Duration::from_millis(20);
/// After a recall has taken names of a directory from the kernel, no names in that directory are given to it
/// for so long: where a lease changes hands often, forgetting names costs more than looking them up again.
/// After a recall that had to wait for the kernel, no names in any directory are given to it: a program that
/// goes through a tree comes to other directories next.
const CONTENDED: Duration = Duration::from_secs(10);
/// Most directories remembered as contended.
const CONTENDED_MAX: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");
/// Added to the time at which the kernel should have dropped a name, for safety.
const MARGIN: Duration = Duration::from_millis(100);

/// Makes the kernel forget names (each with its directory) and attributes. When the call returns, the kernel
/// has forgotten the attributes. It signals the sender when it has forgotten the names.
pub type Forget = Box<dyn Fn(Vec<(Ino, Box<[u8]>)>, Vec<Ino>, Sender<()>) + Send + Sync>;

/// What the kernel has been allowed to cache, and the hook that makes it forget.
pub(super) struct Kernel {
    /// Held shared while an answer that the kernel may cache is sent; each recall takes it exclusively once.
    gate: RwLock<()>,
    told: Mutex<VecDeque<NameGrant>>,
    /// Digests of names with their directories, and when each was last looked up.
    looked_up: Mutex<LruCache<u64, Instant>>,
    digests: RandomState,
    /// Directories in which a name was looked up without a lease: the last time, and how often in a row.
    looked_into: Mutex<LruCache<Ino, (Instant, u32)>>,
    /// Directories of which a recall took names from the kernel, and when.
    contended: Mutex<LruCache<Ino, Instant>>,
    /// When a recall last had to wait for the kernel.
    waited: Mutex<Option<Instant>>,
    forget: OnceLock<Forget>,
}

impl Default for Kernel {
    fn default() -> Kernel {
        Kernel {
            gate: RwLock::default(),
            told: Mutex::default(),
            looked_up: Mutex::new(LruCache::new(LOOKED_UP_MAX)),
            digests: RandomState::new(),
            looked_into: Mutex::new(LruCache::new(LOOKED_INTO_MAX)),
            contended: Mutex::new(LruCache::new(CONTENDED_MAX)),
            waited: Mutex::new(None),
            forget: OnceLock::new(),
        }
    }
}

impl Kernel {
    /// Notes that a name is looked up. Returns whether the kernel should cache it.
    fn is_worth_keeping(&self, parent: Ino, name: &[u8]) -> bool {
        let now = Instant::now();
        let before = self.looked_up.lock().put(self.digests.hash_one((parent.0, name)), now);
        let is_contended = |at: &Instant| now.duration_since(*at) < CONTENDED;
        before.is_some_and(|at| now.duration_since(at) < LOOKED_UP_AGAIN)
            && !self.waited.lock().as_ref().is_some_and(is_contended)
            && !self.contended.lock().get(&parent).is_some_and(is_contended)
    }

    /// Notes that a name is looked up without a lease. Returns whether the names after it in the directory
    /// are likely to be looked up next: this is assumed at the second look-up in a row, and again at the
    /// third, fifth, ninth and so on.
    fn note_walk(&self, parent: Ino) -> bool {
        let now = Instant::now();
        let mut looked_into = self.looked_into.lock();
        let before = looked_into.get(&parent).filter(|(at, _)| now.duration_since(*at) < LOOKED_UP_AGAIN);
        let before = before.map_or(0, |(_, times)| *times);
        looked_into.put(parent, (now, before.saturating_add(1)));
        before.is_power_of_two()
    }

    /// Notes that a name is moved, or that two names are exchanged. As long as the kernel may cache one of
    /// the names, it may also have the other.
    fn moves(&self, from: (Ino, &[u8]), to: (Ino, &[u8])) {
        let mut told = self.told.lock();
        forget_old(&mut told);
        for (old, new) in [(from, to), (to, from)] {
            let of = |name: (Ino, &[u8]), told: &NameGrant| (told.parent, &*told.name) == name;
            let olds: Vec<(Instant, Option<Ino>)> =
                told.iter().filter(|told| of(old, told)).map(|told| (told.at, told.found)).collect();
            for (at, found) in olds {
                // Each is added once; otherwise names moved back and forth would accumulate.
                if !told.iter().any(|known| of(new, known) && known.found == found && known.at >= at) {
                    told.push_back(NameGrant { at, parent: new.0, name: new.1.into(), found });
                }
            }
        }
        told.make_contiguous().sort_by_key(|told| told.at);
    }
}

/// Drops the names that the kernel no longer caches. The queue is ordered by the time of the grant.
fn forget_old(told: &mut VecDeque<NameGrant>) {
    let now = Instant::now();
    while told.front().is_some_and(|oldest| oldest.at + NAMES_LIVE + MARGIN < now) {
        told.pop_front();
    }
}

struct NameGrant {
    at: Instant,
    parent: Ino,
    name: Box<[u8]>,
    found: Option<Ino>,
}

/// For how long the kernel may cache a name. The answer must be sent while this guard lives.
pub struct NameLife<'a> {
    life: Duration,
    _gate: RwLockReadGuard<'a, ()>,
}

impl NameLife<'_> {
    /// The time for which the kernel may cache the name; zero if it may not.
    pub fn get(&self) -> Duration {
        self.life
    }
}

/// The lease that an answer to a LOOKUP relies on.
#[derive(Clone, Copy, Debug)]
pub struct LeaseBasis {
    stamp: u64,
    directory: Handle,
    found: Option<Handle>,
}

impl FileSystem {
    /// Registers, once, the hook that makes the kernel forget names. Without it, the kernel caches none.
    pub fn on_forget(&self, forget: Forget) {
        let _ = self.kernel.forget.set(forget);
    }

    /// The newest accepted view, if leases guarantee that it is current for these files.
    pub(super) fn leased(&self, files: &[Handle]) -> Option<FetchedView> {
        self.leased_with_stamp(files).map(|(fetched, _)| fetched)
    }

    fn leased_with_stamp(&self, files: &[Handle]) -> Option<(FetchedView, u64)> {
        let at = super::views::now();
        let LeasedView { view, stamp } = self.backend.leased(files)?;
        Some((FetchedView { view, at }, stamp))
    }

    /// Answers a LOOKUP under leases of the directory and of the file found in it, if this client holds both.
    pub(super) fn look_up_leased(
        &self,
        caller: &Caller,
        parent: Ino,
        directory: Handle,
        name: &[u8],
    ) -> Option<(Result<Attributes, FsError>, LeaseBasis)> {
        let (fetched, stamp) = self.leased_with_stamp(&[directory])?;
        // If the directory is gone or cannot be read, the caller looks it up at the server.
        let Some(entry) = fetched.view.entry(directory, name).ok()? else {
            self.tokens.forget_token(caller.thread);
            return Some((Err(FsError::NotFound), LeaseBasis { stamp, directory, found: None }));
        };
        let (fetched, stamp) = self.leased_with_stamp(&[directory, entry.handle])?;
        // This second view may be newer: this client may have changed the name itself in between.
        if fetched.view.entry(directory, name).ok()? != Some(entry) {
            return None;
        }
        self.tokens.forget_token(caller.thread);
        let basis = LeaseBasis { stamp, directory, found: Some(entry.handle) };
        match self.show(&*fetched.view, parent, name, entry) {
            Ok(shown) => Some((Ok(shown?), basis)),
            // The file that the entry refers to is gone.
            Err(FsError::Stale) => None,
            Err(error) => Some((Err(error), basis)),
        }
    }

    /// Called when a LOOKUP has to be answered by an operation. If a program seems to go through a directory,
    /// requests leases of the next files with that operation.
    pub(super) fn look_ahead(&self, parent: Ino, directory: Handle, name: &[u8]) {
        if !self.kernel.note_walk(parent) {
            return;
        }
        // Without the directory's blocks, the next files are unknown; the operation that follows fetches the
        // blocks.
        let Ok(entries) = self.backend.latest().entries(directory, Some(name), LOOK_AHEAD) else {
            return;
        };
        entries.iter().for_each(|(_, entry)| self.engine.want_lease_ahead(entry.handle));
    }

    /// For how long the kernel may keep the answer to a LOOKUP.
    pub fn name_life(
        &self,
        parent: Ino,
        name: &[u8],
        found: Option<Ino>,
        basis: Option<LeaseBasis>,
    ) -> NameLife<'_> {
        let gate = self.kernel.gate.read();
        let life = basis.map_or(Duration::ZERO, |basis| self.life_of(parent, name, found, &basis));
        NameLife { life, _gate: gate }
    }

    fn life_of(&self, parent: Ino, name: &[u8], found: Option<Ino>, basis: &LeaseBasis) -> Duration {
        // A file being written here changes at each close, without notice to the kernel.
        if self.kernel.forget.get().is_none() || found.is_some_and(|ino| self.is_written(ino)) {
            return Duration::ZERO;
        }
        if !self.kernel.is_worth_keeping(parent, name) {
            return Duration::ZERO;
        }
        let files: Vec<Handle> = [basis.directory].into_iter().chain(basis.found).collect();
        let Some(left) = self.backend.leased_for(basis.stamp, &files) else { return Duration::ZERO };
        let life = left.saturating_sub(MARGIN).min(NAMES_LIVE);
        let mut told = self.kernel.told.lock();
        forget_old(&mut told);
        if life.is_zero() || told.len() >= NAMES_MAX {
            return Duration::ZERO;
        }
        told.push_back(NameGrant { at: Instant::now(), parent, name: name.into(), found });
        drop(told);
        // From now on, a request about the file may come without a LOOKUP before it.
        if let Some(ino) = found {
            self.tokens.forget_about(ino);
        }
        life
    }

    fn is_written(&self, ino: Ino) -> bool {
        let Some(node) = self.nodes.find(ino) else { return false };
        let state = node.state();
        state.writers > 0 || state.file.as_ref().is_some_and(|file| file.is_dirty())
    }

    /// Handles a recall of leases: from now on nothing is served under them, and when this returns, the
    /// kernel does not serve names under them either. The kernel keeps names whose leases this client still
    /// holds. To forget a name takes the lock of its directory; while a program works there, that may take as
    /// long as names live, and meanwhile the server grants this client nothing. With `everything`, all names
    /// are forgotten: leases held now may be from another state of the file system.
    pub(super) fn recalled(&self, everything: bool) {
        self.tokens.forget_all();
        // Answers begun under the leases are sent by now; none that is sent later may be cached.
        drop(self.kernel.gate.write());
        let Some(forget) = self.kernel.forget.get() else { return };
        let told: VecDeque<NameGrant> = {
            let mut all = self.kernel.told.lock();
            let is_kept = |told: &NameGrant| !everything && self.is_leased(told);
            let (kept, gone) = std::mem::take(&mut *all).into_iter().partition(is_kept);
            *all = kept;
            gone
        };
        {
            let mut contended = self.kernel.contended.lock();
            for told in &told {
                contended.put(told.parent, Instant::now());
            }
        }
        let Some(newest) = told.back().map(|told| told.at) else { return };
        let gone = newest + NAMES_LIVE + MARGIN;
        let pass = || {
            let names = told.iter().map(|told| (told.parent, told.name.clone())).collect();
            let inos = told.iter().filter_map(|told| told.found).chain([Ino::ROOT]).collect();
            let (done, finished) = std::sync::mpsc::channel();
            forget(names, inos, done);
            let wait = || gone.saturating_duration_since(Instant::now());
            if finished.recv_timeout(wait()).is_err() {
                std::thread::sleep(wait());
                *self.kernel.waited.lock() = Some(Instant::now());
            }
        };
        let awake = newest + WAKING;
        let asleep = awake.saturating_duration_since(Instant::now());
        pass();
        if !asleep.is_zero() {
            std::thread::sleep(awake.saturating_duration_since(Instant::now()));
            pass();
        }
    }

    /// Whether this client still holds leases of the name's directory and of the file it was found to name.
    fn is_leased(&self, told: &NameGrant) -> bool {
        let inos = [told.parent].into_iter().chain(told.found);
        let handles: Result<Vec<Handle>, FsError> = inos.map(|ino| self.handle(ino)).collect();
        handles.is_ok_and(|handles| self.backend.holds_leases(&handles))
    }

    /// Called before a name is moved here, or two are exchanged. The kernel moves the cached entry along with
    /// its remaining time. So both names are recorded as cached before any other client can learn of the
    /// move.
    pub(super) fn name_moves(&self, from: (Ino, &[u8]), to: (Ino, &[u8])) {
        self.kernel.moves(from, to);
    }

    /// Makes the kernel forget names and attributes after a change here that it cannot know of. Does not wait
    /// until it has forgotten the names.
    pub(super) fn changed_unseen(&self, names: Vec<(Ino, Box<[u8]>)>, ino: Ino) {
        if let Some(forget) = self.kernel.forget.get() {
            let (done, _) = std::sync::mpsc::channel();
            forget(names, vec![ino], done);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: when a name is moved, the new name counts as cached for as long as the old one; and moving
    /// names back and forth adds no further entries.
    #[test]
    fn moved_names_are_remembered_once() {
        let kernel = Kernel::default();
        let (here, found) = (Ino(5), Some(Ino(9)));
        let at = Instant::now();
        kernel.told.lock().push_back(NameGrant { at, parent: here, name: (*b"old").into(), found });
        for _ in 0..100 {
            kernel.moves((here, b"old"), (here, b"new"));
            kernel.moves((here, b"new"), (here, b"old"));
            kernel.moves((here, b"unknown"), (here, b"other"));
        }
        let told = kernel.told.lock();
        let names: Vec<(&[u8], Instant)> = told.iter().map(|told| (&*told.name, told.at)).collect();
        assert_eq!(names, [(&b"old"[..], at), (b"new", at)]);
    }
}
