//! The blocks of a server in a bucket: real processes, which are killed; a bucket that is away, loses objects, or has two
//! servers.
//!
//! The bucket is a simulated one behind the S3 protocol, served by the test. `scripts/test-object-stores` runs the same on
//! Ceph's gateway.

use crate::common;

use common::load::Load;
use common::object_store::{BUCKET, CREDENTIALS, Engine};
use common::tls_front::TlsFront;
use common::{World, eventually, run, text};
use holdfast_tiered::simulated::http::{KEY_ID, SECRET};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A world whose server has its blocks in a bucket.
struct Apart {
    world: World,
    engine: Engine,
}

impl Apart {
    fn new(people: &[&str], options: &str) -> Apart {
        let engine = Engine::start();
        let address = engine.address(options);
        let world = World::with_server_in(people, &CREDENTIALS, |_| vec!["--blocks".to_owned(), address]);
        Apart { world, engine }
    }

    fn operator(&self, task: &str) -> Command {
        let mut command = self.world.holdfast("operator");
        command.envs(CREDENTIALS).args(["server", task, "--data"]).arg(self.world.data());
        command
    }

    fn bucket(&self) -> serde_json::Value {
        let figures: serde_json::Value =
            serde_json::from_str(&run(self.operator("stats").arg("--json"))).expect("JSON");
        figures["block_store"].clone()
    }

    fn server_log(&self) -> String {
        fs::read_to_string(self.world.path("server.log")).expect("a log")
    }
}

fn git(at: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(at).args(["-c", "user.name=anna", "-c", "user.email=anna@example.org"]);
    run(command.args(arguments))
}

/// Proves: people work as ever, git among them, while the server and the object store are killed in turn; and then the
/// server's disk is lost for blocks, and nothing whose writing was acknowledged is lost or different.
#[test]
fn nothing_acknowledged_is_lost() {
    let mut apart = Apart::new(&["anna", "bert"], "&durability=object&cache=256M");
    let anna = apart.world.mount("anna").join("anna");
    let source = apart.world.path("source");
    fs::create_dir(&source).expect("a folder");
    git(&source, &["init", "-q"]);
    for file in 0..20 {
        fs::write(source.join(format!("file {file}")), format!("line {file}\n").repeat(500))
            .expect("written");
    }
    git(&source, &["add", "."]);
    git(&source, &["commit", "-qm", "one"]);
    run(Command::new("git").args(["clone", "-q"]).arg(&source).arg(anna.join("clone")));

    let mut load = Load::start(&apart.world, &anna, 30_000);
    for round in 0..2 {
        load.goes_on("files are written");
        apart.engine.kill();
        std::thread::sleep(Duration::from_millis(300));
        apart.engine.start_again();
        load.goes_on("files are written once the bucket is back");
        apart.world.kill_server();
        if round == 1 {
            // What the bucket does not have yet is gone, and the index.
            fs::remove_dir_all(apart.world.data().join("objects")).expect("removed");
            apart.world.start_server_with(&["--blocks-anew"]);
        } else {
            apart.world.start_server();
        }
    }
    load.goes_on("files are written once the server is back");
    load.end();

    let theirs = apart.world.mount("bert").join("anna");
    load.compare(&theirs);
    git(&theirs.join("clone"), &["-c", "safe.directory=*", "fsck", "--strict"]);
    let log = apart.server_log();
    assert!(!log.contains("is damaged") && !log.contains(SECRET), "{log}");
    let bucket = apart.bucket();
    assert_eq!((&bucket["reached"], &bucket["garbage_collected"]), (&true.into(), &true.into()), "{bucket}");
    assert!(bucket["bucket"]["requests_since_start"]["put"].as_u64() > Some(3), "{bucket}");
    assert!(run(&mut apart.operator("gc")).contains(" blocks in use"));
    assert!(run(&mut apart.operator("scrub")).contains("0 bad"));
    apart.world.umount("anna");
    apart.world.umount("bert");
}

/// Proves: while the bucket stays away, work goes on with `durability=local`, a server starts, and what it did not have yet
/// is sent by itself when it is back.
#[test]
fn a_bucket_that_is_away_for_a_while() {
    let mut apart = Apart::new(&["anna", "bert"], "&cache=256M");
    let anna = apart.world.mount("anna").join("anna");
    fs::write(anna.join("before"), "before\n").expect("written");
    run(Command::new("sync").arg(anna.join("before")));
    apart.engine.kill();
    eventually("it is noticed", || apart.bucket()["reached"] == false);
    let write = "echo meanwhile > \"$1\" && sync \"$1\"";
    run(Command::new("sh").args(["-c", write, "sh"]).arg(anna.join("meanwhile")));
    apart.world.stop_server();
    apart.world.start_server();
    let bert = apart.world.mount("bert").join("anna");
    let same = |name: &str| {
        Command::new("cmp").arg(anna.join(name)).arg(bert.join(name)).status().expect("cmp").success()
    };
    eventually("what is here is read", || same("before") && same("meanwhile"));
    let log = apart.server_log();
    assert!(log.contains(&format!("s3://{BUCKET}/")) && log.contains("cannot be reached"), "{log}");
    apart.engine.start_again();
    eventually("it is reached again", || apart.bucket()["reached"] == true);
    // The restart has sealed what was written before.
    eventually("it is sent", || apart.bucket()["bucket"]["segments"].as_u64() > Some(0));
    apart.world.umount("anna");
    apart.world.umount("bert");
}

/// Proves: what the operator may have got wrong ends the start at once, in words that name the bucket and the way out, and
/// secrets are in none of them.
#[test]
fn mistakes_are_told() {
    let engine = Engine::start();
    let folder = tempfile::tempdir().expect("a folder");
    let start = |name: &str, address: &str, variables: &[(&str, &str)], extra: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.env_remove("AWS_ACCESS_KEY_ID").env("HOME", folder.path());
        // The machine that runs the tests may have a role.
        command.env("AWS_EC2_METADATA_DISABLED", "true").envs(variables.iter().copied());
        command.args(["server", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join(name));
        let output =
            command.args(["--blocks", address]).args(extra).stdin(Stdio::null()).output().expect("it runs");
        let said = text(&output);
        assert!(!said.contains(SECRET) && !said.contains("wrongsecret"), "{said}");
        (output.status.code(), said)
    };
    let address = engine.address("");
    let wrong = [("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", "wrongsecret")];
    let nobody = format!("s3://{BUCKET}/p?endpoint=http://127.0.0.1:{}", common::free_port());
    let missing = address.replace(BUCKET, "no-such-bucket-here");
    for (name, address, variables, parts) in [
        ("one", &address, &wrong[..], &["refuses", "SignatureDoesNotMatch", "AWS_ACCESS_KEY_ID"][..]),
        ("two", &address, &[], &["there are no credentials", ".aws/credentials"]),
        ("three", &missing, &CREDENTIALS, &["there is no bucket", "no-such-bucket-here"]),
        ("four", &nobody, &CREDENTIALS, &["cannot be reached", BUCKET]),
    ] {
        let (code, said) = start(name, address, variables, &[]);
        assert_eq!(code, Some(69), "{said}");
        for part in parts {
            assert!(said.contains(part), "{part:?} is not in {said}");
        }
    }
    for bad in ["s3://x", "s3://holdfast-test", "s3://k:s@holdfast-test/p", "s3://holdfast-test/p?cach=1G"] {
        let (code, said) = start("five", bad, &CREDENTIALS, &[]);
        assert_eq!(code, Some(64), "{said}");
    }
    // What is wrong with an address is said without repeating it.
    for bad in ["s3://holdfast-test/p?region=typed secret", "typed secret", "hf+blocks://typed secret/"] {
        let (code, said) = start("five", bad, &CREDENTIALS, &[]);
        assert!(code == Some(64) && said.contains("--blocks") && !said.contains("typed"), "{said}");
    }
    if let Engine::Own { server: Some(server), .. } = &engine {
        server.set_ahead(7200);
        let (code, said) = start("six", &address, &CREDENTIALS, &[]);
        assert!(code == Some(69) && said.contains("clocks differ"), "{said}");
    }
}

/// Proves: objects that were removed behind the server's back end its next start in words; with `--blocks-anew` what they had
/// is an error for who reads it, and other files are read.
#[test]
fn removed_objects_are_noticed() {
    let mut apart = Apart::new(&["anna", "bert"], "&cache=64M");
    let Engine::Own { objects, .. } = &apart.engine else { return };
    let objects = objects.clone();
    let anna = apart.world.mount("anna").join("anna");
    fs::write(anna.join("small"), "small\n").expect("written");
    let script = "head -c 60000000 /dev/urandom > \"$1\" && sync \"$1\"";
    run(Command::new("sh").args(["-c", script, "sh"]).arg(anna.join("large")));
    eventually("most is sent", || apart.bucket()["bucket"]["segments"].as_u64() >= Some(3));
    apart.world.umount("anna");
    apart.world.stop_server();
    let segments: Vec<String> =
        objects.names().into_iter().filter(|name| name.contains("/segment-")).collect();
    objects.alter(&segments[1], None);
    for entry in fs::read_dir(apart.world.data().join("objects")).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.to_string_lossy().ends_with("segment-0000000002.log") {
            fs::remove_file(path).expect("removed");
        }
    }
    let refused = Command::new(env!("CARGO_BIN_EXE_holdfast"))
        .envs(CREDENTIALS)
        .args(["server", "--listen", "127.0.0.1:0", "--data"])
        .arg(apart.world.data())
        .output()
        .expect("it runs");
    let said = text(&refused);
    let name = segments[1].rsplit('/').next().expect("a name");
    assert!(
        refused.status.code() == Some(69) && said.contains(name) && said.contains("--blocks-anew"),
        "{said}"
    );
    apart.world.start_server_with(&["--blocks-anew"]);
    let bert = apart.world.mount("bert").join("anna");
    assert_eq!(fs::read_to_string(bert.join("small")).expect("read"), "small\n");
    let said = Command::new("cat").arg(bert.join("large")).stdout(Stdio::null()).output().expect("cat runs");
    assert!(text(&said).contains("Input/output error"), "{}", text(&said));
    assert!(apart.server_log().contains(name), "the journal names the object");
    apart.world.umount("bert");
}

/// Proves: an object store is reached by TLS if its certificate is of an authority that this machine trusts or SSL_CERT_FILE
/// names; else nothing is sent there, and what is said names both ways out.
#[test]
fn an_object_store_by_tls() {
    let engine = Engine::start();
    let folder = tempfile::tempdir().expect("a folder");
    let plain = engine.endpoint();
    let front = TlsFront::start(&folder.path().join("front"), plain.trim_start_matches("http://"));
    let address =
        engine.address_at(&format!("https://127.0.0.1:{}", front.port), "&durability=object&cache=256M");

    let mut stranger = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    stranger.envs(CREDENTIALS).args(["server", "--listen", "127.0.0.1:0", "--blocks", &address, "--data"]);
    let output = stranger.arg(folder.path().join("data")).stdin(Stdio::null()).output().expect("it runs");
    let said = text(&output);
    assert!(!output.status.success() && said.contains("UnknownIssuer"), "{said}");
    assert!(said.contains("this machine trusts") && said.contains("SSL_CERT_FILE"), "{said}");

    let authority = front.authority.to_str().expect("text");
    let variables = [CREDENTIALS[0], CREDENTIALS[1], ("SSL_CERT_FILE", authority)];
    let mut world =
        World::with_server_in(&["anna"], &variables, |_| vec!["--blocks".to_owned(), address.clone()]);
    let anna = world.mount("anna").join("anna");
    let large = common::noise(7, 5 << 20);
    fs::write(anna.join("large"), &large).expect("written");
    run(Command::new("sync").arg(anna.join("large")));
    world.kill_server();
    fs::remove_dir_all(world.data().join("objects")).expect("removed");
    world.start_server_with(&["--blocks-anew"]);
    assert!(fs::read(anna.join("large")).expect("read") == large);
    world.umount("anna");
}
