//! Releases of live file systems, by the real command: published from a mount's server without their data, read through
//! a mirror that reaches it, kept while the live file system moves on, and copied to mirrors that stand alone.

use crate::common;

use common::collection::collect;
use common::{PATIENCE, World, eventually, free_port, noise, run, run_json, text};
use holdfast_client::reader;
use holdfast_content::{Block, BlockKind};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::message::{Request, Response};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Everything about a tree that a release keeps, by path.
fn described(top: &Path) -> BTreeMap<Vec<u8>, String> {
    fn below(
        top: &Path,
        path: &Path,
        links: &mut BTreeMap<u64, Vec<u8>>,
        found: &mut BTreeMap<Vec<u8>, String>,
    ) {
        let mut names: Vec<_> =
            fs::read_dir(path).expect("listed").map(|name| name.expect("read").path()).collect();
        names.sort();
        for name in names {
            let stat = fs::symlink_metadata(&name).expect("looked at");
            let key = name.strip_prefix(top).expect("below").as_os_str().as_bytes().to_vec();
            let kind = stat.file_type();
            let mut text = format!("{:o} {}.{}", stat.mode() & 0o777, stat.mtime(), stat.mtime_nsec());
            if kind.is_dir() {
                below(top, &name, links, found);
                text += " directory";
            } else if kind.is_symlink() {
                text = format!("link to {}", fs::read_link(&name).expect("read").display());
            } else if kind.is_fifo() {
                text += " fifo";
            } else {
                let first = links.entry(stat.ino()).or_insert_with(|| key.clone());
                let note = {
                    let mut value = [0; 100];
                    rustix::fs::getxattr(&name, "user.note", &mut value).map_or(0, |length| length)
                };
                let digest = DigestKey::WELL_KNOWN
                    .digest(holdfast_crypto::Domain::ReleaseFile, &fs::read(&name).expect("read"));
                text += &format!(
                    " file of {} bytes, {digest}, {} links with {first:?}, note of {note}",
                    stat.len(),
                    stat.nlink()
                );
            }
            found.insert(key, text);
        }
    }
    let mut found = BTreeMap::new();
    below(top, top, &mut BTreeMap::new(), &mut found);
    found
}

/// Makes a tree with something of everything.
fn fill(site: &Path) {
    fs::create_dir_all(site.join("src/deep/er")).expect("made");
    fs::create_dir_all(site.join("many")).expect("made");
    let write = |name: &str, bytes: &[u8]| fs::write(site.join(name), bytes).expect("written");
    write("empty", b"");
    write("tiny", b"hello");
    write("zeroes", &[0; 200]);
    write("src/mid", &noise(1, 30_000));
    write("src/large", &noise(2, 5_000_000));
    write("src/deep/er/lines", &b"a line\n".repeat(1000));
    write("odd \n name", b"odd");
    fs::write(site.join(std::ffi::OsStr::from_bytes(b"\xff\xfe")), b"no text").expect("written");
    let hole = File::create(site.join("hole")).expect("made");
    hole.write_all_at(&noise(3, 100_000), 3_000_000).expect("written");
    hole.set_len(6_000_000).expect("set");
    File::create(site.join("all-hole")).expect("made").set_len(1_000_000).expect("set");
    File::create(site.join("small-hole")).expect("made").set_len(100).expect("set");
    fs::hard_link(site.join("src/mid"), site.join("again")).expect("linked");
    symlink("src/mid", site.join("link")).expect("linked");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        site.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o640),
        0,
    )
    .expect("made");
    for number in 0..200 {
        write(&format!("many/{number}"), &noise(100 + number, [10, 400, 3000][number as usize % 3]));
    }
    fs::set_permissions(site.join("tiny"), fs::Permissions::from_mode(0o751)).expect("set");
    rustix::fs::setxattr(site.join("tiny"), "user.note", b"a note", rustix::fs::XattrFlags::empty())
        .expect("set");
    // Everything that the kernel or the mount still had is at the server now.
    File::open(site.join("src/large")).and_then(|file| file.sync_all()).expect("synced");
}

/// A live file system with a tree, and the processes that publish and serve it.
struct Fixture {
    world: World,
    site: PathBuf,
    servers: Vec<Child>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Fixture {
    fn new() -> Fixture {
        let mut world = World::new(&["anna", "reader"]);
        let site = world.mount("anna").join("anna/site");
        fill(&site);
        world.keygen("release");
        Fixture { world, site, servers: Vec::new() }
    }

    fn live(&self) -> String {
        format!("{}/anna/site", self.world.url)
    }

    fn publishing(&self, source: &str, to: &str, extra: &[&str]) -> Command {
        let mut command = self.world.holdfast("anna");
        command.args(["--json", "publish", source, "--to"]).arg(self.world.path(to));
        command.arg("--key").arg(self.world.key("release")).args(extra);
        command.env_remove("SOURCE_DATE_EPOCH").env_remove("HOLDFAST_REVOCATIONS");
        if source.starts_with("hf://") {
            command.arg("--as").arg(self.world.key("anna"));
        }
        command
    }

    fn publish(&self, extra: &[&str]) -> Value {
        run_json(&mut self.publishing(&self.live(), "release", extra))
    }

    /// Serves a release directory, with the live file system as its origin or alone.
    fn serve(&mut self, directory: &str, with_origin: bool) -> String {
        let address = format!("127.0.0.1:{}", free_port());
        let mut server = self.world.holdfast("reader");
        server.arg("serve").arg(self.world.path(directory)).args(["--listen", &address]);
        if with_origin {
            server.args(["--origin", &self.world.url, "--key"]).arg(self.world.key("reader"));
        }
        self.servers.push(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs"));
        eventually("the mirror answers", || TcpStream::connect(&address).is_ok());
        format!("http://{address}/")
    }

    fn stop_serving(&mut self) {
        for mut server in self.servers.drain(..) {
            server.kill().expect("killed");
            server.wait().expect("ended");
        }
    }

    /// Fetches a whole release as a stranger, with an empty cache.
    fn got(&self, link: &str, to: &str) -> BTreeMap<Vec<u8>, String> {
        let target = self.world.path(to);
        run(self.world.holdfast(to).args(["get", link, "."]).arg(&target));
        described(&target)
    }

    fn stats(&self) -> Value {
        let data = self.world.data();
        run_json(self.world.holdfast("anna").args(["--json", "server", "stats", "--data"]).arg(data))
    }

    fn holds(&self) -> usize {
        let data = self.world.data();
        let text = run(self.world.holdfast("anna").args(["--json", "server", "holds", "--data"]).arg(data));
        serde_json::from_str::<Value>(&text).expect("JSON").as_array().expect("a list").len()
    }

    /// Sends the file system's server a request of Anna's device.
    fn ask_server(&self, request: Request) -> Response {
        let text = fs::read_to_string(self.world.key("anna")).expect("read");
        let key = holdfast_crypto::keyfile::parse_private(&text, None).expect("a key");
        let address = self.world.url.parse().expect("an address");
        let server = reader::connect(&address, Arc::new(key), PATIENCE).expect("connected");
        server.call(request, PATIENCE).expect("an answer")
    }

    /// Whether the file system's server has the only chunk of a file.
    fn has(&self, content: Vec<u8>) -> bool {
        match self.ask_server(Request::Retrieve(vec![chunk(content)])) {
            Response::Blocks(blocks) => blocks[0].is_some(),
            other => panic!("{other:?}"),
        }
    }

    /// Collects all garbage, however young, and returns the number of blocks collected.
    fn collect(&mut self) -> u64 {
        collect(&mut self.world)
    }
}

/// The status and the body of an HTTP answer.
fn ask(url: &str, request: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let host = url.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(host).expect("connected");
    let length = body.len();
    let head =
        format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(&[head.as_bytes(), body].concat()).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("read");
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    let status = std::str::from_utf8(&answer[9..12]).expect("text").parse().expect("a number");
    (status, answer[end + 4..].to_vec())
}

fn chunk(bytes: Vec<u8>) -> Digest {
    Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, Vec::new(), bytes).reference().address
}

/// Proves: a directory of a live file system is published without reading, sending or copying its files' data, and the
/// release has the same content as one that was published from the mount. Publishing again costs what has changed.
/// Strangers get nothing through the mirror but what was published.
#[test]
fn signed_where_it_lies() {
    let mut fixture = Fixture::new();
    let before = fixture.stats();
    let first = fixture.publish(&[]);
    let after = fixture.stats();
    let id = first["id"].as_str().expect("an id").to_owned();
    let number = |stats: &Value, name: &str| stats["since_start"][name].as_u64().expect("a number");
    let served = number(&after, "bytes_served") - number(&before, "bytes_served");
    assert!(served < 100_000, "{served} bytes were read for publishing");
    assert!(first["bytes_added"].as_u64() < Some(100_000), "{first}");
    assert!(first["blocks_at_origin"].as_u64() > Some(150), "{first}");
    let packs = fs::read_dir(fixture.world.path("release/packs")).expect("listed");
    let packed: u64 = packs.map(|pack| pack.expect("read").metadata().expect("looked at").len()).sum();
    assert!(packed < 100_000, "{packed} bytes in packs");

    let url = fixture.serve("release", true);
    let link = format!("hf+release:{id}@{url}");
    let live = described(&fixture.site);
    assert_eq!(fixture.got(&link, "stranger"), live);
    let mounted = fixture.site.to_str().expect("text").to_owned();
    let copied = run_json(&mut fixture.publishing(&mounted, "copied", &[]));
    let copied = format!(
        "hf+release:{}@{}",
        copied["id"].as_str().expect("an id"),
        fixture.world.path("copied").display()
    );
    assert_eq!(fixture.got(&copied, "other"), live);

    // Published again: first without changes, then after three files and a name changed.
    let again = fixture.publish(&[]);
    assert_eq!((&again["unchanged"], &again["files_read"]), (&Value::Bool(true), &Value::from(0)));
    fs::write(fixture.site.join("src/mid"), noise(9, 30_000)).expect("written");
    fs::write(fixture.site.join("many/7"), noise(8, 3000)).expect("written");
    fs::remove_file(fixture.site.join("tiny")).expect("removed");
    fs::write(fixture.site.join("new"), noise(7, 1000)).expect("written");
    let third = fixture.publish(&[]);
    assert_eq!(third["sequence"], 3);
    assert!(third["files_read"].as_u64() <= Some(4), "{third}");
    assert!(third["blocks_at_origin"].as_u64() <= Some(16), "{third}");
    let live = described(&fixture.site);
    let mut got = 0;
    eventually("the mirror has the new release", || {
        got += 1;
        fixture.got(&link, &format!("later-{got}")) == live
    });

    // A file outside the published directory, and one in it.
    fs::write(fixture.site.join("../secret"), noise(66, 9000)).expect("written");
    File::open(fixture.site.join("../secret")).and_then(|file| file.sync_all()).expect("synced");
    let (secret, public) = (chunk(noise(66, 9000)), chunk(noise(8, 3000)));
    assert_eq!(ask(&url, &format!("GET /object/{secret}"), b"").0, 404);
    assert_eq!(ask(&url, "POST /objects", &secret.0).0, 404);
    assert_eq!(ask(&url, &format!("GET /object/{public}"), b"").0, 200);
    let (status, frames) = ask(&url, "POST /objects", &[secret.0, public.0].concat());
    assert_eq!(status, 200);
    assert!(frames.len() > 3000 && frames.len() < 3200, "{} bytes", frames.len());
    for (body, expected) in [(&b""[..], 400), (&[1; 31], 400), (&[1; 65 * 32], 413)] {
        assert_eq!(ask(&url, "POST /objects", body).0, expected);
    }
    let alone = fixture.serve("release", false);
    assert_eq!(ask(&alone, &format!("GET /object/{public}"), b"").0, 404);
    let failed = fixture
        .world
        .holdfast("nobody")
        .args(["cat", &format!("hf+release:{id}@{alone}"), "many/7"])
        .output();
    let failed = failed.expect("it ran");
    assert!(!failed.status.success() && text(&failed).contains("live file system"), "{}", text(&failed));
}

/// Proves: what a retained release needs survives changes of the live file system, its server's collections and
/// restarts. What no retained release needs is removed. A mirror that pulled the release needs neither the file system
/// nor the first mirror.
#[test]
fn held_while_it_is_needed() {
    let mut fixture = Fixture::new();
    let first = fixture.publish(&["--keep", "2"]);
    let id = first["id"].as_str().expect("an id").to_owned();
    let then = described(&fixture.site);
    for gone in ["src/large", "src/mid", "again", "hole", "many/2"] {
        fs::remove_file(fixture.site.join(gone)).expect("removed");
    }
    File::create(fixture.site.join("touched")).and_then(|file| file.sync_all()).expect("synced");
    fixture.world.umount("anna");
    fixture.collect();
    assert!(fixture.has(noise(102, 3000)), "it is held");
    let url = fixture.serve("release", true);
    let link = format!("hf+release:{id}@{url}");
    assert_eq!(fixture.got(&link, "stranger"), then);

    // Pulled through the mirror, and with a key from the directory itself.
    let pull = |fixture: &Fixture, from: &str, to: &str, extra: &[&str]| -> Value {
        let mut command = fixture.world.holdfast("reader");
        command.args(["--json", "pull", from]).arg(fixture.world.path(to)).args(extra);
        run_json(&mut command)
    };
    let pulled = pull(&fixture, &link, "mirror", &[]);
    assert!(pulled["bytes_fetched"].as_u64() > Some(5_000_000), "{pulled}");
    let again = pull(&fixture, &link, "mirror", &[]);
    assert!(again["bytes_fetched"].as_u64() < Some(50_000), "{again}");
    // If a pack that only this mirror has is damaged, it is made again, with what is good of it.
    let packs = fs::read_dir(fixture.world.path("mirror/packs"))
        .expect("listed")
        .map(|pack| pack.expect("read").path());
    let largest = packs.max_by_key(|pack| fs::metadata(pack).expect("looked at").len()).expect("one");
    let damaged = File::options().read(true).write(true).open(&largest).expect("opened");
    let mut byte = [0];
    damaged.read_exact_at(&mut byte, 1_000_000).expect("read");
    damaged.write_all_at(&[byte[0] ^ 1], 1_000_000).expect("written");
    let healed = pull(&fixture, &link, "mirror", &[]);
    assert!(healed["packs_added"] == 1 && healed["bytes_fetched"].as_u64() < Some(1_000_000), "{healed}");
    let directory = format!("hf+release:{id}@{}", fixture.world.path("release").display());
    let key = fixture.world.key("reader");
    let address = fixture.world.url.clone();
    let with_key = ["--origin", &address, "--key", key.to_str().expect("text")];
    pull(&fixture, &directory, "another", &with_key);
    let torn =
        fixture.world.holdfast("reader").args(["pull", &directory]).arg(fixture.world.path("none")).output();
    let torn = torn.expect("it ran");
    assert!(!torn.status.success() && text(&torn).contains("objects"), "{}", text(&torn));

    // Newer releases without those files: the first is released when it is neither retained nor one of the last two.
    fixture.world.mount("anna");
    let dropped = (2..5)
        .map(|sequence| {
            fs::write(fixture.site.join("number"), noise(sequence, 5000)).expect("written");
            assert_eq!(fixture.publish(&["--keep", "2"])["sequence"], sequence);
            fixture.holds()
        })
        .collect::<Vec<_>>();
    assert_eq!(dropped, [2, 2, 2]);
    // A table refers to removed files until so many changes are folded into it.
    for number in 0..300 {
        fs::write(fixture.site.join(format!("../other-{number}")), b"x").expect("written");
    }
    fixture.world.umount("anna");
    // Pins of files that were open last half an hour longer than the mount.
    let unpin = Request::Pin { addresses: Vec::new(), seconds: 0 };
    assert_eq!(fixture.ask_server(unpin), Response::Done);
    assert!(fixture.has(noise(102, 3000)) && fixture.has(noise(105, 3000)));
    assert!(fixture.collect() > 0);
    assert!(!fixture.has(noise(102, 3000)), "it was removed, and no release is left that needs it");
    assert!(fixture.has(noise(105, 3000)), "it is still there, and in every release");
    fixture.stop_serving();
    let url = fixture.serve("release", true);
    let newest = fixture.got(&format!("hf+release:{id}@{url}"), "newest");
    assert!(newest.contains_key(&b"number"[..]) && !newest.contains_key(&b"hole"[..]));

    // The pulled mirrors need nothing else.
    fixture.stop_serving();
    fixture.world.stop_server();
    for mirror in ["mirror", "another"] {
        let link = format!("hf+release:{id}@{}", fixture.world.path(mirror).display());
        assert_eq!(fixture.got(&link, &format!("from-{mirror}")), then);
    }
    fixture.world.start_server();
}

/// Proves: publishing that is killed at any moment leaves the release as it was or new, whole in both cases, and the
/// next run tidies up. Without a mount the key is used directly. Mistakes are explained with their way out.
#[test]
fn killed_and_mistaken() {
    let mut fixture = Fixture::new();
    fixture.world.umount("anna");
    let id = fixture.publish(&[])["id"].as_str().expect("an id").to_owned();
    let url = fixture.serve("release", true);
    let link = format!("hf+release:{id}@{url}");
    for milliseconds in [3, 10, 20, 30, 40, 50, 60, 80, 100, 130, 160, 200] {
        let mut command = fixture.publishing(&fixture.live(), "release", &["--forget", "--keep", "2"]);
        let mut killed = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        std::thread::sleep(Duration::from_millis(milliseconds));
        killed.kill().expect("killed, or ended");
        killed.wait().expect("ended");
        run(fixture.world.holdfast("stranger").args(["verify", &link]));
    }
    let last = fixture.publish(&["--keep", "2"]);
    assert_eq!(fixture.holds(), 2, "{last}");
    fixture.collect();
    run(fixture.world.holdfast("new stranger").args(["verify", &link]));

    let fails = |command: &mut Command, code: i32, words: &str| {
        let output = command.output().expect("it ran");
        let printed = text(&output);
        assert!(
            output.status.code() == Some(code) && printed.contains(words),
            "{:?}: {printed}",
            output.status
        );
    };
    let live = fixture.live();
    let mut without_key = fixture.world.holdfast("anna");
    without_key.args(["publish", &live, "--to", "x", "--key"]).arg(fixture.world.key("release"));
    fails(&mut without_key, 64, "--as KEY");
    fails(&mut fixture.publishing(&live, "new", &["--private-digests"]), 64, "--private-digests");
    fails(&mut fixture.publishing(&format!("{live}/none"), "new", &[]), 1, "no such file");
    fails(&mut fixture.publishing(&format!("{live}/tiny"), "new", &[]), 1, "not a directory");
    fails(&mut fixture.publishing("hf://127.0.0.1/12/x", "new", &[]), 68, "64 hexadecimal digits");
    let mut stranger = fixture.world.holdfast("anna");
    stranger.args(["publish", &live, "--to", "x", "--as"]).arg(fixture.world.key("release"));
    stranger.arg("--key").arg(fixture.world.key("release"));
    fails(&mut stranger, 67, "");
    let data = fixture.world.data();
    let mut unhold = fixture.world.holdfast("anna");
    unhold.args(["server", "unhold", fixture.world.fsid(), "nothing", "--data"]).arg(data);
    fails(&mut unhold, 66, "has no hold");
}
