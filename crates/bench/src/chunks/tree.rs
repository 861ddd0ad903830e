//! Trees and the chunks in them.

use super::cut::{Cutter, Name};
use anyhow::{Context, ensure};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Regular files below a directory, or the file itself, by name; links are not followed, and other file systems
/// (such as `/proc`) not entered.
///
/// # Errors
/// A directory cannot be read; it has its name in it.
pub fn files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    use std::os::unix::fs::MetadataExt;
    let named = |path: &Path| path.display().to_string();
    let device = root.metadata().with_context(|| named(root))?.dev();
    let (mut found, mut waiting) = (Vec::new(), vec![root.to_owned()]);
    while let Some(path) = waiting.pop() {
        let about = path.symlink_metadata().with_context(|| named(&path))?;
        if about.is_file() {
            found.push(path);
        } else if (about.is_dir() || path == root) && about.dev() == device {
            for entry in std::fs::read_dir(&path).with_context(|| named(&path))? {
                waiting.push(entry.with_context(|| named(&path))?.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The occurrences of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct Occurrences {
    /// Its bytes.
    pub length: u32,
    /// Occurrences in all.
    pub count: u32,
    /// Files it is in.
    pub files: u32,
    last_file: u32,
}

/// The chunks of a tree.
#[derive(Default, Debug)]
pub struct Chunks {
    /// Bytes of all files.
    pub bytes: u64,
    /// Files.
    pub files: u32,
    /// Every chunk once.
    pub by_name: HashMap<Name, Occurrences>,
    /// The length of each chunk, as often as it occurs, in no order.
    pub lengths: Vec<u32>,
}

impl Chunks {
    /// Cuts the files of trees, which are taken for one.
    ///
    /// # Errors
    /// A file or directory cannot be read; it has its name in it.
    pub fn of(roots: &[impl AsRef<Path>], cutter: &Cutter) -> anyhow::Result<Chunks> {
        let mut chunks = Chunks::default();
        for root in roots {
            let files = files(root.as_ref())?;
            ensure!(!files.is_empty(), "{}: no files in it", root.as_ref().display());
            for path in &files {
                let number = chunks.files;
                cutter.file(path, &mut |name, length| chunks.add(number, name, length))?;
                chunks.files += 1;
            }
        }
        Ok(chunks)
    }

    fn add(&mut self, file: u32, name: Name, length: u32) {
        self.bytes += u64::from(length);
        self.lengths.push(length);
        let known =
            self.by_name.entry(name).or_insert(Occurrences { length, count: 0, files: 0, last_file: 0 });
        if known.files == 0 || known.last_file != file {
            (known.files, known.last_file) = (known.files + 1, file);
        }
        known.count += 1;
    }

    /// Bytes of the chunks that are not in `given`, each counted once: these have to be sent.
    pub fn new_bytes(&self, given: &Chunks) -> u64 {
        let new = self.by_name.iter().filter(|(name, _)| !given.by_name.contains_key(*name));
        new.map(|(_, chunk)| u64::from(chunk.length)).sum()
    }

    /// The share of all bytes that are in chunks that occur more than once.
    pub fn shared(&self) -> f64 {
        let shared = self.by_name.values().filter(|chunk| chunk.count > 1);
        share(shared.map(|chunk| u64::from(chunk.length) * u64::from(chunk.count)).sum(), self.bytes)
    }

    /// The share of all bytes that need not be stored or sent, as they are there already.
    pub fn saved(&self) -> f64 {
        share(self.bytes - self.new_bytes(&Chunks::default()), self.bytes)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::cut::sizes;

    /// Proves: what is in another tree is not new; what occurs twice in one tree is sent once, and counted with its
    /// occurrences.
    #[test]
    fn what_is_shared_and_what_is_new() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("it is made");
            std::fs::write(path, bytes).expect("it is written");
        };
        write("old/a", &[1; 1000]);
        write("new/a", &[1; 1000]);
        write("new/b", &[2; 3000]);
        write("new/deep/copy-of-b", &[2; 3000]);
        std::os::unix::fs::symlink("b", directory.path().join("new/link")).expect("it is made");
        for cutter in [Cutter::Holdfast, Cutter::Rabin { window_bits: 5, sizes: sizes(16 << 10) }] {
            let of = |name: &str| Chunks::of(&[directory.path().join(name)], &cutter).expect("it is cut");
            let (old, new) = (of("old"), of("new"));
            assert_eq!((new.files, new.bytes, new.lengths.len(), new.by_name.len()), (3, 7000, 3, 2));
            assert_eq!(new.new_bytes(&old), 3000);
            assert_eq!(new.by_name.values().filter(|chunk| chunk.files == 2).count(), 1);
            assert!((new.shared() - 6.0 / 7.0).abs() < 1e-9 && (new.saved() - 3.0 / 7.0).abs() < 1e-9);
            assert_eq!(of("new/b").bytes, 3000);
        }
        assert!(Chunks::of(&[directory.path().join("none")], &Cutter::Holdfast).is_err());
    }
}
