//! Sizes of files, returned blocks, and crashes.

use super::support::*;
use super::{Fixture, ModelFile};
use holdfast_fat::{FatError, FileId};

impl Fixture {
    /// Resizes a file, and writes what is new.
    pub(super) fn resize(&mut self, id: FileId, known: &mut ModelFile, size: u64) {
        let old = known.content.len() as u64;
        loop {
            let change = match self.fat.resize(id, size, NOW) {
                Ok(change) => change,
                Err(FatError::Full { .. } | FatError::LimboFull(_)) => return,
                Err(error) => panic!("resize: {error}"),
            };
            let (resized, allocated) = apply(&mut self.fat, change);
            self.fat.metadata().nominate(&allocated, known.owner);
            self.fsck();
            if let Some(fill) = resized.fill {
                let extents = self.fat.map(id, fill.start, fill.end - fill.start).expect("mapped");
                let mut zero = vec![0; (fill.end - fill.start) as usize];
                self.fat.metadata().transfer(&extents, known.owner, fill.start, &mut zero, true);
            }
            known.content.resize(resized.size as usize, 0);
            if let Some(limbo) = resized.limbo
                && self.random.below(3) > 0
            {
                self.give_back(limbo);
            }
            if resized.size == size {
                break;
            }
        }
        if size > old {
            // A part of the new range is written; the rest must read as zero.
            let start = old + self.random.below(size - old);
            let mut bytes: Vec<u8> = (start..size).map(|at| (at * 7 + known.owner) as u8).collect();
            let extents = self.fat.map(id, start, size - start).expect("mapped");
            self.fat.metadata().transfer(&extents, known.owner, start, &mut bytes, true);
            known.content[start as usize..].copy_from_slice(&bytes);
        }
    }

    pub(super) fn give_back(&mut self, limbo: holdfast_fat::LimboId) {
        loop {
            let returning = self.fat.returning(limbo).expect("it waits");
            // A part, now and then.
            let all = self.random.below(3) > 0 || returning.clusters < 2;
            let each = u64::from(self.fat.layout().blocks_each());
            let clusters = if all { returning.clusters } else { returning.clusters / 2 };
            let mut left = u64::from(clusters) * each;
            let mut blocks = Vec::new();
            for mut range in returning.blocks {
                range.count = range.count.min(left);
                left -= range.count;
                for start in range.start..range.start + range.count {
                    if self.returned.insert(start) {
                        self.fat.metadata().give_back(&[holdfast_fat::BlockRange { start, count: 1 }]);
                    }
                    blocks.push(start);
                }
            }
            if self.random.below(12) == 0 {
                // They were returned, and then the machine stopped: they still wait.
                self.crash();
                return;
            }
            let change = self.fat.free(limbo, clusters).expect("it came back");
            let (done, _) = apply(&mut self.fat, change);
            for block in blocks {
                self.returned.remove(&block);
            }
            self.fsck();
            assert_eq!(done, all && returning.last);
            if done {
                break;
            }
        }
    }

    /// The machine stops: the driver's state is lost, and files without a name have no users any more.
    pub(super) fn crash(&mut self) {
        self.crashes += 1;
        let image = self.fat.metadata();
        let (path, owners) = (image.path.clone(), image.owners.take());
        let image = Image::open(&path, 0).expect("FAT32");
        *image.owners.borrow_mut() = owners;
        self.fat = mount(image);
        self.open.clear();
        assert!(self.fat.limbo(None, 1000).expect("listed").iter().all(|item| !item.in_use));
    }

    /// The machine stops after a file became longer and before its owner accepted what it got.
    pub(super) fn crash_before_accepting(&mut self, path: &str, known: &mut ModelFile, size: u64) {
        let id = self.id(path);
        let old = known.content.len() as u64;
        let Ok(change) = self.fat.resize(id, size, NOW) else {
            self.release(id);
            return;
        };
        self.fat.metadata().commit(&change.transaction);
        self.crash();
        self.fsck();
        // Whoever opens the file next finds blocks that still belong to the driver, and gets them.
        let id = self.id(path);
        let size = self.fat.stat(id).expect("there").size;
        let extents = self.fat.map(id, 0, size).expect("mapped");
        for index in
            extents.iter().flat_map(|extent| extent.blocks.start..extent.blocks.start + extent.blocks.count)
        {
            if !self.fat.metadata().owners.borrow().contains_key(&index) {
                let one = holdfast_fat::BlockRange { start: index, count: 1 };
                self.fat.metadata().nominate(&[one], known.owner);
            }
        }
        if size > old {
            let mut zero = vec![0; (size - old) as usize];
            self.fat.metadata().transfer(&extents, known.owner, old, &mut zero, true);
        }
        known.content.resize(size as usize, 0);
        self.release(id);
    }

    pub(super) fn write(&mut self) {
        let Some(path) = self.some(false) else { return };
        let mut known = self.model[&path].clone();
        let size = match self.random.below(4) {
            0 => self.random.below(100),
            1 => 0,
            _ => self.random.below(40_000),
        };
        if self.random.below(10) == 0 {
            self.crash_before_accepting(&path, &mut known, size);
            self.model.insert(path, known);
            return;
        }
        let id = self.id(&path);
        self.resize(id, &mut known, size);
        self.model.insert(path, known);
        self.release(id);
    }

    /// Gives back something that waits.
    pub(super) fn return_some(&mut self) {
        let waiting = self.fat.limbo(None, 100).expect("listed");
        let ready: Vec<_> = waiting.iter().filter(|item| !item.in_use).collect();
        if !ready.is_empty() {
            let id = self.random.of(&ready).id;
            self.give_back(id);
        }
    }
}
