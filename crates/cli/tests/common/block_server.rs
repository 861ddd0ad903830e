//! A block server in the world's folder, with its blocks on disk or in a bucket.

use super::object_store::CREDENTIALS;
use super::process::Process;
use super::{eventually, free_port, run};
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct BlockServer {
    pub data: PathBuf,
    pub log: PathBuf,
    pub port: u16,
    allow: String,
    pub process: Process,
}

fn holdfast() -> Command {
    Command::new(env!("CARGO_BIN_EXE_holdfast"))
}

impl BlockServer {
    /// Starts a block server for the server with this data directory.
    pub fn new(folder: &Path, server: &Path) -> BlockServer {
        BlockServer::with(folder, server, &[])
    }

    /// [`BlockServer::new`] with arguments for the first start.
    pub fn with(folder: &Path, server: &Path, extra: &[&str]) -> BlockServer {
        let allow = run(holdfast().args(["server", "key", "--data"]).arg(server)).trim().to_owned();
        let (data, log) = (folder.join("blocks"), folder.join("blocks.log"));
        let mut blocks = BlockServer { data, log, port: free_port(), allow, process: Process::default() };
        blocks.start_with(extra);
        blocks
    }

    /// A block server for another machine, with the same key and nothing else; it is not started.
    pub fn spare(&self, name: &str) -> BlockServer {
        let data = self.data.with_file_name(name);
        run(Command::new("mkdir").args(["-m", "700"]).arg(&data));
        run(Command::new("cp").arg("-p").arg(self.data.join("server-key")).arg(&data));
        let log = data.with_extension("log");
        BlockServer { data, log, port: free_port(), allow: self.allow.clone(), process: Process::default() }
    }

    /// Makes the block server allow this server's key instead of the one before, from its next start on.
    pub fn allow(&mut self, server: &str) {
        server.clone_into(&mut self.allow);
    }

    pub fn address(&self) -> String {
        let key = run(holdfast().args(["blocks", "key", "--data"]).arg(&self.data));
        format!("hf+blocks://127.0.0.1:{}/{}", self.port, key.trim())
    }

    /// The address of this block server and another with the same key.
    pub fn address_with(&self, other: &BlockServer) -> String {
        let address = self.address();
        let (host, key) = address.rsplit_once('/').expect("an address");
        format!("{host},127.0.0.1:{}/{key}", other.port)
    }

    pub fn start(&mut self) {
        self.start_with(&[]);
    }

    pub fn start_with(&mut self, extra: &[&str]) {
        self.process.start(&mut self.command(extra), &self.log, self.port);
    }

    /// Starts the block server while another one serves, and waits until it says that it stands by.
    pub fn stand_by(&mut self, extra: &[&str]) {
        let printed =
            || std::fs::read_to_string(&self.log).unwrap_or_default().matches("this one stands by").count();
        let before = printed();
        self.process.begin(&mut self.command(extra), &self.log);
        eventually("it stands by", || printed() > before);
    }

    pub fn command(&self, extra: &[&str]) -> Command {
        let listen = format!("127.0.0.1:{}", self.port);
        let mut command = holdfast();
        command.envs(CREDENTIALS).args(["blocks", "--listen", &listen, "--allow", &self.allow, "--data"]);
        command.arg(&self.data).args(extra);
        command
    }
}
