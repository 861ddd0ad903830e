//! The names below an automounted directory: which are mounted, which are being mounted, and which could not
//! be mounted.
//!
//! Invariants: one thread at a time mounts a name, and holds no lock meanwhile. A name keeps its number while
//! the kernel may use it or something is mounted on it. No more names are mounted than the user allows. A
//! process that takes part in mounting a place never waits for that place.

use super::authority::Authorities;
use super::mounting::{self, Settings, descends};
use super::name::Name;
use super::probe::{self, ProbeResult};
use super::refusal::Refusal;
use crate::control::Client;
use crate::keys;
use holdfast_client::interrupt::{GLANCE, is_raised};
use holdfast_fuse::automount::{Automounter, EnterOutcome, NameTarget, Trouble};
use holdfast_fuse::mountpoint;
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The longest time for which a failure is remembered, so that the name is not tried again.
const FAILED_FOR: Duration = Duration::from_secs(10);
/// How long `status` lists a failure.
const FAILED_TOLD_FOR: Duration = Duration::from_secs(3600);
/// Most names that are being mounted at once.
const UNDER_WAY_MAX: usize = 32;
/// Most failures that are remembered.
const FAILURES_MAX: usize = 1000;

/// The status of one name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlaceStatus {
    /// Its name.
    pub name: String,
    /// What is mounted; or why it could not be mounted.
    pub says: String,
    /// Seconds since it was used, or since it failed.
    pub ago_s: u64,
}

/// The status of all names of an automounter.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PlacesStatus {
    /// What is mounted.
    pub mounted: Vec<PlaceStatus>,
    /// What could not be mounted within the last hour.
    pub failed: Vec<PlaceStatus>,
}

/// The names of an automounted directory.
pub struct Places {
    /// A reference to itself, for the threads that mount.
    own: Weak<Places>,
    directory: PathBuf,
    /// The directory in which mounts are made, if names are links to them; `None`: they are made on the names
    /// themselves.
    beside: Option<PathBuf>,
    settings: Settings,
    authorities: Authorities,
    mounts_max: usize,
    idle: Duration,
    failed_for: Duration,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    numbers: HashMap<Vec<u8>, u64>,
    known: HashMap<u64, NameEntry>,
    last: u64,
    /// Whether the automounter is ending, so that nothing more is mounted.
    ended: bool,
}

struct NameEntry {
    name: Vec<u8>,
    lookups: u64,
    used: Instant,
    is: Is,
}

enum Is {
    Link(PathBuf),
    Place(Box<Name>, State),
}

enum State {
    /// Nothing is mounted.
    Idle,
    /// It is being mounted, by these processes and their descendants.
    Mounting(Vec<u32>),
    /// It is mounted.
    Mounted(ProbeResult),
    /// It is being unmounted. The request says whether it is to be mounted again afterwards.
    Unmounting(ProbeResult, NameRequest),
    /// It could not be mounted.
    Failed(Refusal, Instant),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NameRequest {
    Yes,
    No,
}

impl Places {
    /// The names below `directory`, an absolute path; with mounts made on them, or in `beside`. A failure is
    /// remembered for at most `refresh`.
    pub fn new(
        directory: PathBuf,
        beside: Option<PathBuf>,
        settings: Settings,
        authorities: Authorities,
        mounts_max: usize,
        idle: Duration,
        refresh: Duration,
    ) -> Arc<Places> {
        Arc::new_cyclic(|own| Places {
            own: own.clone(),
            directory,
            beside,
            settings,
            authorities,
            mounts_max,
            idle,
            failed_for: FAILED_FOR.min(refresh),
            inner: Mutex::new(Inner { last: 1, ..Inner::default() }),
            changed: Condvar::new(),
        })
    }

    fn path(&self, name: &[u8]) -> PathBuf {
        self.beside.as_ref().unwrap_or(&self.directory).join(OsStr::from_bytes(name))
    }

    /// If a path leads below the automounted directory, mounts the name that it leads through. Otherwise a
    /// look-up by this process itself would have to wait for its own answer.
    ///
    /// # Errors
    /// Why the name cannot be mounted.
    pub fn reach(&self, path: &Path) -> Result<(), Refusal> {
        let Some(name) = self.authorities.name_in(&self.directory, path) else { return Ok(()) };
        let refused = |why: &str| Refusal::new(Trouble::Failed, format!("{}: {why}", path.display()));
        let Some(parsed) = Name::parse(&name) else {
            return Err(refused("name what lies there by its ID, as in @HOST,ID"));
        };
        let mut inner = self.inner.lock();
        let number = inner.know(&name, Is::Place(Box::new(parsed), State::Idle));
        let entered = loop {
            match self.want(&mut inner, number) {
                Some(entered) => break entered,
                None => self.changed.wait_for(&mut inner, GLANCE),
            };
        };
        let failed = match (entered, &inner.known[&number].is) {
            (Ok(()), _) => Ok(()),
            (Err(trouble), Is::Place(_, State::Failed(refusal, _))) => {
                Err(Refusal::new(trouble, format!("{}: {}", path.display(), refusal.why)))
            }
            (Err(trouble), _) => Err(Refusal { trouble, ..refused("it cannot be mounted now") }),
        };
        drop(inner);
        self.forget(number, 1);
        failed
    }

    /// Mounts a place; runs on a thread of its own.
    fn bring(&self, number: u64) {
        let Some((name, parsed)) = self.named(number) else { return };
        let place = self.path(&name);
        let brought = self.make(number, &name, &parsed, &place);
        let shown = String::from_utf8_lossy(&name).into_owned();
        match &brought {
            Ok(found) => tracing::info!(name = shown, ?found, "mounted"),
            Err(refusal) => tracing::warn!(name = shown, why = refusal.why, "not mounted"),
        }
        let mut inner = self.inner.lock();
        if let Some(NameEntry { is: Is::Place(_, state), used, .. }) = inner.known.get_mut(&number) {
            *used = Instant::now();
            *state = match brought {
                Ok(found) => State::Mounted(found),
                Err(refusal) => State::Failed(refusal, Instant::now()),
            };
        }
        inner.bound_failures();
        drop(inner);
        self.changed.notify_all();
    }

    fn named(&self, number: u64) -> Option<(Vec<u8>, Name)> {
        match self.inner.lock().known.get(&number) {
            Some(NameEntry { name, is: Is::Place(parsed, _), .. }) => {
                Some((name.clone(), Name::clone(parsed)))
            }
            _ => None,
        }
    }

    fn make(&self, number: u64, name: &[u8], parsed: &Name, place: &Path) -> Result<ProbeResult, Refusal> {
        // A mount that an earlier run left is used, unless no process serves it any more.
        if self.is_mounted(place)? && mountpoint::is_dead(place) {
            self.settings.unmount(place, true)?;
        }
        if self.beside.is_some() {
            let made = std::fs::create_dir(place);
            if let Err(error) = made.or_else(|error| if place.is_dir() { Ok(()) } else { Err(error) }) {
                return Err(Refusal::new(Trouble::Failed, format!("{}: {error}", place.display())));
            }
        }
        self.make_room()?;
        let revocations = self.authorities.revocations_for(&self.directory, name);
        for directory in &revocations {
            self.reach(directory)?;
        }
        self.authorities.not_revoked(&parsed.id, &revocations)?;
        let trust = self.settings.directories.releases_base();
        let trust = trust.map_err(|failure| Refusal::new(Trouble::Failed, failure))?;
        let found = probe::find(parsed, &trust, &revocations)?;
        let mounters = self.process_of_key(&found);
        let id = parsed.id.to_string();
        let child = {
            // The mounting process is registered before it can look up the place.
            let mut inner = self.inner.lock();
            if inner.ended {
                return Err(Refusal::new(Trouble::Failed, "the automounter is ending"));
            }
            let child = self.settings.begin(&found, place, &revocations, &id)?;
            if let Some(NameEntry { is: Is::Place(_, state), .. }) = inner.known.get_mut(&number) {
                *state = State::Mounting(mounters.into_iter().chain([child.id()]).collect());
            }
            child
        };
        self.changed.notify_all();
        mounting::finish(child, self.settings.timeout + Duration::from_secs(5))?;
        Ok(found)
    }

    /// The process that already serves other mounts of this key; it will be asked to mount this one, too.
    fn process_of_key(&self, found: &ProbeResult) -> Option<u32> {
        let (ProbeResult::FileSystem(address), Some(key)) = (found, &self.settings.key) else { return None };
        let text = key.to_string_lossy();
        let public = keys::public_of(&text).or_else(|_| keys::read(key).map(|key| key.public())).ok()?;
        let state = self.settings.directories.state_of(&address.file_system, &public).ok()?;
        Client::connect(&state).ok()??.process()
    }

    fn shown(&self, number: u64) -> NameTarget {
        if self.beside.is_some() { NameTarget::Link(number) } else { NameTarget::Directory(number) }
    }

    fn is_mounted(&self, place: &Path) -> Result<bool, Refusal> {
        let mounted = mountpoint::mounted_at(place).map_err(|error| Refusal::new(Trouble::Failed, error))?;
        Ok(mounted.is_some())
    }

    /// Unmounts the mounts that were unused for longest, if there are more than allowed.
    fn make_room(&self) -> Result<(), Refusal> {
        loop {
            let mut mounted: Vec<(Instant, u64)> = Vec::new();
            let mut busy = 0;
            for (number, known) in &self.inner.lock().known {
                match &known.is {
                    Is::Place(_, State::Mounted(_)) => mounted.push((known.used, *number)),
                    // The mount for which room is made is one of these.
                    Is::Place(_, State::Mounting(_) | State::Unmounting(..)) => busy += 1,
                    _ => {}
                }
            }
            if mounted.len() + busy <= self.mounts_max {
                return Ok(());
            }
            mounted.sort_unstable();
            let makes_room = |(_, number): (Instant, u64)| {
                let gone = self.take_down(number, false);
                gone.inspect_err(|refusal| tracing::info!(why = refusal.why, "a mount does not make room"))
                    .is_ok()
            };
            if !mounted.into_iter().any(makes_room) {
                return Err(Refusal::new(
                    Trouble::TooMany,
                    format!("{} names are mounted and in use; --mounts-max allows no more", self.mounts_max),
                ));
            }
        }
    }

    /// Unmounts a place. If that fails, its state is as before.
    fn take_down(&self, number: u64, lazy: bool) -> Result<(), Refusal> {
        let (name, found) = {
            let mut inner = self.inner.lock();
            let Some(NameEntry { name, is: Is::Place(_, state), .. }) = inner.known.get_mut(&number) else {
                return Ok(());
            };
            let State::Mounted(found) = state else { return Ok(()) };
            let found = found.clone();
            *state = State::Unmounting(found.clone(), NameRequest::No);
            (name.clone(), found)
        };
        let place = self.path(&name);
        let gone = match self.is_mounted(&place) {
            Ok(false) => Ok(()),
            _ => self.settings.unmount(&place, lazy),
        };
        if self.beside.is_some() && gone.is_ok() {
            // The directory is made again when needed. If it is not empty, it was not made here and stays.
            let _ = std::fs::remove_dir(&place);
        }
        let mut inner = self.inner.lock();
        if let Some(NameEntry { is: Is::Place(_, state), .. }) = inner.known.get_mut(&number) {
            let wanted = matches!(state, State::Unmounting(_, NameRequest::Yes));
            *state = if gone.is_ok() { State::Idle } else { State::Mounted(found) };
            if gone.is_ok() && wanted {
                self.begin(&mut inner, number);
            }
        }
        inner.drop_if_unknown(number);
        drop(inner);
        self.changed.notify_all();
        gone
    }

    /// Periodic work: unmounts idle and dead mounts, and those that were revoked.
    pub fn tend(&self, look_for_revocations: bool) {
        let mounted: Vec<(u64, Vec<u8>, Name, ProbeResult, Duration)> = {
            let inner = self.inner.lock();
            let mounted = inner.known.iter().filter_map(|(number, known)| match &known.is {
                Is::Place(parsed, State::Mounted(found)) => Some((
                    *number,
                    known.name.clone(),
                    Name::clone(parsed),
                    found.clone(),
                    known.used.elapsed(),
                )),
                _ => None,
            });
            mounted.collect()
        };
        for (number, name, parsed, found, unused) in mounted {
            let place = self.path(&name);
            let shown = String::from_utf8_lossy(&name).into_owned();
            if self.is_mounted(&place).is_ok_and(|mounted| !mounted) || mountpoint::is_dead(&place) {
                let _ = self.take_down(number, true);
                continue;
            }
            if unused >= self.idle {
                match self.take_down(number, false) {
                    Ok(()) => tracing::info!(name = shown, "unmounted, as nobody uses it"),
                    // It is in use, and is examined again after the same time.
                    Err(_) => self.note_use(number),
                }
                continue;
            }
            // The process that serves a release looks for revocations itself.
            if look_for_revocations && matches!(found, ProbeResult::FileSystem(_)) {
                let revocations = self.authorities.revocations_for(&self.directory, &name);
                let reached = revocations.iter().try_for_each(|directory| self.reach(directory));
                let refused = reached.and_then(|()| self.authorities.not_revoked(&parsed.id, &revocations));
                match refused {
                    Err(refusal) if refusal.trouble == Trouble::Revoked => {
                        tracing::error!(name = shown, why = refusal.why, "unmounted");
                        let _ = self.take_down(number, true);
                    }
                    Err(refusal) => tracing::warn!(name = shown, why = refusal.why, "revocations"),
                    Ok(()) => {}
                }
            }
        }
        let mut inner = self.inner.lock();
        let stale: Vec<u64> = inner.known.keys().copied().collect();
        stale.into_iter().for_each(|number| inner.drop_if_unknown(number));
    }

    fn note_use(&self, number: u64) {
        if let Some(known) = self.inner.lock().known.get_mut(&number) {
            known.used = Instant::now();
        }
    }

    /// Unmounts everything. If not `lazy`, a mount in use is an error, and the automounter goes on.
    ///
    /// # Errors
    /// Why a mount stays.
    pub fn end(&self, lazy: bool) -> Result<(), Refusal> {
        self.inner.lock().ended = true;
        let start = Instant::now();
        loop {
            let (mounted, under_way) = {
                let inner = self.inner.lock();
                let mounted: Vec<u64> = inner.numbers_in(|state| matches!(state, State::Mounted(_)));
                // Mounts that have not started a process yet will notice the end by themselves.
                let busy = inner.numbers_in(|state| match state {
                    State::Mounting(mounters) => !mounters.is_empty(),
                    state => matches!(state, State::Unmounting(..)),
                });
                (mounted, !busy.is_empty())
            };
            if mounted.is_empty() && (!under_way || start.elapsed() > self.settings.timeout) {
                return Ok(());
            }
            for number in mounted {
                if let Err(refusal) = self.take_down(number, lazy) {
                    if lazy {
                        tracing::warn!(why = refusal.why, "a mount stays");
                        return Err(refusal);
                    }
                    self.inner.lock().ended = false;
                    return Err(refusal);
                }
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// The status of all names.
    pub fn status(&self) -> PlacesStatus {
        let inner = self.inner.lock();
        let mut status = PlacesStatus::default();
        for known in inner.known.values() {
            let name = String::from_utf8_lossy(&known.name).into_owned();
            match &known.is {
                Is::Place(_, State::Mounted(found) | State::Unmounting(found, _)) => {
                    let says = match found {
                        ProbeResult::FileSystem(address) => address.to_string(),
                        ProbeResult::Release(url) => format!("release at {url}"),
                    };
                    status.mounted.push(PlaceStatus { name, says, ago_s: known.used.elapsed().as_secs() });
                }
                Is::Place(_, State::Failed(refusal, when)) => {
                    let says = refusal.why.clone();
                    status.failed.push(PlaceStatus { name, says, ago_s: when.elapsed().as_secs() });
                }
                _ => {}
            }
        }
        status.mounted.sort_by(|one, other| one.name.cmp(&other.name));
        status.failed.sort_by_key(|failed| failed.ago_s);
        status
    }

    /// Makes sure that a place is being mounted. Returns the outcome once it is certain, `None` before.
    fn want(&self, inner: &mut MutexGuard<'_, Inner>, number: u64) -> Option<Result<(), Trouble>> {
        let ended = inner.ended;
        let Some(NameEntry { name, is: Is::Place(_, state), used, .. }) = inner.known.get_mut(&number) else {
            return Some(Err(Trouble::NoName));
        };
        *used = Instant::now();
        match state {
            State::Mounted(_) => match mountpoint::mounted_at(&self.path(name)) {
                // Another program has unmounted it.
                Ok(None) => *state = State::Idle,
                _ => return Some(Ok(())),
            },
            State::Failed(refusal, when) if when.elapsed() < self.failed_for => {
                return Some(Err(refusal.trouble));
            }
            State::Mounting(_) => return None,
            State::Unmounting(_, wanted) => {
                *wanted = NameRequest::Yes;
                return None;
            }
            State::Failed(..) | State::Idle => {}
        }
        if ended {
            return Some(Err(Trouble::NoName));
        }
        if inner.numbers_in(|state| matches!(state, State::Mounting(_))).len() >= UNDER_WAY_MAX {
            return Some(Err(Trouble::TooMany));
        }
        self.begin(inner, number);
        None
    }

    /// Starts a thread that mounts a place.
    fn begin(&self, inner: &mut MutexGuard<'_, Inner>, number: u64) {
        let own = self.own.clone();
        let mount = move || {
            if let Some(own) = own.upgrade() {
                own.bring(number);
            }
        };
        let begun = std::thread::Builder::new().name("mounting".to_owned()).spawn(mount);
        if let Some(NameEntry { is: Is::Place(_, state), .. }) = inner.known.get_mut(&number) {
            *state = match begun {
                Ok(_) => State::Mounting(Vec::new()),
                Err(error) => State::Failed(Refusal::new(Trouble::Failed, error), Instant::now()),
            };
        }
    }

    /// The outcome for a name that is or was a place's; `None` if it is about to change.
    fn settled(&self, inner: &Inner, name: &[u8]) -> Option<Result<(), Trouble>> {
        let known = inner.numbers.get(name).and_then(|number| inner.known.get(number));
        let Some(NameEntry { is: Is::Place(_, state), lookups, .. }) = known else { return Some(Ok(())) };
        match state {
            // The first look-up of a name blocks other look-ups of it, even those by the mounting process, so
            // it must not wait.
            _ if *lookups == 0 => Some(Ok(())),
            State::Mounting(_) | State::Unmounting(_, NameRequest::Yes) => None,
            State::Failed(refusal, when) if when.elapsed() < self.failed_for => Some(Err(refusal.trouble)),
            _ => Some(Ok(())),
        }
    }

    /// Whether a thread belongs to the processes that mount a place.
    fn mounts(&self, number: u64, thread: u32) -> bool {
        let mounters = match self.inner.lock().known.get(&number).map(|known| &known.is) {
            Some(Is::Place(_, State::Mounting(mounters))) => mounters.clone(),
            _ => return false,
        };
        !mounters.is_empty() && descends(thread, &mounters)
    }
}

impl Inner {
    fn numbers_in(&self, wanted: impl Fn(&State) -> bool) -> Vec<u64> {
        let is_wanted = |known: &NameEntry| matches!(&known.is, Is::Place(_, state) if wanted(state));
        self.known.iter().filter(|(_, known)| is_wanted(known)).map(|(number, _)| *number).collect()
    }

    /// Forgets a name that neither the kernel nor the automounter needs.
    fn drop_if_unknown(&mut self, number: u64) {
        let needed = self.known.get(&number).is_some_and(|known| {
            known.lookups > 0
                || match &known.is {
                    Is::Link(_) | Is::Place(_, State::Idle) => false,
                    Is::Place(_, State::Failed(_, when)) => when.elapsed() < FAILED_TOLD_FOR,
                    Is::Place(_, State::Mounting(_) | State::Mounted(_) | State::Unmounting(..)) => true,
                }
        });
        if !needed && let Some(known) = self.known.remove(&number) {
            self.numbers.remove(&known.name);
        }
    }

    /// If there are too many failures, the oldest are forgotten, as if nothing had been tried.
    fn bound_failures(&mut self) {
        let mut failed: Vec<(Instant, u64)> = Vec::new();
        for (number, known) in &self.known {
            if let Is::Place(_, State::Failed(_, when)) = &known.is {
                failed.push((*when, *number));
            }
        }
        failed.sort_unstable();
        for (_, number) in failed.iter().take(failed.len().saturating_sub(FAILURES_MAX)) {
            if let Some(NameEntry { is: Is::Place(_, state), .. }) = self.known.get_mut(number) {
                *state = State::Idle;
            }
            self.drop_if_unknown(*number);
        }
    }

    /// Looks a name up, and adds it if it is new. Returns its number.
    fn know(&mut self, name: &[u8], is: Is) -> u64 {
        let number = *self.numbers.entry(name.to_vec()).or_insert_with(|| {
            self.last += 1;
            self.last
        });
        let link = match &is {
            Is::Link(target) => Some(target.clone()),
            Is::Place(..) => None,
        };
        let new = || NameEntry { name: name.to_vec(), lookups: 0, used: Instant::now(), is };
        let known = self.known.entry(number).or_insert_with(new);
        known.lookups += 1;
        if let Some(target) = link {
            known.is = Is::Link(target);
        }
        number
    }
}

impl Automounter for Places {
    fn find(&self, name: &[u8], thread: u32) -> Option<Result<NameTarget, Trouble>> {
        if !name.starts_with(b"@") {
            return self.authorities.certpath.is_empty().then_some(Err(Trouble::NoName));
        }
        let Some(parsed) = Name::parse(name) else { return Some(Err(Trouble::NoName)) };
        let mut inner = self.inner.lock();
        let settled = match self.settled(&inner, name) {
            Some(settled) => settled,
            None => {
                let number = inner.numbers.get(name).copied();
                drop(inner);
                if !number.is_some_and(|number| self.mounts(number, thread)) {
                    return None;
                }
                inner = self.inner.lock();
                Ok(())
            }
        };
        Some(settled.map(|()| {
            let number = inner.know(name, Is::Place(Box::new(parsed), State::Idle));
            // A look-up by this process itself, which checks whether a mount is alive, does not count as use.
            if !Path::new(&format!("/proc/self/task/{thread}")).exists()
                && let Some(known) = inner.known.get_mut(&number)
            {
                known.used = Instant::now();
            }
            self.shown(number)
        }))
    }

    fn await_name(&self, name: &[u8], thread: u32) -> Result<NameTarget, Trouble> {
        if name.starts_with(b"@") {
            loop {
                if let Some(found) = self.find(name, thread) {
                    return found;
                }
                let mut inner = self.inner.lock();
                if self.settled(&inner, name).is_none() {
                    self.changed.wait_for(&mut inner, GLANCE);
                }
                if is_raised() {
                    return Err(Trouble::Interrupted);
                }
            }
        }
        if self.inner.lock().ended {
            return Err(Trouble::NoName);
        }
        let found = self.authorities.link(name, &|path| self.reach(path)).map_err(|refusal| {
            if refusal.trouble != Trouble::NoName {
                let shown = String::from_utf8_lossy(name).into_owned();
                tracing::warn!(name = shown, why = refusal.why, "a name cannot be looked up");
            }
            refusal.trouble
        })?;
        Ok(NameTarget::Link(self.inner.lock().know(name, Is::Link(found))))
    }

    fn forget(&self, number: u64, count: u64) {
        let mut inner = self.inner.lock();
        if let Some(known) = inner.known.get_mut(&number) {
            known.lookups = known.lookups.saturating_sub(count);
        }
        inner.drop_if_unknown(number);
    }

    fn is_link(&self, number: u64) -> bool {
        match self.inner.lock().known.get(&number).map(|known| &known.is) {
            Some(Is::Link(_)) => true,
            Some(Is::Place(..)) => self.beside.is_some(),
            None => false,
        }
    }

    fn enter(&self, number: u64, thread: u32) -> Result<EnterOutcome, Trouble> {
        if self.mounts(number, thread) {
            return Ok(EnterOutcome::Empty);
        }
        match self.want(&mut self.inner.lock(), number) {
            Some(Err(trouble)) => Err(trouble),
            Some(Ok(())) | None => Ok(EnterOutcome::Again),
        }
    }

    fn target(&self, number: u64) -> Result<Vec<u8>, Trouble> {
        let mut inner = self.inner.lock();
        loop {
            match inner.known.get(&number) {
                Some(NameEntry { is: Is::Link(target), .. }) => {
                    return Ok(target.clone().into_os_string().into_vec());
                }
                Some(NameEntry { is: Is::Place(..), name, .. }) => {
                    let target = self.path(name).into_os_string().into_vec();
                    if let Some(mounted) = self.want(&mut inner, number) {
                        return mounted.map(|()| target);
                    }
                }
                None => return Err(Trouble::NoName),
            }
            self.changed.wait_for(&mut inner, GLANCE);
            if is_raised() {
                return Err(Trouble::Interrupted);
            }
        }
    }

    fn names(&self) -> Vec<(Vec<u8>, NameTarget)> {
        let inner = self.inner.lock();
        let mounted = inner.numbers_in(|state| matches!(state, State::Mounted(_)));
        let mut names: Vec<_> = mounted
            .into_iter()
            .map(|number| (inner.known[&number].name.clone(), self.shown(number)))
            .collect();
        names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        names
    }
}
