//! What an enemy has: what the honest component was given, and no more.

use crate::Orders;
use borsh::BorshSerialize;
use holdfast_access::{Name, Principal};
use holdfast_components::{Asker, ComponentError, Context, Patience, Refusal};
use holdfast_monitor::PAGE_BYTES;
use holdfast_stack::protocol::*;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A text that only alice's file has.
pub const SECRET: &[u8] = b"ALICE'S SECRET, ";
/// Names under which everything is tried: those that some component has, and one that none has.
pub const ALIASES: [u16; 8] = [0, 1, 2, 3, 4, 63, 64, u16::MAX];

/// Bytes that are sent unencoded.
pub struct Raw(pub Vec<u8>);

impl BorshSerialize for Raw {
    fn serialize<W: io::Write>(&self, writer: &mut W) -> io::Result<()> {
        writer.write_all(&self.0)
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was carried out.
    Done,
    /// It was refused.
    Refused,
    /// There was no answer.
    Nothing,
}

pub struct Enemy {
    pub context: Context,
    pub orders: Orders,
}

/// Long enough for any component that answers.
pub fn soon() -> Patience {
    Patience::of(Duration::from_secs(120))
}

pub fn user(name: &str) -> Principal {
    Principal::User(Name::new(name).expect("a name"))
}

/// Prints a line of the report, which the supervisor keeps as the process's last words.
pub fn report(what: &str, found: impl std::fmt::Display) {
    let _ = write!(io::stderr(), " {what}={found}");
}

impl Enemy {
    pub fn new(context: Context, orders: Orders) -> Enemy {
        Enemy { context, orders }
    }

    pub fn asker<Q: BorshSerialize, A: borsh::BorshDeserialize>(&self, port: &str) -> Option<Asker<Q, A>> {
        self.context.ports.asker(port).ok()
    }

    /// The number of aliases under which a request is carried out.
    pub fn under_any<Q, A>(asker: &Asker<Q, A>, question: &Q) -> usize
    where
        Q: BorshSerialize,
        A: borsh::BorshDeserialize,
    {
        ALIASES
            .into_iter()
            .filter(|alias| outcome(&asker.ask(*alias, question, soon())) == Outcome::Done)
            .count()
    }
}

pub fn outcome<T>(answer: &Result<T, ComponentError>) -> Outcome {
    match answer {
        Ok(_) => Outcome::Done,
        Err(ComponentError::Refused { .. } | ComponentError::PeerMisbehaved { .. }) => Outcome::Refused,
        Err(_) => Outcome::Nothing,
    }
}

pub fn words<T>(answer: &Result<T, ComponentError>) -> String {
    match answer {
        Err(ComponentError::Refused { refusal: Refusal::Failed(words), .. }) => words.clone(),
        _ => String::new(),
    }
}

/// How often alice's secret is in what a view shows.
pub fn secrets_in(files: &[OwnedFd]) -> usize {
    let mut found = 0;
    let mut page = vec![0; PAGE_BYTES];
    for file in files {
        for at in 0..256u64 {
            match rustix::io::pread(file, &mut page, at * PAGE_BYTES as u64) {
                Ok(read) if read > 0 => found += usize::from(has_secret(&page[..read])),
                _ => break,
            }
        }
    }
    found
}

pub fn has_secret(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|window| window == SECRET)
}

/// The port to the monitor, which every component but the formatter has.
pub type Monitor = Asker<MonitorRequest, MonitorReply>;
/// The port to PolicyMgr.
pub type Policy = Asker<PolicyRequest, PolicyReply>;
