//! Writes EROFS, the kernel's read-only file system (Documentation/filesystems/erofs.rst,
//! fs/erofs/erofs_fs.h): the part of its format that a tree without file content needs, uncompressed.
//!
//! ```text
//! block 0         1024 bytes of nothing | superblock, 128 bytes
//! slabs           inodes: 64 bytes | attributes | chunk indexes, or the end of what it holds, which crosses no block
//! blocks          whole blocks of directories, long targets of links
//! ```
//!
//! An inode's number is its offset in the image, in units of 32 bytes. The root's number has 16 bits, so the
//! root is placed first. A directory's position is fixed before its names have numbers; its blocks are
//! written as they fill up. Memory does not grow with the tree.

use holdfast_content::InodeKind;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Most bytes of a last, partial block of content that are stored with the inode.
const INLINE_BYTES_MAX: usize = 2048;
/// Inodes are placed in slabs of this size, or larger.
const SLAB_BYTES: u64 = 64 << 10;
/// Units of an inode's number.
const NID_BYTES: u64 = 32;
const INODE_BYTES: usize = 64;
const DIRENT_BYTES: usize = 12;
const SUPERBLOCK_AT: u64 = 1024;
const MAGIC: u32 = 0xe0f5_e1e2;
/// Feature: the time of an inode is that of the last change of its content.
const COMPAT_MTIME: u32 = 0x2;
/// Feature: files may be made of chunks.
const INCOMPAT_CHUNKED_FILE: u32 = 0x4;
/// Layouts of an inode's content (0, 2, 4), above the bit that says that the inode has 64 bytes.
const FLAT_PLAIN: u16 = 1;
const FLAT_INLINE: u16 = 2 << 1 | 1;
const CHUNK_BASED: u16 = 4 << 1 | 1;
/// The index of a chunk that is a hole.
const NO_CHUNK: [u8; 4] = [0xff; 4];
/// A chunk has at most 2^31 blocks.
const CHUNK_BITS_MAX: u32 = 31;
/// The numbers of attribute namespaces.
const NAMESPACES: [(&[u8], u8); 2] = [(b"user.", 1), (b"trusted.", 4)];

const _: () = assert!(INODE_BYTES + INLINE_BYTES_MAX + NID_BYTES as usize <= BLOCK_BYTES);

/// The number of an inode in the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nid(u64);

/// The attributes of an inode.
#[derive(Clone, Debug)]
pub struct Head {
    /// The kind of file.
    pub kind: InodeKind,
    /// Permission bits.
    pub mode: u32,
    /// The number of names.
    pub links: u32,
    /// When it was modified, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Extended attributes, as [`Attributes`] has them.
    pub attributes: Attributes,
}

/// Extended attributes, encoded.
#[derive(Clone, Default, Debug)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// Adds an attribute. Returns `false` if the format cannot represent it: its namespace has no number, or
    /// its name or value is too long.
    #[must_use]
    pub fn add(&mut self, name: &[u8], value: &[u8]) -> bool {
        let found = NAMESPACES.iter().find_map(|(space, number)| Some((name.strip_prefix(*space)?, *number)));
        let Some((rest, number)) = found.filter(|(rest, _)| !rest.is_empty()) else { return false };
        let (Ok(name_bytes), Ok(value_bytes)) = (u8::try_from(rest.len()), u16::try_from(value.len())) else {
            return false;
        };
        self.0.extend([name_bytes, number]);
        self.0.extend(value_bytes.to_le_bytes());
        self.0.extend(rest);
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        true
    }

    /// The attributes with their header of 12 bytes, and their count for the inode: units of 4 bytes after
    /// the header, plus one.
    fn encode(&self) -> Option<(Vec<u8>, u16)> {
        if self.0.is_empty() {
            return Some((Vec::new(), 0));
        }
        let count = u16::try_from(1 + self.0.len() / 4).ok()?;
        Some(([&[0; 12][..], &self.0].concat(), count))
    }
}

/// The content of an inode.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// Bytes: the content of a small file, or the target of a link.
    Bytes(&'a [u8]),
    /// A file of this size that is one hole.
    Hole(u64),
    /// A device node with this number; 0 for other special files.
    Device(u32),
}

/// An image that is being written.
pub struct Image {
    file: File,
    /// The offset of the next block.
    end: u64,
    /// The offset of the next inode, and the end of its slab.
    slab: std::ops::Range<u64>,
    inodes: u64,
    root: Option<Nid>,
}

/// The space that names take in a directory: the number of full blocks, and bytes of the last one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Packing {
    whole: u64,
    last: usize,
}

impl Packing {
    /// Adds a name. Returns whether it begins another block.
    pub fn add(&mut self, name: &[u8]) -> bool {
        let bytes = DIRENT_BYTES + name.len();
        let begins = self.last + bytes > BLOCK_BYTES;
        if begins {
            (self.whole, self.last) = (self.whole + 1, 0);
        }
        self.last += bytes;
        begins
    }
}

/// A directory that has its position, and to which names are added.
pub struct Directory {
    nid: Nid,
    packing: Packing,
    /// The offsets of its first full block and of its last, partial one.
    blocks: u64,
    last: u64,
    filled: Packing,
    names: Vec<(Vec<u8>, Nid, u8)>,
}

impl Directory {
    /// The number of the inode.
    pub fn nid(&self) -> Nid {
        self.nid
    }
}

fn too_large(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the image has no way to say {what}"))
}

impl Image {
    /// Begins an image in an empty file.
    pub fn new(file: File) -> Image {
        Image { file, end: BLOCK_BYTES as u64, slab: 0..0, inodes: 0, root: None }
    }

    /// The image file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reserves consecutive blocks; returns the offset of the first.
    fn blocks(&mut self, count: u64) -> io::Result<u64> {
        let at = self.end;
        self.end += count * BLOCK_BYTES as u64;
        match self.end / BLOCK_BYTES as u64 {
            0..=0xffff_fffe => Ok(at),
            _ => Err(too_large("more than 16 TiB")),
        }
    }

    /// Reserves `head` bytes followed by `tail` bytes that lie within one block.
    fn place(&mut self, head: usize, tail: usize) -> io::Result<u64> {
        let fit = |at: u64| {
            let at = at.next_multiple_of(NID_BYTES);
            let tail_at = at + head as u64;
            let block = BLOCK_BYTES as u64;
            let crosses = tail > 0 && tail_at / block != (tail_at + tail as u64 - 1) / block;
            // Moves on until the tail begins with a block, or shortly after.
            if crosses {
                (at + (tail_at.next_multiple_of(block) - tail_at)).next_multiple_of(NID_BYTES)
            } else {
                at
            }
        };
        let bytes = (head + tail) as u64;
        let mut at = fit(self.slab.start);
        if at + bytes > self.slab.end {
            let need = (bytes + 2 * BLOCK_BYTES as u64).next_multiple_of(BLOCK_BYTES as u64).max(SLAB_BYTES);
            let begin = self.blocks(need / BLOCK_BYTES as u64)?;
            // The slab before is extended if it ends here.
            let start = if self.slab.end == begin { self.slab.start } else { begin };
            self.slab = start..begin + need;
            at = fit(start);
        }
        self.slab.start = at + bytes;
        Ok(at)
    }

    /// Writes an inode.
    fn inode(&mut self, head: &Head, layout: u16, size: u64, union: u32, tail: &[u8]) -> io::Result<Nid> {
        let (attributes, count) = head.attributes.encode().ok_or_else(|| too_large("so many attributes"))?;
        let at = self.place(INODE_BYTES + attributes.len(), tail.len())?;
        self.inode_at(at, head, layout, size, union, (&attributes, count), tail)?;
        Ok(Nid(at / NID_BYTES))
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    fn inode_at(
        &mut self,
        at: u64,
        head: &Head,
        layout: u16,
        size: u64,
        union: u32,
        (attributes, count): (&[u8], u16),
        tail: &[u8],
    ) -> io::Result<()> {
        self.inodes += 1;
        let mut bytes = Vec::with_capacity(INODE_BYTES + attributes.len() + tail.len());
        bytes.extend(layout.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend((type_bits(head.kind) | (head.mode & 0o7777) as u16).to_le_bytes());
        bytes.extend([0; 2]);
        bytes.extend(size.to_le_bytes());
        bytes.extend(union.to_le_bytes());
        bytes.extend((self.inodes as u32).to_le_bytes());
        // Owner and group are root.
        bytes.extend([0; 8]);
        bytes.extend(head.modified_ns.div_euclid(1_000_000_000).to_le_bytes());
        bytes.extend((head.modified_ns.rem_euclid(1_000_000_000) as u32).to_le_bytes());
        bytes.extend(head.links.to_le_bytes());
        bytes.extend([0; 16]);
        debug_assert_eq!(bytes.len(), INODE_BYTES);
        bytes.extend(attributes);
        bytes.extend(tail);
        self.file.write_all_at(&bytes, at)
    }

    /// Adds a file that is not a directory.
    ///
    /// # Errors
    /// The disk's; or something is larger than the format allows.
    pub fn add(&mut self, head: &Head, body: Body<'_>) -> io::Result<Nid> {
        match body {
            Body::Bytes([]) => self.inode(head, FLAT_PLAIN, 0, 0, &[]),
            Body::Bytes(bytes) if bytes.len() <= INLINE_BYTES_MAX => {
                self.inode(head, FLAT_INLINE, bytes.len() as u64, 0, bytes)
            }
            Body::Bytes(bytes) => {
                let at = self.blocks(bytes.len().div_ceil(BLOCK_BYTES) as u64)?;
                self.file.write_all_at(bytes, at)?;
                self.inode(head, FLAT_PLAIN, bytes.len() as u64, (at / BLOCK_BYTES as u64) as u32, &[])
            }
            Body::Hole(0) => self.inode(head, FLAT_PLAIN, 0, 0, &[]),
            Body::Hole(size) => {
                let block_bits = BLOCK_BYTES.trailing_zeros();
                let bits = (64 - (size - 1).leading_zeros()).clamp(block_bits, block_bits + CHUNK_BITS_MAX);
                // At most a million, for a file of 2^63 bytes.
                let chunks = size.div_ceil(1 << bits);
                let indexes = NO_CHUNK.repeat(chunks as usize);
                let union = bits - block_bits;
                let (attributes, count) =
                    head.attributes.encode().ok_or_else(|| too_large("so many attributes"))?;
                // Chunk indexes may cross blocks.
                let at = self.place(INODE_BYTES + attributes.len() + indexes.len(), 0)?;
                self.inode_at(at, head, CHUNK_BASED, size, union, (&attributes, count), &indexes)?;
                Ok(Nid(at / NID_BYTES))
            }
            Body::Device(number) => self.inode(head, FLAT_PLAIN, 0, number, &[]),
        }
    }

    /// Gives a directory its position. `packing` is that of all its names in their order, including `.` and
    /// `..`. The first directory is the root.
    ///
    /// # Errors
    /// As [`Image::add`].
    pub fn begin_directory(&mut self, head: &Head, packing: Packing) -> io::Result<Directory> {
        let is_inline = packing.last <= INLINE_BYTES_MAX;
        let tail = vec![0; if is_inline { packing.last } else { 0 }];
        let (attributes, count) = head.attributes.encode().ok_or_else(|| too_large("so many attributes"))?;
        // The inode is placed before the directory's blocks: the root may have many, and its number must be
        // small.
        let at = self.place(INODE_BYTES + attributes.len(), tail.len())?;
        let whole = packing.whole + u64::from(!is_inline);
        let blocks = if whole > 0 { self.blocks(whole)? } else { 0 };
        let last = match is_inline {
            true => at + (INODE_BYTES + attributes.len()) as u64,
            false => blocks + packing.whole * BLOCK_BYTES as u64,
        };
        let layout = if is_inline { FLAT_INLINE } else { FLAT_PLAIN };
        let size = packing.whole * BLOCK_BYTES as u64 + packing.last as u64;
        let union = (blocks / BLOCK_BYTES as u64) as u32;
        self.inode_at(at, head, layout, size, union, (&attributes, count), &tail)?;
        let nid = Nid(at / NID_BYTES);
        self.root.get_or_insert(nid);
        Ok(Directory { nid, packing, blocks, last, filled: Packing::default(), names: Vec::new() })
    }

    /// Adds the next name, in order of bytes.
    ///
    /// # Errors
    /// As [`Image::add`].
    pub fn name(&self, directory: &mut Directory, name: &[u8], nid: Nid, kind: InodeKind) -> io::Result<()> {
        if directory.filled.add(name) {
            self.write_names(
                directory,
                directory.blocks + (directory.filled.whole - 1) * BLOCK_BYTES as u64,
            )?;
        }
        directory.names.push((name.to_vec(), nid, type_number(kind)));
        Ok(())
    }

    /// Ends a directory, once all its names have been added.
    ///
    /// # Errors
    /// As [`Image::add`].
    pub fn end_directory(&self, mut directory: Directory) -> io::Result<()> {
        if directory.filled != directory.packing {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a directory's names are others than before",
            ));
        }
        let last = directory.last;
        self.write_names(&mut directory, last)
    }

    fn write_names(&self, directory: &mut Directory, at: u64) -> io::Result<()> {
        let names = std::mem::take(&mut directory.names);
        let mut name_at = names.len() * DIRENT_BYTES;
        let mut bytes = Vec::with_capacity(BLOCK_BYTES);
        for (name, nid, kind) in &names {
            bytes.extend(nid.0.to_le_bytes());
            bytes.extend((name_at as u16).to_le_bytes());
            bytes.extend([*kind, 0]);
            name_at += name.len();
        }
        names.iter().for_each(|(name, ..)| bytes.extend(name));
        self.file.write_all_at(&bytes, at)
    }

    /// Completes the image. `uuid` distinguishes it from others.
    ///
    /// # Errors
    /// As [`Image::add`].
    pub fn finish(self, uuid: [u8; 16]) -> io::Result<File> {
        let root = self.root.and_then(|root| u16::try_from(root.0).ok());
        let root = root.ok_or_else(|| too_large("where its root is"))?;
        let mut bytes = Vec::with_capacity(128);
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(COMPAT_MTIME.to_le_bytes());
        bytes.extend([BLOCK_BYTES.trailing_zeros() as u8, 0]);
        bytes.extend(root.to_le_bytes());
        bytes.extend(self.inodes.to_le_bytes());
        // The time of creation is always zero, so that the image is the same each time.
        bytes.extend([0; 12]);
        bytes.extend(((self.end / BLOCK_BYTES as u64) as u32).to_le_bytes());
        // Inodes are counted from block 0; there are no shared attributes.
        bytes.extend([0; 8]);
        bytes.extend(uuid);
        bytes.extend(b"holdfast\0\0\0\0\0\0\0\0");
        bytes.extend(INCOMPAT_CHUNKED_FILE.to_le_bytes());
        bytes.resize(128, 0);
        self.file.write_all_at(&bytes, SUPERBLOCK_AT)?;
        self.file.set_len(self.end)?;
        Ok(self.file)
    }
}

fn type_bits(kind: InodeKind) -> u16 {
    match kind {
        InodeKind::File => 0o100_000,
        InodeKind::Directory => 0o040_000,
        InodeKind::Symlink => 0o120_000,
        InodeKind::Fifo => 0o010_000,
        InodeKind::Socket => 0o140_000,
        InodeKind::CharDevice => 0o020_000,
        InodeKind::BlockDevice => 0o060_000,
    }
}

fn type_number(kind: InodeKind) -> u8 {
    match kind {
        InodeKind::File => 1,
        InodeKind::Directory => 2,
        InodeKind::CharDevice => 3,
        InodeKind::BlockDevice => 4,
        InodeKind::Fifo => 5,
        InodeKind::Socket => 6,
        InodeKind::Symlink => 7,
    }
}
