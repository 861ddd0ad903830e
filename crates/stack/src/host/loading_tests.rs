//! How the host handles reports: every message that an FSLoader or an FSChecker may not send, by name.

use super::*;

const MIB: u64 = 1 << 20;

fn partition() -> Partition {
    let geometry = Geometry { metadata_bytes: 8 * 512, block_bytes: 512, data_blocks: 100 };
    Partition { number: 3, start: MIB, bytes: MIB, geometry }
}

fn owner_of() -> OwnerOf {
    Arc::new(|number, path| if number == 3 && path == "/bob" { 1 } else { 0 })
}

fn files(runs: &[(u64, u64)]) -> CardRequest {
    CardRequest::Files(vec![FileBlocks { path: "/bob".to_owned(), runs: runs.to_vec() }])
}

fn entry(number: u32, start: u64, bytes: u64) -> TableEntry {
    TableEntry { number, start, bytes }
}

/// Proves: an FSChecker reads only its partition, in pieces of limited size, and a limited number of them.
#[test]
fn reads_of_a_checker() {
    let mut process = LoaderProcess::new(LoaderTask::Partition(partition()));
    for (offset, length, may) in [
        (MIB, 512, true),
        (2 * MIB - 512, 512, true),
        (MIB, READ_MAX, true),
        (MIB, READ_MAX + 1, false),
        (MIB, 0, false),
        (MIB - 512, 512, false),
        (MIB - 512, 1024, false),
        (2 * MIB - 512, 1024, false),
        (2 * MIB, 512, false),
        (u64::MAX, 512, false),
    ] {
        assert_eq!(process.may_read(offset, length), may, "{offset} {length}");
    }
    let most = READ_BYTES_MIN / u64::from(READ_MAX) + 1;
    assert!((0..=most).any(|_| !process.may_read(MIB, READ_MAX)), "it has to come to an end");
}

/// Proves: an FSLoader reads where tables are, then the first sectors of what the table names, and nothing
/// else.
#[test]
fn reads_of_a_loader() {
    let mut process = LoaderProcess::new(LoaderTask::Disk(100 * MIB));
    assert!(
        process.may_read(0, 512)
            && process.may_read(MIB - 512, 512)
            && process.may_read(100 * MIB - 512, 512)
    );
    assert!(!process.may_read(50 * MIB, 512));
    process.take(CardRequest::Table(vec![entry(1, 50 * MIB, MIB)]), &owner_of()).expect("a table");
    assert!(process.may_read(50 * MIB, 512));
    assert!(!process.may_read(50 * MIB, 1024) && !process.may_read(50 * MIB + 512, 512));
    let mut process = LoaderProcess::new(LoaderTask::Laying(1));
    assert!(!process.may_read(0, 512), "who draws up reads nothing");
}

/// Proves: each process may report only what it is asked about, in order, and impossible reports are refused.
#[test]
fn sentences() {
    let disk = LoaderTask::Disk(100 * MIB);
    let part = LoaderTask::Partition(partition());
    let table = |entries: &[TableEntry]| CardRequest::Table(entries.to_vec());
    let holds = |number| CardRequest::Partition { number, holds: Err("nothing".to_owned()) };
    let laid = |bytes: usize, count: usize| CardRequest::DiskFormat {
        mbr: vec![0; bytes],
        geometries: vec![partition().geometry; count],
    };
    let problem = || CardRequest::Problem { place: "/".to_owned(), problem: "bad".to_owned(), forbids: true };
    let end = || CardRequest::End(Ok(()));
    let good = entry(1, MIB, MIB);
    let cases: Vec<(&str, LoaderTask, Vec<CardRequest>, bool)> = vec![
        ("a table", disk, vec![table(&[good])], true),
        ("a table beyond the disk", disk, vec![table(&[entry(1, 99 * MIB, 2 * MIB)])], false),
        ("a table beyond all numbers", disk, vec![table(&[entry(1, u64::MAX, 2)])], false),
        ("an empty partition", disk, vec![table(&[entry(1, MIB, 0)])], false),
        ("too many", disk, vec![table(&vec![good; ENTRIES_MAX + 1])], false),
        ("two tables", disk, vec![table(&[good]), table(&[good])], false),
        ("what a partition holds", disk, vec![table(&[good]), holds(1)], true),
        ("what a partition holds, twice", disk, vec![table(&[good]), holds(1), holds(1)], false),
        ("what another one holds", disk, vec![table(&[good]), holds(2)], false),
        ("a partition without a table", disk, vec![holds(1)], false),
        ("a loader that names files", disk, vec![files(&[(9, 1)])], false),
        ("a loader with problems", disk, vec![problem()], false),
        ("a loader that draws up", disk, vec![laid(512, 1)], false),
        ("what is drawn up", LoaderTask::Laying(2), vec![laid(512, 2)], true),
        ("too few of it", LoaderTask::Laying(2), vec![laid(512, 1)], false),
        ("too long a table", LoaderTask::Laying(1), vec![laid(513, 1)], false),
        ("files", part, vec![files(&[(8, 1), (10, 98)])], true),
        ("a file in the metadata", part, vec![files(&[(7, 2)])], false),
        ("a file beyond the end", part, vec![files(&[(107, 2)])], false),
        ("a file beyond all numbers", part, vec![files(&[(u64::MAX, 2)])], false),
        ("a file of nothing", part, vec![files(&[(9, 0)])], false),
        ("a checker with a table", part, vec![table(&[good])], false),
        ("a word after the end", part, vec![end(), files(&[(9, 1)])], false),
        ("two ends", part, vec![end(), end()], false),
    ];
    for (name, task, said, is_fine) in cases {
        let mut process = LoaderProcess::new(task);
        let taken = said.into_iter().try_for_each(|said| process.take(said, &owner_of()));
        assert_eq!(taken.is_ok(), is_fine, "{name}: {taken:?}");
    }
}

/// Proves: blocks that are named twice invalidate the whole report; the report of a dead process is dropped
/// with it.
#[test]
fn ends() {
    let mut process = LoaderProcess::new(LoaderTask::Partition(partition()));
    process.take(files(&[(20, 5), (9, 2)]), &owner_of()).expect("files");
    process.take(CardRequest::End(Ok(())), &owner_of()).expect("the end");
    assert_eq!(process.report.end, Some(Ok(())));
    assert_eq!(process.report.survey.files, [(9, 2, 1), (20, 5, 1)]);
    process.begin();
    assert!(process.report.end.is_none() && process.report.survey.files.is_empty());
    process.take(files(&[(20, 5)]), &owner_of()).expect("a file");
    process.take(files(&[(24, 1)]), &owner_of()).expect("another");
    process.take(CardRequest::End(Ok(())), &owner_of()).expect("the end");
    assert!(matches!(&process.report.end, Some(Err(words)) if words.contains("block 24")));
}

/// Proves: text from a disk contains no terminal codes, and is of limited length.
#[test]
fn words() {
    assert_eq!(printable("a\u{1b}[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    assert_eq!(printable(&"x".repeat(10_000)).len(), 500);
    let mut process = LoaderProcess::new(LoaderTask::Partition(partition()));
    for _ in 0..500 {
        let problem =
            CardRequest::Problem { place: "/a".to_owned(), problem: "bad".to_owned(), forbids: false };
        process.take(problem, &owner_of()).expect("a problem");
    }
    let survey = &process.report.survey;
    assert_eq!((survey.problems.len(), survey.problems_all, survey.is_unsound), (PROBLEMS_MAX, 500, false));
}
