//! The errors, by their cause: the system, the other end of a channel, or the caller.

use std::io;

/// Why something about components failed.
#[derive(Debug, thiserror::Error)]
pub enum ComponentError {
    /// The system refused something that a sandbox or the runtime needs.
    #[error("{what}: {source}")]
    System {
        /// The action that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The sandbox would lack a required wall.
    #[error(
        "the sandbox lacks {what} here ({reason}): allow it to be weaker explicitly, or run on a system that has it"
    )]
    SandboxLacks {
        /// The wall that the system lacks.
        what: &'static str,
        /// Why it cannot be put up.
        reason: String,
    },
    /// The sandbox was set up and does not hold.
    #[error("the sandbox does not hold: {0}; nothing was started in it")]
    SandboxLeaks(&'static str),
    /// A component could not be started.
    #[error("component {component} did not start: {reason}")]
    NotStarted {
        /// The component's name.
        component: String,
        /// Why it could not be started.
        reason: String,
    },
    /// A component is down and stays down.
    #[error("component {component} is down and stays down: {reason}")]
    Down {
        /// The component's name.
        component: String,
        /// Why it is down.
        reason: String,
    },
    /// No component of this name is in the program's table.
    #[error("this program has no component named {0}")]
    NoSuchComponent(String),
    /// No port of this name was handed to the component.
    #[error("no channel named {0} was handed to this component")]
    NoSuchPort(String),
    /// No region of this name was handed to the component.
    #[error("no region named {0} was handed to this component")]
    NoSuchRegion(String),
    /// A plan contradicts itself.
    #[error("the plan does not hold together: {0}")]
    Plan(String),
    /// The other end is gone.
    #[error("the other end of channel {0} is gone")]
    Disconnected(String),
    /// The other end went away while a request was in flight.
    #[error(
        "the other end of channel {port} went away: it is unknown whether request {request} was carried out; ask again with the same number"
    )]
    UnknownWhetherDone {
        /// The port of the channel.
        port: String,
        /// The request's number.
        request: u64,
    },
    /// The other end does not read, and its queue is full.
    #[error("the other end of channel {0} does not read what is sent to it")]
    PeerDoesNotRead(String),
    /// The deadline passed.
    #[error("nothing came over channel {0} in time")]
    TimedOut(String),
    /// A message is larger than the channel carries.
    #[error("a message of {bytes} bytes is larger than channel {port} carries ({bytes_max})")]
    TooLarge {
        /// The port of the channel.
        port: String,
        /// The size of the message, in bytes.
        bytes: usize,
        /// The largest size that the channel carries.
        bytes_max: usize,
    },
    /// More files are passed with one message than the channel allows.
    #[error("{count} files with one message are more than channel {port} carries ({count_max})")]
    TooManyFiles {
        /// The port of the channel.
        port: String,
        /// The number of files.
        count: usize,
        /// The most that the channel carries.
        count_max: usize,
    },
    /// Too many requests wait for their answers.
    #[error("{0} requests on one channel already wait for their answers")]
    TooManyInFlight(usize),
    /// The other end broke the rules of the channel.
    #[error("the other end of channel {port} broke its rules: {offence}")]
    PeerMisbehaved {
        /// The port of the channel.
        port: String,
        /// How the peer broke the protocol.
        offence: &'static str,
    },
    /// The other end refused a request.
    #[error("channel {port}: refused: {refusal}")]
    Refused {
        /// The port of the channel.
        port: String,
        /// The peer's reason.
        refusal: crate::channel::Refusal,
    },
    /// Regions would take more memory than they may together.
    #[error("a region of {bytes} bytes does not fit: {bytes_used} of {bytes_max} bytes are taken")]
    RegionsFull {
        /// Bytes that were asked for.
        bytes: u64,
        /// Bytes that regions take already.
        bytes_used: u64,
        /// The most that regions may take.
        bytes_max: u64,
    },
    /// A range outside of a region.
    #[error("{offset}+{length} is outside a region of {bytes} bytes, or the region was revoked")]
    OutsideRegion {
        /// Start of the range, in bytes.
        offset: u64,
        /// The length of the range.
        length: u64,
        /// The size of the region.
        bytes: u64,
    },
    /// An alias with an index that its table does not have.
    #[error("alias {index} is outside a table of {count} aliases")]
    NoSuchAlias {
        /// The index in the packet.
        index: u16,
        /// The number of entries.
        count: u16,
    },
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, ComponentError>;

/// Adds to a system's error what was being done.
pub(crate) trait During<T> {
    fn during(self, what: &'static str) -> Result<T>;
}

impl<T, E: Into<io::Error>> During<T> for std::result::Result<T, E> {
    fn during(self, what: &'static str) -> Result<T> {
        self.map_err(|source| ComponentError::System { what, source: source.into() })
    }
}
