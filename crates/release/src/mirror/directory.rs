//! A mirror in a directory: a local copy, a USB stick, a share.

use super::{Fault, Mirror, MirrorError, is_name};
use crate::folder::Folder;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A directory with the files of a release.
#[derive(Debug)]
pub struct Directory {
    name: String,
    path: PathBuf,
}

impl Directory {
    /// A mirror at `path`, which need not exist yet: a stick may be plugged in later.
    pub fn new(path: &Path) -> Directory {
        Directory { name: path.display().to_string(), path: path.to_owned() }
    }

    fn read(&self, file: &str, range: Option<Range<u64>>, bytes_max: u64) -> Result<Vec<u8>, Fault> {
        if !is_name(file) {
            return Err(Fault::name());
        }
        let unreachable = |error: io::Error| Fault::Unreachable(error.to_string());
        let folder = Folder::open(&self.path).map_err(unreachable)?;
        let found = folder.file(file).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Fault::Wrong(error.to_string()),
            _ => unreachable(error),
        })?;
        let Some((handle, length)) = found else { return Err(Fault::Missing) };
        let range = range.unwrap_or(0..length);
        let end = range.end.min(length);
        let wanted = end.saturating_sub(range.start);
        if wanted > bytes_max {
            return Err(Fault::too_long(bytes_max));
        }
        let mut bytes = vec![0; wanted as usize];
        handle.read_exact_at(&mut bytes, range.start).map_err(unreachable)?;
        Ok(bytes)
    }
}

impl Mirror for Directory {
    fn name(&self) -> &str {
        &self.name
    }

    fn get(&self, file: &str, range: Option<Range<u64>>, bytes_max: u64) -> Result<Vec<u8>, MirrorError> {
        self.read(file, range, bytes_max).map_err(|fault| fault.of(&self.name, file))
    }
}
