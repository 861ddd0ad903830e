//! Where sockets come from: this process opens them itself, or somebody hands them to it who may.
//!
//! A process that reads what the network sends need not be able to connect to anything: it asks for a connection to the
//! server, by its place in a list that others keep, and gets one that is made.

use crate::address::ServerAddress;
use crate::gauge;
use crate::socket::{bbr_is_missing, note_bbr_is_missing, tune};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use tokio::net::TcpStream;

/// What will be there.
pub type Soon<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// A source of sockets.
pub trait Sockets: fmt::Debug + Send + Sync {
    /// A connection to a server over TCP, its options set.
    fn tcp<'a>(&'a self, address: &'a ServerAddress) -> Soon<'a, TcpStream>;

    /// The addresses of a server, for datagrams.
    fn resolve<'a>(&'a self, address: &'a ServerAddress) -> Soon<'a, Vec<SocketAddr>>;

    /// A socket for datagrams. Quick.
    ///
    /// # Errors
    /// There is none to be had.
    fn udp(&self) -> io::Result<UdpSocket>;
}

/// This process's own.
#[derive(Debug)]
pub struct OwnSockets;

impl Sockets for OwnSockets {
    fn tcp<'a>(&'a self, address: &'a ServerAddress) -> Soon<'a, TcpStream> {
        Box::pin(async {
            let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
            tune(&stream);
            Ok(stream)
        })
    }

    fn resolve<'a>(&'a self, address: &'a ServerAddress) -> Soon<'a, Vec<SocketAddr>> {
        Box::pin(async {
            let found = tokio::net::lookup_host((address.host.as_str(), address.port)).await?;
            Ok(found.collect())
        })
    }

    fn udp(&self) -> io::Result<UdpSocket> {
        UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))
    }
}

/// Sets the options of a connection that is to be handed to a process which may not. Whether the congestion control
/// that bears losses could be had.
pub fn prepare(stream: &std::net::TcpStream) -> bool {
    tune(stream);
    !bbr_is_missing()
}

/// In a process that is handed connections: what [`prepare`] found.
pub fn assume_bbr_is_missing() {
    note_bbr_is_missing();
}

/// Something to ask the kernel for the counters of connections with, to be lent to a process that may not make sockets.
pub fn diagnosis() -> Option<OwnedFd> {
    gauge::lendable()
}

/// In a process that may not make sockets: asks over what it was lent, or not at all.
pub fn ask_over(lent: Option<OwnedFd>) {
    gauge::ask_over(lent);
}
