//! Whether the model, the driver and other people's tools agree.

use super::support::*;
use super::{Fixture, ModelFile};
use holdfast_fat::FileId;
use std::collections::BTreeMap;

impl Fixture {
    pub(super) fn read(&mut self, id: FileId, known: &ModelFile) -> Vec<u8> {
        let size = known.content.len() as u64;
        let mut bytes = vec![0; known.content.len()];
        let mut at = 0;
        while at < size {
            let extents = self.fat.map(id, at, size - at).expect("mapped");
            let last = extents.last().expect("something is left");
            let end = last.offset + last.blocks.count * u64::from(self.fat.layout().block_bytes);
            let part = at as usize..end.min(size) as usize;
            self.fat.metadata().transfer(&extents, known.owner, at, &mut bytes[part], false);
            at = end;
        }
        bytes
    }

    pub(super) fn own_path(&self, path: &str) -> String {
        match self.model.get(path) {
            Some(known) => format!("{}/{}", self.own_path(&known.parent), known.name),
            None => String::new(),
        }
    }

    /// The model as a list of paths with the names' own case.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = self
            .model
            .iter()
            .map(|(path, known)| self.own_path(path) + if known.directory { "/" } else { "" })
            .collect();
        paths.sort();
        paths
    }

    pub(super) fn agree(&mut self) {
        assert_eq!(list(&mut self.fat), self.paths());
        let files: Vec<String> =
            self.model.iter().filter(|(_, known)| !known.directory).map(|(path, _)| path.clone()).collect();
        for path in files {
            let known = self.model[&path].clone();
            let id = self.id(&path);
            assert_eq!(self.fat.stat(id).expect("there").size, known.content.len() as u64);
            assert!(self.read(id, &known) == known.content, "{path} reads otherwise");
            self.release(id);
        }
    }

    /// Compares with mtools, and with a fresh mount whose check must find nothing.
    pub(super) fn others_agree(&mut self) {
        let path = self.fat.metadata().path.clone();
        let fresh = Image::open(&path, 0).expect("FAT32");
        let mut findings = Vec::new();
        holdfast_fat::check(&fresh.layout, &fresh, &mut |finding| findings.push(finding)).expect("checked");
        assert_eq!(findings, []);
        if fresh.layout.clusters < 65_525 {
            return; // mtools would take it for FAT16.
        }
        let text = path.to_str().expect("text").to_string();
        let seen: Vec<String> =
            mdir(&text).into_iter().filter(|path| !path.starts_with("/HOLDFAST.LBO")).collect();
        // mtools show two underscores for a character of two units.
        let mut expected: Vec<String> = self.paths().iter().map(|path| path.replace('😀', "__")).collect();
        expected.sort();
        assert_eq!(seen, expected);
        for (own, known) in self.paths().iter().filter(|path| !path.ends_with('/')).zip(
            // Both in the order of paths with the names' own case.
            self.by_own_path().values().filter(|known| !known.directory),
        ) {
            if own.contains('😀') {
                continue; // They do not find it by any name.
            }
            let copied = output("mcopy", &["-i", &text, &format!("::{own}"), "-"]);
            assert!(copied.status.success() && copied.stdout == known.content, "mcopy {own}");
        }
    }

    pub(super) fn by_own_path(&self) -> BTreeMap<String, ModelFile> {
        self.model.iter().map(|(path, known)| (self.own_path(path), known.clone())).collect()
    }
}
