//! Shared by the tests: an image in a file that stands for the volume, an owner for each of its blocks that
//! stands for the policy table, and tools of other authors.

#![allow(dead_code)]

pub mod memory;

use holdfast_fat::{
    Area, BlockId, BlockRange, Change, Extent, Fat, FatError, FileId, Kind, Layout, Metadata, Moment,
    Options, ROOT, Transaction,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub const NOW: Moment = Moment { seconds: 1_795_357_683, nanoseconds: 0 };

/// Numbers that look random and are the same each time.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}

/// An image, of which the driver may see what no file owns.
pub struct Image {
    pub file: File,
    pub path: PathBuf,
    pub start: u64,
    pub layout: Layout,
    /// The file that owns a block of the data area. Blocks without an owner are the driver's.
    pub owners: RefCell<BTreeMap<u64, u64>>,
}

impl Image {
    /// Opens an image whose file system starts at a byte.
    pub fn open(path: &Path, start: u64) -> Result<Image, FatError> {
        let file = File::options().read(true).write(true).open(path).expect("the image opens");
        let mut boot = [0; 512];
        file.read_exact_at(&mut boot, start).expect("a boot sector");
        let bytes = file.metadata().expect("a size").len() - start;
        let layout = Layout::from_boot_sector(&boot, bytes)?;
        Ok(Image { file, path: path.into(), start, layout, owners: RefCell::default() })
    }

    fn at(&self, block: BlockId) -> u64 {
        self.start + self.layout.place(block).0
    }

    fn owner(&self, block: BlockId) -> Option<u64> {
        match block.area {
            Area::Metadata => None,
            Area::Data => self.owners.borrow().get(&block.index).copied(),
        }
    }

    /// Commits a transaction, as the monitor does.
    pub fn commit(&self, transaction: &Transaction) {
        for (block, bytes) in &transaction.blocks {
            assert_eq!(self.owner(*block), None, "{block} is some file's, and the driver writes it");
            assert_eq!(bytes.len(), self.layout.place(*block).1);
            self.file.write_all_at(bytes, self.at(*block)).expect("written");
        }
    }

    /// Blocks get an owner, erased; they must have been the driver's.
    pub fn nominate(&self, ranges: &[BlockRange], owner: u64) {
        for index in ranges.iter().flat_map(|range| range.start..range.start + range.count) {
            assert_eq!(
                self.owners.borrow_mut().insert(index, owner),
                None,
                "data block {index} has an owner"
            );
            let block = BlockId { area: Area::Data, index };
            let zero = vec![0; self.layout.block_bytes as usize];
            self.file.write_all_at(&zero, self.at(block)).expect("written");
        }
    }

    /// Returns blocks, which must have belonged to a file.
    pub fn give_back(&self, ranges: &[BlockRange]) {
        for index in ranges.iter().flat_map(|range| range.start..range.start + range.count) {
            assert!(self.owners.borrow_mut().remove(&index).is_some(), "data block {index} has no owner");
        }
    }

    /// Reads or writes a part of a file through its extents, as its owner.
    pub fn transfer(&self, extents: &[Extent], owner: u64, offset: u64, bytes: &mut [u8], write: bool) {
        let each = u64::from(self.layout.block_bytes);
        let end = offset + bytes.len() as u64;
        for extent in extents {
            for (index, at) in (extent.blocks.start..extent.blocks.start + extent.blocks.count)
                .zip((extent.offset..).step_by(each as usize))
            {
                let block = BlockId { area: Area::Data, index };
                assert_eq!(self.owner(block), Some(owner), "{block} is another's");
                let (from, to) = (at.max(offset), (at + each).min(end));
                if from < to {
                    let part = &mut bytes[(from - offset) as usize..(to - offset) as usize];
                    let place = self.at(block) + (from - at);
                    match write {
                        true => self.file.write_all_at(part, place).expect("written"),
                        false => self.file.read_exact_at(part, place).expect("read"),
                    }
                }
            }
        }
    }
}

impl Metadata for Image {
    fn read(&self, block: BlockId, into: &mut [u8]) -> Result<(), String> {
        assert_eq!(self.owner(block), None, "{block} is some file's, and the driver reads it");
        self.file.read_exact_at(into, self.at(block)).map_err(|error| error.to_string())
    }
}

/// Commits and applies.
pub fn apply<T>(fat: &mut Fat<Image>, change: Change<T>) -> (T, Vec<BlockRange>) {
    let allocated = change.transaction.allocated.clone();
    fat.metadata().commit(&change.transaction);
    fat.applied(change.transaction).expect("the one outstanding");
    (change.value, allocated)
}

/// Runs a tool and gives what it printed. It must succeed.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = output(program, arguments);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{out}\n{err}", output.status);
    out.into_owned()
}

pub fn output(program: &str, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C.UTF-8")
        .env("MTOOLS_SKIP_CHECK", "1")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap_or_else(|error| panic!("{program} must be installed: {error}"))
}

/// Checks that `fsck.fat` finds nothing in a file system that starts at the beginning of its file.
pub fn fsck(path: &Path) {
    let output = output("fsck.fat", &["-n", "-V", path.to_str().expect("text")]);
    let out = String::from_utf8_lossy(&output.stdout);
    let strange: Vec<&str> = out
        .lines()
        .filter(|line| {
            !(line.starts_with("fsck.fat ")
                || line.starts_with("Starting ")
                || line.starts_with(path.to_str().expect("text")))
        })
        .collect();
    assert!(output.status.success() && strange.is_empty(), "fsck.fat: {} {strange:#?}", output.status);
}

/// Makes an image file of so many bytes.
pub fn image_file(folder: &Path, bytes: u64) -> PathBuf {
    let path = folder.join("image");
    File::create(&path).expect("created").set_len(bytes).expect("grown");
    path
}

/// Paths of all files and directories as `mdir` lists them; directories end with a slash.
pub fn mdir(image: &str) -> Vec<String> {
    let mut paths: Vec<String> = run("mdir", &["-a", "-/", "-b", "-i", image, "::"])
        .lines()
        .filter_map(|line| line.strip_prefix("::").map(str::to_string))
        .collect();
    paths.sort();
    paths
}

/// Paths of all files and directories as the driver lists them; directories end with a slash.
pub fn list<M: Metadata>(fat: &mut Fat<M>) -> Vec<String> {
    fn below<M: Metadata>(fat: &mut Fat<M>, directory: FileId, path: &str, paths: &mut Vec<String>) {
        let mut cookie = 0;
        loop {
            let listed = fat.list(directory, cookie, 3).expect("listed");
            let Some(last) = listed.last() else { break };
            cookie = last.cookie;
            for entry in listed {
                let path = format!("{path}/{}", entry.name);
                match entry.kind {
                    Kind::File => paths.push(path),
                    Kind::Directory => {
                        let (id, _) = fat.lookup(directory, &entry.name).expect("it is listed");
                        below(fat, id, &path, paths);
                        fat.forget(id, 1);
                        paths.push(path + "/");
                    }
                }
            }
        }
    }
    let mut paths = Vec::new();
    below(fat, ROOT, "", &mut paths);
    paths.sort();
    paths
}

/// Mounts an image that must be sound, after a check that must find nothing.
pub fn mount(image: Image) -> Fat<Image> {
    let mut findings = Vec::new();
    let checked =
        holdfast_fat::check(&image.layout, &image, &mut |finding| findings.push(finding)).expect("checked");
    assert_eq!(findings, []);
    let layout = image.layout.clone();
    let mut fat = Fat::mount(layout, image, Options::default()).expect("mounted");
    fat.vouch(&checked);
    fat
}
