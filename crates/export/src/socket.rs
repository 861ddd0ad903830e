//! TCP and Unix sockets behind one interface.

use crate::Address;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// A connection.
#[derive(Debug)]
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub fn try_clone(&self) -> io::Result<Socket> {
        Ok(match self {
            Socket::Tcp(socket) => Socket::Tcp(socket.try_clone()?),
            Socket::Unix(socket) => Socket::Unix(socket.try_clone()?),
        })
    }

    /// How long a read or a write may wait without any progress.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => {
                socket.set_read_timeout(Some(patience))?;
                socket.set_write_timeout(Some(patience))
            }
            Socket::Unix(socket) => {
                socket.set_read_timeout(Some(patience))?;
                socket.set_write_timeout(Some(patience))
            }
        }
    }

    /// Ends the connection, and wakes every thread that waits on it.
    pub fn shut_down(&self) {
        // This fails only if the connection has ended already.
        let _ = match self {
            Socket::Tcp(socket) => socket.shutdown(Shutdown::Both),
            Socket::Unix(socket) => socket.shutdown(Shutdown::Both),
        };
    }
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&*socket).read(buffer),
            Socket::Unix(socket) => (&*socket).read(buffer),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&*socket).write(bytes),
            Socket::Unix(socket) => (&*socket).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Accepts connections.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp(address) => Ok(Listener::Tcp(TcpListener::bind(address)?)),
            Address::Unix(path) => bind_unix(path).map(Listener::Unix),
        }
    }

    /// The address where it listens, with the port that the system chose if port 0 was requested.
    pub fn address(&self, wanted: &Address) -> io::Result<Address> {
        match self {
            Listener::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?)),
            Listener::Unix(_) => Ok(wanted.clone()),
        }
    }

    pub fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => {
                let (socket, _) = listener.accept()?;
                socket.set_nodelay(true)?;
                // Otherwise the server would wait for ever for a machine that disappeared without a word.
                rustix::net::sockopt::set_socket_keepalive(&socket, true)?;
                Ok(Socket::Tcp(socket))
            }
            Listener::Unix(listener) => Ok(Socket::Unix(listener.accept()?.0)),
        }
    }

    /// Wakes the thread that waits in [`Listener::accept`], which fails from now on.
    pub fn shut_down(&self) {
        let _ = rustix::net::shutdown(self.as_fd(), rustix::net::Shutdown::Both);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// Makes a socket that only its owner can connect to, from its first moment on. Replaces one that a dead
/// process has left.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
            _ => return Err(io::Error::new(io::ErrorKind::AddrInUse, "another program listens there")),
        }
    }
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Linux creates the file with the mode of the socket.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 16)?;
    Ok(UnixListener::from(socket))
}
