//! Past states, verified, and names for them (snapshots).
//!
//! A past state is fetched once, verified by `holdfast_protocol::history`, and then read like any view: every
//! block by its digest. A list of past states from the server is not proven until a state is fetched; it can
//! only omit states, or name ones that are refused when they are fetched.

use super::queue::SignerEvent;
use super::shared::Shared;
use super::{Engine, PastState};
use crate::error::{FsError, IntegrityReport};
use crate::evidence::now_ns;
use crate::pauses::Pauses;
use crate::remote::call_patiently;
use crate::tree::{self, Base, Names, ReadError, View};
use holdfast_content::{ContentError, Entry, Handle, Inode, Membership, PrincipalId, SourceError};
use holdfast_crypto::{Digest, KeyHolder};
use holdfast_protocol::floor::Floor;
use holdfast_protocol::history::{
    Point, Snapshot as Name, SnapshotEnd, membership_of, name_offence, verify_past_state,
};
use holdfast_protocol::message::{Request, Response, ServerError};
use holdfast_protocol::signed::{Signable, Signed};
use holdfast_protocol::structure::View as Slots;
use holdfast_rpc::RpcError;
use lru::LruCache;
use parking_lot::Mutex;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a list of past states is used before the server is asked again.
const LIST_AGE_MAX: Duration = Duration::from_secs(1);
/// Most past states cached in memory.
const STATES_MAX: usize = 64;
/// Most states listed.
const POINTS_MAX: usize = 100_000;
/// How often the server is asked to note the present state while something is pending, before this is given
/// up.
const NOTE_ATTEMPTS: u32 = 50;
/// How often naming the present state is tried; the state may be outdated when the name arrives.
const NAME_ATTEMPTS: u32 = 10;

/// An engine's cache of past states.
pub(super) struct PastStates {
    key: Arc<dyn KeyHolder>,
    list: Mutex<Option<(Instant, Arc<Vec<PastState>>)>>,
    states: Mutex<LruCache<Point, Arc<PastTree>>>,
}

impl PastStates {
    pub(super) fn new(key: Arc<dyn KeyHolder>) -> PastStates {
        let states = LruCache::new(NonZeroUsize::new(STATES_MAX).expect("not zero"));
        PastStates { key, list: Mutex::default(), states: Mutex::new(states) }
    }
}

/// A verified past state to read from.
pub struct PastTree {
    shared: Arc<Shared>,
    base: Base,
    point: Point,
}

impl Engine {
    /// The past states, oldest first, followed by those that have names, once for each name. At most a second
    /// old.
    ///
    /// # Errors
    /// [`FsError::Unreachable`]; [`FsError::Integrity`]: a name that no member has given.
    pub fn past_states(&self) -> Result<Arc<Vec<PastState>>, FsError> {
        if let Some((at, list)) = &*self.pasts.list.lock()
            && at.elapsed() <= LIST_AGE_MAX
        {
            return Ok(list.clone());
        }
        let at = Instant::now();
        let list = Arc::new(self.list_states(0, false)?);
        *self.pasts.list.lock() = Some((at, list.clone()));
        Ok(list)
    }

    fn list_states(&self, after: u64, note: bool) -> Result<Vec<PastState>, FsError> {
        let shared = &self.shared;
        shared.check()?;
        let mut points: Vec<Point> = Vec::new();
        let names = loop {
            let after = points.last().map_or(after, |last| last.log_size);
            let request = Request::History { after, note: note && points.is_empty() };
            let (found, more, named) = match call(shared, &request)? {
                Response::History { points, more, named } => (points, more, named),
                other => return Err(unexpected("History", &other)),
            };
            let rises = found.iter().map(|point| point.log_size).is_sorted_by(|one, next| one < next);
            if !rises || found.first().is_some_and(|first| first.log_size <= after) {
                return Err(lie(shared, "the list of past states is out of order".to_owned()));
            }
            points.extend(found);
            if !more || points.len() >= POINTS_MAX {
                break named;
            }
        };
        // Operations that others have made since this client last fetched a view must be accepted before they
        // can be verified as past.
        if points.last().is_some_and(|last| last.log_size > self.accepted()) {
            self.fetch()?;
        }
        let accepted = self.accepted();
        points.retain(|point| point.log_size <= accepted);
        let members = self.membership();
        let mut states: Vec<PastState> = Vec::new();
        for name in names {
            let value = &name.value;
            let author = members.devices.get(&value.device);
            if value.file_system != file_system(shared)
                || name_offence(&value.name).is_some()
                || !author.is_some_and(|author| name.verify(&author.key))
            {
                let what = format!("the snapshot {:?} is listed, and nobody gave this name", value.name);
                return Err(lie(shared, what));
            }
            if let Ok(at) = points.binary_search_by_key(&value.log.size, |point| point.log_size) {
                states.push(PastState { point: points[at], name: Some(Arc::new(name)) });
            }
        }
        let unnamed = points.into_iter().map(|point| PastState { point, name: None });
        Ok(unnamed.chain(states).collect())
    }

    fn accepted(&self) -> u64 {
        self.shared.latest.read().floor.log().size
    }

    /// A past state, verified.
    ///
    /// # Errors
    /// [`FsError::NotFound`]: the server no longer has it; [`FsError::Integrity`]: the server showed a state
    /// that never was; [`FsError::Unreachable`].
    pub fn past(&self, state: &PastState) -> Result<Arc<PastTree>, FsError> {
        let shared = &self.shared;
        shared.check()?;
        let point = state.point;
        let known = self.pasts.states.lock().get(&point).cloned();
        let tree = match known {
            Some(tree) => tree,
            None => {
                let tree = Arc::new(self.fetch_past(point)?);
                self.pasts.states.lock().put(point, tree.clone());
                tree
            }
        };
        if let Some(name) = &state.name
            && name.value.log != tree.base.view.log
        {
            let what =
                format!("the snapshot {:?} is shown with a state it was not given to", name.value.name);
            return Err(lie(shared, what));
        }
        Ok(tree)
    }

    fn fetch_past(&self, point: Point) -> Result<PastTree, FsError> {
        let shared = &self.shared;
        let (floor, base) = {
            let latest = shared.latest.read();
            (latest.floor.clone(), latest.base.clone())
        };
        let request = Request::Past { log_size: point.log_size, known: floor.log().size };
        let reply = match call(shared, &request)? {
            Response::Past(Some(reply)) => reply,
            Response::Past(None) => return Err(FsError::NotFound),
            other => return Err(unexpected("Past", &other)),
        };
        let refused = |what: String| {
            let size = point.log_size;
            lie(
                shared,
                format!("the server showed a past state (after {size} operations) that never was: {what}"),
            )
        };
        let reference =
            membership_of(floor.superuser, &reply.view).map_err(|lie| refused(lie.to_string()))?;
        let members = Membership::load(&shared.store, &reference)
            .map_err(|error| shared.describe(None, &ReadError::Content(error)))?;
        let past =
            verify_past_state(&floor, &members, point, &reply).map_err(|lie| refused(lie.to_string()))?;
        for structure in past.settled() {
            let mut learned = Floor::clone(&floor);
            learned.learn(&*base.membership, structure.clone()).map_err(|alarm| refused(alarm.explain()))?;
            shared.report_event(SignerEvent::Committed(Box::new(structure.clone())))?;
        }
        let blocks = Arc::new(shared.store.clone());
        let view = Arc::new(past.view().clone());
        let base = Base::new(view, Arc::new(members), base.me, blocks, shared.tables.clone());
        Ok(PastTree { shared: shared.clone(), base, point })
    }

    /// Gives the present state, with everything changed here before, a name under which it stays.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::Invalid`]: the name; [`FsError::Busy`]: other devices always have
    /// changes pending; [`FsError::Refused`], [`FsError::Unreachable`], [`FsError::Key`].
    pub fn name_state(&self, name: &str) -> Result<PastState, FsError> {
        if let Some(offence) = name_offence(name) {
            return Err(FsError::Invalid(offence.to_owned()));
        }
        let mut pauses = Pauses::new(Duration::from_millis(50), Duration::from_millis(500));
        for _ in 1..NAME_ATTEMPTS {
            match self.name_present(name) {
                // While others make changes, a noted state may be replaced by a later one of the same second.
                Err(error @ (FsError::Refused(_) | FsError::NotFound)) => {
                    tracing::debug!(%error, "the present state has passed; once more");
                }
                other => return other,
            }
            std::thread::sleep(pauses.after_failure());
        }
        self.name_present(name)
    }

    fn name_present(&self, name: &str) -> Result<PastState, FsError> {
        self.flush_commits()?;
        // This view includes all that others have made by now, and no operation of this device is in flight
        // then.
        self.fetch_everything()?;
        self.flush_commits()?;
        let accepted = self.shared.latest.read().floor.clone();
        let states = self.note()?;
        if states.iter().any(|state| state.name.as_ref().is_some_and(|known| known.value.name == name)) {
            return Err(FsError::Exists);
        }
        let newest = states.iter().rfind(|state| state.name.is_none()).ok_or(FsError::Busy)?;
        let tree = self.past(newest)?;
        if is_behind(&tree.base.view, &accepted.view) {
            let what = "the server notes as present a state that is older than the one accepted here before";
            return Err(lie(&self.shared, what.to_owned()));
        }
        let value = Name {
            file_system: file_system(&self.shared),
            device: self.shared.me,
            name: name.to_owned(),
            log: tree.base.view.log,
            time_ns: now_ns(),
        };
        let signed = Signed::by(value, &*self.pasts.key).map_err(|error| FsError::Key(error.to_string()))?;
        self.done(&Request::NameSnapshot(signed.clone()), "NameSnapshot")?;
        Ok(PastState { point: newest.point, name: Some(Arc::new(signed)) })
    }

    fn note(&self) -> Result<Vec<PastState>, FsError> {
        let mut pauses = Pauses::new(Duration::from_millis(10), Duration::from_millis(500));
        for _ in 0..NOTE_ATTEMPTS {
            match self.list_states(0, true) {
                Err(FsError::Busy) => {
                    std::thread::sleep(pauses.after_failure());
                }
                other => return other,
            }
        }
        Err(FsError::Busy)
    }

    /// Removes a name. The state then stays only as long as one without a name.
    ///
    /// # Errors
    /// [`FsError::NotFound`]; [`FsError::Access`]: the name belongs to another user; as
    /// [`Engine::name_state`].
    pub fn end_name(&self, name: &str) -> Result<(), FsError> {
        let states = self.list_states(0, false)?;
        let named =
            states.iter().filter_map(|state| state.name.as_ref()).find(|known| known.value.name == name);
        let end = SnapshotEnd {
            device: self.shared.me,
            snapshot: named.ok_or(FsError::NotFound)?.value.digest(),
            file_system: file_system(&self.shared),
        };
        let signed = Signed::by(end, &*self.pasts.key).map_err(|error| FsError::Key(error.to_string()))?;
        self.done(&Request::EndSnapshot(signed), "EndSnapshot")
    }

    fn done(&self, request: &Request, what: &str) -> Result<(), FsError> {
        let answer = call(&self.shared, request);
        *self.pasts.list.lock() = None;
        match answer? {
            Response::Done => Ok(()),
            other => Err(unexpected(what, &other)),
        }
    }
}

impl PastTree {
    /// The position in the order of the state that this tree shows.
    pub fn point(&self) -> Point {
        self.point
    }

    /// The membership at that state.
    pub fn membership(&self) -> &Membership {
        &self.base.membership
    }

    fn read<T>(&self, file: Handle, wanted: impl Fn(&Base) -> Result<T, ReadError>) -> Result<T, FsError> {
        wanted(&self.base).map_err(|error| match error {
            ReadError::Content(ContentError::Source(SourceError::Missing(address))) => {
                // Either the state was dropped meanwhile, or the block is withheld. The reader gets nothing
                // in both cases.
                let request = Request::Past { log_size: self.point.log_size, known: self.point.log_size };
                match call(&self.shared, &request) {
                    Ok(Response::Past(None)) => FsError::Stale,
                    _ => lie(
                        &self.shared,
                        format!(
                            "the server says that it does not have block {}, which the past state after {} operations \
                             refers to",
                            address.short(),
                            self.point.log_size
                        ),
                    ),
                }
            }
            error => self.shared.describe(Some(file), &error),
        })
    }
}

impl View for PastTree {
    fn position(&self) -> u64 {
        self.point.log_size
    }

    fn inode(&self, file: Handle) -> Result<Arc<Inode>, FsError> {
        self.read(file, |base| base.inode(file))
    }

    fn entry(&self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
        self.read(directory, |base| base.entry(directory, name))
    }

    fn entries(&self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError> {
        self.read(directory, |base| Ok(base.entries(directory, after, limit)?.0))
    }

    /// A past state cannot be written.
    fn may_write(&self, _: PrincipalId) -> bool {
        false
    }

    fn principals(&self) -> Vec<PrincipalId> {
        tree::principals_of(&self.base.membership)
    }

    fn name_of(&self, principal: PrincipalId) -> String {
        tree::name_of(&self.base.membership, principal)
    }
}

/// Whether a table in force in `accepted` has an older version in `past`. Operations that change no table
/// make no difference.
fn is_behind(past: &Slots, accepted: &Slots) -> bool {
    let principals = accepted.slots.values().flat_map(|slot| slot.value.handles.keys());
    principals.into_iter().any(|principal| {
        let handle = |view: &Slots| view.handle(*principal).map(|(_, handle)| handle);
        match (handle(past), handle(accepted)) {
            (Some(then), Some(now)) => then.reference != now.reference && then.version < now.version,
            (None, Some(_)) => true,
            (_, None) => false,
        }
    })
}

fn file_system(shared: &Shared) -> Digest {
    shared.latest.read().floor.file_system()
}

fn call(shared: &Shared, request: &Request) -> Result<Response, FsError> {
    call_patiently(&*shared.remote, request, shared.patience()).map_err(|error| match error {
        RpcError::Server(ServerError::Busy) => FsError::Busy,
        RpcError::Server(ServerError::NotAllowed(why)) => FsError::Access(why),
        RpcError::Server(ServerError::Invalid(why)) => FsError::Refused(why),
        error => FsError::from(&error),
    })
}

fn unexpected(what: &str, answer: &Response) -> FsError {
    let kind = format!("{answer:?}");
    let kind = kind.split(['(', ' ', '{']).next().unwrap_or_default();
    FsError::Refused(format!("{what} was answered by {kind}"))
}

/// Reports that the server showed something impossible: an error for good, with a log entry and a notice.
fn lie(shared: &Shared, what: String) -> FsError {
    let report = IntegrityReport {
        file: None,
        path: None,
        what,
        noticed_ns: now_ns(),
        last_good_operation: shared.last_operation.load(std::sync::atomic::Ordering::Relaxed),
        evidence: None,
        missing: None,
    };
    let base = shared.latest.read().base.clone();
    shared.announce(FsError::Integrity(Arc::new(report)), &base)
}
