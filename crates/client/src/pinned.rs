//! Pins: keeps a file or a tree of a writable file system in the persistent cache.

use crate::engine::Engine;
use crate::error::FsError;
use crate::store::PinningSource;
use crate::store::pins::PinError;
use crate::tree::{Base, ReadError, TableCache};
use holdfast_content::{Handle, InodeKind};
use std::sync::Arc;

/// Number of names that are read at once.
const PAGE: usize = 1024;

/// Why a path cannot be pinned.
#[derive(Debug, thiserror::Error)]
pub enum PinPathError {
    /// Nothing has this name.
    #[error("no such file or directory")]
    NotFound,
    /// The cache cannot hold the pin.
    #[error(transparent)]
    Cache(#[from] PinError),
    /// A file or directory could not be read.
    #[error("{0}")]
    Read(String),
    /// No view of the file system could be had.
    #[error(transparent)]
    FileSystem(#[from] FsError),
    /// In every view, operations of other devices were pending.
    #[error("others write without a pause; try again")]
    NeverAtRest,
    /// The caller interrupted the call.
    #[error("called off")]
    CalledOff,
}

/// Puts all files that `path` leads to (from the root, names separated by `/`) under a pin, as they are now.
/// `told` is called for each file, and returns whether to continue. Returns the number of files.
///
/// # Errors
/// [`PinPathError`]; files that were put under the pin before it stay there.
pub fn pin_path(
    engine: &Engine,
    source: &Arc<PinningSource>,
    path: &[u8],
    told: &mut dyn FnMut(u64) -> bool,
) -> Result<u64, PinPathError> {
    let base = engine.at_rest()?.ok_or(PinPathError::NeverAtRest)?;
    // The same view, read through the pin.
    let base = Base::new(
        base.view.clone(),
        base.membership.clone(),
        base.me,
        source.clone(),
        Arc::new(TableCache::default()),
    );
    walk(&base, source, path, told).map_err(|error| match (source.failure(), error) {
        (Some(failure), _) => failure.into(),
        (None, Walk::Read(ReadError::NotFound | ReadError::NotDirectory)) => PinPathError::NotFound,
        (None, Walk::Read(error)) => PinPathError::Read(error.to_string()),
        (None, Walk::CalledOff) => PinPathError::CalledOff,
    })
}

enum Walk {
    Read(ReadError),
    CalledOff,
}

impl<E: Into<ReadError>> From<E> for Walk {
    fn from(error: E) -> Walk {
        Walk::Read(error.into())
    }
}

fn walk(
    base: &Base,
    source: &PinningSource,
    path: &[u8],
    told: &mut dyn FnMut(u64) -> bool,
) -> Result<u64, Walk> {
    let mut at = Handle::ROOT;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        at = base.entry(at, name)?.ok_or(ReadError::NotFound)?.handle;
    }
    let mut files = 0;
    // A directory has one name, so this ends; but a hostile writer may have given it several.
    let mut seen = std::collections::HashSet::new();
    let mut waiting = vec![at];
    while let Some(file) = waiting.pop() {
        if !seen.insert(file) {
            continue;
        }
        let inode = match base.inode(file) {
            // The name's file was removed by its owner.
            Err(ReadError::NotFound) if file != at => continue,
            other => other?,
        };
        if inode.kind == InodeKind::Directory {
            let mut after: Option<Vec<u8>> = None;
            loop {
                let (entries, complete) = base.entries(file, after.as_deref(), PAGE)?;
                waiting.extend(entries.iter().map(|(_, entry)| entry.handle));
                match entries.into_iter().next_back() {
                    Some((name, _)) if !complete => after = Some(name),
                    _ => break,
                }
            }
        } else {
            source.read_content(&inode)?;
            files += 1;
        }
        if !told(files) {
            return Err(Walk::CalledOff);
        }
    }
    Ok(files)
}
