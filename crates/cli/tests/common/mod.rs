//! A world for end-to-end tests: one server, one file system, people with mounts of their own, all through the
//! real `holdfast` command in one temporary folder. Dropping it unmounts and ends everything it started.

#![allow(missing_docs)]

pub mod block_server;
pub mod certificates;
pub mod cluster;
pub mod collection;
pub mod holder;
pub mod load;
pub mod memory;
pub mod object_store;
pub mod players;
pub mod process;
pub mod publisher;
pub mod relay;
pub mod tls_front;

pub use holdfast_testing::{
    PATIENCE, ended, eventually, eventually_some, free_port, noise, run, setting, text,
};

use holdfast_client::admin::{self, Admin, CreateConfig, Home};
use holdfast_client::{Engine, EngineConfig};
use holdfast_crypto::{KeyHolder, SigningKey, keyfile};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs a command that must end with `code`, and returns all it printed.
#[track_caller]
pub fn exits(command: &mut Command, code: i32) -> String {
    exits_saying(command, code, &[])
}

/// Runs a command that must end with `code` and print each of `words`, and returns all it printed.
#[track_caller]
pub fn exits_saying(command: &mut Command, code: i32, words: &[&str]) -> String {
    let output = ended(command.stdin(Stdio::null()));
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{printed}");
    for word in words {
        assert!(printed.contains(word), "{command:?} should print '{word}', but prints: {printed}");
    }
    assert!(!printed.contains("panicked"), "{command:?}\n{printed}");
    printed
}

/// Runs a command that must succeed, and returns what it printed, as JSON.
#[track_caller]
pub fn run_json(command: &mut Command) -> serde_json::Value {
    serde_json::from_str(&run(command)).expect("JSON")
}

/// Runs git in a directory in the name of Anna, and returns what it printed.
#[track_caller]
pub fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(["-c", "user.name=anna", "-c", "user.email=anna@example.org"]);
    run(command.args(arguments))
}

/// Makes a repository of a commit of 20 files in `source`, and a clone of it in `clone`.
pub fn clone_small_repository(source: &Path, clone: &Path) {
    std::fs::create_dir(source).expect("a folder");
    git(source, &["init", "-q"]);
    for file in 0..20 {
        let content = format!("line {file}\n").repeat(500);
        std::fs::write(source.join(format!("file {file}")), content).expect("written");
    }
    git(source, &["add", "."]);
    git(source, &["commit", "-qm", "one"]);
    run(Command::new("git").args(["clone", "-q"]).arg(source).arg(clone));
}

/// Asserts that two trees have the same names and contents, as `diff -r` compares them.
#[track_caller]
pub fn assert_same_trees(left: &Path, right: &Path) {
    let output = ended(Command::new("diff").args(["-r", "--no-dereference"]).args([left, right]));
    assert!(output.status.success(), "{}", text(&output));
}

/// The number of a system call's error; `None` if it succeeded.
pub fn errno(result: std::io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

pub struct World {
    pub folder: tempfile::TempDir,
    pub port: u16,
    pub url: String,
    /// Variables in the environment of every command.
    pub environment: Vec<(String, String)>,
    /// Variables in the server's environment.
    server_environment: Vec<(String, String)>,
    /// The term of leases in seconds, for each later start of the server. If a server's state is put back to when somebody held a
    /// lease, readers wait until that lease has run out: a short term keeps such tests short.
    pub lease: Option<&'static str>,
    server: Option<Child>,
    mounted: Vec<(String, PathBuf)>,
}

impl World {
    /// A server with an empty file system and these people, all in the group `team`.
    #[track_caller]
    pub fn new(people: &[&str]) -> World {
        World::with_server(people, |_| Vec::new())
    }

    /// A world whose server has these arguments at its first start. They may name things that `arguments` makes in the folder.
    #[track_caller]
    pub fn with_server(people: &[&str], arguments: impl FnOnce(&World) -> Vec<String>) -> World {
        World::with_server_in(people, &[], arguments)
    }

    /// As [`World::with_server`], with variables in the server's environment at each start.
    #[track_caller]
    pub fn with_server_in(
        people: &[&str],
        variables: &[(&str, &str)],
        arguments: impl FnOnce(&World) -> Vec<String>,
    ) -> World {
        let folder = tempfile::Builder::new().prefix("holdfast-test.").tempdir().expect("a temporary folder");
        let mut world = World {
            folder,
            port: free_port(),
            url: String::new(),
            environment: Vec::new(),
            server_environment: variables
                .iter()
                .map(|(key, value)| (key.to_string(), value.to_string()))
                .collect(),
            lease: None,
            server: None,
            mounted: Vec::new(),
        };
        let extra = arguments(&world);
        world.start_server_with(&extra.iter().map(String::as_str).collect::<Vec<_>>());
        world.create(people);
        world
    }

    /// Makes keys and a file system with these people, as `holdfast keygen` and `holdfast fs` do. Library calls take a
    /// fraction of the time of as many commands, and other tests run those commands.
    fn create(&mut self, people: &[&str]) {
        let superuser = Arc::new(self.new_key("superuser"));
        let fsid = superuser.public().file_system_id();
        let state_base = self.path("superuser-state");
        let state_dir = state_base.join(fsid.to_string()).join(superuser.public().to_string());
        make_private(&state_dir);
        let deadline = PATIENCE;
        let created = admin::create(CreateConfig {
            server: format!("127.0.0.1:{}", self.port).parse().expect("an address"),
            others: Vec::new(),
            superuser: superuser.clone(),
            name: "holdfast".to_owned(),
            superuser_name: "superuser".to_owned(),
            state_dir: state_dir.clone(),
            now_ns: now_ns(),
            deadline,
        });
        let address = created.unwrap_or_else(|error| panic!("{error}\n{}", self.server_log()));
        self.url = address.to_string();
        let config = EngineConfig {
            deadline,
            ..EngineConfig::new(address, superuser as Arc<dyn KeyHolder>, state_dir)
        };
        let engine = Engine::start(config).unwrap_or_else(|error| panic!("{error}\n{}", self.server_log()));
        let admin = Admin::new(&engine).expect("the superuser's key");
        for person in people {
            let key = self.new_key(person).public();
            admin.add_user(person, Some(("first", key)), Home::Make, now_ns()).expect("added");
        }
        admin.add_group("team", people, Home::Make, now_ns()).expect("added");
        engine.stop();
    }

    /// Makes `who`'s key file and its public half.
    fn new_key(&self, who: &str) -> SigningKey {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).expect("randomness");
        let key = SigningKey::from_seed(&seed);
        let private = keyfile::format_private(&key, who, None).expect("a key");
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o600).open(self.key(who)).expect("a key file");
        file.write_all(private.as_bytes()).expect("written");
        let public = format!("{}\n", keyfile::format_public(&key.public(), who));
        std::fs::write(self.path(&format!("{who}.key.pub")), public).expect("written");
        key
    }

    /// What the server has printed so far.
    pub fn server_log(&self) -> String {
        std::fs::read_to_string(self.path("server.log")).unwrap_or_default()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn key(&self, who: &str) -> PathBuf {
        self.path(&format!("{who}.key"))
    }

    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    pub fn fsid(&self) -> &str {
        self.url.rsplit('/').next().expect("an address has parts")
    }

    /// The command, with `who`'s own state and cache.
    pub fn holdfast(&self, who: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command
            .env("HOLDFAST_STATE_DIR", self.path(&format!("{who}-state")))
            .env("HOLDFAST_CACHE_DIR", self.path(&format!("{who}-cache")))
            .env_remove("SSH_AUTH_SOCK")
            .envs(self.environment.iter().cloned());
        command
    }

    #[track_caller]
    pub fn keygen(&self, who: &str) {
        run(self.holdfast(who).args(["keygen", "--out"]).arg(self.key(who)));
    }

    /// `holdfast server TASK` for the world's data directory, which has to come last of its required arguments.
    pub fn operator(&self, task: &str) -> Command {
        let mut command = self.holdfast("operator");
        command.args(["server", task, "--data"]).arg(self.data());
        command
    }

    /// Runs an administrative command with the superuser's key.
    #[track_caller]
    pub fn administer(&self, arguments: &[&str]) -> String {
        run(self.holdfast("superuser").args(arguments).arg("--superuser").arg(self.key("superuser")))
    }

    #[track_caller]
    pub fn start_server(&mut self) {
        self.start_server_with(&[]);
    }

    /// Starts the server on the world's data directory and port, with extra arguments.
    #[track_caller]
    pub fn start_server_with(&mut self, extra: &[&str]) {
        assert!(self.server.is_none(), "the server runs already");
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path("server.log"))
            .expect("a log file");
        let mut child = Command::new(env!("CARGO_BIN_EXE_holdfast"))
            .args(["server", "--listen", &format!("127.0.0.1:{}", self.port), "--data"])
            .arg(self.data())
            .args(extra)
            .args(self.lease.iter().flat_map(|seconds| ["--lease", seconds]))
            .envs(self.server_environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("the server starts");
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], self.port));
        eventually("the server listens", || {
            if let Ok(Some(status)) = child.try_wait() {
                panic!("the server ended at once: {status}\n{}", self.server_log());
            }
            std::net::TcpStream::connect(address).is_ok()
        });
        self.server = Some(child);
    }

    /// The server's process.
    pub fn server_process(&self) -> u32 {
        self.server.as_ref().expect("it runs").id()
    }

    /// Ends the server as an operator would (SIGTERM) and waits for it.
    pub fn stop_server(&mut self) {
        if let Some(mut child) = self.server.take() {
            run(Command::new("kill").arg(child.id().to_string()));
            eventually("the server ends", || child.try_wait().expect("it is a child").is_some());
        }
    }

    /// Ends the server as a power failure would (SIGKILL).
    pub fn kill_server(&mut self) {
        if let Some(mut child) = self.server.take() {
            child.kill().expect("a child can be killed");
            let _ = child.wait();
        }
    }

    #[track_caller]
    pub fn mount(&mut self, who: &str) -> PathBuf {
        self.mount_with(who, &[])
    }

    /// Tries to mount for `who` on `WHO-mnt`, which must exist. The mount is not unmounted by itself.
    pub fn try_mount(&self, who: &str, extra: &[&str]) -> Output {
        self.holdfast(who)
            .args(["mount", &self.url])
            .arg(self.path(&format!("{who}-mnt")))
            .arg("--key")
            .arg(self.key(who))
            .args(extra)
            .output()
            .expect("it runs")
    }

    /// Mounts for `who`; the mount point is `WHO-mnt`.
    #[track_caller]
    pub fn mount_with(&mut self, who: &str, extra: &[&str]) -> PathBuf {
        self.mount_at(who, &format!("{who}-mnt"), extra)
    }

    /// Mounts for `who` at `point` in the world's folder; one person may mount at several.
    #[track_caller]
    pub fn mount_at(&mut self, who: &str, point: &str, extra: &[&str]) -> PathBuf {
        let directory = self.path(point);
        std::fs::create_dir_all(&directory).expect("a mount point");
        let url = self.url.clone();
        run(self
            .holdfast(who)
            .args(["mount", &url])
            .arg(&directory)
            .arg("--key")
            .arg(self.key(who))
            .args(extra));
        self.mounted.push((who.to_owned(), directory.clone()));
        directory
    }

    /// Mounts for `who` as [`World::mount_with`] does, or returns what the command printed when it failed.
    pub fn mount_or_output(&mut self, who: &str, extra: &[&str]) -> Result<PathBuf, String> {
        let directory = self.path(&format!("{who}-mnt"));
        std::fs::create_dir_all(&directory).expect("a mount point");
        let tried = self.try_mount(who, extra);
        if !tried.status.success() {
            return Err(text(&tried));
        }
        self.mounted.push((who.to_owned(), directory.clone()));
        Ok(directory)
    }

    #[track_caller]
    pub fn umount(&mut self, who: &str) {
        let at = self.mounted.iter().position(|(name, _)| name == who).expect("it is mounted");
        let (_, directory) = self.mounted.remove(at);
        let process = self.mount_process(who);
        eventually("it is unmounted", || {
            let output = ended(self.holdfast(who).arg("umount").arg(&directory));
            // A program that another test is starting has, for a moment, copies of the descriptors of this process.
            let is_busy = text(&output).contains("is busy");
            assert!(output.status.success() || is_busy, "umount: {}", text(&output));
            output.status.success()
        });
        // State and cache are free once the process has ended. The command waits for that, but not for ever.
        let is_last = !self.mounted.iter().any(|(name, _)| name == who);
        if let Some(process) = process.filter(|_| is_last) {
            eventually("the mount's process ends", || !Path::new(&format!("/proc/{process}")).exists());
        }
    }

    /// What `holdfast status` prints for `who`'s mount.
    pub fn status(&self, who: &str) -> String {
        let output = self
            .holdfast(who)
            .arg("status")
            .arg(self.path(&format!("{who}-mnt")))
            .output()
            .expect("status runs");
        text(&output)
    }

    /// The process that serves `who`'s mounts, as `holdfast status --json` reports it: also when that ends with an error,
    /// because something is wrong.
    pub fn process_status(&self, who: &str) -> serde_json::Value {
        let output = self.holdfast(who).args(["status", "--json"]).output().expect("it runs");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
        report["processes"][0].clone()
    }

    /// Mounting for `who` must end with `code`; returns what the command printed.
    #[track_caller]
    pub fn mount_refused(&self, who: &str, code: i32) -> String {
        std::fs::create_dir_all(self.path(&format!("{who}-mnt"))).expect("a mount point");
        let output = self.try_mount(who, &[]);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        text(&output)
    }

    /// Kills the process that serves a mount, and removes the dead mount.
    pub fn crash_mount(&self, who: &str) {
        let process = self.mount_process(who).expect("it is mounted").to_string();
        run(Command::new("kill").args(["-9", &process]));
        let point = self.path(&format!("{who}-mnt"));
        eventually("the process is gone", || self.mount_process(who).is_none());
        let _ = Command::new("fusermount3").arg("-uz").arg(&point).output();
        eventually("the mount is gone", || !is_mounted(&point));
    }

    /// What `who`'s mounts have written to their log.
    pub fn mount_log(&self, who: &str) -> String {
        let state = self.path(&format!("{who}-state")).join(self.fsid());
        let keys = std::fs::read_dir(state).expect("a mount has a state directory").flatten();
        keys.filter_map(|key| std::fs::read_to_string(key.path().join("log")).ok()).collect()
    }

    /// The process that serves `who`'s mount, found by its command line.
    pub fn mount_process(&self, who: &str) -> Option<u32> {
        let output = Command::new("pgrep")
            .args(["-f", &format!("holdfast mount .*{}", self.path(&format!("{who}-mnt")).display())])
            .output()
            .ok()?;
        BufReader::new(&output.stdout[..]).lines().next()?.ok()?.trim().parse().ok()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for (who, directory) in std::mem::take(&mut self.mounted) {
            let clean = self.holdfast(&who).arg("umount").arg(&directory).output();
            if !clean.is_ok_and(|output| output.status.success()) {
                let _ = Command::new("fusermount3").arg("-uz").arg(&directory).output();
            }
        }
        self.kill_server();
    }
}

fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_nanos() as i64
}

fn make_private(folder: &Path) {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).expect("made");
}

/// Whether a path is a mount point now.
pub fn is_mounted(path: &Path) -> bool {
    std::fs::read_to_string("/proc/self/mounts")
        .is_ok_and(|mounts| mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str()))
}
