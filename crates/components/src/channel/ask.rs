//! The client side of a channel: numbered requests, several in flight, from several threads.
//!
//! One of the waiting threads receives for all; the others sleep until it has stored their answer. When the
//! other end goes away, everything in flight ends as *unknown whether done*, and the next request waits for a
//! new channel, which the runtime provides when the other component runs again.

use super::{Channel, Kind, Patience, Refusal};
use crate::alias::Alias;
use crate::error::{ComponentError, Result};
use crate::merged::Call;
use crate::ports::Ports;
use borsh::{BorshDeserialize, BorshSerialize};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use tracing::trace_span;

/// A request that waits for its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the answer takes a place until it is fetched"]
pub struct Ticket(u64);

impl Ticket {
    /// The number of the request: to be used when asking again.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// A reply, as received.
#[derive(Debug)]
pub struct ReceivedReply<A> {
    /// The principal on whose behalf the reply was given.
    pub alias: Alias,
    /// The content of the reply.
    pub body: A,
    /// Files that came with the reply. Untrusted.
    pub files: Vec<OwnedFd>,
}

/// A reply before it is decoded.
pub(crate) type Raw = Result<(Alias, Vec<u8>, Vec<OwnedFd>)>;

enum Waiting {
    /// Sent over the channel of this generation.
    Open(u64),
    Answered(Raw),
}

struct Inner {
    channel: Option<Arc<Channel>>,
    /// The channel used last; a newer one has a higher number.
    generation: u64,
    next: u64,
    waiting: BTreeMap<u64, Waiting>,
    buffer: Option<Vec<u8>>,
}

/// Sends requests of type `Q` over one port, and receives replies of type `A`.
pub struct Asker<Q, A> {
    port: String,
    ports: Arc<Ports>,
    /// Set if the serving component is in the same process: then a request is a call ([`crate::Merged`]).
    call: Option<Arc<Call>>,
    inner: Mutex<Inner>,
    changed: Condvar,
    types: PhantomData<fn(Q) -> A>,
}

impl<Q: BorshSerialize, A: BorshDeserialize> Asker<Q, A> {
    pub(crate) fn new(
        port: &str,
        ports: Arc<Ports>,
        call: Option<Arc<Call>>,
        first_number: u64,
    ) -> Asker<Q, A> {
        let inner = Inner {
            channel: None,
            generation: 0,
            next: first_number,
            waiting: BTreeMap::new(),
            buffer: None,
        };
        Asker {
            port: port.to_owned(),
            ports,
            call,
            inner: Mutex::new(inner),
            changed: Condvar::new(),
            types: PhantomData,
        }
    }

    /// Sends a request and waits for the answer, which is dropped if it comes too late.
    ///
    /// # Errors
    /// As of [`Asker::start`] and [`Asker::finish`].
    pub fn ask(&self, alias: u16, question: &Q, patience: Patience) -> Result<A> {
        let ticket = self.start(alias, question, &[], patience)?;
        let reply = self.finish(ticket, patience);
        // The ticket cannot be used any more. A peer that never answers must not use up the limit of requests
        // in flight.
        self.forget(ticket);
        Ok(reply?.body)
    }

    /// Sends a request. If the channel is down, waits for a new one.
    ///
    /// # Errors
    /// No channel comes in time, the peer does not read, too many requests are in flight, or the request is
    /// too large. Nothing was sent then.
    pub fn start(
        &self,
        alias: u16,
        question: &Q,
        files: &[BorrowedFd],
        patience: Patience,
    ) -> Result<Ticket> {
        let mut inner = self.inner.lock();
        let number = inner.next;
        inner.next += 1;
        drop(inner);
        self.start_again(number, alias, question, files, patience)
    }

    /// Repeats a request that may have been carried out, under its old number, so that the peer can tell that
    /// it is a repetition.
    ///
    /// # Errors
    /// As of [`Asker::start`].
    pub fn start_again(
        &self,
        number: u64,
        alias: u16,
        question: &Q,
        files: &[BorrowedFd],
        patience: Patience,
    ) -> Result<Ticket> {
        let body = borsh::to_vec(question).expect("a vector takes everything");
        if let Some(call) = &self.call {
            let answer = call.run(&self.port, number, alias, &body, files, patience);
            self.inner.lock().waiting.insert(number, Waiting::Answered(answer));
            return Ok(Ticket(number));
        }
        loop {
            let (generation, channel) = self.channel(patience)?;
            let mut inner = self.inner.lock();
            let in_flight_max = usize::from(channel.bounds().in_flight_max);
            if inner.waiting.len() >= in_flight_max {
                return Err(ComponentError::TooManyInFlight(in_flight_max));
            }
            if inner.waiting.insert(number, Waiting::Open(generation)).is_some() {
                return Err(ComponentError::Plan(format!("request {number} is in flight already")));
            }
            drop(inner);
            match channel.send(Kind::Request, number, alias, &body, files, patience) {
                Ok(()) => return Ok(Ticket(number)),
                Err(error) => {
                    let mut inner = self.inner.lock();
                    inner.waiting.remove(&number);
                    if !matches!(error, ComponentError::Disconnected(_)) {
                        return Err(error);
                    }
                    // The other end went away before: nothing was sent, so the next channel can be used.
                    self.lose(&mut inner, &channel);
                }
            }
        }
    }

    /// Waits for an answer. When time is up, the request stays in flight and may be waited for again.
    ///
    /// # Errors
    /// The request was refused; it is unknown whether it was carried out; no answer came in time; the other
    /// end broke the rules.
    pub fn finish(&self, ticket: Ticket, patience: Patience) -> Result<ReceivedReply<A>> {
        let port = &self.port;
        let _span = trace_span!(target: "operation", "ask a component", port, ticket = ticket.0).entered();
        let mut inner = self.inner.lock();
        let mut tried = false;
        let (alias, body, files) = loop {
            match inner.waiting.get(&ticket.0) {
                None => return Err(ComponentError::Plan(format!("request {} is not in flight", ticket.0))),
                Some(Waiting::Open(generation))
                    if *generation < inner.generation || inner.channel.is_none() =>
                {
                    // The channel was lost between sending and waiting.
                    inner.waiting.remove(&ticket.0);
                    return Err(self.unknown(ticket.0));
                }
                // A peer that sends invalid packets without end delays the caller no longer than a silent
                // one.
                Some(Waiting::Open(_)) if tried && patience.left().is_some_and(|left| left.is_zero()) => {
                    return Err(ComponentError::TimedOut(self.port.clone()));
                }
                Some(Waiting::Open(_)) => {}
                Some(Waiting::Answered(_)) => match inner.waiting.remove(&ticket.0) {
                    Some(Waiting::Answered(answer)) => break answer?,
                    _ => continue,
                },
            }
            let Some(channel) = inner.channel.clone() else { continue };
            match inner.buffer.take() {
                // Another thread receives; it wakes us.
                None => {
                    let timed_out = match patience.left() {
                        None => {
                            self.changed.wait(&mut inner);
                            false
                        }
                        Some(left) => self.changed.wait_for(&mut inner, left).timed_out(),
                    };
                    if timed_out && matches!(inner.waiting.get(&ticket.0), Some(Waiting::Open(_))) {
                        return Err(ComponentError::TimedOut(self.port.clone()));
                    }
                }
                Some(mut buffer) => {
                    drop(inner);
                    tried = true;
                    let received = self.receive(&channel, &mut buffer, patience);
                    inner = self.inner.lock();
                    inner.buffer = Some(buffer);
                    let outcome = self.store_reply(&mut inner, &channel, received);
                    self.changed.notify_all();
                    outcome?;
                }
            }
        };
        let body = borsh::from_slice(&body).map_err(|_| ComponentError::PeerMisbehaved {
            port: self.port.clone(),
            offence: "an answer that does not follow the protocol",
        })?;
        Ok(ReceivedReply { alias, body, files })
    }

    /// Number of requests that wait for their answers.
    pub fn in_flight(&self) -> usize {
        self.inner.lock().waiting.len()
    }

    /// Forgets a request whose answer is not needed any more; the answer will be dropped.
    pub fn forget(&self, ticket: Ticket) {
        self.inner.lock().waiting.remove(&ticket.0);
    }

    fn receive(&self, channel: &Channel, buffer: &mut [u8], patience: Patience) -> Result<(u64, Raw)> {
        let packet = channel.receive(buffer, patience)?;
        let refused = |refusal| Err(ComponentError::Refused { port: self.port.clone(), refusal });
        let answer = match (packet.kind, packet.alias) {
            (Kind::Request, _) => {
                return Err(ComponentError::PeerMisbehaved {
                    port: self.port.clone(),
                    offence: "it asks where it may only answer",
                });
            }
            (_, None) => refused(Refusal::AliasInvalid),
            (Kind::Reply, Some(alias)) => Ok((alias, packet.body.to_vec(), packet.files)),
            (Kind::Refusal, Some(_)) => refused(Refusal::decode(packet.body)),
        };
        Ok((packet.number, answer))
    }

    fn store_reply(
        &self,
        inner: &mut Inner,
        channel: &Arc<Channel>,
        received: Result<(u64, Raw)>,
    ) -> Result<()> {
        match received {
            Ok((number, answer)) => {
                // An unexpected answer (its request was forgotten, or never existed) changes nothing.
                if let Some(waiting @ Waiting::Open(_)) = inner.waiting.get_mut(&number) {
                    *waiting = Waiting::Answered(answer);
                }
                Ok(())
            }
            Err(ComponentError::Disconnected(_)) => {
                self.lose(inner, channel);
                Ok(())
            }
            // A bad packet is dropped, and threads continue to wait.
            Err(ComponentError::PeerMisbehaved { port, offence }) => {
                tracing::debug!(port, offence, "a packet was dropped");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn lose(&self, inner: &mut Inner, channel: &Arc<Channel>) {
        if inner.channel.as_ref().is_some_and(|current| Arc::ptr_eq(current, channel)) {
            inner.channel = None;
        }
        for (number, waiting) in &mut inner.waiting {
            if matches!(waiting, Waiting::Open(_)) {
                *waiting = Waiting::Answered(Err(self.unknown(*number)));
            }
        }
        self.changed.notify_all();
    }

    fn unknown(&self, request: u64) -> ComponentError {
        ComponentError::UnknownWhetherDone { port: self.port.clone(), request }
    }

    /// The channel in use, or a new one, with its generation.
    fn channel(&self, patience: Patience) -> Result<(u64, Arc<Channel>)> {
        let generation = {
            let inner = self.inner.lock();
            if let Some(channel) = &inner.channel {
                return Ok((inner.generation, Arc::clone(channel)));
            }
            inner.generation
        };
        let (newer, channel) = self.ports.channel_after(&self.port, generation, patience)?;
        let mut inner = self.inner.lock();
        if newer > inner.generation {
            // There is one buffer; the thread that holds it receives for all.
            if inner.generation == 0 {
                inner.buffer = Some(channel.buffer());
            }
            inner.generation = newer;
            inner.channel = Some(channel);
        }
        match &inner.channel {
            Some(channel) => Ok((inner.generation, Arc::clone(channel))),
            None => Err(ComponentError::Disconnected(self.port.clone())),
        }
    }
}
