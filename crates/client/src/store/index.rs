//! The chunk index: of which chunks the files seen by this client consist (LBFS, 3.1.3).
//!
//! It finds earlier versions of a file and files that a new one resembles, and knows whether a chunk was ever
//! seen. Nothing in it is trusted: a chunk that it names is verified like any block before it is used, and
//! only the server can say what the server has. So a wrong or damaged index costs time, but never
//! correctness, and needs no fsync.
//!
//! On disk, each process has its own file of records: it reads the others' files when it starts, and writes
//! only to the one it has locked. Memory is bounded by [`FILES_MAX`] and [`CHUNKS_MAX`]: about 60 bytes a
//! chunk and 500 a file, 20 MB in all.

use super::features::{FEATURES, Features};
use super::piece_matches::Piece;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::Handle;
use holdfast_crypto::Digest;
use holdfast_log::FileLock;
use lru::LruCache;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Most files in the index.
pub(super) const FILES_MAX: usize = 8192;
/// Most chunks in the index, of all files together.
pub(super) const CHUNKS_MAX: usize = 256 << 10;
/// Files of more chunks are not indexed.
pub(super) const FILE_CHUNKS_MAX: usize = 32 << 10;
/// Longer paths are not stored.
const PATH_BYTES_MAX: usize = 4096;
/// Size in bytes beyond which an index file is rewritten.
const LOG_BYTES_MAX: u64 = 32 << 20;
/// Most processes that can have a file of their own in one directory.
const SHARERS_MAX: u32 = 16;
/// Number of features that two files must have in common to count as similar.
const ALIKE_MIN: usize = 2;

/// One version of a file.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct FileVersion {
    pub(super) handle: Handle,
    /// Its path; empty if unknown.
    pub(super) path: Vec<u8>,
    /// The node that all of its chunks are reachable from, if they do not fit into the inode.
    pub(super) root: Option<Digest>,
    /// The file's chunks, in sequence.
    pub(super) chunks: Vec<Piece>,
    /// The nodes of the file's extent map.
    pub(super) nodes: Vec<Piece>,
    pub(super) features: Features,
}

/// Finds an older version of a file or a similar file, by handle, path, name, chunks or features.
pub(super) struct ChunkIndex {
    files: LruCache<u64, FileVersion>,
    next: u64,
    chunks: usize,
    by_handle: HashMap<Handle, u64>,
    by_path: HashMap<Vec<u8>, u64>,
    by_name: HashMap<Vec<u8>, u64>,
    by_chunk: HashMap<u64, u64>,
    by_feature: HashMap<(u8, u64), u64>,
    log: Option<IndexLog>,
}

struct IndexLog {
    file: File,
    path: PathBuf,
    /// Keeps the file locked while this lives.
    _lock: FileLock,
    bytes: u64,
}

impl ChunkIndex {
    /// An index in memory only.
    pub(super) fn new() -> ChunkIndex {
        ChunkIndex {
            files: LruCache::unbounded(),
            next: 0,
            chunks: 0,
            by_handle: HashMap::new(),
            by_path: HashMap::new(),
            by_name: HashMap::new(),
            by_chunk: HashMap::new(),
            by_feature: HashMap::new(),
            log: None,
        }
    }

    /// Opens (or creates) the index in a directory.
    ///
    /// # Errors
    /// I/O errors of the directory; damaged files are read as far as possible.
    pub(super) fn open(directory: &Path) -> io::Result<ChunkIndex> {
        fs::create_dir_all(directory)?;
        let mut index = ChunkIndex::new();
        let mut own = None;
        for number in 0..SHARERS_MAX {
            let path = directory.join(format!("{number}.log"));
            if own.is_none() {
                let lock = directory.join(format!("{number}.lock"));
                let lock = OpenOptions::new().create(true).truncate(false).write(true).open(lock)?;
                if let Ok(lock) = FileLock::take(lock) {
                    own = Some((path, lock));
                    continue;
                }
            }
            index.load(&path);
        }
        let Some((path, lock)) = own else { return Ok(index) };
        // Read last, so that this process's own versions count as the newest.
        let good = index.load(&path);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        // Bytes after the last valid record would hide new records.
        file.set_len(good)?;
        let file = OpenOptions::new().append(true).open(&path)?;
        index.log = Some(IndexLog { file, path, _lock: lock, bytes: good });
        Ok(index)
    }

    /// Reads records up to the first invalid one; returns its offset.
    fn load(&mut self, path: &Path) -> u64 {
        let Ok(file) = File::open(path) else { return 0 };
        let mut bytes = Vec::new();
        if file.take(2 * LOG_BYTES_MAX).read_to_end(&mut bytes).is_err() {
            return 0;
        }
        let mut good = 0;
        while let Some((length, rest)) = bytes[good..].split_first_chunk::<4>()
            && let Some(record) = rest.get(..u32::from_le_bytes(*length) as usize)
            && let Ok(seen) = FileVersion::try_from_slice(record)
        {
            good += 4 + record.len();
            self.insert(seen);
        }
        good as u64
    }

    /// Stores a version of a file, in place of an older one.
    pub(super) fn remember(&mut self, seen: FileVersion) {
        if self.of_handle(&seen.handle).is_some_and(|known| *known == seen) {
            return;
        }
        let record = holdfast_crypto::encode(&seen);
        if !self.insert(seen) {
            return;
        }
        if let Some(log) = &mut self.log {
            let framed = [&(record.len() as u32).to_le_bytes()[..], &record].concat();
            log.bytes += framed.len() as u64;
            let written = log.file.write_all(&framed);
            if written.is_err() || (log.bytes > LOG_BYTES_MAX && self.rewrite().is_err()) {
                tracing::debug!("the chunk index cannot be kept on disk; it goes on in memory");
                self.log = None;
            }
        }
    }

    /// Rewrites the log with the versions that are still in the index.
    fn rewrite(&mut self) -> io::Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        let fresh = log.path.with_extension("new");
        let mut records = Vec::new();
        let mut bytes = 0;
        for (_, seen) in &self.files {
            let record = holdfast_crypto::encode(seen);
            bytes += 4 + record.len() as u64;
            if bytes > LOG_BYTES_MAX / 2 {
                bytes -= 4 + record.len() as u64;
                break;
            }
            records.push(record);
        }
        let mut file = File::create(&fresh)?;
        // The least recently used are written first, so that they are read back in the right sequence.
        for record in records.iter().rev() {
            file.write_all(&[&(record.len() as u32).to_le_bytes()[..], record].concat())?;
        }
        fs::rename(&fresh, &log.path)?;
        (log.file, log.bytes) = (file, bytes);
        Ok(())
    }

    fn insert(&mut self, mut seen: FileVersion) -> bool {
        if seen.path.len() > PATH_BYTES_MAX {
            seen.path.clear();
        }
        if seen.chunks.len() > FILE_CHUNKS_MAX || seen.nodes.len() > FILE_CHUNKS_MAX {
            return false;
        }
        if let Some(older) = self.by_handle.get(&seen.handle).copied() {
            self.drop_file(older);
        }
        let number = self.next;
        self.next += 1;
        self.chunks += seen.chunks.len();
        self.by_handle.insert(seen.handle, number);
        if !seen.path.is_empty() {
            self.by_path.insert(seen.path.clone(), number);
            self.by_name.insert(name_key(&seen.path), number);
        }
        for (address, _) in &seen.chunks {
            self.by_chunk.insert(short(address), number);
        }
        for (place, feature) in seen.features.iter().enumerate().filter(|(_, feature)| **feature != u64::MAX)
        {
            self.by_feature.insert((place as u8, *feature), number);
        }
        self.files.put(number, seen);
        while self.files.len() > FILES_MAX || self.chunks > CHUNKS_MAX {
            let Some((oldest, _)) = self.files.peek_lru() else { break };
            let oldest = *oldest;
            self.drop_file(oldest);
        }
        true
    }

    fn drop_file(&mut self, number: u64) {
        let Some(seen) = self.files.pop(&number) else { return };
        self.chunks -= seen.chunks.len();
        if self.by_handle.get(&seen.handle) == Some(&number) {
            self.by_handle.remove(&seen.handle);
        }
        if self.by_path.get(&seen.path) == Some(&number) {
            self.by_path.remove(&seen.path);
        }
        let name = name_key(&seen.path);
        if self.by_name.get(&name) == Some(&number) {
            self.by_name.remove(&name);
        }
        for (address, _) in &seen.chunks {
            if self.by_chunk.get(&short(address)) == Some(&number) {
                self.by_chunk.remove(&short(address));
            }
        }
        for (place, feature) in seen.features.iter().enumerate() {
            if self.by_feature.get(&(place as u8, *feature)) == Some(&number) {
                self.by_feature.remove(&(place as u8, *feature));
            }
        }
    }

    fn of_handle(&mut self, handle: &Handle) -> Option<&FileVersion> {
        let number = self.by_handle.get(handle)?;
        self.files.get(number)
    }

    /// Whether a chunk, or one with the same short address, was seen.
    pub(super) fn knows(&self, address: &Digest) -> bool {
        self.by_chunk.contains_key(&short(address))
    }

    /// The last version seen of a file; or else of a file with its path, or else with its name, where
    /// temporary names of editors count as the same.
    pub(super) fn earlier(&mut self, handle: &Handle, path: &[u8]) -> Option<&FileVersion> {
        let of_path = || self.by_path.get(path).or_else(|| self.by_name.get(&name_key(path)));
        let number = self.by_handle.get(handle).or_else(of_path)?;
        self.files.get(number)
    }

    /// The file version that has the most of these chunks.
    pub(super) fn sharing(&mut self, chunks: &[Piece]) -> Option<&FileVersion> {
        let found = chunks.iter().filter_map(|(address, _)| self.by_chunk.get(&short(address)).copied());
        let number = most(found)?.0;
        self.files.get(&number)
    }

    /// A file that resembles one with these features.
    pub(super) fn alike(&mut self, features: &Features) -> Option<&FileVersion> {
        let found = (0..FEATURES as u8).zip(features);
        let found = found.filter_map(|(place, feature)| self.by_feature.get(&(place, *feature)).copied());
        let (number, count) = most(found)?;
        (count >= ALIKE_MIN).then_some(())?;
        self.files.get(&number)
    }
}

fn most(found: impl Iterator<Item = u64>) -> Option<(u64, usize)> {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for number in found {
        *counts.entry(number).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(number, count)| (*count, *number))
}

fn short(address: &Digest) -> u64 {
    u64::from_le_bytes(address.0[..8].try_into().expect("8 bytes"))
}

/// Directory and name, without additions that programs make while they save: `foo`, `foo~`, `.foo.swp`,
/// `#foo#`, `.#foo`, `foo.tmp123`, `.foo.A1b2C3` and `foo.bak` have the same key.
fn name_key(path: &[u8]) -> Vec<u8> {
    let at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (folder, name) = path.split_at(at);
    let mut stem = name;
    for prefix in [&b".~lock."[..], b".#", b"~$", b"#", b"."] {
        if let Some(rest) = stem.strip_prefix(prefix).filter(|rest| !rest.is_empty()) {
            stem = rest;
            break;
        }
    }
    for suffix in [&b"~"[..], b"#"] {
        stem = stem.strip_suffix(suffix).filter(|rest| !rest.is_empty()).unwrap_or(stem);
    }
    if let Some(dot) = stem.iter().rposition(|byte| *byte == b'.').filter(|dot| *dot > 0)
        && is_passing(&stem[dot + 1..], name.first() == Some(&b'.'))
    {
        stem = &stem[..dot];
    }
    [folder, stem].concat()
}

/// Whether the part after the last dot of a name is one that programs add while they save.
fn is_passing(suffix: &[u8], hidden: bool) -> bool {
    let known: [&[u8]; 10] =
        [b"swp", b"swo", b"swx", b"bak", b"orig", b"new", b"save", b"part", b"old", b"backup"];
    let is_temporary = [&b"tmp"[..], b"temp"].iter().any(|prefix| suffix.starts_with(prefix));
    // mkstemp and rsync make such names.
    let is_drawn = hidden && suffix.len() == 6 && suffix.iter().all(u8::is_ascii_alphanumeric);
    known.contains(&suffix) || is_temporary || is_drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_content::{PrincipalId, UserId};

    fn seen(number: u64, path: &str, chunks: &[u8]) -> FileVersion {
        FileVersion {
            handle: handle(number),
            path: path.as_bytes().to_vec(),
            root: None,
            chunks: chunks.iter().map(|byte| (Digest([*byte; 32]), 1000)).collect(),
            nodes: Vec::new(),
            features: [u64::MAX; FEATURES],
        }
    }

    fn handle(number: u64) -> Handle {
        Handle { principal: PrincipalId::User(UserId(1)), number }
    }

    /// Proves: each kind of look-up finds the right file, in its newest version.
    #[test]
    fn look_ups() {
        let mut index = ChunkIndex::new();
        let mut alike = seen(3, "/c", &[7]);
        alike.features = [1, 2, 3, 4, 5, 6, 7, 8];
        for seen in [seen(1, "/a", &[1, 2]), seen(1, "/a", &[2, 3, 4]), seen(2, "/b", &[4, 5]), alike] {
            index.remember(seen);
        }
        assert_eq!(index.earlier(&handle(1), b"/b").unwrap().chunks.len(), 3);
        assert_eq!(index.earlier(&handle(9), b"/b").unwrap().handle, handle(2));
        assert!(index.earlier(&handle(9), b"/other").is_none());
        // The swap file was seen later, but the file with exactly this path takes precedence.
        index.remember(seen(4, "/.b.swp", &[8]));
        assert_eq!(index.earlier(&handle(9), b"/b").unwrap().handle, handle(2));
        assert_eq!(index.earlier(&handle(9), b"/b~").unwrap().handle, handle(4));
        let of = |bytes: &[u8]| bytes.iter().map(|byte| (Digest([*byte; 32]), 1)).collect::<Vec<_>>();
        assert_eq!(index.sharing(&of(&[2, 3, 5])).unwrap().handle, handle(1));
        assert!(index.sharing(&of(&[99])).is_none());
        assert!(!index.knows(&Digest([1; 32])), "of a version that was replaced");
        assert!(index.knows(&Digest([2; 32])));
        assert_eq!(index.alike(&[1, 0, 0, 4, 0, 0, 0, 0]).unwrap().handle, handle(3));
        assert!(index.alike(&[1, 0, 0, 0, 0, 0, 0, 0]).is_none(), "one feature is chance");
    }

    /// Proves: names that editors give a file while they save it lead to the file, and other names do not.
    #[test]
    fn names_while_saving() {
        for name in [
            "foo.c~",
            ".foo.c.swp",
            "#foo.c#",
            ".#foo.c",
            "foo.c.tmp123",
            ".foo.c.A1b2C3",
            "foo.c.bak",
            "~$foo.c",
        ] {
            assert_eq!(name_key(format!("/d/{name}").as_bytes()), b"/d/foo.c", "{name}");
        }
        for name in ["foo.h", "bar.c", "foo"] {
            assert_ne!(name_key(format!("/d/{name}").as_bytes()), b"/d/foo.c", "{name}");
        }
        assert_ne!(name_key(b"/e/foo.c"), b"/d/foo.c");
        for odd in ["", "/", ".", "~", "#", ".swp", "/.#"] {
            name_key(odd.as_bytes());
        }
    }

    /// Proves: the numbers of files and chunks stay bounded, and the look-up tables with them.
    #[test]
    fn bounded() {
        let mut index = ChunkIndex::new();
        for number in 0..FILES_MAX as u64 + 100 {
            index.remember(seen(number, &format!("/{number}"), &[1]));
        }
        assert_eq!(index.files.len(), FILES_MAX);
        let large = |number: u64| {
            let chunks = (0..FILE_CHUNKS_MAX as u64).map(|n| {
                let mut digest = [0; 32];
                digest[..8].copy_from_slice(&(n + (number << 32)).to_le_bytes());
                (Digest(digest), 1)
            });
            FileVersion { chunks: chunks.collect(), ..seen(number, "", &[]) }
        };
        for number in 1 << 20..(1 << 20) + 10 {
            index.remember(large(number));
            assert!(index.chunks <= CHUNKS_MAX);
        }
        assert!(index.by_chunk.len() <= CHUNKS_MAX && index.by_name.len() <= FILES_MAX);
        assert!(index.by_path.len() <= FILES_MAX);
        let mut too_large = large(77);
        too_large.chunks.push((Digest([9; 32]), 1));
        index.remember(too_large);
        assert!(index.of_handle(&handle(77)).is_none());
    }

    /// Proves: the index survives a restart, also after a crash in the middle of a record and with a file of
    /// garbage beside it; and two processes share a directory without touching each other's file.
    #[test]
    fn survives() {
        let dir = tempfile::tempdir().unwrap();
        {
            let mut one = ChunkIndex::open(dir.path()).unwrap();
            one.remember(seen(1, "/a", &[1]));
            let mut two = ChunkIndex::open(dir.path()).unwrap();
            assert!(two.of_handle(&handle(1)).is_some(), "read from the other's file");
            two.remember(seen(2, "/b", &[2]));
            one.remember(seen(3, "/c", &[3]));
        }
        let path = dir.path().join("0.log");
        let length = fs::metadata(&path).unwrap().len();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 5).unwrap();
        fs::write(dir.path().join("5.log"), [0xff; 1000]).unwrap();
        {
            let mut index = ChunkIndex::open(dir.path()).unwrap();
            assert!(index.of_handle(&handle(1)).is_some() && index.of_handle(&handle(2)).is_some());
            assert!(index.of_handle(&handle(3)).is_none(), "it was torn");
            index.remember(seen(4, "/d", &[4]));
        }
        let mut index = ChunkIndex::open(dir.path()).unwrap();
        assert!(index.of_handle(&handle(4)).is_some(), "what came behind the torn record is read");
    }

    /// Proves: the file does not grow without limit, and rewriting it loses nothing that is in the index.
    #[test]
    fn written_anew() {
        let dir = tempfile::tempdir().unwrap();
        let mut index = ChunkIndex::open(dir.path()).unwrap();
        for number in 0..600 {
            let nodes = vec![(Digest([1; 32]), 1); 3000];
            index.remember(FileVersion { nodes, ..seen(number % 7, "", &[number as u8]) });
        }
        assert!(fs::metadata(dir.path().join("0.log")).unwrap().len() <= LOG_BYTES_MAX + 200_000);
        drop(index);
        let mut index = ChunkIndex::open(dir.path()).unwrap();
        assert!((0..7).all(|number| index.of_handle(&handle(number)).is_some()));
    }
}
