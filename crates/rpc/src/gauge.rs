//! Reads a transport's counters: the kernel's for a TCP connection (`sock_diag(7)`, like `ss -i`, since that
//! needs no privilege and no unsafe code), or QUIC's own.
//!
//! If the kernel does not answer (a sandbox without netlink), less is known of the link.

use crate::estimate::CounterReading;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

/// Reads the counters of one TCP connection.
#[derive(Debug)]
pub(crate) struct TcpGauge {
    request: Vec<u8>,
}

/// The netlink socket that was passed to a process without the right to make sockets; `None` in it: none was
/// passed.
static GIVEN_SOCKET: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// From now on this process reads counters over the socket passed to it, or not at all.
pub(crate) fn use_diagnosis_socket(socket: Option<OwnedFd>) {
    let _ = GIVEN_SOCKET.set(socket);
}

/// A netlink socket for reading counters, also for passing to a process that may not make sockets.
pub(crate) fn diagnosis_socket() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG)).ok()
}

thread_local! {
    /// One socket for a thread, however many connections it has, and the number of the last request.
    static DIAGNOSIS: Option<(OwnedFd, Cell<u32>)> = open_diagnosis();
}

fn open_diagnosis() -> Option<(OwnedFd, Cell<u32>)> {
    let socket = match GIVEN_SOCKET.get() {
        Some(socket) => socket.as_ref()?.try_clone().ok()?,
        None => diagnosis_socket()?,
    };
    Some((socket, Cell::new(0)))
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const ATTRIBUTE_INFO: u16 = 2;
/// Place of the number in `nlmsghdr`.
const NUMBER_AT: usize = 8;
/// `nlmsghdr` and `inet_diag_req_v2`.
const REQUEST_BYTES: usize = 16 + 56;
/// `nlmsghdr` and `inet_diag_msg`, after which the attributes begin.
const ANSWER_HEAD_BYTES: usize = 16 + 72;

impl TcpGauge {
    /// The counters of a TCP connection of this process.
    pub(crate) fn new(local: SocketAddr, peer: SocketAddr) -> TcpGauge {
        TcpGauge { request: request(local, peer) }
    }

    /// The present counters; `None` if they are unavailable. Takes microseconds: the kernel answers within
    /// the call.
    pub(crate) fn read(&self) -> Option<CounterReading> {
        DIAGNOSIS.with(|diagnosis| {
            diagnosis.as_ref().and_then(|(socket, number)| self.request_counters(socket, number))
        })
    }

    fn request_counters(&self, socket: &OwnedFd, sequence: &Cell<u32>) -> Option<CounterReading> {
        let number = sequence.get().wrapping_add(1);
        sequence.set(number);
        let mut request = self.request.clone();
        request[NUMBER_AT..NUMBER_AT + 4].copy_from_slice(&number.to_ne_bytes());
        rustix::net::sendto(socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).ok()?;
        let mut answer = [0; 2048];
        loop {
            let (bytes, _) = rustix::net::recv(socket, &mut answer[..], RecvFlags::empty()).ok()?;
            // Answers to older questions are skipped.
            if answer.get(NUMBER_AT..NUMBER_AT + 4)? == number.to_ne_bytes() {
                return reading(answer.get(ANSWER_HEAD_BYTES..bytes)?);
            }
        }
    }
}

fn request(local: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let mut out = Vec::with_capacity(REQUEST_BYTES);
    out.extend_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    out.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    out.extend_from_slice(&[0; 8]);
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    out.extend_from_slice(&[family.as_raw() as u8, IPPROTO_TCP, 1 << (ATTRIBUTE_INFO - 1), 0]);
    out.extend_from_slice(&u32::MAX.to_ne_bytes());
    for port in [local.port(), peer.port()] {
        out.extend_from_slice(&port.to_be_bytes());
    }
    for address in [local.ip(), peer.ip()] {
        let mut bytes = [0; 16];
        match address {
            IpAddr::V4(four) => bytes[..4].copy_from_slice(&four.octets()),
            IpAddr::V6(six) => bytes = six.octets(),
        }
        out.extend_from_slice(&bytes);
    }
    // Any interface, any cookie.
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[0xff; 8]);
    debug_assert_eq!(out.len(), REQUEST_BYTES);
    out
}

/// Finds `struct tcp_info` among the attributes and reads it.
fn reading(mut attributes: &[u8]) -> Option<CounterReading> {
    while attributes.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([attributes[0], attributes[1]]));
        let kind = u16::from_ne_bytes([attributes[2], attributes[3]]);
        let body = attributes.get(4..length)?;
        if kind == ATTRIBUTE_INFO {
            return tcp_info(body);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

/// Offsets of `struct tcp_info` in `linux/tcp.h`; it only ever grows at its end.
fn tcp_info(info: &[u8]) -> Option<CounterReading> {
    let small = |at: usize| Some(u64::from(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?)));
    let large = |at: usize| Some(u64::from_ne_bytes(info.get(at..at + 8)?.try_into().ok()?));
    let (segment, unacknowledged) = (small(16)?, small(24)?);
    let (rtt_us, repeated) = (small(68)?, small(100)?);
    let (acknowledged, unsent, rtt_min_us, packets) = (large(120)?, small(144)?, small(148)?, small(156)?);
    Some(CounterReading {
        delivered: acknowledged,
        unsettled: Some(unacknowledged * segment + unsent),
        backlog: unsent > 0,
        rtt: Duration::from_micros(rtt_us),
        // The kernel's value before the first measurement is u32::MAX.
        rtt_min: Duration::from_micros(if rtt_min_us == u64::from(u32::MAX) { 0 } else { rtt_min_us }),
        packets,
        lost: repeated,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// Proves: the kernel's counters of a live connection are found, for both families, and count what was
    /// sent.
    #[test]
    fn the_kernel_answers() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = std::net::TcpListener::bind(address).unwrap();
            let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut other, _) = listener.accept().unwrap();
            let gauge = TcpGauge::new(stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            let before = gauge.read().expect("the kernel knows the connection");
            stream.write_all(&[1; 10_000]).unwrap();
            other.read_exact(&mut [0; 10_000]).unwrap();
            // The acknowledgement may take the kernel's delay.
            holdfast_testing::eventually("all is acknowledged", || {
                gauge.read().unwrap().delivered - before.delivered >= 10_000
            });
            let after = gauge.read().unwrap();
            assert_eq!((after.unsettled, after.backlog), (Some(0), false));
            assert!(after.rtt > Duration::ZERO && after.packets > 0);
            drop((stream, other));
        }
    }

    /// Proves: a connection that does not exist has no counters, and a truncated answer is refused.
    #[test]
    fn what_is_missing_is_none() {
        let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
        assert_eq!(TcpGauge::new(nowhere, nowhere).read(), None);
        for bytes in 0..164 {
            assert!(reading(&vec![4; bytes]).is_none(), "{bytes}");
        }
        assert!(tcp_info(&[0; 160]).is_some());
    }
}
