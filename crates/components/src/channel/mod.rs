//! Channels. A channel is a privilege: only the process that holds an end can use it, and it can send only
//! what the other end's guard accepts.
//!
//! A packet is a header and a body. The header contains the kind, the number of the request, and the index of
//! an alias in the sender's page ([`crate::alias`]), which the receiver resolves itself: a packet without a
//! valid alias does not reach the receiver's code. The client chooses numbers and keeps them when it repeats
//! a request, so that the server can recognise a repetition. Everything is bounded: bodies, files, requests
//! in flight, and the queues, which are the kernel's. A peer that does not read, floods, or sends nonsense
//! only damages its own channel.
//!
//! ```text
//! header, 16 bytes, little endian:  kind u8 | zero u8 | alias u16 | zero u32 | number u64        then the body (borsh)
//! ```

mod ask;
pub(crate) mod packet;
mod serve;
#[cfg(test)]
mod tests;

pub(crate) use ask::Raw;
pub use ask::{Asker, ReceivedReply, Ticket};
pub use packet::{FILES_MAX, Patience};
pub use serve::{Ended, Reply, Request};

use crate::alias::{Alias, AliasView};
use crate::error::{ComponentError, During, Result};
use borsh::{BorshDeserialize, BorshSerialize};
use packet::PacketError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// Most bytes of a body on any channel; the system's default queues take two such bodies.
pub const BODY_BYTES_MAX: usize = 64 << 10;
/// Most bytes of text in a refusal.
const REFUSAL_BYTES_MAX: usize = 512;

/// The kind of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A request, which has one answer.
    Request,
    /// The answer.
    Reply,
    /// The request was not carried out; the body is a [`Refusal`].
    Refusal,
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Kind::Request => 1,
            Kind::Reply => 2,
            Kind::Refusal => 3,
        }
    }
}

/// The header of a packet, before its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The kind of the packet.
    pub kind: Kind,
    /// The index of the alias it is sent under, in the sender's page.
    pub alias: u16,
    /// Number of the request, or of the request that this answers.
    pub number: u64,
}

impl Header {
    /// The encoded header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = self.kind.byte();
        header[2..4].copy_from_slice(&self.alias.to_le_bytes());
        header[8..16].copy_from_slice(&self.number.to_le_bytes());
        header
    }

    /// Decodes bytes of a peer.
    ///
    /// # Errors
    /// Why the bytes are no header.
    pub fn decode(header: &[u8; HEADER_BYTES]) -> std::result::Result<Header, &'static str> {
        let kind = match header[0] {
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Refusal,
            _ => return Err("a packet of no known kind"),
        };
        if header[1] != 0 || header[4..8] != [0; 4] {
            return Err("a header with bits that have no meaning");
        }
        let alias = u16::from_le_bytes([header[2], header[3]]);
        let number = u64::from_le_bytes(*header.last_chunk::<8>().expect("eight of sixteen"));
        Ok(Header { kind, alias, number })
    }
}

/// Why a request was not carried out.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Refusal {
    /// The alias it was sent under is not valid, or no longer.
    AliasInvalid,
    /// The guard does not permit it to this alias.
    NotPermitted,
    /// The request does not follow the protocol.
    Malformed,
    /// The request was permitted and failed; the reason in words.
    Failed(String),
    /// The request was permitted and failed, with a number that the protocol defines.
    Code(u32),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Refusal::AliasInvalid => f.write_str("the alias it was sent under is not valid, or was revoked"),
            Refusal::NotPermitted => f.write_str("not permitted to who asked"),
            Refusal::Malformed => f.write_str("the request does not follow the protocol"),
            Refusal::Failed(words) => f.write_str(words),
            Refusal::Code(code) => write!(f, "failed with code {code}"),
        }
    }
}

impl Refusal {
    fn encode(&self) -> Vec<u8> {
        let shortened;
        let bounded = match self {
            Refusal::Failed(words) if words.len() > REFUSAL_BYTES_MAX => {
                let cut = (0..=REFUSAL_BYTES_MAX).rev().find(|cut| words.is_char_boundary(*cut)).unwrap_or(0);
                shortened = Refusal::Failed(words[..cut].to_owned());
                &shortened
            }
            other => other,
        };
        borsh::to_vec(bounded).expect("a vector takes everything")
    }

    /// Decodes bytes of a peer. Malformed ones are the peer's fault, and are a refusal too.
    fn decode(bytes: &[u8]) -> Refusal {
        match bytes.len() <= REFUSAL_BYTES_MAX + 16 {
            true => borsh::from_slice(bytes).unwrap_or(Refusal::Malformed),
            false => Refusal::Malformed,
        }
    }
}

/// The limits of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
pub struct Bounds {
    /// Bytes of a body.
    pub body_bytes_max: u32,
    /// Files with one packet.
    pub files_max: u8,
    /// Requests that wait for their answers.
    pub in_flight_max: u16,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { body_bytes_max: BODY_BYTES_MAX as u32, files_max: 0, in_flight_max: 64 }
    }
}

impl Bounds {
    pub(crate) fn check(&self) -> Result<()> {
        let fits = self.body_bytes_max as usize <= BODY_BYTES_MAX
            && usize::from(self.files_max) <= FILES_MAX
            && self.in_flight_max > 0;
        if fits {
            return Ok(());
        }
        let most = format!("a channel carries at most {BODY_BYTES_MAX} bytes and {FILES_MAX} files a packet");
        Err(ComponentError::Plan(format!("{most}, and at least one request")))
    }
}

/// One end of a channel.
pub struct Channel {
    port: String,
    socket: OwnedFd,
    peer: AliasView,
    bounds: Bounds,
}

/// A packet that arrived, in the buffer it arrived in.
pub struct Packet<'a> {
    /// The kind of the packet.
    pub kind: Kind,
    /// Number of the request, or of the request that this answers.
    pub number: u64,
    /// The principal on whose behalf it was sent; `None`: nobody's, so the packet must not be acted upon.
    pub alias: Option<Alias>,
    /// Untrusted.
    pub body: &'a [u8],
    /// Files that came with the packet. Untrusted.
    pub files: Vec<OwnedFd>,
}

impl Channel {
    /// The two ends of a channel: for process `a`, and for process `b`. Each gets the page of the other's
    /// aliases.
    ///
    /// # Errors
    /// The system has no sockets left, or a page is not one.
    pub fn pair(
        port: &str,
        bounds: Bounds,
        aliases_of_a: &OwnedFd,
        aliases_of_b: &OwnedFd,
    ) -> Result<(Channel, Channel)> {
        let (a, b) = packet::pair().during("making a channel")?;
        Ok((Channel::new(port, a, aliases_of_b, bounds)?, Channel::new(port, b, aliases_of_a, bounds)?))
    }

    pub(crate) fn new(port: &str, socket: OwnedFd, peer: &OwnedFd, bounds: Bounds) -> Result<Channel> {
        bounds.check()?;
        Ok(Channel { port: port.to_owned(), socket, peer: AliasView::map(peer)?, bounds })
    }

    /// The name under which its holder uses it.
    pub fn port(&self) -> &str {
        &self.port
    }

    /// The limits of this channel.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// A buffer that is large enough for every packet of this channel.
    pub fn buffer(&self) -> Vec<u8> {
        vec![0; self.buffer_bytes()]
    }

    pub(crate) fn buffer_bytes(&self) -> usize {
        HEADER_BYTES + self.bounds.body_bytes_max as usize
    }

    /// Sends a packet under the alias with the index `alias`.
    ///
    /// # Errors
    /// The packet is too large, or the other end is gone or does not read.
    pub fn send(
        &self,
        kind: Kind,
        number: u64,
        alias: u16,
        body: &[u8],
        files: &[BorrowedFd],
        patience: Patience,
    ) -> Result<()> {
        let bytes_max = self.bounds.body_bytes_max as usize;
        if body.len() > bytes_max {
            return Err(ComponentError::TooLarge { port: self.port.clone(), bytes: body.len(), bytes_max });
        }
        let count_max = usize::from(self.bounds.files_max);
        if files.len() > count_max {
            return Err(ComponentError::TooManyFiles {
                port: self.port.clone(),
                count: files.len(),
                count_max,
            });
        }
        let header = Header { kind, alias, number }.encode();
        packet::send(self.socket.as_fd(), &[&header, body], files, patience).map_err(|error| match error {
            PacketError::Late => ComponentError::PeerDoesNotRead(self.port.clone()),
            error => self.explained(error),
        })
    }

    /// Receives a packet into a [`Channel::buffer`].
    ///
    /// # Errors
    /// No packet came in time, the other end is gone, or it broke the rules; in the last case the channel
    /// still works and only the packet is lost.
    pub fn receive<'a>(&self, buffer: &'a mut [u8], patience: Patience) -> Result<Packet<'a>> {
        let files_max = usize::from(self.bounds.files_max);
        let (bytes, files) = packet::receive(self.socket.as_fd(), buffer, files_max, patience)
            .map_err(|error| self.explained(error))?;
        let (header, body) = buffer[..bytes]
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or_else(|| self.offence("a packet shorter than its header"))?;
        let Header { kind, alias, number } =
            Header::decode(header).map_err(|offence| self.offence(offence))?;
        Ok(Packet { kind, number, alias: self.peer.resolve(alias), body, files })
    }

    fn explained(&self, error: PacketError) -> ComponentError {
        let port = self.port.clone();
        match error {
            PacketError::Gone => ComponentError::Disconnected(port),
            PacketError::Late => ComponentError::TimedOut(port),
            PacketError::Large => {
                ComponentError::PeerMisbehaved { port, offence: "a packet larger than agreed" }
            }
            PacketError::Files => ComponentError::PeerMisbehaved { port, offence: "more files than agreed" },
            PacketError::System(source) => ComponentError::System { what: "using a channel", source },
        }
    }

    fn offence(&self, offence: &'static str) -> ComponentError {
        ComponentError::PeerMisbehaved { port: self.port.clone(), offence }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
