//! Beacons on the local network: sends and receives [`holdfast_protocol::peers::Beacon`] by UDP multicast.
//!
//! A beacon does not reveal the file system to devices that do not know it. It is trusted only for an address
//! to connect to.

use super::Peers;
use crate::engine::leases::now_ms;
use crate::engine::shared::Shared;
use crate::processes::BeaconStream;
use holdfast_content::DeviceId;
use holdfast_protocol::peers::{Beacon, SALT_BYTES, UNKNOWN_RUN};
use rustix::net::sockopt::{set_socket_reuseaddr, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

/// The multicast group: one for use within an organisation (RFC 2365), sent to the local network only.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 74, 40);
/// UDP port of beacons.
const PORT: u16 = 7442;
/// Interval between beacons.
const EVERY: Duration = Duration::from_secs(5);
/// When a beacon of a device with a higher number is heard, this device waits this long before it calls, so
/// that only one of the two calls.
const YIELD_MS: u64 = 2_000;

/// Sends beacons, and starts the thread that receives others', until it is stopped.
pub(super) fn run(peers: &Arc<Peers>, shared: &Arc<Shared>) {
    let mut ear: Option<BeaconStream> = None;
    loop {
        if ear.as_ref().is_none_or(|ear| !ear.is_open()) {
            ear = start_listener(peers, shared);
        }
        if let Err(error) = send(peers, shared) {
            tracing::debug!(%error, "no beacon could be sent");
        }
        if peers.stop.pause(EVERY) {
            if let Some(ear) = ear {
                ear.end();
            }
            return;
        }
    }
}

fn send(peers: &Peers, shared: &Shared) -> io::Result<()> {
    // A device that listens at one address puts that in its record.
    if peers.policy.listen.is_some_and(|listen| !listen.ip().is_unspecified()) {
        return Ok(());
    }
    let mut salt = [0; SALT_BYTES];
    getrandom::fill(&mut salt).map_err(|error| io::Error::other(error.to_string()))?;
    let beacon = Beacon { device: shared.me, port: peers.port };
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_multicast_ttl_v4(1)?;
    socket.send_to(&beacon.to_bytes(&shared.file_system(), salt), (GROUP, PORT)).map(drop)
}

/// Starts a thread that records the addresses in received beacons.
fn start_listener(peers: &Arc<Peers>, shared: &Arc<Shared>) -> Option<BeaconStream> {
    let heard = open_socket()
        .map_err(|error| error.to_string())
        .and_then(|socket| peers.processes.hear_beacons(socket, shared.file_system()))
        .and_then(|ear| Ok((ear.try_clone().map_err(|error| error.to_string())?, ear)));
    let (ear, other) = match heard {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(error, "no beacons can be heard");
            return None;
        }
    };
    let (peers, shared) = (peers.clone(), shared.clone());
    let hearing = move || {
        while let Ok((device, address)) = other.receive() {
            peers.heard_beacon(&shared, DeviceId(device), address);
        }
        other.end();
    };
    std::thread::Builder::new().name("holdfast-beacons".to_owned()).spawn(hearing).ok()?;
    Some(ear)
}

/// A socket that receives from the multicast group, together with those of other mounts on this machine.
fn open_socket() -> io::Result<UdpSocket> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    set_socket_reuseaddr(&socket, true)?;
    set_socket_reuseport(&socket, true)?;
    bind(&socket, &SocketAddr::new(IpAddr::V4(GROUP), PORT))?;
    let socket = UdpSocket::from(socket);
    socket.join_multicast_v4(&GROUP, &Ipv4Addr::UNSPECIFIED)?;
    Ok(socket)
}

impl Peers {
    fn heard_beacon(&self, shared: &Shared, device: DeviceId, address: SocketAddr) {
        let membership = shared.latest.read().base.membership.clone();
        let is_member = membership.devices.get(&device).is_some_and(|known| known.removed_at.is_none());
        if !is_member || device == shared.me {
            return;
        }
        let mut state = self.state.lock();
        if state.is_connected_to(device) {
            return;
        }
        // A beacon does not say which run sent it; the peer says so when it is connected.
        state.roster.handle_login(device, UNKNOWN_RUN);
        let known = state.known.entry(device).or_default();
        let is_new = !known.addresses().contains(&address);
        known.note_address(address);
        if is_new {
            let soon = now_ms() + YIELD_MS * if shared.me < device { 2 } else { 1 };
            known.call_at_ms = if known.call_at_ms == 0 { soon } else { known.call_at_ms.min(soon) };
        }
    }
}
