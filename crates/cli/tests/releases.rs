//! Releases as their publishers and users meet them: published with the command, served over HTTP, mounted, changed
//! under the mount, mirrored badly, expired, revoked.

use crate::common;

use common::desk::Desk;
use common::{eventually, free_port, noise, run, text};
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

fn same(left: &Path, right: &Path) {
    let output =
        Command::new("diff").args(["-r", "--no-dereference"]).args([left, right]).output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output));
}

fn status(mount: &Path) -> String {
    let output =
        Command::new("getfattr").args(["--only-values", "-n", "user.holdfast.status"]).arg(mount).output();
    text(&output.expect("getfattr runs"))
}

/// Published, served over HTTP, mounted: everything of the tree is there as it is, and stays the kernel's own to read;
/// nothing can be changed. Without a mount the same by `ls`, `cat`, `get` and `verify`.
#[test]
fn published_served_and_mounted() {
    let mut desk = Desk::new();
    let big: Vec<u8> = (0..3_000_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    desk.write("big", &big);
    for number in 0..200 {
        desk.write(&format!("many/{number:03}"), format!("file {number}\n").repeat(number));
    }
    desk.write(
        "hello.c",
        "#include \"inc/words.h\"\n#include <stdio.h>\nint main(void) { puts(WORDS); return 0; }\n",
    );
    desk.write("inc/words.h", "#define WORDS \"compiled from a release\"\n");
    symlink("many/007", desk.path("tree/link")).expect("a link");
    fs::hard_link(desk.path("tree/big"), desk.path("tree/inc/big too")).expect("a link");
    File::create(desk.path("tree/sparse"))
        .and_then(|file| {
            file.set_len(10 << 20)?;
            file.write_all_at(b"in the middle", 5 << 20)
        })
        .expect("written");
    let report = desk.publish(&["--note", "First edition"]);
    assert_eq!((&report["sequence"], &report["first"]), (&1.into(), &true.into()));
    let id = desk.id();
    let url = desk.serve("release");
    let mount = desk.mount(&url, &[]);
    same(&mount, &desk.path("tree"));
    // Once more, from the kernel's and this machine's caches.
    same(&mount, &desk.path("tree"));
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
    let shown = run(desk.holdfast().arg("status").arg(&mount));
    assert!(shown.contains("release 1") && shown.contains(&url), "{shown}");
    // A real program, built straight from it.
    let program = desk.path("hello");
    run(Command::new("cc").arg(mount.join("hello.c")).arg("-o").arg(&program));
    assert_eq!(run(&mut Command::new(&program)), "compiled from a release\n");
    desk.umount(&mount);

    let link = format!("hf+release:{id}@{url}");
    let listed = run(desk.holdfast().args(["ls", "-l", &link, "inc"]));
    assert!(listed.contains("words.h") && listed.contains("file") && listed.lines().count() == 2, "{listed}");
    assert_eq!(
        run(desk.holdfast().args(["cat", &link, "inc/words.h"])),
        "#define WORDS \"compiled from a release\"\n"
    );
    run(desk.holdfast().args(["get", &link, ".", "got"]));
    same(&desk.path("got"), &desk.path("tree"));
    let times = |path: &str| fs::metadata(desk.path(path)).expect("stat").modified().expect("a time");
    assert_eq!(times("got/hello.c"), times("tree/hello.c"));
    let verified = run(desk.holdfast().args(["verify", &link]));
    assert!(verified.contains("as signed") && verified.contains("First edition"), "{verified}");
    assert!(run(desk.holdfast().args(["verify", &link, "many/999"])).contains("provably not there"));
    desk.refused(66, &["cat", &link, "many/999"]);
    desk.refused(73, &["get", &link, ".", "got"]);
    // Which release is never left to the mirror to say.
    assert!(desk.refused(64, &["ls", &url]).contains("cannot vouch for itself"));
    desk.refused(76, &["ls", &url, "--id", &"0".repeat(64)]);
}

/// A new release under a mount: names lead into it, and what is open stays what it was opened as, to the last byte: files,
/// what is below directories, and listings.
#[test]
fn a_new_release_under_a_mount() {
    let mut desk = Desk::new();
    let (old, new) = (noise(1, 24 << 20), noise(2, 25 << 20));
    desk.write("changes", &old);
    for name in
        ["stays", "goes", "folder/inside", "folder/same/deep", "becomes a folder", "folder/becomes a folder"]
    {
        desk.write(name, format!("first {name}"));
    }
    for number in 0..2_000 {
        desk.write(&format!("many/{number}"), "");
    }
    fs::hard_link(desk.path("tree/goes"), desk.path("tree/folder/goes too")).expect("a link");
    desk.publish(&[]);
    let url = desk.serve("release");
    let mount = desk.mount(&url, &["--refresh", "1"]);
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
    // The kernel knows it by both names, by this one last.
    assert_eq!(stat("goes"), stat("folder/goes too"));

    desk.write("changes", &new);
    desk.write("new", "new");
    desk.write("folder/inside", "second inside");
    desk.write("folder/new", "new");
    for name in ["goes", "folder/goes too", "becomes a folder", "folder/becomes a folder"] {
        fs::remove_file(desk.path("tree").join(name)).expect("removed");
    }
    desk.write("becomes a folder/now", "now");
    desk.write("folder/becomes a folder/now", "now");
    for number in 0..1_000 {
        fs::remove_file(desk.path("tree/many").join(number.to_string())).expect("removed");
        desk.write(&format!("many/new {number}"), "");
    }
    assert_eq!(desk.publish(&[])["sequence"], 2);
    eventually("the new release is shown", || mount.join("new").exists());
    same(&mount, &desk.path("tree"));
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
    same(&mount, &desk.path("tree"));
}

/// Readers who open files all the time while releases come and go never see one that is not wholly of one release.
#[test]
fn readers_while_releases_come() {
    let mut desk = Desk::new();
    let content = |edition: u64| noise(edition, 700_000 + 50_000 * edition as usize);
    let publish = |desk: &Desk, edition: u64| {
        for name in ["top", "folder/below"] {
            desk.write(name, [&edition.to_le_bytes()[..], &content(edition)].concat());
        }
        desk.publish(&[]);
    };
    publish(&desk, 1);
    let mount = desk.mount("release", &["--refresh", "1"]);
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
            publish(&desk, edition);
            eventually("it is shown", || status(&mount).contains(&format!("release {edition} ")));
        }
    });
}

/// A program that runs from a mount goes on as what it was started as when a new release has another one by its name.
#[test]
fn a_running_program_stays() {
    let mut desk = Desk::new();
    let data = noise(3, 8 << 20);
    fs::write(desk.path("data"), &data).expect("written");
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
    fs::write(desk.path("program.c"), source).expect("written");
    run(Command::new("cc").args(["program.c", "-o", "tree/program"]).current_dir(desk.folder.path()));
    desk.publish(&[]);
    let url = desk.serve("release");
    let mount = desk.mount(&url, &["--refresh", "1"]);
    let mut program = Command::new(mount.join("program"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut said = BufReader::new(program.stdout.take().expect("its words")).lines();
    let sum =
        |bytes: &[u8]| bytes.iter().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
    let mut next = || said.next().expect("a line").expect("text");
    assert_eq!(next(), sum(&data[..1 << 20]).to_string());
    desk.write("program", "#!/bin/sh\necho second\n");
    desk.publish(&[]);
    eventually("the new release is shown", || fs::metadata(mount.join("program")).expect("stat").len() < 100);
    assert_eq!(run(&mut Command::new(mount.join("program"))), "second\n");
    program.stdin.as_mut().expect("its input").write_all(b"x").expect("told");
    assert_eq!(next(), sum(&data).to_string());
    drop(program.stdin.take());
    assert!(program.wait().expect("ended").success());
}

/// What mirrors do not keep any more is ESTALE for who has it open, and never something else.
#[test]
fn open_when_mirrors_let_go() {
    let mut desk = Desk::new();
    let old = noise(1, 16 << 20);
    desk.write("changes", &old);
    desk.publish(&["--keep", "1"]);
    // A server would have the pack open still.
    let mount = desk.mount("release", &["--refresh", "1", "--no-first-touch"]);
    let file = File::open(mount.join("changes")).expect("opened");
    let mut bytes = [0; 1000];
    file.read_exact_at(&mut bytes, 0).expect("read");
    assert!(bytes == old[..1000]);
    for edition in 2..5 {
        desk.write("changes", noise(edition, 1 << 20));
        desk.publish(&["--keep", "1"]);
    }
    eventually("the last release is shown", || status(&mount).contains("release 4"));
    file.read_exact_at(&mut bytes, 0).expect("the kernel has it");
    assert!(bytes == old[..1000]);
    let error = file.read_exact_at(&mut bytes, 12 << 20).expect_err("the mirror has it no more");
    assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()));
    assert!(fs::read(mount.join("changes")).expect("read") == noise(4, 1 << 20));
}

/// A sparse file of 1 GiB has its holes in a mounted release too: `du`, SEEK_DATA and SEEK_HOLE see them, `cp` copies them as
/// such, and nothing is read of them; with many chunks as with few. A dense one has none.
#[test]
fn holes() {
    let mut desk = Desk::new();
    let (few, many) = (noise(1, 4096), noise(2, 6 << 20));
    let make = |name: &str, data: &[u8]| {
        let file = File::create(desk.path("tree").join(name)).expect("made");
        file.set_len(1 << 30).expect("sized");
        file.write_all_at(data, 256 << 20).expect("written");
        file.write_all_at(data, 768 << 20).expect("written");
    };
    make("few", &few);
    make("many", &many);
    File::create(desk.path("tree/hole")).and_then(|file| file.set_len(1 << 30)).expect("made");
    desk.write("dense", noise(3, 3 << 20));
    desk.publish(&[]);
    let url = desk.serve("release");
    let mount = desk.mount(&url, &[]);
    for (name, data) in [("few", &few[..]), ("many", &many), ("hole", &[])] {
        let (there, copy) = (mount.join(name), desk.path(name));
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

/// A mirror that is torn or lies is found out, named, and not used any more; alone it is an error and never content.
#[test]
fn bad_mirrors() {
    let mut desk = Desk::new();
    let content: Vec<u8> = (0..400_000u32).flat_map(|n| n.wrapping_mul(747_796_405).to_le_bytes()).collect();
    desk.write("large", &content);
    desk.write("small", "small ".repeat(100));
    desk.publish(&[]);
    let copy = |name: &str| {
        run(Command::new("cp").arg("-r").arg(desk.path("release")).arg(desk.path(name)));
        desk.path(name)
    };
    for pack in fs::read_dir(copy("altered").join("packs")).expect("packs") {
        let pack = File::options().read(true).write(true).open(pack.expect("a pack").path()).expect("opened");
        // In the middle of what the blocks hold; some in every pack.
        let length = pack.metadata().expect("stat").len();
        for at in (200..length.saturating_sub(10)).step_by(5_000) {
            pack.write_all_at(b"wrong", at).expect("written");
        }
    }
    fs::remove_dir_all(copy("torn").join("packs")).expect("removed");
    fs::remove_dir_all(copy("lost").join("index")).expect("removed");
    let (good, altered, torn) = (desk.serve("release"), desk.serve("altered"), desk.serve("torn"));
    let fresh = |desk: &Desk| fs::remove_dir_all(desk.path("cache")).is_ok();

    for bad in [&altered, &torn] {
        let mount = desk.mount(bad, &[]);
        for name in ["large", "small"] {
            let error = fs::read(mount.join(name)).expect_err("nothing good can be had");
            assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{name}: {error}");
        }
        desk.umount(&mount);
        fresh(&desk);
        let mount = desk.mount(bad, &["--mirror", &good]);
        assert!(fs::read(mount.join("large")).expect("the other has it") == content);
        same(&mount, &desk.path("tree"));
        desk.umount(&mount);
        fresh(&desk);
    }
    // One that does not have the index that its own record names, the first to be asked.
    let lost = desk.serve("lost");
    let mount = desk.mount(&lost, &["--mirror", &good]);
    same(&mount, &desk.path("tree"));
    desk.umount(&mount);
    fresh(&desk);
    let id = desk.id();
    let said = desk.refused(80, &["verify", &altered, "--id", &id]);
    assert!(said.contains("not what the publisher signed"), "{said}");
    let named = format!("warning: {altered} is a bad mirror");
    assert!(said.contains(&named), "{said}");
    fresh(&desk);
    let said = desk.refused(69, &["verify", &torn, "--id", &id]);
    assert!(said.contains("no mirror has block"), "{said}");
    // Who is down is not said to be revoked, though a revocation is what it is asked for first.
    let down = format!("http://127.0.0.1:{}/", free_port());
    let said = desk.refused(69, &["verify", &down, "--id", &id]);
    assert!(said.contains(&format!("{down} cannot be reached: ")) && !said.contains("revoked"), "{said}");
}

/// Proves: whoever mounts a release from a mirror whose record is good and whose content cannot be had gets EIO, is told by
/// `status` why and when it is tried again, can unmount, and reads everything once the mirror is mended; and who mounts it from
/// a web server that knows no ranges is told so.
#[test]
fn half_bad_mirrors() {
    let mut desk = Desk::new();
    for number in 0..20 {
        desk.write(&number.to_string(), noise(number, 100_000));
    }
    desk.publish(&[]);
    for misdeed in [Misdeed::Breaks, Misdeed::TooMany, Misdeed::Resets, Misdeed::RedirectsElsewhere] {
        let mirror = HostileMirror::of_folder(&desk.path("release"), misdeed, "packs/");
        let mount = desk.mount(&mirror.url(), &[]);
        for number in 0..20 {
            let error = fs::read(mount.join(number.to_string())).expect_err("nothing can be had");
            assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{misdeed:?}: {error}");
        }
        let paused = format!("mirror {}: paused", mirror.url());
        // A pause may be over before a busy machine has looked; the next one is longer.
        eventually("status tells", || {
            fs::read(mount.join("0")).expect_err("nothing can be had");
            run(desk.holdfast().arg("status").arg(&mount)).contains(&paused)
        });
        mirror.set_honest(true);
        eventually("it is read", || (0..20).all(|number| fs::read(mount.join(number.to_string())).is_ok()));
        same(&mount, &desk.path("tree"));
        mirror.set_honest(false);
        desk.umount(&mount);
        desk.remove_cache();
    }
    let mirror = HostileMirror::of_folder(&desk.path("release"), Misdeed::IgnoresRanges, "");
    let (mount, output) = desk.try_mount(&mirror.url(), &[]);
    assert!(output.status.success(), "{}", text(&output));
    let words = "sends whole files where parts are asked for";
    assert!(text(&output).contains(words), "{}", text(&output));
    let shown = run(desk.holdfast().arg("status").arg(&mount));
    assert!(shown.contains(words), "{shown}");
    desk.umount(&mount);
}

/// A mirror that shows an old record to somebody who has seen a newer one is refused; so is one that has expired, in a
/// running mount for everything but open files, until it is renewed; and a revoked one for good.
#[test]
fn old_expired_and_revoked() {
    let mut desk = Desk::new();
    desk.write("file", "first");
    desk.write("other", "other");
    desk.publish(&[]);
    run(Command::new("cp").arg("-r").arg(desk.path("release")).arg(desk.path("old")));
    desk.write("file", "second");
    desk.publish(&[]);
    let (new, old) = (desk.serve("release"), desk.serve("old"));
    let id = desk.id();
    assert_eq!(run(desk.holdfast().args(["cat", &new, "--id", &id, "file"])), "second");
    let said = desk.refused(76, &["cat", &old, "--id", &id, "file"]);
    assert!(said.contains("rolls back"), "{said}");

    let mount = desk.mount(&new, &["--refresh", "1"]);
    let open = File::open(mount.join("file")).expect("opened");
    // The mount must take up a record before it expires: if the machine stood still for so long, the next one.
    let mut seconds = 3;
    eventually("it expires", || {
        desk.write("changes", seconds.to_string());
        desk.publish(&["--expires", &format!("{seconds}s")]);
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
    let (_, refused) = desk.try_mount(&new, &[]);
    assert!(!refused.status.success() && text(&refused).contains("expired"), "{}", text(&refused));
    let loud =
        desk.holdfast().args(["cat", &new, "--id", &id, "file", "--allow-stale"]).output().expect("it runs");
    assert!(loud.status.success() && text(&loud).contains("STALE"), "{}", text(&loud));

    desk.publish(&[]);
    eventually("it goes on when it is renewed", || fs::read(mount.join("other")).is_ok());

    run(desk.holdfast().args([
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
    desk.umount(&mount);
    let said = desk.refused(77, &["cat", &old, "--id", &id, "file"]);
    assert!(said.contains("the key was stolen"), "what was seen once is remembered: {said}");
}

/// Who lists an opaque directory sees what was referred to; every name can be looked up, and its absence proven.
#[test]
fn opaque_directories() {
    let mut desk = Desk::new();
    for number in 0..2_000 {
        desk.write(&format!("names/{number}"), format!("{number}"));
    }
    desk.publish(&["--opaque", "names"]);
    let url = desk.serve("release");
    let mount = desk.mount(&url, &[]);
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

/// What a release held at a time can be proven later by who had accepted it then: present or absent.
#[test]
fn as_of_a_time() {
    let desk = Desk::new();
    desk.write("price", "one");
    desk.publish(&[]);
    let id = desk.id();
    let then = |desk: &Desk| {
        let shown = run(desk.holdfast().args(["--json", "verify", "release", "--id", &id]));
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        shown["issued"].as_str().expect("a time").replace(" UTC", "Z").replace(' ', "T")
    };
    let first = then(&desk);
    std::thread::sleep(Duration::from_millis(1_100));
    fs::remove_file(desk.path("tree/price")).expect("removed");
    desk.write("other", "two");
    desk.publish(&[]);
    let second = then(&desk);
    let verify = |time: &str, path: &str| {
        run(desk.holdfast().args(["verify", "release", "--id", &id, "--as-of", time, path]))
    };
    assert!(verify(&first, "price").contains("price is there"));
    assert!(verify(&second, "price").contains("provably not there"));
    assert!(verify(&first, "other").contains("provably not there"));
    desk.refused(66, &["verify", "release", "--id", &id, "--as-of", "2001-01-01", "price"]);
}

/// Only the last releases are kept whole, and packs of which little is needed are written anew: the directory does not
/// grow for ever, and stays whole.
#[test]
fn old_releases_go() {
    let desk = Desk::new();
    let noise = |seed: u64| -> Vec<u8> {
        let mut random = seed;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 56) as u8
        };
        (0..2_000_000).map(|_| next()).collect()
    };
    let size = || {
        let out = run(Command::new("du").args(["-sb"]).arg(desk.path("release")));
        out.split_whitespace().next().expect("a number").parse::<u64>().expect("a number")
    };
    desk.write("stays", noise(1));
    for edition in 2..12u64 {
        desk.write("changes", noise(edition));
        desk.publish(&["--keep", "2"]);
        let id = desk.id();
        run(desk.holdfast().args(["verify", "release", "--id", &id]));
    }
    // The tree has 4 MB, of which half differ between releases: two kept, and one more for those who still read it.
    assert!(size() < 11_000_000, "{}", size());
    let records: Vec<_> = fs::read_dir(desk.path("release/records")).expect("records").collect();
    assert_eq!(records.len(), 2);
}

/// A publisher that is killed at any time leaves the release as it was, and the next one goes on.
#[test]
fn killed_while_publishing() {
    let desk = Desk::new();
    for number in 0..300 {
        desk.write(&format!("{number}"), format!("{number} ").repeat(2_000));
    }
    desk.publish(&[]);
    let id = desk.id();
    for round in 0..6u64 {
        for number in 0..300 {
            desk.write(&format!("{number}"), format!("{round} {number} ").repeat(2_000));
        }
        let mut publisher = desk
            .holdfast()
            .args(["publish", "tree", "--to", "release", "--key", "key"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        std::thread::sleep(Duration::from_millis(15 * round));
        let _ = publisher.kill();
        let mut said = String::new();
        let _ = BufReader::new(publisher.stdout.take().expect("a pipe")).read_line(&mut said);
        publisher.wait().expect("it ends");
        run(desk.holdfast().args(["verify", "release", "--id", &id]));
    }
    desk.publish(&[]);
    run(desk.holdfast().args(["get", "release", ".", "got", "--id", &id]));
    same(&desk.path("got"), &desk.path("tree"));
    let left = fs::read_dir(desk.path("release/packs")).expect("packs");
    let unfinished = left.filter(|pack| {
        pack.as_ref().is_ok_and(|pack| pack.file_name().to_string_lossy().starts_with("new-"))
    });
    assert_eq!(unfinished.count(), 0);
}
