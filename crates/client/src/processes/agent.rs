//! Connections to an SSH agent. The main process makes them for the signer, which has no access to files, and
//! so none to sockets by path.

use holdfast_crypto::agent::PATIENCE_SECONDS;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A connection to the agent at `socket`, with a time limit on every wait.
///
/// # Errors
/// Those of the system.
pub fn connect_to_agent(socket: &Path) -> io::Result<UnixStream> {
    let patience = Some(Duration::from_secs(PATIENCE_SECONDS));
    let connection = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // For a Unix socket, this also limits the wait for being accepted.
    set_socket_timeout(&connection, Timeout::Send, patience)?;
    set_socket_timeout(&connection, Timeout::Recv, patience)?;
    connect(&connection, &SocketAddrUnix::new(socket)?)?;
    Ok(UnixStream::from(connection))
}
