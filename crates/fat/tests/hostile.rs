//! Malformed file systems: each kind of harm by its name, and thousands of random ones. Nothing panics, nothing hangs,
//! what is sound is read, what is not is refused, and nothing is written to what is unsound.

mod support;

use holdfast_fat::{
    Area, BlockId, Checked, Fat, FatError, FileId, Finding, Kind, Layout, Metadata, Moment, Options, Problem,
    ROOT, Replace, Transaction, Walked, check,
};
use std::cell::RefCell;
use std::collections::BTreeSet;
use support::Random;

const NOW: Moment = Moment { seconds: 1_795_357_683, nanoseconds: 0 };
const SECTORS: u32 = 600;
const FAT_SECTORS: u32 = 5;
const RESERVED: u32 = 8;
const CLUSTER: usize = 512;
const FAT_AT: usize = RESERVED as usize * 512;
const DATA_AT: usize = (RESERVED + 2 * FAT_SECTORS) as usize * 512;

/// A file system in memory. If `unsteady` is set, somebody changes it between reads.
#[derive(Clone)]
struct Memory {
    bytes: RefCell<Vec<u8>>,
    layout: Layout,
    unsteady: RefCell<Option<u64>>,
}

impl Metadata for Memory {
    fn read(&self, block: BlockId, into: &mut [u8]) -> Result<(), String> {
        let (at, length) = self.layout.place(block);
        assert_eq!(into.len(), length);
        if let Some(seed) = self.unsteady.borrow_mut().as_mut() {
            let mut random = Random(*seed);
            if random.below(8) == 0 {
                harm(&mut self.bytes.borrow_mut(), &mut random);
            }
            *seed = random.0;
        }
        let bytes = self.bytes.borrow();
        into.copy_from_slice(bytes.get(at as usize..at as usize + length).ok_or("beyond the end")?);
        Ok(())
    }
}

impl Memory {
    fn commit(&self, transaction: &Transaction) {
        for (block, bytes) in &transaction.blocks {
            let (at, length) = self.layout.place(*block);
            assert_eq!(bytes.len(), length);
            assert!(block.index < self.layout.area_blocks(block.area));
            self.bytes.borrow_mut()[at as usize..at as usize + length].copy_from_slice(bytes);
        }
    }

    fn new(bytes: Vec<u8>) -> Result<Memory, FatError> {
        let layout = Layout::from_boot_sector(&bytes, bytes.len() as u64)?;
        Ok(Memory { bytes: RefCell::new(bytes), layout, unsteady: RefCell::default() })
    }
}

/// A small file system, as `mkfs.fat` lays one out.
fn empty() -> Vec<u8> {
    let mut bytes = vec![0; SECTORS as usize * 512];
    let boot = &mut bytes[..512];
    boot[..3].copy_from_slice(&[0xeb, 0x58, 0x90]);
    boot[3..11].copy_from_slice(b"mkfs.fat");
    boot[11..13].copy_from_slice(&512u16.to_le_bytes());
    boot[13] = 1;
    boot[14..16].copy_from_slice(&(RESERVED as u16).to_le_bytes());
    boot[16] = 2;
    boot[21] = 0xf8;
    boot[32..36].copy_from_slice(&SECTORS.to_le_bytes());
    boot[36..40].copy_from_slice(&FAT_SECTORS.to_le_bytes());
    boot[44] = 2;
    boot[48] = 1;
    boot[50] = 6;
    boot[510..512].copy_from_slice(&[0x55, 0xaa]);
    bytes.copy_within(..512, 6 * 512);
    let free = SECTORS - RESERVED - 2 * FAT_SECTORS - 1;
    for (at, word) in [(0, 0x4161_5252u32), (484, 0x6141_7272), (488, free), (492, 2), (508, 0xaa55_0000)] {
        bytes[512 + at..516 + at].copy_from_slice(&word.to_le_bytes());
    }
    for copy in 0..2 {
        let fat = FAT_AT + copy * FAT_SECTORS as usize * 512;
        for (at, word) in [(0, 0x0fff_fff8u32), (4, 0x0fff_ffff), (8, 0x0fff_ffff)] {
            bytes[fat + at..fat + at + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

fn apply<T>(fat: &mut Fat<Memory>, change: holdfast_fat::Change<T>) -> T {
    fat.metadata().commit(&change.transaction);
    fat.applied(change.transaction).expect("outstanding");
    change.value
}

/// A tree: `/A` of 3 clusters, `/B` of 2, `/DIR/` with `C` of 2 and `SUB/`, and `/A long name.txt`.
fn sound() -> Vec<u8> {
    let memory = Memory::new(empty()).expect("sound");
    let mut fat = Fat::mount(memory.layout.clone(), memory, Options::default()).expect("sound");
    fat.allow_changes(&Checked::as_we_left_it()).expect("sound");
    let mut make = |parent: FileId, name: &str, clusters: u64| {
        let kind = if clusters == 0 { Kind::Directory } else { Kind::File };
        let change = fat.create(parent, name, kind, NOW).expect("created");
        let id = apply(&mut fat, change);
        if clusters > 0 {
            let change = fat.resize(id, clusters * CLUSTER as u64 - 10, NOW).expect("resized");
            apply(&mut fat, change);
        }
        id
    };
    make(ROOT, "A", 3);
    make(ROOT, "B", 2);
    let directory = make(ROOT, "DIR", 0);
    make(directory, "C", 2);
    make(directory, "SUB", 0);
    make(ROOT, "A long name.txt", 1);
    fat.metadata().bytes.borrow().clone()
}

fn cluster_at(cluster: u32) -> usize {
    DATA_AT + (cluster as usize - 2) * CLUSTER
}

/// Where an entry is, by the first bytes of its short name.
fn entry(bytes: &[u8], name: &[u8]) -> usize {
    let mut padded = [b' '; 11];
    padded[..name.len()].copy_from_slice(name);
    (DATA_AT..bytes.len())
        .step_by(32)
        .find(|at| bytes[*at..*at + 11] == padded && bytes[*at + 11] & 0x3f != 0x0f)
        .expect("an entry")
}

fn first(bytes: &[u8], name: &[u8]) -> u32 {
    let at = entry(bytes, name);
    u32::from(bytes[at + 26]) | u32::from(bytes[at + 27]) << 8
}

fn set_first(bytes: &mut [u8], name: &[u8], cluster: u32) {
    let at = entry(bytes, name);
    bytes[at + 26..at + 28].copy_from_slice(&(cluster as u16).to_le_bytes());
    bytes[at + 20..at + 22].copy_from_slice(&((cluster >> 16) as u16).to_le_bytes());
}

fn set_link(bytes: &mut [u8], cluster: u32, link: u32) {
    for copy in 0..2 {
        let at = FAT_AT + copy * FAT_SECTORS as usize * 512 + cluster as usize * 4;
        bytes[at..at + 4].copy_from_slice(&link.to_le_bytes());
    }
}

fn findings(memory: &Memory) -> (Vec<Finding>, Result<Checked, FatError>) {
    let mut findings = Vec::new();
    let checked = check(&memory.layout, memory, &mut |finding| findings.push(finding));
    (findings, checked)
}

/// One kind of harm: what is done, what must be found and where, and which files are refused.
struct Case {
    name: &'static str,
    harm: fn(&mut Vec<u8>),
    place: &'static str,
    problem: fn(&Problem) -> bool,
    refused: &'static [&'static str],
}

macro_rules! case {
    ($name:literal, $harm:expr, $place:literal, $problem:pat, $refused:expr) => {
        Case {
            name: $name,
            harm: $harm,
            place: $place,
            problem: |problem| matches!(problem, $problem),
            refused: $refused,
        }
    };
}

const CASES: &[Case] = &[
    case!(
        "a file's chain is a loop",
        |b| {
            let a = first(b, b"A");
            set_link(b, a + 2, a)
        },
        "/A",
        Problem::ChainTooLong { needed: 3 },
        &["/A"]
    ),
    case!(
        "a directory's chain is a loop",
        |b| {
            let d = first(b, b"DIR");
            set_link(b, d, d)
        },
        "/DIR",
        Problem::DirectoryTooLong,
        &["/DIR"]
    ),
    case!(
        "two files share clusters",
        |b| {
            let a = first(b, b"A");
            set_first(b, b"B", a + 1)
        },
        "/B",
        Problem::CrossLinked(_),
        &["/A", "/B"]
    ),
    case!(
        "a chain is too short",
        |b| {
            let a = first(b, b"A");
            set_link(b, a, 0x0fff_ffff)
        },
        "/A",
        Problem::ChainTooShort { clusters: 1, needed: 3 },
        &["/A"]
    ),
    case!(
        "a chain is too long",
        |b| {
            let (a, e) = (first(b, b"A"), entry(b, b"A"));
            b[e + 28..e + 32].copy_from_slice(&5u32.to_le_bytes());
            assert!(a > 2)
        },
        "/A",
        Problem::ChainTooLong { needed: 1 },
        &["/A"]
    ),
    case!(
        "a chain leaves the medium",
        |b| {
            let a = first(b, b"A");
            set_link(b, a, 0x0abc_def0)
        },
        "/A",
        Problem::OutOfRange { next: 0x0abc_def0, .. },
        &["/A"]
    ),
    case!(
        "a chain runs through a free cluster",
        |b| {
            let a = first(b, b"A");
            set_link(b, a + 1, 0)
        },
        "/A",
        Problem::FreeInChain(_),
        &["/A"]
    ),
    case!(
        "a chain runs through a bad cluster",
        |b| {
            let a = first(b, b"A");
            set_link(b, a + 1, 0x0fff_fff7)
        },
        "/A",
        Problem::BadInChain(_),
        &["/A"]
    ),
    case!(
        "a file starts outside the medium",
        |b| set_first(b, b"A", 0x0fff_0000),
        "/A",
        Problem::OutOfRange { after: 0, .. },
        &["/A"]
    ),
    case!(
        "a file starts at cluster 1",
        |b| set_first(b, b"A", 1),
        "/A",
        Problem::OutOfRange { after: 0, next: 1 },
        &["/A"]
    ),
    case!(
        "a file with bytes has no cluster",
        |b| set_first(b, b"A", 0),
        "/A",
        Problem::ChainTooShort { clusters: 0, .. },
        &["/A"]
    ),
    case!(
        "an empty file has a cluster",
        |b| {
            let e = entry(b, b"B");
            b[e + 28..e + 32].fill(0)
        },
        "/B",
        Problem::ChainTooLong { needed: 0 },
        &["/B"]
    ),
    case!(
        "a directory has no cluster",
        |b| set_first(b, b"DIR", 0),
        "/DIR",
        Problem::DirectoryWithoutCluster,
        &["/DIR"]
    ),
    case!(
        "a file says it is a directory",
        |b| {
            let e = entry(b, b"B");
            b[e + 11] = 0x10
        },
        "/B",
        Problem::BadDots("."),
        &[]
    ),
    case!(
        "a directory says it is a file",
        |b| {
            let e = entry(b, b"DIR");
            b[e + 11] = 0x20
        },
        "/DIR",
        Problem::ChainTooLong { needed: 0 },
        &["/DIR"]
    ),
    case!(
        "`..` points elsewhere",
        |b| {
            let d = first(b, b"DIR");
            b[cluster_at(d) + 32 + 26] = 9
        },
        "/DIR",
        Problem::BadDots(".."),
        &[]
    ),
    case!(
        "`.` points elsewhere",
        |b| {
            let d = first(b, b"DIR");
            b[cluster_at(d) + 26] += 1
        },
        "/DIR",
        Problem::BadDots("."),
        &[]
    ),
    case!(
        "a directory is below itself",
        |b| {
            let d = first(b, b"DIR");
            set_first(b, b"SUB", d)
        },
        "/DIR/SUB",
        Problem::CrossLinked(_),
        &["/DIR"]
    ),
    case!(
        "the root is below itself",
        |b| set_first(b, b"SUB", 2),
        "/DIR/SUB",
        Problem::CrossLinked(2),
        &["/"]
    ),
    case!(
        "the copies of the table differ",
        |b| b[FAT_AT + FAT_SECTORS as usize * 512 + 40] ^= 3,
        "the file allocation table",
        Problem::CopiesDiffer(10),
        &[]
    ),
    // What follows is only untidy.
    case!(
        "a long name's piece is missing",
        |b| {
            let e = entry(b, b"ALONGN~1TXT");
            b[e - 32] = 0xe5
        },
        "/",
        Problem::BrokenLongName,
        &[]
    ),
    case!(
        "a long name's sum is wrong",
        |b| {
            let e = entry(b, b"ALONGN~1TXT");
            b[e - 32 + 13] ^= 1
        },
        "/",
        Problem::BrokenLongName,
        &[]
    ),
    case!(
        "a long name's pieces are out of order",
        |b| {
            let e = entry(b, b"ALONGN~1TXT");
            b[e - 32] = 7
        },
        "/",
        Problem::BrokenLongName,
        &[]
    ),
    case!(
        "entries after the end",
        |b| {
            let d = first(b, b"SUB");
            b[cluster_at(d) + 96..cluster_at(d) + 107].copy_from_slice(b"GHOST   TXT")
        },
        "/DIR/SUB",
        Problem::AfterEnd,
        &[]
    ),
    case!(
        "a directory with a size",
        |b| {
            let e = entry(b, b"DIR");
            b[e + 28] = 1
        },
        "/DIR",
        Problem::DirectoryWithSize,
        &[]
    ),
    case!(
        "a name that cannot be",
        |b| {
            let e = entry(b, b"B");
            b[e] = b'*'
        },
        "/\u{fffd}",
        Problem::BadName,
        &[]
    ),
    case!(
        "a name twice",
        |b| {
            let e = entry(b, b"B");
            b[e] = b'A'
        },
        "/A",
        Problem::DuplicateName,
        &[]
    ),
    case!(
        "lost clusters",
        |b| set_link(b, 300, 301),
        "the file allocation table",
        Problem::Lost { clusters: 1, first: 300 },
        &[]
    ),
    case!("a wrong summary", |b| b[512 + 488] ^= 1, "FSInfo", Problem::Summary { .. }, &[]),
    case!("no summary where one should be", |b| b[512] ^= 1, "FSInfo", Problem::BadFsInfo, &[]),
    case!(
        "another copy of the boot sector",
        |b| b[6 * 512 + 100] ^= 1,
        "the boot sector",
        Problem::BackupDiffers,
        &[]
    ),
    case!(
        "not unmounted",
        |b| {
            let raw = 0x07ff_ffff;
            set_link(b, 1, raw)
        },
        "the boot sector",
        Problem::NotUnmounted,
        &[]
    ),
];

/// Proves that each kind of harm is found by its name and place, that exactly the files concerned are refused, that
/// the others can be read, and that nothing is written where that could do harm.
#[test]
fn every_harm_has_its_name() {
    let all = ["/", "/A", "/B", "/DIR", "/DIR/C", "/DIR/SUB", "/A long name.txt"];
    let clean = Memory::new(sound()).expect("sound");
    assert_eq!(findings(&clean).0, []);
    for case in CASES {
        let mut bytes = sound();
        (case.harm)(&mut bytes);
        let memory = Memory::new(bytes).expect("the boot sector is sound");
        let (found, checked) = findings(&memory);
        let checked = checked.expect("the root directory is sound");
        assert!(
            found.iter().any(|finding| finding.place == case.place && (case.problem)(&finding.problem)),
            "{}: {found:?}",
            case.name
        );
        let forbids = found.iter().any(|finding| finding.problem.forbids_changes());
        assert_eq!(checked.refusal.is_some(), forbids, "{}", case.name);
        let mut fat = match Fat::mount(memory.layout.clone(), memory, Options::default()) {
            Ok(fat) => fat,
            Err(error) => panic!("{}: {error}", case.name),
        };
        // Before the check is given to it, the driver changes nothing.
        assert!(matches!(fat.create(ROOT, "NEW", Kind::File, NOW), Err(FatError::ReadOnly(_))));
        assert_eq!(fat.allow_changes(&checked).is_err(), forbids, "{}", case.name);
        match fat.create(ROOT, "NEW", Kind::File, NOW) {
            Ok(change) => {
                assert!(!forbids, "{}", case.name);
                fat.abandoned(change.transaction).expect("outstanding");
            }
            Err(FatError::ReadOnly(why)) => assert!(forbids && why.contains("unsound"), "{}", case.name),
            Err(error) => panic!("{}: {error}", case.name),
        }
        let (mut sound, mut refused, mut blocks) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let walked = fat.walk(&checked, &mut |walked| match walked {
            Walked::Sound { path, blocks: ranges, .. } => {
                sound.insert(path);
                for index in ranges.iter().flat_map(|range| range.start..range.start + range.count) {
                    assert!(blocks.insert(index), "{}: block {index} is named twice", case.name);
                }
            }
            Walked::Refused(finding) => {
                refused.insert(finding.place);
            }
        });
        if case.refused == ["/"] {
            assert!(matches!(walked, Err(FatError::Unsound { problem: Problem::CrossLinked(2), .. })));
            continue;
        }
        walked.expect(case.name);
        let expected: BTreeSet<String> = case.refused.iter().map(|path| path.to_string()).collect();
        assert_eq!(refused, expected, "{}", case.name);
        if forbids {
            for path in all {
                let below = case.refused.iter().any(|refused| path.starts_with(&format!("{refused}/")));
                assert!(
                    sound.contains(path) || refused.contains(path) || below,
                    "{}: {path} is not there",
                    case.name
                );
            }
        }
        // Every sound file can be mapped, every refused one cannot.
        for path in sound.iter().chain(&refused) {
            let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
            let mut id = ROOT;
            let mut reached = true;
            for part in parts {
                match fat.lookup(id, part) {
                    Ok((next, _)) => id = next,
                    Err(FatError::Unsound { .. }) => reached = false,
                    Err(error) => panic!("{}: {path}: {error}", case.name),
                }
            }
            if reached && fat.stat(id).expect("found").kind == Kind::File {
                assert_eq!(fat.map(id, 0, 1 << 20).is_ok(), sound.contains(path), "{}: {path}", case.name);
            }
        }
    }
}

/// Proves that without a check, what is unsound is found when it is come by, and ends all changes.
#[test]
fn what_is_come_by_later_ends_changes() {
    let mut bytes = sound();
    let a = first(&bytes, b"A");
    set_link(&mut bytes, a + 2, a);
    let memory = Memory::new(bytes).expect("sound");
    let mut fat = Fat::mount(memory.layout.clone(), memory, Options::default()).expect("sound");
    fat.allow_changes(&Checked::as_we_left_it()).expect("nobody knows better");
    let (b, _) = fat.lookup(ROOT, "B").expect("sound");
    let (a, _) = fat.lookup(ROOT, "A").expect("its entry is sound");
    assert!(matches!(
        fat.unlink(ROOT, "A", NOW),
        Err(FatError::Unsound { problem: Problem::ChainTooLong { .. }, .. })
    ));
    assert!(fat.map(a, 0, 100).is_err());
    assert!(matches!(fat.resize(b, 0, NOW), Err(FatError::ReadOnly(_))));
    assert_eq!(fat.map(b, 0, 2000).expect("B is sound").len(), 1);
}

/// Proves that a root directory that is a loop is refused before anything is read of it.
#[test]
fn a_root_that_is_a_loop_is_refused() {
    let mut bytes = sound();
    set_link(&mut bytes, 2, 2);
    let memory = Memory::new(bytes).expect("the boot sector is sound");
    assert!(matches!(findings(&memory).1, Err(FatError::Unsound { problem: Problem::DirectoryTooLong, .. })));
    assert!(Fat::mount(memory.layout.clone(), memory, Options::default()).is_err());
}

/// Changes some bytes where it hurts.
fn harm(bytes: &mut [u8], random: &mut Random) {
    let clusters = SECTORS - RESERVED - 2 * FAT_SECTORS + 2;
    let directories = bytes.len() - DATA_AT;
    match random.below(10) {
        0 => {
            let at = random.below(92) as usize;
            bytes[at] = random.next() as u8;
        }
        1..6 => {
            let link = match random.below(6) {
                0 => 0,
                1 => 0x0fff_ffff,
                2 => 0x0fff_fff7,
                3 => random.next() as u32,
                _ => random.below(40) as u32,
            };
            let cluster =
                if random.below(3) == 0 { random.below(u64::from(clusters)) } else { random.below(24) };
            match random.below(4) {
                0 => {
                    let at = FAT_AT + cluster as usize * 4;
                    bytes[at..at + 4].copy_from_slice(&link.to_le_bytes());
                }
                _ => set_link(bytes, cluster as u32, link),
            }
        }
        _ => {
            // An entry of one of the first clusters: a field of it, or all.
            let slot = random.below(16 * 16) as usize;
            let at = DATA_AT + (slot * 32) % directories;
            let fields = [(0, 1), (11, 1), (20, 2), (26, 2), (28, 4), (13, 1), (0, 32)];
            let (field, length) = *random.of(&fields);
            for byte in &mut bytes[at + field..at + field + length] {
                *byte = match random.below(3) {
                    0 => 0,
                    1 => random.below(24) as u8,
                    _ => random.next() as u8,
                };
            }
            if random.below(4) == 0 {
                let other = DATA_AT + random.below(16 * 16) as usize * 32;
                bytes.copy_within(other..other + 32, at);
            }
        }
    }
}

/// Does everything there is to do, a few times. Anything may fail; nothing may panic.
fn exercise(fat: &mut Fat<Memory>, random: &mut Random) {
    let names =
        ["A", "B", "DIR", "C", "SUB", "A long name.txt", "NEW", "ALONGN~1.TXT", "Some other long name"];
    let mut known = vec![ROOT];
    for _ in 0..24 {
        let id = *random.of(&known);
        let other = *random.of(&known);
        let (name, new_name) = (*random.of(&names), *random.of(&names));
        fn settle<T>(fat: &mut Fat<Memory>, change: Result<holdfast_fat::Change<T>, FatError>) -> Option<T> {
            change.ok().map(|change| apply(fat, change))
        }
        match random.below(12) {
            0 | 1 => {
                if let Ok((found, _)) = fat.lookup(id, name) {
                    known.push(found);
                }
            }
            2 => {
                let _ = fat.list(id, random.below(20), 100);
            }
            3 => {
                let kind = if random.below(2) == 0 { Kind::File } else { Kind::Directory };
                let change = fat.create(id, name, kind, NOW);
                known.extend(settle(fat, change));
            }
            4 => {
                let change = fat.unlink(id, name, NOW);
                settle(fat, change);
            }
            5 => {
                let change = fat.rmdir(id, name, NOW);
                settle(fat, change);
            }
            6 => {
                let change = fat.rename((id, name), (other, new_name), Replace::Yes, NOW);
                settle(fat, change);
            }
            7 => {
                let change = fat.resize(id, random.below(6000), NOW);
                settle(fat, change);
            }
            8 => {
                let _ = (fat.map(id, random.below(3000), random.below(6000)), fat.stat(id), fat.sizes());
            }
            9 => {
                for item in fat.limbo(None, 10).unwrap_or_default() {
                    if let Ok(returning) = fat.returning(item.id) {
                        let change = fat.free(item.id, returning.clusters);
                        settle(fat, change);
                    }
                }
            }
            10 => {
                let change = fat.set_label(name, NOW);
                settle(fat, change);
                let _ = (fat.label(), fat.was_unmounted());
            }
            _ => {
                if id != ROOT {
                    fat.forget(id, 1);
                }
            }
        }
    }
}

fn fuzz(seeds: std::ops::Range<u64>) {
    let sound = sound();
    let (mut refused, mut clean) = (0, 0);
    for seed in seeds {
        let mut random = Random(seed);
        let mut bytes = sound.clone();
        for _ in 0..=random.below(6) {
            harm(&mut bytes, &mut random);
        }
        let Ok(memory) = Memory::new(bytes.clone()) else {
            refused += 1;
            continue;
        };
        let (found, checked) = findings(&memory);
        let Ok(mut fat) = Fat::mount(memory.layout.clone(), memory.clone(), Options::default()) else {
            assert!(checked.is_err(), "seed {seed}: what was checked can be mounted");
            refused += 1;
            continue;
        };
        if let Ok(checked) = checked {
            // Whose each block is can be said of one file only.
            let mut blocks = BTreeSet::new();
            let _ = fat.walk(&checked, &mut |walked| {
                if let Walked::Sound { blocks: ranges, path, .. } = walked {
                    for index in ranges.iter().flat_map(|range| range.start..range.start + range.count) {
                        assert!(blocks.insert(index), "seed {seed}: {path}: block {index} is named twice");
                    }
                }
            });
            let forbids = found.iter().any(|finding| finding.problem.forbids_changes());
            assert_eq!(forbids, fat.read_only().is_some(), "seed {seed}");
            if !forbids {
                clean += 1;
                exercise(&mut fat, &mut random);
                // What was sound stays sound.
                let after = fat.metadata().clone();
                let (found, _) = findings(&after);
                let worse: Vec<_> =
                    found.iter().filter(|finding| finding.problem.forbids_changes()).collect();
                assert!(worse.is_empty(), "seed {seed}: {worse:?}");
            } else {
                let before = fat.metadata().bytes.borrow().clone();
                exercise(&mut fat, &mut random);
                assert!(
                    before == *fat.metadata().bytes.borrow(),
                    "seed {seed}: an unsound file system was changed"
                );
            }
        }
        // And if somebody vouched for it falsely, or changes it meanwhile, nothing panics either.
        for unsteady in [None, Some(seed)] {
            *memory.unsteady.borrow_mut() = unsteady;
            if let Ok(mut fat) = Fat::mount(memory.layout.clone(), memory.clone(), Options::default()) {
                let _ = fat.allow_changes(&Checked::as_we_left_it());
                exercise(&mut fat, &mut random);
            }
        }
    }
    assert!(refused > 0 && clean > 0, "the seeds show something: {refused} refused, {clean} clean");
}

/// A sample of malformed file systems.
#[test]
fn malformed_file_systems() {
    fuzz(0..10_000);
}

/// Many: run with `--ignored`.
#[test]
#[ignore = "takes minutes"]
fn a_million_malformed_file_systems() {
    fuzz(10_000..1_010_000);
}

/// Proves that random bytes in the place of a boot sector are refused or make a layout that fits the partition.
#[test]
fn random_boot_sectors() {
    let sound = sound();
    let mut random = Random(7);
    for _ in 0..20_000 {
        let mut boot = sound[..512].to_vec();
        for _ in 0..=random.below(8) {
            let at = random.below(92) as usize;
            boot[at] = random.next() as u8;
        }
        let bytes = random.below(1 << 40);
        if let Ok(layout) = Layout::from_boot_sector(&boot, bytes) {
            for area in [Area::Metadata, Area::Data] {
                let index = layout.area_blocks(area) - 1;
                let (start, length) = layout.place(BlockId { area, index });
                assert!(length > 0 && start + length as u64 <= bytes);
            }
        }
    }
}
