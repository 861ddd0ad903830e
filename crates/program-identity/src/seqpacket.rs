//! Packets over a Unix socket; the kernel says which process is at the other end.

use crate::message::PACKET_BYTES_MAX;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{decode, encode};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with, sockopt,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// How long connecting may take.
const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// One end of a conversation. Dropping it ends the conversation for both ends.
///
/// Closing the descriptor alone would not end it at once: a thread that is just starting a program has copies
/// of all descriptors until the program begins, and the helper's messages would count until then.
#[derive(Debug)]
pub struct Conversation(OwnedFd);

/// The process at the other end; for a listener, the process that made it listen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The process id.
    pub process: u32,
}

fn made() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Listens at `path`, and replaces the socket of a dead process.
///
/// # Errors
/// The socket cannot be made; [`io::ErrorKind::AddrInUse`]: a live process listens there.
pub fn listener(path: &Path) -> io::Result<OwnedFd> {
    if Conversation::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = made()?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, 16)?;
    Ok(socket)
}

/// Waits for a connection.
///
/// # Errors
/// As for accept(2).
pub fn accept(listener: &OwnedFd) -> io::Result<Conversation> {
    Ok(Conversation(accept_with(listener, SocketFlags::CLOEXEC)?))
}

impl Conversation {
    /// Connects to the process that listens at `path`.
    ///
    /// # Errors
    /// As for connect(2).
    pub fn connect(path: &Path) -> io::Result<Conversation> {
        let socket = made()?;
        // The process that listens may never accept connections.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(CONNECT_WAIT))?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Conversation(socket))
    }

    /// The process at the other end.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn peer(&self) -> io::Result<Peer> {
        let found = sockopt::socket_peercred(&self.0)?;
        let process = u32::try_from(found.pid.as_raw_nonzero().get()).unwrap_or(0);
        Ok(Peer { uid: found.uid.as_raw(), gid: found.gid.as_raw(), process })
    }

    /// Limits how long sending waits for a peer that does not read, and also receiving if `receiving` is
    /// given.
    ///
    /// # Errors
    /// As for setsockopt(2).
    pub fn set_patience(&self, sending: Duration, receiving: Option<Duration>) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Send, Some(sending))?;
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, receiving)?)
    }

    /// Sends one packet.
    ///
    /// # Errors
    /// The peer is gone, or does not read.
    pub fn send(&self, message: &impl BorshSerialize) -> io::Result<()> {
        let bytes = encode(message);
        if bytes.len() > PACKET_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "packet too long"));
        }
        send(&self.0, &bytes, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives one packet.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`]: the peer is gone; [`io::ErrorKind::InvalidData`]: the packet is
    /// malformed.
    pub fn receive<T: BorshDeserialize>(&self) -> io::Result<T> {
        let mut bytes = vec![0; PACKET_BYTES_MAX + 1];
        let length = loop {
            match recv(&self.0, bytes.as_mut_slice(), RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?.0,
            }
        };
        match length {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ if length > PACKET_BYTES_MAX => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "packet too long"))
            }
            _ => decode(&bytes[..length]).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    /// Whether the other end still exists.
    pub fn is_alive(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut polled = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled_result = poll(&mut polled, Some(&at_once));
        let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
        polled_result.is_ok() && !polled[0].revents().intersects(gone)
    }

    /// Ends the conversation, for both ends and all threads.
    pub fn end(&self) {
        let _ = rustix::net::shutdown(self.0.as_fd(), rustix::net::Shutdown::Both);
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{FromGuard, FromHelper};

    /// Packets keep their limits, an end is noticed, and malformed packets are refused.
    #[test]
    fn packets() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        std::fs::write(&path, "left over").expect("written");
        let listening = listener(&path).expect("it listens");
        assert_eq!(listener(&path).expect_err("in use").kind(), io::ErrorKind::AddrInUse);
        let _probe = accept(&listening).expect("the question whether somebody listens");
        let one = Conversation::connect(&path).expect("it is there");
        let other = accept(&listening).expect("it came");
        assert_eq!(one.peer().expect("known").process, std::process::id());
        let said = FromGuard::Mark { id: 1, inode: 2, children: true };
        one.send(&said).expect("sent");
        one.send(&said).expect("sent");
        assert_eq!(other.receive::<FromGuard>().expect("received"), said);
        assert_eq!(other.receive::<FromGuard>().expect("received"), said);
        one.send(&[9u8; 3]).expect("sent");
        assert_eq!(other.receive::<FromHelper>().expect_err("no message").kind(), io::ErrorKind::InvalidData);
        assert!(one.is_alive());
        let copy = other.0.try_clone().expect("as a thread that starts a program has one");
        drop(other);
        assert!(!one.is_alive());
        drop(copy);
        assert!(one.receive::<FromHelper>().is_err());
    }
}
