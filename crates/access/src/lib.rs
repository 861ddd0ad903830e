//! Who may do what: principals, access control lists, credentials, proofs and alias tables (the Principled
//! Filesystem paper, 3.1). The inference rules and the text forms are in `docs/internals/access.md`.
//!
//! How a request is decided: a principal makes statements, a process over its channel to the runtime, a key
//! by signing ([`VerifiedCredential`]). A process that wants to act as another principal presents a [`Proof`]
//! made of such credentials; [`check`] follows it step by step and searches for nothing. What was proved goes
//! into the process's [`AliasTable`], and from then on each message names an entry of it; a guard compares
//! that [`Alias`] with an owner or an [`Acl`]. When a credential is revoked ([`Revocations::end`]), the
//! aliases that rest on it fail at the next look-up.
//!
//! Invariants:
//! - nothing speaks for anything unless a rule of `docs/internals/access.md` says so (the tests hold [`check`] to a model);
//! - no process name is ever stored;
//! - everything a peer sends is bounded, none of it is deep, and malformed bytes are refused, never a panic.
//!
//! The trusted base has every module except [`text`] and [`prove`], which print, parse and assemble what the
//! others judge. This crate is pure: time is an argument, and so is every message.
#![forbid(unsafe_code)]

mod acl;
mod alias;
mod credential;
mod error;
mod manifest;
mod name;
mod predicate;
mod principal;
mod proof;
pub mod prove;
mod revocations;
mod scope;
pub mod text;

pub use acl::{Access, Acl, ENTRIES_MAX};
pub use alias::{ALIASES_MAX, Alias, AliasTable};
pub use credential::{
    CREDENTIAL_BYTES_MAX, CREDENTIALS_MAX, Credential, CredentialId, Credentials, Ending, Statement,
    VerifiedCredential,
};
pub use error::AccessError;
pub use manifest::{Condition, Conditions, Manifest};
pub use name::{NAME_BYTES_MAX, Name, ProcessName, TEXT_BYTES_MAX, Text};
pub use predicate::{Predicate, TERMS_MAX, Term};
pub use principal::{KeyName, Principal, ProgramHash};
pub use proof::{Premise, Proof, Proven, STEPS_MAX, Step, check};
pub use revocations::{ISSUERS_MAX, Revocations, SERIALS_MAX};
pub use scope::{Limit, Objects, Operation, RANGES_MAX, Scope};

/// An error of decoding.
fn malformed(why: impl ToString) -> borsh::io::Error {
    borsh::io::Error::new(borsh::io::ErrorKind::InvalidData, why.to_string())
}
