//! The content of files, one object for each file, beside the images that refer to them.
//!
//! ```text
//! objects/xx/y...     content, named by its fs-verity digest (64 hexadecimal digits, two of them the folder's)
//! known               content as releases name it -> digest and size of its object (redb)
//! ```
//!
//! Invariants: an object gets its name after all of its bytes were verified and written. It is recorded in
//! `known` after it was durable. So what a killed export leaves is used or written again, and `known` may be
//! deleted at any time. Only one process at a time works in a directory.

use super::ImageError;
use super::verity::{VerityDigest, VerityHasher};
use crate::tree::Tree;
use holdfast_content::{
    Block, BlockKind, BlockSource, Content, ContentError, Extent, ExtentMap, Inode, Reference, file,
};
use holdfast_crypto::{Digest, DigestKey, Domain};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The name of the folder of objects.
pub const OBJECTS: &str = "objects";
/// The name of the database of known objects.
pub const KNOWN: &str = "known";
/// The name of an object that is being written.
const PARTIAL: &str = "partial";
/// Maps the digest of a file's content to its object.
const OBJECT_OF: TableDefinition<[u8; 32], ([u8; 32], u64)> = TableDefinition::new("object of");
/// Objects of the image that is being made. Recorded only if other objects are to be deleted.
const USED: TableDefinition<[u8; 32], ()> = TableDefinition::new("used");
/// New objects between two syncs; [`BATCH_BYTES`] bounds their bytes.
const BATCH: usize = 4096;
const BATCH_BYTES: u64 = 512 << 20;
/// Bytes of memory for the database's cache.
const CACHE_BYTES: usize = 32 << 20;
/// Bytes of a file that are requested at once.
const PIECE_BYTES: usize = 4 << 20;

/// The store of objects: files of the image by their fs-verity digest.
pub struct Objects {
    folder: PathBuf,
    handle: File,
    known: Database,
    /// Whether the objects of the new image are recorded.
    marking: bool,
    /// Objects that were written, but not yet synced and recorded.
    fresh: HashMap<[u8; 32], (VerityDigest, u64)>,
    fresh_bytes: u64,
    used: Vec<VerityDigest>,
    /// The number of objects and bytes that were written.
    pub added: (u64, u64),
    /// Files whose object existed already.
    pub kept: u64,
}

fn database(path: &Path) -> impl Fn(&dyn std::fmt::Display) -> ImageError + '_ {
    |error| ImageError::disk(path, io::Error::other(error.to_string()))
}

/// The name of an object beneath the folder of objects.
pub fn name_of(digest: &VerityDigest) -> String {
    let digits = digest.to_string();
    format!("{}/{}", &digits[..2], &digits[2..])
}

/// Identifies the content of a file in a release: equal for equal content, under one digest key.
fn content_of(key: &DigestKey, inode: &Inode, map: &ExtentMap) -> [u8; 32] {
    let bytes = holdfast_crypto::encode(&(b"content of an object", inode.size, map));
    let own = key.digest(Domain::ReleaseFile, &bytes);
    DigestKey::WELL_KNOWN.digest(Domain::ReleaseFile, &own.0).0
}

impl Objects {
    /// Opens the objects of an image's directory, which the caller has locked. If `known` cannot be read, an
    /// empty one replaces it.
    ///
    /// # Errors
    /// [`ImageError::Disk`].
    pub fn open(directory: &Path, marking: bool) -> Result<Objects, ImageError> {
        let folder = directory.join(OBJECTS);
        let disk = |error| ImageError::disk(&folder, error);
        holdfast_durable::make_directory(&folder, 0o755).map_err(disk)?;
        let handle = File::open(&folder).map_err(disk)?;
        let path = directory.join(KNOWN);
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES);
        let known = match builder.create(&path) {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "it cannot be read; objects are written again");
                std::fs::remove_file(&path).map_err(|error| ImageError::disk(&path, error))?;
                builder.create(&path).map_err(|error| database(&path)(&error))?
            }
        };
        let mut objects = Objects {
            folder,
            handle,
            known,
            marking,
            fresh: HashMap::new(),
            fresh_bytes: 0,
            used: Vec::new(),
            added: (0, 0),
            kept: 0,
        };
        objects.begin()?;
        Ok(objects)
    }

    fn failed(&self) -> impl Fn(&dyn std::fmt::Display) -> ImageError + '_ {
        |error| ImageError::disk(&self.folder.with_file_name(KNOWN), io::Error::other(error.to_string()))
    }

    fn begin(&mut self) -> Result<(), ImageError> {
        let failed = self.failed();
        let write = self.known.begin_write().map_err(|error| failed(&error))?;
        write.open_table(OBJECT_OF).map_err(|error| failed(&error))?;
        write.delete_table(USED).map_err(|error| failed(&error))?;
        write.commit().map_err(|error| failed(&error))
    }

    /// The path of an object.
    pub fn path_of(&self, digest: &VerityDigest) -> PathBuf {
        self.folder.join(name_of(digest))
    }

    /// The object with a file's content: an existing one, or a new one, which is verified while it is
    /// written.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn object(&mut self, tree: &Tree, inode: &Inode, path: &[u8]) -> Result<VerityDigest, ImageError> {
        let map = map_of(inode);
        let content = content_of(&tree.source().digest_key(), inode, &map);
        let digest = match self.find(&content)? {
            Some((digest, bytes)) if self.is_there(&digest, bytes) => {
                self.kept += 1;
                digest
            }
            _ => {
                let digest = self.write(tree, inode, &map, path)?;
                self.added = (self.added.0 + 1, self.added.1 + inode.size);
                self.fresh.insert(content, (digest, inode.size));
                self.fresh_bytes = self.fresh_bytes.saturating_add(inode.size);
                digest
            }
        };
        if self.marking {
            self.used.push(digest);
        }
        if self.fresh.len() >= BATCH || self.fresh_bytes >= BATCH_BYTES || self.used.len() >= BATCH {
            self.keep()?;
        }
        Ok(digest)
    }

    fn find(&self, content: &[u8; 32]) -> Result<Option<(VerityDigest, u64)>, ImageError> {
        if let Some(found) = self.fresh.get(content) {
            return Ok(Some(*found));
        }
        let failed = self.failed();
        let read = self.known.begin_read().map_err(|error| failed(&error))?;
        let table = read.open_table(OBJECT_OF).map_err(|error| failed(&error))?;
        let found = table.get(content).map_err(|error| failed(&error))?;
        Ok(found.map(|found| {
            let (digest, bytes) = found.value();
            (VerityDigest(digest), bytes)
        }))
    }

    fn is_there(&self, digest: &VerityDigest, bytes: u64) -> bool {
        std::fs::symlink_metadata(self.path_of(digest))
            .is_ok_and(|found| found.is_file() && found.len() == bytes)
    }

    fn write(
        &self,
        tree: &Tree,
        inode: &Inode,
        map: &ExtentMap,
        path: &[u8],
    ) -> Result<VerityDigest, ImageError> {
        let partial = self.folder.join(PARTIAL);
        let disk = |error| ImageError::disk(&partial, error);
        let _ = std::fs::remove_file(&partial);
        let file = File::create_new(&partial).map_err(disk)?;
        let mut measure = VerityHasher::default();
        let mut at = 0;
        let mut out = |offset: u64, bytes: &[u8]| {
            measure.zeroes(offset - at);
            measure.update(bytes);
            at = offset + bytes.len() as u64;
            file.write_all_at(bytes, offset)
        };
        if let Content::Inline(bytes) = &inode.content {
            out(0, bytes).map_err(disk)?;
        }
        let read = pieces(&**tree.source(), map, inode.size, &mut out);
        read.map_err(|error| match error {
            Failure::Content(error) => ImageError::content(path, error),
            Failure::Disk(error) => disk(error),
        })?;
        measure.zeroes(inode.size - at);
        file.set_len(inode.size).map_err(disk)?;
        let digest = measure.finish();
        let to = self.path_of(&digest);
        let folder = to.parent().unwrap_or(&self.folder);
        if !folder.is_dir() {
            std::fs::create_dir(folder).map_err(|error| ImageError::disk(folder, error))?;
        }
        // An object of this name may exist if an earlier export was stopped before the object was durable.
        std::fs::rename(&partial, &to).map_err(|error| ImageError::disk(&to, error))?;
        Ok(digest)
    }

    /// Reads an object and compares it with what was signed. Returns its digest, or what is wrong with it.
    ///
    /// # Errors
    /// [`ImageError`], for failures that are not the object's.
    pub fn check(
        &self,
        tree: &Tree,
        inode: &Inode,
        path: &[u8],
    ) -> Result<Result<VerityDigest, String>, ImageError> {
        let map = map_of(inode);
        let key = tree.source().digest_key();
        let Some((digest, _)) = self.find(&content_of(&key, inode, &map))? else {
            return Ok(Err("which object has its content is not known; export the release again".to_owned()));
        };
        let name = format!("{OBJECTS}/{}", name_of(&digest));
        // With NONBLOCK, opening does not wait if a pipe is there.
        let flags = (rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW).bits() as i32;
        let opened = File::options().read(true).custom_flags(flags).open(self.path_of(&digest));
        let object = match opened {
            Ok(object) if object.metadata().is_ok_and(|found| found.is_file()) => object,
            Ok(_) => return Ok(Err(format!("{name} is no regular file"))),
            Err(error) => return Ok(Err(format!("{name}: {error}"))),
        };
        if object.metadata().map_or(u64::MAX, |found| found.len()) != inode.size {
            return Ok(Err(format!("{name} has another size")));
        }
        let signed = match signed_digest(&object, tree, inode, &map) {
            Ok(Ok(signed)) => signed,
            Ok(Err(why)) => return Ok(Err(format!("{name} {why}"))),
            Err(Failure::Disk(error)) => return Ok(Err(format!("{name}: {error}"))),
            Err(Failure::Content(error)) => return Err(ImageError::content(path, error)),
        };
        if signed != digest {
            return Ok(Err(format!("{name} has the content of {signed}")));
        }
        // So far, the holes of the release were not compared.
        Ok(match measure_file(&object, inode.size) {
            Ok(found) if found == signed => Ok(digest),
            Ok(_) => Err(format!("{name} has something where there should be nothing")),
            Err(error) => Err(format!("{name}: {error}")),
        })
    }

    /// Makes new objects durable, and then records them.
    ///
    /// # Errors
    /// [`ImageError::Disk`].
    pub fn keep(&mut self) -> Result<(), ImageError> {
        if !self.fresh.is_empty() {
            rustix::fs::syncfs(&self.handle).map_err(|error| ImageError::disk(&self.folder, error.into()))?;
        }
        let failed = self.failed();
        let mut write = self.known.begin_write().map_err(|error| failed(&error))?;
        write.set_durability(Durability::Immediate).map_err(|error| failed(&error))?;
        {
            let mut table = write.open_table(OBJECT_OF).map_err(|error| failed(&error))?;
            for (content, (digest, bytes)) in &self.fresh {
                table.insert(content, (digest.0, *bytes)).map_err(|error| failed(&error))?;
            }
            let mut table = write.open_table(USED).map_err(|error| failed(&error))?;
            for digest in &self.used {
                table.insert(digest.0, ()).map_err(|error| failed(&error))?;
            }
        }
        write.commit().map_err(|error| failed(&error))?;
        drop(failed);
        self.fresh.clear();
        self.fresh_bytes = 0;
        self.used.clear();
        Ok(())
    }

    /// Deletes every object that was not used since this was opened. Returns how many, and their bytes.
    ///
    /// # Errors
    /// [`ImageError::Disk`].
    pub fn prune(&mut self) -> Result<(u64, u64), ImageError> {
        assert!(self.marking, "nothing was marked");
        self.keep()?;
        let failed = self.failed();
        // Objects are removed from `known` before they are deleted.
        let write = self.known.begin_write().map_err(|error| failed(&error))?;
        {
            let used = write.open_table(USED).map_err(|error| failed(&error))?;
            let mut table = write.open_table(OBJECT_OF).map_err(|error| failed(&error))?;
            let is_used = |digest: [u8; 32]| used.get(digest).is_ok_and(|found| found.is_some());
            table.retain(|_, (digest, _)| is_used(digest)).map_err(|error| failed(&error))?;
        }
        write.commit().map_err(|error| failed(&error))?;
        let read = self.known.begin_read().map_err(|error| failed(&error))?;
        let used = read.open_table(USED).map_err(|error| failed(&error))?;
        let mut gone = (0, 0);
        let disk = |error| ImageError::disk(&self.folder, error);
        for folder in std::fs::read_dir(&self.folder).map_err(disk)? {
            let folder = folder.map_err(disk)?.path();
            if !folder.is_dir() {
                continue;
            }
            for object in std::fs::read_dir(&folder).map_err(disk)? {
                let object = object.map_err(disk)?;
                let path = object.path();
                // Foreign files are left alone.
                let Some(digest) = digest_of(&self.folder, &path) else { continue };
                if used.get(digest).map_err(|error| failed(&error))?.is_none() {
                    let bytes = object.metadata().map_or(0, |found| found.len());
                    std::fs::remove_file(&path).map_err(|error| ImageError::disk(&path, error))?;
                    gone = (gone.0 + 1, gone.1 + bytes);
                }
            }
        }
        Ok(gone)
    }
}

/// The digest that an object's path stands for.
fn digest_of(folder: &Path, path: &Path) -> Option<[u8; 32]> {
    let digits = path.strip_prefix(folder).ok()?.to_str()?.replace('/', "");
    Digest::from_hex(&digits).map(|digest| digest.0)
}

/// The extents of a file; a small file has none.
fn map_of(inode: &Inode) -> ExtentMap {
    match &inode.content {
        Content::Extents(map) => map.clone(),
        _ => ExtentMap::empty(),
    }
}

enum Failure {
    Content(ContentError),
    Disk(io::Error),
}

impl From<ContentError> for Failure {
    fn from(error: ContentError) -> Failure {
        Failure::Content(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Disk(error)
    }
}

/// Calls `each` with the extents of a file in order. They are processed in groups that fit into memory; the
/// next group is being fetched already.
fn groups(
    source: &dyn BlockSource,
    map: &ExtentMap,
    size: u64,
    each: &mut dyn FnMut(u64, Extent) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut waiting: Vec<(u64, Extent)> = Vec::new();
    let mut bytes = 0;
    let mut failed = None;
    let mut before: Vec<(u64, Extent)> = Vec::new();
    let mut pass =
        |extents: Vec<(u64, Extent)>| extents.into_iter().try_for_each(|(at, extent)| each(at, extent));
    map.visit(source, 0..size, &mut |at, extent| {
        waiting.push((at, extent));
        bytes += extent.reference.length as usize;
        if bytes >= PIECE_BYTES {
            bytes = 0;
            let group = std::mem::take(&mut waiting);
            hint(source, &group);
            failed = pass(std::mem::replace(&mut before, group)).err();
        }
        Ok(failed.is_none())
    })?;
    if let Some(failed) = failed {
        return Err(failed);
    }
    hint(source, &waiting);
    pass(before)?;
    pass(waiting)
}

fn hint(source: &dyn BlockSource, extents: &[(u64, Extent)]) {
    let wanted: Vec<(Reference, BlockKind)> =
        extents.iter().map(|(_, extent)| (extent.reference, BlockKind::Chunk)).collect();
    source.prefetch(&wanted);
}

/// Calls `out` with the verified bytes of a file, without its holes.
fn pieces(
    source: &dyn BlockSource,
    map: &ExtentMap,
    size: u64,
    out: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
) -> Result<(), Failure> {
    groups(source, map, size, &mut |at, extent| {
        let chunk = source.fetch(&extent.reference, BlockKind::Chunk).map_err(ContentError::Source)?;
        let begin = extent.skip as usize;
        let length = u64::from(extent.length).min(size - at) as usize;
        let bytes = chunk.body().get(begin..begin + length);
        let bytes =
            bytes.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a chunk is too short"))?;
        Ok(out(at, bytes)?)
    })
}

/// The digest of the signed content if an object has that content; otherwise how it differs. Holes count as
/// zeroes. Of the release, only the digests of chunks are needed.
fn signed_digest(
    object: &File,
    tree: &Tree,
    inode: &Inode,
    map: &ExtentMap,
) -> Result<Result<VerityDigest, String>, Failure> {
    let source = &**tree.source();
    let key = source.digest_key();
    let mut measure = VerityHasher::default();
    let mut at = 0;
    let mut wrong = None;
    let mut failed = None;
    if let Content::Inline(bytes) = &inode.content {
        let mut found = vec![0; bytes.len()];
        object.read_exact_at(&mut found, 0)?;
        measure.update(&found);
        at = found.len() as u64;
        wrong = (found != *bytes).then(|| "is not what was signed".to_owned());
    }
    let mut visit = |offset: u64, extent: Extent| {
        let mut bytes = vec![0; u64::from(extent.length).min(inode.size - offset) as usize];
        object.read_exact_at(&mut bytes, offset)?;
        measure.zeroes(offset - at);
        measure.update(&bytes);
        at = offset + bytes.len() as u64;
        if extent.is_whole() && bytes.len() == extent.length as usize {
            let chunk = Block::new(&key, BlockKind::Chunk, Vec::new(), bytes);
            return Ok(chunk.reference().address == extent.reference.address);
        }
        // Only whole chunks have digests, so the whole chunk is read.
        let mut signed = vec![0; bytes.len()];
        file::read_extents(source, map, offset, &mut signed)?;
        Ok::<bool, Failure>(signed == bytes)
    };
    map.visit(source, 0..inode.size, &mut |offset, extent| {
        match visit(offset, extent) {
            Ok(true) => {}
            Ok(false) => wrong = Some(format!("is not what was signed, from byte {offset} on")),
            Err(error) => failed = Some(error),
        }
        Ok(wrong.is_none() && failed.is_none())
    })?;
    match (failed, wrong) {
        (Some(failed), _) => Err(failed),
        (None, Some(wrong)) => Ok(Err(wrong)),
        (None, None) => {
            measure.zeroes(inode.size - at);
            Ok(Ok(measure.finish()))
        }
    }
}

/// The fs-verity digest of the first `size` bytes of a file.
///
/// # Errors
/// The file cannot be read, or is shorter.
pub fn measure_file(file: &File, size: u64) -> io::Result<VerityDigest> {
    let mut measure = VerityHasher::default();
    let mut at = 0;
    let mut buffer = vec![0; 1 << 20];
    while at < size {
        // Holes are skipped.
        let data = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => data.min(size),
            Err(rustix::io::Errno::NXIO) => size,
            Err(error) => return Err(error.into()),
        };
        measure.zeroes(data - at);
        at = data;
        let hole = match rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(at)) {
            Ok(hole) => hole.min(size),
            Err(rustix::io::Errno::NXIO) => size,
            Err(error) => return Err(error.into()),
        };
        while at < hole {
            let count = buffer.len().min((hole - at) as usize);
            file.read_exact_at(&mut buffer[..count], at)?;
            measure.update(&buffer[..count]);
            at += count as u64;
        }
    }
    Ok(measure.finish())
}
