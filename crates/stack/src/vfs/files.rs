//! Files: an FSDriver says where they are, PolicyMgr gives the blocks, and CacheMgr loads their content.

mod data;
mod map;

use super::Configuration;
use super::inodes::{Inodes, ROOT};
use crate::StackError;
use crate::asking::{ITSELF, UNKNOWN, ask_as, ask_once, nonsense};
use crate::fs_driver::FILES_MAX;
use crate::host::BAD_BLOCK;
use crate::names::Names;
use crate::protocol::{
    CacheReply, CacheRequest, DirectoryEntry, File, FilesReply, FilesRequest, MonitorReply, MonitorRequest,
    NamedAlias, PolicyReply, PolicyRequest, Time, code,
};
use crate::reader::Reader;
use crate::views::Views;
use holdfast_access::{CredentialId, Proof, Scope};
use holdfast_components::{Asker, Ports, Refusal};
use holdfast_monitor::Reference;
use map::Map;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Stands for a file in `changed`: for files that the kernel has forgotten, and blocks that could not be
/// written.
const FORGOTTEN: u64 = 0;
/// Most bytes of a file on FAT.
const FILE_BYTES_MAX: u64 = u32::MAX as u64;
/// Most entries of a directory: more than FAT allows.
const PLACES_MAX: u64 = 1 << 20;
/// How long a cached attribute is valid: as long as the kernel caches it, so that this adds no delay.
pub(super) const LIVES: Duration = Duration::from_secs(1);
/// Most files with cached attributes.
const CACHED_FILES_MAX: usize = 4096;

/// An error number (errno).
pub(super) type Code = i32;

/// Sizes of files and ends of directories that the FSDriver reported a short time ago.
#[derive(Default)]
struct AttributeCache {
    /// Incremented when cached sizes become invalid: a reply to an earlier request is then not cached.
    changes: u64,
    sizes: HashMap<u64, (u64, Instant)>,
    /// The ends of directories: for each the cookie of its last name.
    ends: HashMap<u64, (u64, Instant)>,
}

fn of_now(cached: Option<&(u64, Instant)>) -> Option<u64> {
    cached.filter(|(_, at)| at.elapsed() < LIVES).map(|(value, _)| *value)
}

fn remember(cached: &mut HashMap<u64, (u64, Instant)>, ino: u64, value: u64) {
    if cached.len() >= CACHED_FILES_MAX {
        cached.retain(|_, (_, at)| at.elapsed() < LIVES);
        if cached.len() >= CACHED_FILES_MAX {
            cached.clear();
        }
    }
    cached.insert(ino, (value, Instant::now()));
}

/// The files of a session, as the kernel's requests see them.
pub(super) struct Files {
    files: Asker<FilesRequest, FilesReply>,
    pub(super) policy: Asker<PolicyRequest, PolicyReply>,
    pub(super) cache: Arc<Asker<CacheRequest, CacheReply>>,
    pub(super) monitor: Arc<Asker<MonitorRequest, MonitorReply>>,
    pub(super) reader: Reader,
    pub(super) configuration: Configuration,
    /// The names under which the session sends requests.
    pub(super) names: Arc<Names>,
    /// The names that the session has proved.
    pub(super) proven: Mutex<ProvenNames>,
    /// Locked shared while data is read and passed to the kernel, so that a thread can wait until no read is
    /// in progress.
    pub(super) reading: RwLock<()>,
    pub(super) inodes: Mutex<Inodes>,
    maps: Mutex<HashMap<u64, Map>>,
    cached: Mutex<AttributeCache>,
    /// Blocks that were changed and not written since, by file, and the pages in which they were changed.
    changed: Mutex<HashMap<u64, HashMap<u64, Reference>>>,
    /// Locked while a size is changed.
    sizing: Mutex<()>,
    /// Locked while blocks are given back: right afterwards they may belong to a file again.
    returning: Mutex<()>,
}

/// The names that a session has proved.
pub(super) struct ProvenNames {
    /// The restriction of the session's own name.
    pub scope: Scope,
    /// Its other names.
    pub others: Vec<NamedAlias>,
    /// Proofs that were accepted, so that none is presented again.
    pub proofs: BTreeSet<Proof>,
    /// The credentials on which its own name rests.
    pub base: Vec<CredentialId>,
}

pub(super) fn errno(refusal: Refusal) -> Code {
    match refusal {
        Refusal::NotPermitted | Refusal::AliasInvalid | Refusal::Code(code::NOT_YOURS) => libc::EACCES,
        Refusal::Code(
            code @ (code::NOT_FOUND
            | code::EXISTS
            | code::NOT_A_DIRECTORY
            | code::IS_A_DIRECTORY
            | code::INVALID
            | code::TOO_LARGE
            | code::FULL
            | code::READ_ONLY
            | code::NOT_EMPTY),
        ) => code as Code,
        Refusal::Code(BAD_BLOCK) => libc::EIO,
        refusal => {
            tracing::warn!(%refusal, "a request failed");
            libc::EIO
        }
    }
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_secs() as i64, since.subsec_nanos())
}

impl Files {
    pub(super) fn new(
        ports: &Arc<Ports>,
        configuration: Configuration,
        views: Views,
    ) -> Result<Files, StackError> {
        let cache: Arc<Asker<CacheRequest, CacheReply>> = Arc::new(ports.asker("cache")?);
        let monitor: Arc<Asker<MonitorRequest, MonitorReply>> = Arc::new(ports.asker("monitor")?);
        let names = Arc::new(Names::of(ITSELF));
        let reader_names = Arc::clone(&names);
        let proven = ProvenNames {
            scope: Scope::EVERYTHING,
            others: Vec::new(),
            proofs: BTreeSet::new(),
            base: Vec::new(),
        };
        Ok(Files {
            files: ports.asker("files")?,
            policy: ports.asker("policy")?,
            reader: Reader::with_names(
                Arc::clone(&monitor),
                Arc::clone(&cache),
                reader_names,
                configuration.disk,
            )
            .with(views),
            names,
            proven: Mutex::new(proven),
            reading: RwLock::new(()),
            cache,
            monitor,
            configuration,
            inodes: Mutex::default(),
            maps: Mutex::default(),
            cached: Mutex::default(),
            changed: Mutex::default(),
            sizing: Mutex::new(()),
            returning: Mutex::new(()),
        })
    }

    pub(super) fn ask_policy(&self, question: &PolicyRequest) -> Result<PolicyReply, Refusal> {
        let own = self.names.own();
        match ask_as(&self.policy, own, question) {
            // PolicyMgr may have only the digest of this session's principal.
            Err(Refusal::NotPermitted) => {
                let (principal, scope) = (self.configuration.user.clone(), self.proven.lock().scope.clone());
                ask_as(&self.policy, own, &PolicyRequest::Introduce { principal, scope })?;
                ask_as(&self.policy, own, question).map(|(answer, _)| answer)
            }
            answer => answer.map(|(answer, _)| answer),
        }
    }

    /// Sends a request about files, using the FSDriver's numbers. If the FSDriver was restarted, the files
    /// are looked up again first.
    fn ask<const N: usize>(
        &self,
        inos: [u64; N],
        question: impl Fn([u64; N]) -> FilesRequest,
    ) -> Result<FilesReply, Refusal> {
        let numbers = || {
            let inodes = self.inodes.lock();
            let mut numbers = [0; N];
            for (number, ino) in numbers.iter_mut().zip(inos) {
                *number = inodes.number(ino).ok_or(Refusal::Code(code::NOT_FOUND))?;
            }
            Ok::<_, Refusal>(numbers)
        };
        let answer = match ask_once(&self.files, self.names.own(), &question(numbers()?)) {
            Err(Refusal::Code(code::GONE)) => {
                inos.into_iter().try_for_each(|ino| self.find_again(ino))?;
                ask_once(&self.files, self.names.own(), &question(numbers()?))
            }
            // The session has lost its name: its program has ended, or a credential was revoked.
            Err(Refusal::AliasInvalid) => {
                self.learn_names()?;
                ask_once(&self.files, self.names.own(), &question(numbers()?))
            }
            answer => answer,
        };
        answer.map(|(answer, _)| answer)
    }

    /// Sends a request that may be carried out twice.
    fn ask_safely<const N: usize>(
        &self,
        inos: [u64; N],
        question: impl Fn([u64; N]) -> FilesRequest,
    ) -> Result<FilesReply, Refusal> {
        match self.ask(inos, &question) {
            Err(Refusal::Code(UNKNOWN)) => self.ask(inos, &question),
            answer => answer,
        }
    }

    /// Looks up a file again by its name, and the directories above it.
    fn find_again(&self, ino: u64) -> Result<(), Refusal> {
        let none = || Refusal::Code(code::NOT_FOUND);
        let mut above = Vec::new();
        let mut at = ino;
        while at != ROOT {
            let path = self.inodes.lock().path(at);
            let (parent, name) = path.filter(|(_, name)| !name.is_empty()).ok_or_else(none)?;
            above.push((at, parent, name));
            // No directory is nested that deep, so this is a loop.
            if above.len() > 1024 {
                return Err(none());
            }
            at = parent;
        }
        for (ino, parent, name) in above.into_iter().rev() {
            let parent = self.inodes.lock().number(parent).ok_or_else(none)?;
            match ask_as(&self.files, self.names.own(), &FilesRequest::LookUp { parent, name })?.0 {
                FilesReply::File(file) => {
                    self.inodes.lock().found(ino, file.id);
                    // The FSDriver that reported the positions of these blocks has ended, and may have lied.
                    self.forget_map(ino);
                }
                _ => return Err(nonsense("the file system")),
            }
        }
        Ok(())
    }

    /// Notes a file that the kernel learns of, from the reply to a request that was sent when the cache's
    /// counter of changes was `seen`.
    fn learnt(
        &self,
        seen: u64,
        answer: Result<FilesReply, Refusal>,
        parent: u64,
        name: &str,
    ) -> Result<File, Code> {
        match answer.map_err(errno)? {
            // The root has no name.
            FilesReply::File(file) if file.id != ROOT && can_be(&file, file.id) => {
                let id = self.inodes.lock().learn(parent, name, file.id);
                self.note_size(id, file.size, seen);
                Ok(File { id, ..file })
            }
            _ => Err(errno(nonsense("the file system"))),
        }
    }

    fn done(answer: Result<FilesReply, Refusal>) -> Result<(), Refusal> {
        match answer? {
            FilesReply::Done => Ok(()),
            _ => Err(nonsense("the file system")),
        }
    }

    /// Sends a request that may have been carried out before its reply was lost. If so, repeating it fails
    /// with `is_done`.
    fn once<const N: usize>(
        &self,
        inos: [u64; N],
        question: impl Fn([u64; N]) -> FilesRequest,
        is_done: u32,
    ) -> Result<(), Code> {
        let done = match Self::done(self.ask(inos, &question)) {
            Err(Refusal::Code(UNKNOWN)) => match Self::done(self.ask(inos, &question)) {
                Err(Refusal::Code(code)) if code == is_done => Ok(()),
                done => done,
            },
            done => done,
        };
        done.map_err(errno)
    }

    pub(super) fn look_up(&self, parent: u64, name: &str) -> Result<File, Code> {
        let question = |[parent]: [u64; 1]| FilesRequest::LookUp { parent, name: name.to_owned() };
        let seen = self.cached.lock().changes;
        self.learnt(seen, self.ask_safely([parent], question), parent, name)
    }

    pub(super) fn forget(&self, ino: u64, count: u64) {
        let (is_removed, forgotten) = {
            let mut inodes = self.inodes.lock();
            let is_removed = inodes.path(ino).is_some_and(|(_, name)| name.is_empty());
            (is_removed, inodes.forget(ino, count))
        };
        if let Some((file, count)) = forgotten {
            self.forget_map(ino);
            let mut changed = self.changed.lock();
            match changed.remove(&ino) {
                // The kernel may learn of the file again, under another number.
                Some(blocks) if !is_removed => changed.entry(FORGOTTEN).or_default().extend(blocks),
                _ => {}
            }
            drop(changed);
            let _ = ask_once(&self.files, self.names.own(), &FilesRequest::Forget { file, count });
            // The file was in use when it was deleted; its blocks can be given back now.
            if is_removed {
                self.return_blocks();
            }
        }
    }

    pub(super) fn stat(&self, ino: u64) -> Result<File, Code> {
        let seen = self.cached.lock().changes;
        match self.ask_safely([ino], |[file]| FilesRequest::Stat(file)).map_err(errno)? {
            FilesReply::File(file) if !can_be(&file, ino) => Err(errno(nonsense("the file system"))),
            FilesReply::File(file) => {
                self.note_size(ino, file.size, seen);
                Ok(File { id: ino, ..file })
            }
            _ => Err(errno(nonsense("the file system"))),
        }
    }

    /// Caches a size, if the counter of changes is still `seen`, as when it was requested.
    fn note_size(&self, ino: u64, size: u64, seen: u64) {
        let mut cached = self.cached.lock();
        if cached.changes == seen {
            remember(&mut cached.sizes, ino, size);
        }
    }

    /// The size of a file, from the cache or from the FSDriver.
    pub(super) fn size(&self, ino: u64) -> Result<u64, Code> {
        let cached = of_now(self.cached.lock().sizes.get(&ino));
        cached.map_or_else(|| Ok(self.stat(ino)?.size), Ok)
    }

    /// The size of a file from the FSDriver, without the cache.
    pub(super) fn told_anew(&self, ino: u64) -> Result<u64, Code> {
        self.forget_map(ino);
        Ok(self.stat(ino)?.size)
    }

    /// Lists names in a directory with their files. The kernel gets a reference to each file; the caller must
    /// forget those that the kernel does not take.
    pub(super) fn list_files(
        &self,
        ino: u64,
        cookie: u64,
    ) -> Result<Vec<(DirectoryEntry, Option<File>)>, Code> {
        if of_now(self.cached.lock().ends.get(&ino)) == Some(cookie) {
            return Ok(Vec::new());
        }
        let count = FILES_MAX;
        let seen = self.cached.lock().changes;
        let question = |[directory]: [u64; 1]| FilesRequest::ListFiles { directory, cookie, count };
        let FilesReply::Files(mut listed) = self.ask_safely([ino], question).map_err(errno)? else {
            return Err(errno(nonsense("the file system")));
        };
        // Checked before anything is stored, so that an invalid listing leaves nothing behind.
        if listed.len() > count as usize
            || !goes_on(cookie, listed.iter().map(|(name, _)| name))
            || !listed.iter().all(|(name, file)| can_be_listed(name, file.as_ref()))
        {
            return Err(errno(nonsense("the file system")));
        }
        for (name, file) in &mut listed {
            if let Some(file) = file {
                file.id = self.inodes.lock().learn(ino, &name.name, file.id);
                self.note_size(file.id, file.size, seen);
            }
        }
        if listed.len() < count as usize {
            let end = listed.last().map_or(cookie, |(name, _)| name.cookie);
            remember(&mut self.cached.lock().ends, ino, end);
        }
        Ok(listed)
    }

    /// Notes that a directory changed, so that its end is requested again.
    fn changed_directory(&self, ino: u64) {
        self.cached.lock().ends.remove(&ino);
    }

    pub(super) fn list(&self, ino: u64, cookie: u64) -> Result<Vec<DirectoryEntry>, Code> {
        let question = |[directory]: [u64; 1]| FilesRequest::List { directory, cookie, count: 128 };
        match self.ask_safely([ino], question).map_err(errno)? {
            FilesReply::Names(names) if goes_on(cookie, names.iter()) => Ok(names),
            _ => Err(errno(nonsense("the file system"))),
        }
    }

    pub(super) fn create(&self, parent: u64, name: &str, is_directory: bool) -> Result<File, Code> {
        self.changed_directory(parent);
        let seen = self.cached.lock().changes;
        let now = now();
        let question =
            |[parent]: [u64; 1]| FilesRequest::Create { parent, name: name.to_owned(), is_directory, now };
        let answer = match self.ask([parent], question) {
            Err(Refusal::Code(UNKNOWN)) => match self.ask([parent], question) {
                // An earlier attempt created it.
                Err(Refusal::Code(code::EXISTS)) => return self.look_up(parent, name),
                answer => answer,
            },
            answer => answer,
        };
        self.learnt(seen, answer, parent, name)
    }

    pub(super) fn unlink(&self, parent: u64, name: &str) -> Result<(), Code> {
        let now = now();
        let question = |[parent]: [u64; 1]| FilesRequest::Unlink { parent, name: name.to_owned(), now };
        self.once([parent], question, code::NOT_FOUND)?;
        self.inodes.lock().removed(parent, name);
        self.return_blocks();
        Ok(())
    }

    pub(super) fn remove_directory(&self, parent: u64, name: &str) -> Result<(), Code> {
        let now = now();
        let question =
            |[parent]: [u64; 1]| FilesRequest::RemoveDirectory { parent, name: name.to_owned(), now };
        self.once([parent], question, code::NOT_FOUND)?;
        self.inodes.lock().removed(parent, name);
        Ok(())
    }

    pub(super) fn rename(&self, from: (u64, &str), to: (u64, &str), replace: bool) -> Result<(), Code> {
        let now = now();
        let (name, new_name) = (from.1.to_owned(), to.1.to_owned());
        let question = |[from, to]: [u64; 2]| FilesRequest::Rename {
            from,
            name: name.clone(),
            to,
            new_name: new_name.clone(),
            replace,
            now,
        };
        self.changed_directory(to.0);
        self.once([from.0, to.0], question, code::NOT_FOUND)?;
        self.inodes.lock().renamed(from, to);
        self.return_blocks();
        Ok(())
    }

    pub(super) fn set_times(
        &self,
        ino: u64,
        times: [Option<Time>; 3],
        read_only: Option<bool>,
    ) -> Result<(), Code> {
        let question = |[file]: [u64; 1]| FilesRequest::SetTimes { file, times, is_read_only: read_only };
        Self::done(self.ask_safely([ino], question)).map_err(errno)
    }

    /// The bytes of a cluster, the number of clusters, and how many are free.
    pub(super) fn sizes(&self) -> Result<(u32, u64, u64), Code> {
        match self.ask_safely([], |[]| FilesRequest::Sizes).map_err(errno)? {
            FilesReply::Sizes { cluster_bytes, clusters, free } => Ok((cluster_bytes, clusters, free)),
            _ => Err(errno(nonsense("the file system"))),
        }
    }
}

/// Whether the kernel accepts these attributes of a file. It drops an inode for ever if the kind changes or
/// the size is invalid, and the whole mount with the root's inode. A lying FSDriver could otherwise end the
/// mount.
fn can_be(file: &File, ino: u64) -> bool {
    file.size <= FILE_BYTES_MAX && (ino != ROOT || file.is_directory)
}

/// Whether the cookies of a listing increase, so that it ends. A directory that loops or never ends would
/// block a program that lists it.
fn goes_on<'a>(cookie: u64, mut names: impl Iterator<Item = &'a DirectoryEntry>) -> bool {
    let mut before = cookie;
    names.all(|listed| std::mem::replace(&mut before, listed.cookie) < listed.cookie) && before <= PLACES_MAX
}

/// Whether the kernel accepts this name with its file. For `.` and `..` it takes no reference, so a file that
/// came with one of them would never be forgotten.
fn can_be_listed(name: &DirectoryEntry, file: Option<&File>) -> bool {
    let is_name = !matches!(&*name.name, "" | "." | "..") && !name.name.contains(['/', '\0']);
    let is_file =
        |file: &File| file.id != ROOT && file.is_directory == name.is_directory && can_be(file, file.id);
    is_name && file.is_none_or(is_file)
}
