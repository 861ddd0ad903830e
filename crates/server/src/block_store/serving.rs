//! A block server: stores of consistency servers on other machines, each under its key.
//!
//! ```text
//! DATA/server-key    OpenSSH private key, mode 0600
//! DATA/lock          held by the process that serves
//! DATA/block-store   which bucket, if blocks are in one; text
//! DATA/servers/KEY/  the store of one consistency server; in a bucket it is below PREFIX/KEY
//! ```
//!
//! Invariants:
//! - only keys that the operator named are served, each its own store and no other's;
//! - whoever cannot be served loses its connection, and nobody else notices; a disk that can promise nothing any more
//!   ends the process, as nothing of what was only appended may be believed;
//! - so does another block server that has taken a store over from the bucket: whoever asked here finds that one.

use super::election::Term;
use super::keeper::{Keeper, Place};
use super::objects;
use crate::apart::{self, Apart};
use crate::data::DataDirectory;
use crate::error::{OpenError, RunError};
use crate::server::{bound, segment_bytes};
use holdfast_components::{Plan, Program, Supervisor};
use holdfast_crypto::{PublicKey, SigningKey};
use holdfast_log::{LocalStorage, Storage, StorageLock};
use holdfast_objects::{Bucket, BucketAddress, S3};
use holdfast_protocol::message::{PROTOCOL_VERSIONS, Request, Response, ServerError, Welcome};
use holdfast_rpc::apart::{Introduced, Reception, serve_introduced};
use holdfast_rpc::{BlocksAddress, Limits, Listeners, ServerAddress, Service, Session};
use holdfast_store::StoreConfig;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::spawn_blocking;

/// Requests of one connection carried out at once.
const AT_ONCE: usize = 32;
/// How often it is looked whether a store was taken over.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Threads for work that blocks.
const BLOCKING_THREADS: usize = 64;
/// Held by the process that serves.
const LOCK: &str = "lock";

/// How a block server runs.
#[derive(Clone, Debug)]
pub struct BlockServerConfig {
    /// The data directory; created when missing. One block server at a time.
    pub data: PathBuf,
    /// Where to listen.
    pub listen: SocketAddr,
    /// Keys of the consistency servers that are served.
    pub allowed: BTreeSet<PublicKey>,
    /// How long after its first STORE a block may be given up.
    pub window: Duration,
    /// How long new blocks are safe from collection.
    pub gc_window: Duration,
    /// How long deleted blocks are kept as a source for what comes next.
    pub keep_deleted: Duration,
    /// How many bytes of them at most.
    pub keep_deleted_bytes: Option<u64>,
    /// The bucket that has the blocks; `None`: the one of last time, if there was one, or else they are in the data directory.
    pub blocks: Option<BucketAddress>,
    /// The operator accepts what is in the bucket, whatever was there before.
    pub blocks_anew: bool,
    /// It was elected among several: what another one has taken over since the last time is taken over from it.
    pub term: Option<Arc<Term>>,
}

impl BlockServerConfig {
    /// The usual settings.
    pub fn new(
        data: impl Into<PathBuf>,
        listen: SocketAddr,
        allowed: BTreeSet<PublicKey>,
    ) -> BlockServerConfig {
        let usual = StoreConfig::default();
        BlockServerConfig {
            data: data.into(),
            listen,
            allowed,
            window: usual.window,
            gc_window: usual.gc_window,
            keep_deleted: usual.keep_deleted,
            keep_deleted_bytes: usual.keep_deleted_bytes,
            blocks: None,
            blocks_anew: false,
            term: None,
        }
    }
}

/// Why a block server did not start.
#[derive(Debug, thiserror::Error)]
pub enum BlockServerError {
    /// As of any server.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Another one has the data directory.
    #[error("{path} is in use by another block server", path = .0.display())]
    InUse(PathBuf),
    /// What is known of the bucket makes no sense, or cannot be noted.
    #[error("{0}")]
    Bucket(String),
    /// It cannot stand by for others.
    #[error("{0}")]
    Election(String),
    /// A store of a consistency server in a bucket cannot be opened.
    #[error("the blocks of the server {server}: {why}")]
    InBucket {
        /// Its key.
        server: PublicKey,
        /// Why.
        why: String,
    },
    /// A store of a consistency server cannot be opened.
    #[error("the blocks of the server {server}: {why}")]
    Store {
        /// Its key.
        server: PublicKey,
        /// Why.
        why: String,
    },
}

/// An opened block server: it owns its data directory and listens, but does not answer before [`BlockServer::run`].
pub struct BlockServer {
    service: Arc<Keepers>,
    listener: std::net::TcpListener,
    key: SigningKey,
    listen: SocketAddr,
    term: Option<Arc<Term>>,
    _lock: Box<dyn StorageLock>,
}

/// How peers reach it.
enum Way {
    Sockets,
    Introduced(mpsc::Receiver<Introduced>, Apart),
}

impl BlockServer {
    /// Opens the data directory (made if missing) with the stores of all that are allowed, recovers what a crash left, and
    /// begins to listen.
    ///
    /// # Errors
    /// [`BlockServerError`]
    pub fn open(config: BlockServerConfig) -> Result<BlockServer, BlockServerError> {
        BlockServer::open_over(config, &|address| Arc::new(S3::new(address)))
    }

    /// The same with any buckets in place of those of S3.
    ///
    /// # Errors
    /// [`BlockServerError`]
    pub fn open_over(
        config: BlockServerConfig,
        buckets: &dyn Fn(&BucketAddress) -> Arc<dyn Bucket>,
    ) -> Result<BlockServer, BlockServerError> {
        let data = DataDirectory::bare(&config.data)?;
        let key = data.server_key()?;
        let io = |error| OpenError::io("opening", &config.data, error);
        let storage = LocalStorage::open(&config.data).map_err(io)?;
        let lock = storage.lock(LOCK).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => BlockServerError::InUse(config.data.clone()),
            _ => io(error).into(),
        })?;
        let store = StoreConfig {
            window: config.window,
            gc_window: config.gc_window,
            keep_deleted: config.keep_deleted,
            keep_deleted_bytes: config.keep_deleted_bytes,
            segment_bytes: segment_bytes(storage.free_bytes()),
            ..StoreConfig::default()
        };
        let bucket =
            objects::bucket_of(&config.data, config.blocks.as_ref()).map_err(BlockServerError::Bucket)?;
        let mut keepers = BTreeMap::new();
        for server in &config.allowed {
            let directory = config.data.join("servers").join(server.to_string());
            let place = bucket.as_ref().map(|address| {
                let address = address.below(&server.to_string());
                let takes_over = config.term.is_some();
                Place { bucket: buckets(&address), address, anew: config.blocks_anew, takes_over }
            });
            let keeper = Keeper::open(&directory, store.clone(), place).map_err(|why| match bucket {
                Some(_) => BlockServerError::InBucket { server: *server, why },
                None => BlockServerError::Store { server: *server, why },
            })?;
            keepers.insert(*server, Arc::new(keeper));
        }
        if let Some(address) = &bucket {
            objects::remember(&config.data, address).map_err(BlockServerError::Bucket)?;
        }
        let listener = bound(|| std::net::TcpListener::bind(config.listen))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|error| OpenError::Listen { address: config.listen, error })?;
        let service =
            Arc::new(Keepers { keepers, failure: watch::Sender::new(None), opened: Mutex::default() });
        Ok(BlockServer { service, listener, key, listen: config.listen, term: config.term, _lock: lock })
    }

    /// The key of the block server with this data directory, which is made if it is not there.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn key_in(data: &Path) -> Result<PublicKey, OpenError> {
        Ok(DataDirectory::bare(data)?.server_key()?.public())
    }

    /// Where it listens, with its key: what a consistency server is given, if it reaches this machine so. With all addresses
    /// listened on, this machine's name stands for them.
    pub fn address(&self) -> BlocksAddress {
        let local = self.listener.local_addr().unwrap_or(self.listen);
        let host = match local.ip() {
            ip if ip.is_unspecified() => super::machine_name(),
            ip => ip.to_string(),
        };
        let server = ServerAddress { host, port: local.port() };
        BlocksAddress { server, others: Vec::new(), key: self.key.public() }
    }

    /// Serves until `shutdown` completes, and lets requests under way finish. Blocks.
    ///
    /// # Errors
    /// [`RunError`]
    pub fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        self.run_over(Way::Sockets, shutdown)
    }

    /// What [`BlockServer::run_apart`] starts: a sandboxed front end with this server's listener.
    ///
    /// # Errors
    /// The system's.
    pub fn front_end(&self) -> Result<Plan, RunError> {
        Ok(apart::plan(&self.listener, None, self.key.public(), &Limits::default())?)
    }

    /// Serves in two processes, as a server of file systems does ([`crate::apart`]). `started` is called once the front end
    /// is in its sandbox.
    ///
    /// # Errors
    /// [`RunError`]; also where sandboxes cannot be made.
    pub fn run_apart(
        self,
        program: Program,
        plan: Plan,
        started: impl FnOnce(&Supervisor),
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let (reception, introduced) = Reception::new(self.key.clone().into());
        let apart = Apart::start(program, plan, reception)?;
        started(apart.supervisor());
        self.run_over(Way::Introduced(introduced, apart), shutdown)
    }

    fn run_over(self, way: Way, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("holdfast-blocks")
            .build()?;
        let result = runtime.block_on(self.serve(way, shutdown));
        runtime.shutdown_timeout(Duration::from_secs(10));
        result
    }

    async fn serve(&self, way: Way, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        let mut failure = self.service.failure.subscribe();
        tracing::info!(address = %self.address(), servers = self.service.keepers.len(), "listening");
        let ended = async {
            tokio::select! {
                () = shutdown => tracing::info!("shutting down"),
                _ = failure.wait_for(Option::is_some) => {}
                why = self.taken_over() => {
                    tracing::error!(why, "the blocks are served elsewhere now");
                    self.service.failure.send_replace(Some(why));
                }
            }
        };
        let (service, limits) = (self.service.clone(), Limits::default());
        match way {
            Way::Sockets => {
                let tcp = tokio::net::TcpListener::from_std(self.listener.try_clone()?)?;
                holdfast_rpc::serve(Listeners { tcp, udp: None }, &self.key, service, limits, ended).await?;
            }
            Way::Introduced(introduced, apart) => {
                let served = serve_introduced(introduced, service, limits, ended).await;
                // After the last answers, which it carries on.
                drop(apart);
                served?;
            }
        }
        match self.service.failure.borrow().clone() {
            Some(why) => Err(RunError::Storage(why)),
            None => Ok(()),
        }
    }
}

impl BlockServer {
    /// Completes when another block server has taken over one of the stores, or was elected, and says which.
    async fn taken_over(&self) -> String {
        loop {
            let mut keepers = self.service.keepers.values();
            let elected = || self.term.as_ref().and_then(|term| term.replaced_by());
            if let Some(why) = keepers.find_map(|keeper| keeper.taken_over()) {
                return why;
            }
            if let Some(host) = elected() {
                return format!("the block server on {host} was elected");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// All stores, behind the sockets.
struct Keepers {
    keepers: BTreeMap<PublicKey, Arc<Keeper>>,
    failure: watch::Sender<Option<String>>,
    /// Servers that have been told of in the journal.
    opened: Mutex<BTreeSet<PublicKey>>,
}

/// Kept with each connection.
struct State(Arc<Semaphore>);

impl Default for State {
    fn default() -> State {
        State(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Keepers {
    fn greet(&self, session: &Session<State>, versions: (u16, u16)) -> Response {
        let (oldest, newest) = PROTOCOL_VERSIONS;
        let version = versions.1.min(newest);
        if versions.0 > versions.1 || version < versions.0.max(oldest) {
            return Response::Error(ServerError::Version(oldest, newest));
        }
        if !self.keepers.contains_key(&session.peer) {
            let why = "this is a block server, and this key is not one of those that its operator allows"
                .to_owned();
            return Response::Error(ServerError::NotAllowed(why));
        }
        if self.opened.lock().insert(session.peer) {
            tracing::info!(server = %session.peer, address = %session.address, "a server has come for its blocks");
        }
        session.admit();
        Response::Hello(Welcome { version, file_system: None, device: None, abort_after_ms: 0 })
    }
}

impl Service for Keepers {
    type State = State;

    async fn handle(&self, session: &Arc<Session<State>>, request: Request) -> Response {
        match request {
            Request::Hello { versions, .. } => self.greet(session, versions),
            Request::Ping => Response::Done,
            Request::BlockServer(request) => {
                let Some(keeper) = self.keepers.get(&session.peer).cloned() else {
                    return Response::Error(ServerError::NotAllowed(
                        "this key has no blocks here".to_owned(),
                    ));
                };
                let _turn = session.state.0.clone().acquire_owned().await;
                match spawn_blocking(move || keeper.answer(*request)).await {
                    Ok(Ok(reply)) => Response::BlockServer(Box::new(reply)),
                    Ok(Err(why)) => {
                        tracing::error!(why, "the storage failed; nothing more is acknowledged");
                        self.failure.send_replace(Some(why.clone()));
                        Response::Error(ServerError::Storage(why))
                    }
                    Err(_) => Response::Error(ServerError::Storage("the request failed inside".to_owned())),
                }
            }
            _ => Response::Error(ServerError::Invalid(
                "this is a block server; file systems are elsewhere".to_owned(),
            )),
        }
    }
}
