//! `holdfast release serve`: a small, fast web server for the files of one release (the paper's `sfsrosd`).
//!
//! It holds no secret and understands nothing of what it serves; clients check every byte. What it answers for is that
//! it serves the release and nothing else of the machine, and that nobody can make it spend more than its bounds:
//! connections, memory for each of them, and time for those who do nothing or next to nothing.
//!
//! - `GET` and `HEAD` of the names of [`crate::layout`], whole or a range; `root` is the paper's `getfsinfo`.
//! - `GET` and `HEAD` of `object/ADDRESS`: a stored block, found through the index; the paper's `getdata`.
//! - `POST` of `objects`: addresses, 32 bytes each, at most 64; the answer is frames as in a [`crate::pack`], of as many
//!   of these blocks as have room, at least one. Blocks of this release that lie at its origin are fetched from there, if
//!   the server was given a key for it ([`crate::origin`]); no others are.
//! - `POST` of `paths`: paths, a NUL between each two, at most 256 and 16 KiB; the answer is frames as in a
//!   [`crate::pack`], of blocks that their look-up needs, as far as the release's [`crate::hints`] know.

pub(crate) mod answer;
mod body;
pub(crate) mod connection;
mod files;
mod frames;
mod names;
mod objects;
mod part;
pub(crate) mod range;

use crate::origin::Origin;
use answer::{RequestHandler, ServeState};
use connection::{Activity, Stream, Watch};
use files::{Files, ReadError, Wait};
use hyper::server::conn::http1;
use rustix::process::{Resource, getrlimit};
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The longest head of a request, and how much of an answer waits in memory for a slow reader, but for one piece.
pub(crate) const HEAD_BYTES_MAX: usize = 16 << 10;
/// Threads that wait for the disk.
const DISK_THREADS_MAX: usize = 16;
/// Requests to the origin at once: fewer than threads that wait for the disk.
const ORIGIN_REQUESTS_MAX: usize = 8;
/// How long replies under way may take when the server is stopped.
pub(crate) const STOPPING_MAX: Duration = Duration::from_secs(10);
/// Connections that the system keeps waiting until they are let in.
const BACKLOG: i32 = 4096;
/// How many files a server has open besides connections.
const FILES_BESIDES: usize = 1024;
/// How long nobody is let in when the system has no more files or memory for connections.
pub(crate) const SHORTAGE: Duration = Duration::from_millis(100);

/// The directory and limits of a server.
#[derive(Clone)]
pub struct ServeConfig {
    /// The directory of the release.
    pub directory: PathBuf,
    /// The address where to listen.
    pub listen: SocketAddr,
    /// The number of threads that serve connections.
    pub threads: usize,
    /// How many connections there may be at once. Others wait.
    pub connections_max: usize,
    /// Seconds after which a connection without requests is closed (at most twice as many).
    pub idle_s: u64,
    /// How long replies under way may take when the server is stopped.
    pub stopping_max: Duration,
    /// How much memory is used for small files and blocks, half of it for each.
    pub cache_bytes_max: u64,
    /// The origin of the release, for data that lies in no pack.
    pub origin: Option<Arc<Origin>>,
}

impl ServeConfig {
    /// One thread, 4,096 connections, 20 seconds, 10 seconds, 64 MiB.
    pub fn new(directory: PathBuf, listen: SocketAddr) -> ServeConfig {
        ServeConfig {
            directory,
            listen,
            threads: 1,
            connections_max: 4096,
            idle_s: 20,
            stopping_max: STOPPING_MAX,
            cache_bytes_max: 64 << 20,
            origin: None,
        }
    }
}

/// Why a release cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The directory cannot be opened.
    #[error("{directory}: {error}", directory = .directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What the system reports.
        error: io::Error,
    },
    /// There is no `root` in it.
    #[error("{directory} holds no release: it has no file '{file}'", directory = .directory.display(), file = crate::layout::ROOT)]
    NoRelease {
        /// The directory.
        directory: PathBuf,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system reports.
        error: io::Error,
    },
    /// The system refuses threads or sockets.
    #[error("cannot serve: {0}")]
    System(io::Error),
}

/// A server that listens already.
pub struct Server {
    site: Arc<ServeState>,
    listener: TcpListener,
    local_address: SocketAddr,
    config: ServeConfig,
}

impl Server {
    /// Opens the release and listens.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn open(config: ServeConfig) -> Result<Server, ServeError> {
        let directory = config.directory.clone();
        let failed = |error| ServeError::Directory { directory: directory.clone(), error };
        let memory = config.cache_bytes_max / 2;
        let files = Files::open(&config.directory, memory).map_err(failed)?;
        match files.get(crate::layout::ROOT, Wait::Yes) {
            Ok(Some(_)) => {}
            Ok(None) => return Err(ServeError::NoRelease { directory }),
            Err(ReadError::Failed(error)) => return Err(failed(error)),
            Err(ReadError::WouldWait) => return Err(failed(io::ErrorKind::WouldBlock.into())),
        }
        let address = config.listen;
        let cannot_listen = |error| ServeError::Listen { address, error };
        let listener = TcpListener::bind(address).map_err(cannot_listen)?;
        // The usual queue is short, and who does not fit in it comes again a second later.
        rustix::net::listen(&listener, BACKLOG).map_err(|error| cannot_listen(error.into()))?;
        // Connections inherit it: the last piece of an answer must not wait for an acknowledgement.
        rustix::net::sockopt::set_tcp_nodelay(&listener, true)
            .map_err(|error| cannot_listen(error.into()))?;
        listener.set_nonblocking(true).map_err(cannot_listen)?;
        let local_address = listener.local_addr().map_err(cannot_listen)?;
        let connections_max = possible(config.connections_max);
        let site = Arc::new(ServeState {
            files,
            objects: objects::Objects::new(memory),
            connections: Arc::new(Semaphore::new(connections_max)),
            origin: config.origin.clone(),
            origin_places: Semaphore::new(ORIGIN_REQUESTS_MAX),
            connections_scarce: connections_max / 4,
        });
        Ok(Server { site, listener, local_address, config })
    }

    /// The address where it listens.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Serves until `until` is done, and then a little longer, so that answers under way arrive.
    ///
    /// # Errors
    /// [`ServeError::System`].
    pub fn run(self, until: impl Future<Output = ()>) -> Result<(), ServeError> {
        let (stop, stopping) = watch::channel(false);
        let mut others = Vec::new();
        let threads = self.config.threads;
        for number in 1..threads.max(1) {
            let worker = self.worker(stopping.clone()).map_err(ServeError::System)?;
            let thread = std::thread::Builder::new().name(format!("serve-{number}"));
            others
                .push(thread.spawn(move || worker.run(std::future::pending())).map_err(ServeError::System)?);
        }
        let worker = self.worker(stopping).map_err(ServeError::System)?;
        // A thread that still listened would let connections wait for nobody.
        drop(self);
        let result = worker.run(async {
            until.await;
            let _ = stop.send(true);
        });
        // Done also when this thread failed: the others must not outlive it.
        let _ = stop.send(true);
        for other in others {
            let joined = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            joined.map_err(ServeError::System)?;
        }
        result.map_err(ServeError::System)
    }

    fn worker(&self, stopping: watch::Receiver<bool>) -> io::Result<Worker> {
        let mut http = http1::Builder::new();
        http.max_buf_size(HEAD_BYTES_MAX).max_header_size(HEAD_BYTES_MAX);
        let shared = Shared { site: self.site.clone(), http, idle_s: self.config.idle_s.max(1), stopping };
        let stopping_max = self.config.stopping_max;
        Ok(Worker { shared, listener: self.listener.try_clone()?, stopping_max })
    }
}

/// As many connections as were asked for, or as the system's limit on open files leaves room for.
pub(crate) fn possible(connections_max: usize) -> usize {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return connections_max.max(1) };
    let room = (limit as usize).saturating_sub(FILES_BESIDES).max(limit as usize / 2);
    if room < connections_max {
        tracing::warn!(
            limit,
            "at most {room} connections, not {connections_max}: the limit on open files is too low"
        );
    }
    connections_max.clamp(1, room.max(1))
}

/// One thread, with its listener.
struct Worker {
    listener: TcpListener,
    shared: Shared,
    stopping_max: Duration,
}

/// What all connections share.
struct Shared {
    site: Arc<ServeState>,
    http: http1::Builder,
    idle_s: u64,
    stopping: watch::Receiver<bool>,
}

impl Worker {
    /// Lets connections in until `until` is done or the server stops; then waits for those that are there.
    fn run(self, until: impl Future<Output = ()>) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(DISK_THREADS_MAX)
            .build()?;
        runtime.block_on(async {
            let Worker { shared, listener, stopping_max } = self;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let mut stopping = shared.stopping.clone();
            let connections = shared.site.connections.clone();
            let (alive, mut ended) = tokio::sync::mpsc::channel::<()>(1);
            let accept = async {
                loop {
                    // A client who comes when all permits are taken waits in the system's queue.
                    let Ok(place) = connections.clone().acquire_owned().await else { return };
                    match listener.accept().await {
                        Ok((stream, peer)) => {
                            tokio::spawn(shared.connection(stream, peer, place, alive.clone()));
                        }
                        Err(error) => {
                            tracing::warn!(%error, "a connection was not let in");
                            tokio::time::sleep(SHORTAGE).await;
                        }
                    }
                }
            };
            tokio::select! {
                () = accept => {}
                () = until => {}
                _ = stopping.wait_for(|stop| *stop) => {}
            }
            drop(listener);
            drop(alive);
            let _ = tokio::time::timeout(stopping_max, ended.recv()).await;
            Ok(())
        })
    }
}

impl Shared {
    /// Serves one connection.
    fn connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        place: OwnedSemaphorePermit,
        alive: tokio::sync::mpsc::Sender<()>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let activity = Arc::new(Activity::default());
        let answerer = RequestHandler::new(self.site.clone(), peer, activity.clone());
        let connection = self.http.serve_connection(Stream::new(stream, activity.clone()), answerer);
        let mut stopping = self.stopping.clone();
        let idle_s = self.idle_s;
        async move {
            let mut connection = pin!(connection);
            let mut look = pin!(tokio::time::sleep(Duration::from_secs(idle_s)));
            let mut stop = pin!(stopping.wait_for(|stop| *stop));
            let mut is_told = false;
            let mut watch = Watch::default();
            poll_fn(|cx| {
                if let Poll::Ready(result) = connection.as_mut().poll(cx) {
                    if let Err(error) = result {
                        tracing::debug!(%peer, %error, "a connection ended");
                    }
                    return Poll::Ready(());
                }
                if !is_told && stop.as_mut().poll(cx).is_ready() {
                    is_told = true;
                    connection.as_mut().graceful_shutdown();
                    cx.waker().wake_by_ref();
                }
                while look.as_mut().poll(cx).is_ready() {
                    if !watch.still_active(&activity, idle_s) {
                        tracing::debug!(%peer, "an idle connection is closed");
                        return Poll::Ready(());
                    }
                    look.as_mut().reset(tokio::time::Instant::now() + Duration::from_secs(idle_s));
                }
                Poll::Pending
            })
            .await;
            drop((place, alive));
        }
    }
}
