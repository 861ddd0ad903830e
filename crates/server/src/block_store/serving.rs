//! A block server: stores of consistency servers on other machines, each under its key.
//!
//! ```text
//! DATA/server-key    OpenSSH private key, mode 0600
//! DATA/lock          held by the process that serves
//! DATA/block-store   which bucket, if blocks are in one; text
//! DATA/servers/KEY/  the store of one consistency server; in a bucket it is below PREFIX/KEY
//! DATA/servers/KEY/shard-N-of-M/  one of several shards; in a bucket below PREFIX/KEY/shard-N-of-M
//! ```
//!
//! Invariants:
//! - Only keys that the operator named are served, each with its own store and no other.
//! - A client that cannot be served loses its connection, and other clients notice nothing. If a disk fails
//!   so that nothing can be made durable any more, the process ends, because appended data may be lost.
//! - The process also ends if another block server has taken over a store from the bucket: clients then find
//!   that one. A block server in a group ([`Candidate`]) instead goes on with the stores it has, and ends
//!   connections that ask for others.

use super::bucket;
use super::division;
use super::election::{Candidate, Seat};
use super::location::machine_name;
use super::seats::{Opener, Seats};
use super::server_config::BlockServerConfig;
use super::server_error::BlockServerError;
use super::store_server::{BucketLocation, StoreEnd, StoreServer};
use crate::data::DataDirectory;
use crate::error::{OpenError, RunError};
use crate::privsep::{self, FrontEndProcess};
use crate::server::{bound, segment_bytes};
use holdfast_components::{Plan, Program, Supervisor};
use holdfast_crypto::{Digest, PublicKey, SigningKey};
use holdfast_log::{LocalStorage, Storage, StorageLock};
use holdfast_protocol::block_server::{BlockCall, BlockFault, BlockReply, BlockResult, Shard, StoreId};
use holdfast_protocol::message::{PROTOCOL_VERSIONS, Request, Response, ServerError, Welcome};
use holdfast_rpc::privsep::{HandshakeService, VerifiedConnection, serve_introduced};
use holdfast_rpc::{BlocksAddress, Limits, Listeners, ServerAddress, Service, Session};
use holdfast_store::StoreConfig;
use holdfast_tiered::{Bucket, BucketAddress, S3, Settings};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::spawn_blocking;

/// Most requests of one connection carried out at the same time.
const AT_ONCE: usize = 32;
/// How often the stores are checked for a takeover by another block server.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Number of threads for requests that block.
const BLOCKING_THREADS: usize = 64;
/// Held by the process that serves.
const LOCK: &str = "lock";
/// Prefix of the directories of shards.
const SHARD: &str = "shard-";
/// Smallest cache of a shard, in bytes.
const CACHE_BYTES_MIN: u64 = 64 << 20;

/// An opened block server: it owns its data directory and listens, but does not answer before
/// [`BlockServer::run`].
pub struct BlockServer {
    service: Arc<BlockService>,
    listener: std::net::TcpListener,
    key: SigningKey,
    listen: SocketAddr,
    candidate: Option<Arc<Candidate>>,
    _lock: Box<dyn StorageLock>,
}

/// How peers reach this block server.
enum PeerTransport {
    Sockets,
    FrontEnd(mpsc::Receiver<VerifiedConnection>, FrontEndProcess),
}

impl BlockServer {
    /// Opens the data directory (made if missing) with the stores of all allowed servers, recovers what a
    /// crash left, and begins to listen.
    ///
    /// # Errors
    /// [`BlockServerError`]
    pub fn open(config: BlockServerConfig) -> Result<BlockServer, BlockServerError> {
        BlockServer::open_over(config, |address| Arc::new(S3::new(address)))
    }

    /// Like [`BlockServer::open`], but with other buckets than those of S3.
    ///
    /// # Errors
    /// [`BlockServerError`]
    pub fn open_over(
        config: BlockServerConfig,
        buckets: impl Fn(&BucketAddress) -> Arc<dyn Bucket> + Send + Sync + 'static,
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
        let bucket = bucket::bucket_of(&config.data, config.blocks.as_ref())?;
        let shards = match &config.candidate {
            Some(candidate) => candidate.shards(&mut |news| tracing::warn!("{news}"))?,
            None => 1,
        };
        let mut unnamed = Vec::new();
        for (server, address) in config.allowed.iter().flat_map(|server| Some((server, bucket.as_ref()?))) {
            let failed = |why| BlockServerError::InBucket { server: *server, why: Box::new(why) };
            let bucket = buckets(&address.below(&server.to_string()));
            if !division::agrees(&*bucket, shards).map_err(failed)? {
                unnamed.push((*server, bucket));
            }
        }
        if let Some(candidate) = &config.candidate {
            candidate.settle(shards)?;
        }
        for (server, bucket) in unnamed {
            division::say(&*bucket, shards)
                .map_err(|error| BlockServerError::InBucket { server, why: Box::new(error.into()) })?;
        }
        let (servers, anew, takes_over) =
            (config.data.join("servers"), config.blocks_anew, config.candidate.is_some());
        let address = bucket.clone();
        let open: Opener = Box::new(move |seat| {
            let (mut directory, shard) = (servers.join(seat.server.to_string()), part_of_name(seat.shard));
            directory.extend(&shard);
            let place = address.as_ref().map(|address| {
                let mut address = address.below(&seat.server.to_string());
                if let Some(shard) = &shard {
                    let cache_bytes = address.cache_bytes.unwrap_or(Settings::default().cache_bytes);
                    let share = (cache_bytes / u64::from(seat.shard.of)).max(CACHE_BYTES_MIN);
                    address = BucketAddress { cache_bytes: Some(share), ..address.below(shard) };
                }
                BucketLocation { bucket: buckets(&address), address, anew, takes_over }
            });
            StoreServer::open(&directory, store.clone(), place)
        });
        let all = config.allowed.iter().flat_map(|server| {
            (0..shards).map(|number| Seat { server: *server, shard: Shard { number, of: shards } })
        });
        let seats = Arc::new(Seats::new(shards, all.collect(), open));
        if config.candidate.is_none() {
            seats.open_all().map_err(|(Seat { server, .. }, why)| match bucket {
                Some(_) => BlockServerError::InBucket { server, why },
                None => BlockServerError::Store { server, why },
            })?;
        }
        if let Some(address) = &bucket {
            bucket::remember(&config.data, address)?;
        }
        let listener = bound(|| std::net::TcpListener::bind(config.listen))
            .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
            .map_err(|error| OpenError::Listen { address: config.listen, error })?;
        let service = Arc::new(BlockService {
            seats,
            allowed: config.allowed,
            is_shared: config.candidate.is_some(),
            failure: watch::Sender::new(None),
            opened: Mutex::default(),
        });
        let (listen, candidate) = (config.listen, config.candidate);
        Ok(BlockServer { service, listener, key, listen, candidate, _lock: lock })
    }

    /// The key of the block server with this data directory. Makes the directory and the key if they do not
    /// exist.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn key_in(data: &Path) -> Result<PublicKey, OpenError> {
        Ok(DataDirectory::bare(data)?.server_key()?.public())
    }

    /// The address to give to a consistency server: where this block server listens, with its key. If it
    /// listens on all addresses, this has the machine's host name.
    pub fn address(&self) -> BlocksAddress {
        let local = self.listener.local_addr().unwrap_or(self.listen);
        let host = match local.ip() {
            ip if ip.is_unspecified() => machine_name(),
            ip => ip.to_string(),
        };
        let server = ServerAddress { host, port: local.port() };
        BlocksAddress { server, others: Vec::new(), key: self.key.public() }
    }

    /// Serves until `shutdown` completes, then lets running requests finish. Blocks.
    ///
    /// # Errors
    /// [`RunError`]
    pub fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        self.run_over(PeerTransport::Sockets, shutdown)
    }

    /// The plan that [`BlockServer::run_privsep`] needs: a sandboxed front end with this server's listener.
    ///
    /// # Errors
    /// The system's error.
    pub fn front_end(&self) -> Result<Plan, RunError> {
        Ok(privsep::plan(&self.listener, None, self.key.public(), &Limits::default())?)
    }

    /// Like [`BlockServer::run`], but in two processes, as a server of file systems does
    /// ([`crate::privsep`]). `started` is called once the front end is in its sandbox.
    ///
    /// # Errors
    /// [`RunError`]; also where sandboxes cannot be made.
    pub fn run_privsep(
        self,
        program: Program,
        plan: Plan,
        started: impl FnOnce(&Supervisor),
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let (handshakes, introduced) = HandshakeService::new(self.key.clone().into());
        let privsep = FrontEndProcess::start(program, plan, handshakes)?;
        started(privsep.supervisor());
        self.run_over(PeerTransport::FrontEnd(introduced, privsep), shutdown)
    }

    fn run_over(self, transport: PeerTransport, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("holdfast-blocks")
            .build()?;
        let result = runtime.block_on(self.serve(transport, shutdown));
        runtime.shutdown_timeout(Duration::from_secs(10));
        result
    }

    async fn serve(
        &self,
        transport: PeerTransport,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let mut failure = self.service.failure.subscribe();
        tracing::info!(address = %self.address(), servers = self.service.allowed.len(), "listening");
        let sharing = self.candidate.clone().map(|candidate| {
            let seats = self.service.seats.clone();
            let shares = std::thread::Builder::new().name("holdfast-seats".into());
            shares.spawn(move || seats.share(&candidate))
        });
        let sharing = sharing.transpose()?;
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
        match transport {
            PeerTransport::Sockets => {
                let tcp = tokio::net::TcpListener::from_std(self.listener.try_clone()?)?;
                holdfast_rpc::serve(Listeners { tcp, udp: None }, &self.key, service, limits, ended).await?;
            }
            PeerTransport::FrontEnd(introduced, privsep) => {
                let served = serve_introduced(introduced, service, limits, ended).await;
                // The front end has to carry the last replies, so it ends after them.
                drop(privsep);
                served?;
            }
        }
        if let Some(sharing) = sharing {
            self.service.seats.stop();
            let _ = spawn_blocking(|| sharing.join()).await;
        }
        match self.service.failure.borrow().clone() {
            Some(why) => Err(RunError::Storage(why)),
            None => Ok(()),
        }
    }
}

impl BlockServer {
    /// Completes, with a description, when another block server has taken over one of the stores; never if
    /// this one is in a group.
    async fn taken_over(&self) -> String {
        loop {
            if let (None, Some(why)) = (&self.candidate, self.service.seats.taken_over()) {
                return why;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Answers requests for all stores, without the sockets.
struct BlockService {
    seats: Arc<Seats>,
    allowed: BTreeSet<PublicKey>,
    /// Whether stores that are not open here are at other block servers of the group.
    is_shared: bool,
    failure: watch::Sender<Option<String>>,
    /// Consistency servers whose first connection was logged.
    opened: Mutex<BTreeSet<PublicKey>>,
}

/// The state of one connection.
struct State {
    at_once: Arc<Semaphore>,
    /// The shard that the greeting asked for. Unset if there are several shards and it asked for none.
    shard: OnceLock<Shard>,
}

impl Default for State {
    fn default() -> State {
        State { at_once: Arc::new(Semaphore::new(AT_ONCE)), shard: OnceLock::new() }
    }
}

impl BlockService {
    fn greet(&self, session: &Session<State>, versions: (u16, u16), requested: Option<Digest>) -> Response {
        let (oldest, newest) = PROTOCOL_VERSIONS;
        let version = versions.1.min(newest);
        if versions.0 > versions.1 || version < versions.0.max(oldest) {
            return Response::Error(ServerError::Version(oldest, newest));
        }
        if !self.allowed.contains(&session.peer) {
            let why = "this is a block server, and this key is not one of those that its operator allows"
                .to_owned();
            return Response::Error(ServerError::NotAllowed(why));
        }
        let shards = self.seats.shards;
        let shard = match requested.as_ref().map(Shard::named) {
            None if shards > 1 => None,
            None => Some(Shard::WHOLE),
            Some(Some(shard)) if shard.of == shards => Some(shard),
            Some(_) => {
                let why = format!("the blocks here are in {shards} shards; start the server anew");
                return Response::Error(ServerError::NotAllowed(why));
            }
        };
        if let Some(shard) = shard {
            if self.is_shared && self.seats.store_server(&Seat { server: session.peer, shard }).is_none() {
                return Response::Error(ServerError::Elsewhere(None));
            }
            let _ = session.state.shard.set(shard);
        }
        if self.opened.lock().insert(session.peer) {
            tracing::info!(server = %session.peer, address = %session.address, "a server has come for its blocks");
        }
        session.admit();
        Response::Hello(Welcome { version, file_system: None, device: None, abort_after_ms: 0 })
    }
}

impl Service for BlockService {
    type State = State;

    async fn handle(&self, session: &Arc<Session<State>>, request: Request) -> Response {
        match request {
            Request::Hello { versions, file_system } => self.greet(session, versions, file_system),
            Request::Ping => Response::Done,
            Request::BlockServer(request) => {
                let Some(shard) = session.state.shard.get().copied() else {
                    let outcome = match request.call {
                        BlockCall::Greet => Ok(BlockResult::Shards(self.seats.shards)),
                        _ => Err(BlockFault::Refused("a shard is to be asked for when greeting".to_owned())),
                    };
                    let reply = BlockReply { store: StoreId::default(), position: 0, outcome };
                    return Response::BlockServer(Box::new(reply));
                };
                let _turn = session.state.at_once.clone().acquire_owned().await;
                let Some(store_server) = self.seats.store_server(&Seat { server: session.peer, shard })
                else {
                    return elsewhere(session).await;
                };
                match spawn_blocking(move || store_server.answer(*request)).await {
                    Ok(Ok(reply)) => Response::BlockServer(Box::new(reply)),
                    Ok(Err(StoreEnd::TakenOver(_))) if self.is_shared => elsewhere(session).await,
                    Ok(Err(StoreEnd::Fatal(why) | StoreEnd::TakenOver(why))) => {
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

/// Ends the connection, because the store is at another block server now. Only that one can say whether the
/// request was carried out, so the client has to ask there.
async fn elsewhere(session: &Session<State>) -> Response {
    session.end();
    std::future::pending().await
}

/// Name of a shard's directory and prefix; `None` if the store is undivided.
fn part_of_name(shard: Shard) -> Option<String> {
    let Shard { number, of } = shard;
    (of > 1).then(|| format!("{SHARD}{number}-of-{of}"))
}
