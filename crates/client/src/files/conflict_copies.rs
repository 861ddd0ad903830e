//! Conflict copies: versions of files that were overwritten by a device that had not seen them.
//!
//! The last publication wins. But if a publication replaces content other than the content it was made from,
//! and that content differs from the new, the same edit keeps the replaced content: under a new inode of the
//! same principal that refers to it, named in a directory of that principal ([`Handle::conflict_copies`]).
//! That directory has no name itself, so programs never see it. No byte is copied, read or fetched, and the
//! overwritten file and its copy become visible together. All members can list and read the copies, and all
//! users who may write the principal's files can remove them.
//!
//! Invariants: at most [`CONFLICT_COPIES_MAX`] versions for each principal, of which the oldest is removed
//! first; names sort by time. A record was written by the device that overwrote the version and is only as
//! reliable as that device, as all attributes are.

use super::conflict_copy_id::ConflictCopyId;
use super::program_rules::inherit;
use super::space::seek_in;
use super::state::{content_digest, content_roots};
use super::{FileSystem, SeekTo, ino_of};
use crate::backend::ReadSet;
use crate::error::FsError;
use crate::tree::{Changes, View};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{Content, DeviceId, Entry, Handle, Inode, InodeKind, PrincipalId, file};
use holdfast_crypto::{decode, encode};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Most versions kept for one user or group.
pub const CONFLICT_COPIES_MAX: usize = 1000;
/// The attribute that makes an inode a conflict copy.
const ATTRIBUTE: &[u8] = b"holdfast.kept";
/// Format of the attribute's value.
const FORMAT: u16 = 1;
/// Longest path that is noted.
const PATH_BYTES_MAX: usize = 4096;
/// Most entries of one directory that are read: a hostile member may have made any number of them.
const LISTED_MAX: usize = 2 * CONFLICT_COPIES_MAX;
/// Most bytes that [`FileSystem::read_conflict_copy`] returns at once.
pub const PART_BYTES_MAX: usize = 1 << 20;

/// The attribute of a conflict copy: which file was overwritten, when, and by which device.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
struct CopyRecord {
    format: u16,
    /// The file that was overwritten.
    file: Handle,
    /// Its path, as known to the device that overwrote it.
    path: Vec<u8>,
    /// The device that wrote the version.
    writer: DeviceId,
    /// The device that overwrote it.
    by: DeviceId,
    /// When it was overwritten, in nanoseconds since 1970.
    at_ns: i64,
}

/// What is shown of a conflict copy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConflictCopy {
    /// The id that [`FileSystem::read_conflict_copy`] and [`FileSystem::drop_conflict_copies`] take.
    pub id: String,
    /// The file's path, as known to the device that overwrote it.
    pub path: String,
    /// The file's inode number.
    pub ino: u64,
    /// The user or group it belongs to.
    pub owner: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// When its content was last modified, as its writer declared.
    pub modified_ns: i64,
    /// The device that wrote it.
    pub written_by: String,
    /// When it was overwritten, as the device that overwrote it declared.
    pub overwritten_ns: i64,
    /// The device that overwrote it.
    pub overwritten_by: String,
}

/// Some bytes of a conflict copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConflictCopyPart {
    /// Identifies the content, so that parts of different contents are not combined.
    pub content: String,
    /// The size of the version.
    pub size: u64,
    /// Offset of the first byte; what lies before it is a hole. The size if there are no more bytes.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The device that overwrites a version, the time, and the path of the file.
#[derive(Clone, Debug)]
pub struct Overwrite {
    /// Path of the file, as known here.
    pub path: Vec<u8>,
    /// The device that overwrites.
    pub by: DeviceId,
    /// The present time, in nanoseconds since 1970.
    pub at_ns: i64,
}

/// Keeps the content that `file` has at present, as part of the edit that overwrites it. `None`: the owner
/// has put another inode in the place of the directory of conflict copies.
///
/// # Errors
/// Errors of the edit, or of the data of the directory of conflict copies.
pub fn keep_conflict_copy(
    changes: &mut dyn Changes,
    file: Handle,
    present: &Inode,
    how: &Overwrite,
) -> Result<Option<ConflictCopyId>, FsError> {
    let directory = Handle::conflict_copies(file.principal);
    match changes.inode(directory) {
        Ok(inode) if inode.kind == InodeKind::Directory => {
            let names = changes.entries(directory, None, CONFLICT_COPIES_MAX + 1)?;
            let excess = (names.len() + 1).saturating_sub(CONFLICT_COPIES_MAX);
            for (name, entry) in names.iter().take(excess) {
                forget(changes, directory, name, entry, how.at_ns)?;
            }
        }
        Ok(_) => return Ok(None),
        Err(FsError::NotFound) => {
            changes.set_inode(directory, Inode::new(InodeKind::Directory, 0o700, how.by, how.at_ns))?;
        }
        Err(error) => return Err(error),
    }
    let kept = changes.allocate(file.principal)?;
    let record = CopyRecord {
        format: FORMAT,
        file,
        path: how.path[..how.path.len().min(PATH_BYTES_MAX)].to_vec(),
        writer: present.writer,
        by: how.by,
        at_ns: how.at_ns,
    };
    let mut inode = Inode::new(InodeKind::File, 0o600, how.by, present.modified_ns);
    inode.changed_ns = present.changed_ns;
    inode.size = present.size;
    inode.content = present.content.clone();
    inherit(&present.xattrs, &mut inode);
    inode.xattrs.insert(ATTRIBUTE.to_vec(), encode(&record));
    changes.set_inode(kept, inode)?;
    let name = format!("{:016x}-{:010x}", how.at_ns.max(0), kept.number).into_bytes();
    let entry = Entry { handle: kept, kind: InodeKind::File };
    changes.set_entry(directory, &name, Some(entry), how.at_ns)?;
    Ok(Some(ConflictCopyId(kept)))
}

/// Removes a name from a directory of conflict copies, and also the inode if that is a conflict copy.
fn forget(
    changes: &mut dyn Changes,
    directory: Handle,
    name: &[u8],
    entry: &Entry,
    now_ns: i64,
) -> Result<(), FsError> {
    changes.set_entry(directory, name, None, now_ns)?;
    if entry.handle.principal != directory.principal {
        return Ok(());
    }
    match changes.inode(entry.handle) {
        Ok(inode) if record_of(&inode).is_some() => changes.remove_inode(entry.handle),
        Ok(_) | Err(FsError::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}

fn record_of(inode: &Inode) -> Option<CopyRecord> {
    let record: CopyRecord = decode(inode.xattrs.get(ATTRIBUTE)?).ok()?;
    (record.format == FORMAT && inode.kind == InodeKind::File).then_some(record)
}

impl FileSystem {
    /// Versions that were overwritten by a device that had not seen them, of all users and groups, oldest
    /// first.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Integrity`], [`FsError::Frozen`].
    pub fn conflict_copies(&self) -> Result<Vec<ConflictCopy>, FsError> {
        self.run(|| {
            let view = self.backend.fetch(ReadSet::default())?;
            let mut found = Vec::new();
            for principal in view.principals() {
                list(&*view, principal, &mut found)?;
            }
            found.sort_by_key(|version: &ConflictCopy| version.overwritten_ns);
            Ok(found)
        })
    }

    /// Reads some of a conflict copy: from `offset` on, the first bytes that are not a hole, up to
    /// [`PART_BYTES_MAX`].
    ///
    /// # Errors
    /// [`FsError::NotFound`]: the version does not exist any more; [`FsError::Invalid`]: not an id; errors of
    /// reading.
    pub fn read_conflict_copy(&self, id: &str, offset: u64) -> Result<ConflictCopyPart, FsError> {
        self.run(|| {
            let ConflictCopyId(handle) = id.parse()?;
            let inode = match self.backend.latest().inode(handle) {
                Err(FsError::NotFound) => self.backend.fetch(ReadSet::of(&[handle]))?.inode(handle)?,
                other => other?,
            };
            let record = record_of(&inode).ok_or(FsError::NotFound)?;
            let failed = |error| {
                let path = String::from_utf8_lossy(&record.path).into_owned();
                self.engine.content_error(handle, path, &inode, error)
            };
            let source = self.backend.source();
            let _pin = self.backend.pin(content_roots(&inode));
            let size = inode.size;
            let data = match &inode.content {
                Content::None => None,
                _ => seek_in(&*source, &inode, offset.min(size)..size, SeekTo::Data).map_err(failed)?,
            };
            let offset = data.unwrap_or(size);
            let bytes = file::read(&*source, &inode, offset, PART_BYTES_MAX).map_err(failed)?;
            Ok(ConflictCopyPart { content: content_digest(&inode).to_string(), size, offset, bytes })
        })
    }

    /// Removes conflict copies: all of them, or none if one does not exist.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::Invalid`]: not an id; [`FsError::Access`]: another owner's.
    pub fn drop_conflict_copies(&self, ids: &[String]) -> Result<(), FsError> {
        self.run(|| {
            self.may_change()?;
            let ids = ids.iter().map(|id| id.parse()).collect::<Result<Vec<ConflictCopyId>, FsError>>()?;
            let now_ns = super::now_ns();
            self.edit(move |changes| {
                for ConflictCopyId(handle) in &ids {
                    let directory = Handle::conflict_copies(handle.principal);
                    if !changes.may_write(handle.principal) {
                        let whose = format!("the version belongs to {}", handle.principal);
                        return Err(FsError::Access(whose));
                    }
                    let names = changes.entries(directory, None, LISTED_MAX)?;
                    let found = names.iter().find(|(_, entry)| entry.handle == *handle);
                    let (name, entry) = found.ok_or(FsError::NotFound)?;
                    forget(changes, directory, name, entry, now_ns)?;
                }
                Ok(())
            })?;
            self.backend.flush_commits()
        })
    }
}

fn list(view: &dyn View, principal: PrincipalId, found: &mut Vec<ConflictCopy>) -> Result<(), FsError> {
    let names = match view.entries(Handle::conflict_copies(principal), None, LISTED_MAX) {
        Err(FsError::NotFound | FsError::NotDirectory) => return Ok(()),
        other => other?,
    };
    for (_, entry) in names.iter().filter(|(_, entry)| entry.handle.principal == principal) {
        let inode: Arc<Inode> = match view.inode(entry.handle) {
            Err(FsError::NotFound) => continue,
            other => other?,
        };
        let Some(record) = record_of(&inode) else { continue };
        found.push(ConflictCopy {
            id: ConflictCopyId(entry.handle).to_string(),
            path: String::from_utf8_lossy(&record.path).into_owned(),
            ino: ino_of(record.file).0,
            owner: view.name_of(principal),
            bytes: inode.size,
            modified_ns: inode.modified_ns,
            written_by: view.name_of(PrincipalId::Device(record.writer)),
            overwritten_ns: record.at_ns,
            overwritten_by: view.name_of(PrincipalId::Device(record.by)),
        });
    }
    Ok(())
}
