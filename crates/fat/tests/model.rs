//! A seeded random test against a model: every operation, on file systems of many shapes. After every transaction,
//! which is every point where a crash can fall, `fsck.fat` must find nothing; the model, the driver, a fresh mount and
//! mtools must agree. The image stands for policy too: it refuses the driver every block that a file owns, and a file
//! every block that had not come back.

mod support;

use holdfast_fat::{FatError, FileId, Kind, ROOT, Replace};
use std::collections::{BTreeMap, BTreeSet};
use support::*;

/// Names that differ by more than case, each in two cases.
const NAMES: &[(&str, &str)] = &[
    ("README.TXT", "readme.txt"),
    ("lower", "LOWER"),
    ("Mixed Case.Doc", "MIXED case.doc"),
    ("a name that is longer than one entry.jpeg", "A NAME that is longer than one entry.JPEG"),
    ("жук.txt", "ЖУК.TXT"),
    ("été à la plage", "ÉTÉ À LA PLAGE"),
    ("日本語のファイル.txt", "日本語のファイル.TXT"),
    ("😀 emoji", "😀 EMOJI"),
    (".hidden", ".HIDDEN"),
    ("a+b,c;d=e", "A+B,C;D=E"),
    ("x", "X"),
    ("ΑΒΓ δεζ.ελ", "αβγ ΔΕΖ.ΕΛ"),
    ("12345678.123", "12345678.123"),
    ("many.dots.in.one.name", "Many.Dots.In.One.Name"),
];

#[derive(Clone, Debug)]
struct Known {
    name: String,
    parent: String,
    directory: bool,
    content: Vec<u8>,
    /// Who owns its blocks.
    owner: u64,
}

struct World {
    fat: holdfast_fat::Fat<Image>,
    /// By path of folded names; the root is the empty path.
    model: BTreeMap<String, Known>,
    random: Random,
    owners: u64,
    /// Files without a name that are still in use.
    open: Vec<(FileId, Known)>,
    /// Blocks that came back and are not free yet.
    returned: BTreeSet<u64>,
    crashes: u32,
}

fn folded(name: &str) -> String {
    name.to_lowercase()
}

impl World {
    fn new(path: &std::path::Path, seed: u64) -> World {
        let fat = mount(Image::open(path, 0).expect("FAT32"));
        World {
            fat,
            model: BTreeMap::new(),
            random: Random(seed),
            owners: 0,
            open: Vec::new(),
            returned: BTreeSet::new(),
            crashes: 0,
        }
    }

    fn fsck(&self) {
        fsck(&self.fat.metadata().path);
    }

    fn id(&mut self, path: &str) -> FileId {
        let mut id = ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            // The reference stays; the test forgets where it matters.
            let (next, _) = self.fat.lookup(id, part).expect("the model has it");
            if id != ROOT {
                assert_eq!(self.fat.forget(id, 1), None);
            }
            id = next;
        }
        id
    }

    fn directory(&mut self) -> String {
        let directories: Vec<String> = std::iter::once(String::new())
            .chain(self.model.iter().filter(|(_, known)| known.directory).map(|(path, _)| path.clone()))
            .filter(|path| path.matches('/').count() < 5)
            .collect();
        self.random.of(&directories).clone()
    }

    fn some(&mut self, directory: bool) -> Option<String> {
        let paths: Vec<String> = self
            .model
            .iter()
            .filter(|(_, known)| known.directory == directory)
            .map(|(path, _)| path.clone())
            .collect();
        (!paths.is_empty()).then(|| self.random.of(&paths).clone())
    }

    fn name(&mut self) -> String {
        let (one, other) = self.random.of(NAMES);
        match self.random.below(4) {
            0 => other.to_string(),
            _ => one.to_string(),
        }
    }

    fn create(&mut self, kind: Kind) {
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
                let known = Known {
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

    fn release(&mut self, id: FileId) {
        if id != ROOT {
            let waits = self.fat.forget(id, 1);
            assert_eq!(waits, None);
        }
    }

    /// Makes a file so long, and writes what is new.
    fn resize(&mut self, id: FileId, known: &mut Known, size: u64) {
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
            // Part of what is new is written; the rest must read as zero.
            let start = old + self.random.below(size - old);
            let mut bytes: Vec<u8> = (start..size).map(|at| (at * 7 + known.owner) as u8).collect();
            let extents = self.fat.map(id, start, size - start).expect("mapped");
            self.fat.metadata().transfer(&extents, known.owner, start, &mut bytes, true);
            known.content[start as usize..].copy_from_slice(&bytes);
        }
    }

    fn give_back(&mut self, limbo: holdfast_fat::LimboId) {
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
                // They came back, and then the machine stopped: they wait on.
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

    /// The machine stops: what the driver knew is gone, and files without a name are nobody's any more.
    fn crash(&mut self) {
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
    fn crash_before_accepting(&mut self, path: &str, known: &mut Known, size: u64) {
        let id = self.id(path);
        let old = known.content.len() as u64;
        let Ok(change) = self.fat.resize(id, size, NOW) else {
            self.release(id);
            return;
        };
        self.fat.metadata().commit(&change.transaction);
        self.crash();
        self.fsck();
        // Whoever opens the file next finds blocks that are the driver's still, and gets them.
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

    fn write(&mut self) {
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

    fn unlink(&mut self) {
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
    fn close(&mut self) {
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

    fn give_back_if(&mut self, limbo: holdfast_fat::LimboId) {
        if self.random.below(4) > 0 {
            self.give_back(limbo);
        }
    }

    fn rmdir(&mut self) {
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

    fn rename(&mut self) {
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
                let moved: Vec<(String, Known)> =
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

    fn read(&mut self, id: FileId, known: &Known) -> Vec<u8> {
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

    fn own_path(&self, path: &str) -> String {
        match self.model.get(path) {
            Some(known) => format!("{}/{}", self.own_path(&known.parent), known.name),
            None => String::new(),
        }
    }

    /// The model, as paths with the names' own case.
    fn paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = self
            .model
            .iter()
            .map(|(path, known)| self.own_path(path) + if known.directory { "/" } else { "" })
            .collect();
        paths.sort();
        paths
    }

    fn agree(&mut self) {
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

    /// What mtools say, and a fresh mount whose check must find nothing.
    fn others_agree(&mut self) {
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

    fn by_own_path(&self) -> BTreeMap<String, Known> {
        self.model.iter().map(|(path, known)| (self.own_path(path), known.clone())).collect()
    }

    fn step(&mut self) {
        match self.random.below(17) {
            0..3 => self.create(Kind::File),
            3..5 => self.create(Kind::Directory),
            5..8 => self.write(),
            8..10 => self.unlink(),
            10 => self.rmdir(),
            11..14 => self.rename(),
            14 => self.close(),
            15 => self.return_some(),
            _ => self.crash(),
        }
        self.fsck();
    }

    /// Gives back something that waits.
    fn return_some(&mut self) {
        let waiting = self.fat.limbo(None, 100).expect("listed");
        let ready: Vec<_> = waiting.iter().filter(|item| !item.in_use).collect();
        if !ready.is_empty() {
            let id = self.random.of(&ready).id;
            self.give_back(id);
        }
    }

    /// Closes, deletes and gives back everything: every cluster must be free but the root's and the limbo's.
    fn end(&mut self) {
        while !self.open.is_empty() {
            self.close();
        }
        while self.model.values().any(|known| !known.directory) {
            let before = self.model.len();
            self.unlink();
            while let Some(item) = self.fat.limbo(None, 100).expect("listed").iter().find(|item| !item.in_use)
            {
                let id = item.id;
                self.give_back(id);
            }
            while !self.open.is_empty() {
                self.close();
            }
            assert!(self.model.len() <= before);
        }
        while !self.model.is_empty() {
            self.rmdir();
        }
        while let Some(item) = self.fat.limbo(None, 1).expect("listed").first() {
            let id = item.id;
            self.give_back(id);
        }
        assert!(self.fat.metadata().owners.borrow().is_empty(), "blocks were left with their owners");
        let sizes = self.fat.sizes().expect("counted");
        let used = sizes.clusters - sizes.free;
        let root = self.fat.stat(ROOT).expect("there").size / u64::from(sizes.cluster_bytes);
        let limbo = used - root;
        assert!(limbo <= 64, "{limbo} clusters are left in use");
        self.fsck();
    }
}

fn play(options: &[&str], bytes: u64, seed: u64, steps: usize) {
    let folder = tempfile::Builder::new().prefix("holdfast-fat-").tempdir().expect("a folder");
    let path = image_file(folder.path(), bytes);
    let text = path.to_str().expect("text");
    run("mkfs.fat", &[&["-F32"], options, &[text]].concat());
    let mut world = World::new(&path, seed);
    if let Some(change) = world.fat.prepare(NOW).expect("there is room") {
        apply(&mut world.fat, change);
    }
    world.fsck();
    for step in 0..steps {
        world.step();
        if step % 8 == 0 {
            world.agree();
        }
        if step % 40 == 39 {
            world.others_agree();
        }
    }
    world.agree();
    world.others_agree();
    world.end();
    world.others_agree();
}

#[test]
fn small_clusters() {
    play(&["-s", "1"], 40 << 20, 1, 300);
}

#[test]
fn unaligned_data_area() {
    play(&["-s", "8", "-a", "-R", "33"], 300 << 20, 2, 200);
}

#[test]
fn large_clusters() {
    play(&["-s", "64"], 2200 << 20, 3, 200);
}

#[test]
fn large_sectors() {
    play(&["-S", "4096", "-s", "1"], 300 << 20, 4, 200);
}

#[test]
fn one_copy_of_the_table() {
    play(&["-s", "2", "-f", "1"], 80 << 20, 5, 200);
}

#[test]
fn few_clusters() {
    play(&["-s", "1"], 4 << 20, 7, 300);
}

/// Proves that a disk that is full all the time is handled as well.
#[test]
fn hardly_any_room() {
    play(&["-s", "1"], 200 << 10, 6, 400);
}

/// Many seeds: run with `--ignored`.
#[test]
#[ignore = "takes many minutes"]
fn many_seeds() {
    for seed in 100..160 {
        play(&["-s", "1"], 300 << 10, seed, 400);
        play(&["-s", "4", "-a"], 4 << 20, seed, 400);
    }
}
