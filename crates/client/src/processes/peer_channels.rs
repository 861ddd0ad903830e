//! The main process's part of channels between clients: it makes and accepts connections without reading from
//! them, has the network process turn them into channels, and gets messages through that process.
//!
//! A message is trusted no further than its signatures: see [`holdfast_protocol::peers`].

use super::key::{Processes, ProcessesError};
use super::messages::{HeardBeacon, MeetRequest, NetworkRequest, PeerIntroduction};
use holdfast_crypto::{Digest, PublicKey, decode, encode};
use holdfast_protocol::peers::{PeerMessage, WORD_BYTES_MAX};
use holdfast_rpc::prepare;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a handshake with a peer may take. The network process has a shorter limit.
const INTRODUCTION: Duration = Duration::from_secs(90);
/// A channel to a peer that takes no message for this long is closed.
const STUCK: Duration = Duration::from_secs(5);
/// Longest introduction or beacon, in bytes.
const SMALL_BYTES_MAX: usize = 4 << 10;

/// A channel to a peer that has proven its key.
pub(crate) struct PeerChannel {
    /// The key that the peer has proven.
    pub(crate) peer: PublicKey,
    stream: UnixStream,
}

impl PeerChannel {
    /// Sets how long `receive` waits; `None`: without limit.
    pub(crate) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        self.stream.set_read_timeout(patience)
    }

    /// Sends a message to the peer.
    pub(crate) fn send(&self, word: &PeerMessage) -> io::Result<()> {
        let said = encode(word);
        let whole: Vec<u8> = [&(said.len() as u32).to_le_bytes()[..], &said].concat();
        (&self.stream).write_all(&whole)
    }

    /// Waits for the peer's next message.
    pub(crate) fn receive(&self) -> io::Result<PeerMessage> {
        let heard = read_bounded(&self.stream, WORD_BYTES_MAX)?;
        decode(&heard).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
    }

    /// Closes the channel, even while another thread waits for a message.
    pub(crate) fn hang_up(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl Processes {
    /// Makes the signer sign handshakes with clients that connect to this one.
    pub(crate) fn welcome_peers(&self) -> Result<(), ProcessesError> {
        self.meets_peers()
    }

    /// Turns a connection into a channel to another client of a file system: the one with the `expected` key,
    /// or, without one, the client that has connected to this one.
    ///
    /// # Errors
    /// A description.
    pub(crate) fn meet(
        &self,
        socket: TcpStream,
        file_system: Digest,
        expected: Option<PublicKey>,
    ) -> Result<PeerChannel, String> {
        prepare(&socket);
        let ours = || -> io::Result<(UnixStream, OwnedFd)> {
            socket.set_nonblocking(true)?;
            let (ours, theirs) = UnixStream::pair()?;
            theirs.set_nonblocking(true)?;
            ours.set_write_timeout(Some(STUCK))?;
            ours.set_read_timeout(Some(INTRODUCTION))?;
            Ok((ours, theirs.into()))
        };
        let (stream, theirs) = ours().map_err(|error| error.to_string())?;
        let order = NetworkRequest::Meet(MeetRequest { public: self.public_key(), file_system, expected });
        self.order(&order, vec![theirs, socket.into()]).map_err(|error| error.to_string())?;
        let introduced = read_bounded(&stream, SMALL_BYTES_MAX).map_err(|error| error.to_string())?;
        let introduced: PeerIntroduction = decode(&introduced).map_err(|error| error.to_string())?;
        let peer = introduced?;
        if expected.is_some_and(|expected| expected != peer) {
            return Err("another key answered".to_owned());
        }
        stream.set_read_timeout(None).map_err(|error| error.to_string())?;
        Ok(PeerChannel { peer, stream })
    }

    /// Receives beacons that come to `socket`, until the stream is dropped or the network process ends.
    ///
    /// # Errors
    /// A description.
    pub(crate) fn hear_beacons(
        &self,
        socket: UdpSocket,
        file_system: Digest,
    ) -> Result<BeaconStream, String> {
        let pair = || -> io::Result<(UnixStream, OwnedFd)> {
            socket.set_nonblocking(true)?;
            let (ours, theirs) = UnixStream::pair()?;
            theirs.set_nonblocking(true)?;
            Ok((ours, theirs.into()))
        };
        let (stream, theirs) = pair().map_err(|error| error.to_string())?;
        let order = NetworkRequest::HearBeacons { file_system };
        self.order(&order, vec![theirs, socket.into()]).map_err(|error| error.to_string())?;
        Ok(BeaconStream { stream, is_over: Arc::default() })
    }
}

/// The stream of beacons that the network process receives.
pub(crate) struct BeaconStream {
    stream: UnixStream,
    is_over: Arc<AtomicBool>,
}

impl BeaconStream {
    /// Another handle of the stream, with which another thread can close it.
    pub(crate) fn try_clone(&self) -> io::Result<BeaconStream> {
        Ok(BeaconStream { stream: self.stream.try_clone()?, is_over: self.is_over.clone() })
    }

    /// Waits for the next beacon: the number of the device, and its address.
    pub(crate) fn receive(&self) -> io::Result<(u32, SocketAddr)> {
        let bytes = read_bounded(&self.stream, SMALL_BYTES_MAX)?;
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let heard: HeardBeacon = decode(&bytes).map_err(|_| invalid())?;
        let ip = match heard.address.len() {
            4 => IpAddr::from(<[u8; 4]>::try_from(heard.address).map_err(|_| invalid())?),
            _ => IpAddr::from(<[u8; 16]>::try_from(heard.address).map_err(|_| invalid())?),
        };
        Ok((heard.device, SocketAddr::from((ip, heard.port))))
    }

    /// Whether it is still open: the network process may have ended and been restarted.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Closes the stream, so that a thread that reads from it ends.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Reads a message with its length before it. Memory grows only with the bytes that have come.
fn read_bounded(stream: &UnixStream, most: usize) -> io::Result<Vec<u8>> {
    let mut stream = stream;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "longer than it can be"));
    }
    let mut bytes = Vec::new();
    if stream.take(length as u64).read_to_end(&mut bytes)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_protocol::peers::VERSION;

    fn pair() -> (PeerChannel, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (PeerChannel { peer: PublicKey([1; 32]), stream: ours }, theirs)
    }

    /// Proves: messages arrive as they were sent; a message that is too long, cut off or invalid ends the
    /// channel.
    #[test]
    fn words_and_what_are_none() {
        let (visit, theirs) = pair();
        let other = PeerChannel { peer: visit.peer, stream: theirs };
        for word in [
            PeerMessage::Hello { version: VERSION, file_system: Digest([2; 32]), run: 7 },
            PeerMessage::KeepAlive,
            PeerMessage::Bye,
        ] {
            visit.send(&word).expect("said");
            assert_eq!(other.receive().expect("heard"), word);
        }
        for bad in [vec![0xff; 8], vec![1, 0, 0, 0, 99], vec![9, 0, 0, 0, 1]] {
            let (visit, mut theirs) = pair();
            theirs.write_all(&bad).expect("sent");
            drop(theirs);
            assert!(visit.receive().is_err(), "{bad:?}");
        }
    }
}
