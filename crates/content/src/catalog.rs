//! Directories of releases: Merkle maps from names to inodes.
//!
//! A release never changes, so a name leads to its inode itself: small inodes are in the node that has the
//! name, and a listing with attributes is a range read. An inode with several names (hard links) is repeated
//! under each of them, with a number that they share.
//!
//! ```text
//! value   kind u8 | link: 0 u8, or 1 u8 and number u64 | inode slot
//! slot    0 u8 and the inode's body, with its references; or 1 u8 and one reference, to an inode block
//! ```
//!
//! What a release does not record is the same in every inode: no writer, a time of change equal to the time
//! of modification, directories without a change log. So a tree has exactly one form.

use crate::codec::Reader;
use crate::error::{ContentError, Malformed};
use crate::{
    BlockSink, BlockSource, Content, DeviceId, Inode, InodeKind, InodeSlot, KeyValue, MapRoot, MerkleMap,
    Misuse, Value, directory,
};
use std::ops::Bound;

/// The extended attribute that marks a directory as opaque: a listing then has only names that were looked up
/// before. It is not in the namespace of users, so programs do not see it.
pub const OPAQUE: &[u8] = b"holdfast.opaque";

/// The entry of a name in a release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CatalogEntry {
    /// The inode's kind, so that a listing needs no inode.
    pub kind: InodeKind,
    /// The number that all names of an inode share, if it has several.
    pub link: Option<u64>,
    /// The inode.
    pub slot: InodeSlot,
}

impl CatalogEntry {
    /// Encodes an entry; an inode that is not small is stored in a block of its own.
    ///
    /// # Errors
    /// [`ContentError::Misuse`] if the inode breaks a rule.
    pub fn value_of(
        sink: &mut dyn BlockSink,
        inode: &Inode,
        link: Option<u64>,
    ) -> Result<Value, ContentError> {
        check(inode, link).map_err(|why| Misuse::Rule(why.into()))?;
        let slot = InodeSlot::value_of(sink, inode)?;
        let mut bytes = vec![inode.kind as u8, u8::from(link.is_some())];
        bytes.extend(link.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(slot.bytes);
        Ok(Value { bytes, references: slot.references })
    }

    /// Reads a value of a catalog.
    ///
    /// # Errors
    /// [`ContentError::Malformed`].
    pub fn from_value(value: &Value) -> Result<CatalogEntry, ContentError> {
        let mut reader = Reader::new(&value.bytes, &[]);
        let mut head = || {
            let kind = reader.borsh::<InodeKind>()?;
            let link = match reader.flag("link flag")? {
                true => Some(reader.u64()?),
                false => None,
            };
            Ok((kind, link))
        };
        let (kind, link) = head().map_err(|why: Malformed| why.at("catalog entry", None))?;
        let rest = value.bytes[value.bytes.len() - reader.bytes_left()..].to_vec();
        let slot = InodeSlot::from_value(&Value { bytes: rest, references: value.references.clone() })?;
        if let InodeSlot::Inline(inode) = &slot {
            check_found(inode, kind, link)?;
        }
        Ok(CatalogEntry { kind, link, slot })
    }

    /// The inode, fetched if it has a block of its own.
    ///
    /// # Errors
    /// [`ContentError`]: the block could not be fetched or is malformed.
    pub fn into_inode(self, source: &dyn BlockSource) -> Result<Inode, ContentError> {
        let CatalogEntry { kind, link, slot } = self;
        let inode = slot.into_inode(source)?;
        check_found(&inode, kind, link)?;
        Ok(inode)
    }
}

/// The rules for every inode of a release.
fn check(inode: &Inode, link: Option<u64>) -> Result<(), &'static str> {
    let is_compact = match &inode.content {
        Content::Directory(map) => map.changes.is_empty(),
        _ => true,
    };
    match () {
        () if inode.writer != DeviceId(0) => Err("an inode of a release has no writer"),
        () if inode.changed_ns != inode.modified_ns => Err("an inode of a release has one time"),
        () if !is_compact => Err("a directory of a release has no change log"),
        () if link.is_some() != (inode.links > 1) => Err("the link count does not go with the names"),
        () if link.is_some() && inode.kind == InodeKind::Directory => Err("a directory has one name"),
        () => Ok(()),
    }
}

fn check_found(inode: &Inode, kind: InodeKind, link: Option<u64>) -> Result<(), ContentError> {
    let checked = match inode.kind == kind {
        true => check(inode, link),
        false => Err("the entry says another kind than the inode"),
    };
    checked.map_err(|why| Malformed::Rule(why.into()).at("catalog entry", None))
}

/// The root of a release's directory.
///
/// # Errors
/// [`ContentError`]: the inode is no directory, or not one of a release.
pub fn directory_root(inode: &Inode) -> Result<MapRoot, ContentError> {
    match &inode.content {
        Content::Directory(map) if map.changes.is_empty() => Ok(map.root),
        Content::Directory(_) => {
            Err(Malformed::Rule("a directory of a release has no change log".into()).at("directory", None))
        }
        _ => Err(Misuse::Rule(format!("a {:?} has no names", inode.kind)).into()),
    }
}

/// The entry of `name`; `None` for a name that no directory may have.
///
/// # Errors
/// [`ContentError`]: a node could not be fetched, or something is malformed.
pub fn lookup(
    source: &dyn BlockSource,
    root: &MapRoot,
    name: &[u8],
) -> Result<Option<CatalogEntry>, ContentError> {
    if directory::check_name(name).is_err() {
        return Ok(None);
    }
    let value = MerkleMap::new(source.digest_key()).get(source, root, name)?;
    value.as_ref().map(CatalogEntry::from_value).transpose()
}

/// At most `limit` entries after the name `after` (from the first for `None`), in byte order of name.
///
/// # Errors
/// [`ContentError`]: a node could not be fetched, or an entry or a name is malformed.
pub fn list(
    source: &dyn BlockSource,
    root: &MapRoot,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<(Vec<u8>, CatalogEntry)>, ContentError> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let found: Vec<KeyValue> = MerkleMap::new(source.digest_key()).range(source, root, from, limit)?;
    let entry = |(name, value): KeyValue| {
        if directory::check_name(&name).is_err() {
            let why = format!("{:?} is not a valid name", String::from_utf8_lossy(&name));
            return Err(Malformed::Rule(why).at("directory", None));
        }
        Ok((name, CatalogEntry::from_value(&value)?))
    };
    found.into_iter().map(entry).collect()
}
