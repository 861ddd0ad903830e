//! The blocks of a server in a bucket: real processes, which are killed; a bucket that is away, loses objects, or gets
//! a second server.
//!
//! The bucket is a simulated one behind the S3 protocol, served by the test. `scripts/test-object-stores` runs the same on
//! Ceph's gateway.

use crate::common;

use common::load::Load;
use common::object_store::{BUCKET, CREDENTIALS, Engine};
use common::tls_front::TlsFront;
use common::{World, clone_small_repository, eventually, exits, exits_saying, git, run, run_json, text};
use holdfast_tiered::simulated::http::{KEY_ID, SECRET};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A world whose server has its blocks in a bucket.
struct Fixture {
    world: World,
    engine: Engine,
}

impl Fixture {
    fn new(people: &[&str], options: &str) -> Fixture {
        let engine = Engine::start();
        let address = engine.address(options);
        let world = World::with_server_in(people, &CREDENTIALS, |_| vec!["--blocks".to_owned(), address]);
        Fixture { world, engine }
    }

    fn operator(&self, task: &str) -> Command {
        let mut command = self.world.operator(task);
        command.envs(CREDENTIALS);
        command
    }

    fn bucket(&self) -> serde_json::Value {
        run_json(self.operator("stats").arg("--json"))["block_store"].clone()
    }
}

/// Proves: programs, git among them, work while the server and the object store are killed in turn. Then the server
/// loses its copies and index of blocks, and nothing whose writing was acknowledged is lost or different.
#[test]
fn nothing_acknowledged_is_lost() {
    let mut fixture = Fixture::new(&["anna", "bert"], "&durability=object&cache=256M");
    let anna = fixture.world.mount("anna").join("anna");
    clone_small_repository(&fixture.world.path("source"), &anna.join("clone"));

    let mut load = Load::start(&fixture.world, &anna, 30_000);
    for round in 0..2 {
        load.goes_on("files are written");
        fixture.engine.kill();
        std::thread::sleep(Duration::from_millis(300));
        fixture.engine.start_again();
        load.goes_on("files are written once the bucket is back");
        fixture.world.kill_server();
        if round == 1 {
            // What the bucket does not have yet is lost, and the index with it.
            fs::remove_dir_all(fixture.world.data().join("objects")).expect("removed");
            fixture.world.start_server_with(&["--blocks-anew"]);
        } else {
            fixture.world.start_server();
        }
    }
    load.goes_on("files are written once the server is back");
    load.end();

    let theirs = fixture.world.mount("bert").join("anna");
    load.compare(&theirs);
    git(&theirs.join("clone"), &["-c", "safe.directory=*", "fsck", "--strict"]);
    let log = fixture.world.server_log();
    assert!(!log.contains("is damaged") && !log.contains(SECRET), "{log}");
    let bucket = fixture.bucket();
    assert_eq!((&bucket["reached"], &bucket["garbage_collected"]), (&true.into(), &true.into()), "{bucket}");
    assert!(bucket["bucket"]["requests_since_start"]["put"].as_u64() > Some(3), "{bucket}");
    assert!(run(&mut fixture.operator("gc")).contains(" blocks in use"));
    assert!(run(&mut fixture.operator("scrub")).contains("0 bad"));
    fixture.world.umount("anna");
    fixture.world.umount("bert");
}

/// Proves: while the bucket is away, work goes on with `durability=local`, and a server can start. What the bucket did
/// not have yet is sent by itself when it is back.
#[test]
fn a_bucket_that_is_away_for_a_while() {
    let mut fixture = Fixture::new(&["anna", "bert"], "&cache=256M");
    let anna = fixture.world.mount("anna").join("anna");
    fs::write(anna.join("before"), "before\n").expect("written");
    run(Command::new("sync").arg(anna.join("before")));
    fixture.engine.kill();
    eventually("it is noticed", || fixture.bucket()["reached"] == false);
    let write = "echo meanwhile > \"$1\" && sync \"$1\"";
    run(Command::new("sh").args(["-c", write, "sh"]).arg(anna.join("meanwhile")));
    fixture.world.stop_server();
    fixture.world.start_server();
    let bert = fixture.world.mount("bert").join("anna");
    let same = |name: &str| {
        Command::new("cmp").arg(anna.join(name)).arg(bert.join(name)).status().expect("cmp").success()
    };
    eventually("what is here is read", || same("before") && same("meanwhile"));
    let log = fixture.world.server_log();
    assert!(log.contains(&format!("s3://{BUCKET}/")) && log.contains("cannot be reached"), "{log}");
    fixture.engine.start_again();
    eventually("it is reached again", || fixture.bucket()["reached"] == true);
    // The restart has sealed the segment of what was written before.
    eventually("it is sent", || fixture.bucket()["bucket"]["segments"].as_u64() > Some(0));
    fixture.world.umount("anna");
    fixture.world.umount("bert");
}

/// Proves: an operator's mistakes end the start at once, in words that name the bucket and the way out; no secret is
/// printed.
#[test]
fn mistakes_are_told() {
    let engine = Engine::start();
    let folder = tempfile::tempdir().expect("a folder");
    let start = |name: &str, address: &str, variables: &[(&str, &str)], code: i32| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.env_remove("AWS_ACCESS_KEY_ID").env("HOME", folder.path());
        // The machine that runs the tests may have a role.
        command.env("AWS_EC2_METADATA_DISABLED", "true").envs(variables.iter().copied());
        command.args(["server", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join(name));
        let printed = exits(command.args(["--blocks", address]), code);
        assert!(!printed.contains(SECRET) && !printed.contains("wrongsecret"), "{printed}");
        printed
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
        let printed = start(name, address, variables, 69);
        for part in parts {
            assert!(printed.contains(part), "{part:?} is not in {printed}");
        }
    }
    for bad in ["s3://x", "s3://holdfast-test", "s3://k:s@holdfast-test/p", "s3://holdfast-test/p?cach=1G"] {
        start("five", bad, &CREDENTIALS, 64);
    }
    // An error about an address does not repeat the address.
    for bad in ["s3://holdfast-test/p?region=typed secret", "typed secret", "hf+blocks://typed secret/"] {
        let printed = start("five", bad, &CREDENTIALS, 64);
        assert!(printed.contains("--blocks") && !printed.contains("typed"), "{printed}");
    }
    if let Engine::Own { server: Some(server), .. } = &engine {
        server.set_ahead(7200);
        let printed = start("six", &address, &CREDENTIALS, 69);
        assert!(printed.contains("clocks differ"), "{printed}");
    }
}

/// Proves: after objects were removed from the bucket, the server's next start ends in words. With `--blocks-anew` it
/// starts; reading what was in them is an error, and other files can be read.
#[test]
fn removed_objects_are_noticed() {
    let mut fixture = Fixture::new(&["anna", "bert"], "&cache=64M");
    let Engine::Own { objects, .. } = &fixture.engine else { return };
    let objects = objects.clone();
    let anna = fixture.world.mount("anna").join("anna");
    fs::write(anna.join("small"), "small\n").expect("written");
    let script = "head -c 60000000 /dev/urandom > \"$1\" && sync \"$1\"";
    run(Command::new("sh").args(["-c", script, "sh"]).arg(anna.join("large")));
    eventually("most is sent", || fixture.bucket()["bucket"]["segments"].as_u64() >= Some(3));
    fixture.world.umount("anna");
    fixture.world.stop_server();
    let segments: Vec<String> =
        objects.names().into_iter().filter(|name| name.contains("/segment-")).collect();
    objects.alter(&segments[1], None);
    for entry in fs::read_dir(fixture.world.data().join("objects")).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.to_string_lossy().ends_with("segment-0000000002.log") {
            fs::remove_file(path).expect("removed");
        }
    }
    let name = segments[1].rsplit('/').next().expect("a name");
    let mut server = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    server.envs(CREDENTIALS).args(["server", "--listen", "127.0.0.1:0", "--data"]).arg(fixture.world.data());
    exits_saying(&mut server, 69, &[name, "--blocks-anew"]);
    fixture.world.start_server_with(&["--blocks-anew"]);
    let bert = fixture.world.mount("bert").join("anna");
    assert_eq!(fs::read_to_string(bert.join("small")).expect("read"), "small\n");
    let printed =
        Command::new("cat").arg(bert.join("large")).stdout(Stdio::null()).output().expect("cat runs");
    assert!(text(&printed).contains("Input/output error"), "{}", text(&printed));
    assert!(fixture.world.server_log().contains(name), "the journal names the object");
    fixture.world.umount("bert");
}

/// Proves: an object store is reached by TLS if this machine or SSL_CERT_FILE trusts the authority of its certificate.
/// Otherwise nothing is sent there, and the error names both ways out.
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
    let printed = text(&output);
    assert!(!output.status.success() && printed.contains("UnknownIssuer"), "{printed}");
    assert!(printed.contains("this machine trusts") && printed.contains("SSL_CERT_FILE"), "{printed}");

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
