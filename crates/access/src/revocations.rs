//! What makes a credential invalid although its signature is valid: a revocation, or the end of the process
//! that stated it.
//!
//! Invariants: what was ended is never valid again, also over restarts (the driver stores
//! [`Revocations::encode`] before it acknowledges an ending). What a process stated is valid only while it is
//! alive, so ended processes take no space. The generation grows with every change, so one comparison tells
//! that nothing ended since. Spoken credentials do not exist in a later run, so only endings of signed ones
//! are stored.

use crate::{AccessError, Credential, Ending, Principal, ProcessName, Statement, VerifiedCredential};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{decode, encode};
use std::collections::{BTreeMap, BTreeSet};

/// The most issuers with endings, and the most processes alive.
pub const ISSUERS_MAX: usize = 4096;
/// Most serials of one issuer that are ended one by one; for the machine, which is trusted, there is no
/// limit.
pub const SERIALS_MAX: usize = 1024;

/// The credentials of one issuer that have ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
struct EndedCredentials {
    everything: bool,
    /// All serials below this one have ended.
    before: u64,
    /// Single serials that have ended, none of them below `before`.
    serials: BTreeSet<u64>,
}

/// The stored form: version 1.
#[derive(BorshSerialize, BorshDeserialize)]
enum Stored {
    V1(BTreeMap<Principal, EndedCredentials>),
}

/// Revocations and living processes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Revocations {
    generation: u64,
    ended: BTreeMap<Principal, EndedCredentials>,
    alive: BTreeSet<ProcessName>,
}

impl Revocations {
    /// No revocations, and no processes.
    pub fn new() -> Revocations {
        Revocations::default()
    }

    /// The endings of signed credentials, encoded for storage.
    pub fn encode(&self) -> Vec<u8> {
        let lasting = self.ended.iter().filter(|(issuer, _)| matches!(issuer, Principal::Key(_)));
        encode(&Stored::V1(lasting.map(|(issuer, ended)| (issuer.clone(), ended.clone())).collect()))
    }

    /// Decodes stored endings, at the start of a run.
    ///
    /// # Errors
    /// [`AccessError::Malformed`]: then no credential may be accepted.
    pub fn decode(bytes: &[u8]) -> Result<Revocations, AccessError> {
        let what = "store of revocations";
        let Stored::V1(ended) =
            decode(bytes).map_err(|error| AccessError::Malformed { what, why: error.why })?;
        let fits = ended.values().all(|one| one.serials.len() <= SERIALS_MAX);
        if ended.len() > ISSUERS_MAX || !fits {
            return Err(AccessError::Malformed {
                what,
                why: "more entries than are ever written".to_owned(),
            });
        }
        Ok(Revocations { generation: 0, ended, alive: BTreeSet::new() })
    }

    /// A number that grows whenever something ends.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Notes that a process started.
    ///
    /// # Errors
    /// [`AccessError::TooManyIssuers`].
    pub fn started(&mut self, process: ProcessName) -> Result<(), AccessError> {
        if self.alive.len() >= ISSUERS_MAX {
            return Err(AccessError::TooManyIssuers);
        }
        self.alive.insert(process);
        Ok(())
    }

    /// Notes that a process ended, and with it all its credentials.
    pub fn stopped(&mut self, process: ProcessName) {
        self.generation += 1;
        self.alive.remove(&process);
        self.ended.remove(&Principal::Process(process));
    }

    /// Whether the process is alive.
    pub fn lives(&self, process: ProcessName) -> bool {
        self.alive.contains(&process)
    }

    /// Carries out a statement that credentials end.
    ///
    /// # Errors
    /// As [`Revocations::end`]; [`AccessError::Malformed`] for another statement.
    pub fn end_by(&mut self, verified: &VerifiedCredential) -> Result<(), AccessError> {
        match &verified.credential().statement {
            Statement::Ends(ending) => self.end(&verified.credential().issuer, *ending),
            _ => Err(AccessError::Malformed { what: "ending", why: "it says something else".to_owned() }),
        }
    }

    /// Ends credentials of an issuer; takes effect at the next look-up.
    ///
    /// # Errors
    /// [`AccessError::TooManyIssuers`] if there is no room: then nothing was ended. For an issuer that is in
    /// the table, `Everything` and `Before` always have room.
    pub fn end(&mut self, issuer: &Principal, ending: Ending) -> Result<(), AccessError> {
        if matches!(issuer, Principal::Process(process) if !self.lives(*process)) {
            return Ok(());
        }
        if self.ended.len() >= ISSUERS_MAX && !self.ended.contains_key(issuer) {
            return Err(AccessError::TooManyIssuers);
        }
        let ended = self.ended.entry(issuer.clone()).or_default();
        match ending {
            Ending::Serial(serial) if serial < ended.before => {}
            Ending::Serial(serial) => {
                let bounded = *issuer != Principal::Machine;
                if bounded && ended.serials.len() >= SERIALS_MAX && !ended.serials.contains(&serial) {
                    return Err(AccessError::TooManyIssuers);
                }
                ended.serials.insert(serial);
            }
            Ending::Before(serial) => {
                ended.before = ended.before.max(serial);
                ended.serials = ended.serials.split_off(&ended.before);
            }
            Ending::Everything => ended.everything = true,
        }
        self.generation += 1;
        Ok(())
    }

    /// Adds all endings of another store.
    ///
    /// # Errors
    /// [`AccessError::TooManyIssuers`]; then some of them were added.
    pub fn merge(&mut self, other: &Revocations) -> Result<(), AccessError> {
        for (issuer, ended) in &other.ended {
            if ended.everything {
                self.end(issuer, Ending::Everything)?;
            }
            self.end(issuer, Ending::Before(ended.before))?;
            ended.serials.iter().try_for_each(|serial| self.end(issuer, Ending::Serial(*serial)))?;
        }
        Ok(())
    }

    /// Whether the credential of this issuer with this serial is valid.
    pub fn is_valid(&self, issuer: &Principal, serial: u64) -> bool {
        if matches!(issuer, Principal::Process(process) if !self.lives(*process)) {
            return false;
        }
        self.ended.get(issuer).is_none_or(|ended| {
            !ended.everything && serial >= ended.before && !ended.serials.contains(&serial)
        })
    }

    /// Checks that the credential is valid at `now_s`, in seconds since 1970.
    ///
    /// # Errors
    /// [`AccessError::Revoked`], [`AccessError::Expired`].
    pub fn check(&self, credential: &Credential, now_s: u64) -> Result<(), AccessError> {
        let (issuer, serial) = (credential.issuer.clone(), credential.serial);
        if !self.is_valid(&issuer, serial) {
            Err(AccessError::Revoked { issuer, serial })
        } else if credential.expires_s.is_some_and(|last| last < now_s) {
            Err(AccessError::Expired { issuer, serial })
        } else {
            Ok(())
        }
    }
}
