//! Links to test with: two network namespaces of this machine, a client's and a server's, with nothing between
//! them but a forwarder of ours that gives packets the rate, delay and losses asked for.
//!
//! Needs root, `ip` and `/dev/net/tun`, and nothing of the kernel's traffic control. What a link makes it removes
//! when dropped; what a killed process left is removed by the next link that is made ([`Link::make`]).
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
    /// Where clients run.
    Client,
    /// Where servers run.
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
    /// Makes a link: `up` holds from client to server, `down` from server to client.
    ///
    /// # Errors
    /// What `ip` said, with the command; not root, or no `/dev/net/tun`.
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

    /// Moves the calling thread to one side for good: sockets it opens, and threads it starts, are there.
    ///
    /// # Errors
    /// The system's.
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

    /// Gives the client another address, as changing from one network to another does. The old one is gone.
    ///
    /// # Errors
    /// What `ip` said.
    pub fn move_client(&self) -> io::Result<()> {
        self.client.change_address(CLIENT, CLIENT_MOVED)
    }

    /// What passed so far, up and down.
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
