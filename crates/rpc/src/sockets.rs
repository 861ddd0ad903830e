//! Sources of sockets: this process opens them itself, or another process that may open them hands them over.
//!
//! A process that reads what the network sends need not be able to connect to anything: it requests a connection to a
//! server by its index in a list that another process has, and gets a connected socket.

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

    /// A socket for datagrams. Quick.
    ///
    /// # Errors
    /// There is none to be had.
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

/// A netlink socket for reading the counters of connections, to be given to a process that may not make sockets.
pub fn diagnosis_socket() -> Option<OwnedFd> {
    gauge::diagnosis_socket()
}

/// Called in a process that may not make sockets: reads counters over the socket it was given, or not at all.
pub fn use_diagnosis_socket(socket: Option<OwnedFd>) {
    gauge::use_diagnosis_socket(socket);
}
