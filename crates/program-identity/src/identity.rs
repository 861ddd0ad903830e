//! The identity of a process that opens a file: its program, and what else could act through it.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::Digest;
use std::fmt;

/// A process at one moment, as the helper saw it while the process waited in its open.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Identity {
    /// Its number (of the process, not of the thread).
    pub process: u32,
    /// When the process started, in the kernel's clock ticks: distinguishes processes with the same number.
    pub started: u64,
    /// Digest of its executable.
    pub digest: Digest,
    /// The path of its executable, for messages.
    pub path: String,
    /// Why the process counts as an interpreter, if it does.
    pub interpreter: Option<String>,
    /// The process that traces it; 0: none does.
    pub tracer: u32,
    /// A variable of its environment that changes which code is loaded.
    pub preload: Option<String>,
    /// A file mapped as code that others than root may change.
    pub foreign: Option<String>,
    /// A file mapped as code whose bytes in memory were changed.
    pub altered: Option<String>,
    /// Whether it has executable memory without a file.
    pub generated: bool,
    /// Whether nobody but root can or could interfere with it since it started: `holdfast program run`
    /// started it, or it is root's.
    pub clean: bool,
}

/// Why a process may do more than its program alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Weakness {
    /// The process is an interpreter, for this reason.
    Interpreter(String),
    /// This process traces it.
    Traced(u32),
    /// Its environment has this variable, which changes the code that it loads.
    Preload(String),
    /// It has mapped this file as code, which users other than root may change.
    Foreign(String),
    /// Code of this file was changed in memory.
    Altered(String),
    /// It has generated code.
    Generated,
    /// Other processes of its user can interfere with it.
    Reachable,
}

/// Weaknesses that a rule allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allowed {
    /// The process may be an interpreter.
    pub interpreter: bool,
    /// The process may have generated code.
    pub generated: bool,
    /// The process need not have been started clean.
    pub plain: bool,
}

impl Identity {
    /// The first weakness that the rule does not allow: a reason not to give the process its program's
    /// rights.
    pub fn weakness(&self, allowed: Allowed) -> Option<Weakness> {
        if let (Some(why), false) = (&self.interpreter, allowed.interpreter) {
            return Some(Weakness::Interpreter(why.clone()));
        }
        if self.tracer != 0 {
            return Some(Weakness::Traced(self.tracer));
        }
        if let Some(name) = &self.preload {
            return Some(Weakness::Preload(name.clone()));
        }
        if let Some(path) = &self.foreign {
            return Some(Weakness::Foreign(path.clone()));
        }
        if let Some(path) = &self.altered {
            return Some(Weakness::Altered(path.clone()));
        }
        if self.generated && !allowed.generated {
            return Some(Weakness::Generated);
        }
        (!self.clean && !allowed.plain).then_some(Weakness::Reachable)
    }

    /// A process without any weakness.
    pub fn plain(digest: Digest, path: &str) -> Identity {
        Identity {
            process: 1,
            started: 0,
            digest,
            path: path.to_owned(),
            interpreter: None,
            tracer: 0,
            preload: None,
            foreign: None,
            altered: None,
            generated: false,
            clean: true,
        }
    }
}

impl fmt::Display for Weakness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Weakness::Interpreter(why) => write!(
                f,
                "it is an interpreter ({why}), which runs whatever it is given; a rule with +interpreter lets it in"
            ),
            Weakness::Traced(by) => write!(f, "process {by} traces it"),
            Weakness::Preload(name) => {
                write!(f, "its environment has {name}, which loads other code; start it with holdfast program run")
            }
            Weakness::Foreign(path) => write!(f, "it has loaded {path}, which others than root may change"),
            Weakness::Altered(path) => write!(f, "its code of {path} was changed in memory"),
            Weakness::Generated => {
                f.write_str("it has code that comes from no file; a rule with +jit lets it in")
            }
            Weakness::Reachable => f.write_str(
                "it was not started clean, so other processes of its user can reach into it: start it with `holdfast program run`; \
                 a rule with +plain lets it in as it is",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each weakness of a process is reported; a rule excuses interpreters, generated code and a plain start,
    /// no more.
    #[test]
    fn weaknesses() {
        let plain = Identity::plain(Digest::ZERO, "/bin/x");
        let all = Allowed { interpreter: true, generated: true, plain: true };
        assert_eq!(plain.weakness(Allowed::default()), None);
        let some = |change: &dyn Fn(&mut Identity)| {
            let mut identity = plain.clone();
            change(&mut identity);
            [Allowed::default(), all].map(|allowed| identity.weakness(allowed).is_some())
        };
        assert_eq!(some(&|id| id.interpreter = Some("x".into())), [true, false]);
        assert_eq!(some(&|id| id.generated = true), [true, false]);
        assert_eq!(some(&|id| id.clean = false), [true, false]);
        assert_eq!(some(&|id| id.tracer = 3), [true, true]);
        assert_eq!(some(&|id| id.preload = Some("LD_PRELOAD".into())), [true, true]);
        assert_eq!(some(&|id| id.foreign = Some("/tmp/x.so".into())), [true, true]);
        assert_eq!(some(&|id| id.altered = Some("/bin/x".into())), [true, true]);
    }
}
