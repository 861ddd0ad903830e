//! The names that a session speaks under: its own, and further ones (groups, delegations). If one name is
//! refused, the next is tried.

use parking_lot::RwLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// A name under which a request may be tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NameCandidate {
    /// The index of its alias.
    pub alias: u16,
    /// Whether the name is valid for some blocks only, so that it gets copies of them instead of views.
    pub is_partial: bool,
}

/// The names of a session.
pub(crate) struct Names {
    own: AtomicU16,
    others: RwLock<Vec<NameCandidate>>,
}

impl Names {
    /// A session with one name.
    pub fn of(alias: u16) -> Names {
        Names { own: AtomicU16::new(alias), others: RwLock::default() }
    }

    /// The name under which most requests are sent.
    pub fn own(&self) -> u16 {
        self.own.load(Ordering::Relaxed)
    }

    /// Replaces the names.
    pub fn set(&self, own: u16, others: Vec<NameCandidate>) {
        self.own.store(own, Ordering::Relaxed);
        *self.others.write() = others;
    }

    /// All names, its own first.
    pub fn all(&self) -> Vec<NameCandidate> {
        let own = NameCandidate { alias: self.own(), is_partial: false };
        let others = self.others.read();
        std::iter::once(own).chain(others.iter().copied()).collect()
    }
}
