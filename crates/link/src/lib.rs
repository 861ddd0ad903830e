//! Links for tests: two network namespaces of this machine, for a client and a server, connected only by a
//! forwarder that gives packets the requested rate, delay and losses.
//!
//! Needs root, `ip` and `/dev/net/tun`, and nothing of the kernel's traffic control. Dropping a link removes
//! what it made; what a killed process left is removed when the next link is made ([`Link::make`]).
#![forbid(unsafe_code)]

mod forwarder;
mod namespace;
mod queue;

use forwarder::Forwarder;
use namespace::Namespace;
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

pub use queue::{Conditions, Counts};

/// One end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The side of clients.
    Client,
    /// The side of servers.
    Server,
}

/// The server's address on every link.
pub const SERVER: &str = "10.77.0.1";
/// The client's address when a link is made.
pub const CLIENT: &str = "10.77.0.2";
/// The client's address after [`Link::move_client`].
pub const CLIENT_MOVED: &str = "10.77.0.3";

/// A live link; gone when dropped, with whatever still runs in its namespaces.
#[derive(Debug)]
pub struct Link {
    client: Namespace,
    server: Namespace,
    forwarder: Forwarder,
}

impl Link {
    /// Makes a link: `up` are the conditions from client to server, `down` from server to client.
    ///
    /// # Errors
    /// The output of `ip`, with the command; not root, or no `/dev/net/tun`.
    pub fn make(up: Conditions, down: Conditions) -> io::Result<Link> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        namespace::sweep()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let client = Namespace::make(number, "c")?;
        let server = Namespace::make(number, "s")?;
        let forwarder = Forwarder::start([client.device(), server.device()], [up, down])?;
        client.take_device(CLIENT)?;
        server.take_device(SERVER)?;
        Ok(Link { client, server, forwarder })
    }

    /// A command that will run on one side of the link.
    pub fn command(&self, side: Side, program: &str) -> Command {
        self.namespace(side).command(program)
    }

    /// Moves the calling thread to one side permanently: sockets that it opens and threads that it starts are
    /// there.
    ///
    /// # Errors
    /// The system's error.
    pub fn enter(&self, side: Side) -> io::Result<()> {
        self.namespace(side).enter()
    }

    /// Puts the link under other conditions from now on; packets under way arrive as they would have.
    pub fn change(&self, up: Conditions, down: Conditions) {
        self.forwarder.change([up, down]);
    }

    /// Cuts the link (`true`) or mends it: while it is cut, all packets are lost.
    pub fn cut(&self, is_cut: bool) {
        self.forwarder.cut(is_cut);
    }

    /// Gives the client another address, as when it changes networks. The old address is removed.
    ///
    /// # Errors
    /// The output of `ip`.
    pub fn move_client(&self) -> io::Result<()> {
        self.client.change_address(CLIENT, CLIENT_MOVED)
    }

    /// Packets and bytes so far, up and down.
    pub fn counts(&self) -> (Counts, Counts) {
        let [up, down] = self.forwarder.counts();
        (up, down)
    }

    fn namespace(&self, side: Side) -> &Namespace {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }
}
