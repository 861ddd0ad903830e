//! The server: accepts clients, and disconnects them all at the end.

use crate::socket::{Listener, Socket};
use crate::{Address, connection};
use holdfast_volume::Disk;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A disk that is exported. Clients request it by its name, or without a name.
#[derive(Clone)]
pub struct Export {
    /// The name of the export.
    pub name: String,
    /// The description that clients show to people.
    pub description: String,
    /// The disk that is exported.
    pub disk: Arc<dyn Disk>,
    /// Whether clients may not write.
    pub is_read_only: bool,
}

impl Export {
    pub(crate) fn is_called(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }
}

/// Limits on what clients may use.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most connections at the same time; further clients are disconnected.
    pub connections_max: usize,
    /// Most requests of a connection that wait for a worker; then no more are read.
    pub requests_max: usize,
    /// Number of worker threads for each connection; each uses at most 2 MiB.
    pub workers: usize,
    /// How long the handshake may take.
    pub handshake: Duration,
    /// How long a client may stop in the middle of a request or a reply.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 16,
            requests_max: 64,
            workers: 4,
            handshake: Duration::from_secs(10),
            patience: Duration::from_secs(60),
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The server cannot listen on the address.
    #[error("listening on {address}: {error}")]
    Listen {
        /// The address.
        address: Address,
        /// What the system reported.
        error: io::Error,
    },
    /// Other machines could connect, and NBD has no passwords.
    #[error(
        "{0} can be reached from other machines, and NBD has no passwords: listen on 127.0.0.1 or unix:PATH, and let others in through a tunnel (ssh -L)"
    )]
    NotLocal(Address),
}

struct Inner {
    export: Export,
    limits: Limits,
    clients: Mutex<Clients>,
    /// Signals that a client has left.
    left: Condvar,
    is_stopping: AtomicBool,
}

#[derive(Default)]
struct Clients {
    next: u64,
    connected: HashMap<u64, Socket>,
}

/// A running server. It stops when it is dropped.
pub struct Server {
    inner: Arc<Inner>,
    listener: Arc<Listener>,
    address: Address,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Begins to listen.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(address: &Address, export: Export, limits: Limits) -> Result<Server, StartError> {
        if !address.is_local() {
            return Err(StartError::NotLocal(address.clone()));
        }
        let failed = |error| StartError::Listen { address: address.clone(), error };
        let listener = Arc::new(Listener::bind(address).map_err(failed)?);
        let known = listener.address(address).map_err(failed)?;
        let inner = Arc::new(Inner {
            export,
            limits,
            clients: Mutex::default(),
            left: Condvar::new(),
            is_stopping: AtomicBool::new(false),
        });
        let accept = {
            let (inner, listener) = (Arc::clone(&inner), Arc::clone(&listener));
            move || accept(&inner, &listener)
        };
        let accepting = thread::Builder::new().name("holdfast-nbd".into()).spawn(accept).map_err(failed)?;
        Ok(Server { inner, listener, address: known, accepting: Some(accepting) })
    }

    /// The address where it listens, with the port that the system chose if port 0 was requested.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The number of connected clients.
    pub fn connections(&self) -> usize {
        self.inner.clients.lock().connected.len()
    }
}

impl Drop for Server {
    /// Disconnects all clients. Requests that are being carried out are finished first; afterwards nothing
    /// uses the disk.
    fn drop(&mut self) {
        self.inner.is_stopping.store(true, Relaxed);
        self.listener.shut_down();
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
        let mut clients = self.inner.clients.lock();
        for socket in clients.connected.values() {
            socket.shut_down();
        }
        while !clients.connected.is_empty() {
            self.inner.left.wait(&mut clients);
        }
    }
}

fn accept(inner: &Arc<Inner>, listener: &Listener) {
    while !inner.is_stopping.load(Relaxed) {
        match listener.accept() {
            Ok(socket) => {
                if let Err(error) = admit(inner, socket) {
                    tracing::warn!(%error, "a client was turned away");
                }
            }
            Err(_) if inner.is_stopping.load(Relaxed) => return,
            Err(error) => {
                // For example, there are no more file descriptors.
                tracing::warn!(%error, "no client can be let in");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn admit(inner: &Arc<Inner>, socket: Socket) -> io::Result<()> {
    let ours = socket.try_clone()?;
    let number = {
        let mut clients = inner.clients.lock();
        if clients.connected.len() >= inner.limits.connections_max {
            return Err(io::Error::other("there are too many clients"));
        }
        let number = clients.next;
        clients.next += 1;
        clients.connected.insert(number, ours);
        number
    };
    let guest = ConnectedClient { inner: Arc::clone(inner), number, socket };
    let serve = move || {
        let Inner { export, limits, .. } = &*guest.inner;
        if let Err(error) = connection::serve(&guest.socket, export, limits) {
            tracing::warn!(%error, export = export.name, "a client was hung up on");
        }
    };
    thread::Builder::new().name("holdfast-nbd".into()).spawn(serve)?;
    Ok(())
}

/// A client on its thread. However that ends, the client is removed from the list.
struct ConnectedClient {
    inner: Arc<Inner>,
    number: u64,
    socket: Socket,
}

impl Drop for ConnectedClient {
    fn drop(&mut self) {
        self.socket.shut_down();
        self.inner.clients.lock().connected.remove(&self.number);
        self.inner.left.notify_all();
    }
}
