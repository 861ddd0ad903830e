//! Credentials from the usual places, in the order of Amazon's SDK: the environment, a profile of the shared
//! file, a web identity, the container, the machine.
//!
//! The environment and files are read for every request, so that new credentials are used at once. Temporary
//! credentials from a service are cached until shortly before they expire ([`refresh`]).
//!
//! Secrets are in no message, no URL and no argument of a command, and are overwritten in memory when they
//! are not needed any more.

mod container;
mod identity;
mod machine;
mod refresh;
mod shared_file;
mod web_identity;

use identity::{Identity, IdentityError};
use refresh::RefreshedCredentials;
use shared_file::SharedFile;
use std::fmt;
use std::sync::OnceLock;
use std::time::SystemTime;
use zeroize::Zeroizing;

/// An access key with its secret. `Debug` does not print it.
#[derive(Clone)]
pub struct Credentials {
    /// The access key's ID.
    pub key_id: String,
    /// Its secret.
    pub secret: Zeroizing<String>,
    /// The token of temporary credentials.
    pub token: Option<Zeroizing<String>>,
    /// Where they come from, for messages.
    pub from: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials from {}", self.from)
    }
}

/// Why there are no credentials.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CredentialsError {
    /// No place has any.
    #[error(
        "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them to {file} (profile \
         '{profile}'), or give this machine or container a role. Tried: {tried}"
    )]
    None {
        /// The file that was looked for.
        file: String,
        /// The profile that was looked for.
        profile: String,
        /// Every place that was tried, and why it has none.
        tried: String,
    },
    /// The file cannot be read.
    #[error("the credentials in {file} cannot be read: {why}")]
    Unreadable {
        /// The file.
        file: String,
        /// The reason.
        why: String,
    },
    /// A service that gives credentials does not reply, or cannot at the moment: it is worth trying again.
    #[error("{source_name} gives no credentials now: {why}")]
    Unavailable {
        /// The service.
        source_name: String,
        /// The reason.
        why: String,
    },
    /// A service refuses to give credentials, or what it needs is wrong or absent.
    #[error("{source_name} gives no credentials: {why}")]
    Refused {
        /// The service.
        source_name: String,
        /// The reason, and what to do.
        why: String,
    },
}

/// The value of a variable of the environment, unless it is absent or empty.
type Variable = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The places where credentials are looked for, with a cache of what services have given.
pub struct CredentialChain {
    variable: Variable,
    web_identity: RefreshedCredentials,
    container: RefreshedCredentials,
    machine: RefreshedCredentials,
}

impl Credentials {
    /// The credentials of this process: those of the environment (`AWS_ACCESS_KEY_ID`,
    /// `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`), or of the first other place of [`CredentialChain`] that
    /// has any. It may send a request to a service, and waits some seconds for it at most.
    ///
    /// # Errors
    /// [`CredentialsError`]
    pub fn find() -> Result<Credentials, CredentialsError> {
        static CHAIN: OnceLock<CredentialChain> = OnceLock::new();
        let chain = CHAIN.get_or_init(|| CredentialChain::new(|name| std::env::var(name).ok()));
        chain.find(SystemTime::now())
    }
}

impl CredentialChain {
    /// The places that an environment names. `variable` is called each time a variable is needed.
    pub fn new(variable: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> CredentialChain {
        CredentialChain {
            variable: Box::new(move |name| variable(name).filter(|value| !value.is_empty())),
            web_identity: RefreshedCredentials::default(),
            container: RefreshedCredentials::default(),
            machine: RefreshedCredentials::default(),
        }
    }

    /// Credentials that are valid at `now`.
    ///
    /// # Errors
    /// [`CredentialsError`]
    pub fn find(&self, now: SystemTime) -> Result<Credentials, CredentialsError> {
        let set = &*self.variable;
        if let (Some(key_id), Some(secret)) = (set("AWS_ACCESS_KEY_ID"), set("AWS_SECRET_ACCESS_KEY")) {
            return Ok(Credentials {
                key_id,
                secret: Zeroizing::new(secret),
                token: set("AWS_SESSION_TOKEN").map(Zeroizing::new),
                from: "the environment (AWS_ACCESS_KEY_ID)".to_owned(),
            });
        }
        let mut tried =
            vec!["the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not both set)".to_owned()];
        let shared = SharedFile::of(set);
        if let Some(credentials) = shared.read()? {
            return Ok(credentials);
        }
        tried.push(format!("{} (it has no keys of profile '{}')", shared.shown(), shared.profile));
        // A user who names a profile wants that one, and not the machine's role.
        if set("AWS_PROFILE").is_none() {
            let places: [(_, fn(identity::Environment<'_>) -> _, _); 3] = [
                ("the web identity", web_identity::of, &self.web_identity),
                ("the container's credentials service", container::of, &self.container),
                ("the machine's metadata service", machine::of, &self.machine),
            ];
            for (source_name, of, refreshed) in places {
                let found = of(set).and_then(|identity: Box<dyn Identity>| refreshed.get(&*identity, now));
                let source_name = source_name.to_owned();
                match found {
                    Ok(credentials) => return Ok(credentials),
                    Err(IdentityError::Absent(why)) => tried.push(format!("{source_name} ({why})")),
                    Err(IdentityError::Unavailable(why)) => {
                        return Err(CredentialsError::Unavailable { source_name, why });
                    }
                    Err(IdentityError::Refused(why)) => {
                        return Err(CredentialsError::Refused { source_name, why });
                    }
                }
            }
        }
        Err(CredentialsError::None {
            file: shared.shown(),
            profile: shared.profile.clone(),
            tried: tried.join("; "),
        })
    }
}
