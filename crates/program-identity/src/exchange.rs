//! How a command exchanges messages with the process that serves a mount: through the mount itself, by an
//! `ioctl` on one of its directories.
//!
//! So the command reaches exactly the process that serves that mount, as the user that the kernel reports. It
//! needs neither a name to connect to nor any right except to enter the directory. There is one ioctl number
//! with one size: both ends limit what they accept, and the kernel copies in both directions.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Bytes of a message with its length field: a little less than an ioctl's number can express.
pub const BYTES: usize = 16_000;
/// The ioctl: reads and writes [`BYTES`]; kind `H`, number 1.
pub const NUMBER: u32 = 3 << 30 | (BYTES as u32) << 16 | (b'H' as u32) << 8 | 1;
/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = BYTES - 4;
const _: () = assert!(BYTES < 1 << 14);

/// Encodes a message; `None` if it is too long.
pub fn pack(message: &[u8]) -> Option<Vec<u8>> {
    if message.len() > MESSAGE_BYTES_MAX {
        return None;
    }
    let mut bytes = (message.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(message);
    bytes.resize(BYTES, 0);
    Some(bytes)
}

/// Decodes a message; `None` if the bytes have none.
pub fn unpack(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.get(..u32::from_le_bytes(*length) as usize)
}

/// Sends a message to the process that serves the mount of this directory, and returns the reply.
///
/// # Errors
/// It is a mount of another kind ([`is_unheard`]), the message is too long, or the mount is gone.
pub fn exchange(directory: &File, message: &[u8]) -> io::Result<Vec<u8>> {
    let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "the order is too long for one message");
    let mut bytes = pack(message).ok_or_else(too_long)?;
    debug_assert_eq!(bytes.len(), BYTES);
    // SAFETY: the number says that BYTES bytes are read and written at the address, which is that of a buffer of
    // exactly so many that outlives the call; a file system that knows the number otherwise would go by the same size,
    // as it is part of the number.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), NUMBER as _, bytes.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let none =
        || io::Error::new(io::ErrorKind::InvalidData, "whoever serves the mount answered something else");
    unpack(&bytes).map(<[u8]>::to_vec).ok_or_else(none)
}

/// Whether an error says that the mount's process does not understand such messages.
pub fn is_unheard(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages are restored when decoded; truncated ones, or ones with a wrong length, are refused; the
    /// ioctl number never changes.
    #[test]
    fn messages() {
        for length in [0, 1, 500, MESSAGE_BYTES_MAX] {
            let message = vec![7; length];
            let packed = pack(&message).expect("it fits");
            assert_eq!((packed.len(), unpack(&packed)), (BYTES, Some(&*message)));
        }
        assert_eq!(pack(&vec![0; MESSAGE_BYTES_MAX + 1]), None);
        assert_eq!(unpack(&[1, 0, 0]), None);
        assert_eq!(unpack(&[9, 0, 0, 0, 1]), None);
        assert_eq!(unpack(&[0xff; 20]), None);
        assert_eq!(NUMBER, 0xfe80_4801);
    }

    /// Another file system does not understand the message, and says so.
    #[test]
    fn unheard() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = exchange(&File::open(folder.path()).expect("opens"), b"hello").expect_err("not there");
        assert!(is_unheard(&error), "{error}");
    }
}
