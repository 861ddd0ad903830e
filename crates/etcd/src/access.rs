//! The address of etcd, `etcd://A,B,C/PREFIX`, and a file with the login, which must not be visible in a list
//! of processes.
//!
//! ```text
//! user = holdfast            name and password, if etcd asks for them
//! password = ...
//! ca = /etc/etcd/ca.pem      whose word counts for the members' certificates; without it, the machine's authorities
//! certificate = /etc/...     this client's own certificate and key, if etcd asks for one
//! key = /etc/...
//! ```

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use zeroize::Zeroizing;

/// Port of a member whose address does not say.
const DEFAULT_PORT: u16 = 2379;

/// Members of a cluster and the prefix of all keys: `etcd://HOST:PORT,HOST:PORT/PREFIX`, or `etcds://…` over TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// Whether TLS is spoken.
    pub is_tls: bool,
    /// The members, each `HOST:PORT`.
    pub members: Vec<String>,
    /// Prefix of all keys, without a slash at either end.
    pub prefix: String,
}

/// The text is no address of etcd, or the file is no login.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The text is no address of etcd.
    #[error(
        "'{0}' does not say where etcd is: it should read etcd://HOST:PORT,HOST:PORT/PREFIX, or etcds:// for TLS"
    )]
    NotEtcd(String),
    /// A file cannot be used.
    #[error("{path}: {why}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

impl FromStr for Access {
    type Err = AccessError;

    fn from_str(text: &str) -> Result<Self, AccessError> {
        let wrong = || AccessError::NotEtcd(text.to_owned());
        let (is_tls, rest) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(wrong()),
        };
        let (members, prefix) = rest.split_once('/').ok_or_else(wrong)?;
        let prefix = prefix.trim_matches('/');
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if prefix.is_empty() || !prefix.chars().all(|c| is_plain(c) || c == '/') {
            return Err(wrong());
        }
        let member = |member: &str| {
            let is_good =
                !member.is_empty() && member.chars().all(|c| is_plain(c) || matches!(c, ':' | '[' | ']'));
            let has_port =
                member.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
            let with_port = if has_port { member.to_owned() } else { format!("{member}:{DEFAULT_PORT}") };
            is_good.then_some(with_port)
        };
        let members: Option<Vec<String>> = members.split(',').map(member).collect();
        Ok(Access { is_tls, members: members.ok_or_else(wrong)?, prefix: prefix.to_owned() })
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}/{}", self.members.join(","), self.prefix)
    }
}

/// The contents of a login file.
#[derive(Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Zeroizing<String>,
    pub(crate) authority: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl Login {
    pub(crate) fn read(path: &Path) -> Result<Login, AccessError> {
        let failed = |why: String| AccessError::File { path: path.to_owned(), why };
        let text = Zeroizing::new(std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?);
        let mut login = Login::default();
        let lines = text.lines().map(str::trim).enumerate();
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            match line.split_once('=').map(|(name, value)| (name.trim(), value.trim())) {
                Some(("user", value)) => login.user = Some(value.to_owned()),
                Some(("password", value)) => login.password = Zeroizing::new(value.to_owned()),
                Some(("ca", value)) => login.authority = Some(value.into()),
                Some(("certificate", value)) => login.certificate = Some(value.into()),
                Some(("key", value)) => login.key = Some(value.into()),
                // Never the line itself: it may contain a password.
                _ => {
                    return Err(failed(format!(
                        "line {} is none of user, password, ca, certificate, key",
                        number + 1
                    )));
                }
            }
        }
        if login.certificate.is_some() != login.key.is_some() {
            return Err(failed("a certificate and its key come together".to_owned()));
        }
        Ok(login)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: addresses are read and printed back, and nothing else passes.
    #[test]
    fn addresses_round_trip() {
        let access: Access = "etcd://a:1,b,[::1]:3/holdfast/one/".parse().unwrap();
        assert_eq!(access.members, ["a:1", "b:2379", "[::1]:3"]);
        assert_eq!((access.is_tls, access.prefix.as_str()), (false, "holdfast/one"));
        assert_eq!(access.to_string().parse::<Access>().unwrap(), access);
        assert!("etcds://a/p".parse::<Access>().unwrap().is_tls);
        for text in [
            "a:1",
            "etcd://a",
            "etcd://a/",
            "etcd:///p",
            "etcd://a,/p",
            "etcd://u:p@a/p",
            "etcd://a/p?q",
            "http://a/p",
        ] {
            assert!(matches!(text.parse::<Access>(), Err(AccessError::NotEtcd(_))), "{text}");
        }
    }

    /// Proves: an error in a login file is reported without printing its content.
    #[test]
    fn logins_are_read() {
        let path = std::env::temp_dir().join(format!("holdfast-etcd-login-{}", std::process::id()));
        std::fs::write(&path, "# ours\nuser = u\npassword = a=b\nca = /x\n").unwrap();
        let login = Login::read(&path).unwrap();
        assert_eq!((login.user.as_deref(), login.password.as_str()), (Some("u"), "a=b"));
        std::fs::write(&path, "secret\n").unwrap();
        let error = Login::read(&path).err().unwrap().to_string();
        assert!(error.contains("line 1") && !error.contains("secret"), "{error}");
        std::fs::write(&path, "certificate = /c\n").unwrap();
        assert!(Login::read(&path).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
