//! `holdfast release serve`: a small, fast web server for the files of one release (the paper's `sfsrosd`).
//!
//! The server holds no secret and does not interpret what it serves; clients check every byte. It guarantees
//! that it serves nothing of the machine but the release, and that no client can exceed its bounds on
//! connections, memory for each of them, and time for idle or slow ones.
//!
//! - `GET` and `HEAD` of the names of [`crate::layout`], whole or a range; `root` is the paper's `getfsinfo`.
//! - `GET` and `HEAD` of `object/ADDRESS`: a stored block, found through the index; the paper's `getdata`.
//! - `POST` of `objects`: at most 64 addresses of 32 bytes; the answer is frames as in a [`crate::pack`], of
//!   as many of these blocks as fit, at least one. Blocks of this release that are at its origin are fetched
//!   from there, if the server was given a key for it ([`crate::origin`]). Other blocks are never fetched.
//! - `POST` of `paths`: at most 256 paths and 16 KiB, separated by NUL; the answer is frames as in a
//!   [`crate::pack`], of blocks that looking them up needs, as far as the release's [`crate::hints`] say.

pub(crate) mod answer;
mod files;
mod frames;
mod names;
mod objects;
mod part;
pub(crate) mod range;

use crate::origin::Origin;
use answer::{RequestHandler, ServeState};
use files::{Files, ReadError, Wait};
use holdfast_http_server::{HttpServer, Limits};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Most requests to the origin at once: fewer than there are threads that wait for the disk.
const ORIGIN_REQUESTS_MAX: usize = 8;

/// The directory and limits of a server.
#[derive(Clone)]
pub struct ServeConfig {
    /// The directory of the release.
    pub directory: PathBuf,
    /// The address where to listen.
    pub listen: SocketAddr,
    /// The bounds of the web server.
    pub limits: Limits,
    /// Bytes of memory for small files and for blocks, half for each.
    pub cache_bytes_max: u64,
    /// The origin of the release, for blocks that are in no pack.
    pub origin: Option<Arc<Origin>>,
}

impl ServeConfig {
    /// A configuration with the limits of a large server and 64 MiB of cache.
    pub fn new(directory: PathBuf, listen: SocketAddr) -> ServeConfig {
        ServeConfig { directory, listen, limits: Limits::LARGE, cache_bytes_max: 64 << 20, origin: None }
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
    /// The directory has no `root`.
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

/// A server that is listening, but not serving yet.
pub struct Server {
    site: Arc<ServeState>,
    server: HttpServer,
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
        let server = HttpServer::open(address, config.limits)
            .map_err(|error| ServeError::Listen { address, error })?;
        let site = Arc::new(ServeState {
            files,
            objects: objects::Objects::new(memory),
            origin: config.origin,
            origin_places: Semaphore::new(ORIGIN_REQUESTS_MAX),
        });
        Ok(Server { site, server })
    }

    /// The address where it listens.
    pub fn local_address(&self) -> SocketAddr {
        self.server.local_address()
    }

    /// Serves until `until` completes, and then a little longer, so that answers under way can be finished.
    ///
    /// # Errors
    /// [`ServeError::System`].
    pub fn run(self, until: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Server { site, server } = self;
        let handler = move |peer| RequestHandler::new(site.clone(), peer);
        server.run(handler, until).map_err(ServeError::System)
    }
}
