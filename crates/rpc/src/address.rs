//! Addresses: `hf://HOST:PORT/FSID` names a file system (`hf://HOST:PORT,HOST:PORT/FSID` if several servers
//! stand in for each other), `HOST:PORT` a server, `hf+blocks://HOST:PORT/KEY` a block server
//! (`hf+blocks://HOST:PORT,HOST:PORT/KEY` if there are several).
//!
//! The file system's id is the digest of its superuser's key, so the address itself says what to trust; host
//! and port only say where to ask.

use holdfast_crypto::{Digest, PublicKey};
use std::fmt;
use std::str::FromStr;

/// Port of a server whose address does not say.
pub const DEFAULT_PORT: u16 = 7440;
/// Most servers in an address.
const SERVERS_MAX: usize = 16;
/// Port of a block server whose address does not say.
pub const BLOCKS_PORT: u16 = 7441;

/// The address of a server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerAddress {
    /// Name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// A file system and where to find it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// A server that has the file system.
    pub server: ServerAddress,
    /// Others that have it when that one does not.
    pub others: Vec<ServerAddress>,
    /// Its id.
    pub file_system: Digest,
}

/// The address of a block server, and its key: `hf+blocks://HOST:PORT/KEY`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlocksAddress {
    /// The address of the server.
    pub server: ServerAddress,
    /// The addresses of other servers with the same key and the same blocks.
    pub others: Vec<ServerAddress>,
    /// Its public key.
    pub key: PublicKey,
}

/// The text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text does not begin with `hf://`.
    #[error("'{0}' is not a file system address: it should read hf://HOST:PORT/FSID")]
    NoScheme(String),
    /// The part after the last slash is not 64 hexadecimal digits.
    #[error(
        "'{0}' does not name a file system: after the slash there must be its id, 64 hexadecimal digits, as \
         `holdfast fs create` printed it"
    )]
    BadFileSystem(String),
    /// No host, or one with characters no host has.
    #[error("'{0}' does not name a server: it should read HOST or HOST:PORT")]
    BadHost(String),
    /// The port is not a number from 1 to 65535.
    #[error("'{0}' does not name a server: the port must be a number from 1 to 65535")]
    BadPort(String),
    /// The text is no address of a block server.
    #[error(
        "'{0}' is not a block server's address: it should read hf+blocks://HOST:PORT/KEY, as `holdfast server blocks key` prints it"
    )]
    NotBlocks(String),
}

impl FromStr for ServerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        ServerAddress::parse(text, DEFAULT_PORT)
    }
}

impl ServerAddress {
    /// Parses one server, or several with commas between them: `HOST:PORT,HOST:PORT`. Returns the first, and
    /// the others.
    ///
    /// # Errors
    /// [`AddressError`]; one of them is not such an address, or there are more than 16.
    pub fn parse_several(text: &str) -> Result<(ServerAddress, Vec<ServerAddress>), AddressError> {
        several(text, DEFAULT_PORT)
    }

    fn parse(text: &str, default_port: u16) -> Result<Self, AddressError> {
        let bad_host = || AddressError::BadHost(text.to_owned());
        let (host, port) = if let Some(rest) = text.strip_prefix('[') {
            let (host, rest) = rest.split_once(']').ok_or_else(bad_host)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| bad_host())?;
            (host, rest.strip_prefix(':').or(rest.is_empty().then_some("")).ok_or_else(bad_host)?)
        } else {
            match text.split_once(':') {
                // A bare IPv6 address has more than one colon and no port.
                Some(_) if text.parse::<std::net::Ipv6Addr>().is_ok() => (text, ""),
                Some((host, port)) => (host, if port.is_empty() { "?" } else { port }),
                None => (text, ""),
            }
        };
        let host_is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        if host.is_empty() || host.len() > 255 || !host.chars().all(host_is_plain) {
            return Err(bad_host());
        }
        let port = match port {
            "" => default_port,
            digits => match digits.parse::<u16>() {
                Ok(port) if port > 0 => port,
                _ => return Err(AddressError::BadPort(text.to_owned())),
            },
        };
        Ok(ServerAddress { host: host.to_owned(), port })
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Servers with commas between them: the first, and others.
fn several(text: &str, default_port: u16) -> Result<(ServerAddress, Vec<ServerAddress>), AddressError> {
    let mut servers = text.split(',').map(|server| ServerAddress::parse(server, default_port));
    let first = servers.next().unwrap_or_else(|| Err(AddressError::BadHost(text.to_owned())))?;
    let others = servers.collect::<Result<Vec<ServerAddress>, _>>()?;
    if others.len() >= SERVERS_MAX {
        return Err(AddressError::BadHost(text.to_owned()));
    }
    Ok((first, others))
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let rest = text.strip_prefix("hf://").ok_or_else(|| AddressError::NoScheme(text.to_owned()))?;
        let (server, id) =
            rest.split_once('/').ok_or_else(|| AddressError::BadFileSystem(text.to_owned()))?;
        let file_system = Digest::from_hex(id.trim_end_matches('/'))
            .ok_or_else(|| AddressError::BadFileSystem(text.to_owned()))?;
        let (server, others) = several(server, DEFAULT_PORT)?;
        Ok(Address { server, others, file_system })
    }
}

impl Address {
    /// All servers that may have the file system, in the order in which they are tried.
    pub fn servers(&self) -> Vec<ServerAddress> {
        std::iter::once(&self.server).chain(&self.others).cloned().collect()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf://{}", self.server)?;
        self.others.iter().try_for_each(|other| write!(f, ",{other}"))?;
        write!(f, "/{}", self.file_system)
    }
}

impl FromStr for BlocksAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError::NotBlocks(text.to_owned());
        let (server, key) =
            text.strip_prefix("hf+blocks://").and_then(|rest| rest.split_once('/')).ok_or_else(wrong)?;
        let key = Digest::from_hex(key.trim_end_matches('/')).ok_or_else(wrong)?;
        let (server, others) = several(server, BLOCKS_PORT)?;
        Ok(BlocksAddress { server, others, key: PublicKey(key.0) })
    }
}

impl BlocksAddress {
    /// All servers that may have the blocks, in the order in which they are tried.
    pub fn servers(&self) -> Vec<ServerAddress> {
        std::iter::once(&self.server).chain(&self.others).cloned().collect()
    }
}

impl fmt::Display for BlocksAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf+blocks://{}", self.server)?;
        self.others.iter().try_for_each(|other| write!(f, ",{other}"))?;
        write!(f, "/{}", self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: every form of address is read, printed back, and read again as the same.
    #[test]
    fn addresses_round_trip() {
        let id = "ab".repeat(32);
        for (text, host, port) in [
            ("example.org:7000", "example.org", 7000),
            ("example.org", "example.org", DEFAULT_PORT),
            ("10.0.0.1:9", "10.0.0.1", 9),
            ("[::1]:9", "::1", 9),
            ("[::1]", "::1", DEFAULT_PORT),
            ("::1", "::1", DEFAULT_PORT),
        ] {
            let server: ServerAddress = text.parse().unwrap();
            assert_eq!((server.host.as_str(), server.port), (host, port), "{text}");
            assert_eq!(server.to_string().parse::<ServerAddress>().unwrap(), server);
            let address: Address = format!("hf://{text}/{id}").parse().unwrap();
            assert_eq!(address.server, server);
            assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
            let several: Address = format!("hf://{text},b:2,[::2]/{id}").parse().unwrap();
            assert_eq!((several.servers().len(), &several.server), (3, &server));
            assert_eq!(several.to_string().parse::<Address>().unwrap(), several);
        }
    }

    /// Proves: addresses of block servers are read and printed back, with a port of their own, and nothing
    /// else passes.
    #[test]
    fn block_servers_have_addresses() {
        let key = "cd".repeat(32);
        for (text, port) in [("blocks.example.org", BLOCKS_PORT), ("[::1]:9", 9)] {
            let address: BlocksAddress = format!("hf+blocks://{text}/{key}").parse().unwrap();
            assert_eq!((address.server.port, address.key.to_string()), (port, key.clone()));
            assert_eq!(address.to_string().parse::<BlocksAddress>().unwrap(), address);
            let several: BlocksAddress = format!("hf+blocks://{text},b:2,[::2]/{key}").parse().unwrap();
            assert_eq!((several.servers().len(), &several.server), (3, &address.server));
            assert_eq!(several.servers()[2].port, BLOCKS_PORT);
            assert_eq!(several.to_string().parse::<BlocksAddress>().unwrap(), several);
        }
        for text in [format!("hf://h/{key}"), "hf+blocks://h".to_owned(), "hf+blocks://h/12".to_owned()] {
            assert!(matches!(text.parse::<BlocksAddress>(), Err(AddressError::NotBlocks(_))), "{text}");
        }
    }

    /// Proves: wrong addresses are distinguished, so that the message can say how to correct them.
    #[test]
    fn wrong_addresses_are_explained() {
        let id = "ab".repeat(32);
        let error = |text: &str| text.parse::<Address>().unwrap_err();
        assert!(matches!(error(&format!("http://h/{id}")), AddressError::NoScheme(_)));
        assert!(matches!(error("hf://h"), AddressError::BadFileSystem(_)));
        assert!(matches!(error("hf://h/12"), AddressError::BadFileSystem(_)));
        assert!(matches!(error(&format!("hf:///{id}")), AddressError::BadHost(_)));
        assert!(matches!(error(&format!("hf://a b/{id}")), AddressError::BadHost(_)));
        assert!(matches!(error(&format!("hf://[::1/{id}")), AddressError::BadHost(_)));
        assert!(matches!(error(&format!("hf://h,/{id}")), AddressError::BadHost(_)));
        assert!(matches!(error(&format!("hf://{}/{id}", vec!["h"; 17].join(","))), AddressError::BadHost(_)));
        for port in ["0", "65536", "x", "", "-1"] {
            assert!(matches!(error(&format!("hf://h:{port}/{id}")), AddressError::BadPort(_)), "{port}");
        }
    }
}
