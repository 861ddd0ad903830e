//! The names that a session speaks under: its own, and others that it has beside (groups, what was delegated to it). What
//! one name is refused is tried under the next.

use parking_lot::RwLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// A name to be tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tried {
    /// Its index among the aliases.
    pub alias: u16,
    /// It holds for some blocks only, so it gets copies of them, no views.
    pub is_partial: bool,
}

/// See the module.
pub(crate) struct Names {
    own: AtomicU16,
    others: RwLock<Vec<Tried>>,
}

impl Names {
    /// One name.
    pub fn of(alias: u16) -> Names {
        Names { own: AtomicU16::new(alias), others: RwLock::default() }
    }

    /// Under which most is asked.
    pub fn own(&self) -> u16 {
        self.own.load(Ordering::Relaxed)
    }

    /// Other names from now on.
    pub fn set(&self, own: u16, others: Vec<Tried>) {
        self.own.store(own, Ordering::Relaxed);
        *self.others.write() = others;
    }

    /// All of them, the own one first.
    pub fn all(&self) -> Vec<Tried> {
        let own = Tried { alias: self.own(), is_partial: false };
        let others = self.others.read();
        std::iter::once(own).chain(others.iter().copied()).collect()
    }
}
