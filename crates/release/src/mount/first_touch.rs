//! Records what programs read first of a mounted release, and in which order, so that it can be fetched ahead
//! at the next mount.
//!
//! The list names paths, so it also helps with a newer release. It is not trusted: what it names is looked up
//! and verified as always. A malformed list is ignored, and a wrong one costs at most [`BYTES_MAX`].
//!
//! Fetching ahead gives way to readers: it is done in small steps, and pauses while a reader has to wait for
//! long.

use crate::form::{self, Kind, RuleViolation};
use crate::open::Release;
use crate::tree::{Tree, components};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{BlockKind, Content, ContentError, InodeKind, Reference};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Most files and directories of a list.
pub const TOUCHES_MAX: usize = 4096;
/// Most bytes fetched of each file: programs read the beginning of a file first, or all of a small one, and
/// this is how much the kernel asks for then.
pub const TOUCH_BYTES_MAX: u32 = 128 << 10;
/// Most bytes of all paths.
const PATHS_BYTES_MAX: usize = 1 << 20;
/// Most bytes that are fetched ahead, before compression.
const BYTES_MAX: u64 = 32 << 20;
/// How many entries of a list are looked up before their content is fetched. Neighbours in a directory are
/// neighbours in packs too.
const BATCH: usize = 64;
/// Blocks of one request, few enough that several requests are under way at once.
const BLOCKS: usize = 16;
/// Threads that look up names.
const THREADS: usize = 4;
/// How many names of a directory that was listed are fetched.
const LISTED: usize = 256;
/// Fetching ahead pauses while a reader has waited longer than this.
const PATIENCE: Duration = Duration::from_millis(250);
/// Fetching ahead is given up if readers keep waiting for so long.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);

/// One file's first read, or one directory's first listing (0 bytes).
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Touch {
    /// Names from the root, with `/` between each two.
    pub path: Vec<u8>,
    /// The offset at which the read began.
    pub offset: u64,
    /// The length of the read, at most [`TOUCH_BYTES_MAX`].
    pub bytes: u32,
}

/// The first reads and listings, in order of time.
#[derive(Clone, PartialEq, Eq, Default, Debug, BorshSerialize, BorshDeserialize)]
pub struct FirstTouches(pub Vec<Touch>);

impl Kind for FirstTouches {
    const MAGIC: &'static [u8; 7] = b"HF-warm";
    const WHAT: &'static str = "list of first touches";
    const BYTES_MAX: u64 = 2 * PATHS_BYTES_MAX as u64;

    fn well_formed(&self) -> Result<(), RuleViolation> {
        let bytes: usize = self.0.iter().map(|touch| touch.path.len()).sum();
        match self.0.len() <= TOUCHES_MAX
            && bytes <= PATHS_BYTES_MAX
            && self.0.iter().all(|touch| touch.bytes <= TOUCH_BYTES_MAX)
        {
            true => Ok(()),
            false => Err(RuleViolation::Rule("it has more than a list may have")),
        }
    }
}

impl FirstTouches {
    /// Reads the list from a file; empty if the file is missing or malformed.
    pub fn read(path: &Path) -> FirstTouches {
        let bytes = holdfast_durable::read(path, Self::BYTES_MAX).ok().flatten().unwrap_or_default();
        form::read(&bytes).unwrap_or_default()
    }

    /// Writes the list into a file. The file is always whole, even if several processes write it.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        file.write_all(&form::write(self))?;
        file.persist(path).map(drop).map_err(|error| error.error)
    }

    /// This list, followed by those entries of `older` that it lacks, as far as the bounds allow.
    #[must_use]
    pub fn before(mut self, older: FirstTouches) -> FirstTouches {
        let mut bytes: usize = self.0.iter().map(|touch| touch.path.len()).sum();
        let known: HashSet<Vec<u8>> = self.0.iter().map(|touch| touch.path.clone()).collect();
        for touch in older.0.into_iter().filter(|touch| !known.contains(&touch.path)) {
            bytes += touch.path.len();
            if self.0.len() == TOUCHES_MAX || bytes > PATHS_BYTES_MAX {
                break;
            }
            self.0.push(touch);
        }
        self
    }
}

/// Records the first read of each path.
#[derive(Default)]
pub(super) struct Recorder(Mutex<TouchRecord>);

#[derive(Default)]
struct TouchRecord {
    /// Digests of the paths seen. (Inode numbers would differ in another release.)
    known: HashSet<u64>,
    list: FirstTouches,
    bytes: usize,
}

impl Recorder {
    /// Notes a read or listing if the path, identified by its digest, is new. `path` is called only then.
    pub(super) fn note(&self, digest: u64, offset: u64, bytes: u32, path: impl FnOnce() -> Option<Vec<u8>>) {
        let is_first = {
            let mut recorded = self.0.lock();
            recorded.list.0.len() < TOUCHES_MAX && recorded.known.insert(digest)
        };
        let Some(path) = is_first.then(path).flatten() else { return };
        let mut recorded = self.0.lock();
        if recorded.list.0.len() < TOUCHES_MAX && recorded.bytes + path.len() <= PATHS_BYTES_MAX {
            recorded.bytes += path.len();
            recorded.list.0.push(Touch { path, offset, bytes: bytes.min(TOUCH_BYTES_MAX) });
        }
    }

    pub(super) fn list(&self) -> FirstTouches {
        self.0.lock().list.clone()
    }
}

/// The readers that wait for the release at present, each by when it began to wait.
#[derive(Default)]
pub(super) struct WaitingReaders(Mutex<Vec<Instant>>);

/// One reader that waits; it ends when this is dropped.
pub(super) struct WaitingReader<'a>(&'a WaitingReaders, Instant);

impl WaitingReaders {
    pub(super) fn begin(&self) -> WaitingReader<'_> {
        let now = Instant::now();
        self.0.lock().push(now);
        WaitingReader(self, now)
    }

    fn longest(&self) -> Duration {
        self.0.lock().iter().min().map_or(Duration::ZERO, Instant::elapsed)
    }

    /// Waits until no reader has been waiting for long. Returns `false` if that takes too long.
    fn wait_for_readers(&self) -> bool {
        let start = Instant::now();
        while self.longest() > PATIENCE {
            if start.elapsed() > GIVEN_UP_AFTER {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

impl Drop for WaitingReader<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.0.lock();
        if let Some(at) = waiting.iter().position(|since| *since == self.1) {
            waiting.swap_remove(at);
        }
    }
}

/// Numbers about a fetch ahead.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FetchSummary {
    /// Files and directories of the list that were processed.
    pub touches: usize,
    /// The bytes of their content.
    pub bytes: u64,
}

/// Fetches what a list names into the caches of a release.
pub(super) fn fetch(
    release: &Release,
    tree: &Tree,
    list: &FirstTouches,
    waiting: &WaitingReaders,
) -> FetchSummary {
    let mut fetched = FetchSummary::default();
    for batch in list.0.chunks(BATCH) {
        if fetched.bytes >= BYTES_MAX || !waiting.wait_for_readers() {
            break;
        }
        let mut batch: Vec<&Touch> = batch.iter().collect();
        batch.sort_by(|one, other| one.path.cmp(&other.path));
        release.look_ahead(&batch.iter().map(|touch| touch.path.as_slice()).collect::<Vec<_>>());
        let chunks = std::thread::scope(|scope| {
            let look = |touches: &[&Touch]| -> Vec<Reference> {
                let found = touches.iter().filter_map(|touch| chunks_of(tree, touch).ok());
                found.flatten().collect()
            };
            let shares = batch.chunks(batch.len().div_ceil(THREADS));
            let threads: Vec<_> = shares.map(|share| scope.spawn(move || look(share))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect::<Vec<_>>()
        });
        let source = tree.source();
        for some in chunks.chunks(BLOCKS) {
            source.prefetch(&some.iter().map(|chunk| (*chunk, BlockKind::Chunk)).collect::<Vec<_>>());
        }
        // All these chunks are being fetched by now; this waits for them.
        for chunk in &chunks {
            if waiting.wait_for_readers() && source.fetch(chunk, BlockKind::Chunk).is_ok() {
                fetched.bytes += u64::from(chunk.length);
            }
        }
        fetched.touches += batch.len();
    }
    fetched
}

/// The chunks of the part of a file that was read, as far as the file is still there.
fn chunks_of(tree: &Tree, touch: &Touch) -> Result<Vec<Reference>, ContentError> {
    let mut node = tree.root()?;
    for name in components(&touch.path) {
        if node.inode.kind != InodeKind::Directory {
            return Ok(Vec::new());
        }
        let Some(child) = tree.child(&node, &name)? else { return Ok(Vec::new()) };
        node = child;
    }
    match &node.inode.content {
        Content::Directory(_) => tree.entries(&node, None, LISTED).map(|_| Vec::new()),
        Content::Extents(map) => {
            let end = touch.offset.saturating_add(u64::from(touch.bytes)).min(node.inode.size);
            let extents = map.extents_in(&**tree.source(), touch.offset..end)?;
            Ok(extents.into_iter().map(|(_, extent)| extent.reference).collect())
        }
        _ => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn touch(path: &str) -> Touch {
        Touch { path: path.into(), offset: 0, bytes: 100 }
    }

    fn list(paths: &[&str]) -> FirstTouches {
        FirstTouches(paths.iter().map(|path| touch(path)).collect())
    }

    /// Proves: only the first read of a path is recorded, in order, and the list is bounded.
    #[test]
    fn the_first_counts() {
        let recorder = Recorder::default();
        for (digest, path) in [(5, "b"), (9, "a"), (5, "b again"), (7, "c")] {
            recorder.note(digest, 0, 1 << 20, || Some(path.into()));
        }
        recorder.note(8, 0, 1, || None);
        let paths: Vec<Vec<u8>> = recorder.list().0.into_iter().map(|touch| touch.path).collect();
        assert_eq!(paths, [b"b", b"a", b"c"]);
        assert_eq!(recorder.list().0[0].bytes, TOUCH_BYTES_MAX);
        for digest in 0..2 * TOUCHES_MAX as u64 {
            recorder.note(100 + digest, 0, 1, || Some(vec![b'x'; 1000]));
        }
        assert!(recorder.list().well_formed().is_ok());
        assert_eq!(form::read::<FirstTouches>(&form::write(&recorder.list())).unwrap(), recorder.list());
    }

    /// Proves: the reads of the last mount come first, earlier ones after them, each path once.
    #[test]
    fn newer_before_older() {
        let both = list(&["b", "c"]).before(list(&["a", "b", "d"]));
        assert_eq!(both, list(&["b", "c", "a", "d"]));
        let full: Vec<String> = (0..TOUCHES_MAX).map(|n| n.to_string()).collect();
        let full = list(&full.iter().map(String::as_str).collect::<Vec<_>>());
        let both = list(&["new"]).before(full);
        assert!(both.0.len() == TOUCHES_MAX && both.0[0] == touch("new"));
    }

    /// Proves: a list is read as it was written; one that is damaged, too long or missing counts as empty.
    #[test]
    fn files() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("list");
        assert_eq!(FirstTouches::read(&path), list(&[]));
        list(&["a", "b"]).write(&path).expect("written");
        assert_eq!(FirstTouches::read(&path), list(&["a", "b"]));
        let mut bytes = std::fs::read(&path).expect("read");
        bytes.push(0);
        std::fs::write(&path, &bytes).expect("written");
        assert_eq!(FirstTouches::read(&path), list(&[]));
        let long = FirstTouches(vec![touch("x"); TOUCHES_MAX + 1]);
        std::fs::write(&path, form::write(&long)).expect("written");
        assert_eq!(FirstTouches::read(&path), list(&[]));
    }

    /// Proves: a waiting reader is noticed, and forgotten when it is done.
    #[test]
    fn who_waits() {
        let waiting = WaitingReaders::default();
        let (one, two) = (waiting.begin(), waiting.begin());
        std::thread::sleep(Duration::from_millis(5));
        assert!(waiting.longest() >= Duration::from_millis(5));
        drop(one);
        assert!(waiting.longest() >= Duration::from_millis(5));
        drop(two);
        assert_eq!(waiting.longest(), Duration::ZERO);
    }

    proptest! {
        /// Proves: no bytes make parsing a list panic.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = form::read::<FirstTouches>(&[b"HF-warm\x01".as_slice(), &bytes].concat());
        }
    }
}
