//! Names: made, removed, moved.

use super::support::*;
use super::{Fixture, ModelFile, folded};
use holdfast_fat::{FatError, FileId, Kind, ROOT, Replace};

impl Fixture {
    pub(super) fn create(&mut self, kind: Kind) {
        let parent = self.directory();
        let name = self.name();
        let id = self.id(&parent);
        let path = format!("{parent}/{}", folded(&name));
        match self.fat.create(id, &name, kind, NOW) {
            Ok(change) => {
                assert!(!self.model.contains_key(&path), "{path} exists");
                let (made, _) = apply(&mut self.fat, change);
                self.owners += 1;
                let directory = kind == Kind::Directory;
                let known = ModelFile {
                    name,
                    parent: parent.clone(),
                    directory,
                    content: Vec::new(),
                    owner: self.owners,
                };
                self.model.insert(path, known);
                assert_eq!(self.fat.forget(made, 1), None);
            }
            Err(FatError::Exists(_)) => assert!(self.model.contains_key(&path), "{path} does not exist"),
            Err(FatError::Full { .. } | FatError::DirectoryFull) => {}
            Err(error) => panic!("create {path}: {error}"),
        }
        self.release(id);
    }

    pub(super) fn release(&mut self, id: FileId) {
        if id != ROOT {
            let waits = self.fat.forget(id, 1);
            assert_eq!(waits, None);
        }
    }

    pub(super) fn unlink(&mut self) {
        let Some(path) = self.some(false) else { return };
        let known = self.model[&path].clone();
        let parent = self.id(&known.parent);
        let keep_open = self.random.below(3) == 0;
        let id = keep_open.then(|| self.id(&path));
        match self.fat.unlink(parent, &known.name, NOW) {
            Ok(change) => {
                let (limbo, _) = apply(&mut self.fat, change);
                self.model.remove(&path);
                match id {
                    Some(id) => self.open.push((id, known)),
                    None => {
                        assert_eq!(limbo.is_some(), !known.content.is_empty());
                        if let Some(limbo) = limbo
                            && self.random.below(4) > 0
                        {
                            self.give_back(limbo);
                        }
                    }
                }
            }
            Err(FatError::LimboFull(_)) => {
                if let Some(id) = id {
                    self.release(id);
                }
            }
            Err(error) => panic!("unlink {path}: {error}"),
        }
        self.release(parent);
    }

    /// Uses and closes a file that has no name any more.
    pub(super) fn close(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.random.below(self.open.len() as u64) as usize;
        let (id, mut known) = self.open.swap_remove(at);
        let size = self.random.below(20_000);
        let crashes = self.crashes;
        self.resize(id, &mut known, size);
        if crashes != self.crashes {
            return; // It is nobody's any more, and waits.
        }
        assert_eq!(self.read(id, &known), known.content);
        let limbo = self.fat.forget(id, 1).expect("it waits now");
        self.give_back_if(limbo);
    }

    pub(super) fn give_back_if(&mut self, limbo: holdfast_fat::LimboId) {
        if self.random.below(4) > 0 {
            self.give_back(limbo);
        }
    }

    pub(super) fn rmdir(&mut self) {
        let Some(path) = self.some(true) else { return };
        let known = self.model[&path].clone();
        let empty = !self.model.values().any(|other| other.parent == path);
        let parent = self.id(&known.parent);
        match self.fat.rmdir(parent, &known.name, NOW) {
            Ok(change) => {
                assert!(empty, "{path} was not empty");
                apply(&mut self.fat, change);
                self.model.remove(&path);
            }
            Err(FatError::NotEmpty(_)) => assert!(!empty),
            Err(error) => panic!("rmdir {path}: {error}"),
        }
        self.release(parent);
    }

    pub(super) fn rename(&mut self) {
        let directory = self.random.below(2) == 0;
        let Some(from) = self.some(directory) else { return };
        let known = self.model[&from].clone();
        let to_parent = self.directory();
        let name = self.name();
        let to = format!("{to_parent}/{}", folded(&name));
        let (a, b) = (self.id(&known.parent), self.id(&to_parent));
        let id = self.id(&from);
        let replace = if self.random.below(3) == 0 { Replace::No } else { Replace::Yes };
        let there = self.model.get(&to).cloned();
        let crashes = self.crashes;
        match self.fat.rename((a, &known.name), (b, &name), replace, NOW) {
            Ok(change) => {
                let (limbo, _) = apply(&mut self.fat, change);
                self.fsck();
                if let Some(there) = &there
                    && to != from
                {
                    assert!(replace == Replace::Yes && there.directory == known.directory);
                    assert!(!self.model.values().any(|other| other.parent == to));
                    assert_eq!(limbo.is_some(), !there.content.is_empty());
                }
                if let Some(limbo) = limbo {
                    self.give_back_if(limbo);
                }
                let moved: Vec<String> = self
                    .model
                    .keys()
                    .filter(|path| **path == from || path.starts_with(&format!("{from}/")))
                    .cloned()
                    .collect();
                let moved: Vec<(String, ModelFile)> =
                    moved.into_iter().map(|path| (path.clone(), self.model.remove(&path).unwrap())).collect();
                for (path, mut known) in moved {
                    let rest = &path[from.len()..];
                    known.parent = format!("{to}{}", known.parent.strip_prefix(&from).unwrap_or(""));
                    if rest.is_empty() {
                        known.parent = to_parent.clone();
                        known.name = name.clone();
                    }
                    self.model.insert(format!("{to}{rest}"), known);
                }
                // The number is the same file still, unless the machine stopped meanwhile.
                let found = self.id(&to);
                assert_eq!(found == id, crashes == self.crashes);
                self.release(found);
            }
            Err(FatError::Exists(_)) => assert!(there.is_some() && replace == Replace::No),
            Err(FatError::IntoItself) => assert!(format!("{to_parent}/").starts_with(&format!("{from}/"))),
            Err(FatError::NotEmpty(_)) => assert!(self.model.values().any(|other| other.parent == to)),
            Err(FatError::NotADirectory(_)) => assert!(known.directory && !there.unwrap().directory),
            Err(FatError::IsADirectory(_)) => assert!(!known.directory && there.unwrap().directory),
            Err(FatError::Full { .. } | FatError::LimboFull(_)) => {}
            Err(error) => panic!("rename {from} to {to}: {error}"),
        }
        for id in [a, b, id] {
            self.release(id);
        }
    }
}
