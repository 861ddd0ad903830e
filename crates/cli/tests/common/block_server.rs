//! A block server in the world's folder, with its blocks on the disk or in a bucket.

use super::object_store::CREDENTIALS;
use super::{eventually, free_port, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub struct BlockServer {
    pub data: PathBuf,
    pub log: PathBuf,
    pub port: u16,
    allow: String,
    child: Option<Child>,
}

fn holdfast() -> Command {
    Command::new(env!("CARGO_BIN_EXE_holdfast"))
}

impl BlockServer {
    /// For the server with a data directory.
    pub fn new(folder: &Path, server: &Path) -> BlockServer {
        BlockServer::with(folder, server, &[])
    }

    /// The same with arguments for its first start.
    pub fn with(folder: &Path, server: &Path, extra: &[&str]) -> BlockServer {
        let allow = run(holdfast().args(["server", "key", "--data"]).arg(server)).trim().to_owned();
        let (data, log) = (folder.join("blocks"), folder.join("blocks.log"));
        let mut blocks = BlockServer { data, log, port: free_port(), allow, child: None };
        blocks.start_with(extra);
        blocks
    }

    /// One for another machine, with the same key and nothing else; it does not run yet.
    pub fn spare(&self, name: &str) -> BlockServer {
        let data = self.data.with_file_name(name);
        run(Command::new("mkdir").args(["-m", "700"]).arg(&data));
        run(Command::new("cp").arg("-p").arg(self.data.join("server-key")).arg(&data));
        let log = data.with_extension("log");
        BlockServer { data, log, port: free_port(), allow: self.allow.clone(), child: None }
    }

    pub fn address(&self) -> String {
        let key = run(holdfast().args(["blocks", "key", "--data"]).arg(&self.data));
        format!("hf+blocks://127.0.0.1:{}/{}", self.port, key.trim())
    }

    pub fn start(&mut self) {
        self.start_with(&[]);
    }

    pub fn start_with(&mut self, extra: &[&str]) {
        let log = fs::OpenOptions::new().create(true).append(true).open(&self.log).expect("a log file");
        let child = holdfast()
            .envs(CREDENTIALS)
            .args([
                "blocks",
                "--listen",
                &format!("127.0.0.1:{}", self.port),
                "--allow",
                &self.allow,
                "--data",
            ])
            .arg(&self.data)
            .args(extra)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("the block server starts");
        self.child = Some(child);
        let port = self.port;
        eventually("the block server listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    /// As a power failure would.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("a child can be killed");
        child.wait().expect("it ends");
    }

    /// As its operator would.
    pub fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        run(Command::new("kill").arg(child.id().to_string()));
        assert!(child.wait().expect("it ends").success());
    }

    /// Waits until it ends by itself, with a failure.
    pub fn ends(&mut self) {
        let mut child = self.child.take().expect("it runs");
        eventually("the block server ends", || child.try_wait().expect("it is a child").is_some());
        assert!(!child.wait().expect("it has ended").success());
    }
}

impl Drop for BlockServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
