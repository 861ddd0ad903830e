//! `holdfast release gateway`: serves a release, or a directory, as web pages for people who have only a
//! browser.
//!
//! Pages need no programs and contain none. What a page displays of a release was verified here, so its
//! readers trust this gateway and the connection to it. They can also load the verifier from it (`/verify/`),
//! which checks a release in the browser itself.
//!
//! Attacks answered: files that are pages with programs (a file is never displayed as a page: only images and
//! text are, and everything has a policy that forbids all else); names that are markup or hide others; links
//! that lead out of a directory; foreign sites that point a name of their own here to read what the gateway
//! serves (host names are checked); clients that would make it exceed its bounds on connections, time or
//! memory.
//!
//! - `/at/PATH`: a directory (`?after=NAME`, `?find=TEXT`) or a file, as a page; `/changes`.
//! - `/raw/PATH`: the bytes of a file, whole or a range; `?download=1` to save them.
//! - `/verify/`: the verifier.

mod address;
mod answer;
mod folder_view;
mod page;
mod release_view;
mod search;
mod view;

use crate::open::Release;
use answer::{GatewayState, PageRequest};
use folder_view::FolderView;
use holdfast_http_server::{HttpServer, Limits, ReplyBody};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper::{Request, Response};
use release_view::ReleaseView;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use view::View;

/// The content that a gateway serves.
pub enum GatewaySource {
    /// A release; its mirrors are asked for a newer record at this interval.
    Release(Box<Release>, Duration),
    /// A directory.
    Directory(PathBuf),
}

/// The address and limits of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// The address where to listen.
    pub listen: SocketAddr,
    /// Names by which browsers may address it, besides IP addresses and `localhost`.
    pub hosts: Vec<String>,
    /// The bounds of the web server.
    pub limits: Limits,
}

/// Why a gateway cannot be started.
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

/// A gateway that is listening, but not serving yet.
pub struct Gateway {
    site: Arc<GatewayState>,
    server: HttpServer,
}

impl Gateway {
    /// Opens the source, and listens.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub fn open(source: GatewaySource, config: GatewayConfig) -> Result<Gateway, GatewayError> {
        let address = config.listen;
        let server = HttpServer::open(address, config.limits)
            .map_err(|error| GatewayError::Listen { address, error })?;
        let view: Arc<dyn View> = match source {
            GatewaySource::Directory(directory) => Arc::new(folder(&directory)?),
            GatewaySource::Release(release, refresh) => {
                watched(*release, refresh).map_err(GatewayError::System)?
            }
        };
        let site = Arc::new(GatewayState { view, hosts: config.hosts });
        Ok(Gateway { site, server })
    }

    /// The address where it listens.
    pub fn local_address(&self) -> SocketAddr {
        self.server.local_address()
    }

    /// Serves until `until` completes, and then a little longer, so that answers under way can be finished.
    ///
    /// # Errors
    /// [`GatewayError::System`].
    pub fn run(self, until: impl Future<Output = ()>) -> Result<(), GatewayError> {
        let Gateway { site, server } = self;
        server.run(move |_peer| Answerer { site: site.clone() }, until).map_err(GatewayError::System)
    }
}

fn folder(directory: &Path) -> Result<FolderView, GatewayError> {
    FolderView::open(directory)
        .map_err(|error| GatewayError::Directory { directory: directory.to_owned(), error })
}

/// A release whose mirrors are asked again at this interval, for as long as the view is in use.
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

/// Answers the requests of one connection.
struct Answerer {
    site: Arc<GatewayState>,
}

impl Service<Request<Incoming>> for Answerer {
    type Response = Response<ReplyBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ReplyBody>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (site, page_request) = (self.site.clone(), PageRequest::new(&request));
        Box::pin(async move {
            let answer = tokio::task::spawn_blocking(move || site.answer(&page_request)).await;
            // The thread panicked, or the gateway is ending.
            Ok(answer.unwrap_or_else(|error| {
                tracing::error!(%error, "no answer was made");
                let mut answer = Response::new(ReplyBody::bytes("This cannot be shown.\n"));
                *answer.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
                answer
            }))
        })
    }
}
