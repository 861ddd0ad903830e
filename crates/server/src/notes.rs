//! Notes about locks and leases that may be held. Both are in memory only, but after a crash the server must
//! wait for clients that rely on them. A single server writes two files in its data directory. Servers that
//! share orders in etcd store texts in the same form with the order.

use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_protocol::leases::TERM_MS;
use holdfast_protocol::locks::SessionId;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A file that exists while locks may be held. Locks are in memory only, but after a crash the server must
/// know that there were some.
pub(crate) struct LocksNote {
    path: Option<PathBuf>,
    is_set: Mutex<bool>,
}

impl LocksNote {
    /// The note at `path`; with `None`, nothing is written.
    pub(crate) fn at(path: Option<PathBuf>) -> LocksNote {
        LocksNote { is_set: Mutex::new(path.as_ref().is_some_and(|path| path.exists())), path }
    }

    /// Whether locks may have been held when the server ended.
    pub(crate) fn is_set(&self) -> bool {
        *self.is_set.lock()
    }

    /// Makes the note, durably, before the first lock is granted.
    pub(crate) fn set(&self) -> std::io::Result<()> {
        let mut is_set = self.is_set.lock();
        let Some(path) = self.path.as_ref().filter(|_| !*is_set) else { return Ok(()) };
        File::create(path)?.sync_all()?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        *is_set = true;
        Ok(())
    }

    /// Removes the note. Called at a clean shutdown, if no lock is held.
    pub(crate) fn clear(&self) {
        let mut is_set = self.is_set.lock();
        let removed = self.path.as_ref().is_none_or(|path| std::fs::remove_file(path).is_ok());
        *is_set &= !removed;
    }
}

/// A session that may hold leases, as it is noted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NotedSession {
    file_system: Digest,
    device: u32,
    run: u128,
    /// Whether it may hold some exclusively. The file calls that "delegation".
    pub(crate) exclusively: bool,
}

impl NotedSession {
    /// The note about a session of a file system.
    pub(crate) fn of(file_system: Digest, session: SessionId, exclusively: bool) -> NotedSession {
        NotedSession { file_system, device: session.device.0, run: session.run, exclusively }
    }

    /// Whether the notes cover this session already. A session noted as holding leases exclusively may hold
    /// others too.
    pub(crate) fn is_in(self, noted: &BTreeSet<NotedSession>) -> bool {
        noted.contains(&self) || noted.contains(&NotedSession { exclusively: true, ..self })
    }

    pub(crate) fn id(&self) -> SessionId {
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

/// A file that lists the sessions that may hold leases. Leases are in memory only, but after a crash changes
/// must wait for sessions that rely on them.
pub(crate) struct LeasesNote {
    path: Option<PathBuf>,
    term_ms: u64,
    /// For how many milliseconds leases from before the start may be held, and by which sessions. An error if
    /// the note cannot be read.
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

    /// The sessions that may hold leases of a file system from before the start, and for how many
    /// milliseconds.
    pub fn inherited(&self, file_system: Digest) -> (u64, Vec<NotedSession>) {
        match &self.inherited {
            Ok((term_ms, sessions)) => (
                *term_ms,
                sessions.iter().filter(|noted| noted.file_system == file_system).copied().collect(),
            ),
            Err(()) => (self.term_ms.max(TERM_MS), vec![nobody(file_system)]),
        }
    }

    /// Notes a session durably, before the reply with its first lease leaves. `present` returns the sessions
    /// of all file systems that hold leases now.
    pub fn note(
        &self,
        session: NotedSession,
        present: impl FnOnce() -> Vec<NotedSession>,
    ) -> std::io::Result<()> {
        let mut noted = self.noted.lock();
        if self.path.is_none() || session.is_in(&noted) {
            return Ok(());
        }
        let sessions = with_noted(present(), session, &noted);
        self.write(&sessions)?;
        *noted = sessions;
        Ok(())
    }

    /// Notes durably that unknown sessions may hold any lease of a file system, because its server was lost.
    /// `present` are the sessions of all file systems that hold leases now.
    pub fn note_unknown(&self, file_system: Digest, present: Vec<NotedSession>) -> std::io::Result<()> {
        let mut sessions = BTreeSet::from_iter(present);
        sessions.insert(nobody(file_system));
        self.write(&sessions)
    }

    /// Removes the note, because no lease is held.
    pub fn clear(&self) {
        let mut noted = self.noted.lock();
        if self.path.as_ref().is_none_or(|path| std::fs::remove_file(path).is_ok()) {
            noted.clear();
        }
    }

    fn write(&self, sessions: &BTreeSet<NotedSession>) -> std::io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        // Leases that were granted before this start, perhaps for a longer term, may still be held.
        let former = self.inherited.as_ref().map_or(TERM_MS, |(term_ms, _)| *term_ms);
        let term_ms = self.term_ms.max(former);
        let text = note_of(term_ms, sessions);
        holdfast_durable::replace(path, text.as_bytes(), holdfast_durable::PRIVATE)
    }
}

/// The noted sessions and one more. A session that once held something exclusively stays noted so, because it
/// may again: exclusive leases change hands many times a second, and each note costs a sync.
pub(crate) fn with_noted(
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

/// Stands for unknown sessions: its device id belongs to no device.
fn nobody(file_system: Digest) -> NotedSession {
    NotedSession { file_system, device: u32::MAX, run: 0, exclusively: true }
}

pub(crate) fn note_of(term_ms: u64, sessions: &BTreeSet<NotedSession>) -> String {
    let mut text = format!("{HEADING}\nterm {term_ms}\n");
    sessions.iter().for_each(|session| text.push_str(&session.line()));
    text
}

/// The part of a data directory's note that is about one file system, in the form that is stored with its
/// order. A note that cannot be read is passed on unchanged.
#[cfg(feature = "convert")]
pub(crate) fn note_about(note: &str, file_system: Digest) -> String {
    let Some((term_ms, sessions)) = parse(note) else { return note.to_owned() };
    let sessions: BTreeSet<NotedSession> =
        sessions.into_iter().filter(|noted| noted.file_system == file_system).collect();
    if sessions.is_empty() { String::new() } else { note_of(term_ms, &sessions) }
}

/// A data directory's note made from the notes stored with orders. If one of them cannot be read, the result
/// cannot be either.
#[cfg(feature = "convert")]
pub(crate) fn notes_together(notes: &[String]) -> String {
    let (mut term_ms, mut sessions) = (0, BTreeSet::new());
    for note in notes.iter().filter(|note| !note.is_empty()) {
        let Some((term, noted)) = parse(note) else { return note.clone() };
        term_ms = term.max(term_ms);
        sessions.extend(noted);
    }
    if sessions.is_empty() { String::new() } else { note_of(term_ms, &sessions) }
}

/// The sessions that may hold leases according to the note stored with the order, and for how many
/// milliseconds. If the note cannot be read, unknown sessions may hold every lease.
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
