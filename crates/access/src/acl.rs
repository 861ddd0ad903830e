//! Access control lists, and the guard that reads them.
//!
//! Invariants: a list names each principal once, names no process, and has at most [`ENTRIES_MAX`] entries.
//! An empty list permits nobody. The guard only compares: the caller has already proved who it is
//! ([`crate::AliasTable`]).

use crate::{AccessError, Alias, Objects, Operation, Principal, malformed};
use borsh::{BorshDeserialize, BorshSerialize, io};
use std::collections::BTreeMap;

/// The most entries in a list.
pub const ENTRIES_MAX: usize = 64;

/// A privilege; in a request, the one that is needed. The order is part of the stored format: later variants
/// come last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum Access {
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// An access control list.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, BorshSerialize)]
pub struct Acl(BTreeMap<Principal, Access>);

impl Acl {
    /// The list that permits nobody.
    pub fn nobody() -> Acl {
        Acl::default()
    }

    /// A list of one.
    ///
    /// # Errors
    /// [`AccessError::NotStorable`].
    pub fn of(principal: Principal, access: Access) -> Result<Acl, AccessError> {
        let mut acl = Acl::nobody();
        acl.set(principal, access)?;
        Ok(acl)
    }

    /// Grants exactly this access to the principal.
    ///
    /// # Errors
    /// [`AccessError::NotStorable`]; [`AccessError::AclFull`].
    pub fn set(&mut self, principal: Principal, access: Access) -> Result<(), AccessError> {
        if !principal.is_storable() {
            return Err(AccessError::NotStorable(principal));
        }
        if self.0.len() >= ENTRIES_MAX && !self.0.contains_key(&principal) {
            return Err(AccessError::AclFull);
        }
        self.0.insert(principal, access);
        Ok(())
    }

    /// Removes the principal from the list. Returns whether it was there.
    pub fn remove(&mut self, principal: &Principal) -> bool {
        self.0.remove(principal).is_some()
    }

    /// The entries, in order.
    pub fn entries(&self) -> impl Iterator<Item = (&Principal, Access)> {
        self.0.iter().map(|(principal, access)| (principal, *access))
    }

    /// The access that the list grants to exactly this principal.
    pub fn granted_to(&self, principal: &Principal) -> Option<Access> {
        self.0.get(principal).copied()
    }

    /// The guard: whether the principal that proved this alias may have this access to these objects, which
    /// the list protects.
    pub fn permits(&self, alias: &Alias, access: Access, objects: Objects) -> bool {
        let in_scope = alias.scope().covers(Operation::Read, objects)
            && (access == Access::Read || alias.scope().covers(Operation::Write, objects));
        in_scope && self.granted_to(alias.principal()).is_some_and(|granted| granted >= access)
    }
}

impl BorshDeserialize for Acl {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let entries: BTreeMap<Principal, Access> = BTreeMap::deserialize_reader(reader)?;
        if entries.len() > ENTRIES_MAX {
            return Err(malformed(AccessError::AclFull));
        }
        match entries.keys().find(|principal| !principal.is_storable()) {
            Some(principal) => Err(malformed(AccessError::NotStorable(principal.clone()))),
            None => Ok(Acl(entries)),
        }
    }
}
