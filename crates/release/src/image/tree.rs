//! Writes a release's tree as an EROFS image. Memory holds only the directories on the current path, and the
//! numbers of inodes with several names.
//!
//! Attack answered: a tree that contains instructions for overlayfs. Only `user.*` attributes are copied, so
//! all `trusted.overlay.*` attributes are written by this program. Device nodes 0/0, which would mean
//! deletions, are left out. Set-user-ID and set-group-ID bits are not copied, because owners are not. A small
//! tree that unfolds without end, because its directories contain each other many times, fails at a bound.

use super::erofs::{Attributes, Body, Directory, Head, Image, Nid, Packing};
use super::objects::{Objects, name_of};
use super::verity::VerityDigest;
use super::{ImageError, WRONG_MAX};
use crate::tree::{Node, Tree};
use holdfast_content::catalog::CatalogEntry;
use holdfast_content::{Content, ContentError, Inode, InodeKind};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::Path;

/// Most names of an image.
pub const NAMES_MAX: u64 = 1 << 24;
/// The longest path, in names, that programs can use.
const DEPTH_MAX: usize = 2048;
/// Names read at once.
const PAGE: usize = 256;
/// Most bytes of a file that is stored in the image itself.
const INLINE_BYTES_MAX: u64 = 256;
/// The permission bits that give rights to programs.
const RIGHTS_BITS: u32 = 0o6000;
const DOT: &[u8] = b".";
const DOTS: &[u8] = b"..";

/// The treatment of files' content.
pub(super) enum Source<'a> {
    /// It is written as objects.
    Write(&'a mut Objects),
    /// The objects are compared with it; faults are added to the list.
    Check(&'a Objects, &'a mut Vec<String>),
}

impl Source<'_> {
    fn object(&mut self, tree: &Tree, inode: &Inode, path: &[u8]) -> Result<VerityDigest, ImageError> {
        match self {
            Source::Write(objects) => objects.object(tree, inode, path),
            Source::Check(objects, wrong) => match objects.check(tree, inode, path)? {
                Ok(digest) => Ok(digest),
                Err(why) => {
                    if wrong.len() < WRONG_MAX {
                        wrong.push(format!("{}: {why}", String::from_utf8_lossy(path)));
                    } else if wrong.len() == WRONG_MAX {
                        wrong.push("and more".to_owned());
                    }
                    Ok(VerityDigest([0; 32]))
                }
            },
        }
    }
}

/// The totals of a walk.
#[derive(Clone, Copy, Default)]
pub(super) struct Totals {
    pub names: u64,
    pub bytes: u64,
    pub left_out: u64,
}

/// The names of a directory in byte order, including `.` and `..`, read page by page.
struct Names {
    page: VecDeque<(Vec<u8>, CatalogEntry)>,
    after: Option<Vec<u8>>,
    is_over: bool,
    dots: &'static [&'static [u8]],
}

enum Name {
    Dot(&'static [u8]),
    Entry(Vec<u8>, Box<CatalogEntry>),
}

impl Names {
    fn new() -> Names {
        Names { page: VecDeque::new(), after: None, is_over: false, dots: &[DOT, DOTS] }
    }

    fn next(&mut self, tree: &Tree, directory: &Node) -> Result<Option<Name>, ContentError> {
        if self.page.is_empty() && !self.is_over {
            let page = tree.entries(directory, self.after.as_deref(), PAGE)?;
            self.after = page.last().map(|(name, _)| name.clone());
            self.is_over = page.is_empty();
            self.page = page.into();
        }
        if let [dot, rest @ ..] = self.dots
            && self.page.front().is_none_or(|(name, _)| name.as_slice() > *dot)
        {
            self.dots = rest;
            return Ok(Some(Name::Dot(dot)));
        }
        Ok(self.page.pop_front().map(|(name, entry)| Name::Entry(name, Box::new(entry))))
    }
}

/// A directory on the current path.
struct Level {
    node: Node,
    names: Names,
    directory: Directory,
    parent: Nid,
    /// The length of its parent's path in bytes.
    path_bytes: usize,
}

/// Whether an entry is a device node that overlayfs takes for the deletion of its name.
fn is_deletion(entry: &CatalogEntry, tree: &Tree) -> Result<bool, ContentError> {
    if entry.kind != InodeKind::CharDevice {
        return Ok(false);
    }
    Ok(entry.clone().into_inode(&**tree.source())?.device_number == 0)
}

struct Writer<'a, 'b> {
    tree: &'a Tree,
    names_max: u64,
    image: Image,
    to: &'a Path,
    source: &'a mut Source<'b>,
    totals: Totals,
    /// Inodes with several names: their number in the image, and how many names are still to come.
    links: HashMap<(u64, [u8; 32]), (Nid, u32)>,
    path: Vec<u8>,
}

/// Writes the image of a tree to `file`, which errors call `to`. It may have at most `names_max` names.
pub(super) fn write_tree(
    tree: &Tree,
    names_max: u64,
    (file, to): (File, &Path),
    source: &mut Source<'_>,
    progress: &dyn Fn(u64, u64),
) -> Result<(File, Totals), ImageError> {
    let image = Image::new(file);
    let (totals, links, path) = (Totals::default(), HashMap::new(), Vec::new());
    let mut writer = Writer { tree, names_max, image, to, source, totals, links, path };
    writer.all(progress)?;
    let uuid = *tree.reference().address.0.first_chunk().expect("32 bytes");
    let totals = writer.totals;
    let file = writer.image.finish(uuid).map_err(|error| ImageError::disk(to, error))?;
    Ok((file, totals))
}

impl Writer<'_, '_> {
    fn disk(&self) -> impl Fn(io::Error) -> ImageError {
        |error| ImageError::disk(self.to, error)
    }

    fn content(&self) -> impl Fn(ContentError) -> ImageError {
        |error| ImageError::content(&self.path, error)
    }

    fn all(&mut self, progress: &dyn Fn(u64, u64)) -> Result<(), ImageError> {
        let root = self.tree.root().map_err(self.content())?;
        let mut way = vec![self.begin(root, None, 0)?];
        while let Some(level) = way.last_mut() {
            let name = level.names.next(self.tree, &level.node).map_err(self.content())?;
            let Some(name) = name else {
                let level = way.pop().expect("it was there");
                self.image.end_directory(level.directory).map_err(self.disk())?;
                self.path.truncate(level.path_bytes);
                continue;
            };
            let (name, entry) = match name {
                Name::Dot(dot) => {
                    let nid = if dot == DOT { level.directory.nid() } else { level.parent };
                    let added = self.image.name(&mut level.directory, dot, nid, InodeKind::Directory);
                    added.map_err(self.disk())?;
                    continue;
                }
                Name::Entry(name, entry) => (name, *entry),
            };
            let path_bytes = self.path.len();
            if path_bytes > 0 {
                self.path.push(b'/');
            }
            self.path.extend(&name);
            if is_deletion(&entry, self.tree).map_err(self.content())? {
                self.totals.left_out += 1;
                self.path.truncate(path_bytes);
                continue;
            }
            self.totals.names += 1;
            if self.totals.names > self.names_max {
                return Err(self.too_large(format!("the tree has more than {} names", self.names_max)));
            }
            if self.totals.names.is_multiple_of(256) {
                progress(self.totals.names, self.totals.bytes);
            }
            let kind = entry.kind;
            let known = entry.link.map(|link| self.link_of(link, &entry)).transpose()?;
            if let Some(nid) = known.and_then(|key| self.linked(key)) {
                self.image.name(&mut level.directory, &name, nid, kind).map_err(self.disk())?;
                self.path.truncate(path_bytes);
                continue;
            }
            let node = self.tree.node(entry).map_err(self.content())?;
            if kind == InodeKind::Directory {
                let child = self.begin(node, Some(level.directory.nid()), path_bytes)?;
                let nid = child.directory.nid();
                self.image.name(&mut level.directory, &name, nid, kind).map_err(self.disk())?;
                if way.len() >= DEPTH_MAX {
                    return Err(self.too_large(format!("it is more than {DEPTH_MAX} directories deep")));
                }
                way.push(child);
                continue;
            }
            let nid = self.file(&node.inode)?;
            if let Some(key) = known {
                self.links.insert(key, (nid, node.inode.links.saturating_sub(1)));
            }
            self.image.name(&mut level.directory, &name, nid, kind).map_err(self.disk())?;
            self.path.truncate(path_bytes);
        }
        Ok(())
    }

    fn too_large(&self, why: String) -> ImageError {
        ImageError::TooLarge { path: self.path.clone(), why }
    }

    /// Identifies an inode with several names: by the number that they share, and the digest of the inode.
    fn link_of(&self, link: u64, entry: &CatalogEntry) -> Result<(u64, [u8; 32]), ImageError> {
        let inode = entry.clone().into_inode(&**self.tree.source()).map_err(self.content())?;
        let (bytes, references) = inode.encode().map_err(self.content())?;
        let key = self.tree.source().digest_key();
        let bytes = holdfast_crypto::encode(&(bytes, references));
        Ok((link, key.digest(holdfast_crypto::Domain::ReleaseFile, &bytes).0))
    }

    fn linked(&mut self, key: (u64, [u8; 32])) -> Option<Nid> {
        let (nid, left) = self.links.get_mut(&key)?;
        let nid = *nid;
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.links.remove(&key);
        }
        Some(nid)
    }

    fn begin(&mut self, node: Node, parent: Option<Nid>, path_bytes: usize) -> Result<Level, ImageError> {
        let mut packing = Packing::default();
        let mut names = Names::new();
        while let Some(name) = names.next(self.tree, &node).map_err(self.content())? {
            match &name {
                Name::Dot(dot) => packing.add(dot),
                Name::Entry(_, entry) if is_deletion(entry, self.tree).map_err(self.content())? => continue,
                Name::Entry(name, _) => packing.add(name),
            };
        }
        let head = self.head(&node.inode)?;
        let directory = self.image.begin_directory(&head, packing).map_err(self.disk())?;
        let parent = parent.unwrap_or(directory.nid());
        Ok(Level { node, names: Names::new(), directory, parent, path_bytes })
    }

    fn head(&self, inode: &Inode) -> Result<Head, ImageError> {
        let mut attributes = Attributes::default();
        for (name, value) in inode.xattrs.iter().filter(|(name, _)| name.starts_with(b"user.")) {
            if name.len() > b"user.".len() && !attributes.add(name, value) {
                let why = format!("its attribute {} is too long", String::from_utf8_lossy(name));
                return Err(self.too_large(why));
            }
        }
        let mode = match inode.kind {
            InodeKind::File => inode.mode & !RIGHTS_BITS,
            _ => inode.mode,
        };
        Ok(Head {
            kind: inode.kind,
            mode,
            links: inode.links.max(1),
            modified_ns: inode.modified_ns,
            attributes,
        })
    }

    fn file(&mut self, inode: &Inode) -> Result<Nid, ImageError> {
        let mut head = self.head(inode)?;
        self.totals.bytes = self.totals.bytes.saturating_add(match inode.kind {
            InodeKind::File => inode.size,
            _ => 0,
        });
        let small;
        let body = match (&inode.content, inode.kind) {
            (Content::Target(target), _) => Body::Bytes(target),
            (Content::Inline(bytes), _) if inode.size <= INLINE_BYTES_MAX => {
                small = [bytes.as_slice(), &vec![0; inode.size as usize - bytes.len()]].concat();
                Body::Bytes(&small)
            }
            (Content::None, InodeKind::File) => Body::Hole(inode.size),
            (Content::Extents(map), _) if map.is_empty() => Body::Hole(inode.size),
            (_, InodeKind::File) => {
                let path = self.path.clone();
                let digest = self.source.object(self.tree, inode, &path)?;
                // struct ovl_metacopy: version, length, flags, algorithm (SHA-256), digest.
                let metacopy = [&[0, 36, 0, 1][..], &digest.0].concat();
                let redirect = format!("/{}", name_of(&digest));
                let added = head.attributes.add(b"trusted.overlay.metacopy", &metacopy)
                    && head.attributes.add(b"trusted.overlay.redirect", redirect.as_bytes());
                assert!(added, "these are short");
                Body::Hole(inode.size)
            }
            _ => Body::Device(inode.device_number),
        };
        self.image.add(&head, body).map_err(self.disk())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_content::MemoryBlocks;
    use holdfast_content::catalog;
    use holdfast_content::{DeviceId, LiveMap, MapRoot, MerkleMap};
    use holdfast_crypto::DigestKey;
    use std::collections::BTreeMap;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    fn directory(blocks: &MemoryBlocks, names: &[(&str, &Inode)]) -> Inode {
        let value = |inode: &Inode| CatalogEntry::value_of(&mut &*blocks, inode, None).expect("an entry");
        let edits: BTreeMap<_, _> =
            names.iter().map(|(name, inode)| (name.as_bytes().to_vec(), Some(value(inode)))).collect();
        let map = MerkleMap::new(DigestKey::WELL_KNOWN);
        let root = map.apply(blocks, &mut &*blocks, &MapRoot::default(), edits).expect("a map");
        let mut inode = Inode::new(InodeKind::Directory, 0o755, DeviceId(0), 0);
        inode.content = Content::Directory(LiveMap { root, changes: Vec::new() });
        inode
    }

    fn image_of(blocks: MemoryBlocks, root: &Inode) -> Result<Vec<u8>, ImageError> {
        let reference = root.store(&mut &blocks).expect("stored");
        catalog::directory_root(root).expect("a directory");
        let tree = Tree::new(Arc::new(blocks), reference);
        let folder = tempfile::tempdir().expect("a folder");
        let mut objects = Objects::open(folder.path(), false)?;
        let file = tempfile::tempfile().expect("a file");
        let mut source = Source::Write(&mut objects);
        let (file, _) = write_tree(&tree, 5000, (file, Path::new("image")), &mut source, &|_, _| {})?;
        let mut bytes = vec![0; file.metadata().expect("a size").len() as usize];
        file.read_exact_at(&mut bytes, 0).expect("read");
        Ok(bytes)
    }

    fn holds(bytes: &[u8], what: &[u8]) -> bool {
        bytes.windows(what.len()).any(|window| window == what)
    }

    /// Proves: a release cannot pass instructions to overlayfs or give rights to programs. Attributes in
    /// `user.*` stay.
    #[test]
    fn nothing_is_smuggled() {
        let blocks = MemoryBlocks::new(DigestKey::WELL_KNOWN);
        let mut file = Inode::new(InodeKind::File, 0o6755, DeviceId(0), 0);
        for (name, value) in [
            ("trusted.overlay.redirect", "/etc/shadow"),
            ("trusted.overlay.metacopy", "to be believed"),
            ("trusted.overlay.overlay.whiteout", "y"),
            ("security.capability", "all of them"),
            ("system.posix_acl_access", "everybody"),
            ("user.", "without a name"),
            ("user.overlay.redirect", "for users only"),
        ] {
            file.xattrs.insert(name.into(), value.into());
        }
        let deletion = Inode::new(InodeKind::CharDevice, 0o666, DeviceId(0), 0);
        let mut device = deletion.clone();
        device.device_number = 0x103;
        let root = directory(&blocks, &[("deletes", &deletion), ("file", &file), ("null", &device)]);
        let bytes = image_of(blocks, &root).expect("an image");
        for absent in
            ["/etc/shadow", "to be believed", "whiteout", "all of them", "everybody", "without a name"]
        {
            assert!(!holds(&bytes, absent.as_bytes()), "{absent}");
        }
        assert!(!holds(&bytes, b"deletes") && holds(&bytes, b"null"));
        assert!(holds(&bytes, b"overlay.redirectfor users only"));
        assert!(holds(&bytes, &0o100_755u16.to_le_bytes()) && !holds(&bytes, &0o106_755u16.to_le_bytes()));
    }

    /// Proves: a tree of twenty blocks that unfolds to a million directories is refused, and so is one that
    /// is deeper than any path.
    #[test]
    fn trees_without_end() {
        let blocks = MemoryBlocks::new(DigestKey::WELL_KNOWN);
        let mut inode = directory(&blocks, &[]);
        for _ in 0..20 {
            inode = directory(&blocks, &[("a", &inode), ("b", &inode)]);
        }
        let error = image_of(blocks, &inode).expect_err("too many names");
        assert!(error.to_string().contains("more than 5000 names"), "{error}");

        let blocks = MemoryBlocks::new(DigestKey::WELL_KNOWN);
        let mut inode = directory(&blocks, &[]);
        for _ in 0..2500 {
            inode = directory(&blocks, &[("d", &inode)]);
        }
        let error = image_of(blocks, &inode).expect_err("too deep");
        assert!(error.to_string().contains("directories deep"), "{error}");
    }
}
