//! The guard of a mount: the mount's process asks it before a file with rules is opened.
//!
//! Invariants: only a process passes for which a live helper, run by root, gave an unused ticket; the rules
//! are applied to the very flags of the open; what cannot be decided is refused. If an open comes without a
//! ticket, because the helper did not watch its inode yet, the kernel is made to begin it again (ESTALE),
//! once: in between the helper marks the inode. So files without rules cost nothing, and no list of files
//! with rules is needed.

use crate::identity::Identity;
use crate::manifest;
use crate::message::{FromGuard, FromHelper, VERSION};
use crate::process;
use crate::rules::{Rights, RuleSet};
use crate::seqpacket::Conversation;
use crate::tickets::{Ticket, Tickets};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};
use tracing::trace_span;

/// How long the helper may take to reply.
const HELPER_WAIT: Duration = Duration::from_secs(if cfg!(test) { 120 } else { 5 });
/// Most denials that are stored; the oldest are dropped first.
const DENIALS_MAX: usize = 256;
/// How long an open that the kernel begins again is remembered.
const AGAIN_LIFE: Duration = Duration::from_secs(10);
/// Most such opens that are remembered, and most new files whose openers are not identified yet.
const AGAIN_MAX: usize = 1024;

/// An open of a ruled file.
#[derive(Clone, Debug)]
pub struct OpenRequest<'a> {
    /// The inode that is opened.
    pub inode: u64,
    /// The thread that opens, as the kernel names it to the mount.
    pub thread: u32,
    /// The access that the open asks for.
    pub wanted: Rights,
    /// The stored form of the file's rules ([`RuleSet`]).
    pub rules: &'a [u8],
    /// The path of the file, for messages.
    pub path: String,
}

/// The guard's decision about an open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The open may proceed.
    Admitted,
    /// The kernel is to begin the open again (ESTALE).
    Retry,
    /// The open is refused, for this reason.
    Refused(String),
}

/// Whether a new file's descriptor may be used: the kernel reports it to the helper only after the file was
/// created.
#[derive(Debug, Default)]
pub struct Admission(AtomicU8);

impl Admission {
    /// Whether the process that made the file was let in.
    pub fn is_given(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 1
    }

    fn set(&self, given: bool) {
        self.0.store(if given { 1 } else { 2 }, Ordering::SeqCst);
    }
}

/// Why the helper that identifies programs cannot be used now.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The helper cannot be reached, or does not run as the right user.
    #[error(
        "the helper that identifies programs is missing ({socket}: {why}); have root run `holdfast program callers`",
        socket = .socket.display()
    )]
    Missing {
        /// The path where it should listen.
        socket: PathBuf,
        /// Why it does not serve this mount.
        why: ConnectError,
    },
    /// The helper does not watch the file.
    #[error("the helper that identifies programs cannot watch the file: {0}")]
    CannotWatch(#[from] MarkError),
}

/// Why the helper does not serve a mount.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Its socket cannot be used.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// Another user's process listens at its path.
    #[error("user {found} answers there, whose word does not count; it must be user {expected}")]
    OtherUser {
        /// The user who answers.
        found: u32,
        /// The user it must run as.
        expected: u32,
    },
    /// The helper refuses, with this reason.
    #[error("{0}")]
    Refused(String),
    /// The reply is not one of a helper.
    #[error("it does not say welcome")]
    NoWelcome,
}

/// Why the helper does not watch a file.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    /// The helper did not reply in time.
    #[error("it does not answer")]
    Silent,
    /// The helper cannot watch it, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The connection to it failed.
    #[error(transparent)]
    Socket(io::Error),
}

/// An open that was refused.
#[derive(Clone, Debug)]
pub struct Denial {
    /// When it was refused.
    pub at: SystemTime,
    /// The inode of the file.
    pub inode: u64,
    /// The path of the file at that time.
    pub path: String,
    /// The process that tried to open it.
    pub process: u32,
    /// The process's program; empty if it was not identified.
    pub program: String,
    /// Why it was refused.
    pub reason: String,
}

/// The helper's socket, and the user that it must run as.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The socket where the helper listens.
    pub socket: PathBuf,
    /// The user that it must run as.
    pub helper_uid: u32,
    /// The mount point of the file system.
    pub mountpoint: PathBuf,
    /// Directories with manifests of packages.
    pub manifests: Vec<PathBuf>,
}

/// The guard of a mount: decides about opens of files with rules.
pub struct Guard {
    settings: Settings,
    began: Instant,
    next: AtomicU64,
    state: Mutex<State>,
    connecting: Mutex<()>,
    this: Weak<Guard>,
}

#[derive(Default)]
struct State {
    helper: Option<Helper>,
    tickets: Tickets,
    /// Requests to mark that wait for an answer.
    marking: HashMap<u64, Sender<Result<(), String>>>,
    /// Opens that were sent back, by inode and thread.
    again: HashMap<(u64, u32), Instant>,
    /// New files whose openers are not identified yet.
    created: VecDeque<NewFile>,
    denials: VecDeque<Denial>,
}

struct NewFile {
    inode: u64,
    process: u32,
    started: u64,
    wanted: Rights,
    rules: Vec<u8>,
    path: String,
    admission: Arc<Admission>,
}

#[derive(Clone)]
struct Helper {
    conversation: Arc<Conversation>,
    thread: u32,
}

impl Guard {
    /// A guard. It connects to the helper when that is needed.
    pub fn new(settings: Settings) -> Arc<Guard> {
        Arc::new_cyclic(|this| Guard {
            settings,
            began: Instant::now(),
            next: AtomicU64::new(1),
            state: Mutex::default(),
            connecting: Mutex::default(),
            this: this.clone(),
        })
    }

    /// Whether the helper's own thread opens the file, since the kernel does so for each event. Its
    /// descriptor must be useless, and must not wait.
    pub fn is_helper(&self, thread: u32) -> bool {
        let mut state = self.state.lock();
        if state.helper.as_ref().is_none_or(|helper| helper.thread != thread) {
            return false;
        }
        // The number may belong to another process by now.
        state.drop_dead_helper();
        state.helper.is_some()
    }

    /// Judges an open of a ruled file.
    pub fn open(&self, request: &OpenRequest<'_>) -> Decision {
        match self.identify(request) {
            Ok(_) => Decision::Admitted,
            Err(answer) => answer,
        }
    }

    /// Like [`Guard::open`], but returns the process that was admitted.
    ///
    /// # Errors
    /// Every decision but [`Decision::Admitted`].
    pub fn identify(&self, request: &OpenRequest<'_>) -> Result<Identity, Decision> {
        let (inode, thread) = (request.inode, request.thread);
        let _span = trace_span!(target: "operation", "identify the program", inode, thread).entered();
        let (process, started) = match process::of_thread(request.thread) {
            Ok(found) => found,
            Err(error) => {
                return Err(self.deny(request, 0, "", format!("its opener cannot be told: {error}")));
            }
        };
        let rules = match RuleSet::decode(request.rules) {
            Ok(rules) => rules,
            Err(error) => return Err(self.deny(request, process, "", error.to_string())),
        };
        let ticket = {
            let mut state = self.state.lock();
            state.drop_dead_helper();
            state.tickets.take(self.now_ms(), request.inode, process, started)
        };
        match ticket {
            Some(found) => {
                self.state.lock().again.remove(&(request.inode, request.thread));
                self.judge(request, process, &rules, found)
            }
            None => Err(self.send_back(request, process)),
        }
    }

    fn judge(
        &self,
        request: &OpenRequest<'_>,
        process: u32,
        rules: &RuleSet,
        found: Result<Identity, String>,
    ) -> Result<Identity, Decision> {
        let identity = match found {
            Ok(identity) => identity,
            Err(why) => {
                return Err(self.deny(request, process, "", format!("it could not be identified: {why}")));
            }
        };
        let directories = &self.settings.manifests;
        match rules.decide(&identity, request.wanted, &|key, name, digest| {
            manifest::lists(directories, key, name, digest)
        }) {
            Ok(_) => Ok(identity),
            Err(refusal) => {
                let program = format!("{} (hash:{})", identity.path, identity.digest);
                Err(self.deny(request, process, &program, refusal.to_string()))
            }
        }
    }

    /// Handles an open without a ticket: has the helper watch the inode, and the kernel begin the open again.
    fn send_back(&self, request: &OpenRequest<'_>, process: u32) -> Decision {
        let before = self.state.lock().again.remove(&(request.inode, request.thread));
        if before.is_some_and(|at| at.elapsed() < AGAIN_LIFE) {
            let why = "the helper that identifies programs did not see this open".to_owned();
            return self.deny(request, process, "", why);
        }
        if let Err(error) = self.mark(request.inode, false) {
            return self.deny(request, process, "", error.to_string());
        }
        let mut state = self.state.lock();
        if state.again.len() >= AGAIN_MAX {
            state.again.clear();
        }
        state.again.insert((request.inode, request.thread), Instant::now());
        Decision::Retry
    }

    /// Must be called before a file is created in a directory whose rules it will inherit: makes sure that
    /// its creator can be identified.
    ///
    /// # Errors
    /// [`HelperError`]: the creator cannot be identified.
    pub fn before_creating(&self, directory: u64) -> Result<(), HelperError> {
        self.mark(directory, true)
    }

    /// Notes a file that was created, before the kernel gets the reply. Its descriptor cannot be used until
    /// its opener is admitted.
    pub fn created(&self, request: &OpenRequest<'_>) -> Arc<Admission> {
        let admission = Arc::new(Admission::default());
        let Ok((process, started)) = process::of_thread(request.thread) else { return admission };
        let mut state = self.state.lock();
        if state.created.len() >= AGAIN_MAX {
            state.created.pop_front();
        }
        state.created.push_back(NewFile {
            inode: request.inode,
            process,
            started,
            wanted: request.wanted,
            rules: request.rules.to_vec(),
            path: request.path.clone(),
            admission: Arc::clone(&admission),
        });
        admission
    }

    /// The last refused opens, newest last; of one file, or of all.
    pub fn denials(&self, inode: Option<u64>) -> Vec<Denial> {
        let state = self.state.lock();
        state
            .denials
            .iter()
            .filter(|denial| inode.is_none_or(|inode| denial.inode == inode))
            .cloned()
            .collect()
    }

    /// Records the refusal of a request that is not an open.
    pub fn refused(&self, request: &OpenRequest<'_>, reason: &str) {
        let process = process::of_thread(request.thread).map_or(0, |(process, _)| process);
        let _ = self.deny(request, process, "", reason.to_owned());
    }

    /// Checks that the helper can be reached.
    ///
    /// # Errors
    /// [`HelperError::Missing`]
    pub fn check_helper(&self) -> Result<(), HelperError> {
        self.helper().map(drop)
    }

    fn deny(&self, request: &OpenRequest<'_>, process: u32, program: &str, reason: String) -> Decision {
        tracing::warn!(path = %request.path, process, program, %reason, "an open was refused");
        let mut state = self.state.lock();
        if state.denials.len() >= DENIALS_MAX {
            state.denials.pop_front();
        }
        state.denials.push_back(Denial {
            at: SystemTime::now(),
            inode: request.inode,
            path: request.path.clone(),
            process,
            program: program.to_owned(),
            reason: reason.clone(),
        });
        Decision::Refused(reason)
    }

    /// The time by which tickets expire. In tests no time passes; the tests of module `tickets` cover expiry.
    fn now_ms(&self) -> u64 {
        if cfg!(test) { 0 } else { self.began.elapsed().as_millis() as u64 }
    }

    fn mark(&self, inode: u64, children: bool) -> Result<(), HelperError> {
        let helper = self.helper()?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (reply_sender, reply) = channel();
        self.state.lock().marking.insert(id, reply_sender);
        let sent = helper.conversation.send(&FromGuard::Mark { id, inode, children });
        let marked = match sent {
            Ok(()) => {
                let reply = reply.recv_timeout(HELPER_WAIT).map_err(|_| MarkError::Silent);
                reply.and_then(|done| done.map_err(MarkError::Refused))
            }
            Err(error) => Err(MarkError::Socket(error)),
        };
        self.state.lock().marking.remove(&id);
        Ok(marked?)
    }

    /// The helper. Connects to it if necessary.
    fn helper(&self) -> Result<Helper, HelperError> {
        let known = |guard: &Guard| {
            let mut state = guard.state.lock();
            state.drop_dead_helper();
            state.helper.clone()
        };
        if let Some(helper) = known(self) {
            return Ok(helper);
        }
        let _one_at_a_time = self.connecting.lock();
        if let Some(helper) = known(self) {
            return Ok(helper);
        }
        self.connect().map_err(|why| HelperError::Missing { socket: self.settings.socket.clone(), why })
    }

    fn connect(&self) -> Result<Helper, ConnectError> {
        let conversation = Conversation::connect(&self.settings.socket)?;
        let peer = conversation.peer()?;
        if peer.uid != self.settings.helper_uid {
            return Err(ConnectError::OtherUser { found: peer.uid, expected: self.settings.helper_uid });
        }
        conversation.set_patience(HELPER_WAIT, Some(HELPER_WAIT))?;
        let mountpoint = self.settings.mountpoint.as_os_str().as_bytes().to_vec();
        conversation.send(&FromGuard::Hello { version: VERSION, mountpoint })?;
        let thread = match conversation.receive()? {
            FromHelper::Welcome { thread } => thread,
            FromHelper::Refused(why) => return Err(ConnectError::Refused(why)),
            _ => return Err(ConnectError::NoWelcome),
        };
        conversation.set_patience(HELPER_WAIT, None)?;
        let helper = Helper { conversation: Arc::new(conversation), thread };
        self.state.lock().helper = Some(helper.clone());
        let (guard, listening) = (self.this.clone(), helper.clone());
        let listen = move || {
            while let Ok(message) = listening.conversation.receive::<FromHelper>() {
                let Some(guard) = guard.upgrade() else { break };
                guard.receive_event(&listening, message);
            }
            listening.conversation.end();
            if let Some(guard) = guard.upgrade() {
                guard.state.lock().drop_dead_helper();
            }
        };
        std::thread::Builder::new().name("callers".to_owned()).spawn(listen)?;
        tracing::info!(mountpoint = %self.settings.mountpoint.display(), "programs are identified");
        Ok(helper)
    }

    fn receive_event(&self, helper: &Helper, message: FromHelper) {
        match message {
            FromHelper::Marked { id, done } => {
                if let Some(reply_sender) = self.state.lock().marking.remove(&id) {
                    let _ = reply_sender.send(done);
                }
            }
            FromHelper::Ticket { id, inode, process, found } => {
                let goes_on = self.take_in(id, inode, process, found);
                let _ = helper.conversation.send(&FromGuard::TicketReceived { id, goes_on });
            }
            FromHelper::Revoked { id } => self.state.lock().tickets.revoke(id),
            FromHelper::Welcome { .. } | FromHelper::Refused(_) | FromHelper::Traced => {
                helper.conversation.end();
            }
        }
    }

    /// Adds a ticket. Returns whether its open may continue.
    fn take_in(&self, id: u64, inode: u64, process: u32, found: Result<Identity, String>) -> bool {
        let created = {
            let mut state = self.state.lock();
            let fits = |made: &NewFile| {
                let began = found.as_ref().map_or(made.started, |identity| identity.started);
                (made.inode, made.process, made.started) == (inode, process, began)
            };
            match state.created.iter().position(fits) {
                Some(at) => state.created.remove(at),
                None => {
                    let now = self.now_ms();
                    state.tickets.offer(now, Ticket { id, inode, process, found: found.clone() });
                    None
                }
            }
        };
        let Some(made) = created else { return true };
        let request = OpenRequest {
            inode,
            thread: process,
            wanted: made.wanted,
            rules: &made.rules,
            path: made.path.clone(),
        };
        let is_let_in = match RuleSet::decode(&made.rules) {
            Ok(rules) => self.judge(&request, process, &rules, found).is_ok(),
            Err(error) => {
                let _ = self.deny(&request, process, "", error.to_string());
                false
            }
        };
        made.admission.set(is_let_in);
        is_let_in
    }
}

impl State {
    /// Drops the tickets of a helper that is gone, before any is used.
    fn drop_dead_helper(&mut self) {
        if self.helper.as_ref().is_some_and(|helper| !helper.conversation.is_alive()) {
            self.helper = None;
            self.tickets.clear();
            self.created.clear();
            self.marking.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Rule, Subject};
    use crate::seqpacket;
    use holdfast_crypto::Digest;

    fn settings(socket: PathBuf, helper_uid: u32) -> Settings {
        Settings { socket, helper_uid, mountpoint: "/m".into(), manifests: Vec::new() }
    }

    fn rules() -> Vec<u8> {
        let who = Subject::Program(Digest([1; 32]));
        let rule = Rule {
            who,
            rights: Rights::Read,
            interpreter: false,
            generated: false,
            plain: true,
            hint: String::new(),
        };
        RuleSet::new(vec![rule]).expect("rules").encode()
    }

    fn request(rules: &[u8], wanted: Rights) -> OpenRequest<'_> {
        OpenRequest { inode: 5, thread: crate::kernel::thread(), wanted, rules, path: "/f".into() }
    }

    fn me() -> Identity {
        let (process, started) = process::of_thread(crate::kernel::thread()).expect("it is there");
        Identity { process, started, ..Identity::plain(Digest([1; 32]), "/bin/me") }
    }

    /// Without helper, with one of another user, or with rules that cannot be read, a ruled file is refused.
    #[test]
    fn refuses_without_a_helper() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let guard = Guard::new(settings(socket.clone(), 0));
        let rules = rules();
        let answer = guard.open(&request(&rules, Rights::Read));
        assert!(matches!(&answer, Decision::Refused(why) if why.contains("missing")), "{answer:?}");
        let malformed = guard.open(&request(b"none", Rights::Read));
        assert!(matches!(&malformed, Decision::Refused(why) if why.contains("malformed")), "{malformed:?}");
        let _listening = seqpacket::listener(&socket).expect("it listens");
        let other = rustix::process::geteuid().as_raw() + 1;
        let guard = Guard::new(settings(socket, other));
        let answer = guard.open(&request(&rules, Rights::Read));
        assert!(matches!(&answer, Decision::Refused(why) if why.contains("does not count")), "{answer:?}");
        assert_eq!(guard.denials(Some(5)).len(), 1);
        assert_eq!(guard.denials(Some(6)).len(), 0);
    }

    /// A first open is begun again and marked; a ticket admits one open, and not a second one; a ticket of a
    /// helper that is gone is worthless.
    #[test]
    fn a_ticket_opens_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let listening = seqpacket::listener(&socket).expect("it listens");
        let uid = rustix::process::geteuid().as_raw();
        let guard = Guard::new(settings(socket, uid));
        let helper = std::thread::spawn(move || {
            let helper = seqpacket::accept(&listening).expect("it comes");
            assert!(matches!(helper.receive().expect("a word"), FromGuard::Hello { version: VERSION, .. }));
            helper.send(&FromHelper::Welcome { thread: 77 }).expect("sent");
            let FromGuard::Mark { id, inode: 5, children: false } = helper.receive().expect("a word") else {
                panic!("not a mark")
            };
            helper.send(&FromHelper::Marked { id, done: Ok(()) }).expect("sent");
            helper
        });
        let rules = rules();
        assert_eq!(guard.open(&request(&rules, Rights::Read)), Decision::Retry);
        let helper = helper.join().expect("no panic");
        assert!(guard.is_helper(77) && !guard.is_helper(78));
        let give = |id| {
            let found = Ok(me());
            helper.send(&FromHelper::Ticket { id, inode: 5, process: me().process, found }).expect("sent");
            assert_eq!(
                helper.receive::<FromGuard>().expect("a word"),
                FromGuard::TicketReceived { id, goes_on: true }
            );
        };
        give(1);
        assert_eq!(guard.open(&request(&rules, Rights::Read)), Decision::Admitted);
        give(2);
        assert!(
            matches!(guard.open(&request(&rules, Rights::ReadWrite)), Decision::Refused(_)),
            "reading only"
        );
        give(3);
        drop(helper);
        let after = guard.open(&request(&rules, Rights::Read));
        assert!(matches!(&after, Decision::Refused(_)), "{after:?}");
        assert!(!guard.is_helper(77));
    }
}
