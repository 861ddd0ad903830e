//! `holdfast release gateway`: a release, or a directory, as pages for people who have only a browser.
//!
//! Pages hold no program and need none. What is shown of a release is verified here; whoever looks at it trusts this gateway
//! and the way to it, and can have the verifier from it (`/verify/`) to check a release in the browser itself.
//!
//! Attacks answered: files that are pages with programs (a file is never shown as a page: images and text only, and
//! everything with a policy that forbids all); names that are markup or hide others; links that lead out of a directory;
//! pages of other sites that let a name of theirs lead here to read what is shown (names are checked); and those who would
//! make it spend more connections, time or memory than its bounds.
//!
//! - `/at/PATH`: a directory (`?after=NAME`, `?find=TEXT`) or a file, as a page; `/changes`.
//! - `/raw/PATH`: the bytes of a file, whole or a range; `?download=1` to save them.
//! - `/verify/`: the verifier.

mod address;
mod answer;
mod body;
mod folder_view;
mod page;
mod release_view;
mod search;
mod view;

use crate::open::Release;
use crate::serve::connection::{Activity, Stream, Watch};
use crate::serve::{HEAD_BYTES_MAX, SHORTAGE, STOPPING_MAX, possible};
use answer::{GatewayState, PageRequest};
use body::ReplyBody;
use folder_view::FolderView;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper::{Request, Response};
use release_view::ReleaseView;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use view::View;

/// Threads that make pages and read files.
const WORKERS_MAX: usize = 16;

/// What the gateway shows.
pub enum GatewaySource {
    /// A release; mirrors are asked for a newer one every so often.
    Release(Box<Release>, Duration),
    /// A directory.
    Directory(PathBuf),
}

/// The address and limits of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// The address where to listen.
    pub listen: SocketAddr,
    /// Names by which it may be asked for, besides addresses and `localhost`.
    pub hosts: Vec<String>,
    /// How many connections there may be at once. Others wait.
    pub connections_max: usize,
    /// Seconds after which a connection is closed that asks for nothing or takes nothing (at most twice as many).
    pub idle_s: u64,
}

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The directory cannot be opened.
    #[error("{directory}: {error}", directory = .directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// What the system reports.
        error: io::Error,
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

/// A gateway that listens already.
pub struct Gateway {
    site: Arc<GatewayState>,
    listener: TcpListener,
    local_address: SocketAddr,
    config: GatewayConfig,
}

impl Gateway {
    /// Opens what is to be shown, and listens.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub fn open(source: GatewaySource, config: GatewayConfig) -> Result<Gateway, GatewayError> {
        let address = config.listen;
        let cannot_listen = |error| GatewayError::Listen { address, error };
        let listener = TcpListener::bind(address).map_err(cannot_listen)?;
        listener.set_nonblocking(true).map_err(cannot_listen)?;
        let local_address = listener.local_addr().map_err(cannot_listen)?;
        let view: Arc<dyn View> = match source {
            GatewaySource::Directory(directory) => Arc::new(folder(&directory)?),
            GatewaySource::Release(release, refresh) => {
                watched(*release, refresh).map_err(GatewayError::System)?
            }
        };
        let site = Arc::new(GatewayState { view, hosts: config.hosts.clone() });
        Ok(Gateway { site, listener, local_address, config })
    }

    /// The address where it listens.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Serves until `until` is done, and then a little longer, so that answers under way arrive.
    ///
    /// # Errors
    /// [`GatewayError::System`].
    pub fn run(self, until: impl Future<Output = ()>) -> Result<(), GatewayError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(WORKERS_MAX)
            .build()
            .map_err(GatewayError::System)?;
        let result = runtime.block_on(self.serve(until)).map_err(GatewayError::System);
        // A file system that hangs must not keep it from ending.
        runtime.shutdown_background();
        result
    }

    async fn serve(self, until: impl Future<Output = ()>) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let places = Arc::new(Semaphore::new(possible(self.config.connections_max)));
        let (stop, stopping) = watch::channel(false);
        let (alive, mut ended) = tokio::sync::mpsc::channel::<()>(1);
        let idle_s = self.config.idle_s.max(1);
        let accept = async {
            loop {
                let Ok(place) = places.clone().acquire_owned().await else { return };
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let held = (place, alive.clone());
                        tokio::spawn(connection(self.site.clone(), stream, idle_s, stopping.clone(), held));
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
        }
        drop(listener);
        drop(alive);
        let _ = stop.send(true);
        let _ = tokio::time::timeout(STOPPING_MAX, ended.recv()).await;
        Ok(())
    }
}

fn folder(directory: &Path) -> Result<FolderView, GatewayError> {
    FolderView::open(directory)
        .map_err(|error| GatewayError::Directory { directory: directory.to_owned(), error })
}

/// A release whose mirrors are asked again every so often, for as long as somebody shows it.
fn watched(release: Release, refresh: Duration) -> io::Result<Arc<ReleaseView>> {
    let view = Arc::new(ReleaseView::new(release));
    let watched = Arc::downgrade(&view);
    std::thread::Builder::new().name("refresh".to_owned()).spawn(move || {
        loop {
            std::thread::sleep(refresh);
            match watched.upgrade() {
                Some(view) => view.refresh(),
                None => return,
            }
        }
    })?;
    Ok(view)
}

/// Serves one connection.
async fn connection(
    site: Arc<GatewayState>,
    stream: TcpStream,
    idle_s: u64,
    mut stopping: watch::Receiver<bool>,
    _held: (OwnedSemaphorePermit, tokio::sync::mpsc::Sender<()>),
) {
    let activity = Arc::new(Activity::default());
    let mut http = http1::Builder::new();
    http.max_buf_size(HEAD_BYTES_MAX).max_header_size(HEAD_BYTES_MAX);
    let service = Answerer { site, activity: activity.clone() };
    let mut connection = pin!(http.serve_connection(Stream::new(stream, activity.clone()), service));
    let mut look = tokio::time::interval(Duration::from_secs(idle_s));
    look.tick().await;
    let mut watch = Watch::default();
    let mut is_told = false;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    tracing::debug!(%error, "a connection ended");
                }
                return;
            }
            _ = look.tick() => {
                if !watch.still_active(&activity, idle_s) {
                    return;
                }
            }
            _ = stopping.wait_for(|stop| *stop), if !is_told => {
                is_told = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Answers the requests of one connection.
struct Answerer {
    site: Arc<GatewayState>,
    activity: Arc<Activity>,
}

impl Service<Request<Incoming>> for Answerer {
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ReplyBody>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.activity.request();
        let (site, page_request) = (self.site.clone(), PageRequest::new(&request));
        Box::pin(async move {
            let answer = tokio::task::spawn_blocking(move || site.answer(&page_request)).await;
            // It panicked, or the gateway ends.
            Ok(answer.unwrap_or_else(|error| {
                tracing::error!(%error, "no answer was made");
                let mut answer = Response::new(ReplyBody::bytes("This cannot be shown.\n"));
                *answer.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
                answer
            }))
        })
    }
}
