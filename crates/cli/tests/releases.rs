//! Releases as their publishers and users meet them: published with the command, served over HTTP, mounted, changed
//! under the mount, mirrored badly, expired, revoked.

use crate::common;

use common::publisher::Publisher;
use common::{assert_same_trees, eventually, free_port, noise, run, run_json, text};
use holdfast_sim::mirror::{HostileMirror, Misdeed};
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn status(mount: &Path) -> String {
    let output =
        Command::new("getfattr").args(["--only-values", "-n", "user.holdfast.status"]).arg(mount).output();
    text(&output.expect("getfattr runs"))
}

/// Published, served over HTTP, mounted: the mount has everything of the tree as it is, from the kernel's cache too,
/// and cannot be changed. Without a mount `ls`, `cat`, `get` and `verify` show the same.
#[test]
fn published_served_and_mounted() {
    let mut publisher = Publisher::new();
    let big: Vec<u8> = (0..3_000_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    publisher.write("big", &big);
    for number in 0..200 {
        publisher.write(&format!("many/{number:03}"), format!("file {number}\n").repeat(number));
    }
    publisher.write(
        "hello.c",
        "#include \"inc/words.h\"\n#include <stdio.h>\nint main(void) { puts(WORDS); return 0; }\n",
    );
    publisher.write("inc/words.h", "#define WORDS \"compiled from a release\"\n");
    symlink("many/007", publisher.path("tree/link")).expect("a link");
    fs::hard_link(publisher.path("tree/big"), publisher.path("tree/inc/big too")).expect("a link");
    File::create(publisher.path("tree/sparse"))
        .and_then(|file| {
            file.set_len(10 << 20)?;
            file.write_all_at(b"in the middle", 5 << 20)
        })
        .expect("written");
    let report = publisher.publish(&["--note", "First edition"]);
    assert_eq!((&report["sequence"], &report["first"]), (&1.into(), &true.into()));
    let id = publisher.id();
    let url = publisher.serve("release");
    let mount = publisher.mount(&url, &[]);
    assert_same_trees(&mount, &publisher.path("tree"));
    // Once more, from the caches of the kernel and of this machine.
    assert_same_trees(&mount, &publisher.path("tree"));
    let (one, two) = (
        fs::metadata(mount.join("big")).expect("stat"),
        fs::metadata(mount.join("inc/big too")).expect("stat"),
    );
    assert_eq!((one.ino(), one.nlink(), one.ino()), (two.ino(), 2, two.ino()));
    assert_eq!(fs::read_link(mount.join("link")).expect("a link"), Path::new("many/007"));
    let mut part = [0; 1000];
    File::open(mount.join("big")).expect("opened").read_exact_at(&mut part, 7_777_777).expect("read");
    assert!(part == big[7_777_777..7_778_777]);
    for refused in [
        fs::write(mount.join("new"), "x"),
        fs::remove_file(mount.join("link")),
        fs::create_dir(mount.join("many/new")),
        fs::rename(mount.join("big"), mount.join("bigger")),
    ] {
        assert_eq!(
            refused.expect_err("it is for reading only").raw_os_error(),
            Some(Errno::ROFS.raw_os_error())
        );
    }
    assert!(
        status(&mount).contains("release 1") && status(&mount).contains("First edition"),
        "{}",
        status(&mount)
    );
    let report = run(publisher.holdfast().arg("status").arg(&mount));
    assert!(report.contains("release 1") && report.contains(&url), "{report}");
    // A real program is compiled from the mount.
    let program = publisher.path("hello");
    run(Command::new("cc").arg(mount.join("hello.c")).arg("-o").arg(&program));
    assert_eq!(run(&mut Command::new(&program)), "compiled from a release\n");
    publisher.umount(&mount);

    let link = format!("hf+release:{id}@{url}");
    let listed = run(publisher.holdfast().args(["ls", "-l", &link, "inc"]));
    assert!(listed.contains("words.h") && listed.contains("file") && listed.lines().count() == 2, "{listed}");
    assert_eq!(
        run(publisher.holdfast().args(["cat", &link, "inc/words.h"])),
        "#define WORDS \"compiled from a release\"\n"
    );
    run(publisher.holdfast().args(["get", &link, ".", "got"]));
    assert_same_trees(&publisher.path("got"), &publisher.path("tree"));
    let times = |path: &str| fs::metadata(publisher.path(path)).expect("stat").modified().expect("a time");
    assert_eq!(times("got/hello.c"), times("tree/hello.c"));
    let verified = run(publisher.holdfast().args(["verify", &link]));
    assert!(verified.contains("as signed") && verified.contains("First edition"), "{verified}");
    assert!(run(publisher.holdfast().args(["verify", &link, "many/999"])).contains("provably not there"));
    publisher.refused(66, &["cat", &link, "many/999"]);
    publisher.refused(73, &["get", &link, ".", "got"]);
    // Which release it is, is never left to the mirror.
    assert!(publisher.refused(64, &["ls", &url]).contains("cannot vouch for itself"));
    publisher.refused(76, &["ls", &url, "--id", &"0".repeat(64)]);
}

/// A new release under a mount: names lead into it, and what is open stays what it was opened as, to the last byte:
/// files, what is below open directories, and listings.
#[test]
fn a_new_release_under_a_mount() {
    let mut publisher = Publisher::new();
    let (old, new) = (noise(1, 24 << 20), noise(2, 25 << 20));
    publisher.write("changes", &old);
    for name in
        ["stays", "goes", "folder/inside", "folder/same/deep", "becomes a folder", "folder/becomes a folder"]
    {
        publisher.write(name, format!("first {name}"));
    }
    for number in 0..2_000 {
        publisher.write(&format!("many/{number}"), "");
    }
    fs::hard_link(publisher.path("tree/goes"), publisher.path("tree/folder/goes too")).expect("a link");
    publisher.publish(&[]);
    let url = publisher.serve("release");
    let mount = publisher.mount(&url, &["--refresh", "1"]);
    let open = |name: &str| File::open(mount.join(name)).expect("opened");
    let read = |file: &File| {
        let mut bytes = [0; 100];
        let count = file.read_at(&mut bytes, 0).expect("read");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let (stays, goes, folder) = (open("stays"), open("goes"), open("folder"));
    let mut changes = open("changes");
    let mut half = vec![0; 3 << 20];
    changes.read_exact(&mut half).expect("read");
    let mut many = fs::read_dir(mount.join("many")).expect("listed");
    let mut listed: BTreeSet<_> =
        many.by_ref().take(10).map(|name| name.expect("a name").file_name()).collect();
    let mut root = fs::read_dir(&mount).expect("listed");
    let stat = |name: &str| fs::metadata(mount.join(name)).expect("stat").ino();
    let numbers = ["stays", "folder/same", "folder/same/deep", "changes", "folder"].map(stat);
    assert!(!mount.join("new").exists() && !mount.join("folder/new").exists());
    // The kernel knows the file by both names; this name was looked up last.
    assert_eq!(stat("goes"), stat("folder/goes too"));

    publisher.write("changes", &new);
    publisher.write("new", "new");
    publisher.write("folder/inside", "second inside");
    publisher.write("folder/new", "new");
    for name in ["goes", "folder/goes too", "becomes a folder", "folder/becomes a folder"] {
        fs::remove_file(publisher.path("tree").join(name)).expect("removed");
    }
    publisher.write("becomes a folder/now", "now");
    publisher.write("folder/becomes a folder/now", "now");
    for number in 0..1_000 {
        fs::remove_file(publisher.path("tree/many").join(number.to_string())).expect("removed");
        publisher.write(&format!("many/new {number}"), "");
    }
    assert_eq!(publisher.publish(&[])["sequence"], 2);
    eventually("the new release is shown", || mount.join("new").exists());
    assert_same_trees(&mount, &publisher.path("tree"));
    assert!(!mount.join("goes").exists());
    assert!(status(&mount).contains("release 2"));
    let now = ["stays", "folder/same", "folder/same/deep", "changes", "folder"].map(stat);
    assert_eq!(numbers[..3], now[..3], "what is the same has the same number");
    assert!(numbers[3] != now[3] && numbers[4] != now[4], "what is not has another");

    assert_eq!((read(&stays), read(&goes)), ("first stays".into(), "first goes".into()));
    changes.read_to_end(&mut half).expect("read");
    assert!(half == old, "nobody signed a mixture");
    assert!(fs::read(mount.join("changes")).expect("read") == new);
    // By the old directory once more, and by the new one after that.
    let below = |name: &str| {
        let file = rustix::fs::openat(&folder, name, OFlags::RDONLY, rustix::fs::Mode::empty());
        file.map(|file| read(&file.into()))
    };
    for _ in 0..2 {
        assert_eq!(below("inside").as_deref(), Ok("first folder/inside"));
        assert_eq!(below("same/deep").as_deref(), Ok("first folder/same/deep"));
        assert_eq!(below("becomes a folder").as_deref(), Ok("first folder/becomes a folder"));
        assert_eq!(below("new"), Err(Errno::NOENT));
        assert_eq!(read(&open("folder/inside")), "second inside");
        assert_eq!(read(&open("folder/same/deep")), "first folder/same/deep");
        assert_eq!(read(&open("folder/becomes a folder/now")), "now");
    }
    listed.extend(many.map(|name| name.expect("a name").file_name()));
    assert_eq!(listed, (0..2_000).map(|number| number.to_string().into()).collect());
    assert!(root.all(|name| name.expect("a name").file_name() != "new"), "the listing of then");
    assert_same_trees(&mount, &publisher.path("tree"));
}

/// Programs that open files all the time while releases come and go never see one that is not wholly of one release.
#[test]
fn readers_while_releases_come() {
    let mut publisher = Publisher::new();
    let content = |edition: u64| noise(edition, 700_000 + 50_000 * edition as usize);
    let publish = |publisher: &Publisher, edition: u64| {
        for name in ["top", "folder/below"] {
            publisher.write(name, [&edition.to_le_bytes()[..], &content(edition)].concat());
        }
        publisher.publish(&[]);
    };
    publish(&publisher, 1);
    let mount = publisher.mount("release", &["--refresh", "1"]);
    let last = 6;
    let read = |name: &str| {
        let mut file = File::open(mount.join(name)).expect("opened");
        let mut first = [0; 8];
        file.read_exact(&mut first).expect("read");
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).expect("read");
        let edition = u64::from_le_bytes(first);
        assert!(rest == content(edition), "{name} of release {edition}");
        assert_eq!(file.metadata().expect("stat").len(), rest.len() as u64 + 8);
        edition
    };
    std::thread::scope(|scope| {
        for name in ["top", "folder/below"] {
            scope.spawn(move || {
                let mut edition = 1;
                while edition < last {
                    let now = read(name);
                    assert!(now >= edition, "{name} goes back from {edition} to {now}");
                    edition = now;
                }
            });
        }
        for edition in 2..=last {
            publish(&publisher, edition);
            eventually("it is shown", || status(&mount).contains(&format!("release {edition} ")));
        }
    });
}

/// A program that runs from a mount goes on with its own code when a new release has another program by its name.
#[test]
fn a_running_program_stays() {
    let mut publisher = Publisher::new();
    let data = noise(3, 8 << 20);
    fs::write(publisher.path("data"), &data).expect("written");
    let source = r#"
        #include <stdio.h>
        __asm__(".section .rodata\ndata: .incbin \"data\"\n.previous");
        extern const unsigned char data[];
        int main(void) {
            for (unsigned long at = 0, sum = 0; at < 8 << 20; at++) {
                sum = sum * 31 + data[at];
                if (at + 1 == 1 << 20 || at + 1 == 8 << 20) { printf("%lu\n", sum); fflush(stdout); getchar(); }
            }
        }"#;
    fs::write(publisher.path("program.c"), source).expect("written");
    run(Command::new("cc").args(["program.c", "-o", "tree/program"]).current_dir(publisher.folder.path()));
    publisher.publish(&[]);
    let url = publisher.serve("release");
    let mount = publisher.mount(&url, &["--refresh", "1"]);
    let mut program = Command::new(mount.join("program"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut printed = BufReader::new(program.stdout.take().expect("its words")).lines();
    let sum =
        |bytes: &[u8]| bytes.iter().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
    let mut next = || printed.next().expect("a line").expect("text");
    assert_eq!(next(), sum(&data[..1 << 20]).to_string());
    publisher.write("program", "#!/bin/sh\necho second\n");
    publisher.publish(&[]);
    eventually("the new release is shown", || fs::metadata(mount.join("program")).expect("stat").len() < 100);
    assert_eq!(run(&mut Command::new(mount.join("program"))), "second\n");
    program.stdin.as_mut().expect("its input").write_all(b"x").expect("told");
    assert_eq!(next(), sum(&data).to_string());
    drop(program.stdin.take());
    assert!(program.wait().expect("ended").success());
}

/// Files that mirrors no longer have fail with ESTALE for programs that have them open, and never have other content.
#[test]
fn open_when_mirrors_let_go() {
    let mut publisher = Publisher::new();
    let old = noise(1, 16 << 20);
    publisher.write("changes", &old);
    publisher.publish(&["--keep", "1"]);
    // A new server, as the running one still has the pack open.
    let mount = publisher.mount("release", &["--refresh", "1", "--no-first-touch"]);
    let file = File::open(mount.join("changes")).expect("opened");
    let mut bytes = [0; 1000];
    file.read_exact_at(&mut bytes, 0).expect("read");
    assert!(bytes == old[..1000]);
    for edition in 2..5 {
        publisher.write("changes", noise(edition, 1 << 20));
        publisher.publish(&["--keep", "1"]);
    }
    eventually("the last release is shown", || status(&mount).contains("release 4"));
    file.read_exact_at(&mut bytes, 0).expect("the kernel has it");
    assert!(bytes == old[..1000]);
    let error = file.read_exact_at(&mut bytes, 12 << 20).expect_err("the mirror has it no more");
    assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()));
    assert!(fs::read(mount.join("changes")).expect("read") == noise(4, 1 << 20));
}

/// A sparse file of 1 GiB has its holes in a mounted release too: `du`, SEEK_DATA and SEEK_HOLE see them, `cp` copies
/// them, and nothing is fetched for them, with many chunks as with few. A dense file has no holes.
#[test]
fn holes() {
    let mut publisher = Publisher::new();
    let (few, many) = (noise(1, 4096), noise(2, 6 << 20));
    let make = |name: &str, data: &[u8]| {
        let file = File::create(publisher.path("tree").join(name)).expect("made");
        file.set_len(1 << 30).expect("sized");
        file.write_all_at(data, 256 << 20).expect("written");
        file.write_all_at(data, 768 << 20).expect("written");
    };
    make("few", &few);
    make("many", &many);
    File::create(publisher.path("tree/hole")).and_then(|file| file.set_len(1 << 30)).expect("made");
    publisher.write("dense", noise(3, 3 << 20));
    publisher.publish(&[]);
    let url = publisher.serve("release");
    let mount = publisher.mount(&url, &[]);
    for (name, data) in [("few", &few[..]), ("many", &many), ("hole", &[])] {
        let (there, copy) = (mount.join(name), publisher.path(name));
        let length = data.len() as u64;
        let is_sparse = |path: &Path| {
            let stat = fs::metadata(path).expect("stat");
            assert_eq!(stat.len(), 1 << 30);
            assert!(stat.blocks() * 512 <= 2 * length + (64 << 10), "{name}: {}", stat.blocks());
            assert!(stat.blocks() * 512 >= 2 * length, "{name}: {}", stat.blocks());
        };
        is_sparse(&there);
        let file = File::open(&there).expect("opened");
        let mut at = 0;
        let mut found = Vec::new();
        while let Ok(data) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
            at = rustix::fs::seek(&file, SeekFrom::Hole(data)).expect("a hole");
            found.push(data..at);
        }
        let expected: Vec<_> = match name {
            "hole" => Vec::new(),
            _ => [256 << 20, 768 << 20].map(|start| start..start + length).into(),
        };
        assert_eq!(found, expected, "{name}");
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(5)), Ok(5));
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(1 << 30)), Err(Errno::NXIO));
        run(Command::new("cp").arg(&there).arg(&copy));
        is_sparse(&copy);
        let copied = File::open(&copy).expect("opened");
        for range in found {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            copied.read_exact_at(&mut bytes, range.start).expect("read");
            assert!(bytes == data);
        }
    }
    let dense = File::open(mount.join("dense")).expect("opened");
    assert_eq!(dense.metadata().expect("stat").blocks(), (3 << 20) / 512);
    assert_eq!(rustix::fs::seek(&dense, SeekFrom::Hole(0)), Ok(3 << 20));
}

/// A mirror with damaged files, or one that lies, is detected, named, and used no more. If it is the only mirror,
/// reading is an error and never returns wrong content.
#[test]
fn bad_mirrors() {
    let mut publisher = Publisher::new();
    let content: Vec<u8> = (0..400_000u32).flat_map(|n| n.wrapping_mul(747_796_405).to_le_bytes()).collect();
    publisher.write("large", &content);
    publisher.write("small", "small ".repeat(100));
    publisher.publish(&[]);
    let copy = |name: &str| {
        run(Command::new("cp").arg("-r").arg(publisher.path("release")).arg(publisher.path(name)));
        publisher.path(name)
    };
    for pack in fs::read_dir(copy("altered").join("packs")).expect("packs") {
        let pack = File::options().read(true).write(true).open(pack.expect("a pack").path()).expect("opened");
        // In the middle of the blocks; some bytes in every pack.
        let length = pack.metadata().expect("stat").len();
        for at in (200..length.saturating_sub(10)).step_by(5_000) {
            pack.write_all_at(b"wrong", at).expect("written");
        }
    }
    fs::remove_dir_all(copy("torn").join("packs")).expect("removed");
    fs::remove_dir_all(copy("lost").join("index")).expect("removed");
    let (good, altered, torn) =
        (publisher.serve("release"), publisher.serve("altered"), publisher.serve("torn"));
    let fresh = |publisher: &Publisher| fs::remove_dir_all(publisher.path("cache")).is_ok();

    for bad in [&altered, &torn] {
        let mount = publisher.mount(bad, &[]);
        for name in ["large", "small"] {
            let error = fs::read(mount.join(name)).expect_err("nothing good can be had");
            assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{name}: {error}");
        }
        publisher.umount(&mount);
        fresh(&publisher);
        let mount = publisher.mount(bad, &["--mirror", &good]);
        assert!(fs::read(mount.join("large")).expect("the other has it") == content);
        assert_same_trees(&mount, &publisher.path("tree"));
        publisher.umount(&mount);
        fresh(&publisher);
    }
    // A mirror that does not have the index that its own record names, and that is asked first.
    let lost = publisher.serve("lost");
    let mount = publisher.mount(&lost, &["--mirror", &good]);
    assert_same_trees(&mount, &publisher.path("tree"));
    publisher.umount(&mount);
    fresh(&publisher);
    let id = publisher.id();
    let printed = publisher.refused(80, &["verify", &altered, "--id", &id]);
    assert!(printed.contains("not what the publisher signed"), "{printed}");
    let named = format!("warning: {altered} is a bad mirror");
    assert!(printed.contains(&named), "{printed}");
    fresh(&publisher);
    let printed = publisher.refused(69, &["verify", &torn, "--id", &id]);
    assert!(printed.contains("no mirror has block"), "{printed}");
    // A mirror that is down is not reported as revoking, although a revocation is the first that it is asked for.
    let down = format!("http://127.0.0.1:{}/", free_port());
    let printed = publisher.refused(69, &["verify", &down, "--id", &id]);
    assert!(
        printed.contains(&format!("{down} cannot be reached: ")) && !printed.contains("revoked"),
        "{printed}"
    );
}

/// Proves: if a release is mounted from a mirror whose record is good and whose content cannot be fetched, reading
/// fails with EIO, `status` says why and when it is tried again, unmounting works, and everything can be read once the
/// mirror is repaired. If the mirror is a web server without range requests, the error says so.
#[test]
fn half_bad_mirrors() {
    let mut publisher = Publisher::new();
    for number in 0..20 {
        publisher.write(&number.to_string(), noise(number, 100_000));
    }
    publisher.publish(&[]);
    for misdeed in [Misdeed::Breaks, Misdeed::TooMany, Misdeed::Resets, Misdeed::RedirectsElsewhere] {
        let mirror = HostileMirror::of_folder(&publisher.path("release"), misdeed, "packs/");
        let mount = publisher.mount(&mirror.url(), &[]);
        for number in 0..20 {
            let error = fs::read(mount.join(number.to_string())).expect_err("nothing can be had");
            assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{misdeed:?}: {error}");
        }
        let paused = format!("mirror {}: paused", mirror.url());
        // A pause may be over before a busy machine has looked; the next one is longer.
        eventually("status tells", || {
            fs::read(mount.join("0")).expect_err("nothing can be had");
            run(publisher.holdfast().arg("status").arg(&mount)).contains(&paused)
        });
        mirror.set_honest(true);
        eventually("it is read", || (0..20).all(|number| fs::read(mount.join(number.to_string())).is_ok()));
        assert_same_trees(&mount, &publisher.path("tree"));
        mirror.set_honest(false);
        publisher.umount(&mount);
        publisher.remove_cache();
    }
    let mirror = HostileMirror::of_folder(&publisher.path("release"), Misdeed::IgnoresRanges, "");
    let (mount, output) = publisher.try_mount(&mirror.url(), &[]);
    assert!(output.status.success(), "{}", text(&output));
    let words = "sends whole files where parts are asked for";
    assert!(text(&output).contains(words), "{}", text(&output));
    let report = run(publisher.holdfast().arg("status").arg(&mount));
    assert!(report.contains(words), "{report}");
    publisher.umount(&mount);
}

/// A mirror that shows an old record is refused by a reader who has seen a newer one. A record that has expired is
/// refused, in a running mount for everything but open files, until it is renewed. A revoked release is refused for
/// good.
#[test]
fn old_expired_and_revoked() {
    let mut publisher = Publisher::new();
    publisher.write("file", "first");
    publisher.write("other", "other");
    publisher.publish(&[]);
    run(Command::new("cp").arg("-r").arg(publisher.path("release")).arg(publisher.path("old")));
    publisher.write("file", "second");
    publisher.publish(&[]);
    let (new, old) = (publisher.serve("release"), publisher.serve("old"));
    let id = publisher.id();
    assert_eq!(run(publisher.holdfast().args(["cat", &new, "--id", &id, "file"])), "second");
    let printed = publisher.refused(76, &["cat", &old, "--id", &id, "file"]);
    assert!(printed.contains("rolls back"), "{printed}");

    let mount = publisher.mount(&new, &["--refresh", "1"]);
    let open = File::open(mount.join("file")).expect("opened");
    // The mount must accept the record before it expires: if the machine stood still for too long, the next one.
    let mut seconds = 3;
    eventually("it expires", || {
        publisher.write("changes", seconds.to_string());
        publisher.publish(&["--expires", &format!("{seconds}s")]);
        let end = Instant::now() + Duration::from_secs(2 * seconds);
        seconds *= 2;
        let has_expired = || {
            fs::read(mount.join("other"))
                .is_err_and(|error| error.raw_os_error() == Some(Errno::KEYEXPIRED.raw_os_error()))
        };
        while !has_expired() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        has_expired()
    });
    let mut bytes = [0; 6];
    open.read_exact_at(&mut bytes, 0).expect("what was open is read on");
    assert_eq!(&bytes, b"second");
    assert!(status(&mount).contains("expired"), "{}", status(&mount));
    let (_, refused) = publisher.try_mount(&new, &[]);
    assert!(!refused.status.success() && text(&refused).contains("expired"), "{}", text(&refused));
    let loud = publisher
        .holdfast()
        .args(["cat", &new, "--id", &id, "file", "--allow-stale"])
        .output()
        .expect("it runs");
    assert!(loud.status.success() && text(&loud).contains("STALE"), "{}", text(&loud));

    publisher.publish(&[]);
    eventually("it goes on when it is renewed", || fs::read(mount.join("other")).is_ok());

    run(publisher.holdfast().args([
        "release",
        "revoke",
        "release",
        "--key",
        "key",
        "--out",
        "release/revoked",
        "--reason",
        "the key was stolen",
    ]));
    eventually("the revocation is honoured", || {
        fs::read(mount.join("none"))
            .is_err_and(|error| error.raw_os_error() == Some(Errno::KEYREVOKED.raw_os_error()))
    });
    drop(open);
    publisher.umount(&mount);
    let printed = publisher.refused(77, &["cat", &old, "--id", &id, "file"]);
    assert!(printed.contains("the key was stolen"), "what was seen once is remembered: {printed}");
}

/// Listing an opaque directory shows only the names that were looked up; each name can be looked up, and its absence
/// proven.
#[test]
fn opaque_directories() {
    let mut publisher = Publisher::new();
    for number in 0..2_000 {
        publisher.write(&format!("names/{number}"), format!("{number}"));
    }
    publisher.publish(&["--opaque", "names"]);
    let url = publisher.serve("release");
    let mount = publisher.mount(&url, &[]);
    let names = || -> Vec<String> {
        let names = fs::read_dir(mount.join("names")).expect("listed");
        names.map(|name| name.expect("a name").file_name().into_string().expect("text")).collect()
    };
    assert!(names().is_empty());
    assert_eq!(fs::read_to_string(mount.join("names/1234")).expect("read"), "1234");
    assert!(!mount.join("names/2000").exists());
    assert_eq!(names(), ["1234"]);
    fs::metadata(mount.join("names/7")).expect("there");
    assert_eq!(names(), ["1234", "7"]);
}

/// A reader who had accepted a release can prove later what it had at a time: that a name was present, or absent.
#[test]
fn as_of_a_time() {
    let publisher = Publisher::new();
    publisher.write("price", "one");
    publisher.publish(&[]);
    let id = publisher.id();
    let then = |publisher: &Publisher| {
        let report = run_json(publisher.holdfast().args(["--json", "verify", "release", "--id", &id]));
        report["issued"].as_str().expect("a time").replace(" UTC", "Z").replace(' ', "T")
    };
    let first = then(&publisher);
    std::thread::sleep(Duration::from_millis(1_100));
    fs::remove_file(publisher.path("tree/price")).expect("removed");
    publisher.write("other", "two");
    publisher.publish(&[]);
    let second = then(&publisher);
    let verify = |time: &str, path: &str| {
        run(publisher.holdfast().args(["verify", "release", "--id", &id, "--as-of", time, path]))
    };
    assert!(verify(&first, "price").contains("price is there"));
    assert!(verify(&second, "price").contains("provably not there"));
    assert!(verify(&first, "other").contains("provably not there"));
    publisher.refused(66, &["verify", "release", "--id", &id, "--as-of", "2001-01-01", "price"]);
}

/// Only the last releases are retained whole, and packs of which little is needed are rewritten: the directory does not
/// grow for ever, and stays whole.
#[test]
fn old_releases_go() {
    let publisher = Publisher::new();
    let noise = |seed: u64| -> Vec<u8> {
        let mut random = seed;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 56) as u8
        };
        (0..2_000_000).map(|_| next()).collect()
    };
    let size = || {
        let out = run(Command::new("du").args(["-sb"]).arg(publisher.path("release")));
        out.split_whitespace().next().expect("a number").parse::<u64>().expect("a number")
    };
    publisher.write("stays", noise(1));
    for edition in 2..12u64 {
        publisher.write("changes", noise(edition));
        publisher.publish(&["--keep", "2"]);
        let id = publisher.id();
        run(publisher.holdfast().args(["verify", "release", "--id", &id]));
    }
    // The tree has 4 MB, of which half differ between releases: two are retained, and one more for those who still read
    // it.
    assert!(size() < 11_000_000, "{}", size());
    let records: Vec<_> = fs::read_dir(publisher.path("release/records")).expect("records").collect();
    assert_eq!(records.len(), 2);
}

/// A publisher that is killed at any time leaves the release as it was, and the next run goes on.
#[test]
fn killed_while_publishing() {
    let publisher = Publisher::new();
    for number in 0..300 {
        publisher.write(&format!("{number}"), format!("{number} ").repeat(2_000));
    }
    publisher.publish(&[]);
    let id = publisher.id();
    for round in 0..6u64 {
        for number in 0..300 {
            publisher.write(&format!("{number}"), format!("{round} {number} ").repeat(2_000));
        }
        let mut publishing = publisher
            .holdfast()
            .args(["publish", "tree", "--to", "release", "--key", "key"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        std::thread::sleep(Duration::from_millis(15 * round));
        let _ = publishing.kill();
        let mut printed = String::new();
        let _ = BufReader::new(publishing.stdout.take().expect("a pipe")).read_line(&mut printed);
        publishing.wait().expect("it ends");
        run(publisher.holdfast().args(["verify", "release", "--id", &id]));
    }
    publisher.publish(&[]);
    run(publisher.holdfast().args(["get", "release", ".", "got", "--id", &id]));
    assert_same_trees(&publisher.path("got"), &publisher.path("tree"));
    let left = fs::read_dir(publisher.path("release/packs")).expect("packs");
    let unfinished = left.filter(|pack| {
        pack.as_ref().is_ok_and(|pack| pack.file_name().to_string_lossy().starts_with("new-"))
    });
    assert_eq!(unfinished.count(), 0);
}
