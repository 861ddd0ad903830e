//! Which requests are answered under leases without asking the server, and what the kernel may keep of the answers.
//!
//! A request about files under lease is answered from the newest accepted view, which is then the present one
//! ([`crate::engine::Engine::leased`]); it needs none of the rules of [`super::views`].
//!
//! The kernel may keep *names* that were found, or proven missing, under lease, for at most [`NAMES_LIVE`]. When a lease
//! is recalled, first nothing is served under it any more, then the kernel is told to look the names up again, then the
//! recall is acknowledged. The kernel takes a directory's lock to forget a name in it, and that lock may be held by a
//! program whose change waits for another client to acknowledge a recall of its own, which may wait for the same here.
//! So nobody waits for the kernel longer than the names live anyway; that is why they live so shortly, why a name is given to
//! the kernel only when it is looked up for the second time (files that are made or removed mostly are not), and none of a
//! directory in which others have just changed something.
//!
//! Two answers could be overtaken by a recall: one that is read but not sent yet (the gate is for that, and the stamp),
//! and one that the kernel has but the program has not woken up to ([`WAKING`]).

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

/// Longest time for which the kernel keeps a name. Most of what it saves is looking up the directories on the way to one file
/// after the other, for which a tenth of a second is long.
pub const NAMES_LIVE: Duration = Duration::from_millis(100);
/// The kernel is given a name that is looked up again within this time.
const LOOKED_UP_AGAIN: Duration = Duration::from_secs(2);
/// Most look-ups that are remembered for that.
const LOOKED_UP_MAX: NonZeroUsize = NonZeroUsize::new(8192).expect("not zero");
/// Number of files that come next in a directory for which leases are asked with a look at one of them.
const LOOK_AHEAD: usize = 256;
/// Most directories of which it is remembered how often they were looked into.
const LOOKED_INTO_MAX: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");
/// Names that the kernel keeps at once; no more are given to it.
const NAMES_MAX: usize = 8192;
/// Within this time after an answer, whoever waited for it may not have taken it up yet.
const WAKING: Duration = Duration::from_millis(20);
/// For so long after a recall has taken names of a directory from the kernel, it is given none there: where a lease changes
/// hands often, forgetting names costs more than looking them up again. After a recall that had to wait for the kernel, it is
/// given none anywhere: whoever goes through a tree comes to other directories.
const CONTENDED: Duration = Duration::from_secs(10);
/// Most directories of which that is remembered.
const CONTENDED_MAX: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");
/// The end of a name's life is reckoned this much later than the kernel's.
const MARGIN: Duration = Duration::from_millis(100);

/// Told which names (in which directories) and which attributes the kernel should look up again. It has forgotten the
/// attributes when this returns; of the names, whom to tell when it is done.
pub type Forget = Box<dyn Fn(Vec<(Ino, Box<[u8]>)>, Vec<Ino>, Sender<()>) + Send + Sync>;

/// What the kernel has been allowed to keep, and how it is told to forget.
pub(super) struct Kernel {
    /// Held shared while an answer with a life is sent, and taken once by each recall.
    gate: RwLock<()>,
    told: Mutex<VecDeque<NameGrant>>,
    /// Digests of names with their directories, and when they were looked up.
    looked_up: Mutex<LruCache<u64, Instant>>,
    digests: RandomState,
    /// Directories in which a name was looked up without a lease: when last, and how often in a row.
    looked_into: Mutex<LruCache<Ino, (Instant, u32)>>,
    /// Directories of which names were taken from the kernel, and when.
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
    /// Notes that a name is looked up. Whether the kernel is to keep it.
    fn is_worth_keeping(&self, parent: Ino, name: &[u8]) -> bool {
        let now = Instant::now();
        let before = self.looked_up.lock().put(self.digests.hash_one((parent.0, name)), now);
        let is_contended = |at: &Instant| now.duration_since(*at) < CONTENDED;
        before.is_some_and(|at| now.duration_since(at) < LOOKED_UP_AGAIN)
            && !self.waited.lock().as_ref().is_some_and(is_contended)
            && !self.contended.lock().get(&parent).is_some_and(is_contended)
    }

    /// Notes that a name is looked up without a lease. Whether what comes after it in its directory is likely to be looked up
    /// too: so it seems with the second look in a row, and again with the third, fifth, ninth and so on.
    fn note_walk(&self, parent: Ino) -> bool {
        let now = Instant::now();
        let mut looked_into = self.looked_into.lock();
        let before = looked_into.get(&parent).filter(|(at, _)| now.duration_since(*at) < LOOKED_UP_AGAIN);
        let before = before.map_or(0, |(_, times)| *times);
        looked_into.put(parent, (now, before.saturating_add(1)));
        before.is_power_of_two()
    }

    /// A name is moved, or two are exchanged: for as long as the kernel may keep one of them, it may keep the other.
    fn moves(&self, from: (Ino, &[u8]), to: (Ino, &[u8])) {
        let mut told = self.told.lock();
        forget_old(&mut told);
        for (old, new) in [(from, to), (to, from)] {
            let of = |name: (Ino, &[u8]), told: &NameGrant| (told.parent, &*told.name) == name;
            let olds: Vec<(Instant, Option<Ino>)> =
                told.iter().filter(|told| of(old, told)).map(|told| (told.at, told.found)).collect();
            for (at, found) in olds {
                // Once each, or names that are moved to and fro would become more each time.
                if !told.iter().any(|known| of(new, known) && known.found == found && known.at >= at) {
                    told.push_back(NameGrant { at, parent: new.0, name: new.1.into(), found });
                }
            }
        }
        told.make_contiguous().sort_by_key(|told| told.at);
    }
}

/// Drops what the kernel does not keep any more. Names are in the order in which it was told of them.
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

/// For how long the kernel may keep a name. The answer must be sent while this lives.
pub struct NameLife<'a> {
    life: Duration,
    _gate: RwLockReadGuard<'a, ()>,
}

impl NameLife<'_> {
    /// The time; zero if the kernel may not keep the name.
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
    /// Registers, once, the hook that tells the kernel which names to look up again. Without it, the kernel keeps none.
    pub fn on_forget(&self, forget: Forget) {
        let _ = self.kernel.forget.set(forget);
    }

    /// The newest accepted view, if leases say that it is the present one for these files.
    pub(super) fn leased(&self, files: &[Handle]) -> Option<FetchedView> {
        self.leased_with_stamp(files).map(|(fetched, _)| fetched)
    }

    fn leased_with_stamp(&self, files: &[Handle]) -> Option<(FetchedView, u64)> {
        let at = super::views::now();
        let LeasedView { view, stamp } = self.backend.leased(files)?;
        Some((FetchedView { view, at }, stamp))
    }

    /// Answers a LOOKUP under leases of the directory and of what is found in it, if they are held.
    pub(super) fn look_up_leased(
        &self,
        caller: &Caller,
        parent: Ino,
        directory: Handle,
        name: &[u8],
    ) -> Option<(Result<Attributes, FsError>, LeaseBasis)> {
        let (fetched, stamp) = self.leased_with_stamp(&[directory])?;
        // A directory that is gone, or cannot be read, is found out about anew.
        let Some(entry) = fetched.view.entry(directory, name).ok()? else {
            self.tokens.forget_token(caller.thread);
            return Some((Err(FsError::NotFound), LeaseBasis { stamp, directory, found: None }));
        };
        let (fetched, stamp) = self.leased_with_stamp(&[directory, entry.handle])?;
        // This view may be a later one, in which this client has changed the name itself.
        if fetched.view.entry(directory, name).ok()? != Some(entry) {
            return None;
        }
        self.tokens.forget_token(caller.thread);
        let basis = LeaseBasis { stamp, directory, found: Some(entry.handle) };
        match self.show(&*fetched.view, parent, name, entry) {
            Ok(shown) => Some((Ok(shown?), basis)),
            // What the view refers to is gone.
            Err(FsError::Stale) => None,
            Err(error) => Some((Err(error), basis)),
        }
    }

    /// A LOOKUP has to be answered by an operation: if a program goes through a directory, leases of the next files
    /// come with it.
    pub(super) fn look_ahead(&self, parent: Ino, directory: Handle, name: &[u8]) {
        if !self.kernel.note_walk(parent) {
            return;
        }
        // Without the directory's blocks there is nothing to ask for: the operation that follows brings them.
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
        // A file that is written here changes at each close, of which the kernel is not told.
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
        // From now on a request about it may come without a LOOKUP before.
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

    /// Leases are recalled: nothing is served under them any more, and when this returns, nor does the kernel. It keeps names
    /// of which leases remain: to forget one takes the lock of its directory, for which this may wait as long as names live
    /// while a program works there, and until then the server grants this client nothing. When `everything` was lost, what is
    /// held by now may be from another state of the file system.
    pub(super) fn recalled(&self, everything: bool) {
        self.tokens.forget_all();
        // Answers that were begun under them are sent; none that is sent from now on has a life.
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

    /// Whether leases of a name's directory, and of what it was found to stand for, are held still.
    fn is_leased(&self, told: &NameGrant) -> bool {
        let inos = [told.parent].into_iter().chain(told.found);
        let handles: Result<Vec<Handle>, FsError> = inos.map(|ino| self.handle(ino)).collect();
        handles.is_ok_and(|handles| self.backend.holds_leases(&handles))
    }

    /// A name is about to be moved here, or two exchanged. The kernel takes along how long it may keep what they lead to, so it is
    /// told to forget both names from now on, before anybody else can come to know of the move.
    pub(super) fn name_moves(&self, from: (Ino, &[u8]), to: (Ino, &[u8])) {
        self.kernel.moves(from, to);
    }

    /// Something was changed here in a way that the kernel does not know of. Does not wait for it to forget names.
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

    /// Proves: what the kernel keeps of a name counts for the name it is moved to, for just as long; and names that are moved to
    /// and fro do not become more.
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
