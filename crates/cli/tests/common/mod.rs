//! A world for end-to-end tests: one server, one file system, people with mounts of their own, all through the
//! real `holdfast` command in one temporary folder. Dropping it unmounts and ends everything it started.

#![allow(dead_code, missing_docs)]

pub mod block_server;
pub mod certificates;
pub mod cluster;
pub mod collection;
pub mod desk;
pub mod holder;
pub mod load;
pub mod memory;
pub mod object_store;
pub mod players;
pub mod process;
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

pub struct World {
    pub folder: tempfile::TempDir,
    pub port: u16,
    pub url: String,
    /// Set for every command.
    pub environment: Vec<(String, String)>,
    /// Set for the server.
    server_environment: Vec<(String, String)>,
    /// Seconds of a lease, for a server that is started from now on. Where state is put back, or altered, that says that somebody
    /// holds one, whoever reads waits until it has run out.
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

    /// The same with arguments for the server when it starts first, which may need something that is made in the folder.
    #[track_caller]
    pub fn with_server(people: &[&str], arguments: impl FnOnce(&World) -> Vec<String>) -> World {
        World::with_server_in(people, &[], arguments)
    }

    /// The same with variables in the server's environment, whenever it starts.
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

    /// Makes keys and a file system with these people, as `holdfast keygen` and `holdfast fs` do, by library calls: that
    /// is a fraction of what as many commands take. (Tests of those commands run them.)
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

    /// Tries to mount for `who`, whatever comes of it.
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

    /// The same where that may fail; then what was said.
    pub fn mount_or_told(&mut self, who: &str, extra: &[&str]) -> Result<PathBuf, String> {
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
            // A program that another test is just starting has a copy of what this one has open, for a moment.
            let is_busy = text(&output).contains("is busy");
            assert!(output.status.success() || is_busy, "umount: {}", text(&output));
            output.status.success()
        });
        // Its state and cache are free once the process is gone, for which the command waits, though not for ever.
        let is_last = !self.mounted.iter().any(|(name, _)| name == who);
        if let Some(process) = process.filter(|_| is_last) {
            eventually("the mount's process ends", || !Path::new(&format!("/proc/{process}")).exists());
        }
    }

    /// What `holdfast status` says for `who`'s mount.
    pub fn status(&self, who: &str) -> String {
        let output = self
            .holdfast(who)
            .arg("status")
            .arg(self.path(&format!("{who}-mnt")))
            .output()
            .expect("status runs");
        text(&output)
    }

    /// What `who`'s mounts have written to their log.
    pub fn mount_log(&self, who: &str) -> String {
        let state = self.path(&format!("{who}-state")).join(self.fsid());
        let keys = std::fs::read_dir(state).expect("a mount has a state directory").flatten();
        keys.filter_map(|key| std::fs::read_to_string(key.path().join("log")).ok()).collect()
    }

    /// The process that serves `who`'s mount, from the state directory's lock holder.
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
