//! The server as a process: data directory, listener, background work, orderly shutdown.

use crate::block_store::{
    self, BlockStore, BlocksLocation, BlocksOpenError, BucketSettings, LocalBlocks, RemoteBlocks,
    RemoteBlocksSettings,
};
use crate::clock::Clock;
use crate::config::{CoreSettings, ServerConfig};
use crate::control;
use crate::data::DataDirectory;
use crate::error::{OpenError, OrderLocationError, RunError};
use crate::maintenance;
use crate::order::etcd::Cluster;
use crate::privsep::{self, FrontEndProcess};
use crate::server_core::ServerCore;
use crate::service::Driver;
use crate::standby::StandbyThreads;
use crate::witnessing::WitnessPoller;
use backon::{BlockingRetryable, ConstantBuilder};
use holdfast_components::{Plan, Program, Supervisor};
use holdfast_crypto::{PublicKey, SigningKey};
use holdfast_etcd::{Access, EtcdError, Gateway};
use holdfast_log::{LocalStorage, Storage};
use holdfast_rpc::privsep::{HandshakeService, VerifiedConnection, serve_introduced};
use holdfast_rpc::{Listeners, Service};
use holdfast_store::StoreConfig;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// Smallest size of log files, in bytes.
const SEGMENT_BYTES_MIN: u32 = 4 << 20;
/// How long a server that shuts down waits for clients to give up their leases.
const LEASES_PATIENCE: Duration = Duration::from_secs(3);
/// How long a server that starts waits for etcd.
const STATE_PATIENCE: Duration = Duration::from_secs(20);
/// How long to retry listening on an address that is in use.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(1);
/// Number of threads for requests that block.
const BLOCKING_THREADS: usize = 64;

/// An opened server: it owns its data directory and listens, but does not answer before [`Server::run`].
pub struct Server {
    pub(crate) core: Arc<ServerCore>,
    pub(crate) data: DataDirectory,
    config: ServerConfig,
    listener: std::net::TcpListener,
    udp: Option<std::net::UdpSocket>,
    key: SigningKey,
}

/// How peers reach this server.
enum PeerTransport {
    /// Over its own sockets.
    Sockets,
    /// Over a front end in a process of its own, which ends when this value is dropped.
    FrontEnd(mpsc::Receiver<VerifiedConnection>, FrontEndProcess),
}

/// The clocks of this machine.
struct SystemClock(Instant);

impl Clock for SystemClock {
    fn wall_ns(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    }

    fn monotonic_ms(&self) -> u64 {
        self.0.elapsed().as_millis() as u64
    }
}

/// The public key of the server with this data directory. Makes the directory and the key if they do not
/// exist.
///
/// # Errors
/// [`OpenError`]
pub fn server_key_in(data: &std::path::Path) -> Result<PublicKey, OpenError> {
    Ok(DataDirectory::open(data)?.server_key()?.public())
}

/// Opens the data directory alone, without listening. Refused if the order is elsewhere.
pub(crate) fn open_host(
    config: &ServerConfig,
) -> Result<(Arc<ServerCore>, DataDirectory, SigningKey), OpenError> {
    if let Some((place, _)) = DataDirectory::open(&config.data)?.order_elsewhere()? {
        return Err(OrderLocationError::Elsewhere { data: config.data.clone(), place }.into());
    }
    open_host_on(config, &|storage| Arc::new(storage))
}

/// Makes the server one of several that share orders in etcd, if the configuration or the data directory
/// names an etcd.
fn join(config: &ServerConfig, data: &DataDirectory, core: &mut ServerCore) -> Result<(), OpenError> {
    let noted = data.order_elsewhere()?;
    let (access, login): (Access, _) = match (&config.state, noted) {
        (Some(access), _) => (access.clone(), config.state_login.clone()),
        (None, Some((place, login))) => {
            (place.parse().map_err(OrderLocationError::Access)?, config.state_login.clone().or(login))
        }
        (None, None) => return Ok(()),
    };
    if !core.resources.has_separate_blocks {
        return Err(OrderLocationError::BlocksHere.into());
    }
    if core.resources.blocks.status().is_some_and(|status| status.address.starts_with("s3://")) {
        return Err(OrderLocationError::BlocksInBucket.into());
    }
    if !core.file_systems().is_empty() || !core.damaged().is_empty() {
        return Err(OrderLocationError::OrderHere(data.path().to_owned()).into());
    }
    let address = match &config.advertise {
        Some(address) => address.clone(),
        None if config.listen.ip().is_unspecified() => return Err(OrderLocationError::NoAddress.into()),
        None => config.listen.to_string(),
    };
    let cluster = cluster_at(&access, login.as_deref(), &address, STATE_PATIENCE)?;
    if let Some(moved) = cluster.moved().map_err(OrderLocationError::Etcd)? {
        cluster.leave();
        return Err(OpenError::Converted(crate::moved::moved_from(&access, &moved)));
    }
    data.note_order(&access.to_string(), login.as_deref())?;
    tracing::info!(order = %access, address, "one server among those there");
    core.cluster = Some(Arc::new(cluster));
    Ok(())
}

/// Joins the servers whose orders are in etcd. While etcd cannot be reached, tries again for `patience`.
pub(crate) fn cluster_at(
    access: &Access,
    login: Option<&std::path::Path>,
    address: &str,
    patience: Duration,
) -> Result<Cluster, OrderLocationError> {
    let start = Instant::now();
    let join = || -> Result<Cluster, OrderLocationError> {
        let gateway = Gateway::new(access, login)?;
        Ok(Cluster::join(Box::new(gateway), &access.prefix, address.to_owned())?)
    };
    let is_away = |error: &OrderLocationError| matches!(error, OrderLocationError::Etcd(EtcdError::Away(_)));
    join.retry(ConstantBuilder::new().with_delay(Duration::from_millis(500)).without_max_times())
        .when(|error| is_away(error) && start.elapsed() < patience)
        .notify(|error, _| tracing::warn!(%error, "waiting for it"))
        .call()
}

fn open_host_on(
    config: &ServerConfig,
    layer: &dyn Fn(LocalStorage) -> Arc<dyn Storage>,
) -> Result<(Arc<ServerCore>, DataDirectory, SigningKey), OpenError> {
    let (mut core, data, key) = open_bare(config, layer)?;
    join(config, &data, &mut core)?;
    data.hold_ballast(core.resources.storage.free_bytes());
    Ok((Arc::new(core), data, key))
}

/// Opens the data directory, and the blocks wherever they are. An order in etcd is not opened.
pub(crate) fn open_bare(
    config: &ServerConfig,
    layer: &dyn Fn(LocalStorage) -> Arc<dyn Storage>,
) -> Result<(ServerCore, DataDirectory, SigningKey), OpenError> {
    crate::moved::check_served(&config.data)?;
    let data = DataDirectory::open(&config.data)?;
    let key = data.server_key()?;
    let core = match open_host_in(config, &data, &key, layer) {
        Err(OpenError::Store(error)) if error.is_full() && data.drop_ballast() => {
            tracing::warn!("the disk is full; starting with the space that was kept back");
            open_host_in(config, &data, &key, layer)?
        }
        other => other?,
    };
    Ok((core, data, key))
}

fn open_host_in(
    config: &ServerConfig,
    data: &DataDirectory,
    key: &SigningKey,
    layer: &dyn Fn(LocalStorage) -> Arc<dyn Storage>,
) -> Result<ServerCore, OpenError> {
    let store = data.store();
    let storage = LocalStorage::open(&store).map_err(|error| OpenError::io("opening", &store, error))?;
    let free_bytes = storage.free_bytes();
    let settings = CoreSettings {
        create: config.create,
        abort_after: config.abort_after,
        checkpoint_records: config.checkpoint_records,
        history: config.history.clone(),
        user_quota: config.user_quota,
        store: StoreConfig {
            window: config.window,
            gc_window: config.gc_window,
            keep_deleted: config.keep_deleted,
            keep_deleted_bytes: config.keep_deleted_bytes,
            segment_bytes: segment_bytes(free_bytes),
            ..StoreConfig::default()
        },
        parcels: config.parcels,
        locks_note: Some(data.locks_note()),
        lease_term: config.lease_term,
        leases_note: Some(data.leases_note()),
        is_restored: config.is_restored,
        restored_note: Some(data.restored_note()),
    };
    let lists = data.clone();
    let allowed = Box::new(move |key: &PublicKey| lists.allows_superuser(key));
    let clock = Arc::new(SystemClock(Instant::now()));
    let has_own = storage.list().is_ok_and(|names| names.iter().any(|name| name == "FORMAT"));
    if config.blocks.is_some() && has_own && !data.has_blocks_elsewhere() {
        return Err(OpenError::BlocksHere { path: data.path().to_owned() });
    }
    let blocks = separate_blocks(config, data, key, &settings.store)?;
    ServerCore::open_over(layer(storage), key.clone(), settings, allowed, clock, blocks)
}

/// The block store of a server whose blocks are not in its own log; `None` if they are in it.
fn separate_blocks(
    config: &ServerConfig,
    data: &DataDirectory,
    key: &SigningKey,
    store: &StoreConfig,
) -> Result<Option<Arc<dyn BlockStore>>, OpenError> {
    let (server, bucket) = match &config.blocks {
        Some(BlocksLocation::Server(address)) => (Some(address.clone()), None),
        Some(BlocksLocation::Bucket(address)) => (None, Some(address.clone())),
        None => (None, None),
    };
    if let (Some(wanted), Some(place)) = (&config.blocks, block_store::blocks_elsewhere(data.path()))
        && std::mem::discriminant(wanted) != std::mem::discriminant(&place)
    {
        let (data, place) = (data.path().to_owned(), place.to_string());
        return Err(BlocksOpenError::OtherKind { data, place }.into());
    }
    let (path, anew) = (data.path(), config.blocks_anew);
    let settings = BucketSettings {
        address: bucket,
        data: path,
        store: store.clone(),
        anew,
        takes_over: false,
        patience: None,
    };
    if let Some(blocks) = LocalBlocks::in_bucket(settings)? {
        return Ok(Some(Arc::new(blocks)));
    }
    let settings = RemoteBlocksSettings { address: server, data: path, key: key.clone(), anew };
    let remote = RemoteBlocks::open(settings)?;
    Ok(remote.map(|remote| Arc::new(remote) as Arc<dyn BlockStore>))
}

/// The size of log files, given the free bytes of the disk. Log files are reserved in full when they are
/// begun. On a disk that is nearly full, smaller ones let the server start, so that its contents can be read
/// and garbage removed.
pub(crate) fn segment_bytes(free: Option<u64>) -> u32 {
    let usual = StoreConfig::default().segment_bytes;
    free.map_or(usual, |free| u32::try_from(free / 16).unwrap_or(usual).clamp(SEGMENT_BYTES_MIN, usual))
}

/// Makes a socket by `bind`. If the address is in use, tries again for [`ADDRESS_PATIENCE`], because the
/// front end of a server that was just killed may still be ending.
pub(crate) fn bound<T>(bind: impl Fn() -> std::io::Result<T>) -> std::io::Result<T> {
    let start = Instant::now();
    bind.retry(ConstantBuilder::new().with_delay(Duration::from_millis(20)).without_max_times())
        .when(|error| error.kind() == std::io::ErrorKind::AddrInUse && start.elapsed() < ADDRESS_PATIENCE)
        .call()
}

/// A UDP socket at the address and port of a listener. Clients can do without it, so a port that is taken is
/// only logged.
fn udp_on_same_port(listener: &std::net::TcpListener) -> Option<std::net::UdpSocket> {
    match listener.local_addr().and_then(|address| bound(|| std::net::UdpSocket::bind(address))) {
        Ok(udp) => Some(udp),
        Err(error) => {
            tracing::warn!(%error, "cannot listen on the UDP port of the same number: serving over TCP only");
            None
        }
    }
}

impl Server {
    /// Opens the data directory (made if missing), recovers what a crash left, and begins to listen.
    ///
    /// # Errors
    /// See [`OpenError`]: in use by another server, of a newer format, damaged, or the address is taken.
    pub fn open(config: ServerConfig) -> Result<Server, OpenError> {
        Server::open_on(config, &|storage| Arc::new(storage))
    }

    /// Like [`Server::open`], but with a layer over the store's storage that measures it or simulates another
    /// medium.
    ///
    /// # Errors
    /// See [`Server::open`].
    pub fn open_on(
        config: ServerConfig,
        layer: &dyn Fn(LocalStorage) -> Arc<dyn Storage>,
    ) -> Result<Server, OpenError> {
        let listen = || {
            bound(|| std::net::TcpListener::bind(config.listen))
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                .map_err(|error| OpenError::Listen { address: config.listen, error })
        };
        // On a first start the server listens first: if that fails, no data directory is left behind.
        let early = (!config.data.exists()).then(listen).transpose()?;
        let (core, data, key) = open_host_on(&config, layer)?;
        let listener = early.map_or_else(listen, Ok)?;
        let udp = if config.quic { udp_on_same_port(&listener) } else { None };
        Ok(Server { core, data, config, listener, udp, key })
    }

    /// The address listened on, with the port the system chose if none was asked for.
    pub fn local_address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap_or(self.config.listen)
    }

    /// The server's public key, which a superuser's list of server keys must name.
    pub fn key(&self) -> PublicKey {
        self.key.public()
    }

    /// Ids of the file systems served.
    pub fn file_systems(&self) -> Vec<holdfast_crypto::Digest> {
        self.core.file_systems().iter().map(|file_system| file_system.id()).collect()
    }

    /// Serves until `shutdown` completes. Then lets running requests finish and writes checkpoints, so that
    /// the next start is quick. Blocks.
    ///
    /// # Errors
    /// [`RunError`]: the storage failed, or the system gives no reactor.
    pub fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        self.run_behind(|driver| driver, shutdown)
    }

    /// Like [`Server::run`], but with a service in front of the server's own that may change what peers see
    /// of it.
    ///
    /// # Errors
    /// See [`Server::run`].
    pub fn run_behind<S: Service>(
        self,
        layer: impl FnOnce(Arc<Driver>) -> Arc<S>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let service = layer(Arc::new(Driver { core: self.core.clone() }));
        self.run_over(service, PeerTransport::Sockets, shutdown)
    }

    /// The plan that [`Server::run_privsep`] needs: a sandboxed front end with this server's listeners.
    ///
    /// # Errors
    /// The system's error.
    pub fn front_end(&self) -> Result<Plan, RunError> {
        Ok(privsep::plan(&self.listener, self.udp.as_ref(), self.key(), &self.config.limits)?)
    }

    /// Like [`Server::run`], but in two processes: this one, and a front end that faces the network and has
    /// no data or keys ([`crate::privsep`]). `started` is called once the front end is in its sandbox.
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
        let service = Arc::new(Driver { core: self.core.clone() });
        self.run_over(service, PeerTransport::FrontEnd(introduced, privsep), shutdown)
    }

    fn run_over<S: Service>(
        self,
        service: Arc<S>,
        transport: PeerTransport,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("holdfast-server")
            .build()?;
        let tending = StandbyThreads::start(&self.core)?;
        let result = runtime.block_on(self.serve(service, transport, shutdown));
        runtime.shutdown_timeout(std::time::Duration::from_secs(10));
        if result.is_ok() {
            self.core.final_checkpoints();
            self.core.settle_locks();
            self.core.settle_leases();
        }
        drop(tending);
        self.core.leave();
        result
    }

    async fn serve<S: Service>(
        &self,
        service: Arc<S>,
        transport: PeerTransport,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), RunError> {
        let mut failure = self.core.failure();
        let mut failed = self.core.failure();
        let witnessing = WitnessPoller::start(&self.core, &self.config.witnesses, self.config.witness_every)?;
        let background =
            tokio::spawn(maintenance::run(self.core.clone(), self.config.gc_window, self.config.gc_interval));
        let control = tokio::spawn(control::serve(
            self.core.clone(),
            self.data.clone(),
            self.config.gc_window,
            witnessing.shared_state(),
        ));
        tracing::info!(address = %self.local_address(), key = %self.key(), "listening");
        let ended = async {
            tokio::select! {
                () = shutdown => {
                    tracing::info!("shutting down");
                    self.core.recall_leases(LEASES_PATIENCE).await;
                }
                _ = failure.wait_for(Option::is_some) => {}
            }
        };
        let limits = self.config.limits.clone();
        let served = match transport {
            PeerTransport::Sockets => {
                let tcp = tokio::net::TcpListener::from_std(self.listener.try_clone()?)?;
                let udp = self.udp.as_ref().map(|udp| udp.try_clone()).transpose()?;
                holdfast_rpc::serve(Listeners { tcp, udp }, &self.key, service, limits, ended).await
            }
            PeerTransport::FrontEnd(introduced, privsep) => {
                let served = serve_introduced(introduced, service, limits, ended).await;
                // The front end has to carry the last replies, so it ends after them.
                drop(privsep);
                served
            }
        };
        witnessing.stop();
        background.abort();
        control.abort();
        served?;
        match failed.borrow_and_update().clone() {
            Some(why) => Err(RunError::Storage(why)),
            None => Ok(()),
        }
    }
}

/// Completes when the process is asked to end (SIGINT or SIGTERM).
pub async fn until_signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    let signalled = async |kind| match signal(kind) {
        Ok(mut signal) => {
            signal.recv().await;
        }
        Err(error) => {
            tracing::error!(%error, "cannot wait for signals");
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = signalled(SignalKind::interrupt()) => {}
        () = signalled(SignalKind::terminate()) => {}
    }
}
