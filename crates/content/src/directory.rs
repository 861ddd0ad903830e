//! Directories: live maps from names to handles.

use crate::error::{ContentError, Malformed, Misuse};
use crate::{
    BlockSource, Change, Handle, InodeKind, Listing, LiveMap, Lookup, OperationStatuses, PrincipalId, Tag,
    Value,
};
use borsh::{BorshDeserialize, BorshSerialize};
use std::ops::Bound;

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// A directory entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Entry {
    /// The file.
    pub handle: Handle,
    /// The inode's kind, so that a listing needs no inode. Only a hint: the inode decides.
    pub kind: InodeKind,
}

impl Entry {
    /// The entry as a map value.
    pub fn to_value(&self) -> Value {
        Value::plain(holdfast_crypto::encode(self))
    }

    /// Decodes a map value.
    ///
    /// # Errors
    /// [`ContentError::Malformed`]: it is no entry, or refers to `Members`, which has no files.
    pub fn from_value(value: &Value) -> Result<Entry, ContentError> {
        let malformed = |why: Malformed| why.at("directory entry", None);
        if !value.references.is_empty() {
            return Err(malformed(Malformed::ReferenceUnused(value.references.len())));
        }
        let entry: Entry =
            holdfast_crypto::decode(&value.bytes).map_err(|error| malformed(Malformed::Rule(error.why)))?;
        if entry.handle.principal == PrincipalId::Members || entry.handle.number == 0 {
            return Err(malformed(Malformed::Rule("its handle names no file".into())));
        }
        Ok(entry)
    }
}

/// Checks a name: 1 to 255 bytes, no `/` or NUL, neither `.` nor `..`.
///
/// # Errors
/// [`Misuse::BadName`].
pub fn check_name(name: &[u8]) -> Result<(), Misuse> {
    if is_name(name) { Ok(()) } else { Err(Misuse::BadName(String::from_utf8_lossy(name).into_owned())) }
}

fn is_name(name: &[u8]) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
        && name != b"."
        && name != b".."
}

/// The change that sets the entry of a name, or with `None` removes it.
///
/// # Errors
/// [`Misuse::BadName`].
pub fn change(name: &[u8], entry: Option<&Entry>, tag: Option<Tag>) -> Result<Change, Misuse> {
    check_name(name)?;
    Ok(Change { key: name.to_vec(), value: entry.map(Entry::to_value), tag })
}

/// The entry of `name`; `None` for a name that no directory may have.
///
/// # Errors
/// [`ContentError`]: a node could not be fetched, or something is malformed.
pub fn lookup(
    source: &dyn BlockSource,
    statuses: &dyn OperationStatuses,
    directory: &LiveMap,
    name: &[u8],
) -> Result<Lookup<Entry>, ContentError> {
    if !is_name(name) {
        return Ok(Lookup { value: None, unsettled: None });
    }
    directory.get(source, statuses, name)?.try_map(|value| Entry::from_value(&value))
}

/// At most `limit` entries after the name `after` (from the first for `None`), in byte order of name.
///
/// # Errors
/// [`ContentError`]: a node could not be fetched, or an entry or a name is malformed.
pub fn list(
    source: &dyn BlockSource,
    statuses: &dyn OperationStatuses,
    directory: &LiveMap,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Listing<Entry>, ContentError> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let Listing { entries, unsettled, complete } = directory.range(source, statuses, from, limit)?;
    let entries = entries
        .into_iter()
        .map(|(name, value)| {
            if !is_name(&name) {
                let why = format!("{:?} is not a valid name", String::from_utf8_lossy(&name));
                return Err(Malformed::Rule(why).at("directory", None));
            }
            Ok((name, Entry::from_value(&value)?))
        })
        .collect::<Result<_, ContentError>>()?;
    Ok(Listing { entries, unsettled, complete })
}
