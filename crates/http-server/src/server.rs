//! Listening, and the life of connections.

use crate::body::ReplyBody;
use crate::connection::{Activity, Stream, Watch};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use rustix::process::{Resource, getrlimit};
use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// How many connections the system keeps waiting until they are accepted. The usual queue is short, and a
/// client that does not fit in it tries again only a second later.
const BACKLOG: i32 = 4096;
/// How many files a server may have open besides connections.
const FILES_BESIDES: usize = 1024;
/// How long no connection is accepted when the system has no more files or memory.
const SHORTAGE: Duration = Duration::from_millis(100);

/// The bounds of a server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most connections at the same time; others wait in the system's queue.
    pub connections_max: usize,
    /// Longest head of a request, in bytes. It also bounds how much of a reply waits in memory for a slow
    /// reader, apart from one piece.
    pub head_bytes_max: usize,
    /// After so many seconds (at most twice as many) a connection is closed that requests nothing or reads
    /// nothing.
    pub idle_s: u64,
    /// How long running replies may take when the server is stopped.
    pub stopping_max: Duration,
    /// Threads that serve connections.
    pub threads: usize,
    /// Most threads, for each of these, that may wait for a disk or compute.
    pub blocking_threads_max: usize,
}

impl Limits {
    /// For many readers of large files: 4,096 connections, heads of 16 KiB, 20 seconds idle, 10 seconds to
    /// stop, one thread with 16 that may block.
    pub const LARGE: Limits = Limits {
        connections_max: 4096,
        head_bytes_max: 16 << 10,
        idle_s: 20,
        stopping_max: Duration::from_secs(10),
        threads: 1,
        blocking_threads_max: 16,
    };

    /// For short replies to a few clients: 256 connections, heads of 8 KiB, 60 seconds idle.
    pub const SMALL: Limits = Limits {
        connections_max: 256,
        head_bytes_max: 8 << 10,
        idle_s: 60,
        blocking_threads_max: 8,
        ..Limits::LARGE
    };
}

/// A server that is listening.
pub struct HttpServer {
    listener: TcpListener,
    local_address: SocketAddr,
    limits: Limits,
}

impl HttpServer {
    /// Listens.
    ///
    /// # Errors
    /// The system's error: the address is in use, or does not belong to this machine.
    pub fn open(address: SocketAddr, mut limits: Limits) -> io::Result<HttpServer> {
        let listener = TcpListener::bind(address)?;
        rustix::net::listen(&listener, BACKLOG)?;
        // Connections inherit this option: the last piece of a reply must not wait for an acknowledgement.
        rustix::net::sockopt::set_tcp_nodelay(&listener, true)?;
        listener.set_nonblocking(true)?;
        let local_address = listener.local_addr()?;
        limits.connections_max = possible(limits.connections_max);
        limits.idle_s = limits.idle_s.max(1);
        Ok(HttpServer { listener, local_address, limits })
    }

    /// The address where the server listens.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Serves until `until` completes, and then a little longer, so that running replies arrive. `handler` is
    /// called with the address of each peer, and makes the service that answers the requests of its
    /// connection.
    ///
    /// # Errors
    /// The system refuses threads or sockets.
    pub fn run<H, S>(self, handler: H, until: impl Future<Output = ()>) -> io::Result<()>
    where
        H: Fn(SocketAddr) -> S + Clone + Send + 'static,
        S: Service<Request<Incoming>, Response = Response<ReplyBody>, Error = Infallible> + Send + 'static,
        S::Future: Send + Unpin,
    {
        let (stop, stopping) = watch::channel(false);
        let places = Arc::new(Semaphore::new(self.limits.connections_max));
        let worker = || -> io::Result<(Worker<H>, TcpListener)> {
            let mut http = http1::Builder::new();
            http.max_buf_size(self.limits.head_bytes_max).max_header_size(self.limits.head_bytes_max);
            let (limits, handler) = (self.limits.clone(), handler.clone());
            let worker = Worker { handler, http, limits, places: places.clone(), stopping: stopping.clone() };
            Ok((worker, self.listener.try_clone()?))
        };
        let mut others = Vec::new();
        for number in 1..self.limits.threads {
            let (worker, listener) = worker()?;
            let thread = std::thread::Builder::new().name(format!("serve-{number}"));
            others.push(thread.spawn(move || worker.run(listener, pending()))?);
        }
        let (worker, listener) = worker()?;
        // If a thread still listened, connections would wait for nothing.
        drop(self);
        let result = worker.run(listener, async {
            until.await;
            let _ = stop.send(true);
        });
        // This is also signalled if this thread failed: the others must not outlive it.
        let _ = stop.send(true);
        for other in others {
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        result
    }
}

/// The configured number of connections, or as many as the system's limit on open files has room for.
fn possible(connections_max: usize) -> usize {
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

/// The parts that one thread needs to serve connections.
struct Worker<H> {
    handler: H,
    http: http1::Builder,
    limits: Limits,
    /// One permit for each connection that may still be accepted, shared by all threads.
    places: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
}

impl<H, S> Worker<H>
where
    H: Fn(SocketAddr) -> S,
    S: Service<Request<Incoming>, Response = Response<ReplyBody>, Error = Infallible> + Send + 'static,
    S::Future: Send + Unpin,
{
    /// Accepts connections until `until` completes or the server stops; then waits for the open ones.
    fn run(self, listener: TcpListener, until: impl Future<Output = ()>) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(self.limits.blocking_threads_max)
            .build()?;
        let result = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let (alive, mut ended) = mpsc::channel::<()>(1);
            let mut stopping = self.stopping.clone();
            tokio::select! {
                () = self.accept(&listener, &alive) => {}
                () = until => {}
                _ = stopping.wait_for(|stop| *stop) => {}
            }
            drop((listener, alive));
            let _ = tokio::time::timeout(self.limits.stopping_max, ended.recv()).await;
            Ok(())
        });
        // A file system that hangs must not keep the server from ending.
        runtime.shutdown_background();
        result
    }

    async fn accept(&self, listener: &tokio::net::TcpListener, alive: &mpsc::Sender<()>) {
        loop {
            // If all permits are taken, a client waits in the system's queue.
            let Ok(place) = self.places.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, peer)) => {
                    tokio::spawn(self.connection(stream, peer, place, alive.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection was not let in");
                    tokio::time::sleep(SHORTAGE).await;
                }
            }
        }
    }

    /// Serves one connection.
    fn connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        place: OwnedSemaphorePermit,
        alive: mpsc::Sender<()>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let activity = Arc::new(Activity::default());
        let service = WatchedHandler {
            service: (self.handler)(peer),
            activity: activity.clone(),
            places: self.places.clone(),
            places_scarce: self.limits.connections_max / 4,
        };
        let connection = self.http.serve_connection(Stream::new(stream, activity.clone()), service);
        let mut stopping = self.stopping.clone();
        let idle_s = self.limits.idle_s;
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

/// A handler that counts requests, and whose replies end the connection when connections are scarce.
struct WatchedHandler<S> {
    service: S,
    activity: Arc<Activity>,
    places: Arc<Semaphore>,
    /// With fewer free permits than this, other clients must get a turn.
    places_scarce: usize,
}

impl<S> Service<Request<Incoming>> for WatchedHandler<S>
where
    S: Service<Request<Incoming>, Response = Response<ReplyBody>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = WatchedReply<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.activity.request();
        let is_last = self.places.available_permits() < self.places_scarce;
        WatchedReply { reply: self.service.call(request), is_last }
    }
}

/// A reply that is being made.
struct WatchedReply<F> {
    reply: F,
    is_last: bool,
}

impl<F> Future for WatchedReply<F>
where
    F: Future<Output = Result<Response<ReplyBody>, Infallible>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut reply = ready!(Pin::new(&mut self.reply).poll(cx));
        if let (true, Ok(reply)) = (self.is_last, &mut reply) {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Poll::Ready(reply)
    }
}
