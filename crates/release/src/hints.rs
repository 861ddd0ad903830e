//! Hints: which blocks the look-up of a path needs, so that a server can send them all at once.
//!
//! A client walks a path from directory to directory, and in each from node to node. What it needs next it
//! learns only from what it has, and each step costs a round trip (in the paper, two for each name of a
//! path). A server that has hints can send the blocks of all steps at once, without interpreting what it
//! serves.
//!
//! ```text
//! hints      "HFHINTS1" | directories u32 | nodes u32 | directory... in order of key | node...
//! directory  key: first 16 bytes of the path's digest | number of its first node u32 | nodes u32 | skip u8
//! node       depth u8 | end: 23 bytes of its last name, after skip | key of the block, as in an index
//! ```
//!
//! A directory's path is its names, separated by slashes; the root's is empty. Its digest is under the
//! well-known key, in the domain of paths. Depth 0 is the directory's own inode, if that is a block of its
//! own; depth 1 is the top of its map, and so on. The nodes of a directory are sorted by depth and name.
//! Names shorter than the field end in zeroes. The last node of each depth has 0xff in place of a name,
//! because it also proves that a name does not exist. If all names of a directory share a long prefix, `skip`
//! is its length.
//!
//! Hints are not signed, like the index. With wrong ones a client gets blocks that it does not need.

use crate::index::{Key, key_of};
use holdfast_content::catalog::{self, CatalogEntry};
use holdfast_content::{BlockSource, ContentError, Inode, InodeKind, InodeSlot, MerkleMap, Reference};
use holdfast_crypto::{DigestKey, Domain};

/// The magic bytes of a hints file.
pub const MAGIC: &[u8; 8] = b"HFHINTS1";
/// Bytes before the first directory.
pub const FIXED_BYTES: usize = 8 + 4 + 4;
/// Bytes of a directory.
pub const DIRECTORY_BYTES: usize = 16 + 4 + 4 + 1;
/// Bytes of a node.
pub const NODE_BYTES: usize = 1 + END_BYTES + 16;
/// Bytes of a node's last name that are stored.
const END_BYTES: usize = 23;
/// The end of a directory's last node: after all names.
const LAST: [u8; END_BYTES] = [0xff; END_BYTES];
/// The largest depth: the directory's own inode, and 16 levels of its map.
const DEPTH_MAX: u8 = 17;
/// A shorter common prefix is not skipped, so that looking up a name that does not exist and has another
/// prefix mostly leads to the right node, too.
const SKIP_MIN: usize = 12;
/// How many names of a directory are listed at once.
const LISTED_MAX: usize = 4096;

/// Why bytes are not valid hints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("these are no hints of a release: {0}")]
pub struct BadHints(pub &'static str);

/// The key of a directory's path.
fn path_key(path: &[u8]) -> Key {
    key_of(&DigestKey::WELL_KNOWN.digest(Domain::ReleasePath, path))
}

/// The stored part of a name, padded with zeroes.
fn end_of(name: &[u8], skip: u8) -> [u8; END_BYTES] {
    let mut end = [0; END_BYTES];
    let name = name.get(usize::from(skip)..).unwrap_or_default();
    let length = name.len().min(END_BYTES);
    end[..length].copy_from_slice(&name[..length]);
    end
}

/// Makes the hints of the tree below `root`.
///
/// # Errors
/// [`ContentError`]: a block is unavailable or malformed.
pub fn make(source: &dyn BlockSource, root: &Reference) -> Result<Vec<u8>, ContentError> {
    let map = MerkleMap::new(source.digest_key());
    let mut directories: Vec<(Key, u32, u32, u8)> = Vec::new();
    let mut nodes: Vec<u8> = Vec::new();
    let mut waiting = vec![(Vec::new(), InodeSlot::Block(*root))];
    while let Some((path, slot)) = waiting.pop() {
        // The nodes found: depth, last name, and key.
        let mut found: Vec<(u8, Vec<u8>, Key)> = Vec::new();
        let inode = match slot {
            InodeSlot::Inline(inode) => inode,
            InodeSlot::Block(reference) => {
                found.push((0, Vec::new(), key_of(&reference.address)));
                Inode::load(source, &reference)?
            }
        };
        let top = catalog::directory_root(&inode)?;
        map.nodes(source, &top, &mut |depth, reference, last| {
            found.push((depth + 1, last.unwrap_or_default().to_vec(), key_of(&reference.address)));
        })?;
        // The sort is stable: nodes with the same last name stay in order.
        found.sort_by(|(a, a_last, _), (b, b_last, _)| (a, a_last).cmp(&(b, b_last)));
        let mut first: Option<Vec<u8>> = None;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let listed = catalog::list(source, &top, after.as_deref(), LISTED_MAX)?;
            let whole = listed.len() < LISTED_MAX;
            for (name, CatalogEntry { kind, slot, .. }) in listed {
                if kind == InodeKind::Directory {
                    let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
                    waiting.push(([&path, slash, &name].concat(), slot));
                }
                first.get_or_insert_with(|| name.clone());
                after = Some(name);
            }
            if whole {
                break;
            }
        }
        let (first, last) = (first.unwrap_or_default(), after.unwrap_or_default());
        let alike = first.iter().zip(&last).take_while(|(a, b)| a == b).count();
        let skip = if alike >= SKIP_MIN && first != last { alike as u8 } else { 0 };
        directories.push((path_key(&path), (nodes.len() / NODE_BYTES) as u32, found.len() as u32, skip));
        for (at, (depth, last, key)) in found.iter().enumerate() {
            let is_last = found.get(at + 1).is_none_or(|(next, ..)| next != depth);
            nodes.push(*depth);
            nodes.extend_from_slice(&if is_last { LAST } else { end_of(last, skip) });
            nodes.extend_from_slice(key);
        }
    }
    directories.sort_unstable();
    let mut bytes = MAGIC.to_vec();
    bytes.extend((directories.len() as u32).to_le_bytes());
    bytes.extend(((nodes.len() / NODE_BYTES) as u32).to_le_bytes());
    for (key, first, count, skip) in directories {
        bytes.extend_from_slice(&key);
        bytes.extend(first.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.push(skip);
    }
    bytes.extend(nodes);
    Ok(bytes)
}

/// The numbers of directories and nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// The number of directories.
    pub directories: u32,
    /// The number of nodes of all directories.
    pub nodes: u32,
}

impl Sizes {
    /// Reads the first [`FIXED_BYTES`].
    ///
    /// # Errors
    /// [`BadHints`].
    pub fn read(bytes: &[u8]) -> Result<Sizes, BadHints> {
        let fixed = bytes.first_chunk::<FIXED_BYTES>().ok_or(BadHints("they are cut short"))?;
        if fixed[..8] != MAGIC[..] {
            return Err(BadHints("they begin otherwise"));
        }
        let [a, b, c, d, e, f, g, h] = *fixed.last_chunk::<8>().expect("8 bytes");
        Ok(Sizes { directories: u32::from_le_bytes([a, b, c, d]), nodes: u32::from_le_bytes([e, f, g, h]) })
    }

    /// The offset of the first node.
    pub fn nodes_at(&self) -> u64 {
        FIXED_BYTES as u64 + u64::from(self.directories) * DIRECTORY_BYTES as u64
    }

    /// Bytes of the whole file.
    pub fn bytes(&self) -> u64 {
        self.nodes_at() + u64::from(self.nodes) * NODE_BYTES as u64
    }
}

/// The nodes of a directory.
struct Directory {
    first: u32,
    count: u32,
    skip: u8,
}

/// Hints, read from a file in pieces. `E` is the error of reading.
pub struct Hints<'a, E> {
    /// The numbers of directories and nodes.
    pub sizes: Sizes,
    /// The bytes of all directories: those between the first [`FIXED_BYTES`] and [`Sizes::nodes_at`].
    pub directories: &'a [u8],
    /// Reads the node with a number below [`Sizes::nodes`].
    pub node: &'a dyn Fn(u32) -> Result<[u8; NODE_BYTES], E>,
}

impl<E> Hints<'_, E> {
    /// The blocks that the look-up of `path` needs, according to the hints, from the root on.
    ///
    /// # Errors
    /// The error of reading a node.
    pub fn blocks_of(&self, path: &[u8]) -> Result<Vec<Key>, E> {
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        let mut keys = Vec::new();
        let mut way = Vec::with_capacity(path.len());
        for place in 0..=names.len() {
            let Some(directory) = self.directory(&path_key(&way)) else { break };
            let name = names.get(place).copied();
            self.choose(&directory, name, &mut keys)?;
            if let Some(name) = name {
                if !way.is_empty() {
                    way.push(b'/');
                }
                way.extend_from_slice(name);
            }
        }
        Ok(keys)
    }

    fn directory(&self, key: &Key) -> Option<Directory> {
        let (directories, _) = self.directories.as_chunks::<DIRECTORY_BYTES>();
        let at = directories.partition_point(|directory| directory[..16] < key[..]);
        let directory = directories.get(at).filter(|directory| directory[..16] == key[..])?;
        let number = |at: usize| u32::from_le_bytes(directory[at..at + 4].try_into().expect("4 bytes"));
        let (first, count) = (number(16), number(20));
        let within = first.checked_add(count)? <= self.sizes.nodes;
        within.then_some(Directory { first, count, skip: directory[24] })
    }

    /// Adds the nodes that lead to `name`; without a name, the first ones of the directory.
    fn choose(&self, directory: &Directory, name: Option<&[u8]>, keys: &mut Vec<Key>) -> Result<(), E> {
        let Directory { first, count, skip } = *directory;
        let wanted = name.map_or([0; END_BYTES], |name| end_of(name, skip));
        let depth_max = if name.is_some() { DEPTH_MAX } else { 1 };
        for depth in 0..=depth_max {
            // Finds the first node of this depth whose last name is the name or comes after it.
            let mut before = 0;
            let mut size = count;
            while size > 0 {
                let half = size / 2;
                let node = (self.node)(first + before + half)?;
                match (node[0], &node[1..=END_BYTES]) < (depth, &wanted[..]) {
                    true => {
                        before += half + 1;
                        size -= half + 1;
                    }
                    false => size = half,
                }
            }
            if before == count {
                break;
            }
            let node = (self.node)(first + before)?;
            if node[0] != depth {
                continue;
            }
            keys.push(*node.last_chunk().expect("16 bytes"));
            // If the stored part of its last name equals the name's, the name may also be in the next node.
            if node[1..=END_BYTES] == wanted && before + 1 < count {
                let next = (self.node)(first + before + 1)?;
                if next[0] == depth {
                    keys.push(*next.last_chunk().expect("16 bytes"));
                }
            }
        }
        Ok(())
    }
}
