//! The tree of a release, read through verified blocks.

use holdfast_content::catalog::{self, CatalogEntry};
use holdfast_content::{BlockSource, Content, ContentError, Inode, InodeKind, Misuse, Reference, file};
use std::sync::Arc;

/// Longest chain of symbolic links that is followed.
const LINKS_MAX: usize = 40;

/// The tree of a release, read from verified blocks.
#[derive(Clone)]
pub struct Tree {
    source: Arc<dyn BlockSource + Send + Sync>,
    root: Reference,
}

/// A file or directory in a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its attributes and content.
    pub inode: Arc<Inode>,
    /// The number that all its names share, if it has several.
    pub link: Option<u64>,
}

/// What a path leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathLookup {
    /// The path leads to a file or directory.
    Node(Node),
    /// The path leads to nothing: its parent provably has no such name, or is not a directory.
    Nothing,
    /// The path leads out of the tree, through a symbolic link that is absolute or leads above the root.
    Outside,
}

impl Tree {
    /// The tree below a root directory's inode.
    pub fn new(source: Arc<dyn BlockSource + Send + Sync>, root: Reference) -> Tree {
        Tree { source, root }
    }

    /// The reference to the root directory's inode.
    pub fn reference(&self) -> Reference {
        self.root
    }

    /// The source of the tree's blocks.
    pub fn source(&self) -> &Arc<dyn BlockSource + Send + Sync> {
        &self.source
    }

    /// The root directory.
    ///
    /// # Errors
    /// [`ContentError`].
    pub fn root(&self) -> Result<Node, ContentError> {
        let inode = Inode::load(&*self.source, &self.root)?;
        catalog::directory_root(&inode)?;
        Ok(Node { inode: Arc::new(inode), link: None })
    }

    /// The file with a name in a directory; `None` proves that there is no such name.
    ///
    /// # Errors
    /// [`ContentError`]: a block is unavailable or malformed, or `directory` is not a directory.
    pub fn child(&self, directory: &Node, name: &[u8]) -> Result<Option<Node>, ContentError> {
        let root = catalog::directory_root(&directory.inode)?;
        let Some(entry) = catalog::lookup(&*self.source, &root, name)? else { return Ok(None) };
        self.node(entry).map(Some)
    }

    /// The file of a directory entry.
    ///
    /// # Errors
    /// [`ContentError`].
    pub fn node(&self, entry: CatalogEntry) -> Result<Node, ContentError> {
        let link = entry.link;
        Ok(Node { inode: Arc::new(entry.into_inode(&*self.source)?), link })
    }

    /// At most `limit` names of a directory that come after `after`, in byte order.
    ///
    /// # Errors
    /// [`ContentError`].
    pub fn entries(
        &self,
        directory: &Node,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, CatalogEntry)>, ContentError> {
        let root = catalog::directory_root(&directory.inode)?;
        catalog::list(&*self.source, &root, after, limit)
    }

    /// Bytes of a file.
    ///
    /// # Errors
    /// [`ContentError`].
    pub fn read(&self, node: &Node, offset: u64, length: usize) -> Result<Vec<u8>, ContentError> {
        file::read(&*self.source, &node.inode, offset, length)
    }

    /// Follows a path and its symbolic links; a link at its end only if `follow`.
    ///
    /// # Errors
    /// [`ContentError`]; a loop of links is [`Misuse`].
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<PathLookup, ContentError> {
        let mut rest: Vec<Vec<u8>> = components(path);
        rest.reverse();
        let mut way = vec![self.root()?];
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == b".." {
                way.pop();
                if way.is_empty() {
                    return Ok(PathLookup::Outside);
                }
                continue;
            }
            let here = way.last().expect("the root is never left");
            if here.inode.kind != InodeKind::Directory {
                return Ok(PathLookup::Nothing);
            }
            let Some(found) = self.child(here, &name)? else { return Ok(PathLookup::Nothing) };
            match &found.inode.content {
                Content::Target(target) if follow || !rest.is_empty() => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Misuse::Rule("too many symbolic links in a row".into()).into());
                    }
                    if target.starts_with(b"/") {
                        return Ok(PathLookup::Outside);
                    }
                    rest.extend(components(target).into_iter().rev());
                }
                _ => way.push(found),
            }
        }
        Ok(PathLookup::Node(way.pop().expect("the root is never left")))
    }
}

/// The components of a path, without `.` and empty ones.
pub fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/');
    names.filter(|name| !matches!(name, [] | [b'.'])).map(<[u8]>::to_vec).collect()
}
