//! Notices for users: every offence of the server is reported once, with a description and the next step.

use crate::error::{FrozenReport, IntegrityReport};
use holdfast_content::Handle;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// Most notices remembered: if a server alters everything, this many are enough.
const NOTICES_MAX: usize = 256;

/// An offence of the server.
#[derive(Clone, Debug)]
pub enum Notice {
    /// Wrong data of one file.
    Data(Arc<IntegrityReport>),
    /// A wrong order of operations: everything is stopped.
    Order(Arc<FrozenReport>),
}

/// Called with every notice, including earlier ones. It must not call the engine.
pub type NoticeHook = Box<dyn Fn(&Notice) + Send + Sync>;

/// Two notices with equal subjects count as the same.
#[derive(PartialEq, Eq)]
enum Subject<'a> {
    Data(Option<Handle>, Option<&'a str>, &'a str),
    Order,
}

impl Notice {
    fn subject(&self) -> Subject<'_> {
        match self {
            Notice::Data(report) => Subject::Data(report.file, report.path.as_deref(), &report.what),
            Notice::Order(_) => Subject::Order,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Data(report) => report.fmt(f),
            Notice::Order(report) => report.fmt(f),
        }
    }
}

/// All notices since the start, and the hooks that are called with them.
#[derive(Default)]
pub(super) struct Notices(Mutex<State>);

type SharedHook = Arc<dyn Fn(&Notice) + Send + Sync>;

#[derive(Default)]
struct State {
    told: Vec<Notice>,
    hooks: Vec<SharedHook>,
}

impl Notices {
    /// Calls all hooks with a notice, unless the same one was published before.
    pub fn publish(&self, notice: Notice) {
        let mut state = self.0.lock();
        if state.told.iter().any(|told| told.subject() == notice.subject()) {
            return;
        }
        if state.told.len() >= NOTICES_MAX && matches!(notice, Notice::Data(_)) {
            return;
        }
        state.told.push(notice.clone());
        let hooks = state.hooks.clone();
        drop(state);
        hooks.iter().for_each(|hook| hook(&notice));
    }

    /// Registers a hook, and calls it with the notices so far.
    pub fn on_notice(&self, hook: NoticeHook) {
        let hook: SharedHook = Arc::from(hook);
        let mut state = self.0.lock();
        state.hooks.push(hook.clone());
        let told = state.told.clone();
        drop(state);
        told.iter().for_each(|notice| hook(notice));
    }

    /// The notices so far, oldest first.
    pub fn notices(&self) -> Vec<Notice> {
        self.0.lock().told.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn data(what: &str, noticed_ns: i64) -> Notice {
        Notice::Data(Arc::new(IntegrityReport {
            file: None,
            path: Some("team/a".to_owned()),
            what: what.to_owned(),
            noticed_ns,
            last_good_operation: 1,
            evidence: None,
            missing: None,
        }))
    }

    /// Proves: each offence is reported once to each hook, however often it is noticed and whenever the hook
    /// was registered; and a wrong order is reported however many files were wrong before.
    #[test]
    fn each_offence_is_told_once() {
        let notices = Notices::default();
        let count = Arc::new(AtomicUsize::new(0));
        let counting = |count: &Arc<AtomicUsize>| -> NoticeHook {
            let count = count.clone();
            Box::new(move |_| {
                count.fetch_add(1, Ordering::SeqCst);
            })
        };
        notices.on_notice(counting(&count));
        notices.publish(data("altered", 1));
        notices.publish(data("altered", 2));
        assert_eq!(count.load(Ordering::SeqCst), 1);
        for number in 0..2 * NOTICES_MAX {
            notices.publish(data(&format!("altered {number}"), 3));
        }
        let order = FrozenReport {
            what: "forked".to_owned(),
            noticed_ns: 4,
            last_good_operation: 1,
            evidence: None,
            is_local: false,
            is_restored: false,
        };
        notices.publish(Notice::Order(Arc::new(order)));
        assert!(matches!(notices.notices().last(), Some(Notice::Order(_))));
        assert_eq!(count.load(Ordering::SeqCst), NOTICES_MAX + 1);
        let late = Arc::new(AtomicUsize::new(0));
        notices.on_notice(counting(&late));
        assert_eq!(late.load(Ordering::SeqCst), NOTICES_MAX + 1);
    }
}
