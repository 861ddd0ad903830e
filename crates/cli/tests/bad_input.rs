//! Bad input: each mistake has a clear error and an exit code of its own, and loses nothing.

use crate::common;

use common::{PATIENCE, World, eventually, exits_saying, free_port, is_mounted, noise, run, text};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

fn mount(world: &World, who: &str, url: &str, key: &Path, directory: &Path) -> Command {
    mount_for(world, who, url, key, directory, PATIENCE.as_secs())
}

/// `holdfast mount` with a time-out of so many seconds.
fn mount_for(world: &World, who: &str, url: &str, key: &Path, directory: &Path, seconds: u64) -> Command {
    let mut command = world.holdfast(who);
    command.args(["mount", url, "--timeout", &seconds.to_string()]).arg(directory).arg("--key").arg(key);
    command
}

fn empty_directory(world: &World, name: &str) -> std::path::PathBuf {
    let directory = world.path(name);
    std::fs::create_dir_all(&directory).expect("a directory");
    directory
}

/// A key that no member has is refused, and the error says how to enrol it.
#[test]
fn unknown_key() {
    let world = World::new(&["anna"]);
    world.keygen("stranger");
    let directory = empty_directory(&world, "mnt");
    let mut command = mount(&world, "stranger", &world.url, &world.key("stranger"), &directory);
    exits_saying(&mut command, 67, &["not a device of this file system", "holdfast fs device add"]);
    assert!(!is_mounted(&directory));
}

/// Wrong addresses: malformed, of another file system, of a server that is none.
#[test]
fn wrong_address() {
    let world = World::new(&["anna"]);
    let directory = empty_directory(&world, "mnt");
    let key = world.key("anna");
    exits_saying(&mut mount(&world, "anna", "http://x/y", &key, &directory), 64, &["hf://HOST:PORT/FSID"]);
    exits_saying(
        &mut mount(&world, "anna", "hf://localhost/12", &key, &directory),
        68,
        &["64 hexadecimal digits"],
    );
    let other = format!("hf://127.0.0.1:{}/{}", world.port, "ab".repeat(32));
    exits_saying(
        &mut mount(&world, "anna", &other, &key, &directory),
        68,
        &["does not have this file system"],
    );
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = std::io::Write::write_all(&mut stream, b"220 mail.example.org ESMTP\r\n");
        }
    });
    let other = format!("hf://127.0.0.1:{port}/{}", world.fsid());
    let output = mount(&world, "anna", &other, &key, &directory).output().expect("it runs");
    assert!(matches!(output.status.code(), Some(69 | 76)), "{}", text(&output));
}

/// A server that does not listen is reported as unreachable within the given time-out.
#[test]
fn unreachable_server() {
    let world = World::new(&["anna"]);
    let directory = empty_directory(&world, "mnt");
    let url = format!("hf://127.0.0.1:{}/{}", free_port(), world.fsid());
    exits_saying(&mut mount_for(&world, "anna", &url, &world.key("anna"), &directory, 1), 69, &["reached"]);
    let unknown = format!("hf://no-such-host.invalid:1/{}", world.fsid());
    exits_saying(
        &mut mount_for(&world, "anna", &unknown, &world.key("anna"), &directory, 1),
        69,
        &["no-such-host.invalid"],
    );
}

/// Key files: missing, readable by others, not a key, a public key, protected by another passphrase.
#[test]
fn key_files() {
    let world = World::new(&["anna"]);
    let directory = empty_directory(&world, "mnt");
    let try_key = |name: &str| mount(&world, "anna", &world.url, &world.path(name), &directory);
    exits_saying(&mut try_key("none.key"), 66, &["there is no such file"]);
    std::fs::copy(world.key("anna"), world.path("open.key")).expect("a copy");
    std::fs::set_permissions(world.path("open.key"), std::fs::Permissions::from_mode(0o644)).expect("chmod");
    exits_saying(&mut try_key("open.key"), 77, &["others can read", "chmod 600"]);
    std::fs::write(world.path("garbage.key"), "garbage").expect("written");
    std::fs::set_permissions(world.path("garbage.key"), std::fs::Permissions::from_mode(0o600))
        .expect("chmod");
    exits_saying(&mut try_key("garbage.key"), 66, &["not an OpenSSH key"]);
    std::fs::set_permissions(world.path("anna.key.pub"), std::fs::Permissions::from_mode(0o600))
        .expect("chmod");
    exits_saying(&mut try_key("anna.key.pub"), 66, &["public half"]);

    for (name, secret) in [("good", "correct horse"), ("bad", "battery staple")] {
        std::fs::write(world.path(name), secret).expect("written");
        std::fs::set_permissions(world.path(name), std::fs::Permissions::from_mode(0o600)).expect("chmod");
    }
    let mut keygen = world.holdfast("anna");
    keygen.args(["keygen", "--passphrase", "--out"]).arg(world.path("locked.key"));
    run(keygen.env("HOLDFAST_PASSPHRASE_FILE", world.path("good")));
    exits_saying(&mut try_key("locked.key"), 77, &["HOLDFAST_PASSPHRASE_FILE"]);
    let mut wrong = try_key("locked.key");
    exits_saying(wrong.env("HOLDFAST_PASSPHRASE_FILE", world.path("bad")), 77, &["passphrase does not open"]);
    let mut right = try_key("locked.key");
    exits_saying(right.env("HOLDFAST_PASSPHRASE_FILE", world.path("good")), 67, &["not a device"]);
    // An existing key is never overwritten.
    let before = std::fs::read(world.key("anna")).expect("the key");
    exits_saying(
        world.holdfast("anna").args(["keygen", "--out"]).arg(world.key("anna")),
        73,
        &["not overwritten"],
    );
    assert_eq!(std::fs::read(world.key("anna")).expect("the key"), before);
}

/// Mount points: missing, a file, not empty, mounted already; and `umount` of what is not mounted.
#[test]
fn mount_points() {
    let mut world = World::new(&["anna", "ben"]);
    let key = world.key("ben");
    let url = world.url.clone();
    exits_saying(&mut mount(&world, "ben", &url, &key, &world.path("none")), 79, &["no such directory"]);
    exits_saying(&mut mount(&world, "ben", &url, &key, &key), 79, &["not a directory"]);
    let full = empty_directory(&world, "full");
    std::fs::write(full.join("file"), "keep me").expect("written");
    exits_saying(&mut mount(&world, "ben", &url, &key, &full), 79, &["not empty"]);
    assert_eq!(std::fs::read_to_string(full.join("file")).expect("it is there"), "keep me");
    let anna = world.mount("anna");
    exits_saying(&mut mount(&world, "ben", &url, &key, &anna), 79, &["mounted there already"]);
    exits_saying(&mut mount(&world, "ben", &url, &key, Path::new("/proc")), 79, &["in use"]);
    exits_saying(world.holdfast("ben").arg("umount").arg(&full), 79, &["no holdfast file system"]);
    exits_saying(world.holdfast("ben").args(["umount", "/proc"]), 79, &["no holdfast file system"]);
    std::fs::write(anna.join("team/still"), "here").expect("the mount works on");
}

/// A key whose state is in another state directory is refused, as its device must not sign without that state.
#[test]
fn state_missing() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    std::fs::write(anna.join("team/a"), "a").expect("written");
    world.umount("anna");
    let directory = empty_directory(&world, "mnt");
    let mut command = mount(&world, "somewhere-else", &world.url, &world.key("anna"), &directory);
    exits_saying(&mut command, 65, &["fs device add"]);
    // With its own state directory the mount works.
    let anna = world.mount("anna");
    assert_eq!(std::fs::read_to_string(anna.join("team/a")).expect("it is there"), "a");
}

/// A second server on the same data directory is refused, and the first goes on.
#[test]
fn two_servers_on_one_directory() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    let mut second = world.holdfast("anna");
    second.args(["server", "--listen", "127.0.0.1:0", "--data"]).arg(world.data());
    exits_saying(&mut second, 75, &["in use"]);
    std::fs::write(anna.join("team/a"), "a").expect("the first server works on");
}

/// A data directory that a newer version wrote is not touched.
#[test]
fn newer_data_directory() {
    let mut world = World::new(&["anna"]);
    world.stop_server();
    let format = world.data().join("store/FORMAT");
    let before = std::fs::read_to_string(&format).expect("the data directory says its format");
    std::fs::write(&format, before.replace("format 1", "format 9000")).expect("written");
    let mut server = world.holdfast("anna");
    server.args(["server", "--listen", "127.0.0.1:0", "--data"]).arg(world.data());
    exits_saying(&mut server, 78, &["newer"]);
    std::fs::write(&format, before).expect("written");
    world.start_server();
    world.mount("anna");
}

/// Damaged blocks of the cache are fetched again, never served.
#[test]
fn corrupt_cache() {
    fn spoil(directory: &Path) -> u64 {
        let mut spoilt = 0;
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                spoilt += spoil(&path);
            } else if let Ok(mut bytes) = std::fs::read(&path) {
                bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
                std::fs::write(&path, bytes).expect("written");
                spoilt += 1;
            }
        }
        spoilt
    }
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    let content: String = (0..50_000).map(|number| format!("line {number}\n")).collect();
    std::fs::write(anna.join("team/big"), &content).expect("written");
    world.umount("anna");
    let anna = world.mount("anna");
    assert_eq!(std::fs::read_to_string(anna.join("team/big")).expect("read"), content);
    world.umount("anna");
    assert!(spoil(&world.path("anna-cache")) > 0, "there is a cache to spoil");
    let anna = world.mount("anna");
    assert_eq!(std::fs::read_to_string(anna.join("team/big")).expect("read"), content);
    assert!(!world.status("anna").contains("ALARM"), "{}", world.status("anna"));
}

/// Only the superuser can administer; unknown and duplicate names are refused in words.
#[test]
fn administration() {
    let world = World::new(&["anna"]);
    let url = world.url.clone();
    let public = std::fs::read_to_string(world.path("anna.key.pub")).expect("a key");
    world.keygen("ben");
    let other = std::fs::read_to_string(world.path("ben.key.pub")).expect("a key");
    let fs = |who: &str, arguments: &[&str]| {
        let mut command = world.holdfast(who);
        command.arg("fs").args(arguments).arg("--superuser").arg(world.key(who));
        command
    };
    exits_saying(&mut fs("anna", &["user", "add", &url, "ben", &other]), 77, &["superuser"]);
    exits_saying(&mut fs("superuser", &["user", "add", &url, "anna", &other]), 1, &["anna"]);
    exits_saying(&mut fs("superuser", &["user", "add", &url, "ben", &public]), 1, &["key"]);
    exits_saying(&mut fs("superuser", &["user", "add", &url, "a/b", &other]), 64, &["name"]);
    exits_saying(&mut fs("superuser", &["user", "remove", &url, "nobody"]), 67, &["nobody"]);
    exits_saying(&mut fs("superuser", &["group", "add", &url, "g", "nobody"]), 67, &["nobody"]);
    let private = world.key("ben");
    exits_saying(
        &mut fs("superuser", &["user", "add", &url, "ben", private.to_str().expect("text")]),
        66,
        &["private key"],
    );
}

/// Proves: if the server answers but has the file system no more, `status` says exactly that, and not that the server
/// is away. When the data is back, the mount works again.
#[test]
fn a_server_without_the_file_system() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna").join("team");
    std::fs::write(anna.join("file"), "kept").expect("written");
    world.stop_server();
    std::fs::rename(world.data(), world.path("kept")).expect("moved");
    std::fs::DirBuilder::new().mode(0o700).create(world.data()).expect("made");
    std::fs::copy(world.path("kept/server-key"), world.data().join("server-key")).expect("copied");
    world.start_server();
    eventually("it is told", || world.status("anna").contains("does not have this file system"));
    let printed = world.status("anna");
    assert!(printed.contains("turns this mount away") && !printed.contains("does not answer"), "{printed}");
    let mut status = world.holdfast("anna");
    status.arg("status").arg(world.path("anna-mnt"));
    exits_saying(&mut status, 69, &["does not have this file system"]);
    world.stop_server();
    std::fs::remove_dir_all(world.data()).expect("removed");
    std::fs::rename(world.path("kept"), world.data()).expect("moved");
    world.start_server();
    eventually("it is there again", || std::fs::read(anna.join("file")).is_ok_and(|read| read == b"kept"));
    assert!(world.status("anna").contains("working"), "{}", world.status("anna"));
}

/// Mistakes in the command line itself.
#[test]
fn command_line() {
    let holdfast = || Command::new(env!("CARGO_BIN_EXE_holdfast"));
    exits_saying(&mut holdfast(), 64, &["Usage"]);
    // Also with variables set: the help is printed, and no error lists commands that are not for people.
    for (words, listed) in
        [(&[][..], "Mount a file system"), (&["volume"], "Protect a disk or an image"), (&["fs", "user"], "")]
    {
        let output = holdfast().args(words).env("HOLDFAST_STATE_DIR", "elsewhere").output().expect("it runs");
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(64), "{printed}");
        assert!(printed.contains("Usage: holdfast") && printed.contains(listed), "{printed}");
        assert!(!printed.contains("error:") && !printed.contains("subcommand"), "{printed}");
        let output = holdfast().args(words).arg("--json").output().expect("it runs");
        let error: serde_json::Value = serde_json::from_slice(&output.stderr).expect("JSON");
        let expected = format!("'{}' needs a command", [&["holdfast"][..], words].concat().join(" "));
        assert_eq!(error["error"]["message"], expected.as_str());
        let output = holdfast().arg("--json").args(words).output().expect("it runs");
        let error: serde_json::Value = serde_json::from_slice(&output.stderr).expect("JSON");
        assert_eq!((output.status.code(), error["error"]["code"].as_str()), (Some(64), Some("Usage")));
        let message = error["error"]["message"].as_str().expect("words");
        assert!(message.contains("command") && !message.contains('\n'), "{message}");
    }
    exits_saying(holdfast().arg("frobnicate"), 64, &["frobnicate"]);
    exits_saying(holdfast().args(["help", "frobnicate"]), 64, &["no help about"]);
    exits_saying(holdfast().args(["mount", "hf://x/y"]), 64, &["required"]);
    let codes = run(holdfast().args(["help", "exit-codes"]));
    assert!(codes.contains("64 to 78 are sysexits.h's, 79 and 80 its own"), "{codes}");
    assert!(codes.contains("79  The mount point") && codes.contains("80  ALARM"), "{codes}");
    assert!(run(holdfast().args(["mount", "--help"])).contains("Examples:"));
}

/// A full disk at the server: the write that does not fit fails with ENOSPC, everything saved before is intact, no
/// alarm is raised, and work goes on when there is room again.
#[test]
fn full_disk_at_the_server() {
    struct Small(std::path::PathBuf);
    impl Drop for Small {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    let mut world = World::new(&["anna"]);
    world.stop_server();
    // Mounting a small disk needs root.
    let small = Small(world.data().join("store"));
    let moved_aside = world.path("kept");
    run(Command::new("cp").arg("-a").arg(&small.0).arg(&moved_aside));
    let mount = |options: &str| {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&small.0);
        command.output().is_ok_and(|output| output.status.success())
    };
    if !mount("size=12m,mode=700") {
        return;
    }
    run(Command::new("cp").arg("-aT").arg(&moved_aside).arg(&small.0));
    world.start_server();
    let anna = world.mount("anna").join("anna");
    let mut saved = Vec::new();
    let mut refusal = None;
    for number in 0..64 {
        let path = anna.join(format!("file {number}"));
        let result = std::fs::File::create(&path).and_then(|mut file| {
            std::io::Write::write_all(&mut file, &noise(number, 1 << 20))?;
            file.sync_all()
        });
        match result {
            Ok(()) => saved.push(number),
            Err(error) => {
                refusal = Some(error);
                break;
            }
        }
    }
    let refusal = refusal.expect("64 files do not fit on 12 MiB");
    assert_eq!(refusal.kind(), std::io::ErrorKind::StorageFull, "{refusal}");
    assert!(!saved.is_empty());
    assert!(!world.status("anna").contains("ALARM"), "{}", world.status("anna"));
    run(Command::new("mount").args(["-o", "remount,size=64m"]).arg(&small.0));
    eventually("there is room again", || std::fs::write(anna.join("after"), "after").is_ok());
    world.umount("anna");
    let anna = world.mount("anna").join("anna");
    for number in saved {
        assert_eq!(std::fs::read(anna.join(format!("file {number}"))).expect("read"), noise(number, 1 << 20));
    }
    assert_eq!(std::fs::read_to_string(anna.join("after")).expect("read"), "after");
    world.umount("anna");
    world.stop_server();
}
