//! Sources of sockets: this process opens them itself, or another process that may open them passes them on.
//!
//! A process that reads data from the network need not be able to connect to anything: it requests a
//! connection to a server by its index in another process's list, and gets a connected socket.

use crate::address::ServerAddress;
use crate::gauge;
use crate::socket::{bbr_is_missing, note_bbr_is_missing, tune};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use tokio::net::TcpStream;

/// The future of a socket or of addresses.
pub type SocketFuture<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// A source of sockets.
pub trait Sockets: fmt::Debug + Send + Sync {
    /// A connection to a server over TCP, its options set.
    fn tcp<'a>(&'a self, address: &'a ServerAddress) -> SocketFuture<'a, TcpStream>;

    /// The addresses of a server, for datagrams.
    fn resolve<'a>(&'a self, address: &'a ServerAddress) -> SocketFuture<'a, Vec<SocketAddr>>;

    /// A socket for datagrams. Returns quickly.
    ///
    /// # Errors
    /// None is available.
    fn udp(&self) -> io::Result<UdpSocket>;
}

/// Sockets that this process opens itself.
#[derive(Debug)]
pub struct OwnSockets;

impl Sockets for OwnSockets {
    fn tcp<'a>(&'a self, address: &'a ServerAddress) -> SocketFuture<'a, TcpStream> {
        Box::pin(async {
            let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
            tune(&stream);
            Ok(stream)
        })
    }

    fn resolve<'a>(&'a self, address: &'a ServerAddress) -> SocketFuture<'a, Vec<SocketAddr>> {
        Box::pin(async {
            let found = tokio::net::lookup_host((address.host.as_str(), address.port)).await?;
            Ok(found.collect())
        })
    }

    fn udp(&self) -> io::Result<UdpSocket> {
        UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))
    }
}

/// Sets the options of a connection that is passed to a process which may not set them. Returns whether the
/// congestion control that tolerates losses is available.
pub fn prepare(stream: &std::net::TcpStream) -> bool {
    tune(stream);
    !bbr_is_missing()
}

/// Stores, in a process that gets connections, the result of [`prepare`].
pub fn assume_bbr_is_missing() {
    note_bbr_is_missing();
}

/// A netlink socket for reading the counters of connections, for passing to a process that may not make
/// sockets.
pub fn diagnosis_socket() -> Option<OwnedFd> {
    gauge::diagnosis_socket()
}

/// Called in a process that may not make sockets: counters are read over the socket passed to it, or not at
/// all.
pub fn use_diagnosis_socket(socket: Option<OwnedFd>) {
    gauge::use_diagnosis_socket(socket);
}
