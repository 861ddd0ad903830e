//! A seeded random test against a model: every operation, on file systems of many shapes. After every
//! transaction, which is every point where a crash can come, `fsck.fat` must find nothing; the model, the
//! driver, a fresh mount and mtools must agree. The image stands for the policy too: it refuses the driver
//! every block that a file owns, and a file every block that was not returned.

use crate::support;

mod agreement;
mod names;
mod sizes;

use holdfast_fat::{FileId, Kind, ROOT};
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
struct ModelFile {
    name: String,
    parent: String,
    directory: bool,
    content: Vec<u8>,
    /// Owner of the file's blocks.
    owner: u64,
}

struct Fixture {
    fat: holdfast_fat::Fat<Image>,
    /// By path of folded names; the root is the empty path.
    model: BTreeMap<String, ModelFile>,
    random: Random,
    owners: u64,
    /// Files without a name that are still in use.
    open: Vec<(FileId, ModelFile)>,
    /// Blocks that were returned and are not free yet.
    returned: BTreeSet<u64>,
    crashes: u32,
}

fn folded(name: &str) -> String {
    name.to_lowercase()
}

impl Fixture {
    fn new(path: &std::path::Path, seed: u64) -> Fixture {
        let fat = mount(Image::open(path, 0).expect("FAT32"));
        Fixture {
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
    let mut world = Fixture::new(&path, seed);
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

/// Proves the same on a disk that is always full.
#[test]
fn hardly_any_room() {
    play(&["-s", "1"], 200 << 10, 6, 400);
}

/// Many seeds, by `scripts/soak disks`.
#[test]
#[ignore = "long: scripts/soak disks"]
fn many_seeds() {
    for seed in 100..160 {
        play(&["-s", "1"], 300 << 10, seed, 400);
        play(&["-s", "4", "-a"], 4 << 20, seed, 400);
    }
}
