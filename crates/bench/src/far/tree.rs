//! Trees of files: copied, read, compared.

use anyhow::Context;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The number of threads that copy files where no time is measured.
const AT_ONCE: usize = 8;

/// Paths of the files below a directory, relative to it, in order.
pub(super) fn files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    fn walk(root: &Path, below: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
        let folder = root.join(below);
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            // As programs do that show more than names.
            let kind = entry.metadata()?.file_type();
            if kind.is_dir() {
                walk(root, &path, found)?;
            } else if kind.is_file() {
                found.push(path);
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    walk(root, Path::new(""), &mut found)?;
    found.sort();
    Ok(found)
}

/// Copies all files, many at once.
pub(super) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let all = files(from)?;
    fs::create_dir_all(to)?;
    for folder in all.iter().filter_map(|path| path.parent()) {
        fs::create_dir_all(to.join(folder))?;
    }
    std::thread::scope(|scope| {
        let part = all.len().div_ceil(AT_ONCE).max(1);
        let workers: Vec<_> = all
            .chunks(part)
            .map(|part| {
                scope.spawn(move || {
                    part.iter().try_for_each(|path| write(&to.join(path), &fs::read(from.join(path))?))
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
    })
}

/// Makes all files an hour old.
pub(super) fn age(root: &Path) -> anyhow::Result<()> {
    let then = SystemTime::now() - Duration::from_secs(3600);
    files(root)?.iter().try_for_each(|path| {
        let file = fs::File::options().write(true).open(root.join(path))?;
        file.set_modified(then).with_context(|| path.display().to_string())
    })
}

/// Writes a file anew, as `cp` does.
pub(super) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

/// Reads every file.
pub(super) fn read(root: &Path) -> anyhow::Result<()> {
    files(root)?.iter().try_for_each(|path| {
        let path = root.join(path);
        fs::read(&path).map(drop).with_context(|| format!("reading {}", path.display()))
    })
}

/// The digest of each file of a tree.
pub(super) type Digests = BTreeMap<PathBuf, blake3::Hash>;

pub(super) fn digests(root: &Path) -> anyhow::Result<Digests> {
    files(root)?
        .into_iter()
        .map(|path| {
            let bytes = fs::read(root.join(&path)).with_context(|| format!("reading {}", path.display()))?;
            Ok((path, blake3::hash(&bytes)))
        })
        .collect()
}

/// The first few files in which a tree is not what was expected.
pub(super) fn differences(expected: &Digests, root: &Path) -> anyhow::Result<Vec<String>> {
    let found = digests(root)?;
    let all = expected.keys().chain(found.keys().filter(|path| !expected.contains_key(*path)));
    let differ = all.filter(|path| expected.get(*path) != found.get(*path));
    Ok(differ.take(5).map(|path| path.display().to_string()).collect())
}

/// Turns the tree at `at` from `old` into `new`: what changed is written anew, file by file in order, and what is gone
/// is removed.
pub(super) fn turn(old: &Path, new: &Path, at: &Path) -> anyhow::Result<()> {
    let (before, after) = (files(old)?, files(new)?);
    for path in &after {
        let bytes = fs::read(new.join(path))?;
        if before.binary_search(path).is_ok() {
            if fs::read(old.join(path))? == bytes {
                continue;
            }
        } else if let Some(folder) = path.parent() {
            fs::create_dir_all(at.join(folder))?;
        }
        write(&at.join(path), &bytes)?;
    }
    for path in before.iter().filter(|path| after.binary_search(path).is_err()) {
        fs::remove_file(at.join(path)).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a tree that was turned is the new one, with all additions, removals and changes; and differences are
    /// found.
    #[test]
    fn trees_turn() -> anyhow::Result<()> {
        let place = tempfile::tempdir()?;
        let tree = |name: &str, files: &[(&str, &str)]| -> anyhow::Result<PathBuf> {
            let root = place.path().join(name);
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().expect("below root"))?;
                fs::write(path, text)?;
            }
            Ok(root)
        };
        let old = tree("old", &[("same", "1"), ("a/changed", "2"), ("a/gone", "3")])?;
        let new = tree("new", &[("same", "1"), ("a/changed", "two"), ("b/c/came", "4")])?;
        let at = place.path().join("at");
        copy(&old, &at)?;
        let wanted = digests(&new)?;
        assert_eq!(differences(&wanted, &at)?, ["a/changed", "b/c/came", "a/gone"]);
        turn(&old, &new, &at)?;
        assert_eq!(differences(&wanted, &at)?, Vec::<String>::new());
        Ok(())
    }
}
