//! View sharing: when may a system call be answered from a view fetched for an earlier request?
//!
//! SUNDR (5.1) counts system calls in the kernel; FUSE has no such counter. Three rules take its place:
//!
//! 1. A view serves every request that *arrived* before the operation that fetched it was sent. The engine
//!    does this: all requests that wait share the next operation.
//! 2. A system call on a path sends a LOOKUP for each component and then the request proper, all from one
//!    thread, one after the other. So the view of a LOOKUP also serves the *next* request of the same thread
//!    if that request is about the inode the LOOKUP found: either a request on the inode itself (OPEN,
//!    GETATTR and the like), or the LOOKUP of the next component in it.
//! 3. A thread that lists a directory usually looks at its entries next (`ls -l`, `find`, `rm -r`). For
//!    [`LISTED_AGE_MAX`] after the listing's view was requested, the following are answered from the newest
//!    view that this client has: LOOKUPs of names that exist in that directory, requests for the attributes
//!    of the inodes found, and LOOKUPs of the names that lead to the directory itself, with which each path
//!    begins. This does what NFS's READDIRPLUS does, and is weaker than close-to-open: another client's
//!    change of the last second may not be visible yet. So it serves only looks at names and attributes. A
//!    call that opens, lists, walks through or changes an inode found this way gets a fresh view, in which
//!    all those names must still lead to the same inodes; if they do not, the kernel is told to look them up
//!    again. A name that is not found is looked up afresh, and so is a name that is requested again and
//!    again.
//!
//! Why this is sound: a thread runs one system call at a time. If both requests belong to the same call, the
//! view was fetched after that call began, which is all that close-to-open asks. A request on an inode that
//! comes from a *later* call is preceded by that call's own LOOKUP of it, which replaces the token, except
//! when the call goes through a descriptor; then the answer is at most [`REQUEST_AGE_MAX`] old, no older than
//! the attributes that the kernel itself is allowed to keep.
//!
//! A LOOKUP in a directory may begin a later call, if the path is relative to that directory. Then the token
//! must not count. A working directory is recognised by its name, a directory descriptor because the
//! directory is open. The remaining cases (an O_PATH descriptor, a new root directory, a bind mount) are
//! bounded by [`WALK_AGE_MAX`], the time between two components of one path. By the same argument a second
//! LOOKUP in a directory that was a component of a path, and was not looked up again since, belongs to the
//! same call: rename and link look up two names.

use super::types::Ino;
use crate::tree::View;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Greatest age of a view that serves a request on the inode looked up.
pub const REQUEST_AGE_MAX: Duration = Duration::from_secs(1);
/// Longest pause between two components of one path.
pub const WALK_AGE_MAX: Duration = Duration::from_millis(20);
/// How long after the view of a listing was requested names in it are not looked up afresh.
pub const LISTED_AGE_MAX: Duration = Duration::from_secs(1);
/// How long one name is looked up again without a fresh view: programs look up the same name in several
/// calls.
const REPEAT_AGE_MAX: Duration = Duration::from_millis(100);
/// Most threads that are remembered.
const THREADS_MAX: usize = 4096;

/// The present moment.
#[cfg(not(test))]
pub fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
pub use clock::now;

/// The time in tests, which changes only when a test says so.
#[cfg(test)]
pub mod clock {
    use std::cell::Cell;
    use std::sync::LazyLock;
    use std::time::{Duration, Instant};

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    thread_local! {
        static PASSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    pub fn now() -> Instant {
        *START + PASSED.get()
    }

    /// Advances the time, for this thread.
    pub fn pass(by: Duration) {
        PASSED.set(PASSED.get() + by);
    }
}

/// The last LOOKUP of a thread.
struct Token {
    ino: Ino,
    name: Vec<u8>,
    /// What answered the LOOKUP, which decides what the view may serve.
    basis: LookupBasis,
    view: Arc<dyn View>,
    /// When the view was requested.
    fetched: Instant,
    /// When the LOOKUP was answered.
    answered: Instant,
}

/// What a LOOKUP was answered from.
#[derive(Clone)]
pub enum LookupBasis {
    /// A view ordered after the system call began. With the directory in which the name was found, if that
    /// was a component of the same path.
    Fresh(Option<Directory>),
    /// The view of an earlier listing. The names were found through the listing: those on the path, and the
    /// one looked up.
    Listing(Vec<PathStep>),
}

/// A directory that a thread has listed.
struct ListedDirectory {
    directory: Ino,
    /// When the view of the listing, or of a later fetch, was requested.
    at: Instant,
    /// The name looked up last, and since when it has been looked up.
    last: Option<(Vec<u8>, Instant)>,
    /// The names by which the directory itself was found.
    path: Vec<PathStep>,
}

#[derive(Default)]
struct ThreadState {
    token: Option<Token>,
    listed: Option<ListedDirectory>,
}

/// A directory as a component of a path.
#[derive(Clone)]
pub struct Directory {
    ino: Ino,
    name: Vec<u8>,
}

/// A view, and when it was requested.
#[derive(Clone)]
pub struct FetchedView {
    /// The view.
    pub view: Arc<dyn View>,
    /// The moment before the fetch.
    pub at: Instant,
}

/// What is known for a request on an inode that its thread has just looked up.
pub enum RecentView {
    /// A view that serves it.
    Fresh(FetchedView),
    /// A view that serves requests for attributes while it is young. All other requests must first check
    /// these names.
    Listing(FetchedView, Vec<PathStep>),
}

/// A name in a directory, and the inode it led to.
#[derive(Clone, PartialEq, Eq)]
pub struct PathStep {
    /// The directory.
    pub directory: Ino,
    /// The name in that directory.
    pub name: Vec<u8>,
    /// The inode that it led to.
    pub ino: Ino,
}

/// What is known for a LOOKUP in a directory.
pub enum LookupView {
    /// The view of a directory that was, as far as can be told, a component of the same path.
    Fresh(FetchedView, Directory),
    /// The directory was found by these names, in the view of a listing.
    Listing(Vec<PathStep>),
    /// Nothing is known.
    Unknown,
}

/// The last LOOKUP and the last listing of each thread.
#[derive(Default)]
pub struct Tokens {
    threads: Mutex<HashMap<u32, ThreadState>>,
}

impl Tokens {
    /// Remembers that `thread` looked up `name` and found `ino`.
    pub fn offer(&self, thread: u32, ino: Ino, name: &[u8], fetched: &FetchedView, basis: LookupBasis) {
        let token = Token {
            ino,
            name: name.to_vec(),
            basis,
            view: fetched.view.clone(),
            fetched: fetched.at,
            answered: now(),
        };
        self.with(thread, |known| known.token = Some(token));
    }

    /// What is known for a request on `ino`, if the same thread has just looked it up. The token is used up,
    /// whatever the answer.
    pub fn take(&self, thread: u32, ino: Ino) -> Option<RecentView> {
        let token = self.take_token(thread)?;
        if token.ino != ino {
            return None;
        }
        let fetched = FetchedView { view: token.view, at: token.fetched };
        match token.basis {
            LookupBasis::Fresh(_) => (now().saturating_duration_since(fetched.at) <= REQUEST_AGE_MAX)
                .then_some(RecentView::Fresh(fetched)),
            LookupBasis::Listing(found_by) => Some(RecentView::Listing(fetched, found_by)),
        }
    }

    /// What is known for a LOOKUP in `directory`: whether the same thread has just looked up the directory as
    /// a component of the same path, or another name in it (rename looks up two names), as far as can be
    /// told. `is_open`: the directory has an open descriptor. The token is used up.
    pub fn take_for_walk(&self, thread: u32, directory: Ino, is_open: bool) -> LookupView {
        let Some(token) = self.take_token(thread) else { return LookupView::Unknown };
        let component = match token.basis {
            LookupBasis::Fresh(Some(within)) if within.ino == directory => within,
            LookupBasis::Listing(found_by) if token.ino == directory => return LookupView::Listing(found_by),
            LookupBasis::Listing(_) => return LookupView::Unknown,
            LookupBasis::Fresh(_) => Directory { ino: token.ino, name: token.name },
        };
        let next = component.ino == directory
            && !is_open
            && now().saturating_duration_since(token.answered) <= WALK_AGE_MAX
            && now().saturating_duration_since(token.fetched) <= REQUEST_AGE_MAX
            && !may_be_working_directory(thread, &component.name);
        match next {
            true => LookupView::Fresh(FetchedView { view: token.view, at: token.fetched }, component),
            false => LookupView::Unknown,
        }
    }

    /// Remembers that `thread` lists `directory`, which it found by the names of `way`, in a view requested
    /// at `at`.
    pub fn listed(&self, thread: u32, directory: Ino, way: Vec<PathStep>, at: Instant) {
        self.with(thread, |known| match &mut known.listed {
            Some(listed) if listed.directory == directory && listed.path == way => {
                listed.at = listed.at.max(at);
            }
            listed => *listed = Some(ListedDirectory { directory, at, last: None, path: way }),
        });
    }

    /// From when on a view serves a LOOKUP of `name` in `directory`, if the thread has just listed that
    /// directory, or found by this name the directory it listed.
    pub fn listed_at(&self, thread: u32, directory: Ino, name: &[u8]) -> Option<Instant> {
        let mut threads = self.threads.lock();
        let listed = threads.get_mut(&thread)?.listed.as_mut()?;
        if now().saturating_duration_since(listed.at) > LISTED_AGE_MAX {
            return None;
        }
        if listed.directory != directory {
            listed.path.iter().find(|known| known.directory == directory && known.name == name)?;
            return Some(listed.at);
        }
        match &listed.last {
            Some((last, since)) if last == name => {
                if now().saturating_duration_since(*since) > REPEAT_AGE_MAX {
                    listed.last = None;
                    return None;
                }
            }
            _ => listed.last = Some((name.to_vec(), now())),
        }
        Some(listed.at)
    }

    /// From when on a view serves a look at `directory`, if the thread has just listed it.
    pub fn directory_listed_at(&self, thread: u32, directory: Ino) -> Option<Instant> {
        let threads = self.threads.lock();
        let listed = threads.get(&thread)?.listed.as_ref()?;
        (listed.directory == directory && now().saturating_duration_since(listed.at) <= LISTED_AGE_MAX)
            .then_some(listed.at)
    }

    /// The names found through a listing that must be checked before a change by `thread`: those of its last
    /// LOOKUP, if that found one of `about` or looked in one of them. (For the first of two paths, as in
    /// rename, the names before the last are not known any more.) The token is used up: the kernel answers
    /// some calls from an earlier LOOKUP, so a token that remains may have nothing to do with this change.
    pub fn unchecked(&self, thread: u32, about: &[Ino]) -> Vec<PathStep> {
        match self.take_token(thread) {
            Some(Token { ino, basis: LookupBasis::Listing(found_by), .. })
                if about.contains(&ino)
                    || found_by.last().is_some_and(|last| about.contains(&last.directory)) =>
            {
                found_by
            }
            _ => Vec::new(),
        }
    }

    /// Records that a thread that listed `directory` has fetched a view requested at `at`.
    pub fn renew_listed(&self, thread: u32, directory: Ino, at: Instant) {
        if let Some(ThreadState { listed: Some(listed), .. }) = self.threads.lock().get_mut(&thread)
            && listed.directory == directory
        {
            listed.at = at;
        }
    }

    /// A name found through a listing turned out to lead elsewhere: from now on the thread's LOOKUPs get
    /// fresh views.
    pub fn forget_listed(&self, thread: u32) {
        if let Some(known) = self.threads.lock().get_mut(&thread) {
            known.listed = None;
        }
    }

    /// Forgets the LOOKUPs of `ino`, and those on paths through it: from now on requests about it may come
    /// without a LOOKUP before them.
    pub fn forget_about(&self, ino: Ino) {
        self.threads.lock().retain(|_, known| {
            let concerns = |token: &Token| match &token.basis {
                _ if token.ino == ino => true,
                LookupBasis::Fresh(within) => within.as_ref().is_some_and(|within| within.ino == ino),
                LookupBasis::Listing(found_by) => found_by.iter().any(|name| name.directory == ino),
            };
            if known.token.as_ref().is_some_and(concerns) {
                known.token = None;
            }
            known.token.is_some() || known.listed.is_some()
        });
    }

    /// Forgets what all threads have looked up and listed, since another device has changed something.
    pub fn forget_all(&self) {
        self.threads.lock().clear();
    }

    /// Forgets a thread's token, since the thread has sent another request.
    pub fn forget_token(&self, thread: u32) {
        self.take_token(thread);
    }

    fn take_token(&self, thread: u32) -> Option<Token> {
        let mut threads = self.threads.lock();
        let known = threads.get_mut(&thread)?;
        let token = known.token.take();
        if known.listed.is_none() {
            threads.remove(&thread);
        }
        token
    }

    fn with(&self, thread: u32, change: impl FnOnce(&mut ThreadState)) {
        if thread == 0 {
            return;
        }
        let mut threads = self.threads.lock();
        if threads.len() >= THREADS_MAX {
            let age_max = REQUEST_AGE_MAX.max(LISTED_AGE_MAX);
            threads.retain(|_, known| {
                known
                    .token
                    .as_ref()
                    .is_some_and(|token| now().saturating_duration_since(token.fetched) <= age_max)
                    || known
                        .listed
                        .as_ref()
                        .is_some_and(|listed| now().saturating_duration_since(listed.at) <= age_max)
            });
            if threads.len() >= THREADS_MAX {
                threads.clear();
            }
        }
        change(threads.entry(thread).or_default());
    }
}

/// Whether a directory named `name` may be the working directory of a thread. Reads a link in /proc, which
/// calls no file system; if it cannot be read, the answer is yes.
fn may_be_working_directory(thread: u32, name: &[u8]) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::fs::read_link(format!("/proc/{thread}/cwd")) else { return true };
    path.as_os_str().as_bytes().rsplit(|&byte| byte == b'/').next().is_none_or(|last| last == name)
}
