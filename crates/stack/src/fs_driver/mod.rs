//! FSDriver: the FAT32 file system of one partition (paper, section 4.8). It owns the partition's metadata
//! and its free blocks, and cannot read a file: the blocks of a file belong to the file's owner.
//!
//! FAT does not store owners. A file's owner is the owner of its first block. An empty file has no owner; the
//! user who gives it its first block becomes the owner.

mod sessions;

use crate::StackError;
use crate::asking::{ITSELF, ask, nonsense, words};
use crate::disk_layout::{Geometry, Partition};
use crate::protocol::{
    BLOCKS_MAX, Blocks, CacheReply, CacheRequest, DirectoryEntry, File, FilesReply, FilesRequest,
    MonitorReply, MonitorRequest, PolicyReply, PolicyRequest, STAGE_PAGES, Time, code,
};
use crate::reader::Reader;
use crate::views::Views;
use holdfast_access::{Access, Acl, Principal};
use holdfast_components::{Alias, Asker, Context, Refusal, Reply, Request, View};
use holdfast_fat::format::{FormatOptions, format};
use holdfast_fat::{
    Area, BlockId, BlockRange, Change, Checked, Facts, Fat, FatError, FileId, Kind, Layout, LimboId,
    ListedFile, Metadata, Moment, Options, ROOT, Replace, Stat, Transaction,
};
use holdfast_monitor::PAGE_BYTES;
use parking_lot::Mutex;
use sessions::Sessions;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Number of blocks of a new file system that are written at once.
const FORMATTED: usize = 64;
/// Most names in one reply.
const NAMES_MAX: u32 = 128;
/// Most names with attributes in one answer: as many as fit into a packet, however long they are.
pub(crate) const FILES_MAX: u32 = 64;
/// How long handing over the blocks of a new disk may take.
const HAND_OVER: Duration = Duration::from_secs(600);
/// Most blocks of a file that one claim examines. Each costs a request, and no other request is answered
/// meanwhile.
const CLAIMED_MAX: u64 = 2048;
/// Most items in the queue of returned blocks that are examined for one caller.
const WAITING_MAX: usize = 64;

/// The configuration of the component.
#[derive(Clone, PartialEq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Configuration {
    /// The number of the disk.
    pub disk: u16,
    /// The partition as it was when its blocks got their owners.
    pub partition: Partition,
    /// The blocks of the partition.
    pub blocks: Blocks,
    /// The principal of this driver: its program, for these blocks.
    pub own: Principal,
    /// For a new partition: its label, the bytes of a cluster (`None`: by the partition's size), and the
    /// serial number.
    pub format: Option<(String, Option<u32>, u32)>,
}

/// Blocks of metadata, by views of regions.
struct PartitionBlocks {
    reader: Reader,
    metadata_blocks: u64,
    first: u64,
}

impl PartitionBlocks {
    fn number(&self, block: BlockId) -> u64 {
        match block.area {
            Area::Metadata => self.first + block.index,
            Area::Data => self.first + self.metadata_blocks + block.index,
        }
    }
}

impl Metadata for PartitionBlocks {
    fn read(&self, block: BlockId, into: &mut [u8]) -> Result<(), String> {
        let number = self.number(block);
        let read = self.reader.read(&[number], &[], |_, page| into.copy_from_slice(&page[..into.len()]));
        read.map_err(|refusal| refusal.to_string())
    }
}

struct Driver {
    configuration: Configuration,
    /// A number of this run. It is part of the numbers of files, so that those of an earlier run are invalid.
    run: u64,
    fat: Fat<PartitionBlocks>,
    monitor: Arc<Asker<MonitorRequest, MonitorReply>>,
    policy: Asker<PolicyRequest, PolicyReply>,
    stage: Arc<View>,
    sessions: Sessions,
}

/// The port of the host, which acts for the administrator.
const HOST: &str = "from-host";

/// Runs the component.
pub fn main(context: Context) -> ExitCode {
    run(context, Views::Read)
}

/// Runs the component with its metadata mapped into memory, for measurements (the paper's PFS mmap).
pub fn main_mapped(context: Context) -> ExitCode {
    run(context, Views::Mapped)
}

fn run(context: Context, views: Views) -> ExitCode {
    crate::component(&context, |configuration: Configuration| {
        let ports = &context.ports;
        let monitor: Arc<Asker<MonitorRequest, MonitorReply>> = Arc::new(ports.asker("monitor")?);
        let cache: Arc<Asker<CacheRequest, CacheReply>> = Arc::new(ports.asker("cache")?);
        let policy: Asker<PolicyRequest, PolicyReply> = ports.asker("policy")?;
        let stage = ports.region("stage")?;
        let reader = Reader::new(Arc::clone(&monitor), cache, ITSELF, configuration.disk).with(views);
        let words = |refusal: Refusal| StackError::Component(words(refusal));
        if configuration.format.is_some() {
            take_over(&configuration, &policy).map_err(words)?;
        }
        let mut boot = [0; PAGE_BYTES];
        reader.read(&[configuration.blocks.first], &[], |_, page| boot = *page).map_err(words)?;
        let layout = match Layout::from_boot_sector(&boot, configuration.partition.bytes) {
            // The first block is written last, so a file system that has one is complete.
            Err(_) if configuration.format.is_some() => make(&configuration, &reader, &monitor, &stage)?,
            layout => layout?,
        };
        if Geometry::of(&layout) != configuration.partition.geometry {
            // The numbers of blocks would stand for other blocks than those that got their owners.
            let other = "the boot sector says that its blocks are elsewhere than when they got their owners";
            return Err(StackError::Component(other.to_owned()));
        }
        let metadata_blocks = layout.area_blocks(Area::Metadata);
        let metadata = PartitionBlocks { reader, metadata_blocks, first: configuration.blocks.first };
        let mut fat = Fat::mount(layout, metadata, Options::default())?;
        // Every block of metadata is verified against what was written last, and only this program writes it.
        fat.vouch(&Checked::as_we_left_it());
        let sessions = Sessions::default();
        let mut driver = Driver { configuration, run: context.run, fat, monitor, policy, stage, sessions };
        let now = now();
        if let Some(change) = driver.fat.prepare(now)? {
            driver.commit(change).map_err(words)?;
        }
        // One request after the other: a transaction is done before the next request is read.
        let driver = Mutex::new(driver);
        Ok(ports.serve_owned(1, move |request| driver.lock().answer(&request))?)
    })
}

fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}

/// Accepts the blocks of a new partition as soon as they are nominated.
fn take_over(
    configuration: &Configuration,
    policy: &Asker<PolicyRequest, PolicyReply>,
) -> Result<(), Refusal> {
    let acl = Acl::of(configuration.own.clone(), Access::ReadWrite);
    let acl = acl.map_err(|error| Refusal::Failed(error.to_string()))?;
    let (disk, blocks) = (configuration.disk, configuration.blocks);
    let started = Instant::now();
    let owner = configuration.own.digest().0;
    loop {
        // An earlier process of this driver may have accepted the blocks, and some of them may be files by
        // now.
        let first = Blocks { count: 1, ..blocks };
        if ask(policy, &PolicyRequest::Owns { disk, blocks: first, owner })? == PolicyReply::Owns(true) {
            return Ok(());
        }
        match ask(policy, &PolicyRequest::Accept { disk, blocks, acl: acl.clone() }) {
            Ok(_) => return Ok(()),
            Err(refusal) if started.elapsed() > HAND_OVER => return Err(refusal),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Writes a new file system.
fn make(
    configuration: &Configuration,
    reader: &Reader,
    monitor: &Asker<MonitorRequest, MonitorReply>,
    stage: &View,
) -> Result<Layout, StackError> {
    let (label, cluster_bytes, volume_id) = configuration.format.clone().unwrap_or_default();
    let partition = &configuration.partition;
    let options = crate::fs_loader::options(cluster_bytes, &label, volume_id, partition.start)?;
    let made = format(partition.bytes, &FormatOptions { now: now(), ..options })?;
    let metadata_blocks = made.layout.area_blocks(Area::Metadata);
    let mut boot = BTreeMap::new();
    let mut blocks = made.blocks().map(|(block, bytes)| {
        let number = match block.area {
            Area::Metadata => block.index,
            Area::Data => metadata_blocks + block.index,
        };
        (configuration.blocks.first + number, bytes)
    });
    loop {
        let mut some: BTreeMap<u64, Vec<u8>> = blocks.by_ref().take(FORMATTED).collect();
        if let Some((first, bytes)) = some.remove_entry(&configuration.blocks.first) {
            boot.insert(first, bytes);
        }
        if some.is_empty() {
            let written = write(configuration.disk, reader, monitor, stage, &boot);
            written?;
            return Ok(made.layout.clone());
        }
        let written = write(configuration.disk, reader, monitor, stage, &some);
        written?;
    }
}

/// Writes whole blocks, all or none.
fn write(
    disk: u16,
    reader: &Reader,
    monitor: &Asker<MonitorRequest, MonitorReply>,
    stage: &View,
    blocks: &BTreeMap<u64, Vec<u8>>,
) -> Result<(), Refusal> {
    if blocks.len() > STAGE_PAGES {
        return Err(Refusal::Failed(format!("{} blocks of metadata change at once", blocks.len())));
    }
    for (page, bytes) in blocks.values().enumerate() {
        let written = stage.write_at((page * PAGE_BYTES) as u64, bytes);
        written.map_err(|error| Refusal::Failed(error.to_string()))?;
    }
    let numbers: Vec<u64> = blocks.keys().copied().collect();
    let mut attempts = 0;
    loop {
        let mut references = Vec::with_capacity(numbers.len());
        for numbers in numbers.chunks(BLOCKS_MAX) {
            references.extend(reader.reference(numbers, false, &[])?);
        }
        match ask(monitor, &MonitorRequest::WriteTogether { disk, writes: references }) {
            Ok(MonitorReply::Done) => return Ok(()),
            Ok(_) => return Err(nonsense("the monitor")),
            // A page was taken away meanwhile, or is being moved.
            Err(Refusal::Code(_)) if attempts < 100 => attempts += 1,
            Err(refusal) => return Err(refusal),
        }
    }
}

fn moment((seconds, nanoseconds): Time) -> Moment {
    Moment { seconds, nanoseconds: nanoseconds.min(999_999_999) }
}

fn time(moment: Moment) -> Time {
    (moment.seconds, moment.nanoseconds)
}

fn file(id: u64, stat: &Stat) -> File {
    File {
        id,
        is_directory: stat.kind == Kind::Directory,
        size: stat.size,
        times: [time(stat.created), time(stat.modified), time(stat.accessed)],
        is_read_only: stat.attributes.read_only,
    }
}

fn listed_name(name: holdfast_fat::DirectoryEntry) -> DirectoryEntry {
    let is_directory = name.kind == Kind::Directory;
    DirectoryEntry { name: name.name, is_directory, number: name.place_number, cookie: name.cookie }
}

fn refusal(error: FatError) -> Refusal {
    let code = match &error {
        FatError::NotFound(_) => code::NOT_FOUND,
        FatError::Gone => code::GONE,
        FatError::Exists(_) => code::EXISTS,
        FatError::NotADirectory(_) => code::NOT_A_DIRECTORY,
        FatError::IsADirectory(_) => code::IS_A_DIRECTORY,
        FatError::NotEmpty(_) => code::NOT_EMPTY,
        FatError::FileTooLarge(_) => code::TOO_LARGE,
        FatError::Full { .. } | FatError::DirectoryFull | FatError::LimboFull(_) => code::FULL,
        FatError::ReadOnly(_) => code::READ_ONLY,
        FatError::BadName { .. } | FatError::IntoItself | FatError::NothingToFree(_) => code::INVALID,
        _ => code::MEDIUM,
    };
    if code == code::MEDIUM {
        tracing::warn!(%error, "the file system");
    }
    Refusal::Code(code)
}

impl Driver {
    /// The file with a number from this run.
    fn id(&self, number: u64) -> Result<FileId, Refusal> {
        match (number, number >> 32) {
            (1, _) => Ok(ROOT),
            (_, run) if run == self.run & 0xffff_ffff => Ok(FileId(number & 0xffff_ffff)),
            _ => Err(Refusal::Code(code::GONE)),
        }
    }

    /// The number of a file as clients see it.
    fn number(&self, id: FileId) -> u64 {
        if id == ROOT { 1 } else { self.run << 32 | id.0 & 0xffff_ffff }
    }

    fn answer(&mut self, request: &Request) -> Reply {
        let answer = request.question().and_then(|question| match question {
            // Only the host may report the end of a session.
            FilesRequest::Ended { session } if request.port == HOST => {
                for (id, count) in self.sessions.end(&format!("from-{session}")) {
                    self.fat.forget(id, count);
                }
                Ok(FilesReply::Done)
            }
            question => self.carry_out(request.port, &request.alias, question),
        });
        answer.into()
    }

    fn carry_out(
        &mut self,
        session: &str,
        by: &Alias,
        question: FilesRequest,
    ) -> Result<FilesReply, Refusal> {
        let done = FilesReply::Done;
        match question {
            FilesRequest::LookUp { parent, name } => {
                self.sessions.have_room(session)?;
                let (id, stat) = self.fat.lookup(self.id(parent)?, &name).map_err(refusal)?;
                self.sessions.refer(session, id);
                Ok(FilesReply::File(file(self.number(id), &stat)))
            }
            FilesRequest::Forget { file, count } => {
                let id = self.id(file)?;
                // Only this session's references are given up; others have their own.
                let count = self.sessions.give_up(session, id, count);
                if count > 0 {
                    self.fat.forget(id, count);
                }
                Ok(done)
            }
            FilesRequest::Ended { .. } => Err(Refusal::NotPermitted),
            FilesRequest::Stat(number) => {
                let stat = self.fat.stat(self.id(number)?).map_err(refusal)?;
                Ok(FilesReply::File(file(number, &stat)))
            }
            FilesRequest::List { directory, cookie, count } => {
                let count = count.min(NAMES_MAX) as usize;
                let names = self.fat.list(self.id(directory)?, cookie, count).map_err(refusal)?;
                Ok(FilesReply::Names(names.into_iter().map(listed_name).collect()))
            }
            FilesRequest::ListFiles { directory, cookie, count } => {
                let count = count.min(FILES_MAX) as usize;
                let listed = self.fat.list_files(self.id(directory)?, cookie, count).map_err(refusal)?;
                // A session that lists a directory will probably list the directories in it next.
                let metadata = self.fat.metadata();
                let below = listed.iter().filter_map(|entry| Some(metadata.number(entry.first?)));
                metadata.reader.expect(below.collect());
                let mut entries = Vec::new();
                for ListedFile { name, file: known, .. } in listed {
                    let known = known.and_then(|(id, stat)| {
                        // A session with too many references gets only the name, as for an unsound file.
                        if self.sessions.have_room(session).is_err() {
                            self.fat.forget(id, 1);
                            return None;
                        }
                        self.sessions.refer(session, id);
                        Some(file(self.number(id), &stat))
                    });
                    entries.push((listed_name(name), known));
                }
                Ok(FilesReply::Files(entries))
            }
            FilesRequest::Map { file, offset, length } => {
                let runs = self.fat.map(self.id(file)?, offset, length).map_err(refusal)?;
                let runs = runs.into_iter().map(|run| (run.offset, self.blocks(run.blocks))).collect();
                Ok(FilesReply::Map { runs, block_bytes: self.fat.layout().block_bytes })
            }
            FilesRequest::Create { parent, name, is_directory, now } => {
                self.sessions.have_room(session)?;
                let kind = if is_directory { Kind::Directory } else { Kind::File };
                let change = self.fat.create(self.id(parent)?, &name, kind, moment(now)).map_err(refusal)?;
                let (id, _) = self.commit(change)?;
                self.sessions.refer(session, id);
                let stat = self.fat.stat(id).map_err(refusal)?;
                Ok(FilesReply::File(file(self.number(id), &stat)))
            }
            FilesRequest::Unlink { parent, name, now } => {
                self.must_own_name(by, parent, &name)?;
                let change = self.fat.unlink(self.id(parent)?, &name, moment(now)).map_err(refusal)?;
                self.commit(change)?;
                Ok(done)
            }
            FilesRequest::RemoveDirectory { parent, name, now } => {
                let change = self.fat.rmdir(self.id(parent)?, &name, moment(now)).map_err(refusal)?;
                self.commit(change)?;
                Ok(done)
            }
            FilesRequest::Rename { from, name, to, new_name, replace, now } => {
                self.must_own_name(by, from, &name)?;
                match self.must_own_name(by, to, &new_name) {
                    Err(Refusal::Code(code::NOT_FOUND)) => {}
                    other => other?,
                }
                let replace = if replace { Replace::Yes } else { Replace::No };
                let names = ((self.id(from)?, &*name), (self.id(to)?, &*new_name));
                let change = self.fat.rename(names.0, names.1, replace, moment(now)).map_err(refusal)?;
                self.commit(change)?;
                Ok(done)
            }
            FilesRequest::Resize { file, size, owner, now } => {
                let id = self.id(file)?;
                self.must_own(by, id)?;
                let owner = asker(by, owner)?;
                let change = self.fat.resize(id, size, moment(now)).map_err(refusal)?;
                let (resized, allocated) = self.commit(change)?;
                let nominated = self.nominate(&allocated, &owner)?;
                let fill = resized.fill.map(|fill| (fill.start, fill.end - fill.start));
                Ok(FilesReply::Resized { size: resized.size, nominated, fill })
            }
            FilesRequest::Claim { file, offset, length, owner } => {
                let id = self.id(file)?;
                self.must_own(by, id)?;
                let owner = asker(by, owner)?;
                let runs = self.fat.map(self.id(file)?, offset, length).map_err(refusal)?;
                let own = self.configuration.own.digest().0;
                let mut mine = Vec::new();
                // A session that claims more sends another request, for the rest.
                if runs.iter().map(|run| run.blocks.count).sum::<u64>() > CLAIMED_MAX {
                    return Err(Refusal::Malformed);
                }
                for run in runs {
                    for index in run.blocks.start..run.blocks.start + run.blocks.count {
                        let one = BlockRange { start: index, count: 1 };
                        if self.owns(self.blocks(one), own)? {
                            mine.push(one);
                        }
                    }
                }
                let nominated = self.nominate(&mine, &owner)?;
                Ok(FilesReply::Resized { size: 0, nominated, fill: None })
            }
            FilesRequest::SetTimes { file, times, is_read_only } => {
                let id = self.id(file)?;
                self.must_own(by, id)?;
                let attributes = match is_read_only {
                    None => None,
                    Some(read_only) => {
                        let before = self.fat.stat(id).map_err(refusal)?.attributes;
                        Some(holdfast_fat::Attributes { read_only, ..before })
                    }
                };
                let [created, modified, accessed] = times.map(|time| time.map(moment));
                let change =
                    self.fat.set(id, Facts { attributes, created, modified, accessed }).map_err(refusal)?;
                self.commit(change)?;
                Ok(done)
            }
            FilesRequest::Returning => self.returning(by),
            FilesRequest::Returned { item, blocks, clusters, now } => {
                self.take_back(LimboId(item), &blocks, clusters, moment(now))?;
                Ok(done)
            }
            FilesRequest::Sizes => {
                let sizes = self.fat.sizes().map_err(refusal)?;
                let (cluster_bytes, clusters) = (sizes.cluster_bytes, sizes.clusters);
                Ok(FilesReply::Sizes { cluster_bytes, clusters, free: sizes.free })
            }
        }
    }

    /// Converts blocks of the data area to the numbers that all components use.
    fn blocks(&self, range: BlockRange) -> Blocks {
        let first = self.fat.metadata().number(BlockId { area: Area::Data, index: range.start });
        Blocks { first, count: range.count }
    }

    /// Writes a transaction and commits it, or does neither.
    fn commit<T>(&mut self, change: Change<T>) -> Result<(T, Vec<BlockRange>), Refusal> {
        let Change { transaction, value } = change;
        let allocated = transaction.allocated.clone();
        let metadata = self.fat.metadata();
        let blocks: BTreeMap<u64, Vec<u8>> = transaction
            .blocks
            .iter()
            .map(|(block, bytes)| (metadata.number(*block), bytes.clone()))
            .collect();
        let written = write(self.configuration.disk, &metadata.reader, &self.monitor, &self.stage, &blocks);
        let settled = |settle: fn(&mut Fat<PartitionBlocks>, Transaction) -> holdfast_fat::Result<()>,
                       fat,
                       transaction| { settle(fat, transaction).map_err(refusal) };
        match written {
            Ok(()) => settled(Fat::applied, &mut self.fat, transaction)?,
            Err(error) => {
                settled(Fat::abandoned, &mut self.fat, transaction)?;
                return Err(error);
            }
        }
        Ok((value, allocated))
    }

    fn owns(&self, blocks: Blocks, owner: [u8; 32]) -> Result<bool, Refusal> {
        let disk = self.configuration.disk;
        match ask(&self.policy, &PolicyRequest::Owns { disk, blocks, owner })? {
            PolicyReply::Owns(owns) => Ok(owns),
            _ => Err(nonsense("PolicyMgr")),
        }
    }

    /// Checks that a file belongs to the caller: its first block does, or is still the driver's own, or it
    /// has no blocks.
    fn must_own(&mut self, by: &Alias, id: FileId) -> Result<(), Refusal> {
        if self.fat.stat(id).map_err(refusal)?.kind == Kind::Directory {
            return Ok(());
        }
        let Some(first) = self.fat.map(id, 0, 1).map_err(refusal)?.first().map(|run| run.blocks.start) else {
            return Ok(());
        };
        let blocks = self.blocks(BlockRange { start: first, count: 1 });
        let is_theirs =
            self.owns(blocks, by.principal)? || self.owns(blocks, self.configuration.own.digest().0)?;
        if is_theirs { Ok(()) } else { Err(Refusal::Code(code::NOT_YOURS)) }
    }

    fn must_own_name(&mut self, by: &Alias, parent: u64, name: &str) -> Result<(), Refusal> {
        let (id, _) = self.fat.lookup(self.id(parent)?, name).map_err(refusal)?;
        let owned = self.must_own(by, id);
        self.fat.forget(id, 1);
        owned
    }

    /// Nominates blocks to their new owner, in as few runs as possible.
    fn nominate(&self, ranges: &[BlockRange], owner: &Principal) -> Result<Vec<Blocks>, Refusal> {
        let mut nominated: Vec<Blocks> = Vec::new();
        for range in ranges {
            let blocks = self.blocks(*range);
            match nominated.last_mut() {
                Some(last) if last.first + last.count == blocks.first => last.count += blocks.count,
                _ => nominated.push(blocks),
            }
        }
        for blocks in &nominated {
            let disk = self.configuration.disk;
            ask(&self.policy, &PolicyRequest::Nominate { disk, blocks: *blocks, to: owner.clone() })?;
        }
        Ok(nominated)
    }

    /// Returns blocks of the caller's that must be given back to the driver, if there are any.
    fn returning(&mut self, by: &Alias) -> Result<FilesReply, Refusal> {
        let own = self.configuration.own.digest().0;
        for item in self.fat.limbo(None, WAITING_MAX).map_err(refusal)? {
            if item.in_use {
                continue;
            }
            let returning = self.fat.returning(item.id).map_err(refusal)?;
            let ranges: Vec<Blocks> = returning.blocks.iter().map(|range| self.blocks(*range)).collect();
            let Some(first) = ranges.first() else { continue };
            let first = Blocks { count: 1, ..*first };
            let clusters = returning.clusters;
            if self.owns(first, own)? {
                // The blocks were never accepted by another owner.
                self.take_back(item.id, &ranges, clusters, now())?;
            } else if self.owns(first, by.principal)? {
                let to = Some(self.configuration.own.clone());
                return Ok(FilesReply::Return { item: item.id.0, blocks: ranges, clusters, to });
            }
        }
        Ok(FilesReply::Return { item: 0, blocks: Vec::new(), clusters: 0, to: None })
    }

    /// Accepts blocks that were nominated to the driver. That erases them, and they become free.
    fn take_back(
        &mut self,
        id: LimboId,
        blocks: &[Blocks],
        clusters: u32,
        _now: Moment,
    ) -> Result<(), Refusal> {
        let returning = self.fat.returning(id).map_err(refusal)?;
        let expected: Vec<Blocks> = returning.blocks.iter().map(|range| self.blocks(*range)).collect();
        if expected != blocks || returning.clusters != clusters {
            return Err(Refusal::Code(code::INVALID));
        }
        let own = self.configuration.own.clone();
        let acl =
            Acl::of(own.clone(), Access::ReadWrite).map_err(|error| Refusal::Failed(error.to_string()))?;
        for blocks in expected {
            if !self.owns(blocks, own.digest().0)? {
                let disk = self.configuration.disk;
                ask(&self.policy, &PolicyRequest::Accept { disk, blocks, acl: acl.clone() })?;
            }
        }
        let change = self.fat.free(id, clusters).map_err(refusal)?;
        self.commit(change)?;
        Ok(())
    }
}

/// Returns the principal that the caller states, if it matches the name that the request is stamped with.
fn asker(by: &Alias, owner: Principal) -> Result<Principal, Refusal> {
    if owner.digest().0 == by.principal { Ok(owner) } else { Err(Refusal::NotPermitted) }
}
