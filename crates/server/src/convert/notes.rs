//! Notes of who may hold leases, on their way between a data directory, which has one, and orders, which have one each.

use crate::file_system::leases::{note_of, parse};
use holdfast_crypto::Digest;
use std::collections::BTreeSet;

/// The part of a data directory's note about one file system, in the form that is stored with its order. A note that
/// cannot be read is passed on unreadable.
pub(super) fn note_about(note: &str, file_system: Digest) -> String {
    let Some((term_ms, sessions)) = parse(note) else { return note.to_owned() };
    let sessions: BTreeSet<_> =
        sessions.into_iter().filter(|noted| noted.file_system == file_system).collect();
    if sessions.is_empty() { String::new() } else { note_of(term_ms, &sessions) }
}

/// The note of a data directory from the notes stored with orders. If one of them cannot be read, the result cannot be
/// either.
pub(super) fn notes_together(notes: &[String]) -> String {
    let (mut term_ms, mut sessions) = (0, BTreeSet::new());
    for note in notes.iter().filter(|note| !note.is_empty()) {
        let Some((term, noted)) = parse(note) else { return note.clone() };
        term_ms = term.max(term_ms);
        sessions.extend(noted);
    }
    if sessions.is_empty() { String::new() } else { note_of(term_ms, &sessions) }
}
