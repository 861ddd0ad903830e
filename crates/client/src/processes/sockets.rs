//! Makes sockets in the main process for the other two processes, which may not: to the servers that the main
//! process named, and to the SSH agent. A request has a position in the main process's own list, never an
//! address.

use super::agent::connect_to_agent;
use super::messages::{AGENT, SOCKETS, SocketReply, SocketRequest};
use holdfast_components::{Ports, Refusal, Reply, Request};
use holdfast_rpc::{OwnSockets, ServerAddress, Sockets, Transport, prepare};
use parking_lot::Mutex;
use std::io;
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long connecting may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Number of connections made at the same time.
const THREADS: usize = 4;
/// Most servers of one key; commands use one or two.
const SERVERS_MAX: usize = 64;

/// The servers that may be connected to.
#[derive(Default)]
pub(super) struct Servers {
    known: Vec<ServerAddress>,
    /// Whether QUIC may be used.
    datagrams: bool,
}

impl Servers {
    pub(super) fn register(&mut self, address: &ServerAddress, transport: Transport) -> u16 {
        self.datagrams |= transport != Transport::Tcp;
        let place = self.known.iter().position(|known| known == address).unwrap_or_else(|| {
            if self.known.len() < SERVERS_MAX {
                self.known.push(address.clone());
            }
            self.known.len() - 1
        });
        place as u16
    }
}

/// Answers requests for sockets until the supervisor ends.
pub(super) fn serve(
    ports: Arc<Ports>,
    servers: Arc<Mutex<Servers>>,
    agent: Option<PathBuf>,
) -> io::Result<()> {
    let answer = move |request: Request| match request.port {
        AGENT => to_agent(agent.as_deref()),
        SOCKETS => match request.question::<SocketRequest>() {
            Ok(wanted) => socket(&servers, &wanted),
            Err(refusal) => Reply::refuse(refusal),
        },
        _ => Reply::refuse(Refusal::NotPermitted),
    };
    std::thread::Builder::new()
        .name("holdfast-sockets".to_owned())
        .spawn(move || ports.serve_with_threads(THREADS, answer))
        .map(drop)
}

fn to_agent(agent: Option<&std::path::Path>) -> Reply {
    let connected = match agent {
        Some(socket) => connect_to_agent(socket).map_err(|error| error.to_string()),
        None => Err("no agent keeps this key".to_owned()),
    };
    match connected {
        Ok(connection) => {
            Reply { files: vec![OwnedFd::from(connection)], ..Reply::of(&Ok::<(), String>(())) }
        }
        Err(why) => Reply::of(&Err::<(), String>(why)),
    }
}

fn socket(servers: &Mutex<Servers>, wanted: &SocketRequest) -> Reply {
    let server =
        |place: &u16| servers.lock().known.get(usize::from(*place)).cloned().ok_or(io::ErrorKind::NotFound);
    let made = match wanted {
        SocketRequest::Tcp(place) => server(place).map_err(Into::into).and_then(|server| connect(&server)),
        SocketRequest::Udp if !servers.lock().datagrams => Err(io::ErrorKind::PermissionDenied.into()),
        SocketRequest::Udp => {
            OwnSockets.udp().map(|socket| (SocketReply::Socket { bbr: true }, Some(socket.into())))
        }
        SocketRequest::Addresses(place) => {
            let resolved = server(place).map_err(io::Error::from).and_then(|server| resolve(&server));
            resolved.map(|found| (SocketReply::Addresses(found), None))
        }
    };
    match made {
        Ok((given, file)) => Reply { files: file.into_iter().collect(), ..Reply::of(&given) },
        Err(error) => Reply::of(&SocketReply::None(error.to_string())),
    }
}

fn resolve(server: &ServerAddress) -> io::Result<Vec<(Vec<u8>, u16)>> {
    let found = (server.host.as_str(), server.port).to_socket_addrs()?;
    let bytes = |ip| match ip {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    };
    Ok(found.take(16).map(|address| (bytes(address.ip()), address.port())).collect())
}

fn connect(server: &ServerAddress) -> io::Result<(SocketReply, Option<OwnedFd>)> {
    let end = Instant::now() + CONNECT_PATIENCE;
    let mut why = io::Error::other("its name has no address");
    for address in (server.host.as_str(), server.port).to_socket_addrs()? {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nonblocking(true)?;
                let bbr = prepare(&stream);
                return Ok((SocketReply::Socket { bbr }, Some(stream.into())));
            }
            Err(error) => why = error,
        }
    }
    Err(why)
}
