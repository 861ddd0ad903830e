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
    /// The bounds of the web server.
    pub limits: Limits,
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
    server: HttpServer,
}

impl Gateway {
    /// Opens what is to be shown, and listens.
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

    /// Serves until `until` is done, and then a little longer, so that answers under way arrive.
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
