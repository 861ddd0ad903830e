//! Inodes: attributes and content of one file.
//!
//! Invariants: the content fits the kind; every limit below holds. An inode has one encoding, and its
//! *i-hash* (SUNDR 3.3.1) is the address of that encoding as a block, whether it is a block of its own or
//! part of an i-table.
//!
//! ```text
//! format u8 = 1 | kind u8 | mode u16 | links u32 | size u64 | modified i64 | changed i64 | device number u32
//! | writer u32 | attribute count u16 | count x { name: length u8, bytes | value: length u32, bytes }
//! | content tag u8 | content
//! ```

use crate::codec::{FORMAT, Reader, Writer};
use crate::error::{ContentError, Malformed, within};
use crate::extent::FILE_BYTES_MAX;
use crate::live::misuse;
use crate::{Block, BlockKind, BlockSink, BlockSource, DeviceId, ExtentMap, InodeKind, LiveMap, Reference};
use holdfast_crypto::{Digest, DigestKey};
use std::collections::BTreeMap;

/// Most bytes of a file that are stored in its inode.
pub const INLINE_BYTES_MAX: usize = 256;
/// Longest target of a symbolic link, in bytes.
pub const TARGET_BYTES_MAX: usize = 4095;
/// Longest name of an extended attribute, in bytes.
pub const ATTRIBUTE_NAME_BYTES_MAX: usize = 255;
/// Most bytes that all extended attributes of a file may have, names and values.
pub const ATTRIBUTE_BYTES_MAX: usize = 64 * 1024;

/// An inode: one file, with its attributes and where its contents are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// The kind of file.
    pub kind: InodeKind,
    /// Permission bits, at most 0o7777.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of content, nanoseconds since 1970.
    pub modified_ns: i64,
    /// Time of the last change of content or attributes, nanoseconds since 1970.
    pub changed_ns: i64,
    /// Major and minor number of a device node; 0 otherwise.
    pub device_number: u32,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The device that wrote it last: a group-owned file's "owner" (SUNDR 4).
    pub writer: DeviceId,
    /// The contents.
    pub content: Content,
}

/// The contents of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Nothing, or nothing but hole.
    None,
    /// Bytes from offset 0, at most [`INLINE_BYTES_MAX`] and at most the size; the rest is hole.
    Inline(Vec<u8>),
    /// The extents of a regular file.
    Extents(ExtentMap),
    /// The entries of a directory.
    Directory(LiveMap),
    /// The target of a symbolic link: 1 to [`TARGET_BYTES_MAX`] bytes without NUL.
    Target(Vec<u8>),
}

impl Inode {
    /// A new, empty inode with one link.
    pub fn new(kind: InodeKind, mode: u32, writer: DeviceId, now_ns: i64) -> Inode {
        Inode {
            kind,
            mode: mode & 0o7777,
            links: 1,
            size: 0,
            modified_ns: now_ns,
            changed_ns: now_ns,
            device_number: 0,
            xattrs: BTreeMap::new(),
            writer,
            content: match kind {
                InodeKind::Directory => Content::Directory(LiveMap::EMPTY),
                _ => Content::None,
            },
        }
    }

    /// Checks every limit and that content and kind go together.
    ///
    /// # Errors
    /// [`Malformed`]: the first rule broken.
    pub fn check(&self) -> Result<(), Malformed> {
        within("mode", self.mode.into(), 0, 0o7777)?;
        within("size", self.size, 0, FILE_BYTES_MAX)?;
        let mut attribute_bytes = 0;
        for (name, value) in &self.xattrs {
            within("length of an attribute's name", name.len() as u64, 1, ATTRIBUTE_NAME_BYTES_MAX as u64)?;
            attribute_bytes += (name.len() + value.len()) as u64;
        }
        within("bytes of extended attributes", attribute_bytes, 0, ATTRIBUTE_BYTES_MAX as u64)?;
        if !matches!(self.kind, InodeKind::CharDevice | InodeKind::BlockDevice) && self.device_number != 0 {
            return Err(Malformed::Rule("only device nodes have a device number".into()));
        }
        match (&self.content, self.kind) {
            (Content::Inline(bytes), InodeKind::File) => {
                let most = self.size.min(INLINE_BYTES_MAX as u64);
                within("bytes in an inode", bytes.len() as u64, 0, most)
            }
            (Content::Extents(map), InodeKind::File) => map.check(),
            (Content::Directory(map), InodeKind::Directory) => map.check(),
            (Content::Target(target), InodeKind::Symlink) => {
                within("length of a link's target", target.len() as u64, 1, TARGET_BYTES_MAX as u64)?;
                match target.contains(&0) {
                    true => Err(Malformed::Rule("a link's target contains NUL".into())),
                    false => Ok(()),
                }
            }
            (Content::None, InodeKind::Directory | InodeKind::Symlink) => {
                Err(Malformed::Rule("a directory or link without content".into()))
            }
            (Content::None, _) => Ok(()),
            (_, kind) => Err(Malformed::Rule(format!("its content is not that of a {kind:?}"))),
        }
    }

    /// Body and references.
    ///
    /// # Errors
    /// [`ContentError::Misuse`] if the inode breaks a rule.
    pub fn encode(&self) -> Result<(Vec<u8>, Vec<Digest>), ContentError> {
        let writer = self.encode_whole()?;
        let addresses = writer.addresses();
        Ok((writer.bytes, addresses))
    }

    pub(crate) fn encode_whole(&self) -> Result<Writer, ContentError> {
        misuse(self.check())?;
        let mut writer = Writer::default();
        self.write(&mut writer);
        misuse(within("references", writer.references.len() as u64, 0, crate::REFERENCES_MAX as u64))?;
        misuse(within("bytes of an inode", writer.bytes.len() as u64, 0, crate::BODY_BYTES_MAX.into()))?;
        Ok(writer)
    }

    /// Decodes a body whose block has the given references.
    ///
    /// # Errors
    /// [`ContentError::Malformed`] if the bytes break a rule.
    pub fn decode(bytes: &[u8], references: &[Digest]) -> Result<Inode, ContentError> {
        let mut reader = Reader::new(bytes, references);
        Inode::read(&mut reader)
            .and_then(|inode| reader.finish().map(|()| inode))
            .map_err(|why| why.at("inode", None))
    }

    /// The inode as a block.
    ///
    /// # Errors
    /// [`ContentError::Misuse`] if the inode breaks a rule.
    pub fn to_block(&self, key: &DigestKey) -> Result<Block, ContentError> {
        let (bytes, references) = self.encode()?;
        Ok(Block::new(key, BlockKind::Inode, references, bytes))
    }

    /// The i-hash: the address of the inode as a block.
    ///
    /// # Errors
    /// [`ContentError::Misuse`] if the inode breaks a rule.
    pub fn ihash(&self, key: &DigestKey) -> Result<Digest, ContentError> {
        Ok(self.to_block(key)?.reference().address)
    }

    /// Stores the inode as a block of its own.
    ///
    /// # Errors
    /// [`ContentError::Misuse`] if the inode breaks a rule.
    pub fn store(&self, sink: &mut dyn BlockSink) -> Result<Reference, ContentError> {
        let block = self.to_block(&sink.digest_key())?;
        Ok(sink.put(block))
    }

    /// Fetches an inode that has a block of its own.
    ///
    /// # Errors
    /// [`ContentError`]: the block could not be fetched or is malformed.
    pub fn load(source: &dyn BlockSource, reference: &Reference) -> Result<Inode, ContentError> {
        let block = source.fetch(reference, BlockKind::Inode)?;
        Inode::decode(block.body(), block.references()).map_err(|error| match error {
            ContentError::Malformed { what, why, .. } => why.at(what, Some(reference.address)),
            other => other,
        })
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(FORMAT);
        writer.u8(self.kind as u8);
        writer.u16(self.mode as u16);
        writer.u32(self.links);
        writer.u64(self.size);
        writer.u64(self.modified_ns as u64);
        writer.u64(self.changed_ns as u64);
        writer.u32(self.device_number);
        writer.u32(self.writer.0);
        writer.u16(self.xattrs.len() as u16);
        for (name, value) in &self.xattrs {
            writer.u8(name.len() as u8);
            writer.bytes.extend_from_slice(name);
            writer.bytes32(value);
        }
        match &self.content {
            Content::None => writer.u8(0),
            Content::Inline(bytes) => {
                writer.u8(1);
                writer.bytes16(bytes);
            }
            Content::Extents(map) => {
                writer.u8(2);
                map.write(writer);
            }
            Content::Directory(map) => {
                writer.u8(3);
                map.write(writer);
            }
            Content::Target(target) => {
                writer.u8(4);
                writer.bytes16(target);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Inode, Malformed> {
        reader.format()?;
        let kind = match reader.u8()? {
            1 => InodeKind::File,
            2 => InodeKind::Directory,
            3 => InodeKind::Symlink,
            4 => InodeKind::Fifo,
            5 => InodeKind::Socket,
            6 => InodeKind::CharDevice,
            7 => InodeKind::BlockDevice,
            found => return Err(Malformed::UnknownVariant { what: "inode kind", found: found.into() }),
        };
        let mode = reader.u16()?.into();
        let links = reader.u32()?;
        let size = reader.u64()?;
        let modified_ns = reader.u64()? as i64;
        let changed_ns = reader.u64()? as i64;
        let device_number = reader.u32()?;
        let writer = DeviceId(reader.u32()?);
        let mut xattrs: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for _ in 0..reader.u16()? {
            let length = reader.u8()?;
            let name = reader.take(length.into())?;
            let value = reader.bytes32()?;
            if xattrs.last_key_value().is_some_and(|(last, _)| last.as_slice() >= name) {
                return Err(Malformed::NotAscending("attributes"));
            }
            xattrs.insert(name.to_vec(), value.to_vec());
        }
        let content = match reader.u8()? {
            0 => Content::None,
            1 => Content::Inline(reader.bytes16()?.to_vec()),
            2 => Content::Extents(ExtentMap::read(reader)?),
            3 => Content::Directory(LiveMap::read(reader)?),
            4 => Content::Target(reader.bytes16()?.to_vec()),
            found => return Err(Malformed::UnknownVariant { what: "content", found: found.into() }),
        };
        let inode = Inode {
            kind,
            mode,
            links,
            size,
            modified_ns,
            changed_ns,
            device_number,
            xattrs,
            writer,
            content,
        };
        inode.check()?;
        Ok(inode)
    }
}
