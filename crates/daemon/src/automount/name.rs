//! Self-certifying names: `@HOST[:PORT][!DIR...],ID` (the paper's self-certifying pathnames), or
//! `@HOST[:PORT],HOST[:PORT]...,ID` if several servers can stand in for each other.
//!
//! Only the ID is trusted: the id of a release or of a writable file system. Host, port and directories only
//! say where to ask. A name is one component of a path, so the directories of a URL are separated by `!`.

use holdfast_crypto::Digest;
use holdfast_rpc::{Address, ServerAddress};

/// A parsed name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    /// Host and, if given, port, as in a URL.
    location: String,
    /// The same, as the server of a writable file system.
    server: ServerAddress,
    /// Further servers of a writable file system, for when the first does not answer. A mirror has none.
    others: Vec<ServerAddress>,
    /// Directories at a web server, each followed by a slash.
    path: String,
    /// The ID, which decides what is mounted.
    pub id: Digest,
}

impl Name {
    /// Parses a name; `None` if it has another form. The ID must be in lower case, so that it has one
    /// spelling.
    pub fn parse(name: &[u8]) -> Option<Name> {
        let text = std::str::from_utf8(name).ok()?.strip_prefix('@')?;
        let (place, id) = text.rsplit_once(',')?;
        if !id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let id = Digest::from_hex(id)?;
        let mut parts = place.split('!');
        let location = parts.next()?.to_owned();
        // A URL needs brackets around an IPv6 address.
        let bare = |server: &str| !server.starts_with('[') && server.matches(':').count() > 1;
        if location.split(',').any(bare) {
            return None;
        }
        let (server, others) = ServerAddress::parse_several(&location).ok()?;
        let mut path = String::new();
        for part in parts {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%+=@".contains(&byte);
            if part.is_empty() || part == "." || part == ".." || !part.bytes().all(plain) {
                return None;
            }
            path.push_str(part);
            path.push('/');
        }
        let may_be_something = others.is_empty() || path.is_empty();
        may_be_something.then_some(Name { location, server, others, path, id })
    }

    /// The address of the writable file system that the name may stand for; `None` if it has directories.
    pub fn file_system(&self) -> Option<Address> {
        self.path.is_empty().then(|| Address {
            server: self.server.clone(),
            others: self.others.clone(),
            file_system: self.id,
        })
    }

    /// The URL of the mirror that the name may stand for; `None` if it has several servers.
    pub fn mirror(&self, scheme: &str) -> Option<String> {
        self.others.is_empty().then(|| format!("{scheme}://{}/{}", self.location, self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> String {
        "5e".repeat(32)
    }

    /// Proves: every form of name yields the addresses for both protocols.
    #[test]
    fn names_are_understood() {
        for (place, mirror, server) in [
            ("example.org", "https://example.org/", Some("example.org:7440")),
            ("example.org:8080", "https://example.org:8080/", Some("example.org:8080")),
            ("10.0.0.1:1", "https://10.0.0.1:1/", Some("10.0.0.1:1")),
            ("[::1]", "https://[::1]/", Some("[::1]:7440")),
            ("[::1]:9", "https://[::1]:9/", Some("[::1]:9")),
            ("example.org!pub!a%20b", "https://example.org/pub/a%20b/", None),
            ("example.org:1!x", "https://example.org:1/x/", None),
        ] {
            let name = Name::parse(format!("@{place},{}", id()).as_bytes()).expect(place);
            assert_eq!(name.mirror("https").as_deref(), Some(mirror));
            let address = name.file_system().map(|address| address.server.to_string());
            assert_eq!(address.as_deref(), server, "{place}");
            assert_eq!(name.id.to_string(), id());
        }
    }

    /// Proves: servers that stand in for each other are named together, and such a name yields no mirror.
    #[test]
    fn several_servers_in_one_name() {
        let name = Name::parse(format!("@a.example.org,[::1]:9,{}", id()).as_bytes()).expect("a name");
        assert_eq!(name.mirror("https"), None);
        let address = name.file_system().expect("a file system");
        assert_eq!(address.to_string(), format!("hf://a.example.org:7440,[::1]:9/{}", id()));
    }

    /// Proves: other names are rejected at once, including all those that shells and desktops look for.
    #[test]
    fn other_names_are_none() {
        let id = id();
        for name in [
            ".git".to_owned(),
            ".Trash-1000".to_owned(),
            id.clone(),
            format!("example.org,{id}"),
            "@example.org".to_owned(),
            "@example.org,".to_owned(),
            format!("@,{id}"),
            format!("@example.org,{}", &id[1..]),
            format!("@example.org,{}", id.to_uppercase()),
            format!("@example.org,{}", "g".repeat(64)),
            format!("@example.org:0,{id}"),
            format!("@example.org:99999,{id}"),
            format!("@::1,{id}"),
            format!("@a b,{id}"),
            format!("@user@host,{id}"),
            format!("@h!,{id}"),
            format!("@h,,{id}"),
            format!("@h,::1,{id}"),
            format!("@h,g!d,{id}"),
            format!("@h!..,{id}"),
            format!("@h!a?b,{id}"),
            format!("@h!a#b,{id}"),
            format!("@h\n,{id}"),
        ] {
            assert_eq!(Name::parse(name.as_bytes()), None, "{name}");
        }
        assert_eq!(Name::parse(&[b'@', 0xff]), None);
    }
}
