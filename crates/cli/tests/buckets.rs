//! Releases in a bucket, through the real command: published, killed, sent from a directory, read with credentials and
//! without, and altered by others.
//!
//! The bucket is a simulated one behind the S3 protocol; `scripts/test-object-stores` runs the same on Ceph's gateway.

use crate::common::object_store::{BUCKET, CREDENTIALS, Engine};
use crate::common::publisher::Publisher;
use crate::common::{eventually, exits, free_port, noise, run, run_json};
use holdfast_tiered::simulated::Delivery;
use holdfast_tiered::{BucketAddress, RequestKind};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A publisher with a tree of small files and a large one, and a bucket.
struct Fixture {
    publisher: Publisher,
    engine: Engine,
    address: String,
}

impl Fixture {
    fn new() -> Fixture {
        let publisher = Publisher::new();
        for number in 0..20 {
            publisher.write(&format!("src/{number}"), noise(number, 30_000));
        }
        publisher.write("large", noise(100, 12_000_000));
        let engine = Engine::start();
        let address = engine.address("");
        Fixture { publisher, engine, address }
    }

    fn with_credentials(&self) -> Command {
        let mut command = self.publisher.holdfast();
        command.env("HOME", self.publisher.folder.path()).envs(CREDENTIALS);
        command
    }

    fn without_credentials(&self) -> Command {
        let mut command = self.publisher.holdfast();
        // The machine that runs the tests may have a role.
        command.env("HOME", self.publisher.folder.path()).env("AWS_EC2_METADATA_DISABLED", "true");
        for (name, _) in CREDENTIALS {
            command.env_remove(name);
        }
        command
    }

    fn publishing(&self, extra: &[&str]) -> Command {
        let mut command = self.with_credentials();
        command.args(["--json", "publish", "tree", "--key", "key", "--to", &self.address]).args(extra);
        command
    }

    fn publish(&self, extra: &[&str]) -> Value {
        run_json(&mut self.publishing(extra))
    }

    /// Lets everybody read below the prefix without credentials.
    fn make_public(&self) {
        match &self.engine {
            Engine::Own { server, .. } => server.as_ref().expect("it runs").set_public(&self.prefix()),
            Engine::Other { endpoint } => {
                let policy = format!(
                    "{{\"Version\":\"2012-10-17\",\"Statement\":[{{\"Effect\":\"Allow\",\"Principal\":\"*\",\
                     \"Action\":\"s3:GetObject\",\"Resource\":\"arn:aws:s3:::{BUCKET}/{}*\"}}]}}",
                    self.prefix()
                );
                let file = self.publisher.path("policy");
                fs::write(&file, policy).expect("written");
                let digest = run(Command::new("sha256sum").arg(&file));
                let digest = digest.split_whitespace().next().expect("a digest");
                let user = format!("{}:{}", CREDENTIALS[0].1, CREDENTIALS[1].1);
                run(Command::new("curl")
                    .args(["-fsS", "-X", "PUT", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", &user, "-H"])
                    .arg(format!("x-amz-content-sha256: {digest}"))
                    .arg("--data-binary")
                    .arg(format!("@{}", file.display()))
                    .arg(format!("{endpoint}/{BUCKET}?policy=")));
            }
        }
    }

    fn parsed(&self) -> BucketAddress {
        self.address.parse().expect("an address")
    }

    fn prefix(&self) -> String {
        self.parsed().prefix
    }

    /// Asserts that the release as fetched from `mirror` is the tree.
    fn assert_reads(&self, command: Command, id: &str, mirror: &str) {
        let mut command = command;
        let got = self.publisher.path("got");
        let _ = fs::remove_dir_all(&got);
        run(command.args(["get", "--cache-mib", "0", &format!("hf+release:{id}@{mirror}"), "."]).arg(&got));
        let same = Command::new("diff").arg("-r").arg(self.publisher.path("tree")).arg(&got).status();
        assert!(same.expect("diff runs").success());
    }
}

fn id_of(published: &Value) -> String {
    published["id"].as_str().expect("an ID").to_owned()
}

/// Runs a command that must end with `code`, and returns what it printed, in which no secret may be.
#[track_caller]
fn refused(command: &mut Command, code: i32) -> String {
    let printed = exits(command, code);
    assert!(!printed.contains(CREDENTIALS[1].1), "{printed}");
    printed
}

/// Proves: what is published into a bucket can be read from it with credentials, and where that is allowed without, by
/// plain HTTP, also through a mount. Publishing again sends what has changed. Files that nobody needs are removed after
/// a while, and not before. Another machine with the key continues from what the bucket has.
#[test]
fn a_bucket_serves_what_was_published() {
    let mut fixture = Fixture::new();
    let first = fixture.publish(&[]);
    let id = id_of(&first);
    assert_eq!((&first["sequence"], &first["first"]), (&1.into(), &true.into()));
    fixture.assert_reads(fixture.with_credentials(), &id, &fixture.address);

    let url = first["url"].as_str().expect("a URL").to_owned();
    let printed = refused(fixture.without_credentials().args(["ls", &fixture.address, "--id", &id]), 69);
    assert!(printed.contains("AccessDenied") && printed.contains("there are no credentials"), "{printed}");
    fixture.make_public();
    fixture.assert_reads(fixture.without_credentials(), &id, &url);
    fixture.assert_reads(fixture.without_credentials(), &id, &fixture.address);
    // The bucket knows nothing of paths in the tree, and a file can be read by its path all the same.
    let link = format!("hf+release:{id}@{url}");
    let output = fixture.without_credentials().args(["cat", &link, "src/3"]).output().expect("it runs");
    assert_eq!(output.stdout, noise(3, 30_000));

    let again = fixture.publish(&[]);
    let sent = |published: &Value, what: &str| published["sent"][what].as_u64().expect("a number");
    // An index that did not change stays the same object.
    assert!(sent(&again, "bytes_sent") < 5_000 && sent(&again, "files_there") >= 4, "{again}");
    fixture.publisher.write("src/3", noise(1003, 30_000));
    let changed = fixture.publish(&[]);
    assert!((30_000..100_000).contains(&sent(&changed, "bytes_sent")), "{changed}");
    fixture.assert_reads(fixture.without_credentials(), &id, &url);

    // A mount without credentials follows new releases.
    let mount = fixture.publisher.path("mnt");
    fs::create_dir(&mount).expect("made");
    fixture.publisher.mounts.push(mount.clone());
    let mounting = ["--id", &id, "--refresh", "1"];
    run(fixture.without_credentials().arg("mount").arg(&url).arg(&mount).args(mounting));
    assert_eq!(fs::read(mount.join("src/3")).expect("read"), noise(1003, 30_000));
    fixture.publisher.write("src/new", "new\n");
    fixture.publish(&["--keep", "1"]);
    eventually("the mount has the new release", || {
        fs::read(mount.join("src/new")).is_ok_and(|it| it == b"new\n")
    });
    fixture.publisher.umount(&mount);

    // Nothing is removed before its time; then everything that is not needed is.
    let waiting = fixture.publish(&["--keep", "1"]);
    assert!(sent(&waiting, "files_unneeded") > 0, "{waiting}");
    let pruned = fixture.publish(&["--keep", "1", "--prune-after", "0"]);
    assert!(sent(&pruned, "files_removed") > 0 && sent(&pruned, "files_unneeded") == 0, "{pruned}");
    fixture.assert_reads(fixture.without_credentials(), &id, &url);

    // Another machine has nothing but the publisher's key.
    for folder in ["cache", "state"] {
        fs::remove_dir_all(fixture.publisher.path(folder)).expect("removed");
    }
    fixture.publisher.write("src/other", "from another machine\n");
    let other = fixture.publish(&["--keep", "1"]);
    assert_eq!((id_of(&other), &other["first"]), (id.clone(), &false.into()));
    let notes = other["notes"].to_string();
    assert!(notes.contains("was fetched from the bucket first"), "{notes}");
    assert!(sent(&other, "bytes_sent") < 100_000, "{other}");
    fixture.assert_reads(fixture.without_credentials(), &id, &url);
    if let Engine::Own { objects, .. } = &fixture.engine {
        for name in objects.names() {
            let headers = format!("{:?}", objects.headers(&name));
            let is_named = name.contains("/packs/") || name.contains("/index/") || name.contains("/hints/");
            let expected = if is_named { "immutable" } else { "max-age=10" };
            assert!(headers.contains(expected) && headers.contains("octet-stream"), "{name}: {headers}");
        }
    }
}

/// Proves: publishing that is killed again and again continues where it was, and readers meanwhile see the whole
/// release before. Publishing survives a bucket that is away for some seconds.
#[test]
fn publishing_is_killed_and_the_bucket_goes_away() {
    let mut fixture = Fixture::new();
    let id = id_of(&fixture.publish(&[]));
    let before = fixture.publisher.path("before");
    run(Command::new("cp").arg("-r").arg(fixture.publisher.path("tree")).arg(&before));
    for number in 0..6 {
        fixture.publisher.write(&format!("more/{number}"), noise(200 + number, 4_000_000));
    }
    let link = format!("hf+release:{id}@{}", fixture.address);
    for milliseconds in [200, 400, 800] {
        let mut killed =
            fixture.publishing(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        std::thread::sleep(Duration::from_millis(milliseconds));
        killed.kill().expect("killed, or ended");
        killed.wait().expect("ended");
        let got = fixture.publisher.path(&format!("got{milliseconds}"));
        run(fixture.with_credentials().args(["get", "--cache-mib", "0", &link, "."]).arg(&got));
        let is_whole = |tree| {
            Command::new("diff")
                .args(["-rq"])
                .arg(tree)
                .arg(&got)
                .stdout(Stdio::null())
                .status()
                .expect("diff")
                .success()
        };
        assert!(is_whole(before.clone()) || is_whole(fixture.publisher.path("tree")), "{milliseconds}");
    }
    fixture.publisher.write("last", noise(300, 30_000_000));
    // No PUT arrives, so publishing cannot finish before the bucket goes away.
    let tried = Arc::new(AtomicU64::new(0));
    if let Engine::Own { objects, .. } = &fixture.engine {
        let tried = tried.clone();
        objects.with_deliveries(move |kind, _| match kind {
            RequestKind::Put => {
                tried.fetch_add(1, Ordering::SeqCst);
                Delivery::Lost
            }
            _ => Delivery::Good,
        });
    }
    let (cache, mut publishing) = (fixture.publisher.path("cache"), fixture.publishing(&[]));
    let mut publishing = publishing.stdout(Stdio::null()).spawn().expect("it runs");
    // The bucket goes away while the tree is read, after the publisher has looked at the bucket.
    let packing = format!("new-{}-", publishing.id());
    eventually("it is at work", || {
        let copies = fs::read_dir(cache.join("publish")).expect("copies");
        let packs =
            copies.filter_map(|copy| fs::read_dir(copy.ok()?.path().join("release/packs")).ok()).flatten();
        let is_packing = packs.flatten().any(|pack| pack.file_name().to_string_lossy().starts_with(&packing));
        is_packing || tried.load(Ordering::SeqCst) > 0 || publishing.try_wait().expect("it runs").is_some()
    });
    fixture.engine.kill();
    match &fixture.engine {
        Engine::Own { objects, address, .. } => {
            // A listener at the bucket's address, which never answers and counts the attempts.
            let nobody = TcpListener::bind(address).expect("the address is free");
            for _ in 0..2 {
                nobody.accept().expect("it is asked");
            }
            objects.without_fates();
        }
        Engine::Other { .. } => std::thread::sleep(Duration::from_secs(3)),
    }
    assert!(publishing.try_wait().expect("it runs").is_none(), "it waits for the bucket");
    fixture.engine.start_again();
    assert!(publishing.wait().expect("it ends").success());
    fixture.assert_reads(fixture.with_credentials(), &id, &fixture.address);
}

/// Proves: a directory, or a mirror on the network, can be sent to a bucket, and is checked first. What is pulled back
/// from the bucket is what was signed and published. A directory that is behind or damaged is not sent.
#[test]
fn directories_go_to_a_bucket_and_come_back() {
    let mut fixture = Fixture::new();
    fixture.publisher.publish(&[]);
    let id = fixture.publisher.id();
    let pull = |from: &str, to: &str| {
        let mut command = fixture.with_credentials();
        command.args(["--json", "pull", &format!("hf+release:{id}@{from}"), to]);
        command
    };
    run(Command::new("cp")
        .arg("-r")
        .arg(fixture.publisher.path("release"))
        .arg(fixture.publisher.path("old")));
    let sent = run_json(&mut pull("release", &fixture.address));
    assert_eq!(sent["sequence"], 1);
    assert!(sent["bytes_sent"].as_u64() > Some(12_000_000), "{sent}");
    let back = run_json(&mut pull(&fixture.address, "back"));
    assert!(back["blocks_verified"].as_u64() > Some(20), "{back}");

    fixture.publisher.write("src/1", noise(77, 30_000));
    fixture.publisher.publish(&[]);
    let url = fixture.publisher.serve("release");
    let pull = |from: &str, to: &str| {
        let mut command = fixture.with_credentials();
        command.args(["--json", "pull", &format!("hf+release:{id}@{from}"), to]);
        command
    };
    let sent = run_json(&mut pull(&url, &fixture.address));
    assert!(sent["sequence"] == 2 && sent["bytes_sent"].as_u64() < Some(200_000), "{sent}");
    fixture.assert_reads(fixture.with_credentials(), &id, &fixture.address);
    let idle = run_json(&mut pull("release", &fixture.address));
    assert!(idle["bytes_sent"].as_u64() < Some(5_000) && idle["requests"].as_u64() < Some(15), "{idle}");

    let mut behind = pull("old", &fixture.address);
    let printed = refused(behind.env("HOLDFAST_STATE_DIR", fixture.publisher.path("fresh")), 76);
    assert!(printed.contains("release 2 is there"), "{printed}");
    let pack = fs::read_dir(fixture.publisher.path("release/packs"))
        .expect("packs")
        .next()
        .expect("one")
        .expect("one");
    let mut bytes = fs::read(pack.path()).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(pack.path(), bytes).expect("written");
    let printed = refused(&mut pull("release", &fixture.address), 65);
    assert!(printed.contains("release/packs/") && printed.contains("not what its name says"), "{printed}");
    fixture.assert_reads(fixture.with_credentials(), &id, &fixture.address);
}

/// Proves: what others change in the bucket deceives no reader. The publisher notices by itself what is missing or of
/// another length, and with --recheck what was altered, and repairs both. A release that was put back is noticed.
#[test]
fn a_bucket_that_is_changed_behind_our_back() {
    let fixture = Fixture::new();
    let id = id_of(&fixture.publish(&[]));
    let bucket = match &fixture.engine {
        Engine::Own { objects, .. } => objects.clone(),
        Engine::Other { .. } => return,
    };
    let prefix = fixture.prefix();
    let old: Vec<_> = bucket.names().into_iter().map(|name| (name.clone(), bucket.object(&name))).collect();
    let packs: Vec<String> = bucket.names().into_iter().filter(|name| name.contains("/packs/")).collect();
    let short = |name: &String| name.strip_prefix(&prefix).expect("below the prefix").to_owned();
    let mended = |published: &Value| published["sent"]["mended"].to_string();

    bucket.alter(&packs[0], None);
    let published = fixture.publish(&[]);
    assert!(mended(&published).contains(&short(&packs[0])), "{published}");
    fixture.assert_reads(fixture.with_credentials(), &id, &fixture.address);

    let mut bytes = bucket.object(&packs[1]).expect("a pack");
    for byte in bytes.iter_mut().skip(8) {
        *byte ^= 0x55;
    }
    bucket.alter(&packs[1], Some(bytes));
    let link = format!("hf+release:{id}@{}", fixture.address);
    let read = |to: &str| {
        let mut command = fixture.with_credentials();
        command.args(["pull", &link, to]);
        command
    };
    let printed = refused(&mut read("one"), 69);
    assert!(printed.contains(&short(&packs[1])) && printed.contains("gave something false"), "{printed}");
    assert_eq!(mended(&fixture.publish(&[])), "[]");
    let published = fixture.publish(&["--recheck"]);
    assert!(mended(&published).contains(&short(&packs[1])), "{published}");
    run(&mut read("one"));

    // The bucket is as it was at the beginning.
    for name in bucket.names() {
        bucket.alter(&name, None);
    }
    for (name, bytes) in old {
        bucket.alter(&name, bytes);
    }
    let printed = refused(&mut read("one"), 76);
    assert!(printed.contains("rolls back"), "{printed}");
    fs::remove_dir_all(fixture.publisher.path("cache")).expect("removed");
    let printed = refused(&mut fixture.publishing(&[]), 76);
    assert!(printed.contains("rolls back"), "{printed}");
}

/// Proves: mistakes are explained in words that name the bucket and the way out, have no secret in them, and change
/// nothing: a bucket that does not exist, no or wrong credentials, no server, another publisher's release, something
/// that is no release.
#[test]
fn mistakes_are_told() {
    let fixture = Fixture::new();
    let publish_to = |address: &str, variables: &[(&str, &str)], code: i32| {
        let mut command = fixture.without_credentials();
        command.envs(variables.iter().copied());
        refused(command.args(["publish", "tree", "--key", "key", "--to", address]), code)
    };
    let wrong = [CREDENTIALS[0], ("AWS_SECRET_ACCESS_KEY", "wrongsecret")];
    let nobody = format!("s3://{BUCKET}/p?endpoint=http://127.0.0.1:{}", free_port());
    let missing = fixture.address.replace(BUCKET, "no-such-bucket-here");
    for (address, variables, parts) in [
        (&fixture.address, &wrong[..], &["refuses", "SignatureDoesNotMatch", "AWS_ACCESS_KEY_ID"][..]),
        (&fixture.address, &[], &["there are no credentials", ".aws/credentials"]),
        (&missing, &CREDENTIALS, &["there is no bucket", "no-such-bucket-here"]),
        (&nobody, &CREDENTIALS, &["cannot be reached", BUCKET]),
    ] {
        let printed = publish_to(address, variables, 69);
        for part in parts {
            assert!(printed.contains(part), "{part:?} is not in {printed}");
        }
        assert!(!printed.contains("wrongsecret"), "{printed}");
    }
    for bad in ["s3://x", "s3://holdfast-test", "s3://k:s@holdfast-test/p", "s3://holdfast-test/p?cache=1G"] {
        publish_to(bad, &CREDENTIALS, 64);
    }
    let id = id_of(&fixture.publish(&[]));
    let list = |variables: &[(&str, &str)], address: &str| {
        let mut command = fixture.without_credentials();
        command.envs(variables.iter().copied());
        refused(command.args(["ls", address, "--id", &id]), 69)
    };
    let printed = list(&wrong, &fixture.address);
    assert!(printed.contains("SignatureDoesNotMatch") && printed.contains("AWS_ACCESS_KEY_ID"), "{printed}");
    let printed = list(&CREDENTIALS, &missing);
    assert!(printed.contains("there is no bucket no-such-bucket-here"), "{printed}");

    // Another publisher's prefix: refused whether or not this machine knows the first release.
    run(fixture.publisher.holdfast().args(["keygen", "--out", "other-key"]));
    let mut theirs = fixture.with_credentials();
    theirs.env("HOLDFAST_CACHE_DIR", fixture.publisher.path("their-cache"));
    theirs.env("HOLDFAST_STATE_DIR", fixture.publisher.path("their-state"));
    let printed =
        refused(theirs.args(["publish", "tree", "--key", "other-key", "--to", &fixture.address]), 73);
    assert!(printed.contains(&id) && printed.contains("may not sign"), "{printed}");
    run(fixture.publisher.holdfast().args(["publish", "tree", "--key", "other-key", "--to", "theirs"]));
    let report = run_json(fixture.publisher.holdfast().args(["--json", "release", "show", "theirs"]));
    let link = format!("hf+release:{}@theirs", report["release"].as_str().expect("an ID"));
    let printed = refused(fixture.with_credentials().args(["pull", &link, &fixture.address]), 73);
    assert!(printed.contains("another release"), "{printed}");
    let other = fixture.address.replace("?endpoint", "/other?endpoint");
    let foreign: BucketAddress = other.parse().expect("an address");
    if let Engine::Own { objects, .. } = &fixture.engine {
        objects.alter(&format!("{}thesis.pdf", foreign.prefix), Some(b"mine".to_vec()));
        let printed = publish_to(&other, &CREDENTIALS, 73);
        assert!(printed.contains("thesis.pdf is there, which is no file of a release"), "{printed}");
    }
    fixture.assert_reads(fixture.with_credentials(), &id, &fixture.address);
}
