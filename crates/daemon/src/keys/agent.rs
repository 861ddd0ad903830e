//! Keys in an SSH agent: lists them, and signs with one of them.
//!
//! Each request has a connection of its own, so the agent may be restarted at the same socket while a mount
//! is in use. Every wait is bounded. A key is asked for one signature at a time, because the agent may have
//! to ask a person.

use holdfast_client::processes::connect_to_agent;
use holdfast_crypto::agent::{self, Identity};
use holdfast_crypto::{KeyHolder, PublicKey, SignError, Signature, keyfile};
use holdfast_failure::{Exit, Failure, Outcome};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The environment variable with the agent's socket.
const SOCKET: &str = "SSH_AUTH_SOCK";

/// An agent at a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agent {
    socket: PathBuf,
}

impl Agent {
    /// The agent that the environment names.
    ///
    /// # Errors
    /// The environment names no agent.
    pub fn of_environment() -> Outcome<Agent> {
        let named: Option<OsString> = std::env::var_os(SOCKET).filter(|path| !path.is_empty());
        let Some(path) = named else {
            return Err(Failure::new(
                Exit::NoInput,
                format!("{SOCKET} is not set, so there is no SSH agent to ask"),
            )
            .hint("start one and give it the key: eval \"$(ssh-agent)\"; ssh-add KEYFILE"));
        };
        let socket = std::path::absolute(&path).unwrap_or_else(|_| PathBuf::from(path));
        Ok(Agent { socket })
    }

    /// The agent at `socket`.
    pub fn at(socket: PathBuf) -> Agent {
        Agent { socket }
    }

    /// The key with this public half.
    ///
    /// # Errors
    /// The agent does not have the key, or does not answer.
    pub fn key(&self, public: PublicKey) -> Outcome<AgentKey> {
        let held = self.identities()?;
        if held.iter().any(|identity| identity.key == Some(public)) {
            return Ok(AgentKey::new(self.clone(), public));
        }
        let name = keyfile::fingerprint(&public);
        Err(self.lacks(&format!("the key {name}"), &held))
    }

    /// The key with this fingerprint (`SHA256:...`) or comment.
    ///
    /// # Errors
    /// The agent does not answer, or has no such key, or several, or Holdfast cannot use its type.
    pub fn find(&self, wanted: &str) -> Outcome<AgentKey> {
        let held = self.identities()?;
        let fits = |identity: &&Identity| identity.fingerprint == wanted || identity.comment == wanted;
        let found: Vec<&Identity> = held.iter().filter(fits).collect();
        match found[..] {
            [] => Err(self.lacks(&format!("a key '{wanted}'"), &held)),
            [identity] => match identity.key {
                Some(public) => Ok(AgentKey::new(self.clone(), public)),
                None => Err(Failure::new(
                    Exit::NoInput,
                    format!(
                        "{self}: the key '{wanted}' is {}; Holdfast uses Ed25519 keys",
                        identity.algorithm
                    ),
                )
                .hint("make one with `ssh-keygen -t ed25519` and add it with `ssh-add`")),
            },
            _ => Err(Failure::new(Exit::NoInput, format!("{self} holds several keys '{wanted}'"))
                .hint(format!("name one by its fingerprint; {}", agent::list(&held)))),
        }
    }

    fn identities(&self) -> Outcome<Vec<Identity>> {
        let failed = |error: &dyn std::fmt::Display| Failure::new(Exit::NoInput, format!("{self}: {error}"));
        let answer = self.ask(&agent::identities_request()).map_err(|error| failed(&error))?;
        agent::identities(&answer).map_err(|error| failed(&error))
    }

    fn lacks(&self, what: &str, held: &[Identity]) -> Failure {
        Failure::new(Exit::NoInput, format!("{self} does not hold {what}; {}", agent::list(held)))
            .hint("add it with `ssh-add KEYFILE`, or unlock the agent with `ssh-add -X` if it is locked")
    }

    fn ask(&self, question: &[u8]) -> io::Result<Vec<u8>> {
        agent::converse(&mut connect_to_agent(&self.socket)?, question)
    }
}

impl std::fmt::Display for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the SSH agent at {}", self.socket.display())
    }
}

/// A key in an agent.
#[derive(Debug)]
pub struct AgentKey {
    agent: Agent,
    public: PublicKey,
    /// Held for one signature at a time.
    asking: Mutex<()>,
}

impl Clone for AgentKey {
    fn clone(&self) -> AgentKey {
        AgentKey::new(self.agent.clone(), self.public)
    }
}

impl AgentKey {
    /// The key with this public half, whether or not the agent has it at present.
    pub fn new(agent: Agent, public: PublicKey) -> AgentKey {
        AgentKey { agent, public, asking: Mutex::default() }
    }

    /// The agent's socket.
    pub fn socket(&self) -> &std::path::Path {
        &self.agent.socket
    }
}

impl KeyHolder for AgentKey {
    fn public(&self) -> PublicKey {
        self.public
    }

    fn sign_message(&self, message: &[u8]) -> Result<Signature, SignError> {
        let _turn = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ask = |question: &[u8]| self.agent.ask(question).map_err(|error| error.to_string());
        agent::sign(&self.agent.to_string(), &self.public, message, &mut ask)
    }
}
