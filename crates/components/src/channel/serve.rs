//! The server side of channels: one loop over all ports that a process serves, on one or several threads.
//!
//! Each turn takes at most one packet from each channel, so a flood on one does not starve the others. An
//! answer that does not fit into a channel's queue waits, and nothing more is read from that channel until it
//! is sent: a peer that does not read only delays itself.

use super::packet::{wait, wait_watchfully};
use super::{Channel, Kind, Packet, Patience, Refusal};
use crate::alias::Alias;
use crate::error::{ComponentError, Result};
use crate::ports::Ports;
use borsh::{BorshDeserialize, BorshSerialize};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How long a turn waits at most before it checks whether ports have changed.
const TURN: Duration = Duration::from_millis(200);

/// A request, with its proven sender.
pub struct Request<'a> {
    /// The port that received it.
    pub port: &'a str,
    /// The caller, resolved in the sender's page at the moment of receipt.
    pub alias: Alias,
    /// The number of the request: the same when the caller repeats it.
    pub number: u64,
    /// The encoded request. Untrusted.
    pub body: &'a [u8],
    /// Files that came with it. Untrusted: each may be any file of the sender's choice.
    pub files: Vec<OwnedFd>,
}

impl Request<'_> {
    /// Decodes the body as a request of the protocol.
    ///
    /// # Errors
    /// The body is malformed; the error is the answer to send.
    pub fn question<Q: BorshDeserialize>(&self) -> std::result::Result<Q, Refusal> {
        borsh::from_slice(self.body).map_err(|_| Refusal::Malformed)
    }
}

/// The reply to a request.
#[derive(Debug)]
pub struct Reply {
    /// The alias it is given under.
    pub alias: u16,
    /// The encoded reply, or why the request is refused.
    pub outcome: std::result::Result<Vec<u8>, Refusal>,
    /// Files that are sent with the reply.
    pub files: Vec<OwnedFd>,
}

impl Reply {
    /// A plain answer, under the answering process's own name.
    pub fn of<A: BorshSerialize>(answer: &A) -> Reply {
        let body = borsh::to_vec(answer).expect("a vector takes everything");
        Reply { alias: 0, outcome: Ok(body), files: Vec::new() }
    }

    /// A reply that refuses the request.
    pub fn refuse(refusal: Refusal) -> Reply {
        Reply { alias: 0, outcome: Err(refusal), files: Vec::new() }
    }
}

impl<A: BorshSerialize> From<std::result::Result<A, Refusal>> for Reply {
    fn from(outcome: std::result::Result<A, Refusal>) -> Reply {
        match outcome {
            Ok(answer) => Reply::of(&answer),
            Err(refusal) => Reply::refuse(refusal),
        }
    }
}

/// Why a loop that serves requests ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The supervisor stopped the component.
    Stopped,
    /// The supervisor is gone.
    Orphaned,
}

/// A channel being served.
struct Line {
    port: String,
    generation: u64,
    channel: Arc<Channel>,
    /// Answers that did not fit yet. While there are any, nothing is read.
    unsent: Mutex<VecDeque<(u64, Reply)>>,
    gone: AtomicBool,
}

impl Ports {
    /// Answers requests on all ports to be served, until the end.
    ///
    /// # Errors
    /// The system fails; never something a peer does.
    pub fn serve(&self, mut answer: impl FnMut(Request) -> Reply) -> Result<Ended> {
        let lines = Mutex::new((0, Vec::new()));
        self.turns(&lines, &mut answer)
    }

    /// Answers requests with several threads, which needs [`crate::Permission::Threads`].
    ///
    /// # Errors
    /// The system failed; no peer can cause this.
    pub fn serve_with_threads(
        &self,
        threads: usize,
        answer: impl Fn(Request) -> Reply + Sync,
    ) -> Result<Ended> {
        let lines = Mutex::new((0, Vec::new()));
        std::thread::scope(|scope| {
            let started: std::io::Result<Vec<_>> = (1..threads.max(1))
                .map(|_| {
                    std::thread::Builder::new()
                        .name("serve".to_owned())
                        .spawn_scoped(scope, || self.turns(&lines, &mut |request| answer(request)))
                })
                .collect();
            // The others end with this one: all of them see the message to stop, or the end of the
            // supervisor.
            let own = self.turns(&lines, &mut |request| answer(request));
            match started {
                Ok(_) => own,
                Err(source) => Err(ComponentError::System { what: "starting a thread", source }),
            }
        })
    }

    fn turns(
        &self,
        shared: &Mutex<(u64, Vec<Arc<Line>>)>,
        answer: &mut dyn FnMut(Request) -> Reply,
    ) -> Result<Ended> {
        let mut buffer = Vec::new();
        // After a request another is likely to follow soon.
        let mut is_asked = false;
        loop {
            if self.is_stopping() {
                return Ok(Ended::Stopped);
            }
            let lines = self.lines(shared);
            let open: Vec<&Arc<Line>> = lines.iter().filter(|line| !line.gone.load(Relaxed)).collect();
            let mut events: Vec<PollFd> = open
                .iter()
                .map(|line| {
                    let blocked = !line.unsent.lock().is_empty();
                    PollFd::new(&line.channel, if blocked { PollFlags::OUT } else { PollFlags::IN })
                })
                .collect();
            if let Some(control) = self.control() {
                events.push(PollFd::from_borrowed_fd(control, PollFlags::IN));
            }
            let waited = if is_asked { wait_watchfully } else { wait };
            match waited(&mut events, Some(TURN)) {
                Ok(true) => is_asked = true,
                Ok(false) => {
                    is_asked = false;
                    continue;
                }
                Err(error) => {
                    let source = std::io::Error::other(format!("{error:?}"));
                    return Err(ComponentError::System { what: "waiting for requests", source });
                }
            }
            let is_ordered = events.get(open.len()).is_some_and(|control| !control.revents().is_empty());
            if is_ordered && let Some(ended) = self.attend(Patience::Never)? {
                return Ok(ended);
            }
            for (line, event) in open.iter().zip(&events) {
                if !event.revents().is_empty() {
                    line.turn(&mut buffer, answer);
                }
            }
        }
    }

    /// The channels to serve at present. A new channel replaces the previous one of its port.
    fn lines(&self, shared: &Mutex<(u64, Vec<Arc<Line>>)>) -> Vec<Arc<Line>> {
        let mut shared = shared.lock();
        let version = self.version();
        if shared.0 != version {
            let before = std::mem::take(&mut shared.1);
            shared.1 = self
                .serving()
                .into_iter()
                .map(|(port, generation, channel)| {
                    let same = before.iter().find(|line| line.port == port && line.generation == generation);
                    same.cloned().unwrap_or_else(|| {
                        let unsent = Mutex::default();
                        Arc::new(Line { port, generation, channel, unsent, gone: false.into() })
                    })
                })
                .collect();
            shared.0 = version;
        }
        shared.1.clone()
    }
}

impl Line {
    /// Sends waiting answers, or takes one packet.
    fn turn(&self, buffer: &mut Vec<u8>, answer: &mut dyn FnMut(Request) -> Reply) {
        let result = match self.drain() {
            Ok(true) => self.take_one(buffer, answer),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        match result {
            // Another thread took the packet.
            Ok(()) | Err(ComponentError::TimedOut(_)) => {}
            Err(ComponentError::PeerMisbehaved { port, offence }) => {
                tracing::debug!(port, offence, "a packet was dropped");
            }
            Err(_) => self.gone.store(true, Relaxed),
        }
    }

    fn take_one(&self, buffer: &mut Vec<u8>, answer: &mut dyn FnMut(Request) -> Reply) -> Result<()> {
        let bytes = self.channel.buffer_bytes();
        if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        let Packet { kind, number, alias, body, files } =
            self.channel.receive(&mut buffer[..bytes], Patience::Never)?;
        if kind != Kind::Request {
            return Err(ComponentError::PeerMisbehaved {
                port: self.port.clone(),
                offence: "it answers where it may only ask",
            });
        }
        let given = match alias {
            None => Reply::refuse(Refusal::AliasInvalid),
            Some(alias) => answer(Request { port: &self.port, alias, number, body, files }),
        };
        let mut unsent = self.unsent.lock();
        unsent.push_back((number, given));
        self.send_all(&mut unsent).map(|_| ())
    }

    /// Sends the answers in the queue. Returns whether none is left.
    fn drain(&self) -> Result<bool> {
        self.send_all(&mut self.unsent.lock())
    }

    fn send_all(&self, unsent: &mut VecDeque<(u64, Reply)>) -> Result<bool> {
        while let Some((number, answer)) = unsent.front() {
            let files = super::packet::borrowed(&answer.files);
            let refusal;
            let (kind, body) = match &answer.outcome {
                Ok(body) => (Kind::Reply, body),
                Err(why) => {
                    refusal = why.encode();
                    (Kind::Refusal, &refusal)
                }
            };
            match self.channel.send(kind, *number, answer.alias, body, &files, Patience::Never) {
                Ok(()) => {
                    unsent.pop_front();
                }
                Err(ComponentError::PeerDoesNotRead(_)) => return Ok(false),
                Err(ComponentError::TooLarge { .. } | ComponentError::TooManyFiles { .. }) => {
                    // Our own answer is too large for this channel: the client is told that its request
                    // failed.
                    let words = "the answer is larger than the channel carries".to_owned();
                    let number = *number;
                    unsent[0] = (number, Reply::refuse(Refusal::Failed(words)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
