//! Releases in a bucket, through the real command: published, killed, sent from a directory, read with credentials and
//! without, altered behind everybody's back.
//!
//! The bucket is a simulated one behind the S3 protocol; `scripts/test-object-stores` runs the same on Ceph's gateway.

use crate::common::desk::Desk;
use crate::common::object_store::{BUCKET, CREDENTIALS, Engine};
use crate::common::{eventually, free_port, noise, run, text};
use holdfast_tiered::simulated::Delivery;
use holdfast_tiered::{BucketAddress, RequestKind};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A publisher with a tree, and a bucket.
struct Shop {
    desk: Desk,
    engine: Engine,
    address: String,
}

impl Shop {
    fn new() -> Shop {
        let desk = Desk::new();
        for number in 0..20 {
            desk.write(&format!("src/{number}"), noise(number, 30_000));
        }
        desk.write("large", noise(100, 12_000_000));
        let engine = Engine::start();
        let address = engine.address("");
        Shop { desk, engine, address }
    }

    fn with_credentials(&self) -> Command {
        let mut command = self.desk.holdfast();
        command.env("HOME", self.desk.folder.path()).envs(CREDENTIALS);
        command
    }

    fn without_credentials(&self) -> Command {
        let mut command = self.desk.holdfast();
        // The machine that runs the tests may have a role.
        command.env("HOME", self.desk.folder.path()).env("AWS_EC2_METADATA_DISABLED", "true");
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
        json(&run(&mut self.publishing(extra)))
    }

    /// Lets anybody read below the prefix.
    fn make_public(&self) {
        match &self.engine {
            Engine::Own { server, .. } => server.as_ref().expect("it runs").set_public(&self.prefix()),
            Engine::Other { endpoint } => {
                let policy = format!(
                    "{{\"Version\":\"2012-10-17\",\"Statement\":[{{\"Effect\":\"Allow\",\"Principal\":\"*\",\
                     \"Action\":\"s3:GetObject\",\"Resource\":\"arn:aws:s3:::{BUCKET}/{}*\"}}]}}",
                    self.prefix()
                );
                let file = self.desk.path("policy");
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

    /// Whether what a release at `mirror` has is the tree.
    fn assert_reads(&self, command: Command, id: &str, mirror: &str) {
        let mut command = command;
        let got = self.desk.path("got");
        let _ = fs::remove_dir_all(&got);
        run(command.args(["get", "--cache-mib", "0", &format!("hf+release:{id}@{mirror}"), "."]).arg(&got));
        let same = Command::new("diff").arg("-r").arg(self.desk.path("tree")).arg(&got).status();
        assert!(same.expect("diff runs").success());
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn id_of(published: &Value) -> String {
    published["id"].as_str().expect("an ID").to_owned()
}

fn refused(command: &mut Command, code: i32) -> String {
    let output: Output = command.stdin(Stdio::null()).output().expect("it runs");
    let said = text(&output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(!said.contains(CREDENTIALS[1].1), "{said}");
    said
}

/// Proves: what is published into a bucket is read from it with credentials, and without by plain HTTP where that is allowed,
/// also through a mount; publishing again sends what has changed; what nobody needs goes after a while, and not before; and
/// another machine with the key goes on from what the bucket has.
#[test]
fn a_bucket_serves_what_was_published() {
    let mut shop = Shop::new();
    let first = shop.publish(&[]);
    let id = id_of(&first);
    assert_eq!((&first["sequence"], &first["first"]), (&1.into(), &true.into()));
    shop.assert_reads(shop.with_credentials(), &id, &shop.address);

    let url = first["url"].as_str().expect("a URL").to_owned();
    let said = refused(shop.without_credentials().args(["ls", &shop.address, "--id", &id]), 69);
    assert!(said.contains("AccessDenied") && said.contains("there are no credentials"), "{said}");
    shop.make_public();
    shop.assert_reads(shop.without_credentials(), &id, &url);
    shop.assert_reads(shop.without_credentials(), &id, &shop.address);
    // It knows nothing of paths, and is read all the same.
    let link = format!("hf+release:{id}@{url}");
    let output = shop.without_credentials().args(["cat", &link, "src/3"]).output().expect("it runs");
    assert_eq!(output.stdout, noise(3, 30_000));

    let again = shop.publish(&[]);
    let sent = |published: &Value, what: &str| published["sent"][what].as_u64().expect("a number");
    // An index that did not change is the same file.
    assert!(sent(&again, "bytes_sent") < 5_000 && sent(&again, "files_there") >= 4, "{again}");
    shop.desk.write("src/3", noise(1003, 30_000));
    let changed = shop.publish(&[]);
    assert!((30_000..100_000).contains(&sent(&changed, "bytes_sent")), "{changed}");
    shop.assert_reads(shop.without_credentials(), &id, &url);

    // Mounted without credentials, it follows what is published.
    let mount = shop.desk.path("mnt");
    fs::create_dir(&mount).expect("made");
    shop.desk.mounts.push(mount.clone());
    let mounting = ["--id", &id, "--refresh", "1"];
    run(shop.without_credentials().arg("mount").arg(&url).arg(&mount).args(mounting));
    assert_eq!(fs::read(mount.join("src/3")).expect("read"), noise(1003, 30_000));
    shop.desk.write("src/new", "new\n");
    shop.publish(&["--keep", "1"]);
    eventually("the mount has the new release", || {
        fs::read(mount.join("src/new")).is_ok_and(|it| it == b"new\n")
    });
    shop.desk.umount(&mount);

    // Nothing goes before its time, and then all that is not needed does.
    let waiting = shop.publish(&["--keep", "1"]);
    assert!(sent(&waiting, "files_unneeded") > 0, "{waiting}");
    let pruned = shop.publish(&["--keep", "1", "--prune-after", "0"]);
    assert!(sent(&pruned, "files_removed") > 0 && sent(&pruned, "files_unneeded") == 0, "{pruned}");
    shop.assert_reads(shop.without_credentials(), &id, &url);

    // Another machine, that has nothing but the key.
    for folder in ["cache", "state"] {
        fs::remove_dir_all(shop.desk.path(folder)).expect("removed");
    }
    shop.desk.write("src/other", "from another machine\n");
    let other = shop.publish(&["--keep", "1"]);
    assert_eq!((id_of(&other), &other["first"]), (id.clone(), &false.into()));
    let notes = other["notes"].to_string();
    assert!(notes.contains("was fetched from the bucket first"), "{notes}");
    assert!(sent(&other, "bytes_sent") < 100_000, "{other}");
    shop.assert_reads(shop.without_credentials(), &id, &url);
    if let Engine::Own { objects, .. } = &shop.engine {
        for name in objects.names() {
            let headers = format!("{:?}", objects.headers(&name));
            let is_named = name.contains("/packs/") || name.contains("/index/") || name.contains("/hints/");
            let expected = if is_named { "immutable" } else { "max-age=10" };
            assert!(headers.contains(expected) && headers.contains("octet-stream"), "{name}: {headers}");
        }
    }
}

/// Proves: killed in the middle again and again, publishing goes on where it was, and whoever reads meanwhile sees the release
/// before, whole; a bucket that is away for some seconds ends nothing.
#[test]
fn publishing_is_killed_and_the_bucket_goes_away() {
    let mut shop = Shop::new();
    let id = id_of(&shop.publish(&[]));
    let before = shop.desk.path("before");
    run(Command::new("cp").arg("-r").arg(shop.desk.path("tree")).arg(&before));
    for number in 0..6 {
        shop.desk.write(&format!("more/{number}"), noise(200 + number, 4_000_000));
    }
    let link = format!("hf+release:{id}@{}", shop.address);
    for milliseconds in [200, 400, 800] {
        let mut killed =
            shop.publishing(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        std::thread::sleep(Duration::from_millis(milliseconds));
        killed.kill().expect("killed, or ended");
        killed.wait().expect("ended");
        let got = shop.desk.path(&format!("got{milliseconds}"));
        run(shop.with_credentials().args(["get", "--cache-mib", "0", &link, "."]).arg(&got));
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
        assert!(is_whole(before.clone()) || is_whole(shop.desk.path("tree")), "{milliseconds}");
    }
    shop.desk.write("last", noise(300, 30_000_000));
    // Nothing that it puts arrives, so that it cannot be through before the bucket goes away.
    let tried = Arc::new(AtomicU64::new(0));
    if let Engine::Own { objects, .. } = &shop.engine {
        let tried = tried.clone();
        objects.with_deliveries(move |kind, _| match kind {
            RequestKind::Put => {
                tried.fetch_add(1, Ordering::SeqCst);
                Delivery::Lost
            }
            _ => Delivery::Good,
        });
    }
    let (cache, mut publishing) = (shop.desk.path("cache"), shop.publishing(&[]));
    let mut publishing = publishing.stdout(Stdio::null()).spawn().expect("it runs");
    // While it reads the tree, after it has looked at the bucket.
    let packing = format!("new-{}-", publishing.id());
    eventually("it is at work", || {
        let copies = fs::read_dir(cache.join("publish")).expect("copies");
        let packs =
            copies.filter_map(|copy| fs::read_dir(copy.ok()?.path().join("release/packs")).ok()).flatten();
        let is_packing = packs.flatten().any(|pack| pack.file_name().to_string_lossy().starts_with(&packing));
        is_packing || tried.load(Ordering::SeqCst) > 0 || publishing.try_wait().expect("it runs").is_some()
    });
    shop.engine.kill();
    match &shop.engine {
        Engine::Own { objects, address, .. } => {
            // Somebody else at the bucket's address, who says nothing and sees that it is asked again.
            let nobody = TcpListener::bind(address).expect("the address is free");
            for _ in 0..2 {
                nobody.accept().expect("it is asked");
            }
            objects.without_fates();
        }
        Engine::Other { .. } => std::thread::sleep(Duration::from_secs(3)),
    }
    assert!(publishing.try_wait().expect("it runs").is_none(), "it waits for the bucket");
    shop.engine.start_again();
    assert!(publishing.wait().expect("it ends").success());
    shop.assert_reads(shop.with_credentials(), &id, &shop.address);
}

/// Proves: a directory and a mirror on the network are sent to a bucket, checked first; pulled back from there, signed, they
/// are what was published; and a directory that is behind, or damaged, is not sent.
#[test]
fn directories_go_to_a_bucket_and_come_back() {
    let mut shop = Shop::new();
    shop.desk.publish(&[]);
    let id = shop.desk.id();
    let pull = |from: &str, to: &str| {
        let mut command = shop.with_credentials();
        command.args(["--json", "pull", &format!("hf+release:{id}@{from}"), to]);
        command
    };
    run(Command::new("cp").arg("-r").arg(shop.desk.path("release")).arg(shop.desk.path("old")));
    let sent = json(&run(&mut pull("release", &shop.address)));
    assert_eq!(sent["sequence"], 1);
    assert!(sent["bytes_sent"].as_u64() > Some(12_000_000), "{sent}");
    let back = json(&run(&mut pull(&shop.address, "back")));
    assert!(back["blocks_verified"].as_u64() > Some(20), "{back}");

    shop.desk.write("src/1", noise(77, 30_000));
    shop.desk.publish(&[]);
    let url = shop.desk.serve("release");
    let pull = |from: &str, to: &str| {
        let mut command = shop.with_credentials();
        command.args(["--json", "pull", &format!("hf+release:{id}@{from}"), to]);
        command
    };
    let sent = json(&run(&mut pull(&url, &shop.address)));
    assert!(sent["sequence"] == 2 && sent["bytes_sent"].as_u64() < Some(200_000), "{sent}");
    shop.assert_reads(shop.with_credentials(), &id, &shop.address);
    let idle = json(&run(&mut pull("release", &shop.address)));
    assert!(idle["bytes_sent"].as_u64() < Some(5_000) && idle["requests"].as_u64() < Some(15), "{idle}");

    let mut behind = pull("old", &shop.address);
    let said = refused(behind.env("HOLDFAST_STATE_DIR", shop.desk.path("fresh")), 76);
    assert!(said.contains("release 2 is there"), "{said}");
    let pack =
        fs::read_dir(shop.desk.path("release/packs")).expect("packs").next().expect("one").expect("one");
    let mut bytes = fs::read(pack.path()).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(pack.path(), bytes).expect("written");
    let said = refused(&mut pull("release", &shop.address), 65);
    assert!(said.contains("release/packs/") && said.contains("not what its name says"), "{said}");
    shop.assert_reads(shop.with_credentials(), &id, &shop.address);
}

/// Proves: what somebody changed in the bucket deceives no reader; the publisher notices what is missing or of another length
/// by itself, and what was altered with --recheck, and mends both; a release that was put back is noticed.
#[test]
fn a_bucket_that_is_changed_behind_our_back() {
    let shop = Shop::new();
    let id = id_of(&shop.publish(&[]));
    let bucket = match &shop.engine {
        Engine::Own { objects, .. } => objects.clone(),
        Engine::Other { .. } => return,
    };
    let prefix = shop.prefix();
    let old: Vec<_> = bucket.names().into_iter().map(|name| (name.clone(), bucket.object(&name))).collect();
    let packs: Vec<String> = bucket.names().into_iter().filter(|name| name.contains("/packs/")).collect();
    let short = |name: &String| name.strip_prefix(&prefix).expect("below the prefix").to_owned();
    let mended = |published: &Value| published["sent"]["mended"].to_string();

    bucket.alter(&packs[0], None);
    let published = shop.publish(&[]);
    assert!(mended(&published).contains(&short(&packs[0])), "{published}");
    shop.assert_reads(shop.with_credentials(), &id, &shop.address);

    let mut bytes = bucket.object(&packs[1]).expect("a pack");
    for byte in bytes.iter_mut().skip(8) {
        *byte ^= 0x55;
    }
    bucket.alter(&packs[1], Some(bytes));
    let link = format!("hf+release:{id}@{}", shop.address);
    let read = |to: &str| {
        let mut command = shop.with_credentials();
        command.args(["pull", &link, to]);
        command
    };
    let said = refused(&mut read("one"), 69);
    assert!(said.contains(&short(&packs[1])) && said.contains("gave something false"), "{said}");
    assert_eq!(mended(&shop.publish(&[])), "[]");
    let published = shop.publish(&["--recheck"]);
    assert!(mended(&published).contains(&short(&packs[1])), "{published}");
    run(&mut read("one"));

    // Everything as it was at the beginning.
    for name in bucket.names() {
        bucket.alter(&name, None);
    }
    for (name, bytes) in old {
        bucket.alter(&name, bytes);
    }
    let said = refused(&mut read("one"), 76);
    assert!(said.contains("rolls back"), "{said}");
    fs::remove_dir_all(shop.desk.path("cache")).expect("removed");
    let said = refused(&mut shop.publishing(&[]), 76);
    assert!(said.contains("rolls back"), "{said}");
}

/// Proves: what people get wrong is told in words that name the bucket and the way out, without secrets, and nothing is
/// changed: no bucket, no or wrong credentials, nobody there, somebody else's release, something else.
#[test]
fn mistakes_are_told() {
    let shop = Shop::new();
    let publish_to = |address: &str, variables: &[(&str, &str)], code: i32| {
        let mut command = shop.without_credentials();
        command.envs(variables.iter().copied());
        refused(command.args(["publish", "tree", "--key", "key", "--to", address]), code)
    };
    let wrong = [CREDENTIALS[0], ("AWS_SECRET_ACCESS_KEY", "wrongsecret")];
    let nobody = format!("s3://{BUCKET}/p?endpoint=http://127.0.0.1:{}", free_port());
    let missing = shop.address.replace(BUCKET, "no-such-bucket-here");
    for (address, variables, parts) in [
        (&shop.address, &wrong[..], &["refuses", "SignatureDoesNotMatch", "AWS_ACCESS_KEY_ID"][..]),
        (&shop.address, &[], &["there are no credentials", ".aws/credentials"]),
        (&missing, &CREDENTIALS, &["there is no bucket", "no-such-bucket-here"]),
        (&nobody, &CREDENTIALS, &["cannot be reached", BUCKET]),
    ] {
        let said = publish_to(address, variables, 69);
        for part in parts {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
        assert!(!said.contains("wrongsecret"), "{said}");
    }
    for bad in ["s3://x", "s3://holdfast-test", "s3://k:s@holdfast-test/p", "s3://holdfast-test/p?cache=1G"] {
        publish_to(bad, &CREDENTIALS, 64);
    }
    let id = id_of(&shop.publish(&[]));
    let list = |variables: &[(&str, &str)], address: &str| {
        let mut command = shop.without_credentials();
        command.envs(variables.iter().copied());
        refused(command.args(["ls", address, "--id", &id]), 69)
    };
    let said = list(&wrong, &shop.address);
    assert!(said.contains("SignatureDoesNotMatch") && said.contains("AWS_ACCESS_KEY_ID"), "{said}");
    let said = list(&CREDENTIALS, &missing);
    assert!(said.contains("there is no bucket no-such-bucket-here"), "{said}");

    // Somebody else's: with a memory of the first one, and without.
    run(shop.desk.holdfast().args(["keygen", "--out", "other-key"]));
    let mut theirs = shop.with_credentials();
    theirs.env("HOLDFAST_CACHE_DIR", shop.desk.path("their-cache"));
    theirs.env("HOLDFAST_STATE_DIR", shop.desk.path("their-state"));
    let said = refused(theirs.args(["publish", "tree", "--key", "other-key", "--to", &shop.address]), 73);
    assert!(said.contains(&id) && said.contains("may not sign"), "{said}");
    run(shop.desk.holdfast().args(["publish", "tree", "--key", "other-key", "--to", "theirs"]));
    let shown = json(&run(shop.desk.holdfast().args(["--json", "release", "show", "theirs"])));
    let link = format!("hf+release:{}@theirs", shown["release"].as_str().expect("an ID"));
    let said = refused(shop.with_credentials().args(["pull", &link, &shop.address]), 73);
    assert!(said.contains("another release"), "{said}");
    let other = shop.address.replace("?endpoint", "/other?endpoint");
    let foreign: BucketAddress = other.parse().expect("an address");
    if let Engine::Own { objects, .. } = &shop.engine {
        objects.alter(&format!("{}thesis.pdf", foreign.prefix), Some(b"mine".to_vec()));
        let said = publish_to(&other, &CREDENTIALS, 73);
        assert!(said.contains("thesis.pdf is there, which is no file of a release"), "{said}");
    }
    shop.assert_reads(shop.with_credentials(), &id, &shop.address);
}
