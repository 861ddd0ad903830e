//! Tools of other authors: what `mkfs.fat` made and mtools filled is read here, and what is formatted here is
//! accepted there.

use crate::support;

use holdfast_fat::format::{FormatOptions, format};
use holdfast_fat::partitions::{self, PartitionContent, Sectors};
use holdfast_fat::{Attributes, Facts, Fat, Kind, Moment, Options, ROOT, WalkedFile};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use support::*;

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("holdfast-fat-").tempdir().expect("a folder")
}

/// Names of many scripts and shapes, as people have them on their cards.
fn names() -> Vec<String> {
    let mut names: Vec<String> = [
        "README.TXT",
        "readme.txt2",
        "Straße in München.txt",
        "Ελληνικά αρχεία.doc",
        "Русский файл.txt",
        "日本語のとても長いファイル名です。.txt",
        "한국어 파일.txt",
        "العربية.txt",
        "עברית.txt",
        "हिन्दी.txt",
        "ไทย.txt",
        "Tiếng Việt đầy đủ dấu.txt",
        "IMG_0001.JPG",
        "DCIM",
        ".Trashes",
        "._resource fork",
        "a.b.c.d",
        "no extension at all but long",
        "UPPER.lower",
        "lower.UPPER",
        "MiXeD.CaSe",
        "12345678.123",
        "123456789.1234",
        "with [brackets] and +plus=equal;semi,comma",
        "tilde~1.txt",
        "TILDE~1.TXT2",
        "e\u{301} decomposed",
        "\u{e9} composed",
        "ﬁ ligature",
        "Ａ fullwidth",
        "„quotes“ – dashes…",
    ]
    .map(String::from)
    .to_vec();
    // Every length at which a piece begins or ends, and the longest.
    for length in [1, 12, 13, 14, 25, 26, 27, 39, 254, 255] {
        names.push(format!("{length:_<length$}"));
    }
    names
}

/// Proves that what mtools wrote is read as written: names, contents, sizes, times and attributes.
#[test]
fn what_mtools_filled_is_read() {
    for options in [
        &["-s", "1"][..],
        &["-s", "8"],
        &["-s", "64"],
        &["-S", "4096", "-s", "2"],
        &["-s", "4", "-a", "-R", "41"],
    ] {
        let folder = folder();
        let sectors: u64 = options[options.len() - 1].parse().map_or(4, |each: u64| each.min(64));
        let bytes = (70_000 * sectors * if options[0] == "-S" { 8 } else { 1 } * 512).max(40 << 20);
        let image = image_file(folder.path(), bytes);
        let text = image.to_str().expect("text").to_string();
        run("mkfs.fat", &[&["-F32", "-n", "CARD"], options, &[&text]].concat());
        run("mmd", &["-i", &text, "::dir", "::dir/Ein Verzeichnis"]);
        let source = folder.path().join("source");
        std::fs::create_dir(&source).expect("made");
        let mut expected = vec!["/dir/".to_string(), "/dir/Ein Verzeichnis/".to_string()];
        let content = |at: usize| vec![at as u8; at * 977];
        // mtools have no room for a name that is longer than a cluster.
        let small = options == ["-s", "1"];
        let names: Vec<String> = names().into_iter().filter(|name| !small || name.len() < 150).collect();
        for (at, name) in names.iter().enumerate() {
            let path = source.join(name);
            std::fs::write(&path, content(at)).expect("written");
            let time =
                std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_500_000_000 + 86_402 * at as u64);
            File::options().write(true).open(&path).expect("there").set_modified(time).expect("set");
            // A bracket in the name of the source is no pattern; a target's would be.
            run("mcopy", &["-m", "-i", &text, path.to_str().expect("text"), "::dir/Ein Verzeichnis/"]);
            expected.push(format!("/dir/Ein Verzeichnis/{name}"));
        }
        run("mattrib", &["+r", "+h", "+s", "-i", &text, "::dir/Ein Verzeichnis/IMG_0001.JPG"]);
        expected.sort();
        fsck(&image);
        let offset = utc_offset_minutes();
        let mut fat =
            mount_with(Image::open(&image, 0).expect("FAT32"), Options { utc_offset_minutes: offset });
        assert_eq!(list(&mut fat), expected);
        assert_eq!(mdir(&text), expected);
        let (dir, _) = fat.lookup(ROOT, "DIR").expect("in other case");
        let (inner, _) = fat.lookup(dir, "EIN VERZEICHNIS").expect("in other case");
        for (at, name) in names.iter().enumerate() {
            let (id, stat) = fat.lookup(inner, name).expect(name);
            let expected = content(at);
            assert_eq!(stat.size, expected.len() as u64, "{name}");
            assert_eq!(stat.modified.seconds / 2, (1_500_000_000 + 86_402 * at as i64) / 2, "{name}");
            let attributes = stat.attributes;
            let hidden = name == "IMG_0001.JPG";
            assert_eq!(
                (attributes.read_only, attributes.hidden, attributes.system),
                (hidden, hidden, hidden),
                "{name}"
            );
            let mut bytes = vec![0; expected.len()];
            let extents = fat.map(id, 0, stat.size).expect(name);
            for extent in &extents {
                // The owner of the blocks reads them.
                let range = extent.blocks.start..extent.blocks.start + extent.blocks.count;
                fat.metadata().owners.borrow_mut().extend(range.map(|index| (index, at as u64)));
            }
            fat.metadata().transfer(&extents, at as u64, 0, &mut bytes, false);
            assert!(bytes == expected, "{name}: other content");
        }
    }
}

/// The difference of local time from UTC, according to mtools.
fn utc_offset_minutes() -> i16 {
    let text = run("date", &["+%z"]);
    let text = text.trim();
    let number: i16 = text[1..].parse().expect("four digits");
    let minutes = number / 100 * 60 + number % 100;
    if text.starts_with('-') { -minutes } else { minutes }
}

fn mount_with(image: Image, options: Options) -> Fat<Image> {
    let mut findings = Vec::new();
    let checked =
        holdfast_fat::check(&image.layout, &image, &mut |finding| findings.push(finding)).expect("checked");
    assert_eq!(findings, []);
    let layout = image.layout.clone();
    let mut fat = Fat::mount(layout, image, options).expect("mounted");
    fat.vouch(&checked);
    fat
}

fn options(sector_bytes: u32, cluster_bytes: Option<u32>) -> FormatOptions {
    FormatOptions {
        sector_bytes,
        cluster_bytes,
        label: "My card".into(),
        volume_id: 0x1234_abcd,
        hidden_sectors: 0,
        now: NOW,
        utc_offset_minutes: 0,
    }
}

fn write_format(path: &Path, start: u64, bytes: u64, options: &FormatOptions) {
    let formatted = format(bytes, options).expect("it fits");
    let file = File::options().write(true).open(path).expect("opens");
    for (block, bytes) in formatted.blocks() {
        if bytes.iter().any(|byte| *byte != 0) {
            file.write_all_at(&bytes, start + formatted.layout.place(block).0).expect("written");
        }
    }
}

/// Proves that what is formatted here is sound according to `fsck.fat`, can be read and written by mtools,
/// and has a limbo.
#[test]
fn what_is_formatted_is_sound_to_others() {
    for (bytes, options) in [
        (40u64 << 20, options(512, None)),
        (300 << 20, options(512, None)),
        (300 << 20, options(512, Some(4096))),
        (2500 << 20, options(512, Some(32_768))),
        (400 << 20, options(4096, None)),
        (9 << 30, options(512, None)),
    ] {
        let folder = folder();
        let image = image_file(folder.path(), bytes);
        write_format(&image, 0, bytes, &options);
        fsck(&image);
        let text = image.to_str().expect("text").to_string();
        assert_eq!(mdir(&text), ["/HOLDFAST.LBO/"]);
        assert!(run("mlabel", &["-s", "-i", &text, "::"]).contains("MY CARD"));
        let source = folder.path().join("source");
        std::fs::write(&source, b"some words").expect("written");
        run("mcopy", &["-i", &text, source.to_str().expect("text"), "::From mtools.txt"]);
        fsck(&image);
        let mut fat = mount(Image::open(&image, 0).expect("FAT32"));
        assert!(fat.prepare(NOW).expect("nothing to do").is_none(), "the limbo is there");
        assert_eq!(list(&mut fat), ["/From mtools.txt"]);
        let layout = fat.layout().clone();
        assert_eq!(
            layout.area_start(holdfast_fat::Area::Data) % u64::from(layout.cluster_bytes).min(4096),
            0
        );
    }
}

/// Proves that times and attributes are what others read.
#[test]
fn facts_are_what_others_read() {
    let folder = folder();
    let image = image_file(folder.path(), 40 << 20);
    write_format(&image, 0, 40 << 20, &options(512, None));
    let text = image.to_str().expect("text").to_string();
    let mut fat = mount(Image::open(&image, 0).expect("FAT32"));
    let change = fat.create(ROOT, "File with facts.txt", Kind::File, NOW).expect("created");
    let (id, _) = apply(&mut fat, change);
    let attributes = Attributes { read_only: true, hidden: true, system: true, archive: true };
    // 2001-02-03 04:05:06 UTC.
    let modified = Moment { seconds: 981_173_106, nanoseconds: 0 };
    let facts = Facts { attributes: Some(attributes), modified: Some(modified), ..Facts::default() };
    let change = fat.set(id, facts).expect("set");
    apply(&mut fat, change);
    let stat = fat.stat(id).expect("there");
    assert_eq!((stat.attributes, stat.modified, stat.created), (attributes, modified, NOW));
    fsck(&image);
    let listed = run("mdir", &["-a", "-i", &text, "::File with facts.txt"]);
    assert!(listed.contains("2001-02-03") && listed.contains("4:05"), "{listed}");
    let listed = run("mattrib", &["-i", &text, "::File with facts.txt"]);
    assert!(listed.contains("SHR"), "{listed}");
}

/// Proves that the tests' own judge finds fault where there is some.
#[test]
#[should_panic(expected = "fsck.fat")]
fn the_judge_finds_a_lost_cluster() {
    let folder = folder();
    let image = image_file(folder.path(), 40 << 20);
    write_format(&image, 0, 40 << 20, &options(512, None));
    let fat = mount(Image::open(&image, 0).expect("FAT32"));
    let layout = fat.layout();
    for copy in 0..2 {
        let fat_start = u64::from(layout.reserved_sectors + copy * layout.fat_sectors) * 512;
        fat.metadata().file.write_all_at(&0x0fff_ffffu32.to_le_bytes(), fat_start + 4000).expect("written");
    }
    fsck(&image);
}

struct Disk(File);

impl Sectors for Disk {
    fn sector_bytes(&self) -> u32 {
        512
    }
    fn sectors(&self) -> u64 {
        self.0.metadata().expect("a size").len() / 512
    }
    fn read(&self, sector: u64, into: &mut [u8]) -> Result<(), String> {
        self.0.read_exact_at(into, sector * 512).map_err(|error| error.to_string())
    }
}

/// Proves that a disk with a partition table is found through it, by this crate and by mtools.
#[test]
fn a_card_with_a_partition_table() {
    let folder = folder();
    let bytes = 100u64 << 20;
    let path = image_file(folder.path(), bytes);
    let table = partitions::mbr(0x1234, &[(2048, 90_000), (100_000, 80_000)], bytes / 512).expect("they fit");
    let file = File::options().read(true).write(true).open(&path).expect("opens");
    file.write_all_at(&table, 0).expect("written");
    let text = path.to_str().expect("text").to_string();
    write_format(&path, 2048 * 512, 90_000 * 512, &options(512, None));
    run("mkfs.fat", &["-F32", "-s", "1", "--offset=100000", &text, "40000"]);
    let found = partitions::read(&Disk(file)).expect("a table");
    assert_eq!(
        found.iter().map(|found| (found.number, found.start, found.sectors)).collect::<Vec<_>>(),
        [(1, 2048, 90_000), (2, 100_000, 80_000)]
    );
    assert!(found.iter().all(|found| found.holds == PartitionContent::PerhapsFat32));
    for partition in found {
        let mut fat = mount(Image::open(&path, partition.start * 512).expect("FAT32"));
        let name = format!("In partition {}.txt", partition.number);
        let change = fat.create(ROOT, &name, Kind::File, NOW).expect("created");
        apply(&mut fat, change);
        let there = mdir(&format!("{text}@@{}", partition.start * 512));
        assert!(there.contains(&format!("/{name}")), "{there:?}");
    }
    let plain = folder.path().join("plain");
    File::create(&plain).expect("created").set_len(40 << 20).expect("grown");
    run("mkfs.fat", &["-F32", "-s", "1", "--mbr=y", plain.to_str().expect("text")]);
    let found = partitions::read(&Disk(File::open(&plain).expect("opens"))).expect("no table");
    assert_eq!((found[0].number, found[0].start), (0, 0));
}

/// Proves that file systems other than FAT32 are named.
#[test]
fn what_is_not_fat32_is_named() {
    let folder = folder();
    let path = image_file(folder.path(), 20 << 20);
    for (bits, each) in [("12", "64"), ("16", "4")] {
        run("mkfs.fat", &["-F", bits, "-s", each, path.to_str().expect("text")]);
        let error = Image::open(&path, 0).err().expect("not FAT32").to_string();
        assert!(error.contains("FAT12 or FAT16"), "{error}");
    }
}

/// Proves that a walk names every block of every file once, and the sizes.
#[test]
fn a_walk_names_every_block() {
    let folder = folder();
    let image = image_file(folder.path(), 40 << 20);
    let text = image.to_str().expect("text").to_string();
    run("mkfs.fat", &["-F32", "-s", "1", &text]);
    let source = folder.path().join("source");
    std::fs::write(&source, vec![7; 100_000]).expect("written");
    run("mmd", &["-i", &text, "::d"]);
    for name in ["::a", "::d/b", "::d/c"] {
        run("mcopy", &["-i", &text, source.to_str().expect("text"), name]);
    }
    run("mdel", &["-i", &text, "::d/b"]);
    let image = Image::open(&image, 0).expect("FAT32");
    let checked =
        holdfast_fat::check(&image.layout, &image, &mut |finding| panic!("{finding:?}")).expect("sound");
    let mut fat = Fat::mount(image.layout.clone(), image, Options::default()).expect("mounted");
    let mut seen = Vec::new();
    fat.walk(&checked, &mut |walked| match walked {
        WalkedFile::Sound { path, bytes, blocks, .. } => {
            seen.push((path, bytes, blocks.iter().map(|range| range.count).sum::<u64>()));
        }
        WalkedFile::Refused(finding) => panic!("{finding:?}"),
    })
    .expect("walked");
    seen.sort();
    let file = |path: &str| (path.to_string(), 100_000u64, 196u64);
    assert_eq!(seen, [("/".to_string(), 0, 1), file("/a"), ("/d".to_string(), 0, 1), file("/d/c")]);
}

/// Proves that a GPT made by `sfdisk` is read.
#[test]
fn a_gpt_made_by_sfdisk() {
    let folder = folder();
    let path = image_file(folder.path(), 100 << 20);
    let script = folder.path().join("script");
    let lines = "label: gpt\nstart=2048, size=90000, type=EBD0A0A2-B9E5-4433-87C0-68B6B72699C7\nstart=100000, size=80000, type=L\n";
    std::fs::write(&script, lines).expect("written");
    let command = format!("sfdisk -q {} < {}", path.display(), script.display());
    run("sh", &["-c", &command]);
    let found = partitions::read(&Disk(File::open(&path).expect("opens"))).expect("a table");
    let told: Vec<_> =
        found.iter().map(|found| (found.number, found.start, found.sectors, found.holds)).collect();
    assert_eq!(
        told,
        [(1, 2048, 90_000, PartitionContent::PerhapsFat32), (2, 100_000, 80_000, PartitionContent::Other(0))]
    );
}

/// Proves that other systems may write in between: what they delete, the limbo too, is free, and what they
/// create is there.
#[test]
fn others_come_between() {
    let folder = folder();
    let path = image_file(folder.path(), 40 << 20);
    write_format(&path, 0, 40 << 20, &options(512, None));
    let text = path.to_str().expect("text").to_string();
    let source = folder.path().join("source");
    std::fs::write(&source, vec![1; 3000]).expect("written");
    let mut free = Vec::new();
    for round in 0..5 {
        let mut fat = mount(Image::open(&path, 0).expect("FAT32"));
        if let Some(change) = fat.prepare(NOW).expect("there is room") {
            apply(&mut fat, change);
        }
        free.push(fat.sizes().expect("counted").free);
        let name = format!("Made here in round {round}.txt");
        let change = fat.create(ROOT, &name, Kind::File, NOW).expect("created");
        let (id, _) = apply(&mut fat, change);
        let change = fat.resize(id, 5000, NOW).expect("there is room");
        apply(&mut fat, change);
        let change = fat.resize(id, 1000, NOW).expect("cut");
        assert!(apply(&mut fat, change).0.limbo.is_some());
        drop(fat);
        fsck(&path);
        run("mcopy", &["-i", &text, source.to_str().expect("text"), "::Made elsewhere.txt"]);
        run("mren", &["-i", &text, &format!("::{name}"), "::Renamed elsewhere.txt"]);
        fsck(&path);
        let mut fat = mount(Image::open(&path, 0).expect("FAT32"));
        assert_eq!(list(&mut fat), ["/Made elsewhere.txt", "/Renamed elsewhere.txt"]);
        assert_eq!(fat.limbo(None, 10).expect("listed").len(), 1);
        drop(fat);
        run("mdel", &["-i", &text, "::Made elsewhere.txt", "::Renamed elsewhere.txt"]);
        run("mdeltree", &["-i", &text, "::HOLDFAST.LBO"]);
        fsck(&path);
    }
    assert!(free.iter().all(|count| *count == free[0]), "{free:?}");
}
