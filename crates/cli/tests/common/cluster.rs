//! Several servers with their order in etcd: three real members of etcd, two real servers and a block server.

use super::block_server::BlockServer;
use super::load::Load;
use super::process::Process;
use super::{World, eventually, free_port, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Three members of etcd, each a process.
pub struct Etcd {
    folder: PathBuf,
    ports: Vec<(u16, u16)>,
    members: Vec<Option<Child>>,
    quota_bytes: u64,
}

impl Etcd {
    pub fn new(folder: &Path, quota_bytes: u64) -> Etcd {
        let ports = (0..3).map(|_| (free_port(), free_port())).collect();
        let folder = folder.join("etcd");
        fs::create_dir(&folder).expect("a folder");
        let mut etcd = Etcd { folder, ports, members: vec![None, None, None], quota_bytes };
        (0..3).for_each(|member| etcd.start(member));
        eventually("etcd has a leader", || etcd.control(&["endpoint", "health"]).is_some());
        etcd
    }

    pub fn start(&mut self, member: usize) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let all = self.ports.iter().enumerate().map(|(at, (_, peer))| format!("n{at}={}", url(*peer)));
        let all = all.collect::<Vec<_>>().join(",");
        let (client, peer) = self.ports[member];
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.folder.join("log")).expect("a log");
        let data = self.folder.join(format!("n{member}"));
        run(Command::new("mkdir").args(["-p", "-m", "700"]).arg(&data));
        let child = Command::new("etcd")
            .args(["--name", &format!("n{member}"), "--initial-cluster", &all, "--data-dir"])
            .arg(data)
            .args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)])
            .args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)])
            .args(["--quota-backend-bytes", &self.quota_bytes.to_string(), "--unsafe-no-fsync"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("etcd starts: it is in Debian's package etcd-server");
        self.members[member] = Some(child);
    }

    pub fn kill(&mut self, member: usize) {
        let mut child = self.members[member].take().expect("it runs");
        child.kill().expect("a child can be killed");
        child.wait().expect("it ends");
    }

    pub fn members(&self) -> String {
        let members: Vec<_> = self.ports.iter().map(|(client, _)| format!("127.0.0.1:{client}")).collect();
        members.join(",")
    }

    /// The output of `etcdctl`, if it succeeds.
    pub fn control(&self, arguments: &[&str]) -> Option<String> {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.members(), "--dial-timeout", "2s"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("etcdctl runs: it is in Debian's package etcd-client");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub fn leader(&self) -> usize {
        let mut leader = None;
        eventually("etcd has a leader", || {
            let Some(status) = self.control(&["endpoint", "status", "-w", "fields"]) else { return false };
            let status: Vec<(&str, &str)> =
                status.lines().filter_map(|line| line.trim_matches('"').split_once("\" : ")).collect();
            let all = |name: &str| -> Vec<String> {
                let found = status.iter().filter(|(field, _)| *field == name);
                found.map(|(_, value)| (*value).to_owned()).collect()
            };
            let leaders = all("MemberID").into_iter().zip(all("Leader"));
            leader = leaders.enumerate().find(|(_, (own, leader))| own == leader).map(|(at, _)| at);
            leader.is_some()
        });
        leader.expect("it was just found")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for mut child in self.members.iter_mut().filter_map(Option::take) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A second server beside the world's own: one that stands in for it, or a copy of it. Dropping it ends it.
pub struct Second {
    pub data: PathBuf,
    pub log: PathBuf,
    pub port: u16,
    pub process: Process,
}

impl Second {
    /// Starts a server on this data directory and a port of its own, with its log in the world's folder.
    #[track_caller]
    pub fn started(world: &World, data: &Path, extra: &[&str]) -> Second {
        let port = free_port();
        let log = world.path(&format!("server-{port}.log"));
        let mut second = Second { data: data.to_owned(), log, port, process: Process::default() };
        second.start(extra);
        second
    }

    /// The address of the world's file system at this server.
    pub fn url(&self, world: &World) -> String {
        format!("hf://127.0.0.1:{}/{}", self.port, world.fsid())
    }

    pub fn start(&mut self, extra: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.args(["server", "--listen", &format!("127.0.0.1:{}", self.port), "--data"]);
        self.process.start(command.arg(&self.data).args(extra), &self.log, self.port);
    }
}

/// A world with two servers, whose order is in etcd and whose blocks are at a block server.
pub struct Pair {
    pub world: World,
    pub second: Second,
    pub etcd: Etcd,
    // Declared last, so that it ends after the servers.
    pub blocks: BlockServer,
}

impl Pair {
    pub fn new(people: &[&str], quota_bytes: u64) -> Pair {
        Pair::with_blocks(people, quota_bytes, &[])
    }

    /// [`Pair::new`] with arguments for the block server's first start.
    pub fn with_blocks(people: &[&str], quota_bytes: u64, extra: &[&str]) -> Pair {
        Pair::with_blocks_by(people, quota_bytes, |world, _| {
            let blocks = BlockServer::with(world.folder.path(), &world.data(), extra);
            let address = blocks.address();
            (blocks, address)
        })
    }

    /// [`Pair::new`] with the block server that `make` starts, and the address of it that the servers are given.
    pub fn with_blocks_by(
        people: &[&str],
        quota_bytes: u64,
        make: impl FnOnce(&World, &Etcd) -> (BlockServer, String),
    ) -> Pair {
        let mut made = None;
        let mut world = World::with_server(people, |world| {
            let etcd = Etcd::new(world.folder.path(), quota_bytes);
            let (blocks, address) = make(world, &etcd);
            let state = format!("etcd://{}/test", etcd.members());
            let arguments = vec!["--blocks".to_owned(), address, "--state".to_owned(), state];
            made = Some((etcd, blocks, arguments.clone()));
            arguments
        });
        let (etcd, blocks, arguments) = made.expect("they were made");
        let (data, log) = (world.path("data2"), world.path("server2.log"));
        run(Command::new("mkdir").args(["-m", "700"]).arg(&data));
        run(Command::new("cp").arg("-p").arg(world.data().join("server-key")).arg(&data));
        let mut second = Second { data, log, port: free_port(), process: Process::default() };
        second.start(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        world.url = format!("hf://127.0.0.1:{},127.0.0.1:{}/{}", world.port, second.port, world.fsid());
        Pair { world, second, etcd, blocks }
    }

    pub fn logs(&self) -> String {
        let read = |path: &Path| fs::read_to_string(path).expect("a log");
        format!("{}\n--- second\n{}", read(&self.world.path("server.log")), read(&self.second.log))
    }

    pub fn figures(&self, data: &Path) -> serde_json::Value {
        let mut printed = String::new();
        // A server that has just started answers clients a moment before it answers its operator.
        eventually("the server tells its figures", || {
            let mut command = self.world.holdfast("operator");
            let output =
                command.args(["server", "stats", "--json", "--data"]).arg(data).output().expect("it runs");
            printed = String::from_utf8_lossy(&output.stdout).into_owned();
            output.status.success()
        });
        serde_json::from_str(&printed).expect("JSON")
    }

    /// The address of the active server.
    pub fn active(&self, data: &Path) -> String {
        self.figures(data)["order"]["active"][self.world.fsid()].as_str().unwrap_or("").to_owned()
    }

    pub fn own_address(&self) -> String {
        format!("127.0.0.1:{}", self.world.port)
    }

    pub fn second_address(&self) -> String {
        format!("127.0.0.1:{}", self.second.port)
    }

    /// Asserts, by another user's mount, that all that was acknowledged is there, that no mount has raised an alarm,
    /// and that the servers' logs have no damage.
    pub fn check(&mut self, load: &Load, writer: &str, reader: &str) {
        let theirs = self.world.mount(reader).join(writer);
        load.compare(&theirs);
        for who in [writer, reader] {
            let status = self.world.status(who);
            assert!(!status.contains("frozen") && !status.to_lowercase().contains("alarm"), "{status}");
        }
        let log = self.logs();
        assert!(!log.contains("damaged") && !log.contains("panicked"), "{log}");
        self.world.umount(reader);
    }
}
