//! Connections to an SSH agent, which the main process makes for the signer: that one has no files, and so no sockets
//! by their names.

use holdfast_crypto::agent::PATIENCE_SECONDS;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A connection to the agent at `socket`, on which every wait has an end.
///
/// # Errors
/// The system's.
pub fn connect_to_agent(socket: &Path) -> io::Result<UnixStream> {
    let patience = Some(Duration::from_secs(PATIENCE_SECONDS));
    let connection = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // For a Unix socket this also bounds the wait for being accepted.
    set_socket_timeout(&connection, Timeout::Send, patience)?;
    set_socket_timeout(&connection, Timeout::Recv, patience)?;
    connect(&connection, &SocketAddrUnix::new(socket)?)?;
    Ok(UnixStream::from(connection))
}
