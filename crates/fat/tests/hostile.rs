//! Malformed file systems: each kind of damage by its name. Sound files are read, unsound ones are refused,
//! and nothing is written where that could do harm.

use crate::support;

use holdfast_fat::{Checked, Fat, FatError, Kind, Options, Problem, ROOT, WalkedFile};
use std::collections::BTreeSet;
use support::NOW;
use support::memory::{
    FAT_AT, FAT_SECTORS, Memory, cluster_at, entry, findings, first, set_first, set_link, sound,
};

/// One kind of damage: how it is made, which problem must be found where, and which files are refused.
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

#[rustfmt::skip]
const CASES: &[Case] = &[
    case!("a file's chain is a loop", |b| { let a = first(b, b"A"); set_link(b, a + 2, a) }, "/A", Problem::ChainTooLong { needed: 3 }, &["/A"]),
    case!("a directory's chain is a loop", |b| { let d = first(b, b"DIR"); set_link(b, d, d) }, "/DIR", Problem::CrossLinked(_), &["/DIR"]),
    case!("two files share clusters", |b| { let a = first(b, b"A"); set_first(b, b"B", a + 1) }, "/B", Problem::CrossLinked(_), &["/A", "/B"]),
    case!("a chain is too short", |b| { let a = first(b, b"A"); set_link(b, a, 0x0fff_ffff) }, "/A", Problem::ChainTooShort { clusters: 1, needed: 3 }, &["/A"]),
    case!("a chain is too long", |b| { let (a, e) = (first(b, b"A"), entry(b, b"A")); b[e + 28..e + 32].copy_from_slice(&5u32.to_le_bytes()); assert!(a > 2) }, "/A", Problem::ChainTooLong { needed: 1 }, &["/A"]),
    case!("a chain leaves the medium", |b| { let a = first(b, b"A"); set_link(b, a, 0x0abc_def0) }, "/A", Problem::OutOfRange { next: 0x0abc_def0, .. }, &["/A"]),
    case!("a chain runs through a free cluster", |b| { let a = first(b, b"A"); set_link(b, a + 1, 0) }, "/A", Problem::FreeInChain(_), &["/A"]),
    case!("a chain runs through a bad cluster", |b| { let a = first(b, b"A"); set_link(b, a + 1, 0x0fff_fff7) }, "/A", Problem::BadInChain(_), &["/A"]),
    case!("a file starts outside the medium", |b| set_first(b, b"A", 0x0fff_0000), "/A", Problem::OutOfRange { after: 0, .. }, &["/A"]),
    case!("a file starts at cluster 1", |b| set_first(b, b"A", 1), "/A", Problem::OutOfRange { after: 0, next: 1 }, &["/A"]),
    case!("a file with bytes has no cluster", |b| set_first(b, b"A", 0), "/A", Problem::ChainTooShort { clusters: 0, .. }, &["/A"]),
    case!("an empty file has a cluster", |b| { let e = entry(b, b"B"); b[e + 28..e + 32].fill(0) }, "/B", Problem::ChainTooLong { needed: 0 }, &["/B"]),
    case!("a directory has no cluster", |b| set_first(b, b"DIR", 0), "/DIR", Problem::DirectoryWithoutCluster, &["/DIR"]),
    case!("a file says it is a directory", |b| { let e = entry(b, b"B"); b[e + 11] = 0x10 }, "/B", Problem::BadDots("."), &[]),
    case!("a directory says it is a file", |b| { let e = entry(b, b"DIR"); b[e + 11] = 0x20 }, "/DIR", Problem::ChainTooLong { needed: 0 }, &["/DIR"]),
    case!("`..` points elsewhere", |b| { let d = first(b, b"DIR"); b[cluster_at(d) + 32 + 26] = 9 }, "/DIR", Problem::BadDots(".."), &[]),
    case!("`.` points elsewhere", |b| { let d = first(b, b"DIR"); b[cluster_at(d) + 26] += 1 }, "/DIR", Problem::BadDots("."), &[]),
    case!("a directory is below itself", |b| { let d = first(b, b"DIR"); set_first(b, b"SUB", d) }, "/DIR/SUB", Problem::CrossLinked(_), &["/DIR"]),
    case!("the root is below itself", |b| set_first(b, b"SUB", 2), "/DIR/SUB", Problem::CrossLinked(2), &["/"]),
    case!("the copies of the table differ", |b| b[FAT_AT + FAT_SECTORS as usize * 512 + 40] ^= 3, "the file allocation table", Problem::CopiesDiffer(10), &[]),
    // The following ones are only untidy.
    case!("a long name's piece is missing", |b| { let e = entry(b, b"ALONGN~1TXT"); b[e - 32] = 0xe5 }, "/", Problem::BrokenLongName, &[]),
    case!("a long name's sum is wrong", |b| { let e = entry(b, b"ALONGN~1TXT"); b[e - 32 + 13] ^= 1 }, "/", Problem::BrokenLongName, &[]),
    case!("a long name's pieces are out of order", |b| { let e = entry(b, b"ALONGN~1TXT"); b[e - 32] = 7 }, "/", Problem::BrokenLongName, &[]),
    case!("entries after the end", |b| { let d = first(b, b"SUB"); b[cluster_at(d) + 96..cluster_at(d) + 107].copy_from_slice(b"GHOST   TXT") }, "/DIR/SUB", Problem::AfterEnd, &[]),
    case!("a directory with a size", |b| { let e = entry(b, b"DIR"); b[e + 28] = 1 }, "/DIR", Problem::DirectoryWithSize, &[]),
    case!("a name that cannot be", |b| { let e = entry(b, b"B"); b[e] = b'*' }, "/\u{fffd}", Problem::BadName, &[]),
    case!("a name twice", |b| { let e = entry(b, b"B"); b[e] = b'A' }, "/A", Problem::DuplicateName, &[]),
    case!("lost clusters", |b| set_link(b, 300, 301), "the file allocation table", Problem::Lost { clusters: 1, first: 300 }, &[]),
    case!("a wrong summary", |b| b[512 + 488] ^= 1, "FSInfo", Problem::Summary { .. }, &[]),
    case!("no summary where one should be", |b| b[512] ^= 1, "FSInfo", Problem::BadFsInfo, &[]),
    case!("another copy of the boot sector", |b| b[6 * 512 + 100] ^= 1, "the boot sector", Problem::BackupDiffers, &[]),
    case!("not unmounted", |b| { let raw = 0x07ff_ffff; set_link(b, 1, raw) }, "the boot sector", Problem::NotUnmounted, &[]),
];

/// Proves that each kind of damage is found with its name and place, that exactly the affected files are
/// refused, that the others can be read, and that nothing is written where that could do harm.
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
        assert!(matches!(fat.create(ROOT, "NEW", Kind::File, NOW), Err(FatError::NotChecked)));
        assert!(fat.map(ROOT, 0, 1).is_err_and(|error| error == FatError::NotChecked), "{}", case.name);
        fat.vouch(&checked);
        assert_eq!(fat.read_only().is_some(), forbids, "{}", case.name);
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
            WalkedFile::Sound { path, blocks: ranges, .. } => {
                sound.insert(path);
                for index in ranges.iter().flat_map(|range| range.start..range.start + range.count) {
                    assert!(blocks.insert(index), "{}: block {index} is named twice", case.name);
                }
            }
            WalkedFile::Refused(finding) => {
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

/// Proves that without a check, unsound parts are found when they are reached, and end all changes.
#[test]
fn what_is_come_by_later_ends_changes() {
    let mut bytes = sound();
    let a = first(&bytes, b"A");
    set_link(&mut bytes, a + 2, a);
    let memory = Memory::new(bytes).expect("sound");
    let mut fat = Fat::mount(memory.layout.clone(), memory, Options::default()).expect("sound");
    fat.vouch(&Checked::as_we_left_it());
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

/// Proves that a looping root directory is refused before anything is read from it.
#[test]
fn a_root_that_is_a_loop_is_refused() {
    let mut bytes = sound();
    set_link(&mut bytes, 2, 2);
    let memory = Memory::new(bytes).expect("the boot sector is sound");
    assert!(matches!(findings(&memory).1, Err(FatError::Unsound { problem: Problem::CrossLinked(2), .. })));
    assert!(Fat::mount(memory.layout.clone(), memory, Options::default()).is_err());
}

/// Proves that what follows an end mark stays unseen when the mark moves.
#[test]
fn what_follows_the_end_stays_unseen() {
    let mut bytes = sound();
    let at = cluster_at(first(&bytes, b"SUB"));
    for slot in 3..10 {
        bytes[at + slot * 32..at + slot * 32 + 11].copy_from_slice(b"GHOST   TXT");
    }
    let memory = Memory::new(bytes).expect("sound");
    let (found, checked) = findings(&memory);
    assert!(found.iter().all(|finding| finding.problem == Problem::AfterEnd) && !found.is_empty());
    let mut fat = Fat::mount(memory.layout.clone(), memory, Options::default()).expect("sound");
    fat.vouch(&checked.expect("sound"));
    let (dir, _) = fat.lookup(ROOT, "DIR").expect("there");
    let (sub, _) = fat.lookup(dir, "SUB").expect("there");
    for name in ["one", "two", "a long name of three slots"] {
        let change = fat.create(sub, name, Kind::File, NOW).expect("created");
        support::memory::settle(&mut fat, change);
        assert!(fat.list(sub, 0, 100).expect("listed").iter().all(|entry| !entry.name.starts_with("GHOST")));
    }
    assert_eq!(fat.list(sub, 0, 100).expect("listed").len(), 3);
}

/// Proves that of many files that share one chain all are refused, each at its first cluster, so that the
/// cost of a check does not multiply.
#[test]
fn many_files_of_one_chain() {
    let mut bytes = sound();
    let (start, end) = (100, 560);
    for cluster in start..end {
        set_link(&mut bytes, cluster, if cluster + 1 == end { 0x0fff_ffff } else { cluster + 1 });
    }
    let at = cluster_at(first(&bytes, b"SUB"));
    for slot in 2..16 {
        let mut entry = [0; 32];
        entry[..11].copy_from_slice(format!("FILE{slot:04}TXT").as_bytes());
        entry[11] = 0x20;
        entry[26..28].copy_from_slice(&(start as u16).to_le_bytes());
        entry[28..].copy_from_slice(&((end - start) * 512).to_le_bytes());
        bytes[at + slot * 32..at + (slot + 1) * 32].copy_from_slice(&entry);
    }
    let memory = Memory::new(bytes).expect("sound");
    let (found, checked) = findings(&memory);
    let crossed = found.iter().filter(|finding| finding.problem == Problem::CrossLinked(start)).count();
    assert_eq!(crossed, 13);
    let mut fat = Fat::mount(memory.layout.clone(), memory, Options::default()).expect("sound");
    let mut refused = 0;
    fat.walk(&checked.expect("sound"), &mut |walked| {
        refused += usize::from(matches!(walked, WalkedFile::Refused(_)))
    })
    .expect("walked");
    assert_eq!(refused, 14, "whichever came first");
}
