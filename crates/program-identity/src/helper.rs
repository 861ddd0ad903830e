//! The helper: identifies the processes that open files with rules, for the mounts of this machine that
//! request it. Runs as root.
//!
//! Each mount has a conversation, a group of marks and threads of its own. So a mount whose process does not
//! answer (its file system can even delay the helper's own open) delays no other. A mount may only request
//! that opens of its *own* inodes are delayed. The helper checks in the kernel's table that the mount is a
//! FUSE mount of the requesting user, looks inodes up by number below it, and does so as that user.
//!
//! An open is delayed for at most [`ANSWER_WAIT`]. Then it continues without a ticket, and the mount refuses
//! it (EACCES).
//!
//! Before it listens, it gives up the rights of root that it does not need. The remaining ones (examining
//! processes, marking inodes) are still enough to take over the machine, so users of rules must trust it: its
//! code, and its input.

use crate::hashes::Hashes;
use crate::identify::identify;
use crate::kernel::{self, Event, Group};
use crate::message::{FromGuard, FromHelper, VERSION};
use crate::seqpacket::{self, Conversation, Peer};
use crate::starts::CleanStarts;
use parking_lot::Mutex;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

/// How long an open may be delayed.
pub const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Number of threads that identify processes, for each mount.
const WORKERS: usize = 4;
/// Most delayed opens of one mount at a time.
const WAITING_MAX: usize = 256;
/// Most mounts in all, and most of one user.
const MOUNTS_MAX: usize = 64;
const MOUNTS_OF_A_USER_MAX: usize = 8;
/// Most watched inodes of one mount; each stays in the kernel's memory.
const MARKS_MAX: usize = 1 << 16;
/// How often to look for opens that waited too long.
const ROUND_MS: i32 = 250;

/// Listens at `socket` and serves mounts until the process ends. `ready` is called once, when it listens.
///
/// # Errors
/// Not root, or the socket cannot be made.
pub fn serve(socket: &Path, ready: impl FnOnce()) -> io::Result<()> {
    // Reports at once an error that would otherwise be reported to every mount.
    drop(Group::new()?);
    confine()?;
    let listener = seqpacket::listener(socket)?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666))?;
    ready();
    let (hashes, starts) = (Arc::new(Hashes::default()), Arc::new(CleanStarts::default()));
    let slots = Arc::new(Slots::default());
    loop {
        let conversation = match seqpacket::accept(&listener) {
            Ok(conversation) => conversation,
            Err(error) => {
                tracing::warn!(%error, "nobody can connect");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let (hashes, starts, slots) = (Arc::clone(&hashes), Arc::clone(&starts), Arc::clone(&slots));
        let spawned = std::thread::Builder::new().name("mount".to_owned()).spawn(move || {
            let Ok(peer) = conversation.peer() else { return };
            let Some(greeting) = Slot::take(&slots.greeting, peer.uid) else {
                let _ = conversation.send(&FromHelper::Refused("too many ask at once".to_owned()));
                return;
            };
            if let Err(error) = converse(conversation, peer, greeting, &slots, hashes, starts) {
                tracing::info!(user = peer.uid, process = peer.process, %error, "a conversation ended");
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread for a mount");
        }
    }
}

/// The rights of root that the helper needs: to mark inodes, to find them by number as the mount's user, to
/// examine processes, and to give root the files of programs that are started clean.
const NEEDED: CapabilitySet = CapabilitySet::SYS_ADMIN
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID);

/// Gives up all other rights, for this thread and those that it starts, also by running programs.
fn confine() -> io::Result<()> {
    let has = capabilities(None)?;
    for capability in (CapabilitySet::all() - NEEDED).iter() {
        match remove_capability_from_bounding_set(capability) {
            // The kernel does not have this capability; or our parent has removed it and the right to change
            // this.
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let kept = has.permitted & NEEDED;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    Ok(set_no_new_privs(true)?)
}

/// Counts conversations by user.
#[derive(Default)]
struct Slots {
    /// Conversations that have not sent their first message, or start a program.
    greeting: Arc<Mutex<HashMap<u32, usize>>>,
    mounts: Arc<Mutex<HashMap<u32, usize>>>,
}

/// A slot of a conversation that is served; free again when dropped.
struct Slot(Arc<Mutex<HashMap<u32, usize>>>, u32);

impl Slot {
    fn take(mounts: &Arc<Mutex<HashMap<u32, usize>>>, user: u32) -> Option<Slot> {
        let mut counts = mounts.lock();
        let (all, own) = (counts.values().sum::<usize>(), counts.get(&user).copied().unwrap_or(0));
        if all >= MOUNTS_MAX || own >= MOUNTS_OF_A_USER_MAX {
            return None;
        }
        counts.insert(user, own + 1);
        Some(Slot(Arc::clone(mounts), user))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.0.lock();
        match counts.get_mut(&self.1) {
            Some(1) | None => drop(counts.remove(&self.1)),
            Some(count) => *count -= 1,
        }
    }
}

/// Shared by the threads of one mount.
struct Mount {
    conversation: Arc<Conversation>,
    group: Group,
    hashes: Arc<Hashes>,
    starts: Arc<CleanStarts>,
    /// Events that are not answered yet, with their arrival times. The thread that removes one answers it.
    waiting: Mutex<HashMap<u64, Waiting>>,
    /// For each ticket, the thread that waits until the guard has received it.
    unconfirmed: Mutex<HashMap<u64, Sender<bool>>>,
    next: AtomicU64,
    busy: AtomicUsize,
    ended: AtomicBool,
}

struct Waiting {
    event: Arc<Event>,
    since: Instant,
}

/// Receives a request and carries it out: starts a program clean, or serves a mount.
fn converse(
    conversation: Conversation,
    peer: Peer,
    greeting: Slot,
    slots: &Slots,
    hashes: Arc<Hashes>,
    starts: Arc<CleanStarts>,
) -> io::Result<()> {
    conversation.set_patience(ANSWER_WAIT, Some(ANSWER_WAIT))?;
    let refuse = |why: String| {
        let _ = conversation.send(&FromHelper::Refused(why.clone()));
        Err(io::Error::other(why))
    };
    let hello: FromGuard = conversation.receive()?;
    if let FromGuard::Hello { version, .. } | FromGuard::Start { version, .. } = &hello
        && *version != VERSION
    {
        return refuse(format!("it speaks version {version}, this helper version {VERSION}"));
    }
    match hello {
        FromGuard::Start { descriptor, .. } => starts.begin(&conversation, peer, descriptor, &hashes),
        FromGuard::Hello { mountpoint, .. } => {
            let Some(_slot) = Slot::take(&slots.mounts, peer.uid) else {
                return refuse("too many mounts ask".to_owned());
            };
            drop(greeting);
            serve_mount(Arc::new(conversation), peer, mountpoint, hashes, starts)
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it did not begin with hello")),
    }
}

/// Serves one mount, on this thread and some more, until either end closes the conversation.
fn serve_mount(
    conversation: Arc<Conversation>,
    peer: Peer,
    mountpoint: Vec<u8>,
    hashes: Arc<Hashes>,
    starts: Arc<CleanStarts>,
) -> io::Result<()> {
    let refuse = |why: String| {
        let _ = conversation.send(&FromHelper::Refused(why.clone()));
        Err(io::Error::other(why))
    };
    if namespace(peer.process) != namespace(std::process::id()) {
        return refuse("it numbers processes otherwise (another PID namespace)".to_owned());
    }
    let mountpoint = PathBuf::from(std::ffi::OsStr::from_bytes(&mountpoint));
    let group = Group::new()?;
    let mount = Arc::new(Mount {
        conversation: Arc::clone(&conversation),
        group,
        hashes,
        starts,
        waiting: Mutex::default(),
        unconfirmed: Mutex::default(),
        next: AtomicU64::new(1),
        busy: AtomicUsize::new(0),
        ended: AtomicBool::new(false),
    });
    let (watching, watcher) = channel();
    let reader = Arc::clone(&mount);
    std::thread::Builder::new().name("watch".to_owned()).spawn(move || {
        let _ = watching.send(kernel::thread());
        if let Err(error) = reader.watch() {
            tracing::warn!(%error, "watching a mount ended");
        }
        reader.end();
    })?;
    let thread = watcher.recv().map_err(|_| io::Error::other("the watching thread ended"))?;
    let outcome = mount.follow(&mountpoint, peer, thread);
    mount.end();
    outcome
}

impl Mount {
    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.conversation.end();
        self.unconfirmed.lock().clear();
    }

    /// Carries out the guard's requests, as the mount's user.
    fn follow(&self, mountpoint: &Path, peer: Peer, thread: u32) -> io::Result<()> {
        kernel::become_user(peer.uid, peer.gid)?;
        if let Err(error) = own_mount(mountpoint, peer.uid) {
            let why = format!("{}: {error}", mountpoint.display());
            let _ = self.conversation.send(&FromHelper::Refused(why.clone()));
            return Err(io::Error::other(why));
        }
        self.conversation.send(&FromHelper::Welcome { thread })?;
        self.conversation.set_patience(ANSWER_WAIT, None)?;
        tracing::info!(mountpoint = %mountpoint.display(), user = peer.uid, "watching a mount");
        let mut marked = HashSet::new();
        loop {
            match self.conversation.receive()? {
                FromGuard::Mark { id, inode, children } => {
                    let done = match marked.len() < MARKS_MAX || marked.contains(&(inode, children)) {
                        // Opened anew each time: an open directory would keep the mount from being unmounted.
                        true => own_mount(mountpoint, peer.uid)
                            .and_then(|root| kernel::inode_of(&root, inode))
                            .and_then(|file| self.group.mark(&file, children))
                            .map_err(|error| error.to_string()),
                        false => Err("too many files with rules were used; mount anew".to_owned()),
                    };
                    if done.is_ok() {
                        marked.insert((inode, children));
                    }
                    self.conversation.send(&FromHelper::Marked { id, done })?;
                }
                FromGuard::TicketReceived { id, goes_on } => {
                    if let Some(reply_sender) = self.unconfirmed.lock().remove(&id) {
                        let _ = reply_sender.send(goes_on);
                    }
                }
                FromGuard::Hello { .. } | FromGuard::Start { .. } => {
                    return Err(io::Error::other("it said hello twice"));
                }
            }
        }
    }

    /// Reads events and passes them to threads that identify processes. Answers those that have waited too
    /// long.
    fn watch(self: &Arc<Mount>) -> io::Result<()> {
        let (work, jobs) = sync_channel::<u64>(WAITING_MAX);
        let jobs = Arc::new(Mutex::new(jobs));
        while !self.ended.load(Ordering::SeqCst) {
            self.group.wait(ROUND_MS)?;
            for event in self.group.read()? {
                let id = self.next.fetch_add(1, Ordering::Relaxed);
                self.waiting.lock().insert(id, Waiting { event: Arc::new(event), since: Instant::now() });
                self.dispatch(&jobs, &work, id);
            }
            let late = |waiting: &Waiting| waiting.since.elapsed() > ANSWER_WAIT;
            let expired: Vec<u64> =
                self.waiting.lock().iter().filter(|(_, waiting)| late(waiting)).map(|(id, _)| *id).collect();
            for id in expired {
                tracing::warn!("a process could not be identified in time; its open will be refused");
                self.answer(id, true);
            }
        }
        Ok(())
    }

    fn dispatch(self: &Arc<Mount>, jobs: &Arc<Mutex<Receiver<u64>>>, work: &SyncSender<u64>, id: u64) {
        match work.try_send(id) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => return self.answer(id, true),
        }
        if self.busy.load(Ordering::SeqCst) >= WORKERS {
            return;
        }
        self.busy.fetch_add(1, Ordering::SeqCst);
        let (mount, jobs) = (Arc::clone(self), Arc::clone(jobs));
        let spawned = std::thread::Builder::new().name("identify".to_owned()).spawn(move || {
            loop {
                let next = jobs.lock().recv();
                match next {
                    Ok(id) => mount.handle(id),
                    Err(_) => break,
                }
            }
        });
        if spawned.is_err() {
            self.busy.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Answers an event, once. An open that continues without a ticket is refused by the mount, with the
    /// error that programs expect (EACCES; the kernel's own refusal would be EPERM).
    fn answer(&self, id: u64, goes_on: bool) {
        let Some(waiting) = self.waiting.lock().remove(&id) else { return };
        if let Err(error) = self.group.answer(&waiting.event.file, goes_on)
            && goes_on
        {
            tracing::debug!(%error, "whoever opened is gone");
            let _ = self.conversation.send(&FromHelper::Revoked { id });
        }
    }

    /// Identifies the opener, sends the guard a ticket, and lets the open continue once the guard has it.
    fn handle(&self, id: u64) {
        let Some(event) = self.waiting.lock().get(&id).map(|waiting| Arc::clone(&waiting.event)) else {
            return;
        };
        let Some(inode) = inode_number(&event.file) else { return self.answer(id, false) };
        let found = identify(event.process, event.pidfd.as_ref(), &self.hashes, &self.starts);
        let (reply_sender, reply) = channel();
        self.unconfirmed.lock().insert(id, reply_sender);
        let ticket = FromHelper::Ticket { id, inode, process: event.process, found };
        let sent = self.waiting.lock().contains_key(&id) && self.conversation.send(&ticket).is_ok();
        let goes_on = sent && reply.recv_timeout(ANSWER_WAIT).unwrap_or(false);
        self.unconfirmed.lock().remove(&id);
        drop(event);
        self.answer(id, goes_on);
    }
}

/// The inode of an event's file, as the kernel reports it. The mount is not asked, because it might not
/// answer root.
fn inode_number(file: &OwnedFd) -> Option<u64> {
    let info = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", file.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("ino:"))?.trim().parse().ok()
}

fn namespace(process: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/pid")).ok()
}

/// Opens a mount's root, if it is a FUSE mount of this user.
fn own_mount(mountpoint: &Path, user: u32) -> io::Result<OwnedFd> {
    let not_own = || io::Error::other("it is no FUSE mount of the user who asks");
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
    let place = rustix::fs::open(mountpoint, flags, rustix::fs::Mode::empty())?;
    // The kernel's information about what was opened, whatever is at the path by now.
    let info = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", place.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")).ok_or_else(not_own)?;
    let table = std::fs::read_to_string("/proc/thread-self/mountinfo")?;
    if !is_fuse_mount_of(&table, id.trim(), user) {
        return Err(not_own());
    }
    let opened = kernel::mount_root(&PathBuf::from(format!("/proc/thread-self/fd/{}/.", place.as_raw_fd())))?;
    Ok(opened)
}

/// Whether the mount of this number is a FUSE mount that this user made.
fn is_fuse_mount_of(table: &str, id: &str, user: u32) -> bool {
    let Some(line) = table.lines().find(|line| line.split(' ').next() == Some(id)) else { return false };
    let Some((_, behind)) = line.split_once(" - ") else { return false };
    let mut fields = behind.split(' ');
    let kind = fields.next().unwrap_or("");
    let options = fields.nth(1).unwrap_or("");
    let owner = format!("user_id={user}");
    (kind == "fuse" || kind.starts_with("fuse.")) && options.split(',').any(|option| option == owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a FUSE mount of exactly this user counts as the user's own.
    #[test]
    fn whose_mount() {
        let table = "\
22 1 254:1 / / rw - ext4 /dev/sda rw,user_id=7\n\
33 22 0:40 / /m rw,nosuid shared:1 - fuse.holdfast hf://x/y rw,user_id=7,group_id=7,default_permissions\n\
34 22 0:41 / /n rw - fuse.holdfast hf://x rw,user_id=70,group_id=7\n";
        assert!(is_fuse_mount_of(table, "33", 7));
        assert!(!is_fuse_mount_of(table, "33", 70));
        assert!(!is_fuse_mount_of(table, "34", 7));
        assert!(!is_fuse_mount_of(table, "22", 7));
        assert!(!is_fuse_mount_of(table, "3", 7));
    }

    /// One user cannot take all slots, and slots become free again.
    #[test]
    fn slots() {
        let mounts = Arc::default();
        let taken: Vec<_> =
            (0..MOUNTS_OF_A_USER_MAX).map(|_| Slot::take(&mounts, 1).expect("room")).collect();
        assert!(Slot::take(&mounts, 1).is_none());
        assert!(Slot::take(&mounts, 2).is_some());
        drop(taken);
        assert!(Slot::take(&mounts, 1).is_some());
        assert!(mounts.lock().is_empty());
    }
}
