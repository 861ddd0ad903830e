//! Finds files that are incomplete when blocks are lost: by path, with the device that last wrote them, since
//! that machine may still have what is missing.

use crate::statement::Branch;
use holdfast_content::{Content, Handle, InodeKind};
use holdfast_crypto::Digest;
use serde::Serialize;
use std::collections::{BTreeSet, HashSet};

/// Most names read of one directory.
const NAMES_MAX: u64 = u64::MAX;

/// What is lost of a file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossKind {
    /// So many bytes of its content.
    Bytes(u64),
    /// The map of its content, and so all its content.
    Content,
    /// The directory's names, and so everything in it.
    Names,
    /// Its inode, and so everything about it.
    Everything,
}

/// A file or directory that is incomplete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Loss {
    /// Path from the root, as text; invalid bytes are replaced.
    pub path: String,
    /// What of it is lost.
    pub lost: LossKind,
    /// The device that last wrote it, if its inode can be read.
    pub writer: Option<u32>,
}

/// The files in `branch` that are incomplete without the blocks `missing`, at most `most`; and whether these
/// are all.
pub fn losses(branch: &Branch, missing: &HashSet<Digest>, most: usize) -> (Vec<Loss>, bool) {
    let mut found = Vec::new();
    let mut entered = BTreeSet::new();
    let mut open: Vec<(Vec<String>, Handle)> = vec![(Vec::new(), Handle::ROOT)];
    if let Some((lost, writer)) = of(branch, Handle::ROOT, missing) {
        found.push(Loss { path: "/".to_owned(), lost, writer });
    }
    while let Some((path, directory)) = open.pop() {
        if !entered.insert(directory) {
            continue;
        }
        // An unreadable directory was reported when its name was found.
        let Ok(names) = branch.names(directory, NAMES_MAX) else { continue };
        for (name, entry) in names {
            let mut path = path.clone();
            path.push(String::from_utf8_lossy(&name).into_owned());
            if let Some((lost, writer)) = of(branch, entry.handle, missing) {
                if found.len() >= most {
                    return (found, false);
                }
                found.push(Loss { path: path.join("/"), lost, writer });
            }
            if entry.kind == InodeKind::Directory {
                open.push((path, entry.handle));
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    (found, true)
}

/// What is lost of a file, and which device wrote it.
fn of(branch: &Branch, file: Handle, missing: &HashSet<Digest>) -> Option<(LossKind, Option<u32>)> {
    let Ok(inode) = branch.base().inode(file) else { return Some((LossKind::Everything, None)) };
    let lost = match &inode.content {
        Content::Extents(map) => {
            let mut bytes = 0u64;
            let visited = map.visit(branch.base().source(), 0..u64::MAX, &mut |_, extent| {
                if missing.contains(&extent.reference.address) {
                    bytes += u64::from(extent.length);
                }
                Ok(true)
            });
            match visited {
                Ok(()) if bytes == 0 => None,
                Ok(()) => Some(LossKind::Bytes(bytes)),
                Err(_) => Some(LossKind::Content),
            }
        }
        Content::Directory(_) => branch.names(file, NAMES_MAX).is_err().then_some(LossKind::Names),
        _ => None,
    };
    Some((lost?, Some(inode.writer.0)))
}
