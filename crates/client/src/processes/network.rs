//! The network process: TLS or QUIC, frames, multiplexing and the estimates of links, in a sandbox without
//! keys and files. It cannot connect: the main process makes the sockets, only to servers that it has named
//! itself and to clients that are met ([`super::handshakes`]), and hands them over. It cannot sign: the
//! signer does, and only handshakes.
//!
//! It carries requests and answers as bytes without looking into them, except for a server's refusals. If it
//! is taken over, it can drop, delay and repeat messages, and invent answers like a dishonest server, which
//! the main process checks for; it can act as this device towards servers, without being able to sign an
//! operation; and it can send datagrams if QUIC is allowed.

use super::frames::{self, HEADER_BYTES, Header};
use super::handshakes;
use super::messages::{
    ConnectionStatus, HANDSHAKE, NetworkRequest, OpenRequest, SOCKETS, SocketReply, SocketRequest,
};
use holdfast_components::{Asker, ComponentError, Context, Patience, Refusal, Reply, Request};
use holdfast_crypto::{KeyHolder, PublicKey, SignError, Signature, encode};
use holdfast_protocol::message::Welcome;
use holdfast_rpc::{
    Connection, Connector, Lane, ServerAddress, ServerProof, SocketFuture, Sockets, Transport,
    assume_bbr_is_missing, use_diagnosis_socket,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// Longest wait for a handshake's signature: an agent may ask a person.
const SIGN_PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for a socket.
const SOCKET_PATIENCE: Duration = Duration::from_secs(20);
/// How often a changed connection status is sent to the main process.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// Entry point of the network process, as a component.
pub(super) fn main(context: Context) -> ExitCode {
    let prepared = || -> Result<_, ComponentError> {
        Ok((Arc::new(context.ports.asker(HANDSHAKE)?), Arc::new(context.ports.asker(SOCKETS)?)))
    };
    let outcome = prepared().and_then(|(handshakes, sockets)| {
        context.ports.serve(|request| handle_request(request, &handshakes, &sockets))
    });
    match outcome {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

type Handshakes = Arc<Asker<Vec<u8>, Result<Signature, SignError>>>;
type SocketSource = Arc<Asker<SocketRequest, SocketReply>>;

fn handle_request(request: Request, handshakes: &Handshakes, sockets: &SocketSource) -> Reply {
    let order: NetworkRequest = match request.question() {
        Ok(order) => order,
        Err(refusal) => return Reply::refuse(refusal),
    };
    let mut files = request.files.into_iter();
    let Some(stream) = files.next() else { return Reply::refuse(Refusal::Malformed) };
    match (order, files.next()) {
        (NetworkRequest::Open(order), lent) => open(order, stream, lent, handshakes, sockets),
        (NetworkRequest::Meet(order), Some(socket)) => {
            let key = RemoteKey { public: order.public, handshakes: handshakes.clone() };
            done(handshakes::meet(&order, Arc::new(key), stream, socket))
        }
        (NetworkRequest::HearBeacons { file_system }, Some(socket)) => {
            done(handshakes::hear_beacons(file_system, stream, socket))
        }
        _ => Reply::refuse(Refusal::Malformed),
    }
}

fn done(outcome: io::Result<()>) -> Reply {
    match outcome {
        Ok(()) => Reply::of(&()),
        Err(error) => Reply::refuse(Refusal::Failed(error.to_string())),
    }
}

fn open(
    order: OpenRequest,
    stream: OwnedFd,
    lent: Option<OwnedFd>,
    handshakes: &Handshakes,
    sockets: &SocketSource,
) -> Reply {
    let failed = |why: &dyn fmt::Display| Reply::refuse(Refusal::Failed(why.to_string()));
    static LENT: Once = Once::new();
    LENT.call_once(|| use_diagnosis_socket(lent));
    let (places, addresses): (Vec<u16>, Vec<ServerAddress>) =
        order.servers.iter().filter_map(|(place, text)| Some((*place, text.parse().ok()?))).unzip();
    let places = addresses.iter().cloned().zip(places).collect();
    let expected =
        order.proof.map(|(file_system, minimum_sequence)| ServerProof { file_system, minimum_sequence });
    let key: Arc<dyn KeyHolder> =
        Arc::new(RemoteKey { public: order.public, handshakes: handshakes.clone() });
    let mut connector = Connector::new(key, addresses, expected);
    connector.options.transport = match order.transport {
        0 => Transport::Tcp,
        1 => Transport::Quic,
        _ => Transport::Auto,
    };
    connector.sockets = Arc::new(MainProcessSockets { source: sockets.clone(), places });
    let connection = match connector.start() {
        Ok(connection) => connection,
        Err(error) => return failed(&error),
    };
    let runtime = connection.runtime();
    runtime.spawn(async move {
        // The connection ends with the stream.
        if let Err(error) = carry(stream, connection).await {
            tracing::debug!(%error, "a stream ended");
        }
    });
    Reply::of(&())
}

type Outgoing = (u8, u64, Vec<u8>);

/// Serves one stream to its end.
async fn carry(stream: OwnedFd, connection: Connection) -> io::Result<()> {
    let stream = UnixStream::from_std(std::os::unix::net::UnixStream::from(stream))?;
    let (mut reader, mut writer) = stream.into_split();
    let (out, mut queue) = mpsc::unbounded_channel::<Outgoing>();
    let telling = tokio::spawn(tell(connection.clone(), out.clone()));
    let writing = tokio::spawn(async move {
        while let Some((kind, id, body)) = queue.recv().await {
            writer.write_all(&Header::encode(kind, id, body.len())).await?;
            writer.write_all(&body).await?;
        }
        io::Result::Ok(())
    });
    let under_way: Arc<Mutex<HashMap<u64, AbortHandle>>> = Arc::default();
    // The greeting sent last: an answer may be signed by a key that only a newer greeting lists.
    let greeted: Arc<Mutex<Option<Welcome>>> = Arc::default();
    let end = loop {
        let mut header = [0; HEADER_BYTES];
        if let Err(error) = reader.read_exact(&mut header).await {
            break Err(error);
        }
        let Some(Header { kind, id, body_bytes }) = Header::decode(&header) else {
            break Err(io::ErrorKind::InvalidData.into());
        };
        let mut body = vec![0; body_bytes];
        if let Err(error) = reader.read_exact(&mut body).await {
            break Err(error);
        }
        let (connection, out, ended) = (connection.clone(), out.clone(), under_way.clone());
        let greeted = greeted.clone();
        let task = match kind {
            frames::CALL if body.len() >= 10 => tokio::spawn(async move {
                let begun = Instant::now();
                let lane = if body[0] == 0 { Lane::Control } else { Lane::Bulk };
                let twice = body[1] != 0;
                let deadline = milliseconds(&body[2..10]);
                let request = bytes::Bytes::from(body).slice(10..);
                let outgoing = match connection.pass_on(lane, request, twice, deadline).await {
                    Ok((answer, number)) => (frames::ANSWER, id, timed(answer.into(), begun, number)),
                    Err(error) => (frames::FAILED, id, encode(&error)),
                };
                ended.lock().remove(&id);
                {
                    let (mut greeted, now) = (greeted.lock(), connection.welcome());
                    if *greeted != now {
                        let _ = out.send((frames::STANDING, 0, encode(&standing(&connection))));
                        *greeted = now;
                    }
                }
                let _ = out.send(outgoing);
            }),
            frames::WAIT if body.len() == 8 => tokio::spawn(async move {
                let begun = Instant::now();
                let outcome = connection.connected_by(milliseconds(&body)).await;
                // The status goes first, so that the caller that gets the answer can rely on it.
                let _ = out.send((frames::STANDING, 0, encode(&standing(&connection))));
                ended.lock().remove(&id);
                let _ = out.send(match outcome {
                    Ok(()) => (frames::ANSWER, id, timed(Vec::new(), begun, 0)),
                    Err(error) => (frames::FAILED, id, encode(&error)),
                });
            }),
            frames::ASK if body.is_empty() => {
                let _ = out.send((frames::STANDING, 0, encode(&standing(&connection))));
                let _ = out.send((frames::ANSWER, id, timed(Vec::new(), Instant::now(), 0)));
                continue;
            }
            frames::NEVER_MIND => {
                if let Some(task) = under_way.lock().remove(&id) {
                    task.abort();
                }
                continue;
            }
            _ => break Err(io::ErrorKind::InvalidData.into()),
        };
        // A task that has ended already has removed nothing and stays here: one word of memory until the
        // stream ends.
        if !task.is_finished() {
            under_way.lock().insert(id, task.abort_handle());
        }
    };
    telling.abort();
    writing.abort();
    for task in under_way.lock().values() {
        task.abort();
    }
    end
}

/// Appends to an answer the time since `begun`, and the number of the request on its link to the server.
fn timed(mut answer: Vec<u8>, begun: Instant, number: u64) -> Vec<u8> {
    let microseconds = u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX);
    answer.extend_from_slice(&microseconds.to_le_bytes());
    answer.extend_from_slice(&number.to_le_bytes());
    answer
}

fn milliseconds(bytes: &[u8]) -> Duration {
    Duration::from_millis(u64::from_le_bytes(bytes.try_into().expect("eight")).min(1 << 50))
}

async fn tell(connection: Connection, out: mpsc::UnboundedSender<Outgoing>) {
    let mut told = Vec::new();
    loop {
        let now = encode(&standing(&connection));
        if now != told {
            told.clone_from(&now);
            if out.send((frames::STANDING, 0, now)).is_err() {
                return;
            }
        }
        tokio::time::sleep(TELL_EVERY).await;
    }
}

fn standing(connection: &Connection) -> ConnectionStatus {
    let traffic = connection.traffic();
    let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    ConnectionStatus {
        welcome: connection.welcome(),
        server_key: connection.server_key(),
        is_connected: connection.is_connected(),
        trouble: connection.last_error(),
        sent: traffic.sent,
        received: traffic.received,
        connects: traffic.connects,
        is_over_quic: connection.is_over_quic(),
        estimate: connection.estimate().map(|link| {
            let loss = (link.loss * 1e6) as u32;
            (microseconds(link.rtt), link.sent_bytes_per_second, link.received_bytes_per_second, loss)
        }),
    }
}

/// The device's key, used through the signer process.
struct RemoteKey {
    public: PublicKey,
    handshakes: Handshakes,
}

impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Elsewhere")
    }
}

impl KeyHolder for RemoteKey {
    fn public(&self) -> PublicKey {
        self.public
    }

    fn sign_message(&self, message: &[u8]) -> Result<Signature, SignError> {
        let asked = self.handshakes.ask(0, &message.to_vec(), Patience::of(SIGN_PATIENCE));
        asked.map_err(|error| match error {
            ComponentError::TimedOut(_) => {
                SignError::Away("the process that keeps this device's key does not answer".to_owned())
            }
            _ => SignError::Refused("the process that keeps this device's key has ended".to_owned()),
        })?
    }
}

/// Sockets that the main process makes.
struct MainProcessSockets {
    source: SocketSource,
    places: HashMap<ServerAddress, u16>,
}

impl fmt::Debug for MainProcessSockets {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Handed")
    }
}

impl MainProcessSockets {
    fn place(&self, address: &ServerAddress) -> io::Result<u16> {
        self.places.get(address).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Waits for the main process on a separate thread, since connecting may take long.
    async fn ask(&self, wanted: SocketRequest) -> io::Result<(SocketReply, Option<OwnedFd>)> {
        let source = Arc::clone(&self.source);
        let asked = tokio::task::spawn_blocking(move || ask(&source, &wanted)).await;
        asked.map_err(io::Error::other)?
    }
}

fn ask(
    source: &Asker<SocketRequest, SocketReply>,
    wanted: &SocketRequest,
) -> io::Result<(SocketReply, Option<OwnedFd>)> {
    let patience = Patience::of(SOCKET_PATIENCE);
    let ticket = source.start(0, wanted, &[], patience).map_err(io::Error::other)?;
    let reply = source.finish(ticket, patience).map_err(io::Error::other)?;
    match reply.body {
        SocketReply::None(why) => Err(io::Error::other(why)),
        given => Ok((given, reply.files.into_iter().next())),
    }
}

fn socket_of((given, file): (SocketReply, Option<OwnedFd>)) -> io::Result<OwnedFd> {
    if let SocketReply::Socket { bbr: false } = given {
        assume_bbr_is_missing();
    }
    file.ok_or_else(|| io::Error::other("no socket came"))
}

impl Sockets for MainProcessSockets {
    fn tcp<'a>(&'a self, address: &'a ServerAddress) -> SocketFuture<'a, TcpStream> {
        Box::pin(async move {
            let given = self.ask(SocketRequest::Tcp(self.place(address)?)).await?;
            TcpStream::from_std(std::net::TcpStream::from(socket_of(given)?))
        })
    }

    fn resolve<'a>(&'a self, address: &'a ServerAddress) -> SocketFuture<'a, Vec<SocketAddr>> {
        Box::pin(async move {
            let (given, _) = self.ask(SocketRequest::Addresses(self.place(address)?)).await?;
            let SocketReply::Addresses(found) = given else { return Ok(Vec::new()) };
            let address = |(bytes, port): (Vec<u8>, u16)| {
                let ip = match bytes.len() {
                    4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
                    _ => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
                };
                Some(SocketAddr::from((ip, port)))
            };
            Ok(found.into_iter().filter_map(address).collect())
        })
    }

    fn udp(&self) -> io::Result<UdpSocket> {
        Ok(UdpSocket::from(socket_of(ask(&self.source, &SocketRequest::Udp)?)?))
    }
}
