//! Leases: operations that wait for holders to give them up, grants at an operation's place in the order, and the note
//! on disk of who may hold some, so that after a restart changes wait for those and for nobody else.

use super::FileSystem;
use super::ledger::Ledger;
use crate::host::Host;
use crate::order::{Notes, OrderError};
use holdfast_content::{DeviceId, Membership};
use holdfast_crypto::Digest;
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::leases::{ClaimId, LeaseGrant, LeaseTable, LeaseWish, Recall, TERM_MS, Touched};
use holdfast_protocol::locks::SessionId;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The leases of one file system.
pub(super) struct Leases {
    table: Mutex<LeaseTable>,
    recalled: Notify,
    freed: Notify,
    /// Who is noted beside the order, and for how many milliseconds leases may last.
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
    wish: Option<&LeaseWish>,
) -> Touched {
    Touched::by(certificate, membership).reading(wish, |principal| membership.may_write(device, principal))
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
    /// Whether leases of others forbid an operation that comes with this wish; these are then recalled, and
    /// what it changes is claimed for it unless it `has_claim`. `Some`: for how long at the latest, in milliseconds.
    pub(crate) fn obstacle(
        self: &Arc<Self>,
        host: &Host,
        device: DeviceId,
        certificate: &Certificate,
        wish: Option<&LeaseWish>,
        has_claim: bool,
    ) -> Option<(u64, Option<Claim>)> {
        if certificate.device != device {
            return None;
        }
        let touched = touched(self.ledger.lock().sequencer().membership(), device, certificate, wish);
        let wishes = wish.is_some_and(|wish| wish.exclusive);
        let now_ms = host.clock.monotonic_ms();
        self.leases.with(|table| {
            let until_ms = table.in_the_way(device, &touched, wishes, now_ms)?;
            let id = (!has_claim).then(|| table.claim(device, &touched, wishes));
            let claim = id.map(|id| Claim { file_system: self.clone(), id });
            Some((until_ms.saturating_sub(now_ms), claim))
        })
    }

    /// What an operation that is about to be ordered changes and reads, unless somebody's lease forbids it. To be asked with
    /// the ledger locked.
    pub(super) fn if_free(
        &self,
        host: &Host,
        ledger: &Ledger,
        device: DeviceId,
        certificate: &Certificate,
        wish: Option<&LeaseWish>,
    ) -> Option<Touched> {
        let touched = touched(ledger.sequencer().membership(), device, certificate, wish);
        let now_ms = host.clock.monotonic_ms();
        self.leases
            .with(|table| table.in_the_way(device, &touched, false, now_ms))
            .is_none()
            .then_some(touched)
    }

    /// What an operation that was just ordered (`fresh`), or had been before, is granted. To be asked with the ledger
    /// locked.
    pub(super) fn grant(
        &self,
        host: &Host,
        ledger: &Ledger,
        device: DeviceId,
        wish: Option<&LeaseWish>,
        touched: &Touched,
        fresh: bool,
    ) -> Option<LeaseGrant> {
        let wish = wish?;
        let membership = ledger.sequencer().membership();
        let mut pending = Touched::default();
        for certificate in ledger.sequencer().pending().filter(|pending| pending.device != device) {
            pending.add(certificate, membership);
        }
        let id = SessionId { device, run: wish.run };
        let now_ms = host.clock.monotonic_ms();
        Some(self.leases.with(|table| table.grant(id, wish, touched, fresh, &pending, now_ms)))
    }

    /// What a session is to give up.
    pub(crate) fn recall(
        &self,
        host: &Host,
        device: DeviceId,
        run: u128,
        epoch: u64,
        acknowledged: u64,
    ) -> Option<Recall> {
        let now_ms = host.clock.monotonic_ms();
        self.leases.with(|table| table.recall(SessionId { device, run }, epoch, acknowledged, now_ms))
    }

    /// A run has given up everything; if it still asks for recalls, it is answered.
    pub(crate) fn end_leases(&self, device: DeviceId, run: u128) {
        self.leases.with(|table| table.end(SessionId { device, run }));
        self.leases.recalled.notify_waiters();
    }

    /// Grants nothing any more and recalls everything.
    pub(crate) fn close_leases(&self, host: &Host) {
        let now_ms = host.clock.monotonic_ms();
        self.leases.with(|table| table.close(now_ms));
    }

    /// Whether nobody holds a lease.
    pub(crate) fn is_unleased(&self, host: &Host) -> bool {
        let now_ms = host.clock.monotonic_ms();
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

    /// Notes a session beside the order, durably, before it is told of its first grant.
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
    file_system: Digest,
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

/// First words of the note.
const HEADING: &str = "holdfast leases 1";

/// A file that says who may hold leases: they are in memory only, but after a crash changes must wait for those who
/// relied on them.
pub(crate) struct LeasesNote {
    path: Option<PathBuf>,
    term_ms: u64,
    /// How long what was held before the start may be held, and by whom.
    inherited: Result<(u64, Vec<NotedSession>), ()>,
    noted: Mutex<BTreeSet<NotedSession>>,
}

impl LeasesNote {
    /// The note at `path`; without one, nothing is kept. Leases are granted for `term_ms` from now on.
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

    /// Notes a session, durably, before it is told of its first grant.
    pub fn note(
        &self,
        host: &Host,
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
        let present = host.file_systems();
        let present = present.iter().flat_map(|file_system| file_system.noted_sessions());
        let sessions = with_noted(present, session, &noted);
        self.write(&sessions)?;
        *noted = sessions;
        Ok(())
    }

    /// Notes, durably, that somebody may hold any lease of a file system: its server was lost.
    pub fn note_unknown(&self, host: &Host, file_system: Digest) -> std::io::Result<()> {
        let present = host.file_systems();
        let mut sessions: BTreeSet<NotedSession> =
            present.iter().flat_map(|file_system| file_system.noted_sessions()).collect();
        sessions.insert(nobody(file_system));
        self.write(&sessions)
    }

    /// Takes the note away: nobody holds a lease.
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
        let new = path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// Sessions that are there, with one more. Who was noted to hold something exclusively once stays so, as it may again: that
/// goes from hand to hand many times a second, and a note costs a sync.
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

/// Somebody, of a device that nobody has.
fn nobody(file_system: Digest) -> NotedSession {
    NotedSession { file_system, device: u32::MAX, run: 0, exclusively: true }
}

fn note_of(term_ms: u64, sessions: &BTreeSet<NotedSession>) -> String {
    let mut text = format!("{HEADING}\nterm {term_ms}\n");
    sessions.iter().for_each(|session| text.push_str(&session.line()));
    text
}

/// What of a data directory's note is about one file system, as a note beside its order. One that cannot be read stays so.
pub(crate) fn note_about(note: &str, file_system: Digest) -> String {
    let Some((term_ms, sessions)) = parse(note) else { return note.to_owned() };
    let sessions: BTreeSet<NotedSession> =
        sessions.into_iter().filter(|noted| noted.file_system == file_system).collect();
    if sessions.is_empty() { String::new() } else { note_of(term_ms, &sessions) }
}

/// The note of a data directory from notes beside orders. If one of them cannot be read, neither can that.
pub(crate) fn notes_together(notes: &[String]) -> String {
    let (mut term_ms, mut sessions) = (0, BTreeSet::new());
    for note in notes.iter().filter(|note| !note.is_empty()) {
        let Some((term, noted)) = parse(note) else { return note.clone() };
        term_ms = term.max(term_ms);
        sessions.extend(noted);
    }
    if sessions.is_empty() { String::new() } else { note_of(term_ms, &sessions) }
}

/// Who may hold leases by a note beside the order, and for how long; one that cannot be read leaves nothing out.
pub(crate) fn inherited(note: Option<&str>, file_system: Digest) -> (u64, Vec<NotedSession>) {
    match note {
        None | Some("") => (0, Vec::new()),
        Some(text) => parse(text).unwrap_or_else(|| (TERM_MS, vec![nobody(file_system)])),
    }
}

fn parse(text: &str) -> Option<(u64, Vec<NotedSession>)> {
    let mut lines = text.lines();
    if lines.next()? != HEADING {
        return None;
    }
    let term_ms = lines.next()?.strip_prefix("term ")?.parse().ok()?;
    Some((term_ms, lines.map(NotedSession::parse).collect::<Option<_>>()?))
}
