//! A server and a mounted file system on it in this process, joined over the network of this machine.

use super::meters::{Meter, MeteredRemote, MeteredStorage, Syncs};
use anyhow::Context;
use holdfast_client::admin::{Admin, CreateConfig, Home, create};
use holdfast_client::files::{Caller, Ino};
use holdfast_client::{Engine, EngineConfig, FileSystem, MountOptions};
use holdfast_crypto::SigningKey;
use holdfast_log::LocalStorage;
use holdfast_rpc::{Address, Connector, ServerAddress, ServerProof};
use holdfast_server::{Server, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DEADLINE: Duration = Duration::from_secs(60);

/// What is counted, as an index into [`Counts`].
#[derive(Clone, Copy)]
pub enum Count {
    /// Signed operations.
    Operations,
    /// Requests of the consistency protocol.
    Rounds,
    /// All requests, and nanoseconds until they were answered.
    Calls,
    CallTime,
    /// Bytes on the network.
    Sent,
    Received,
    /// Syncs of the client's state, their nanoseconds, bytes written, nanoseconds of that.
    ClientSyncs,
    ClientSyncTime,
    ClientWritten,
    ClientWriteTime,
    /// Syncs of the server's store, with the same figures.
    ServerSyncs,
    ServerSyncTime,
    ServerWritten,
    ServerWriteTime,
}

/// All counters at one moment, or their increase between two.
#[derive(Clone, Copy, Default)]
pub struct Counts([u64; 14]);

impl Counts {
    /// One counter.
    pub fn of(&self, count: Count) -> f64 {
        self.0[count as usize] as f64
    }

    /// Adds the increase between two moments.
    pub fn gain(&mut self, before: &Counts, after: &Counts) {
        for (place, sum) in self.0.iter_mut().enumerate() {
            *sum += after.0[place] - before.0[place];
        }
    }
}

/// A server, and one user's mount of a file system on it.
pub struct Site {
    /// The inode API.
    pub files: Arc<FileSystem>,
    /// Its engine.
    pub engine: Arc<Engine>,
    /// The user's home.
    pub home: Ino,
    /// Where the server is.
    pub server: ServerAddress,
    /// The file system.
    pub address: Address,
    directory: PathBuf,
    meters: Meters,
    _running: Running,
}

#[derive(Default)]
struct Meters {
    client: Arc<Meter>,
    server: Arc<Meter>,
    calls: Arc<Meter>,
}

struct Running {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Site {
    /// Sets up all of it in a directory of its own.
    pub fn new(directory: &Path, syncs: Syncs) -> anyhow::Result<Site> {
        Site::with(directory, syncs, None)
    }

    /// A site whose server has another abort time-out.
    pub fn with(directory: &Path, syncs: Syncs, abort_after: Option<Duration>) -> anyhow::Result<Site> {
        let meters = Meters::default();
        let (running, server) = serve(&directory.join("server"), &meters.server, syncs, abort_after)?;
        let [superuser, user] = [1, 2].map(|seed| SigningKey::from_seed(&[seed; 32]));
        let now_ns = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
        let root_state = directory.join("root-state");
        let address = create(CreateConfig {
            server: server.clone(),
            others: Vec::new(),
            superuser: superuser.clone().into(),
            name: "bench".into(),
            superuser_name: "root".into(),
            state_dir: root_state.clone(),
            now_ns,
            deadline: DEADLINE,
        })?;
        let root = Engine::start(EngineConfig::new(address.clone(), superuser, root_state))?;
        let device = Some(("machine", user.public()));
        Admin::new(&root)?.add_user("user", device, Home::Make, now_ns)?;
        root.stop();

        let state = directory.join("state");
        let mut config = EngineConfig::new(address.clone(), user.clone(), state.clone());
        config.cache_dir = Some(directory.join("cache"));
        let proof = ServerProof { file_system: address.file_system, minimum_sequence: 0 };
        let connection = Connector::new(user, vec![server.clone()], Some(proof)).connect(DEADLINE)?;
        let storage = MeteredStorage::new(LocalStorage::open(&state)?, meters.client.clone(), syncs);
        let remote = MeteredRemote::new(connection, meters.calls.clone());
        let engine = Engine::start_with(config, Arc::new(remote), Arc::new(storage))?;
        let options = MountOptions {
            uid: 1000,
            owners: Default::default(),
            gid: 1000,
            spool_dir: directory.join("spool"),
            salvage_dir: directory.join("salvage"),
            read_only: false,
        };
        let files = FileSystem::new(engine.clone(), options)?;
        let caller = Caller { uid: 1000, gid: 1000, thread: 0 };
        let home = files.lookup(&caller, Ino::ROOT, b"user").context("the user has no home")?.ino;
        Ok(Site {
            files,
            engine,
            home,
            server,
            address,
            directory: directory.to_owned(),
            meters,
            _running: running,
        })
    }

    /// An engine that signs for the superuser; only one at a time.
    pub fn superuser(&self) -> anyhow::Result<Arc<Engine>> {
        let key = SigningKey::from_seed(&[1; 32]);
        Ok(Engine::start(EngineConfig::new(self.address.clone(), key, self.directory.join("root-state")))?)
    }

    /// An engine of another device, enrolled by the superuser, with a state of its own.
    pub fn device(&self, key: SigningKey) -> anyhow::Result<Arc<Engine>> {
        let state = self.directory.join(format!("state-{}", key.public()));
        Ok(Engine::start(EngineConfig::new(self.address.clone(), key, state))?)
    }

    /// Bytes in the server's directory.
    pub fn stored_bytes(&self) -> anyhow::Result<u64> {
        let mut folders = vec![self.directory.join("server")];
        let mut bytes = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let entry = entry?;
                match entry.file_type()?.is_dir() {
                    true => folders.push(entry.path()),
                    false => bytes += entry.metadata()?.len(),
                }
            }
        }
        Ok(bytes)
    }

    /// All counters now.
    pub fn counts(&self) -> Counts {
        let status = self.engine.status();
        let [calls, call_time, ..] = self.meters.calls.read();
        let mut counts = vec![status.operations, status.rounds, calls, call_time];
        counts.extend([status.bytes_sent, status.bytes_received]);
        counts.extend(self.meters.client.read());
        counts.extend(self.meters.server.read());
        Counts(counts.try_into().expect("as many as there are names"))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

fn serve(
    data: &Path,
    meter: &Arc<Meter>,
    syncs: Syncs,
    abort_after: Option<Duration>,
) -> anyhow::Result<(Running, ServerAddress)> {
    let mut config = ServerConfig::new(data, "127.0.0.1:0".parse()?);
    config.abort_after = abort_after.unwrap_or(config.abort_after);
    let meter = meter.clone();
    let server = Server::open_on(config, &move |storage| {
        Arc::new(MeteredStorage::new(storage, meter.clone(), syncs))
    })?;
    let address = ServerAddress { host: "127.0.0.1".into(), port: server.local_address().port() };
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("server".into()).spawn(move || {
        let ended = server.run(async {
            let _ = stopped.await;
        });
        if let Err(error) = ended {
            eprintln!("the server ended: {error}");
        }
    })?;
    Ok((Running { stop: Some(stop), thread: Some(thread) }, address))
}
