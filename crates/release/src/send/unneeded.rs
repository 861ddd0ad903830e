//! Remembers since when files of a bucket are not needed any more. If this is lost, they stay for the whole
//! time again.

use crate::publish::PublishError;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Most bytes of the memory's file.
const BYTES_MAX: u64 = 64 << 20;

/// Files of the bucket that are not needed, each with the time since when, in seconds since 1970.
#[derive(Default)]
pub struct Memory(BTreeMap<String, u64>);

impl Memory {
    /// Reads the file. If it is damaged or missing, the memory is empty.
    pub fn read(path: &Path) -> Memory {
        let bytes = holdfast_durable::read(path, BYTES_MAX).ok().flatten();
        Memory(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) -> Result<(), PublishError> {
        let bytes = serde_json::to_vec(&self.0).expect("text and numbers");
        holdfast_durable::replace(path, &bytes, 0o600).map_err(|error| PublishError::local(path, &error))
    }

    /// Notes the files that are not needed now. All others are needed.
    pub fn note<'a>(&mut self, names: impl Iterator<Item = &'a str>, now_s: u64) {
        let names: BTreeSet<&str> = names.collect();
        self.0.retain(|name, _| names.contains(name.as_str()));
        for name in names {
            let since = self.0.entry(name.to_owned()).or_insert(now_s);
            // If the clock was ahead once, that must not make the file stay for ever.
            *since = (*since).min(now_s);
        }
    }

    /// Whether the file has not been needed for `window_s` seconds.
    pub fn is_over(&self, name: &str, now_s: u64, window_s: u64) -> bool {
        self.0.get(name).is_some_and(|since| now_s.saturating_sub(*since) >= window_s)
    }

    /// Notes that a file was removed.
    pub fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: the time counts while a file is not needed, restarts after it was needed, and is stored on
    /// disk.
    #[test]
    fn windows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("unneeded");
        let mut memory = Memory::read(&path);
        memory.note(["a", "b"].into_iter(), 100);
        memory.write(&path).unwrap();
        let mut memory = Memory::read(&path);
        memory.note(["a"].into_iter(), 150);
        assert!(
            memory.is_over("a", 160, 60) && !memory.is_over("a", 159, 60) && !memory.is_over("b", 900, 60)
        );
        memory.note(["a", "b"].into_iter(), 200);
        assert!(!memory.is_over("b", 259, 60) && memory.is_over("b", 260, 60));
        std::fs::write(&path, "x").unwrap();
        assert!(!Memory::read(&path).is_over("a", 900, 0));
    }
}
