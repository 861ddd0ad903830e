//! Packets over a SEQPACKET socket: delivered whole or not at all, of bounded size, with a bounded number of
//! files, and with deadlines at both ends.
//!
//! Attack answered: a peer that floods, stops reading, or sends a packet larger than agreed or unwanted
//! files. The size of every buffer is fixed before anything arrives, and what does not fit is a violation,
//! not an allocation. Files beyond the limit are never installed: the kernel drops them.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Most files with one packet, on any channel.
pub const FILES_MAX: usize = 8;
/// Blocking calls return after this time to look at their deadline; shorter waits are made by polling.
const SLICE: Duration = Duration::from_millis(200);
/// How long to poll before sleeping. An answer that comes at once is not worth a sleep: waking a sleeping
/// thread on another processor costs tens of microseconds (more on a virtual one), once for the request and
/// once for the answer. Between polls the processor is yielded.
const WATCH: Duration = Duration::from_micros(50);
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(FILES_MAX));

/// Why sending or receiving failed.
#[derive(Debug)]
pub(crate) enum PacketError {
    /// The other end is gone.
    Gone,
    /// The deadline passed.
    Late,
    /// The packet is larger than the socket or the buffer takes.
    Large,
    /// The packet came with more files than the bounds allow.
    Files,
    /// Another error of the system.
    System(io::Error),
}

impl From<Errno> for PacketError {
    fn from(error: Errno) -> PacketError {
        match error {
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::CONNREFUSED => PacketError::Gone,
            Errno::AGAIN => PacketError::Late,
            Errno::MSGSIZE => PacketError::Large,
            other => PacketError::System(other.into()),
        }
    }
}

/// Two connected sockets. The process that holds one may talk to the process that holds the other.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for end in [&a, &b] {
        sockopt::set_socket_timeout(end, sockopt::Timeout::Recv, Some(SLICE))?;
        sockopt::set_socket_timeout(end, sockopt::Timeout::Send, Some(SLICE))?;
    }
    Ok((a, b))
}

/// How long to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Do not wait.
    Never,
    /// Wait until this moment.
    Until(Instant),
    /// Wait without end.
    Forever,
}

impl Patience {
    /// Wait for this time from now on.
    pub fn of(time: Duration) -> Patience {
        Instant::now().checked_add(time).map_or(Patience::Forever, Patience::Until)
    }

    /// The time that is left; `None`: no limit.
    pub(crate) fn left(self) -> Option<Duration> {
        match self {
            Patience::Never => Some(Duration::ZERO),
            Patience::Until(moment) => Some(moment.saturating_duration_since(Instant::now())),
            Patience::Forever => None,
        }
    }
}

/// Whether the next attempt may block in the kernel; otherwise it is made without blocking, after a poll of
/// ours.
fn waits_in_kernel(fd: BorrowedFd, event: PollFlags, patience: Patience) -> Result<bool, PacketError> {
    match patience.left() {
        None => Ok(true),
        Some(left) if left >= SLICE => Ok(true),
        Some(left) if left.is_zero() => Ok(false),
        Some(left) => {
            wait(&mut [PollFd::from_borrowed_fd(fd, event)], Some(left))?;
            Ok(false)
        }
    }
}

/// Waits for events; whether there are any.
pub(crate) fn wait(fds: &mut [PollFd], time: Option<Duration>) -> Result<bool, PacketError> {
    let limit =
        time.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() });
    match poll(fds, limit.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits as [`wait`] does, but polls for a while before it sleeps, for callers that expect something soon.
pub(crate) fn wait_watchfully(fds: &mut [PollFd], time: Option<Duration>) -> Result<bool, PacketError> {
    let began = Instant::now();
    while began.elapsed() < WATCH {
        if wait(fds, Some(Duration::ZERO))? {
            return Ok(true);
        }
        rustix::thread::sched_yield();
    }
    wait(fds, time)
}

/// Sends one packet.
pub(crate) fn send(
    socket: BorrowedFd,
    parts: &[&[u8]],
    files: &[BorrowedFd],
    patience: Patience,
) -> Result<(), PacketError> {
    let mut slices = [IoSlice::new(&[]), IoSlice::new(&[])];
    for (slice, part) in slices.iter_mut().zip(parts) {
        *slice = IoSlice::new(part);
    }
    loop {
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(PacketError::Files);
        }
        let blocking = waits_in_kernel(socket, PollFlags::OUT, patience)?;
        let flags = if blocking { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
        match sendmsg(socket, &slices, &mut control, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if patience.left().is_none_or(|left| !left.is_zero()) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives one packet into `buffer`; returns its size and the files that came with it.
pub(crate) fn receive(
    socket: BorrowedFd,
    buffer: &mut [u8],
    files_max: usize,
    patience: Patience,
) -> Result<(usize, Vec<OwnedFd>), PacketError> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let watched = patience.left().is_none_or(|left| left > WATCH).then(Instant::now);
    loop {
        let is_watching = watched.is_some_and(|began| began.elapsed() < WATCH);
        let mut control = match files_max {
            0 => RecvAncillaryBuffer::default(),
            _ => RecvAncillaryBuffer::new(&mut space),
        };
        let blocking = !is_watching && waits_in_kernel(socket, PollFlags::IN, patience)?;
        let flags = if blocking { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(message) => {
                let mut files = Vec::new();
                for item in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(some) = item {
                        files.extend(some);
                    }
                }
                if message.flags.contains(ReturnFlags::TRUNC) {
                    return Err(PacketError::Large);
                }
                if message.flags.contains(ReturnFlags::CTRUNC) || files.len() > files_max {
                    return Err(PacketError::Files);
                }
                // No packet of ours is empty, so an empty one is the end of the stream.
                return if message.bytes == 0 { Err(PacketError::Gone) } else { Ok((message.bytes, files)) };
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if is_watching => rustix::thread::sched_yield(),
            Err(Errno::AGAIN) if patience.left().is_none_or(|left| !left.is_zero()) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Borrows files for sending.
pub(crate) fn borrowed(files: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    files.iter().map(AsFd::as_fd).collect()
}
