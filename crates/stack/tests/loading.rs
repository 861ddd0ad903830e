//! Malformed disks for the real processes that read them: FSLoader and FSChecker, in their sandboxes.

use holdfast_fat::partitions::{self, PartitionContent, Sectors};
use holdfast_fat::{BlockId, Fat, Kind, Layout, Metadata, Options, WalkedFile, check};
use holdfast_testing::eventually;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

struct Looker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Looker {
    fn start() -> Looker {
        let mut child = Command::new(env!("CARGO_BIN_EXE_holdfast-stack-look"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Looker { child, input, output }
    }

    fn look(&mut self, path: &Path) -> String {
        writeln!(self.input, "{}", path.display()).expect("it listens");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it speaks");
        assert!(line.ends_with('\n'), "it lives");
        line.trim().to_owned()
    }

    /// The number of files that the process has open, and of processes below it.
    fn holdings(&self) -> (usize, usize) {
        let process = format!("/proc/{}", self.child.id());
        let files = fs::read_dir(format!("{process}/fd")).expect("it lives").count();
        let children = fs::read_to_string(format!("{process}/task/{}/children", self.child.id()));
        (files, children.unwrap_or_default().split_whitespace().count())
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Image(Vec<u8>);

impl Sectors for Image {
    fn sector_bytes(&self) -> u32 {
        512
    }

    fn sectors(&self) -> u64 {
        self.0.len() as u64 / 512
    }

    fn read(&self, sector: u64, into: &mut [u8]) -> Result<(), String> {
        let at = usize::try_from(sector * 512).map_err(|_| "beyond")?;
        into.copy_from_slice(self.0.get(at..at + into.len()).ok_or("beyond")?);
        Ok(())
    }
}

struct Part<'a> {
    bytes: &'a [u8],
    layout: Layout,
}

impl Metadata for Part<'_> {
    fn read(&self, block: BlockId, into: &mut [u8]) -> Result<(), String> {
        let (at, length) = self.layout.place(block);
        into.copy_from_slice(self.bytes.get(at as usize..at as usize + length).ok_or("beyond")?);
        Ok(())
    }
}

/// What the same code says of an image in this process; `None` if it refuses it.
fn expected(image: &Image) -> Option<String> {
    let mut words = Vec::new();
    let mut parts = Vec::new();
    for found in partitions::read(image).ok()? {
        let (start, bytes) = (found.start as usize * 512, found.sectors as usize * 512);
        let bytes = &image.0[start..start + bytes];
        let layout = Layout::from_boot_sector(&bytes[..512], bytes.len() as u64).ok()?;
        (found.holds == PartitionContent::PerhapsFat32).then_some(())?;
        parts.push(Part { bytes, layout });
    }
    for part in parts {
        let mut problems = 0;
        let checked = check(&part.layout, &part, &mut |_| problems += 1).ok()?;
        let mut blocks = 0;
        if checked.refusal.is_none() {
            let layout = part.layout.clone();
            let mut fat = Fat::mount(layout, part, Options::default()).ok()?;
            let walked = fat.walk(&checked, &mut |walked| {
                if let WalkedFile::Sound { kind: Kind::File, blocks: runs, .. } = walked {
                    blocks += runs.iter().map(|run| run.count).sum::<u64>();
                }
            });
            walked.ok()?;
        }
        let verdict = if checked.refusal.is_some() { "unsound" } else { "sound" };
        words.push(format!("{verdict} {problems} problems {blocks} blocks"));
    }
    Some(words.join(", "))
}

/// A seeded generator: the tests try the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % bound.max(1) as u64) as usize
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A file system of 34 MiB, the least that others accept as FAT32, with files and directories; with a partition table
/// before it, or without.
fn image(folder: &Path, has_table: bool) -> Vec<u8> {
    let plain = folder.join("plain");
    let _ = fs::remove_file(&plain);
    run(Command::new("mkfs.fat").args(["-F", "32", "-s", "1", "-C"]).arg(&plain).arg((34 << 10).to_string()));
    let source = folder.join("source");
    fs::create_dir_all(source.join("dir/below")).expect("made");
    for (number, name) in ["a", "a file with a long name", "dir/c", "dir/below/d"].iter().enumerate() {
        fs::write(source.join(name), vec![number as u8; 3000 * (number + 1)]).expect("written");
    }
    let names = ["a", "a file with a long name", "dir"].map(|name| source.join(name));
    run(Command::new("mcopy").arg("-s").arg("-i").arg(&plain).args(&names).arg("::"));
    let plain = fs::read(plain).expect("read");
    if !has_table {
        return plain;
    }
    let mut disk = partitions::mbr(7, &[(64, plain.len() as u32 / 512)], 64 + plain.len() as u64 / 512)
        .expect("a table");
    disk.resize(64 * 512, 0);
    disk.extend(plain);
    disk
}

/// Changes some bytes; returns their offset and number.
fn mutate(bytes: &mut [u8], random: &mut Random, start: usize) -> Vec<(usize, usize)> {
    let reserved = usize::from(u16::from_le_bytes([bytes[start + 14], bytes[start + 15]]));
    let sectors = u32::from_le_bytes(bytes[start + 36..start + 40].try_into().expect("four bytes")) as usize;
    let (fat, data) = (start + reserved * 512, start + (reserved + 2 * sectors) * 512);
    let mut changed = Vec::new();
    for _ in 0..=random.below(4) {
        // Mostly in the structures that say where everything is, the used part of the FAT, and directories; rarely
        // elsewhere.
        let (at, value) = match random.below(6) {
            0 => (random.below(512), vec![random.below(256) as u8]),
            1 => {
                let at = start + random.below(96);
                (at, vec![bytes[at] ^ 1 << random.below(8)])
            }
            2 | 3 => {
                let cluster = random.below(70);
                let value =
                    if random.below(2) == 0 { random.below(100) } else { random.below(1 << 28) } as u32;
                let copy = fat + sectors * 512 + cluster * 4;
                if random.below(2) == 0 {
                    bytes[copy..copy + 4].copy_from_slice(&value.to_le_bytes());
                    changed.push((copy, 4));
                }
                (fat + cluster * 4, value.to_le_bytes().to_vec())
            }
            4 => (data + random.below(70 * 512), vec![random.below(256) as u8]),
            _ => (random.below(bytes.len()), vec![random.below(256) as u8]),
        };
        bytes[at..at + value.len()].copy_from_slice(&value);
        changed.push((at, value.len()));
    }
    changed
}

fn fuzz(rounds: usize, seed: u64) {
    let folder = tempfile::Builder::new().prefix("holdfast-look.").tempdir().expect("a folder");
    let mut images = [false, true].map(|has_table| {
        let bytes = image(folder.path(), has_table);
        let path = folder.path().join(if has_table { "table" } else { "no table" });
        fs::write(&path, &bytes).expect("written");
        (Image(bytes), path)
    });
    let mut looker = Looker::start();
    let mut random = Random(seed);
    let (mut sound, mut unsound, mut refused) = (0, 0, 0);
    let mut before = None;
    for round in 0..rounds {
        let has_table = round % 2 == 1;
        let (image, path) = &mut images[usize::from(has_table)];
        let file = fs::File::options().write(true).open(&path).expect("opens");
        let whole = image.0.clone();
        let start = if has_table { 64 * 512 } else { 0 };
        let changed = if round < 2 { Vec::new() } else { mutate(&mut image.0, &mut random, start) };
        for (at, length) in &changed {
            file.write_all_at(&image.0[*at..at + length], *at as u64).expect("written");
        }
        let length = random.below(whole.len() / 512) * 512;
        if round > 2 && random.below(40) == 0 {
            image.0.truncate(length.max(512));
            file.set_len(image.0.len() as u64).expect("cut");
        }
        let said = looker.look(path);
        match expected(image) {
            Some(words) => assert_eq!(said, words, "seed {seed}, round {round}"),
            None => assert!(said.starts_with("refused: "), "seed {seed}, round {round}: {said}"),
        }
        file.write_all_at(&whole[image.0.len()..], image.0.len() as u64).expect("put back");
        for (at, length) in &changed {
            file.write_all_at(&whole[*at..at + length], *at as u64).expect("put back");
        }
        image.0 = whole;
        match said.split_whitespace().next() {
            Some("sound") => sound += 1,
            Some("unsound") => unsound += 1,
            _ => refused += 1,
        }
        if round == 9 {
            before = Some(looker.holdings());
        }
    }
    let (files_before, _) = before.expect("there were rounds");
    // Descriptors of the last rounds are closed when their processes end.
    eventually("few files are open and no process is left", || {
        let (files, children) = looker.holdings();
        files <= files_before + 4 && children <= 1
    });
    assert!(sound > 2 && unsound > rounds / 20 && refused > rounds / 20, "{sound}, {unsound}, {refused}");
}

/// Proves: of malformed disks the processes say exactly what the pure code says, whatever that is. No such disk harms
/// the process that asks, or leaves anything behind.
#[test]
fn malformed_disks() {
    fuzz(80, 1);
}

/// The same for thousands of disks.
#[test]
#[ignore = "long: scripts/soak disks"]
fn malformed_disks_by_the_thousand() {
    fuzz(3000, 2);
}

/// Proves: a disk that is not FAT32 is described by what it is, and so is one that cannot have a partition table.
#[test]
fn other_systems() {
    let folder = tempfile::Builder::new().prefix("holdfast-look.").tempdir().expect("a folder");
    let mut looker = Looker::start();
    let path = folder.path().join("image");
    let base = image(folder.path(), true);
    let start = 64 * 512;
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = base.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (with(start + 3, b"EXFAT   "), "exFAT"),
        (with(start + 3, b"NTFS    "), "NTFS"),
        (with(start + 3, b"-FVE-FS-"), "BitLocker"),
        (with(start + 22, &[9, 0]), "FAT12 or FAT16"),
        (with(450, &[0x83]), "type 0x83"),
        (with(450, &[0x05]), "extended"),
        (with(454, &[0xff; 4]), "does not end on the disk"),
        (with(510, &[0, 0]), "no file system without one that is known"),
        (vec![0; 1 << 20], "no file system without one that is known"),
        (vec![0xff; 1 << 20], "no file system without one that is known"),
    ];
    for (bytes, words) in cases {
        fs::write(&path, bytes).expect("written");
        let said = looker.look(&path);
        assert!(said.starts_with("refused: ") && said.contains(words), "{words}: {said}");
    }
    fs::write(&path, &base).expect("written");
    assert!(looker.look(&path).starts_with("sound "), "the last one is as it was");
}
