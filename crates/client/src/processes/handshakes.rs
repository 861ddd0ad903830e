//! The network process's part of channels between clients: it makes the knock and the handshake over a socket
//! that it was handed, and then carries bytes both ways without reading them. It also reads the beacons of
//! other clients.
//!
//! A socket becomes a channel only after the peer has proven a key. The main process decides which keys are
//! accepted, and otherwise closes the channel. Bounds: [`MEETINGS_MAX`] channels at a time, a time limit for
//! each handshake, and at most [`BEACONS_A_SECOND`] beacons read.

use super::messages::{HeardBeacon, MeetRequest, PeerIntroduction};
use holdfast_crypto::{Digest, KeyHolder, encode};
use holdfast_protocol::peers::{BEACON_BYTES, Beacon};
use holdfast_rpc::{Invitation, MEETING_PATIENCE, MeetingRole, PeerStream, meet as meet_over};
use parking_lot::Mutex;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpStream, UdpSocket, UnixStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::Semaphore;

/// Most channels at a time, including those being set up.
const MEETINGS_MAX: usize = 96;
/// Most handshakes that wait for signatures at the same time; others wait for their turn.
const HANDSHAKES_MAX: usize = 4;
/// How long a handshake may take, including its signature: an agent may ask a person.
const HANDSHAKE_TIME: Duration = Duration::from_secs(70);
/// Most beacons read in a second, from all senders together.
const BEACONS_A_SECOND: u32 = 50;

/// The runtime of all channels to peers, started with the first one.
fn runtime() -> io::Result<Handle> {
    static RUNTIME: Mutex<Option<Handle>> = Mutex::new(None);
    let mut known = RUNTIME.lock();
    if let Some(handle) = &*known {
        return Ok(handle.clone());
    }
    let runtime = Builder::new_current_thread().max_blocking_threads(HANDSHAKES_MAX).enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("meetings".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    *known = Some(handle.clone());
    Ok(handle)
}

/// Turns `socket` into a channel to another client, whose other end is `stream`.
///
/// # Errors
/// There are too many channels, or the files are not sockets.
pub(super) fn meet(
    order: &MeetRequest,
    key: Arc<dyn KeyHolder>,
    stream: OwnedFd,
    socket: OwnedFd,
) -> io::Result<()> {
    static ROOM: Semaphore = Semaphore::const_new(MEETINGS_MAX);
    let place = ROOM.try_acquire().map_err(|_| io::Error::other("too many meetings at a time"))?;
    let runtime = runtime()?;
    let _entered = runtime.enter();
    let stream = UnixStream::from_std(std::os::unix::net::UnixStream::from(stream))?;
    let socket = TcpStream::from_std(std::net::TcpStream::from(socket))?;
    let way = order.expected.map_or(MeetingRole::Accepting, MeetingRole::Connecting);
    let invitation = Invitation { key, file_system: order.file_system, role: way };
    runtime.spawn(async move {
        if let Err(error) = carry(stream, socket, invitation).await {
            tracing::debug!(%error, "a meeting ended");
        }
        drop(place);
    });
    Ok(())
}

async fn carry(mut stream: UnixStream, socket: TcpStream, invitation: Invitation) -> io::Result<()> {
    let (introduced, met) = match shake_hands(socket, invitation).await {
        Ok((peer, met)) => (PeerIntroduction::Ok(peer), Some(met)),
        Err(why) => (PeerIntroduction::Err(why), None),
    };
    let said = encode(&introduced);
    stream.write_all(&(said.len() as u32).to_le_bytes()).await?;
    stream.write_all(&said).await?;
    let Some(mut met) = met else { return Ok(()) };
    copy_bidirectional(&mut stream, &mut met).await.map(drop)
}

/// Makes the handshake on a separate thread, since the holder of the key may be slow to sign.
async fn shake_hands(
    socket: TcpStream,
    invitation: Invitation,
) -> Result<(holdfast_crypto::PublicKey, Box<dyn PeerStream>), String> {
    let time = match invitation.role {
        // The peer needs time for its signature, too.
        MeetingRole::Connecting(_) => HANDSHAKE_TIME + MEETING_PATIENCE,
        MeetingRole::Accepting => HANDSHAKE_TIME,
    };
    let runtime = Handle::current();
    let handshake = move || runtime.block_on(tokio::time::timeout(time, meet_over(socket, invitation)));
    let shaken = tokio::task::spawn_blocking(handshake).await.map_err(|error| error.to_string())?;
    shaken.map_err(|_| "it took too long".to_owned())?.map_err(|error| error.to_string())
}

/// Passes the content of a file system's beacons on over `stream`.
///
/// # Errors
/// The files are not sockets.
pub(super) fn hear_beacons(file_system: Digest, stream: OwnedFd, socket: OwnedFd) -> io::Result<()> {
    let runtime = runtime()?;
    let _entered = runtime.enter();
    let mut stream = UnixStream::from_std(std::os::unix::net::UnixStream::from(stream))?;
    let socket = UdpSocket::from_std(std::net::UdpSocket::from(socket))?;
    runtime.spawn(async move {
        let mut datagram = [0; BEACON_BYTES + 1];
        loop {
            tokio::time::sleep(Duration::from_secs(1) / BEACONS_A_SECOND).await;
            let Ok((bytes, from)) = socket.recv_from(&mut datagram).await else { continue };
            let Some(beacon) = Beacon::read(&file_system, &datagram[..bytes]) else { continue };
            let said = encode(&heard(from, beacon));
            let sent = async {
                stream.write_all(&(said.len() as u32).to_le_bytes()).await?;
                stream.write_all(&said).await
            };
            if sent.await.is_err() {
                return;
            }
        }
    });
    Ok(())
}

fn heard(from: SocketAddr, beacon: Beacon) -> HeardBeacon {
    let address = match from.ip() {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    };
    HeardBeacon { address, device: beacon.device.0, port: beacon.port }
}
