//! The blocks of a server in a bucket: real processes, which are killed; a bucket that is away, loses objects, or has two
//! servers.
//!
//! The bucket is a simulated one behind the S3 protocol, served by the test. `scripts/test-object-stores` runs the same on
//! Ceph's gateway, which `HOLDFAST_S3_ENDPOINT` names.

use crate::common;

use common::{World, eventually, run, text};
use holdfast_objects::simulated::Simulated;
use holdfast_objects::simulated::http::{KEY_ID, SECRET, Server};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The bucket of every engine.
pub const BUCKET: &str = "holdfast-test";

/// An object store with one bucket.
pub enum Engine {
    /// Served by this process; `None` while it is away.
    Own { objects: Simulated, address: SocketAddr, server: Option<Server> },
    /// Another program, with commands that end and start it.
    Other { endpoint: String },
}

impl Engine {
    pub fn start() -> Engine {
        if let Ok(endpoint) = std::env::var("HOLDFAST_S3_ENDPOINT") {
            return Engine::Other { endpoint };
        }
        let objects = Simulated::new();
        let server =
            Server::start(&objects, BUCKET, "127.0.0.1:0".parse().expect("an address")).expect("it serves");
        Engine::Own { objects, address: server.address(), server: Some(server) }
    }

    /// The address of a prefix of this test's own.
    pub fn address(&self, options: &str) -> String {
        let endpoint = match self {
            Engine::Own { address, .. } => format!("http://{address}"),
            Engine::Other { endpoint } => endpoint.clone(),
        };
        let mark = std::process::id();
        let name = std::thread::current().name().unwrap_or("test").replace("::", "-").replace('_', "-");
        format!("s3://{BUCKET}/{mark}/{name}?endpoint={endpoint}{options}")
    }

    /// As a crash of it would.
    pub fn kill(&mut self) {
        match self {
            Engine::Own { server, .. } => drop(server.take()),
            Engine::Other { .. } => hook("HOLDFAST_S3_KILL"),
        }
    }

    pub fn start_again(&mut self) {
        match self {
            Engine::Own { objects, address, server } => {
                *server = Some(Server::start(objects, BUCKET, *address).expect("it serves"));
            }
            Engine::Other { .. } => hook("HOLDFAST_S3_START"),
        }
    }
}

fn hook(name: &str) {
    let command = std::env::var(name).unwrap_or_else(|_| panic!("{name} is a command"));
    run(Command::new("sh").args(["-c", &command]).stdin(Stdio::null()));
}

/// What every engine lets in.
pub const CREDENTIALS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", SECRET)];

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

/// Copies files of noise into a folder, each synced and only then listed, until a file `stop` appears.
const LOAD: &str = "i=0; while [ ! -e \"$4\" ]; do i=$((i+1)); head -c 30000 /dev/urandom > \"$1/$i\"; \
                    cp \"$1/$i\" \"$2/$i\" && sync \"$2/$i\" && echo $i >> \"$3\"; done";

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

    let path = |name: &str| apart.world.path(name);
    let (drafts, acked, stop) = (path("drafts"), path("acked"), path("stop"));
    fs::create_dir(&drafts).expect("a folder");
    let mut load = Command::new("sh");
    load.args(["-c", LOAD, "load"]).arg(&drafts).arg(&anna).arg(&acked).arg(&stop);
    let mut load = load.stderr(Stdio::null()).spawn().expect("a shell");
    let count = || fs::read_to_string(&acked).unwrap_or_default().lines().count();
    for round in 0..2 {
        let before = count();
        eventually("files are written", || count() > before + 3);
        apart.engine.kill();
        std::thread::sleep(Duration::from_millis(300));
        apart.engine.start_again();
        let before = count();
        eventually("files are written once the bucket is back", || count() > before + 3);
        apart.world.kill_server();
        if round == 1 {
            // What the bucket does not have yet is gone, and the index.
            fs::remove_dir_all(apart.world.data().join("objects")).expect("removed");
            apart.world.start_server_with(&["--blocks-anew"]);
        } else {
            apart.world.start_server();
        }
    }
    let before = count();
    eventually("files are written once the server is back", || count() > before + 3);
    fs::write(&stop, "").expect("written");
    load.wait().expect("it ends");

    let theirs = apart.world.mount("bert").join("anna");
    for name in fs::read_to_string(&acked).expect("a list").lines() {
        run(Command::new("cmp").arg(drafts.join(name)).arg(theirs.join(name)));
    }
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
        command.env_remove("AWS_ACCESS_KEY_ID").env("HOME", folder.path()).envs(variables.iter().copied());
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
