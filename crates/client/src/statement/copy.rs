//! Copies files of a branch into a new directory.
//!
//! Everything written was verified before. A file with a missing block is not written at all. Anything other
//! than files, directories and symbolic links is left out. Set-user-ID bits are dropped, since the copies
//! belong to the user who makes them.

use super::branch::{Branch, Version};
use holdfast_content::{Content, Inode, InodeKind, file};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Bytes copied at a time.
const STEP: usize = 1 << 20;

impl Branch {
    /// Copies the file at `parts`, of which `version` was found, to the same path below `to`; makes missing
    /// parent directories.
    ///
    /// # Errors
    /// A description: a block is missing, or the local disk has an error. The incomplete file is removed.
    pub fn copy_out(&self, parts: &[Vec<u8>], version: &Version, to: &Path) -> Result<(), String> {
        let path = parts.iter().fold(to.to_owned(), |path, part| path.join(OsStr::from_bytes(part)));
        let inode = self.base().inode(version.file).map_err(|error| error.to_string())?;
        let parent = path.parent().unwrap_or(to);
        let io = |error: std::io::Error| error.to_string();
        fs::create_dir_all(parent).map_err(io)?;
        match (&inode.content, inode.kind) {
            (_, InodeKind::Directory) => fs::create_dir_all(&path).map_err(io),
            (Content::Target(target), _) => symlink(OsStr::from_bytes(target), &path).map_err(io),
            (_, InodeKind::File) => {
                let written = self.copy_file(&inode, &path);
                if written.is_err() {
                    let _ = fs::remove_file(&path);
                }
                written
            }
            (_, kind) => Err(format!("a {kind:?} is not copied")),
        }
    }

    fn copy_file(&self, inode: &Inode, path: &Path) -> Result<(), String> {
        let io = |error: std::io::Error| error.to_string();
        let out = File::create_new(path).map_err(io)?;
        out.set_len(inode.size).map_err(io)?;
        match &inode.content {
            Content::Inline(bytes) => out.write_all_at(bytes, 0).map_err(io)?,
            Content::Extents(map) => {
                // Holes stay holes: a file may consist of one hole that is larger than any disk.
                let mut runs = Vec::new();
                map.visit(self.base().source(), 0..inode.size, &mut |offset, extent| {
                    runs.push((offset, u64::from(extent.length)));
                    Ok(true)
                })
                .map_err(|error| error.to_string())?;
                for (offset, length) in runs {
                    let end = offset.saturating_add(length).min(inode.size);
                    let mut at = offset;
                    while at < end {
                        let step = (end - at).min(STEP as u64) as usize;
                        let bytes = file::read(self.base().source(), inode, at, step)
                            .map_err(|error| error.to_string())?;
                        out.write_all_at(&bytes, at).map_err(io)?;
                        at += step as u64;
                    }
                }
            }
            _ => {}
        }
        let modified = UNIX_EPOCH + Duration::from_nanos(inode.modified_ns.max(0).unsigned_abs());
        out.set_permissions(fs::Permissions::from_mode(inode.mode & 0o777)).map_err(io)?;
        // A time that this file system cannot store is no reason to fail.
        let _ = out.set_modified(modified);
        out.sync_all().map_err(io)
    }

    /// Everything that has a name, at most `paths_max` of it: the path and the version.
    ///
    /// # Errors
    /// None: each directory that cannot be read is passed to `unread` with its path.
    pub fn everything(
        &self,
        paths_max: u64,
        unread: &mut dyn FnMut(PathBuf, String),
    ) -> Vec<(Vec<Vec<u8>>, Version)> {
        let mut found = Vec::new();
        let mut entered = BTreeSet::new();
        let mut stack = vec![(Vec::new(), holdfast_content::Handle::ROOT)];
        while let Some((path, directory)) = stack.pop() {
            if !entered.insert(directory) {
                continue;
            }
            let names = match self.names(directory, paths_max) {
                Ok(names) => names,
                Err(error) => {
                    unread(of_parts(&path), error.to_string());
                    continue;
                }
            };
            for (name, entry) in names {
                if found.len() as u64 >= paths_max {
                    unread(of_parts(&path), "there is more; this is where copying stopped".to_owned());
                    return found;
                }
                let path: Vec<Vec<u8>> = path.iter().cloned().chain([name]).collect();
                if entry.kind == InodeKind::Directory {
                    stack.push((path.clone(), entry.handle));
                }
                found.push((path, self.version(&entry)));
            }
        }
        found
    }
}

fn of_parts(parts: &[Vec<u8>]) -> PathBuf {
    parts.iter().map(|part| OsStr::from_bytes(part)).collect()
}
