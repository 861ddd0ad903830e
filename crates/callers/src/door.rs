//! The door of a mount: what its process asks before a ruled file is opened.
//!
//! Invariants: nothing passes but a process for which a live helper, run by root, gave a ticket that is not used; the
//! rules are judged for the very flags of the open; what cannot be judged is refused. An open that comes without a
//! ticket, because the helper did not watch its inode yet, is begun again by the kernel (ESTALE), once: the helper
//! marks the inode in between. So files without rules cost nothing, and no list of ruled files is needed.

use crate::identity::Identity;
use crate::manifest;
use crate::message::{FromDoor, FromHelper, VERSION};
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

/// How long the helper has for an answer.
const HELPER_WAIT: Duration = Duration::from_secs(if cfg!(test) { 120 } else { 5 });
/// Most denials remembered.
const DENIALS_MAX: usize = 256;
/// How long an open that is to be begun again is remembered.
const AGAIN_LIFE: Duration = Duration::from_secs(10);
/// Most of them, and most new files that wait to be judged.
const AGAIN_MAX: usize = 1024;

/// An open of a ruled file.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    /// The inode.
    pub inode: u64,
    /// The thread that opens, as the kernel names it to the mount.
    pub thread: u32,
    /// For what.
    pub wanted: Rights,
    /// The stored rules.
    pub rules: &'a [u8],
    /// Where the file is, for people.
    pub path: String,
}

/// What becomes of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is let in.
    GoesOn,
    /// The kernel is to begin it again.
    Again,
    /// It is refused.
    Refused(String),
}

/// Whether a new file's descriptor may be used: the kernel tells the helper of it only after it was made.
#[derive(Debug, Default)]
pub struct Admission(AtomicU8);

impl Admission {
    /// Whether its opener was let in.
    pub fn is_given(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 1
    }

    fn set(&self, given: bool) {
        self.0.store(if given { 1 } else { 2 }, Ordering::SeqCst);
    }
}

/// An open that was refused.
#[derive(Clone, Debug)]
pub struct Denial {
    /// When.
    pub at: SystemTime,
    /// The file.
    pub inode: u64,
    /// Where it was.
    pub path: String,
    /// The process.
    pub process: u32,
    /// Its program, if it was identified.
    pub program: String,
    /// Why.
    pub reason: String,
}

/// Where the helper is, and whose word counts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The helper's socket.
    pub socket: PathBuf,
    /// The user that it must run as.
    pub helper_uid: u32,
    /// Where the file system is mounted.
    pub mountpoint: PathBuf,
    /// Where manifests of packages are.
    pub manifests: Vec<PathBuf>,
}

/// A mount's door.
pub struct Door {
    settings: Settings,
    began: Instant,
    next: AtomicU64,
    state: Mutex<State>,
    connecting: Mutex<()>,
    this: Weak<Door>,
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
    created: VecDeque<Created>,
    denials: VecDeque<Denial>,
}

struct Created {
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

impl Door {
    /// A door; the helper is connected to when it is needed.
    pub fn new(settings: Settings) -> Arc<Door> {
        Arc::new_cyclic(|this| Door {
            settings,
            began: Instant::now(),
            next: AtomicU64::new(1),
            state: Mutex::default(),
            connecting: Mutex::default(),
            this: this.clone(),
        })
    }

    /// Whether it is the helper's own thread that opens, because the kernel does so for each event: its descriptor is
    /// to be of no use, and must not wait.
    pub fn is_helper(&self, thread: u32) -> bool {
        let mut state = self.state.lock();
        if state.helper.as_ref().is_none_or(|helper| helper.thread != thread) {
            return false;
        }
        // Its number may be somebody else's by now.
        state.drop_dead_helper();
        state.helper.is_some()
    }

    /// Judges an open of a ruled file.
    pub fn open(&self, asked: &Asked<'_>) -> Answer {
        match self.identify(asked) {
            Ok(_) => Answer::GoesOn,
            Err(answer) => answer,
        }
    }

    /// The same; who it is that is let in.
    ///
    /// # Errors
    /// Every answer but [`Answer::GoesOn`].
    pub fn identify(&self, asked: &Asked<'_>) -> Result<Identity, Answer> {
        let (process, started) = match process::of_thread(asked.thread) {
            Ok(found) => found,
            Err(error) => return Err(self.deny(asked, 0, "", format!("its opener cannot be told: {error}"))),
        };
        let rules = match RuleSet::decode(asked.rules) {
            Ok(rules) => rules,
            Err(error) => return Err(self.deny(asked, process, "", error.to_string())),
        };
        let ticket = {
            let mut state = self.state.lock();
            state.drop_dead_helper();
            state.tickets.take(self.now_ms(), asked.inode, process, started)
        };
        match ticket {
            Some(found) => {
                self.state.lock().again.remove(&(asked.inode, asked.thread));
                self.judge(asked, process, &rules, found)
            }
            None => Err(self.send_back(asked, process)),
        }
    }

    fn judge(
        &self,
        asked: &Asked<'_>,
        process: u32,
        rules: &RuleSet,
        found: Result<Identity, String>,
    ) -> Result<Identity, Answer> {
        let identity = match found {
            Ok(identity) => identity,
            Err(why) => {
                return Err(self.deny(asked, process, "", format!("it could not be identified: {why}")));
            }
        };
        let places = &self.settings.manifests;
        match rules
            .decide(&identity, asked.wanted, &|key, name, digest| manifest::lists(places, key, name, digest))
        {
            Ok(_) => Ok(identity),
            Err(refusal) => {
                let program = format!("{} (hash:{})", identity.path, identity.digest);
                Err(self.deny(asked, process, &program, refusal.to_string()))
            }
        }
    }

    /// No ticket: has the helper watch the inode, and the kernel begin again.
    fn send_back(&self, asked: &Asked<'_>, process: u32) -> Answer {
        let before = self.state.lock().again.remove(&(asked.inode, asked.thread));
        if before.is_some_and(|at| at.elapsed() < AGAIN_LIFE) {
            let why = "the helper that identifies programs did not see this open".to_owned();
            return self.deny(asked, process, "", why);
        }
        if let Err(why) = self.mark(asked.inode, false) {
            return self.deny(asked, process, "", why);
        }
        let mut state = self.state.lock();
        if state.again.len() >= AGAIN_MAX {
            state.again.clear();
        }
        state.again.insert((asked.inode, asked.thread), Instant::now());
        Answer::Again
    }

    /// Before a file is made in a directory whose rules it will have: whoever makes it will be identified.
    ///
    /// # Errors
    /// It cannot be, and why.
    pub fn before_creating(&self, directory: u64) -> Result<(), String> {
        self.mark(directory, true)
    }

    /// A file was made, and the kernel is about to be told. Its descriptor is of no use until its opener is let in.
    pub fn created(&self, asked: &Asked<'_>) -> Arc<Admission> {
        let admission = Arc::new(Admission::default());
        let Ok((process, started)) = process::of_thread(asked.thread) else { return admission };
        let mut state = self.state.lock();
        if state.created.len() >= AGAIN_MAX {
            state.created.pop_front();
        }
        state.created.push_back(Created {
            inode: asked.inode,
            process,
            started,
            wanted: asked.wanted,
            rules: asked.rules.to_vec(),
            path: asked.path.clone(),
            admission: Arc::clone(&admission),
        });
        admission
    }

    /// The last opens that were refused, newest last; of one file, or all.
    pub fn denials(&self, inode: Option<u64>) -> Vec<Denial> {
        let state = self.state.lock();
        state
            .denials
            .iter()
            .filter(|denial| inode.is_none_or(|inode| denial.inode == inode))
            .cloned()
            .collect()
    }

    /// Remembers that something was refused that is no open.
    pub fn refused(&self, asked: &Asked<'_>, reason: &str) {
        let process = process::of_thread(asked.thread).map_or(0, |(process, _)| process);
        let _ = self.deny(asked, process, "", reason.to_owned());
    }

    /// Whether the helper is there.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub fn check_helper(&self) -> Result<(), String> {
        self.helper().map(drop)
    }

    fn deny(&self, asked: &Asked<'_>, process: u32, program: &str, reason: String) -> Answer {
        tracing::warn!(path = %asked.path, process, program, %reason, "an open was refused");
        let mut state = self.state.lock();
        if state.denials.len() >= DENIALS_MAX {
            state.denials.pop_front();
        }
        state.denials.push_back(Denial {
            at: SystemTime::now(),
            inode: asked.inode,
            path: asked.path.clone(),
            process,
            program: program.to_owned(),
            reason: reason.clone(),
        });
        Answer::Refused(reason)
    }

    /// The time by which tickets age. In tests none passes: that they age is tested where they are kept.
    fn now_ms(&self) -> u64 {
        if cfg!(test) { 0 } else { self.began.elapsed().as_millis() as u64 }
    }

    fn mark(&self, inode: u64, children: bool) -> Result<(), String> {
        let helper = self.helper()?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (told, hear) = channel();
        self.state.lock().marking.insert(id, told);
        let sent = helper.conversation.send(&FromDoor::Mark { id, inode, children });
        let heard = match sent {
            Ok(()) => hear.recv_timeout(HELPER_WAIT).unwrap_or_else(|_| Err("it does not answer".to_owned())),
            Err(error) => Err(error.to_string()),
        };
        self.state.lock().marking.remove(&id);
        heard.map_err(|why| format!("the helper that identifies programs cannot watch the file: {why}"))
    }

    /// The helper; connects if need be.
    fn helper(&self) -> Result<Helper, String> {
        let known = |door: &Door| {
            let mut state = door.state.lock();
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
        self.connect().map_err(|why| {
            format!(
                "the helper that identifies programs is missing ({}: {why}); have root run `holdfast callers`",
                self.settings.socket.display()
            )
        })
    }

    fn connect(&self) -> Result<Helper, String> {
        let words = |error: io::Error| error.to_string();
        let conversation = Conversation::connect(&self.settings.socket).map_err(words)?;
        let peer = conversation.peer().map_err(words)?;
        if peer.uid != self.settings.helper_uid {
            return Err(format!(
                "user {} answers there, whose word does not count; it must be user {}",
                peer.uid, self.settings.helper_uid
            ));
        }
        conversation.set_patience(HELPER_WAIT, Some(HELPER_WAIT)).map_err(words)?;
        let mountpoint = self.settings.mountpoint.as_os_str().as_bytes().to_vec();
        conversation.send(&FromDoor::Hello { version: VERSION, mountpoint }).map_err(words)?;
        let thread = match conversation.receive().map_err(words)? {
            FromHelper::Welcome { thread } => thread,
            FromHelper::Refused(why) => return Err(why),
            _ => return Err("it does not say welcome".to_owned()),
        };
        conversation.set_patience(HELPER_WAIT, None).map_err(words)?;
        let helper = Helper { conversation: Arc::new(conversation), thread };
        self.state.lock().helper = Some(helper.clone());
        let (door, heard) = (self.this.clone(), helper.clone());
        let listen = move || {
            while let Ok(message) = heard.conversation.receive::<FromHelper>() {
                let Some(door) = door.upgrade() else { break };
                door.hear(&heard, message);
            }
            heard.conversation.end();
            if let Some(door) = door.upgrade() {
                door.state.lock().drop_dead_helper();
            }
        };
        std::thread::Builder::new().name("callers".to_owned()).spawn(listen).map_err(words)?;
        tracing::info!(mountpoint = %self.settings.mountpoint.display(), "programs are identified");
        Ok(helper)
    }

    fn hear(&self, helper: &Helper, message: FromHelper) {
        match message {
            FromHelper::Marked { id, done } => {
                if let Some(told) = self.state.lock().marking.remove(&id) {
                    let _ = told.send(done);
                }
            }
            FromHelper::Ticket { id, inode, process, found } => {
                let goes_on = self.take_in(id, inode, process, found);
                let _ = helper.conversation.send(&FromDoor::Taken { id, goes_on });
            }
            FromHelper::Revoked { id } => self.state.lock().tickets.revoke(id),
            FromHelper::Welcome { .. } | FromHelper::Refused(_) | FromHelper::Traced => {
                helper.conversation.end();
            }
        }
    }

    /// Takes a ticket in; whether the open that it is of goes on.
    fn take_in(&self, id: u64, inode: u64, process: u32, found: Result<Identity, String>) -> bool {
        let created = {
            let mut state = self.state.lock();
            let fits = |made: &Created| {
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
        let asked = Asked {
            inode,
            thread: process,
            wanted: made.wanted,
            rules: &made.rules,
            path: made.path.clone(),
        };
        let is_let_in = match RuleSet::decode(&made.rules) {
            Ok(rules) => self.judge(&asked, process, &rules, found).is_ok(),
            Err(error) => {
                let _ = self.deny(&asked, process, "", error.to_string());
                false
            }
        };
        made.admission.set(is_let_in);
        is_let_in
    }
}

impl State {
    /// A helper that is gone takes its tickets with it, before any is used again.
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
    use crate::rules::{Rule, Who};
    use crate::seqpacket;
    use holdfast_crypto::Digest;

    fn settings(socket: PathBuf, helper_uid: u32) -> Settings {
        Settings { socket, helper_uid, mountpoint: "/m".into(), manifests: Vec::new() }
    }

    fn rules() -> Vec<u8> {
        let who = Who::Program(Digest([1; 32]));
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

    fn asked(rules: &[u8], wanted: Rights) -> Asked<'_> {
        Asked { inode: 5, thread: crate::kernel::thread(), wanted, rules, path: "/f".into() }
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
        let door = Door::new(settings(socket.clone(), 0));
        let rules = rules();
        let answer = door.open(&asked(&rules, Rights::Read));
        assert!(matches!(&answer, Answer::Refused(why) if why.contains("missing")), "{answer:?}");
        let malformed = door.open(&asked(b"none", Rights::Read));
        assert!(matches!(&malformed, Answer::Refused(why) if why.contains("malformed")), "{malformed:?}");
        let _listening = seqpacket::listener(&socket).expect("it listens");
        let other = rustix::process::geteuid().as_raw() + 1;
        let door = Door::new(settings(socket, other));
        let answer = door.open(&asked(&rules, Rights::Read));
        assert!(matches!(&answer, Answer::Refused(why) if why.contains("does not count")), "{answer:?}");
        assert_eq!(door.denials(Some(5)).len(), 1);
        assert_eq!(door.denials(Some(6)).len(), 0);
    }

    /// A first open is sent back and marked, a ticket lets one through, its second use does not, and a ticket of a
    /// helper that went away is worth nothing.
    #[test]
    fn a_ticket_opens_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let listening = seqpacket::listener(&socket).expect("it listens");
        let uid = rustix::process::geteuid().as_raw();
        let door = Door::new(settings(socket, uid));
        let helper = std::thread::spawn(move || {
            let helper = seqpacket::accept(&listening).expect("it comes");
            assert!(matches!(helper.receive().expect("a word"), FromDoor::Hello { version: VERSION, .. }));
            helper.send(&FromHelper::Welcome { thread: 77 }).expect("sent");
            let FromDoor::Mark { id, inode: 5, children: false } = helper.receive().expect("a word") else {
                panic!("not a mark")
            };
            helper.send(&FromHelper::Marked { id, done: Ok(()) }).expect("sent");
            helper
        });
        let rules = rules();
        assert_eq!(door.open(&asked(&rules, Rights::Read)), Answer::Again);
        let helper = helper.join().expect("no panic");
        assert!(door.is_helper(77) && !door.is_helper(78));
        let give = |id| {
            let found = Ok(me());
            helper.send(&FromHelper::Ticket { id, inode: 5, process: me().process, found }).expect("sent");
            assert_eq!(helper.receive::<FromDoor>().expect("a word"), FromDoor::Taken { id, goes_on: true });
        };
        give(1);
        assert_eq!(door.open(&asked(&rules, Rights::Read)), Answer::GoesOn);
        give(2);
        assert!(matches!(door.open(&asked(&rules, Rights::ReadWrite)), Answer::Refused(_)), "reading only");
        give(3);
        drop(helper);
        let after = door.open(&asked(&rules, Rights::Read));
        assert!(matches!(&after, Answer::Refused(_)), "{after:?}");
        assert!(!door.is_helper(77));
    }
}
