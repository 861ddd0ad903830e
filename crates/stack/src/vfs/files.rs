//! Files, by asking an FSDriver where they are, PolicyMgr for the blocks, and the cache for what is in them.

use super::Configuration;
use super::inodes::{Inodes, ROOT};
use crate::StackError;
use crate::asking::{ITSELF, UNKNOWN, ask_as, ask_once, nonsense};
use crate::fs_driver::FILES_MAX;
use crate::host::{BAD_BLOCK, OUTDATED, STATE};
use crate::names::Names;
use crate::protocol::{
    AskCache, AskFiles, AskMonitor, AskPolicy, BLOCKS_MAX, Blocks, CacheSays, Called, File, FilesSay, Listed,
    MonitorSays, PolicySays, Time, code,
};
use crate::reader::{Reader, is_denied};
use crate::views::Views;
use holdfast_access::{Acl, CredentialId, Proof, Scope};
use holdfast_components::{Asker, Ports, Refusal};
use holdfast_monitor::{PAGE_BYTES, Reference, Status};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes that are changed by one request at most: what fits into a packet.
const WRITE_BYTES: usize = PAGE_BYTES;
/// Bytes fetched ahead of who reads in order.
const AHEAD_BYTES: u64 = 256 << 10;
/// Bytes of a file whose blocks are asked for at once.
const MAP_BYTES: u64 = 64 << 20;
/// Files whose blocks are remembered.
const MAPS_MAX: usize = 1024;
/// Blocks of a file whose changes are remembered, before they are written.
const CHANGED_MAX: usize = 4096;
/// Instead of a file: files that the kernel has forgotten, and blocks that could not be written.
const FORGOTTEN: u64 = 0;
/// Most bytes of a file of FAT.
const FILE_BYTES_MAX: u64 = u32::MAX as u64;
/// Bytes that are made zero at once.
const ZEROED_BYTES: usize = 1 << 20;
/// Steps in which an FSDriver does what takes several: more than it needs for the largest file, in the smallest pieces.
const STEPS_MAX: usize = 1 << 16;
/// Places in a directory: more than FAT has.
const PLACES_MAX: u64 = 1 << 20;
/// Bytes of a file that are claimed at once: fewer blocks than an FSDriver looks at.
const CLAIM_BYTES: usize = 512 << 10;
/// How long what was told of a file is taken for true: as long as the kernel does, so that nothing is noticed later.
pub(super) const LIVES: Duration = Duration::from_secs(1);
/// Files of which is remembered what was told.
const TOLD_MAX: usize = 4096;
/// How often a page is asked for again that was taken away meanwhile.
const ATTEMPTS: usize = 16;

/// An errno.
pub(super) type Code = i32;

/// Where the blocks of a file are, as far as asked for.
#[derive(Default, Clone)]
struct Map {
    block_bytes: u32,
    /// By byte of the file: the first block, and how many.
    runs: BTreeMap<u64, Blocks>,
    /// Where the last read ended.
    read_end: u64,
}

/// What was told of files a short time ago.
#[derive(Default)]
struct Told {
    /// Grows when what was told of sizes no longer counts: what was asked for before is not remembered after.
    changes: u64,
    sizes: HashMap<u64, (u64, Instant)>,
    /// Where directories end, by the cookie of their last name.
    ends: HashMap<u64, (u64, Instant)>,
}

fn of_now(told: Option<&(u64, Instant)>) -> Option<u64> {
    told.filter(|(_, at)| at.elapsed() < LIVES).map(|(value, _)| *value)
}

fn tell(told: &mut HashMap<u64, (u64, Instant)>, ino: u64, value: u64) {
    if told.len() >= TOLD_MAX {
        told.retain(|_, (_, at)| at.elapsed() < LIVES);
        if told.len() >= TOLD_MAX {
            told.clear();
        }
    }
    told.insert(ino, (value, Instant::now()));
}

impl Map {
    /// A run that was learnt, instead of what was known of its part of the file.
    fn put(&mut self, start: u64, run: Blocks) {
        let end = start + run.count * u64::from(self.block_bytes);
        let old: Vec<u64> = self.runs.range(start..end).map(|(start, _)| *start).collect();
        for start in old {
            self.runs.remove(&start);
        }
        self.runs.insert(start, run);
    }

    /// Runs that an FSDriver gave for the bytes from `at` to `end`: where they end. Nothing, if they are not runs of
    /// those: they come from somebody else, and must not make this process remember, or compute with, just anything.
    fn learn(&mut self, at: u64, end: u64, runs: Vec<(u64, Blocks)>) -> Option<u64> {
        let block = u64::from(self.block_bytes);
        let mut next = at / block * block;
        for (start, run) in runs {
            run.first.checked_add(run.count)?;
            let after = run.count.checked_mul(block)?.checked_add(start)?;
            if start != next
                || run.count == 0
                || start >= end
                || after > end.checked_next_multiple_of(block)?
            {
                return None;
            }
            self.put(start, run);
            next = after;
        }
        Some(next)
    }

    /// The block with a byte.
    fn block(&self, offset: u64) -> Option<u64> {
        let (start, run) = self.runs.range(..=offset).next_back()?;
        let at = (offset - start) / u64::from(self.block_bytes);
        (at < run.count).then_some(run.first + at)
    }
}

/// See the module.
pub(super) struct Files {
    files: Asker<AskFiles, FilesSay>,
    pub(super) policy: Asker<AskPolicy, PolicySays>,
    pub(super) cache: Arc<Asker<AskCache, CacheSays>>,
    pub(super) monitor: Arc<Asker<AskMonitor, MonitorSays>>,
    pub(super) reader: Reader,
    pub(super) configuration: Configuration,
    /// In whose name.
    pub(super) names: Arc<Names>,
    /// The restriction of the own name, and what else is known of names.
    pub(super) proven: Mutex<Proven>,
    /// Held while something is read and told to the kernel, so that it can be waited until nothing is.
    pub(super) reading: RwLock<()>,
    pub(super) inodes: Mutex<Inodes>,
    maps: Mutex<HashMap<u64, Map>>,
    told: Mutex<Told>,
    /// Blocks that were changed and not written since, by file, and the pages in which they were changed.
    changed: Mutex<HashMap<u64, HashMap<u64, Reference>>>,
    /// One change of sizes at a time.
    sizing: Mutex<()>,
    /// One gives blocks back at a time: what was given back may be a file's again in the next moment.
    returning: Mutex<()>,
}

/// What a session proved.
pub(super) struct Proven {
    /// On what its own name holds.
    pub scope: Scope,
    /// Its other names.
    pub others: Vec<Called>,
    /// Proofs that were accepted, so that none is brought twice.
    pub proofs: BTreeSet<Proof>,
    /// Credentials by which it has its own name.
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
        let cache: Arc<Asker<AskCache, CacheSays>> = Arc::new(ports.asker("cache")?);
        let monitor: Arc<Asker<AskMonitor, MonitorSays>> = Arc::new(ports.asker("monitor")?);
        let names = Arc::new(Names::of(ITSELF));
        let reader_names = Arc::clone(&names);
        let proven = Proven {
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
            told: Mutex::default(),
            changed: Mutex::default(),
            sizing: Mutex::new(()),
            returning: Mutex::new(()),
        })
    }

    pub(super) fn ask_policy(&self, question: &AskPolicy) -> Result<PolicySays, Refusal> {
        let own = self.names.own();
        match ask_as(&self.policy, own, question) {
            // It may know our digest only.
            Err(Refusal::NotPermitted) => {
                let (principal, scope) = (self.configuration.user.clone(), self.proven.lock().scope.clone());
                ask_as(&self.policy, own, &AskPolicy::Introduce { principal, scope })?;
                ask_as(&self.policy, own, question).map(|(answer, _)| answer)
            }
            answer => answer.map(|(answer, _)| answer),
        }
    }

    /// Asks about files, by what the FSDriver calls them. If it was started anew meanwhile, they are found again first.
    fn ask<const N: usize>(
        &self,
        inos: [u64; N],
        question: impl Fn([u64; N]) -> AskFiles,
    ) -> Result<FilesSay, Refusal> {
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
            // The session lost its name: its program has ended, or a credential was revoked.
            Err(Refusal::AliasInvalid) => {
                self.learn_names()?;
                ask_once(&self.files, self.names.own(), &question(numbers()?))
            }
            answer => answer,
        };
        answer.map(|(answer, _)| answer)
    }

    /// Asks what may be asked twice.
    fn ask_safely<const N: usize>(
        &self,
        inos: [u64; N],
        question: impl Fn([u64; N]) -> AskFiles,
    ) -> Result<FilesSay, Refusal> {
        match self.ask(inos, &question) {
            Err(Refusal::Code(UNKNOWN)) => self.ask(inos, &question),
            answer => answer,
        }
    }

    /// Finds a file by its name, and the directories above it.
    fn find_again(&self, ino: u64) -> Result<(), Refusal> {
        let none = || Refusal::Code(code::NOT_FOUND);
        let mut above = Vec::new();
        let mut at = ino;
        while at != ROOT {
            let path = self.inodes.lock().path(at);
            let (parent, name) = path.filter(|(_, name)| !name.is_empty()).ok_or_else(none)?;
            above.push((at, parent, name));
            // No directories are that deep; a loop is none of ours.
            if above.len() > 1024 {
                return Err(none());
            }
            at = parent;
        }
        for (ino, parent, name) in above.into_iter().rev() {
            let parent = self.inodes.lock().number(parent).ok_or_else(none)?;
            match ask_as(&self.files, self.names.own(), &AskFiles::LookUp { parent, name })?.0 {
                FilesSay::File(file) => {
                    self.inodes.lock().found(ino, file.id);
                    // Where its blocks are was told by who is gone, who may have lied.
                    self.forget_map(ino);
                }
                _ => return Err(nonsense("the file system")),
            }
        }
        Ok(())
    }

    /// A file that the kernel learns of, from an answer to what was asked when so many changes were seen.
    fn learnt(
        &self,
        seen: u64,
        answer: Result<FilesSay, Refusal>,
        parent: u64,
        name: &str,
    ) -> Result<File, Code> {
        match answer.map_err(errno)? {
            // The root has no name.
            FilesSay::File(file) if file.id != ROOT && can_be(&file, file.id) => {
                let id = self.inodes.lock().learn(parent, name, file.id);
                self.tell_size(id, file.size, seen);
                Ok(File { id, ..file })
            }
            _ => Err(errno(nonsense("the file system"))),
        }
    }

    fn done(answer: Result<FilesSay, Refusal>) -> Result<(), Refusal> {
        match answer? {
            FilesSay::Done => Ok(()),
            _ => Err(nonsense("the file system")),
        }
    }

    /// Asks what may have been done before its answer was lost: then the second time says `is_done`.
    fn once<const N: usize>(
        &self,
        inos: [u64; N],
        question: impl Fn([u64; N]) -> AskFiles,
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
        let question = |[parent]: [u64; 1]| AskFiles::LookUp { parent, name: name.to_owned() };
        let seen = self.told.lock().changes;
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
            let _ = ask_once(&self.files, self.names.own(), &AskFiles::Forget { file, count });
            // It was still in use when it was deleted; now its blocks can go back.
            if is_removed {
                self.return_blocks();
            }
        }
    }

    pub(super) fn stat(&self, ino: u64) -> Result<File, Code> {
        let seen = self.told.lock().changes;
        match self.ask_safely([ino], |[file]| AskFiles::Stat(file)).map_err(errno)? {
            FilesSay::File(file) if !can_be(&file, ino) => Err(errno(nonsense("the file system"))),
            FilesSay::File(file) => {
                self.tell_size(ino, file.size, seen);
                Ok(File { id: ino, ..file })
            }
            _ => Err(errno(nonsense("the file system"))),
        }
    }

    /// Remembers a size that was asked for when so many changes were seen.
    fn tell_size(&self, ino: u64, size: u64, seen: u64) {
        let mut told = self.told.lock();
        if told.changes == seen {
            tell(&mut told.sizes, ino, size);
        }
    }

    /// The size of a file, as it was told a short time ago, or is now.
    pub(super) fn size(&self, ino: u64) -> Result<u64, Code> {
        let told = of_now(self.told.lock().sizes.get(&ino));
        told.map_or_else(|| Ok(self.stat(ino)?.size), Ok)
    }

    /// The size of a file now; nothing that was told before is taken for true.
    pub(super) fn told_anew(&self, ino: u64) -> Result<u64, Code> {
        self.forget_map(ino);
        Ok(self.stat(ino)?.size)
    }

    /// Names in a directory with their files, of which the kernel learns. Each is to be forgotten that it does not take.
    pub(super) fn list_files(&self, ino: u64, cookie: u64) -> Result<Vec<(Listed, Option<File>)>, Code> {
        if of_now(self.told.lock().ends.get(&ino)) == Some(cookie) {
            return Ok(Vec::new());
        }
        let count = FILES_MAX;
        let seen = self.told.lock().changes;
        let question = |[directory]: [u64; 1]| AskFiles::ListFiles { directory, cookie, count };
        let FilesSay::Files(mut listed) = self.ask_safely([ino], question).map_err(errno)? else {
            return Err(errno(nonsense("the file system")));
        };
        // Before anything of it is remembered: a listing that is none leaves nothing behind.
        if listed.len() > count as usize
            || !goes_on(cookie, listed.iter().map(|(name, _)| name))
            || !listed.iter().all(|(name, file)| can_be_listed(name, file.as_ref()))
        {
            return Err(errno(nonsense("the file system")));
        }
        for (name, file) in &mut listed {
            if let Some(file) = file {
                file.id = self.inodes.lock().learn(ino, &name.name, file.id);
                self.tell_size(file.id, file.size, seen);
            }
        }
        if listed.len() < count as usize {
            let end = listed.last().map_or(cookie, |(name, _)| name.cookie);
            tell(&mut self.told.lock().ends, ino, end);
        }
        Ok(listed)
    }

    /// A directory changed: where it ends is to be asked again.
    fn changed_directory(&self, ino: u64) {
        self.told.lock().ends.remove(&ino);
    }

    pub(super) fn list(&self, ino: u64, cookie: u64) -> Result<Vec<Listed>, Code> {
        let question = |[directory]: [u64; 1]| AskFiles::List { directory, cookie, count: 128 };
        match self.ask_safely([ino], question).map_err(errno)? {
            FilesSay::Names(names) if goes_on(cookie, names.iter()) => Ok(names),
            _ => Err(errno(nonsense("the file system"))),
        }
    }

    pub(super) fn create(&self, parent: u64, name: &str, is_directory: bool) -> Result<File, Code> {
        self.changed_directory(parent);
        let seen = self.told.lock().changes;
        let now = now();
        let question =
            |[parent]: [u64; 1]| AskFiles::Create { parent, name: name.to_owned(), is_directory, now };
        let answer = match self.ask([parent], question) {
            Err(Refusal::Code(UNKNOWN)) => match self.ask([parent], question) {
                // It had been made.
                Err(Refusal::Code(code::EXISTS)) => return self.look_up(parent, name),
                answer => answer,
            },
            answer => answer,
        };
        self.learnt(seen, answer, parent, name)
    }

    pub(super) fn unlink(&self, parent: u64, name: &str) -> Result<(), Code> {
        let now = now();
        let question = |[parent]: [u64; 1]| AskFiles::Unlink { parent, name: name.to_owned(), now };
        self.once([parent], question, code::NOT_FOUND)?;
        self.inodes.lock().removed(parent, name);
        self.return_blocks();
        Ok(())
    }

    pub(super) fn remove_directory(&self, parent: u64, name: &str) -> Result<(), Code> {
        let now = now();
        let question = |[parent]: [u64; 1]| AskFiles::RemoveDirectory { parent, name: name.to_owned(), now };
        self.once([parent], question, code::NOT_FOUND)?;
        self.inodes.lock().removed(parent, name);
        Ok(())
    }

    pub(super) fn rename(&self, from: (u64, &str), to: (u64, &str), replace: bool) -> Result<(), Code> {
        let now = now();
        let (name, new_name) = (from.1.to_owned(), to.1.to_owned());
        let question = |[from, to]: [u64; 2]| AskFiles::Rename {
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
        let question = |[file]: [u64; 1]| AskFiles::SetTimes { file, times, is_read_only: read_only };
        Self::done(self.ask_safely([ino], question)).map_err(errno)
    }

    /// Bytes of a cluster, clusters, free ones.
    pub(super) fn sizes(&self) -> Result<(u32, u64, u64), Code> {
        match self.ask_safely([], |[]| AskFiles::Sizes).map_err(errno)? {
            FilesSay::Sizes { cluster_bytes, clusters, free } => Ok((cluster_bytes, clusters, free)),
            _ => Err(errno(nonsense("the file system"))),
        }
    }

    fn forget_map(&self, file: u64) {
        self.maps.lock().remove(&file);
        let mut told = self.told.lock();
        told.changes += 1;
        told.sizes.remove(&file);
    }

    /// The blocks with bytes of a file, in order, each with where it begins in the file; and bytes of a block.
    fn blocks(&self, file: u64, offset: u64, length: u64) -> Result<(Vec<(u64, u64)>, u32), Code> {
        let mut map = {
            let maps = self.maps.lock();
            let known = maps.get(&file);
            if let Some((known, blocks)) =
                known.and_then(|known| Some((known, within(known, offset, length)?)))
            {
                return Ok((blocks, known.block_bytes));
            }
            known.cloned().unwrap_or_default()
        };
        let mut at = offset;
        while at < offset + length {
            let left = offset + length - at;
            let asked = left.max(MAP_BYTES);
            let question = |[file]: [u64; 1]| AskFiles::Map { file, offset: at, length: asked };
            let FilesSay::Map { runs, block_bytes } = self.ask_safely([file], question).map_err(errno)?
            else {
                return Err(errno(nonsense("the file system")));
            };
            if !(512..=PAGE_BYTES as u32).contains(&block_bytes) {
                return Err(errno(nonsense("the file system")));
            }
            map.block_bytes = block_bytes;
            match map.learn(at, at + asked, runs).ok_or_else(|| errno(nonsense("the file system")))? {
                end if end > at => at = end,
                _ => break,
            }
        }
        let blocks = within(&map, offset, length).ok_or(libc::EIO)?;
        let block_bytes = map.block_bytes;
        let mut maps = self.maps.lock();
        if maps.len() >= MAPS_MAX {
            maps.clear();
        }
        maps.insert(file, map);
        Ok((blocks, block_bytes))
    }

    /// Reads a part of a file, which the caller knows to be within its size.
    pub(super) fn read(&self, file: u64, offset: u64, length: usize, size: u64) -> Result<Vec<u8>, Code> {
        let end = (offset + length as u64).min(size);
        if offset >= end {
            return Ok(Vec::new());
        }
        let (mut wanted, block_bytes) = self.blocks(file, offset, end - offset)?;
        let is_in_order = self.is_in_order(file, offset, end);
        let mut bytes = vec![0; (end - offset) as usize];
        // Which bytes of the answer are in a block, and how many of the block's come before.
        let part = |start: u64| {
            let (from, to) = (start.max(offset), (start + u64::from(block_bytes)).min(end));
            ((from - offset) as usize..(to - offset) as usize, (from - start) as usize)
        };
        let mut missing = Vec::new();
        for (start, block) in wanted.drain(..) {
            let (place, skipped) = part(start);
            if !self.reader.read_part(block, skipped, &mut bytes[place]).map_err(errno)? {
                missing.push((start, block));
            }
        }
        for missing in missing.chunks(BLOCKS_MAX / 2) {
            let numbers: Vec<u64> = missing.iter().map(|(_, block)| *block).collect();
            let ahead = || {
                let length = if is_in_order { AHEAD_BYTES.min(size - end) } else { 0 };
                let ahead = self.blocks(file, end, length).map(|(blocks, _)| blocks).unwrap_or_default();
                ahead.into_iter().map(|(_, block)| block).take(BLOCKS_MAX / 2).collect()
            };
            let read = self.reader.read_ahead(&numbers, ahead, |at, page| {
                let (place, skipped) = part(missing[at].0);
                let length = place.len();
                bytes[place].copy_from_slice(&page[skipped..skipped + length]);
            });
            read.map_err(errno)?;
        }
        Ok(bytes)
    }

    /// Whether a read goes on about where the one before ended; several may be under way at once.
    fn is_in_order(&self, file: u64, offset: u64, end: u64) -> bool {
        let mut maps = self.maps.lock();
        let Some(map) = maps.get_mut(&file) else { return false };
        let before = std::mem::replace(&mut map.read_end, end);
        offset != 0 && before.abs_diff(offset) <= AHEAD_BYTES || offset == 0 && end >= AHEAD_BYTES / 4
    }

    /// Writes into a file, which grows if that is beyond its end.
    pub(super) fn write(&self, file: u64, offset: u64, bytes: &[u8]) -> Result<(), Code> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(libc::EFBIG)?;
        {
            let _one = self.sizing.lock();
            if self.stat(file)?.size < end {
                self.resize_locked(file, end)?;
            }
        }
        let (blocks, block_bytes) = self.blocks(file, offset, bytes.len() as u64)?;
        // Blocks of which a part stays must be filled; all others must only be there.
        let block_bytes = u64::from(block_bytes);
        let is_whole = |start: &u64| *start >= offset && start + block_bytes <= end;
        for blocks in blocks.chunks(BLOCKS_MAX / 2) {
            for fill in [false, true] {
                let is_wanted = |(start, block): &&(u64, u64)| {
                    is_whole(start) != fill && (fill || self.reader.known(*block).is_none())
                };
                let missing: Vec<u64> = blocks.iter().filter(is_wanted).map(|(_, block)| *block).collect();
                if !missing.is_empty() {
                    self.reader.reference(&missing, fill, &[]).map_err(errno)?;
                }
            }
            for (start, block) in blocks {
                let from = (*start).max(offset);
                let to = (start + block_bytes).min(end);
                let part = &bytes[(from - offset) as usize..(to - offset) as usize];
                let write = || self.write_block(*block, (from - start) as usize, part, is_whole(start));
                let at = match write() {
                    // It is still the FSDriver's, if something came between its being allocated and accepted.
                    Err(Refusal::NotPermitted) if self.claimed(file, *start, block_bytes)? => write(),
                    written => written,
                };
                let at = at.map_err(errno)?;
                self.changed.lock().entry(file).or_default().insert(*block, at);
            }
        }
        self.bound_changed(file).map_err(errno)
    }

    /// Has written what was changed of a file that is more than is remembered. It is durable when the next file is.
    fn bound_changed(&self, file: u64) -> Result<(), Refusal> {
        let mut many = Vec::new();
        {
            let mut changed = self.changed.lock();
            for key in [file, FORGOTTEN] {
                if changed.get(&key).is_some_and(|blocks| blocks.len() >= CHANGED_MAX) {
                    many.extend(changed.remove(&key).into_iter().flatten());
                }
            }
        }
        self.write_all_out(&many).inspect_err(|_| self.still_changed(many))
    }

    /// Not written yet: the next time something is made durable it is tried again.
    fn still_changed(&self, blocks: Vec<(u64, Reference)>) {
        let mut changed = self.changed.lock();
        let still = changed.entry(FORGOTTEN).or_default();
        for (block, at) in blocks {
            still.entry(block).or_insert(at);
        }
    }

    fn write_all_out(&self, blocks: &[(u64, Reference)]) -> Result<(), Refusal> {
        blocks.chunks(BLOCKS_MAX).try_for_each(|blocks| self.write_out(self.configuration.disk, blocks))
    }

    /// Changes a block in memory. Where that was.
    fn write_block(
        &self,
        block: u64,
        skipped: usize,
        bytes: &[u8],
        is_whole: bool,
    ) -> Result<Reference, Refusal> {
        debug_assert!(bytes.len() <= WRITE_BYTES);
        for _ in 0..ATTEMPTS {
            let at = match self.reader.known(block) {
                Some(at) => at,
                None => self.reader.reference(&[block], !is_whole, &[])?[0],
            };
            let question = AskMonitor::Write { at, skipped: skipped as u32, bytes: bytes.to_vec() };
            let mut answer = Err(Refusal::NotPermitted);
            for name in self.names.all() {
                answer = ask_as(&self.monitor, name.alias, &question);
                if !answer.as_ref().is_err_and(is_denied) {
                    break;
                }
            }
            match answer {
                Ok((MonitorSays::Done, _)) => return Ok(at),
                Ok(_) => return Err(nonsense("the monitor")),
                // Taken away meanwhile, or not filled yet.
                Err(Refusal::Code(OUTDATED | STATE | crate::host::BUSY)) => {
                    self.reader.forget([block].into_iter())
                }
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Failed("blocks are taken from memory faster than they can be changed".to_owned()))
    }

    /// Another size.
    pub(super) fn resize(&self, file: u64, size: u64) -> Result<(), Code> {
        let _one = self.sizing.lock();
        self.resize_locked(file, size)
    }

    fn resize_locked(&self, file: u64, size: u64) -> Result<(), Code> {
        // It comes nearer with each step, or somebody lies.
        let mut left = u64::MAX;
        let mut has_returned = false;
        for _ in 0..STEPS_MAX {
            let owner = self.configuration.user.clone();
            let now = now();
            let question = |[file]: [u64; 1]| AskFiles::Resize { file, size, owner: owner.clone(), now };
            let before = self.stat(file)?.size;
            let answer = match self.ask([file], question) {
                // If it had been done, its new blocks are to be nominated once more.
                Err(Refusal::Code(UNKNOWN)) => match self.ask([file], question) {
                    Ok(_) if size > before => self.claim(file, before, size - before),
                    answer => answer,
                },
                answer => answer,
            };
            let acl = if size > before && before > 0 { self.acl_of(file) } else { None };
            let acl = acl.unwrap_or_else(|| self.configuration.acl.clone());
            self.forget_map(file);
            // What was deleted while it was in use may wait to be given back.
            if matches!(answer, Err(Refusal::Code(code::FULL))) && !has_returned {
                has_returned = true;
                self.return_blocks();
                continue;
            }
            let FilesSay::Resized { size: reached, nominated, fill } = answer.map_err(errno)? else {
                return Err(errno(nonsense("the file system")));
            };
            let is_within =
                |(from, length): (u64, u64)| from.checked_add(length).is_some_and(|end| end <= reached);
            if reached.abs_diff(size) >= left || reached > size.max(before) || !fill.is_none_or(is_within) {
                return Err(errno(nonsense("the file system")));
            }
            left = reached.abs_diff(size);
            self.accept(&nominated, &acl).map_err(errno)?;
            if let Some((from, length)) = fill {
                self.zero(file, from, length)?;
            }
            if reached == size {
                self.return_blocks();
                return Ok(());
            }
        }
        Err(errno(nonsense("the file system")))
    }

    /// The ACL of a file's first block, if it is this user's: what it grows by gets the same.
    fn acl_of(&self, file: u64) -> Option<Acl> {
        let (blocks, _) = self.blocks(file, 0, 1).ok()?;
        let (_, block) = *blocks.first()?;
        match self.ask_policy(&AskPolicy::Look { disk: self.configuration.disk, block }) {
            Ok(PolicySays::Label { acl, .. }) => Some(acl),
            _ => None,
        }
    }

    /// All blocks of a file, up to the end of its last cluster, in runs.
    pub(super) fn runs(&self, file: u64) -> Result<Vec<Blocks>, Refusal> {
        let stat = self.ask_safely([file], |[file]| AskFiles::Stat(file))?;
        let FilesSay::File(File { size, .. }) = stat else { return Err(nonsense("the file system")) };
        let sizes = self.ask_safely([], |[]| AskFiles::Sizes)?;
        let FilesSay::Sizes { cluster_bytes, .. } = sizes else { return Err(nonsense("the file system")) };
        let (mut found, mut at): (Vec<Blocks>, u64) = (Vec::new(), 0);
        let mut block = 512;
        while at < size {
            let question = |[file]: [u64; 1]| AskFiles::Map { file, offset: at, length: size - at };
            let FilesSay::Map { runs, block_bytes } = self.ask_safely([file], question)? else {
                return Err(nonsense("the file system"));
            };
            let before = at;
            block = u64::from(block_bytes.max(512));
            for (start, run) in runs {
                at = at.max(start.saturating_add(run.count.saturating_mul(u64::from(block_bytes))));
                match found.last_mut() {
                    Some(last) if last.first + last.count == run.first => last.count += run.count,
                    _ => found.push(run),
                }
            }
            if at == before {
                break;
            }
        }
        // The rest of the last cluster, which is the file's too and lies behind.
        let rest = size.next_multiple_of(u64::from(cluster_bytes.max(512))) - size.next_multiple_of(block);
        if let Some(last) = found.last_mut() {
            last.count += rest / block;
        }
        Ok(found)
    }

    /// Has the blocks of a part of a file that nobody accepted nominated again.
    fn claim(&self, file: u64, offset: u64, length: u64) -> Result<FilesSay, Refusal> {
        let owner = self.configuration.user.clone();
        let mut all = Vec::new();
        let end = offset + length;
        // A part by a part that is bounded in blocks, however small they are.
        for at in (offset..end).step_by(CLAIM_BYTES) {
            let length = (end - at).min(CLAIM_BYTES as u64);
            let question =
                |[file]: [u64; 1]| AskFiles::Claim { file, offset: at, length, owner: owner.clone() };
            let FilesSay::Resized { nominated, .. } = self.ask_safely([file], question)? else {
                return Err(nonsense("the file system"));
            };
            all.extend(nominated);
        }
        Ok(FilesSay::Resized { size: end, nominated: all, fill: Some((offset, length)) })
    }

    /// Whether a block of a file became ours that was nobody's yet.
    fn claimed(&self, file: u64, start: u64, block_bytes: u64) -> Result<bool, Code> {
        match self.claim(file, start, block_bytes).map_err(errno)? {
            FilesSay::Resized { nominated, .. } => {
                let acl = self.acl_of(file).unwrap_or_else(|| self.configuration.acl.clone());
                self.accept(&nominated, &acl).map_err(errno)?;
                Ok(!nominated.is_empty())
            }
            _ => Ok(false),
        }
    }

    /// Becomes owner of blocks that the FSDriver nominated. They were erased.
    pub(super) fn accept(&self, nominated: &[Blocks], acl: &Acl) -> Result<(), Refusal> {
        for blocks in nominated {
            let (disk, acl) = (self.configuration.disk, acl.clone());
            if let Err(refusal) = self.ask_policy(&AskPolicy::Accept { disk, blocks: *blocks, acl }) {
                // It may have been done before its answer was lost.
                match self.ask_policy(&AskPolicy::Look { disk, block: blocks.first }) {
                    Ok(PolicySays::Label { owner, .. }) if owner == self.configuration.user => {}
                    _ => return Err(refusal),
                }
            }
            self.reader.forget(blocks.first..blocks.first + blocks.count);
        }
        Ok(())
    }

    /// What the last block holds beyond the old end is not part of what the file grows by.
    fn zero(&self, file: u64, from: u64, length: u64) -> Result<(), Code> {
        for from_piece in (from..from + length).step_by(ZEROED_BYTES) {
            self.zero_piece(file, from_piece, (from + length - from_piece).min(ZEROED_BYTES as u64))?;
        }
        Ok(())
    }

    fn zero_piece(&self, file: u64, from: u64, length: u64) -> Result<(), Code> {
        let (blocks, block_bytes) = self.blocks(file, from, length)?;
        let zeroes = [0; PAGE_BYTES];
        for (start, block) in blocks {
            let begin = start.max(from);
            let end = (start + u64::from(block_bytes)).min(from + length);
            let part = &zeroes[..(end - begin) as usize];
            let is_whole = part.len() == block_bytes as usize;
            let at = self.write_block(block, (begin - start) as usize, part, is_whole).map_err(errno)?;
            self.changed.lock().entry(file).or_default().insert(block, at);
        }
        Ok(())
    }

    /// Gives back what was deleted or cut off, as long as there is any.
    pub(super) fn return_blocks(&self) {
        let _one = self.returning.lock();
        for _ in 0..STEPS_MAX {
            if !matches!(self.return_some(), Ok(true)) {
                break;
            }
        }
    }

    fn return_some(&self) -> Result<bool, Refusal> {
        let answer = ask_as(&self.files, self.names.own(), &AskFiles::Returning)?.0;
        let FilesSay::Return { item, blocks, clusters, to: Some(to) } = answer else { return Ok(false) };
        // Nobody else gets them, whatever it says.
        if to != self.configuration.driver {
            return Err(nonsense("the file system"));
        }
        let disk = self.configuration.disk;
        for blocks in &blocks {
            self.ask_policy(&AskPolicy::Nominate { disk, blocks: *blocks, to: to.clone() })?;
            self.reader.forget(blocks.first..blocks.first + blocks.count);
        }
        let question = AskFiles::Returned { item, blocks, clusters, now: now() };
        Ok(ask_as(&self.files, self.names.own(), &question)?.0 == FilesSay::Done)
    }

    /// Everything of a file durable, with everything that the file system was told before. CacheMgr and the DiskDriver
    /// are asked to write it, the monitor whether they did: so neither can have lost acknowledged what is not kept.
    pub(super) fn sync(&self, file: Option<u64>) -> Result<(), Code> {
        let blocks: Vec<(u64, Reference)> = {
            let mut changed = self.changed.lock();
            match file {
                Some(file) => {
                    [file, FORGOTTEN].iter().filter_map(|key| changed.remove(key)).flatten().collect()
                }
                None => changed.drain().flat_map(|(_, blocks)| blocks).collect(),
            }
        };
        let disk = self.configuration.disk;
        let own = self.names.own();
        let synced = self.write_all_out(&blocks);
        let flushed =
            synced.and_then(|()| match ask_as(&self.monitor, own, &AskMonitor::Flush { disk })?.0 {
                MonitorSays::Done => Ok(()),
                _ => Err(nonsense("the monitor")),
            });
        flushed.map_err(|refusal| {
            self.still_changed(blocks);
            errno(refusal)
        })
    }

    /// Has changed blocks written, and sees that they were. Whoever writes to them meanwhile makes it longer.
    fn write_out(&self, disk: u16, blocks: &[(u64, Reference)]) -> Result<(), Refusal> {
        let own = self.names.own();
        let numbers: Vec<u64> = blocks.iter().map(|(block, _)| *block).collect();
        let references: Vec<Reference> = blocks.iter().map(|(_, at)| *at).collect();
        for _ in 0..ATTEMPTS {
            ask_as(&self.cache, own, &AskCache::Clean { disk, blocks: numbers.clone() })?;
            // A page that is no longer the block's was given up, which is done with none that is dirty.
            match ask_as(&self.monitor, own, &AskMonitor::Look(references.clone()))?.0 {
                MonitorSays::Look(found) if found.len() != blocks.len() => {
                    return Err(nonsense("the monitor"));
                }
                MonitorSays::Look(found) if found.contains(&Some(Status::Dirty)) => {}
                MonitorSays::Look(_) => return Ok(()),
                _ => return Err(nonsense("the monitor")),
            }
        }
        Err(Refusal::Failed("changed blocks were said to be written, and were not".to_owned()))
    }
}

/// Whether the kernel can be told this of a file. It gives up an inode for good whose kind changes or whose size is none,
/// and with the root's the whole mount; so an FSDriver that lies could end it.
fn can_be(file: &File, ino: u64) -> bool {
    file.size <= FILE_BYTES_MAX && (ino != ROOT || file.is_directory)
}

/// Whether names come in an order that ends. A directory that goes in circles, or on for ever, would keep whoever lists it.
fn goes_on<'a>(cookie: u64, mut names: impl Iterator<Item = &'a Listed>) -> bool {
    let mut before = cookie;
    names.all(|listed| std::mem::replace(&mut before, listed.cookie) < listed.cookie) && before <= PLACES_MAX
}

/// Whether the kernel can be told this of a name and its file. It takes no reference for the two names that every
/// directory has, so nobody would ever forget what came with them.
fn can_be_listed(name: &Listed, file: Option<&File>) -> bool {
    let is_name = !matches!(&*name.name, "" | "." | "..") && !name.name.contains(['/', '\0']);
    let is_file =
        |file: &File| file.id != ROOT && file.is_directory == name.is_directory && can_be(file, file.id);
    is_name && file.is_none_or(is_file)
}

/// The blocks with these bytes, if all are known.
fn within(map: &Map, offset: u64, length: u64) -> Option<Vec<(u64, u64)>> {
    if map.block_bytes == 0 {
        return (length == 0).then(Vec::new);
    }
    let block = u64::from(map.block_bytes);
    let starts = (offset / block..(offset + length).div_ceil(block)).map(|at| at * block);
    starts.map(|start| Some((start, map.block(start)?))).collect()
}
