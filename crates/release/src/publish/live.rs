//! Makes the tree of a release from a directory of a live file system, without the files' data. Directories,
//! inodes and extent maps are made anew, in the only form that a release may have; the chunks of files stay
//! in the live file system, and the release refers to them.
//!
//! One verified view is read from beginning to end. The client checks what its members signed, as always.
//! This module refuses what a signed directory can be and a local one cannot: below itself, with two names,
//! or too deep to be walked.

use super::memory::PublishMemory;
use super::rules::Rules;
use super::scan::{HardLinks, display_path};
use super::store::{Into, PackStore};
use super::{Options, Progress, PublishError, PublishedTree};
use crate::index::Index;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_client::remote::Remote;
use holdfast_client::tree::{Base, Entries, ReadError};
use holdfast_content::catalog::{self, CatalogEntry};
use holdfast_content::{
    Chunker, Content, ContentError, DeviceId, Extent, ExtentMap, Extents, Handle, INLINE_BYTES_MAX, Inode,
    InodeKind, LiveMap, MapRoot, MerkleMap, SourceError, Value,
};
use holdfast_crypto::Digest;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// How many names of a directory are read, and put into its map, at once.
const BATCH_NAMES: usize = 4096;
/// How many extents are put into a map at once.
const BATCH_EXTENTS: usize = 16 * 1024;
/// Deepest nesting of directories. Walking them then fits the stack of any thread.
const DEPTH_MAX: usize = 400;
/// Names between two reports of progress.
const REPORT_NAMES: u64 = 64;
/// Most notes that are collected.
const NOTES_MAX: usize = 100;

/// A directory of a live file system.
#[derive(Clone, Copy)]
pub struct LiveSource<'a> {
    /// One verified view, in which nothing is pending.
    pub base: &'a Base,
    /// The directory to publish.
    pub directory: Handle,
    /// The file system's server, which must hold the release's blocks.
    pub server: &'a dyn Remote,
}

/// The signs by which a file counts as unchanged. Its i-hash changes with everything about it.
#[derive(PartialEq, Eq, BorshSerialize, BorshDeserialize)]
struct LiveFileSigns {
    ihash: Digest,
    link: Option<(u64, u32)>,
    newest: Option<i64>,
}

/// Follows a path from the root of a live file system; names are separated by `/`.
///
/// # Errors
/// [`PublishError::Unfit`]: the path does not exist or is no directory. [`PublishError::Live`]: it cannot be
/// read.
pub fn find_directory(base: &Base, path: &[u8]) -> Result<Handle, PublishError> {
    let whole = || std::path::PathBuf::from(String::from_utf8_lossy(path).into_owned());
    let live = |error: ReadError| match error {
        ReadError::NotFound | ReadError::NotDirectory => {
            PublishError::Unfit { path: whole(), why: error.to_string() }
        }
        error => PublishError::Live { path: whole(), why: explain(&error) },
    };
    let mut here = Handle::ROOT;
    for name in crate::tree::components(path) {
        let entry = base.entry(here, &name).map_err(live)?;
        here = entry.ok_or_else(|| live(ReadError::NotFound))?.handle;
    }
    match base.inode(here).map_err(live)?.kind {
        InodeKind::Directory => Ok(here),
        _ => Err(live(ReadError::NotDirectory)),
    }
}

fn explain(error: &ReadError) -> String {
    match error {
        ReadError::Content(ContentError::Source(SourceError::Missing(address))) => format!(
            "its server does not have block {} any more; if files are being replaced meanwhile, publish again",
            address.short()
        ),
        other => other.to_string(),
    }
}

/// Makes the tree of a release from a live directory, like [`super::publish`].
///
/// # Errors
/// [`PublishError`]; the release directory is as it was, except for packs that nothing refers to.
pub fn publish(
    options: &Options<'_>,
    live: &LiveSource<'_>,
    index: &Index,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<PublishedTree, PublishError> {
    let mut scanner = Scanner {
        options,
        base: live.base,
        progress,
        so_far: Progress::default(),
        links: HashMap::new(),
        directories: HashSet::new(),
    };
    scanner.directory(live.directory, b"", 0)?;
    let Scanner { so_far: Progress { names: (_, names), bytes: (_, bytes) }, mut links, .. } = scanner;
    links.retain(|_, link| link.count > 1);
    let store = PackStore::open(options.target, options.digest_key, index, options.level, options.threads)?;
    let mut builder = Builder {
        options,
        base: live.base,
        store: &store,
        map: MerkleMap::new(options.digest_key),
        seen: PublishMemory::open(options.memory)?,
        progress,
        so_far: Progress { names: (0, names), bytes: (0, bytes) },
        links,
        made: HashMap::new(),
        read: 0,
        notes: Vec::new(),
    };
    let inode = builder.directory(live.directory, b"")?;
    let root = inode.store(&mut Into(&store)).map_err(|error| builder.unfit(b"", &error))?;
    builder.report()?;
    let Builder { seen, read, notes, .. } = builder;
    let (index, added) = store.finish()?;
    let remember = Box::new(move |record| seen.keep(record));
    Ok(PublishedTree { root, index, added, names, bytes, read, notes, hints: None, remember })
}

/// Calls `batch` with the names of a directory, some at a time.
fn each_batch<E>(
    base: &Base,
    directory: Handle,
    failed: impl Fn(ReadError) -> E,
    batch: &mut dyn FnMut(Entries) -> Result<(), E>,
) -> Result<(), E> {
    let mut after: Option<Vec<u8>> = None;
    loop {
        let (names, complete) = base.entries(directory, after.as_deref(), BATCH_NAMES).map_err(&failed)?;
        let last = names.last().map(|(name, _)| name.clone());
        batch(names)?;
        match last {
            Some(last) if !complete => after = Some(last),
            _ => return Ok(()),
        }
    }
}

/// An inode; `None` if the name leads to nothing, because the file's owner has removed the file.
fn inode_of(base: &Base, file: Handle) -> Result<Option<Arc<Inode>>, ReadError> {
    match base.inode(file) {
        Err(ReadError::NotFound) => Ok(None),
        other => other.map(Some),
    }
}

fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    match path {
        b"" => name.to_vec(),
        path => [path, b"/", name].concat(),
    }
}

/// The first pass: counts the names, finds files with several names, and checks that directories form a tree.
struct Scanner<'a> {
    options: &'a Options<'a>,
    base: &'a Base,
    progress: &'a mut dyn FnMut(Progress) -> bool,
    so_far: Progress,
    links: HashMap<Handle, HardLinks>,
    directories: HashSet<Handle>,
}

impl Scanner<'_> {
    fn rules(&self) -> &Rules {
        self.options.rules
    }

    fn directory(&mut self, directory: Handle, path: &[u8], depth: usize) -> Result<(), PublishError> {
        let at = display_path(self.options.source, path);
        let unfit = |why: &str| Err(PublishError::Unfit { path: at.clone(), why: why.to_owned() });
        if depth > DEPTH_MAX {
            return unfit(&format!("it lies more than {DEPTH_MAX} directories deep"));
        }
        if !self.directories.insert(directory) {
            return unfit("it is a directory with another name elsewhere, or that lies in itself");
        }
        let failed = |error: ReadError| PublishError::Live { path: at.clone(), why: explain(&error) };
        let base = self.base;
        each_batch(base, directory, failed, &mut |names| {
            for (name, entry) in names {
                self.name(below(path, &name), entry.handle, depth)?;
            }
            Ok(())
        })
    }

    fn name(&mut self, path: Vec<u8>, file: Handle, depth: usize) -> Result<(), PublishError> {
        if self.rules().is_excluded(&path) {
            return Ok(());
        }
        let failed = |error: ReadError| PublishError::Live {
            path: display_path(self.options.source, &path),
            why: explain(&error),
        };
        let Some(inode) = inode_of(self.base, file).map_err(failed)? else { return Ok(()) };
        self.so_far.names.1 += 1;
        if self.so_far.names.1.is_multiple_of(REPORT_NAMES) && !(self.progress)(self.so_far) {
            return Err(PublishError::Stopped);
        }
        if inode.kind == InodeKind::Directory {
            return self.directory(file, &path, depth + 1);
        }
        let mut is_first = true;
        if inode.links > 1 {
            let link = self.links.entry(file).or_insert_with(|| HardLinks::at(&path));
            is_first = link.count == 0;
            link.add(path);
        }
        if inode.kind == InodeKind::File && is_first {
            self.so_far.bytes.1 = self.so_far.bytes.1.saturating_add(inode.size);
        }
        Ok(())
    }
}

/// The second pass: makes the tree.
struct Builder<'a> {
    options: &'a Options<'a>,
    base: &'a Base,
    store: &'a PackStore,
    map: MerkleMap,
    seen: PublishMemory,
    progress: &'a mut dyn FnMut(Progress) -> bool,
    so_far: Progress,
    links: HashMap<Handle, HardLinks>,
    /// The values of files with several names that have been made already.
    made: HashMap<Handle, Value>,
    read: u64,
    notes: Vec<String>,
}

impl Builder<'_> {
    fn live(&self, path: &[u8], error: &ReadError) -> PublishError {
        PublishError::Live { path: display_path(self.options.source, path), why: explain(error) }
    }

    fn unfit(&self, path: &[u8], error: &ContentError) -> PublishError {
        self.store.check().err().unwrap_or_else(|| PublishError::Unfit {
            path: display_path(self.options.source, path),
            why: error.to_string(),
        })
    }

    fn report(&mut self) -> Result<(), PublishError> {
        self.store.check()?;
        if (self.progress)(self.so_far) { Ok(()) } else { Err(PublishError::Stopped) }
    }

    fn note(&mut self, path: &[u8], what: &str) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(format!("{}: {what}", display_path(self.options.source, path).display()));
        }
    }

    fn count(&mut self, bytes: u64) -> Result<(), PublishError> {
        self.so_far.names.0 += 1;
        self.so_far.bytes.0 = self.so_far.bytes.0.saturating_add(bytes);
        if self.so_far.names.0.is_multiple_of(REPORT_NAMES) { self.report() } else { Ok(()) }
    }

    fn directory(&mut self, directory: Handle, path: &[u8]) -> Result<Inode, PublishError> {
        let base = self.base;
        let old = base.inode(directory).map_err(|error| self.live(path, &error))?;
        let mut root = MapRoot(None);
        let source = self.options.source;
        let failed =
            |error: ReadError| PublishError::Live { path: display_path(source, path), why: explain(&error) };
        each_batch(base, directory, failed, &mut |names| {
            let edits = self.batch(path, names)?;
            root = self
                .map
                .apply(self.store, &mut Into(self.store), &root, edits)
                .map_err(|error| self.unfit(path, &error))?;
            Ok(())
        })?;
        let mut inode = self.inode(&old, 1);
        inode.content = Content::Directory(LiveMap::of(root));
        if self.options.rules.is_opaque(path) {
            inode.xattrs.insert(catalog::OPAQUE.to_vec(), Vec::new());
        }
        Ok(inode)
    }

    /// Makes the entries for some names of a directory: its subdirectories first, then the other files.
    fn batch(
        &mut self,
        path: &[u8],
        names: Entries,
    ) -> Result<BTreeMap<Vec<u8>, Option<Value>>, PublishError> {
        let mut edits = BTreeMap::new();
        let mut others = Vec::new();
        for (name, entry) in names {
            let path = below(path, &name);
            if self.options.rules.is_excluded(&path) {
                continue;
            }
            let found = inode_of(self.base, entry.handle).map_err(|error| self.live(&path, &error))?;
            match found {
                None => self.note(&path, "its owner has removed it, left out"),
                Some(inode) if inode.kind == InodeKind::Directory => {
                    let inode = self.directory(entry.handle, &path)?;
                    let value = CatalogEntry::value_of(&mut Into(self.store), &inode, None);
                    let value = value.map_err(|error| self.unfit(&path, &error))?;
                    edits.insert(name, Some(value));
                    self.count(0)?;
                }
                Some(_) => others.push((name, path, entry.handle)),
            }
        }
        for (name, path, file) in others {
            edits.insert(name, Some(self.other(&path, file)?));
        }
        Ok(edits)
    }

    /// Publishes anything but a directory.
    fn other(&mut self, path: &[u8], file: Handle) -> Result<Value, PublishError> {
        let old = self.base.inode(file).map_err(|error| self.live(path, &error))?;
        let link = self.links.get(&file).map(|link| (link.number(), link.count));
        if let Some(known) = self.made.get(&file) {
            let known = known.clone();
            self.count(0)?;
            return Ok(known);
        }
        let ihash = old.ihash(&self.options.digest_key).map_err(|error| self.unfit(path, &error))?;
        let signs = LiveFileSigns { ihash, link, newest: self.options.newest };
        let is_there = |value: &Value| {
            value.references.iter().all(|reference| self.store.has_or_refers(&reference.address))
        };
        let value = match self.seen.find(path, &signs).filter(is_there) {
            Some(value) => value,
            None => {
                let mut inode = self.inode(&old, link.map_or(1, |(_, links)| links));
                inode.device_number = old.device_number;
                inode.size = old.size;
                inode.content = self.content(path, &old)?;
                self.read += 1;
                CatalogEntry::value_of(&mut Into(self.store), &inode, link.map(|(number, _)| number))
                    .map_err(|error| self.unfit(path, &error))?
            }
        };
        self.seen.add_signed(path, &signs, &value)?;
        if link.is_some() {
            self.made.insert(file, value.clone());
        }
        self.count(if old.kind == InodeKind::File { old.size } else { 0 })?;
        Ok(value)
    }

    /// An inode with the attributes of the live one, except size, device number and content.
    fn inode(&self, old: &Inode, links: u32) -> Inode {
        let mut modified_ns = old.modified_ns;
        if let Some(newest) = self.options.newest {
            modified_ns = modified_ns.min(newest.saturating_mul(1_000_000_000));
        }
        let mut inode = Inode::new(old.kind, old.mode, DeviceId(0), modified_ns);
        inode.links = links;
        let kept = old.xattrs.iter().filter(|(name, _)| name.starts_with(b"user."));
        inode.xattrs = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
        inode
    }

    /// Small content in the form that every publisher gives it; for larger content, the same chunks.
    fn content(&self, path: &[u8], old: &Inode) -> Result<Content, PublishError> {
        if old.kind != InodeKind::File {
            return Ok(old.content.clone());
        }
        let is_small = old.size <= INLINE_BYTES_MAX as u64;
        match &old.content {
            _ if old.size == 0 => Ok(Content::None),
            Content::None if !is_small => {
                let extents = Extents::default();
                Ok(Content::Extents(ExtentMap { chunker: Chunker::FastCdc64, extents }))
            }
            Content::None => Ok(Content::Inline(vec![0; old.size as usize])),
            Content::Inline(bytes) if is_small => {
                let mut bytes = bytes.clone();
                bytes.resize(old.size as usize, 0);
                Ok(Content::Inline(bytes))
            }
            Content::Extents(map) => self.extents(path, map).map(Content::Extents),
            other => Ok(other.clone()),
        }
    }

    /// The same extents in a map whose nodes are stored in the release. Their chunks are only referred to.
    fn extents(&self, path: &[u8], old: &ExtentMap) -> Result<ExtentMap, PublishError> {
        let mut new = ExtentMap { chunker: old.chunker, extents: Extents::default() };
        let mut batch: Vec<(u64, Extent)> = Vec::new();
        let mut put = |batch: &mut Vec<(u64, Extent)>| {
            new = new.graft(self.store, &mut Into(self.store), &[], batch)?;
            batch.clear();
            Ok(())
        };
        let visited = old.visit(self.base.source(), 0..u64::MAX, &mut |offset, extent| {
            self.store.refer(&extent.reference.address);
            batch.push((offset, extent));
            if batch.len() >= BATCH_EXTENTS {
                put(&mut batch)?;
            }
            Ok(true)
        });
        match visited.and_then(|()| put(&mut batch)) {
            Ok(()) => Ok(new),
            Err(error @ ContentError::Source(_)) => Err(self.live(path, &error.into())),
            Err(error) => Err(self.unfit(path, &error)),
        }
    }
}
