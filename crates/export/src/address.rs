//! The address where a server listens.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// The port of NBD.
const PORT: u16 = 10809;

/// An address to listen on: `unix:PATH`, `IP:PORT`, `IP`, or `:PORT` of this machine only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A socket in the file system, which only its owner may connect to.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

/// The text is not an address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no address to listen on: give unix:PATH, IP:PORT, or :PORT for this machine only")]
pub struct BadAddress(String);

impl Address {
    /// Whether only this machine can connect.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Unix(_) => true,
            Address::Tcp(address) => address.ip().is_loopback(),
        }
    }

    /// The URI by which clients of libnbd and qemu name the address.
    pub fn uri(&self) -> String {
        match self {
            Address::Unix(path) => format!("nbd+unix:///?socket={}", path.display()),
            Address::Tcp(address) => format!("nbd://{address}"),
        }
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        let bad = || BadAddress(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad()) } else { Ok(Address::Unix(path.into())) };
        }
        let here =
            || Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), text.strip_prefix(':')?.parse().ok()?));
        let address = text.parse().or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PORT)));
        address.ok().or_else(here).map(Address::Tcp).ok_or_else(bad)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: each text means one address, names are not looked up, and this machine is distinguished from
    /// others.
    #[test]
    fn addresses() {
        let read =
            |text: &str| text.parse::<Address>().map(|address| (address.to_string(), address.is_local()));
        assert_eq!(read("unix:/run/a b"), Ok(("unix:/run/a b".into(), true)));
        assert_eq!(read(":10810"), Ok(("127.0.0.1:10810".into(), true)));
        assert_eq!(read("::1"), Ok(("[::1]:10809".into(), true)));
        assert_eq!(read("[::]:1"), Ok(("[::]:1".into(), false)));
        assert_eq!(read("192.0.2.1:7"), Ok(("192.0.2.1:7".into(), false)));
        for bad in ["", "unix:", "localhost:1", ":", ":65536", "1.2.3:4"] {
            assert_eq!(read(bad), Err(BadAddress(bad.into())));
        }
    }
}
