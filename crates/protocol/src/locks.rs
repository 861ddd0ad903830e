//! Advisory locks of files across clients: which holder has which range, which waits for which, and when a
//! silent holder loses its locks. This is the server's part; a client keeps its own locks in a [`Holdings`].
//!
//! Locks coordinate cooperating programs; nothing secret or signed depends on them. A server that lies about
//! them can let two programs write at once, as it also could with two different views. What programs write is
//! verified as always.
//!
//! Invariants:
//! - No two holders have overlapping ranges of one file and space if one of the ranges is exclusive.
//! - A holder has one mode at each byte: setting a range replaces what it had there, as in fcntl(2).
//! - A session that is heard from keeps its locks. A silent one keeps them until another wants them after
//!   [`LEASE_MS`], so a short silence costs nothing.
//! - After a restart, only sessions that held locks before may take any, for [`LEASE_MS`].

use crate::message::{LockMode, LockSpace};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, Handle};
use std::collections::{BTreeMap, HashMap, HashSet};

/// How long a silent session keeps its locks although others want them, in milliseconds.
pub const LEASE_MS: u64 = 30_000;
/// Most ranges that one device holds, in all its sessions: nobody can use up what others need.
pub const DEVICE_RANGES_MAX: usize = 16_384;
/// Most sessions of one device.
pub const DEVICE_SESSIONS_MAX: usize = 64;

/// Bytes from `start` to `last`, both included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` for everything from `start` on, however long the file becomes.
    pub last: u64,
}

impl LockRange {
    /// A whole file.
    pub const ALL: LockRange = LockRange { start: 0, last: u64::MAX };

    /// Whether the range has a byte.
    pub fn is_valid(&self) -> bool {
        self.start <= self.last
    }

    /// Whether they share a byte.
    pub fn overlaps(&self, other: &LockRange) -> bool {
        self.start <= other.last && other.start <= self.last
    }
}

/// Ranges of one holder in one file and space, each with its mode; disjoint, and joined where they touch.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Ranges(BTreeMap<u64, (u64, LockMode)>);

impl Ranges {
    /// Sets a range to a mode, or to none.
    pub fn set(&mut self, range: LockRange, mode: Option<LockMode>) {
        let touched: Vec<(u64, u64, LockMode)> = self.overlapping(range).collect();
        for (start, last, held) in touched {
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, (range.start - 1, held));
            }
            if last > range.last {
                self.0.insert(range.last + 1, (last, held));
            }
        }
        let Some(mode) = mode else { return };
        let LockRange { mut start, mut last } = range;
        if let Some((&before, &(end, held))) = self.0.range(..start).next_back()
            && held == mode
            && end.checked_add(1) == Some(start)
        {
            self.0.remove(&before);
            start = before;
        }
        if let Some(after) = last.checked_add(1)
            && let Some(&(end, held)) = self.0.get(&after)
            && held == mode
        {
            self.0.remove(&after);
            last = end;
        }
        self.0.insert(start, (last, mode));
    }

    /// The first range here that keeps another holder from having `range` in `mode`.
    pub fn conflict(&self, range: LockRange, mode: LockMode) -> Option<(LockRange, LockMode)> {
        self.overlapping(range)
            .find(|(_, _, held)| mode == LockMode::Exclusive || *held == LockMode::Exclusive)
            .map(|(start, last, held)| (LockRange { start, last }, held))
    }

    /// All ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = (LockRange, LockMode)> + '_ {
        self.0.iter().map(|(&start, &(last, mode))| (LockRange { start, last }, mode))
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn overlapping(&self, range: LockRange) -> impl Iterator<Item = (u64, u64, LockMode)> + '_ {
        let before = self.0.range(..range.start).next_back();
        let within = self.0.range(range.start..=range.last);
        let all = before.into_iter().chain(within).map(|(&start, &(last, mode))| (start, last, mode));
        all.filter(move |(start, last, _)| LockRange { start: *start, last: *last }.overlaps(&range))
    }
}

/// A run of one client program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId {
    /// The device that proved to be there.
    pub device: DeviceId,
    /// Number that each run draws at random.
    pub run: u128,
}

/// The holder of a lock: a process or an open file description of a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Holder {
    /// The session that holds the lock.
    pub session: SessionId,
    /// The kernel's number there.
    pub owner: u64,
}

/// A lock that a holder asks for, or gives up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockAttempt {
    /// The file.
    pub file: Handle,
    /// Whether the lock is of `flock` or of `fcntl`; the two do not see each other.
    pub space: LockSpace,
    /// The bytes to lock.
    pub range: LockRange,
    /// The mode; `None` gives up.
    pub mode: Option<LockMode>,
    /// The process, for people.
    pub process: u32,
    /// Whether it was held before the server restarted, or before this session was given up.
    pub reclaim: bool,
    /// The holder will wait if it must.
    pub wait: bool,
}

/// A lock that is in the way of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// The holder of that lock.
    pub holder: Holder,
    /// The bytes that it covers.
    pub range: LockRange,
    /// Its mode.
    pub mode: LockMode,
    /// The process, in its own client's numbers.
    pub process: u32,
}

/// What became of a request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOutcome {
    /// The lock is held, or given up, as requested.
    Granted,
    /// Another holder has a conflicting lock.
    Conflict(Conflict),
    /// Waiting would never end, since the holders in the way wait for this one.
    Deadlock,
    /// Only reclaims are taken for this many milliseconds more.
    Grace(u64),
    /// There are too many locks.
    TooMany,
}

struct Session {
    /// Changes when the server has forgotten what the session held.
    epoch: u64,
    heard_ms: u64,
}

#[derive(Default)]
struct LockedRanges {
    ranges: Ranges,
    process: u32,
}

/// The locks of one file system.
pub struct LockTable {
    files: HashMap<(Handle, LockSpace), BTreeMap<Holder, LockedRanges>>,
    sessions: BTreeMap<SessionId, Session>,
    /// Number of ranges that each device holds.
    ranges: HashMap<DeviceId, usize>,
    /// The holder that each holder waits for. Only processes can wait in circles that they cannot see themselves.
    waiting: HashMap<Holder, Holder>,
    next_epoch: u64,
    grace_until_ms: u64,
    freed: bool,
}

impl LockTable {
    /// An empty table. `first_epoch` must be greater than any epoch of an earlier run. Until `grace_until_ms`
    /// only reclaims are granted.
    pub fn new(first_epoch: u64, grace_until_ms: u64) -> LockTable {
        LockTable {
            files: HashMap::new(),
            sessions: BTreeMap::new(),
            ranges: HashMap::new(),
            waiting: HashMap::new(),
            next_epoch: first_epoch,
            grace_until_ms,
            freed: false,
        }
    }

    /// Whether no locks are held.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Notes that a session was heard from. Returns its epoch: if the client knows another one, the server
    /// has forgotten its locks. `None`: the device has too many sessions.
    pub fn renew_session(&mut self, id: SessionId, now_ms: u64) -> Option<u64> {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.heard_ms = now_ms;
            return Some(session.epoch);
        }
        let runs = SessionId { run: 0, ..id }..=SessionId { run: u128::MAX, ..id };
        if self.sessions.range(runs.clone()).count() >= DEVICE_SESSIONS_MAX {
            // A session that has been silent for long is ended to make room.
            let silent = self.sessions.range(runs).filter(|(_, session)| is_silent(session, now_ms));
            let oldest = silent.min_by_key(|(_, session)| session.heard_ms).map(|(id, _)| *id)?;
            self.end(oldest);
        }
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        self.sessions.insert(id, Session { epoch, heard_ms: now_ms });
        Some(epoch)
    }

    /// Carries out a request, or returns the lock that is in the way.
    pub fn request(&mut self, holder: Holder, request: &LockAttempt, now_ms: u64) -> LockOutcome {
        let place = (request.file, request.space);
        if let Some(mode) = request.mode {
            if !request.reclaim && now_ms < self.grace_until_ms {
                return LockOutcome::Grace(self.grace_until_ms - now_ms);
            }
            if let Some(conflict) = self.first_conflict(place, holder, request.range, mode, now_ms) {
                return self.must_wait(holder, request, conflict);
            }
        }
        let held_now = self.files.get(&place).and_then(|file| file.get(&holder));
        if request.mode.is_none() && held_now.is_none() {
            return LockOutcome::Granted;
        }
        // Setting a range splits at most one other into three.
        let of_device = self.ranges.get(&holder.session.device).copied().unwrap_or(0);
        if request.mode.is_some() && of_device + 2 > DEVICE_RANGES_MAX {
            return LockOutcome::TooMany;
        }
        let file = self.files.entry(place).or_default();
        let held = file.entry(holder).or_default();
        let before = held.ranges.len();
        self.freed |= before > 0 && request.mode != Some(LockMode::Exclusive);
        held.ranges.set(request.range, request.mode);
        if request.mode.is_some() {
            held.process = request.process;
        }
        let after = held.ranges.len();
        if after == 0 {
            file.remove(&holder);
            if file.is_empty() {
                self.files.remove(&place);
            }
        }
        self.count(holder.session.device, before, after);
        LockOutcome::Granted
    }

    /// Whether a holder has anything of a file.
    pub fn holds(&self, holder: Holder, file: Handle, space: LockSpace) -> bool {
        self.files.get(&(file, space)).is_some_and(|file| file.contains_key(&holder))
    }

    /// The lock that would be in the way of a request, without making it.
    pub fn test(&mut self, holder: Holder, request: &LockAttempt, now_ms: u64) -> Option<Conflict> {
        self.first_conflict((request.file, request.space), holder, request.range, request.mode?, now_ms)
    }

    /// As [`LockTable::test`], and if a lock is in the way, notes that the holder waits for it until
    /// [`LockTable::waits_no_more`].
    pub fn wait_for(&mut self, holder: Holder, request: &LockAttempt, now_ms: u64) -> LockOutcome {
        let Some(conflict) = self.test(holder, request, now_ms) else { return LockOutcome::Granted };
        if self.would_deadlock(holder, request, &conflict) {
            return LockOutcome::Deadlock;
        }
        self.waiting.insert(holder, conflict.holder);
        LockOutcome::Conflict(conflict)
    }

    /// Notes that a holder has stopped waiting.
    pub fn waits_no_more(&mut self, holder: Holder) {
        self.waiting.remove(&holder);
    }

    /// Whether a lock was given up since the last call, so that waiting holders should ask again.
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// Ends a session: all its locks are free.
    pub fn end(&mut self, id: SessionId) {
        self.freed = true;
        self.sessions.remove(&id);
        self.waiting.retain(|holder, _| holder.session != id);
        let mut given_up = 0;
        self.files.retain(|_, file| {
            file.retain(|holder, held| {
                let stays = holder.session != id;
                given_up += if stays { 0 } else { held.ranges.len() };
                stays
            });
            !file.is_empty()
        });
        self.count(id.device, given_up, 0);
    }

    fn must_wait(&mut self, holder: Holder, request: &LockAttempt, conflict: Conflict) -> LockOutcome {
        if !request.wait {
            return LockOutcome::Conflict(conflict);
        }
        if request.space == LockSpace::Flock {
            // As flock(2) says, a conversion gives up the old lock first, so that two converting holders do
            // not wait for each other for ever.
            self.request(holder, &LockAttempt { mode: None, ..*request }, 0);
            return LockOutcome::Conflict(conflict);
        }
        match self.would_deadlock(holder, request, &conflict) {
            true => LockOutcome::Deadlock,
            false => LockOutcome::Conflict(conflict),
        }
    }

    /// Whether the holder that this one would wait for waits for this one, directly or not.
    fn would_deadlock(&self, holder: Holder, request: &LockAttempt, conflict: &Conflict) -> bool {
        let mut seen = HashSet::new();
        let mut at = conflict.holder;
        while request.space == LockSpace::Fcntl && seen.insert(at) {
            match self.waiting.get(&at) {
                Some(next) if *next == holder => return true,
                Some(next) => at = *next,
                None => return false,
            }
        }
        false
    }

    /// The first conflict with a session that is still alive. Dead sessions in the way lose all their locks.
    fn first_conflict(
        &mut self,
        place: (Handle, LockSpace),
        holder: Holder,
        range: LockRange,
        mode: LockMode,
        now_ms: u64,
    ) -> Option<Conflict> {
        loop {
            let others = self.files.get(&place)?.iter().filter(|(other, _)| **other != holder);
            let found = others.filter_map(|(other, held)| {
                let (range, mode) = held.ranges.conflict(range, mode)?;
                Some(Conflict { holder: *other, range, mode, process: held.process })
            });
            let conflict = found.min_by_key(|conflict| conflict.range)?;
            let session = conflict.holder.session;
            if self.sessions.get(&session).is_some_and(|session| !is_silent(session, now_ms)) {
                return Some(conflict);
            }
            self.end(session);
        }
    }

    fn count(&mut self, device: DeviceId, before: usize, after: usize) {
        let ranges = self.ranges.entry(device).or_default();
        *ranges = *ranges + after - before;
        if *ranges == 0 {
            self.ranges.remove(&device);
        }
    }
}

fn is_silent(session: &Session, now_ms: u64) -> bool {
    now_ms.saturating_sub(session.heard_ms) > LEASE_MS
}

#[cfg(test)]
mod tests;
