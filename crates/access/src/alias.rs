//! Alias tables: what a process has proved, so that a message can name an index instead of carrying a proof.
//!
//! Invariants: entry 0 is the process itself; every other entry was proved for this process; a look-up
//! succeeds only while every premise is valid, so a revocation takes effect at the next look-up. If nothing
//! was ended since, that costs one comparison of generations.

use crate::{AccessError, Premise, Principal, ProcessName, Proven, Revocations, Scope};
use holdfast_crypto::{Digest, DigestKey, Domain, encode};

/// The most entries in a table, the process itself included.
pub const ALIASES_MAX: usize = 64;

/// The principal in whose name a message was sent: what a guard compares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Alias {
    principal: Principal,
    scope: Scope,
}

impl Alias {
    /// An alias that the caller vouches for: for the runtime, which resolves the stamp of a message.
    pub fn attested(principal: Principal, scope: Scope) -> Alias {
        Alias { principal, scope }
    }

    /// The principal in whose name the alias speaks.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The restriction of the alias.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The digest with which messages are stamped. Without a restriction it is the principal's digest; with
    /// one it is different, so a guard that knows only principals never takes a restricted alias for the
    /// whole principal.
    pub fn digest(&self) -> Digest {
        if self.scope == Scope::EVERYTHING {
            self.principal.digest()
        } else {
            DigestKey::WELL_KNOWN.digest(Domain::Alias, &encode(&(&self.principal, &self.scope)))
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    alias: Alias,
    premises: Vec<Premise>,
    /// The earliest end of a premise.
    expires_s: Option<u64>,
    /// The generation at which all premises were last seen to stand.
    generation: u64,
}

/// The aliases of one process.
#[derive(Clone, Debug)]
pub struct AliasTable {
    process: ProcessName,
    entries: Vec<Option<Entry>>,
}

impl AliasTable {
    /// The table of a process that has started: entry 0 only.
    ///
    /// # Errors
    /// [`AccessError::Ended`] if the process is not alive.
    pub fn new(process: ProcessName, revocations: &Revocations) -> Result<AliasTable, AccessError> {
        if !revocations.lives(process) {
            return Err(AccessError::Ended);
        }
        let alias = Alias::attested(Principal::Process(process), Scope::EVERYTHING);
        let generation = revocations.generation();
        let itself = Entry { alias, premises: Vec::new(), expires_s: None, generation };
        Ok(AliasTable { process, entries: vec![Some(itself)] })
    }

    /// Adds a proved alias. Its index is the lowest free one.
    ///
    /// # Errors
    /// [`AccessError::NotAboutYou`], [`AccessError::TooManyAliases`].
    pub fn add(&mut self, proven: Proven) -> Result<u16, AccessError> {
        if *proven.delegate() != Principal::Process(self.process) {
            return Err(AccessError::NotAboutYou(proven.delegate().clone()));
        }
        let index = self.entries.iter().position(Option::is_none).unwrap_or(self.entries.len());
        if index >= ALIASES_MAX {
            return Err(AccessError::TooManyAliases);
        }
        let entry = Entry {
            alias: Alias::attested(proven.principal().clone(), proven.scope().clone()),
            expires_s: proven.premises().iter().filter_map(|premise| premise.expires_s).min(),
            premises: proven.premises().to_vec(),
            // Not the generation of the proof's check, which may be outdated: the first look-up checks again.
            generation: u64::MAX,
        };
        if index == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[index] = Some(entry);
        Ok(index as u16)
    }

    /// Removes an entry. Entry 0 stays.
    ///
    /// # Errors
    /// [`AccessError::NoSuchAlias`].
    pub fn remove(&mut self, index: u16) -> Result<(), AccessError> {
        match self.entries.get_mut(usize::from(index)) {
            Some(entry @ Some(_)) if index > 0 => {
                *entry = None;
                Ok(())
            }
            _ => Err(AccessError::NoSuchAlias(index)),
        }
    }

    /// The alias at an index, if all its premises are valid at `now_s` (seconds since 1970). An invalid one
    /// is removed.
    ///
    /// # Errors
    /// [`AccessError::NoSuchAlias`], [`AccessError::Revoked`], [`AccessError::Expired`], [`AccessError::Ended`].
    pub fn look_up(
        &mut self,
        index: u16,
        revocations: &Revocations,
        now_s: u64,
    ) -> Result<&Alias, AccessError> {
        let place = usize::from(index);
        let entry =
            self.entries.get_mut(place).and_then(Option::as_mut).ok_or(AccessError::NoSuchAlias(index))?;
        if let Err(why) = entry.renew(self.process, revocations, now_s) {
            self.entries[place] = None;
            return Err(why);
        }
        Ok(&self.entries[place].as_ref().expect("it was just there").alias)
    }

    /// Every index with its alias.
    pub fn entries(&self) -> impl Iterator<Item = (u16, &Alias)> {
        (0..).zip(&self.entries).filter_map(|(index, entry)| Some((index, &entry.as_ref()?.alias)))
    }

    /// Removes all entries that are no longer valid, and returns their indices, for callers that have copies.
    pub fn sweep(&mut self, revocations: &Revocations, now_s: u64) -> Vec<u16> {
        let indices: Vec<u16> = self.entries().map(|(index, _)| index).collect();
        indices.into_iter().filter(|index| self.look_up(*index, revocations, now_s).is_err()).collect()
    }
}

impl Entry {
    fn renew(
        &mut self,
        process: ProcessName,
        revocations: &Revocations,
        now_s: u64,
    ) -> Result<(), AccessError> {
        if self.expires_s.is_some_and(|last| last < now_s) {
            let over = |premise: &&Premise| premise.expires_s == self.expires_s;
            let premise = self.premises.iter().find(over).expect("it is the least of theirs");
            return Err(AccessError::Expired { issuer: premise.issuer.clone(), serial: premise.serial });
        }
        if self.generation == revocations.generation() {
            return Ok(());
        }
        if !revocations.lives(process) {
            return Err(AccessError::Ended);
        }
        if let Some(premise) = self.premises.iter().find(|p| !revocations.is_valid(&p.issuer, p.serial)) {
            return Err(AccessError::Revoked { issuer: premise.issuer.clone(), serial: premise.serial });
        }
        self.generation = revocations.generation();
        Ok(())
    }
}
