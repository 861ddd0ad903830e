//! A release as a tree for the kernel.
//!
//! An inode number stands for the same content for ever. It is a digest of the inode found there and of its
//! path; for a hard-linked file, the number that its names share takes the place of the path. So whatever the
//! kernel caches for a number stays right, files that did not change have the same number from release to
//! release, and files that are open, mapped or run keep their content. The root is the only exception: its
//! number always stands for the present release, because the kernel knows a single root.
//!
//! What the kernel has looked up is stored as a name within its parent, with the tree in which it was found.
//! Inodes themselves are in a bounded cache; others are found again by their path in that tree, for as long
//! as mirrors have it.

pub mod first_touch;
mod names;

use crate::accept::ExpiredPolicy;
use crate::open::{Current, Release, now_s};
use crate::tree::{Node, Tree};
use first_touch::{FetchSummary, FirstTouches, Recorder, WaitingReaders};
use holdfast_client::FsError;
use holdfast_client::files::{
    Attributes, DirectoryItem, FileHandleId, Ino, SeekTo, Statistics, allocated, seek_in,
};
use holdfast_content::catalog::{self, CatalogEntry};
use holdfast_content::file::{self, ChunkerConfig};
use holdfast_content::{
    Chunker, Content, ContentError, Extents, Inode, InodeKind, InodeSlot, NAME_BYTES_MAX, SourceError,
};
use holdfast_crypto::{Digest, DigestKey, Domain};
use holdfast_fuse::fixed::{FixedTree, Forget, ForgetSink, ListingEntry};
use lru::LruCache;
use names::{Lookup, Names};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Most inodes that are cached.
const INODES_KEPT: usize = 16_384;
/// How long the kernel may cache names that are not invalidated: a day, in case an invalidation was lost.
const LIVES: Duration = Duration::from_secs(24 * 3600);
/// How many names of a directory are read at once.
const PAGE: usize = 256;
/// How many bytes are fetched ahead of a sequential reader.
const AHEAD_BYTES: u64 = 8 << 20;
/// A file of at most so many bytes is fetched as a whole when its beginning is read.
const WHOLE_BYTES: u64 = 1 << 20;
/// Number of sequential readers that are remembered.
const READERS_KEPT: usize = 256;
/// Most names of an opaque directory that are remembered because a program used them.
const REFERRED_MAX: usize = 65_536;
/// Number of absent names that are remembered because the kernel may have cached their absence.
const ABSENT_KEPT: usize = 65_536;
/// A sparse file's allocated bytes are counted only if it has at most so many extents.
const EXTENTS_COUNTED: u64 = 16_384;
/// Stands for the path of the root.
const ROOT_PATH: u64 = 0;
/// The attribute of the root with the status of the release, in words.
const STATUS: &[u8] = b"user.holdfast.status";
/// The attribute of the root with statistics of the mount, as JSON.
const STATISTICS: &[u8] = b"user.holdfast.stats";

/// The owner of all files in a mount.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The user id of all files.
    pub uid: u32,
    /// The group id of all files.
    pub gid: u32,
}

/// A mounted release.
pub struct MountedRelease {
    release: Arc<Release>,
    owner: Owner,
    tree: RwLock<Arc<Tree>>,
    known: Mutex<Names>,
    inodes: Mutex<LruCache<Ino, Node>>,
    directories: Mutex<HashMap<FileHandleId, Arc<Mutex<OpenDirectory>>>>,
    next_handle: AtomicU64,
    /// For each file: the end of the last read, and the offset up to which it was fetched ahead.
    readers: Mutex<LruCache<Ino, (u64, u64)>>,
    /// Names that the kernel has looked up in opaque directories, by the digest of the directory's path.
    referred: Mutex<HashMap<u64, BTreeSet<Vec<u8>>>>,
    touched: Recorder,
    waiting: WaitingReaders,
    /// Names whose absence the kernel may have cached.
    absent: Mutex<LruCache<(Ino, Vec<u8>), ()>>,
    /// Whether look-ups are refused because the release is revoked or expired.
    over: AtomicBool,
    over_because: Mutex<Option<FsError>>,
    /// Whether the kernel has been given assumed attributes of the root, because its own could not be read.
    root_is_assumed: AtomicBool,
    sink: Mutex<Option<ForgetSink>>,
}

struct OpenDirectory {
    ino: Ino,
    node: Node,
    found: Lookup,
    opaque: bool,
    /// The names read last; `first` is the number of the first of them.
    page: Vec<(Vec<u8>, CatalogEntry)>,
    first: u64,
}

/// The error that programs get for content that cannot be read.
fn failure(error: ContentError, path: &str) -> FsError {
    match error {
        ContentError::Source(SourceError::Unreachable(_, why)) => {
            FsError::Local { kind: std::io::ErrorKind::Other, text: format!("{path}: {why}") }
        }
        other => {
            tracing::error!(path, error = %other, "what the mirrors have is not what was signed");
            FsError::Integrity(Arc::new(holdfast_client::IntegrityReport {
                file: None,
                path: Some(path.to_owned()),
                what: other.to_string(),
                missing: Default::default(),
                noticed_ns: holdfast_client::evidence::now_ns(),
                last_good_operation: 0,
                evidence: None,
            }))
        }
    }
}

fn digest(parts: &[&[u8]]) -> u64 {
    let digest = DigestKey::WELL_KNOWN.digest(Domain::ReleasePath, &parts.concat());
    u64::from_le_bytes(*digest.0.first_chunk().expect("32 bytes"))
}

fn path_of(parent: u64, name: &[u8]) -> u64 {
    digest(&[&parent.to_le_bytes(), name])
}

fn ino_of(path: u64, link: Option<u64>, inode: &Digest) -> Ino {
    let digest = match link {
        Some(link) => digest(&[b"link", &link.to_le_bytes(), &inode.0]),
        None => digest(&[b"path", &path.to_le_bytes(), &inode.0]),
    };
    // Some programs want numbers that fit a signed integer; 1 is the root's.
    Ino((digest >> 1).max(2))
}

/// Blocks of 512 bytes that are not in holes. For a file of many extents they are counted only if it has so
/// few for its size that it must have holes: reading the extent map of every large file that is listed would
/// be slow.
fn blocks(tree: &Tree, inode: &Inode) -> u64 {
    let mut bytes = allocated(inode);
    if let Content::Extents(map) = &inode.content
        && let Extents::Map(root) = &map.extents
    {
        let average = match map.chunker {
            Chunker::FastCdc8 | Chunker::Lbfs => ChunkerConfig::SMALL.bytes_average,
            Chunker::FastCdc64 | Chunker::InPlace => ChunkerConfig::DEFAULT.bytes_average,
            Chunker::FastCdc256 => ChunkerConfig::LARGE.bytes_average,
        };
        let about = root.len().saturating_mul(average as u64);
        if root.len() <= EXTENTS_COUNTED && about < inode.size / 4 * 3 {
            let mut counted = 0;
            let visited = map.visit(&**tree.source(), 0..inode.size, &mut |_, extent| {
                counted += u64::from(extent.length);
                Ok(true)
            });
            // If the blocks cannot be counted, the file can be used nevertheless.
            bytes = visited.map_or(bytes, |()| counted);
        }
    }
    bytes.div_ceil(512)
}

fn bound(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).expect("not zero")
}

impl MountedRelease {
    /// Prepares a release to be mounted.
    pub fn new(release: Arc<Release>, owner: Owner) -> Arc<MountedRelease> {
        let tree = Arc::new(release.current().tree.clone());
        Arc::new(MountedRelease {
            release,
            owner,
            tree: RwLock::new(tree),
            known: Mutex::default(),
            inodes: Mutex::new(LruCache::new(bound(INODES_KEPT))),
            directories: Mutex::default(),
            next_handle: AtomicU64::new(1),
            readers: Mutex::new(LruCache::new(bound(READERS_KEPT))),
            referred: Mutex::default(),
            touched: Recorder::default(),
            waiting: WaitingReaders::default(),
            absent: Mutex::new(LruCache::new(bound(ABSENT_KEPT))),
            over: AtomicBool::new(false),
            over_because: Mutex::default(),
            root_is_assumed: AtomicBool::new(false),
            sink: Mutex::default(),
        })
    }

    /// Checks whether the release is still in force, and switches to the newest one. To be called
    /// periodically. Returns notices for people.
    pub fn refresh(&self) -> Vec<String> {
        let mut notices = Vec::new();
        match self.release.refresh() {
            Ok(_) => {
                let current = self.release.current();
                notices.extend(current.accepted.warnings.iter().map(ToString::to_string));
                notices.extend(current.notices.iter().cloned());
                self.show(&current);
                self.end_because(None);
            }
            Err(crate::open::OpenError::Final(error @ crate::admit::AdmitError::Revoked { .. })) => {
                notices.push(error.to_string());
                self.end_because(Some(FsError::Revoked(error.to_string())));
            }
            Err(error) => notices.push(error.to_string()),
        }
        self.check_expiry(&mut notices);
        notices
    }

    /// Checks whether the release has expired. This is checked even while no mirror answers.
    fn check_expiry(&self, notices: &mut Vec<String>) {
        let current = self.release.current();
        let until_s = current.accepted.valid_until_s;
        if self.release.stale() == ExpiredPolicy::Refuse && now_s() > until_s {
            let text = format!(
                "the release expired at {} and was not renewed: open files can be read on, nothing else; mount it \
                 with --allow-stale to use it nevertheless",
                crate::moment::moment(until_s)
            );
            notices.push(text.clone());
            self.end_because(Some(FsError::Expired(text)));
        }
    }

    /// The first reads since the release was mounted, in order.
    pub fn first_touches(&self) -> FirstTouches {
        self.touched.list()
    }

    /// Fetches the blocks that a list names, giving way to programs that wait for the mount.
    pub fn fetch_ahead(&self, list: &FirstTouches) -> FetchSummary {
        let tree = self.tree.read().clone();
        first_touch::fetch(&self.release, &tree, list, &self.waiting)
    }

    fn touch(&self, ino: Ino, path: u64, offset: u64, bytes: usize) {
        self.touched.note(path, offset, u32::try_from(bytes).unwrap_or(u32::MAX), || match ino {
            Ino::ROOT => Some(Vec::new()),
            _ => Some(self.known.lock().path(ino).ok()?.0.join(&b'/')),
        });
    }

    /// Time until the release expires, when [`Self::refresh`] must be called at the latest.
    pub fn expires_in(&self) -> Duration {
        let until_s = self.release.current().accepted.valid_until_s;
        Duration::from_secs(until_s.saturating_add(1).saturating_sub(now_s()))
    }

    fn end_because(&self, why: Option<FsError>) {
        let mut because = self.over_because.lock();
        // A revoked release stays revoked.
        if matches!(&*because, Some(FsError::Revoked(_))) {
            return;
        }
        let over = why.is_some();
        *because = why;
        if self.over.swap(over, Ordering::SeqCst) != over && over {
            // Otherwise the kernel would still resolve the names that it has cached.
            self.forget_names(|_| true);
        }
    }

    /// Makes the kernel look up again the names in these directories that it has cached, the absent ones too.
    fn forget_names(&self, in_these: impl Fn(Ino) -> bool) {
        let known = self.known.lock();
        let names = known.all().filter(|(parent, _)| in_these(*parent));
        names.for_each(|(parent, name)| self.invalidate(Forget::Name(parent, name.to_vec())));
        drop(known);
        let mut absent = self.absent.lock();
        let gone: Vec<_> =
            absent.iter().map(|(key, ())| key.clone()).filter(|(parent, _)| in_these(*parent)).collect();
        for (parent, name) in gone {
            absent.pop(&(parent, name.clone()));
            self.invalidate(Forget::Name(parent, name));
        }
    }

    fn counts(&self) -> Result<(), FsError> {
        match self.over.load(Ordering::SeqCst) {
            false => Ok(()),
            true => self.over_because.lock().clone().map_or(Ok(()), Err),
        }
    }

    fn invalidate(&self, forget: Forget) {
        if let Some(sink) = &*self.sink.lock() {
            sink(forget);
        }
    }

    /// Switches to another tree. Whatever differs in it has other inode numbers, so only names in the root
    /// can be stale.
    fn show(&self, current: &Current) {
        if self.is_current(&current.tree) {
            return;
        }
        *self.tree.write() = Arc::new(current.tree.clone());
        self.invalidate(Forget::Inode(Ino::ROOT));
        self.forget_names(|parent| parent == Ino::ROOT);
        tracing::info!(sequence = current.accepted.record.sequence, "a new release is shown");
    }

    fn is_current(&self, tree: &Tree) -> bool {
        self.tree.read().reference() == tree.reference()
    }

    /// Makes the kernel look up a name in the root again if it was found while another tree was put in place.
    fn settle(&self, tree: &Tree, parent: Ino, name: &[u8]) {
        if parent == Ino::ROOT && !self.is_current(tree) {
            self.invalidate(Forget::Name(parent, name.to_vec()));
        }
    }

    fn path(&self, ino: Ino) -> String {
        match self.known.lock().path(ino) {
            Ok((way, _)) => way.iter().map(|name| format!("/{}", String::from_utf8_lossy(name))).collect(),
            Err(_) if ino == Ino::ROOT => "/".to_owned(),
            Err(_) => format!("inode {}", ino.0),
        }
    }

    /// The error for content that cannot be fetched. Mirrors need not have the content of releases that are
    /// no longer current.
    fn failed(&self, tree: &Tree, ino: Ino, error: ContentError) -> FsError {
        match error {
            ContentError::Source(SourceError::Missing(_)) if !self.is_current(tree) => FsError::Stale,
            error => failure(error, &self.path(ino)),
        }
    }

    fn node(&self, ino: Ino) -> Result<Node, FsError> {
        self.found(ino).map(|(_, node)| node)
    }

    /// An inode, from the cache or by its path, and where it was found.
    fn found(&self, ino: Ino) -> Result<(Lookup, Node), FsError> {
        let (found, cached) = match ino {
            Ino::ROOT => {
                let tree = self.tree.read().clone();
                let own = ino_of(ROOT_PATH, None, &tree.reference().address);
                (Lookup { tree, path: ROOT_PATH }, own)
            }
            _ => (self.known.lock().found(ino)?, ino),
        };
        if let Some(node) = self.inodes.lock().get(&cached) {
            return Ok((found, node.clone()));
        }
        let (way, tree) = match ino {
            Ino::ROOT => (Vec::new(), found.tree.clone()),
            _ => self.known.lock().path(ino)?,
        };
        let failed = |error| self.failed(&tree, ino, error);
        let mut node = tree.root().map_err(failed)?;
        for name in way {
            node = tree.child(&node, &name).map_err(failed)?.ok_or(FsError::Stale)?;
        }
        self.inodes.lock().put(cached, node.clone());
        Ok((found, node))
    }

    /// Assigns a number to the file found as `name` in a directory, and caches its inode.
    fn keep(&self, directory: &Lookup, name: &[u8], node: &Node) -> Result<(Ino, Lookup), FsError> {
        let found = Lookup { tree: directory.tree.clone(), path: path_of(directory.path, name) };
        let address = node.inode.ihash(&found.tree.source().digest_key());
        let address = address.map_err(|error| failure(error, &String::from_utf8_lossy(name)))?;
        let ino = ino_of(found.path, node.link, &address);
        self.inodes.lock().put(ino, node.clone());
        Ok((ino, found))
    }

    fn attributes_of(&self, ino: Ino, tree: &Tree, node: &Node) -> Attributes {
        let inode = &node.inode;
        Attributes {
            ino,
            kind: inode.kind,
            mode: inode.mode,
            links: inode.links,
            size: inode.size,
            blocks: blocks(tree, inode),
            modified_ns: inode.modified_ns,
            changed_ns: inode.changed_ns,
            uid: self.owner.uid,
            gid: self.owner.gid,
            device_number: inode.device_number,
            generation: 0,
        }
    }

    /// The attributes of the root while its own cannot be read.
    fn assumed_root(&self) -> Attributes {
        Attributes {
            ino: Ino::ROOT,
            kind: InodeKind::Directory,
            mode: 0o555,
            links: 2,
            size: 0,
            blocks: 0,
            modified_ns: 0,
            changed_ns: 0,
            uid: self.owner.uid,
            gid: self.owner.gid,
            device_number: 0,
            generation: 0,
        }
    }

    fn is_opaque(node: &Node) -> bool {
        node.inode.xattrs.contains_key(catalog::OPAQUE)
    }

    /// Statistics of caches and mirrors, and the status of each mirror.
    fn figures(&self) -> serde_json::Value {
        let (store, received) = self.release.status();
        serde_json::json!({
            "sequence": self.release.current().accepted.record.sequence,
            "blocks_from_memory": store.memory_hits,
            "blocks_from_disk": store.disk_hits,
            "blocks_from_mirrors": store.blocks_fetched,
            "bytes_received": received,
            "corrupt_cache_entries": store.corrupt_cache_entries,
            "bytes_in_memory": store.memory_bytes,
            "bytes_on_disk": store.disk_bytes,
            "mirrors": self.release.mirrors().statuses(),
        })
    }

    fn status_text(&self) -> String {
        let current = self.release.current();
        let record = &current.accepted.record;
        let mut lines = vec![format!(
            "release {} of {}, valid until {}{}",
            record.sequence,
            record.release,
            crate::moment::moment(current.accepted.valid_until_s),
            if record.note.is_empty() { String::new() } else { format!(": {}", record.note) }
        )];
        if let Some(why) = &*self.over_because.lock() {
            lines.push(why.to_string());
        }
        lines.extend(current.accepted.warnings.iter().map(ToString::to_string));
        for mirror in self.release.mirrors().statuses() {
            let why = mirror.why.map(|why| format!(" ({why})")).unwrap_or_default();
            let again =
                mirror.asked_again_s.map(|left| format!(", asked again in {left} s")).unwrap_or_default();
            let state = format!("{:?}", mirror.state).to_lowercase();
            lines.push(format!("mirror {}: {state}{why}{again}", mirror.mirror));
            lines.extend(mirror.notice);
        }
        lines.join("\n")
    }
}

impl FixedTree for MountedRelease {
    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attributes, FsError> {
        self.counts()?;
        let _waits = self.waiting.begin();
        if name.len() > NAME_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        let (at, directory) = self.found(parent)?;
        if directory.inode.kind != InodeKind::Directory {
            return Err(FsError::NotDirectory);
        }
        let child = at.tree.child(&directory, name).map_err(|error| self.failed(&at.tree, parent, error))?;
        let Some(node) = child else {
            let dropped = self.absent.lock().push((parent, name.to_vec()), ());
            if let Some(((of, other), ())) = dropped.filter(|(known, ())| *known != (parent, name.to_vec())) {
                self.invalidate(Forget::Name(of, other));
            }
            self.settle(&at.tree, parent, name);
            return Err(FsError::NotFound);
        };
        let (ino, found) = self.keep(&at, name, &node)?;
        self.known.lock().looked_up(ino, parent, name, found);
        self.settle(&at.tree, parent, name);
        if Self::is_opaque(&directory) {
            let mut referred = self.referred.lock();
            let names = referred.entry(at.path).or_default();
            if names.len() < REFERRED_MAX {
                names.insert(name.to_vec());
            }
        }
        Ok(self.attributes_of(ino, &at.tree, &node))
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.known.lock().forget(ino, count);
    }

    fn attributes(&self, ino: Ino) -> Result<Attributes, FsError> {
        match self.found(ino) {
            Ok((found, node)) => {
                if ino == Ino::ROOT && self.root_is_assumed.swap(false, Ordering::SeqCst) {
                    self.invalidate(Forget::Inode(Ino::ROOT));
                }
                Ok(self.attributes_of(ino, &found.tree, &node))
            }
            // Without attributes of the root, the mount could not even be asked for its status.
            Err(error) if ino == Ino::ROOT => {
                tracing::debug!(%error, "the root directory cannot be had");
                self.root_is_assumed.store(true, Ordering::SeqCst);
                Ok(self.assumed_root())
            }
            Err(error) => Err(error),
        }
    }

    fn target(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        match &self.node(ino)?.inode.content {
            Content::Target(target) => Ok(target.clone()),
            _ => Err(FsError::Invalid("not a symbolic link".into())),
        }
    }

    fn read(&self, ino: Ino, offset: u64, length: usize) -> Result<Vec<u8>, FsError> {
        let _waits = self.waiting.begin();
        let (Lookup { tree, path }, node) = self.found(ino)?;
        self.touch(ino, path, offset, length);
        let failed = |error| self.failed(&tree, ino, error);
        if let Content::Extents(map) = &node.inode.content {
            let end = offset.saturating_add(length as u64);
            let ahead = {
                let mut readers = self.readers.lock();
                let (expected, ahead) = readers.get(&ino).copied().unwrap_or((0, 0));
                let sequential = offset <= expected && end >= expected;
                // Half of what was fetched ahead is used up: fetch more.
                let wanted = sequential && offset > 0 && end + AHEAD_BYTES / 2 > ahead;
                let to = if wanted { (end + AHEAD_BYTES).min(node.inode.size) } else { ahead };
                let size = node.inode.size;
                let whole = size <= WHOLE_BYTES && offset == 0 && ahead < size;
                let to = if whole { size } else { to };
                readers.put(ino, (end, if sequential || whole { to } else { 0 }));
                if whole {
                    Some(0..size)
                } else {
                    (wanted && to > ahead.max(end)).then(|| ahead.max(end)..to)
                }
            };
            if let Some(range) = ahead
                && let Err(error) = file::prefetch(&**tree.source(), map, range)
            {
                // The failure may concern bytes that this read does not need.
                tracing::debug!(%error, "reading ahead failed");
            }
        }
        tree.read(&node, offset, length).map_err(failed)
    }

    fn seek(&self, ino: Ino, offset: u64, to: SeekTo) -> Result<u64, FsError> {
        let _waits = self.waiting.begin();
        let (Lookup { tree, .. }, node) = self.found(ino)?;
        let size = node.inode.size;
        if offset >= size {
            return Err(FsError::NoData);
        }
        let found = seek_in(&**tree.source(), &node.inode, offset..size, to);
        match (found.map_err(|error| self.failed(&tree, ino, error))?, to) {
            (Some(found), _) => Ok(found),
            (None, SeekTo::Hole) => Ok(size),
            (None, SeekTo::Data) => Err(FsError::NoData),
        }
    }

    fn open_directory(&self, ino: Ino) -> Result<(FileHandleId, bool), FsError> {
        self.counts()?;
        let (found, node) = self.found(ino)?;
        if node.inode.kind != InodeKind::Directory {
            return Err(FsError::NotDirectory);
        }
        let opaque = Self::is_opaque(&node);
        self.touch(ino, found.path, 0, 0);
        let open = OpenDirectory { ino, node, found, opaque, page: Vec::new(), first: 0 };
        let handle = FileHandleId(self.next_handle.fetch_add(1, Ordering::Relaxed));
        self.directories.lock().insert(handle, Arc::new(Mutex::new(open)));
        // A cached listing of the root would be wrong once another release is in place, and a program that
        // began to list it before that would make the kernel cache it.
        Ok((handle, !opaque && ino != Ino::ROOT))
    }

    fn list(
        &self,
        handle: FileHandleId,
        offset: u64,
        with_attributes: bool,
        sink: &mut dyn FnMut(ListingEntry<'_>) -> bool,
    ) -> Result<(), FsError> {
        let open = self.directories.lock().get(&handle).cloned();
        let open = open.ok_or_else(|| FsError::Invalid("the directory is not open".into()))?;
        let mut open = open.lock();
        let ino = open.ino;
        let parent = self.known.lock().parent(ino);
        let dots: [(&[u8], Ino); 2] = [(b".", ino), (b"..", parent)];
        for (number, (name, at)) in dots.into_iter().enumerate().skip(offset.min(2) as usize) {
            let item =
                DirectoryItem { ino: at, kind: InodeKind::Directory, name, next_offset: number as u64 + 1 };
            let attributes = if with_attributes { Some(self.attributes(at)?) } else { None };
            if !sink(ListingEntry { item, attributes }) {
                return Ok(());
            }
        }
        let mut number = offset.saturating_sub(2);
        loop {
            let page = self.page(&mut open, number)?;
            if page.is_empty() {
                return Ok(());
            }
            for (name, entry) in page {
                number += 1;
                let kind = entry.kind;
                let (child, attributes) = match with_attributes {
                    true => {
                        let node = open.found.tree.node(entry);
                        let node = node.map_err(|error| self.failed(&open.found.tree, ino, error))?;
                        let (child, found) = self.keep(&open.found, &name, &node)?;
                        // The name is noted before the kernel can ask for its inode.
                        self.known.lock().looked_up(child, ino, &name, found);
                        self.settle(&open.found.tree, ino, &name);
                        (child, Some(self.attributes_of(child, &open.found.tree, &node)))
                    }
                    false => {
                        let address = match &entry.slot {
                            InodeSlot::Block(reference) => Ok(reference.address),
                            InodeSlot::Inline(inode) => inode.ihash(&open.found.tree.source().digest_key()),
                        };
                        let address = address.map_err(|error| self.failed(&open.found.tree, ino, error))?;
                        (ino_of(path_of(open.found.path, &name), entry.link, &address), None)
                    }
                };
                let item = DirectoryItem { ino: child, kind, name: &name, next_offset: number + 2 };
                if !sink(ListingEntry { item, attributes }) {
                    if with_attributes {
                        self.forget(child, 1);
                    }
                    return Ok(());
                }
            }
        }
    }

    fn close_directory(&self, handle: FileHandleId) {
        self.directories.lock().remove(&handle);
    }

    fn attribute(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        if ino == Ino::ROOT && name == STATUS {
            return Ok(self.status_text().into_bytes());
        }
        if ino == Ino::ROOT && name == STATISTICS {
            return Ok(self.figures().to_string().into_bytes());
        }
        if !name.starts_with(b"user.") {
            return Err(FsError::Unsupported);
        }
        self.node(ino)?.inode.xattrs.get(name).cloned().ok_or(FsError::NoData)
    }

    fn attribute_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>, FsError> {
        let node = self.node(ino)?;
        Ok(node.inode.xattrs.keys().filter(|name| name.starts_with(b"user.")).cloned().collect())
    }

    fn statistics(&self) -> Statistics {
        // Only cached data is used: `df` and `status` must not wait for a mirror.
        let root = ino_of(ROOT_PATH, None, &self.tree.read().reference().address);
        let root = self.inodes.lock().get(&root).cloned();
        let files = root.and_then(|root| Some(catalog::directory_root(&root.inode).ok()?.len())).unwrap_or(0);
        Statistics {
            block_bytes: 4096,
            blocks: 0,
            blocks_free: 0,
            files,
            files_free: 0,
            name_bytes_max: NAME_BYTES_MAX as u32,
        }
    }

    fn lives(&self) -> Duration {
        if self.over.load(Ordering::SeqCst) { Duration::ZERO } else { LIVES }
    }

    fn on_forget(&self, sink: ForgetSink) {
        *self.sink.lock() = Some(sink);
    }
}

impl MountedRelease {
    /// A page of names, from the one with this number on.
    fn page(&self, open: &mut OpenDirectory, number: u64) -> Result<Vec<(Vec<u8>, CatalogEntry)>, FsError> {
        if open.opaque {
            return self.referred_page(open, number);
        }
        let failed = |error| self.failed(&open.found.tree, open.ino, error);
        loop {
            let end = open.first + open.page.len() as u64;
            if (open.first..end).contains(&number) {
                return Ok(open.page[(number - open.first) as usize..].to_vec());
            }
            let (from, after) = match open.page.last() {
                Some((last, _)) if number >= end => (end, Some(last.clone())),
                _ => (0, None),
            };
            let page = open.found.tree.entries(&open.node, after.as_deref(), PAGE).map_err(failed)?;
            if page.is_empty() {
                return Ok(Vec::new());
            }
            (open.first, open.page) = (from, page);
        }
    }

    /// A page of an opaque directory: only names that the kernel has looked up.
    fn referred_page(
        &self,
        open: &OpenDirectory,
        number: u64,
    ) -> Result<Vec<(Vec<u8>, CatalogEntry)>, FsError> {
        let names: Vec<Vec<u8>> = match self.referred.lock().get(&open.found.path) {
            Some(names) => names.iter().skip(number as usize).take(PAGE).cloned().collect(),
            None => Vec::new(),
        };
        let failed = |error| self.failed(&open.found.tree, open.ino, error);
        let root = catalog::directory_root(&open.node.inode).map_err(failed)?;
        let mut page = Vec::new();
        for name in names {
            let entry = catalog::lookup(&**open.found.tree.source(), &root, &name);
            if let Some(entry) = entry.map_err(failed)? {
                page.push((name, entry));
            }
        }
        Ok(page)
    }
}
