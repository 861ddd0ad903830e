//! Leases: operations that wait for holders to give them up, grants at an operation's position in the order, and the
//! note on disk of which sessions may hold some, so that after a restart changes wait for those sessions only.

use super::FileSystem;
use super::ledger::Ledger;
use crate::order::{Notes, OrderError};
use crate::server_core::ServerCore;
use holdfast_content::{DeviceId, Membership};
use holdfast_crypto::Digest;
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::leases::{ClaimId, Footprint, LeaseGrant, LeaseRequest, LeaseTable, Recall, TERM_MS};
use holdfast_protocol::locks::SessionId;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The leases of one file system.
pub(super) struct Leases {
    table: Mutex<LeaseTable>,
    recalled: Notify,
    freed: Notify,
    /// The sessions that are durably noted as holders of leases.
    noted: Mutex<BTreeSet<NotedSession>>,
    noted_term_ms: u64,
}

impl Leases {
    pub fn new(
        term_ms: u64,
        first_epoch: u64,
        inherited: &[NotedSession],
        left_ms: u64,
        now_ms: u64,
    ) -> Leases {
        let mut table = LeaseTable::new(term_ms, first_epoch);
        for session in inherited {
            table.inherit(session.id(), session.exclusively, now_ms + left_ms);
        }
        Leases {
            table: Mutex::new(table),
            recalled: Notify::new(),
            freed: Notify::new(),
            noted: Mutex::default(),
            noted_term_ms: term_ms.max(left_ms),
        }
    }

    /// Does something with the table, and wakes those it concerns.
    fn with<T>(&self, act: impl FnOnce(&mut LeaseTable) -> T) -> T {
        let mut table = self.table.lock();
        let result = act(&mut table);
        let (recalled, freed) = (table.take_recalled(), table.take_freed());
        drop(table);
        if recalled {
            self.recalled.notify_waiters();
        }
        if freed {
            self.freed.notify_waiters();
        }
        result
    }
}

/// What an operation changes and reads.
fn touched(
    membership: &Membership,
    device: DeviceId,
    certificate: &Certificate,
    lease_request: Option<&LeaseRequest>,
) -> Footprint {
    Footprint::by(certificate, membership)
        .reading(lease_request, |principal| membership.may_write(device, principal))
}

/// A claim of an operation that waits; ends when it is dropped.
pub(crate) struct Claim {
    file_system: Arc<FileSystem>,
    id: ClaimId,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.file_system.leases.with(|table| table.end_claim(self.id));
    }
}

impl FileSystem {
    /// Whether leases of others conflict with an operation. If so, recalls them and claims what the operation changes
    /// (unless it `has_claim`), and returns how long they can last at most, in milliseconds.
    pub(crate) fn obstacle(
        self: &Arc<Self>,
        core: &ServerCore,
        device: DeviceId,
        certificate: &Certificate,
        lease_request: Option<&LeaseRequest>,
        has_claim: bool,
    ) -> Option<(u64, Option<Claim>)> {
        if certificate.device != device {
            return None;
        }
        let touched =
            touched(self.ledger.lock().sequencer().membership(), device, certificate, lease_request);
        let wishes = lease_request.is_some_and(|lease_request| lease_request.exclusive);
        let now_ms = core.clock.monotonic_ms();
        self.leases.with(|table| {
            let until_ms = table.recall_conflicts(device, &touched, wishes, now_ms)?;
            let id = (!has_claim).then(|| table.claim(device, &touched, wishes));
            let claim = id.map(|id| Claim { file_system: self.clone(), id });
            Some((until_ms.saturating_sub(now_ms), claim))
        })
    }

    /// What an operation that is about to be ordered changes and reads; `None` if another session's lease conflicts
    /// with it. The caller holds the lock of the ledger.
    pub(super) fn if_free(
        &self,
        core: &ServerCore,
        ledger: &Ledger,
        device: DeviceId,
        certificate: &Certificate,
        lease_request: Option<&LeaseRequest>,
    ) -> Option<Footprint> {
        let touched = touched(ledger.sequencer().membership(), device, certificate, lease_request);
        let now_ms = core.clock.monotonic_ms();
        self.leases
            .with(|table| table.recall_conflicts(device, &touched, false, now_ms))
            .is_none()
            .then_some(touched)
    }

    /// The leases granted to an operation that was just ordered (`fresh`) or had been ordered before. The caller holds
    /// the lock of the ledger.
    pub(super) fn grant(
        &self,
        core: &ServerCore,
        ledger: &Ledger,
        device: DeviceId,
        lease_request: Option<&LeaseRequest>,
        touched: &Footprint,
        fresh: bool,
    ) -> Option<LeaseGrant> {
        let lease_request = lease_request?;
        let membership = ledger.sequencer().membership();
        let mut pending = Footprint::default();
        for certificate in ledger.sequencer().pending().filter(|pending| pending.device != device) {
            pending.add(certificate, membership);
        }
        let id = SessionId { device, run: lease_request.run };
        let now_ms = core.clock.monotonic_ms();
        Some(self.leases.with(|table| table.grant(id, lease_request, touched, fresh, &pending, now_ms)))
    }

    /// What a session is to give up.
    pub(crate) fn recall(
        &self,
        core: &ServerCore,
        device: DeviceId,
        run: u128,
        epoch: u64,
        acknowledged: u64,
    ) -> Option<Recall> {
        let now_ms = core.clock.monotonic_ms();
        self.leases.with(|table| table.recall(SessionId { device, run }, epoch, acknowledged, now_ms))
    }

    /// A run has given up everything; if it still asks for recalls, it is answered.
    pub(crate) fn end_leases(&self, device: DeviceId, run: u128) {
        self.leases.with(|table| table.end(SessionId { device, run }));
        self.leases.recalled.notify_waiters();
    }

    /// Grants nothing any more and recalls everything.
    pub(crate) fn close_leases(&self, core: &ServerCore) {
        let now_ms = core.clock.monotonic_ms();
        self.leases.with(|table| table.close(now_ms));
    }

    /// Whether no session holds a lease.
    pub(crate) fn is_unleased(&self, core: &ServerCore) -> bool {
        let now_ms = core.clock.monotonic_ms();
        self.leases.with(|table| table.is_empty(now_ms))
    }

    /// Completes when something was recalled after the call.
    pub(crate) fn next_recall(&self) -> Notified<'_> {
        self.leases.recalled.notified()
    }

    /// Completes when something was given up after the call.
    pub(crate) fn next_freed(&self) -> Notified<'_> {
        self.leases.freed.notified()
    }

    /// Notes a session durably with the order, before the reply with its first lease leaves.
    pub(crate) fn note_session(
        &self,
        notes: &dyn Notes,
        device: DeviceId,
        run: u128,
        exclusively: bool,
    ) -> Result<(), OrderError> {
        let session = NotedSession { file_system: self.id, device: device.0, run, exclusively };
        let mut noted = self.leases.noted.lock();
        if noted.contains(&session) || noted.contains(&NotedSession { exclusively: true, ..session }) {
            return Ok(());
        }
        let sessions = with_noted(self.noted_sessions(), session, &noted);
        notes.put("leases", &note_of(self.leases.noted_term_ms, &sessions))?;
        *noted = sessions;
        Ok(())
    }

    fn noted_sessions(&self) -> Vec<NotedSession> {
        let note = |(SessionId { device, run }, exclusively)| NotedSession {
            file_system: self.id,
            device: device.0,
            run,
            exclusively,
        };
        self.leases.with(|table| table.sessions().map(note).collect())
    }
}

/// A session that may hold leases, as it is noted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NotedSession {
    pub(crate) file_system: Digest,
    device: u32,
    run: u128,
    /// Some of it exclusively; the file says "delegation".
    exclusively: bool,
}

impl NotedSession {
    pub(super) fn id(&self) -> SessionId {
        SessionId { device: DeviceId(self.device), run: self.run }
    }

    fn parse(line: &str) -> Option<NotedSession> {
        let mut words = line.split(' ');
        let file_system = Digest::from_hex(words.next()?)?;
        let device = words.next()?.parse().ok()?;
        let run = words.next()?.parse().ok()?;
        let exclusively = match words.next() {
            None => false,
            Some("delegation") => true,
            Some(_) => return None,
        };
        Some(NotedSession { file_system, device, run, exclusively })
    }

    fn line(&self) -> String {
        let exclusively = if self.exclusively { " delegation" } else { "" };
        format!("{} {} {}{exclusively}\n", self.file_system, self.device, self.run)
    }
}

/// The first line of the note.
const HEADING: &str = "holdfast leases 1";

/// A file that says which sessions may hold leases: leases are in memory only, but after a crash changes must wait for
/// sessions that relied on them.
pub(crate) struct LeasesNote {
    path: Option<PathBuf>,
    term_ms: u64,
    /// How long what was held before the start may be held, and by whom.
    inherited: Result<(u64, Vec<NotedSession>), ()>,
    noted: Mutex<BTreeSet<NotedSession>>,
}

impl LeasesNote {
    /// The note at `path`; with `None`, nothing is written. Leases are granted for `term_ms` from now on.
    pub fn at(path: Option<PathBuf>, term_ms: u64) -> LeasesNote {
        let inherited = match path.as_deref().map(std::fs::read_to_string) {
            None => Ok((0, Vec::new())),
            Some(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => Ok((0, Vec::new())),
            Some(Err(_)) => Err(()),
            Some(Ok(text)) => parse(&text).ok_or(()),
        };
        if inherited.is_err() {
            tracing::warn!(
                "the note of leases cannot be read: changes wait until all that may be held is over"
            );
        }
        LeasesNote { path, term_ms, inherited, noted: Mutex::default() }
    }

    /// Who may hold leases of a file system from before the start, and for how long.
    pub fn inherited(&self, file_system: Digest) -> (u64, Vec<NotedSession>) {
        match &self.inherited {
            Ok((term_ms, sessions)) => (
                *term_ms,
                sessions.iter().filter(|noted| noted.file_system == file_system).copied().collect(),
            ),
            Err(()) => (self.term_ms.max(TERM_MS), vec![nobody(file_system)]),
        }
    }

    /// Notes a session durably, before the reply with its first lease leaves.
    pub fn note(
        &self,
        core: &ServerCore,
        file_system: &FileSystem,
        device: DeviceId,
        run: u128,
        exclusively: bool,
    ) -> std::io::Result<()> {
        if self.path.is_none() {
            return Ok(());
        }
        let session = NotedSession { file_system: file_system.id, device: device.0, run, exclusively };
        let is_noted = |noted: &BTreeSet<NotedSession>| {
            noted.contains(&session) || noted.contains(&NotedSession { exclusively: true, ..session })
        };
        if is_noted(&self.noted.lock()) {
            return Ok(());
        }
        let mut noted = self.noted.lock();
        let present = core.file_systems();
        let present = present.iter().flat_map(|file_system| file_system.noted_sessions());
        let sessions = with_noted(present, session, &noted);
        self.write(&sessions)?;
        *noted = sessions;
        Ok(())
    }

    /// Notes durably that any lease of a file system may be held, by unknown sessions: its server was lost.
    pub fn note_unknown(&self, core: &ServerCore, file_system: Digest) -> std::io::Result<()> {
        let present = core.file_systems();
        let mut sessions: BTreeSet<NotedSession> =
            present.iter().flat_map(|file_system| file_system.noted_sessions()).collect();
        sessions.insert(nobody(file_system));
        self.write(&sessions)
    }

    /// Removes the note: no lease is held.
    pub fn clear(&self) {
        let mut noted = self.noted.lock();
        if self.path.as_ref().is_none_or(|path| std::fs::remove_file(path).is_ok()) {
            noted.clear();
        }
    }

    fn write(&self, sessions: &BTreeSet<NotedSession>) -> std::io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        // What was granted before this start, for another term perhaps, may still be held.
        let former = self.inherited.as_ref().map_or(TERM_MS, |(term_ms, _)| *term_ms);
        let term_ms = self.term_ms.max(former);
        let text = note_of(term_ms, sessions);
        holdfast_durable::replace(path, text.as_bytes(), holdfast_durable::PRIVATE)
    }
}

/// The noted sessions with one more. A session that once held something exclusively stays noted so, as it may again:
/// exclusive leases change hands many times a second, and each note costs a sync.
fn with_noted(
    present: impl IntoIterator<Item = NotedSession>,
    more: NotedSession,
    noted: &BTreeSet<NotedSession>,
) -> BTreeSet<NotedSession> {
    let as_noted = |session: NotedSession| {
        let exclusive = NotedSession { exclusively: true, ..session };
        if noted.contains(&exclusive) { exclusive } else { session }
    };
    let mut sessions: BTreeSet<NotedSession> = present.into_iter().map(as_noted).collect();
    sessions.remove(&NotedSession { exclusively: false, ..more });
    sessions.insert(as_noted(more));
    sessions
}

/// An unknown session: of a device id that no device has.
fn nobody(file_system: Digest) -> NotedSession {
    NotedSession { file_system, device: u32::MAX, run: 0, exclusively: true }
}

/// A note in its stored form: for how long these sessions may hold leases.
pub(crate) fn note_of(term_ms: u64, sessions: &BTreeSet<NotedSession>) -> String {
    let mut text = format!("{HEADING}\nterm {term_ms}\n");
    sessions.iter().for_each(|session| text.push_str(&session.line()));
    text
}

/// Which sessions may hold leases according to the note stored with the order, and for how long. If the note cannot be
/// read, every lease may be held.
pub(crate) fn inherited(note: Option<&str>, file_system: Digest) -> (u64, Vec<NotedSession>) {
    match note {
        None | Some("") => (0, Vec::new()),
        Some(text) => parse(text).unwrap_or_else(|| (TERM_MS, vec![nobody(file_system)])),
    }
}

/// Reads a note in its stored form.
pub(crate) fn parse(text: &str) -> Option<(u64, Vec<NotedSession>)> {
    let mut lines = text.lines();
    if lines.next()? != HEADING {
        return None;
    }
    let term_ms = lines.next()?.strip_prefix("term ")?.parse().ok()?;
    Some((term_ms, lines.map(NotedSession::parse).collect::<Option<_>>()?))
}
