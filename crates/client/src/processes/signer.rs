//! The signer: the only process with the device's key, which it uses as its [`Mandate`] allows.
//!
//! It reads nothing from the network and opens nothing. The key comes through a pipe that only it reads. Its
//! record of signatures is durable in a file that only it has open, before a signature is given out. Two
//! processes request signatures: the main process, for messages of the protocol; and the network process, for
//! TLS handshakes. Neither can get signatures meant for the other.
//!
//! Attack answered: an intruder in the process that mounts, or in the one that reads from the network, gets
//! signatures only while the intrusion lasts, and no two that contradict each other.

use super::messages::{
    AGENT, HANDSHAKE, HANDSHAKE_BYTES_MAX, KeyLocation, SIGN, SignerReply, SignerRequest, SigningPayload,
    WHOLE_BYTES_MAX,
};
use super::two_slot_file::TwoSlotFile;
use holdfast_components::{Asker, Context, Patience, Refusal, Reply, Request};
use holdfast_content::Restore;
use holdfast_crypto::{
    Digest, KeyHolder, PublicKey, SignError, SignRequest, Signature, SigningKey, agent, decode,
};
use holdfast_protocol::mandate::{Mandate, is_tls_handshake, is_tls_server_handshake};
use std::fmt;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// How long the main process may take to connect to an agent.
const AGENT_PATIENCE: Duration = Duration::from_secs(40);

/// Entry point of the signer, as a component.
pub(super) fn main(context: Context) -> ExitCode {
    let agent = match context.ports.asker(AGENT) {
        Ok(agent) => Arc::new(agent),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut state = State { agent, part: Vec::new(), key: None, mandate: None, meets_peers: false };
    match context.ports.serve(|request| state.answer(request)) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

struct State {
    agent: Arc<Asker<(), Result<(), String>>>,
    /// The parts of a long message received so far.
    part: Vec<u8>,
    key: Option<Box<dyn KeyHolder>>,
    mandate: Option<(Mandate, TwoSlotFile)>,
    /// Whether other clients may connect to this one.
    meets_peers: bool,
}

impl State {
    fn answer(&mut self, request: Request) -> Reply {
        match request.port {
            SIGN => match request.question::<SignerRequest>() {
                Ok(question) => Reply::of(&self.main_asks(question, request.files)),
                Err(refusal) => Reply::refuse(refusal),
            },
            HANDSHAKE => match request.question::<Vec<u8>>() {
                Ok(message) => Reply::of(&self.network_asks(&message)),
                Err(refusal) => Reply::refuse(refusal),
            },
            _ => Reply::refuse(Refusal::NotPermitted),
        }
    }

    fn main_asks(&mut self, question: SignerRequest, files: Vec<OwnedFd>) -> SignerReply {
        let part = std::mem::take(&mut self.part);
        let outcome = match question {
            SignerRequest::Part(more) if part.len() + more.len() <= WHOLE_BYTES_MAX => {
                self.part = part;
                self.part.extend_from_slice(&more);
                Ok(SignerReply::Accepted)
            }
            SignerRequest::Part(_) => Err(refused("it is longer than anything that is signed")),
            SignerRequest::Begin { key, file_system } => self.begin(&part, key, file_system, files),
            SignerRequest::Sign => self.sign(&part).map(SignerReply::Signed),
            SignerRequest::GoOver { superuser, restores } => self.enter_epoch(&part, &superuser, &restores),
            SignerRequest::MeetPeers => {
                self.meets_peers = true;
                Ok(SignerReply::Accepted)
            }
        };
        outcome.unwrap_or_else(SignerReply::NotSigned)
    }

    /// Takes the key and the main process's record of its signatures; possible only once.
    fn begin(
        &mut self,
        known: &[u8],
        place: KeyLocation,
        file_system: Option<Digest>,
        files: Vec<OwnedFd>,
    ) -> Result<SignerReply, SignError> {
        if self.key.is_some() {
            return Err(refused("the signer has its key already"));
        }
        let mut files = files.into_iter();
        let mut next = || files.next().ok_or_else(|| refused("a file is missing"));
        let key: Box<dyn KeyHolder> = match place {
            KeyLocation::Pipe => Box::new(read_seed(next()?)?),
            KeyLocation::Agent { name, public } => {
                Box::new(AgentKey { name, public, connections: Arc::clone(&self.agent) })
            }
        };
        let public = key.public();
        let mut number = 0;
        if let Some(file_system) = file_system {
            let (mandate, keep) = mandate(&file_system, &public, known, next()?)?;
            number = mandate.number();
            self.mandate = Some((mandate, keep));
        }
        self.key = Some(key);
        Ok(SignerReply::Ready { public, number })
    }

    fn sign(&mut self, things: &[u8]) -> Result<Vec<Signature>, SignError> {
        let (Some(key), Some((mandate, keep))) = (&self.key, &mut self.mandate) else {
            return Err(refused("the signer was given no file system to sign for"));
        };
        let things: Vec<SigningPayload> = decode(things).map_err(|error| refused(&error.to_string()))?;
        let asks: Vec<SignRequest> = things.iter().map(SigningPayload::ask).collect();
        let after = mandate.judge(&asks).map_err(|why| refused(&why.to_string()))?;
        // An agent may refuse; in that case no number is used up.
        let signatures = key.try_sign_all(&asks)?;
        if after != *mandate {
            let kept = keep.write(&after.to_bytes());
            kept.map_err(|error| SignError::Away(format!("what was signed cannot be recorded: {error}")))?;
            *mandate = after;
        }
        Ok(signatures)
    }

    /// Signs in the epoch after a restore that the superuser has declared, and no longer in earlier ones.
    fn enter_epoch(
        &mut self,
        next: &[u8],
        superuser: &PublicKey,
        restores: &[Restore],
    ) -> Result<SignerReply, SignError> {
        let (Some(key), Some((mandate, keep))) = (&self.key, &mut self.mandate) else {
            return Err(refused("the signer was given no file system to sign for"));
        };
        let next = Mandate::from_bytes(next).map_err(|error| refused(&error.to_string()))?;
        let after =
            mandate.enter_epoch(superuser, restores, &next).map_err(|why| refused(&why.to_string()))?;
        let kept = keep.write(&after.to_bytes());
        kept.map_err(|error| SignError::Away(format!("what is signed cannot be recorded: {error}")))?;
        *mandate = after;
        Ok(SignerReply::Ready { public: key.public(), number: mandate.number() })
    }

    fn network_asks(&mut self, message: &[u8]) -> Result<Signature, SignError> {
        let is_to_be_signed =
            is_tls_handshake(message) || (self.meets_peers && is_tls_server_handshake(message));
        if message.len() > HANDSHAKE_BYTES_MAX || !is_to_be_signed {
            return Err(refused("it is no handshake of TLS that is made here"));
        }
        match &self.key {
            Some(key) => key.sign_message(message),
            None => Err(SignError::Away("the signer has no key yet".to_owned())),
        }
    }
}

fn refused(why: &str) -> SignError {
    SignError::Refused(format!("the process that keeps this device's key does not sign: {why}"))
}

fn read_seed(pipe: OwnedFd) -> Result<SigningKey, SignError> {
    let mut seed = Zeroizing::new([0; 32]);
    let read = std::fs::File::from(pipe).read_exact(&mut *seed);
    read.map_err(|error| refused(&format!("the key did not come: {error}")))?;
    Ok(SigningKey::from_seed(&seed))
}

/// The mandate from the signer's own file or the one from the main process, whichever includes more.
fn mandate(
    file_system: &Digest,
    public: &PublicKey,
    known: &[u8],
    file: OwnedFd,
) -> Result<(Mandate, TwoSlotFile), SignError> {
    let unusable =
        |why: &dyn fmt::Display| refused(&format!("its record of what was signed cannot be used: {why}"));
    let (mut keep, found) = TwoSlotFile::open(file).map_err(|error| unusable(&error))?;
    let read = |bytes: &[u8]| -> Result<Mandate, SignError> {
        let mandate = Mandate::from_bytes(bytes).map_err(|error| unusable(&error))?;
        match mandate.belongs_to(file_system, public) {
            true => Ok(mandate),
            false => Err(unusable(&"it is of another key or file system")),
        }
    };
    let known = if known.is_empty() { None } else { Some(read(known)?) };
    let kept = found.map(|bytes| read(&bytes)).transpose()?;
    let mandate = match (kept, known) {
        // Only one of the two records has taken up a restore; it is taken up again.
        (Some(kept), Some(known)) if kept.epoch() != known.epoch() => return Ok((kept, keep)),
        (Some(kept), Some(known)) if kept.contradicts(&known) => {
            return Err(unusable(&"it and the state of this device differ about the last operation"));
        }
        // The operation was signed by a version without a signer, or the file was restored to an older state.
        (Some(kept), Some(known)) if known.number() > kept.number() => known.with_warrants_of(&kept),
        (Some(kept), _) => return Ok((kept, keep)),
        (None, Some(known)) => known,
        (None, None) => Mandate::new(*file_system, *public),
    };
    keep.write(&mandate.to_bytes()).map_err(|error| unusable(&error))?;
    Ok((mandate, keep))
}

/// A key in an agent, used over connections that the main process makes, one for each request.
struct AgentKey {
    name: String,
    public: PublicKey,
    connections: Arc<Asker<(), Result<(), String>>>,
}

impl fmt::Debug for AgentKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "InAgent({})", self.name)
    }
}

impl AgentKey {
    fn ask(&self, question: &[u8]) -> Result<Vec<u8>, String> {
        let patience = Patience::of(AGENT_PATIENCE);
        let asked = self.connections.start(0, &(), &[], patience);
        let reply = asked.and_then(|ticket| self.connections.finish(ticket, patience));
        let reply = reply.map_err(|error| error.to_string())?;
        reply.body?;
        let socket = reply.files.into_iter().next().ok_or("no connection came")?;
        agent::converse(&mut UnixStream::from(socket), question).map_err(|error: io::Error| error.to_string())
    }
}

impl KeyHolder for AgentKey {
    fn public(&self) -> PublicKey {
        self.public
    }

    fn sign_message(&self, message: &[u8]) -> Result<Signature, SignError> {
        agent::sign(&self.name, &self.public, message, &mut |question| self.ask(question))
    }
}
