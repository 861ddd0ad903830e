//! Keys that an SSH agent keeps: which there are, and signatures with one of them.
//!
//! Each question has a connection of its own, so an agent may be ended and started again at the same socket while
//! a mount goes on. Every wait has an end, and a key is asked for one signature at a time, as the agent may in
//! turn ask a person.

use crate::exit::{Exit, Failure, Outcome};
use holdfast_crypto::agent::{self, ANSWER_BYTES_MAX, Identity, NotAnAgent};
use holdfast_crypto::{KeyHolder, NotSigned, PublicKey, Signature, keyfile};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Names the agent's socket.
const SOCKET: &str = "SSH_AUTH_SOCK";
/// How long to wait for the agent, which may have to ask a person.
const PATIENCE: Duration = Duration::from_secs(30);

/// An agent at a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agent {
    socket: PathBuf,
}

impl Agent {
    /// The one that the environment names.
    ///
    /// # Errors
    /// It names none.
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
    /// It is not there, or the agent does not answer.
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
    /// It is not there, there are several, it is none that Holdfast can use, or the agent does not answer.
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
                .hint(format!("name one by its fingerprint; {}", list(&held)))),
        }
    }

    fn identities(&self) -> Outcome<Vec<Identity>> {
        self.list_identities().map_err(|why| Failure::new(Exit::NoInput, why))
    }

    fn list_identities(&self) -> Result<Vec<Identity>, String> {
        let answer = self.ask(&agent::ask_identities()).map_err(|error| format!("{self}: {error}"))?;
        agent::identities(&answer).map_err(|error| format!("{self}: {error}"))
    }

    fn lacks(&self, what: &str, held: &[Identity]) -> Failure {
        Failure::new(Exit::NoInput, format!("{self} does not hold {what}; {}", list(held)))
            .hint("add it with `ssh-add KEYFILE`, or unlock the agent with `ssh-add -X` if it is locked")
    }

    fn ask(&self, question: &[u8]) -> io::Result<Vec<u8>> {
        let unanswered = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::other(format!("no answer within {} s", PATIENCE.as_secs()))
            }
            io::ErrorKind::UnexpectedEof => io::Error::other("it hung up"),
            _ => error,
        };
        self.converse(question).map_err(unanswered)
    }

    fn converse(&self, question: &[u8]) -> io::Result<Vec<u8>> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // For a Unix socket this also bounds the wait for being accepted.
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        let mut stream = UnixStream::from(socket);
        stream.write_all(question)?;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > ANSWER_BYTES_MAX {
            return Err(io::Error::other(NotAnAgent));
        }
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    }
}

impl std::fmt::Display for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the SSH agent at {}", self.socket.display())
    }
}

/// What an agent holds, in words.
fn list(held: &[Identity]) -> String {
    let words = |identity: &Identity| {
        format!("{} {} ({})", identity.fingerprint, identity.comment, identity.algorithm)
    };
    match held {
        [] => "it holds no keys".to_owned(),
        held => format!("it holds {}", held.iter().map(words).collect::<Vec<_>>().join(", ")),
    }
}

/// A key in an agent.
#[derive(Debug)]
pub struct AgentKey {
    agent: Agent,
    public: PublicKey,
    /// One signature at a time.
    asking: Mutex<()>,
}

impl AgentKey {
    /// The key with this public half, whether the agent holds it now or not.
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

    fn sign_message(&self, message: &[u8]) -> Result<Signature, NotSigned> {
        let _turn = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let agent = &self.agent;
        let away = |why: String| NotSigned::Away(format!("{agent}: {why}"));
        let answer = agent
            .ask(&agent::ask_signature(&self.public, message))
            .map_err(|error| away(error.to_string()))?;
        let signature =
            agent::signature(&answer, &self.public, message).map_err(|error| away(error.to_string()))?;
        if let Some(signature) = signature {
            return Ok(signature);
        }
        let name = keyfile::fingerprint(&self.public);
        let held = agent.list_identities().map_err(NotSigned::Away)?;
        if held.iter().any(|identity| identity.key == Some(self.public)) {
            Err(NotSigned::Refused(format!(
                "{agent} holds the key {name} and refused to sign; it may ask for a confirmation that was not \
                 given, or the key was added for certain hosts only"
            )))
        } else {
            Err(away(format!(
                "it no longer holds the key {name}; {}; `ssh-add KEYFILE` adds it",
                list(&held)
            )))
        }
    }
}
