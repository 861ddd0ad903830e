//! A real server on the network of this machine, with a file system of two users.

use super::NOW;
use holdfast_client::admin::{Admin, CreateConfig, Home, create};
use holdfast_client::{Engine, EngineConfig, StartError};
use holdfast_crypto::SigningKey;
use holdfast_rpc::{Address, ServerAddress};
use holdfast_server::{Server, ServerConfig};
use holdfast_testing::PATIENCE;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The key of a device of a [`Site`]: the superuser's has seed 1, alice's 2, bob's 3.
pub fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

/// A server in a thread of this process. Dropping it stops it.
struct Running {
    address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(data: &Path, listen: SocketAddr, configure: fn(&mut ServerConfig)) -> Running {
        let mut config = ServerConfig::new(data, listen);
        configure(&mut config);
        let server = Server::open(config).unwrap();
        let address = server.local_address();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || server.run(async { drop(stopped.await) }).unwrap());
        Running { address, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A server with a file system of the users `alice` and `bob`, who are the group `team`.
pub struct Site {
    folder: tempfile::TempDir,
    pub address: Address,
    configure: fn(&mut ServerConfig),
    server: Option<Running>,
}

impl Site {
    /// Starts the server, with a configuration that `configure` has changed, and makes the file system.
    pub fn new(configure: fn(&mut ServerConfig)) -> Site {
        let folder = tempfile::tempdir().unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
        let server = Running::start(&folder.path().join("server"), listen, configure);
        let address = Address {
            server: ServerAddress { host: "127.0.0.1".into(), port: server.address.port() },
            others: Vec::new(),
            file_system: key(1).public().file_system_id(),
        };
        let site = Site { folder, address, configure, server: Some(server) };
        assert_eq!(create(site.create_config("state-1")).unwrap(), site.address);
        let root = site.start(1).unwrap();
        let admin = Admin::new(&root).unwrap();
        for (user, seed) in [("alice", 2), ("bob", 3)] {
            admin.add_user(user, Some(("laptop", key(seed).public())), Home::Make, NOW).unwrap();
        }
        admin.add_group("team", &["alice", "bob"], Home::Make, NOW).unwrap();
        site
    }

    /// What makes the file system, with the superuser's state in a folder of this name.
    pub fn create_config(&self, state: &str) -> CreateConfig {
        CreateConfig {
            server: self.address.server.clone(),
            others: Vec::new(),
            superuser: key(1).into(),
            name: "site".into(),
            superuser_name: "root".into(),
            state_dir: self.path(state),
            now_ns: NOW,
            deadline: PATIENCE,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn config(&self, seed: u8) -> EngineConfig {
        let state = self.path(&format!("state-{seed}"));
        let mut config = EngineConfig::new(self.address.clone(), key(seed), state);
        config.cache_dir = Some(self.path(&format!("cache-{seed}")));
        config.deadline = PATIENCE;
        config
    }

    pub fn start(&self, seed: u8) -> Result<Arc<Engine>, StartError> {
        Engine::start(self.config(seed))
    }

    pub fn stop_server(&mut self) {
        drop(self.server.take());
    }

    /// Starts the server on its data directory and port.
    pub fn start_server(&mut self) {
        let listen = SocketAddr::from(([127, 0, 0, 1], self.address.server.port));
        self.server = Some(Running::start(&self.path("server"), listen, self.configure));
    }
}
